"""Error rates and power of the whole decision: simulated studies, decided by the program's own rules.

    PYTHONPATH=src python benchmarks/decisions.py --jobs 2 --studies 800 --out FILE  # docs/validation-tables.md
    PYTHONPATH=src python benchmarks/decisions.py --jobs 2 --studies 800 --check     # fails where a limit is broken
    PYTHONPATH=src python benchmarks/decisions.py --studies 50 --rows looks          # a quick look

The same tables for any number of jobs: studies are drawn in chunks, each from a stream of its own, and no two rows share
one. Rows that take long, and those in which something differs, are drawn less often; column *studies* says how often.

A study here has a primary metric, a secondary, two guards, a stress regime in which the primary is asked too, and a
hypothesis, as the shipped ones do. Its values are drawn (benchmarks/simulated.py); tests, families, gate, stability and rules
are those that decide on real runs. SDs (of a paired difference) and effects are in smallest effects.

Where nothing differs, a claim counts if it is made of any variant in any regime; *undecided* and *not measured* are shares of
all answers. Where something differs, the answer on the first variant counts, in the regime of the primary metric.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from multiprocessing import Pool
from pathlib import Path
from time import perf_counter
from typing import Any, Final
from zlib import crc32

import numpy as np
from scipy import special, stats

from ablationlab.analysis.dataset import Arm, Dataset, Value, absent
from ablationlab.analysis.verdict.hypotheses import judge_hypotheses
from ablationlab.analysis.verdict.rules import answer_of, gather
from ablationlab.records.analysis import Absence, Analysis, RunStability, Seed
from ablationlab.records.settings import DEFAULT_REGIME, TUNED, Study
from ablationlab.records.verdict import Answer
from ablationlab.study.load import parse_study
from simulated import BASE, Instabilities, SimulatedTasks, World, analyze_to_stop, datasets

GALLERY: Final = Path(__file__).parents[1] / "docs/gallery"
EFFECT: Final = 0.01
CHUNK: Final = 25
#: Any will do, for values are drawn.
VARIANTS: Final = (
    *("layernorm", "rmsnorm", "layernorm-token", "rmsnorm-token", "rmsnorm-nogain", "layernorm-nobias"),
    *("center-only", "sqrt-d", "sqrt-d-scale", "gradient-shrink", "token-init-1", "untied"),
)
METRICS: Final = ("validation_loss", "next_token_accuracy", "token_ece", "token_brier")
#: Beside the answers: unstable as counted, and the hypothesis that stability is restored.
COUNTED, H1B = "as counted", "H1b"
CLAIMS: Final = ("better", "worse", "unstable", COUNTED, "more stable", "same")
COLUMNS: Final = (*CLAIMS, "undecided", "not measured")
#: Every claim is two-sided at 5 % over its family (at looks, over all looks), so in each direction half of that.
NOMINAL: Final = 0.025
#: At exactly the smallest effect: the dual criterion asks that the estimate, which is symmetric, is at least that large;
#: two one-sided tests at 5 % each show *same*.
AT_MARGIN, FALSELY_SAME = 0.5, 0.05
#: By how much more skewed costs may mislead the rules than a plain paired t.
ALLOWANCE: Final = 0.02
#: A limit is broken where so many claims or more would be rarer than this: some 400 limits are checked.
CHANCE: Final = 1e-4

#: What happens to the drawn values.
Change = Callable[["Scenario", Dataset, np.random.Generator], Dataset]


@dataclass(frozen=True)
class Scenario:
    """A row. *noise*: SD of the paired differences of every metric; *effect*: true gain on the primary one.

    *real*: so many variants gain two smallest effects more, and their answers do not count. *regime*: of the primary metric.
    *shape*: of the noise. *spoiled*: what happens to runs. *drawn*: share of the studies that were asked for.
    """

    name: str
    seeds: int = 10
    noise: float = 1.5
    effect: float = 0.0
    variants: int = 2
    real: int = 0
    primary: str = "validation_loss"
    regime: str = DEFAULT_REGIME
    unstable: Mapping[str, Instabilities] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    criterion: Mapping[str, Any] = field(default_factory=dict)
    tasks: SimulatedTasks | None = None
    curvature: float | None = None
    guard: float = 0.0
    unpaired: bool = False
    spreads: Mapping[str, float] = field(default_factory=dict)
    shape: Change | None = None
    skewed: bool = False
    spoiled: Change | None = None
    drawn: float = 1.0

    @property
    def key(self) -> str:
        return f"{self.name}, {self.seeds}, {self.noise}, {self.effect}, {self.variants}"

    @property
    def first(self) -> str:
        """The variant whose runs are spoiled, and whose answer counts where something differs."""
        return VARIANTS[0]

    def chunks(self, studies: int) -> int:
        return max(1, round(self.drawn * studies * (0.5 if self.effect else 1.0) / CHUNK))

    def study(self) -> Study:
        """A small study with everything that takes part in a decision."""
        primary = {"metric": self.primary, "role": "primary", "smallest_effect": EFFECT, **self.criterion}
        secondary = "next_token_accuracy" if self.primary == "validation_loss" else "validation_loss"
        tasks = {"tasks": ["arc_easy"]} if self.tasks is not None else {}  # any will do: scores are drawn
        table = {
            "name": "simulated",
            "baseline": "none",
            "variants": ["none", *VARIANTS[: self.variants]],
            "seeds": list(range(1, self.seeds + 1)),
            "model": {"layers": 1, "width": 16, "heads": 2, "context": 16},
            "training": {"steps": 60, "batch": 4, "lr": 1e-3, "warmup": 2, "precision": "fp32"},
            "evaluation": {"gate_seeds": [101, 102, 103, 104, 105], **tasks},
            "regimes": {"stress": {"training": {"lr": 1e-2}}},
            "criteria": [
                primary,
                {**primary, "regime": "stress"},
                {"metric": secondary, "role": "secondary", "smallest_effect": EFFECT},
                {"metric": "token_ece", "role": "guard", "margin": EFFECT},
                {"metric": "token_brier", "role": "guard", "margin": EFFECT},
            ],
            "hypotheses": [{"name": H1B, "statement": "Stability is restored.", "rule": "restores-stability"}],
        }
        return parse_study({**table, **self.changes})

    def world(self) -> World:
        better = 1.0 if self.primary == "macro_accuracy" else -1.0
        sds = dict.fromkeys({*METRICS, self.primary}, self.noise * EFFECT)
        effects = {self.primary: self.effect * better * EFFECT, "token_ece": self.guard * EFFECT}
        return World(sds, effects, self.unstable, self.tasks, self.curvature, spreads=self.spreads)

    def datasets(self, studies: int, rng: np.random.Generator) -> Iterator[tuple[Dataset, Dataset]]:
        """Studies as they were drawn, and as they came out."""
        for drawn in datasets(self.study(), self.world(), studies, rng):
            shaped = drawn if self.shape is None else self.shape(self, drawn, rng)
            real = changed(shaped, self.primary, self._gains) if self.real else shaped
            spoiled = real if self.spoiled is None else self.spoiled(self, real, rng)
            if self.unpaired:  # only the whole analysis compares independent arms
                spoiled = replace(spoiled, source="table", unpaired=True, brief=False)
            yield shaped, spoiled

    def _gains(self, arm: Arm, _: Seed, value: float) -> Value:
        return value - 2 * EFFECT if arm.variant in VARIANTS[: self.real] else value

    def events(self, analysis: Analysis) -> Counter[str]:
        """What counts in one study."""
        variants = VARIANTS[self.real : self.variants]
        if self.effect:
            return Counter([answer(analysis, self.first, self.regime)])
        answers = Counter(answer(analysis, variant, regime) for regime in analysis.regimes for variant in variants)
        shares = {name: answers[name] / answers.total() for name in COLUMNS}
        return Counter({name: float(answers[name] > 0) if name in CLAIMS else share for name, share in shares.items()})

    def limits(self, counts: Mapping[str, float], studies: int) -> dict[str, float]:
        """The most that the rate of each false claim may be."""
        chances = [(known.baseline, known.variant) for known in self.unstable.values()]
        found = {}
        if self.effect <= 0:
            found["better"] = counts["plain better"] / studies + ALLOWANCE if self.skewed else NOMINAL
        if self.effect >= 0:
            found["worse"] = counts["plain worse"] / studies + ALLOWANCE if self.skewed else NOMINAL
        if abs(self.effect) == 1 and not self.skewed:
            found |= {"better" if self.effect > 0 else "worse": AT_MARGIN, "same": FALSELY_SAME}
        if all(variant <= baseline for baseline, variant in chances):
            found["unstable"] = NOMINAL
        if all(baseline <= variant for baseline, variant in chances):
            found |= {"more stable": NOMINAL, H1B: NOMINAL}
        return found


def answer(analysis: Analysis, variant: str, regime: str) -> str:
    evidence = gather(analysis, variant, regime)
    found = answer_of(evidence)
    return COUNTED if found == Answer.UNSTABLE and not evidence.failures.more else found.value


def changed(dataset: Dataset, metric: str, change: Callable[[Arm, Seed, float], Value]) -> Dataset:
    """With other values of a metric."""
    values = {
        arm: {
            seed: change(arm, seed, value) if arm.metric == metric and isinstance(value, float) else value
            for seed, value in by_seed.items()
        }
        for arm, by_seed in dataset.values.items()
    }
    return replace(dataset, values=values)


def without(dataset: Dataset, lost: Iterable[tuple[str, str, Seed]], reason: Absence) -> Dataset:
    """Without the values of these runs, by regime, variant and seed; they diverged, or are not there."""
    gone = set(lost)
    update = {"unstable": True, "state": "diverged", "reason": "diverged"}
    if reason == Absence.RUN_MISSING:
        update = {"unstable": None, "state": "missing", "reason": "not-finished"}

    def ended(run: RunStability) -> RunStability:
        return run.model_copy(update=update) if (run.regime, run.variant, run.seed) in gone else run

    values = {
        arm: {seed: absent(reason) if (*arm[2:], seed) in gone else value for seed, value in by_seed.items()}
        for arm, by_seed in dataset.values.items()
    }
    return replace(dataset, values=values, runs=tuple(map(ended, dataset.runs)))


def skewed(row: Scenario, dataset: Dataset, _: np.random.Generator, *, baseline: bool = False) -> Dataset:
    """The losses of the variants, or of the baseline, vary as an exponential variable does, with the same mean and SD."""
    world = row.world()

    def change(arm: Arm, _: Seed, value: float) -> Value:
        if (arm.variant == dataset.baseline) != baseline:
            return value
        mean = BASE if baseline else BASE + world.effects[row.primary]
        sd = world.sd_of_runs(row.primary, arm.variant)
        return mean - sd * (1 + float(special.log_ndtr((mean - value) / sd)))

    return changed(dataset, row.primary, change)


def heavy(row: Scenario, dataset: Dataset, _: np.random.Generator) -> Dataset:
    """The losses of all arms vary as Student's t with 3 degrees of freedom does, with the same SD."""
    world = row.world()

    def change(arm: Arm, _: Seed, value: float) -> Value:
        mean = BASE if arm.variant == dataset.baseline else BASE + world.effects[row.primary]
        sd = world.sd_of_runs(row.primary, arm.variant)
        return mean + sd * float(special.stdtrit(3, special.ndtr((value - mean) / sd))) / math.sqrt(3)

    return changed(dataset, row.primary, change)


