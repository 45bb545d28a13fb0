from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ablationlab.core.errors import PlanError
from ablationlab.model import ops
from ablationlab.model.device import compile_kernels, compute_dtype, prepare
from ablationlab.model.machine import choose_device, choose_precision
from ablationlab.records.plan import Execution


def sealed(threads: int) -> Execution:
    return Execution(device="cpu", device_name="cpu", precision="fp32", stack_width=1, threads=threads)


def test_threads_and_determinism_are_what_the_plan_sealed():
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    try:
        prepare(sealed(threads=3))
        assert torch.get_num_threads() == 3
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_num_threads(before[0])
        torch._C._set_deterministic_algorithms(before[1])


def test_what_was_computed_before_in_a_process_decides_over_no_bit():
    """torch switches oneDNN off for good at its first failure; `prepare` puts it where the precision wants it."""
    for precision in ("fp32", "bf16", "fp32"):
        torch._C._set_mkldnn_enabled(False)
        prepare(sealed(threads=torch.get_num_threads()).model_copy(update={"precision": precision}))
        wanted = precision == "fp32" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
        assert torch._C._get_mkldnn_enabled() == wanted


def test_automatic_precision_on_a_cpu_is_fp32_unless_it_has_matrix_units_for_bf16():
    assert choose_precision("auto", "cpu") == ("bf16" if torch.cpu._is_amx_tile_supported() else "fp32")
    assert compute_dtype("fp32") == torch.float32
    assert compute_dtype("bf16") == torch.bfloat16


def test_a_precision_that_the_device_lacks_is_refused():
    with pytest.raises(PlanError, match="tf32"):
        choose_precision("tf32", "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(PlanError, match="sees no CUDA GPU"):
        choose_device("cuda")
    assert choose_device("auto")[0] == "cpu"


def test_bits_are_fixed_unless_the_plan_gives_them_up():
    threads = torch.get_num_threads()
    try:
        prepare(sealed(threads=threads), deterministic=False)
        assert not torch.are_deterministic_algorithms_enabled()
        prepare(sealed(threads=threads))
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        prepare(sealed(threads=threads))


def test_plain_operations_are_used_where_the_plan_says_so(monkeypatch):
    """On a GPU with Triton; `test_rules_equal_torchs_optimizers_for_each_run` has the AdamW that is used without kernels."""
    monkeypatch.setattr(ops, "_has_triton", lambda: True)
    on_gpu = SimpleNamespace(is_cuda=True)
    threads = torch.get_num_threads()
    try:
        for kernels, wanted in (("fused", True), ("plain", False), ("fused", True)):
            prepare(sealed(threads=threads), kernels)
            assert ops.fused(on_gpu) == wanted
        prepare(sealed(threads=threads), "plain")
        ran: list[int] = []
        compile_kernels(lambda: ran.append(1))
        assert not ran
    finally:
        prepare(sealed(threads=threads))
