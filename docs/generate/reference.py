"""The pages of the reference, generated from the code when the site is built: settings, commands, names and records."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import ablationlab.records
from ablationlab.core.meanings import meanings
from ablationlab.records import settings
from ablationlab.report.table import markdown

REPOSITORY = Path(__file__).parents[2]
#: Where a table of a study file stands, and the class that declares it.
TABLES = {
    "": "Study",
    "model": "ModelConfig",
    "model.front": "FrontEnd",
    "training": "TrainingConfig",
    "training.lr_scale": "RateScale",
    "data": "DataConfig",
    "variants.NAME": "VariantTable",
    "factors": "Factors",
    "budget": "BudgetConfig",
    "criteria": "Criterion",
    "hypotheses": "Hypothesis",
    "stability": "Stability",
    "evaluation": "EvaluationConfig",
    "regimes.NAME": "Regime",
    "regimes.NAME.calibrate": "Calibrate",
    "sweep": "Sweep",
    "sweep.finer": "Finer",
    "sweep.second": "Second",
    "design": "Design",
    "noise": "Noise",
    "execution": "ExecutionConfig",
    "authors": "Author",
}
#: Tables that a study file has several of.
LISTS = ("criteria", "hypotheses", "authors")
#: Examples of keys that no study of this repository uses.
EXAMPLES = {
    "trainer": 'trainer = "classifier"',
    "timeout": "timeout = 3600",
    "directory": 'directory = "../trainer"',
    "patterns": "patterns = { loss = 'step (?P<step>\\d+) loss (?P<value>\\S+)' }",
    "model.loss_terms": 'loss_terms = ["z-loss"]  # a term of your own code',
    "model.options": "options = { z_loss = 1e-3 }  # for parts of your own code",
    "training.lr_scale": "lr_scale = { embedding = 0.1 }",
    "variants.NAME.data": 'data = { tokenizer = "byte" }',
    "factors.effects": 'effects = ["weight_decay", "weight_decay:lr"]',
    "hypotheses.statement": 'statement = "The norm does not change the loss."',
    "design.looks": "looks = [5, 10, 15]",
    "sweep.variant_lr": "variant_lr = { muon = [4e-3, 8e-3, 1.6e-2] }",
    "sweep.stage": "stage = 1",
    "sweep.finer.seeds": "seeds = [21, 22, 23]",
    "sweep.finer.rates": "rates = 7",
    "sweep.finer.factor": "factor = 1.3",
    "sweep.finer.found": "found = { none = 1.5e-3 }",
    "sweep.second": 'second = { setting = "warmup", values = [50, 150, 450] }',
    "sweep.points": "points = { none = [[1e-3, 50]] }",
    "sweep.second.setting": 'setting = "weight_decay"',
    "sweep.second.values": "values = [0.03, 0.1, 0.3]",
    "sweep.second.trials": "trials = 24",
    "sweep.second.factor": "factor = 1.3",
    "sweep.second.found": "found = { none = 0.1 }",
    "authors.name": 'name = "Ada Lovelace"',
    "authors.affiliation": 'affiliation = "University of London"',
    "noise.init": "init = [1, 2, 3]",
    "noise.data": "data = [1, 2, 3]",
    "noise.dropout": "dropout = [1, 2]",
}


@dataclass(frozen=True)
class Setting:
    """One key of a study file."""

    table: str
    key: str
    type: str
    default: str
    meaning: str
    example: str


#: The pages, by their path in the site.
PAGES = ("reference/settings.md", "reference/commands.md", "reference/names.md", "reference/records.md")


def pages() -> dict[str, str]:
    """Every page by its path in the site."""
    return dict(zip(PAGES, (settings_page(), commands_page(), names_page(), records_page()), strict=True))


# ---- settings -----------------------------------------------------------------------------------------------------------


def all_settings() -> list[Setting]:
    """Every key of a study file, table by table."""
    from ablationlab.study.starter import study_schema

    schema = study_schema()
    used = _used()
    found = []
    for table, kind in TABLES.items():
        body = schema if kind == "Study" else schema["$defs"].get(kind, schema["properties"].get(table))
        for key, field in body["properties"].items():
            path = f"{table}.{key}" if table else key
            example = used.get(path) or EXAMPLES.get(path) or _table_link(path) or _invented(key, field, schema)
            default = "*required*" if key in (body.get("required") or ()) else _default(field)
            found.append(Setting(table, key, _type(field, schema), default, field.get("description", ""), example))
    return found


def settings_page() -> str:
    """The settings of study files."""
    text = [
        "# Settings",
        "Every key of a study file, generated from the code. `ablationlab schema` writes the same as a JSON schema, "
        "with which an editor completes and checks a study file. Unknown keys are errors. Examples come from the "
        "studies in this repository where one uses the key.",
    ]
    every = all_settings()
    for table, kind in TABLES.items():
        text.append(f"## {_heading(table)}")
        about = inspect.cleandoc(getattr(settings, kind).__doc__ or "")
        if kind != "Study":
            text.append(_prose(about))
        rows = [
            (f"`{s.key}`", s.type, s.default, _cell(s.meaning), f"`{s.example}`".replace("|", "\\|"))
            for s in every
            if s.table == table
        ]
        text.append(_table(("key", "type", "default", "meaning", "example"), rows))
    return "\n\n".join(text) + "\n"


def _table_link(path: str) -> str:
    """The head of the table that a key is."""
    table = next((table for table in TABLES if table in (path, f"{path}.NAME")), None)
    return "" if table is None else _heading(table).strip("`")


def _heading(table: str) -> str:
    if not table:
        return "Top level"
    return f"`[[{table}]]`" if table in LISTS else f"`[{table}]`"


def _used() -> dict[str, str]:
    """The first use of every key in the studies of this repository, as `key = value`."""
    found: dict[str, str] = {}
    files = [*sorted((REPOSITORY / "studies").glob("*.toml")), *sorted((REPOSITORY / "examples").rglob("*.toml"))]
    for file in sorted(files, key=lambda file: (file.name != "embedding-norm.toml", str(file))):
        study = tomllib.loads(file.read_text())
        for path, value in _leaves(study):
            if "use" in study and path != "use":
                continue  # names of the study's own code, which no other study knows
            for name in _places(path):
                text = f"{name.rpartition('.')[2]} = {_toml(value)}"
                if len(text) <= 60:
                    found.setdefault(name, text)
    return found


def _places(path: str) -> Iterator[str]:
    """The keys that a path of a study file stands for: one inside a variant or a regime also counts for its table."""
    yield path
    inner = re.match(r"(variants|regimes)\.[^.]+\.(.+)", path)
    if inner is not None:
        yield f"{inner[1]}.NAME.{inner[2]}"
        yield inner[2]


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        path = f"{prefix}{key}"
        yield path, value
        for inner in [value] if isinstance(value, dict) else value if isinstance(value, list) else []:
            if isinstance(inner, dict):
                yield from _leaves(inner, f"{path}.")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e-3 else repr(value)


def _invented(key: str, field: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """An example for a key that no study uses: another value than its default."""
    default = field.get("default")
    for kind in _kinds(field, schema):
        if "enum" in kind:
            return f"{key} = {_toml(next((value for value in kind['enum'] if value != default), default))}"
        if "const" in kind and kind["const"] != default:
            return f"{key} = {_toml(kind['const'])}"
        if kind.get("type") == "boolean":
            return f"{key} = {_toml(not default)}"
        if kind.get("type") in ("integer", "number"):
            return f"{key} = {_toml(_number(kind, default))}"
        if kind.get("type") == "string":
            return f'{key} = "..."'
        if kind.get("type") == "array" and default is not None:
            return f"{key} = {_toml(default)}" if default else f"{key} = [...]"
    return ""


def _number(kind: Mapping[str, Any], default: Any) -> float | int:
    whole = kind["type"] == "integer"
    if isinstance(default, int | float) and not isinstance(default, bool) and default:
        value: float | int = default * 2 if whole else default / 2
    else:
        value = 8 if whole else 0.5
    value = max(value, kind.get("minimum", value))
    return int(value) if whole else value


def _kinds(field: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The alternatives of a field, references opened, without null."""
    if "$ref" in field:
        return _kinds(schema["$defs"][field["$ref"].rpartition("/")[2]], schema)
    if "anyOf" in field:
        return [kind for inner in field["anyOf"] for kind in _kinds(inner, schema)]
    return [] if field.get("type") == "null" else [field]


