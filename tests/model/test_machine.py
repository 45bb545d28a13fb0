"""Planning for a CPU takes no torch, and what it says is what torch says."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

import warm
from ablationlab.model import machine

ASK = """
import json, sys
from ablationlab.model.machine import choose_device, choose_precision
print(json.dumps([*choose_device("cpu"), choose_precision("auto", "cpu"), "torch" in sys.modules]))
"""


def fresh(cache: Path) -> list[object]:
    env = {"ABLATIONLAB_CACHE": str(cache), "PYTHONPATH": str(Path(machine.__file__).parents[2])}
    return list(json.loads(subprocess.run([warm.FRESH, "-c", ASK], env=env, capture_output=True, check=True).stdout))


def test_what_torch_says_of_the_processor_is_asked_once(tmp_path):
    named = torch.backends.cpu.get_cpu_capability()
    said = ["cpu", "cpu" if named == "DEFAULT" else f"cpu ({named})", machine.choose_precision("auto", "cpu")]
    assert fresh(tmp_path) == [*said, True]
    assert fresh(tmp_path) == [*said, False]


@pytest.mark.parametrize(
    "kept",
    [
        "",
        "[]",
        '{"capability": "AVX2"}',
        "[" * 100_000,
        '{"capability": "AVX2", "bf16_units": "false"}',
        '{"capability": "AVX2\\u001b[2J", "bf16_units": false}',
        None,
    ],
)
def test_a_damaged_answer_in_the_cache_is_none_and_is_made_again(kept, tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATIONLAB_CACHE", str(tmp_path))
    path = machine._cache_file()
    path.parent.mkdir(parents=True)
    if kept is None:
        os.mkfifo(path)
    else:
        path.write_text(kept)
    assert machine._kept() is None
    assert machine._asked.__wrapped__() == machine._kept()


def test_answers_of_another_torch_do_not_count(tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATIONLAB_CACHE", str(tmp_path))
    before = machine._cache_file()
    monkeypatch.setattr(machine, "version", lambda name: "0.0")
    assert machine._cache_file() != before
