"""Interpolated n-gram models of the training text: what is answered without any network.

    p(c | a b) = λ3 f(c | a b) + λ2 f(c | b) + λ1 f(c) + λ0 / V

f are relative frequencies; the weights λ are fitted to the last tenth of the text, with frequencies of the rest, by
expectation-maximization (Jelinek & Mercer 1980); then the frequencies are taken over the whole. A unigram model uses the last
two terms alone, a bigram model the last three.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ablationlab.data.tokens import Tokens, sample

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]
NAMES = ("unigram", "bigram", "trigram")
_ROUNDS = 30
_HELD_OUT = 200_000
#: Tokens that are counted, at most; of a mixture the first of each component (`data.tokens.sample`).
MOST = 5_000_000


@dataclass(frozen=True)
class _Table:
    """Counts of n-grams by a sorted key; absent ones count 0."""

    keys: Ids
    counts: Ids

    @classmethod
    def of(cls, keys: Ids) -> _Table:
        if keys.max(initial=0) >= 4 * len(keys):
            return cls(*np.unique(keys, return_counts=True))
        counts = np.bincount(keys)  # without sorting, where the table of all possible keys is small
        present = np.flatnonzero(counts)
        return cls(present, counts[present])

    def count(self, keys: Ids) -> Floats:
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[place] == keys, self.counts[place], 0).astype(np.float64)


class NgramModels:
    """Three members: unigram, bigram, trigram."""

    def __init__(self, train: Ids, vocabulary: int) -> None:
        train = np.asarray(train[-MOST:], dtype=np.int64)
        cut = max(3, int(len(train) * 0.9))
        self.vocabulary = vocabulary
        self._count(train[:cut])
        held_out = train[cut - 2 : cut + _HELD_OUT]
        terms = np.ascontiguousarray(self._terms(held_out[:-2], held_out[1:-1], held_out[2:]).T)
        self.weights = [_fit(terms[: order + 1]) for order in (1, 2, 3)]
        self._count(train)

    @property
    def names(self) -> tuple[str, ...]:
        """Members in the order of their length."""
        return NAMES

    def _count(self, text: Ids) -> None:
        """n-grams, and the histories that something follows."""
        self._whole = {order: _Table.of(self._keys(text, order)) for order in (1, 2, 3)}
        histories = {1: text, 2: text[:-1], 3: text[:-1]}
        self._before = {order: _Table.of(self._keys(part, order - 1)) for order, part in histories.items()}

    def _keys(self, tokens: Ids, order: int) -> Ids:
        """One key per n-gram of that order, in the order of the text."""
        if order == 0:
            return np.zeros(len(tokens), dtype=np.int64)
        key = np.zeros(len(tokens) - order + 1, dtype=np.int64)
        for place in range(order):
            key = key * self.vocabulary + tokens[place : len(tokens) - order + 1 + place]
        return key

    def _terms(self, before2: Ids, before1: Ids, target: Ids) -> Floats:
        """f of each order for each prediction: columns 1/V, f(c), f(c | b), f(c | a b)."""
        size = self.vocabulary
        pairs = (
            (target, np.zeros_like(target), 1),
            (before1 * size + target, before1, 2),
            ((before2 * size + before1) * size + target, before2 * size + before1, 3),
        )
        columns = [np.full(len(target), 1.0 / size)]
        for whole, history, order in pairs:
            seen = self._before[order].count(history)
            shorter = columns[-1].copy()  # a history that never occurred says no more than its shorter part
            columns.append(np.divide(self._whole[order].count(whole), seen, out=shorter, where=seen > 0))
        return np.stack(columns, axis=1)

    def log_probabilities(self, before2: Ids, before1: Ids, target: Ids) -> Floats:
        """logp_RN of each prediction under each member."""
        terms = self._terms(before2, before1, target)
        return np.stack([np.log(terms[:, : len(w)] @ w) for w in self.weights])


def _fit(terms: Floats) -> Floats:
    """Weights of the rows by expectation-maximization: w ← w · mean over predictions of term / (w · terms)."""
    orders, predictions = terms.shape
    weights = np.full(orders, 1.0 / orders)
    if not predictions:
        return weights
    for _ in range(_ROUNDS):
        weights = weights * (terms @ (1.0 / (weights @ terms))) / predictions
    return np.asarray(np.maximum(weights, 1e-6) / np.maximum(weights, 1e-6).sum())


#: Tokens of the training text that are counted for `reference_losses`, and of the validation text that are predicted.
REFERENCE_TOKENS = 1_000_000


def reference_losses(train: Ids | Tokens, validation: Ids | Tokens, vocabulary: int) -> dict[str, float]:
    """What the validation text costs without a network, in nats per token: drawn by lot, and by n-grams of the training text.

    Each token from the third on is predicted once; at most the first `REFERENCE_TOKENS`.
    """
    text = np.asarray(validation[:REFERENCE_TOKENS], dtype=np.int64)
    losses = {"uniform": float(np.log(vocabulary))}
    if len(text) < 3 or len(train) < 3:
        return losses
    models = NgramModels(sample(train, REFERENCE_TOKENS), vocabulary)
    costs = -models.log_probabilities(text[:-2], text[1:-1], text[2:]).mean(axis=1)
    return losses | {name: float(cost) for name, cost in zip(models.names, costs, strict=True)}
