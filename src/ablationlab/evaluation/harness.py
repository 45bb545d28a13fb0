"""The adapter to lm-evaluation-harness: an LM that scores for a whole stack and answers for one member at a time.

The harness drives it through `simple_evaluate`, once per member. The first member's requests are scored for all members in
stacked passes; the others are answered from memory, where scores are kept by the tokens of the request.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from lm_eval import evaluator, simple_evaluate
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from ablationlab.errors import DataError
from ablationlab.evaluation.members import ScoredStack
from ablationlab.evaluation.packed import head, packed_hidden, packed_mask
from ablationlab.evaluation.scoring import Continuation, Scorer, StackScorer
from ablationlab.evaluation.text import ScoringTokens

NAME = "lm_eval"
MAX_GENERATED = 64


class StackLM(TemplateLM):  # type: ignore[misc]
    """Several trained runs (or n-gram models) behind the harness's interface; ``current`` is the one that answers."""

    def __init__(self, scorer: Scorer, text: ScoringTokens, context: int) -> None:
        super().__init__()
        self.scorer, self.text, self.context = scorer, text, context
        self.current = 0
        self._scores: dict[tuple[str, Continuation], tuple[list[float], list[bool], bool]] = {}

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
        return self.text.encode(string)

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
        wanted = [self.continuation(*request.args) for request in requests]
        for task in dict.fromkeys(request.task_name for request in requests):
            mine = [(one, r.doc_id) for one, r in zip(wanted, requests, strict=True) if r.task_name == task]
            self._score(task, [one for one, _ in mine], [document for _, document in mine])
        return [self._answer(r.task_name, one) for one, r in zip(wanted, requests, strict=True)]

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        wanted = [Continuation(tuple(before), tuple(after)) for _, before, after in requests]
        self._score("", wanted, list(range(len(wanted))))
        return [self._answer("", one) for one in wanted]

    def _answer(self, task: str, one: Continuation) -> tuple[float, bool]:
        sums, greedy, _ = self._scores[task, one]
        return sums[self.current], greedy[self.current]

    def was_truncated(self, task: str, context: str, text: str) -> bool:
        """Whether a request that was scored had to be cut to fit."""
        return self._scores[task, self.continuation(context, text)][2]

    def _score(self, task: str, wanted: Sequence[Continuation], documents: Sequence[object]) -> None:
        """Score what is not known yet, for all members."""
        new: dict[object, list[Continuation]] = {}
        for document, one in zip(documents, wanted, strict=True):
            if (task, one) not in self._scores:
                group = new.setdefault(document, [])
                if one not in group:
                    group.append(one)
        if not new:
            return
        items = list(new.values())
        found = self.scorer.score(items)
        flat = [one for item in items for one in item]
        for number, one in enumerate(flat):
            sums = [float(value) for value in found.sum_RN[:, number]]
            greedy = [bool(value) for value in found.greedy_RN[:, number]]
            self._scores[task, one] = (sums, greedy, bool(found.truncated_N[number]))

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
            wanted = [Continuation(tuple(before), tuple(after)) for before, after in pieces]
            self._score("", wanted, list(range(len(wanted))))
            answers.append(sum(self._answer("", one)[0] for one in wanted))
        return answers

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Greedy continuations, up to the first stop text or the most tokens allowed; the window slides past the context."""
        if not isinstance(self.scorer, StackScorer):
            raise DataError("n-gram models do not generate")
        order = sorted(range(len(requests)), key=lambda number: len(requests[number].args[0]))
        answers = [""] * len(requests)
        for number in order:
            context, options = requests[number].args
            if options.get("do_sample") or float(options.get("temperature") or 0.0) > 0.0:
                raise DataError("this adapter decodes greedily; the task asks for sampling")
            until = options.get("until") or []
            stops = [until] if isinstance(until, str) else list(until)
            most = int(options.get("max_gen_toks") or options.get("max_tokens") or MAX_GENERATED)
            answers[number] = self._generated(self.scorer.stack, context, stops, most)
        return answers

    def _generated(self, stack: ScoredStack, context: str, stops: Sequence[str], most: int) -> str:
        ids = self.tok_encode(context) or [self.eot_token_id]
        made: list[int] = []
        while len(made) < most:
            ids.append(_greedy(stack, ids[-self.context :], self.current))
            made.append(ids[-1])
            text = self.text.decode(made)
            found = [text.index(stop) for stop in stops if stop and stop in text]
            if found:
                return text[: min(found)]
        return self.text.decode(made)


def _greedy(stack: ScoredStack, ids: list[int], member: int) -> int:
    """The most probable next token of one member."""
    tokens = torch.tensor([ids], device=stack.device)
    positions = torch.arange(len(ids), device=stack.device)[None]
    own = {name: value[member : member + 1] for name, value in stack.params.items()}
    mask = packed_mask(torch.zeros_like(tokens))
    x = packed_hidden(own, tokens, positions, mask, stack.model, stack.fronts[member : member + 1])
    return int(head(own, x[:, 0, -1:], stack.model)[0, 0].argmax())


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
            random_seed=0,
            numpy_random_seed=1234,
            torch_random_seed=1234,
            fewshot_random_seed=1234,
        )
    assert found is not None
    return dict(found)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The harness's and datasets' own talk is held back; their exceptions are not."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    # It would ask git and the system about themselves on every call, for a second or two; our records say these things.
    asked = {name: getattr(evaluator, name) for name in ("get_git_commit_hash", "add_env_info")}
    for name in asked:
        setattr(evaluator, name, lambda *_: None)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, function in asked.items():
            setattr(evaluator, name, function)
        logging.disable(level)


@cache
def harness_version() -> str:
    """Name and version."""
    return f"{NAME} {version(NAME)}"


@cache
def harness_sha256() -> str:
    """Hash of the installed files that make scores: everything but the task definitions, which have hashes of their own."""
    import lm_eval

    root = Path(lm_eval.__file__).parent
    total = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not name.startswith("tasks/") or name.count("/") == 1:
            total.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()
