"""The lowest that a convex function of two variables can be, from its values at some points.

At a point i, every line through it that a convex function can touch there has a slope g with

    g · (z_j - z_i) <= y_j - y_i        for all j

These slopes are a polygon, and at any place z the function is at least y_i + min over the polygon of g · (z - z_i). The
largest of these bounds over i is the least that the function can be at z; its lowest place is looked for on finer and finer
lattices. Where the polygon of the lowest point is unbounded, that point is not surrounded by others, and nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from ablationlab.stats._common import FloatArray

#: Slopes are looked for up to so many times the range of the values, per unit.
_STEEPEST: Final = 1e4
#: Places of a lattice on each side, and how often it is drawn again about its lowest one.
_PLACES, _ZOOMS = 25, 4
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
    slopes = {i: _slopes(points, values, i, 0.0 if i == at else slack, nearest, steepest) for i in range(len(points))}
    home = slopes[at]
    if not home or float(np.abs(home).max()) >= 0.99 * steepest:
        return None
    low, high, lowest = points.min(axis=0) - _BEYOND, points.max(axis=0) + _BEYOND, math.inf
    for zoom in range(_ZOOMS):
        axes = [np.linspace(low[k], high[k], _PLACES) for k in (0, 1)]
        places = np.array(np.meshgrid(*axes, indexing="ij")).reshape(2, -1).T
        bounds = np.full(len(places), -math.inf)
        for i, polygon in slopes.items():
            if polygon:
                rise = ((places - points[i]) @ np.array(polygon).T).min(axis=1)
                bounds = np.maximum(bounds, values[i] + rise)
        best = int(np.argmin(bounds))
        if zoom == 0 and bool(np.any((places[best] == low) | (places[best] == high))):
            return None
        lowest = min(lowest, float(bounds[best]))
        step = (high - low) / (_PLACES - 1)
        low, high = places[best] - 1.5 * step, places[best] + 1.5 * step
    return min(lowest, float(values[at]))


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
