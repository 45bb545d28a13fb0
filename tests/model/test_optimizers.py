"""AdamW, clipping and schedules against torch's own."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from ablationlab.model.optimizers import AdamW, clock, gradient_norm_R, lr_factor
from ablationlab.records.settings import TrainingConfig

TRAINING = TrainingConfig(steps=10, weight_decay=0.1, betas=(0.9, 0.95), eps=1e-8, clip="off")


def ticking(training: TrainingConfig, step: int) -> torch.Tensor:
    return torch.tensor(clock(training, step))


def test_a_stack_of_adamw_equals_torchs_adamw_for_each_run():
    generator = np.random.default_rng(0)
    start = torch.from_numpy(generator.normal(size=(3, 64))).float()
    lrs = [1e-3, 1e-2, 3e-4]
    weights = start.clone()
    optimizer = AdamW.start(TRAINING, weights, 40)
    theirs = []
    for run, lr in enumerate(lrs):
        decayed, free = start[run, :40].clone().requires_grad_(), start[run, 40:].clone().requires_grad_()
        groups = [{"params": [decayed], "weight_decay": 0.1}, {"params": [free], "weight_decay": 0.0}]
        theirs.append((decayed, free, torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8)))
    alive = torch.ones(3, dtype=torch.bool)
    for step in range(1, 51):
        gradient = torch.from_numpy(generator.normal(size=(3, 64)) * 10.0 ** generator.integers(-4, 2)).float()
        norms = gradient_norm_R(gradient)
        optimizer.update(weights, gradient, norms, torch.tensor(lrs), ticking(TRAINING, step), alive)
        for run, (decayed, free, one) in enumerate(theirs):
            decayed.grad, free.grad = gradient[run, :40].clone(), gradient[run, 40:].clone()
            one.step()
    for run, (decayed, free, _) in enumerate(theirs):
        torch.testing.assert_close(weights[run], torch.cat([decayed, free]).detach(), rtol=2e-6, atol=2e-6)


def test_a_frozen_run_keeps_every_bit_even_when_its_gradient_is_nan():
    weights = torch.randn(2, 8)
    before = weights.clone()
    optimizer = AdamW.start(TRAINING, weights, 8)
    gradient = torch.randn(2, 8)
    gradient[0] = float("nan")
    lr, alive = torch.full((2,), 1e-2), torch.tensor([False, True])
    optimizer.update(weights, gradient, gradient_norm_R(gradient), lr, ticking(TRAINING, 1), alive)
    assert torch.equal(weights[0], before[0])
    assert not optimizer.m_RP[0].any()
    assert not optimizer.v_RP[0].any()
    assert weights[1].isfinite().all()
    assert not torch.equal(weights[1], before[1])


def test_clipping_equals_torchs_for_each_run_and_leaves_the_gradient_itself_alone():
    training = TRAINING.changed(clip=1.0)
    gradient = torch.stack([torch.randn(100) * 5, torch.randn(100) * 0.01])
    given, norms = gradient.clone(), gradient_norm_R(gradient)
    optimizer = AdamW.start(training, torch.zeros(2, 100), 100)
    alive = torch.ones(2, dtype=torch.bool)
    total, top = optimizer.update(
        torch.zeros(2, 100), gradient, norms, torch.full((2,), 1e-3), ticking(training, 1), alive
    )
    assert torch.equal(gradient, given)
    for run in range(2):
        parameter = torch.nn.Parameter(torch.zeros(100))
        parameter.grad = given[run].clone()
        norm = torch.nn.utils.clip_grad_norm_([parameter], 1.0)
        torch.testing.assert_close(norms[run], norm)
        torch.testing.assert_close(optimizer.m_RP[run], 0.1 * parameter.grad)
        torch.testing.assert_close(total[run], (0.05 * parameter.grad**2).sum())
        torch.testing.assert_close(top[run], (0.05 * parameter.grad**2).max())


def test_warmup_is_linear_and_the_cosine_ends_at_its_floor():
    training = TrainingConfig(steps=300, warmup=30, final_lr=0.1)
    factors = [lr_factor(training, step, 300) for step in range(1, 301)]
    np.testing.assert_allclose(factors[:30], np.arange(1, 31) / 30)
    assert factors[29] == 1.0
    assert factors[-1] == pytest.approx(0.1)
    assert factors[164] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 135 / 270)))
    assert all(a > b for a, b in itertools.pairwise(factors[29:]))


def test_the_cosine_part_equals_torchs_cosine_annealing():
    training = TrainingConfig(steps=50, warmup=0, final_lr=0.1)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50, eta_min=0.1)
    for step in range(1, 51):
        optimizer.step()
        schedule.step()
        assert lr_factor(training, step, 50) == pytest.approx(schedule.get_last_lr()[0])


def test_a_constant_schedule_ignores_warmup():
    training = TrainingConfig(steps=5, schedule="constant", warmup=30)
    assert {lr_factor(training, step, 5) for step in range(1, 6)} == {1.0}
