"""The chain of hashes of a results folder, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from ablationlab.analysis.verify import Link
from ablationlab.core.format import count
from ablationlab.report.layout import wrapped
from ablationlab.report.slots import Slot, Statement

#: A name longer than this has a line of its own.
LONGEST = 24
#: A state, and the space behind it.
_LEAD = 10
#: Hashes are told by so many digits.
_DIGITS = 12


def link_clause(link: Link) -> Statement:
    """What more there is to say of a link."""
    told = {name: text[:_DIGITS] if name == "hash" else text for name, text in link.told.items()}
    return Statement(f"verify.{link.code}", {name: Slot(text) for name, text in told.items()})


def chain_view(links: Sequence[Link], width: int) -> Iterator[Text]:
    """A line per link, and whether all hold."""
    room = min(LONGEST, max((cell_len(link.file) for link in links), default=0))
    for link in links:
        head = Text(f"{link.state:<{_LEAD}}{link.file:<{room}}")
        style = "bold red" if link.state in ("differs", "missing") else "dim" if link.state != "holds" else ""
        said = list(wrapped(Text(link_clause(link).text), max(20, width - _LEAD - room - 2)))
        if cell_len(link.file) <= room and said:
            head.append("  ").append_text(said.pop(0))
        head.stylize(style, 0, _LEAD)
        yield head
        yield from (Text(" " * (_LEAD + room + 2)).append_text(line) for line in said)
    states = [link.state for link in links]
    broken = {state: Slot(count(states.count(state))) for state in ("differs", "missing")}
    yield Text(
        Statement("verify.broken" if any(slot.text != "0" for slot in broken.values()) else "verify.whole", broken).text
    )
