from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ablationlab.model.gpt import ForwardPass
from ablationlab.model.parameters import parameters
from ablationlab.records.settings import ModelConfig
from ablationlab.study.variants import VARIANTS
from ablationlab.training import perplexity
from ablationlab.training.perplexity import run_metrics, validation_totals

MODEL = ModelConfig(layers=1, width=16, heads=2, context=8, vocabulary=13, token_init_std=0.5, init_std=0.2)
TEXT = torch.from_numpy(np.random.default_rng(1).integers(0, 13, 8 * 5 + 4))  # four predicted tokens are left over


def weights(*seeds: int) -> dict[str, torch.Tensor]:
    return {p.name: torch.stack([torch.from_numpy(p.draw(s)) for s in seeds]) for p in parameters(MODEL)}


def test_every_token_but_the_first_is_scored_once_with_the_context_before_it():
    params, fronts = weights(1, 2), [MODEL.front] * 2
    totals = validation_totals(params, MODEL, fronts, TEXT, torch.float32)
    assert totals.tokens == len(TEXT) - 1
    for run in range(2):
        forward = ForwardPass({name: value[run : run + 1] for name, value in params.items()}, MODEL, fronts[:1])
        nll, hits, norms = [], [], []
        for target in range(1, len(TEXT)):  # token by token, in float64, as slowly and plainly as can be
            start = (target - 1) // 8 * 8
            logits = forward.logits(TEXT[None, None, start:target])[0, 0, -1].double()
            nll.append(float(F.cross_entropy(logits, TEXT[target])))
            hits.append(int(logits.argmax()) == int(TEXT[target]))
            norms.append(float(forward.embed(TEXT[None, None, start:target])[0, 0, -1].norm()))
        found = run_metrics(totals, run, validation_bytes=50)
        assert found.validation_loss == pytest.approx(np.mean(nll), rel=1e-5)
        assert found.perplexity == pytest.approx(math.exp(np.mean(nll)), rel=1e-4)
        assert found.bits_per_byte == pytest.approx(sum(nll) / math.log(2) / 50, rel=1e-5)
        assert found.next_token_accuracy == pytest.approx(np.mean(hits))
        assert found.mean_embedding_norm == pytest.approx(np.mean(norms), rel=1e-5)


def test_a_model_that_knows_nothing_has_the_loss_of_a_uniform_guess():
    params = {name: torch.zeros_like(value) for name, value in weights(1).items()}
    found = run_metrics(validation_totals(params, MODEL, [MODEL.front], TEXT, torch.float32), 0, len(TEXT) - 1)
    assert found.validation_loss == pytest.approx(math.log(13))
    assert found.perplexity == pytest.approx(13)
    assert found.bits_per_byte == pytest.approx(math.log2(13))


def test_embedding_norm_is_that_of_the_vectors_entering_block_1():
    model = VARIANTS["rmsnorm-nogain"].apply(MODEL)
    totals = validation_totals(weights(1), model, [model.front], TEXT, torch.float32)
    assert run_metrics(totals, 0, 1).mean_embedding_norm == pytest.approx(math.sqrt(16), rel=1e-4)


def test_batching_changes_nothing_but_rounding(monkeypatch):
    whole = validation_totals(weights(1), MODEL, [MODEL.front], TEXT, torch.float32)
    monkeypatch.setattr(perplexity, "TOKENS_PER_PASS", 16)
    pieces = validation_totals(weights(1), MODEL, [MODEL.front], TEXT, torch.float32)
    assert float(pieces.nll_R[0]) == pytest.approx(float(whole.nll_R[0]), rel=1e-6)
    assert torch.equal(pieces.hits_R, whole.hits_R)


def test_the_curve_uses_its_windows_alone():
    some = validation_totals(weights(1), MODEL, [MODEL.front], TEXT, torch.float32, [(0, 8), (8, 8)])
    same = validation_totals(weights(1), MODEL, [MODEL.front], TEXT[:17], torch.float32)
    assert some.tokens == 16
    assert float(some.nll_R[0]) == pytest.approx(float(same.nll_R[0]), rel=1e-6)


def test_windows_need_not_stand_together():
    some = validation_totals(weights(1), MODEL, [MODEL.front], TEXT, torch.float32, [(8, 8), (24, 8)])
    parts = [
        validation_totals(weights(1), MODEL, [MODEL.front], TEXT[start : start + 9], torch.float32) for start in (8, 24)
    ]
    assert some.tokens == 16
    assert float(some.nll_R[0]) == pytest.approx(sum(float(part.nll_R[0]) for part in parts), rel=1e-6)
