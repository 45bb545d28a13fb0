"""Error rates and power of the whole decision: simulated studies, decided by the program's own rules.

    PYTHONPATH=src python benchmarks/decisions.py --jobs 14 --studies 2000 --out FILE  # docs/validation-tables.md
    PYTHONPATH=src python benchmarks/decisions.py --jobs 2 --studies 200               # a quick look

The same tables for any number of jobs: studies are drawn in chunks, each from a stream of its own, and no two rows share
one: chance does not show in several rows at once. Rows that take long are drawn a quarter as often; column *studies* says how
often.

A study here has two variants, a primary metric, a secondary, two guards and a stress regime, as the shipped ones do. Its
values are drawn (analysis/simulation.py); tests, families, gate, stability and rules are those that decide on real runs.
Beside each rate: that of the rules before, which looked at the primary metric's corrected test and at raw counts of unstable
runs.

    adopt   in some regime, some variant is adopted (also provisionally, in a regime, or as a trade-off)
    for good   adopted by rule 5 with every guard and its stability shown non-inferior
    loss    the same by the primary metric alone (rule 5, without trade-offs): what instability must not make easier
    keep    in some regime, the baseline is kept for good against some variant
    now     it is kept for now: the variant diverged alone, or bad runs hide that it is worse. No claim, so no error
    tie     a variant is called equivalent, per variant
    seeds   trained on average, where looks may stop a study
    H1b     "restores stability" is claimed anywhere
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import Pool
from pathlib import Path
from time import perf_counter
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ablationlab.analysis.dataset import Arm, Dataset, absent
from ablationlab.analysis.simulation import (
    BASE,
    Instabilities,
    SimulatedTasks,
    World,
    analyze_to_stop,
    datasets,
    decisions_of,
)
from ablationlab.analysis.verdict.hypotheses import judge_hypotheses
from ablationlab.records.analysis import Absence, RunStability, Seed
from ablationlab.records.settings import Study
from ablationlab.records.verdict import Decision
from ablationlab.stats.stability import tango_interval
from ablationlab.study.load import parse_study

FloatArray = NDArray[np.float64]
EFFECT = 0.01
CHUNK = 50
#: Beside the two of every study, for rows with more of them: any will do, for values are drawn.
MORE_VARIANTS = ("sqrt-d", "center-only", "token-init-1")
METRICS = ("validation_loss", "next_token_accuracy", "token_ece", "token_brier")
BY_LOSS = (Decision.ADOPT, Decision.ADOPT_PROVISIONALLY)
ADOPTED = (Decision.ADOPT, Decision.ADOPT_PROVISIONALLY, Decision.ADOPT_IN_REGIME, Decision.TRADE_OFF)


def study(seeds: int, primary: str = "validation_loss", **changes: Any) -> Study:
    """A small study with everything that takes part in a decision."""
    others = ["next_token_accuracy"] if primary == "validation_loss" else ["validation_loss"]
    tasks = {"tasks": ["arc_easy"]} if primary == "macro_accuracy" else {}  # any will do: scores are drawn
    table = {
        "name": "simulated",
        "baseline": "none",
        "variants": ["none", "layernorm", "rmsnorm"],
        "seeds": list(range(1, seeds + 1)),
        "model": {"layers": 1, "width": 16, "heads": 2, "context": 16},
        "training": {"steps": 60, "batch": 4, "lr": 1e-3, "warmup": 2, "precision": "fp32"},
        "evaluation": {"gate_seeds": [101, 102, 103, 104, 105], **tasks},
        "regimes": {"stress": {"training": {"lr": 1e-2}}},
        "criteria": [
            {"metric": primary, "role": "primary", "smallest_effect": EFFECT},
            {"metric": primary, "role": "primary", "smallest_effect": EFFECT, "regime": "stress"},
            *({"metric": metric, "role": "secondary", "smallest_effect": EFFECT} for metric in others),
            {"metric": "token_ece", "role": "guard", "margin": EFFECT},
            {"metric": "token_brier", "role": "guard", "margin": EFFECT},
        ],
        "hypotheses": [{"name": "H1b", "statement": "Stability is restored.", "rule": "restores-stability"}],
    }
    return parse_study({**table, **changes})


def old_decisions(dataset: Dataset) -> dict[tuple[str, str], Decision]:
    """The rules before: stability gain by an uncorrected interval, then the primary test (Holm over regimes and variants),
    adopted unless more runs broke, then equivalence. By regime and variant.
    """
    metric = next(criterion.metric for criterion in dataset.criteria if criterion.role == "primary")
    sign = 1.0 if dataset.metrics[metric].direction == "lower" else -1.0
    places = [(regime, variant) for regime in dataset.regimes for variant in dataset.variants[1:]]
    tests: dict[tuple[str, str], tuple[float, FloatArray]] = {}
    for regime, variant in places:
        ours, theirs = (dataset.values.get(Arm(metric, None, regime, arm), {}) for arm in (variant, dataset.baseline))
        both = [(value, theirs.get(seed)) for seed, value in ours.items()]
        costs = np.array([sign * (x - y) for x, y in both if isinstance(x, float) and isinstance(y, float)])
        if len(costs) >= 3:
            t = np.abs(costs.mean()) / (costs.std(ddof=1) / np.sqrt(len(costs)))
            tests[regime, variant] = 2 * float(special.stdtr(len(costs) - 1, -t)), costs
    adjusted: dict[tuple[str, str], float] = {}
    for position, place in enumerate(sorted(tests, key=lambda place: tests[place][0])):
        largest = max(adjusted.values(), default=0.0)
        adjusted[place] = max(largest, min(1.0, tests[place][0] * (len(tests) - position)))
    fails: dict[tuple[str, str], dict[Seed, bool]] = {}
    for run in dataset.runs:
        fails.setdefault((run.regime, run.variant), {})[run.seed] = bool(run.unstable)
    return {
        (regime, variant): _old_decision(
            fails[regime, variant],
            fails[regime, dataset.baseline],
            tests.get((regime, variant), (1.0, None))[1],
            adjusted.get((regime, variant), 1.0),
        )
        for regime, variant in places
    }


def _old_decision(
    ours: Mapping[Seed, bool], theirs: Mapping[Seed, bool], costs: FloatArray | None, p: float
) -> Decision:
    rescued = sum(theirs[seed] and not ours[seed] for seed in ours)
    broken = sum(ours[seed] and not theirs[seed] for seed in ours)
    if any(theirs.values()) and tango_interval(rescued, broken, len(ours), level=0.95)[0] > 0:
        return Decision.TRADE_OFF if costs is None else Decision.ADOPT
    if costs is None:
        return Decision.INCONCLUSIVE
    if p <= 0.05 and costs.mean() > 0:
        return Decision.KEEP_BASELINE
    if p <= 0.05 and sum(ours.values()) <= sum(theirs.values()):
        return Decision.ADOPT
    reach = float(special.stdtrit(len(costs) - 1, 0.95)) * costs.std(ddof=1) / np.sqrt(len(costs))
    within = abs(costs.mean()) + reach < EFFECT and not any(ours.values())
    return Decision.TIE if within else Decision.INCONCLUSIVE


@dataclass(frozen=True)
class Scenario:
    """A row of the tables. *noise*: SD of the deltas of every metric, in smallest effects. *regime*: of the primary one.
    *guard*: by how many margins the first guard is worse. *unpaired*: the seeds mean nothing, and Welch's test decides.
    *absurd*, *missing*: shares of the variants' runs that end with an absurd loss, or that are not there. *skewed*: the
    variants' losses vary as an exponential variable does, with the same mean and SD: now and then a run is bad.
    """

    name: str
    seeds: int
    noise: float = 0.6
    primary: str = "validation_loss"
    regime: str = "default"
    unstable: Mapping[str, Instabilities] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    tasks: SimulatedTasks | None = None
    curvature: float | None = None
    guard: float = 0.0
    unpaired: bool = False
    absurd: float = 0.0
    missing: float = 0.0
    skewed: bool = False
    spreads: Mapping[str, float] = field(default_factory=dict)
    drawn: float = 1.0  # share of the studies that were asked for
    at_margin: bool = True  # also in the table of true effects

    def chunks(self, studies: int) -> int:
        return max(1, round(self.drawn * studies / CHUNK))

    def study(self) -> Study:
        return study(self.seeds, self.primary, **self.changes)

    def world(self, multiple: float) -> World:
        """*multiple*: the true effect on the primary metric in smallest effects; above 0 is better."""
        better = 1.0 if self.primary == "macro_accuracy" else -1.0
        sds = dict.fromkeys({*METRICS, self.primary}, self.noise * EFFECT)
        effects = {self.primary: multiple * better * EFFECT, "token_ece": self.guard * EFFECT}
        return World(sds, effects, self.unstable, self.tasks, self.curvature, spreads=self.spreads)

    def datasets(self, multiple: float, studies: int, rng: np.random.Generator) -> Iterator[Dataset]:
        world = self.world(multiple)
        for dataset in datasets(self.study(), world, studies, rng):
            dataset = self._skewed(dataset, world) if self.skewed else dataset
            spoiled = self._spoiled(dataset, rng) if self.absurd or self.missing else dataset
            yield replace(spoiled, source="table", unpaired=True) if self.unpaired else spoiled

    def _skewed(self, dataset: Dataset, world: World) -> Dataset:
        def skewed(arm: Arm, value: Any) -> Any:
            if arm.metric != self.primary or arm.variant == dataset.baseline or not isinstance(value, float):
                return value
            mean, sd = BASE + world.effects[self.primary], world.sd_of_runs(self.primary, arm.variant)
            return mean - sd * (1 + float(special.log_ndtr((mean - value) / sd)))

        values = {
            arm: {seed: skewed(arm, value) for seed, value in by_seed.items()}
            for arm, by_seed in dataset.values.items()
        }
        return replace(dataset, values=values)

    def _spoiled(self, dataset: Dataset, rng: np.random.Generator) -> Dataset:
        values = {arm: dict(by_seed) for arm, by_seed in dataset.values.items()}
        runs = []
        for run in dataset.runs:
            chance = 1.0 if run.variant == dataset.baseline else rng.random()
            mine = [arm for arm in values if (arm.regime, arm.variant) == (run.regime, run.variant)]
            if chance < self.missing:
                for arm in mine:
                    values[arm][run.seed] = absent(Absence.RUN_MISSING)
            elif chance < self.missing + self.absurd:
                for arm in mine:
                    if arm.metric == self.primary:
                        values[arm][run.seed] = 1e3
            runs.append(not_there(run) if chance < self.missing else run)
        return replace(dataset, values=values, runs=tuple(runs))


def not_there(run: RunStability) -> RunStability:
    """The run as one that is not there."""
    return run.model_copy(update={"unstable": None, "state": "missing"})


def scenarios() -> Iterator[Scenario]:
    half = {"stress": Instabilities(0.5, 0.5, diverge=True)}
    for seeds in (5, 10, 20):
        yield Scenario(f"{seeds} seeds, SD 0.6", seeds)
        yield Scenario(f"{seeds} seeds, SD 0.6, half break", seeds, unstable=half)
    yield Scenario("10 seeds, SD 1.5", 10, 1.5)
    yield Scenario("10 runs, SD 1.5, unpaired", 10, 1.5, unpaired=True)
    yield Scenario("10 runs, SD 0.6, unpaired, half break", 10, unstable=half, unpaired=True)
    yield Scenario("20 seeds, SD 0.6, a guard at its margin", 20, guard=1.0)
    failing = {"default": Instabilities(0.0, 0.2)}
    yield Scenario("20 seeds, SD 0.6, 20 % of the variants' runs spike, none of the baseline's", 20, unstable=failing)
    names = ["stress", *(f"stress-{number}" for number in range(2, 9))]
    regimes = {"regimes": {name: {"training": {"lr": 1e-2 * (1 + place)}} for place, name in enumerate(names)}}
    eight = dict.fromkeys(names, half["stress"])
    name = "20 seeds, SD 0.6, half break in each of 8 regimes"
    yield Scenario(name, 20, unstable=eight, changes=regimes, drawn=0.25, at_margin=False)
    arms = {"variants": ["none", "layernorm", "rmsnorm", *MORE_VARIANTS]}
    for seeds in (3, 5, 10):
        for spread in (2.0, 4.0):
            name = f"{seeds} seeds, SD 1, {len(arms['variants']) - 1} variants, the baseline's runs {spread:g} times as noisy"
            yield Scenario(name, seeds, 1.0, changes=arms, spreads={"none": spread}, at_margin=False)
    name = f"5 seeds, SD 1, {len(arms['variants']) - 1} variants, one of them four times as noisy"
    yield Scenario(name, 5, 1.0, changes=arms, spreads={"layernorm": 4.0}, at_margin=False)
    for gain in (0.5, 2.0):
        tasks = SimulatedTasks(6, gain, 1.2)
        name = f"10 seeds, SD 0.6, half break, accuracy over 6 tasks that gain {gain:g} points"
        yield Scenario(name, 10, primary="macro_accuracy", unstable=half, tasks=tasks)
    for spending in ("obrien-fleming", "pocock"):
        changes = {"design": {"looks": [5, 8, 12, 20], "spending": spending}}
        name = f"looks at 5, 8, 12, 20 seeds ({spending})"
        yield Scenario(f"{name}, SD 0.6", 20, changes=changes, drawn=0.25)
        yield Scenario(f"{name}, SD 1.5, half break", 20, 1.5, unstable=half, changes=changes, drawn=0.25)
    tuned = {"metric": "validation_loss", "role": "primary", "smallest_effect": EFFECT, "regime": "tuned"}
    for factor in (2, 4):
        sweep = {"lr": [1e-3 * factor**k for k in range(-2, 3)], "selection_seeds": [201, 202, 203]}
        swept: dict[str, object] = {"sweep": sweep, "criteria": [tuned], "regimes": {}}
        # The loss is twice the smallest effect higher at a rate twice the best one.
        curvature = 2 * EFFECT / np.log(2) ** 2
        name = f"10 seeds, SD 0.6, tuned over 5 rates, each {factor} times the last"
        yield Scenario(name, 10, regime="tuned", changes=swept, curvature=curvature)
    for seeds, share in ((10, 0.1), (20, 0.3), (40, 0.05)):
        for baseline, variant, whose in ((1, 1, "runs"), (1, 0, "baseline's runs"), (0, 1, "variants' runs")):
            chances = Instabilities(baseline * share, variant * share, diverge=True)
            name = f"{seeds} seeds, SD 1.5, {100 * share:.0f} % of the {whose} diverge"
            unstable, drawn = {"default": chances, "stress": chances}, 0.25 if seeds > 20 else 1.0
            shown = seeds > 20 and whose == "runs"  # enough seeds to outweigh a run that is lost
            yield Scenario(name, seeds, 1.5, unstable=unstable, drawn=drawn, at_margin=shown)
    for seeds in (10, 40):
        name, drawn = f"{seeds} seeds, SD 0.6, 5 % of the variants' runs", 0.25 if seeds > 20 else 1.0
        yield Scenario(f"{name} are missing", seeds, missing=0.05, drawn=drawn)
        yield Scenario(f"{name} end with an absurd loss", seeds, absurd=0.05, drawn=drawn)
    for seeds in (5, 10, 20):
        yield Scenario(f"{seeds} seeds, SD 1.5, the variants' losses skewed", seeds, 1.5, skewed=True)


def chunk_rates(job: tuple[Scenario, float, int, int]) -> tuple[Counter[str], Counter[str]]:
    """Events in a chunk of studies, by the rules and by the old ones. An event counts once per study, wherever it happens."""
    scenario, multiple, number, studies = job
    now: Counter[str] = Counter()
    before: Counter[str] = Counter()
    own = (crc32(scenario.name.encode()), round(multiple) % 2**32, number)
    for dataset in scenario.datasets(multiple, studies, np.random.default_rng([17, *own])):
        analysis = analyze_to_stop(dataset)
        now["seeds"] += len(analysis.seeds)
        _count(now, decisions_of(analysis), scenario.regime)
        now["H1b"] += judge_hypotheses(analysis)["H1b"].status == "supported"
        _count(before, old_decisions(dataset), scenario.regime)
    return now, before


def _count(counts: Counter[str], decisions: Mapping[tuple[str, str], Decision], regime: str) -> None:
    """Adopt and keep anywhere; what the first variant gets in the primary's regime, whatever else is decided."""
    counts["adopt"] += any(decision in ADOPTED for decision in decisions.values())
    counts["loss"] += any(decision in BY_LOSS for decision in decisions.values())
    counts["keep"] += Decision.KEEP_BASELINE in decisions.values()
    counts["now"] += Decision.KEEP_PROVISIONALLY in decisions.values()
    first = decisions[regime, "layernorm"]
    counts["first adopt"] += first in ADOPTED
    counts["first for good"] += first == Decision.ADOPT
    counts["first keep"] += first == Decision.KEEP_BASELINE
    counts["first tie"] += first == Decision.TIE
    counts["tie"] += any(decisions[regime, variant] == Decision.TIE for variant in ("layernorm", "rmsnorm"))


