"""Runs that a user brings: a table (CSV, TSV, Parquet, a DataFrame), long or wide, or what wandb, MLflow or TensorBoard kept.

A long table has a row per value (variant, seed, metric, value[, regime, task, step]); a wide one a row per run, or per run
and step, with a column per metric. Nothing in it was registered before the runs, so everything that comes of it is labelled
exploratory. Every problem is reported at once, with its place.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import JsonValue

from ablationlab.analysis.courses import table_courses
from ablationlab.analysis.dataset import Absent, Arm, Dataset, Value, Values, absent, value_or_absent, with_macro
from ablationlab.analysis.table_targets import steps_to_target, without_copies
from ablationlab.analysis.trackers import (
    Cell,
    Curve,
    Point,
    TrackedRun,
    as_step,
    chart_runs,
    is_chart_export,
    is_tracked,
    read_tracker,
    repeated_step,
    unfolded,
)
from ablationlab.core.errors import AblationLabError, StatisticsError, TableError, did_you_mean, nearest
from ablationlab.core.format import setting
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import (
    Absence,
    ComparedTask,
    Deviation,
    DeviationCode,
    Instability,
    RunStability,
    Seed,
)
from ablationlab.records.metrics import METRICS, Metric
from ablationlab.records.settings import DEFAULT_REGIME, Criterion, Stability
from ablationlab.records.storage import LARGEST_RECORD, ResultsFolder, content_hash, open_regular, user_text
from ablationlab.records.table_curves import TableRun

if TYPE_CHECKING:
    import pandas as pd

NEEDED = ("variant", "seed", "metric", "value")
_MOST_PROBLEMS = 12
_LONGEST_SEED = 1000  # characters; Python makes no number of more than 4,300 digits
#: Options that are fields of a criterion.
_ASKED = ("test", "interval", "alpha", "correction", "smallest_effect", "margin")
#: 1.0 is seed 1: a column that passed through floating point.
_WHOLE = re.compile(r"(-?\d+)\.0*$")
#: What trackers write where a run gave no number.
_NO_VALUE = frozenset({"", "nan", "none", "null", "na", "n/a", "diverged"})
#: Columns that number the steps of a run.
_STEPS = ("step", "_step", "global_step", "trainer/global_step", "iteration", "iter", "epoch")
#: Names that say how long a run trained, without what stands before a slash; tokens tell more than steps.
_BUDGETS: Final[Mapping[str, frozenset[str]]] = {
    "tokens": frozenset({"tokens", "total_tokens", "train_tokens", "tokens_seen", "num_tokens"}),
    "steps": frozenset({"step", "steps", "total_steps", "train_steps", "max_steps", "num_steps", "global_step"}),
}
#: What arms may share instead of their budget.
HELD_EQUAL = ("tokens", "flops", "time", "target")
#: Columns that name a run.
_TITLES = frozenset({"run", "run_name", "name", "run name"})
#: Columns that say how a run ended, and what they say of one that ended well or has not ended.
_STATES = ("state", "status")
_FINISHED = frozenset({"finished", "completed", "success", "succeeded", "done", "ok"})
_DIVERGED = frozenset({"diverged", "nan"})
_UNFINISHED = frozenset({"running", "crashed", "failed", "killed", "scheduled", "pending", "preempted", "preempting"})
#: What trackers put before the name of a setting or of a metric.
_SETTING = re.compile(r"(config|params|tags|hparams)[./]")
_PREFIX = re.compile(r"(config|params|tags|hparams|metrics|summary)[./]")

#: Which way is better, by the last word of a metric's name (`val/loss`, `eval_f1`, `brier_score`).
_LOWER = """
loss perplexity ppl error err rmse mse mae nll bpb bpc bpd wer cer ece brier fid latency divergence
"""
_HIGHER = """
accuracy acc f1 auc auroc auprc precision recall bleu rouge rougel map miou iou dice em r2 mcc reward return top1 top5
throughput
"""
LOWER: Final = frozenset(_LOWER.split())
HIGHER: Final = frozenset(_HIGHER.split())
_NO_WORD = frozenset({"score", "mean", "avg", "average", "norm", "match", "macro", "micro", "weighted"})
_DECIMAL: Final = r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?"
_LOGARITHMIC = frozenset({"perplexity", "ppl"})


@dataclass(frozen=True)
class TableOptions:
    """What the table itself does not say.

    *variant*, *seed* and *regime* name columns; without them the names in a run are read by *run_names*
    (``{variant}-s{seed}``). *metrics* are ``name``, ``name:lower`` or ``name:higher``; *where* are ``column=value``, of
    one column any of them, or ``column!=value``. *at* is
    which value of a curve counts: ``last``, ``best`` or ``step=N``; or ``target=X``: the step at which it reaches X.
    *unpaired*: equal seeds mean nothing. *held_equal*: what the arms share where their steps or tokens differ.
    """

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
    variant: str | None = None
    seed: str | None = None
    regime: str | None = None
    metrics: tuple[str, ...] = ()
    at: str = "last"
    where: tuple[str, ...] = ()
    run_names: str | None = None
    unpaired: bool = False
    held_equal: str | None = None

    @classmethod
    def checked(cls, **given: Any) -> TableOptions:
        """Options from the command line, or `StatisticsError` for those that make no sense."""
        options = cls(**given)
        if not 0 < options.alpha < 0.5:
            raise StatisticsError(f"--alpha {options.alpha}: must lie between 0 and 0.5")
        if options.correction == "dunnett":
            raise StatisticsError("--correction dunnett: must be holm, bonferroni, benjamini-hochberg or none")
        for flag, value in (("--smallest-effect", options.smallest_effect), ("--margin", options.margin)):
            if value is not None and not 0 < value < math.inf:
                raise StatisticsError(f"{flag} {value}: must be above 0")
        if not re.fullmatch(rf"last|best|(step|target)={_DECIMAL}", options.at, re.IGNORECASE) or not all(
            math.isfinite(number) for number in (options.step, options.target) if number is not None
        ):
            raise StatisticsError(f"--at {options.at}: must be last, best, step=N or target=X, as step=1000")
        if options.target is not None:
            if options.held_equal not in (None, "target"):
                raise StatisticsError(f"--held-equal {options.held_equal}: --at {options.at} holds the target equal")
            options = replace(options, held_equal="target")
        if options.held_equal not in (None, *HELD_EQUAL):
            raise StatisticsError(f"--held-equal {options.held_equal}: must be {', '.join(HELD_EQUAL)}")
        if options.unpaired:
            for flag, method in (("--test", options.test), ("--interval", options.interval)):
                if method != "paired-t":
                    raise StatisticsError(f"{flag} {method}: --unpaired compares by Welch's test and interval")
        for condition in options.where:
            if not all(_parts(condition)[:2]):
                raise StatisticsError(
                    f"--where {condition!r}: expected column=value or column!=value, as config.lr=0.001"
                )
        names = options.run_names
        if names is not None and "{variant}" not in names:
            raise StatisticsError(f"--run-names {names!r}: must hold {{variant}}, as '{{variant}}-s{{seed}}'")
        return options.spelled_out()

    def spelled_out(self) -> TableOptions:
        """The same with the directions that *metrics* carry under *lower* and *higher*."""
        names, ways = [], {"lower": list(self.lower), "higher": list(self.higher)}
        for text in self.metrics:
            name, _, way = text.rpartition(":")
            if way in ways and name:
                ways[way].append(name)
                names.append(name)
            else:
                names.append(text)
        lower, higher = (tuple(dict.fromkeys(ways[way])) for way in ("lower", "higher"))
        return replace(self, metrics=tuple(dict.fromkeys(names)), lower=lower, higher=higher)

    @property
    def step(self) -> float | None:
        return as_step(float(self.at.removeprefix("step="))) if self.at.startswith("step=") else None

    @property
    def target(self) -> float | None:
        return float(self.at.removeprefix("target=")) if self.at.startswith("target=") else None


@dataclass(frozen=True)
class TableRow:
    """One value of one run. *place* is where it was read; *measured*: what its curve is of, if not of the metric."""

    place: str
    variant: str
    seed: str
    metric: str
    regime: str
    task: str | None
    value: Value
    curve: Curve | None = None
    budget: Mapping[str, float] = field(default_factory=dict)
    measured: str | None = None

    @property
    def key(self) -> tuple[str, str, str, str, str | None]:
        """What may be given once."""
        return self.variant, self.seed, self.metric, self.regime, self.task


class TableProblems(list[str]):
    """What is wrong with a table: with its row at a place, or with the whole."""

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[str, str] = {}

    def at(self, place: str, text: str) -> None:
        self.append(f"{place}: {text}")
        self._places[self[-1]] = place

    def in_order(self, places: Sequence[str]) -> list[str]:
        """Those of the whole first, then by the order of the rows."""
        order = {place: number for number, place in enumerate(places)}
        return sorted(self, key=lambda text: order.get(self._places.get(text, ""), -1))


def read_table(source: Path | pd.DataFrame, options: TableOptions) -> Dataset:
    """Read, check and arrange a table or a tracker's runs; raises `TableError` with every problem."""
    options = options.spelled_out()
    name = source.name.removesuffix(".gz").rpartition(".")[0] if isinstance(source, Path) else "table"
    label = str(source) if isinstance(source, Path) else "the table"
    runs = read_tracker(source) if isinstance(source, Path) else None
    problems = TableProblems()
    if runs is None and isinstance(source, Path) and source.is_dir():
        runs = _history_files(source)
    if runs is None:
        grid = _grid(source)
        if is_chart_export(grid.heads):
            runs = chart_runs(grid.heads, grid.rows)
    unread: list[str] = []
    several: list[str] = []
    if runs is None and grid.long:
        rows = _long_rows(grid, options, problems)
    else:
        tracked = _wide_runs(grid, options) if runs is None else runs
        several = [f"{run.name}: {run.holds}" for run in tracked if run.holds > 1]
        rows, unread = _run_rows(tracked, options, problems)
    for row in rows:
        if len(row.seed) > _LONGEST_SEED:
            problems.at(row.place, f"seed has {len(row.seed)} characters; at most {_LONGEST_SEED}")
    _check_unique(rows, problems)
    rows, noted = without_copies(rows, unpaired=options.unpaired)
    if several:
        noted.append(Deviation(code=DeviationCode.SEVERAL_RUNS, about="logs", details={"logs": [*several]}))
    if options.target is not None and rows and not problems:
        rows, options = _to_target(rows, options, problems, noted)
    if not rows and not problems:
        problems.append("holds no rows below its header" if runs is None else "holds no runs")
    variants = tuple(dict.fromkeys(row.variant for row in rows))
    names = tuple(dict.fromkeys(row.metric for row in rows))
    primary = options.primary or (options.metrics[0] if options.metrics else names[0] if len(names) == 1 else None)
    if rows and not problems:
        problems += _option_problems(options, variants, names, primary)
    unknown: tuple[str, ...] = ()
    if rows and not problems and primary is not None:
        unknown, unequal = _budgets([row for row in rows if row.metric == primary], options, variants)
        problems += unequal
    if problems:
        more = max(0, len(problems) - _MOST_PROBLEMS)
        shown = problems.in_order([] if runs is not None else [place for place, _ in grid.rows])[:_MOST_PROBLEMS]
        raise TableError(label, shown, more=more)
    assert primary is not None
    return _dataset(name, rows, options, primary, unread, unknown, noted)


