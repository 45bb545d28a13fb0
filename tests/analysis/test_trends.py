"""One contrast over results folders of several sizes."""

from __future__ import annotations

import numpy as np
import pytest

from ablationlab.analysis import analyze, read_results
from ablationlab.analysis.trends import study_trend
from ablationlab.core.errors import TableError
from ablationlab.core.format import plain
from ablationlab.report.terminal.trend import chance, trend_clauses
from ablationlab.stats.trend import trend

from .builder import build, outcome, study


def studies(tmp_path, widths=(16, 32, 64), less=0.1, **settings):
    """layernorm gains 0.2 nats at width 16 and *less* at every doubling."""
    folders = []
    for place, width in enumerate(widths):

        def ended(variant, regime, seed, place=place):
            metrics = outcome(variant, regime, seed)
            loss = metrics["validation_loss"] + (less * place if variant == "layernorm" else 0.0)
            return {"validation_loss": loss, "perplexity": float(np.exp(loss))}

        folder = tmp_path / f"w{place}"
        model = {"layers": 1, "width": width, "heads": 2, "context": 16}
        build(folder, study(name=f"w{width}", model=model, **settings), outcomes=ended)
        analyze(read_results(folder)).replace(folder / "analysis.json")
        folders.append(folder)
    return folders


@pytest.mark.parametrize(
    ("probability", "text"), [(0.0, "below 1 %"), (0.004, "below 1 %"), (0.042, "4 %"), (0.9999, "above 99 %")]
)
def test_an_estimated_probability_is_never_said_to_be_certain(probability, text):
    assert plain(chance(probability)) == text


def test_a_trend_is_read_from_three_folders_in_any_order(tmp_path):
    folders = studies(tmp_path)
    found = study_trend(folders[::-1], at=800.0)
    assert [effect.size for effect in found.studies] == [100, 200, 400]
    assert found.fit.slope == pytest.approx(0.1 / np.log10(2), rel=0.05)
    assert found.fit.prediction.estimate == pytest.approx(0.1, abs=0.02)
    assert found.fit.degrees_of_freedom == 1


def test_two_sizes_are_too_few_and_everything_wrong_is_said_at_once(tmp_path):
    folders = studies(tmp_path, widths=(16, 32, 32))
    with pytest.raises(TableError, match="3 different sizes"):
        study_trend(folders)
    with pytest.raises(TableError, match="did you mean 'layernorm'") as caught:
        study_trend(folders, variant="layernrm")
    assert len(caught.value.problems) == 3
    with pytest.raises(TableError, match="compares no final_loss"):
        study_trend(folders, metric="final_loss")


def test_a_study_whose_plan_or_records_were_changed_is_in_no_trend(tmp_path, cli):
    folders = studies(tmp_path)
    plan = folders[0] / "plan.lock"
    sealed = plan.read_text()
    plan.write_text(sealed.replace('"parameters": 100', '"parameters": 1000'))
    with pytest.raises(TableError, match=r"w0/plan\.lock was changed after it was sealed"):
        study_trend(folders)
    code, _, errors = cli("power", folders[1], "--from", folders[0])
    assert code == 2
    assert "plan.lock was changed after it was sealed, so its runs are no pilot" in errors
    plan.write_text(sealed)
    next((folders[1] / "runs").glob("*/result.json")).write_text("{}")
    with pytest.raises(
        TableError, match=r"w1: .*result\.json is not as it was sealed .*; run ablationlab analyze first"
    ):
        study_trend(folders)


def test_the_command_prints_the_studies_the_trend_and_the_prediction(tmp_path, capsys):
    from ablationlab.cli.app import main

    folders = studies(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["trend", *map(str, folders), "--at", "1600"])
    printed = capsys.readouterr().out
    assert not ended.value.code
    for words in ("layernorm − none", "per factor of ten", "predicted", "1,600", "holds at 1,600:"):
        assert words in printed


def test_a_line_that_crosses_zero_beyond_the_studies_is_no_evidence_of_harm(tmp_path):
    folders = studies(tmp_path, less=0.08)
    far = list(trend_clauses(study_trend(folders, at=1600.0)))
    assert [clause.code for clause in far] == ["trend.fit", "trend.sign", "trend.beyond", "trend.crosses"]
    assert [slot.text for slot in far[2].slots.values()] == ["4.00", "4.00"]
    near = list(trend_clauses(study_trend(folders, at=300.0)))
    assert [clause.code for clause in near] == ["trend.fit", "trend.sign"]


def test_tuned_arms_at_grid_rates_have_no_trend(tmp_path):
    folders = studies(tmp_path, sweep={"lr": [0.001, 0.002, 0.004], "selection_seeds": [91]})
    with pytest.raises(TableError, match="known at the chosen grid rates only") as caught:
        study_trend(folders, regime="tuned")
    assert len(caught.value.problems) == 3


def test_a_trend_of_tuned_arms_counts_what_their_fits_may_hide(tmp_path):
    """One curve for both arms, steeper above its optimum, whose place drifts with size: there is no trend."""

    def folder_of(place):
        def swept(variant, lr, seed):
            best = 3.2e-3 if variant == "none" else 3.2e-3 * 2 ** (0.2 * place)
            octaves = np.log2(lr / best)
            noise = np.random.default_rng([seed, len(variant), place]).normal(0, 1e-4)
            loss = float(2.0 + noise + (-0.05 if octaves < 0 else 0.2) * octaves)
            return {"validation_loss": loss, "perplexity": float(np.exp(loss))}

        folder = tmp_path / f"t{place}"
        model = {"layers": 1, "width": 16 * 2**place, "heads": 2, "context": 16}
        sweep = {"lr": [1e-3, 2e-3, 4e-3, 8e-3, 16e-3], "selection_seeds": [91]}
        build(folder, study(name=f"t{place}", model=model, sweep=sweep), swept=swept)
        analyze(read_results(folder)).replace(folder / "analysis.json")
        return folder

    found = study_trend([folder_of(place) for place in range(4)], regime="tuned", at=3200.0)
    effects = [effect.comparison for effect in found.studies]
    errors = [comparison.delta_sd / np.sqrt(comparison.n) for comparison in effects]
    deltas, sizes = [comparison.delta for comparison in effects], [effect.size for effect in found.studies]
    doubts = [comparison.doubt.larger for comparison in effects]
    alone = trend(sizes, deltas, errors, at=3200.0)
    assert sizes == [100, 200, 400, 800]
    assert {comparison.regime for comparison in effects} == {"tuned"}
    assert min(doubts) > 0
    assert found.fit == trend(sizes, deltas, errors, doubts=doubts, at=3200.0)
    assert found.fit.low < 0 < found.fit.high
    assert found.fit.p > alone.p
    assert found.fit.prediction.sign_holds < min(0.95, alone.prediction.sign_holds)
