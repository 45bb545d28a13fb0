from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablationlab.core.errors import RecordError, UnknownNameError
from ablationlab.records.metrics import METRICS, checked_metrics
from ablationlab.records.plan import Plan
from ablationlab.records.results import Results
from ablationlab.records.run import (
    METRICS_HEADER,
    Checkpoint,
    Divergence,
    Result,
    StepLine,
    Timing,
    read_curves,
    read_progress,
)
from ablationlab.records.seal import MEND_RUN
from ablationlab.records.storage import SCHEMA_VERSION, ResultsFolder
from ablationlab.stats.spikes import measure_curve

ANY_FLOAT = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308])


def result(**changes: Any) -> Result:
    fields: dict[str, Any] = {
        "id": "none-s1-00000000",
        "status": "finished",
        "steps": 12,
        "tokens": 768,
        "matmul_flops": 10**15,
        "data_order_hash": "ab",
        "divergence": None,
        "metrics": {"validation_loss": 3.25, "perplexity": 25.79, "bits_per_byte": None},
        "course": measure_curve({"step": np.arange(1.0, 13), "loss": np.full(12, 3.5)}, spike_threshold=7.0),
        "checkpoint": "step-00000012",
        "weights_sha256": "cd",
        "timing": Timing(train_seconds=1.5, tokens_per_second=512.0, starts=1),
        "finished": "2020-01-01T00:00:00+00:00",
    }
    return Result(**{**fields, **changes})


def checkpoint(**changes: Any) -> Checkpoint:
    fields: dict[str, Any] = {
        "id": "none-s1-00000000",
        "step": 4,
        "files": {"weights.safetensors": "ab"},
        "metrics_bytes": 100,
        "metrics_sha256": "cd",
        "data_order_hash": "ef",
        "divergence": None,
        "last_gradient_norm": 1.25,
        "train_seconds": 0.5,
        "history": (),
        "plan_hash": "00",
    }
    return Checkpoint(**{**fields, **changes}).sealed()


def same(a: float | None, b: float | None) -> bool:
    return a == b or (a is not None and b is not None and math.isnan(a) and math.isnan(b))


# --- one file ---------------------------------------------------------------------------------------------


def test_a_record_is_read_back_as_it_was_written(tmp_path):
    record = result()
    record.create(tmp_path / "result.json")
    assert Result.read(tmp_path / "result.json") == record
    data = json.loads((tmp_path / "result.json").read_text())
    assert (data["schema_version"], data["kind"]) == (Result.VERSION, "result")


@given(ANY_FLOAT, ANY_FLOAT)
def test_every_number_survives_a_record_and_the_file_stays_strict_json(tmp_path_factory, loss, norm):
    path = tmp_path_factory.mktemp("record") / "result.json"
    result(metrics={"validation_loss": loss, "final_gradient_norm": norm, "perplexity": None}).create(path)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    json.loads(path.read_text(), parse_constant=refuse)
    metrics = Result.read(path).metrics
    assert same(metrics["validation_loss"], loss)
    assert same(metrics["final_gradient_norm"], norm)
    assert metrics["perplexity"] is None


def test_a_record_is_never_overwritten_by_another(tmp_path):
    path = tmp_path / "result.json"
    result(steps=1).create(path)
    with pytest.raises(FileExistsError):
        result(steps=2).create(path)
    assert Result.read(path).steps == 1


def test_a_record_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "checkpoint.json"
    checkpoint().create(path)
    with pytest.raises(RecordError) as caught:
        Result.read(path)
    assert str(caught.value) == f"{path} is not a result record (kind = 'checkpoint'). {MEND_RUN}"


@pytest.mark.parametrize("content", ["[]", "3", '"result"', "null", "{}"])
def test_json_that_is_no_record_is_refused(tmp_path, content):
    path = tmp_path / "result.json"
    path.write_text(content)
    with pytest.raises(RecordError, match=r"is not a result record \(kind = None\)"):
        Result.read(path)


