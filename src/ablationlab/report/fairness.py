"""What the arms shared and how that was checked, a row per condition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ablationlab.core.format import count, percent, setting
from ablationlab.records.analysis import Analysis, DeviationCode, LedgerCheck, LedgerInput
from ablationlab.records.results import Results
from ablationlab.report.slots import Slot, Statement


class Equality(StrEnum):
    """How a condition stands: between equal arms, arms that declare a difference, and what nobody checked."""

    EQUAL = "equal"
    NEARLY = "equal to a step"
    DIFFERS = "differs"
    NOT_EQUALIZED = "not made equal"
    UNCHECKED = "not checked"


#: What says how a condition was checked, in statements.toml.
_HOW: Final[Mapping[LedgerInput, str]] = {
    LedgerInput.TIME: "fair.how-time",
    LedgerInput.TOKENS: "fair.how-tokens",
    LedgerInput.FLOPS: "fair.how-flops",
    LedgerInput.STEPS: "fair.how-steps",
    LedgerInput.ORDER: "fair.how-order",
    LedgerInput.START: "fair.how-start",
    LedgerInput.KERNELS: "fair.how-kernels",
}


@dataclass(frozen=True)
class Condition:
    """One thing that arms may share. *arms*: those that differ, with by how much where that is a number; *pairs* that
    differ, of a user's own trainer."""

    name: str
    state: Equality
    how: Statement | None = None
    arms: Mapping[str, Slot] = field(default_factory=dict)
    pairs: tuple[Slot, Slot] | None = None

    def of(self, variant: str) -> Slot | None:
        """What a variant differs by; nothing where it does not."""
        return self.arms.get(variant)

    def slots(self) -> Iterator[Slot]:
        """Everything that it prints."""
        yield from self.arms.values()
        yield from self.pairs or ()


def conditions_of(results: Results | None, analysis: Analysis) -> Iterator[Condition]:
    """What was equal first; then what differs, and what was not checked."""
    check = analysis.ledger
    if check is None:
        for name in (LedgerInput.TOKENS, LedgerInput.FLOPS, LedgerInput.ORDER, LedgerInput.START):
            yield Condition(_said(name), Equality.UNCHECKED)
    else:
        yield from _ledger(check)
    yield from _machine(results, analysis)
    yield from _rates(results)


def _ledger(check: LedgerCheck) -> Iterator[Condition]:
    for state, names in ((Equality.EQUAL, check.shared), (Equality.NEARLY, check.nearly)):
        for name in names:
            yield Condition(_said(name), state, _how(name))
    for place, unlike in enumerate(check.differs):
        at = f"analysis.json#/ledger/differs/{place}"
        arms = {
            variant: Slot(Equality.DIFFERS.value)
            if share is None
            else Slot(_share(share), f"{at}/variants/{_escaped(variant)}", share, "percent")
            for variant, share in unlike.variants.items()
        }
        pairs = None
        if unlike.pairs is not None:
            pairs = Slot(count(unlike.pairs), f"{at}/pairs", unlike.pairs), Slot(count(check.checked_pairs))
        yield Condition(_said(unlike.name), Equality.DIFFERS, _how(unlike.name), arms, pairs)
    for name in check.unmatched:
        yield Condition(_said(name), Equality.NOT_EQUALIZED, _how(name))
    for name in check.not_reported:
        yield Condition(_said(name), Equality.UNCHECKED)


def _machine(results: Results | None, analysis: Analysis) -> Iterator[Condition]:
    if results is None or results.plan is None:
        return
    drifted = sum(known.code == DeviationCode.DRIFT for known in analysis.deviations)
    how = Statement("fair.how-machine")
    yield Condition("code, device, precision", Equality.DIFFERS if drifted else Equality.EQUAL, how)


def _rates(results: Results | None) -> Iterator[Condition]:
    """Whether each arm has its own best rate."""
    plan = None if results is None else results.plan
    if results is None or plan is None or plan.study.trainer is not None:
        return
    sweep = None if results.analysis is None else results.analysis.sweep
    if sweep is not None and sweep.best:
        tried = Slot(count(len(sweep.rates)), "", len(sweep.rates))
        yield Condition("best learning rate", Equality.EQUAL, Statement("fair.how-swept", {"n": tried}))
        return
    rates = {run.lr: place for place, run in enumerate(plan.runs) if run.role != "gate"}
    how = None
    if len(rates) == 1:
        (rate,) = rates
        how = Statement("fair.how-one-rate", {"rate": Slot(setting(rate))})
    yield Condition("best learning rate", Equality.UNCHECKED, how)


def _how(name: LedgerInput) -> Statement:
    return Statement(_HOW[name])


def _said(name: LedgerInput) -> str:
    return {LedgerInput.FLOPS: "compute", LedgerInput.ORDER: "batches, in order"}.get(name, name.value)


def _share(share: float) -> str:
    return percent(share, 1 if abs(share) < 0.1 else 0, sign=True)


def _escaped(name: str) -> str:
    """A key in a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
