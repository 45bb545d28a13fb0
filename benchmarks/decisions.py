"""Error rates and power of the whole decision: simulated studies, decided by the program's own rules.

    PYTHONPATH=src python benchmarks/decisions.py --jobs 2 --out FILE             # docs/validation-tables.md
    PYTHONPATH=src python benchmarks/decisions.py --jobs 2 --check                # fails where a limit is broken
    PYTHONPATH=src python benchmarks/decisions.py --studies 50 --rows looks       # a quick look

The same tables for any number of jobs: studies are drawn in chunks, each from a stream of its own, and no two rows share
one. Rows that take long, and those in which something differs, are drawn less often; column *studies* says how often. With
``--counts FILE`` a row that the file has is not drawn again.

The first table is every design that a study file can register, by which runs are lost. Others are about noise, odd runs and
unequal arms (scenarios.py).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from multiprocessing import Pool
from pathlib import Path
from time import perf_counter
from typing import Any, Final, get_args
from zlib import crc32

import numpy as np
from scipy import stats

from ablationlab.analysis.verdict.hypotheses import judge_hypotheses
from ablationlab.records.settings import DEFAULT_REGIME, TUNED
from ablationlab.stats.results import Spending
from scenarios import (
    BROKEN,
    COLUMNS,
    EFFECT,
    FAILURES_KEPT,
    H1B,
    KEPT,
    ORACLE,
    SURVIVORS,
    VARIANTS,
    WHOLE,
    Loss,
    Scenario,
    absurd,
    heavy,
    missing,
    skewed,
)
from simulated import Instabilities, SimulatedTasks, analyze_to_stop

GALLERY: Final = Path(__file__).parents[1] / "docs/gallery"
CHUNK: Final = 25
#: A limit is broken where so many claims or more would be rarer than this: some 700 limits are checked.
CHANCE: Final = 1e-4

#: One primary test, and no other.
PRIMARY: Final = {"metric": "validation_loss", "role": "primary", "smallest_effect": EFFECT}
ALONE: Final = {"regimes": {}, "hypotheses": [], "criteria": [PRIMARY]}
GUARDED: Final = [
    PRIMARY,
    {"metric": "next_token_accuracy", "role": "secondary", "smallest_effect": EFFECT},
    {"metric": "token_ece", "role": "guard", "margin": EFFECT},
    {"metric": "token_brier", "role": "guard", "margin": EFFECT},
]
LOOKS: Final = (5, 8, 12, 20)
SPENDINGS: Final[tuple[str, ...]] = get_args(Spending)

AT_RANDOM: Final = (WHOLE, Loss("5 %", 0.05, 0.05), Loss("20 %", 0.2, 0.2))
VARIANTS_ONLY: Final = Loss("20 % of the variants'", 0.0, 0.2)
WORST: Final = Loss("the worst of each variant", worst=True)
LOSSES: Final = (*AT_RANDOM, VARIANTS_ONLY, WORST)


def chunks(row: Scenario, studies: int) -> int:
    return max(1, round((0.5 if row.effect else 1.0) * row.drawn * studies / CHUNK))


def broken(count: float, studies: int, limit: float) -> bool:
    """Whether a rate is above its limit by more than chance."""
    return bool(stats.binom.sf(count - 1, studies, limit) < CHANCE)


# --- designs, by which runs are lost --------------------------------------------------------------------------


def registered(*criteria: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A study of these criteria, or of one primary one, in one regime."""
    return {"changes": {**ALONE, "criteria": list(criteria or [PRIMARY]), **changes}}


def swept(factor: float, **sweep: Any) -> dict[str, Any]:
    """Arms that are tuned over five rates. The loss is twice the smallest effect higher at a rate twice the best one."""
    rates = {"lr": [1e-3 * factor**k for k in range(-2, 3)], "selection_seeds": [201, 202, 203], **sweep}
    changes = registered(PRIMARY | {"regime": TUNED}, sweep=rates)
    return {**changes, "curvature": 2 * EFFECT / np.log(2) ** 2, "regime": TUNED, "noise": 1.0}


