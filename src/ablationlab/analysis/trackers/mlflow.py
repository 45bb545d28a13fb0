"""MLflow without MLflow: its folder of files (`mlruns`) and its SQLite file (`mlflow.db`). Deleted runs are left out."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from ablationlab.analysis.trackers.runs import Cell, Curve, TrackedRun
from ablationlab.core.errors import TableError
from ablationlab.records.storage import read_regular

_STATES = {"1": "running", "2": "scheduled", "3": "finished", "4": "failed", "5": "killed"}


def is_mlruns(path: Path) -> bool:
    """A file store, or one experiment of it."""
    return any((run.parent / "metrics").is_dir() for run in _run_files(path))


def _run_files(path: Path) -> list[Path]:
    return sorted([*path.glob("*/*/meta.yaml"), *path.glob("*/meta.yaml")])


def read_mlruns(path: Path) -> list[TrackedRun]:
    experiments = {
        file.parent.name: _meta(file).get("name", file.parent.name)
        for file in [*path.glob("*/meta.yaml"), path / "meta.yaml"]
        if file.is_file()
    }
    runs = []
    for file in _run_files(path):
        folder, meta = file.parent, _meta(file)
        if not (folder / "metrics").is_dir() or meta.get("lifecycle_stage") == "deleted" or ".trash" in file.parts:
            continue
        cells: dict[str, Cell] = {"experiment": experiments.get(folder.parent.name, folder.parent.name)}
        for kind in ("params", "tags"):
            cells |= {f"{kind}.{name}": text.strip() for name, text in _texts(folder / kind)}
        curves = {f"metrics.{name}": _curve(folder, name, text) for name, text in _texts(folder / "metrics")}
        cells |= {name: curve.values[-1] for name, curve in curves.items()}
        name = str(cells.get("tags.mlflow.runName") or meta.get("run_name") or folder.name)
        state = _STATES.get(meta.get("status", ""), "")
        runs.append(TrackedRun(folder.relative_to(path).as_posix(), name, cells, curves, state))
    return runs


def _meta(path: Path) -> dict[str, str]:
    """The flat `key: value` lines of a meta.yaml."""
    pairs = (line.partition(":") for line in _read(path).splitlines())
    return {key.strip(): value.strip().strip("'\"") for key, colon, value in pairs if colon}


def _texts(folder: Path) -> list[tuple[str, str]]:
    """(name, content) of the files below; a name with slashes is a path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    return [(path.relative_to(folder).as_posix(), _read(path)) for path in files]


def _read(path: Path) -> str:
    try:
        return read_regular(path, most=None).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise TableError(str(path), [f"cannot be read: {error}"]) from error


def _curve(folder: Path, name: str, text: str) -> Curve:
    """Lines of `time value step`; old versions leave the step out."""
    points = []
    for number, line in enumerate(text.splitlines()):
        parts = line.split()
        try:
            points.append((int(parts[2]) if len(parts) > 2 else number, float(parts[1])))
        except (IndexError, ValueError):
            raise TableError(str(folder / "metrics" / name), [f"line {number + 1} is not `time value step`"]) from None
    if not points:
        raise TableError(str(folder / "metrics" / name), ["holds no values"])
    return Curve.of(points)


def is_mlflow_database(path: Path) -> bool:
    return path.is_file() and path.suffix in (".db", ".sqlite", ".sqlite3")


def read_mlflow_database(path: Path) -> list[TrackedRun]:
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
            return _stored_runs(store)
    except sqlite3.Error as error:
        raise TableError(str(path), [f"is not a database of MLflow: {error}"]) from error


def _stored_runs(store: sqlite3.Connection) -> list[TrackedRun]:
    settings: dict[str, dict[str, Cell]] = {}
    for kind in ("params", "tags"):
        for run, key, value in store.execute(f"select run_uuid, key, value from {kind}"):  # noqa: S608
            settings.setdefault(run, {})[f"{kind}.{key}"] = value
    points: dict[str, dict[str, list[tuple[int, float]]]] = {}
    wanted = "select run_uuid, key, step, value, is_nan from metrics order by step, timestamp"
    for run, key, step, value, is_nan in store.execute(wanted):
        points.setdefault(run, {}).setdefault(f"metrics.{key}", []).append((step, float("nan") if is_nan else value))
    runs = []
    wanted = (
        "select run_uuid, runs.name, status, experiments.name from runs join experiments using (experiment_id) "
        "where runs.lifecycle_stage = 'active' order by start_time, run_uuid"
    )
    for run, name, status, experiment in store.execute(wanted):
        curves = {key: Curve.of(values) for key, values in points.get(run, {}).items()}
        cells = {"experiment": experiment, **settings.get(run, {})} | {k: c.values[-1] for k, c in curves.items()}
        runs.append(TrackedRun(run, name or run, cells, curves, (status or "").lower()))
    return runs
