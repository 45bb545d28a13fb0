"""What is known of the budgets of runs that the user's own program trains."""

from __future__ import annotations

import pytest

from ablationlab.analysis import analyze, read_results
from conftest import run_cli, to_toml

STUDY = {
    "name": "own",
    "baseline": "base",
    "seeds": [1, 2, 3],
    "command": ["{python}", "train.py", "{seed}", "{training.lr}"],
    "metrics": {"loss": "lower"},
    "training": {"lr": 0.1},
    "variants": {"base": {}, "fast": {"training": {"lr": 0.2}}},
    "criteria": [{"metric": "loss", "role": "primary", "smallest_effect": 0.01}],
}
PROGRAM = "import sys\nprint('at 7 loss', float(sys.argv[1]) + float(sys.argv[2]))\n"


@pytest.mark.parametrize(
    ("pattern", "unknown"),
    [(r"at \d+ loss (?P<value>\S+)", ("fast",)), (r"at (?P<step>\d+) loss (?P<value>\S+)", ())],
)
def test_the_budget_of_a_program_is_known_if_it_reports_steps_or_tokens(tmp_path, pattern, unknown):
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "study.toml").write_text(to_toml({**STUDY, "patterns": {"loss": pattern}}))
    words = ("run", "study.toml", "--out", "out", "--workers", "1", "--no-report")
    ended = run_cli(*words, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert analyze(read_results(tmp_path / "out")).budget_unknown == unknown
