from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from ablationlab.data.tokenizers import TOKEN_CLASSES, CharTokenizer, token_classes
from ablationlab.evaluation import throughput
from ablationlab.evaluation.calibration import TEMPERATURES
from ablationlab.evaluation.length import DOCUMENTS, begin_length_scores
from ablationlab.evaluation.scoring import ScoringTokens
from ablationlab.evaluation.throughput import measure
from ablationlab.evaluation.tokens import begin_token_scores, text_units
from ablationlab.training.perplexity import run_metrics, validation_totals

from .models import MODEL, member, stack

MEMBERS = [member(1), member(2, "layernorm")]
TEXT = np.random.default_rng(1).integers(0, 13, 24 * 9 + 7)
TOKENIZER = CharTokenizer("\n ,.12abcdefg")


def token_scores(scored, text, classes, size, end_of_document=None):
    units = text_units(text, end_of_document, scored.model.context)
    scores_of = begin_token_scores(scored, text, classes, size, units)
    return [scores_of(run) for run in range(len(scored.members))]


def length_scores(scored, text):
    scores_of = begin_length_scores(scored, text)
    return None if scores_of is None else [scores_of(run) for run in range(len(scored.members))]


def parts():
    return token_scores(stack(*MEMBERS, width=3), TEXT, token_classes(TOKENIZER), len(TEXT) - 1)


def test_loss_and_accuracy_are_those_of_the_validation_pass_of_training():
    mine = stack(*MEMBERS)
    totals = validation_totals(mine.params, MODEL, mine.fronts, torch.from_numpy(TEXT), torch.float32)
    for run, part in enumerate(parts()):
        expected = run_metrics(totals, run, len(TEXT) - 1)
        assert part.loss == pytest.approx(expected.validation_loss, rel=1e-6)
        assert part.accuracy == pytest.approx(expected.next_token_accuracy)
        assert part.bits_per_byte == pytest.approx(expected.bits_per_byte, rel=1e-6)
        assert part.tokens == len(TEXT) - 1


def test_classes_and_temperature_one_add_up_to_the_loss():
    for part in parts():
        by_class = sum((part.loss_by_class[name] or 0) * part.tokens_by_class[name] for name in TOKEN_CLASSES)
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
        logits = mine.forward.logits(torch.from_numpy(span[None, None, :-1]))[0, 0].double()
        for place, target in enumerate(span[1:]):
            p = logits[place].softmax(-1).numpy()
            by_place.setdefault(place, []).append(-math.log(p[target]))
            brier.append(((p - np.eye(13)[target]) ** 2).sum())
    part = parts()[1]
    size = part.position_edges[1]
    first = [value for place in range(size) for value in by_place[place]]
    assert part.loss_by_position[0] == pytest.approx(np.mean(first), rel=1e-5)
    assert part.calibration.brier == pytest.approx(np.mean(brier), rel=1e-5)


def test_losses_of_documents_against_a_plain_loop():
    """Token 3 ends a document; windows of 24 tokens reach over the ends."""
    mine = stack(MEMBERS[0])
    losses: dict[int, list[float]] = {}
    document = np.concatenate([[0], np.cumsum(TEXT == 3)[:-1]])
    for start in range(0, len(TEXT) - 1, 24):
        span = TEXT[start : start + 25]
        logits = mine.forward.logits(torch.from_numpy(span[None, None, :-1]))[0, 0].double()
        for place, target in enumerate(span[1:], start=1):
            losses.setdefault(int(document[start + place]), []).append(
                -float(logits[place - 1].log_softmax(-1)[target])
            )
    part = token_scores(mine, TEXT, token_classes(TOKENIZER), len(TEXT) - 1, end_of_document=3)[0]
    assert part.documents.kind == "documents"
    assert part.documents.tokens == tuple(len(losses[name]) for name in sorted(losses))
    assert part.documents.losses == pytest.approx([np.mean(losses[name]) for name in sorted(losses)], rel=1e-5)


def test_a_text_without_documents_is_cut_into_blocks_that_add_up_to_the_loss():
    for part in parts():
        assert part.documents.kind == "blocks"
        assert len(part.documents.losses) == len(TEXT) // (4 * 24)
        assert sum(part.documents.tokens) == part.tokens
        assert np.average(part.documents.losses, weights=part.documents.tokens) == pytest.approx(part.loss)


def test_very_many_documents_are_pooled_with_their_neighbours():
    units = text_units(np.tile([1, 0], 2500), 0, 24)
    assert (units.kind, units.count) == ("documents", 834)
    assert set(np.bincount(units.unit_N)[:-1]) == {6}


def test_characters_have_their_classes():
    found = [TOKEN_CLASSES[kind] for kind in token_classes(TOKENIZER)]
    assert found[:7] == ["whitespace", "whitespace", "punctuation", "punctuation", "numeric", "numeric", "alphabetic"]


def test_unknown_characters_are_replaced_and_counted():
    text = ScoringTokens(TOKENIZER)
    assert text.encode("aXbZ") == text.encode("a b ")
    assert text.count_unknown("aXbZ") == 2
    assert text.count_unknown("éa") == 1
    assert text.empty_context == 0  # the newline


def plain_losses(mine, begin: int, end: int) -> dict[int, float]:
    """Loss of every token of TEXT that a window from *begin* to *end* predicts, by its place in TEXT."""
    span = TEXT[begin : end + 1]
    logits = mine.forward.logits(torch.from_numpy(span[None, None, :-1]))[0, 0].double()
    return {begin + i + 1: -float(logits[i].log_softmax(-1)[span[i + 1]]) for i in range(len(span) - 1)}


