"""analysis.json and verdict.json as files."""

from __future__ import annotations

import json

import pytest

from ablationlab.analysis.verdict import decide
from ablationlab.core.errors import RecordError
from ablationlab.records.analysis import Analysis
from ablationlab.records.settings import Criterion
from ablationlab.records.verdict import Verdict
from analysis.verdict.maker import analysis, comparison
from analysis.verdict.studies import RESTORES, arms, study


@pytest.mark.parametrize("kind", [Analysis, Verdict])
def test_a_file_carries_its_kind_and_version_and_reads_back(tmp_path, kind):
    made = analysis(comparison(delta=None, low=None, high=None, sd=None, n=0))
    record = made if kind is Analysis else decide(made)
    path = tmp_path / "file.json"
    record.replace(path)
    data = json.loads(path.read_text())
    assert (data["kind"], data["schema_version"]) == (kind.KIND, kind.VERSION)
    assert kind.read(path) == record.sealed()


@pytest.mark.parametrize("kind", [Analysis, Verdict])
def test_a_file_of_an_older_schema_says_how_to_write_it_again(tmp_path, kind):
    path = tmp_path / "file.json"
    path.write_text(json.dumps({"kind": kind.KIND, "schema_version": 3}))
    text = rf"has schema version 3; this program reads {kind.VERSION}\. `ablationlab analyze` writes it again$"
    with pytest.raises(RecordError, match=text):
        kind.read(path)


#: What is quoted as the user or a registry wrote it.
QUOTED = {"question", "statement", "meaning"}


def texts(value, key=""):
    if isinstance(value, dict):
        return [text for name, inner in value.items() for text in texts(inner, name)]
    if isinstance(value, list):
        return [text for inner in value for text in texts(inner, key)]
    return [value] if isinstance(value, str) and key not in QUOTED else []


@pytest.mark.parametrize(
    ("mean", "none", "layernorm"),
    [(-0.03, "..........", ".........."), (0.0, "ddd.......", ".....sdw.."), (0.02, "dddddddddd", "......d...")],
)
def test_what_is_stored_is_codes_and_numbers_never_a_sentence(mean, none, layernorm):
    made = study(
        {"validation_loss": arms(mean)}, endings={"none": none, "layernorm": layernorm}, hypotheses=(RESTORES,)
    )
    for record in (made, decide(made)):
        stored = texts(json.loads(record.model_dump_json()))
        assert len(stored) > 15
        assert [text for text in stored if len(text.split()) > 3] == []


def test_a_foreign_or_damaged_file_is_named(tmp_path):
    path = tmp_path / "analysis.json"
    decide(analysis(comparison())).replace(path)
    with pytest.raises(RecordError, match="is not a analysis record"):
        Analysis.read(path)
    analysis(comparison()).replace(path)
    data = json.loads(path.read_text())
    data["comparisons"][0]["unknown"] = 1
    data["seal"] = Analysis._hash(data)
    path.write_text(json.dumps(data))
    with pytest.raises(RecordError, match=r"comparisons\.0\.unknown"):
        Analysis.read(path)


def test_a_file_holds_no_clock_time_and_no_path():
    text = analysis(comparison()).to_bytes().decode()
    assert "created" not in text
    assert "/tmp" not in text


def test_the_cost_turns_with_the_direction():
    def loss(metric):
        made = study({metric: arms(0.1)}, (Criterion(metric=metric, role="primary", smallest_effect=0.01),))
        return made.comparisons[0].loss()

    estimate, low, high = loss("validation_loss")
    assert 0 < low < estimate < high
    assert loss("next_token_accuracy") == (-estimate, -high, -low)
    assert loss("logit_scale") == (None, None, None)
