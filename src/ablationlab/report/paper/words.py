"""What the templates may call: numbers with their sources, names, lists, tables, figures and references."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType
from typing import Any

import jinja2
from jinja2.bccache import Bucket
from markupsafe import Markup

from ablationlab.analysis.wording import difference_of
from ablationlab.analysis.wording import name_of as metric_of
from ablationlab.core import format
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import Comparison
from ablationlab.records.metrics import metric_name
from ablationlab.report.paper.document import Float, Inline, Marks, Picture, printable
from ablationlab.report.paper.facts import StudyView
from ablationlab.report.paper.sources import Sources
from ablationlab.report.table import Table
from ablationlab.study.text import paragraphs

#: A number that stands by itself: H0, gpt2 and times-35 are names.
_NUMBER = re.compile(r"(?<![\w-])(?<!\w\.)[+−]?\d(?:[\d,.]*\d)?(?:×10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?(?:\u202f%)?(?!\w|[.,]\d)")


def methods_of(given: object) -> dict[str, Callable[..., Any]]:
    """The methods of an object that are not private, for templates to call."""
    names = [name for name, value in vars(type(given)).items() if callable(value) and not name.startswith("_")]
    return {name: getattr(given, name) for name in names}


def _once(shown: Iterable[Inline]) -> list[Inline]:
    """What is shown, but once where all of it reads alike."""
    every = list(shown)
    return every[:1] if len({inline.text for inline in every}) == 1 else every


def _field(part: Any, field: str) -> Any:
    for key in field.split("/"):
        part = part[key] if isinstance(part, Mapping) else getattr(part, key)
    return part


class PaperWords:
    """The functions of one paper's templates."""

    def __init__(self, marks: Marks, sources: Sources) -> None:
        self.marks, self.sources = marks, sources
        self.floats: set[str] = set()

    # Words

    def code(self, text: str) -> Inline:
        return Inline("code", printable(text))

    def text(self, text: str) -> Inline:
        return Inline("text", printable(text))

    def listed(self, items: Iterable[Any]) -> Markup:
        """``a, b and c``."""
        made = [self.marks(item) for item in items]
        if len(made) < 2:
            return Markup("").join(made)
        return Markup(", ").join(made[:-1]) + Markup(" and ") + made[-1]

    def names(self, items: Iterable[str]) -> Markup:
        return self.listed(map(self.code, items))

    def formula(self, name: str) -> Inline:
        return Inline("math", name)

    def own(self, text: str) -> Markup:
        """A section of the study's own text."""
        made = []
        for spans in paragraphs(text):
            pieces: list[Inline] = []
            for span in spans:
                match span.kind:
                    case "emphasis" | "strong":
                        pieces.append(Inline("text", span.text, span.kind))
                    case "text" | "code" | "cite":
                        pieces.append(Inline(span.kind, span.text))
            made.append(self.marks(pieces))
        return Markup("\n\n").join(made)

    # Numbers

    def value(self, text: object, part: object, field: str = "", value: Any = None) -> Inline:
        """A number as text, with the field of a record that it comes from; *value* where it is computed of that field."""
        return Inline("text", printable(str(text)), source=self.sources.of(part, field, value))

    def num(self, part: object, field: str, style: str = "number") -> Inline:
        """A field of a record as a number in one of the styles of `core.format`."""
        return self.value(getattr(format, style)(_field(part, field)), part, field)

    def span(self, parts: Sequence[object], field: str, style: str = "number") -> Markup:
        """``1.61 M to 4.78 M``: the smallest and the largest value of a field; one where both read alike."""
        ends = sorted(parts, key=lambda part: _field(part, field))
        shown = {inline.text: inline for inline in (self.num(part, field, style) for part in (ends[0], ends[-1]))}
        return Markup(" to ").join(map(self.marks, shown.values()))

    def counted(self, items: Any, noun: str, part: object, field: str = "", capital: bool = False) -> Inline:
        """``five seeds``: how many things there are, or a number of them, from a field of a record."""
        many = items if isinstance(items, int) else len(items)
        words = format.counted(many, noun)
        return self.value(words[:1].upper() + words[1:] if capital else words, part, field, many)

    def many(self, items: Sequence[Any], part: object, field: str = "", capital: bool = False) -> Inline:
        """How many things there are, as a word."""
        words = format.count_word(len(items))
        return self.value(words.capitalize() if capital else words, part, field, len(items))

    def part(self, some: int, whole: int, part: object, field: str = "", capital: bool = False) -> Inline:
        words = format.part(some, whole)
        return self.value(words[:1].upper() + words[1:] if capital else words, part, field, [some, whole])

    def tally(self, text: object, parts: Iterable[object], field: str = "", value: Any = None) -> Inline:
        """A number that is counted or computed over parts of several records, with all of them as its sources."""
        return Inline("text", printable(str(text)), source=self.sources.of_all(parts, field, value))

    def said(self, text: str, part: object, field: str = "") -> list[Inline]:
        """A sentence of `analysis.wording`; its numbers come from this part of a record, or from what that is made of.

        *field* of it is the source of what no field prints, such as a count. Digits of a name are no number.
        """
        pieces: list[Inline] = []
        end, last = 0, ""
        text = printable(text)
        quoted = list(self.sources.of_text(text, part))
        for found in re.finditer(f"{self.sources.names(part).pattern}|(?P<number>{_NUMBER.pattern})", text):
            if found["number"] is None:
                continue
            within = (source for first, last, source in quoted if first <= found.start() and found.end() <= last)
            source = next(within, None) or self.sources.of_number(
                found[0], part, text[: found.start()], text[found.end() :], field, last
            )
            last = source.field
            pieces.append(Inline("text", text[end : found.start()]))
            pieces.append(Inline("text", found[0], source=source))
            end = found.end()
        return [piece for piece in (*pieces, Inline("text", text[end:])) if piece.text]

    def change(self, comparison: Comparison) -> str:
        """How the variant's value relates to the reference's."""
        if comparison.delta is None:
            return "unknown"
        if comparison.told_by_medians:
            return "unstable"
        if difference_of(comparison).zero:
            return "none"
        return "higher" if (comparison.estimate or 0.0) > 0 else "lower"

    def amount(self, comparison: Comparison) -> Inline:
        shown = difference_of(comparison)
        return self.value(format.with_unit(shown.size, shown.unit), comparison, comparison.estimate_at)

    def interval_field(self, comparison: Comparison) -> str:
        """The field of the interval that is shown; nothing where there is none."""
        interval = comparison.main_interval
        if interval is None or interval.low is None or comparison.told_by_medians:
            return ""
        return "deciding" if comparison.deciding is not None else f"intervals/{comparison.interval}"

    def bounds(self, comparison: Comparison) -> Inline:
        shown, interval = difference_of(comparison), comparison.main_interval
        assert interval is not None
        text = format.with_unit(shown.range, "%") if shown.unit == "%" else shown.range
        return self.value(text, comparison, self.interval_field(comparison), [interval.low, interval.high])

    def p(self, comparison: Comparison) -> Inline:
        return self.value(format.p_clause(comparison.p_adjusted), comparison, "p_adjusted")

    # The same of several comparisons, once where all read alike

    def amounts(self, comparisons: Sequence[Comparison]) -> list[Inline]:
        *first, last = comparisons
        sizes = [self.value(difference_of(c).size, c, c.estimate_at) for c in first]
        alike = {difference_of(c).size for c in comparisons}
        return [self.amount(last)] if len(alike) == 1 else [*sizes, self.amount(last)]

    def bounds_of(self, comparisons: Sequence[Comparison]) -> list[Inline]:
        return _once(self.bounds(comparison) for comparison in comparisons)

    def p_values(self, comparisons: Sequence[Comparison]) -> list[Inline]:
        return _once(self.p(comparison) for comparison in comparisons)

    def alike_but_for_the_variant(self, comparisons: Sequence[Comparison]) -> list[list[Comparison]]:
        """Comparisons in groups that one sentence can tell: what is said of each is the same, but for its numbers."""

        def told(comparison: Comparison) -> tuple[object, ...]:
            c, interval = comparison, comparison.main_interval
            if interval is None or not self.interval_field(c) or c.p_adjusted is None:
                return (c.id,)
            if self.change(c) not in ("higher", "lower"):
                return (c.id,)
            same = (c.metric, c.task_label, c.reference, c.regime, c.label, self.change(c), c.outcome, c.sample)
            equal = c.equivalence and (c.equivalence.equivalent, c.equivalence.bounds)
            sensitive = c.sensitivity and c.sensitivity.sensitive
            return (*same, interval.level, c.correction, c.family_size > 1, equal, sensitive)

        return list(grouped((told(comparison), comparison) for comparison in comparisons).values())

    def sample(self, comparison: Comparison) -> Inline:
        return self.value(comparison.sample, comparison, "n")

    # Tables and figures

    def table(
        self,
        key: str,
        table: Table,
        wide: bool = False,
        rows: Sequence[object] = (),
        caller: Callable[[], str] | None = None,
    ) -> Markup:
        sources = tuple(self.sources.of(part) for part in rows)
        return self._float(Float(key, table, wide=wide, rows=sources), caller)

    def figure(self, picture: Picture, wide: bool = False, caller: Callable[[], str] | None = None) -> Markup:
        return self._float(Float(picture.key, picture, wide=wide), caller)

    def _float(self, given: Float, caller: Callable[[], str] | None) -> Markup:
        caption = Markup("") if caller is None else Markup(" ".join(caller().split()))  # noqa: S704
        self.floats.add(given.key)
        return Markup("\n\n!") + self.marks(given) + " " + caption + Markup("\n\n")

    def ref(self, key: str) -> Inline:
        return Inline("ref", key)

    def cite(self, key: str) -> Inline:
        return Inline("cite", key)

    def is_drawn(self, key: str) -> bool:
        return key in self.floats

    def alike(
        self, studies: Sequence[StudyView], macro: Callable[[StudyView], str]
    ) -> list[tuple[Markup, list[StudyView]]]:
        """What a macro says of the studies, paragraph by paragraph: (text, the studies of which it is true).

        What is true of the same studies is one text; what is true of all comes first.
        """
        said: dict[str, tuple[Markup, list[StudyView]]] = {}
        for study in studies:
            for paragraph in re.split(r"\n\s*\n", macro(study)):
                text = "".join(piece.text for piece in self.marks.words(paragraph))
                if text:
                    said.setdefault(text, (Markup(paragraph), []))[1].append(study)  # noqa: S704
        groups: dict[tuple[str, ...], tuple[list[Markup], list[StudyView]]] = {}
        for made, within in said.values():
            groups.setdefault(tuple(study.name for study in within), ([], within))[0].append(made)
        joined = [(Markup(" ").join(made), within) for made, within in groups.values()]
        return sorted(joined, key=lambda item: -len(item[1]) if len(item[1]) == len(studies) else 0)


