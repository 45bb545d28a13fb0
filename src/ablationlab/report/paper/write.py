"""paper.typ, references.bib and paper.pdf, from the material of a finished or interim study.

paper.typ is whole: text, numbers, tables. It compiles as it stands with plain `typst compile paper.typ`, needs no package and
only the compiler's own fonts. The same records give the same bytes.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablationlab.core.errors import AblationLabError
from ablationlab.records.storage import replace
from ablationlab.report.material import Material
from ablationlab.report.numbers import part
from ablationlab.report.paper import closing, discussion, inference, opening, replication, results, setup
from ablationlab.report.paper.diagnostics import Diagnostics
from ablationlab.report.paper.facts import Facts
from ablationlab.report.paper.pictures import Picture, pictures
from ablationlab.report.paper.render import hash_grid, image_figure, table_figure
from ablationlab.report.paper.typst import Typst, escape, literal, say
from ablationlab.report.tables import check_conclusions

if TYPE_CHECKING:
    from jinja2 import Environment

    from ablationlab.report.figures import Figures

BIBLIOGRAPHY = "references.bib"
TEMPLATE = "paper.typ.jinja"


def write_paper(material: Material, folder: Path, *, figures: Figures | None = None) -> list[Path]:
    """Write the paper, its source, its references and its pictures into *folder*; the paths written.

    *figures* are those of the page, where they are drawn already.

    Refused, with the reason, where there is no analysis or one that is not of these records. A study that is not
    finished gives a paper that says so at the top and wherever it speaks of a decision.
    """
    check_conclusions(material)
    bibliography = folder / BIBLIOGRAPHY
    replace(
        bibliography, references().encode()
    )  # first, so that a folder that cannot be written is known before drawing
    drawn = pictures(material, figures)
    written = []
    for picture in drawn:
        path = folder / picture.path
        replace(path, picture.svg.encode())
        written.append(path)
    source = folder / "paper.typ"
    replace(source, paper_source(material, drawn).encode())
    paper = folder / "paper.pdf"
    replace(paper, compiled(source))
    return [*written, bibliography, source, paper]


def references() -> str:
    """The bibliography."""
    return (files("ablationlab.report.paper") / BIBLIOGRAPHY).read_text(encoding="utf-8")


def compiled(source: Path) -> bytes:
    """The PDF of a Typst file; only the compiler's own fonts are used, so that it is the same everywhere."""
    import typst

    try:
        made = typst.compile(source, ignore_system_fonts=True)
    except typst.TypstError as error:
        raise AblationLabError(f"{source} does not compile: {error}") from error
    assert isinstance(made, bytes)
    return made


def paper_source(material: Material, drawn: list[Picture] | None = None) -> str:
    """The paper as Typst markup."""
    facts = Facts.of(material)
    return _environment().get_template(TEMPLATE).render(_values(facts, drawn or []))


def _environment() -> Environment:
    import jinja2

    # Every value that a template prints goes through `escape`; what is markup already says so by its type.
    return jinja2.Environment(  # noqa: S701  (HTML escaping is for HTML)
        loader=jinja2.FunctionLoader(
            lambda name: (files("ablationlab.report.paper") / name).read_text(encoding="utf-8")
        ),
        finalize=escape,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )


