"""Numbers that decide, computed again by other means: closed testing, numeric likelihoods, scipy, statsmodels, loops."""

from __future__ import annotations

from itertools import chain, combinations, pairwise

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from scipy import optimize, stats
from statsmodels.stats.anova import anova_lm

from ablationlab.stats import compare_unpaired, crossed_bootstrap, crossed_mean, gatekeep, item_pairs
from ablationlab.stats.failures import exact_upper_bound


def graph(chains, onward):
    """Weights and transitions as the module says them: alpha / m each; on to the others, to its secondaries, and back."""
    m = len(chains)
    names = [("p", k) for k in range(m)] + [("s", k, place) for k in range(m) for place in range(chains[k])]
    passes = {a: dict.fromkeys(names, 0.0) for a in names}
    for k in range(m):
        others = [("p", other) for other in range(m) if other != k]
        on = 1.0 if not chains[k] else onward if others else 0.0
        for other in others:
            passes["p", k][other] += on / len(others)
        nodes = [("p", k)] + [("s", k, place) for place in range(chains[k])]
        for before, after in pairwise(nodes):
            passes[before][after] += 1 - on if before == ("p", k) else 1.0
        if chains[k]:
            for other in others:
                passes[nodes[-1]][other] += 1 / len(others)
    return names, {name: (1 / m if name[0] == "p" else 0.0) for name in names}, passes


def without(node, weights, passes):
    """The graph without one hypothesis (Bretz et al. 2009)."""
    rest = [name for name in weights if name != node]
    through = {
        a: {
            b: 0.0
            if a == b or passes[a][node] * passes[node][a] >= 1
            else (passes[a][b] + passes[a][node] * passes[node][b]) / (1 - passes[a][node] * passes[node][a])
            for b in rest
        }
        for a in rest
    }
    return {name: weights[name] + weights[node] * passes[node][name] for name in rest}, through


def by_closed_testing(p, chains, onward):
    """Adjusted p: the largest weighted Bonferroni p over every intersection that contains the hypothesis."""
    names, weights, passes = graph(chains, onward)
    adjusted = dict.fromkeys(names, 0.0)
    for together in chain.from_iterable(combinations(names, size) for size in range(1, len(names) + 1)):
        w, g = weights, passes
        for name in names:
            if name not in together:
                w, g = without(name, w, g)
        smallest = min((p[name] / w[name] for name in together if w[name] > 0), default=1.0)
        for name in together:
            adjusted[name] = max(adjusted[name], min(smallest, 1.0))
    return adjusted


@pytest.mark.parametrize("seed", range(12))
def test_gatekept_p_values_are_those_of_closed_testing(seed):
    rng = np.random.default_rng(seed)
    chains = [int(rng.integers(0, 3)) for _ in range(int(rng.integers(1, 4)))]
    correction, onward = [("holm", 0.5), ("bonferroni", 0.0)][seed % 2]
    names, *_ = graph(chains, onward)
    p = {name: float(rng.beta(0.3, 3)) for name in names}
    expected = by_closed_testing(p, chains, onward)
    if correction == "bonferroni" and not any(chains):
        expected = {name: min(1.0, len(chains) * value) for name, value in p.items()}
    found = gatekeep(
        [(None, p["p", k]) for k in range(len(chains))],
        [[(None, p["s", k, place]) for place in range(size)] for k, size in enumerate(chains)],
        correction=correction,
        rng=rng,
    )
    for k, size in enumerate(chains):
        assert found.primaries[k].p_adjusted == pytest.approx(expected["p", k])
        for place in range(size):
            ours = found.secondaries[k][place].p_adjusted
            assert (1.0 if ours is None else ours) == pytest.approx(expected["s", k, place])


def numeric_score(b, c, n, difference):
    """(b - c - n D) over its SD at the numerically most likely q under D."""

    def unlikely(q):
        cells = np.clip([q + difference, q, 1 - 2 * q - difference], 1e-300, 1)
        return -(b * np.log(cells[0]) + c * np.log(cells[1]) + (n - b - c) * np.log(cells[2]))

    low, high = max(0.0, -difference), (1 - difference) / 2
    best = optimize.minimize_scalar(unlikely, bounds=(low, high), method="bounded", options={"xatol": 1e-12}).x
    best = min((low, best, high), key=unlikely)
    return (b - c - n * difference) / np.sqrt(n * (2 * best + difference * (1 - difference)))


