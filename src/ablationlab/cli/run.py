"""Verbs over a study file: plan, run, status; and the lists of what a study file can name."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from ablationlab.cli.common import (
    INTERRUPTED,
    TRAINING,
    AcceptDrift,
    Device,
    Out,
    Positive,
    Printer,
    Report,
    ResultsPath,
    RunView,
    Set,
    StudyFile,
    TrustCode,
    Workers,
    add,
    long_notice,
)
from ablationlab.core.errors import AblationLabError, RecordError

if TYPE_CHECKING:
    from ablationlab.records.settings import Study
    from ablationlab.records.storage import ResultsFolder


ELSEWHERE = "On other hardware"


def register(app: App) -> None:
    """Add these verbs to the command."""
    for verb in (plan, run, extend, status, variants, presets, metrics, probes):
        add(app, verb)


def plan(
    study: StudyFile,
    *,
    out: Out = None,
    device: Device = "auto",
    workers: Workers = None,
    set_: Set = None,
    timestamp: Annotated[
        bool,
        Parameter(
            negative="",
            help="Also write deposit.json: hash, time and commit of the plan, to deposit where others can date it.",
        ),
    ] = False,
    hardware: Annotated[
        str | None,
        Parameter(
            group=ELSEWHERE,
            help="Print what the study would take on other hardware, such as t4 or 64xh100; seal nothing.",
        ),
    ] = None,
    price: Annotated[float | None, Positive, Parameter(group=ELSEWHERE, help="Dollars per GPU-hour.")] = None,
    budget: Annotated[
        str | None,
        Parameter(group=ELSEWHERE, help="GPU-hours (3000) or money ('$9000'): shows how many seeds it buys."),
    ] = None,
    sd: Annotated[
        float | None,
        Positive,
        Parameter(group=ELSEWHERE, help="Assumed SD of the deltas: what seeds see is then in the metric's unit."),
    ] = None,
) -> int:
    """Resolve and validate a study, print what it will do and cost, and seal it in plan.lock.

    Prints every arm and run with parameters, tokens and matrix-product FLOPs, what the planned seeds can show, the estimated
    time (from a training step or a matrix product timed here) and the disk space. A sealed plan is never changed: `run`
    trains exactly what is in it. With --hardware nothing is sealed, fetched or timed; it prints FLOPs, GPU-hours, memory per
    GPU by parallel layout, disk, cost, and what seeds cost and detect, for h100, h200, a100-80, a100-40 (or a100), l4, 4090
    and t4.
    """
    from ablationlab.pipeline import open_study
    from ablationlab.study.code import study_code

    resolved, results = open_study(study, out, set_ or ())
    if hardware is not None:
        with study_code(resolved):
            _show_costs(resolved, hardware, price, budget, sd)
        return 0
    for name, value in (("price", price), ("budget", budget), ("sd", sd)):
        if value is not None:
            raise AblationLabError(
                f"--{name} belongs to --hardware: ablationlab plan STUDY --hardware 64xh100 --{name} ..."
            )
    from ablationlab.instrument.costing.estimate import estimate, seed_seconds
    from ablationlab.pipeline import register, seal, worker_count
    from ablationlab.records.plan import Deposit, Plan
    from ablationlab.report.designs import design_lines
    from ablationlab.report.terminal.answer import clause_line
    from ablationlab.report.terminal.planned import plan_facts, plan_tables, shared_text
    from ablationlab.study.checks import assumptions, study_warnings
    from ablationlab.study.plan import calibrated_regimes

    printer = Printer()
    there = results.plan.exists()
    if not there and (
        calibrated_regimes(resolved) or (resolved.sweep is not None and resolved.sweep.finer is not None)
    ):
        if timestamp:
            raise AblationLabError("--timestamp: the plan is sealed once these runs are made; ask for it then")
        register(resolved, results)
        _show_calibration(printer, resolved, results)
        printer.text(
            f"The study is sealed in {results.path}; its plan follows after these runs: "
            f"{_again(study, out, set_, device, workers)}"
        )
        return 0
    with RunView(printer) as view:
        seal(resolved, results, device, workers, view)
    from ablationlab.analysis import power_plans  # scipy, which nothing that is refused waits for
    from ablationlab.report.terminal.can_show import shown_view

    sealed = Plan.read_sealed(results.plan)
    count = worker_count(sealed, workers)
    with study_code(resolved, results):
        cost = estimate(sealed, count) if resolved.trainer is None else None
        warnings = study_warnings(resolved)
        shown = power_plans(resolved, tuned=sealed.tuned)
    if cost is not None and (told := long_notice(cost, study)):
        printer.text(f"{told}\n")
    for part in plan_tables(sealed):
        printer.console.print(part)
        printer.line()
    printer.parts(*shown_view(shown, None if cost is None else seed_seconds(sealed, cost)))
    printer.line()
    for name, clauses in plan_facts(sealed, cost, count, assumptions(resolved)).items():
        printer.parts(*clause_line(name, clauses, printer.console.width))
    if sealed.study.trainer is None and (text := shared_text(sealed.corpus).strip()):
        printer.text(text)
    for warning in warnings:
        printer.text(f"Warning: {warning}.")
    for line in design_lines(sealed):
        printer.text(line)
    if timestamp:
        deposit = results.path / "deposit.json"
        Deposit.of(sealed).replace(deposit)
        printer.command(
            f"{deposit} names the plan by its hash. Deposit it where others date it (OSF, Zenodo, a public repository, an "
            "RFC 3161 service); later:",
            f"ablationlab verify {results.path} --deposited COPY",
        )
    printer.command(
        f"{'It was sealed before, in' if there else 'Written to'} {results.plan}. Train it with:",
        _again(study, out, set_, device, workers),
    )
    return 0


def _show_calibration(printer: Printer, study: Study, results: ResultsFolder) -> None:
    """The sweep and the calibrations that come before the plan, and what they have tried so far."""
    from ablationlab.pipeline import calibration_tries
    from ablationlab.report.designs import calibration_line, try_line
    from ablationlab.study.plan import calibrated_regimes

    if study.sweep is not None and study.sweep.finer is not None:
        from ablationlab.analysis import power_plans
        from ablationlab.report.terminal.can_show import shown_view, stages_table

        printer.parts(stages_table(study).terminal(), *shown_view(power_plans(study)))
    for name in calibrated_regimes(study):
        asked, tries = calibration_tries(study, results, name)
        printer.text(calibration_line(name, asked))
        for attempt in tries:
            printer.text(f"  {try_line(name, attempt, None, asked)}")


def _show_costs(study: Study, hardware: str, price: float | None, budget: str | None, sd: float | None) -> None:
    """What a study would take on hardware that is not here."""
    from ablationlab.instrument.costing.hardware import parse_hardware
    from ablationlab.instrument.costing.outlook import outlook
    from ablationlab.report.terminal.costing import Money, costing_view

    wanted = parse_hardware(hardware)
    each = wanted.kind.price if price is None else price
    money = Money(each, price is not None, None if budget is None else budget_hours(budget, each))
    printer = Printer()
    for part in costing_view(outlook(study, wanted), money, sd, printer.console.width):
        printer.console.print(part, markup=False, highlight=False)


def budget_hours(text: str, price: float) -> float:
    """GPU-hours of a budget: a number of them, or money as $9000, at that price."""
    parts = re.fullmatch(r"(\$?)\s*([0-9][0-9_,]*\.?[0-9]*)", text.strip())
    amount = float(parts[2].replace(",", "").replace("_", "")) if parts is not None else 0.0
    if parts is None or amount <= 0:
        raise AblationLabError(f"--budget {text!r}: expected GPU-hours, as 3000, or money, as '$9000'")
    return amount / price if parts[1] else amount


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
            group=TRAINING,
            help="Where runs train: in processes of this machine, on the workers of a Ray cluster, or under torchrun, "
            "which spreads each run over several processes (docs/scale.md).",
        ),
    ] = "local",
    address: Annotated[
        str | None,
        Parameter(
            group=TRAINING,
            help="The Ray cluster: auto, or host:port. Default: one on this machine, for this command only.",
        ),
    ] = None,
    nproc: Annotated[
        int | None,
        Parameter(
            group=TRAINING, help="Processes per run under --executor torchrun. Default: one per GPU of this machine."
        ),
    ] = None,
    accept_drift: AcceptDrift = False,
    trust_code: TrustCode = False,
    report: Report = True,
) -> int:
    """Train every run of a study that is not done yet, and plan it first if there is no plan. Safe to repeat.

    Runs continue from their last checkpoint, bit for bit, after a crash, a kill or Ctrl-C. Two commands on the same study
    share the work. A run whose loss or gradient norm is not finite ends as `diverged`, which is a result; the others
    continue.
    """
    from ablationlab import pipeline

    printer = Printer()
    try:
        with RunView(printer, study) as view:
            pipeline.run(
                study,
                out,
                listen=view,
                overrides=set_ or (),
                device=device,
                workers=workers,
                executor=executor,
                address=address,
                nproc=nproc,
                accept_drift=accept_drift,
                trust_code=trust_code,
                report=report,
            )
    except pipeline.Interrupted:
        again = _again(study, out, set_, device, workers) + ("" if executor == "local" else f" --executor {executor}")
        again += "" if address is None else f" --address {shlex.quote(address)}"
        again += "" if nproc is None else f" --nproc {nproc}"
        again += " --accept-drift" if accept_drift else ""
        again += " --trust-code" if trust_code else ""
        again += "" if report else " --no-report"
        printer.command("Stopped at a step boundary; what was in training has its checkpoint. Continue with:", again)
        return INTERRUPTED
    return 0


def extend(
    results: ResultsPath,
    *,
    seeds: Annotated[str, Parameter(help="Seeds to add, for every variant, in every regime: 6-10, or 6,8,11.")] = "",
    variants: Annotated[str, Parameter(help="Variants to add, on every seed, in every regime: NAME,NAME.")] = "",
    reason: Annotated[str, Parameter(help="Why; kept with the date in amendments/.")] = "",
    device: Device = "auto",
    workers: Workers = None,
    accept_drift: AcceptDrift = False,
    trust_code: TrustCode = False,
    report: Report = True,
) -> int:
    """Add seeds or variants to a sealed study, and analyze it again; everything trained and scored is reused.

    plan.lock stays as it is; amendments/ keeps what was added, when and why. Without --seeds and --variants, the next look of
    the [design] is taken: that stays registered. Anything else is exploratory wherever its verdict is printed, because adding
    runs after seeing results makes false claims more likely.
    """
    from ablationlab import pipeline
    from ablationlab.study.places import find_results

    printer = Printer()
    try:
        with RunView(printer) as view:
            pipeline.extend(
                find_results(results),
                pipeline.Options(device, workers, accept_drift=accept_drift, trust_code=trust_code),
                seeds=seed_numbers(seeds),
                variants=[name.strip() for name in variants.split(",") if name.strip()],
                reason=reason,
                listen=view,
                report=report,
            )
    except pipeline.Interrupted:
        printer.text(
            "Stopped at a step boundary; what was in training has its checkpoint. `ablationlab run` continues it."
        )
        return INTERRUPTED
    return 0


def seed_numbers(text: str) -> list[int]:
    """Seeds as a command line gives them: 6-10, or 6,8,11, or both."""
    from ablationlab.records.settings import MOST_SEEDS

    seeds: list[int] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        ends = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        first, last = (0, -1) if ends is None else (int(ends[1]), int(ends[2] or ends[1]))
        if last - first >= MOST_SEEDS:
            raise AblationLabError(
                f"--seeds {text!r}: {part!r} has {last - first + 1} seeds; at most {MOST_SEEDS} are allowed"
            )
        if last < first:
            raise AblationLabError(f"--seeds {text!r}: {part!r} is neither a seed nor a range that rises, such as 6-10")
        seeds += range(first, last + 1)
    return list(dict.fromkeys(seeds))


def _again(
    study: Path, out: Path | None, overrides: list[str] | None, device: str = "auto", workers: int | None = None
) -> str:
    """The command that continues this very study in this very place."""
    words = ["ablationlab", "run", str(study)]
    words += ["--out", str(out)] if out is not None else []
    for override in overrides or ():
        words += ["--set", override]
    words += ["--device", device] if device != "auto" else []
    words += ["--workers", str(workers)] if workers is not None else []
    return shlex.join(words)


def status(study: StudyFile, *, out: Out = None, set_: Set = None) -> int:
    """Show the state of every run of a study, from its files; safe while it is running.

    It shows the sealed plan, and names settings of the study file that differ from it, such as those given with --set
    when the study was planned.
    """
    from ablationlab.pipeline import open_study
    from ablationlab.records.plan import Plan
    from ablationlab.records.results import read_runs
    from ablationlab.report.designs import design_lines
    from ablationlab.report.terminal.planned import failures_view, results_table, status_table
    from ablationlab.study.differences import listed, study_differences
    from ablationlab.study.places import find_study, folder_without_code

    printer = Printer()
    study = find_study(study)
    if out is None and not set_ and (sealed_in := folder_without_code(study)) is not None:
        printer.text(f"{study} uses code that is not there; this is the study as it was sealed.\n")
        study = sealed_in
    resolved, results = open_study(study, out, set_ or ())
    if not results.plan.exists():
        results.check_unplanned()
        _show_calibration(printer, resolved, results)
        printer.text(f"{results.path}: not planned yet. Start with: {_again(study, out, set_)}")
        return 0
    sealed = Plan.of(results)
    if sealed.study.name != resolved.name or set_:
        from ablationlab.study.plan import open_plan

        sealed = open_plan(results, resolved)
    changed = study_differences(resolved, sealed.study)
    if sealed.study_hash != resolved.hash and changed:
        printer.text(f"{results.plan} was sealed with other settings than {study}: {listed(changed)}\n")
    rows = read_runs(sealed, results)
    printer.console.print(status_table(sealed, rows))
    printer.parts(*failures_view(rows))
    for line in design_lines(sealed):
        printer.text(line)
    if any(row.result is not None for row in rows):
        printer.line()
        printer.console.print(results_table(sealed, rows))
    return 0


def variants() -> int:
    """Explain every variant: its name, its formula, what it is for."""
    from ablationlab.report.terminal.catalog import variants_table

    Printer().console.print(variants_table())
    return 0


def presets() -> int:
    """List the model presets with their true parameter counts."""
    from ablationlab.report.terminal.catalog import presets_table

    Printer().console.print(presets_table())
    return 0


def metrics() -> int:
    """List every metric that records and criteria can name, with its unit and meaning."""
    from ablationlab.report.terminal.catalog import metrics_table

    Printer().console.print(metrics_table())
    return 0


def probes(
    run: Annotated[Path | None, Parameter(help="A run's folder, results/<study>/runs/<id>: show its probes.")] = None,
) -> int:
    """List every probe that a study can switch on, or show what one run recorded; safe while it trains.

    In a study file: [probes] with an interval in steps by name (cosine = 25), or all = 25. They measure after the first step,
    at every multiple of the interval, and after the last, and never change the bits of training.
    """
    from ablationlab.records.probes import read_probes
    from ablationlab.records.seal import check_sealed
    from ablationlab.records.storage import RunFolder
    from ablationlab.report.terminal.catalog import probes_table
    from ablationlab.report.terminal.run import run_probes_view

    printer = Printer()
    if run is None:
        printer.console.print(probes_table())
        return 0
    folder = RunFolder(run)
    if not os.path.lexists(folder.record):
        raise RecordError(f"{run} is not a run's folder: it has no run.json; runs are in results/<study>/runs/")
    if folder.done:
        check_sealed(folder, folder.probes)
    lines = read_probes(folder)
    if not lines:
        printer.text(f"{run}: no probe has measured this run")
    for part in run_probes_view(run.name, lines):
        printer.console.print(part)
    return 0
