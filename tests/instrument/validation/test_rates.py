"""Rates against theory and against scipy; the shipped path on differences whose distribution is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ablationlab.analysis import Arm, Dataset
from ablationlab.instrument.validation.cut import cut
from ablationlab.instrument.validation.rates import (
    OWN,
    answer_counts,
    comparison_rates,
    compatibility,
    counted,
    holds,
    method_rates,
    rate,
)
from ablationlab.instrument.validation.run import concluded
from ablationlab.records.analysis import RunStability
from ablationlab.records.metrics import METRICS
from ablationlab.records.settings import Criterion
from ablationlab.records.verdict import Answer
from ablationlab.stats import paired_t_power
from ablationlab.stats.spikes import _medians

LOSS = "validation_loss"


def material(deltas: np.ndarray, seed: int = 0, **changes: object) -> Dataset:
    """Two arms whose paired differences are *deltas*."""
    base = np.random.default_rng([seed, 1]).normal(3, 0.1, deltas.size)
    seeds = tuple(range(deltas.size))
    values = {
        Arm(LOSS, None, "default", "none"): dict(zip(seeds, base.tolist(), strict=True)),
        Arm(LOSS, None, "default", "redrawn"): dict(zip(seeds, (base + deltas).tolist(), strict=True)),
    }
    given = {
        "name": "made",
        "question": "",
        "source": "records",
        "source_hash": "0",
        "criteria_hash": None,
        "baseline": "none",
        "variants": ("none", "redrawn"),
        "regimes": ("default",),
        "seeds": seeds,
        "contrasts": (),
        "criteria": (Criterion(metric=LOSS, role="primary", smallest_effect=1.0),),
        "registered": True,
        "metrics": dict(METRICS.items()),
        "values": values,
    }
    return Dataset(**(given | changes))


def run_part(variant: str, seed: int, state: str = "finished") -> RunStability:
    unstable = {"finished": False, "diverged": True, "missing": None}[state]
    return RunStability(
        run=f"{variant}-s{seed}",
        variant=variant,
        regime="default",
        seed=seed,
        state=state,
        spike_score=1.0,
        spike_step=1,
        unstable=unstable,
        reason={"finished": "calm", "diverged": "diverged", "missing": "not-finished"}[state],
    )


@pytest.mark.parametrize(("hits", "n"), [(0, 30), (1, 30), (30, 30), (9, 400), (200, 400)])
def test_the_interval_of_a_rate_is_the_exact_one(hits, n):
    found = rate(hits, n)
    theirs = stats.binomtest(hits, n).proportion_ci(0.95, method="exact")
    assert (found.rate, found.low, found.high) == pytest.approx((hits / n, theirs.low, theirs.high))
    assert rate(0, 0).rate is None
    assert counted([True, False, False, True]) == rate(2, 4)


@pytest.fixture(scope="module")
def null():
    """200 studies of 5 normal differences around zero, through the shipped analysis and rules."""
    made = cut(material(np.random.default_rng(11).normal(0, 1, 1000)), 5)
    return concluded(made)


def comparisons(analyses):
    return [analysis.comparisons[0] for analysis in analyses]


def test_under_a_true_null_every_method_rejects_as_often_as_it_was_simulated_to(null):
    analyses, _ = null
    for part in method_rates(comparisons(analyses), 5):
        assert part.rate.n == 200
        assert part.unavailable == 0
        assert set(part.simulated) == {"normal", "skewed", "heavy-tailed", OWN}
        assert holds(part.rate, part.simulated["normal"]), part
        assert part.simulated[OWN] == pytest.approx(part.simulated["normal"], abs=0.012), "these are normal"


def test_the_default_test_keeps_its_alpha_and_percentile_intervals_do_not(null):
    analyses, verdicts = null
    found = comparison_rates(comparisons(analyses), 5)
    said = compatibility(found)
    assert said.compatible
    assert said.as_expected
    assert said.rate.n == 200
    assert found.significant == said.rate, "one test in the family: nothing to correct"
    by_method = {(m.kind, m.method): m.rate for m in found.methods}
    assert by_method["interval", "percentile"].low > 0.1
    assert by_method["test", "sign-flip"].hits == 0, "it cannot go below 0.0625 with five pairs"
    answers = answer_counts(verdicts, "redrawn")
    assert sum(one.hits for one in answers.values()) == 200
    assert answers["same"] == found.equivalent, "a difference that is shown to be small is none, also where it is real"
    large = [one.outcome for one in comparisons(analyses) if abs(one.delta) >= one.smallest_effect]
    assert answers["worse"].hits == large.count("worse") > 0
    assert answers["better"].hits == large.count("better") > 0


def test_the_differences_are_described(null):
    deltas = comparison_rates(comparisons(null[0]), 5).deltas
    assert deltas.n == 1000
    assert deltas.low < 0 < deltas.high
    assert deltas.sd == pytest.approx(1, abs=0.06)
    assert abs(deltas.skewness) < 0.2
    assert abs(deltas.excess_kurtosis) < 0.4


def test_equivalence_is_shown_as_often_as_planned(null):
    found = comparison_rates(comparisons(null[0]), 5)
    assert found.equivalent is not None
    assert holds(found.equivalent, found.equivalent_planned)


def test_a_known_shift_is_found_as_often_as_planned():
    made = cut(material(np.random.default_rng(5).normal(1.68, 1, 500)), 5)
    analyses, verdicts = concluded(made)
    found = comparisons(analyses)
    assert paired_t_power(1.68, 5) == pytest.approx(0.8, abs=0.005)
    assert holds(counted(one.outcome == "worse" for one in found), 0.8)
    assert holds(answer_counts(verdicts, "redrawn")["worse"], 0.8)
    assert all(not part.simulated for part in method_rates(found, 5, null=False))


def test_heavy_tails_make_the_t_test_conservative_and_that_is_expected():
    rng = np.random.default_rng(8)
    made = cut(material(np.where(rng.random(500) < 0.05, 8, 1) * rng.normal(0, 1, 500)), 5)
    found = comparisons(concluded(made)[0])
    test = next(part for part in method_rates(found, 5) if (part.kind, part.method) == ("test", "paired-t"))
    assert test.simulated[OWN] < 0.045


def test_every_answer_is_listed_even_where_it_was_never_given(null):
    given = answer_counts(null[1], "redrawn")
    assert set(given) == {answer.value for answer in Answer}
    assert given["unstable"] == rate(0, 200)


@pytest.mark.parametrize("size", [2, 5, 10, 19, 20])
def test_the_medians_of_the_spike_score_are_numpys_bit_for_bit(size):
    values = np.random.default_rng(size).standard_normal((50, size))
    there = np.arange(len(values)) % size + 1  # the rest of a row is not there
    padded = np.where(np.arange(size) < there[:, None], values, np.inf)
    assert _medians(padded, there).tolist() == [np.median(row[:n]) for row, n in zip(values, there, strict=True)]
