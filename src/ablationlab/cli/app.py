"""The command `ablationlab`: its verbs, exit codes and error messages."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import sys
import textwrap
from difflib import get_close_matches

from cyclopts import (
    UNSET,
    App,
    ArgumentOrderError,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    UnknownOptionError,
    UnusedCliTokensError,
    ValidationError,
)

from ablationlab import __version__
from ablationlab.cli import analyze, browse, data, instrument, report, run
from ablationlab.cli.common import FAILED, OK, USAGE, takes_arguments
from ablationlab.cli.stopping import leave_if_stopped
from ablationlab.core.errors import AblationLabError, RunFailure
from ablationlab.core.format import printable


def _default(value: object) -> str | None:
    """A default in the help; that a flag is off and a list empty goes without saying."""
    return None if value in (False, (), None, "") else str(value)


app = App(
    name="ablationlab",
    default_parameter=Parameter(show_default=_default),
    version=__version__,
    help=(
        "Does this change to a GPT help, at equal compute? One study file becomes paired, budget-matched, multi-seed "
        "training runs, and a verdict with its evidence.\n\n"
        "Start with: ablationlab run studies/quick.toml\n\n"
        "Add --debug to any command to see a traceback instead of the short message."
    ),
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # `stopping.py` handles it
)
for group in (run, browse, data, analyze, report, instrument):
    group.register(app)


def main(arguments: list[str] | None = None) -> None:
    """Exit codes are 0 done, 1 runs failed, 2 a mistake in the input; 130 and 143 if it is stopped (`stopping.py`)."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in tokens
    tokens = [token for token in tokens if token != "--debug"]  # noqa: S105
    if debug:
        os.environ["ABLATIONLAB_DEBUG"] = "1"
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="replace")  # a sign that the terminal lacks is no reason to fail

    def tell(text: str) -> None:  # without rich, which imports more as it prints: memory may have ended
        print(fitted(f"error: {printable(text)}"), file=sys.stderr)

    try:
        sys.exit(app(tokens, exit_on_error=False, print_error=False, result_action="return_value") or OK)
    except CycloptsError as error:
        if debug:
            raise
        tell(f"{_usage(error)}\nSee: {_help_of(error)}")
        sys.exit(USAGE)
    except AblationLabError as error:
        leave_if_stopped()
        if debug:
            raise
        tell(str(error))
        sys.exit(FAILED if isinstance(error, RunFailure) else USAGE)
    except BrokenPipeError:
        sys.exit(OK)
    except Exception as error:
        leave_if_stopped()
        if debug:
            raise
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            tell(f"{str(error.filename)[:60]}...: no file has a name that long")
            sys.exit(USAGE)
        from ablationlab.core.code import place_of

        place, what = place_of(error), f"{type(error).__name__}: {error}"
        if place is not None:  # the study's own code raised, outside of a run: while its parts are counted, say
            tell(f"{place}: {what}")
            sys.exit(USAGE)
        why = "This looks like a bug in ablationlab; --debug shows where."
        if any(words in what for words in _NO_MEMORY):
            why = (
                "This machine, or a limit set on it, has no memory left. What was finished before is intact; free some, or "
                "use fewer --workers, and run the same command again."
            )
        tell(f"{what}\n{why}")
        sys.exit(FAILED)


def fitted(text: str) -> str:
    """A message in lines that fit the terminal, or COLUMNS; broken between words alone, and indented as they were."""
    if not (os.environ.get("COLUMNS") or sys.stderr.isatty()):
        return text
    width = shutil.get_terminal_size().columns
    lines = []
    for line in text.split("\n"):
        mark = re.match(r" *(?:- )?", line)
        further = " " * (0 if mark is None else mark.end())
        lines += textwrap.wrap(
            line, max(20, width), subsequent_indent=further, break_long_words=False, break_on_hyphens=False
        ) or [""]
    return "\n".join(lines)


#: What Python, torch and the system say where memory ends, here or in a worker.
_NO_MEMORY = (
    "MemoryError",
    "not enough memory",
    "out of memory",
    "can't start new thread",
    "Cannot allocate memory",
    "failed to map segment",
)


def _help_of(error: CycloptsError) -> str:
    """The help of the verb that was meant."""
    return " ".join(["ablationlab", *(error.command_chain or ()), "--help"])


#: How much alike an option that is suggested must be, as difflib counts it: less has nothing to do with what was meant.
_ALIKE = 0.7
_KINDS: dict[object, str] = {int: "a whole number", float: "a number"}


def _usage(error: CycloptsError) -> str:
    """In the form of our own errors: the option, the value, what is allowed; or which argument is missing or too many."""
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        if error.argument.index is not None:  # as the usage names it
            return f"{error.argument.name.removeprefix('--').upper()} is missing"
        return f"{error.argument.name} {'is missing, or ' if error.argument.required else ''}has no value"
    if isinstance(error, UnusedCliTokensError | ArgumentOrderError):
        given = error.token if isinstance(error, ArgumentOrderError) else " ".join(error.unused_tokens or ())
        if error.target is not None and not takes_arguments(error.target):
            return f"`{' '.join(['ablationlab', *(error.command_chain or ())])}` takes no name or path: {given}"
        return f"one argument too many, or in the wrong order: {given}"
    if isinstance(error, UnknownOptionError):
        given = (error.token.keyword or error.token.value).partition("=")[0]
        options = [name for argument in error.argument_collection for name in argument.names if name.startswith("--")]
        alike = get_close_matches(given.strip("-"), [name.strip("-") for name in options], n=1, cutoff=_ALIKE)
        return f"unknown option {given}" + "".join(f"; did you mean --{name}?" for name in alike)
    if isinstance(error, CoercionError) and error.token is not None and error.argument is not None:
        value, kind = error.token.value, _KINDS.get(error.target_type)
        if kind is not None:
            return f"{error.argument.name} {value}: expected {kind}"
        if value in ("gpu", "nvidia") and error.argument.name == "--device":
            return f"--device {value}: a GPU is called cuda here; allowed: auto, cpu, cuda"
    if isinstance(error, ValidationError) and error.argument is not None:
        value = error.argument.value if error.value is UNSET else error.value
        text = error.exception_message.rstrip(".")
        return f"{error.argument.name} {value}: {text[:1].lower()}{text[1:]}"
    return str(error)
