"""The one path from a study to its report: seal, train, check the ledger, evaluate, conclude, report.

`run` is what the command line and notebooks call. The ranks of a torchrun call `train`, its first half. Both give *listen*
one of the events below for everything that happens. No torch is loaded until something is trained or evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal

from ablationlab.core.errors import AblationLabError, RecordError
from ablationlab.core.processes import address_space, require_memory, usable_cores
from ablationlab.records.environment import Drift
from ablationlab.records.plan import CALIBRATION, Plan
from ablationlab.records.settings import Study
from ablationlab.records.storage import ResultsFolder, inside, next_numbered, not_a_link, timestamp
from ablationlab.study.code import code_notice, study_code
from ablationlab.study.load import load_study, parse_study

if TYPE_CHECKING:
    from rich.console import Console

    from ablationlab.data.corpus import TokenizedCorpus
    from ablationlab.evaluation import Outcome, ProcessTaskBuilder
    from ablationlab.records.analysis import Analysis
    from ablationlab.records.metrics import Metric
    from ablationlab.records.plan import Calibrated, LookResult, StepTime, Try, TwoStages
    from ablationlab.records.results import Run
    from ablationlab.records.settings import Calibrate, DataConfig
    from ablationlab.records.verdict import Verdict
    from ablationlab.report.notebook import StudyResults
    from ablationlab.report.progress import Display
    from ablationlab.study.trust import Carried
    from ablationlab.tasks import TaskRequest
    from ablationlab.training.distributed.ranks import Ranks
    from ablationlab.training.executors.job import Event, Job

Device = Literal["auto", "cpu", "cuda"]
Executor = Literal["local", "ray", "torchrun"]


class Interrupted(KeyboardInterrupt):
    """The user stopped training; what was in training has a checkpoint, and the same call continues from there."""


@dataclass(frozen=True)
class Options:
    """Where and how a study is trained; the names are those of the command line's options."""

    device: Device = "auto"
    workers: int | None = None
    executor: Executor = "local"
    address: str | None = None
    nproc: int | None = None
    accept_drift: bool = False
    trust_code: bool = False

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise AblationLabError(f"--workers {self.workers}: at least one process is needed")
        if self.address is not None and self.executor != "ray":
            raise AblationLabError(
                f"--address {self.address} belongs to --executor ray, not to --executor {self.executor}"
            )
        if self.nproc is not None and self.executor != "torchrun":
            raise AblationLabError(
                f"--nproc {self.nproc} belongs to --executor torchrun; --workers is what --executor local takes"
            )


# ---- events -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ComparingTexts:
    """Text that the corpora of a mixture share is being looked for; *share* of the work is done."""

    share: float


@dataclass(frozen=True)
class TimingSteps:
    """The steps of all arms of a plan are being timed, for time is to be equal."""

    plan: Plan


@dataclass(frozen=True)
class Planned:
    """The plan is sealed, now or earlier. *notice* is what to know before training, if anything; *workers* were asked for."""

    plan: Plan
    results: ResultsFolder
    runs: tuple[Run, ...]
    notice: str
    workers: int | None

    @property
    def waiting(self) -> int:
        """Runs without a result."""
        return sum(not run.done for run in self.runs)


@dataclass(frozen=True)
class TrainingStarted:
    """*done_steps* are steps of runs that were finished before. Executors' own events follow, one per thing that happens."""

    plan: Plan
    done_steps: int


@dataclass(frozen=True)
class TrainingEnded:
    """It ended, failed or was interrupted."""


@dataclass(frozen=True)
class LedgerChecked:
    """*pairs* of variant and baseline differ in nothing that was not declared."""

    plan: Plan
    results: ResultsFolder
    pairs: int


@dataclass(frozen=True)
class EvaluationStarted:
    results: ResultsFolder


@dataclass(frozen=True)
class EvaluationEnded:
    results: ResultsFolder
    outcome: Outcome


@dataclass(frozen=True)
class Concluded:
    results: ResultsFolder
    analysis: Analysis
    verdict: Verdict


@dataclass(frozen=True)
class ReportStep:
    """A part of the report is being written: its name, its number, and of how many."""

    part: str
    number: int
    of: int


@dataclass(frozen=True)
class ReportWritten:
    """The paths that people open."""

    paths: tuple[Path, ...]


@dataclass(frozen=True)
class ReportFailed:
    """Records and verdict are safe on disk, so this fails nothing else."""

    results: ResultsFolder
    error: AblationLabError


