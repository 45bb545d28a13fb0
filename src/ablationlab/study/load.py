"""The study file: one TOML document, validated whole before anything runs.

`load_study` reports every problem at once, each with its key, its value, what is allowed and the nearest match.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from ablationlab.core.errors import Problem, StudyError
from ablationlab.core.problems import problems_of
from ablationlab.data.sources import looks_like_path
from ablationlab.records.folders import slug
from ablationlab.records.metrics import METRICS
from ablationlab.records.run import PlannedRun
from ablationlab.records.settings import (
    DEFAULT_REGIME,
    MOST_SEEDS,
    SPIKE_SCORE,
    SWEEP,
    TUNED,
    WORSE_THAN_START,
    Count,
    DataConfig,
    EvaluationConfig,
    ExecutionConfig,
    Fraction,
    Frozen,
    ModelConfig,
    Natural,
    NonNegative,
    Positive,
    TrainingConfig,
    merged,
    merged_model,
    merged_training,
    seed_list,
    validated,
)
from ablationlab.records.storage import content_hash
from ablationlab.study.checks import cross_checks
from ablationlab.study.probes import expanded
from ablationlab.study.variants import VARIANTS


class Regime(Frozen):
    """Named overrides of the model or the training; everything else is the study's."""

    meaning: str = ""
    model: dict[str, Any] = Field(default_factory=dict)
    training: dict[str, Any] = Field(default_factory=dict)


class Sweep(Frozen):
    """Learning rates that every variant is trained at, in the default regime, on every seed of the sweep.

    ``selection_seeds`` choose each variant's best rate; it is judged on ``seeds`` (the study's, unless given).
    """

    lr: Annotated[tuple[Positive, ...], Field(min_length=1)]
    selection_seeds: tuple[Natural, ...] = ()
    seeds: Annotated[tuple[Natural, ...], Field(min_length=1)] | None = None

    @field_validator("selection_seeds", "seeds", mode="before")
    @classmethod
    def _seed_ranges(cls, seeds: Any) -> Any:
        return _seeds(seeds)

    @field_validator("lr", "selection_seeds", "seeds")
    @classmethod
    def _no_duplicates(cls, values: tuple[float, ...] | None) -> tuple[float, ...] | None:
        return values if values is None else _unique(values)


class Criterion(Frozen):
    """One registered question. Without ``contrast`` it is asked of every variant against the baseline."""

    metric: str
    regime: str = DEFAULT_REGIME
    contrast: tuple[str, str] | None = None
    role: Literal["primary", "secondary", "guard"] = "secondary"
    test: Literal["paired-t", "sign-flip", "bootstrap", "wilcoxon"] = "paired-t"
    interval: Literal["paired-t", "percentile", "bca", "bootstrap-t"] = "paired-t"
    alpha: Fraction = 0.05
    correction: Literal["holm", "bonferroni", "benjamini-hochberg", "none"] = "holm"
    smallest_effect: Positive | None = None
    margin: NonNegative | None = None

    @field_validator("metric")
    @classmethod
    def _metric_exists(cls, name: str) -> str:
        if METRICS[name].level == "step":
            raise ValueError(f"{name!r} is a number per step; a criterion needs one per run or per item")
        return name


class Stability(Frozen):
    """When a run counts as unstable: it diverged, its spike score (see `stability.py`) is above ``spike_score``, or its final
    validation loss is above ``worse_than_start`` times its first loss, for such a run has failed, however smoothly.

    ``diverged`` is the rule for metrics that a diverged run has no value of: compare the surviving pairs and say so
    ("survivors"), or compare nothing in that regime and contrast ("refuse").
    """

    spike_score: Positive = SPIKE_SCORE
    worse_than_start: Annotated[float, Field(ge=1)] | Literal["off"] = WORSE_THAN_START
    diverged: Literal["survivors", "refuse"] = "survivors"
    # Training loss, in nats, of the metric steps_to_loss; without one the metric is not measured.
    loss_threshold: Positive | None = None


