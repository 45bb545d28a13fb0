"""What a study can show, and the seeds that its effects need, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from math import isinf
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from ablationlab.analysis.study_power import POWER, PlannedPower, StudyPower
from ablationlab.core.format import DASH, count, duration, fixed, number, percent, plain, setting, several
from ablationlab.core.grouping import grouped
from ablationlab.records.settings import DEFAULT_REGIME, Study
from ablationlab.report.table import Cell, Cells, Column, Table

HOUR = 3600.0
#: The effect for which a plan says how many seeds its looks take on average.
SDS: Final = 2.0


def shown_view(power: StudyPower, seed_seconds: float | None) -> Iterator[RenderableType]:
    """What the planned seeds show, and what one more hour buys where it is known how many seconds one more seed takes."""
    if not power.rows:
        return
    yield shown_table(power).terminal()
    yield from map(Text, _beside(power))
    row = next((row for row in power.rows if row.comparison.criterion.role == "primary"), power.rows[0])
    if seed_seconds and row.detectable is not None:
        seeds = max(1, int(HOUR / seed_seconds))
        first = f"One more hour buys about {several(seeds, 'seed')}"
        if seed_seconds > HOUR:
            first = f"One more seed takes {duration(seed_seconds)}"
        yield Text(plain(f"{first}: then it sees {sees(row, row.pairs + seeds)} of {row.comparison.metric.name}."))


def shown_table(power: StudyPower) -> Table:
    """The difference that the planned seeds see, once for all comparisons that have it in common."""
    kinds = grouped((_kind(row), row) for row in power.rows)
    looks = power.study.design is not None
    rows: list[Cells] = [
        {
            Column("metric", "metric"): Cell.name(row.comparison.metric.name),
            Column("regime", "regime", printed=_regimes(power)): Cell.name(row.comparison.regime),
            Column("role", "role"): row.comparison.criterion.role,
            Column("size", "size", "right"): Cell.of(row.effect, setting),
            Column("seeds", "seeds", "right"): pairs,
            Column("level", "level", "right"): Cell.of(row.level(pairs), lambda alpha: number(alpha, 2)),
            Column("arms", "arms of one variance", "right", printed=any(row.arms > 1 for row in power.rows)): row.arms,
            Column("doubt", "doubt", "right", printed=_doubted(power)): _doubt(row),
            Column("sees", "sees", "right"): Cell.of(row.seen_by(pairs), sees(row, pairs)),
            Column("none", "mean seeds", "right", printed=looks): _expected(row, pairs, 0.0),
            Column("some", f"at {SDS:g} SD", "right", printed=looks): _expected(row, pairs, SDS),
            Column("limit", "limited by", printed=not looks): row.limit,
        }
        for members in kinds.values()
        for row in members[:1]
        for pairs in _looked_at(row)
    ]
    return Table.of("shown", f"What it can show, with {percent(POWER)} power", rows)


def _looked_at(row: PlannedPower) -> tuple[int, ...]:
    """The seeds of every look of a primary comparison, else the planned ones."""
    return row.looks.pairs if row.looks is not None and row.comparison.criterion.role == "primary" else (row.pairs,)


def _expected(row: PlannedPower, pairs: int, effect: float) -> Cell:
    if row.looks is None or len(_looked_at(row)) == 1:
        return Cell.of(None)
    return Cell.of(row.expected(effect)[row.looks.pairs.index(pairs)], lambda seeds: fixed(seeds, 1))


def stages_table(study: Study) -> Table:
    """What a sweep of two stages trains before the plan is sealed, and after it."""
    sweep = study.sweep
    assert sweep is not None
    assert sweep.finer is not None
    trained = [f"{len(sweep.lr)} rates", f"{sweep.finer.rates} rates"]
    if (second := sweep.second) is not None:
        named = f"{len(sweep.lr)} rates x {len(second.values)} {second.setting}"
        trained = [
            named if second.trials is None else f"{second.trials} points at random",
            f"3 rates x 3 {second.setting}",
        ]
    seeds = [len(sweep.selection_seeds), len(sweep.finer.seeds), len(study.judging_seeds())]
    runs = [*sweep.stage_runs(), len(study.judging_seeds())]
    rows: list[Cells] = [
        {
            Column("stage", "stage"): stage,
            Column("trained", "each arm at"): at,
            Column("seeds", "seeds", "right"): n,
            Column("arm", "runs of an arm", "right"): each,
            Column("runs", "runs", "right"): Cell.of(len(study.variants) * each, count),
        }
        for stage, at, n, each in zip(("1", "2", "judged"), (*trained, "its best"), seeds, runs, strict=True)
    ]
    return Table.of("stages", "What the sweep trains", rows)


def _kind(row: PlannedPower) -> tuple[object, ...]:
    planned = row.comparison
    where = (planned.metric.name, planned.regime, planned.criterion.role)
    return (*where, row.effect, row.pairs, row.alpha, row.arms, row.sd, row.doubt, row.doubt_in_sds)


def _regimes(power: StudyPower) -> bool:
    return {row.comparison.regime for row in power.rows} != {DEFAULT_REGIME}


def _doubted(power: StudyPower) -> bool:
    return any(row.doubt or row.doubt_in_sds for row in power.rows)


def _doubt(row: PlannedPower) -> Cell:
    """In the metric's unit where it is known there, else in SDs of the difference."""
    doubt = row.doubt or row.doubt_in_sds
    shown = "no fit" if isinf(doubt) else number(doubt) if row.doubt else f"{fixed(doubt, 2)} SD"
    return Cell.of(doubt or None, shown)