def test_tokens_past_the_context_are_read_near_its_end_and_by_a_sliding_window_as_in_a_plain_loop():
    mine = stack(MEMBERS[0])
    found = length_scores(mine, TEXT)
    assert found is not None
    part = found[0]
    assert (part.context, part.stride, part.edges[-1]) == (24, 12, 48)
    assert len(part.losses) == len(part.edges) - 1 == 8 + 8
    assert part.history == (21, 18, 15, 12, 9, 6, 3, 0)
    near, sliding, fresh, first, inside = [], [], [], [], []
    for start in np.unique(np.linspace(0, len(TEXT) - 49, DOCUMENTS).astype(int)):
        inside.append(list(plain_losses(mine, start, start + 24).values()))
        windows = {slid: plain_losses(mine, start + slid, start + slid + 24) for slid in range(3, 25, 3)}
        past = [start + 25 + place for place in range(24)]
        near.append([windows[3 * (place // 3 + 1)][token] for place, token in enumerate(past)])
        sliding.append([windows[12 if place < 12 else 24][token] for place, token in enumerate(past)])
        fresh.append([windows[24][token] for token in past])
        first.append([np.mean([windows[slid][token] for token in past[:3]]) for slid in windows])
    assert part.near_end == pytest.approx(np.mean(near), rel=1e-5)
    assert part.past_end == pytest.approx(np.mean(sliding), rel=1e-5)
    eighths = [np.reshape(rows, (-1, 8, 3)).mean(axis=(0, 2)) for rows in (inside, sliding, near, fresh)]
    assert part.losses == pytest.approx([*eighths[0], *eighths[1]], rel=1e-5)
    assert part.near == pytest.approx(eighths[2], rel=1e-5)
    assert part.fresh == pytest.approx(eighths[3], rel=1e-5)
    assert part.loss_by_history == pytest.approx(np.mean(first, axis=0), rel=1e-5)
    assert length_scores(mine, TEXT[:40]) is None


def test_sliding_costs_nothing_without_memory_and_shows_where_positions_are_brittle():
    deaf = member(1)
    for name in ("pos.weight", *(f"blocks.{layer}.attn.out.weight" for layer in range(MODEL.layers))):
        deaf.tensors[name] = torch.zeros_like(deaf.tensors[name])
    found = length_scores(stack(deaf), TEXT)
    assert found is not None
    # The text is noise, whose eighths differ; the same tokens, read in two ways, do not.
    assert np.ptp(found[0].near) > 1e-2
    assert found[0].past_end == pytest.approx(found[0].near_end, abs=1e-6)
    assert found[0].fresh == pytest.approx(found[0].near, abs=1e-6)
    # Other positions where only tokens right after a slide stand: near the end nobody looks at them.
    deaf.tensors["pos.weight"][12:15] = 3 * torch.randn(3, MODEL.width, generator=torch.Generator().manual_seed(1))
    spoilt = length_scores(stack(deaf), TEXT)
    assert spoilt is not None
    assert spoilt[0].near_end == pytest.approx(found[0].near_end, abs=1e-6)
    changed = np.abs(np.subtract(spoilt[0].losses[8:], spoilt[0].near)) > 0.05
    assert list(np.flatnonzero(changed)) == [0, 4]


@pytest.mark.parametrize("context", [8, 13, 31])
def test_contexts_that_eight_does_not_divide_are_read_in_whole_pieces(context):
    model = MODEL.model_copy(update={"context": context})
    found = length_scores(stack(member(1, model=model)), TEXT)
    assert found is not None
    assert len(found[0].losses) == len(found[0].edges) - 1 == 16
    assert found[0].edges[8] == context
    assert found[0].history[-1] == context % 8
    assert np.isfinite(found[0].losses).all()


def test_a_training_step_is_timed_with_its_update_where_runs_differ_in_it(monkeypatch):
    made = []
    update = throughput._Update

    def counted(model, training, device):
        made.append(training.optimizer)
        return update(model, training, device)

    monkeypatch.setattr(throughput, "_Update", counted)
    measure(MEMBERS, torch.device("cpu"), rounds=1)
    assert made == []
    first = MEMBERS[0]
    other = first.run.recipe.model_copy(update={"training": first.run.training.changed(optimizer="muon", ema=0.9)})
    muon = replace(first, run=first.run.model_copy(update={"recipe": other}))
    before = {name: value.clone() for name, value in muon.tensors.items()}
    found = measure([first, muon], torch.device("cpu"), rounds=1)
    assert sorted(made) == ["adamw", "muon"]
    assert all(part.training_tokens_per_second > 0 for part in found)
    assert all(torch.equal(value, muon.tensors[name]) for name, value in before.items())


def test_throughput_counts_memory_exactly_and_times_every_run_in_every_round():
    found = measure(MEMBERS, torch.device("cpu"), rounds=2)
    assert [part.rounds for part in found] == [2, 2]
    assert found[0].together == found[1].together
    again = measure(MEMBERS, torch.device("cpu"), rounds=1)
    assert [part.inference_bytes for part in again] == [part.inference_bytes for part in found]
    assert all(part.training_bytes > part.inference_bytes > 4 * 24 * 16 * 4 for part in found)
    assert all(part.inference_tokens_per_second > 0 for part in found)
