"""Templates, and what is put inside them: safe JSON, compressed text, rows by column, scripts with their hashes."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from ablationlab.core.format import count, printable
from ablationlab.report import fonts
from ablationlab.report.convert import javascript

if TYPE_CHECKING:
    import jinja2


def asset(name: str) -> str:
    """One of the files beside this one."""
    return resources.files("ablationlab.report.page").joinpath(name).read_text(encoding="utf-8")


def stylesheet() -> str:
    """The style of every page, its font included."""
    return fonts.css() + asset("style.css")


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    made = jinja2.Environment(
        autoescape=True,
        loader=jinja2.FunctionLoader(asset),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    made.globals["count"] = count
    return made


def render(template: str, context: Mapping[str, Any], **trusted: str) -> str:
    """A template with everything escaped but *trusted*, which is our own or has been made safe, and no control character."""
    import markupsafe

    safe = {name: markupsafe.Markup(text) for name, text in trusted.items()}  # noqa: S704
    return printable(_environment().get_template(template).render(**context, **safe))


def macros(template: str) -> Any:
    """The macros of a template; what they are given is escaped."""
    return _environment().get_template(template).module


def json_for_script(value: Any) -> str:
    """JSON that is safe inside a script element: no ``<``, ``>`` or ``&`` is left, nor a line separator."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def packed(text: str) -> str:
    """Text compressed by zlib, in base64; `unpack` of charts.js gives it back. Equal texts give equal bytes."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def by_column(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows as columns; a column of words gives each word once. What JSON lacks becomes null."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {"length": len(rows), "columns": {name: _column([row.get(name) for row in rows]) for name in names}}


def _column(values: list[Any]) -> dict[str, Any]:
    if values and all(isinstance(value, str) for value in values):
        words = list(dict.fromkeys(values))
        place = {word: number for number, word in enumerate(words)}
        return {"words": words, "at": [place[value] for value in values]}
    return {"values": [_plain(value) for value in values]}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        # Seven digits: more than a screen shows.
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value


@cache
def vega_bundle() -> str:
    """The script that draws the charts of a page."""
    return javascript("window.vega = vega; window.vegaEmbed = vegaEmbed;")


def policy(*scripts: str) -> str:
    """A content security policy under which the page runs these very scripts and reaches no network."""
    hashes = " ".join(
        "'sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() + "'" for script in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
