"""Kinds of simulated studies: what is registered, what is true, what happens to the runs, and what counts as a claim.

A study here has a primary metric and, unless its row registers less, a secondary, two guards, a stress regime in which the
primary is asked too, and a hypothesis, as the shipped ones do. Its values are drawn (simulated.py); tests, families, gate,
stability and rules are those that decide on real runs. SDs (of a paired difference) and effects are in smallest effects.

Where nothing differs, a claim counts if it is made of any variant in any regime; *undecided* and *not measured* are shares of
all answers. Where something differs, the answer on the first variant counts, in the regime of the primary metric.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from scipy import special

from ablationlab.analysis.dataset import Arm, Dataset, Value, absent
from ablationlab.analysis.verdict.rules import answer_of, gather, standing_of
from ablationlab.records.analysis import Absence, Analysis, RunStability, Seed
from ablationlab.records.settings import DEFAULT_REGIME, TUNED, Study, registered_alpha
from ablationlab.records.verdict import Answer, Standing
from ablationlab.stats._common import FloatArray
from ablationlab.study.load import parse_study
from simulated import BASE, Instabilities, SimulatedTasks, SweptDataset, World, datasets

EFFECT: Final = 0.01
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
#: What t-tests claim that see every run, or only seeds that both arms finished.
ORACLE, SURVIVORS = "t", "t of survivors"
#: Of guards that are truly at their margin, and of those where nothing differs.
KEPT, BROKEN, FAILURES_KEPT = "guard kept", "guard broken", "guard of failures kept"
#: At exactly the smallest effect the dual criterion asks that the estimate, which is symmetric, is at least that large.
AT_MARGIN: Final = 0.5
#: By how much more skewed costs may mislead the rules than a plain paired t.
ALLOWANCE: Final = 0.02

#: What happens to the drawn values.
Change = Callable[["Scenario", Dataset, np.random.Generator], Dataset]


@dataclass(frozen=True)
class Loss:
    """Which runs diverge: a share of the baseline's and one of the variants', or the worst one of every variant."""

    name: str = "0"
    baseline: float = 0.0
    variants: float = 0.0
    worst: bool = False


WHOLE: Final = Loss()


@dataclass(frozen=True)
class Scenario:
    """A row. *noise*: SD of the paired differences of every metric; *effect*: true gain on the primary one.

    *real*: so many variants gain two smallest effects more, and their answers do not count. *regime*: of the primary metric.
    *shape*: of the noise. *loss*, *spoiled*: what happens to runs. *alone*: its level is that of each variant by itself, so
    that the first counts. *drawn*: share of the studies that were asked for. *grid*: a row of designs and lost runs, in which
    the first variant alone gains.
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
    loss: Loss = WHOLE
    spoiled: Change | None = None
    alone: bool = False
    drawn: float = 1.0
    grid: bool = False

    @property
    def key(self) -> str:
        lost = f"{self.loss.name}, " if self.grid else ""
        return f"{self.name}, {lost}{self.seeds}, {self.noise}, {self.effect}, {self.variants}"

    @property
    def first(self) -> str:
        """The variant whose runs are spoiled, and whose answer counts where something differs."""
        return VARIANTS[0]

    @property
    def names(self) -> tuple[str, ...]:
        return VARIANTS[: self.variants]

    @cached_property
    def made(self) -> Study:
        """A small study with everything that takes part in a decision."""
        primary = {"metric": self.primary, "role": "primary", "smallest_effect": EFFECT, **self.criterion}
        secondary = "next_token_accuracy" if self.primary == "validation_loss" else "validation_loss"
        tasks = {"tasks": ["arc_easy"]} if self.tasks is not None else {}  # any will do: scores are drawn
        table = {
            "name": "simulated",
            "baseline": "none",
            "variants": ["none", *self.names],
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

    def study(self) -> Study:
        return self.made

    def world(self) -> World:
        better = 1.0 if self.primary == "macro_accuracy" else -1.0
        sds = dict.fromkeys({*METRICS, self.primary}, self.noise * EFFECT)
        effects = {self.primary: self.effect * better * EFFECT, "token_ece": self.guard * EFFECT}
        unstable = dict(self.unstable)
        if self.curvature is not None:  # runs at every rate diverge, not only those that are compared
            unstable[TUNED] = Instabilities(self.loss.baseline, self.loss.variants, diverge=True)
        only = self.first if self.grid and self.effect else None
        return World(sds, effects, unstable, self.tasks, self.curvature, self.spreads, only)

    def source(self, studies: int, rng: np.random.Generator) -> Iterator[Dataset]:
        return datasets(self.study(), self.world(), studies, rng)

    def datasets(self, studies: int, rng: np.random.Generator) -> Iterator[tuple[Dataset, Dataset]]:
        """Studies as they were drawn, and as they came out."""
        for drawn in self.source(studies, rng):
            shaped = drawn if self.shape is None else self.shape(self, drawn, rng)
            real = changed(shaped, self.primary, self._gains) if self.real else shaped
            spoiled = real if self.spoiled is None else self.spoiled(self, real, rng)
            if self.loss != WHOLE and self.curvature is None:
                spoiled = lost(self, spoiled, rng)
            if self.unpaired:
                spoiled = replace(spoiled, source="table", unpaired=True)
            yield shaped, spoiled

    def _gains(self, arm: Arm, _: Seed, value: float) -> Value:
        return value - 2 * EFFECT if arm.variant in VARIANTS[: self.real] else value

    @cached_property
    def regimes(self) -> tuple[str, ...]:
        """Where the primary metric is asked for."""
        return tuple(criterion.regime for criterion in self.made.criteria if criterion.role == "primary")

    def events(self, analysis: Analysis) -> Counter[str]:
        """What counts in one study."""
        variants = (self.first,) if self.alone else VARIANTS[self.real : self.variants]
        if self.effect:
            return Counter([answer(analysis, self.first, self.regime)])
        regimes = self.regimes if self.grid else analysis.regimes
        answers = Counter(answer(analysis, variant, regime) for regime in regimes for variant in variants)
        shares = {name: answers[name] / answers.total() for name in COLUMNS}
        found: Counter[str] = Counter()
        found.update({name: float(answers[name] > 0) if name in CLAIMS else share for name, share in shares.items()})
        if self.guard:
            evidence = gather(analysis, self.first, self.regime)
            standings = {name: standing_of(guard) for name, guard in evidence.guards}
            found[KEPT] = int(standings["token_ece"] == Standing.KEPT)
            found[BROKEN] = int(standings["token_brier"] == Standing.BROKEN)
            found[FAILURES_KEPT] = int(evidence.failures.guard().standing == Standing.KEPT)
        return found

    def t_events(self, dataset: Dataset, what: str, *, whole: bool) -> Counter[str]:
        """What t-tests with Holm's correction, and nothing else, claim: of any variant, or where something differs of the
        first."""
        values = dataset.values
        if isinstance(dataset, SweptDataset):
            values = dataset.chosen[0 if whole else 1]
        claims = self._claims_of_t(values, dataset.baseline)
        if self.effect or self.alone:
            claims = {place: claim for place, claim in claims.items() if place[1] == self.first}
        return Counter({f"{what}: {way}": int(way in claims.values()) for way in ("better", "worse")})

    def _claims_of_t(self, values: Mapping[Arm, Mapping[Seed, Value]], baseline: str) -> dict[tuple[str, str], str]:
        """By regime and variant; runs without a value are left out."""
        sign = -1.0 if self.primary == "macro_accuracy" else 1.0
        found: dict[tuple[str, str], tuple[float, float]] = {}
        for regime in self.regimes:
            arms = {
                variant: np.array(
                    [
                        value if isinstance(value, float) else math.nan
                        for value in values[Arm(self.primary, None, regime, variant)].values()
                    ]
                )
                for variant in (baseline, *self.names)
            }
            for variant in self.names:
                found[regime, variant] = _t_test(arms[variant], arms[baseline], paired=not self.unpaired)
        alpha, left, claims = self.alpha, 1 if self.alone else len(found), {}
        for place, (p, difference) in sorted(found.items(), key=lambda item: item[1][0]):
            if p > alpha / left:
                break
            left = left if self.alone else left - 1
            claims[place] = "better" if sign * difference < 0 else "worse"
        return claims

    @cached_property
    def alpha(self) -> float:
        return registered_alpha(self.made.criteria)

    def limits(self, counts: Mapping[str, float], studies: int) -> dict[str, float]:
        """The most that the rate of each false claim may be.

        Every claim is two-sided at alpha over its family (at looks, over all looks), so in each direction half of that; two
        one-sided tests at alpha each show *same*.
        """
        nominal = self.alpha / 2
        chances = [(known.baseline, known.variant) for known in self.unstable.values()]
        chances += [(self.loss.baseline, 1.0 if self.loss.worst else self.loss.variants)] if self.loss != WHOLE else []
        found = {}
        if self.effect <= 0:
            found["better"] = counts[f"{ORACLE}: better"] / studies + ALLOWANCE if self.skewed else nominal
        if self.effect >= 0:
            found["worse"] = counts[f"{ORACLE}: worse"] / studies + ALLOWANCE if self.skewed else nominal
        if abs(self.effect) == 1 and not self.skewed:
            found |= {"better" if self.effect > 0 else "worse": AT_MARGIN, "same": self.alpha}
        if all(variant <= baseline for baseline, variant in chances):
            found["unstable"] = nominal
        if all(baseline <= variant for baseline, variant in chances):
            found |= {"more stable": nominal, H1B: nominal}
        if self.guard and not self.effect:
            found |= {KEPT: nominal, BROKEN: nominal}
            if self.loss.variants - self.loss.baseline >= self.made.stability.margin:
                found[FAILURES_KEPT] = nominal
        return found


def _t_test(variant: FloatArray, baseline: FloatArray, *, paired: bool) -> tuple[float, float]:
    """p and the difference of the means; p is 1 with fewer than two degrees of freedom."""
    if paired:
        costs = (variant - baseline)[~np.isnan(variant - baseline)]
        freedom, mean = len(costs) - 1, float(costs.mean()) if len(costs) else 0.0
        error = float(costs.std(ddof=1)) / math.sqrt(len(costs)) if freedom > 0 else math.inf
    else:
        arms = [arm[~np.isnan(arm)] for arm in (variant, baseline)]
        freedom = sum(map(len, arms)) - 2
        if min(map(len, arms)) < 2:
            return 1.0, 0.0
        mean = float(arms[0].mean() - arms[1].mean())
        pooled = sum(float(((arm - arm.mean()) ** 2).sum()) for arm in arms) / freedom
        error = math.sqrt(pooled * sum(1 / len(arm) for arm in arms))
    if freedom < 2:
        return 1.0, mean
    return 2 * float(special.stdtr(freedom, -abs(mean) / error)), mean


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


def missing(_: Scenario, dataset: Dataset, rng: np.random.Generator, *, share: float) -> Dataset:
    """A share of all records is not there."""
    gone = [(run.regime, run.variant, run.seed) for run in dataset.runs if rng.random() < share]
    return without(dataset, gone, Absence.RUN_MISSING)


def lost(row: Scenario, dataset: Dataset, rng: np.random.Generator) -> Dataset:
    """Runs diverged as the row's loss says, in every regime."""
    loss = row.loss
    if loss.worst:
        gone = [
            (regime, variant, _worst(row, dataset, regime, variant)) for regime in row.regimes for variant in row.names
        ]
        return without(dataset, gone, Absence.DIVERGED)
    gone = [
        (run.regime, run.variant, run.seed)
        for run in dataset.runs
        if rng.random() < (loss.baseline if run.variant == dataset.baseline else loss.variants)
    ]
    return without(dataset, gone, Absence.DIVERGED)


def _worst(row: Scenario, dataset: Dataset, regime: str, variant: str) -> Seed:
    """The seed of the run that would have ended worst."""
    ended = dataset.values[Arm(row.primary, None, regime, variant)]
    sign = -1.0 if row.primary == "macro_accuracy" else 1.0
    return max((sign * value, seed) for seed, value in ended.items() if isinstance(value, float))[1]