def _values(facts: Facts, drawn: list[Picture]) -> dict[str, Any]:
    arms, rows = setup.arms(facts)
    tables = results.comparison_tables(facts)
    criteria = inference.criteria_table(facts)
    seen = Diagnostics(facts)
    probed = seen.table()
    wide = {"registered", "exploratory", *(("stability",) if facts.several_regimes else ())}
    made = {name: table_figure(table, name, wide=name in wide, note=note) for name, (table, note) in tables.items()}
    return {
        "title_literal": literal(facts.analysis.question.strip() or facts.analysis.study),
        "date": _date(facts),
        "header": _header(facts),
        "title": opening.title(facts),
        "byline": opening.byline(facts),
        "interim": _interim(facts),
        "abstract": opening.abstract(facts),
        "introduction": opening.introduction(facts),
        "related_work": opening.related_work(facts),
        "model": setup.model(facts),
        "arms": arms,
        "arms_table": _arms_table(rows),
        "training": setup.training(facts),
        "controls": setup.controls(facts),
        "measures": inference.measures(facts),
        "statistics": inference.statistics(facts),
        "decision": inference.decision(facts),
        "criteria_table": Typst("") if criteria is None else table_figure(criteria, "criteria"),
        "results": results.main(facts),
        "registered_table": made.get("registered", Typst("")),
        "exploratory": results.exploratory(facts),
        "exploratory_table": made.get("exploratory", Typst("")),
        "stability": results.stability(facts),
        "stability_table": made.get("stability", Typst("")),
        "evaluation": results.evaluation(facts),
        "calibration": results.calibration(facts),
        "result_figures": _figures(drawn, "results"),
        "stability_figures": _figures(drawn, "stability"),
        "evaluation_figures": _figures(drawn, "evaluation"),
        "result_pointers": pointers(drawn, "results"),
        "stability_pointers": pointers(drawn, "stability"),
        "evaluation_pointers": pointers(drawn, "evaluation"),
        "diagnostics": seen.paragraph(),
        "diagnostics_table": Typst("")
        if probed is None
        else table_figure(probed, "diagnostics", wide=len(seen.arms) > 2),
        "diagnostics_figures": _figures(drawn, "diagnostics"),
        "diagnostics_pointers": pointers(drawn, "diagnostics"),
        "replication": replication.paragraphs(facts.material.replication),
        "replication_tables": replication.tables(facts.material.replication),
        "discussion": discussion.paragraphs(facts),
        "limits": closing.limits(facts),
        "reproducibility": closing.reproducibility(facts),
        "hashes": hash_grid(closing.hashes(facts)),
    }


def _arms_table(rows: list[tuple[str, Typst, Typst, str]]) -> Typst:
    if not rows:
        return Typst("")
    return table_figure(
        setup.arms_table(rows), "arms", caption="The arms: what enters the first block, and parameters."
    )


def _figures(drawn: list[Picture], section: str) -> Typst:
    found = [one for one in drawn if one.section == section]
    return Typst(
        "\n\n".join(image_figure(one.path, one.caption, one.label, wide=one.wide, alt=one.alt) for one in found)
    )


def pointers(drawn: list[Picture], section: str) -> Typst:
    """A sentence that leads the reader to the figures of a section."""
    said = [
        say("@{label} shows {title}", label=Typst(one.label), title=_lower(one.title))
        for one in drawn
        if one.section == section
    ]
    return Typst(f"{'; '.join(said)}.") if said else Typst("")


def _lower(title: str) -> str:
    return title[:1].lower() + title[1:].rstrip(".")


def _interim(facts: Facts) -> Typst:
    if not facts.interim:
        return Typst("")
    return say(
        "*Interim report: {ended} planned runs have ended. This is not inference.*",
        ended=part(facts.material.ended, len(facts.material.runs)),
    )


def _header(facts: Facts) -> Typst:
    mark = "Interim: not inference" if facts.interim else ""
    name = escape(facts.analysis.study)
    text = f"{name} #h(1fr) {mark}" if mark else str(name)
    # The first page has its title instead.
    return Typst(f"context if counter(page).get().first() > 1 {{ text(size: 8pt)[#emph[{text}]] }}")


def _date(facts: Facts) -> Typst:
    """When the plan was sealed: a date that the same records always have."""
    created = facts.plan.created[:10].split("-") if facts.plan is not None else []
    if len(created) != 3 or not all(part.isdigit() for part in created):
        return Typst("none")
    year, month, day = (int(part) for part in created)
    return Typst(f"datetime(year: {year}, month: {month}, day: {day})")
