"""A results folder of thousands of made-up runs, and what every verb takes to read it.

    python -m benchmarks.large_folder make FOLDER --variants 20 --seeds 500 --steps 100
    python -m benchmarks.large_folder time FOLDER

The plan is a real one; the numbers of the runs are drawn. `time` runs every verb in a process of its own and prints its
processor time, its peak memory and the size of what it wrote.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import io
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
from tests.analysis.builder import write_run

from ablationlab.pipeline import seal
from ablationlab.records.plan import Plan, PlannedRun
from ablationlab.records.storage import ResultsFolder
from ablationlab.study.load import parse_study


def make(folder: Path, variants: int, seeds: int, steps: int) -> None:
    """Plan *variants* × *seeds* runs and write the records that they would leave."""
    tables = {f"decay-{number:02d}": {"training": {"weight_decay": 0.003 * number}} for number in range(1, variants)}
    study = parse_study(
        {
            "name": "large",
            "question": "Does everything work with many runs?",
            "baseline": "none",
            "variants": {"none": {}, **tables},
            "seeds": {"first": 1, "count": seeds},
            "model": {"layers": 1, "width": 16, "heads": 2, "context": 16},
            "training": {"steps": steps, "batch": 4, "lr": 1e-3, "warmup": 2, "precision": "fp32"},
            "data": {"corpus": "tiny-shakespeare"},
            "criteria": [{"metric": "validation_loss", "role": "primary", "smallest_effect": 0.05, "margin": 0.1}],
        }
    )
    results = ResultsFolder(folder)
    with patch("os.fsync", lambda handle: None):
        plan, _ = seal(study, results, "cpu", 1)
        for number, run in enumerate(plan.runs):
            draw_run(folder, plan, run, number)


def draw_run(folder: Path, plan: Plan, run: PlannedRun, number: int) -> None:
    """The records of a run that has ended. Runs of one seed share most of their luck, as paired runs do."""
    steps = run.budget.steps
    shared, own = np.random.default_rng(run.seed), np.random.default_rng([run.seed, number])
    final = 2.0 + 0.05 * shared.standard_normal() + 0.01 * own.standard_normal()
    losses = final + 2.2 * np.exp(-np.arange(steps) / 11) + 0.04 * own.standard_normal(steps)
    norms = np.abs(1 + 0.1 * own.standard_normal(steps)).tolist()
    metrics = {"validation_loss": final, "perplexity": float(np.exp(final)), "final_gradient_norm": norms[-1]}
    write_run(folder, plan, run, metrics, losses.tolist(), norms)


def measured(name: str, call: Callable[[], object]) -> None:
    """Run *call* in a process of its own; print its processor seconds and its peak memory."""
    began, child = time.monotonic(), os.fork()
    if child == 0:
        code = 1
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                call()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            atexit._run_exitfuncs()  # chart converters are waited for, which counts their time
            sys.stderr.flush()
            os._exit(code)
    _, status, used = os.wait4(child, 0)
    print(
        f"{name:12} exit {os.waitstatus_to_exitcode(status)}  {used.ru_utime:7.1f} s user  {used.ru_stime:5.1f} s sys  "
        f"{time.monotonic() - began:7.1f} s elapsed  {used.ru_maxrss / 2**20:6.2f} GiB",
        flush=True,
    )


def polls(folder: Path) -> None:
    """The first poll of `watch`, one after a change, and one when nothing has changed, all in one process."""
    from ablationlab.report.live import Live

    study = Live(folder)
    version = ""
    for name, since in (("first", False), ("changed", False), ("unchanged", True)):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        version = study.state(version if since else None)[1].version
        after = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        print(f"  {name} poll: {after - before:.2f} s user", file=sys.stderr)


def timed(folder: Path, verbs: list[str]) -> None:
    from ablationlab.cli.app import main

    calls: dict[str, Callable[[], object]] = {
        "analyze": lambda: main(["analyze", str(folder)]),
        "page": lambda: main(["report", str(folder), "--only", "page"]),
        "paper": lambda: main(["report", str(folder), "--only", "paper"]),
        "tables": lambda: main(["report", str(folder), "--only", "tables"]),
        "figures": lambda: main(["report", str(folder), "--only", "figures"]),
        "status": lambda: main(["status", str(folder)]),
        "verify": lambda: main(["verify", str(folder)]),
        "watch": lambda: polls(folder),
    }
    for name in verbs or calls:
        measured(name, calls[name])
    for file in ("analysis.json", "report.html", "paper.pdf"):
        path = folder / file
        print(f"{file}: {path.stat().st_size / 1e6:.1f} MB" if path.exists() else f"{file}: absent")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("make", "time"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("verbs", nargs="*")
    parser.add_argument("--variants", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    if arguments.what == "make":
        make(arguments.folder, arguments.variants, arguments.seeds, arguments.steps)
    else:
        timed(arguments.folder, arguments.verbs)