def absurd(
    row: Scenario, dataset: Dataset, rng: np.random.Generator, *, sds: float, baseline: bool = False, last: bool = False
) -> Dataset:
    """One run of the first variant, of the last one, or of the baseline, is off by so many SDs."""
    whose = dataset.baseline if baseline else dataset.variants[-1] if last else row.first
    odd = rng.choice(dataset.seeds)

    def change(arm: Arm, seed: Seed, value: float) -> Value:
        hit = (arm.regime, arm.variant, seed) == (row.regime, whose, odd)
        return value + sds * row.noise * EFFECT if hit else value

    return changed(dataset, row.primary, change)


def one_lost(row: Scenario, dataset: Dataset, rng: np.random.Generator, *, worst: bool = False) -> Dataset:
    """One run of the first variant diverged: any, or the one that would have ended worst."""
    ended = dataset.values[Arm(row.primary, None, row.regime, row.first)]
    numbers = {seed: value for seed, value in ended.items() if isinstance(value, float)}
    seed = max(numbers, key=lambda seed: numbers[seed]) if worst else rng.choice(dataset.seeds)
    return without(dataset, [(row.regime, row.first, seed)], Absence.DIVERGED)


def missing(_: Scenario, dataset: Dataset, rng: np.random.Generator, *, share: float) -> Dataset:
    """A share of all records is not there."""
    gone = [(run.regime, run.variant, run.seed) for run in dataset.runs if rng.random() < share]
    return without(dataset, gone, Absence.RUN_MISSING)


