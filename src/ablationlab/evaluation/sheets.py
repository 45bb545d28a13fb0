"""A task as a sheet of questions: built once by the harness, answered by any number of runs, marked by the harness.

`simple_evaluate` builds every prompt anew for every model, though all runs of a study get the same ones. A sheet takes its
steps apart: the harness's task builds its requests once (`build_all_requests`, under the seeds that `simple_evaluate` sets);
the answers of each run are put into these requests, and the task's own filters, `process_results` and aggregations make
the metrics, as `evaluate` does. Nothing of the harness's arithmetic is done here; a test holds every figure, sample and hash
to what `simple_evaluate` gives.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from lm_eval.api.metrics import mean
from lm_eval.evaluator_utils import get_sample_size
from lm_eval.utils import handle_non_serializable, hash_string

from ablationlab.core.errors import DataError
from ablationlab.evaluation.harness import FEWSHOT_SEED, NUMPY_SEED, PYTHON_SEED, StackLM
from ablationlab.evaluation.scoring import Continuation, Packed, pack
from ablationlab.tasks.build import HarnessTask, chance_of, choices_of, quiet


@dataclass(frozen=True, eq=False)
class Item:
    """One document with its requests, and what the harness's samples say of it whoever answers."""

    number: int
    doc: Any
    requests: tuple[Any, ...]
    doc_hash: str
    prompt_hash: str
    target_hash: str


@dataclass(frozen=True, eq=False)
class Marked:
    """What the harness makes of one run's answers: the metrics of every item, and its figures over all of them."""

    metrics: tuple[Mapping[str, Any], ...]
    responses: tuple[Sequence[Any], ...]
    figures: dict[str, float]


class Sheet:
    """One loaded task and its requests."""

    def __init__(self, asked: HarnessTask, lm: StackLM, limit: int | None) -> None:
        self.asked, self.text, self.limit = asked, lm.text, limit
        task = asked.loaded
        _refuse(asked)
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        random.seed(PYTHON_SEED)
        np.random.seed(NUMPY_SEED)  # noqa: NPY002 (the harness's tasks may draw from it, and simple_evaluate sets it so)
        task.set_fewshot_seed(seed=FEWSHOT_SEED)
        with quiet():
            task.build_all_requests(limit=get_sample_size(task, limit), fewshot_as_multiturn=True)
        self.requests: list[Any] = task.instances
        self.items = _items(task)
        self.continuations = self._continuations(lm)
        self.packed: Packed | None = None
        if self.continuations is not None:
            self.packed = pack(self.continuations, lm.context)
        self._written_on_cut = [_is_cut(item, lm) for item in self.items]

    def _continuations(self, lm: StackLM) -> list[list[Continuation]] | None:
        """The requests as tokens, by document; None where the task asks for more than log-probabilities."""
        if any(request.request_type != "loglikelihood" for request in self.requests):
            return None
        return [[lm.continuation(*request.args) for request in item.requests] for item in self.items]

    @cached_property
    def offers(self) -> list[tuple[tuple[str, ...], int]] | None:
        """(choices, right one) of every item; None where a task does not offer choices of which one is right."""
        if not self.asked.has_choices:
            return None
        found = [choices_of(self.asked.loaded, item.doc) for item in self.items]
        whole = [(tuple(choices), target) for choices, target in found if target is not None]
        return whole if len(whole) == len(found) else None

    @cached_property
    def chance(self) -> tuple[float | None, float | None]:
        """(mean number of choices, accuracy of guessing)."""
        return chance_of(self.offers) if self.offers else (None, None)

    @cached_property
    def unknown_characters(self) -> int:
        """Characters of prompts and choices that the vocabulary lacks."""
        return sum(self.text.count_unknown(piece) for item in self.items for piece in _texts(item.requests))

    @cached_property
    def truncated(self) -> list[bool]:
        """Whether an item had to be cut to fit the context: one that is written on, before anything was written."""
        if self.packed is None:
            return self._written_on_cut
        ends = np.cumsum([len(item.requests) for item in self.items])
        return [bool(flags.any()) for flags in np.split(self.packed.truncated_N, ends[:-1])]

    def respond(self, lm: StackLM) -> list[Any]:
        """The current member's answers to requests of any kind, through the harness's own interface."""
        answers: list[Any] = [None] * len(self.requests)
        for kind in dict.fromkeys(request.request_type for request in self.requests):
            mine = [place for place, request in enumerate(self.requests) if request.request_type == kind]
            for place, answer in zip(mine, getattr(lm, kind)([self.requests[p] for p in mine]), strict=True):
                answers[place] = answer
        return answers

    def mark(self, answers: Sequence[Any]) -> Marked:
        """Answers in the order of the requests -> metrics, by the task's own filters, metrics and aggregations."""
        task = self.asked.loaded
        task._instances = self.requests  # the task may have been put to someone else meanwhile
        for request, answer in zip(self.requests, answers, strict=True):
            request.resps, request.filtered_resps = [answer] * (request.repeats or 1), {}
        figures: dict[str, float] = {}
        shown: tuple[tuple[Mapping[str, Any], ...], tuple[Sequence[Any], ...]] | None = None
        with quiet():
            task.apply_filters()
            for name in list(self.requests[0].filtered_resps):
                responses = [[request.filtered_resps[name] for request in item.requests] for item in self.items]
                metrics = [
                    task.process_results(item.doc, mine) for item, mine in zip(self.items, responses, strict=True)
                ]
                figures |= _figures(task, metrics, name)
                shown = shown or (tuple(metrics), tuple(responses))
        assert shown is not None
        return Marked(*shown, figures)


