"""Simulated studies are decided by the code that decides on real ones, and their rates are those of theory."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from ablationlab.analysis import analyze
from ablationlab.analysis.dataset import Arm
from ablationlab.records.verdict import Answer
from ablationlab.stats import claim_power, compare
from ablationlab.stats.simulation import brief_inference
from simulated import Instabilities, SimulatedTasks, World, _counting_tasks, answers_of, datasets

from .builder import study

PRIMARY = {"metric": "validation_loss", "role": "primary", "smallest_effect": 0.05}
GUARD = {"metric": "token_ece", "role": "guard", "margin": 0.05}
SECOND = {"metric": "next_token_accuracy", "role": "secondary", "smallest_effect": 0.05}
SDS = {"validation_loss": 0.03, "token_ece": 0.03, "next_token_accuracy": 0.03}


def asked(**changes):
    table = {"criteria": [PRIMARY, GUARD, SECOND], "variants": ["none", "layernorm", "rmsnorm"], **changes}
    return study(**table)


def stressed(**changes):
    return asked(**{"regimes": {"hot": {"training": {"lr": 0.01}}}, "seeds": list(range(1, 9)), **changes})


@pytest.mark.parametrize("diverge", [False, True])
def test_the_light_path_decides_as_the_whole_analysis_does(diverge):
    world = World(SDS, {"validation_loss": -0.04}, {"hot": Instabilities(0.6, 0.1, diverge=diverge)})
    for dataset in datasets(stressed(), world, 8, np.random.default_rng(3)):
        light, whole = analyze(dataset), analyze(replace(dataset, brief=False))
        assert answers_of(light) == answers_of(whole)
        outcomes = {comparison.id: comparison.outcome for comparison in whole.comparisons}
        assert all(outcomes[comparison.id] == comparison.outcome for comparison in light.comparisons)


@pytest.mark.parametrize("test", ["paired-t", "sign-flip", "wilcoxon"])
def test_the_brief_numbers_are_those_of_compare(test):
    rng = np.random.default_rng(5)
    values = rng.normal(0.02, 0.05, 6)
    whole = compare(1 + values, np.ones(6), rng=rng, smallest_effect=0.1)
    brief = brief_inference(list(values), interval="paired-t", test=test, alpha=0.05, smallest_effect=0.1)
    expected = whole.intervals["paired-t"]
    assert (brief.interval.low, brief.interval.high) == pytest.approx((expected.low, expected.high))
    assert brief.test.p == pytest.approx(whole.tests[test].p)
    assert brief.equivalence.p == pytest.approx(whole.equivalence.p)


def shares(made, world, studies, seed):
    """How often each answer is given in the default regime, of all variants."""
    given = Counter(
        answer
        for dataset in datasets(made, world, studies, np.random.default_rng(seed))
        for (regime, _), answer in answers_of(analyze(dataset)).items()
        if regime == "default"
    )
    return {answer: given[answer] / given.total() for answer in Answer}


def test_better_is_answered_as_often_as_the_closed_form_says():
    world = World({"validation_loss": 0.05}, {"validation_loss": -0.08})
    power = claim_power(1.6, 5, at_least=1.0)
    rate = shares(study(), world, 300, 1)[Answer.BETTER]
    assert abs(rate - power) < 4 * np.sqrt(power * (1 - power) / 300)


def test_under_the_null_neither_better_nor_worse_is_frequent():
    found = shares(asked(), World(SDS), 250, 2)
    assert found[Answer.BETTER] < 0.045
    assert found[Answer.WORSE] < 0.045


def test_with_a_gate_that_never_opens_nothing_is_measured():
    made = study(
        criteria=[{"metric": "macro_accuracy", "role": "primary", "smallest_effect": 0.01}],
        evaluation={"gate_seeds": [11, 12, 13], "tasks": ["suite"]},
    )
    for gain, share in ((-5.0, 1.0), (50.0, 0.0)):
        world = World({"macro_accuracy": 0.01}, tasks=SimulatedTasks(3, gain, 1.0))
        assert shares(made, world, 20, 1)[Answer.NOT_MEASURED] == share


def test_runs_fail_as_often_as_assumed():
    for diverge in (False, True):
        world = World(SDS, unstable={"hot": Instabilities(1.0, 0.0, diverge=diverge)})
        (dataset,) = datasets(stressed(variants=["none", "layernorm"]), world, 1, np.random.default_rng(4))
        states = {(run.variant, run.state, run.unstable) for run in dataset.runs if run.regime == "hot"}
        failed = ("none", "diverged" if diverge else "finished", True)
        assert states == {failed, ("layernorm", "finished", False)}
        values = dataset.values[Arm("validation_loss", None, "hot", "none")].values()
        assert [isinstance(value, float) for value in values] == [not diverge] * 8


def test_the_gate_of_a_simulated_study_counts_the_tasks_that_gain():
    rng = np.random.default_rng(6)
    counted = [[_counting_tasks(SimulatedTasks(6, gain, 1.0), 5, rng) for _ in range(60)] for gain in (0.0, 10.0)]
    # A one-sided test at 2.5 %: of six tasks that gain nothing 0.15 count, of six that gain much all.
    assert np.mean(counted[0]) < 0.5
    assert np.mean(counted[1]) == 6


def test_tuned_arms_are_fitted_to_their_own_minima():
    sweep = {"lr": [2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3], "selection_seeds": [21, 22]}
    made = study(sweep=sweep, criteria=[{**PRIMARY, "regime": "tuned"}], seeds=list(range(1, 9)))
    world = World({"validation_loss": 1e-6}, {"validation_loss": -0.03}, curvature=0.005)
    for dataset in datasets(made, world, 5, np.random.default_rng(7)):
        arms = [dataset.values[Arm("validation_loss", None, "tuned", name)] for name in ("layernorm", "none")]
        deltas = [arms[0][seed] - arms[1][seed] for seed in range(1, 9)]
        # Whatever the distance of the optima from the grid, their losses differ by the effect.
        assert deltas == pytest.approx([-0.03] * 8, abs=1e-4)
        assert answers_of(analyze(dataset))["tuned", "layernorm"] == Answer.SAME  # within the smallest effect


def test_a_true_effect_at_the_margin_is_called_equivalent_in_at_most_five_percent():
    rng, studies = np.random.default_rng(8), 4000
    ties = 0
    for deltas in rng.normal(0.05, 0.03, (studies, 10)):
        found = brief_inference(list(deltas), interval="paired-t", test="paired-t", alpha=0.05, smallest_effect=0.05)
        ties += found.equivalence.equivalent
    assert ties / studies == pytest.approx(0.05, abs=3 * np.sqrt(0.05 * 0.95 / studies))
