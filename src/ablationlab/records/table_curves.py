"""curves.parquet, beside the analysis of a user's table: the curves of its runs, one row per run, metric and step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ablationlab.core.errors import RecordError
from ablationlab.records.storage import open_regular, replace

if TYPE_CHECKING:
    from ablationlab.records.run import FloatArray

TABLE_CURVES = "curves.parquet"
COLUMNS = ("run", "variant", "regime", "seed", "metric", "step", "value")


@dataclass(frozen=True)
class TableRun:
    """A run of a user's table: *curves* has `step` and one column per metric, NaN where it was not taken."""

    id: str
    variant: str
    regime: str
    seed: str
    curves: Mapping[str, FloatArray]

    @property
    def steps(self) -> int:
        return int(self.curves["step"][-1])

    @classmethod
    def of(
        cls, run_id: str, variant: str, regime: str, seed: str, points: Mapping[str, Mapping[float, float]]
    ) -> TableRun:
        import numpy as np

        steps = sorted({step for metric in points.values() for step in metric})
        columns = {
            name: np.array([metric.get(step, np.nan) for step in steps], dtype=np.float64)
            for name, metric in points.items()
        }
        return cls(run_id, variant, regime, seed, {"step": np.array(steps, dtype=np.float64), **columns})


def write_table_curves(runs: Sequence[TableRun], folder: Path) -> None:
    """Write curves.parquet, or remove that of an earlier table where there are no curves."""
    path = folder / TABLE_CURVES
    if not runs:
        path.unlink(missing_ok=True)
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        (run.id, run.variant, run.regime, run.seed, metric, float(step), float(value))
        for run in runs
        for metric, values in run.curves.items()
        if metric != "step"
        for step, value in zip(run.curves["step"], values, strict=True)
        if not math.isnan(value)
    ]
    out = pa.BufferOutputStream()
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in COLUMNS]
    pq.write_table(pa.table(dict(zip(COLUMNS, columns, strict=True))), out)
    replace(path, out.getvalue().to_pybytes())


def read_table_curves(path: Path) -> tuple[TableRun, ...]:
    """Read curves.parquet back, runs in their order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_regular(path) as file:  # a pipe would never end
            columns = pq.ParquetFile(file).read(list(COLUMNS), use_threads=False).to_pydict()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise RecordError(f"cannot be read as the curves of a table: {error}", path) from error
    runs: dict[tuple[str, str, str, str], dict[str, dict[float, float]]] = {}
    for run, variant, regime, seed, metric, step, value in zip(*(columns[name] for name in COLUMNS), strict=True):
        runs.setdefault((run, variant, regime, seed), {}).setdefault(metric, {})[step] = value
    return tuple(TableRun.of(*key, points) for key, points in runs.items())