@dataclass(frozen=True)
class CalibrationTried:
    """A value of the setting *asked* for was tried in a regime; *found* is what the calibration settled on, if it did."""

    regime: str
    attempt: Try
    asked: Calibrate
    found: Calibrated | None


@dataclass(frozen=True)
class SweepTuned:
    """Both stages of a sweep are trained, and *found* is what they say of each variant."""

    found: TwoStages


@dataclass(frozen=True)
class LookTaken:
    """A planned look was taken; *result* says whether the study stops or trains on."""

    results: ResultsFolder
    result: LookResult


@dataclass(frozen=True)
class Note:
    """A line about what is being done in a phase."""

    phase: Literal["training", "evaluation", "report"]
    text: str


if TYPE_CHECKING:
    PipelineEvent = (
        ComparingTexts
        | TimingSteps
        | Planned
        | TrainingStarted
        | Event
        | TrainingEnded
        | LedgerChecked
        | EvaluationStarted
        | EvaluationEnded
        | CalibrationTried
        | SweepTuned
        | LookTaken
        | Concluded
        | ReportStep
        | ReportWritten
        | ReportFailed
        | Note
    )
    Listener = Callable[[PipelineEvent], None]


class TrainingProgress:
    """A listener that shows the progress of training and why there is no report, if so: for notebooks and scripts."""

    def __init__(self, console: Console | None = None) -> None:
        from ablationlab.report.progress import console as make_console

        self._console = console or make_console()
        self._display: Display | None = None

    def __call__(self, event: PipelineEvent) -> None:
        """Show one event."""
        from ablationlab.report.progress import display_for
        from ablationlab.training.executors.job import Event

        if isinstance(event, TrainingStarted):
            self._display = display_for(self._console, event.plan, event.done_steps)
            self._display.__enter__()
        elif isinstance(event, Event) and self._display is not None:
            self._display.hear(event)
        elif isinstance(event, TrainingEnded) and self._display is not None:
            self._display.__exit__(None, None, None)
        elif isinstance(event, ReportFailed):
            self._console.print(f"No report: {event.error}", markup=False, highlight=False)


# ---- the path -----------------------------------------------------------------------------------------------------------


def run(
    study: Study | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    listen: Listener | None = None,
    overrides: Sequence[str] = (),
    device: Device = "auto",
    workers: int | None = None,
    executor: Executor = "local",
    address: str | None = None,
    nproc: int | None = None,
    accept_drift: bool = False,
    trust_code: bool = False,
    report: bool = False,
) -> StudyResults:
    """Run a study to its verdict and return its results. What is done already is not done again.

    *study*: a study file, a `Study`, or nested tables as in a study file. *overrides*: ``key=value`` texts for a study
    file, as with ``--set``. *report*: also write page, figures, tables and paper, as the command does. *listen* gets every
    event; without it, the progress of training is shown. Ctrl-C stops at a step boundary and raises `Interrupted`; the
    same call continues from there.

    *executor*: "ray" trains on a Ray cluster (the one at *address*, the one already connected, or one started for this
    call); "torchrun" spreads each run over *nproc* processes. *trust_code*: run the code of a results folder from someone
    else.
    """
    options = Options(device, workers, executor, address, nproc, accept_drift, trust_code)
    study, results = open_study(study, out, overrides)
    return _carry_out(study, results, options, listen or TrainingProgress(), report=report)


def extend(
    folder: str | Path,
    options: Options,
    *,
    seeds: Sequence[int] = (),
    variants: Sequence[str] = (),
    reason: str = "",
    listen: Listener | None = None,
    report: bool = False,
) -> StudyResults:
    """Add runs to a study and carry it to its verdict again; what is trained and scored is reused as it is.

    plan.lock stays as it was sealed; amendments/ says what was added, when and why. The seeds of a later look of the design
    stay registered, and are what is added where nothing is named; everything else is exploratory, wherever its verdict is
    printed.
    """
    from ablationlab.data.corpus import load_corpus
    from ablationlab.records.plan import AMENDMENTS
    from ablationlab.records.results import read_runs
    from ablationlab.study.places import find_results
    from ablationlab.study.plan import extended, extension

    results = ResultsFolder(find_results(Path(folder)))
    results.check_planned()
    if not seeds and not variants and not (seeds := _seeds_to_look(results)):
        return _carry_out(
            Plan.read_sealed(results.plan).study, results, options, listen or TrainingProgress(), report=report
        )
    place = next_numbered(results.path / AMENDMENTS)  # before the plan is read: another command may add runs meanwhile
    sealed, before = Plan.read_sealed(results.plan), Plan.of(results)
    _check_complete(sealed.study, results, read_runs(before, results))
    _ask(sealed.study, results, trust=options.trust_code)
    with study_code(sealed.study, results):
        own = sealed.study.trainer is not None
        corpus = None if own else load_corpus(sealed.study.data)
        corpora = {} if own else _corpora(extended(before, seeds, variants))
        amendment = extension(results, corpus, corpora, seeds, variants, reason)
    _checked_drift(sealed.in_force(before.looks, (*before.amendments, amendment)), corpus, results, options)
    try:
        amendment.create(place)
    except FileExistsError as error:
        raise AblationLabError(
            f"another command added runs to {results.path} at the same time ({AMENDMENTS}/{place.name}). Nothing was added "
            "here; run the same command again"
        ) from error
    return _carry_out(sealed.study, results, options, listen or TrainingProgress(), report=report)


