"""How a folder is cut into studies, what is refused, and what happens to runs that diverged or are not there."""

from __future__ import annotations

import numpy as np
import pytest

from ablationlab.analysis import Absent
from ablationlab.core.errors import StatisticsError
from ablationlab.instrument.validation.cut import cut
from ablationlab.instrument.validation.rates import comparison_rates
from ablationlab.instrument.validation.run import concluded
from ablationlab.records.analysis import Absence
from ablationlab.records.settings import Stability

from .test_rates import material, run_part

DELTAS = np.random.default_rng(3).normal(0, 1, 53)


def test_studies_are_disjoint_consecutive_and_leave_the_rest():
    made = cut(material(DELTAS), 5)
    assert made.groups == tuple(tuple(range(start, start + 5)) for start in range(0, 50, 5))
    assert (made.left_over, made.incomplete) == (3, 0)
    studies = made.studies()
    assert [study.seeds for study in studies] == list(made.groups)
    assert all(len(values) == 5 for study in studies for values in study.values.values())
    assert len({study.source_hash for study in studies}) == 10, "each has random streams of its own"


def test_a_study_of_the_cut_is_judged_as_if_it_were_alone():
    made = cut(material(DELTAS), 5)
    analyses, _ = concluded(made)
    one = analyses[3].comparisons[0]
    assert one.n == one.planned_pairs == 5
    assert [pair.delta for pair in one.pairs] == pytest.approx(DELTAS[15:20])
    assert one.label == "registered"


def test_an_unfinished_run_sets_its_study_aside_and_is_counted():
    runs = [run_part(name, seed) for name in ("none", "redrawn") for seed in range(60)]
    runs[7] = run_part("none", 7, "missing")
    made = cut(material(np.resize(DELTAS, 60), runs=tuple(runs)), 5)
    assert made.incomplete == 1
    assert (5, 6, 7, 8, 9) not in made.groups
    assert len(made.groups) == 11


@pytest.mark.parametrize("rule", ["survivors", "refuse"])
def test_a_diverged_run_is_an_outcome_and_its_study_stays(rule):
    runs = [run_part(name, seed) for name in ("none", "redrawn") for seed in range(50)]
    runs[7] = run_part("none", 7, "diverged")
    given = material(DELTAS[:50], runs=tuple(runs))
    values = {arm: dict(by_seed) for arm, by_seed in given.values.items()}
    next(by_seed for arm, by_seed in values.items() if arm.variant == "none")[7] = Absent(Absence.DIVERGED)
    made = cut(material(DELTAS[:50], runs=tuple(runs), stability=Stability(diverged=rule), values=values), 5)
    assert len(made.groups) == 10
    analyses, verdicts = concluded(made)
    hit = analyses[1].comparisons[0]
    assert hit.n == (4 if rule == "survivors" else 0)
    assert [lost.seed for lost in hit.missing] == [7]
    assert verdicts[1].verdicts[0].answer == "undecided"
    found = comparison_rates([analysis.comparisons[0] for analysis in analyses], 5)
    assert found.significant.n == 10, "it stays in the denominator"
    assert next(m.unavailable for m in found.methods if m.method == "paired-t") == (0 if rule == "survivors" else 1)


@pytest.mark.parametrize(
    ("size", "pairs", "says"),
    [
        (40, 5, "8 complete studies of 5 pairs in 40 seeds: a rate needs at least 10"),
        (3, 5, "0 complete studies"),
        (53, 2, "--pairs 2: fewer than 3 pairs give no interval"),
    ],
)
def test_too_few_seeds_or_pairs_are_refused(size, pairs, says):
    with pytest.raises(StatisticsError, match=says):
        cut(material(DELTAS[:size]), pairs)


def test_too_few_studies_because_runs_are_missing_says_so():
    runs = [
        run_part(name, seed, "missing" if seed < 5 else "finished")
        for name in ("none", "redrawn")
        for seed in range(50)
    ]
    with pytest.raises(StatisticsError, match=r"9 complete studies .* \(1 have unfinished runs\)"):
        cut(material(DELTAS[:50], runs=tuple(runs)), 5)
