"""Whether a name means a study or a run, and which."""

from __future__ import annotations

from pathlib import Path

from ablationlab.core.errors import RecordError, StudyError, nearest
from ablationlab.records.results import Results, Run
from ablationlab.records.storage import ResultsFolder
from ablationlab.study.places import find_results


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
