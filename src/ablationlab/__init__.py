"""ablationlab: does this change to a GPT help, at equal compute?

The few names a notebook needs; each is imported when it is first used, so that ``import ablationlab`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from ablationlab.pipeline import run
    from ablationlab.records.results import Results
    from ablationlab.records.settings import Study
    from ablationlab.report.notebook import Frames, load_results
    from ablationlab.study.load import load_study
    from ablationlab.training.export import GPT, load

_HOME = {
    "GPT": "ablationlab.training.export",
    "Frames": "ablationlab.report.notebook",
    "Results": "ablationlab.records.results",
    "load": "ablationlab.training.export",
    "load_results": "ablationlab.report.notebook",
    "Study": "ablationlab.records.settings",
    "load_study": "ablationlab.study.load",
    "run": "ablationlab.pipeline",
}
__all__ = ["GPT", "Frames", "Results", "Study", "__version__", "load", "load_results", "load_study", "run"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'ablationlab' has no attribute {name!r}")
