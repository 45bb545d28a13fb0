"""Simulated studies are decided by the code that decides on real ones, and their rates are those of theory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ablationlab.analysis import analyze, power_plans
from ablationlab.analysis.dataset import Arm
from ablationlab.analysis.decision_power import _doubts, _more_items, decision_power
from ablationlab.analysis.items import ItemScores, TaskScores, compare_items
from ablationlab.analysis.simulation import (
    ArmInstability,
    Instabilities,
    SimulatedTasks,
    World,
    _counting_tasks,
    answers_of,
    datasets,
    simulate,
)
from ablationlab.core.errors import StatisticsError
from ablationlab.records.analysis import EvaluationAnalysis, ItemContrast
from ablationlab.records.settings import Criterion
from ablationlab.records.verdict import Answer
from ablationlab.report.terminal.power import answers_view
from ablationlab.stats import compare, paired_t_power
from ablationlab.stats.simulation import brief_inference

from .builder import study
from .verdict.studies import arms
from .verdict.studies import study as made_up

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


def test_the_rate_of_one_test_is_the_power_of_the_t_test():
    world = World({"validation_loss": 0.05}, {"validation_loss": -0.08})
    found = simulate(study(), world, 300, np.random.default_rng(1))
    rate = found.outcomes["validation_loss/default/layernorm:none"]["better"]
    power = paired_t_power(1.6, 5)
    assert abs(rate - power) < 4 * np.sqrt(power * (1 - power) / 300)


def test_under_the_null_neither_better_nor_worse_is_frequent():
    found = simulate(asked(), World(SDS), 250, np.random.default_rng(2))
    for variant in ("layernorm", "rmsnorm"):
        shares = found.answers["default", variant]
        assert shares.get(Answer.BETTER, 0.0) < 0.045
        assert shares.get(Answer.WORSE, 0.0) < 0.045


def test_with_a_gate_that_never_opens_nothing_is_measured():
    made = study(
        criteria=[{"metric": "macro_accuracy", "role": "primary", "smallest_effect": 0.01}],
        evaluation={"gate_seeds": [11, 12, 13], "tasks": ["suite"]},
    )
    found = simulate(
        made, World({"macro_accuracy": 0.01}, tasks=SimulatedTasks(3, -5.0, 1.0)), 20, np.random.default_rng(1)
    )
    assert found.share(Answer.NOT_MEASURED) == 1.0
    opened = simulate(
        made, World({"macro_accuracy": 0.01}, tasks=SimulatedTasks(3, 50.0, 1.0)), 20, np.random.default_rng(1)
    )
    assert opened.share(Answer.NOT_MEASURED) == 0.0


def test_power_honours_the_registered_test_and_its_correction():
    """Six seeds give p = 0.031 at best; two variants corrected by Holm need 0.025."""
    table = {"variants": ["none", "layernorm", "rmsnorm"], "seeds": [1, 2, 3, 4, 5, 6]}
    flips = study(**table, criteria=[PRIMARY | {"test": "sign-flip"}])
    found = decision_power(power_plans(flips, sd=0.005), studies=20)
    row = next(row for row in found.shown if row.id == "validation_loss/default/layernorm:none")
    assert (row.share, row.least, row.needs) == (0.0, 0.03125, 0.025)
    plain = study(**table, criteria=[PRIMARY])
    assert decision_power(power_plans(plain, sd=0.005), studies=20).shown[0].share == 1.0


def test_more_seeds_cost_what_they_cost_and_decide_more():
    made = asked()
    found = decision_power(power_plans(made, sd=0.05), studies=24)
    seeds = {row.seeds: row for row in found.designs}
    assert [round(row.compute, 2) for row in found.designs] == [1.0, 2.0, 4.0]
    assert seeds[20].better > seeds[5].better
    assert seeds[20].same > seeds[5].same


def pilot(sd, steps):
    """A pilot of runs of that length, whose differences have that SD."""
    made = made_up({"validation_loss": arms(0.0, sd=sd, n=10)}, [Criterion(**PRIMARY)])
    runs = tuple(run.model_copy(update={"steps": steps}) for run in made.stability.runs)
    return made.model_copy(update={"stability": made.stability.model_copy(update={"runs": runs})})


def test_more_steps_are_worth_what_a_pilot_of_that_length_says():
    made = study(criteria=[PRIMARY], variants=["none", "layernorm"], seeds=[1, 2, 3, 4, 5])
    short, long = pilot(0.05, made.training.steps), pilot(0.01, 3 * made.training.steps)
    plans = power_plans(made, short)
    planned, *_, longer = decision_power(plans, pilot=short, other_lengths=[long], studies=60).designs
    assert (planned.steps, longer.steps, longer.seeds, longer.compute) == (None, 3 * made.training.steps, 5, 3.0)
    assert planned.better < 0.95 < longer.better  # d = 2 and 10 at five seeds
    with pytest.raises(StatisticsError, match="none on record"):
        decision_power(plans, pilot=short, other_lengths=[pilot(0.01, None)], studies=5)


def test_more_items_shrink_what_single_answers_make_of_the_spread_and_nothing_else():
    rng, items, tasks = np.random.default_rng(8), 400, 3
    answers = [
        TaskScores(f"task-{number}", "accuracy", *rng.integers(0, 2, (2, 6, items)).astype(float))
        for number in range(tasks)
    ]
    scores = ItemScores(tuple(answers), tuple("123456"), "")
    compared = compare_items(scores, "layernorm", "none", resamples=100)
    evaluation = EvaluationAnalysis(
        harness="",
        precision="fp32",
        tasks=(),
        contrasts=(ItemContrast(regime="default", fewshot=0, comparison=compared),),
    )
    made = pilot(0.05, 60).model_copy(update={"evaluation": evaluation})
    coins = np.sqrt(0.5 / items / tasks)  # both arms toss a coin for every answer
    for sd in (coins, 10 * coins):
        spreads = {
            size: sds["macro_accuracy"] for size, sds in _more_items({"macro_accuracy": sd}, "macro_accuracy", made)
        }
        expected = {size: np.sqrt(sd**2 - coins**2 + coins**2 * items / size) for size in (800, 1_600)}
        assert spreads == pytest.approx(expected, rel=0.02)
    assert _more_items({"validation_loss": 0.05}, "validation_loss", made) == []


def test_power_of_a_stability_gain_follows_the_assumed_chances():
    made = stressed(seeds=list(range(1, 13)))
    plans = power_plans(made, sd=0.03)
    sure = decision_power(plans, unstable={"hot": Instabilities(1.0, 0.0, diverge=True)}, studies=3)
    none = decision_power(plans, unstable={"hot": Instabilities(0.2, 0.2, diverge=True)}, studies=10)
    name = "stability/diverged/hot/layernorm:none"
    assert next(row.share for row in sure.shown if row.id == name) == 1.0
    assert next(row.share for row in none.shown if row.id == name) < 0.2
    few = decision_power(
        power_plans(stressed(), sd=0.03), unstable={"hot": Instabilities(1.0, 0.0, diverge=True)}, studies=2
    )
    row = next(row for row in few.shown if row.id == name)
    # Eight of eight rescued is p = 2 / 2^8, and there are 2 variants x 2 regimes x 2 kinds of failure to look at.
    assert (row.share, row.least, row.needs) == (0.0, 2 / 2**8, 0.05 / 8)


def test_each_arm_of_a_pilot_breaks_at_its_own_rate():
    """layernorm never broke and rmsnorm always did: of one arm a gain is certain, of the other there is none."""
    values = arms(0.0, sd=0.03, n=12)
    losses = {"none": values["none"], "layernorm": values["layernorm"], "rmsnorm": values["layernorm"]}
    calm, spiked = dict.fromkeys(losses, "." * 12), "s" * 12
    hot = {"none": spiked, "layernorm": "." * 12, "rmsnorm": spiked}
    criteria = [Criterion(**PRIMARY)]
    found = made_up({"validation_loss": losses}, criteria, regimes={"default": calm, "hot": hot})
    made = stressed(variants=["none", "layernorm", "rmsnorm"], seeds=list(range(1, 13)), criteria=[PRIMARY])
    power = decision_power(power_plans(made, found), pilot=found, studies=12)
    rates = {name: power.unstable["hot"].of(name, "none") for name in losses}
    assert rates == {
        "none": ArmInstability(1.0, 0.0),
        "layernorm": ArmInstability(0.0, 0.0),
        "rmsnorm": ArmInstability(1.0, 0.0),
    }
    shown = {row.id: row.share for row in power.shown}
    gains = {name: shown[f"stability/hot/{name}:none"] for name in ("layernorm", "rmsnorm")}
    assert gains == {"layernorm": 1.0, "rmsnorm": 0.0}
    (text,) = [str(part) for part in answers_view(made, power) if "Runs that break" in str(part)]
    assert "Runs that break in hot: 100 % of none and rmsnorm, 0 % of layernorm." in text


def test_a_run_that_spikes_keeps_its_values_where_another_arm_diverges():
    chances = Instabilities(1.0, 1.0, own={"none": ArmInstability(1.0, 1.0), "layernorm": ArmInstability(1.0)})
    world = World(SDS, unstable={"hot": chances})
    (dataset,) = datasets(stressed(variants=["none", "layernorm"]), world, 1, np.random.default_rng(4))
    states = {(run.variant, run.state, run.unstable) for run in dataset.runs if run.regime == "hot"}
    assert states == {("none", "diverged", True), ("layernorm", "finished", True)}
    known = {
        name: [isinstance(value, float) for value in dataset.values[Arm("validation_loss", None, "hot", name)].values()]
        for name in ("none", "layernorm")
    }
    assert known == {"none": [False] * 8, "layernorm": [True] * 8}


def test_without_an_sd_or_a_smallest_effect_nothing_is_simulated():
    assert decision_power(power_plans(study())) is None
    made = study(criteria=[{"metric": "validation_loss", "role": "primary"}])
    assert decision_power(power_plans(made, sd=0.1)) is None


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


@pytest.mark.parametrize("doubt", [0.03, 0.06])
def test_what_is_simulated_of_tuned_arms_counts_the_doubt_of_the_pilot_as_the_closed_form_does(doubt):
    sweep = {"lr": [2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3], "selection_seeds": [21, 22]}
    made = study(sweep=sweep, criteria=[{**PRIMARY, "regime": "tuned"}], seeds=[1, 2, 3, 4, 5, 6])
    (row,) = power_plans(made, sd=0.03).rows
    world = World(
        {"validation_loss": 0.03}, {"validation_loss": -0.05}, doubts=_doubts(made, [replace(row, doubt=doubt)])
    )
    found = simulate(made, world, 100, np.random.default_rng(4))
    share = found.outcomes["validation_loss/tuned/layernorm:none"].get("better", 0.0)
    power = paired_t_power((0.05 - doubt) / 0.03, 6) if doubt < 0.05 else 0.0
    assert share == pytest.approx(power, abs=0.025 + 4 * np.sqrt(power * (1 - power) / 100))


def test_a_true_effect_at_the_margin_is_called_equivalent_in_at_most_five_percent():
    rng, studies = np.random.default_rng(8), 4000
    ties = 0
    for deltas in rng.normal(0.05, 0.03, (studies, 10)):
        found = brief_inference(list(deltas), interval="paired-t", test="paired-t", alpha=0.05, smallest_effect=0.05)
        ties += found.equivalence.equivalent
    assert ties / studies == pytest.approx(0.05, abs=3 * np.sqrt(0.05 * 0.95 / studies))
