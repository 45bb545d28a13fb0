"""Losses of chance and n-gram models, against what theory says of texts whose entropy is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ablationlab.data.ngrams import reference_losses


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
