"""Is a run stable? Its spikes, from its curves. Pure numpy.

**Spike score.** With losses x_1 .. x_T, W = 20 and the window before step t, w_t = (x_(t-W) .. x_(t-1)) (shorter at the
start, never below 10 steps):

    z_t    = (x_t - median(w_t)) / max(noise(w_t), noise(x))
    score  = max over t of min(z_t, z_(t+1))
    noise(v) = 1.4826 MAD(v_2 - v_1, v_3 - v_2, ...) / sqrt(2)

The noise is taken from first differences, so the descent of the loss does not count as noise, and by MAD, so a spike does
not hide itself. The loss falls, so the median of the past lies above it and descent gives negative z. A spike lasts: one
outlying batch shows for one step only, and the smaller of two neighbours ignores it. The idea of counting standard
deviations from the recent past, and the threshold of 7, are those of OLMo 2's spike score (arXiv 2501.00656).

Measured with `measured_false_alarms` at the default threshold: none of 1,000 calm curves of 300 steps is called spiking,
with normal, autocorrelated (0.5 from step to step) or heavy-tailed noise (t with 5 or 3 degrees of freedom); at 3,000 steps
none of 300, but for t with 3 degrees, 1 %. A jump by 15 noise SDs that decays over 5 steps is found in 94 % after the first
third of 300 steps, one by 10 SDs in 39 %. The score is blind in the first 10 steps, and to jumps smaller than the ground that
the loss made within the window while it still falls steeply.

**Worse than at the start.** Where the loss grows so wildly that its own noise hides the rise, the score is low: a run of
which the final validation loss exceeds the loss of its first batch, before any update, by more than a tenth has failed
however smoothly it did so. The tenth keeps a run that merely learned nothing out of it.

Measures of one run's course, from its training losses and gradient norms; and a warning while it runs. No torch.

With losses x_1 .. x_T up to the last that is finite, and m_t the median of x_(t-2) .. x_(t+2) (fewer at the ends):

    largest loss rise      max over s < t of m_t - m_s, at least 0
    steps to a threshold   the first t with m_t <= threshold; T, the whole budget, if there is none
    mean training loss     (x_1 + .. + x_T) / T, the area under the curve per step
    mean gradient norm     (|g_1| + .. + |g_T|) / T
    gradient spike score   the spike score (`spike_score`) of log |g_t|
    gradient spikes        episodes of steps whose log |g_t| stands above its window by more than the threshold, for at
                           least two steps; episodes fewer than W = 20 steps apart are one

The running median lets a single odd batch pass: it takes three steps out of five to move it. Norms are taken before
clipping, so clipping hides none of their spikes. Steps to a threshold is the restricted time: what a run that never
arrives would have needed is not known, only that it is more than the budget, so a difference between arms is rather
under- than overstated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from ablationlab.core.errors import StatisticsError
from ablationlab.stats._common import FloatArray
from ablationlab.stats.curves import thinned
from ablationlab.stats.results import CurveMeasures

WINDOW: Final = 20
SHORTEST_PAST: Final = 10
#: Windows that are sorted at once, so that a long curve does not need twenty times its memory.
_ROWS: Final = 65_536


@dataclass(frozen=True)
class Spike:
    """The largest loss spike of a run; *step* counts from 1. None where the run is too short to say."""

    score: float | None
    step: int | None


def spike_score(losses: ArrayLike) -> Spike:
    """The spike score of one loss curve; what follows the first loss that is not finite is left out."""
    x = np.asarray(losses, dtype=np.float64)
    if x.ndim != 1:
        raise StatisticsError(f"losses must be one-dimensional, got shape {x.shape}")
    bad = np.flatnonzero(~np.isfinite(x))
    x = x[: bad[0]] if bad.size else x
    lasting = lasting_scores(x)
    if lasting is None:
        return Spike(None, None)
    at = int(lasting.argmax())
    step = SHORTEST_PAST + at
    return Spike(float(lasting[at]), step + 1)


def lasting_scores(x: FloatArray) -> FloatArray | None:
    """min(z_t, z_(t+1)) from the first step that has a past; None where the curve is too short. All must be finite."""
    if x.size < SHORTEST_PAST + 2:
        return None
    medians, noises = _past(x)
    floor = max(_noise(x), 8 * np.finfo(np.float64).eps * float(np.abs(x).max()), np.finfo(np.float64).tiny)
    z = (x[SHORTEST_PAST:] - medians) / np.maximum(noises, floor)
    return np.asarray(np.minimum(z[:-1], z[1:]))


def ended_worse(final: float | None, initial: float | None, times: float) -> bool:
    """Whether a run's final loss is above so many times that of its start; False where one of the two is not known."""
    return final is not None and initial is not None and final > times * initial


