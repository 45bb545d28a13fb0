"""Which tasks are asked: names of the suite, of local benchmarks, of the harness, or YAML files -> loaded harness tasks."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from ablationlab.core.errors import DataError, UnknownNameError
from ablationlab.data.corpus import TokenizedCorpus
from ablationlab.data.sources import OFFLINE_VARIABLE
from ablationlab.records.evaluation import Source
from ablationlab.records.storage import content_hash
from ablationlab.tasks import benchmarks, suite
from ablationlab.tasks.files import harness_name, write_task
from ablationlab.tasks.names import BENCHMARK_GROUP, STOCK, SUITE_GROUP, Question, alike


@dataclass(frozen=True, eq=False)
class AskedTask:
    """One loaded task under one wording and number of examples."""

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
        """Its name inside the harness."""
        return str(self.loaded.task_name)

    @property
    def chooses(self) -> bool:
        """Whether it offers choices."""
        return bool(self.loaded.OUTPUT_TYPE == "multiple_choice")


@dataclass(frozen=True, eq=False)
class Asked:
    """All tasks of an evaluation, and the harness's manager that loaded them."""

    tasks: tuple[AskedTask, ...]
    manager: Any


def resolve(question: Question, corpus: TokenizedCorpus, context: int, root: Path) -> Asked:
    """Build, write and load every task; the folder *root* keeps their files."""
    from lm_eval.tasks import TaskManager

    from ablationlab.tasks.harness import quiet

    with quiet():
        manager = TaskManager(include_defaults=False)
    found: list[AskedTask] = []
    texts: list[str] = []
    for name in expanded(question.tasks):
        if name in suite.KINDS:
            texts = texts or list(corpus.readable())
            found += _of_suite(name, question, corpus, texts, context, root, manager)
        elif name in benchmarks.CATALOGUE:
            found += _benchmark(name, question, corpus, context, root, manager)
        else:
            found += _of_harness(name, question, manager)
    names = Counter(task.name for task in found)
    keys = Counter((task.task, task.template, task.fewshot) for task in found)
    twice = dict.fromkeys([*(name for name in names if names[name] > 1), *(key[0] for key in keys if keys[key] > 1)])
    if twice:
        raise DataError(f"asked more than once, so that one score would replace the other: {', '.join(twice)}")
    return Asked(tuple(found), manager)


def expanded(names: Sequence[str]) -> list[str]:
    """Groups opened, repetitions dropped, unknown names refused with the nearest known one."""
    found: list[str] = []
    for name in names:
        if name == SUITE_GROUP:
            found += list(suite.KINDS)
        elif name == BENCHMARK_GROUP:
            found += list(benchmarks.CATALOGUE)
        else:
            found.append(name)
    unique = list(dict.fromkeys(found))
    known = [*suite.KINDS, *benchmarks.CATALOGUE]
    strange = [name for name in unique if name not in known and not is_file(name)]
    for name in strange:
        if name.removeprefix(STOCK) not in _harness_index():
            raise _unknown(name)
    return unique


def _unknown(name: str) -> UnknownNameError:
    """Everything that may be asked, in short, and what of it is like *name*: all fourteen thousand would help nobody."""
    ours, theirs = [*suite.KINDS, *benchmarks.CATALOGUE], _harness_index()
    allowed = [SUITE_GROUP, BENCHMARK_GROUP, *ours, *(one for one in theirs if one not in ours)]
    known = (
        f"{SUITE_GROUP} ({', '.join(suite.KINDS)}), {BENCHMARK_GROUP} ({', '.join(benchmarks.CATALOGUE)}), {len(theirs):,} "
        "tasks, tags and groups of lm-evaluation-harness (`lm-eval ls tasks` lists them), or the path of a YAML file"
    )
    if name.startswith(STOCK):
        allowed = [f"{STOCK}{one}" for one in theirs]
        like = [f"{STOCK}{one}" for one in alike(name.removeprefix(STOCK), theirs)]
    else:
        like = alike(name, allowed)
    return UnknownNameError("task", name, allowed, known=known, like=like)


def is_file(name: str) -> bool:
    """Whether a name is the path of a YAML file."""
    return name.endswith((".yaml", ".yml")) or "/" in name


def missing_file(name: str) -> DataError:
    """For a path that leads nowhere."""
    return DataError(f"task file {name}: no such file")


@cache
def _harness_index() -> tuple[str, ...]:
    """Every name that the harness knows; takes it about ten seconds."""
    return tuple(_full_manager().all_tasks)


@cache
def _full_manager() -> Any:
    from lm_eval.tasks import TaskManager

    from ablationlab.tasks.harness import quiet

    with quiet():
        return TaskManager()


def _of_suite(
    name: str,
    question: Question,
    corpus: TokenizedCorpus,
    texts: Sequence[str],
    context: int,
    root: Path,
    manager: Any,
) -> list[AskedTask]:
    what = suite.KINDS[name]
    wordings = what.templates if question.templates == "all" else what.templates[:1]
    found = []
    for fewshot in question.fewshot:
        for wording in wordings:
            if not _can_word(wording, corpus):
                continue
            built = suite.build(name, texts[0], texts[1], context, fewshot, wording.name, question.items)
            loaded = _load(write_task(built, root), harness_name(built), manager)
            found.append(
                AskedTask(name, wording.name, fewshot, suite.VERSION, built.hash, "suite", what.meaning, loaded)
            )
    return found


