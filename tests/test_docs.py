"""The documentation: the generated reference is complete, and what the tutorial and the README show is true."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from ablationlab.core.errors import StudyError
from ablationlab.core.meanings import meanings
from ablationlab.records.analysis import StabilityGain
from ablationlab.records.plan import Plan
from ablationlab.records.settings import TrainingConfig
from ablationlab.records.storage import ResultsFolder
from ablationlab.study.load import load_study, parse_study
from ablationlab.study.starter import study_schema
from analysis.builder import calm, write_run
from conftest import run_cli

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"


@pytest.fixture(scope="module")
def reference():
    name = "reference_of_the_documentation"
    spec = importlib.util.spec_from_file_location(name, DOCS / "generate" / "reference.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    text = (REPOSITORY / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def test_every_setting_has_a_meaning_a_type_and_an_example(reference):
    incomplete = [
        f"{setting.table}.{setting.key}"
        for setting in reference.all_settings()
        if not (setting.meaning and setting.type and setting.example)
    ]
    assert incomplete == []


def test_an_example_of_the_reference_is_accepted_in_a_study(reference):
    tables = ("model", "training", "stability", "evaluation", "execution", "budget")
    refused = set()
    for setting in reference.all_settings():
        if setting.table in tables:
            study: dict[str, Any] = {
                "name": "mine",
                "question": "Does it help?",
                "baseline": "none",
                "variants": ["none", "rmsnorm"],
                "seeds": [1, 2, 3],
                "model": {"preset": "char-mini"},
                "training": {"batch": 64, **({} if setting.key in ("steps", "tokens") else {"steps": 300})},
            }
            study[setting.table] = study.get(setting.table, {}) | tomllib.loads(setting.example)
            try:
                parse_study(study)
            except StudyError:
                refused.add(setting.key)
    # Parts of one's own code, and what needs another setting beside it.
    assert refused == {"loss_terms", "options", "front", "head_init_std", "redraw"}


def test_the_reference_says_which_settings_are_required_and_the_usage_that_the_terminal_prints(reference, cli):
    default = {(setting.table, setting.key): setting.default for setting in reference.all_settings()}
    assert default["", "name"] == default["criteria", "metric"] == "*required*"
    assert default["", "use"] == default["", "question"] == "–"
    assert default["training", "clip"] == "`1.0`"
    page = reference.commands_page()
    for words in (("paper",), ("ls",), ("data", "prepare")):
        usage = cli(*words, "--help")[1].splitlines()[0].removeprefix("Usage: ")
        assert f"```sh\n{usage}\n```" in page


def test_every_key_of_a_study_file_is_in_the_reference(reference):
    schema = study_schema()
    keys = {("", key) for key in schema["properties"]}
    keys |= {
        (table, key)
        for table, kind in reference.TABLES.items()
        if kind in schema["$defs"]
        for key in schema["$defs"][kind]["properties"]
    }
    assert keys <= {(setting.table, setting.key) for setting in reference.all_settings()}
    assert set(schema["$defs"]) <= set(reference.TABLES.values())


def test_a_meaning_is_the_string_below_a_field_or_its_comment():
    assert meanings(TrainingConfig)["lr"] == "Peak learning rate."


def test_editors_get_the_meaning_of_a_setting():
    training = study_schema()["$defs"]["TrainingConfig"]["properties"]
    assert training["lr"]["description"] == "Peak learning rate."


def test_every_option_of_every_verb_is_explained(reference):
    rows = re.findall(r"^\| `(\S+).*\| (.*) \|$", reference.commands_page(), flags=re.MULTILINE)
    assert len(rows) > 100
    assert [option for option, meaning in rows if not meaning.strip()] == []


def test_every_field_of_every_record_has_a_meaning(reference):
    kinds = [*reference.record_kinds(), *reference.record_parts()]
    fields = [(kind, name) for kind in kinds for name in reference._fields_of(kind)]
    assert len(fields) > 900
    assert [f"{kind.__name__}.{name}" for kind, name in fields if not reference.field_meaning(kind, name)] == []
    inherited = ("n", "rescued", "reference_unstable", "variant_unstable")
    assert set(inherited) <= set(reference._fields_of(StabilityGain)), "fields of a base are stored, too"


#: How a meaning begins -> what the field's type must then be, at least in part.
OPENINGS = {
    "whether ": r"bool|Sensitivity|Equivalence|Compatibility|Literal",
    "number of ": r"\bint\b|Rule",
    "SHA-256 of ": r"\bstr\b",
    "ids of ": r"tuple",
    "how often ": r"Rate|dict|tuple|int",
    "why, ": r"str|Reason|Literal|Absence|Instability",
    "seeds that ": r"tuple|int",
    "confidence level": r"float",
    "name of the ": r"str",
}


def test_a_meaning_that_names_a_kind_of_value_stands_beside_a_field_of_that_kind(reference):
    """Meanings are found by the field's name, so one that fits another record with that name would stand here."""
    wrong = []
    for kind in [*reference.record_kinds(), *reference.record_parts()]:
        for name, field in reference._fields_of(kind).items():
            meaning, written = reference.field_meaning(kind, name), reference._annotation(field.annotation)
            wrong += [
                f"{kind.__name__}.{name}: {written}: {meaning}"
                for opening, fits in OPENINGS.items()
                if meaning.lower().startswith(opening.lower()) and not re.search(fits, written)
            ]
    assert wrong == []


