"""The command line: one file per group of verbs. Heavy imports happen inside the verbs that need them."""

from ablationlab.cli.app import main

__all__ = ["main"]
