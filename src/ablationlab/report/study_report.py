"""What a reader is told of a study, as rows and fixed clauses: the one object behind terminal, notebook and tables.

Nothing here is layout. Renderers print what they have room for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from ablationlab.core.format import count, number, percent
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import Analysis, InputDifference
from ablationlab.records.courses import Courses
from ablationlab.records.results import Results
from ablationlab.records.verdict import Answer, Standing, Verdict
from ablationlab.report.colours import Emblem, emblems
from ablationlab.report.doubts import Chip, chips_of
from ablationlab.report.effects import Effect, effects_of
from ablationlab.report.equal_time import equal_time_effects
from ablationlab.report.facts import facts_of, seal_of
from ablationlab.report.failures import RunEnd, failure_effects, run_ends
from ablationlab.report.fairness import Condition, conditions_of
from ablationlab.report.slots import Slot, Statement, escaped, tally

#: What helps, what harms, then what is open: the order in which answers are told.
ORDER: Final = (
    Answer.BETTER,
    Answer.MORE_STABLE,
    Answer.WORSE,
    Answer.UNSTABLE,
    Answer.SAME,
    Answer.UNDECIDED,
    Answer.NOT_MEASURED,
)
#: More names than this are counted.
MOST_NAMES: Final = 3


@dataclass(frozen=True)
class AnswerGroup:
    """The variants with one answer and one advice, each with its regime."""

    answer: Answer
    advice: str
    places: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class StudyReport:
    """*effects*: every comparison. *answers*: those that the rules answered, by regime, the best first; registered ones
    alone where there are any. *contrasts*: other registered comparisons of the primary metric. *next_look*: seeds of the
    planned look that an answer waits for. *interim*: not all planned runs have ended. *sure*, *fair* and the rest are
    clauses. *about*: variants in the study's words. *conditions*: Fair as rows. *ends*: every run, the worst first;
    *beside*: what is no comparison of a metric: failed runs, the loss at equal time. *courses*: as recorded, for pictures.
    *references*: what chance and n-gram models reach on the validation text.
    *higher*: more of the metric is better.
    """

    name: str
    question: str
    sealed: str
    arms: int
    seeds: int
    metric: str
    unit: str
    folder: Path | None
    effects: tuple[Effect, ...]
    answers: tuple[Effect, ...]
    contrasts: tuple[Effect, ...]
    unshown: int
    guards: tuple[Statement, ...]
    sure: tuple[Statement, ...]
    flags: tuple[Statement, ...]
    fair: tuple[Statement, ...]
    hypotheses: tuple[Statement, ...]
    deviations: tuple[Statement, ...]
    next_look: Slot | None = None
    interim: Statement | None = None
    baseline: str = ""
    variants: tuple[str, ...] = ()
    higher: bool = False
    facts: tuple[Statement, ...] = ()
    seal: Statement | None = None
    chips: tuple[Chip, ...] = ()
    conditions: tuple[Condition, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    ends: tuple[RunEnd, ...] = ()
    beside: tuple[Effect, ...] = ()
    courses: Courses | None = None
    references: tuple[tuple[str, Slot], ...] = ()

    @classmethod
    def empty(cls, name: str) -> StudyReport:
        """Of a study that has not begun."""
        none = ()
        return cls(name, "", "", 0, 0, "", "", None, none, none, none, 0, none, none, none, none, none, none)

    @cached_property
    def emblems(self) -> Mapping[str, Emblem]:
        """Each variant's colour and shape."""
        return emblems(self.variants, self.baseline)

    @cached_property
    def groups(self) -> tuple[AnswerGroup, ...]:
        """Names by answer word: what helps first, then what harms, then what is open."""
        named = grouped(
            ((ORDER.index(row.answer), row.answer, row.advice.text), (row.variant, row.regime))
            for row in self.answers
            if row.answer is not None
        )
        ordered = sorted(named.items(), key=lambda item: item[0][0])
        return tuple(AnswerGroup(answer, advice, tuple(places)) for (_, answer, advice), places in ordered)

    @cached_property
    def regimes(self) -> tuple[str, ...]:
        """Regimes with an answer, in their order."""
        return tuple(dict.fromkeys(row.regime for row in self.answers))

    @cached_property
    def blocks(self) -> tuple[tuple[str, str, tuple[Effect, ...]], ...]:
        """(regime, reference, effects): what has an answer, then other registered contrasts."""
        found = grouped(((row.regime, row.reference), row) for row in (*self.answers, *self.contrasts))
        return tuple((regime, reference, tuple(rows)) for (regime, reference), rows in found.items())

    def statements(self) -> Iterator[Statement]:
        groups = (self.guards, self.sure, self.flags, self.fair, self.hypotheses, self.deviations, self.facts)
        for group in groups:
            yield from group
        for chip in self.chips:
            yield from chip.statements()

    def slots(self) -> Iterator[Slot]:
        """Everything printed that is a field of a record."""
        for row in self.effects:
            yield from row.slots()
        for statement in self.statements():
            yield from (slot for slot in statement.slots.values() if slot.at)
        for condition in self.conditions:
            yield from (slot for slot in condition.slots() if slot.at)
        for row in self.beside:
            yield from row.slots()
        yield from (end.at for end in self.ends if end.at.at)
        if self.next_look is not None:
            yield self.next_look