SHARED: Final = PRIMARY | {"variance": "shared", "correction": "bonferroni"}


def designs() -> Iterator[tuple[Scenario, tuple[Loss, ...]]]:
    """What a study file can register that decides, each with the ways in which runs are lost."""
    for seeds in (5, 10, 20):
        yield Scenario("own variance", seeds, **registered()), LOSSES
    yield Scenario("own variance", 5, variants=12, **registered()), LOSSES
    for variants, seeds in ((2, 6), (4, 5), (4, 10)):
        yield Scenario("shared variance", seeds, variants=variants, **registered(SHARED)), LOSSES
    yield Scenario("shared variance", 5, variants=12, **registered(SHARED)), LOSSES
    for spending in SPENDINGS:
        design = {"looks": list(LOOKS), "spending": spending}
        yield Scenario(f"looks, {spending}", 20, drawn=0.5, **registered(design=design)), LOSSES
        shared = registered(SHARED, design=design)
        yield Scenario(f"looks, {spending}; shared variance", 20, variants=4, drawn=0.25, **shared), LOSSES
    yield Scenario("tuned, one stage", 8, **swept(1.4)), LOSSES[:-1]
    yield Scenario("tuned, two stages", 10, **swept(2.0, finer={"seeds": [301, 302, 303]})), LOSSES[:-1]
    yield Scenario("secondary and two guards", 20, guard=1.0, **registered(*GUARDED)), LOSSES
    asked = registered(PRIMARY, PRIMARY | {"regime": "stress"}, regimes={"stress": {"training": {"lr": 1e-2}}})
    yield Scenario("two regimes", 10, **asked), LOSSES
    yield Scenario("unpaired", 10, unpaired=True, **registered()), LOSSES
    tasks = SimulatedTasks(6, 4.0, 1.2)
    accuracy = registered(
        PRIMARY | {"metric": "macro_accuracy"},
        evaluation={"gate_seeds": [101, 102, 103, 104, 105], "tasks": ["arc_easy"]},
    )
    yield Scenario("accuracy over 6 tasks", 10, primary="macro_accuracy", tasks=tasks, **accuracy), LOSSES
    yield Scenario("diverged = refuse", 10, **registered(stability={"diverged": "refuse"})), AT_RANDOM
    yield Scenario("alpha = 0.2", 10, **registered(PRIMARY | {"alpha": 0.2})), AT_RANDOM
    for correction in ("bonferroni", "benjamini-hochberg"):
        yield Scenario(correction, 10, **registered(PRIMARY | {"correction": correction})), AT_RANDOM
    each = registered(PRIMARY | {"correction": "none"})
    yield Scenario("no correction, per variant", 10, alone=True, **each), AT_RANDOM
    for test in ("sign-flip", "wilcoxon"):
        yield Scenario(test, 10, **registered(PRIMARY | {"test": test})), AT_RANDOM


#: Noise and effect: no difference, in so much noise that only the test holds claims back; one smallest effect; two SDs.
NOTHING, MARGIN, POWER = (4.0, 0.0), (0.5, 1.0), (1.0, 2.0)


def grid() -> Iterator[Scenario]:
    for design, losses in designs():
        yield from situations(design, losses)


def situations(design: Scenario, losses: Iterable[Loss]) -> Iterator[Scenario]:
    """A design by what is true and which runs are lost."""
    for loss in losses:
        for noise, effect in (NOTHING, MARGIN, POWER):
            if (effect == 1.0 and loss is not WHOLE) or (effect and loss is WORST):
                continue
            quiet = design.curvature is not None and not effect
            looked = effect == 1.0 and "design" in design.changes  # where a study stops matters most beside its noise
            noise = design.noise if quiet else 1.0 if looked else noise
            drawn = design.drawn * (0.5 if loss in (LOSSES[1], VARIANTS_ONLY) else 1.0)
            yield replace(design, grid=True, loss=loss, noise=noise, effect=effect, drawn=drawn)


