"""From a study to its runs, sealed: which runs, what each costs, how the bits are made. plan.lock is written once."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace as replaced
from fractions import Fraction
from functools import cache
from math import ceil, gcd, lcm, sqrt
from typing import Any, Literal, Protocol

from pydantic import ValidationError

from ablationlab.core.code import place_of, written
from ablationlab.core.errors import PlanError
from ablationlab.core.format import count
from ablationlab.core.grouping import grouped
from ablationlab.core.problems import problems_of
from ablationlab.core.processes import usable_cores
from ablationlab.data.corpus import TokenizedCorpus, check_length
from ablationlab.data.ngrams import reference_losses
from ablationlab.model.machine import Precision
from ablationlab.model.parameters import matmul_flops_per_token, parameter_count
from ablationlab.model.rules import OPTIMIZERS, combination_problems, schedule_refusal, step_flops, warmup_refusal
from ablationlab.records.environment import Drift, current, drift
from ablationlab.records.metrics import METRICS, across_tokenizers
from ablationlab.records.plan import (
    PLACES,
    Amendment,
    Budget,
    Calibrated,
    Corpus,
    Declaration,
    Execution,
    Plan,
    PlannedRun,
    PlannedTask,
    Recipe,
    RunRole,
    StepTime,
    Streams,
    TwoStages,
    without_paths,
)
from ablationlab.records.settings import (
    DEFAULT_REGIME,
    ModelConfig,
    Study,
    Sweep,
    TrainingConfig,
    Trial,
    divisors_of,
    steps_of,
)
from ablationlab.records.storage import ResultsFolder, content_hash, read_regular, replace, timestamp
from ablationlab.study.code import keep_code
from ablationlab.study.differences import listed, study_differences
from ablationlab.study.ledger import refuse, setting_mismatches
from ablationlab.study.probes import PROBES, probe_intervals
from ablationlab.study.reuse import open_sources, reused_ids, with_reused
from ablationlab.study.trainers import metrics_of, own_trainer_runs, program_drift
from ablationlab.study.variants import is_baseline_again, variants_of

Asked = Literal["auto"] | Precision
# Runs of one GPU stack, at most: 256 are 1 to 8 % faster than 64 (benchmarks/README.md), but take four times the memory
# and end all at once.
WIDEST_STACK = 64
# See `step_overhead`; fitted to stacks of 1 to 256 runs of four sizes on an H200.
OVERHEAD_FLOPS = 4.6e11
# Share of a GPU's memory that a stack may fill by `run_bytes`.
STACK_MEMORY = 0.5
# Runs of one plan: each is written out in plan.lock, so more would be slow to read everywhere.
MOST_RUNS = 20_000


#: From the plan of a study at equal tokens to what a step of each of its arms takes.
MeasureSteps = Callable[[Plan], tuple[StepTime, ...]]


class Recorded(Protocol):
    """A text, here or only declared, of which the record is enough to plan."""

    @property
    def record(self) -> Corpus:
        """What identifies it."""
        ...


@dataclass(frozen=True)
class Cells:
    """The runs of a study, those that only its sweep asks for, and what each variant declares."""

    own: list[PlannedRun]
    swept: list[PlannedRun]
    declared: dict[str, Declaration]


def study_cells(
    study: Study,
    corpus: Recorded,
    precision: Callable[[Asked], Precision],
    corpora: Mapping[str, Recorded] | None = None,
    step_times: Sequence[StepTime] = (),
) -> Cells:
    """Every run of a study and of its gate. *precision* says what an asked-for one is here; *corpora* are the texts of
    variants that change [data]. Without *step_times*, arms that shall take equal time have equal tokens.
    """
    refused = probes_refusal(study) or optimizer_refusal(study)
    if refused is not None:
        raise PlanError(refused)
    _check_size(study)
    texts = {name: (corpora or {}).get(name, corpus) for name in study.variants}
    maker = _CellMaker(study, corpus, texts, precision, step_times)
    stage = study.sweep is not None and study.sweep.stage is not None  # of a sweep, which is all that it trains
    cells = [
        maker.cell(regime, seed, name)
        for regime in study.regime_names()
        for seed in (() if stage else study.seeds)
        for name in study.variants
    ]
    cells += [
        maker.cell(regime, seed, study.baseline, role="gate")
        for regime in study.regime_names()
        for seed in study.evaluation.gate_seeds
    ]
    cells += [
        maker.cell(DEFAULT_REGIME, triple[0], name, role="noise", streams=triple)
        for triple in (study.noise.cells() if study.noise is not None else ())
        for name in study.variants
        if not _is_own(triple, study.seeds)
    ]
    if study.evaluation.tasks:
        from ablationlab.tasks import check_tasks

        check_tasks(study.evaluation, _contexts(cells))
    swept = _sweep_cells(study, maker, {cell.id for cell in cells})
    declared = {name: maker.declaration(name) for name in study.variants}
    # Where no text is read, what an arm says of its text stands for it.
    read = {name: declared[name].data if corpora is None else text.record for name, text in texts.items()}
    _check_arms(study, [*cells, *swept], declared, read)
    return Cells(cells, swept, declared)


def _check_size(study: Study) -> None:
    regimes, seeds = len(study.regime_names()), len(study.seeds)
    noise = len(study.noise.cells()) if study.noise is not None else 0
    rates = len(study.sweep.lr) if study.sweep is not None else 0
    arms = regimes * seeds + noise + rates * len(study.sweep_seeds())
    runs = len(study.variants) * arms + regimes * len(study.evaluation.gate_seeds)
    if runs > MOST_RUNS:
        raise PlanError(
            f"{count(len(study.variants))} variants x {count(seeds)} seeds, with every regime, rate and gate seed, make "
            f"about {count(runs)} runs; a study may have {count(MOST_RUNS)}. Divide it into several"
        )


def run_count(study: Study) -> int:
    """How many runs `study_cells` makes of a study, without making them."""
    regimes, own = len(study.regime_names()), set(study.seeds)
    apart = [triple for triple in (study.noise.cells() if study.noise is not None else ()) if not _is_own(triple, own)]
    total = len(study.variants) * (regimes * len(own) + len(apart)) + regimes * len(study.evaluation.gate_seeds)
    if study.sweep is not None:
        (model, training), seeds = study.in_regime(DEFAULT_REGIME), study.sweep_seeds()
        for name, variant in variants_of(study).items():
            rates = study.sweep.trials(name)
            there = own.intersection(seeds) if variant.on(model).training.get("lr", training.lr) in rates else ()
            total += len(rates) * len(seeds) - len(there)
        if study.sweep.finer is not None:
            # Each arm is judged at one rate; before the plan is sealed it is not known which.
            total = len(study.variants) * (regimes * len(own) + len(apart) + len(seeds) + sum(study.sweep.stage_runs()))
            total += regimes * len(study.evaluation.gate_seeds)
    return total


def _is_own(triple: tuple[int, int, int], seeds: Collection[int]) -> bool:
    """Whether a run of the noise study is one that the study has anyway."""
    return len(set(triple)) == 1 and triple[0] in seeds


def _contexts(cells: Sequence[PlannedRun]) -> list[int]:
    return sorted({cell.model.context for cell in cells})


def make_plan(
    study: Study,
    corpus: TokenizedCorpus,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    workers: int | None = None,
    corpora: Mapping[str, TokenizedCorpus] | None = None,
    calibrations: Mapping[str, Calibrated] | None = None,
    measure: MeasureSteps | None = None,
    tuned: TwoStages | None = None,
) -> Plan:
    """Resolve a study completely. Nothing is written.

    *corpora* are the texts of variants that change [data]; *calibrations* what was found for regimes that ask for it;
    *tuned* what both stages of a sweep found.
    *measure* times the steps of all arms, where time is to be equal: it gets the plan at equal tokens.
    """
    plan = _plan(study, corpus, device, workers, corpora or {}, calibrations or {}, (), tuned)
    if study.budget.match != "time":
        return plan
    if measure is None:
        raise PlanError("[budget] match = 'time' needs step times that are measured here; `ablationlab run` does it")
    return _plan(study, corpus, device, workers, corpora or {}, calibrations or {}, measure(plan))


def _plan(
    study: Study,
    corpus: TokenizedCorpus,
    device: Literal["auto", "cpu", "cuda"],
    workers: int | None,
    corpora: Mapping[str, TokenizedCorpus],
    calibrations: Mapping[str, Calibrated],
    step_times: tuple[StepTime, ...],
    tuned: TwoStages | None = None,
) -> Plan:
    from ablationlab.model.machine import check_room, choose_device, choose_precision, gpu_memory

    uncalibrated = [name for name in calibrated_regimes(study) if name not in calibrations]
    if uncalibrated:
        text = f"regime {uncalibrated[0]!r} is not calibrated yet"
        raise PlanError(f"{text}; `ablationlab run` does it, then seals the plan")
    for name, found in calibrations.items():
        study = study.calibrated(name, found.value)
    if study.sweep is not None and study.sweep.finer is not None:
        if tuned is None:
            raise PlanError(
                "[sweep.finer]: its stages come before the plan; `ablationlab run` trains them, then seals it"
            )
        study = study.tuned(tuned.minima)

    sources = open_sources(study)
    device_kind, device_name = choose_device(device)

    def precision(asked: Asked) -> Precision:
        return choose_precision(asked, device_kind)

    _check_texts_compare(study, corpus.record, {name: other.record for name, other in corpora.items()})
    cells = study_cells(study, corpus, precision, corpora, step_times)
    if study.use and not step_times:  # the second pass of a plan at equal time has the same models
        _check_schedules(cells)
        _check_flops(study, cells)
    tasks: tuple[PlannedTask, ...] = ()
    if study.evaluation.tasks:
        from ablationlab.tasks import check_text, plan_tasks

        check_text(study.evaluation, _contexts(cells.own), corpus)
        tasks = plan_tasks(study.evaluation)
    served = reused_ids(study, cells.own, sources)
    trained = replaced(cells, own=[cell for cell in cells.own if cell.id not in served])
    width = best_stack_width(study, trained, gpu_memory() if device_kind == "cuda" else None, workers)
    if sources and study.execution.stack_width == "auto":  # bits depend on it
        width = sources[0].plan.execution.stack_width
    if study.execution.parallel is None:
        check_room(max(cell.budget.parameters for cell in (*cells.own, *cells.swept)), width, device_kind)
    stacks = _stacks(study, trained, width) + _sweep_stacks(cells, width)
    cores = usable_cores()
    wanted = study.execution.threads
    # Runs that torchrun spreads are trained one after another, by all processes together.
    busy = min(workers or cores, len(stacks)) if study.execution.parallel is None else workers or 1
    threads = wanted if wanted != "auto" else max(1, cores // busy) if device_kind == "cpu" else 1
    if sources and wanted == "auto":
        threads = sources[0].plan.execution.threads
    stacks = [[cell] for cell in cells.own if cell.id in served] + stacks
    plan = Plan(
        study=study,
        study_hash=study.hash,
        criteria_hash=study.criteria_hash,
        variants=cells.declared,
        metrics=metrics_of(study),
        probes={name: PROBES[name].definition for name in probe_intervals(study)},
        tasks=tasks,
        corpus=corpus.record,
        corpora={name: other.record for name, other in corpora.items()},
        reference_losses=reference_losses(corpus.train, corpus.validation, corpus.record.vocabulary),
        execution=Execution(
            device=device_kind,
            device_name=device_name,
            precision=precision(study.in_regime(DEFAULT_REGIME)[1].precision),
            stack_width=width,
            threads=threads,
        ),
        **_placed(stacks),
        calibrations=dict(calibrations),
        tuned=tuned,
        step_times=step_times,
        environment=current(),
        created=timestamp(),
        plan_hash="",
    )
    return with_reused(plan, sources).sealed()


def calibrated_regimes(study: Study) -> list[str]:
    return [name for name, regime in study.regimes.items() if regime.calibrate is not None]


def extended(plan: Plan, seeds: Sequence[int], variants: Sequence[str]) -> Study:
    """The study of a plan in force with more seeds and variants."""
    study = plan.study
    return study.changed(
        seeds=tuple(dict.fromkeys([*study.seeds, *seeds])), variants=tuple(dict.fromkeys([*study.variants, *variants]))
    )


def extension(
    results: ResultsFolder,
    corpus: Recorded | None,
    corpora: Mapping[str, Recorded],
    seeds: Sequence[int],
    variants: Sequence[str],
    reason: str,
) -> Amendment:
    """Runs to add to a sealed plan: every variant on new *seeds*, new *variants* on every seed. Nothing is written.

    They are resolved as the sealed ones were, and stacked at the sealed width. *corpus* is None where the study's own trainer
    has its text. The seeds of a design's next look are that
    look, which may be trained although the study has stopped.
    """
    from ablationlab.model.machine import choose_precision

    plan, sealed = Plan.of(results), Plan.read_sealed(results.plan).study
    study = plan.study
    _check_seeds(study, seeds)
    look = _planned_look(plan, sealed, seeds, variants)
    wanted = extended(plan, seeds, variants)
    untimed = [name for name in variants if name not in study.variants]
    if plan.tuned is not None and untimed:
        raise PlanError(
            f"[sweep.finer]: {', '.join(untimed)} cannot be added, for the best rates of all arms were found before the plan "
            "was sealed. Seeds can be added; plan a study with these variants in another folder"
        )
    if study.budget.match == "time" and untimed:
        raise PlanError(
            f"[budget] match = 'time': {', '.join(untimed)} cannot be added, for the steps of all arms were timed together, "
            "before the plan was sealed. Seeds can be added; plan a study with these variants in another folder"
        )
    if corpus is None:
        runs, declared = own_trainer_runs(wanted)
        every = Cells(list(runs), [], declared)
    else:
        every = study_cells(
            wanted, corpus, lambda asked: choose_precision(asked, plan.execution.device), corpora, plan.step_times
        )
    there = {run.id for run in plan.runs}
    if not there.issubset(cell.id for cell in (*every.own, *every.swept)):
        raise PlanError("this version resolves the sealed runs differently, so what it would add could not be compared")
    later = {run.id for run in Plan.read_sealed(results.plan).runs} | there
    own, swept = ([cell for cell in group if cell.id not in later] for group in (every.own, every.swept))
    if look is None and not own and not swept:
        raise PlanError(f"nothing to add: {results.path} has every one of these runs")
    cells = Cells(own, swept, every.declared)
    width = plan.execution.stack_width
    stacked = _stacks(wanted, cells, width) + _sweep_stacks(cells, width) if corpus is not None else []
    stacks = stacked or [[cell] for cell in own]
    return Amendment(
        plan_hash=plan.plan_hash,
        created=timestamp(),
        reason=reason,
        look=look,
        seeds=tuple(seed for seed in seeds if seed not in (*study.seeds, *sealed.seeds)),
        variants={name: every.declared[name] for name in variants if name not in study.variants},
        corpora={name: corpora[name].record for name in variants if name in corpora},
        **_placed(stacks),
    )


def _placed(stacks: Sequence[Sequence[PlannedRun]]) -> dict[str, Any]:
    """The fields of a plan that say which run trains where."""
    runs = (
        cell.model_copy(update={"stack": number, "slot": slot})
        for number, stack in enumerate(stacks)
        for slot, cell in enumerate(stack)
    )
    return {"runs": tuple(runs), "stacks": tuple(tuple(cell.id for cell in stack) for stack in stacks)}


def _check_seeds(study: Study, seeds: Sequence[int]) -> None:
    """Seeds that chose something must not be compared as well."""
    choosing = {f"regimes.{name}.calibrate.seeds": regime.calibrate for name, regime in study.regimes.items()}
    used = {key: set(calibrate.seeds) for key, calibrate in choosing.items() if calibrate is not None}
    used["evaluation.gate_seeds"] = set(study.evaluation.gate_seeds)
    if study.sweep is not None:
        used["sweep.selection_seeds"] = set(study.sweep.selection_seeds)
        used["sweep.finer.seeds"] = set(study.choosing_seeds()).difference(study.sweep.selection_seeds)
    for key, taken in used.items():
        if taken.intersection(seeds):
            shared = ", ".join(map(str, sorted(taken.intersection(seeds))))
            raise PlanError(f"seeds {shared} are in {key}: what was chosen on them cannot be compared on them")


def later_looks(plan: Plan, sealed: Study) -> dict[int, tuple[int, ...]]:
    """The looks that are left, and the seeds that lead there; none once seeds that no look has were added."""
    planned, there = (*sealed.seeds, *sealed.later_seeds()), len(plan.study.seeds)
    if sealed.design is None or plan.study.seeds != planned[:there]:
        return {}
    return {number: planned[there:end] for number, end in enumerate(sealed.design.looks, start=1) if end > there}


def _planned_look(plan: Plan, sealed: Study, seeds: Sequence[int], variants: Sequence[str]) -> int | None:
    """The look of the design that these seeds complete; None where they are none of its seeds."""
    if sealed.design is not None and not plan.stopped:
        raise PlanError("this study has planned looks left: `ablationlab run` trains the next one")
    looks = later_looks(plan, sealed)
    if not {seed for due in looks.values() for seed in due}.intersection(seeds):
        return None
    for look, due in looks.items():
        if set(seeds) == set(due) and not variants:
            return look
    look, due = next(iter(looks.items()))
    text = f"look {look} of the design takes seeds {_listed([*due])}, all of them and nothing else"
    raise PlanError(f"{text}; give these, or seeds that the design does not have")


def _sweep_cells(study: Study, maker: _CellMaker, planned: Collection[str]) -> list[PlannedRun]:
    """Every rate x seed of every variant, a variant's together; a run that the study has anyway is not made twice."""
    cells = [
        maker.cell(DEFAULT_REGIME, seed, name, trial)
        for name in study.variants
        for seed, trial in (_swept(study, study.sweep, name) if study.sweep is not None else ())
    ]
    return [cell for cell in cells if cell.id not in planned]