def _type(field: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """The values that a key takes, in words."""
    words: list[str] = []
    for kind in _kinds(field, schema):
        match kind:
            case {"enum": names} if len(names) > 8:
                words.append("a name")
            case {"enum": names}:
                words += [f'`"{name}"`' for name in names]
            case {"const": value}:
                words.append(f"`{_toml(value)}`")
            case {"type": "array", "prefixItems": items}:
                words.append(f"list of {len(items)}: " + ", ".join(_type(item, schema) for item in items))
            case {"type": "array", "items": items}:
                words.append(f"list of {_type(items, schema)}")
            case {"type": "object", "required": ["first", "count"]}:
                words.append("`{ first, count }`")
            case {"type": "object"} | {"properties": _}:
                words.append("table")
            case {"type": "integer" | "number" as name}:
                words.append(f"{'integer' if name == 'integer' else 'number'}{_range(kind)}")
            case {"type": str(name)}:
                words.append(name)
    words = list(dict.fromkeys(words))
    if "a name" in words and "string" in words:
        words.remove("string")
    return ", ".join(words)


def _range(kind: Mapping[str, Any]) -> str:
    """The limits of a number; limits that only catch slips are left out."""
    most = 1_000_000
    low = (
        f" ≥ {kind['minimum']:g}"
        if "minimum" in kind
        else f" > {kind['exclusiveMinimum']:g}"
        if "exclusiveMinimum" in kind
        else ""
    )
    high = ""
    if kind.get("maximum", most) < most:
        high = f" ≤ {kind['maximum']:g}"
    elif "exclusiveMaximum" in kind:
        high = f" < {kind['exclusiveMaximum']:g}"
    return low + ("," if low and high else "") + high


def _default(field: Mapping[str, Any]) -> str:
    value = field.get("default")
    if value is None or value in ("", [], {}) or isinstance(value, dict):
        return "–"
    return f"`{_toml(value)}`"


# ---- commands -----------------------------------------------------------------------------------------------------------


def commands_page() -> str:
    """Every verb and every option."""
    from ablationlab.cli.app import app

    text = [
        "# Commands",
        "Every verb and option, generated from the code. A study file, a results folder or a study's bare name works "
        "wherever a study is asked for. `--debug`, on any verb, shows a traceback instead of the short message.",
        _table(
            ("exit code", "meaning"),
            [
                ("0", "done"),
                ("1", "a run failed, or a check found something wrong"),
                ("2", "a mistake in the input; nothing ran"),
                ("130, 143", "stopped by Ctrl-C, by SIGTERM; the same command continues"),
            ],
        ),
    ]
    verbs = [(name, verb) for name, verb in app.resolved_commands().items() if not name.startswith("-")]
    for name, verb in sorted(verbs, key=lambda pair: pair[0]):
        inner = [(f"{name} {sub}", it) for sub, it in verb.resolved_commands().items() if not sub.startswith("-")]
        for title, command in inner or [(name, verb)]:
            text += _verb(title, command)
    return "\n\n".join(text) + "\n"


def _verb(name: str, command: Any) -> Iterator[str]:
    arguments = list(command.assemble_argument_collection(parse_docstring=True))
    yield f"## {name}"
    yield f"```sh\n{command.usage.removeprefix('Usage: ')}\n```"
    yield _prose(command.help)
    rows = []
    for argument in arguments:
        title = _placeholder(argument) if _positional(argument) else ", ".join(argument.names)
        choices = argument.get_choices()
        kind = ", ".join(f"`{choice}`" for choice in choices) if choices else _hint(argument.hint)
        default = argument.field_info.default
        plain = default in (None, (), False, "", inspect.Parameter.empty)
        rows.append((f"`{title}`", kind, "" if plain else f"`{default}`", _cell(argument.parameter.help or "")))
    if rows:
        yield _table(("option", "values", "default", "meaning"), rows)


def _positional(argument: Any) -> bool:
    return argument.field_info.kind is not inspect.Parameter.KEYWORD_ONLY


def _placeholder(argument: Any) -> str:
    return str(argument.names[0].lstrip("-").replace("-", "_").upper())


def _hint(hint: Any) -> str:
    text = str(hint) if getattr(hint, "__args__", ()) else str(getattr(hint, "__name__", hint))
    words = {"bool": "flag", "int": "integer", "float": "number", "str": "text", "Path": "path"}
    return ", ".join(dict.fromkeys(words[word] for word in re.findall(r"\w+", text) if word in words))


# ---- names --------------------------------------------------------------------------------------------------------------


def names_page() -> str:
    """What a study file may name: variants, presets, parts, metrics, probes, tasks, corpora."""
    from ablationlab.data.sources import SOURCES
    from ablationlab.model.parts import PARTS
    from ablationlab.model.rules import OPTIMIZERS, SCHEDULES, adamw
    from ablationlab.records.metrics import METRICS
    from ablationlab.records.settings import PRESETS
    from ablationlab.study.probes import PROBES
    from ablationlab.study.variants import VARIANTS
    from ablationlab.tasks.benchmarks import CATALOGUE
    from ablationlab.tasks.suite import KINDS

    def first(item: Any) -> str:
        kind = item if inspect.isfunction(item) or inspect.isclass(item) else type(item)
        return _cell(inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0])

    text = [
        "# Names",
        "What a study file may name, generated from the registries. Your own code can add to all of them.",
    ]
    text += ["## Variants", '`variants = [...]`, or `from = "NAME"` in a table of your own.']
    text.append(
        _table(
            ("name", "formula", "what it does"),
            [(f"`{n}`", _cell(v.table.formula), _cell(v.table.about)) for n, v in VARIANTS.items()],
        )
    )
    text += ["## Presets", "`model.preset`."]
    text.append(
        _table(
            ("name", "meaning", "settings"),
            [
                (f"`{n}`", _cell(p.meaning), ", ".join(f"`{key} = {_toml(value)}`" for key, value in p.shape.items()))
                for n, p in PRESETS.items()
            ],
        )
    )
    text += ["## Model parts"]
    text.append(
        _table(
            ("setting", "name", "what it computes"),
            [(f"`model.{s}`", f"`{n}`", first(part)) for s, registry in PARTS.items() for n, part in registry.items()],
        )
    )
    text += ["## Optimizers and schedules"]
    text.append(
        _table(
            ("setting", "name", "rule"),
            [
                ("`training.optimizer`", f"`{n}`", first(rule.update if rule else adamw))
                for n, rule in OPTIMIZERS.items()
            ]
            + [("`training.schedule`", f"`{n}`", first(rule)) for n, rule in SCHEDULES.items()],
        )
    )
    text += ["## Metrics", "Named by `criteria`, `hypotheses`, `tie_breakers` and records."]
    text.append(
        _table(
            ("name", "unit", "better", "level", "family", "meaning"),
            [
                (f"`{n}`", _cell(m.unit), m.direction or "–", m.level, m.family, _cell(m.meaning))
                for n, m in METRICS.items()
            ],
        )
    )
    text += ["## Probes", "Keys of `[probes]`; the value is the number of steps between two readings."]
    text.append(
        _table(
            ("name", "measure", "meaning"),
            [
                row
                for n, probe in PROBES.items()
                for row in [
                    (f"`{n}`", "", _cell(probe.definition.meaning)),
                    *(("", f"`{measure.name}`", _cell(measure.meaning)) for measure in probe.definition.measures),
                ]
            ],
        )
    )
    text += [
        "## Tasks",
        "`evaluation.tasks`. `suite` and `benchmarks` name all of theirs; any task of lm-evaluation-harness works too.",
    ]
    text.append(
        _table(
            ("name", "group", "asks"),
            [(f"`{n}`", "suite", _cell(kind.meaning)) for n, kind in KINDS.items()]
            + [(f"`{n}`", "benchmarks", _cell(task.meaning)) for n, task in CATALOGUE.items()],
        )
    )
    text += ["## Corpora", "`data.corpus`."]
    text.append(_table(("name", "meaning"), [(f"`{n}`", _cell(source.meaning)) for n, source in SOURCES.items()]))
    return "\n\n".join(text) + "\n"


