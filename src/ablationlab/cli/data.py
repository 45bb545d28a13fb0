"""Verbs over large texts: preparing them, and looking at what was prepared."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from ablationlab.core.errors import DataError
from ablationlab.core.terminal import console as make_console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from ablationlab.data.prepare import PrepareProgress
    from ablationlab.data.prepared import Manifest
    from ablationlab.records.settings import DataConfig

_PLAIN_SECONDS = 15.0


def register(app: App) -> None:
    """Add the verbs to the data app."""
    app.command(prepare)
    app.command(verify)
    app.command(overlap)


def prepare(
    inputs: Annotated[
        list[str], Parameter(help="Named corpora, or one file or folder of .txt, .jsonl (both also .gz) or .parquet.")
    ],
    *,
    tokenizer: Annotated[str, Parameter(help="char, byte or gpt2.")] = "gpt2",
    out: Annotated[
        Path | None, Parameter(help="The prepared folder. Default for named corpora: the cache, where studies find it.")
    ] = None,
    workers: Annotated[int | None, Parameter(help="Processes that encode. Default: one per core.")] = None,
    text_key: Annotated[str, Parameter(help="Key (.jsonl) or column (.parquet) that holds the text.")] = "text",
    shard_tokens: Annotated[int | None, Parameter(help="Tokens of a shard, about.")] = None,
    exact_duplicates: Annotated[
        bool, Parameter(negative="", help="Leave out documents that were seen before, character by character.")
    ] = False,
    near_duplicates: Annotated[
        float | None,
        Parameter(help="Leave out documents whose estimated similarity to an earlier one is at least this, say 0.8."),
    ] = None,
) -> int:
    """Tokenize a large text once, in parallel, into shards with checksums. Safe to repeat: it goes on where it was.

    Every document is followed by the token that ends a document. A study names the folder as data.corpus, or several of them
    with weights in [data.mixture].
    """
    from ablationlab.data.corpus import cache_settings
    from ablationlab.data.documents import open_documents
    from ablationlab.data.prepare import SHARD_TOKENS
    from ablationlab.data.prepare import prepare as make
    from ablationlab.data.prepared import PrepareSettings, cached_folder
    from ablationlab.data.sources import SOURCES

    console = make_console()
    _check_workers(workers)
    settings = PrepareSettings(
        tokenizer=tokenizer,
        shard_tokens=SHARD_TOKENS if shard_tokens is None else shard_tokens,
        text_key=text_key,
        exact_duplicates=exact_duplicates,
        near_duplicates=near_duplicates,
    )
    if out is not None and len(inputs) > 1:
        raise DataError("--out takes one input; prepare each into a folder of its own, and mix them in the study")
    for name in inputs:
        source = open_documents(name, text_key)
        if out is None and (name not in SOURCES or settings != cache_settings(tokenizer)):
            raise DataError(f"{name}: say where with --out; only named corpora with default settings go to the cache")
        folder = out if out is not None else cached_folder(SOURCES[name], settings)
        with _display(console, name) as report, _stoppable(console, folder):
            made = make(source, settings, folder, processes=workers or _cores(), report=report)
        console.print(_summary(made, folder), markup=False, highlight=False, soft_wrap=True)
    return 0


def verify(folder: Annotated[Path, Parameter(help="A prepared folder.")]) -> int:
    """Take the checksum of every shard of a prepared folder again, and show its manifest."""
    from ablationlab.data.prepared import open_prepared

    found = open_prepared(folder, verify_all=True)
    make_console().print(_summary(found.manifest, folder), markup=False, highlight=False, soft_wrap=True)
    return 0


def overlap(
    study: Annotated[Path, Parameter(help="A study file with a mixture.")],
    *,
    workers: Annotated[int | None, Parameter(help="Processes that compare. Default: one per core.")] = None,
) -> int:
    """Look for text that the corpora of a mixture have in common, in parallel, and show what was found.

    The outcome is kept in the cache. Planning or running the study looks for it in the same way where it is not there.
    """
    from ablationlab.data.corpus import load_corpus
    from ablationlab.report.terminal.data import overlap_table, shared_text
    from ablationlab.study.load import load_study

    console = make_console()
    _check_workers(workers)
    data = load_study(study).data
    if data.mixture is None or len(data.mixture) < 2:
        raise DataError(f"{study}: data.corpus = {data.corpus!r} is no mixture of several corpora: nothing to compare")
    compare(data, workers)
    found = load_corpus(data).record
    console.print(overlap_table(found))
    console.print(shared_text(found).strip(), markup=False, highlight=False, soft_wrap=True)
    return 0


def compare(data: DataConfig, workers: int | None) -> None:
    """Have the text that the corpora of a mixture share found, in parallel, and kept; progress is shown if there is any."""
    from ablationlab.data.corpus import load_mixture
    from ablationlab.data.prepare import PrepareProgress

    if data.mixture is None or len(data.mixture) < 2:
        return
    with ExitStack() as display:
        shown: list[Callable[[PrepareProgress], None]] = []

        def report(share: float) -> None:
            if not shown:
                shown.append(display.enter_context(_display(make_console(), "shared text")))
            shown[0](PrepareProgress(share))

        load_mixture(data, processes=workers or _cores(), report=report)


def _check_workers(workers: int | None) -> None:
    if workers is not None and workers < 1:
        raise DataError(f"--workers {workers}: at least one process is needed")


def _cores() -> int:
    from ablationlab.study.plan import usable_cores

    return usable_cores()


def _summary(made: Manifest, folder: Path) -> str:
    per_token = made.text_bytes / max(1, made.tokens)
    text = (
        f"{made.name}: {made.documents:,} documents, {made.tokens:,} tokens ({made.tokenizer.name}, {made.dtype}), "
        f"{made.text_bytes:,} bytes of text ({per_token:.2f} a token), {len(made.shards)} shard(s)"
    )
    dropped = made.duplicates
    if dropped.exact or dropped.near is not None:
        text += (
            f"; left out {dropped.exact_removed:,} exact, {dropped.near_removed:,} near duplicates ({dropped.rate:.2%})"
        )
    return f"{text}\n  in {folder}"


@contextmanager
def _stoppable(console: Console, folder: Path) -> Iterator[None]:
    """Ctrl-C ends with a word on what there is."""
    try:
        yield
    except KeyboardInterrupt:
        finished = len(list(folder.glob("shard-*.bin"))) if folder.is_dir() else 0
        said = f"Interrupted. {folder} has {finished} finished shard(s); the same command goes on behind them."
        console.print(said, markup=False, highlight=False, soft_wrap=True)
        raise


@contextmanager
def _display(console: Console, name: str) -> Iterator[Callable[[PrepareProgress], None]]:
    """A bar in a terminal, a rare line elsewhere."""
    if not console.is_terminal:
        yield _Lines(console, name).hear
        return
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bar(*columns, TextColumn("{task.fields[said]}"), console=console) as bar:
        task = bar.add_task(name, total=1.0, said="")

        def hear(now: PrepareProgress) -> None:
            bar.update(task, completed=now.share, said=_said(now))

        yield hear
        bar.update(task, completed=1.0)


class _Lines:
    def __init__(self, console: Console, name: str) -> None:
        self.console, self.name, self.last = console, name, time.monotonic()

    def hear(self, now: PrepareProgress) -> None:
        """A line now and then."""
        if time.monotonic() - self.last > _PLAIN_SECONDS:
            self.last = time.monotonic()
            self.console.print(
                f"{self.name}: {', '.join(filter(None, [f'{now.share:.0%}', _said(now)]))}",
                markup=False,
                highlight=False,
            )


def _said(now: PrepareProgress) -> str:
    if not now.documents:
        return ""
    return f"{now.documents:,} documents, {now.tokens:,} tokens, {now.shards} shard(s)"
