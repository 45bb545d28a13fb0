"""Text that corpora of a mixture have in common: found, counted, kept or left out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from ablationlab.core.errors import DataError, StudyError
from ablationlab.data import overlap
from ablationlab.data.batches import drawn_samples
from ablationlab.data.corpus import TokenizedCorpus, check_length, load_component, load_corpus
from ablationlab.data.documents import open_documents
from ablationlab.data.duplicates import ngram_hashes, word_hashes, words_of
from ablationlab.data.prepare import prepare
from ablationlab.data.prepared import PrepareSettings
from ablationlab.records.settings import DataConfig
from ablationlab.records.storage import content_hash
from ablationlab.study.load import parse_study

RANDOM = np.random.default_rng(5)


def prose(words: int = 150) -> str:
    """Random words: two of these have no run of five in common."""
    return " ".join(f"w{number}" for number in RANDOM.integers(0, 3000, words))


SMALL = [prose() for _ in range(20)]  # the last two are held out
LARGE = [prose() for _ in range(60)]  # with what is planted in it, the last seven are held out


def as_wikitext(text: str) -> str:
    """The same words as other corpora set them."""
    first, second, *rest = text.split()
    return f"{first.upper()} @-@ {second} , {' '.join(rest)} ."


def nearly(text: str) -> str:
    """One word in the middle is another."""
    words = text.split()
    return " ".join([*words[:70], "another", *words[71:]])


PLANTED = {
    1: as_wikitext(SMALL[-1]),  # leaked, exactly
    2: nearly(SMALL[-2]),  # leaked, nearly
    3: f"{prose(400)} {SMALL[-1]} {prose(400)}",  # contains what is held out
    4: " ".join(LARGE[-1].split()[20:100]),  # is contained in what its own corpus holds out
    5: as_wikitext(SMALL[0]),  # a repetition, exactly
    6: nearly(SMALL[1]),  # a repetition, nearly
    7: LARGE[8],  # twice in one corpus, which is not looked at here
    9: f"{prose()} {' '.join(SMALL[-1].split()[:40])}",  # 28 runs in common: too little to go
}
LEFT_OUT = {1, 2, 3, 4, 5, 6}


def made(folder: Path, name: str, texts: list[str], tokenizer: str = "byte") -> str:
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    prepare(open_documents(str(file)), PrepareSettings(tokenizer=tokenizer, shard_tokens=9000), folder / name)
    return str(folder / name)


@pytest.fixture
def mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    monkeypatch.setenv("ABLATIONLAB_CACHE", str(tmp_path / "cache"))
    large = [PLANTED.get(number, text) for number, text in enumerate(LARGE)]
    return {made(tmp_path, "large", large): 3.0, made(tmp_path, "small", SMALL): 1.0}


def loaded(mixture: dict[str, float], **settings: object) -> TokenizedCorpus:
    return load_corpus(DataConfig(corpus="mixture", mixture=mixture, tokenizer="byte", **settings))


def documents(corpus: TokenizedCorpus, component: int) -> list[str]:
    """Training documents of a component, read off its tokens."""
    start = sum(one.train_tokens for one in corpus.record.components[:component])
    tokens = corpus.train[start : start + corpus.record.components[component].train_tokens]
    return corpus.tokenizer.decode(tokens).split("<|endoftext|>")[:-1]


def test_what_is_shared_is_left_out_and_counted(mixture):
    corpus = loaded(mixture)
    large, small = corpus.record.components
    kept = [PLANTED.get(number, text) for number, text in enumerate(LARGE[:53]) if number not in LEFT_OUT]
    assert documents(corpus, 0) == kept
    assert documents(corpus, 1) == SMALL[:18]
    assert (large.train_documents, large.train_tokens) == (47, sum(len(text) + 1 for text in kept))
    assert large.shared is not None
    assert small.shared is not None
    counts = large.shared
    assert (counts.leaked_exact, counts.leaked_near, counts.leaked_contained) == (1, 1, 2)
    assert (counts.repeated_exact, counts.repeated_near) == (1, 1)
    assert counts.tokens == sum(len(PLANTED[number]) + 1 for number in LEFT_OUT)
    assert (small.shared.leaked, small.shared.repeated, small.shared.tokens) == (0, 0, 0)
    assert corpus.record.overlap == "remove-from-training"
    # What is held out stays as it is.
    assert corpus.record.validation_tokens == loaded(mixture, overlap="keep").record.validation_tokens
    assert corpus.tokenizer.decode(corpus.validation).split("<|endoftext|>")[:-1] == [*LARGE[53:], *SMALL[18:]]


def naive_share(held_out: list[str], training: list[str]) -> float:
    """The share of words in a run of 13 that training text has, from sets of tuples."""

    def runs(text: str) -> list[tuple[str, ...]]:
        words = re.findall(r"w\d+|another", text.casefold())
        return [tuple(words[at : at + 13]) for at in range(len(words) - 12)]

    known = {run for text in training for run in runs(text)}
    total, covered = 0, 0
    for text in held_out:
        words: set[int] = set()
        for at, run in enumerate(runs(text)):
            if run in known:
                words.update(range(at, at + 13))
        total, covered = total + len(text.split()), covered + len(words)
    return covered / total


def test_how_much_of_the_held_out_text_was_seen_is_what_sets_say(mixture):
    large, small = loaded(mixture).record.components
    every = [PLANTED.get(number, text) for number, text in enumerate(LARGE[:53])]
    kept = [text for number, text in enumerate(every) if number not in LEFT_OUT]
    assert small.shared is not None
    assert large.shared is not None
    assert small.shared.seen == pytest.approx(naive_share(SMALL[18:], [*every, *SMALL[:18]]))
    assert small.shared.seen > 0.95
    assert small.shared.seen_without == pytest.approx(naive_share(SMALL[18:], [*kept, *SMALL[:18]]))
    assert small.shared.seen_without == pytest.approx(40 / 300)
    assert large.shared.seen == pytest.approx(80 / 1050)
    assert large.shared.seen_without == 0


def test_text_that_is_kept_is_counted_all_the_same(mixture):
    kept, removed = loaded(mixture, overlap="keep"), loaded(mixture)
    assert [one.shared for one in kept.record.components] == [one.shared for one in removed.record.components]
    assert kept.record.overlap == "keep"
    assert kept.record.train_tokens > removed.record.train_tokens
    assert len(documents(kept, 0)) == 53
    assert kept.record.tokens_sha256 != removed.record.tokens_sha256, "the plan's hash tells them apart"
    parts = kept.record.components
    assert kept.record.tokens_sha256 == content_hash([[p.weight, p.tokens_sha256, p.train_tokens] for p in parts])


def test_a_mixture_without_shared_text_is_the_same_tokens_either_way(tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATIONLAB_CACHE", str(tmp_path / "cache"))
    clean = {made(tmp_path, "a", SMALL): 1.0, made(tmp_path, "b", LARGE): 1.0}
    removed, kept = loaded(clean), loaded(clean, overlap="keep")
    assert removed.record.tokens_sha256 == kept.record.tokens_sha256
    assert all(part.shared is not None and part.shared.seen == 0 for part in removed.record.components)


def test_what_was_fed_is_counted_in_the_text_that_is_left(mixture):
    corpus = loaded(mixture)
    counted = drawn_samples(corpus, 1, steps=30, batch=4, context=64)
    whole = corpus.train[:]
    edge = corpus.record.components[0].train_tokens
    for number, (low, high) in enumerate(((0, edge), (edge, len(whole)))):
        ends = np.flatnonzero(whole[low:high] == 256) + 1
        np.testing.assert_array_equal(ends, corpus.ends[number][: len(ends)])
        assert len(ends) == corpus.record.components[number].train_documents
    assert sum(one.tokens for one in counted) == 30 * 4 * 64


def test_the_number_of_processes_changes_nothing(mixture, monkeypatch):
    monkeypatch.setattr(overlap, "_BATCH", 2000)
    config = DataConfig(corpus="mixture", mixture=mixture, tokenizer="byte")
    parts = [load_component(name, weight, config) for name, weight in mixture.items()]
    sides = [overlap.SplitCorpus(part.prepared, part.record.train_tokens) for part in parts]
    one, two = (overlap._Search(sides, "key", count, lambda _: None).run() for count in (1, 2))
    assert one == two
    assert len(one.spans[0]) == len(LEFT_OUT)


def test_it_is_found_once_and_remembered(mixture, tmp_path, monkeypatch):
    first = loaded(mixture)
    (kept,) = (tmp_path / "cache" / "overlaps").iterdir()

    def refuse(*_: object) -> None:
        raise AssertionError("looked for again")

    monkeypatch.setattr(overlap._Search, "__init__", refuse)
    assert loaded(mixture).record == first.record
    with pytest.raises(AssertionError):
        loaded(mixture, validation=0.2)
    with pytest.raises(AssertionError):
        loaded(dict(reversed(mixture.items())))
    kept.write_text(kept.read_text().replace("mixture-overlap", "something"))
    with pytest.raises(AssertionError):
        loaded(mixture)
    monkeypatch.undo()
    monkeypatch.setenv("ABLATIONLAB_CACHE", str(tmp_path / "cache"))
    assert loaded(mixture).record == first.record, "a damaged one is made again"


def test_one_corpus_is_never_compared(mixture, monkeypatch):
    monkeypatch.setattr(overlap._Search, "__init__", None)
    record = load_corpus(DataConfig(corpus=next(iter(mixture)), tokenizer="byte")).record
    assert (record.overlap, record.components[0].shared) == (None, None)
    alone = dict([next(iter(mixture.items()))])
    assert loaded(alone).record.overlap is None


def test_a_document_cut_in_two_is_no_copy_of_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATIONLAB_CACHE", str(tmp_path / "cache"))
    long, other = prose(3000), [prose() for _ in range(20)]
    record = loaded({made(tmp_path, "a", [long]): 1.0, made(tmp_path, "b", other): 1.0}).record
    assert record.components[0].held_out == "tokens"
    assert all(part.shared is not None and not part.shared.tokens for part in record.components)


def test_a_long_document_goes_piece_by_piece(tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATIONLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(overlap, "LONGEST", 2000)
    text = f"{prose(1500)} {SMALL[-1]} {prose(1500)}"
    corpus = loaded({made(tmp_path, "a", [text, *LARGE[:40]]): 1.0, made(tmp_path, "b", SMALL): 1.0})
    part = corpus.record.components[0]
    assert part.shared is not None
    assert part.shared.leaked_contained in (1, 2)
    assert part.shared.tokens == 2000 * part.shared.leaked_contained
    rest = documents(corpus, 0)[0]
    assert len(rest) == len(text) - part.shared.tokens
    assert text.startswith(rest[:6000])
    assert text.endswith(rest[-6000:])
    assert documents(corpus, 0)[1:] == LARGE[: part.train_documents - 1], "it still ends where it did"


def test_a_component_of_which_nothing_is_left_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATIONLAB_CACHE", str(tmp_path / "cache"))
    twice = {made(tmp_path, "a", LARGE): 1.0, made(tmp_path, "b", LARGE): 1.0}
    corpus = loaded(twice)
    with pytest.raises(DataError, match=r"component 'b'.* has 0 tokens.*of its tokens are elsewhere in the mixture"):
        check_length(corpus.record, 16)


def test_words_are_compared_without_case_and_marks():
    assert words_of("Twenty @-@ two , he said ( É_t ) .") == words_of("twenty-two, HE said é t")
    hashes = word_hashes([f"w{number}" for number in range(200)] * 2)
    runs = ngram_hashes(hashes, 5)
    assert len(runs) == 396
    assert len(np.unique(runs)) == 200, "the same words in the same order, and only those"
    assert len(ngram_hashes(hashes[:4], 5)) == 0


def test_the_setting_belongs_to_a_mixture(study_table):
    table = study_table()
    table["data"] = {"tokenizer": "byte", "overlap": "keep"}
    with pytest.raises(StudyError, match=r"there is no \[data.mixture\]"):
        parse_study(table)
    table["data"] = {"corpus": "mixture", "mixture": {"wikitext-2": 1.0}, "overlap": "remove"}
    with pytest.raises(StudyError, match="remove-from-training"):
        parse_study(table)


def test_the_verb_shows_what_is_shared(mixture, study_file, cli):
    study = study_file({"data": {"corpus": "mixture", "tokenizer": "byte", "mixture": {"a": 1.0}}})
    lines = "".join(f'"{path}" = {weight}\n' for path, weight in mixture.items())
    study.write_text(study.read_text().replace("a = 1.0\n", lines))
    code, said, errors = cli("data", "overlap", study, "--workers", "1")
    assert code == 0, errors
    words = " ".join(said.split())
    assert "large 60 1 1 2 1 1" in words
    assert "4 training documents that are held out elsewhere, 2 that a smaller component has too" in words
    assert "left out of training" in words
    code, _, errors = cli("data", "overlap", study_file({}), "--workers", "1")
    assert code == 2
    assert "is not a mixture of several corpora: nothing to compare" in errors
    code, _, errors = cli("data", "overlap", study, "--workers", "0")
    assert "--workers 0: at least one process is needed" in errors
