from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from ablationlab.core.errors import StatisticsError
from ablationlab.stats.convex import least_of_two
from ablationlab.stats.tuned import best_pair_of_stages

GRID = np.array(list(product((-2.0, -1.0, 0.0, 1.0, 2.0), (-1.0, 0.0, 1.0))))

#: Convex in both together.
SURFACES = {
    "a bowl": lambda x, y: 0.02 * (x**2 + y**2),
    "a ridge": lambda x, y: 0.02 * (x**2 + y**2 + 1.6 * x * y),
    "a kink": lambda x, y: 0.04 * (x**2 + y**2) + 0.4 * np.maximum(x - 0.2, 0),
    "a V": lambda x, y: 0.15 * np.abs(x + y) + 0.05 * np.abs(x - y),
}


def least(points, values, **options):
    return least_of_two(points, values, int(np.argmin(values)), **{"slack": 0.0, "nearest": 0.0} | options)


def exact(points, values, place):
    """The least of a convex function at one place, by linear programmes: of each point's lines, the lowest there."""
    bounds = []
    for i, point in enumerate(points):
        others = [j for j in range(len(points)) if j != i]
        found = linprog(
            place - point, A_ub=points[others] - point, b_ub=values[others] - values[i], bounds=[(None, None)] * 2
        )
        bounds.append(values[i] + found.fun if found.status == 0 else -np.inf)
    return max(bounds)


@pytest.mark.parametrize("name", SURFACES)
def test_no_convex_function_lies_below_the_least_and_one_does_reach_it(name):
    rng = np.random.default_rng(1)
    for _ in range(5):
        best = rng.uniform(-0.4, 0.4, 2)
        values = SURFACES[name](*(GRID - best).T)
        found = least(GRID, values)
        if found is None:
            continue
        assert found <= SURFACES[name](0.0, 0.0) + 1e-4 * np.ptp(values)
        places = [*(GRID.mean(axis=0) + rng.uniform((-2.5, -1.5), (2.5, 1.5), (40, 2))), best]
        # Of the places where the lines are lowest, none is lower by more than a lattice's step.
        assert found <= min(exact(GRID, values, place) for place in places) + 0.01 * np.ptp(values)


def test_the_least_moves_with_the_values_and_scales_with_them():
    values = SURFACES["a ridge"](*(GRID - [0.2, -0.1]).T)
    found = least(GRID, values)
    assert least(GRID, 3.0 + 7 * values) == pytest.approx(3.0 + 7 * found, rel=1e-6)
    swapped = least(GRID[:, ::-1], values)
    assert swapped == pytest.approx(found, abs=1e-9)


def test_slack_and_points_that_say_nothing_only_lower_it():
    rng = np.random.default_rng(2)
    points = np.vstack([GRID, 0.25 * np.array(list(product((-1, 0, 1), repeat=2)))[[0, 1, 2, 3, 5, 6, 7, 8]]])
    values = SURFACES["a bowl"](*(points - [0.1, 0.1]).T) + 1e-4 * rng.normal(size=len(points))
    strict = least(points, values)
    assert least(points, values, slack=0.002) <= strict + 1e-3
    assert least(points, values, nearest=0.3) <= strict + 1e-3


def test_a_lowest_point_that_is_not_surrounded_bounds_nothing():
    assert least(GRID, GRID[:, 0]) is None
    assert least(GRID, (GRID[:, 1] - 1) ** 2 + GRID[:, 0] ** 2) is None
    assert least(GRID[:2], np.array([0.0, 1.0])) is None


def stage(points, best, noise=0.0, seed=0, shape="a ridge"):
    rng = np.random.default_rng(seed)
    values = SURFACES[shape](*(np.asarray(points, dtype=float) - best).T)
    level = rng.normal(size=3)
    return {
        (2.0**x, 4.0**y): (value + level + noise * rng.normal(size=3)).tolist()
        for (x, y), value in zip(points, values, strict=True)
    }


