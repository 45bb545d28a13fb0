"""A study of modern parts from plan to records, with every probe; impossible ones are refused before anything runs."""

from __future__ import annotations

import pytest

from ablationlab.records.probes import failures, read_probes
from ablationlab.records.results import Results
from ablationlab.records.storage import RunFolder
from ablationlab.study.probes import PROBES
from ablationlab.training.export import export
from conftest import run_here, write_study

LLAMA = {"position": "rotary", "norm": "rmsnorm", "mlp": "swiglu", "mlp_ratio": 2.667, "biases": False, "kv_heads": 1}
ODD = {"position": "alibi", "norm_place": "sandwich", "embedding_skip": 0.1, "window": 4, "qk_norm": "layernorm"}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modern")
    tables = {
        "none": {},
        "llama": {"model": LLAMA},
        "odd": {"model": ODD | {"attention_gate": "head", "zero_init": True}},
    }
    changes = {"variants": tables, "probes": {"all": 6}, "model.dropout": 0.1}
    code, output, errors = run_here("run", write_study(folder, changes), "--out", folder / "out", folder=folder)
    assert code == 0, output + errors
    return folder / "out"


def test_its_runs_are_compared_and_every_probe_looks_at_them(results):
    runs = Results.open(results).runs
    assert {run.planned.variant for run in runs} == {"none", "llama", "odd"}
    assert (results / "verdict.json").exists()
    for path in (results / "runs").iterdir():
        lines = read_probes(RunFolder(path))
        assert not failures(lines)
        missing = set(PROBES) - {line.probe for line in lines}
        assert missing == {"embedding-gain"} | (set() if path.name.startswith("none") else {"gradient-bound"})


def test_shared_parameters_start_alike_in_all_arms(results):
    first = {
        run.planned.variant: run.record.initial_weights for run in Results.open(results).runs if run.planned.seed == 1
    }
    assert first["none"]["tok.weight"] == first["llama"]["tok.weight"] == first["odd"]["tok.weight"]
    assert first["none"]["blocks.0.mlp.up.weight"] == first["odd"]["blocks.0.mlp.up.weight"]
    assert first["none"]["blocks.0.attn.qkv.weight"] == first["odd"]["blocks.0.attn.qkv.weight"]


def test_an_exported_arm_is_a_llama(results, tmp_path):
    export(next((results / "runs").glob("llama*")), tmp_path / "llama")
    assert '"model_type": "llama"' in (tmp_path / "llama" / "config.json").read_text()


@pytest.mark.parametrize(
    ("changes", "key", "reason"),
    [
        ({"model.kv_heads": 3}, "model.kv_heads", "3 does not divide heads"),
        (
            {"model.position": "rotary", "model.width": 6, "model.heads": 2},
            "model.rotary_fraction",
            "of a head's width of 3",
        ),
        ({"model.final_norm": "rmsnrm"}, "model.final_norm", "did you mean 'rmsnorm'"),
        ({"model.position": "rotery"}, "model.position", "did you mean 'rotary'"),
        ({"variants": {"none": {}, "a": {"model": {"window": 0}}}}, "variants.a.model.window", "at least 1"),
        (
            {"probes": {"gradient-bound": 6}, "model.norm": "rmsnorm"},
            "probes.gradient-bound",
            "model.norm = 'layernorm'",
        ),
        ({"probes": {"gradient-bound": 6}, "model.mlp": "relu2"}, "probes.gradient-bound", "model.mlp = 'relu2'"),
    ],
)
def test_impossible_models_are_refused_at_planning(tmp_path, changes, key, reason):
    code, output, errors = run_here("plan", write_study(tmp_path, changes), folder=tmp_path)
    assert code == 2, output
    assert key in errors
    assert reason in errors
