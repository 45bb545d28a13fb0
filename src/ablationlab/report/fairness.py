"""What the arms shared and how that was checked, a row per condition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ablationlab.core.format import amount, count, percent, setting
from ablationlab.records.analysis import Analysis
from ablationlab.records.fairness import FairArm, FairCondition, FairName, FairState
from ablationlab.report.slots import NOTHING, Slot, Statement, escaped


class Equality(StrEnum):
    """How a condition stands: between equal arms, arms that declare a difference, and what nobody checked."""

    EQUAL = "equal"
    NEARLY = "equal to a step"
    DIFFERS = "differs"
    NOT_EQUALIZED = "not made equal"
    UNCHECKED = "not checked"


_NAMES: Final[Mapping[FairName, str]] = {
    FairName.ORDER: "batches, in order",
    FairName.PLACE: "code, device, precision",
    FairName.RATE: "best learning rate",
}


@dataclass(frozen=True)
class Condition:
    """One thing that arms may share. *value*: the baseline's, where it is a number. *arms*: those that differ, with by how
    much where that is a number; *pairs* that differ, of a user's own trainer."""

    name: str
    state: Equality
    how: Statement | None = None
    arms: Mapping[str, Slot] = field(default_factory=dict)
    pairs: tuple[Slot, Slot] | None = None
    value: Slot = NOTHING

    def of(self, variant: str) -> Slot | None:
        """What a variant differs by; nothing where it does not."""
        return self.arms.get(variant)

    def slots(self) -> Iterator[Slot]:
        """Everything that it prints."""
        yield self.value
        yield from self.arms.values()
        yield from self.pairs or ()


def conditions_of(analysis: Analysis) -> Iterator[Condition]:
    """As recorded; of a table of values nobody checked anything."""
    for place, known in enumerate(analysis.fair):
        yield _condition(known, f"analysis.json#/fair/{place}", analysis)
    if not analysis.fair:
        for name in (FairName.TOKENS, FairName.FLOPS, FairName.ORDER, FairName.START):
            yield Condition(_said(name), Equality.UNCHECKED)


def _condition(known: FairCondition, at: str, analysis: Analysis) -> Condition:
    states = {arm.state for arm in known.arms.values()}
    differing = {FairState.DIFFERS, FairState.DECLARED} & states
    pairs = next((arm.pairs for arm in known.arms.values() if arm.pairs is not None), None)
    named = {
        variant: _difference(known.name, arm, f"{at}/arms/{escaped(variant)}")
        for variant, arm in known.arms.items()
        if arm.state in differing or (arm.state == FairState.NOT_CHECKED and len(states) > 1)
    }
    if differing:
        state = Equality.NOT_EQUALIZED if known.name == FairName.TIME else Equality.DIFFERS
    elif FairState.NOT_CHECKED in states:
        state = Equality.UNCHECKED
    else:
        state = Equality.NEARLY if FairState.NEARLY in states else Equality.EQUAL
    of = analysis.ledger.checked_pairs if analysis.ledger is not None else 0
    return Condition(
        name=_said(known.name),
        state=state,
        how=Statement(f"how.{known.how}"),
        arms=named if pairs is None else {},
        pairs=None if pairs is None else (_pairs(known, at, pairs), Slot(count(of))),
        value=_value(known, at),
    )


def _pairs(known: FairCondition, at: str, pairs: int) -> Slot:
    variant = next(name for name, arm in known.arms.items() if arm.pairs == pairs)
    return Slot(count(pairs), f"{at}/arms/{escaped(variant)}/pairs", pairs)


def _difference(name: FairName, arm: FairArm, at: str) -> Slot:
    """By how much, else that it does, or that nobody knows."""
    if arm.difference is None:
        return Slot(Equality.UNCHECKED.value if arm.state == FairState.NOT_CHECKED else Equality.DIFFERS.value)
    if name == FairName.PARAMETERS:
        sign = "+" if arm.difference > 0 else ""
        return Slot(f"{sign}{count(round(arm.difference))}", f"{at}/difference", arm.difference)
    text = percent(arm.difference, 1 if abs(arm.difference) < 0.1 else 0, sign=True)
    return Slot(text, f"{at}/difference", arm.difference, "percent")


def _value(known: FairCondition, at: str) -> Slot:
    value = known.value
    if value is None:
        return NOTHING
    if known.name == FairName.RATE:
        return Slot(setting(value), f"{at}/value", value)
    return Slot(amount(value, "FLOP") if known.name == FairName.FLOPS else count(round(value)), f"{at}/value", value)


def _said(name: FairName) -> str:
    return _NAMES.get(name, name.value)
