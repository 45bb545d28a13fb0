"""The answers to single items, from samples.parquet: every contrast item by item."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ablationlab.analysis.evaluated import AskedTask, Evaluated, any_result
from ablationlab.analysis.items import ItemScores, TaskScores, compare_items
from ablationlab.analysis.material import Material
from ablationlab.conclusions_evaluation import ItemContrastPart
from ablationlab.conclusions_parts import Seed
from ablationlab.errors import RecordError
from ablationlab.evaluation_records import samples_path
from ablationlab.folders import ResultsFolder
from ablationlab.records import Plan
from ablationlab.storage import content_hash, sha256_file


def item_contrasts(
    material: Material, plan: Plan, results: ResultsFolder, evaluated: Evaluated
) -> Iterable[ItemContrastPart]:
    """Item-level statistics of every contrast, from samples.parquet, on the first template of every task."""
    samples = _Samples(results, evaluated)
    by_cell: dict[tuple[str, str, Seed], str] = {(r.variant, r.regime, r.seed): r.id for r in plan.runs}
    for regime in material.regimes:
        for variant, reference in material.pairs():
            for fewshot in sorted({task.fewshot for task in evaluated.tasks}):
                tasks = [task for task in evaluated.tasks if task.fewshot == fewshot]
                pairs = {
                    seed: (by_cell.get((variant, regime, seed)), by_cell.get((reference, regime, seed)))
                    for seed in material.seeds
                }
                whole = {
                    seed: (a, b) for seed, (a, b) in pairs.items() if samples.has(a, tasks) and samples.has(b, tasks)
                }
                if whole:
                    scores = _item_scores(samples, tasks, whole)
                    yield ItemContrastPart(
                        regime=regime, fewshot=fewshot, comparison=compare_items(scores, variant, reference)
                    )


def _item_scores(
    samples: _Samples, tasks: Sequence[AskedTask], pairs: Mapping[Seed, tuple[str | None, str | None]]
) -> ItemScores:
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
    used = [samples.evaluated.runs[run].samples_sha256 for ids in pairs.values() for run in ids if run]
    return ItemScores(tuple(found), tuple(str(seed) for seed in pairs), content_hash([*used, [t.label for t in tasks]]))


class _Samples:
    """samples.parquet of the runs, read once each; rows are checked to be of the same items everywhere."""

    def __init__(self, results: ResultsFolder, evaluated: Evaluated) -> None:
        self.results, self.evaluated = results, evaluated
        self._rows: dict[str, dict[tuple[str, int], NDArray[np.float64]]] = {}
        self._items: dict[tuple[str, int], tuple[str, ...]] = {}

    def has(self, run: str | None, tasks: Sequence[AskedTask]) -> bool:
        """Whether a run answered all of these."""
        if run is None:
            return False
        accuracy = [self.evaluated.score(run, task, lambda result: result.accuracy) for task in tasks]
        return not any(isinstance(value, str) for value in accuracy)

    def correct(self, run: str | None, task: AskedTask) -> NDArray[np.float64]:
        """1 where the item was answered rightly."""
        assert run is not None
        if run not in self._rows:
            self._rows[run] = self._read(run)
        return self._rows[run][task.name, task.fewshot]

    def _read(self, run: str) -> dict[tuple[str, int], NDArray[np.float64]]:
        import pyarrow.parquet as pq

        path = samples_path(self.results.run(run))
        if not path.exists() or sha256_file(path) != self.evaluated.runs[run].samples_sha256:
            raise RecordError(
                f"{path} is not the one that evaluation.json was written with; run ablationlab evaluate again"
            )
        columns = [
            "task",
            "template",
            "fewshot",
            "weights",
            "item",
            "prompt_hash",
            "doc_hash",
            "target_hash",
            "correct",
        ]
        wanted = {(task.name, task.fewshot, next(iter(task.hashes))) for task in self.evaluated.tasks}
        rows: dict[tuple[str, int], list[tuple[int, str, bool]]] = {}
        for row in pq.read_table(path, columns=columns).to_pylist():
            if row["weights"] == "final" and (row["task"], row["fewshot"], row["template"]) in wanted:
                identity = row["prompt_hash"] + row["doc_hash"] + row["target_hash"]
                rows.setdefault((row["task"], row["fewshot"]), []).append((row["item"], identity, row["correct"]))
        found = {}
        for key, entries in rows.items():
            entries.sort()
            items = tuple(f"{item} {identity}" for item, identity, _ in entries)
            if self._items.setdefault(key, items) != items:
                raise RecordError(f"{path}: its items of {key[0]} are not those of the other runs; evaluate again")
            found[key] = np.asarray([float(correct) for _, _, correct in entries])
        return found
