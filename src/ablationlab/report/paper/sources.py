"""Where numbers come from: every object of a study's records, with its JSON pointer; and claims.json, which lists them."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel

from ablationlab.records.results import REPLICATION, Results
from ablationlab.report.paper.document import Float, Heading, NumberSource, PaperDocument, plain, words_of
from ablationlab.report.slots import escaped
from ablationlab.report.table import Table


@dataclasses.dataclass(frozen=True)
class SeveralSources(NumberSource):
    """A number made of fields of several records: the first of them, and the others."""

    others: tuple[NumberSource, ...] = ()


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A number in a record: its pointer from the part that was asked, and the arms and regimes that it is about."""

    pointer: str
    value: float
    names: frozenset[str]


class Sources:
    """Finds objects again in the records that they were read from."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[str, str, str, str]] = {}
        self._alive: list[object] = []  # an id is that of one object only while it lives
        self._records: dict[str, Results] = {}
        self._held: dict[int, list[Leaf]] = {}
        self._texts: dict[int, list[tuple[str, str]]] = {}
        self._names: dict[str, re.Pattern[str]] = {}

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
        for key, item in _items(part):
            if not isinstance(item, str | int | float | None):
                self._enter(item, record, f"{pointer}/{key}")

    def of(self, part: object, field: str = "", value: Any = None) -> NumberSource:
        """The source of a field of a record's part, or of the whole part; *value* where it is made of the field."""
        study, file, pointer, command = self._places[id(part)]
        field_value = part
        for key in filter(None, field.split("/")):
            if isinstance(field_value, tuple):
                field_value = field_value[int(key)]
            else:
                field_value = field_value[key] if isinstance(field_value, Mapping) else getattr(field_value, key)
            pointer += "/" + key.replace("~", "~0")
        return NumberSource(study, file, pointer, _plain(field_value) if value is None else value, command)

    def of_all(self, parts: Iterable[object], field: str = "", value: Any = None) -> NumberSource:
        """The source of a number that is counted or computed over several parts: every one of their fields, each once."""
        every = {(one.study, one.file, one.field): one for one in (self.of(part, field, value) for part in parts)}
        first, *others = every.values()
        return SeveralSources(**vars(first), others=tuple(others)) if others else first

    def of_readings(self, study: str, runs: Iterable[str], field: str, value: float) -> NumberSource:
        """The source of a number that is computed from what a probe read in these runs; *field* is ``/probe/measure``."""
        files = [f"runs/{run}/probes.parquet" for run in runs]
        first, *others = (NumberSource(study, file, field, value, "ablationlab run STUDY") for file in files)
        return SeveralSources(**vars(first), others=tuple(others))

    def names(self, part: object) -> re.Pattern[str]:
        """Matches the arms and regimes of the study that a part is of; a name of digits alone reads as a number."""
        study = self._places[id(part)][0]
        if study not in self._names:
            analysis = self._records[study].analysis
            every = {"baseline"} if analysis is None else {*analysis.variants, *analysis.regimes}
            names = sorted((name for name in every if not _NUMERIC(name)), key=len, reverse=True)
            self._names[study] = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?![\w-])")
        return self._names[study]

    def of_number(
        self, text: str, part: object, before: str = "", after: str = "", field: str = "", last: str = ""
    ) -> NumberSource:
        """The source of a number in a sentence about *part*.

        It is the field that prints so. Of several such fields, it is that of the unit *after* the number, of the arms and
        regimes that the sentence names *before* it, the last one first, and the one beside *last*, the field of the number
        before it. Where they hold different values still, or none prints so, it is what holds them all, with the number as
        it is printed: *field*, or the part itself.
        """
        named = [found[0] for found in self.names(part).finditer(before)]
        named = list(dict.fromkeys(reversed(named)))
        found = _nearest(self._matching(text, part, before, after), named)
        source = self.of(part)
        if not source.field and _digits(text) <= 3:  # of few digits, a match within a whole record may be chance
            found = [leaf for leaf in found if leaf.pointer.count("/") == 1 and not float(leaf.value).is_integer()]
        if len({leaf.value for leaf in found}) > 1:
            beside = [len(_shared([source.field + leaf.pointer, last])) for leaf in found]
            found = [leaf for leaf, near in zip(found, beside, strict=True) if near == max(beside)]
        if found:
            if len({leaf.value for leaf in found}) == 1:
                return dataclasses.replace(source, field=source.field + found[0].pointer, value=found[0].value)
            shared = _shared([leaf.pointer for leaf in found])
            return dataclasses.replace(source, field=source.field + shared, value=_printed(text))
        source = self.of(part, field)
        return source if source.value is not None else dataclasses.replace(source, value=_printed(text))

    def of_text(self, text: str, part: object) -> Iterator[tuple[int, int, NumberSource]]:
        """(start, end, source) of what a sentence about *part* quotes from a text of the record that has digits."""
        if id(part) not in self._texts:
            self._texts[id(part)] = [(pointer, found) for pointer, found in _strings(part, "") if _HAS_DIGIT(found)]
        for pointer, quoted in self._texts[id(part)]:
            if len(quoted) >= _QUOTED and (start := text.find(quoted)) >= 0:
                source = self.of(part)
                yield (
                    start,
                    start + len(quoted),
                    dataclasses.replace(source, field=source.field + pointer, value=quoted),
                )

    def _matching(self, text: str, part: object, before: str, after: str) -> list[Leaf]:
        """The numbers of a part that print so; those of the unit that follows, where there are any."""
        if before.endswith(("< ", "<\N{NO-BREAK SPACE}")):  # p below what is printed
            ps = [leaf for leaf in self._numbers(part) if _key(leaf.pointer) in ("p_adjusted", "p")]
            below = [leaf for leaf in ps if leaf.value < float(text)]
            return [leaf for leaf in below if _key(leaf.pointer) == "p_adjusted"] or below
        seed = bool(re.search(r"\bseeds? $", before))
        found = [leaf for leaf in self._numbers(part) if _prints_as(leaf.value, text)]
        found = [leaf for leaf in found if _key(leaf.pointer) not in _NEVER and (seed or not _is_seed(leaf.pointer))]
        found = [leaf for leaf in found if _reads(leaf.value, text)] or found
        for unit, keys in _UNITS.items():
            if re.match(rf"\s*{unit}", after):
                return [leaf for leaf in found if _key(leaf.pointer) in keys]
        return found

    def _numbers(self, part: object) -> list[Leaf]:
        """Every number within a part."""
        if id(part) not in self._held:
            self._held[id(part)] = list(_leaves(part, "", frozenset()))
        return self._held[id(part)]


