"""What the verbs share: options, the console, and what is printed while a study runs."""

from __future__ import annotations

import inspect
import math
import re
import shlex
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from cyclopts import Parameter
from cyclopts.validators import Number

from ablationlab.core.errors import AblationLabError
from ablationlab.core.format import count, counted, duration, percent, plain, several
from ablationlab.core.paths import real_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from cyclopts import App
    from rich.console import Console, RenderableType

    from ablationlab.data.prepare import PrepareProgress
    from ablationlab.instrument.costing.estimate import Estimate
    from ablationlab.pipeline import Concluded, EvaluationEnded, PipelineEvent, Planned
    from ablationlab.records.results import Results
    from ablationlab.report.terminal.details import Part


def add(app: App, verb: Callable[..., int], name: str | None = None) -> None:
    """Add a verb; the lines of a paragraph of its docstring are joined, so that the terminal breaks them."""
    text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(verb.__doc__ or ""))
    name = name or verb.__name__
    words = ("ablationlab", *(group for group in app.name if group != "ablationlab"), name, *_arguments(verb))
    app.command(verb, name=name, help=text, usage=f"Usage: {' '.join(words)}")


def _arguments(verb: Callable[..., int]) -> Iterator[str]:
    """The arguments of a verb as its usage names them: required options, [OPTIONS], ARGUMENT, SEVERAL... and [OPTIONAL]."""
    given = inspect.signature(verb).parameters.values()
    options = [parameter for parameter in given if parameter.kind is parameter.KEYWORD_ONLY]
    yield from (f"--{parameter.name.strip('_')} PATH" for parameter in options if parameter.default is parameter.empty)
    if any(parameter.default is not parameter.empty for parameter in options):
        yield "[OPTIONS]"
    for parameter in given:
        if parameter not in options:
            several = parameter.kind is parameter.VAR_POSITIONAL or re.search(
                r"\b(tuple|list)\[", str(parameter.annotation)
            )
            name = parameter.name.upper() + ("..." if several else "")
            required = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
            yield name if required else f"[{name}]"


def takes_arguments(verb: Callable[..., object]) -> bool:
    """Whether a verb takes anything but options."""
    return any(given.kind is not given.KEYWORD_ONLY for given in inspect.signature(verb).parameters.values())


