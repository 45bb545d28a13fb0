"""evaluation.json, suite.json and samples.parquet: what the evaluation of trained runs leaves on disk.

evaluation.json stands in a run's folder, samples.parquet beside it;
suite.json stands in ``evaluation/`` of the results folder, beside the tasks themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from ablationlab.records.seal import SealedRecord
from ablationlab.records.storage import Record, ResultsFolder, RunFolder, StoredValue

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Which weights of a run were scored: its last ones, or those kept halfway as the positive control.
Weights = Literal["final", "half"]
#: Where a task comes from: cut from the held-out text, a local benchmark, or the harness's own and YAML files.
Source = Literal["suite", "benchmark", "harness"]
#: Where the loss still falls at the end of the temperatures that were searched; flat: nowhere.
Beyond = Literal["below", "above", "flat"]


class TaskKey(NamedTuple):
    """What makes a score a score of one thing; scores of different keys never mix."""

    task: str
    template: str
    fewshot: int
    weights: Weights


class CalibrationScores(StoredValue):
    """How far stated probabilities can be trusted; top-label probability against whether the top label was right.

    ``brier`` is over all labels; ``brier_top`` is the top label's own, and equals reliability - resolution + uncertainty +
    within_bin. Reliability curve: per equal-mass bin the mean confidence, the share that was right, and the count.
    """

    count: int
    ece_equal_width: float
    ece_equal_mass: float
    ece_equal_width_debiased: float
    ece_equal_mass_debiased: float
    brier: float
    brier_top: float
    reliability: float
    resolution: float
    uncertainty: float
    within_bin: float
    curve_confidence: tuple[float, ...]
    curve_accuracy: tuple[float, ...]
    curve_count: tuple[int, ...]


class TemperatureCurve(StoredValue):
    """Loss against softmax temperature. ``best`` is fitted on the even windows (or items) and judged on the odd ones.

    It is null where no temperature in the range ``searched`` is the best: ``beyond`` then says on which side the loss still
    falls (there may be no optimum there either), or that all temperatures give the same loss (flat).
    """

    temperatures: tuple[float, ...]
    losses: tuple[float, ...]
    searched: tuple[float, float]
    best: float | None
    beyond: Beyond | None
    held_out_loss_at_1: float
    held_out_loss_at_best: float | None
    sensitivity: float  # second derivative of the loss by ln(temperature), at temperature 1


class DocumentLosses(StoredValue):
    """Mean loss per document of the validation split, and how many of its tokens were predicted.

    ``kind``: documents as the corpus has them, neighbours pooled where there are very many; or, for a text without
    documents, contiguous blocks of it of about equal length.
    """

    kind: Literal["documents", "blocks"]
    tokens: tuple[int, ...]
    losses: tuple[float, ...]


class TokenScores(StoredValue):
    """One pass over the validation split, windows of one context, stride one context."""

    tokens: int
    stride: int
    loss: float
    bits_per_byte: float
    perplexity: float
    accuracy: float
    position_edges: tuple[int, ...]
    loss_by_position: tuple[float, ...]
    loss_by_class: dict[str, float | None]
    tokens_by_class: dict[str, int]
    calibration: CalibrationScores
    temperature: TemperatureCurve
    logit_scale: float
    documents: DocumentLosses


class LengthScores(StoredValue):
    """Loss by distance from the start of a document of twice the context; past the context by a sliding window.

    Positions are learned, so none exists past ``context``: the window moves on by ``stride`` and its positions start again.
    ``near_end`` and ``past_end`` are of the same tokens, all those past the context: read near the end of a full context, and
    read by the sliding window.
    """

    context: int
    stride: int
    documents: int
    edges: tuple[int, ...]
    losses: tuple[float, ...]
    near_end: float
    past_end: float
    near: tuple[float, ...]  # the bins past the context, read near the end of a full context
    fresh: tuple[float, ...]  # the same bins in one window that begins where the context ends
    history: tuple[int, ...]  # tokens before the first bin past the context, in the windows that read it
    loss_by_history: tuple[float, ...]  # its loss in each of them


class ThroughputScores(StoredValue):
    """Medians over rounds that go through all runs in turn, in one process; only ratios between runs mean something."""

    batch: int
    rounds: int
    inference_tokens_per_second: float
    training_tokens_per_second: float
    inference_bytes: int
    training_bytes: int
    together: str  # hash over the runs that were timed in the same process: compare within it only


class TaskResult(StoredValue):
    """One task under one template and number of examples, for one set of weights."""

    task: str
    source: Source
    template: str
    fewshot: int
    weights: Weights
    version: str
    task_hash: str  # of the task's definition, its items and its examples: another hash is another evaluation
    items: int = Field(ge=1)
    whole: bool  # whether no cap (``items``) left any out
    choices: float | None  # mean number; None where nothing is chosen
    chance: float | None
    accuracy: float | None
    accuracy_se: float | None
    accuracy_norm: float | None  # by log-probability per character of the choice, where the task defines it
    log_probability: float | None  # of the right choice, mean over items, nats
    margin: float | None  # over the best wrong choice, nats
    probability: float | None  # of the right choice among the choices
    truncated: int  # items cut on the left to fit the context
    unknown_characters: int
    # Hex, one bit per item in their order: whether it was answered rightly; None where nothing is chosen.
    answers: str | None = Field(pattern=r"^([0-9a-f]{2})*$")
    harness: dict[str, float] = Field(default_factory=dict)  # the harness's own figures, by its own names
    calibration: CalibrationScores | None = None
    temperature: TemperatureCurve | None = None

    @model_validator(mode="after")
    def _answers_fit(self) -> Self:
        """One bit per item, no more, and as many of them right as the accuracy says."""
        if self.answers is None:
            return self
        if len(self.answers) != 2 * math.ceil(self.items / 8) or int(self.answers or "0", 16) % (1 << -self.items % 8):
            raise ValueError(f"answers are not those of {self.items} items")
        right = int(self.answers or "0", 16).bit_count()
        if self.accuracy is None or not math.isclose(self.accuracy * self.items, right, abs_tol=1e-6):
            raise ValueError(f"{right} of {self.items} answers are right, which is not the accuracy")
        return self

    @property
    def key(self) -> TaskKey:
        """What this is a score of."""
        return TaskKey(self.task, self.template, self.fewshot, self.weights)

    @property
    def correct(self) -> NDArray[np.bool_] | None:
        """Per item, whether it was answered rightly."""
        if self.answers is None:
            return None
        import numpy as np

        return np.unpackbits(np.frombuffer(bytes.fromhex(self.answers), np.uint8), count=self.items).astype(bool)


def packed_answers(correct: Sequence[bool | None] | NDArray[np.bool_]) -> str | None:
    """What `TaskResult.answers` holds; None where an item has no right answer."""
    if any(value is None for value in correct):
        return None
    import numpy as np

    return np.packbits(np.asarray(correct, dtype=bool)).tobytes().hex()


class Provenance(StoredValue):
    """How the scores were made: the same for every run that is compared."""

    device: str
    device_name: str
    precision: Literal["fp32"]
    stack_width: int
    harness: str
    harness_sha256: str
    versions: dict[str, str]


class Evaluation(Record):
    """evaluation.json: everything that was measured on one trained run."""

    KIND: ClassVar[str] = "evaluation"
    VERSION: ClassVar[int] = 5
    MEND: ClassVar[str] = "`ablationlab evaluate` writes it again"
    id: str
    plan_hash: str
    status: Literal["evaluated", "not-evaluable"]
    why: Literal["", "diverged"] = ""  # result.json says at which step
    checkpoint: str
    weights_sha256: str
    half_checkpoint: str | None = None
    half_weights_sha256: str | None = None
    how: Provenance | None = None
    metrics: dict[str, float | None] = Field(default_factory=dict)
    tokens: TokenScores | None = None
    length: LengthScores | None = None
    throughput: ThroughputScores | None = None
    tasks: tuple[TaskResult, ...] = ()
    samples_sha256: str | None = None

    def find(self, key: TaskKey) -> TaskResult | None:
        """The result of that key, if there is one."""
        return next((result for result in self.tasks if result.key == key), None)


class SuiteTask(StoredValue):
    """A task as it was asked: what it is, and what needs no training to answer."""

    task: str
    template: str
    fewshot: int
    version: str
    task_hash: str
    source: Source
    meaning: str
    items: int
    choices: float | None
    chance: float | None
    # Accuracy of unigram, bigram and trigram models of the training text.
    ngrams: dict[str, float] = Field(default_factory=dict)


class Suite(SealedRecord):
    """evaluation/suite.json: every task that the runs of a study were scored on."""

    KIND: ClassVar[str] = "evaluation-suite"
    MEND: ClassVar[str] = "`ablationlab evaluate` writes it again"
    plan_hash: str
    tasks: tuple[SuiteTask, ...]
    # SHA-256 of items, examples and definitions under tasks/, by path.
    files: dict[str, str] = Field(default_factory=dict)


#: Columns of samples.parquet, in their order; one row per item, key and run.
SAMPLE_COLUMNS = (
    "run",
    "task",
    "template",
    "fewshot",
    "weights",
    "task_hash",
    "item",
    "doc_hash",
    "prompt_hash",
    "target_hash",
    "target",
    "choice_scores",
    "choice_bytes",
    "chosen",
    "correct",
    "correct_norm",
    "log_probability",
    "margin",
    "probability",
    "truncated",
)


EVALUATION, SAMPLES = "evaluation.json", "samples.parquet"


def evaluation_path(run: RunFolder) -> Path:
    return run.path / EVALUATION


def samples_path(run: RunFolder) -> Path:
    return run.path / SAMPLES


def suite_path(results: ResultsFolder) -> Path:
    return results.path / "evaluation" / "suite.json"
