"""Which sentences charts, tables and paper print for which kind of study: each from a fact of its records, or not at all."""

from __future__ import annotations

import re

import pytest

from ablationlab.analysis.wording import halved
from ablationlab.core.format import plain
from ablationlab.records.results import Results
from ablationlab.report.charts.paired import differences
from ablationlab.report.charts.theme import powers
from ablationlab.report.charts.tradeoff import tradeoff
from ablationlab.report.make import with_analysis
from ablationlab.report.paper.compose import document_of
from ablationlab.report.tables.readings import reading_table
from ablationlab.report.tables.write import tables_of
from analysis.builder import build, calm, study

from . import kinds
from .maker import made
from .test_paper import said


def test_an_axis_over_many_decades_marks_powers_of_ten_alone():
    assert powers([1e-3, 1.0]) == {}
    assert powers([1e-3, 1e9])["values"] == [1e-3, 1.0, 1e3, 1e6, 1e9]
    assert powers([0.0, float("inf")]) == {}


def test_how_levels_are_passed_on_is_told_where_primaries_have_secondaries(tmp_path):
    primary = {"metric": "validation_loss", "role": "primary", "smallest_effect": 0.01}
    secondary = {"metric": "perplexity", "role": "secondary"}
    for variants, criteria, told in (
        (["none", "layernorm", "rmsnorm"], [primary, secondary], True),
        (["none", "layernorm", "rmsnorm"], [primary], False),
        (["none", "layernorm"], [primary, secondary], False),
    ):
        folder = tmp_path / f"{len(variants)}{len(criteria)}"
        analysis = made(folder, variants=variants, criteria=criteria).analysis
        assert halved(analysis) is told, (variants, criteria)


def test_the_plane_says_which_arm_has_no_cost_to_draw(tmp_path, broken_results: Results):
    def ended(variant: str, regime: str, seed: int) -> dict[str, float] | None:
        broke = variant == "layernorm" or (variant == "rmsnorm" and seed == 1)
        return None if broke else {"validation_loss": 2.0 + 0.001 * seed**2 * len(variant)}

    build(tmp_path, study(variants=["none", "layernorm", "rmsnorm"]), outcomes=ended)
    (figure,) = tradeoff(with_analysis(Results.open(tmp_path), say=lambda text: None))
    assert "Not drawn, since its cost is not known: layernorm." in figure.caption
    assert "coincide" not in figure.caption  # one ring
    assert tradeoff(broken_results) == ()  # the arm that broke has no cost, and nothing else was unstable


def test_a_study_that_still_trains_has_no_plane_before_a_run_was_unstable(tmp_path):
    build(
        tmp_path,
        study(variants=["none", "layernorm"], seeds=[1, 2, 3, 4]),
        only=lambda run: run.seed < 4 or run.variant == "none",
    )
    results = with_analysis(Results.open(tmp_path), say=lambda text: None)
    assert results.interim
    assert not any(run.unstable for run in results.analysis.stability.runs)
    assert tradeoff(results) == ()


@pytest.fixture(scope="module")
def exploded(tmp_path_factory) -> Results:
    """Two of six baseline runs end in the thousands, where they began at 4.2."""

    def ended(variant: str, regime: str, seed: int) -> dict[str, float]:
        loss = 2.0 + 0.01 * seed + (0.001 * (seed % 2) if variant != "none" else 0.0)
        return {
            "validation_loss": 7000.0 * seed if variant == "none" and seed > 4 else loss,
            "final_gradient_norm": 1.0,
        }

    folder = tmp_path_factory.mktemp("exploded")
    build(folder, study(variants=["none", "layernorm"], seeds=[1, 2, 3, 4, 5, 6]), outcomes=ended)
    return with_analysis(Results.open(folder), say=lambda text: None)


def test_no_sentence_and_no_cell_tells_a_mean_of_exploded_losses(exploded: Results):
    analysis = exploded.analysis
    compared = analysis.comparison("validation_loss", "default", "layernorm", "none")
    assert compared.delta < -10_000  # what is tested stays
    assert compared.told_by_medians
    text = tables_of(exploded)[0].markdown()
    assert not re.search(r"12,8\d\d", plain(text))  # the mean, and the difference
    assert tradeoff(exploded) == ()
    losses = next(figure for figure in differences(exploded) if figure.key == "paired-validation-loss")
    assert not any("low" in row and "contrast" in row for rows in losses.data.values() for row in rows)
    assert "Diamond" not in losses.caption
    assert "No mean is drawn where unstable runs dominate it: layernorm." in losses.caption


