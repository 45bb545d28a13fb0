"""The command line: one file per group of verbs, `app` with the command itself, `torchrun` for ranks.

Heavy imports happen inside the verbs that need them, so `--help` is fast.
"""

from ablationlab.cli.app import main

__all__ = ["main"]
