"""Arms that change training, model and data, trained to their records: the ledger and the analysis take them."""

from __future__ import annotations

from ablationlab.analysis.wording import ledger_words
from ablationlab.pipeline import conclude, run
from ablationlab.records.probes import read_probes
from ablationlab.records.results import Results
from ablationlab.records.run import read_curves
from conftest import write_study


def test_arms_of_any_kind_train_and_compare_as_far_as_they_can(tmp_path):
    tables = {
        "none": {},
        "no-decay": {"training": {"weight_decay": 0.0}},
        "large-batch": {"training": {"batch": 8}},
        "bytes": {"data": {"tokenizer": "byte"}},
        "fat": {"model": {"mlp_ratio": 6}},
    }
    criteria = [{"metric": "bits_per_byte", "role": "primary", "smallest_effect": 0.1}]
    run(write_study(tmp_path, {"variants": tables, "criteria": criteria}), tmp_path / "out", workers=1)
    analysis, _ = conclude(tmp_path / "out")
    for name in ("no-decay", "large-batch", "bytes", "fat"):
        assert analysis.comparison("bits_per_byte", "default", name, "none").n == 2
    loss = analysis.comparison("validation_loss", "default", "bytes", "none")
    assert loss is None or loss.n == 0, "tokens of two tokenizers do not compare"
    assert "FLOPs (+86\u202f%: bytes; +25\u202f%: fat)" in ledger_words(analysis.ledger)
    assert "data order (large-batch, bytes)" in ledger_words(analysis.ledger)


def test_arms_with_other_optimizers_averages_and_objectives_train_and_compare(tmp_path):
    tables = {
        "none": {},
        "muon": {"training": {"optimizer": "muon", "lr": 3e-3}},
        "average": {"training": {"ema": 0.8}},
        "objective": {"training": {"z_loss": 1e-3, "label_smoothing": 0.1}},
    }
    criteria = [{"metric": "validation_loss", "role": "primary", "smallest_effect": 0.1}]
    changes = {"variants": tables, "criteria": criteria, "probes": {"second-moment": 6}}
    run(write_study(tmp_path, changes), tmp_path / "out", workers=1)
    analysis, _ = conclude(tmp_path / "out")
    for name in ("muon", "average", "objective"):
        assert analysis.comparison("validation_loss", "default", name, "none").n == 2
    for run_ in Results.open(tmp_path / "out").runs:
        curves = read_curves(run_.folder.metrics)
        assert ("second_moment_mean" in curves) == (run_.variant != "muon")
        assert bool(read_probes(run_.folder)) == (run_.variant != "muon")


def test_matched_by_flops_the_shorter_run_saw_a_beginning_of_the_data(tmp_path):
    tables = {"none": {}, "fat": {"model": {"mlp_ratio": 8}}}
    run(write_study(tmp_path, {"variants": tables, "budget.match": "flops"}), tmp_path / "out", workers=1)
    results = Results.open(tmp_path / "out")
    ended = {run.variant: run.result for run in results.runs if run.seed == 1}
    assert ended["fat"].steps < ended["none"].steps == 12
    assert ended["fat"].matmul_flops <= ended["none"].matmul_flops
    analysis, _ = conclude(tmp_path / "out")
    assert "data order" in analysis.ledger.nearly
