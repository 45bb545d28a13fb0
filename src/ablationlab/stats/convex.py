"""The lowest that a convex function of two variables can be, from its values at some points.

At a point i, every line through it that a convex function can touch there has a slope g with

    g · (z_j - z_i) <= y_j - y_i        for all j

These slopes are a polygon, and at any place z the function is at least y_i + min over the polygon of g · (z - z_i). The
largest of these bounds over i is the least that the function can be at z. Each is concave in z, so on a rectangle it is
lowest at a corner: that bounds the lowest place from below, and rectangles are halved where it is not yet known well. Where
the polygon of the lowest point is unbounded, that point is not surrounded by others, and nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from ablationlab.stats._common import FloatArray

#: Slopes are looked for up to so many times the range of the values, per unit.
_STEEPEST: Final = 1e4
#: Values are off by so much of their range at least: a polygon without width would be lost to rounding.
_ROUNDING: Final = 1e-6
#: Rectangles on each side at first, how often they are halved, and how well the result is known, as a share of the values'
#: range.
_CELLS, _HALVES, _CLOSE = 24, 12, 1e-3
#: The function is looked for so far beyond the points.
_BEYOND: Final = 2.0

_Polygon = list[tuple[float, float]]


def least_of_two(points: FloatArray, values: FloatArray, at: int, *, slack: float, nearest: float) -> float | None:
    """The lowest that a convex function can be which has these *values* at these *points* (n x 2) and is lowest at *at*;
    None where it may lie beyond them.

    Values are uncertain: for the slopes at any other point than the lowest, each may be off by *slack*. Points that are
    *nearest* or closer in both directions say nothing of each other's slopes.
    """
    steepest = _STEEPEST * max(float(np.ptp(values)), math.ulp(1.0) * float(np.abs(values).max()), 1e-300)
    rounding = _ROUNDING * steepest / _STEEPEST
    slopes = {
        i: _slopes(points, values, i, rounding + (0.0 if i == at else slack), nearest, steepest)
        for i in range(len(points))
    }
    home = slopes[at]
    if not home or float(np.abs(home).max()) >= 0.99 * steepest:
        return None
    low, high = points.min(axis=0) - _BEYOND, points.max(axis=0) + _BEYOND
    bounds = [(points[i], float(values[i]), np.array(polygon)) for i, polygon in slopes.items() if polygon]
    close = _CLOSE * float(np.ptp(values))
    size = (high - low) / _CELLS
    corner = low + np.array(np.meshgrid(*[np.arange(_CELLS)] * 2, indexing="ij")).reshape(2, -1).T * size
    lowest = least = float(values[at])
    for _ in range(_HALVES):
        below, within = _on_cells(bounds, corner, size)
        lowest = min(lowest, float(within.min()))
        open_ = below < lowest - close
        if not open_.any():
            return lowest - close
        corner, least, size = corner[open_], float(below[open_].min()), size / 2
        corner = np.concatenate([corner + size * np.array(move) for move in ((0, 0), (0, 1), (1, 0), (1, 1))])
    return None if bool(np.any((corner <= low) | (corner + size >= high))) else least


def _on_cells(
    bounds: Sequence[tuple[FloatArray, float, FloatArray]], corner: FloatArray, size: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The least that the function can be anywhere in each rectangle, from below, and at one of its corners."""
    places = corner[:, None, :] + size * np.array([(0, 0), (0, 1), (1, 0), (1, 1)])
    below = np.full(len(corner), -math.inf)
    highest = np.full(places.shape[:2], -math.inf)
    for point, value, polygon in bounds:
        at_corners = value + ((places - point) @ polygon.T).min(axis=2)
        below = np.maximum(below, at_corners.min(axis=1))
        highest = np.maximum(highest, at_corners)
    return below, highest.min(axis=1)


def _slopes(points: FloatArray, values: FloatArray, i: int, slack: float, nearest: float, steepest: float) -> _Polygon:
    """The corners of the polygon of slopes at one point; none where the values are not those of a convex function."""
    polygon = [(-steepest, -steepest), (steepest, -steepest), (steepest, steepest), (-steepest, steepest)]
    for j, (dx, dy) in enumerate((points - points[i]).tolist()):
        if j == i or max(abs(dx), abs(dy)) <= nearest:
            continue
        polygon = _below(polygon, dx, dy, float(values[j] - values[i]) + slack)
        if not polygon:
            break
    return polygon


def _below(polygon: Sequence[tuple[float, float]], dx: float, dy: float, most: float) -> _Polygon:
    """The part in which dx x + dy y is at most *most*."""
    over = [dx * x + dy * y - most for x, y in polygon]
    kept: _Polygon = []
    for k, (x, y) in enumerate(polygon):
        if over[k] <= 0:
            kept.append((x, y))
        (u, v), after = polygon[(k + 1) % len(polygon)], over[(k + 1) % len(polygon)]
        if over[k] * after < 0:
            share = over[k] / (over[k] - after)
            kept.append((x + share * (u - x), y + share * (v - y)))
    return kept
