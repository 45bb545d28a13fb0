"""The one end of every analysis: compare, decide, and write analysis.json and verdict.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ablationlab.analysis.assemble import analyze
from ablationlab.analysis.dataset import Dataset
from ablationlab.analysis.verdict import decide
from ablationlab.records.analysis import Analysis
from ablationlab.records.table_curves import TableRun, write_table_curves
from ablationlab.records.verdict import Verdict


@dataclass(frozen=True)
class Conclusion:
    """What a dataset gives: its comparisons, the verdict of the rules, and the curves of a user's table."""

    analysis: Analysis
    verdict: Verdict
    curves: tuple[TableRun, ...] = ()

    def write(self, folder: Path) -> None:
        """A user's table brings its curves, which no run's folder has."""
        self.analysis.replace(folder / "analysis.json")
        self.verdict.replace(folder / "verdict.json")
        if self.analysis.source == "table":
            write_table_curves(self.curves, folder)


def conclude(dataset: Dataset) -> Conclusion:
    """Analyze and decide; writes nothing."""
    analysis = analyze(dataset)
    return Conclusion(analysis, decide(analysis), dataset.curves)