def _can_word(wording: suite.Template, corpus: TokenizedCorpus) -> bool:
    """Whether the vocabulary has the template's own characters."""
    characters = corpus.tokenizer.characters
    own = wording.before + wording.after + wording.delimiter + wording.ending
    return characters is None or set(own) <= set(characters)


def _benchmark(
    name: str, question: Question, corpus: TokenizedCorpus, context: int, root: Path, manager: Any
) -> list[AskedTask]:
    benchmarks.check_context(name, context)
    what = benchmarks.CATALOGUE[name]
    wordings = list(what.templates) if question.templates == "all" else list(what.templates)[:1]
    found = []
    for fewshot in question.fewshot:
        for wording in wordings:
            path, inner, digest = benchmarks.write_benchmark(what, wording, fewshot, question.items, root)
            loaded = _load(path, inner, manager)
            _refuse_strange(name, loaded, corpus)
            version = str(loaded.VERSION)
            found.append(AskedTask(name, wording, fewshot, version, digest, "benchmark", what.meaning, loaded))
    return found


def _refuse_strange(name: str, loaded: Any, corpus: TokenizedCorpus) -> None:
    characters = corpus.tokenizer.characters
    if characters is None:
        return
    known = set(characters)
    text = "".join(piece for doc in list(loaded.eval_docs)[:200] for piece in _texts(doc))
    share = float(np.mean([character not in known for character in text])) if text else 0.0
    if share > benchmarks.MOST_UNKNOWN:
        raise DataError(
            f"benchmark {name!r}: {share:.1%} of its characters are not among the {len(known)} of this vocabulary, and "
            f"at most {benchmarks.MOST_UNKNOWN:.0%} may be; train on a text that has them, or with a BPE tokenizer"
        )


def _texts(value: Any) -> Iterator[str]:
    """Every text in a document, however deep: choices often stand in lists and tables."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _of_harness(name: str, question: Question, manager: Any) -> list[AskedTask]:
    """Any task, tag or group of the harness, from its own sources, or a YAML file."""
    from ablationlab.tasks.harness import quiet

    source = name if is_file(name) else name.removeprefix(STOCK)
    if is_file(name) and not Path(name).is_file():
        raise missing_file(name)
    found: list[AskedTask] = []
    for fewshot in question.fewshot:
        try:
            with quiet():
                loaded = (manager if is_file(name) else _full_manager()).load([source])["tasks"]
        except Exception as error:
            raise DataError(
                f"the harness could not load task {name!r}: {type(error).__name__}: {error}" + _how_to_have(name)
            ) from error
        for inner, task in loaded.items():
            if task.get_config("num_fewshot") is None or fewshot:
                task.set_config(key="num_fewshot", value=fewshot)
            shots = int(task.get_config("num_fewshot"))
            if any((one.task, one.fewshot) == (inner, shots) for one in found):
                continue
            definition = json.loads(json.dumps(task.dump_config(), default=str))
            digest = content_hash([definition, _documents_hash(task, shots), question.items])
            task.config.task = f"{inner}_{shots}shot" if len(question.fewshot) > 1 else inner
            found.append(AskedTask(inner, "stock", shots, str(task.VERSION), digest, "harness", "", task))
    return found


def _how_to_have(name: str) -> str:
    """What to do about data that cannot be fetched."""
    bare = name.removeprefix(STOCK)
    if is_file(name):
        return ". Its dataset_path says where its data come from"
    text = ". A task of the harness fetches its data from the data sets' hub, unless they are in its cache (HF_HOME)"
    if os.environ.get(OFFLINE_VARIABLE):
        text += f"; {OFFLINE_VARIABLE} is set: nothing was downloaded"
    if bare in benchmarks.CATALOGUE:
        return f"{text}. The benchmark {bare!r} (without {STOCK!r}) reads local files"
    return f"{text}. A YAML file that reads local files can be asked in its place"


def _documents_hash(task: Any, shots: int) -> str:
    """Of every document that is asked and, with examples, of those that they come from: sources elsewhere may change."""
    total = hashlib.sha256()
    examples = list(task.fewshot_docs() or ()) if shots else []
    for doc in [*task.eval_docs, None, *examples]:
        total.update(json.dumps(doc, sort_keys=True, default=str).encode() + b"\n")
    return total.hexdigest()


def _load(path: Path, name: str, manager: Any) -> Any:
    """One task from its YAML file."""
    from ablationlab.tasks.harness import quiet

    try:
        with quiet():
            return manager.load([str(path)])["tasks"][name]
    except Exception as error:
        raise DataError(f"the harness could not load {path}: {type(error).__name__}: {error}") from error


def choices_of(task: Any, doc: Any) -> tuple[list[str], int | None]:
    """The choices of a document and which of them is right, as the harness reads them; None where several are, or none."""
    choices = [str(choice) for choice in task.doc_to_choice(doc)]
    # Where the choice stands inside the prompt, the harness keeps the right one's number in the place of the text.
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
