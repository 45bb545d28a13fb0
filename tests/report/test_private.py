"""`run` ends with the report, repeats it byte for byte, and names no person, machine, folder or secret in it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from conftest import run_cli, write_study

from .conftest import mupdf

PLANTED = {
    "USER": "planted-user",
    "LOGNAME": "planted-user",
    "HF_TOKEN": "planted-token-4711",
    "WANDB_API_KEY": "planted-key-4712",
    "AWS_SECRET_ACCESS_KEY": "planted-secret-4713",
    "GIT_AUTHOR_EMAIL": "planted-person@example.org",
}
#: What belongs to this machine, and says so in docs/records.md.
OF_THIS_MACHINE = ("places.json",)


def words(home: Path) -> list[str | Path]:
    return ["run", home / "tiny.toml", "--out", home / "results", "--workers", "1", "--device", "cpu", "--report"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A study that a user of that name trained and reported, and the folder that it lies in."""
    home = tmp_path_factory.mktemp("planted-home")
    changes = {"variants": ["none", "layernorm"], "seeds": [1, 2, 3], "training.steps": 4, "use": ["./mine.py"]}
    (home / "mine.py").write_text("# nothing\n")
    path = write_study(home, {**changes, "data.corpus": str(home / "corpus.txt")})
    path.write_text(path.read_text() + '\n[[criteria]]\nmetric = "validation_loss"\nrole = "primary"\n')
    ended = run_cli(*words(home), folder=home, env={**PLANTED, "HOME": str(home)})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "report.html" in ended.stdout
    return home, home / "results"


def _readable(path: Path) -> bytes:
    """The content as a reader sees it: of a PDF its text and what it says of itself."""
    if path.suffix != ".pdf":
        return path.read_bytes()
    with mupdf().open(path) as document:
        return "\n".join([str(document.metadata), *(page.get_text() for page in document)]).encode()


def test_nothing_that_is_written_names_a_person_a_machine_a_folder_or_a_secret(finished):
    home, results = finished
    private = {*PLANTED.values(), str(home), home.name, *([host] if len(host := socket.gethostname()) > 5 else [])}
    files = [path for path in results.rglob("*") if path.is_file() and path.name not in OF_THIS_MACHINE]
    assert {"plan.lock", "run.json", "result.json", "seal.json", "analysis.json", "verdict.json", "report.html"} <= {
        path.name for path in files
    }
    told = {
        (path.relative_to(results).as_posix(), word)
        for path in files
        for word in private
        if word.encode() in _readable(path)
    }
    assert told == set()


def test_where_texts_and_code_lie_is_kept_apart(finished):
    home, results = finished
    assert str(home / "corpus.txt") in (results / "places.json").read_text()


def test_run_ends_with_the_report_and_repeats_it_byte_for_byte(finished, cli):
    """In two processes whose strings hash differently, so that no byte hangs on the order of a set."""
    home, results = finished
    before = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    assert {"paper.pdf", "tables", "figures"} <= {path.name for path in results.iterdir()}
    assert cli(*words(home))[0] == 0
    after = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    assert [path.name for path in after if after[path] != before.get(path)] == []