def test_a_record_of_another_version_is_refused_with_both_versions(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**json.loads(result().to_bytes()), "schema_version": 1}))
    with pytest.raises(RecordError) as caught:
        Result.read(path)
    assert str(caught.value) == f"{path} has schema version 1; this program reads {Result.VERSION}. {MEND_RUN}"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"steps": "many"}, "steps"),
        ({"colour": "red"}, "colour"),
        ({"status": "lost"}, "status"),
        ({"timing": {"starts": 1}}, "timing.train_seconds"),
    ],
)
def test_a_damaged_record_is_refused_with_the_field(tmp_path, change, says):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**json.loads(result().to_bytes()), **change}))
    with pytest.raises(RecordError) as caught:
        Result.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert says in str(caught.value)


def test_a_record_cannot_be_built_under_a_foreign_kind():
    with pytest.raises(ValueError, match="kind"):
        result(kind="plan")


def test_every_metric_says_what_it_is():
    for name, metric in METRICS.items():
        assert metric.name == name
        assert metric.meaning
        assert metric.unit
        assert metric.family
    assert METRICS["perplexity"].transform == "log"
    assert METRICS["next_token_accuracy"].direction == "higher"
    assert METRICS["validation_loss"].direction == "lower"


# --- checkpoints ------------------------------------------------------------------------------------------


@given(ANY_FLOAT)
def test_a_checkpoint_is_sealed_over_every_number(norm):
    record = checkpoint(last_gradient_norm=norm, divergence=Divergence.of(3, "loss", float("nan")))
    again = Checkpoint.model_validate_json(record.to_bytes())
    assert same(again.last_gradient_norm, norm)
    assert again.sealed().seal == record.seal


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step", 8),
        ("metrics_bytes", 101),
        ("files", {"weights.safetensors": "ac"}),
        ("last_gradient_norm", 1.5),
        ("seal", ""),
    ],
)
def test_a_checkpoint_record_that_was_touched_is_refused(tmp_path, field, value):
    path = tmp_path / "checkpoint.json"
    path.write_text(json.dumps({**json.loads(checkpoint().to_bytes()), field: value}))
    with pytest.raises(RecordError) as caught:
        Checkpoint.read(path)
    assert str(caught.value) == f"{path} is damaged: its checksum does not match. {MEND_RUN}"


# --- metrics.jsonl ----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(ANY_FLOAT, ANY_FLOAT, st.none() | ANY_FLOAT), max_size=5))
def test_every_number_survives_the_metrics_file(tmp_path_factory, numbers):
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    lines = [
        StepLine(step=k, loss=loss, lr=1e-3, gradient_norm=norm, tokens=64 * k, curve_loss=curve)
        for k, (loss, norm, curve) in enumerate(numbers, start=1)
    ]
    path.write_text(METRICS_HEADER + "".join(line.to_line() for line in lines))
    curves = read_curves(path)
    assert [*curves.get("step", ())] == [line.step for line in lines]
    for name in ("loss", "gradient_norm", "curve_loss"):
        written = [getattr(line, name) for line in lines]
        absent = [math.nan if value is None else value for value in written]
        np.testing.assert_array_equal(curves.get(name, np.full(len(lines), math.nan)), absent)


LINE = StepLine(step=1, loss=2.5, lr=1e-3, gradient_norm=1.0, tokens=64).to_line()


def metrics(tmp_path, content: bytes) -> dict[str, np.ndarray]:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content)
    return read_curves(path)


def test_an_absent_value_is_left_out_of_the_line():
    assert json.loads(LINE) == {"step": 1, "loss": 2.5, "lr": 1e-3, "gradient_norm": 1.0, "tokens": 64}


@pytest.mark.parametrize("cut", range(1, len(LINE)))
def test_a_torn_last_line_is_left_out(tmp_path, cut):
    found = metrics(tmp_path, (METRICS_HEADER + LINE + LINE[:cut]).encode())
    assert found["step"].tolist() == [1]


def test_damage_in_the_middle_is_named_with_its_line(tmp_path):
    with pytest.raises(RecordError, match=r"metrics\.jsonl, line 3: "):
        metrics(tmp_path, (METRICS_HEADER + LINE + LINE[:20] + "\n" + LINE).encode())


