"""What is concluded from answers to tasks: comparison.json, item by item, and the part of analysis.json that holds it."""

from __future__ import annotations

from typing import ClassVar

from ablationlab.records.parts import CaveatPart, IntervalPart, SensitivityPart
from ablationlab.records.schema import Part, Record


class ItemTaskPart(Part):
    """One task: item-level statistics of variant - reference."""

    task: str
    metric: str
    items: int
    unpaired_variant: int
    unpaired_reference: int
    variant_mean: float
    reference_mean: float
    delta: float
    item_intervals: dict[str, IntervalPart]
    mcnemar: dict[str, dict[str, float | int]]
    crossed: IntervalPart | None
    seed_interval: IntervalPart | None
    seed_p: float | None
    p: float | None
    p_test: str
    p_adjusted: float | None
    needs_items: int | None
    caveats: tuple[CaveatPart, ...]


class ItemComparison(Record):
    """comparison.json: two sets of lm-eval samples, paired item by item and seed by seed."""

    KIND: ClassVar[str] = "item-comparison"
    variant: str
    reference: str
    seeds: tuple[str, ...]
    source_hash: str
    correction: str
    tasks: tuple[ItemTaskPart, ...]
    macro_delta: float
    macro_item_intervals: dict[str, IntervalPart]
    macro_crossed: IntervalPart | None
    macro_seed_interval: IntervalPart | None
    macro_seed_p: float | None
    caveats: tuple[CaveatPart, ...]


class TaskSensitivityPart(Part):
    """One task in one regime: what needs no comparison to be known of it. ``task`` is the label of its comparisons."""

    task: str
    name: str
    fewshot: int
    regime: str
    templates: tuple[str, ...]
    items: int
    chance: float | None
    ngrams: dict[str, float]
    baseline_accuracy: float | None
    control_accuracy: float | None
    template_spread: float | None  # SD over templates of the baseline's mean accuracy; null with one template
    sensitivity: SensitivityPart


class ItemContrastPart(Part):
    """Item-level statistics of one contrast in one regime, over the tasks with that many examples."""

    regime: str
    fewshot: int
    comparison: ItemComparison


class EvaluationPart(Part):
    """What the evaluation of the runs adds: which tasks can tell models apart, and the comparisons item by item."""

    harness: str
    precision: str
    tasks: tuple[TaskSensitivityPart, ...]
    contrasts: tuple[ItemContrastPart, ...]
    notes: tuple[str, ...]
