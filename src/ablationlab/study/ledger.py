"""The budget ledger: whether two arms differ in nothing but what their variants declare. No torch.

Used before the first step (on the planned runs) and after the last (on the records), and by the analysis: a comparison
of arms that differ in anything else is refused, with the name of the thing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ablationlab.core.errors import MismatchError
from ablationlab.core.format import count, duration
from ablationlab.data.batches import planned_data_order
from ablationlab.model.parts import other_kernels
from ablationlab.records.plan import Declaration, Plan, PlannedRun
from ablationlab.records.results import Run
from ablationlab.records.run import Result, RunRecord
from ablationlab.records.settings import Frozen, flattened

if TYPE_CHECKING:  # `plan` needs no types of an analysis
    from ablationlab.records.analysis import LedgerCheck

# Settings of a run that describe the run itself, not the way it was made.
_NEVER_COMPARED = frozenset({"preset"})


def _differences(a: Frozen, b: Frozen, prefix: str) -> Iterable[tuple[str, str]]:
    if a == b:  # most of thousands of pairs
        return
    names = {name for name in type(a).model_fields if getattr(a, name) != getattr(b, name, None)}
    flat_a, flat_b = (flattened(settings.model_dump(mode="json", include=names)) for settings in (a, b))
    for key in sorted(flat_a.keys() | flat_b.keys()):
        if flat_a.get(key) != flat_b.get(key) and key not in _NEVER_COMPARED:
            yield f"{prefix}{key}", f"{prefix}{key}: {flat_a.get(key)!r} against {flat_b.get(key)!r}"


def setting_mismatches(
    a: PlannedRun | RunRecord,
    b: PlannedRun | RunRecord,
    declared: Iterable[Declaration],
    *,
    tuned: Collection[str] = (),
) -> list[str]:
    """Differences in model, training and budget that no variant declared; arms may differ in what is *tuned*.

    Steps may differ where the batch or the context does, for the tokens are then equal; FLOPs where a declared setting
    makes a token cost more.
    """
    allowed = list(declared)

    def free(key: str) -> bool:
        return any(declaration.covers_setting(key) for declaration in allowed)

    shape = free("training.batch") or free("model.context")
    costlier = any(declaration.flops for declaration in allowed)
    by_flops = a.budget.match == "flops"
    # Before the steps are timed, and so before the plan is sealed, such arms have equal tokens.
    by_time = a.budget.match == "time" and (a.budget.step_seconds or b.budget.step_seconds) is not None
    covered = set(tuned)
    covered |= {"training.steps"} if shape or by_time or (by_flops and costlier) else set()
    mismatches = [
        text
        for ours, theirs, prefix in ((a.model, b.model, "model."), (a.training, b.training, "training."))
        for key, text in _differences(ours, theirs, prefix)
        if key not in covered and not free(key)
    ]
    for name in ("seed", "regime"):
        if getattr(a, name) != getattr(b, name):
            mismatches.append(f"{name}: {getattr(a, name)!r} against {getattr(b, name)!r}")
    if by_flops and (costlier or shape):
        step = max(run.budget.matmul_flops // run.budget.steps for run in (a, b))
        if abs(a.budget.matmul_flops - b.budget.matmul_flops) >= step:
            mismatches.append(
                f"budget.matmul_flops: {count(a.budget.matmul_flops)} against {count(b.budget.matmul_flops)}"
            )
        return mismatches
    if by_time:
        seconds = [run.budget.step_seconds for run in (a, b)]
        totals = [run.budget.steps * (each or math.nan) for run, each in zip((a, b), seconds, strict=True)]
        if not abs(totals[0] - totals[1]) < max(each or math.nan for each in seconds) * (1 + 1e-9):
            mismatches.append(f"steps x measured step time: {duration(totals[0])} against {duration(totals[1])}")
        return mismatches
    for name in ("tokens", *(() if shape else ("steps",)), *(() if costlier else ("matmul_flops",))):
        if getattr(a.budget, name) != getattr(b.budget, name):
            mismatches.append(
                f"budget.{name}: {count(getattr(a.budget, name))} against {count(getattr(b.budget, name))}"
            )
    return mismatches


def record_mismatches(a: RunRecord, b: RunRecord, *, tuned: Collection[str] = (), reused: bool = False) -> list[str]:
    """Everything in two runs' records that should be equal and is not; what is *tuned* may differ, and the plan where one is
    *reused*: other variants then share other parameters, whose values are compared one by one."""
    of_plan = () if reused else ("plan_hash",)
    if a.recipe is None or b.recipe is None:
        return _own_trainer_mismatches(a, b, of_plan)

    def free(key: str) -> bool:
        return a.declares.covers_setting(key) or b.declares.covers_setting(key)

    mismatches = setting_mismatches(a, b, (a.declares, b.declares), tuned=tuned)
    ours_start, theirs_start = a.initial_weights or {}, b.initial_weights or {}
    for name in sorted(ours_start.keys() | theirs_start.keys()):
        declared = a.declares.covers_parameter(name) or b.declares.covers_parameter(name)
        if not declared and ours_start.get(name) != theirs_start.get(name):
            mismatches.append(f"initial value of {name} differs")
    other_text = bool(a.declares.data or b.declares.data)
    other_order = other_text or free("training.batch") or free("model.context")
    if a.budget.match != "tokens" and a.budget.steps != b.budget.steps and not other_order:
        # One order is a beginning of the other if both are what the seed gives for their number of steps.
        other_order = True
        for record in (a, b):
            if record.corpus is None:  # a trainer of the user's own, which reports no order
                continue
            shape = {"batch": record.training.batch, "context": record.model.context}
            planned = planned_data_order(record.seed_triple[1], record.corpus, steps=record.budget.steps, **shape)
            if record.data_order_hash != planned:
                mismatches.append(f"data_order_hash of {record.id} is not that of its seed")
    of_plan = (*of_plan, *(() if reused else ("shared_init_hash",)))
    for field in (*(() if other_order else ("data_order_hash",)), *of_plan):
        if getattr(a, field) != getattr(b, field):
            mismatches.append(f"{field} differs")
    mismatches += _corpus_mismatches(a, b, free) if other_text else ["corpus differs"] if a.corpus != b.corpus else []
    # Accepted drift may be another number of ranks; the rest of an execution must be equal whatever was accepted.
    ours = a.execution.over(b.execution.layout()) if a.drift or b.drift else a.execution
    if free("training.precision"):
        ours = ours.model_copy(update={"precision": b.execution.precision})
    if ours != b.execution:
        mismatches.append("execution differs")
    return mismatches + _version_mismatches(a, b)


def _version_mismatches(a: RunRecord, b: RunRecord) -> list[str]:
    made = [(record.environment.versions, record.environment.code_hash) for record in (a, b)]
    return ["library or code versions differ"] if made[0] != made[1] and not (a.drift or b.drift) else []


def _own_trainer_mismatches(a: RunRecord, b: RunRecord, of_plan: Sequence[str]) -> list[str]:
    """Of runs that the user's own trainer makes: their tables, up to what the variants write, seed and regime."""
    ours, theirs = flattened(a.settings), flattened(b.settings)
    mismatches = [
        f"{key}: {ours.get(key)!r} against {theirs.get(key)!r}"
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key) and not (a.declares.covers_setting(key) or b.declares.covers_setting(key))
    ]
    for name in ("seed", "regime", *of_plan):
        if getattr(a, name) != getattr(b, name):
            mismatches.append(f"{name}: {getattr(a, name)!r} against {getattr(b, name)!r}")
    return mismatches + _version_mismatches(a, b)