class Study(Frozen):
    """A whole study, resolved: what is asked, what is trained, how it will be judged."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    question: str = ""
    baseline: str
    variants: Annotated[tuple[str, ...], Field(min_length=1)]
    contrasts: tuple[tuple[str, str], ...] = ()
    seeds: Annotated[tuple[Natural, ...], Field(min_length=1)]
    model: ModelConfig
    training: TrainingConfig
    data: DataConfig = DataConfig()
    execution: ExecutionConfig = ExecutionConfig()
    regimes: dict[str, Regime] = Field(default_factory=dict)
    sweep: Sweep | None = None
    evaluation: EvaluationConfig = EvaluationConfig()
    # Probe -> its interval in steps; "all" stands for every probe that the study's models have something to show to.
    probes: dict[str, Count] = Field(default_factory=dict)
    criteria: tuple[Criterion, ...] = ()
    stability: Stability = Stability()
    # Metrics, or families of metrics, that break a tie on the primary metric, in this order.
    tie_breakers: tuple[Annotated[str, Field(min_length=1)], ...] = ("calibration", "throughput")

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str) -> str:
        if not slug(name):
            raise ValueError("the name needs at least one letter or digit, since it names the results folder")
        return name

    @field_validator("seeds", mode="before")
    @classmethod
    def _seed_ranges(cls, seeds: Any) -> Any:
        return _seeds(seeds)

    @field_validator("seeds", "variants", "tie_breakers")
    @classmethod
    def _no_duplicates(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return _unique(values)

    @field_validator("baseline")
    @classmethod
    def _baseline_exists(cls, name: str) -> str:
        VARIANTS[name]
        return name

    @field_validator("regimes")
    @classmethod
    def _regime_names(cls, regimes: dict[str, Regime]) -> dict[str, Regime]:
        for name, regime in regimes.items():
            if slug(name) != name:
                raise ValueError(f"regime name {name!r}: use lower-case letters, digits and dashes")
            if name == DEFAULT_REGIME and (regime.model or regime.training):
                raise ValueError("the regime 'default' is the study without overrides; give this one another name")
            if name in (SWEEP, TUNED):
                raise ValueError(f"the name {name!r} is taken by what a [sweep] gives; give this regime another name")
        return regimes

    @field_validator("variants")
    @classmethod
    def _baseline_is_an_arm(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        baseline = info.data.get("baseline")  # absent when it is wrong itself
        if baseline is not None and baseline not in names:
            raise ValueError(f"the baseline {baseline!r} must be one of them")
        return names

    @property
    def hash(self) -> str:
        """Hash of the whole resolved study.

        Defaults are left out, so that a version with more settings still knows it; so is the folder of a corpus
        given by path, which may move: the plan pins the text itself.
        """
        body = self.model_dump(mode="json", exclude_defaults=True)
        if looks_like_path(self.data.corpus):
            body["data"]["corpus"] = f"path {Path(self.data.corpus).name}"
        if self.data.mixture is not None:
            body["data"]["mixture"] = [
                [f"path {Path(name).name}" if looks_like_path(name) else name, weight]
                for name, weight in self.data.mixture.items()
            ]
        return content_hash(body)

    @property
    def criteria_hash(self) -> str:
        """Hash of what was registered: criteria, contrasts, sweep selection and the arms they speak of."""
        fields = {"baseline", "variants", "contrasts", "seeds", "sweep", "criteria", "stability", "tie_breakers"}
        return content_hash(self.model_dump(mode="json", include=fields, exclude_defaults=True))

    def regime_names(self) -> tuple[str, ...]:
        """The default regime, then the named ones."""
        return (DEFAULT_REGIME, *(name for name in self.regimes if name != DEFAULT_REGIME))

    def owns(self, run: PlannedRun) -> bool:
        """Whether a run is one of the study's own cells: its seeds, at the rate of its regime; the others are the sweep's."""
        return run.seed in self.seeds and run.lr == self.in_regime(run.regime)[1].lr

    def judging_seeds(self) -> tuple[int, ...]:
        """The seeds of the sweep that variants are judged on, each at its best rate; none without a sweep."""
        if self.sweep is None:
            return ()
        return self.sweep.seeds if self.sweep.seeds is not None else self.seeds

    def sweep_seeds(self) -> tuple[int, ...]:
        """Every seed that is trained at every rate of the sweep: those that choose, then those that judge."""
        return () if self.sweep is None else (*self.sweep.selection_seeds, *self.judging_seeds())

    def own_seeds(self) -> dict[str, tuple[int, ...]]:
        """The seeds behind the comparisons of a sweep, by the name they stand under."""
        if self.sweep is None:
            return {}
        return {SWEEP: self.sweep_seeds()} | ({TUNED: self.judging_seeds()} if self.sweep.selection_seeds else {})

    def probe_intervals(self) -> dict[str, int]:
        """Interval by probe, with ``all`` written out."""
        models = [
            VARIANTS[variant].apply(self.in_regime(regime)[0])
            for variant in self.variants
            for regime in self.regime_names()
        ]
        return expanded(self.probes, models)

    def in_regime(self, name: str) -> tuple[ModelConfig, TrainingConfig]:
        """Model and training with one regime's overrides applied."""
        if name == DEFAULT_REGIME:
            return self.model, self.training
        regime = self.regimes[name]
        return (
            validated(ModelConfig, merged_model(self.model.model_dump(mode="json"), regime.model)),
            validated(TrainingConfig, merged_training(self.training.model_dump(mode="json"), regime.training)),
        )


