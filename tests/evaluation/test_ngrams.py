from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from ablationlab.evaluation.scoring import Continuation, NgramScorer

TEXT = np.random.default_rng(0).choice(5, size=4000, p=[0.4, 0.3, 0.15, 0.1, 0.05]).astype(np.int64)
TEXT[1::2] = (TEXT[::2] * 2 + 1) % 5  # every second token follows from the one before it
MODEL = NgramScorer(TEXT, 5)


@pytest.mark.parametrize("before", [(0, 1), (3, 2), (4, 4)])
def test_probabilities_over_the_vocabulary_sum_to_one(before):
    ids = np.arange(5)
    logp = MODEL.log_probabilities(np.full(5, before[0]), np.full(5, before[1]), ids)
    np.testing.assert_allclose(np.exp(logp).sum(axis=1), 1)


def test_a_bigram_probability_is_the_weighted_mean_of_relative_frequencies():
    pairs = list(pairwise(TEXT))
    f2 = pairs.count((2, 0)) / list(TEXT[:-1]).count(2)
    f1 = list(TEXT).count(0) / len(TEXT)
    weights = MODEL.weights[1]
    expected = weights @ np.array([1 / 5, f1, f2])
    found = MODEL.log_probabilities(np.array([1]), np.array([2]), np.array([0]))[1, 0]
    assert np.exp(found) == pytest.approx(expected)
    assert weights.sum() == pytest.approx(1)


def test_the_bigram_model_learns_what_the_unigram_model_cannot():
    losses = -MODEL.log_probabilities(TEXT[:-2], TEXT[1:-1], TEXT[2:]).mean(axis=1)
    assert losses[1] < losses[0] - 0.3


def test_a_continuation_is_the_sum_of_its_tokens():
    found = MODEL.score([[Continuation((0, 1, 3), (2, 0))]]).sum_RN[:, 0]
    parts = MODEL.log_probabilities(np.array([1, 3]), np.array([3, 2]), np.array([2, 0])).sum(axis=1)
    np.testing.assert_allclose(found, parts)
