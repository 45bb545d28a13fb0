"""The step that a GPU records: run here by Triton's interpreter, and guarded by counting operations instead of seconds."""

from __future__ import annotations

import pytest
import torch
from test_stack import MODEL, member, stack_of
from torch.utils._python_dispatch import TorchDispatchMode

import ablationlab.model.gpt
import ablationlab.model.ops
import ablationlab.model.optimizers
from ablationlab.training.stack import FEED, Stack


class Counted(TorchDispatchMode):
    """How often each operation was called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, int] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        self.calls[name] = self.calls.get(name, 0) + 1
        return function(*args, **(kwargs or {}))


PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


def products(stack: Stack) -> int:
    stack.feed(1, stack.offsets(1)[None])
    with Counted() as counted:
        stack._step()
    return sum(counted.calls.get(name, 0) for name in PRODUCTS)


def test_a_stack_of_many_makes_as_many_products_as_a_stack_of_one():
    one = products(stack_of(member("none")))
    many = products(stack_of(*[member("none", seed=seed) for seed in range(1, 8)]))
    assert one == many > 0


@pytest.fixture
def kernels(monkeypatch):
    """As on a GPU: every memory-bound step is taken by its kernel."""

    def switch(on: bool) -> None:
        for module in (ablationlab.model.ops, ablationlab.model.gpt, ablationlab.model.optimizers):
            monkeypatch.setattr(module, "fused", lambda x: on)

    return switch


@pytest.mark.filterwarnings("ignore:overflow encountered in exp", "ignore:divide by zero")
def test_the_step_of_kernels_agrees_with_the_plain_step_and_asks_the_device_for_nothing(kernels):
    short = MODEL.changed(heads=1)  # whose attention the kernel takes
    members = [member(name, seed=seed, model=short) for name in ("none", "layernorm") for seed in (1, 2)]
    plain, ours = stack_of(*members), stack_of(*members)
    for step in (1, 2):
        kernels(False)
        expected = plain.train_step(step, plain.offsets(step))
        kernels(True)
        ours.feed(step, ours.offsets(step)[None])
        with Counted() as counted:
            ours._step()
        assert "_local_scalar_dense" not in counted.calls
        for one, other in zip(ours.measured(), expected, strict=True):
            torch.testing.assert_close(one[0], other, rtol=2e-4, atol=1e-7)
    for slot in range(4):
        for name, value in plain.state(slot)["weights"].items():
            torch.testing.assert_close(ours.state(slot)["weights"][name], value, rtol=0, atol=2e-4)


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow encountered")
def test_kernels_freeze_a_run_whose_loss_is_not_finite_and_leave_its_neighbour_alone(kernels):
    kernels(True)
    stack, calm = stack_of(member("none"), member("none", seed=2)), stack_of(member("none"), member("none", seed=2))
    with torch.no_grad():
        stack.weights_RP[0, 5] = float("nan")
    before = stack.weights_RP.detach().clone()
    for one in (stack, calm):
        one.feed(1, one.offsets(1)[None])
        one._step()
    assert stack.alive_R.tolist() == [False, True]
    assert torch.equal(stack.weights_RP[0].nan_to_num(7), before[0].nan_to_num(7))
    assert torch.equal(stack.weights_RP[1], calm.weights_RP[1])


def test_steps_fed_together_equal_steps_fed_one_by_one():
    import numpy as np

    one, many = stack_of(member("layernorm")), stack_of(member("layernorm"))
    said = [one.train_step(step, one.offsets(step)) for step in (1, 2, 3)]
    many.feed(1, np.stack([many.offsets(step) for step in (1, 2, 3)]))
    for _ in range(3):
        many.advance()
    for position, values in enumerate(zip(*many.measured(), strict=True)):
        assert all(torch.equal(a, b) for a, b in zip(values, said[position], strict=True))
    assert torch.equal(one.weights_RP, many.weights_RP)
    assert FEED >= 3
