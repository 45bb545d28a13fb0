"""From studies to a document: what the templates are given, and what they make of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from ablationlab.analysis import wording
from ablationlab.analysis.answer import answer
from ablationlab.analysis.wording import DECISIONS
from ablationlab.analysis.wording import name_of as metric_of
from ablationlab.core import format
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import Comparison
from ablationlab.records.results import Results
from ablationlab.records.settings import Author, StudyText
from ablationlab.records.verdict import RANK, Decision, HypothesisVerdict, Need, VariantVerdict
from ablationlab.report.paper import tables
from ablationlab.report.paper.document import Inline, Marks, PaperDocument, Picture
from ablationlab.report.paper.sources import Sources
from ablationlab.report.paper.study import Decided, StudyView, metric_meanings, shared_start, short_names
from ablationlab.report.paper.words import PaperWords, environment, methods_of
from ablationlab.report.tables.comparisons import comparison_table, difference_of
from ablationlab.report.tables.study import (
    criteria_table,
    direction_table,
    figure_table,
    interaction_table,
    stability_table,
)

#: Rows of a table in the paper; the CSV files have all.
MOST_ROWS, MOST_DECISIONS, MOST_MEANINGS = 24, 40, 8
#: Rows of the appendix's tables that fill a page.
PAGE_ROWS = 52
#: More exploratory differences than this are no plan for a next study.
MOST_LEADS = 12
TITLES = {
    "adopt": "Adopt",
    "adopt-in-regime": "Adopt in this regime",
    "adopt-provisionally": "Adopt provisionally",
    "trade-off": "A trade-off",
    "keep-provisionally": "Keep the baseline for now",
    "keep-baseline": "Keep the baseline",
    "tie": "A tie",
    "inconclusive": "Inconclusive",
    "no-verdict": "No verdict",
}
_TESTS = {
    "paired-t": "the paired t-test",
    "sequential-t": "the sequential paired t-test over the planned looks",
    "sign-flip": "the exact sign-flip test",
    "bootstrap": "a bootstrap test over seeds",
    "wilcoxon": "Wilcoxon's signed-rank test",
    "welch": "Welch's test of two means",
}
_INTERVALS = {
    "paired-t": "paired t intervals",
    "repeated-t": "repeated t intervals, which hold at all planned looks together",
    "percentile": "percentile bootstrap intervals over seeds",
    "bca": "BCa bootstrap intervals over seeds",
    "bootstrap-t": "bootstrap-t intervals over seeds",
    "welch": "Welch intervals",
}
#: Columns of the table of stability that only its CSV has.
_ASIDE = ("unstable", "largest_spike_score", "diverged_at", "survival_p")
#: A number of seeds that nobody would train is no advice.
_MOST_SEEDS = 1000
_CITED = {"holm": "holm1979", "benjamini-hochberg": "benjamini1995"}
_OUTCOMES = (
    ("worse", "shown worse"),
    ("better", "shown better"),
    ("different", "shown different"),
    ("equivalent", "shown equivalent"),
    ("open", "not shown either way"),
    ("untested", "could not be tested"),
)


def read_template(name: str) -> str:
    return (files("ablationlab.report.paper") / "template" / name).read_text(encoding="utf-8")


def document_of(
    studies: Sequence[Results],
    pictures: Mapping[str, Sequence[Picture]],
    *,
    title: str = "",
    text: StudyText | None = None,
    authors: Sequence[Author] = (),
) -> PaperDocument:
    """The paper of one study, or of several; *pictures* are by the study that they show, or "" for those of all.

    *title*, *text* and *authors* take the place of those of the studies.
    """
    views = [StudyView(results) for results in studies]
    labels = short_names([view.name for view in views])
    for view in views:
        view.label = labels[view.name]
    own = text or next((view.text for view in views if view.text is not None), None)
    context = Context(views, pictures, title, own)
    parts = {name: context.render(f"{name}.md.j2") for name in ("title", "byline", "abstract", "body")}
    marks = context.marks
    signed = authors or tuple(dict.fromkeys(author for view in views for author in view.authors))
    one = views[0] if len(views) == 1 else None
    header = (one.name if one is not None else "") + (
        " · Interim: not inference" if any(view.interim for view in views) else ""
    )
    return PaperDocument(
        title=marks.words(parts["title"]),
        authors=tuple(signed),
        byline=marks.words(parts["byline"]),
        abstract=marks.parse(parts["abstract"]),
        body=marks.parse(parts["body"]),
        header=header,
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
        from_format = ("number", "percent", "count", "count_word")
        return {
            **{name: getattr(format, name) for name in from_format},
            **methods_of(self),
            "detectable": tables.detectable,
            "margin": tables.margin,
        }

    def values(self) -> dict[str, Any]:
        studies = self.studies
        first, one = studies[0], len(studies) == 1
        trained = [study for study in studies if study.trained is not None]
        runs = sorted((study.plan.runs[0] for study in trained if study.plan), key=lambda run: run.budget.parameters)
        registered = [c for study in studies for c in study.primaries if c.label == "registered"]
        shown = self._shown(registered)
        ledgers = [study.analysis.ledger for study in studies if study.analysis.ledger is not None]
        power = [study for study in studies if study.powers]
        arms = (
            tables.arms_table([study for study in studies if not study.from_table])
            if any(not study.from_table for study in studies)
            else None
        )
        values: dict[str, Any] = {
            "studies": studies,
            "one": one,
            "s": first,
            "given_title": self.title,
            "own_text": self.text,
            "groups": list(grouped((study.question or study.name, study) for study in studies).values()),
            "pictures": [picture for drawn in self.pictures.values() for picture in drawn],
            "decisions": tables.decision_table(studies, MOST_DECISIONS),
            "decision_titles": TITLES,
            "all_changed": list(dict.fromkeys(name for study in studies for name in study.changed)),
            "baselines": list(dict.fromkeys(study.baseline for study in studies)),
            "has_leads": any(d.exploratory and study.registered for study in studies for d in study.decided),
            "shared_start": next((s.name.removesuffix(s.label) for s in studies if s.label != s.name), ""),
            "named_in_full": [study.name for study in studies if study.label == study.name],
            "all_norms": {norm for study in studies for norm in study.norms},
            "total_runs": sum(len(study.results.runs) for study in studies),
            "sizes": runs if len({run.budget.parameters for run in runs}) > 1 or one else runs[:1],
            "devices": list(dict.fromkeys(study.plan.execution.device_name for study in trained if study.plan)),
            "registered_primaries": registered,
            "effect_ends": [min(shown, key=_delta), max(shown, key=_delta)] if len(shown) > 1 else [],
            "one_sign": len(shown) > 1 and len({_delta(c) > 0 for c in shown}) == 1,
            "both_signs": "",
            "programme_decisions": self._programme_decisions(),
            "all_hypotheses": self._hypotheses(),
            "least_power": min(power, key=lambda study: -study.powers[0][0].detectable_80) if power else None,
            "checked_pairs": sum(ledger.checked_pairs for ledger in ledgers),
            "has_effects": any("d_z" in c.effects for study in studies for c in study.primaries),
            "arms_table": arms,
            "arms_wide": arms is not None and max((len(str(row[1].value)) for row in arms.rows), default=0) > 90,
            "study_table": None if one else tables.study_table(studies),
            "hash_table": tables.hash_rows(
                first.hashes
                if one
                else [
                    (f"{study.name}, {name}", digest)
                    for study in studies
                    for name, digest in study.hashes
                    if name in ("plan", "table", "verdict")
                ]
            ),
        }
        return values | (self._single(first) if one else {})

    def _single(self, study: StudyView) -> dict[str, Any]:
        """The tables of a paper on one study."""
        analysis, regimes = study.analysis, len(study.regimes)
        headline = tables.headline_table(study)
        printed = len(headline.printed())
        asked, unprinted = (
            comparison_table("registered", "", study.further, regimes)
            .without(
                "reference_mean", "variant_mean", *([] if any(c.equivalence for c in study.further) else ["equivalent"])
            )
            .first(MOST_ROWS)
        )
        differing = [c for c in study.others if c.outcome in ("better", "worse", "different")]
        criteria = criteria_table(analysis)
        probed = [name for name in study.results.variants if any(name in reading.arms for reading in study.probes)][:5]
        replication = study.results.replication
        stability = stability_table(analysis)
        crossed = analysis.interactions
        return {
            "headline": headline,
            "headline_wide": printed > 4,
            "headline_note": self._incomplete(study),
            "stability_table": None if stability is None else stability.without(*_ASIDE).first(MOST_ROWS)[0],
            "factor_table": None if crossed is None else interaction_table(crossed).first(MOST_ROWS)[0],
            "probe_table": tables.probe_table(study.probes, probed),
            "probes_wide": len(probed) > 2,
            "criteria_table": criteria.without("correction", "test")
            if study.criteria_alike
            else criteria.without("correction"),
            "asked_table": (asked, unprinted),
            "other_table": comparison_table("exploratory", "", differing, regimes)
            .without("equivalent", "reference_mean", "variant_mean")
            .first(max(8, min(MOST_ROWS, PAGE_ROWS - len(criteria.rows) - len(asked.rows) - len(study.hashes)))),
            "replication_tables": ()
            if replication is None
            else (figure_table(replication), direction_table(replication)),
        }

    @staticmethod
    def _incomplete(study: StudyView) -> str:
        """A mean over fewer runs than planned is a mean over survivors."""
        gaps = [c for c in study.primaries if c.n < c.planned_pairs]
        return "Means are over pairs in which both runs have a value." if gaps else ""

    # Data and methods

    def corpus(self, study: StudyView) -> Markup:
        if not study.mixture:
            return self.marks(study.corpus)
        parts = [f"{_percent(part.weight)} {part.name}" for part in study.mixture]
        return Markup("a mixture (") + self.words.listed(parts) + Markup(")")

    def token_range(self, study: StudyView) -> Markup:
        assert study.plan is not None
        runs = sorted(study.plan.runs, key=lambda run: run.budget.tokens)
        ends = [runs[0], runs[-1]] if runs[0].budget.tokens != runs[-1].budget.tokens else runs[:1]
        return Markup(" to ").join(self.marks(self.words.num(run, "recipe/budget/tokens", "count")) for run in ends)

    def seen_words(self, study: StudyView) -> list[str]:
        overlap = study.overlap
        return [] if overlap is None else [f"{_percent(share, 2)} ({name})" for name, share in overlap[2]]

    def sweep_rates(self, study: StudyView) -> list[Inline]:
        assert study.plan is not None
        sweep = study.plan.study.sweep
        assert sweep is not None
        return [self.words.value(format.setting(rate), sweep, "lr", rate) for rate in sweep.all_rates()]

    def settings_said(self, study: StudyView, settings: Sequence[str]) -> list[Markup]:
        return [self.marks(self.words.said(setting, study.plan)) for setting in settings]

    def meanings(self, study: StudyView) -> Iterable[tuple[str, str]]:
        return metric_meanings(study, MOST_MEANINGS)

    def methods(self, study: StudyView) -> tuple[list[str], list[str], list[Inline], Markup]:
        """The tests, the intervals, the levels and the corrections of what the criteria ask, or of all."""
        asked = study.asked or study.others
        corrections = [name for name in dict.fromkeys(c.correction for c in asked) if name != "none"]
        cited = [
            self.marks(wording.CORRECTIONS[name]) + Markup(f" [@{_CITED[name]}]" if name in _CITED else "")  # noqa: S704
            for name in corrections
        ]
        levels = {c.alpha: c for c in asked}
        return (
            [_TESTS.get(name, name) for name in dict.fromkeys(c.test for c in asked)],
            [_INTERVALS.get(name, name) for name in dict.fromkeys(c.interval for c in asked)],
            [self.words.value(format.setting(alpha), c, "alpha") for alpha, c in sorted(levels.items())],
            self.words.listed(cited),
        )

    def logarithms(self, study: StudyView) -> bool:
        return any(comparison.transform == "log" for comparison in study.analysis.comparisons)

    def equivalence(self, study: StudyView) -> bool:
        return any(comparison.equivalence is not None for comparison in study.asked)

    def environment_words(self, study: StudyView) -> str:
        assert study.plan is not None
        versions = [f"{n} ({v})" if " " in v else f"{n} {v}" for n, v in study.plan.environment.versions.items()]
        how = study.plan.execution
        text = ", ".join(versions) + f"; {how.device_name}"
        if study.trained is None:
            return f"{text}."
        bits = "" if study.plan.study.execution.deterministic else ", not the same bits twice (deterministic = false)"
        threads = format.counted(how.threads, "thread")
        return f"{text}, {how.precision}{bits}, stack width {how.stack_width}, {threads} per process."

    # Results

    def outcome_counts(self, comparisons: Sequence[Comparison], part: object) -> list[Markup]:
        """``three are shown worse``, for each outcome that occurs."""
        kinds = [_kind(comparison) for comparison in comparisons]
        made = []
        for kind, words in _OUTCOMES:
            if many := kinds.count(kind):
                verb = "" if kind == "untested" else "is " if many == 1 else "are "
                all_of = "all " if many == len(comparisons) > 1 else ""
                number = self.words.value(f"{all_of}{format.count_word(many)}", part, "", many)
                made.append(self.marks([number, f" {verb}{words}"]))
        return made

    def verdict_list(self, study: StudyView) -> Markup:
        """The decisions on what was registered, or on everything where nothing was."""
        made = []
        decided = [decision for decision in study.decided if not decision.exploratory] or study.decided
        for decision, within in self.decision_groups(decided):
            words = Markup("*") + self.marks(DECISIONS[decision]) + Markup("*")
            if len(decided) <= 4:
                made.append(words + Markup(" for ") + self.verdict_names(study, within))
            else:
                part = self.words.part(len(within), len(decided), study.verdict, "verdicts")
                made.append(words + Markup(" in ") + self.marks(part) + Markup(" decisions"))
        return Markup("; ").join(made)

    def verdict_names(self, study: StudyView, within: Sequence[Decided]) -> Markup:
        several = len(study.regimes) > 1
        regimes = grouped((decided.verdict.regime, decided.verdict.variant) for decided in within)
        made = []
        for regime, variants in regimes.items():
            where = Markup(" in ") + self.marks(self.words.code(regime)) if several else Markup("")
            made.append(self.words.names(variants) + where)
        return Markup("; ").join(made)

    def rules_of(self, within: Sequence[Decided]) -> Markup:
        """``rule 4``, ``rules 1 and 4``: the rules that decided."""
        first = {int(decided.verdict.rule): decided.verdict for decided in reversed(within)}
        numbers = [self.words.value(str(rule), first[rule], "rule", rule) for rule in sorted(first)]
        return (Markup("rule ") if len(first) == 1 else Markup("rules ")) + self.words.listed(numbers)

    def reasons(self, study: StudyView, within: Sequence[Decided]) -> Markup:
        """Why it was decided so; what holds for several variants is told once."""
        made = []
        for told in wording.told_once((decided.verdict, decided.words.why) for decided in within):
            members = [decided for decided in within if decided.verdict in told.verdicts]
            said = self.marks(self.words.said(told.text, told.verdicts[0]))
            named = len(members) < len(within)
            made.append(self.verdict_names(study, members) + Markup(": ") + said if named else said)
        return Markup(" ").join(made)

    def decision_groups(self, decisions: Sequence[Decided]) -> list[tuple[Decision, list[Decided]]]:
        groups = grouped((decided.verdict.decision, decided) for decided in decisions)
        return list(groups.items())

    def metrics_of(self, comparisons: Sequence[Comparison]) -> list[str]:
        names = list(dict.fromkeys(map(metric_of, comparisons)))
        left = len(names) - 6
        return [*names[:6], f"{format.counted(left, 'other metric')}"] if left > 0 else names

    def sweep_notes(self, study: StudyView) -> list[str]:
        return [] if study.analysis.sweep is None else wording.sweep_notes(study.analysis.sweep)

    def interaction_words(self, study: StudyView) -> str:
        crossed = study.analysis.interactions
        return "" if crossed is None else wording.interactions(study.analysis, crossed)

    def hypothesis_why(self, study: StudyView, hypothesis: HypothesisVerdict) -> str:
        return wording.hypothesis_why(study.analysis, hypothesis)

    def pairing_words(self, study: StudyView) -> Markup:
        """How much of the variance of a difference pairing by seed removed, on the primary metric."""
        gains = study.paired_gain
        shown: list[Any] = []
        removed = all((c.variance_reduction or 0) >= 0 for c in gains[:4])
        for comparison in gains[:4]:
            reduction = comparison.variance_reduction
            assert reduction is not None
            text = format.percent(reduction) if removed else format.percent(-reduction, sign=True)
            shown.append(
                [
                    self.words.value(text, comparison, "variance_reduction"),
                    Inline("text", " ("),
                    self.words.code(comparison.variant),
                    Inline("text", ")" if len(study.regimes) == 1 else f", {comparison.regime})"),
                ]
            )
        metric = self.marks(metric_of(gains[0]))
        if len(gains) > 4:
            ordered = sorted(gains, key=lambda comparison: -(comparison.variance_reduction or 0))
            ends = [
                self.words.value(format.percent(-(c.variance_reduction or 0), sign=True), c, "variance_reduction")
                for c in (ordered[0], ordered[len(ordered) // 2], ordered[-1])
            ]
            start = Markup("Pairing by seed changed the variance of the difference in ") + metric + Markup(" by ")
            return start + self.marks([ends[0], " to ", ends[2], " (median ", ends[1], ")."])
        if removed:
            start = Markup("Pairing by seed removed ") + self.words.listed(shown)
            return start + Markup(" of the variance of the difference in ") + metric + Markup(".")
        start = Markup("Pairing by seed changed the variance of the difference in ") + metric + Markup(" by ")
        return start + self.words.listed(shown) + Markup(".")

    # Figures

    def references(self, pictures: Sequence[Picture]) -> list[Inline]:
        return [self.words.ref(picture.key) for picture in pictures]

    def figure_words(self, section: str) -> Markup:
        """``Figure 1 shows the training loss; Figure 2 shows ...``."""
        shown = [picture for drawn in self.pictures.values() for picture in drawn if picture.section == section]
        by_words = grouped((picture.shows, picture) for picture in shown)
        clauses = [
            self.words.listed(self.references(found))
            + (Markup(" shows ") if len(found) == 1 else Markup(" show "))
            + self.marks(words)
            for words, found in by_words.items()
        ]
        return Markup("; ").join(clauses) + Markup(".") if clauses else Markup("")

    def pictures_of(self, study: StudyView) -> Sequence[Picture]:
        return self.pictures.get(study.name, ())

    def is_picture(self, key: str) -> bool:
        return any(picture.key == key for drawn in self.pictures.values() for picture in drawn)

    # Several studies

    def group_title(self, group: Sequence[StudyView]) -> str:
        """The question where it is short, else the name of the studies that ask it."""
        if group[0].question and len(group[0].question) <= 70:
            return group[0].question
        if len(group) == 1:
            return group[0].name
        start = shared_start([study.name for study in group], 0.99).rstrip("-")
        return f"{start} ({format.count_word(len(group))} studies)" if start else ", ".join(s.name for s in group)

    def signed(self, comparison: Comparison) -> Inline:
        shown = difference_of(comparison)
        return self.words.value(format.with_unit(shown.delta, shown.unit), comparison, "delta")

    def gain_summary(self, study: StudyView) -> Markup:
        """Registered gains in stability, in one sentence."""
        gains = study.registered_gains
        better = [gain for gain in gains if gain.outcome == "more-stable"]
        worse = [gain for gain in gains if gain.outcome == "less-stable"]
        shown = self.words.value
        pieces: list[Any] = [
            Inline("text", "In "),
            self.words.code(study.label),
            Inline("text", ", where "),
            shown(format.part(study.unstable, len(study.judged)), study.analysis, "stability/runs", study.unstable),
            Inline("text", " runs were unstable, a gain in stability is shown in "),
            shown(format.part(len(better), len(gains)), study.analysis, "stability/gains", len(better)),
            Inline("text", " registered places"),
        ]
        if worse:
            pieces += [
                Inline("text", " and a loss in "),
                shown(format.count_word(len(worse)), study.analysis, "stability/gains"),
            ]
        return self.marks([*pieces, Inline("text", ".")])

    def _programme_decisions(self) -> list[tuple[Decision, list[tuple[StudyView, Decided]]]]:
        """Registered decisions of all studies by kind, those that speak most for a change first; leads stay out."""
        groups = grouped(
            (decided.verdict.decision, (study, decided))
            for study in self.studies
            for decided in study.decided
            if not decided.exploratory or not study.registered
        )
        return sorted(groups.items(), key=lambda item: (-RANK[item[0]], -len(item[1])))

    def programme_verdicts(self) -> Markup:
        made = []
        groups = self._programme_decisions()
        total = sum(len(within) for _, within in groups)
        for decision, within in groups:
            words = Markup("*") + self.marks(DECISIONS[decision]) + Markup("* in ")
            made.append(words + self.marks(self.words.part(len(within), total, within[0][0].verdict, "verdicts")))
        return self.words.listed(made)

    def programme_names(self, within: Sequence[tuple[StudyView, Decided]]) -> Markup:
        by_study: dict[str, tuple[StudyView, list[Decided]]] = {}
        for study, decided in within:
            by_study.setdefault(study.name, (study, []))[1].append(decided)
        made = []
        for study, found in by_study.values():
            made.append(
                self.marks(self.words.code(study.label)) + Markup(" (") + self.verdict_names(study, found) + Markup(")")
            )
        return Markup("; ").join(made)

    def programme_reasons(self, within: Sequence[tuple[StudyView, Decided]]) -> Markup:
        """Why, for the first of each reason."""
        first: dict[str, tuple[StudyView, Decided]] = {}
        for study, decided in sorted(
            within, key=lambda item: item[1].primary is None or not item[0].calm(item[1].primary)
        ):
            first.setdefault(decided.verdict.reason, (study, decided))
        made = []
        for study, decided in list(first.values())[:2]:
            why = decided.words.why.rstrip(".")
            start = Markup("In ") + self.marks(self.words.code(study.label)) + Markup(": ")
            made.append(start + self.marks(self.words.said(why[:1].lower() + why[1:], decided.verdict)) + Markup("."))
        return Markup(" ").join(made)

    def _hypotheses(self) -> list[tuple[str, str, list[Markup]]]:
        found: dict[tuple[str, str], dict[str, list[str]]] = {}
        for study in self.studies:
            for key, hypothesis in study.hypotheses.items():
                by_status = found.setdefault((key, hypothesis.statement), {})
                by_status.setdefault(hypothesis.status, []).append(study.label)
        return [
            (
                key,
                statement,
                [Markup(f"*{status}* in ") + self.words.names(names) for status, names in by_status.items()],  # noqa: S704
            )
            for (key, statement), by_status in found.items()
        ]

    def _shown(self, comparisons: Sequence[Comparison]) -> list[Comparison]:
        """Differences that are shown, in one metric, between arms without an unstable run."""
        calm = [c for study in self.studies for c in study.primaries if c in comparisons and study.calm(c)]
        shown = [c for c in calm if c.outcome in ("better", "worse", "different") and c.delta is not None]
        first = shown[0].metric if shown else ""
        return [c for c in shown if c.metric == first]

    # What follows

    def fragile_words(self, study: StudyView) -> Markup:
        """Decisions that hang on one seed."""
        made = []
        for decided in study.fragile[:3]:
            verdict = decided.verdict
            assert verdict.fragility is not None
            by_decision = grouped((other.decision, str(other.seed)) for other in verdict.fragility.changes)
            where = f" in {verdict.regime}" if len(study.regimes) > 1 else ""
            others = "; ".join(
                f"{DECISIONS[decision]} without {'seed ' + seeds[0] if len(seeds) == 1 else f'any one of {len(seeds)} seeds'}"
                for decision, seeds in by_decision.items()
            )
            text = f"{where} would be {others}"
            made.append(self.marks([self.words.code(verdict.variant), *self.words.said(text, verdict)]))
        left = len(study.fragile) - 3
        end = Markup("")
        if left > 0:
            end = Markup("; ") + self.marks(self.words.counted(left, "more decision", study.verdict, "verdicts"))
            end += Markup(" would change with one seed")
        return Markup("Fragile: the decision on ") + Markup("; that on ").join(made) + end + Markup(".")

    def answer(self, study: StudyView) -> list[Inline]:
        """The study's question answered, as on its page; in a paper on several studies without what was not registered."""
        verdict = study.verdict
        if len(self.studies) > 1 and study.registered:
            registered = tuple(decided.verdict for decided in study.decided if not decided.exploratory)
            verdict = verdict.model_copy(update={"verdicts": registered or verdict.verdicts})
        return self.words.said(answer(study.analysis, verdict, interim=study.interim), study.verdict)

    def adopted(self, study: StudyView) -> list[list[Inline]]:
        """What to know before a change is adopted; where several are, the discussion has it."""
        adopted = (Decision.ADOPT, Decision.ADOPT_PROVISIONALLY, Decision.ADOPT_IN_REGIME)
        chosen = [
            decided
            for decided in study.decided
            if decided.verdict.decision in adopted and not (decided.exploratory and study.registered)
        ]
        if len(chosen) > 2:
            return []
        return [self.words.said(decided.words.recommendation, decided.verdict) for decided in chosen]

    def _undecided(self, study: StudyView) -> list[VariantVerdict]:
        """Verdicts of which it is known what would decide them, within reach."""
        return [
            decided.verdict
            for decided in study.decided
            if (needs := decided.verdict.needs) is not None
            and (needs.need != Need.FRESH_SEEDS or 0 < (needs.seeds_for_difference or 0) <= _MOST_SEEDS)
            and not (decided.exploratory and study.registered)
        ]

    def future_work(self) -> list[Markup]:
        """What to ask next, from what is not shown, not registered or not covered here."""
        ideas: list[Markup] = []
        open_ones = [
            (study, told)
            for study in self.studies
            for told in wording.needs_told_once(study.analysis, self._undecided(study))
        ]
        one = len(self.studies) == 1
        for study, told in open_ones[: 2 if one else 3]:
            names = self.verdict_names(
                study, [decided for decided in study.decided if decided.verdict in told.verdicts]
            )
            start = names if one else self.marks(self.words.code(study.label)) + Markup(", ") + names
            ideas.append(start + Markup(": ") + self.marks(self.words.said(told.text, told.verdicts[0])))
        rates = [study for study in self.studies if study.rate_is_shared and study.decided]
        if rates and one:
            ideas.append(
                Markup(
                    "A sweep would show whether the answer is the same when each arm has its own best learning rate."
                )
            )
        leads = [study for study in self.studies if 0 < len(study.different) <= MOST_LEADS]
        if leads and one:
            many = self.words.counted(leads[0].different, "exploratory difference", leads[0].analysis, "comparisons")
            ideas.append(
                Markup("The ") + self.marks(many) + Markup(" found here can be registered and tested on fresh seeds.")
            )
        if any(study.insensitive for study in self.studies):
            ideas.append(Markup("Tasks that are not sensitive at this scale need a larger model or more training."))
        if any(study.trained is not None and study.decided for study in self.studies):
            ideas.append(
                Markup(
                    "The same study files with a larger preset, text and budget would show whether the effects transfer."
                )
            )
        return ideas


def _delta(comparison: Comparison) -> float:
    return comparison.delta or 0.0


def _kind(comparison: Comparison) -> str:
    if comparison.equivalence is not None and comparison.equivalence.equivalent:
        return "equivalent"
    if comparison.outcome in ("better", "worse", "different"):
        return comparison.outcome
    return "untested" if comparison.outcome in ("not-tested", "gated") else "open"


def _percent(share: float, digits: int = 3) -> str:
    return format.with_unit(format.setting(float(f"{100 * share:.{digits}g}")), "%")
