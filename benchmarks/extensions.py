"""Error rates of studies that are extended by planned looks: decided at the planned seeds, as advised, and at any look.

    PYTHONPATH=src python benchmarks/extensions.py --jobs 2 --studies 1000 --out FILE   # docs/validation-tables.md
    PYTHONPATH=src python benchmarks/extensions.py --studies 100 --check               # fails where a limit is broken

The design is that of `init`: five seeds, then looks after 10 and 18, front-loaded. *Extended* follows `next_look` of the
verdict for as long as there is one: where an answer waits for seeds, or a guard of a gain is open. *Any look* counts a claim
that was made at one of the three, so no rule of when to go on has a higher rate. Values, tests and rules are those of
decisions.py.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing import Pool
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np

from ablationlab.analysis.verdict.rules import judge, look_that_helps
from ablationlab.records.analysis import Analysis
from ablationlab.records.settings import DEFAULT_REGIME
from ablationlab.records.verdict import FAILURES, Standing
from decisions import CHUNK, PRIMARY, both, broken, line
from scenarios import AT_MARGIN, COUNTED, EFFECT, Scenario
from simulated import analyze_at

LOOKS: Final = (5, 10, 18)
#: Tests are two-sided at 5 % over all looks and variants; *same* rests on one-sided tests at 5 %.
NOMINAL, FALSELY_SAME = 0.025, 0.05
STRATEGIES: Final = ("planned seeds", "extended", "any look")
GUARD: Final = {"metric": "token_ece", "role": "guard", "margin": EFFECT}
CLAIMS: Final = (
    "better",
    "worse",
    "unstable",
    "as counted",
    "more stable",
    "same",
    "confirmed",
    "guard kept",
    "failures kept",
)


@dataclass(frozen=True)
class Row:
    """*limits*: the most that the rate of a claim may be, at any look."""

    scenario: Scenario
    limits: dict[str, float]


def scenario(
    name: str, noise: float, effect: float = 0.0, variance: str = "own", variants: int = 1, **more: Any
) -> Scenario:
    primary = PRIMARY | ({"variance": "shared", "correction": "bonferroni"} if variance == "shared" else {})
    changes = {
        "regimes": {},
        "criteria": [primary, GUARD],
        "design": {"looks": list(LOOKS), "spending": "front-loaded"},
    }
    return Scenario(name, LOOKS[-1], noise, effect, variants=variants, changes=changes, **more)


def rows() -> Iterator[Row]:
    """The first variant's claims count; any variant's where nothing differs."""
    none = {"better": NOMINAL, "worse": NOMINAL, "unstable": NOMINAL, "more stable": NOMINAL}
    for variants in (1, 4):
        for variance in ("own", "shared")[: 1 + (variants > 1)]:
            yield Row(scenario(f"nothing differs, {variance} variance", 4.0, 0.0, variance, variants), none)
    yield Row(scenario("nothing differs, little noise", 0.5), none)
    for share in (0.05, 0.2):
        name = f"nothing differs, {share:.0%} of runs lost".replace("%", " %")
        yield Row(scenario(name, 4.0, unstable=both(share, DEFAULT_REGIME)), none)
    fails = both(0.3, DEFAULT_REGIME, diverge=False)
    yield Row(scenario("30 % of all runs spike", 4.0, unstable=fails), none)
    for noise in (0.5, 1.0):
        at_margin = {"better": AT_MARGIN, "worse": NOMINAL, "same": FALSELY_SAME}
        yield Row(scenario("gains the smallest effect", noise, 1.0), at_margin)
    yield Row(
        scenario("gains 2, a guard at its margin", 1.0, 2.0, guard=1.0), {"worse": NOMINAL, "guard kept": NOMINAL}
    )
    more = both(0.1, DEFAULT_REGIME, variant=0.3, diverge=False)
    yield Row(scenario("gains 2, fails 20 points more often", 1.0, 2.0, unstable=more), {"failures kept": NOMINAL})
    for noise in (0.5, 1.0, 2.0):
        yield Row(scenario("gains 2", noise, 2.0), {"worse": NOMINAL})


def claims(scenario: Scenario, analysis: Analysis) -> tuple[set[str], int | None]:
    """What is claimed, and the next look."""
    judged = [judge(analysis, name, DEFAULT_REGIME) for name in analysis.variants[1:]]
    counted = judged if not scenario.effect else judged[:1]
    found = {COUNTED if one.as_counted else str(one.answer) for one in counted}
    kept = {guard.name for guard in judged[0].guards if guard.standing == Standing.KEPT}
    found |= {"failures kept"} if FAILURES in kept else set()
    found |= {"guard kept"} if GUARD["metric"] in kept else set()
    return found | ({"confirmed"} if judged[0].confirmed else set()), look_that_helps(analysis, judged)


def chunk_counts(job: tuple[Scenario, int]) -> Counter[tuple[str, str]]:
    scenario, number = job
    counts: Counter[tuple[str, str]] = Counter()
    rng = np.random.default_rng([23, crc32(f"{scenario.key}, {scenario.changes}".encode()), number])
    for _, drawn in scenario.datasets(CHUNK, rng):
        dataset = replace(drawn, own=LOOKS[0])
        made = [claims(scenario, analyze_at(dataset, look)) for look in (1, 2, 3)]
        found, following = zip(*made, strict=True)
        ends = 0
        while (seeds := following[ends]) is not None:
            ends = LOOKS.index(seeds)
        for strategy, claimed in zip(STRATEGIES, (found[0], found[ends], set().union(*found)), strict=True):
            counts.update((strategy, claim) for claim in claimed)
        for strategy, trained in zip(STRATEGIES, (LOOKS[0], LOOKS[ends], LOOKS[-1]), strict=True):
            counts[strategy, "seeds"] += trained
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=1000, help="per row")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a limit is broken")
    given = parser.parse_args()
    heads = ["", "variants", "SD", "gain", "decided", *CLAIMS, "seeds"]
    lines = [line(heads), "|---" * len(heads) + "|"]
    print("\n".join(lines))
    failed = []
    chunks = max(1, given.studies // CHUNK)
    with Pool(given.jobs) as pool:
        for row in rows():
            counts: Counter[tuple[str, str]] = Counter()
            for part in pool.imap_unordered(chunk_counts, [(row.scenario, number) for number in range(chunks)]):
                counts.update(part)
            studies, asked = chunks * CHUNK, row.scenario
            for strategy in STRATEGIES:
                over = {c for c, most in row.limits.items() if broken(counts[strategy, c], studies, most)}
                failed += [f"{asked.name}, {asked.noise}, {strategy}: {claim}" for claim in sorted(over)]
                rates = [(claim, f"{100 * counts[strategy, claim] / studies:.1f}") for claim in CLAIMS]
                shown = [f"**{rate}**" if claim in over else rate for claim, rate in rates]
                about = [asked.name, str(asked.variants), f"{asked.noise:g}", f"{asked.effect:g}", strategy]
                lines.append(line([*about, *shown, f"{counts[strategy, 'seeds'] / studies:.1f}"]))
                print(lines[-1], flush=True)
            if given.out is not None:
                given.out.write_text("\n".join([*lines, ""]), encoding="utf-8")
    print("\n".join(["", *failed, f"{len(failed)} limits broken"]), file=sys.stderr)
    sys.exit(int(given.check and bool(failed)))


if __name__ == "__main__":
    main()
