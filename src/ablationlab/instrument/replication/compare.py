"""Compare a published table with a results folder: every figure with the interval of the difference, every direction with
our comparison, and what follows in sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ablationlab.analysis import analyze, read_results
from ablationlab.analysis.dataset import Absent, absent
from ablationlab.analysis.dataset import Value as AnalysisValue
from ablationlab.analysis.stability import EndedRun, ended_run, value_of
from ablationlab.analysis.wording import absence, no_number, sensitivity_reasons
from ablationlab.core.errors import RecordError
from ablationlab.core.format import number, percent, setting
from ablationlab.instrument.replication.published_table import Direction, PublishedFigure, PublishedTable, Value
from ablationlab.records.analysis import Absence, Analysis, Comparison
from ablationlab.records.metrics import Metric
from ablationlab.records.replication import (
    DirectionOutcome,
    FigureOutcome,
    ReplicatedDirection,
    ReplicatedFigure,
    Replication,
    RunValue,
)
from ablationlab.records.results import Results, Run
from ablationlab.records.settings import DEFAULT_REGIME, Study, flattened
from ablationlab.records.storage import content_hash
from ablationlab.stats import difference_of_means

LEVEL = 0.95
_WHY = {
    "welch": "Welch's interval for the difference of two means",
    "prediction": "no spread is published: the interval is what our runs predict for the mean of as many further ones",
}

_SAYS = {
    "transfers": "Found here too",
    "reversed": "The opposite is found here",
    "absent": "Not found here, and shown to be smaller than what matters",
    "undecided": "Undecided here",
    "not-measured": "Not measured",
}


def replicate(
    table: PublishedTable, folder: Path, *, study: Study | None = None, analysis: Analysis | None = None
) -> Replication:
    """Compare *table* with the results in *folder*; nothing is trained or written.

    *study* is the table's own, to list settings in which the runs in the folder differ from it; *analysis* is the folder's,
    computed unless given.
    """
    results = Results.open(folder, strict=True)
    if results.plan is None:
        raise RecordError(f"{folder} is not a results folder: it has no plan.lock")
    plan = results.plan
    sealed = plan.study
    analysis = analysis if analysis is not None else analyze(read_results(folder, None))
    own = [(run, ended_run(run, sealed.stability)) for run in results.runs if run.planned.role == "compared"]
    figures = [
        _figure(figure, variant, value, regime, own)
        for figure, regime in _places(table)
        for variant, value in figure.values.items()
    ]
    directions = [
        _direction(direction, regime, analysis, plan.metrics.get(direction.metric))
        for direction in table.directions
        for regime in (direction.regime, *(table.beside if direction.regime == DEFAULT_REGIME else ()))
    ]
    return Replication(
        table=table.name,
        title=table.title,
        about=table.about,
        citation=table.source.citation,
        date=table.source.date,
        url=table.source.url,
        table_hash=content_hash(table.model_dump(mode="json")),
        study=sealed.name,
        source_hash=plan.plan_hash,
        runs_ended=results.ended,
        runs_planned=len(plan.runs),
        changed=() if study is None else tuple(_changed(study, sealed, table.beside, own=True)),
        changed_beside=() if study is None else tuple(_changed(study, sealed, table.beside, own=False)),
        level=LEVEL,
        figures=tuple(figures),
        directions=tuple(directions),
        conclusions=tuple(conclusions(figures, directions, LEVEL)),
    )


def _places(table: PublishedTable) -> list[tuple[PublishedFigure, str]]:
    """Every figure in its own regime, then, for contrast, those of the default regime in the regimes beside it."""
    own = [(figure, figure.regime) for figure in table.figures]
    return own + [(figure, regime) for regime in table.beside for figure, where in own if where == DEFAULT_REGIME]


def _value(run: Run, ended: EndedRun | None, figure: PublishedFigure) -> AnalysisValue:
    """The number of *run* that is compared with a published figure, or why there is none."""
    if figure.take is None or ended is None or ended.result.status == "diverged":
        return value_of(ended, figure.metric)
    curve = run.curves.get(figure.metric, np.empty(0))
    numbers = curve[np.isfinite(curve)]
    if not numbers.size:
        return absent(Absence.NOT_IN_CURVE, metric=figure.metric)
    return float({"minimum": numbers.min(), "maximum": numbers.max(), "last": numbers[-1]}[figure.take])


def _figure(
    figure: PublishedFigure, variant: str, published: Value, regime: str, runs: Sequence[tuple[Run, EndedRun | None]]
) -> ReplicatedFigure:
    values: list[RunValue] = []
    missing: list[str] = []
    for run, ended in runs:
        if (run.regime, run.variant) != (regime, variant):
            continue
        value = _value(run, ended, figure)
        if isinstance(value, Absent):
            missing.append(f"{run.id}: {absence(value)}")
        else:
            values.append(RunValue(run=run.id, seed=run.seed, value=value))
    numbers = np.array([seen.value for seen in values])
    mean = sd = difference = low = high = None
    outcome: FigureOutcome = "not-measured"
    method, why = "", "; ".join(missing[:3]) or f"no run of {variant!r} in regime {regime!r}"
    if values:
        made = difference_of_means(
            numbers, published.mean, n=published.n, sd=published.sd, rounding=figure.rounding, level=LEVEL
        )
        mean, difference = float(numbers.mean()), made.estimate
        sd = float(numbers.std(ddof=1)) if numbers.size > 1 else None
        low, high, method = made.low, made.high, made.method
        outcome = "no-interval" if made.holds_zero is None else "within" if made.holds_zero else "outside"
        why = no_number(made.status, made.n, made.method) or _WHY[made.method]
    return ReplicatedFigure(
        metric=figure.metric,
        take=figure.take,
        published_as=figure.published_as,
        definition=figure.definition,
        same_definition=figure.same_definition,
        note=figure.note,
        regime=regime,
        beside=regime != figure.regime,
        variant=variant,
        published=published.mean,
        published_sd=published.sd,
        published_n=published.n,
        digits=figure.digits,
        values=tuple(values),
        missing=tuple(missing),
        mean=mean,
        sd=sd,
        difference=difference,
        low=low,
        high=high,
        level=LEVEL,
        method=method,
        outcome=outcome,
        why=why,
    )


def _direction(direction: Direction, regime: str, analysis: Analysis, metric: Metric | None) -> ReplicatedDirection:
    comparison = analysis.comparison(direction.metric, regime, direction.variant, direction.reference)
    outcome, why = _judged(direction, comparison)
    interval = None if comparison is None else comparison.main_interval
    of_stability = metric is not None and metric.family == "stability"
    stable = _unstable_words(direction, regime, analysis) if of_stability else ""
    defined = comparison or metric
    return ReplicatedDirection(
        metric=direction.metric,
        published_as=direction.published_as,
        note=direction.note,
        regime=regime,
        beside=regime != direction.regime,
        variant=direction.variant,
        reference=direction.reference,
        sign=direction.sign,
        pairs=len(direction.pairs),
        contrary=direction.contrary,
        comparison=None if comparison is None else comparison.id,
        label=None if comparison is None else comparison.label,
        n=0 if comparison is None else comparison.n,
        delta=None if comparison is None else comparison.delta,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        transform="identity" if defined is None else defined.transform,
        unit="" if defined is None else defined.unit,
        p_adjusted=None if comparison is None else comparison.p_adjusted,
        outcome=outcome,
        why="; ".join(filter(None, (why, stable))),
    )


def _judged(direction: Direction, comparison: Comparison | None) -> tuple[DirectionOutcome, str]:
    """By the corrected test of the analysis; an effect shown to be smaller than the smallest that matters is absent."""
    if comparison is None or comparison.delta is None:
        return "not-measured", "the records hold no such comparison"
    if comparison.sensitivity is not None and not comparison.sensitivity.sensitive:
        return "undecided", "not sensitive at this scale: " + "; ".join(sensitivity_reasons(comparison.sensitivity))
    shown = comparison.outcome in ("better", "worse", "different")
    survivors = "surviving pairs only" if any(c.code == "survivors-only" for c in comparison.caveats) else ""
    if shown:
        same = (comparison.delta < 0) == (direction.sign == "lower")
        return ("transfers" if same else "reversed"), survivors
    if comparison.equivalence is not None and comparison.equivalence.equivalent:
        return "absent", "; ".join(
            filter(None, (f"equivalent within {setting(comparison.smallest_effect)}", survivors))
        )
    return "undecided", "; ".join(filter(None, ("no difference is shown", survivors)))


def _unstable_words(direction: Direction, regime: str, analysis: Analysis) -> str:
    part = analysis.stability
    arms = [None if part is None else part.arm(name, regime) for name in (direction.reference, direction.variant)]
    counts = [f"{arm.unstable_runs} of {arm.runs} {arm.variant} runs" for arm in arms if arm is not None]
    return f"unstable: {', '.join(counts)}" if counts else ""


def _changed(wanted: Study, sealed: Study, beside: Sequence[str], *, own: bool) -> Iterator[str]:
    """Settings of the runs that are not those of the table's study. Which seeds and variants were run, how bits are made and
    what is judged do not count: they make no other model of the one that was published.
    """
    keep = ("model", "training", "data", "regimes", "sweep", "evaluation")
    a, b = (flattened({key: study.model_dump(mode="json")[key] for key in keep}) for study in (wanted, sealed))
    for key in dict.fromkeys([*a, *b]):
        is_beside = any(key.startswith(f"regimes.{name}.") for name in beside)
        if a.get(key) != b.get(key) and is_beside != own and not key.endswith(".meaning"):
            before = f"instead of {a[key]!r}" if key in a else "instead of the study's own"
            yield f"{key} = {b.get(key)!r} {before}"


def conclusions(
    figures: Sequence[ReplicatedFigure], directions: Sequence[ReplicatedDirection], level: float
) -> Iterator[str]:
    """Sentences for terminal, page and paper."""
    own = [figure for figure in figures if not figure.beside]
    if own:
        yield from _of_figures(own, level)
    for regime in dict.fromkeys(figure.regime for figure in figures if figure.beside):
        rest = [figure for figure in figures if figure.beside and figure.regime == regime]
        known = [figure for figure in rest if figure.outcome in ("within", "outside")]
        if known:
            within = [figure for figure in known if figure.outcome == "within"]
            names = f": {_listed(within)}" if within else ""
            where = f"In regime {regime}, which the publication does not cover,"
            yield f"{where} {len(within)} of {len(known)} lie within{names}."
    yield from _flips(directions)
    for outcome, words in _SAYS.items():
        same = [direction for direction in directions if not direction.beside and direction.outcome == outcome]
        if same:
            yield f"{words}: " + "; ".join(_contrast(direction) for direction in same) + "."


def _of_figures(own: Sequence[ReplicatedFigure], level: float) -> Iterator[str]:
    within = [figure for figure in own if figure.outcome == "within"]
    outside = [figure for figure in own if figure.outcome == "outside"]
    known = len(within) + len(outside)
    if within:
        yield f"{len(within)} of {known} published figures lie within the interval of our runs: {_listed(within)}."
    if outside:
        yield f"These are not reproduced: {_listed(outside, values=True)}."
    yield from dict.fromkeys(figure.note for figure in outside if figure.note)
    if known > 1:
        chance = (1 - level) * known
        text = f"At {percent(level)} each, about {number(chance, 1)} of {known} would lie outside by chance alone"
        yield f"{text}; figures of one seed depend on each other."
    for word, text in (("no-interval", "No interval could be made for"), ("not-measured", "Not measured")):
        rest = [figure for figure in own if figure.outcome == word]
        if rest:
            yield f"{text}: {_listed(rest)}."


def _flips(directions: Sequence[ReplicatedDirection]) -> Iterator[str]:
    """Where a sign is shown both in the publication's regime and, the other way, beside it."""
    for direction in directions:
        if direction.beside or direction.outcome not in ("transfers", "reversed") or direction.delta is None:
            continue
        same = (direction.metric, direction.variant, direction.reference)
        for other in directions:
            if not other.beside or (other.metric, other.variant, other.reference) != same or other.delta is None:
                continue
            if other.outcome in ("transfers", "reversed") and other.outcome != direction.outcome:
                yield (
                    f"The sign flips: {direction.variant} − {direction.reference} in {direction.metric} is "
                    f"{direction.delta:+.3g} in regime {direction.regime} and {other.delta:+.3g} in regime {other.regime}."
                )


def _listed(parts: Sequence[ReplicatedFigure], *, values: bool = False) -> str:
    by_metric: dict[str, list[str]] = {}
    for figure in parts:
        shown = (
            f" ({setting(figure.published)} published, {number(figure.mean, 4)} here)"
            if values and figure.mean is not None
            else ""
        )
        by_metric.setdefault(figure.published_as, []).append(f"{figure.variant}{shown}")
    return "; ".join(f"{metric} of {', '.join(names)}" for metric, names in by_metric.items())


def _contrast(direction: ReplicatedDirection) -> str:
    where = "" if direction.regime == "default" else f" ({direction.regime})"
    return f"{direction.variant} {direction.sign} in {direction.metric} than {direction.reference}{where}"
