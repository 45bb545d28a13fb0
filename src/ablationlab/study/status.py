"""Where every run of a plan stands, read from disk alone. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from ablationlab.records.folders import ResultsFolder
from ablationlab.records.plan import Plan
from ablationlab.records.run import Result, RunRecord, read_metrics
from ablationlab.records.storage import Lock
from ablationlab.study.ledger import environment_mismatches, layout_words, record_mismatches, refuse, result_mismatches


@dataclass(frozen=True)
class RunStatus:
    """``state``: waiting, started (stopped in the middle), running, finished or diverged."""

    id: str
    state: str
    step: int
    steps: int
    result: Result | None


def run_statuses(plan: Plan, results: ResultsFolder) -> list[RunStatus]:
    """One status per planned run, in the plan's order."""
    held = {number for number in range(len(plan.stacks)) if Lock(results.stack_lock(number)).held_elsewhere()}
    found = []
    for run in plan.runs:
        folder = results.run(run.id)
        if folder.done:
            result = Result.read(folder.result)
            found.append(RunStatus(run.id, result.status, result.steps, run.budget.steps, result))
            continue
        step = max((line.step for line in read_metrics(folder.metrics)), default=0) if folder.metrics.exists() else 0
        state = "running" if run.stack in held else "started" if folder.record.exists() else "waiting"
        found.append(RunStatus(run.id, state, step, run.budget.steps, None))
    return found


def check_ledger(plan: Plan, results: ResultsFolder) -> int:
    """Compare every finished run with its baseline; raises `MismatchError`, or returns the number of pairs that match."""
    records = {}
    for run in plan.runs:
        folder = results.run(run.id)
        if folder.done:
            record = RunRecord.read(folder.record)
            if record.plan_hash != plan.plan_hash:
                refuse(
                    f"the record of {run.id}", "the sealed plan", ["plan_hash differs: it was made under another plan"]
                )
            result = Result.read(folder.result)
            refuse(f"the record of {run.id}", "its result", result_mismatches(record, result))
            records[run.regime, run.seed, run.lr, run.variant] = record, result
    pairs = 0
    for (regime, seed, lr, variant), (record, result) in records.items():
        base = records.get((regime, seed, lr, plan.study.baseline))
        if base is not None and variant != plan.study.baseline:
            found = record_mismatches(record, base[0]) + environment_mismatches(result, base[1])
            refuse(record.id, base[0].id, found)
            pairs += 1
    return pairs


def ledger_sentence(plan: Plan, results: ResultsFolder, pairs: int) -> str:
    """What *pairs* of `check_ledger` means: in what they match, how they lay on devices, and what was not compared."""
    done = [folder for run in plan.runs if (folder := results.run(run.id)).done]
    found = [(RunRecord.read(folder.record), Result.read(folder.result)) for folder in done]
    ways = dict.fromkeys(way for record, result in found for way in layout_words(record, result))
    drift = any(record.drift or any(start.drift for start in result.history) for record, result in found)
    same = ["tokens", "FLOPs", "data order", "shared initial weights", "precision", "stack width", "threads"]
    last = same.pop() if drift else "versions"
    matching = f"{', '.join([*same, *([] if drift else ['layout'])])} and {last}"
    text = f"Ledger: {pairs} variant-baseline pairs match in {matching}. Layout: {'; '.join(ways)}."
    if drift:
        text += " Drift was accepted, so layout and versions were not compared; it stands in the history of these runs."
    return text
