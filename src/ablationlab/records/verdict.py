"""verdict.json: what follows from analysis.json, rule by rule. docs/analysis.md has the rules.

A reason is a code beside the numbers it speaks of; `analysis/wording.py` makes the sentences, and nothing reads them back.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import ClassVar, Final, Literal

from ablationlab.records.analysis import Label, Seed
from ablationlab.records.seal import SealedRecord
from ablationlab.records.storage import StoredValue


class Decision(StrEnum):
    """What is recommended for a variant in a regime."""

    ADOPT = "adopt"
    ADOPT_IN_REGIME = "adopt-in-regime"
    ADOPT_PROVISIONALLY = "adopt-provisionally"
    TRADE_OFF = "trade-off"
    TIE = "tie"
    INCONCLUSIVE = "inconclusive"
    NO_VERDICT = "no-verdict"
    KEEP_PROVISIONALLY = "keep-provisionally"
    KEEP_BASELINE = "keep-baseline"


#: How much a decision speaks for the variant: use it; use it on a condition; nothing speaks for a change; do not use it.
#: A strictly worse input of paired runs does not get a higher rank; with runs of the variant deleted no verdict speaks for it
#: that did not before: it is inconclusive at best (tests/analysis/verdict/test_order.py). Not ordered: a baseline run that
#: finishes instead of diverging, costs that spread less, one run that gets better, one far beyond the others that is lost or
#: deleted, unpaired arms.
RANK: Final[dict[Decision, int]] = {
    Decision.ADOPT: 3,
    Decision.ADOPT_IN_REGIME: 3,
    Decision.ADOPT_PROVISIONALLY: 2,
    Decision.TRADE_OFF: 2,
    Decision.TIE: 1,
    Decision.INCONCLUSIVE: 1,
    Decision.NO_VERDICT: 1,
    Decision.KEEP_PROVISIONALLY: 0,
    Decision.KEEP_BASELINE: 0,
}


class Rule(IntEnum):
    """The rules, in the order in which they are asked."""

    NOT_SENSITIVE = 0
    LESS_STABLE = 1
    RESTORES_STABILITY = 2
    EQUIVALENT = 3
    WORSE = 4
    BETTER = 5
    UNDECIDED = 6


class Reason(StrEnum):
    """Why a rule applies, or why it does not."""

    # 0
    MEASURED = "measured"
    STABILITY_DIFFERS = "stability-differs"
    PRIMARY_MISSING = "primary-missing"
    NO_DIRECTION = "no-direction"
    NOT_SENSITIVE = "not-sensitive"
    GRID_RATES = "grid-rates"
    # 1 and 2
    STABILITY_UNKNOWN = "stability-unknown"
    LESS_STABLE = "less-stable"
    NOT_LESS_STABLE = "not-less-stable"
    BASELINE_STABLE = "baseline-stable"
    GAIN_NOT_SHOWN = "gain-not-shown"
    GAIN_WITHIN_MARGINS = "gain-within-margins"
    GAIN_AT_A_COST = "gain-at-a-cost"
    MAY_BE_LESS_STABLE = "may-be-less-stable"  # had the missing runs failed
    # 3
    EQUIVALENT = "equivalent"
    REAL_BUT_SMALL = "real-but-small"
    NO_SMALLEST_EFFECT = "no-smallest-effect"
    NOT_EQUIVALENT = "not-equivalent"
    EQUIVALENCE_NOT_TESTED = "equivalence-not-tested"
    # 4 and 5
    WORSE = "worse"
    NOT_WORSE = "not-worse"
    NOT_BETTER = "not-better"
    BETTER_AND_SAFE = "better-and-safe"
    BETTER_AT_A_COST = "better-at-a-cost"
    BETTER_WITH_BAD_RUNS = "better-with-bad-runs"
    BETTER_NOT_ALL_SHOWN = "better-not-all-shown"
    MAY_BE_SMALL = "may-be-small"  # a tie, were single runs less bad
    # 3, 5 and 6: more of its runs fail than the margin allows, as counted, and it is not shown to be as stable
    FAILS_MORE = "fails-more"
    # 3 and 5: the variant alone lost runs: some diverged, or all are missing
    SURVIVORS_ONLY = "survivors-only"
    RUNS_MISSING = "runs-missing"
    # 4: with the baseline's diverged runs counted it is not shown
    BASELINE_SURVIVORS_ONLY = "baseline-survivors-only"
    # 6
    NO_RULE_APPLIES = "no-rule-applies"
    VARIANT_DIVERGED = "variant-diverged"
    BAD_RUNS = "bad-runs"


class RuleCheck(StoredValue):
    """One of the rules, tried in its turn."""

    rule: Rule
    applies: bool
    reason: Reason


class CostBound(StrEnum):
    """What the upper bound of a cost rests on, or why there is none."""

    INTERVAL = "interval"
    EVERY_BASELINE_DIVERGED = "every-baseline-diverged"
    VARIANT_DIVERGED = "variant-diverged"
    VARIANT_MISSING = "variant-missing"
    TOO_FEW_PAIRS = "too-few-pairs"
    NO_DIRECTION = "no-direction"
    NOT_SENSITIVE = "not-sensitive"
    GRID_RATES = "grid-rates"
    NOT_MEASURED = "not-measured"


class Cost(StoredValue):
    """What a variant may cost on one metric (positive is worse), and what is shown about it.

    kept: the upper bound is within the margin, or at most 0. broken: not kept, and the lower bound is above 0. unknown:
    neither. *runs*: how many diverged or missing runs *bound* speaks of. *comparison*: null where no run has a value.
    """

    metric: str
    comparison: str | None
    role: Literal["primary", "guard"]
    estimate: float | None
    low: float | None
    high: float | None
    level: float
    margin: float | None
    shown: Literal["kept", "broken", "unknown"]
    bound: CostBound
    runs: int = 0


class StabilityStanding(StoredValue):
    """What is shown about the variant's stability against the baseline's in one regime.

    *gained* and *lost* are ids of the stability gains that are shown, corrected for *places*. *excess* is the share of runs
    that failed with the variant beyond the baseline's, as counted, over seeds that either has a run of. *worst* is the
    upper bound of that share; non-inferior if it is within *margin*. Runs that the variant lacks count as failed.
    *seeds_for_margin*: so many seeds without a failure in either arm would show that.
    """

    known: bool
    places: int
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    excess: float | None
    worst: float | None
    level: float
    margin: float
    non_inferior: bool
    pairs: int
    seeds_for_margin: int


class TradeOff(StoredValue):
    """Stability against accuracy, both sides with their bounds."""

    gain: float | None
    gain_low: float | None
    gain_high: float | None
    costs: tuple[Cost, ...]


class TieBreak(StoredValue):
    """What the registered tie-breakers said, in their order, until one of them decided.

    *unmeasured* have no value, or of tuned arms one at grid rates only.
    """

    asked: tuple[str, ...]
    unmeasured: tuple[str, ...]
    metric: str | None
    favours: str | None


class Need(StrEnum):
    """What it would take to decide."""

    PRIMARY_METRIC = "primary-metric"
    DIRECTION = "direction"
    SENSITIVE_TASKS = "sensitive-tasks"
    STABLE_TRAINING = "stable-training"
    THREE_PAIRS = "three-pairs"
    VARIATION = "variation"
    SMALLEST_EFFECT = "smallest-effect"
    FRESH_SEEDS = "fresh-seeds"
    CLOSER_RATES = "closer-rates"
    BEST_RATES = "best-rates"
    MISSING_RUNS = "missing-runs"


class Needs(StoredValue):
    """What it would take to decide; a number of seeds is null where none could be computed."""

    need: Need
    seeds_for_difference: int | None = None
    seeds_for_equivalence: int | None = None
    power: float = 0.8


class OtherDecision(StoredValue):
    """The decision without one seed, if it differs."""

    seed: Seed
    decision: Decision


class VerdictFragility(StoredValue):
    """How much a verdict depends on single seeds; *left_out* is 0 at a planned look, where no seed is left out in turn.

    *changes*: seeds without which the decision is another. *stragglers*: seeds whose difference on the primary metric
    lies far from the others, as in 5 % of calm studies. *exaggeration*: by how much significant results overstate a true
    difference of the smallest effect, on average, and *power* is the chance to see it at all; null without a
    registered smallest effect.
    """

    left_out: int
    changes: tuple[OtherDecision, ...]
    stragglers: tuple[Seed, ...]
    power: float | None
    exaggeration: float | None


class VariantVerdict(StoredValue):
    """The first rule that applied to one variant in one regime.

    *secondaries*: ids of registered secondary comparisons that are shown worse.
    """

    variant: str
    reference: str
    regime: str
    decision: Decision
    rule: Rule
    reason: Reason
    label: Label
    evidence: tuple[str, ...]
    checks: tuple[RuleCheck, ...]
    costs: tuple[Cost, ...]
    secondaries: tuple[str, ...]
    stability: StabilityStanding
    trade_off: TradeOff | None = None
    tie_break: TieBreak | None = None
    needs: Needs | None = None
    fragility: VerdictFragility | None = None


class HypothesisReason(StrEnum):
    """Why a hypothesis stands as it does."""

    NOT_IN_RECORDS = "not-in-records"
    GRID_RATES = "grid-rates"
    NOT_SENSITIVE = "not-sensitive"
    NOT_REGISTERED = "not-registered"
    NO_STABLE_BASELINE = "no-stable-baseline"
    CHANGED = "changed"
    EQUIVALENT = "equivalent"
    NOTHING_SHOWN = "nothing-shown"
    WORSE_AND_SMOOTHER = "worse-and-smoother"
    WORSE_NOT_SMOOTHER = "worse-not-smoother"
    NOT_WORSE = "not-worse"
    STABILITY_UNKNOWN = "stability-unknown"
    STABLE_EVERYWHERE = "stable-everywhere"
    SHARE_NOT_REGISTERED = "share-not-registered"
    RESTORED = "restored"
    NOT_RESTORED = "not-restored"
    GAIN_NOT_SHOWN = "gain-not-shown"
    GAIN_UNDONE = "gain-undone"


class HypothesisVerdict(StoredValue):
    """One of the study's hypotheses, judged; *evidence* are ids of comparisons and of stability gains."""

    statement: str
    rule: str
    metric: str | None
    status: Literal["supported", "rejected", "undecided"]
    reason: HypothesisReason
    evidence: tuple[str, ...]


class Verdict(SealedRecord):
    """verdict.json."""

    KIND: ClassVar[str] = "verdict"
    VERSION: ClassVar[int] = 6
    MEND: ClassVar[str] = "`ablationlab analyze` writes it again"
    study: str
    source_hash: str
    analysis_hash: str
    primary: str | None
    verdicts: tuple[VariantVerdict, ...]
    hypotheses: dict[str, HypothesisVerdict]
