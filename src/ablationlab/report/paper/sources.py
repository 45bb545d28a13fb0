"""Where numbers come from: every object of a study's records, with its JSON pointer; and claims.json, which lists them."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from ablationlab.records.results import REPLICATION, Results
from ablationlab.records.verdict import VariantVerdict, Verdict
from ablationlab.report.paper.document import Float, Heading, NumberSource, PaperDocument, plain, words_of
from ablationlab.report.table import Table


class Sources:
    """Finds objects again in the records that they were read from."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[str, str, str, str]] = {}
        self._alive: list[object] = []  # an id is that of one object only while it lives
        self._records: dict[str, Results] = {}
        self._held: dict[int, list[tuple[str, float]]] = {}

    def add(self, study: str, results: Results) -> None:
        records = (
            ("plan.lock", results.plan, "ablationlab plan STUDY"),
            ("analysis.json", results.analysis, "ablationlab analyze RESULTS"),
            ("verdict.json", results.verdict, "ablationlab analyze RESULTS"),
            (REPLICATION, results.replication, "ablationlab replicate TABLE"),
        )
        self._records[study] = results
        for file, record, command in records:
            if record is not None:
                self._alive.append(record)
                self._enter(record, (study, file, command), "")

    def _enter(self, part: Any, record: tuple[str, str, str], pointer: str) -> None:
        """Note every object with fields in *part*, with its pointer. Equal recipes are one object: it is entered once."""
        if isinstance(part, BaseModel) or dataclasses.is_dataclass(part):
            if id(part) in self._places:
                return
            study, file, command = record
            self._places[id(part)] = (study, file, pointer, command)
            items: Any = ((key, getattr(part, name)) for name, key in _fields(part.__class__))
        elif isinstance(part, Mapping):
            items = ((_escaped(str(key)), item) for key, item in part.items())
        else:
            items = enumerate(part) if isinstance(part, tuple | list) else ()
        for key, item in items:
            if not isinstance(item, str | int | float | None):
                self._enter(item, record, f"{pointer}/{key}")

    def of(self, part: object, field: str = "", value: Any = None) -> NumberSource:
        """The source of a field of a record's part, or of the whole part; *value* where it is made of the field."""
        study, file, pointer, command = self._places[id(part)]
        field_value = part
        for key in filter(None, field.split("/")):
            field_value = field_value[key] if isinstance(field_value, Mapping) else getattr(field_value, key)
            pointer += "/" + key.replace("~", "~0")
        return NumberSource(study, file, pointer, _plain(field_value) if value is None else value, command)

    def of_number(self, text: str, part: object) -> NumberSource:
        """The source of a number in a sentence about *part*: the field that prints so, of *part* or of what it was made
        from; else the first of these that holds it."""
        if isinstance(part, Verdict) and (held := self._effect(text, part)) is not None:
            return held
        for place in self._made_from(part):
            found = [(pointer, value) for pointer, value in self._numbers(place) if _prints_as(value, text)]
            source = self.of(place)
            alike = {value for _, value in found}
            one = len(found) == 1 or (len(alike) == 1 and not float(*alike).is_integer())
            if one and (
                source.field or _digits(text) > 3
            ):  # of few digits, one match within a whole record may be chance
                return dataclasses.replace(source, field=source.field + found[0][0], value=found[0][1])
            if found:
                return source
        return self.of(part)

    def _effect(self, text: str, verdict: Verdict) -> NumberSource | None:
        """The field of an effect that a study's answer tells: a registered difference on the primary metric, or that of a
        crossed setting; the first that prints so, and nothing where either may be meant."""
        analysis = self._records[self._places[id(verdict)][0]].analysis
        if analysis is None or "." not in text or text.endswith("%"):
            return None
        asked = [c for c in analysis.comparisons if c.metric == analysis.primary and c.label == "registered"]
        effects = () if analysis.interactions is None else analysis.interactions.contrasts
        deltas = [self.of(c, "delta") for c in asked if c.delta is not None and _prints_as(c.delta, text)]
        settings = [self.of(e, "estimate") for e in effects if e.estimate is not None and _prints_as(e.estimate, text)]
        return next(iter(deltas or settings), None) if not (deltas and settings) else None

    def _made_from(self, part: object) -> Iterator[object]:
        """A part of a record, and the parts that its sentences may draw on: a verdict rests on a comparison."""
        yield part
        study, file, _, _ = self._places[id(part)]
        analysis = self._records[study].analysis
        if file == "verdict.json" and analysis is not None:
            if isinstance(part, VariantVerdict):
                comparison = analysis.primary_comparison(part.regime, part.variant)
                yield from () if comparison is None else (comparison,)
            replication = self._records[study].replication
            yield from (analysis,) if replication is None else (analysis, replication)

    def _numbers(self, part: object) -> list[tuple[str, float]]:
        """(pointer, value) of every number within a part."""
        if id(part) not in self._held:
            self._held[id(part)] = list(_leaves(part, ""))
        return self._held[id(part)]


def _leaves(part: Any, pointer: str) -> Iterator[tuple[str, float]]:
    if isinstance(part, bool | str) or part is None:
        return
    if isinstance(part, int | float):
        yield pointer, part
        return
    if isinstance(part, Mapping):
        items: Any = ((_escaped(str(key)), item) for key, item in part.items())
    elif isinstance(part, tuple | list):
        items = enumerate(part)
    else:
        items = ((key, getattr(part, name)) for name, key in _fields(part.__class__))
    for key, item in items:
        yield from _leaves(item, f"{pointer}/{key}")


_SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def _prints_as(value: float, text: str) -> bool:
    """Whether a value is the printed number; in percent, as a share or a change of logarithms."""
    digits, _, power = text.removesuffix("\u202f%").replace(",", "").lstrip("+−-").partition("×10")
    scale = 10.0 ** int(power.translate(_SUPERSCRIPTS)) if power else 1.0
    half = 0.5000001 * scale * 10.0 ** -len(digits.partition(".")[2])
    if not math.isfinite(value) or digits.count(".") > 1:  # 3.11.7 is a version
        return False
    sizes = [value]
    if text.endswith("%"):
        sizes = [100 * value, 100 * (1 - value), *([100 * math.expm1(value)] if value < 100 else [])]
    return any(abs(abs(size) - float(digits) * scale) <= half for size in sizes)


def _digits(text: str) -> int:
    """Significant digits of a printed number with a decimal point; of a whole number none, since it may be a count."""
    digits = text.lstrip("+−-0.,").partition("×")[0]
    return sum(sign.isdigit() for sign in digits) if "." in text else 0


@cache
def _fields(kind: type[Any]) -> tuple[tuple[str, str], ...]:
    """(attribute, part of a pointer) of every field of a class."""
    if issubclass(kind, BaseModel):
        return tuple((name, _escaped(field.alias or name)) for name, field in kind.model_fields.items())
    return tuple((field.name, field.name) for field in dataclasses.fields(kind))


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _plain(value: Any) -> Any:
    """A number or a text as it is; of anything larger nothing, for the pointer says where it is."""
    return value if isinstance(value, str | int | float | bool) or value is None else None


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
