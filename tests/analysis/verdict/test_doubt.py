"""What fitted best rates may hide counts in power and in what is lacking, as it does in intervals and p."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ablationlab.analysis import analyze
from ablationlab.analysis.dataset import Arm
from ablationlab.analysis.verdict import decide
from ablationlab.stats.results import Doubt

from .studies import LOSS, dataset, deltas

N, SD = 8, 0.004
EFFECT = LOSS.smallest_effect


def in_doubt(doubt: float, mean: float = -0.7 * EFFECT):
    """A study whose two arms may be off by half of *doubt* each."""
    base = 2 + 0.05 * np.sin(np.arange(N))
    made = dataset({"validation_loss": {"none": base, "layernorm": base + deltas(mean, SD, N)}})
    arms = {
        Arm("validation_loss", None, "default", name): Doubt(doubt / 2, doubt / 2) for name in ("none", "layernorm")
    }
    analysis = analyze(replace(made, doubts=arms))
    return analysis, analysis.comparisons[0], decide(analysis).verdicts[0]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5])
def test_what_is_seen_counts_the_doubt(share):
    doubt = share * EFFECT
    analysis, comparison, _ = in_doubt(doubt)
    assert comparison.doubt.larger == pytest.approx(doubt)
    power, clear = analysis.power[0], in_doubt(0.0)[0].power[0]
    assert power.detectable_80 == pytest.approx(clear.detectable_80 + doubt)
    assert power.limit == ("doubt" if doubt > clear.detectable_80 else "seeds")
    assert power.smallest_effect == EFFECT


@pytest.mark.parametrize(("share", "lack"), [(0.45, "seeds"), (0.6, "doubt"), (1.2, "doubt")])
def test_a_doubt_of_more_than_half_the_effect_is_what_is_lacking(share, lack):
    analysis, _, verdict = in_doubt(share * EFFECT)
    assert verdict.lacks == (lack,)
    # Seen is 0.7 of the smallest effect: *same* takes a doubt below 0.3 of it.
    assert analysis.power[0].decided_by is None


def test_p_within_the_doubt_is_exactly_one():
    _, comparison, _ = in_doubt(2 * EFFECT)
    assert comparison.p == comparison.p_adjusted == 1.0
    assert {test.p for test in comparison.tests.values()} == {1.0}