#: Parts of the names of settings that decide which data a step sees.
_DATA_SETTINGS = ("data.", "batch", "context", "block", "seq", "length")


def reported_mismatches(a: RunRecord, b: RunRecord, ours: Result, theirs: Result) -> list[str]:
    """Whether the user's own trainer fed two runs of equal length other data, and no variant declares that."""
    declared = [setting for record in (a, b) for setting in record.declares.settings]
    free = any(part in setting for setting in declared for part in _DATA_SETTINGS)
    orders = (ours.data_order_hash, theirs.data_order_hash)
    whole = ours.status == theirs.status == "finished" and ours.steps == theirs.steps
    return (
        ["the data was fed in another order"]
        if whole and not free and None not in orders and orders[0] != orders[1]
        else []
    )


def reported_inputs(plan: Plan, results: Mapping[str, Result]) -> LedgerCheck:
    """Compare every run of the user's own trainer (*results* by run id) with the baseline's of its seed."""
    from ablationlab.records.analysis import InputDifference, LedgerCheck, LedgerInput

    absent = {
        LedgerInput.ORDER: any(result.data_order_hash is None for result in results.values()),
        LedgerInput.START: any(result.initial_weights is None for result in results.values()),
        LedgerInput.TOKENS: any(result.tokens is None for result in results.values()),
        LedgerInput.FLOPS: any(result.matmul_flops is None for result in results.values()),
    }
    base = {(run.regime, run.seed): results.get(run.id) for run in plan.runs if run.variant == plan.study.baseline}
    pairs = [
        (results[run.id], reference)
        for run in plan.runs
        if run.variant != plan.study.baseline and run.id in results
        if (reference := base.get((run.regime, run.seed))) is not None
    ]
    differing = {
        LedgerInput.ORDER: sum(a.data_order_hash != b.data_order_hash for a, b in pairs),
        LedgerInput.START: sum(_other_start(a, b) for a, b in pairs),
        LedgerInput.STEPS: sum(a.steps != b.steps for a, b in pairs),
        LedgerInput.TOKENS: sum(a.tokens != b.tokens for a, b in pairs),
        LedgerInput.FLOPS: sum(a.matmul_flops != b.matmul_flops for a, b in pairs),
    }
    checked = {name: count for name, count in differing.items() if not absent.get(name, False)}
    return LedgerCheck(
        checked_pairs=len(pairs),
        shared=tuple(name for name, count in checked.items() if count == 0),
        differs=tuple(InputDifference(name=name, pairs=count) for name, count in checked.items() if count),
        reported=True,
        not_reported=tuple(name for name, missing in absent.items() if missing),
    )


