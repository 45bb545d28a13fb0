from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.ndimage import median_filter

from ablationlab.core.errors import StatisticsError
from ablationlab.records.settings import SPIKE_SCORE
from ablationlab.stats import spikes as trajectory
from ablationlab.stats.spikes import EarlyWarning, StackWatch, Watch, largest_rise, running_median, steps_to


def course(losses, norms):
    curves = {"step": np.arange(1, len(losses) + 1.0), "loss": np.array(losses), "gradient_norm": np.array(norms)}
    return trajectory.measure_curve(curves, spike_threshold=SPIKE_SCORE)


def falling(steps: int = 300, noise: float = 0.04, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 1.5 + 2.7 * np.exp(-np.arange(steps) / 35) + noise * rng.standard_normal(steps)


# --- the running median and what is read off it -----------------------------------------------------------


def test_the_running_median_agrees_with_scipy_away_from_the_ends():
    x = np.random.default_rng(1).normal(size=50)
    assert np.array_equal(running_median(x)[2:-2], median_filter(x, size=5)[2:-2])
    assert running_median([3.0, 1.0, 2.0]).tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("losses", "rise"),
    [
        ([4.0, 3.0, 2.0, 1.0, 0.5, 0.2], 0.0),
        ([1.0] * 20, 0.0),
        ([2.0] * 10 + [5.0] * 10, 3.0),
        ([4.0] * 10 + [1.0] * 10 + [2.5] * 10 + [1.0] * 5 + [1.5] * 10, 1.5),
        ([2.0] * 10 + [9.0] + [2.0] * 10, 0.0),  # one odd batch
        ([2.0] * 10 + [9.0] * 2 + [2.0] * 10, 0.0),
        ([2.0] * 10 + [9.0] * 3 + [2.0] * 10, 7.0),
        ([5.0] * 5 + [2.0] * 5 + [4.0] * 5, 2.0),  # above the lowest so far, not above the start
    ],
)
def test_the_largest_rise_of_known_sequences(losses, rise):
    assert largest_rise(losses) == pytest.approx(rise)


def test_a_rise_that_ends_in_nan_counts_up_to_it():
    assert largest_rise([2.0] * 10 + [6.0] * 5 + [math.nan] + [99.0] * 5) == pytest.approx(4.0)
    assert largest_rise([]) is None
    assert largest_rise([math.nan]) is None


@pytest.mark.parametrize(
    ("threshold", "step"), [(10.0, 1), (5.0, 6), (4.999, 7), (1.0, 10), (0.9, 10)], ids=["at once", "", "", "", "never"]
)
def test_steps_to_a_threshold(threshold, step):
    losses = [10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    # Medians of a straight line are the line itself; at the ends they are of fewer steps: 9, 8.5 ... 2.5 -> 2, 1.5.
    m = running_median(losses)
    expected = next((t + 1 for t, value in enumerate(m) if value <= threshold), len(losses))
    assert steps_to(losses, threshold) == expected
    if threshold in (5.0, 4.999):
        assert expected == step


def test_one_lucky_batch_is_not_arrival():
    losses = [3.0] * 10 + [1.0] + [3.0] * 10 + [1.0] * 10
    assert steps_to(losses, 1.5) == 22
    assert steps_to([3.0] * 7, 1.5) == 7, "never: the whole budget"


def test_the_mean_training_loss_is_the_area_under_the_curve():
    x = falling()
    found = course(x, np.ones(300))
    assert found.mean_training_loss == pytest.approx(x.mean())
    assert found.measure("mean_training_loss") == found.mean_training_loss
    assert found.initial_loss == x[0]


# --- gradient spikes --------------------------------------------------------------------------------------


def norms(seed: int = 0, steps: int = 300) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, 0.1, steps))


def test_calm_gradient_norms_have_no_spikes():
    for seed in range(200):
        found = course(falling(seed=seed), norms(seed))
        assert found.gradient_spikes == 0
        assert found.gradient_spike_score < SPIKE_SCORE


def test_separate_gradient_spikes_are_counted_and_near_ones_are_one():
    g = norms()
    g[100:103] *= 50
    assert course(falling(), g).gradient_spikes == 1
    g[200:204] *= 20
    assert course(falling(), g).gradient_spikes == 2
    g[207:210] *= 20
    assert course(falling(), g).gradient_spikes == 2


def test_a_gradient_spike_does_not_depend_on_the_unit():
    g = norms()
    g[100:103] *= 50
    one, other = course(falling(), g), course(falling(), 1e6 * g)
    assert one.gradient_spike_score == pytest.approx(other.gradient_spike_score)


def test_a_norm_of_zero_or_infinity_ends_the_curve_and_breaks_nothing():
    g = norms()
    g[50] = 0.0
    assert course(falling(), g).gradient_spikes == 0
    g[50] = math.inf
    assert course(falling(), g).gradient_spikes == 0


def test_what_is_too_short_or_not_asked_for_has_no_value():
    found = course([3.0, 2.0], [1.0, 1.0])
    assert found.gradient_spike_score is None
    assert found.gradient_spikes is None
    assert found.steps_to_loss is None
    assert course([], []).mean_training_loss is None
    with pytest.raises(StatisticsError, match="one-dimensional"):
        course([[1.0]], [1.0])


# --- the warning while it runs ----------------------------------------------------------------------------


def warnings(losses, norms=None, calm_from: int = 0) -> list[EarlyWarning]:
    watch = StackWatch(["run-a"], calm_from)
    norms = np.ones(len(losses)) if norms is None else norms
    fed = (watch.feed(0, step, x, g) for step, (x, g) in enumerate(zip(losses, norms, strict=True), start=1))
    return [warning for warning in fed if warning is not None]


def test_a_calm_run_gives_no_warning():
    false = sum(bool(warnings(falling(seed=seed), norms(seed))) for seed in range(300))
    assert false <= 3


def test_a_rising_loss_is_announced_within_three_steps_with_run_step_and_numbers():
    x = falling()
    x[150:] += np.linspace(0.5, 5, 150)
    first = warnings(x)[0]
    assert (first.run, first.of) == ("run-a", "loss")
    assert 150 < first.step <= 153
    assert first.value == x[first.step - 1] > first.level
    assert first.noise_sds > 7


def test_norms_that_rise_while_the_rate_warms_up_give_no_warning_and_losses_do():
    x, g = falling(), norms()
    g[:16], g[16:30] = g[:16] / 10, g[16:30] * 2  # as a norm that fell at first and rises with the rate
    assert [warning.of for warning in warnings(x, g)] == ["gradient-norm"]
    assert warnings(x, g, calm_from=31) == []
    x[20:] += np.linspace(2, 5, 280)
    assert warnings(x, g, calm_from=31)[0].of == "loss"
    g[200:205] *= 100
    assert warnings(falling(), g, calm_from=31)[0].step > 200


def test_a_jump_of_the_gradient_norm_is_announced():
    g = norms()
    g[200:205] *= 100
    first = warnings(falling(), g)[0]
    assert (first.of, first.value) == ("gradient-norm", g[first.step - 1])
    assert 200 < first.step <= 205
    assert first.value > 10 * first.level


def test_warnings_do_not_flood():
    x = falling()
    x[150:] += 0.2 * np.arange(150)
    assert 1 <= len(warnings(x)) <= 150 // 20 + 1


def test_numbers_that_are_none_are_passed_over():
    watch = Watch()
    assert watch.feed(1, math.nan) is None
    assert watch.level is None
    assert warnings([math.inf, math.nan, *falling()]) == []
