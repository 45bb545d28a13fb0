"""Measures of one run's course, from its training losses and gradient norms; and a warning while it runs. No torch.

With losses x_1 .. x_T up to the last that is finite, and m_t the median of x_(t-2) .. x_(t+2) (fewer at the ends):

    largest loss rise      max over s < t of m_t - m_s, at least 0
    steps to a threshold   the first t with m_t <= threshold; T, the whole budget, if there is none
    mean training loss     (x_1 + .. + x_T) / T, the area under the curve per step
    gradient spike score   the spike score (`stability.spike_score`) of log |g_t|
    gradient spikes        episodes of steps whose log |g_t| stands above its window by more than the threshold, for at
                           least two steps; episodes fewer than W = 20 steps apart are one

The running median lets a single odd batch pass: it takes three steps out of five to move it. Norms are taken before
clipping, so clipping hides none of their spikes. Steps to a threshold is the restricted time: what a run that never
arrives would have needed is not known, only that it is more than the budget, so a difference between arms is rather
under- than overstated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from ablationlab.core.errors import StatisticsError
from ablationlab.stats.stability import SHORTEST_PAST, WINDOW, FloatArray, lasting_scores, spike_score

SMOOTH: Final = 5


@dataclass(frozen=True)
class Course:
    """The measures of one run; None where its curve is too short, or no threshold was registered."""

    gradient_spike_score: float | None
    gradient_spikes: int | None
    largest_loss_rise: float | None
    steps_to_loss: int | None
    mean_training_loss: float | None

    def measures(self) -> dict[str, float | None]:
        """By the names of the metric registry."""
        return {name: None if value is None else float(value) for name, value in vars(self).items()}


def course(
    losses: ArrayLike, norms: ArrayLike, *, loss_threshold: float | None = None, spike_threshold: float
) -> Course:
    """Every measure of one run; what follows the first number that is not finite is left out."""
    x, g = _curve("losses", losses), _curve("norms", norms)
    positive = np.flatnonzero(g <= 0)
    g = np.log(g[: positive[0]] if positive.size else g)
    return Course(
        gradient_spike_score=spike_score(g).score,
        gradient_spikes=spikes(g, spike_threshold),
        largest_loss_rise=largest_rise(x),
        steps_to_loss=None if loss_threshold is None else steps_to(x, loss_threshold),
        mean_training_loss=float(x.mean()) if x.size else None,
    )


def _curve(name: str, values: ArrayLike) -> FloatArray:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1:
        raise StatisticsError(f"{name} must be one-dimensional, got shape {x.shape}")
    bad = np.flatnonzero(~np.isfinite(x))
    return x[: bad[0]] if bad.size else x


def running_median(values: ArrayLike) -> FloatArray:
    """Medians over five steps, centred; at the ends over those that are there."""
    x = np.asarray(values, dtype=np.float64)
    half = SMOOTH // 2
    m = np.empty_like(x)
    for t in (*range(min(half, x.size)), *range(max(half, x.size - half), x.size)):
        m[t] = np.median(x[max(0, t - half) : t + half + 1])
    if x.size >= SMOOTH:
        m[half:-half] = np.median(np.lib.stride_tricks.sliding_window_view(x, SMOOTH), axis=1)
    return m


def largest_rise(losses: ArrayLike) -> float | None:
    """The largest rise of the running median above the lowest it had been; None without a loss."""
    m = running_median(_curve("losses", losses))
    return None if not m.size else float((m - np.minimum.accumulate(m)).max())


def steps_to(losses: ArrayLike, threshold: float) -> int | None:
    """The first step, from 1, whose running median is at or below the threshold; all of them if none is."""
    m = running_median(_curve("losses", losses))
    if not m.size:
        return None
    there = np.flatnonzero(m <= threshold)
    return int(there[0]) + 1 if there.size else m.size


def spikes(values: ArrayLike, threshold: float) -> int | None:
    """How many separate spikes a curve has; None where it is too short to say."""
    scores = lasting_scores(_curve("values", values))
    if scores is None:
        return None
    steps = np.flatnonzero(scores > threshold)
    return int(steps.size > 0) + int((np.diff(steps) > WINDOW).sum())


#: Noise SDs above the level that are worth a warning while a run is trained.
WARNING = 7.0


@dataclass
class Watch:
    """A warning while a run is trained: a rule on each new loss and gradient norm that costs next to nothing.

    The level is an exponential mean of the past (weight 0.1 on the new value), the noise sqrt(pi) / 2 times that of the
    absolute steps, which is a loss's standard deviation if its noise is normal. Two steps in a row more than seven of them
    above the level is a warning; the next comes 20 steps later at the earliest. It is for the person who watches: nothing
    records it, and the measures above do not know of it.
    """

    level: float | None = None
    noise: float = 0.0
    last: float = 0.0
    seen: int = 0
    above: int = 0
    quiet_until: int = 0

    def feed(self, step: int, value: float) -> float | None:
        """Take one value; the noise SDs it stands above the level, where that is worth a warning."""
        if not math.isfinite(value):
            return None
        warning = None
        if self.level is None:
            self.level = self.last = value
        rise, scale = value - self.level, 0.886 * self.noise
        self.above = self.above + 1 if self.seen >= SHORTEST_PAST and rise > WARNING * scale > 0 else 0
        if self.above == 2 and step >= self.quiet_until:
            warning, self.quiet_until = rise / scale, step + WINDOW
        self.level += 0.1 * rise
        # The first steps are averaged plainly, so that the noise does not start from nothing; a later jump counts as four
        # times the noise at most, so that it does not hide what follows it.
        moved = abs(value - self.last)
        moved = moved if self.seen < SHORTEST_PAST else min(moved, 4 * self.noise)
        self.noise += max(0.1, 1 / max(1, self.seen)) * (moved - self.noise) if self.seen else 0.0
        self.last, self.seen = value, self.seen + 1
        return warning


@dataclass
class EarlyWarning:
    """Watches the loss and the logarithm of the gradient norm of every run of a stack."""

    names: Sequence[str]
    losses: list[Watch] = field(init=False)
    norms: list[Watch] = field(init=False)

    def __post_init__(self) -> None:
        self.losses = [Watch() for _ in self.names]
        self.norms = [Watch() for _ in self.names]

    def feed(self, slot: int, step: int, loss: float, norm: float) -> str:
        """A sentence where a run looks as if it were about to break, else nothing."""
        level = self.losses[slot].level
        high = self.losses[slot].feed(step, loss)
        steep = self.norms[slot].feed(step, math.log(norm) if 0 < norm < math.inf else math.nan)
        if high is not None and level is not None:
            return f"{self.names[slot]}, step {step}: loss rising, {level:.3g} -> {loss:.3g} ({high:.0f} noise SDs)"
        if steep is not None:
            return f"{self.names[slot]}, step {step}: gradient norm jumping to {norm:.3g} ({steep:.0f} noise SDs)"
        return ""
