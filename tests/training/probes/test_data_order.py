"""What was fed: shares by source and class, and n-grams seen before, against plain counting."""

from __future__ import annotations

import numpy as np
import pytest

from ablationlab.data.batches import batch_offsets
from ablationlab.data.corpus import load_corpus
from ablationlab.data.tokenizers import CharTokenizer, token_class
from ablationlab.records.settings import DataConfig
from ablationlab.study.probes import NGRAM
from ablationlab.training.probes import data_order
from ablationlab.training.probes.data_order import SeenData, Vocabulary

CONTEXT = 20


def made(text: str, seeds=(1,), sources=(("text", 0),), windows: int = 100) -> tuple[SeenData, np.ndarray]:
    tokenizer = CharTokenizer.of(text)
    tokens = tokenizer.encode(text)
    return SeenData(seeds, tokens, CONTEXT, Vocabulary.of(tokenizer, tokens), sources, windows), tokens


def counted(tokens: np.ndarray, starts: list[int]) -> float:
    grams = [tuple(tokens[start + i : start + i + NGRAM]) for start in starts for i in range(CONTEXT + 1 - NGRAM + 1)]
    return 1 - len(set(grams)) / len(grams)


def test_what_is_fed_twice_is_half_duplicate_and_what_is_fed_once_is_not():
    rng = np.random.default_rng(0)
    text = "".join(rng.choice(list("abcdefghij"), 400))
    seen, _ = made(text)
    seen.take(np.array([[0, 100]]))
    assert seen.duplicates(1) == 0
    seen.take(np.array([[100, 0]]))
    assert seen.duplicates(1) == pytest.approx(0.5)


def test_duplicates_equal_plain_counting_over_a_repetitive_text_however_it_is_asked():
    text = "to be, or not to be, that is the question:\n" * 30
    seen, tokens = made(text)
    rng, fed = np.random.default_rng(1), []
    for step in range(12):
        starts = rng.integers(0, len(tokens) - CONTEXT, 3)
        fed += starts.tolist()
        seen.take(starts[None])
        if step % 5 == 4:
            assert seen.duplicates(1) == pytest.approx(counted(tokens, fed))
    assert seen.duplicates(1) == pytest.approx(counted(tokens, fed))
    assert 0.5 < seen.duplicates(1) < 1


def test_a_sample_of_kinds_estimates_the_rate(monkeypatch):
    monkeypatch.setattr(data_order, "REMEMBERED", 2**10)
    rng = np.random.default_rng(2)
    text = "".join(rng.choice(list("abcdefghij"), 4000))
    seen, tokens = made(text, windows=1000)
    assert seen._keep > 5
    starts = rng.integers(0, len(tokens) - CONTEXT, (1, 1000))
    seen.take(starts)
    assert seen.duplicates(1) == pytest.approx(counted(tokens, starts[0].tolist()), abs=0.03)


def test_shares_are_those_of_the_tokens_that_were_inputs():
    text = "ab1. \n" * 100
    seen, _ = made(text)
    seen.take(np.array([[7, 311]]))
    fed = "".join(text[start : start + CONTEXT] for start in (7, 311))
    wanted = {name: sum(token_class(c) == name for c in fed) / len(fed) for name in map(token_class, fed)}
    assert seen.classes(1) == pytest.approx(wanted)


def test_sources_are_the_files_of_a_folder_and_their_shares_what_was_drawn(tmp_path):
    (tmp_path / "texts" / "b").mkdir(parents=True)
    (tmp_path / "texts" / "a.txt").write_text("a" * 299)
    (tmp_path / "texts" / "b" / "c.txt").write_text("c" * 699)
    (tmp_path / "texts" / "z.txt").write_text("z" * 100)  # the last tenth or so is held out
    corpus = load_corpus(DataConfig(corpus=str(tmp_path / "texts"), validation=0.1))
    assert corpus.sources == (("a.txt", 0), ("b/c.txt", 300))
    seen = SeenData((1,), corpus.train, 10, Vocabulary.of(corpus.tokenizer, corpus.train), corpus.sources, 10)
    seen.take(np.array([[0, 295, 400, 500]]))
    assert seen.sources(1) == pytest.approx({"a.txt": 15 / 40, "b/c.txt": 25 / 40})


def test_runs_of_one_seed_share_a_count_and_a_resumed_feed_continues_it():
    text = "to be, or not to be, that is the question:\n" * 30
    calm, tokens = made(text, seeds=(4, 4, 9))
    resumed, _ = made(text, seeds=(4, 4, 9))

    def offsets(step: int) -> np.ndarray:
        shape = {"batch": 3, "context": CONTEXT, "train_tokens": len(tokens)}
        return np.stack([batch_offsets(seed, step, **shape) for seed in (4, 4, 9)])

    for step in range(1, 9):
        calm.take(offsets(step))
        if step == 3:
            calm.classes(4)  # being asked in between changes nothing
    resumed.replay(5, offsets)
    for step in range(6, 9):
        resumed.take(offsets(step))
    for seed in (4, 9):
        assert calm.duplicates(seed) == resumed.duplicates(seed)
        assert calm.classes(seed) == resumed.classes(seed)
    assert calm.classes(4) != calm.classes(9)


def test_counts_from_the_index_are_those_from_the_text_itself(monkeypatch):
    rng = np.random.default_rng(5)
    tokens = rng.integers(0, 4, 3000)
    vocabulary = Vocabulary(("a", "1", ",", "\n"), np.arange(4), np.bincount(tokens, minlength=4))
    sources = [("first", 0), ("second", 700), ("third", 710), ("fourth", 2000)]
    offsets = [rng.integers(0, 3000 - 30, (1, 40)) for _ in range(5)]

    def counted():
        seen = SeenData(
            (7,), tokens, 30, vocabulary, sources, 100_000
        )  # so many windows planned that few n-grams are kept
        for step in offsets:
            seen.take(step)
        return seen.classes(7), seen.sources(7), seen.duplicates(7)

    indexed = counted()
    monkeypatch.setattr("ablationlab.training.probes.data_order.INDEXED", 0)
    assert counted() == indexed
    assert 0 < indexed[2] < 1
