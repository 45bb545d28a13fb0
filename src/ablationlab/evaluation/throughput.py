"""Speed and memory of inference and of training, interleaved: every round times every run once, in one process.

A busy neighbour then slows all of them, and the ratio between runs keeps its meaning, which absolute figures on a shared
machine do not have. Memory is counted, not sampled: the most bytes of tensors alive at once.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ablationlab.evaluation.context import EvaluationContext, Measurement, ScoredMember
from ablationlab.evaluation.runs import RunWeights, ScoredStack
from ablationlab.model.device import compile_kernels, on_side_stream, recorded
from ablationlab.model.gpt import ForwardPass
from ablationlab.model.ops import loss_R
from ablationlab.model.optimizers import average_, clock, gradient_norm_R, start_optimizer
from ablationlab.records.evaluation import Evaluation, ThroughputScores, Weights
from ablationlab.records.plan import PlannedRun
from ablationlab.records.settings import ModelConfig, TrainingConfig
from ablationlab.records.storage import content_hash
from ablationlab.training.stack import Member, ParameterLayout

CPU_BATCH = 4  # samples
GPU_TOKENS = 2048
ROUNDS = 5
NEAR_BYTES = 2**31  # of weights that wait for their turn on the device


class Throughput:
    """The evaluator of speed and memory: all runs of the study in turn, again only when the set of runs has changed."""

    title = "throughput"
    scope: Literal["stack", "study"] = "study"
    gate = False

    def __init__(self, context: EvaluationContext) -> None:
        self._context, self._together = context, _together(context.weights_sha256)

    def missing(self, run: PlannedRun, record: Evaluation) -> Sequence[Weights]:
        timed = record.throughput is not None and record.throughput.together == self._together
        return () if timed else ("final",)

    def run(self, members: Sequence[ScoredMember]) -> Iterator[Measurement]:
        measured = measure([scored.member for scored in members], self._context.device)
        for number, (run, _) in enumerate(members):
            yield Measurement(run, "throughput", partial(measured.__getitem__, number))

    @staticmethod
    def metrics(record: Evaluation) -> dict[str, float | None]:
        if record.throughput is None:
            return {}
        return {
            "inference_speed": record.throughput.inference_tokens_per_second,
            "training_speed": record.throughput.training_tokens_per_second,
            "inference_memory": float(record.throughput.inference_bytes),
            "training_memory": float(record.throughput.training_bytes),
        }


def _together(weights_sha256: Sequence[str]) -> str:
    return content_hash(sorted(weights_sha256))


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


def _update_kind(training: TrainingConfig) -> tuple[str, bool]:
    """What the time of an update depends on, beside the model."""
    return training.optimizer, training.ema > 0


class _Update:
    """A training step's update of a model, at a learning rate of 0: it moves nothing and takes its time."""

    def __init__(self, model: ModelConfig, training: TrainingConfig, device: torch.device) -> None:
        layout = ParameterLayout.of([Member("", 0, 0.0, model)])
        self.weights_RP = torch.zeros(1, sum(layout.sizes), device=device)
        self.gradient_RP = torch.full_like(self.weights_RP, 1e-3)
        self.optimizer = start_optimizer(training, self.weights_RP, layout.row(training))
        self.average_RP = self.weights_RP.clone() if training.ema else None
        self.lr_R, self.alive_R = torch.zeros(1, device=device), torch.ones(1, dtype=torch.bool, device=device)
        self.clock_4 = torch.tensor(clock(training, 1), device=device)

    def __call__(self) -> None:
        norm_R = gradient_norm_R(self.gradient_RP)
        self.optimizer.update(self.weights_RP, self.gradient_RP, norm_R, self.lr_R, self.clock_4, self.alive_R)
        if self.average_RP is not None:
            average_(self.average_RP, self.weights_RP, self.clock_4[3], self.alive_R)


