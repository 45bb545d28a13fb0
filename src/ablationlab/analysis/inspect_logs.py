"""inspect_ai's logs as item scores: `.eval` (a zip of JSON files) and `.json`. Needs no inspect_ai.

A log is one task of one run. A sample pairs by its id, and by the hash of its input, target and choices. Samples that were
asked several times (epochs) count with their mean.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Final
from zipfile import BadZipFile, ZipFile, ZipInfo

from ablationlab.core.errors import RecordError, TableError, did_you_mean
from ablationlab.records.storage import open_regular, parse_json, read_regular

SUFFIXES: Final = (".eval", ".json")
_ZSTD = 93
_LARGEST = 1 << 28  # bytes of one sample
#: What inspect_ai's scorers write for correct, partly correct, incorrect and no answer.
_GRADES: Final[Mapping[str, float]] = {
    "c": 1.0, "p": 0.5, "i": 0.0, "n": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0
}  # fmt: skip


def is_log(path: Path) -> bool:
    """Whether a file is a log: any `.eval`, and a `.json` that says of what it is the evaluation."""
    if path.suffix == ".eval":
        return True
    if path.suffix != ".json" or path.name in ("results.json", "comparison.json"):
        return False
    try:
        with open_regular(path, most=None) as file:
            start = file.read(4096)
    except (OSError, RecordError):
        return False
    return b'"eval"' in start and b'"status"' in start


def task_of(path: Path) -> str:
    """The task that a log is about, as `inspect` names it."""
    return str(_header(path)["eval"].get("task", path.stem)).rpartition("/")[2]


def read_log(path: Path, metric: str | None) -> tuple[str, dict[str, tuple[tuple[str, ...], float, int | None]]]:
    """(scorer, {sample id: (identity, score, number of choices)}); raises `TableError` for a log that did not finish."""
    header = _header(path)
    if header.get("status") != "success":
        raise TableError(
            str(path), [f"its status is {header.get('status')!r}: only evaluations that finished are compared"]
        )
    scores: dict[str, list[float]] = {}
    about: dict[str, tuple[tuple[str, ...], int | None]] = {}
    chosen = metric
    for sample in _samples(path):
        if not isinstance(sample, dict) or not isinstance(sample.get("scores") or {}, dict):
            raise TableError(str(path), ["holds a sample that is none of inspect_ai"])
        values = dict(_values(sample.get("scores") or {}))
        chosen = chosen or _only(path, values)
        key = str(sample.get("id"))
        if chosen not in values:
            there = f"{', '.join(values) or 'none'}{did_you_mean(chosen, values)}"
            raise TableError(str(path), [f"sample {key} has no score {chosen!r}; it has: {there}"])
        number = _number(values[chosen])
        if number is None:
            raise TableError(
                str(path), [f"sample {key}: {chosen} is {repr(values[chosen])[:60]}, not a number or a grade"]
            )
        choices = sample.get("choices")
        identity = (question_hash(sample.get("input"), sample.get("target"), choices),)
        about[key] = identity, len(choices) if choices and isinstance(choices, list) else None
        scores.setdefault(key, []).append(number)
    if not scores or chosen is None:
        raise TableError(str(path), ["holds no samples"])
    return chosen, {key: (about[key][0], fmean(found), about[key][1]) for key, found in scores.items()}


def _only(path: Path, values: Mapping[str, Any]) -> str:
    if len(values) == 1:
        return next(iter(values))
    raise TableError(str(path), [f"choose one of its scores with --metric: {', '.join(values) or 'none'}"])


def _values(scores: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(name, value) of every score; a score of several values gives `scorer/key`."""
    for scorer, score in scores.items():
        value = score.get("value") if isinstance(score, Mapping) else score
        if isinstance(value, Mapping):
            yield from ((f"{scorer}/{key}", inner) for key, inner in value.items())
        else:
            yield scorer, value


def _number(value: Any) -> float | None:
    if not isinstance(value, str):
        return finite(value) if isinstance(value, int | float) else None
    text = value.strip().lower()
    return _GRADES[text] if text in _GRADES else finite(text)


def question_hash(*parts: Any) -> str:
    """Tells questions apart by all that a log's JSON may hold: also NaN and lone surrogates, which no record of ours does."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def finite(value: float | str) -> float | None:
    """A number that a float holds; None of any other, and of a text that is none."""
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _header(path: Path) -> dict[str, Any]:
    content = next(_files(path, "header.json"), None) if path.suffix == ".eval" else _whole(path)
    if not isinstance(content, dict) or not isinstance(content.get("eval"), dict):
        text = "is not a log of inspect_ai, or of an evaluation that has not ended: it has no header"
        raise TableError(str(path), [text])
    return content


def _samples(path: Path) -> Iterator[Any]:
    if path.suffix == ".eval":
        return _files(path, "samples/")
    samples = _whole(path).get("samples")
    return iter(samples if isinstance(samples, list) else ())


def _whole(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(read_regular(path))
    except (OSError, ValueError) as error:
        raise TableError(str(path), [f"cannot be read: {error}"]) from error
    return content if isinstance(content, dict) else {}


def _files(path: Path, start: str) -> Iterator[Any]:
    """The JSON files of a zip whose names begin so."""
    try:
        with open_regular(path, most=None) as file, ZipFile(file) as archive:
            for info in archive.infolist():
                if info.filename.startswith(start) and info.filename.endswith(".json"):
                    if info.file_size > _LARGEST:
                        raise ValueError(f"{info.filename} has {info.file_size} bytes")
                    yield parse_json(_content(archive, info))
    except (OSError, ValueError, RuntimeError, EOFError, BadZipFile, struct.error, zlib.error) as error:
        raise TableError(str(path), [f"cannot be read as a log of inspect_ai: {error}"]) from error


def _content(archive: ZipFile, info: ZipInfo) -> bytes:
    """A file of the archive; Python before 3.14 cannot unpack Zstandard by itself."""
    if info.compress_type != _ZSTD:
        return archive.read(info)
    import pyarrow as pa

    file = archive.fp
    assert file is not None
    file.seek(info.header_offset + 26)
    names = sum(struct.unpack("<HH", file.read(4)))
    file.seek(info.header_offset + 30 + names)
    unpacked: bytes = pa.Codec("zstd").decompress(
        file.read(info.compress_size), decompressed_size=info.file_size, asbytes=True
    )
    return unpacked