def _other_start(a: Result, b: Result) -> bool:
    """Whether two runs began with other values of a parameter that both have, or have none in common."""
    ours, theirs = a.initial_weights or {}, b.initial_weights or {}
    common = ours.keys() & theirs.keys()
    return not common or any(ours[name] != theirs[name] for name in common)


def _corpus_mismatches(a: RunRecord, b: RunRecord, free: Callable[[str], bool]) -> list[str]:
    """Arms that declare another [data] may differ in what they declare: not in the text if only the tokenizer is another."""
    mismatches = []
    assert a.corpus is not None
    assert b.corpus is not None
    if not free("data.corpus") and not free("data.mixture") and a.corpus.sha256 != b.corpus.sha256:
        mismatches.append("the text differs")
    if not free("data.tokenizer") and a.corpus.tokenizer != b.corpus.tokenizer:
        mismatches.append("data.tokenizer differs")
    return mismatches


def environment_mismatches(a: Result, b: Result) -> list[str]:
    """Whether two runs were made in different environments that nobody accepted.

    Drift that was accepted on the command line is in the history; the analysis lists it as a deviation.
    """
    if any(start.drift for start in (*a.history, *b.history)):
        return []
    made = [{(start.code_hash, tuple(sorted(start.versions.items()))) for start in result.history} for result in (a, b)]
    where = [{(start.device_name, start.threads) for start in result.history} for result in (a, b)]
    spread = [{(start.parallel, start.ranks) for start in result.history} for result in (a, b)]
    again = {start.activation_checkpointing for result in (a, b) for start in result.history}
    mismatches = ["library or code versions differ"] if made[0] != made[1] or len(made[0]) > 1 else []
    mismatches += ["device or threads differ"] if where[0] != where[1] or len(where[0]) > 1 else []
    unlike = spread[0] != spread[1] or len(spread[0]) > 1 or len(again) > 1
    return mismatches + (["ranks or their parallel layout differ"] if unlike else [])


def result_mismatches(record: RunRecord, result: Result) -> list[str]:
    """Whether a run did what its record promised; a diverged run may end early, a finished one may not."""
    if result.status == "diverged" or record.recipe is None:
        return []
    mismatches = []
    for name in ("steps", "tokens", "matmul_flops"):
        if getattr(result, name) != getattr(record.budget, name):
            mismatches.append(f"{name}: {count(getattr(result, name))} of {count(getattr(record.budget, name))}")
    if result.data_order_hash != record.data_order_hash:
        mismatches.append("the data fed differs from the data planned")
    return mismatches