#: Fields that hold whole numbers which no sentence means.
_NEVER = frozenset({"schema_version"})
#: What a number counts, by the word behind it -> the fields that hold such counts.
_UNITS: Mapping[str, frozenset[str]] = {
    "pairs?\\b": frozenset({"n", "pairs", "planned_pairs", "decided_by", "checked_pairs"}),
    "tests?\\b": frozenset({"family_size"}),
    "comparisons of stability": frozenset({"places"}),
}
#: A shorter text of a record may stand in a sentence by chance.
_QUOTED = 12
_HAS_DIGIT = re.compile(r"\d").search
_NUMERIC = re.compile(r"[\d.,]*").fullmatch


def _nearest(found: list[Leaf], named: Sequence[str]) -> list[Leaf]:
    """Those of the named arms and regimes, as far as there are any."""
    for name in named:
        found = [leaf for leaf in found if name in leaf.names] or found
    return found


def _shared(pointers: Sequence[str]) -> str:
    """The pointer to what holds all of these."""
    keys = []
    for alike in zip(*(pointer.split("/") for pointer in pointers), strict=False):
        if len(set(alike)) > 1:
            break
        keys.append(alike[0])
    return "/".join(keys)


def _is_seed(pointer: str) -> bool:
    return pointer.endswith("/seed") or "/seeds/" in pointer


def _key(pointer: str) -> str:
    return pointer.rpartition("/")[2]


def _items(part: Any) -> Iterator[tuple[str, Any]]:
    """(part of a pointer, what is there) of everything within a part of a record."""
    if isinstance(part, Mapping):
        yield from ((escaped(str(key)), item) for key, item in part.items())
    elif isinstance(part, tuple | list):
        yield from ((str(place), item) for place, item in enumerate(part))
    elif isinstance(part, BaseModel) or dataclasses.is_dataclass(part):
        yield from ((key, getattr(part, name)) for name, key in _fields(part.__class__))


