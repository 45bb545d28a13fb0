"""The rules: each answer reachable, the first that applies wins, nothing is answered by what cannot be known."""

from __future__ import annotations

import pytest

from ablationlab.analysis.verdict import decide, judge
from ablationlab.records.analysis import Missing
from ablationlab.records.settings import Criterion
from ablationlab.records.verdict import Advice, Answer, Lack, Standing, Verdict
from ablationlab.stats import Caveat, CaveatCode
from ablationlab.stats.results import Doubt

from . import studies
from .maker import BASELINE, VARIANT, analysis, comparison, stability

RESCUED, SAFE = stability(6, 0, n=6), stability(n=40)
WORSE = {"outcome": "worse", "delta": 0.3, "low": 0.2, "high": 0.4}
BETTER = {"outcome": "better", "delta": -0.3, "low": -0.4, "high": -0.2}
SAME = {"delta": 0.001, "low": -0.01, "high": 0.012, "equivalent": True}
SURVIVORS = tuple(Missing(seed=s, arm=BASELINE, reason="diverged") for s in range(1, 6))
NOBODY = {"delta": None, "n": 0, "sd": None, "equivalent": None, "missing": SURVIVORS}


def verdict_on(*found, **changes):
    return judge(analysis(*found, **changes), VARIANT, "default")


CASES = [
    ("not measured", "no verdict", {**SAME, "sensitive": False}, SAFE),
    ("not measured", "no verdict", {**BETTER, "sensitive": False}, SAFE),
    ("not measured", "no verdict", {**BETTER, "direction": None}, SAFE),
    # A difference in stability is something that was measured, whatever the primary metric can tell.
    ("unstable", "keep the baseline", {**BETTER, "sensitive": False}, stability(0, 6, n=6)),
    ("more stable", "trade-off", {**BETTER, "sensitive": False}, RESCUED),
    ("unstable", "keep the baseline", BETTER, stability(0, 6, n=6)),
    # Three net failures beyond the margin are unstable as counted, two are not; four of twenty are within the margin.
    ("unstable", "keep the baseline", BETTER, stability(0, 3)),
    ("better", "adopt", BETTER, stability(0, 2)),
    ("unstable", "keep the baseline", BETTER, stability(0, 3, n=12, margin=0.2)),
    ("better", "adopt", BETTER, stability(0, 3, n=20, margin=0.2)),
    ("more stable", "adopt", {"delta": 0.01, "low": -0.02, "high": 0.04, "margin": 0.05}, RESCUED),
    ("more stable", "trade-off", {"delta": 0.04, "low": 0.01, "high": 0.07, "margin": 0.05}, RESCUED),
    ("more stable", "keep the baseline", {**WORSE, "margin": 0.05}, RESCUED),
    ("more stable", "adopt", {**WORSE, "margin": 0.5}, RESCUED),
    # The smallest effect serves where no margin is registered.
    ("more stable", "adopt", {**SAME, "smallest_effect": 0.02}, RESCUED),
    ("more stable", "trade-off", {**SAME, "smallest_effect": None}, RESCUED),
    # Where every run of the baseline diverged there is nothing to lose.
    ("more stable", "adopt", NOBODY, RESCUED),
    ("more stable", "trade-off", {**NOBODY, "missing": SURVIVORS[:2]}, RESCUED),
    # A gain that is not shown does not count: five of five are p = 0.0625.
    ("worse", "keep the baseline", WORSE, stability(5, 0)),
    ("worse", "keep the baseline", WORSE, SAFE),
    ("better", "adopt", BETTER, SAFE),
    ("better", "adopt", {**BETTER, "sensitive": True}, SAFE),
    ("same", "the simpler arm", SAME, SAFE),
    # Shown, and smaller than the smallest effect.
    ("same", "the simpler arm", {**SAME, "outcome": "worse"}, SAFE),
    ("undecided", "keep the baseline", {**BETTER, "delta": -0.01, "low": -0.03}, SAFE),
    ("undecided", "keep the baseline", {**WORSE, "delta": 0.01, "high": 0.03}, SAFE),
    ("worse", "keep the baseline", {**WORSE, "smallest_effect": None}, SAFE),
    ("undecided", "keep the baseline", {}, SAFE),
    ("undecided", "keep the baseline", {**SAME, "missing": SURVIVORS[:1]}, SAFE),
]


@pytest.mark.parametrize(("answer", "advice", "primary", "stable"), CASES)
def test_the_first_rule_that_applies_answers(answer, advice, primary, stable):
    found = verdict_on(comparison(**primary), stable=stable)
    assert (found.answer, found.advice) == (answer, advice)
    assert bool(found.lacks) == (answer in ("undecided", "not measured"))
    assert (found.tie_break is not None) == (answer == "same")
    assert found.as_counted == (answer == "unstable" and stable.gains[0].outcome != "less-stable")


def test_every_answer_is_reached():
    assert {case[0] for case in CASES} == set(Answer)


@pytest.mark.parametrize(
    ("lack", "primary"),
    [
        ("three pairs", {"n": 2, "low": None, "high": None}),
        ("size", {**BETTER, "delta": -0.01, "low": -0.03}),
        ("smallest effect", {"smallest_effect": None}),
        ("doubt", {"doubt": Doubt(0.015, 0.015)}),
        ("seeds", {}),
        ("refused for divergence", {"caveats": (Caveat(CaveatCode.REFUSED_FOR_DIVERGENCE),), "delta": None}),
        ("sensitive tasks", {"sensitive": False}),
        ("direction", {"direction": None}),
        ("best rates", {"caveats": (Caveat(CaveatCode.GRID_RATES),)}),
    ],
)
def test_what_is_lacking_is_said(lack, primary):
    assert verdict_on(comparison(**primary), stable=SAFE).lacks[0] == lack


