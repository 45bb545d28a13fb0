"""Weights & Biases without its package: folders of runs (`wandb/offline-run-…`), and what its pages and its API export.

A run's `.wandb` file is a LevelDB log (blocks of 32 KiB; each piece has a checksum, a length and a type) of `Record`
messages: history, summary, configuration, exit. Values are JSON. The log of a run that is being written may be cut off.
"""

from __future__ import annotations

import ast
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablationlab.analysis.trackers import wire
from ablationlab.analysis.trackers.runs import Cell, Curve, Point, TrackedRun, cells_of, repeated_step
from ablationlab.core.errors import TableError
from ablationlab.records.storage import parse_json, read_regular

_BLOCK, _HEADER = 32768, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
# Field numbers of wandb's `Record`, and of `RunRecord`.
_HISTORY, _SUMMARY, _CONFIG, _RUN, _EXIT = 2, 3, 5, 17, 18
_RUN_ID, _RUN_CONFIG, _RUN_NAME = 1, 4, 8


def is_wandb_folder(path: Path) -> bool:
    return next(path.rglob("run-*.wandb"), None) is not None


def read_wandb_folder(path: Path) -> list[TrackedRun]:
    return [_read(file, path) for file in sorted(path.rglob("run-*.wandb")) if "latest-run" not in file.parts]


def _read(file: Path, root: Path) -> TrackedRun:
    cells: dict[str, Cell] = {}
    points: dict[str, list[tuple[float, float]]] = {}
    name, state = file.parent.name, "running"
    try:
        for record in _records(file):
            for number, content in wire.fields(record):
                if not isinstance(content, bytes):
                    continue
                if number == _RUN:
                    name = wire.text(content, _RUN_NAME) or wire.text(content, _RUN_ID) or name
                    for config in wire.inner(content, _RUN_CONFIG):
                        cells |= _items(config, "config")
                elif number == _CONFIG:
                    cells |= _items(content, "config")
                elif number == _SUMMARY:
                    cells |= _items(content, "summary")
                elif number == _HISTORY:
                    _add_history(content, points)
                elif number == _EXIT:
                    state = "finished" if wire.whole(content, 1) == 0 else "failed"
    except (ValueError, OSError, struct.error) as error:
        raise TableError(str(file), [f"is not a log of wandb: {error}"]) from error
    curves = {key: Curve.of(values) for key, values in points.items()}
    return TrackedRun(file.parent.relative_to(root).as_posix(), name, cells, curves, state)


def _records(path: Path) -> Iterator[bytes]:
    data = read_regular(path, most=None)
    if data[:4] != b":W&B":
        raise ValueError("its header is another")
    at, whole = _HEADER, b""
    while at + _HEADER <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left  # the rest of a block is padding
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        at += _HEADER
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or at + length > len(data):
            return  # it is being written
        piece = data[at : at + length]
        at += length
        whole = piece if kind in (_FULL, _FIRST) else whole + piece
        if kind in (_FULL, _LAST):
            yield whole


def _items(message: bytes, prefix: str) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for item in wire.inner(message, 1):
        value = parse_json(wire.text(item, 16) or "null")
        key = _key(item)
        if not key.startswith("_"):
            cells |= cells_of({key: value}, f"{prefix}.")
    return cells


def _key(item: bytes) -> str:
    return wire.text(item, 1) or ".".join(part.decode(errors="replace") for part in wire.inner(item, 2))


def _add_history(message: bytes, points: dict[str, list[tuple[float, float]]]) -> None:
    values = {_key(item): parse_json(wire.text(item, 16) or "null") for item in wire.inner(message, 1)}
    step = values.get("_step")
    if step is None:
        step = wire.whole(wire.first(message, 2) or b"", 1)
    for key, value in cells_of(values).items():
        number = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.get(str(value), value)
        if not key.startswith("_") and isinstance(number, int | float) and not isinstance(number, bool):
            points.setdefault(key, []).append((float(step), float(number)))


# --- exported tables ------------------------------------------------------------------------------------------

_CHART = re.compile(r"(?P<run>.+) - (?P<metric>.+?)(?P<bound>__MIN|__MAX)?")


def is_chart_export(heads: Sequence[str]) -> bool:
    """A chart downloaded as CSV: a step, then `run - metric` and its bounds."""
    if len(heads) < 2 or heads[0].strip().lower() not in ("step", "global_step", "epoch", "relative time (process)"):
        return False
    return all(_CHART.fullmatch(head) for head in heads[1:]) and any(head.endswith("__MIN") for head in heads)


def chart_runs(heads: Sequence[str], rows: Sequence[tuple[str, Sequence[Cell]]]) -> list[TrackedRun]:
    """The runs of a chart; *rows* are (place, cells). Two runs of one name are two columns of one name."""
    points: dict[str, dict[str, list[Point]]] = {}
    for column, head in enumerate(heads[1:], start=1):
        match = _CHART.fullmatch(head)
        if match is None or match["bound"] or match["metric"] == "_step":
            continue
        curve = points.setdefault(match["run"], {}).setdefault(match["metric"], [])
        for place, cells in rows:
            if cells[column] not in (None, "") and cells[0] not in (None, ""):
                try:
                    step, value = float(str(cells[0])), float(str(cells[column]))
                except ValueError:
                    continue
                curve.append(Point(f"{place}, column {column + 1}", step, value))
    advice = "Give each run a name of its own, then export the chart again"
    return [
        TrackedRun(
            *(run, run, {}),
            {metric: Curve.of((p.step, p.value) for p in curve) for metric, curve in curves.items()},
            unreadable={
                metric: problem for metric, curve in curves.items() if (problem := repeated_step(curve, advice))
            },
        )
        for run, curves in points.items()
    ]


def unfolded(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Columns `config` and `summary` that hold whole dictionaries, as the API's example exports them, as single cells."""
    made: dict[str, Cell] = {}
    for name, cell in cells.items():
        inner = _dictionary(cell) if name in ("config", "summary") else None
        made |= {name: cell} if inner is None else cells_of(inner, f"{name}.")
    return made


def _dictionary(cell: object) -> dict[str, Any] | None:
    if isinstance(cell, Mapping):
        return dict(cell)
    if not isinstance(cell, str) or not cell.lstrip().startswith("{"):
        return None
    for parse in (parse_json, ast.literal_eval):
        try:
            parsed = parse(cell)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return parsed if isinstance(parsed, dict) else None
    try:  # Python's own nan and inf are no literals
        parsed = ast.literal_eval(re.sub(r"(?<=[ :\[])(-?)(nan|inf)\b", r"\g<1>1e999", cell))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return parsed if isinstance(parsed, dict) else None
