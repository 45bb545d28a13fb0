"""Tasks through lm-evaluation-harness: runs as a model of the harness, and task batches.

`StackLM` scores for a whole stack and answers for one member at a time. Any harness program can drive it, `simple_evaluate`
among them: the first member's requests are scored for all members in stacked passes; the others are answered from memory.

`simple_evaluate` builds every prompt again for every model, though all runs of a study get the same ones. So `TaskBatch`
takes its steps apart: the harness's task builds its requests once (`build_all_requests`, under the seeds that
`simple_evaluate` sets); the answers of each run are put into these requests, and the task's own filters, `process_results`
and aggregations make the metrics, as `evaluate` does. Nothing of the harness's arithmetic is done here; a test compares every
figure, sample and hash with what `simple_evaluate` gives.
"""

from __future__ import annotations

import json
import math
import os
import random
import warnings
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from ablationlab.core.errors import DataError
from ablationlab.core.grouping import grouped
from ablationlab.data.corpus import TokenizedCorpus
from ablationlab.data.ngrams import MOST
from ablationlab.data.tokens import sample
from ablationlab.evaluation.calibration import choice_calibration, softmax
from ablationlab.evaluation.runs import SCHEMA, ScoredStack, TaskAnswers
from ablationlab.evaluation.scoring import (
    Continuation,
    NgramScorer,
    Packed,
    Scorer,
    Scores,
    ScoringTokens,
    StackScorer,
    pack,
)
from ablationlab.evaluation.tasks import PackedTask
from ablationlab.records.evaluation import SuiteTask, TaskResult, Weights, packed_answers
from ablationlab.tasks import HarnessTask, TaskRequest, build_tasks
from ablationlab.tasks.harness_tasks import chance_of, choices_of, quiet

os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from lm_eval import simple_evaluate
    from lm_eval.api.instance import Instance
    from lm_eval.api.metrics import mean
    from lm_eval.api.model import TemplateLM
    from lm_eval.evaluator_utils import get_sample_size
    from lm_eval.utils import get_rolling_token_windows, handle_non_serializable, hash_string, make_disjoint_window


MAX_GENERATED = 64
# Texts that are generated in one pass.
GENERATED_TOGETHER = 32
# Seeds of a harness run: its own defaults.
PYTHON_SEED, NUMPY_SEED, FEWSHOT_SEED = 0, 1234, 1234


