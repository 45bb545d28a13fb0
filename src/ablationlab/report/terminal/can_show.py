"""What a study can show, and the seeds that its effects need, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isinf
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from ablationlab.analysis.study_power import POWER, PlannedPower, StudyPower
from ablationlab.core.format import DASH, count, duration, fixed, number, percent, plain, setting
from ablationlab.core.grouping import grouped
from ablationlab.records.metrics import metric_name
from ablationlab.records.settings import Study
from ablationlab.report.slots import Slot, Statement
from ablationlab.report.table import Cell, Cells, Column, Table

HOUR = 3600.0
TOO_MANY: Final = ">1,000,000"
#: The effect for which a plan says how many seeds its looks take on average.
SDS: Final = 2.0


def shown_view(power: StudyPower, seed_seconds: float | None = None) -> Iterator[RenderableType]:
    """What the planned seeds show; what one more hour buys, where it is known how many seconds one more seed takes."""
    if power.rows:
        yield shown_table(power).terminal()
    for statement in power_clauses(power, seed_seconds):
        yield Text(plain(statement.text))


def power_clauses(power: StudyPower, seed_seconds: float | None = None) -> Iterator[Statement]:
    """What stands beside the table."""
    if any(row.sd is None for row in power.rows):
        yield Statement("power.sd")
    if power.rows and power.failures is not None and len(power.study.seeds) < power.failures:
        yield Statement("power.failures", {"seeds": Slot(count(power.failures))})
    row = next((row for row in power.rows if row.comparison.criterion.role == "primary"), next(iter(power.rows), None))
    if seed_seconds and row is not None and row.detectable is not None:
        seeds = max(1, int(HOUR / seed_seconds))
        slots = {"sees": Slot(sees(row, row.pairs + seeds)), "metric": Slot(metric_name(row.comparison.metric.name))}
        if seed_seconds > HOUR:
            yield Statement("power.seed", {**slots, "time": Slot(duration(seed_seconds))})
        else:
            yield Statement("power.hour", {**slots, "seeds": Slot(count(seeds))})


def notes_of(power: StudyPower) -> Iterator[Statement]:
    """What to mind of the seeds needed."""
    for note in power.notes:
        yield Statement(f"power.{note.code}", {name: Slot(text) for name, text in note.told.items()})


def shown_table(power: StudyPower) -> Table:
    """The difference that the planned seeds see, once for all comparisons that have it in common; with an SD, the seeds that
    the smallest effect needs."""
    kinds = grouped((_kind(row), row) for row in power.rows)
    looks, spread = power.study.design is not None, any(row.sd is not None for row in power.rows)
    apart = len({kind[:3] for kind in kinds}) < len(kinds)
    planned = next(iter(counts)) if len(counts := {row.pairs for row in power.rows}) == 1 else None
    rows: list[Cells] = [
        {
            Column("metric", "metric"): Cell.name(row.comparison.metric.name),
            Column("variant", "variant", printed=apart): Cell.name(_variants(members)),
            Column("regime", "regime", printed=_regimes(power)): Cell.name(row.comparison.regime),
            Column("role", "role"): row.comparison.criterion.role,
            Column("size", "size", "right"): Cell.of(row.effect, setting),
            Column("seeds", "seeds", "right", printed=looks or planned is None): pairs,
            Column("level", "level", "right", spare=spread): Cell.of(row.level(pairs), lambda alpha: number(alpha, 2)),
            Column("arms", "arms of one variance", "right", printed=any(row.arms > 1 for row in power.rows)): row.arms,
            Column("sd", "SD", "right", printed=spread): Cell.of(row.sd, number),
            Column("from", "SD from", printed=len({row.sd_from for row in power.rows}) > 1): row.sd_from,
            Column("doubt", "doubt", "right", printed=_doubted(power)): _doubt(row),
            Column("sees", "sees", "right"): Cell.of(row.seen_by(pairs), sees(row, pairs)),
            Column("none", "mean seeds", "right", printed=looks): _expected(row, pairs, 0.0),
            Column("some", f"at {SDS:g} SD", "right", printed=looks): _expected(row, pairs, SDS),
            Column("limit", "limited by", printed=not looks and (not spread or _doubted(power))): row.limit,
            Column("needs", "needs", "right", printed=any(row.seeds for row in power.rows)): _needed(row, row.seeds),
            Column("same", "for same", "right", printed=any(row.same for row in power.rows)): _same(row),
            Column("items", "items", "right", printed=any(row.items is not None for row in power.rows)): Cell.of(
                row.items, count
            ),
        }
        for members in kinds.values()
        for row in members[:1]
        for pairs in _looked_at(row)
    ]
    what = "What it can show" if looks or planned is None else f"What {count(planned)} seeds can show"
    return Table.of("shown", f"{what}, with {percent(POWER)} power", rows)


def _variants(rows: Sequence[PlannedPower]) -> str:
    names = list(dict.fromkeys(row.comparison.variant for row in rows))
    return names[0] if len(names) == 1 else count(len(names))


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
    return len({row.comparison.regime for row in power.rows}) > 1


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


def _needed(row: PlannedPower, seeds: int | None) -> Cell:
    """Seeds; or that no affordable number is enough."""
    return Cell.of(seeds, DASH if seeds is None and row.sure is None else TOO_MANY if seeds is None else count(seeds))


def _same(row: PlannedPower) -> Cell:
    """A guard is kept or broken, never *same*."""
    return Cell.of(None) if row.comparison.role == "guard" else _needed(row, row.same)