def holds_runs(folder: Path) -> bool:
    """Whether a folder holds runs that `read_table` reads, and no study: a tracker's, or one table of curves per run."""
    if ResultsFolder(folder).plan.exists():
        return False
    return is_tracked(folder) or any(path.suffix in (".csv", ".tsv", ".parquet") for path in folder.iterdir())


def _dataset(
    name: str,
    rows: Sequence[TableRow],
    options: TableOptions,
    primary: str,
    unread: Sequence[str],
    budget_unknown: tuple[str, ...],
    noted: Sequence[Deviation],
) -> Dataset:
    rows = _of_finished(rows, primary)
    names = dict.fromkeys(row.metric for row in rows)
    variants = dict.fromkeys(row.variant for row in rows)
    regimes = tuple(dict.fromkeys(row.regime for row in rows))
    asked = {option: getattr(options, option) for option in _ASKED}
    values: Values = {}
    seed_of = _seeds(row.seed for row in rows)
    for row in rows:
        task = None if row.task is None else ComparedTask(row.task)
        values.setdefault(Arm(row.metric, task, row.regime, row.variant), {})[seed_of[row.seed]] = row.value
    _fill_runs(values, rows, seed_of, options.baseline, primary)
    tables = _curves(rows)
    content = sorted([*map(str, row.key), _stated(row.value)] for row in rows)
    return Dataset(
        name=name,
        question="",
        source="table",
        source_hash=content_hash({"rows": content, "options": asdict(options)}),
        criteria_hash=None,
        baseline=options.baseline,
        variants=(options.baseline, *(variant for variant in variants if variant != options.baseline)),
        regimes=regimes,
        seeds=tuple(sorted(dict.fromkeys(seed_of.values()), key=lambda seed: (isinstance(seed, str), seed))),
        contrasts=(),
        criteria=tuple(
            Criterion.model_validate({"metric": primary, "regime": regime, "role": "primary", **asked})
            for regime in regimes
        ),
        registered=False,
        metrics={metric: _metric(metric, options) for metric in names},
        values=with_macro(values),
        tie_breakers=options.tie_breakers,
        deviations=(*_deviations(rows, options, primary, unread), *noted),
        stability=Stability(failures=("unstable",)),
        runs=_runs(rows, primary, seed_of),
        unpaired=options.unpaired,
        curves=tables,
        loss_curves=table_courses(tables, primary, options.baseline, tuple(variants), unpaired=options.unpaired),
        budget_unknown=budget_unknown,
    )


