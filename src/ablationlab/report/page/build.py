"""Results to report.html."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import resources
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from ablationlab import __version__
from ablationlab.core.format import number, p_value
from ablationlab.instrument.replication import words
from ablationlab.records.storage import replace
from ablationlab.report.charts.evaluation import evaluated, task_label
from ablationlab.report.charts.theme import DARK_OF, colours, config
from ablationlab.report.figures import Figures, draw_figures
from ablationlab.report.naming import metric_name
from ablationlab.report.page import design, findings
from ablationlab.report.page.embed import by_column, json_for_script, policy, vega_bundle
from ablationlab.report.page.verdicts import (
    hypothesis_views,
    in_words,
    overview_of,
    verdict_views,
)
from ablationlab.report.tables.comparisons import text_table
from ablationlab.report.tables.study import gain_table, rate_table, stability_table

if TYPE_CHECKING:
    import jinja2

    from ablationlab.records.analysis import Analysis
    from ablationlab.records.evaluation import TaskResult
    from ablationlab.records.results import Results

SECTIONS = (
    ("verdict", "Verdict"),
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
#: Beyond so many runs the page leaves out what every run's own files say anyway.
DETAILED_RUNS = 200


def write_page(material: Results, folder: Path, *, figures: Figures | None = None) -> Path:
    """Write ``folder/report.html`` and give its path."""
    path = folder / "report.html"
    replace(path, page_html(material, folder, figures=figures).encode())
    return path


def page_html(material: Results, folder: Path, *, figures: Figures | None = None) -> str:
    """The page as text; *folder* is where it will lie, for its links to the runs' files."""
    drawn = figures or draw_figures(material)
    vega, shared, script = vega_bundle(), asset("charts.js"), asset("page.js")
    comparisons, runs = findings.anchors_of(material)
    views = findings.comparison_views(material, comparisons, runs)
    analysis = material.analysis
    stability = None if analysis is None else analysis.stability
    gains = () if stability is None else stability.gains
    context = {
        "version": __version__,
        "name": material.name,
        "question": material.question,
        "interim": material.interim,
        "ended": material.ended,
        "problems": material.problems,
        "notes": material.stale,
        "strip": design.strip(material),
        "sections": _sections(material),
        "replication": material.replication,
        "words": words,
        "variants": material.variants,
        "seeds": [str(seed) for seed in material.seeds],
        "regimes": material.regimes,
        "many_regimes": len(material.regimes) > 1,
        "colours": colours(material),
        "primary": metric_name(material.primary) if material.primary else "",
        "verdicts": (verdicts := verdict_views(material, comparisons)),
        "overview": overview_of(verdicts),
        "hypotheses": hypothesis_views(material),
        "no_verdict": _no_verdict(material),
        "anchors": comparisons,
        "in_words": partial(in_words, metrics=material.metrics),
        "figures": {name: _placed(found, name) for name, found in drawn.by_section.items()},
        "comparisons": views,
        "filters": _filters(views),
        "option_words": lambda key, option: metric_name(option) if key == "metric" else option,
        "by_section": findings.sections_of(material, views),
        "interactions": analysis.interactions if analysis is not None else None,
        "has_stability": stability is not None,
        "gain_caveats": list(dict.fromkeys(caveat.text for gain in gains for caveat in gain.caveats)),
        "sweep": analysis.sweep if analysis is not None else None,
        "probe_failures": drawn.probe_failures,
        "tasks": task_table(material),
        "text": text.html() if analysis is not None and (text := text_table(analysis)) is not None else "",
        "task_notes": analysis.evaluation.notes if analysis is not None and analysis.evaluation is not None else (),
        "power": findings.power_rows(material, comparisons),
        "ledger": analysis.ledger.text if analysis is not None and analysis.ledger is not None else "",
        "has_analysis": analysis is not None,
        "deviations": analysis.deviations if analysis is not None else (),
        "budget": design.budget_rows(material),
        "hashes": design.hash_rows(material),
        "versions": design.version_rows(material),
        "seals": design.seal_rows(material),
        "runs": design.run_rows(material, runs, folder),
        "run_metrics": design.run_metrics(material),
        "detailed": len(material.runs) <= DETAILED_RUNS,
        "configuration": design.configuration(material),
        "policy": policy(vega, shared, script),
    }
    return render(
        "page.html.j2",
        context,
        style=asset("style.css"),
        vega=vega,
        shared=shared,
        script=script,
        data=_data(material, drawn),
        **_tables(analysis),
    )


def _tables(analysis: Analysis | None) -> dict[str, str]:
    """Tables that the page shows as they are."""
    if analysis is None:
        return {"stability_tables": "", "rates": ""}
    arms, gains = stability_table(analysis), gain_table(analysis)
    return {
        "stability_tables": ""
        if arms is None or gains is None
        else arms.without("unstable", "gain").html(caption=False) + gains.html(caption=False),
        "rates": rate_table(analysis.sweep).html() if analysis.sweep is not None and analysis.sweep.best else "",
    }


