"""Optimizers, clipping, schedules, averages and objectives against torch's own, and against formulas as published."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from ablationlab.model.ops import Objective, losses_R
from ablationlab.model.optimizers import (
    AdamW,
    Columns,
    RowLayout,
    RuleOptimizer,
    average_,
    clock,
    gradient_norm_R,
    lr_factor,
)
from ablationlab.model.orthogonal import A, B, C, orthogonalized
from ablationlab.model.rules import ITERATIONS, OPTIMIZERS, Matrix, UpdateRule, adamw, muon_flops
from ablationlab.model.weights import Parameter
from ablationlab.records.settings import TrainingConfig

TRAINING = TrainingConfig(steps=10, weight_decay=0.1, betas=(0.9, 0.95), eps=1e-8, clip="off")


def ticking(training: TrainingConfig, step: int) -> torch.Tensor:
    return torch.tensor(clock(training, step))


def test_the_gradient_norm_of_a_large_model_is_exact_to_six_digits():
    gradient = np.random.default_rng(0).normal(size=(2, 1_500_000)).astype(np.float32) ** 3
    expected = np.linalg.norm(gradient.astype(np.float64), axis=1)
    np.testing.assert_allclose(gradient_norm_R(torch.from_numpy(gradient)), expected, rtol=1e-6)


def test_a_stack_of_adamw_equals_torchs_adamw_for_each_run():
    generator = np.random.default_rng(0)
    start = torch.from_numpy(generator.normal(size=(3, 64))).float()
    lrs = [1e-3, 1e-2, 3e-4]
    weights = start.clone()
    optimizer = AdamW.start(TRAINING, weights, (Columns(40, 1.0, 0.1), Columns(24, 1.0, 0.0)))
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
    optimizer = AdamW.start(TRAINING, weights, (Columns(8, 1.0, 0.1),))
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
    optimizer = AdamW.start(training, torch.zeros(2, 100), (Columns(100, 1.0, 0.1),))
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


LRS = (1e-2, 3e-3)


def trained(rule: UpdateRule, training: TrainingConfig, start: torch.Tensor, row: RowLayout, steps: int = 20):
    """Weights after some steps with drawn gradients; and those gradients."""
    generator = np.random.default_rng(1)
    weights, alive = start.clone(), torch.ones(len(start), dtype=torch.bool)
    optimizer = RuleOptimizer(training, rule, weights, row)
    gradients = []
    for step in range(1, steps + 1):
        gradient = torch.from_numpy(generator.normal(size=start.shape)).float()
        gradients.append(gradient)
        norms = gradient_norm_R(gradient)
        optimizer.update(weights, gradient, norms, torch.tensor(LRS), ticking(training, step), alive)
    return weights, gradients


def columns_of(decaying: int, free: int, decay: float) -> RowLayout:
    return RowLayout((Columns(decaying, 1.0, decay), Columns(free, 1.0, 0.0)), lambda flat: {})


def by_torch(make, start: torch.Tensor, gradients: list[torch.Tensor], run: int, split: int, decay: float):
    """What an optimizer of torch makes of one run, with decay for the first columns alone."""
    parts = [start[run, :split].clone().requires_grad_(), start[run, split:].clone().requires_grad_()]
    optimizer = make(
        [{"params": [parts[0]], "weight_decay": decay}, {"params": [parts[1]], "weight_decay": 0.0}], LRS[run]
    )
    for gradient in gradients:
        parts[0].grad, parts[1].grad = gradient[run, :split].clone(), gradient[run, split:].clone()
        optimizer.step()
    return torch.cat(parts).detach()


@pytest.mark.parametrize(
    ("rule", "make"),
    [
        (OPTIMIZERS["adam"], lambda groups, lr: torch.optim.Adam(groups, lr, betas=(0.9, 0.95), eps=1e-8)),
        (OPTIMIZERS["sgd"], lambda groups, lr: torch.optim.SGD(groups, lr, momentum=0.95)),
        (UpdateRule(("m", "v"), adamw), lambda groups, lr: torch.optim.AdamW(groups, lr, betas=(0.9, 0.95), eps=1e-8)),
    ],
)
def test_rules_equal_torchs_optimizers_for_each_run(rule, make):
    start = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 48))).float()
    weights, gradients = trained(rule, TRAINING, start, columns_of(32, 16, 0.1))
    for run in range(2):
        theirs = by_torch(make, start, gradients, run, 32, 0.1)
        torch.testing.assert_close(weights[run], theirs, rtol=1e-5, atol=1e-6)


def test_lion_is_the_published_formula():
    """Algorithm 2 of Chen et al. 2023, in double precision."""
    start = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 48))).float()
    weights, gradients = trained(OPTIMIZERS["lion"], TRAINING, start, columns_of(32, 16, 0.1))
    for run, lr in enumerate(LRS):
        w, m = start[run].double().numpy(), np.zeros(48)
        for gradient in gradients:
            g = gradient[run].double().numpy()
            update = np.sign(0.9 * m + (1 - 0.9) * g)
            w = w - lr * (update + np.where(np.arange(48) < 32, 0.1, 0.0) * w)
            m = 0.95 * m + (1 - 0.95) * g
        np.testing.assert_allclose(weights[run].numpy(), w, rtol=1e-4, atol=1e-5)


def matrices_and_a_rest(shapes: list[tuple[int, int]], rest: int) -> RowLayout:
    starts = np.cumsum([0, *(a * b for a, b in shapes)]).tolist()
    matrices = tuple(Matrix(start, shape, (0, shape[1])) for start, shape in zip(starts, shapes, strict=False))
    columns = (Columns(starts[-1], 1.0, 0.1), Columns(rest, 1.0, 0.0))
    return RowLayout(columns, lambda flat: {}, matrices, starts[-1])


SHAPES = [(8, 24), (24, 8), (8, 8), (8, 24)]


def test_muon_equals_torchs_muon_for_matrices_and_adamw_for_the_rest():
    training = TRAINING.changed(optimizer="muon", precision="bf16")
    row = matrices_and_a_rest(SHAPES, 10)
    start = torch.from_numpy(np.random.default_rng(0).normal(size=(2, row.rest + 10))).float()
    weights, gradients = trained(OPTIMIZERS["muon"], training, start, row)
    for run, lr in enumerate(LRS):
        for matrix in row.matrices:
            parameter = torch.nn.Parameter(matrix.of(start[run : run + 1])[0].clone())
            theirs = torch.optim.Muon([parameter], lr=lr, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
            for gradient in gradients:
                parameter.grad = matrix.of(gradient[run : run + 1])[0].clone()
                theirs.step()
            # Both make their products in bf16, in batches of other sizes: 20 updates agree to a percent of what they moved.
            ours, began = (matrix.of(values[run : run + 1])[0] for values in (weights, start))
            apart, moved = (float(torch.linalg.norm(ours - other)) for other in (parameter.detach(), began))
            assert apart < 0.01 * moved
        theirs = by_torch(
            lambda groups, lr: torch.optim.AdamW(groups, lr, betas=(0.9, 0.95), eps=1e-8),
            start[:, row.rest :], [gradient[:, row.rest :] for gradient in gradients], run, 0, 0.1,
        )  # fmt: skip
        torch.testing.assert_close(weights[run, row.rest :], theirs, rtol=1e-5, atol=1e-6)


def test_muon_takes_matrices_that_stand_side_by_side_one_by_one():
    """Queries, keys and values of one layer move as three parameters would."""
    training = TRAINING.changed(optimizer="muon", weight_decay=0.0)
    joint = Parameter("qkv", (8, 16), sections=(8, 4, 4))
    start = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 128))).float()
    row = RowLayout((Columns(128, 1.0, 0.0),), lambda flat: {}, Matrix.all_of(joint, 0), 128)
    together, gradients = trained(OPTIMIZERS["muon"], training, start, row, steps=3)
    for first, end in ((0, 8), (8, 12), (12, 16)):
        for run, lr in enumerate(LRS):
            parameter = torch.nn.Parameter(start[run].view(8, 16)[:, first:end].clone())
            theirs = torch.optim.Muon([parameter], lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
            for gradient in gradients:
                parameter.grad = gradient[run].view(8, 16)[:, first:end].clone()
                theirs.step()
            ours = together[run].view(8, 16)[:, first:end]
            torch.testing.assert_close(ours, parameter.detach(), rtol=0, atol=0.05 * lr)  # theirs is in bf16


@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (2, 7, 7)])
def test_newton_schulz_applies_its_polynomial_to_the_singular_values(shape):
    matrix = torch.from_numpy(np.random.default_rng(2).normal(size=(3, *shape))).float()
    (found,) = orthogonalized([matrix], bf16=False)
    u, sigma, vt = np.linalg.svd(matrix.double().numpy(), full_matrices=False)
    sigma = sigma / np.linalg.norm(sigma, axis=-1, keepdims=True)
    for _ in range(ITERATIONS):
        sigma = A * sigma + B * sigma**3 + C * sigma**5
    np.testing.assert_allclose(found.numpy(), u * sigma[..., None, :] @ vt, atol=1e-4)
    assert found.shape == matrix.shape


def test_neighbours_in_the_batch_of_newton_schulz_change_nothing_but_rounding():
    generator = torch.Generator().manual_seed(0)
    matrices = [torch.randn(2, *shape, generator=generator) for shape in SHAPES]
    together = orthogonalized(matrices, bf16=False)
    for alone, found in zip(matrices, together, strict=True):
        torch.testing.assert_close(orthogonalized([alone], bf16=False)[0], found, rtol=1e-4, atol=1e-4)


def test_the_flops_of_muon_are_those_of_its_products():
    from torch.utils.flop_counter import FlopCounterMode

    matrices = [torch.randn(1, *shape) for shape in SHAPES]
    with FlopCounterMode(display=False) as counter:
        orthogonalized(matrices, bf16=False)
    assert counter.get_total_flops() == sum(muon_flops(*shape) for shape in SHAPES)


@pytest.mark.parametrize("name", ["adam", "lion", "sgd", "muon"])
def test_a_frozen_run_of_any_rule_keeps_every_bit(name):
    row = matrices_and_a_rest([(4, 6)], 8)
    training = TRAINING.changed(optimizer=name, clip=1.0)
    weights = torch.randn(2, 32)
    optimizer = RuleOptimizer(training, OPTIMIZERS[name], weights, row)
    lr, alive = torch.full((2,), 1e-2), torch.tensor([True, True])
    for step in (1, 2):
        gradient = torch.randn(2, 32)
        if step == 2:
            gradient[0], alive[0] = float("nan"), False
            before = [weights[0].clone(), *(value[0].clone() for value in optimizer.state.values())]
        optimizer.update(weights, gradient, gradient_norm_R(gradient), lr, ticking(training, step), alive)
    assert all(map(torch.equal, before, [weights[0], *(value[0] for value in optimizer.state.values())]))
    assert weights[1].isfinite().all()


@pytest.mark.parametrize("name", ["adam", "lion", "sgd", "muon"])
def test_a_group_moves_by_its_own_rate(name):
    """A rate of 0 leaves a group where it is; a factor is that of the learning rate."""
    training = TRAINING.changed(optimizer=name, weight_decay=0.0)
    row = matrices_and_a_rest([(4, 6)], 8)
    scaled = RowLayout((Columns(24, 0.5, 0.0), Columns(8, 0.0, 0.0)), row.views, row.matrices, row.rest)
    plain = RowLayout((Columns(32, 1.0, 0.0),), row.views, row.matrices, row.rest)
    start = torch.randn(2, 32, generator=torch.Generator().manual_seed(3))
    half, whole = (trained(OPTIMIZERS[name], training, start, one, steps=1)[0] for one in (scaled, plain))
    torch.testing.assert_close(half[:, :24] - start[:, :24], 0.5 * (whole - start)[:, :24], rtol=1e-4, atol=1e-6)
    assert torch.equal(half[:, 24:], start[:, 24:])
    assert not torch.equal(whole[:, 24:], start[:, 24:])


def test_the_average_of_the_weights_is_the_weighted_mean_of_all_steps():
    training = TRAINING.changed(ema=0.9)
    generator = torch.Generator().manual_seed(0)
    path = [torch.randn(2, 5, generator=generator) for _ in range(7)]
    average, alive = torch.full((2, 5), 99.0), torch.tensor([True, True])
    for step, weights in enumerate(path, start=1):
        alive[1] = step <= 3
        average_(average, weights, ticking(training, step)[3], alive)
    for run, last in ((0, 7), (1, 3)):
        shares = [0.9 ** (last - step) for step in range(1, last + 1)]
        expected = sum(share * weights[run] for share, weights in zip(shares, path, strict=False)) / sum(shares)
        torch.testing.assert_close(average[run], expected)


@pytest.mark.parametrize(("z_loss", "smoothing"), [(0.0, 0.1), (1e-2, 0.0), (1e-3, 0.3)])
def test_the_objective_equals_torchs_label_smoothing_and_z_loss_and_the_loss_stays_cross_entropy(z_loss, smoothing):
    logits = torch.randn(3, 2, 4, 11, generator=torch.Generator().manual_seed(0)).requires_grad_()
    targets = torch.randint(0, 11, (3, 2, 4), generator=torch.Generator().manual_seed(1))
    loss, objective = losses_R(logits, targets, Objective(z_loss, smoothing))
    for run in range(3):
        flat, hits = logits[run].reshape(-1, 11), targets[run].reshape(-1)
        torch.testing.assert_close(loss[run], torch.nn.functional.cross_entropy(flat, hits))
        theirs = torch.nn.functional.cross_entropy(flat, hits, label_smoothing=smoothing)
        theirs = theirs + z_loss * flat.exp().sum(dim=-1).log().square().mean()
        torch.testing.assert_close(objective[run], theirs)
        ours, expected = (torch.autograd.grad(one, logits, retain_graph=True)[0] for one in (objective[run], theirs))
        torch.testing.assert_close(ours, expected)


def test_linear_equals_torchs_warmup_and_linear_decay():
    training = TrainingConfig(steps=50, schedule="linear", warmup=10, final_lr=0.1)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    parts = [
        torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=9),
        torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=40),
    ]
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, parts, milestones=[9])
    for step in range(1, 51):
        assert lr_factor(training, step, 50) == pytest.approx(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()


def test_warmup_stable_decay_is_flat_between_its_ends():
    training = TrainingConfig(steps=100, schedule="warmup-stable-decay", warmup=10, decay_share=0.3, final_lr=0.0)
    factors = [lr_factor(training, step, 100) for step in range(1, 101)]
    np.testing.assert_allclose(factors[:10], np.arange(1, 11) / 10)
    assert set(factors[9:70]) == {1.0}
    np.testing.assert_allclose(factors[70:], np.arange(29, -1, -1) / 30, atol=1e-12)
    flat = training.changed(decay_share=0.0)
    assert {lr_factor(flat, step, 100) for step in range(10, 101)} == {1.0}


def test_inverse_sqrt_is_that_of_the_transformer_scaled_to_its_peak():
    training = TrainingConfig(steps=400, schedule="inverse-sqrt", warmup=40)
    for step in (1, 17, 40, 41, 160, 400):
        noam = min(step**-0.5, step * 40**-1.5)  # equation 3 of Vaswani et al. 2017, without the width
        assert lr_factor(training, step, 400) == pytest.approx(noam * 40**0.5)
    assert lr_factor(training.changed(warmup=0), 4, 400) == 0.5
