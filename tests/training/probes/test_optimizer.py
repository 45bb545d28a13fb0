"""Gradient, update and second moment per group, against the step done by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from probes.conftest import MODEL, TRAINING, snapshot_of

from ablationlab.model.optimizers import gradient_norm_R
from ablationlab.model.parameters import parameters
from ablationlab.study.variants import VARIANTS
from ablationlab.training.probes.optimizer import (
    ORDER,
    gradient_norm,
    groups,
    groups_of,
    second_moment,
    squares,
    update_ratio,
)


def by_group(readings, measure, run):
    """group -> value of one run, where the run has that group."""
    return {
        reading.groups[0]: reading.values[run].item()
        for reading in readings
        if reading.measure == measure and reading.has_R[run]
    }


@pytest.mark.parametrize("variant", ["none", "layernorm", "untied"])
def test_every_parameter_is_in_exactly_one_group(variant):
    owned = parameters(VARIANTS[variant].apply(MODEL.changed(head_bias=True)))
    found = groups_of(owned)
    assert sorted(place for group in ORDER for place in found.get(group, ())) == list(range(len(owned)))
    blocks = [place for group, places in found.items() if group.startswith("block-") for place in places]
    assert [owned[place].name.startswith("blocks.") for place in range(len(owned))].count(True) == len(blocks)
    assert set(found) - set(ORDER) == {"total", "block-1", "block-2"}


def test_squares_of_the_groups_sum_to_the_total_which_is_the_trained_gradient_norm(snapshot):
    readings = gradient_norm(snapshot)
    whole = gradient_norm_R(snapshot.gradient_RP)
    for run in range(3):
        found = by_group(readings, "norm", run)
        assert found["total"] == pytest.approx(whole[run].item(), rel=1e-5)
        parts = [value for group, value in found.items() if group in ORDER]
        assert math.fsum(value**2 for value in parts) == pytest.approx(found["total"] ** 2, rel=1e-9)
        assert ("front" in found) == (run > 0)
    gradient = snapshot.layout.views(snapshot.gradient_RP)
    assert by_group(readings, "norm", 1)["embedding"] == pytest.approx(
        gradient["tok.weight"][1].norm().item(), rel=1e-6
    )


def test_the_gradient_is_the_one_before_clipping():
    clipped = snapshot_of("none", training=TRAINING.changed(clip=1e-3))
    free = snapshot_of("none", training=TRAINING.changed(clip="off"))
    assert torch.equal(clipped.gradient_RP, free.gradient_RP)
    assert by_group(gradient_norm(clipped), "norm", 0)["total"] > 0.1


def test_update_ratio_is_that_of_an_adamw_step_done_by_hand():
    snapshot = snapshot_of("none", training=TRAINING.changed(clip="off"))
    weights = {name: value[0].clone() for name, value in snapshot.layout.views(snapshot.before_RP).items()}
    gradient = {name: value[0].clone() for name, value in snapshot.layout.views(snapshot.gradient_RP).items()}
    lr = 1e-2 / TRAINING.warmup  # the first step of a warmup of two
    for group in ("embedding", "mlp", "norms", "total"):
        names = [p.name for p in parameters(MODEL) if group in ("total", p.group)]
        tensors = [weights[name].clone().requires_grad_() for name in names]
        for tensor, name in zip(tensors, names, strict=True):
            tensor.grad = gradient[name]
        rule = [
            {"params": [t for t in tensors if t.dim() > 1], "weight_decay": TRAINING.weight_decay},
            {"params": [t for t in tensors if t.dim() == 1], "weight_decay": 0.0},
        ]
        torch.optim.AdamW([r for r in rule if r["params"]], lr=lr, betas=TRAINING.betas, eps=TRAINING.eps).step()
        moved = math.sqrt(
            sum((t.detach() - weights[n]).square().sum().item() for t, n in zip(tensors, names, strict=True))
        )
        before = math.sqrt(sum(weights[n].square().sum().item() for n in names))
        assert by_group(update_ratio(snapshot), "ratio", 0)[group] == pytest.approx(moved / before, rel=1e-4)


def test_second_moment_after_one_step_is_the_squared_gradient():
    snapshot = snapshot_of("none", "layernorm", training=TRAINING.changed(clip="off"))
    readings = second_moment(snapshot)
    squares = {name: value.square() for name, value in snapshot.layout.views(snapshot.gradient_RP).items()}
    for run in range(2):
        owned = [name for name in squares if run == 1 or not name.startswith("front.")]
        every = torch.cat([squares[name][run].flatten() for name in owned])
        assert by_group(readings, "mean", run)["total"] == pytest.approx(every.mean().item(), rel=1e-4)
        assert by_group(readings, "max", run)["total"] == pytest.approx(every.max().item(), rel=1e-4)
        near = (every.sqrt() <= 9 * TRAINING.eps).double().mean().item()
        assert by_group(readings, "near_eps", run)["total"] == pytest.approx(near, abs=1e-9)


def test_near_eps_counts_exactly_the_weights_whose_root_is_below_nine_eps(snapshot):
    width = MODEL.width
    flat = torch.ones_like(snapshot.v_RP)
    for size, slot in zip(
        [p.size for p in snapshot.layout.parameters], torch.split(flat, list(snapshot.layout.sizes), dim=1), strict=True
    ):
        slot[:, size:] = 0.0  # padding, as in training
    views = snapshot.layout.views(flat)
    correction = 1 - TRAINING.betas[1] ** snapshot.step
    views["pos.weight"][:, 0] = (8.9 * TRAINING.eps) ** 2 * correction  # one row of a context of 16
    views["pos.weight"][:, 1] = (9.1 * TRAINING.eps) ** 2 * correction
    readings = second_moment(replace(snapshot, v_RP=flat))
    found = by_group(readings, "near_eps", 0)
    assert found["position"] == pytest.approx(1 / 16)
    assert found["embedding"] == found["norms"] == 0
    owned = sum(p.size for p in snapshot.layout.parameters if not p.name.startswith("front."))
    assert found["total"] == pytest.approx(width / owned)


def test_groups_of_an_untied_model_have_a_head_and_those_of_a_tied_one_do_not(snapshot):
    assert "head" in groups(snapshot_of("untied")).names
    assert "head" not in groups(snapshot).names


def test_large_models_are_summed_parameter_by_parameter_to_the_same_numbers(snapshot):
    table = groups(snapshot)
    assert table.member_CG is not None
    large = replace(table, member_CG=None)
    chunks = squares(snapshot.gradient_RP)
    assert torch.allclose(table.sums(chunks), large.sums(chunks), rtol=1e-12)
    assert torch.equal(table.maxima(chunks), large.maxima(chunks))
