from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablationlab.data.tokens import Share, Tokens, as_tokens, sample, token_counts, windows

PIECES = st.lists(st.lists(st.integers(0, 65535), max_size=12), min_size=1, max_size=6)


@given(PIECES, st.data())
def test_windows_over_pieces_are_those_of_one_array(pieces, data):
    whole = np.array([token for piece in pieces for token in piece], dtype=np.int64)
    tokens = Tokens([np.array(piece, dtype=np.uint16) for piece in pieces])
    assert len(tokens) == len(whole)
    np.testing.assert_array_equal(np.asarray(tokens), whole)
    length = data.draw(st.integers(0, len(whole)))
    starts = np.array(data.draw(st.lists(st.integers(0, len(whole) - length), max_size=5)), dtype=np.int64)
    found = windows(tokens, starts, length)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, windows(whole, starts, length))


@given(PIECES, st.integers(0, 80), st.integers(0, 80))
def test_a_part_is_a_slice(pieces, start, stop):
    whole = np.array([token for piece in pieces for token in piece], dtype=np.int64)
    tokens = Tokens([np.array(piece, dtype=np.uint16) for piece in pieces])
    np.testing.assert_array_equal(np.asarray(tokens.part(start, stop)), whole[start:stop])
    np.testing.assert_array_equal(tokens[start:stop], whole[start:stop])


@pytest.mark.parametrize("start", [-1, 6])
def test_a_window_past_the_end_is_refused(start):
    with pytest.raises(IndexError, match="a window of 5 tokens reaches past the end of 10"):
        Tokens([np.arange(4), np.arange(6)]).windows(np.array([start]), 5)


def test_counts_and_samples_need_no_whole_copy(monkeypatch):
    monkeypatch.setattr("ablationlab.data.tokens._BLOCK", 7)
    whole = np.random.default_rng(0).integers(0, 9, 100)
    tokens = Tokens([whole[:40], whole[40:]], [Share(0.25, 40), Share(0.75, 60)])
    np.testing.assert_array_equal(token_counts(tokens, 9), np.bincount(whole, minlength=9))
    np.testing.assert_array_equal(token_counts(whole, 9), np.bincount(whole, minlength=9))
    np.testing.assert_array_equal(sample(tokens, 100), whole)
    np.testing.assert_array_equal(sample(tokens, 20), np.concatenate([whole[:5], whole[40:55]]))
    np.testing.assert_array_equal(sample(as_tokens(whole), 10), whole[:10])
