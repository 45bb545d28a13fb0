"""What many tests need: a small corpus, a tiny valid study on it, and the command line as a user meets it."""

from __future__ import annotations

import copy
import gc
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings

import warm
from ablationlab.data.sources import cache_folder
from ablationlab.records.run import StepLine

# A busy machine is no failure.
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")
gc.disable()  # until all tests are collected: what is imported stays
# numpy and torch read these when they are first imported. A thread that waits for its share of a small product spins: with
# two threads each, the tests of architectures took five times as much processor time on two busy cores.
# Where a study asks for two threads all the same, the one that waits sleeps: else the notebook's 108 small steps took 30 s.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
# Triton reads this when it is first imported, by whichever test: its kernels then run on the CPU.
os.environ["TRITON_INTERPRET"] = "1"
# Page, figures and paper after every tiny run would cost minutes; tests/report makes them, and one test runs to them.
os.environ.setdefault("ABLATIONLAB_REPORT", "false")
os.environ.pop("COLUMNS", None)  # parallel test processes have it, and what goes through a pipe follows it
warm.spare()
# Processes that tests start share the compiled sources, wherever bytecode is switched off: half a second for each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
first = warm.FOLDER not in os.environ  # of the test processes of this session, which share a folder
sys.executable = warm.executable()  # of whatever tests and the program start; warm.FRESH is the real one
if first:
    # What is slow to fetch or to make stays in the user's cache. What a test consents to run does not get there.
    real, cache = cache_folder(), Path(os.environ[warm.FOLDER], "cache")
    cache.mkdir()
    for name in ("archives", "benchmarks", "corpora", "javascript", "prepared", "processor"):
        (real / name).mkdir(parents=True, exist_ok=True)
        (cache / name).symlink_to(real / name)
    os.environ["ABLATIONLAB_CACHE"] = str(cache)


