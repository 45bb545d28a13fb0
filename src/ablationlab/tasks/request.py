"""What a study asks for: names of tasks, and whether they can be asked, before anything is sealed or trained.

Planning needs neither the network nor a benchmark's data. The harness is asked only about names that are neither of the suite
nor of the benchmarks. Problems inside a task of the harness, or in what a YAML file says, show when the task is built.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ablationlab.core.errors import AblationLabError, DataError, PlanError, RecordError, UnknownNameError
from ablationlab.core.format import count
from ablationlab.core.paths import real_path, user_path
from ablationlab.data.corpus import TokenizedCorpus
from ablationlab.records.plan import PlannedTask
from ablationlab.records.settings import EvaluationConfig, Study
from ablationlab.records.storage import read_regular
from ablationlab.tasks import benchmarks, suite

if TYPE_CHECKING:
    import yaml

#: All tasks that are built from the held-out text.
SUITE_GROUP = "suite"
#: All real benchmarks that are read from local files.
BENCHMARK_GROUP = "benchmarks"
#: Before a name: the harness's own task with its own data source, which needs the internet.
STOCK = "harness:"
#: The only template of a task that is the harness's own.
STOCK_TEMPLATE = "stock"
#: Levels of a task file, its bytes, and its values with every alias written out; the harness's own have 8, 62,570 and 765.
DEEPEST, LARGEST_FILE, MOST_NODES = 50, 1 << 18, 100_000
#: Names that are suggested in the place of an unknown one, at most.
MOST_ALIKE = 8


@dataclass(frozen=True)
class TaskRequest:
    """Names of tasks and groups, numbers of examples, templates and the cap on items, before anything is built."""

    tasks: tuple[str, ...]
    fewshot: tuple[int, ...]
    templates: Literal["one", "all"]
    items: int | None

    @classmethod
    def of(
        cls,
        study: Study,
        tasks: Sequence[str] = (),
        fewshot: Sequence[int] = (),
        templates: Literal["one", "all"] | None = None,
        items: int | None = None,
    ) -> TaskRequest:
        """What a study asks for, but for what is given."""
        own = study.evaluation
        return cls(
            tuple(tasks) or own.tasks,
            tuple(sorted(set(fewshot or own.fewshot))),
            templates or own.templates,
            own.items if items is None else items,
        )


def expand(names: Sequence[str]) -> list[str]:
    """Names with groups opened and repetitions dropped; `UnknownNameError` with the nearest known names."""
    opened = _opened(names)
    for name in opened:
        ours = name in suite.KINDS or name in benchmarks.CATALOGUE or is_file(name)
        if not ours and name.removeprefix(STOCK) not in _harness_index():
            raise _unknown(name)
    return opened


def _opened(names: Sequence[str]) -> list[str]:
    groups: dict[str, Iterable[str]] = {SUITE_GROUP: suite.KINDS, BENCHMARK_GROUP: benchmarks.CATALOGUE}
    return list(dict.fromkeys(inner for name in names for inner in groups.get(name, (name,))))


def plan_tasks(config: EvaluationConfig) -> tuple[PlannedTask, ...]:
    """The tasks that the plan holds: readers of results need no other knowledge of them."""
    most = 1 if config.templates == "one" else None
    tasks = []
    for name in _opened(config.tasks):
        if name in suite.KINDS:
            templates = suite.KINDS[name].templates[:most]
            characters = {template.name: "".join(sorted(template.characters)) for template in templates}
            tasks.append(PlannedTask(source="suite", name=name, templates=tuple(characters), characters=characters))
        elif name in benchmarks.CATALOGUE:
            names = tuple(benchmarks.CATALOGUE[name].templates)[:most]
            tasks.append(PlannedTask(source="benchmark", name=name, templates=names))
        else:
            tasks.append(PlannedTask(source="harness", name=name, templates=(STOCK_TEMPLATE,)))
    return tuple(tasks)


def _unknown(name: str) -> UnknownNameError:
    """What may be asked, in short, and the names that are like *name*; the harness alone has fourteen thousand."""
    ours, theirs = [*suite.KINDS, *benchmarks.CATALOGUE], _harness_index()
    allowed = [SUITE_GROUP, BENCHMARK_GROUP, *ours, *(task for task in theirs if task not in ours)]
    known = (
        f"{SUITE_GROUP} ({', '.join(suite.KINDS)}), {BENCHMARK_GROUP} ({', '.join(benchmarks.CATALOGUE)}), "
        f"{count(len(theirs))} tasks, tags and groups of lm-evaluation-harness (`lm-eval ls tasks` lists them), or the "
        "path of a YAML file"
    )
    if name.startswith(STOCK):
        allowed = [f"{STOCK}{task}" for task in theirs]
        like = [f"{STOCK}{task}" for task in alike(name.removeprefix(STOCK), theirs)]
    else:
        like = alike(name, allowed)
    return UnknownNameError("task", name, allowed, known=known, like=like)


def alike(name: str, names: Sequence[str]) -> list[str]:
    """Of thousands of names those that may be meant: spelt like it, or with all of its parts in them; the likeliest first.

    Of two that are equally likely, the one that comes first in *names*.
    """
    wanted = name.lower()
    parts = [part for part in re.split(r"[^a-z0-9]+", wanted) if part]
    holding = {known for known in names if parts and all(part in known.lower() for part in parts)}
    spelt = get_close_matches(wanted, [known.lower() for known in names], n=2 * MOST_ALIKE, cutoff=0.6)
    candidates = {*holding, *(known for known in names if known.lower() in spelt)}

    def likeness(known: str) -> float:
        begins = 0.1 if parts and known.lower().startswith(parts[0]) else 0.0
        return SequenceMatcher(None, wanted, known.lower()).ratio() + (0.2 + begins if known in holding else 0.0)

    place = {known: number for number, known in enumerate(names)}
    return sorted(candidates, key=lambda known: (-likeness(known), place[known]))[:MOST_ALIKE]


_YAML = "tag:yaml.org,2002:"


def is_file(name: str) -> bool:
    """Whether a name is the path of a YAML file."""
    return name.endswith((".yaml", ".yml")) or "/" in name


def check_file(name: str) -> None:
    """`DataError` if a name is a path that leads nowhere, to no YAML of a task, or to settings that the harness has not."""
    if not is_file(name):
        return
    settings = _settings(user_path(name), name)
    if not {"task", "group"} & settings.keys():
        raise DataError(f"task file {name}: holds no settings of a task, such as `task: NAME`")
    if "class" in settings:  # Python, which may take any setting
        return
    known = _known_settings(group="group" in settings)
    for key, file in settings.items():
        if key not in known:
            raise DataError(f"task file {file}: {UnknownNameError('setting of a task', key, known)}")


def _known_settings(*, group: bool) -> list[str]:
    """What the harness takes in a task file; a group hands on to its tasks what is not its own."""
    from lm_eval.config.group import GroupConfig
    from lm_eval.config.task import TaskConfig

    fields = [*dataclasses.fields(TaskConfig), *(dataclasses.fields(GroupConfig) if group else ())]
    return list(dict.fromkeys([*(field.name for field in fields), "include", "group", "tag", "task_list"]))


def _settings(path: Path, name: str, within: tuple[Path, ...] = ()) -> dict[str, str]:
    """The settings of a task file and of those that it includes, each with its file. *within*: the files that include it."""
    import yaml

    if not path.is_file():
        raise DataError(f"task file {name}: {'is no regular file' if path.exists() else 'no such file'}")
    path = real_path(path)
    if path in within:
        raise DataError(f"task file {name}: includes itself")
    if len(within) > DEEPEST:
        raise DataError(f"task file {name}: files include each other more than {DEEPEST} deep")
    root = composed(path, name)[0]
    if not isinstance(root, yaml.MappingNode):
        raise DataError(f"task file {name}: holds no settings of a task, such as `task: NAME`")
    for node in (node for key in ("task", "group") for value in values_of(root, key) for node in nodes_of(value)):
        if node.id == "scalar" and not node.value.isprintable():
            raise DataError(f"task file {name}: the name {node.value!r} has a character that cannot be printed")
    found = dict.fromkeys(_keys(root), name)
    for included in included_by(root):
        if (file := path.parent / included).is_file():
            found = _settings(file, str(file), (*within, path)) | found
    return found


def _keys(mapping: yaml.Node) -> Iterator[str]:
    """The keys of a table, with those that it takes over from others (`<<`)."""
    for key, value in mapping.value:
        if key.tag == "tag:yaml.org,2002:merge":
            for table in (value,) if value.id == "mapping" else value.value:
                yield from _keys(table) if table.id == "mapping" else ()
        else:
            yield str(key.value)


def composed(path: Path, name: str) -> list[yaml.Node | None]:
    """A YAML file as a tree that is not constructed, since tags may name code: by each parser that the harness may use.

    `DataError` where it cannot be parsed, or is beyond what any task needs: time and memory are limited.
    """
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Ends where a file is nested too deeply: what comes after would take it minutes."""

        depth = 0

        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            self.depth += 1
            if self.depth > DEEPEST:
                raise RecursionError
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    try:
        data = read_regular(path, most=LARGEST_FILE)
        trees = [yaml.compose(data, loader) for loader in (Loader, getattr(yaml, "CSafeLoader", Loader))]
    except RecursionError:
        raise DataError(f"task file {name}: is nested more than {DEEPEST} deep") from None
    except (yaml.YAMLError, ValueError) as error:
        raise DataError(f"task file {name}: is not YAML: {' '.join(str(error).split())[:200]}") from error
    except RecordError as error:
        raise DataError(f"task file {name}: {error.problem}") from error
    except OSError as error:
        raise DataError(f"task file {name}: cannot be read: {error.strerror}") from error
    if any(_is_disguised(node) for tree in trees if tree is not None for node in nodes_of(tree)):
        raise DataError(f"task file {name}: writes a text as a table (`=`), which no task needs")
    if any(tree is not None and _is_larger(tree, MOST_NODES) for tree in trees):
        raise DataError(f"task file {name}: has more than {count(MOST_NODES)} values, repeated ones counted again")
    return trees


