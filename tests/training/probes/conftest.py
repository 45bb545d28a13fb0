"""A real stack after a real step, as the probes see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from ablationlab.data.tokenizers import CharTokenizer
from ablationlab.records.settings import ModelConfig, TrainingConfig
from ablationlab.study.variants import VARIANTS
from ablationlab.training.probes.data_order import SeenData, Vocabulary
from ablationlab.training.probes.snapshot import Snapshot
from ablationlab.training.stack import Member, Stack

TEXT = "It was 1606; the King's men, 12 of them, played.\nWas it? No: 7!\n" * 40
MODEL = ModelConfig(layers=2, width=16, heads=2, context=16, vocabulary=len(set(TEXT)))
TRAINING = TrainingConfig(steps=8, batch=4, lr=1e-2, warmup=2, precision="fp32")


def snapshot_of(
    *variants: str, steps: int = 1, model: ModelConfig = MODEL, training: TrainingConfig = TRAINING
) -> Snapshot:
    """Train a stack of these variants for some steps; look at it after the last."""
    torch.set_num_threads(1)
    tokenizer = CharTokenizer.of(TEXT)
    tokens = tokenizer.encode(TEXT)
    members = [Member(name, 1 + i, 1e-2, VARIANTS[name].apply(model)) for i, name in enumerate(variants)]
    stack = Stack(members, len(members), training, 8, tokens, torch.device("cpu"), torch.float32)
    vocabulary = Vocabulary.of(tokenizer, tokens)
    seen = SeenData(stack.seeds, tokens, model.context, vocabulary, [("text", 0)], 8 * training.batch)
    for step in range(1, steps + 1):
        offsets = stack.offsets(step)
        seen.take(offsets)
        stack.train_step(step, offsets, watch=True)
    watched = stack.watched
    assert watched is not None
    return Snapshot(
        step=steps,
        model=stack.model,
        training=training,
        fronts=stack.fronts,
        layout=stack.layout,
        weights_RP=stack.weights_RP.detach(),
        before_RP=watched.before_RP,
        gradient_RP=watched.gradient_RP,
        v_RP=stack.optimizer.v_RP,
        alive_R=stack.alive_R,
        windows_RBT=watched.windows_RBT,
        v_correction=torch.tensor(1 - training.betas[1] ** steps, dtype=torch.float64),
        dtype=torch.float32,
        seeds=stack.seeds,
        vocabulary=vocabulary,
        seen=seen,
        backward=True,
    )


@pytest.fixture(scope="session")
def snapshot() -> Snapshot:
    """Three arms in one stack, after three steps."""
    return snapshot_of("none", "layernorm", "rmsnorm", steps=3)


@pytest.fixture
def with_table(snapshot: Snapshot) -> Callable[[np.ndarray], Snapshot]:
    """The same snapshot with a token embedding of one's own (V × D), in every run."""

    def make(table: np.ndarray) -> Snapshot:
        flat = snapshot.weights_RP.clone()
        view = snapshot.layout.views(flat)["tok.weight"]
        assert table.shape == view.shape[1:]
        view.copy_(torch.from_numpy(table).float())
        return replace(snapshot, weights_RP=flat)

    return make