def _refuse(asked: HarnessTask) -> None:
    """What simple_evaluate would not run, or not with a model of text."""
    if getattr(asked.loaded, "UNSAFE_CODE", False):
        raise DataError(f"task {asked.task!r} runs code that a model has written; this is not done here")
    if getattr(asked.loaded, "MULTIMODAL", False):
        raise DataError(f"task {asked.task!r} asks about images or sound, and these are models of text")


def _items(task: Any) -> tuple[Item, ...]:
    by_doc: dict[int, list[Any]] = {}
    for request in task.instances:
        by_doc.setdefault(request.doc_id, []).append(request)
    found = []
    for number, requests in by_doc.items():
        doc = requests[0].doc
        text = json.dumps(doc, indent=2, default=handle_non_serializable, ensure_ascii=False)
        ordered = tuple(sorted(requests, key=lambda request: int(request.idx)))
        prompt, target = hash_string(ordered[0].arguments[0]), hash_string(str(task.doc_to_target(doc)))
        found.append(Item(number, doc, ordered, hash_string(text), prompt, target))
    return tuple(found)


def _is_cut(item: Item, lm: StackLM) -> bool:
    """Whether a prompt that is to be written on is longer than the context; whole texts go by in windows, uncut."""
    asked = [request.args[0] for request in item.requests if request.request_type == "generate_until"]
    return any(len(lm.tok_encode(prompt)) > lm.context for prompt in asked)


def _figures(task: Any, metrics: Sequence[Mapping[str, Any]], filtered: str) -> dict[str, float]:
    """The task's aggregations over its items; the filter's name stays where it is not the only one."""
    values: dict[str, list[Any]] = {}
    for one in metrics:
        for name, value in one.items():
            values.setdefault(name, []).append(value)
    figures: dict[str, float] = {}
    for name, mine in values.items():
        value = task.aggregation().get(name, mean)(mine)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            figures[f"{name},{filtered}".removesuffix(",none")] = float(value)
    return figures | {"sample_len": float(max(map(len, values.values()), default=0))}


def _texts(requests: Sequence[Any]) -> list[str]:
    """The prompt, and what follows it in every request."""
    endings = [request.args[1] for request in requests if len(request.args) > 1 and isinstance(request.args[1], str)]
    return [requests[0].args[0], *endings]
