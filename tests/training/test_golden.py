"""Losses of a few steps per variant, pinned: a change of any number in training shows here first.

The file is made by `make golden`; a difference is either a bug or deserves a line in CHANGELOG.md.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ablationlab.records.settings import ModelConfig, TrainingConfig
from ablationlab.study.variants import VARIANTS
from ablationlab.training.stack import Member, Stack

GOLDEN = Path(__file__).with_name("golden_losses.json")
MODEL = ModelConfig(layers=2, width=32, heads=4, context=16, vocabulary=17, dropout=0.1)
TRAINING = TrainingConfig(steps=6, batch=4, lr=1e-2, warmup=2, precision="fp32")


def losses(variant: str) -> list[float]:
    torch.set_num_threads(1)
    tokens = np.random.default_rng(0).integers(0, 17, 3000) // 2 * 2
    member = Member(variant, 1, 1e-2, VARIANTS[variant].apply(MODEL))
    stack = Stack([member], 1, TRAINING, 6, tokens, torch.device("cpu"), torch.float32)
    return [float(stack.train_step(step, stack.offsets(step)).loss) for step in range(1, 7)]


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_the_first_steps_have_their_golden_losses(variant):
    # Other processors and BLAS libraries sum in other orders; six steps keep that below 1e-4.
    np.testing.assert_allclose(losses(variant), json.loads(GOLDEN.read_text())[variant], rtol=1e-4)


def test_golden_losses_tell_the_variants_apart():
    pinned = json.loads(GOLDEN.read_text())
    assert set(pinned) == set(VARIANTS)
    apart = {tuple(round(loss, 4) for loss in rows) for rows in pinned.values()}
    assert len(apart) == len(pinned)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: losses(name) for name in VARIANTS}, indent=1) + "\n")
