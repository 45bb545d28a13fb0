"""The chain of hashes of a results folder, from the plan to the paper, link by link."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ablationlab.analysis.conclusion import decided_again
from ablationlab.analysis.stages import found_by_stages
from ablationlab.core.errors import AblationLabError, RecordError
from ablationlab.core.format import count
from ablationlab.records.analysis import Analysis
from ablationlab.records.courses import COURSES
from ablationlab.records.energy import ENERGY
from ablationlab.records.evaluation import Suite
from ablationlab.records.plan import AMENDMENTS, CALIBRATION, LOOKS, PLACES, REUSED, Deposit, Plan
from ablationlab.records.results import REPLICATION, RUN_FILES, SUITE, WEIGHTS, Results, Run, not_kept
from ablationlab.records.seal import RunSeal, SealedRecord, file_hash
from ablationlab.records.settings import SWEEP
from ablationlab.records.storage import ResultsFolder, inside, numbered, read_regular
from ablationlab.records.table_curves import TABLE_CURVES
from ablationlab.study.reuse import checked_source, notes

#: Of the files that name what they were made from.
_NAMING = ("report.html", "paper/claims.json")
#: What this program writes into a results folder.
_OWN = frozenset(
    [
        *("plan.lock", "study.lock", "deposit.json", PLACES, "runs", "locks", "use", "evaluation", "calibration"),
        *(
            LOOKS,
            AMENDMENTS,
            REUSED,
            ENERGY,
            REPLICATION,
            TABLE_CURVES,
            COURSES,
            "analysis.json",
            "verdict.json",
            "validation.json",
        ),
        *("validation.md", "report.html", "statistics.md", "figures", "tables", "paper", "paper.pdf"),
    ]
)
#: Names that are listed one by one, at most; the rest is counted.
_MOST_LISTED = 20
#: Runs that are named in one sentence, at most.
_MOST_NAMED = 3


@dataclass(frozen=True)
class Link:
    """One file, or several alike, and whether it is as those before it in the chain say.

    *not kept*: left out on purpose, as the runs allow; *missing*: what belongs to it is there; *absent*: not made, or deleted
    with all that belongs to it; *unchecked*: nothing says what it should be; *unknown*: no part of the study. *code*: the
    clause of statements.toml that says more, under ``verify``, and *told* what stands in it.
    """

    file: str
    state: Literal["holds", "differs", "missing", "not kept", "absent", "unchecked", "unknown"]
    code: str
    told: Mapping[str, str] = field(default_factory=dict)


def _damaged(file: str, why: str) -> Link:
    """A file that cannot be used, in the words of its reader."""
    return Link(file, "differs", "damaged", {"why": why})


def chain(folder: Path, deposited: Path | None = None) -> tuple[Link, ...]:
    """Every link; weights are hashed, too. *deposited* is a copy of deposit.json that was kept elsewhere."""
    return tuple(_links(folder, deposited))


def _links(folder: Path, deposited: Path | None) -> Iterator[Link]:
    plan_file = ResultsFolder(folder).plan
    try:
        results = Results.open(folder)
    except RecordError as error:
        if not os.path.lexists(plan_file):
            raise
        blamed = plan_file if error.path in (None, folder) else error.path
        why = error.text if blamed == error.path else str(error)
        yield Link(blamed.relative_to(folder).as_posix(), "differs", "first", {"why": why})
        return
    plan = results.plan
    if plan is not None:
        yield _plan(plan, sealed=results.sealed)
        yield _deposit(plan, deposited)
        for amendment in plan.amendments:
            told = {"runs": count(len(amendment.runs)), "when": amendment.created[:10]}
            yield Link("amendments", "holds", "amendment", told)
        yield from _before_the_plan(plan, folder)
        yield from _reused(plan, ResultsFolder(folder))
        yield from _reuse(plan, folder)
        yield from _code(plan, folder)
        yield from _runs(results)
        yield from _tasks(results)
        yield from _energy(results)
    yield from _conclusions(results)
    yield from _replication(results)
    yield from _unknown(results)


def _plan(plan: Plan, *, sealed: bool) -> Link:
    if not sealed:
        return Link("plan.lock", "differs", "resealed")
    git = plan.environment.git
    code = "plan" if git.commit is None else "plan-of-changes" if git.dirty else "plan-of-commit"
    told = {"hash": plan.plan_hash, "when": plan.created[:10], "commit": str(git.commit)[:12]}
    return Link("plan.lock", "holds", code, told)


def _deposit(plan: Plan, path: Path | None) -> Link:
    if path is None:
        return Link("deposit.json", "unchecked", "no-deposit")
    deposit = Deposit.read(path)
    if deposit == Deposit.of(plan).sealed():
        return Link(str(path), "holds", "deposit")
    return Link(str(path), "differs", "other-deposit", {"hash": deposit.plan_hash, "when": deposit.created[:10]})


def _code(plan: Plan, folder: Path) -> Iterator[Link]:
    """The copies of the study's own code. The plan seals what they are."""
    own = [code for code in plan.study.use if not code.entry_point]
    broken = [
        link
        for code in own
        if (link := _changed(f"use/{code.name}", ResultsFolder(folder).code, code.name, (code.sha256,))) is not None
    ]
    yield from broken
    if own and not broken:
        yield Link("use", "holds", "files", {"files": count(len(own))})


