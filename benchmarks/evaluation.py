"""What evaluating a run costs: against training it, and against the harness's own `hf` model on the same checkpoint.

    python benchmarks/evaluation.py [--steps 300] [--items 500] [--rounds 10] [--part 8] [--hf 40]

Training steps and slices of the evaluation are timed in turn in one process, in processor seconds of one thread, so that the
ratio means something on a shared machine. `--part n` times every n-th batch and an n-th of the validation split, and scales
up. The model is char-mini with its initial weights: the arithmetic does not depend on what it has learned.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ablationlab.data.corpus import load_corpus
from ablationlab.data.tokenizers import token_classes
from ablationlab.evaluation.harness import LocalTaskBuilder, StackLM, ask
from ablationlab.evaluation.length import begin_length_scores
from ablationlab.evaluation.runs import RunWeights, ScoredStack
from ablationlab.evaluation.scoring import StackScorer, row_batches
from ablationlab.evaluation.tasks import PackedTask
from ablationlab.evaluation.tokens import begin_token_scores, text_units
from ablationlab.model.parameters import parameters
from ablationlab.records.plan import Budget, PlannedRun, Recipe
from ablationlab.records.settings import DataConfig, ModelConfig, TrainingConfig
from ablationlab.tasks import TaskRequest
from ablationlab.training.formats import config_of, tensors_of
from ablationlab.training.stack import Member, Stack

#: A quarter of the default study's runs are the gate's: their halfway weights are put to the tasks too, and nothing else is
#: measured on them.
GATE = 1 / 4


def timed(work: Callable[[], object]) -> float:
    """Processor seconds of one call, on one thread: a neighbour's work does not count."""
    began = time.process_time()
    work()
    return time.process_time() - began


def member_of(model: ModelConfig) -> RunWeights:
    """char-mini as it starts out."""
    tensors = {p.name: torch.from_numpy(p.draw(1)) for p in parameters(model)}
    budget = Budget(steps=1, tokens=1, matmul_flops=1, parameters=1)
    run = PlannedRun(
        id="bench",
        variant="none",
        regime="default",
        seed=1,
        stack=0,
        slot=0,
        role="compared",
        recipe=Recipe(model=model, training=TrainingConfig(steps=1, lr=3e-4), budget=budget),
    )
    return RunWeights(run, "final", model, tensors, "step-00000000", "0" * 64)


def hf_of(member: RunWeights, characters: str) -> Any:
    """The same weights as the harness's `hf` model."""
    from lm_eval.models.huggingface import HFLM
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    model = GPT2LMHeadModel(GPT2Config(**config_of(member.model)))
    state = tensors_of(member.tensors, member.model)
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
    parser.add_argument(
        "--part", type=int, default=1, help="time one batch and one piece of text in so many, and scale up"
    )
    parser.add_argument("--hf", type=int, default=40, help="items a task beside the hf model; 0: leave it out")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    corpus = load_corpus(DataConfig())
    model = ModelConfig.model_validate({"preset": "char-mini", "vocabulary": corpus.record.vocabulary})
    device = torch.device("cpu")
    member = member_of(model)
    stack = ScoredStack.of([member], device)
    trained = Stack(
        [Member("bench", 1, 3e-4, model)],
        1,
        TrainingConfig(steps=options.steps),
        options.steps,
        corpus.train,
        device,
        torch.float32,
    )
    with TemporaryDirectory() as folder:
        request = TaskRequest(("suite",), (0, 2), "one", options.items)
        began = time.process_time()
        builder = LocalTaskBuilder(request, corpus, model.context, Path(folder))
        tasks = builder.tasks()
        building = time.process_time() - began
        scorer = StackScorer(stack)
        # The batches of a whole evaluation, longest rows first in every task, and every n-th of them to be timed.
        batches = [(task, rows) for task in tasks if task.packed for rows in row_batches(task.packed.rows, "cpu", 1)]
        chosen = batches[:: options.part]
        steps, scoring, tokens = [], [], []
        piece = -(-len(corpus.validation) // (options.part * options.rounds))
        classes = token_classes(corpus.tokenizer)

        def read_tokens(text: NDArray[np.int64]) -> None:
            units = text_units(text, None, stack.model.context)
            scores_of = begin_token_scores(stack, text, classes, len(text), units)
            for run in range(len(stack.members)):
                scores_of(run)

        def read_lengths() -> None:
            scores_of = begin_length_scores(stack, corpus.validation)
            assert scores_of is not None
            for run in range(len(stack.members)):
                scores_of(run)

        for number in range(options.rounds):
            steps.append(timed(lambda: trained.train_step(1, trained.offsets(1))))
            some = corpus.validation[number * piece : (number + 1) * piece]
            tokens.append(timed(lambda mine=some: read_tokens(mine)))  # type: ignore[misc]
            for task, rows in chosen[number :: options.rounds]:
                scoring.append(timed(lambda task=task, rows=rows: scorer.begin_rows(task.packed, [rows]).finish()))  # type: ignore[misc]
        lengths = timed(read_lengths)
        marking = timed(lambda: score(builder, tasks[:: options.part]))
        scored = sum(scoring) * sum(len(rows) for _, rows in batches) / sum(len(rows) for _, rows in chosen)
        marked, read = marking * len(tasks) / len(tasks[:: options.part]), sum(tokens) * options.part
        training = median(steps) * options.steps
        whole = (scored + marked) * (1 + GATE) + (read + lengths) * (1 - GATE)
        print(f"training: {median(steps):.3f} s a step, {training:.0f} s a run of {options.steps} steps")
        print(
            f"evaluation: {whole:.0f} s a run: {int(len(tasks) * options.items)} items {scored:.0f} s, the harness "
            f"{marked:.1f} s, a quarter of both again for the gate; next tokens {read:.0f} s, length {lengths:.0f} s, "
            f"three quarters of both; once a process {building:.0f} s to build the tasks"
        )
        print(f"evaluation / training = {whole / training:.2f}")
        if options.hf:
            beside_hf(builder, scorer, member, corpus.tokenizer.characters or "", options.hf)


def score(builder: LocalTaskBuilder, tasks: Sequence[PackedTask]) -> None:
    """Have the harness score answers to tasks; any answers will do."""
    for task in tasks:
        assert task.packed is not None
        builder.scored(
            task.name, "bench", "final", [(-float(n % 7), False) for n in range(len(task.packed.truncated_N))]
        )


def beside_hf(builder: LocalTaskBuilder, scorer: StackScorer, member: RunWeights, characters: str, limit: int) -> None:
    """Items/s of one zero-shot pass over the suite through `simple_evaluate`, ours and the harness's `hf` model in turn."""
    tasks = [batch.task.loaded for batch in builder.batches.values() if batch.task.fewshot == 0]
    hf = hf_of(member, characters)
    ours, theirs = [], []
    for _ in range(2):
        ours.append(
            timed(lambda: ask(StackLM(scorer, builder.text, member.model.context), tasks, builder.manager, limit))
        )
        theirs.append(timed(lambda: ask(hf, tasks, builder.manager, limit)))
    count = sum(min(limit, len(batch.items)) for batch in builder.batches.values() if batch.task.fewshot == 0)
    print(
        f"items/s through simple_evaluate: ours {count / min(ours):.1f}, hf {count / min(theirs):.1f}, "
        f"ratio {min(theirs) / min(ours):.1f}"
    )


if __name__ == "__main__":
    main()