def test_the_reference_lists_names_and_fields(reference):
    names, records = reference.names_page(), reference.records_page()
    for name in ("validation_loss", "layernorm-token", "char-mini", "muon", "tiny-shakespeare", "last-word"):
        assert f"| `{name}` |" in names
    for kind in ("plan", "run", "result", "checkpoint", "evaluation", "analysis", "verdict"):
        assert f"## `kind: {kind}`" in records
    assert "| `matmul_flops` |" in records
    assert "`more stable`" in records, "codes have their values"
    assert r"\*" not in records, "names in docstrings are code"


def test_every_optimizer_and_schedule_of_the_reference_has_its_own_rule(reference):
    rules = re.findall(
        r"^\| `training\.(?:optimizer|schedule)` \| `[\w-]+` \|(.*)\|$", reference.names_page(), re.MULTILINE
    )
    assert len(rules) == 10
    assert all(rule.strip("| ") for rule in rules)
    assert len(set(rules)) == len(rules)


def test_no_text_of_the_reference_breaks_off_before_its_formula(reference):
    cells = [cell.strip() for line in reference.names_page().splitlines() for cell in line.split(" | ")]
    assert len(cells) > 500
    assert [cell for cell in cells if cell.strip("| ").endswith(":")] == []


def test_every_relative_link_works_on_github():
    """The site's own links are checked by `make docs`."""
    dead = []
    written = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "dev").rglob("*.md"), *DOCS.glob("*.md")]
    for page in [*written, DOCS / "gallery" / "README.md"]:
        for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            if re.match(r"\w+:", link):
                continue
            if not target.exists() or (anchor and anchor not in anchors(target)):
                dead.append(f"{page.relative_to(REPOSITORY)}: {link}")
    assert dead == []


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page, where no two are equal."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_import_that_a_page_shows_works():
    shown = [
        (page.name, module, name)
        for page in [*REPOSITORY.glob("*.md"), *DOCS.glob("*.md")]
        for block in blocks(str(page.relative_to(REPOSITORY)), "python")
        for module, names in re.findall(r"^from (ablationlab[\w.]*) import ([\w, ]+)$", block, flags=re.MULTILINE)
        for name in names.split(", ")
    ]
    assert len(shown) > 2
    assert [line for line in shown if not hasattr(importlib.import_module(line[1]), line[2])] == []


