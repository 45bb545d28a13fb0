"""Metrics in words: one spelling wherever they are read."""

from __future__ import annotations

import pytest

from ablationlab.records.metrics import metric_name


@pytest.mark.parametrize(
    ("name", "words"),
    [("loss", "loss"), ("val_loss", "val loss"), ("task_ece_gap", "task ECE gap"), ("ece", "calibration error (ECE)")],
)
def test_a_metric_is_named_in_words(name, words):
    assert metric_name(name) == words
