"""Log-probabilities of continuations for a whole stack: contexts shared within an item, rows batched by length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ablationlab.data.ngrams import NgramModels
from ablationlab.data.tokenizers import Tokenizer
from ablationlab.evaluation.runs import ScoredStack
from ablationlab.model.device import Mark, to_device, to_host

# Tokens per forward pass of the whole stack. A constant, so that the shape of the arithmetic never depends on the machine.
TOKENS_PER_PASS = {"cpu": 4096, "cuda": 131_072}
# Elements of a batch's attention mask, at most.
MASK_PER_PASS = {"cpu": 8_000_000, "cuda": 64_000_000}
# Logits alive at once, at most: with a large vocabulary they are far more than all else.
LOGITS_PER_PASS = {"cpu": 2**26, "cuda": 2**30}


class ScoringTokens:
    """A tokenizer, its unknown characters replaced by a space, and the token that stands for an empty context.

    A character model has no special tokens: the empty context is a newline, or the first token where there is none.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._known = None if tokenizer.characters is None else frozenset(tokenizer.characters)
        self._stand_in = " " if self._known is None or " " in self._known else min(self._known)
        special = tokenizer.end_of_document
        newline = self._known is None or "\n" in self._known
        self.empty_context = special if special is not None else int(tokenizer.encode("\n")[0]) if newline else 0

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        if self._known is not None:
            for character in set(text) - self._known:
                text = text.replace(character, self._stand_in)
        ids: list[int] = self.tokenizer.encode(text).tolist()
        return ids

    def count_unknown(self, text: str) -> int:
        """Characters of a text that the vocabulary lacks."""
        if self._known is None or self._known.issuperset(text):
            return 0
        return sum(character not in self._known for character in text)

    def decode(self, ids: list[int]) -> str:
        """Text of ids."""
        return self.tokenizer.decode(np.asarray(ids, dtype=np.int64))


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

    def answers(self, run: int) -> list[tuple[float, bool]]:
        """One member's scores as the harness takes them."""
        return list(zip(self.sum_RN[run].tolist(), self.greedy_RN[run].tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class Scoring:
    """Predictions that a device is at work on; each adds to the score of its owner, a continuation."""

    members: int
    truncated_N: NDArray[np.bool_]
    owners: NDArray[np.int32]
    logp_RP: torch.Tensor
    hit_RP: torch.Tensor
    mark: Mark

    def finish(self) -> Scores:
        """Wait for the device, and add up."""
        self.mark.wait()
        total = len(self.truncated_N)
        sums, misses = np.zeros((self.members, total)), np.zeros((self.members, total), dtype=np.int64)
        for run in range(self.members):
            sums[run] = np.bincount(self.owners, weights=self.logp_RP[run].double().numpy(), minlength=total)
            misses[run] = np.bincount(self.owners[~self.hit_RP[run].numpy()], minlength=total)
        return Scores(sums, misses == 0, self.truncated_N)


class Scorer(Protocol):
    """Anything that scores continuations for several members at once: trained runs, or n-gram models."""

    @property
    def names(self) -> tuple[str, ...]:
        """One name per member."""
        ...

    def score(self, items: Sequence[Sequence[Continuation]]) -> Scores:
        """Scores of all continuations, in the order given; those of one item may share work."""
        ...


@dataclass(frozen=True, eq=False)
class Packed:
    """Items as packed rows, one after another in flat arrays; needs no model, so it is made once for all of them.

    Row b has ``rows[b]`` tokens and ``wanted[b]`` predictions; a prediction is made at a place of its row, of a target token,
    and adds to the score of its owner, a continuation.
    """

    rows: NDArray[np.int64]
    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    segments: NDArray[np.int32]
    wanted: NDArray[np.int64]
    places: NDArray[np.int32]
    targets: NDArray[np.int32]
    owners: NDArray[np.int32]
    truncated_N: NDArray[np.bool_]


def pack(items: Sequence[Sequence[Continuation]], context: int) -> Packed:
    """Every item as one row: the common beginning of its continuations once, then what follows it in each."""
    columns: list[list[int]] = [[] for _ in range(6)]
    tokens, positions, segments, places, targets, owners = columns
    rows: list[int] = []
    wanted: list[int] = []
    truncated: list[bool] = []
    for item in items:
        before, asked = len(tokens), len(places)
        cuts = [continuation.cut(context) for continuation in item]
        inputs = [whole[:-1] for whole, _, _ in cuts]
        shared = _common(inputs)
        tokens.extend(inputs[0][:shared])
        positions.extend(range(shared))
        segments.extend([0] * shared)
        for number, ((whole, scored, cut), fed) in enumerate(zip(cuts, inputs, strict=True)):
            start = len(tokens) - before - shared
            for target in range(len(whole) - scored, len(whole)):
                places.append(target - 1 if target - 1 < shared else start + target - 1)
            targets.extend(whole[len(whole) - scored :])
            owners.extend([len(truncated)] * scored)
            tokens.extend(fed[shared:])
            positions.extend(range(shared, len(fed)))
            segments.extend([number + 1] * (len(fed) - shared))
            truncated.append(cut)
        rows.append(len(tokens) - before)
        wanted.append(len(places) - asked)
    flat = [np.asarray(column, dtype=np.int32) for column in columns]
    return Packed(
        rows=np.asarray(rows, dtype=np.int64),
        tokens=flat[0],
        positions=flat[1],
        segments=flat[2],
        wanted=np.asarray(wanted, dtype=np.int64),
        places=flat[3],
        targets=flat[4],
        owners=flat[5],
        truncated_N=np.asarray(truncated, dtype=np.bool_),
    )


class StackScorer:
    """Scores by the runs of a stack."""

    def __init__(self, stack: ScoredStack) -> None:
        self.stack = stack

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.stack.members)

    def score(self, items: Sequence[Sequence[Continuation]]) -> Scores:
        """Scores of all continuations, in the order given."""
        return self.score_packed(pack(items, self.stack.model.context))

    def score_packed(self, packed: Packed) -> Scores:
        """Run all rows in batches of similar length, and add up."""
        return self.begin(packed).finish()

    def begin(self, packed: Packed) -> Scoring:
        """Queue all of it on the device."""
        runs = len(self.stack.fronts)
        return self.begin_rows(packed, list(row_batches(packed.rows, self.stack.device.type, runs)))

    def begin_rows(self, packed: Packed, batches: Sequence[NDArray[np.int64]]) -> Scoring:
        """The same of some batches of rows."""
        first, asked = _starts(packed.rows), _starts(packed.wanted)
        predictions = [self._predict(packed, batch, first, asked) for batch in batches]
        logp_RN = to_host(torch.cat([logp for logp, _ in predictions], dim=1))
        hit_RN = to_host(torch.cat([hit for _, hit in predictions], dim=1))
        rows = np.concatenate(batches)
        owners = packed.owners[_spans(asked[rows], packed.wanted[rows])]
        return Scoring(len(self.stack.members), packed.truncated_N, owners, logp_RN, hit_RN, Mark(self.stack.device))

    def _predict(
        self, packed: Packed, batch: NDArray[np.int64], first: NDArray[np.int64], asked: NDArray[np.int64]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(log-probability, whether most probable) of every prediction of some rows, still on the device."""
        device, length = self.stack.device, int(packed.rows[batch].max())
        if device.type == "cuda":
            length = -(-length // 8) * 8  # fused attention takes a mask of such lengths as it is
        ids = np.zeros((3, len(batch), length), dtype=np.int64)
        ids[2] = -1
        there, here = np.arange(length) < packed.rows[batch][:, None], _spans(first[batch], packed.rows[batch])
        for number, values in enumerate((packed.tokens, packed.positions, packed.segments)):
            ids[number][there] = values[here]
        chosen = _spans(asked[batch], packed.wanted[batch])
        flat = packed.places[chosen] + np.repeat(np.arange(len(batch)) * length, packed.wanted[batch])
        tokens, positions, segments = to_device(ids, device)
        at, targets = to_device(np.stack([flat, packed.targets[chosen]]), device)
        hidden = self.stack.packed_hidden(tokens, positions, segments)
        pieces = []
        most = self._places(device)
        for start in range(0, len(flat), most):
            some, right = at[start : start + most], targets[start : start + most]
            logits = self.stack.head(hidden.flatten(1, 2)[:, some])
            logp = logits.log_softmax(dim=-1).gather(-1, right.expand(len(logits), -1)[..., None])[..., 0]
            pieces.append((logp, logits.argmax(dim=-1) == right))
        return torch.cat([logp for logp, _ in pieces], dim=1), torch.cat([hit for _, hit in pieces], dim=1)

    def _places(self, device: torch.device) -> int:
        """Predictions whose logits may be alive at once."""
        vocabulary = self.stack.model.vocabulary
        assert vocabulary is not None
        return max(1, LOGITS_PER_PASS[device.type] // (len(self.stack.fronts) * vocabulary))


class NgramScorer(NgramModels):
    """Scores by three members: unigram, bigram, trigram."""

    def score(self, items: Sequence[Sequence[Continuation]]) -> Scores:
        """Sums over the tokens of each continuation; these models have no most probable token to report."""
        flat = [continuation for item in items for continuation in item]
        before2, before1, target, owner = [], [], [], []
        for number, continuation in enumerate(flat):
            whole = (continuation.context[0], *continuation.context, *continuation.tokens)
            for place in range(len(continuation.context) + 1, len(whole)):
                before2.append(whole[place - 2])
                before1.append(whole[place - 1])
                target.append(whole[place])
                owner.append(number)
        logp = self.log_probabilities(*(np.asarray(column, dtype=np.int64) for column in (before2, before1, target)))
        owners = np.asarray(owner)
        sums = np.stack([np.bincount(owners, weights=row, minlength=len(flat)) for row in logp]).astype(np.float64)
        return Scores(sums, np.zeros(sums.shape, dtype=np.bool_), np.zeros(len(flat), dtype=np.bool_))


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)


def _spans(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places of several spans, one span after another."""
    return np.repeat(starts - _starts(lengths), lengths) + np.arange(lengths.sum())


def _common(sequences: Sequence[tuple[int, ...]]) -> int:
    """Length of the longest common prefix."""
    shortest = min(map(len, sequences))
    for place in range(shortest):
        if len({sequence[place] for sequence in sequences}) > 1:
            return place
    return shortest


def row_batches(lengths: NDArray[np.int64], device: str, runs: int) -> Iterator[NDArray[np.int64]]:
    """Numbers of rows, longest first, so that the first batch shows whether memory suffices."""
    batch: list[int] = []
    longest = 0
    for number in np.argsort(-lengths, kind="stable"):
        longest = longest if batch else int(lengths[number])
        full = (len(batch) + 1) * longest * runs > TOKENS_PER_PASS[device]
        if batch and (full or (len(batch) + 1) * longest**2 * runs > MASK_PER_PASS[device]):
            yield np.asarray(batch)
            batch, longest = [], int(lengths[number])
        batch.append(int(number))
    if batch:
        yield np.asarray(batch)