class StackLM(TemplateLM):  # type: ignore[misc]
    """Several trained runs (or n-gram models) behind the harness's interface; ``current`` is the one that answers."""

    def __init__(self, scorer: Scorer | None, text: ScoringTokens, context: int) -> None:
        super().__init__()
        self.scorer, self.text, self.context = scorer, text, context
        self.current = 0
        self._encode = lru_cache(maxsize=64)(text.encode)
        self._known: dict[str, tuple[list[list[Continuation]], Scores]] = {}

    @property
    def eot_token_id(self) -> int:
        """What stands for an empty context."""
        return self.text.empty_context

    @property
    def max_length(self) -> int:
        """The model's context."""
        return self.context

    @property
    def tokenizer_name(self) -> str:
        """No chat templates here."""
        return "ablationlab"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids; there are no special tokens to add."""
        return list(self._encode(string))

    def continuation(self, context: str, text: str) -> Continuation:
        """A request as tokens, split as the harness splits it."""
        if context:
            before, after = self._encode_pair(context, text)
        else:
            before, after = [self.eot_token_id], self.tok_encode(text)
        if not after:
            raise DataError(f"a request of the task has an empty continuation (after {context[-40:]!r})")
        return Continuation(tuple(before) or (self.eot_token_id,), tuple(after))

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-probability, whether greedy) of each continuation; requests of one document are scored together.

        Each task is scored by itself: which rows share a batch, and with it the last bits, depends on nothing else asked.
        """
        answers: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        places: dict[str, dict[object, list[int]]] = {}
        for place, request in enumerate(requests):
            places.setdefault(str(request.task_name), {}).setdefault(request.doc_id, []).append(place)
        for task, documents in places.items():
            items = [[self.continuation(*requests[place].args) for place in mine] for mine in documents.values()]
            order = [place for mine in documents.values() for place in mine]
            for place, answer in zip(order, self._answers(task, items), strict=True):
                answers[place] = answer
        return answers

    def _answers(self, task: str, items: list[list[Continuation]]) -> list[tuple[float, bool]]:
        """What the current member answers; scored for all members where it was not asked before."""
        assert self.scorer is not None, "an LM without a scorer only cuts requests into tokens"
        if task not in self._known or self._known[task][0] != items:
            self._known[task] = (items, self.scorer.score(items))
        return self._known[task][1].answers(self.current)

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        return self._answers("", [[Continuation(tuple(before), tuple(after))] for _, before, after in requests])

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-probability of whole texts, cut into windows of one context that do not overlap."""
        answers = []
        for request in requests:
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.eot_token_id,
                max_seq_len=self.context,
                context_len=1,
            )
            pieces = [make_disjoint_window(window) for window in windows]
            wanted = [[Continuation(tuple(before), tuple(after))] for before, after in pieces]
            answers.append(sum(score for score, _ in self._answers(request.args[0], wanted)))
        return answers

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Greedy continuations, up to the first stop text or the most tokens allowed; the window slides past the context."""
        if not isinstance(self.scorer, StackScorer):
            raise DataError("n-gram models do not generate")
        texts = [self._generation(*request.args) for request in requests]
        order = sorted(texts, key=lambda text: len(text.ids))
        for start in range(0, len(order), GENERATED_TOGETHER):
            self._generate(self.scorer.stack, order[start : start + GENERATED_TOGETHER])
        return [text.answer for text in texts]

    def _generation(self, context: str, options: Mapping[str, Any]) -> _Generation:
        if options.get("do_sample") or float(options.get("temperature") or 0.0) > 0.0:
            raise DataError("this adapter decodes greedily; the task asks for sampling")
        until = options.get("until") or []
        stops = [until] if isinstance(until, str) else list(until)
        most = int(options.get("max_gen_toks") or options.get("max_tokens") or MAX_GENERATED)
        return _Generation(self.tok_encode(context) or [self.eot_token_id], [stop for stop in stops if stop], most)

    def _generate(self, stack: ScoredStack, batch: Sequence[_Generation]) -> None:
        """Generate all of them, a token at a time, until each has met a stop text or its end."""
        while unfinished := [text for text in batch if not text.done]:
            tokens = _greedy(stack, [text.ids[-self.context :] for text in unfinished], self.current)
            for text, token in zip(unfinished, tokens, strict=True):
                text.ids.append(token)
                text.generated.append(token)
                text.answer = self.text.decode(text.generated)
                ends = [text.answer.index(stop) for stop in text.stops if stop in text.answer]
                text.done = bool(ends) or len(text.generated) >= text.most
                text.answer = text.answer[: min(ends)] if ends else text.answer


@dataclass
class _Generation:
    """A text that is being generated, after the tokens of its prompt."""

    ids: list[int]
    stops: list[str]
    most: int
    generated: list[int] = field(default_factory=list)
    answer: str = ""
    done: bool = False


def _greedy(stack: ScoredStack, rows: Sequence[Sequence[int]], member: int) -> list[int]:
    """The most probable next token of one member after each row; short rows are filled up behind, where nothing looks."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=stack.device)
    positions = torch.arange(longest, device=stack.device).expand(len(rows), -1)
    own = stack.alone(member)
    x = own.packed_hidden(tokens, positions, torch.zeros_like(tokens))
    ends = torch.tensor([len(row) - 1 for row in rows], device=stack.device)
    last = x[:, torch.arange(len(rows), device=stack.device), ends]
    chosen: list[int] = own.head(last)[0].argmax(dim=-1).tolist()
    return chosen


def ask(lm: StackLM, tasks: Sequence[Any], manager: Any, limit: int | None = None) -> dict[str, Any]:
    """Put loaded harness tasks to the current member; the harness's own results, with samples."""
    with quiet():
        answers = simple_evaluate(
            model=lm,
            tasks=list(tasks),
            task_manager=manager,  # without one the harness would index all its tasks, for ten seconds
            limit=limit,
            bootstrap_iters=0,
            log_samples=True,
            random_seed=PYTHON_SEED,
            numpy_random_seed=NUMPY_SEED,
            torch_random_seed=NUMPY_SEED,
            fewshot_random_seed=FEWSHOT_SEED,
        )
    assert answers is not None
    return dict(answers)


