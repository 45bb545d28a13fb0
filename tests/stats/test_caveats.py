from __future__ import annotations

import numpy as np
import pytest

from ablationlab.core.errors import UnknownNameError
from ablationlab.stats import (
    bootstrap_interval,
    compare,
    crossed_bootstrap,
    expected_coverage,
    expected_false_positives,
    interval_caveats,
    item_pairs,
)
from ablationlab.stats.caveats import COVERAGE, FALSE_POSITIVES

from .strategies import generator


def caveats(n, **options):
    rng = generator(n)
    return compare(rng.normal(size=n), rng.normal(size=n), rng=rng, **options).caveats


def find(known, code, about=""):
    return next((c.details for c in known if c.code == code and c.about == about), None)


def test_five_pairs_cannot_reach_005_in_a_sign_flip_test():
    assert find(caveats(5), "cannot-reach-alpha", "sign-flip") == {"n": 5, "minimum_p": 0.0625, "alpha": 0.05}
    assert find(caveats(6), "cannot-reach-alpha", "sign-flip") is None
    assert find(caveats(6, alpha=0.01), "cannot-reach-alpha", "sign-flip") is not None


def test_pairs_without_a_difference_do_not_count_in_a_sign_flip_test():
    none = np.array([1.0, 1.1, 1.2, 1.3, 1.4, 1.5])
    some = compare(none + np.array([0.1, 0.2, 0.3, 0.0, 0.0, 0.0]), none, rng=generator(1)).caveats
    assert find(some, "cannot-reach-alpha", "sign-flip") == {"n": 3, "minimum_p": 0.25, "alpha": 0.05}
    nothing = compare(none, none, rng=generator(1)).caveats  # p is 1 whatever the test could reach
    assert find(nothing, "cannot-reach-alpha", "sign-flip") is None


def test_the_percentile_bootstrap_says_what_it_covers():
    assert find(caveats(5), "undercoverage", "percentile") == {"n": 5, "level": 0.95, "covers": pytest.approx(0.838)}
    assert find(caveats(3), "undercoverage", "percentile")["covers"] == pytest.approx(0.745)
    assert find(caveats(5), "undercoverage", "paired-t") is None
    assert find(caveats(5, level=0.9), "undercoverage", "percentile") == {"n": 5, "level": 0.95}


def test_the_bootstrap_test_says_how_often_it_is_wrong():
    assert find(caveats(5), "false-positives", "bootstrap")["rate"] == pytest.approx(0.16, abs=0.005)


def test_few_missing_and_constant_pairs_are_said():
    assert find(caveats(2), "too-few-pairs") == {"n": 2}
    assert find(caveats(4, planned_pairs=5), "fewer-pairs-than-planned") == {"n": 4, "planned": 5}
    assert find(caveats(5, planned_pairs=5), "fewer-pairs-than-planned") is None
    constant = compare([1.1, 2.1, 3.1], [1.0, 2.0, 3.0], rng=generator()).caveats
    assert find(constant, "constant-deltas") == {"n": 3, "value": pytest.approx(0.1)}


def test_unbounded_bootstrap_t_is_said_at_three_pairs():
    assert find(caveats(3), "unbounded-interval", "bootstrap-t") == {"n": 3}


def test_pairing_that_hurts_is_said():
    known = compare([1.0, 2.0, 3.0, 4.5], [4.0, 3.0, 2.0, 1.0], rng=generator()).caveats
    assert find(known, "pairing-did-not-help") == {}


def test_the_crossed_bootstrap_states_its_undercoverage():
    rng = generator(1)
    pairs = item_pairs(rng.random((5, 100)) < 0.6, rng.random((5, 100)) < 0.5)
    (caveat,) = interval_caveats(crossed_bootstrap({"t": pairs}, rng=rng).macro)
    assert (caveat.about, caveat.details["n"]) == ("crossed", 5)
    assert caveat.details["covers"] < 0.94


def test_expected_coverage_interpolates_between_the_simulated_sizes():
    table = COVERAGE["normal"]["percentile"]
    assert expected_coverage("percentile", 5) == table[5]
    assert table[5] < expected_coverage("percentile", 6) < table[8]
    assert table[20] < expected_coverage("percentile", 200) < 0.95
    assert expected_coverage("percentile", 10**9) == pytest.approx(0.95)
    assert expected_coverage("percentile", 2) is None
    assert expected_coverage("bootstrap-t", 3) is None
    assert expected_false_positives("bootstrap", 5) == FALSE_POSITIVES["normal"]["bootstrap"][5]


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'percentile'"):
        expected_coverage("percentiles", 5)
    with pytest.raises(UnknownNameError, match="did you mean 'normal'"):
        expected_coverage("bca", 5, distribution="norm")


def test_the_default_interval_covers_93_to_97_percent_at_five_normal_pairs():
    assert 0.93 <= COVERAGE["normal"]["paired-t"][5] <= 0.97


def test_the_measured_table_agrees_with_a_fresh_simulation():
    covered = [
        bootstrap_interval("percentile", x, rng=generator()).excludes(0.0) is False
        for x in generator(21).exponential(size=(1500, 5)) - 1
    ]
    assert np.mean(covered) == pytest.approx(COVERAGE["skewed"]["percentile"][5], abs=0.035)
