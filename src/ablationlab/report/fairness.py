"""Fair, as rows: each condition, what it is for the baseline, how it was checked, and what was found per variant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ablationlab.core.format import amount, count, percent, setting
from ablationlab.records.analysis import Analysis
from ablationlab.records.fairness import FairArm, FairCondition, FairName, FairState
from ablationlab.report.slots import NOTHING, Slot, Statement, escaped


@dataclass(frozen=True)
class FairRow:
    """One condition. *cells*: by variant its state, and the difference where it has one."""

    name: str
    how: Statement
    value: Slot = NOTHING
    cells: Mapping[str, tuple[FairState, Slot]] = field(default_factory=dict)

    def slots(self) -> Iterator[Slot]:
        yield from (slot for slot in (self.value, *(cell for _, cell in self.cells.values())) if slot.at)


def fair_rows(analysis: Analysis) -> tuple[FairRow, ...]:
    return tuple(
        FairRow(
            name=condition.name.value,
            how=Statement(f"how.{condition.how}"),
            value=_value(condition, f"analysis.json#/fair/{place}/value"),
            cells={
                variant: (arm.state, _cell(condition.name, arm, f"analysis.json#/fair/{place}/arms/{escaped(variant)}"))
                for variant, arm in condition.arms.items()
            },
        )
        for place, condition in enumerate(analysis.fair)
    )


def _value(condition: FairCondition, at: str) -> Slot:
    value = condition.value
    if value is None:
        return NOTHING
    if condition.name == FairName.RATE:
        return Slot(setting(value), at, value)
    return Slot(amount(value, "FLOP") if condition.name == FairName.FLOPS else count(round(value)), at, value)


def _cell(name: FairName, arm: FairArm, at: str) -> Slot:
    if arm.pairs is not None:
        return Slot(count(arm.pairs), f"{at}/pairs", arm.pairs)
    if arm.difference is None:
        return NOTHING
    if name == FairName.PARAMETERS:
        sign = "+" if arm.difference > 0 else ""
        return Slot(f"{sign}{count(round(arm.difference))}", f"{at}/difference", arm.difference)
    text = percent(arm.difference, 1 if abs(arm.difference) < 0.1 else 0, sign=True)
    return Slot(text, f"{at}/difference", arm.difference, "percent")
