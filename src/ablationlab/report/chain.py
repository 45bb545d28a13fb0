"""The chain of hashes of a results folder, from the plan to the paper, link by link."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ablationlab.analysis import wording
from ablationlab.analysis.conclusion import decided_again
from ablationlab.analysis.stages import found_by_stages
from ablationlab.core.errors import AblationLabError, RecordError
from ablationlab.core.format import count, counted, part
from ablationlab.core.grouping import grouped
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
_MEND_RUNS = (
    "Restore what is named above. Otherwise `ablationlab evaluate` makes evaluation.json and samples.parquet again; for any "
    "other file, move the run's folder away and `ablationlab run` trains it again"
)
_MEND_TASKS = "Restore what is named above, or remove the task's folder and `ablationlab evaluate` writes it again"
#: Names that are listed one by one, at most; the rest is counted.
_MOST_LISTED = 20
#: Runs that are named in one sentence, at most.
_MOST_NAMED = 3


@dataclass(frozen=True)
class Link:
    """One file, or several alike, and whether it is as those before it in the chain say.

    *not kept*: left out on purpose, as the runs allow; *missing*: what belongs to it is there; *absent*: not made, or deleted
    with all that belongs to it; *unchecked*: nothing says what it should be; *unknown*: no part of the study.
    """

    file: str
    state: Literal["holds", "differs", "missing", "not kept", "absent", "unchecked", "unknown"]
    text: str


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
        text = f"{error.text if blamed == error.path else error}. Nothing below it can be checked without it"
        yield Link(blamed.relative_to(folder).as_posix(), "differs", text)
        return
    plan = results.plan
    if plan is not None:
        yield _plan(plan, sealed=results.sealed)
        yield _deposit(plan, deposited)
        for amendment in plan.amendments:
            yield Link("amendments", "holds", f"{counted(len(amendment.runs), 'run')} added {amendment.created}")
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
        return Link(
            "plan.lock", "differs", "was changed after it was sealed: plan, study or criteria hash does not match"
        )
    git = plan.environment.git
    commit = "no commit known" if git.commit is None else f"commit {git.commit}{' with changes' if git.dirty else ''}"
    return Link("plan.lock", "holds", f"{plan.plan_hash}, sealed {plan.created}, {commit}")


def _deposit(plan: Plan, path: Path | None) -> Link:
    if path is None:
        return Link("deposit.json", "unchecked", "no deposited copy given: nothing outside this folder dates the plan")
    deposit = Deposit.read(path)
    if deposit == Deposit.of(plan).sealed():
        return Link(str(path), "holds", "names this very plan")
    return Link(str(path), "differs", f"names plan {deposit.plan_hash}, sealed {deposit.created}")


def _code(plan: Plan, folder: Path) -> Iterator[Link]:
    """The copies of the study's own code. The plan seals what they are."""
    own = [code for code in plan.study.use if not code.entry_point]
    changes = {
        code.name: _change(ResultsFolder(folder).code, code.name, (code.sha256,), "is not as the plan sealed it")
        for code in own
    }
    broken = [Link(f"use/{name}", "differs", text) for name, text in changes.items() if text]
    yield from broken
    if own and not broken:
        yield Link("use", "holds", f"{counted(len(own), 'file')}, as the plan sealed them")


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
        yield Link(CALIBRATION, "not kept", "plan.lock has what was found")
        return
    links = [link for place, seal in sealed.items() for link in _small(folder, place, seal)]
    yield from links
    if plan.tuned is not None and not links:
        try:
            again = found_by_stages(plan.study, ResultsFolder(folder))
            said = "" if again == plan.tuned else "its records give other rates than plan.lock has"
        except AblationLabError as error:
            said = str(error)
        links = [Link(f"{CALIBRATION}/{SWEEP}", "differs", said)] if said else []
        yield from links
    if not links:
        yield Link(
            CALIBRATION, "holds", f"{counted(len(sealed), 'study', 'studies')} before the plan, as it names them"
        )


