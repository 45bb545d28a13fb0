"""Chart specifications to files and a paper to its PDF, in workers. The chart converter embeds a JavaScript engine, which
dies by a signal where memory is short, and so does Typst: what was not made is then a note, and the rest of the report is
written.
"""

from __future__ import annotations

import atexit
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablationlab.core.errors import AblationLabError, WorkerDied
from ablationlab.core.processes import Pool, WorkerError
from ablationlab.records.storage import replace
from ablationlab.report import fonts

if TYPE_CHECKING:
    import typst

#: What a worker raises where a chart cannot be drawn.
NOT_DRAWN = (WorkerDied, WorkerError)
PROCESSES = 2
#: Seconds after which a chart, or a paper, is given up. Each takes a few, and a busy machine is no failure.
PATIENCE = 900
#: What the report's libraries take before they read a record. With less, they crash or hang where they are loaded.
LEAST_MEMORY = 1_000_000_000
#: Sizes of a paper's text in points: the first that fills its last page to this share, else the one that fills it most.
SIZES = (9.6, 9.5, 9.7, 9.4, 9.8, 9.3, 9.9, 9.2, 10.0, 9.1, 10.1, 10.2, 10.3, 10.4, 10.5, 10.8, 11.1, 11.4)
FULL = 0.8


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


def typeset(folder: Path, figures: Iterable[str], pdf: Path) -> Path:
    """Make *pdf* of ``folder/paper.typ``, and PDFs of these figures for LaTeX."""
    try:
        start_converters().submit("paper", folder, tuple(figures), pdf).result()
    except NOT_DRAWN as error:
        why = f"Typst {error.how}" if isinstance(error, WorkerDied) else str(error)
        raise AblationLabError(
            f"{folder / 'paper.typ'} is written, but {pdf.name} could not be made of it: {why}"
        ) from error
    return pdf


# ---- in a worker --------------------------------------------------------------------------------------------------------


def _converter() -> Callable[..., Any]:
    import vl_convert

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
            _svg_to_pdf(folder, key)
        if "png" in formats:
            replace(folder / f"{key}.png", vl_convert.svg_to_png(drawn, scale=2))

    functions: dict[str, Callable[..., Any]] = {
        "svg": svg,
        "png": lambda picture: vl_convert.svg_to_png(picture, scale=2),
        "files": files,
        "paper": _paper,
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


def _paper(folder: Path, figures: Iterable[str], pdf: Path) -> None:
    for key in figures:
        _svg_to_pdf(folder / "figures", key)
    source = folder / "paper.typ"
    written = source.read_text(encoding="utf-8")
    best = fullest(written, folder)
    if best != written:
        replace(source, best.encode())
    replace(pdf, compiled(best, folder))


def _svg_to_pdf(folder: Path, key: str) -> None:
    """``key.pdf`` beside ``key.svg``, by Typst: its bytes repeat, where those of the chart converter do not."""
    page = f'#set document(date: none)\n#set page(width: auto, height: auto, margin: 0pt)\n#image("{key}.svg")\n'
    replace(folder / f"{key}.pdf", compiled(page, folder))


def fullest(source: str, folder: Path) -> str:
    """The source at the size of text that leaves the least of the last page empty, with the tables in order."""
    fullest, best = -1.0, source
    for apart, size in product(("false", "true"), SIZES):
        trial = source.replace("#let size = 9.6pt", f"#let size = {size}pt", 1)
        trial = trial.replace("#let apart = false", f"#let apart = {apart}", 1)
        with typst_compiler(trial, folder) as compiler:
            found = json.loads(compiler.query("<end>", field="value", one=True))
        if found["ordered"] and found["full"] > fullest:
            fullest, best = found["full"], trial
        if fullest > FULL:
            break
    return best


def compiled(source: str, folder: Path) -> bytes:
    """The PDF of a Typst source whose files lie in *folder*."""
    with typst_compiler(source, folder) as compiler:
        made = compiler.compile()
    assert isinstance(made, bytes)
    return made


@contextmanager
def typst_compiler(source: str, folder: Path) -> Iterator[typst.Compiler]:
    import typst

    try:
        yield typst.Compiler(source.encode(), root=folder, font_paths=_typst_fonts(), ignore_system_fonts=True)
    except RuntimeError as error:
        raise AblationLabError(f"the Typst source in {folder} does not compile: {error}") from error


@cache
def _typst_fonts() -> typst.Fonts:
    """Only the package's fonts and the compiler's own, so that the PDF is the same everywhere."""
    import typst

    return typst.Fonts(include_system_fonts=False, font_paths=[fonts.FOLDER])
