"""What a terminal shows of a folder of studies, of one run, and of the differences between two studies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from ablationlab.analysis.conclusion import decided_again
from ablationlab.analysis.wording import difference_of
from ablationlab.analysis.wording import stale as stale_words
from ablationlab.core.errors import AblationLabError, RecordError, StudyError, nearest
from ablationlab.core.format import DASH, count, number, plain
from ablationlab.core.grouping import grouped
from ablationlab.core.paths import real_path
from ablationlab.records.metrics import metric_name
from ablationlab.records.plan import Plan, PlannedRun
from ablationlab.records.results import Results, Run
from ablationlab.records.settings import Study, flattened
from ablationlab.records.storage import ResultsFolder, user_text
from ablationlab.records.verdict import Verdict
from ablationlab.report.table import Table
from ablationlab.study.differences import SettingDifference, differences, study_differences
from ablationlab.study.load import load_study
from ablationlab.study.places import (
    default_folder,
    find_results,
    find_study,
    folder_without_code,
    unchecked_tables,
)
from ablationlab.study.plan import run_count
from ablationlab.tasks.request import is_file

if TYPE_CHECKING:
    from ablationlab.records.run import FloatArray

#: Answers that `ls` names; more are counted.
MOST_NAMED = 4
UNREADABLE = "unreadable"
#: How deep `ls` looks, and folders that it does not enter.
_DEPTH = 4
_SKIPPED = frozenset({"node_modules", "runs", "figures", "tables", "wandb", "mlruns", "__pycache__", "site-packages"})

# --- ls -------------------------------------------------------------------------------------------------------


def listing(folder: Path, width: int) -> Iterator[RenderableType]:
    """Results with their state and answers, then study files that have none."""
    files, places, closed = _found(folder)
    results = [(place, *_state(place)) for place in places]
    closed |= {place: why for place, state, why in results if state == UNREADABLE}
    unreadable = grouped((why, _shown(place, folder)) for place, why in closed.items())
    results = [found for found in results if found[1] != UNREADABLE]
    planned = {real_path(place) for place in places}
    waiting = []
    for file in files:
        tables = unchecked_tables(file)
        if _carries_code(tables):  # which only those who run the study should run
            if _is_study(file):
                waiting.append((_shown(file, folder), "", str(tables.get("question", ""))))
            continue
        try:
            study = load_study(file)
        except StudyError as error:
            if _is_study(file):
                waiting.append((_shown(file, folder), "", f"{len(error.problems)} problem(s): ablationlab plan {file}"))
            continue
        if not {real_path(base / default_folder(study)) for base in (Path(), folder)} & planned:
            waiting.append((_shown(file, folder), count(run_count(study)), study.question))
    room = max(20, width - 12 - max((len(file) for file, _, _ in waiting), default=0))
    waiting = [
        (file, runs, text if len(text) <= room else f"{text[: room - 1].rstrip()}…") for file, runs, text in waiting
    ]
    if results:
        rows = [(_shown(place, folder), state, verdict) for place, state, verdict in results]
        yield Table.simple("Results", ["folder", "runs", "answers"], rows).terminal()
    for why, names in unreadable.items():
        yield Text(f"Unreadable: {', '.join(names)}: {why}")
    if waiting:
        if results:
            yield ""
        yield Table.simple("Studies without results", ["file", "runs", "question"], waiting, ["runs"]).terminal()
    if not results and not waiting and not unreadable:
        yield Text(f"{folder}: no studies and no results. Begin with: ablationlab init")


def _found(folder: Path) -> tuple[list[Path], list[Path], dict[Path, str]]:
    """(TOML files, results folders, folders that cannot be read and why), not too deep."""
    files, places, level, closed = [], [], [folder], {}
    for _ in range(_DEPTH):
        below: list[Path] = []
        for here in level:
            try:
                inner = sorted(here.iterdir())
            except OSError as error:
                closed[here] = error.strerror or str(error)
                continue
            if {ResultsFolder(here).plan, here / "analysis.json"} & {*inner}:
                places.append(here)
                continue
            files += [path for path in inner if path.suffix == ".toml"]
            below += [path for path in inner if path.is_dir() and path.name not in _SKIPPED and path.name[0] != "."]
        level = below
    return files, places, closed


def _carries_code(tables: Mapping[str, Any]) -> bool:
    """Whether loading a study would run its code, or allow it to be run."""
    evaluation = tables.get("evaluation")
    tasks = evaluation.get("tasks") if isinstance(evaluation, dict) else None
    files = isinstance(tasks, list) and any(is_file(str(name)) for name in tasks)
    return files or not {"use", "command", "trainer"}.isdisjoint(tables)


def _is_study(file: Path) -> bool:
    """Whether a TOML file means to be a study; one that cannot be parsed, by its lines."""
    if tables := unchecked_tables(file):
        return not {"baseline", "variants"}.isdisjoint(tables) and not isinstance(tables.get("variants"), str)
    try:
        return re.search(r"^\[?(baseline|variants)\b", user_text(file, "study file"), re.MULTILINE) is not None
    except AblationLabError:
        return False


def _state(place: Path) -> tuple[str, str]:
    try:
        results = Results.open(place)
    except RecordError as error:
        return UNREADABLE, error.seen_from(place).splitlines()[0]
    total = len(results.runs)
    diverged = sum(run.state == "diverged" for run in results.runs)
    state = f"{results.ended} of {total}" if total else "a table"
    state += f", {diverged} diverged" if diverged else ""
    damaged = sum(run.state == "damaged" for run in results.runs)
    state += f", {damaged} damaged" if damaged else ""
    return state, _answers(results)


def _answers(results: Results) -> str:
    results = decided_again(results)
    damage = results.reader.damage
    if lost := damage.get("analysis.json") or damage.get("verdict.json"):
        return f"{lost.file} {lost.text}"
    if results.verdict is None:
        return "no verdict yet"
    if foreign := [reason for reason in results.stale if reason.code in ("other-plan", "other-analysis")]:
        return f"{stale_words(foreign[0])}. {Verdict.MEND}"
    where = len(results.regimes) > 1
    answers = grouped(
        (verdict.answer, f"{verdict.variant}{f' ({verdict.regime})' if where else ''}")
        for verdict in results.verdict.verdicts
    )
    if len(results.verdict.verdicts) <= MOST_NAMED:
        return "; ".join(f"{answer}: {', '.join(names)}" for answer, names in answers.items())
    return ", ".join(f"{answer}\N{NO-BREAK SPACE}({count(len(names))})" for answer, names in answers.items())


def _shown(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path != folder and path.is_relative_to(folder) else str(path)


# --- show -----------------------------------------------------------------------------------------------------


def is_study(given: Path) -> Path | None:
    """The results folder of a study that is named so; None where it names a run, or nothing."""
    if given.is_dir() and given.parent.name == "runs":
        return None
    try:
        folder = find_results(given)
    except StudyError:
        return None
    there = folder.is_dir() and ({ResultsFolder(folder).plan, folder / "analysis.json"} & {*folder.iterdir()})
    return folder if there else None


def find_run(given: Path) -> tuple[Results, Run]:
    """The run of a folder, of an id, or of the beginning of one, among the results below here."""
    if given.is_dir() and given.parent.name == "runs":
        results = Results.open(given.parent.parent)
        run = results.run(given.name)
        if run is None:
            raise RecordError(f"{given}: the plan has no run {given.name!r}")
        return results, run
    if given.exists():
        raise RecordError(f"{given} is not a run's folder; runs are in results/<study>/runs/")
    place, name = (given.parent, given.name) if given.parent != Path() else (None, str(given))
    folders = (
        [find_results(place)] if place is not None else [p.parent for p in sorted(Path().glob("results/*/plan.lock"))]
    )
    opened = [Results.open(folder) for folder in folders]
    everything = [(results, run) for results in opened for run in results.runs]
    same = [(results, run) for results, run in everything if run.id == name]
    matching = same or [(results, run) for results, run in everything if run.id.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        listed = ", ".join(f"{results.folder}/runs/{run.id}" for results, run in matching[:6])
        raise RecordError(f"{name!r} may be any of {len(matching)} runs: {listed}{', …' if len(matching) > 6 else ''}")
    guess = nearest(name, [run.id for _, run in everything])
    hint = f"; did you mean {guess!r}?" if guess else ""
    where = ", ".join(str(folder) for folder in folders) or "results/"
    raise RecordError(f"no run {name!r} in {where}{hint}")


def run_damage(results: Results, run: Run) -> list[str]:
    """What is wrong with the files of one run, a line each."""
    _ = run.checked
    damage = results.reader.damage.values()
    return [f"{found.file}: {found.text}" for found in damage if found.file.startswith(f"runs/{run.id}/")]


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
        (key, _value(value), "" if plainly.get(key, value) == value else _value(plainly.get(key)))
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


def _value(value: Any) -> str:
    """A setting as a study file has it, but for the quotes around a name; tables of a list have a line each."""
    if value is None or value == []:
        return DASH
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items() if inner is not None)
    if isinstance(value, list):
        return ("\n" if any(isinstance(inner, dict) for inner in value) else ", ").join(map(_value, value))
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

        yield Text(f"Diverged at step {count(result.divergence.step)}: {cause(result.divergence)}")
    rows = [
        (metric_name(name), plain(number(value, 5)), results.unit(name))
        for name, value in result.metrics.items()
        if value is not None
    ]
    yield Table.simple("Result", ["metric", "value", "unit"], rows, ["value"]).terminal()
    for name, failure in result.unmeasured.items():
        from ablationlab.analysis.stability import metric_failed  # only here: it takes scipy
        from ablationlab.analysis.wording import absence

        yield Text(f"{metric_name(name)}: {absence(metric_failed(failure))}")


def _evaluation(run: Run) -> Iterator[RenderableType]:
    evaluation = run.evaluation
    assert evaluation is not None
    rows = [
        (metric_name(name), plain(number(value, 5))) for name, value in evaluation.metrics.items() if value is not None
    ]
    yield Table.simple("Evaluation", ["metric", "value"], rows, ["value"]).terminal()


# --- diff -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A study file, a sealed plan or a results folder: what is there of it."""

    path: Path
    study: Study | None
    plan: Plan | None = None
    results: Results | None = None


