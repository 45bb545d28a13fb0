"""run.json: written once, before a run's first step, and checked whenever the run goes on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache

from ablationlab.core.errors import PlanError, RecordError
from ablationlab.data.batches import planned_data_order
from ablationlab.model.parameters import joint_digest
from ablationlab.records.corpus import Corpus
from ablationlab.records.environment import Environment
from ablationlab.records.folders import ResultsFolder, RunFolder
from ablationlab.records.plan import Execution, Plan, PlannedRun
from ablationlab.records.run import RunRecord
from ablationlab.records.settings import Study


def ensure_run_record(
    plan: Plan,
    study: Study,
    run: PlannedRun,
    folder: RunFolder,
    digests: dict[str, str],
    executor: str,
    execution: Execution,
    environment: Environment,
    drift: tuple[str, ...],
) -> None:
    """Create the run's record, or make sure that the one on disk is of this very plan.

    *digests* are of the weights that the stack really starts from, *execution* is what was found, not what was asked.
    """
    if folder.record.exists():
        found = RunRecord.read(folder.record)
        if (found.id, found.plan_hash) != (run.id, plan.plan_hash):
            raise RecordError(f"{folder.record} belongs to another plan; choose another folder with --out")
        return
    if folder.checkpoints.is_dir() or folder.result.exists():
        raise RecordError(f"{folder.path} has lost its run.json; move the folder away and run again")
    declared = plan.variants.values()
    shared = [name for name in digests if not any(variant.covers_parameter(name) for variant in declared)]
    RunRecord(
        id=run.id,
        study=study.name,
        study_hash=plan.study_hash,
        plan_hash=plan.plan_hash,
        variant=run.variant,
        baseline=study.baseline,
        declares=plan.variants[run.variant],
        regime=run.regime,
        seed=run.seed,
        model=run.model,
        training=run.training,
        corpus=plan.corpus,
        budget=run.budget,
        data_order_hash=_order(run.seed, plan.corpus, run.budget.steps, run.training.batch, run.model.context),
        initial_weights=digests,
        shared_init_hash=joint_digest(digests, shared),
        executor=executor,
        execution=execution,
        stack=run.stack,
        slot=run.slot,
        stack_members=plan.stacks[run.stack],
        environment=environment,
        drift=drift,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    ).create(folder.record)


def layout_drift(
    plan: Plan, results: ResultsFolder, folders: Sequence[RunFolder], found: Execution, *, accept: bool
) -> tuple[str, ...]:
    """How this process lays a run out on devices, against what these runs, or the first of the study, began with.

    Sums over another number of ranks round otherwise, so going on with it is refused unless it is accepted.
    """
    first = next((folder for run in plan.runs if (folder := results.run(run.id)).record.exists()), None)
    for folder in [folder for folder in folders if folder.record.exists()] or filter(None, [first]):
        began = RunRecord.read(folder.record).execution
        if began.layout() != found.layout():
            change = f"{_layout(began)} -> {_layout(found)}"
            if not accept:
                raise PlanError(
                    f"run {folder.path.name} of this study began on {_layout(began)}, and this is {_layout(found)}: sums "
                    "round otherwise. Use the same executor and number of processes, plan anew with --out, or go on with "
                    "--accept-drift, which is recorded"
                )
            return (f"execution on {change}",)
    return ()


def _layout(execution: Execution) -> str:
    if execution.parallel == "none":
        return "one process"
    again = " with activation checkpointing" if execution.activation_checkpointing else ""
    return f"{execution.ranks} rank{'s' if execution.ranks > 1 else ''} ({execution.parallel}{again})"


@lru_cache(maxsize=64)
def _order(seed: int, corpus: Corpus, steps: int, batch: int, context: int) -> str:
    return planned_data_order(seed, corpus, steps=steps, batch=batch, context=context)
