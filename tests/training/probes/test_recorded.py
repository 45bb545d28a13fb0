"""A look that is recorded once and replayed, as on a GPU: the same lines as looking anew each time.

Recording is stood in for by torch's own tracer, which like a CUDA graph keeps operations on the tensors that were there and
every number that Python knew at the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from probes.conftest import MODEL, TRAINING
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from ablationlab.data.corpus import TokenizedCorpus, load_corpus
from ablationlab.records.settings import DataConfig
from ablationlab.study.probes import PROBES
from ablationlab.study.variants import VARIANTS
from ablationlab.training.probes import stack_probes
from ablationlab.training.probes.stack_probes import StackProbes
from ablationlab.training.stack import Member, Stack


class Recording(Stack):
    """A stack whose watched tensors stay where they are."""

    packs: list
    recorded = 0

    def advance(self, *, watch: bool = False) -> None:
        super().advance(watch=watch)
        if self.watched is not None:
            moving = self.watched.gradient_RP, self.watched.windows_RBT
            if not hasattr(self, "fixed"):
                self.fixed = tuple(tensor.clone() for tensor in moving)
            for fixed, tensor in zip(self.fixed, moving, strict=True):
                fixed.copy_(tensor)
            self.watched = replace(self.watched, gradient_RP=self.fixed[0], windows_RBT=self.fixed[1])

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1

        def values() -> list[Tensor]:
            work()
            return list(self.packs[-1]._values.values())

        traced = make_fx(values)()
        kept = list(self.packs[-1]._values.values())

        def replay() -> None:
            for place, value in zip(kept, traced(), strict=True):
                place.copy_(value)

        for place in kept:
            place.fill_(-1.0)  # a recording computes nothing
        return replay


@pytest.fixture
def corpus(corpus_file: Path) -> TokenizedCorpus:
    return load_corpus(DataConfig(corpus=str(corpus_file), tokenizer="char", validation=0.1))


def lines_of(
    kind: type[Stack], corpus: TokenizedCorpus, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[list[str]], Stack]:
    model = MODEL.changed(vocabulary=corpus.record.vocabulary)
    members = [Member(name, 1, 1e-2, VARIANTS[name].apply(model)) for name in ("none", "layernorm", "rmsnorm")]
    stack = kind(members, 4, TRAINING, 8, corpus.train, torch.device("cpu"), torch.float32)
    probes = StackProbes(dict.fromkeys(PROBES, 1), stack, corpus, 0)
    stack.packs = []

    class Packed(stack_probes._Packed):
        def __init__(self, readings) -> None:
            super().__init__(readings)
            stack.packs.append(self)

    monkeypatch.setattr(stack_probes, "_Packed", Packed)
    for step in range(1, 5):
        offsets = stack.offsets(step)
        probes.take(offsets)
        stack.train_step(step, offsets, watch=True)
        assert probes.observe(step, [name for name in probes.intervals if name != "cosine" or step % 2]) == []
    assert not probes.failed
    return probes.drain(), stack


def test_a_recorded_look_writes_the_lines_of_looks_made_anew(corpus, monkeypatch):
    plain, _ = lines_of(Stack, corpus, monkeypatch)
    again, stack = lines_of(Recording, corpus, monkeypatch)
    assert stack.recorded == 2  # with cosine and without it
    assert len(plain[0]) > 4 * 10
    assert again == plain
