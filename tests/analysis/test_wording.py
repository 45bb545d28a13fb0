"""Codes and numbers become sentences: signs, percents and p-values as everywhere else."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ablationlab.analysis import analyze
from ablationlab.analysis.answer import answer
from ablationlab.analysis.verdict import decide
from ablationlab.analysis.verdict.evidence import gather
from ablationlab.analysis.wording import (
    Sentences,
    _more,
    arm_text,
    caveat,
    names_of,
    needs_told_once,
    no_number,
    other_methods,
    recommendations,
    sensitivity_reasons,
    the_baseline,
    told_once,
    verdict_words,
)
from ablationlab.core.format import plain
from ablationlab.records.settings import Criterion
from ablationlab.records.verdict import Need, Needs
from ablationlab.report.tables.ablation import median_note
from ablationlab.report.tables.comparisons import comparison_table
from ablationlab.report.terminal.analysis import _families, _notes
from ablationlab.stats.results import Caveat, CaveatCode, Sensitivity

from .verdict.maker import analysis as made_analysis
from .verdict.maker import comparison as made_comparison
from .verdict.studies import LOSS, arms, dataset, study, words_of

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


#: Differences that are alike but for their sizes; p = 0.058.
DRIFTING = [0.03, -0.002, 0.02, 0.045, 0.012]


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


@pytest.mark.parametrize(
    ("sd", "text"),
    [
        (
            500.0,
            "detected with less than 1 % power; where it is detected, it is overstated more than ten times on average.",
        ),
        (0.03, "detected with 3 % power; where it is detected, it is overstated 2.5 times on average."),
    ],
)
def test_a_study_far_too_small_for_its_effect_says_so_without_absurd_figures(sd, text):
    base = 2.0 + 0.05 * np.sin(np.arange(8))
    deltas = sd * np.array([-1.2, -0.8, -0.4, -0.1, 0.1, 0.4, 0.8, 1.2])
    criteria = (Criterion(metric="validation_loss", role="primary", smallest_effect=0.01, alpha=0.005),)
    analysis = analyze(dataset({"validation_loss": {"none": base, "v": base + deltas}}, criteria))
    (verdict,) = decide(analysis).verdicts
    assert plain(verdict_words(analysis, verdict).fragility).endswith(text)


def test_a_lucky_baseline_is_not_called_a_bad_run_of_the_variant():
    """The cost is largest on the seed on which the baseline did best: the pair stands out, and its runs are to be seen."""
    none, worse = [2.0, 2.02, 1.82], [2.02, 2.041, 2.02]
    made = study({"validation_loss": {"none": none, "layernorm": worse}})
    (decided,) = decide(made).verdicts
    words = plain(verdict_words(made, decided).recommendation)
    assert decided.reason == "bad-runs"
    assert "most on seed 3. Look at the runs of both arms on seed 3." in words


def test_a_seed_that_is_like_the_others_is_not_blamed():
    """The largest of five differences hides a loss by a little: with .0395 in its place it would be shown."""
    none = [2.0, 2.02, 1.99, 2.01, 2.0]
    made = study({"validation_loss": {"none": none, "layernorm": [a + b for a, b in zip(none, DRIFTING, strict=True)]}})
    (decided,) = decide(made).verdicts
    words = verdict_words(made, decided)
    assert decided.reason == "bad-runs"
    told = [line.text for line in told_once([(decided, words.reasons)])]
    assert plain(" ".join(told)).endswith(
        "layernorm is worse on average, but by amounts too unequal to show it. With differences of at most 0.0395 nats/token "
        "it would be shown worse, and larger ones must not help the variant."
    )
    assert "seed 4" not in f"{told} {words.recommendation} {answer(made, decide(made))}"


def test_most_seeds_do_not_stand_out():
    """Two of three differences hide the loss: that they vary is true, that some stand out is not."""
    none, costs = [2.0, 2.02, 1.99], [0.045, 0.040, 0.012]
    made = study({"validation_loss": {"none": none, "layernorm": [a + b for a, b in zip(none, costs, strict=True)]}})
    verdict = decide(made)
    (decided,) = verdict.verdicts
    assert gather(made, "layernorm", decided.regime).bad_runs == (1, 2)
    words = plain(verdict_words(made, decided).recommendation)
    assert "is worse on all 3 seeds, but by amounts too unequal to show it." in words
    assert "Look at" not in words
    assert "the differences vary too much between seeds to show it" in plain(answer(made, verdict))


def test_a_baseline_of_that_name_is_named_once():
    assert [the_baseline(name) for name in ("none", "baseline")] == ["the baseline (none)", "the baseline"]


def test_what_is_true_of_several_arms_is_told_once():
    """Both arms are worse for the same bad run: one reason, one recommendation, and a span where their spreads differ."""
    none = [2.0, 2.02, 1.99]
    worse = {"layernorm": [0.02, 0.021, 0.2], "rmsnorm": [0.02, 0.021, 0.21]}
    values = {name: [a + b for a, b in zip(none, costs, strict=True)] for name, costs in worse.items()}
    made = study({"validation_loss": {"none": none, **values}})
    verdict = decide(made)
    reasons = told_once((decided, verdict_words(made, decided).reasons) for decided in verdict.verdicts)
    assert [(names_of(told.verdicts, verdict.verdicts), told.text[:31]) for told in reasons] == [
        ("layernorm", "With differences of at most 0.0"),
        ("rmsnorm", "With differences of at most 0.0"),
        ("layernorm and rmsnorm", "Each is worse on all 3 seeds, b"),
    ]
    (line,) = recommendations(made, verdict)
    assert line.startswith("layernorm and rmsnorm: Keep the baseline (none) for now. Each is worse on all 3 seeds")
    assert line.count("A new study of") == 1
    needs = [decided.needs.seeds_for_difference for decided in verdict.verdicts]
    assert f"A new study of {min(needs):,} to {max(needs):,} fresh seeds" in line


def test_doubts_about_fitted_rates_are_told_as_a_span_and_a_regime_that_variants_share_once():
    found = [
        made_comparison(variant=name, regime=regime).model_copy(update={"doubt": doubt})
        for regime in ("default", "tuned")
        for name, doubt in (("relu", 0.056), ("gelu", 0.031), ("silu", 0.041))
    ]
    made = made_analysis(*found, variants=("none", "relu", "gelu", "silu"), regimes=("default", "tuned"))
    verdicts = [
        decided.model_copy(update={"needs": Needs(need=Need.CLOSER_RATES)})
        for decided in decide(made).verdicts
        if decided.regime == "tuned"
    ]
    every = decide(made).verdicts
    first, _ = needs_told_once(made, verdicts)
    assert "may be off by 0.031 to 0.056, more than the smallest" in plain(first.text)
    assert names_of(first.verdicts, every) == "relu, gelu and silu (tuned)"
    assert names_of([*first.verdicts, every[0]], every) == "relu (tuned, default); gelu and silu (tuned)"


def test_where_another_variant_is_used_nobody_is_told_not_to_use_each():
    none = arms(0.0)["none"]
    unclear = [loss + 0.02 * (-1) ** place for place, loss in enumerate(none)]
    better = arms(-0.05)["layernorm"]
    made = study({"validation_loss": {"none": none, "muon": better, "relu": unclear, "gelu": unclear}})
    lines = recommendations(made, decide(made))
    assert any(line.startswith("relu and gelu: Undecided; do not use them for now.") for line in lines)


def test_a_cost_is_held_to_a_margin_only_where_one_is_registered():
    values = {"validation_loss": arms(0.05), "token_ece": arms(0.05)}
    guard = Criterion(metric="token_ece", role="guard", margin=0.01)
    text = plain(words_of(values, criteria=(LOSS, guard)).trade_off)
    assert re.search(
        r"Validation loss: costs at most 0\.05\d+ nats/token \(.*?\), more than the smallest effect that", text
    )
    assert re.search(r"Token ECE: costs at most 0\.05\d+ \(.*?\), more than the registered margin of 0\.01\.", text)


def test_a_reason_that_was_told_is_not_repeated_in_the_recommendation():
    made = study({"validation_loss": arms(-0.05, n=5)})
    verdict = decide(made)
    (decided,) = verdict.verdicts
    reasons = verdict_words(made, decided).reasons
    assert "Not shown: equal stability (" in str(reasons)
    alone, beside = (
        recommendations(made, verdict, told)[0] for told in (None, {(decided.variant, decided.regime): reasons})
    )
    assert "Not shown: equal stability (" in alone
    assert "Not shown" not in beside
    assert beside.startswith("layernorm: Adopt layernorm provisionally")


def test_a_word_of_a_sentence_is_not_taken_for_a_variant_of_that_name():
    values = arms(0.05)
    made = study({"validation_loss": {"none": values["none"], "loss": values["layernorm"], "rms": values["layernorm"]}})
    verdicts = decide(made).verdicts
    (reason,) = told_once((decided, verdict_words(made, decided).reasons) for decided in verdicts)
    assert reason.text.startswith("Worse: validation loss ")
    assert names_of(reason.verdicts, verdicts) == "loss and rms"


def test_what_is_true_of_one_arm_alone_keeps_its_name():
    made = study({"validation_loss": {name: arms(0.05)["none"] for name in ("none", "relu", "relu-2")}})
    told = told_once(
        (decided, Sentences((f"{decided.variant} diverged.", own), ("Each diverged.", own)))
        for decided, own in zip(decide(made).verdicts, ("So did relu-2.", "So did none."), strict=True)
    )
    assert [([v.variant for v in line.verdicts], line.text) for line in told] == [
        (["relu"], "So did relu-2."),
        (["relu-2"], "So did none."),
        (["relu", "relu-2"], "Each diverged."),
    ]


def test_methods_that_do_not_decide_have_one_caveat_for_all_comparisons():
    few = [
        *(
            Caveat(CaveatCode.UNDERCOVERAGE, "percentile", {"n": n, "level": 0.95, "covers": c})
            for n, c in ((5, 0.84), (4, 0.8))
        ),
        Caveat(CaveatCode.UNDERCOVERAGE, "bca", {"n": 4, "level": 0.95, "covers": 0.79}),
        *(
            Caveat(CaveatCode.CANNOT_REACH_ALPHA, t, {"n": 5, "minimum_p": 0.0625, "alpha": 0.05})
            for t in ("sign-flip", "wilcoxon")
        ),
    ]
    intervals, tests = other_methods([*few, *few])
    assert "Bootstrap intervals (percentile and BCa)" in intervals
    assert "covers about 84 % over 5 pairs and 79 % to 80 % over 4 pairs" in plain(intervals)
    assert "The sign-flip and Wilcoxon tests cannot reach 0.05" in tests
    assert "their smallest p is 0.0625 with 5 pairs that differ" in tests


def test_a_caveat_names_the_regime_where_there_are_several():
    few = Caveat(CaveatCode.FEWER_PAIRS_THAN_PLANNED, "", {"n": 4, "planned": 5})
    found = [made_comparison(regime="hot", caveats=(few,)), made_comparison(regime="default")]
    (note,) = _notes(found, False)
    assert note.startswith("validation loss in hot, layernorm − none: Compared on 4 of 5 pairs;")


def test_speeds_are_told_as_the_family_of_their_own_that_they_are():
    others = [made_comparison(), made_comparison("perplexity", role=None, family="exploratory")]
    speed = made_comparison("inference_speed", role=None, family="exploratory/timed", direction="higher")
    assert _families(made_analysis(*others)) == " Families: primary; all the rest, false discovery rate."
    assert _families(made_analysis(*others, speed)).endswith("false discovery rate; speeds, a family of their own.")


def test_one_run_that_is_missing_is_one_run():
    values = {"validation_loss": arms(-0.05, n=5)}
    words = words_of(values, endings={"none": ".....", "layernorm": ".m..."})
    assert "Finish the run of layernorm on seed 2, and analyze again." in words.recommendation


def test_numbers_of_pairs_with_one_coverage_are_told_together():
    some = [
        Caveat(CaveatCode.UNDERCOVERAGE, "bca", {"n": n, "level": 0.95, "covers": covers})
        for n, covers in ((39, 0.94), (30, 0.938), (10, 0.9))
    ]
    (text,) = other_methods(some)
    assert "covers about 94 % over 30 to 39 pairs and 90 % over 10 pairs (" in plain(text)


def test_a_reason_begins_with_a_capital_unless_that_is_the_variants_name():
    made = study({"validation_loss": {"none": arms(-0.3)["none"], "better": arms(-0.3)["layernorm"]}})
    assert verdict_words(made, decide(made).verdicts[0]).why.startswith("Better: validation loss")
    worse = {"none": [2.0, 2.02, 1.99], "layernorm": [2.02, 2.041, 2.19]}
    made = study({"validation_loss": worse})
    assert verdict_words(made, decide(made).verdicts[0]).why.startswith("layernorm is worse on all 3 seeds")


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
