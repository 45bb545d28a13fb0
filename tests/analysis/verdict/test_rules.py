"""The five rules: each decision reachable, the first that applies wins, nothing decides on what it cannot know."""

from __future__ import annotations

import pytest

from ablationlab.analysis.verdict import decide, judge
from ablationlab.records.analysis import Missing, Pair
from ablationlab.records.verdict import Verdict

from .maker import VARIANT, analysis, comparison, stability

RESCUED = stability(5, 0)
WORSE = {"outcome": "worse", "delta": 0.3, "low": 0.2, "high": 0.4}
BETTER = {"outcome": "better", "delta": -0.3, "low": -0.4, "high": -0.2}
EQUAL = {"delta": 0.001, "low": -0.01, "high": 0.012, "equivalent": True}
CHEAP = {"delta": 0.01, "low": -0.02, "high": 0.04, "margin": 0.05}
COSTLY = {"delta": 0.04, "low": 0.01, "high": 0.07, "margin": 0.05}
SURVIVORS = tuple(Missing(seed=s, arm="none", reason="diverged", why="diverged at step 3") for s in range(1, 6))

BROKEN = Missing(seed=3, arm=VARIANT, reason="diverged", why="diverged at step 3")
UNFINISHED = Missing(seed=3, arm="none", reason="not-finished", why="not finished")
FEW = {
    "low": None,
    "high": None,
    "n": 2,
    "pairs": tuple(Pair(seed=s, variant=1.0, reference=1.0, delta=0.01) for s in (1, 2)),
}


def verdict_on(*found, **changes):
    return judge(analysis(*found, **changes), VARIANT, "default")


CASES = [
    ("adopt-in-regime", 1, CHEAP, RESCUED),
    ("trade-off", 1, COSTLY, RESCUED),
    # Rule 1 comes before rule 2: significantly worse, but the margins were weighed first.
    ("trade-off", 1, {**WORSE, "margin": 0.05}, RESCUED),
    ("adopt-in-regime", 1, {**WORSE, "margin": 0.5}, RESCUED),
    # ... and before rule 3 and rule 4.
    ("adopt-in-regime", 1, {**BETTER, "margin": 0.05}, RESCUED),
    ("adopt-in-regime", 1, {**EQUAL, "margin": 0.05}, RESCUED),
    # The smallest effect serves where no margin is registered; without either there is none to keep.
    ("adopt-in-regime", 1, {**EQUAL, "smallest_effect": 0.02}, RESCUED),
    ("trade-off", 1, {**CHEAP, "margin": None, "smallest_effect": None}, RESCUED),
    # No baseline run survived, every variant run did: it cannot have lost.
    ("adopt-in-regime", 1, {"delta": None, "n": 0, "missing": SURVIVORS, "outcome": "not-tested"}, RESCUED),
    # Two survivors bound nothing by themselves.
    ("trade-off", 1, {**CHEAP, "low": None, "high": None, "n": 2}, RESCUED),
    # With the pairs whose baseline diverged, counted as no cost, they may; but not where the variant alone diverged.
    ("adopt-in-regime", 1, {**CHEAP, **FEW, "missing": SURVIVORS[2:]}, RESCUED),
    ("trade-off", 1, {**CHEAP, **FEW, "margin": 0.001, "missing": SURVIVORS[2:]}, RESCUED),
    ("trade-off", 1, {**CHEAP, **FEW, "missing": (*SURVIVORS[3:], BROKEN)}, RESCUED),
    ("trade-off", 1, {**CHEAP, **FEW, "missing": (UNFINISHED,) * 3}, RESCUED),
    # An unstable baseline whose rescue is not shown does not fire rule 1.
    ("keep-baseline", 2, WORSE, stability(2, 0)),
    ("adopt", 3, BETTER, stability(2, 0)),
    ("keep-baseline", 2, WORSE, stability()),
    # Worse although equivalent (a small, certain loss): rule 2 comes before rule 4.
    ("keep-baseline", 2, {**EQUAL, "outcome": "worse"}, stability()),
    ("adopt", 3, BETTER, stability()),
    ("adopt", 3, {**EQUAL, "outcome": "better"}, stability()),
    # Better, but less stable: not adopted.
    ("inconclusive", 5, BETTER, stability(0, 1)),
    ("tie", 4, EQUAL, stability()),
    # Equivalent on the survivors only is no tie.
    ("inconclusive", 5, EQUAL, stability(0, 1)),
    # ... while a spike that was survived leaves the comparison whole.
    ("tie", 4, EQUAL, stability(0, 1, diverged=False)),
    ("inconclusive", 5, {}, stability()),
    ("inconclusive", 5, {"equivalent": None}, stability()),
    ("inconclusive", 5, {**EQUAL, "smallest_effect": None}, stability()),
    ("inconclusive", 5, {**BETTER, "direction": None}, stability()),
    ("inconclusive", 5, {**EQUAL, "sensitive": False}, stability()),
    ("inconclusive", 5, {**BETTER, "sensitive": False}, stability()),
    ("adopt", 3, {**BETTER, "sensitive": True}, stability()),
]


