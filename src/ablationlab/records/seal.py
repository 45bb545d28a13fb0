"""The chain of hashes from the plan to the paper.

A run that ends seals its files in ``seal.json``, before result.json appears, so that no kill leaves a run that has ended and
is not sealed. Its evaluation joins the seal in the same way: the new hashes are written first, beside those that were there,
then the files. Whatever a kill leaves is one of the two; anything else was altered. analysis.json names the hashes of what it
read, verdict.json that of the analysis, and page and paper name both. `SealedRecord`s carry the hash of their own content.

This shows accidents and careless edits. Against someone who recomputes every hash, only a copy of the plan's hash that was
deposited elsewhere helps (docs/reliability.md).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field

from ablationlab.core.errors import RecordError
from ablationlab.records.storage import Record, RunFolder, content_hash, sha256_file

#: What to do about a damaged file of a run.
MEND_RUN = "Restore it, or move the run's folder away and `ablationlab run` trains it again"
#: What is said of a file that is not there.
ABSENT = ""


class AlteredError(RecordError):
    """A file that is not as it was sealed."""


class SealedRecord(Record):
    """A record that carries the hash of its own content; a changed one is not read.

    ``SEAL_OPTIONAL``: files of an earlier version carry none and are read all the same.
    """

    CHECKED: ClassVar[bool] = True
    SEAL_OPTIONAL: ClassVar[bool] = False
    seal: str = ""

    def sealed(self) -> Self:
        return self.model_copy(update={"seal": self._hash(json.loads(self.model_dump_json()))})

    def to_bytes(self) -> bytes:
        return Record.to_bytes(self.sealed())

    @classmethod
    def check(cls, data: dict[str, Any], path: Path) -> None:
        if cls.SEAL_OPTIONAL and "seal" not in data:
            return
        try:
            whole = data.get("seal") == cls._hash(data)
        except ValueError:  # a number that JSON does not have
            whole = False
        if not whole:
            raise AlteredError("is damaged: its checksum does not match", path)

    @staticmethod
    def _hash(content: dict[str, Any]) -> str:
        # Of the file's own content, so that a later version of this program, which may know more fields, finds it whole.
        return content_hash({key: value for key, value in content.items() if key != "seal"})


class RunSeal(SealedRecord):
    """runs/<id>/seal.json: SHA-256 of every file of a run that has ended, by its path in the run's folder.

    ``before``: what stood there, while files of the evaluation are being replaced.
    """

    KIND: ClassVar[str] = "seal"
    MEND: ClassVar[str] = MEND_RUN
    id: str
    plan_hash: str
    files: dict[str, str]
    before: dict[str, str] = Field(default_factory=dict)

    def allowed(self, name: str) -> tuple[str, ...]:
        """The hashes that a file may have; one that is not named must not be there."""
        return (self.files.get(name, ABSENT), *([self.before[name]] if name in self.before else []))


def seal_run(folder: RunFolder, record_id: str, plan_hash: str, files: Mapping[str, str], result: bytes) -> None:
    """Seal a run that ends: its *files*, run.json, and the result.json that is about to appear."""
    own = {folder.record.name: sha256_file(folder.record), folder.result.name: hashlib.sha256(result).hexdigest()}
    RunSeal(id=record_id, plan_hash=plan_hash, files={**own, **files}).replace(folder.seal)


def seal_evaluation(folder: RunFolder, files: Mapping[str, bytes]) -> None:
    """Announce files of the evaluation that are about to be replaced; one that was altered counts no more than before."""
    seal = RunSeal.read(folder.seal)
    before = {name: found for name in files if (found := file_hash(folder.path / name)) in seal.allowed(name)}
    now = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    seal.model_copy(update={"files": {**seal.files, **now}, "before": {**seal.before, **before}}).replace(folder.seal)


def close_evaluation(folder: RunFolder) -> None:
    """All announced files are in their place: what stood there before counts no more."""
    seal = RunSeal.read(folder.seal)
    if seal.before and all(file_hash(folder.path / name) == seal.files[name] for name in seal.before):
        seal.model_copy(update={"before": {}}).replace(folder.seal)


def check_sealed(folder: RunFolder, *paths: Path) -> None:
    """Raise `AlteredError` if files of a run are not as they were sealed when it ended, or its folder has another's name.

    Of a folder, all that was sealed in it.
    """
    seal, name = RunSeal.read(folder.seal), folder.path.absolute().name
    if seal.id != name:
        raise AlteredError(
            f"belongs to {seal.id}, not to {name}",
            folder.seal,
            f"Give the folder its name back if it was renamed. {MEND_RUN}",
        )
    for name in (path.relative_to(folder.path).as_posix() for path in paths):
        for file in [file for file in seal.files if file.startswith(f"{name}/")] or [name]:
            try:
                now = file_hash(folder.path / file)
            except RecordError as error:
                raise AlteredError(error.problem, error.path, MEND_RUN) from error
            if now not in seal.allowed(file):
                what = "is not as it was sealed when its run ended: it was changed since"
                what = what if now else "is not kept, though it was sealed when its run ended"
                raise AlteredError(what, folder.path / file, MEND_RUN)


# Files that did not change since this process hashed them, by their stamps.
_digests: dict[Path, tuple[tuple[int, ...], str]] = {}


def remember_hash(path: Path, found: os.stat_result, sha256: str) -> None:
    """The hash of a file that was read for another reason, so that it need not be read again."""
    _digests[path] = (stamp(found), sha256)


def hash_known(path: Path) -> bool:
    """Whether this process has hashed the file as it is."""
    return path in _digests and _digests[path][0] == stamp(path.stat())


def stamp(found: os.stat_result) -> tuple[int, ...]:
    """What is the same as long as a file is not changed: whoever sets its time back changes that of its inode."""
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hex; `ABSENT` where there is none."""
    try:
        found = path.stat()
        if path not in _digests or _digests[path][0] != stamp(found):
            remember_hash(path, found, sha256_file(path))
    except FileNotFoundError:
        return ABSENT
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}", path) from error
    return _digests[path][1]