def _sections(material: Results) -> tuple[tuple[str, str], ...]:
    """Every section, and the published table right behind the verdict where the folder holds one."""
    found = (("replication", "Published and ours"),) if material.replication is not None else ()
    return (*SECTIONS[:1], *found, *SECTIONS[1:])


def render(template: str, context: Mapping[str, Any], **trusted: str) -> str:
    """A template with everything escaped but *trusted*, which is our own or has been made safe."""
    import markupsafe

    safe = {name: markupsafe.Markup(text) for name, text in trusted.items()}  # noqa: S704
    return environment().get_template(template).render(**context, **safe)


def environment() -> jinja2.Environment:
    """Jinja, escaping everything."""
    import jinja2

    made = jinja2.Environment(
        autoescape=True,
        loader=jinja2.FunctionLoader(asset),
        undefined=jinja2.StrictUndefined,
        trim_blocks=False,
        keep_trailing_newline=True,
    )
    made.globals.update(number=number, p_value=p_value, metric_name=metric_name)
    return made


def asset(name: str) -> str:
    """One of the files beside this one."""
    return resources.files("ablationlab.report.page").joinpath(name).read_text(encoding="utf-8")


def _placed(figures: tuple[Any, ...], section: str) -> list[dict[str, Any]]:
    """Figures as the template sees them; the first of an odd number takes the whole width."""
    odd = len(figures) % 2 == 1
    return [
        {
            "key": figure.key,
            "title": figure.title,
            "caption": figure.caption,
            "alt": figure.alt,
            "height": figure.height,
            "regime": figure.regime,
            "wide": odd and number == 0,
        }
        for number, figure in enumerate(figures)
    ]


def _data(material: Results, drawn: Figures) -> str:
    return json_for_script(
        {
            "variants": list(material.variants),
            "seeds": [str(seed) for seed in material.seeds],
            "regimes": list(material.regimes),
            "baseline": material.baseline,
            "dark": dict(DARK_OF),
            "config": {"light": config(), "dark": config(dark=True)},
            "charts": {
                figure.key: {
                    "spec": figure.bare(),
                    "height": figure.height,
                    "alt": figure.alt,
                    "data": {name: by_column(kept) for name, kept in figure.data.items()},
                }
                for figure in drawn.every()
            },
        }
    )


def _no_verdict(material: Results) -> str:
    if material.analysis is None and not any(run.done for run in material.runs):
        return "No run has ended yet, so there is nothing to judge."
    if material.analysis is None:
        return f"There is no analysis.json yet. Make it with: ablationlab analyze {material.folder}"
    if material.verdict is None:
        return f"There is no verdict.json yet. Make it with: ablationlab analyze {material.folder}"
    return "The study has no variant to judge beside its baseline."


def _filters(views: list[findings.ComparisonView]) -> list[tuple[str, str, list[str]]]:
    """(name, label, options) of every filter that has a choice to offer; metric and standing always."""
    options: dict[str, list[str]] = {
        "metric": [one.part.metric for one in views],
        "regime": [one.part.regime for one in views],
        "task": [one.task or "none" for one in views],
        "standing": [one.part.label for one in views],
    }
    return [(name, name, list(dict.fromkeys(found))) for name, found in options.items()]


def task_table(material: Results) -> list[dict[str, Any]]:
    """Every task that was run: chance, n-grams, templates and their spread, means by variant over all seeds and regimes."""
    known = {task_label(asked): asked for asked in material.suite.tasks} if material.suite is not None else {}
    analyzed = material.analysis.evaluation if material.analysis is not None else None
    # The analysis has the shots in its names already.
    sensitive = {task.task: task.sensitivity.sensitive for task in analyzed.tasks} if analyzed is not None else {}
    cells: dict[str, dict[tuple[str, str], list[float]]] = {}
    first: dict[str, TaskResult] = {}
    for regime in material.regimes:
        for run, evaluation in evaluated(material, regime):
            for task in evaluation.tasks:
                if task.weights != "final" or task.accuracy is None:
                    continue
                name = task_label(task)
                first.setdefault(name, task)
                cells.setdefault(name, {}).setdefault((run.variant, run.id), []).append(task.accuracy)
    found = []
    for name, by_run in cells.items():
        task, asked = first[name], known.get(name)
        spreads = [pstdev(values) for values in by_run.values() if len(values) > 1]
        means: dict[str, list[float]] = {}
        for (variant, _), values in by_run.items():
            means.setdefault(variant, []).append(fmean(values))
        found.append(
            {
                "name": name,
                "meaning": "" if asked is None else asked.meaning,
                "items": task.items,
                "chance": _percent((asked or task).chance),
                "ngrams": " / ".join(_percent(value) for value in asked.ngrams.values())
                if asked and asked.ngrams
                else "–",
                "templates": max(len(values) for values in by_run.values()),
                "spread": f"{fmean(spreads) * 100:.1f} points" if spreads else "–",
                "means": {variant: _percent(fmean(values)) for variant, values in means.items()},
                "sensitive": sensitive.get(name),
                "hash": task.task_hash[:10],
            }
        )
    return found


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{float(value) * 100:.1f} %"
