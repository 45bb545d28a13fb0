"""verdict.json: what follows from analysis.json, rule by rule. docs/analysis.md describes it field by field."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import ClassVar, Literal

from ablationlab.records.analysis import Label
from ablationlab.records.storage import Record, StoredValue


class Decision(StrEnum):
    """What is recommended for a variant in a regime."""

    ADOPT = "adopt"
    ADOPT_IN_REGIME = "adopt-in-regime"
    TRADE_OFF = "trade-off"
    KEEP_BASELINE = "keep-baseline"
    TIE = "tie"
    INCONCLUSIVE = "inconclusive"


class Rule(IntEnum):
    """The five rules, in the order in which they are asked."""

    RESTORES_STABILITY = 1
    WORSE = 2
    BETTER = 3
    EQUIVALENT = 4
    UNDECIDED = 5


class RuleCheck(StoredValue):
    """One of the five rules, asked in its turn."""

    rule: Rule
    applies: bool
    why: str


class Cost(StoredValue):
    """What a variant may cost on one metric (positive is worse): the estimate, its upper bound, the margin it must keep."""

    metric: str
    comparison: str | None
    estimate: float | None
    low: float | None
    high: float | None
    margin: float | None
    within: bool | None
    why: str


class TradeOff(StoredValue):
    """Stability against accuracy, both sides with their bounds."""

    gain: float | None
    gain_low: float | None
    gain_high: float | None
    costs: tuple[Cost, ...]
    text: str


class TieBreak(StoredValue):
    """What the registered tie-breakers said, in their order, until one of them decided."""

    asked: tuple[str, ...]
    metric: str | None
    favours: str | None
    text: str


class Needs(StoredValue):
    """What it would take to decide; a number is null where none could be computed."""

    seeds_for_difference: int | None = None
    seeds_for_equivalence: int | None = None
    seeds_at_observed_effect: int | None = None
    power: float = 0.8
    text: str


class VariantVerdict(StoredValue):
    """The first rule that applied to one variant in one regime."""

    variant: str
    reference: str
    regime: str
    decision: Decision
    rule: Rule
    label: Label
    why: str
    evidence: tuple[str, ...]
    checks: tuple[RuleCheck, ...]
    trade_off: TradeOff | None = None
    tie_break: TieBreak | None = None
    needs: Needs | None = None
    recommendation: str


class HypothesisVerdict(StoredValue):
    """One of the study's hypotheses, judged."""

    statement: str
    rule: str
    metric: str | None
    status: Literal["supported", "rejected", "undecided"]
    why: str
    evidence: tuple[str, ...]


class Verdict(Record):
    """verdict.json."""

    KIND: ClassVar[str] = "verdict"
    study: str
    source_hash: str
    analysis_hash: str
    primary: str | None
    verdicts: tuple[VariantVerdict, ...]
    hypotheses: dict[str, HypothesisVerdict]
    recommendation: str