def _seeds_to_look(results: ResultsFolder) -> tuple[int, ...]:
    """The seeds of the look that the verdict names, else of the next one; none where that look is being trained."""
    from ablationlab.records.results import Results
    from ablationlab.study.plan import later_looks

    plan, sealed = Plan.of(results), Plan.read_sealed(results.plan).study
    if sealed.design is not None and not plan.stopped:
        return ()
    looks = later_looks(plan, sealed)
    if not looks or sealed.design is None:
        raise AblationLabError("nothing to add: no planned look is left. Give --seeds, --variants or both")
    verdict = Results.open(results.path).verdict
    named = verdict.next_look if verdict is not None else None
    number = sealed.design.looks.index(named) + 1 if named in sealed.design.looks else 0
    return looks.get(number, next(iter(looks.values())))


def _carry_out(
    study: Study, results: ResultsFolder, options: Options, listen: Listener, *, report: bool
) -> StudyResults:
    """From a study to its verdict, look by look; one without a design has a single look at all of its runs."""
    from ablationlab.records.results import read_runs, without_weights

    going_on = True
    while going_on:
        with _energy_measured(results, options):
            tasks = train(study, results, options, listen)
            lost = without_weights(read_runs(Plan.of(results), results)) if study.evaluation.tasks else []
            if lost and all(run.evaluation is not None for run in lost):
                listen(Note("evaluation", "The weights are not kept, so nothing is scored again; the scores stay"))
            elif study.evaluation.tasks:
                from ablationlab.tasks.request import TaskRequest

                outcome = evaluate(results, TaskRequest.of(study), options, listen, built=tasks)
                if outcome.nothing:
                    from ablationlab.analysis.wording import nothing_to_score

                    why = nothing_to_score(outcome.not_evaluable)
                    listen(Note("evaluation", f"{why}; the analysis counts them"))
        analysis, verdict = conclude(results.path)
        going_on = analysis.look is not None and not _look_taken(results, analysis.look, listen).stop
    listen(Concluded(results, analysis, verdict))
    if report:
        write_report(results, listen)
    from ablationlab.report.notebook import load_results

    return load_results(results.path)


def _check_complete(study: Study, results: ResultsFolder, runs: Sequence[Run]) -> None:
    """Refuse to train in a folder that has only a part of its runs' files."""
    from ablationlab.records.results import WEIGHTS, no_weights, not_kept, without_weights

    if files := [name for name in not_kept(runs) if name not in WEIGHTS]:
        raise RecordError(
            f"the runs in {results.path} do not keep {', '.join(files)}. Runs that are trained now would, and what was "
            "left out could not be distinguished from what was lost. Use the complete folder, or train the study again with "
            "`ablationlab run --out`; `ablationlab analyze` and `ablationlab report` work here"
        )
    if study.evaluation.tasks and (lost := without_weights(runs)):
        raise no_weights(*(run.folder for run in lost))


@contextmanager
def _energy_measured(results: ResultsFolder, options: Options) -> Iterator[None]:
    """Write down what the devices of this machine report while runs are trained and scored, also if the command is stopped.

    Nothing is measured where no run is to be trained, or where a cluster trains.
    """
    done = results.plan.exists() and all(results.run(run.id).done for run in Plan.of(results).runs)
    if done or options.executor == "ray":
        yield
        return
    from ablationlab.core.energy import EnergyMeter
    from ablationlab.records.energy import ENERGY, Energy, EnergyReading

    began = timestamp()
    meter = EnergyMeter(gpu=options.device != "cpu")
    try:
        with meter:
            yield
    finally:
        if results.plan.exists():
            plan = Plan.of(results)
            used = [each for each in meter.joules.items() if each[0] != "nvidia-smi" or plan.execution.device == "cuda"]
            readings = tuple(EnergyReading(source=source, joules=joules) for source, joules in used)
            record = Energy(plan_hash=plan.plan_hash, began=began, seconds=meter.seconds, readings=readings)
            folder = results.path / ENERGY
            not_a_link(folder)
            for _ in range(100):  # other commands of this study may end at the same moment
                with suppress(FileExistsError):
                    record.create(next_numbered(folder))
                    break


