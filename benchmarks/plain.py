"""The model that people write instead: an ordinary careful PyTorch module, trained alone.

Fused attention, tanh GELU, tied head, fused AdamW with two parameter groups, clipping, batches gathered on the device,
no number read back in the loop. The same mathematics as ours (checked by `loss_of` in the benchmarks).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablationlab.records.settings import ModelConfig, TrainingConfig


class Block(nn.Module):
    """Pre-LN attention and MLP."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.heads = model.heads
        self.norm1, self.norm2 = nn.LayerNorm(model.width), nn.LayerNorm(model.width)
        self.qkv, self.out = nn.Linear(model.width, 3 * model.width), nn.Linear(model.width, model.width)
        self.up = nn.Linear(model.width, model.hidden)
        self.down = nn.Linear(model.hidden, model.width)

    def forward(self, x: Tensor) -> Tensor:
        """x_BTD to x_BTD."""
        B, T, D = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D)
        x = x + self.out(a)
        y: Tensor = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return y


class PlainGPT(nn.Module):
    """A GPT-2 with tied head; the vocabulary is padded to a multiple of 64, as a careful user does for large ones."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        assert model.vocabulary is not None
        rows = model.vocabulary if model.vocabulary < 1000 else -(-model.vocabulary // 64) * 64
        self.tok, self.pos = nn.Embedding(rows, model.width), nn.Embedding(model.context, model.width)
        self.blocks = nn.ModuleList(Block(model) for _ in range(model.layers))
        self.final_norm = nn.LayerNorm(model.width)
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, windows_BT: Tensor) -> Tensor:
        """Mean loss of predicting each next token of the windows."""
        tokens, targets = windows_BT[:, :-1], windows_BT[:, 1:]
        x = self.tok(tokens) + self.pos.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.final_norm(x), self.tok.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.reshape(-1))


def trainer(
    model: ModelConfig,
    training: TrainingConfig,
    tokens: Tensor,
    precision: str,
    *,
    compiled: bool = False,
) -> Callable[[], Tensor]:
    """A function that makes one training step and returns its loss, still on the device."""
    device = tokens.device
    net = PlainGPT(model).to(device)
    decayed = [p for p in net.parameters() if p.dim() >= 2]
    free = [p for p in net.parameters() if p.dim() < 2]
    groups = [
        {"params": decayed, "weight_decay": training.weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=training.lr, betas=training.betas, eps=training.eps, fused=True)
    loss_of = torch.compile(net) if compiled else net
    window = torch.arange(model.context + 1, device=device)

    def cast() -> AbstractContextManager[object]:
        return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()

    def step() -> Tensor:
        offsets = torch.randint(0, len(tokens) - model.context, (training.batch,), device=device)
        with cast():
            loss: Tensor = loss_of(tokens[offsets[:, None] + window])
        loss.backward()  # type: ignore[no-untyped-call]
        if training.clip != "off":
            torch.nn.utils.clip_grad_norm_(net.parameters(), training.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step
