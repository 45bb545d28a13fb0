from __future__ import annotations

import json
import subprocess
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

import warm
from ablationlab.core.errors import StatisticsError
from ablationlab.stats import (
    PairedComparison,
    all_intervals,
    all_tests,
    cohens_d_z,
    compare,
    hedges_g_av,
    paired_tost,
)

from .strategies import generator, paired_samples, quick

VARIANT = np.array([20.1, 21.3, 20.4, 21.0, 20.2])
REFERENCE = np.array([22.0, 22.4, 21.9, 22.8, 21.2])


def test_a_comparison_holds_every_part():
    result = compare(VARIANT, REFERENCE, rng=generator(), smallest_effect=0.5)
    deltas = VARIANT - REFERENCE
    assert result.intervals == all_intervals(deltas, rng=generator())
    assert result.tests == all_tests(deltas, rng=generator())
    assert result.effects == {"d_z": cohens_d_z(deltas), "g_av": hedges_g_av(VARIANT, REFERENCE)}
    assert result.equivalence == paired_tost(deltas, smallest_effect=0.5)
    assert set(result.intervals) == {"paired-t", "percentile", "bca", "bootstrap-t"}
    assert set(result.tests) == {"paired-t", "sign-flip", "bootstrap", "wilcoxon"}
    assert result.sample is result.original
    assert result.ratios == {}


def test_a_ratio_beyond_any_number_is_left_out_and_the_logs_stay():
    result = compare([1e95, 2.0, 3.0], [1e-95, 1.0, 2.0], rng=generator(), transform="log")
    assert result.intervals["paired-t"].high > 710  # exp of it is above the largest double
    assert "paired-t" not in result.ratios


def test_a_logarithm_needs_values_above_zero():
    with pytest.raises(StatisticsError, match=r"reference\[1\] is 0.0"):
        compare([1.0, 2.0, 3.0], [1.0, 0.0, 2.0], rng=generator(), transform="log")


def test_perplexity_is_tested_on_logs_and_shown_as_a_ratio():
    result = compare(VARIANT, REFERENCE, rng=generator(), transform="log")
    logs = compare(np.log(VARIANT), np.log(REFERENCE), rng=generator())
    assert result.intervals == logs.intervals
    assert result.tests == logs.tests
    assert result.original.delta == pytest.approx((VARIANT - REFERENCE).mean())
    ratio = result.ratios["paired-t"]
    assert ratio.ratio == pytest.approx(np.exp(np.log(VARIANT).mean() - np.log(REFERENCE).mean()))
    assert ratio.high == pytest.approx(np.exp(logs.intervals["paired-t"].high))


@pytest.mark.parametrize("n", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("transform", ["identity", "log"])
def test_a_comparison_is_plain_json_without_nan(n, transform):
    rng = generator(n)
    result = compare(
        rng.lognormal(size=n),
        rng.lognormal(size=n),
        rng=rng,
        smallest_effect=(-0.1, 0.2),
        transform=transform,
    )
    json.dumps(asdict(result), allow_nan=False)
    stored = TypeAdapter(PairedComparison)
    assert stored.validate_json(stored.dump_json(result)) == result


@pytest.mark.parametrize("deltas", [0.0, 0.1])
def test_constant_deltas_give_labels_never_numbers(deltas):
    reference = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    result = compare(reference + deltas, reference, rng=generator(), smallest_effect=1.0)
    assert {i.status for i in result.intervals.values()} == {"degenerate"}
    assert {e.status for e in result.effects.values()} == {"degenerate"}
    assert result.equivalence.equivalent is None
    assert result.tests["paired-t"].p is None
    json.dumps(asdict(result), allow_nan=False)


def test_one_seed_gives_a_delta_and_no_inference():
    result = compare([1.5], [1.0], rng=generator())
    assert result.sample.delta == 0.5
    assert all(i.low is None for i in result.intervals.values())
    assert "too-few-pairs" in {c.code for c in result.caveats}


@pytest.mark.parametrize("n", [5, 20])
def test_same_seed_same_comparison(n):
    a, b = generator(1).normal(size=(2, n))
    assert compare(a, b, rng=generator(3)) == compare(a, b, rng=generator(3))


def test_the_global_generator_is_neither_read_nor_moved():
    a, b = generator(1).normal(size=(2, 20))
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    compare(a, b, rng=generator(3))
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002


def test_the_input_is_not_changed():
    a, b = VARIANT.copy(), REFERENCE.copy()
    compare(a, b, rng=generator(), transform="log")
    assert (a == VARIANT).all()
    assert (b == REFERENCE).all()


@settings(quick, max_examples=25)
@given(paired_samples(), st.randoms(use_true_random=False))
def test_permuting_pairs_changes_no_conclusion(arms, shuffle):
    order = list(range(arms[0].size))
    shuffle.shuffle(order)
    before = compare(*arms, rng=generator(), resamples=200, smallest_effect=1.0)
    after = compare(arms[0][order], arms[1][order], rng=generator(), resamples=200, smallest_effect=1.0)
    assert before.intervals == after.intervals
    assert before.tests == after.tests
    assert before.equivalence == after.equivalence
    assert before.sample.delta == after.sample.delta


@settings(quick, max_examples=25)
@given(paired_samples())
def test_adding_a_constant_to_both_arms_changes_no_conclusion(arms):
    before = compare(*arms, rng=generator(), resamples=200, smallest_effect=1.0)
    after = compare(arms[0] + 32, arms[1] + 32, rng=generator(), resamples=200, smallest_effect=1.0)
    assert before.intervals == after.intervals
    assert before.tests == after.tests
    assert before.equivalence == after.equivalence
    assert before.effects["d_z"] == after.effects["d_z"]


@pytest.mark.parametrize(
    ("variant", "options", "message"),
    [
        ([1.0, np.nan, 2.0], {}, r"variant\[1\] is nan"),
        ([1.0, 2.0], {}, "got 2 and 3 values"),
        ([], {}, "variant is empty"),
        ([1.0, -2.0, 3.0], {"transform": "log"}, r"variant\[1\] is -2.0: a logarithm"),
        ([1.0, 2.0, 3.5], {"transform": "sqrt"}, "transform must be 'identity' or 'log', got 'sqrt'"),
        ([1.0, 2.0, 3.5], {"level": 1.0}, "level must lie strictly"),
        ([1.0, 2.0, 3.5], {"smallest_effect": 0.0}, "smallest_effect must be above 0, got 0.0"),
        ([1.0, 2.0, 3.5], {"planned_pairs": 0}, "planned_pairs must be a whole number"),
    ],
)
def test_bad_input_is_refused_with_its_name(variant, options, message):
    with pytest.raises(StatisticsError, match=message):
        compare(variant, [1.0, 2.0, 3.0], rng=generator(), **options)


def test_importing_the_statistics_imports_neither_torch_nor_pandas():
    code = "import sys, ablationlab.stats; print([m for m in ('torch', 'pandas') if m in sys.modules])"
    done = subprocess.run([warm.FRESH, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
