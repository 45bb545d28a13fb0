"""How runs ended, and how much more often a variant's fail, as rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ablationlab.core.format import count, level, percent
from ablationlab.records.analysis import Analysis, Failure, Instability, Seed, StabilityGain
from ablationlab.report.effects import Effect
from ablationlab.report.slots import NOTHING, Slot

#: The worst first; what else a run may be is no failure.
FAILED: Final = (Instability.DIVERGED, Instability.ENDED_WORSE, Instability.SPIKED)


@dataclass(frozen=True)
class RunEnd:
    """How one run ended; *at*: the step of its failure; *steps*: those of its budget."""

    run: str
    variant: str
    regime: str
    seed: Seed
    reason: Instability
    at: Slot = NOTHING
    steps: int | None = None

    @property
    def failed(self) -> bool:
        return self.reason in FAILED


def run_ends(analysis: Analysis) -> tuple[RunEnd, ...]:
    """Every run, those first that failed worst, and of these the earliest."""
    runs = () if analysis.stability is None else analysis.stability.runs
    ends = [
        RunEnd(
            run.run,
            run.variant,
            run.regime,
            run.seed,
            run.reason,
            NOTHING
            if run.failed_at is None
            else Slot(count(run.failed_at), f"analysis.json#/stability/runs/{place}/failed_at", run.failed_at),
            run.steps,
        )
        for place, run in enumerate(runs)
    ]
    return tuple(sorted(ends, key=_badness))


def _badness(end: RunEnd) -> tuple[int, float]:
    rank = FAILED.index(end.reason) if end.failed else len(FAILED)
    return rank, float(end.at.value) if isinstance(end.at.value, int | float) else float("inf")


def failure_effects(analysis: Analysis) -> tuple[Effect, ...]:
    """By regime and variant: the share of runs that fail beyond the baseline's, with the margin that it may keep."""
    return tuple(_failures(analysis))


def _failures(analysis: Analysis) -> Iterator[Effect]:
    stability = analysis.stability
    for place, gain in enumerate(() if stability is None else stability.gains):
        assert stability is not None
        if gain.failure == Failure.UNSTABLE and gain.reference == analysis.baseline and gain.n:
            yield _effect(gain, f"analysis.json#/stability/gains/{place}", stability.margin)


def _effect(gain: StabilityGain, at: str, margin: float) -> Effect:
    def slot(value: float | None, name: str) -> Slot:
        """A gain, as the cost that it is the other side of."""
        text = percent(None if value is None else -value, 1, sign=True)
        return NOTHING if value is None else Slot(text, f"{at}/{name}", value, "percent")

    known = gain.low is not None and gain.high is not None
    return Effect(
        id=gain.id,
        metric="failures",
        name="failed runs",
        unit="",
        variant=gain.variant,
        reference=gain.reference,
        regime=gain.regime,
        role="guard",
        label="registered" if gain.registered else "exploratory",
        estimate=slot(gain.estimate, "estimate"),
        low=slot(gain.high, "high"),
        high=slot(gain.low, "low"),
        level=Slot(level(gain.level), f"{at}/level", gain.level, "percent") if known else NOTHING,
        n=Slot(count(gain.n), f"{at}/n", gain.n),
        failed=(
            Slot(count(gain.reference_unstable), f"{at}/reference_unstable", gain.reference_unstable),
            Slot(count(gain.variant_unstable), f"{at}/variant_unstable", gain.variant_unstable),
        ),
        drawn=None
        if gain.estimate is None
        else (-gain.estimate, None if gain.high is None else -gain.high, None if gain.low is None else -gain.low),
        smallest=margin,
    )
