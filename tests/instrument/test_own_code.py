from __future__ import annotations

from pathlib import Path

import pytest

from ablationlab.instrument.own_code import check_code

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_code" / "mine.py"
GATED = EXAMPLE.read_text().split('@lab.part("norm"')[0]


def failures(folder: Path, code: str) -> set[str]:
    path = folder / "mine.py"
    path.write_text(code)
    return {check.test for check in check_code(path) if not check.passed}


def test_the_example_passes_every_test():
    checks = check_code(EXAMPLE)
    assert [check for check in checks if not check.passed] == []
    assert {check.thing for check in checks} >= {"mlp gated", "norm rms", "optimizer signum", "schedule square"}


@pytest.mark.parametrize(
    ("before", "after", "test"),
    [
        ("PartCost(6 *", "PartCost(2 *", "FLOPs of a token"),
        ("F.silu(gate) * up", "F.silu(gate - gate.mean(dim=0, keepdim=True)) * up", "alone and in a stack"),
        ("F.silu(gate) * up", "F.silu(gate.detach()) * up", "every parameter is used"),
        ("F.silu(gate) * up", "F.silu(gate) * (up + torch.rand_like(up))", "same bits twice"),
        ("F.silu(gate) * up", "F.silu(gate) * (up + 4 * (up - up.detach()))", "gradients against differences"),
    ],
)
def test_a_broken_part_fails_the_test_that_is_about_it(tmp_path, before, after, test):
    assert before in GATED
    assert test in failures(tmp_path, GATED.replace(before, after))


def test_an_optimizer_that_forgets_its_state_is_not_resumable(tmp_path):
    code = (
        "import ablationlab as lab\ncalls = []\n@lab.optimizer('counting')\ndef counting(step):\n"
        "    calls.append(1)\n    return step.weights - step.lr * step.gradient * len(calls)\n"
    )
    assert failures(tmp_path, code) >= {"same bits twice", "resumed after 2 of 4 steps"}


def test_an_optimizer_that_mixes_the_runs_of_a_stack_is_found(tmp_path):
    code = (
        "import ablationlab as lab\n@lab.optimizer('mixing')\ndef mixing(step):\n"
        "    return step.weights - step.lr * step.gradient / step.gradient.norm()\n"
    )
    assert failures(tmp_path, code) == {"trained alone and in a stack"}
    apart = code.replace("norm()", "norm(dim=-1, keepdim=True)")
    assert failures(tmp_path, apart) == set()
