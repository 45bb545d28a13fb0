"""One run over several ranks: the part of a stack of one that the training loop drives, in every process.

The global batch of step k is the same whatever the number of ranks: rank r of W takes samples [r·B/W, (r+1)·B/W) of it, in
passes of ``micro_batch``, and dropout masks are keyed by the sample's place in the whole batch. What depends on W is the
order in which sums are taken. All ranks compute the same numbers about a step, so they take every decision alike; what only
a clock or a user decides is the leader's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from ablationlab.data.batches import Window, batch_offsets
from ablationlab.data.tokens import Tokens, windows
from ablationlab.model.dropout import Dropout, dropout_keys, dropout_sites
from ablationlab.model.ops import Objective
from ablationlab.model.optimizers import RuleOptimizer, clock, learning_rates, move, start_optimizer
from ablationlab.model.parameters import parameter_count, parameters
from ablationlab.model.rules import OPTIMIZERS, OptimizerStep, UpdateRule, rate_and_decay
from ablationlab.records.run import Checkpoint
from ablationlab.records.settings import ExecutionConfig, TrainingConfig
from ablationlab.records.storage import RunFolder
from ablationlab.training import checkpoints
from ablationlab.training.checkpoints import Saved, path_of
from ablationlab.training.distributed import shards
from ablationlab.training.distributed.modules import WholeModel, allocate
from ablationlab.training.distributed.ranks import Ranks
from ablationlab.training.perplexity import Totals, spans, validation_batches
from ablationlab.training.stack import Measured, Member, ParameterLayout, Watched

T = TypeVar("T")


class DistributedStack:
    """A stack of one run, of which this process holds a copy (ddp) or a shard (fsdp)."""

    def __init__(
        self,
        members: Sequence[Member],
        execution: ExecutionConfig,
        ranks: Ranks,
        training: TrainingConfig,
        steps: int,
        train_tokens: NDArray[np.int64] | Tokens,
        dtype: torch.dtype,
    ) -> None:
        (member,) = members
        assert execution.parallel is not None
        self.members, self.fronts = (member,), (member.model.front,)
        self.seeds, self.dropout_seeds = (member.seeds[1],), (member.seeds[2],)
        self.model, self.training, self.steps, self.dtype = member.model, training, steps, dtype
        self.ranks, self.device, self.execution = ranks, ranks.device, execution
        self.share_of_batch = training.batch // ranks.world
        self.pass_size = training.micro_batch or self.share_of_batch
        self.passes = self.share_of_batch // self.pass_size
        assert self.pass_size * self.passes * ranks.world == training.batch
        self.train_tokens = train_tokens
        self._shares = train_tokens.shares if isinstance(train_tokens, Tokens) else ()
        objective = Objective(training.z_loss, training.label_smoothing)
        self.root = WholeModel(self.model, dtype, objective, checkpointing=execution.activation_checkpointing)
        allocate(self.root, execution.parallel, self.device, ranks.world)
        self._parameters: dict[str, Tensor] = dict(self.root.everything())
        self._draw()
        self._average = {name: value.detach().clone() for name, value in self._parameters.items() if training.ema}
        self._sites = dropout_sites(self.model)
        self._copies = self._joined() if execution.parallel == "ddp" else None
        self._rates = {p.name: rate_and_decay(p, training) for p in parameters(self.model)}
        self._owned = parameter_count(self.model)
        self.alive = True
        self.layout = ParameterLayout.of(self.members)
        self._rule = OPTIMIZERS[training.optimizer]
        # Where every rank has the whole model, a rule gets it as one row, as in a stack.
        self._whole_rows: RuleOptimizer | None = None
        if self._rule is not None and self._copies is not None:
            rule = start_optimizer(training, self._flat(self._parameters), self.layout.row(training))
            assert isinstance(rule, RuleOptimizer)
            self._whole_rows = rule
            self._moments = {
                part: {name: view[0] for name, view in self.layout.views(flat).items()}
                for part, flat in rule.state.items()
            }
        else:
            self._moments = {
                part: {name: torch.zeros_like(value.detach()) for name, value in self._parameters.items()}
                for part in (("m", "v") if self._rule is None else self._rule.state)
            }
        self.watched: Watched | None = None
        self._fed: list[tuple[int, NDArray[np.int64]]] = []
        self._measured: list[list[float]] = []

    def _draw(self) -> None:
        """Every rank draws every parameter from its own stream and keeps its part: no traffic, and no draw depends on W."""
        with torch.no_grad():
            for parameter in parameters(self.model):
                value: Tensor = torch.from_numpy(parameter.draw(self.members[0].seeds[0]))
                self._put(self._parameters[parameter.name], value)

    def _put(self, target: Tensor, value: Tensor) -> None:
        if isinstance(target, DTensor):
            mine = distribute_tensor(value.to(self.device), target.device_mesh, target.placements, src_data_rank=None)
            local(target).copy_(mine.to_local())
        else:
            target.copy_(value)

    def _joined(self) -> DistributedDataParallel:
        """Copies whose gradients are averaged.

        DDP rebuilds its buckets after the first backward pass, and the order of its sums over three ranks or more follows
        them. So one pass is made before any that counts, and a resumed run sums in the same order as one that never stopped.
        """
        where = [self.device] if self.device.type == "cuda" else None
        copies = DistributedDataParallel(self.root, device_ids=where, gradient_as_bucket_view=True)
        blank = torch.zeros(1, self.pass_size, self.model.context, dtype=torch.int64, device=self.device)
        objective, _ = copies(blank, blank, self._dropout(0, 0))
        objective.sum().backward()
        self._forget_gradients()
        return copies

    def _forget_gradients(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None

    @property
    def leads(self) -> bool:
        """Whether this process writes the records."""
        return self.ranks.leads

    @property
    def layout_on_devices(self) -> tuple[str, int, bool]:
        """As `Execution.layout` has it."""
        return str(self.execution.parallel), self.ranks.world, self.execution.activation_checkpointing

    @property
    def reach(self) -> int:
        """The host reads the measurements of every step."""
        return 1

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        """The leader's flags, in every process."""
        return self.ranks.agree(*flags)

    def share(self, make: Callable[[], T], dump: Callable[[T], Any], load: Callable[[Any], T]) -> T:
        """What the leader makes, in every process."""
        return load(self.ranks.share(lambda: dump(make())))

    def offsets(self, step: int) -> NDArray[np.int64]:
        """offsets_RB of the whole batch of a step."""
        shape = {"batch": self.training.batch, "context": self.model.context, "train_tokens": len(self.train_tokens)}
        return batch_offsets(self.seeds[0], step, **shape, shares=self._shares)[None]

    def learning_rates(self, steps: range) -> NDArray[np.float32]:
        """lr_SR that these steps use."""
        return learning_rates(self.training, [self.members[0].lr], steps, self.steps)

    def feed(self, first: int, offsets_SRB: NDArray[np.int64]) -> None:
        """Hand over the next steps, from *first* on."""
        self._fed = [(first + number, offsets_RB[0]) for number, offsets_RB in enumerate(offsets_SRB)]
        self._measured = []

    def advance(self, *, watch: bool = False) -> None:
        """Make the next step of those fed, with all other ranks. With ``watch``, which needs the whole model on this rank,
        ``watched`` holds what probes need of it until the next step."""
        step, offsets_B = self._fed.pop(0)
        before = self._flat(self._parameters) if watch else None
        loss = self._gradients(step, offsets_B)
        gradients = {name: local(value.grad) for name, value in self._parameters.items() if value.grad is not None}
        assert gradients.keys() == self._parameters.keys()
        squares = torch.stack([torch.linalg.vector_norm(g).double().square() for g in gradients.values()]).sum()
        sums = torch.stack([loss.double() / self.ranks.world, squares])
        if self._copies is not None:  # every rank has the whole gradient; only losses are to be added up
            sums[1] /= self.ranks.world
        mean_loss, square = self.ranks.total(sums).tolist()
        norm = float(np.float32(np.sqrt(square)))
        self.alive = self.alive and bool(np.isfinite(mean_loss) and np.isfinite(norm))
        unclipped = self._flat(gradients) if watch else None
        if self.alive:
            self._move(step, gradients, norm)
        self.watched = None
        if before is not None and unclipped is not None:
            alive = torch.tensor([self.alive], device=self.device)
            v = None if self._v is None else self._flat(self._v)
            after = self._flat(self._parameters), v, alive
            self.watched = Watched(before, unclipped, self._windows(offsets_B), *after)
        self._forget_gradients()
        self._measured.append([float(np.float32(mean_loss)), norm, *self._second_moment()])

    def _gradients(self, step: int, offsets_B: NDArray[np.int64]) -> Tensor:
        """The mean loss of this rank's share; the gradients of the global batch's mean stand in ``grad`` afterwards."""
        loss = torch.zeros((), device=self.device)
        begin = self.ranks.rank * self.share_of_batch
        for number in range(self.passes):
            first = begin + number * self.pass_size
            starts = offsets_B[first : first + self.pass_size]
            part = self._windows(starts)
            with self._summing(last=number + 1 == self.passes) as module:
                objective, losses = module(part[..., :-1], part[..., 1:], self._dropout(step, first))
                (objective.sum() / self.passes).backward()
            loss += losses[0] / self.passes
        return loss

    def _windows(self, starts: NDArray[np.int64]) -> Tensor:
        """Inputs and targets from there on, with the axis of runs."""
        rows = windows(self.train_tokens, starts, self.model.context + 1)
        return torch.from_numpy(rows).to(self.device)[None]

    @torch.no_grad()
    def _flat(self, whole: Mapping[str, Tensor]) -> Tensor:
        """A copy as one row of a stack of one."""
        assert self._copies is not None, "no rank of fsdp has the whole of anything"
        row = torch.zeros(1, sum(self.layout.sizes), device=self.device)
        for name, view in self.layout.views(row).items():
            view[0].copy_(whole[name])
        return row

    def _dropout(self, step: int, first: int) -> Dropout | None:
        """The masks of a pass that begins at sample *first* of the whole batch."""
        if not self.model.dropout:
            return None
        keys = torch.from_numpy(dropout_keys(self.dropout_seeds, step, self._sites)).to(self.device)
        return Dropout(self.model.dropout, self._sites, keys, first)

    @contextmanager
    def _summing(self, *, last: bool) -> Iterator[Callable[..., Any]]:
        """ddp reduces once a step, after the last pass; fsdp after every pass, so that no rank ever holds all gradients."""
        if self._copies is None:
            yield self.root
        elif last:
            yield self._copies
        else:
            with self._copies.no_sync():
                yield self._copies

    @torch.no_grad()
    def _move(self, step: int, gradients: dict[str, Tensor], norm: float) -> None:
        """Clip and update this rank's part, with the arithmetic of `model.optimizers`, and the average."""
        count, *_, share = clock(self.training, step)
        if self._whole_rows is not None:
            self._move_rows(self._whole_rows, step, gradients, norm)
        else:
            if self.training.clip != "off":
                torch._foreach_mul_(list(gradients.values()), min(1.0, self.training.clip / (norm + 1e-6)))
            lr = float(self.learning_rates(range(step, step + 1))[0, 0])
            at = torch.tensor(count, device=self.device)
            self._move_parts({name: part for name, part in gradients.items() if part.numel()}, lr, at)
        for name, average in self._average.items():
            local(average).lerp_(local(self._parameters[name]).detach(), share)

    def _move_parts(self, gradients: dict[str, Tensor], lr: float, step: Tensor) -> None:
        """Every parameter by itself, or the part of it that is here."""
        if self._rule is not None:
            for name, gradient in gradients.items():
                self._move_by_rule(self._rule, name, gradient, lr, step)
            return
        for rate, decay in sorted(set(self._rates.values())):
            names = [name for name in gradients if self._rates[name] == (rate, decay)]
            if names:
                parts = (self._parameters, gradients, self._moments["m"], self._moments["v"])
                weights, g, m, v = ([local(part[name]) for name in names] for part in parts)
                move(weights, g, m, v, self.training, lr=lr * rate, step=step, decay=decay)

    def _move_by_rule(self, rule: UpdateRule, name: str, gradient: Tensor, lr: float, step: Tensor) -> None:
        """One parameter, as a stack of one run that has no other; for rules that take every number by itself."""
        rate, decay = self._rates[name]
        weights = local(self._parameters[name]).detach()
        row = weights.view(1, -1)
        moved = rule.moved(
            OptimizerStep(
                row,
                gradient.view(1, -1),
                {part: local(moments[name]).view(1, -1) for part, moments in self._moments.items()},
                torch.tensor([[lr * rate]], device=self.device),
                step,
                torch.tensor([decay], device=self.device),
                self.training,
                lambda flat: {name: flat.view(1, *weights.shape)},
            )
        )
        row.copy_(moved)

    @property
    def _v(self) -> dict[str, Tensor] | None:
        """The second moment of all parameters, where the optimizer keeps one."""
        return self._moments.get("v") if self._rule is None or self._rule.second_moment else None

    def _move_rows(self, rule: RuleOptimizer, step: int, gradients: dict[str, Tensor], norm: float) -> None:
        """As a stack of one does. Every rank has the same rows, so all of them come to the same weights."""
        weights_RP = self._flat(self._parameters)
        numbers = (
            [norm],
            self.learning_rates(range(step, step + 1))[0].tolist(),
            clock(self.training, step),
        )
        norm_R, lr_R, clock_4 = (torch.tensor(values, device=self.device) for values in numbers)
        alive_R = torch.tensor([True], device=self.device)
        rule.update(weights_RP, self._flat(gradients), norm_R, lr_R, clock_4, alive_R)
        for name, view in self.layout.views(weights_RP).items():
            self._parameters[name].copy_(view[0])

    def _second_moment(self) -> tuple[float, float]:
        """Mean and maximum over all parameters; NaN of an optimizer without one."""
        if self._v is None:
            return math.nan, math.nan
        mine = [local(v) for v in self._v.values() if local(v).numel()]
        total = torch.stack([v.double().sum() for v in mine]).sum()
        top = torch.stack([v.amax() for v in mine]).amax()
        if self._copies is None:
            self.ranks.total(total)
            self.ranks.highest(top)
        return float(total) / self._owned, float(top)

    def measured(self) -> Measured:
        """Measurements of the steps fed last, the same in all ranks."""
        return Measured(*torch.tensor(self._measured, dtype=torch.float32).T[:, :, None])

    @torch.no_grad()
    def validate(self, tokens: Tensor, windows: Sequence[Window] | None = None) -> Totals:
        """Sums over a split, or over these windows of it; the ranks take batches of them in turn."""
        with self._averaged():
            return self._validate(tokens, windows)

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """Meanwhile the model has the average of its weights, where there is one."""
        self._exchange()
        yield
        self._exchange()

    def _exchange(self) -> None:
        for name, average in self._average.items():
            ours, theirs = local(self._parameters[name]).detach(), local(average)
            kept = ours.clone()
            ours.copy_(theirs)
            theirs.copy_(kept)

    def _validate(self, tokens: Tensor, windows: Sequence[Window] | None) -> Totals:
        totals = Totals(1, self.device)
        batches = list(validation_batches(len(tokens), self.model, windows))
        for start in range(0, len(batches), self.ranks.world):
            number = start + self.ranks.rank
            # One without a batch of its own keeps step with the others, whose gathering needs it, and counts nothing.
            batch = batches[min(number, len(batches) - 1)]
            span, length = spans(tokens, batch, self.model.context), batch[0][1]
            logits, vectors = self.root(span[None, :, :-1], None)
            if number < len(batches):
                totals.add(logits[:, :, :length], span[:, 1 : length + 1], vectors[:, :, :length])
        if self._copies is None:
            self.root.reshard()  # type: ignore[operator]
        sums = torch.stack([totals.nll_R, totals.hits_R, totals.norm_R])
        totals.nll_R, totals.hits_R, totals.norm_R = self.ranks.total(sums)
        totals.tokens = sum(length for batch in batches for _, length in batch)
        return totals

    def weights(self, slot: int) -> dict[str, Tensor]:
        """The whole weights, or their average where that is what counts, on the leader's host, one parameter after another;
        every rank takes part."""
        state = {}
        for name, value in (self._average or self._parameters).items():
            whole = value.full_tensor().detach() if isinstance(value, DTensor) else value.detach()
            if self.leads:
                state[name] = whole.cpu().contiguous()
        return state

    def _state(self) -> dict[str, Tensor]:
        state = {name: value.detach() for name, value in self._parameters.items()}
        for part, moments in {**self._moments, "average": self._average}.items():
            state |= {f"{part}.{name}": value for name, value in moments.items()}
        return state

    def save(self, slot: int, folder: RunFolder, record: Checkpoint | None, *, final: bool) -> None:
        """Write a checkpoint, in shards; a final one is whole, and like that of any other run."""
        if not final:
            shards.save(self.ranks, folder, record, self._state())
            return
        weights = self.weights(slot)
        if self.leads:
            assert record is not None
            checkpoints.save(folder, record, {"weights": weights})
        self.ranks.agree(True)  # no rank leaves before the checkpoint is complete

    def resume(self, slot: int, folder: RunFolder, saved: Saved) -> None:
        """Read this rank's part of a checkpoint of any number of ranks."""
        state = self._state()
        if saved.final:
            state = {name: value.detach() for name, value in self._parameters.items()}
        shards.load(path_of(folder, saved.record.step), state)
        if saved.final:  # the weights of the end are the average
            for name, average in self._average.items():
                local(average).copy_(local(self._parameters[name]).detach())
        self.alive = saved.record.divergence is None


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, without a copy."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
