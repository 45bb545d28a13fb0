"""Cases that rules before these got wrong, each with the answer that a reader expects."""

from __future__ import annotations

import numpy as np
import pytest

from ablationlab.analysis import analyze
from ablationlab.analysis.comparisons import compare_all
from ablationlab.records.settings import Criterion, Stability
from ablationlab.stats.tuned import fitted_minimum

from .studies import LOSS, arms, dataset, study, verdict_of

SD = 0.002


def two_sd_better(n=20, seed=0):
    """A true gain of two standard deviations, well beyond the smallest effect."""
    rng = np.random.default_rng(seed)
    base = 2.0 + 0.05 * np.sin(np.arange(n))
    return {"none": base, "layernorm": base + rng.normal(-0.04, 0.02, n)}


def loss_study(values, variant=None, baseline=None):
    n = len(values["none"])
    endings = {"none": baseline or "." * n, "layernorm": variant or "." * n}
    return {"validation_loss": values}, (LOSS,), endings


@pytest.mark.parametrize("seed", range(10))
def test_one_lost_run_does_not_take_all_power(seed):
    found = verdict_of(*loss_study(two_sd_better(seed=seed), "." * 7 + "d" + "." * 12))
    assert found.answer == "better"
    assert study(*loss_study(two_sd_better(seed=seed), "." * 7 + "d" + "." * 12)).comparisons[0].cost.lost == (8,)


@pytest.mark.parametrize("off", [0.4, -0.4])
def test_one_run_twenty_standard_deviations_out_does_not_change_the_answer_and_is_named(off):
    values = two_sd_better(40, seed=2)
    values["layernorm"][11] += off
    made = study(*loss_study(values))
    assert verdict_of(*loss_study(values)).answer == "better"
    assert made.comparisons[0].cost.far_out == (12,)


def test_the_same_run_far_out_and_diverged_give_the_same_answer():
    values = two_sd_better(40)
    diverged = verdict_of(*loss_study(values, "." * 11 + "d" + "." * 28)).answer
    values["layernorm"][11] += 0.4
    assert verdict_of(*loss_study(values)).answer == diverged == "better"


@pytest.mark.parametrize("n", [3, 5, 20])
def test_identical_arms_are_the_same(n):
    base = 2.0 + 0.05 * np.sin(np.arange(n))
    assert verdict_of(*loss_study({"none": base, "layernorm": base.copy()})).answer == "same"


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_no_floor_is_absolute(unit):
    values = {name: np.array(numbers) * unit for name, numbers in arms(-0.03).items()}
    criterion = Criterion(metric="validation_loss", role="primary", smallest_effect=0.01 * unit)
    assert verdict_of({"validation_loss": values}, (criterion,)).answer == "better"
    rates = (1e-4, 2e-4, 4e-4, 8e-4, 16e-4)
    losses = {rate: [unit * (2 + 0.1 * np.log(rate / 4.3e-4) ** 2)] * 3 for rate in rates}
    here = {rate: [value / unit for value in by_seed] for rate, by_seed in losses.items()}
    assert fitted_minimum(losses).doubt == pytest.approx(unit * fitted_minimum(here).doubt)


def test_what_the_study_does_not_register_is_not_printed_as_registered():
    values = {"validation_loss": arms(0.0), "final_gradient_norm": arms(0.5)}
    unasked, asked = (
        study(values, (LOSS,), settings=settings).comparison("final_gradient_norm", "default", "layernorm", "none")
        for settings in (Stability(), Stability(smoothness=("final_gradient_norm",)))
    )
    assert (unasked.label, unasked.role) == ("exploratory", None)
    assert (asked.label, asked.role) == ("registered", "stability")


def test_a_gain_that_spikes_on_three_seeds_is_unstable_as_counted_and_on_two_is_better():
    values = arms(-0.03, SD, 5)
    three, two = (verdict_of(*loss_study(values, text)) for text in ("sss..", "ss..."))
    assert (three.answer, three.as_counted) == ("unstable", True)
    assert two.answer == "better"


def test_five_seeds_are_not_worthless():
    found = verdict_of(*loss_study(arms(-0.03, SD, 5)))
    assert (found.answer, found.advice, found.confirmed) == ("better", "adopt", False)
    assert [(guard.name, guard.standing) for guard in found.guards] == [("failures", "open")]


def test_a_gain_as_large_as_the_smallest_effect_is_better_in_half_of_all_studies():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(200):
        base = 2.0 + 0.05 * rng.normal(size=20)
        values = {"none": base, "layernorm": base - 0.01 + rng.normal(0, 0.004, 20)}
        made = analyze(dataset({"validation_loss": values}, brief=True))
        found.append(made.comparisons[0].cost.better <= -0.01)
    assert 0.4 < np.mean(found) < 0.6


