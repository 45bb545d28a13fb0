"""What a terminal shows of an effect over several sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.text import Text

from ablationlab.analysis.trends import Scale, StudyTrend
from ablationlab.core.format import count, difference, number, p_value, percent, plain
from ablationlab.report.slots import Slot, Statement
from ablationlab.report.table import Table
from ablationlab.stats.results import TrendPrediction

#: What the size of a study is, as the head of a column.
_SCALES: Mapping[Scale, str] = {"parameters": "parameters", "tokens": "tokens", "matmul_flops": "FLOPs"}


def trend_view(trend: StudyTrend) -> Iterator[RenderableType]:
    """The effect of each study by size, the trend per factor of ten, and the prediction."""
    first, fit = trend.studies[0].comparison, trend.fit
    heads = [_SCALES[trend.scale], "pairs", "Δ", f"{percent(fit.level)} interval"]
    rows = []
    for study in trend.studies:
        shown = study.comparison.intervals["paired-t"]
        text = difference(shown.estimate, shown.low, shown.high)
        rows.append([study.study, count(int(study.size)), count(study.comparison.n), text.text, text.range])
    slope = difference(fit.slope, fit.low, fit.high)
    rows.append(["per factor of ten", "", "", slope.text, slope.range])
    if fit.prediction is not None:
        at = difference(fit.prediction.estimate, fit.prediction.low, fit.prediction.high)
        rows.append(["predicted", count(int(fit.prediction.size)), "", at.text, at.range])
    title = f"{first.metric}, {first.variant} − {first.reference}, over {_SCALES[trend.scale]}"
    yield Table.simple(title, ["study", *heads], rows, heads).terminal()
    yield from (Text(plain(clause.text)) for clause in trend_clauses(trend))


def trend_clauses(trend: StudyTrend) -> Iterator[Statement]:
    """The trend, the prediction, and what to mind of it."""
    fit = trend.fit
    slots = {"p": p_value(fit.p), "freedom": count(fit.degrees_of_freedom), "sd": number(fit.between_sd)}
    yield _clause("fit", **slots)
    if fit.prediction is not None:
        yield _clause("sign", size=count(int(fit.prediction.size)), chance=chance(fit.prediction.sign_holds))
        yield from _beyond(trend, fit.prediction)


def _clause(code: str, **slots: str) -> Statement:
    return Statement(f"trend.{code}", {name: Slot(text) for name, text in slots.items()})


def chance(probability: float) -> str:
    """A probability that is estimated is never said to be 0 or 1."""
    if probability < 0.01:
        return f"below {percent(0.01)}"
    return f"above {percent(0.99)}" if probability > 0.99 else percent(probability)


def _beyond(found: StudyTrend, predicted: TrendPrediction) -> Iterator[Statement]:
    """What to mind of a prediction outside the sizes that were studied."""
    sizes = [study.size for study in found.studies]
    low, high = min(sizes), max(sizes)
    if low <= predicted.size <= high:
        return
    apart = predicted.size / high if predicted.size > high else low / predicted.size
    yield _clause("beyond", factor=number(apart), span=number(high / low))
    effects = [study.comparison.intervals["paired-t"].estimate or 0.0 for study in found.studies]
    if predicted.estimate and all(effect * predicted.estimate < 0 for effect in effects):
        yield _clause("crosses")
