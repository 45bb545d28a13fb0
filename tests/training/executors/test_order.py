"""In which order stacks are trained."""

from __future__ import annotations

from ablationlab.data.corpus import load_corpus
from ablationlab.records.storage import ResultsFolder
from ablationlab.study.load import parse_study
from ablationlab.study.plan import make_plan
from ablationlab.training.executors.job import open_stacks


def test_the_longest_stacks_are_trained_first_and_equal_ones_in_the_order_of_the_plan(study_table, tmp_path):
    study = parse_study(study_table({"regimes": {"long": {"training": {"steps": 36}}}}))
    plan = make_plan(study, load_corpus(study.data), "cpu", None)
    order = open_stacks(plan, ResultsFolder(tmp_path))
    runs = [plan.run(plan.stacks[stack][0]) for stack in order]
    steps = [run.budget.steps for run in runs]
    assert steps == sorted(steps, reverse=True)
    assert len(set(steps)) == 2
    for regime in ("default", "long"):
        same = [run.stack for run in runs if run.regime == regime]
        assert same == sorted(same)
    assert sorted(order) == list(range(len(plan.stacks)))
