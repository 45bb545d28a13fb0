"""The verb `replicate`: a published table held against runs of ours. Heavy imports happen inside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from ablationlab.core.errors import AblationLabError
from ablationlab.core.terminal import console as make_console

if TYPE_CHECKING:
    from ablationlab.records.analysis import Analysis


def register(app: App) -> None:
    """Add this verb to the command."""
    app.command(replicate)


def replicate(
    table: Annotated[
        str | None, Parameter(help="A table's name, or the path of a TOML file of one. Without it: list what there is.")
    ] = None,
    *,
    results: Annotated[
        Path | None, Parameter(help="Take the runs of this results folder as they are; nothing is trained.")
    ] = None,
    out: Annotated[Path | None, Parameter(help="Results folder to run in. Default: results/<study name>.")] = None,
    study: Annotated[
        Path | None, Parameter(help="The study file, where it is not found by the table's own word.")
    ] = None,
    quick: Annotated[
        bool, Parameter(negative="", help="Run the table's small version, for two cores: it shows that all works.")
    ] = False,
    set_: Annotated[
        list[str] | None, Parameter(name="--set", negative="", help="Override a setting of the study, as key=value.")
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], Parameter(help="Where to train.")] = "auto",
    workers: Annotated[int | None, Parameter(help="Training processes on this machine.")] = None,
    report: Annotated[
        bool,
        Parameter(env_var="ABLATIONLAB_REPORT", help="Write page, figures, tables and paper at the end."),
    ] = True,
) -> int:
    """Hold a published table against runs of ours: published, ours, difference, and whether it lies within the interval.

    Runs the table's study first, unless --results names a folder that has it; what is trained already is not trained
    again. Figures are compared as means of small samples (Welch's interval, or a prediction interval where no
    spread is published); directions by the corrected test of the analysis. Writes replication.json beside the results. Any
    table can be added as a TOML file: docs/replication.md says how.
    """
    from ablationlab.cli.report import show_at_the_end
    from ablationlab.instrument.replication import check_study, load_table, names, study_path, table_path
    from ablationlab.instrument.replication import replicate as compare
    from ablationlab.report.terminal.replication import library_view, replication_view
    from ablationlab.study.load import load_study

    console = make_console()
    if table is None:
        _refuse_alone(results=results, out=out, study=study, set=set_)
        console.print(library_view([(name, load_table(table_path(name))) for name in names()]))
        return 0
    path = table_path(table)
    published = load_table(path)
    if results is not None and (out is not None or set_ or quick):
        raise AblationLabError("--results takes runs as they are: --out, --set and --quick are for runs to be made")
    file = study or study_path(published, path)
    wanted = load_study(file)
    check_study(published, wanted, str(path))
    analysis = None
    if results is None:
        overrides = [*(published.quick if quick else ()), *(set_ or ())]
        results, analysis = _run(file, overrides, out, quick, device, workers)
    found = compare(published, results, study=wanted, analysis=analysis)
    found.replace(results / "replication.json")
    for part in replication_view(found, results):
        console.print(part, markup=False, highlight=False)
        console.print()
    if report:
        show_at_the_end(results, console)
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
    from ablationlab.study.plan import default_folder

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