class _Place:
    """Where runs of one kind of model take turns to be timed: their weights are copied in, outside of what is timed.

    On a GPU both passes are recorded as graphs and replayed, as training itself does: so the device is timed, and not how
    fast Python can call it.
    """

    def __init__(
        self, member: RunWeights, device: torch.device, pool: Any, training: TrainingConfig | None = None
    ) -> None:
        self.stack, self.batch = ScoredStack.of([member], device), batch_of(member.model, device)
        model = member.model
        self.update = None if training is None else _Update(model, training, device)
        assert model.vocabulary is not None
        drawn = np.random.default_rng(0).integers(0, model.vocabulary, (1, self.batch, model.context + 1))
        self.tokens = torch.from_numpy(drawn).to(device)
        self.infer: Callable[[], None] = self._infer
        self.train: Callable[[], None] = self._train
        if device.type == "cuda":
            compile_kernels(self._train)
            self.bytes = on_side_stream(self._peaks)
            self.infer, self.train = recorded(self._infer, pool).replay, recorded(self._train, pool).replay
        else:
            self.bytes = self._peaks()

    def _peaks(self) -> tuple[int, int]:
        return _peak(self._infer), _peak(self._train)

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """The next one's weights."""
        for name, value in self.stack.params.items():
            if name in weights:
                value[0].copy_(weights[name])

    def _infer(self) -> None:
        with torch.no_grad():
            self.stack.forward.logits(self.tokens[..., :-1])

    def _train(self) -> None:
        """Forward, loss and gradient; and the update, where the runs of the study differ in it."""
        leaves = {name: value.detach().requires_grad_() for name, value in self.stack.params.items()}
        logits = ForwardPass(leaves, self.stack.model, self.stack.fronts).logits(self.tokens[..., :-1])
        loss = loss_R(logits, self.tokens[..., 1:]).sum()
        torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        if self.update is not None:
            with torch.no_grad():
                self.update()


def batch_of(model: ModelConfig, device: torch.device) -> int:
    """Samples that are timed at once: enough for a GPU to be busy, few enough for a large model to fit."""
    return CPU_BATCH if device.type == "cpu" else max(1, GPU_TOKENS // model.context)


def measure(members: Sequence[RunWeights], device: torch.device, rounds: int = ROUNDS) -> list[ThroughputScores]:
    """Speed and memory of every run; the order of the runs turns from round to round. A training step has its update where
    the runs differ in it."""
    updates = len({_update_kind(member.run.training) for member in members}) > 1
    pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
    places: dict[str, _Place] = {}  # runs of one place differ in their weights alone
    kinds = [content_hash(member.model.model_dump(mode="json")) for member in members]
    if updates:
        kinds = [f"{kind} {_update_kind(each.run.training)}" for kind, each in zip(kinds, members, strict=True)]
    for kind, member in zip(kinds, members, strict=True):
        if kind not in places:
            places[kind] = _Place(member, device, pool, member.run.training if updates else None)
    weights = _near(members, device)
    seconds: list[tuple[list[float], list[float]]] = [([], []) for _ in members]
    for turn in range(rounds):
        for start in range(len(members)):
            number = (start + turn) % len(members)
            place = places[kinds[number]]
            place.take(weights[number])
            seconds[number][0].append(_timed(place.infer, device))
            seconds[number][1].append(_timed(place.train, device))
    together = _together([member.sha256 for member in members])
    return [
        _scores(times, member, rounds, places[kind], together)
        for times, kind, member in zip(seconds, kinds, members, strict=True)
    ]


def _near(members: Sequence[RunWeights], device: torch.device) -> list[dict[str, Tensor]]:
    """Everyone's weights where they are to be timed, if they do not take too much room there."""
    size = sum(value.nbytes for member in members for value in member.tensors.values())
    if size > NEAR_BYTES:
        return [member.tensors for member in members]
    return [{name: value.to(device) for name, value in member.tensors.items()} for member in members]


def _scores(
    times: tuple[list[float], list[float]], member: RunWeights, rounds: int, place: _Place, together: str
) -> ThroughputScores:
    tokens = place.batch * member.model.context
    return ThroughputScores(
        batch=place.batch,
        rounds=rounds,
        inference_tokens_per_second=tokens / median(times[0]),
        training_tokens_per_second=tokens / median(times[1]),
        inference_bytes=place.bytes[0],
        training_bytes=place.bytes[1],
        together=together,
    )


def _timed(work: Callable[[], None], device: torch.device) -> float:
    """Seconds, by the device's own clock where it has one: what this process does beside it is not in them."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        start.record()
        work()
        end.record()
        end.synchronize()
        seconds = float(start.elapsed_time(end)) / 1000
    else:
        began = time.perf_counter()
        work()
        seconds = time.perf_counter() - began
    return max(seconds, 1e-9)


def _peak(work: Callable[[], None]) -> int:
    with PeakBytes() as counted:
        work()
    return int(counted.peak)
