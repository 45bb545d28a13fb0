"""Which gate is fair: simulated error rates of an accuracy that is averaged over the tasks that a gate lets through.

    PYTHONPATH=src python benchmarks/gate.py                      # the tables of docs/validation-tables.md
    PYTHONPATH=src python benchmarks/gate.py --simulations 2000   # a quick look

A task counts if the baseline's final weights score higher than its weights at half of the steps (paired t, 5 %, over the
gate's seeds). The score is the mean over the tasks that count, compared between variant and baseline by a paired t-test at
5 % over five seeds. Over seeds, the accuracy of a task of 500 items has an SD of 0.2 to 2.1 points in the default study; here
it is 1.2. Part of it is noise of the run, which all items of a task share; the rest are flips of single answers, which two
halves of the items do not share.

designs
  compared     the gate looks at the compared baselines, on all items
  halves       the gate looks at the compared baselines on one half of the items; the score is on the other half
  both-arms    the gate looks at the mean over both arms of the compared runs
  own-5        the gate looks at five baselines of their own, on all items; own-3: at three
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

FloatArray = NDArray[np.float64]
SEEDS = 5
ARMS = 3
DESIGNS = ("compared", "halves", "both-arms", "own-5", "own-3")
#: Standard deviations of a task's accuracy over seeds, in points, for 500 items.
TOTAL_SD = 1.2


@dataclass(frozen=True)
class World:
    """*gain*: points that the second half of training brings, in *improving* of the tasks. *effect*: of the variant, there.

    *run_share*: share of a run's variance that all items of a task share. *variant_sd*: noise of the variant's runs, relative
    to the baseline's.
    """

    tasks: int
    improving: int
    gain: float
    run_share: float
    effect: float = 0.0
    variant_sd: float = 1.0


def scores(world: World, seeds: int, count: int, rng: np.random.Generator, scale: float = 1.0) -> FloatArray:
    """Accuracies in points by simulation, task, seed and half of the items; the true mean is 0."""
    run = rng.normal(0, TOTAL_SD * np.sqrt(world.run_share), (count, world.tasks, seeds, 1))
    flips = rng.normal(0, TOTAL_SD * np.sqrt(2 * (1 - world.run_share)), (count, world.tasks, seeds, 2))
    return scale * (run + flips)


def t_statistic(deltas: FloatArray) -> FloatArray:
    """Over the last axis."""
    n = deltas.shape[-1]
    statistic: FloatArray = deltas.mean(axis=-1) * np.sqrt(n) / deltas.std(axis=-1, ddof=1)
    return statistic


def simulate(world: World, design: str, count: int, rng: np.random.Generator) -> dict[str, float]:
    """Rates over all studies. *gated*: some task counts. *better*, *worse*: what is claimed of the variant, over all studies
    and *given* that a task counts. *kept*: share of the improving tasks that count.
    """
    improves = np.arange(world.tasks) < world.improving
    base, base_half = (scores(world, SEEDS, count, rng) for _ in range(2))
    variant = scores(world, SEEDS, count, rng, world.variant_sd) + world.effect * improves[:, None, None]
    gain = world.gain * improves[:, None]
    if design == "compared":
        gate = base.mean(axis=-1) - base_half.mean(axis=-1) + gain
    elif design == "halves":
        gate = base[..., 0] - base_half[..., 0] + gain
    elif design == "both-arms":
        halfway = scores(world, SEEDS, count, rng, world.variant_sd)
        gate = (base + variant - base_half - halfway).mean(axis=-1) / 2 + gain
    else:
        seeds = int(design.removeprefix("own-"))
        final, half = (scores(world, seeds, count, rng) for _ in range(2))
        gate = final.mean(axis=-1) - half.mean(axis=-1) + gain
    counts = t_statistic(gate) > stats.t.ppf(0.975, gate.shape[-1] - 1)
    delta = variant - base
    delta = delta[..., 1] if design == "halves" else delta.mean(axis=-1)
    gated = counts.any(axis=1)
    macro = (delta * counts[..., None]).sum(axis=1)[gated] / counts.sum(axis=1)[gated, None]
    statistic = t_statistic(macro)
    critical = stats.t.ppf(0.975, SEEDS - 1)
    share = float(gated.mean())
    better, worse = (float((sign * statistic > critical).mean()) if share else 0.0 for sign in (1, -1))
    return {
        "gated": share,
        "better": better * share,
        "worse": worse * share,
        "better_given": better,
        "worse_given": worse,
        "kept": float(counts[:, improves].mean()) if world.improving else 0.0,
    }


def extra_runs(design: str) -> float:
    """Training beside the compared runs, as a share of theirs."""
    return int(design.removeprefix("own-")) / (ARMS * SEEDS) if design.startswith("own") else 0.0


NULLS = {
    "6 tasks, each gains 1 point": World(6, 6, 1.0, 0.5),
    "6 tasks, none gains": World(6, 0, 0.0, 0.5),
    "27 tasks, none gains": World(27, 0, 0.0, 0.5),
    "27 tasks, each gains 1 point": World(27, 27, 1.0, 0.5),
    "6 tasks, 1 point, run noise only": World(6, 6, 1.0, 1.0),
    "6 tasks, 1 point, flips only": World(6, 6, 1.0, 0.0),
    "6 tasks, 1 point, variant's noise x 0.6": World(6, 6, 1.0, 0.5, variant_sd=0.6),
}
EFFECTS = {
    "6 tasks gain 2 points, variant -1 point": World(6, 6, 2.0, 0.5, effect=-1.0),
    "6 tasks gain 2 points, variant +1 point": World(6, 6, 2.0, 0.5, effect=1.0),
    "3 of 27 tasks gain 4 points, variant -2 points there": World(27, 3, 4.0, 0.5, effect=-2.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=40_000)
    count = parser.parse_args().simulations
    print("| no true difference | design | some task counts | better | worse | better, given it | worse, given it |")
    print("|---|---|---|---|---|---|---|")
    for name, world in NULLS.items():
        for design in DESIGNS:
            rates = simulate(world, design, count, np.random.default_rng(17))
            shown = [rates[key] for key in ("gated", "better", "worse", "better_given", "worse_given")]
            print(f"| {name} | {design} | " + " | ".join(f"{100 * rate:.1f} %" for rate in shown) + " |")
    print(
        "\n| true difference | design | tasks that count | better | worse | extra training |\n|---|---|---|---|---|---|"
    )
    for name, world in EFFECTS.items():
        for design in DESIGNS:
            rates = simulate(world, design, count, np.random.default_rng(17))
            shown = [rates[key] for key in ("kept", "better", "worse")]
            cost = f"{100 * extra_runs(design):.0f} %"
            print(f"| {name} | {design} | " + " | ".join(f"{100 * rate:.1f} %" for rate in shown) + f" | {cost} |")


if __name__ == "__main__":
    main()