#: What counts as right or wrong where a task offers no choices: the first of these that it reports.
_CORRECT = ("acc", "exact_match")
Columns = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Document:
    """One item of a task with its requests, and the hashes that the harness's samples have of it, whoever answers."""

    number: int
    doc: Any
    requests: tuple[Any, ...]
    doc_hash: str
    prompt_hash: str
    target_hash: str


@dataclass(frozen=True, eq=False)
class HarnessScores:
    """What the harness makes of one run's answers: the metrics of every item, and its figures over all of them."""

    metrics: tuple[Mapping[str, Any], ...]
    responses: tuple[Sequence[Any], ...]
    figures: dict[str, float]


class TaskBatch:
    """One loaded task and its requests."""

    def __init__(self, task: HarnessTask, lm: StackLM, limit: int | None) -> None:
        self.task, self.text, self.limit = task, lm.text, limit
        loaded = task.loaded
        _refuse(task)
        if loaded.get_config("num_fewshot") is None:
            loaded.set_config(key="num_fewshot", value=0)
        random.seed(PYTHON_SEED)
        np.random.seed(NUMPY_SEED)  # noqa: NPY002 (the harness's tasks may draw from it, and simple_evaluate sets it so)
        loaded.set_fewshot_seed(seed=FEWSHOT_SEED)
        with quiet():
            loaded.build_all_requests(limit=get_sample_size(loaded, limit), fewshot_as_multiturn=True)
        self.requests: list[Any] = loaded.instances
        self.items = _documents(loaded)
        self.continuations = self._continuations(lm)
        self.packed: Packed | None = None
        if self.continuations is not None:
            self.packed = pack(self.continuations, lm.context)
        self._cut_prompts = [_has_cut_prompt(item, lm) for item in self.items]

    def _continuations(self, lm: StackLM) -> list[list[Continuation]] | None:
        """The requests as tokens, by document; None where the task asks for more than log-probabilities."""
        if any(request.request_type != "loglikelihood" for request in self.requests):
            return None
        return [[lm.continuation(*request.args) for request in item.requests] for item in self.items]

    @cached_property
    def choices(self) -> list[tuple[tuple[str, ...], int]] | None:
        """(choices, right one) of every item; None where a task does not offer choices of which one is right."""
        if not self.task.has_choices:
            return None
        offered = [choices_of(self.task.loaded, item.doc) for item in self.items]
        whole = [(tuple(choices), target) for choices, target in offered if target is not None]
        return whole if len(whole) == len(offered) else None

    @cached_property
    def chance(self) -> tuple[float | None, float | None]:
        """(mean number of choices, accuracy of guessing)."""
        return chance_of(self.choices) if self.choices else (None, None)

    @cached_property
    def unknown_characters(self) -> int:
        """Characters of prompts and choices that the vocabulary lacks."""
        return sum(self.text.count_unknown(piece) for item in self.items for piece in _texts(item.requests))

    @cached_property
    def truncated(self) -> list[bool]:
        """Whether an item had to be cut to fit the context; for generated answers, whether its prompt had to be."""
        if self.packed is None:
            return self._cut_prompts
        ends = np.cumsum([len(item.requests) for item in self.items])
        return [bool(flags.any()) for flags in np.split(self.packed.truncated_N, ends[:-1])]

    def answer(self, lm: StackLM) -> list[Any]:
        """The current member's answers to requests of any kind, through the harness's own interface."""
        answers: list[Any] = [None] * len(self.requests)
        for kind in dict.fromkeys(request.request_type for request in self.requests):
            places = [place for place, request in enumerate(self.requests) if request.request_type == kind]
            for place, answer in zip(places, getattr(lm, kind)([self.requests[p] for p in places]), strict=True):
                answers[place] = answer
        return answers

    def score(self, answers: Sequence[Any]) -> HarnessScores:
        """Answers in the order of the requests -> metrics, by the task's own filters, metrics and aggregations."""
        loaded = self.task.loaded
        loaded._instances = self.requests  # the task may have had other requests meanwhile
        for request, answer in zip(self.requests, answers, strict=True):
            request.resps, request.filtered_resps = [answer] * (request.repeats or 1), {}
        figures: dict[str, float] = {}
        first: tuple[tuple[Mapping[str, Any], ...], tuple[Sequence[Any], ...]] | None = None
        with quiet():
            loaded.apply_filters()
            for name in list(self.requests[0].filtered_resps):
                responses = [[request.filtered_resps[name] for request in item.requests] for item in self.items]
                metrics = [
                    loaded.process_results(item.doc, response)
                    for item, response in zip(self.items, responses, strict=True)
                ]
                figures |= _figures(loaded, metrics, name)
                first = first or (tuple(metrics), tuple(responses))
        assert first is not None
        return HarnessScores(*first, figures)


