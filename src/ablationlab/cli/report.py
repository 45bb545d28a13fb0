"""The verbs that show: report, watch. Heavy imports happen inside them."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from ablationlab.core.errors import AblationLabError
from ablationlab.core.terminal import console as make_console

if TYPE_CHECKING:
    from rich.console import Console

Results = Annotated[Path, Parameter(help="A results folder: results/<study>.")]


def register(app: App) -> None:
    """Add these verbs to the command."""
    for verb in (report, watch):
        app.command(verb)


def report(
    results: Results,
    *,
    out: Annotated[Path | None, Parameter(help="Where the report goes. Default: RESULTS.")] = None,
    only: Annotated[
        tuple[Literal["page", "figures", "tables", "paper"], ...],
        Parameter(negative="", consume_multiple=False, help="Just this part; may be repeated. Default: all of them."),
    ] = (),
    tensorboard: Annotated[
        Path | None, Parameter(help="Also write the runs' numbers as TensorBoard event files into this new folder.")
    ] = None,
) -> int:
    """Turn records, analysis and verdict into report.html, figures, tables and paper.pdf. Offline, without torch.

    Where the analysis is missing or not that of the records, it is made anew first. A study that is not finished gives an
    interim report, marked as such.
    """
    console = make_console()
    if tensorboard is not None:
        from ablationlab.report.tensorboard import Mirror

        mirror = Mirror(results, tensorboard)
        steps = mirror.update()
        mirror.close()
        console.print(f"{steps:,} steps as event files in {tensorboard}", markup=False, highlight=False)
    show(results, console, out, only)
    return 0


def show(
    results: Path,
    console: Console,
    out: Path | None = None,
    only: tuple[Literal["page", "figures", "tables", "paper"], ...] = (),
) -> None:
    """Write the report and say where it is."""
    from ablationlab.report.make import PARTS, make_report

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    written = make_report(results, out, parts=only or PARTS, say=say)
    say("Written: " + ", ".join(str(path) for path in written) if written else "Nothing was written.")


def show_at_the_end(results: Path, console: Console) -> None:
    """The last step of `run`: records and verdict are safe on disk, so a report that cannot be written fails nothing."""
    try:
        show(results, console)
    except AblationLabError as error:
        text = f"No report: {error}\nThe study is done; make its report with: ablationlab report {results}"
        console.print(text, markup=False, highlight=False)


def watch(
    results: Results,
    *,
    port: Annotated[int, Parameter(help="Port to listen on; 0 takes a free one.")] = 8642,
    host: Annotated[
        str | None,
        Parameter(help="Address to listen on. Default: 127.0.0.1, which only this machine can reach."),
    ] = None,
    tensorboard: Annotated[
        Path | None, Parameter(help="Also mirror the runs' numbers, as they come, into TensorBoard event files here.")
    ] = None,
) -> int:
    """Serve a page that follows a study while it runs: progress, curves, warnings. Read-only; Ctrl-C stops it.

    What it shows is interim and no inference: the test was registered for all of the runs.
    """
    from ablationlab.report.watch import Watcher, is_loopback

    if not 0 <= port <= 65535:
        raise AblationLabError(f"--port {port}: must lie between 0 and 65535")
    console = make_console()
    mirror = None
    if tensorboard is not None:
        from ablationlab.report.tensorboard import Mirror

        mirror = Mirror(results, tensorboard)
    asked: list[int] = []

    def hear(number: int, _: object) -> None:
        asked.append(number)  # should the exception be lost on its way, the loop still finds this
        raise KeyboardInterrupt

    def between() -> None:
        if asked:
            raise KeyboardInterrupt
        if mirror is not None:
            mirror.update()

    # A shell starts background commands deaf to Ctrl-C, and Python leaves it so; this one is meant to hear it.
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, hear)
    try:
        with Watcher(results, host or "127.0.0.1", port) as server:
            lines = [f"Watching {results} at {server.address}  (Ctrl-C stops it)"]
            if not is_loopback(server.host):
                lines.append("Whoever can reach this machine on that port can read this study's curves and settings.")
            lines.append("What it shows is interim and no inference.")
            for line in lines:
                console.print(line, markup=False, highlight=False, soft_wrap=True)
            server.also = between
            server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        console.print("Stopped.", markup=False)
    finally:
        if mirror is not None:
            mirror.close()
    return 0
