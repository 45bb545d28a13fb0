"""Verbs that look around (ls, show, diff, open), and those that begin a study (init, schema). Heavy imports happen inside."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from ablationlab.cli.common import FAILED, Form, Positive, Printer, Quiet, ResultsPath, Several, add, print_study
from ablationlab.core.errors import AblationLabError
from ablationlab.core.paths import did_you_mean_beside, real_path, user_path

if TYPE_CHECKING:
    from ablationlab.report.terminal.details import Part
    from ablationlab.report.terminal.differences import StudyPlace

Place = Annotated[Path, Parameter(help="A study file, a plan.lock, a results folder, or a study's bare name.")]


def register(app: App) -> None:
    """Add these verbs to the command."""
    for verb in (init, schema, ls, show, diff):
        add(app, verb)
    add(app, open_, name="open")


def init(
    file: Annotated[Path | None, Parameter(help="The study file to write. Default: <name>.toml.")] = None,
    *,
    name: Annotated[str | None, Parameter(help="The study's name. Default: the file's.")] = None,
    question: Annotated[str | None, Parameter(help="The question it asks.")] = None,
    baseline: Annotated[str | None, Parameter(help="The arm that the others are compared with. Default: none.")] = None,
    variants: Annotated[
        tuple[str, ...],
        Several,
        Parameter(
            help="The changes to try: names (`ablationlab variants`), or settings such as training.weight_decay=0.0. "
            "Default: rmsnorm."
        ),
    ] = (),
    seeds: Annotated[int | None, Parameter(validator=Number(gte=1), help="How many seeds. Default: 5.")] = None,
    looks: Annotated[
        str | None,
        Parameter(
            help="Numbers of seeds, as 10,18, up to which `ablationlab extend` may go on and stay registered; or none. "
            "Default: twice the seeds, and what closes the guard of failures."
        ),
    ] = None,
    corpus: Annotated[
        str | None, Parameter(help="A named text (`ablationlab data list`) or a file. Default: tiny-shakespeare.")
    ] = None,
    steps: Annotated[
        int | None, Parameter(validator=Number(gte=1), help="Training steps per run. Default: 300.")
    ] = None,
    lr: Annotated[float | None, Positive, Parameter(help="Peak learning rate. Default: 0.001.")] = None,
    metric: Annotated[str | None, Parameter(help="The metric that decides. Default: validation_loss.")] = None,
    smallest_effect: Annotated[
        float | None, Positive, Parameter(help="Smallest difference in the metric that matters. Default: 0.01.")
    ] = None,
) -> int:
    """Write a commented study file that runs. On a terminal it asks for what you do not give as an option.

    Also writes study.schema.json, with which editors complete and check the file. Existing files are not overwritten.
    """
    from ablationlab.records.settings import looks_like_path
    from ablationlab.study.starter import DEFAULTS, default_looks, question_of, starter, write_starter

    given: dict[str, Any] = {
        "name": name or (file.stem if file is not None else None),
        "question": question,
        "baseline": baseline,
        "variants": variants or None,
        "seeds": seeds,
        "looks": looks,
        "corpus": corpus,
        "steps": steps,
        "lr": lr,
        "metric": metric,
        "smallest_effect": smallest_effect,
    }
    printer = Printer()
    asks = sys.stdin.isatty() and printer.console.is_terminal
    defaults = DEFAULTS | ({"question": question_of(variants)} if variants else {})
    answers: dict[str, Any] = {}
    for key, value in given.items():
        default = _listed(default_looks(answers["seeds"])) if key == "looks" else defaults[key]
        answers[key] = value if value is not None else _asked(printer, key, default) if asks else default
    answers["looks"] = _numbers(answers["looks"])
    target = file if file is not None else Path(f"{answers['name']}.toml")
    if looks_like_path(answers["corpus"]) and target.parent != Path():  # typed here, read there
        answers["corpus"] = os.path.relpath(user_path(answers["corpus"]), target.parent)
    text = starter(**answers, folder=target.parent)
    schema_file = write_starter(target, text)
    printer.text(f"Written: {target}, {schema_file}.")
    printer.command("Cost and runs:", f"ablationlab plan {target}")
    printer.command("Start:", f"ablationlab run {target}")
    return 0


def _listed(looks: tuple[int, ...]) -> str:
    return " ".join(map(str, looks)) or "none"


def _numbers(text: str) -> tuple[int, ...]:
    """Later looks as a command line gives them: 10,18, or none."""
    words = [] if text.strip() == "none" else text.replace(",", " ").split()
    if any(not word.isdecimal() for word in words):
        raise AblationLabError(f"--looks {text!r}: give numbers of seeds, as 10,18, or none")
    return tuple(map(int, words))


def _asked(printer: Printer, key: str, default: Any) -> Any:
    """The answer of a user, in the default's type; asked again until it fits."""
    from ablationlab.study.starter import QUESTIONS

    shown = " ".join(default) if isinstance(default, tuple) else default
    while True:
        answer = printer.console.input(f"{QUESTIONS[key]} [{shown}]: ", markup=False).strip()
        if not answer:
            return default
        if isinstance(default, tuple):
            return tuple(answer.replace(",", " ").split())
        try:
            if key == "looks":
                _numbers(answer)
            return type(default)(answer)
        except (ValueError, AblationLabError):
            printer.text(f"  {answer!r} is not a number")