def _leaves(part: Any, pointer: str, names: frozenset[str]) -> Iterator[Leaf]:
    if isinstance(part, bool | str) or part is None:
        return
    if isinstance(part, int | float):
        yield Leaf(pointer, part, names)
        return
    if pointer and isinstance(seed := getattr(part, "seed", None), int):  # the numbers of single runs are not told
        yield Leaf(f"{pointer}/seed", seed, names)
        return
    own = (getattr(part, key, None) for key in ("variant", "reference", "arm", "regime"))
    names |= {name for name in own if isinstance(name, str)}
    keyed = isinstance(part, Mapping)
    for key, item in _items(part):
        yield from _leaves(item, f"{pointer}/{key}", names | {key} if keyed else names)


def _strings(part: Any, pointer: str) -> Iterator[tuple[str, str]]:
    if isinstance(part, str):
        yield pointer, part
    else:
        for key, item in _items(part):
            yield from _strings(item, f"{pointer}/{key}")


_SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def _prints_as(value: float, text: str) -> bool:
    """Whether a value is the printed number; in percent, as a share or a change of logarithms."""
    digits, _, power = text.removesuffix("\u202f%").replace(",", "").lstrip("+−-").partition("×10")
    scale = 10.0 ** int(power.translate(_SUPERSCRIPTS)) if power else 1.0
    half = 0.5000001 * scale * 10.0 ** -len(digits.partition(".")[2])
    if not math.isfinite(value) or digits.count(".") > 1:  # 3.11.7 is a version
        return False
    if not any(sign in text for sign in ".%+−×") and not float(value).is_integer() and abs(value) < 100:
        return False  # a count is a whole number
    sizes = [value]
    if text.endswith("%"):
        sizes = [100 * value, 100 * (1 - value), *([100 * math.expm1(value)] if value < 100 else [])]
    return any(abs(abs(size) - float(digits) * scale) <= half for size in sizes)


def _printed(text: str) -> int | float | str:
    """A number as it is printed, a share of what is in percent; a text where it is no number."""
    digits, _, power = text.removesuffix("\u202f%").replace(",", "").replace("−", "-").partition("×10")
    try:
        size = float(digits) * (10.0 ** int(power.translate(_SUPERSCRIPTS)) if power else 1.0)
    except ValueError:
        return text
    if text.endswith("%"):
        return size / 100
    return int(size) if size.is_integer() and "." not in digits else size


def _reads(value: float, text: str) -> bool:
    """Whether a value that prints as *text* has its sign, and is itself the share where that is in percent."""
    share = not text.endswith("%") or round(abs(100 * value)) == round(float(text.strip("+−\u202f%").replace(",", "")))
    return share and (value < 0) == text.startswith("−")


def _digits(text: str) -> int:
    """Significant digits of a printed number with a decimal point; of a whole number none, since it may be a count."""
    digits = text.lstrip("+−-0.,").partition("×")[0]
    return sum(sign.isdigit() for sign in digits) if "." in text else 0


@cache
def _fields(kind: type[Any]) -> tuple[tuple[str, str], ...]:
    """(attribute, part of a pointer) of every field of a class."""
    if issubclass(kind, BaseModel):
        return tuple((name, escaped(field.alias or name)) for name, field in kind.model_fields.items())
    return tuple((field.name, field.name) for field in dataclasses.fields(kind))


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
                    **({"also": list(map(_place, source.others))} if isinstance(source, SeveralSources) else {}),
                }
            place += len(piece.text) if piece.kind in ("text", "code") else 0


def _tables(document: PaperDocument) -> Iterator[dict[str, Any]]:
    for block in document.body:
        if isinstance(block, Float) and isinstance(block.body, Table):
            yield {"table": block.key, "rows": list(map(_place, block.rows))}


def _place(source: NumberSource) -> str:
    return f"{source.study}/{source.file}#{source.field}"


def _sentence(text: str, place: int) -> str:
    """The sentence around a place; a full stop ends one where a space and a capital letter follow."""
    start = 0
    for found in re.finditer(r"[.?!] +(?=[A-Z])", text):
        if found.end() > place:
            return text[start : found.start() + 1].strip()
        start = found.end()
    return text[start:].strip()