def _of_finished(rows: Sequence[TableRow], primary: str) -> list[TableRow]:
    """A run whose primary metric is a number did not diverge, whatever its other metrics are."""

    def number(row: TableRow) -> Value:
        value = row.value
        diverged = isinstance(value, Absent) and value.reason == Absence.DIVERGED
        if isinstance(value, Absent) and diverged and (row.variant, row.regime, row.seed) in finished:
            return absent(Absence.NOT_FINITE, value=value.details["text"])
        return value

    there = [row for row in rows if row.metric == primary and not isinstance(row.value, Absent)]
    finished = {(row.variant, row.regime, row.seed) for row in there}
    return [row if row.metric == primary else replace(row, value=number(row)) for row in rows]


def _fill_runs(
    values: Values, rows: Sequence[TableRow], seed_of: Mapping[str, Seed], baseline: str, primary: str
) -> None:
    """A run with other values and none of the primary metric is lost, unlike one that the table does not have."""
    tasks = dict.fromkeys(arm.task for arm in values if arm.metric == primary)
    for arm, row in ((Arm(primary, task, row.regime, row.variant), row) for task in tasks for row in rows):
        if arm in values or arm._replace(variant=baseline) in values:
            values.setdefault(arm, {}).setdefault(seed_of[row.seed], absent(Absence.NOT_RECORDED))


def _budgets(
    rows: Sequence[TableRow], options: TableOptions, variants: Sequence[str]
) -> tuple[tuple[str, ...], list[str]]:
    """The variants of which nothing says how long they or the baseline trained; and what is wrong where budgets differ.

    They are compared over runs that have a value of the primary metric: one that diverged may have ended early.
    """
    every = grouped(((row.regime, row.variant), row) for row in rows)
    arms = grouped(((row.regime, row.variant), row) for row in rows if not isinstance(row.value, Absent))
    unknown: dict[str, None] = {}
    problems = []
    for regime in dict.fromkeys(row.regime for row in rows):
        base = arms.get((regime, options.baseline), [])
        for variant in variants:
            ours = arms.get((regime, variant), [])
            if variant == options.baseline or not any(row.regime == regime and row.variant == variant for row in rows):
                continue
            told = [arms.get(arm) or every.get(arm, []) for arm in ((regime, variant), (regime, options.baseline))]
            known = [
                kind for kind in _BUDGETS if all(told) and all(kind in row.budget for some in told for row in some)
            ]
            if not known and options.held_equal is None:
                unknown[variant] = None
            elif known and options.held_equal in (None, known[0]) and (numbers := _unequal(ours, base, known[0])):
                where = f" in {regime}" if regime != DEFAULT_REGIME else ""
                text = f"{variant} and {options.baseline} trained for unequal {known[0]}{where}, {numbers}"
                others = [name for name in HELD_EQUAL if name != known[0]]
                ways = [f"say what is held equal instead, with --held-equal {', '.join(others[:-1])} or {others[-1]}"]
                shared = set.intersection(*({*(row.curve.steps if row.curve else ())} for row in (*ours, *base)))
                ways += (
                    [f"compare at one step, with --at step={max(shared)}"] if shared and options.step is None else []
                )
                problems.append(f"{text}; {', or '.join(ways)}")
    return tuple(unknown), problems


def _unequal(ours: Sequence[TableRow], theirs: Sequence[TableRow], kind: str) -> str:
    """``2,000 against 1,000 (seed 1)`` where two runs of one seed, or of arms that share none, have other budgets."""
    of_seed = {row.seed: row.budget[kind] for row in theirs}
    pairs = [(row.budget[kind], of_seed[row.seed], f" (seed {row.seed})") for row in ours if row.seed in of_seed]
    pairs = pairs or [(row.budget[kind], other.budget[kind], "") for row in ours for other in theirs]
    found = next(((a, b, where) for a, b, where in pairs if a != b), None)
    return "" if found is None else f"{setting(found[0])} against {setting(found[1])}{found[2]}"


def _budget_kind(name: str) -> str | None:
    """What a column of this name counts of a run's budget."""
    last = bare(name).rpartition("/")[2]
    return next((kind for kind, names in _BUDGETS.items() if last in names), None)


def _budget(
    points: Sequence[tuple[float | None, Mapping[str, Cell]]], curve: Curve | None, options: TableOptions
) -> dict[str, float]:
    """What the rows of a run, each at its step, and a curve of it say of how long it trained when its value was taken."""
    if options.step is not None:
        points = [(step, cells) for step, cells in points if step is None or step == options.step]
    found: dict[str, float] = {}
    for _, cells in points:
        for name, cell in cells.items():
            kind, number = _budget_kind(name), _number(cell)
            if kind is not None and number is not None and math.isfinite(number):
                found[kind] = max(number, found.get(kind, number))
    if curve is not None and len(curve.steps) > 1:
        found["steps"] = curve.steps[-1] if options.step is None else options.step
    return found


def _deviations(
    rows: Sequence[TableRow], options: TableOptions, primary: str, unread: Sequence[str]
) -> tuple[Deviation, ...]:
    deviations = [
        Deviation(code=DeviationCode.NOT_REGISTERED, about="criteria"),
        Deviation(code=DeviationCode.LEDGER_UNKNOWN, about="ledger"),
    ]
    judged = [row for row in rows if row.metric == primary and not isinstance(row.value, Absent)]
    curves = [row.curve for row in judged if row.curve is not None and row.curve.steps]
    ends = sorted({curve.steps[-1] for curve in curves})
    if ends and not math.isclose(ends[0], ends[-1]) and options.step is None and options.held_equal != "target":
        steps: dict[str, JsonValue] = {"first": ends[0], "last": ends[-1]}
        deviations.append(Deviation(code=DeviationCode.UNEQUAL_STEPS, about=primary, details=steps))
    deviations += _unequal_seeds([row for row in rows if not options.unpaired], options.baseline)
    if options.held_equal is not None:
        deviations.append(Deviation(code=DeviationCode.HELD_EQUAL, about=options.held_equal))
    if curves and options.at == "best":
        deviations.append(Deviation(code=DeviationCode.BEST_OF_CURVE, about=primary))
    for code, reasons, about, lacking in (
        (DeviationCode.UNFINISHED_RUNS, (Absence.NOT_FINISHED,), "runs", rows),
        (
            DeviationCode.EMPTY_VALUES,
            (Absence.NOT_IN_TABLE, Absence.BEYOND_RANGE),
            primary,
            [row for row in rows if row.metric == primary],
        ),
    ):
        gone = [row for row in lacking if isinstance(row.value, Absent) and row.value.reason in reasons]
        runs: list[JsonValue] = [*dict.fromkeys(f"{row.variant} seed {row.seed}" for row in gone)]
        if runs:
            deviations.append(Deviation(code=code, about=about, details={"runs": runs}))
    if unread:
        deviations.append(Deviation(code=DeviationCode.UNREAD_COLUMNS, about="columns", details={"columns": [*unread]}))
    return tuple(deviations)


