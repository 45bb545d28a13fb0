"""Whether the tasks of a study can be asked, before anything is sealed or trained: names, contexts, examples, the text.

Neither the network nor a benchmark's data is needed, and the harness only for a name that is neither of the suite nor of the
benchmarks. What the harness finds in a task of its own, or in a YAML file, is seen when it is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ablationlab.core.errors import AblationLabError, DataError, PlanError
from ablationlab.data.corpus import TokenizedCorpus
from ablationlab.records.settings import EvaluationConfig
from ablationlab.tasks import benchmarks, suite
from ablationlab.tasks.build import expanded, is_file, missing_file
from ablationlab.tasks.passages import Passages


def check_tasks(asked: EvaluationConfig, contexts: Iterable[int]) -> None:
    """`PlanError` if a name is unknown, or a task does not fit a context of the study with its examples."""
    try:
        names = expanded(asked.tasks)
        for name in names:
            if is_file(name) and not Path(name).is_file():
                raise missing_file(name)
            for context in sorted(set(contexts)):
                _check_fit(name, asked.fewshot, context)
    except AblationLabError as error:
        raise PlanError(f"[evaluation]: {error}") from error


def _check_fit(name: str, fewshot: Sequence[int], context: int) -> None:
    if name in suite.KINDS:
        for k in fewshot:
            suite.room_for(suite.KINDS[name], context, k)
    elif name in benchmarks.CATALOGUE:
        benchmarks.check_context(name, context)


def check_text(asked: EvaluationConfig, contexts: Iterable[int], corpus: TokenizedCorpus) -> None:
    """`PlanError` if a task of the suite cannot be cut from the text; a few items of each are cut to see."""
    names = [name for name in expanded(asked.tasks) if name in suite.KINDS]
    if not names:
        return
    train, held_out = (Passages(text) for text in corpus.readable())
    for name in names:
        for context in sorted(set(contexts)):
            for k in asked.fewshot:
                try:
                    suite.check_items(name, train, held_out, context, k)
                except DataError as error:
                    text = f"[evaluation]: {error}; name the other tasks alone, or use another text"
                    raise PlanError(text) from error
