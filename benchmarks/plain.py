"""The model that people write instead: an ordinary careful PyTorch module, trained alone.

The parts of char-mini, llama-mini or nanochat-mini with fused attention, fused AdamW with two parameter groups, clipping,
batches gathered on the device, no number read back in the loop. The same mathematics as ours: tests/model/test_plain.py
compares the losses and gradients of both on the same weights.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablationlab.records.settings import ModelConfig, TrainingConfig


def norm_of(model: ModelConfig) -> nn.Module:
    """As the presets have it: LayerNorm, or RMSNorm with or without a gain."""
    if model.norm == "rmsnorm":
        return nn.RMSNorm(model.width, eps=model.norm_eps, elementwise_affine=model.norm_gain)
    return nn.LayerNorm(model.width, eps=model.norm_eps, bias=model.biases)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x_BHTC, the halves of each head paired."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Block(nn.Module):
    """Pre-norm attention and MLP: GPT-2's, Llama's or nanochat's."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        width, hidden, biases = model.width, model.hidden, model.biases
        self.heads, self.model = model.heads, model
        self.norm1, self.norm2 = norm_of(model), norm_of(model)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=biases), nn.Linear(width, width, bias=biases)
        self.up, self.down = nn.Linear(width, hidden, bias=biases), nn.Linear(hidden, width, bias=biases)
        if model.mlp == "swiglu":
            self.gate = nn.Linear(width, hidden, bias=biases)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x_BTD to x_BTD."""
        B, T, D = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        if self.model.qk_norm == "rmsnorm":
            q, k = (F.rms_norm(each, each.shape[-1:], eps=self.model.norm_eps) for each in (q, k))
        if self.model.position == "rotary":
            q, k = (rotated(each, cos, sin).to(v.dtype) for each in (q, k))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D)
        x = x + self.out(a)
        y: Tensor = x + self.down(self._activated(self.norm2(x)))
        return y

    def _activated(self, y: Tensor) -> Tensor:
        if self.model.mlp == "swiglu":
            return F.silu(self.gate(y)) * self.up(y)  # type: ignore[no-any-return]
        if self.model.mlp == "relu2":
            return F.relu(self.up(y)).square()
        return F.gelu(self.up(y), approximate="tanh")


class PlainGPT(nn.Module):
    """The model of a preset; the vocabulary is padded to a multiple of 64, as a careful user does for large ones."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        assert model.vocabulary is not None
        rows = model.vocabulary if model.vocabulary < 1000 else -(-model.vocabulary // 64) * 64
        self.model = model
        self.tok = nn.Embedding(rows, model.width)
        self.pos = nn.Embedding(model.context, model.width) if model.position == "learned" else None
        self.head = None if model.tied else nn.Linear(model.width, rows, bias=False)
        self.blocks = nn.ModuleList(Block(model) for _ in range(model.layers))
        self.final_norm = norm_of(model)
        rates = model.rotary_base ** (-torch.arange(0, model.head_width, 2) / model.head_width)
        angles = torch.outer(torch.arange(model.context), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, windows_BT: Tensor) -> Tensor:
        """Mean loss of predicting each next token of the windows."""
        tokens, targets = windows_BT[:, :-1], windows_BT[:, 1:]
        x = self.tok(tokens)
        if self.pos is not None:
            x = x + self.pos.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        y = self.final_norm(x)
        logits = (F.linear(y, self.tok.weight) if self.head is None else self.head(y)).flatten(0, 1).float()
        if self.model.head_softcap is not None:
            logits = self.model.head_softcap * torch.tanh(logits / self.model.head_softcap)
        return F.cross_entropy(logits, targets.reshape(-1))


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
