"""The exceptions a user can meet, and nothing else.

::

    AblationLabError            everything below; the command line prints it without a traceback
    ├── StudyError              the study file, or a --set, is wrong (carries every problem at once)
    │   └── PublishedError      a published table to replicate is wrong (likewise)
    ├── UnknownNameError        a name that is in no registry (carries what is allowed and the nearest match)
    ├── CodeError               a study's own code (`use`) cannot be run, or registers what cannot be
    ├── DataError               a corpus cannot be fetched, read or used
    ├── PlanError               the sealed plan does not fit what is asked of it
    ├── MismatchError           two arms differ in something their variants did not declare
    ├── RecordError             a file of ours on disk is damaged, foreign or of another version
    ├── StorageError            the disk is full or the folder cannot be written
    ├── StatisticsError         the numbers given cannot answer the question
    ├── TableError              runs that a user brings (a CSV file, lm-eval samples) cannot be used
    ├── ExportError             a model that the target format cannot express
    └── RunFailure              a run could not be trained
        ├── OutOfMemory         a step does not fit on its device (says which micro-batch to set)
        └── WorkerDied          a worker process was killed
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, Self

#: Of more names than this, an error lists those most like the one that was given.
_MOST_ALLOWED = 12


class AblationLabError(Exception):
    """Anything that the user can fix; its text says what, where and how."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors come back from workers, whatever their constructors take."""
        return _remade, (type(self), self.args, self.__dict__)


def _remade(kind: type[AblationLabError], args: tuple[Any, ...], state: dict[str, Any]) -> AblationLabError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


#: What a problem says of a value of another type.
WRONG_TYPE: Final = "has the wrong type"
#: What a reader of study files looks closer at; all other problems have no kind.
ProblemKind = Literal["unknown-key", "unknown-name", "table-for-value"]


@dataclass(frozen=True)
class Problem:
    """One thing wrong with one key: its value, what is allowed, and the nearest match."""

    key: str
    message: str
    value: str | None = None
    allowed: str | None = None
    nearest: str | None = None
    kind: ProblemKind | None = None

    @classmethod
    def unknown(cls, key: str, kind: str, name: str, allowed: Iterable[str]) -> Problem:
        known = list(allowed)
        shown = known
        if len(known) > _MOST_ALLOWED:
            alike = get_close_matches(name, known, n=_MOST_ALLOWED, cutoff=0)
            shown = [*(other for other in known if other in alike), f"and {len(known) - len(alike)} more"]
        return cls(key, f"unknown {kind}", repr(name), ", ".join(shown), nearest(name, known), "unknown-name")

    def under(self, prefix: str) -> Problem:
        """The same problem inside a table."""
        return replace(self, key=f"{prefix}.{self.key}" if self.key else prefix)

    def __str__(self) -> str:
        text = f"{self.key}: {self.message}" if self.key else self.message
        if self.value is not None:
            text += f" (got {self.value if len(self.value) <= 200 else f'{self.value[:200]}…'})"
        if self.nearest:  # before a list that may be long
            text += f"; did you mean {self.nearest!r}?"
        if self.allowed:
            allowed = shortened(self.allowed)
            text += f" (allowed: {allowed})" if self.nearest else f"; allowed: {allowed}"
        return text


#: Problems that a message lists, at most.
_MOST_PROBLEMS = 50


