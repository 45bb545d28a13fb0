"""Does a variant fail more often than the baseline, or less? A missing record is no failure, and helps nobody.

A missing record is filled in against each claim: as a failure of the variant where it would be called steadier or better, and
as a failure of the baseline where the variant would be called unstable.
"""

from __future__ import annotations

from dataclasses import dataclass

from scipy import special

from ablationlab.analysis.stability import mcnemar_p
from ablationlab.records.analysis import Analysis, StabilityGain
from ablationlab.records.verdict import FAILURES, Guard, Standing
from ablationlab.stats.gains import fisher_p

#: *Unstable as counted* takes so many more failures, and a one-sided exact p of at most this.
NET, COUNTED = 3, 1 / 8


@dataclass(frozen=True)
class Failures:
    """The registered kinds of failure of one variant in one regime, the widest last; without any, every unstable run."""

    gains: tuple[StabilityGain, ...]
    alpha: float
    margin: float

    @property
    def more(self) -> tuple[StabilityGain, ...]:
        """Those that are shown to be more frequent."""
        return tuple(gain for gain in self.gains if gain.outcome == "less-stable")

    @property
    def fewer(self) -> tuple[StabilityGain, ...]:
        """Those that are shown to be less frequent."""
        return tuple(gain for gain in self.gains if gain.outcome == "more-stable")

    @property
    def counted(self) -> tuple[StabilityGain, ...]:
        """Those that are beyond the margin as counted, whatever is shown."""
        return tuple(gain for gain in self.gains if self._counted(gain, filled=False))

    @property
    def possible(self) -> bool:
        """Whether the variant would be unstable, had the runs failed that it lacks."""
        return any(self._counted(gain, filled=True) or self._shown(gain) for gain in self.gains)

    def guard(self) -> Guard:
        """That it fails no more often than the margin allows."""
        bounds = [1.0 if gain.worst is None else gain.worst for gain in self.gains]
        widest = self.gains[-1].id if self.gains else None
        if self.more:
            return Guard(name=FAILURES, comparison=widest, standing=Standing.BROKEN)
        kept = bool(bounds) and max(bounds) <= self.margin and not self.possible
        return Guard(name=FAILURES, comparison=widest, standing=Standing.KEPT if kept else Standing.OPEN)

    def _counted(self, gain: StabilityGain, *, filled: bool) -> bool:
        if gain.rescued is None or gain.broken is None:
            failed, others, runs, other_runs = _independent(gain, filled=filled)
            share = others / other_runs
            net, beyond = failed - share * runs, failed / runs - share
            p = fisher_p(failed, others, runs, other_runs, more=True)
            return net >= NET and beyond > self.margin + 1e-9 and p <= COUNTED
        broken = gain.broken + (gain.single_broken if filled else 0)
        rescued = gain.rescued + (0 if filled else gain.single_rescued)
        beyond = (broken - rescued) / (gain.n + gain.single)
        p = float(special.bdtr(rescued, broken + rescued, 0.5)) if broken else 1.0
        return broken - rescued >= NET and beyond > self.margin + 1e-9 and p <= COUNTED

    def _shown(self, gain: StabilityGain) -> bool:
        if gain.rescued is None or gain.broken is None:
            failed, others, runs, other_runs = _independent(gain, filled=True)
            found = fisher_p(failed, others, runs, other_runs) if failed / runs > others / other_runs else None
        else:
            broken = gain.broken + gain.single_broken
            found = mcnemar_p(gain.rescued, broken) if broken > gain.rescued else None
        return found is not None and found * (gain.places or 1) <= self.alpha


def _independent(gain: StabilityGain, *, filled: bool) -> tuple[int, int, int, int]:
    """Failures of the variant and of the reference, and their runs; *filled*: what is missing speaks against the variant."""
    failed = gain.variant_unstable + (gain.single_broken if filled else 0)
    others = gain.reference_unstable + (0 if filled else gain.single_rescued)
    return failed, others, gain.variant_runs + gain.single_broken, gain.reference_runs + gain.single_rescued


def failures_of(analysis: Analysis, variant: str, regime: str) -> Failures:
    stability = analysis.stability
    if stability is None:
        return Failures((), 0.05, 0.0)
    vector = stability.vector(variant, analysis.baseline, regime)
    asked = [gain for gain in vector if gain.places] or list(vector[-1:])
    return Failures(tuple(gain for gain in asked if gain.n), stability.alpha, stability.margin)