def _past(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Median and noise of the window before each step, from the first step that has a past."""
    there = np.minimum(np.arange(SHORTEST_PAST, x.size), WINDOW)
    # The first windows are shorter: infinities in front of the curve, which sort to the end, fill them up.
    missing = np.full(WINDOW - SHORTEST_PAST, np.inf)
    windows_TW = sliding_window_view(np.concatenate([missing, x[:-1]]), WINDOW)
    steps_TW = sliding_window_view(np.concatenate([missing, np.diff(x[:-1])]), WINDOW - 1)
    medians, noises = np.empty(there.size), np.empty(there.size)
    for start in range(0, there.size, _ROWS):
        rows = slice(start, start + _ROWS)
        medians[rows] = _medians(windows_TW[rows], there[rows])
        noises[rows] = _noises(steps_TW[rows], there[rows] - 1)
    return medians, noises


def _noise(values: FloatArray) -> float:
    differences = np.diff(values)[None, :]
    return float(_noises(differences, np.array([differences.size]))[0])


def _noises(differences_TW: FloatArray, there_T: NDArray[np.intp]) -> FloatArray:
    centre = _medians(differences_TW, there_T)[:, None]
    spread: FloatArray = 1.4826 * _medians(np.abs(differences_TW - centre), there_T) / math.sqrt(2)
    return spread


def _medians(values_TW: FloatArray, there_T: NDArray[np.intp]) -> FloatArray:
    """numpy's median, bit for bit, of the *there_T* finite values of each row, in a fraction of its time on short rows."""
    ordered, rows = np.sort(values_TW, axis=-1), np.arange(len(values_TW))
    lower, upper = ordered[rows, (there_T - 1) // 2], ordered[rows, there_T // 2]
    return np.asarray(np.where(there_T % 2, lower, (lower + upper) / 2))


SMOOTH: Final = 5


def measure_curve(
    curves: Mapping[str, FloatArray], *, loss_threshold: float | None = None, spike_threshold: float
) -> CurveMeasures:
    """Every measure of one run, from its columns `step`, `loss`, `gradient_norm` and `curve_loss`, as far as it has them.

    What follows the first number that is not finite is left out.
    """
    steps, losses, norms = (curves.get(name, np.empty(0)) for name in ("step", "loss", "gradient_norm"))
    x, g = _curve("losses", losses), _curve("norms", norms)
    spike = spike_score(x)
    mean_norm = float(g.mean()) if g.size else None
    positive = np.flatnonzero(g <= 0)
    g = np.log(g[: positive[0]] if positive.size else g)
    scores = lasting_scores(g)
    return CurveMeasures(
        initial_loss=float(x[0]) if x.size and steps[0] == 1 else None,
        spike_score=spike.score,
        spike_step=spike.step,
        gradient_spike_score=None if scores is None else float(scores.max()),
        gradient_spikes=None if scores is None else _separate(scores, spike_threshold),
        largest_loss_rise=largest_rise(x),
        steps_to_loss=None if loss_threshold is None else steps_to(x, loss_threshold),
        mean_training_loss=float(x.mean()) if x.size else None,
        mean_gradient_norm=mean_norm,
        curve=thinned(curves),
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
        m[t] = median(x[max(0, t - half) : t + half + 1])
    windows = sliding_window_view(x, SMOOTH) if x.size >= SMOOTH else np.empty((0, SMOOTH))
    for start in range(0, len(windows), _ROWS):
        rows = windows[start : start + _ROWS]
        m[half + start : half + start + len(rows)] = np.sort(rows, axis=1)[:, half]
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


def _separate(scores: FloatArray, threshold: float) -> int:
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


@dataclass(frozen=True)
class EarlyWarning:
    """A run that looks as if it were about to break: its loss or gradient norm stands *noise_sds* above its level."""

    run: str
    step: int
    of: Literal["loss", "gradient-norm"]
    value: float
    level: float
    noise_sds: float


@dataclass
class StackWatch:
    """Watches the loss and the logarithm of the gradient norm of every run of a stack. While the learning rate warms up,
    norms fall and rise again in every run, so they give no warning before step *calm_from*; losses do."""

    names: Sequence[str]
    calm_from: int = 0
    losses: list[Watch] = field(init=False)
    norms: list[Watch] = field(init=False)

    def __post_init__(self) -> None:
        self.losses = [Watch() for _ in self.names]
        self.norms = [Watch(quiet_until=self.calm_from) for _ in self.names]

    def feed(self, slot: int, step: int, loss: float, norm: float) -> EarlyWarning | None:
        """A warning where one is due; of the loss, if both give one."""
        loss_level, norm_level = self.losses[slot].level, self.norms[slot].level
        high = self.losses[slot].feed(step, loss)
        steep = self.norms[slot].feed(step, math.log(norm) if 0 < norm < math.inf else math.nan)
        if high is not None and loss_level is not None:
            return EarlyWarning(self.names[slot], step, "loss", loss, loss_level, high)
        if steep is not None and norm_level is not None:
            return EarlyWarning(self.names[slot], step, "gradient-norm", norm, math.exp(norm_level), steep)
        return None