class StudyError(AblationLabError):
    """A study that cannot be run as written; holds every problem found, not only the first."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = [f"  - {problem}" for problem in problems[:_MOST_PROBLEMS]]
        lines += [f"  - and {len(problems) - len(lines)} more"] if len(problems) > len(lines) else []
        super().__init__(f"{source}: {count}\n" + "\n".join(lines))


class PublishedError(StudyError):
    """A published table that cannot be compared with results as it is written; holds every problem found."""


class UnknownNameError(AblationLabError, ValueError):
    """A name that a registry does not hold.

    Where there are too many names to list, *known* describes them and *like* has those that may be meant, best match first.
    """

    def __init__(
        self, kind: str, name: str, allowed: Iterable[str], *, known: str = "", like: Sequence[str] | None = None
    ) -> None:
        self.kind, self.name, self.allowed = kind, name, tuple(allowed)
        suggestion = nearest(name, self.allowed)
        self.like = tuple(like) if like is not None else (suggestion,) if suggestion else ()
        self.nearest = self.like[0] if self.like else None
        every = f"known: {known or shortened(', '.join(self.allowed))}"
        more = f" Or: {', '.join(self.like[1:])}" if len(self.like) > 1 else ""
        hint = f"did you mean {self.nearest!r}?{more} ({every})" if self.nearest else every
        super().__init__(f"unknown {kind} {name!r}; {hint}")


class CodeError(AblationLabError):
    """A file of ``use`` that cannot be run, or that registers something wrong; says the file and the line."""


class DataError(AblationLabError):
    """A corpus or tokenizer that cannot be fetched, read or used."""


class PlanError(AblationLabError):
    """A sealed plan that does not fit what is asked of it."""


class MismatchError(AblationLabError):
    """Two arms of a comparison differ in something that neither variant declared."""


class RecordError(AblationLabError):
    """A file on disk that is damaged, foreign or of another schema version: *path*, if it is one file, its *problem*, and the
    *advice* what to do. *joint*: what stands between path and problem, as in ``metrics.jsonl, line 3: ...``.
    """

    def __init__(self, problem: str, path: Path | None = None, advice: str = "", *, joint: str = " ") -> None:
        self.problem, self.path, self.advice, self.joint = problem, path, advice, joint
        super().__init__(self.text if path is None else f"{path}{joint}{self.text}")

    @property
    def text(self) -> str:
        """The problem and the advice, without the path."""
        return f"{self.problem}. {self.advice}" if self.advice else self.problem

    def mended_by(self, advice: str) -> Self:
        """The same error, which says what to do about it."""
        return type(self)(self.problem, self.path, advice, joint=self.joint)

    def seen_from(self, folder: Path) -> str:
        """The message, with the path below *folder*; of the folder itself, what is wrong with it."""
        if self.path is None or not self.path.is_relative_to(folder):
            return str(self)
        return self.text if self.path == folder else f"{self.path.relative_to(folder)}{self.joint}{self.text}"


class StorageError(AblationLabError):
    """The operating system refused to store a file."""


class StatisticsError(AblationLabError):
    """Numbers that cannot answer the question."""


class TableError(AblationLabError):
    """Runs that a user brings, in a CSV file or as lm-eval samples, with everything that is wrong with them."""

    def __init__(self, source: str, problems: Sequence[str], *, more: int = 0) -> None:
        """*more*: problems beside those that are listed."""
        self.source = source
        self.problems = (*problems, *([f"and {more} more"] if more else []))
        count = len(problems) + more
        head = f"{source}: {count} problem{'s' if count != 1 else ''}"
        super().__init__("\n".join([head, *(f"  - {problem}" for problem in self.problems)]))


class ExportError(AblationLabError):
    """A model that the target format cannot express."""


class RunFailure(AblationLabError):
    """At least one run was not trained to its end for a reason that is not a result."""


class OutOfMemory(RunFailure):
    """A step that does not fit on its device; no other run of the study fits either."""


class WorkerDied(RunFailure):
    """A worker process that ended in the middle of its work; *how* says by what."""

    def __init__(self, name: str, how: str) -> None:
        self.name, self.how = name, how
        super().__init__(f"a worker process ({name}) {how}; run the same command again to continue")


def shortened(names: str, most: int = 4000) -> str:
    """A list of names in a message, cut where it would fill pages."""
    return names if len(names) <= most else f"{names[:most].rpartition(', ')[0]} and more"


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """``; did you mean 'nearest'?`` behind a message; nothing when nothing is close."""
    guess = nearest(name, allowed)
    return f"; did you mean {guess!r}?" if guess else ""


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """The known name most like *name*, or one with a word that is; None when nothing is close."""
    known = [other for other in allowed if other != name]  # one that is there and of no use is no advice
    matches = get_close_matches(name, known, n=1, cutoff=0.6)
    if matches:
        return matches[0]
    words = {word: other for other in reversed(known) for word in re.split(r"[-_./]", other) if len(word) > 3}
    matches = get_close_matches(name, words, n=1, cutoff=0.8)
    return words[matches[0]] if matches else None
