"""lm-eval's ``--log_samples`` output as item scores: two folders, paired on the document, its prompt and its target.

A run is a folder that holds ``samples_<task>_<time>.jsonl`` files, or logs of inspect_ai (analysis/inspect_logs.py), at any
depth. One such folder in an arm is one run; several are seeds, named by the first part of their path, and pair by that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ablationlab.analysis.inspect_logs import SUFFIXES, finite, is_log, question_hash, read_log, task_of
from ablationlab.analysis.items import ItemScores, TaskScores, compare_items, corrected_together
from ablationlab.core.errors import TableError, did_you_mean
from ablationlab.records.analysis import ItemComparison
from ablationlab.records.storage import content_hash, parse_json, read_regular, sha256_file

_NAME = re.compile(r"samples_(?P<task>.+)_\d{4}-\d{2}-\d{2}T[\d.:-]+\.jsonl")
_HASHES = ("doc_hash", "prompt_hash", "target_hash")
#: Asked in this order when no metric is named.
_USUAL = ("acc", "exact_match", "acc_norm")
_ONE = ""


@dataclass(frozen=True)
class Sample:
    """One answered item: its identity, its score and the number of choices it offered (None where it offered none)."""

    hashes: tuple[str, ...]
    score: float
    choices: int | None


#: doc_id -> sample, of one task of one run.
Samples = Mapping[str, Sample]


def read_pair(
    variant: Path,
    reference: Path,
    *,
    metric: str | None = None,
    filter_name: str | None = None,
    allow_unpaired: bool = False,
) -> ItemScores:
    """Scores of both arms on the items they share; raises `TableError` where they do not pair.

    With *allow_unpaired* what does not pair is left out, counted and reported.
    """
    arms = [_runs(folder) for folder in (variant, reference)]
    seeds = _shared_seeds(variant, reference, arms)
    files = [{seed: _files(arm[seed]) for seed in seeds} for arm in arms]
    tasks, left_out = _shared_tasks(variant, reference, files, allow_unpaired)
    scores = []
    for task in tasks:
        loaded = [[_load(arm[seed][task], metric, filter_name) for seed in seeds] for arm in files]
        used = {name for arm in loaded for name, _ in arm}
        if len(used) > 1:
            raise TableError(
                str(variant), [f"task {task}: runs differ in metrics ({', '.join(sorted(used))}); use --metric"]
            )
        chosen = used.pop()
        if any("\ud800" <= sign <= "\udfff" for sign in task + chosen):
            text = f"task {task!r}, metric {chosen!r}: rename what holds a lone surrogate, for it cannot be written"
            raise TableError(str(variant), [text])
        pairs = [[samples for _, samples in arm] for arm in loaded]
        scores.append(_paired(task, chosen, pairs[0], pairs[1], allow_unpaired))
    hashes = [sha256_file(arm[seed][task]) for arm in files for seed in seeds for task in tasks]
    return ItemScores(
        tasks=tuple(scores),
        seeds=tuple(seed or "the only run" for seed in seeds),
        source_hash=content_hash(hashes),
        left_out=tuple(left_out),
    )


def compare_samples(
    paths: Sequence[Path],
    *,
    baseline: Path | None = None,
    metric: str | None = None,
    filter_name: str | None = None,
    allow_unpaired: bool = False,
    alpha: float = 0.05,
    correction: str = "holm",
    smallest_effect: float | None = None,
) -> list[ItemComparison]:
    """Every one of *paths* against *baseline*, the first unless given; all tasks of all comparisons are one family."""
    names = _names(paths)
    reference = baseline if baseline is not None else paths[0]
    if reference not in paths:
        hint = did_you_mean(str(reference), map(str, paths))
        raise TableError(str(reference), [f"--baseline is not one of {', '.join(map(str, paths))}{hint}"])
    if len(set(paths)) < len(paths):
        raise TableError(str(paths[0]), ["the same folder is given twice"])
    comparisons = [
        compare_items(
            read_pair(path, reference, metric=metric, filter_name=filter_name, allow_unpaired=allow_unpaired),
            names[path],
            names[reference],
            alpha=alpha,
            correction=correction,
            smallest_effect=smallest_effect,
        )
        for path in paths
        if path != reference
    ]
    return corrected_together(comparisons, correction)


def _names(paths: Sequence[Path]) -> dict[Path, str]:
    """The last part of each path, with a letter before it where two are alike."""
    names = [path.stem if path.is_file() else path.name for path in paths]
    twice = len(set(names)) < len(names) or not all(names)
    return {
        path: f"{chr(65 + number)} ({name})" if twice and name else name or chr(65 + number)
        for number, (path, name) in enumerate(zip(paths, names, strict=True))
    }


def _runs(folder: Path) -> dict[str, Path]:
    """Folders with sample files, by the first part of their path below *folder*; one alone has the empty name."""
    if folder.is_file() and is_log(folder):
        return {_ONE: folder}
    if not folder.is_dir():
        raise TableError(str(folder), ["is not a folder, nor a log of inspect_ai"])
    folders = sorted({path.parent for path in _sample_files(folder, "rglob")})
    if not folders:
        text = "holds no samples_*.jsonl (run lm-eval with --log_samples --output_path) and no logs of inspect_ai"
        raise TableError(str(folder), [text])
    if len(folders) == 1:
        return {_ONE: folders[0]}
    named: dict[str, Path] = {}
    for path in folders:
        name = path.relative_to(folder).parts[0] if path != folder else "."
        if name in named:
            raise TableError(str(folder), [f"{name} holds several runs: {named[name]} and {path}; keep one per seed"])
        named[name] = path
    return named


def _shared_seeds(variant: Path, reference: Path, arms: Sequence[Mapping[str, Path]]) -> list[str]:
    if arms[0].keys() == arms[1].keys():
        return list(arms[0])
    names = [sorted(arm) for arm in arms]
    if any(len(arm) == 1 for arm in arms):
        counts = " and ".join(str(len(arm)) for arm in arms)
        raise TableError(f"{variant} and {reference}", [f"hold {counts} runs; the same number of seeds is needed"])
    lone = [
        f"{name!r} has no partner in {other}{did_you_mean(name, known)}"
        for mine, other, known in ((names[0], reference, names[1]), (names[1], variant, names[0]))
        for name in mine
        if name not in known
    ]
    raise TableError(f"{variant} and {reference}", lone)


def _sample_files(folder: Path, search: Literal["glob", "rglob"]) -> list[Path]:
    found = getattr(folder, search)
    return sorted(
        [*found("samples_*.jsonl"), *(path for path in found("*") if path.suffix in SUFFIXES and is_log(path))]
    )


def _files(run: Path) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for path in [run] if run.is_file() else _sample_files(run, "glob"):
        match = _NAME.fullmatch(path.name)
        task = match["task"] if match else path.stem.removeprefix("samples_")
        task = task_of(path) if path.suffix in SUFFIXES else task
        if task in files:
            text = (
                f"task {task} was evaluated twice ({files[task].name}, {path.name}); remove the one that does not count"
            )
            raise TableError(str(run), [text])
        files[task] = path
    return files


def _shared_tasks(
    variant: Path, reference: Path, files: Sequence[Mapping[str, Mapping[str, Path]]], allow_unpaired: bool
) -> tuple[list[str], list[str]]:
    runs = [run for arm in files for run in arm.values()]
    everywhere = [task for task in runs[0] if all(task in run for run in runs)]
    partial = sorted({task for run in runs for task in run} - set(everywhere))
    if not everywhere or (partial and not allow_unpaired):
        problems = [f"task {task} is not in every run" for task in partial] or ["no task is in every run"]
        raise TableError(f"{variant} and {reference}", [*problems, "--allow-unpaired leaves out what does not pair"])
    return everywhere, partial


def _load(path: Path, metric: str | None, filter_name: str | None) -> tuple[str, dict[str, Sample]]:
    if path.suffix in SUFFIXES:
        scorer, scored = read_log(path, metric)
        return scorer, {key: Sample(*sample) for key, sample in scored.items()}
    lines = list(_lines(path))
    if not lines:
        raise TableError(str(path), ["holds no samples"])
    filters = list(dict.fromkeys(str(line.get("filter", "none")) for line in lines))
    chosen = filter_name or (filters[0] if len(filters) == 1 else None)
    if chosen not in filters:
        raise TableError(str(path), [f"choose one of its filters with --filter: {', '.join(filters)}"])
    lines = [line for line in lines if str(line.get("filter", "none")) == chosen]
    name = metric or _usual_metric(path, lines[0])
    samples: dict[str, Sample] = {}
    for line in lines:
        key = str(line["doc_id"])
        if key in samples:
            raise TableError(str(path), [f"doc_id {key} appears twice"])
        samples[key] = Sample(_identity(line), _score(path, line, name), _choices(line))
    return name, samples


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        content = read_regular(path)
    except OSError as error:
        raise TableError(str(path), [f"cannot be read: {error}"]) from error
    # Of bytes: lm-eval writes U+2028 and U+0085 as they are, and to a text they end a line.
    for number, text in enumerate(content.splitlines(), start=1):
        if not text.strip():
            continue
        try:
            line = parse_json(text)
        except ValueError as error:
            raise TableError(str(path), [f"line {number} is not JSON: {error}"]) from error
        if not isinstance(line, dict) or "doc_id" not in line:
            raise TableError(str(path), [f"line {number} is not a sample of lm-eval: it has no doc_id"])
        yield line


def _usual_metric(path: Path, line: Mapping[str, Any]) -> str:
    there = _numeric(line)
    chosen = next((name for name in _USUAL if name in there), there[0] if there else None)
    if chosen is None:
        raise TableError(str(path), ["its samples hold no numeric metric"])
    return chosen


def _numeric(line: Mapping[str, Any]) -> list[str]:
    """Its metrics that are numbers."""
    listed = line.get("metrics")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    return [name for name in names if isinstance(line.get(name), int | float)]


def _score(path: Path, line: Mapping[str, Any], metric: str) -> float:
    value = line.get(metric)
    if isinstance(value, int | float) and (number := finite(value)) is not None:
        return number
    there = _numeric(line)
    metrics = f"{', '.join(there) or 'none'}{did_you_mean(metric, there)}"
    raise TableError(
        str(path), [f"doc_id {line['doc_id']}: {metric} is {repr(value)[:60]}, not a number; its metrics: {metrics}"]
    )


def _identity(line: Mapping[str, Any]) -> tuple[str, ...]:
    """Hashes of document, prompt and target; versions of lm-eval that lack them are hashed here."""
    given = tuple(str(line[name]) for name in _HASHES if name in line)
    if given:
        return given
    return (question_hash(line.get("doc"), line.get("arguments"), line.get("target")),)


def _choices(line: Mapping[str, Any]) -> int | None:
    arguments = line.get("arguments")
    count = len(arguments) if isinstance(arguments, Mapping | list) else 0
    return count if count > 1 else None


def _paired(
    task: str, metric: str, variant: Sequence[Samples], reference: Sequence[Samples], allow_unpaired: bool
) -> TaskScores:
    runs = [*variant, *reference]
    shared = [
        key for key, sample in runs[0].items() if all(key in run and run[key].hashes == sample.hashes for run in runs)
    ]
    lost = [max(len(run) for run in arm) - len(shared) for arm in (variant, reference)]
    if not shared or (max(lost) and not allow_unpaired):
        raise TableError(f"task {task}", _why_unpaired(runs, set(shared)))
    choices = [runs[0][key].choices for key in shared]
    counts = [count for count in choices if count is not None]
    chance = float(np.mean([1 / count for count in counts])) if len(counts) == len(choices) else None
    return TaskScores(
        task=task,
        metric=metric,
        variant=np.array([[run[key].score for key in shared] for run in variant]),
        reference=np.array([[run[key].score for key in shared] for run in reference]),
        unpaired_variant=lost[0],
        unpaired_reference=lost[1],
        chance=chance,
    )


def _why_unpaired(runs: Sequence[Samples], paired: Set[str]) -> list[str]:
    everything = dict.fromkeys(key for run in runs for key in run)
    lone = [key for key in everything if key not in paired]
    absent = [key for key in lone if not all(key in run for run in runs)]
    changed = [key for key in lone if all(key in run for run in runs)]
    problems = [f"{len(lone)} of {len(everything)} items do not pair"]
    if absent:
        problems.append(f"not in every run: doc_id {', '.join(absent[:5])}")
    if changed:
        problems.append(f"other document, prompt or target under the same doc_id: {', '.join(changed[:5])}")
    problems.append("models must answer the same prompts; --allow-unpaired leaves out what does not pair")
    return problems
