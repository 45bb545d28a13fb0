"""What a terminal shows of one run: settings, curve, result, evaluation, probes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from ablationlab.core.format import DASH, count, number, plain
from ablationlab.records.metrics import metric_name
from ablationlab.records.plan import PlannedRun
from ablationlab.records.probes import ProbeLine, failures
from ablationlab.records.results import Results, Run
from ablationlab.records.settings import flattened
from ablationlab.report.slots import Slot, Statement
from ablationlab.report.table import Table

if TYPE_CHECKING:
    from ablationlab.records.run import FloatArray


def run_view(results: Results, run: Run, width: int) -> Iterator[RenderableType]:
    """Settings, curve, result and evaluation of one run."""
    planned = run.planned
    of = f" of {count(run.steps)}" if planned.steps is not None else ""
    yield Text(f"{run.id}  {run.state}, step {count(run.step)}{of}", style="bold")
    if run.failure is not None:
        yield Text(run.failure.error)
    trainer = results.plan.study.trainer if results.plan is not None else None
    cost = (
        f"trained by {trainer.title}"
        if trainer is not None
        else f"{count(planned.budget.parameters)} parameters, {count(planned.budget.tokens)} tokens"
    )
    yield Text(f"{results.name}: {run.variant}, regime {run.regime}, seed {run.seed}; {cost}")
    yield ""
    base = next((r for r in results.runs if r.variant == results.baseline and r.regime == run.regime), None)
    own, plainly = _settings(planned), {} if base is None else _settings(base.planned)
    rows = [
        (key, value_text(value), "" if plainly.get(key, value) == value else value_text(plainly.get(key)))
        for key, value in own.items()
    ]
    heads = ["setting", "value", "baseline's"] if any(row[2] for row in rows) else ["setting", "value"]
    yield Table.simple("Settings", heads, [row[: len(heads)] for row in rows if row[1] != DASH]).terminal()
    if run.curves:
        yield ""
        yield Table.simple(
            "Curve", ["column", "first", "last", "lowest", "course"], list(_courses(run, width))
        ).terminal()
    if run.result is not None:
        yield ""
        yield from _result(results, run)
    if run.evaluation is not None:
        yield ""
        yield from _evaluation(run)


def _settings(planned: PlannedRun) -> dict[str, Any]:
    """Model and training; of the user's own trainer, what it is given."""
    if planned.recipe is None:
        return flattened(planned.settings)
    return flattened(
        {"model": planned.model.model_dump(mode="json"), "training": planned.training.model_dump(mode="json")}
    )


def value_text(value: Any) -> str:
    """A setting as a study file has it, but for the quotes around a name; tables of a list have a line each."""
    if value is None or value == []:
        return DASH
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return ", ".join(f"{key} = {value_text(inner)}" for key, inner in value.items() if inner is not None)
    if isinstance(value, list):
        return ("\n" if any(isinstance(inner, dict) for inner in value) else ", ").join(map(value_text, value))
    return str(value)


_BARS = "▁▂▃▄▅▆▇█"


def _courses(run: Run, width: int) -> Iterator[Sequence[str]]:
    for name, values in run.curves.items():
        finite = values[np.isfinite(values)]
        if name in ("step", "tokens", "lr") or not finite.size:
            continue
        cells = (number(float(finite[0]), 4), number(float(finite[-1]), 4), number(float(finite.min()), 4))
        yield name, *map(plain, cells), sparkline(finite, max(8, min(40, width - 60)))


def sparkline(values: FloatArray, width: int) -> str:
    """A curve as a line of blocks: means of equal pieces, scaled to its own range."""
    pieces = [piece.mean() for piece in np.array_split(values, min(width, values.size))]
    low, high = min(pieces), max(pieces)
    span = (high - low) or 1.0
    return "".join(_BARS[int((piece - low) / span * (len(_BARS) - 1))] for piece in pieces)


def _result(results: Results, run: Run) -> Iterator[RenderableType]:
    result = run.result
    assert result is not None
    if result.divergence is not None:
        from ablationlab.analysis.wording import cause

        slots = {"step": Slot(count(result.divergence.step)), "cause": Slot(cause(result.divergence))}
        yield Text(Statement("run.diverged", slots).text)
    rows = [
        (metric_name(name), plain(number(value, 5)), results.unit(name))
        for name, value in result.metrics.items()
        if value is not None
    ]
    yield Table.simple("Result", ["metric", "value", "unit"], rows, ["value"]).terminal()
    for name, failure in result.unmeasured.items():
        where = f"{failure.place}: {failure.error}" if failure.place else failure.error
        yield Text(Statement("run.unmeasured", {"metric": Slot(metric_name(name)), "error": Slot(where)}).text)


def _evaluation(run: Run) -> Iterator[RenderableType]:
    evaluation = run.evaluation
    assert evaluation is not None
    rows = [
        (metric_name(name), plain(number(value, 5))) for name, value in evaluation.metrics.items() if value is not None
    ]
    yield Table.simple("Evaluation", ["metric", "value"], rows, ["value"]).terminal()


def run_probes_view(title: str, lines: Sequence[ProbeLine]) -> Iterator[RenderableType]:
    """Every scalar of a run when it was first, halfway and last measured; distributions are in the files."""
    rows: list[tuple[str, ...]] = []
    for probe in dict.fromkeys(line.probe for line in lines):
        mine = [line for line in lines if line.probe == probe and line.error is None]
        if not mine:
            continue
        values: dict[tuple[str, str], list[str]] = {}
        for line in (mine[0], mine[len(mine) // 2], mine[-1]):
            for row in line.rows:
                if row.at is None:
                    values.setdefault((row.measure, row.group or ""), []).append(number(row.value, 4))
        rows += [(probe, measure, group, *texts) for (measure, group), texts in values.items()]
    if rows:
        steps = [line.step for line in lines]
        heads = ["first", "halfway", "last"]
        title = f"{title}, from step {min(steps)} to {max(steps)}"
        yield Table.simple(title, ["probe", "measure", "of", *heads], rows, heads).terminal()
    for name, (step, error) in failures(lines).items():
        yield Text(
            Statement("probes.failed", {"name": Slot(name), "step": Slot(count(step)), "error": Slot(error)}).text
        )
