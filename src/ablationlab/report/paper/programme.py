"""What a paper on several studies says of all of them: what agrees, what differs, and how strong it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import Comparison
from ablationlab.records.settings import TUNED
from ablationlab.report.paper.facts import Decided, StudyView

#: A variant of so many studies is counted over all of them, and of such variants so many are.
FEWEST_STUDIES, MOST_ACROSS = 3, 3

#: In what studies may differ, of what may change an effect.
ASPECTS = ("size", "budget", "text", "rate", "schedule")
Pattern = Literal["worse", "better", "both", "nothing"]


@dataclass(frozen=True)
class VariantEvidence:
    """The registered comparisons of a variant on the primary metric, over all studies that have it."""

    variant: str
    comparisons: tuple[Comparison, ...]
    studies: int

    @property
    def shown(self) -> list[Comparison]:
        return [c for c in self.comparisons if c.outcome in ("better", "worse")]

    @property
    def pattern(self) -> Pattern:
        outcomes = {c.outcome for c in self.shown}
        if len(outcomes) == 2:
            return "both"
        return "nothing" if not outcomes else "worse" if "worse" in outcomes else "better"


class Programme:
    """Studies that are told together; only what was registered counts, unless a study registered nothing."""

    def __init__(self, studies: Sequence[StudyView]) -> None:
        self.studies = studies

    @cached_property
    def registered(self) -> list[Comparison]:
        """The registered comparisons that decide."""
        return [c for study in self.studies for c in study.primaries if c.label == "registered"]

    @cached_property
    def _study_of(self) -> dict[int, StudyView]:
        return {id(c): study for study in self.studies for c in study.primaries}

    def study_of(self, comparison: Comparison) -> StudyView:
        return self._study_of[id(comparison)]

    # What agrees

    @cached_property
    def evidence(self) -> list[VariantEvidence]:
        """By variant, those of most studies first."""
        compared = grouped((c.variant, c) for c in self.registered)
        every = [
            VariantEvidence(name, tuple(found), len({self.study_of(c).name for c in found}))
            for name, found in compared.items()
        ]
        return sorted(every, key=lambda evidence: -evidence.studies)

    @property
    def across(self) -> list[VariantEvidence]:
        """The variants that most studies have."""
        return [evidence for evidence in self.evidence if evidence.studies >= FEWEST_STUDIES][:MOST_ACROSS]

    def agreeing(self, pattern: Pattern) -> list[VariantEvidence]:
        """The variants of several studies whose comparisons show this."""
        return [evidence for evidence in self.evidence if evidence.studies > 1 and evidence.pattern == pattern]

    def at_both_rates(self) -> list[VariantEvidence]:
        """Variants of which the same is shown at a rate that arms share and at the best rate of each arm."""
        found = []
        for evidence in (*self.agreeing("worse"), *self.agreeing("better")):
            own = {self.study_of(c).tuned and c.regime == TUNED for c in evidence.shown}
            shared = any(self.study_of(c).rate_is_shared for c in evidence.shown)
            if True in own and shared:
                found.append(evidence)
        return found

    # What differs

    def by_size(
        self, group: Sequence[StudyView]
    ) -> tuple[StudyView, StudyView, list[tuple[Comparison, Comparison]]] | None:
        """The studies of one question with the smallest and the largest models, and each variant's comparisons in them,
        where one of the two is shown."""
        trained = sorted((s for s in group if s.trained is not None), key=_parameters)
        if len(trained) < 2 or _parameters(trained[0]) == _parameters(trained[-1]):
            return None
        small, large = trained[0], trained[-1]
        last = {(c.variant, c.regime, c.metric): c for c in large.registered_primaries}
        pairs = [
            (c, last[c.variant, c.regime, c.metric])
            for c in small.registered_primaries
            if (c.variant, c.regime, c.metric) in last
        ]
        known = [
            pair
            for pair in pairs
            if all(c.delta is not None for c in pair) and any(c.outcome in ("better", "worse") for c in pair)
        ]
        return (small, large, known) if known else None

    def by_regime(self, study: StudyView) -> list[tuple[tuple[str, str], list[tuple[Comparison, Comparison]]]]:
        """By two registered regimes, the first and another: each variant's comparisons whose intervals do not overlap."""
        found = []
        for same in grouped((c.variant, c) for c in study.registered_primaries if c.label == "registered").values():
            first, *others = same
            found += [((first.regime, other.regime), (first, other)) for other in others if _apart(first, other)]
        return list(grouped(found).items())

    def reaching(
        self, ends: Callable[[Sequence[Comparison]], list[Comparison]]
    ) -> tuple[list[tuple[VariantEvidence, list[Comparison]]], list[str]]:
        """The variants of most studies with the *ends* of what is shown of them, and in what the studies there differ."""
        found = [(evidence, far) for evidence in self.across if len(far := ends(evidence.comparisons)) == 2]
        differ = {name for _, (low, high) in found for name in self.differing(self.study_of(low), self.study_of(high))}
        return found, [name for name in ASPECTS if name in differ]

    def differing(self, one: StudyView, other: StudyView) -> list[str]:
        """In what two studies differ, of what is known to change effects."""
        if one.trained is None or other.trained is None:
            return []
        facts: dict[str, list[Any]] = {
            "size": [(s.model.layers, s.model.width, s.model.context) for s in (one, other)],
            "budget": [{run.budget.tokens for run in s.trained.runs} for s in (one, other) if s.trained],
            "text": [(s.trained.corpus.sha256, s.trained.corpus.tokenizer) for s in (one, other) if s.trained],
            "rate": [(s.tuned, s.training.lr) for s in (one, other)],
            "schedule": [(s.training.schedule, s.training.warmup) for s in (one, other)],
        }
        return [name for name in ASPECTS if facts[name][0] != facts[name][1]]

    # How strong it is

    @property
    def unsteady(self) -> list[Comparison]:
        """The comparisons that decide and whose power is not told, because runs were unstable."""
        return [comparison for study in self.studies for comparison in study.unsteady]

    @property
    def blind(self) -> tuple[list[StudyView], list[StudyView]]:
        """Studies whose least powerful comparison misses the smallest effect that matters, and all of which that is known."""
        known = [study for study in self.studies if study.powers and study.powers[0][0].smallest_effect is not None]
        return [s for s in known if s.powers[0][0].detectable_80 > (s.powers[0][0].smallest_effect or 0.0)], known

    @cached_property
    def crossed(self) -> list[StudyView]:
        """Studies whose arms cross settings, such as architectures: what an arm shows depends on what it stands beside."""
        return [
            study
            for study in self.studies
            if study.between_primaries and (crossing := study.analysis.interactions) is not None and not crossing.cells
        ]


