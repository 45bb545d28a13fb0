"""verdict.json: the answers that follow from analysis.json, as codes. docs/verdict.md has the rules.

Numbers stand in analysis.json, under the ids that are given here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Final, Literal

from ablationlab.records.analysis import Label, Seed
from ablationlab.records.seal import SealedRecord
from ablationlab.records.storage import StoredValue


class Answer(StrEnum):
    """Does the change help? In the order in which they are asked; the value is what every surface prints."""

    NOT_MEASURED = "not measured"
    UNSTABLE = "unstable"
    MORE_STABLE = "more stable"
    WORSE = "worse"
    BETTER = "better"
    SAME = "same"
    UNDECIDED = "undecided"

    @property
    def sign(self) -> str:
        """Beside the word, so that no colour is needed to tell answers apart."""
        return _SIGNS[self]

    @property
    def said(self) -> str:
        """The word with its sign."""
        return f"{self.sign} {self}"


_SIGNS: Final = {
    Answer.NOT_MEASURED: "–",
    Answer.UNSTABLE: "↕",
    Answer.MORE_STABLE: "≡",
    Answer.WORSE: "▶",
    Answer.BETTER: "◀",
    Answer.SAME: "=",
    Answer.UNDECIDED: "○",
}


class Advice(StrEnum):
    """What to do about it."""

    NONE = "no verdict"
    ADOPT = "adopt"
    TRADE_OFF = "trade-off"
    KEEP = "keep the baseline"
    FAVOURED = "the favoured arm"
    SIMPLER = "the simpler arm"


class Standing(StrEnum):
    """Whether a guard's margin is kept: shown to be, not shown either way, shown to be exceeded."""

    KEPT = "kept"
    OPEN = "open"
    BROKEN = "broken"


#: The guard that the variant fails no more often than the margin allows; other guards are metrics.
FAILURES = "failures"


class Lack(StrEnum):
    """What an answer that is undecided, or not measured, lacks."""

    PRIMARY = "primary metric"
    DIRECTION = "direction"
    SENSITIVITY = "sensitive tasks"
    BEST_RATES = "best rates"
    PAIRS = "three pairs"
    RUNS = "lost runs"
    REFUSED = "refused for divergence"
    SIZE = "size"  # a difference is shown, and not whether it is as large as the smallest effect
    SMALLEST_EFFECT = "smallest effect"
    DOUBT = "doubt"
    SEEDS = "seeds"


class Guard(StoredValue):
    """Something that the variant must not cost: the metric of a guard of the criteria, or *failures*.

    *comparison*: its id, or that of the stability gain; null where nothing was measured.
    """

    name: str
    comparison: str | None
    standing: Standing


class WithoutSeed(StoredValue):
    """The answer without one seed, where it is another."""

    seed: Seed
    answer: Answer


class TieBreak(StoredValue):
    """The registered tie-breaker that decided between two arms that are the same; *asked*: the comparisons looked at."""

    asked: tuple[str, ...]
    metric: str | None
    favours: str | None


class VariantVerdict(StoredValue):
    """The answer on one variant in one regime.

    *comparison*: the primary one; null where there is none. *evidence*: ids of the comparisons and stability gains that the
    answer rests on. *as_counted*: unstable by count, which is not shown. *at_a_cost*: what is shown worse, or cost more than
    its margin. *confirmed*: better, every guard is kept and the budgets are known.
    *unequal_seeds*: of a table in which one arm alone has some seeds. *again*: the variant is the baseline once more.
    *reused*: how many studies rest on the baseline runs of an earlier study that it was compared with; 0 where they were
    trained here. *left_out*: how many seeds were left out in turn, and *without* those that change the answer.
    """

    variant: str
    reference: str
    regime: str
    label: Label
    comparison: str | None
    answer: Answer
    advice: Advice
    as_counted: bool = False
    at_a_cost: tuple[str, ...] = ()
    confirmed: bool = False
    budget_unknown: bool = False
    unequal_seeds: bool = False
    again: bool = False
    reused: int = 0
    guards: tuple[Guard, ...] = ()
    lacks: tuple[Lack, ...] = ()
    tie_break: TieBreak | None = None
    evidence: tuple[str, ...] = ()
    left_out: int = 0
    without: tuple[WithoutSeed, ...] = ()

    @property
    def waits(self) -> bool:
        """Whether seeds are what an undecided answer lacks."""
        return self.answer == Answer.UNDECIDED and bool(self.lacks) and {Lack.SEEDS, Lack.SIZE}.issuperset(self.lacks)


class HypothesisVerdict(StoredValue):
    """One of the study's hypotheses, judged by the answers; *evidence* are ids of comparisons and of stability gains."""

    statement: str
    rule: str
    metric: str | None
    status: Literal["supported", "rejected", "undecided"]
    answers: dict[str, Answer]  # by regime and variant, as `regime/variant`
    evidence: tuple[str, ...]


class Verdict(SealedRecord):
    """verdict.json."""

    KIND: ClassVar[str] = "verdict"
    VERSION: ClassVar[int] = 8
    MEND: ClassVar[str] = "`ablationlab analyze` writes it again"
    study: str
    source_hash: str
    analysis_hash: str
    primary: str | None
    verdicts: tuple[VariantVerdict, ...]
    hypotheses: dict[str, HypothesisVerdict]
    next_look: int | None = None  # seeds of the next planned look, where an answer waits for seeds or a guard is open
