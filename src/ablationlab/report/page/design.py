"""What the study is and how it was held equal, as plain rows for the template: budgets, hashes, versions, settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ablationlab.core.format import amount
from ablationlab.report.charts.curves import main_runs

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
