"""The verb on results folders: made of records alone, and really trained."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.special import gamma

from ablationlab.core.errors import MismatchError, StatisticsError
from ablationlab.instrument.validation import Validation, validate
from ablationlab.records.run import RunRecord
from ablationlab.records.storage import ResultsFolder
from ablationlab.report.charts.validation import power_figure
from ablationlab.report.tables.validation import validation_markdown, validation_summary, validation_tables
from analysis.builder import build, seal_again, study

SWEEP = {"lr": [1e-3, 5e-4], "selection_seeds": list(range(100, 140))}


def loss(variant, lr, seed):
    """Exchangeable arms; half the rate costs 1.68 SDs of the paired difference."""
    shared = np.random.default_rng([seed, 0]).normal(0, 0.1)
    own = np.random.default_rng([seed, len(variant), round(lr * 1e6)]).normal(0, 0.01)
    return {"validation_loss": 2.0 + shared + own + (1.68 * 0.01 * 2**0.5 if lr < 1e-3 else 0.0)}


def exchangeable(**changes):
    return study(
        **{"variants": {"none": {}, "redrawn": {"model": {"redraw": 1}}}, "seeds": list(range(1, 61)), **changes}
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("validation") / "out"
    # So small that no study of five pairs shows equivalence: what is found is decided on.
    criteria = [{"metric": "validation_loss", "role": "primary", "smallest_effect": 0.002}]
    build(path, exchangeable(sweep=SWEEP, criteria=criteria), swept=loss)
    return path


@pytest.fixture(scope="module")
def found(folder):
    return validate(folder)


def test_a_folder_is_cut_judged_and_counted(found):
    assert (found.studies, found.pairs, found.left_over, found.incomplete) == (12, 5, 0, 0)
    (one,) = found.comparisons
    assert one.id == "validation_loss/default/redrawn:none"
    assert one.deltas.n == 60
    assert found.compatibility[0].compatible
    assert found.families[0].members == (one.id,)
    assert found.families[0].any == one.significant
    assert sum(rate.hits for rate in found.answers[0].answers.values()) == 12


def test_an_injected_effect_is_calibrated_on_other_seeds_and_held_against_its_power(found):
    none, half = found.doses
    assert (none.lr, none.planned, none.planned_low, none.planned_high) == (1e-3, 0.05, 0.05, 0.05)
    assert none.detected == found.comparisons[0].significant, "without an effect it is the A/A study"
    deltas = [
        loss("redrawn", 5e-4, s)["validation_loss"] - loss("none", 1e-3, s)["validation_loss"] for s in range(100, 140)
    ]
    assert half.calibration.n == 40
    assert half.calibration.mean == pytest.approx(np.mean(deltas))
    unbiased = gamma(39 / 2) / gamma(38 / 2) / np.sqrt(39 / 2)  # Hedges 1981
    assert half.calibration.d == pytest.approx(unbiased * np.mean(deltas) / np.std(deltas, ddof=1))
    assert half.calibration.d_low < 1.68 < half.calibration.d_high
    assert half.planned_low < half.planned < half.planned_high
    assert half.planned_low < half.expected < half.planned_high
    assert none.expected is None
    assert half.compatible
    assert half.detected.hits >= 6
    assert half.wrong_way.hits == 0
    assert half.answers["worse"] == half.detected


def test_the_record_is_written_and_read_again_and_everything_is_shown(found, tmp_path):
    found.replace(tmp_path / "validation.json")
    assert Validation.read(tmp_path / "validation.json") == found
    text = validation_markdown(found)
    for table in validation_tables(found):
        assert table.markdown() in text
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert all(f"- {line}" in text for line in validation_summary(found))
    assert "rejected the true null in" in text
    assert f"d = {found.doses[1].calibration.d:.2f}" in text.replace("\N{MINUS SIGN}", "-")


def test_the_figure_holds_every_dose_on_the_curve_of_planned_power(found):
    figure = power_figure(found)
    points = next(rows for rows in figure.data.values() if "rate" in rows[0])
    curve = next(rows for rows in figure.data.values() if "power" in rows[0] and len(rows) > 1)
    assert [point["d"] for point in points] == [0.0, found.doses[1].calibration.d]
    powers = [row["power"] for row in curve]
    assert powers[0] == 0.05
    assert powers == sorted(powers)


def test_the_command_writes_what_it_says(folder, cli, tmp_path):
    code, out, errors = cli("validate", folder, "--out", tmp_path / "v")
    assert code == 0, errors
    assert "Significant where nothing differs: 12 studies of 5 pairs" in out
    written = json.loads((tmp_path / "v" / "validation.json").read_text())
    assert written["kind"] == "validation"
    assert (tmp_path / "v" / "validation.md").read_text().startswith("# Validation: made")
    assert (tmp_path / "v" / "validation.svg").read_text().startswith("<svg")


def test_arms_that_are_not_exchangeable_are_refused(tmp_path):
    build(tmp_path, study())
    with pytest.raises(StatisticsError, match="layernorm and none are not exchangeable"):
        validate(tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"criteria": []}, "no primary criterion is registered"),
        ({"regimes": {"hot": {"training": {"lr": 1e-2}}}}, "the default regime alone, not hot"),
        ({"variants": ["none"]}, "a single arm compares with nothing"),
        ({"sweep": {"lr": [1e-3, 5e-4]}}, "the sweep has no selection_seeds"),
        ({"sweep": {**SWEEP, "lr": [2e-3, 5e-4]}}, "own rate 0.001 must be one of the sweep's"),
    ],
)
def test_a_study_that_cannot_be_validated_says_why(tmp_path, changes, says):
    build(tmp_path, exchangeable(seeds=list(range(1, 51)), **changes), swept=loss)
    with pytest.raises(StatisticsError, match=says):
        validate(tmp_path)


def test_rates_that_differ_in_more_than_the_rate_are_refused(tmp_path):
    plan = build(tmp_path, exchangeable(seeds=list(range(1, 51)), sweep=SWEEP), swept=loss)
    for run in plan.runs:  # both arms alike, so that arms of one rate match
        if run.lr == 5e-4 and run.seed == 3:
            where = ResultsFolder(tmp_path).run(run.id).record
            RunRecord.read(where).model_copy(update={"data_order_hash": "other"}).replace(where)
    seal_again(tmp_path)
    with pytest.raises(MismatchError):
        validate(tmp_path)
