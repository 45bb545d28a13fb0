"""Log-probabilities of continuations for a whole stack: contexts shared within an item, rows batched by length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ablationlab.evaluation.members import ScoredStack
from ablationlab.evaluation.packed import head, packed_hidden, packed_mask

# Tokens per forward pass of the whole stack. A constant, so that the shape of the arithmetic never depends on the machine.
TOKENS_PER_PASS = {"cpu": 4096, "cuda": 131_072}
# Elements of a batch's attention mask, at most.
MASK_PER_PASS = {"cpu": 8_000_000, "cuda": 64_000_000}


@dataclass(frozen=True)
class Continuation:
    """Tokens to score, after the tokens that come before them (at least one)."""

    context: tuple[int, ...]
    tokens: tuple[int, ...]

    def cut(self, room: int) -> tuple[tuple[int, ...], int, bool]:
        """(whole sequence, how many of its last tokens are scored, whether its left was cut) with *room* inputs."""
        whole = self.context + self.tokens
        kept = whole[-(room + 1) :]
        return kept, min(len(self.tokens), len(kept) - 1), len(kept) < len(whole)


@dataclass(frozen=True)
class Scores:
    """sum_RN: log-probability of each continuation; greedy_RN: whether each of its tokens was the most probable."""

    sum_RN: NDArray[np.float64]
    greedy_RN: NDArray[np.bool_]
    truncated_N: NDArray[np.bool_]


class Scorer(Protocol):
    """Anything that scores continuations for several members at once: trained runs, or n-gram models."""

    @property
    def names(self) -> tuple[str, ...]:
        """One name per member."""
        ...

    def score(self, items: Sequence[Sequence[Continuation]]) -> Scores:
        """Scores of all continuations, in the order given; those of one item may share work."""
        ...


@dataclass(frozen=True)
class _Row:
    """One item, packed: where each wanted prediction is made, of which token, for which continuation."""

    tokens: list[int]
    positions: list[int]
    segments: list[int]
    places: list[int]
    targets: list[int]
    owners: list[int]


class StackScorer:
    """Scores by the runs of a stack."""

    def __init__(self, stack: ScoredStack) -> None:
        self.stack = stack

    @property
    def names(self) -> tuple[str, ...]:
        """The members' names."""
        return tuple(member.name for member in self.stack.members)

    def score(self, items: Sequence[Sequence[Continuation]]) -> Scores:
        """Pack every item, run the rows in batches of similar length, add up."""
        total = sum(len(item) for item in items)
        runs = len(self.stack.fronts)
        sums, misses = np.zeros((runs, total)), np.zeros((runs, total), dtype=np.int64)
        truncated = np.zeros(total, dtype=np.bool_)
        rows: list[_Row] = []
        first = 0
        for item in items:
            row, cut = _packed(item, first, self.stack.model.context)
            truncated[first : first + len(item)] = cut
            rows.append(row)
            first += len(item)
        for batch in _batches(rows, self.stack.device.type, runs):
            logp, hit = self._predict(batch)
            owners = np.concatenate([row.owners for row in batch])
            for run in range(runs):
                sums[run] += np.bincount(owners, weights=logp[run], minlength=total)
                misses[run] += np.bincount(owners, weights=~hit[run], minlength=total).astype(np.int64)
        kept = len(self.stack.members)
        return Scores(sums[:kept], misses[:kept] == 0, truncated)

    def _predict(self, batch: Sequence[_Row]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        device, length = self.stack.device, max(len(row.tokens) for row in batch)
        tokens = _padded([row.tokens for row in batch], length, 0).to(device)
        positions = _padded([row.positions for row in batch], length, 0).to(device)
        segments = _padded([row.segments for row in batch], length, -1).to(device)
        hidden = packed_hidden(
            self.stack.params, tokens, positions, packed_mask(segments), self.stack.model, self.stack.fronts
        )
        flat = np.concatenate([np.asarray(row.places) + number * length for number, row in enumerate(batch)])
        targets = torch.from_numpy(np.concatenate([row.targets for row in batch])).to(device)
        chosen = hidden.flatten(1, 2)[:, torch.from_numpy(flat).to(device)]
        logits = head(self.stack.params, chosen, self.stack.model)
        wanted = targets.expand(len(logits), -1)[..., None]
        logp = logits.log_softmax(dim=-1).gather(-1, wanted)[..., 0]
        return logp.double().cpu().numpy(), (logits.argmax(dim=-1) == targets).cpu().numpy()


def _packed(item: Sequence[Continuation], first: int, context: int) -> tuple[_Row, list[bool]]:
    cuts = [one.cut(context) for one in item]
    inputs = [whole[:-1] for whole, _, _ in cuts]
    shared = _common(inputs)
    row = _Row(list(inputs[0][:shared]), list(range(shared)), [0] * shared, [], [], [])
    for number, ((whole, scored, _), fed) in enumerate(zip(cuts, inputs, strict=True)):
        start = len(row.tokens) - shared
        for target in range(len(whole) - scored, len(whole)):
            row.places.append(target - 1 if target - 1 < shared else start + target - 1)
            row.targets.append(whole[target])
            row.owners.append(first + number)
        row.tokens.extend(fed[shared:])
        row.positions.extend(range(shared, len(fed)))
        row.segments.extend([number + 1] * (len(fed) - shared))
    return row, [cut for _, _, cut in cuts]


def _common(sequences: Sequence[tuple[int, ...]]) -> int:
    """Length of the longest common prefix."""
    shortest = min(map(len, sequences))
    for place in range(shortest):
        if len({sequence[place] for sequence in sequences}) > 1:
            return place
    return shortest


def _batches(rows: Sequence[_Row], device: str, runs: int) -> Iterator[list[_Row]]:
    """Longest first, so that the first batch shows whether memory suffices."""
    batch: list[_Row] = []
    for row in sorted(rows, key=lambda row: len(row.tokens), reverse=True):
        longest = len(batch[0].tokens) if batch else len(row.tokens)
        full = (len(batch) + 1) * longest * runs > TOKENS_PER_PASS[device]
        if batch and (full or (len(batch) + 1) * longest**2 * runs > MASK_PER_PASS[device]):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _padded(lists: Sequence[list[int]], length: int, fill: int) -> torch.Tensor:
    padded = torch.full((len(lists), length), fill, dtype=torch.int64)
    for number, values in enumerate(lists):
        padded[number, : len(values)] = torch.tensor(values, dtype=torch.int64)
    return padded
