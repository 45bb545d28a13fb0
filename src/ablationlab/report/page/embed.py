"""The template of the page, and what is put inside it: safe JSON, safe text, a script with its hash."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from ablationlab.core.format import printable

if TYPE_CHECKING:
    import jinja2


def asset(name: str) -> str:
    """One of the files beside this one."""
    return resources.files("ablationlab.report.page").joinpath(name).read_text(encoding="utf-8")


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        autoescape=True,
        loader=jinja2.FunctionLoader(asset),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )


def render(template: str, context: Mapping[str, Any]) -> str:
    """A template with everything escaped but what is marked as safe, and no control character."""
    return printable(_environment().get_template(template).render(**context))


def safe(text: str) -> Any:
    """HTML that is our own or has been made safe."""
    import markupsafe

    return markupsafe.Markup(text)  # noqa: S704


def json_for_script(value: Any) -> str:
    """JSON that is safe inside a script element: no ``<``, ``>`` or ``&`` is left, nor a line separator."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def policy(script: str, *, live: bool = False) -> str:
    """A content security policy under which the page runs this very script and reaches no network; a *live* one asks its own
    server."""
    known = "'sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() + "'"
    asks = "connect-src 'self'; " if live else ""
    return (
        f"default-src 'none'; script-src {known}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; {asks}"
        "base-uri 'none'; form-action 'none'"
    )
