"""The first study file of a user, commented and ready to run, and the JSON schema that helps editors with it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ablationlab.core.errors import Problem, StudyError
from ablationlab.core.meanings import meanings
from ablationlab.core.paths import nearest_beside, user_path
from ablationlab.data.sources import SOURCES
from ablationlab.data.tokenizers import TOKENIZERS
from ablationlab.model.parts import PARTS
from ablationlab.model.rules import OPTIMIZERS, SCHEDULES
from ablationlab.records import settings
from ablationlab.records.metrics import METRICS
from ablationlab.records.settings import MIXTURE, PRESETS, Study, looks_like_path
from ablationlab.records.storage import replace
from ablationlab.study.load import parse_study
from ablationlab.study.probes import ALL, PROBES
from ablationlab.study.trainers import TRAINER_KEYS
from ablationlab.study.variants import VARIANTS

SCHEMA_FILE: Final = "study.schema.json"
#: So many seeds without a failure show that a variant fails no more often than the default margin allows.
CLOSES_FAILURES: Final = 18

DEFAULTS: Final[dict[str, Any]] = {
    "name": "my-study",
    "question": "Does normalizing the token embedding help?",
    "baseline": "none",
    "variants": ("rmsnorm",),
    "seeds": 5,
    "corpus": "tiny-shakespeare",
    "steps": 300,
    "lr": 1e-3,
    "metric": "validation_loss",
    "smallest_effect": 0.01,
}


def default_looks(seeds: int) -> tuple[int, ...]:
    """Later looks, in seeds: at twice as many, and where the guard of failures can close; none below three seeds."""
    return (2 * seeds, max(3 * seeds, CLOSES_FAILURES)) if seeds >= 3 else ()


#: What `init` asks for each of them.
QUESTIONS: Final[Mapping[str, str]] = {
    "name": "Name of the study",
    "question": "The question it asks",
    "baseline": "Baseline",
    "variants": "Changes to try: names (ablationlab variants lists them), or settings such as training.weight_decay=0.0",
    "seeds": "Seeds",
    "looks": "More seeds that may follow: how many in all, as 10 18, or none",
    "corpus": "Text: a name of `ablationlab data list`, or a file",
    "steps": "Training steps per run",
    "lr": "Peak learning rate",
    "metric": "Metric that decides",
    "smallest_effect": "Smallest difference in it that matters",
}

_TEMPLATE: Final = """\
#:schema ./{schema}
#
#   ablationlab plan {file}               what it costs; seals the plan
#   ablationlab run {file}                train, evaluate, decide, report
#   ablationlab power {file} --sd 0.01    seeds that the smallest effect needs

name = {name_text}
question = {question}
baseline = {baseline}  # the arm that the others are compared with
{listed}seeds = {seeds}  # every arm is trained once per seed, on the same data in the same order
{tables}
[model]  # equal for all arms but for what a variant declares
layers = 2  # or preset = "gpt2-small"; `ablationlab presets` lists them
width = 64
heads = 4
context = 64

[training]
steps = {steps}
batch = 16  # sequences per step
lr = {lr}  # peak
schedule = "warmup-cosine"
warmup = {warmup}
precision = "auto"  # bf16 on a GPU that has it, fp32 on a CPU; equal for all arms

[data]
corpus = {corpus}

[evaluation]
curve_every = {curve}  # steps between two looks at the validation loss

# Registered before the first step; what is compared without a criterion is exploratory.
[[criteria]]
metric = {metric}
role = "primary"  # it decides; others may be "secondary" or "guard"
smallest_effect = {effect}  # a difference below this does not matter
{shared}margin = {margin}  # what a gain in stability may cost
{design}"""


_DESIGN: Final = """\

[design]
looks = {looks}  # `ablationlab extend` may add seeds up to the next number: its answer stays registered
spending = "front-loaded"  # nine tenths of alpha at the first
"""

_SHARED: Final = """\
variance = "shared"  # all variants together say how noisy runs are: few seeds show more
correction = "bonferroni"  # which that needs
"""

_HINT: Final = """\

