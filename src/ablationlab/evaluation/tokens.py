"""Next tokens over the whole validation split, in the one pass that perplexity makes, for a whole stack.

Windows of one context, stride one context: every token but the first is predicted exactly once, with 1 to `context` tokens
before it. Everything is in fp32, sums in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablationlab.data.batches import validation_windows
from ablationlab.data.tokenizers import TOKEN_CLASSES, token_classes
from ablationlab.evaluation.calibration import TEMPERATURES, calibration, temperature_curve
from ablationlab.evaluation.context import EvaluationContext, Measurement, ScoredMember
from ablationlab.evaluation.runs import ScoredStack
from ablationlab.model.device import Mark, to_host
from ablationlab.records.evaluation import DocumentLosses, Evaluation, TokenScores, Weights
from ablationlab.records.plan import PlannedRun
from ablationlab.training.perplexity import tokens_per_pass

#: Bins of positions, at most.
POSITION_BINS = 16
#: Tokens whose loss is taken at every temperature, about: of a longer split every n-th batch of windows.
HEATED = 131_072


#: Documents whose losses are kept, at most; of more, neighbours are pooled.
MOST_DOCUMENTS = 1000
#: Blocks that a text without documents is cut into, at most, and the contexts that one has at least.
MOST_BLOCKS, BLOCK_CONTEXTS = 64, 4


class NextTokens:
    """The evaluator of next-token predictions and their calibration."""

    title = "next tokens"
    scope: Literal["stack", "study"] = "stack"
    gate = False

    def __init__(self, context: EvaluationContext) -> None:
        self._context = context

    @cached_property
    def _classes(self) -> NDArray[np.int64]:
        return token_classes(self._context.corpus.tokenizer)

    def missing(self, run: PlannedRun, record: Evaluation) -> Sequence[Weights]:
        return ("final",) if record.tokens is None else ()

    def run(self, members: Sequence[ScoredMember]) -> Iterator[Measurement]:
        corpus = self._context.corpus
        size = corpus.record.validation_bytes
        end = getattr(corpus.tokenizer, "end_of_document", None)
        stack = self._context.stack(members)
        units = text_units(corpus.validation, end, stack.model.context)
        scores_of = begin_token_scores(stack, corpus.validation, self._classes, size, units)
        for number, (run, _) in enumerate(members):
            yield Measurement(run, "tokens", partial(scores_of, number))

    @staticmethod
    def metrics(record: Evaluation) -> dict[str, float | None]:
        if record.tokens is None:
            return {}
        return {
            "token_ece": record.tokens.calibration.ece_equal_mass_debiased,
            "token_brier": record.tokens.calibration.brier,
            "best_temperature": record.tokens.temperature.best,
            "temperature_sensitivity": record.tokens.temperature.sensitivity,
            "logit_scale": record.tokens.logit_scale,
        }


@dataclass(frozen=True)
class TextUnits:
    """Which document, or block, each token of the validation split belongs to."""

    kind: Literal["documents", "blocks"]
    unit_N: NDArray[np.int64]

    @property
    def count(self) -> int:
        return int(self.unit_N[-1]) + 1


def text_units(tokens: NDArray[np.int64], end_of_document: int | None, context: int) -> TextUnits:
    """Documents, if the split has two or more; else contiguous blocks of equal length. An end belongs to its document."""
    if end_of_document is not None:
        ends = tokens == end_of_document
        document = np.concatenate([[0], np.cumsum(ends)[:-1]])
        if document[-1] > 0:
            pooled = math.ceil((document[-1] + 1) / MOST_DOCUMENTS)
            return TextUnits("documents", document // pooled)
    blocks = int(np.clip(len(tokens) // (BLOCK_CONTEXTS * context), 1, MOST_BLOCKS))
    return TextUnits("blocks", np.arange(len(tokens)) * blocks // len(tokens))


class _Sums:
    """Running sums per run, on the device: adding waits for nothing. T temperatures, C classes, P positions."""

    def __init__(
        self, runs: int, context: int, classes_V: NDArray[np.int64], units: TextUnits, device: torch.device
    ) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        self.position, self.positions = zeros(runs, context), zeros(context)
        self.by_class, self.classes = zeros(runs, len(TOKEN_CLASSES)), zeros(len(TOKEN_CLASSES))
        self.units = units
        self.by_unit, self.unit_tokens = zeros(runs, units.count), np.zeros(units.count, dtype=np.int64)
        self.heat = zeros(2, runs, len(TEMPERATURES))
        self.halves = [0, 0]
        self.heated = [0, 0]
        self.brier, self.scale = zeros(runs), zeros(runs)
        self.confidence: list[Tensor] = []
        self.right: list[Tensor] = []
        self.class_V = torch.from_numpy(classes_V).to(device)
        self._kinds = torch.arange(len(TOKEN_CLASSES), device=device)

    def add(self, logits: Tensor, targets_BT: Tensor, starts: Sequence[int], half: int, *, heat: bool) -> None:
        """logits_RBTV of windows of one half that begin at *starts*; at other temperatures where *heat*."""
        runs, batch, length, _ = logits.shape
        targets = targets_BT.expand(runs, -1, -1)
        logp = logits.log_softmax(dim=-1)
        nll = -logp.gather(-1, targets[..., None])[..., 0]
        exact = nll.double()
        self.position[:, :length] += exact.sum(dim=1)
        self.positions[:length] += batch
        of_class_NC = (self.class_V[targets_BT].flatten()[:, None] == self._kinds).double()
        self.by_class += exact.flatten(1) @ of_class_NC
        self.classes += of_class_NC.sum(dim=0)
        places = np.asarray(starts)[:, None] + np.arange(1, length + 1)
        there, of_unit_N = np.unique(self.units.unit_N[places], return_inverse=True)
        # A matrix product, whose sums have one order on every device.
        of_unit_NU = torch.from_numpy(of_unit_N.reshape(-1, 1) == np.arange(len(there))).to(exact.device).double()
        self.by_unit[:, torch.from_numpy(there).to(exact.device)] += exact.flatten(1) @ of_unit_NU
        self.unit_tokens += np.bincount(self.units.unit_N[places].ravel(), minlength=self.units.count)
        probability = logp.exp()
        top, label = probability.max(dim=-1)
        self.confidence.append(top.flatten(1))
        self.right.append((label == targets).flatten(1))
        squares = (probability * probability).sum(dim=-1) - 2 * (-nll).exp() + 1
        self.brier += squares.double().sum(dim=(1, 2))
        self.scale += logits.std(dim=-1, correction=0).double().sum(dim=(1, 2))
        self.halves[half] += targets_BT.numel()
        if not heat:
            return
        right_logit = logits.gather(-1, targets[..., None])[..., 0]
        for number, temperature in enumerate(TEMPERATURES):
            loss = (logits / temperature).logsumexp(dim=-1) - right_logit / temperature
            self.heat[half, :, number] += loss.double().sum(dim=(1, 2))
        self.heated[half] += targets_BT.numel()

    def fetch(self) -> Mark:
        """Everything to the host; it is there when the mark is reached."""
        for name in ("position", "positions", "by_class", "classes", "by_unit", "heat", "brier", "scale"):
            setattr(self, name, to_host(getattr(self, name)))
        self.confidence = [to_host(torch.cat(self.confidence, dim=1))]
        self.right = [to_host(torch.cat(self.right, dim=1))]
        return Mark(self.class_V.device)


@torch.no_grad()
def begin_token_scores(
    stack: ScoredStack,
    tokens: NDArray[np.int64],
    classes_V: NDArray[np.int64],
    validation_bytes: int,
    units: TextUnits,
) -> Callable[[int], TokenScores]:
    """Queue the pass on the device; what is returned waits for it and gives a member's part."""
    model, runs = stack.model, len(stack.fronts)
    text = torch.from_numpy(tokens).to(stack.device)
    sums = _Sums(runs, model.context, classes_V, units, stack.device)
    windows = validation_windows(len(tokens), model.context)
    for half in (0, 1):  # even and odd windows
        mine = windows[half::2]
        whole = [window for window in mine if window[1] == model.context]
        size = max(1, tokens_per_pass(model) // model.context)
        batches = [whole[start : start + size] for start in range(0, len(whole), size)]
        batches += [[window] for window in mine if window[1] < model.context]
        every = math.ceil(len(tokens) / HEATED)
        for number, batch in enumerate(batches):
            span = torch.stack([text[start : start + length + 1] for start, length in batch])
            vectors = stack.forward.embed(span[:, :-1].expand(runs, -1, -1))
            starts = [start for start, _ in batch]
            sums.add(stack.forward.decode(vectors), span[:, 1:], starts, half, heat=number % every == 0)
    mark = sums.fetch()

    def scores_of(run: int) -> TokenScores:
        mark.wait()
        return _scores(sums, run, model.context, validation_bytes)

    return scores_of


def _scores(sums: _Sums, run: int, context: int, validation_bytes: int) -> TokenScores:
    count = sum(sums.halves)
    loss = float(sums.position[run].sum()) / count
    confidence = torch.cat([piece[run] for piece in sums.confidence]).double().numpy()
    right = torch.cat([piece[run] for piece in sums.right]).double().numpy()
    heat = sums.heat[:, run].numpy()
    halves = [heat[half] / max(sums.heated[half], 1) for half in (0, 1)]
    if not sums.heated[1]:
        halves[1] = halves[0]
    size = max(1, math.ceil(context / POSITION_BINS))
    edges = [*range(0, context, size), context]
    seen = sums.positions.numpy()
    per_position = sums.position[run].numpy()
    bins = [(per_position[a:b].sum(), seen[a:b].sum()) for a, b in itertools.pairwise(edges)]
    bins = [(nll, number) for nll, number in bins if number]
    return TokenScores(
        tokens=count,
        stride=context,
        loss=loss,
        bits_per_byte=loss * count / math.log(2) / validation_bytes,
        perplexity=math.exp(min(loss, 700.0)),
        accuracy=float(right.mean()),
        position_edges=tuple(edges[: len(bins) + 1]),
        loss_by_position=tuple(float(nll / number) for nll, number in bins),
        loss_by_class={
            name: float(sums.by_class[run, kind]) / int(sums.classes[kind]) if sums.classes[kind] else None
            for kind, name in enumerate(TOKEN_CLASSES)
        },
        tokens_by_class={name: int(sums.classes[kind]) for kind, name in enumerate(TOKEN_CLASSES)},
        calibration=calibration(confidence, right, float(sums.brier[run]) / count),
        temperature=temperature_curve(list(halves[0]), list(halves[1]), sums.heated[0] / sum(sums.heated)),
        logit_scale=float(sums.scale[run]) / count,
        documents=_documents(sums, run),
    )


def _documents(sums: _Sums, run: int) -> DocumentLosses:
    there = np.flatnonzero(sums.unit_tokens)  # a first document of one token predicts nothing
    totals = sums.by_unit[run].numpy()
    return DocumentLosses(
        kind=sums.units.kind,
        tokens=tuple(int(sums.unit_tokens[unit]) for unit in there),
        losses=tuple(float(totals[unit] / sums.unit_tokens[unit]) for unit in there),
    )
