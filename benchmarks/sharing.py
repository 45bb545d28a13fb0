"""From how many variants on should `init` share their variances? Power with one noisy variant, and with the gallery's noise.

    PYTHONPATH=src python benchmarks/sharing.py      # docs/statistics.md; half a minute

Costs are normal and share the baseline's noise; five seeds; one variant gains two of its SDs, and *better* is said if that is
shown and at least half as large. Own variances are corrected by Holm, as `init` writes it; shared ones by Bonferroni.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np
from scipy import special

from ablationlab.stats._common import FloatArray
from ablationlab.stats.costs import CAPPED
from procedures import ALPHA, holm, table

GALLERY = Path(__file__).parents[1] / "docs/gallery"
SEEDS = 5
#: Of a variant that is as noisy as the baseline, the cost has SD 1, half of its variance the baseline's.
LEAST = 0.5**0.5


def power(rng: np.random.Generator, sds: Sequence[float], studies: int = 20_000) -> tuple[float, float]:
    """How often the gain of the first variant is shown: by own variances, and by a shared one."""
    arms = len(sds)
    own = np.sqrt(np.maximum(np.array(sds) ** 2 - LEAST**2, 0.02))
    costs_SAn = own[:, None] * rng.normal(size=(studies, arms, SEEDS)) + LEAST * rng.normal(size=(studies, 1, SEEDS))
    costs_SAn[:, 0] -= 2 * sds[0]
    mean_SA, variance_SA = costs_SAn.mean(axis=2), costs_SAn.var(axis=2, ddof=1)
    large = mean_SA[:, 0] <= -sds[0]
    p_SA = 2 * special.stdtr(SEEDS - 1, -np.abs(mean_SA) / np.sqrt(variance_SA / SEEDS))
    return float((holm(p_SA)[:, 0] & large).mean()), float(
        (_shared_p(mean_SA, variance_SA) * arms <= ALPHA)[large].sum() / studies
    )


def _shared_p(mean_SA: FloatArray, variance_SA: FloatArray) -> FloatArray:
    """Two-sided, of the first variant's gain."""
    pooled = np.sort(variance_SA, axis=1)
    if variance_SA.shape[1] >= CAPPED[0] and CAPPED[1] <= SEEDS:
        pooled[:, -1] = pooled[:, -2]
    variance = np.maximum(variance_SA[:, 0], pooled.mean(axis=1))
    return np.asarray(2 * special.stdtr(2 * (SEEDS - 1), mean_SA[:, 0] / np.sqrt(variance / SEEDS)))


def gallery() -> Iterator[tuple[str, list[float]]]:
    """SDs of the costs of every regime with four variants or more, the noisiest last, in those of the middle one."""
    for path in sorted(GALLERY.glob("*/records.tar.xz")):
        with tarfile.open(path) as records:
            if "analysis.json" not in records.getnames():
                continue
            file = records.extractfile("analysis.json")
            assert file is not None
            made = json.load(file)
        asked = [
            c for c in made["comparisons"] if (c["metric"], c["reference"]) == ("validation_loss", made["baseline"])
        ]
        for regime in dict.fromkeys(c["regime"] for c in asked):
            sds = [c["delta_sd"] for c in asked if c["regime"] == regime and c["n"] > 3]
            if len(sds) > 3:
                yield f"{path.parent.name}, {regime}", sorted(max(sd / median(sds), LEAST) for sd in sds)


def main() -> None:
    rng = np.random.default_rng(5)
    shown: list[list[object]] = []
    for arms in (3, 4, 5, 6, 7, 8, 12):
        cells = [power(rng, [1.0] * (arms - 1) + [times]) for times in (1.0, 3.0, 7.0)]
        shown.append([arms, *(f"{100 * own:.0f} → {100 * shared:.0f}" for own, shared in cells)])
    table("One variant's noise: power, own → shared, %", ["variants", "equal", "3 times", "7 times"], shown)
    rows: list[list[object]] = []
    for name, sds in gallery():
        others = [power(rng, [sds[i], *sds[:i], *sds[i + 1 :]], 2_000) for i in range(len(sds) - 1)]
        own, shared = (100 * float(np.mean(each)) for each in zip(*others, strict=True))
        rows.append([name, len(sds), f"{sds[-1]:.1f}", round(own), round(shared)])
    heads = ["study, regime", "variants", "noisiest by middle", "own", "shared"]
    table("The gallery's noise: mean power of all variants but the noisiest, %", heads, rows)


if __name__ == "__main__":
    main()
