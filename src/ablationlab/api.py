"""The verbs of the command line for notebooks and scripts: `analyze`, `plan`, `power`, `compare`. Loads no torch by itself.

Each takes what is at hand (a path, a bare study name, nested tables, a pandas frame) and returns an object with typed fields
that shows itself as a table in Jupyter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ablationlab.core.errors import AblationLabError, TableError
from ablationlab.records.analysis import ItemComparison
from ablationlab.records.plan import Plan
from ablationlab.records.settings import Study
from ablationlab.report.table import html_text

if TYPE_CHECKING:
    import pandas as pd

    from ablationlab.analysis.study_power import StudyPower
    from ablationlab.report.notebook import StudyResults
    from ablationlab.report.table import Table

Source = str | Path | Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Found(ABC):
    """What a call found, as tables and clauses; shows itself in Jupyter."""

    @abstractmethod
    def tables(self) -> tuple[Table, ...]:
        """What it shows, as tables with six forms each."""

    def clauses(self) -> tuple[str, ...]:
        """What stands above the tables."""
        return ()

    def _repr_html_(self) -> str:
        above = "".join(f"<p>{html_text(clause)}</p>" for clause in self.clauses())
        tables = (f"<p><b>{html_text(table.caption)}</b></p>{table.html_standalone()}" for table in self.tables())
        return above + "".join(tables)


def analyze(
    source: Source | pd.DataFrame,
    *,
    baseline: str | None = None,
    metric: str | Sequence[str] | Mapping[str, str] = (),
    variant: str | None = None,
    seed: str | None = None,
    regime: str | None = None,
    at: str = "last",
    where: Mapping[str, Any] | None = None,
    run_names: str | None = None,
    unpaired: bool = False,
    accept_altered: bool = False,
    **criterion: Any,
) -> StudyResults:
    """Compare every variant with the baseline and apply the rules. Nothing is written; `write` does that.

    *source* is a results folder, a study file or its bare name::

        ablationlab.analyze("results/quick").answers[["variant", "answer"]]

    Or it is runs of your own: a pandas frame, a dictionary of columns, a list of rows, or the path of a table or of a
    tracker's folder. These need a *baseline*::

        ablationlab.analyze(frame, baseline="none", metric={"val/loss": "lower"}, smallest_effect=0.01)

    *metric* may also be ``"val/loss:lower"``, or several of them; the first decides. *criterion* takes
    ``smallest_effect``, ``margin``, ``alpha``, ``test``, ``correction``, ``log`` and ``tie_breakers``. The other arguments
    are the options of ``ablationlab analyze``.
    """
    from ablationlab.analysis import TableOptions, read_results, read_table
    from ablationlab.analysis.conclusion import conclude
    from ablationlab.analysis.from_table import holds_runs
    from ablationlab.records.results import Reader, Results
    from ablationlab.report.notebook import StudyResults
    from ablationlab.study.places import find_results

    given = find_results(Path(source)) if isinstance(source, str | Path) else _frame(source)
    if isinstance(given, Path) and given.is_dir() and not holds_runs(given):
        if baseline is not None or metric or criterion:
            raise AblationLabError(f"{given}: a results folder is judged by what its plan registered; give it alone")
        concluded = conclude(read_results(given, None, accept_altered=accept_altered))
        results = Results.open(given, accept_altered=accept_altered)
        return StudyResults(
            results.changed(analysis=concluded.analysis, verdict=concluded.verdict, courses=concluded.courses)
        )
    if baseline is None:
        label = str(given) if isinstance(given, Path) else "the table"
        raise TableError(label, ["baseline says which variant the others are compared with"])
    if isinstance(given, Path) and not given.exists():
        raise TableError(str(given), ["no such file or results folder"])
    dataset = read_table(
        given,
        TableOptions.checked(
            baseline=baseline,
            metrics=_metrics(metric),
            variant=variant,
            seed=seed,
            regime=regime,
            at=at,
            where=tuple(f"{key}={value}" for key, values in (where or {}).items() for value in _several(values)),
            run_names=run_names,
            unpaired=unpaired,
            **{name: tuple(value) if isinstance(value, list) else value for name, value in criterion.items()},
        ),
    )
    concluded = conclude(dataset)
    results = Results(Path(), None, False, (), Reader(Path())).changed(
        analysis=concluded.analysis,
        verdict=concluded.verdict,
        courses=concluded.courses,
        table_runs=concluded.curves,
        suite=None,
        replication=None,
        problems=(),
    )
    return StudyResults(results)


def _frame(source: Any) -> pd.DataFrame:
    import pandas as pd

    return source if isinstance(source, pd.DataFrame) else pd.DataFrame(source)


def _several(values: Any) -> Sequence[Any]:
    return values if isinstance(values, list | tuple) else (values,)


def _metrics(metric: str | Sequence[str] | Mapping[str, str]) -> tuple[str, ...]:
    if isinstance(metric, str):
        return (metric,)
    return tuple(f"{name}:{way}" for name, way in metric.items()) if isinstance(metric, Mapping) else tuple(metric)


@dataclass(frozen=True)
class StudyPlan(Found):
    """A study resolved: its runs and what each costs. *plan* is what `plan.lock` holds."""

    plan: Plan

    def clauses(self) -> tuple[str, ...]:
        from ablationlab.core.format import plain
        from ablationlab.report.terminal.planned import plan_facts

        facts = plan_facts(self.plan, None, None, "")
        lines = (" · ".join(statement.text for statement in said) for said in facts.values() if said)
        return tuple(filter(None, (self.plan.study.question, *map(plain, lines))))

    def tables(self) -> tuple[Table, ...]:
        from ablationlab.report.terminal.planned import planned_arms

        return (planned_arms(self.plan),)


def plan(
    study: Study | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    overrides: Sequence[str] = (),
    device: Literal["auto", "cpu", "cuda"] = "auto",
    workers: int | None = None,
) -> StudyPlan:
    """Resolve and check a study, arm by arm. Nothing is written unless *out* names a folder to seal the plan in."""
    from ablationlab.pipeline import open_study, resolve, seal

    resolved, results = open_study(study, out, overrides)
    if out is not None:
        return StudyPlan(seal(resolved, results, device, workers)[0])
    return StudyPlan(resolve(resolved, device, workers)[0])


@dataclass(frozen=True)
class SeedsNeeded(Found):
    """Seeds, and items, that the registered effects need with 80 % power. *power* has a row per registered comparison."""

    power: StudyPower

    def clauses(self) -> tuple[str, ...]:
        from ablationlab.core.format import plain
        from ablationlab.report.terminal.can_show import notes_of, power_clauses

        return tuple(plain(statement.text) for statement in (*power_clauses(self.power), *notes_of(self.power)))

    def tables(self) -> tuple[Table, ...]:
        from ablationlab.report.terminal.can_show import shown_table

        return (shown_table(self.power),) if self.power.rows else ()


def power(
    study: Study | Mapping[str, Any] | str | Path,
    *,
    pilot: str | Path | None = None,
    sd: float | None = None,
    discordance: float | None = None,
    overrides: Sequence[str] = (),
) -> SeedsNeeded:
    """How many seeds the registered smallest effects need, given a *pilot*'s results or an assumed *sd* of the deltas."""
    from ablationlab.analysis import analyze as compute
    from ablationlab.analysis import power_plans, read_results
    from ablationlab.pipeline import metrics_at, open_study
    from ablationlab.study.places import find_results

    resolved, results = open_study(study, overrides=overrides)
    spread = compute(read_results(find_results(Path(pilot)))) if pilot is not None else None
    return SeedsNeeded(power_plans(resolved, spread, sd, discordance, metrics_at(resolved, results)))