#: Exit codes.
OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

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
#: Titles under which the help shows options.
TRAINING, SAFETY = "Where it trains", "Changed code or environment"
Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    Parameter(
        name="--device", group=TRAINING, help="Where to train. auto uses a GPU if there is one; sealed in the plan."
    ),
]
Workers = Annotated[
    int | None,
    Processes,
    Parameter(
        name="--workers",
        group=TRAINING,
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
AcceptDrift = Annotated[
    bool,
    Parameter(
        name="--accept-drift",
        group=SAFETY,
        negative="",
        help="Continue even if libraries, code or processor changed after the plan was sealed; every run records it.",
    ),
]
TrustCode = Annotated[
    bool,
    Parameter(
        name="--trust-code",
        group=SAFETY,
        negative="",
        help="Run code from a results folder that has never run on this machine; its hash is remembered.",
    ),
]
Report = Annotated[
    bool, Parameter(env_var="ABLATIONLAB_REPORT", help="Write page, figures, tables and paper at the end.")
]

Form = Annotated[
    Literal["table", "json", "markdown", "csv", "latex"], Parameter(name="--format", help="How to print effects.")
]
Quiet = Annotated[
    bool, Parameter(name="--quiet", negative="", help="Print one line per variant: its name, regime and answer.")
]

# ---- output -------------------------------------------------------------------------------------------------------------


class Printer:
    """Where a verb prints: tables as they are, text as it is written."""

    def __init__(self) -> None:
        from ablationlab.report.progress import console

        self.console: Console = console()

    def text(self, text: str, *, wrap: bool = True) -> None:
        """A line or a few; without *wrap* a long one stays whole, as for paths."""
        from rich.text import Text

        if wrap:
            self.parts(Text(text))
        else:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def parts(self, *parts: RenderableType) -> None:
        """Tables and texts."""
        from rich.text import Text

        from ablationlab.report.layout import wrapped

        for part in parts:
            plain = Text(part) if isinstance(part, str) else part
            if isinstance(plain, Text) and not plain.spans:
                for line in wrapped(plain, self.console.width):
                    self.console.print(line, highlight=False, soft_wrap=True)
            else:
                self.console.print(part, markup=False, highlight=False)

    def command(self, words: str, command: str) -> None:
        """Words and a command to copy, which never breaks: where both do not fit in a line, it has one of its own."""
        line = f"{words} {command}"
        if max(map(len, line.split("\n"))) > self.console.width:
            self.text(words)
            line = f"  {command}"
        self.text(line, wrap=False)

    def paths(self, *paths: Path) -> None:
        """Paths, one per line, which a terminal that can makes links."""
        from rich.text import Text

        for path in paths:
            link = f"link {real_path(path).as_uri()}"
            self.console.print(Text("  ").append(str(path), style=link), soft_wrap=True, highlight=False)

    def line(self) -> None:
        """An empty line."""
        self.console.print()


def print_study(
    printer: Printer,
    results: Results,
    *,
    parts: Collection[Part] = (),
    form: str = "table",
    quiet: bool = False,
    more: bool = True,
) -> None:
    """The answer of an analyzed study, in the form that was asked for; tables of *parts* below it."""
    from ablationlab.report.study_report import study_report
    from ablationlab.report.tables.effects import effects_table
    from ablationlab.report.terminal.answer import AnswerView
    from ablationlab.report.terminal.details import details_view

    assert results.analysis is not None
    assert results.verdict is not None
    report = study_report(results, results.analysis, results.verdict)
    if quiet:
        for row in report.answers:
            printer.text(f"{row.variant} {row.regime} {row.word}", wrap=False)
        return
    if form != "table":
        table = effects_table(report.effects)
        made = {"json": table.json, "markdown": table.markdown, "csv": table.csv, "latex": table.latex}[form]
        sys.stdout.write(made().rstrip("\n") + "\n")
        return
    command = f"ablationlab show {results.folder} --guards | --tasks | --probes | --all" if more and not parts else ""
    printer.console.print(AnswerView(report, command), markup=False, highlight=False)
    if parts:
        printer.parts(*details_view(results, report, parts))


class RunView:
    """A listener of `pipeline.run`: a live display of what is in progress, the answer, and where everything is.

    *study* is what the user gave, so that a long study can name a shorter one.
    """

    def __init__(self, printer: Printer, study: Path | None = None) -> None:
        from ablationlab.pipeline import TrainingProgress

        self.printer = printer
        self._study = study
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
        from ablationlab.report.designs import found_line, look_line, try_line

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
            case pipeline.LedgerChecked():
                return
            case pipeline.EvaluationStarted(results):
                if self._printed:
                    out.line()
                out.text(f"Evaluating {results.path}")
            case pipeline.EvaluationEnded():
                self._evaluated(event)
            case pipeline.CalibrationTried(regime, attempt, asked, found):
                out.text(try_line(regime, attempt, found, asked))
            case pipeline.SweepTuned(found):
                out.text(found_line(found))
            case pipeline.LookTaken(_, result):
                if not result.stop:  # the verdict that follows says why it stopped
                    out.text(f"\n{look_line(result)}")
            case pipeline.Concluded():
                self._concluded(event)
            case pipeline.Note(phase, text):
                out.text(f"  {text}" if phase == "evaluation" else text)
            case pipeline.ReportStep(part, number, of):
                self.writing(part, number, of)
            case pipeline.ReportWritten(paths):
                self._bars.close()
                out.paths(*paths)
            case pipeline.ReportFailed(results, error):
                self._bars.close()
                words = f"No report: {error}\nThe study is done; write its report with:"
                out.command(words, f"ablationlab report {results.path}")
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
        from ablationlab.report.terminal.planned import precisions

        how, runs = event.plan.execution, len(event.runs)
        if event.waiting and (told := _long(event, self._study)):
            self.printer.text(told)
        self.printer.text(
            f"{event.plan.study.name}: {runs - event.waiting} of {runs} runs done; {how.device_name}, "
            f"{precisions(event.plan)}, {counted(how.threads, 'thread')} per process. Results in {event.results.path}"
        )
        if event.waiting and event.notice:
            self.printer.text(event.notice)
        if event.waiting and event.plan.step_times:
            self.printer.text(step_times_line(event.plan))

    def _concluded(self, event: Concluded) -> None:
        """The answer, as `show` prints it; without one, every arm as it came out."""
        from ablationlab.records.results import Results
        from ablationlab.report.terminal.planned import results_table

        self.printer.line()
        results = Results.open(event.results.path).changed(analysis=event.analysis, verdict=event.verdict)
        if not event.verdict.verdicts and results.plan is not None:
            self.printer.parts(results_table(results.plan, results.runs))
        print_study(self.printer, results)

    def writing(self, part: str, number: int, of: int) -> None:
        """A spinner that names the part of the report; elsewhere one line for all of it."""
        if not self.printer.console.is_terminal:
            if number == 1:
                self.printer.text("Writing the report")
            return
        self._bars.close()
        text = f"Writing the report: {part} ({number} of {of})"
        self._bars.enter_context(self.printer.console.status(text))

    def _evaluated(self, event: EvaluationEnded) -> None:
        from ablationlab.analysis.wording import divergence

        outcome = event.outcome
        if outcome.nothing:
            return
        for name, at in outcome.not_evaluable.items():
            self.printer.text(f"  {name}: not evaluable, {divergence(at)}")
        self.printer.text(
            f"{len(outcome.evaluated)} runs scored, {len(outcome.complete)} had everything already, "
            f"{len(outcome.not_evaluable)} not evaluable; {plain(duration(outcome.seconds))}"
        )


#: A study that will take longer than this says so first, in seconds; and how long a shorter version of it should take.
_LONG, _SHORT = 600.0, 120.0


def _long(event: Planned, study: Path | None) -> str:
    """What to say first of a study that will take long here."""
    plan = event.plan
    waiting = [run.planned for run in event.runs if not run.done]
    if any(run.recipe is None for run in waiting):
        return ""
    from ablationlab.instrument.costing.estimate import estimate, on_slow_machine
    from ablationlab.pipeline import worker_count

    trained = sum(plan.reused_from(run.id) is None for run in plan.runs)
    workers, share = worker_count(plan, event.workers), len(waiting) / max(trained, 1)
    if share * on_slow_machine(plan, workers).seconds < _LONG:
        return ""  # nothing needs to be timed
    cost = estimate(plan, workers)
    left = replace(cost, training_seconds=cost.training_seconds * share, scoring_seconds=cost.scoring_seconds * share)
    return long_notice(left, study)


def long_notice(cost: Estimate, study: Path | None) -> str:
    """How long a study takes here, and what to try meanwhile; nothing of a short one."""
    from ablationlab.report.terminal.planned import time_needed

    if cost.seconds < _LONG:
        return ""
    shorter = shorter_study(study, cost.seconds)
    meanwhile = f" Meanwhile, a shorter one: ablationlab run {shorter}" if shorter is not None else ""
    return f"This study takes about {plain(time_needed(cost))} on this machine.{meanwhile}"


def shorter_study(study: Path | None, seconds: float) -> str | None:
    """What to give `run` meanwhile: the quick version of a study, the quickest of all, or the study with fewer steps."""
    from ablationlab.study.places import RESULTS, STUDIES, find_study

    file = None if study is None else find_study(study)
    if file is None or not file.is_file():
        return str(STUDIES / "quick.toml") if (STUDIES / "quick.toml").exists() else None
    for place in (file.with_name(f"{file.stem}-quick.toml"), file.with_name("quick.toml"), STUDIES / "quick.toml"):
        if place.exists() and place != file:
            return shlex.quote(str(place))
    from ablationlab.study.load import load_study

    try:
        whole = load_study(file)
        if whole.training is None or whole.training.steps is None:
            return None
        steps = max(2, int(whole.training.steps * _SHORT / seconds))
        changes = [f"training.steps={steps}"]
        changes += [f"training.warmup={steps // 2}"] if (whole.training.warmup or 0) > steps // 2 else []
        changes += ["evaluation.items=20"] if whole.evaluation.tasks else []
        load_study(file, changes)  # a warmup or a criterion may not allow it
    except AblationLabError:
        return None
    settings = [word for change in changes for word in ("--set", change)]
    return shlex.join([str(file), *settings, "--out", str(RESULTS / f"{file.stem}-short")])


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
