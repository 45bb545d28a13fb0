"""A power plan, for the terminal: a table and curves in text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.text import Text

from ablationlab.analysis.power import PlannedPower, StudyPower
from ablationlab.report.terminal.base import table

_WIDTH = 40


def power_view(found: StudyPower) -> Iterator[RenderableType]:
    """Seeds for 80 and 90 %, what the planned seeds see, curves, notes."""
    planned = len(found.study.seeds)
    columns = ["comparison", "effect", "alpha", "SD of deltas", "from", "seeds 80 %", "seeds 90 %"]
    columns += ["conservative", "equivalence", f"power at {planned}", f"seen at {planned}"]
    items = any(row.items is not None for row in found.rows)
    rows = [_row(row, planned, items) for row in found.rows]
    if rows:
        every = columns + (["items 80 %"] if items else [])
        yield table(f"Seeds needed ({found.study.name}: {planned} planned)", every, rows, [*every[1:4], *every[5:]])
        yield Text(
            "Seeds for a two-sided paired t-test to see the smallest effect with 80 or 90 % power; alpha is the registered "
            "one divided by the family's size, which Holm asks of its smallest p. Conservative: for 80 %, at the upper "
            "bound of the pilot's SD. Equivalence: to show, with 80 % power, that none is as large as the effect. "
            f"Seen at {planned}: what the planned seeds see with 80 % power."
        )
    if found.detectable is not None:
        yield Text(
            f"\nIn SDs of the deltas, {planned} pairs detect {found.detectable[0.8]:.2f} with 80 % and "
            f"{found.detectable[0.9]:.2f} with 90 % power (alpha 0.05, one test)."
        )
    for row in _worth_a_curve(found.rows):
        yield _curve(row, planned)
    if found.notes:
        yield Text("\nMind\n" + "\n".join(f"  {note}" for note in found.notes))


def _worth_a_curve(rows: Iterable[PlannedPower]) -> list[PlannedPower]:
    """For each primary metric and regime, or without any for each metric, the comparison with the largest spread."""
    drawn = [row for row in rows if row.curve]
    drawn = [row for row in drawn if row.comparison.criterion.role == "primary"] or drawn
    widest: dict[tuple[str, str], PlannedPower] = {}
    for row in sorted(drawn, key=lambda row: row.sd or 0.0):
        widest[row.comparison.metric.name, row.comparison.regime] = row
    return list(widest.values())


def _row(row: PlannedPower, planned: int, items: bool) -> list[str]:
    plan = row.plan
    cells = [row.comparison.id, _number(row.effect), f"{row.alpha:.3g}", _number(row.sd), row.sd_from]
    if plan is None:
        cells += ["-"] * 6
    else:
        careful = plan.needed_conservative
        seen = plan.planned_detectable
        cells += [_seeds(plan.needed[0.8]), _seeds(plan.needed[0.9])]
        cells += [_seeds(careful[0.8]) if careful else "-", _seeds(row.equivalence[0.8])]
        cells += [f"{plan.planned_power:.0%}" if plan.planned_power is not None else "-"]
        cells += [_number(seen[0.8] if seen else None)]
    return cells + ([f"{row.items:,}" if row.items is not None else "-"] if items else [])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _seeds(count: int | None) -> str:
    return ">1,000,000" if count is None else f"{count:,}"


def _curve(row: PlannedPower, planned: int) -> Text:
    lines = [f"\nPower to see {row.effect:g} on {row.comparison.id} (SD {row.sd:.3g})"]
    for n, power in row.curve:
        bar = "█" * round(_WIDTH * power)
        here = "  <- planned" if n == planned else ""
        lines.append(f"  {n:>4} seeds  {bar:<{_WIDTH}} {power:4.0%}{here}")
    return Text("\n".join(lines))
