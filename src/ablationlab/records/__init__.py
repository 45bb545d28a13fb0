"""What is on disk, typed: study, plan, runs, evaluations, analysis, verdict; how they are read and written. No torch.

`Results.open(path)` and its `Run` are the one reader of a results folder. A file is a `Record`, written whole and never
overwritten (storage.py); docs/records.md explains the folder. Nothing here consults a registry to read
results: plan.lock carries every variant's declaration and every metric's definition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablationlab.core.lazy import lazy_exports

if TYPE_CHECKING:
    from ablationlab.records.analysis import Analysis, Comparison, ItemComparison
    from ablationlab.records.environment import Environment
    from ablationlab.records.evaluation import Evaluation, Suite
    from ablationlab.records.metrics import METRICS, Metric
    from ablationlab.records.plan import Corpus, Declaration, Plan, PlannedRun
    from ablationlab.records.replication import Replication
    from ablationlab.records.results import Damage, Results, Run
    from ablationlab.records.run import Checkpoint, Result, RunRecord
    from ablationlab.records.settings import Criterion, Hypothesis, ModelConfig, Study, TrainingConfig
    from ablationlab.records.storage import Record, ResultsFolder, RunFolder, StoredValue
    from ablationlab.records.verdict import Verdict

__getattr__ = lazy_exports(__name__)
