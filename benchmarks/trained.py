"""The answers of the rules over trained runs in which nothing differs: false claims and power, as decisions.py counts them.

    PYTHONPATH=src python benchmarks/trained.py [--check]      # docs/validation-tables.md; five minutes

The two A/A entries of the gallery have 2,000 seeds each of three exchangeable arms (docs/validation.md). Their losses are
cut, in the order of the seeds, into studies of each design; a gain is added to the runs of one variant. Where nothing
differs, the smallest effect is a quarter of the SD of a paired difference, so that only the test holds claims back; *as
registered*: that of the study file. Spikes are the runs' own; which runs are lost is drawn, or the worst.
"""

from __future__ import annotations

import argparse
import csv
import lzma
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ablationlab.analysis.dataset import Arm, Dataset
from ablationlab.records.analysis import Seed
from ablationlab.records.settings import DEFAULT_REGIME, SPIKE_SCORE
from ablationlab.stats._common import FloatArray
from decisions import (
    AT_RANDOM,
    GALLERY,
    LOSSES,
    PRIMARY,
    SHARED,
    SPENDINGS,
    Result,
    events_of,
    line,
    registered,
    situations,
)
from scenarios import EFFECT, ORACLE, SURVIVORS, WHOLE, Scenario
from simulated import BASE, datasets

ENTRIES = ("validation-aa", "validation-aa-calm")
ARMS = ("none", "redrawn", "redrawn-2")
#: Nats, in both study files.
REGISTERED = 0.03


@cache
def runs_of(entry: str) -> tuple[FloatArray, NDArray[np.bool_], float]:
    """Losses in SDs of a paired difference, whether a run spiked, and this SD; a row is an arm, a column a seed."""
    with lzma.open(GALLERY / entry / "runs.csv.xz", "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    losses, spikes = (
        np.array([[float(row[name]) for row in rows if row["variant"] == arm] for arm in ARMS])
        for name in ("validation_loss", "spike_score")
    )
    sd = float(np.mean([(losses[i] - losses[j]).std(ddof=1) for i, j in ((1, 0), (2, 0), (2, 1))]))
    return (losses - losses.mean()) / sd, spikes > SPIKE_SCORE, sd


@dataclass(frozen=True)
class Trained(Scenario):
    """*entry*: whose runs."""

    entry: str = ENTRIES[0]

    @property
    def studies(self) -> int:
        return int(runs_of(self.entry)[0].shape[1]) // self.seeds

    def source(self, studies: int, rng: np.random.Generator) -> Iterator[Dataset]:
        losses, spikes, _ = runs_of(self.entry)
        for number in range(studies):
            (template,) = datasets(self.study(), self.world(), 1, rng)
            values, unstable = {**template.values}, dict[tuple[str, Seed], bool]()
            for place, arm in enumerate(template.variants):
                # Arms of different seeds are independent; those of one seed share most initial weights.
                first = (number + place * self.unpaired) % studies * self.seeds
                seeds = slice(first, first + self.seeds)
                gain = self.effect * EFFECT if arm == self.first else 0.0
                shown = BASE + self.noise * EFFECT * losses[place, seeds] - gain
                values[Arm("validation_loss", None, DEFAULT_REGIME, arm)] = dict(
                    zip(template.seeds, shown.tolist(), strict=True)
                )
                unstable |= {
                    (arm, seed): bool(known) for seed, known in zip(template.seeds, spikes[place, seeds], strict=True)
                }
            runs = tuple(
                run.model_copy(update={"unstable": True, "reason": "spiked"})
                if unstable[run.variant, run.seed]
                else run
                for run in template.runs
            )
            yield replace(template, values=values, runs=runs)


def rows() -> Iterator[Trained]:
    looks = {spending: {"looks": [5, 8, 10], "spending": spending} for spending in SPENDINGS}
    designs = [
        *((Trained("own variance", seeds, **registered()), LOSSES) for seeds in (5, 10, 20)),
        (Trained("shared variance", 6, **registered(SHARED)), LOSSES),
        (Trained("shared variance", 10, **registered(SHARED)), LOSSES),
        *((Trained(f"looks 5, 8, 10, {name}", 10, **registered(design=looks[name])), AT_RANDOM) for name in SPENDINGS),
        (Trained("unpaired", 5, unpaired=True, **registered()), AT_RANDOM),
        (Trained("unpaired", 10, unpaired=True, **registered()), AT_RANDOM),
        *((Trained(test, 8, **registered(PRIMARY | {"test": test})), (WHOLE,)) for test in ("sign-flip", "wilcoxon")),
    ]
    for entry in ENTRIES:
        as_registered = replace(designs[0][0], name="own variance, as registered", grid=True, entry=entry)
        yield replace(as_registered, noise=runs_of(entry)[2] / REGISTERED)
        for design, losses in designs:
            for row in situations(design, losses):
                assert isinstance(row, Trained)
                yield replace(row, entry=entry)


@dataclass(frozen=True)
class Counted(Result):
    def rate(self, event: str) -> str:
        """With Clopper and Pearson's interval for what should be rare."""
        shown = super().rate(event)
        if self.row.effect or ":" in event:
            return shown
        count, left = self.counts[event], self.studies - self.counts[event]
        low, high = stats.beta.ppf([0.025, 0.975], [count, count + 1], [left + 1, left])
        return f"{shown} ({100 * np.nan_to_num(low):.1f} to {100 * np.nan_to_num(high, nan=1.0):.1f})"


HEADS = (
    *("design", "variants", "seeds", "lost", "better", "worse", "same", "unstable", "better at 1"),
    *("power", "t", "t of survivors", "t of survivors: better / worse", "studies"),
)


def lines(made: Sequence[Result]) -> Iterator[str]:
    """A line for each design and loss."""
    by_line: dict[tuple[str, int, int, str], dict[float, Result]] = {}
    for result in made:
        row = result.row
        by_line.setdefault((row.name, row.variants, row.seeds, row.loss.name), {})[row.effect] = result
    yield line(HEADS)
    yield "|---" * len(HEADS) + "|"
    for about, found in by_line.items():
        null, margin, power = found[0.0], found.get(1.0), found.get(2.0)
        claims = [null.rate("better"), null.rate("worse"), "" if margin is None else margin.rate("same")]
        claims += [
            null.rate("unstable") if "unstable" in null.limits else "",
            "" if margin is None else margin.rate("better"),
        ]
        shown = ["better", f"{ORACLE}: better", f"{SURVIVORS}: better"]
        powers = ["" if power is None else power.rate(event) for event in shown]
        plain = " / ".join(null.rate(f"{SURVIVORS}: {way}") for way in ("better", "worse"))
        yield line([*map(str, about), *claims, *powers, plain, str(null.studies)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a limit is broken")
    check, failed = parser.parse_args().check, []
    for entry in ENTRIES:
        made = []
        for row in (row for row in rows() if row.entry == entry):
            rng = np.random.default_rng([17, crc32(f"{entry}, {row.key}".encode())])
            made.append(Counted(row, events_of(row, row.studies, rng), row.studies))
            failed += [f"{entry}, {row.key}: {event}" for event in made[-1].broken]
            print(f"{entry}: {row.key}", file=sys.stderr, flush=True)
        print("\n".join([f"\n**{entry}**\n", *lines(made)]), flush=True)
    print("\n".join(["", *failed, f"{len(failed)} limits broken"]), file=sys.stderr)
    sys.exit(int(check and bool(failed)))


if __name__ == "__main__":
    main()
