from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from ablationlab.core.errors import DataError, UnknownNameError
from ablationlab.data.corpus import check_length, load_corpus
from ablationlab.records.settings import DataConfig


def refusal(corpus: object) -> str:
    with pytest.raises(DataError) as caught:
        load_corpus(DataConfig(corpus=str(corpus)))
    return str(caught.value)


def test_the_end_of_the_text_is_held_out(corpus_file):
    text = corpus_file.read_text()
    corpus = load_corpus(DataConfig(corpus=str(corpus_file), validation=0.25))
    train, validation = (corpus.tokenizer.decode(part) for part in (corpus.train, corpus.validation))
    assert train + validation == text
    assert len(train) == int(len(text) * 0.75)
    record = corpus.record
    assert (record.train_tokens, record.validation_tokens) == (len(train), len(validation))
    assert record.vocabulary == len(set(text))
    assert record.sha256 == hashlib.sha256(corpus_file.read_bytes()).hexdigest()
    assert record.source == "a file"


def test_the_first_held_out_token_is_context_and_its_bytes_are_not_counted(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a" * 10 + "éöü" * 10)  # 40 characters; the last 30 take two bytes each
    record = load_corpus(DataConfig(corpus=str(path), validation=0.5)).record
    assert record.validation_tokens == 20
    assert record.validation_bytes == 2 * 19


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path):
    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    (folder / "b.txt").write_text("second")
    (folder / "a.txt").write_text("first")
    (folder / "deep" / "c.txt").write_text("third")
    (folder / "ignored.md").write_text("no")
    corpus = load_corpus(DataConfig(corpus=str(folder)))
    tokens = np.concatenate([corpus.train, corpus.validation])
    assert corpus.tokenizer.decode(tokens) == "first\nsecond\nthird"
    assert corpus.record.source == "a folder of 3 files"


def test_the_same_text_in_another_place_is_the_same_data(tmp_path, corpus_file):
    other = tmp_path / "copy.txt"
    other.write_bytes(corpus_file.read_bytes())
    first, second = (load_corpus(DataConfig(corpus=str(path))).record for path in (corpus_file, other))
    assert first.tokens_sha256 == second.tokens_sha256
    other.write_bytes(corpus_file.read_bytes()[:-1])
    assert load_corpus(DataConfig(corpus=str(other))).record.tokens_sha256 != first.tokens_sha256


def test_a_text_that_is_not_utf8_is_named_with_the_place(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"caf" + b"\xe9 au lait")
    assert refusal(path) == f"corpus {path}: not UTF-8 at byte 3; convert it first"
    assert f"corpus {path}: not UTF-8" in refusal(tmp_path), "the file inside a folder is named"


def test_a_text_that_is_not_there_or_empty_is_named(tmp_path, monkeypatch):
    assert refusal(tmp_path / "no.txt") == f"corpus {tmp_path / 'no.txt'}: no such file or folder"
    assert refusal(tmp_path) == f"corpus {tmp_path}: the folder has no .txt file"
    (tmp_path / "other.md").touch()
    (tmp_path / "my.txt").touch()
    assert refusal(tmp_path / "mi.txt").endswith(f"no such file or folder; did you mean '{tmp_path / 'my.txt'}'?")
    (tmp_path / "my.txt").unlink()
    assert refusal(Path("/dev/zero")) == "corpus /dev/zero: is neither a file nor a folder"
    (tmp_path / "empty.txt").touch()
    assert refusal(tmp_path / "empty.txt") == f"corpus {tmp_path / 'empty.txt'}: the file is empty"
    monkeypatch.setattr("ablationlab.data.corpus.MOST_ENTRIES", 0)
    assert "holds more than 0 files and folders" in refusal(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs Linux")
def test_a_text_that_the_system_will_not_read_is_named():
    # A process may open its own memory but not read at address 0: a real input error, also for root.
    path = "/proc/self/mem"
    assert refusal(path).startswith(f"corpus {path}: cannot be read (")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_text_without_permission_is_named(corpus_file):
    corpus_file.chmod(0)
    assert refusal(corpus_file) == f"corpus {corpus_file}: cannot be read (Permission denied)"


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'tiny-shakespeare'"):
        load_corpus(DataConfig(corpus="tiny-shakespear"))


def test_a_corpus_must_fill_a_context_in_both_parts(corpus_file):
    record = load_corpus(DataConfig(corpus=str(corpus_file))).record
    shortest = record.validation_tokens
    check_length(record, shortest - 1)
    with pytest.raises(DataError) as caught:
        check_length(record, shortest)
    text = str(caught.value)
    assert f"its validation part has {shortest} tokens, but one context needs {shortest} + 1" in text
    assert repr(corpus_file.name) in text
    assert "shorter model.context" in text
    with pytest.raises(DataError, match=f"training part has {record.train_tokens} tokens"):
        check_length(record, 10**6)