def plain(dataset: Dataset, metric: str) -> Counter[str]:
    """What paired t-tests with Holm's correction, and nothing else, would claim of any variant in any regime."""
    found = []
    for regime in dataset.regimes:
        arms = [
            np.array([*dataset.values[Arm(metric, None, regime, arm)].values()], dtype=float)
            for arm in dataset.variants
        ]
        costs = np.array([arm - arms[0] for arm in arms[1:]])
        n = costs.shape[1]
        found += list(costs.mean(axis=1) / costs.std(axis=1, ddof=1) * np.sqrt(n))
    t = np.array(sorted(found, key=abs, reverse=True))
    limits = special.stdtrit(n - 1, 1 - NOMINAL / np.arange(len(t), 0, -1))
    rejected = np.cumprod(np.abs(t) >= limits).astype(bool)
    claims = {"plain better": (rejected & (t < 0)).any(), "plain worse": (rejected & (t > 0)).any()}
    return Counter({name: int(claim) for name, claim in claims.items()})


def broken(count: float, studies: int, limit: float) -> bool:
    """Whether a rate is above its limit by more than chance."""
    return bool(stats.binom.sf(count - 1, studies, limit) < CHANCE)


def both(share: float, *regimes: str, variant: float | None = None, diverge: bool = True) -> dict[str, Instabilities]:
    """That share of the runs of every arm fails; another one of the variants, if given."""
    chances = Instabilities(share, share if variant is None else variant, diverge=diverge)
    return dict.fromkeys(regimes or (DEFAULT_REGIME, "stress"), chances)