def _look_taken(results: ResultsFolder, result: LookResult, listen: Listener) -> LookResult:
    """Write down what a planned look found, which asks for the runs of the next one unless it stops the study."""
    from ablationlab.records.plan import LOOKS, Look

    path = results.path / LOOKS / f"{result.number}.json"
    plan_hash = Plan.of(results).plan_hash
    with suppress(FileExistsError):
        Look(plan_hash=plan_hash, created=timestamp(), result=result).create(path)
    before = Look.read(path).result
    if before.stop != result.stop or any(
        (ours.comparison, ours.finding) != (theirs.comparison, theirs.finding)
        for ours, theirs in zip(result.findings, before.findings, strict=True)
    ):
        raise RecordError(f"{path} was taken on other results than those in the folder now: a record has changed since")
    listen(LookTaken(results, result))
    return result


def _ask(study: Study, results: ResultsFolder, tasks: Sequence[str] | None = None, *, trust: bool) -> list[Carried]:
    """Refuse code that nobody here has run or allowed (*trust* allows it), and a folder that leads elsewhere. Returns what
    was asked about."""
    from ablationlab.study.trust import carried_code, remember, require_trust

    results.check_links()
    code = carried_code(study, tasks)
    if trust:
        remember(code)
    require_trust(code, results.path)
    return code


def open_study(
    study: Study | Mapping[str, Any] | str | Path, out: str | Path | None = None, overrides: Sequence[str] = ()
) -> tuple[Study, ResultsFolder]:
    """The study, from whatever there is at hand, and where its results go.

    A path may be a study file, a bare name (`embedding-norm`) or a results folder, whose sealed study is meant.
    """
    from ablationlab.study.places import default_folder, find_study

    if isinstance(study, str | Path):
        place = find_study(Path(study))
        if place.is_dir():
            ResultsFolder(place).check_planned()
            if overrides:
                raise AblationLabError(
                    f"--set belongs to a study file; {place} is a results folder, whose plan is sealed"
                )
            return Plan.read_sealed(ResultsFolder(place).plan).study, ResultsFolder(
                Path(out) if out is not None else place
            )
        study = load_study(place, overrides)
    elif overrides:
        raise AblationLabError("overrides belong to a study file; change the tables, or use Study.changed")
    resolved = study if isinstance(study, Study) else parse_study(study)
    return resolved, ResultsFolder(Path(out) if out is not None else default_folder(resolved))


def metrics_at(study: Study, results: ResultsFolder) -> Mapping[str, Metric]:
    """The study's metrics: as its plan has them, or as its code registers them now."""
    from ablationlab.study.trainers import metrics_of

    with suppress(RecordError):  # what lies there may be another study's
        if results.plan.exists() and (plan := Plan.of(results)).study_hash == study.hash:
            return plan.metrics
    with study_code(study):
        return metrics_of(study)


#: Bytes that torch, Arrow and the harness map to train and score the smallest model. With less, they crash (`ulimit -v`).
LEAST_ADDRESSES = 1_500_000_000