def test_lines_are_told_apart_although_many_are_parsed_at_once(tmp_path):
    # Joined by commas these two would be two objects.
    with pytest.raises(RecordError, match=r"line 2: "):
        metrics(tmp_path, (METRICS_HEADER + '{"step": 1\n"loss": 2}, {"step": 2}\n').encode())
    many = "".join(LINE.replace('"step":1', f'"step":{step}') for step in range(1, 10_001))
    found = metrics(
        tmp_path, (METRICS_HEADER + many + '{"step":10001,"loss":"NaN","new":1' + "0" * 400 + "}\n").encode()
    )
    assert found["step"].tolist() == list(range(1, 10_002))
    assert np.isnan(found["loss"]).sum() == np.isnan(found["new"][:-1]).sum() - 9_999 == 1
    with pytest.raises(RecordError, match=r"line 10002: "):
        metrics(tmp_path, (METRICS_HEADER + many + "garbage\n").encode())


@pytest.mark.parametrize("junk", ["garbage", "[" * 100_000, "[1]", '{"loss": 1}'])
def test_of_a_run_that_has_not_ended_damage_at_the_end_is_left_out(tmp_path, junk):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f"{METRICS_HEADER}{LINE}{junk}\n{LINE}")
    assert read_progress(path)["step"].tolist() == [1]
    with pytest.raises(RecordError, match="line 3"):
        read_curves(path)


@pytest.mark.parametrize(
    "head",
    [LINE, '{"schema_version": 1, "kind": "metrics"}\n', '{"schema_version": 3, "kind": "run"}\n', "\n"],
)
def test_a_metrics_file_without_a_header_of_ours_is_refused(tmp_path, head):
    with pytest.raises(RecordError, match=r"metrics\.jsonl, line 1: "):
        metrics(tmp_path, (head + LINE).encode())


def test_a_header_that_is_no_table_is_refused(tmp_path):
    with pytest.raises(RecordError, match=r"metrics\.jsonl, line 1: "):
        metrics(tmp_path, b"[]\n" + LINE.encode())


def test_bytes_that_are_no_text_are_named_like_any_other_damage(tmp_path):
    with pytest.raises(RecordError, match=r"metrics\.jsonl"):
        metrics(tmp_path, METRICS_HEADER.encode() + b"\xff" + LINE.encode() + LINE.encode())


# --- folders ----------------------------------------------------------------------------------------------


def test_the_layout_of_a_results_folder_is_the_documented_one(tmp_path):
    results = ResultsFolder(tmp_path)
    run = results.run("none-s1-00000000")
    relative = [
        path.relative_to(tmp_path).as_posix() for path in (run.record, run.metrics, run.result, run.checkpoints)
    ]
    assert relative == [
        f"runs/none-s1-00000000/{name}" for name in ("run.json", "metrics.jsonl", "result.json", "checkpoints")
    ]
    assert results.plan == tmp_path / "plan.lock"
    assert not run.done
    result().create(run.result)
    assert not run.done  # a result without the record it belongs to proves nothing
    run.record.write_text("{}")
    assert run.done


def test_a_plan_is_no_plan_without_its_fields(tmp_path):
    path = tmp_path / "plan.lock"
    path.write_text(json.dumps({"kind": "plan", "schema_version": SCHEMA_VERSION}))
    with pytest.raises(RecordError, match=r"plan\.lock: study: Field required"):
        Plan.read(path)


def test_metrics_are_checked_when_they_are_written_not_when_they_are_read(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**json.loads(result().to_bytes()), "metrics": {"of_a_plug_in": 1.0}}))
    assert Result.read(path).metrics == {"of_a_plug_in": 1.0}
    with pytest.raises(UnknownNameError, match="validation_los"):
        checked_metrics({"validation_los": 1.0})
    with pytest.raises(ValueError, match="'gradient_norm' is not a run-level metric"):
        checked_metrics({"gradient_norm": 1.0})


def test_runs_with_equal_recipes_share_one_in_memory(trained):
    """Ten thousand runs of twenty arms held ten thousand recipes, in the plan and again in their records."""
    results = Results.open(trained.results)
    recipes = {id(recipe) for run in results.runs for recipe in (run.planned.recipe, run.record.recipe)}
    assert (len(results.runs), len(recipes)) == (6, 3)


def test_a_results_folder_may_be_named_by_a_string():
    with pytest.raises(RecordError, match="no such folder"):
        Results.open("nowhere")
