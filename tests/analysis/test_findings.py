"""What a study asks besides its answers: a publication's results, crossed settings."""

from __future__ import annotations

import numpy as np
import pytest

from ablationlab.analysis import analyze, read_results
from ablationlab.analysis.findings import at_places, crossed, replicated
from ablationlab.analysis.wording import tasks_listed
from ablationlab.core.format import plain
from ablationlab.records.analysis import ComparedTask
from ablationlab.records.replication import (
    PublishedDirection,
    PublishedFigure,
    ReplicatedDirection,
    ReplicatedFigure,
    Replication,
)

from . import test_interactions
from .builder import build, study


def test_crossed_settings_come_with_what_the_effect_depends_on(tmp_path):
    build(tmp_path, study(regimes=test_interactions.REGIMES), outcomes=test_interactions.outcome)
    made = analyze(read_results(tmp_path))
    text = plain(crossed(made))
    assert text.startswith(
        "Exploratory, averaged over the other setting: token_init_std changes the difference from none in validation loss: "
        "from 0.02 to 1.0 it falls by "
    )
    assert "place changes it, too: from sum to token it rises by 0.446 nats/token (layernorm; deciding interval" in text
    assert "The settings token_init_std and place interact for layernorm." in text


def test_main_effects_that_were_not_registered_are_told_as_exploratory_behind_registered_interactions(tmp_path):
    build(tmp_path, study(regimes=test_interactions.REGIMES), outcomes=test_interactions.outcome)
    made = analyze(read_results(tmp_path))
    contrasts = tuple(
        contrast.model_copy(update={"label": "registered"}) if contrast.kind == "interaction" else contrast
        for contrast in made.interactions.contrasts
    )
    mixed = made.model_copy(update={"interactions": made.interactions.model_copy(update={"contrasts": contrasts})})
    assert plain(crossed(mixed)).startswith(
        "The settings token_init_std and place interact for layernorm. Exploratory, averaged over the other setting: "
        "token_init_std changes the difference from none in validation loss"
    )


def test_without_an_effect_that_is_shown_the_answer_says_so(tmp_path):
    def flat(variant, regime, seed):
        return {"validation_loss": 5.0 + 0.1 * seed + (0.01 * (seed * len(regime) % 3) if variant != "none" else 0.0)}

    build(tmp_path, study(regimes=test_interactions.REGIMES), outcomes=flat)
    assert crossed(analyze(read_results(tmp_path))) == (
        "Exploratory, averaged over the other setting: neither token_init_std nor place is shown to change the difference "
        "from none in validation loss. No interaction of the settings is shown."
    )


def test_an_effect_at_one_level_does_not_read_as_a_contradiction_of_the_average(tmp_path):
    def outcome(variant, regime, seed):
        place, init = test_interactions.CELLS[regime]
        noise = np.random.default_rng([seed, place, init]).normal(0, 0.5 if init else 0.001)
        return {"validation_loss": 5.0 + 0.1 * seed + (noise + 0.05 * place if variant != "none" else 0.0)}

    build(tmp_path, study(regimes=test_interactions.REGIMES), outcomes=outcome)
    text = plain(crossed(analyze(read_results(tmp_path))))
    assert (
        "neither token_init_std nor place is shown to change the difference from none in validation loss on average."
        in text
    )
    assert "At token_init_std 0.02 alone, from place sum to token it rises by 0.0499 nats/token (layernorm)." in text
    assert text.endswith("Whether the effect differs between levels of the other setting is not shown.")
    assert "No interaction" not in text


def direction(outcome: str, variant: str = "geglu", regime: str = "default") -> ReplicatedDirection:
    published = PublishedDirection(
        metric="validation_loss", variant=variant, sign="lower", published_as="better", regime=regime
    )
    return ReplicatedDirection.model_construct(published=published, regime=regime, outcome=outcome)


def figure(outcome: str, *, same: bool = True) -> ReplicatedFigure:
    published = PublishedFigure.model_construct(regime="default", same_definition=same)
    return ReplicatedFigure.model_construct(published=published, regime="default", outcome=outcome)


def publication(directions=(), figures=(), changed=()) -> Replication:
    return Replication.model_construct(directions=tuple(directions), figures=tuple(figures), changed=changed, level=0.9)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (publication([direction("transfers")] * 4), "All four published directions are found here too."),
        (publication([direction("transfers")]), "The published direction is found here too."),
        (publication([direction("undecided")]), "The published direction is not shown here."),
        (
            publication(
                [
                    direction("transfers"),
                    direction("reversed", "deep"),
                    direction("undecided", regime="tuned"),
                    direction("undecided", "deep", "tuned"),
                ]
            ),
            "Two published directions were tested in default and at tuned rates: in default, one is found too (geglu) and "
            "one is reversed; at tuned rates, none is found and two stay undecided.",
        ),
        (
            publication(figures=[figure("within")] * 11 + [figure("outside")] * 4 + [figure("not-measured")]),
            "For 11 of 15 published figures, the 90 % interval of the difference includes 0.",
        ),
        (
            publication(figures=[figure("outside")] * 2 + [figure("outside", same=False)]),
            "For none of three published figures does the 90 % interval of the difference include 0 "
            "(one is not defined as ours).",
        ),
        (
            publication(figures=[figure("outside")]),
            "For the one published figure, the 90 % interval of the difference does not include 0.",
        ),
        (publication(), ""),
    ],
)
def test_a_replication_says_first_whether_the_result_comes_back(record, text):
    assert plain(replicated(record)) == text


def test_runs_at_other_settings_are_not_called_a_replication():
    assert replicated(publication([direction("transfers")], changed=("lr",))).startswith("Not a replication")


def test_places_are_named_counted_or_tuned():
    assert at_places(["a"]) == "in a"
    assert at_places(["a", "tuned"]) == "in a and at tuned rates"
    assert at_places(["a", "b", "tuned", "c", "d", "e"]) == "in five regimes and at tuned rates"


@pytest.mark.parametrize(
    ("tasks", "text"),
    [
        ([("punctuation",), ("spelling",)], "punctuation and spelling"),
        ([("punctuation", 2), ("spelling", 2)], "punctuation and spelling, both 2-shot"),
        ([("a", 2), ("b", 2), ("c", 2), ("d",)], "a, b and c, all 2-shot; d"),
        ([("law, tort",), ("law, civil",)], "law, tort and law, civil"),  # a comma in a name is no shots
    ],
)
def test_tasks_that_share_their_shots_say_so_once(tasks, text):
    assert tasks_listed([ComparedTask(*task) for task in tasks]) == text


def test_the_interval_of_a_factor_excludes_zero_just_where_its_adjusted_p_shows_it(tmp_path):
    def ended(variant, regime, seed):
        own = np.random.default_rng([seed, len(variant), len(regime)]).normal(0, 0.3)
        return {"validation_loss": test_interactions.loss(variant, regime, seed) + own}

    variants = ["none", "layernorm", "rmsnorm", "center-only"]
    build(tmp_path, study(variants=variants, regimes=test_interactions.REGIMES), outcomes=ended)
    contrasts = analyze(read_results(tmp_path)).interactions.contrasts
    for contrast in contrasts:
        low, high = contrast.deciding_low, contrast.deciding_high
        assert (low > 0 or high < 0) == (contrast.p_adjusted <= 1 - contrast.level)
        assert low <= contrast.low
        assert contrast.high <= high
    assert any(contrast.deciding_low < contrast.low for contrast in contrasts if contrast.p_adjusted > contrast.p)
