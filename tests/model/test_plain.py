"""The plain model that benchmarks compare speed with computes what ours does."""

from __future__ import annotations

import pytest
import torch

from ablationlab.model.gpt import ForwardPass
from ablationlab.records.settings import ModelConfig

from .test_architectures import drawn, text


@pytest.fixture(scope="module")
def plain(load_benchmark):
    return load_benchmark("plain")


@pytest.mark.parametrize("preset", ["char-mini", "llama-mini", "nanochat-mini"])
def test_the_plain_model_has_our_loss_and_gradients(plain, preset):
    model = ModelConfig(preset=preset, vocabulary=23, layers=2, width=32, heads=4, context=16, zero_init=False)
    weights, windows = drawn(model, 1), text(model.changed(context=17))
    net = plain.PlainGPT(model)
    state = {}
    for name, value in weights.items():
        matrix = value[0].T if name.startswith("blocks.") and value.dim() == 3 else value[0]
        state[name.replace(".attn.", ".").replace(".mlp.", ".").replace(".gain", ".weight")] = matrix
    net.load_state_dict(state | {"cos": net.cos, "sin": net.sin})
    loss = net(windows[0])
    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    ours = ForwardPass(leaves, model, [model.front]).losses_R(windows[..., :-1], windows[..., 1:])[0][0]
    torch.testing.assert_close(ours, loss, rtol=1e-5, atol=1e-5)
    (theirs,) = torch.autograd.grad(loss, net.tok.weight)
    (gradient,) = torch.autograd.grad(ours, leaves["tok.weight"])
    torch.testing.assert_close(gradient[0], theirs, rtol=1e-4, atol=1e-5)