def train(
    study: Study,
    results: ResultsFolder,
    options: Options,
    listen: Listener,
    *,
    ranks: Ranks | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> ProcessTaskBuilder | None:
    """Seal, train what is not done, and check the ledger. Returns the tasks that were built beside training, if any.

    Under the user's own torchrun every rank calls this with *ranks*, and *should_stop* tells when the user wants to stop.
    """
    from ablationlab.records.results import read_runs
    from ablationlab.study.checks import study_warnings
    from ablationlab.study.ledger import check_ledger
    from ablationlab.study.reuse import copy_reused
    from ablationlab.training.executors.job import Job

    if study.trainer is None:
        require_memory(LEAST_ADDRESSES, "training", address_space)
    corpus = None
    leads = ranks is None or ranks.leads
    asked = _ask(study, results, trust=options.trust_code)
    with study_code(study, results):
        if ranks is None:
            if not results.plan.exists() and study.trainer is None and options.device != "cpu":
                Thread(target=_wake_gpu, daemon=True).start()
            processes = _ranks_wanted(study, options)
            planned = results.plan.exists()
            calibrations = {} if planned else calibrate(study, results, options, listen)
            tuned = None if planned else tune(study, results, options, listen)
            workers = processes or options.workers
            plan, corpus = seal(study, results, options.device, workers, listen, calibrations, tuned)
            copy_reused(plan, results)
            drift = _checked_drift(plan, corpus, results, options)
        else:
            processes = ranks.world
            plan, drift = _sealed_by_the_leader(study, results, options, ranks, listen)
        notices = study_warnings(study) if leads else ()  # one rank says it
    notices = (*notices, *filter(None, [code_notice(study), _layout_notice(study, options.executor)]))
    if ranks is None and study.use and study.trainer is None:
        _measure_again(plan, study, results)
    event = Planned(plan, results, read_runs(plan, results), "\n".join(notices), processes or options.workers)
    if event.waiting:
        _check_complete(study, results, event.runs)
    with study_code(study, results):
        listen(event)  # how long it takes is estimated from the study's own parts
    # From the copy that was sealed, here and in every worker.
    with study_code(study, results), tasks_built_meanwhile(study, plan, results, corpus, options) as tasks:
        if event.waiting or ranks is not None:
            job = Job(
                plan, results.path, study.data, drift, options.accept_drift, frozenset(code.sha256 for code in asked)
            )
            listen(TrainingStarted(plan, sum(run.steps for run in event.runs if run.done)))
            try:
                heard = _importing_meanwhile(listen) if plan.execution.device == "cuda" and leads else listen
                finished = _execute(job, options, processes, heard, ranks, should_stop)
            finally:
                listen(TrainingEnded())
            if not finished:
                raise Interrupted("stopped at a step boundary, with a checkpoint; the same call continues from there")
        if leads:
            listen(LedgerChecked(plan, results, check_ledger(plan, read_runs(plan, results))))
            for line in _failed_metrics(read_runs(plan, results)):
                listen(Note("training", line))
        return tasks


def _measure_again(plan: Plan, study: Study, results: ResultsFolder) -> None:
    """Try metrics of the study's own code that raised in an earlier command."""
    from ablationlab.records.results import read_runs

    if any(run.result is not None and run.result.unmeasured for run in read_runs(plan, results)):
        from ablationlab.training.executors.job import Job, Texts
        from ablationlab.training.run_state import measure_again

        with study_code(study, results):
            measure_again(plan, results, Texts(Job(plan, results.path, study.data)).of)


def _failed_metrics(runs: Sequence[Run]) -> Iterator[str]:
    """Which metrics of the study's own code have no value, on how many runs, and why the first has none."""
    ended = [run.result for run in runs if run.result is not None and run.result.unmeasured]
    if not ended:
        return
    from ablationlab.analysis.stability import metric_failed
    from ablationlab.analysis.wording import absence
    from ablationlab.core.format import several

    for name in dict.fromkeys(name for result in ended for name in result.unmeasured):
        failures = [result.unmeasured[name] for result in ended if name in result.unmeasured]
        yield (
            f"Metric {name!r} has no value for {several(len(failures), 'run')}; {absence(metric_failed(failures[0]))}. "
            "The runs are trained and kept; the same command tries the metric again"
        )


def _execute(
    job: Job,
    options: Options,
    processes: int | None,
    listen: Callable[[Event], None],
    ranks: Ranks | None,
    should_stop: Callable[[], bool],
) -> bool:
    """Hand the job to its executor; False if the user stopped it."""
    from ablationlab.training.executors import local, ray_cluster, torchrun

    if ranks is not None:
        return torchrun.execute_in_rank(job, ranks, listen, should_stop)
    if options.executor == "ray":
        return ray_cluster.execute(job, options.address, options.workers, listen)
    if options.executor == "torchrun":
        assert processes is not None
        return torchrun.execute(job, processes, listen)
    return local.execute(job, worker_count(job.plan, options.workers), listen)


def seal(
    study: Study,
    results: ResultsFolder,
    device: Device,
    workers: int | None,
    listen: Listener = lambda _: None,
    calibrations: Mapping[str, Calibrated] | None = None,
    tuned: TwoStages | None = None,
) -> tuple[Plan, TokenizedCorpus | None]:
    """The sealed plan of this very study in that folder, made if there is none, and its text."""
    from ablationlab.data.corpus import load_corpus
    from ablationlab.study.plan import check_texts, keep_places, open_plan, seal_plan

    if not results.plan.exists():
        results.check_unplanned()
        made, corpus = resolve(study, device, workers, listen, calibrations, tuned)
        return seal_plan(made, results), corpus
    plan = open_plan(results, study)
    keep_places(study, results)  # texts may have moved
    if study.trainer is not None:
        return plan, None
    with study_code(study, results):
        compare_texts(study.data, workers, listen)
        check_texts(plan, _corpora(study))
        return plan, load_corpus(study.data)


def resolve(
    study: Study,
    device: Device,
    workers: int | None,
    listen: Listener = lambda _: None,
    calibrations: Mapping[str, Calibrated] | None = None,
    tuned: TwoStages | None = None,
) -> tuple[Plan, TokenizedCorpus | None]:
    """The plan of a study, and its text. Nothing is written."""
    from ablationlab.data.corpus import load_corpus
    from ablationlab.study.plan import make_plan

    if study.trainer is not None:
        from ablationlab.study.trainers import plan_own_trainer

        return plan_own_trainer(study, device, workers), None

    def measure(plan: Plan) -> tuple[StepTime, ...]:
        from ablationlab.training.executors.job import Job
        from ablationlab.training.step_time import measure_step_times

        listen(TimingSteps(plan))
        return measure_step_times(plan, Job(plan, Path(), study.data))

    with study_code(study):
        compare_texts(study.data, workers, listen)
        corpus = load_corpus(study.data)
        return make_plan(study, corpus, device, workers, _corpora(study), calibrations, measure, tuned), corpus


def _corpora(study: Study) -> dict[str, TokenizedCorpus]:
    """The texts of variants that change [data]."""
    from ablationlab.data.corpus import load_corpus
    from ablationlab.study.variants import arm_data, variants_of

    texts = {name: arm_data(study.data, variant) for name, variant in variants_of(study).items()}
    return {name: load_corpus(data) for name, data in texts.items() if data != study.data}


def calibrate(study: Study, results: ResultsFolder, options: Options, listen: Listener) -> dict[str, Calibrated]:
    """Find the value of every regime that asks for it, before the plan is sealed.

    Every try is a sealed study of its own in calibration/<regime>/<number>/, so it is resumed and kept like any other.
    """
    from ablationlab.study.calibration import next_value, settled, try_study
    from ablationlab.study.plan import calibrated_regimes

    def without_ledger(event: PipelineEvent) -> None:
        if not isinstance(event, LedgerChecked):  # a try has no pairs
            listen(event)

    names = calibrated_regimes(study)
    if names:
        register(study, results)
    found = {}
    for name in names:
        asked, tries = calibration_tries(study, results, name)
        while (value := next_value(study, name, tries)) is not None:
            train(try_study(study, name, value), _try_folder(results, name, len(tries)), options, without_ledger)
            asked, tries = calibration_tries(study, results, name)
            done = next_value(study, name, tries) is None
            listen(CalibrationTried(name, tries[-1], asked, settled(asked, tries) if done else None))
        found[name] = settled(asked, tries)
    return found


def tune(study: Study, results: ResultsFolder, options: Options, listen: Listener) -> TwoStages | None:
    """Find the rate at which each variant is judged, before the plan is sealed; None without a sweep of two stages.

    Each stage is a sealed study of its own in calibration/sweep/<number>/, so it is resumed and kept like any other.
    """
    from ablationlab.records.plan import Plan
    from ablationlab.study.plan import plan_drift
    from ablationlab.study.stages import stage_study

    if study.sweep is None or study.sweep.finer is None:
        return None
    register(study, results)
    from ablationlab.analysis.stages import found_by_stages, losses_of, stage_folder

    train(stage_study(study), stage_folder(results, 1), options, listen)
    train(stage_study(study, losses_of(results, 1)), stage_folder(results, 2), options, listen)
    found = found_by_stages(study, results)
    # A stage that has ended is not trained again, so nothing else notices what changed since.
    stages = [Plan.of(stage_folder(results, stage)) for stage in (1, 2)]
    changed = dict.fromkeys(each for plan in stages for each in plan_drift(plan, None, "auto"))
    if changed and not options.accept_drift:
        raise _drifted([*changed])
    listen(SweepTuned(found))
    return found


def calibration_tries(study: Study, results: ResultsFolder, regime: str) -> tuple[Calibrate, list[Try]]:
    """What a regime asks for, and the tries that are trained, in order, from the files alone."""
    from ablationlab.records.results import read_runs
    from ablationlab.study.calibration import next_value

    asked = study.regimes[regime].calibrate
    assert asked is not None
    tries: list[Try] = []
    while (value := next_value(study, regime, tries)) is not None:
        place = _try_folder(results, regime, len(tries))
        plan = Plan.of(place) if place.plan.exists() else None
        if plan is None or not all(run.done for run in read_runs(plan, place)):
            break
        tries.append(_tried(place, value))
    return asked, tries


def _try_folder(results: ResultsFolder, regime: str, before: int) -> ResultsFolder:
    return ResultsFolder(inside(results.path / CALIBRATION, regime) / f"{before + 1:02d}")


def register(study: Study, results: ResultsFolder) -> None:
    """Seal the study itself before it is calibrated or swept in two stages; another one in the folder is refused."""
    from ablationlab.core.errors import PlanError
    from ablationlab.records.plan import Registration, without_paths

    path = results.path / "study.lock"
    with suppress(FileExistsError):
        Registration(study=without_paths(study)[0], study_hash=study.hash, created=timestamp()).create(path)
    registered = Registration.read(path)
    if registered.study_hash != study.hash:
        raise PlanError(
            f"{results.path} holds another study, or this one with other settings: {registered.study.name!r}, sealed "
            f"{registered.created}. Its calibration or sweep has begun; choose another folder with --out"
        )


def _tried(place: ResultsFolder, value: float) -> Try:
    """How many baselines of one try broke, by the study's own rules for stability."""
    from ablationlab.analysis.stability import UNSTABLE, ended_run, stability_of
    from ablationlab.records.plan import Try
    from ablationlab.records.results import read_runs

    plan = Plan.of(place)
    rules = plan.study.stability
    runs = [stability_of(run.planned, ended_run(run), rules) for run in read_runs(plan, place)]
    broken = sum(run.reason in UNSTABLE for run in runs)
    return Try(value=value, seeds=plan.study.seeds, broken=broken, plan_hash=plan.plan_hash)


def compare_texts(data: DataConfig, workers: int | None, listen: Listener) -> None:
    """Find the text that the corpora of a mixture share, in parallel; what is found is kept in the cache."""
    from ablationlab.data.corpus import load_mixture

    if data.mixture is not None and len(data.mixture) > 1:
        load_mixture(data, processes=workers or usable_cores(), report=lambda share: listen(ComparingTexts(share)))


def _sealed_by_the_leader(
    study: Study, results: ResultsFolder, options: Options, ranks: Ranks, listen: Listener
) -> tuple[Plan, tuple[Drift, ...]]:
    """The leader seals the plan, or opens the sealed one; the others read it."""
    from ablationlab.study.plan import open_plan
    from ablationlab.study.reuse import copy_reused
    from ablationlab.training.executors.torchrun import check

    check(study, ranks.world)
    staged = study.sweep is not None and study.sweep.finer is not None
    staged |= study.design is not None and study.design.looks[0] < len(study.seeds)
    if staged or any(regime.calibrate is not None for regime in study.regimes.values()):
        raise AblationLabError(
            "[design], [sweep.finer] and calibrated regimes train in stages, which a torchrun that you start cannot: use "
            "`ablationlab run --executor torchrun`, which starts one per stage"
        )

    def prepare() -> list[dict[str, str]]:
        plan, corpus = seal(study, results, options.device, ranks.world, listen)
        copy_reused(plan, results)
        return [drift.model_dump() for drift in _checked_drift(plan, corpus, results, options)]

    drifts = tuple(Drift(**drift) for drift in ranks.share(prepare))
    return open_plan(results, study), drifts


def _checked_drift(
    plan: Plan, corpus: TokenizedCorpus | None, results: ResultsFolder, options: Options
) -> tuple[Drift, ...]:
    """What changed since the plan was sealed; refused unless accepted, or unless there is nothing left to train."""
    from ablationlab.study.plan import plan_drift
    from ablationlab.training.executors.job import open_stacks

    drift = plan_drift(plan, corpus, options.device)
    if drift and not options.accept_drift and open_stacks(plan, results):
        raise _drifted(drift)
    return drift


def _drifted(drift: Sequence[Drift]) -> AblationLabError:
    return AblationLabError(
        "this is not the environment that the plan was sealed in:\n"
        + "\n".join(f"  - {line}" for line in drift)
        + "\nRuns made in different environments are not a fair comparison. Plan again with --out, restore the "
        "environment, or continue with --accept-drift, which is recorded in every run it touches"
    )


def worker_count(plan: Plan, workers: int | None) -> int:
    """Training processes: as asked, else one per core on a CPU and one on a GPU."""
    if workers is not None:
        return workers
    return 1 if plan.execution.device == "cuda" else max(1, usable_cores() // plan.execution.threads)


def _ranks_wanted(study: Study, options: Options) -> int | None:
    """Processes per run under torchrun, as asked or one per GPU, checked before anything is sealed; None for others."""
    if options.executor != "torchrun":
        return None
    import torch

    from ablationlab.training.executors.torchrun import check

    ranks = max(1, torch.cuda.device_count()) if options.nproc is None else options.nproc
    check(study, ranks)
    return ranks


def _layout_notice(study: Study, executor: Executor) -> str:
    """What to know before an executor of whole runs trains a study that says how torchrun would spread them."""
    how = study.execution.parallel
    if how is None or executor == "torchrun":
        return ""
    return (
        f"execution.parallel = {how!r} is for --executor torchrun; --executor {executor} trains every run whole, in one "
        "process"
    )


@contextmanager
def tasks_built_meanwhile(
    study: Study, plan: Plan, results: ResultsFolder, corpus: TokenizedCorpus | None, options: Options
) -> Iterator[ProcessTaskBuilder | None]:
    """Workers that build the tasks while a GPU trains; they are killed if training does not come to its end."""
    waiting = not all(results.run(run.id).done for run in plan.runs)
    if corpus is None or not waiting or plan.execution.device != "cuda" or not study.evaluation.tasks:
        yield None
        return
    from ablationlab.evaluation import start_building_tasks

    tasks = start_building_tasks(results, plan, corpus, options.workers)
    try:
        yield tasks
    except BaseException:
        if tasks is not None:
            tasks.close()
        raise


def _wake_gpu() -> None:
    """Have torch start the GPU, if there is one, and load what compiles kernels while the plan is made: about two seconds."""
    import torch

    with suppress(RuntimeError, ImportError):  # whoever uses it next says what is wrong
        if torch.cuda.is_available():
            torch.zeros(1, device="cuda")
            import_module("ablationlab.model.kernels.norm")
            from triton.runtime.cache import triton_key

            triton_key()  # a hash of all its files, which it remembers


def _importing_meanwhile(listen: Listener) -> Callable[[Event], None]:
    """The same listener, which loads what comes after training, for seconds, once a GPU has made its first steps: before them
    this process has much to do, and then little."""
    started = False

    def hear(event: Event) -> None:
        nonlocal started
        if not started:
            started = True
            Thread(target=_import_what_follows, daemon=True).start()
        listen(event)

    return hear


def _import_what_follows() -> None:
    # pyarrow loads pandas where there is one, when it is first given a list.
    for module in ("pandas", "ablationlab.evaluation", "ablationlab.analysis.verdict", "ablationlab.report.notebook"):
        with suppress(ImportError):
            import_module(module)


def evaluate(
    results: ResultsFolder,
    request: TaskRequest,
    options: Options,
    listen: Listener,
    *,
    throughput: bool = True,
    built: ProcessTaskBuilder | None = None,
) -> Outcome:
    """Score every run on what is asked; what is scored already is not scored again. *built* are tasks that are ready."""
    from ablationlab.evaluation import evaluate as score

    require_memory(LEAST_ADDRESSES, "scoring", address_space)
    study = Plan.of(results).study
    _ask(study, results, request.tasks, trust=options.trust_code)
    listen(EvaluationStarted(results))
    with study_code(study, results):
        outcome = score(
            results.path,
            request,
            device=options.device,
            workers=options.workers or usable_cores(),
            throughput=throughput,
            report=lambda text: listen(Note("evaluation", text)),
            builder=built,
        )
    listen(EvaluationEnded(results, outcome))
    return outcome


def conclude(folder: Path) -> tuple[Analysis, Verdict]:
    """Analyze the records, apply the rules, and write analysis.json and verdict.json."""
    from ablationlab.analysis import read_results
    from ablationlab.analysis.conclusion import conclude

    concluded = conclude(read_results(folder, None))
    concluded.write(folder)
    return concluded.analysis, concluded.verdict


def write_report(results: ResultsFolder, listen: Listener) -> None:
    """Write page, figures, tables and paper; a report that cannot be written is an event, not an error."""
    from ablationlab.report.make import make_report

    try:
        paths = make_report(
            results.path,
            say=lambda text: listen(Note("report", text)),
            step=lambda part, number, of: listen(ReportStep(part, number, of)),
        )
    except AblationLabError as error:
        listen(ReportFailed(results, error))
    else:
        listen(ReportWritten(tuple(paths)))
