"""The parts of analysis.json that speak of learning-rate sweeps and of factorial studies.

docs/stability.md describes them field by field. What they compare between variants stands among the comparisons, under the
regimes ``sweep`` and ``tuned``, with the same statistics as everything else.
"""

from __future__ import annotations

from typing import Literal

from ablationlab.records.schema import Part


class SweepPointPart(Part):
    """One run of the sweep: variant x rate x seed. The divergence map is the list of these.

    *loss* is the final validation loss; *counted* is what the sweep counts: the smaller of it and *initial_loss*, and
    *initial_loss* for a run that diverged. null: the run is not there.
    """

    run: str
    variant: str
    lr: float
    seed: int
    use: Literal["selection", "judging"]
    state: str
    loss: float | None
    initial_loss: float | None
    counted: float | None
    clipped: bool
    diverged_at: int | None
    cause: str | None
    spike_score: float | None
    unstable: bool | None
    why: str


class SweepCurvePart(Part):
    """One variant at one rate, over all seeds of the sweep: mean and SD of the counted losses, and what went wrong."""

    variant: str
    lr: float
    n: int
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None
    diverged: int
    clipped: int
    unstable: int


class SensitivityPointPart(Part):
    """Learning-rate sensitivity of one variant on one seed; null where a rate is missing, and *why* says which."""

    variant: str
    seed: int
    sensitivity: float | None
    best_lr: float | None
    best_loss: float | None
    unstable_share: float | None
    why: str


class SensitivitySummaryPart(Part):
    """Learning-rate sensitivity of one variant: mean over seeds with its t interval."""

    variant: str
    n: int
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None
    level: float


class BestRatePart(Part):
    """The rate chosen for a variant: lowest mean counted loss over the selection seeds, the lower rate on a tie.

    *judged_on* are other seeds. *edge*: it is the lowest or the highest rate of the sweep, so a better one may lie beyond.
    """

    variant: str
    lr: float | None
    mean_loss: float | None
    chosen_on: tuple[int, ...]
    judged_on: tuple[int, ...]
    edge: bool
    why: str


class SweepPart(Part):
    """The sweep over learning rates. *comparisons* are ids of `Analysis.comparisons` in the regimes sweep and tuned."""

    metric: str
    rates: tuple[float, ...]
    selection_seeds: tuple[int, ...]
    seeds: tuple[int, ...]
    points: tuple[SweepPointPart, ...]
    curves: tuple[SweepCurvePart, ...]
    sensitivities: tuple[SensitivityPointPart, ...]
    summaries: tuple[SensitivitySummaryPart, ...]
    best: tuple[BestRatePart, ...]
    comparisons: tuple[str, ...]
    notes: tuple[str, ...]


class FactorPart(Part):
    """A setting that the regimes vary, with its levels in the order of the regimes; the first is the reference."""

    key: str
    levels: tuple[str, ...]


class FactorCellPart(Part):
    """The effect of one variant (variant - baseline, on the tested scale) in one cell of the factorial."""

    variant: str
    regime: str
    levels: tuple[str, ...]
    n: int
    effect: float | None
    low: float | None
    high: float | None


class SeedValuePart(Part):
    """One seed's value of a contrast."""

    seed: int
    value: float


class InteractionContrastPart(Part):
    """How a variant's effect depends on the factors: a contrast of its cells, per seed, then a t interval over seeds.

    *main*: mean over the other factor of effect(level) - effect(reference level). *interaction*: the difference of those
    differences between the other factor's level and its reference. p is adjusted over the variants' contrasts of that kind.
    """

    variant: str
    kind: Literal["main", "interaction"]
    factors: tuple[str, ...]
    levels: tuple[str, ...]
    references: tuple[str, ...]
    n: int
    planned: int
    values: tuple[SeedValuePart, ...]
    estimate: float | None
    low: float | None
    high: float | None
    level: float
    p: float | None
    p_adjusted: float | None
    note: str = ""


class InteractionsPart(Part):
    """Two settings, crossed by the regimes: each variant's effect in every cell, main effects and their interaction."""

    metric: str
    transform: Literal["identity", "log"]
    factors: tuple[FactorPart, ...]
    cells: tuple[FactorCellPart, ...]
    contrasts: tuple[InteractionContrastPart, ...]
    label: Literal["exploratory"] = "exploratory"
    text: str
