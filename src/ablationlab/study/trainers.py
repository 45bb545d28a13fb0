"""Studies whose runs the user's own code trains: what a study file says of it, and the plan of such a study.

``trainer = "NAME"`` is a function that a ``use`` file registers with `trainer`; ``command = [...]`` is any program. The
tables [model], [training] and [data] are settings that only that code understands: regimes and variants lay theirs over them.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from ablationlab.core.errors import PlanError, Problem, nearest
from ablationlab.core.processes import usable_cores
from ablationlab.core.registry import Registry
from ablationlab.records.environment import Drift, changes, current
from ablationlab.records.metrics import METRICS, Direction, Metric
from ablationlab.records.plan import Declaration, Execution, Plan, PlannedRun
from ablationlab.records.settings import DEFAULT_REGIME, Study, Trainer, flattened, merged
from ablationlab.records.storage import content_hash, timestamp
from ablationlab.study.variants import Variant, is_baseline_again, variants_of

#: Tables of a study file that belong to the user's own trainer.
TABLES = ("model", "training", "data")
#: Tables that describe what this package's own loop does.
_OURS = ("sweep", "noise", "evaluation", "probes", "execution", "budget")
#: Keys of a study file that say how its own trainer is called and read.
TRAINER_KEYS = ("command", "directory", "metrics", "patterns", "timeout")
#: How the names of programs end that a command names with their interpreter.
SCRIPTS = (".py", ".sh")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
#: Placeholders of a command beside the settings themselves.
PLACES = ("seed", "variant", "regime", "folder", "settings", "python", "arguments")


@dataclass(frozen=True)
class RegisteredTrainer:
    """A function that trains one run and returns its metrics."""

    name: str
    train: Callable[[Any], Mapping[str, float]]
    metrics: Mapping[str, Direction]


TRAINERS: Registry[RegisteredTrainer] = Registry("trainer")


def has_own_trainer(data: Mapping[str, Any]) -> bool:
    """Whether a study file's tables name its own trainer."""
    return data.get("trainer") is not None or data.get("command") is not None


def with_trainer(data: Mapping[str, Any]) -> dict[str, Any]:
    """A study file's tables, where its own trainer is named: what belongs to the trainer stands under ``trainer``."""
    if not has_own_trainer(data) or isinstance(data.get("trainer"), Mapping):
        return dict(data)
    moved = {key: value for key, value in data.items() if key not in (*TABLES, "trainer", *TRAINER_KEYS)}
    own: dict[str, Any] = {"settings": {name: data[name] for name in TABLES if name in data}}
    own |= {key: data[key] for key in TRAINER_KEYS if key in data}
    if data.get("trainer") is not None:
        own["name"] = data["trainer"]
        if isinstance(data["trainer"], str) and data["trainer"] in TRAINERS:
            own.setdefault("metrics", dict(TRAINERS[data["trainer"]].metrics))
    variants = data.get("variants")
    if isinstance(variants, Mapping):  # here an empty table is an arm without changes, whatever its name
        moved |= {"variants": list(variants), "tables": dict(variants)}
    return {"tie_breakers": [], **moved, "trainer": own}


