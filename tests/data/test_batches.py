from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablationlab.data.batches import OrderHash, batch_offsets, planned_order, validation_windows
from ablationlab.records import Corpus

SHAPE = {"batch": 16, "context": 8, "train_tokens": 1000}
CORPUS = Corpus(
    name="c",
    source="s",
    sha256="0" * 64,
    tokenizer="char",
    vocabulary=5,
    tokens_sha256="1" * 64,
    train_tokens=1000,
    validation_tokens=100,
    validation_bytes=99,
)


def test_a_steps_batch_needs_no_replay_of_the_steps_before():
    in_order = [batch_offsets(3, step, **SHAPE) for step in range(1, 6)]
    np.testing.assert_array_equal(batch_offsets(3, 5, **SHAPE), in_order[4])
    assert not np.array_equal(in_order[0], in_order[1])
    assert not np.array_equal(batch_offsets(4, 5, **SHAPE), in_order[4])


def test_offsets_reach_both_ends_of_the_text_and_never_past_it():
    drawn = np.concatenate([batch_offsets(1, step, batch=64, context=8, train_tokens=20) for step in range(1, 50)])
    assert drawn.min() == 0
    assert drawn.max() == 20 - 8 - 1  # its window of 8 + 1 tokens ends with the last token


def test_offsets_are_uniform():
    drawn = np.concatenate([batch_offsets(1, step, batch=100, context=8, train_tokens=18) for step in range(1, 201)])
    counts = np.bincount(drawn, minlength=10)
    chi_square = ((counts - 2000) ** 2 / 2000).sum()
    assert chi_square < 27.9  # 99.9 % point with 9 degrees of freedom


def test_the_order_hash_goes_on_from_its_value():
    whole = OrderHash.start(CORPUS, batch=16, context=8)
    resumed = OrderHash("")
    for step in range(1, 8):
        whole.feed(batch_offsets(1, step, **SHAPE))
        if step == 3:
            resumed = OrderHash(whole.value)
        elif step > 3:
            resumed.feed(batch_offsets(1, step, **SHAPE))
    assert resumed.value == whole.value == planned_order(1, CORPUS, steps=7, batch=16, context=8)


@pytest.mark.parametrize("change", [{"tokens_sha256": "2" * 64}, {"train_tokens": 999}])
def test_the_order_hash_is_bound_to_the_text(change):
    other = CORPUS.model_copy(update=change)
    assert OrderHash.start(CORPUS, batch=2, context=8).value != OrderHash.start(other, batch=2, context=8).value


@given(tokens=st.integers(2, 500), context=st.integers(1, 64))
def test_windows_predict_every_token_but_the_first_exactly_once(tokens, context):
    predicted = [start + 1 + i for start, length in validation_windows(tokens, context) for i in range(length)]
    assert predicted == list(range(1, tokens))
    assert all(1 <= length <= context for _, length in validation_windows(tokens, context))
