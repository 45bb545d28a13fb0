"""The part of analysis.json that speaks of stability: which runs and arms were unstable, and what a variant gains."""

from __future__ import annotations

from pydantic import Field

from ablationlab.records.parts import CaveatPart, Seed
from ablationlab.records.schema import Part


class RunStabilityPart(Part):
    """One run: how it ended, its largest spike, and whether it counts as unstable (null: it is not there).

    *measures* holds the other numbers of its course, by the names of the metric registry.
    """

    run: str
    variant: str
    regime: str
    seed: Seed
    state: str
    spike_score: float | None
    spike_step: int | None
    unstable: bool | None
    why: str
    lr: float | None = None
    worse_than_start: bool = False
    diverged_at: int | None = None
    cause: str | None = None
    measures: dict[str, float | None] = Field(default_factory=dict)


class ArmStabilityPart(Part):
    """One variant in one regime; unstable if at least one of its runs is.

    *failed*: runs that ended worse than they began; *spiked*: unstable for their spike score alone.
    """

    variant: str
    regime: str
    runs: int
    diverged: int
    spiked: int
    failed: int = 0
    unstable_runs: int
    unstable: bool | None
    largest_spike_score: float | None


class GainPart(Part):
    """Share of unstable reference runs - share of unstable variant runs, with Tango's interval."""

    id: str
    variant: str
    reference: str
    regime: str
    n: int
    planned_pairs: int
    reference_unstable: int
    variant_unstable: int
    rescued: int
    broken: int
    estimate: float | None
    low: float | None
    high: float | None
    level: float
    mcnemar_p: float | None
    caveats: tuple[CaveatPart, ...] = ()


class StabilityPart(Part):
    """Stability of runs, arms and contrasts; *threshold* is the registered spike score."""

    threshold: float
    runs: tuple[RunStabilityPart, ...]
    arms: tuple[ArmStabilityPart, ...]
    gains: tuple[GainPart, ...]

    def arm(self, variant: str, regime: str) -> ArmStabilityPart | None:
        """The arm of that name, if there is one."""
        return next((a for a in self.arms if (a.variant, a.regime) == (variant, regime)), None)

    def gain(self, variant: str, reference: str, regime: str) -> GainPart | None:
        """The gain of that contrast, if there is one."""
        wanted = (variant, reference, regime)
        return next((g for g in self.gains if (g.variant, g.reference, g.regime) == wanted), None)
