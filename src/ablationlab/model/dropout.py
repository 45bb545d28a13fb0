"""Dropout masks by name: a pure function of (seed, step, site, sample, element), the same on every device.

A mask bit is ``hash(key, element) < keep · 2³¹`` with a counter-based integer hash (two rounds of the 32-bit mixer
"lowbias32" of C. Wellons, keyed), evaluated on the device. Masks are keyed by the global sample index, so they do not
depend on the number of ranks or the width of a stack, and variants of one seed drop the same units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablationlab.core.seeding import words
from ablationlab.model.ops import fused
from ablationlab.model.parts import parts_of
from ablationlab.records.settings import ModelConfig


def dropout_sites(model: ModelConfig) -> tuple[str, ...]:
    """The names of all places where a model drops units."""
    parts = [(f"blocks.{number}.{part.name}", part) for number in range(model.layers) for _, part in parts_of(model)]
    return ("front", *(site for prefix, part in parts for site in part.dropout_sites(prefix)))


def dropout_keys(seeds: Sequence[int], step: int, sites: Sequence[str]) -> NDArray[np.int32]:
    """keys_SR2: two words per site and run."""
    return np.array([[words(seed, "dropout", step, site) for seed in seeds] for site in sites], dtype=np.int32)


@dataclass(frozen=True)
class Dropout:
    """The masks of one step of one stack. ``first_sample`` is the global index of the first sample of this rank."""

    rate: float
    sites: tuple[str, ...]
    keys_SR2: Tensor
    first_sample: int = 0

    def mask(self, site: str, shape: Sequence[int]) -> Tensor:
        """Boolean keep-mask of shape (R, B, ...)."""
        runs, samples, *rest = shape
        key_R2 = self.keys_SR2[self.sites.index(site)]
        device = key_R2.device
        sample_B = torch.arange(self.first_sample, self.first_sample + samples, dtype=torch.int32, device=device)
        key_RB = _mix(_mix(sample_B[None, :] ^ key_R2[:, :1]) ^ key_R2[:, 1:])
        elements = 1
        for size in rest:
            elements *= size
        element_N = torch.arange(elements, dtype=torch.int32, device=device)
        bits = _mix(_mix(element_N ^ key_RB[:, :, None]) + key_RB[:, :, None])
        keep = (bits & 0x7FFFFFFF) < int((1 - self.rate) * 2**31)
        return keep.view(runs, samples, *rest)

    def __call__(self, x: Tensor, site: str) -> Tensor:
        """x with units dropped and the rest scaled by 1 / keep."""
        if fused(x):
            from ablationlab.model.kernels.dropout import Drop

            keys_R2 = self.keys_SR2[self.sites.index(site)]
            dropped: Tensor = Drop.apply(x, keys_R2, self.first_sample, self.rate)  # type: ignore[no-untyped-call]
            return dropped
        keep = self.mask(site, x.shape)
        return torch.where(keep, x / (1 - self.rate), torch.zeros((), dtype=x.dtype, device=x.device))


def _mix(x: Tensor) -> Tensor:
    # int32 arithmetic wraps; shifts of negative numbers copy the sign, so the copied bits are masked away.
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * -2073254261  # 0x846CA68B as a signed word
    return x ^ ((x >> 16) & 0xFFFF)
