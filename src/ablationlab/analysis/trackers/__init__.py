"""Runs as trackers keep them: wandb, MLflow and TensorBoard, read from their files without their packages."""

from __future__ import annotations

from pathlib import Path

from ablationlab.analysis.trackers.mlflow import is_mlflow_database, is_mlruns, read_mlflow_database, read_mlruns
from ablationlab.analysis.trackers.runs import Cell, Curve, TrackedRun
from ablationlab.analysis.trackers.tensorboard import is_event_folder, read_event_folder
from ablationlab.analysis.trackers.wandb import (
    chart_runs,
    is_chart_export,
    is_wandb_folder,
    read_wandb_folder,
    unfolded,
)

__all__ = ["Cell", "Curve", "TrackedRun", "chart_runs", "is_chart_export", "read_tracker", "unfolded"]


def read_tracker(path: Path) -> list[TrackedRun] | None:
    """The runs of a tracker's folder or database; None where it is none of those."""
    if is_mlflow_database(path):
        return read_mlflow_database(path)
    if not path.is_dir():
        return None
    for is_here, read in (
        (is_wandb_folder, read_wandb_folder),
        (is_mlruns, read_mlruns),
        (is_event_folder, read_event_folder),
    ):
        if is_here(path):
            return read(path)
    return None
