"""The verb that lists probes, and shows what those of a run have seen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from ablationlab.core.errors import RecordError
from ablationlab.core.terminal import console as make_console


def register(app: App) -> None:
    """Add these verbs to the command."""
    app.command(probes)


def probes(
    run: Annotated[Path | None, Parameter(help="A run's folder, results/<study>/runs/<id>: show its probes.")] = None,
) -> int:
    """List every probe that a study can switch on, or show what those of one run have seen; safe while it trains.

    In a study file: [probes] with an interval in steps by name (cosine = 25), or all = 25. They look after the first step,
    every multiple of the interval, and the last, and never change the bits of training.
    """
    from ablationlab.records.folders import RunFolder
    from ablationlab.records.probes import read_probes
    from ablationlab.report.terminal.probes import probes_table, run_probes_view

    console = make_console()
    if run is None:
        console.print(probes_table())
        return 0
    folder = RunFolder(run)
    if not folder.record.exists():
        raise RecordError(f"{run} is no run's folder: it has no run.json; runs are in results/<study>/runs/")
    lines = read_probes(folder)
    if not lines:
        console.print(f"{run}: no probe has looked at this run", markup=False, highlight=False)
    for part in run_probes_view(run.name, lines):
        console.print(part)
    return 0
