"""One of everything that a study's own code can register, as small as it gets. studies and docs: docs/variants.md."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

import ablationlab as lab


@lab.part("mlp", "gated", options={"gated_ratio": 2.667})
class Gated(lab.BlockPart):
    """SwiGLU: (silu(y G) * y U) D."""

    def hidden(self, model):
        return max(1, round(lab.option(model, "gated_ratio") * model.width))

    def parameters(self, model, prefix):
        width, hidden = model.width, self.hidden(model)
        return [
            *lab.linear(f"{prefix}.gate", width, hidden, model.init_std, bias=False),
            *lab.linear(f"{prefix}.up", width, hidden, model.init_std, bias=False),
            *lab.linear(f"{prefix}.down", hidden, width, model.init_std / math.sqrt(2 * model.layers), bias=False),
        ]

    def cost(self, model):
        return lab.PartCost(6 * model.width * self.hidden(model))

    def __call__(self, forward, y, prefix):
        gate, _ = forward.layer(y, f"{prefix}.gate")
        up, _ = forward.layer(y, f"{prefix}.up")
        out, _ = forward.layer(F.silu(gate) * up, f"{prefix}.down")
        return (out, None) if forward.dropout is None else (forward.dropout(out, prefix), None)


@lab.part("norm", "rms")
class Rms(lab.ResidualNorm):
    """x / sqrt(mean(x²) + eps) · g, without a bias."""

    def parameters(self, model, name):
        return [lab.Parameter(f"{name}.gain", (model.width,), fill=1.0)]

    def __call__(self, forward, x, name):
        gain = forward.params[f"{name}.gain"]
        return F.rms_norm(x, x.shape[-1:], eps=forward.model.norm_eps) * gain[:, None, None]


@lab.part("position", "small-sinusoidal")
class Sinusoidal(lab.PositionScheme):
    """Vaswani et al. 2017, at a hundredth of their scale: nothing to learn."""

    def __call__(self, forward, length):
        tokens, positions_BT = forward.params["tok.weight"], forward.positions_BT
        at = torch.arange(length, device=tokens.device)[None] if positions_BT is None else positions_BT
        rates = torch.exp(torch.arange(0, tokens.shape[-1], 2, device=tokens.device) * (-9.21 / tokens.shape[-1]))
        angles = at[..., None] * rates
        table = 0.01 * torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., : tokens.shape[-1]]
        return table.expand(tokens.shape[0], *table.shape)


@lab.part("loss", "z-loss", options={"z_loss": 1e-4})
def z_loss(logits, targets, model):
    """The square of the log of the softmax's denominator (PaLM)."""
    return lab.option(model, "z_loss") * logits.logsumexp(dim=-1).square().mean(dim=(1, 2))


@lab.optimizer("signum", state=("m",))
def signum(step):
    """Bernstein et al. 2018: the sign of the momentum."""
    m = step.state["m"].lerp_(step.gradient, 1 - step.training.betas[0])
    return step.weights * (1 - step.lr * step.decay) - step.lr * m.sign()


@lab.schedule("square")
def square(training, step, steps):
    """Warmup, then down to 0 as the square of what is left."""
    if step <= training.warmup:
        return step / training.warmup
    return ((steps - step) / max(1, steps - training.warmup)) ** 2


@lab.variant("narrow-mlp", about="an MLP of half the width")
def narrow(model):
    return {"model": {"mlp_ratio": max(1, model.mlp_ratio // 2)}}


@lab.metric("weight_norm", meaning="L2 norm of all weights", direction=None, family="diagnostics", transform="log")
def weight_norm(run):
    return math.sqrt(sum(float(value.double().square().sum()) for value in run.weights.values()))


@lab.probe("token-mean", meaning="mean of the token embedding", measures={"mean": "mean over all entries"})
def token_mean(snapshot):
    return [lab.Reading("mean", snapshot.weights["tok.weight"].mean(dim=(-1, -2)))]


@lab.corpus("counting", meaning="the numbers in a row")
def counting():
    return " ".join(str(number) for number in range(4000))
