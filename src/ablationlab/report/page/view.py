"""The rest of what the template shows, as plain rows: comparisons, stability, power, controls, runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ablationlab.metrics import METRICS
from ablationlab.report.charts.curves import main_runs
from ablationlab.report.charts.theme import colours
from ablationlab.report.charts.words import alike, amount, digits, metric_words, p_words, share, signed, unit_of

if TYPE_CHECKING:
    from ablationlab.conclusions import ComparisonPart
    from ablationlab.corpus_records import Corpus
    from ablationlab.report.material import Material, RunMaterial

TONES = {"better": "good", "worse": "bad", "different": "warn"}
STATES = {"finished": "good", "diverged": "bad", "damaged": "bad", "running": "warn", "started": "warn"}
CALIBRATION = ("ece", "brier", "temperature", "calibration")


@dataclass(frozen=True)
class ComparisonView:
    """One row of the table of comparisons, and what unfolds below it."""

    part: ComparisonPart
    anchor: str
    metric: str
    unit: str
    task: str
    means: tuple[str, str]
    delta: str
    interval: str
    ratio: str
    ratio_interval: str
    p: str
    p_adjusted: str
    outcome: str
    tone: str
    pairs: tuple[tuple[str, str, str, str, str, str], ...]
    intervals: tuple[tuple[str, str, str], ...]
    tests: tuple[tuple[str, str, str], ...]
    effects: tuple[tuple[str, str], ...]
    equivalence: str


def anchors_of(material: Material) -> tuple[dict[str, str], dict[str, str]]:
    """Comparison id -> anchor, run id -> anchor; by number, since ids may hold any character."""
    comparisons = material.analysis.comparisons if material.analysis is not None else ()
    return (
        {one.id: f"c{number}" for number, one in enumerate(comparisons)},
        {run.id: f"r{number}" for number, run in enumerate(material.runs)},
    )


def comparison_views(material: Material, anchors: Mapping[str, str], runs: Mapping[str, str]) -> list[ComparisonView]:
    """Every comparison; the registered ones first, those of the primary metric foremost."""
    if material.analysis is None:
        return []
    made = [_comparison(material, one, anchors[one.id], runs) for one in material.analysis.comparisons]
    return sorted(made, key=lambda view: (view.part.label != "registered", view.part.metric != material.primary))


def _comparison(material: Material, one: ComparisonPart, anchor: str, runs: Mapping[str, str]) -> ComparisonView:
    main = one.main_interval
    delta, low, high = alike(None if main is None else main.low, None if main is None else main.high, one.delta)
    ratio = one.ratio
    shown_ratio = ratio_interval = ""
    if ratio is not None:
        r, r_low, r_high = alike(ratio.low, ratio.high, ratio.ratio, sign=False)
        shown_ratio, ratio_interval = f"× {r}", "" if ratio.low is None else f"{r_low} to {r_high}"
    pairs = []
    for pair in one.pairs[:200]:
        mine = material.run_of(one.variant, one.regime, pair.seed)
        theirs = material.run_of(one.reference, one.regime, pair.seed)
        pairs.append(
            (
                str(pair.seed),
                digits(pair.variant, 5),
                digits(pair.reference, 5),
                signed(pair.delta, 4),
                runs.get(mine.id, "") if mine is not None else "",
                runs.get(theirs.id, "") if theirs is not None else "",
            )
        )
    intervals = []
    for name, interval in one.intervals.items():
        _, a, b = alike(interval.low, interval.high, interval.estimate)
        text = f"{a} to {b}" if interval.status == "ok" else interval.note or interval.status
        intervals.append((name, text, "" if interval.exact else "resampled"))
    tests = []
    for name, test in one.tests.items():
        least = f"cannot go below {p_words(test.minimum_p)}" if test.minimum_p is not None else ""
        tests.append((name, p_words(test.p) if test.status == "ok" else test.note or test.status, least))
    effects = tuple(
        (name, f"{digits(effect.estimate)} ({digits(effect.low)} to {digits(effect.high)})")
        for name, effect in one.effects.items()
    )
    return ComparisonView(
        part=one,
        anchor=anchor,
        metric=metric_words(one.metric),
        unit=unit_of(one.metric, one.unit),
        task=one.task or "",
        means=(_spread(one.variant_mean, one.variant_sd), _spread(one.reference_mean, one.reference_sd)),
        delta=delta,
        interval=f"{low} to {high}" if main is not None and main.low is not None else "",
        ratio=shown_ratio,
        ratio_interval=ratio_interval,
        p=p_words(one.p),
        p_adjusted=p_words(one.p_adjusted),
        outcome=one.outcome.replace("-", " "),
        tone=TONES.get(one.outcome, ""),
        pairs=tuple(pairs),
        intervals=tuple(intervals),
        tests=tuple(tests),
        effects=effects,
        equivalence=_equivalence(one),
    )


def _spread(mean: float | None, sd: float | None) -> str:
    return digits(mean, 4) if not sd else f"{digits(mean, 4)} ± {digits(sd, 2)}"


def _equivalence(one: ComparisonPart) -> str:
    found = one.equivalence
    if found is None:
        return ""
    bounds = f"±{found.bounds[1]:g}"
    if found.equivalent is None:
        return f"could not be tested within {bounds}: {found.note or found.status}"
    return f"{'shown' if found.equivalent else 'not shown'} within {bounds} (TOST, p {p_words(found.p)})"


def sections_of(views: Iterable[ComparisonView]) -> dict[str, list[ComparisonView]]:
    """The comparisons that belong to evaluation and to calibration, for tables of their own."""
    found: dict[str, list[ComparisonView]] = {"evaluation": [], "calibration": []}
    for view in views:
        family = METRICS[view.part.metric].family if view.part.metric in METRICS else ""
        if family == "calibration" or any(word in view.part.metric for word in CALIBRATION):
            found["calibration"].append(view)
        elif view.part.task is not None or "macro" in view.part.metric or family in ("tasks", "accuracy", "evaluation"):
            found["evaluation"].append(view)
    return found


def strip(material: Material) -> list[tuple[str, str, str]]:
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
            f"{first.steps:,} steps, {'equal for all' if same else 'by regime'}",
        ),
        ("parameters", size, str(plan.study["model"].get("preset") or "own model")),
        ("corpus", plan.corpus.name, _corpus(plan.corpus)),
        (
            "trained on",
            plan.execution.device_name,
            f"{plan.execution.precision}, stack of {plan.execution.stack_width}",
        ),
        ("sealed", plan.created[:10], f"plan {plan.plan_hash[:10]}"),
    ]


def _corpus(corpus: Corpus) -> str:
    """How its text becomes tokens; of a mixture also what is mixed, by weight."""
    vocabulary = f"{corpus.tokenizer}, {corpus.vocabulary:,} tokens"
    return f"{corpus.source}; {vocabulary}" if len(corpus.components) > 1 else vocabulary


def _counts(material: Material) -> list[str]:
    found = [f"{len(material.variants)} variants", f"{len(material.seeds)} seeds"]
    regimes = {run.regime for run in material.runs}
    return [*found, f"{len(regimes)} regimes"] if len(regimes) > 1 else found


def stability_rows(material: Material) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(arms, gains) as text."""
    stability = material.analysis.stability if material.analysis is not None else None
    if stability is None:
        return [], []
    arms = [
        {
            "variant": arm.variant,
            "regime": arm.regime,
            "runs": arm.runs,
            "diverged": arm.diverged,
            "spiked": arm.spiked,
            "unstable": arm.unstable_runs,
            "largest": digits(arm.largest_spike_score),
        }
        for arm in stability.arms
    ]
    gains = [
        {
            "variant": gain.variant,
            "reference": gain.reference,
            "regime": gain.regime,
            "counts": f"{gain.reference_unstable}/{gain.n} → {gain.variant_unstable}/{gain.n}",
            "estimate": share(gain.estimate),
            "interval": f"{share(gain.low)} to {share(gain.high)}",
            "p": p_words(gain.mcnemar_p),
            "caveats": [caveat.text for caveat in gain.caveats],
        }
        for gain in stability.gains
    ]
    return arms, gains


