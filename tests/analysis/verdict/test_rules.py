"""The rules: each decision reachable, the first that applies wins, nothing decides on what it cannot know."""

from __future__ import annotations

import pytest

from ablationlab.analysis.verdict import decide, judge
from ablationlab.analysis.wording import recommendations, verdict_words
from ablationlab.core.format import plain
from ablationlab.records.analysis import Missing, Pair
from ablationlab.records.verdict import RANK, Decision, Verdict

from . import studies
from .maker import VARIANT, analysis, comparison, stability

RESCUED, SAFE = stability(6, 0, n=6), stability(n=40)
WORSE = {"outcome": "worse", "delta": 0.3, "low": 0.2, "high": 0.4}
BETTER = {"outcome": "better", "delta": -0.3, "low": -0.4, "high": -0.2}
EQUAL = {"delta": 0.001, "low": -0.01, "high": 0.012, "equivalent": True}
CHEAP = {"delta": 0.01, "low": -0.02, "high": 0.04, "margin": 0.05}
COSTLY = {"delta": 0.04, "low": 0.01, "high": 0.07, "margin": 0.05}
SURVIVORS = tuple(Missing(seed=s, arm="none", reason="diverged") for s in range(1, 6))

BROKEN = Missing(seed=3, arm=VARIANT, reason="diverged")
UNFINISHED = Missing(seed=3, arm="none", reason="not-finished")
FEW = {
    "low": None,
    "high": None,
    "n": 2,
    "pairs": tuple(Pair(seed=s, variant=1.0, reference=1.0, delta=0.01) for s in (1, 2)),
}


def verdict_on(*found, **changes):
    return judge(analysis(*found, **changes), VARIANT, "default")


def words_on(*found, **changes):
    made = analysis(*found, **changes)
    return verdict_words(made, judge(made, VARIANT, "default"))


CASES = [
    ("no-verdict", 0, {**EQUAL, "sensitive": False}, SAFE),
    ("no-verdict", 0, {**BETTER, "sensitive": False}, SAFE),
    ("no-verdict", 0, {**BETTER, "direction": None}, SAFE),
    # A difference in stability is something that was measured, whatever the primary metric can tell.
    ("keep-baseline", 1, {**BETTER, "sensitive": False}, stability(0, 6, n=6)),
    ("trade-off", 2, {**BETTER, "sensitive": False, "outcome": "not-shown"}, RESCUED),
    ("keep-baseline", 1, BETTER, stability(0, 6, n=6)),
    ("keep-baseline", 1, EQUAL, stability(0, 10, n=10, diverged=False)),
    # Five of five are p = 0.0625, and six of six 0.031: not enough for two places, and too many to adopt.
    ("keep-provisionally", 5, BETTER, stability(0, 5, diverged=False)),
    ("keep-provisionally", 5, BETTER, stability(0, 6, n=6, diverged=False, places=2)),
    ("adopt-in-regime", 2, CHEAP, RESCUED),
    ("trade-off", 2, COSTLY, RESCUED),
    # Rule 2 comes before rule 4: shown worse, but the margins were weighed first.
    ("trade-off", 2, {**WORSE, "margin": 0.05}, RESCUED),
    ("adopt-in-regime", 2, {**WORSE, "margin": 0.5}, RESCUED),
    # ... and before rules 3 and 5.
    ("adopt-in-regime", 2, {**BETTER, "margin": 0.05}, RESCUED),
    ("adopt-in-regime", 2, {**EQUAL, "margin": 0.05}, RESCUED),
    # The smallest effect serves where no margin is registered; what is shown better costs nothing.
    ("adopt-in-regime", 2, {**EQUAL, "smallest_effect": 0.02}, RESCUED),
    ("trade-off", 2, {**EQUAL, "smallest_effect": None}, RESCUED),
    ("adopt-in-regime", 2, {**BETTER, "smallest_effect": None}, RESCUED),
    # All baseline runs diverged: where the baseline failed the variant lost nothing, and the cost is 0 at most.
    ("adopt-in-regime", 2, {"delta": None, "n": 0, "sd": None, "equivalent": None, "missing": SURVIVORS}, RESCUED),
    # Too few pairs survived; the gain is real, but its cost has no bound.
    ("trade-off", 2, {**FEW, "missing": (*SURVIVORS[:2], BROKEN)}, RESCUED),
    ("trade-off", 2, {**FEW, "missing": (UNFINISHED,)}, RESCUED),
    # A gain that is not shown does not count.
    ("keep-baseline", 4, WORSE, stability(2, 0)),
    ("tie", 3, EQUAL, SAFE),
    # Real but small, either way: rule 3 comes before rules 4 and 5.
    ("tie", 3, {**EQUAL, "outcome": "worse"}, SAFE),
    ("tie", 3, {**EQUAL, "outcome": "better"}, SAFE),
    # Equivalent on the survivors only is no tie, unless failing more often than the margin allows is excluded.
    ("keep-provisionally", 6, {**EQUAL, "missing": (BROKEN,)}, stability(0, 1)),
    # ... while a spike that was survived leaves the comparison whole.
    ("tie", 3, EQUAL, stability(0, 1, diverged=False)),
    ("keep-baseline", 4, WORSE, SAFE),
    ("adopt", 5, BETTER, SAFE),
    ("adopt", 5, {**BETTER, "sensitive": True}, SAFE),
    # Few seeds cannot show that the variant is no less stable.
    ("adopt-provisionally", 5, BETTER, stability()),
    ("keep-provisionally", 6, {**BETTER, "missing": (BROKEN,)}, stability(0, 1)),
    ("inconclusive", 6, {}, SAFE),
    ("inconclusive", 6, {"equivalent": None}, SAFE),
    ("inconclusive", 6, {**EQUAL, "smallest_effect": None}, SAFE),
]


