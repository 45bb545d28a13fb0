"""Which sentences the page prints for which kind of study: each from a fact of its records, or not at all."""

from __future__ import annotations

import dataclasses
import html
import re
from types import SimpleNamespace

import pytest

from ablationlab.analysis.wording import corrections
from ablationlab.core.format import plain
from ablationlab.records.results import Results
from ablationlab.report.charts.paired import differences
from ablationlab.report.charts.power import power
from ablationlab.report.charts.theme import powers
from ablationlab.report.charts.tradeoff import tradeoff
from ablationlab.report.make import with_analysis
from ablationlab.report.page.build import page_html
from ablationlab.report.page.design import runs_words
from ablationlab.report.page.sentences import comparisons, efficiency, ngrams, pairing
from ablationlab.report.paper.compose import document_of
from ablationlab.report.tables.readings import reading_table
from ablationlab.report.tables.write import tables_of
from analysis.builder import build, calm, study

from . import kinds
from .maker import VARIANTS, made, unfolded
from .test_paper import said


def text_of(results: Results) -> str:
    """What a reader sees of the page: no scripts, no styles, no markup."""
    page = re.sub(r"<(script|style).*?</\1>", " ", unfolded(page_html(results, results.folder)), flags=re.S)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))


@pytest.fixture(scope="module")
def pages(csv_results, foreign_results, untied_results, broken_results) -> dict[str, str]:
    studies = {"csv": csv_results, "foreign": foreign_results, "untied": untied_results, "broken": broken_results}
    return {kind: text_of(results) for kind, results in studies.items()}