def study_report(results: Results | None, analysis: Analysis | None, verdict: Verdict | None) -> StudyReport:
    """What is told of these records; *results* are none where nothing was trained here, and without an *analysis* there is
    no answer."""
    effects = () if analysis is None else effects_of(analysis, verdict)
    judged = [row for row in effects if row.answer is not None]
    registered = [row for row in judged if row.label == "registered"]
    regimes = {} if analysis is None else {regime: place for place, regime in enumerate(analysis.regimes)}
    answers = sorted(registered or judged, key=lambda row: (regimes.get(row.regime, len(regimes)), _by_estimate(row)))
    plan = None if results is None else results.plan
    several = len({row.regime for row in answers}) > 1
    primary = answers[0].metric if answers else (analysis.primary or "") if analysis is not None else ""
    told = analysis if analysis is not None else results
    assert told is not None
    variants = told.variants
    seeds = len(told.seeds)
    metric = None if analysis is None else analysis.metrics.get(primary)
    return StudyReport(
        name=analysis.study if analysis is not None else told.name if isinstance(told, Results) else "",
        question=told.question,
        sealed="" if plan is None else plan.created[:10],
        arms=len(variants),
        seeds=seeds,
        metric=next((row.name for row in answers), primary),
        unit=next((row.unit for row in answers if row.unit), ""),
        folder=None if results is None else results.folder,
        effects=effects,
        answers=tuple(answers),
        contrasts=tuple(
            row
            for row in sorted(effects, key=_by_estimate)
            if row.answer is None and row.label == "registered" and row.metric == primary and row.role
        ),
        unshown=len(judged) - len(answers),
        guards=tuple(_guards(answers, several, seeds)),
        sure=tuple(_sure(results, answers, several)),
        flags=tuple(_flags(answers, several)),
        fair=() if analysis is None else (*_fair(analysis), *_layouts(results)),
        hypotheses=() if verdict is None else tuple(_hypotheses(verdict)),
        deviations=() if analysis is None else tuple(_deviations(analysis)),
        interim=_interim(results),
        next_look=None
        if verdict is None or verdict.next_look is None
        else tally(verdict.next_look, "verdict.json#/next_look"),
        baseline=told.baseline,
        variants=tuple(variants),
        higher=metric is not None and metric.direction == "higher",
        facts=tuple(facts_of(results, analysis)),
        seal=seal_of(results),
        chips=() if analysis is None else tuple(chips_of(results, analysis, answers)),
        conditions=() if analysis is None else tuple(conditions_of(analysis)),
        about={} if analysis is None else analysis.about,
        ends=() if analysis is None else run_ends(analysis),
        beside=() if analysis is None else (*equal_time_effects(analysis), *failure_effects(analysis)),
        courses=None if results is None else results.courses,
        references=tuple(_references(results)),
    )


def _hypotheses(verdict: Verdict) -> Iterator[Statement]:
    for name, known in verdict.hypotheses.items():
        at = f"verdict.json#/hypotheses/{escaped(name)}/status"
        yield Statement("more.hypothesis", {"name": Slot(name), "status": Slot(known.status, at, known.status)})


def _deviations(analysis: Analysis) -> Iterator[Statement]:
    for place, known in enumerate(analysis.deviations):
        at = f"analysis.json#/deviations/{place}/code"
        yield Statement("more.deviation", {"code": Slot(known.code.replace("-", " "), at, known.code.value)})


def _references(results: Results | None) -> Iterator[tuple[str, Slot]]:
    """Where all arms read one text in the same tokens."""
    plan = None if results is None else results.plan
    if plan is None or plan.lab_corpus is None or plan.corpora:
        return
    for name, loss in plan.reference_losses.items():
        at = f"plan.lock#/reference_losses/{escaped(name)}"
        yield "chance" if name == "uniform" else name, Slot(number(loss, 4), at, loss)


def _interim(results: Results | None) -> Statement | None:
    if results is None or not results.interim:
        return None
    return Statement("sure.interim", {"ended": tally(results.ended), "planned": tally(len(results.runs))})


def _by_estimate(row: Effect) -> tuple[bool, float]:
    return row.drawn is None, 0.0 if row.drawn is None else row.drawn[0]


def _named(row: Effect, several: bool) -> str:
    return f"{row.variant} in {row.regime}" if several else row.variant


def _of(code: str, rows: Sequence[Effect], every: Sequence[Effect], several: bool, **slots: Slot) -> Statement:
    """How many of the answers; a few by name, with *code* and ``-named``."""
    if rows and len(rows) <= MOST_NAMES and len(rows) < len(every):
        return Statement(f"{code}-named", {"names": Slot(", ".join(_named(row, several) for row in rows)), **slots})
    return Statement(code, {"n": tally(len(rows)), "of": tally(len(every)), **slots})


