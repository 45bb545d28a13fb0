"""The study as it was planned and run, as plain rows for the template: budget, hashes, versions, every run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ablationlab.core.format import amount, number
from ablationlab.report.charts.curves import main_runs
from ablationlab.report.charts.theme import colours

if TYPE_CHECKING:
    from ablationlab.records.plan import Corpus, Plan
    from ablationlab.records.results import Results, Run


def strip(material: Results) -> list[tuple[str, str, str]]:
    """(label, value, note): what the study is, at a glance."""
    plan = material.plan
    if plan is None:
        return [
            ("runs come from", "a table of runs", "matching of data and budget cannot be checked"),
            ("variants", str(len(material.variants)), ", ".join(material.variants[:4])),
            ("seeds", str(len(material.seeds)), "paired"),
        ]
    budgets = [run.budget for run in plan.runs]
    first = budgets[0]
    same = len({(budget.tokens, budget.steps) for budget in budgets}) == 1
    sizes = sorted({budget.parameters for budget in budgets})
    size = amount(sizes[0]) if amount(sizes[0]) == amount(sizes[-1]) else f"{amount(sizes[0])} to {amount(sizes[-1])}"
    return [
        (
            "runs",
            f"{material.ended} of {len(material.runs)}",
            " × ".join(_counts(material)),
        ),
        (
            "budget of a run",
            f"{amount(first.tokens)} tokens",
            f"{first.steps:,} steps, {'equal for all' if same else 'by regime'}; {_rates(plan)}",
        ),
        ("parameters", size, plan.study.model.preset or "own model"),
        ("corpus", plan.corpus.name, _corpus(plan.corpus)),
        (
            "trained on",
            plan.execution.device_name,
            f"{plan.execution.precision}, stack of {plan.execution.stack_width}",
        ),
        ("sealed", plan.created[:10], f"plan {plan.plan_hash[:10]}"),
    ]


def _rates(plan: Plan) -> str:
    """The peak learning rate, or the span of them: what is true at one rate may not be at another."""
    rates = sorted({run.lr for run in plan.runs})
    return f"learning rate {rates[0]:g}" if len(rates) == 1 else f"learning rates {rates[0]:g} to {rates[-1]:g}"


def _corpus(corpus: Corpus) -> str:
    """How its text becomes tokens; of a mixture also what is mixed, by weight."""
    vocabulary = f"{corpus.tokenizer}, {corpus.vocabulary:,} tokens"
    return f"{corpus.source}; {vocabulary}" if len(corpus.components) > 1 else vocabulary


def _counts(material: Results) -> list[str]:
    found = [f"{len(material.variants)} variants", f"{len(material.seeds)} seeds"]
    regimes = {run.regime for run in material.runs}
    return [*found, f"{len(regimes)} regimes"] if len(regimes) > 1 else found


def budget_rows(material: Results) -> list[dict[str, Any]]:
    """Per variant and regime: what it costs and what it declares to change."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for run in main_runs(material):
        if run.planned is None or (run.variant, run.regime) in found:
            continue
        budget = run.planned.budget
        declares = run.record.declares if run.record is not None else None
        found[run.variant, run.regime] = {
            "variant": run.variant,
            "regime": run.regime,
            "parameters": f"{budget.parameters:,}",
            "steps": f"{budget.steps:,}",
            "tokens": f"{budget.tokens:,}",
            "flops": amount(budget.matmul_flops),
            "declares": ", ".join((*declares.settings, *declares.parameters)) if declares is not None else "",
        }
    return list(found.values())


def hash_rows(material: Results) -> list[dict[str, Any]]:
    """Per regime and seed: whether data order and shared initial weights are equal across all arms."""
    cells: dict[tuple[str, str], list[Run]] = {}
    for run in material.runs:
        if run.record is not None:
            cells.setdefault((run.regime, str(run.seed)), []).append(run)
    found = []
    for (regime, seed), runs in cells.items():
        records = [run.record for run in runs if run.record is not None]
        order = {record.data_order_hash for record in records}
        init = {record.shared_init_hash for record in records}
        found.append(
            {
                "regime": regime,
                "seed": seed,
                "arms": len(runs),
                "order": sorted(order)[0][:12],
                "order_equal": len(order) == 1,
                "init": sorted(init)[0][:12],
                "init_equal": len(init) == 1,
            }
        )
    return found


