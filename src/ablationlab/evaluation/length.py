"""Loss near the end of the context and past it.

Documents of twice the context are cut evenly from the validation split. The first window stands at a document's start;
then, since positions are learned and none exists past the context, the window slides on by a quarter of it, its positions
start again, and only its last quarter is scored. A model that leans on exact positions, or on the document's start, pays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from ablationlab.evaluation.members import ScoredStack
from ablationlab.evaluation.perplexity import TOKENS_PER_PASS, tokens_per_pass
from ablationlab.evaluation_records import LengthPart
from ablationlab.model import forward
from ablationlab.ops import loss_R
from ablationlab.transfer import Mark, to_host

DOCUMENTS = 48
_WINDOWS_PER_PASS = 64


def length_parts(stack: ScoredStack, tokens: NDArray[np.int64]) -> list[LengthPart] | None:
    """One part per member; None where the text is shorter than one document, or the context shorter than 8."""
    part_of = begin_length_parts(stack, tokens)
    return None if part_of is None else [part_of(run) for run in range(len(stack.members))]


@torch.no_grad()
def begin_length_parts(stack: ScoredStack, tokens: NDArray[np.int64]) -> Callable[[int], LengthPart] | None:
    """Queue it on the device; what is returned waits for it and gives a member's part."""
    context, runs = stack.model.context, len(stack.fronts)
    stride = context // 4
    room = len(tokens) - 2 * context - 1
    if room < 0 or stride < 2:
        return None
    starts = np.unique(np.linspace(0, room, DOCUMENTS).astype(np.int64))
    text = torch.from_numpy(tokens).to(stack.device)
    size = context // 8
    edges = [*[*range(0, context, size)][:8], context]
    slides = list(range(stride, context + 1, stride))
    sums = torch.zeros(runs, len(edges) - 1 + len(slides), dtype=torch.float64, device=stack.device)
    bound = tokens_per_pass(stack.model)  # smaller than usual where the vocabulary is large
    per_pass = _WINDOWS_PER_PASS if bound == TOKENS_PER_PASS else max(1, bound // context)
    for number, offset in enumerate([0, *slides]):
        for first in range(0, len(starts), per_pass):
            group = starts[first : first + per_pass] + offset
            span = torch.stack([text[start : start + context + 1] for start in group])
            targets = span[:, 1:].expand(runs, -1, -1)
            logits = forward(stack.params, span[:, :-1].expand(runs, -1, -1), stack.model, stack.fronts)
            pieces = list(itertools.pairwise(edges)) if number == 0 else [(context - stride, context)]
            for place, (a, b) in enumerate(pieces):
                column = place if number == 0 else len(edges) - 2 + number
                losses = loss_R(logits[:, :, a:b].contiguous(), targets[:, :, a:b].contiguous())
                sums[:, column] += losses.double() * len(group) / len(starts)
    every = (*edges, *(context + offset for offset in slides))
    fetched, mark = to_host(sums), Mark(stack.device)

    def part_of(run: int) -> LengthPart:
        mark.wait()
        nll = fetched[run].numpy()
        return LengthPart(
            context=context,
            stride=stride,
            documents=len(starts),
            edges=every,
            losses=tuple(map(float, nll)),
            near_end=float(nll[len(edges) - 2]),
            past_end=float(nll[len(edges) - 1 :].mean()),
        )

    return part_of
