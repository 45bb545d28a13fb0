"""Chart specifications to files, here or in a worker, which leaves this process free for the page and the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ablationlab.core.processes import Pool
from ablationlab.records.storage import replace


def convert(specs: Mapping[str, Mapping[str, Any]], folder: Path, formats: Iterable[str]) -> None:
    """Write ``folder/<key>.<format>``. A figure whose SVG is there unchanged is left as it is."""
    import vl_convert

    chosen = tuple(formats)
    for key, spec in specs.items():
        # One trip through Vega gives the SVG, from which the other formats are made.
        svg = vl_convert.vegalite_to_svg(dict(spec))
        if _unchanged(folder, key, svg, chosen):
            continue
        for kind in chosen:
            if kind == "svg":
                data = svg.encode()
            elif kind == "pdf":
                data = vl_convert.svg_to_pdf(svg)
            else:
                data = vl_convert.svg_to_png(svg, scale=2)
            replace(folder / f"{key}.{kind}", data)


def _unchanged(folder: Path, key: str, svg: str, formats: Iterable[str]) -> bool:
    paths = [folder / f"{key}.{kind}" for kind in formats]
    drawn = folder / f"{key}.svg"
    return drawn in paths and all(path.is_file() for path in paths) and drawn.read_bytes() == svg.encode()


@contextmanager
def converting(specs: Mapping[str, Mapping[str, Any]], folder: Path, formats: Iterable[str]) -> Iterator[None]:
    """`convert` in a worker while the block runs; the end of the block waits for it and raises what went wrong."""
    with Pool(_convert, name="figures") as pool:
        converted = pool.submit(specs, folder, tuple(formats))
        yield
        converted.result()


def _convert() -> Callable[..., None]:
    return convert
