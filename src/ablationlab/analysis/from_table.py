"""Runs that a user brings: a CSV table of (variant, seed, metric, value[, regime, task]) as any tracker exports it.

Nothing in such a table was registered before the runs, so everything that comes of it is labelled exploratory. Every
problem of the file is reported at once, with its line.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ablationlab.analysis import wording
from ablationlab.analysis.dataset import Absent, Arm, Dataset, Value, Values, absent, value_or_absent, with_macro
from ablationlab.core.errors import StatisticsError, TableError, nearest
from ablationlab.records.analysis import Absence, DeviationCode, Instability, RunStability, Seed
from ablationlab.records.metrics import METRICS, Metric
from ablationlab.records.settings import DEFAULT_REGIME, SPIKE_SCORE, Criterion
from ablationlab.records.storage import content_hash

NEEDED = ("variant", "seed", "metric", "value")
OPTIONAL = ("regime", "task")
_MOST_PROBLEMS = 12
#: Options that are fields of a criterion.
_ASKED = ("test", "interval", "alpha", "correction", "smallest_effect", "margin")
#: 1.0 is seed 1: a column that passed through floating point.
_WHOLE = re.compile(r"(-?\d+)\.0*$")
#: What trackers write where a run gave no number.
_NO_VALUE = frozenset({"", "nan", "none", "null", "na", "n/a", "diverged"})


@dataclass(frozen=True)
class TableOptions:
    """What the table itself does not say."""

    baseline: str
    primary: str | None = None
    lower: tuple[str, ...] = ()
    higher: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    smallest_effect: float | None = None
    margin: float | None = None
    alpha: float = 0.05
    test: str = "paired-t"
    interval: str = "paired-t"
    correction: str = "holm"
    tie_breakers: tuple[str, ...] = ()

    @classmethod
    def checked(cls, **given: Any) -> TableOptions:
        """Options from the command line, or `StatisticsError` for numbers that make no sense."""
        options = cls(**given)
        if not 0 < options.alpha < 0.5:
            raise StatisticsError(f"--alpha {options.alpha}: must lie between 0 and 0.5")
        for flag, value in (("--smallest-effect", options.smallest_effect), ("--margin", options.margin)):
            if value is not None and not 0 < value < math.inf:
                raise StatisticsError(f"{flag} {value}: must be above 0")
        return options


@dataclass(frozen=True)
class TableRow:
    """One line of the table."""

    line: int
    variant: str
    seed: str
    metric: str
    regime: str
    task: str | None
    value: Value

    @property
    def key(self) -> tuple[str, str, str, str, str | None]:
        """What may be given once."""
        return self.variant, self.seed, self.metric, self.regime, self.task


def read_table(path: Path, options: TableOptions) -> Dataset:
    """Read, check and arrange a table; raises `TableError` with every problem."""
    rows = _rows(path)
    variants = tuple(dict.fromkeys(row.variant for row in rows))
    names = tuple(dict.fromkeys(row.metric for row in rows))
    primary = options.primary or (names[0] if len(names) == 1 else None)
    problems = _option_problems(options, variants, names, primary)
    if problems:
        raise TableError(str(path), problems)
    assert primary is not None
    regimes = tuple(dict.fromkeys(row.regime for row in rows))
    asked = {name: getattr(options, name) for name in _ASKED}
    values: Values = {}
    seed_of = _seeds(row.seed for row in rows)
    for row in rows:
        values.setdefault(Arm(row.metric, row.task, row.regime, row.variant), {})[seed_of[row.seed]] = row.value
    content = sorted([*map(str, row.key), _said(row.value)] for row in rows)
    return Dataset(
        name=path.stem,
        question="",
        source="table",
        source_hash=content_hash({"rows": content, "options": asdict(options)}),
        criteria_hash=None,
        baseline=options.baseline,
        variants=(options.baseline, *(name for name in variants if name != options.baseline)),
        regimes=regimes,
        seeds=tuple(sorted(dict.fromkeys(seed_of.values()), key=lambda seed: (isinstance(seed, str), seed))),
        contrasts=(),
        criteria=tuple(
            Criterion.model_validate({"metric": primary, "regime": regime, "role": "primary", **asked})
            for regime in regimes
        ),
        registered=False,
        metrics={name: _metric(name, options) for name in names},
        values=with_macro(values),
        tie_breakers=options.tie_breakers,
        deviations=(
            wording.deviation(DeviationCode.NOT_REGISTERED, "criteria"),
            wording.deviation(DeviationCode.LEDGER_UNKNOWN, "ledger"),
        ),
        spike_threshold=SPIKE_SCORE,
        runs=_runs(rows, primary, seed_of),
    )


def _runs(rows: Sequence[TableRow], primary: str, seed_of: Mapping[str, Seed]) -> tuple[RunStability, ...]:
    """Which runs diverged, as far as the primary metric tells; nothing where none did, since spikes are not in a table."""
    ended: dict[tuple[str, str, str], bool] = {}
    for row in rows:
        if row.metric == primary:
            key = (row.variant, row.regime, row.seed)
            ended[key] = ended.get(key, False) or (
                isinstance(row.value, Absent) and row.value.reason == Absence.DIVERGED
            )
    if not any(ended.values()):
        return ()
    return tuple(
        RunStability(
            run=f"{regime}/{variant}/{seed}",
            variant=variant,
            regime=regime,
            seed=seed_of[seed],
            state="diverged" if diverged else "finished",
            spike_score=None,
            spike_step=None,
            unstable=diverged,
            reason=reason,
            why=wording.instability(reason, metric=primary),
        )
        for (variant, regime, seed), diverged in ended.items()
        for reason in [Instability.NOT_A_NUMBER if diverged else Instability.SPIKES_UNKNOWN]
    )


def _said(value: Value) -> str:
    return repr(wording.absence(value) if isinstance(value, Absent) else value)


def _rows(path: Path) -> list[TableRow]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, None)
            columns = _columns(path, header)
            lines = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except FileNotFoundError:
        raise TableError(str(path), ["no such file"]) from None
    except UnicodeDecodeError as error:
        raise TableError(str(path), [f"is not UTF-8 at byte {error.start}"]) from error
    except csv.Error as error:
        raise TableError(str(path), [f"is not CSV: {error}"]) from error
    except OSError as error:
        raise TableError(str(path), [f"cannot be read: {error.strerror}"]) from error
    problems: list[str] = []
    rows: list[TableRow] = []
    seen: dict[tuple[str, str, str, str, str | None], int] = {}
    for line, cells in lines:
        row = _row(line, cells, columns, header or [], problems)
        if row is None:
            continue
        if row.key in seen:
            what = ", ".join(part for part in row.key if part is not None)
            problems.append(f"line {line}: {what} is given already in line {seen[row.key]}")
        seen[row.key] = line
        rows.append(row)
    if not rows and not problems:
        problems.append("holds no rows below its header")
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        raise TableError(str(path), problems[:_MOST_PROBLEMS] + ([f"and {more} more"] if more > 0 else []))
    return rows


def _columns(path: Path, header: Sequence[str] | None) -> dict[str, int]:
    names = [name.strip().lower() for name in header or []]
    problems = [f"column {name!r} appears twice" for name in {*names} if name and names.count(name) > 1]
    for name in NEEDED:
        if name not in names:
            guess = nearest(name, names)
            hint = f"; is it {guess!r}?" if guess else ""
            found = ", ".join(names) or "nothing"
            problems.append(f"column {name!r} is missing (found: {found}){hint}")
    if problems:
        raise TableError(str(path), problems)
    return {name: names.index(name) for name in (*NEEDED, *OPTIONAL) if name in names}


def _row(
    line: int, cells: Sequence[str], columns: dict[str, int], header: Sequence[str], problems: list[str]
) -> TableRow | None:
    if len(cells) != len(header):
        problems.append(f"line {line}: {len(cells)} cells under {len(header)} columns")
        return None
    cell = {name: cells[at].strip() for name, at in columns.items()}
    empty = [name for name in NEEDED[:3] if not cell[name]]
    if empty:
        problems.append(f"line {line}: {', '.join(empty)} must not be empty")
        return None
    value = _value(cell["value"])
    if value is None:
        problems.append(f"line {line}: value {cell['value']!r} is not a number")
        return None
    return TableRow(
        line=line,
        variant=cell["variant"],
        seed=_WHOLE.sub(r"\1", cell["seed"]),
        metric=cell["metric"],
        regime=cell.get("regime") or DEFAULT_REGIME,
        task=cell.get("task") or None,
        value=value,
    )


def _value(text: str) -> Value | None:
    if text.lower() in _NO_VALUE:
        diverged = text.lower() in ("nan", "diverged")
        return absent(Absence.DIVERGED, text=text) if diverged else absent(Absence.NOT_IN_TABLE)
    try:
        value = float(text)
    except ValueError:
        return None
    return value_or_absent(value) if math.isfinite(value) else absent(Absence.DIVERGED, text=text)


def _seeds(texts: Iterable[str]) -> dict[str, Seed]:
    """Whole numbers where all of them are, else names."""
    found = list(dict.fromkeys(texts))
    if all(text.removeprefix("-").isdecimal() and str(int(text)) == text for text in found):
        return {text: int(text) for text in found}
    return dict(zip(found, found, strict=True))


def _option_problems(
    options: TableOptions, variants: Sequence[str], names: Sequence[str], primary: str | None
) -> list[str]:
    problems = []
    if options.baseline not in variants:
        problems.append(_unknown("--baseline", options.baseline, variants))
    elif len(variants) < 2:
        problems.append(f"holds one variant only, {variants[0]!r}: there is nothing to compare it with")
    given = [("--primary", name) for name in ([options.primary] if options.primary else [])]
    for flag, chosen in (("--lower", options.lower), ("--higher", options.higher), ("--log", options.log)):
        given += [(flag, name) for name in chosen]
    problems += [_unknown(flag, name, names) for flag, name in given if name not in names]
    both = sorted(set(options.lower) & set(options.higher))
    problems += [f"{name!r} cannot be better both lower and higher" for name in both]
    if primary is None:
        problems.append(f"holds several metrics; name the one that decides with --primary: {', '.join(names)}")
    elif primary in names and not both and _metric(primary, options).direction is None:
        problems.append(f"which way is {primary!r} better? Say --lower {primary} or --higher {primary}")
    return problems


def _unknown(flag: str, name: str, known: Sequence[str]) -> str:
    guess = nearest(name, known)
    hint = f"; did you mean {guess!r}?" if guess else ""
    return f"{flag} {name!r} is not in the table; it holds: {', '.join(known)}{hint}"


def _metric(name: str, options: TableOptions) -> Metric:
    known = dict(METRICS.items()).get(name)
    direction: Literal["lower", "higher"] | None = known.direction if known else None
    direction = "lower" if name in options.lower else "higher" if name in options.higher else direction
    transform = known.transform if known else "identity"
    return Metric(
        name,
        known.meaning if known else "as given in the table",
        known.unit if known else "",
        direction,
        known.family if known else name,
        transform="log" if name in options.log else transform,
    )
