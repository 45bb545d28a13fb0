"""Trained runs as a stack that can be scored: weights from verified checkpoints, padded to one width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ablationlab.core.errors import RecordError
from ablationlab.model.gpt import ForwardPass, Parameters
from ablationlab.model.parameters import Parameter, parameters, stack_parameters
from ablationlab.records.evaluation import Weights
from ablationlab.records.folders import RunFolder
from ablationlab.records.plan import PlannedRun
from ablationlab.records.run import Checkpoint, Result
from ablationlab.records.settings import FrontEnd, ModelConfig
from ablationlab.training import checkpoints


@dataclass(frozen=True, eq=False)
class Member:
    """One set of weights of one run."""

    run: PlannedRun
    weights: Weights
    model: ModelConfig
    tensors: dict[str, Tensor]
    checkpoint: str
    sha256: str

    @property
    def name(self) -> str:
        """For messages."""
        return self.run.id if self.weights == "final" else f"{self.run.id} at half its steps"


def load_final(run: PlannedRun, folder: RunFolder, result: Result) -> Member:
    """The weights that a run ended with."""
    step = int(result.checkpoint.removeprefix("step-"))
    path = checkpoints.path_of(folder, step)
    record = Checkpoint.read(path / checkpoints.RECORD)
    weights = checkpoints.verified(path / checkpoints.WEIGHTS, record)  # the optimizer's state is not needed here
    digest = record.files[checkpoints.WEIGHTS]
    if (record.step, digest) != (step, result.weights_sha256):
        raise RecordError(f"{path} is not the checkpoint that {folder.result} names")
    return _member(run, "final", weights, result.checkpoint, digest)


def load_half(run: PlannedRun, folder: RunFolder, plan_hash: str) -> Member | None:
    """The weights kept halfway, or None where none were kept."""
    if not checkpoints.halfway_path(folder).exists():
        return None
    record, weights = checkpoints.load_halfway(folder, plan_hash)
    name = f"{checkpoints.HALFWAY} (step {record.step})"
    return _member(run, "half", weights, name, record.files[checkpoints.WEIGHTS])


def _member(run: PlannedRun, which: Weights, tensors: dict[str, Tensor], checkpoint: str, sha256: str) -> Member:
    model = run.model
    expected = {p.name: p.shape for p in parameters(model)}
    if {name: tuple(value.shape) for name, value in tensors.items()} != expected:
        raise RecordError(f"{run.id}: the checkpoint's parameters are not those of its model")
    return Member(run, which, model, tensors, checkpoint, sha256)


@dataclass(frozen=True, eq=False)
class ScoredStack:
    """R sets of weights with one run axis; the rows past ``members`` repeat the last one and count for nothing."""

    members: tuple[Member, ...]
    model: ModelConfig
    fronts: tuple[FrontEnd, ...]
    params: Parameters
    device: torch.device

    @classmethod
    def of(cls, members: Sequence[Member], device: torch.device, width: int | None = None) -> ScoredStack:
        """Stack weights whose models differ in nothing but their front end, padded to *width*."""
        padded = [*members, *[members[-1]] * ((width or len(members)) - len(members))]
        slots = stack_parameters(member.model for member in padded)
        params = {slot.name: torch.stack([_value(member, slot) for member in padded]).to(device) for slot in slots}
        fronts = tuple(member.model.front for member in padded)
        return cls(tuple(members), padded[0].model, fronts, params, device)

    @property
    def forward(self) -> ForwardPass:
        """The forward pass with these weights, in fp32."""
        return ForwardPass(self.params, self.model, self.fronts)


def _value(member: Member, slot: Parameter) -> Tensor:
    """A slot that a member does not own is filled with its start value and never used by its front end."""
    found = member.tensors.get(slot.name)
    return torch.full(slot.shape, slot.fill) if found is None else found
