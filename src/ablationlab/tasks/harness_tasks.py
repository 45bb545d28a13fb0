"""Builds harness tasks: names of the suite, of benchmarks, of the harness, or YAML files -> loaded tasks of the harness.

The suite's tasks become files that the harness reads: a YAML definition, items and examples in JSON Lines. They lie in
``evaluation/tasks/`` of a results folder, under the hash of their content. Any model that the harness knows can be scored on
them, there: ``lm_eval --include_path . --tasks <name>``.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from ablationlab.core.errors import DataError, RecordError
from ablationlab.core.format import percent, plain
from ablationlab.core.paths import real_path
from ablationlab.data.corpus import TokenizedCorpus
from ablationlab.data.sources import OFFLINE_VARIABLE
from ablationlab.records.evaluation import Source
from ablationlab.records.storage import content_hash, new_folder, read_regular, replace, write_bytes
from ablationlab.tasks import benchmarks, suite
from ablationlab.tasks.request import STOCK, TaskRequest, check_file, expand, full_manager, is_file
from ablationlab.tasks.suite import BuiltTask


@dataclass(frozen=True, eq=False)
class HarnessTask:
    """One task with one template and number of examples, loaded by the harness."""

    task: str
    template: str
    fewshot: int
    version: str
    hash: str
    source: Source
    meaning: str
    loaded: Any

    @property
    def name(self) -> str:
        return str(self.loaded.task_name)

    @property
    def has_choices(self) -> bool:
        return bool(self.loaded.OUTPUT_TYPE == "multiple_choice")


@dataclass(frozen=True, eq=False)
class HarnessTasks:
    """All tasks of a request, and the harness's manager that loaded them."""

    tasks: tuple[HarnessTask, ...]
    manager: Any


def _confine_templates() -> None:
    """Templates of task files are rendered in Jinja's sandbox: in the harness's own environment they could run any code."""
    from jinja2.sandbox import SandboxedEnvironment
    from lm_eval import utils

    if not isinstance(utils.env, SandboxedEnvironment):
        confined = SandboxedEnvironment(
            loader=utils.env.loader,
            undefined=utils.env.undefined,
            keep_trailing_newline=utils.env.keep_trailing_newline,
        )
        confined.filters |= utils.env.filters
        utils.env = confined


@contextlib.contextmanager
def _no_bytecode() -> Iterator[None]:
    """Python files of a task run as they were read: bytecode that lies beside them may be of other code."""
    before = sys.pycache_prefix, sys.dont_write_bytecode
    sys.pycache_prefix, sys.dont_write_bytecode = os.devnull, True
    try:
        yield
    finally:
        sys.pycache_prefix, sys.dont_write_bytecode = before


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Holds back what the harness and datasets print; their exceptions pass."""
    from lm_eval import evaluator

    _confine_templates()
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    # It would ask git and the system about themselves on every call, for a second or two; our records say these things.
    replaced = {name: getattr(evaluator, name) for name in ("get_git_commit_hash", "add_env_info")}
    for name in replaced:
        setattr(evaluator, name, lambda *_: None)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, function in replaced.items():
            setattr(evaluator, name, function)
        logging.disable(level)


def build_tasks(request: TaskRequest, corpus: TokenizedCorpus, context: int, root: Path) -> HarnessTasks:
    """Build, write and load every task; the folder *root* keeps their files."""
    from lm_eval.tasks import TaskManager

    with quiet():
        manager = TaskManager(include_defaults=False)
    tasks: list[HarnessTask] = []
    texts: list[str] = []
    for name in expand(request.tasks):
        if name in suite.KINDS:
            texts = texts or list(corpus.readable())
            tasks += _suite_tasks(name, request, corpus, texts, context, root, manager)
        elif name in benchmarks.CATALOGUE:
            tasks += _benchmark_tasks(name, request, corpus, context, manager)
        else:
            tasks += _stock_tasks(name, request, manager)
    names = Counter(task.name for task in tasks)
    keys = Counter((task.task, task.template, task.fewshot) for task in tasks)
    twice = dict.fromkeys([*(name for name in names if names[name] > 1), *(key[0] for key in keys if keys[key] > 1)])
    if twice:
        raise DataError(f"asked more than once, so that one score would replace the other: {', '.join(twice)}")
    return HarnessTasks(tuple(tasks), manager)


def _load(definition: str | dict[str, Any], name: str, manager: Any) -> Any:
    """One task from its YAML file, or from what would be in it."""
    try:
        with quiet():
            return manager.load([definition])["tasks"][name]
    except Exception as error:
        raise DataError(f"the harness could not load {name}: {type(error).__name__}: {error}") from error


# Tasks of the suite.


def _suite_tasks(
    name: str,
    request: TaskRequest,
    corpus: TokenizedCorpus,
    texts: Sequence[str],
    context: int,
    root: Path,
    manager: Any,
) -> list[HarnessTask]:
    kind = suite.KINDS[name]
    templates = kind.templates if request.templates == "all" else kind.templates[:1]
    tasks = []
    for fewshot in request.fewshot:
        for template in templates:
            if not _can_spell(template, corpus):
                continue
            built = suite.build(name, texts[0], texts[1], context, fewshot, template.name, request.items)
            loaded = _load(_definition(built, real_path(write_task(built, root))), harness_name(built), manager)
            tasks.append(
                HarnessTask(name, template.name, fewshot, suite.VERSION, built.hash, "suite", kind.meaning, loaded)
            )
    return tasks


def _can_spell(template: suite.Template, corpus: TokenizedCorpus) -> bool:
    """Whether the vocabulary has the template's own characters."""
    characters = corpus.tokenizer.characters
    return characters is None or template.characters <= set(characters)


