"""How sure the answers are: a chip per question, and the table that it opens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ablationlab.core.format import DASH, count
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import Analysis
from ablationlab.records.metrics import metric_name
from ablationlab.records.results import Results
from ablationlab.records.verdict import Answer, Standing
from ablationlab.report.effects import Effect
from ablationlab.report.slots import Slot, Statement, tally
from ablationlab.report.table import Cell, Column, Table, Value
from ablationlab.report.tables.effects import effects_table, guard_table

#: The worst first.
_STANDINGS: Final = (Standing.BROKEN, Standing.OPEN, Standing.KEPT)


@dataclass(frozen=True)
class Chip:
    """*said*: what it answers, each with the standing of a guard where it has one; *detail*: a clause below; *table*: what it
    opens."""

    name: str
    said: tuple[tuple[Standing | None, Statement], ...]
    detail: Statement | None = None
    table: Table | None = None

    def statements(self) -> Iterator[Statement]:
        yield from (statement for _, statement in self.said)
        if self.detail is not None:
            yield self.detail


def chips_of(results: Results | None, analysis: Analysis, answers: Sequence[Effect]) -> Iterator[Chip]:
    """Guards, single seeds, lost runs, what limits the undecided, the registered test."""
    if answers:
        yield from _guards(analysis, answers)
        yield from _seeds(answers)
    yield from _runs(results, analysis)
    if answers:
        yield from _limits(answers)
        yield from _test(analysis, answers)


def _guards(analysis: Analysis, answers: Sequence[Effect]) -> Iterator[Chip]:
    titles = {metric.replace("_", " "): metric_name(metric) for metric in analysis.metrics}
    for name in dict.fromkeys(guard.name for row in answers for guard in row.guards):
        rows = [(row, guard) for row in answers for guard in row.guards if guard.name == name]
        counts = [(standing, [guard for _, guard in rows if guard.standing == standing]) for standing in _STANDINGS]
        found = [(standing, guards) for standing, guards in counts if guards]
        if len(found) == 1:
            said: tuple[tuple[Standing, Statement], ...] = ((found[0][0], Statement(f"chips.{found[0][0]}")),)
        else:
            said = tuple((standing, Statement(f"chips.{standing}-of", {"n": tally(len(g))})) for standing, g in found)
        waits = [guard.seeds for standing, guards in found if standing == Standing.OPEN for guard in guards]
        detail = None
        if waits and all(slot.at for slot in waits):
            needs = max(waits, key=lambda slot: float(slot.value or 0))
            detail = Statement("chips.needs", {"seeds": needs, "have": tally(len(analysis.seeds))})
        title = titles.get(name, name)
        yield Chip(title, said, detail, guard_table([replace(row, guards=(guard,)) for row, guard in rows]))


def _seeds(answers: Sequence[Effect]) -> Iterator[Chip]:
    asked = [row for row in answers if row.left_out]
    if not asked:
        return
    hanging = [row for row in asked if row.without]
    said = (
        Statement("chips.no")
        if not hanging
        else Statement("chips.of", {"n": tally(len(hanging)), "of": tally(len(asked))})
    )
    several = len({row.regime for row in answers}) > 1
    rows: list[dict[Column, Cell | Value]] = [
        {
            Column("variant", "Variant"): Cell.name(row.variant),
            Column("regime", "Regime", printed=several): Cell.name(row.regime),
            Column("answer", "Answer"): row.word.text,
            Column("seed", "Without seed", "right"): seed.text if seed is not None else DASH,
            Column("other", "Answer then"): other.text if other is not None else "the same",
        }
        for row in asked
        for seed, other in (row.without or ((None, None),))
    ]
    yield Chip("one seed decides", ((None, said),), None, Table.of("without", "Without one seed", rows))


def _runs(results: Results | None, analysis: Analysis) -> Iterator[Chip]:
    runs = () if results is None else tuple(results.compared)
    if not runs:
        return
    lost = [run for run in runs if run.state in ("diverged", "failed", "damaged")]
    said = Statement("chips.none") if not lost else Statement("chips.number", {"n": tally(len(lost))})
    detail = Statement("sure.ended", {"ended": tally(sum(run.done for run in runs)), "planned": tally(len(runs))})
    arms = grouped(((run.variant, run.regime), run) for run in runs)
    several = len(analysis.regimes) > 1
    rows: list[dict[Column, Cell | Value]] = [
        {
            Column("variant", "Variant"): Cell.name(variant),
            Column("regime", "Regime", printed=several): Cell.name(regime),
            Column("planned", "Planned", "right"): len(members),
            Column("ended", "Ended", "right"): sum(run.done for run in members),
            Column("diverged", "Diverged", "right"): sum(run.state == "diverged" for run in members),
        }
        for (variant, regime), members in arms.items()
    ]
    yield Chip("lost runs", ((None, said),), detail, Table.of("arms", "Runs", rows))


def _limits(answers: Sequence[Effect]) -> Iterator[Chip]:
    undecided = [row for row in answers if row.answer == Answer.UNDECIDED]
    waits = grouped((lack, row) for row in undecided for lack in row.lacks)
    if not undecided:
        said = Statement("chips.nothing")
    elif not waits:
        said = Statement("chips.of", {"n": tally(len(undecided)), "of": tally(len(answers))})
    else:
        said = Statement(f"chips.limit-{max(waits, key=lambda lack: len(waits[lack])).replace(' ', '-')}")
    detail = (
        Statement("chips.undecided", {"n": tally(len(undecided)), "of": tally(len(answers))}) if undecided else None
    )
    several = len({row.regime for row in answers}) > 1
    rows: list[dict[Column, Cell | Value]] = [
        {
            Column("variant", "Variant"): Cell.name(row.variant),
            Column("regime", "Regime", printed=several): Cell.name(row.regime),
            Column("answer", "Answer"): row.word.text,
            Column("lacks", "Lacks"): ", ".join(row.lacks),
            Column("seeds", "Seeds to decide", "right"): row.seeds.text if row.seeds.at else "",
            Column("n", "n", "right"): row.n.text,
        }
        for row in answers
    ]
    yield Chip("limited by", ((None, said),), detail, Table.of("limits", "What limits each answer", rows))


def _test(analysis: Analysis, answers: Sequence[Effect]) -> Iterator[Chip]:
    known = {comparison.id: (place, comparison) for place, comparison in enumerate(analysis.comparisons)}
    asked = [known[row.id] for row in answers if row.id in known]
    if not asked:
        return
    place, first = asked[0]
    at = f"analysis.json#/comparisons/{place}"
    slots = {
        "test": Slot(first.test.replace("-", " "), f"{at}/test", first.test),
        "n": Slot(count(first.family_size), f"{at}/family_size", first.family_size),
        "correction": Slot(first.correction.replace("-", " "), f"{at}/correction", first.correction),
    }
    detail = Statement("chips.family" if first.family_size > 1 else "chips.alone", slots)
    yield Chip(
        "registered test" if answers[0].label == "registered" else "test",
        ((None, Statement("chips.test", slots)),),
        detail,
        effects_table(answers, "Tests").without("advice"),
    )