def _seeds(given: Any) -> Any:
    seeds = seed_list(given)
    if isinstance(seeds, dict):
        raise ValueError(f"a row of seeds is {{first = 1, count = 1000}}, two whole numbers, count 1 to {MOST_SEEDS}")
    # A value that went through a validator of ours no longer counts as JSON, where a list is a tuple.
    return tuple(seeds) if isinstance(seeds, list) else seeds


def _unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    repeated = sorted(value for value, count in Counter(values).items() if count > 1)
    if repeated:
        raise ValueError(f"given more than once: {', '.join(map(str, repeated))}")
    return values


def parse_study(data: Mapping[str, Any], source: str = "study") -> Study:
    """Validate a study given as nested tables; raises `StudyError` with every problem."""
    problems: list[Problem] = []
    study = None
    try:
        study = validated(Study, data)
    except ValidationError as error:
        problems += problems_of(error, Study, data)
    problems += cross_checks(data)
    if problems:
        raise StudyError(source, list(dict.fromkeys(problems)))
    assert study is not None
    return study


def load_study(path: Path, overrides: Iterable[str] = ()) -> Study:
    """Read, override and validate a study file; a corpus given as a path is taken relative to the file."""
    try:
        text = path.read_bytes().decode()
        data = tomllib.loads(text)
    except FileNotFoundError:
        raise StudyError(str(path), [Problem("", "no such study file")]) from None
    except IsADirectoryError:
        raise StudyError(str(path), [Problem("", "is a folder, not a study file")]) from None
    except OSError as error:
        raise StudyError(str(path), [Problem("", f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise StudyError(str(path), [Problem("", f"is not UTF-8 at byte {error.start}")]) from error
    except tomllib.TOMLDecodeError as error:
        raise StudyError(str(path), [Problem("", f"is not TOML: {error}")]) from error
    _resolve_corpus(data, path.parent, str(path))
    wrong = [problem for override in overrides for problem in _apply_override(data, override)]
    if wrong:
        raise StudyError("--set", wrong)
    _resolve_corpus(data, Path.cwd(), "--set")
    return parse_study(data, str(path))


def _resolve_corpus(data: dict[str, Any], folder: Path, source: str) -> None:
    """Make corpora given by path absolute: in a file they are relative to the file, in --set to the current folder."""
    table = data.get("data")
    if not isinstance(table, dict):
        return
    corpus, mixture = table.get("corpus"), table.get("mixture")
    if isinstance(corpus, str):
        table["corpus"] = _resolved(corpus, folder, source, "data.corpus")
    if isinstance(mixture, dict):
        table["mixture"] = {_resolved(name, folder, source, "data.mixture"): mixture[name] for name in mixture}


def _resolved(corpus: str, folder: Path, source: str, key: str) -> str:
    if not looks_like_path(corpus):
        return corpus
    try:
        return str((folder / Path(corpus).expanduser()).resolve())
    except (RuntimeError, ValueError, OSError) as error:
        raise StudyError(source, [Problem(key, f"is no usable path: {error}", repr(corpus))]) from error


def _apply_override(data: dict[str, Any], override: str) -> list[Problem]:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        return [Problem(repr(override), "expected key=value, for example --set training.steps=100")]
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    table = data
    if parts[-1] in ("steps", "tokens") and parts[-2:-1] == ["training"]:
        _forget_budget(data, parts[:-1])
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            return [Problem(repr(override), f"{part!r} is a value, not a table")]
    if isinstance(value, dict) and isinstance(table.get(parts[-1]), dict):
        value = merged(table[parts[-1]], value)
    table[parts[-1]] = value
    return []


def _forget_budget(data: dict[str, Any], path: Sequence[str]) -> None:
    """Steps given on the command line take the place of tokens in the file, and the other way round."""
    table: Any = data
    for part in path:
        table = table.get(part) if isinstance(table, dict) else None
    if isinstance(table, dict):
        for name in ("steps", "tokens"):
            table.pop(name, None)
