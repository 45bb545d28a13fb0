"""probes.jsonl and probes.parquet: what is written is what is read, by us and by others."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablationlab.core.errors import RecordError
from ablationlab.records.probes import (
    HEADER,
    ProbeLine,
    ProbeReading,
    failures,
    parse,
    read_probes,
    read_table,
    row_starts,
    to_parquet,
    written_line,
)
from ablationlab.records.storage import SCHEMA_VERSION, RunFolder

LINES = [
    ProbeLine(
        step=1,
        probe="cosine",
        rows=(ProbeReading("mean", "tokens", None, 0.1), ProbeReading("mean", "input", None, -0.25)),
    ),
    ProbeLine(
        step=1,
        probe="token-frequency",
        rows=(ProbeReading("norm", "\n", 1.0, 2.5), ProbeReading("norm", None, 2.0, math.nan)),
    ),
    ProbeLine(step=5, probe="cosine", rows=(ProbeReading("mean", "tokens", None, math.inf),)),
    ProbeLine(step=5, probe="token-frequency", error='ValueError: "why"\nnot'),
]


@pytest.fixture
def run(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.probes.write_text(HEADER + "".join(line.to_line() for line in LINES))
    return folder


def test_lines_survive_the_disk_with_nan_and_infinity_as_json_can_hold_them(run):
    for line in run.probes.read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    found = read_probes(run)
    assert repr(found) == repr(LINES)
    assert failures(found) == {"token-frequency": (5, 'ValueError: "why"\nnot')}


def test_numbers_are_kept_to_seven_digits():
    line = ProbeLine(step=1, probe="x", rows=(ProbeReading("m", None, None, 1 / 3),)).to_line()
    assert json.loads(line)["rows"] == [["m", None, None, 0.3333333]]


def test_the_table_holds_every_row_once_and_the_failures_beside_it():
    table = pq.read_table(io.BytesIO(to_parquet("none-s1-0", LINES)))
    assert table.column_names == ["step", "probe", "measure", "group", "at", "value"]
    rows = table.to_pylist()
    assert len(rows) == 5
    assert rows[0] == {"step": 1, "probe": "cosine", "measure": "mean", "group": "tokens", "at": None, "value": 0.1}
    assert rows[2]["group"] == "\n"
    assert math.isnan(rows[3]["value"])
    about = table.schema.metadata
    assert (about[b"kind"], about[b"run"], about[b"schema_version"]) == (
        b"probes",
        b"none-s1-0",
        str(SCHEMA_VERSION).encode(),
    )
    assert json.loads(about[b"failures"]) == {"token-frequency": {"step": 5, "error": 'ValueError: "why"\nnot'}}
    assert pq.read_table(io.BytesIO(to_parquet("none-s1-0", []))).num_rows == 0


def test_the_table_and_the_log_give_the_same_rows_and_failures(run):
    from_log = read_table(run)
    run.probe_table.write_bytes(to_parquet("none-s1-0", LINES))
    assert repr(read_table(run)) == repr(from_log)
    assert [row.value for step, _, row in from_log.rows if step == 1][:2] == [0.1, -0.25]
    assert from_log.failures == {"token-frequency": (5, 'ValueError: "why"\nnot')}


def test_a_damaged_table_is_named(run):
    run.probe_table.write_bytes(b"no table")
    with pytest.raises(RecordError, match=r"probes\.parquet cannot be read"):
        read_table(run)


def test_the_table_is_the_same_bytes_every_time():
    assert to_parquet("a", LINES) == to_parquet("a", LINES)


def test_a_torn_last_line_is_left_out_and_any_other_damage_named(run):
    whole = run.probes.read_bytes()
    run.probes.write_bytes(whole[:-9])
    assert len(read_probes(run)) == len(LINES) - 1
    run.probes.write_bytes(whole.replace(b'"step":1', b'"step":"one"', 1))
    with pytest.raises(RecordError, match=r"probes\.jsonl, line 2"):
        read_probes(run)
    with pytest.raises(RecordError, match="no probes header"):
        list(parse(b'{"kind": "metrics", "schema_version": 3}\n', Path("x")))
    with pytest.raises(RecordError, match="line 1: it is nested too deeply"):
        list(parse(b"[" * 100_000 + b"\n", Path("x")))


def test_a_run_without_probes_has_none(tmp_path):
    assert read_probes(RunFolder(tmp_path)) == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["mean", 'a "quoted" Ünit']),
            st.none() | st.text(max_size=4),
            st.none() | st.floats(0, 1),
            st.floats(width=64),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_written_line_is_the_line_made_of_rows(rows):
    line = ProbeLine(step=3, probe="residual", rows=tuple(ProbeReading(*row) for row in rows))
    starts = [start for measure, group, at, _ in rows for start in row_starts(measure, (group,), (at,))]
    assert written_line(3, "residual", starts, [row[3] for row in rows]) == line.to_line()
