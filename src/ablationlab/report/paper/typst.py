"""Text into Typst markup, so that whatever a file holds comes out as text.

`Typst` marks markup that is finished; everything else that enters a page goes through `escape`. `say` fills a sentence of
ours with values and escapes each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from string import Formatter
from typing import Any

#: Signs that mean something to Typst wherever they stand.
_ALWAYS = re.compile(r"([\\#$*_`<>@~\[\]\"'{}])")
#: Shorthands: comments and addresses, dashes, ellipses, a minus before a digit.
_PAIRS = re.compile(r"(?<=/)/|/(?=[/*])|-(?=[-?\d])|(?<=-)-|\.(?=\.)")
#: Signs that mean something at the start of a line, or right behind a piece of code.
_FIRST = re.compile(r"^(?:[=+\-/(.;,:]|\d+(?=\.))")
_INVISIBLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b\u2028\u2029\ufeff]+")


class Typst(str):
    """Markup that needs no escaping."""

    __slots__ = ()


def escape(value: object) -> Typst:
    """Markup that shows *value* as it is; control characters and line breaks become spaces."""
    if isinstance(value, Typst):
        return value
    text = _INVISIBLE.sub(" ", str(value))
    text = _PAIRS.sub(lambda found: "\\" + found[0], _ALWAYS.sub(r"\\\1", text))
    first = _FIRST.match(text)
    if first is not None:
        # A leading number would open a list with its point; any other sign is escaped itself.
        end = first.end()
        text = f"{text[:end]}\\{text[end:]}" if first[0].isdigit() else f"\\{text}"
    return Typst(text)


def literal(value: object) -> Typst:
    """A string literal of Typst's code mode."""
    text = _INVISIBLE.sub(" ", str(value)).replace("\\", "\\\\").replace('"', '\\"')
    return Typst(f'"{text}"')


def code(value: object) -> Typst:
    """A name in the typewriter face; one that holds a backtick stays plain text."""
    text = _INVISIBLE.sub(" ", str(value))
    return escape(text) if not text.strip() or "`" in text else Typst(f"`{text}`")


def say(template: str, /, **values: Any) -> Typst:
    """A sentence of ours, in markup, with values escaped: ``say("{n} of {all} runs", n=1, all=2)``."""
    return Typst(Formatter().vformat(template, (), {name: escape(value) for name, value in values.items()}))


def listed(items: Iterable[object], word: str = "and") -> Typst:
    """``a``, ``a and b``, ``a, b and c``."""
    parts = [escape(item) for item in items]
    if len(parts) < 2:
        return Typst("".join(parts))
    return Typst(f"{', '.join(parts[:-1])} {word} {parts[-1]}")


def sentences(parts: Iterable[str]) -> Typst:
    """A paragraph of sentences; empty ones are left out."""
    return Typst(" ".join(part for part in parts if part))


def capital(text: str) -> Typst:
    """The same with a capital first letter, where it begins with one."""
    return Typst(text[:1].upper() + text[1:])