def test_a_chart_without_an_interval_speaks_of_no_bar(tmp_path):
    build(tmp_path, study(variants=["none", "untied"], stability={"smoothness": ["final_gradient_norm"]}))
    results = with_analysis(Results.open(tmp_path), say=lambda text: None)
    charts = {figure.key: figure.caption for figure in differences(results)}
    assert "Diamond and bar: mean and 95\u202f% interval" in charts["paired-validation-loss"]
    assert (
        "Diamond: mean over all pairs; left is better." in charts["paired-final-gradient-norm"]
    )  # every pair is alike


def test_a_mean_that_unstable_runs_do_not_move_is_told(tmp_path):
    """One run of the baseline spikes on its way, and ends as the others do."""

    def curve(variant: str, regime: str, seed: int) -> list[float]:
        losses = calm(seed)
        return [*losses[:40], 9.0, 9.0, *losses[42:]] if variant == "none" and seed == 1 else losses

    build(tmp_path, study(variants=["none", "layernorm"]), curves=curve)
    results = with_analysis(Results.open(tmp_path), say=lambda text: None)
    assert results.analysis.stability.arm("none", "default").unstable_runs == 1
    compared = results.analysis.comparison("validation_loss", "default", "layernorm", "none")
    assert not compared.unstable_means


def test_unpaired_arms_are_told_with_the_reason_and_by_their_runs(tmp_path):
    """Arms share no seed only if seeds were read and are disjoint; else the user asked."""
    told = {}
    for how, asked in (("shared", True), ("none", True), ("disjoint", False)):
        results = kinds.unpaired_study(tmp_path / how, how, unpaired=asked)
        told[how] = said(document_of([results], {}))
    for how in ("shared", "none"):
        paper = told[how]
        assert "The runs of this study are compared unpaired, as asked, by fixed decision rules." in paper
        assert "Runs are compared unpaired, as asked." in paper
        assert "no seed" not in paper
    paper = told["disjoint"]
    assert "Arms share no seed, so their runs are compared unpaired." in paper
    for paper in told.values():
        assert "in a table of nine runs." in paper


def test_a_paper_on_a_table_sets_no_exploratory_comparison_apart(tmp_path):
    """Nothing was registered, so all of them are."""
    text = said(document_of([kinds.unpaired_study(tmp_path, "shared", unpaired=False)], {}))
    assert "All comparisons here are exploratory. The one that does not decide shows no difference." in text
    assert "Beyond" not in text
    assert "Speeds are one exploratory family" in text
    assert "a clock measured" not in text
    assert "What is found here, all of it exploratory, can be registered and tested on fresh seeds." in text


def test_power_that_is_not_given_has_every_reason(tmp_path):
    rows = [f"{arm},{seed + 9 * ord(arm)},{seed / 4}" for arm in "abc" for seed in range(4)]
    rows[-1:] = [f"c,{seed},diverged" for seed in (900, 901)]
    text = said(document_of([kinds.table_study(tmp_path, "variant,seed,val_loss", rows)], {}))
    assert (
        "Power is not given for either of the two comparisons that decide, because runs were unstable or are not paired."
        in text
    )


def test_an_arm_without_a_reading_is_named_with_the_reason(broken_results):
    analysis = broken_results.analysis
    assert reading_table(analysis.readings, 1, analysis.comparisons).note == (
        "Not known: loss at equal FLOPs, loss at equal training time and tokens to the same loss for layernorm "
        "(on no seed did both runs finish)."
    )


def test_a_budget_that_runs_did_not_use_up_is_called_planned(broken_results, untied_results):
    paper, whole = (said(document_of([results], {})) for results in (broken_results, untied_results))
    assert "A run is planned to take 60 steps of four sequences" in paper
    assert "A run takes 60 steps of four sequences" in whole


def test_every_chart_of_differences_tells_its_own_level(two_regimes_results):
    captions = {figure.key: plain(figure.caption) for figure in differences(two_regimes_results)}
    told = {}
    for regime in ("default", "hot"):
        here = [
            c for c in two_regimes_results.analysis.comparisons if (c.metric, c.regime) == ("validation_loss", regime)
        ]
        levels = " or ".join(f"{100 * at:.4g} %" for at in sorted({c.main_interval.level for c in here}))
        told[regime] = f"Diamond and bar: mean and {levels} interval (paired-t)"
        assert told[regime] in captions[f"paired-validation-loss-{regime}"]
    assert told["default"] != told["hot"]
