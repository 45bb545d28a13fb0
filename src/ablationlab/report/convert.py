"""Specifications of charts to files, here or in a process of its own, which leaves this one free for the page and the paper.

python -m ablationlab.report.convert FOLDER FORMAT...        {key: specification} as JSON on standard input
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ablationlab.core.errors import AblationLabError, StorageError
from ablationlab.records.storage import replace

_CANNOT_WRITE = 3


def convert(specs: Mapping[str, Mapping[str, Any]], folder: Path, formats: Iterable[str]) -> None:
    """Write ``folder/<key>.<format>``. A figure whose SVG is there unchanged is left as it is."""
    import vl_convert

    chosen = tuple(formats)
    for key, spec in specs.items():
        # One trip through Vega gives the SVG, from which the other formats are made.
        svg = vl_convert.vegalite_to_svg(dict(spec))
        if _there(folder, key, svg, chosen):
            continue
        for kind in chosen:
            if kind == "svg":
                data = svg.encode()
            elif kind == "pdf":
                data = vl_convert.svg_to_pdf(svg)
            else:
                data = vl_convert.svg_to_png(svg, scale=2)
            replace(folder / f"{key}.{kind}", data)


def _there(folder: Path, key: str, svg: str, formats: Iterable[str]) -> bool:
    paths = [folder / f"{key}.{kind}" for kind in formats]
    drawn = folder / f"{key}.svg"
    return drawn in paths and all(path.is_file() for path in paths) and drawn.read_bytes() == svg.encode()


class Converting:
    """Conversion under way in another process; leaving the block waits for it and tells what went wrong."""

    def __init__(self, specs: Mapping[str, Mapping[str, Any]], folder: Path, formats: Iterable[str]) -> None:
        words = [sys.executable, "-m", "ablationlab.report.convert", str(folder), *formats]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        self._given = json.dumps(specs).encode()

    def __enter__(self) -> Self:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # then it has ended already, and says why when it is waited for
            self._process.stdin.write(self._given)
            self._process.stdin.close()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        assert self._process.stderr is not None
        if kind is not None:
            self._process.kill()
        said = self._process.stderr.read().decode(errors="replace").strip()
        code = self._process.wait()
        self._process.stderr.close()
        if kind is None and code:
            last = said.splitlines()[-1] if said else f"exit code {code}"
            raise (StorageError if code == _CANNOT_WRITE else AblationLabError)(f"figures: {last}")


def main() -> None:
    """Entry point of the process."""
    folder, *formats = sys.argv[1:]
    try:
        convert(json.load(sys.stdin), Path(folder), formats)
    except StorageError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(_CANNOT_WRITE)


if __name__ == "__main__":
    main()
