"""The answers: one row per variant and regime, and one per hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ablationlab.core.format import count, part
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import Analysis
from ablationlab.records.verdict import Standing, VariantVerdict, Verdict
from ablationlab.report.effects import Effect, answer_flags, answers_of
from ablationlab.report.slots import NOTHING
from ablationlab.report.study_report import ORDER
from ablationlab.report.table import Cell, Column, Table
from ablationlab.report.tables.effects import TONES

#: More seeds than this are counted.
MOST_SEEDS: Final = 3


def answer_line(verdict: Verdict, *, bare: bool = False) -> str:
    """``better: muon, rotary. worse: relu2.`` A line for each regime where there are several, begun by its name; what is
    registered comes first. *bare*: without what stands beside an answer, such as *exploratory*.
    """
    registered_first = sorted(verdict.verdicts, key=lambda judged: judged.label != "registered")
    regimes = grouped((judged.regime, judged) for judged in registered_first)
    lines = []
    for regime, here in regimes.items():
        named = grouped(
            ((ORDER.index(judged.answer), str(judged.answer) if bare else _qualified(judged)), judged.variant)
            for judged in here
        )
        text = " ".join(f"{said}: {', '.join(names)}." for (_, said), names in sorted(named.items()))
        lines.append(f"{regime} — {text}" if len(regimes) > 1 else text)
    return "\n".join(lines)


def _qualified(judged: VariantVerdict) -> str:
    """``better (exploratory)``"""
    beside = ", ".join(answer_flags(judged))
    return f"{judged.answer} ({beside})" if beside else judged.answer


def answer_table(analysis: Analysis, verdict: Verdict, verdicts: Sequence[VariantVerdict] | None = None) -> Table:
    """The difference that decides, its interval, the answer, the guards and what an undecided answer lacks."""
    rows = answers_of(analysis, verdict, verdicts)
    return Table.of(
        "answers", f"Every variant against {analysis.baseline}.", [_row(row, rows, analysis) for row in rows]
    )


def _row(row: Effect, every: Sequence[Effect], analysis: Analysis) -> dict[Column, Cell]:
    assert row.answer is not None

    def guards(standing: Standing) -> tuple[Column, Cell]:
        there = any(guard.standing == standing for other in every for guard in other.guards)
        names = [guard for guard in row.guards if guard.standing == standing]
        text = ", ".join(f"{guard.name} ({guard.seeds})" if guard.seeds.at else guard.name for guard in names)
        column = Column(standing, standing.capitalize(), printed=there, spare="below")
        return column, Cell.of(", ".join(guard.name for guard in names), text)

    unit = f" {row.unit}" if row.unit == "%" and row.estimate is not NOTHING else ""
    interval = "" if not row.low.at and not row.high.at else f"{row.interval} ({row.level})"
    return {
        Column("variant", "Variant"): Cell.name(row.variant),
        Column("regime", "Regime", printed=len(analysis.regimes) > 1): Cell.name(row.regime),
        Column("delta", "Difference", "right"): Cell.of(
            row.estimate.value, f"{row.estimate}{unit}" if row.estimate.at else ""
        ),
        Column("low", "Low", "right", printed=False): Cell.of(row.low.value),
        Column("high", "High", "right", printed=False): Cell.of(row.high.value),
        Column("level", "Level", printed=False): Cell.of(row.level.text if row.level.at else ""),
        Column("interval", "Interval", "right", spare="below"): Cell.of(None, interval),
        Column("pairs", "Pairs", "right", spare=True): Cell.of(row.n.value),
        Column("answer", "Answer"): Cell.of(
            row.answer, row.answer.said, note=", ".join(row.flags), tone=TONES.get(row.answer, "")
        ),
        Column("flags", "Flags", printed=False): Cell.of(", ".join(row.flags)),
        Column("advice", "Advice", spare=True): Cell.of(row.advice.value, row.advice.text),
        Column("far-out", "Far-out seeds", printed=any(o.far_out for o in every), spare="below"): Cell.of(
            _few([slot.text for slot in row.far_out])
        ),
        **dict(guards(standing) for standing in Standing),
        Column("lacks", "Lacks", printed=any(o.lacks for o in every), spare="below"): Cell.of(", ".join(row.lacks)),
        Column("seeds", "Seeds to decide", "right", printed=any(o.seeds.at for o in every), spare="below"): Cell.of(
            row.seeds.value, row.seeds.text if row.seeds.at else ""
        ),
        Column("without", "Another answer without seed", printed=any(o.without for o in every), spare="below"): Cell.of(
            _without(row)
        ),
    }


def _few(seeds: Sequence[str]) -> str:
    return ", ".join(seeds) if len(seeds) <= MOST_SEEDS else count(len(seeds))


def _without(row: Effect) -> str:
    """The seeds without which the answer is another; many are counted."""
    if len(row.without) > MOST_SEEDS:
        return part(len(row.without), row.left_out)
    return ", ".join(f"{seed}: {answer}" for seed, answer in row.without)


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
