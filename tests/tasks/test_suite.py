from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from ablationlab.core.errors import DataError, RecordError
from ablationlab.data.corpus import load_corpus
from ablationlab.data.tokenizers import CharTokenizer
from ablationlab.evaluation.scoring import Continuation, NgramScorer
from ablationlab.records.settings import DataConfig
from ablationlab.tasks.harness_tasks import write_task
from ablationlab.tasks.suite import KINDS, BuiltTask, build, room_of
from evaluation.play import play

PLAY = play(120_000)
TRAIN, HELD_OUT = PLAY[:80_000], PLAY[80_000:]
TOKENIZER = CharTokenizer.of(TRAIN + HELD_OUT)
PAIRS = ("spelling", "word-order", "punctuation")


def made(name: str, fewshot: int = 0, template: str = "plain", context: int = 128) -> BuiltTask:
    return build(name, TRAIN, HELD_OUT, context, fewshot, template)


@pytest.mark.parametrize("content", ["null\n", '{"target": 1}\n', ""])
def test_items_that_were_changed_after_they_were_written_are_refused_and_named(tmp_path, content):
    task = made("spelling")
    folder = write_task(task, tmp_path)
    assert write_task(task, tmp_path) == folder
    (folder / "items.jsonl").write_text(content)
    with pytest.raises(RecordError, match=r"items\.jsonl is not what the runs are asked"):
        write_task(task, tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_items_that_are_no_file_are_named_and_never_waited_for(tmp_path, make):
    task = made("spelling")
    items = write_task(task, tmp_path) / "items.jsonl"
    items.unlink()
    make(items)
    with pytest.raises(RecordError, match=f"{items} is not a regular file"):
        write_task(task, tmp_path)


def accuracies(task: BuiltTask, scorer: NgramScorer, tokenizer: CharTokenizer) -> np.ndarray:
    rows = task.rows(task.items)
    items = [
        [
            Continuation(
                tuple(tokenizer.encode(row["text"] or "\n")), tuple(tokenizer.encode(task.template.delimiter + c))
            )
            for c in row["choices"]
        ]
        for row in rows
    ]
    sums = scorer.score(items).sum_RN
    right = np.zeros(len(sums))
    start = 0
    for row in rows:
        stop = start + len(row["choices"])
        choices = sums[:, start:stop]
        best = choices > choices.max(axis=1, keepdims=True) - 1e-9  # anagrams tie for single characters
        right += best[:, row["target"]] / best.sum(axis=1)
        start = stop
    return right / len(rows)


@pytest.mark.parametrize("fewshot", [0, 2])
@pytest.mark.parametrize("name", list(KINDS))
def test_prompt_examples_and_longest_choice_fit_the_context_in_every_template(name, fewshot):
    for template in KINDS[name].templates:
        task = made(name, fewshot, template.name)
        item = max(len(r["text"] + template.delimiter) + max(map(len, r["choices"])) for r in task.rows(task.items))
        longest = [len(r["text"] + template.delimiter) + max(map(len, r["choices"])) for r in task.rows(task.examples)]
        assert 1 + item + fewshot * (max(longest, default=0) + 1) <= 128


@pytest.mark.parametrize("name", list(KINDS))
def test_the_same_text_gives_the_same_items_and_another_wording_another_hash(name):
    first, again = made(name), made(name)
    assert first.items == again.items
    assert first.hash == again.hash
    assert build(name, TRAIN, HELD_OUT, 128, 0, "plain", 50).hash != first.hash
    assert made(name, 1).hash != first.hash
    assert len(first.items) == len(set(first.items)) > 100


@pytest.mark.parametrize("name", list(KINDS))
def test_a_unigram_model_is_near_chance(name):
    task = made(name)
    chance = np.mean([1 / len(item.choices) for item in task.items])
    unigram = accuracies(task, NgramScorer(TOKENIZER.encode(TRAIN), TOKENIZER.vocabulary), TOKENIZER)[0]
    spread = np.sqrt(chance * (1 - chance) / len(task.items))
    assert abs(unigram - chance) < 3.5 * spread


def test_wrong_words_have_the_length_and_about_the_frequency_of_the_right_one():
    words = Counter(word for line in TRAIN.split("\n") for word in line.replace(",", " ").replace(";", " ").split())
    ratios = []
    for item in made("last-word").items:
        right = item.choices[item.target]
        assert {len(choice) for choice in item.choices} == {len(right)}
        ratios += [abs(np.log2((words[c] + 1) / (words[right] + 1))) for c in item.choices if c != right]
    assert np.median(ratios) < 1


@pytest.mark.parametrize("name", ["last-word", "next-line", "who-speaks-next"])
def test_the_right_choice_stands_at_every_place_equally_often(name):
    counts = Counter(item.target for item in made(name).items)
    assert stats.chisquare([counts[place] for place in range(4)]).pvalue > 1e-4


@pytest.mark.parametrize("name", PAIRS)
def test_a_minimal_pair_holds_the_same_characters(name):
    for item in made(name).items:
        real, wrong = item.choices[item.target], item.choices[1 - item.target]
        assert real != wrong
        assert sorted(real) == sorted(wrong)
        assert real in HELD_OUT
        assert wrong not in HELD_OUT


def test_items_come_from_the_held_out_text_and_examples_from_the_training_text():
    task = made("next-line", 1)
    for item in task.items[:100]:
        assert f"{item.text}\n{item.choices[item.target]}" in HELD_OUT
    for item in task.examples:
        assert f"{item.text}\n{item.choices[item.target]}" in TRAIN


def test_too_short_a_context_is_refused_with_its_numbers():
    with pytest.raises(DataError, match="a context of 64 leaves 12 characters per item, and 22 are needed"):
        made("last-word", 2, context=64)
    assert room_of(64, 2, worded=True) == 12


def test_a_text_without_speeches_has_no_one_to_speak_next():
    with pytest.raises(DataError, match=r"'who-speaks-next': the held-out text gives 0 items"):
        build("who-speaks-next", "a b c\n" * 500, "words without any heading here\n" * 300, 128, 0, "plain")


def test_tiny_shakespeare_gives_500_items_a_task_and_more():
    try:
        corpus = load_corpus(DataConfig())
    except DataError as error:
        pytest.skip(f"tiny Shakespeare is neither in the cache nor to be had: {error}")
    texts = [corpus.tokenizer.decode(part) for part in (corpus.train, corpus.validation)]
    scorer = NgramScorer(corpus.train, 65)
    for name in KINDS:
        for fewshot in (0, 2):
            task = build(name, *texts, 128, fewshot, "plain")
            assert len(task.items) >= 500, name
            if fewshot == 0:
                unigram, chance = accuracies(task, scorer, corpus.tokenizer)[0], 1 / len(task.items[0].choices)
                assert abs(unigram - chance) < 0.04, name
