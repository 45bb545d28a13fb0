"""Every table of a study on disk: tables/NAME.csv, tables/NAME.tex, and the whole analysis as statistics.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ablationlab.analysis import wording
from ablationlab.analysis.findings import crossed, replicated
from ablationlab.analysis.wording import difference_of, ledger_of
from ablationlab.analysis.wording import name_of as metric_of
from ablationlab.core.errors import RecordError
from ablationlab.core.format import count, level, p_clause, printable, setting, several
from ablationlab.records.analysis import Analysis, Comparison
from ablationlab.records.results import Results
from ablationlab.records.storage import replace
from ablationlab.records.verdict import Verdict
from ablationlab.report.table import Table, markdown
from ablationlab.report.tables.ablation import ablation_table
from ablationlab.report.tables.answers import answer_table, hypothesis_table
from ablationlab.report.tables.comparisons import (
    comparison_table,
    method_table,
    pair_table,
    split,
    text_table,
)
from ablationlab.report.tables.readings import reading_table
from ablationlab.report.tables.study import (
    arm_table,
    criteria_table,
    data_table,
    direction_table,
    figure_table,
    hash_table,
    interaction_table,
    noise_table,
    power_table,
    rate_table,
    run_table,
    simple_table,
    stability_table,
    variant_table,
)
from ablationlab.report.tables.tasks import task_table


def write_tables(results: Results, folder: Path) -> list[Path]:
    """Write tables/ and statistics.md into *folder*; the paths written. Needs an analysis of these very records."""
    check_conclusions(results)
    written = []
    for table in tables_of(results):
        for suffix, text in (("csv", table.csv()), ("tex", table.latex())):
            path = folder / "tables" / f"{table.key}.{suffix}"
            replace(path, text.encode())
            written.append(path)
    path = folder / "statistics.md"
    replace(path, printable(statistics_markdown(results)).encode())
    return [*written, path]


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


def tables_of(results: Results) -> list[Table]:
    """All of them, in the order of a paper; those without rows are left out."""
    analysis, verdict, plan = results.analysis, results.verdict, results.plan
    assert analysis is not None
    assert verdict is not None
    asked, others = split(analysis)
    regimes = len(analysis.regimes)
    found: list[Table | None] = [
        ablation_table(analysis, verdict),
        answer_table(analysis, verdict),
        hypothesis_table(verdict),
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
        interaction_table(analysis.interactions) if analysis.interactions is not None else None,
        simple_table(analysis),
        reading_table(analysis.readings, regimes, analysis.comparisons) if analysis.readings is not None else None,
        noise_table(analysis.noise),
        rate_table(analysis.sweep) if analysis.sweep is not None else None,
        task_table(results),
        variant_table(results, plan) if plan is not None else None,
        data_table(results),
        hash_table(results),
        run_table(results),
    ]
    if results.replication is not None:
        found += [figure_table(results.replication), direction_table(results.replication)]
    return [table for table in found if table is not None and table.rows]


def statistics_markdown(results: Results) -> str:
    """Answers, registered and exploratory comparisons, stability, power, every pair and method, caveats, deviations."""
    analysis, verdict = results.analysis, results.verdict
    assert analysis is not None
    assert verdict is not None
    asked, others = split(analysis)
    regimes = len(analysis.regimes)
    parts = [f"# Statistics of {markdown(analysis.study)}"]
    if results.interim:
        parts.append(f"**Interim: {results.ended} of {len(results.runs)} runs have ended. This is not inference.**")
    if analysis.question:
        parts.append(markdown(analysis.question))
    parts.append(_source(analysis, verdict))
    if results.replication is not None:
        parts.append(markdown(replicated(results.replication)))
    parts.append(markdown(crossed(analysis)))
    parts += _section(ablation_table(analysis, verdict), "Ablation")
    parts += _section(answer_table(analysis, verdict), "Answers")
    parts += _section(hypothesis_table(verdict), "Hypotheses")
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
        parts += ["## Ledger", markdown(ledger_of(analysis))]
    if results.problems:
        parts += ["## Damaged files", _bullets([f"{damage.file}: {damage.text}" for damage in results.problems])]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _section(table: Table | None, title: str) -> list[str]:
    return [] if table is None or not table.rows else [f"## {title}", markdown(table.caption), table.markdown()]


def _source(analysis: Analysis, verdict: Verdict) -> str:
    lines = [
        f"- source: {analysis.source}, hash `{analysis.source_hash}`",
        f"- criteria hash: `{analysis.criteria_hash}`" if analysis.criteria_hash else "- criteria: none registered",
        f"- analysis hash: `{verdict.analysis_hash}`",
        f"- verdict hash: `{verdict.sealed().seal}`",
        f"- primary metric: {markdown(analysis.primary or 'none')}",
        f"- resamples where a bootstrap is not enumerated: {count(analysis.resamples)}",
    ]
    return "\n".join(lines)


def _notes(comparisons: Sequence[Comparison]) -> str:
    """One line per comparison, with the method behind the numbers; then each caveat once."""
    lines = []
    for it in comparisons:
        shown, interval, tost = difference_of(it), it.main_interval, it.equivalence
        text = f"{metric_of(it)}, {it.variant} − {it.reference} ({it.regime}): {wording.change(it)}"
        if it.told_by_medians:
            text += f" ({wording.unstable_means(it)})"
        elif interval is not None and interval.low is not None:
            text += f", {level(interval.level)} {wording.method_name(it.interval)} interval {shown.interval}"
        text += f"; {wording.method_name(it.test)} {p_clause(it.p)}, {wording.adjusted(it)}: {p_clause(it.p_adjusted)}"
        if tost is not None and tost.p is not None:
            text += f"; TOST within ±{setting(tost.bounds[1])} {p_clause(tost.p)}"
        if it.missing:
            lost = [f"seed {gone.seed} of {gone.arm} ({wording.absence(gone)})" for gone in it.missing]
            text += f"; missing: {', '.join(lost)}"
        lines.append(text + ".")
    caveats = list(dict.fromkeys(wording.caveat(caveat) for comparison in comparisons for caveat in comparison.caveats))
    return _bullets(lines) + ("\n\nMind:\n\n" + _bullets(caveats) if caveats else "")


def _families(analysis: Analysis) -> str:
    return _bullets(
        [
            f"{f.id}: {several(f.tested, 'test')}, {_corrected(f.correction)}: {', '.join(f.members)}"
            for f in analysis.families
        ]
    )


def _corrected(correction: str) -> str:
    return (
        "not corrected" if correction == "none" else f"corrected by {wording.CORRECTIONS.get(correction, correction)}"
    )


def _deviations(analysis: Analysis) -> str:
    return _bullets([f"{known.code}: {wording.deviation(known)}" for known in analysis.deviations]) or "None found."


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {markdown(line)}" for line in lines)
