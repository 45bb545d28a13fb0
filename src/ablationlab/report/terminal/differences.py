"""What a terminal shows of two studies: the settings, the versions and the effects that differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from ablationlab.core.errors import AblationLabError
from ablationlab.core.format import DASH
from ablationlab.records.plan import Plan
from ablationlab.records.results import Results
from ablationlab.records.settings import Study
from ablationlab.report.effects import effects_of
from ablationlab.report.slots import Slot, Statement
from ablationlab.report.table import Table
from ablationlab.report.terminal.run import value_text
from ablationlab.study.differences import SettingDifference, differences, study_differences

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class StudyPlace:
    """A study file, a sealed plan or a results folder: what is there of it."""

    path: Path
    study: Study | None
    plan: Plan | None = None
    results: Results | None = None


def differences_view(a: StudyPlace, b: StudyPlace) -> Iterator[RenderableType]:
    """A table of each kind: what differs, as A has it and as B has it."""
    yield Text(f"A  {a.path}\nB  {b.path}")
    if a.study is None or b.study is None:
        if a.results is None or b.results is None:
            lone = a if a.study is None else b
            raise AblationLabError(
                f"{lone.path} is the analysis of a table: it can only be compared with other results"
            )
    else:
        yield from _lines("settings", _settings(a.study, b.study))
    if a.plan is not None and b.plan is not None:
        yield from _lines("versions", differences(_environment(a.plan), _environment(b.plan)))
    if a.results is not None and b.results is not None:
        yield from _effects(a.results, b.results)


#: Values that stand in one line, at most.
_SHORT = 40


def _lines(part: str, found: Sequence[SettingDifference]) -> Iterator[RenderableType]:
    """Each as ``key  A → B``, long values in lines of their own."""
    yield ""
    if not found:
        yield Text(Statement(f"diff.same-{part}").text)
    for each in found:
        values = value_text(each.first), value_text(each.second)
        if max(map(len, values)) <= _SHORT:
            yield f"{each.key}  {values[0]} → {values[1]}"
            continue
        yield each.key
        for name, value in zip("AB", values, strict=True):
            yield from (f"  {name}  {line}" for line in value.split("\n"))


def _settings(a: Study, b: Study) -> list[SettingDifference]:
    """Less those of a variant that only one of them has."""
    both = {*a.variants} & {*b.variants}
    found = study_differences(a, b)
    return [each for each in found if not each.key.startswith("variants.") or each.key.split(".")[1] in both]


def _environment(plan: Plan) -> dict[str, Any]:
    environment, how = plan.environment, plan.execution
    return {
        "versions": dict(environment.versions),
        "code": environment.code_hash[:12],
        "processor": environment.processor,
        "device": how.device_name,
        "precision": how.precision,
        "stack width": how.stack_width,
        "threads": how.threads,
        "text": plan.corpus.tokens_sha256[:12],
    }


def _effects(*both: Results) -> Iterator[RenderableType]:
    """Every comparison that a criterion asks, or that has an answer, where it differs; and how many runs ended."""
    known = [
        {}
        if results.analysis is None
        else {row.id: row for row in effects_of(results.analysis, results.verdict) if row.role or row.answer}
        for results in both
    ]
    first, second = ({name: (str(row.estimate), str(row.word)) for name, row in rows.items()} for rows in known)
    none = (DASH, DASH)
    rows = [
        (f"{row.variant} − {row.reference}", row.name, row.regime, *first.get(name, none), *second.get(name, none))
        for name, row in {**known[1], **known[0]}.items()
        if first.get(name) != second.get(name)
    ]
    yield ""
    ended = [f"{results.ended} of {len(results.runs)}" for results in both]
    if ended[0] != ended[1]:
        yield Text(Statement("diff.ended", {"a": Slot(ended[0]), "b": Slot(ended[1])}).text)
    if rows:
        heads = ["contrast", "metric", "regime", "A", "answer A", "B", "answer B"]
        table = Table.simple("", heads, rows, ["A", "B"])
        yield (
            table if len({row.regime for row in (known[0] | known[1]).values()}) > 1 else table.without("regime")
        ).terminal()
    elif ended[0] == ended[1]:
        yield Text(Statement("diff.same-results").text)
