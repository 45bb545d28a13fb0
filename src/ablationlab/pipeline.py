"""The one way through the house, step by step: seal, train, conclude. The command line and notebooks both walk it.

:func:`run` is the notebook's door; `ablationlab run` prints between the same steps. No torch until something is trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ablationlab.core.errors import AblationLabError
from ablationlab.records.folders import ResultsFolder
from ablationlab.records.plan import Plan
from ablationlab.records.settings import Study
from ablationlab.study.load import load_study, parse_study

if TYPE_CHECKING:
    from ablationlab.data.corpus import TokenizedCorpus
    from ablationlab.evaluation import ProcessTaskBuilder
    from ablationlab.records.analysis import Analysis
    from ablationlab.records.verdict import Verdict
    from ablationlab.report.notebook import Results

Device = Literal["auto", "cpu", "cuda"]
Executor = Literal["local", "ray", "torchrun"]


def run(
    study: Study | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    device: Device = "auto",
    workers: int | None = None,
    overrides: Sequence[str] = (),
    accept_drift: bool = False,
    executor: Executor = "local",
    address: str | None = None,
    nproc: int | None = None,
    report: bool = False,
) -> Results:
    """Run a study to its verdict and give its results; what is done already is not done again.

    *study* is a study file, a `Study`, or nested tables as a study file has them; *overrides* are ``key=value`` texts as
    ``--set`` takes them, for a study file. The steps, the records and the verdict are those of ``ablationlab run``. In a
    script, guard the call with ``if __name__ == "__main__":`` or give ``workers=1``, since several workers are spawned
    processes. An interrupt stops at a step boundary; the same call goes on from there. *executor* "ray" trains on a Ray
    cluster: the one at *address*, the one that is connected already, or one started for this call; "torchrun" spreads each
    run over *nproc* processes. With *report*, page, figures, tables and paper are written too, as the command does.
    """
    from ablationlab.core.terminal import console as make_console
    from ablationlab.report.notebook import load_results
    from ablationlab.report.progress import display_for
    from ablationlab.study.plan import default_folder
    from ablationlab.study.status import check_ledger, run_statuses

    if workers is not None and workers < 1:
        raise AblationLabError(f"workers = {workers}: at least one process is needed")
    check_executor(executor, address)
    resolved = as_study(study, overrides)
    results = ResultsFolder(Path(out) if out is not None else default_folder(resolved))
    nproc = ranks_of(resolved, executor, nproc)
    plan, corpus = seal(resolved, results, device, workers if nproc is None else nproc)
    before = run_statuses(plan, results)
    drift = checked_drift(plan, corpus, device, accept=accept_drift or all(one.result is not None for one in before))
    builder = None
    if any(one.result is None for one in before):
        done_steps = sum(one.steps for one in before if one.result is not None)
        with (
            building_tasks(resolved, plan, results, corpus, workers) as builder,
            display_for(make_console(), plan, done_steps) as display,
        ):
            where: dict[str, Any] = {"executor": executor, "address": address, "nproc": nproc}
            if not train(resolved, plan, results, workers, drift, accept_drift, display.hear, **where):
                raise KeyboardInterrupt(
                    "stopped at a step boundary, with a checkpoint; the same call goes on from there"
                )
    check_ledger(plan, results)
    evaluate(resolved, results, device, workers, builder)
    conclude(results.path)
    if report:
        from ablationlab.report.make import make_report

        make_report(results.path)
    return load_results(results.path)


def check_executor(executor: Executor, address: str | None) -> None:
    """Refuse an option that belongs to another executor."""
    if address is not None and executor != "ray":
        raise AblationLabError(f"--address {address} belongs to --executor ray, not to --executor {executor}")


def as_study(study: Study | Mapping[str, Any] | str | Path, overrides: Sequence[str] = ()) -> Study:
    """A study, from whatever a notebook has at hand."""
    if isinstance(study, str | Path):
        return load_study(Path(study), overrides)
    if overrides:
        raise AblationLabError("overrides belong to a study file; change the tables, or use Study.changed")
    return study if isinstance(study, Study) else parse_study(study)


def seal(study: Study, results: ResultsFolder, device: Device, workers: int | None) -> tuple[Plan, TokenizedCorpus]:
    """The sealed plan of this very study in that folder, made if there is none, and its text."""
    from ablationlab.data.corpus import load_corpus
    from ablationlab.study.plan import make_plan, open_plan, seal_plan

    if results.plan.exists():
        plan = open_plan(results, study.hash)
        return plan, load_corpus(study.data)
    corpus = load_corpus(study.data)
    return seal_plan(make_plan(study, corpus, device, workers), results), corpus


def checked_drift(plan: Plan, corpus: TokenizedCorpus, device: Device, *, accept: bool) -> tuple[str, ...]:
    """What changed since the plan was sealed; refused unless accepted, for such runs are no fair comparison."""
    from ablationlab.study.plan import plan_drift

    drift = plan_drift(plan, corpus, device)
    if drift and not accept:
        raise AblationLabError(
            "this is not the environment that the plan was sealed in:\n"
            + "\n".join(f"  - {line}" for line in drift)
            + "\nRuns made in different environments are no fair comparison. Plan anew with --out, restore the "
            "environment, or go on with --accept-drift, which is recorded in every run it touches"
        )
    return drift


def crew(plan: Plan, workers: int | None) -> int:
    """How many training processes: as asked, else one a core on a CPU and one on a GPU."""
    if workers is not None:
        return workers
    from ablationlab.study.plan import usable_cores

    return 1 if plan.execution.device == "cuda" else max(1, usable_cores() // plan.execution.threads)


def train(
    study: Study,
    plan: Plan,
    results: ResultsFolder,
    workers: int | None,
    drift: tuple[str, ...],
    accept_drift: bool,
    listen: Any,
    *,
    executor: Executor = "local",
    address: str | None = None,
    nproc: int | None = None,
) -> bool:
    """Train what is not done; False if the user stopped it."""
    from ablationlab.training.executors.job import Job
    from ablationlab.training.executors.local import execute

    job = Job(plan, results.path, study.data, drift, accept_drift)
    if executor == "ray":
        from ablationlab.training.executors import ray_cluster

        return ray_cluster.execute(job, address, workers, listen)
    if executor == "torchrun":
        from ablationlab.training.executors import torchrun

        assert nproc is not None
        return torchrun.execute(job, nproc, listen)
    return execute(job, crew(plan, workers), listen)


def ranks_of(study: Study, executor: Executor, nproc: int | None) -> int | None:
    """Processes of one run under torchrun, as asked or one a GPU, checked before anything is sealed; None for the others."""
    if executor != "torchrun":
        if nproc is not None:
            raise AblationLabError(
                f"--nproc {nproc} belongs to --executor torchrun; --workers is what --executor local takes"
            )
        return None
    import torch

    from ablationlab.training.executors.torchrun import check

    ranks = max(1, torch.cuda.device_count()) if nproc is None else nproc
    check(study, ranks)
    return ranks


def layout_notice(study: Study, executor: Executor) -> str:
    """What to know before an executor of whole runs trains a study that says how torchrun would spread them."""
    how = study.execution.parallel
    if how is None or executor == "torchrun":
        return ""
    return (
        f"execution.parallel = {how!r} is for --executor torchrun; --executor {executor} trains every run whole, in one "
        "process"
    )


@contextmanager
def building_tasks(
    study: Study, plan: Plan, results: ResultsFolder, corpus: TokenizedCorpus, workers: int | None
) -> Iterator[ProcessTaskBuilder | None]:
    """Processes that build the tasks while a GPU trains; they are ended if training does not reach its end."""
    if plan.execution.device != "cuda" or not study.evaluation.tasks:
        yield None
        return
    from ablationlab.evaluation import start_building_tasks

    builder = start_building_tasks(results, plan, corpus, workers)
    try:
        yield builder
    except BaseException:
        if builder is not None:
            builder.close()
        raise


def evaluate(
    study: Study, results: ResultsFolder, device: Device, workers: int | None, builder: ProcessTaskBuilder | None = None
) -> None:
    """Score every run on the tasks that the study asks for, if any; what is scored already is not scored again."""
    if not study.evaluation.tasks:
        return
    from ablationlab.evaluation import evaluate as score
    from ablationlab.study.plan import usable_cores

    score(results.path, tasks=study.evaluation.tasks, device=device, workers=workers or usable_cores(), builder=builder)


def conclude(folder: Path) -> tuple[Analysis, Verdict]:
    """Analyze the records, apply the rules, and write analysis.json and verdict.json."""
    from ablationlab.analysis import analyze, read_results
    from ablationlab.analysis.verdict import decide

    analysis = analyze(read_results(folder, None))
    verdict = decide(analysis)
    analysis.replace(folder / "analysis.json")
    verdict.replace(folder / "verdict.json")
    return analysis, verdict