# ---- records ------------------------------------------------------------------------------------------------------------


def record_kinds() -> list[type]:
    """Every type that is stored in a file of its own."""
    from ablationlab.records.storage import Record

    for module in pkgutil.iter_modules(ablationlab.records.__path__):
        importlib.import_module(f"ablationlab.records.{module.name}")
    importlib.import_module("ablationlab.instrument.validation.records")
    importlib.import_module("ablationlab.data.prepared")
    found: list[type] = []
    waiting: list[type] = [Record]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if "KIND" in kind.__dict__ and getattr(kind, "KIND", "") and kind.__module__.startswith("ablationlab."):
            found.append(kind)
    return sorted(set(found), key=lambda kind: str(getattr(kind, "KIND", "")))


def record_parts() -> list[type]:
    """Every type that stands inside a record, by name."""
    whole = record_kinds()
    waiting = [inner for kind in whole for inner in _inner(kind)]
    parts: dict[str, type] = {}
    while waiting:
        kind = waiting.pop()
        if kind not in whole and parts.get(kind.__name__) is not kind:
            parts[kind.__name__] = kind
            waiting += _inner(kind)
    return [parts[name] for name in sorted(parts)]


def records_page() -> str:
    """Every record and every field, with what it contains."""
    text = [
        "# Fields of the records",
        "Every file that a study leaves, field by field, generated from the types that read and write it. "
        "[Records](../records.md) explains the folder.",
    ]
    for kind in record_kinds():
        text += _fields(kind, f"## `kind: {getattr(kind, 'KIND', '')}`")
    text.append("## Parts of records")
    for part in record_parts():
        text += _fields(part, f"### {part.__name__}")
    text += ["## Codes", "The values of fields that hold a code. Page, paper and terminal make sentences from them."]
    rows = [
        (f"`{kind.__name__}`", _cell(inspect.getdoc(kind) or ""), ", ".join(f"`{code.value}`" for code in kind))
        for kind in codes()
    ]
    text.append(_table(("type", "says", "values"), rows))
    return "\n\n".join(text) + "\n"


