"""The desk: the tasks of an evaluation as sheets, described, handed out as packed tokens, and marked.

All that the harness does is done at a desk, and none of it needs a model's weights; all that a device does is done by those
who ask (`unit.py`), and needs none of the harness. So desks may stand in processes of their own (`clerks.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ablationlab.data.corpus import TokenizedCorpus
from ablationlab.data.tokens import sample
from ablationlab.evaluation.answers import answers_of
from ablationlab.evaluation.harness import StackLM
from ablationlab.evaluation.ngrams import MOST, NgramScorer
from ablationlab.evaluation.posed import Answers, Posed
from ablationlab.evaluation.sheets import Sheet
from ablationlab.evaluation.text import ScoringTokens
from ablationlab.records.evaluation import SuiteTask, Weights
from ablationlab.tasks import TaskRequest, build_tasks


class Desk:
    """The sheets of one question, for models of one context, in this process."""

    def __init__(self, question: TaskRequest, corpus: TokenizedCorpus, context: int, root: Path) -> None:
        self._corpus, self._context = corpus, context
        self._scorer: NgramScorer | None = None
        self.text = ScoringTokens(corpus.tokenizer)
        asked = build_tasks(question, corpus, context, root)
        self.manager = asked.manager
        lm = StackLM(None, self.text, context)
        self.sheets = {task.name: Sheet(task, lm, question.items) for task in asked.tasks}

    def posed(self) -> list[Posed]:
        """Every task, as those who ask need it."""
        return [_posed(sheet) for sheet in self.sheets.values()]

    def mark(self, name: str, run: str, weights: Weights, answers: Any) -> Future[Answers]:
        """One run's answers to one task, in the order of its requests, marked."""
        done: Future[Answers] = Future()
        done.set_result(self.marked(name, run, weights, answers))
        return done

    def marked(self, name: str, run: str, weights: Weights, answers: Any) -> Answers:
        """The same, at once."""
        sheet = self.sheets[name]
        return answers_of(sheet, sheet.mark(answers), run, weights)

    def respond(self, name: str, lm: StackLM) -> Any:
        """Answers of the current member to a task that asks for more than log-probabilities."""
        return self.sheets[name].respond(lm)

    def describe(self, names: Collection[str]) -> list[SuiteTask]:
        """What can be said of tasks before any run is scored; n-grams answer those that offer choices."""
        return [self._described(sheet) for name, sheet in self.sheets.items() if name in names]

    def _described(self, sheet: Sheet) -> SuiteTask:
        asked, accuracies = sheet.asked, {}
        if sheet.offers is not None and sheet.continuations is not None:
            if self._scorer is None:
                self._scorer = NgramScorer(sample(self._corpus.train, MOST), self._corpus.record.vocabulary)
            scores = self._scorer.score(sheet.continuations)
            for number, name in enumerate(self._scorer.names):
                figures = sheet.mark(scores.answers(number)).figures
                if "acc" in figures:
                    accuracies[name] = figures["acc"]
        choices, chance = sheet.chance
        return SuiteTask(
            task=asked.task,
            template=asked.template,
            fewshot=asked.fewshot,
            version=asked.version,
            task_hash=asked.hash,
            source=asked.source,
            meaning=asked.meaning,
            items=len(sheet.items),
            choices=choices,
            chance=chance,
            ngrams=accuracies,
        )


def _posed(sheet: Sheet) -> Posed:
    asked = sheet.asked
    return Posed(asked.task, asked.template, asked.fewshot, asked.hash, asked.name, sheet.packed)