@pytest.mark.parametrize(("decision", "rule", "primary", "stable"), CASES)
def test_the_first_rule_that_applies_decides(decision, rule, primary, stable):
    found = verdict_on(comparison(**primary), stable=stable)
    assert (found.decision, found.rule) == (decision, rule)
    assert [check.applies for check in found.checks] == [False] * rule + [True]
    assert found.evidence[0] == "validation_loss/default/layernorm:none"
    assert found.reason == found.checks[-1].reason
    assert words_on(comparison(**primary), stable=stable).recommendation
    assert (found.needs is not None) == (decision in ("inconclusive", "no-verdict", "keep-provisionally"))
    assert (found.tie_break is not None) == (decision == "tie")


def test_a_gain_at_one_learning_rate_is_said_to_be_one():
    advice = words_on(comparison(**BETTER), stable=SAFE).recommendation
    assert "at this budget and the given learning rates" in advice
    assert "was not tested" in advice
    assert "[sweep]" in advice


def test_every_decision_is_reached():
    reached = {case[0] for case in CASES}
    assert reached == set(Decision) == set(RANK)


def test_the_direction_of_the_metric_is_heeded_in_costs():
    higher = {"direction": "higher", "delta": -0.01, "low": -0.04, "high": 0.02, "margin": 0.05}
    found = verdict_on(comparison(**higher), stable=RESCUED)
    assert found.decision == "adopt-in-regime"
    cost = found.trade_off.costs[0]
    assert (cost.estimate, cost.low, cost.high) == (0.01, -0.02, 0.04)
    assert verdict_on(comparison(**{**higher, "low": -0.06}), stable=RESCUED).decision == "trade-off"


def test_a_guard_outside_its_margin_makes_a_trade_off():
    primary = comparison(**CHEAP)
    kept = comparison("ece", role="guard", delta=0.0, low=-0.01, high=0.01, margin=0.02)
    broken = comparison("ece", role="guard", delta=0.02, low=0.0, high=0.04, margin=0.02)
    assert verdict_on(primary, kept, stable=RESCUED).decision == "adopt-in-regime"
    found = verdict_on(primary, broken, stable=RESCUED)
    assert found.decision == "trade-off"
    assert [cost.shown for cost in found.trade_off.costs] == ["kept", "unknown"]
    assert broken.id in found.evidence
    assert found.trade_off.gain_low == pytest.approx(0.219, abs=1e-3)


def test_without_a_guard_the_verdict_says_so():
    assert "No guard is registered" in words_on(comparison(**CHEAP), stable=RESCUED).trade_off


CALIBRATION = {"role": None, "label": "exploratory", "smallest_effect": None}


@pytest.mark.parametrize(
    ("tie_breakers", "first", "second", "favours"),
    [
        (("ece", "speed"), "better", "worse", "layernorm"),
        (("speed", "ece"), "better", "worse", "none"),
        (("ece", "speed"), "not-shown", "worse", "none"),
        (("ece", "speed"), "not-shown", "not-shown", None),
        ((), "better", "better", None),
        (("absent", "ece"), "better", "worse", "layernorm"),
    ],
)
def test_ties_are_broken_in_the_registered_order(tie_breakers, first, second, favours):
    ece = comparison("ece", first, **CALIBRATION)
    speed = comparison("speed", second, direction="higher", **CALIBRATION)
    made = (comparison(**EQUAL), ece, speed)
    found = verdict_on(*made, tie_breakers=tie_breakers)
    assert found.decision == "tie"
    assert found.tie_break.favours == favours
    assert (favours or "the baseline (none)") in words_on(*made, tie_breakers=tie_breakers).recommendation


def test_a_tie_breaker_may_name_a_family():
    score = comparison("spike_score", "better", **CALIBRATION)
    found = verdict_on(comparison(**EQUAL), score, tie_breakers=("stability",))
    assert (found.tie_break.metric, found.tie_break.favours) == ("spike_score", "layernorm")


