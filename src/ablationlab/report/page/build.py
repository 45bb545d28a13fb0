"""Results to report.html."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablationlab import __version__
from ablationlab.analysis import wording
from ablationlab.analysis.wording import ledger_of
from ablationlab.core.format import part
from ablationlab.core.grouping import grouped
from ablationlab.instrument.replication import words
from ablationlab.records.metrics import metric_name
from ablationlab.records.results import not_kept
from ablationlab.records.storage import replace
from ablationlab.report.charts.stability import calm
from ablationlab.report.charts.theme import (
    DARK_OF,
    FEWEST_MULTIPLES,
    LOG_LABELS,
    LOG_WORDS,
    MANY,
    QUIET,
    SYMLOG_WORDS,
    Figure,
    PageSentence,
    colours,
    config,
)
from ablationlab.report.colours import HUES
from ablationlab.report.convert import NOT_DRAWN, not_drawn
from ablationlab.report.designs import design_lines
from ablationlab.report.figures import Figures, draw_figures
from ablationlab.report.naming import main_metrics
from ablationlab.report.page import design, sentences
from ablationlab.report.page.embed import (
    asset,
    by_column,
    json_for_script,
    packed,
    policy,
    render,
    stylesheet,
    vega_bundle,
)
from ablationlab.report.page.folds import comparison_folds, listed_runs, run_folds
from ablationlab.report.page.verdicts import MOST_IN_A_ROW, linked_answers, pictures
from ablationlab.report.table import swatch_style
from ablationlab.report.tables.ablation import ablation_table
from ablationlab.report.tables.answers import answer_line, hypothesis_table
from ablationlab.report.tables.comparisons import PAGE, comparison_table, contrast_table, text_table
from ablationlab.report.tables.readings import reading_table, reading_text
from ablationlab.report.tables.study import (
    data_table,
    direction_table,
    figure_table,
    gain_table,
    hash_table,
    interaction_table,
    noise_table,
    power_table,
    rate_table,
    run_table,
    simple_table,
    stability_table,
    swept_table,
    variant_table,
)
from ablationlab.report.tables.tasks import task_table

if TYPE_CHECKING:
    from ablationlab.records.analysis import Analysis, Comparison
    from ablationlab.records.results import Results
    from ablationlab.report.table import Fold, Table

SECTIONS = (
    ("verdict", "Verdict"),
    ("replication", "Published and ours"),
    ("tradeoff", "Stability against cost"),
    ("paired", "Paired differences"),
    ("curves", "Curves"),
    ("comparisons", "All comparisons"),
    ("stability", "Stability"),
    ("diagnostics", "Diagnostics"),
    ("evaluation", "Evaluation"),
    ("calibration", "Calibration"),
    ("power", "Power"),
    ("controls", "Controls"),
    ("runs", "Runs"),
)
#: Comparisons that the first screen shows; of more, those that are registered.
MOST_ABLATIONS = 8
#: Sentences of the page that `sentences` makes.
LEDES = (
    "rules",
    "corrections",
    "pairs",
    "pairing",
    "curves",
    "ngrams",
    "comparisons",
    "stability",
    "evaluation",
    "efficiency",
    "budget",
    "sources",
)
#: Families of metrics, and the section that has a table of their comparisons.
FAMILIES = {
    "accuracy": "evaluation",
    "task-accuracy": "evaluation",
    "task-scores": "evaluation",
    "calibration": "calibration",
    "temperature": "calibration",
}


def write_page(results: Results, folder: Path, *, figures: Figures | None = None) -> Path:
    """Write ``folder/report.html`` and give its path."""
    path = folder / "report.html"
    replace(path, page_html(results, folder, figures=figures).encode())
    return path


def page_html(results: Results, folder: Path, *, figures: Figures | None = None) -> str:
    """The page as text; *folder* is where it will lie, for its links to the runs' files."""
    drawn = figures or draw_figures(results)
    shared, script = asset("charts.js"), asset("page.js")
    try:
        vega, note = vega_bundle(), ""
    except NOT_DRAWN as error:
        (note,) = not_drawn({"the charts of this page": error})
        vega = ""
    analysis = results.analysis
    comparisons = () if analysis is None else analysis.comparisons
    # By number, since ids may hold any character.
    anchors = {comparison.id: f"c{number}" for number, comparison in enumerate(comparisons)}
    listed = results.changed(runs=listed_runs(results))
    runs = {run.id: f"r{number}" for number, run in enumerate(listed.runs)}
    stability = None if analysis is None else analysis.stability
    gains = () if stability is None else stability.gains
    groups = {name: _groups(figures) for name, figures in drawn.by_section.items()}
    left_out = {name: part(len(runs), results.ended) for name, runs in not_kept(results.runs).items()}
    context = {
        "version": __version__,
        "name": results.name,
        "question": results.question,
        "interim": results.interim,
        "ended": results.ended,
        "planned": len(results.runs),
        "listed": len(listed.runs),
        "problems": results.problems,
        "stale": [wording.stale(reason) for reason in results.stale],
        "no_charts": note,
        "answer": "" if analysis is None or results.verdict is None else answer_line(results.verdict),
        "strip": design.strip(results),
        "replication": results.replication,
        "warnings": () if results.replication is None else tuple(words.warnings(results.replication)),
        "conclusions": () if results.replication is None else tuple(words.conclusions(results.replication)),
        "variants": results.variants,
        "seeds": [str(seed) for seed in results.seeds],
        "regimes": results.regimes,
        "many_regimes": len(results.regimes) > 1,
        "small_height": small_height,
        "many_variants": len(results.variants) > MANY,
        "colours": colours(results),
        "swatch_style": swatch_style,
        "says": {name: getattr(sentences, name)(results) for name in LEDES},
        "registered": sentences.registered(results),
        "pictures": pictures(results),
        "most_pictures": MOST_IN_A_ROW,
        "no_verdict": _no_verdict(results),
        "figures": groups,
        "captions": {key: text for section in groups.values() for key, text in captions(section).items()},
        "tools": any(figure.switched for figure in drawn.every()),
        "filters": _filters(comparisons),
        "interactions": analysis.interactions if analysis is not None else None,
        "interaction_text": ""
        if analysis is None or analysis.interactions is None
        else wording.interactions(analysis, analysis.interactions),
        "reading_text": "" if analysis is None or analysis.readings is None else reading_text(analysis.readings),
        "gain_caveats": list(dict.fromkeys(wording.caveat(caveat) for gain in gains for caveat in gain.caveats)),
        "sweep": analysis.sweep if analysis is not None else None,
        "sweep_notes": wording.sweep_notes(analysis.sweep)
        if analysis is not None and analysis.sweep is not None
        else (),
        "probe_failures": drawn.probe_failures,
        "no_curves": sentences.no_curves(results),
        "no_probes": left_out.get("probes.parquet"),
        "task_notes": [wording.evaluation_note(note) for note in analysis.evaluation.notes]
        if analysis is not None and analysis.evaluation is not None
        else (),
        "ledger": "" if analysis is None else ledger_of(analysis),
        "has_analysis": analysis is not None,
        "deviations": [(known, wording.deviation(known)) for known in analysis.deviations]
        if analysis is not None
        else (),
        "configuration": design.configuration(results),
        "has_plan": results.plan is not None,
        "stages": design_lines(results.plan) if results.plan is not None else (),
        "policy": policy(vega, shared, script),
        "unpaired": sentences.unpaired(results),
    }
    folded = run_folds(results, listed.runs, runs, folder)
    tables = dict.fromkeys(ANALYSIS_TABLES, "") | _record_tables(results, listed, anchors, folded)
    if analysis is not None:
        order = _registered_first(results, analysis)
        opened = comparison_folds(results, order, anchors, runs)
        tables |= _analysis_tables(results, analysis, order, anchors, opened)
        folded += opened
    compact = (
        None if analysis is None else ablation_table(analysis, results.verdict, colours(results), most=MOST_ABLATIONS)
    )
    if compact is not None:
        tables["ablation_table"] = compact.html(id="ablation", caption=False)
    context["titles"] = {**dict(SECTIONS), "paired": "Differences" if context["unpaired"] else "Paired differences"}
    context["sections"] = _sections(context, tables)
    return render(
        "page.html.j2",
        context,
        style=stylesheet() + _variant_colours(),
        vega=packed(vega),
        shared=shared,
        script=script,
        data=_data(results, compact),
        more=packed(json_for_script(_more(drawn, groups, folded))),
        **tables,
    )


