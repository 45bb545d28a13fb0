"""Error rates and power of the whole decision: simulated studies, decided by the program's own rules.

    PYTHONPATH=src python benchmarks/decisions.py                   # the tables of docs/validation.md
    PYTHONPATH=src python benchmarks/decisions.py --studies 200     # a quick look

A study here has two variants, a primary metric, a secondary, two guards and a stress regime, as the shipped ones do. Its
values are drawn (analysis/simulation.py); tests, families, gate, stability and rules are those that decide on real runs.
Beside each rate: that of the rules before, which looked at the primary metric's corrected test and at raw counts of unstable
runs.

    adopt   in some regime, some variant is adopted (also provisionally, in a regime, or as a trade-off)
    keep    in some regime, the baseline is kept for good against some variant
    tie     a variant is called equivalent, per variant
    H1b     "restores stability" is claimed anywhere
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from ablationlab.analysis import analyze
from ablationlab.analysis.dataset import Arm, Dataset
from ablationlab.analysis.simulation import Instabilities, World, datasets, decisions_of
from ablationlab.analysis.verdict.hypotheses import judge_hypotheses
from ablationlab.records.settings import Study
from ablationlab.records.verdict import Decision
from ablationlab.stats.stability import tango_interval
from ablationlab.study.load import parse_study

EFFECT = 0.01
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
            deltas = [sign * (a[s] - b[s]) for s in a if isinstance(a[s], float) and isinstance(b.get(s), float)]
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
    deltas = np.asarray(costs[regime, variant])
    if worst[regime, variant] <= 0.05 and deltas.mean() > 0:
        return "keep-baseline"
    if worst[regime, variant] <= 0.05 and sum(ours.values()) <= sum(theirs.values()):
        return "adopt"
    reach = stats.t.ppf(0.95, len(deltas) - 1) * deltas.std(ddof=1) / np.sqrt(len(deltas))
    return "tie" if abs(deltas.mean()) + reach < EFFECT and not any(ours.values()) else "inconclusive"


def rates(made: Study, world: World, studies: int, seed: int = 17) -> tuple[Counter[str], Counter[str]]:
    """Events in so many studies, by the rules and by the old ones. An event counts once per study, wherever it happens."""
    now: Counter[str] = Counter()
    before: Counter[str] = Counter()
    for dataset in datasets(made, world, studies, np.random.default_rng(seed)):
        analysis = analyze(dataset)
        _count(now, decisions_of(analysis))
        now["H1b"] += judge_hypotheses(analysis)["H1b"].status == "supported"
        old = {
            place: Decision(old_decision(dataset, *place))
            for place in ((regime, variant) for regime in dataset.regimes for variant in dataset.variants[1:])
        }
        _count(before, old)
    return now, before


def _count(counts: Counter[str], decisions: Mapping[tuple[str, str], Decision]) -> None:
    """Adopt and keep anywhere; what the first variant gets in the default regime, whatever else is decided."""
    counts["adopt"] += any(decision in ADOPTED for decision in decisions.values())
    counts["keep"] += Decision.KEEP_BASELINE in decisions.values()
    first = decisions["default", "layernorm"]
    counts["default adopt"] += first in ADOPTED
    counts["default keep"] += first == Decision.KEEP_BASELINE
    counts["default tie"] += first == Decision.TIE


def share(counts: Mapping[str, int], event: str, studies: int) -> str:
    """With its Monte-Carlo standard error, in points."""
    rate = counts.get(event, 0) / studies
    return f"{100 * rate:.1f} ({100 * np.sqrt(max(rate * (1 - rate), 1e-9) / studies):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--only", choices=("null", "power"))
    given = parser.parse_args()
    studies: int = given.studies
    metrics = ("validation_loss", "next_token_accuracy", "token_ece", "token_brier")
    half = {"stress": Instabilities(0.5, 0.5, diverge=True)}
    worlds: list[tuple[str, int, str, float, Mapping[str, Instabilities]]] = []
    for seeds in (5, 10, 20):
        worlds.append((f"{seeds} seeds, SD 0.6", seeds, "validation_loss", 0.6, {}))
        worlds.append((f"{seeds} seeds, SD 0.6, half break", seeds, "validation_loss", 0.6, half))
    worlds.append(("10 seeds, SD 1.5", 10, "validation_loss", 1.5, {}))
    worlds.append(("10 seeds, SD 0.6, half break, accuracy, gate opens in 70 %", 10, "macro_accuracy", 0.6, half))
    if given.only != "power":
        print("| nothing differs | adopt | adopt, before | keep | keep, before | H1b |\n|---|---|---|---|---|---|")
    for name, seeds, primary, noise, unstable in worlds if given.only != "power" else ():
        now, old = rates(study(seeds, primary), _world(metrics, primary, noise, 0.0, unstable), studies)
        pairs = [share(counts, event, studies) for event in ("adopt", "keep") for counts in (now, old)]
        print(f"| {name} | " + " | ".join([*pairs, share(now, "H1b", studies)]) + " |", flush=True)
    if given.only == "null":
        return
    print("\n| one smallest effect | | tie | tie, before | adopt | adopt, before | keep | keep, before |")
    print("|---|---|---|---|---|---|---|---|")
    for name, seeds, primary, noise, unstable in worlds:
        better = 1.0 if primary == "macro_accuracy" else -1.0
        for sign, text in ((better, "better"), (-better, "worse")):
            now, old = rates(study(seeds, primary), _world(metrics, primary, noise, sign * EFFECT, unstable), studies)
            cells = [
                share(counts, f"default {event}", studies)
                for event in ("tie", "adopt", "keep")
                for counts in (now, old)
            ]
            print(f"| {name} | {text} | " + " | ".join(cells) + " |", flush=True)


def _world(
    metrics: Sequence[str], primary: str, noise: float, effect: float, unstable: Mapping[str, Instabilities]
) -> World:
    """*noise*: SD of the deltas of every metric, in smallest effects."""
    sds = dict.fromkeys({*metrics, primary}, noise * EFFECT)
    return World(sds, {primary: effect}, unstable, 0.7 if primary == "macro_accuracy" else 1.0)


if __name__ == "__main__":
    main()
