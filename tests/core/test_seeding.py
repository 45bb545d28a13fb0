from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ablationlab.core.seeding import digest, stream, words


def test_a_stream_depends_on_its_name_and_on_nothing_drawn_before():
    first = stream(1, "init", "tok.weight").standard_normal(4)
    stream(1, "init", "pos.weight").standard_normal(1000)
    np.testing.assert_array_equal(stream(1, "init", "tok.weight").standard_normal(4), first)


@given(st.integers(0, 2**31), st.integers(0, 2**31), st.text(max_size=5), st.text(max_size=5))
def test_different_names_give_different_streams(seed, other, key, other_key):
    same = (seed, key) == (other, other_key)
    assert (digest(seed, "init", key) == digest(other, "init", other_key)) == same


def test_a_key_of_two_parts_is_not_their_concatenation():
    assert digest(1, "dropout", 1, "12") != digest(1, "dropout", 11, "2")
    assert digest(1, "batch", 1) != digest(1, "batch", "1")


def test_draws_are_pinned_so_that_a_changed_generator_is_noticed():
    assert stream(1, "batch", 1).integers(0, 1_000_000, 4).tolist() == [283208, 968748, 750014, 291991]
    assert words(1, "dropout", 1, "front") == (1892463931, -1355178432)


def test_init_draws_look_normal():
    sample = stream(7, "init", "x").standard_normal(200_000, dtype=np.float32)
    assert abs(sample.mean()) < 4 / np.sqrt(len(sample))
    assert abs(sample.std() - 1) < 4 / np.sqrt(2 * len(sample))
