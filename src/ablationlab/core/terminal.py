"""Where output goes."""

from __future__ import annotations

from rich.console import Console


def console() -> Console:
    """A console that does not fold what goes to a file or a pipe at 80 columns."""
    made = Console()
    return made if made.is_terminal else Console(width=max(made.width, 200))
