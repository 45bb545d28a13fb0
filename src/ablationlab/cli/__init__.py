"""The command line: one file per group of verbs, `app` with the command itself, `torchrun` for ranks.

Heavy imports happen inside the verbs that need them, so `--help` is fast.
"""

from typing import TYPE_CHECKING

from ablationlab.core.lazy import lazy_exports

if TYPE_CHECKING:
    from ablationlab.cli.app import main

__all__ = ["main"]
__getattr__ = lazy_exports(__name__)  # a rank of torchrun needs none of the verbs