def open_place(given: Path) -> Place:
    """Whatever of a study is at that path or under that name."""
    if given.is_file() and given.name == "plan.lock":
        plan = Plan.read(given)
        return Place(given, plan.study, plan)
    path = find_study(given)
    path = folder_without_code(path) or path
    if path.is_dir():
        results = decided_again(Results.open(path))
        return Place(path, None if results.plan is None else results.plan.study, results.plan, results)
    return Place(path, load_study(path))


def place_damage(place: Place) -> list[str]:
    """What is wrong with the files of results that are compared, a line each."""
    if place.results is None:
        return []
    damaged = [f"{place.path / damage.file}: {damage.text}" for damage in place.results.problems]
    stale = [stale_words(reason) for reason in place.results.stale if reason.code != "damaged"]
    return damaged + [f"{place.path}: {words}. `ablationlab analyze` analyzes what is there now" for words in stale]


def diff_view(a: Place, b: Place) -> Iterator[RenderableType]:
    """Settings, versions, results and answers that differ."""
    yield Text(f"A: {a.path}\nB: {b.path}\n")
    if a.study is None or b.study is None:
        if a.results is None or b.results is None:
            lone = a if a.study is None else b
            raise AblationLabError(
                f"{lone.path} is the analysis of a table: it can only be compared with other results"
            )
        yield Text("Settings: not known for a table.")
    else:
        yield from _differences("Settings", study_differences(a.study, b.study))
    if a.plan is not None and b.plan is not None:
        yield from _differences("Versions and machine", differences(_environment(a.plan), _environment(b.plan)))
    if a.results is not None and b.results is not None:
        yield from _differences("Results", differences(_outcomes(a.results), _outcomes(b.results)))


#: Values that stand in one line, at most.
_SHORT = 40


def _differences(title: str, found: Sequence[SettingDifference]) -> Iterator[RenderableType]:
    """Each as ``key: A → B``, long values in a line of their own."""
    if not found:
        yield Text(f"{title}: no difference.")
        return
    yield Text(title, style="bold")
    for difference in found:
        values = _value(difference.first), _value(difference.second)
        if max(map(len, values)) <= _SHORT:
            yield f"  {difference.key}: {values[0]} → {values[1]}"
            continue
        yield f"  {difference.key}:"
        for name, value in zip("AB", values, strict=True):
            for line in value.split("\n"):
                yield f"    {name}: {line}"


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


def _outcomes(results: Results) -> dict[str, Any]:
    """Answers by variant and regime, and the difference of every comparison that a criterion asks."""
    verdicts = () if results.verdict is None else results.verdict.verdicts
    comparisons = () if results.analysis is None else results.analysis.comparisons
    return {
        "runs": f"{results.ended} of {len(results.runs)} ended",
        "answer": {f"{v.variant} ({v.regime})": v.answer.value for v in verdicts},
        "difference": {c.id: plain(difference_of(c).text) for c in comparisons if c.role is not None},
    }
