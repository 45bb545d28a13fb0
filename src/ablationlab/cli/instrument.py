"""Verbs over the lab itself: replicate (published tables), validate (its own error rates). Heavy imports happen inside."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from ablationlab.cli.common import Device, Printer, Report, RunView, Set, Workers, add
from ablationlab.core.errors import AblationLabError

if TYPE_CHECKING:
    from ablationlab.instrument.own_code import CodeCheck
    from ablationlab.records.analysis import Analysis


def register(app: App) -> None:
    """Add these verbs to the command."""
    for verb in (replicate, validate, check):
        add(app, verb)


def replicate(
    table: Annotated[
        str | None, Parameter(help="A table's name, or the path of its TOML file. Without it: list the tables.")
    ] = None,
    *,
    results: Annotated[
        Path | None, Parameter(help="Take the runs of this results folder as they are; nothing is trained.")
    ] = None,
    out: Annotated[Path | None, Parameter(help="Results folder to run in. Default: results/<study name>.")] = None,
    study: Annotated[Path | None, Parameter(help="The study file, if not the one that the table names.")] = None,
    quick: Annotated[
        bool,
        Parameter(negative="", help="Run the table's small version, for two cores: it shows that everything works."),
    ] = False,
    set_: Set = None,
    device: Device = "auto",
    workers: Workers = None,
    report: Report = True,
) -> int:
    """Compare a published table with our runs: published, ours, the difference, and whether its interval includes 0.

    Runs the table's study first, unless --results names a folder that has it; finished runs are not trained again.
    Figures are compared as means of small samples (Welch's interval, or a prediction interval if no spread is
    published). Directions are judged by the analysis's corrected test. Writes replication.json into the results folder. You
    can add a table of your own as a TOML file (docs/replication.md).
    """
    from ablationlab.instrument.replication import check_study, load_table, names, study_path, table_path
    from ablationlab.instrument.replication import replicate as compare
    from ablationlab.pipeline import write_report
    from ablationlab.records.results import Results
    from ablationlab.records.storage import ResultsFolder
    from ablationlab.report.terminal.catalog import library_view
    from ablationlab.report.terminal.replicated import replication_view
    from ablationlab.study.load import load_study

    printer = Printer()
    if table is None:
        _refuse_alone(results=results, out=out, study=study, set=set_)
        printer.console.print(library_view([(name, load_table(table_path(name))) for name in names()]))
        return 0
    path = table_path(table)
    if results is not None and (out is not None or set_ or quick):
        raise AblationLabError("--results takes runs as they are: --out, --set and --quick are for runs to be made")
    published = load_table(path, None if results is None else Results.open(results, strict=True).plan)
    file = study or study_path(published, path)
    wanted = load_study(file)
    check_study(published, wanted, str(path))
    analysis = None
    if results is None:
        overrides = [*(published.quick if quick else ()), *(set_ or ())]
        results, analysis = _run(file, overrides, out, quick, device, workers)
    replication = compare(published, results, study=wanted, analysis=analysis)
    replication.replace(results / "replication.json")
    printer.parts(*replication_view(replication, results))
    if report:
        write_report(ResultsFolder(results), RunView(printer))
    return 0


def _run(
    file: Path,
    overrides: list[str],
    out: Path | None,
    quick: bool,
    device: Literal["auto", "cpu", "cuda"],
    workers: int | None,
) -> tuple[Path, Analysis]:
    """Run the study to its analysis, as `ablationlab run` does, and give its folder."""
    from ablationlab.pipeline import run
    from ablationlab.study.load import load_study
    from ablationlab.study.places import default_folder

    folder = default_folder(load_study(file, overrides))
    folder = out or (folder.with_name(f"{folder.name}-quick") if quick else folder)
    done = run(file, folder, device=device, workers=workers, overrides=overrides)
    return folder, done.analysis


def _refuse_alone(**options: object) -> None:
    given = [f"--{name}" for name, value in options.items() if value]
    if given:
        raise AblationLabError(
            f"{', '.join(given)}: name the table too; `ablationlab replicate` alone lists what there is"
        )


def validate(
    results: Annotated[Path, Parameter(help="A results folder of exchangeable arms (studies/validation-aa.toml).")],
    *,
    pairs: Annotated[int, Parameter(help="Pairs per study that the seeds are divided into.")] = 5,
    out: Annotated[Path | None, Parameter(help="Where the files go. Default: RESULTS.")] = None,
) -> int:
    """Measure the error rates of the shipped analysis: how often it finds what is not there, and misses what is.

    The arms of RESULTS are redraws of the baseline, so every null is true by construction. Their seeds are divided into
    studies of a few pairs, each of which goes through the ordinary analysis and rules. The command counts significant
    differences, decisions, and the answers of every test and interval, with exact binomial intervals. If the study has a
    sweep, a smaller learning rate is an effect whose size the selection seeds calibrate: its rate of detection is
    compared with the planned power. Needs no checkpoints. Writes validation.json, validation.md and, with a sweep,
    validation.svg.
    """
    from ablationlab.instrument.validation import validate as measure
    from ablationlab.records.storage import replace
    from ablationlab.report.charts.validation import power_figure
    from ablationlab.report.convert import converting
    from ablationlab.report.tables.validation import validation_markdown, validation_summary, validation_tables
    from ablationlab.study.places import find_results

    results = find_results(results)
    printer = Printer()
    validation = measure(results, pairs)
    target = out or results
    validation.replace(target / "validation.json")
    replace(target / "validation.md", validation_markdown(validation).encode())
    written = ["validation.json", "validation.md"]
    figure = power_figure(validation)
    if figure is not None:
        with converting({figure.key: figure.spec(width=520)}, target, ("svg",), printer.text):
            written.append("validation.svg")
    for table in validation_tables(validation):
        printer.console.print(table.terminal())
        printer.line()
    for line in validation_summary(validation):
        printer.text(line)
    printer.text(f"\nWritten to {target}: {', '.join(written)}")
    return 0


def check(
    files: Annotated[
        tuple[Path, ...], Parameter(negative="", help="Python files as a study lists them under `use`. They are run.")
    ],
) -> int:
    """Test your own parts, optimizers and schedules on a tiny model.

    Compares gradients with finite differences, a run alone with the same run in a stack, two identical runs bit by bit,
    a resumed run with an uninterrupted one, and declared FLOPs with counted ones. Exits with 1 if a test fails.
    """
    from ablationlab.core.grouping import grouped
    from ablationlab.instrument.own_code import check_code
    from ablationlab.report.table import Table

    checks = check_code(*files)
    printer = Printer()
    if not checks:
        printer.text(
            f"{', '.join(map(str, files))}: no part, optimizer or schedule is registered; there is nothing to test."
        )
        return 0
    for thing, tests in grouped((result.thing, result) for result in checks).items():
        rows = [
            (
                "ok" if result.passed else "FAILED",
                result.test,
                result.error or _found(result),
            )
            for result in tests
        ]
        printer.console.print(Table.simple(thing, ["", "test", "found"], rows).terminal())
        printer.line()
    failed = sum(not result.passed for result in checks)
    printer.text(f"{len(checks) - failed} of {len(checks)} tests passed.")
    return 1 if failed else 0


def _found(result: CodeCheck) -> str:
    """What a test of own code found."""
    from ablationlab.report.slots import Slot, Statement
    from ablationlab.report.tables.codes import value_of

    code = re.sub(r"\W+", "-", result.test.lower())
    return Statement(f"check.{code}", {name: Slot(value_of(value)) for name, value in result.found.items()}).text