def _unequal_seeds(rows: Sequence[TableRow], baseline: str) -> list[Deviation]:
    """Arms that have other seeds than the baseline, and some in common."""
    seeds = {arm: {*texts} for arm, texts in grouped(((row.regime, row.variant), row.seed) for row in rows).items()}
    regimes = dict.fromkeys(regime for regime, _ in seeds)
    found = []
    for (regime, variant), own in seeds.items():
        others = seeds.get((regime, baseline), set())
        if own != others and own & others:
            details: dict[str, JsonValue] = {"baseline": baseline, "compared": len(own & others)}
            details |= {"own": len(own), "others": len(others)}
            about = f"{variant} in {regime}" if len(regimes) > 1 else variant
            found.append(Deviation(code=DeviationCode.UNEQUAL_SEEDS, about=about, details=details))
    return found


def _curves(rows: Sequence[TableRow]) -> tuple[TableRun, ...]:
    points: dict[tuple[str, str, str], dict[str, dict[float, float]]] = {}
    for row in rows:
        if row.curve is not None and len(row.curve.steps) > 1 and row.task is None:
            here = points.setdefault((row.variant, row.regime, row.seed), {})
            here[row.measured or row.metric] = dict(zip(row.curve.steps, row.curve.values, strict=True))
    return tuple(
        TableRun.of(f"{regime}/{variant}/{seed}", variant, regime, seed, metrics)
        for (variant, regime, seed), metrics in points.items()
    )


def _runs(rows: Sequence[TableRow], primary: str, seed_of: Mapping[str, Seed]) -> tuple[RunStability, ...]:
    """Which runs diverged, as far as the primary metric tells; nothing where none did, since spikes are not in a table."""
    ended: dict[tuple[str, str, str], bool | None] = {}  # None: the run has not ended, or its value is not there
    for row in rows:
        if row.metric == primary:
            key = (row.variant, row.regime, row.seed)
            gone = row.value.reason if isinstance(row.value, Absent) else None
            gone = None if gone in (Absence.BEYOND_RANGE, Absence.NOT_REACHED) else gone
            ended[key] = True if ended.get(key) or gone == Absence.DIVERGED else None if gone else False
    if not any(ended.values()):
        return ()
    return tuple(
        RunStability(
            run=f"{regime}/{variant}/{seed}",
            variant=variant,
            regime=regime,
            seed=seed_of[seed],
            state="diverged" if diverged else "finished" if diverged is not None else "missing",
            spike_score=None,
            spike_step=None,
            unstable=diverged,
            reason=Instability.NOT_A_NUMBER if diverged else Instability.SPIKES_UNKNOWN,
        )
        for (variant, regime, seed), diverged in ended.items()
    )


def _stated(value: Value) -> str:
    return f"{value.reason} {dict(value.details)}" if isinstance(value, Absent) else repr(value)


# --- tables ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """A table as it was read: its heads, and its rows with their places."""

    source: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]

    @property
    def long(self) -> bool:
        """Whether it has a row per value."""
        return not self.heads or bool({"metric", "value"} & {head.strip().lower() for head in self.heads})


def _grid(source: Path | pd.DataFrame) -> Grid:
    if not isinstance(source, Path):
        return _frame_grid("the table", source)
    if source.suffix in (".parquet", ".pq"):
        import pandas as pd

        try:
            return _frame_grid(str(source), pd.read_parquet(source))
        except FileNotFoundError:
            raise TableError(str(source), ["no such file"]) from None
        except (OSError, ValueError) as error:
            raise TableError(str(source), [f"cannot be read as Parquet: {error}"]) from error
    return _text_grid(source)


def _frame_grid(source: str, frame: pd.DataFrame) -> Grid:
    heads = [str(head) for head in frame.columns]
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index()
        heads = [str(head) for head in frame.columns]
    rows = [
        (f"row {number}", tuple(_plain(cell) for cell in cells))
        for number, cells in enumerate(frame.itertuples(index=False, name=None), start=1)
    ]
    return Grid(source, tuple(heads), tuple(rows))


def _plain(cell: object) -> Any:
    """numpy's and pandas's scalars as Python's; missing values as None. To pandas NaN and an empty cell are one."""
    item = getattr(cell, "item", None)
    if callable(item) and getattr(cell, "ndim", 0) == 0:
        cell = item()
    missing = type(cell).__name__ in ("NAType", "NaTType") or (isinstance(cell, float) and math.isnan(cell))
    return None if missing else cell


def _text_grid(path: Path) -> Grid:
    if path.is_dir():
        text = "is a folder without plan.lock, event files, mlruns, wandb runs or CSV files of runs"
        raise TableError(str(path), [text])
    try:
        text = (_unpacked(path) if path.suffix == ".gz" else user_text(path, "file")).removeprefix("\ufeff")
    except AblationLabError as error:
        raise TableError(str(path), [str(error)]) from error
    delimiter = "\t" if ".tsv" in path.suffixes else _delimiter(text.partition("\n")[0])
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        header = next(reader, None) or []
        rows = [(f"line {reader.line_num}", tuple(cells)) for cells in reader if any(c.strip() for c in cells)]
    except csv.Error as error:
        raise TableError(str(path), [f"is not CSV at line {reader.line_num}: {error}"]) from error
    if delimiter == ";":  # as spreadsheets write it where the decimal sign is a comma
        rows = [(place, tuple(_DECIMAL_COMMA.sub(r"\1.\2", cell) for cell in cells)) for place, cells in rows]
    return Grid(str(path), tuple(header), tuple(rows))


