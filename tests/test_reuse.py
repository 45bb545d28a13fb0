"""Baseline runs of an earlier study that serve in a new one. Tiny models, trained for real."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ablationlab import pipeline
from ablationlab.analysis import read_results
from ablationlab.core.errors import AblationLabError, PlanError, StudyError
from ablationlab.records.plan import Plan
from ablationlab.records.results import Results
from ablationlab.records.seal import RunSeal
from ablationlab.records.storage import ResultsFolder
from ablationlab.report.chain import chain
from ablationlab.study.load import parse_study

PRIMARY = {"metric": "validation_loss", "role": "primary", "smallest_effect": 1e-6}
OLD = {
    "name": "old",
    "variants": ["none", "layernorm"],
    "seeds": [1, 2, 3],
    "training.steps": 4,
    "training.warmup": 1,
    "criteria": [PRIMARY],
}
NEW = {**OLD, "name": "new", "variants": ["none", "rmsnorm"], "seeds": [1, 2, 3, 4]}
Make = Callable[..., dict[str, Any]]


def run(table: dict[str, Any], out: Path) -> list[pipeline.PipelineEvent]:
    events: list[pipeline.PipelineEvent] = []
    pipeline.run(parse_study(table), out, listen=events.append, device="cpu", workers=1)
    return events


@pytest.fixture
def old(study_table: Make, tmp_path: Path) -> Path:
    run(study_table(OLD), tmp_path / "old")
    return tmp_path / "old"


def files(folder: Path, seeds: tuple[int, ...] = (1, 2, 3)) -> dict[str, bytes]:
    """Every file of the baseline's runs but what each study makes of them, by path."""
    runs = [run for run in Results.open(folder).runs if run.variant == "none" and run.seed in seeds]
    paths = [path for run in runs for path in run.folder.path.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths if path.name != "seal.json"}


def states(folder: Path) -> dict[str, str]:
    return {link.file: link.state for link in chain(folder)}


def refused(study_table: Make, old: Path, changes: dict[str, Any]) -> str:
    with pytest.raises((PlanError, StudyError)) as caught:
        pipeline.resolve(parse_study(study_table({**NEW, **changes, "reuse": str(old)})), "cpu", 1)
    return str(caught.value)


def test_reused_runs_are_copied_byte_for_byte_and_give_what_training_them_gives(study_table, old, tmp_path):
    before = files(old)
    whole, less = tmp_path / "whole", tmp_path / "less"
    run(study_table(NEW), whole)
    events = run(study_table({**NEW, "reuse": str(old)}), less)
    trained = {event.payload.run if hasattr(event.payload, "run") else event.stack for event in events if hasattr(event, "kind") and event.kind == "done"}
    assert len(trained) == 5
    assert files(less) == before == files(old)
    ours, theirs = (Results.open(folder) for folder in (less, whole))
    assert [run.id for run in ours.runs] == [run.id for run in theirs.runs]
    loose = {"label"}
    for mine, other in zip(ours.analysis.comparisons, theirs.analysis.comparisons, strict=True):
        timed = ours.metrics[mine.metric].family == "throughput"
        assert timed or mine.model_dump(exclude=loose) == other.model_dump(exclude=loose)
    assert [each.answer for each in ours.verdict.verdicts] == [each.answer for each in theirs.verdict.verdicts]
    assert {each.label for each in ours.analysis.comparisons} == {"exploratory"}
    assert [(each.reused, each.confirmed, each.label) for each in ours.verdict.verdicts] == [(2, False, "exploratory")]
    assert {each.reused for each in theirs.verdict.verdicts} == {0}
    assert "differs" not in states(less).values()
    assert states(less)["reused from old"] == "holds"
    assert states(old)["reused"] == "holds"