# A change of your own is a table. Write these instead of the list above:
#   [variants.none]
#   [variants.no-decay]
#   training.weight_decay = 0.0  # anything of [model], [training] and [data]
# Your own code: use = ["./mine.py"]. Your own training script: command = [...]. See docs/variants.md and docs/trainers.md.
"""


#: A question takes one line of a terminal.
LINE: Final = 80


def starter(
    *,
    name: str,
    question: str,
    baseline: str,
    variants: Sequence[str],
    seeds: int,
    corpus: str,
    steps: int,
    lr: float,
    metric: str,
    smallest_effect: float,
    looks: Sequence[int] | None = None,
    folder: Path = Path(),
) -> str:
    """The text of a study file; `StudyError` with every problem where the answers make no study.

    *folder* is where the file will be: a corpus given by path is relative to it.
    *looks*: of more seeds than the study's own; None for the default.
    Of *variants*, one such as "training.weight_decay=0.0" is a change of its own, and gets a table.
    """
    arms = list(dict.fromkeys([baseline, *variants]))
    problems = []
    if len(arms) < 2:
        problems.append(Problem("variants", f"name a change to compare with the baseline {baseline!r}", repr(arms[0])))
    if looks_like_path(corpus) and not (path := user_path(corpus, folder)).exists():
        guess, allowed = nearest_beside(path), "a path, or a name of `ablationlab data list`"
        like = str(Path(corpus).with_name(guess)) if guess else None
        problems.append(Problem("corpus", "no such file or folder", repr(corpus), allowed, like))
    if problems:
        raise StudyError("the study of these answers", problems)
    own = any("=" in arm for arm in arms)
    text = _TEMPLATE.format(
        schema=SCHEMA_FILE,
        file=f"{name}.toml",
        name_text=_toml(name),
        question=_toml(question),
        baseline=_toml(baseline),
        listed="" if own else f"variants = {_toml(arms)}  # `ablationlab variants` explains each\n",
        tables="".join(map(_table, arms)) if own else _HINT,
        seeds=_toml(list(range(1, seeds + 1)) if seeds <= 20 else {"first": 1, "count": seeds}),
        steps=steps,
        lr=_toml(lr),
        warmup=max(1, steps // 10),
        corpus=_toml(corpus),
        curve=max(1, steps // 10),
        metric=_toml(metric),
        effect=_toml(smallest_effect),
        margin=_toml(2 * smallest_effect),
        design=_design(seeds, default_looks(seeds) if looks is None else looks),
        shared=_SHARED if _shares(len(arms) - 1, seeds, metric) else "",
    )
    parse_study(tomllib.loads(text), "the study of these answers")
    return text


def question_of(variants: Sequence[str]) -> str:
    """What a study of these asks, in a line of a terminal."""
    named = f"Does {' or '.join(variants)} help?"
    return named if len(named) <= LINE else f"Which of {len(variants)} changes help?"


def _design(seeds: int, later: Sequence[int]) -> str:
    return _DESIGN.format(looks=_toml([seeds, *later[later[0] == seeds :]])) if later else ""


def _shares(variants: int, seeds: int, metric: str) -> bool:
    """Whether one noisy variant, too, leaves the others more power than their own variances would."""
    from ablationlab.stats.costs import CAPPED  # it takes numpy

    directed = metric in METRICS and METRICS[metric].direction is not None
    return directed and variants >= CAPPED[0] and seeds >= CAPPED[1]


def _table(arm: str) -> str:
    """The table of a variant: a known one by its name, or a change such as training.weight_decay=0.0."""
    key, equals, value = (part.strip() for part in arm.partition("="))
    if not equals:
        return f"\n[variants.{_key(arm)}]  # `ablationlab variants` explains it\n"
    try:
        tomllib.loads(f"value = {value}")
    except ValueError:  # a number that is too long, too
        value = _toml(value)
    name = re.sub(r"[^a-z0-9.]+", "-", f"{key.rpartition('.')[2]}-{value}".lower()).strip("-")
    return f"\n[variants.{_key(name)}]  # what it writes is all that differs from the baseline\n{key} = {value}\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float):
        return f"{value:g}" if "." in f"{value:g}" or "e" in f"{value:g}" else f"{value:g}.0"
    return json.dumps(value, ensure_ascii=False)


def write_starter(path: Path, text: str) -> Path:
    """Write a study file that is not there yet, and the schema beside it; gives the schema's path."""
    if path.exists():
        raise StudyError(str(path), [Problem("", "is there already; choose another name")])
    replace(path, text.encode())
    schema = path.parent / SCHEMA_FILE
    replace(schema, schema_text().encode())
    return schema


def schema_text() -> str:
    """The JSON schema of a study file, names of variants, presets and metrics included."""
    return json.dumps(study_schema(), indent=2, ensure_ascii=False) + "\n"


