"""Loss, perplexity and next-token accuracy over the validation split, for a whole stack in one pass.

The split is cut into windows of one context, stride one context: every token but the first is predicted exactly once, with
1 to `context` tokens before it. Sums are taken in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ablationlab.data.batches import Window, validation_windows
from ablationlab.model.gpt import ForwardPass, Parameters
from ablationlab.records.settings import FrontEnd, ModelConfig

# Tokens per forward pass of one run. A constant, so that the bits of a result never depend on the machine.
TOKENS_PER_PASS = 8192
# Logits per forward pass of one run: what bounds the tokens where the vocabulary is large.
_LOGITS_PER_PASS = 2**26


def tokens_per_pass(model: ModelConfig) -> int:
    """Tokens per forward pass of one run; of the model alone, for the same reason."""
    return min(TOKENS_PER_PASS, _LOGITS_PER_PASS // (model.vocabulary or 1))


class Totals:
    """Running sums per run, on the device: adding waits for nothing."""

    def __init__(self, runs: int, device: torch.device) -> None:
        self.nll_R, self.hits_R, self.norm_R = torch.zeros(3, runs, dtype=torch.float64, device=device)
        self.tokens = 0

    def add(self, logits: Tensor, targets_BT: Tensor, vectors: Tensor) -> None:
        """Take one batch in: logits_RBTV, its targets, and the vectors that entered block 1."""
        targets = targets_BT.expand(logits.shape[0], -1, -1)
        logp = logits.log_softmax(dim=-1).gather(-1, targets[..., None])
        self.nll_R -= logp.double().sum(dim=(1, 2, 3))
        self.hits_R += (logits.argmax(dim=-1) == targets).double().sum(dim=(1, 2))
        self.norm_R += torch.linalg.vector_norm(vectors, dim=-1).double().sum(dim=(1, 2))
        self.tokens += targets_BT.numel()


@torch.no_grad()
def validation_totals(
    params: Parameters,
    model: ModelConfig,
    fronts: Sequence[FrontEnd],
    tokens: Tensor,
    dtype: torch.dtype,
    windows: Sequence[Window] | None = None,
) -> Totals:
    """Sums over the split, or over these windows of it."""
    totals = Totals(len(fronts), tokens.device)
    # The head in fp32 whatever the precision: bf16 logits tie, and ties would go to the smaller token id.
    forward = ForwardPass(params, model, fronts, dtype, head_dtype=torch.float32)
    for batch in validation_batches(len(tokens), model, windows):
        span, length = spans(tokens, batch, model.context), batch[0][1]
        inputs = span[:, :-1].expand(len(fronts), -1, -1)
        vectors = forward.embed(inputs)
        logits = forward.decode(vectors)
        totals.add(logits[:, :, :length], span[:, 1 : length + 1], vectors[:, :, :length])
    return totals


def validation_batches(
    tokens: int, model: ModelConfig, windows: Sequence[Window] | None = None
) -> Iterator[list[Window]]:
    """The windows of a split, or these of them, in batches of equally long ones; the last, shorter window goes alone."""
    windows = validation_windows(tokens, model.context) if windows is None else windows
    whole = [window for window in windows if window[1] == model.context]
    size = max(1, tokens_per_pass(model) // model.context)
    for start in range(0, len(whole), size):
        yield whole[start : start + size]
    if len(whole) < len(windows):
        yield list(windows[-1:])


def spans(tokens: Tensor, batch: Sequence[Window], context: int) -> Tensor:
    """Each window and the token after it; one that ends early is filled up with its last token, which nothing before sees."""
    starts = torch.tensor([start for start, _ in batch]).to(tokens.device, non_blocking=True)
    at = starts[:, None] + torch.arange(context + 1, device=tokens.device)
    return tokens[at.clamp(max=len(tokens) - 1)]


class RunMetrics(NamedTuple):
    """The language-modelling metrics of one run of a stack; a run that diverged has null for each."""

    validation_loss: float
    perplexity: float
    bits_per_byte: float
    next_token_accuracy: float
    mean_embedding_norm: float


def run_metrics(totals: Totals, run: int, validation_bytes: int) -> RunMetrics:
    """The metrics of one run of the stack."""
    nll = float(totals.nll_R[run])
    loss = nll / totals.tokens
    return RunMetrics(
        validation_loss=loss,
        perplexity=math.exp(min(loss, 700.0)),
        bits_per_byte=nll / math.log(2) / validation_bytes,
        next_token_accuracy=float(totals.hits_R[run]) / totals.tokens,
        mean_embedding_norm=float(totals.norm_R[run]) / totals.tokens,
    )
