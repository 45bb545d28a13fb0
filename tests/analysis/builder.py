"""A results folder made of records alone: no training, any numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ablationlab.records.environment import Environment, Git
from ablationlab.records.metrics import METRICS
from ablationlab.records.plan import Budget, Corpus, Declaration, Execution, Plan, PlannedRun, Recipe
from ablationlab.records.run import METRICS_HEADER, Divergence, Result, RunRecord, StepLine, Timing, read_curves
from ablationlab.records.seal import RunSeal, seal_run
from ablationlab.records.settings import Stability, Study
from ablationlab.records.storage import ResultsFolder, sha256_file
from ablationlab.stats.results import CurveMeasures
from ablationlab.stats.spikes import measure_curve
from ablationlab.study.load import parse_study
from ablationlab.study.probes import PROBES
from ablationlab.study.variants import Variant, variants_of
from ablationlab.tasks import plan_tasks

STEPS = 60
CORPUS = Corpus(
    name="tiny-shakespeare",
    source="test",
    sha256="0" * 64,
    tokenizer="char",
    vocabulary=65,
    tokens_sha256="1" * 64,
    train_tokens=1000,
    validation_tokens=100,
    validation_bytes=100,
)
ENVIRONMENT = Environment(versions={"python": "3.11"}, platform="test", processor="test", code_hash="2" * 64, git=Git())
EXECUTION = Execution(device="cpu", device_name="test", precision="fp32", stack_width=1, threads=1)
CRITERIA = [{"metric": "validation_loss", "role": "primary", "smallest_effect": 0.05, "margin": 0.1}]
HYPOTHESES = [
    {"name": "H0", "statement": "Nothing changes.", "rule": "no-change", "metric": "macro_accuracy"},
    {
        "name": "H1a",
        "statement": "Worse, though smoother.",
        "rule": "worse-though-smoother",
        "metric": "macro_accuracy",
    },
    {"name": "H1b", "statement": "Stability is restored.", "rule": "restores-stability"},
]
Metrics = Mapping[str, float | None]


def study(**changes: Any) -> Study:
    table = {
        "name": "made",
        "baseline": "none",
        "variants": ["none", "layernorm"],
        "seeds": [1, 2, 3, 4, 5],
        "model": {"layers": 1, "width": 16, "heads": 2, "context": 16},
        "training": {"steps": STEPS, "batch": 4, "lr": 1e-3, "warmup": 2, "precision": "fp32"},
        "data": {"corpus": "tiny-shakespeare"},
        "criteria": CRITERIA,
    }
    return parse_study({**table, **changes})


def outcome(variant: str, regime: str, seed: int) -> Metrics | None:
    """Loss 2.0 plus seed noise; layernorm is 0.2 better. None would mean that the run diverged."""
    noise = np.random.default_rng(seed).normal(0, 0.05) + np.random.default_rng([seed, len(variant)]).normal(0, 0.01)
    loss = 2.0 + noise - (0.2 if variant == "layernorm" else 0.0)
    return {"validation_loss": loss, "perplexity": float(np.exp(loss)), "final_gradient_norm": 0.5 + 0.01 * seed}


def calm(seed: int, steps: int = STEPS) -> list[float]:
    rng = np.random.default_rng(seed)
    return list(1.5 + 2.7 * np.exp(-np.arange(steps) / 11) + 0.04 * rng.standard_normal(steps))


def make_plan(made: Study, created: str = "2026-01-01T00:00:00+00:00") -> Plan:
    runs: list[PlannedRun] = []
    for regime in made.regime_names():
        model, training = made.in_regime(regime)
        for seed in made.seeds:
            for name in made.variants:
                runs.append(
                    PlannedRun(
                        id=f"{regime}-{name}-s{seed}",
                        role="compared",
                        variant=name,
                        regime=regime,
                        seed=seed,
                        stack=len(runs),
                        slot=0,
                        recipe=Recipe(
                            model=variants_of(made)[name].apply(model),
                            training=training,
                            budget=Budget(
                                steps=STEPS, tokens=STEPS * 64, matmul_flops=1000, parameters=100 * model.width // 16
                            ),
                        ),
                    )
                )
    runs += swept_runs(made, runs)
    bases = {run.regime: run for run in runs if run.variant == made.baseline and run.role == "compared"}
    runs += [
        base.model_copy(update={"id": f"gate-{regime}-s{seed}", "role": "gate", "seed": seed})
        for regime, base in bases.items()
        for seed in made.evaluation.gate_seeds
    ]
    plan = Plan(
        study=made,
        study_hash=made.hash,
        criteria_hash=made.criteria_hash,
        variants={name: _declared(made, variant) for name, variant in variants_of(made).items()},
        metrics=dict(METRICS.items()),
        probes={name: probe.definition for name, probe in PROBES.items()},
        tasks=plan_tasks(made.evaluation),
        corpus=CORPUS,
        execution=EXECUTION,
        runs=tuple(runs),
        stacks=tuple((run.id,) for run in runs),
        environment=ENVIRONMENT,
        created=created,
        plan_hash="",
    )
    return plan.sealed()


def _declared(made: Study, variant: Variant) -> Declaration:
    models = [made.in_regime(regime)[0].changed(vocabulary=CORPUS.vocabulary) for regime in made.regime_names()]
    return variant.declared((model, variant.apply(model)) for model in models)


def swept_runs(made: Study, ordinary: list[PlannedRun]) -> list[PlannedRun]:
    """The runs of the study's sweep that are not its own cells anyway."""
    found: list[PlannedRun] = []
    cells = {(run.variant, run.seed): run for run in ordinary if run.regime == "default"}
    there = {(run.variant, run.lr, run.seed) for run in ordinary if run.regime == "default"}
    for name in made.variants:
        for seed in made.sweep_seeds():
            for lr in made.sweep.rates(name) if made.sweep else ():
                if (name, lr, seed) not in there:
                    like = cells[name, made.seeds[0]]
                    changes = {"id": f"{name}-lr{lr:g}-s{seed}", "role": "sweep", "seed": seed, "slot": len(found)}
                    training = like.training.changed(lr=lr)
                    recipe = Recipe(model=like.model, training=training, budget=like.budget)
                    found.append(like.model_copy(update={**changes, "recipe": recipe}))
    return found


