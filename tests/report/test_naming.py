"""Metrics in words: one spelling wherever they are read."""

from __future__ import annotations

from ablationlab.report.naming import in_sentence, metric_name


def test_metrics_in_a_sentence_are_named_at_once_the_longest_first():
    said = in_sentence("loss of task_ece, task_ece_gap and my_ece\\1", ["loss", "task_ece", "task_ece_gap", "my_ece"])
    assert said == "loss of task ECE, task ECE gap and my ECE\\1"


def test_a_sentence_without_metrics_is_left():
    assert in_sentence("a loss of 0.1", ["loss"]) == "a loss of 0.1"
    assert in_sentence("nothing known", []) == "nothing known"


def test_the_loss_of_a_table_keeps_its_name():
    assert metric_name("loss") == "loss"
