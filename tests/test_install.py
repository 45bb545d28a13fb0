"""What installation brings, and which tests want more."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


@pytest.mark.needs("playwright")
def test_where_something_of_the_second_tier_is_installed_all_of_it_is():
    for name in ("ray", "track", "more"):
        for requirement in EXTRAS[name]:
            if not requirement.startswith("ablationlab"):
                assert version(re.split(r"[<>=;]", requirement)[0].strip())


def steps(workflow: str) -> list[str]:
    """What a workflow runs, apart from what it fetches."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / workflow).read_text())["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def test_the_workflow_of_every_change_runs_what_decides_here_and_no_other_thing():
    assert steps("ci.yml") == [".ci/run"]
    tested = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["linux"]["strategy"]
    assert tested["matrix"]["python"][0] == PROJECT["requires-python"].removeprefix(">=")


def test_scripts_of_ci_and_nightly_workflows_ask_for_targets_that_there_are():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = [*steps("nightly.yml"), (ROOT / ".ci" / "run").read_text()]
    asked = {
        name
        for text in texts
        for words in re.findall(r"\bmake ([\w -]+)", text)
        for name in words.split()
        if name.islower()
    }
    assert {"test", "test-more", "check", "docs", "torture", "audit"} <= asked <= targets
