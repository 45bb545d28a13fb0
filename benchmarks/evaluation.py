"""What evaluating a run costs: against training it, and against the harness's own `hf` model on the same checkpoint.

    python benchmarks/evaluation.py [--steps 300] [--items 500] [--rounds 10] [--sample 50]

Training steps and slices of the evaluation are timed in turn in one process, in processor seconds of one thread, so that the
ratio means something on a shared machine. The model is char-mini with its initial weights: the arithmetic does not depend on
what it has learned.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ablationlab.config import DataConfig, ModelConfig, TrainingConfig
from ablationlab.data.corpus import load_corpus
from ablationlab.evaluation.harness import StackLM, ask, quiet
from ablationlab.evaluation.length import length_parts
from ablationlab.evaluation.members import Member, ScoredStack
from ablationlab.evaluation.names import Question
from ablationlab.evaluation.scoring import Continuation, StackScorer
from ablationlab.evaluation.tasks import Asked, resolve
from ablationlab.evaluation.text import ScoringTokens, token_classes
from ablationlab.evaluation.tokens import token_parts
from ablationlab.export import gpt2_config, ours_to_gpt2
from ablationlab.parameters import parameters
from ablationlab.records import Budget, PlannedRun
from ablationlab.training.stack import Member as Trained
from ablationlab.training.stack import Stack

#: A third of the default study's runs are baselines, whose halfway weights are put to the tasks too.
CONTROLS = 1 / 3


def timed(work: Callable[[], object]) -> float:
    """Processor seconds of one call, on one thread: a neighbour's work does not count."""
    began = time.process_time()
    work()
    return time.process_time() - began


def member_of(model: ModelConfig) -> Member:
    """char-mini as it starts out."""
    tensors = {p.name: torch.from_numpy(p.draw(1)) for p in parameters(model)}
    budget = Budget(steps=1, tokens=1, matmul_flops=1, parameters=1)
    run = PlannedRun(
        id="bench",
        variant="none",
        regime="default",
        seed=1,
        lr=3e-4,
        stack=0,
        slot=0,
        model=model.model_dump(mode="json"),
        training={},
        budget=budget,
    )
    return Member(run, "final", model, tensors, "step-00000000", "0" * 64)


def requests_of(lm: StackLM, asked: Asked) -> list[list[Continuation]]:
    """What the harness asks, by document."""
    items: dict[tuple[str, int], list[Continuation]] = {}
    for task in asked.tasks:
        task.loaded.set_fewshot_seed(1234)
        with quiet():
            task.loaded.build_all_requests()
        for request in task.loaded.instances:
            items.setdefault((task.name, request.doc_id), []).append(lm.continuation(*request.args))
    return list(items.values())


def hf_of(member: Member, characters: str) -> Any:
    """The same weights as the harness's `hf` model."""
    from lm_eval.models.huggingface import HFLM
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    model = GPT2LMHeadModel(GPT2Config(**gpt2_config(member.model)))
    state = {f"transformer.{ours_to_gpt2(name)}": value for name, value in member.tensors.items()}
    model.load_state_dict(state, strict=False)
    words = Tokenizer(models.WordLevel({c: i for i, c in enumerate(characters)}, unk_token=" "))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="\n", unk_token=" ", pad_token="\n")
    return HFLM(pretrained=model.eval(), tokenizer=tokenizer, batch_size=32, max_length=member.model.context)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sample", type=int, default=None, help="time so many items a task and scale up to --items")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    corpus = load_corpus(DataConfig())
    model = ModelConfig.model_validate({"preset": "char-mini", "vocabulary": corpus.record.vocabulary})
    device = torch.device("cpu")
    member = member_of(model)
    stack = ScoredStack.of([member], device)
    text = ScoringTokens(corpus.tokenizer)
    trained = Stack(
        [Trained("bench", 1, 3e-4, model)],
        1,
        TrainingConfig(steps=options.steps),
        options.steps,
        corpus.train,
        device,
        torch.float32,
    )
    with TemporaryDirectory() as folder:
        question = Question(("suite",), (0, 2), "one", options.sample or options.items)
        asked = resolve(question, corpus, model.context, Path(folder))
        scorer = StackScorer(stack)
        lm = StackLM(scorer, text, model.context)
        items = sorted(requests_of(lm, asked), key=lambda item: sum(len(one.context + one.tokens) for one in item))
        part = -(-len(items) // options.rounds)  # slices of like lengths, as the batches of a whole evaluation are
        steps, scoring, tokens = [], [], []
        size = -(-len(corpus.validation) // options.rounds)
        classes = token_classes(corpus.tokenizer)
        for number in range(options.rounds):
            piece = corpus.validation[number * size : (number + 1) * size]
            steps.append(timed(lambda: trained.train_step(1, trained.offsets(1))))
            scoring.append(timed(lambda mine=items[number * part : (number + 1) * part]: scorer.score(mine)))  # type: ignore[misc]
            tokens.append(timed(lambda mine=piece: token_parts(stack, mine, classes, len(mine))))  # type: ignore[misc]
        lengths = timed(lambda: length_parts(stack, corpus.validation))
        ask(lm, [task.loaded for task in asked.tasks], asked.manager)
        again = timed(lambda: ask(lm, [task.loaded for task in asked.tasks], asked.manager))
        training = median(steps) * options.steps
        factor = options.items / (options.sample or options.items)
        scored, again = sum(scoring) * factor, again * factor
        tasks = scored + again
        whole = tasks * (1 + CONTROLS) + sum(tokens) + lengths
        print(f"training: {median(steps):.3f} s a step, {training:.0f} s a run of {options.steps} steps")
        print(
            f"evaluation: {whole:.0f} s a run: {int(len(items) * factor)} items {scored:.0f} s, the harness around them "
            f"{again:.0f} s, a third of that again for the control; next tokens {sum(tokens):.0f} s, length {lengths:.0f} s"
        )
        print(f"evaluation / training = {whole / training:.2f}")
        few = [task.loaded for task in asked.tasks if task.fewshot == 0]
        hf = hf_of(member, corpus.tokenizer.characters or "")
        ours, theirs = [], []
        for _ in range(2):
            ours.append(timed(lambda: ask(StackLM(scorer, text, model.context), few, asked.manager, limit=40)))
            theirs.append(timed(lambda: ask(hf, few, asked.manager, limit=40)))
        count = 40 * len(few)
        print(f"items/s through the harness: ours {count / min(ours):.0f}, hf {count / min(theirs):.0f}")


if __name__ == "__main__":
    main()