def _reused(plan: Plan, results: ResultsFolder) -> Iterator[Link]:
    """The studies that runs come from. Their copies are compared with the plan where all runs are."""
    for reused in plan.reused:
        where = f"{REUSED} from {reused.study}"
        try:
            studies = checked_source(plan, reused, copied=any(results.run(run_id).done for run_id in reused.files))
        except AblationLabError as error:
            yield Link(where, "differs", str(error))
            continue
        runs = counted(len(reused.files), "run")
        if studies is None:
            yield Link(where, "unchecked", f"{runs}; {reused.source} is not here")
        else:
            yield Link(where, "holds", f"{runs}, on which {count(studies)} studies rest by now")


def _reuse(plan: Plan, folder: Path) -> Iterator[Link]:
    """The studies that use runs of this one."""
    if not os.path.lexists(folder / REUSED):
        return
    try:
        users = {note.by for note in notes(folder, plan)}
        yield Link(REUSED, "holds", f"{counted(len(users), 'study', 'studies')} beside this one")
    except RecordError as error:
        yield Link(REUSED, "differs", str(error))


def _small(folder: Path, place: str, seal: str) -> Iterator[Link]:
    """What is wrong with one of them."""
    try:
        results = Results.open(folder / place)
    except RecordError as error:
        yield Link(place, "differs", str(error))
        return
    if results.plan is None or not results.sealed or results.plan.plan_hash != seal:
        yield Link(f"{place}/plan.lock", "differs", "is not the plan whose seal plan.lock has")
        return
    for link in _runs(results):
        if link.state in ("differs", "missing"):
            yield Link(f"{place}/{link.file}", link.state, link.text)


def _runs(results: Results) -> Iterator[Link]:
    ended = [
        run for run in results.runs if os.path.lexists(run.folder.result)
    ]  # a link in a loop is there, and damaged
    whole = files = 0
    names = {f"runs/{run.id}" for run in results.runs}
    broken = [damage for file, damage in results.reader.damage.items() if file in {"runs", *names}]
    yield from (Link(damage.file, "differs", damage.text) for damage in broken)
    for run in results.runs:
        if os.path.lexists(run.folder.result):
            links = list(_run(results, run))
            yield from links
            whole += not links
            files += 0 if run.seal is None else len(run.seal.files)
        elif run.folder.seal.exists():
            text = "is not there, but seal.json is: deleted, or killed at its very end; `ablationlab run` trains on"
            yield Link(f"runs/{run.id}/result.json", "missing", text)
    text = (
        f"{part(whole, len(ended))} that ended are as sealed, with {counted(files, 'file')}"
        if ended
        else "none has ended"
    )
    text += f"; planned: {len(results.runs)}"
    holds = whole == len(ended) and not broken
    yield Link("runs", "holds" if holds else "differs", text if holds else f"{text}. {_MEND_RUNS}")
    for kind, runs in not_kept(ended).items():
        yield Link(f"runs/*/{kind}", "not kept", _left_out(kind, runs, ended))


def _left_out(kind: str, runs: Sequence[str], ended: Sequence[Run]) -> str:
    """Of how many of the runs that sealed it a file is left out; where it is not all of them, which."""
    had = sum(any(name.partition("/")[0] == kind for name in run.seal.files) for run in ended if run.seal is not None)
    text = f"left out of {part(len(runs), had)} runs that had it"
    if len(runs) == had:
        return text
    more = f" and {len(runs) - _MOST_NAMED} more" if len(runs) > _MOST_NAMED else ""
    return f"{text}: {', '.join(runs[:_MOST_NAMED])}{more}"


def _run(results: Results, run: Run) -> Iterator[Link]:
    """What is wrong with one run."""
    seal, where = run.seal, f"runs/{run.id}"
    if seal is None:
        damage = results.reader.damage.get(f"{where}/seal.json")
        yield Link(f"{where}/seal.json", "differs", "" if damage is None else damage.text)
        return
    if results.plan is not None and seal.plan_hash != results.plan.made_under(run.id):
        yield Link(f"{where}/seal.json", "differs", "was made under another plan")
    source = None if results.plan is None else results.plan.reused_from(run.id)
    if source is not None and not source.files[run.id].items() <= seal.files.items():
        yield Link(f"{where}/seal.json", "differs", "does not have the files that plan.lock names")
    for name in seal.files:
        changed = _change(run.folder.path, name, seal.allowed(name), "is not as it was sealed")
        if changed and not run.left_out(name):
            yield Link(f"{where}/{name}", "differs", changed)
    added = [
        name for name in run.files if name in RUN_FILES and name not in seal.files and name != run.folder.seal.name
    ]
    yield from (
        Link(f"{where}/{name}", "differs", "is not in the seal: it was added after the run ended") for name in added
    )


