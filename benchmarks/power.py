"""Power in closed form beside simulated studies.

    PYTHONPATH=src python benchmarks/power.py            # a table
    PYTHONPATH=src python benchmarks/power.py --check    # fails where they differ by more than chance and a point

*shown*: p is below the level, by the own variance of a comparison or one that *arms* share. *better*, *same*: what the rules
answer of whole studies (`simulated.py`). Effects are in SDs of the paired difference.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import sqrt

import numpy as np
from scipy import special

from ablationlab.analysis.conclusion import analyze
from ablationlab.records.verdict import Answer
from ablationlab.stats import claim_power, detectable_effect, paired_t_power, tost_power
from ablationlab.stats._common import FloatArray
from ablationlab.stats.costs import CAPPED
from ablationlab.study.load import parse_study
from simulated import World, answers_of, datasets

SMALLEST = 0.01
#: By how much a closed form may be off beyond four standard errors of the simulation.
OFF = 0.01


@dataclass(frozen=True)
class Row:
    """A share of the simulated studies, and what the closed form says."""

    what: str
    pairs: int
    arms: int
    level: float
    effect: float
    closed: float
    simulated: float
    studies: int

    @property
    def off(self) -> bool:
        error = sqrt(max(self.closed * (1 - self.closed), 1e-4) / self.studies)
        return abs(self.closed - self.simulated) > 4 * error + OFF


def shown(costs_SAn: FloatArray, level: float) -> float:
    """The share of comparisons that are shown; a variance is shared where there are several arms."""
    n, arms = costs_SAn.shape[2], costs_SAn.shape[1]
    own = costs_SAn.var(axis=2, ddof=1)
    variance, freedom = own, n - 1
    if arms > 1:
        pooled = np.sort(own, axis=1)
        if arms >= CAPPED[0] and n >= CAPPED[1]:
            pooled[:, -1] = pooled[:, -2]
        variance, freedom = np.maximum(own, pooled.mean(axis=1, keepdims=True)), 2 * (n - 1)
    t = np.abs(costs_SAn.mean(axis=2)) / np.sqrt(variance / n)
    return float((t > special.stdtrit(freedom, 1 - level / 2)).mean())


def tests(studies: int) -> Iterator[Row]:
    """Every arm has the effect, so that each comparison of a study is one."""
    for n, arms, target in product((3, 5, 8, 20), (1, 4, 7, 13), (None, 0.3, 0.8)):
        level = 0.05 / arms
        effect = 0.0 if target is None else detectable_effect(n, power=target, alpha=level, arms=arms)
        rng = np.random.default_rng([n, arms])
        runs = rng.normal(0, sqrt(0.5), (studies, arms + 1, n))
        costs = runs[:, 1:] - runs[:, :1] + effect
        yield Row(
            *("shown", n, arms, level, effect),
            paired_t_power(effect, n, alpha=level, arms=arms),
            shown(costs, level),
            studies,
        )


def answers(studies: int) -> Iterator[Row]:
    """One variant, an SD of the smallest effect, and what the rules answer."""
    for n, effect in product((3, 5, 10, 20), (0.0, 1.0, 2.0)):
        study = parse_study(
            {
                "name": "simulated",
                "baseline": "none",
                "variants": ["none", "layernorm"],
                "seeds": list(range(1, n + 1)),
                "model": {"layers": 1, "width": 16, "heads": 2, "context": 16},
                "training": {"steps": 60, "batch": 4, "lr": 1e-3, "warmup": 2, "precision": "fp32"},
                "criteria": [{"metric": "validation_loss", "role": "primary", "smallest_effect": SMALLEST}],
            }
        )
        world = World({"validation_loss": SMALLEST}, {"validation_loss": -effect * SMALLEST})
        made = [
            answers_of(analyze(dataset))["default", "layernorm"]
            for dataset in datasets(study, world, studies, np.random.default_rng([n, int(effect)]))
        ]
        closed = {Answer.BETTER: claim_power(effect, n, at_least=1.0), Answer.SAME: tost_power(1.0, n, effect=effect)}
        for answer, power in closed.items():
            yield Row(answer.value, n, 1, 0.05, effect, power, made.count(answer) / studies, studies)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--studies", type=int, default=20_000)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    rows = [*tests(asked.studies), *answers(max(asked.studies // 20, 1))]
    print("| what | pairs | arms | level | effect | closed form | simulated |\n|:--|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        print(
            f"| {row.what} | {row.pairs} | {row.arms} | {row.level:.4f} | {row.effect:.2f} | {row.closed:.1%} | "
            f"{row.simulated:.1%}{' !' if row.off else ''} |"
        )
    return int(asked.check and any(row.off for row in rows))


if __name__ == "__main__":
    sys.exit(main())
