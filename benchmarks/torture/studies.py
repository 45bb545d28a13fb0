"""Mutated study files: each must be planned, or refused with one clear message, within its limits of time and memory.

Every file is planned by a process of its own, forked from this one after the imports. Fields are taken from the schema that
`ablationlab schema` prints, so that a new setting is attacked without a line here.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS, MEMORY = 20, 8 << 30
STUDIES = Path(__file__).parents[2] / "studies"
BASES = (
    "quick",
    "embedding-norm",
    "embedding-norm-stability-quick",
    "embedding-norm-factorial-quick",
    "validation-quick",
)

#: Values that no setting takes, or that are too large, too small, too long, of another kind.
HOSTILE: tuple[Any, ...] = (
    *(0, -1, 1, 2, 7, 9973, 100_000, 2**31, 2**63 - 1, 10**18),
    *(0.0, -0.0, -1.5, 1e-320, 1e-30, 0.5, 1.0, 1e30, 1e308, float("nan"), float("inf"), float("-inf")),
    *(
        True,
        False,
        "",
        " ",
        "a",
        "none",
        "auto",
        "all",
        "../../x",
        "/etc/passwd",
        "~",
        "\x1b[31mred",
        "\u202eabc",
        "é" * 200,
    ),
    *("x" * 100_000, "=1+1", "<script>", "$x$", "#import", "a\nb", "NaN", "1e5", "{}", "%s%n"),
    *([], [[]], [1], [1, 1], ["none"], [0.1, 0.2], [{}], list(range(5_000)), ["none"] * 1_000),
    *("x" * 9_999, "x" * 300_000, list(range(19_999)), [f"n{number}" for number in range(999)], list(range(300_000))),
    *({}, {"": 1}, {"a": 1}, {"first": 1, "count": 20_000}, {"first": 0, "count": 10**12}, {"none": {}}),
)


@dataclass(frozen=True)
class Outcome:
    """How `plan` of one file ended."""

    what: str
    kind: str  # planned, refused, bug, killed (time, memory or a signal), traceback
    seconds: float
    message: str


def written(table: Mapping[str, Any]) -> str:
    """Nested tables as TOML, every table inline: the shortest writer that `tomllib` reads back."""
    return "".join(f"{json.dumps(key)} = {_value(value)}\n" for key, value in table.items())


class Raw(str):
    """A value that is TOML already."""


def _value(value: Any) -> str:
    if isinstance(value, Raw):
        return value
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value)
    return repr(value)


def fields(schema: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The path of every setting of the schema; a list of tables counts by its first, a table of tables by one called x."""
    paths: list[tuple[str, ...]] = []

    def walk(node: Mapping[str, Any], path: tuple[str, ...]) -> None:
        node = _resolved(node, schema)
        if len(path) > 6:
            return
        for option in node.get("anyOf", ()):
            walk(option, path)
        for name, inner in node.get("properties", {}).items():
            paths.append((*path, name))
            walk(inner, (*path, name))
        inner = node.get("additionalProperties")
        if isinstance(inner, Mapping) and path:
            paths.append((*path, "x"))
            walk(inner, (*path, "x"))

    walk(schema, ())
    return list(dict.fromkeys(paths))