def _variant_colours() -> str:
    """The colours of variants by `swatch_style`'s names; paper is light ground."""
    light, dark = (
        ";".join(f"--{pair[0].removeprefix('#')}:{pair[place]}" for pair in (*HUES, QUIET)) for place in (0, 1)
    )
    dark_ground = ':root[data-theme="dark"]'
    return f":root{{{light}}}\n{dark_ground}{{{dark}}}\n@media print{{{dark_ground}{{{light}}}}}\n"


#: Tables that need an analysis, by the names the template has for them.
ANALYSIS_TABLES = (
    "ablation_table",
    "answer_table",
    "hypothesis_table",
    "comparison_table",
    "evaluation_table",
    "calibration_table",
    "interaction_table",
    "reading_table",
    "noise_table",
    "stability_tables",
    "rate_table",
    "swept_table",
    "power_table",
    "text_table",
    "item_tables",
)


def _registered_first(results: Results, analysis: Analysis) -> list[Comparison]:
    """The registered comparisons first, those of the primary metric foremost."""
    return sorted(
        analysis.comparisons,
        key=lambda comparison: (comparison.label != "registered", comparison.metric != results.primary),
    )


def _analysis_tables(
    results: Results,
    analysis: Analysis,
    order: Sequence[Comparison],
    anchors: dict[str, str],
    folds: Sequence[Fold],
) -> dict[str, str]:
    """All comparisons in this *order*, each with its fold; then tables of their own for some families."""
    regimes = len(analysis.regimes)
    whole = comparison_table("comparisons", "Table of comparisons", order, regimes, columns=PAGE)
    tables = {
        "comparison_table": whole.html(
            id="comparisons-table",
            sortable=True,
            tall=True,
            caption=False,
            folds=folds,
        )
    }
    for section, title in (("evaluation", "tasks and macro averages"), ("calibration", "calibration")):
        chosen = [comparison for comparison in order if _section_of(results, comparison) == section]
        table = comparison_table(
            section,
            f"Comparisons of {title}.",
            chosen,
            regimes,
            columns=PAGE,
            links=anchors,
            about="Every row links to its comparison.",
        )
        tables[f"{section}_table"] = table.html(sortable=True, tall=True)
    if results.verdict is not None:
        tables["answer_table"] = linked_answers(analysis, results.verdict, anchors, colours(results)).html(
            id="answers", caption=False
        )
        tables["hypothesis_table"] = hypothesis_table(results.verdict).html(caption=False)
    if analysis.evaluation is not None:
        items = [contrast_table(contrast, regimes) for contrast in analysis.evaluation.contrasts]
        made = "".join(table.without("McNemar p", "caveats").html(tall=True) for table in items)
        tables["item_tables"] = _folded(f"Item by item ({len(items)} tables)", made) if len(items) > 2 else made
    if (text := text_table(analysis)) is not None:
        tables["text_table"] = text.html()
    if analysis.interactions is not None:
        simple = simple_table(analysis)
        effects = [interaction_table(analysis.interactions), *([] if simple is None else [simple])]
        tables["interaction_table"] = "".join(table.html() for table in effects)
    if analysis.readings is not None:
        tables["reading_table"] = reading_table(analysis.readings, regimes, analysis.comparisons).html(tall=True)
    if (noise := noise_table(analysis.noise)) is not None:
        tables["noise_table"] = noise.html()
    arms, gains = stability_table(analysis), gain_table(analysis)
    if arms is not None and gains is not None:
        own = arms.without("unstable", "gain", "gain_p_adjusted")
        both = own.html(caption=False, tall=True) + gains.html(tall=True)
        if calm(results) and len(own.rows) > 6:
            both = _folded("Spikes and gains of every arm", both)
        tables["stability_tables"] = both
    if analysis.sweep is not None and analysis.sweep.best:
        tables["rate_table"] = rate_table(analysis.sweep).html()
    if analysis.sweep is not None and analysis.sweep.curves:
        tables["swept_table"] = swept_table(analysis.sweep).html()
    return {**tables, "power_table": power_table(analysis, anchors).html()}


