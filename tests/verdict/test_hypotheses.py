"""H0 and H1a are judged on sensitive macro accuracy alone; H1b where the baseline is unstable."""

from __future__ import annotations

import pytest

from ablationlab.verdict.hypotheses import hypotheses

from .maker import analysis, comparison, stability


def accuracy(outcome="not-shown", **more):
    given = {"direction": "higher", "role": "secondary", "sensitive": True, **more}
    return comparison("macro_accuracy", outcome, **given)


SMOOTHER = comparison("spike_score", "better", role=None)


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
        ([accuracy("worse")], stability(5, 0), "undecided", "supported"),
        ([accuracy()], stability(), "undecided", "undecided"),
        ([accuracy(equivalent=True)], stability(1, 0), "undecided", "rejected"),
    ],
)
def test_h0_and_h1a(found, stable, h0, h1a):
    verdicts = hypotheses(analysis(comparison(), *found, stable=stable))
    assert (verdicts["H0"].status, verdicts["H1a"].status) == (h0, h1a)
    if h0 == "supported":
        assert verdicts["H0"].evidence == ("macro_accuracy/default/layernorm:none",)


def test_without_macro_accuracy_the_reason_is_said_and_no_other_metric_steps_in():
    verdicts = hypotheses(analysis(comparison("next_token_accuracy", "worse", direction="higher")))
    assert verdicts["H0"].status == "undecided"
    assert verdicts["H0"].why == "zero-/few-shot macro accuracy is not in the records"
    assert verdicts["H0"].evidence == ()


def test_at_chance_is_never_evidence():
    why = hypotheses(analysis(accuracy(equivalent=True, sensitive=False)))["H0"].why
    assert "not shown to be sensitive" in why
    assert "because I say so" in why


@pytest.mark.parametrize(
    ("stable", "status"),
    [
        (stability(0, 0), "undecided"),
        (stability(5, 0), "supported"),
        (stability(2, 0), "undecided"),
        (stability(5, 5), "undecided"),
        (stability(10, 2, n=10), "supported"),
    ],
)
def test_h1b(stable, status):
    verdict = hypotheses(analysis(comparison(), stable=stable))["H1b"]
    assert verdict.status == status
    assert bool(verdict.evidence) == (stable.arms[0].unstable_runs > 0)


def test_h1b_is_rejected_where_the_variant_is_shown_to_be_less_stable():
    made = stability(1, 10, n=10)
    assert hypotheses(analysis(comparison(), stable=made))["H1b"].status == "rejected"


def test_h1b_is_undecided_without_curves():
    made = analysis(comparison()).model_copy(update={"stability": None})
    assert hypotheses(made)["H1b"].why == "nothing is known of the runs' stability"
