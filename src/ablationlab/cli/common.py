"""What the verbs share: options, the console, and what is printed while a study runs."""

from __future__ import annotations

import inspect
import math
import re
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from cyclopts import Parameter
from cyclopts.validators import Number

from ablationlab.core.format import count, counted, duration, percent, plain, several

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cyclopts import App
    from rich.console import Console, RenderableType

    from ablationlab.data.prepare import PrepareProgress
    from ablationlab.pipeline import EvaluationEnded, PipelineEvent, Planned


def add(app: App, verb: Callable[..., int], name: str | None = None) -> None:
    """Add a verb; the lines of a paragraph of its docstring are joined, so that the terminal breaks them."""
    text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(verb.__doc__ or ""))
    app.command(verb, name=name, help=text)


#: Exit codes.
OK, FAILED, USAGE, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143

# ---- options ------------------------------------------------------------------------------------------------------------


def _some_process(_: object, value: int | None) -> None:
    if value is not None and value < 1:
        raise ValueError("at least one process is needed")


Processes = Parameter(validator=_some_process)
Share = Parameter(validator=Number(gt=0, lt=1))
Several = Parameter(negative="", consume_multiple=True)
Positive = Parameter(validator=[Number(gt=0), Number(lt=math.inf)])

StudyFile = Annotated[
    Path, Parameter(help="The study file (TOML), its bare name (`embedding-norm`), or a results folder.")
]
ResultsPath = Annotated[
    Path, Parameter(help="A results folder (results/<study>), its study file, or the study's bare name.")
]
Out = Annotated[Path | None, Parameter(name="--out", help="Results folder. Default: results/<study name>.")]
Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    Parameter(name="--device", help="Where to train. auto takes a GPU where there is one; sealed in the plan."),
]
Workers = Annotated[
    int | None,
    Processes,
    Parameter(
        name="--workers",
        help="Training processes on this machine. Default: one per core on a CPU, one on a GPU.",
    ),
]
Set = Annotated[
    list[str] | None,
    Parameter(
        name="--set",
        negative="",
        help="Override any setting of the study, as key=value in TOML: --set training.steps=100 --set 'seeds=[1,2]'.",
    ),
]
TrustCode = Annotated[
    bool,
    Parameter(
        name="--trust-code",
        negative="",
        help="Run code that a results folder carries and that was never run here; remembered by its hash.",
    ),
]
Report = Annotated[
    bool, Parameter(env_var="ABLATIONLAB_REPORT", help="Write page, figures, tables and paper at the end.")
]

# ---- output -------------------------------------------------------------------------------------------------------------


