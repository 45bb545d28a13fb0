"""What a comparison cannot claim, in plain words.

Every caveat has a code for programs, the method it is about (or "" for the whole comparison), and a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ablationlab.core.registry import Registry
from ablationlab.stats._common import count
from ablationlab.stats._measured import COVERAGE, CROSSED, FALSE_POSITIVES, LEVEL
from ablationlab.stats.results import Caveat, Interval, PairedSample, PValue


def expected_coverage(method: str, n: int, *, distribution: str = "normal") -> float | None:
    """Simulated coverage of a nominal 95 % interval over n pairs; None where it was not bounded.

    Interpolated linearly in 1/n between the simulated n, and to the nominal level as n grows.
    distribution: "normal", "skewed" (exponential) or "heavy-tailed" (t with 3 degrees of freedom).
    """
    return _interpolate(_tables("interval", COVERAGE, distribution)[method], n, LEVEL)


def expected_false_positives(test: str, n: int, *, distribution: str = "normal") -> float | None:
    """Simulated share of true nulls that the test rejects at 0.05 with n pairs, interpolated alike."""
    return _interpolate(_tables("test", FALSE_POSITIVES, distribution)[test], n, 1 - LEVEL)


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
    n, found = sample.n, []
    if n < 3:
        text = f"{_pairs(n)}: fewer than 3 give no interval, no effect size and no t or bootstrap p."
        found.append(Caveat("too-few-pairs", "", text))
    elif sample.delta_sd == 0:
        text = f"All {n} deltas equal {sample.delta:.6g}: no spread, so no interval and no t or bootstrap p."
        found.append(Caveat("constant-deltas", "", text))
    if planned is not None and n < count("planned_pairs", planned):
        text = f"Compared on {_pairs(n)} of the {planned} planned; the missing ones may differ from these."
        found.append(Caveat("fewer-pairs-than-planned", "", text))
    if sample.variance_reduction is not None and sample.variance_reduction < 0 and n >= 3:
        text = "Pairing by seed did not help here: the deltas vary more than unpaired arms would."
        found.append(Caveat("pairing-did-not-help", "", text))
    return found


def interval_caveats(interval: Interval) -> tuple[Caveat, ...]:
    """What one interval cannot claim; the crossed seeds x items interval has its own."""
    if interval.method == "crossed" and interval.status == "ok":
        return _about_crossed(interval)
    n, name = interval.n, interval.method
    if interval.status == "unbounded":
        text = f"The {name} interval has no finite bound with {_pairs(n)}: {interval.note}."
        return (Caveat("unbounded-interval", name, text),)
    if interval.status != "ok" or name not in COVERAGE["normal"]:
        return ()
    if not np.isclose(interval.level, LEVEL):
        if name == "paired-t" or n > 50:
            return ()
        text = f"The {name} interval undercovers at few pairs; by how much was simulated at {LEVEL:.0%} only."
        return (Caveat("undercoverage", name, text),)
    covers = expected_coverage(name, n)
    if covers is None or covers >= LEVEL - 0.01:
        return ()
    text = (
        f"A nominal {LEVEL:.0%} {name} bootstrap interval over {_pairs(n)} covers about {covers:.0%} "
        "(simulated, normal differences)."
    )
    return (Caveat("undercoverage", name, text),)


def _about_crossed(interval: Interval) -> tuple[Caveat, ...]:
    covers = _interpolate(CROSSED, interval.n, LEVEL)
    if covers is None or covers >= LEVEL - 0.01 or not np.isclose(interval.level, LEVEL):
        return ()
    text = (
        f"A nominal {LEVEL:.0%} crossed bootstrap over {interval.n} seeds and their items covers about "
        f"{covers:.0%} where differences between seeds make the noise (simulated); where the items do, it "
        "covers more than it says."
    )
    return (Caveat("undercoverage", "crossed", text),)


def _about_a_test(test: PValue, alpha: float) -> list[Caveat]:
    if test.p is None:
        return []
    if test.minimum_p is not None and test.minimum_p > alpha:
        kind = "exact two-sided " if test.exact else "two-sided "
        text = (
            f"With {_pairs(test.n)} the {kind}{test.test} test cannot go below p = {test.minimum_p:.4g}, "
            f"so it cannot reach {alpha:g} whatever the data."
        )
        return [Caveat("cannot-reach-alpha", test.test, text)]
    false = expected_false_positives(test.test, test.n) if np.isclose(alpha, 1 - LEVEL) else None
    if false is None or false <= alpha + 0.01:
        return []
    text = (
        f"The {test.test} test rejects a true null about {false:.0%} of the time at a nominal {alpha:.0%} "
        f"with {_pairs(test.n)} (simulated, normal differences)."
    )
    return [Caveat("false-positives", test.test, text)]


def _pairs(n: int) -> str:
    return "1 pair" if n == 1 else f"{n} pairs"


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