def _folded(title: str, tables: str) -> str:
    """Tables that are opened by a click."""
    return f'<details class="each"><summary>{title}</summary>{tables}</details>'


def _side_by_side(*tables: str) -> str:
    """Tables beside each other where there is room."""
    return f'<div class="two">{"".join(f"<div>{table}</div>" for table in tables if table)}</div>'


def _section_of(results: Results, comparison: Comparison) -> str:
    metric = results.metric(comparison.metric)
    section = FAMILIES.get("" if metric is None or results.plan is None else metric.family, "")
    return section or ("evaluation" if comparison.task is not None else "")


def _record_tables(results: Results, listed: Results, anchors: dict[str, str], folds: Sequence[Fold]) -> dict[str, str]:
    """Tables of the plan, the runs (those of *listed*, each with its fold) and a replication."""
    plan = results.plan
    replication = ""
    if (published := results.replication) is not None:
        for regime in dict.fromkeys(figure.regime for figure in published.figures):
            figures = [figure for figure in published.figures if figure.regime == regime]
            replication += figure_table(
                published, figures, words.figures_title(figures, regime), definitions=True
            ).html()
        replication += direction_table(published, anchors, reasons=True).html()
    budget = runs_table = ""
    if plan is not None:
        arms = variant_table(results, plan).without("formula", "meaning", "runs")
        budget = arms.html(caption=False)
        rate = () if results.own_trainer else ("lr",)
        shown = ("run", "seed", *rate, "state", "steps", *(("regime",) if len(results.regimes) > 1 else ()))
        table = run_table(listed).only(*shown, *main_metrics(results.runs, plan))
        runs_table = table.html(id="runs-table", sortable=True, tall=True, caption=False, folds=folds)
    return {
        "replication_tables": replication,
        "task_table": task_table(results).without("hash").html(sortable=True, tall=True),
        "budget_table": budget,
        "data_table": "" if (data := data_table(results)) is None else data.html(),
        "hash_table": hash_table(results).html(tall=True),
        "seal_tables": _side_by_side(design.version_table(results).html(), design.seal_table(results).html()),
        "run_table": runs_table,
    }


