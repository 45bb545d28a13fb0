"""Error rates and power of the whole decision: simulated studies, decided by the program's own rules.

    PYTHONPATH=src python benchmarks/decisions.py --jobs 16               # the tables of docs/validation.md
    PYTHONPATH=src python benchmarks/decisions.py --studies 200 --jobs 2  # a quick look

The same tables for any number of jobs: studies are drawn in chunks, each from a stream of its own.

A study here has two variants, a primary metric, a secondary, two guards and a stress regime, as the shipped ones do. Its
values are drawn (analysis/simulation.py); tests, families, gate, stability and rules are those that decide on real runs.
Beside each rate: that of the rules before, which looked at the primary metric's corrected test and at raw counts of unstable
runs.

    adopt   in some regime, some variant is adopted (also provisionally, in a regime, or as a trade-off)
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import Pool
from time import perf_counter
from typing import Any

import numpy as np
from scipy import stats

from ablationlab.analysis.dataset import Arm, Dataset
from ablationlab.analysis.simulation import (
    Instabilities,
    SimulatedTasks,
    World,
    analyze_to_stop,
    datasets,
    decisions_of,
)
from ablationlab.analysis.verdict.hypotheses import judge_hypotheses
from ablationlab.records.settings import Study
from ablationlab.records.verdict import Decision
from ablationlab.stats.stability import tango_interval
from ablationlab.study.load import parse_study

EFFECT = 0.01
CHUNK = 100
METRICS = ("validation_loss", "next_token_accuracy", "token_ece", "token_brier")
BY_LOSS = (Decision.ADOPT, Decision.ADOPT_PROVISIONALLY)
ADOPTED = (Decision.ADOPT, Decision.ADOPT_PROVISIONALLY, Decision.ADOPT_IN_REGIME, Decision.TRADE_OFF)


def study(seeds: int, primary: str = "validation_loss", **changes: Any) -> Study:
    """A small study with everything that takes part in a decision."""
    others = ["next_token_accuracy"] if primary == "validation_loss" else ["validation_loss"]
    table = {
        "name": "simulated",
        "baseline": "none",
        "variants": ["none", "layernorm", "rmsnorm"],
        "seeds": list(range(1, seeds + 1)),
        "model": {"layers": 1, "width": 16, "heads": 2, "context": 16},
        "training": {"steps": 60, "batch": 4, "lr": 1e-3, "warmup": 2, "precision": "fp32"},
        "evaluation": {"gate_seeds": [101, 102, 103, 104, 105]},
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


def old_decision(dataset: Dataset, regime: str, variant: str) -> str:
    """The rules before: stability gain by an uncorrected interval, then the primary test (Holm over regimes and variants),
    adopted unless more runs broke, then equivalence.
    """
    metric = next(criterion.metric for criterion in dataset.criteria if criterion.role == "primary")
    sign = 1.0 if dataset.metrics[metric].direction == "lower" else -1.0
    fails = {
        arm: {run.seed: bool(run.unstable) for run in dataset.runs if (run.regime, run.variant) == (regime, arm)}
        for arm in (variant, dataset.baseline)
    }
    ours, theirs = fails[variant], fails[dataset.baseline]
    rescued = sum(theirs[seed] and not ours[seed] for seed in ours)
    broken = sum(ours[seed] and not theirs[seed] for seed in ours)
    gained = any(theirs.values()) and tango_interval(rescued, broken, len(ours), level=0.95)[0] > 0
    p_values, costs = [], {}
    for other in dataset.regimes:
        for name in dataset.variants[1:]:
            a, b = (dataset.values.get(Arm(metric, None, other, arm), {}) for arm in (name, dataset.baseline))
            both = [(value, b.get(seed)) for seed, value in a.items()]
            deltas = [sign * (x - y) for x, y in both if isinstance(x, float) and isinstance(y, float)]
            if len(deltas) >= 3:
                test = stats.ttest_1samp(deltas, 0.0)
                p_values.append((float(test.pvalue), other, name))
                costs[other, name] = deltas
    if gained:
        return "trade-off" if (regime, variant) not in costs else "adopt"
    if (regime, variant) not in costs:
        return "inconclusive"
    p_values.sort()
    adjusted, worst = 0.0, {}
    for position, (p, *place) in enumerate(p_values):
        adjusted = max(adjusted, min(1.0, p * (len(p_values) - position)))
        worst[tuple(place)] = adjusted
    here = np.asarray(costs[regime, variant])
    if worst[regime, variant] <= 0.05 and here.mean() > 0:
        return "keep-baseline"
    if worst[regime, variant] <= 0.05 and sum(ours.values()) <= sum(theirs.values()):
        return "adopt"
    reach = stats.t.ppf(0.95, len(here) - 1) * here.std(ddof=1) / np.sqrt(len(here))
    return "tie" if abs(here.mean()) + reach < EFFECT and not any(ours.values()) else "inconclusive"


@dataclass(frozen=True)
class Scenario:
    """A row of the tables. *noise*: SD of the deltas of every metric, in smallest effects. *regime*: of the primary one."""

    name: str
    seeds: int
    noise: float = 0.6
    primary: str = "validation_loss"
    regime: str = "default"
    unstable: Mapping[str, Instabilities] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    tasks: SimulatedTasks | None = None
    curvature: float | None = None

    def study(self) -> Study:
        return study(self.seeds, self.primary, **self.changes)

    def world(self, multiple: float) -> World:
        """*multiple*: the true effect on the primary metric in smallest effects; above 0 is better."""
        better = 1.0 if self.primary == "macro_accuracy" else -1.0
        sds = dict.fromkeys({*METRICS, self.primary}, self.noise * EFFECT)
        effects = {self.primary: multiple * better * EFFECT}
        return World(sds, effects, self.unstable, self.tasks, self.curvature)


def scenarios() -> Iterator[Scenario]:
    half = {"stress": Instabilities(0.5, 0.5, diverge=True)}
    for seeds, failing in ((10, 0.1), (20, 0.3), (40, 0.05)):
        for baseline, variant, whose in ((1, 1, "runs"), (1, 0, "baseline's runs"), (0, 1, "variants' runs")):
            chances = Instabilities(baseline * failing, variant * failing, diverge=True)
            name = f"{seeds} seeds, SD 1.5, {100 * failing:.0f} % of the {whose} diverge"
            yield Scenario(name, seeds, 1.5, unstable={"default": chances, "stress": chances})
    for seeds in (5, 10, 20):
        yield Scenario(f"{seeds} seeds, SD 0.6", seeds)
        yield Scenario(f"{seeds} seeds, SD 0.6, half break", seeds, unstable=half)
    yield Scenario("10 seeds, SD 1.5", 10, 1.5)
    for gain in (0.5, 2.0):
        tasks = SimulatedTasks(6, gain, 1.2)
        name = f"10 seeds, SD 0.6, half break, accuracy over 6 tasks that gain {gain:g} points"
        yield Scenario(name, 10, primary="macro_accuracy", unstable=half, tasks=tasks)
    for spending in ("obrien-fleming", "pocock"):
        changes = {"design": {"looks": [5, 8, 12, 20], "spending": spending}}
        name = f"looks at 5, 8, 12, 20 seeds ({spending})"
        yield Scenario(f"{name}, SD 0.6", 20, changes=changes)
        yield Scenario(f"{name}, SD 1.5, half break", 20, 1.5, unstable=half, changes=changes)
    tuned = {"metric": "validation_loss", "role": "primary", "smallest_effect": EFFECT, "regime": "tuned"}
    for factor in (2, 4):
        sweep = {"lr": [1e-3 * factor**k for k in range(-2, 3)], "selection_seeds": [201, 202, 203]}
        swept: dict[str, object] = {"sweep": sweep, "criteria": [tuned], "regimes": {}}
        # The loss is twice the smallest effect higher at a rate twice the best one.
        curvature = 2 * EFFECT / np.log(2) ** 2
        name = f"10 seeds, SD 0.6, tuned over 5 rates, each {factor} times the last"
        yield Scenario(name, 10, regime="tuned", changes=swept, curvature=curvature)


def chunk_rates(job: tuple[Scenario, float, int, int]) -> tuple[Counter[str], Counter[str]]:
    """Events in a chunk of studies, by the rules and by the old ones. An event counts once per study, wherever it happens."""
    scenario, multiple, number, studies = job
    now: Counter[str] = Counter()
    before: Counter[str] = Counter()
    for dataset in datasets(scenario.study(), scenario.world(multiple), studies, np.random.default_rng([17, number])):
        analysis = analyze_to_stop(dataset)
        now["seeds"] += len(analysis.seeds)
        _count(now, decisions_of(analysis), scenario.regime)
        now["H1b"] += judge_hypotheses(analysis)["H1b"].status == "supported"
        old = {
            place: Decision(old_decision(dataset, *place))
            for place in ((regime, variant) for regime in dataset.regimes for variant in dataset.variants[1:])
        }
        _count(before, old, scenario.regime)
    return now, before


def _count(counts: Counter[str], decisions: Mapping[tuple[str, str], Decision], regime: str) -> None:
    """Adopt and keep anywhere; what the first variant gets in the primary's regime, whatever else is decided."""
    counts["adopt"] += any(decision in ADOPTED for decision in decisions.values())
    counts["loss"] += any(decision in BY_LOSS for decision in decisions.values())
    counts["keep"] += Decision.KEEP_BASELINE in decisions.values()
    counts["now"] += Decision.KEEP_PROVISIONALLY in decisions.values()
    first = decisions[regime, "layernorm"]
    counts["first adopt"] += first in ADOPTED
    counts["first keep"] += first == Decision.KEEP_BASELINE
    counts["first tie"] += first == Decision.TIE
    counts["tie"] += any(decisions[regime, variant] == Decision.TIE for variant in ("layernorm", "rmsnorm"))


