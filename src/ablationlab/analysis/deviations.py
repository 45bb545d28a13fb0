"""What is not as it was registered: the plan itself, the runs, the study file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ablationlab.analysis.wording import deviation
from ablationlab.records.analysis import Deviation, DeviationCode
from ablationlab.records.plan import Plan
from ablationlab.records.results import Results, Run
from ablationlab.records.settings import Study
from ablationlab.study.ledger import flattened

#: What the registration consists of; anything else in a study file is how the runs are made.
_REGISTERED = (
    "baseline",
    "variants",
    "contrasts",
    "seeds",
    "sweep",
    "criteria",
    "stability",
    "tie_breakers",
    "hypotheses",
)


def of_plan(*, sealed: bool) -> list[Deviation]:
    """A plan whose seal is broken; one that was sealed again is refused by the ledger, for its runs carry the old seal."""
    return [] if sealed else [deviation(DeviationCode.TAMPERED_PLAN, "plan.lock")]


def of_runs(plan: Plan, results: Results) -> list[Deviation]:
    """Runs that are missing, extra, diverged, or made in another environment than the plan was sealed in."""
    folders = sorted(path.parent.name for path in (results.folder / "runs").glob("*/run.json"))
    runs = {
        DeviationCode.MISSING_RUNS: [run.id for run in results.runs if not run.done],
        DeviationCode.EXTRA_RUNS: [name for name in folders if results.run(name) is None],
        DeviationCode.DIVERGED_RUNS: [run.id for run in results.runs if run.state == "diverged"],
    }
    found = [
        deviation(code, "runs", n=len(names), planned=len(plan.runs), runs=_list(names))
        for code, names in runs.items()
        if names
    ]
    return found + _drift(plan, results.runs)


def _drift(plan: Plan, runs: Iterable[Run]) -> list[Deviation]:
    by_line: dict[str, list[str]] = {}
    for run in runs:
        record, result = run.record, run.result
        if record is None or result is None:
            continue
        lines = list(dict.fromkeys([*record.drift, *(line for start in result.history for line in start.drift)]))
        sealed, made = plan.environment, record.environment
        if not lines and (sealed.versions, sealed.code_hash) != (made.versions, made.code_hash):
            lines = ["library or code versions differ from those the plan was sealed with"]
        for line in lines:
            by_line.setdefault(line, []).append(run.id)
    return [deviation(DeviationCode.DRIFT, line, change=line, runs=_list(names)) for line, names in by_line.items()]


def against_file(sealed: Study, given: Study) -> list[Deviation]:
    """Where the study file as it stands now differs from the sealed one; the sealed one is what is applied."""
    before, now = (study.model_dump(mode="json", exclude={"text"}) for study in (sealed, given))
    found = [
        deviation(DeviationCode.CHANGED_CRITERIA, name, name=name, change=_change(before[name], now[name]))
        for name in _REGISTERED
        if before[name] != now[name]
    ]
    rest = [{k: v for k, v in table.items() if k not in _REGISTERED} for table in (before, now)]
    a, b = flattened(rest[0]), flattened(rest[1])
    changed = [key for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)]
    if changed:
        shown = ", ".join(f"{key} {a.get(key)!r} -> {b.get(key)!r}" for key in changed[:5])
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        found.append(deviation(DeviationCode.CHANGED_SETTINGS, ", ".join(changed), changes=shown + more))
    return found


def _change(before: object, now: object) -> str:
    if isinstance(before, list) and isinstance(now, list):
        gone = [item for item in before if item not in now]
        new = [item for item in now if item not in before]
        parts = ([f"without {_compact(gone)}"] if gone else []) + ([f"with {_compact(new)}"] if new else [])
        return " and ".join(parts) or "in another order"
    return f"{_compact([before])} -> {_compact([now])}"


def _compact(items: Sequence[object]) -> str:
    def one(item: object) -> str:
        if isinstance(item, dict):
            return " ".join(f"{key}={value}" for key, value in item.items() if value is not None)
        return ":".join(map(str, item)) if isinstance(item, list) else str(item)

    return "; ".join(map(one, items))


def _list(names: Iterable[str], most: int = 6) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