@pytest.mark.parametrize(("decision", "rule", "primary", "stable"), CASES)
def test_the_first_rule_that_applies_decides(decision, rule, primary, stable):
    found = verdict_on(comparison(**primary), stable=stable)
    assert (found.decision, found.rule) == (decision, rule)
    assert [check.applies for check in found.checks] == [False] * (rule - 1) + [True]
    assert found.evidence[0] == "validation_loss/default/layernorm:none"
    assert found.recommendation
    assert (found.needs is not None) == (decision == "inconclusive")
    assert (found.tie_break is not None) == (decision == "tie")


def test_a_gain_at_one_learning_rate_is_said_to_be_one():
    advice = verdict_on(comparison(**BETTER), stable=stability()).recommendation
    assert "at the same learning rate" in advice
    assert "was not asked" in advice
    assert "[sweep]" in advice


def test_every_decision_is_reached():
    reached = {case[0] for case in CASES}
    assert reached == {"adopt", "adopt-in-regime", "trade-off", "keep-baseline", "tie", "inconclusive"}


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
    assert [cost.within for cost in found.trade_off.costs] == [True, False]
    assert broken.id in found.evidence
    assert found.trade_off.gain_low == pytest.approx(0.131, abs=1e-3)


def test_without_a_guard_the_verdict_says_so():
    assert "No guard is registered" in verdict_on(comparison(**CHEAP), stable=RESCUED).trade_off.text


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
    found = verdict_on(comparison(**EQUAL), ece, speed, tie_breakers=tie_breakers)
    assert found.decision == "tie"
    assert found.tie_break.favours == favours
    assert (favours or "the baseline (none)") in found.recommendation


def test_a_tie_breaker_may_name_a_family():
    score = comparison("spike_score", "better", **CALIBRATION)
    found = verdict_on(comparison(**EQUAL), score, tie_breakers=("stability",))
    assert (found.tie_break.metric, found.tie_break.favours) == ("spike_score", "layernorm")


def test_inconclusive_says_how_many_seeds_it_takes():
    found = verdict_on(comparison(delta=0.04, sd=0.05, smallest_effect=0.05))
    from ablationlab.stats import pairs_needed, tost_pairs_needed

    needs = found.needs
    assert needs.seeds_for_difference == pairs_needed(1.0, alpha=0.025)  # Holm over a family of 2
    assert needs.seeds_for_equivalence == tost_pairs_needed(1.0)
    assert needs.seeds_at_observed_effect == pairs_needed(0.8, alpha=0.025)
    assert f"{needs.seeds_for_difference} seeds" in needs.text


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
    assert says in verdict_on(comparison(**primary)).needs.text


def test_a_variant_that_diverges_is_told_to_train_stably_first():
    assert "make it train stably" in verdict_on(comparison(**EQUAL), stable=stability(0, 2)).needs.text


def test_unknown_stability_is_said_and_does_not_block():
    found = judge(analysis(comparison(**BETTER)).model_copy(update={"stability": None}), VARIANT, "default")
    assert found.decision == "adopt"
    assert "stability was not recorded" in found.why
    assert found.checks[0].why == "nothing is known of the runs' stability"


def test_a_missing_primary_metric_decides_nothing():
    found = verdict_on(comparison("perplexity", role=None))
    assert found.decision == "inconclusive"
    assert "primary metric is not in the data" in found.why
    assert found.label == "exploratory"


def test_an_unregistered_regime_is_judged_as_exploratory():
    hot = comparison(regime="hot", role=None, label="exploratory", **BETTER)
    made = analysis(comparison(**BETTER), hot, regimes=("default", "hot"))
    verdict = decide(made)
    assert [(v.regime, v.label, v.decision) for v in verdict.verdicts] == [
        ("default", "registered", "adopt"),
        ("hot", "exploratory", "adopt"),
    ]
    assert "leads to be tested again" in verdict.recommendation


def test_a_verdict_is_a_pure_function_and_survives_the_disk(tmp_path):
    made = analysis(comparison(**EQUAL))
    first, second = decide(made), decide(made)
    assert first == second
    first.replace(tmp_path / "verdict.json")
    assert Verdict.read(tmp_path / "verdict.json") == first
    assert decide(analysis(comparison(**BETTER))).analysis_hash != first.analysis_hash


def test_a_study_with_the_baseline_alone_has_nothing_to_decide():
    verdict = decide(analysis(variants=("none",)))
    assert verdict.verdicts == ()
    assert "nothing to decide" in verdict.recommendation
