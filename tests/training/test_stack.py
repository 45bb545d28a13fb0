"""Stacks: the same inputs always, the same bits at equal width, and no touching of neighbours."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ablationlab.model.dropout import Dropout
from ablationlab.model.parameters import parameters
from ablationlab.records.settings import ModelConfig, TrainingConfig
from ablationlab.study.variants import VARIANTS
from ablationlab.training.export import GPT
from ablationlab.training.stack import ALIGNMENT, Member, ParameterLayout, Stack

MODEL = ModelConfig(layers=2, width=16, heads=2, context=16, vocabulary=13)
TRAINING = TrainingConfig(steps=8, batch=4, lr=1e-2, warmup=2, precision="fp32")
TOKENS = np.random.default_rng(0).integers(0, 13, 2000)


def member(variant: str = "none", seed: int = 1, lr: float = 1e-2, model: ModelConfig = MODEL) -> Member:
    return Member(f"{variant}-{seed}", seed, lr, VARIANTS[variant].apply(model))


def stack_of(*members: Member, width: int | None = None, training: TrainingConfig = TRAINING) -> Stack:
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    return Stack(members, width or len(members), training, training.steps or 8, TOKENS, cpu, torch.float32)


def trained(*members: Member, width: int | None = None, steps: int = 8, training: TrainingConfig = TRAINING) -> Stack:
    stack = stack_of(*members, width=width, training=training)
    for step in range(1, steps + 1):
        stack.train_step(step, stack.offsets(step))
    return stack


def same_weights(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_parameters_start_on_aligned_slots_and_views_share_the_buffer():
    layout = ParameterLayout.of([member("layernorm")])
    flat = torch.zeros(2, sum(layout.sizes))
    views = layout.views(flat)
    for view in views.values():
        assert view.storage_offset() % ALIGNMENT == 0
    views["tok.weight"][1, 2, 3] = 7.0
    assert flat[1].sum() == 7.0


def test_shared_parameters_of_all_variants_of_a_seed_are_bit_identical_at_step_0():
    names = [name for name in VARIANTS if name != "untied"]  # another shape: never in one stack with the others
    stack = stack_of(*[member(name) for name in names])
    base = stack.state(0)["weights"]
    for slot, name in enumerate(names):
        state = stack.state(slot)["weights"]
        for parameter in base:
            if not VARIANTS[name].declared([(MODEL, VARIANTS[name].apply(MODEL))]).covers_parameter(parameter):
                assert torch.equal(base[parameter], state[parameter]), (name, parameter)


def test_variants_of_a_seed_see_the_same_batches_and_masks():
    dropped = MODEL.changed(dropout=0.3)
    stack = stack_of(*[member(name, model=dropped) for name in ("none", "layernorm", "rmsnorm")])
    for step in (1, 2, 7):
        offsets = stack.offsets(step)
        assert (offsets == offsets[0]).all()
        stack.feed(step, offsets[None])
        mask = Dropout(0.3, stack._sites, stack._keys[0]).mask("blocks.0.mlp", (3, 4, 16, 16))
        assert (mask == mask[0]).all()


def test_a_stack_of_one_equals_plain_torch_training():
    """The same model as an ordinary module, torch.optim.AdamW, clip_grad_norm_: weights agree to float32 rounding."""
    stack = trained(member("layernorm"))
    model = VARIANTS["layernorm"].apply(MODEL)
    plain = GPT(model, {p.name: torch.from_numpy(p.draw(1)) for p in parameters(model)}, None)
    decayed = [p for p in plain.parameters() if p.dim() >= 2]
    free = [p for p in plain.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed}, {"params": free, "weight_decay": 0.0}], betas=(0.9, 0.95), weight_decay=0.1
    )
    from ablationlab.model.optimizers import lr_factor

    text = torch.from_numpy(TOKENS)
    for step in range(1, 9):
        windows = torch.stack([text[o : o + 17] for o in stack.offsets(step)[0]])
        loss = F.cross_entropy(plain(windows[:, :-1]).reshape(-1, 13), windows[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * lr_factor(TRAINING, step, 8)
        optimizer.step()
    state = stack.state(0)["weights"]
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(state[name], parameter.detach(), rtol=1e-3, atol=2e-5)


def test_a_run_alone_and_in_a_stack_agree_to_rounding():
    # Batched products may round differently from single ones, and Adam divides by small numbers: hence not bits but 1e-4
    # of the typical weight after 8 steps. Bits are promised at equal width (next test).
    alone, stacked = trained(member(seed=2)), trained(member(seed=1), member(seed=2), member(seed=3))
    for name, value in alone.state(0)["weights"].items():
        torch.testing.assert_close(stacked.state(1)["weights"][name], value, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_neighbours_change_no_bit_at_equal_width(dropout):
    model = MODEL.changed(dropout=dropout)
    one = trained(member("layernorm", 1, model=model), member("none", 2, model=model), width=4)
    other = trained(
        member("layernorm", 1, model=model),
        member("none", 2, model=model),
        member("rmsnorm", 5, lr=0.3, model=model),
        member("sqrt-d", 9, model=model),
        width=4,
    )
    for slot in range(2):
        for part in ("weights", "m", "v"):
            assert same_weights(one.state(slot)[part], other.state(slot)[part])


def test_the_same_stack_twice_gives_the_same_bits():
    first, second = (trained(member("rmsnorm", 1), member("none", 1)) for _ in range(2))
    assert torch.equal(first.weights_RP, second.weights_RP)


def test_a_diverging_member_is_frozen_and_its_neighbours_keep_every_bit():
    calm = trained(member(seed=1), member(seed=2), member(seed=3))
    stack = stack_of(member(seed=1), member(seed=2), member(seed=3))
    for step in range(1, 9):
        if step == 4:
            stack.layout.views(stack.weights_RP.detach())["blocks.0.mlp.up.weight"][1, 0, 0] = float("inf")
            before = copy.deepcopy(stack.state(1))  # on a CPU a state is views of the live buffers
        losses, *_ = stack.train_step(step, stack.offsets(step))
        if step >= 4:
            assert not losses[1].isfinite()
            assert losses[[0, 2]].isfinite().all()
    assert stack.alive_R.tolist() == [True, False, True]
    for part in ("weights", "m", "v"):
        assert same_weights(stack.state(1)[part], before[part])
        assert same_weights(stack.state(0)[part], calm.state(0)[part])
        assert same_weights(stack.state(2)[part], calm.state(2)[part])


def test_every_run_has_its_own_learning_rate():
    stack = trained(member(seed=1, lr=1e-2), member(seed=1, lr=1e-4), steps=1)
    start = stack_of(member(seed=1)).state(0)["weights"]["blocks.0.mlp.up.weight"]
    fast, slow = ((stack.state(slot)["weights"]["blocks.0.mlp.up.weight"] - start).abs().max() for slot in (0, 1))
    assert fast / slow == pytest.approx(100, rel=0.01)


def test_a_slot_that_a_member_does_not_own_never_moves():
    stack = trained(member("none"), member("layernorm"))
    views = stack.layout.views(stack.weights_RP.detach())
    assert torch.equal(views["front.gain"][0], torch.ones(16))
    assert torch.equal(views["front.bias"][0], torch.zeros(16))
    assert not torch.equal(views["front.gain"][1], torch.ones(16))
    assert "front.gain" not in stack.state(0)["weights"]


def test_saved_state_restores_every_bit():
    whole = trained(member("layernorm", 1), member("none", 2), width=3)
    half = trained(member("layernorm", 1), member("none", 2), width=3, steps=4)
    resumed = stack_of(member("layernorm", 1), member("none", 2), width=3)
    for slot in range(2):
        resumed.restore(slot, half.state(slot), alive=True)
    for step in range(5, 9):
        resumed.train_step(step, resumed.offsets(step))
    assert torch.equal(resumed.weights_RP, whole.weights_RP)


def test_no_clipping_when_it_is_off():
    clipped = trained(member(), steps=2, training=TRAINING.changed(clip=1e-3))
    free = trained(member(), steps=2, training=TRAINING.changed(clip="off"))
    assert not torch.equal(clipped.optimizer.m_RP, free.optimizer.m_RP)
    ratio = clipped.optimizer.m_RP.norm() / free.optimizer.m_RP.norm()
    assert ratio < 0.1
