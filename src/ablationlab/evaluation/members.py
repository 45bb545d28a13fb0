"""Trained runs as a stack that can be scored: weights from verified checkpoints, padded to one width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ablationlab.core.errors import RecordError
from ablationlab.model.attention import PackedAttention
from ablationlab.model.gpt import ForwardPass, Parameters
from ablationlab.model.parameters import Parameter, parameters, stack_parameters
from ablationlab.records.evaluation import Weights
from ablationlab.records.plan import PlannedRun
from ablationlab.records.run import Checkpoint, Result
from ablationlab.records.settings import FrontEnd, ModelConfig
from ablationlab.records.storage import RunFolder
from ablationlab.training import checkpoints


@dataclass(frozen=True, eq=False)
class RunWeights:
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


def load_final(run: PlannedRun, folder: RunFolder, result: Result) -> RunWeights:
    """The weights that a run ended with."""
    step = int(result.checkpoint.removeprefix("step-"))
    path = checkpoints.path_of(folder, step)
    record = Checkpoint.read(path / checkpoints.RECORD)
    weights = checkpoints.verified(path / checkpoints.WEIGHTS, record)  # the optimizer's state is not needed here
    digest = record.files[checkpoints.WEIGHTS]
    if (record.step, digest) != (step, result.weights_sha256):
        raise RecordError(f"{path} is not the checkpoint that {folder.result} names")
    return _member(run, "final", weights, result.checkpoint, digest)


def load_half(run: PlannedRun, folder: RunFolder, plan_hash: str) -> RunWeights | None:
    """The weights kept halfway, or None where none were kept."""
    if not checkpoints.halfway_path(folder).exists():
        return None
    record, weights = checkpoints.load_halfway(folder, plan_hash)
    name = f"{checkpoints.HALFWAY} (step {record.step})"
    return _member(run, "half", weights, name, record.files[checkpoints.WEIGHTS])


def _member(run: PlannedRun, which: Weights, tensors: dict[str, Tensor], checkpoint: str, sha256: str) -> RunWeights:
    model = run.model
    expected = {p.name: p.shape for p in parameters(model)}
    if {name: tuple(value.shape) for name, value in tensors.items()} != expected:
        raise RecordError(f"{run.id}: the checkpoint's parameters are not those of its model")
    return RunWeights(run, which, model, tensors, checkpoint, sha256)


@dataclass(frozen=True, eq=False)
class ScoredStack:
    """R sets of weights with one run axis; the rows past ``members`` repeat the last one and count for nothing."""

    members: tuple[RunWeights, ...]
    model: ModelConfig
    fronts: tuple[FrontEnd, ...]
    params: Parameters
    device: torch.device

    @classmethod
    def of(cls, members: Sequence[RunWeights], device: torch.device, width: int | None = None) -> ScoredStack:
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

    def alone(self, member: int) -> ScoredStack:
        """One member as a stack of one."""
        params = {name: value[member : member + 1] for name, value in self.params.items()}
        return ScoredStack(self.members[member : member + 1], self.model, (self.fronts[member],), params, self.device)

    @torch.no_grad()
    def packed_hidden(self, tokens_BT: Tensor, positions_BT: Tensor, segments_BT: Tensor) -> Tensor:
        """y_RBTD before the output head, of every run on the same packed rows (see `PackedAttention`).

        A token of a tail has the position it would have had if the tail followed the prefix directly. So the prefix, which
        the choices of an item share, is computed once, and every score is the one that the sequence alone would give, up to
        rounding.
        """
        runs = len(self.fronts)
        forward = replace(self.forward, attend=PackedAttention(segments_BT, runs))
        return forward.hidden(forward.embed(tokens_BT.expand(runs, -1, -1), positions_BT))

    @torch.no_grad()
    def head(self, y_RND: Tensor) -> Tensor:
        """logits_RNV of chosen vectors."""
        return self.forward.head(y_RND[:, None])[:, 0]


def _value(member: RunWeights, slot: Parameter) -> Tensor:
    """A slot that a member does not own is filled with its start value and never used by its front end."""
    found = member.tensors.get(slot.name)
    return torch.full(slot.shape, slot.fill) if found is None else found