def _change(folder: Path, name: str, allowed: Collection[str], otherwise: str) -> str:
    """What is wrong with a file that may have some hashes alone; empty where it has one of them."""
    try:
        now = file_hash(inside(folder, name))
    except RecordError as error:  # no file, and nothing that could be hashed
        return error.text
    return "" if now in allowed else otherwise if now else "is missing"


def _tasks(results: Results) -> Iterator[Link]:
    suite = results.suite
    if suite is None:
        damage = results.reader.damage.get(SUITE)
        yield from () if damage is None else (Link(SUITE, "differs", damage.text),)
        return
    folder = (results.folder / SUITE).parent
    changes = {name: _change(folder, name, (sha256,), "is not what was asked") for name, sha256 in suite.files.items()}
    broken = [Link(f"evaluation/{name}", "differs", text) for name, text in changes.items() if text]
    yield from broken
    text = f"{counted(len(suite.tasks), 'task')}, {counted(len(suite.files), 'file')}"
    yield Link(SUITE, "differs" if broken else "holds", f"{text}. {_MEND_TASKS}" if broken else text)
    if old := [name for name in _definitions(suite) if name not in suite.files and (folder / name).exists()]:
        text = f"{counted(len(old), 'file')} of an earlier version, which did not seal them; nothing here reads them"
        yield Link("evaluation/tasks/*/task.yaml", "unchecked", text)


def _definitions(suite: Suite) -> set[str]:
    """Of every task, the file that tells other programs what it is."""
    return {f"{Path(name).parent}/task.yaml" for name in suite.files}


def _energy(results: Results) -> Iterator[Link]:
    """What commands measured; each record is numbered and carries its own hash, so only a lost last one does not show."""
    records = results.energy
    damaged = [d for file, d in results.reader.damage.items() if Path(file).parts[0] == ENERGY]
    yield from (Link(damage.file, "differs", damage.text) for damage in damaged)
    if records and not damaged:
        yield _self_sealed(ENERGY, counted(len(records), "record"), *records)


def _replication(results: Results) -> Iterator[Link]:
    if results.replication is not None:
        yield _self_sealed(REPLICATION, f"{results.replication.title}, of this plan", results.replication)
    elif (damage := results.reader.damage.get(REPLICATION)) is not None:
        yield Link(REPLICATION, "differs", damage.text)


def _unknown(results: Results) -> Iterator[Link]:
    """What lies in the folder and is no part of the study. It breaks no chain: no number is made from it."""
    folder = ResultsFolder(results.folder)
    strangers = [path for path in sorted(folder.path.iterdir()) if path.name not in _OWN]
    strange = [(path.name, "is not a file of this program, which does not read it") for path in strangers]
    if results.plan is not None and folder.code.is_dir():
        used = {code.name for code in results.plan.study.use}
        copies = [path.name for path in sorted(folder.code.iterdir()) if path.name not in used]
        strange += [(f"use/{name}", "is no code of the plan: it is not run") for name in copies]
    if results.plan is not None and folder.runs.is_dir():
        runs = [path.name for path in sorted(folder.runs.iterdir()) if results.run(path.name) is None]
        strange += [(f"runs/{name}", "is not a run of the plan: no number is made from it") for name in runs]
        sealed = ((name, run) for run in results.runs if run.seal is not None for name in _unsealed(run, run.seal))
        for name, holders in grouped(sealed).items():
            strange.append(
                (f"runs/*/{name}", f"is not sealed, so not checked, in {counted(len(holders), 'run')}; not read")
            )
    for kind, digits in ((LOOKS, 1), (AMENDMENTS, 4), (REUSED, 4), (ENERGY, 4)):
        if (place := folder.path / kind).is_dir():
            others = sorted(set(place.iterdir()) - set(numbered(place, digits)))
            strange += [(f"{kind}/{path.name}", "is not named as a record is: it is not read") for path in others]
    if results.suite is not None:
        tasks = (results.folder / SUITE).parent
        files = sorted(path.relative_to(tasks).as_posix() for path in tasks.rglob("*") if not path.is_dir())
        asked = {Path(SUITE).name, *results.suite.files}
        asked |= _definitions(results.suite)
        strange += [
            (f"evaluation/{name}", "is no file of a task that was asked") for name in files if name not in asked
        ]
    for name, text in strange[:_MOST_LISTED]:
        on_one_line = "".join(letter if letter.isprintable() else "\ufffd" for letter in name)
        yield Link(on_one_line, "unknown", text)
    if len(strange) > _MOST_LISTED:
        yield Link(
            ".", "unknown", f"{counted(len(strange) - _MOST_LISTED, 'more file or folder', 'more files or folders')}"
        )


