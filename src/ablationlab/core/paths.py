"""Paths that a user writes or names. What leads nowhere (a loop of links, the home of nobody) stays as it is, for whoever
opens it to name; `Path.resolve` and `Path.expanduser` raise RuntimeError."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ablationlab.core.errors import nearest


def real_path(path: Path) -> Path:
    """The same place as a whole path without links."""
    return Path(os.path.realpath(path))


def with_home(path: str) -> Path:
    """A path as a user writes it: `~` is the home."""
    return Path(os.path.expanduser(Path(path)))  # noqa: PTH111


def did_you_mean_beside(path: Path) -> str:
    """Behind a message that *path* is not there: ``; did you mean 'results/mine'?``, if that one is."""
    guess = nearest_beside(path)
    return f"; did you mean '{path.with_name(guess)}'?" if guess else ""


def nearest_beside(path: Path) -> str | None:
    """The name in the folder of *path* that is most like its own."""
    with suppress(OSError):
        return nearest(path.name, sorted(other.name for other in path.parent.iterdir()))
    return None


def user_path(path: str, folder: Path = Path()) -> Path:
    """Where a path leads that a user writes, seen from *folder*."""
    return real_path(folder / with_home(path))
