"""init, schema, ls, show, diff, open, and the places that every verb takes."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import tomllib
import webbrowser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablationlab.analysis.stability import seeds_for_margin
from ablationlab.records.storage import ResultsFolder
from ablationlab.records.verdict import Answer
from ablationlab.stats.sequential import Looks
from ablationlab.study.load import load_study, parse_study
from ablationlab.study.starter import DEFAULTS, starter, study_schema
from analysis.builder import build, study

STUDIES = Path(__file__).parents[2] / "studies"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    from ablationlab.pipeline import conclude

    folder = tmp_path_factory.mktemp("built")
    build(folder, study(name="built"))
    conclude(folder)
    return folder


@pytest.fixture
def results(built, tmp_path):
    """results/built with its records, and the analysis of them."""
    return Path(shutil.copytree(built, tmp_path / "results/built"))


# --- init and schema --------------------------------------------------------------------------------------


def test_init_writes_a_study_that_loads_with_its_schema_beside_it(command, tmp_path):
    code, printed, _ = command(
        "init", "mine.toml", "--variants", "rmsnorm", "layernorm", "--seeds", "3", "--steps", "50"
    )
    assert code == 0
    assert "ablationlab run mine.toml" in printed
    made = load_study(tmp_path / "mine.toml")
    assert (made.name, made.variants, made.seeds) == ("mine", ("none", "rmsnorm", "layernorm"), (1, 2, 3))
    assert (made.training.steps, made.criteria[0].smallest_effect) == (50, 0.01)
    text = (tmp_path / "mine.toml").read_text()
    assert text.startswith("#:schema ./study.schema.json\n")
    assert json.loads((tmp_path / "study.schema.json").read_text()) == study_schema()


def test_init_never_overwrites_and_says_every_mistake_before_writing(command, tmp_path):
    (tmp_path / "mine.toml").write_text("precious")
    code, _, errors = command("init", "mine.toml")
    assert (code, (tmp_path / "mine.toml").read_text()) == (2, "precious")
    assert "is there already" in errors
    code, _, errors = command("init", "new.toml", "--variants", "rmsnrom", "--metric", "validation_los")
    assert code == 2
    assert "did you mean 'rmsnorm'?" in errors
    assert "did you mean 'validation_loss'?" in errors
    assert not (tmp_path / "new.toml").exists()


def test_init_refuses_a_text_that_is_not_there_and_a_study_without_a_change(command, tmp_path):
    code, _, errors = command("init", "new.toml", "--corpus", "nothere.txt", "--variants", "none")
    assert code == 2
    assert "corpus: no such file or folder (got 'nothere.txt')" in errors
    assert "variants: name a change to compare with the baseline 'none'" in errors
    (tmp_path / "text.txt").touch()
    assert "(got 'texts.txt'); did you mean 'text.txt'?" in command("init", "new.toml", "--corpus", "texts.txt")[2]
    assert not (tmp_path / "new.toml").exists()


def test_init_writes_the_path_of_a_text_as_it_is_seen_from_the_study_file(command, tmp_path):
    (tmp_path / "text.txt").write_text("To be, or not to be. " * 1000)
    (tmp_path / "studies").mkdir()
    assert command("init", "studies/mine.toml", "--corpus", "text.txt")[0] == 0
    assert load_study(tmp_path / "studies" / "mine.toml").data.corpus == str(tmp_path / "text.txt")


def test_init_asks_on_a_terminal(command, tmp_path, monkeypatch):
    from rich.console import Console

    answers = iter(["", "Does it?", "none", "layernorm, rmsnorm", "many", "4", "eight", "8, 18", "", "30", "", "", ""])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setattr(Console, "input", lambda *_, **__: next(answers))
    assert command("init")[0] == 0
    made = load_study(tmp_path / "my-study.toml")
    assert (made.question, made.seeds, made.training.steps) == ("Does it?", (1, 2, 3, 4), 30)
    assert made.design.looks == (4, 8, 18)
    assert made.variants == ("none", "layernorm", "rmsnorm")


@pytest.mark.parametrize("seeds", [1, 20, 21])
def test_a_starter_of_any_number_of_seeds_is_toml(seeds):
    given = tomllib.loads(starter(**{**DEFAULTS, "seeds": seeds}))["seeds"]
    assert given == (list(range(1, seeds + 1)) if seeds <= 20 else {"first": 1, "count": seeds})


@pytest.mark.parametrize(
    ("variants", "seeds", "metric", "variance"),
    [
        (8, 5, "validation_loss", "shared"),
        (7, 5, "validation_loss", "own"),
        (8, 4, "validation_loss", "own"),
        (8, 5, "mean_embedding_norm", "own"),
    ],
)
def test_a_starter_shares_the_variance_of_eight_variants(variants, seeds, metric, variance):
    names = (
        "layernorm",
        "rmsnorm",
        "layernorm-token",
        "sqrt-d",
        "rmsnorm-token",
        "untied",
        "center-only",
        "token-init-1",
    )
    names = names[:variants]
    text = starter(**{**DEFAULTS, "variants": names, "seeds": seeds, "metric": metric})
    (criterion,) = parse_study(tomllib.loads(text)).criteria
    assert (criterion.variance, criterion.correction) == (variance, {"shared": "bonferroni", "own": "holm"}[variance])


@given(st.integers(1, 40), st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_a_starter_offers_looks_from_the_planned_seeds_on(seeds, variants):
    names = ("layernorm", "rmsnorm", "layernorm-token", "sqrt-d", "rmsnorm-token")[:variants]
    made = parse_study(tomllib.loads(starter(**{**DEFAULTS, "variants": names, "seeds": seeds})))
    assert len(made.seeds) == seeds
    if seeds < 3:
        assert made.design is None
        return
    assert made.design.looks[0] == seeds
    levels = Looks(made.design.looks, made.design.spending).levels(0.05)
    assert levels[0] == pytest.approx(0.045)  # the planned seeds keep nearly all of it
    # The last look closes the guard of failures.
    assert seeds_for_margin(made.design, made.stability.margin, 0.05) <= made.design.looks[-1]
    assert len(made.later_seeds()) == made.design.looks[-1] - seeds


@pytest.mark.parametrize(("text", "looks"), [("10,18", (5, 10, 18)), ("9", (5, 9)), ("none", None)])
def test_init_takes_looks(command, tmp_path, text, looks):
    assert command("init", "mine.toml", "--looks", text)[0] == 0
    design = load_study(tmp_path / "mine.toml").design
    assert (None if design is None else design.looks) == looks


@pytest.mark.parametrize(("text", "says"), [("ten", "as 10,18, or none"), ("10,8", "increasing"), ("4", "increasing")])
def test_init_refuses_looks_that_are_none(command, text, says):
    code, _, errors = command("init", "mine.toml", "--looks", text)
    assert code == 2
    assert says in errors


def test_init_writes_a_table_for_every_setting_that_is_to_be_changed(command, tmp_path):
    code, _, _ = command("init", "mine.toml", "--variants", "training.weight_decay=0.0", "model.mlp=relu", "rmsnorm")
    assert code == 0
    study = load_study(tmp_path / "mine.toml")
    assert set(study.variants) == {"none", "weight-decay-0.0", "mlp-relu", "rmsnorm"}
    assert study.tables["weight-decay-0.0"].settings == {"training.weight_decay": 0.0}
    assert study.tables["mlp-relu"].settings == {"model.mlp": "relu"}
    assert study.question == "Does training.weight_decay=0.0 or model.mlp=relu or rmsnorm help?"
    code, _, errors = command("init", "wrong.toml", "--variants", "training.wait_decay=0.0")
    assert code == 2
    assert "did you mean 'weight_decay'?" in errors
    assert not (tmp_path / "wrong.toml").exists()


def test_the_schema_takes_every_study_of_ours_and_refuses_a_wrong_key():
    from jsonschema import Draft7Validator

    validator = Draft7Validator(study_schema())
    for path in sorted(STUDIES.glob("*.toml")):
        wrong = [
            f"{path.name}: {error.json_path} {error.message}"
            for error in validator.iter_errors(tomllib.loads(path.read_text()))
        ]
        assert wrong == []
    given = tomllib.loads((STUDIES / "quick.toml").read_text())
    given["training"]["lrr"] = 1
    assert any("lrr" in error.message for error in validator.iter_errors(given))


@pytest.mark.parametrize(
    "path", sorted((STUDIES.parent / "examples").rglob("*.toml")), ids=lambda path: path.parent.name
)
def test_the_schema_takes_every_example(path):
    from jsonschema import Draft7Validator

    assert [
        error.message for error in Draft7Validator(study_schema()).iter_errors(tomllib.loads(path.read_text()))
    ] == []


@pytest.mark.parametrize(
    ("example", "text", "wrong"),
    [
        ("own_code/study.toml", "use = [", "use = [1, "),
        ("variants/factors.toml", "[factors]", '[factors]\n"training.lr" = 0.1'),
        ("variants/tables.toml", "training.weight_decay", "training.weight_decayed"),
        ("plain_loop/study.toml", "metrics =", "metric ="),
        ("plain_loop/study.toml", 'val_loss = "lower"', 'val_loss = "down"'),
        ("variants/budget.toml", 'match = "flops"', 'match = "flop"'),
    ],
)
def test_the_schema_refuses_what_a_study_file_cannot_say(example, text, wrong):
    from jsonschema import Draft7Validator

    written = (STUDIES.parent / "examples" / example).read_text()
    assert text in written
    assert not Draft7Validator(study_schema()).is_valid(tomllib.loads(written.replace(text, wrong, 1)))


def test_schema_prints_itself_or_writes_a_file(command, tmp_path):
    code, printed, _ = command("schema")
    assert code == 0
    assert json.loads(printed) == study_schema()
    assert command("schema", "--out", "s.json")[0] == 0
    assert json.loads((tmp_path / "s.json").read_text()) == study_schema()


# --- ls ---------------------------------------------------------------------------------------------------


def test_ls_shows_results_with_their_answers_and_studies_without(command, tmp_path, results):
    (tmp_path / "studies").mkdir()
    for name in ("quick", "winners"):
        shutil.copy(STUDIES / f"{name}.toml", tmp_path / "studies")
    (tmp_path / "studies/broken.toml").write_text('name = "broken"\nbaseline = "none"\n')
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\n')
    (tmp_path / "deep.toml").write_text(f"seeds = {5000 * '['}")
    (tmp_path / "long.toml").write_text(f'baseline = "none"\nsteps = {"9" * 5000}')
    os.mkfifo(tmp_path / "pipe.toml")
    code, printed, _ = command("ls")
    assert code == 0
    line = next(line for line in printed.splitlines() if line.startswith("results/built"))
    assert "10 of 10" in line
    assert line.endswith("better: layernorm")
    counts = {line.split()[0]: line.split()[1] for line in printed.splitlines() if line.startswith("studies/")}
    assert counts["studies/quick.toml"] == "9"
    assert counts["studies/winners.toml"] == "378", "7 variants on 8 seeds, and the runs of the sweep"
    for name in ("broken", "long"):
        assert ": ablationlab plan" in next(line for line in printed.splitlines() if name in line)
    assert "pyproject" not in printed


def test_ls_names_folders_that_cannot_be_read_and_damaged_runs(command, tmp_path, results, monkeypatch):
    next((results / "runs").iterdir()).joinpath("result.json").write_text("{")
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "plan.lock").symlink_to("plan.lock")
    (tmp_path / "closed").mkdir()
    whole = Path.iterdir

    def refused(path: Path):
        if path.name == "closed":
            raise PermissionError(13, "Permission denied")
        return whole(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    lines = command("ls")[1].splitlines()
    assert "9 of 10, damaged 1" in next(line for line in lines if line.startswith("results/built"))
    assert "unreadable: closed: Permission denied" in lines
    assert any(line.startswith("unreadable: loop: ") for line in lines)


def test_ls_of_an_empty_folder_says_how_to_begin(command):
    assert "ablationlab init" in command("ls")[1]
    code, _, errors = command("ls", "nowhere")
    assert code == 2
    assert "nowhere: no such folder" in errors


# --- show -------------------------------------------------------------------------------------------------


def test_show_takes_a_folder_an_id_or_its_beginning(command, results):
    folder = next(path for path in (results / "runs").iterdir() if "layernorm-s1" in path.name)
    shown = command("show", folder)
    assert shown[0] == 0
    for words in ("seed 1", "model.front.norm", "layernorm", "training.lr", "Curve", "validation loss"):
        assert words in shown[1]
    assert command("show", folder.name) == shown
    assert command("show", f"built/{folder.name}") == shown


@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl", "seal.json"])
def test_show_of_a_damaged_run_names_the_file_and_ends_with_1(command, results, name):
    folder = next((results / "runs").iterdir())
    (folder / name).write_text("{")
    code, printed, _ = command("show", folder)
    assert code == 1
    assert f"runs/{folder.name}/{name}" in printed


def test_show_names_what_it_cannot_tell_apart_and_what_is_near(command, results):
    code, _, errors = command("show", "default-layernorm")
    assert code == 2
    assert "may be any of 5 runs" in errors
    assert "did you mean" in command("show", "layernorm-s1x")[2]


# --- diff -------------------------------------------------------------------------------------------------


def test_diff_names_settings_and_results_that_differ(command, tmp_path, results):
    from ablationlab.pipeline import conclude

    build(
        tmp_path / "results/other",
        study(name="other", seeds=[1, 2, 3]),
    )
    conclude(tmp_path / "results/other")
    code, printed, _ = command("diff", "built", "other")
    assert code == 0
    assert printed.splitlines()[:2] == ["A  results/built", "B  results/other"]
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert {"name built → other", "seeds 1, 2, 3, 4, 5 → 1, 2, 3"} <= {*lines}
    assert "versions and machine: the same" in lines
    assert "runs ended: A 10 of 10, B 6 of 6" in lines
    assert any(line.startswith("layernorm − none validation loss ") for line in lines)
    assert "settings: the same" in command("diff", results, results / "plan.lock")[1]


@pytest.mark.parametrize("width", [80, 120])
def test_diff_says_at_any_width_which_side_has_a_value(command, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    printed = command("diff", STUDIES / "quick.toml", STUDIES / "scoreboard.toml")[1]
    lines = {" ".join(line.split()) for line in printed.splitlines()}
    assert {"training.steps 60 → 600", "evaluation.curve_every 20 → –", "contrasts layernorm, rmsnorm → –"} <= lines
    assert "sweep.selection_seeds – → 4" in " ".join(printed.split())
    assert any(line.startswith("A metric = validation_loss, regime = default, role = primary") for line in lines)
    assert any(line.startswith("B metric = validation_loss, regime = tuned, role = primary") for line in lines)
    assert "variants.muon" not in printed, "which the line of variants says"
    assert max(map(len, printed.splitlines())) <= width


def test_ls_takes_a_table_of_words_for_no_study(command, tmp_path):
    (tmp_path / "fields.toml").write_text('variants = "names of variants"\nuse = "files"\nquestion = "the question"\n')
    assert "fields.toml" not in command("ls", tmp_path)[1]


# --- open -------------------------------------------------------------------------------------------------


def test_open_opens_the_page_or_prints_its_path(command, results, monkeypatch):
    assert "write it with: ablationlab report results/built" in command("open", "built", "--part", "paper")[2]
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    assert "Opened results/built/report.html" in command("open", "built")[1]
    assert opened == [(results / "report.html").as_uri()]
    assert "<h1>" in (results / "report.html").read_text()  # it was not there
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    assert command("open", results)[1].strip() == str(results / "report.html")


@pytest.mark.parametrize("named", ["the archive", "its folder"])
def test_open_takes_an_archive_of_records(command, results, tmp_path, monkeypatch, named):
    monkeypatch.setenv("ABLATIONLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    entry = tmp_path / "gallery" / "first"
    entry.mkdir(parents=True)
    with tarfile.open(entry / "records.tar.xz", "w:xz") as packed:
        packed.add(results, "")
    given = entry / "records.tar.xz" if named == "the archive" else entry
    for _ in range(2):  # the second time it is there
        code, out, error = command("open", given)
        assert code == 0, error
        path = Path(out.strip())
        assert path.name == "report.html"
        assert path.parent.name == "first"
        assert path.is_relative_to(tmp_path / "cache")
        assert "<h1>" in path.read_text()


def test_an_archive_that_is_none_is_named(command, tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATIONLAB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "records.tar.xz").write_bytes(b"no archive")
    assert "records.tar.xz cannot be unpacked" in " ".join(command("open", tmp_path / "records.tar.xz")[2].split())


# --- places -----------------------------------------------------------------------------------------------


def test_every_verb_takes_a_study_file_a_folder_and_a_bare_name(command, tmp_path, results):
    (tmp_path / "built.toml").write_bytes((STUDIES / "quick.toml").read_bytes().replace(b'"quick"', b'"built"'))
    for place in ("built", "built.toml", "results/built"):
        assert command("analyze", place)[0] == 0
    for place in ("built", "results/built"):
        assert "default-none-s1" in command("status", place)[1]


def test_many_studies_are_counted_where_none_is_like_the_name(command, tmp_path, results):
    for name in range(5):
        (tmp_path / f"study-{name}.toml").touch()
    assert command("open", "nix")[2].endswith(
        "unknown study (got 'nix'); allowed: the 6 names that `ablationlab ls` lists\n"
    )


def test_a_name_that_is_not_there_gets_the_nearest(command, results):
    for verb in ("status", "analyze", "run", "open"):
        code, _, errors = command(verb, "bulit")
        assert code == 2
        assert "unknown study (got 'bulit'); did you mean 'built'? (allowed: built)" in errors
        assert command(verb, "xyz")[2].endswith("unknown study (got 'xyz'); allowed: built\n")


def test_status_needs_no_repeated_set_and_names_what_was_sealed_otherwise(command, tmp_path, results):
    text = (STUDIES / "quick.toml").read_text().replace('"quick"', '"built"')
    (tmp_path / "built.toml").write_text(text)
    code, printed, _ = command("status", "built.toml")
    assert code == 0
    assert "was sealed with other settings than built.toml" in printed
    assert "default-none-s1" in printed


def test_a_folder_with_other_settings_is_refused_by_the_keys_that_differ(command, tmp_path, results):
    text = (STUDIES / "quick.toml").read_text().replace('"quick"', '"built"')
    (tmp_path / "built.toml").write_text(text)
    before = ResultsFolder(results).plan.read_bytes()
    code, _, errors = command("run", "built.toml")
    assert code == 2
    assert "holds another study, or this one with other settings" in errors
    assert "contrasts" in errors
    assert ResultsFolder(results).plan.read_bytes() == before


def test_ls_names_few_answers_and_counts_many():
    from ablationlab.report.listing import ListedResults, Listing
    from ablationlab.report.terminal.listing import listing_view

    def told(answers):
        found = ListedResults(Path("a"), 3, 3, 0, 0, answers)
        (table,) = listing_view(Listing(Path(), (found,), (), {}), 80)
        return table.columns[2].cells[0].plain

    assert told({Answer.SAME: ("v0", "v2"), Answer.BETTER: ("v1",)}) == "same: v0, v2; better: v1"
    assert told({Answer.SAME: ("v0", "v1", "v2", "v3"), Answer.BETTER: ("v4",)}) == "same: 4; better: 1"
    assert told({}) == "–"
