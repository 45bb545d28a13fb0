"""Simulated error rates of the procedures in ablationlab.stats: families, ties, tuned arms, seeds x items, failures, trends,
variance components, calibrated regimes.

    PYTHONPATH=src python benchmarks/procedures.py                   # docs/validation-tables.md; minutes on one core
    PYTHONPATH=src python benchmarks/procedures.py --quick families  # a tenth of the studies, one table

Fixed seeds: the same command gives the same tables. With 2,000 studies a rate of 5 % has a standard error of 0.5 points.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from ablationlab.core.errors import PlanError
from ablationlab.records.plan import Try
from ablationlab.records.settings import Study
from ablationlab.stats import crossed_bootstrap, crossed_mean, item_pairs, paired_tost, variance_components
from ablationlab.stats._common import FloatArray
from ablationlab.stats.failures import (
    exact_upper_bound,
    paired_survival,
    score_upper_bound,
)
from ablationlab.stats.families import gate_graph, graph_test
from ablationlab.stats.results import Doubt
from ablationlab.stats.trend import trend
from ablationlab.stats.tuned import beyond_doubt, fitted_minimum
from ablationlab.study.calibration import next_value, settled
from ablationlab.study.load import parse_study

BoolArray = NDArray[np.bool_]

ALPHA = 0.05


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a Markdown table."""
    print(f"\n**{title}**\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for row in rows:
        print(f"| {' | '.join(f'{100 * c:.1f}' if isinstance(c, float) else str(c) for c in row)} |")


def t_test(deltas: FloatArray) -> FloatArray:
    """Two-sided paired-t p over the last axis."""
    n = deltas.shape[-1]
    t = deltas.mean(axis=-1) / (deltas.std(axis=-1, ddof=1) / np.sqrt(n))
    return np.asarray(2 * special.stdtr(n - 1, -np.abs(t)))


def holm(p: FloatArray) -> BoolArray:
    """Holm's rejections, along the last axis."""
    m = p.shape[-1]
    order = np.argsort(p, axis=-1)
    ranked = np.take_along_axis(p, order, axis=-1) * np.arange(m, 0, -1)
    rejected = np.maximum.accumulate(ranked, axis=-1) <= ALPHA
    out = np.empty_like(rejected)
    np.put_along_axis(out, order, rejected, axis=-1)
    return out


def dunnett_rejections(deltas: FloatArray) -> BoolArray:
    """The pooled Dunnett test of studies x variants x seeds: the residual variance of arms x seeds is every arm's."""
    _, m, n = deltas.shape
    y = np.concatenate([np.zeros_like(deltas[:, :1]), deltas], axis=1)
    residuals = y - y.mean(axis=1, keepdims=True) - y.mean(axis=2, keepdims=True) + y.mean(axis=(1, 2), keepdims=True)
    errors = np.sqrt(2 / n * (residuals**2).sum(axis=(1, 2)) / ((n - 1) * m))
    return np.asarray(np.abs(deltas.mean(axis=2)) >= dunnett_critical(m, (n - 1) * m) * errors[:, None])


def dunnett_critical(m: int, freedom: int) -> float:
    """The t that the largest of m |T_k| of correlation 1/2 with a shared error exceeds with probability ALPHA.

    Given the error u and the baseline's part z they are independent; averaged over z ~ N(0, 1) and u = sqrt(chi2_f / f).
    """
    node, weight = np.polynomial.legendre.leggauss(80)
    z, z_weight = 8.5 * node, 8.5 * weight * stats.norm.pdf(8.5 * node)
    low, high = np.sqrt(stats.chi2.ppf((1e-15, 1 - 1e-15), freedom) / freedom)
    u = low + (high - low) * (node + 1) / 2
    u_weight = weight * (high - low) / 2 * stats.chi.pdf(u * np.sqrt(freedom), freedom) * np.sqrt(freedom)

    def beyond(t: float) -> float:
        reach = np.sqrt(2) * t * u[:, None]
        inside = (special.ndtr(z + reach) - special.ndtr(z - reach)) ** m
        return float(1 - u_weight @ inside @ z_weight)

    return float(optimize.brentq(lambda t: beyond(t) - ALPHA, 1.0, 50.0))


def families(studies: int) -> None:
    """Family-wise errors of Holm and of what it replaced; simultaneous coverage of Holm's intervals; gatekeeping."""
    rng = np.random.default_rng(17)
    rows: list[list[object]] = []
    for name, first, last in (
        ("equal", 1.0, 1.0),
        ("baseline twice as noisy", 2.0, 1.0),
        ("baseline four times as noisy", 4.0, 1.0),
        ("one variant three times as noisy", 1.0, 3.0),
    ):
        for m in (2, 5, 12):
            row: list[object] = [name, m]
            for n in (3, 5):
                y = rng.normal(size=(10 * studies, m + 1, n)) * _arms(m + 1, first=first, last=last)
                deltas = y[:, 1:] - y[:, :1]
                sd = deltas.std(axis=2, ddof=1)
                by_holm, by_dunnett = holm(t_test(deltas)).any(axis=1), dunnett_rejections(deltas).any(axis=1)
                switched = np.where(sd.max(axis=1) > 4 * sd.min(axis=1), by_holm, by_dunnett)
                row += [float(by_holm.mean()), float(by_dunnett.mean()), float(switched.mean())]
            rows.append(row)
    procedures = ("Holm (shipped)", "Dunnett", "switched")
    heads = ["noise of the arms", "variants", *(f"{name}, n = {n}" for n in (3, 5) for name in procedures)]
    table("Any false claim in a family of variants, %, alpha 5 %", heads, rows)
    rows = []
    for n in (3, 5, 10):
        y = rng.normal(size=(studies, 3, n))
        y[:, 1] += 1.5 * np.sqrt(2)
        deltas = y[:, 1:] - y[:, :1]
        rows.append([n, float(holm(t_test(deltas))[:, 0].mean()), float(dunnett_rejections(deltas)[:, 0].mean())])
    table("Power of one of two equally noisy variants at d_z = 1.5, %", ["pairs", "Holm", "Dunnett"], rows)
    rows = []
    for m in (2, 4):
        for real in (0, 1, m):
            y = rng.normal(size=(studies, m, 5))
            y[:, :real] += 3.0
            p, rejected = t_test(y), holm(t_test(y))
            smaller = (p[:, None, :] < p[:, :, None]).sum(axis=2)
            level = np.where(rejected & (p > ALPHA / m), ALPHA / (m - smaller), ALPHA / m)
            half = special.stdtrit(4, 1 - level / 2) * y.std(axis=2, ddof=1) / np.sqrt(5)
            truth = np.where(np.arange(m) < real, 3.0, 0.0)
            covered = np.abs(y.mean(axis=2) - truth) <= half
            rows.append([m, real, float(covered.all(axis=1).mean())])
    table(
        "All deciding intervals of a Holm family hold their truths, %, n = 5",
        ["members", "real effects", "covered"],
        rows,
    )
    rows = []
    for name, truths, onward in (
        ("nothing is real", (0, 0), 0.5),
        ("one of two variants is better, all secondaries null", (1, 0), 0.5),
        ("both are better, all secondaries null", (1, 1), 0.5),
    ):
        weights, passes = gate_graph([True, True], [2, 2], onward)
        graph = naive = 0
        for p in rng.uniform(size=(studies, 6)):
            p = p.copy()
            p[:2][np.array(truths, dtype=bool)] = 0.0
            true_null = np.array([*(not truth for truth in truths), True, True, True, True])
            adjusted = np.array(graph_test(p.tolist(), weights, passes, ALPHA)[0], dtype=np.float64)
            graph += bool((adjusted[true_null] <= ALPHA).any())
            primaries = holm(p[:2])
            claims = [*primaries]
            for k in (0, 1):
                first = primaries[k] and p[2 + 2 * k] <= ALPHA
                claims += [first, first and p[3 + 2 * k] <= ALPHA]
            naive += bool(np.array(claims)[true_null].any())
        rows.append([name, graph / studies, naive / studies])
    heads = ["truth", "graph (as shipped)", "secondaries at full alpha after any rejection"]
    table("Any false claim, two primaries with two secondaries each, %", heads, rows)


def _arms(arms: int, first: float = 1.0, last: float = 1.0) -> FloatArray:
    scale = np.ones((1, arms, 1))
    scale[0, 0, 0], scale[0, -1, 0] = first, last
    return scale


def ties(studies: int) -> None:
    """Equivalence of two variants: each by its own two one-sided tests, and with Holm over the family of primaries."""
    rng = np.random.default_rng(24)
    rows: list[list[object]] = []
    for seeds in (5, 10, 20):
        for sd in (0.6, 1.0):
            for regimes in (1, 2):
                row: list[object] = [seeds, f"{sd:g}", regimes]
                for truth in (1.0, 0.0):  # in smallest effects
                    y = rng.normal(0, sd / np.sqrt(2), (10 * studies, regimes, 3, seeds))
                    deltas = truth + y[:, :, 1:] - y[:, :, :1]
                    mean = deltas.mean(axis=-1)
                    error = deltas.std(axis=-1, ddof=1) / np.sqrt(seeds)
                    p = special.stdtr(seeds - 1, (np.abs(mean) - 1) / error)
                    own = p <= ALPHA
                    family = holm(p.reshape(len(p), -1)).reshape(p.shape)
                    for called in (own, family):
                        row.append(float(called[:, 0, 0].mean()))
                        row += [float(called[:, 0].any(axis=-1).mean())] if truth else []
                rows.append(row)
    heads = [
        "seeds",
        "SD",
        "regimes",
        "false tie",
        "of either",
        "with Holm",
        "of either, with Holm",
        "true tie",
        "with Holm",
    ]
    table("Ties of two variants, %: at the margin (false) and without a difference (true), in one regime", heads, rows)


#: Losses over d, the distance from the best rate in factors of two; all are lowest, 0, at d = 0.
CURVES: dict[str, Callable[[FloatArray], FloatArray]] = {
    "parabola": lambda d: 0.01 * d**2,
    "lopsided": lambda d: 0.02 / 0.09 * (np.exp(0.3 * d) - 1 - 0.3 * d),
    "eight times as steep above": lambda d: np.where(d < 0, 0.04 * d**2, 0.3 * d**2),
    "a kink above": lambda d: 0.04 * d**2 + 0.4 * np.maximum(d - 0.2, 0),
    "a cliff above": lambda d: np.where(d < 0.3, 0.05 * d**2, 0.4),
    "steep, a cliff above": lambda d: np.where(d < 0.3, 0.2 * d**2, 0.4 + 0.2 * d**2),
    "a V": lambda d: np.where(d < 0, -0.15 * d, 0.4 * d),
    "falling to a cliff": lambda d: np.where(d <= 0, -0.1 * d, 0.4 + 0.05 * d),
}


def tuned(studies: int) -> None:
    """Equal curves with equal or different optima: how often the best losses are called different."""
    rng = np.random.default_rng(18)
    rows = []
    for step, count, grid in ((0.5, 9, "dense (x 1.4)"), (1.0, 7, "x 2"), (2.0, 5, "coarse (x 4)")):
        for name, curve in CURVES.items():
            for n in (3, 8):
                rows.append([grid, name, n, *_tuned_cell(rng, step, count, (curve, curve), n, studies)])
            other = (curve, CURVES["parabola"])
            rows.append(
                [grid, f"{name}; the other arm's a parabola", 8, *_tuned_cell(rng, step, count, other, 8, studies)]
            )
    heads = ["grid", "curves", "pairs", "grid rates, chosen on 2 other seeds", "choice repeated in a bootstrap"]
    heads += ["per-seed parabolas, each its minimum", "a parabola at the common optimum", "a cubic"]
    heads += ["a cubic, beyond doubt (shipped)", "doubt of two arms", "fit possible"]
    table("Equal best losses called different at 5 %, %", heads, rows)


def _tuned_cell(
    rng: np.random.Generator,
    step: float,
    count: int,
    curves: tuple[Callable[[FloatArray], FloatArray], Callable[[FloatArray], FloatArray]],
    n: int,
    studies: int,
) -> list[object]:
    x = step * (np.arange(count) - (count - 1) / 2)
    hits = dict.fromkeys(("selected", "bootstrap", "own", "parabola", "cubic", "shipped"), 0)
    own_used = used = fitted = 0
    doubts = []
    for _ in range(studies):
        offset = rng.uniform(-0.5, 0.5) * step
        shared = 0.02 * rng.normal(size=(n + 2, 1))
        arms = []
        for curve, shift in zip(curves, (0.0, rng.uniform(-1.0, 1.0)), strict=True):
            noise = 0.01 * np.sqrt(0.5) * (rng.normal(size=(n + 2, 1)) + rng.normal(size=(n + 2, count)))
            arms.append(curve(np.asarray(x - offset - shift, dtype=np.float64)) + shared + noise)
        chosen = [arm[:2].mean(axis=0).argmin() for arm in arms]
        hits["selected"] += bool(t_test(arms[1][2:, chosen[1]] - arms[0][2:, chosen[0]]) <= ALPHA)
        judged = [arm[2:] for arm in arms]
        draws = rng.integers(0, n, (300, n))
        best = [arm[draws].mean(axis=1).min(axis=1) for arm in judged]
        low, high = np.quantile(best[1] - best[0], [0.025, 0.975])
        hits["bootstrap"] += bool(low > 0 or high < 0)
        fits = [fitted_minimum(dict(zip(2.0**x, arm.T.tolist(), strict=True))) for arm in judged]
        fitted += all(fit.status == "ok" for fit in fits)
        # The rates of a coarse grid as if they were near: what the refusal protects from.
        fits = [fitted_minimum(dict(zip(2.0 ** (x / max(step, 1)), arm.T.tolist(), strict=True))) for arm in judged]
        if all(fit.status == "ok" for fit in fits):
            used += 1
            deltas = np.array(fits[1].values) - np.array(fits[0].values)
            doubts.append(fits[0].doubt + fits[1].doubt)
            hits["cubic"] += bool(t_test(deltas) <= ALPHA)
            hits["shipped"] += bool(
                t_test(np.array(beyond_doubt(deltas.tolist(), Doubt(doubts[-1], doubts[-1])))) <= ALPHA
            )
            parabolas = [_at_common_optimum(arm) for arm in judged]
            hits["parabola"] += bool(t_test(parabolas[1] - parabolas[0]) <= ALPHA)
            minima = [_own_minima(arm) for arm in judged]
            if all(np.isfinite(values).all() for values in minima):
                own_used += 1
                hits["own"] += bool(t_test(minima[1] - minima[0]) <= ALPHA)
    rates: list[object] = [hits["selected"] / studies, hits["bootstrap"] / studies]
    rates += [f"{100 * hits['own'] / own_used:.1f} (of {100 * own_used / studies:.0f})" if own_used else "–"]
    rates += [hits[name] / max(used, 1) for name in ("parabola", "cubic", "shipped")]
    return [*rates, f"{np.median(doubts):.4f}" if doubts else "–", fitted / studies]


def _at_common_optimum(arm: FloatArray) -> FloatArray:
    """Each seed's parabola through the three rates about the lowest mean, at the minimum of the mean parabola."""
    at = int(arm.mean(axis=0).argmin())
    low, middle, high = arm[:, at - 1], arm[:, at], arm[:, at + 1]
    curvature, slope = (low + high) / 2 - middle, (high - low) / 2
    place = -slope.mean() / (2 * curvature.mean())
    return np.asarray(middle + slope * place + curvature * place**2)


def tuned_ties(studies: int) -> None:
    """Tuned arms whose best losses differ by exactly the smallest effect: how often they are called equivalent."""
    rng = np.random.default_rng(26)
    x = np.arange(-2.0, 3.0)  # log2 of the rate; a factor of two from the optimum costs two smallest effects
    rows: list[list[object]] = []
    for n in (5, 10):
        for sd in (0.6, 1.0):
            fitted = ties = 0
            for _ in range(5 * studies):
                fits = []
                for truth in (0.0, 1.0):
                    curve = truth + 2 * (x - rng.uniform(-0.5, 0.5)) ** 2
                    losses = curve[:, None] + rng.normal(0, sd / np.sqrt(2), (x.size, n))
                    fits.append(fitted_minimum(dict(zip(2.0**x, losses.tolist(), strict=True))))
                if all(fit.status == "ok" for fit in fits):
                    fitted += 1
                    tost = paired_tost(
                        np.subtract(fits[1].values, fits[0].values).tolist(), smallest_effect=1.0, alpha=ALPHA
                    )
                    ties += bool(tost.equivalent)
            rows.append([n, f"{sd:g}", ties / max(fitted, 1), fitted / (5 * studies)])
    heads = ["pairs", "SD", "false tie", "fit possible"]
    table("Tuned arms at the margin called equivalent at 5 %, %; rates a factor 2 apart", heads, rows)


def _own_minima(arm: FloatArray) -> FloatArray:
    """The minimum of each seed's own parabola; NaN where it is not convex."""
    at = int(arm.mean(axis=0).argmin())
    low, middle, high = arm[:, at - 1], arm[:, at], arm[:, at + 1]
    curvature, slope = (low + high) / 2 - middle, (high - low) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(curvature > 0, middle - slope**2 / (4 * curvature), np.nan))


