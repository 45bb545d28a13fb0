from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from ablationlab.evaluation.calibration import (
    BINS,
    TEMPERATURES,
    calibration,
    choice_calibration,
    softmax,
    temperature_curve,
)

RNG = np.random.default_rng(7)


def made(count: int, *, off: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Confidences, and outcomes that are right *off* less often than stated."""
    confidence = RNG.uniform(0.3, 0.95, count)
    return confidence, (RNG.uniform(size=count) < confidence - off).astype(float)


def test_ece_is_the_mean_gap_over_bins_computed_plainly():
    confidence, right = made(4000, off=0.1)
    found = calibration(confidence, right, 0.0)
    order = np.argsort(confidence, kind="stable")
    gaps = [abs(right[p].mean() - confidence[p].mean()) * len(p) / 4000 for p in np.array_split(order, BINS)]
    assert found.ece_equal_mass == pytest.approx(sum(gaps), abs=2e-3)
    edges = np.linspace(0, 1, BINS + 1)
    wide = 0.0
    for low, high in pairwise(edges):
        inside = (confidence >= low) & (confidence < high)
        if inside.any():
            wide += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert found.ece_equal_width == pytest.approx(wide)
    assert sum(found.curve_count) == 4000


def test_debiasing_takes_off_what_sampling_adds_and_leaves_a_real_gap():
    calm = [calibration(*made(300), 0.0) for _ in range(60)]
    plain = np.mean([one.ece_equal_mass for one in calm])
    better = np.mean([one.ece_equal_mass_debiased for one in calm])
    assert plain > 0.06  # biased: the truth is 0
    assert better < 0.6 * plain
    off = [calibration(*made(3000, off=0.2), 0.0) for _ in range(10)]
    assert np.mean([one.ece_equal_mass_debiased for one in off]) == pytest.approx(0.2, abs=0.02)


def test_the_brier_score_is_the_sum_of_its_parts_and_reliability_sees_the_gap():
    confidence, right = made(5000, off=0.15)
    found = calibration(confidence, right, 0.0)
    assert found.brier_top == pytest.approx(np.mean((confidence - right) ** 2))
    parts = found.reliability - found.resolution + found.uncertainty + found.within_bin
    assert parts == pytest.approx(found.brier_top)
    assert found.reliability == pytest.approx(0.15**2, abs=0.01)
    assert abs(found.within_bin) < 0.01


def test_the_best_temperature_undoes_the_one_that_was_applied():
    logits = RNG.normal(0, 2, (4000, 5))
    targets = [int(RNG.choice(5, p=softmax(row))) for row in logits]
    _, heat = choice_calibration(logits * 1.5, targets)
    assert heat.best == pytest.approx(1.5, rel=0.08)
    assert heat.held_out_loss_at_best < heat.held_out_loss_at_1
    assert heat.sensitivity > 0


def test_temperature_is_fitted_on_one_half_and_judged_on_the_other():
    logs = np.log(TEMPERATURES)
    even, odd = 1 + (logs - 0.2) ** 2, 2 + (logs + 0.1) ** 2
    part = temperature_curve(list(even), list(odd), 0.5)
    assert part.best == pytest.approx(np.exp(0.2), rel=1e-6)
    assert part.held_out_loss_at_best == pytest.approx(2 + 0.3**2, rel=1e-6)
    assert part.sensitivity == pytest.approx(2, rel=1e-6)


def halves_of(best: float, count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Scores and targets of two choices whose loss is lowest at a temperature that algebra gives, in both halves.

    With margin m for the first choice in every item, and the first right in 3 of 4 items: p(first) = 3/4 at T = m / ln 3.
    """
    scores = np.tile([best * np.log(3.0), 0.0], (count, 1))
    return scores - 40.0, (np.arange(count) // 2 % 4 == 0).astype(int)


@pytest.mark.parametrize("best", [0.13, 0.5, 1.0, 2.0, 9.8, 60.0])
def test_the_best_temperature_of_choices_is_the_optimum_wherever_it_lies(best):
    _, heat = choice_calibration(*halves_of(best))
    assert heat.best == pytest.approx(best, rel=1e-6)
    assert heat.beyond is None
    assert heat.held_out_loss_at_best == pytest.approx(-0.75 * np.log(0.75) - 0.25 * np.log(0.25))


@pytest.mark.parametrize("best", [0.13, 1.0, 9.8])
def test_the_best_temperature_of_choices_is_that_of_an_exact_search(best):
    from scipy.optimize import minimize_scalar

    rng = np.random.default_rng(int(100 * best))
    logits = rng.normal(0, 2, (2000, 4))
    targets = np.array([rng.choice(4, p=softmax(row)) for row in logits])
    scores = best * logits
    scores[::3, 3] = -np.inf  # items with a choice fewer
    targets[::3] %= 3

    def loss(log: float) -> float:
        heated = softmax(scores[::2] / np.exp(log))[np.arange(1000), targets[::2]]
        return float(-np.log(heated).mean())

    exact = minimize_scalar(loss, bounds=np.log([0.01, 100]), method="bounded", options={"xatol": 1e-10})
    _, heat = choice_calibration(scores, targets)
    assert heat.best == pytest.approx(np.exp(exact.x), rel=1e-4)
    assert heat.best == pytest.approx(best, rel=0.3)
    if best != 1.0:
        assert heat.held_out_loss_at_best < heat.held_out_loss_at_1


def test_where_no_temperature_is_best_none_is_told_and_on_which_side_the_loss_falls():
    scores, targets = halves_of(1.0)
    for given, side in [
        ((scores, 1 - targets), "above"),  # wrong in 3 of 4: the hotter the better, without end
        (halves_of(200.0), "above"),
        ((scores, 0 * targets), "below"),  # always right: the colder the better
        (halves_of(0.002), "below"),
        ((0 * scores, targets), "flat"),
    ]:
        _, heat = choice_calibration(*given)
        assert (heat.best, heat.beyond, heat.held_out_loss_at_best) == (None, side, None)
        assert heat.searched == (0.01, 100.0)


@pytest.mark.parametrize(
    ("place", "best", "beyond"),
    [(-0.69, np.exp(-0.69), None), (0.66, np.exp(0.66), None), (-0.75, None, "below"), (3.0, None, "above")],
)
def test_next_tokens_have_a_best_temperature_up_to_the_ends_of_the_curve_and_none_past_them(place, best, beyond):
    losses = list(1 + (np.log(TEMPERATURES) - place) ** 2)
    part = temperature_curve(losses, losses, 0.5)
    assert part.best == (None if best is None else pytest.approx(best, rel=1e-6))
    assert part.beyond == beyond
    assert part.held_out_loss_at_best == (None if best is None else pytest.approx(1, rel=1e-6))
    assert part.searched == pytest.approx((0.5, 2.0))


def test_a_curve_that_bends_down_at_its_lower_end_falls_on_below_it():
    logs = np.log(TEMPERATURES)
    falling = list(3 - np.exp(-3 * (logs + 0.7)))  # concave, lowest at the first temperature
    part = temperature_curve(falling, falling, 0.5)
    assert (part.best, part.beyond) == (None, "below")
    flat = temperature_curve([2.0] * len(logs), [2.0] * len(logs), 0.5)
    assert (flat.best, flat.beyond) == (None, "flat")


def test_choices_that_are_certain_and_right_are_perfectly_calibrated():
    rows = np.array([[0.0, -200.0, -200.0], [0.0, -200.0, -np.inf]] * 20)  # -inf: one choice fewer
    found, _ = choice_calibration(rows, [0] * 40)
    assert (found.brier, found.ece_equal_mass, found.ece_equal_width) == pytest.approx((0, 0, 0))
