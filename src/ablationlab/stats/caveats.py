"""What a comparison cannot claim: a code, the method it is about ("" for all of them), and the numbers it speaks of.

The tables hold simulated coverage and false-positive rates by distribution, method and number of pairs (None: the interval
had no finite bound). ``python benchmarks/coverage.py --python`` writes them; docs/validation.md gives their standard errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2
from typing import Any, Final

import numpy as np

from ablationlab.core.registry import Registry
from ablationlab.stats._common import MINIMUM_PAIRS, count
from ablationlab.stats.results import Caveat, CaveatCode, Interval, PairedSample, PValue

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


def expected_coverage(method: str, n: int, *, distribution: str = "normal") -> float | None:
    """Simulated coverage of a nominal 95 % interval over n pairs; None where it was not bounded.

    Interpolated linearly in 1/n between the simulated n, and to the nominal level as n grows.
    distribution: "normal", "skewed" (exponential) or "heavy-tailed" (t with 3 degrees of freedom).
    """
    return _interpolate(_tables("interval", COVERAGE, distribution)[method], n, LEVEL)


def expected_false_positives(test: str, n: int, *, distribution: str = "normal") -> float | None:
    """Simulated share of true nulls that the test rejects at 0.05 with n pairs, interpolated alike."""
    return _interpolate(_tables("test", FALSE_POSITIVES, distribution)[test], n, 1 - LEVEL)


def sign_flip_floor(n: int) -> float:
    """2 / 2^n: the smallest p an exact two-sided sign-flip test of n nonzero deltas can give."""
    return min(1.0, 2.0 ** (1 - count("n", n)))


def comparison_caveats(
    sample: PairedSample,
    intervals: Mapping[str, Interval],
    tests: Mapping[str, PValue],
    *,
    alpha: float = 0.05,
    planned_pairs: int | None = None,
) -> tuple[Caveat, ...]:
    """Everything worth knowing about one comparison, the gravest first."""
    found = [*_about_the_pairs(sample, planned_pairs)]
    for interval in intervals.values():
        found += interval_caveats(interval)
    for test in tests.values():
        found += _about_a_test(test, alpha)
    return tuple(found)


def _about_the_pairs(sample: PairedSample, planned: int | None) -> list[Caveat]:
    n, caveats = sample.n, []
    if n < MINIMUM_PAIRS:
        caveats.append(Caveat(CaveatCode.TOO_FEW_PAIRS, details={"n": n}))
    elif sample.delta_sd == 0:
        caveats.append(Caveat(CaveatCode.CONSTANT_DELTAS, details={"n": n, "value": sample.delta}))
    if planned is not None and n < count("planned_pairs", planned):
        caveats.append(Caveat(CaveatCode.FEWER_PAIRS_THAN_PLANNED, details={"n": n, "planned": planned}))
    if sample.variance_reduction is not None and sample.variance_reduction < 0 and n >= MINIMUM_PAIRS:
        caveats.append(Caveat(CaveatCode.PAIRING_DID_NOT_HELP))
    return caveats


def interval_caveats(interval: Interval) -> tuple[Caveat, ...]:
    """What one interval cannot claim. Undercoverage has *covers* where it was simulated at the interval's level."""
    n, name = interval.n, interval.method
    if interval.status == "unbounded":
        return (Caveat(CaveatCode.UNBOUNDED_INTERVAL, name, {"n": n}),)
    if interval.status != "ok" or name not in (*COVERAGE["normal"], "crossed"):
        return ()
    if not np.isclose(interval.level, LEVEL):
        if name in ("paired-t", "crossed") or n > 50:
            return ()
        return (Caveat(CaveatCode.UNDERCOVERAGE, name, {"n": n, "level": LEVEL}),)
    covers = _interpolate(CROSSED, n, LEVEL) if name == "crossed" else expected_coverage(name, n)
    if covers is None or covers >= LEVEL - 0.01:
        return ()
    return (Caveat(CaveatCode.UNDERCOVERAGE, name, {"n": n, "level": LEVEL, "covers": covers}),)


def _about_a_test(test: PValue, alpha: float) -> list[Caveat]:
    if test.p is None or test.n < 2 or test.minimum_p == 1:  # no pair differs, or one alone
        return []
    if test.minimum_p is not None and test.minimum_p > alpha:
        # Only pairs that differ count in these tests: m of them reach 2 / 2^m.
        details: dict[str, Any] = {"n": round(1 - log2(test.minimum_p)), "minimum_p": test.minimum_p, "alpha": alpha}
        return [Caveat(CaveatCode.CANNOT_REACH_ALPHA, test.test, details)]
    simulated = test.test in FALSE_POSITIVES["normal"] and np.isclose(alpha, 1 - LEVEL)
    rate = expected_false_positives(test.test, test.n) if simulated else None
    if rate is None or rate <= alpha + 0.01:
        return []
    return [Caveat(CaveatCode.FALSE_POSITIVES, test.test, {"n": test.n, "rate": rate, "alpha": alpha})]


def _tables(
    kind: str, tables: Mapping[str, Mapping[str, Mapping[int, float | None]]], distribution: str
) -> Registry[Mapping[int, float | None]]:
    # Through a registry, so that a wrong name is answered with the nearest one.
    by_distribution: Registry[Mapping[str, Mapping[int, float | None]]] = Registry("distribution")
    for name, table in tables.items():
        by_distribution.add(name, table)
    by_method: Registry[Mapping[int, float | None]] = Registry(kind)
    for name, row in by_distribution[distribution].items():
        by_method.add(name, row)
    return by_method


def _interpolate(row: Mapping[int, float | None], n: int, limit: float) -> float | None:
    n = count("n", n, minimum=2)
    known = {size: value for size, value in row.items() if value is not None}
    if n < min(known):
        return None
    # np.interp wants rising abscissae: 1/n from 0 (the limit of many pairs) upward.
    sizes = sorted(known, reverse=True)
    return float(np.interp(1 / n, [0.0, *(1 / size for size in sizes)], [limit, *(known[size] for size in sizes)]))
