"""A stack of runs: the unit of training.

All parameters of run r are row r of one flat buffer ``weights_RP``; the model sees views of it. A stack holds runs that
differ only in seed, learning rate and front end. Its width is sealed in the plan: short stacks are padded with copies of
their last member, whose results are thrown away, and members that diverge are frozen in place, so the shapes of the
arithmetic, and with them the bits, never depend on the neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablationlab.core.processes import in_threads
from ablationlab.data.batches import Window, batch_offsets
from ablationlab.data.tokens import Tokens, windows
from ablationlab.model.device import compile_kernels, on_side_stream, recorded, recorded_meanwhile
from ablationlab.model.dropout import Dropout, dropout_keys, dropout_sites
from ablationlab.model.gpt import ForwardPass
from ablationlab.model.machine import check_room
from ablationlab.model.ops import Objective
from ablationlab.model.optimizers import (
    Columns,
    RowLayout,
    average_,
    clock,
    gradient_norm_R,
    joined,
    learning_rates,
    start_optimizer,
)
from ablationlab.model.parameters import parameter_count, parameters, stack_parameters
from ablationlab.model.rules import Matrix, rate_and_decay
from ablationlab.model.weights import Parameter
from ablationlab.records.run import Checkpoint
from ablationlab.records.settings import ModelConfig, TrainingConfig
from ablationlab.records.storage import RunFolder
from ablationlab.training import checkpoints
from ablationlab.training.perplexity import Totals, validation_totals

T = TypeVar("T")

# Every parameter starts on a 256-byte boundary of the flat buffer, in every row, whatever stands before it.
ALIGNMENT = 64
# Steps that can be handed to the device at once.
FEED = 32
# A corpus on disk of at most so many tokens is copied to the device, 4 bytes each; of a longer one the host gathers windows.
RESIDENT_TOKENS = 2**26


@dataclass(frozen=True)
class Member:
    """One run of a stack. *streams*: seeds of initial weights, data order and dropout, where they are not all *seed*."""

    id: str
    seed: int
    lr: float
    model: ModelConfig
    streams: tuple[int, int, int] | None = None

    @property
    def seeds(self) -> tuple[int, int, int]:
        return self.streams if self.streams is not None else (self.seed, self.seed, self.seed)


@dataclass(frozen=True)
class Watched:
    """What probes need of a step and training itself does not keep."""

    before_RP: Tensor  # the weights that the gradient was taken at
    gradient_RP: Tensor  # before clipping
    windows_RBT: Tensor  # inputs and targets: context + 1 tokens
    weights_RP: Tensor  # after the step, like the two that follow
    v_RP: Tensor | None  # None where the optimizer has no second moment
    alive_R: Tensor


@dataclass(frozen=True)
class ParameterLayout:
    """Where each parameter lives in a row: the union of what the members own."""

    parameters: tuple[Parameter, ...]

    @classmethod
    def of(cls, members: Sequence[Member]) -> ParameterLayout:
        """The layout of a stack. A slot that a member does not own stays at its start value there: its gradient is 0.

        The matrices of the blocks stand first, so that one pass turns them all into the precision of the products; then
        the other matrices, so that all that may decay is one piece.
        """
        slots = stack_parameters(member.model for member in members)
        return cls(tuple(sorted(slots, key=lambda parameter: (not parameter.in_products, not parameter.is_matrix))))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Slot sizes, padded to the alignment."""
        return tuple(-(-parameter.size // ALIGNMENT) * ALIGNMENT for parameter in self.parameters)

    @cached_property
    def products(self) -> int:
        """How many parameters are matrices of the blocks; they come first."""
        return sum(parameter.in_products for parameter in self.parameters)

    def views(self, flat_RP: Tensor, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Each parameter with its run axis; differentiating through them gives one flat gradient.

        Views of the buffer, but for the matrices of the blocks where *dtype* is not the buffer's own: those are of a copy.
        """
        ahead = self.sizes[: self.products]
        matrices, rest = torch.split(flat_RP, [sum(ahead), flat_RP.shape[1] - sum(ahead)], dim=1)
        slots = [
            *torch.split(matrices.to(dtype), list(ahead), dim=1),
            *torch.split(rest, list(self.sizes[self.products :]), dim=1),
        ]
        return {
            parameter.name: (slot if parameter.size == size else slot[:, : parameter.size]).view(-1, *parameter.shape)
            for parameter, size, slot in zip(self.parameters, self.sizes, slots, strict=True)
        }

    def row(self, training: TrainingConfig) -> RowLayout:
        """What an optimizer must know of a row: which columns decay and at which rate they move, and where matrices stand."""
        starts = accumulate(self.sizes, initial=0)
        slots = list(zip(self.parameters, self.sizes, starts, strict=False))
        return RowLayout(
            columns=joined(Columns(size, *rate_and_decay(parameter, training)) for parameter, size, _ in slots),
            views=self.views,
            matrices=tuple(
                matrix for parameter, _, start in slots[: self.products] for matrix in Matrix.all_of(parameter, start)
            ),
            rest=sum(self.sizes[: self.products]),
        )


class Measured(NamedTuple):
    """Measurements of a step per run, on the device: shapes (R,) or (steps, R). The loss is cross entropy, without what
    training adds to it; the second moment is NaN where the optimizer has none."""

    loss: Tensor
    gradient_norm: Tensor
    second_moment_mean: Tensor
    second_moment_max: Tensor


class Stack:
    """R runs in lockstep.

    `feed` hands over what the next steps need, `advance` makes one of them, `measured` returns what they measured. A step
    reads its inputs from fixed buffers on the device, at a cursor that it moves itself. So on a GPU it is recorded once as a
    CUDA graph and then replayed: no launches, no traffic with the host. On the CPU the same code simply runs.
    """

    def __init__(
        self,
        members: Sequence[Member],
        width: int,
        training: TrainingConfig,
        steps: int,
        train_tokens: NDArray[np.int64] | Tokens,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        assert 0 < len(members) <= width
        self.members = tuple(members)
        padded = [*members, *[members[-1]] * (width - len(members))]
        # Of the data order and of dropout.
        self.seeds, self.dropout_seeds = (tuple(member.seeds[place] for member in padded) for place in (1, 2))
        self.fronts = tuple(member.model.front for member in padded)
        self.model = members[0].model
        self.training, self.steps, self.device, self.dtype = training, steps, device, dtype
        self._objective = Objective(training.z_loss, training.label_smoothing)
        self.layout = ParameterLayout.of(members)
        check_room(sum(self.layout.sizes), width, "cuda" if device.type == "cuda" else "cpu")
        self.weights_RP = torch.zeros(width, sum(self.layout.sizes))
        needed = [[(parameter, member.seeds[0]) for parameter in parameters(member.model)] for member in members]
        distinct = dict.fromkeys(chain.from_iterable(needed))  # arms of one seed start from the same values
        drawn = dict(zip(distinct, in_threads(lambda each: each[0].draw(each[1]), distinct), strict=True))
        for row, pairs in enumerate(needed):
            self._fill(row, {parameter.name: drawn[parameter, seed] for parameter, seed in pairs})
        self.weights_RP[len(members) :] = self.weights_RP[len(members) - 1]
        self.weights_RP = self.weights_RP.to(device).requires_grad_()
        self.optimizer = start_optimizer(training, self.weights_RP.detach(), self.layout.row(training))
        self._average_RP = self.weights_RP.detach().clone() if training.ema else None
        self.lr_R = [member.lr for member in padded]
        self.alive_R = torch.ones(width, dtype=torch.bool, device=device)
        self._text = train_tokens
        self._shares = train_tokens.shares if isinstance(train_tokens, Tokens) else ()
        self.train_tokens = self._on_device(train_tokens)
        self._before_RP: Tensor | None = None
        self._gradient_RP: Tensor | None = None
        self._windows_RBT: Tensor | None = None
        self._owned_R = torch.tensor([float(parameter_count(m.model)) for m in padded], device=device)
        self.watched: Watched | None = None
        self._window = torch.arange(self.model.context + 1, device=device)
        self._sites = dropout_sites(self.model)
        self._cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self._row = torch.arange(FEED, device=device)[:, None, None]
        self._offsets = torch.zeros(FEED, width, training.batch, dtype=torch.int64, device=device)
        gathered = () if self.train_tokens is not None else (FEED, width, training.batch, self.model.context + 1)
        self._gathered = torch.zeros(gathered, dtype=torch.int32, device=device)
        self._lr = torch.zeros(FEED, width, device=device)
        self._clock = torch.ones(FEED, 4, device=device)
        self._keys = torch.zeros(FEED, len(self._sites), width, 2, dtype=torch.int32, device=device)
        self._measured = torch.zeros(FEED, len(Measured._fields), width, device=device)
        self._steps_fed = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def _on_device(self, tokens: NDArray[np.int64] | Tokens) -> Tensor | None:
        """The training text, where it is short enough; ids are the same whatever type they are kept in."""
        if not isinstance(tokens, Tokens):
            return torch.from_numpy(tokens).to(self.device)
        if len(tokens) > RESIDENT_TOKENS:
            return None
        text = torch.empty(len(tokens), dtype=torch.int32)
        done = 0
        for block in tokens.blocks():
            text[done : done + len(block)] = torch.from_numpy(block)
            done += len(block)
        return text.to(self.device)

    @property
    def leads(self) -> bool:
        """Whether this process writes the records; one of several may not."""
        return True

    @property
    def layout_on_devices(self) -> tuple[str, int, bool]:
        """As `Execution.layout` has it: every run is whole, in one process."""
        return "none", 1, False

    @property
    def reach(self) -> int:
        """Steps that may be handed over before the host reads their measurements."""
        return FEED if self.device.type == "cuda" else 1

    def record(self, work: Callable[[], None]) -> Callable[[], None] | None:
        """Work on what `watched` holds, to be repeated after other steps: one launch on a GPU, where that never moves."""
        return None if self._graph is None else recorded_meanwhile(work, self._graph.pool()).replay

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        """What all processes of this stack do, which is what its leader would."""
        return flags

    def share(self, make: Callable[[], T], dump: Callable[[T], Any], load: Callable[[Any], T]) -> T:
        """What the leader makes, in every process of this stack; *dump* and *load* take it through JSON."""
        return make()

    def validate(self, tokens: Tensor, windows: Sequence[Window] | None = None) -> Totals:
        """Sums over a split, or over these windows of it."""
        views = self.layout.views(self._final_RP)
        return validation_totals(views, self.model, self.fronts, tokens, self.dtype, windows)

    def save(self, slot: int, folder: RunFolder, record: Checkpoint | None, *, final: bool) -> None:
        """Write a checkpoint of one run; a final one holds weights alone, or their average."""
        assert record is not None
        checkpoints.save(folder, record, {"weights": self.weights(slot)} if final else self.state(slot))

    def resume(self, slot: int, folder: RunFolder, saved: checkpoints.Saved) -> None:
        """Put one run back to where its checkpoint has it."""
        self.restore(slot, saved.state, alive=saved.record.divergence is None)

    def _fill(self, row: int, arrays: dict[str, NDArray[np.float32]]) -> None:
        start = self.layout.views(self.weights_RP)
        for parameter in self.layout.parameters:
            drawn = arrays.get(parameter.name)
            value = torch.full(parameter.shape, parameter.fill) if drawn is None else torch.from_numpy(drawn)
            start[parameter.name][row].copy_(value)

    def offsets(self, step: int) -> NDArray[np.int64]:
        """offsets_RB of a step."""
        shape = {
            "batch": self.training.batch,
            "context": self.model.context,
            "train_tokens": len(self._text),
        }
        drawn = {seed: batch_offsets(seed, step, **shape, shares=self._shares) for seed in dict.fromkeys(self.seeds)}
        return np.stack([drawn[seed] for seed in self.seeds])

    def learning_rates(self, steps: range) -> NDArray[np.float32]:
        """lr_SR that these steps use."""
        return learning_rates(self.training, self.lr_R, steps, self.steps)

    def feed(self, first: int, offsets_SRB: NDArray[np.int64]) -> None:
        """Hand over the next steps, from *first* on, at most `FEED` of them; they are made by as many calls of `advance`."""
        count = len(offsets_SRB)
        assert 0 < count <= FEED
        steps = range(first, first + count)
        self._put(self._offsets, offsets_SRB)
        if self.train_tokens is None:
            rows = windows(self._text, offsets_SRB.reshape(-1), self.model.context + 1)
            self._put(self._gathered, rows.astype(np.int32).reshape(*offsets_SRB.shape, -1))
        self._put(self._lr, self.learning_rates(steps))
        self._put(self._clock, np.array([clock(self.training, step) for step in steps], dtype=np.float32))
        if self.model.dropout:
            self._put(self._keys, np.stack([dropout_keys(self.dropout_seeds, step, self._sites) for step in steps]))
        self._cursor.zero_()
        self._steps_fed = count

    def _put(self, buffer: Tensor, values: NDArray[Any]) -> None:
        host = torch.from_numpy(np.ascontiguousarray(values))
        if self.device.type == "cuda":  # from pinned memory a copy does not wait for the device
            host = host.pin_memory()
        buffer[: len(host)].copy_(host, non_blocking=True)

    def advance(self, *, watch: bool = False) -> None:
        """Make the next step of those fed. With ``watch``, ``watched`` holds what probes need of it until the next."""
        if watch:  # kept in one place, so that a look can be recorded
            before = torch.empty_like(self.weights_RP) if self._before_RP is None else self._before_RP
            self._before_RP = before.copy_(self.weights_RP.detach())
        if self.device.type == "cuda":
            if self._graph is None:
                self._graph = self._record()
            self._graph.replay()
        else:
            self._step()
        self.watched = None
        if watch:
            assert self._before_RP is not None
            assert self._gradient_RP is not None
            assert self._windows_RBT is not None
            after = self.weights_RP.detach(), self.optimizer.v_RP, self.alive_R
            self.watched = Watched(self._before_RP, self._gradient_RP, self._windows_RBT, *after)

    def measured(self) -> Measured:
        """Measurements of the steps fed last, once all of them are made; waits for nothing."""
        return Measured(*self._measured[: self._steps_fed].clone().unbind(1))

    def train_step(self, step: int, offsets_RB: NDArray[np.int64], *, watch: bool = False) -> Measured:
        """Feed and make a single step."""
        self.feed(step, offsets_RB[None])
        self.advance(watch=watch)
        return Measured(*(values[0] for values in self.measured()))

    def _step(self) -> None:
        """One update of every living run, at the cursor.

        A run whose loss or gradient is not finite is frozen from this step on, before its update.
        """
        offsets, lr, clock_4, keys = (
            buffer.index_select(0, self._cursor)[0] for buffer in (self._offsets, self._lr, self._clock, self._keys)
        )
        if self.train_tokens is None:
            self._windows_RBT = self._gathered.index_select(0, self._cursor)[0].long()
        else:
            self._windows_RBT = self.train_tokens[offsets[:, :, None] + self._window].long()
        losses, self._gradient_RP = self._loss_and_gradient(self._windows_RBT, keys)
        with torch.no_grad():
            norms = gradient_norm_R(self._gradient_RP)
            self.alive_R.logical_and_(losses.isfinite() & norms.isfinite())
            total, top = self.optimizer.update(self.weights_RP, self._gradient_RP, norms, lr, clock_4, self.alive_R)
            if self._average_RP is not None:
                average_(self._average_RP, self.weights_RP, clock_4[3], self.alive_R)
            measured = torch.stack([losses, norms, total / self._owned_R, top])
            self._measured.copy_(torch.where(self._row == self._cursor, measured, self._measured))
            self._cursor.add_(1)

    def _loss_and_gradient(self, windows_RBT: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss of a batch per run and its gradient, in passes of ``micro_batch`` sequences that are summed up."""
        size = self.training.micro_batch or self.training.batch
        passes = self.training.batch // size
        losses_R: Tensor | None = None
        gradient_RP: Tensor | None = None
        for first in range(0, self.training.batch, size):
            part = windows_RBT[:, first : first + size]
            forward = ForwardPass(
                self.layout.views(self.weights_RP, self.dtype),
                self.model,
                self.fronts,
                self.dtype,
                dropout=Dropout(self.model.dropout, self._sites, keys, first) if self.model.dropout else None,
            )
            losses, differentiated = forward.losses_R(part[..., :-1], part[..., 1:], self._objective)
            total = differentiated.sum() if passes == 1 else differentiated.sum() / passes
            (gradient,) = torch.autograd.grad(total, self.weights_RP)
            losses_R = losses.detach() if losses_R is None else losses_R.add_(losses.detach())
            gradient_RP = gradient if gradient_RP is None else gradient_RP.add_(gradient)
        assert losses_R is not None
        assert gradient_RP is not None
        return losses_R if passes == 1 else losses_R / passes, gradient_RP

    def _record(self) -> torch.cuda.CUDAGraph:
        """The step as a CUDA graph. A rehearsal that compiles kernels, and one that makes workspaces, are undone."""
        state = (*self._flats.values(), self.alive_R, self._cursor)
        kept = [tensor.clone() for tensor in state]
        compile_kernels(self._step)
        on_side_stream(self._step)
        for tensor, before in zip(state, kept, strict=True):
            tensor.copy_(before)
        self._gradient_RP = self._windows_RBT = None
        return recorded(self._step)

    @property
    def _final_RP(self) -> Tensor:
        """What is validated, evaluated and kept at the end: the weights, or their average."""
        return self.weights_RP.detach() if self._average_RP is None else self._average_RP

    @property
    def _flats(self) -> dict[str, Tensor]:
        """All that a checkpoint keeps."""
        average = {} if self._average_RP is None else {"average": self._average_RP}
        return {"weights": self.weights_RP.detach(), **self.optimizer.state, **average}

    def weights(self, slot: int) -> dict[str, Tensor]:
        """The weights of one run, or their average where that is what counts, by parameter name, on the host."""
        return self._on_host(slot, {"weights": self._final_RP})["weights"]

    def state(self, slot: int) -> dict[str, dict[str, Tensor]]:
        """The weights, their average and the optimizer's state of one run, by parameter name, on the host."""
        return self._on_host(slot, self._flats)

    def _on_host(self, slot: int, flats: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        owned = {parameter.name for parameter in parameters(self.members[slot].model)}
        return {
            part: {
                name: view[0].contiguous()
                for name, view in self.layout.views(flat[slot : slot + 1].cpu()).items()
                if name in owned
            }
            for part, flat in flats.items()
        }

    def restore(self, slot: int, state: dict[str, dict[str, Tensor]], *, alive: bool) -> None:
        """Put a saved run back into its slot (and into the padding, if it is the last)."""
        rows = [slot] if slot + 1 < len(self.members) else list(range(slot, len(self.seeds)))
        if self._average_RP is not None and "average" not in state:  # the end of a run, whose weights are the average
            state = {**state, "average": state["weights"]}
        for part, saved in state.items():
            views = self.layout.views(self._flats[part])
            for name, value in saved.items():
                for row in rows:
                    views[name][row].copy_(value)
        for row in rows:
            self.alive_R[row] = alive