def crossed(studies: int) -> None:
    """Coverage and width of seeds x items intervals."""
    rng = np.random.default_rng(19)
    rows = []
    for name, sds in (
        ("seeds dominate", (1.0, 0.1, 0.3)),
        ("balanced", (0.1, 1.0, 1.0)),
        ("items dominate", (0.0, 1.0, 0.5)),
        ("single answers dominate", (0.0, 0.0, 1.0)),
    ):
        for seeds in (3, 5, 10):
            covered, widths = np.zeros(3), np.zeros(3)
            for _ in range(max(studies // 2, 100)):
                delta = sds[0] * rng.normal(size=(seeds, 1)) + sds[1] * rng.normal(size=200)
                delta = delta + sds[2] * rng.normal(size=(seeds, 200))
                pairs = item_pairs(delta, np.zeros_like(delta))
                over_seeds = delta.mean(axis=1)
                half = stats.t.ppf(0.975, seeds - 1) * over_seeds.std(ddof=1) / np.sqrt(seeds)
                bounds = [(over_seeds.mean() - half, over_seeds.mean() + half)]
                for interval in (
                    crossed_mean(delta).interval,
                    crossed_bootstrap({"t": pairs}, resamples=300, rng=rng).macro,
                ):
                    assert interval.low is not None
                    assert interval.high is not None
                    bounds.append((interval.low, interval.high))
                for place, (low, high) in enumerate(bounds):
                    covered[place] += low <= 0 <= high
                    widths[place] += high - low
            share = covered / max(studies // 2, 100)
            rows.append([name, seeds, *(float(value) for value in share), f"{widths[1] / widths[2]:.2f}"])
    heads = [
        "noise",
        "seeds",
        "paired t over seeds",
        "analysis of variance",
        "crossed bootstrap",
        "relative width",
    ]
    table("Coverage of 95 % intervals over seeds and 200 items, %", heads, rows)


def documents(studies: int) -> None:
    """Coverage of seeds x documents intervals where documents have unequal lengths; five seeds, documents make the noise."""
    rng = np.random.default_rng(23)
    rows = []
    for name, power in (("alike", 0.0), ("less where long", -0.25), ("more where long", 0.25)):
        for number in (20, 50, 200):
            row: list[object] = [name, number]
            for spread in (0.0, 1.0, 1.5):
                covered = 0
                for _ in range(studies):
                    tokens = np.exp(spread * rng.normal(size=number))
                    delta = tokens**power * rng.normal(size=number) + 0.3 * rng.normal(size=(5, number))
                    covered += crossed_mean(delta, weights=tokens).interval.excludes(0.0) is False
                row.append(covered / studies)
            rows.append(row)
    heads = ["documents vary", "documents", "equal lengths", "log-normal lengths, SD 1", "log-normal lengths, SD 1.5"]
    table("Coverage of 95 % intervals over 5 seeds and documents, %", heads, rows)


def failures(studies: int) -> None:
    """Exact coverage of the non-inferiority bounds, by enumeration; the level of the paired survival test, simulated."""
    rows = []
    for n in (3, 5, 10, 20, 100):
        row: list[object] = [n]
        b, c = (grid.ravel() for grid in np.meshgrid(range(n + 1), range(n + 1)))
        b, c = b[b + c <= n], c[b + c <= n]
        for bound in (exact_upper_bound, score_upper_bound):
            if n > 20 and bound is exact_upper_bound:
                row += ["–"] * 3
                continue
            uppers = np.array([bound(int(i), int(j), n, ALPHA) for i, j in zip(b, c, strict=True)])
            shares = []
            for difference in np.linspace(-0.3, 0.6, 10):
                for q in np.linspace(max(0.0, -difference), 0.999 * (1 - difference) / 2, 12):
                    p = np.maximum([q + difference, q, 1 - 2 * q - difference], 0.0)
                    mass = stats.multinomial.pmf(np.stack([b, c, n - b - c], axis=1), n, p / p.sum())
                    shares.append(float(mass[uppers >= difference - 1e-9].sum()))
            row += [float(uppers[(b == 0) & (c == 0)][0]), min(shares), float(np.mean(shares))]
        rows.append(row)
    heads = ["pairs", *(f"{kind}: {what}" for kind in ("exact", "score") for what in ("no failures", "least", "mean"))]
    table(
        "One-sided 95 % bounds of a paired difference in failure rates: coverage over 120 truths, enumerated, %",
        heads,
        rows,
    )
    rng = np.random.default_rng(20)
    rows = []
    for n in (5, 10, 24):
        rejected = 0
        for _ in range(studies):
            shared = rng.exponential(60, n)
            arms = [[int(t) if t < 50 else None for t in np.minimum(shared, rng.exponential(80, n))] for _ in range(2)]
            p = paired_survival(arms[0], arms[1], length=50, resamples=500, rng=rng).p
            rejected += p is not None and p <= ALPHA
        rows.append([n, rejected / studies])
    table("Equal hazards called different by the paired survival test at 5 %, %", ["pairs", "rejected"], rows)


def trends(studies: int) -> None:
    """Coverage of the slope and of a prediction one factor of ten beyond the largest study."""
    rng = np.random.default_rng(21)
    rows = []
    for size in (3, 4, 6):
        x = np.arange(size, dtype=np.float64)
        for between in (0.0, 0.02, 0.1):
            slope = predicted = 0
            for _ in range(studies):
                truth = 0.3 - 0.05 * x + between * rng.normal(size=size)
                seeds = truth[:, None] + 0.05 * rng.normal(size=(size, 5))
                found = trend(10**x, seeds.mean(axis=1), seeds.std(axis=1, ddof=1) / np.sqrt(5), at=float(10.0**size))
                assert found.prediction is not None
                slope += found.low <= -0.05 <= found.high
                predicted += found.prediction.low <= 0.3 - 0.05 * size + between * rng.normal() <= found.prediction.high
            rows.append([size, f"{between:g}", slope / studies, predicted / studies])
    heads = ["studies", "SD between studies (the seeds' errors are 0.022)", "slope", "prediction"]
    table("Coverage of 95 % intervals of a trend, 5 seeds per study, %", heads, rows)
    tuned_trends(studies)


def tuned_trends(studies: int) -> None:
    """Arms with equal best losses at every size, whose best rates drift apart with size: a trend, or a sign, is false."""
    curves: dict[str, Callable[[FloatArray], FloatArray]] = {
        "parabola": lambda d: 0.01 * d**2,
        "eight times as steep above": lambda d: np.where(d < 0, 0.02, 0.16) * d**2,
        "V": lambda d: np.where(d < 0, -0.05, 0.2) * d,
    }
    octaves, n = np.arange(-3.0, 4.0), 8
    rates = 2.0**octaves
    rows = []
    for name, curve in curves.items():
        for size in (3, 4, 6):
            rng = np.random.default_rng([25, size])
            made, alone, sign_alone, claimed, sign = 0, 0, 0, 0, 0
            for _ in range(studies):
                starts, drift = rng.uniform(-0.5, 0.5, 2), rng.uniform(0.1, 0.35)
                fits = []
                for place in range(size):
                    shared = 0.02 * rng.normal(size=n)
                    for start, speed in zip(starts, (1.0, 0.5), strict=True):
                        noise = 0.01 * np.sqrt(0.5) * (rng.normal(size=(1, n)) + rng.normal(size=(octaves.size, n)))
                        losses = curve(octaves - (start - speed * drift * place))[:, None] + noise + shared
                        fits.append(fitted_minimum(dict(zip(rates.tolist(), losses.tolist(), strict=True))))
                if any(fit.status != "ok" for fit in fits):
                    continue
                deltas = [np.subtract(a.values, b.values) for a, b in zip(fits[::2], fits[1::2], strict=True)]
                doubts = [a.doubt + b.doubt for a, b in zip(fits[::2], fits[1::2], strict=True)]
                sizes = 10.0 ** (6 + 0.5 * np.arange(size))
                means, errors = zip(*((d.mean(), d.std(ddof=1) / np.sqrt(n)) for d in deltas), strict=True)
                made += 1
                for with_doubt in (False, True):
                    found = trend(
                        sizes, means, errors, doubts=doubts if with_doubt else None, at=float(10 ** (7 + 0.5 * size))
                    )
                    assert found.prediction is not None
                    hits = found.p <= ALPHA, found.prediction.sign_holds > 1 - ALPHA
                    if with_doubt:
                        claimed, sign = claimed + hits[0], sign + hits[1]
                    else:
                        alone, sign_alone = alone + hits[0], sign_alone + hits[1]
            counts = (alone, claimed, sign_alone, sign)
            rows.append([name, size, *(count / made for count in counts), f"{made:,}"])
    heads = ["curves", "sizes", "trend, fits alone", "trend (shipped)", "sign, fits alone", "sign (shipped)", "studies"]
    table(
        "Tuned arms that are equal at every size: a trend at 5 %, a sign said to hold with 95 % or more, %", heads, rows
    )


def components(studies: int) -> None:
    """Coverage of the intervals of variance components, and their mean estimates; the last SD is the rest's."""
    rows = []
    for shape in ((3, 3), (5, 5), (3, 3, 3)):
        for given in ((1.0, 1.0, 1.0), (1.0, 0.3, 0.3), (0.0, 2.0, 0.0)):
            rng = np.random.default_rng(23)
            sds = (*given[: len(shape)], 1.0)
            covered, variances = np.zeros(len(sds)), np.zeros(len(sds))
            for _ in range(studies):
                values = rng.normal(size=shape)
                for axis, sd in enumerate(sds[:-1]):
                    values = values + rng.normal(0, sd, [n if place == axis else 1 for place, n in enumerate(shape)])
                found = variance_components(values, [*"abc"[: len(shape)]], rng=rng)
                covered += [part.low <= sd <= part.high for part, sd in zip(found, sds, strict=True)]
                variances += [part.sd**2 for part in found]
            lists = (sds, np.sqrt(variances / studies))
            cells = [" / ".join(f"{value:.2f}" for value in numbers) for numbers in lists]
            cover = " / ".join(f"{100 * share:.1f}" for share in covered / studies)
            rows.append([" × ".join(map(str, shape)), *cells, cover])
    heads = ["layout", "SD of each source / rest", "root of the mean estimated variance", "95 % interval covers"]
    table("Variance components, %", heads, rows)


def calibrations(studies: int) -> None:
    """The share of baselines that really breaks at the value a calibration settles on. Shares are logistic in log value."""
    rng = np.random.default_rng(26)
    low, high = 1e-3, 1.0
    rows: list[list[object]] = []
    for name, factor in (("a factor 1.2", 1.2), ("a factor 2", 2.0), ("a factor 10", 10.0)):
        slope = 2 * np.log(9) / np.log(factor)
        for target in (0.25, 0.5, 0.75):
            for seeds in (4, 8, 16):
                study = calibrating(target, seeds, low, high)
                asked = study.regimes["hot"].calibrate
                assert asked is not None
                shares, tried, calm = [], 0, 0
                for _ in range(studies):
                    middle = rng.uniform(*np.log([5 * low, high / 5]))
                    tries: list[Try] = []
                    try:
                        while (value := next_value(study, "hot", tries)) is not None:
                            broken = rng.binomial(seeds, special.expit(slope * (np.log(value) - middle)))
                            tries.append(Try(value=value, seeds=asked.seeds, broken=int(broken), plan_hash=""))
                    except PlanError:  # refused: both ends lie on one side of the target
                        continue
                    found = settled(asked, tries)
                    shares.append(float(special.expit(slope * (np.log(found.value) - middle))))
                    tried, calm = tried + len(tries), calm + (found.chosen.broken == 0)
                spread = " to ".join(f"{100 * share:.0f}" for share in np.quantile(shares, (0.1, 0.9)))
                cells = [f"{100 * np.median(shares):.0f} ({spread})", float(np.mean(np.array(shares) < 0.05))]
                rows.append(
                    [name, f"{100 * target:.0f}", seeds, *cells, calm / len(shares), f"{tried / len(shares):.1f}"]
                )
    heads = ["from 10 to 90 % over", "target", "seeds", "true share: median (80 % of studies)", "below 5 % in truth"]
    table("Calibrated regimes, %", [*heads, "none broke", "values tried"], rows)


def calibrating(target: float, seeds: int, low: float, high: float) -> Study:
    """A study whose regime *hot* is calibrated, with the default number of tries."""
    asked = {"setting": "training.lr", "low": low, "high": high, "target": target, "seeds": [*range(101, 101 + seeds)]}
    variants = {"baseline": "none", "variants": ["none", "layernorm"], "seeds": [1, 2, 3]}
    model = {"layers": 1, "width": 16, "heads": 2, "context": 16}
    training = {"steps": 60, "batch": 4, "lr": 1e-3}
    table = {"name": "calibrated", **variants, "model": model, "training": training}
    return parse_study({**table, "regimes": {"hot": {"calibrate": asked}}})


PARTS: dict[str, Callable[[int], None]] = {
    "families": families,
    "ties": ties,
    "tuned": tuned,
    "tuned-ties": tuned_ties,
    "crossed": crossed,
    "documents": documents,
    "failures": failures,
    "trends": trends,
    "components": components,
    "calibrations": calibrations,
}


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--quick", action="store_true", help="a tenth of the studies")
    options = parser.parse_args()
    for name in options.parts or PARTS:
        start = time.perf_counter()
        PARTS[name](200 if options.quick else 2_000)
        print(f"\n({name}: {time.perf_counter() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
