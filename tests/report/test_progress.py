"""What a user sees while runs are trained, in a terminal and in a file."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.text import Text

from ablationlab.data.corpus import load_corpus
from ablationlab.evaluation.loop import seconds_left
from ablationlab.report import progress as progress_module
from ablationlab.report.progress import LiveDisplay, PlainDisplay, _Counter, display_for
from ablationlab.report.table import Table
from ablationlab.stats.spikes import EarlyWarning
from ablationlab.study.load import parse_study
from ablationlab.study.plan import make_plan
from ablationlab.training.executors.job import Event
from ablationlab.training.progress import Progress


@pytest.fixture
def plan(study_table):
    study = parse_study(study_table({"seeds": [1]}))
    return make_plan(study, load_corpus(study.data), "cpu")


def progress(stack=0, step=6, start=0, **changes) -> Event:
    numbers = {"runs": 1, "diverged": 0, "loss": 3.25, "gradient_norm": 0.5, "tokens_per_second": 1234.5, "note": ""}
    return Event("progress", stack, Progress(stack=stack, start=start, step=step, steps=12, **{**numbers, **changes}))


def console(width: int = 80, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)


def test_no_control_character_of_a_text_reaches_the_terminal(capsys):
    out = progress_module.console()
    out.print(Text("a\x1b[31mb\x07\u202ec\x9b2J\n", style="bold"))
    out.print(Table.simple("t\x1b[2J", ["x"], [("y\x1b]0;z\x07",)], []).terminal())
    printed = capsys.readouterr().out
    assert printed.startswith("a\ufffd[31mb\ufffdc\ufffd2J\n")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", printed)


def test_the_time_that_scoring_takes_is_told_without_that_of_its_start():
    # Two processes import and build tasks for 40 s, then each run takes 10 s.
    ended = [50.0, 50.0, 60.0, 60.0, 70.0, 70.0]
    assert seconds_left(ended[:1], 20, 2) == pytest.approx(25 * 19)  # 100 s are left: too much, not twenty times
    assert seconds_left(ended[:4], 20, 2) == pytest.approx(10 / 3 * 16)
    assert seconds_left(ended, 20, 2) == pytest.approx(4 * 14)


def test_a_file_gets_plain_lines_and_not_one_per_event(plan):
    out = console(200)
    with display_for(out, plan, 0) as display:
        assert isinstance(display, PlainDisplay)
        for step in range(1, 12):
            display.hear(progress(step=step))
        display.hear(Event("done", 0))
    lines = out.file.getvalue().splitlines()
    assert len(lines) == 2
    assert re.fullmatch(r"\[3 %\]  none-s1 step 1 of 12  loss 3\.2500  \|g\| 0\.500  1,234 tok/s", lines[0])
    assert lines[1] == "none-s1: done"


def test_a_terminal_of_80_columns_shows_all_numbers_of_a_run_and_the_time_left(plan):
    out = console(80, terminal=True)
    with display_for(out, plan, 0) as display:
        assert isinstance(display, LiveDisplay)
        display.hear(progress(step=6))
        display.live.refresh()
        text = out.file.getvalue()
    assert "6/36" in text
    assert "steps, left" in text
    line = next(line for line in text.splitlines() if "none-s1" in line)
    for part in ("6/12", "loss 3.2500", "|g| 0.500", "1,234 tok/s"):
        assert part in line


@pytest.mark.parametrize("terminal", [False, True])
def test_an_early_warning_gets_a_line_of_its_own_and_does_not_cost_the_numbers_theirs(plan, terminal):
    warnings = (
        EarlyWarning("none-s1-ab", 47, "loss", 8.3, 2.6, 31.2),
        EarlyWarning("none-s2-cd", 46, "gradient-norm", 40.0, 0.5, 8.0),
    )
    out = console(160, terminal=terminal)
    with display_for(out, plan, 0) as display:
        display.hear(progress(step=6, warnings=warnings))
        if isinstance(display, LiveDisplay):
            display.live.refresh()
    text = out.file.getvalue()
    assert text.count("early warning") == 1
    assert "early warning: none-s1-ab, step 47: loss rising, 2.60 -> 8.30 (31 noise SDs); none-s2-cd, step 46:" in text
    assert "gradient norm jumping to 40.0 (8.0 noise SDs)" in text
    assert any("loss 3.2500" in line and "warning" not in line for line in text.splitlines())


def test_an_early_warning_keeps_to_the_width_of_a_file(plan):
    out = console(80)
    with display_for(out, plan, 0) as display:
        display.hear(
            progress(step=6, warnings=(EarlyWarning("layernorm-hot-s1-0123abcd", 47, "loss", 8.3, 2.6, 31.2),))
        )
    warned = out.file.getvalue().partition("early warning")[2]
    assert "(31\nnoise SDs)" in warned
    assert max(map(len, f"early warning{warned}".splitlines())) <= 80


def test_a_resumed_run_counts_what_was_there_before_and_not_as_speed(plan):
    display = PlainDisplay(console(200), plan, 0)
    display.hear(progress(step=8, start=6))
    assert display.counter.done == 8
    assert display.counter.fresh == 2


def test_runs_trained_elsewhere_fill_the_bar_too(plan):
    display = PlainDisplay(console(200), plan, 0)
    for stack in range(3):
        display.hear(Event("elsewhere", stack))
    assert display.counter.done == 36
    assert "trained by another process" in display.console.file.getvalue()


def test_waiting_stopping_failing_and_diverging_are_said(plan):
    display = PlainDisplay(console(200), plan, 0)
    display.hear(Event("waiting", 0, "4711"))
    display.hear(Event("stopping", -1))
    display.hear(Event("failed", 1, "first line\nlast line"))
    display.hear(progress(diverged=1))
    text = display.console.file.getvalue()
    assert "Another process is training all that is left (4711)" in text
    assert "Stopping at the next step boundary" in text
    assert "layernorm-s1: not trained: last line" in text
    assert "1 diverged" in text


def test_a_run_named_like_markup_is_shown_as_text(plan):
    strange = plan.model_copy(update={"stacks": (("[bold]x[/bold]-s1-00000000",), *plan.stacks[1:])})
    display = PlainDisplay(console(200), strange, 0)
    display.hear(Event("busy", 0))
    display.hear(Event("failed", 0, "[red]why[/red]"))
    assert "[bold]x[/bold]-s1: not trained: [red]why[/red]" in display.console.file.getvalue()


def test_the_time_left_is_measured_from_the_first_step_that_was_seen(plan):
    counter = _Counter(plan, 0)  # three runs of 12 steps
    counter.hear(progress(step=1), now=100.0)  # imports took 100 s
    assert counter.left() is None
    counter.hear(progress(step=6), now=105.0)  # one step per second
    assert counter.left() == pytest.approx(30.0)


def test_steps_on_disk_count_as_done_and_not_as_speed(plan):
    counter = _Counter(plan, 12)
    counter.hear(progress(stack=1, step=7, start=6), now=0.0)
    counter.hear(progress(stack=1, step=9, start=6), now=4.0)  # two seconds per step
    assert counter.left() == pytest.approx(2 * (36 - 12 - 9))


@pytest.mark.parametrize("terminal", [False, True])
def test_first_steps_of_two_stacks_a_moment_apart_are_no_speed(plan, terminal, monkeypatch):
    clock = iter([100.0, 100.01, 110.0, 110.01])  # a step takes ten seconds in each of two workers
    monkeypatch.setattr("ablationlab.report.progress.time", SimpleNamespace(monotonic=lambda: next(clock)))
    display = (LiveDisplay if terminal else PlainDisplay)(console(200, terminal), plan, 0)
    for stack in (0, 1):
        display.hear(progress(stack=stack, step=1))
    assert display.counter.left() is None
    for stack in (0, 1):
        display.hear(progress(stack=stack, step=2))
    assert display.counter.left() == pytest.approx(32 * 10 / 2)  # 4 of 36 are done, two at a time
    if terminal:
        (overall,) = display.total.tasks
        assert overall.fields["left"] == "3 min"
