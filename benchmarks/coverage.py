"""Simulated coverage of every interval and false-positive rate of every test, at the n that studies use.

    PYTHONPATH=src python benchmarks/coverage.py                    # the tables of docs/validation-tables.md
    PYTHONPATH=src python benchmarks/coverage.py --simulations 1000 # a quick look
    PYTHONPATH=src python benchmarks/coverage.py --python           # also the numbers of stats/caveats.py

Every cell simulates studies whose true mean difference is zero and asks how often the nominal 95 % interval
holds zero and how often the test rejects at 0.05. In brackets: the Monte-Carlo standard error, in points.
"""

from __future__ import annotations

import argparse
import pprint
from collections.abc import Sequence

import numpy as np

from ablationlab.stats import crossed_bootstrap, item_pairs, paired_t_interval
from ablationlab.stats.simulation import Draw, SimulationCell, simulate

SIZES = (3, 5, 8, 10, 20)
CROSSED_SIZES = (3, 5, 10, 20)
DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "skewed": lambda rng, shape: rng.exponential(size=shape) - 1.0,
    "heavy-tailed": lambda rng, shape: rng.standard_t(3, size=shape),
}


def crossed(
    n: int, seed_sd: float, simulations: int, rng: np.random.Generator, items: int = 2_000
) -> tuple[SimulationCell, SimulationCell]:
    """Coverage of the crossed bootstrap, and of paired t over per-seed means, for right/wrong items.

    Item i of seed s has delta +1 or -1 with probability 0.1 +- (seed effect + item effect) / 2.
    """
    bootstrap, t = SimulationCell(), SimulationCell()
    for _ in range(simulations):
        effect = rng.normal(0, seed_sd, (n, 1)) + rng.normal(0, 0.05, (1, items))
        effect = np.clip(effect, -0.2, 0.2)
        uniform = rng.random((n, items))
        delta = np.where(uniform < 0.1 + effect / 2, 1.0, np.where(uniform > 0.9 + effect / 2, -1.0, 0.0))
        pairs = item_pairs((delta > 0).astype(float), (delta < 0).astype(float))
        result = crossed_bootstrap({"task": pairs}, resamples=500, rng=rng).macro
        for cell, interval in ((bootstrap, result), (t, paired_t_interval(delta.mean(axis=1)))):
            cell.total += 1
            cell.hits += interval.excludes(0.0) is False
            if interval.low is not None and interval.high is not None:
                cell.widths.append(np.array([interval.high - interval.low]))
    return bootstrap, t


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table under a title."""
    lines = [f"**{title}**", "", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])


Cells = dict[str, dict[int, tuple[dict[str, SimulationCell], dict[str, SimulationCell]]]]
SEED_EFFECTS = {"large (SD 6 points)": 0.06, "small (SD 1 point)": 0.01, "none": 0.0}


def print_tables(cells: Cells) -> None:
    """Coverage, false positives and widths, as Markdown."""
    header = ["differences", "method", *(f"n = {n}" for n in SIZES)]
    for title, kind in (
        ("Coverage of nominal 95 % intervals, %", 0),
        ("False positives at nominal 5 %, %", 1),
    ):
        rows = [
            [name, method, *(str(by_size[n][kind][method]) for n in SIZES)]
            for name, by_size in cells.items()
            for method in by_size[SIZES[0]][kind]
        ]
        print(table(title, header, rows))
    rows = [
        [name, method, *(_relative_width(by_size[n][0], method) for n in SIZES)]
        for name, by_size in cells.items()
        for method in ("percentile", "bca", "bootstrap-t")
    ]
    print(table("Median width, relative to paired t", header, rows))


def print_crossed(simulations: int, seed: int) -> None:
    """Coverage of the crossed bootstrap, as Markdown."""
    rows = []
    for label, seed_sd in SEED_EFFECTS.items():
        results = [crossed(n, seed_sd, simulations, np.random.default_rng([seed, 9, n])) for n in CROSSED_SIZES]
        rows.append([label, "crossed bootstrap", *(str(bootstrap) for bootstrap, _ in results)])
        rows.append([label, "paired t over seeds", *(str(t) for _, t in results)])
    title = "Crossed seeds × items bootstrap, 2,000 right/wrong items: coverage of nominal 95 %, %"
    print(table(title, ["seed effect", "interval", *(f"{n} seeds" for n in CROSSED_SIZES)], rows))


def print_python(cells: Cells) -> None:
    """The literals of stats/caveats.py."""
    for label, kind in (("COVERAGE", 0), ("FALSE_POSITIVES", 1)):
        literal = {
            name: {
                method: {n: _rounded(by_size[n][kind][method].rate) for n in SIZES}
                for method in by_size[SIZES[0]][kind]
            }
            for name, by_size in cells.items()
        }
        print(f"{label} = {pprint.pformat(literal, width=100, sort_dicts=False)}\n")


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulations", type=int, default=10_000, help="simulated studies per cell")
    parser.add_argument("--crossed-simulations", type=int, default=1_000, help="the same, crossed bootstrap")
    parser.add_argument("--seed", type=int, default=20_240_601)
    parser.add_argument("--python", action="store_true", help="print stats/caveats.py too")
    arguments = parser.parse_args()
    cells: Cells = {
        name: {
            n: simulate(draw, n, arguments.simulations, np.random.default_rng([arguments.seed, number, n]))
            for n in SIZES
        }
        for number, (name, draw) in enumerate(DISTRIBUTIONS.items())
    }
    print_tables(cells)
    print_crossed(arguments.crossed_simulations, arguments.seed)
    if arguments.python:
        print_python(cells)


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)


def _relative_width(intervals: dict[str, SimulationCell], method: str) -> str:
    if intervals[method].rate is None:
        return "—"
    width, reference = (float(np.median(np.concatenate(intervals[m].widths))) for m in (method, "paired-t"))
    return f"{width / reference:.2f}"


if __name__ == "__main__":
    main()