def schema(*, out: Annotated[Path | None, Parameter(help="Write it there. Default: print it.")] = None) -> int:
    """Print the JSON schema of study files, for editors. A first line `#:schema ./study.schema.json` makes them use it."""
    from ablationlab.records.storage import replace
    from ablationlab.study.starter import schema_text

    if out is None:
        sys.stdout.write(schema_text())
    else:
        replace(out, schema_text().encode())
        Printer().text(f"Written to {out}")
    return 0


def ls(folder: Annotated[Path, Parameter(help="Where to look.")] = Path()) -> int:
    """List the studies and results under a folder: how far each is, and what it decided."""
    from ablationlab.report.listing import listing
    from ablationlab.report.terminal.listing import listing_view

    if not folder.is_dir():
        problem = "not a folder" if folder.exists() else f"no such folder{did_you_mean_beside(folder)}"
        raise AblationLabError(f"{folder}: {problem}")
    printer = Printer()
    printer.parts(*listing_view(listing(folder), printer.console.width))
    return 0


def show(
    place: Annotated[
        Path,
        Parameter(
            help="A study's results folder, file or bare name. Or a run's folder (results/<study>/runs/<id>), its id, or the "
            "beginning of its id."
        ),
    ],
    *,
    guards: Annotated[bool, Parameter(negative="", help="Of a study: every guard.")] = False,
    tasks: Annotated[bool, Parameter(negative="", help="Of a study: scores by task.")] = False,
    probes: Annotated[bool, Parameter(negative="", help="Of a study: every probe, last measured.")] = False,
    rates: Annotated[bool, Parameter(negative="", help="Of a study: its sweep.")] = False,
    all_: Annotated[bool, Parameter(name="--all", negative="", help="Of a study: every table.")] = False,
    form: Form = "table",
    quiet: Quiet = False,
) -> int:
    """Show the answer of a study, or one run; safe while it trains.

    Exit code 1 if files that it reads are damaged: they are named.
    """
    from ablationlab.report.terminal.run import run_view
    from ablationlab.study.find import find_run, is_study, run_damage

    printer = Printer()
    if (folder := is_study(place)) is not None:
        asked: dict[Part, bool] = {"guards": guards, "tasks": tasks, "probes": probes, "rates": rates, "all": all_}
        return _show_study(printer, folder, [part for part, wanted in asked.items() if wanted], form, quiet)
    found = find_run(place)
    printer.parts(*run_view(*found, printer.console.width))
    damaged = run_damage(*found)
    for line in damaged:
        printer.text(line)
    return FAILED if damaged else 0