def _unpacked(path: Path) -> str:
    """The text of a file that gzip packed."""
    try:
        with open_regular(path) as file, gzip.GzipFile(fileobj=file) as unpacked:
            content = unpacked.read(LARGEST_RECORD + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise AblationLabError(f"cannot be unpacked: {error}") from error
    if len(content) > LARGEST_RECORD:
        raise AblationLabError(f"unpacks to more than {LARGEST_RECORD:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AblationLabError(f"is not UTF-8 at byte {error.start}") from error


_CHOOSE = "Choose one with --where COLUMN=VALUE"
_DECIMAL_COMMA = re.compile(r"^\s*(-?\d+),(\d+(?:[eE][+-]?\d+)?)\s*$")


def _delimiter(header: str) -> str:
    """A comma; in a header without any, a semicolon or a tab."""
    return next((sign for sign in (",", ";", "\t") if sign in header), ",")


def _history_files(folder: Path) -> list[TrackedRun] | None:
    """A folder with one table per run, named by the run, each with a step column, as wandb's `run.history()` gives it."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".csv", ".tsv", ".parquet"))
    runs = []
    for file in files:
        grid = _grid(file)
        step = _step_column(grid.heads)
        if step is None or grid.long:
            return None
        curves, unreadable = _grid_curves(grid, step, range(len(grid.heads)), grid.rows)
        runs.append(TrackedRun(file.name, file.stem, {}, curves, unreadable=unreadable))
    return runs or None


def _step_column(heads: Sequence[str]) -> int | None:
    names = [head.strip().lower() for head in heads]
    return next((names.index(name) for name in _STEPS if name in names), None)


def _grid_curves(
    grid: Grid, step: int, columns: Iterable[int], rows: Iterable[tuple[str, tuple[Cell, ...]]]
) -> tuple[dict[str, Curve], dict[str, str]]:
    """The numeric columns by step, and what is wrong with some; a cell that is empty was not taken at that step."""
    rows = list(rows)
    curves, unreadable = {}, {}
    for column in columns:
        head = grid.heads[column].strip()
        if column == step or head.startswith("_"):
            continue
        points, wrong = [], []
        for place, cells in rows:
            if len(cells) != len(grid.heads):
                raise TableError(grid.source, [f"{place}: {len(cells)} cells under {len(grid.heads)} columns"])
            at, value = _number(cells[step]), _number(cells[column])
            text = _text(cells[column]).lower()
            value = math.nan if text == "diverged" else value
            if value is None and text not in _NO_VALUE:
                wrong.append(f"{cells[column]!r} in {place} is not a number")
            elif value is not None and not _has_step(at, cells[step]):
                wrong.append(f"{_NO_STEP.format(cells[step])} in {place}")
            elif at is not None and value is not None:
                points.append(Point(place, at, value))
        if points:
            curves[head] = Curve.of((point.step, point.value) for point in points)
            wrong += [problem for problem in [repeated_step(points, _CHOOSE)] if problem is not None]
            if wrong:
                unreadable[head] = wrong[0]
    return curves, unreadable


_NO_STEP: Final = "step {!r} is not a finite number"


def _has_step(at: float | None, cell: Cell) -> bool:
    """Whether a cell says at which step its row was taken, or nothing."""
    return math.isfinite(at) if at is not None else _text(cell) == ""


def _number(cell: Cell) -> float | None:
    if isinstance(cell, bool) or cell is None:
        return None
    try:
        return float(cell)
    except ValueError:
        return None


def _text(cell: Cell) -> str:
    """A cell as a name: `1.0` of a column of floats is the seed 1."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 1e15:
        return str(int(cell))
    return str(cell).strip()


def _find(name: str, names: Sequence[str]) -> list[str]:
    """The columns that *name* may mean: itself, else whatever the case, else without a tracker's prefix."""
    for same in (
        lambda head: head == name,
        lambda head: head.strip().lower() == name.strip().lower(),
        lambda head: bare(head) == bare(name),
    ):
        heads = [head for head in names if same(head)]
        if heads:
            return list(dict.fromkeys(heads))
    return []


def bare(name: str) -> str:
    """A name without what a tracker put before it: `config.arch` is `arch`."""
    return _PREFIX.sub("", name.strip(), count=1).lower()


def _column(flag: str, name: str, names: Sequence[str], problems: list[str]) -> str | None:
    heads = _find(name, names)
    if len(heads) == 1:
        return heads[0]
    if heads:
        problems.append(f"{flag} {name!r} may be {' or '.join(heads)}; write it out")
        return None
    problems.append(_unknown(flag, name, names, "is no column"))
    return None


def _long_rows(grid: Grid, options: TableOptions, problems: TableProblems) -> list[TableRow]:
    names = [head.strip().lower() for head in grid.heads]
    twice = [f"column {name!r} appears twice" for name in {*names} if name and names.count(name) > 1]
    columns: dict[str, int] = {}
    for key, flag, given in _long_columns(options):
        if given is not None:
            head = _column(flag, given, grid.heads, twice)
            if head is not None:
                columns[key] = list(grid.heads).index(head)
        elif key in names:
            columns[key] = names.index(key)
        elif key == "seed" and options.unpaired and (titles := _TITLES.intersection(names)):
            columns[key] = names.index(min(titles))
        elif key in NEEDED and not (key == "seed" and options.unpaired):
            guess = nearest(key, names)
            hint = f"; is it {guess!r}?" if guess else ""
            twice.append(f"column {key!r} is missing (found: {', '.join(names) or 'nothing'}){hint}")
    if twice:
        raise TableError(grid.source, twice)
    step = _step_column(grid.heads)
    wanted = _conditions(options, grid.heads, problems)
    rows: list[TableRow] = []
    points: dict[tuple[Any, ...], list[Point]] = {}
    state = _state_column(grid)
    states: dict[tuple[Any, ...], dict[str, str]] = {}
    spent: dict[tuple[Any, ...], list[tuple[float | None, Mapping[str, Cell]]]] = {}
    others = [number for number in range(len(grid.heads)) if number not in columns.values()]
    for number, (place, cells) in enumerate(grid.rows):
        if len(cells) != len(grid.heads):
            problems.at(place, f"{len(cells)} cells under {len(grid.heads)} columns")
            continue
        if not _meets(dict(zip(grid.heads, cells, strict=True)), wanted):
            continue
        row = _long_row(place, cells, columns, number, problems)
        if row is None:
            continue
        at = None if step is None else _number(cells[step])
        if step is not None and not _has_step(at, cells[step]):
            problems.at(place, _NO_STEP.format(cells[step]))
        elif at is not None:
            curve = points.setdefault(row.key, [])
            value = _number(cells[columns["value"]])
            if not (isinstance(row.value, Absent) and row.value.reason == Absence.NOT_IN_TABLE):
                curve.append(Point(place, at, math.nan if value is None else value))
        spent.setdefault(row.key, []).append((at, {grid.heads[other]: cells[other] for other in others}))
        if state is not None:
            states.setdefault(row.key, {}).setdefault(_text(cells[state]).lower(), place)
        rows.append(row)
    measured = list(dict.fromkeys(row.metric for row in rows))
    problems += [_unknown("--metric", name, measured) for name in options.metrics if rows and name not in measured]
    rows = [row for row in rows if not options.metrics or row.metric in options.metrics]
    if any(len(curve) > 1 for curve in points.values()):
        curves = {row.key: row for row in rows if row.key in points}
        for row in curves.values():
            problem = repeated_step(points[row.key], _CHOOSE)
            if problem is not None:
                problems.at(row.place, f"{row.variant}, {row.seed}, {row.metric}: {problem}")
        rows = [
            *(
                _at(row, Curve.of((p.step, p.value) for p in points[row.key]), options) if points[row.key] else row
                for row in curves.values()
            ),
            *(row for row in rows if row.key not in points),
        ]
    for row in {row.key: row for row in rows}.values():
        if len(states.get(row.key, {})) > 1:
            places = " and ".join(f"{word} in {place}" for word, place in states[row.key].items())
            text = f"{row.variant}, {row.seed}, {row.metric} is {places}; choose runs with --where"
            problems.at(row.place, text)
    return [
        replace(
            row,
            value=_if_finished(row.value, *states.get(row.key, [""])),
            budget=_budget(spent[row.key], row.curve, options),
        )
        for row in rows
    ]


def _if_finished(value: Value, *states: str) -> Value:
    """The value of a run in these states; none of one that has not ended, unless it diverged."""
    if told := _DIVERGED.intersection(states):
        return absent(Absence.DIVERGED, text=min(told))
    diverged = isinstance(value, Absent) and value.reason == Absence.DIVERGED
    return absent(Absence.NOT_FINISHED) if not diverged and _UNFINISHED.intersection(states) else value


def _long_columns(options: TableOptions) -> list[tuple[str, str, str | None]]:
    """(what, option, the column that the option names)"""
    return [
        ("variant", "--variant", options.variant),
        ("seed", "--seed", options.seed),
        ("metric", "", None),
        ("value", "", None),
        ("regime", "--regime", options.regime),
        ("task", "", None),
    ]


def _long_row(
    place: str, cells: Sequence[Cell], columns: Mapping[str, int], number: int, problems: TableProblems
) -> TableRow | None:
    cell = {name: _text(cells[at]) for name, at in columns.items() if name != "value"}
    cell.setdefault("seed", f"run {number + 1}")
    empty = [name for name in NEEDED[:3] if not cell[name]]
    if empty:
        problems.at(place, f"{', '.join(empty)} must not be empty")
        return None
    value = _value(cells[columns["value"]])
    if value is None:
        problems.at(place, f"value {cells[columns['value']]!r} is not a number")
        return None
    return TableRow(
        place=place,
        variant=cell["variant"],
        seed=_WHOLE.sub(r"\1", cell["seed"]),
        metric=cell["metric"],
        regime=cell.get("regime") or DEFAULT_REGIME,
        task=cell.get("task") or None,
        value=value,
    )


def _wide_runs(grid: Grid, options: TableOptions) -> list[TrackedRun]:
    """The rows of a wide table as runs; rows that differ in their step alone are one run's curves."""
    ragged = [
        f"{place}: {len(c)} cells under {len(grid.heads)} columns"
        for place, c in grid.rows
        if len(c) != len(grid.heads)
    ]
    names = [head.strip() for head in grid.heads]
    ragged += [f"column {name!r} appears twice" for name in {*names} if name and names.count(name) > 1]
    if ragged:
        raise TableError(grid.source, ragged)
    state = _state_column(grid)
    titles = next((n for n, name in enumerate(names) if name.lower() in _TITLES), None)
    step = _step_column(names)
    if step is not None:
        history = _histories(grid, names, step, titles, state, options)
        if history is not None:
            return history
    return [
        TrackedRun(
            place=place,
            name=place if titles is None else _text(cells[titles]),
            cells=unfolded(dict(zip(names, cells, strict=True))),
            state="" if state is None else _text(cells[state]).lower(),
        )
        for place, cells in grid.rows
    ]


def _state_column(grid: Grid) -> int | None:
    for column, head in enumerate(grid.heads):
        if head.strip().lower() in _STATES:
            words = {_text(cells[column]).lower() for _, cells in grid.rows if len(cells) == len(grid.heads)}
            if words and words <= _FINISHED | _UNFINISHED | _DIVERGED:
                return column
    return None


def _histories(
    grid: Grid, names: Sequence[str], step: int, titles: int | None, state: int | None, options: TableOptions
) -> list[TrackedRun] | None:
    """Rows grouped by run, which has one state; None where no run has two rows."""
    asked = [options.variant or "variant", options.seed or "seed", options.regime or "regime"]
    for name, value, unlike in map(_parts, options.where):
        if unlike and step in [names.index(head) for head in _find(name, names)[:1]]:
            raise TableError(grid.source, [f"--where '{name}!={value}': leaves out runs, not single steps of them"])
        asked.append(name)
    keys = [names.index(head) for name in asked for head in _find(name, names)[:1]]
    keys += [column for column in (titles, state) if column is not None]
    groups = grouped((tuple(_text(cells[key]) for key in keys), (place, cells)) for place, cells in grid.rows)
    if len(groups) == len(grid.rows) or not keys:
        return None
    measured = [number for number in range(len(names)) if number not in keys and not _SETTING.match(names[number])]
    runs = []
    logs = [_restarts(group, step) if options.unpaired else [group] for group in groups.values()]
    for rows, holds in ((part, 0 if place else len(log)) for log in logs for place, part in enumerate(log)):
        place, cells = rows[0]
        settings = {name: cell for name, cell in zip(names, cells, strict=True) if names.index(name) not in measured}
        curves, unreadable = _grid_curves(grid, step, measured, rows)
        name = place if titles is None else _text(cells[titles])
        ended = "" if state is None else _text(cells[state]).lower()
        runs.append(TrackedRun(place, name, settings, curves, ended, unreadable, holds))
    return runs


def _restarts(rows: Sequence[tuple[str, tuple[Cell, ...]]], step: int) -> list[list[tuple[str, tuple[Cell, ...]]]]:
    """The runs that one log holds one after the other, each from its first step again."""
    runs: list[list[tuple[str, tuple[Cell, ...]]]] = []
    first = _number(rows[0][1][step])
    for place, cells in rows:
        if not runs or (_number(cells[step]) == first and len(runs[-1]) > 1):
            runs.append([])
        runs[-1].append((place, cells))
    return runs


# --- runs -----------------------------------------------------------------------------------------------------

_USUAL_NAMES = re.compile(
    r"(?P<variant>.+?)(?:[/_\-. ]+(?:seed|s)?[=_\-]?|[/_\-. ]*seed[=_\-]?)(?P<seed>\d+)(?:-[0-9a-f]{8})?"
)


def _run_rows(
    runs: Sequence[TrackedRun], options: TableOptions, problems: TableProblems
) -> tuple[list[TableRow], list[str]]:
    """One row per run and metric; and the columns of numbers that are not read."""
    names = list(dict.fromkeys(name for run in runs for name in run.cells))
    wanted = _conditions(options, names, problems)
    runs = [run for run in runs if _meets(run.cells, wanted)]
    if wanted and not runs:
        problems.append(f"no run meets {' and '.join(options.where)}")
    columns = {
        key: _setting_column(key, getattr(options, key), names, options, problems)
        for key in ("variant", "seed", "regime")
    }
    settled = not problems
    metrics, unread = _metric_names(runs, options, columns, problems)
    if problems:
        if settled:  # the arms are known, so the baseline can be checked beside the metrics
            labelled = [_labels(run, columns, options, n, TableProblems()) for n, run in enumerate(runs, start=1)]
            variants = dict.fromkeys(labels[0] for labels in labelled if labels is not None)
            problems += _baseline_problems(options, list(variants)) if variants else []
        return [], []
    rows = []
    named: set[tuple[str, str, str]] = set()
    for number, run in enumerate(runs, start=1):
        labels = _labels(run, columns, options, number, problems)
        if labels is None:
            continue
        if options.unpaired and labels in named:  # equal seeds mean nothing
            labels = labels[0], f"run {number}", labels[2]
        named.add(labels)
        spent: list[tuple[float | None, Mapping[str, Cell]]] = [(None, run.cells)]
        for name, read in run.curves.items():
            if _budget_kind(name) is not None:
                spent += [(step, {name: number}) for step, number in zip(read.steps, read.values, strict=True)]
        for metric, heads in metrics.items():
            value, curve = _run_value(run, metric, heads, options, problems)
            budget = _budget(spent, curve, options)
            rows.append(TableRow(run.place, *labels[:2], metric, labels[2], None, value, curve, budget))
    return rows, unread


def _parts(condition: str) -> tuple[str, str, bool]:
    """(column, value, whether it must differ) of a --where."""
    name, _, value = condition.partition("=")
    return name.removesuffix("!"), value, name.endswith("!")


def _conditions(
    options: TableOptions, names: Sequence[str], problems: TableProblems
) -> dict[tuple[str, bool], list[str]]:
    """By column and whether they must differ, the values of every --where."""
    asked = [
        ((_column("--where", name, names, problems), unlike), value)
        for name, value, unlike in map(_parts, options.where)
    ]
    return grouped(((head, unlike), value) for (head, unlike), value in asked if head is not None)


def _meets(cells: Mapping[str, Cell], conditions: Mapping[tuple[str, bool], Sequence[str]]) -> bool:
    return all((_text(cells.get(head)) in values) != unlike for (head, unlike), values in conditions.items())


def _setting_column(
    key: str, given: str | None, names: Sequence[str], options: TableOptions, problems: TableProblems
) -> str | None:
    """The column with the variant, seed or regime of a run; None where the run's name is to say it."""
    if given is not None:
        if names:
            return _column(f"--{key}", given, names, problems)
        text = "these runs have names and curves, no settings; use --run-names '{variant}-s{seed}'"
        problems.append(f"--{key} {given!r}: {text}")
        return None
    if options.run_names is not None and f"{{{key}}}" in options.run_names:
        return None
    heads = _find(key, names)
    if len(heads) > 1:
        problems.append(f"{key}: {' or '.join(heads)}? Say which with --{key}")
    if not heads and names and key != "regime" and not (key == "seed" and options.unpaired):
        more = ", or --unpaired where runs have none" if key == "seed" else ""
        problems.append(f"which column holds the {key}? Say --{key} COLUMN{more}; it holds: {', '.join(names)}")
    return heads[0] if heads else None


def _labels(
    run: TrackedRun, columns: Mapping[str, str | None], options: TableOptions, number: int, problems: TableProblems
) -> tuple[str, str, str] | None:
    """(variant, seed, regime) of a run, from its settings or its name."""
    labels = {key: _text(run.cells.get(head)) for key, head in columns.items() if head is not None}
    if "variant" not in labels or ("seed" not in labels and not options.unpaired):
        pattern = _USUAL_NAMES if options.run_names is None else _pattern(options.run_names)
        match = pattern.fullmatch(run.name)
        if match is None:
            form = options.run_names or "{variant}-s{seed}"
            problems.append(
                f"run {run.name!r}: its name does not read as {form!r}; say how names read with --run-names"
            )
            return None
        labels = {key: value for key, value in match.groupdict().items() if value} | labels
    if options.unpaired:
        labels["seed"] = labels.get("seed") or f"run {number}"
    empty = [key for key in ("variant", "seed") if not labels.get(key)]
    if empty:
        problems.at(run.place, f"{', '.join(empty)} must not be empty")
        return None
    return labels["variant"], _WHOLE.sub(r"\1", labels["seed"]), labels.get("regime") or DEFAULT_REGIME


def _pattern(names: str) -> re.Pattern[str]:
    """``{variant}-s{seed}`` as an expression; ``*`` stands for anything."""
    text = re.escape(names).replace(r"\*", ".*")
    for key, form in (("variant", ".+?"), ("seed", r"[^/]+?"), ("regime", r"[^/]+?")):
        text = text.replace(re.escape(f"{{{key}}}"), f"(?P<{key}>{form})", 1)
    return re.compile(text)


def _metric_names(
    runs: Sequence[TrackedRun], options: TableOptions, columns: Mapping[str, str | None], problems: TableProblems
) -> tuple[dict[str, list[str]], list[str]]:
    """What each metric is called in the runs, and the columns of numbers that are not metrics.

    With --metric those that it names, else every name with a known direction or one that an option gives.
    """
    curves = list(dict.fromkeys(name for run in runs for name in run.curves))
    used = set(columns.values())
    cells = [
        name
        for name in dict.fromkeys(name for run in runs for name in run.cells)
        if name not in used
        and not _SETTING.match(name)
        and any(_number(run.cells.get(name)) is not None for run in runs)
    ]
    there = list(dict.fromkeys([*curves, *cells]))
    asked = [
        *options.metrics,
        *(() if options.primary is None else (options.primary,)),
        *options.lower,
        *options.higher,
    ]
    chosen: dict[str, list[str]] = {}
    for name in dict.fromkeys(asked):
        heads = _find(name, there)
        if not heads:
            problems += _unknown_metric(name, [bare_metric(head) for head in there])
        chosen[name] = heads
    if options.metrics:
        return chosen, []
    named = {head for heads in chosen.values() for head in heads}
    unread = []
    for head in there:
        name = bare_metric(head)
        if head in named or (name in chosen and name in asked):
            continue
        # Nobody asked for this column: what could not be read in it is no reason to refuse the table.
        if direction_of(name) is not None and (not asked or all(_readable(run, head, options) for run in runs)):
            chosen.setdefault(name, []).append(head)
        elif head.strip().lower() not in _STEPS and _budget_kind(head) is None and not head.startswith("_"):
            unread.append(head)
    if runs and not chosen:
        listed = ", ".join(bare_metric(head) for head in there) or "none"
        problems.append(
            f"no metric with a known direction; name yours as --metric NAME:lower or NAME:higher, from: {listed}"
        )
    return chosen, unread


def _readable(run: TrackedRun, head: str, options: TableOptions) -> bool:
    if head in run.curves:
        return head not in run.unreadable
    return options.step is None and _value(run.cells.get(head)) is not None


def bare_metric(name: str) -> str:
    """A metric without its tracker's prefix, in its own spelling."""
    return _PREFIX.sub("", name.strip(), count=1)


def _run_value(
    run: TrackedRun, metric: str, heads: Sequence[str], options: TableOptions, problems: TableProblems
) -> tuple[Value, Curve | None]:
    head = next((head for head in heads if head in run.curves), None)
    curve = None if head is None else run.curves[head]
    if head is not None and head in run.unreadable:
        problems.at(run.place, f"{metric}: {run.unreadable[head]}")
    if curve is not None:
        row = _at(TableRow(run.place, "", "", metric, "", None, absent(Absence.NOT_IN_TABLE)), curve, options)
        value: Value = row.value
    else:
        cell = next((run.cells[head] for head in heads if run.cells.get(head) not in (None, "")), None)
        if options.step is not None and cell is not None:
            problems.append(f"--at {options.at}: {run.place} has no curve of {metric}")
        given = _value(cell)
        if given is None:
            problems.at(run.place, f"{metric} {cell!r} is not a number")
        value = given if given is not None else absent(Absence.NOT_IN_TABLE)
    return _if_finished(value, run.state), curve


def _at(row: TableRow, curve: Curve, options: TableOptions) -> TableRow:
    """The row with the value of its curve that counts. A curve that ends without a finite number diverged."""
    if options.step is not None:
        number = curve.at(options.step)
        if number is None:
            gone = absent(Absence.NOT_IN_CURVE, metric=row.metric, step=options.step)
            return replace(row, value=gone, curve=curve)
    elif options.at == "best":
        number = curve.best(_metric(row.metric, options).direction or "lower")
    else:
        number = curve.values[-1]
    value = value_or_absent(number) if math.isfinite(number) else absent(Absence.DIVERGED, text=str(number))
    return replace(row, value=value, curve=curve)


def _value(cell: Cell) -> Value | None:
    if isinstance(cell, str):
        text = cell.strip()
        if text.lower() in _NO_VALUE:
            diverged = text.lower() in ("nan", "diverged")
            return absent(Absence.DIVERGED, text=text) if diverged else absent(Absence.NOT_IN_TABLE)
    elif cell is None:
        return absent(Absence.NOT_IN_TABLE)
    number = _number(cell)
    if number is None:
        return None
    return value_or_absent(number) if math.isfinite(number) else absent(Absence.DIVERGED, text=str(cell).strip())


def _to_target(
    rows: list[TableRow], options: TableOptions, problems: TableProblems, noted: list[Deviation]
) -> tuple[list[TableRow], TableOptions]:
    """The steps to the target of the one metric that is asked for, and the options that fit them."""
    assert options.target is not None
    measured = list(dict.fromkeys(row.metric for row in rows))
    if len(measured) != 1:
        text = f"--at {options.at}: name the metric that has this target, with --metric, from: {', '.join(measured)}"
        problems.append(text)
        return rows, options
    direction = _metric(measured[0], options).direction or "lower"
    name = f"steps_to_{measured[0]}_{options.target:g}"
    found, coarse = steps_to_target(rows, name, options.target, direction, problems)
    noted += coarse
    return found, replace(options, metrics=(name,), primary=name, lower=(name,), higher=(), log=())


# --- checks ---------------------------------------------------------------------------------------------------


def _check_unique(rows: Sequence[TableRow], problems: TableProblems) -> None:
    seen: dict[tuple[str, str, str, str, str | None], str] = {}
    named = set()
    for row in rows:
        first = seen.setdefault(row.key, row.place)
        if first != row.place and (row.place, first) not in named:
            named.add((row.place, first))
            what = ", ".join(part for part in row.key if part is not None)
            problems.at(row.place, f"{what} is given already in {first}; choose runs with --where")


def _seeds(texts: Iterable[str]) -> dict[str, Seed]:
    """Whole numbers where all of them are, else names."""
    seeds = list(dict.fromkeys(texts))
    if all(text.removeprefix("-").isdecimal() and str(int(text)) == text for text in seeds):
        return {text: int(text) for text in seeds}
    return dict(zip(seeds, seeds, strict=True))


def _option_problems(
    options: TableOptions, variants: Sequence[str], names: Sequence[str], primary: str | None
) -> list[str]:
    problems = _baseline_problems(options, variants)
    given = [("--primary", name) for name in ([options.primary] if options.primary else [])]
    for flag, chosen in (
        ("--metric", options.metrics),
        ("--lower", options.lower),
        ("--higher", options.higher),
        ("--log", options.log),
    ):
        given += [(flag, name) for name in chosen if (flag == "--metric") or name not in options.metrics]
    for flag, name in given:
        if name not in names:
            problems += _unknown_metric(name, names) if flag == "--metric" else [_unknown(flag, name, names)]
    both = sorted(set(options.lower) & set(options.higher))
    problems += [f"{name!r} cannot be better both lower and higher" for name in both]
    if primary is None:
        problems.append(f"holds several metrics; name the one that decides with --primary: {', '.join(names)}")
    elif primary in names and not both and _metric(primary, options).direction is None:
        problems.append(f"which way is {primary!r} better? Say --lower {primary} or --higher {primary}")
    return problems


def _baseline_problems(options: TableOptions, variants: Sequence[str]) -> list[str]:
    if not options.baseline:
        return [f"--baseline says which variant the others are compared with: {', '.join(variants)}"]
    if options.baseline not in variants:
        return [_unknown("--baseline", options.baseline, variants)]
    if len(variants) < 2:
        return [f"holds one variant only, {variants[0]!r}: there is nothing to compare it with"]
    return []


def _unknown_metric(text: str, known: Sequence[str]) -> list[str]:
    """What is wrong with a metric that is not in the table: its name, its direction, or both."""
    name, colon, way = text.rpartition(":")
    guess = nearest(way, ("lower", "higher"))
    if not colon or guess is None:
        return [_unknown("--metric", text, known)]
    problems = [f"--metric {text!r}: {way!r} is no direction; did you mean {guess!r}? (allowed: lower, higher)"]
    return problems if _find(name, known) else [*problems, _unknown("--metric", name, known)]


def _unknown(flag: str, name: str, known: Sequence[str], what: str = "is not in the table") -> str:
    return f"{flag} {name!r} {what}; it holds: {', '.join(known)}{did_you_mean(name, known)}"


def direction_of(name: str) -> Literal["lower", "higher"] | None:
    """Which way a metric of this name is better, where the name tells."""
    if name in METRICS:
        return METRICS[name].direction
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word and word not in _NO_WORD]
    last = words[-1] if words else ""
    return "lower" if last in LOWER else "higher" if last in HIGHER else None


def _metric(name: str, options: TableOptions) -> Metric:
    known = dict(METRICS.items()).get(name)
    direction = direction_of(name)
    direction = "lower" if name in options.lower else "higher" if name in options.higher else direction
    words = re.split(r"[^a-z0-9]+", name.lower())
    transform: Literal["identity", "log"] = "log" if words[-1] in _LOGARITHMIC else "identity"
    transform = known.transform if known else transform
    return Metric(
        name,
        "as given in the table",
        # A loss may be in nats or bits, per token or per byte.
        "steps" if options.target is not None else "1" if known and known.unit == "1" else "",
        direction,
        known.family if known else name,
        transform="log" if name in options.log else transform,
        derived_from=known.derived_from if known else None,
    )