def largest_p(b, c, n, difference):
    tables = [(x, y) for x in range(n + 1) for y in range(n + 1 - x)]
    observed = numeric_score(b, c, n, difference)
    extreme = [table for table in tables if numeric_score(*table, n, difference) <= observed + 1e-5]
    shares = np.linspace(max(0.0, -difference), (1 - difference) / 2, 401)
    cells = np.stack([shares + difference, shares, np.clip(1 - 2 * shares - difference, 0, 1)], axis=1)
    return sum(
        stats.multinomial.pmf([x, y, n - x - y], n, cells / cells.sum(axis=1, keepdims=True)) for x, y in extreme
    ).max()


@pytest.mark.parametrize(("b", "c", "n"), [(0, 0, 5), (1, 0, 6), (0, 2, 6), (1, 1, 5)])
def test_the_failure_bound_is_where_the_largest_p_of_all_tables_crosses_alpha(b, c, n):
    bound = exact_upper_bound(b, c, n, 0.025)
    for pairs in range(n, n + 7):
        assert largest_p(b, c, pairs, bound + 2e-4) <= 0.025
    assert max(largest_p(b, c, pairs, bound - 2e-4) for pairs in range(n, n + 7)) > 0.025


@pytest.mark.parametrize("seed", range(4))
def test_crossed_intervals_come_from_the_mean_squares_of_statsmodels(seed):
    rng = np.random.default_rng(seed)
    delta = rng.normal(0.1, 1, (5, 12)) + rng.normal(0, 1, (5, 1)) + rng.normal(0, 1, 12)
    rows = [{"d": delta[s, i], "seed": s, "item": i} for s in range(5) for i in range(12)]
    squares = anova_lm(smf.ols("d ~ C(seed) + C(item)", pd.DataFrame(rows)).fit())["mean_sq"]
    terms = [squares["C(seed)"], squares["C(item)"], squares["Residual"]]
    assert min(terms[:2]) > terms[2]
    variance = (terms[0] + terms[1] - terms[2]) / 60
    freedom = (60 * variance) ** 2 / (terms[0] ** 2 / 4 + terms[1] ** 2 / 11 + terms[2] ** 2 / 44)
    expected = stats.t.interval(0.95, freedom, delta.mean(), np.sqrt(variance))
    found = crossed_mean(delta)
    assert (found.interval.low, found.interval.high) == pytest.approx(expected)
    assert found.p == pytest.approx(2 * stats.t.sf(abs(delta.mean()) / np.sqrt(variance), freedom))


@pytest.mark.parametrize("seed", range(6))
def test_welch_is_scipys_in_every_number(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0.5, 1, int(rng.integers(3, 9))), rng.normal(0, 3, int(rng.integers(3, 9)))
    found, theirs = compare_unpaired(a, b, smallest_effect=2.0), stats.ttest_ind(a, b, equal_var=False)
    assert (found.test.p, found.test.statistic) == pytest.approx((theirs.pvalue, theirs.statistic))
    assert (found.interval.low, found.interval.high) == pytest.approx(tuple(theirs.confidence_interval(0.95)))
    shifted = [
        stats.ttest_ind(a + 2.0, b, equal_var=False, alternative="greater").pvalue,
        stats.ttest_ind(a - 2.0, b, equal_var=False, alternative="less").pvalue,
    ]
    assert found.equivalence.p == pytest.approx(max(shifted))


def test_the_crossed_bootstrap_is_a_plain_loop_over_seeds_and_items():
    rng = np.random.default_rng(9)
    delta = rng.normal(0.2, 1, (6, 25)) + rng.normal(0, 0.5, (6, 1))
    means = [delta[np.ix_(rng.integers(0, 6, 6), rng.integers(0, 25, 25))].mean() for _ in range(20_000)]
    found = crossed_bootstrap({"task": item_pairs(delta, np.zeros_like(delta))}, rng=rng).tasks["task"]
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.02)