def harness_name(task: BuiltTask) -> str:
    return f"ablationlab_{task.kind.name}_{task.template.name}_{task.fewshot}shot"


def write_task(task: BuiltTask, root: Path) -> Path:
    """Write the files, or find them there; their folder. The YAML file names the others from *root*, wherever that lies."""
    target = root / f"{task.kind.name}-{task.template.name}-{task.fewshot}shot-{task.hash[:12]}"
    content = {"items.jsonl": _lines(task.rows(task.items))}
    content["examples.jsonl"] = _lines(task.rows(task.examples or task.items[:1]))
    definition = json.dumps(_definition(task, Path(target.name)), indent=1, ensure_ascii=False) + "\n"  # JSON is YAML
    if target.exists():
        for name, data in content.items():
            if not (target / name).exists() or read_regular(target / name) != data:
                raise RecordError(
                    f"{target / name} is not what the runs are asked: it was changed after it was written. Remove {target}; "
                    "it is written again"
                )
        replace(target / "task.yaml", definition.encode())  # for others: nothing here reads it
        return target
    try:
        with new_folder(target) as folder:
            for name, data in content.items():
                write_bytes(folder / name, data)
            write_bytes(folder / "task.yaml", definition.encode())
    except OSError:
        if not target.exists():  # another process may have written it meanwhile
            raise
    return target