def share(counts: Mapping[str, int], event: str, studies: int) -> str:
    """With its Monte-Carlo standard error, in points."""
    rate = counts.get(event, 0) / studies
    return f"{100 * rate:.1f} ({100 * np.sqrt(max(rate * (1 - rate), 1e-9) / studies):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=10_000, help="per row")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", choices=("null", "power"))
    parser.add_argument("--rows", default="", help="only rows whose name matches this regular expression")
    given = parser.parse_args()
    chosen = [scenario for scenario in scenarios() if re.search(given.rows, scenario.name)]
    studies = -(-given.studies // CHUNK) * CHUNK

    with Pool(given.jobs) as pool:

        def rates(scenario: Scenario, multiple: float) -> tuple[Counter[str], Counter[str]]:
            begin = perf_counter()
            jobs = [(scenario, multiple, number, CHUNK) for number in range(studies // CHUNK)]
            now: Counter[str] = Counter()
            before: Counter[str] = Counter()
            for ours, old in pool.imap_unordered(chunk_rates, jobs):
                now += ours
                before += old
            print(f"{scenario.name}: {perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
            return now, before

        if given.only != "power":
            print("| loss does not differ | adopt | adopt, before | loss | keep | keep, before | now | H1b | seeds |")
            print("|---|---|---|---|---|---|---|---|---|")
            for scenario in chosen:
                now, old = rates(scenario, 0.0)
                cells = [share(now, "adopt", studies), share(old, "adopt", studies), share(now, "loss", studies)]
                cells += [share(now, "keep", studies), share(old, "keep", studies), share(now, "now", studies)]
                cells += [share(now, "H1b", studies), f"{now['seeds'] / studies:.1f}"]
                print(f"| {scenario.name} | " + " | ".join(cells) + " |", flush=True)
        if given.only == "null":
            return
        heads = "one smallest effect | | tie | tie, before | tie of any | adopt | adopt, before | keep | keep, before | seeds"
        print(f"\n| {heads} |")
        print("|---|---|---|---|---|---|---|---|---|---|")
        for scenario in chosen:
            for multiple, text in ((1.0, "better"), (-1.0, "worse")):
                now, old = rates(scenario, multiple)
                cells = [share(counts, "first tie", studies) for counts in (now, old)] + [share(now, "tie", studies)]
                cells += [
                    share(counts, f"first {event}", studies) for event in ("adopt", "keep") for counts in (now, old)
                ]
                print(
                    f"| {scenario.name} | {text} | " + " | ".join(cells) + f" | {now['seeds'] / studies:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
