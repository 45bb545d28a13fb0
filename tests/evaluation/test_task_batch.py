"""Task batches against the harness itself: what `simple_evaluate` gives for a run, to the last bit, hash and figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablationlab.data.corpus import TokenizedCorpus, load_corpus
from ablationlab.evaluation.scoring import StackScorer
from ablationlab.records.settings import DataConfig, ModelConfig
from ablationlab.tasks import TaskRequest

from .models import member, stack
from .play import play

pytestmark = pytest.mark.filterwarnings("ignore")
ITEMS = 30


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    path = tmp_path_factory.mktemp("text") / "play.txt"
    path.write_text(play(60_000))
    return DataConfig(corpus=str(path), validation=0.1)


@pytest.fixture(scope="module")
def corpus(data: DataConfig) -> TokenizedCorpus:
    return load_corpus(data)


@pytest.fixture(scope="module")
def own_tasks(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Tasks of every kind of request, as a user may write them; one has two filters, one its choices in Jinja."""
    folder = tmp_path_factory.mktemp("own")
    docs = [
        {"q": f"the {word} of", "a": ["king", "sea", "night"][n % 3], "n": n % 3} for n, word in enumerate("abcdef")
    ]
    (folder / "docs.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(folder / "docs.jsonl")}}}
    tasks: dict[str, dict[str, Any]] = {
        "own_choice": {
            "output_type": "multiple_choice",
            "doc_to_text": "{{q}}",
            "doc_to_choice": "{{['king', 'sea', 'night']}}",
            "doc_to_target": "n",
            "metric_list": [{"metric": name} for name in ("acc", "acc_norm", "mcc")],
        },
        "own_last": {
            "output_type": "loglikelihood",
            "doc_to_text": "{{q}}",
            "doc_to_target": "{{a}}",
            "metric_list": [{"metric": "acc"}, {"metric": "perplexity"}],
        },
        "own_rolling": {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{q}} {{a}} {{q}}",
            "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
        },
        "own_writing": {
            "output_type": "generate_until",
            "doc_to_text": "{{q}}",
            "doc_to_target": "{{a}}",
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4, "do_sample": False},
            "metric_list": [{"metric": "exact_match"}],
            "filter_list": [
                {"name": "whole", "filter": [{"function": "take_first"}]},
                {"name": "low", "filter": [{"function": "lowercase"}, {"function": "take_first"}]},
            ],
        },
    }
    paths = []
    for name, body in tasks.items():
        path = folder / f"{name}.yaml"
        path.write_text(json.dumps({"task": name, "test_split": "test", **data, **body}))
        paths.append(str(path))
    return paths


def models(corpus: TokenizedCorpus) -> Any:
    model = ModelConfig(
        layers=2, width=16, heads=2, context=96, vocabulary=corpus.record.vocabulary, token_init_std=0.6, init_std=0.25
    )
    return stack(member(1, model=model), member(2, "layernorm", model=model))


def test_a_scored_batch_is_what_simple_evaluate_gives(corpus, own_tasks, tmp_path):
    from ablationlab.evaluation.harness import LocalTaskBuilder, StackLM, ask

    request = TaskRequest(("suite", *own_tasks), (0, 1), "one", ITEMS)
    builder = LocalTaskBuilder(request, corpus, 96, tmp_path)
    scorer = StackScorer(models(corpus))
    kinds = set()
    for run in (0, 1):
        lm = StackLM(scorer, builder.text, 96)
        lm.current = run
        marked = {}
        for task in builder.tasks():
            kinds.add(task.packed is None)
            scored = None if task.packed is None else scorer.score_packed(task.packed)
            answers = builder.answer(task.name, lm) if scored is None else scored.answers(run)
            marked[task.name] = (
                builder.batches[task.name].score(answers),
                builder.scored(task.name, "r", "final", answers).rows,
            )
        plain = ask(lm, [batch.task.loaded for batch in builder.batches.values()], builder.manager, limit=ITEMS)
        for name, batch in builder.batches.items():
            mine, rows = marked[name]
            samples = plain["samples"][name]
            first = [sample for sample in samples if sample["filter"] == samples[0]["filter"]]
            assert [dict(one) for one in mine.metrics] == [{m: s[m] for m in s["metrics"]} for s in first]
            assert list(mine.responses) == [sample["filtered_resps"] for sample in first]
            for column in ("doc_hash", "prompt_hash", "target_hash"):
                assert rows.column(column).to_pylist() == [sample[column] for sample in first]
            assert [item.number for item in batch.items] == [sample["doc_id"] for sample in first]
            figures = {
                key.removesuffix(",none"): value
                for key, value in plain["results"][name].items()
                if isinstance(value, int | float)
            }
            assert mine.figures == figures
    assert kinds == {True, False}
    assert len(builder.batches) >= 14


def test_the_columns_of_a_chosen_item_follow_from_its_scores(corpus, tmp_path):
    from ablationlab.evaluation.harness import LocalTaskBuilder

    builder = LocalTaskBuilder(TaskRequest(("last-word",), (0,), "one", ITEMS), corpus, 96, tmp_path)
    (task,) = builder.tasks()
    answers = StackScorer(models(corpus)).score_packed(task.packed).answers(0)
    found = builder.scored(task.name, "r", "final", answers)
    for row in found.rows.to_pylist():
        scores, target = np.asarray(row["choice_scores"]), row["target"]
        shares = np.exp(scores) / np.exp(scores).sum()
        assert row["correct"] == (int(scores.argmax()) == target) == (row["chosen"] == target)
        assert row["log_probability"] == scores[target]
        assert row["margin"] == pytest.approx(scores[target] - np.delete(scores, target).max())
        assert row["probability"] == pytest.approx(shares[target])
        assert row["choice_bytes"] == [
            len(choice.encode()) for choice in builder.batches[task.name].choices[row["item"]][0]
        ]
    right = np.mean(found.rows.column("correct").to_pylist())
    assert found.result.accuracy == pytest.approx(right)
    assert found.result.accuracy_se == pytest.approx((right * (1 - right) / (ITEMS - 1)) ** 0.5)


