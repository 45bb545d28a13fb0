"""Metrics in words, alone and in a sentence: one spelling for page, figures, tables and paper."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ablationlab.records.analysis import Comparison
from ablationlab.records.metrics import METRICS

#: Words of metric names that are not spelled small.
_NAMES = {"ece": "ECE", "brier": "Brier"}


def metric_name(name: str, task: str | None = None) -> str:
    """A metric as a reader says it, with its task where it has one."""
    words = " ".join(_NAMES.get(word, word) for word in name.split("_"))
    return words if task is None else f"{words}, {task}"


def metric_of(one: Comparison) -> str:
    """The metric of a comparison."""
    return metric_name(one.metric, one.task)


def metric_meaning(name: str) -> str:
    """What the registry says of a metric; empty for a user's own."""
    return METRICS[name].meaning if name in METRICS else ""


def in_sentence(text: str, metrics: Iterable[str], words: Callable[[str], str] = metric_name) -> str:
    """A sentence with *metrics* named as one says them; a name of one word is left, since it may be just a word."""
    names = sorted((name for name in metrics if "_" in name), key=len, reverse=True)
    if not names:
        return text
    pattern = rf"\b(?:{'|'.join(map(re.escape, names))})\b"
    return re.sub(pattern, lambda found: words(found[0]), text)  # at once: no word is named twice