def swept(factor: float) -> dict[str, Any]:
    """Arms that are tuned over five rates. The loss is twice the smallest effect higher at a rate twice the best one."""
    sweep = {"lr": [1e-3 * factor**k for k in range(-2, 3)], "selection_seeds": [201, 202, 203]}
    asked = {"metric": "validation_loss", "role": "primary", "smallest_effect": EFFECT, "regime": TUNED}
    changes = {"sweep": sweep, "criteria": [asked], "regimes": {}}
    return {"changes": changes, "curvature": 2 * EFFECT / np.log(2) ** 2, "regime": TUNED}


def looks(spending: str) -> dict[str, Any]:
    return {"seeds": 20, "changes": {"design": {"looks": [5, 8, 12, 20], "spending": spending}}, "drawn": 0.25}


#: One primary test, and no other.
PRIMARY: Final = {"metric": "validation_loss", "role": "primary", "smallest_effect": EFFECT}
ALONE: Final = {"regimes": {}, "criteria": [PRIMARY]}


def sharing(variants: int, variance: str = "shared", **changes: Any) -> dict[str, Any]:
    """One primary test of each variant, by Bonferroni; its variance is shared, or its own."""
    asked = PRIMARY | {"variance": variance, "correction": "bonferroni"}
    return {"variants": variants, "changes": {"regimes": {}, "criteria": [asked], **changes}}


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
    for variants, seeds in ((2, 6), (3, 4), (4, 3), (4, 5), (12, 5), (12, 10)):
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
    for spending in ("obrien-fleming", "pocock"):
        asked = sharing(4, design={"looks": [5, 8, 12, 20], "spending": spending})
        yield Scenario(f"shared variance, looks ({spending})", 20, 4.0, drawn=0.5, **asked)


def shared_different() -> Iterator[Scenario]:
    """Its power beside that of own variances."""
    for variance in ("own", "shared"):
        name = f"{variance} variance"
        for variants, seeds in ((4, 5), (12, 5), (12, 8)):
            yield Scenario(name, seeds, 1.0, 2.0, **sharing(variants, variance))
        for entry, regime in ENTRIES:
            spreads = spreads_of(entry, regime)
            asked = sharing(len(spreads) - 1, variance)
            yield Scenario(f"{name}, noise of `{entry}`", 5, 1.0, 2.0, spreads=spreads, **asked)
        far = partial(absurd, sds=20.0, last=True)
        yield Scenario(f"{name}, one run of another variant +20 SD", 5, 1.0, 2.0, spoiled=far, **sharing(12, variance))
        for share in (0.05, 0.2):
            name = f"{variance} variance, {share:.0%} of all runs lost".replace("%", " %")
            yield Scenario(name, 8, 1.0, 2.0, unstable=both(share, DEFAULT_REGIME), **sharing(12, variance))
    for noise in (0.5, 1.0):
        yield Scenario("shared variance", 5, noise, 1.0, **sharing(12))


