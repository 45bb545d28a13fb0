"""Metrics and units in words: one spelling for terminal, page, figures, tables and paper."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ablationlab.records.analysis import Comparison

#: Words of metric names that are not in small letters.
_NAMES = {"ece": "ECE", "brier": "Brier"}
#: Where a reader needs more than the name.
_WHOLE = {
    "lr": "learning rate",
    "curve_loss": "validation loss (curve)",
    "ece": "calibration error (ECE)",
}


def metric_name(name: str, task: str | None = None) -> str:
    """A metric in words, with its task where it has one."""
    words = _WHOLE.get(name) or " ".join(_NAMES.get(word, word) for word in name.split("_"))
    return words if task is None else f"{words}, {task}"


def metric_of(comparison: Comparison) -> str:
    """The metric of a comparison in words."""
    return metric_name(comparison.metric, comparison.task)


def printed_unit(unit: str) -> str:
    """The unit as it is printed; empty for a pure number."""
    return "" if unit == "1" else unit


def axis(metric: str, unit: str) -> str:
    """An axis title: the metric in words, with its unit."""
    shown = printed_unit(unit)
    return f"{metric_name(metric)} ({shown})" if shown else metric_name(metric)


def in_sentence(text: str, metrics: Iterable[str]) -> str:
    """A sentence with *metrics* in words; a name of one word is left, since it may be just a word."""
    names = sorted((name for name in metrics if "_" in name), key=len, reverse=True)
    if not names:
        return text
    pattern = rf"\b(?:{'|'.join(map(re.escape, names))})\b"
    return re.sub(pattern, lambda match: metric_name(match[0]), text)  # all at once: nothing is replaced twice