def test_a_finer_stage_leaves_less_doubt_which_covers_what_the_pair_costs():
    best = np.array([0.2, -0.15])
    first = stage(GRID.tolist(), best)
    closer = [(0.25 * x, 0.25 * y) for x, y in product((-1, 0, 1), repeat=2)]
    found = best_pair_of_stages(first, stage(closer, best, seed=1), (2**0.25, 4**0.25))
    place = np.log2(found.lr), np.log2(found.second) / 2
    assert found.status == "ok"
    assert 0 < SURFACES["a ridge"](*(np.array(place) - best)) <= found.doubt
    assert found.doubt < 0.25 * best_pair_of_stages(first, {(1.0, 1.0): [0.0]}, (2.0, 4.0)).doubt
    noisy = best_pair_of_stages(stage(GRID.tolist(), best, 0.01), stage(closer, best, 0.01, 1), (2**0.25, 4**0.25))
    assert noisy.doubt > found.doubt + 0.01


def test_stages_without_a_common_pair_are_refused_and_an_edge_of_either_setting_has_no_fit():
    first = stage(GRID.tolist(), np.zeros(2))
    with pytest.raises(StatisticsError, match="common point"):
        best_pair_of_stages(first, stage([(0.25, 0.25)], np.zeros(2)), (1.19, 1.41))
    for best in ((0.0, 3.0), (4.0, 0.0)):
        away = stage(GRID.tolist(), np.array(best), shape="a bowl")
        centre = min(away, key=lambda pair: np.mean(away[pair]))
        found = best_pair_of_stages(away, {centre: [0.0, 0.0]}, (1.19, 1.41))
        assert (found.status, (found.lr, found.second), found.doubt) == ("grid-edge", centre, 0.0)


@pytest.mark.parametrize("shape", ["a ridge", "a kink", "a V"])
def test_the_doubt_of_a_pair_is_rarely_less_than_what_it_costs(shape):
    """The bounds reach the lowest place of a V exactly, so noise alone decides there."""
    rng, short, known = np.random.default_rng(5), 0, 0
    x, y = np.meshgrid(np.linspace(-1, 1, 201), np.linspace(-1, 1, 201))
    lowest = SURFACES[shape](x, y).min()
    for seed in range(40):
        best = rng.uniform(-0.5, 0.5, 2)
        first = stage(GRID.tolist(), best, 0.01, seed, shape)
        centre = np.log2(min(first, key=lambda pair, losses=first: np.mean(losses[pair]))) / (1, 2)
        closer = [tuple(centre + 0.25 * np.array(step)) for step in product((-1, 0, 1), repeat=2)]
        found = best_pair_of_stages(first, stage(closer, best, 0.01, 1000 + seed, shape), (2**0.25, 4**0.25))
        if found.status == "ok":
            place = np.array([np.log2(found.lr), np.log2(found.second) / 2])
            known += 1
            short += SURFACES[shape](*(place - best)) - lowest > found.doubt
    assert known >= 20
    assert short <= 0.15 * known


@given(
    st.floats(8.5, 12.0),
    st.floats(2.5, 6.0),
    st.floats(-0.5, 0.5),
    st.floats(0.05, 1.0),
)
def test_a_bound_is_never_above_the_minimum_of_tilted_folds(x, y, tilt, flat):
    """Their polygons of slopes have no width, and their surfaces of bounds have several valleys."""

    def fold(z: np.ndarray) -> np.ndarray:
        return abs(z[..., 0] - x + tilt * (z[..., 1] - y)) + flat * abs(z[..., 1] - y)

    coarse = np.array([(4.0 * a, 4.0 * b) for a in range(5) for b in range(3)])
    centre = coarse[np.argmin(fold(coarse))]
    near = [centre + np.array([i, j]) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    points = np.unique(np.r_[coarse, near], axis=0)
    values = fold(points)
    found = least_of_two(points, values, int(values.argmin()), slack=0.0, nearest=0.8)
    assert found is None or found <= 1e-5
