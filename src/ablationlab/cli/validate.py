"""The verb that holds the instrument against known truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from ablationlab.core.terminal import console as make_console


def register(app: App) -> None:
    """Add this verb to the command."""
    app.command(validate)


def validate(
    results: Annotated[Path, Parameter(help="A results folder of exchangeable arms (studies/validation-aa.toml).")],
    *,
    pairs: Annotated[int, Parameter(help="Pairs of each study that the seeds are cut into.")] = 5,
    out: Annotated[Path | None, Parameter(help="Where the files go. Default: RESULTS.")] = None,
) -> int:
    """Measure the error rates of the shipped analysis: how often it sees what is not there, and misses what is.

    The arms of RESULTS are redraws of the baseline, so every null is true by construction. Their seeds are cut into studies
    of a few pairs, each of which goes through the ordinary analysis and rules; counted are significant differences,
    decisions, and the answers of every test and interval, with exact binomial intervals. Where the study has a sweep, a
    smaller learning rate is an effect whose size the selection seeds calibrate: its rate of detection is held against the
    planned power. Needs no checkpoints. Writes validation.json, validation.md and, with a sweep, validation.svg.
    """
    from ablationlab.instrument.validation import validate as measure
    from ablationlab.instrument.validation.tables import markdown, shown, summary
    from ablationlab.records.storage import replace
    from ablationlab.report.charts.validation import power_figure
    from ablationlab.report.convert import convert
    from ablationlab.report.terminal.base import table

    found = measure(results, pairs)
    target = out or results
    found.replace(target / "validation.json")
    replace(target / "validation.md", markdown(found).encode())
    written = ["validation.json", "validation.md"]
    figure = power_figure(found)
    if figure is not None:
        convert({figure.key: figure.spec(width=520)}, target, ("svg",))
        written.append("validation.svg")
    console = make_console()
    for one in shown(found):
        console.print(table(one.title, one.columns, one.rows))
        console.print()
    for line in summary(found):
        console.print(line, markup=False, highlight=False)
    console.print(f"\nWritten to {target}: {', '.join(written)}", markup=False, highlight=False)
    return 0
