"""statistics.md: the whole statistical analysis in one file that reads in any editor."""

from __future__ import annotations

from collections.abc import Sequence

from ablationlab.analysis.verdict.words import hypothesis_lines
from ablationlab.records.analysis import Analysis, Comparison
from ablationlab.records.verdict import Verdict
from ablationlab.report.material import Material
from ablationlab.report.naming import metric_of
from ablationlab.report.numbers import level, p_clause, setting, shown, with_unit
from ablationlab.report.tables import comparisons, design, findings
from ablationlab.report.tables.render import Table, markdown, to_markdown


def statistics_markdown(material: Material) -> str:
    """Verdict, registered and exploratory comparisons, stability, power, every pair and method, caveats, deviations."""
    analysis, verdict = material.analysis, material.verdict
    assert analysis is not None
    assert verdict is not None
    asked, others = comparisons.split(analysis)
    regimes = len(analysis.regimes)
    parts = [f"# Statistics of {markdown(analysis.study)}"]
    if material.interim:
        parts.append(f"**Interim: {material.ended} of {len(material.runs)} runs have ended. This is not inference.**")
    if analysis.question:
        parts.append(markdown(analysis.question))
    parts.append(_source(analysis, verdict))
    parts += ["## Verdict", to_markdown(findings.verdicts(analysis, verdict)), _verdicts(verdict)]
    if analysis.source == "records":
        parts += ["## Hypotheses", _bullets(hypothesis_lines(verdict.hypotheses))]
    parts += _section(design.criteria(analysis), "Criteria")
    if asked:
        title = "Registered comparisons" if asked[0].label == "registered" else "The question asked (exploratory)"
        parts += [f"## {title}", to_markdown(comparisons.table("registered", "", asked, regimes)), _notes(asked)]
    if others:
        parts += ["## Exploratory comparisons", "Not registered; corrected among themselves. Leads, not findings."]
        parts += [to_markdown(comparisons.table("exploratory", "", others, regimes)), _notes(others)]
    parts += ["## Arms", to_markdown(findings.arms(analysis))]
    parts += _section(findings.stability(analysis), "Stability")
    parts += _section(findings.power(analysis), "Power")
    parts += ["## Families", _families(analysis)]
    parts += ["## Every pair", to_markdown(comparisons.pairs(analysis))]
    parts += ["## Every interval and test", to_markdown(comparisons.methods(analysis))]
    parts += ["## Deviations from the registration", _deviations(analysis)]
    if analysis.ledger is not None:
        parts += ["## Ledger", markdown(analysis.ledger.text)]
    if material.problems:
        parts += ["## Damaged files", _bullets([f"{found.file}: {found.text}" for found in material.problems])]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _section(table: Table | None, title: str) -> list[str]:
    return [] if table is None or not table.rows else [f"## {title}", markdown(table.caption), to_markdown(table)]


def _source(analysis: Analysis, verdict: Verdict) -> str:
    lines = [
        f"- source: {analysis.source}, hash `{analysis.source_hash}`",
        f"- criteria hash: `{analysis.criteria_hash}`" if analysis.criteria_hash else "- criteria: none registered",
        f"- analysis hash: `{verdict.analysis_hash}`",
        f"- primary metric: {markdown(analysis.primary or 'none')}",
        f"- resamples where a bootstrap is not enumerated: {analysis.resamples:,}",
    ]
    return "\n".join(lines)


def _verdicts(verdict: Verdict) -> str:
    lines = []
    for one in verdict.verdicts:
        lines.append(f"### {markdown(one.variant)} in {markdown(one.regime)}: {findings.DECISIONS[one.decision]}")
        lines.append(markdown(one.recommendation))
        lines.append(_bullets([f"rule {c.rule} {'applies' if c.applies else 'does not'}: {c.why}" for c in one.checks]))
        lines.append("Evidence: " + ", ".join(f"`{name}`" for name in one.evidence) if one.evidence else "")
        lines += [markdown(part.text) for part in (one.trade_off, one.tie_break, one.needs) if part is not None]
    return "\n\n".join(line for line in lines if line)


def _notes(found: Sequence[Comparison]) -> str:
    """One line a comparison, with the method behind the numbers; then the caveats, each once."""
    lines = []
    for one in found:
        difference, interval = shown(one), one.main_interval
        text = f"{metric_of(one)}, {one.variant} − {one.reference} ({one.regime}): "
        text += with_unit(difference.delta, difference.unit)
        if interval is not None and interval.low is not None:
            text += f", {level(interval.level)} {one.interval} interval {difference.interval}"
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