def version_rows(material: Results) -> list[tuple[str, str]]:
    """Versions and machine the plan was sealed with."""
    if material.plan is None:
        return []
    plan, environment = material.plan, material.plan.environment
    rows = list(environment.versions.items())
    rows += [
        ("platform", environment.platform),
        ("processor", environment.processor),
        ("device", f"{plan.execution.device_name}, {plan.execution.precision}"),
        ("threads a process, stack width", f"{plan.execution.threads}, {plan.execution.stack_width}"),
        ("code hash", environment.code_hash),
    ]
    if environment.git.commit:
        rows.append(("git commit", environment.git.commit + (" (with changes)" if environment.git.dirty else "")))
    return rows


def seal_rows(material: Results) -> list[tuple[str, str]]:
    """Hashes that pin the study."""
    found: list[tuple[str, str]] = []
    if material.plan is not None:
        plan = material.plan
        found += [
            ("plan", plan.plan_hash),
            ("study", plan.study_hash),
            ("criteria", plan.criteria_hash),
            ("corpus, text", plan.corpus.sha256),
            ("corpus, tokens", plan.corpus.tokens_sha256),
        ]
    if material.verdict is not None:
        found.append(("analysis", material.verdict.analysis_hash))
    return found


def configuration(material: Results) -> str:
    """The resolved study, as it was sealed."""
    return "" if material.plan is None else material.plan.study.model_dump_json(indent=2, exclude={"text"})


STATES = {"finished": "good", "diverged": "bad", "damaged": "bad", "running": "warn", "started": "warn"}


def run_rows(material: Results, anchors: Mapping[str, str], out: Path) -> list[dict[str, Any]]:
    """Every run: where it stands, its numbers, what sets it apart, its files."""
    prefix = os.path.relpath(material.folder, out)
    prefix = "" if prefix == "." else f"{quote(Path(prefix).as_posix())}/"
    hues = colours(material)
    common = _common(material)
    found = []
    for run in material.runs:
        result, record = run.result, run.record
        found.append(
            {
                "anchor": anchors[run.id],
                "id": run.id,
                "variant": run.variant,
                "regime": run.regime,
                "seed": str(run.seed),
                "colour": hues.get(run.variant, "#626b75"),
                "lr": f"{run.lr:g}",
                "state": run.state,
                "tone": STATES.get(run.state, ""),
                "why": f"step {result.divergence.step}: {result.divergence.cause}"
                if result is not None and result.divergence is not None
                else "",
                "steps": f"{run.step:,} / {run.steps:,}",
                "step": run.step,
                "metrics": [(name, run.metric(name), number(run.metric(name), 4)) for name in run_metrics(material)],
                "tokens_per_second": "" if result is None else amount(result.timing.tokens_per_second),
                "seconds": "" if result is None else number(result.timing.train_seconds, 3),
                "differs": _differs(run, common),
                "hashes": [
                    ("data order", record.data_order_hash if record is not None else ""),
                    ("shared initial weights", record.shared_init_hash if record is not None else ""),
                    ("final weights", result.weights_sha256 if result is not None else ""),
                ],
                "drift": list(record.drift) if record is not None else [],
                "files": [(name, f"{prefix}runs/{quote(run.id)}/{quote(name)}") for name in run.files],
            }
        )
    return found


def run_metrics(material: Results) -> list[str]:
    """The run-level metrics that the runs table shows: the primary one and the protocol's headlines, where recorded."""
    wanted = [material.primary, "validation_loss", "next_token_accuracy", "final_gradient_norm", "mean_embedding_norm"]
    there = {name for run in material.runs if run.result is not None for name in run.result.metrics}
    return [name for name in dict.fromkeys(wanted) if name in there and name is not None]


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _settings(run: Run) -> dict[str, Any]:
    return flat(run.planned.model_dump(mode="json", include={"model", "training"}))


def _common(material: Results) -> dict[str, Any]:
    """The settings of the first baseline run: what the others are described against."""
    base = next((run for run in material.runs if run.variant == material.baseline), None)
    return _settings(base) if base is not None else {}


def _differs(run: Run, common: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    mine = _settings(run)
    keys = [key for key in dict.fromkeys((*common, *mine)) if mine.get(key) != common.get(key)]
    return [(key, json.dumps(common.get(key)), json.dumps(mine.get(key))) for key in keys]