@dataclass(frozen=True)
class ItemsCompared(Found):
    """Each folder against the reference, item by item; all tasks of all comparisons are one family."""

    comparisons: tuple[ItemComparison, ...]

    def tables(self) -> tuple[Table, ...]:
        from ablationlab.report.tables.comparisons import item_table

        return tuple(item_table(comparison) for comparison in self.comparisons)


def compare(
    *paths: str | Path,
    baseline: str | Path | None = None,
    metric: str | None = None,
    filter_name: str | None = None,
    allow_unpaired: bool = False,
    alpha: float = 0.05,
    correction: Literal["holm", "bonferroni", "benjamini-hochberg"] = "holm",
    smallest_effect: float | None = None,
) -> ItemsCompared:
    """Compare folders of lm-eval samples or inspect_ai logs. The first is the reference, unless *baseline* names another."""
    from ablationlab.analysis.lm_eval import compare_samples

    if len(paths) < 2:
        raise AblationLabError(f"compare needs two or more folders, got {len(paths)}")
    found = compare_samples(
        [Path(path) for path in paths],
        baseline=None if baseline is None else Path(baseline),
        metric=metric,
        filter_name=filter_name,
        allow_unpaired=allow_unpaired,
        alpha=alpha,
        correction=correction,
        smallest_effect=smallest_effect,
    )
    return ItemsCompared(tuple(found))