GRID_HEADS: Final = (
    *(
        "design",
        "variants",
        "seeds",
        "better",
        "worse",
        "unstable",
        "same",
        "better at 1",
        "power",
        "t",
        "t of survivors",
    ),
    *(
        "variants lose 20 %: better",
        "power",
        "t of survivors",
        "variants lose the worst: better",
        "t of survivors",
        "studies",
    ),
)


def grid_lines(made: Sequence[Result]) -> Iterator[str]:
    """A line for each design: rates with no, 5 % and 20 % of all runs lost, then where only variants lose runs."""
    by_design: dict[tuple[str, int, int], dict[tuple[str, float], Result]] = {}
    for result in made:
        row = result.row
        by_design.setdefault((row.name, row.variants, row.seeds), {})[row.loss.name, row.effect] = result
    yield line(GRID_HEADS)
    yield "|---" * len(GRID_HEADS) + "|"
    for about, found in by_design.items():

        def rates(event: str, effect: float, *losses: Loss, found: dict[tuple[str, float], Result] = found) -> str:
            there = [found[loss.name, effect] for loss in losses if (loss.name, effect) in found]
            return " / ".join(result.rate(event) for result in there)

        nothing, margin, power = 0.0, 1.0, 2.0
        yield line(
            [
                *map(str, about),
                *(rates(event, nothing, *AT_RANDOM) for event in ("better", "worse", "unstable")),
                *(rates(event, margin, WHOLE) for event in ("same", "better")),
                rates("better", power, *AT_RANDOM),
                rates(f"{ORACLE}: better", power, WHOLE),
                rates(f"{SURVIVORS}: better", power, *AT_RANDOM[1:]),
                rates("better", nothing, VARIANTS_ONLY),
                *(rates(event, power, VARIANTS_ONLY) for event in ("better", f"{SURVIVORS}: better")),
                *(rates(event, nothing, WORST) for event in ("better", f"{SURVIVORS}: better")),
                _counts(found.values()),
            ]
        )
    guards = [result for result in made if result.row.guard and not result.row.effect]
    if guards:
        heads = ("guards; lost", KEPT, BROKEN, FAILURES_KEPT, "studies")
        yield f"\n{line(heads)}"
        yield "|---" * len(heads) + "|"
    for result in guards:
        failures = result.rate(FAILURES_KEPT) if FAILURES_KEPT in result.limits else ""
        yield line([result.row.loss.name, result.rate(KEPT), result.rate(BROKEN), failures, str(result.studies)])


def _counts(made: Iterable[Result]) -> str:
    """Studies of a rate where nothing differs, and where something does."""
    ranges = []
    for differs in (False, True):
        studies = sorted({result.studies for result in made if bool(result.row.effect) == differs})
        ranges.append(" to ".join(map(str, dict.fromkeys((studies[0], studies[-1])))) if studies else "")
    return "; ".join(filter(None, ranges))


# --- noise, odd runs, unequal arms ----------------------------------------------------------------------------


def both(share: float, *regimes: str, variant: float | None = None, diverge: bool = True) -> dict[str, Instabilities]:
    """That share of the runs of every arm fails; another one of the variants, if given."""
    chances = Instabilities(share, share if variant is None else variant, diverge=diverge)
    return dict.fromkeys(regimes or (DEFAULT_REGIME, "stress"), chances)


def sharing(variants: int, variance: str = "shared") -> dict[str, Any]:
    """One primary test of each variant, by Bonferroni; its variance is shared, or its own."""
    return {"variants": variants, "changes": {"regimes": {}, "criteria": [SHARED | {"variance": variance}]}}


