"""Losses of chance and n-gram models, against what theory says of texts whose entropy is known."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from ablationlab.data.ngrams import NgramModels, reference_losses


def test_no_model_beats_chance_on_tokens_drawn_by_lot():
    tokens = np.random.default_rng(0).integers(0, 8, 200_000)
    losses = reference_losses(tokens[:150_000], tokens[150_000:], 8)
    assert losses["uniform"] == math.log(8)
    assert losses == {
        name: pytest.approx(math.log(8), abs=0.005) for name in ("uniform", "unigram", "bigram", "trigram")
    }


def test_a_markov_chain_costs_a_bigram_model_its_entropy_rate():
    rng = np.random.default_rng(1)
    stay = rng.random(200_000) < 0.9  # from 0 to 1 or back otherwise
    tokens = np.cumsum(~stay) % 2
    losses = reference_losses(tokens[:150_000], tokens[150_000:], 2)
    rate = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    assert losses["unigram"] == pytest.approx(math.log(2), abs=0.01)
    assert losses["bigram"] == pytest.approx(rate, abs=0.01)
    assert losses["trigram"] == pytest.approx(rate, abs=0.01)


def by_the_formula(train: list[int], vocabulary: int, order: int, grams: list[tuple[int, int, int]]) -> list[float]:
    """log p of the last token of each gram, as the module's docstring defines it, in plain Python."""

    def terms(text: list[int], gram: tuple[int, ...]) -> list[float]:
        columns = [1 / vocabulary]
        for length in range(1, order + 1):
            part = gram[3 - length :]
            seen = sum(n for whole, n in counts(text, length).items() if whole[:-1] == part[:-1])
            columns.append(counts(text, length)[part] / seen if seen else columns[-1])
        return columns

    def counts(text: list[int], length: int) -> Counter[tuple[int, ...]]:
        return Counter(tuple(text[at : at + length]) for at in range(len(text) - length + 1))

    cut = int(0.9 * len(train))
    held_out = [terms(train[:cut], tuple(train[at - 2 : at + 1])) for at in range(cut, len(train))]
    weights = [1 / (order + 1)] * (order + 1)
    for _ in range(30):
        shares = [[w * f for w, f in zip(weights, row, strict=True)] for row in held_out]
        weights = [sum(row[k] / sum(row) for row in shares) / len(shares) for k in range(order + 1)]
    weights = [max(weight, 1e-6) for weight in weights]
    rows = [terms(train, gram) for gram in grams]
    return [math.log(sum(w * f for w, f in zip(weights, row, strict=True)) / sum(weights)) for row in rows]


@pytest.mark.parametrize("spread", [1, 997])  # keys in a small table of all, and in a sorted one
def test_counting_and_fitting_follow_the_formula(spread: int):
    tokens = np.random.default_rng(2).choice(4, 200, p=[0.5, 0.3, 0.15, 0.05]) * spread
    vocabulary = 3 * spread + 1
    grams = [(a * spread, b * spread, c * spread) for a, b, c in [(0, 0, 0), (1, 0, 2), (3, 3, 3), (2, 1, 0)]]
    models = NgramModels(tokens, vocabulary)
    before2, before1, target = np.array(grams).T
    expected = [by_the_formula(tokens.tolist(), vocabulary, order, grams) for order in (1, 2, 3)]
    assert models.log_probabilities(before2, before1, target).tolist() == [
        pytest.approx(row, abs=1e-12) for row in expected
    ]
