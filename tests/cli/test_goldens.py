"""What verbs print, whole, at 80 columns. ABLATIONLAB_RENEW=1 writes the golden files again; read them when they change."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from rich.cells import cell_len

from ablationlab.instrument.replication import PublishedTable, replicate
from ablationlab.pipeline import conclude
from ablationlab.records.settings import validated
from ablationlab.report.terminal.replicated import replication_view
from analysis.builder import build, study
from report.answers import made

GOLDEN = Path(__file__).parent / "golden"
STUDIES = Path(__file__).parents[2] / "studies"
TABLE = {
    "schema_version": 1,
    "name": "mine",
    "title": "A table",
    "about": "About it.",
    "study": "made.toml",
    "source": {"citation": "someone", "date": "2026"},
    "figures": [
        {
            "metric": "validation_loss",
            "published_as": "validation loss",
            "definition": "nats per token",
            "values": {"none": {"mean": 2.5, "sd": 0.05, "n": 3}, "layernorm": {"mean": 2.0, "sd": 0.05, "n": 3}},
        }
    ],
    "directions": [
        {"metric": "validation_loss", "variant": "layernorm", "sign": "lower", "published_as": "better with it"},
        {"metric": "validation_loss", "variant": "layernorm", "sign": "higher", "published_as": "worse with it"},
    ],
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the results of one study, those of a smaller one, and a study without."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    shutil.copytree(made("clean").folder, tmp_path / "results" / "clean")
    sealed = made("clean").plan
    assert sealed is not None
    training = sealed.study.training.changed(lr=0.002)
    build(tmp_path / "results" / "other", sealed.study.changed(name="other", seeds=(1, 2, 3), training=training))
    conclude(tmp_path / "results" / "other")
    shutil.copy(STUDIES / "quick.toml", tmp_path)
    return tmp_path


def same(name: str, printed: str) -> None:
    text = re.sub(r"\b[0-9a-f]{12}\b", "(a hash)", "\n".join(line.rstrip() for line in printed.splitlines())) + "\n"
    assert max(map(cell_len, text.splitlines())) <= 80
    assert len(text.splitlines()) <= 25
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("ABLATIONLAB_RENEW"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("verify", ["verify", "clean"], 0),
        ("ls", ["ls"], 0),
        ("diff", ["diff", "clean", "other"], 0),
        ("power", ["power", "quick.toml", "--sd", "0.02"], 0),
        ("power-without-sd", ["power", "quick.toml"], 0),
        ("power-tuned", ["power", str(STUDIES / "scoreboard.toml"), "--sd", "0.03"], 0),
    ],
)
def test_a_verb_prints_what_it_printed(place, cli, name, words, code):
    ended = cli(*words)
    assert (ended[0], ended[2]) == (code, "")
    same(name, ended[1])


def test_verify_names_what_does_not_hold(place, cli):
    (place / "results" / "clean" / "notes.md").write_text("mine")
    run = next(iter(sorted((place / "results" / "clean" / "runs").iterdir())))
    (run / "metrics.jsonl").write_text("{}")
    (place / "results" / "clean" / "verdict.json").unlink()
    code, printed, _ = cli("verify", "clean")
    assert code == 1
    same("verify-broken", printed)


def test_a_replication_prints_what_it_printed(tmp_path, monkeypatch, capsys):
    from ablationlab.cli.common import Printer

    monkeypatch.setenv("COLUMNS", "80")
    build(tmp_path, study(seeds=[1, 2, 3]))
    conclude(tmp_path)
    found = replicate(validated(PublishedTable, TABLE), tmp_path)
    Printer().parts(*replication_view(found, Path("results/made")))
    same("replicate", capsys.readouterr().out)
