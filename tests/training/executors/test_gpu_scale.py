"""The checks that a GPU is held to: on any machine they can be made, and they can fail."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path

import pytest

from conftest import torch_as_it_was

ROOT = Path(__file__).parents[3]


@pytest.fixture
def bench(monkeypatch):
    spec = importlib.util.spec_from_file_location("gpu_scale", ROOT / "benchmarks" / "gpu_scale.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_scale", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.needs("triton")
def test_the_dropout_kernel_is_checked_by_the_interpreter(bench, capsys):
    with torch_as_it_was():
        assert bench.main(["--tiny", "--device", "cpu", "--part", "dropout", "--here"]) == 0
    said = capsys.readouterr().out
    assert "PASS  masks: 0 bits differ" in said
    assert "PASS  dropout 0.2, fp32, the dropout kernel beside its plain form" in said
    assert "FAIL" not in said


def test_a_difference_is_told_and_fails(bench, trained):
    ours = bench.read(trained.results)
    assert ours.layout == ("none", 1, False)
    assert bench.same("twice", ours, ours).passed
    assert bench.beside("twice", ours, ours, "fp32").passed
    (key, *_) = ours.weights
    other = dataclasses.replace(ours, weights={**ours.weights, key: "other"})
    found = bench.same("twice", other, ours)
    assert not found.passed
    assert f"other weights: {key[0]} s{key[1]}" in str(found)
    shifted = [loss * 1.01 for loss in ours.losses[key]]
    moved = dataclasses.replace(ours, losses={**ours.losses, key: shifted})
    found = bench.beside("twice", moved, ours, "fp32")
    assert str(found).startswith("FAIL")
    assert "1.0e-02 at step 1" in str(found)
    assert str(bench.attempt("broken", lambda: 1 / 0)) == "FAIL  broken: ZeroDivisionError: division by zero"
