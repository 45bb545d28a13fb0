"""From studies to a document: what the templates are given, and what they make of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from ablationlab.analysis import findings, wording
from ablationlab.analysis.wording import difference_of
from ablationlab.core import format
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import Comparison
from ablationlab.records.metrics import metric_name
from ablationlab.records.results import Results
from ablationlab.records.settings import StudyText, Sweep
from ablationlab.records.verdict import Answer
from ablationlab.report.paper import tables
from ablationlab.report.paper.document import Inline, Marks, PaperDocument, Picture, plain
from ablationlab.report.paper.facts import (
    LastReading,
    StudyView,
    metric_meanings,
    shared_start,
    value_name,
)
from ablationlab.report.paper.programme import Programme, decided_in, drawn_in_forest
from ablationlab.report.paper.sources import Sources
from ablationlab.report.paper.words import PaperWords, environment, methods_of
from ablationlab.report.table import Table
from ablationlab.report.tables.answers import answer_line
from ablationlab.report.tables.comparisons import comparison_table
from ablationlab.report.tables.factors import interaction_table, simple_table
from ablationlab.report.tables.failures import stability_table
from ablationlab.report.tables.replication import direction_table, figure_table
from ablationlab.report.tables.setup import criteria_table

#: Rows of a table in the paper; the CSV files have all.
MOST_ROWS, MOST_ANSWERS, MOST_MEANINGS = 24, 30, 8
#: Arms beside one another in the table of probes.
MOST_PROBED = 5
#: Answers whose table stands in the text; that of more stands in the appendix.
MOST_BESIDE = 16
#: Rows that fill a page of the appendix, and those that the head and the caption of a table take of it.
PAGE_ROWS, TABLE_HEAD = 78, 6
#: Columns of the table of stability that only its CSV has.
_ASIDE = ("unstable", "largest_spike_score", "diverged_at", "survival_p")
#: What became of a comparison, in the order in which a paper counts them.
_OUTCOMES = ("worse", "better", "different", "equivalent", "small-gain", "small-loss", "open", "gated", "untested")


def read_template(name: str) -> str:
    return (files("ablationlab.report.paper") / "template" / name).read_text(encoding="utf-8")


def document_of(
    studies: Sequence[Results],
    pictures: Mapping[str, Sequence[Picture]],
    *,
    title: str = "",
    text: StudyText | None = None,
) -> PaperDocument:
    """The paper of one study, or of several; *pictures* are by the study that they show, or "" for those of all.

    *title* and *text* take the place of those of the studies.
    """
    views = [StudyView(results) for results in studies]
    own = text or next((view.text for view in views if view.text is not None), None)
    if len(views) > 1 and own is not None:
        title = title or ("" if text is None else text.title)  # a plan's text was written for its study
        for view in views:
            view.label = own.studies.get(view.name, view.name)
    context = Context(views, pictures, title, own)
    parts = {name: context.render(f"{name}.md.j2") for name in ("title", "byline", "header", "abstract", "body")}
    marks = context.marks
    return PaperDocument(
        title=marks.words(parts["title"]),
        authors=tuple(dict.fromkeys(author for view in views for author in view.authors)),
        byline=marks.words(parts["byline"]),
        abstract=marks.parse(parts["abstract"]),
        body=marks.parse(parts["body"]),
        header=plain(marks.words(parts["header"])),
        day=max((view.day for view in views if view.day is not None), default=None),
        references="" if own is None else own.references,
        hashes=tuple((view.name, dict(view.hashes)) for view in views),
    )


class Context:
    """What the templates are given; methods are functions that they call."""

    def __init__(
        self, studies: list[StudyView], pictures: Mapping[str, Sequence[Picture]], title: str, text: StudyText | None
    ) -> None:
        self.studies, self.pictures, self.title, self.text = studies, pictures, title, text
        self.programme = Programme(studies)
        self.groups = list(grouped((study.question or study.name, study) for study in studies).values())
        self.marks, self.sources = Marks(), Sources()
        for study in studies:
            self.sources.add(study.name, study.results)
        self.words = PaperWords(self.marks, self.sources)
        self.environment = environment(self.marks, self.words, read_template)
        self.environment.globals.update(self.functions())
        self.environment.globals.update(self.values())

    def render(self, name: str) -> str:
        return self.environment.get_template(name).render()

    def functions(self) -> dict[str, Any]:
        """What the templates may call: the methods of this class that are not private, and some functions."""
        from_format = ("number", "percent", "setting", "count", "count_word")
        return {
            **{name: getattr(format, name) for name in from_format},
            **methods_of(self),
            "wording": wording,
            "detectable": tables.detectable,
            "crossed": findings.crossed,
            "replicated": findings.replicated,
            "value_name": value_name,
        }

    def values(self) -> dict[str, Any]:
        studies = self.studies
        first, one = studies[0], len(studies) == 1
        trained = [study for study in studies if study.trained is not None]
        runs = sorted(
            (run for study in trained if study.plan for run in study.plan.runs), key=lambda run: run.budget.parameters
        )
        ledgers = [study.analysis.ledger for study in trained if study.analysis.ledger is not None]
        power = [study for study in studies if study.powers]
        arms = (
            tables.arms_table([study for study in studies if not study.from_table])
            if any(not study.from_table for study in studies)
            else None
        )
        values: dict[str, Any] = {
            "studies": studies,
            "trained": trained,
            "foreign": [study for study in studies if study.own_trainer],
            "planned": [study for study in studies if not study.from_table],
            "from_tables": [study for study in studies if study.from_table],
            "unregistered": [study for study in studies if not study.registered],
            "one": one,
            "s": first,
            "given_title": self.title,
            "own_text": self.text,
            "groups": self.groups,
            "pictures": [picture for drawn in self.pictures.values() for picture in drawn],
            "all_changed": list(dict.fromkeys(name for study in studies for name in study.changed)),
            "most_changed": self._most_changed(),
            "has_leads": any(d.exploratory and study.registered for study in studies for d in study.decided),
            "forest_metric": drawn_in_forest(studies)[1],
            "programme": self.programme,
            "analyses": [study.analysis for study in studies],
            "plans": [study.plan for study in studies if study.plan is not None],
            "sealed": [part for s in studies for part in (s.plan, s.analysis, s.verdict) if part is not None],
            "all_norms": {norm for study in studies for norm in study.norms},
            "cited_parts": list(dict.fromkeys(part for study in studies for part in study.cited_parts)),
            "total_runs": sum(len(study.results.runs) for study in studies),
            "sizes": runs if len({run.budget.parameters for run in runs}) > 1 or one else runs[:1],
            "devices": list(dict.fromkeys(study.plan.execution.device_name for study in trained if study.plan)),
            "effect_ends": self.ends(self.programme.registered),
            "least_power": min(power, key=lambda study: -study.powers[0][0].detectable_80) if power else None,
            "ledgers": ledgers,
            "checked_pairs": sum(ledger.checked_pairs for ledger in ledgers),
            "has_effects": any("d_z" in c.effects for study in studies for c in study.primaries),
            "arms_table": arms,
            "arms_wide": arms is not None and max((len(str(row[1].value)) for row in arms.rows), default=0) > 90,
            "hypotheses": tables.hypotheses_of(studies),
            "judged": [known for study in studies for known in study.hypotheses.values()],
            "every_answer": tuple(Answer),
            "study_table": None if one else tables.study_table(studies),
            "hash_table": tables.hash_table(first.hashes) if one else tables.study_hashes(studies),
        }
        return values | (self._single(first) if one else {})

    def _single(self, study: StudyView) -> dict[str, Any]:
        """The tables of a paper on one study."""
        analysis, regimes = study.analysis, len(study.regimes)
        headline = tables.headline_table(study)
        answers = tables.answers_of({study: study.decided[:MOST_ANSWERS]})
        primaries = tables.primary_table(study, MOST_ANSWERS)
        printed = len(headline.printed())
        asked, unprinted = (
            comparison_table("registered", "", study.further, regimes)
            .without(
                "reference_mean", "variant_mean", *([] if any(c.equivalence for c in study.further) else ["equivalent"])
            )
            .first(MOST_ROWS)
        )
        criteria = criteria_table(analysis)
        probed = [name for name in study.results.variants if any(name in reading.arms for reading in study.probes)]
        replication = study.results.replication
        stability = stability_table(analysis)
        shown, stability_more = (None, 0) if stability is None else stability.without(*_ASIDE).first(MOST_ROWS)
        aside = len(answers[0].rows) > MOST_BESIDE
        decided = [len(answers[0].rows) if aside else 0, len(primaries[0].rows)]
        above = [rows for rows in (len(study.hashes), len(criteria.rows), *decided, len(asked.rows)) if rows]
        room = PAGE_ROWS - (sum(above) + (len(above) + 2) * TABLE_HEAD) % PAGE_ROWS
        effects = analysis.interactions
        factors, factor_more = (None, 0) if effects is None else interaction_table(effects).first(MOST_ROWS)
        at_levels = simple_table(analysis)
        simple, simple_more = (None, 0) if at_levels is None else at_levels.first(MOST_ROWS)
        return {
            "answers": answers,
            "answers_more": len(study.decided) - len(answers[0].rows),
            "answers_aside": aside,
            "primaries": primaries,
            "headline": headline,
            "headline_wide": printed > 4,
            "stability_table": shown,
            "stability_more": stability_more,
            "factor_table": factors,
            "factor_more": factor_more,
            "simple_table": simple,
            "simple_more": simple_more,
            "probe_table": tables.probe_table(study.probes, probed[:MOST_PROBED]),
            "probes_left_out": probed[MOST_PROBED:],
            "probes_wide": len(probed) > 2,
            "criteria_table": criteria.without("correction", "test")
            if study.criteria_alike
            else criteria.without("correction"),
            "asked_table": (asked, unprinted),
            "other_table": comparison_table("exploratory", "", study.different, regimes)
            .without("equivalent", "reference_mean", "variant_mean")
            .first(room if room >= 8 else PAGE_ROWS),
            "replication_tables": ()
            if replication is None
            else (figure_table(replication), direction_table(replication)),
        }

    # Data and methods

    def digits(self, value: float, digits: int = 3) -> float:
        return float(f"{value:.{digits}g}")

    def share(self, share: float, digits: int = 3) -> str:
        return format.with_unit(format.setting(self.digits(100 * share, digits)), "%")

    def meanings(self, study: StudyView) -> Iterable[tuple[str, str]]:
        return metric_meanings(study, MOST_MEANINGS)

    def methods(self, study: StudyView) -> dict[str, list[Any]]:
        """The tests, intervals, corrections and levels (each with a comparison) of what the criteria ask, or of all."""
        asked = study.asked or study.others
        return {
            "tests": list(dict.fromkeys(c.test for c in asked)),
            "intervals": list(dict.fromkeys(c.interval for c in asked)),
            "corrections": [name for name in dict.fromkeys(c.correction for c in asked) if name != "none"],
            "levels": sorted({c.alpha: c for c in asked}.items()),
        }

    def logarithms(self, study: StudyView) -> bool:
        return any(comparison.transform == "log" for comparison in study.analysis.comparisons)

    def equivalence(self, study: StudyView) -> bool:
        return any(comparison.equivalence is not None for comparison in study.asked)

    def rate_field(self, sweep: Sweep, rate: float) -> str:
        """Where a sweep holds a rate: among those of all arms, or of the first arm that has it among its own."""
        if sweep.finer is not None:
            return next(f"finer/found/{arm}" for arm, found in sweep.finer.found.items() if found == rate)
        if rate in sweep.lr:
            return f"lr/{sweep.lr.index(rate)}"
        arm, rates = next((arm, rates) for arm, rates in sweep.variant_lr.items() if rate in rates)
        return f"variant_lr/{arm}/{rates.index(rate)}"

    # Results

    def by_outcome(self, comparisons: Sequence[Comparison]) -> list[tuple[str, list[Comparison]]]:
        """The comparisons of each outcome that occurs."""
        kinds = grouped((_kind(comparison), comparison) for comparison in comparisons)
        return [(kind, kinds[kind]) for kind in _OUTCOMES if kind in kinds]

    def counted_alike(self, by_metric: Sequence[list[Comparison]]) -> list[list[list[Comparison]]]:
        """Comparisons by metric, together where as many have the same outcomes in the same regimes."""
        return list(
            grouped(
                (
                    (
                        tuple((kind, len(found)) for kind, found in self.by_outcome(some)),
                        tuple(sorted({c.regime for c in some})),
                    ),
                    some,
                )
                for some in by_metric
            ).values()
        )

    def paired_ends(self, gains: Sequence[Comparison]) -> tuple[Comparison, Comparison, Comparison]:
        """The comparisons in which pairing helped most, in the middle, and least."""
        ordered = sorted(gains, key=lambda comparison: -(comparison.variance_reduction or 0))
        return ordered[0], ordered[len(ordered) // 2], ordered[-1]

    def metrics_of(self, comparisons: Sequence[Comparison]) -> list[str]:
        return list(dict.fromkeys(metric_name(comparison.metric) for comparison in comparisons))

    def probed(self, study: StudyView, reading: LastReading, arm: str, ratio: float) -> Inline:
        """How many times the baseline's mean reading an arm's is, from the readings of the runs of both."""
        runs = (*reading.runs[arm], *reading.runs[study.baseline])
        source = self.sources.of_readings(study.name, runs, reading.field, ratio)
        return Inline("text", format.number(ratio), source=source)

    # Figures

    def figure_groups(self, section: str) -> list[tuple[str, list[Picture]]]:
        """The figures of a section by what they show."""
        drawn = [picture for pictures in self.pictures.values() for picture in pictures if picture.section == section]
        return list(grouped((picture.kind, picture) for picture in drawn).items())

    def pictures_of(self, study: StudyView) -> Sequence[Picture]:
        return self.pictures.get(study.name, ())

    def is_picture(self, key: str) -> bool:
        return any(picture.key == key for drawn in self.pictures.values() for picture in drawn)

    # Several studies

    def group_title(self, group: Sequence[StudyView]) -> str:
        """The question where it is short, else the name of the studies that ask it."""
        if group[0].question and len(group[0].question) <= 70:
            return group[0].question
        many = f" ({format.count_word(len(group))} studies)" if len(group) > 1 else ""
        return self.group_label(group) + many

    def group_table(self, group: Sequence[StudyView]) -> tuple[str, Table, list[Comparison]]:
        """(key, table, comparisons behind it) of a question."""
        return (f"question-{self.groups.index(list(group)) + 1}", *tables.question_table(group))

    def group_answers(self, group: Sequence[StudyView]) -> tuple[str, Table, list[Comparison]]:
        """The same of the answers."""
        answers = tables.answers_of({study: decided_in(study) for study in group})
        return (f"answers-{self.groups.index(list(group)) + 1}", *answers)

    def group_label(self, group: Sequence[StudyView]) -> str:
        """The studies of a question by what their names share, or by their names; plain, as captions need it."""
        start = shared_start([study.label for study in group]) if len(group) > 1 else ""
        return start or ", ".join(study.label for study in group)

    def regime_of(self, group: Sequence[StudyView]) -> Markup:
        """`` in tuned``: the regime of a question's answers, where there are several regimes and these are of one."""
        regimes = {decided.verdict.regime for study in group for decided in decided_in(study)}
        several = any(len(study.regimes) > 1 for study in group)
        return (
            Markup("") if len(regimes) != 1 or not several else Markup(" in ") + self.marks(self.words.code(*regimes))
        )

    def study_count(self) -> Inline:
        many = len(self.studies)
        return self.words.tally(format.count_word(many), [study.analysis for study in self.studies], "study", many)

    def study_name(self, study: StudyView) -> Inline:
        """A study by the name that the text gives it, else by its own."""
        return Inline("code", study.name) if study.label == study.name else Inline("text", study.label, "emphasis")

    def study_names(self, studies: Iterable[StudyView]) -> Markup:
        """Studies in a list; three or more that ask one question, all of them, by what their names share."""
        names: dict[str, Inline] = {}
        within = list(studies)
        for study in within:
            group = next(group for group in self.groups if study in group)
            start = shared_start([other.label for other in group]) if len(group) > 2 else ""
            whole = start and all(other in within for other in group)
            names[start if whole else study.name] = (
                Inline("text", start, "emphasis") if whole else self.study_name(study)
            )
        return self.words.listed(names.values())

    def study_drawn(self, picture: Picture) -> StudyView:
        return next(study for study in self.studies if picture in self.pictures_of(study))

    def _most_changed(self) -> list[str]:
        """The changes that most studies make, at most three."""
        counted = Counter(name for study in self.studies for name in study.changed)
        return [name for name, _ in counted.most_common(3)]

    def signed(self, comparison: Comparison, unit: bool = True) -> Inline:
        """A difference with its sign; a unit that another number has may be left out, but not a percent sign."""
        shown = difference_of(comparison)
        text = format.with_unit(shown.delta, shown.unit) if unit or shown.unit == "%" else shown.delta
        return self.words.value(text, comparison, comparison.estimate_at)

    def ends(self, comparisons: Sequence[Comparison]) -> list[Comparison]:
        """The lowest and the highest of the differences that are shown; nothing where fewer than two are."""
        shown = self._shown(comparisons)
        return [min(shown, key=_delta), max(shown, key=_delta)] if len(shown) > 1 else []

    def _shown(self, comparisons: Sequence[Comparison]) -> list[Comparison]:
        """Differences that are shown, in one metric."""
        shown = [c for c in comparisons if c.outcome in ("better", "worse", "different") and c.delta is not None]
        first = shown[0].metric if shown else ""
        return [c for c in shown if c.metric == first]

    # What follows

    def answered(self, study: StudyView) -> Inline:
        """The names by answer; leads only where nothing was registered."""
        verdicts = tuple(decided.verdict for decided in decided_in(study))
        return self.words.text(answer_line(study.verdict.model_copy(update={"verdicts": verdicts}), bare=True))


def _delta(comparison: Comparison) -> float:
    return comparison.delta or 0.0


def _kind(comparison: Comparison) -> str:
    if comparison.outcome in ("not-tested", "gated"):
        return "gated" if comparison.outcome == "gated" else "untested"
    if comparison.equivalence is not None and comparison.equivalence.equivalent:
        return {"better": "small-gain", "worse": "small-loss"}.get(comparison.outcome, "equivalent")
    return comparison.outcome if comparison.outcome in ("better", "worse", "different") else "open"
