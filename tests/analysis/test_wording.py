"""Codes and numbers become sentences: signs, percents and p-values as everywhere else."""

from __future__ import annotations

import pytest

from ablationlab.analysis.wording import _more, arm_text, caveat, no_number, sensitivity_reasons
from ablationlab.core.format import plain
from ablationlab.records.settings import Criterion
from ablationlab.report.tables.arms import median_note
from ablationlab.report.tables.comparisons import comparison_table
from ablationlab.stats.results import Caveat, CaveatCode, Sensitivity

from .verdict.studies import study

DETAILS = {
    CaveatCode.TOO_FEW_PAIRS: {"n": 1},
    CaveatCode.CONSTANT_DELTAS: {"n": 3, "value": -0.1},
    CaveatCode.FEWER_PAIRS_THAN_PLANNED: {"n": 4, "planned": 5},
    CaveatCode.UNBOUNDED_INTERVAL: {"n": 3},
    CaveatCode.UNDERCOVERAGE: {"n": 5, "level": 0.95, "covers": 0.838},
    CaveatCode.CANNOT_REACH_ALPHA: {"n": 5, "minimum_p": 0.0625, "alpha": 0.05},
    CaveatCode.FALSE_POSITIVES: {"n": 5, "rate": 0.16, "alpha": 0.05},
    CaveatCode.CANNOT_EXCLUDE_ZERO: {"n": 3},
    CaveatCode.UNPAIRED: {"variant": "a", "reference": "b"},
    CaveatCode.SURVIVORS_ONLY: {"runs": ("a seed 1", "a seed 2")},
    CaveatCode.UNSTABLE_MEAN: {"median": 3.2, "unstable": 4, "of": 10},
    CaveatCode.REFUSED_FOR_DIVERGENCE: {"runs": ("a seed 1",)},
    CaveatCode.OTHER_CORRECTION: {"registered": "dunnett"},
    CaveatCode.AT_CHANCE: {"chance": 0.25, "items": 1200, "best": 0.26, "p": 0.4},
    CaveatCode.UNPAIRED_ITEMS: {"variant": 3, "reference": 0},
    CaveatCode.TOO_FEW_SEEDS: {"seeds": 1},
}


@pytest.mark.parametrize("code", CaveatCode)
def test_every_caveat_has_a_sentence_with_its_numbers_in_the_common_style(code):
    text = caveat(Caveat(code, "method", DETAILS.get(code, {})))
    assert text.endswith(".")
    assert "{" not in text
    assert "5%" not in text
    assert "-0" not in text


def test_caveats_say_their_numbers():
    def said(code, about=""):
        return plain(caveat(Caveat(code, about, DETAILS[code])))

    assert said(CaveatCode.CONSTANT_DELTAS).startswith("All 3 deltas equal −0.100: ")
    assert said(CaveatCode.UNDERCOVERAGE, "percentile") == (
        "A nominal 95 % percentile bootstrap interval over 5 pairs covers about 84 % (simulated, normal differences)."
    )
    assert "cannot go below p = 0.0625, so it cannot reach 0.05" in said(CaveatCode.CANNOT_REACH_ALPHA, "sign-flip")
    assert "about 16 % of the time at a nominal 5 % with 5 pairs" in said(CaveatCode.FALSE_POSITIVES, "bootstrap")
    tango = Caveat(CaveatCode.UNDERCOVERAGE, "tango", {"n": 4})
    assert plain(caveat(tango)).endswith("in up to 12.5 % of studies instead of 5 %.")


def test_a_gate_says_what_it_measured():
    gate = Sensitivity(
        sensitive=False,
        beats_chance=False,
        chance_p=0.4,
        accuracy=0.2513,
        items=1000,
        chance=0.25,
        control="wrong-direction",
        control_p=0.00003,
        control_delta=-0.0412,
        control_pairs=3,
        sensitive_tasks=("spelling",),
        tasks=2,
    )
    assert list(map(plain, sensitivity_reasons(gate))) == [
        "the mean is over the 1 of 2 tasks that are sensitive: spelling",
        "mean baseline accuracy 0.251 on 1,000 items does not beat chance 0.250 (one-sided p = 0.40)",
        "the positive control differs in the wrong direction (mean delta −0.0412, 3 pairs, two-sided p < 0.0001)",
    ]


@pytest.mark.parametrize(
    ("status", "n", "method", "text"),
    [
        ("ok", 5, "paired-t", ""),
        ("too-few-pairs", 2, "paired-t", "fewer than 3 pairs: 2 given"),
        ("too-few-pairs", 2, "welch", "fewer than 3 runs in an arm: 2 given"),
        ("degenerate", 5, "paired-t", "all 5 deltas are equal, so their spread is not known"),
        ("unbounded", 3, "bootstrap-t", "too many resamples hold one value only"),
        ("unbounded", 5, "sign-flip", "the test cannot reach this level, whatever the data"),
    ],
)
def test_a_missing_number_is_explained(status, n, method, text):
    assert no_number(status, n, method) == text


@pytest.mark.parametrize(("share", "text"), [(0.0042, "+0.4 %"), (-0.00003, "−0.003 %"), (0.5, "+50 %")])
def test_a_difference_of_budgets_never_reads_as_none(share: float, text: str):
    assert plain(_more(share)) == plain(text)


def test_a_mean_of_a_few_huge_values_is_told_as_a_median_in_metrics_that_are_tested_as_logarithms():
    values = {"none": [2.0, 3.0, 4.0, 1e15, 2.5], "layernorm": [2.1, 3.1, 4.1, 2.6, 2.2]}
    made = study({"mean_gradient_norm": values}, (Criterion(metric="mean_gradient_norm", role="primary"),))
    (found,) = made.comparisons
    assert found.transform == "log"
    assert arm_text(found, "none") == "median 3.00"
    assert arm_text(found, "layernorm").startswith("2.8")
    ((shown,),) = (
        [dict(zip((column.key for column in table.columns), row, strict=True)) for row in table.rows]
        for table in [comparison_table("all", "", [found], 1)]
    )
    # The other arm's median too: a median beside a mean is no comparison.
    assert (shown["reference_mean"].text, shown["variant_mean"].text) == ("median 3.00", "median 2.60")
    assert median_note([found]) == " Where a few runs make a mean more than ten times its median, the median is shown."
    plain_loss = study({"validation_loss": values}, (Criterion(metric="validation_loss", role="primary"),)).comparisons
    assert median_note(plain_loss) == ""