def _unsealed(run: Run, seal: RunSeal) -> list[str]:
    known = {name.partition("/")[0] for name in seal.files} | WEIGHTS | RUN_FILES
    return [name for name in run.files if name not in known]


def _self_sealed(name: str, text: str, *records: SealedRecord) -> Link:
    if all(record.seal for record in records):
        return Link(name, "holds", text)
    return Link(name, "unchecked", "written by an earlier version without a hash of its own, so not checked")


def _conclusions(results: Results) -> Iterator[Link]:
    analysis, verdict, damage = results.analysis, results.verdict, results.reader.damage
    for name, record in (("analysis.json", analysis), ("verdict.json", verdict)):
        if record is None:
            yield _no_conclusion(results, name)
    if analysis is not None:
        stale = [wording.stale(reason) for reason in results.stale if reason.code != "other-analysis"]
        text = "; ".join(stale) or f"{analysis.seal}, made from {counted(len(analysis.inputs), 'file')}"
        text += f"; {counted(len(analysis.altered), 'altered file')} accepted" if analysis.altered else ""
        yield Link("analysis.json", "differs" if stale else "holds", text)
    if analysis is None or verdict is None:
        yield from _left_behind(results.folder, "verdict.json" if verdict is not None else None)
        return
    if verdict.analysis_hash != analysis.seal:
        yield Link("verdict.json", "differs", "follows from another analysis than analysis.json")
    elif decided_again(results).verdict is None:
        yield Link("verdict.json", "differs", damage["verdict.json"].text)
    else:
        yield Link("verdict.json", "holds", f"{verdict.seal}, decided again from analysis.json with the same result")
    if os.path.lexists(results.folder / COURSES):
        fits = results.courses is not None
        text = damage[COURSES].text if COURSES in damage else "" if fits else "follows from another analysis"
        yield Link(COURSES, "holds" if fits else "differs", text)
    for name in _NAMING:
        yield _naming(results.folder / name, name, (analysis.seal, verdict.seal))


def _left_behind(folder: Path, verdict: str | None) -> Iterator[Link]:
    """What follows from an analysis or a verdict that is gone: nothing says any more what it should be."""
    for name in filter(None, (verdict, *_NAMING)):
        if os.path.lexists(folder / name):
            yield Link(name, "differs", "follows from what is not there; `ablationlab report` makes both again")


def _no_conclusion(results: Results, name: str) -> Link:
    if (damaged := results.reader.damage.get(name)) is not None:
        return Link(name, "differs", damaged.text)
    if left := [other for other in ("analysis.json", "verdict.json", *_NAMING) if (results.folder / other).exists()]:
        return Link(name, "missing", f"is not there, but {left[0]} is; `ablationlab analyze` makes it again")
    return Link(name, "absent", "`ablationlab analyze` makes it")


def _naming(path: Path, name: str, hashes: tuple[str, ...]) -> Link:
    """A file for readers, which must name the analysis and the verdict that it shows."""
    try:
        text = read_regular(path).decode(errors="replace")
    except FileNotFoundError:
        return Link(name, "absent", "`ablationlab report` makes it")
    except (OSError, RecordError) as error:
        return Link(name, "differs", f"cannot be read: {error}; `ablationlab report` makes it again")
    if all(sha256 in text for sha256 in hashes):
        return Link(name, "holds", "names this analysis and this verdict")
    return Link(name, "differs", "was made from another analysis or verdict; `ablationlab report` makes it again")
