"""claims.json: the record, field and command behind every number of a paper's text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from ablationlab.report.paper.document import Float, Heading, PaperDocument, plain, words_of
from ablationlab.report.table import Table


def claims_json(document: PaperDocument) -> str:
    """Every number of the text that comes from a record, in its order, and the records behind the rows of tables."""
    studies = dict(document.hashes)
    body = {"studies": studies, "claims": list(_claims(document)), "tables": list(_tables(document))}
    return json.dumps(body, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _claims(document: PaperDocument) -> Iterator[dict[str, Any]]:
    section = "Abstract"
    number = 0
    for block in document.blocks():
        words = words_of(block)
        if isinstance(block, Heading):
            section = plain(words)
        text = plain(words)
        place = 0
        for piece in words:
            if piece.source is not None:
                number += 1
                source = piece.source
                yield {
                    "id": number,
                    "text": piece.text,
                    "section": section,
                    "sentence": _sentence(text, place),
                    "study": source.study,
                    "file": source.file,
                    "field": source.field,
                    "value": source.value if source.value == source.value else None,
                    "command": source.command,
                }
            place += len(piece.text) if piece.kind in ("text", "code") else 0


def _tables(document: PaperDocument) -> Iterator[dict[str, Any]]:
    for block in document.body:
        if isinstance(block, Float) and isinstance(block.body, Table):
            rows = [f"{row.study}/{row.file}#{row.field}" for row in block.rows]
            yield {"table": block.key, "csv": f"tables/{block.body.key}.csv", "rows": rows}


def _sentence(text: str, place: int) -> str:
    """The sentence around a place; a full stop ends one where a space and a capital letter follow."""
    start = 0
    for found in re.finditer(r"[.?!] +(?=[A-Z])", text):
        if found.end() > place:
            return text[start : found.start() + 1].strip()
        start = found.end()
    return text[start:].strip()