#: A sentence, and the studies whose pages print it; no other may.
SENTENCES = {
    "The criteria were sealed before training": {"foreign", "untied", "broken"},
    "The runs come from a table, so nothing was registered before training": {"csv"},
    "None was registered, so all are exploratory.": {"csv"},
    "Registered comparisons were fixed in the sealed plan.": {"foreign", "untied", "broken"},
    "What else both runs of a pair share is not known.": {"csv"},
    "Both runs of a pair share the seed. Not reported by the trainer, so not checked: data order, initial weights": {
        "foreign"
    },
    "Both runs of a pair share the seed, the data order and the initial weights that both have.": {"untied", "broken"},
    "of the variance of the difference in": {"csv", "foreign", "untied", "broken"},
    "They differ in what the variant declares: see Controls.": {"untied", "broken"},
    "ended worse than it began (final loss above 1.1 times its first loss)": {"untied", "broken"},
    "Diverged, so without a value": {"broken"},
    "Loss and gradient norm along training.": {"untied", "broken"},
    "What the trainer logged along training.": {"foreign"},
    "charts of single runs from metrics.jsonl": {"foreign", "untied", "broken"},
    "matching of data and budget cannot be checked": {"csv"},
    "With fewer than ten pairs, the spread itself is a rough estimate.": {"foreign", "untied", "broken"},
    "can tell models apart.": set(),
    "macro accuracy": set(),
    "embeddings": set(),
    "embedding norm": set(),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_stands_only_where_its_fact_does(pages: dict[str, str], sentence: str):
    assert {kind for kind, page in pages.items() if sentence in page} == SENTENCES[sentence]


def test_sections_without_data_are_left_out(pages: dict[str, str], csv_results: Results, broken_results: Results):
    table, records = (page_html(results, results.folder) for results in (csv_results, broken_results))
    for key in ("curves", "stability", "diagnostics", "evaluation", "calibration", "runs", "tradeoff"):
        assert f'id="{key}"' not in table
        assert f'href="#{key}"' not in table
    for key in ("curves", "stability", "runs"):
        assert f'<section id="{key}"' in records
    for words in ("No probe was recorded", "No task was evaluated", "No calibration was measured"):
        assert all(words not in page for page in pages.values())


def test_a_result_that_was_not_registered_is_never_called_significant(pages: dict[str, str]):
    assert all("significant" not in page for page in pages.values())


def test_of_several_regimes_the_one_whose_loss_is_told_is_named(tmp_path):
    results = made(tmp_path, regimes={"hot": {"training": {"lr": 0.01}}})
    plan = results.plan.model_copy(update={"reference_losses": {"bigram": 2.5}})
    assert re.search(
        r"The baseline ends at [\d.]+ on average in regime default: ", ngrams(dataclasses.replace(results, plan=plan))
    )


def test_where_a_run_was_unstable_the_median_is_ranked_among_n_gram_models(tmp_path):
    """One run of four ends at 7: the mean of 3.25 would be worse than the unigram table, the median is far better."""
    build(
        tmp_path,
        study(variants=VARIANTS, seeds=[1, 2, 3, 4]),
        outcomes=lambda v, r, s: {"validation_loss": 7.0 if (v, s) == ("none", 4) else 2.0},
    )
    results = with_analysis(Results.open(tmp_path), say=lambda text: None)
    plan = results.plan.model_copy(update={"reference_losses": {"unigram": 3.1, "bigram": 2.5}})
    text = ngrams(dataclasses.replace(results, plan=plan))
    assert text.endswith("The baseline ends at a median of 2.000: better than a bigram table.")


def test_runs_of_a_sweep_are_counted_beside_those_that_are_compared(tmp_path):
    assert runs_words(made(tmp_path)) == "3 variants × 4 seeds"
    results = made(tmp_path / "swept", sweep={"lr": [1e-2, 1e-1]})
    assert runs_words(results) == "3 variants × 4 seeds, 24 more in the sweep"


def test_an_axis_over_many_decades_marks_powers_of_ten_alone():
    assert powers([1e-3, 1.0]) == {}
    assert powers([1e-3, 1e9])["values"] == [1e-3, 1.0, 1e3, 1e6, 1e9]
    assert powers([0.0, float("inf")]) == {}


def test_a_share_that_is_printed_as_none_was_not_removed(tmp_path):
    results = made(tmp_path)
    known = {"primary": results.primary, "baseline": results.baseline, "regimes": results.regimes}
    shares = {"layernorm": 0.004, "rmsnorm": 0.4}
    compared = tuple(
        c.model_copy(update={"variance_reduction": shares[c.variant]}) for c in results.analysis.comparisons
    )
    analysis = results.analysis.model_copy(update={"comparisons": compared})
    assert plain(pairing(SimpleNamespace(analysis=analysis, **known))) == (
        "Pairing by seed removed 40 % (rmsnorm) of the variance of the difference in validation loss. "
        "In validation loss, pairing by seed did not help for layernorm."
    )


def test_a_metric_that_follows_from_a_registered_one_is_not_said_to_have_its_own_correction(tmp_path):
    results = made(tmp_path)
    assert comparisons(results).endswith("but for metrics that follow from a registered one and share its test.")
    own = tuple(c for c in results.analysis.comparisons if c.shares_test_of is None)
    alone = SimpleNamespace(analysis=results.analysis.model_copy(update={"comparisons": own}))
    assert comparisons(alone).endswith("All others are exploratory and have their own correction.")


def test_curves_that_were_not_kept_are_drawn_from_the_results_and_the_page_says_so(tmp_path):
    results = made(tmp_path)
    page = text_of(results)
    assert "Loss and gradient norm along training." in page
    assert "charts of single runs from metrics.jsonl" in page
    for run in (tmp_path / "runs").iterdir():
        (run / "metrics.jsonl").unlink()
    page = text_of(Results.open(tmp_path))
    assert "Not kept, to save room: metrics.jsonl of all twelve runs that ended" in page
    assert "The loss is drawn from the thinned curve in each result.json, at most 100 points of a run." in page
    assert page.count("thinned curve") == 1  # the captions below do not say it again
    assert "Loss along training." in page
    assert "charts of single runs from metrics.jsonl" not in page
    assert "curves from result.json." in page


def test_without_a_curve_in_any_result_none_is_announced(tmp_path):
    build(tmp_path, study(variants=["none", "layernorm"], seeds=[1, 2]), curves=lambda variant, regime, seed: [3.0])
    for run in (tmp_path / "runs").iterdir():
        (run / "metrics.jsonl").unlink()
    page = text_of(with_analysis(Results.open(tmp_path), say=lambda text: None))
    assert "Not kept, to save room: metrics.jsonl of all four runs that ended, which has the training curves." in page
    assert "along training." not in page
    assert "curves from" not in page
    assert "drawn from" not in page


def test_how_levels_are_passed_on_is_told_where_primaries_have_secondaries(tmp_path):
    primary = {"metric": "validation_loss", "role": "primary", "smallest_effect": 0.01}
    secondary = {"metric": "perplexity", "role": "secondary"}
    half = "passes half of its level to the other ones"
    for variants, criteria, told in (
        (["none", "layernorm", "rmsnorm"], [primary, secondary], True),
        (["none", "layernorm", "rmsnorm"], [primary], False),
        (["none", "layernorm"], [primary, secondary], False),
    ):
        folder = tmp_path / f"{len(variants)}{len(criteria)}"
        analysis = made(folder, variants=variants, criteria=criteria).analysis
        assert (half in corrections(analysis)) is told, (variants, criteria)


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
    assert "Stability against cost" not in text_of(results)


def test_the_tokens_to_the_same_loss_are_told_in_a_sentence():
    readings = [
        SimpleNamespace(kind="efficiency", estimate=2.29, low=2.1, high=2.5, regime="default", variant="layernorm"),
        SimpleNamespace(kind="efficiency", estimate=0.8, low=None, high=None, regime="default", variant="rmsnorm"),
    ]
    analysis = SimpleNamespace(readings=SimpleNamespace(readings=readings))
    told = efficiency(SimpleNamespace(analysis=analysis, baseline="none", regimes=("default", "tuned")))
    assert told == (
        "Tokens that it takes to the same loss, in those of none: in default, layernorm 2.29 times (2.10 to 2.50) and "
        "rmsnorm 0.800 times. This is exploratory, and not corrected for several readings."
    )


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
    texts = [tables_of(exploded)[0].markdown(), text_of(exploded)]
    for text in texts:
        assert not re.search(r"12,8\d\d", plain(text))  # the mean, and the difference
    assert "| medians |" in texts[0]
    assert tradeoff(exploded) == ()
    assert power(exploded) == ()
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
        told[how] = (text_of(results), said(document_of([results], {})))
    for how in ("shared", "none"):
        page, paper = told[how]
        assert "Unpaired, as asked: Welch's test compares the means of b and a, whatever their seeds." in page
        assert "The runs of this study are compared unpaired, as asked, by fixed decision rules." in paper
        assert "Runs are compared unpaired, as asked." in paper
        assert not any("no seed" in text for text in (page, paper))
    page, paper = told["disjoint"]
    assert "Unpaired: b and a share no seed, so Welch's test compares their means." in page
    assert "Arms share no seed, so their runs are compared unpaired." in paper
    for page, paper in told.values():
        assert "runs 9 not paired" in page
        assert "in a table of nine runs." in paper
        assert "Mean ± SD over 4 to 5 runs." in page


def test_equal_differences_are_not_called_too_few(tmp_path):
    results = kinds.unvaried_study(tmp_path)
    page = text_of(results)
    assert "Δ: arm − none, paired by seed. All four differences of layernorm in validation loss equal −0.250" in page
    assert "none (no spread)" in page
    for words in ("too few", "fewer than 3", "too-few-pairs", "degenerate"):
        assert words not in page


def test_too_few_runs_are_told_in_words(tmp_path):
    rows = [
        f"{arm},{seed + 9 * (arm == 'b')},{seed / 4}" for arm, seeds in (("a", 4), ("b", 2)) for seed in range(seeds)
    ]
    page = text_of(kinds.table_study(tmp_path, "variant,seed,val_loss", rows))
    assert "none (too few)" in page
    assert "too-few-pairs" not in page


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
    planned = "What one run of each arm is planned to cost (runs that diverged ended earlier), and the settings"
    assert planned in text_of(broken_results)
    assert "What one run of each arm costs, and the settings" in text_of(untied_results)
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


def test_the_legend_of_power_lists_what_is_drawn(untied_results):
    (figure,) = power(untied_results)
    chart = figure.chart.to_dict()
    listed = [
        layer["encoding"][name]["legend"]
        for layer in chart["layer"]
        for name in ("color", "shape")
        if name in layer["encoding"]
    ]
    assert [legend["values"] for legend in listed if legend] == [["untied"]] * len([x for x in listed if x])
    assert listed
