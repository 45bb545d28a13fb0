"""The answers: one row per variant and regime, and one per hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ablationlab.analysis.wording import difference_of
from ablationlab.core.format import DASH, count, level, part
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import Analysis, Comparison, Seed
from ablationlab.records.verdict import FAILURES, Answer, Guard, Standing, VariantVerdict, Verdict
from ablationlab.report.table import Cell, Column, Table, Tone

TONES: Final[dict[Answer, Tone]] = {
    Answer.BETTER: "good",
    Answer.MORE_STABLE: "good",
    Answer.WORSE: "bad",
    Answer.UNSTABLE: "bad",
}


#: More seeds than this are counted.
MOST_SEEDS = 3
#: Beyond ten times the seeds at hand.
TOO_CLOSE: Final = "too close"


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
        "A/A": judged.again,
        "unequal seeds": judged.unequal_seeds,
        "budget unknown": judged.budget_unknown,
        f"reused ({count(judged.reused)})": bool(judged.reused),
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


def answer_line(verdict: Verdict, *, bare: bool = False) -> str:
    """``better: muon, rotary. worse: relu2.`` A line for each regime where there are several, begun by its name; what is
    registered comes first. *bare*: without what stands beside an answer, such as *exploratory*.
    """
    registered_first = sorted(verdict.verdicts, key=lambda judged: judged.label != "registered")
    regimes = grouped((judged.regime, judged) for judged in registered_first)
    lines = []
    for regime, here in regimes.items():
        named = grouped(
            ((_ORDER.index(judged.answer), str(judged.answer) if bare else _qualified(judged)), judged.variant)
            for judged in here
        )
        text = " ".join(f"{said}: {', '.join(names)}." for (_, said), names in sorted(named.items()))
        lines.append(f"{regime} — {text}" if len(regimes) > 1 else text)
    return "\n".join(lines)


def _qualified(judged: VariantVerdict) -> str:
    """``better (exploratory)``"""
    beside = ", ".join(flags(judged))
    return f"{judged.answer} ({beside})" if beside else judged.answer


def guards_of(judged: VariantVerdict, standing: Standing, analysis: Analysis | None = None) -> str:
    """The names of its guards that stand so; with the *analysis*, open ones with the seeds that would close them."""
    names = []
    for guard in judged.guards:
        if guard.standing == standing:
            seeds = None if analysis is None or standing != Standing.OPEN else closed_by(guard, analysis)
            name = guard.name.replace("_", " ")
            names.append(name if seeds is None else f"{name} ({count(seeds)})")
    return ", ".join(names)


def closed_by(guard: Guard, analysis: Analysis) -> int | None:
    """Seeds that would show its margin kept: with 80 % power if the effect is as large as seen, or without a failure."""
    if guard.name != FAILURES:
        found = next((c for c in analysis.comparisons if c.id == guard.comparison), None)
        return None if found is None or found.cost is None else found.cost.kept_by
    stability = analysis.stability
    if stability is None or stability.seeds_for_margin is None:
        return None
    gain = next((gain for gain in (*stability.parts, *stability.gains) if gain.id == guard.comparison), None)
    calm = gain is not None and gain.rescued is not None and not gain.variant_unstable
    return stability.seeds_for_margin if gain is not None and calm and gain.n < stability.seeds_for_margin else None


def seeds_cell(analysis: Analysis, judged: VariantVerdict) -> Cell:
    """Of an undecided answer, the seeds that would decide it with 80 % power."""
    power = next((power for power in analysis.power if power.comparison == judged.comparison), None)
    if not judged.waits or power is None:
        return Cell.of(None, "")
    return Cell.of(power.decided_by, count if power.decided_by is not None else TOO_CLOSE)


def answer_table(analysis: Analysis, verdict: Verdict, verdicts: Sequence[VariantVerdict] | None = None) -> Table:
    """The difference that decides, its interval, the answer, the guards and what an undecided answer lacks."""
    every = verdict.verdicts if verdicts is None else verdicts
    comparisons = {comparison.id: comparison for comparison in analysis.comparisons}
    primaries = [comparisons.get(judged.comparison or "") for judged in every]
    rows = [_row(analysis, every, primaries, judged, primary) for judged, primary in zip(every, primaries, strict=True)]
    return Table.of("answers", f"Every variant against {analysis.baseline}.", rows)


def _row(
    analysis: Analysis,
    every: Sequence[VariantVerdict],
    primaries: Sequence[Comparison | None],
    judged: VariantVerdict,
    primary: Comparison | None,
) -> dict[Column, Cell]:
    shown = None if primary is None else difference_of(primary)
    interval = None if primary is None else primary.main_interval
    at = "" if interval is None else level(interval.level)
    told = primary is not None and not primary.told_by_medians
    known = (primary.estimate, *((interval.low, interval.high) if interval else ())) if primary and told else ()
    known = (*known, None, None, None)[:3]

    def some(standing: Standing) -> bool:
        return any(guard.standing == standing for other in every for guard in other.guards)

    def guards(standing: Standing) -> Column:
        return Column(standing, standing.capitalize(), printed=some(standing), spare="below")

    return {
        Column("variant", "Variant"): Cell.name(judged.variant),
        Column("regime", "Regime", printed=len(analysis.regimes) > 1): Cell.name(judged.regime),
        Column("delta", "Difference", "right"): Cell.of(known[0], "" if shown is None else shown.text),
        Column("low", "Low", "right", printed=False): Cell.of(known[1]),
        Column("high", "High", "right", printed=False): Cell.of(known[2]),
        Column("level", "Level", printed=False): Cell.of(at),
        Column("interval", "Interval", "right", spare="below"): Cell.of(
            None, "" if shown is None or not at or shown.range == DASH else f"{shown.range} ({at})"
        ),
        Column("pairs", "Pairs", "right", spare=True): Cell.of(None if primary is None else primary.n),
        Column("answer", "Answer"): answer_cell(judged),
        Column("flags", "Flags", printed=False): Cell.of(", ".join(flags(judged))),
        Column("advice", "Advice", spare=True): Cell.of(judged.advice, _advised(judged)),
        Column("far-out", "Far-out seeds", printed=any(map(_far_out, primaries)), spare="below"): Cell.of(
            _few(() if primary is None else _far_out(primary))
        ),
        guards(Standing.KEPT): Cell.of(guards_of(judged, Standing.KEPT)),
        guards(Standing.OPEN): Cell.of(guards_of(judged, Standing.OPEN), guards_of(judged, Standing.OPEN, analysis)),
        guards(Standing.BROKEN): Cell.of(guards_of(judged, Standing.BROKEN)),
        Column("lacks", "Lacks", printed=any(other.lacks for other in every), spare="below"): Cell.of(
            ", ".join(judged.lacks)
        ),
        Column(
            "seeds", "Seeds to decide", "right", printed=any(other.waits for other in every), spare="below"
        ): seeds_cell(analysis, judged),
        Column("without", "Another answer without seed", printed=any(o.without for o in every), spare="below"): Cell.of(
            _without(judged)
        ),
    }


def _advised(judged: VariantVerdict) -> str:
    """The advice, with the arm that a tie-breaker favours."""
    favoured = judged.tie_break.favours if judged.tie_break is not None else None
    return judged.advice if favoured is None else f"{judged.advice}: {favoured}"


def _far_out(primary: Comparison | None) -> tuple[Seed, ...]:
    """Seeds of finite runs that count as lost."""
    return () if primary is None or primary.cost is None else primary.cost.far_out


def _few(seeds: Sequence[Seed]) -> str:
    return ", ".join(map(str, seeds)) if len(seeds) <= MOST_SEEDS else count(len(seeds))


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
