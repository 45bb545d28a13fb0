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
    "normal": {
        "paired-t": {3: 0.949, 5: 0.946, 8: 0.95, 10: 0.949, 20: 0.952},
        "percentile": {3: 0.745, 5: 0.838, 8: 0.887, 10: 0.9, 20: 0.931},
        "bca": {3: 0.715, 5: 0.837, 8: 0.89, 10: 0.898, 20: 0.928},
        "bootstrap-t": {3: None, 5: 0.95, 8: 0.951, 10: 0.949, 20: 0.952},
    },
    "skewed": {
        "paired-t": {3: 0.89, 5: 0.883, 8: 0.893, 10: 0.894, 20: 0.92},
        "percentile": {3: 0.698, 5: 0.783, 8: 0.841, 10: 0.859, 20: 0.908},
        "bca": {3: 0.679, 5: 0.8, 8: 0.859, 10: 0.871, 20: 0.914},
        "bootstrap-t": {3: None, 5: 0.93, 8: 0.937, 10: 0.938, 20: 0.947},
    },
    "heavy-tailed": {
        "paired-t": {3: 0.965, 5: 0.962, 8: 0.963, 10: 0.958, 20: 0.958},
        "percentile": {3: 0.755, 5: 0.834, 8: 0.88, 10: 0.892, 20: 0.923},
        "bca": {3: 0.716, 5: 0.815, 8: 0.853, 10: 0.864, 20: 0.891},
        "bootstrap-t": {3: None, 5: 0.951, 8: 0.935, 10: 0.931, 20: 0.927},
    },
}

#: Crossed seeds x items bootstrap where the seeds make nearly all of the noise, its worst case.
CROSSED: Final[Mapping[int, float | None]] = {3: 0.78, 5: 0.856, 10: 0.908, 20: 0.941}

FALSE_POSITIVES: Final[Mapping[str, Mapping[str, Mapping[int, float | None]]]] = {
    "normal": {
        "paired-t": {3: 0.051, 5: 0.054, 8: 0.05, 10: 0.051, 20: 0.048},
        "sign-flip": {3: 0.0, 5: 0.0, 8: 0.046, 10: 0.051, 20: 0.048},
        "bootstrap": {3: 0.197, 5: 0.162, 8: 0.112, 10: 0.101, 20: 0.07},
        "wilcoxon": {3: 0.0, 5: 0.0, 8: 0.038, 10: 0.051, 20: 0.046},
    },
    "skewed": {
        "paired-t": {3: 0.11, 5: 0.117, 8: 0.107, 10: 0.106, 20: 0.08},
        "sign-flip": {3: 0.0, 5: 0.0, 8: 0.098, 10: 0.101, 20: 0.08},
        "bootstrap": {3: 0.267, 5: 0.227, 8: 0.17, 10: 0.15, 20: 0.102},
        "wilcoxon": {3: 0.0, 5: 0.0, 8: 0.086, 10: 0.096, 20: 0.127},
    },
    "heavy-tailed": {
        "paired-t": {3: 0.035, 5: 0.038, 8: 0.037, 10: 0.042, 20: 0.042},
        "sign-flip": {3: 0.0, 5: 0.0, 8: 0.045, 10: 0.049, 20: 0.047},
        "bootstrap": {3: 0.171, 5: 0.147, 8: 0.1, 10: 0.091, 20: 0.065},
        "wilcoxon": {3: 0.0, 5: 0.0, 8: 0.038, 10: 0.05, 20: 0.047},
    },
}