@cache
def spreads_of(entry: str, regime: str) -> dict[str, float]:
    """How noisy the runs of each arm of a gallery entry are: a variant of median noise first, its difference as noisy as a
    row says. What the costs of all variants have in common is the baseline's noise.
    """
    with tarfile.open(GALLERY / entry / "records.tar.xz") as records:
        made = json.load(records.extractfile("analysis.json") or sys.stdin)
    costs = np.array(
        [
            [pair["delta"] for pair in found["pairs"]]
            for found in made["comparisons"]
            if (found["metric"], found["regime"], found["reference"]) == ("validation_loss", regime, made["baseline"])
        ][: len(VARIANTS)]
    )
    covariance = np.cov(costs)
    order = np.argsort(np.diag(covariance))
    order = np.r_[order[len(order) // 2], np.delete(order, len(order) // 2)]
    middle = covariance[order[0], order[0]]
    among = max(float(covariance[~np.eye(len(costs), dtype=bool)].mean()), 0.0)
    own = np.maximum(np.diag(covariance)[order] - among, 0.01 * middle)
    return dict(zip(("none", *VARIANTS), np.sqrt(2 * np.r_[among, own] / middle).tolist(), strict=False))


#: Entries of the gallery: of 12 variants, of 4, and of 5, one of which is seven times as noisy as the middle one.
ENTRIES: Final = (
    ("scoreboard", "tuned"),
    ("embedding-norm-bpe-why", "default"),
    ("embedding-norm-factorial", "token-large"),
)


def shared_null() -> Iterator[Scenario]:
    """Where nothing differs; so much noise that only the test holds claims back."""
    for variants, seeds in ((3, 4), (4, 3), (12, 10)):
        yield Scenario("shared variance", seeds, 4.0, **sharing(variants))
    for variants, seeds, noisy, times in (
        (2, 6, 1, 20.0),
        (4, 5, 1, 4.0),
        (4, 5, 2, 20.0),
        (8, 5, 3, 20.0),
        (12, 5, 3, 20.0),
    ):
        name = f"shared variance, {noisy} of the variants {times:g} times as noisy"
        yield Scenario(name, seeds, 4.0, spreads=dict.fromkeys(VARIANTS[:noisy], times), **sharing(variants))
    for variants in (4, 12):
        name = "shared variance, baseline 4 times as noisy"
        yield Scenario(name, 5, 4.0, spreads={"none": 4.0}, **sharing(variants))
    for entry, regime in ENTRIES:
        spreads = spreads_of(entry, regime)
        for seeds in (5, 8):
            name = f"shared variance, noise of `{entry}`"
            yield Scenario(name, seeds, 4.0, spreads=spreads, **sharing(len(spreads) - 1))
    spreads = spreads_of(*ENTRIES[0])
    for share in (0.05, 0.2):
        name = f"shared variance, noise of `{ENTRIES[0][0]}`, {share:.0%} of all runs lost".replace("%", " %")
        yield Scenario(name, 10, 4.0, unstable=both(share, DEFAULT_REGIME), spreads=spreads, **sharing(12))
    for sds in (20.0, -20.0):
        for baseline in (False, True):
            name = f"shared variance, one run of {'the baseline' if baseline else 'one variant'} {sds:+g} SD"
            yield Scenario(name, 5, 4.0, spoiled=partial(absurd, sds=sds, baseline=baseline), **sharing(12))
    yield Scenario("shared variance, skewed losses", 5, 4.0, shape=skewed, skewed=True, **sharing(12))


def odd() -> Iterator[Scenario]:
    """Noise of other shapes, and odd runs; the effect is the caller's."""
    yield Scenario("heavy tails", shape=heavy)
    for seeds in (5, 10, 20):
        yield Scenario("skewed losses of the variants", seeds, shape=skewed, skewed=True)
    yield Scenario("5 % of all records missing", spoiled=partial(missing, share=0.05))
    for whose in ("variant", "baseline"):
        for sds in (20.0, -20.0):
            name = f"one run of {'one' if whose == 'variant' else 'the'} {whose} {sds:+g} SD"
            yield Scenario(name, spoiled=partial(absurd, sds=sds, baseline=whose == "baseline"))


def null() -> Iterator[Scenario]:
    """The primary metric does not differ."""
    for noise in (0.5, 1.0, 1.5):
        for seeds in (3, 5, 8, 10, 20):
            yield Scenario("plain", seeds, noise)
    for seeds in (5, 10):
        yield Scenario("four variants", seeds, variants=4, drawn=0.5)
    yield Scenario("twelve variants, three of them better", 5, 1.0, variants=12, real=3, drawn=0.25)
    yield Scenario("four variants, two of them better", 10, 1.0, variants=4, real=2, drawn=0.5)
    for spread in (2.0, 4.0):
        yield Scenario(f"baseline {spread:g} times as noisy", 5, 1.0, variants=4, spreads={"none": spread}, drawn=0.5)
    yield Scenario("one variant four times as noisy", 5, 1.0, variants=4, spreads={VARIANTS[0]: 4.0}, drawn=0.5)
    for row in odd():
        yield replace(row, noise=4.0 if row.seeds == 20 else row.noise)
    yield Scenario("skewed losses of the baseline", shape=partial(skewed, baseline=True), skewed=True)
    yield Scenario("skewed, each variant loses its worst run", 20, 4.0, shape=skewed, skewed=True, loss=WORST)
    yield Scenario("20 % of all runs spike", unstable=both(0.2, diverge=False))
    yield Scenario("half of all runs diverge under stress", 20, unstable=both(0.5, "stress"))
    yield Scenario(
        "70 % of the baseline's runs diverge under stress, 10 % else", 20, unstable=both(0.7, "stress", variant=0.1)
    )
    yield Scenario("40 % of the variants' runs spike, no others", 20, unstable=both(0.0, variant=0.4, diverge=False))
    yield Scenario(
        "accuracy over 6 tasks that gain 0.5 points", primary="macro_accuracy", tasks=SimulatedTasks(6, 0.5, 1.2)
    )
    yield from shared_null()


def different() -> Iterator[Scenario]:
    """It differs by one or two smallest effects, for better or worse."""
    for effect in (1.0, 2.0, -1.0, -2.0):
        for seeds in (3, 5, 8, 10, 20):
            yield Scenario("plain", seeds, 1.0, effect)
    for noise in (0.5, 1.5):
        for seeds in (5, 20):
            yield Scenario("plain", seeds, noise, 1.0)
    for row in odd():
        yield replace(row, noise=min(row.noise, 1.0), effect=1.0)
    for spending in SPENDINGS:
        asked = registered(design={"looks": list(LOOKS), "spending": spending})
        yield Scenario(f"looks ({spending}), one primary test", 20, 1.0, 1.0, variants=1, drawn=2.0, **asked)
    for variance in ("own", "shared"):
        far = partial(absurd, sds=20.0, last=True)
        name = f"{variance} variance, one run of another variant +20 SD"
        yield Scenario(name, 5, 1.0, 2.0, spoiled=far, **sharing(12, variance))


# --- counting -------------------------------------------------------------------------------------------------


def chunk_counts(job: tuple[Scenario, int]) -> Counter[str]:
    """Events in a chunk of studies."""
    row, number = job
    return events_of(row, CHUNK, np.random.default_rng([17, crc32(row.key.encode()), number]))


def events_of(row: Scenario, studies: int, rng: np.random.Generator) -> Counter[str]:
    counts: Counter[str] = Counter()
    for drawn, dataset in row.datasets(studies, rng):
        analysis = analyze_to_stop(dataset)
        counts += row.events(analysis)
        counts["seeds"] += len(analysis.seeds)
        if row.grid:
            counts += row.t_events(dataset, SURVIVORS, whole=False)
        elif row.made.hypotheses:
            counts[H1B] += judge_hypotheses(analysis)[H1B].status == "supported"
        if row.grid or row.shape is not None:
            counts += row.t_events(drawn, ORACLE, whole=True)
    return counts


@dataclass(frozen=True)
class Result:
    """A row with its counts."""

    row: Scenario
    counts: Mapping[str, float]
    studies: int

    @property
    def limits(self) -> dict[str, float]:
        return self.row.limits(self.counts, self.studies)

    @property
    def broken(self) -> dict[str, float]:
        """Limits that do not hold, by event."""
        return {name: most for name, most in self.limits.items() if broken(self.counts[name], self.studies, most)}

    def rate(self, event: str) -> str:
        shown = f"{100 * self.counts[event] / self.studies:.1f}"
        return f"**{shown}**" if event in self.broken else shown

    def cells(self) -> list[str]:
        row = self.row
        truth = [f"{row.effect:+g}"] if row.effect else []
        plain = " / ".join(self.rate(f"{ORACLE}: {way}") for way in ("better", "worse")) if row.shape else ""
        seeds = f"{self.counts['seeds'] / self.studies:.4g}"
        about = [row.name, str(row.variants), seeds, f"{row.noise:g}", *truth]
        return [*about, *map(self.rate, COLUMNS), *([] if row.effect else [plain, self.rate(H1B)]), str(self.studies)]


def heads(*, differs: bool) -> list[str]:
    about = ["", "variants", "seeds", "SD", *(["gain"] if differs else [])]
    return [*about, *COLUMNS, *([] if differs else ["plain t: better / worse", H1B]), "studies"]


class Counts:
    """Rows that were counted, in a file that grows line by line; nothing is kept without one."""

    def __init__(self, path: Path | None) -> None:
        lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
        self.path, self.known = path, {made["row"]: made for made in map(json.loads, lines)}

    def __getitem__(self, row: Scenario) -> Result | None:
        made = self.known.get(row.key)
        return None if made is None else Result(row, Counter(made["counts"]), made["studies"])

    def keep(self, result: Result) -> None:
        if self.path is not None:
            made = {"row": result.row.key, "studies": result.studies, "counts": result.counts}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(made)}\n")


def results(rows: Sequence[Scenario], studies: int, jobs: int, counts: Counts | None = None) -> Iterator[Result]:
    """All chunks in one queue, so that no process waits for the end of a row; results come in order."""
    counts = Counts(None) if counts is None else counts
    asked = [(row, number) for row in rows if counts[row] is None for number in range(chunks(row, studies))]

    def gathered(made: Iterator[Counter[str]]) -> Iterator[Result]:
        for row in rows:
            if (known := counts[row]) is not None:
                yield known
                continue
            found: Counter[str] = Counter()
            for _ in range(chunks(row, studies)):
                found.update(next(made))
            result = Result(row, found, chunks(row, studies) * CHUNK)
            counts.keep(result)
            yield result

    if jobs == 1:
        yield from gathered(map(chunk_counts, asked))
        return
    with Pool(jobs) as pool:
        yield from gathered(pool.imap(chunk_counts, asked))


def line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=800, help="per row")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--rows", default="", help="only rows whose name matches this regular expression")
    parser.add_argument("--out", type=Path, help="also write the tables to this file")
    parser.add_argument("--counts", type=Path, help="keep the counts of each row in this file, and start from them")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a limit is broken")
    given = parser.parse_args()
    begin = perf_counter()
    lines: list[str] = []

    def write(text: str) -> None:
        print(text, flush=True)
        lines.append(f"{text}\n")
        if given.out is not None:
            given.out.write_text("".join(lines), encoding="utf-8")

    counts, failed = Counts(given.counts), []
    tables = {"grid": grid, "null": null, "different": different}
    for name, table in tables.items():
        rows = [row for row in table() if re.search(given.rows, row.name)]
        made = []
        for result in results(rows, given.studies, given.jobs, counts):
            made.append(result)
            print(f"{perf_counter() - begin:.0f} s: {result.row.key}", file=sys.stderr, flush=True)
            failed += [f"{result.row.key}: {event} above {most:.1%}" for event, most in result.broken.items()]
        titles = heads(differs=name == "different")
        body = [*grid_lines(made)] if name == "grid" else [line(titles), "|---" * len(titles) + "|"]
        body += [] if name == "grid" else [line(result.cells()) for result in made]
        if made:
            write("\n".join(["", *body]))
    print("\n".join(["", *failed, f"{len(failed)} limits broken"]), file=sys.stderr)
    sys.exit(int(given.check and bool(failed)))


if __name__ == "__main__":
    main()
