from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from ablationlab.errors import PlanError
from ablationlab.records import Execution, Plan
from ablationlab.training.device import choose_device, choose_precision, compute_dtype, prepare


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


def test_a_resumed_study_keeps_the_threads_width_and_precision_it_was_sealed_with(study_file, tmp_path):
    """Planned for one process of several threads, run with more workers: the sealed numbers stand, in every record."""
    study, out = study_file({"execution.threads": 2, "execution.stack_width": 2, "seeds": [1]}), tmp_path / "out"
    command = [sys.executable, "-m", "ablationlab"]
    subprocess.run(
        [*command, "plan", study, "--out", out, "--workers", "1", "--device", "cpu"], check=True, capture_output=True
    )
    subprocess.run(
        [*command, "run", study, "--out", out, "--workers", "2", "--device", "cpu"], check=True, capture_output=True
    )
    plan = Plan.read(out / "plan.lock")
    assert (plan.execution.threads, plan.execution.stack_width, plan.execution.precision) == (2, 2, "fp32")
    records = [json.loads(path.read_text()) for path in out.glob("runs/*/run.json")]
    assert len(records) == 3
    assert all(Execution(**record["execution"]) == plan.execution for record in records)


def test_automatic_precision_on_a_cpu_is_fp32():
    assert choose_precision("auto", "cpu") == "fp32"
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
