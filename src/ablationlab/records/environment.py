"""Which code, which libraries, which machine: captured once, compared later."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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


def drift(sealed: Environment, now: Environment) -> tuple[str, ...]:
    """What differs between the sealed environment and this one, in words; empty when runs may be mixed."""
    differences = [
        f"{name} {sealed.versions.get(name, 'absent')} -> {now.versions.get(name, 'absent')}"
        for name in sorted(sealed.versions | now.versions)
        if sealed.versions.get(name) != now.versions.get(name)
    ]
    if sealed.code_hash != now.code_hash:
        differences.append(f"ablationlab's source {sealed.code_hash[:12]} -> {now.code_hash[:12]}")
    if sealed.processor != now.processor:
        differences.append(f"processor {sealed.processor} -> {now.processor}")
    return tuple(differences)
