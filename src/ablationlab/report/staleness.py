"""Whether analysis and verdict are those of the records as they are now."""

from __future__ import annotations

import json

from ablationlab.records.analysis import Analysis, Seed
from ablationlab.records.plan import Plan
from ablationlab.records.storage import content_hash
from ablationlab.records.verdict import Verdict
from ablationlab.report.material import RunMaterial


def why_stale(
    plan: Plan | None, analysis: Analysis | None, verdict: Verdict | None, runs: tuple[RunMaterial, ...]
) -> list[str]:
    """Why the analysis or the verdict is not that of these records; empty where it is."""
    if analysis is None:
        return []
    found = []
    if verdict is not None and verdict.analysis_hash != content_hash(json.loads(analysis.model_dump_json())):
        found.append("verdict.json follows from another analysis than analysis.json")
    if plan is None or analysis.source != "records":
        return found
    if analysis.source_hash != plan.plan_hash:
        found.append("analysis.json belongs to another plan than plan.lock")
        return found
    found += _disagreements(analysis, runs)
    return found


def _disagreements(analysis: Analysis, runs: tuple[RunMaterial, ...]) -> list[str]:
    found = []
    if analysis.stability is not None:
        states = {run.id: run.state for run in runs}
        for seen in analysis.stability.runs:
            now = states.get(seen.run, "waiting")
            ended = now in ("finished", "diverged")
            if (seen.state in ("finished", "diverged")) != ended or (ended and seen.state != now):
                found.append(f"{seen.run} is {now}, but {seen.state} in analysis.json")
    cells: dict[tuple[str, str, Seed], list[RunMaterial]] = {}
    for run in runs:
        cells.setdefault((run.variant, run.regime, run.seed), []).append(run)
    seen_values = set()
    for comparison in analysis.comparisons:
        if comparison.task is not None:
            continue
        for pair in comparison.pairs:
            for variant, value in ((comparison.variant, pair.variant), (comparison.reference, pair.reference)):
                cell = cells.get((variant, comparison.regime, pair.seed), [])
                recorded = cell[0].metric(comparison.metric) if len(cell) == 1 else None
                key = (variant, comparison.regime, pair.seed, comparison.metric)
                if recorded is not None and recorded != value and key not in seen_values:
                    seen_values.add(key)
                    found.append(f"{comparison.metric} of {cell[0].id} is {recorded:g}, but {value:g} in analysis.json")
    return found
