"""Samples for the invariants: whole multiples of 1/64, so that sums, differences and shifts are exact."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

# No deadline: the machines that run this are shared. Derandomized: the same examples on every run.
quick = settings(max_examples=60, deadline=None, derandomize=True)

grid = st.integers(-640, 640).map(lambda k: k / 64)


@st.composite
def paired_samples(draw, minimum=3, maximum=12):
    """variant and reference of equal length."""
    n = draw(st.integers(minimum, maximum))
    arms = [np.array(draw(st.lists(grid, min_size=n, max_size=n))) for _ in range(2)]
    return arms[0], arms[1]


def generator(seed=0):
    return np.random.default_rng(seed)
