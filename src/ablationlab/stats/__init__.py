"""Statistics of paired, multi-seed comparisons: numpy and scipy, no torch.

:func:`compare` computes everything for one paired sample; the other functions are its parts, each usable alone. Every random
function takes a keyword-only ``rng``, and the same generator state gives the same answer. The result types are small frozen
dataclasses (:mod:`ablationlab.stats.results`) that the records store as they are.

The functions are loaded on first use: a program that only reads records needs the types, not scipy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablationlab.core.lazy import lazy_exports
from ablationlab.stats.results import (
    Caveat,
    CaveatCode,
    Equivalence,
    Gain,
    Interval,
    PairedComparison,
    PValue,
    Sensitivity,
)

if TYPE_CHECKING:
    from ablationlab.stats._common import paired_deltas
    from ablationlab.stats.caveats import (
        expected_coverage,
        expected_false_positives,
        interval_caveats,
        sign_flip_floor,
    )
    from ablationlab.stats.comparison import as_ratio, compare, summarize
    from ablationlab.stats.components import variance_components
    from ablationlab.stats.crossed import crossed_mean, crossed_means
    from ablationlab.stats.effects import cohens_d_z, hedges_g_av, paired_tost
    from ablationlab.stats.failures import failure_bound, paired_survival, survival_curve
    from ablationlab.stats.families import family_inference, gatekeep
    from ablationlab.stats.intervals import (
        all_intervals,
        bootstrap_interval,
        difference_of_means,
        paired_t_interval,
    )
    from ablationlab.stats.items import (
        ItemPairs,
        crossed_bootstrap,
        item_bootstrap,
        item_pairs,
        mcnemar_tests,
        sensitivity,
    )
    from ablationlab.stats.power import (
        claim_power,
        detectable_effect,
        items_needed,
        paired_t_power,
        pairs_needed,
        pairs_to_decide,
        tost_pairs_needed,
        tost_power,
    )
    from ablationlab.stats.significance import (
        adjust,
        all_tests,
        bootstrap_test,
        paired_t_test,
        sign_flip_test,
        wilcoxon_test,
    )
    from ablationlab.stats.unpaired import compare_unpaired, known_noise, runs_to_decide

__getattr__ = lazy_exports(__name__)