def _lines(rows: Sequence[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _definition(task: BuiltTask, folder: Path) -> dict[str, Any]:
    """Plain column names, which the harness reads without its template engine."""
    return {
        "task": harness_name(task),
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {"test": str(folder / "items.jsonl"), "train": str(folder / "examples.jsonl")},
        },
        "output_type": "multiple_choice",
        "test_split": "test",
        "training_split": "train",
        "fewshot_split": "train",
        "num_fewshot": task.fewshot,
        "doc_to_text": "text",
        "doc_to_choice": "choices",
        "doc_to_target": "target",
        "target_delimiter": task.template.delimiter,
        "fewshot_delimiter": "\n",
        "metric_list": [
            {"metric": "acc", "aggregation": "mean", "higher_is_better": True},
            {"metric": "acc_norm", "aggregation": "mean", "higher_is_better": True},
        ],
        "metadata": {"version": suite.VERSION},
    }


# Benchmarks.


def _benchmark_tasks(
    name: str, request: TaskRequest, corpus: TokenizedCorpus, context: int, manager: Any
) -> list[HarnessTask]:
    benchmarks.check_context(name, context)
    benchmark = benchmarks.CATALOGUE[name]
    templates = list(benchmark.templates) if request.templates == "all" else list(benchmark.templates)[:1]
    tasks = []
    for fewshot in request.fewshot:
        for template in templates:
            path, inner, digest = benchmarks.write_benchmark(benchmark, template, fewshot, request.items)
            loaded = _load(str(path), inner, manager)
            _check_characters(name, loaded, corpus)
            version = str(loaded.VERSION)
            tasks.append(HarnessTask(name, template, fewshot, version, digest, "benchmark", benchmark.meaning, loaded))
    return tasks


def _check_characters(name: str, loaded: Any, corpus: TokenizedCorpus) -> None:
    characters = corpus.tokenizer.characters
    if characters is None:
        return
    known = set(characters)
    text = "".join(piece for doc in list(loaded.eval_docs)[:200] for piece in _texts(doc))
    share = float(np.mean([character not in known for character in text])) if text else 0.0
    if share > benchmarks.MOST_UNKNOWN:
        raise DataError(
            f"benchmark {name!r}: {plain(percent(share, 1))} of its characters are not among the {len(known)} of this "
            f"vocabulary, and at most {plain(percent(benchmarks.MOST_UNKNOWN))} may be; train on a text that has them, or "
            "with a BPE tokenizer"
        )


def _texts(value: Any) -> Iterator[str]:
    """Every text in a document, however deep: choices are often nested in lists and tables."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


# Tasks of the harness itself, and YAML files.


def _stock_tasks(name: str, request: TaskRequest, manager: Any) -> list[HarnessTask]:
    """Any task, tag or group of the harness, from its own sources, or a YAML file."""
    source = name if is_file(name) else name.removeprefix(STOCK)
    check_file(name)
    tasks: list[HarnessTask] = []
    for fewshot in request.fewshot:
        try:
            if is_file(name):
                with quiet(), _no_bytecode():
                    loaded = manager.load([source])["tasks"]
            elif source not in full_manager().all_tasks:
                raise KeyError(source)  # the harness would take a file of that name
            else:
                with quiet():
                    loaded = full_manager().load([source])["tasks"]
        except Exception as error:
            raise DataError(
                f"the harness could not load task {name!r}: {type(error).__name__}: {error}" + _load_advice(name)
            ) from error
        for inner, task in loaded.items():
            if task.get_config("num_fewshot") is None or fewshot:
                task.set_config(key="num_fewshot", value=fewshot)
            shots = int(task.get_config("num_fewshot"))
            if any((known.task, known.fewshot) == (inner, shots) for known in tasks):
                continue
            definition = json.loads(json.dumps(task.dump_config(), default=str))
            digest = content_hash([definition, _documents_hash(task, shots), request.items])
            task.config.task = f"{inner}_{shots}shot" if len(request.fewshot) > 1 else inner
            tasks.append(HarnessTask(inner, "stock", shots, str(task.VERSION), digest, "harness", "", task))
    return tasks


def _load_advice(name: str) -> str:
    """What to do about data that cannot be fetched."""
    bare = name.removeprefix(STOCK)
    if is_file(name):
        return ". Its dataset_path says where its data come from"
    text = ". A task of the harness fetches its data from the data sets' hub, unless they are in its cache (HF_HOME)"
    if os.environ.get(OFFLINE_VARIABLE):
        text += f"; {OFFLINE_VARIABLE} is set: nothing was downloaded"
    if bare in benchmarks.CATALOGUE:
        return f"{text}. The benchmark {bare!r} (without {STOCK!r}) reads local files"
    return f"{text}. You can use a YAML file that reads local files instead"


def _documents_hash(task: Any, shots: int) -> str:
    """Of every document that is asked and, with examples, of those that they come from: sources elsewhere may change."""
    total = hashlib.sha256()
    examples = list(task.fewshot_docs() or ()) if shots else []
    for doc in [*task.eval_docs, None, *examples]:
        total.update(json.dumps(doc, sort_keys=True, default=str).encode() + b"\n")
    return total.hexdigest()


# What a loaded task offers.


def choices_of(task: Any, doc: Any) -> tuple[list[str], int | None]:
    """The choices of a document and which of them is right, as the harness reads them; None where several are, or none."""
    choices = [str(choice) for choice in task.doc_to_choice(doc)]
    # Where the choice is part of the prompt, the harness keeps the number of the right one in the place of the text.
    target = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    if isinstance(target, str):
        target = choices.index(target) if target in choices else None
    known = isinstance(target, int) and 0 <= target < len(choices) and not task.multiple_target
    return choices, int(target) if known else None


def chance_of(rows: Sequence[tuple[tuple[str, ...], int]]) -> tuple[float, float]:
    """(mean number of choices, accuracy of guessing) of items given as (choices, target).

    Guessing is the better of picking at random and, where every item offers the same choices, always naming the same one.
    """
    counts = [len(choices) for choices, _ in rows]
    uniform = fmean(1 / count for count in counts)
    if len({choices for choices, _ in rows}) == 1:
        most = Counter(target for _, target in rows).most_common(1)[0][1] / len(rows)
        return fmean(counts), max(uniform, most)
    return fmean(counts), uniform
