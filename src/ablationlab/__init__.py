"""ablationlab: does this change to a GPT help, at equal compute?

The few names a notebook needs; each is imported when it is first used, so that ``import ablationlab`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from ablationlab.export import GPT, load
    from ablationlab.study import Study, load_study

_HOME = {
    "GPT": "ablationlab.export",
    "load": "ablationlab.export",
    "Study": "ablationlab.study",
    "load_study": "ablationlab.study",
}
__all__ = ["GPT", "Study", "__version__", "load", "load_study"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'ablationlab' has no attribute {name!r}")
