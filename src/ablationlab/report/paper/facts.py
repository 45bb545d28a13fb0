"""facts.json: what a paper says about a study, as data.

No sentence is in here. Numbers are text in the one style of `core.format`; where the template decides what to say, it gets
a code, a count or a truth value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ablationlab.study.text import Span

#: A settings table as the template reads it.
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Named:
    """A name and what belongs to it: a setting and its value, a metric and its meaning, a corpus and its share."""

    name: str
    text: str


@dataclass(frozen=True)
class OwnText:
    introduction: tuple[tuple[Span, ...], ...]
    related_work: tuple[tuple[Span, ...], ...]


@dataclass(frozen=True)
class Interim:
    ended: int
    planned: int


@dataclass(frozen=True)
class PlanFacts:
    hash: str
    created: str
    day: tuple[int, int, int] | None


@dataclass(frozen=True)
class OverlapFacts:
    """Training text that the corpora of a mixture share; *seen* is per corpus, of the words of its validation split."""

    documents: int
    leaked: int
    removed: bool
    seen: tuple[Named, ...]


@dataclass(frozen=True)
class CorpusFacts:
    name: str
    mixture: tuple[Named, ...]
    tokenizer: str
    train: str
    validation: str
    overlap: OverlapFacts | None


@dataclass(frozen=True)
class TrainerArm:
    name: str
    about: str
    changes: tuple[Named, ...]


@dataclass(frozen=True)
class TrainerFacts:
    """The study's own trainer: its name or command, what it reports, and what each arm changes."""

    title: str
    command: bool
    metrics: tuple[str, ...]
    arms: tuple[TrainerArm, ...]


@dataclass(frozen=True)
class DesignFacts:
    """Parameters of the first run, and the token budgets of all runs."""

    parameters: str
    tokens: tuple[str, ...]
    first_tokens: str


@dataclass(frozen=True)
class ArmFacts:
    name: str
    front: Settings
    changes: tuple[Named, ...]
    parameters: str


@dataclass(frozen=True)
class RegimeFacts:
    name: str
    meaning: str
    changes: tuple[Named, ...]


@dataclass(frozen=True)
class TrainingFacts:
    """The study's training settings, the budget of the first run, the rates of a sweep and what the regimes set."""

    settings: Settings
    steps: str
    tokens: str
    flops: str
    precision: str
    device: str
    rates: tuple[str, ...]
    tuned: bool
    regimes: tuple[RegimeFacts, ...]


@dataclass(frozen=True)
class StatisticsFacts:
    """Tests, intervals and corrections of the comparisons that the criteria ask for, or of all if there are none."""

    logarithms: bool
    tests: tuple[str, ...]
    intervals: tuple[str, ...]
    levels: tuple[str, ...]
    corrections: tuple[str, ...]
    equivalence: bool


@dataclass(frozen=True)
class Bounds:
    level: str
    range: str


@dataclass(frozen=True)
class Finding:
    """One comparison. *change* is how the variant's value relates to the reference's."""

    metric: str
    variant: str
    reference: str
    regime: str
    change: Literal["higher", "lower", "factor", "none", "unknown"]
    amount: str
    interval: Bounds | None
    pairs: int
    sample: str
    p: str | None
    correction: str
    outcome: str
    equivalent: bool | None
    bounds: str | None
    sensitive: bool | None


@dataclass(frozen=True)
class MissingPair:
    seed: str
    arm: str
    why: str


@dataclass(frozen=True)
class Group:
    """Comparisons of one kind: those told, how many more there are, and the pairs that are missing."""

    told: tuple[Finding, ...]
    left: int
    missing: tuple[MissingPair, ...]
    missing_left: int


@dataclass(frozen=True)
class TableData:
    """The first rows of a table, as `Table.typst` gives them; tables/*file*.csv has the *left* ones too."""

    columns: Sequence[Mapping[str, Any]]
    rows: Sequence[Sequence[Mapping[str, Any]]]
    left: int
    file: str


@dataclass(frozen=True)
class ExploratoryFacts:
    comparisons: int
    different: int
    metrics: tuple[str, ...]
    metrics_left: int
    told: tuple[Finding, ...]


@dataclass(frozen=True)
class ResultsFacts:
    registered: TableData | None
    exploratory: TableData | None
    primary: Group | None
    others: Group | None
    between: Group | None
    found: ExploratoryFacts