def _refuse(task: HarnessTask) -> None:
    """What simple_evaluate would not run, or not with a model of text."""
    if getattr(task.loaded, "UNSAFE_CODE", False):
        raise DataError(f"task {task.task!r} runs code that a model has written, which ablationlab does not do")
    if getattr(task.loaded, "MULTIMODAL", False):
        raise DataError(f"task {task.task!r} asks about images or sound; these are models of text")


def _documents(loaded: Any) -> tuple[Document, ...]:
    by_doc = grouped((request.doc_id, request) for request in loaded.instances)
    documents = []
    for number, requests in by_doc.items():
        doc = requests[0].doc
        text = json.dumps(doc, indent=2, default=handle_non_serializable, ensure_ascii=False)
        ordered = tuple(sorted(requests, key=lambda request: int(request.idx)))
        prompt, target = hash_string(ordered[0].arguments[0]), hash_string(str(loaded.doc_to_target(doc)))
        documents.append(Document(number, doc, ordered, hash_string(text), prompt, target))
    return tuple(documents)


def _has_cut_prompt(item: Document, lm: StackLM) -> bool:
    """Whether a prompt for a generated answer is longer than the context; whole texts are read in windows, uncut."""
    prompts = [request.args[0] for request in item.requests if request.request_type == "generate_until"]
    return any(len(lm.tok_encode(prompt)) > lm.context for prompt in prompts)


def _figures(loaded: Any, metrics: Sequence[Mapping[str, Any]], filtered: str) -> dict[str, float]:
    """The task's aggregations over its items; the filter's name stays where it is not the only one."""
    values: dict[str, list[Any]] = {}
    for item in metrics:
        for name, value in item.items():
            values.setdefault(name, []).append(value)
    figures: dict[str, float] = {}
    for name, column in values.items():
        value = loaded.aggregation().get(name, mean)(column)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            figures[f"{name},{filtered}".removesuffix(",none")] = float(value)
    return figures | {"sample_len": float(max(map(len, values.values()), default=0))}


def _texts(requests: Sequence[Any]) -> list[str]:
    """The prompt, and what follows it in every request."""
    endings = [request.args[1] for request in requests if len(request.args) > 1 and isinstance(request.args[1], str)]
    return [requests[0].args[0], *endings]


# From the harness's scores to our result and rows.


