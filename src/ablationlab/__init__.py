"""ablationlab: does this change to a GPT help, at equal compute?

The few names a notebook needs; each is imported when it is first used, so that ``import ablationlab`` stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablationlab.core.lazy import lazy_exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from ablationlab.api import analyze, compare, plan, power
    from ablationlab.pipeline import run
    from ablationlab.records.results import Results
    from ablationlab.records.settings import Study
    from ablationlab.report.notebook import Frames, load_results
    from ablationlab.study.load import load_study
    from ablationlab.training.export import GPT, load

__all__ = [
    "GPT",
    "Frames",
    "Results",
    "Study",
    "__version__",
    "analyze",
    "compare",
    "load",
    "load_results",
    "load_study",
    "plan",
    "power",
    "run",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "api": "analyze compare plan power",
        "pipeline": "run",
        "records.results": "Results",
        "records.settings": "Study",
        "report.notebook": "Frames load_results",
        "study.load": "load_study",
        "training.export": "GPT load",
    },
)
