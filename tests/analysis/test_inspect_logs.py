"""inspect_ai's logs, in both formats, written out by hand as inspect_ai 0.3 writes them."""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pyarrow as pa
import pytest
from scipy import stats as scipy_stats

from ablationlab.analysis.inspect_logs import read_log, task_of
from ablationlab.analysis.lm_eval import compare_samples
from ablationlab.core.errors import RecordError, TableError

FIXTURE = Path(__file__).parent / "fixtures" / "lm_eval"


def header(status="success"):
    return {"version": 2, "status": status, "eval": {"task": "lab/adding", "model": "none/none"}}


def samples(right, n=20, epochs=1, **changes):
    return [
        {
            "id": i,
            "epoch": epoch,
            "input": f"{i}+1=",
            "target": str(i + 1),
            "scores": {"match": {"value": "C" if i < right else "I"}},
        }
        | changes
        for i in range(n)
        for epoch in range(1, epochs + 1)
    ]


def write(path, right, *, status="success", packed="deflate", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    found = samples(right, **options)
    if path.suffix == ".json":
        path.write_text(json.dumps({**header(status), "samples": found}))
        return path
    files = {"header.json": header(status)} | {f"samples/{s['id']}_epoch_{s['epoch']}.json": s for s in found}
    if packed == "deflate":
        with ZipFile(path, "w", ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, json.dumps(content))
    else:
        path.write_bytes(zstd_zip({name: json.dumps(content).encode() for name, content in files.items()}))
    return path


def zstd_zip(files):
    """A zip whose files are packed by Zstandard (method 93), as inspect_ai writes them."""
    body, directory = b"", b""
    for name, data in files.items():
        packed = pa.Codec("zstd").compress(data, asbytes=True)
        sizes = struct.pack("<IIIHH", zlib.crc32(data), len(packed), len(data), len(name), 0)
        start = struct.pack("<HHHHH", 63, 0, 93, 0, 33)
        directory += (
            b"PK\x01\x02"
            + struct.pack("<H", 63)
            + start
            + sizes
            + struct.pack("<HHHII", 0, 0, 0, 0, len(body))
            + name.encode()
        )
        body += b"PK\x03\x04" + start + sizes + name.encode() + packed
    end = struct.pack("<HHHHIIH", 0, 0, len(files), len(files), len(directory), len(body), 0)
    return body + directory + b"PK\x05\x06" + end


@pytest.mark.parametrize(("suffix", "packed"), [(".json", ""), (".eval", "deflate"), (".eval", "zstd")])
def test_both_formats_give_the_same_scores(tmp_path, suffix, packed):
    path = write(tmp_path / f"log{suffix}", 8, packed=packed)
    scorer, found = read_log(path, None)
    assert (scorer, task_of(path), len(found)) == ("match", "adding", 20)
    assert sum(score for _, score, _ in found.values()) == 8


def test_epochs_count_with_their_mean(tmp_path):
    path = write(tmp_path / "log.json", 8, epochs=2)
    log = json.loads(path.read_text())
    log["samples"][0]["scores"]["match"]["value"] = "I"
    path.write_text(json.dumps(log))
    assert read_log(path, None)[1]["0"][1] == 0.5


def test_several_arms_are_compared_with_the_first_as_one_family(tmp_path):
    for name, right in (("much", 20), ("some", 14), ("base", 8)):
        write(tmp_path / name / "log.eval", right)
    arms = [tmp_path / name for name in ("base", "much", "some")]
    much, some = compare_samples(arms)
    assert [(c.variant, c.reference) for c in (much, some)] == [("much", "base"), ("some", "base")]
    p = [scipy_stats.binomtest(n, n).pvalue for n in (12, 6)]
    assert [c.tasks[0].p for c in (much, some)] == pytest.approx(p)
    assert [c.tasks[0].p_adjusted for c in (much, some)] == pytest.approx([2 * p[0], p[1]])
    other = compare_samples(arms, baseline=arms[1])
    assert [(c.variant, c.reference) for c in other] == [("base", "much"), ("some", "much")]


def test_three_folders_of_lm_eval_are_one_family_too():
    arms = sorted(path for path in FIXTURE.iterdir() if path.is_dir())[:2]
    single = compare_samples(arms)
    assert len(single) == 1
    assert single[0].tasks


def test_logs_that_did_not_end_or_do_not_pair_are_refused(tmp_path):
    write(tmp_path / "a/log.json", 8)
    write(tmp_path / "b/log.json", 8, status="error")
    with pytest.raises(TableError, match="its status is 'error'"):
        compare_samples([tmp_path / "b", tmp_path / "a"])
    write(tmp_path / "c/log.json", 8, input="other")
    with pytest.raises(TableError, match="20 of 20 items do not pair"):
        compare_samples([tmp_path / "c", tmp_path / "a"])
    with pytest.raises(TableError, match="--baseline is not one of"):
        compare_samples([tmp_path / "a", tmp_path / "c"], baseline=tmp_path / "d")


@pytest.mark.parametrize(
    ("scores", "metric", "says"),
    [
        (
            {"match": {"value": "C"}, "model": {"value": 1}},
            None,
            "choose one of its scores with --metric: match, model",
        ),
        ({"match": {"value": {"a": 1, "b": 0}}}, "match/c", "no score 'match/c'; it has: match/a, match/b"),
        ({"match": {"value": float("nan")}}, None, "match is nan, not a number or a grade"),
    ],
)
def test_scores_that_cannot_be_used_are_named(tmp_path, scores, metric, says):
    path = write(tmp_path / "log.json", 8, scores=scores)
    with pytest.raises(TableError, match=says):
        read_log(path, metric)


@pytest.mark.parametrize(
    "changed",
    [
        {"samples": [None]},
        {"samples": [{"id": 1, "scores": ["C"]}]},
        {"samples": [{"id": 1, "scores": {"match": {"value": 10**400}}}]},
        {"samples": 5},
    ],
)
def test_samples_that_are_none_are_refused(tmp_path, changed):
    path = tmp_path / "log.json"
    path.write_text(json.dumps(header() | changed))
    with pytest.raises(TableError, match=r"log\.json"):
        read_log(path, None)


@pytest.mark.parametrize("odd", [float("nan"), "\ud800"])
def test_inputs_pair_whatever_json_can_hold(tmp_path, odd):
    logs = [write(tmp_path / name / "log.json", right, input=odd) for name, right in (("none", 8), ("norm", 12))]
    (found,) = compare_samples(logs)
    assert found.tasks[0].items == 20
    with pytest.raises(TableError, match="20 of 20 items do not pair"):
        compare_samples([logs[0], write(tmp_path / "other" / "log.json", 8, input="\ud801")])


def test_a_score_whose_name_cannot_be_written_is_refused(tmp_path):
    scores = {"match\ud800": {"value": "C"}}
    logs = [write(tmp_path / name / "log.json", 8, scores=scores) for name in ("none", "norm")]
    with pytest.raises(TableError, match=r"match\\ud800"):
        compare_samples(logs)


def test_a_number_of_choices_that_is_none_is_not_counted(tmp_path):
    _, scored = read_log(write(tmp_path / "log.json", 8, choices=4), None)
    assert {choices for _, _, choices in scored.values()} == {None}


def nested(path):
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.writestr("header.json", "[" * 100_000)


def torn(path):
    write(path, 8)
    data = bytearray(path.read_bytes())
    data[45:60] = bytes(15)  # inside the first file's packed bytes
    path.write_bytes(data)


@pytest.mark.parametrize("make", [nested, torn, os.mkfifo])
def test_an_archive_that_is_damaged_or_none_is_named(tmp_path, make):
    make(tmp_path / "log.eval")
    with pytest.raises((TableError, RecordError), match=r"log\.eval"):
        task_of(tmp_path / "log.eval")


def test_a_pipe_beside_the_logs_is_none_of_them(tmp_path):
    write(tmp_path / "a/log.json", 8)
    write(tmp_path / "b/log.json", 9)
    os.mkfifo(tmp_path / "b" / "other.json")
    assert len(compare_samples([tmp_path / "a", tmp_path / "b"])) == 1