def chromium() -> str | None:
    """A browser for the pages."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("ABLATIONLAB_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


#: What fixtures need.
NEEDS = {"browser": ("chromium", "playwright"), "kernels": ("triton",), "lms": ("transformers", "accelerate")}


def absent(name: str) -> bool:
    """Whether this machine lacks a program or a library."""
    if name == "chromium":
        return chromium() is None
    return shutil.which(name) is None if name == "pdflatex" else importlib.util.find_spec(name) is None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that needs more than `make test` installs is one of `make test-more`, and skipped where that is not there."""
    for item in items:
        for fixture in NEEDS.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.needs(*NEEDS[fixture]))
        for mark in list(item.iter_markers("needs")):
            item.add_marker(pytest.mark.more)
            for name in mark.args:
                if absent(name) and not (name == "chromium" and os.environ.get("ABLATIONLAB_REQUIRE_BROWSER") == "1"):
                    item.add_marker(pytest.mark.skip(f"no {name} (make test-more)"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line for every reason to skip tests."""
    reasons = Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", ())
    )
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count} skipped: {reason}")


def pytest_collection_finish() -> None:
    """Set what collecting imported apart from garbage: a million objects, else walked through at every full collection."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_sessionfinish() -> None:
    """Let go of it: libraries look at the end for what was never freed."""
    gc.unfreeze()


SENTENCE = "the model reads one small text and learns to guess which letter comes next in every line"
WORDS = tuple(SENTENCE.split())


def corpus_text(size: int = 20_000) -> str:
    """About *size* characters of sentences from a fixed word list; the same on every machine."""
    lines: list[str] = []
    length = number = 0
    while length < size:
        stride = number % 5 + 1
        words = (WORDS[(7 * number + stride * place) % len(WORDS)] for place in range(5 + number % 6))
        lines.append(" ".join(words).capitalize() + ".\n")
        length += len(lines[-1])
        number += 1
    return "".join(lines)


TINY: dict[str, Any] = {
    "name": "tiny",
    "question": "Does the machinery work?",
    "baseline": "none",
    "variants": ["none", "layernorm", "rmsnorm"],
    "seeds": [1, 2],
    "model": {"layers": 1, "width": 16, "heads": 2, "context": 16},
    "training": {"steps": 12, "batch": 4, "lr": 1e-3, "warmup": 2, "precision": "fp32"},
    "data": {},
    "execution": {"checkpoint_every": 4, "threads": 1},
}


def with_changes(table: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Set dotted keys in a nested table; a value of ... removes the key."""
    table = copy.deepcopy(table)
    for key, value in changes.items():
        *path, leaf = key.split(".")
        here = table
        for part in path:
            here = here.setdefault(part, {})
        if value is ...:
            del here[leaf]
        else:
            here[leaf] = value
    return table


def to_toml(table: Mapping[str, Any], prefix: str = "") -> str:
    """TOML of nested tables of plain values; JSON's scalars and lists are TOML's too."""
    text = "".join(f"{k} = {_inline(v)}\n" for k, v in table.items() if not isinstance(v, Mapping))
    for key, inner in table.items():
        if isinstance(inner, Mapping):
            text += f"\n[{prefix}{key}]\n" + to_toml(inner, f"{prefix}{key}.")
    return text


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k} = {_inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def write_study(folder: Path, changes: Mapping[str, Any] | None = None, name: str = "tiny.toml") -> Path:
    """The tiny study and its corpus as files in *folder*."""
    (folder / "corpus.txt").write_text(corpus_text())
    path = folder / name
    path.write_text(to_toml(with_changes(TINY, {"data.corpus": "./corpus.txt", **(changes or {})})))
    return path


@pytest.fixture
def corpus_file(tmp_path: Path) -> Path:
    """A text of about 20 kB."""
    path = tmp_path / "corpus.txt"
    path.write_text(corpus_text())
    return path


@pytest.fixture
def study_table(corpus_file: Path) -> Callable[..., dict[str, Any]]:
    """A function giving a tiny valid study as nested tables, with dotted keys changed."""

    def make(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return with_changes(TINY, {"data.corpus": str(corpus_file), **(changes or {})})

    return make


@pytest.fixture
def study_file(tmp_path: Path) -> Callable[..., Path]:
    """A function writing that study, and its corpus, as files in tmp_path."""

    def write(changes: Mapping[str, Any] | None = None, name: str = "tiny.toml") -> Path:
        return write_study(tmp_path, changes, name)

    return write


def read_metrics(path: Path) -> list[StepLine]:
    """The steps of a metrics.jsonl."""
    return [StepLine.model_validate_json(line) for line in path.read_bytes().splitlines()[1:]]


# Python ignores SIGXFSZ, so a write past the limit is an OSError, as on a full disk.
WITH_A_LIMIT = """
import os, resource, sys
limit = int(sys.argv.pop(1))
sys.dont_write_bytecode = True  # Python would leave cut-off .pyc files, which break every later import
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
from ablationlab.cli.app import main
main()
"""


def run_cli(
    *arguments: str | Path,
    folder: Path,
    env: Mapping[str, str] | None = None,
    largest_file: int | None = None,
) -> subprocess.CompletedProcess[str]:
    """The command line as a process of its own; a file over *largest_file* bytes is refused to it."""
    start = ["-m", "ablationlab"] if largest_file is None else ["-c", WITH_A_LIMIT, str(largest_file)]
    return warm.python(*start, *arguments, folder=folder, env=env)


def started_with(name: str, value: str) -> list[tuple[int, str, dict[str, str]]]:
    """Processes that were started with a variable in their environment: id, command line and environment of each."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            lines = (folder / "environ").read_text(errors="replace").split("\0")
            env = dict(line.split("=", 1) for line in lines if "=" in line)
            if env.get(name) == value:
                found.append((int(folder.name), (folder / "cmdline").read_text().replace("\0", " "), env))
    return found


@pytest.fixture
def ablationlab(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The real command in a real process, started in tmp_path."""

    def call(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        return run_cli(*arguments, folder=options.pop("folder", tmp_path), **options)

    return call


@contextmanager
def torch_as_it_was() -> Iterator[None]:
    """Undo the process-wide settings that a verb makes, for the tests that come after."""
    import torch

    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch._C._set_deterministic_algorithms(deterministic)  # torch.use_... would import the compiler: 2 s


@dataclass(frozen=True)
class Trained:
    """A tiny study that was trained to its end by the real command."""

    study: Path
    results: Path
    output: str


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The tiny study, trained once for the whole session; not to be changed."""
    folder = tmp_path_factory.mktemp("trained")
    study = write_study(folder)
    words = ["run", study, "--out", folder / "results", "--workers", "1", "--device", "cpu"]
    ended = run_cli(*words, folder=folder)
    assert ended.returncode == 0, ended.stderr
    return Trained(study, folder / "results", ended.stdout)


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """The command in this process: (exit code, output, errors). Spares the start."""
    from ablationlab.cli.app import main

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        capsys.readouterr()
        with torch_as_it_was(), pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return call


def run_here(*arguments: str | Path, folder: Path) -> tuple[int, str, str]:
    """The command in this process for fixtures of a module or a session: (exit code, output, errors)."""
    from ablationlab.cli.app import main

    with (
        chdir(folder),
        redirect_stdout(io.StringIO()) as output,
        redirect_stderr(io.StringIO()) as errors,
        torch_as_it_was(),
        pytest.raises(SystemExit) as ended,
    ):
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0), output.getvalue(), errors.getvalue()


@pytest.fixture(scope="session")
def load_benchmark() -> Callable[[str], ModuleType]:
    """A script of benchmarks/ as a module, by its name."""

    def load(name: str) -> ModuleType:
        path = Path(__file__).parents[1] / "benchmarks" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"{name}_benchmark", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up there
        spec.loader.exec_module(module)
        return module

    return load