def test_a_worker_process_gives_what_a_builder_in_this_process_gives(data, corpus, own_tasks, tmp_path):
    from ablationlab.core.errors import DataError
    from ablationlab.evaluation import ProcessTaskBuilder
    from ablationlab.evaluation.harness import LocalTaskBuilder

    request = TaskRequest(("spelling", "last-word", own_tasks[1]), (0, 1), "one", ITEMS)
    builder = LocalTaskBuilder(request, corpus, 96, tmp_path / "a")
    scorer = StackScorer(models(corpus))
    workers = ProcessTaskBuilder(request, data, corpus, 96, tmp_path / "b", 1, describe=True)
    try:
        there = {one.name: one for one in workers.tasks()}
        assert set(there) == set(builder.batches)
        for task in builder.tasks():
            other = there[task.name]
            assert (other.hash, other.task, other.fewshot) == (task.hash, task.task, task.fewshot)
            assert np.array_equal(other.packed.tokens, task.packed.tokens)
            answers = scorer.score_packed(other.packed).answers(1)
            mine, theirs = (
                one.score(task.name, "run", "half", answers).result(timeout=300) for one in (builder, workers)
            )
            assert mine.result == theirs.result
            assert mine.rows.equals(theirs.rows)
        described = sorted(workers.describe(list(there)), key=lambda one: one.task_hash)
        assert described == sorted(builder.describe(list(there)), key=lambda one: one.task_hash)
    finally:
        workers.close()
    short = ProcessTaskBuilder(TaskRequest(("hellaswag",), (0,), "one", ITEMS), data, corpus, 96, tmp_path, 1)
    try:
        with pytest.raises(DataError, match="needs a context of at least 512"):
            short.tasks()
    finally:
        short.close()


@pytest.fixture
def asked_of(corpus, tmp_path):
    """A function: one task over these documents, as a user may write it -> its builder."""
    from ablationlab.evaluation.harness import LocalTaskBuilder

    def make(docs: list[dict[str, Any]], body: dict[str, Any], context: int = 96) -> Any:
        (tmp_path / "docs.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
        data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(tmp_path / "docs.jsonl")}}}
        path = tmp_path / "own.yaml"
        path.write_text(json.dumps({"task": "own", "test_split": "test", **data, **body}))
        return LocalTaskBuilder(TaskRequest((str(path),), (0,), "one", None), corpus, context, tmp_path / "root")

    return make


def test_a_prompt_to_be_written_on_that_is_longer_than_the_context_counts_as_cut(asked_of):
    docs = [{"q": "lo " * length, "a": "den"} for length in (5, 40, 20, 32)]
    body = {"output_type": "generate_until", "doc_to_text": "{{q}}", "doc_to_target": "{{a}}"}
    body |= {"generation_kwargs": {"until": ["x"], "max_gen_toks": 2}, "metric_list": [{"metric": "exact_match"}]}
    (batch,) = asked_of(docs, body).batches.values()
    assert batch.truncated == [False, True, False, False]  # 96 characters fit


def test_accuracy_norm_is_by_log_probability_per_character_not_per_byte(asked_of):
    body = {"output_type": "multiple_choice", "doc_to_text": "{{q}}", "doc_to_target": "n"}
    body |= {"doc_to_choice": "{{['mirsa', '\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9']}}"}
    body |= {"metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]}
    builder = asked_of([{"q": "lo", "n": 0}, {"q": "den", "n": 1}], body)
    (task,) = builder.tasks()
    # -10 / 5 > -13 / 6 by characters, and -10 / 5 < -13 / 12 by bytes
    marked = builder.scored(task.name, "r", "final", [(-10.0, False), (-13.0, False)] * 2)
    assert marked.rows.column("choice_bytes").to_pylist() == [[5, 12]] * 2
    assert marked.rows.column("correct_norm").to_pylist() == [True, False]
    assert marked.result.accuracy_norm == 0.5


def test_two_tasks_that_would_have_the_same_score_are_refused(corpus, tmp_path, own_tasks):
    from ablationlab.core.errors import DataError
    from ablationlab.evaluation.harness import LocalTaskBuilder

    again = tmp_path / "again.yaml"
    again.write_text(Path(own_tasks[0]).read_text())
    with pytest.raises(DataError, match="asked more than once, so that one score would replace the other: own_choice"):
        LocalTaskBuilder(
            TaskRequest((own_tasks[0], str(again)), (0,), "one", None), corpus, 96, tmp_path / "root"
        ).tasks()


def test_characters_that_a_vocabulary_lacks_are_found_in_lists_and_tables_too(corpus):
    from types import SimpleNamespace

    from ablationlab.core.errors import DataError
    from ablationlab.tasks.harness_tasks import _check_characters

    docs = [{"q": "lo mirsa", "choices": {"text": ["\u00e9\u00e9", "den"], "label": ["a", "b"]}, "n": 1}]
    with pytest.raises(DataError, match="of its characters are not among"):
        _check_characters("own", SimpleNamespace(eval_docs=docs), corpus)
    _check_characters("own", SimpleNamespace(eval_docs=[{"q": "lo mirsa", "choices": ["den"]}]), corpus)
