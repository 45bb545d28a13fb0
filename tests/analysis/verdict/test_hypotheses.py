"""H0 and H1a are judged on sensitive macro accuracy alone; H1b where the baseline is unstable."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import ValidationError

from ablationlab.analysis import analyze
from ablationlab.analysis.verdict import decide
from ablationlab.analysis.verdict.hypotheses import judge_hypotheses
from ablationlab.analysis.verdict.without import without
from ablationlab.records.settings import Criterion, Hypothesis, Stability
from ablationlab.stats import Caveat, CaveatCode

from .maker import analysis, comparison, stability
from .studies import LOSS, RESTORES, arms, dataset


def accuracy(outcome="not-shown", **more):
    delta = {"better": 0.3, "worse": -0.3}.get(outcome, 0.0)
    given = {"direction": "higher", "role": "secondary", "sensitive": True, "delta": delta, **more}
    return comparison("macro_accuracy", outcome, **given)


SMOOTHER = comparison(
    "final_gradient_norm", "better", role="stability", delta=-0.78, low=-0.9, high=-0.7, transform="log"
)


@pytest.mark.parametrize(
    ("found", "stable", "h0", "h1a"),
    [
        ([], stability(), "undecided", "undecided"),
        ([accuracy("worse", sensitive=False)], stability(), "undecided", "undecided"),
        ([accuracy(equivalent=True, sensitive=False)], stability(), "undecided", "undecided"),
        ([accuracy("worse", sensitive=None)], stability(), "undecided", "undecided"),
        ([accuracy("worse", label="exploratory")], stability(), "undecided", "undecided"),
        ([accuracy(equivalent=True)], stability(), "supported", "rejected"),
        ([accuracy("better")], stability(), "rejected", "rejected"),
        ([accuracy("worse")], stability(), "rejected", "undecided"),
        ([accuracy("worse"), SMOOTHER], stability(), "rejected", "supported"),
        ([accuracy("worse")], stability(6, 0, n=6), "undecided", "supported"),
        # Exact and two-sided, five seeds of five are p = 0.0625.
        ([accuracy("worse")], stability(5, 0), "undecided", "undecided"),
        # Only registered measures count, and only what is shown lower.
        ([accuracy("worse"), comparison("spike_score", "better", role=None)], stability(), "rejected", "undecided"),
        ([accuracy("worse"), comparison("mean_gradient_norm", role="stability")], stability(), "rejected", "undecided"),
        ([accuracy()], stability(), "undecided", "undecided"),
        ([accuracy(equivalent=True)], stability(1, 0), "undecided", "rejected"),
    ],
)
def test_h0_and_h1a(found, stable, h0, h1a):
    verdicts = judge_hypotheses(analysis(comparison(), *found, stable=stable))
    assert (verdicts["H0"].status, verdicts["H1a"].status) == (h0, h1a)
    if h0 == "supported":
        assert verdicts["H0"].evidence == ("macro_accuracy/default/layernorm:none",)


def test_without_macro_accuracy_no_other_metric_steps_in():
    made = analysis(comparison("next_token_accuracy", "worse", direction="higher"))
    verdict = judge_hypotheses(made)["H0"]
    assert (verdict.status, verdict.evidence, verdict.answers) == ("undecided", (), {})


@pytest.mark.parametrize(
    ("stable", "status"),
    [
        (stability(0, 0), "undecided"),
        (stability(6, 0, n=6), "supported"),
        (stability(5, 0), "undecided"),
        (stability(2, 0), "undecided"),
        (stability(5, 5), "undecided"),
        (stability(10, 2, n=10), "supported"),
        (stability(10, 2, n=10, places=8), "undecided"),
    ],
)
def test_h1b(stable, status):
    verdict = judge_hypotheses(analysis(comparison(), stable=stable))["H1b"]
    assert verdict.status == status
    assert bool(verdict.evidence) == (stable.arms[0].unstable_runs > 0)


def test_h1b_is_rejected_where_the_variant_is_shown_to_be_less_stable():
    made = stability(1, 10, n=10)
    assert judge_hypotheses(analysis(comparison(), stable=made))["H1b"].status == "rejected"


def test_h1b_is_undecided_without_curves():
    made = analysis(comparison()).model_copy(update={"stability": None})
    assert judge_hypotheses(made)["H1b"].status == "undecided"


def swept(outcome="not-shown", *, delta=-0.2, low=-0.4, high=0.1, label="registered", reference_mean=0.3, **more):
    """The share of the sweep's rates at which runs are unstable, against the baseline's."""
    return comparison(
        "unstable_share",
        outcome,
        regime="sweep",
        role="secondary",
        delta=delta,
        low=low,
        high=high,
        label=label,
        reference_mean=reference_mean,
        **{"p": 0.5 if outcome == "not-shown" else 0.001, **more},
    )


@pytest.mark.parametrize(
    ("found", "stable", "status"),
    [
        (swept("better", high=-0.05), stability(), "supported"),
        (swept(), stability(), "undecided"),
        (swept("worse", delta=0.3, low=0.1, high=0.5), stability(), "rejected"),
        (swept("better", high=-0.05, label="exploratory"), stability(), "undecided"),
        (swept("better", high=-0.05, reference_mean=0.0), stability(), "undecided"),
        (swept("better", high=-0.05), stability(5, 5, places=2), "supported"),
        (swept("better", high=-0.05, p=0.04), stability(5, 5, places=2), "undecided"),  # not significant in two places
        (swept(), stability(6, 0, n=6, places=2), "undecided"),  # two places: p = 0.031 for one is 0.062 for both
        (swept(), stability(8, 0, n=8, places=2), "supported"),
        (swept("worse", delta=0.3, low=0.1, high=0.5), stability(2, 0), "undecided"),
        (swept(delta=0.0, low=None, high=None), stability(), "undecided"),
    ],
)
def test_h1b_takes_the_sweep_as_one_registered_comparison(found, stable, status):
    verdict = judge_hypotheses(analysis(comparison(), found, stable=stable))["H1b"]
    assert verdict.status == status
    counts = found.label == "registered" and bool(found.reference_mean)
    if not stable.arms[0].unstable_runs:
        assert bool(verdict.evidence) == counts


def test_h1b_names_the_answer_at_every_place():
    verdict = judge_hypotheses(analysis(comparison(), swept(), stable=stability(8, 0, n=8, places=2)))["H1b"]
    assert verdict.answers == {"default/layernorm": "more stable", "sweep/layernorm": "undecided"}


def test_h1b_does_not_count_tuned_arms_whose_rates_may_differ():
    made = stability(6, 0, n=6)
    tuned = made.model_copy(
        update={
            "arms": tuple(arm.model_copy(update={"regime": "tuned"}) for arm in made.arms),
            "gains": tuple(replace(gain, regime="tuned", registered=False, places=None) for gain in made.gains),
        }
    )
    verdict = judge_hypotheses(analysis(comparison(), stable=tuned, regimes=("default", "tuned")))["H1b"]
    assert (verdict.status, verdict.evidence) == ("undecided", ())


def test_h1a_rests_on_the_loss_of_accuracy_and_on_what_is_smoother():
    worse = accuracy("worse")
    verdict = judge_hypotheses(analysis(comparison(), worse, SMOOTHER))["H1a"]
    assert (verdict.status, verdict.answers) == ("supported", {"default/layernorm": "worse"})
    assert verdict.evidence == (worse.id, SMOOTHER.id)


def test_a_study_without_hypotheses_has_none():
    assert judge_hypotheses(analysis(comparison(), hypotheses=())) == {}


def test_a_hypothesis_may_speak_of_a_metric_that_is_not_scored_on_tasks():
    hypothesis = Hypothesis(name="H", statement="The loss stays.", rule="no-change", metric="validation_loss")
    verdict = judge_hypotheses(analysis(comparison(equivalent=True), hypotheses=(hypothesis,)))["H"]
    assert (verdict.status, verdict.statement) == ("supported", "The loss stays.")
    assert (verdict.rule, verdict.metric) == ("no-change", "validation_loss")


@pytest.mark.parametrize(
    ("rule", "metric", "problem"),
    [("no-change", None, "needs a metric"), ("restores-stability", "validation_loss", "takes no metric")],
)
def test_a_rule_has_a_metric_where_it_needs_one(rule, metric, problem):
    with pytest.raises(ValidationError, match=problem):
        Hypothesis(name="H", statement="So.", rule=rule, metric=metric)


def test_a_comparison_at_grid_rates_shows_nothing_and_is_not_left_out():
    """With it left out, H0 would be supported and H1a rejected by the others alone."""
    fitted = accuracy(equivalent=True)
    grid = accuracy(equivalent=True, variant="rmsnorm").model_copy(update={"caveats": (Caveat(CaveatCode.GRID_RATES),)})
    for outcome in ("not-shown", "worse"):
        beside = grid.model_copy(update={"outcome": outcome})
        verdicts = judge_hypotheses(analysis(comparison(), fitted, beside, stable=stability()))
        assert (verdicts["H0"].status, verdicts["H1a"].status) == ("undecided", "undecided")


def rescued(more=(), **changes):
    """A study whose eight baselines all spike and whose sealed variant never does; *more* variants joined it later."""
    named = {name: arms(0.0, n=8)["layernorm"] for name in more}
    ended = {"none": "s" * 8, "layernorm": "." * 8, **dict.fromkeys(more, "." * 8)}
    norms = {"none": arms(0.0, n=8)["none"], **dict.fromkeys(("layernorm", *more), arms(-0.1, n=8)["layernorm"])}
    values = {"validation_loss": {**arms(0.0, n=8), **named}, "final_gradient_norm": norms}
    smooth = Stability(smoothness=("final_gradient_norm",))
    made = dataset(values, endings=ended, hypotheses=(RESTORES,), settings=smooth)
    return analyze(replace(made, added=frozenset(more), **changes))


def test_seeds_that_were_added_later_decide_no_hypothesis_on_stability():
    made = rescued(registered=False)
    (h1b,) = judge_hypotheses(made).values()
    assert (h1b.status, h1b.evidence) == ("undecided", ())
    (verdict,) = decide(made).verdicts
    assert (verdict.answer, verdict.label) == ("more stable", "exploratory")


def test_variants_that_were_added_later_change_nothing_about_the_sealed_ones():
    alone, joined = rescued(), rescued(more=[f"later-{number}" for number in range(8)])
    sealed = [made.stability.gain("layernorm", "none", "default") for made in (alone, joined)]
    assert sealed[0] == sealed[1]
    assert alone.stability.places == joined.stability.places == 2  # failed, unstable
    assert {
        made.comparison("final_gradient_norm", "default", "layernorm", "none").family_size for made in (alone, joined)
    } == {1}
    later = joined.stability.gain("later-0", "none", "default")
    assert (later.registered, later.places, later.p_adjusted) == (False, 18, pytest.approx(18 * 2 / 2**8))
    h1b = judge_hypotheses(joined)["H1b"]
    assert (h1b.status, h1b.evidence) == ("supported", (sealed[0].id,))
    assert {verdict.variant: verdict.answer for verdict in decide(joined).verdicts}["layernorm"] == "more stable"
    left_out = without(joined, 1).stability
    assert left_out.places == 2
    assert left_out.gain("later-0", "none", "default").registered is False


def test_variants_that_were_added_later_support_no_hypothesis():
    made = rescued(more=["layernorm"])
    assert made.stability.gain("layernorm", "none", "default").outcome == "more-stable"
    assert judge_hypotheses(made)["H1b"].status == "undecided"


def test_a_hypothesis_on_a_guard_is_corrected_over_its_variants():
    """Two tests at p = 0.03: a guard each, uncorrected, and no claim of a hypothesis together."""
    guard = Criterion(metric="token_ece", role="guard", margin=0.001)
    n, t = 10, 2.5728  # two-sided p = 0.03 at 9 degrees of freedom
    moved = arms(0.01, sd=0.01 * n**0.5 / t, n=n, start=0.1)
    h0 = Hypothesis(name="H0", statement="No change.", rule="no-change", metric="token_ece")

    def judged(*variants):
        ece = {"none": moved["none"], **dict.fromkeys(variants, moved["layernorm"])}
        loss = {"none": arms(0.0)["none"], **dict.fromkeys(variants, arms(0.0)["layernorm"])}
        made = analyze(dataset({"validation_loss": loss, "token_ece": ece}, (LOSS, guard), hypotheses=(h0,)))
        assert made.comparison("token_ece", "default", "layernorm", "none").p == pytest.approx(0.03, abs=1e-4)
        return judge_hypotheses(made)["H0"].status

    assert judged("layernorm") == "rejected"
    assert judged("layernorm", "rmsnorm") == "undecided"


@pytest.mark.parametrize("deleted", [("none", "layernorm"), ("none",), ("layernorm",)])
def test_a_registered_regime_whose_runs_are_deleted_leaves_no_change_open(deleted):
    there, h0 = dict.fromkeys(("none", "layernorm"), "." * 10), "H0"
    hypothesis = Hypothesis(name=h0, statement="The loss stays.", rule="no-change", metric="validation_loss")
    criteria = (LOSS, LOSS.model_copy(update={"regime": "stress"}))

    def status(stress):
        made = dataset({"validation_loss": arms(0.0)}, criteria, regimes={"default": there, "stress": stress})
        return judge_hypotheses(analyze(replace(made, hypotheses=(hypothesis,), brief=True)))[h0].status

    assert status(there) == "supported"
    assert status(there | dict.fromkeys(deleted, "m" * 10)) == "undecided"


def test_fewer_divergences_restore_no_stability_where_more_runs_spike():
    ended = {"none": "d" * 8 + "." * 22, "layernorm": "." * 8 + "s" * 22}
    made = replace(dataset({"validation_loss": arms(0.0, n=30)}, endings=ended), hypotheses=(RESTORES,), brief=True)
    decided = decide(analyze(made))
    assert decided.verdicts[0].answer == "unstable"
    assert decided.hypotheses["H1b"].status == "undecided"