class Printer:
    """Where a verb prints: tables as they are, text as it is written."""

    def __init__(self) -> None:
        from ablationlab.report.progress import console

        self.console: Console = console()

    def text(self, text: str, *, wrap: bool = True) -> None:
        """A line or a few; without *wrap* a long one stays whole, as for paths."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=not wrap)

    def parts(self, *parts: RenderableType) -> None:
        """Tables and texts."""
        for part in parts:
            self.console.print(part, markup=False, highlight=False)

    def line(self) -> None:
        """An empty line."""
        self.console.print()


class RunView:
    """A listener of `pipeline.run`: a live display of what is in progress, tables of what is done."""

    def __init__(self, printer: Printer) -> None:
        from ablationlab.pipeline import TrainingProgress

        self.printer = printer
        self._training = TrainingProgress(printer.console)
        self._bars = ExitStack()
        self._compared: Callable[[PrepareProgress], None] | None = None
        self._printed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.close()

    def __call__(self, event: PipelineEvent) -> None:
        """Show one event."""
        from ablationlab import pipeline
        from ablationlab.records.results import read_runs
        from ablationlab.report.designs import look_line, try_line
        from ablationlab.report.terminal import results_table, verdict_view
        from ablationlab.study.ledger import ledger_sentence

        out = self.printer
        match event:
            case pipeline.ComparingTexts(share):
                self._comparing(share)
                return
            case pipeline.TimingSteps(plan):
                self._bars.close()
                out.text(
                    f"Timing the steps of {counted(len(plan.study.variants), 'arm')} on {plan.execution.device_name}"
                )
            case pipeline.Planned():
                self._bars.close()
                self._planned(event)
            case pipeline.LedgerChecked(plan, results, pairs):
                out.line()
                out.console.print(results_table(plan, read_runs(plan, results)))
                out.text(f"\n{ledger_sentence(plan, read_runs(plan, results), pairs)}")
            case pipeline.EvaluationStarted(results):
                if self._printed:
                    out.line()
                out.text(f"Evaluating {results.path}")
            case pipeline.EvaluationEnded():
                self._evaluated(event)
            case pipeline.CalibrationTried(regime, attempt, name, found):
                out.text(try_line(regime, attempt, found, name))
            case pipeline.LookTaken(_, result):
                if not result.stop:  # the verdict that follows says why it stopped
                    out.text(f"\n{look_line(result)}")
            case pipeline.Concluded(results, analysis, verdict):
                out.line()
                out.parts(*verdict_view(analysis, verdict))
                out.text(f"\nEvery run is in {results.runs}; every comparison: ablationlab analyze {results.path}")
            case pipeline.Note(phase, text):
                out.text(f"  {text}" if phase == "evaluation" else text)
            case pipeline.ReportWritten(paths):
                out.text("Written: " + ", ".join(map(str, paths)) if paths else "Nothing was written.")
            case pipeline.ReportFailed(results, error):
                out.text(
                    f"No report: {error}\nThe study is done; write its report with: ablationlab report {results.path}"
                )
            case _:
                self._training(event)
        self._printed = True

    def _comparing(self, share: float) -> None:
        from ablationlab.data.prepare import PrepareProgress

        if self._compared is None:
            self._compared = self._bars.enter_context(progress_bar(self.printer.console, "shared text"))
        self._compared(PrepareProgress(share))

    def _planned(self, event: Planned) -> None:
        from ablationlab.report.designs import step_times_line
        from ablationlab.report.terminal import precisions

        how, runs = event.plan.execution, len(event.runs)
        self.printer.text(
            f"{event.plan.study.name}: {runs - event.waiting} of {runs} runs done; {how.device_name}, "
            f"{precisions(event.plan)}, {counted(how.threads, 'thread')} per process. Results in {event.results.path}"
        )
        if event.waiting and event.notice:
            self.printer.text(event.notice)
        if event.waiting and event.plan.step_times:
            self.printer.text(step_times_line(event.plan))

    def _evaluated(self, event: EvaluationEnded) -> None:
        from ablationlab.analysis.wording import divergence
        from ablationlab.records.results import Results
        from ablationlab.report.terminal import evaluation_view

        outcome = event.outcome
        if outcome.nothing:
            return
        self.printer.parts(*evaluation_view(Results.open(event.results.path, strict=True)))
        for name, at in outcome.not_evaluable.items():
            self.printer.text(f"  {name}: not evaluable, {divergence(at)}")
        self.printer.text(
            f"{len(outcome.evaluated)} runs scored, {len(outcome.complete)} had everything already, "
            f"{len(outcome.not_evaluable)} not evaluable; {plain(duration(outcome.seconds))}"
        )


_PLAIN_SECONDS = 15.0


@contextmanager
def progress_bar(console: Console, name: str) -> Iterator[Callable[[PrepareProgress], None]]:
    """A bar in a terminal, a rare line elsewhere; call it with where the work stands."""
    if not console.is_terminal:
        last = [time.monotonic()]

        def line(now: PrepareProgress) -> None:
            if time.monotonic() - last[0] > _PLAIN_SECONDS:
                last[0] = time.monotonic()
                text = ", ".join(filter(None, [plain(percent(now.share)), _counts(now)]))
                console.print(f"{name}: {text}", markup=False, highlight=False)

        yield line
        return
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bar(*columns, TextColumn("{task.fields[counts]}"), console=console) as bar:
        task = bar.add_task(name, total=1.0, counts="")
        yield lambda now: bar.update(task, completed=now.share, counts=_counts(now))
        bar.update(task, completed=1.0)


def _counts(now: PrepareProgress) -> str:
    if not now.documents:
        return ""
    return f"{count(now.documents)} documents, {count(now.tokens)} tokens, {several(now.shards, 'shard')}"
