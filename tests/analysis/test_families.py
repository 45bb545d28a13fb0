"""Which tests are corrected together, and what each may claim."""

from __future__ import annotations

import numpy as np

from ablationlab.analysis import analyze
from ablationlab.analysis.from_table import TableOptions, read_table
from ablationlab.records.settings import Criterion

from .verdict.studies import LOSS, arms, dataset, study


def test_the_null_metrics_of_a_table_are_one_family(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["variant,seed,metric,value"]
    for metric in ("loss", *(f"m{i}" for i in range(30))):
        lines += [f"{v},{s},{metric},{rng.normal():.6f}" for v in ("none", "norm") for s in range(1, 9)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines) + "\n")
    found = analyze(read_table(path, TableOptions("none", primary="loss", lower=("loss",))))
    sizes = {family.id: (family.correction, len(family.members)) for family in found.families}
    assert sizes == {"primary/holm": ("holm", 1), "exploratory": ("benjamini-hochberg", 30)}
    exploratory = [c for c in found.comparisons if c.family == "exploratory"]
    assert any(c.p < 0.05 for c in exploratory)
    assert {c.outcome for c in exploratory} == {"not-shown"}


def test_secondaries_wait_for_the_primary_and_cost_it_nothing():
    accuracy = Criterion(metric="next_token_accuracy")
    shown = study(
        {"validation_loss": arms(-0.05), "next_token_accuracy": arms(0.1, start=0.4)}, (accuracy, LOSS)
    ).comparisons
    assert [(c.outcome, c.p_adjusted == c.p) for c in shown] == [("better", True), ("better", False)]
    gated = study(
        {"validation_loss": arms(0.0, sd=0.05), "next_token_accuracy": arms(0.1, start=0.4)}, (accuracy, LOSS)
    ).comparisons
    assert [c.outcome for c in gated] == ["not-shown", "gated"]
    assert gated[0].p_adjusted == gated[0].p


def test_a_log_metric_with_a_value_of_zero_keeps_no_margin_in_logs():
    speed = Criterion(metric="final_gradient_norm", role="primary", smallest_effect=0.5, margin=0.5)
    values = arms(0.04, sd=0.001, start=0.04)
    values["none"][0] = 0.0
    comparison = analyze(dataset({"final_gradient_norm": values}, (speed,))).comparisons[0]
    assert (comparison.transform, comparison.equivalence, comparison.margin) == ("identity", None, None)
    assert comparison.caveats[0].code == "not-positive"


def test_what_a_clock_measured_moves_no_other_adjusted_p():
    def found(speedup: float):
        speed = arms(speedup, 5.0, start=1000.0)
        others = {"token_ece": arms(0.01, 0.01, start=0.1), "next_token_accuracy": arms(0.01, 0.01, start=0.4)}
        return study({"validation_loss": arms(0.0), **others, "inference_speed": speed}).comparisons

    slow, fast = found(0.0), found(500.0)
    assert [c.outcome for c in slow if c.metric == "inference_speed"] == ["not-shown"]
    assert [c.outcome for c in fast if c.metric == "inference_speed"] == ["better"]
    assert {c.metric: c.family for c in fast}["inference_speed"] == "exploratory/timed"
    for before, after in zip(slow, fast, strict=True):
        if before.metric != "inference_speed":
            assert before == after
