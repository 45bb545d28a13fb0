"""Ctrl-C and SIGTERM: one message, the exit code that a shell expects (128 + the signal), no traceback.

Training has handlers of its own while it lasts, which stop at a step (`training/executors/job.py`).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

_MESSAGES = {signal.SIGINT: "Interrupted.", signal.SIGTERM: "Terminated."}
#: Stops that came. A library that is being imported may swallow one, and fail later for what it then lacks.
_came: list[_Stopped] = []


class _Stopped(KeyboardInterrupt):
    """Unwinds as Ctrl-C does, so that what is open is closed and workers end."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number


@contextmanager
def stops_with_a_message() -> Iterator[None]:
    """For the life of this process, whose last words these are."""
    _handle(_stop)
    sys.unraisablehook = _unraisable
    try:
        yield
    except KeyboardInterrupt as stop:
        _leave(stop)
    except SystemExit:  # what is left is Python's own end
        leave_if_stopped()
        _handle(_stop_at_once)
        raise


def leave_if_stopped() -> None:
    """Before an error is told: it may be what is left of a stop."""
    if _came:
        _leave(_came[-1])


def _stop(number: int, frame: FrameType | None) -> None:
    """The first signal unwinds. A second Ctrl-C leaves at once; SIGTERM is sent twice by `timeout` and schedulers."""
    signal.signal(number, _stop_at_once if number == signal.SIGINT else signal.SIG_IGN)
    _came.append(_Stopped(signal.Signals(number)))
    raise _came[-1]


def _stop_at_once(number: int, frame: FrameType | None) -> None:
    _leave(_Stopped(signal.Signals(number)))


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """A stop that came inside a callback would be printed with its traceback, and then forgotten."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        _leave(unraisable.exc_value)
    sys.__unraisablehook__(unraisable)


def _leave(stop: KeyboardInterrupt) -> NoReturn:
    """Say it and end, without Python's own end, in which a library's thread may fail or hang."""
    _handle(signal.SIG_IGN)
    number = stop.number if isinstance(stop, _Stopped) else signal.SIGINT
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    with suppress(OSError, ValueError):
        print(_MESSAGES[number], file=sys.stderr, flush=True)
    os._exit(128 + number)


def _handle(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in _MESSAGES:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as shells set it for jobs in the background
            signal.signal(number, handler)