def _before_the_plan(plan: Plan, folder: Path) -> Iterator[Link]:
    """The small studies of calibrated regimes and of a sweep's stages, whose seals the plan names."""
    sealed = {
        f"{CALIBRATION}/{regime}/{number:02d}": attempt.plan_hash
        for regime, found in plan.calibrations.items()
        for number, attempt in enumerate(found.tries, start=1)
    }
    stages = () if plan.tuned is None else plan.tuned.plans
    sealed |= {f"{CALIBRATION}/{SWEEP}/{number:02d}": seal for number, seal in enumerate(stages, start=1)}
    if not sealed:
        return
    if not (folder / CALIBRATION).is_dir():
        yield Link(CALIBRATION, "not kept", "found-before")
        return
    links = [link for place, seal in sealed.items() for link in _small(folder, place, seal)]
    yield from links
    if plan.tuned is not None and not links:
        try:
            again = found_by_stages(plan.study, ResultsFolder(folder))
            links = [] if again == plan.tuned else [Link(f"{CALIBRATION}/{SWEEP}", "differs", "other-rates")]
        except AblationLabError as error:
            links = [_damaged(f"{CALIBRATION}/{SWEEP}", str(error))]
        yield from links
    if not links:
        yield Link(CALIBRATION, "holds", "studies", {"studies": count(len(sealed))})


def _reused(plan: Plan, results: ResultsFolder) -> Iterator[Link]:
    """The studies that runs come from. Their copies are compared with the plan where all runs are."""
    for reused in plan.reused:
        where = f"{REUSED} from {reused.study}"
        try:
            studies = checked_source(plan, reused, copied=any(results.run(run_id).done for run_id in reused.files))
        except AblationLabError as error:
            yield _damaged(where, str(error))
            continue
        told = {"runs": count(len(reused.files)), "source": str(reused.source)}
        if studies is None:
            yield Link(where, "unchecked", "reused-from-elsewhere", told)
        else:
            yield Link(where, "holds", "reused", {**told, "studies": count(studies)})


def _reuse(plan: Plan, folder: Path) -> Iterator[Link]:
    """The studies that use runs of this one."""
    if not os.path.lexists(folder / REUSED):
        return
    try:
        users = {note.by for note in notes(folder, plan)}
        yield Link(REUSED, "holds", "users", {"studies": count(len(users))})
    except RecordError as error:
        yield _damaged(REUSED, str(error))


def _small(folder: Path, place: str, seal: str) -> Iterator[Link]:
    """What is wrong with one of them."""
    try:
        results = Results.open(folder / place)
    except RecordError as error:
        yield _damaged(place, str(error))
        return
    if results.plan is None or not results.sealed or results.plan.plan_hash != seal:
        yield Link(f"{place}/plan.lock", "differs", "other-plan")
        return
    for link in _runs(results):
        if link.state in ("differs", "missing"):
            yield replace(link, file=f"{place}/{link.file}")


def _runs(results: Results) -> Iterator[Link]:
    ended = [
        run for run in results.runs if os.path.lexists(run.folder.result)
    ]  # a link in a loop is there, and damaged
    whole = files = 0
    names = {f"runs/{run.id}" for run in results.runs}
    broken = [damage for file, damage in results.reader.damage.items() if file in {"runs", *names}]
    yield from (_damaged(damage.file, damage.text) for damage in broken)
    for run in results.runs:
        if os.path.lexists(run.folder.result):
            links = list(_run(results, run))
            yield from links
            whole += not links
            files += 0 if run.seal is None else len(run.seal.files)
        elif run.folder.seal.exists():
            yield Link(f"runs/{run.id}/result.json", "missing", "no-result")
    holds = whole == len(ended) and not broken
    told = {
        "whole": count(whole),
        "ended": count(len(ended)),
        "planned": count(len(results.runs)),
        "files": count(files),
    }
    yield Link("runs", "holds" if holds else "differs", "runs" if holds else "broken-runs", told)
    for kind, runs in not_kept(ended).items():
        yield _left_out(kind, runs, ended)


