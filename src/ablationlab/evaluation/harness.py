"""The adapter to lm-evaluation-harness: an LM that scores for a whole stack and answers for one member at a time.

Any harness program can drive it, `simple_evaluate` among them. The first member's requests are scored for all members in
stacked passes; the others are answered from memory. The evaluation of a study builds each task's requests once instead
(`task_batch.py`); a test checks that both give the same numbers.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from lm_eval import simple_evaluate
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from ablationlab.core.errors import DataError
from ablationlab.evaluation.members import ScoredStack
from ablationlab.evaluation.scoring import Continuation, Scorer, Scores, ScoringTokens, StackScorer
from ablationlab.tasks.build import quiet

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
        found = simple_evaluate(
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
    assert found is not None
    return dict(found)
