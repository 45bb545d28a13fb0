"""Simulated coverage and false-positive rates, by distribution, method and number of pairs.

Written by ``python benchmarks/coverage.py --python``; the table and its standard errors are in
docs/statistics.md. None: the interval had no finite bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: The nominal level of the simulated intervals; the tests ran at 1 - LEVEL.
LEVEL: Final = 0.95

COVERAGE: Final[Mapping[str, Mapping[str, Mapping[int, float | None]]]] = {
    "normal": {"percentile": {3: 0.75, 5: 0.84, 10: 0.91}},
}

FALSE_POSITIVES: Final[Mapping[str, Mapping[str, Mapping[int, float | None]]]] = {
    "normal": {"bootstrap": {5: 0.17}}
}