def designs() -> Iterator[Scenario]:
    """What a study file can register, and what can happen to its runs; the effect is the caller's."""
    for spending in ("obrien-fleming", "pocock"):
        yield Scenario(f"looks after 5, 8, 12, 20 seeds ({spending})", **looks(spending))
    for test in ("sign-flip", "wilcoxon"):
        yield Scenario(f"{test} test", criterion={"test": test})
    yield Scenario("Bonferroni", criterion={"correction": "bonferroni"})
    yield Scenario("tuned, rates x 1.4", noise=0.6, **swept(1.4))
    yield Scenario("heavy tails", shape=heavy)
    for seeds in (5, 10, 20):
        yield Scenario("skewed losses of the variants", seeds, shape=skewed, skewed=True)
    for share in (0.05, 0.1):
        yield Scenario(f"both arms lose {share:.0%} of runs".replace("%", " %"), 20, unstable=both(share))
    yield Scenario("one variant loses one run", spoiled=one_lost)
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
    for seeds in (5, 10, 20):  # so much noise that only the test holds claims back, not the smallest effect
        yield Scenario("plain", seeds, 4.0)
    for seeds in (5, 10):
        yield Scenario("four variants", seeds, variants=4, drawn=0.5)
    yield Scenario("twelve variants", 5, variants=12, drawn=0.25)
    yield Scenario("twelve variants, three of them better", 5, 1.0, variants=12, real=3, drawn=0.25)
    yield Scenario("four variants, two of them better", 10, 1.0, variants=4, real=2, drawn=0.5)
    for spread in (2.0, 4.0):
        yield Scenario(f"baseline {spread:g} times as noisy", 5, 1.0, variants=4, spreads={"none": spread}, drawn=0.5)
    yield Scenario("one variant four times as noisy", 5, 1.0, variants=4, spreads={VARIANTS[0]: 4.0}, drawn=0.5)
    for row in designs():
        yield replace(row, noise=4.0 if row.seeds == 20 else row.noise)
    yield Scenario("tuned, rates x 2", noise=0.6, **swept(2.0))
    yield Scenario("skewed losses of the baseline", shape=partial(skewed, baseline=True), skewed=True)
    lost = partial(one_lost, worst=True)
    for seeds in (6, 10, 20):
        yield Scenario("one variant loses its worst run", seeds, 4.0, spoiled=lost)
    yield Scenario("skewed, one variant loses its worst run", 20, 4.0, shape=skewed, skewed=True, spoiled=lost)
    yield Scenario("20 % of all runs spike", unstable=both(0.2, diverge=False))
    yield Scenario("half of all runs diverge under stress", 20, unstable=both(0.5, "stress"))
    yield Scenario(
        "70 % of the baseline's runs diverge under stress, 10 % else", 20, unstable=both(0.7, "stress", variant=0.1)
    )
    yield Scenario("40 % of the variants' runs spike, no others", 20, unstable=both(0.0, variant=0.4, diverge=False))
    yield Scenario("a guard at its margin", 20, guard=1.0)
    for gain in (0.5, 2.0):
        tasks = SimulatedTasks(6, gain, 1.2)
        yield Scenario(f"accuracy over 6 tasks that gain {gain:g} points", primary="macro_accuracy", tasks=tasks)
    yield Scenario("unpaired", unpaired=True, drawn=0.5)
    yield from shared_null()