def _guards(answers: Sequence[Effect], several: bool, seeds: int) -> Iterator[Statement]:
    """How often each guard is kept, open and broken."""
    for name in dict.fromkeys(guard.name for row in answers for guard in row.guards):
        states = [(row, guard) for row in answers for guard in row.guards if guard.name == name]
        asked = [row for row, _ in states]
        for standing in Standing:
            alike = [(row, guard) for row, guard in states if guard.standing == standing]
            if not alike:
                continue
            code, slots = f"guards.{standing}", {"guard": Slot(name)}
            if standing == Standing.OPEN and all(guard.seeds.at for _, guard in alike):
                code = "guards.open-seeds"
                slots["seeds"] = max((guard.seeds for _, guard in alike), key=lambda slot: float(slot.value or 0))
                slots["have"] = tally(seeds)
            yield _of(code, [row for row, _ in alike], asked, several, **slots)


def _sure(results: Results | None, answers: Sequence[Effect], several: bool) -> Iterator[Statement]:
    runs = () if results is None else tuple(results.compared)
    if runs:
        ended = sum(run.done for run in runs)
        yield Statement("sure.ended", {"ended": tally(ended), "planned": tally(len(runs))})
        diverged = sum(run.state == "diverged" for run in runs)
        if diverged:
            yield Statement("sure.diverged", {"n": tally(diverged)})
    asked = [row for row in answers if row.left_out]
    hanging = [row for row in asked if row.without]
    if asked:
        yield _of("sure.hangs", hanging, asked, several)
    told = [(row, *pair) for row in hanging for pair in row.without]
    if len(told) <= MOST_NAMES:
        for row, seed, answer in told:
            yield Statement("sure.without", {"seed": seed, "variant": Slot(_named(row, several)), "answer": answer})
    far = [row for row in answers if row.far_out]
    if far:
        yield _of("sure.far-out", far, answers, several)
    for lack, rows in grouped(
        (lack, row) for row in answers for lack in row.lacks if row.answer == Answer.UNDECIDED
    ).items():
        yield Statement(f"lacks.{lack.replace(' ', '-')}", {"n": tally(len(rows))})
    waiting = [row for row in answers if row.seeds.at]
    if len(waiting) <= MOST_NAMES:
        for row in waiting:
            if row.seeds.value is not None:
                yield Statement("sure.decided-by", {"variant": Slot(_named(row, several)), "seeds": row.seeds})


def _flags(answers: Sequence[Effect], several: bool) -> Iterator[Statement]:
    """What stands beside the answers."""
    for flag, rows in grouped((flag, row) for row in answers for flag in row.flags).items():
        yield _of("flags.flag", rows, answers, several, flag=Slot(flag))


def _fair(analysis: Analysis) -> Iterator[Statement]:
    """In what the pairs match, and in what not."""
    check, at = analysis.ledger, "analysis.json#/ledger"
    if check is None:
        yield Statement("fair.unknown")
        return
    yield Statement("fair.pairs", {"n": tally(check.checked_pairs, f"{at}/checked_pairs")})
    for code, names in (("shared", check.shared), ("nearly", check.nearly)):
        if names:
            yield Statement(f"fair.{code}", {"names": Slot(", ".join(names))})
    for unlike in check.differs:
        yield _differs(unlike, check.checked_pairs)
    for code, names in (("unmatched", check.unmatched), ("not-reported", check.not_reported)):
        if names:
            yield Statement(f"fair.{code}", {"names": Slot(", ".join(names))})


def _layouts(results: Results | None) -> Iterator[Statement]:
    """How runs lay on several processes, where the plan spreads them."""
    plan = None if results is None else results.plan
    spread = results is not None and plan is not None and plan.study.execution.parallel is not None
    known = {
        run.record.execution.layout(): run
        for run in (results.runs if spread and results is not None else ())
        if run.record is not None and run.record.execution.ranks > 1
    }
    for run in known.values():
        assert run.record is not None
        at, execution = f"runs/{run.id}/run.json#/execution", run.record.execution
        slots = {
            "layout": Slot(execution.parallel, f"{at}/parallel", execution.parallel),
            "ranks": tally(execution.ranks, f"{at}/ranks"),
        }
        yield Statement("fair.layout", slots)


def _differs(unlike: InputDifference, pairs: int) -> Statement:
    if unlike.pairs is not None:
        return Statement("fair.in-pairs", {"name": Slot(unlike.name), "n": tally(unlike.pairs), "of": tally(pairs)})
    named = [
        variant if share is None else f"{variant} {percent(share, 1 if abs(share) < 0.01 else 0, sign=True)}"
        for variant, share in unlike.variants.items()
    ]
    return Statement("fair.differs", {"name": Slot(unlike.name), "names": Slot(_some(named))})


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= MOST_NAMES else f"{count(len(names))} variants"