def guard(low, high, outcome="not-shown", **more):
    given = {
        "p": 0.04 if low > 0 else 0.5,
        "role": "guard",
        "delta": (low + high) / 2,
        "low": low,
        "high": high,
        "margin": 0.05,
        "smallest_effect": None,
    }
    return comparison("token_ece", outcome, **given, **more)


@pytest.mark.parametrize(
    ("found", "standing", "advice"),
    [
        (guard(-0.01, 0.04), "kept", "adopt"),
        (guard(0.01, 0.04), "kept", "adopt"),
        (guard(-0.01, 0.06), "open", "adopt"),
        (guard(0.01, 0.06), "broken", "trade-off"),
        (guard(0.06, 0.09), "broken", "trade-off"),
    ],
)
def test_a_guard_is_kept_open_or_broken(found, standing, advice):
    verdict = verdict_on(comparison(**BETTER), found, stable=SAFE)
    assert [(one.name, one.standing) for one in verdict.guards] == [("token_ece", standing), ("failures", "kept")]
    assert (verdict.advice, verdict.confirmed) == (advice, standing == "kept")
    assert verdict.at_a_cost == ((found.id,) if standing == "broken" else ())


def test_a_secondary_that_is_shown_worse_makes_a_cost():
    other = comparison("next_token_accuracy", "worse", role="secondary", direction="higher")
    verdict = verdict_on(comparison(**BETTER), other, stable=SAFE)
    assert (verdict.advice, verdict.at_a_cost) == (Advice.TRADE_OFF, (other.id,))


def test_a_guard_that_nobody_measured_is_open():
    criteria = ({"metric": "token_ece", "role": "guard", "margin": 0.01},)
    verdict = verdict_on(comparison(**BETTER), stable=SAFE, criteria=criteria)
    assert (verdict.guards[0].standing, verdict.guards[0].comparison) == (Standing.OPEN, None)
    assert not verdict.confirmed


def test_few_seeds_leave_the_failures_open():
    verdict = verdict_on(comparison(**BETTER), stable=stability())
    assert (verdict.answer, verdict.confirmed) == (Answer.BETTER, False)
    assert verdict.guards[-1].standing == Standing.OPEN


def test_a_budget_that_nobody_knows_is_never_confirmed():
    verdict = verdict_on(comparison(**BETTER), stable=SAFE, budget_unknown=(VARIANT,))
    assert (verdict.answer, verdict.budget_unknown, verdict.confirmed) == (Answer.BETTER, True, False)


@pytest.mark.parametrize(
    ("tie_breakers", "first", "second", "favours"),
    [
        (("calibration", "throughput"), "better", "worse", VARIANT),
        (("throughput", "calibration"), "better", "worse", BASELINE),
        (("calibration", "throughput"), "not-shown", "worse", BASELINE),
        (("calibration", "throughput"), "not-shown", "not-shown", None),
        ((), "better", "worse", None),
    ],
)
def test_ties_are_broken_in_the_registered_order(tie_breakers, first, second, favours):
    others = comparison("token_ece", first, role=None), comparison("throughput", second, role=None, direction="higher")
    verdict = verdict_on(comparison(**SAME), *others, stable=SAFE, tie_breakers=tie_breakers)
    assert verdict.tie_break.favours == favours
    assert verdict.advice == (Advice.SIMPLER if favours is None else Advice.FAVOURED)


def test_a_tie_breaker_does_not_speak_for_a_variant_with_a_broken_guard():
    faster = comparison("throughput", "better", role=None, direction="higher")
    verdict = verdict_on(comparison(**SAME), guard(0.01, 0.06), faster, stable=SAFE, tie_breakers=("throughput",))
    assert (verdict.tie_break.metric, verdict.tie_break.favours) == ("throughput", None)


def test_an_unregistered_regime_is_exploratory():
    assert verdict_on(comparison(**BETTER, label="exploratory"), stable=SAFE).label == "exploratory"


def test_a_verdict_is_a_pure_function_and_survives_the_disk(tmp_path):
    made = analysis(comparison(**SAME), guard(0.01, 0.06))
    decide(made).replace(tmp_path / "verdict.json")
    assert Verdict.read(tmp_path / "verdict.json") == decide(made)


def test_a_study_with_the_baseline_alone_has_nothing_to_decide():
    assert decide(analysis(variants=(BASELINE,))).verdicts == ()


def test_without_a_seed_the_answer_may_be_another_and_the_seed_is_named():
    costs = studies.arms(-0.012, 0.004, 8)
    costs["layernorm"][3] += 0.02
    found = studies.verdict_of(
        {"validation_loss": costs}, (Criterion(metric="validation_loss", role="primary", smallest_effect=0.01),)
    )
    assert found.left_out == 8
    assert (found.answer, [(one.seed, one.answer) for one in found.without]) == ("undecided", [(4, "better")])


def test_a_missing_primary_is_named():
    assert verdict_on(stable=SAFE).lacks == (Lack.PRIMARY,)
