from __future__ import annotations

import re
from pathlib import Path

import pytest

from ablationlab.instrument.own_code import CodeTest, check_code
from ablationlab.report.slots import statements

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


def test_what_raises_is_a_failed_test_with_its_place_and_the_others_are_made(tmp_path):
    code = (
        "import ablationlab as lab\n@lab.schedule('broken')\ndef broken(training, step, steps):\n    return 1 / 0\n"
        "@lab.schedule('words')\ndef words(training, step, steps):\n    return 'fast'\n"
        "@lab.schedule('flat')\ndef flat(training, step, steps):\n    return 1.0\n"
    )
    (tmp_path / "mine.py").write_text(code)
    broken, words, flat = check_code(tmp_path / "mine.py")
    assert (broken.test, broken.passed) == ("factors", False)
    assert "mine.py, line 4, in broken: schedule 'broken' raises at step 1 of 100: ZeroDivisionError" in broken.error
    assert "mine.py, line 5: schedule 'words' gives fast (str) at step 1 of 100" in words.error
    assert flat.passed


@pytest.mark.parametrize(
    ("value", "returned"),
    [
        ("step.weights.mean()", "torch.float32 of shape ()"),
        ("step.weights[:1]", "torch.float32 of shape (1, "),
        ("step.weights.double()", "torch.float64 of shape (2, "),
        ("None", "NoneType"),
    ],
)
def test_an_update_of_another_shape_or_type_is_refused_with_its_place(tmp_path, value, returned):
    code = f"import ablationlab as lab\n@lab.optimizer('o')\ndef o(step):\n    return {value}\n"
    (tmp_path / "mine.py").write_text(code)
    (check,) = check_code(tmp_path / "mine.py")
    assert (check.test, check.passed) == ("can be computed", False)
    assert "mine.py, line 2: optimizer 'o' must return the new weights, torch.float32 of shape (2, " in check.error
    assert f"not {returned}" in check.error


def test_files_that_import_each_other_are_checked_together(tmp_path):
    (tmp_path / "mine.py").write_text("from helpers import flat\n")
    (tmp_path / "helpers.py").write_text(
        "import ablationlab as lab\n@lab.schedule('flat')\ndef flat(training, step, steps):\n    return 1.0\n"
    )
    (check,) = check_code(tmp_path / "mine.py", tmp_path / "helpers.py")
    assert (check.thing, check.passed) == ("schedule flat", True)


def test_every_finding_has_a_clause():
    codes = {"check." + re.sub(r"\W+", "-", test.lower()) for test in CodeTest if test is not CodeTest.COMPUTED}
    assert codes == {code for code in statements() if code.startswith("check.")}
