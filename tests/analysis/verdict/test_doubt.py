"""What fitted best rates may hide counts in needs, power and exaggeration, as it does in intervals and p."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ablationlab.analysis import analyze
from ablationlab.analysis.dataset import Arm
from ablationlab.analysis.power import alpha_per_test, seeds_for, seeds_for_equivalence
from ablationlab.analysis.verdict import decide
from ablationlab.analysis.verdict.evidence import _level
from ablationlab.stats.robustness import exaggeration

from .studies import LOSS, dataset, deltas

N, SD = 8, 0.004
EFFECT = LOSS.smallest_effect


def in_doubt(doubt: float, mean: float = -0.7 * EFFECT):
    """A study whose two arms may be off by half of *doubt* each."""
    base = 2 + 0.05 * np.sin(np.arange(N))
    made = dataset({"validation_loss": {"none": base, "layernorm": base + deltas(mean, SD, N)}})
    arms = {Arm("validation_loss", None, "default", name): doubt / 2 for name in ("none", "layernorm")}
    analysis = analyze(replace(made, doubts=arms))
    return analysis, analysis.comparisons[0], decide(analysis).verdicts[0]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5])
def test_needs_power_and_exaggeration_are_those_of_the_effect_less_the_doubt(share):
    doubt = share * EFFECT
    analysis, comparison, verdict = in_doubt(doubt)
    assert comparison.doubt == pytest.approx(doubt)
    sure, sd, alpha = EFFECT - doubt, comparison.delta_sd, alpha_per_test(comparison)
    power, clear = analysis.power[0], in_doubt(0.0)[0].power[0]
    assert power.pairs_80 == seeds_for(sure, sd, alpha, 0.8, "paired-t")
    assert power.equivalence_pairs_80 == seeds_for_equivalence(sure, sd, comparison.alpha, 0.8)
    assert power.detectable_80 == pytest.approx(clear.detectable_80 + doubt)
    assert power.smallest_effect == EFFECT
    expected = exaggeration(sure / sd, N, alpha=alpha)
    assert verdict.fragility.power == expected.power
    # On average a shown difference is ratio times the part beyond the doubt, and the doubt itself.
    assert verdict.fragility.exaggeration == pytest.approx((expected.ratio * sure + doubt) / EFFECT)
    if verdict.needs is not None:
        assert verdict.needs.need == "fresh-seeds"
        assert verdict.needs.seeds_for_difference == power.pairs_80


def test_a_doubt_of_more_than_half_the_effect_needs_closer_rates():
    for share, need in ((0.45, "fresh-seeds"), (0.6, "closer-rates"), (1.2, "closer-rates")):
        analysis, _, verdict = in_doubt(share * EFFECT)
        assert verdict.needs.need == need, share
        assert (verdict.fragility.power is None) == (share > 1)
    assert analysis.power[0].pairs_80 is None


def test_p_within_the_doubt_is_exactly_one():
    _, comparison, _ = in_doubt(2 * EFFECT)
    assert comparison.p == comparison.p_adjusted == 1.0
    assert {test.p for test in comparison.tests.values()} == {1.0}


def test_a_p_of_zero_is_a_p_and_costs_its_family():
    analysis, comparison, _ = in_doubt(0.0)
    zero = comparison.model_copy(update={"p": 0.0, "p_adjusted": 0.0, "family_size": 5})
    assert _level(analysis, zero) == pytest.approx(comparison.alpha / 5)