def power_rows(material: Material, anchors: Mapping[str, str]) -> list[dict[str, Any]]:
    """What each primary comparison could see."""
    found = []
    for part in material.analysis.power if material.analysis is not None else ():
        one = material.comparison(part.comparison)
        if one is None:
            continue
        unit = "(log)" if one.transform == "log" else unit_of(one.metric, one.unit)
        found.append(
            {
                "variant": one.variant,
                "reference": one.reference,
                "regime": one.regime,
                "anchor": anchors.get(one.id, ""),
                "unit": unit,
                "observed": digits(abs(one.delta)) if one.delta is not None else "–",
                "sd": digits(part.delta_sd),
                "n": part.n,
                "detectable": digits(part.detectable_80),
                "detectable_90": digits(part.detectable_90),
                "effect": "–" if part.smallest_effect is None else f"{part.smallest_effect:g}",
                "pairs": part.pairs_80 if part.pairs_80 is not None else "–",
                "conservative": part.pairs_80_conservative if part.pairs_80_conservative is not None else "–",
                "equivalence": part.equivalence_pairs_80 if part.equivalence_pairs_80 is not None else "–",
                "seen": part.smallest_effect is not None and part.detectable_80 <= part.smallest_effect,
            }
        )
    return found


def budget_rows(material: Material) -> list[dict[str, Any]]:
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


def hash_rows(material: Material) -> list[dict[str, Any]]:
    """Per regime and seed: whether data order and shared initial weights are equal across all arms."""
    cells: dict[tuple[str, str], list[RunMaterial]] = {}
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


def version_rows(material: Material) -> list[tuple[str, str]]:
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


def seal_rows(material: Material) -> list[tuple[str, str]]:
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


def run_rows(material: Material, anchors: Mapping[str, str], out: Path) -> list[dict[str, Any]]:
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
                "metrics": [(name, run.metric(name), digits(run.metric(name), 4)) for name in run_metrics(material)],
                "tokens_per_second": "" if result is None else amount(result.timing.tokens_per_second),
                "seconds": "" if result is None else digits(result.timing.train_seconds, 3),
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


def run_metrics(material: Material) -> list[str]:
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


def _settings(run: RunMaterial) -> dict[str, Any]:
    if run.planned is None:
        return {}
    return flat({"model": run.planned.model, "training": run.planned.training})


def _common(material: Material) -> dict[str, Any]:
    """The settings of the first baseline run: what the others are described against."""
    base = next((run for run in material.runs if run.variant == material.baseline), None)
    return _settings(base) if base is not None else {}


def _differs(run: RunMaterial, common: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    mine = _settings(run)
    keys = [key for key in dict.fromkeys((*common, *mine)) if mine.get(key) != common.get(key)]
    return [(key, json.dumps(common.get(key)), json.dumps(mine.get(key))) for key in keys]


def configuration(material: Material) -> str:
    """The resolved study, as it was sealed."""
    return "" if material.plan is None else json.dumps(material.plan.study, indent=2, ensure_ascii=False)
