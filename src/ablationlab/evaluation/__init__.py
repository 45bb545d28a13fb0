"""Measures trained runs: a list of evaluators (next tokens, length, tasks, throughput) and one loop over stacks of runs.

`evaluate` writes evaluation.json and samples.parquet of every run. An evaluator is an object with a title, `missing`, `run`
and `metrics` (`Evaluator`); tasks go through lm-evaluation-harness, which only `harness.py` loads.
"""

from ablationlab.evaluation.context import Measurement, ScoringQueue
from ablationlab.evaluation.loop import (
    Outcome,
    evaluate,
    metrics_of,
    start_building_tasks,
)
from ablationlab.evaluation.tasks import ProcessTaskBuilder
