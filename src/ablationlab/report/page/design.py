"""The study as it was planned: what stands at the head of the page, versions and hashes."""

from __future__ import annotations

import json
from collections import Counter
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablationlab.analysis.wording import listed
from ablationlab.core.format import amount, count, duration, setting, several
from ablationlab.core.grouping import grouped
from ablationlab.records.energy import overlap
from ablationlab.records.storage import read_json
from ablationlab.report.table import Cell, Column, Table
from ablationlab.report.terminal.planned import precisions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ablationlab.records.energy import Energy
    from ablationlab.records.plan import Corpus, Plan, PlannedRun
    from ablationlab.records.results import Results


def strip(results: Results) -> list[tuple[str, str, str]]:
    """(label, value, note): what the study is, at a glance."""
    plan = results.plan
    if plan is None:
        runs = 0 if results.analysis is None else results.analysis.unpaired_runs
        return [
            ("runs come from", "a table of runs", "matching of data and budget cannot be checked"),
            ("variants", count(len(results.variants)), ", ".join(results.variants[:4])),
            ("runs", count(runs), "not paired") if runs else ("seeds", count(len(results.seeds)), "paired"),
        ]
    how = plan.execution
    if plan.study.trainer is not None:
        own = plan.study.trainer
        return [
            ("runs", f"{count(results.ended)} of {count(len(results.runs))}", runs_words(results)),
            ("trained by", "the study's own code", own.title),
            ("trained on", how.device_name, "precision and budget are the trainer's"),
            ("sealed", plan.created[:10], f"plan {plan.plan_hash[:10]}"),
        ]
    tokens, steps, others = _budgets(plan)
    planned = " planned" if any(run.state == "diverged" for run in results.runs) else ""
    sizes = dict.fromkeys(amount(size) for size in sorted(run.budget.parameters for run in plan.runs))
    preset = None if plan.study.model is None else plan.study.model.preset
    return [
        ("runs", f"{count(results.ended)} of {count(len(results.runs))}", runs_words(results)),
        (
            "budget of a run",
            f"{amount(tokens)} tokens",
            f"{count(steps)} steps{planned}{others or ', equal for all'}; {_rates(plan)}",
        ),
        ("parameters", " to ".join(list(sizes)[:: max(1, len(sizes) - 1)]), preset or "own model"),
        ("corpus", plan.corpus.name, _corpus(plan.corpus)),
        ("trained on", how.device_name, f"{how.precision}, stack of {how.stack_width}"),
        ("sealed", plan.created[:10], f"plan {plan.plan_hash[:10]}"),
    ]


#: What is equal for all arms where their tokens are not.
_MATCHED = {"flops": ", matched by FLOPs", "time": ", matched by training time", "tokens": ""}
#: Budgets beside the usual one that are told one by one.
_MOST_BUDGETS = 3


def _budgets(plan: Plan) -> tuple[int, int, str]:
    """Tokens and steps of most runs, and which runs have others, and why."""
    runs = [((run.budget.tokens, run.budget.steps), run) for run in plan.runs]
    sizes = Counter(budget for budget, _ in runs)
    (tokens, steps), _ = sizes.most_common(1)[0]
    others = grouped((budget, run) for budget, run in runs if budget != (tokens, steps))
    if not others:
        return tokens, steps, ""
    matched = _MATCHED[plan.runs[0].budget.match]
    if len(others) > _MOST_BUDGETS:
        fewest, most = min(steps for _, steps in sizes), max(steps for _, steps in sizes)
        return tokens, steps, f" in most runs, {count(fewest)} to {count(most)} in all{matched}"
    told = [
        f"{_arms(plan, alike)} {count(fewer)} steps and {amount(read)} tokens"
        for (read, fewer), alike in others.items()
    ]
    return tokens, steps, f"; {'; '.join(told)}{matched}"


def _arms(plan: Plan, runs: Sequence[PlannedRun]) -> str:
    """Which arms these runs are: by the names of variants or of regimes where these are enough."""
    here = {(run.variant, run.regime) for run in runs}
    every = {(run.variant, run.regime) for run in plan.runs}
    variants, regimes = (list(dict.fromkeys(names)) for names in zip(*sorted(here), strict=True))
    if here == {arm for arm in every if arm[0] in variants}:
        return listed(variants)
    if here == {arm for arm in every if arm[1] in regimes}:
        return f"in {listed(regimes)}"
    return listed(f"{variant} in {regime}" for variant, regime in sorted(here))


