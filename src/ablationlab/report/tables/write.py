"""Every table of a study on disk: tables/NAME.csv, tables/NAME.tex, and the whole analysis as statistics.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ablationlab.analysis.wording import hypothesis_lines
from ablationlab.core.errors import RecordError
from ablationlab.core.format import count, level, p_clause, setting, with_unit
from ablationlab.records.analysis import Analysis, Comparison
from ablationlab.records.results import Results
from ablationlab.records.storage import replace
from ablationlab.records.verdict import Verdict
from ablationlab.report.naming import metric_of
from ablationlab.report.table import Table, markdown
from ablationlab.report.tables.comparisons import (
    comparison_table,
    difference_of,
    method_table,
    pair_table,
    split,
    text_table,
)
from ablationlab.report.tables.study import (
    DECISIONS,
    arm_table,
    criteria_table,
    direction_table,
    figure_table,
    power_table,
    run_table,
    stability_table,
    variant_table,
    verdict_table,
)


def write_tables(material: Results, folder: Path) -> list[Path]:
    """Write tables/ and statistics.md into *folder*; the paths written. Needs an analysis of these very records."""
    check_conclusions(material)
    written = []
    for table in tables_of(material):
        for suffix, text in (("csv", table.csv()), ("tex", table.latex())):
            path = folder / "tables" / f"{table.key}.{suffix}"
            replace(path, text.encode())
            written.append(path)
    path = folder / "statistics.md"
    replace(path, statistics_markdown(material).encode())
    return [*written, path]


def check_conclusions(material: Results) -> None:
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


def tables_of(material: Results) -> list[Table]:
    """All of them, in the order of a paper; those without rows are left out."""
    analysis, verdict, plan = material.analysis, material.verdict, material.plan
    assert analysis is not None
    assert verdict is not None
    asked, others = split(analysis)
    regimes = len(analysis.regimes)
    found: list[Table | None] = [
        verdict_table(analysis, verdict),
        arm_table(analysis),
        comparison_table(
            "comparisons", "All comparisons; difference = variant − reference.", analysis.comparisons, regimes
        ),
        comparison_table("registered", "Comparisons that the criteria ask for.", asked, regimes),
        comparison_table("exploratory", "Exploratory comparisons: not registered.", others, regimes),
        stability_table(analysis),
        text_table(analysis),
        criteria_table(analysis),
        power_table(analysis),
        pair_table(analysis),
        method_table(analysis),
        variant_table(plan, material.variants) if plan is not None else None,
        run_table(material.runs),
    ]
    if material.replication is not None:
        found += [figure_table(material.replication), direction_table(material.replication)]
    return [table for table in found if table is not None and table.rows]


def statistics_markdown(material: Results) -> str:
    """Verdict, registered and exploratory comparisons, stability, power, every pair and method, caveats, deviations."""
    analysis, verdict = material.analysis, material.verdict
    assert analysis is not None
    assert verdict is not None
    asked, others = split(analysis)
    regimes = len(analysis.regimes)
    parts = [f"# Statistics of {markdown(analysis.study)}"]
    if material.interim:
        parts.append(f"**Interim: {material.ended} of {len(material.runs)} runs have ended. This is not inference.**")
    if analysis.question:
        parts.append(markdown(analysis.question))
    parts.append(_source(analysis, verdict))
    parts += ["## Verdict", verdict_table(analysis, verdict).markdown(), _verdicts(verdict)]
    if verdict.hypotheses:
        parts += ["## Hypotheses", _bullets(hypothesis_lines(verdict.hypotheses))]
    parts += _section(criteria_table(analysis), "Criteria")
    if asked:
        title = "Registered comparisons" if asked[0].label == "registered" else "The question asked (exploratory)"
        parts += [f"## {title}", comparison_table("registered", "", asked, regimes).markdown(), _notes(asked)]
    if others:
        parts += ["## Exploratory comparisons", "Not registered; corrected among themselves. Leads, not findings."]
        parts += [comparison_table("exploratory", "", others, regimes).markdown(), _notes(others)]
    parts += ["## Arms", arm_table(analysis).markdown()]
    parts += _section(stability_table(analysis), "Stability")
    parts += _section(power_table(analysis), "Power")
    parts += ["## Families", _families(analysis)]
    parts += ["## Every pair", pair_table(analysis).markdown()]
    parts += ["## Every interval and test", method_table(analysis).markdown()]
    parts += ["## Deviations from the registration", _deviations(analysis)]
    if analysis.ledger is not None:
        parts += ["## Ledger", markdown(analysis.ledger.text)]
    if material.problems:
        parts += ["## Damaged files", _bullets([f"{found.file}: {found.text}" for found in material.problems])]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _section(table: Table | None, title: str) -> list[str]:
    return [] if table is None or not table.rows else [f"## {title}", markdown(table.title), table.markdown()]


def _source(analysis: Analysis, verdict: Verdict) -> str:
    lines = [
        f"- source: {analysis.source}, hash `{analysis.source_hash}`",
        f"- criteria hash: `{analysis.criteria_hash}`" if analysis.criteria_hash else "- criteria: none registered",
        f"- analysis hash: `{verdict.analysis_hash}`",
        f"- primary metric: {markdown(analysis.primary or 'none')}",
        f"- resamples where a bootstrap is not enumerated: {count(analysis.resamples)}",
    ]
    return "\n".join(lines)


def _verdicts(verdict: Verdict) -> str:
    lines = []
    for one in verdict.verdicts:
        lines.append(f"### {markdown(one.variant)} in {markdown(one.regime)}: {DECISIONS[one.decision]}")
        lines.append(markdown(one.recommendation))
        lines.append(_bullets([f"rule {c.rule} {'applies' if c.applies else 'does not'}: {c.why}" for c in one.checks]))
        lines.append("Evidence: " + ", ".join(f"`{name}`" for name in one.evidence) if one.evidence else "")
        lines += [markdown(part.text) for part in (one.trade_off, one.tie_break, one.needs) if part is not None]
    return "\n\n".join(line for line in lines if line)


def _notes(found: Sequence[Comparison]) -> str:
    """One line per comparison, with the method behind the numbers; then each caveat once."""
    lines = []
    for one in found:
        shown, interval = difference_of(one), one.main_interval
        text = f"{metric_of(one)}, {one.variant} − {one.reference} ({one.regime}): "
        text += with_unit(shown.delta, shown.unit)
        if interval is not None and interval.low is not None:
            text += f", {level(interval.level)} {one.interval} interval {shown.interval}"
        text += f"; {one.test} {p_clause(one.p)}, {one.correction} over {one.family_size}: {p_clause(one.p_adjusted)}"
        if one.equivalence is not None and one.equivalence.p is not None:
            text += f"; TOST within ±{setting(one.equivalence.bounds[1])} {p_clause(one.equivalence.p)}"
        if one.missing:
            text += "; missing: " + ", ".join(f"seed {m.seed} of {m.arm} ({m.why})" for m in one.missing)
        lines.append(text + ".")
    caveats = list(dict.fromkeys(caveat.text for one in found for caveat in one.caveats))
    return _bullets(lines) + ("\n\nMind:\n\n" + _bullets(caveats) if caveats else "")


def _families(analysis: Analysis) -> str:
    return _bullets(
        [f"{f.id}: {f.tested} tests, corrected by {f.correction}: {', '.join(f.members)}" for f in analysis.families]
    )


def _deviations(analysis: Analysis) -> str:
    return _bullets([f"{found.code}: {found.text}" for found in analysis.deviations]) or "None found."


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {markdown(line)}" for line in lines)