def task_scores(batch: TaskBatch, scores: HarnessScores, run: str, weights: Weights) -> TaskAnswers:
    """The result of a task and a row per item, of one set of weights."""
    task, count = batch.task, len(batch.items)
    if task.source == "suite" and any(batch.truncated):
        raise AssertionError(f"{task.name}: items of the suite must fit the context")
    columns: Columns = {
        "run": [run] * count,
        "task": [task.task] * count,
        "template": [task.template] * count,
        "fewshot": [task.fewshot] * count,
        "weights": [weights] * count,
        "task_hash": [task.hash] * count,
        "item": [item.number for item in batch.items],
        "doc_hash": [item.doc_hash for item in batch.items],
        "prompt_hash": [item.prompt_hash for item in batch.items],
        "target_hash": [item.target_hash for item in batch.items],
        "truncated": batch.truncated,
    }
    correct = _correct(scores)
    if batch.choices is not None and correct is not None:
        columns |= _choice_columns(batch, batch.choices, scores, correct)
    else:
        columns |= _plain_columns(batch, scores, correct)
    table = pa.table({name: pa.array(columns[name], SCHEMA.field(name).type) for name in SCHEMA.names}, schema=SCHEMA)
    return TaskAnswers(_result(batch, scores, columns, weights), table)


def _correct(scores: HarnessScores) -> list[bool] | None:
    """What the harness counts as right; None where no metric of the task is a matter of right or wrong."""
    for name in _CORRECT:
        values = [metrics.get(name) for metrics in scores.metrics]
        if all(isinstance(value, int | float) and value in (0, 1) for value in values):
            return [bool(value) for value in values]
    return None


def _plain_columns(batch: TaskBatch, scores: HarnessScores, correct: list[bool] | None) -> Columns:
    """Without choices: whether it is right, and the log-probability where there is one."""
    count = len(batch.items)
    log_probabilities: list[list[float]] = [[]] * count
    if batch.packed is not None:
        log_probabilities = [[float(response[0][0])] for response in scores.responses]
    nothing = [None] * count
    return {
        "target": nothing,
        "choice_scores": log_probabilities,
        "choice_bytes": [[]] * count,
        "chosen": nothing,
        "correct": correct or nothing,
        "correct_norm": nothing,
        "log_probability": [values[0] for values in log_probabilities] if batch.packed is not None else nothing,
        "margin": nothing,
        "probability": nothing,
    }


def _choice_columns(
    batch: TaskBatch, offered: Sequence[tuple[tuple[str, ...], int]], scores: HarnessScores, correct: Sequence[bool]
) -> Columns:
    choice_scores = [
        [float(response[0]) for response in responses[: len(choices)]]
        for responses, (choices, _) in zip(scores.responses, offered, strict=True)
    ]
    target = np.asarray([place for _, place in offered])
    scores_NC = padded(choice_scores)
    every = np.arange(len(choice_scores))
    chosen = scores_NC.argmax(axis=1)
    odd = np.flatnonzero((chosen == target) != np.asarray(correct))
    if len(odd):
        number = int(odd[0])
        raise DataError(
            f"{batch.task.name}, item {batch.items[number].number}: the harness counts {correct[number]}, its scores say "
            "otherwise"
        )
    own = scores_NC[every, target]
    others = scores_NC.copy()
    others[every, target] = -np.inf
    margin = own - others.max(axis=1)
    norm = [metrics.get("acc_norm") for metrics in scores.metrics]
    return {
        "target": target,
        "choice_scores": choice_scores,
        "choice_bytes": [[len(choice.encode()) for choice in choices] for choices, _ in offered],
        "chosen": chosen,
        "correct": chosen == target,
        "correct_norm": [None if value is None else bool(value) for value in norm],
        "log_probability": own,
        "margin": [float(m) if np.isfinite(m) else None for m in margin],
        "probability": softmax(scores_NC)[every, target],
    }