def _rates(plan: Plan) -> str:
    """The peak learning rate, or the span of them: what is true at one rate may not be at another."""
    rates = sorted({run.lr for run in plan.runs})
    if len(rates) == 1:
        return f"learning rate {setting(rates[0])}"
    return f"learning rates {setting(rates[0])} to {setting(rates[-1])}"


def _corpus(corpus: Corpus) -> str:
    """How its text becomes tokens; of a mixture also what is mixed, by weight."""
    vocabulary = f"{corpus.tokenizer}, {count(corpus.vocabulary)} tokens"
    mixed = " + ".join(f"{setting(component.weight)} {component.name}" for component in corpus.components)
    return f"{mixed}; {vocabulary}" if len(corpus.components) > 1 else vocabulary


def runs_words(results: Results) -> str:
    """What the runs are: those that are compared, as a product where they are one, and the others by what they are for."""
    compared = results.compared
    names: dict[str, set[Any]] = {
        "variant": {run.variant for run in compared},
        "seed": {run.seed for run in compared},
        "regime": {run.regime for run in compared},
    }
    sizes = [several(len(found), name) for name, found in names.items() if name != "regime" or len(found) > 1]
    whole = prod(map(len, names.values())) == len(compared)
    others: Counter[str] = Counter(run.planned.role for run in results.runs)
    beside = [f"{count(others[role])} {words}" for role, words in _BESIDE.items() if others[role]]
    return ", ".join([(" × " if whole else ", ").join(sizes), *beside])


#: Runs that no comparison pairs at the study's own settings.
_BESIDE = {"sweep": "more in the sweep", "gate": "for the gate", "noise": "for [noise]"}


def version_table(results: Results) -> Table:
    """Versions and machine the plan was sealed with."""
    rows: list[tuple[str, str]] = []
    if results.plan is not None:
        plan, environment = results.plan, results.plan.environment
        rows = [
            *environment.versions.items(),
            ("platform", environment.platform),
            ("processor", environment.processor),
            ("device", f"{plan.execution.device_name}, {precisions(plan)}"),
            ("threads per process, stack width", f"{plan.execution.threads}, {plan.execution.stack_width}"),
            ("code hash", environment.code_hash),
        ]
        if environment.git.commit:
            changed = " (uncommitted changes)" if environment.git.dirty else ""
            rows.append(("git commit", environment.git.commit + changed))
        rows += [("energy", text)] if (text := energy_text(results.energy)) else []
    return _named("versions", "Versions and machine at sealing.", rows)


def energy_text(records: Sequence[Energy]) -> str:
    """What the study's commands measured; empty where none did."""
    if not records:
        return ""
    known = [record for record in records if record.joules is not None]
    if not known:
        return "not reported by this machine"
    if overlap(known):
        return "not known: two commands measured the same devices at once"
    sources = ", ".join(dict.fromkeys(reading.source for record in known for reading in record.readings))
    total = amount(sum(record.joules or 0.0 for record in known), "J")
    seconds = duration(sum(record.seconds for record in known))
    part = "" if len(known) == len(records) else f", {count(len(known))} of {count(len(records))} commands"
    return f"{total} in {seconds} of training and scoring ({sources}; whole devices, whatever else ran on them{part})"


def seal_table(results: Results) -> Table:
    """Hashes that pin the study."""
    rows: list[tuple[str, str]] = []
    if results.plan is not None:
        plan = results.plan
        rows = [
            ("plan", plan.plan_hash),
            ("study", plan.study_hash),
            ("criteria", plan.criteria_hash),
            *((Path(name).name, digest) for name, digest in plan.files.items()),
        ]
        if plan.study.trainer is None:
            rows += [("corpus, text", plan.corpus.sha256), ("corpus, tokens", plan.corpus.tokens_sha256)]
    if results.verdict is not None:
        rows += [("analysis", results.verdict.analysis_hash), ("verdict", results.verdict.sealed().seal)]
    return _named("seals", "SHA-256 of what pins the study.", rows)


def _named(key: str, title: str, rows: list[tuple[str, str]]) -> Table:
    """Names and what belongs to them, without a head."""
    columns = (Column("name"), Column("hash"))
    return Table(key, title, columns, tuple((Cell.of(name), Cell.name(text)) for name, text in rows))


def configuration(results: Results) -> str:
    """The resolved study, as it was sealed.

    The file itself is printed: a plan that was read has the paths of this machine, and seeds and variants of amendments.
    """
    if results.plan is None:
        return ""
    sealed = read_json(results.folder / "plan.lock")["study"]
    return json.dumps({key: value for key, value in sealed.items() if key != "text"}, indent=2, ensure_ascii=False)
