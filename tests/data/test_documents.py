"""Readers: what is a document, and what is said when a file is not as it should be."""

from __future__ import annotations

import errno
import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from ablationlab.core.errors import DataError
from ablationlab.data import documents
from ablationlab.data.documents import files_of, read_file
from ablationlab.data.tokenizers import TOKENIZERS


def texts(path: Path, key: str = "text") -> list[str]:
    found = list(read_file(path, key))
    assert all(piece.first and piece.last for piece in found)
    return [piece.text for piece in found]


def refusal(path: Path, key: str = "text") -> str:
    with pytest.raises(DataError) as caught:
        list(read_file(path, key))
    return str(caught.value)


def test_json_lines_and_parquet_give_their_texts_in_order(tmp_path):
    rows = [{"text": f"number {n}\nöé", "other": n} for n in range(600)]
    lines = tmp_path / "a.jsonl"
    lines.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(lines.read_bytes()))
    table = tmp_path / "c.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), table, row_group_size=100)
    wanted = [row["text"] for row in rows]
    assert texts(lines) == texts(packed) == texts(table) == wanted
    assert files_of(tmp_path) == [lines, packed, table]
    assert files_of(table) == [table]


def test_a_long_text_comes_in_pieces_that_tokenizers_do_not_notice(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PIECE", 200)
    line = "Word number %d, it's   here:\t«né»%s\n%s"
    text = "".join(line % (n, " " * (n % 2), "\n" * (n % 4) + " " * (n % 3)) for n in range(100))
    for name, data in (("a.txt", text.encode()), ("b.txt.gz", gzip.compress(text.encode()))):
        (tmp_path / name).write_bytes(data)
        pieces = list(read_file(tmp_path / name, "text"))
        assert len(pieces) > 5
        assert "".join(piece.text for piece in pieces) == text
        assert [piece.first for piece in pieces] == [True] + [False] * (len(pieces) - 1)
        assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        for tokenizer in (TOKENIZERS["gpt2"].of(""), TOKENIZERS["byte"].of("")):
            split = [token for piece in pieces for token in tokenizer.encode(piece.text).tolist()]
            assert split == tokenizer.encode(text).tolist()


def test_a_text_without_line_breaks_is_still_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PIECE", 50)
    (tmp_path / "a.txt").write_text("é" * 5000)
    pieces = list(read_file(tmp_path / "a.txt", "text"))
    assert "".join(piece.text for piece in pieces) == "é" * 5000
    assert max(len(piece.text) for piece in pieces) <= 17 * 50


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{oops", "not JSON"),
        ("[1]", "not a JSON object, but a list"),
        ('{"body": "x", "id": 1}', "has no 'text'; it has: body, id; choose one with --text-key"),
        ('{"text": 5}', "'text' is not text, but a number"),
        ('{"text": null}', "'text' is not text, but null"),
        ('{"text": {"a": "b"}}', "'text' is not text, but an object"),
        ("[" * 100_000, "not JSON: it is nested too deeply"),
        ('{"text": "a\\ud800"}', "holds half of a character (a lone surrogate) at 1"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path, line, why):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n' + line + "\n")
    said = refusal(path)
    assert said.startswith(f"{path}, line 2: ")
    assert why in said


def test_files_that_are_not_what_they_say_are_named(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"no")
    assert refusal(tmp_path / "a.parquet").startswith(f"{tmp_path / 'a.parquet'}: not a readable Parquet file")
    parquet.write_table(pa.table({"body": ["x"]}), tmp_path / "b.parquet")
    assert "has no column 'text'; it has: body" in refusal(tmp_path / "b.parquet")
    assert texts(tmp_path / "b.parquet", "body") == ["x"]
    parquet.write_table(pa.table({"text": [1]}), tmp_path / "c.parquet")
    assert f"{tmp_path / 'c.parquet'}: column 'text' is of type int64, not text" in refusal(tmp_path / "c.parquet")
    nested = pa.table({"text": [{"a": "x"}], "body": ["y"]})
    parquet.write_table(nested, tmp_path / "d.parquet")
    said = refusal(tmp_path / "d.parquet")
    assert "column 'text' is of type struct<a: string>, not text; columns of text: body; choose one with" in said
    assert said.endswith("; copy nested text to its own column")
    parquet.write_table(pa.table({"text": pa.array(["x", None])}), tmp_path / "e.parquet")
    assert f"{tmp_path / 'e.parquet'}, row 2: 'text' is not text, but null" in refusal(tmp_path / "e.parquet")
    for number, kind in enumerate((pa.large_string(), pa.dictionary(pa.int32(), pa.string()))):
        parquet.write_table(pa.table({"text": pa.array(["x", "y"], kind)}), tmp_path / f"f{number}.parquet")
        assert texts(tmp_path / f"f{number}.parquet") == ["x", "y"]
    (tmp_path / "d.txt").write_bytes(b"caf\xe9 au lait")
    assert "not UTF-8 near byte 3" in refusal(tmp_path / "d.txt")
    (tmp_path / "e.txt").write_bytes(b"caf\xc3")
    assert "not UTF-8 at its end" in refusal(tmp_path / "e.txt")
    (tmp_path / "f.txt.gz").write_bytes(b"no")
    assert "cannot be read" in refusal(tmp_path / "f.txt.gz")


def test_paths_without_anything_to_read_are_named(tmp_path):
    for path, why in (
        (tmp_path / "no", "no such file or folder"),
        (tmp_path, "the folder has no file that ends in .txt, .txt.gz, .jsonl, .jsonl.gz, .parquet"),
        (tmp_path / "a.pdf", "unsupported kind of file"),
    ):
        if path.suffix:
            path.touch()
        with pytest.raises(DataError, match=why):
            files_of(path)


def test_bytes_that_are_no_utf8_are_placed(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "fine"}\n{"text": "caf\xe9"}\n')
    assert refusal(path) == f"{path}, line 2: not UTF-8 at byte 13; convert it first"


def test_a_folder_that_may_not_be_opened_is_no_gap_in_a_corpus(tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.txt").write_text("seen")
    (tmp_path / "inner" / "b.txt").write_text("not seen")
    assert len(files_of(tmp_path)) == 2
    scan = os.scandir

    def refuse(place: str) -> object:  # what the system says to a user without rights; root is never refused
        if str(place).endswith("inner"):
            raise PermissionError(errno.EACCES, "Permission denied", str(place))
        return scan(place)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"inner: cannot be read \(Permission denied\); no file is skipped"):
        files_of(tmp_path)
