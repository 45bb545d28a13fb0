"""Variance components: simulated recovery, coverage, and what a component is by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ablationlab.core.errors import StatisticsError
from ablationlab.stats import variance_components


def drawn(rng, shape, sds):
    """A crossed layout whose sources have these SDs; the last is the rest's."""
    table = rng.normal(0, sds[-1], shape)
    for axis, sd in enumerate(sds[:-1]):
        table = table + rng.normal(0, sd, [size if place == axis else 1 for place, size in enumerate(shape)])
    return table


@pytest.mark.parametrize(("shape", "sds"), [((6, 6), (2.0, 0.5, 1.0)), ((4, 4, 4), (1.0, 2.0, 0.5, 1.0))])
def test_components_are_recovered_and_their_intervals_cover(shape, sds):
    rng, studies = np.random.default_rng(3), 150
    variances, covered = np.zeros(len(sds)), np.zeros(len(sds))
    for _ in range(studies):
        parts = variance_components(drawn(rng, shape, sds), [*"abc"[: len(shape)]], rng=rng)
        variances += [part.sd**2 for part in parts]
        covered += [part.low <= sd <= part.high for part, sd in zip(parts, sds, strict=True)]
    # Estimates of 0 instead of a negative variance add a little to small components.
    assert variances / studies == pytest.approx(np.square(sds), rel=0.25, abs=0.06)
    assert (covered / studies >= 0.90).all()


def test_components_agree_with_mean_squares_by_hand():
    table = np.array([[1.0, 2.0, 4.0], [2.0, 4.0, 5.0], [6.0, 6.0, 9.0]])
    rows, columns, grand = table.mean(axis=1), table.mean(axis=0), table.mean()
    rest = ((table - rows[:, None] - columns + grand) ** 2).sum() / 4
    by_row, by_column, left = variance_components(table, ("init", "data"), rng=np.random.default_rng(0))
    assert by_row.sd**2 == pytest.approx((3 * rows.var(ddof=1) - rest) / 3)
    assert by_column.sd**2 == pytest.approx((3 * columns.var(ddof=1) - rest) / 3)
    assert left.sd**2 == pytest.approx(rest)
    assert by_row.share + by_column.share + left.share == pytest.approx(1.0)
    # Of the rest alone the interval is exact: SS / chi-squared with 4 degrees of freedom.
    assert (left.low, left.high) == pytest.approx((np.sqrt(4 * rest / 11.143), np.sqrt(4 * rest / 0.4844)), rel=0.03)


def test_a_source_without_effect_is_none_and_its_lower_bound_is_zero():
    table = np.array([[1.0, 2.0], [2.0, 1.0]])
    first, second, rest = variance_components(table, ("init", "data"), rng=np.random.default_rng(0))
    assert (first.sd, second.sd, first.low, second.low) == (0.0, 0.0, 0.0, 0.0)
    assert rest.share == 1.0


def test_one_level_is_refused():
    with pytest.raises(StatisticsError, match="two levels"):
        variance_components([[1.0, 2.0]], ("init", "data"), rng=np.random.default_rng(0))