#: Columns of the two tables, and the events that they count.
NULL = {"adopt": "adopt", "adopt, before": "adopt", "loss": "loss", "keep": "keep", "keep, before": "keep"}
NULL |= {"now": "now", "H1b": "H1b"}
MARGIN = {"tie": "first tie", "tie, before": "first tie", "tie of any": "tie"}
MARGIN |= {"adopt": "first adopt", "adopt, before": "first adopt", "for good": "first for good"}
MARGIN |= {"keep": "first keep", "keep, before": "first keep"}


@dataclass(frozen=True)
class Row:
    """A scenario at a true effect of *multiple* smallest ones."""

    scenario: Scenario
    multiple: float
    labels: tuple[str, ...]


def tables(
    chosen: Sequence[Scenario], only: str | None
) -> Iterator[tuple[tuple[str, ...], Mapping[str, str], list[Row]]]:
    """Labels, columns and rows."""
    if only != "power":
        yield ("the loss does not differ",), NULL, [Row(scenario, 0.0, (scenario.name,)) for scenario in chosen]
    if only != "null":
        signs = ((1.0, "better"), (-1.0, "worse"))
        shown = [scenario for scenario in chosen if scenario.at_margin]
        rows = [Row(scenario, sign, (scenario.name, text)) for scenario in shown for sign, text in signs]
        yield ("one smallest effect", ""), MARGIN, rows


