from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablationlab.data.batches import (
    DataOrderHash,
    batch_offsets,
    curve_windows,
    planned_data_order,
    shares_of,
    validation_windows,
)
from ablationlab.data.tokens import Share
from ablationlab.records.plan import Component, Corpus

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


def test_the_order_hash_continues_from_its_value():
    whole = DataOrderHash.start(CORPUS, batch=16, context=8)
    resumed = DataOrderHash("")
    for step in range(1, 8):
        whole.update(batch_offsets(1, step, **SHAPE))
        if step == 3:
            resumed = DataOrderHash(whole.value)
        elif step > 3:
            resumed.update(batch_offsets(1, step, **SHAPE))
    assert resumed.value == whole.value == planned_data_order(1, CORPUS, steps=7, batch=16, context=8)


@pytest.mark.parametrize("change", [{"tokens_sha256": "2" * 64}, {"train_tokens": 999}])
def test_the_order_hash_is_bound_to_the_text(change):
    other = CORPUS.model_copy(update=change)
    assert DataOrderHash.start(CORPUS, batch=2, context=8).value != DataOrderHash.start(other, batch=2, context=8).value


@given(tokens=st.integers(2, 500), context=st.integers(1, 64))
def test_windows_predict_every_token_but_the_first_exactly_once(tokens, context):
    predicted = [start + 1 + i for start, length in validation_windows(tokens, context) for i in range(length)]
    assert predicted == list(range(1, tokens))
    assert all(1 <= length <= context for _, length in validation_windows(tokens, context))


def test_the_offsets_of_one_text_are_those_that_sealed_plans_were_made_with():
    assert batch_offsets(3, 7, batch=6, context=8, train_tokens=1000).tolist() == [405, 763, 314, 256, 477, 757]
    shakespeare = {"batch": 4, "context": 128, "train_tokens": 1_003_854}
    assert batch_offsets(1, 300, **shakespeare).tolist() == [862453, 45330, 770064, 966705]
    assert batch_offsets(1, 300, **shakespeare, shares=[Share(1.0, 1_003_854)]).tolist() == [
        862453,
        45330,
        770064,
        966705,
    ]
    assert planned_data_order(1, CORPUS, steps=7, batch=16, context=8) == (
        "e6df4027ab4e5f678fa87626944a552609670b81c483ea957ceb68118565c6e1"
    )


@given(
    tokens=st.lists(st.integers(9, 300), min_size=2, max_size=5),
    seed=st.integers(0, 100),
    step=st.integers(1, 1000),
)
def test_a_window_of_a_mixture_lies_inside_one_component(tokens, seed, step):
    shares = [Share(1 / len(tokens), count) for count in tokens]
    offsets = batch_offsets(seed, step, batch=40, context=8, train_tokens=sum(tokens), shares=shares)
    edges = np.cumsum([0, *tokens])
    component = np.searchsorted(edges, offsets, side="right") - 1
    assert (offsets >= 0).all()
    assert (offsets + 8 + 1 <= edges[component + 1]).all(), "its targets too"


def test_components_are_drawn_by_weight_and_offsets_evenly_inside_them():
    shares = (Share(0.7, 18), Share(0.1, 5000), Share(0.2, 18))
    draws = [batch_offsets(1, step, batch=200, context=8, train_tokens=5036, shares=shares) for step in range(1, 201)]
    offsets = np.concatenate(draws)
    component = np.searchsorted([18, 5018], offsets, side="right")
    counts = np.bincount(component, minlength=3)
    expected = np.array([0.7, 0.1, 0.2]) * len(offsets)
    assert ((counts - expected) ** 2 / expected).sum() < 13.8  # 99.9 % point with 2 degrees of freedom
    for first, number in ((0, 0), (5018, 2)):
        inside = np.bincount(offsets[component == number] - first, minlength=10)
        assert len(inside) == 10
        even = inside.sum() / 10
        assert ((inside - even) ** 2 / even).sum() < 27.9  # 9 degrees of freedom


def test_the_order_of_a_mixture_is_known_from_its_record_alone():
    def component(name, weight, tokens):
        held = {"validation_tokens": 9, "validation_bytes": 9, "held_out": "documents"}
        facts = {"documents": 2, "train_documents": 1, "train_tokens": tokens, **held}
        return Component(name=name, source="s", weight=weight, sha256="a", tokens_sha256="b", **facts)

    parts = (component("a", 0.25, 400), component("b", 0.75, 600))
    mixed = CORPUS.model_copy(update={"components": parts})
    order = DataOrderHash.start(mixed, batch=16, context=8)
    for step in (1, 2, 3):
        order.update(batch_offsets(5, step, **SHAPE, shares=shares_of(mixed)))
    assert planned_data_order(5, mixed, steps=3, batch=16, context=8) == order.value
    assert planned_data_order(5, CORPUS, steps=3, batch=16, context=8) != order.value


def mixture(*held_out: int) -> Corpus:
    """The record of a mixture with held-out parts of these sizes."""
    parts = tuple(
        Component(
            name=str(number),
            source="s",
            weight=1 / len(held_out),
            sha256="0" * 64,
            tokens_sha256="1" * 64,
            documents=10,
            train_documents=9,
            train_tokens=1000,
            validation_tokens=tokens,
            validation_bytes=tokens,
            held_out="documents",
        )
        for number, tokens in enumerate(held_out)
    )
    return CORPUS.model_copy(update={"validation_tokens": sum(held_out), "components": parts})


def test_the_curve_of_one_text_looks_at_its_first_windows():
    expected = [(8 * number, 8) for number in range(5)]
    assert curve_windows(CORPUS, 8, 5) == expected
    assert curve_windows(mixture(100), 8, 5) == expected, "a prepared corpus is one text"
    assert curve_windows(CORPUS, 8, 99) == validation_windows(100, 8)


def test_the_curve_of_a_mixture_gives_every_component_its_share():
    sizes = (9600, 1700, 1100)
    chosen = curve_windows(mixture(*sizes), 8, 64)
    assert len(chosen) == len(set(chosen)) == 64
    edges = np.cumsum(sizes)
    counts = np.bincount(np.searchsorted(edges, [start for start, _ in chosen], side="right"), minlength=3)
    np.testing.assert_allclose(counts, 64 * np.array(sizes) / sum(sizes), atol=1)
    assert set(chosen) < set(validation_windows(sum(sizes), 8))


@given(st.lists(st.integers(9, 400), min_size=2, max_size=5), st.integers(1, 80), st.integers(2, 17))
def test_the_windows_of_a_curve_are_distinct_and_in_order_and_all_where_there_are_few(sizes, count, context):
    chosen, every = curve_windows(mixture(*sizes), context, count), validation_windows(sum(sizes), context)
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(every)
    assert len(chosen) == min(count, len(every))