def _left_out(kind: str, runs: Sequence[str], ended: Sequence[Run]) -> Link:
    """Of how many of the runs that sealed it a file is left out; where it is a few of them, which."""
    had = sum(any(name.partition("/")[0] == kind for name in run.seal.files) for run in ended if run.seal is not None)
    code = "left-out" if len(runs) == had or len(runs) > _MOST_NAMED else "left-out-of"
    told = {"n": count(len(runs)), "of": count(had), "runs": ", ".join(runs)}
    return Link(f"runs/*/{kind}", "not kept", code, told)


def _run(results: Results, run: Run) -> Iterator[Link]:
    """What is wrong with one run."""
    seal, where = run.seal, f"runs/{run.id}"
    if seal is None:
        damage = results.reader.damage.get(f"{where}/seal.json")
        yield _damaged(f"{where}/seal.json", "" if damage is None else damage.text)
        return
    if results.plan is not None and seal.plan_hash != results.plan.made_under(run.id):
        yield Link(f"{where}/seal.json", "differs", "other-plan-s")
    source = None if results.plan is None else results.plan.reused_from(run.id)
    if source is not None and not source.files[run.id].items() <= seal.files.items():
        yield Link(f"{where}/seal.json", "differs", "other-files")
    for name in seal.files:
        link = _changed(f"{where}/{name}", run.folder.path, name, seal.allowed(name))
        if link is not None and not run.left_out(name):
            yield link
    added = [
        name for name in run.files if name in RUN_FILES and name not in seal.files and name != run.folder.seal.name
    ]
    yield from (Link(f"{where}/{name}", "differs", "added") for name in added)


def _changed(file: str, folder: Path, name: str, allowed: Collection[str]) -> Link | None:
    """What is wrong with a file that may have some hashes alone; nothing where it has one of them."""
    try:
        now = file_hash(inside(folder, name))
    except RecordError as error:  # no file, and nothing that could be hashed
        return _damaged(file, error.text)
    return None if now in allowed else Link(file, "differs", "changed" if now else "gone")


def _tasks(results: Results) -> Iterator[Link]:
    suite = results.suite
    if suite is None:
        damage = results.reader.damage.get(SUITE)
        yield from () if damage is None else (_damaged(SUITE, damage.text),)
        return
    folder = (results.folder / SUITE).parent
    found = [_changed(f"evaluation/{name}", folder, name, (sha256,)) for name, sha256 in suite.files.items()]
    broken = [link for link in found if link is not None]
    yield from broken
    told = {"tasks": count(len(suite.tasks)), "files": count(len(suite.files))}
    yield Link(SUITE, "differs" if broken else "holds", "broken-tasks" if broken else "tasks", told)
    if old := [name for name in _definitions(suite) if name not in suite.files and (folder / name).exists()]:
        yield Link("evaluation/tasks/*/task.yaml", "unchecked", "unsealed", {"files": count(len(old))})


def _definitions(suite: Suite) -> set[str]:
    """Of every task, the file that tells other programs what it is."""
    return {f"{Path(name).parent}/task.yaml" for name in suite.files}


def _energy(results: Results) -> Iterator[Link]:
    """What commands measured; each record is numbered and carries its own hash, so only a lost last one does not show."""
    records = results.energy
    damaged = [d for file, d in results.reader.damage.items() if Path(file).parts[0] == ENERGY]
    yield from (_damaged(damage.file, damage.text) for damage in damaged)
    if records and not damaged:
        yield _self_sealed(ENERGY, Link(ENERGY, "holds", "records", {"records": count(len(records))}), *records)


def _replication(results: Results) -> Iterator[Link]:
    if results.replication is not None:
        holds = Link(REPLICATION, "holds", "replication", {"title": results.replication.title})
        yield _self_sealed(REPLICATION, holds, results.replication)
    elif (damage := results.reader.damage.get(REPLICATION)) is not None:
        yield _damaged(REPLICATION, damage.text)