def is_plain(node: yaml.Node) -> bool:
    """Whether its tag is one of YAML's own, which name no code."""
    return bool(node.tag.startswith(_YAML) and not node.tag.startswith(f"{_YAML}python/"))


def _is_disguised(node: yaml.Node) -> bool:
    """Whether a table or list becomes a text, number or so: by a tag of these, or by YAML's value key."""
    if node.id == "scalar":
        return False
    as_text = is_plain(node) and node.tag.removeprefix(_YAML) not in {"map", "seq", "set", "omap", "pairs"}
    return as_text or (node.id == "mapping" and any(key.tag == f"{_YAML}value" for key, _ in node.value))


def _is_larger(root: yaml.Node, most: int) -> bool:
    """Whether a tree has more than *most* nodes where every alias is written out: a short file may stand for billions."""
    waiting, nodes = [root], 0
    while waiting and nodes <= most:
        nodes += 1
        waiting += _children(waiting.pop())
    return nodes > most


def _children(node: yaml.Node) -> list[yaml.Node]:
    if node.id == "scalar":
        return []
    return [part for child in node.value for part in (child if isinstance(child, tuple) else (child,))]


def nodes_of(root: yaml.Node) -> list[yaml.Node]:
    """A YAML document's nodes, each once: aliases may close circles."""
    found: dict[int, yaml.Node] = {}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) not in found:
            found[id(node)] = node
            waiting += _children(node)
    return list(found.values())


