"""The answers to single items, from samples.parquet: every contrast item by item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ablationlab.analysis.evaluated import AskedTask, Evaluated, any_result
from ablationlab.analysis.items import ItemScores, TaskScores, compare_items
from ablationlab.analysis.material import Material
from ablationlab.core.errors import RecordError
from ablationlab.records.analysis import ItemContrast, Seed
from ablationlab.records.evaluation import samples_path
from ablationlab.records.folders import ResultsFolder
from ablationlab.records.plan import Plan
from ablationlab.records.storage import content_hash, sha256_file


def item_contrasts(
    material: Material, plan: Plan, results: ResultsFolder, evaluated: Evaluated
) -> tuple[list[ItemContrast], list[str]]:
    """Item-level statistics of every contrast on the planned tasks, from samples.parquet; and who is left out, and why.

    An item that was put in several templates scores its mean over them, as the task does.
    """
    samples = _Samples(results, evaluated)
    by_cell: dict[tuple[str, str, Seed], str] = {(r.variant, r.regime, r.seed): r.id for r in plan.runs}
    planned = [task for task in evaluated.tasks if task.planned]
    found, left_out = [], dict[str, dict[str, None]]()
    for regime in material.regimes:
        for variant, reference in material.pairs():
            for fewshot in sorted({task.fewshot for task in planned}):
                tasks = [task for task in planned if task.fewshot == fewshot]
                whole: dict[Seed, tuple[str, str]] = {}
                for seed in material.seeds:
                    pair = [by_cell.get((name, regime, seed)) for name in (variant, reference)]
                    ids = [run for run in pair if run is not None]
                    whys = {run: samples.lacks(run, tasks) for run in ids}
                    if len(ids) == 2 and not any(whys.values()):
                        whole[seed] = (ids[0], ids[1])
                    for run, why in whys.items():
                        if why is not None and run in evaluated.runs:
                            left_out.setdefault(why, {})[run] = None
                if whole:
                    scores = _item_scores(samples, tasks, whole)
                    comparison = compare_items(scores, variant, reference)
                    found.append(ItemContrast(regime=regime, fewshot=fewshot, comparison=comparison))
    return found, [f"not in the item-level statistics ({why}): {', '.join(runs)}" for why, runs in left_out.items()]


def _item_scores(samples: _Samples, tasks: Sequence[AskedTask], pairs: Mapping[Seed, tuple[str, str]]) -> ItemScores:
    found = []
    for task in tasks:
        columns = [[samples.correct(ids[side], task) for ids in pairs.values()] for side in (0, 1)]
        found.append(
            TaskScores(
                task=task.label,
                metric="acc",
                variant=np.stack(columns[0]),
                reference=np.stack(columns[1]),
                chance=any_result(samples.evaluated, task).chance,
            )
        )
    used = [samples.evaluated.runs[run].samples_sha256 for ids in pairs.values() for run in ids]
    return ItemScores(tuple(found), tuple(str(seed) for seed in pairs), content_hash([*used, [t.label for t in tasks]]))


class _Samples:
    """samples.parquet of the runs, read once each; only rows of the version that counts, checked to be of the same items."""

    def __init__(self, results: ResultsFolder, evaluated: Evaluated) -> None:
        self.results, self.evaluated = results, evaluated
        self._rows: dict[str, dict[str, NDArray[np.float64]]] = {}
        self._items: dict[str, list[str]] = {}

    def lacks(self, run: str, tasks: Sequence[AskedTask]) -> str | None:
        """Why a run has not answered all of these; None where it has."""
        accuracy = (self.evaluated.score(run, task, lambda result: result.accuracy) for task in tasks)
        return next((value for value in accuracy if isinstance(value, str)), None)

    def correct(self, run: str, task: AskedTask) -> NDArray[np.float64]:
        """Per item 1 where it was answered rightly, in several templates the share of them."""
        if run not in self._rows:
            self._rows[run] = self._read(run)
        found = [self._rows[run][digest] for digest in task.hashes.values()]
        if len({len(one) for one in found}) > 1:
            raise RecordError(f"{run}: {task.label} has other items in another template; evaluate again")
        share: NDArray[np.float64] = np.stack(found).mean(axis=0)
        return share

    def _read(self, run: str) -> dict[str, NDArray[np.float64]]:
        """By the hash of the task and its template."""
        import pyarrow.parquet as pq

        path = samples_path(self.results.run(run))
        if not path.exists() or sha256_file(path) != self.evaluated.runs[run].samples_sha256:
            raise RecordError(
                f"{path} is not the one that evaluation.json was written with; run ablationlab evaluate again"
            )
        columns = ["weights", "task_hash", "item", "prompt_hash", "doc_hash", "target_hash", "correct"]
        wanted = {digest for task in self.evaluated.tasks if task.planned for digest in task.hashes.values()}
        rows: dict[str, list[tuple[int, str, bool]]] = {}
        for row in pq.read_table(path, columns=columns).to_pylist():
            if row["weights"] == "final" and row["task_hash"] in wanted:
                identity = row["prompt_hash"] + row["doc_hash"] + row["target_hash"]
                rows.setdefault(row["task_hash"], []).append((row["item"], identity, row["correct"]))
        found = {}
        for digest, entries in rows.items():
            entries.sort()
            items = [f"{item} {identity}" for item, identity, _ in entries]
            if self._items.setdefault(digest, items) != items:
                raise RecordError(f"{path}: its items of one task are not those of the other runs; evaluate again")
            found[digest] = np.asarray([float(correct) for _, _, correct in entries])
        return found
