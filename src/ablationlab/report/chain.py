"""The chain of hashes of a results folder, from the plan to the paper, link by link."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any, Literal

from ablationlab.analysis import wording
from ablationlab.analysis.verdict import decide
from ablationlab.core.errors import AblationLabError
from ablationlab.core.format import counted, part
from ablationlab.records.evaluation import Suite, suite_path
from ablationlab.records.plan import Deposit, Plan
from ablationlab.records.results import Results, Run, not_kept
from ablationlab.records.seal import file_hash
from ablationlab.records.storage import ResultsFolder, inside, read_regular
from ablationlab.records.verdict import Verdict

#: Of the files that name what they were made from.
_NAMING = ("report.html", "statistics.md", "paper/claims.json")


@dataclass(frozen=True)
class Link:
    """One file, or several alike, and whether it is as those before it in the chain say."""

    file: str
    state: Literal["holds", "differs", "absent"]
    text: str


def chain(folder: Path, deposited: Path | None = None) -> tuple[Link, ...]:
    """Every link; weights are hashed, too. *deposited* is a copy of deposit.json that was kept elsewhere."""
    return tuple(_links(folder, deposited))


def _links(folder: Path, deposited: Path | None) -> Iterator[Link]:
    results = Results.open(folder)
    plan = results.plan
    if plan is not None:
        yield _plan(plan, sealed=results.sealed)
        yield _deposit(plan, deposited)
        for amendment in plan.amendments:
            yield Link("amendments", "holds", f"{counted(len(amendment.runs), 'run')} added {amendment.created}")
        yield from _runs(results)
        yield from _tasks(results)
    yield from _conclusions(results)


def _plan(plan: Plan, *, sealed: bool) -> Link:
    if not sealed:
        return Link(
            "plan.lock", "differs", "was changed after it was sealed: plan, study or criteria hash does not match"
        )
    git = plan.environment.git
    commit = "no commit known" if git.commit is None else f"commit {git.commit}{' with changes' if git.dirty else ''}"
    return Link("plan.lock", "holds", f"{plan.plan_hash}, sealed {plan.created}, {commit}")


def _deposit(plan: Plan, path: Path | None) -> Link:
    if path is None:
        return Link("deposit.json", "absent", "no deposited copy given: nothing outside this folder dates the plan")
    deposit = Deposit.read(path)
    if deposit == Deposit.of(plan).sealed():
        return Link(str(path), "holds", "names this very plan")
    return Link(str(path), "differs", f"names plan {deposit.plan_hash}, sealed {deposit.created}")


def _runs(results: Results) -> Iterator[Link]:
    ended = [run for run in results.runs if run.folder.result.exists()]
    whole = files = 0
    for run in results.runs:
        if run.folder.result.exists():
            links = list(_run(results, run))
            yield from links
            whole += not links
            files += 0 if run.seal is None else len(run.seal.files)
        elif run.folder.seal.exists():
            text = "is not there, but seal.json is: deleted, or killed at its very end; `ablationlab run` trains on"
            yield Link(f"runs/{run.id}/result.json", "absent", text)
    text = f"{part(whole, len(ended))} that ended are as sealed, with {counted(files, 'file')}; "
    yield Link("runs", "holds" if whole == len(ended) else "differs", f"{text}planned: {len(results.runs)}")
    for kind, runs in not_kept(ended).items():
        yield Link(f"runs/*/{kind}", "absent", f"not kept, so not checked, in {part(len(runs), len(ended))}")


def _run(results: Results, run: Run) -> Iterator[Link]:
    """What is wrong with one run."""
    seal, where = run.seal, f"runs/{run.id}"
    if seal is None:
        damage = results.reader.damage.get(f"{where}/seal.json")
        yield Link(f"{where}/seal.json", "differs", "" if damage is None else damage.text)
        return
    if results.plan is not None and seal.plan_hash != results.plan.plan_hash:
        yield Link(f"{where}/seal.json", "differs", "was made under another plan")
    for name in seal.files:
        now = file_hash(inside(run.folder.path, name))
        if now not in seal.allowed(name) and not run.left_out(name):
            yield Link(f"{where}/{name}", "differs", "is not as it was sealed" if now else "is missing")


def _tasks(results: Results) -> Iterator[Link]:
    path = suite_path(ResultsFolder(results.folder))
    if not path.exists():
        return
    if results.suite is None:
        yield Link("evaluation/suite.json", "differs", results.reader.damage["evaluation/suite.json"].text)
        return
    broken = _changed_tasks(path.parent, results.suite)
    yield from (Link(f"evaluation/{name}", "differs", "is not what was asked") for name in broken)
    text = f"{counted(len(results.suite.tasks), 'task')}, {counted(len(results.suite.files), 'file')}"
    yield Link("evaluation/suite.json", "differs" if broken else "holds", text)


def _changed_tasks(folder: Path, suite: Suite) -> list[str]:
    return [name for name, sha256 in suite.files.items() if file_hash(inside(folder, name)) != sha256]


def _conclusions(results: Results) -> Iterator[Link]:
    analysis, verdict, damage = results.analysis, results.verdict, results.reader.damage
    for name, record in (("analysis.json", analysis), ("verdict.json", verdict)):
        if record is None:
            damaged = damage.get(name)
            yield Link(name, "absent" if damaged is None else "differs", "" if damaged is None else damaged.text)
    if analysis is not None:
        stale = [wording.stale(reason) for reason in results.stale if reason.code != "other-analysis"]
        text = "; ".join(stale) or f"{analysis.seal}, made from {counted(len(analysis.inputs), 'file')}"
        text += f"; {counted(len(analysis.altered), 'altered file')} accepted" if analysis.altered else ""
        yield Link("analysis.json", "differs" if stale else "holds", text)
    if analysis is None or verdict is None:
        return
    if verdict.analysis_hash != analysis.seal:
        yield Link("verdict.json", "differs", "follows from another analysis than analysis.json")
    elif not _alike(_content(decide(analysis)), _content(verdict)):
        yield Link("verdict.json", "differs", "is not what the rules give for analysis.json")
    else:
        yield Link("verdict.json", "holds", f"{verdict.seal}, decided again from analysis.json with the same result")
    for name in _NAMING:
        yield _naming(results.folder / name, name, (analysis.seal, verdict.seal))


def _content(verdict: Verdict) -> Any:
    return verdict.model_dump(mode="json", exclude={"seal"})


def _alike(ours: Any, theirs: Any) -> bool:
    """Whether two decisions are the same; numbers may differ in their last bits, which another processor rounds otherwise."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(_alike(value, theirs[key]) for key, value in ours.items())
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_alike, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, float):
        return isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-12)
    return bool(ours == theirs)


def _naming(path: Path, name: str, hashes: tuple[str, ...]) -> Link:
    """A file for readers, which must name the analysis and the verdict that it shows."""
    try:
        text = read_regular(path).decode(errors="replace")
    except FileNotFoundError:
        return Link(name, "absent", "")
    except OSError as error:
        raise AblationLabError(f"{path} cannot be read: {error.strerror}") from error
    if all(sha256 in text for sha256 in hashes):
        return Link(name, "holds", "names this analysis and this verdict")
    return Link(name, "differs", "was made from another analysis or verdict; `ablationlab report` makes it again")
