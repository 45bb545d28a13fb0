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
    temperature_part,
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
    part = temperature_part(list(even), list(odd), 0.5)
    assert part.best == pytest.approx(np.exp(0.2), rel=1e-6)
    assert part.held_out_loss_at_best == pytest.approx(2 + 0.3**2, rel=1e-6)
    assert part.sensitivity == pytest.approx(2, rel=1e-6)


def test_choices_that_are_certain_and_right_are_perfectly_calibrated():
    rows = np.array([[0.0, -200.0, -200.0], [0.0, -200.0, -np.inf]] * 20)  # -inf: one choice fewer
    found, _ = choice_calibration(rows, [0] * 40)
    assert (found.brier, found.ece_equal_mass, found.ece_equal_width) == pytest.approx((0, 0, 0))
