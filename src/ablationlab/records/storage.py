"""How anything of ours reaches the disk: atomically, durably, checksummed, and never by overwriting.

A file appears under its name only when it is whole: it is written beside its place, flushed to the device, then renamed
or linked. Errors of the disk become one `StorageError` that says nothing was lost.

`StoredValue` and `Record` are what every record is made of. Values that JSON lacks (NaN, infinities) are written as strings.
Reading validates; a damaged or foreign file raises `RecordError`. `ResultsFolder` and `RunFolder` say where files lie.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from ablationlab.core.errors import AblationLabError, RecordError, StorageError
from ablationlab.core.format import count

SCHEMA_VERSION = 4
TEMPORARY = ".tmp-"
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
#: What validators are told of content that a record holds, and no user wrote.
ON_DISK = {"source": "record"}
#: Bytes of one record: the curves of a run of ten million steps have about half of it.
LARGEST_RECORD = 2 << 30
#: Bytes of a TOML file that a user writes: 20,000 seeds, one by one, have about half of it.
LARGEST_TOML = 1 << 18
#: A key of two hundred parts.
_LONG_KEY = re.compile(r"""(?<![\w"'-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){200}""")
#: What is said of a number in TOML that Python's int() refuses.
TOO_LONG = f"holds a whole number of more than {count(sys.get_int_max_str_digits())} digits"
#: What to do about a lost or damaged plan, look or amendment.
MEND_PLAN = "Restore it: the runs are judged by it"
# What link() says where there are no hard links.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NO_PLACE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG}


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says while writing *path* into a `StorageError`."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            why = "the disk (or a quota on it) is full; free some space"
        elif error.errno in _NO_PLACE:
            why = f"{error.strerror}: the folder cannot be written; choose another with --out"
            raise StorageError(f"cannot write {path}: {why}") from error
        else:
            why = error.strerror or str(error)
        raise StorageError(
            f"cannot write {path}: {why}. What was finished before is intact; run the same command again."
        ) from error


def sync_folder(folder: Path) -> None:
    """Make renames inside *folder* durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Create a folder and those above it durably: each new name is flushed with the folder that holds it."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def write_bytes(path: Path, data: bytes, *, of: Path | None = None) -> None:
    """Write and flush to the device; not atomic by itself. Errors speak of the file *of* that it becomes."""
    with storage_errors(of or path), path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _temporary(path: Path, data: bytes) -> Iterator[Path]:
    """A file beside *path* with its content, flushed to the device. It is locked as long as it is needed, which tells it
    from what a killed writer left (`sweep_abandoned`)."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{secrets.token_hex(4)}")
    with storage_errors(path):
        make_folder(path.parent)
        with ExitStack() as written:
            written.callback(temporary.unlink, missing_ok=True)
            file = written.enter_context(temporary.open("xb"))
            with suppress(OSError):  # a file system without locks, where nothing is swept either
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            held = written.pop_all()
    with held:
        yield temporary


def create(path: Path, data: bytes) -> None:
    """Create *path* whole and durably; `FileExistsError` if it is there already, which also settles races."""
    with _temporary(path, data) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise
        except OSError as error:
            # exFAT and some network file systems have no links: two writers in the same moment are not told apart there.
            if error.errno in _NO_LINKS and path.exists():
                raise FileExistsError(path) from error
            with storage_errors(path):
                if error.errno not in _NO_LINKS:
                    raise error
                temporary.rename(path)
        with storage_errors(path):
            sync_folder(path.parent)


