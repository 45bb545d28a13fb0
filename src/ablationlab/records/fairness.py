"""What analysis.json has of the fairness of a study: each condition, how it was checked, and what was found per variant."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from ablationlab.records.storage import StoredValue


class FairState(StrEnum):
    """What a variant has in common with the baseline."""

    EQUAL = "equal"
    NEARLY = "nearly"  # as far as whole steps allow
    DECLARED = "declared"  # it differs, and the variant declares it
    DIFFERS = "differs"
    NOT_CHECKED = "not-checked"


class FairName(StrEnum):
    """What runs of a pair may share."""

    TOKENS = "tokens"
    FLOPS = "compute"
    STEPS = "steps"
    ORDER = "batches"
    START = "initial weights"
    KERNELS = "GPU kernels"
    PLACE = "code and device"
    PARAMETERS = "parameters"
    TIME = "training time"
    RATE = "learning rate"


class FairHow(StrEnum):
    """How it was checked."""

    BUDGET = "budget"  # of the sealed plan, and met by every run
    ORDER_HASH = "order-hash"  # one hash per seed over all that was fed
    START_HASH = "start-hash"  # a hash per shared tensor
    RECORDED = "recorded"  # in every run's record
    COUNTED = "counted"
    MEASURED = "measured"
    REPORTED = "reported"  # by the user's own trainer
    FITTED = "fitted"  # each at its fitted best rate
    CHOSEN = "chosen"  # each at the best rate of a grid
    NOT = "not"


class FairArm(StoredValue):
    """*difference*: variant / baseline - 1 where it is a number, the largest over regimes; of parameters how many more.
    *pairs*: in so many it differs.
    """

    state: FairState
    difference: float | None = None
    pairs: int | None = None


class FairCondition(StoredValue):
    """*value*: the baseline's, of the first regime, where it is a number."""

    name: FairName
    how: FairHow
    value: float | None = None
    arms: dict[str, FairArm] = Field(default_factory=dict)
