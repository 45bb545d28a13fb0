"""The study that the campaigns attack, the command line in a forked process, and what must not depend on interruptions."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ablationlab.records.plan import Plan
from ablationlab.records.replication import Replication
from ablationlab.records.storage import TEMPORARY

STUDY = """
name = "attacked"
question = "Does everything survive?"
baseline = "none"
variants = ["none", "layernorm"]
seeds = [1, 2, 3]

[model]
layers = 1
width = 16
heads = 2
context = 32

[training]
steps = 40
batch = 4
lr = 1e-3
warmup = 2
precision = "fp32"

[data]
corpus = "./text.txt"

[execution]
checkpoint_every = 8
threads = 1

[evaluation]
tasks = ["spelling", "last-word"]
items = 20

[probes]
embedding-norm = 10

[[criteria]]
metric = "validation_loss"
role = "primary"
smallest_effect = 0.01
"""
#: Words of a message that no user should see.
BUGS = ("Traceback (most recent call last)", "looks like a bug", "Segmentation fault")


def write_study(folder: Path) -> Path:
    """The study file and its text, the same on every machine."""
    rng = np.random.default_rng(5)
    words = ["".join(rng.choice(["ba", "den", "lo", "mir", "sa", "tor"], size=rng.integers(1, 4))) for _ in range(200)]
    lines = [" ".join(rng.choice(words, size=rng.integers(5, 9))).capitalize() + "." for _ in range(900)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    (folder / "study.toml").write_text(STUDY)
    return folder / "study.toml"


def write_replication(folder: Path) -> None:
    """An empty replication.json, to be damaged."""
    texts = dict.fromkeys(("table", "title", "about", "table_hash", "study"), "x")
    nothing = dict.fromkeys(("changed", "changed_beside", "figures", "directions"), ())
    plan_hash = Plan.read(folder / "plan.lock").plan_hash
    record = {
        **texts,
        **nothing,
        "source": {"citation": "x", "date": "x"},
        "source_hash": plan_hash,
        "runs_ended": 6,
        "runs_planned": 6,
        "level": 0.95,
    }
    Replication.model_validate(record).create(folder / "replication.json")


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, negative for a signal, and what it printed."""

    code: int
    text: str
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether it ended by itself, with a code of ours and without a word that speaks of a bug."""
        return 0 <= self.code <= 3 and not any(word in self.text for word in BUGS)


class Command:
    """`ablationlab WORDS` in a process group of its own, forked from this process, which has imported everything."""

    def __init__(self, words: Sequence[str | Path], before: Callable[[], None] = lambda: None) -> None:
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `wait`)
        self._began = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            os.dup2(self._printed.fileno(), 1)
            os.dup2(self._printed.fileno(), 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            code = 70
            with contextlib.suppress(BaseException):
                before()
                code = _main([str(word) for word in words])
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def wait(self, seconds: float = 600) -> Ended:
        """Its end; one that takes longer is killed, which counts as a hang (signal 9)."""
        deadline = self._began + seconds
        while time.monotonic() < deadline:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                break
            time.sleep(0.02)
        else:
            self.kill("group")
            _, status = os.waitpid(self.pid, 0)
        self._printed.seek(0)
        text = self._printed.read().decode(errors="replace")
        self._printed.close()
        return Ended(os.waitstatus_to_exitcode(status), text, time.monotonic() - self._began)

    def kill(self, whom: str, sign: signal.Signals = signal.SIGKILL) -> bool:
        """Send a signal to the main process, its group, or one of its workers; whether there was one."""
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            if whom == "group":
                os.killpg(self.pid, sign)
                return True
            if whom == "main":
                os.kill(self.pid, sign)
                return True
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
            if children:
                os.kill(int(children[-1]), sign)
                return True
        return False


def _main(words: list[str]) -> int:
    import traceback

    from ablationlab.cli import main

    try:
        main(words)
    except SystemExit as ended:
        return int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        return 70
    return 0


def command(*words: str | Path, seconds: float = 600, before: Callable[[], None] = lambda: None) -> Ended:
    """Run a command to its end."""
    return Command(words, before).wait(seconds)


def run_words(study: Path, folder: Path, *more: str) -> list[str | Path]:
    """The command that everything here interrupts."""
    return ["run", study, "--out", folder, "--workers", "2", "--device", "cpu", *more]


#: What tells of the day and not of the study: times, and hashes of files that hold times.
_VOLATILE = {"timing", "finished", "history", "created", "environment", "seal", "inputs", "analysis_hash", "how"}
# Speeds are measured, and the exploratory comparisons are corrected for each other, those of speeds included.
_VOLATILE |= {"throughput", "training_speed", "inference_speed", "families", "power", "p_adjusted"}
#: What of an exploratory comparison depends on how many of the others, speeds included, are significant.
_CORRECTED = {"deciding", "outcome"}
_TIMED = {"inference_speed", "training_speed", "inference_memory", "training_memory"}


def fingerprint(folder: Path) -> dict[str, str]:
    """Of every file that must be the same however often a study was interrupted, its hash."""
    prints = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        kept = path.suffix in (".jsonl", ".safetensors", ".parquet") or path.name in _RECORDS
        if path.name.startswith(TEMPORARY):
            prints[name] = "left behind"
        elif path.is_file() and kept:
            data = path.read_bytes()
            data = json.dumps(_lasting(json.loads(data))).encode() if path.suffix == ".json" else data
            prints[name] = hashlib.sha256(data).hexdigest()
    return prints


_RECORDS = ("plan.lock", "run.json", "result.json", "evaluation.json", "suite.json", "analysis.json", "verdict.json")


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        left_out = _VOLATILE | (_CORRECTED if value.get("family") == "exploratory" else set())
        return {key: _lasting(inner) for key, inner in value.items() if key not in left_out}
    if not isinstance(value, list):
        return value
    return [_lasting(inner) for inner in value if not (isinstance(inner, dict) and _timed(inner))]


def _timed(part: dict[str, Any]) -> bool:
    """Whether a part of a record is about a measured time."""
    return part.get("metric") in _TIMED or part.get("kind") == "time"


def differing(ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    """The files that are not the same."""
    return [name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]


def warm() -> None:
    """Import what the commands need, once."""
    import pandas  # noqa: F401
    import torch

    import ablationlab.evaluation
    import ablationlab.pipeline
    import ablationlab.report.make
    import ablationlab.training.loop  # noqa: F401

    torch.set_num_threads(1)