def codes() -> list[type[Enum]]:
    """Every enumeration that a field of a record has as its type, by name."""
    kinds = [*record_kinds(), *record_parts()]
    found = {inner for kind in kinds for inner in _types(kind) if issubclass(inner, Enum)}
    return sorted(found, key=lambda kind: kind.__name__)


def _fields(kind: Any, heading: str) -> Iterator[str]:
    yield heading
    yield _prose(inspect.cleandoc(kind.__doc__ or ""))
    rows = [
        (f"`{name}`", _annotation(field.annotation), _cell(field_meaning(kind, name)))
        for name, field in _fields_of(kind).items()
    ]
    if rows:
        yield _table(("field", "type", "meaning"), rows)


def field_meaning(kind: type, name: str) -> str:
    """What stands beside the field in its type, else what `fields.toml` says of the name."""
    shared = _shared_meanings()
    return meanings(kind).get(name) or shared.get(f"{kind.__name__}.{name}") or shared.get(name, "")


@cache
def _shared_meanings() -> dict[str, str]:
    return tomllib.loads((Path(__file__).parent / "fields.toml").read_text(encoding="utf-8"))


def _fields_of(kind: Any) -> dict[str, Any]:
    fields = getattr(kind, "model_fields", None)
    if fields is None:
        # Those of its bases too, in the order in which they are stored.
        annotations = get_type_hints(kind, include_extras=True)
        fields = {field.name: _Annotated(annotations[field.name]) for field in dataclasses.fields(kind)}
    return dict(fields)