def write_run(
    folder: Path,
    plan: Plan,
    run: PlannedRun,
    metrics: Metrics | None,
    losses: Sequence[float],
    norms: Sequence[float] | None = None,
    **changes: Any,
) -> None:
    """One run's files; metrics None means that it diverged. *norms*: of its gradients. *changes* go into run.json."""
    where = ResultsFolder(folder).run(run.id)
    where.path.mkdir(parents=True, exist_ok=True)
    record = RunRecord(
        study=plan.study.name,
        study_hash=plan.study_hash,
        plan_hash=plan.plan_hash,
        baseline=plan.study.baseline,
        declares=plan.variants[run.variant],
        corpus=plan.corpus,
        data_order_hash=f"order-{run.seed}",
        initial_weights={"wte": f"init-{run.seed}"},
        shared_init_hash=f"shared-{run.seed}",
        executor="local",
        execution=plan.execution,
        stack_members=(run.id,),
        environment=plan.environment,
        created="2026-01-01T00:00:00+00:00",
        **dict(run),
    )
    record.model_copy(update=changes).replace(where.record)
    diverged = metrics is None
    steps = len(losses) if diverged else run.budget.steps
    where.metrics.write_text(_lines(tuple(losses), tuple(norms or [1.0] * len(losses))))
    result = Result(
        id=run.id,
        status="diverged" if diverged else "finished",
        steps=steps,
        tokens=run.budget.tokens,
        matmul_flops=run.budget.matmul_flops,
        data_order_hash=f"order-{run.seed}",
        divergence=Divergence.of(steps, "loss", float("nan")) if diverged else None,
        metrics={} if metrics is None else dict(metrics),
        course=course_of(where.metrics, plan.study.stability),
        checkpoint="step-1",
        weights_sha256="3" * 64,
        timing=Timing(train_seconds=1.0, tokens_per_second=1.0, starts=1),
        finished="2026-01-01T00:00:00+00:00",
    )
    result.replace(where.result)
    seal_run(where, run.id, plan.plan_hash, {where.metrics.name: sha256_file(where.metrics)}, result.to_bytes())


# Most runs of most made-up studies have one of a few curves.


@lru_cache(maxsize=1024)
def _lines(losses: tuple[float, ...], norms: tuple[float, ...]) -> str:
    lines = [
        StepLine(step=i, loss=loss, lr=1e-3, gradient_norm=norm, tokens=64 * i).to_line()
        for i, (loss, norm) in enumerate(zip(losses, norms, strict=True), start=1)
    ]
    return METRICS_HEADER + "".join(lines)


def course_of(path: Path, rules: Stability = Stability()) -> CurveMeasures:  # noqa: B008 (frozen)
    """What a result says of the course of a run with these metrics."""
    written = path.read_bytes()
    key = (written, rules.loss_threshold, rules.spike_score)
    if key not in _COURSES:
        _COURSES[key] = measure_curve(
            read_curves(path), loss_threshold=rules.loss_threshold, spike_threshold=rules.spike_score
        )
    return _COURSES[key]


_COURSES: dict[tuple[bytes, float | None, float], CurveMeasures] = {}


def seal_again(folder: Path, *, courses: bool = True) -> None:
    """Seal what is on disk of every run, as if it had ended so; *courses*: with the measures of these metrics."""
    rules = Plan.read(ResultsFolder(folder).plan).study.stability
    for path in folder.glob("runs/*/seal.json"):
        where = path.parent
        if courses:
            measured = {"course": course_of(where / "metrics.jsonl", rules)}
            Result.read(where / "result.json").model_copy(update=measured).replace(where / "result.json")
        there = [file for file in where.rglob("*") if file.is_file() and file != path]
        files = {file.relative_to(where).as_posix(): sha256_file(file) for file in there}
        RunSeal.read(path).model_copy(update={"files": files, "before": {}}).replace(path)


def build(
    folder: Path,
    made: Study | None = None,
    outcomes: Callable[[str, str, int], Metrics | None] = outcome,
    curves: Callable[[str, str, int], list[float]] = lambda variant, regime, seed: calm(seed),
    only: Callable[[PlannedRun], bool] = lambda run: True,
    swept: Callable[[str, float, int], Metrics | None] | None = None,
    created: str = "2026-01-01T00:00:00+00:00",
) -> Plan:
    """A whole results folder; *only* chooses the runs that are done, *swept* says how those of a sweep ended."""
    plan = make_plan(made or study(), created)
    plan.create(ResultsFolder(folder).plan)
    for run in plan.runs:
        if only(run):
            cell = (run.variant, run.regime, run.seed)
            ended = outcomes(*cell) if swept is None else swept(run.variant, run.lr, run.seed)
            write_run(folder, plan, run, ended, curves(*cell))
    return plan
