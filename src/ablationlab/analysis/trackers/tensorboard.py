"""TensorBoard event files: a folder of runs, each with its scalars by step. Needs no TensorBoard.

A file is a row of records: length (8 bytes), its checksum (4), an `Event` message, its checksum (4). Scalars are written as
`simple_value` or, by TensorFlow 2, as a tensor of one number. The last record of a file that is being written may be cut off.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from ablationlab.analysis.trackers import wire
from ablationlab.analysis.trackers.runs import Curve, TrackedRun
from ablationlab.core.errors import TableError
from ablationlab.core.grouping import grouped
from ablationlab.records.storage import read_regular

PATTERN = "*events.out.tfevents.*"


def is_event_folder(path: Path) -> bool:
    return next(path.rglob(PATTERN), None) is not None


def read_event_folder(path: Path) -> list[TrackedRun]:
    """One run per folder that holds event files, named by its path; several files of a folder are one run."""
    runs = []
    for folder, paths in grouped((file.parent, file) for file in sorted(path.rglob(PATTERN))).items():
        points = grouped((tag, (step, value)) for file in paths for tag, step, value in scalars(file))
        name = folder.relative_to(path).as_posix() if folder != path else path.name
        curves = {tag: Curve.of(values) for tag, values in points.items()}
        runs.append(TrackedRun(place=name, name=name, cells={}, curves=curves))
    return runs


def scalars(path: Path) -> Iterator[tuple[str, int, float]]:
    """(tag, step, value) in the order they were written."""
    try:
        for event in _records(path):
            step = wire.whole(event, 2)
            for summary in wire.inner(event, 5):
                for value in wire.inner(summary, 1):
                    number = _scalar(value)
                    if number is not None:
                        yield wire.text(value, 1), step, number
    except (ValueError, OSError) as error:
        raise TableError(str(path), [f"is not an event file: {error}"]) from error


def _records(path: Path) -> Iterator[bytes]:
    data = read_regular(path, most=None)
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        end = at + 12 + length
        if end + 4 > len(data):
            return  # it is being written
        yield data[at + 12 : end]
        at = end + 4


def _scalar(value: bytes) -> float | None:
    """`simple_value`, or a tensor of one float, double or integer."""
    for number, content in wire.fields(value):
        if number == 2 and isinstance(content, bytes) and len(content) == 4:
            return wire.floats(content, "f")[0]
        if number == 8 and isinstance(content, bytes):
            return _tensor(content)
    return None


def _tensor(tensor: bytes) -> float | None:
    form = {1: "f", 2: "d"}.get(wire.whole(tensor, 1))
    if form is None:
        return None
    content = wire.first(tensor, 4) or wire.first(tensor, 5 if form == "f" else 6) or b""
    values = wire.floats(content, form) if len(content) % struct.calcsize(form) == 0 else []
    return values[0] if len(values) == 1 else None
