"""The tables of a study on disk: tables/effects.csv and effects.md, every pair and every run."""

from __future__ import annotations

from pathlib import Path

from ablationlab.analysis import wording
from ablationlab.core.errors import RecordError
from ablationlab.core.format import printable
from ablationlab.records.results import Results
from ablationlab.records.storage import replace
from ablationlab.report.effects import effects_of
from ablationlab.report.table import Table, markdown
from ablationlab.report.tables.comparisons import pair_table
from ablationlab.report.tables.effects import effects_table
from ablationlab.report.tables.setup import run_table


def write_tables(results: Results, folder: Path) -> list[Path]:
    """Write tables/ into *folder*; the paths written. Needs an analysis of these very records."""
    check_conclusions(results)
    effects, *others = tables_of(results)
    title = f"# {markdown(results.name)}\n\n{markdown(results.question)}\n\n"
    texts = {f"{table.key}.csv": table.csv() for table in (effects, *others)}
    texts["effects.md"] = printable(title + effects.markdown())
    for name, text in texts.items():
        replace(folder / "tables" / name, text.encode())
    return [folder / "tables" / name for name in texts]


def tables_of(results: Results) -> list[Table]:
    """Effects, pairs and runs; of these, what has rows, and the effects always."""
    analysis = results.analysis
    assert analysis is not None
    effects = effects_table(effects_of(analysis, results.verdict))
    return [effects, *(table for table in (pair_table(analysis), run_table(results)) if table.rows)]


def check_conclusions(results: Results) -> None:
    """Refuse what has no analysis, or one that is not of these records: no number may come from elsewhere."""
    missing = [name for name, part in (("analysis", results.analysis), ("verdict", results.verdict)) if part is None]
    again = f"make it with: ablationlab analyze {results.folder}"
    if missing:
        damaged = [f"{d.file}: {d.text}" for d in results.problems if d.file in ("analysis.json", "verdict.json")]
        if damaged:  # which says what to do; `analyze` may refuse, too
            raise RecordError(f"{results.folder}: {'; '.join(damaged)}")
        absent = " and ".join(f"{name}.json" for name in missing)
        raise RecordError(f"{results.folder}: {absent} missing. Without it there are no numbers to print; {again}")
    if results.stale:
        lines = "\n".join(f"  - {wording.stale(reason)}" for reason in results.stale[:5])
        more = f"\n  - and {len(results.stale) - 5} more" if len(results.stale) > 5 else ""
        raise RecordError(
            f"{results.folder}: the analysis is not that of the records as they are:\n{lines}{more}\n{again}"
        )
