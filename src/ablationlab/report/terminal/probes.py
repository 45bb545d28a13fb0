"""Tables of probes: which there are, and what those of one run have seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from ablationlab.records.probes import ProbeLine, failures
from ablationlab.report.terminal.base import table
from ablationlab.study.probes import PROBES


def probes_table() -> Table:
    """Every probe that a study can switch on."""
    rows = [(p.name, ", ".join(m.name for m in p.measures), p.meaning) for _, p in PROBES.items()]
    return table("Probes", ["name", "measures", "meaning"], rows)


def run_probes_view(title: str, lines: Sequence[ProbeLine]) -> Iterator[Table | Text]:
    """Every scalar of a run when it was first, halfway and last measured; distributions are in the files."""
    rows: list[tuple[str, ...]] = []
    for probe in PROBES:
        mine = [line for line in lines if line.probe == probe and line.error is None]
        if not mine:
            continue
        numbers: dict[tuple[str, str], list[str]] = {}
        for line in (mine[0], mine[len(mine) // 2], mine[-1]):
            for row in line.rows:
                if row.at is None:
                    numbers.setdefault((row.measure, row.group or ""), []).append(f"{row.value:.4g}")
        rows += [(probe, measure, group, *values) for (measure, group), values in numbers.items()]
    if rows:
        ends = f"{title}, from step {min(line.step for line in lines)} to {max(line.step for line in lines)}"
        columns = ["first", "halfway", "last"]
        yield table(ends, ["probe", "measure", "of", *columns], rows, columns)
    for name, (step, error) in failures(lines).items():
        yield Text(f"{name} failed at step {step} and was off from there on: {error}")