def trainer_problems(data: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with a study of the user's own trainer, or with one that lacks its model."""
    own = data.get("trainer")
    if not isinstance(own, Mapping):
        return [Problem(key, "is missing") for key in ("model", "training") if data.get(key) is None]
    problems = [
        Problem(key, "is about runs that this package trains; a study with its own trainer has no such table")
        for key in _OURS
        if data.get(key)
    ]
    tables = data.get("tables")
    known = list(tables) if isinstance(tables, Mapping) else []
    listed = data.get("variants")
    for variant in listed if isinstance(listed, list | tuple) else ():
        if variant not in known:
            problems.append(
                Problem(f"variants.{variant}", "needs its own table: built-in variants change this package's model")
            )
    if isinstance(data.get("baseline"), str) and known and data["baseline"] not in known:
        problems.append(Problem.unknown("baseline", "variant", data["baseline"], known))
    problems += _key_problems(data, own)
    name, command = own.get("name"), own.get("command")
    if isinstance(name, str) and name not in TRAINERS:
        problems.append(Problem.unknown("trainer", "trainer", name, list(TRAINERS)))
    if isinstance(command, Sequence) and not isinstance(command, str):
        problems += _program_problems(
            [word for word in command if isinstance(word, str)], str(own.get("directory", "."))
        )
        settings = own.get("settings")
        keys = list(flattened(settings)) if isinstance(settings, Mapping) else []
        problems += _placeholder_problems([word for word in command if isinstance(word, str)], keys)
    return problems


def _key_problems(data: Mapping[str, Any], own: Mapping[str, Any]) -> list[Problem]:
    """Settings of variants and regimes that the arms they are compared with lack: misspelt, or without a value there."""

    def keys_of(table: Any) -> list[str]:
        tables = {name: table[name] for name in TABLES if name in table} if isinstance(table, Mapping) else {}
        return list(flattened(tables))

    tables, regimes = _mapping(data.get("tables")), _mapping(data.get("regimes"))
    known = keys_of(own.get("settings"))
    common = [
        key for key in keys_of(next(iter(regimes.values()), {})) if all(key in keys_of(r) for r in regimes.values())
    ]
    known += [key for key in common if key not in known]
    written = {f"regimes.{name}": keys_of(regime) for name, regime in regimes.items()}
    problems = _absent_keys(written, known, "in every regime, or in the study's own tables")
    baseline = data.get("baseline")
    while isinstance(baseline, str) and isinstance(tables.get(baseline), Mapping):
        known += keys_of(tables[baseline])
        above, tables = (
            tables[baseline].get("from"),
            {name: table for name, table in tables.items() if name != baseline},
        )
        baseline = above
    written = {f"variants.{name}": keys_of(table) for name, table in tables.items()}
    return problems + _absent_keys(written, known, "for the baseline too, in the study's own tables")


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def nearest_key(key: str, known: Sequence[str]) -> str | None:
    """The setting most like one, by its name without the table, which would make all settings of a table alike."""
    by_name = {name.rpartition(".")[2]: name for name in known}
    guess = nearest(key.rpartition(".")[2], by_name)
    return None if guess is None else by_name[guess]


def _absent_keys(written: Mapping[str, Sequence[str]], known: Sequence[str], where: str) -> list[Problem]:
    return [
        Problem(
            f"{place}.{key}", f"has no value to compare with: write it {where}", None, None, nearest_key(key, known)
        )
        for place, keys in written.items()
        for key in keys
        if key not in known
    ]


def passed_settings(own: Trainer) -> set[str]:
    """The settings that the placeholders of a command hand to the program."""
    named = {name for word in own.command or () for name in _PLACEHOLDER.findall(word)}
    keys = set(flattened(own.settings))
    return keys if named & {"arguments", "settings"} else named & keys


def unused_settings(own: Trainer) -> list[str]:
    """Settings that a command, which names others in placeholders, passes nowhere."""
    passed = passed_settings(own)
    return [key for key in flattened(own.settings) if key not in passed] if passed else []


def _program_problems(command: Sequence[str], directory: str) -> list[Problem]:
    """What cannot be started: its folder, its first word, its scripts."""
    if not Path(directory).is_dir():
        return [Problem("directory", "no such folder", directory)]
    problems = []
    for number, word in enumerate(command):
        place = f"command[{number}]"
        if "{" in word or word.startswith("-"):
            continue
        if number == 0 and shutil.which(word, path=None if "/" not in word else directory) is None:
            programs = [name for name in ("python", "python3", "torchrun", "bash", "uv") if shutil.which(name)]
            problems.append(Problem(place, "no such program here", repr(word), None, nearest(word, programs)))
        elif number > 0 and word.endswith(SCRIPTS) and not (Path(directory) / word).is_file():
            folder = (Path(directory) / word).parent
            beside = [path.name for path in folder.iterdir() if path.name.endswith(SCRIPTS)] if folder.is_dir() else []
            problems.append(Problem(place, "no such file", word, None, nearest(Path(word).name, beside)))
    return problems


def _placeholder_problems(command: Sequence[str], keys: Sequence[str]) -> list[Problem]:
    allowed = [*PLACES, *keys]
    problems = [
        Problem("command", f"unknown placeholder {{{name}}}", None, ", ".join(allowed), nearest(name, allowed))
        for word in command
        for name in _PLACEHOLDER.findall(word)
        if name not in allowed
    ]
    if any("{arguments}" in word and word != "{arguments}" for word in command):
        problems.append(Problem("command", "{arguments} stands for several words, so it must be a separate word"))
    if "{arguments}" in command:
        leaves = [_argument(key) for key in keys]
        twice = sorted({leaf for leaf in leaves if leaves.count(leaf) > 1})
        problems += [
            Problem("command", f"{{arguments}} would give --{leaf} twice, from two tables; rename one of them")
            for leaf in twice
        ]
    return problems


def _argument(key: str) -> str:
    """Of ``training.weight_decay``, ``weight_decay``: the table is how we sort settings, not how a program does."""
    return key.partition(".")[2]


def command_line(command: Sequence[str], values: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """The words of a command, placeholders filled in; *values* are those of `PLACES`."""
    flat = flattened(settings)

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        return _word(flat[name] if name in flat else values[name]) if name in flat or name in values else match[0]

    words: list[str] = []
    for word in command:
        if word == "{arguments}":
            words += [f"--{_argument(key)}={_word(value)}" for key, value in flat.items()]
        else:
            words.append(_PLACEHOLDER.sub(fill, word))
    return words


def _word(value: Any) -> str:
    """As a program's command line has it: True rather than true, for most programs here are Python."""
    return str(value) if isinstance(value, str | bool | int | float) else json.dumps(value)


def metrics_of(study: Study) -> dict[str, Metric]:
    """What the study may measure: this package's metrics and those of the study's own code, which must be loaded. With a
    trainer of its own also what that reports, and losses without the unit that only this package's have."""
    own = study.trainer
    if own is None:
        return dict(METRICS.items())
    ours = {
        name: replace(metric, unit="") if metric.unit == "nats/token" else metric for name, metric in METRICS.items()
    }
    return ours | {
        name: Metric(
            name,
            "reported by the study's own trainer",
            "",
            direction,
            name,
            transform=METRICS[name].transform
            if name in METRICS
            else "identity",  # perplexity, say, is tested as its log
        )
        for name, direction in own.metrics.items()
    }


def own_trainer_runs(study: Study) -> tuple[tuple[PlannedRun, ...], dict[str, Declaration]]:
    """Every run of a study that its own trainer trains, and what each variant declares."""
    own = study.trainer
    assert own is not None
    strangers = [name for name in study.variants if name not in study.tables]
    if strangers:
        raise PlanError(
            f"variants of a study with its own trainer are tables of its file, and it has none of {', '.join(strangers)}: "
            "write them there, and plan the study in another folder"
        )
    variants = variants_of(study)
    cells = [(regime, seed, name) for regime in study.regime_names() for seed in study.seeds for name in study.variants]
    runs = tuple(
        _planned(study, own, variants[name], regime, seed, stack) for stack, (regime, seed, name) in enumerate(cells)
    )
    _check_arms(study, runs)
    return runs, {
        name: Declaration(
            formula=variant.table.formula, about=variant.table.about, settings=tuple(variant.table.settings)
        )
        for name, variant in variants.items()
    }


def plan_own_trainer(study: Study, device: Literal["auto", "cpu", "cuda"] = "auto", workers: int | None = None) -> Plan:
    """The plan of a study that its own trainer trains. Nothing is written."""
    from ablationlab.model.machine import choose_device
    from ablationlab.study.reuse import open_sources, with_reused

    own = study.trainer
    assert own is not None
    device_kind, device_name = choose_device(device)
    runs, declared = own_trainer_runs(study)
    sources = open_sources(study)
    plan = Plan(
        study=study,
        study_hash=study.hash,
        criteria_hash=study.criteria_hash,
        variants=declared,
        metrics=metrics_of(study),
        probes={},
        tasks=(),
        corpus=None,
        execution=Execution(
            device=device_kind,
            device_name=device_name,
            precision="own",
            stack_width=1,
            threads=sources[0].plan.execution.threads
            if sources
            else max(1, usable_cores() // min(workers or 1, len(runs))),
        ),
        runs=runs,
        stacks=tuple((run.id,) for run in runs),
        files=program_files(own),
        environment=current(),
        created=timestamp(),
        plan_hash="",
    )
    return with_reused(plan, sources).sealed()


def program_files(own: Trainer) -> dict[str, str]:
    """The files that a command names, and their hashes: a program that changes between two runs is drift."""
    words = own.command or ()
    paths = {word: Path(own.directory) / word for word in words}
    return {word: sha256(path.read_bytes()).hexdigest() for word, path in paths.items() if path.is_file()}


def program_drift(plan: Plan) -> tuple[Drift, ...]:
    """Files of the command that are not what they were when the plan was sealed."""
    now = program_files(plan.study.trainer) if plan.study.trainer is not None else {}
    kept = {name: now[name][:12] for name in plan.files if name in now}
    return changes({name: digest[:12] for name, digest in plan.files.items()}, kept)


def _planned(study: Study, own: Trainer, variant: Variant, regime: str, seed: int, stack: int) -> PlannedRun:
    over = study.regimes[regime] if regime != DEFAULT_REGIME else None
    tables: dict[str, Any] = {name: own.settings.get(name, {}) for name in TABLES}
    if over is not None:
        tables = merged(tables, {"model": over.model, "training": over.training})
    changes = variant.table
    tables = merged(tables, {"model": changes.model, "training": changes.training, "data": changes.data})
    settings = {name: table for name, table in tables.items() if table}
    identity = {
        "settings": settings,
        "seed": seed,
        "trainer": own.model_dump(mode="json", exclude={"settings", "timeout"}),
    }
    parts = [*([] if regime == DEFAULT_REGIME else [regime]), variant.name, f"s{seed}", content_hash(identity)[:8]]
    return PlannedRun(
        id="-".join(parts),
        settings=settings,
        role="compared",
        variant=variant.name,
        regime=regime,
        seed=seed,
        stack=stack,
        slot=0,
    )


def _check_arms(study: Study, runs: Sequence[PlannedRun]) -> None:
    base = {(run.regime, run.seed): run.settings for run in runs if run.variant == study.baseline}
    same = dict.fromkeys(
        run.variant
        for run in runs
        if run.variant != study.baseline and run.settings == base[run.regime, run.seed]
        if not is_baseline_again(study, run.variant)
    )
    if same:
        raise PlanError(f"variants that change nothing: {', '.join(same)}. They equal the baseline {study.baseline!r}")
