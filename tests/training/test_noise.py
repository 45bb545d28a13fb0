"""Runs whose streams have seeds of their own: which draws they share, and the table of variances they give."""

from __future__ import annotations

import pytest

import warm
from ablationlab.core.errors import StudyError
from ablationlab.data.batches import planned_data_order
from ablationlab.records.analysis import Analysis
from ablationlab.records.plan import Plan
from ablationlab.records.run import RunRecord
from ablationlab.records.storage import ResultsFolder
from ablationlab.study.load import parse_study
from conftest import read_metrics

STUDY = """
name = "noise"
baseline = "none"
variants = ["none", "layernorm"]
seeds = [1, 2, 3]
model = { layers = 1, width = 16, heads = 2, context = 16, dropout = 0.1 }
training = { steps = 4, batch = 4, lr = 1e-2, warmup = 2, precision = "fp32" }
data = { corpus = "./text.txt" }
execution = { threads = 1 }
noise = { init = [1, 2], data = [1, 2], dropout = [1, 2] }
criteria = [{ metric = "validation_loss", role = "primary", smallest_effect = 0.01 }]
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> ResultsFolder:
    folder = tmp_path_factory.mktemp("noise")
    (folder / "text.txt").write_text("".join(f"{i} green bottles hanging on the wall, {i * i}\n" for i in range(300)))
    (folder / "study.toml").write_text(STUDY)
    words = ["run", str(folder / "study.toml"), "--out", str(folder / "out"), "--workers", "1", "--no-report"]
    done = warm.python("-m", "ablationlab", *words, "--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    return ResultsFolder(folder / "out")


@pytest.fixture(scope="module")
def records(results: ResultsFolder) -> dict[tuple[str, tuple[int, int, int]], RunRecord]:
    plan = Plan.read(results.plan)
    return {(run.variant, run.seed_triple): RunRecord.read(results.run(run.id).record) for run in plan.runs}


def losses(results: ResultsFolder, record: RunRecord) -> list[float]:
    return [line.loss for line in read_metrics(results.run(record.id).metrics)]


def test_every_combination_is_trained_once_and_named_by_its_seeds(records):
    own = {("none", (seed,) * 3) for seed in (1, 2, 3)}
    crossed = {("none", (i, d, p)) for i in (1, 2) for d in (1, 2) for p in (1, 2)}
    assert {key for key in records if key[0] == "none"} == own | crossed
    assert records["none", (1, 2, 1)].id.startswith("none-s1.2.1-")
    assert {key[1] for key, record in records.items() if record.role == "noise"} == {
        triple for _, triple in crossed if len(set(triple)) > 1
    }


def test_each_stream_follows_its_own_seed(results, records):
    one, other_data, other_mask = (records["none", triple] for triple in ((1, 1, 1), (1, 2, 1), (1, 1, 2)))
    other_init = records["none", (2, 1, 1)]
    assert one.initial_weights == other_data.initial_weights == other_mask.initial_weights
    assert one.initial_weights != other_init.initial_weights
    assert one.data_order_hash == other_mask.data_order_hash == other_init.data_order_hash
    expected = planned_data_order(2, one.corpus, steps=4, batch=4, context=16)
    assert other_data.data_order_hash == records["none", (2, 2, 2)].data_order_hash == expected
    assert losses(results, one) != losses(results, other_mask)


def test_runs_of_the_table_are_never_compared(results):
    analysis = Analysis.read(results.path / "analysis.json")
    primary = next(c for c in analysis.comparisons if c.role == "primary")
    assert [pair.seed for pair in primary.pairs] == [1, 2, 3]
    assert analysis.seeds == (1, 2, 3)


def test_the_table_has_a_component_per_stream_of_the_baseline_and_of_the_difference(results):
    analysis = Analysis.read(results.path / "analysis.json")
    mine = [sources for sources in analysis.noise if sources.metric == "validation_loss"]
    assert [(sources.variant, sources.reference, sources.runs) for sources in mine] == [
        ("none", None, 8),
        ("layernorm", "none", 8),
    ]
    for sources in mine:
        assert [part.source for part in sources.components] == ["init", "data", "dropout", "rest"]
        assert sum(part.share for part in sources.components) == pytest.approx(1.0)


def test_a_study_without_the_table_plans_what_it_did(results):
    plan = Plan.read(results.plan)
    compared = [run for run in plan.runs if run.role == "compared"]
    assert {run.streams for run in compared} == {None}
    assert [run.id.rsplit("-", 1)[0] for run in compared[:2]] == ["none-s1", "layernorm-s1"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"init": [1], "data": [1, 2]}, r"noise.init: is too short .*; allowed: 2 or more"),
        ({"init": [1, 1], "data": [1, 2]}, "noise.init: given more than once"),
        ({"init": [1, 2], "data": [1, 2], "dropout": [1, 2]}, "noise.dropout: the model has no dropout"),
    ],
)
def test_a_table_that_can_tell_nothing_is_refused(table, message):
    study = {
        "name": "x",
        "baseline": "none",
        "variants": ["none", "layernorm"],
        "seeds": [1, 2, 3],
        "model": {"layers": 1, "width": 16, "heads": 2, "context": 16},
        "training": {"steps": 4, "batch": 4, "lr": 1e-2, "warmup": 2, "precision": "fp32"},
        "noise": table,
    }
    with pytest.raises(StudyError, match=message):
        parse_study(study)