def sees(row: PlannedPower, pairs: int) -> str:
    """In the metric's unit where an SD is known, else in SDs of the difference."""
    seen = row.seen_by(pairs)
    if seen is None or isinf(row.doubt + row.doubt_in_sds):
        return DASH
    if row.sd is not None:
        return number(seen * row.sd + row.doubt)
    return f"{fixed(seen + row.doubt_in_sds, 2)} SD{f' + {number(row.doubt)}' if row.doubt else ''}"


def _beside(power: StudyPower) -> Iterator[str]:
    if any(row.sd is None for row in power.rows):
        yield "SD: of the difference between two arms of one seed."
    if power.failures is not None and len(power.study.seeds) < power.failures:
        yield f"The guard of failures stays open below {several(power.failures, 'seed')}."


def power_table(power: StudyPower) -> Table:
    """Every registered comparison: the seeds that its smallest effect needs, and what the planned ones see."""
    rows: list[Cells] = [
        {
            Column("comparison", "comparison"): Cell.name(row.comparison.id),
            Column("effect", "effect", "right"): Cell.of(row.effect, setting),
            Column("alpha", "level", "right"): Cell.of(row.alpha, lambda alpha: number(alpha, 2)),
            Column("sd", "SD", "right"): Cell.of(row.sd, number),
            Column("from", "from"): row.sd_from,
            Column("doubt", "doubt", "right", printed=_doubted(power)): _doubt(row),
            Column("seeds", "seeds", "right"): Cell.of(row.seeds, _seeds(row, row.seeds)),
            Column("same", "to show same", "right"): Cell.of(row.same, _seeds(row, row.same))
            if row.comparison.role != "guard"
            else Cell.of(None),
            Column("sees", f"{len(power.study.seeds)} see", "right"): Cell.of(
                row.seen or row.detectable, sees(row, row.pairs)
            ),
            Column("limit", "limited by"): row.limit,
            Column("items", "items", "right", printed=any(row.items is not None for row in power.rows)): Cell.of(
                row.items, count
            ),
        }
        for row in power.rows
    ]
    return Table.of(
        "power", f"Seeds for {percent(POWER)} power ({power.study.name}: {len(power.study.seeds)} planned)", rows
    )


def _seeds(row: PlannedPower, seeds: int | None) -> str:
    """None where nothing is known; or where no affordable number is enough."""
    return count(seeds) if seeds is not None or row.sure is None else ">1,000,000"


def power_view(power: StudyPower) -> Iterator[RenderableType]:
    """Seeds for the registered effects; without an SD, what the planned ones see of it."""
    if any(row.sd is not None or row.items is not None for row in power.rows):
        yield power_table(power).terminal()
        yield from map(Text, _beside(power))
    else:
        yield from shown_view(power, None)
    for note in power.notes:
        yield Text(f"- {note}")