def contributing_table(heading: str) -> list[list[str]]:
    """The rows of the table below a heading of CONTRIBUTING.md, cell by cell."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def in_the_repository(path: str) -> Path:
    """CONTRIBUTING.md gives paths inside the package, or from the root of the repository."""
    package = REPOSITORY / "src" / "ablationlab" / path
    return package if package.exists() else REPOSITORY / path


def defined(file: Path, name: str) -> bool:
    """Whether a file defines a name, such as ``Stack`` or ``Stack.save``; in a template, whether it sets it."""
    if file.suffix != ".py":
        return re.search(rf"\b{name} =", file.read_text()) is not None
    found: list[ast.stmt] = [ast.parse(file.read_text())]
    for part in name.split("."):
        found = [each for parent in found for each in getattr(parent, "body", []) if part in names_of(each)]
    return bool(found)


def names_of(statement: ast.stmt) -> set[str]:
    """What a statement defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


@pytest.mark.parametrize(("heading", "rows"), [("The path of one run", 12), ("Ten usual changes", 10)])
def test_the_files_and_names_that_contributing_gives_are_in_the_code(heading, rows):
    table = contributing_table(heading)
    assert [len(row) for row in table] == [3] * rows
    absent, without_a_name = [], []
    for row in table:
        places = [span.partition(": ") for cell in row[1:] for span in re.findall(r"`([^`]+)`", cell)]
        places = [(path, names) for path, _, names in places if re.fullmatch(r"[\w./-]*(/|\.\w+)", path)]
        places = [(path, names) for path, names in places if names or "/" in path]  # not a file of results
        for path, names in places:
            file = in_the_repository(path)
            absent += [] if file.exists() else [path]
            absent += [
                f"{path}: {name}" for name in names.split(", ") if file.is_file() and name and not defined(file, name)
            ]
        without_a_name += [] if any(names for _, names in places) else [row[0]]
    assert (absent, without_a_name) == ([], [])


def test_every_path_that_contributing_names_is_there():
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", text)
    assert len(paths) > 20
    assert [path for path in paths if not in_the_repository(path).exists()] == []


