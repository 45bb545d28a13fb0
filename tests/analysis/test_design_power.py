"""Power of studies with families and with looks, and tests of stability at planned looks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablationlab.analysis import power_plans
from ablationlab.analysis.stability import margin_levels, seeds_for_margin, spent_at_look, stability
from ablationlab.records.settings import Design
from ablationlab.stats.failures import exact_upper_bound
from ablationlab.stats.families import gatekeep, planned_levels
from simulated import Instabilities, World, analyze_to_stop, datasets

from .builder import study

PRIMARY = {"metric": "validation_loss", "role": "primary", "smallest_effect": 0.05}
SECOND = {"metric": "next_token_accuracy", "role": "secondary", "smallest_effect": 0.05}
THIRD = {"metric": "token_brier", "role": "secondary", "smallest_effect": 0.05}
GUARD = {"metric": "token_ece", "role": "guard", "margin": 0.05}
LOOKS = [6, 9, 14, 20]


def sequential(**changes):
    table = {"seeds": list(range(1, 21)), "design": {"looks": LOOKS}, "criteria": [PRIMARY], **changes}
    return study(**table)


def test_planned_alphas_are_those_of_the_families():
    criteria = [PRIMARY, SECOND, THIRD, GUARD]
    one = power_plans(study(criteria=criteria, variants=["none", "layernorm"]), sd=0.05).rows
    assert {row.comparison.metric.name: row.alpha for row in one} == pytest.approx(
        {"validation_loss": 0.05, "next_token_accuracy": 0.05, "token_brier": 0.05, "token_ece": 0.05}
    )
    two = power_plans(study(criteria=criteria, variants=["none", "layernorm", "rmsnorm"]), sd=0.05).rows
    # Half of what a rejected primary had goes to the other primary, half to its own secondaries.
    assert {row.comparison.metric.name: row.alpha for row in two} == pytest.approx(
        {"validation_loss": 0.025, "next_token_accuracy": 0.0125, "token_brier": 0.0125, "token_ece": 0.05}
    )


@pytest.mark.parametrize("correction", ["holm", "bonferroni"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_planned_level_is_where_the_analysis_begins_to_reject(correction, size):
    levels, passed = planned_levels([2] * size, correction=correction, alpha=0.05)
    rng = np.random.default_rng(0)

    def decided(first, second):
        primaries = [(None, first), *[(None, 0.9)] * (size - 1)]
        secondaries = [[(None, second), (None, 0.9)], *[[(None, 0.9)] * 2] * (size - 1)]
        return gatekeep(primaries, secondaries, alpha=0.05, correction=correction, rng=rng)

    for shift, expected in ((-1e-9, True), (1e-6, False)):
        assert decided(levels[0] + shift, 0.9).primaries[0].rejected is expected
        assert decided(1e-12, passed[0][0] + shift).secondaries[0][0].rejected is expected


def at_look(number, rescued, broken=0):
    """A study with looks as it stands at one of them: so many baselines, and so many variants, break."""
    world = World({"validation_loss": 0.05})
    dataset = next(datasets(sequential(), world, 1, np.random.default_rng(0)))
    counted = dataset.seeds[: LOOKS[number - 1]]
    runs = []
    for run in dataset.runs:
        if run.seed in counted:
            breaks = rescued if run.variant == "none" else broken
            place = counted.index(run.seed) if run.variant == "none" else len(counted) - 1 - counted.index(run.seed)
            runs.append(
                run.model_copy(
                    update={"unstable": place < breaks, "state": "diverged" if place < breaks else "finished"}
                )
            )
    return replace(dataset, seeds=counted, runs=tuple(runs), look=number)


def test_what_looks_spend_on_stability_adds_up_to_alpha():
    assert spent_at_look(replace(at_look(4, 0), look=None)) == (0.05, 0.05)
    tests, bound = zip(*(spent_at_look(at_look(number, 0)) for number in (1, 2, 3, 4)), strict=True)
    assert tests[2] + tests[3] == pytest.approx(0.05)  # six and nine seeds cannot show what they may spend
    assert bound == (None, None, None, pytest.approx(0.05))


@given(
    st.sets(st.integers(3, 40), min_size=2, max_size=4),
    st.sampled_from(("obrien-fleming", "pocock", "front-loaded")),
    st.floats(0.001, 0.1),
    st.floats(0.05, 0.5),
)
@settings(max_examples=30, deadline=None)
def test_what_a_look_cannot_use_is_left_to_the_next_and_all_looks_spend_alpha_at_most(seeds, spending, alpha, margin):
    design = Design(looks=tuple(sorted(seeds)), spending=spending)
    levels = margin_levels(design, margin, alpha)
    assert sum(level for level, asked in levels if asked) <= alpha * (1 + 1e-9)
    for n, (level, asked) in zip(design.looks, levels, strict=True):
        calm = exact_upper_bound(0, 0, n, level / 2) if level > 1e-9 else 1.0
        assert asked == (calm <= margin)
    closing = seeds_for_margin(design, margin, alpha)
    assert closing not in design.looks or closing == next(
        n for n, (_, a) in zip(design.looks, levels, strict=True) if a
    )


def test_an_early_look_does_not_show_what_the_last_one_would():
    # Six of six rescued: p = 0.031, corrected for two kinds of failure 0.062; all of 14 is beyond any doubt.
    early, late = (stability(at_look(*given)) for given in ((1, 6), (3, 14)))
    assert {gain.outcome for gain in (*early.gains, *early.parts) if gain.registered} == {"not-shown"}
    assert {gain.outcome for gain in (*late.gains, *late.parts) if gain.registered} == {"more-stable"}
    nine = stability(at_look(2, 8))  # p = 0.0078, twice that is below 0.05, and not below what the second look spends
    assert {gain.outcome for gain in (*nine.gains, *nine.parts) if gain.registered} == {"not-shown"}


def test_false_claims_of_stability_over_all_looks_stay_below_alpha():
    world = World({"validation_loss": 0.05}, unstable={"default": Instabilities(0.5, 0.5)})
    claims, studies = 0, 300
    for dataset in datasets(sequential(stability={"failures": ["unstable"]}), world, studies, np.random.default_rng(4)):
        for number, seeds in enumerate(LOOKS, start=1):
            counted = dataset.seeds[:seeds]
            runs = tuple(run for run in dataset.runs if run.seed in counted)
            found = stability(replace(dataset, seeds=counted, runs=runs, look=number))
            if any(gain.outcome in ("more-stable", "less-stable") for gain in found.gains if gain.registered):
                claims += 1
                break
    assert claims / studies <= 0.05


def test_looks_save_seeds_where_an_effect_is_large():
    def seeds(effect, sd=0.03):
        world = World({"validation_loss": sd}, {"validation_loss": effect})
        made = [len(analyze_to_stop(d).seeds) for d in datasets(sequential(), world, 12, np.random.default_rng(1))]
        return np.mean(made)

    assert seeds(-0.2) < 12
    assert seeds(-0.2) < seeds(0.0, sd=0.2) <= 20


def test_a_simulated_study_stops_where_its_look_says():
    dataset = next(
        datasets(sequential(), World({"validation_loss": 0.02}, {"validation_loss": -0.4}), 1, np.random.default_rng(2))
    )
    analysis = analyze_to_stop(dataset)
    assert analysis.look.stop
    assert len(analysis.seeds) == LOOKS[analysis.look.number - 1]


def test_an_arm_may_be_noisier_than_the_others():
    world = World({"validation_loss": 0.05}, spreads={"none": 4.0})
    runs = {"none": [], "layernorm": []}
    for dataset in datasets(study(), world, 200, np.random.default_rng(3)):
        for arm, values in dataset.values.items():
            runs[arm.variant] += values.values()
    assert np.std(runs["none"]) / np.std(runs["layernorm"]) == pytest.approx(4.0, rel=0.1)
    assert np.std(runs["layernorm"]) == pytest.approx(0.05 / np.sqrt(2), rel=0.1)
