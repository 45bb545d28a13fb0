"""How scores are made: device, precision, width, and the exact harness and code. Imports neither the harness nor torch."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import ablationlab
from ablationlab.core.errors import DataError
from ablationlab.records.evaluation import HowPart

NAME = "lm_eval"
_LIBRARIES = ("torch", "numpy", "lm_eval", "datasets")


def how_part(device: str, name: str, width: int) -> HowPart:
    """What every run that is compared must have in common."""
    versions = {library: version(library) for library in _LIBRARIES}
    return HowPart(
        device=device,
        device_name=name,
        precision="fp32",
        stack_width=width,
        harness=harness_version(),
        harness_sha256=harness_sha256(),
        versions=versions | {"evaluation code": _code_hash()},
    )


@cache
def harness_version() -> str:
    """Name and version."""
    return f"{NAME} {version(NAME)}"


@cache
def harness_sha256() -> str:
    """Hash of the installed files that make scores: everything but the task definitions, which have hashes of their own."""
    spec = find_spec(NAME)
    if spec is None or spec.origin is None:
        raise DataError(f"{NAME} is not installed; install ablationlab with its dependencies")
    root = Path(spec.origin).parent
    found = []
    for folder, inner, files in os.walk(root):
        if Path(folder) == root / "tasks":
            inner.clear()  # fourteen thousand files of definitions
        found += [Path(folder) / name for name in files if name.endswith(".py")]
    total = hashlib.sha256()
    for path in sorted(found):
        total.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def _code_hash() -> str:
    """Hash of the sources that make scores."""
    package = Path(ablationlab.__file__).parent
    total = hashlib.sha256()
    for path in sorted(path for name in ("evaluation", "model", "tasks") for path in (package / name).rglob("*.py")):
        total.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:16]
