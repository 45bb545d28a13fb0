"""Variants: the named changes that the arms of a study make. Each is a table of overrides of model, training and data.

What a table writes is what the variant declares; which parameters differ follows from the settings. Everything else must be
equal, and comparisons are refused where it is not. The built-in ones are in variants.toml; a study file adds its own.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from ablationlab.core.code import written
from ablationlab.core.errors import CodeError, PlanError
from ablationlab.core.registry import Registry
from ablationlab.model.parameters import matmul_flops_per_token, parameters
from ablationlab.model.weights import Parameter
from ablationlab.records.plan import Declaration
from ablationlab.records.settings import (
    DataConfig,
    ModelConfig,
    Study,
    TrainingConfig,
    VariantTable,
    merged,
    merged_training,
    validated,
)

#: From the model of a regime to a table of overrides, for variants that cannot be written down once for all models.
Compute = Callable[[ModelConfig], Mapping[str, Any]]


@dataclass(frozen=True)
class Variant:
    """A named change. The formula it declares is what enters block 1, unless it says otherwise.

    ``table`` has the whole of it: what it started from is laid under it.
    """

    name: str
    table: VariantTable
    compute: Compute | None = None

    def on(self, model: ModelConfig) -> VariantTable:
        """The overrides for one model."""
        if self.compute is None:
            return self.table
        changes = self.compute(model)
        if not isinstance(changes, Mapping):
            raise CodeError(
                f"{written(self.compute)}: variant {self.name!r} must return a table of overrides, as "
                f'{{"model": {{"layers": 2}}}}, not {type(changes).__name__}'
            )
        return over(validated(VariantTable, dict(changes)), self.table)

    def apply(self, model: ModelConfig) -> ModelConfig:
        return validated(ModelConfig, merged(model.model_dump(mode="json"), self.on(model).model))

    def arm(self, model: ModelConfig, training: TrainingConfig) -> tuple[ModelConfig, TrainingConfig]:
        """The settings of a run of this variant, from those of its regime."""
        changed = merged_training(training.model_dump(mode="json"), self.on(model).training)
        return self.apply(model), validated(TrainingConfig, changed)

    def declared(self, pairs: Iterable[tuple[ModelConfig, ModelConfig]]) -> Declaration:
        """What it may change, in models before and after it; settings and parameters of all of them together.

        ``flops`` speaks of the models: what an optimizer's own products cost is known where a run is planned.
        """
        settings: dict[str, None] = {}
        patterns: dict[str, None] = {}
        flops = False
        for before, after in pairs:
            settings |= dict.fromkeys(self.on(before).settings)
            if before.vocabulary != after.vocabulary:
                settings["model.vocabulary"] = None  # it follows the tokenizer
            patterns |= dict.fromkeys(_patterns(parameters(before), parameters(after)))
            flops = flops or matmul_flops_per_token(before) != matmul_flops_per_token(after)
        return Declaration(
            formula=self.table.formula,
            about=self.table.about,
            settings=tuple(settings),
            parameters=tuple(patterns),
            flops=flops,
            data=self.table.data,
        )


def arm_data(base: DataConfig, variant: Variant | Declaration) -> DataConfig:
    """The text of a variant's runs, from the study's."""
    changes = variant.data if isinstance(variant, Declaration) else variant.table.data
    return validated(DataConfig, merged(base.model_dump(mode="json"), changes)) if changes else base


def _patterns(before: Iterable[Parameter], after: Iterable[Parameter]) -> list[str]:
    """Names of the parameters that differ in presence, shape or start; what differs in every block is one pattern."""
    ours, theirs = ({parameter.name: parameter for parameter in model} for model in (before, after))
    names = [name for name in dict.fromkeys([*ours, *theirs]) if ours.get(name) != theirs.get(name)]
    blocks: dict[str, set[int]] = {}
    everywhere: dict[str, set[int]] = {}
    for name in dict.fromkeys([*ours, *theirs]):
        if match := _BLOCK.match(name):
            everywhere.setdefault(_starred(name), set()).add(int(match[1]))
            if name in names:
                blocks.setdefault(_starred(name), set()).add(int(match[1]))
    whole = {pattern for pattern, numbers in blocks.items() if numbers == everywhere[pattern]}
    return list(dict.fromkeys(_starred(name) if _starred(name) in whole else name for name in names))


_BLOCK = re.compile(r"blocks\.(\d+)\.")


def _starred(name: str) -> str:
    return _BLOCK.sub("blocks.*.", name)


def over(base: VariantTable, table: VariantTable) -> VariantTable:
    """One table laid over another; the words are the upper one's, for those of the other would not be true of it."""
    return VariantTable(
        about=table.about,
        formula=table.formula,
        model=merged(base.model, table.model),
        training=merged_training(base.training, table.training),
        data=merged(base.data, table.data),
    )


VARIANTS: Registry[Variant] = Registry("variant")


def resolved(name: str, tables: Mapping[str, VariantTable], seen: tuple[str, ...] = ()) -> Variant:
    """The variant of that name: one that *tables* define, or a known one."""
    if name not in tables:
        return VARIANTS[name]
    if name in seen:
        raise PlanError(f"starts from itself: {' -> '.join([*seen, name])}")
    table = tables[name]
    if not table.about:
        words = ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in table.settings.items())
        about = f"{table.base} with {words}" if table.base is not None else words
        table = table.model_copy(update={"about": about})
    if table.base is None:
        return Variant(name, table)
    base = resolved(table.base, tables, (*seen, name))
    return Variant(name, over(base.table, table), base.compute)


def variants_of(study: Study) -> dict[str, Variant]:
    return {name: resolved(name, study.tables) for name in study.variants}


def is_baseline_again(study: Study, name: str) -> bool:
    """Whether an arm is the baseline once more, on purpose: an A/A study checks the instrument."""
    again, table = name != study.baseline, study.tables.get(name)
    baseline = resolved(study.baseline, study.tables) if again and table is not None and table.empty else None
    return baseline is not None and baseline.compute is None and not baseline.table.settings


def _load_builtin() -> None:
    text = files("ablationlab.study").joinpath("variants.toml").read_text(encoding="utf-8")
    tables = {name: validated(VariantTable, table) for name, table in tomllib.loads(text).items()}
    for name in tables:
        VARIANTS.add(name, resolved(name, tables))


_load_builtin()