def refuse(a: str, b: str, mismatches: list[str]) -> None:
    """Raise `MismatchError` if there is anything to refuse."""
    if mismatches:
        lines = "\n".join(f"  - {mismatch}" for mismatch in mismatches)
        raise MismatchError(f"{a} and {b} cannot be compared; they differ in what no variant declared:\n{lines}")


def check_ledger(plan: Plan, runs: Iterable[Run]) -> int:
    """Compare every finished run with its baseline; raises `MismatchError`, or returns the number of pairs that match."""
    cells = {}
    for run in runs:
        if run.record is not None and run.result is not None:
            if run.record.plan_hash != plan.made_under(run.id):
                differs = ["plan_hash differs: it was made under another plan"]
                refuse(f"the record of {run.id}", "the sealed plan", differs)
            refuse(f"the record of {run.id}", "its result", result_mismatches(run.record, run.result))
            cells[plan.study.pair_of(run.record), run.variant] = run.record, run.result
    pairs = 0
    for (pair, variant), (record, result) in cells.items():
        base = cells.get((pair, plan.study.baseline))
        if base is not None and variant != plan.study.baseline:
            reused = plan.reused_from(base[0].id) is not None
            mismatches = record_mismatches(record, base[0], reused=reused) + environment_mismatches(result, base[1])
            if record.recipe is None:
                mismatches += reported_mismatches(record, base[0], result, base[1])
            refuse(record.id, base[0].id, mismatches)
            pairs += 1
    return pairs


def _within_a_step(run: PlannedRun, other: PlannedRun) -> bool:
    """Whether a run, which has whole steps, spends the FLOPs of another as nearly as it can."""
    return abs(run.budget.matmul_flops - other.budget.matmul_flops) <= run.budget.matmul_flops / run.budget.steps


def planned_inputs(plan: Plan, pairs: int) -> LedgerCheck:
    """In what the arms of a plan match, and what differs because their variants declare it, each with the variants."""
    from ablationlab.records.analysis import InputDifference, LedgerCheck, LedgerInput

    base = {plan.study.pair_of(run): run for run in plan.runs if run.variant == plan.study.baseline}
    compared = [
        (run, other)
        for run in plan.runs
        if run.variant != plan.study.baseline and (other := base.get(plan.study.pair_of(run))) is not None
    ]
    match = plan.study.budget.match
    shared, nearly = [LedgerInput.START], [LedgerInput.TIME] if match == "time" else []
    differs: dict[LedgerInput, dict[str, float | None]] = {}
    for name, field in ((LedgerInput.TOKENS, "tokens"), (LedgerInput.FLOPS, "matmul_flops")):
        shares: dict[str, float] = {}
        for run, other in compared:
            share = getattr(run.budget, field) / getattr(other.budget, field) - 1
            if abs(share) > abs(shares.get(run.variant, 0.0)):
                shares[run.variant] = share
        if not shares:
            shared.append(name)
        elif (name, match) == (LedgerInput.FLOPS, "flops") and all(_within_a_step(*pair) for pair in compared):
            nearly.append(name)
        else:
            differs[name] = dict(shares)
    order = ("training.batch", "model.context")
    others = [
        name for name, variant in plan.variants.items() if variant.data or any(map(variant.covers_setting, order))
    ]
    if others:
        differs[LedgerInput.ORDER] = dict.fromkeys(others)
    else:
        shorter = any(run.budget.steps != other.budget.steps for run, other in compared)
        (nearly if shorter else shared).append(LedgerInput.ORDER)
    if plan.execution.device == "cuda" and plan.study.execution.kernels == "fused":
        unlike = [run.variant for run, other in compared if other_kernels(run.model) != other_kernels(other.model)]
        differs |= {LedgerInput.KERNELS: dict.fromkeys(unlike)} if unlike else {}
    return LedgerCheck(
        checked_pairs=pairs,
        shared=tuple(name for name in LedgerInput if name in shared),
        nearly=tuple(nearly),
        differs=tuple(InputDifference(name=name, variants=variants) for name, variants in differs.items()),
        unmatched=() if match == "time" else (LedgerInput.TIME,),
    )
