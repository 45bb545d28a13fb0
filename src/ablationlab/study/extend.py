"""What a study's own code registers: the decorators of ``import ablationlab as lab``. No torch.

They take effect while a study that lists the file under ``use`` is worked on; anywhere else the file is an ordinary module.
docs/variants.md has an example of each.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from ablationlab.core.code import check_signature, refuse, register
from ablationlab.core.registry import Registry
from ablationlab.data.sources import SOURCES, Source
from ablationlab.model.parts import OPTIONS, PARTS, BlockPart, Head, PositionScheme, ResidualNorm
from ablationlab.model.rules import OPTIMIZERS, SCHEDULES, UpdateRule
from ablationlab.records.metrics import METRICS, Metric
from ablationlab.records.probes import Measure, ProbeDefinition
from ablationlab.records.settings import VariantTable
from ablationlab.study.probes import PROBES, Probe
from ablationlab.study.trainers import TRAINERS, RegisteredTrainer
from ablationlab.study.variants import VARIANTS, Variant
from ablationlab.tasks.suite import KINDS, TaskKind, Template

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C")

PartName = Literal["attention", "mlp", "norm", "position", "head", "loss"]
_BASES: Mapping[str, type] = {
    "attention": BlockPart,
    "mlp": BlockPart,
    "norm": ResidualNorm,
    "position": PositionScheme,
    "head": Head,
}


def variant(name: str, *, about: str = "", formula: str = "") -> Callable[[F], F]:
    """A variant whose overrides depend on the model: ``(model) -> {"model": {...}, "training": {...}}``."""

    def made(function: F) -> Variant:
        return Variant(name, VariantTable(about=about or (function.__doc__ or "").strip(), formula=formula), function)

    return _decorator("variant", name, 1, VARIANTS, made)


def part(
    kind: PartName, name: str, *, options: Mapping[str, bool | int | float | str] | None = None
) -> Callable[[C], C]:
    """A part of the model: a class like those of model/parts.py, or for "loss" a function (logits, targets, model) -> R.

    *options* are settings of its own with their defaults: `option` reads them, ``model.options`` sets them.
    """

    def decorate(thing: C) -> C:
        if kind not in PARTS:
            raise refuse(f"unknown kind of part {kind!r}; allowed: {', '.join(PARTS)}")
        if kind == "loss":
            register(PARTS[kind], name, thing, 3)
        else:
            register(PARTS[kind], name, _made(thing, _BASES[kind], kind, name))
        for option, default in (options or {}).items():
            register(OPTIONS, option, default)
        return thing

    return decorate


def _made(thing: Any, base: type, kind: str, name: str) -> Any:
    if not (isinstance(thing, type) and issubclass(thing, base)):
        raise refuse(f"{kind} {name!r} must be a class that inherits from lab.{base.__name__}")
    if kind in ("attention", "mlp"):
        thing.name = getattr(thing, "name", None) or {"attention": "attn"}.get(kind, kind)  # type: ignore[attr-defined]
        thing.group = getattr(thing, "group", None) or kind  # type: ignore[attr-defined]
    missing = sorted(getattr(thing, "__abstractmethods__", ()))
    if missing:
        raise refuse(f"{kind} {name!r} lacks {', '.join(missing)}")
    for method, theirs in vars(base).items():
        ours = inspect.getattr_static(thing, method)
        if inspect.isfunction(theirs) and ours is not theirs:
            if not inspect.isfunction(ours):
                raise refuse(f"{method} of {kind} {name!r} is not a method")
            check_signature(ours, len(inspect.signature(theirs).parameters), f"{method} of {kind} {name!r}, with self,")
    check_signature(thing, 0, f"the class of {kind} {name!r}")
    return thing()


def optimizer(name: str, *, state: tuple[str, ...] = ()) -> Callable[[F], F]:
    """An update rule ``(step: lab.OptimizerStep) -> new weights``; *state* names what it keeps between steps."""

    def made(function: F) -> UpdateRule:
        for part_name in state:
            if not part_name.isidentifier() or part_name in ("weights", "average"):
                raise refuse(f"state {part_name!r} of optimizer {name!r} is no usable name")
        return UpdateRule(tuple(state), function)

    return _decorator("optimizer", name, 1, OPTIMIZERS, made)


def schedule(name: str) -> Callable[[F], F]:
    """A learning-rate schedule ``(training, step, steps) -> factor``; steps count from 1."""
    return _decorator("schedule", name, 3, SCHEDULES, lambda function: function)


def metric(
    name: str,
    *,
    meaning: str,
    direction: Literal["lower", "higher"] | None,
    unit: str = "1",
    family: str = "own",
    transform: Literal["identity", "log"] = "identity",
) -> Callable[[F], F]:
    """A number of every finished run: ``(run: lab.FinishedRun) -> float``."""

    def made(function: F) -> Metric:
        if direction not in ("lower", "higher", None):
            raise refuse(f"direction of metric {name!r} is {direction!r}; allowed: 'lower', 'higher', None")
        return Metric(name, meaning, unit, direction, family, transform=transform)

    return _decorator("metric", name, 1, METRICS, made)


def probe(name: str, *, meaning: str, measures: Mapping[str, str]) -> Callable[[F], F]:
    """Something measured during training: ``(snapshot) -> list[lab.Reading]``; *measures*: their names and meanings."""
    declared = tuple(Measure(measure, words) for measure, words in measures.items())
    probe = Probe(ProbeDefinition(meaning, declared), lambda model: None)
    return _decorator("probe", name, 1, PROBES, lambda function: probe)


def task(name: str, *templates: Template, meaning: str) -> Callable[[F], F]:
    """A multiple-choice task: ``(text to cut from, training text, room, generator) -> items``."""
    worded = templates or (Template("plain", delimiter=""),)
    return _decorator("task", name, 4, KINDS, lambda function: TaskKind(name, meaning, worded, function))


def trainer(name: str, *, metrics: Mapping[str, Literal["lower", "higher"]]) -> Callable[[F], F]:
    """The study's own training code: ``(run: lab.Run) -> {metric: value}``; *metrics*: their names and better directions."""

    def made(function: F) -> RegisteredTrainer:
        if not metrics or not {*metrics.values()} <= {"lower", "higher"}:
            raise refuse(
                f"metrics of trainer {name!r} are {dict(metrics)!r}; each needs 'lower' or 'higher', the better one"
            )
        return RegisteredTrainer(name, function, dict(metrics))

    return _decorator("trainer", name, 1, TRAINERS, made)


def corpus(name: str, *, meaning: str) -> Callable[[F], F]:
    """A text: ``() -> str``. It is made when a study asks for it, and pinned by its checksum in the plan."""
    return _decorator(
        "corpus", name, 0, SOURCES, lambda function: Source(name, meaning, sha256="", size=0, make=function)
    )


def _decorator(
    kind: str, name: Any, arguments: int, registry: Registry[Any], made: Callable[[F], Any]
) -> Callable[[F], F]:
    """Registers a function, which must take so many arguments, and what is *made* of it."""
    if not isinstance(name, str):  # ``@lab.metric`` without its parentheses would register nothing
        raise refuse(f"@lab.{kind} needs a name, as in @lab.{kind}('mine'), not {name!r}")

    def decorate(function: F) -> F:
        register(Registry(f"function of a {kind}"), name, function, arguments)
        register(registry, name, made(function))
        return function

    return decorate