_TAG = re.compile(r"\{%(?:(?!%\}).)*%\}|\{#.*#\}")
_STARTS = re.compile(r"#+!? |- |\d+\. |> ")


def flowing(template: str) -> str:
    """A template in which only blank lines end a paragraph: a line that prints nothing leaves no gap."""
    made = []
    for line in template.splitlines():
        text = line.strip()
        if not text:
            made.append("\n\n")
        elif _TAG.fullmatch(text):
            made.append(text)
        elif _STARTS.match(text):
            made.append(f"\n{text}\n" if text.startswith("#") else f"\n{text} ")
        else:
            made.append(f"{text} ")
    return "".join(made)


class _Compiled(jinja2.BytecodeCache):
    """Templates that this process has compiled, for the next paper that it writes."""

    def __init__(self) -> None:
        self._code: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._code.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        assert bucket.code is not None
        self._code[bucket.key, bucket.checksum] = bucket.code


_COMPILED = _Compiled()


def environment(marks: Marks, vocabulary: PaperWords, read: Callable[[str], str]) -> jinja2.Environment:
    """Templates in which everything that is put in goes through *marks*."""

    @jinja2.pass_context
    def finalize(_: jinja2.runtime.Context, value: Any) -> Markup:
        return marks(value)

    made = jinja2.Environment(
        autoescape=True,
        bytecode_cache=_COMPILED,
        finalize=finalize,
        loader=jinja2.FunctionLoader(lambda name: flowing(read(name))),
        undefined=jinja2.StrictUndefined,
    )
    made.filters["lookup"] = lambda key, words: words[key]
    made.globals.update(methods_of(vocabulary))
    made.globals.update(metric=metric_of, metric_word=metric_name)
    return made
