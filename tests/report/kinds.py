"""One small study of each kind of evidence: a table, a foreign program, an architecture with other weights, a broken arm."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from ablationlab.analysis import TableOptions, analyze, read_table
from ablationlab.analysis.verdict import decide
from ablationlab.pipeline import seal
from ablationlab.records.results import Results
from ablationlab.records.storage import ResultsFolder
from ablationlab.report.make import with_analysis
from ablationlab.study.load import load_study
from ablationlab.study.trust import carried_code
from ablationlab.training.executors.job import Job, attempt, open_stacks
from analysis.builder import Metrics, build, calm, outcome, study
from conftest import to_toml


def csv_study(folder: Path) -> Results:
    """A tracker's table of final losses: 30 seeds, ``b`` better than ``a``; nothing else is known of the runs."""
    rng = np.random.default_rng(0)
    rows = [f"{arm},{seed},{2 + rng.normal(0, 0.01) - 0.1 * (arm == 'b')}" for seed in range(30) for arm in "ab"]
    return table_study(folder, "variant,seed,val_loss", rows)


def unpaired_study(folder: Path, seeds: Literal["shared", "disjoint", "none"], *, unpaired: bool = True) -> Results:
    """A table of four runs of ``a`` and five of ``b``, which is better, with a column named throughput."""
    rng = np.random.default_rng(0)
    rows = []
    for arm, runs in (("a", 4), ("b", 5)):
        for run in range(runs):
            seed = "" if seeds == "none" else f"{run + 100 * (seeds == 'disjoint' and arm == 'b')},"
            loss, speed = 2 + rng.normal(0, 0.01) - 0.1 * (arm == "b"), 1000 + rng.normal(0, 10)
            rows.append(f"{arm},{seed}{loss},{speed}")
    head = f"variant,{'' if seeds == 'none' else 'seed,'}val_loss,throughput"
    return table_study(folder, head, rows, unpaired=unpaired, higher=("throughput",))


def table_study(folder: Path, head: str, rows: list[str], **options: Any) -> Results:
    """The analysis of a user's table, which ``val_loss`` decides, with ``a`` as the baseline."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "runs.csv").write_text("\n".join([head, *rows]) + "\n")
    checked = TableOptions.checked(baseline="a", primary="val_loss", lower=("val_loss",), **options)
    analysis = analyze(read_table(folder / "runs.csv", checked))
    analysis.replace(folder / "analysis.json")
    decide(analysis).replace(folder / "verdict.json")
    return Results.open(folder)


#: Prints a loss that depends on the seed and one setting; reports no weights, no data order and no budget.
PROGRAM = """
import random, sys
seed, gain = int(sys.argv[1]), float(sys.argv[2])
shared, own = random.Random(seed), random.Random(f"{seed} {gain}")
noise = shared.gauss(0, 0.01)
for step in range(1, 31):
    print(f"step {step} loss {2 + 2 / step - gain + noise + own.gauss(0, 0.01)}")
print(f"val_loss {2 - gain + noise + own.gauss(0, 0.001)}")
"""
FOREIGN = {
    "name": "foreign",
    "question": "Does the gain help?",
    "baseline": "plain",
    "seeds": [1, 2, 3],
    "command": ["{python}", "train.py", "{seed}", "{training.gain}"],
    "metrics": {"val_loss": "lower"},
    "training": {"gain": 0.0},
    "variants": {"plain": {}, "changed": {"training": {"gain": 0.2}}},
    "patterns": {"loss": r"step (?P<step>\d+) loss (?P<value>\S+)", "val_loss": r"val_loss (?P<value>\S+)"},
    "criteria": [{"metric": "val_loss", "role": "primary", "smallest_effect": 0.01}],
}


def foreign_study(folder: Path) -> Results:
    """Six runs of a program that only prints."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(PROGRAM)
    (folder / "study.toml").write_text(to_toml(FOREIGN))
    made = load_study(folder / "study.toml")
    results = ResultsFolder(folder / "results")
    plan, _ = seal(made, results, "cpu", 1)
    agreed = frozenset(code.sha256 for code in carried_code(made))
    job = Job(plan, results.path, made.data, agreed=agreed)
    for stack in open_stacks(plan, results):
        event = attempt(job, stack, None, "local", lambda _: None, lambda: False)
        assert event.kind == "done", event.payload
    return _analyzed(results.path)


def unvaried_study(folder: Path) -> Results:
    """Four pairs whose differences are all the same: the seed changes both arms alike."""
    losses = {"none": 2.0, "layernorm": 1.75}

    def ended(variant: str, regime: str, seed: int) -> Metrics:
        return {"validation_loss": losses[variant] + seed / 4}

    build(folder, study(variants=list(losses), seeds=[1, 2, 3, 4]), outcomes=ended)
    return _analyzed(folder)


def untied_study(folder: Path) -> Results:
    """An arm with an output matrix of its own: more weights than the baseline, and nothing about embeddings."""
    build(folder, study(variants=["none", "untied"]))
    return _analyzed(folder)


def broken_study(folder: Path) -> Results:
    """An arm whose every run diverged."""

    def ended(variant: str, regime: str, seed: int) -> Metrics | None:
        return None if variant == "layernorm" else outcome(variant, regime, seed)

    def curve(variant: str, regime: str, seed: int) -> list[float]:
        return calm(seed)[: 20 if variant == "layernorm" else None]

    build(folder, study(variants=["none", "layernorm", "rmsnorm"]), outcomes=ended, curves=curve)
    return _analyzed(folder)


def two_regimes_study(folder: Path) -> Results:
    """layernorm is better and rmsnorm worse where that is registered; at a hot rate nothing is, and nothing is shown."""

    def ended(variant: str, regime: str, seed: int) -> Metrics:
        own = np.random.default_rng([seed, len(variant), len(regime)]).normal(0, 0.01 if regime == "default" else 0.3)
        gain = {"none": 0.0, "layernorm": -0.2, "rmsnorm": 0.2}[variant] if regime == "default" else 0.0
        return {"validation_loss": 3.0 + gain + own}

    primary = {"metric": "validation_loss", "role": "primary", "smallest_effect": 0.05, "correction": "none"}
    arms = {"variants": ["none", "layernorm", "rmsnorm"], "regimes": {"hot": {"training": {"lr": 0.01}}}}
    build(folder, study(**arms, criteria=[primary]), outcomes=ended)
    return _analyzed(folder)


def _analyzed(folder: Path) -> Results:
    return with_analysis(Results.open(folder), say=lambda text: None)
