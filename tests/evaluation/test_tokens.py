from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ablationlab.data.tokenizers import CharTokenizer
from ablationlab.evaluation.calibration import TEMPERATURES
from ablationlab.evaluation.length import length_parts
from ablationlab.evaluation.perplexity import run_metrics, validation_totals
from ablationlab.evaluation.text import CLASSES, ScoringTokens, token_classes
from ablationlab.evaluation.throughput import measure
from ablationlab.evaluation.tokens import token_parts
from ablationlab.model import forward

from .models import MODEL, member, stack

MEMBERS = [member(1), member(2, "layernorm")]
TEXT = np.random.default_rng(1).integers(0, 13, 24 * 9 + 7)
TOKENIZER = CharTokenizer("\n ,.12abcdefg")


def parts():
    return token_parts(stack(*MEMBERS, width=3), TEXT, token_classes(TOKENIZER), len(TEXT) - 1)


def test_loss_and_accuracy_are_those_of_the_validation_pass_of_training():
    mine = stack(*MEMBERS)
    totals = validation_totals(mine.params, MODEL, mine.fronts, torch.from_numpy(TEXT), torch.float32)
    for run, part in enumerate(parts()):
        expected = run_metrics(totals, run, len(TEXT) - 1)
        assert part.loss == pytest.approx(expected["validation_loss"], rel=1e-6)
        assert part.accuracy == pytest.approx(expected["next_token_accuracy"])
        assert part.bits_per_byte == pytest.approx(expected["bits_per_byte"], rel=1e-6)
        assert part.tokens == len(TEXT) - 1


def test_classes_and_temperature_one_add_up_to_the_loss():
    for part in parts():
        by_class = sum((part.loss_by_class[name] or 0) * part.tokens_by_class[name] for name in CLASSES)
        assert by_class / part.tokens == pytest.approx(part.loss)
        assert part.temperature.losses[TEMPERATURES.index(1.0)] == pytest.approx(part.loss, rel=1e-6)
        assert part.tokens_by_class["end-of-document"] == 0
        assert part.loss_by_class["end-of-document"] is None


def test_loss_by_position_and_brier_against_a_plain_loop():
    mine = stack(MEMBERS[1])
    by_place: dict[int, list[float]] = {}
    brier = []
    for start in range(0, len(TEXT) - 1, 24):
        span = TEXT[start : start + 25]
        logits = forward(mine.params, torch.from_numpy(span[None, None, :-1]), mine.model, mine.fronts)[0, 0].double()
        for place, target in enumerate(span[1:]):
            p = logits[place].softmax(-1).numpy()
            by_place.setdefault(place, []).append(-math.log(p[target]))
            brier.append(((p - np.eye(13)[target]) ** 2).sum())
    part = parts()[1]
    size = part.position_edges[1]
    first = [value for place in range(size) for value in by_place[place]]
    assert part.loss_by_position[0] == pytest.approx(np.mean(first), rel=1e-5)
    assert part.calibration.brier == pytest.approx(np.mean(brier), rel=1e-5)


def test_characters_have_their_classes():
    found = [CLASSES[kind] for kind in token_classes(TOKENIZER)]
    assert found[:7] == ["whitespace", "whitespace", "punctuation", "punctuation", "numeric", "numeric", "alphabetic"]


def test_unknown_characters_are_replaced_and_counted():
    text = ScoringTokens(TOKENIZER)
    assert text.encode("aXbZ") == text.encode("a b ")
    assert text.count_unknown("aXbZ") == 2
    assert text.count_unknown("éa") == 1
    assert text.empty_context == 0  # the newline


def test_past_the_context_only_the_last_quarter_of_a_sliding_window_is_scored():
    mine = stack(MEMBERS[0])
    found = length_parts(mine, TEXT)
    assert found is not None
    part = found[0]
    assert (part.context, part.stride, part.edges[-1]) == (24, 6, 48)
    assert len(part.losses) == len(part.edges) - 1 == 8 + 4
    starts = np.unique(np.linspace(0, len(TEXT) - 49, 48).astype(int))
    losses = []
    for start in starts:  # tokens 25..30 of each document, in a window that begins 6 tokens into it
        span = TEXT[start + 6 : start + 31]
        logits = forward(mine.params, torch.from_numpy(span[None, None, :-1]), mine.model, mine.fronts)[0, 0].double()
        losses += [-float(logits[place].log_softmax(-1)[span[place + 1]]) for place in range(18, 24)]
    assert part.losses[8] == pytest.approx(np.mean(losses), rel=1e-5)
    assert part.past_end == pytest.approx(np.mean(part.losses[8:]))
    assert length_parts(mine, TEXT[:40]) is None


def test_throughput_counts_memory_exactly_and_times_every_run_in_every_round():
    found = measure(MEMBERS, torch.device("cpu"), rounds=2)
    assert [part.rounds for part in found] == [2, 2]
    assert found[0].together == found[1].together
    again = measure(MEMBERS, torch.device("cpu"), rounds=1)
    assert [part.inference_bytes for part in again] == [part.inference_bytes for part in found]
    assert all(part.training_bytes > part.inference_bytes > 4 * 24 * 16 * 4 for part in found)
    assert all(part.inference_tokens_per_second > 0 for part in found)