def _unknown(results: Results) -> Iterator[Link]:
    """What lies in the folder and is no part of the study. It breaks no chain: no number is made from it."""
    folder = ResultsFolder(results.folder)
    strange = [path.name for path in sorted(folder.path.iterdir()) if path.name not in _OWN]
    if results.plan is not None and folder.code.is_dir():
        used = {code.name for code in results.plan.study.use}
        strange += [f"use/{path.name}" for path in sorted(folder.code.iterdir()) if path.name not in used]
    if results.plan is not None and folder.runs.is_dir():
        strange += [f"runs/{path.name}" for path in sorted(folder.runs.iterdir()) if results.run(path.name) is None]
        named = dict.fromkeys(name for run in results.runs if run.seal is not None for name in _unsealed(run, run.seal))
        strange += [f"runs/*/{name}" for name in named]
    for kind, digits in ((LOOKS, 1), (AMENDMENTS, 4), (REUSED, 4), (ENERGY, 4)):
        if (place := folder.path / kind).is_dir():
            others = sorted(set(place.iterdir()) - set(numbered(place, digits)))
            strange += [f"{kind}/{path.name}" for path in others]
    if results.suite is not None:
        tasks = (results.folder / SUITE).parent
        files = sorted(path.relative_to(tasks).as_posix() for path in tasks.rglob("*") if not path.is_dir())
        asked = {Path(SUITE).name, *results.suite.files}
        asked |= _definitions(results.suite)
        strange += [f"evaluation/{name}" for name in files if name not in asked]
    for name in strange[:_MOST_LISTED]:
        on_one_line = "".join(letter if letter.isprintable() else "\ufffd" for letter in name)
        yield Link(on_one_line, "unknown", "unread")
    if len(strange) > _MOST_LISTED:
        yield Link(".", "unknown", "more-unread", {"n": count(len(strange) - _MOST_LISTED)})


def _unsealed(run: Run, seal: RunSeal) -> list[str]:
    known = {name.partition("/")[0] for name in seal.files} | WEIGHTS | RUN_FILES
    return [name for name in run.files if name not in known]


def _self_sealed(name: str, holds: Link, *records: SealedRecord) -> Link:
    return holds if all(record.seal for record in records) else Link(name, "unchecked", "no-hash")


def _conclusions(results: Results) -> Iterator[Link]:
    analysis, verdict, damage = results.analysis, results.verdict, results.reader.damage
    for name, record in (("analysis.json", analysis), ("verdict.json", verdict)):
        if record is None:
            yield _no_conclusion(results, name)
    if analysis is not None:
        yield from _analysis(results, analysis)
    if analysis is None or verdict is None:
        yield from _left_behind(results.folder, "verdict.json" if verdict is not None else None)
        return
    if verdict.analysis_hash != analysis.seal:
        yield Link("verdict.json", "differs", "other-analysis")
    elif decided_again(results).verdict is None:
        yield _damaged("verdict.json", damage["verdict.json"].text)
    else:
        yield Link("verdict.json", "holds", "decided-again", {"hash": verdict.seal})
    if COURSES in damage:
        yield _damaged(COURSES, damage[COURSES].text)
    elif os.path.lexists(results.folder / COURSES):
        fits = results.courses is not None
        yield Link(COURSES, "holds" if fits else "differs", "names-analysis" if fits else "other-analysis")
    for name in _NAMING:
        yield _naming(results.folder / name, name, (analysis.seal, verdict.seal))


def _analysis(results: Results, analysis: Analysis) -> Iterator[Link]:
    stale = [reason for reason in results.stale if reason.code != "other-analysis"]
    if stale:
        told = {"n": count(len(stale)), "file": stale[0].file}
        other = any(reason.code == "other-plan" for reason in stale)
        yield Link("analysis.json", "differs", "other-plan-s" if other else "stale", told)
    else:
        told = {"hash": analysis.seal, "files": count(len(analysis.inputs)), "altered": count(len(analysis.altered))}
        yield Link("analysis.json", "holds", "analysis-of-altered" if analysis.altered else "analysis", told)


def _left_behind(folder: Path, verdict: str | None) -> Iterator[Link]:
    """What follows from an analysis or a verdict that is gone: nothing says any more what it should be."""
    for name in filter(None, (verdict, *_NAMING)):
        if os.path.lexists(folder / name):
            yield Link(name, "differs", "left-behind")


def _no_conclusion(results: Results, name: str) -> Link:
    if (damaged := results.reader.damage.get(name)) is not None:
        return _damaged(name, damaged.text)
    if any((results.folder / other).exists() for other in ("analysis.json", "verdict.json", *_NAMING)):
        return Link(name, "missing", "by-analyze")
    return Link(name, "absent", "by-analyze")


def _naming(path: Path, name: str, hashes: tuple[str, ...]) -> Link:
    """A file for readers, which must name the analysis and the verdict that it shows."""
    try:
        text = read_regular(path).decode(errors="replace")
    except FileNotFoundError:
        return Link(name, "absent", "by-report")
    except (OSError, RecordError) as error:
        return _damaged(name, str(error))
    if all(sha256 in text for sha256 in hashes):
        return Link(name, "holds", "names-both")
    return Link(name, "differs", "names-others")
