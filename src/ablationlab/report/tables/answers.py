"""The answers: one row per variant and regime, and one per hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ablationlab.analysis.wording import difference_of
from ablationlab.core.format import DASH, level, part
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import Analysis, Comparison
from ablationlab.records.verdict import Answer, Standing, VariantVerdict, Verdict
from ablationlab.report.table import Cell, Column, Table, Tone

TONES: Final[dict[Answer, Tone]] = {
    Answer.BETTER: "good",
    Answer.MORE_STABLE: "good",
    Answer.WORSE: "bad",
    Answer.UNSTABLE: "bad",
}


#: More seeds than this are counted.
MOST_SEEDS = 3


def answer_cell(judged: VariantVerdict | None) -> Cell:
    """``▶ worse``, and in the note what qualifies it."""
    if judged is None:
        return Cell.of(None)
    return Cell.of(judged.answer, judged.answer.said, note=", ".join(flags(judged)), tone=TONES.get(judged.answer, ""))


def flags(judged: VariantVerdict) -> list[str]:
    """What stands beside an answer."""
    known = {
        "as counted": judged.as_counted,
        "at a cost": bool(judged.at_a_cost),
        "confirmed": judged.confirmed,
        "budget unknown": judged.budget_unknown,
        "exploratory": judged.label == "exploratory",
    }
    return [flag for flag, there in known.items() if there]


#: What helps, what harms, then what is open: the order of `answer_line`.
_ORDER: Final = (
    Answer.BETTER,
    Answer.MORE_STABLE,
    Answer.WORSE,
    Answer.UNSTABLE,
    Answer.SAME,
    Answer.UNDECIDED,
    Answer.NOT_MEASURED,
)


def answer_line(verdict: Verdict) -> str:
    """``better: muon, rotary. worse: relu2.`` A line for each regime where there are several, begun by its name; what is
    registered comes first.
    """
    registered_first = sorted(verdict.verdicts, key=lambda judged: judged.label != "registered")
    regimes = grouped((judged.regime, judged) for judged in registered_first)
    lines = []
    for regime, here in regimes.items():
        named = grouped((judged.answer, judged.variant) for judged in here)
        text = " ".join(f"{answer}: {', '.join(named[answer])}." for answer in _ORDER if answer in named)
        lines.append(f"{regime} — {text}" if len(regimes) > 1 else text)
    return "\n".join(lines)


def guards_of(judged: VariantVerdict, standing: Standing) -> str:
    """The names of its guards that stand so."""
    return ", ".join(guard.name.replace("_", " ") for guard in judged.guards if guard.standing == standing)


def answer_table(analysis: Analysis, verdict: Verdict, verdicts: Sequence[VariantVerdict] | None = None) -> Table:
    """The difference that decides, its interval, the answer, the guards and what an undecided answer lacks."""
    every = verdict.verdicts if verdicts is None else verdicts
    comparisons = {comparison.id: comparison for comparison in analysis.comparisons}
    primaries = [comparisons.get(judged.comparison or "") for judged in every]
    rows = [_row(analysis, every, judged, primary) for judged, primary in zip(every, primaries, strict=True)]
    return Table.of("answers", f"Every variant against {analysis.baseline}.", rows)


def _row(
    analysis: Analysis, every: Sequence[VariantVerdict], judged: VariantVerdict, primary: Comparison | None
) -> dict[Column, Cell]:
    shown = None if primary is None else difference_of(primary)
    interval = None if primary is None else primary.main_interval
    at = "" if interval is None else level(interval.level)

    def some(standing: Standing) -> bool:
        return any(guard.standing == standing for other in every for guard in other.guards)

    def guards(standing: Standing) -> Column:
        return Column(standing, standing.capitalize(), printed=some(standing), spare="below")

    return {
        Column("variant", "Variant"): Cell.name(judged.variant),
        Column("regime", "Regime", printed=len(analysis.regimes) > 1): Cell.name(judged.regime),
        Column("delta", "Difference", "right"): Cell.of(
            None if primary is None else primary.delta, "" if shown is None else shown.text
        ),
        Column("interval", "Interval", "right", spare="below"): Cell.of(
            at, "" if shown is None or not at or shown.range == DASH else f"{shown.range} ({at})"
        ),
        Column("pairs", "Pairs", "right", spare=True): Cell.of(None if primary is None else primary.n),
        Column("answer", "Answer"): answer_cell(judged),
        Column("advice", "Advice", spare=True): Cell.of(judged.advice),
        guards(Standing.KEPT): Cell.of(guards_of(judged, Standing.KEPT)),
        guards(Standing.OPEN): Cell.of(guards_of(judged, Standing.OPEN)),
        guards(Standing.BROKEN): Cell.of(guards_of(judged, Standing.BROKEN)),
        Column("lacks", "Lacks", printed=any(other.lacks for other in every), spare="below"): Cell.of(
            ", ".join(judged.lacks)
        ),
        Column("without", "Another answer without seed", printed=any(o.without for o in every), spare="below"): Cell.of(
            _without(judged)
        ),
    }


def _without(judged: VariantVerdict) -> str:
    """The seeds without which the answer is another; many are counted."""
    if len(judged.without) > MOST_SEEDS:
        return part(len(judged.without), judged.left_out)
    return ", ".join(f"{other.seed}: {other.answer}" for other in judged.without)


def hypothesis_table(verdict: Verdict) -> Table:
    """The hypotheses of the study file, judged by the same answers."""
    return Table.of(
        "hypotheses",
        "Hypotheses.",
        [
            {
                Column("hypothesis", "Hypothesis"): Cell.name(name),
                Column("statement", "Statement"): Cell.of(known.statement),
                Column("metric", "Metric", spare=True): Cell.of(known.metric),
                Column("status", "Status"): Cell.of(known.status),
                Column("answers", "Answers", spare="below"): Cell.of(
                    "; ".join(f"{place}: {answer}" for place, answer in known.answers.items())
                ),
            }
            for name, known in verdict.hypotheses.items()
        ],
    )