def study_schema() -> dict[str, Any]:
    """pydantic's schema of `Study`, as the file spells it.

    There the paper's text and own code are paths, seeds may be a range, variants tables, and the user's own trainer brings
    keys of its own and tables that only it understands.
    """
    schema = Study.model_json_schema()
    schema |= {"$schema": "http://json-schema.org/draft-07/schema#", "title": "A study of ablationlab"}
    fields, definitions = schema["properties"], schema["$defs"]
    _describe(fields, Study)
    for name, definition in definitions.items():
        _describe(definition.get("properties", {}), getattr(settings, name))
    _suggest_names(fields, definitions)
    for table, names in (
        (fields, ("seeds",)),
        (definitions["Sweep"]["properties"], ("seeds", "selection_seeds")),
        (definitions["Finer"]["properties"], ("seeds",)),
        (definitions["EvaluationConfig"]["properties"], ("gate_seeds",)),
        (definitions["Calibrate"]["properties"], ("seeds",)),
        (definitions["Noise"]["properties"], ("init", "data", "dropout")),
    ):
        for name in names:
            about = {key: table[name].pop(key) for key in ("description", "default") if key in table[name]}
            table[name] = {"anyOf": [table[name], _SEED_ROW], **about}
    written = {name: fields[name]["description"] for name in ("text", "use", "factors", "trainer", *_TABLES)}
    fields["text"] = {"type": "string", "description": written["text"]}
    fields["use"] = {"type": "array", "items": {"type": "string"}, "description": written["use"]}
    fields["factors"] = {
        "type": "object",
        "description": written["factors"],
        "properties": {key: definitions["Factors"]["properties"][key] for key in ("design", "effects")},
        "additionalProperties": {"type": ["array", "object"]},
    }
    # Of variants that the file defines, the tables themselves are the list.
    about = fields["variants"].pop("description")
    fields["variants"] = {"anyOf": [fields["variants"], fields.pop("tables")], "description": about}
    del definitions["Calibrate"]["properties"]["value"]  # what a calibration finds is no setting
    # A preset brings the shape, and steps may be given as tokens.
    definitions["ModelConfig"].pop("required", None)
    definitions["TrainingConfig"]["required"] = [
        name for name in definitions["TrainingConfig"].get("required", ()) if name not in ("steps", "tokens")
    ]
    for name in TRAINER_KEYS:
        fields[name] = definitions["Trainer"]["properties"][name]
    fields["trainer"] = {"type": "string", "description": written["trainer"]}
    schema["required"] = ["name", "seeds"]
    schema["anyOf"] = [{"required": ["factors"]}, {"required": ["baseline", "variants"]}]
    tables = {name: {"$ref": f"#/$defs/{kind}"} for name, kind in _TABLES.items()}
    for name in tables:
        fields[name] = {"anyOf": [tables[name], {"type": "object"}], "description": written[name]}
    schema["if"] = {"anyOf": [{"required": ["trainer"]}, {"required": ["command"]}]}
    schema["else"] = {
        "required": ["model", "training"],
        "properties": tables
        | {
            "regimes": {"additionalProperties": {"properties": {key: tables[key] for key in ("model", "training")}}},
            "variants": {"additionalProperties": {"properties": tables}},
        },
    }
    return _without_unused(schema)


#: The tables that are the user's own trainer's where there is one.
_TABLES: Final = {"model": "ModelConfig", "training": "TrainingConfig", "data": "DataConfig"}
_SEED_ROW: Final = {
    "type": "object",
    "properties": {"first": {"type": "integer"}, "count": {"type": "integer"}},
    "required": ["first", "count"],
    "additionalProperties": False,
}


def _describe(fields: dict[str, Any], kind: type) -> None:
    """Give each field the meaning that stands below it in the class."""
    aliases = {field.alias or name: name for name, field in getattr(kind, "model_fields", {}).items()}
    for name, field in fields.items():
        if text := meanings(kind).get(aliases.get(name, name)):
            field["description"] = text


def _suggest_names(fields: dict[str, Any], definitions: dict[str, Any]) -> None:
    model, training, data = (definitions[kind]["properties"] for kind in _TABLES.values())
    metrics = list(METRICS)
    _suggest(fields["variants"]["items"], list(VARIANTS))
    _suggest(fields["tie_breakers"]["items"], [*dict.fromkeys(METRICS[name].family for name in metrics), *metrics])
    _suggest(definitions["Criterion"]["properties"]["metric"], metrics)
    _suggest(definitions["Hypothesis"]["properties"]["metric"], metrics)
    _suggest(model["preset"], list(PRESETS))
    for setting, registry in PARTS.items():
        if setting in model:
            _suggest(model[setting], list(registry))
    _suggest(training["optimizer"], list(OPTIMIZERS))
    _suggest(training["schedule"], list(SCHEDULES))
    _suggest(data["corpus"], [*SOURCES, MIXTURE])
    _suggest(data["tokenizer"], list(TOKENIZERS))
    fields["probes"]["propertyNames"] = {"anyOf": [{"enum": [*PROBES, ALL]}, {"type": "string"}]}


def _without_unused(schema: dict[str, Any]) -> dict[str, Any]:
    """Leave out definitions that nothing refers to, as `Trainer`, whose keys stand at the top."""
    while unused := [name for name in schema["$defs"] if f'#/$defs/{name}"' not in json.dumps(schema)]:
        for name in unused:
            del schema["$defs"][name]
    return schema


def _suggest(field: dict[str, Any] | None, names: list[str]) -> None:
    """Names that an editor offers; others are allowed, since a study may define its own."""
    if field is not None:
        others = {key: field.pop(key) for key in list(field) if key in ("type", "anyOf", "$ref")}
        field["anyOf"] = [{"enum": names}, others]
