"""Preparing: the same tokens as a naive encoding, whatever the processes, the shards, a kill or a full disk."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import warm
from ablationlab.core.errors import DataError, UnknownNameError
from ablationlab.data.documents import open_documents
from ablationlab.data.prepare import prepare
from ablationlab.data.prepared import Manifest, PrepareSettings, open_prepared
from ablationlab.data.tokenizers import TOKENIZERS

WORDS = ("the", "model", "reads", "one", "small", "text", "and", "learns", "to", "guess", "which", "letter", "né")


def document(number: int) -> str:
    words = [WORDS[(number * 7 + place * (number % 5 + 1)) % len(WORDS)] for place in range(5 + number % 40)]
    return f"{number}: " + " ".join(words) + ".\n"


DOCUMENTS = [document(number) for number in range(300)]


def write_lines(path: Path, texts: list[str] = DOCUMENTS) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def made(path: Path, out: Path, *, processes: int = 1, shard_tokens: int = 2000, **settings) -> Manifest:
    settings = PrepareSettings(shard_tokens=shard_tokens, **{"tokenizer": "byte", **settings})
    return prepare(open_documents(str(path), settings.text_key), settings, out, processes=processes)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != ".lock"}


@pytest.mark.parametrize("tokenizer", ["byte", "gpt2", "char"])
def test_shards_hold_exactly_the_naive_encoding(tmp_path, tokenizer):
    path = write_lines(tmp_path / "a.jsonl", [*DOCUMENTS, "", "last"])
    manifest = made(path, tmp_path / "out", tokenizer=tokenizer)
    found = open_prepared(tmp_path / "out")
    naive = TOKENIZERS[tokenizer].of("".join(DOCUMENTS) + "last\n")
    end = [naive.end_of_document] if naive.end_of_document is not None else naive.encode("\n").tolist()
    documents = [naive.encode(text).tolist() + end for text in [*DOCUMENTS, "last"]]
    tokens = np.array([token for one in documents for token in one], dtype=np.int64)
    np.testing.assert_array_equal(np.asarray(found.tokens), tokens)
    np.testing.assert_array_equal(found.ends, np.cumsum([len(one) for one in documents]))
    assert len(manifest.shards) > 2
    assert all(shard.tokens >= 2000 for shard in manifest.shards[:-1])
    assert manifest.dtype == "uint16"
    assert (manifest.documents, manifest.empty) == (301, 1)
    assert manifest.text_bytes == sum(len(text.encode()) for text in [*DOCUMENTS, "last"])
    assert manifest.tokens_sha256 == hashlib.sha256(tokens.astype("<i8").tobytes()).hexdigest()
    assert manifest.tokenizer.identity == naive.identity


def test_every_kind_of_file_and_any_sharding_is_the_same_corpus(tmp_path):
    write_lines(tmp_path / "a.jsonl")
    parquet.write_table(pa.table({"body": DOCUMENTS}), tmp_path / "b.parquet")
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(DOCUMENTS):
        (tmp_path / "texts" / f"{number:04d}.txt").write_text(text)
    manifests = [
        made(tmp_path / "a.jsonl", tmp_path / "1"),
        made(tmp_path / "b.parquet", tmp_path / "2", text_key="body", shard_tokens=10**6),
        made(tmp_path / "texts", tmp_path / "3", shard_tokens=500),
    ]
    assert len({manifest.tokens_sha256 for manifest in manifests}) == 1
    assert len({manifest.text_sha256 for manifest in manifests}) == 1
    assert len({len(manifest.shards) for manifest in manifests}) == 3


def test_the_number_of_processes_changes_no_byte(tmp_path, monkeypatch):
    monkeypatch.setattr("ablationlab.data.prepare._BATCH", 1000)
    path = write_lines(tmp_path / "a.jsonl", DOCUMENTS + DOCUMENTS[:50])
    options = {"tokenizer": "gpt2", "exact_duplicates": True}
    made(path, tmp_path / "one", **options)
    made(path, tmp_path / "two", processes=2, **options)
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_a_prepared_folder_is_left_alone_and_another_is_not_overwritten(tmp_path):
    path = write_lines(tmp_path / "a.jsonl")
    first = made(path, tmp_path / "out")
    before = content(tmp_path / "out")
    assert made(path, tmp_path / "out") == first
    assert content(tmp_path / "out") == before
    with pytest.raises(DataError, match="is another prepared corpus"):
        made(path, tmp_path / "out", tokenizer="gpt2")
    write_lines(path, DOCUMENTS[:10])
    with pytest.raises(DataError, match="its input or settings have changed"):
        made(path, tmp_path / "out")
    with pytest.raises(DataError, match=r"is not empty and not a prepared corpus \(it has a.jsonl\)"):
        made(path, tmp_path)
    assert path.exists()


def test_what_makes_no_sense_is_refused(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [""])
    with pytest.raises(DataError, match=r"a.jsonl: it contains no text"):
        made(path, tmp_path / "out")
    with pytest.raises(UnknownNameError, match="did you mean 'gpt2'"):
        made(path, tmp_path / "out", tokenizer="gpt-2")
    with pytest.raises(DataError, match=r"near-duplicates 1\.5"):
        made(path, tmp_path / "out", near_duplicates=1.5)
    with pytest.raises(UnknownNameError, match="did you mean 'wikitext-2'"):
        open_documents("wikitext")


def test_a_wrong_or_missing_shard_is_refused_by_name(tmp_path):
    made(write_lines(tmp_path / "a.jsonl"), tmp_path / "out")
    shard = tmp_path / "out" / "shard-00001.bin"
    good = shard.read_bytes()
    for bad, why in (
        (b"\x01" + good[1:], "has a wrong checksum"),
        (good[:-2], "bytes instead of"),
        (None, "is missing"),
    ):
        shard.unlink()
        if bad is not None:
            shard.write_bytes(bad)
        with pytest.raises(DataError, match=why) as caught:
            open_prepared(tmp_path / "out")
        assert str(shard) in str(caught.value)
    shard.write_bytes(good)
    (tmp_path / "out" / "shard-00002.docs").write_bytes(b"12345678")
    with pytest.raises(DataError, match=r"shard-00002.docs has a wrong checksum"):
        open_prepared(tmp_path / "out")


def test_large_shards_are_verified_once_and_again_when_they_change(tmp_path, monkeypatch):
    monkeypatch.setattr("ablationlab.data.prepared.ALWAYS_VERIFIED", 0)
    monkeypatch.setenv("ABLATIONLAB_CACHE", str(tmp_path / "cache"))
    made(write_lines(tmp_path / "a.jsonl"), tmp_path / "out")
    hashed = []
    real = open_prepared.__globals__["sha256_file"]
    monkeypatch.setattr("ablationlab.data.prepared.sha256_file", lambda path: hashed.append(path.name) or real(path))
    open_prepared(tmp_path / "out")
    files = len(hashed)
    open_prepared(tmp_path / "out")
    assert len(hashed) == files > 4, "remembered"
    shard = tmp_path / "out" / "shard-00000.bin"
    shard.write_bytes(b"\x01" + shard.read_bytes()[1:])
    with pytest.raises(DataError, match="wrong checksum"):
        open_prepared(tmp_path / "out")
    assert hashed[files:] == ["shard-00000.bin"]


def test_exact_duplicates_are_left_out_and_counted(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [*DOCUMENTS, *DOCUMENTS[:100], DOCUMENTS[0] + " "])
    manifest = made(path, tmp_path / "out", exact_duplicates=True)
    assert manifest.duplicates.exact_removed == 100
    assert manifest.duplicates.rate == 100 / 401
    assert manifest.documents == 301
    alone = made(write_lines(tmp_path / "b.jsonl", [*DOCUMENTS, DOCUMENTS[0] + " "]), tmp_path / "alone")
    assert manifest.tokens_sha256 == alone.tokens_sha256, "the first of each is kept, in its place"


def test_near_duplicates_are_those_over_the_threshold(tmp_path):
    draw = np.random.default_rng(0)
    originals = [[f"w{word}" for word in draw.integers(0, 5000, 300)] for _ in range(60)]

    def changed(words: list[str], count: int) -> str:
        places = set(draw.choice(len(words), count, replace=False).tolist())
        return " ".join("other" if place in places else word for place, word in enumerate(words))

    # Each changed word breaks up to 5 of the 296 runs of five words: J is about (296 - 5c) / (296 + 5c).
    close = [changed(words, 1) for words in originals[:30]]  # J = 0.97
    far = [changed(words, 30) for words in originals[30:]]  # J = 0.37 or so
    path = write_lines(tmp_path / "a.jsonl", [*map(" ".join, originals), *close, *far])
    manifest = made(path, tmp_path / "out", tokenizer="byte", near_duplicates=0.8)
    assert manifest.duplicates.near_removed == 30
    assert manifest.duplicates.rate == 30 / 120
    assert manifest.documents == 90


KILLED = [
    "-m",
    "ablationlab",
    "data",
    "prepare",
    "in.jsonl",
    "--out",
    "out",
    "--shard-tokens",
    "10000",
    "--workers",
    "2",
]


def test_killed_at_any_time_it_continues_and_gives_the_same_bytes(tmp_path):
    texts = [document(number) * 3 for number in range(2400)]
    path = write_lines(tmp_path / "in.jsonl", texts + texts[:500])
    options = ["--tokenizer", "byte", "--exact-duplicates"]
    kept: dict[str, int] = {}
    for after in (1, 12):
        process = subprocess.Popen([warm.FRESH, *KILLED, *options], cwd=tmp_path, stdout=subprocess.DEVNULL)
        shard = tmp_path / "out" / f"shard-{after:05d}.bin"
        deadline = time.monotonic() + 60
        while not shard.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert shard.exists()
        assert not (tmp_path / "out" / "manifest.json").exists(), "it was killed before its end"
        assert all((tmp_path / "out" / name).stat().st_ino == inode for name, inode in kept.items()), "kept, not remade"
        done = json.loads((tmp_path / "out" / "progress.json").read_text())["finished"]
        kept = {one["shard"]["file"]: (tmp_path / "out" / one["shard"]["file"]).stat().st_ino for one in done}
    # One of the finished shards is damaged while nobody looks: it and what follows are regenerated.
    (tmp_path / "out" / "shard-00009.bin").write_bytes(b"x")
    ended = subprocess.run([warm.FRESH, *KILLED, *options], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "out" / "shard-00008.bin").stat().st_ino == kept["shard-00008.bin"]
    made(path, tmp_path / "undisturbed", shard_tokens=10_000, exact_duplicates=True)
    assert content(tmp_path / "out") == content(tmp_path / "undisturbed")
    assert "left out 500 exact" in ended.stdout


def test_a_full_disk_is_told_and_leaves_no_part_of_a_shard(ablationlab, tmp_path):
    write_lines(tmp_path / "in.jsonl", ["x" * 500] * 100)
    command = ["data", "prepare", "in.jsonl", "--tokenizer", "byte", "--out", "out", "--shard-tokens", "20000"]
    ended = ablationlab(*command, "--workers", "1", largest_file=30_000)
    assert ended.returncode == 2
    assert "shard-00000.bin: the disk (or a quota on it) is full" in ended.stderr
    assert "run the same command again" in ended.stderr
    assert not list((tmp_path / "out").glob("*shard*"))
    again = ablationlab(*command, "--workers", "1")
    assert again.returncode == 0, again.stderr
    assert "100 documents, 50,100 tokens (byte, uint16)" in again.stdout
    checked = ablationlab("data", "verify", "out")
    assert checked.returncode == 0
    assert "50,100 tokens" in checked.stdout


PEAK = """
import resource, sys
from pathlib import Path
from ablationlab.data.documents import open_documents
from ablationlab.data.prepared import PrepareSettings
from ablationlab.data.prepare import prepare
prepare(open_documents(sys.argv[1]), PrepareSettings(tokenizer="byte", shard_tokens=2**22), Path(sys.argv[2]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss in kB")
@pytest.mark.parametrize("kind", ["jsonl", "txt"])
def test_memory_does_not_grow_with_the_corpus(tmp_path, kind):
    peaks = []
    for size in (8, 40):
        path = tmp_path / f"{size}.{kind}"
        line = "some words that go on and on, in a line of text that is not very long\n" * 200
        with path.open("w") as file:
            for _ in range(size * 2**20 // len(line)):
                file.write(json.dumps({"text": line}) + "\n" if kind == "jsonl" else line)
        command = [warm.FRESH, "-c", PEAK, str(path), str(tmp_path / f"out-{size}")]
        peaks.append(int(subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ).stdout))
    assert peaks[1] - peaks[0] < 8 * 1024, "40 MB of text instead of 8 cost less than 8 MB more of memory"


def test_the_last_documents_are_held_out(tmp_path):
    made(write_lines(tmp_path / "a.jsonl"), tmp_path / "out")
    found = open_prepared(tmp_path / "out")
    cut = found.cut(0.1)
    assert cut in found.ends.tolist()
    longest = max(len(text.encode()) + 1 for text in DOCUMENTS)
    assert abs(found.manifest.tokens * 0.9 - cut) <= longest / 2 + 1
    made(write_lines(tmp_path / "b.jsonl", ["a" * 995 + "\n"]), tmp_path / "single")
    assert open_prepared(tmp_path / "single").cut(0.1) == int(997 * 0.9), "one document is cut inside"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"documents": 7}, "contradicts itself in documents"),
        ({"tokens": 7}, "contradicts itself in tokens"),
        ({"dtype": "uint32"}, "contradicts itself in dtype"),
        ({"tokenizer.vocabulary": 300}, "contradicts itself in tokenizer.vocabulary"),
        ({"shards.0.file": "../a.jsonl"}, "contradicts itself in shards"),
        ({"shards.0.documents": 7, "documents": 7}, "its indices list 301 documents of"),
        ({"tokens_sha256": "0" * 64}, "its tokens are not those of tokens_sha256"),
    ],
)
def test_a_manifest_that_is_not_of_its_shards_is_refused(tmp_path, change, why):
    made(write_lines(tmp_path / "a.jsonl", [*DOCUMENTS, "last"]), tmp_path / "out", shard_tokens=10**6)
    path = tmp_path / "out" / "manifest.json"
    record = json.loads(path.read_text())
    for key, value in change.items():
        *way, last = (int(step) if step.isdigit() else step for step in key.split("."))
        here = record
        for step in way:
            here = here[step]
        here[last] = value
    path.write_text(json.dumps(record))
    with pytest.raises(DataError, match=why):
        open_prepared(tmp_path / "out", verify_all=True)


def test_what_is_no_prepared_folder_is_told_apart(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "progress.json").write_text("{}")
    for name, why in (
        ("gone", "no such folder"),
        ("file", "is a file; a prepared corpus is a folder"),
        ("empty", r"not a prepared corpus \(it has no manifest.json\)"),
        ("begun", "its preparation is not finished; run the same data prepare again"),
    ):
        with pytest.raises(DataError, match=why):
            open_prepared(tmp_path / name)


def test_an_interrupted_preparation_says_what_there_is(tmp_path):
    """With far more text than can be prepared before the interrupt reaches it, on however busy a machine."""
    write_lines(tmp_path / "in.jsonl", [document(number) * 12 for number in range(20_000)])
    process = subprocess.Popen(
        [warm.FRESH, *KILLED, "--tokenizer", "byte"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # As a terminal starts it. A shell that runs tests in the background has them, and what they start, ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "out" / "progress.json").exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the processes that encode are interrupted as well
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    finished = len(list((tmp_path / "out").glob("shard-*.bin")))
    assert f"Interrupted. out has {finished} finished shard(s); the same command continues after them." in said
    assert "Traceback" not in said