#: What fills a section beside its charts, by the names of the template; any of them is enough.
CONTENT: Mapping[str, tuple[str, ...]] = {
    "verdict": ("answer_table", "no_verdict"),
    "replication": ("replication",),
    "comparisons": ("comparison_table",),
    "stability": ("stability_tables", "rate_table", "swept_table"),
    "curves": ("no_curves",),
    "diagnostics": ("probe_failures", "no_probes"),
    "evaluation": ("task_table", "evaluation_table", "text_table", "item_tables"),
    "calibration": ("calibration_table",),
    "power": ("power_table",),
    "controls": ("ledger", "deviations", "budget_table", "data_table", "hash_table", "seal_tables"),
    "runs": ("run_table", "configuration"),
}


def _sections(context: Mapping[str, Any], tables: Mapping[str, str]) -> dict[str, str]:
    """The sections that have something to show, by key, with their titles."""
    filled = {**context, **tables}
    return {
        key: title
        for key, title in context["titles"].items()
        if context["figures"].get(key) or any(filled[name] for name in CONTENT.get(key, ()))
    }


#: The height of a small one, at most.
SMALL = 230


def small_height(figure: Figure) -> int:
    """The height of a figure among small ones; one of many rows keeps most of its own, so that rows stay apart."""
    return min(figure.height, max(SMALL, 5 * figure.height // 8))


@dataclass(frozen=True)
class FigureGroup:
    """Figures as the template sees them: those of all regimes under the title they share, or figures of their own."""

    figures: tuple[Figure, ...]
    family: str = ""

    @property
    def variants(self) -> frozenset[str]:
        """Those that any of its figures draws."""
        return frozenset().union(*(figure.variants for figure in self.figures))

    @property
    def wide(self) -> bool:
        """Whether the first figure takes the whole width, for their number is odd."""
        return not self.family and len(self.figures) % 2 == 1


def captions(groups: Sequence[FigureGroup]) -> dict[str, str]:
    """The captions of a section's figures by key, small ones under their first: what they all say, below the first alone."""
    said: set[str] = set()
    made = {}
    for group in groups:
        together = [group.figures] if group.family else [(figure,) for figure in group.figures]
        for figures in together:
            texts = dict.fromkeys(text for figure in figures for text in figure.sentences if text and text not in said)
            made[figures[0].key] = " ".join(texts)
            said.update(text for text in texts if isinstance(text, PageSentence) and text.once)
    return made


def _groups(figures: Sequence[Figure]) -> list[FigureGroup]:
    """Figures of a section, in their order: those of many regimes as small multiples."""
    families = grouped((figure.family, figure) for figure in figures)
    groups: list[FigureGroup] = []
    for name, found in families.items():
        small = bool(name) and len(found) >= FEWEST_MULTIPLES
        if not small and groups and not groups[-1].family:
            groups[-1] = FigureGroup((*groups[-1].figures, *found))
        else:
            groups.append(FigureGroup(tuple(found), name if small else ""))
    return groups


def _data(results: Results, compact: Table | None) -> str:
    """What the page needs at once."""
    return json_for_script(
        {
            "variants": list(results.variants),
            "seeds": [str(seed) for seed in results.seeds],
            "regimes": list(results.regimes),
            "baseline": results.baseline,
            "many": MANY,
            "copies": {} if compact is None else {"markdown": compact.markdown(), "latex": compact.latex()},
            "scales": {"symlog": SYMLOG_WORDS, "log": LOG_WORDS},
            "log_labels": LOG_LABELS["y"],
            "dark": dict(DARK_OF),
            "config": {"light": config(), "dark": config(dark=True)},
        }
    )


def _more(drawn: Figures, groups: Mapping[str, Sequence[FigureGroup]], folds: Iterable[Fold]) -> dict[str, Any]:
    """Most of the page's bytes: its charts, and what unfolds below rows, by anchor."""
    small = {figure.key for section in groups.values() for group in section if group.family for figure in group.figures}
    return {
        "charts": {
            figure.key: {
                "spec": figure.bare,
                "height": small_height(figure) if figure.key in small else figure.height,
                "alt": figure.alt,
                "small": figure.key in small,
                "switched": figure.switched,
                "legend": figure.legend,
                "data": {name: by_column(rows) for name, rows in figure.data.items()},
            }
            for figure in drawn.every()
        },
        "folds": {fold.anchor: fold.html for fold in folds},
    }


def _no_verdict(results: Results) -> str:
    if results.analysis is None and not any(run.done for run in results.runs):
        return "No run has ended yet, so there is nothing to judge."
    damaged = [name for name in ("analysis.json", "verdict.json") if name in results.reader.damage]
    if damaged:
        return f"{damaged[0]} cannot be read. To write it again: ablationlab analyze {results.folder}"
    if results.analysis is None:
        return f"There is no analysis.json yet. To create it: ablationlab analyze {results.folder}"
    if results.verdict is None:
        return f"There is no verdict.json yet. To create it: ablationlab analyze {results.folder}"
    return "The study has no variant to judge beside its baseline."


def _filters(comparisons: Iterable[Comparison]) -> list[tuple[str, str, dict[str, str]]]:
    """(column, label, options and their words) of every filter of the comparisons that has a choice."""
    every = list(comparisons)
    filters: list[tuple[str, str, dict[str, str]]] = [
        ("metric", "metric", {comparison.metric: metric_name(comparison.metric) for comparison in every}),
        ("regime", "regime", {comparison.regime: comparison.regime for comparison in every}),
        ("task", "task", {(label := comparison.task_label or "none"): label for comparison in every}),
        ("label", "standing", {str(comparison.label): comparison.label for comparison in every}),
    ]
    return [known for known in filters if len(known[2]) > 1]
