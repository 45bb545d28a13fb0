"""Chart specifications to files, in workers. The chart converter embeds a JavaScript engine, which dies by a signal where
memory is short: what was not made is then a note, and the rest of the report is written.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from ablationlab.core.errors import WorkerDied
from ablationlab.core.processes import Pool, WorkerError
from ablationlab.records.storage import replace
from ablationlab.report import fonts

#: What a worker raises where a chart cannot be drawn.
NOT_DRAWN = (WorkerDied, WorkerError)
PROCESSES = 2
#: Seconds after which a chart, or a paper, is given up. Each takes a few, and a busy machine is no failure.
PATIENCE = 900
#: What the report's libraries take before they read a record. With less, they crash or hang where they are loaded.
LEAST_MEMORY = 1_000_000_000


@cache
def start_converters() -> Pool[Any]:
    """The workers. They live as long as this process, for they take longer to start than to draw a chart; where charts will
    come, they start before the first."""
    pool: Pool[Any] = Pool(_converter, processes=PROCESSES, name="drawing charts", patience=PATIENCE)
    atexit.register(pool.close, kill=True)
    _trials(pool)
    return pool


@cache
def _trials(pool: Pool[Any]) -> list[Future[Any]]:
    """A chart for every worker: the engine takes a second to start, and where none survives it, no other chart is tried."""
    return [pool.submit("svg", {"data": {"values": []}, "mark": "point"}) for _ in range(PROCESSES)]


def _drawn(name: str, *arguments: Any) -> Any:
    """What the engine makes of this."""
    pool = start_converters()
    for trial in (trials := _trials(pool)):
        with suppress(WorkerDied):
            trial.result()
            break
    else:
        trials[0].result()
    return pool.submit(name, *arguments).result()


def svg_of(spec: Mapping[str, Any]) -> str:
    """A chart as SVG."""
    return str(_drawn("svg", spec))


def png_of(svg: str) -> bytes:
    """A picture as pixels, twice as many as it has points."""
    made: bytes = _drawn("png", svg)
    return made


@contextmanager
def converting(
    specs: Mapping[str, Mapping[str, Any]], folder: Path, formats: Iterable[str], say: Callable[[str], None]
) -> Iterator[None]:
    """Write ``folder/<key>.<format>`` for every chart while the block runs; its end waits, and says what is missing.

    A figure whose SVG is there unchanged is left as it is. Only as many are given to the workers as there are, so that a
    chart that the block waits for need not wait for all.
    """
    chosen = tuple(formats)

    def write(key: str, spec: Mapping[str, Any]) -> None:
        _drawn("files", spec, folder, key, chosen)

    start_converters()  # in this thread, so that no two start
    writing = ThreadPoolExecutor(PROCESSES)
    try:
        drawn = {key: writing.submit(write, key, spec) for key, spec in specs.items()}
        yield
        failed: dict[str, BaseException] = {}
        for key, future in drawn.items():
            try:
                future.result()
            except NOT_DRAWN as error:
                failed[key] = error
    finally:
        writing.shutdown(cancel_futures=True)
    for note in not_drawn(failed):
        say(note)


def not_drawn(failed: Mapping[str, BaseException]) -> list[str]:
    """What to say of charts that are missing, each reason once."""
    reasons: dict[str, list[str]] = {}
    for key, error in failed.items():
        reason = f"the chart converter {error.how}" if isinstance(error, WorkerDied) else str(error)
        reasons.setdefault(reason, []).append(key)
    return [f"Not drawn: {', '.join(keys)}; {reason}" for reason, keys in reasons.items()]


# ---- in a worker --------------------------------------------------------------------------------------------------------


def _converter() -> Callable[..., Any]:
    import vl_convert

    from ablationlab.report.paper.typesetting import make_paper, svg_to_pdf

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the engine dies with a page of addresses
    vl_convert.register_font_directory(str(fonts.FOLDER))

    def svg(spec: Mapping[str, Any]) -> str:
        return str(vl_convert.vegalite_to_svg(_legible(dict(spec))))

    def files(spec: Mapping[str, Any], folder: Path, key: str, formats: tuple[str, ...]) -> None:
        # One trip through Vega gives the SVG, from which the other formats are made.
        drawn = svg(spec)
        whole = re.sub(r"^(<svg[^>]*>)", lambda start: f"{start[0]}<style>{fonts.css()}</style>", drawn, count=1)
        if _unchanged(folder, key, whole, formats):
            return
        replace(folder / f"{key}.svg", whole.encode())
        if "pdf" in formats:
            svg_to_pdf(folder, key)
        if "png" in formats:
            replace(folder / f"{key}.png", vl_convert.svg_to_png(drawn, scale=2))

    functions: dict[str, Callable[..., Any]] = {
        "svg": svg,
        "png": lambda picture: vl_convert.svg_to_png(picture, scale=2),
        "files": files,
        "paper": make_paper,
    }
    return lambda name, *arguments: functions[name](*arguments)


def _legible(part: Any) -> Any:
    """A chart with all its words, the values of its data too, in signs that its font has."""
    if isinstance(part, str):
        return "\n".join(map(fonts.legible, part.split("\n")))
    if isinstance(part, dict):
        return {_legible(key): _legible(value) for key, value in part.items()}
    return list(map(_legible, part)) if isinstance(part, list | tuple) else part


def _unchanged(folder: Path, key: str, svg: str, formats: Iterable[str]) -> bool:
    paths = [folder / f"{key}.{kind}" for kind in formats]
    drawn = folder / f"{key}.svg"
    return drawn in paths and all(path.is_file() for path in paths) and drawn.read_bytes() == svg.encode()