def _show_study(printer: Printer, folder: Path, parts: list[Part], form: str, quiet: bool) -> int:
    from ablationlab.analysis.conclusion import decided_again
    from ablationlab.records.results import Results

    results = decided_again(Results.open(folder))
    if results.analysis is None or results.verdict is None:
        damaged = [f"{damage.file}: {damage.text}" for damage in results.problems]
        why = "; ".join(damaged) or "not analyzed yet"
        raise AblationLabError(f"{folder}: {why}. `ablationlab analyze {folder}` makes the answer")
    print_study(printer, results, parts=parts, form=form, quiet=quiet)
    for damage in results.problems:
        printer.text(f"{damage.file}: {damage.text}")
    return FAILED if results.problems else 0


def diff(a: Place, b: Place) -> int:
    """Show how two studies, plans or results differ: settings, versions, results and verdicts.

    Exit code 1 if files of the results are damaged or were altered: they are named.
    """
    from ablationlab.report.terminal.differences import differences_view

    printer = Printer()
    places = _open_place(a), _open_place(b)
    printer.parts(*differences_view(*places))
    damaged = [line for place in places for line in _place_damage(place)]
    for line in damaged:
        printer.text(line)
    return FAILED if damaged else 0


def _open_place(given: Path) -> StudyPlace:
    """Whatever of a study is at that path or under that name."""
    from ablationlab.analysis.conclusion import decided_again
    from ablationlab.records.plan import Plan
    from ablationlab.records.results import Results
    from ablationlab.report.terminal.differences import StudyPlace
    from ablationlab.study.load import load_study
    from ablationlab.study.places import find_study, folder_without_code

    if given.is_file() and given.name == "plan.lock":
        plan = Plan.read(given)
        return StudyPlace(given, plan.study, plan)
    path = find_study(given)
    path = folder_without_code(path) or path
    if path.is_dir():
        results = decided_again(Results.open(path))
        return StudyPlace(path, None if results.plan is None else results.plan.study, results.plan, results)
    return StudyPlace(path, load_study(path))


def _place_damage(place: StudyPlace) -> list[str]:
    """What is wrong with the files of results that are compared, a line each."""
    from ablationlab.analysis.wording import stale as stale_words

    if place.results is None:
        return []
    damaged = [f"{place.path / damage.file}: {damage.text}" for damage in place.results.problems]
    stale = [stale_words(reason) for reason in place.results.stale if reason.code != "damaged"]
    return damaged + [f"{place.path}: {words}. `ablationlab analyze` analyzes what is there now" for words in stale]


def open_(
    results: ResultsPath,
    *,
    part: Annotated[Literal["page", "paper"], Parameter(help="What to open.")] = "page",
) -> int:
    """Open the page of a study in a browser, or print its path if there is no browser.

    RESULTS may also be an archive of records, as docs/gallery has them. A page that is not there is written first.
    """
    import webbrowser

    from ablationlab.records.results import Results
    from ablationlab.study.places import find_results

    printer = Printer()
    folder = find_results(results)
    path = folder / ("report.html" if part == "page" else "paper.pdf")
    if not path.exists():
        if not folder.is_dir():
            raise AblationLabError(f"{folder}: no such folder")
        Results.open(folder)  # or it says what the folder lacks
        if part == "paper":
            raise AblationLabError(f"{folder}: no {path.name}; write it with: ablationlab report {folder}")
        from ablationlab.report.make import make_report

        make_report(folder, parts=("page",), say=printer.text)
    try:
        opened = webbrowser.open(real_path(path).as_uri())
    except (webbrowser.Error, OSError):
        opened = False
    printer.text(f"Opened {path}" if opened else str(real_path(path)), wrap=False)
    return 0