def _swept(study: Study, sweep: Sweep, variant: str) -> list[tuple[int, Trial]]:
    """Seed and trial of every run of a sweep. Before two stages have found the best one, the middle one stands for it: what
    they will cost is then known."""
    trials, finer = sweep.trials(variant), sweep.finer
    if finer is None or variant in finer.found:
        return [(seed, trial) for seed in study.sweep_seeds() for trial in trials]
    middle = trials[len(trials) // 2]
    cells = [(seed, trial) for seed in sweep.selection_seeds for trial in trials]
    cells += [(seed, trial) for seed in finer.seeds for trial in sweep.about(middle)]
    return cells + [(seed, middle) for seed in study.judging_seeds()]


class _CellMaker:
    """Makes the runs of a study, one cell at a time."""

    def __init__(
        self,
        study: Study,
        corpus: Recorded,
        corpora: Mapping[str, Recorded],
        precision: Callable[[Asked], Precision],
        step_times: Sequence[StepTime],
    ) -> None:
        self.study, self.corpus, self.corpora, self.precision = study, corpus, corpora, precision
        self.step_seconds = {(time.regime, time.variant): time.seconds for time in step_times}
        self.variants = variants_of(study)
        self.own_seeds = frozenset(study.seeds)
        # Equal for all seeds, so each is worked out once.
        self._arm = cache(self._resolve_arm)
        self._recipe = cache(self._resolve_recipe)

    def declaration(self, name: str) -> Declaration:
        """What a variant may change, in all regimes."""
        plain = [
            (_with_vocabulary(model, self.corpus), training)
            for model, training in map(self.study.in_regime, self.study.regime_names())
        ]
        changed = [self._arm(regime, name) for regime in self.study.regime_names()]
        models = [(before[0], after[0]) for before, after in zip(plain, changed, strict=True)]
        flops = any(_token_flops(*before) != _token_flops(*after) for before, after in zip(plain, changed, strict=True))
        return self.variants[name].declared(models).model_copy(update={"flops": flops})

    def _resolve_arm(self, regime: str, name: str) -> tuple[ModelConfig, TrainingConfig]:
        """Model and training of a variant in a regime, for as many tokens as the regime's own, or FLOPs or time as the
        baseline's."""
        model, training = self.study.in_regime(regime)
        try:
            ours, trained = self.variants[name].arm(_with_vocabulary(model, self.corpora[name]), training)
        except ValidationError as error:
            why = "; ".join(str(problem) for problem in problems_of(error, ModelConfig, {}))
            place = written(self.variants[name].compute)
            text = f"variant {name!r} makes an impossible model in regime {regime!r}: {why}"
            raise PlanError(f"{place}: {text}" if place else text) from error
        named = self.variants[name].on(model).training.keys()
        match = self.study.budget.match
        if name != self.study.baseline and (match == "flops" or (match == "time" and self.step_seconds)):
            theirs, planned = self._arm(regime, self.study.baseline)
            total = steps_of(theirs, planned) * self._step_cost(regime, self.study.baseline, theirs, planned)
            steps = int(total // self._step_cost(regime, name, ours, trained))
            if steps < 1:
                cost = "costs more FLOPs" if match == "flops" else "takes longer"
                raise PlanError(f"variant {name!r}: one of its steps {cost} than the whole run of the baseline")
            trained = trained.changed(steps=steps, tokens=None)
        elif not {"steps", "tokens"} & named:
            tokens, step = steps_of(model, training) * training.batch * model.context, trained.batch * ours.context
            if tokens % step:
                raise PlanError(
                    f"variant {name!r}: {count(tokens)} tokens, which every arm of regime {regime!r} trains on, are not a "
                    f"whole number of its steps of {trained.batch} x {ours.context} tokens. Set training.tokens to a "
                    f"multiple of {count(lcm(step, training.batch * model.context))}"
                )
            trained = trained.changed(steps=tokens // step, tokens=None)
        return ours, trained

    def _step_cost(self, regime: str, name: str, model: ModelConfig, training: TrainingConfig) -> float:
        """FLOPs or seconds of one step, whichever is to be equal."""
        if self.study.budget.match == "time":
            return self.step_seconds[regime, name]
        return step_flops(model, training)

    def cell(
        self,
        regime: str,
        seed: int,
        name: str,
        trial: Trial | None = None,
        role: RunRole = "compared",
        streams: tuple[int, int, int] | None = None,
    ) -> PlannedRun:
        """One run; *trial* is given for those of a sweep, *streams* (init, data, dropout) where each has its own seed."""
        recipe, identity = self._recipe(regime, name, trial)
        settings = self._settings(trial)
        arm = self._arm(regime, name)[1]
        if settings and not (seed in self.own_seeds and all(getattr(arm, key) == settings[key] for key in settings)):
            role = "sweep"
        identity = {**identity, "seed": seed if streams is None else list(streams)}
        parts = [*(["gate"] if role == "gate" else []), *([] if regime == DEFAULT_REGIME else [regime]), name]
        parts += [f"{key}{value:g}" for key, value in settings.items() if role == "sweep"]
        parts += [f"s{seed}"] if streams is None else ["s" + ".".join(map(str, streams))]
        return PlannedRun(
            id="-".join([*parts, content_hash(identity)[:8]]),
            role=role,
            variant=name,
            regime=regime,
            seed=seed,
            streams=None
            if streams is None
            else Streams(**dict(zip(("init", "data", "dropout"), streams, strict=True))),
            stack=0,
            slot=0,
            recipe=recipe,
        )

    def _settings(self, trial: Trial | None) -> dict[str, float]:
        return {} if trial is None or self.study.sweep is None else self.study.sweep.settings_of(trial)

    def _resolve_recipe(self, regime: str, name: str, trial: Trial | None) -> tuple[Recipe, dict[str, Any]]:
        """How every seed of an arm is trained, and what of it makes a run the run it is."""
        corpus = self.corpora[name].record
        model, training = self._arm(regime, name)
        training = training.changed(**self._settings(trial))
        check_length(corpus, model.context)
        steps = steps_of(model, training)
        problems = [*combination_problems(model, training)]
        if (warmup := warmup_refusal(training, steps)) is not None:
            problems.append(warmup.under("training"))
        if problems:
            raise PlanError(f"variant {name!r} in regime {regime!r}: {'; '.join(map(str, problems))}")
        tokens = steps * training.batch * model.context
        resolved = training.changed(steps=steps, tokens=None, precision=self.precision(training.precision))
        # Defaults are left out, so that a version with more settings still knows its runs.
        identity = {
            "model": model.model_dump(mode="json", exclude_defaults=True),
            "training": resolved.model_dump(mode="json", exclude_defaults=True),
            "corpus": corpus.tokens_sha256,
            "validation": self.study.data.validation,
        }
        budget = Budget(
            steps=steps,
            tokens=tokens,
            matmul_flops=steps * step_flops(model, training),
            parameters=parameter_count(model),
            match=self.study.budget.match,
            step_seconds=self.step_seconds.get((regime, name)),
        )
        return Recipe(model=model, training=resolved, budget=budget), identity


def _token_flops(model: ModelConfig, training: TrainingConfig) -> Fraction:
    return Fraction(step_flops(model, training), training.batch * model.context)


def _with_vocabulary(model: ModelConfig, corpus: Recorded) -> ModelConfig:
    needed = corpus.record.vocabulary
    if model.vocabulary is not None and model.vocabulary < needed:
        raise PlanError(
            f"model.vocabulary = {model.vocabulary}, but the {corpus.record.tokenizer} tokenizer "
            f"of {corpus.record.name!r} has {needed} tokens; leave it out to have it follow the tokenizer"
        )
    return model if model.vocabulary is not None else model.changed(vocabulary=needed)


def stackable(cell: PlannedRun, declared: Mapping[str, Declaration]) -> str:
    """Runs with the same key may train in one stack: they differ in seed, learning rate, start and front end alone.

    Where time is to be equal, arms never share a stack: its steps would take one time.
    """
    model = cell.model.model_dump_json(exclude={"front", "token_init_std", "redraw", "preset"})
    arm = cell.variant if cell.budget.match == "time" else ""
    return model + cell.training.model_dump_json(exclude={"lr"}) + content_hash(declared[cell.variant].data) + arm


def _grouped(cells: Sequence[PlannedRun], declared: Mapping[str, Declaration]) -> list[list[PlannedRun]]:
    groups: dict[str, list[PlannedRun]] = {}
    keys: dict[tuple[str, int], str] = {}  # seeds of an arm share its recipe
    for cell in cells:
        arm = (cell.variant, id(cell.recipe))
        key = keys[arm] = keys.get(arm) or stackable(cell, declared)
        groups.setdefault(key, []).append(cell)
    return list(groups.values())


def _own_groups(study: Study, cells: Cells) -> list[list[PlannedRun]]:
    """Runs that may share stacks. A stack is trained whole, so it never spans two looks of a design."""
    looks = grouped((study.look_of(cell.seed), cell) for cell in cells.own)
    return [group for look in sorted(looks) for group in _grouped(looks[look], cells.declared)]


def best_stack_width(study: Study, cells: Cells, gpu_memory: float | None, workers: int | None = None) -> int:
    """One run a stack on the CPU, where stacking gains little; on a GPU the width that takes the least time, of those that
    leave every worker a stack and do not fill the memory."""
    wanted = study.execution.stack_width
    if study.execution.parallel is not None:
        return 1
    if wanted != "auto":
        return wanted
    if gpu_memory is None:
        return 1
    groups = [*_own_groups(study, cells), *_grouped(cells.swept, cells.declared)]
    fitting = STACK_MEMORY * gpu_memory / max(run_bytes(cell.model, cell.training) for cell, *_ in groups)
    per_worker = ceil(sum(map(len, groups)) / (workers or 1))
    widest = max(1, min(WIDEST_STACK, int(fitting), per_worker))
    return best_width([(len(group), step_flops(group[0].model, group[0].training)) for group in groups], widest)


def best_width(groups: Sequence[tuple[int, float]], widest: int = WIDEST_STACK) -> int:
    """The width at which groups of so many runs, whose steps have so many FLOPs, take the least time; the wider of two that
    take the same. Short stacks are padded."""

    def time(width: int) -> float:
        return sum(ceil(runs / width) * flops * (width + step_overhead(flops)) for runs, flops in groups)

    return min(range(min(max(runs for runs, _ in groups), widest), 0, -1), key=time)


def step_overhead(flops: float) -> float:
    """What a step of a stack takes besides its runs, in units of a run whose step has so many FLOPs: 4.5 runs of the default
    study, 0.8 of a model of 27 M parameters."""
    return sqrt(OVERHEAD_FLOPS / flops)


def run_bytes(model: ModelConfig, training: TrainingConfig) -> float:
    """About what a run adds to the memory of its stack, rather too much: its logits and attention weights count as if no
    kernel spared them."""
    assert model.vocabulary is not None
    tokens = (training.micro_batch or training.batch) * model.context
    wide = 1 if training.precision == "bf16" else 2
    kept = 50 * wide * model.layers * model.width + 18 * model.vocabulary + 12 * model.heads * model.context
    return 18.0 * parameter_count(model) + float(tokens) * kept


def _stacks(study: Study, cells: Cells, width: int) -> list[list[PlannedRun]]:
    """Cut each group into stacks; inside one, runs of a variant stand together, so that their front end is one piece."""
    order = {name: position for position, name in enumerate(study.variants)}
    return [
        sorted(group[start : start + width], key=lambda cell: order[cell.variant])
        for group in _own_groups(study, cells)
        for start in range(0, len(group), width)
    ]


def _sweep_stacks(cells: Cells, width: int) -> list[list[PlannedRun]]:
    """Each group cut into stacks, variant by variant: only the last of a group is padded."""
    return [
        group[start : start + width]
        for group in _grouped(cells.swept, cells.declared)
        for start in range(0, len(group), width)
    ]


def _check_texts_compare(study: Study, corpus: Corpus, corpora: Mapping[str, Corpus]) -> None:
    """Refuse arms that are validated on other text, and what arms that change [data] cannot be asked: tasks, and metrics
    that count per token.
    """
    if not corpora:
        return
    if study.evaluation.tasks:
        names = ", ".join(corpora)
        raise PlanError(
            f"evaluation.tasks need one text and tokenizer for all arms, and {names} change [data]; leave them out"
        )
    texts = {name: corpora.get(name, corpus) for name in study.variants}
    base = texts[study.baseline]
    others = [name for name, text in texts.items() if text.tokenizer != base.tokenizer]
    for position, criterion in enumerate(study.criteria):
        if others and not across_tokenizers(METRICS[criterion.metric]):
            allowed = ", ".join(name for name, metric in METRICS.items() if across_tokenizers(metric))
            raise PlanError(
                f"criteria[{position}].metric: {criterion.metric!r} counts tokens, and {', '.join(others)} have another "
                f"tokenizer than {study.baseline}; allowed: {allowed}"
            )
    for name, text in texts.items():
        if text.sha256 != base.sha256:
            raise PlanError(
                f"variant {name!r} holds out other text than {study.baseline!r}, and losses on other text do not compare; to "
                "train on other text, put all texts into [data.mixture] and let the variant change their weights"
            )
        if text.validation_bytes != base.validation_bytes:
            raise PlanError(
                f"variant {name!r}: {count(text.validation_bytes)} bytes are held out, {count(base.validation_bytes)} of "
                f"{study.baseline!r}: losses on other text do not compare. Hold out the same documents for all arms"
            )


def _check_arms(
    study: Study, runs: Sequence[PlannedRun], declared: Mapping[str, Declaration], texts: Mapping[str, object]
) -> None:
    """Every variant against the baseline of its regime, seed and rate: nothing may differ that was not declared."""
    base_of = {study.pair_of(run): run for run in runs if run.variant == study.baseline}
    any_rate = {(run.regime, run.seed_triple): run for run in base_of.values()}
    checked: set[tuple[str, int, int]] = set()  # seeds of an arm share its recipe
    for run in runs:
        base = base_of.get(study.pair_of(run))
        if base is None:  # a rate that only the variant has
            assert study.sweep is not None
            base = _with_settings(
                any_rate[run.regime, run.seed_triple], study.sweep.settings_of(study.sweep.trial_of(run.training))
            )
        key = (run.variant, id(run.recipe), id(base.recipe))
        if key in checked:
            continue
        checked.add(key)
        ours, theirs = ((arm.model, arm.training, texts[arm.variant]) for arm in (run, base))
        if run.variant != study.baseline and ours == theirs and not is_baseline_again(study, run.variant):
            raise PlanError(f"variant {run.variant!r} changes nothing in regime {run.regime!r}: it equals the baseline")
        both = [declared[run.variant], declared[study.baseline]]
        refuse(run.id, base.id, setting_mismatches(run, base, both))


def _with_settings(run: PlannedRun, settings: Mapping[str, float]) -> PlannedRun:
    assert run.recipe is not None  # no sweep without a loop of ours
    recipe = run.recipe.model_copy(update={"training": run.training.changed(**settings)})
    return run.model_copy(update={"recipe": recipe})


def _check_schedules(cells: Cells) -> None:
    """Refuse a schedule of the study's own code that has no factor for some step of a run."""
    arms = {cell.training.model_dump_json(): cell for cell in (*cells.own, *cells.swept)}
    for cell in arms.values():
        refusal = schedule_refusal(cell.training, steps_of(cell.model, cell.training))
        if refusal is not None:
            raise PlanError(f"{refusal} (variant {cell.variant!r}, regime {cell.regime!r})")


#: Largest difference between declared and counted FLOPs of a study's own code, as a share of the model's.
FLOPS_TOLERANCE = 0.02


def _check_flops(study: Study, cells: Cells) -> None:
    """Refuse parts of the study's own code that declare other FLOPs than they take: budget and ledger rest on them."""
    from ablationlab.model.flop_count import counted_flops_per_token

    arms = {cell.model.model_dump_json(): cell for cell in (*cells.own, *cells.swept)}
    for cell in arms.values():
        declared = matmul_flops_per_token(cell.model)
        try:
            counted = counted_flops_per_token(cell.model)
        except Exception as error:
            place = place_of(error)
            # A method that is called otherwise than it is written, or what it returns cannot be taken apart.
            if isinstance(error, TypeError) or (place is None and isinstance(error, ValueError | AttributeError)):
                where = place or ", ".join(code.name for code in study.use)
                raise PlanError(
                    f"{where}: variant {cell.variant!r} cannot be computed with these parts: {error}. "
                    "`ablationlab check` tries each part alone"
                ) from error
            if study.budget.match != "flops":
                continue
            raise PlanError(
                f"variant {cell.variant!r}: [budget] match = 'flops', and its FLOPs cannot be counted: "
                f"{f'{place}: ' if place else ''}{type(error).__name__}: {error}. They are counted on torch's meta device, "
                "so new tensors need the device of the inputs, and values cannot decide; or use match = 'time'"
            ) from error
        if abs(counted - declared) > FLOPS_TOLERANCE * declared:
            raise PlanError(
                f"variant {cell.variant!r}: its parts declare {count(declared)} matrix-product FLOPs per token, but "
                f"{count(counted)} are counted. Mend `cost` (or `flops` of a head) in "
                f"{', '.join(code.name for code in study.use)}; `ablationlab check` shows which part it is"
            )


def seal_plan(plan: Plan, results: ResultsFolder) -> Plan:
    """Write plan.lock, or return the one that is there if it is of this very study; another study's is refused."""
    if not results.plan.exists():
        keep_code(plan.study, results)
    with suppress(FileExistsError):
        plan.kept().create(results.plan)
    keep_places(plan.study, results)
    return open_plan(results, plan.study)


def keep_places(study: Study, results: ResultsFolder) -> None:
    """Write down where the texts and the code of a study lie, for verbs that are given its results folder."""
    _, places = without_paths(study)
    path, data = results.path / PLACES, (json.dumps(places, indent=1) + "\n").encode()
    if places and (not path.exists() or read_regular(path) != data):
        replace(path, data)


def open_plan(results: ResultsFolder, study: Study) -> Plan:
    """The sealed plan of a folder, which must be of the study asked for."""
    sealed = Plan.of(results)
    if sealed.study_hash != study.hash:
        changed = listed(study_differences(Plan.read_sealed(results.plan).study, study))
        raise PlanError(
            f"{results.path} holds another study, or this one with other settings: {sealed.study.name!r}, "
            f"sealed {sealed.created}. Sealed and asked for: {changed}. "
            "A sealed plan is never changed; choose another folder with --out"
        )
    return sealed


def check_texts(plan: Plan, corpora: Mapping[str, TokenizedCorpus]) -> None:
    """Refuse a text that has changed since the plan was sealed; *corpora* by the variant that trains on it."""
    for name, corpus in corpora.items():
        sealed = plan.corpus_of(name)
        if corpus.record.tokens_sha256 != sealed.tokens_sha256:
            raise PlanError(
                f"corpus {sealed.name!r} has changed since the plan was sealed "
                f"(sha256 {sealed.sha256[:12]} -> {corpus.record.sha256[:12]}); restore it, or make a new plan with --out"
            )


def plan_drift(plan: Plan, corpus: TokenizedCorpus | None, device: Literal["auto", "cpu", "cuda"]) -> tuple[Drift, ...]:
    """What changed since the plan was sealed; changed data, or another device asked for by name, is refused outright."""
    if corpus is not None:
        check_texts(plan, {"": corpus})
    if device not in ("auto", plan.execution.device):
        raise PlanError(f"the plan was sealed for {plan.execution.device}; make a new plan with --out to use {device}")
    return drift(plan.environment, current()) + program_drift(plan)


# --- what torchrun can spread over processes ------------------------------------------------------------


# Rank r of W takes samples [r·B/W, (r+1)·B/W) of every batch of B, in passes of micro_batch: W · micro_batch divides B.


def _batch_refusal(training: TrainingConfig, processes: int, key: str = "training") -> str | None:
    """Why so many processes cannot share a batch, and what could; None if they can. *key* is where the settings stand."""
    batch, micro_batch = training.batch, training.micro_batch
    if batch % (processes * (micro_batch or 1)) == 0:
        return None
    each = f" x {key}.micro_batch = {micro_batch}" if micro_batch else ""
    text = (
        f"{processes} processes{each} do not divide {key}.batch = {batch}: every process takes an equal share of each "
        f"batch, in whole passes. Numbers of processes that do: {_listed(divisors_of(batch // (micro_batch or 1)))}"
    )
    if micro_batch and batch % processes == 0:
        text += f"; for {processes} processes {key}.micro_batch may be {_listed(divisors_of(batch // processes))}"
    return text


def batch_refusal(study: Study, processes: int) -> str | None:
    """The same for a study: for the first of its regimes that so many processes cannot share."""
    for regime in study.regime_names():
        key = "training" if regime == DEFAULT_REGIME else f"regimes.{regime}.training"
        text = _batch_refusal(study.in_regime(regime)[1], processes, key)
        if text is not None:
            return text
    return None


def probes_refusal(study: Study, parallel: str | None = None) -> str | None:
    """Why the study's probes could not look at its runs, laid out as it says or as *parallel* says; None if they can."""
    if not study.probes or (parallel or study.execution.parallel) != "fsdp":
        return None
    return (
        "[probes] look at whole weights and gradients in one process, and execution.parallel = 'fsdp' leaves them in none; "
        f"here: {', '.join(probe_intervals(study))}. Take the table out, set execution.parallel = 'ddp' where a model fits "
        "on one device, or leave it out to train every run on one device"
    )


def optimizer_refusal(study: Study, parallel: str | None = None) -> str | None:
    """Why an optimizer of the study could not train its runs, laid out as it says or as *parallel* says; None if all can."""
    if (parallel or study.execution.parallel) != "fsdp":
        return None
    for name, variant in variants_of(study).items():
        for regime in study.regime_names():
            optimizer = variant.arm(*study.in_regime(regime))[1].optimizer
            rule = OPTIMIZERS[optimizer]
            if rule is not None and rule.matrix_flops is not None:
                return (
                    f"training.optimizer = {optimizer!r} (variant {name!r}) needs whole matrices, and execution.parallel = "
                    "'fsdp' leaves shards of them on every device; set execution.parallel = 'ddp' where a model fits on one"
                )
    return None


def possible_processes(study: Study) -> list[int]:
    """All numbers of processes that can share the batches of every regime."""
    trainings = [study.in_regime(regime)[1] for regime in study.regime_names()]
    return divisors_of(gcd(*(training.batch // (training.micro_batch or 1) for training in trainings)))


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