def _resolved(node: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = node.get("$ref")
    return schema["$defs"][reference.rpartition("/")[2]] if isinstance(reference, str) else node


def mutated(base: Mapping[str, Any], paths: list[tuple[str, ...]], draw: random.Random) -> tuple[str, str]:
    """(what was done, the file)."""
    table = deepcopy(dict(base))
    kind = draw.choices(("set", "remove", "misspell", "nest", "bytes"), (78, 8, 6, 4, 4))[0]
    if kind == "bytes":
        text = bytearray(written(table).encode())
        for _ in range(draw.randint(1, 4)):
            text[draw.randrange(len(text))] = draw.randrange(256)
        return "bytes", text.decode("latin-1")
    path = draw.choice(paths)
    if kind == "nest":
        depth = draw.choice((3, 50, 900, 20_000))
        opening, closing = draw.choice((("[", "]"), ("{a = ", "}")))
        deep = Raw(opening * depth + "1" + closing * depth)
        return f"{'.'.join(path)} = nested {depth} deep", written(_set(table, path, deep))
    if kind in ("remove", "misspell"):
        keys = [key for key in table if key in {p[0] for p in paths}]
        key = draw.choice(keys)
        value = table.pop(key)
        if kind == "misspell":
            table[key[:-1] or "q"] = value
        return f"{kind} {key}", written(table)
    value = draw.choice(HOSTILE)
    shown = repr(value)
    return f"{'.'.join(path)} = {shown[:60]}", written(_set(table, path, value))


def _set(table: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    here: Any = table
    for part in path[:-1]:
        inner = here.get(part)
        if isinstance(inner, list) and inner and isinstance(inner[0], dict):
            inner = inner[0]
        elif not isinstance(inner, dict):
            inner = here[part] = {}
        here = inner
    here[path[-1]] = value
    return table


def every_field(base: Mapping[str, Any], paths: list[tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    """Every setting with every hostile value."""
    for path in paths:
        for value in HOSTILE:
            shown = repr(value)
            yield f"{'.'.join(path)} = {shown[:60]}", written(_set(deepcopy(dict(base)), path, value))


def attempt(what: str, call: Callable[[], None]) -> Outcome:
    """Run *call* in a forked process with limits; what it printed and how it ended."""
    with tempfile.TemporaryFile() as printed:
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            signal.alarm(10 * SECONDS)  # one that waits for something else
            code = 70
            with contextlib.suppress(SystemExit):
                try:
                    call()
                    code = 0
                except SystemExit as ended:
                    code = int(ended.code or 0)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        seconds = time.monotonic() - began
        printed.seek(0)
        message = printed.read().decode(errors="replace")
    if os.WIFSIGNALED(status):
        kind = "killed"
    elif "looks like a bug" in message:
        kind = "bug"
    elif "Traceback (most recent call last)" in message:
        kind = "traceback"
    else:
        kind = {0: "planned", 2: "refused"}.get(os.WEXITSTATUS(status), f"exit {os.WEXITSTATUS(status)}")
    return Outcome(what, kind, seconds, message)


def campaign(count: int | None, seed: int, listen: Callable[[Outcome], None]) -> list[Outcome]:
    """Plan *count* mutated files; None: every setting with every hostile value."""
    import torch  # noqa: F401

    from ablationlab.cli.app import main

    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        main(["schema"])
    paths = fields(json.loads(printed.getvalue()))
    draw = random.Random(seed)
    bases = [tomllib.loads((STUDIES / f"{name}.toml").read_text()) for name in BASES]
    for base in bases:
        base.pop("text", None)  # a path beside the file
    cases = (
        every_field(bases[0], paths)
        if count is None
        else (mutated(draw.choice(bases), paths, draw) for _ in range(count))
    )
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (what, text) in enumerate(cases):
            here = Path(folder) / str(number)
            here.mkdir()
            file = here / "study.toml"
            file.write_text(text, errors="surrogateescape")

            def call(here: Path = here, file: Path = file) -> None:
                os.chdir(here)
                main(["plan", str(file), "--out", str(here / "out"), "--device", "cpu"])

            outcome = attempt(what, call)
            outcomes.append(outcome)
            listen(outcome)
            shutil.rmtree(here)
    return outcomes


def shown(outcome: Outcome) -> None:
    """Print what was not simply refused."""
    if outcome.kind != "refused":
        said = "" if outcome.kind == "planned" else f"  {outcome.message[-200:]!r}"
        print(f"{outcome.kind:9} {outcome.seconds:5.1f} s  {outcome.what}{said}", flush=True)


if __name__ == "__main__":
    asked, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
    ends = campaign(None if asked == "all" else int(asked), seed, shown)
    print(dict(Counter(outcome.kind for outcome in ends)))
