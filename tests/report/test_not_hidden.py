"""What speaks against an arm, and what is no evidence, is told wherever the good news is."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from ablationlab.analysis import TableOptions, analyze, read_table
from ablationlab.analysis.verdict import decide
from ablationlab.analysis.wording import power_level
from ablationlab.core.format import plain
from ablationlab.records.analysis import ComparedTask, EvaluationAnalysis, Sensitivity, TaskSensitivity
from ablationlab.records.metrics import METRICS
from ablationlab.records.results import Results
from ablationlab.report.charts.paired import differences
from ablationlab.report.paper.compose import document_of
from ablationlab.report.tables.can_show import power_table
from ablationlab.stats.results import Doubt

from .maker import made
from .test_paper import said


def gated(results: Results, failed: dict[str, tuple[int, ...]]) -> Results:
    """With three tasks, with and without examples; the accuracy of those that *failed* did not pass the gate with so many
    examples, while another measure of them did."""
    tasks = tuple(
        TaskSensitivity(
            task=ComparedTask(name, shots),
            regime="default",
            gate_seeds=(8, 9),
            templates=("plain",),
            items=200,
            chance=0.25,
            ngrams={},
            baseline_accuracy=0.3,
            control_accuracy=0.3,
            template_spread=None,
            sensitivity=Sensitivity(shots not in failed.get(name, ())),
        )
        for name in ("spelling", "next-line", "last-word")
        for shots in (0, 2)
    )
    part = EvaluationAnalysis(harness="lm_eval 0", precision="fp32", tasks=tasks, contrasts=())
    analysis = results.analysis
    scored = analysis.comparisons[0].model_copy(
        update={
            "id": "scored",
            "metric": "choice_log_probability",
            "label": "exploratory",
            "role": None,
            "task": ComparedTask("next-line"),
            "sensitivity": Sensitivity(True),
        }
    )
    metrics = {**analysis.metrics, scored.metric: METRICS[scored.metric]}
    return results.changed(
        analysis=analysis.model_copy(
            update={"evaluation": part, "comparisons": (*analysis.comparisons, scored), "metrics": metrics}
        )
    )


def test_tasks_that_failed_the_gate_are_named_by_the_paper(tmp_path):
    """By the gate on their accuracy, whatever another measure of the same task says."""
    first = gated(made(tmp_path / "first"), {"next-line": (0, 2), "last-word": (2,)})
    told = "Accuracy is not sensitive at this scale, and therefore no evidence, on next-line and last-word, 2-shot."
    assert told in said(document_of([first], {}))
    other = gated(made(tmp_path / "other", name="other", question="Another?"), {})
    assert "not sensitive" not in said(document_of([other], {}))
    assert told in said(document_of([first, other], {}))


ARMS = {"b": (-0.1, 0.02), "c": (-0.09, 0.02), "d": (0.0, 0.02), "e": (-0.08, -0.05)}


@pytest.fixture(scope="module")
def traded(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A table of losses and accuracies: three arms have a lower loss, and ``e``, the last, pays for it in accuracy."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("traded")
    rows = ["variant,seed,val_loss,val_acc"]
    for seed in range(8):
        loss, right = 2 + rng.normal(0, 0.02), 0.6 + rng.normal(0, 0.01)
        for arm, (lower, more) in {"a": (0.0, 0.0), **ARMS}.items():
            rows.append(f"{arm},{seed},{loss + lower + rng.normal(0, 0.002)},{right + more + rng.normal(0, 0.002)}")
    (folder / "runs.csv").write_text("\n".join(rows) + "\n")
    options = TableOptions.checked(baseline="a", primary="val_loss", lower=("val_loss",), higher=("val_acc",))
    analysis = analyze(read_table(folder / "runs.csv", options))
    analysis.replace(folder / "analysis.json")
    decide(analysis).replace(folder / "verdict.json")
    return Results.open(folder)


def test_the_paper_tells_a_loss_of_accuracy_first_and_what_it_leaves_out(traded: Results):
    text = said(document_of([traded], {}))
    where = text.index("With e, val acc is 0.0489 lower")
    assert where < text.index("With b and c, val acc is ")
    assert "With d, val acc" not in text
    assert "One more comparison of accuracy, which the appendix has, is shown better." in text


def test_power_is_told_at_the_level_that_it_was_computed_at_and_with_the_doubt_of_fitted_rates(tmp_path):
    results = made(tmp_path)
    analysis = results.analysis
    by_id = {comparison.id: comparison for comparison in analysis.comparisons}
    assert {part.alpha for part in analysis.power} == {0.025}
    level = "at level 0.025"
    paper = said(document_of([results], {}))
    assert f"is detected with 80 % probability {level} (" in paper
    assert "missed" not in paper
    assert "may be off" not in paper
    assert {row["alpha"] for row in csv.DictReader(io.StringIO(power_table(analysis).csv()))} == {"0.025"}
    assert "at level" in power_table(analysis).markdown()
    fitted = tuple(
        comparison.model_copy(
            update={"doubt": Doubt(0.05, 0.08)} if comparison.id in {p.comparison for p in analysis.power} else {}
        )
        for comparison in analysis.comparisons
    )
    doubted = results.changed(analysis=analysis.model_copy(update={"comparisons": fitted}))
    assert "Of that, 0.080 nats/token is how far the fitted best rates may be off." in said(document_of([doubted], {}))
    part = analysis.power[0]
    limited = part.model_copy(update={"limit": "doubt"})
    assert "| doubt |" in power_table(analysis.model_copy(update={"power": (limited,)})).markdown()
    loose = by_id[part.comparison].model_copy(update={"correction": "benjamini-hochberg"})
    assert power_level(part.model_copy(update={"alpha": 0.05}), loose) == "0.050, uncorrected"


def test_an_interval_of_what_was_not_tested_is_not_called_the_one_that_decides(tmp_path):
    results = made(tmp_path)
    analysis = results.analysis
    gone = {"deciding": None, "p": None, "p_adjusted": None, "outcome": "gated"}
    comparisons = tuple(c.model_copy(update=gone if c.variant == "layernorm" else {}) for c in analysis.comparisons)
    gated_ones = results.changed(analysis=analysis.model_copy(update={"comparisons": comparisons}))
    sentence = "layernorm was not tested: its 95 % interval is uncorrected and decides nothing."
    assert any(sentence in plain(line) for line in differences(gated_ones)[0].sentences)
    assert "†: not tested, so the interval is uncorrected and decides nothing." in said(document_of([gated_ones], {}))
    assert "†" not in said(document_of([results], {}))
