"""Runs as trackers keep them: wandb, MLflow and TensorBoard, read from their files without their packages."""

from __future__ import annotations

from pathlib import Path

from ablationlab.analysis.trackers.mlflow import is_mlflow_database, is_mlruns, read_mlflow_database, read_mlruns
from ablationlab.analysis.trackers.runs import Cell, Curve, Point, TrackedRun, as_step, repeated_step
from ablationlab.analysis.trackers.tensorboard import is_event_folder, read_event_folder
from ablationlab.analysis.trackers.wandb import (
    chart_runs,
    is_chart_export,
    is_wandb_folder,
    read_wandb_folder,
    unfolded,
)

_FOLDERS = (
    (is_wandb_folder, read_wandb_folder),
    (is_mlruns, read_mlruns),
    (is_event_folder, read_event_folder),
)


def is_tracked(folder: Path) -> bool:
    """Whether a folder is one of a tracker's."""
    return any(is_here(folder) for is_here, _ in _FOLDERS)


def read_tracker(path: Path) -> list[TrackedRun] | None:
    """The runs of a tracker's folder or database; None where it is none of those."""
    if is_mlflow_database(path):
        return read_mlflow_database(path)
    readers = [read for is_here, read in _FOLDERS if path.is_dir() and is_here(path)]
    return readers[0](path) if readers else None