def test_the_interval_that_is_printed_agrees_with_the_claim():
    made = dataset(*loss_study(two_sd_better(), "." * 7 + "d" + "." * 12))
    (comparison, *_), _ = compare_all(made)
    assert comparison.outcome == "better"
    assert comparison.deciding.high < 0
    clean = study(*loss_study(two_sd_better())).comparisons[0]
    assert comparison.deciding.high > clean.deciding.high  # the lost run counts against it


def small_gain(n=10):
    base = 2.0 + 0.05 * np.sin(np.arange(n))
    return {"none": base, "layernorm": base - 0.004 + 0.0005 * np.cos(1.7 * np.arange(n))}


def test_one_absurd_run_of_the_baseline_makes_no_gain():
    values = small_gain()
    assert verdict_of(*loss_study(values)).answer == "same"
    values["none"] = values["none"].copy()
    values["none"][4] = 50.0
    found = study(*loss_study(values)).comparisons[0]
    assert verdict_of(*loss_study(values)).answer == "undecided"
    assert found.deciding.low <= found.estimate <= found.deciding.high
    assert found.estimate == pytest.approx(-0.004, abs=5e-4)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("costs", "smallest", "place"),
    [
        ((-50, 0, -17, -21, -19, -22, -18, -17, -17, -19), 0.017, 2),
        ((0, -60, -18, -23, -23, -19, -18, -20, -17, -23), 0.018, 1),
        ((-70, -60, -22, -17, -20, -22, -23, -21, -18, -19, -21), 0.021, 4),
    ],
)
def test_a_run_that_is_lost_beside_absurd_ones_makes_no_claim_for_its_arm(costs, smallest, place, swapped):
    base = 2.0 + 0.05 * np.sin(np.arange(len(costs)))
    criterion = Criterion(metric="validation_loss", role="primary", smallest_effect=smallest)
    endings = {"none": "." * len(costs), "layernorm": "." * place + "d" + "." * (len(costs) - place - 1)}
    values = {"none": base, "layernorm": base + np.array(costs) / 1000}
    claim = "worse" if swapped else "better"
    if swapped:
        values = {"none": values["layernorm"], "layernorm": values["none"]}
        endings = {"none": endings["layernorm"], "layernorm": endings["none"]}
    before = verdict_of({"validation_loss": values}, (criterion,))
    after = verdict_of({"validation_loss": values}, (criterion,), endings)
    assert after.answer != claim or before.answer == claim


def test_the_interval_holds_the_estimate_though_another_way_of_counting_gives_its_ends():
    base = 2.0 + 0.05 * np.sin(np.arange(12))
    costs = np.array([-208, -600, -201, -210, -186, -188, -181, -202, -196, -199, -200, -209]) / 1000
    criterion = Criterion(metric="validation_loss", role="primary", smallest_effect=0.22)
    found = study({"validation_loss": {"none": base, "layernorm": base + costs}}, (criterion,)).comparisons[0]
    assert found.cost.better == pytest.approx(np.mean(costs))
    assert found.deciding.low <= found.estimate <= found.deciding.high < 0
    assert found.cost.low <= found.cost.better + 1e-12


def test_a_rank_test_claims_no_direction_that_the_mean_denies():
    costs = np.concatenate([0.01 + 1e-4 * np.arange(26), [-0.07, -0.073, -0.076, -0.079]])
    base = 2.0 + 0.05 * np.sin(np.arange(30))
    criterion = Criterion(metric="validation_loss", role="primary", smallest_effect=0.0005, test="wilcoxon")
    found = study({"validation_loss": {"none": base, "layernorm": base + costs}}, (criterion,)).comparisons[0]
    assert np.mean(costs) < 0
    assert found.outcome != "better"
    assert found.deciding.low <= found.estimate <= found.deciding.high


@pytest.mark.parametrize(("variant", "answer"), [("ssm.......", "undecided"), ("sss.......", "unstable")])
def test_a_missing_record_does_not_hide_a_failure(variant, answer):
    """With it, three runs may have failed."""
    assert verdict_of(*loss_study(arms(-0.05), variant)).answer == answer


def test_a_missing_record_shows_no_stability():
    """Seven of ten runs are rescued; the two that are missing may have failed, with one more."""
    assert verdict_of(*loss_study(arms(0.0, n=12), "............", "ddddddd.....")).answer == "more stable"
    assert verdict_of(*loss_study(arms(0.0, n=12), ".......mmmmm", "ddddddd.....")).answer != "more stable"


@pytest.mark.parametrize("endings", ["dddddddddd", "mmmmmmmmmm"])
def test_a_metric_that_neither_arm_has_is_not_measured(endings):
    assert verdict_of(*loss_study(arms(-0.05), endings, endings)).answer == "not measured"
