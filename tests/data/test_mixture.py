"""Prepared corpora and mixtures of them as the data of a study: split, drawn, trained on, counted."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import ablationlab
from ablationlab.core.errors import DataError, StudyError
from ablationlab.data.batches import batch_offsets, curve_windows, drawn_samples, shares_of
from ablationlab.data.corpus import TokenizedCorpus, check_length, load_corpus
from ablationlab.data.documents import open_documents
from ablationlab.data.prepare import prepare
from ablationlab.data.prepared import PrepareSettings
from ablationlab.data.tokenizers import TOKENIZERS
from ablationlab.data.tokens import Tokens
from ablationlab.records.plan import Plan
from ablationlab.records.results import Results
from ablationlab.records.run import Result
from ablationlab.records.settings import DataConfig, ModelConfig, TrainingConfig
from ablationlab.report.tables.setup import data_table
from ablationlab.study.load import load_study, parse_study
from ablationlab.training import stack as stack_module
from ablationlab.training.perplexity import validation_totals
from ablationlab.training.stack import Member, Stack
from conftest import read_metrics

CONTEXT = 16


def prepared(folder: Path, name: str, letters: str, documents: int, tokenizer: str = "byte") -> Path:
    """Documents of only these letters, of lengths that differ."""
    file = folder / f"{name}.jsonl"
    texts = [(letters * 40)[: 20 + number % 50] for number in range(documents)]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    prepare(open_documents(str(file)), PrepareSettings(tokenizer=tokenizer, shard_tokens=900), folder / name)
    return folder / name


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.setenv("ABLATIONLAB_CACHE", str(tmp_path / "cache"))
    return prepared(tmp_path, "small", "abc", 60), prepared(tmp_path, "large", "xyzé", 200)


def mixed(two: tuple[Path, Path], weights: tuple[float, float] = (1.0, 3.0), **settings) -> TokenizedCorpus:
    mixture = {str(path): weight for path, weight in zip(two, weights, strict=True)}
    return load_corpus(DataConfig(corpus="mixture", mixture=mixture, tokenizer="byte", overlap="keep", **settings))


def test_a_prepared_folder_is_a_corpus(two):
    corpus = load_corpus(DataConfig(corpus=str(two[1]), tokenizer="byte", validation=0.2))
    record = corpus.record
    (part,) = record.components
    assert (record.train_tokens, record.validation_tokens) == (len(corpus.train), len(corpus.validation))
    assert (part.name, part.weight, part.documents, part.held_out) == ("large", 1.0, 200, "documents")
    assert isinstance(corpus.train, Tokens)
    text = corpus.tokenizer.decode(np.concatenate([np.asarray(corpus.train), corpus.validation]))
    assert text.count("<|endoftext|>") == 200
    assert text.startswith(("xyzé" * 40)[:20] + "<|endoftext|>" + ("xyzé" * 40)[:21])
    held = corpus.tokenizer.decode(corpus.validation)
    assert held.startswith("xyzé"), "it begins with a whole document"
    assert part.train_documents + held.count("<|endoftext|>") == 200
    predicted = held.replace("<|endoftext|>", "").encode()
    assert record.validation_bytes == len(predicted) - 1, "all but the first token's; ends of documents have none"


def test_a_mixture_stands_one_behind_another_and_its_weights_are_normalized(two):
    corpus = mixed(two)
    small, large = corpus.record.components
    assert (small.weight, large.weight) == (0.25, 0.75)
    assert corpus.record.name == "mixture"
    assert corpus.record.source == "0.25 small + 0.75 large"
    assert corpus.record.train_tokens == small.train_tokens + large.train_tokens == len(corpus.train)
    assert corpus.record.validation_tokens == small.validation_tokens + large.validation_tokens
    assert corpus.sources == (("small", 0), ("large", small.train_tokens))
    assert corpus.record.validation_bytes == small.validation_bytes + large.validation_bytes + 1  # large's first token
    train, validation = corpus.readable()
    assert "<|endoftext|>" not in train + validation
    others = [mixed(two, (1.0, 1.0)), mixed(two[::-1]), mixed(two, validation=0.3), load_corpus_of(two[0])]
    assert len({one.record.tokens_sha256 for one in [corpus, *others]}) == 5, "the record tells them apart"
    assert mixed(two, (2.0, 6.0)).record == corpus.record


def test_of_a_long_mixture_a_part_of_every_component_is_shown(two, monkeypatch):
    monkeypatch.setattr("ablationlab.data.corpus._READABLE", 200)
    for text in mixed(two).readable():
        assert "abc" in text
        assert "xyz" in text
    single = load_corpus_of(two[1])
    assert single.readable()[1] == single.tokenizer.decode(single.validation[:200]).replace("<|endoftext|>", "\n")


def load_corpus_of(path: Path) -> TokenizedCorpus:
    return load_corpus(DataConfig(corpus=str(path), tokenizer="byte"))


def test_what_a_run_was_fed_is_counted_exactly(two):
    corpus = mixed(two)
    counted = drawn_samples(corpus, 3, steps=25, batch=8, context=CONTEXT)
    shape = {"batch": 8, "context": CONTEXT, "train_tokens": len(corpus.train)}
    edge = corpus.record.components[0].train_tokens
    samples, ends = [0, 0], [0, 0]
    for step in range(1, 26):
        for start in batch_offsets(3, step, **shape, shares=shares_of(corpus.record)):
            window = corpus.train[int(start) : int(start) + CONTEXT + 1]
            which = int(start >= edge)
            letters = set(window.tolist()) - {256}
            assert letters <= (set(b"abc"), set("xyzé".encode()))[which], "no window has both"
            samples[which] += 1
            ends[which] += int((window[1:] == 256).sum())
    assert [one.samples for one in counted] == samples
    assert [one.ends_of_documents for one in counted] == ends
    assert [one.tokens for one in counted] == [CONTEXT * number for number in samples]
    assert sum(one.tokens for one in counted) == 25 * 8 * CONTEXT
    assert counted[1].share == samples[1] / 200
    assert 0.65 < counted[1].share < 0.85


def trained(corpus: TokenizedCorpus) -> tuple[Stack, list[torch.Tensor]]:
    torch.set_num_threads(1)
    model = ModelConfig(layers=1, width=16, heads=2, context=CONTEXT, vocabulary=257)
    training = TrainingConfig(steps=6, batch=4, lr=1e-2, warmup=2, precision="fp32")
    members = [Member("a", 1, 1e-2, model), Member("b", 2, 1e-2, model)]
    stack = Stack(members, 2, training, 6, corpus.train, torch.device("cpu"), torch.float32)
    losses = []
    stack.feed(1, np.stack([stack.offsets(step) for step in (1, 2, 3)]))
    for _ in range(3):
        stack.advance()
    losses.append(stack.measured().loss)
    for step in (4, 5, 6):
        losses.append(stack.train_step(step, stack.offsets(step)).loss)
    return stack, losses


def test_windows_from_disk_from_the_device_and_from_an_array_train_to_the_same_bits(two, monkeypatch):
    corpus = mixed(two)
    resident, losses = trained(corpus)
    assert resident.train_tokens is not None
    monkeypatch.setattr(stack_module, "RESIDENT_TOKENS", 10)
    gathered, others = trained(corpus)
    assert gathered.train_tokens is None
    assert all(torch.equal(a, b) for a, b in zip(losses, others, strict=True))
    assert torch.equal(resident.weights_RP, gathered.weights_RP)
    single = load_corpus_of(two[1])
    whole = TokenizedCorpus(single.record, single.tokenizer, np.asarray(single.train), single.validation)
    assert torch.equal(trained(single)[0].weights_RP, trained(whole)[0].weights_RP)


def test_a_study_of_a_mixture_runs_and_records_what_was_fed(two, study_file, cli, tmp_path):
    study = study_file(
        {
            "seeds": [1],
            "variants": ["none", "rmsnorm"],
            "data.corpus": "mixture",
            "data.tokenizer": "byte",
            "data.mixture": {"./small": 1.0, str(two[1]): 3.0},
            "probes": {"data-mixture": 6},
            "training.steps": 6,
            "evaluation": {"curve_every": 6, "curve_windows": 5},
        }
    )
    text = study.read_text().replace("\n./small", '\n"./small"').replace(f"\n{two[1]}", f'\n"{two[1]}"')
    study.write_text(text)
    code, _, errors = cli("run", study, "--out", tmp_path / "results", "--workers", "1", "--device", "cpu")
    assert code == 0, errors
    plan = Plan.read(tmp_path / "results" / "plan.lock")
    assert [one.name for one in plan.corpus.components] == ["small", "large"]
    results = [Result.read(tmp_path / "results" / "runs" / run.id / "result.json") for run in plan.runs]
    assert results[0].fed == results[1].fed, "all arms of a seed are fed the same"
    assert sum(one.tokens for one in results[0].fed) == results[0].tokens == 6 * 4 * CONTEXT
    lines = (tmp_path / "results" / "runs" / plan.runs[0].id / "probes.jsonl").read_text()
    assert "source:large" in lines
    # The last point of the curve, from the saved weights: the windows of both components that the record names.
    folder = tmp_path / "results" / "runs" / plan.runs[0].id
    model = ablationlab.load(folder)
    windows = curve_windows(plan.corpus, CONTEXT, 5)
    assert windows[0][0] < plan.corpus.components[0].validation_tokens < windows[-1][0]
    held_out = torch.from_numpy(load_corpus(load_study(study).data).validation)
    params = {name: value.detach()[None] for name, value in model.named_parameters()}
    totals = validation_totals(params, model.config, [model.config.front], held_out, torch.float32, windows)
    assert totals.tokens == 5 * CONTEXT
    *_, last = read_metrics(folder / "metrics.jsonl")
    assert last.curve_loss == pytest.approx(float(totals.nll_R[0]) / totals.tokens, rel=1e-5)
    whole = validation_totals(params, model.config, [model.config.front], held_out, torch.float32)
    assert results[0].metrics["validation_loss"] == pytest.approx(float(whole.nll_R[0]) / (len(held_out) - 1), rel=1e-5)


def test_arms_may_weigh_texts_otherwise_and_must_be_validated_on_the_same(two, study_file, cli, tmp_path):
    small, large = two
    data = {"corpus": "mixture", "tokenizer": "byte", "mixture": {"small": 1.0, "large": 3.0}}
    tiny = {"seeds": [1], "training.steps": 6, "data": data}
    written = study_file({"variants": ["none", "other"], **tiny}).read_text()
    written = written.replace('variants = ["none", "other"]\n', "").replace("\nsmall =", f"\n'{small}' =")
    written = written.replace("\nlarge =", f"\n'{large}' =")

    def planned(change: str, name: str) -> tuple[int, str]:
        path = tmp_path / f"{name}.toml"
        path.write_text(f"{written}\n[variants.none]\n[variants.other]\n{change}\n")
        code, _, errors = cli("plan", path, "--out", tmp_path / name)
        return code, " ".join(errors.split())

    assert planned(f"data.mixture = {{ '{small}' = 9.0, '{large}' = 1.0 }}", "weights") == (0, "")
    assert cli("plan", tmp_path / "weights.toml", "--hardware", "h100")[0] == 0  # reads no text
    out = tmp_path / "weights"
    assert cli("run", tmp_path / "weights.toml", "--out", out, "--workers", "1", "--no-report")[0] == 0
    shown = data_table(Results.open(out)).csv().splitlines()
    assert [row.split(",")[:3] for row in shown[1:]] == [
        ["none", "small", "0.25"],
        ["none", "large", "0.75"],
        ["other", "small", "0.9"],
        ["other", "large", "0.1"],
    ]
    code, errors = planned(f"data.mixture = {{ '{small}' = 2.0, '{large}' = 6.0 }}", "same")
    assert code != 0
    assert "variant 'other' changes nothing in regime 'default': it equals the baseline" in errors
    code, errors = planned("data.validation = 0.3", "refused")
    assert code != 0
    assert "variant 'other': " in errors
    assert "losses on other text do not compare" in errors
    (tmp_path / "other.txt").write_text("To be, or not to be. " * 900)
    other = study_file({"variants": {"none": {}, "other": {"data": {"corpus": "./other.txt"}}}})
    code, _, errors = cli("plan", other, "--out", tmp_path / "texts")
    assert code != 0
    assert "variant 'other' holds out other text than 'none'" in " ".join(errors.split())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"corpus": "mixture"}, "go together; one is missing"),
        ({"mixture": {"wikitext-2": 1.0}}, "go together; one is missing"),
        ({"corpus": "mixture", "mixture": {}}, "data.mixture"),
        ({"corpus": "mixture", "mixture": {"wikitext-2": 0.0}}, "data.mixture.wikitext-2: is out of range (got 0.0)"),
        ({"corpus": "mixture", "mixture": {"wikitext": 1.0}}, "did you mean 'wikitext-2'?"),
        ({"corpus": "mixtures"}, "did you mean 'mixture'?"),
        ({"tokenizer": "bytes"}, "did you mean 'byte'?"),
    ],
)
def test_a_mixture_that_makes_no_sense_is_refused(study_table, data, why):
    table = study_table()
    table["data"] = {"tokenizer": "gpt2", **data}
    with pytest.raises(StudyError) as caught:
        parse_study(table)
    assert why in str(caught.value)


def test_components_that_cannot_be_mixed_are_refused(two, tmp_path):
    with pytest.raises(
        DataError, match=r"prepared with the byte tokenizer, but the study says data.tokenizer = 'char'"
    ):
        load_corpus(DataConfig(corpus=str(two[0])))
    chars = [prepared(tmp_path, name, letters, 9, "char") for name, letters in (("p", "ab"), ("q", "cd"))]
    mixture = {str(path): 1.0 for path in chars}
    with pytest.raises(DataError, match="'p' and 'q' have different vocabularies"):
        load_corpus(DataConfig(corpus="mixture", mixture=mixture, tokenizer="char"))
    (tmp_path / "other").mkdir()
    again = prepared(tmp_path / "other", "small", "abc", 9)
    with pytest.raises(DataError, match="two components of the mixture are called 'small'"):
        load_corpus(DataConfig(corpus="mixture", mixture={str(two[0]): 1.0, str(again): 1.0}, tokenizer="byte"))
    with pytest.raises(DataError, match="not a prepared corpus"):
        load_corpus(DataConfig(corpus="mixture", mixture={str(tmp_path / "other"): 1.0}, tokenizer="byte"))
    with pytest.raises(DataError, match="component 'small': its training part has"):
        check_length(mixed(two, validation=0.4).record, 2000)
    with pytest.raises(DataError, match="gone: no such folder; make one with: ablationlab data prepare INPUT --out"):
        load_corpus(DataConfig(corpus="mixture", mixture={str(tmp_path / "gone"): 1.0}, tokenizer="byte"))


def test_a_held_out_part_too_long_to_validate_on_is_refused(two, monkeypatch):
    monkeypatch.setattr("ablationlab.data.corpus.LONGEST_VALIDATION", 100)
    with pytest.raises(DataError, match=r"at most 100 are allowed: use 0.0"):
        load_corpus_of(two[1])


def test_paths_of_a_mixture_may_move_without_another_study(two, study_table):
    table = study_table()
    hashes = set()
    for folder in ("/somewhere", "/elsewhere"):
        table["data"] = {"corpus": "mixture", "tokenizer": "byte", "mixture": {f"{folder}/small": 1.0}}
        hashes.add(parse_study(table).hash)
    table["data"]["mixture"] = {"/somewhere/small": 2.0}
    assert len(hashes) == 1
    assert parse_study(table).hash not in hashes


def test_the_bpe_study_mixes_its_three_corpora():
    study = load_study(Path(__file__).parents[2] / "studies" / "embedding-norm-bpe.toml")
    assert study.data.tokenizer == "gpt2"
    assert set(study.data.mixture or {}) == {"enwik8-text", "wikitext-2", "state-of-the-union"}
    assert study.training.steps is not None
    tokens = study.training.steps * study.training.batch * study.model.context
    assert 25e6 < tokens < 35e6


def test_bits_per_byte_of_a_bpe_run_are_those_of_its_text(study_file, cli, tmp_path):
    """Against the text itself: every byte of the held-out documents but those of the first token, and all their ends."""
    texts = [f"Article {number}: naïve café, {'words ' * (number % 7)}and 3.14 — done.\n" for number in range(60)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    prepare(
        open_documents(str(tmp_path / "a.jsonl")), PrepareSettings(tokenizer="gpt2", shard_tokens=500), tmp_path / "bpe"
    )
    study = study_file(
        {
            "seeds": [1],
            "variants": ["none", "rmsnorm"],
            "data": {"corpus": "./bpe", "tokenizer": "gpt2", "validation": 0.2},
            "training.steps": 2,
            "training.warmup": 1,
        }
    )
    code, _, errors = cli("run", study, "--out", tmp_path / "results", "--workers", "1", "--device", "cpu")
    assert code == 0, errors
    plan = Plan.read(tmp_path / "results" / "plan.lock")
    held_out = texts[plan.corpus.components[0].train_documents :]
    assert 5 < len(held_out) < 20
    tokens = plan.corpus.validation_tokens
    encoded = [TOKENIZERS["gpt2"].of("").encode(text) for text in held_out]
    assert tokens == sum(len(one) + 1 for one in encoded)
    predicted = sum(len(text.encode()) for text in held_out) - len(b"Article")
    for run in plan.runs:
        metrics = Result.read(tmp_path / "results" / "runs" / run.id / "result.json").metrics
        assert metrics["validation_loss"] == pytest.approx(math.log(50257), abs=0.3)
        by_hand = metrics["validation_loss"] * (tokens - 1) / math.log(2) / predicted
        assert metrics["bits_per_byte"] == pytest.approx(by_hand, rel=1e-12)
