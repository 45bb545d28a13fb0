"""Before the runs: how many seeds and items the registered smallest effects need, and what the planned seeds can see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ablationlab.analysis import analyze, read_results
from ablationlab.analysis.material import Arm, Ask, Material
from ablationlab.analysis.questions import Question, questions
from ablationlab.core.errors import StatisticsError
from ablationlab.records.analysis import Analysis
from ablationlab.records.metrics import METRICS
from ablationlab.records.settings import Study
from ablationlab.stats import PowerPlan, detectable_effect, items_needed, plan, power_curve, tost_pairs_needed

CURVE: Final = (3, 5, 8, 10, 15, 20, 30, 50)


@dataclass(frozen=True)
class PlannedPower:
    """One registered comparison: *alpha* is what its test must stay below, after the correction, in the worst case."""

    question: Question
    effect: float | None
    alpha: float
    sd: float | None
    sd_from: str
    plan: PowerPlan | None
    equivalence: dict[float, int | None]
    items: int | None
    curve: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class StudyPower:
    """All registered comparisons of a study, and what to mind."""

    study: Study
    rows: tuple[PlannedPower, ...]
    detectable: dict[float, float] | None
    notes: tuple[str, ...]


def power_plans(
    study: Study, pilot: Path | None = None, sd: float | None = None, discordance: float | None = None
) -> StudyPower:
    """One row per registered comparison; the SD of the deltas is the pilot's, or the one assumed."""
    if pilot is not None and sd is not None:
        raise StatisticsError("give --pilot or --sd, not both: the SD comes from one of them")
    if sd is not None and not 0 < sd < float("inf"):
        raise StatisticsError(f"--sd {sd}: must be above 0")
    if discordance is not None and not 0 < discordance <= 1:
        raise StatisticsError(f"--discordance {discordance}: must lie above 0 and not above 1")
    asked = _registered(study)
    notes = [] if asked else ["The study registers no criteria, so there is no effect to plan for: add [[criteria]]."]
    found = analyze(read_results(pilot)) if pilot is not None else None
    if found is not None:
        notes += _about_pilot(study, found)
    sizes = {family: sum(q.family == family for q in asked) for family in {q.family for q in asked}}
    rows = [_row(question, sizes[question.family], study, found, sd, discordance) for question in asked]
    notes += _about_rows(rows)
    n = len(study.seeds)
    detectable = {p: detectable_effect(n, power=p) for p in (0.8, 0.9)} if n >= 2 else None
    return StudyPower(study, tuple(rows), detectable, tuple(dict.fromkeys(notes)))


def _registered(study: Study) -> list[Question]:
    """The registered comparisons, as the analysis will make them."""
    asks = tuple(Ask.from_criterion(criterion, registered=True) for criterion in study.criteria)
    material = Material(
        name=study.name,
        question="",
        source="records",
        source_hash="",
        criteria_hash=None,
        baseline=study.baseline,
        variants=study.variants,
        regimes=study.regime_names(),
        seeds=study.seeds,
        contrasts=study.contrasts,
        asks=asks,
        metrics=dict(METRICS.items()),
        values={arm: {} for arm in _arms(study)},
        own_seeds=study.own_seeds(),
    )
    return [question for question in questions(material) if question.standing == "registered"]


def _arms(study: Study) -> Iterable[Arm]:
    for criterion in study.criteria:
        yield Arm(criterion.metric, None, criterion.regime, study.baseline)


def _row(
    question: Question,
    family: int,
    study: Study,
    pilot: Analysis | None,
    assumed: float | None,
    discordance: float | None,
) -> PlannedPower:
    ask = question.ask
    corrects = ask.correction in ("holm", "bonferroni")
    alpha = ask.alpha / family if corrects else ask.alpha
    spread, pairs, source = _spread(question, pilot, assumed)
    effect = ask.smallest_effect
    planned = len(study.own_seeds().get(question.regime, study.seeds))
    made = None
    if effect is not None and spread is not None:
        made = plan(effect, spread, pilot_pairs=pairs, planned=planned if planned >= 2 else None, alpha=alpha)
    bound = effect / spread if effect is not None and spread is not None else None
    return PlannedPower(
        question=question,
        effect=effect,
        alpha=alpha,
        sd=spread,
        sd_from=source,
        plan=made,
        equivalence={power: _equivalence(bound, power, ask.alpha) for power in (0.8, 0.9)},
        items=_items(question, effect, discordance, alpha),
        curve=tuple(zip(CURVE, power_curve(bound, CURVE, alpha=alpha), strict=True)) if bound is not None else (),
    )


def _equivalence(bound: float | None, power: float, alpha: float) -> int | None:
    try:
        return None if bound is None else tost_pairs_needed(bound, power=power, alpha=alpha)
    except StatisticsError:
        return None


def _items(question: Question, effect: float | None, discordance: float | None, alpha: float) -> int | None:
    """Items for McNemar's test, for metrics that are shares of items answered rightly."""
    metric = question.metric
    if discordance is None or effect is None or metric.unit != "1" or metric.direction != "higher":
        return None
    return items_needed(effect, discordance, alpha=alpha)


def _spread(question: Question, pilot: Analysis | None, assumed: float | None) -> tuple[float | None, int | None, str]:
    if assumed is not None:
        return assumed, None, "assumed"
    if pilot is None:
        return None, None, "unknown"
    same = [
        one
        for one in pilot.comparisons
        if one.metric == question.metric.name
        and {one.variant, one.reference} == {question.variant, question.reference}
        and one.delta_sd
        and one.n >= 2
    ]
    best = next((one for one in same if one.regime == question.regime), same[0] if same else None)
    if best is None:
        return None, None, "not in the pilot"
    where = "" if best.regime == question.regime else f", regime {best.regime}"
    return best.delta_sd, best.n, f"pilot, {best.n} pairs{where}"


def _about_pilot(study: Study, pilot: Analysis) -> list[str]:
    notes = []
    shared = sorted(set(study.seeds) & set(pilot.seeds), key=str)
    if shared:
        text = ", ".join(map(str, shared))
        notes.append(f"Seeds {text} are in the pilot too: what was planned on them should be tested on others.")
    if len(pilot.seeds) < 5:
        notes.append(
            f"An SD from {len(pilot.seeds)} pairs is a rough guess: plan with the conservative column (its 80 % upper bound)."
        )
    notes.append("The SD is that of the pilot's length and size; longer or larger runs have another.")
    return notes


def _about_rows(rows: Iterable[PlannedPower]) -> list[str]:
    notes = []
    for row in rows:
        if row.effect is None:
            notes.append(f"{row.question.metric.name}: no smallest_effect is registered, so no number can be given.")
        elif row.sd is None:
            unknown = "The SD of the deltas is unknown: give a pilot's results with --pilot, or assume one with --sd."
            notes.append(unknown if row.sd_from == "unknown" else f"{row.question.id}: its SD is not in the pilot.")
    return notes