def test_inconclusive_says_how_many_seeds_it_takes():
    primary = comparison(delta=0.04, sd=0.05, smallest_effect=0.05)
    from ablationlab.stats import pairs_needed, tost_pairs_needed

    needs, text = verdict_on(primary).needs, words_on(primary).needs
    assert needs.seeds_for_difference == pairs_needed(1.0, alpha=0.025)  # Holm over a family of 2
    assert needs.seeds_for_equivalence == tost_pairs_needed(1.0)
    assert f"A new study of {needs.seeds_for_difference} fresh seeds" in text
    # Both would invite to add seeds until it decides.
    assert "in all" not in text
    assert "observed" not in text


@pytest.mark.parametrize(
    ("primary", "says"),
    [
        ({"n": 2}, "At least 3 pairs"),
        ({"sd": 0.0}, "All deltas are equal"),
        ({"sensitive": False}, "More seeds will not help"),
        ({"direction": None}, "better direction"),
        ({"smallest_effect": None}, "No smallest effect is registered"),
        ({"sd": 1e9}, "more than a million"),
    ],
)
def test_inconclusive_names_what_seeds_cannot_mend(primary, says):
    assert says in words_on(comparison(**primary)).needs


def test_a_variant_that_diverges_is_told_to_train_stably_first():
    primary, stable = comparison(**EQUAL, missing=(BROKEN,)), stability(0, 2)
    assert verdict_on(primary, stable=stable).needs.need == "stable-training"
    assert "train stably" in words_on(primary, stable=stable).needs


def test_unknown_stability_is_said_and_the_gain_is_adopted_provisionally():
    made = analysis(comparison(**BETTER)).model_copy(update={"stability": None})
    found = judge(made, VARIANT, "default")
    assert found.decision == "adopt-provisionally"
    assert "its stability, which was not recorded" in verdict_words(made, found).why
    assert found.checks[1].reason == "stability-unknown"


def test_a_missing_primary_metric_decides_nothing():
    found = verdict_on(comparison("perplexity", role=None))
    assert (found.decision, found.reason, found.label) == ("no-verdict", "primary-missing", "exploratory")


def test_an_unregistered_regime_is_judged_as_exploratory():
    hot = comparison(regime="hot", role=None, label="exploratory", **BETTER)
    made = analysis(comparison(**BETTER), hot, regimes=("default", "hot"))
    verdict = decide(made)
    assert [(v.regime, v.label, v.decision) for v in verdict.verdicts] == [
        ("default", "registered", "adopt-provisionally"),
        ("hot", "exploratory", "adopt-provisionally"),
    ]
    assert "leads to test again" in recommendations(made, verdict)[-1]


def test_recommendations_begin_with_what_is_registered_and_mark_what_is_not():
    hot = comparison(regime="hot", role=None, label="exploratory", **BETTER)
    made = analysis(hot, comparison(**BETTER), regimes=("hot", "default"))
    registered, lead, _ = recommendations(made, decide(made))
    assert registered.startswith("layernorm (default): Adopt layernorm provisionally")
    assert lead.startswith("layernorm (hot), exploratory: Adopt layernorm provisionally")


def test_a_verdict_is_a_pure_function_and_survives_the_disk(tmp_path):
    made = analysis(comparison(**EQUAL))
    first, second = decide(made), decide(made)
    assert first == second
    first.replace(tmp_path / "verdict.json")
    assert Verdict.read(tmp_path / "verdict.json") == first
    assert decide(analysis(comparison(**BETTER))).analysis_hash != first.analysis_hash


def test_a_study_with_the_baseline_alone_has_nothing_to_decide():
    made = analysis(variants=("none",))
    verdict = decide(made)
    assert verdict.verdicts == ()
    assert "nothing to decide" in recommendations(made, verdict)[0]


@pytest.mark.parametrize("mean", [-0.05, 0.0])
@pytest.mark.parametrize(
    ("variant", "baseline", "kept"),
    [
        ("sssss", ".....", True),
        ("ss...", ".....", True),
        ("s....", ".....", False),  # within the margin of 20 %
        ("ss...", "s....", False),
        ("ww...", ".....", True),
    ],
)
def test_a_variant_that_fails_beyond_the_margin_as_counted_is_not_adopted(mean, variant, baseline, kept):
    endings = {"none": baseline, "layernorm": variant}
    verdict = studies.verdict_of({"validation_loss": studies.arms(mean, n=5)}, endings=endings)
    assert (verdict.reason == "fails-more") == kept
    assert verdict.decision == ("keep-provisionally" if kept else "adopt-provisionally" if mean else "tie")
    if kept:
        assert verdict.needs.need == "stable-training"
        words = studies.words_of({"validation_loss": studies.arms(mean, n=5)}, endings=endings).recommendation
        assert "more of layernorm's runs fail than the margin of 20 % allows" in plain(words)


def test_many_seeds_show_that_a_few_failures_are_within_the_margin():
    endings = {"none": "." * 60, "layernorm": "ss" + "." * 58}
    assert studies.verdict_of({"validation_loss": studies.arms(-0.05, n=60)}, endings=endings).decision == "adopt"
