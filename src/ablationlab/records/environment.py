"""Which code, which libraries, which machine: captured once, compared later."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ablationlab.records.storage import StoredValue

PACKAGE = Path(__file__).parents[1]
# Libraries whose version can change the numbers of a run.
LIBRARIES = ("ablationlab", "torch", "numpy", "safetensors")
# The part of this package that makes the numbers of a run; the rest (reports, command line) may change freely.
NUMERIC = ("core/seeding.py", "data", "model", "records/settings.py", "study/variants.py", "training")


class Git(StoredValue):
    """State of the checkout that the program ran from; None where there is none."""

    commit: str | None = None
    dirty: bool | None = None


class Environment(StoredValue):
    """What could make the same study give other bits."""

    versions: dict[str, str]
    platform: str
    processor: str
    code_hash: str
    git: Git


class Drift(StoredValue):
    """One thing that is not as it was sealed."""

    what: str
    """A library, `ablationlab's source`, `processor`, a field of an execution, or a file of the trainer's command."""
    sealed: str
    """What it was."""
    now: str
    """What it is."""

    def __str__(self) -> str:
        return f"{self.what} {self.sealed} -> {self.now}"


@cache
def code_hash() -> str:
    """Hash of the sources that make the numbers, so that a changed line between two runs of one study is noticed."""
    total = hashlib.sha256()
    for file in sorted(file for name in NUMERIC for file in _sources(PACKAGE / name)):
        total.update(file.relative_to(PACKAGE).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return total.hexdigest()


def _sources(path: Path) -> list[Path]:
    return list(path.rglob("*.py")) if path.is_dir() else [path]


@cache
def git_state(folder: Path) -> Git:
    """Commit and dirtiness of the checkout around *folder* when first asked, or nothing where there is none."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return Git(commit=commit, dirty=bool(_git(folder, "status", "--porcelain")))
    except (OSError, subprocess.SubprocessError):
        return Git()


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()


@cache
def processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith(("model name", "cpu part")):
                return f"{platform.machine()} {line.split(':', 1)[1].strip()}"
    except OSError:
        pass
    return platform.processor() or platform.machine()


@cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed as a package"


def current() -> Environment:
    return Environment(
        versions={"python": platform.python_version(), **{name: _version(name) for name in LIBRARIES}},
        platform=platform.platform(),
        processor=processor(),
        code_hash=code_hash(),
        git=git_state(PACKAGE),
    )


def drift(sealed: Environment, now: Environment) -> tuple[Drift, ...]:
    """What differs between the sealed environment and this one; empty when runs may be mixed."""
    before, after = (
        {**each.versions, "ablationlab's source": each.code_hash[:12], "processor": each.processor}
        for each in (sealed, now)
    )
    return changes(before, after)


def changes(sealed: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Drift, ...]:
    """What differs, key by key."""
    return tuple(
        Drift(what=key, sealed=str(sealed.get(key, "absent")), now=str(now.get(key, "absent")))
        for key in sorted({**sealed, **now})
        if sealed.get(key) != now.get(key)
    )