def included_by(root: yaml.Node) -> list[str]:
    """The files that a task file includes: one or a list, wherever it stands, since merged keys count."""
    return [each.value for value in values_of(root, "include") for each in nodes_of(value) if each.id == "scalar"]


def values_of(root: yaml.Node, name: str) -> list[yaml.Node]:
    """What stands under a key, wherever it stands."""
    return [value for node in nodes_of(root) if node.id == "mapping" for key, value in node.value if key.value == name]


#: Lines that name a task or a group, or tags: one, a list in brackets, or a list below.
_NAME = re.compile(rb"""^["']?(?:task|group)["']?:[ \t]*["']?([^\s"'#\[\]{}]+)["']?[ \t]*(?:\#.*)?$""", re.MULTILINE)
_TAGS = re.compile(rb"""^["']?tag["']?:(.*(?:\n[ \t]*-[ \t].*)*)""", re.MULTILINE)
_TAG = re.compile(rb"""[^\s"'\[\],-][^\s"'\[\],]*""")


@cache
def _harness_index() -> tuple[str, ...]:
    """Every name that the harness knows, and three that it only mentions. The harness itself takes fifteen seconds."""
    harness = find_spec("lm_eval")
    assert harness is not None
    assert harness.submodule_search_locations
    return names_in(Path(harness.submodule_search_locations[0], "tasks"))


def names_in(tasks: Path) -> tuple[str, ...]:
    """What the task files of a folder, and the files that they include, name; found by line, without parsing them."""
    names = set[bytes]()
    for folder, _, files in os.walk(tasks):
        for file in files:
            if "yaml" in file or "." not in file:
                text = Path(folder, file).read_bytes()
                names.update(_NAME.findall(text))
                names.update(tag for tags in _TAGS.findall(text) for tag in _TAG.findall(tags))
    return tuple(sorted(name.decode(errors="replace") for name in names - {b"null"}))


@cache
def full_manager() -> Any:
    """The harness's manager of all its own tasks; takes it about fifteen seconds."""
    from lm_eval.tasks import TaskManager

    from ablationlab.tasks.harness_tasks import quiet

    with quiet():
        return TaskManager()


def check_tasks(config: EvaluationConfig, contexts: Iterable[int]) -> None:
    """`PlanError` if a name is unknown, or a task does not fit a context of the study with its examples."""
    try:
        for name in expand(config.tasks):
            check_file(name)
            for context in sorted(set(contexts)):
                _check_fit(name, config.fewshot, context)
    except AblationLabError as error:
        raise PlanError(f"[evaluation]: {error}") from error


def _check_fit(name: str, fewshot: Sequence[int], context: int) -> None:
    if name in suite.KINDS:
        for k in fewshot:
            suite.room_for(suite.KINDS[name], context, k)
    elif name in benchmarks.CATALOGUE:
        benchmarks.check_context(name, context)


def check_text(config: EvaluationConfig, contexts: Iterable[int], corpus: TokenizedCorpus) -> None:
    """`PlanError` if a task of the suite cannot be cut from the text; a few items of each are cut to see."""
    names = [name for name in expand(config.tasks) if name in suite.KINDS]
    if not names:
        return
    train, held_out = (suite.Passages(text) for text in corpus.readable())
    for name in names:
        for context in sorted(set(contexts)):
            for k in config.fewshot:
                try:
                    suite.check_items(name, train, held_out, context, k)
                except DataError as error:
                    text = f"[evaluation]: {error}; name the other tasks alone, or use another text"
                    raise PlanError(text) from error
