"""`ablationlab replicate` as a user meets it, with a real tiny study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ablationlab.instrument.replication import Replication
from ablationlab.records.run import Result
from ablationlab.records.storage import ResultsFolder
from cli.test_cli import flat, refused
from conftest import to_toml

FIGURES = [
    {
        "metric": "perplexity",
        "published_as": "validation PPL",
        "definition": "as ours",
        "digits": 1,
        "values": {"none": {"mean": 15.0, "sd": 1.0, "n": 3}, "layernorm": {"mean": 500.0, "sd": 1.0, "n": 3}},
    },
    {
        "metric": "curve_loss",
        "take": "minimum",
        "published_as": "best loss",
        "definition": "lowest of the curve",
        "values": {"none": {"mean": 2.7, "n": 1}},
    },
]
SIGN = {"metric": "validation_loss", "variant": "layernorm", "sign": "lower", "published_as": "better with it"}


def table_file(folder: Path, **changes: Any) -> Path:
    whole = {
        "schema_version": 1,
        "name": "mine",
        "title": "A table of mine",
        "about": "Three runs each.",
        "study": "tiny.toml",
        "quick": ["training.steps=6"],
        "source": {"citation": "someone", "date": "2026"},
        "figures": FIGURES,
        "directions": [SIGN],
        **changes,
    }
    path = folder / "mine.toml"
    path.write_text(to_toml(whole))
    return path


def test_alone_it_lists_what_there_is(cli):
    code, output, _ = cli("replicate")
    assert code == 0
    for name in ("pilot", "nanogpt", "takase", "lescao", "arXiv 2312.16903"):
        assert name in flat(output)


def test_it_trains_compares_and_writes_and_the_second_time_only_compares(cli, tmp_path, study_file):
    criteria = [{"metric": "validation_loss", "role": "primary", "smallest_effect": 0.05}]
    study_file({"seeds": [1, 2, 3], "evaluation": {"curve_every": 4, "curve_windows": 8}, "criteria": criteria})
    path = table_file(tmp_path)
    code, output, errors = cli("replicate", path, "--out", "there", "--workers", "1", "--device", "cpu")
    assert code == 0, errors
    text = flat(output)
    assert "A table of mine" in text
    assert "not a replication" not in text
    assert "intervals that hold 0: 0 of 3" in text
    found = Replication.read(tmp_path / "there" / "replication.json")
    results = ResultsFolder(tmp_path / "there")
    by_run = {one.run: one.value for one in found.figures[0].values}
    assert len(by_run) == 3
    for run, value in by_run.items():
        assert Result.read(results.run(run).result).metrics["perplexity"] == value
    assert {figure.published.metric for figure in found.figures} == {"perplexity", "curve_loss"}
    assert found.figures[2].outcome in ("within", "outside")
    before = {file: file.stat().st_mtime_ns for file in results.runs.rglob("*.json")}
    code, again, _ = cli("replicate", path, "--results", "there")
    assert code == 0
    assert flat(again).endswith(flat(output[output.index("A table of mine") :]))
    assert {file: file.stat().st_mtime_ns for file in results.runs.rglob("*.json")} == before
    assert Replication.read(tmp_path / "there" / "replication.json") == found


def test_quick_is_smaller_elsewhere_and_says_what_it_is_not(cli, tmp_path, study_file):
    study_file({"seeds": [1, 2, 3]})
    code, output, errors = cli("replicate", table_file(tmp_path), "--quick", "--workers", "1", "--device", "cpu")
    assert code == 0, errors
    assert "not a replication" in flat(output)
    assert "training.steps 6 12" in flat(output)
    assert (tmp_path / "results" / "tiny-quick" / "replication.json").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["pilto"], ["'pilto'", "did you mean 'pilot'"]),
        (["pilot", "--results", "nowhere"], ["nowhere", "is not a results folder"]),
        (["pilot", "--results", "x", "--set", "seeds=[1]"], ["--results takes runs as they are"]),
        (["--out", "x"], ["--out", "name the table too"]),
        (["missing.toml"], ["missing.toml", "no such file"]),
        (["pilot", "--study", "none.toml"], ["none.toml", "no such study file"]),
    ],
)
def test_mistakes_are_refused_in_one_message(cli, words, says):
    refused(cli("replicate", *words), *says)


def test_a_table_that_its_study_does_not_fit_is_refused_before_training(cli, tmp_path, study_file):
    study_file()
    path = table_file(tmp_path, directions=[{**SIGN, "variant": "sqrt-d"}])
    refused(cli("replicate", path), "directions[0].variant", "variant of the study", "none, layernorm, rmsnorm")
    assert not (tmp_path / "results").exists()