@dataclass(frozen=True)
class _Annotated:
    annotation: Any


def _inner(kind: Any) -> list[type]:
    """The stored types that the fields of one name; settings have a page of their own."""
    return [
        inner
        for inner in _types(kind)
        if inner.__module__ != settings.__name__
        and (hasattr(inner, "model_fields") or hasattr(inner, "__dataclass_fields__"))
    ]


def _types(kind: Any) -> Iterator[type]:
    """Every class of this package in the annotations of a type's fields."""
    waiting = [field.annotation for field in _fields_of(kind).values()]
    while waiting:
        annotation = waiting.pop()
        waiting += getattr(annotation, "__args__", ())
        if inspect.isclass(annotation) and annotation.__module__.startswith("ablationlab."):
            yield annotation


def _annotation(annotation: Any) -> str:
    if getattr(annotation, "__args__", None) is None and hasattr(annotation, "__name__"):
        text = annotation.__name__
    else:
        text = str(annotation)
    text = re.sub(r"(ablationlab|typing|collections|pydantic|enum)(\.\w+)*\.(?=\w)", "", text)
    text = re.sub(r"Annotated\[([^,\]]+),[^]]*\]", r"\1", text).replace("NoneType", "None")
    return f"`{text}`".replace("|", "\\|")


# ---- Markdown -----------------------------------------------------------------------------------------------------------


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _cell(text: str) -> str:
    """Text for a cell: escaped but for names in backquotes."""
    pieces = re.split(r"(``[^`]+``|`[^`]+`)", re.sub(r"(?<!\S)\*([\w.]+)\*", r"`\1`", " ".join(text.split())))
    return "".join(
        "`" + piece.strip("`").replace("|", "¦") + "`" if piece.startswith("`") else markdown(piece) for piece in pieces
    )


def _prose(text: str) -> str:
    """A docstring as Markdown: paragraphs, names in backquotes."""
    return "\n\n".join(_cell(paragraph) for paragraph in text.split("\n\n"))
