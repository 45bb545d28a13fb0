"""The verb `evaluate`, and the evaluation that `run` makes after training. Heavy imports happen inside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from ablationlab.core.errors import AblationLabError
from ablationlab.core.terminal import console as make_console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from ablationlab.evaluation import ProcessTaskBuilder
    from ablationlab.records.folders import ResultsFolder
    from ablationlab.records.settings import Study

Several = Parameter(negative="", consume_multiple=True)


def register(app: App) -> None:
    """Add this verb to the command."""
    app.command(evaluate)


def evaluate(
    results: Annotated[Path, Parameter(help="A results folder: results/<study>.")],
    *,
    tasks: Annotated[
        tuple[str, ...],
        Several,
        Parameter(
            help="Names of the suite (`suite` for all of it), of benchmarks (`benchmarks`), of the harness, or YAML files. "
            "Default: evaluation.tasks of the study, or `suite`."
        ),
    ] = (),
    fewshot: Annotated[
        tuple[int, ...], Several, Parameter(help="Numbers of examples, such as 0 2. Default: evaluation.fewshot.")
    ] = (),
    templates: Annotated[
        Literal["one", "all"] | None, Parameter(help="One template per task, or all. Default: evaluation.templates.")
    ] = None,
    items: Annotated[int | None, Parameter(help="Items per task, at most. Default: evaluation.items, or all.")] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], Parameter(help="Where to score; all runs alike.")] = "auto",
    workers: Annotated[int | None, Parameter(help="Processes on a CPU. Default: one per core.")] = None,
    throughput: Annotated[bool, Parameter(help="Time inference and training, all runs in turn.")] = True,
) -> int:
    """Score every trained run on the same items: next tokens, calibration, length, tasks through lm-eval, throughput.

    Writes evaluation.json and samples.parquet into every run's folder, and evaluation/suite.json. Only what is missing is
    scored; a task whose items or wording changed counts as missing. Afterwards: ablationlab analyze RESULTS.
    """
    from ablationlab.evaluation import read_plan
    from ablationlab.records.folders import ResultsFolder
    from ablationlab.tasks import SUITE_GROUP

    if not results.is_dir():
        raise AblationLabError(f"{results}: no such results folder")
    folder = ResultsFolder(results)
    study = read_plan(folder).study
    if any(k < 0 for k in fewshot):
        raise AblationLabError(f"--fewshot {min(fewshot)}: a number of examples is 0 or more")
    if items is not None and items < 10:
        raise AblationLabError(f"--items {items}: at least 10 are needed to say anything")
    if workers is not None and workers < 1:
        raise AblationLabError(f"--workers {workers}: at least one process is needed")
    wanted = tasks or study.evaluation.tasks or (SUITE_GROUP,)
    console = make_console()
    nothing = score(folder, console, wanted, fewshot, templates, items, device, workers, throughput=throughput)
    if nothing is not None:
        raise AblationLabError(
            f"{results}: {nothing}. Each is recorded as not evaluable; `ablationlab analyze` counts them"
        )
    console.print(f"Next: ablationlab analyze {results}", markup=False, highlight=False)
    return 0


def score(
    results: ResultsFolder,
    console: Console,
    tasks: Sequence[str],
    fewshot: Sequence[int] = (),
    templates: Literal["one", "all"] | None = None,
    items: int | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    workers: int | None = None,
    *,
    throughput: bool = True,
    builder: ProcessTaskBuilder | None = None,
) -> str | None:
    """Evaluate, saying what is being done, and show a table; in words, why there was nothing to score, if so."""
    from ablationlab.evaluation import evaluate as run_evaluation
    from ablationlab.report.terminal.evaluation import evaluation_view
    from ablationlab.study.plan import usable_cores

    def say(what: str) -> None:
        console.print(f"  {what}", markup=False, highlight=False)

    console.print(f"Evaluating {results.path}", markup=False, highlight=False)
    outcome = run_evaluation(
        results.path,
        tasks=tasks,
        fewshot=fewshot,
        templates=templates,
        items=items,
        device=device,
        workers=workers or usable_cores(),
        throughput=throughput,
        report=say,
        builder=builder,
    )
    if outcome.nothing is not None:
        return outcome.nothing
    for part in evaluation_view(results):
        console.print(part, markup=False, highlight=False)
    for name, why in outcome.not_evaluable.items():
        say(f"{name}: not evaluable, {why}")
    console.print(
        f"{len(outcome.evaluated)} runs scored, {len(outcome.complete)} had everything already, "
        f"{len(outcome.not_evaluable)} not evaluable; {outcome.seconds:.0f} s",
        markup=False,
        highlight=False,
    )
    return None


def after_training(
    study: Study,
    results: ResultsFolder,
    console: Console,
    device: Literal["auto", "cpu", "cuda"],
    workers: int | None,
    builder: ProcessTaskBuilder | None = None,
) -> None:
    """The step of `run` between training and analysis, where the study asks for tasks."""
    if study.evaluation.tasks:
        console.print()
        nothing = score(results, console, study.evaluation.tasks, device=device, workers=workers, builder=builder)
        if nothing is not None:
            console.print(f"  {nothing}; the analysis counts them", markup=False, highlight=False)