def decided_in(study: StudyView) -> list[Decided]:
    """The answers of a study; leads only where nothing was registered."""
    return [decided for decided in study.decided if not (decided.exploratory and study.registered)]


def drawn_in_forest(studies: Sequence[StudyView]) -> tuple[list[tuple[StudyView, Decided]], str]:
    """The answers whose differences are drawn in one chart, and their metric: the one that most rest on.

    Of one study they are all of its answers, of several those that their tables have.
    """
    each = decided_in if len(studies) > 1 else lambda study: study.decided
    every = [(study, decided) for study in studies for decided in each(study) if decided.primary is not None]
    metrics = Counter(decided.primary.metric for _, decided in every if decided.primary is not None)
    metric = metrics.most_common(1)[0][0] if metrics else ""
    return [(s, d) for s, d in every if d.primary is not None and d.primary.metric == metric], metric


def _parameters(study: StudyView) -> int:
    return study.first_run(study.baseline).budget.parameters


def _apart(one: Comparison, other: Comparison) -> bool:
    """Whether the deciding intervals of two comparisons do not overlap."""
    a, b = one.main_interval, other.main_interval
    if a is None or b is None or a.low is None or a.high is None or b.low is None or b.high is None:
        return False
    return one.metric == other.metric and (a.high < b.low or b.high < a.low)
