"""Statistics of paired, multi-seed comparisons: pure numpy and scipy, no torch.

:func:`compare` assembles everything for one paired sample; the rest are its parts, each usable alone.
Every random function takes a keyword-only ``rng`` and the same generator state gives the same answer.
"""

from __future__ import annotations

from ablationlab.stats._common import paired_deltas
from ablationlab.stats.caveats import (
    Caveat,
    comparison_caveats,
    expected_coverage,
    expected_false_positives,
    interval_caveats,
)
from ablationlab.stats.compare import Comparison, compare
from ablationlab.stats.effects import EffectSize, cohens_d_z, hedges_g_av
from ablationlab.stats.equivalence import Equivalence, paired_tost
from ablationlab.stats.intervals import (
    Interval,
    all_intervals,
    bca_interval,
    bootstrap_interval,
    bootstrap_t_interval,
    paired_t_interval,
    percentile_interval,
)
from ablationlab.stats.items import (
    Crossed,
    ItemPairs,
    McNemar,
    crossed_bootstrap,
    item_bootstrap,
    item_pairs,
    mcnemar_tests,
)
from ablationlab.stats.multiplicity import Adjusted, adjust, benjamini_hochberg, bonferroni, holm
from ablationlab.stats.paired import (
    GeometricRatio,
    PairedSample,
    as_ratio,
    ratio_of_geometric_means,
    summarize,
)
from ablationlab.stats.power import (
    PowerPlan,
    StandardDeviation,
    detectable_difference,
    detectable_effect,
    items_needed,
    paired_t_power,
    pairs_needed,
    plan,
    power_curve,
    sd_interval,
    tost_pairs_needed,
    tost_power,
)
from ablationlab.stats.sensitivity import Sensitivity, sensitivity
from ablationlab.stats.significance import (
    PValue,
    all_tests,
    bootstrap_test,
    paired_t_test,
    sign_flip_floor,
    sign_flip_test,
    wilcoxon_test,
)
from ablationlab.stats.unpaired import DifferenceOfMeans, difference_of_means

__all__ = [
    "Adjusted",
    "Caveat",
    "Comparison",
    "Crossed",
    "DifferenceOfMeans",
    "EffectSize",
    "Equivalence",
    "GeometricRatio",
    "Interval",
    "ItemPairs",
    "McNemar",
    "PValue",
    "PairedSample",
    "PowerPlan",
    "Sensitivity",
    "StandardDeviation",
    "adjust",
    "all_intervals",
    "all_tests",
    "as_ratio",
    "bca_interval",
    "benjamini_hochberg",
    "bonferroni",
    "bootstrap_interval",
    "bootstrap_t_interval",
    "bootstrap_test",
    "cohens_d_z",
    "compare",
    "comparison_caveats",
    "crossed_bootstrap",
    "detectable_difference",
    "detectable_effect",
    "difference_of_means",
    "expected_coverage",
    "expected_false_positives",
    "hedges_g_av",
    "holm",
    "interval_caveats",
    "item_bootstrap",
    "item_pairs",
    "items_needed",
    "mcnemar_tests",
    "paired_deltas",
    "paired_t_interval",
    "paired_t_power",
    "paired_t_test",
    "paired_tost",
    "pairs_needed",
    "percentile_interval",
    "plan",
    "power_curve",
    "ratio_of_geometric_means",
    "sd_interval",
    "sensitivity",
    "sign_flip_floor",
    "sign_flip_test",
    "summarize",
    "tost_pairs_needed",
    "tost_power",
    "wilcoxon_test",
]
