from __future__ import annotations

import numpy as np
import pytest
import torch

from ablationlab.evaluation import scoring
from ablationlab.evaluation.scoring import Continuation, StackScorer

from .models import MODEL, member, stack

RNG = np.random.default_rng(3)
MEMBERS = [member(1), member(2, "layernorm"), member(3, "rmsnorm")]


def tokens(count: int) -> tuple[int, ...]:
    return tuple(int(token) for token in RNG.integers(0, 13, count))


def items() -> list[list[Continuation]]:
    """Choices after one context, the same ending after several beginnings, whole lines without a context, odd lengths."""
    context = tokens(9)
    choosing = [Continuation(context, tokens(size)) for size in (1, 4, 7)]
    ending = tokens(5)
    beginnings = [Continuation((*context[:4], *tokens(size)), ending) for size in (2, 3)]
    line = tokens(12)
    pair = [Continuation((0,), line), Continuation((0,), (*line[:6], line[7], line[6], *line[8:]))]
    return [choosing, beginnings, pair, [Continuation(tokens(1), tokens(1))], [Continuation(tokens(20), tokens(5))]]


def alone(one: Continuation, run: int) -> tuple[float, bool]:
    """One run, one sequence, through the model's own forward pass."""
    mine = stack(MEMBERS[run])
    whole = (one.context + one.tokens)[-(MODEL.context + 1) :]
    logits = mine.forward.logits(torch.tensor([[whole[:-1]]]))[0, 0].double()
    scored = min(len(one.tokens), len(whole) - 1)
    places = range(len(whole) - 1 - scored, len(whole) - 1)
    logp = logits.log_softmax(-1)
    total = sum(float(logp[place, whole[place + 1]]) for place in places)
    return total, all(int(logits[place].argmax()) == whole[place + 1] for place in places)


def test_packed_and_stacked_scores_are_those_of_each_run_and_sequence_alone():
    asked = items()
    found = StackScorer(stack(*MEMBERS, width=4)).score(asked)
    flat = [one for item in asked for one in item]
    assert found.sum_RN.shape == (3, len(flat))
    for run in range(3):
        for number, one in enumerate(flat):
            total, greedy = alone(one, run)
            assert found.sum_RN[run, number] == pytest.approx(total, abs=2e-5)
            assert found.greedy_RN[run, number] == greedy


def test_batching_changes_nothing_but_rounding(monkeypatch):
    asked = items()
    whole = StackScorer(stack(*MEMBERS)).score(asked)
    monkeypatch.setitem(scoring.TOKENS_PER_PASS, "cpu", 40)
    pieces = StackScorer(stack(*MEMBERS)).score(asked)
    np.testing.assert_allclose(pieces.sum_RN, whole.sum_RN, atol=2e-5)


def test_what_does_not_fit_is_cut_on_the_left_and_said():
    fits, cut = Continuation(tokens(20), tokens(5)), Continuation(tokens(20), tokens(6))
    endless = Continuation(tokens(5), tokens(40))
    found = StackScorer(stack(*MEMBERS)).score([[fits], [cut], [endless]])
    assert found.truncated_N.tolist() == [False, True, True]
    assert found.sum_RN[0, 1] == pytest.approx(alone(cut, 0)[0], abs=2e-5)
    assert found.sum_RN[0, 2] == pytest.approx(alone(endless, 0)[0], abs=2e-5)


def test_a_tail_never_sees_its_neighbour():
    context, first, second = tokens(6), tokens(4), tokens(4)
    scorer = StackScorer(stack(*MEMBERS))
    together = scorer.score([[Continuation(context, first), Continuation(context, second)]])
    changed = scorer.score([[Continuation(context, tokens(4)), Continuation(context, second)]])
    np.testing.assert_allclose(together.sum_RN[:, 1], changed.sum_RN[:, 1], atol=1e-5)
