"""A short part of `make torture` (benchmarks/torture): damaged files of every kind, noticed and named."""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

import pytest

from ablationlab.analysis.verify import chain
from ablationlab.core.errors import AblationLabError
from ablationlab.report.live import Live
from ablationlab.report.make import make_report
from analysis.builder import build, study
from analysis.scores import Put, evaluate

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.torture import records

RUN, OTHER = "default-none-s1", "default-layernorm-s2"
KINDS = (
    "plan.lock",
    *(f"runs/{RUN}/{name}" for name in ("run.json", "result.json", "metrics.jsonl", "seal.json", "evaluation.json")),
    f"runs/{RUN}/samples.parquet",
    *("evaluation/suite.json", "analysis.json", "verdict.json"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torture")
    evaluate(folder, build(folder, study(evaluation={"tasks": ["spelling"]})), lambda run: [Put("spelling")])
    make_report(folder, parts=["tables"], say=lambda text: None)
    return folder


@pytest.mark.parametrize(
    ("kind", "damage"),
    list(zip(KINDS * 2, records.DAMAGES * 3, strict=False)),
    ids=lambda value: getattr(value, "__name__", value),
)
def test_damage_is_noticed_and_named_and_nothing_hangs(whole, tmp_path, monkeypatch, kind, damage):
    monkeypatch.setattr(records, "OTHER", OTHER)
    folder = Path(shutil.copytree(whole, tmp_path / "results"))
    damage(folder / kind, random.Random(1))
    try:
        told = " ".join(link.file for link in chain(folder) if link.state != "holds")
    except AblationLabError as error:
        told = str(error)
    assert Path(kind).name in told
    assert Live(folder).page().startswith("<!doctype html>")
