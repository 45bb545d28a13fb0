"""Verbs that hand results on: report, watch, export. Heavy imports happen inside them."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from ablationlab.cli.common import FAILED, Printer, ResultsPath, RunView, add
from ablationlab.core.format import count


def register(app: App) -> None:
    """Add these verbs to the command."""
    for verb in (report, paper, verify, watch, export):
        add(app, verb)


def report(
    results: ResultsPath,
    *,
    out: Annotated[Path | None, Parameter(help="Where the report goes. Default: RESULTS.")] = None,
    only: Annotated[
        tuple[Literal["page", "forest", "figures", "tables", "paper"], ...],
        Parameter(negative="", consume_multiple=False, help="Just this part; may be repeated. Default: all of them."),
    ] = (),
    tensorboard: Annotated[
        Path | None, Parameter(help="Also write the runs' numbers as TensorBoard event files into this new folder.")
    ] = None,
) -> int:
    """Turn records, analysis and verdict into report.html, figures, tables and paper.pdf. Offline, without torch.

    `--only forest` writes the answer as figures/forest.svg and .png, and both for a dark ground.

    If the analysis is missing or does not match the records, it is regenerated first. An unfinished study gives a report
    marked as interim. Exit code 1 if files of the study are damaged, or if a part that you ask for cannot be written.
    """
    from ablationlab.report.make import PARTS, make_report
    from ablationlab.study.places import find_results

    results = find_results(results)
    printer = Printer()
    if tensorboard is not None:
        from ablationlab.report.tensorboard import Mirror

        mirror = Mirror(results, tensorboard)
        steps = mirror.update()
        mirror.close()
        printer.text(f"{count(steps)} steps as event files in {tensorboard}")
    damaged: list[str] = []

    def warn(line: str) -> None:
        damaged.append(line)
        printer.text(line)

    with RunView(printer) as view:
        written = make_report(results, out, parts=only or PARTS, say=printer.text, warn=warn, step=view.writing)
    printer.text("Written:" if written else "Nothing was written.")
    printer.paths(*written)
    return FAILED if damaged or len(written) < len(set(only)) else 0


#: How a file that --out may mean ends, where a folder is wanted.
_PAPERS = (".pdf", ".tex", ".typ", ".md", ".html", ".doc", ".docx")


def paper(
    results: Annotated[
        tuple[Path, ...],
        Parameter(negative="", help="Results folders of one study or of several that belong together, in this order."),
    ],
    *,
    out: Annotated[Path, Parameter(help="The folder that gets paper.pdf, its sources and claims.json.")],
    title: Annotated[
        str,
        Parameter(
            help="Title. Default: the study's question; for several studies, # Title of the text, or their changes."
        ),
    ] = "",
    text: Annotated[
        Path | None,
        Parameter(
            help="Introduction, related work, references, title and names of the studies as Markdown. Default: those of the "
            "first study that has some."
        ),
    ] = None,
) -> int:
    """Write one paper about several studies: a PDF made by Typst, LaTeX source for IEEEtran, and claims.json.

    Methods that the studies share are described once. Results have a section per question, and one table and one figure
    show the answers of all studies. claims.json names the record, the field and the command behind each number in the
    text. With one study it is the paper of `ablationlab report`.
    """
    from ablationlab.core.errors import AblationLabError, StudyError
    from ablationlab.core.processes import require_memory
    from ablationlab.records.results import Results
    from ablationlab.records.settings import StudyText
    from ablationlab.report.convert import LEAST_MEMORY
    from ablationlab.report.make import with_analysis
    from ablationlab.report.paper import write_programme
    from ablationlab.study.places import find_results
    from ablationlab.study.text import read_text, text_problems

    require_memory(LEAST_MEMORY, "the paper")
    if out.suffix in _PAPERS and not out.is_dir():
        raise AblationLabError(f"--out {out}: name a folder; the paper is {out.parent / out.stem}/paper.pdf then")
    printer = Printer()
    own = None
    if text is not None:
        own = StudyText(**read_text(text, str(text)))
        if problems := list(text_problems(own)):
            raise StudyError(str(text), problems)
    if not results:
        raise AblationLabError("name at least one results folder: ablationlab paper RESULTS... --out DIR")
    studies = [with_analysis(Results.open(find_results(folder)), printer.text) for folder in results]
    written = write_programme(studies, out, title=title, text=own, say=printer.text)
    printer.text(f"Written: {written}")
    return 0


def verify(
    results: ResultsPath,
    *,
    deposited: Annotated[
        Path | None, Parameter(help="A copy of deposit.json that was kept elsewhere (ablationlab plan --timestamp).")
    ] = None,
) -> int:
    """Check the chain of hashes from the plan to the paper, every file of every run included, and print it.

    It finds accidents and careless edits. Against someone who recomputes every hash, only --deposited helps: a copy that
    others have dated. Files that runs may leave out to save space, such as weights, are listed as not kept. Files that are
    not part of the study are listed as unknown; no number comes from them, so the chain holds. Exit code 1 if a file
    differs or is missing.
    """
    from ablationlab.analysis.verify import chain
    from ablationlab.report.terminal.verified import chain_view
    from ablationlab.study.places import find_results

    printer = Printer()
    links = chain(find_results(results), deposited)
    for line in chain_view(links, printer.console.width):
        printer.console.print(line, highlight=False, soft_wrap=True)
    return FAILED if any(link.state in ("differs", "missing") for link in links) else 0


def watch(
    results: ResultsPath,
    *,
    port: Annotated[
        int, Parameter(validator=Number(gte=0, lte=65535), help="Port to listen on; 0 takes a free one.")
    ] = 8642,
    host: Annotated[
        str | None,
        Parameter(help="Address to listen on. Default: 127.0.0.1, which only this machine can reach."),
    ] = None,
    tensorboard: Annotated[
        Path | None,
        Parameter(help="Also write the runs' numbers, while they train, as TensorBoard event files."),
    ] = None,
) -> int:
    """Serve a live page of a study while it runs: progress, curves, warnings. Read-only; Ctrl-C stops it.

    The numbers are interim: draw no conclusions before all registered runs are done.
    """
    from ablationlab.report.slots import Slot, Statement
    from ablationlab.report.watch import Watcher, is_loopback
    from ablationlab.study.places import find_results

    results = find_results(results)
    printer = Printer()
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

    # A shell makes background commands ignore Ctrl-C, and Python leaves it so; this one must not.
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, hear)
    try:
        with Watcher(results, host or "127.0.0.1", port) as server:
            slots = {"folder": Slot(str(results)), "address": Slot(server.address)}
            codes = ["watch.serving", *([] if is_loopback(server.host) else ["watch.open"])]
            for code in codes:
                printer.text(Statement(code, slots).text, wrap=False)
            server.also = between
            server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        printer.text(Statement("watch.stopped").text)
    finally:
        if mirror is not None:
            mirror.close()
    return 0


def export(
    run: Annotated[Path, Parameter(help="A run's folder: results/<study>/runs/<id>.")],
    directory: Annotated[Path, Parameter(help="The folder to create.")],
) -> int:
    """Write a trained run as a folder that transformers' `AutoModelForCausalLM.from_pretrained` loads.

    It holds model.safetensors, config.json and the characters of the vocabulary. The settings of the model choose among
    GPT-2, Llama, Mistral, Qwen3, OLMo-2, Gemma-2, nanochat and GPT-NeoX. A model that fits none of them is refused, with the
    reason; `ablationlab.load(run)` gives any run as a torch module.
    """
    from ablationlab.training.export import export as write

    write(run, directory)
    Printer().text(f"Written to {directory}")
    return 0
