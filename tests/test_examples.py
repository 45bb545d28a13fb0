"""The studies in examples/ that bring their own trainer, each run to its verdict on its tiny data."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ablationlab.cli.analyze import power
from ablationlab.records.analysis import Analysis
from ablationlab.records.run import Result
from conftest import run_cli

EXAMPLES = Path(__file__).parents[1] / "examples"


def trained(name: str, folder: Path) -> tuple[list[Result], Analysis]:
    """The example with one seed, from a copy."""
    study = shutil.copytree(EXAMPLES / name, folder / name) / "study.toml"
    options = ("--set", "seeds=[1]", "--out", folder / "results", "--workers", "1", "--device", "cpu")
    ended = run_cli("run", study, *options, folder=folder)
    assert ended.returncode == 0, ended.stderr
    runs = sorted((folder / "results" / "runs").iterdir())
    return [Result.read(run / "result.json") for run in runs], Analysis.read(folder / "results" / "analysis.json")


@pytest.mark.parametrize("name", ["plain_loop", "image_classifier"])
def test_a_loop_reports_data_order_and_initial_weights(tmp_path, name):
    results, analysis = trained(name, tmp_path)
    assert len(results) == 2
    assert all(result.status == "finished" and result.initial_weights for result in results)
    assert analysis.ledger.checked_pairs == 1
    assert "data order" in analysis.ledger.shared
    assert analysis.ledger.not_reported == ("tokens", "FLOPs")


@pytest.mark.parametrize("name", ["plain_loop", "image_classifier", "own_code"])
def test_power_of_a_study_with_metrics_of_its_own(name, capsys):
    assert power(EXAMPLES / name / "study.toml", sd=0.01) == 0
    assert "can show, with 80" in capsys.readouterr().out


@pytest.mark.needs("transformers", "accelerate")
def test_a_hugging_face_trainer_reports_through_its_callback(tmp_path):
    results, analysis = trained("huggingface", tmp_path)
    assert [result.steps for result in results] == [20] * 2
    assert all(3.5 < result.metrics["eval_loss"] < 5.0 for result in results)  # ln 64 = 4.16: the text is random
    assert "initial weights" in analysis.ledger.shared
    assert "data order" not in analysis.ledger.shared