def different() -> Iterator[Scenario]:
    """It differs by one or two smallest effects, for better or worse."""
    for effect in (1.0, 2.0, -1.0, -2.0):
        for seeds in (3, 5, 8, 10, 20):
            yield Scenario("plain", seeds, 1.0, effect)
    for noise in (0.5, 1.5):
        for seeds in (5, 20):
            yield Scenario("plain", seeds, noise, 1.0)
    yield Scenario("twelve variants", 5, 1.0, 2.0, variants=12, drawn=0.5)
    for row in designs():
        yield replace(row, noise=min(row.noise, 1.0), effect=1.0)
    for spending in ("obrien-fleming", "pocock"):
        yield Scenario(
            f"looks after 5, 8, 12, 20 seeds ({spending})", noise=0.5, effect=1.0, **{**looks(spending), "drawn": 0.5}
        )
    for spending in ("obrien-fleming", "pocock"):
        asked = looks(spending)
        asked |= {"variants": 1, "changes": asked["changes"] | ALONE, "drawn": 2.0}
        yield Scenario(f"looks ({spending}), one primary test", noise=1.0, effect=1.0, **asked)
    yield Scenario("headline: one variant loses one run", 20, 1.0, 2.0, spoiled=one_lost)
    yield Scenario("headline: both arms lose 5 % of runs", 20, 1.0, 2.0, unstable=both(0.05))
    yield from shared_different()


def chunk_counts(job: tuple[Scenario, int]) -> Counter[str]:
    """Events in a chunk of studies."""
    row, number = job
    counts: Counter[str] = Counter()
    for drawn, dataset in row.datasets(CHUNK, np.random.default_rng([17, crc32(row.key.encode()), number])):
        analysis = analyze_to_stop(dataset)
        counts += row.events(analysis)
        counts["seeds"] += len(analysis.seeds)
        counts[H1B] += judge_hypotheses(analysis)[H1B].status == "supported"
        if row.shape is not None:
            counts += plain(drawn, row.primary)
    return counts


@dataclass(frozen=True)
class Result:
    """A row with its counts."""

    row: Scenario
    counts: Mapping[str, float]
    studies: int

    @property
    def broken(self) -> dict[str, float]:
        """Limits that do not hold, by event."""
        limits = self.row.limits(self.counts, self.studies)
        return {name: most for name, most in limits.items() if broken(self.counts[name], self.studies, most)}

    def rate(self, event: str) -> str:
        shown = f"{100 * self.counts[event] / self.studies:.1f}"
        return f"**{shown}**" if event in self.broken else shown

    def cells(self) -> list[str]:
        row = self.row
        truth = [f"{row.effect:+g}"] if row.effect else []
        ends = [f"{self.rate('plain better')} / {self.rate('plain worse')}" if row.shape else "", self.rate(H1B)]
        seeds = f"{self.counts['seeds'] / self.studies:.4g}"
        about = [row.name, str(row.variants), seeds, f"{row.noise:g}", *truth]
        return [*about, *map(self.rate, COLUMNS), *([] if row.effect else ends), str(self.studies)]


def heads(*, differs: bool) -> list[str]:
    about = ["", "variants", "seeds", "SD", *(["gain"] if differs else [])]
    return [*about, *COLUMNS, *([] if differs else ["plain t: better / worse", H1B]), "studies"]


def results(rows: Sequence[Scenario], studies: int, jobs: int) -> Iterator[Result]:
    """All chunks in one queue, so that no process waits for the end of a row; results come in order."""
    asked = [(row, number) for row in rows for number in range(row.chunks(studies))]

    def gathered(made: Iterator[Counter[str]]) -> Iterator[Result]:
        for row in rows:
            chunks = row.chunks(studies)
            counts: Counter[str] = Counter()
            for _ in range(chunks):
                counts.update(next(made))
            yield Result(row, counts, chunks * CHUNK)

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
    parser.add_argument("--check", action="store_true", help="exit with 1 where a limit is broken")
    given = parser.parse_args()
    begin = perf_counter()
    lines: list[str] = []

    def write(text: str) -> None:
        print(text, flush=True)
        lines.append(f"{text}\n")
        if given.out is not None:
            given.out.write_text("".join(lines), encoding="utf-8")

    rows = [row for row in (*null(), *different()) if re.search(given.rows, row.name)]
    failed = []
    shown: bool | None = None
    for result in results(rows, given.studies, given.jobs):
        differs = bool(result.row.effect)
        if differs != shown:
            shown, titles = differs, heads(differs=differs)
            write(f"\n{line(titles)}\n{'|---' * len(titles)}|")
        write(line(result.cells()))
        print(f"{perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
        failed += [f"{result.row.key}: {event} above {most:.1%}" for event, most in result.broken.items()]
    print("\n".join(["", *failed, f"{len(failed)} limits broken"]), file=sys.stderr)
    sys.exit(int(given.check and bool(failed)))


if __name__ == "__main__":
    main()