def share(count: int, studies: int) -> str:
    """In percent, with its Monte-Carlo standard error."""
    rate = count / studies
    return f"{100 * rate:.1f} ({100 * np.sqrt(max(rate * (1 - rate), 1e-9) / studies):.1f})"


def line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=10_000, help="per row")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", choices=("null", "power"))
    parser.add_argument("--rows", default="", help="only rows whose name matches this regular expression")
    parser.add_argument("--out", type=Path, help="also write the tables to this file")
    given = parser.parse_args()
    chosen = [scenario for scenario in scenarios() if re.search(given.rows, scenario.name)]
    asked = list(tables(chosen, given.only))
    jobs = [
        (row.scenario, row.multiple, number, CHUNK)
        for *_, rows in asked
        for row in rows
        for number in range(row.scenario.chunks(given.studies))
    ]
    begin = perf_counter()
    if given.out is not None:
        given.out.write_text("", encoding="utf-8")

    def write(text: str) -> None:
        print(text, flush=True)
        if given.out is not None:
            with given.out.open("a", encoding="utf-8") as out:
                out.write(f"{text}\n")

    with Pool(given.jobs) as pool:
        # All chunks in one queue, so that no process waits for the end of a row; results come in order.
        results = pool.imap(chunk_rates, jobs)
        for labels, columns, rows in asked:
            heads = [*labels, *columns, "seeds", "studies"]
            write(f"\n{line(heads)}\n{'|---' * len(heads)}|")
            for row in rows:
                now: Counter[str] = Counter()
                before: Counter[str] = Counter()
                chunks = row.scenario.chunks(given.studies)
                for _ in range(chunks):
                    ours, old = next(results)
                    now += ours
                    before += old
                studies = chunks * CHUNK
                cells = [
                    share((before if head.endswith("before") else now)[event], studies)
                    for head, event in columns.items()
                ]
                write(line([*row.labels, *cells, f"{now['seeds'] / studies:.1f}", f"{studies:,}"]))
                print(f"{perf_counter() - begin:.0f} s: {', '.join(row.labels)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
