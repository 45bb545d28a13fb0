"""The study file: one TOML document, validated whole before anything runs.

`load_study` reports every problem at once, each with its key, its value, what is allowed and the nearest match.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator

from ablationlab.config import (
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
)
from ablationlab.data.sources import SOURCES, looks_like_path
from ablationlab.data.tokenizers import TOKENIZERS
from ablationlab.errors import Problem, StudyError
from ablationlab.metrics import METRICS
from ablationlab.problems import problems_of
from ablationlab.records import slug
from ablationlab.stability import SPIKE_SCORE
from ablationlab.storage import content_hash
from ablationlab.variants import VARIANTS

DEFAULT_REGIME = "default"
M = TypeVar("M", bound=BaseModel)


class Regime(Frozen):
    """Named overrides of the model or the training; everything else is the study's."""

    meaning: str = ""
    model: dict[str, Any] = Field(default_factory=dict)
    training: dict[str, Any] = Field(default_factory=dict)


class Sweep(Frozen):
    """Learning rates that every variant is trained at; ``selection_seeds`` choose each variant's best rate."""

    lr: Annotated[tuple[Positive, ...], Field(min_length=1)]
    selection_seeds: tuple[Natural, ...] = ()

    @field_validator("lr", "selection_seeds")
    @classmethod
    def _no_duplicates(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        return _unique(values)


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
    """When a run counts as unstable: it diverged, or its spike score (see `stability.py`) is above ``spike_score``."""

    spike_score: Positive = SPIKE_SCORE


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
        """Hash of the whole resolved study."""
        return content_hash(self.model_dump(mode="json"))

    @property
    def criteria_hash(self) -> str:
        """Hash of what was registered: criteria, contrasts, sweep selection and the arms they speak of."""
        fields = {"baseline", "variants", "contrasts", "seeds", "sweep", "criteria", "stability", "tie_breakers"}
        return content_hash(self.model_dump(mode="json", include=fields))

    def regime_names(self) -> tuple[str, ...]:
        """The default regime, then the named ones."""
        return (DEFAULT_REGIME, *(name for name in self.regimes if name != DEFAULT_REGIME))

    def in_regime(self, name: str) -> tuple[ModelConfig, TrainingConfig]:
        """Model and training with one regime's overrides applied."""
        if name == DEFAULT_REGIME:
            return self.model, self.training
        regime = self.regimes[name]
        return (
            validated(ModelConfig, _merged_model(self.model.model_dump(mode="json"), regime.model)),
            validated(TrainingConfig, _merged_budget(self.training.model_dump(mode="json"), regime.training)),
        )

    def steps(self, model: ModelConfig, training: TrainingConfig) -> int:
        """Number of steps of a run."""
        if training.steps is not None:
            return training.steps
        assert training.tokens is not None
        return training.tokens // (training.batch * model.context)


def _unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    repeated = sorted({value for value in values if values.count(value) > 1})
    if repeated:
        raise ValueError(f"given more than once: {', '.join(map(str, repeated))}")
    return values


def validated(kind: type[M], data: Any) -> M:
    """Read a settings table from plain values, by the rules of a study file."""
    # Through JSON, so that a TOML file and a plan.lock are read by the same strict rules (a list may be a tuple).
    return kind.model_validate_json(json.dumps(data, default=_no_json))


def _no_json(value: Any) -> Any:
    # TOML's dates and times: no setting is one, so they arrive as a table, which no setting takes for a text.
    return {type(value).__name__: str(value)}


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        inner = merged.get(key)
        merged[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def _merged_model(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    # A regime that names a preset replaces the study's model: half of one shape and half of another is nobody's wish.
    return dict(over) if "preset" in over else _merged(base, over)


def _merged_budget(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    # A regime that gives tokens replaces a study's steps, and the other way round.
    kept = {k: v for k, v in base.items() if not (k in ("steps", "tokens") and {"steps", "tokens"} & over.keys())}
    return _merged(kept, over)


def parse_study(data: Mapping[str, Any], source: str = "study") -> Study:
    """Validate a study given as nested tables; raises `StudyError` with every problem."""
    problems: list[Problem] = []
    study = None
    try:
        study = validated(Study, data)
    except ValidationError as error:
        problems += problems_of(error, Study, data)
    problems += _unknown_variants(data)
    problems += _unknown_data(data)
    problems += _regime_problems(data)
    if study is not None and not problems:
        problems += _cross_checks(study)
    if problems:
        raise StudyError(source, _without_repeats(problems))
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
    """Make a corpus given by path absolute: in a file it is relative to the file, in --set to the current folder."""
    table = data.get("data")
    corpus = table.get("corpus") if isinstance(table, dict) else None
    if isinstance(table, dict) and isinstance(corpus, str) and looks_like_path(corpus):
        try:
            table["corpus"] = str((folder / Path(corpus).expanduser()).resolve())
        except (RuntimeError, ValueError, OSError) as error:
            raise StudyError(source, [Problem("data.corpus", f"is no usable path: {error}", repr(corpus))]) from error


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
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            return [Problem(repr(override), f"{part!r} is a value, not a table")]
    if isinstance(value, dict) and isinstance(table.get(parts[-1]), dict):
        value = _merged(table[parts[-1]], value)
    table[parts[-1]] = value
    return []


def _unknown_variants(data: Mapping[str, Any]) -> list[Problem]:
    names = data.get("variants")
    if not isinstance(names, Sequence) or isinstance(names, str):
        return []
    return [
        Problem.unknown(f"variants[{position}]", "variant", name, VARIANTS)
        for position, name in enumerate(names)
        if isinstance(name, str) and name not in VARIANTS
    ]


def _unknown_data(data: Mapping[str, Any]) -> list[Problem]:
    table = data.get("data")
    corpus, tokenizer = (table.get("corpus"), table.get("tokenizer")) if isinstance(table, dict) else (None, None)
    found = []
    if isinstance(corpus, str) and not looks_like_path(corpus) and corpus not in SOURCES:
        found.append(Problem.unknown("data.corpus", "corpus", corpus, [*SOURCES, "path/to/file.txt or folder/"]))
    if isinstance(tokenizer, str) and tokenizer not in TOKENIZERS:
        found.append(Problem.unknown("data.tokenizer", "tokenizer", tokenizer, TOKENIZERS))
    return found


def _regime_problems(data: Mapping[str, Any]) -> list[Problem]:
    """Validate each regime's overrides where they stand, so that the message names the regime's own key."""
    regimes = data.get("regimes")
    if not isinstance(regimes, dict):
        return []
    found: list[Problem] = []
    for name, regime in regimes.items():
        if not isinstance(regime, dict):
            continue
        for part, kind, merge in (
            ("model", ModelConfig, _merged_model),
            ("training", TrainingConfig, _merged_budget),
        ):
            base, over = data.get(part), regime.get(part)
            if not isinstance(base, dict) or not isinstance(over, dict) or not over:
                continue
            before = set(map(str, _problems(kind, base, part)))
            merged = _problems(kind, merge(base, over), part)
            found += [problem.under(f"regimes.{name}") for problem in merged if str(problem) not in before]
    return found


def _problems(kind: type[BaseModel], data: Mapping[str, Any], key: str) -> list[Problem]:
    try:
        validated(kind, data)
    except ValidationError as error:
        return [problem.under(key) for problem in problems_of(error, kind, data)]
    return []


def _cross_checks(study: Study) -> list[Problem]:
    """Checks between tables, on a study whose every table is right by itself."""
    found: list[Problem] = []
    for regime in study.regime_names():
        model, training = study.in_regime(regime)
        key = "training" if regime == DEFAULT_REGIME else f"regimes.{regime}.training"
        per_step = training.batch * model.context
        if training.tokens is not None and training.tokens % per_step:
            low = training.tokens // per_step * per_step
            near = f"{max(low, per_step)} or {max(low, per_step) + per_step}"
            allowed = f"multiples of batch x context = {per_step}, such as {near}"
            found.append(Problem(f"{key}.tokens", "is no whole number of steps", str(training.tokens), allowed))
            continue
        steps = study.steps(model, training)
        if training.schedule == "warmup-cosine" and training.warmup >= steps:
            found.append(
                Problem(f"{key}.warmup", "must be shorter than the run", str(training.warmup), f"below {steps}")
            )
    arms = [(f"contrasts[{i}]", pair) for i, pair in enumerate(study.contrasts)]
    for i, criterion in enumerate(study.criteria):
        key = f"criteria[{i}]"
        if criterion.regime not in study.regime_names():
            found.append(Problem.unknown(f"{key}.regime", "regime", criterion.regime, study.regime_names()))
        if criterion.contrast is not None:
            arms.append((f"{key}.contrast", criterion.contrast))
    asked = [(c.metric, c.regime, frozenset(c.contrast or ())) for c in study.criteria]
    for i, question in enumerate(asked):
        if (first := asked.index(question)) != i:
            found.append(Problem(f"criteria[{i}]", f"asks again what criteria[{first}] asks", question[0]))
    for key, pair in arms:
        found += [
            Problem.unknown(key, "variant of this study", n, study.variants) for n in pair if n not in study.variants
        ]
        if pair[0] == pair[1]:
            found.append(Problem(key, "compares a variant with itself", pair[0]))
    if study.sweep is not None:
        shared = sorted(set(study.sweep.selection_seeds) & set(study.seeds))
        if shared:
            text = "a rate must be chosen on other seeds than those it is judged on"
            found.append(Problem("sweep.selection_seeds", text, ", ".join(map(str, shared))))
    return found


def _without_repeats(problems: Sequence[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))