@dataclass(frozen=True)
class GainFacts:
    variant: str
    regime: str
    pairs: int
    reference_unstable: int
    variant_unstable: int
    estimate: str | None
    interval: Bounds | None


@dataclass(frozen=True)
class IdleGain:
    """The interval of a gain where no run was unstable."""

    pairs: int
    low: str
    high: str


@dataclass(frozen=True)
class StabilityFacts:
    """Stability of the arms of which it is *known*; gains are against the baseline."""

    threshold: str
    worse_than_start: str | None
    known: bool
    unstable: bool
    runs: int
    unstable_runs: int
    diverged: int
    largest: str | None
    gains: tuple[GainFacts, ...]
    idle_gain: IdleGain | None
    table: TableData


@dataclass(frozen=True)
class EvaluationFacts:
    named: bool
    tasks: int
    told: tuple[Finding, ...]
    insensitive: tuple[str, ...]
    calibration: tuple[Finding, ...]
    calibration_left: int


@dataclass(frozen=True)
class ProbeRow:
    label: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Apart:
    arm: str
    measures: tuple[Named, ...]
    left: int


@dataclass(frozen=True)
class DiagnosticsFacts:
    regime: str
    arms: tuple[str, ...]
    left: int
    rows: tuple[ProbeRow, ...]
    factor: str
    apart: tuple[Apart, ...]


@dataclass(frozen=True)
class ReplicationFacts:
    title: str
    citation: str
    date: str
    about: str
    conclusions: tuple[str, ...]
    level: str
    figures: TableData | None
    directions: TableData | None


@dataclass(frozen=True)
class DecisionFacts:
    """A verdict with its evidence, and what to do."""

    variant: str
    regime: str
    decision: str
    rule: int
    label: str
    finding: Finding | None
    why: str
    recommendation: str
    fragility: str | None


@dataclass(frozen=True)
class HypothesisFacts:
    key: str
    statement: str
    status: str
    why: str


@dataclass(frozen=True)
class PowerFacts:
    """Of the comparisons with the baseline, the one that needs the largest effect."""

    pairs: int
    sd: str
    detectable: str
    metric: str
    smallest_effect: str | None
    enough: bool
    needed: int | None


@dataclass(frozen=True)
class EnvironmentFacts:
    versions: tuple[str, ...]
    device: str
    precision: str
    stack_width: int
    threads: int


@dataclass(frozen=True)
class FigureFacts:
    key: str
    kind: str
    section: str
    title: str
    caption: str
    alt: str


@dataclass(frozen=True)
class Facts:
    """facts.json. *plan*, *model*, *training* and *environment* are None for a table of values; *model*, *training*, *corpus*
    and *design* also where the study's own *trainer* made the runs."""

    study: str
    question: str
    baseline: str
    variants: tuple[str, ...]
    changed: tuple[str, ...]
    regimes: tuple[str, ...]
    seeds: int
    primary: str | None
    registered: bool
    unpaired: bool  # some arms of a user's table share no seed
    sealed: bool
    interim: Interim | None
    plan: PlanFacts | None
    source_hash: str
    text: OwnText | None
    trainer: TrainerFacts | None
    design: DesignFacts | None
    model: Settings | None
    arms: tuple[ArmFacts, ...]
    corpus: CorpusFacts | None
    training: TrainingFacts | None
    ledger: str | None
    measures: tuple[Named, ...]
    statistics: StatisticsFacts
    tie_breakers: tuple[str, ...]
    criteria: TableData | None
    results: ResultsFacts
    stability: StabilityFacts | None
    evaluation: EvaluationFacts
    diagnostics: DiagnosticsFacts | None
    replication: ReplicationFacts | None
    verdicts: tuple[DecisionFacts, ...]
    hypotheses: tuple[HypothesisFacts, ...]
    stages: tuple[str, ...]
    deviations: tuple[str, ...]
    damaged: tuple[Named, ...]
    power: PowerFacts | None
    caveats: tuple[str, ...]
    environment: EnvironmentFacts | None
    hashes: tuple[Named, ...]
    figures: tuple[FigureFacts, ...]

    def to_json(self) -> str:
        """facts.json; control characters and line breaks in any text become spaces."""
        return json.dumps(_printable(asdict(self)), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


_INVISIBLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b\u2028\u2029\ufeff]+")


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return _INVISIBLE.sub(" ", value)
    if isinstance(value, Mapping):
        return {key: _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, tuple | list) else value
