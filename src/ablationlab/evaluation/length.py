"""Loss near the end of the context and past it, on the same tokens.

Positions are learned, so none exists past the context C. The documented way on is a window that slides by half of it: its
positions start again at 0, so that the first token that it predicts has C/2 tokens before it instead of C. What that costs
is seen on the tokens C to 2C of a document (a piece of the validation split), each of which is read three times,

    near     in a window that slides by an eighth: 7C/8 to C tokens before it, the last positions of the context
    sliding  in a window that slides by a half: C/2 to C tokens before it
    fresh    in a window that begins at C: 0 to C tokens before it

and past_end - near_end, the mean over sliding less the mean over near, is a paired difference: a model that makes nothing
of positions and of distant tokens pays nothing, whatever the text. The first eighth past C is read in all eight windows: its
loss by the number of tokens before it. History and position change together here, as they do in use: which of them a
model misses is not told apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from ablationlab.evaluation.context import EvaluationContext, Measurement, ScoredMember
from ablationlab.evaluation.runs import ScoredStack
from ablationlab.model.device import Mark, to_host
from ablationlab.records.evaluation import Evaluation, LengthScores, Weights
from ablationlab.records.plan import PlannedRun
from ablationlab.training.perplexity import TOKENS_PER_PASS, tokens_per_pass

DOCUMENTS = 32
#: Pieces of a context, and windows that end in the context after it.
PIECES = 8
_WINDOWS_PER_PASS = 64


class Length:
    """The evaluator of the loss near the end of the context and past it."""

    title = "length"
    scope: Literal["stack", "study"] = "stack"
    gate = False

    def __init__(self, context: EvaluationContext) -> None:
        self._context = context

    def missing(self, run: PlannedRun, record: Evaluation) -> Sequence[Weights]:
        possible = fits(run.model.context, len(self._context.corpus.validation))
        return ("final",) if possible and record.length is None else ()

    def run(self, members: Sequence[ScoredMember]) -> Iterator[Measurement]:
        scores_of = begin_length_scores(self._context.stack(members), self._context.corpus.validation)
        assert scores_of is not None
        for number, (run, _) in enumerate(members):
            yield Measurement(run, "length", partial(scores_of, number))

    @staticmethod
    def metrics(record: Evaluation) -> dict[str, float | None]:
        part = record.length
        if part is None:
            return {}
        return {
            "loss_near_end": part.near_end,
            "loss_past_end": part.past_end,
            "sliding_cost": part.past_end - part.near_end,
        }


def fits(context: int, tokens: int) -> bool:
    """Whether a text has a document of twice the context, and the context enough positions to be cut into pieces."""
    return tokens > 2 * context and context >= PIECES


@torch.no_grad()
def begin_length_scores(stack: ScoredStack, tokens: NDArray[np.int64]) -> Callable[[int], LengthScores] | None:
    """Queue it on the device; what is returned waits for it and gives a member's part."""
    context, runs = stack.model.context, len(stack.fronts)
    size = context // PIECES
    if not fits(context, len(tokens)):
        return None
    room = len(tokens) - 2 * context - 1
    starts = np.unique(np.linspace(0, room, DOCUMENTS).astype(np.int64))
    text = torch.from_numpy(tokens).to(stack.device)
    edges = [*range(0, PIECES * size, size), context]
    # inside_RP: pieces of the first window. past_RWP: window w ends w + 1 pieces past the context, and reads pieces 0 to w.
    inside = torch.zeros(runs, PIECES, dtype=torch.float64, device=stack.device)
    past = torch.zeros(runs, PIECES, PIECES, dtype=torch.float64, device=stack.device)
    bound = tokens_per_pass(stack.model)  # smaller than usual where the vocabulary is large
    per_pass = _WINDOWS_PER_PASS if bound == TOKENS_PER_PASS else max(1, bound // context)
    for slid in range(PIECES + 1):
        for first in range(0, len(starts), per_pass):
            group = starts[first : first + per_pass] + slid * size
            span = torch.stack([text[start : start + context + 1] for start in group])
            targets = span[:, 1:].expand(runs, -1, -1)
            logits = stack.forward.logits(span[:, :-1].expand(runs, -1, -1))
            nll = F.cross_entropy(logits.flatten(0, 2), targets.flatten(), reduction="none").view(runs, -1, context)
            loss_RT = nll.double().sum(dim=1) / len(starts)
            if slid:
                past[:, slid - 1, :slid] += loss_RT[:, context - slid * size :].view(runs, slid, size).mean(dim=2)
            else:
                inside += torch.stack([loss_RT[:, a:b].mean(dim=1) for a, b in itertools.pairwise(edges)], dim=1)
    read, beyond, mark = to_host(inside), to_host(past), Mark(stack.device)

    def scores_of(run: int) -> LengthScores:
        mark.wait()
        return _scores(read[run].numpy(), beyond[run].numpy(), context, size, edges, len(starts))

    return scores_of


def _scores(
    inside_P: NDArray[np.float64],
    past_WP: NDArray[np.float64],
    context: int,
    size: int,
    edges: list[int],
    documents: int,
) -> LengthScores:
    half = PIECES // 2
    near = np.diagonal(past_WP)
    sliding = np.concatenate([past_WP[half - 1, :half], past_WP[-1, half:]])
    return LengthScores(
        context=context,
        stride=half * size,
        documents=documents,
        edges=(*edges, *(context + size * piece for piece in range(1, PIECES + 1))),
        losses=(*map(float, inside_P), *map(float, sliding)),
        near_end=float(near.mean()),
        past_end=float(sliding.mean()),
        near=tuple(map(float, near)),
        fresh=tuple(map(float, past_WP[-1])),
        history=tuple(context - size * slid for slid in range(1, PIECES + 1)),
        loss_by_history=tuple(map(float, past_WP[:, 0])),
    )
