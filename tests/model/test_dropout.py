from __future__ import annotations

import math

import pytest
import torch

from ablationlab.model.dropout import Dropout, dropout_keys, dropout_sites
from ablationlab.records.settings import ModelConfig

MODEL = ModelConfig(layers=2, width=16, heads=4, context=8, vocabulary=11, dropout=0.2)
SITES = dropout_sites(MODEL)


def masks(seeds, step, rate=0.2, first_sample=0):
    return Dropout(rate, SITES, torch.from_numpy(dropout_keys(seeds, step, SITES)), first_sample)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_kept_share_is_one_minus_the_rate(rate):
    keep = masks([1, 2], 1, rate).mask("front", (2, 16, 8, 500)).double()
    n = keep.numel()
    assert abs(keep.mean() - (1 - rate)) < 4 * math.sqrt(rate * (1 - rate) / n)
    by_column = keep.mean(dim=(0, 1, 2))
    assert (by_column - (1 - rate)).abs().max() < 6 * math.sqrt(rate * (1 - rate) / (n / 500))


def test_a_mask_depends_on_the_sample_not_on_stack_or_ranks():
    whole = masks([1, 2, 3], 5).mask("blocks.1.mlp", (3, 8, 4, 16))
    alone = masks([2], 5).mask("blocks.1.mlp", (1, 8, 4, 16))
    assert torch.equal(whole[1], alone[0])
    second_rank = masks([1, 2, 3], 5, first_sample=4).mask("blocks.1.mlp", (3, 4, 4, 16))
    assert torch.equal(whole[:, 4:], second_rank)


def test_seeds_steps_and_sites_have_masks_of_their_own():
    base = masks([1], 1).mask("front", (1, 4, 8, 64))
    others = [
        masks([2], 1).mask("front", (1, 4, 8, 64)),
        masks([1], 2).mask("front", (1, 4, 8, 64)),
        masks([1], 1).mask("blocks.0.mlp", (1, 4, 8, 64)),
    ]
    for other in others:
        agreement = (base == other).double().mean()
        assert abs(agreement - (0.8**2 + 0.2**2)) < 0.06  # what independent masks give
    assert not torch.equal(base[:, 0], base[:, 1])


def test_another_layer_changes_no_other_mask():
    deep = dropout_sites(MODEL.changed(layers=5))
    deeper = Dropout(0.2, deep, torch.from_numpy(dropout_keys([1], 3, deep)))
    for site in SITES:
        assert torch.equal(deeper.mask(site, (1, 2, 8, 16)), masks([1], 3).mask(site, (1, 2, 8, 16)))


def test_kept_units_are_scaled_up_and_dropped_ones_are_zero():
    dropout, x = masks([1], 1), torch.ones(1, 4, 8, 16)
    y, keep = dropout(x, "front"), dropout.mask("front", x.shape)
    assert torch.equal(y[keep], torch.full((int(keep.sum()),), 1 / 0.8))
    assert not y[~keep].any()


def test_the_hash_is_the_published_mixer():
    # lowbias32 in plain integers, against the wrapped int32 tensor arithmetic
    from ablationlab.model.dropout import _mix

    def lowbias32(x: int) -> int:
        x ^= x >> 16
        x = x * 0x7FEB352D & 0xFFFFFFFF
        x ^= x >> 15
        x = x * 0x846CA68B & 0xFFFFFFFF
        return x ^ x >> 16

    values = torch.tensor([0, 1, -1, 123456789, -(2**31), 2**31 - 1], dtype=torch.int32)
    expected = [lowbias32(int(v) & 0xFFFFFFFF) for v in values]
    assert [int(v) & 0xFFFFFFFF for v in _mix(values)] == expected
