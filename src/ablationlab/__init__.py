"""ablationlab: does this change to a GPT help, at equal compute?

The few names a notebook needs; each is imported when it is first used, so that ``import ablationlab`` stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablationlab.core.lazy import lazy_exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from ablationlab.api import analyze, compare, plan, power
    from ablationlab.model.gpt import ForwardPass
    from ablationlab.model.parts import BlockPart, Head, PartCost, PositionScheme, ResidualNorm, option
    from ablationlab.model.rules import OptimizerStep
    from ablationlab.model.weights import Parameter, linear
    from ablationlab.pipeline import run
    from ablationlab.records.results import Results
    from ablationlab.records.settings import Study
    from ablationlab.report.notebook import StudyResults, load_results
    from ablationlab.study.extend import corpus, metric, optimizer, part, probe, schedule, task, trainer, variant
    from ablationlab.study.load import load_study
    from ablationlab.tasks.suite import Item, Template
    from ablationlab.training.callbacks import huggingface_callback, lightning_callback
    from ablationlab.training.export import GPT, load
    from ablationlab.training.finished import FinishedRun
    from ablationlab.training.own_run import Run, current_run
    from ablationlab.training.probes.snapshot import Reading

__all__ = [
    "GPT",
    "BlockPart",
    "FinishedRun",
    "ForwardPass",
    "Head",
    "Item",
    "OptimizerStep",
    "Parameter",
    "PartCost",
    "PositionScheme",
    "Reading",
    "ResidualNorm",
    "Results",
    "Run",
    "Study",
    "StudyResults",
    "Template",
    "__version__",
    "analyze",
    "compare",
    "corpus",
    "current_run",
    "huggingface_callback",
    "lightning_callback",
    "linear",
    "load",
    "load_results",
    "load_study",
    "metric",
    "optimizer",
    "option",
    "part",
    "plan",
    "power",
    "probe",
    "run",
    "schedule",
    "task",
    "trainer",
    "variant",
]

__getattr__ = lazy_exports(__name__)


def __dir__() -> list[str]:
    """What a notebook may complete."""
    return __all__
