"""Metrics and units in words: one spelling for terminal, page, figures, tables and paper."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ablationlab.records.analysis import Comparison
from ablationlab.records.metrics import METRICS

#: Words of metric names that are not in small letters.
_NAMES = {"ece": "ECE", "brier": "Brier"}
#: Where a reader needs more than the name.
_WHOLE = {
    "lr": "learning rate",
    "curve_loss": "validation loss (curve)",
    "loss": "training loss",
    "ece": "calibration error (ECE)",
}


def metric_name(name: str, task: str | None = None) -> str:
    """A metric in words, with its task where it has one."""
    words = _WHOLE.get(name) or " ".join(_NAMES.get(word, word) for word in name.split("_"))
    return words if task is None else f"{words}, {task}"


def metric_of(comparison: Comparison) -> str:
    """The metric of a comparison in words."""
    return metric_name(comparison.metric, comparison.task)


def metric_meaning(name: str) -> str:
    """What the registry says of a metric; empty for a user's own."""
    return METRICS[name].meaning if name in METRICS else ""


def unit_of(name: str, unit: str | None = None) -> str:
    """The unit as it is printed; empty for a pure number."""
    known = unit if unit is not None else METRICS[name].unit if name in METRICS else ""
    return "" if known == "1" else known


def axis(name: str, *, prefix: str = "", unit: str | None = None) -> str:
    """An axis title with its unit."""
    shown = unit_of(name, unit)
    text = f"{prefix}{metric_name(name)}"
    return f"{text} ({shown})" if shown else text


def in_sentence(text: str, metrics: Iterable[str], words: Callable[[str], str] = metric_name) -> str:
    """A sentence with *metrics* in words; a name of one word is left, since it may be just a word."""
    names = sorted((name for name in metrics if "_" in name), key=len, reverse=True)
    if not names:
        return text
    pattern = rf"\b(?:{'|'.join(map(re.escape, names))})\b"
    return re.sub(pattern, lambda match: words(match[0]), text)  # all at once: nothing is replaced twice
