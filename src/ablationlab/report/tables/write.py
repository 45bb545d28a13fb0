"""Every table to disk: tables/NAME.csv, tables/NAME.tex, and the whole analysis as statistics.md."""

from __future__ import annotations

from pathlib import Path

from ablationlab.core.errors import RecordError
from ablationlab.records.storage import replace
from ablationlab.report.material import Material
from ablationlab.report.statistics_md import statistics_markdown
from ablationlab.report.tables import comparisons, design, findings, replication
from ablationlab.report.tables.render import Table, to_csv, to_latex


def write_tables(material: Material, folder: Path) -> list[Path]:
    """Write tables/ and statistics.md into *folder*; the paths written. Needs an analysis of these very records."""
    check_conclusions(material)
    written = []
    for table in tables_of(material):
        for suffix, text in (("csv", to_csv(table)), ("tex", to_latex(table))):
            path = folder / "tables" / f"{table.name}.{suffix}"
            replace(path, text.encode())
            written.append(path)
    path = folder / "statistics.md"
    replace(path, statistics_markdown(material).encode())
    return [*written, path]


def check_conclusions(material: Material) -> None:
    """Refuse what has no analysis, or one that is not of these records: no number may come from elsewhere."""
    missing = [name for name, part in (("analysis", material.analysis), ("verdict", material.verdict)) if part is None]
    again = f"make it with: ablationlab analyze {material.folder}"
    if missing:
        damaged = [f"{d.file}: {d.text}" for d in material.problems if d.file in ("analysis.json", "verdict.json")]
        why = "; ".join(damaged) or f"{' and '.join(f'{name}.json' for name in missing)} missing"
        raise RecordError(f"{material.folder}: {why}. Without it there are no numbers to print; {again}")
    if material.stale:
        lines = "\n".join(f"  - {line}" for line in material.stale[:5])
        more = f"\n  - and {len(material.stale) - 5} more" if len(material.stale) > 5 else ""
        raise RecordError(
            f"{material.folder}: the analysis is not that of the records as they are:\n{lines}{more}\n{again}"
        )


def tables_of(material: Material) -> list[Table]:
    """All of them, in the order of a paper; those without rows are left out."""
    analysis, verdict, plan = material.analysis, material.verdict, material.plan
    assert analysis is not None
    assert verdict is not None
    asked, others = comparisons.split(analysis)
    regimes = len(analysis.regimes)
    everything = list(analysis.comparisons)
    held = (
        []
        if material.replication is None
        else [replication.figures(material.replication), replication.directions(material.replication)]
    )
    found: list[Table | None] = [
        findings.verdicts(analysis, verdict),
        findings.arms(analysis),
        comparisons.table("comparisons", "Every comparison; difference = variant − reference.", everything, regimes),
        comparisons.table("registered", "What the criteria ask.", asked, regimes),
        comparisons.table("exploratory", "Exploratory comparisons: not registered.", others, regimes),
        findings.stability(analysis),
        design.criteria(analysis),
        findings.power(analysis),
        comparisons.pairs(analysis),
        comparisons.methods(analysis),
        design.variants(plan, material.variants) if plan is not None else None,
        design.runs(material.runs) if material.runs else None,
        *held,
    ]
    return [table for table in found if table is not None and table.rows]
