"""What speaks against an arm, and what is no evidence, is told wherever the good news is: page, paper and answer."""

from __future__ import annotations

from ablationlab.core.format import plain
from ablationlab.records.analysis import ComparedTask, EvaluationAnalysis, Sensitivity, TaskSensitivity
from ablationlab.records.metrics import METRICS
from ablationlab.records.results import Results
from ablationlab.report.page import sentences
from ablationlab.report.paper.build import document_of

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


def test_tasks_that_failed_the_gate_are_named_by_the_paper_as_by_the_page(tmp_path):
    """By the gate on their accuracy, whatever another measure of the same task says."""
    first = gated(made(tmp_path / "first"), {"next-line": (0, 2), "last-word": (2,)})
    told = "Accuracy is not sensitive at this scale, and therefore no evidence, on next-line and last-word, 2-shot."
    assert plain(sentences.evaluation(first)).endswith("decide nothing there: next-line, last-word.")
    assert told in said(document_of([first], {}))
    other = gated(made(tmp_path / "other", name="other", question="Another?"), {})
    assert "not sensitive" not in said(document_of([other], {}))
    assert told in said(document_of([first, other], {}))