def test_pre_commit_runs_the_ruff_of_the_constraints():
    hooks = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())["repos"]
    revisions = {repository["repo"].rpartition("/")[2]: repository["rev"] for repository in hooks}
    pinned = re.search(r"^ruff==(.+)$", (REPOSITORY / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert revisions == {"ruff-pre-commit": f"v{pinned[1]}"}


def test_the_citation_is_of_this_version():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert (citation["title"], citation["version"]) == (project["name"], project["version"])
    assert citation["abstract"] == project["description"]


def test_the_readme_stays_short():
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 125


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_the_first_study_of_a_page_loads(page, tmp_path):
    (tmp_path / "my.txt").write_text("To be, or not to be, that is the question.\n" * 200)
    (tmp_path / "mine.toml").write_text(blocks(page, "toml")[0])
    study = load_study(tmp_path / "mine.toml")
    assert (study.name, study.variants, study.seeds) == ("mine", ("none", "rotary"), (1, 2, 3, 4, 5))


def test_the_tutorials_commands_run(tmp_path):
    """Every command of the tutorial, in order, with few and short runs."""
    for number, text in enumerate(blocks("docs/tutorial.md", "toml")):
        tomllib.loads(text)
        (tmp_path / ("mine.toml" if number == 0 else f"part-{number}.toml")).write_text(text)
    shutil.copy(DOCS / "findings.md", tmp_path / "my.txt")
    settings = ("training.steps=12", "training.warmup=2", "model.layers=1", "model.width=8")
    short = [word for setting in settings for word in ("--set", setting)]
    ran = []
    for line in "".join(blocks("docs/tutorial.md", "sh")).splitlines():
        words = shlex.split(line, comments=True)
        if not words or words[0] != "ablationlab" or words[1] == "open":  # `open` would start a browser
            continue
        options = short if words[1] in ("plan", "run") else []
        options += ["--no-report"] if words[1] in ("run", "extend") else []
        ended = run_cli(*words[1:], *options, folder=tmp_path, env={"COLUMNS": "80"})
        assert ended.returncode == 0, f"{line}\n{ended.stderr}"
        if words[1] == "extend":  # its results are those of short runs; that it is exploratory is not
            assert [row for row in shown("docs/tutorial.md", line) if "exploratory 1 of 1" in row]
            assert "exploratory 1 of 1" in ended.stdout
        ran.append(words[1])
    assert {"plan", "run", "status"} <= set(ran)


#: Loss and accuracy of the runs whose output the tutorial shows, by variant and seed.
TUTORIAL = {
    "none": ((2.45408, 0.31657), (2.47558, 0.31879), (2.45224, 0.32034), (2.45127, 0.32179), (2.45545, 0.31873)),
    "rotary": ((2.19899, 0.3979), (2.19002, 0.39475), (2.19848, 0.39021), (2.19163, 0.3979), (2.19032, 0.39855)),
}


def shown(page: str, after: str, outputs: int = 1) -> list[str]:
    """The lines of output that a page shows behind a command, less those that stand for others."""
    text = (REPOSITORY / page).read_text()
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    place = next(number for number, (_, block) in enumerate(fenced) if after in block.splitlines())
    printed = [block for language, block in fenced[place:] if not language][:outputs]
    return [line for block in printed for line in block.splitlines() if line not in ("", "...")]


def without_numbers(line: str) -> str:
    return " ".join(re.sub(r"\d[\d,.]*", "#", line).split())


def test_the_tutorial_shows_what_its_commands_print(tmp_path):
    """With the results of the runs that were trained for it, so that a changed word, head or digit shows. The plan depends
    on the text, which is this documentation: there numbers are left out."""
    (tmp_path / "mine.toml").write_text(blocks("docs/tutorial.md", "toml")[0])
    shutil.copy(DOCS / "findings.md", tmp_path / "my.txt")
    at_80 = {"COLUMNS": "80"}
    planned = run_cli("plan", "mine.toml", folder=tmp_path, env=at_80)
    lines = {without_numbers(line) for line in planned.stdout.splitlines()}
    assert [
        line for line in shown("docs/tutorial.md", "ablationlab plan mine.toml") if without_numbers(line) not in lines
    ] == []

    folder = tmp_path / "results" / "mine"
    plan = Plan.of(ResultsFolder(folder))
    for run in plan.runs:
        loss, accuracy = TUTORIAL[run.variant][run.seed - 1]
        write_run(folder, plan, run, {"validation_loss": loss, "next_token_accuracy": accuracy}, calm(run.seed))
    for command, options in (
        ("ablationlab run mine.toml", ["--no-report", "--accept-drift"]),
        ("ablationlab power mine.toml --from results/mine", []),
    ):
        ended = run_cli(*shlex.split(command)[1:], *options, folder=tmp_path, env=at_80)
        assert ended.returncode == 0, ended.stderr
        printed = ended.stdout.splitlines()
        assert [line for line in shown("docs/tutorial.md", command) if line not in printed] == []


def test_the_page_on_power_shows_what_the_command_prints():
    command = 'ablationlab power studies/quick.toml --set "seeds=[1,2,3,4,5]" --sd 0.0061'
    ended = run_cli(*shlex.split(command)[1:], folder=REPOSITORY, env={"COLUMNS": "160"})
    assert ended.returncode == 0, ended.stderr
    printed = ended.stdout.splitlines()
    quoted = shown("docs/analysis.md", command)
    assert len(quoted) == 4
    assert [line for line in quoted if line not in printed] == []


def test_the_worked_example_prints_what_the_page_quotes(tmp_path):
    page = (DOCS / "statistics.md").read_text()
    runs = re.findall(r"^\| `([\w-]+)`[^|]*\| ([\d. |]+) \| [\d.]+ \|$", page, flags=re.MULTILINE)
    assert [variant for variant, _ in runs] == ["none", "qk-norm", "wide-init"]
    rows = [f"{variant},{seed},{x}" for variant, row in runs for seed, x in enumerate(row.split(" | "), start=1)]
    (tmp_path / "runs.csv").write_text("\n".join(["variant,seed,val_loss", *rows]))
    command = next(line for block in blocks("docs/statistics.md", "sh") for line in block.splitlines())
    ended = run_cli(*shlex.split(command)[1:], folder=tmp_path, env={"COLUMNS": "120"})
    quoted = shown("docs/statistics.md", command)
    assert len(quoted) == 10
    assert [line for line in quoted if line not in ended.stdout.splitlines()] == []
