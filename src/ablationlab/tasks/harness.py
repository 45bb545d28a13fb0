"""lm-evaluation-harness, kept quiet."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The harness's and datasets' own talk is held back; their exceptions are not."""
    from lm_eval import evaluator

    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    # It would ask git and the system about themselves on every call, for a second or two; our records say these things.
    asked = {name: getattr(evaluator, name) for name in ("get_git_commit_hash", "add_env_info")}
    for name in asked:
        setattr(evaluator, name, lambda *_: None)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, function in asked.items():
            setattr(evaluator, name, function)
        logging.disable(level)
