"""Speed and memory of inference and of training, interleaved: every round times every run once, in one process.

A busy neighbour then slows all of them, and the ratio between runs keeps its meaning, which absolute figures on a shared
machine do not have. Memory is counted, not sampled: the most bytes of tensors alive at once.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ablationlab.evaluation.members import Member, ScoredStack
from ablationlab.evaluation_records import ThroughputPart
from ablationlab.model import forward
from ablationlab.ops import loss_R
from ablationlab.storage import content_hash

BATCH = 4
ROUNDS = 5


class PeakBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of tensor storages that are made while it is on and still alive; ``peak`` is the most there were."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive: int = 0
        self.peak: int = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled in here; to have it skipped would import the compiler, for seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for value in made if isinstance(made, tuple | list) else (made,):
            if isinstance(value, Tensor):
                self._count(value.untyped_storage())
        return made

    def _count(self, storage: Any) -> None:
        if storage in self._known:
            return
        size = storage.nbytes()
        self._known.add(storage)
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.alive -= size


@dataclass(frozen=True, eq=False)
class _Timed:
    """One run, ready to be timed."""

    stack: ScoredStack
    tokens: Tensor

    def infer(self) -> None:
        with torch.no_grad():
            forward(self.stack.params, self.tokens[..., :-1], self.stack.model, self.stack.fronts)

    def train(self) -> None:
        """Forward, loss and gradient, which is all of a step that a variant's front end can change."""
        leaves = {name: value.detach().requires_grad_() for name, value in self.stack.params.items()}
        logits = forward(leaves, self.tokens[..., :-1], self.stack.model, self.stack.fronts)
        loss = loss_R(logits, self.tokens[..., 1:]).sum()
        torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)


def measure(members: Sequence[Member], device: torch.device, rounds: int = ROUNDS) -> list[ThroughputPart]:
    """Speed and memory of every run; the order of the runs turns from round to round."""
    rng = np.random.default_rng(0)
    ready = []
    for member in members:
        model = member.model
        assert model.vocabulary is not None
        tokens = torch.from_numpy(rng.integers(0, model.vocabulary, (1, BATCH, model.context + 1))).to(device)
        ready.append(_Timed(ScoredStack.of([member], device), tokens))
    seconds: list[tuple[list[float], list[float]]] = [([], []) for _ in ready]
    for one in ready[:1]:  # warm up once
        one.infer()
        one.train()
    for turn in range(rounds):
        for place in range(len(ready)):
            number = (place + turn) % len(ready)
            seconds[number][0].append(_timed(ready[number].infer, device))
            seconds[number][1].append(_timed(ready[number].train, device))
    together = content_hash(sorted(member.sha256 for member in members))
    counted: dict[str, tuple[int, int]] = {}  # the same for runs that differ in their weights alone
    for one, member in zip(ready, members, strict=True):
        kind = content_hash(member.model.model_dump(mode="json"))
        if kind not in counted:
            counted[kind] = (_peak(one.infer), _peak(one.train))
    return [
        _part(times, member, rounds, counted[content_hash(member.model.model_dump(mode="json"))], together)
        for times, member in zip(seconds, members, strict=True)
    ]


def _part(
    times: tuple[list[float], list[float]], member: Member, rounds: int, peaks: tuple[int, int], together: str
) -> ThroughputPart:
    tokens = BATCH * member.model.context
    return ThroughputPart(
        batch=BATCH,
        rounds=rounds,
        inference_tokens_per_second=tokens / median(times[0]),
        training_tokens_per_second=tokens / median(times[1]),
        inference_bytes=peaks[0],
        training_bytes=peaks[1],
        together=together,
    )


def _timed(work: Callable[[], None], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return max(time.perf_counter() - began, 1e-9)


def _peak(work: Callable[[], None]) -> int:
    with PeakBytes() as counted:
        work()
    return int(counted.peak)