def padded(scores: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """scores_NC, filled up with minus infinity where an item has fewer choices."""
    filled = np.full((len(scores), max(map(len, scores))), -np.inf)
    for number, row in enumerate(scores):
        filled[number, : len(row)] = row
    return filled


def _result(batch: TaskBatch, scores: HarnessScores, columns: Columns, weights: Weights) -> TaskResult:
    task, count = batch.task, len(batch.items)
    choices, chance = batch.chance
    calibration, temperature = None, None
    if columns["target"][0] is not None:
        calibration, temperature = choice_calibration(padded(columns["choice_scores"]), columns["target"])
    accuracy = _mean(columns["correct"])
    return TaskResult(
        task=task.task,
        source=task.source,
        template=task.template,
        fewshot=task.fewshot,
        weights=weights,
        version=task.version,
        task_hash=task.hash,
        items=count,
        whole=batch.limit is None or count < batch.limit,
        choices=choices,
        chance=chance,
        accuracy=accuracy,
        accuracy_se=None if accuracy is None else math.sqrt(accuracy * (1 - accuracy) / max(count - 1, 1)),
        accuracy_norm=_mean(columns["correct_norm"]),
        log_probability=_mean(columns["log_probability"]),
        margin=_mean(columns["margin"]),
        probability=_mean(columns["probability"]),
        truncated=sum(batch.truncated),
        unknown_characters=batch.unknown_characters,
        answers=packed_answers(columns["correct"]),
        harness=scores.figures,
        calibration=calibration,
        temperature=temperature,
    )


def _mean(values: Sequence[Any]) -> float | None:
    return None if len(values) == 0 or any(value is None for value in values) else float(np.mean(values))


class LocalTaskBuilder:
    """The tasks of one request, for models of one context, built and scored in this process."""

    def __init__(self, request: TaskRequest, corpus: TokenizedCorpus, context: int, root: Path) -> None:
        self._corpus = corpus
        self._ngrams: NgramScorer | None = None
        self.text = ScoringTokens(corpus.tokenizer)
        built = build_tasks(request, corpus, context, root)
        self.manager = built.manager
        lm = StackLM(None, self.text, context)
        self.batches = {task.name: TaskBatch(task, lm, request.items) for task in built.tasks}

    def tasks(self) -> list[PackedTask]:
        return [_packed(batch) for batch in self.batches.values()]

    def score(self, name: str, run: str, weights: Weights, answers: Any) -> Future[TaskAnswers]:
        done: Future[TaskAnswers] = Future()
        done.set_result(self.scored(name, run, weights, answers))
        return done

    def scored(self, name: str, run: str, weights: Weights, answers: Any) -> TaskAnswers:
        """As `score`, at once."""
        batch = self.batches[name]
        return task_scores(batch, batch.score(answers), run, weights)

    def answer(self, name: str, lm: StackLM) -> Any:
        return self.batches[name].answer(lm)

    def describe(self, names: Collection[str]) -> list[SuiteTask]:
        return [self._describe(batch) for name, batch in self.batches.items() if name in names]

    def _describe(self, batch: TaskBatch) -> SuiteTask:
        """N-gram models answer the tasks that offer choices."""
        task, accuracies = batch.task, {}
        if batch.choices is not None and batch.continuations is not None:
            if self._ngrams is None:
                self._ngrams = NgramScorer(sample(self._corpus.train, MOST), self._corpus.record.vocabulary)
            scores = self._ngrams.score(batch.continuations)
            for number, name in enumerate(self._ngrams.names):
                figures = batch.score(scores.answers(number)).figures
                if "acc" in figures:
                    accuracies[name] = figures["acc"]
        choices, chance = batch.chance
        return SuiteTask(
            task=task.task,
            template=task.template,
            fewshot=task.fewshot,
            version=task.version,
            task_hash=task.hash,
            source=task.source,
            meaning=task.meaning,
            items=len(batch.items),
            choices=choices,
            chance=chance,
            ngrams=accuracies,
        )


def _packed(batch: TaskBatch) -> PackedTask:
    task = batch.task
    return PackedTask(task.task, task.template, task.fewshot, task.hash, task.name, batch.packed)
