"""What a user sees while runs are trained: a live display in a terminal, plain and rare lines elsewhere."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
)
from rich.segment import Segment

from ablationlab.core.format import amount, count, duration, number, percent, plain, printable
from ablationlab.records.plan import Plan

if TYPE_CHECKING:
    from ablationlab.stats.spikes import EarlyWarning
    from ablationlab.training.executors.job import Event

PLAIN_SECONDS = 15.0
FIRST_SECONDS = 3.0  # until a line says how long it takes


class Display(Protocol):
    """A context that hears events."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def hear(self, event: Event) -> None:
        """Show one event."""


#: Width of what goes to a file or a pipe, where COLUMNS does not say.
PIPED_WIDTH = 200


class TextConsole(Console):
    """Obeys no control character of a text; those of its own colours and links are none of a text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def console() -> Console:
    """A console as wide as the terminal; for a file or a pipe, as COLUMNS says."""
    made = TextConsole(emoji=False)
    return made if made.is_terminal or "COLUMNS" in os.environ else TextConsole(width=PIPED_WIDTH, emoji=False)


def display_for(console: Console, plan: Plan, done_steps: int) -> Display:
    """The display that fits where the output goes."""
    kind = LiveDisplay if console.is_terminal else PlainDisplay
    return kind(console, plan, done_steps)


def _total_steps(plan: Plan) -> int:
    return sum(run.steps or 1 for run in plan.runs)


def _label(plan: Plan, stack: int) -> str:
    members = plan.stacks[stack]
    first = members[0].rsplit("-", 1)[0]
    return first if len(members) == 1 else f"{first} and {len(members) - 1} more"


def _numbers(event: Event) -> str:
    now = event.payload
    if math.isnan(now.loss):
        return str(now.note)
    text = f"loss {number(now.loss, 5)}"
    text += "" if math.isnan(now.gradient_norm) else f"  |g| {number(now.gradient_norm)}"
    text += "" if math.isnan(now.tokens_per_second) else f"  {amount(now.tokens_per_second)} tok/s"
    text = plain(text + (f"  {now.diverged} diverged" if now.diverged else ""))
    return f"{text}  {now.note}" if now.note else text


class _Counter:
    """Run-steps done, over all stacks. Steps that were on disk before count as done and not as speed.

    The speed of a stack is measured from its first step that was seen: what came before it (imports, the first compilation)
    says nothing about the steps to come, and the first steps of two stacks, a moment apart, say nothing about either.
    """

    def __init__(self, plan: Plan, done_steps: int) -> None:
        self.plan, self.before = plan, done_steps
        self.total = _total_steps(plan)
        self.first: dict[int, int] = {}
        self.at: dict[int, int] = {}
        self._running: set[int] = set()
        self._ended: set[int] = set()
        self._at_once = 1  # stacks that were in training at the same time, at most
        self._seen: dict[int, tuple[float, int]] = {}  # when a stack was first heard of, and its step then
        self._latest: dict[int, float] = {}

    def hear(self, event: Event, now: float) -> None:
        stack = event.stack
        if event.kind == "progress":
            self._running.add(stack)
            self._at_once = max(self._at_once, len(self._running))
            if self.plan.run(self.plan.stacks[stack][0]).steps is None:
                return  # how many there will be is not known: the run counts when it ends
            self.first[stack] = event.payload.start
            self.at[stack] = event.payload.step
        elif event.kind in ("done", "elsewhere"):
            steps = self.plan.run(self.plan.stacks[stack][0]).steps or 1
            self.first.setdefault(stack, steps if event.kind == "elsewhere" else 0)
            self.at[stack] = steps
        if event.kind in ("done", "elsewhere", "failed", "stopped"):
            self._running.discard(stack)
            self._ended.add(stack)
        if stack in self.at:
            self._seen.setdefault(stack, (now, self.at[stack]))
            self._latest[stack] = now

    @property
    def fresh(self) -> int:
        return sum((self.at[s] - self.first[s]) * len(self.plan.stacks[s]) for s in self.at)

    @property
    def done(self) -> int:
        return self.before + sum(step * len(self.plan.stacks[s]) for s, step in self.at.items())

    def left(self) -> float | None:
        """Seconds to go if as many stacks as ever go on at their mean speed; None before one was seen at two steps."""
        steps = sum((self.at[s] - step) * len(self.plan.stacks[s]) for s, (_, step) in self._seen.items())
        seconds = sum(self._latest[s] - began for s, (began, _) in self._seen.items())
        if steps <= 0 or seconds <= 0:
            return None
        waiting = len(self.plan.stacks) - len(self._ended)
        return (self.total - self.done) * seconds / steps / max(1, min(self._at_once, waiting))


class LiveDisplay:
    """An overall bar with the time left, and one line per stack in training."""

    def __init__(self, console: Console, plan: Plan, done_steps: int) -> None:
        self.plan, self.counter = plan, _Counter(plan, done_steps)
        self.total = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("steps, left {task.fields[left]}"),
            console=console,
        )
        self.stacks = Progress(
            TextColumn("{task.description}", markup=False),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=console,
        )
        self.live = Live(Group(self.total, self.stacks), console=console, refresh_per_second=4)
        self.overall = self.total.add_task("all runs", total=_total_steps(plan), completed=done_steps, left="-")
        self.lines: dict[int, TaskID] = {}

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def hear(self, event: Event) -> None:
        """Move the bars."""
        self.counter.hear(event, time.monotonic())
        left = self.counter.left()
        self.total.update(
            self.overall, completed=self.counter.done, left="-" if left is None else plain(duration(left))
        )
        if event.kind == "progress":
            if event.stack not in self.lines:
                label = _label(self.plan, event.stack)
                self.lines[event.stack] = self.stacks.add_task(label, total=event.payload.steps, numbers="")
            self.stacks.update(self.lines[event.stack], completed=event.payload.step, numbers=_numbers(event))
        elif event.kind in ("done", "elsewhere", "failed", "stopped") and event.stack in self.lines:
            self.stacks.remove_task(self.lines.pop(event.stack))
        note = _sentence(self.plan, event)
        if note:
            self.live.console.print(note, markup=False, highlight=False)


class PlainDisplay:
    """One line per finished stack, and at most one every few seconds in between."""

    def __init__(self, console: Console, plan: Plan, done_steps: int) -> None:
        self.console, self.plan, self.counter = console, plan, _Counter(plan, done_steps)
        self.spoken, self.estimated = -math.inf, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def hear(self, event: Event) -> None:
        """Print a line where one is due."""
        now = time.monotonic()
        self.counter.hear(event, now)
        note = _sentence(self.plan, event)
        if note:
            self.console.print(note, markup=False, highlight=False, soft_wrap=event.kind != "progress")
        pause = PLAIN_SECONDS if self.estimated else FIRST_SECONDS
        if event.kind == "progress" and now - self.spoken >= pause and not math.isnan(event.payload.loss):
            self.spoken, self.estimated = now, self.counter.left() is not None
            known = self.plan.run(self.plan.stacks[event.stack][0]).steps is not None
            at = f"step {count(event.payload.step)}" + (f" of {count(event.payload.steps)}" if known else "")
            line = f"{self._overall()}  {_label(self.plan, event.stack)} {at}  {_numbers(event)}"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _overall(self) -> str:
        left = self.counter.left()
        text = "" if left is None else f", {duration(left)} left"
        return plain(f"[{percent(self.counter.done / self.counter.total)}{text}]")


def _warning(warning: EarlyWarning) -> str:
    what = f"loss rising, {number(warning.level)} ->" if warning.of == "loss" else "gradient norm jumping to"
    rise = f"{what} {number(warning.value)} ({number(warning.noise_sds, 2)} noise SDs)"
    return f"{warning.run}, step {warning.step}: {rise}"


def _sentence(plan: Plan, event: Event) -> str:
    """What deserves a line of its own."""
    if event.kind == "waiting":
        return f"Another process is training all that is left ({event.payload}); waiting for it."
    if event.kind == "resources":
        return f"The cluster has no room for a stack now ({event.payload} on one node); waiting for it."
    if event.kind == "stopping":
        return "Stopping at the next step boundary; a second Ctrl-C gives up at once."
    label = _label(plan, event.stack)
    if event.kind == "progress" and event.payload.warnings:
        return f"early warning: {'; '.join(map(_warning, event.payload.warnings))}"  # it names its runs
    if event.kind == "progress" and event.payload.note_kind == "notice":
        return f"{label}: {event.payload.note}"
    if event.kind == "done":
        return f"{label}: done"
    if event.kind == "elsewhere":
        return f"{label}: trained by another process"
    if event.kind == "retry":
        return f"{label}: {event.payload}; continuing from its checkpoint on another worker"
    if event.kind == "failed":
        return f"{label}: not trained: {str(event.payload).strip().splitlines()[-1]}"
    return ""
