"""A table against records of known numbers: values, signs, what flips, what is missing; and the reports that show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablationlab.core.errors import RecordError
from ablationlab.core.format import plain
from ablationlab.instrument.replication import PublishedTable, Replication, replicate, words
from ablationlab.pipeline import conclude
from ablationlab.records.replication import ChangedSetting
from ablationlab.records.results import Results
from ablationlab.records.settings import validated
from ablationlab.report.make import make_report
from ablationlab.report.page.build import write_page
from ablationlab.report.paper import write_paper
from ablationlab.report.paper.compose import document_of
from ablationlab.report.paper.document import Float
from ablationlab.report.tables.replication import direction_table
from ablationlab.stats.intervals import difference_of_means
from analysis.builder import STEPS, build, calm, study

SIGN = {"metric": "validation_loss", "variant": "layernorm", "sign": "lower", "published_as": "better with it"}
CRITERIA = [
    {"metric": "validation_loss", "regime": regime, "role": "primary", "smallest_effect": 0.05}
    for regime in ("default", "hot")
]
EVIL = "<script>alert(1)</script> #panic() {{ 7*7 }} [red]"


def table(**changes: Any) -> PublishedTable:
    whole = {
        "schema_version": 1,
        "name": "mine",
        "title": "A table",
        "about": "About it.",
        "study": "made.toml",
        "source": {"citation": "someone", "date": "2026"},
        "figures": [],
        "directions": [],
        **changes,
    }
    return validated(PublishedTable, whole)


def figure(**changes: Any) -> dict[str, Any]:
    whole = {"metric": "validation_loss", "published_as": "loss", "definition": "as ours", "values": {}}
    return {**whole, **changes}


def flipping(variant: str, regime: str, seed: int) -> dict[str, float]:
    """layernorm helps by 0.2 in the default regime and hurts by 0.3 in the hot one."""
    noise = np.random.default_rng([seed, len(variant), len(regime)]).normal(0, 0.01)
    effect = 0.0 if variant == "none" else -0.2 if regime == "default" else 0.3
    loss = float(2.0 + 0.05 * seed + noise + effect)
    return {"validation_loss": loss, "perplexity": float(np.exp(loss)), "final_gradient_norm": 0.5 + 0.01 * seed}


@pytest.fixture
def flipped(tmp_path: Path) -> Path:
    """A finished study in two regimes whose effect has opposite signs."""
    made = study(regimes={"hot": {"training": {"lr": 0.01}}}, criteria=CRITERIA)
    build(tmp_path, made, outcomes=flipping)
    return tmp_path


def values_of(variant: str, regime: str = "default") -> list[float]:
    return [flipping(variant, regime, seed)["validation_loss"] for seed in (1, 2, 3, 4, 5)]


def test_a_figure_holds_both_means_and_welchs_interval(flipped):
    published = {"none": {"mean": 2.1, "sd": 0.1, "n": 3}, "layernorm": {"mean": 1.0, "sd": 0.1, "n": 3}}
    found = replicate(table(figures=[figure(values=published, digits=1)]), flipped)
    none, layernorm = found.figures
    wanted = difference_of_means(values_of("none"), 2.1, n=3, sd=0.1, rounding=0.05)
    assert none.mean == pytest.approx(np.mean(values_of("none")))
    assert none.sd == pytest.approx(np.std(values_of("none"), ddof=1))
    assert (none.difference, wanted.method) == (wanted, "welch")
    assert (none.outcome, layernorm.outcome) == ("within", "outside")
    assert [one.seed for one in none.values] == [1, 2, 3, 4, 5]
    assert layernorm.difference.estimate == pytest.approx(np.mean(values_of("layernorm")) - 1.0)
    told = plain(" ".join(words.conclusions(found)))
    assert "For one of two published figures, the 95 % interval of the difference includes 0: loss of none" in told
    assert "are not reproduced: loss of layernorm (1 published" in told


def test_a_figure_of_another_definition_is_not_said_to_fail(flipped):
    values = {"layernorm": {"mean": 1.0, "sd": 0.1, "n": 3}}
    asked = figure(values=values, same_definition=False)
    told = " ".join(words.conclusions(replicate(table(figures=[asked]), flipped)))
    assert "These differ, but are defined in another way there, or not at all: loss of layernorm (1 published" in told
    assert "not reproduced" not in told


def test_a_figure_that_is_not_reproduced_has_the_digits_that_tell_it_from_ours(flipped):
    found = replicate(table(figures=[figure(values={"none": {"mean": 11.17158, "n": 3}})]), flipped)
    near = found.figures[0].model_copy(update={"mean": 11.1702, "outcome": "outside"})
    told = " ".join(words.conclusions(found.model_copy(update={"figures": (near,)})))
    assert "none (11.17158 published, 11.170 here)" in told


def test_a_signs_interval_is_not_said_to_have_the_level_of_the_figures(flipped):
    assert "deciding interval" in direction_table(replicate(table(directions=[SIGN]), flipped)).html().lower()


def test_without_a_published_spread_ours_predicts(flipped):
    (only,) = replicate(table(figures=[figure(values={"none": {"mean": 2.1, "n": 1}})]), flipped).figures
    wanted = difference_of_means(values_of("none"), 2.1, n=1)
    assert (only.difference, wanted.method) == (wanted, "prediction")


@pytest.mark.parametrize(("take", "pick"), [("minimum", min), ("maximum", max), ("last", lambda losses: losses[-1])])
def test_a_number_per_step_is_taken_as_asked(flipped, take, pick):
    values = {"none": {"mean": 1.5, "n": 1}}
    (one,) = replicate(table(figures=[figure(metric="loss", take=take, values=values)]), flipped).figures
    assert [run.value for run in one.values] == pytest.approx([pick(calm(seed, STEPS)) for seed in (1, 2, 3, 4, 5)])


def test_a_sign_that_flips_between_regimes_is_said(flipped):
    found = replicate(table(directions=[SIGN], beside=["hot"]), flipped)
    own, beside = found.directions
    assert (own.regime, own.beside, own.outcome) == ("default", False, "transfers")
    assert (beside.regime, beside.beside, beside.outcome) == ("hot", True, "reversed")
    delta, low, high = own.estimate
    assert delta == pytest.approx(np.mean(np.subtract(values_of("layernorm"), values_of("none"))))
    assert low < delta < high < 0 < beside.estimate[1]
    assert any("The sign flips: layernorm − none" in text for text in words.conclusions(found))


def test_figures_are_shown_in_the_regimes_beside_too(flipped):
    values = {"none": {"mean": 2.1, "sd": 0.1, "n": 3}}
    found = replicate(table(figures=[figure(values=values)], beside=["hot"]), flipped)
    assert [(one.regime, one.beside) for one in found.figures] == [("default", False), ("hot", True)]
    assert found.figures[1].mean == pytest.approx(np.mean(values_of("none", "hot")))


@pytest.mark.parametrize(
    ("effect", "spread", "sign", "outcome"),
    [
        (-0.2, 0.01, "lower", "transfers"),
        (-0.2, 0.01, "higher", "reversed"),
        (0.0, 0.01, "lower", "absent"),
        (0.0, 0.3, "lower", "undecided"),
    ],
)
def test_a_direction_is_decided_by_test_and_equivalence(tmp_path, effect, spread, sign, outcome):
    def outcomes(variant: str, regime: str, seed: int) -> dict[str, float]:
        noise = np.random.default_rng([seed, len(variant)]).normal(0, spread)
        return {"validation_loss": 2.0 + noise + (effect if variant == "layernorm" else 0.0)}

    build(tmp_path, study(), outcomes=outcomes)
    (one,) = replicate(table(directions=[{**SIGN, "sign": sign}]), tmp_path).directions
    assert one.outcome == outcome
    assert one.reason == {"absent": "equivalent", "undecided": "no-difference-shown"}.get(outcome, "difference-shown")
    assert one.comparison.id == "validation_loss/default/layernorm:none"


def test_what_is_not_there_is_said_and_not_invented(tmp_path):
    build(tmp_path, study(), outcomes=lambda v, r, s: None if s == 1 and v == "none" else flipping(v, r, s))
    values = {"none": {"mean": 2.1, "n": 3}, "rmsnorm": {"mean": 2.1, "n": 3}}
    found = replicate(
        table(
            figures=[figure(values=values), figure(metric="curve_loss", take="minimum", values=values)],
            directions=[{**SIGN, "variant": "rmsnorm"}, {**SIGN, "metric": "macro_accuracy"}],
        ),
        tmp_path,
    )
    none, rmsnorm, curve, _ = found.figures
    assert len(none.values) == 4
    assert [missing.reason for missing in none.missing] == ["diverged"]
    assert (rmsnorm.outcome, rmsnorm.mean) == ("not-measured", None)
    assert (curve.outcome, curve.values) == ("not-measured", ())
    assert (curve.missing[1].reason, curve.missing[1].details) == ("not-in-curve", {"metric": "curve_loss"})
    assert {one.outcome for one in found.directions} == {"not-measured"}


def test_other_settings_than_the_tables_study_make_it_no_replication(flipped):
    regimes = {"hot": {"training": {"lr": 0.01}}}
    values = {"none": {"mean": 2.1, "n": 3}}
    asked = table(figures=[figure(values=values)], beside=["hot"])
    same = study(regimes=regimes, criteria=CRITERIA, seeds=[7, 8, 9])
    assert replicate(asked, flipped, study=same).changed == ()
    longer = study(regimes=regimes, criteria=CRITERIA, training={**same.training.model_dump(mode="json"), "steps": 90})
    assert replicate(asked, flipped, study=longer).changed == (
        ChangedSetting(key="training.steps", ours=STEPS, asked=90),
    )
    hotter = study(regimes={"hot": {"training": {"lr": 0.1}}}, criteria=CRITERIA)
    found = replicate(asked, flipped, study=hotter)
    assert found.changed == ()
    assert found.changed_beside == (ChangedSetting(key="regimes.hot.training.lr", ours=0.01, asked=0.1),)
    assert any("regimes.hot.training.lr = 0.01 instead of 0.1" in text for text in words.warnings(found))


def test_an_unfinished_study_is_marked(tmp_path):
    build(tmp_path, study(), only=lambda run: run.seed <= 3)
    found = replicate(table(directions=[SIGN]), tmp_path)
    assert (found.runs_ended, found.runs_planned) == (6, 10)


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(RecordError, match=r"neither plan\.lock"):
        replicate(table(directions=[SIGN]), tmp_path)


@pytest.fixture
def recorded(flipped: Path) -> Path:
    """That study with its conclusions and a replication whose texts are hostile."""
    conclude(flipped)
    values = {"none": {"runs": [2.1, 2.2, 2.0]}, "layernorm": {"mean": 1.0, "n": 3}}
    whole = table(
        title=EVIL,
        about=EVIL,
        figures=[figure(values=values, published_as=EVIL, same_definition=False, note=EVIL)],
        directions=[{**SIGN, "published_as": EVIL, "note": EVIL}],
        beside=["hot"],
    )
    replicate(whole, flipped).replace(flipped / "replication.json")
    return flipped


def test_the_record_reads_back_whole_with_what_was_published_and_what_the_analysis_found(recorded):
    found = Replication.read(recorded / "replication.json")
    assert found.to_bytes() == (recorded / "replication.json").read_bytes()
    assert found.figures[0].published_value.runs == (2.1, 2.2, 2.0)
    compared = Results.open(recorded).analysis.comparisons
    assert all(direction.comparison in compared for direction in found.directions)


def test_page_tables_and_paper_show_it_escaped(recorded):
    material = Results.open(recorded)
    assert material.problems == ()
    page = write_page(material, recorded).read_text()
    section = page[page.index("Published and ours") :]
    assert "transfers" in section
    assert "<script>alert" not in section
    assert "&lt;script&gt;alert" in section
    assert write_paper(material, recorded).read_bytes().startswith(b"%PDF")
    keys = [block.key for block in document_of([material], {}).body if isinstance(block, Float)]
    assert "replication" in keys


def test_without_a_replication_nothing_of_it_is_shown(flipped):
    conclude(flipped)
    material = Results.open(flipped)
    assert "Published and ours" not in write_page(material, flipped).read_text()
    keys = [block.key for block in document_of([material], {}).body if isinstance(block, Float)]
    assert "replication" not in keys


def test_a_replication_of_another_plan_is_left_out_and_named(recorded):
    path = recorded / "replication.json"
    Replication.read(path).model_copy(update={"source_hash": "f" * 64}).replace(path)
    said: list[str] = []
    make_report(recorded, parts=["page"], say=said.append)
    assert any("replication.json: belongs to another plan" in text for text in said)
    assert "Published and ours" not in (recorded / "report.html").read_text()