def replace(path: Path, data: bytes) -> None:
    """Write *path* whole and durably, taking the place of an older version (for derived files only)."""
    with _temporary(path, data) as temporary, storage_errors(path):
        temporary.replace(path)
        sync_folder(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that appears under *path* with everything written into it, or not at all."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{secrets.token_hex(4)}")
    with storage_errors(path):
        make_folder(path.parent)
        temporary.mkdir()
    try:
        yield temporary
        with storage_errors(path):
            sync_folder(temporary)
            temporary.rename(path)
            sync_folder(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove what a killed writer left behind in *folder*; call it only while holding that folder's lock."""
    for leftover in folder.glob(f"{TEMPORARY}*"):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def sweep_abandoned(folder: Path) -> None:
    """Remove the files that killed writers left behind in *folder*, which nobody need have locked."""
    for leftover in folder.glob(f"{TEMPORARY}*"):
        with suppress(OSError, RecordError), open_regular(leftover, most=None) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # its writer lives if this fails
            leftover.unlink()


def sha256_file(path: Path) -> str:
    with open_regular(path, most=None) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no spaces: the form that is hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def content_hash(value: Any) -> str:
    """SHA-256 of a JSON-able value in its canonical form."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def not_a_link(path: Path) -> None:
    """Refuse to write through a link: it may lead out of the folder."""
    if path.is_symlink():
        raise StorageError(f"{path} is a link, which may lead out of its folder; remove it, and run the command again")


class Lock:
    """An exclusive lock between processes, released by the kernel when its holder dies, however it dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    def acquire(self) -> bool:
        """Take the lock if it is free; never waits."""
        with storage_errors(self.path):
            make_folder(self.path.parent)
            handle = self._open(os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        except OSError as error:
            os.close(handle)
            raise StorageError(
                f"cannot lock {self.path}: {error.strerror}. This file system has no locks between processes (some network "
                "file systems are mounted without them); choose a folder on another with --out"
            ) from error
        try:
            with storage_errors(self.path):
                os.ftruncate(handle, 0)
                os.write(handle, f"{os.getpid()}\n".encode())
        except StorageError:
            os.close(handle)
            raise
        self._handle = handle
        return True

    def _open(self, flags: int) -> int:
        """Its file and nothing else: a link may lead out of the folder, and a pipe would wait."""
        handle = os.open(self.path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise StorageError(f"{self.path} is no regular file; remove it, and run the command again")
        return handle

    def held_elsewhere(self) -> bool:
        """Whether another process holds it; takes nothing and writes nothing."""
        try:
            handle = self._open(os.O_RDONLY)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StorageError(f"cannot read {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks, where nobody can hold one
            return False
        finally:
            os.close(handle)
        return False

    def descriptors(self) -> tuple[int, ...]:
        """For a child that is to hold the lock too, as long as it lives."""
        return () if self._handle is None else (self._handle,)

    def release(self) -> None:
        """Give the lock back; the file stays, so that two processes never lock different files of one name."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def holder(self) -> str:
        """The process id that wrote itself into the lock file last, for messages."""
        try:
            return read_regular(self.path).decode(errors="replace").strip() or "unknown"
        except (OSError, RecordError):
            return "unknown"


def read_json(path: Path) -> Any:
    """Parse a JSON file of ours; a damaged one is named."""
    return _json(path, _content(path))


def _content(path: Path) -> bytes:
    try:
        return read_regular(path)
    except FileNotFoundError:
        raise RecordError("does not exist", path) from None
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}", path) from error


def _json(path: Path, content: bytes) -> Any:
    try:
        return parse_json(content)
    except ValueError as error:
        raise RecordError(f"cannot be read as JSON: {error}", path) from error


def parse_json(content: bytes | str) -> Any:
    """Parse JSON from elsewhere; whatever is wrong with it is a `ValueError`."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _descriptor(path: Path) -> int:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # without waiting for the writer of a pipe
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise RecordError("is not a regular file", path)
    return handle


@contextmanager
def open_regular(path: Path, *, most: int | None = LARGEST_RECORD) -> Iterator[BufferedReader]:
    """A file to read that is one; a device or a pipe, which would never end, is refused, and so is one beyond any record.

    Weights may have any size: *most* is None.
    """
    with os.fdopen(_descriptor(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise RecordError(f"has {count(size)} bytes; no record has more than {count(most)}", path)
        yield file


def read_regular(path: Path, *, most: int | None = LARGEST_RECORD) -> bytes:
    """The bytes of a file, by the same rules."""
    with open_regular(path, most=most) as file:
        return file.read()


def user_text(path: Path, kind: str, most: int = LARGEST_RECORD) -> str:
    """The text of a file of that *kind* that a user names; an `AblationLabError` says what is wrong with it, not its name."""
    try:
        if path.is_dir():
            raise AblationLabError(f"is a folder, not a {kind}")
        if (size := path.stat().st_size) > most:
            raise AblationLabError(f"has {count(size)} bytes; no {kind} has more than {count(most)}")
        return read_regular(path, most=most).decode("utf-8-sig")
    except FileNotFoundError:
        raise AblationLabError(f"no such {kind}") from None
    except RecordError as error:  # a pipe, whose writer nobody waits for, or a device
        raise AblationLabError(error.text) from None
    except OSError as error:
        raise AblationLabError(f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise AblationLabError(f"is not UTF-8 at byte {error.start}") from error


def user_tables(path: Path, kind: str) -> dict[str, Any]:
    """The tables of a TOML file, by the same rules."""
    try:
        text = user_text(path, kind, LARGEST_TOML)
        if _LONG_KEY.search(text):  # the time that tomllib takes grows with its square
            raise AblationLabError("tables and lists are nested too deeply")
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise AblationLabError(f"is not TOML: {error}") from error
    except RecursionError:
        raise AblationLabError("tables and lists are nested too deeply") from None
    except ValueError:
        raise AblationLabError(TOO_LONG) from None


# --- records ----------------------------------------------------------------------------------------------------


class StoredValue(BaseModel):
    """A frozen piece of a record."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Record(StoredValue):
    """A file. ``kind`` tells files apart that were moved out of their folder; ``MEND``: what to do about a damaged one."""

    KIND: ClassVar[str]
    VERSION: ClassVar[int] = SCHEMA_VERSION
    MEND: ClassVar[str] = "Restore it, or make it again"
    #: Whether the content is checked beyond its types; that takes a second parse.
    CHECKED: ClassVar[bool] = False
    schema_version: int = 0
    kind: str = ""

    def model_post_init(self, context: Any) -> None:
        """Fill in the version, fill in or check the kind."""
        if not self.schema_version:
            object.__setattr__(self, "schema_version", self.VERSION)
        if "kind" not in self.model_fields_set:
            object.__setattr__(self, "kind", self.KIND)
        elif self.kind != self.KIND:
            raise ValueError(f"kind is {self.kind!r}, not {self.KIND!r}")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Load and validate one file."""
        try:
            return cls._read(path)
        except RecordError as error:
            raise error.mended_by(cls.MEND) from error

    @classmethod
    def _read(cls, path: Path) -> Self:
        content = _content(path)
        if not cls.CHECKED:
            with suppress(ValidationError):  # what is wrong is found below
                record = cls.model_validate_json(content, context=ON_DISK)
                if record.model_fields_set >= {"kind", "schema_version"} and record.schema_version == cls.VERSION:
                    return record
        data = _json(path, content)
        kind = data.get("kind") if isinstance(data, dict) else None
        if kind != cls.KIND:
            raise RecordError(f"is not a {cls.KIND} record (kind = {kind!r})", path)
        if data.get("schema_version") != cls.VERSION:
            version = data.get("schema_version")
            raise RecordError(f"has schema version {version!r}; this program reads {cls.VERSION}", path)
        cls.check(data, path)
        del data  # an analysis of many runs is large, and need not be held twice
        try:
            # By the rules of JSON, where a list is a tuple: settings are strict.
            return cls.model_validate_json(content, context=ON_DISK)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise RecordError(f"{where}: {first['msg']}", path, joint=": ") from error

    @classmethod
    def check(cls, data: dict[str, Any], path: Path) -> None:
        """Refuse content that a kind of record does not allow."""

    def to_bytes(self) -> bytes:
        return (self.model_dump_json(indent=1) + "\n").encode()

    def create(self, path: Path) -> None:
        """Write a new file; never overwrites."""
        create(path, self.to_bytes())

    def replace(self, path: Path) -> None:
        """Write a derived file; an older one is replaced."""
        replace(path, self.to_bytes())


# --- folders ----------------------------------------------------------------------------------------------------


class RunFolder:
    """The paths inside ``runs/<id>/``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = path / "run.json"
        self.metrics = path / "metrics.jsonl"
        self.probes = path / "probes.jsonl"
        self.probe_table = path / "probes.parquet"
        self.result = path / "result.json"
        self.seal = path / "seal.json"
        self.failure = path / "failure.json"
        self.checkpoints = path / "checkpoints"

    @property
    def done(self) -> bool:
        """Whether the run has its result, and the record that the result belongs to."""
        return os.path.lexists(self.result) and self.record.exists()


#: Where training and scoring write in a results folder.
_WRITTEN = (
    *("runs", "runs/*", "locks", "use", "energy", "looks", "amendments"),
    *("evaluation", "evaluation/*", "evaluation/tasks/*", "calibration", "calibration/*", "calibration/*/*"),
)


class ResultsFolder:
    """The paths inside ``results/<study>/``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan = path / "plan.lock"
        self.runs = path / "runs"
        self.locks = path / "locks"
        self.code = path / "use"  # copies of the study's own code

    def run(self, run_id: str) -> RunFolder:
        return RunFolder(inside(self.runs, run_id))

    def check_planned(self) -> None:
        """Refuse a folder without a plan; a plan that cannot be read is there."""
        if not os.path.lexists(self.plan):
            if any(self.runs.glob("*/run.json")):
                raise RecordError("is missing", self.plan, MEND_PLAN)
            raise RecordError(
                f"{self.path} is not a results folder of a study: it has no {self.plan.name}. Name a folder that has one, or "
                "a study file"
            )

    def check_unplanned(self) -> None:
        """Refuse a folder that lost its plan: its runs are judged by the one they were trained under, not by a later one."""
        if os.path.lexists(self.plan) or any(self.runs.glob("*/run.json")):
            raise RecordError(
                f"{self.plan} cannot be found, and there are runs in {self.runs} that were trained under it. Restore it, or "
                "use another --out"
            )

    def check_links(self) -> None:
        """Refuse links in the place of folders that training and scoring write into: they may lead out of this one."""
        for pattern in _WRITTEN:
            for folder in self.path.glob(pattern):
                not_a_link(folder)

    def stack_lock(self, stack: int) -> Path:
        return self.locks / f"stack-{stack:04d}"


def is_folder(path: Path) -> bool:
    """Whether there is a folder; anything else in its place, which would pass for none, is refused."""
    if not path.is_dir() and os.path.lexists(path):
        raise RecordError("is neither a folder nor a link to one", path, "Restore the folder, or move this away")
    return path.is_dir()


def numbered(folder: Path, digits: int = 4) -> list[Path]:
    """The records 0001.json, 0002.json and so on of a folder, which need not be there, in their order.

    A number has one name: 00001.json would be a second record of the same number, so it is none.
    """
    files = [file for file in folder.glob("*.json") if re.fullmatch("[0-9]+", file.stem)] if is_folder(folder) else []
    named = {int(file.stem): file for file in files if file.stem == f"{int(file.stem):0{digits}d}"}
    return [named[number] for number in sorted(named)]


def next_numbered(folder: Path) -> Path:
    """The name of the next record of such a folder, whichever of the earlier ones are there."""
    files = numbered(folder)
    return folder / f"{int(files[-1].stem) + 1 if files else 1:04d}.json"


def inside(root: Path, name: str) -> Path:
    """``root/name``; a name from a record that leads out of *root* is refused."""
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in name or "\\" in name:
        raise RecordError(f"{name!r} is not the name of a file in {root}: it would lead elsewhere")
    return root.joinpath(*parts)


def timestamp() -> str:
    """Now, in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def slug(text: str) -> str:
    """A readable, safe folder name: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60]
