"""Nothing escapes: names from records stay inside their folder, and code from elsewhere needs consent."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from pathlib import Path

import pytest

from ablationlab.core.code import CodeFile, find, load
from ablationlab.core.errors import CodeError, DataError, RecordError, StorageError
from ablationlab.pipeline import Options, evaluate, extend, register, run, seal
from ablationlab.records.plan import Plan, without_paths
from ablationlab.records.results import Results
from ablationlab.records.settings import Study, UsedCode
from ablationlab.records.storage import ResultsFolder, inside
from ablationlab.report.make import make_report
from ablationlab.report.page.rest import configuration
from ablationlab.study import trust
from ablationlab.study.load import load_study, parse_study
from ablationlab.study.trust import carried_code, remember, require_trust, task_code
from ablationlab.tasks.request import TaskRequest, check_file
from analysis.builder import build
from analysis.builder import make_plan as made_plan
from analysis.builder import study as made_study
from conftest import corpus_text, write_study


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has never run any code."""
    monkeypatch.setenv("ABLATIONLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(trust, "_trusted", set())


# --- names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/../../x", "/etc/passwd", "a//b", "a/./b", "a\0b", "..\\x"])
def test_a_name_that_leads_out_of_its_folder_is_refused(tmp_path, name):
    with pytest.raises(RecordError, match="would lead elsewhere"):
        inside(tmp_path, name)


@pytest.mark.parametrize(
    "name", ["none-s1-00000000", "checkpoints/step-00000012/weights.safetensors", "..x", "lr1e-05"]
)
def test_a_plain_name_is_joined(tmp_path, name):
    assert inside(tmp_path, name) == tmp_path / name


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/escaped", "a/b", ".hidden", "", "a\nb", "x" * 300])
def test_a_run_id_that_is_no_folder_name_is_refused_when_the_plan_is_read(tmp_path, name):
    build(tmp_path / "results", only=lambda run: False)
    path = tmp_path / "results" / "plan.lock"
    data = json.loads(path.read_text())
    data["stacks"][0][0] = data["runs"][0]["id"] = name
    data["plan_hash"] = Plan.seal(data)
    path.write_text(json.dumps(data))
    with pytest.raises(RecordError, match=r"runs\.0\.id"):
        run(tmp_path / "results", listen=lambda event: None)
    assert not (tmp_path / "escaped").exists()
    with pytest.raises(RecordError):
        ResultsFolder(tmp_path / "results").run("../../escaped")


# --- code -------------------------------------------------------------------------------------------------

MINE = "from pathlib import Path\nPath({mark!r}).write_text('ran')\n"


def foreign(folder: Path, mark: Path, **tables: object) -> Path:
    """A results folder with code in it, sealed by someone else."""
    code = MINE.format(mark=str(mark))
    (folder / "use").mkdir(parents=True)
    (folder / "use" / "mine.py").write_text(code)
    sha256 = hashlib.sha256(code.encode()).hexdigest()
    made = made_study(**tables).changed(use=(UsedCode(name="mine.py", path="/home/other/mine.py", sha256=sha256),))
    build(folder, made)
    return folder


def test_code_of_a_foreign_results_folder_is_not_run_until_it_is_trusted(tmp_path):
    mark = tmp_path / "mark"
    folder = foreign(tmp_path / "results", mark)
    for call in (
        lambda: evaluate(
            ResultsFolder(folder), TaskRequest(("suite",), (0,), "one", None), Options(), lambda event: None
        ),
        lambda: run(folder, listen=lambda event: None),
        lambda: extend(folder, Options(), seeds=[9]),
    ):
        with pytest.raises(CodeError, match=r"carries code that was never run here: mine\.py .*--trust-code"):
            call()
    assert not mark.exists()
    code = carried_code(Plan.read(folder / "plan.lock").study)
    remember(code)
    trust._trusted.clear()  # another process
    require_trust(code, folder)
    assert {path.name for path in (tmp_path / "cache" / "trusted").iterdir()} == {sha256 for _, sha256 in code}


def test_two_files_of_one_name_do_not_hide_each_other(tmp_path, study_table):
    """Of a folder that says: what ran here before has this name; and so has what never did."""
    mark, known = tmp_path / "mark", "# nothing\n"
    folder = foreign(tmp_path / "results", mark)
    remember([trust.Carried("mine.py", hashlib.sha256(known.encode()).hexdigest())])
    path = folder / "plan.lock"
    data = json.loads(path.read_text())
    evil = data["study"]["use"][0]
    good = evil | {"sha256": hashlib.sha256(known.encode()).hexdigest()}
    study = parse_study(study_table())
    both = study.model_copy(update={"use": tuple(UsedCode(**entry) for entry in (evil, good))})
    with pytest.raises(CodeError, match=r"never run here: mine\.py"):
        require_trust(carried_code(both), folder)
    data["study"]["use"] = [evil, good]
    data["plan_hash"] = Plan.seal(data)
    path.write_text(json.dumps(data))
    with pytest.raises(RecordError, match=r"given more than once: mine\.py"):
        run(folder, listen=lambda event: None)
    assert not mark.exists()


def test_a_task_file_or_a_command_does_not_hide_behind_the_name_of_another(tmp_path, study_table):
    task = tmp_path / "own.yaml"
    task.write_text("task: own\n")
    study = parse_study(study_table()).changed(use=(UsedCode(name=str(task), path="x.py", sha256="0" * 64),))
    assert {name for name, _ in carried_code(study, (str(task),))} == {str(task)}
    assert len(carried_code(study, (str(task),))) == 2


def test_no_file_runs_beside_one_that_is_not_what_was_agreed_to(tmp_path):
    mark = tmp_path / "mark"
    (tmp_path / "first.py").write_text(MINE.format(mark=str(mark)))
    (tmp_path / "second.py").write_text("# changed\n")
    files = [find("first.py", tmp_path), CodeFile("second.py", tmp_path / "second.py", "0" * 64)]
    with pytest.raises(CodeError, match="has changed since the study was planned"):
        load(files)
    assert not mark.exists()


def test_the_code_of_a_study_file_is_the_users_own(tmp_path):
    (tmp_path / "mine.py").write_text(MINE.format(mark=str(tmp_path / "mark")))
    path = write_study(tmp_path, {"use": ["./mine.py"]})
    study = load_study(path)
    assert (tmp_path / "mark").read_text() == "ran"
    require_trust(carried_code(study), path)
    (tmp_path / "mine.py").write_text("# another\n")
    with pytest.raises(CodeError, match="never run here"):
        require_trust(carried_code(study.changed(use=(study.use[0].model_copy(update={"sha256": "0" * 64}),))), path)


@pytest.mark.parametrize(
    "text",
    [
        "include: [plain.yaml, own.yaml]",
        "include:\n  - own.yaml",
        "{'include': own.yaml}",
        "<<: {include: own.yaml}",
        "? include\n: own.yaml",
        "doc_to_text: !function inner.utils.text",
        "doc_to_text: !function os.system",
        "doc_to_text: !%66unction utils.text",
        "doc_to_text: !!python/object/apply:os.system [true]",
        "a: &a {b: *a, c: !!python/name:os.system }",
        "include: [broken",
        "%TAG !e! !\n---\ndoc_to_text: !e!function utils.text",
        "%TAG !! !\n---\ndoc_to_text: !!function utils.text",
        "doc_to_text: !<!function> utils.text",
        "task: a\n---\ndoc_to_text: !function utils.text",
        "a: &a include\n*a : own.yaml",
        "task: a\ntask: !function utils.text",
        "class: !function inner.utils.text",
        "metric_list: [{metric: ./inner/utils.py}]",
        "metric_list: [{metric: acc, hf_evaluate: true}]",
        "metric_list: [{metric: some/metric}]",
        "include: far.yaml",
        "doc_to_text: !function utils.text".encode("utf-16"),
        "\ufeffdoc_to_text: !function utils.text",
        "[" * 100_000,
        "a: &a [x, x, x]\n" + "".join(f"{n}: &{n} [*{m}, *{m}, *{m}]\n" for m, n in pairwise("abcdefghijklmnop")),
    ],
)
def test_code_that_a_task_file_hides_needs_consent(tmp_path, text):
    """The harness follows lists and merged keys, imports what it can, and knows every tag of PyYAML."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "utils.py").write_text("def text(doc): return doc['text']\n")
    (tmp_path / "own.yaml").write_text("task: own\ndoc_to_text: !function inner.utils.text\n")
    (tmp_path / "plain.yaml").write_text("task: plain\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "real.yaml").write_text("include: functions.yaml")
    (tmp_path / "elsewhere" / "functions.yaml").write_text("doc_to_text: !function utils.text")
    (tmp_path / "far.yaml").symlink_to("elsewhere/real.yaml")  # which includes what lies beside it there
    hidden = tmp_path / "hidden.yaml"
    hidden.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert [name for name, _ in task_code([str(hidden)])] == [str(hidden)]


@pytest.mark.parametrize(
    "text",
    ["metric_list: [{metric: !!str {=: ./x.py}}]", "class: x\n? !!str {=: include}\n: own.yaml", "a: !!str [include]"],
)
def test_a_text_that_is_written_as_a_table_is_refused(tmp_path, text):
    path = tmp_path / "hidden.yaml"
    path.write_text(f"task: hidden\n{text}\n")
    with pytest.raises(DataError, match="writes a text as a table"):
        check_file(str(path))


@pytest.mark.parametrize("text", ['task: "a\\eb"', 'group: "\\u202eb"', 'group: g\ntask: [a, {task: "\\x07"}]'])
def test_a_name_of_a_task_that_a_terminal_would_obey_is_refused(tmp_path, text):
    path = tmp_path / "hidden.yaml"
    path.write_text(f"{text}\n")
    with pytest.raises(DataError, match="cannot be printed"):
        check_file(str(path))


def test_a_tilde_is_the_home_that_the_harness_takes_it_for(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "home.yaml").write_text("task: home\n")
    before = task_code(["~/home.yaml"])
    (tmp_path / "home.yaml").write_text("task: other\n")
    assert task_code(["~/home.yaml"]) != before


@pytest.mark.parametrize("name", ["tables", "figures", "paper"])
def test_a_report_is_not_written_through_a_link(tmp_path, name):
    (tmp_path / "mine").mkdir()
    build(tmp_path / "results")
    (tmp_path / "results" / name).symlink_to(tmp_path / "mine")
    with pytest.raises(StorageError, match="is a link"):
        make_report(tmp_path / "results")
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.parametrize("name", ["runs", "energy", "locks", "amendments", "evaluation", "evaluation/tasks"])
def test_neither_training_nor_scoring_writes_through_a_link_to_a_folder(tmp_path, name):
    folder, outside = tmp_path / "results", tmp_path / "outside"
    build(folder)
    outside.mkdir()
    place = folder / name
    place.parent.mkdir(exist_ok=True)
    if place.exists():
        outside.rmdir()
        place.rename(outside)
    place.symlink_to(outside)
    before = sorted(outside.rglob("*"))
    for call in (
        lambda: run(folder, listen=lambda event: None),
        lambda: extend(folder, Options(), seeds=[9]),
        lambda: evaluate(
            ResultsFolder(folder), TaskRequest(("suite",), (0,), "one", None), Options(), lambda event: None
        ),
    ):
        with pytest.raises(StorageError, match=rf"{name} is a link"):
            call()
    assert sorted(outside.rglob("*")) == before


def test_a_file_of_use_whose_name_is_no_path_is_refused(tmp_path):
    with pytest.raises(CodeError, match="no path of a file"):
        find("a\0.py", tmp_path)


def test_a_record_cannot_say_that_its_code_is_installed(study_table):
    used = {"name": "evil", "path": "evil.py", "sha256": "0" * 64, "entry_point": True}
    assert ("evil", "0" * 64) in carried_code(parse_study(study_table()).changed(use=(UsedCode(**used),)))
    with pytest.raises(CodeError, match="no installed package offers"):
        load([CodeFile("evil", Path("evil.py"), "0" * 64, entry_point=True)])


def test_listing_a_folder_runs_no_code_of_its_studies_and_allows_none(tmp_path, cli):
    (tmp_path / "mine.py").write_text(MINE.format(mark=str(tmp_path / "mark")))
    write_study(tmp_path, {"use": ["./mine.py"], "question": "Mine?"})
    (tmp_path / "own.yaml").write_text("task: own\ndoc_to_text: !function utils.text\n")
    write_study(tmp_path, {"evaluation.tasks": [str(tmp_path / "own.yaml")]}, "tasks.toml")
    code, output, _ = cli("ls", tmp_path)
    assert (code, "tiny.toml" in output, "Mine?" in output, "tasks.toml" in output) == (0, True, True, True)
    assert not (tmp_path / "mark").exists()
    assert not trust._trusted


def test_every_task_file_needs_consent_to_all_that_it_consists_of(tmp_path):
    plain, own = tmp_path / "plain.yaml", tmp_path / "own.yaml"
    plain.write_text("task: plain\ndoc_to_text: text\n")
    own.write_text("task: own\ndoc_to_text: !function utils.text\n")
    (tmp_path / "utils.py").write_text("def text(doc): return doc['text']\n")
    including = tmp_path / "inner" / "including.yaml"
    including.parent.mkdir()
    including.write_text("include: ../own.yaml\ntask: third\n")
    code = dict(task_code([str(plain), str(own), str(including), "suite"]))
    assert code.keys() == {str(plain), str(own), str(including)}
    (tmp_path / "utils.py").write_text("def text(doc): return 'other'\n")
    changed = dict(task_code([str(plain), str(own), str(including)]))
    assert {name for name in code if changed[name] != code[name]} == {str(own), str(including)}
    (tmp_path / "utils.py").rename(tmp_path / "vtils.py")
    assert dict(task_code([str(own)]))[str(own)] != changed[str(own)], "what a name stands for is another file"
    folder = tmp_path / "results"
    build(folder)
    with pytest.raises(CodeError, match=r"own\.yaml"):
        evaluate(ResultsFolder(folder), TaskRequest((str(own),), (0,), "one", None), Options(), lambda event: None)


def test_the_command_of_a_foreign_trainer_and_its_program_need_consent(study_table, tmp_path):
    table = study_table({"data": ..., "model": ..., "training": ..., "execution": ...})
    table |= {
        "command": ["sh", "-c", "true"],
        "metrics": {"loss": "lower"},
        "model": {"x": 0},
        "variants": {"none": {}, "b": {"model": {"x": 1}}},
    }
    study = parse_study(table)
    code = carried_code(study)
    ((name, sha256),) = code
    assert name == "sh -c true"
    require_trust(code, "here")
    trust._trusted.clear()
    remembered = Path(trust.cache_folder() / "trusted" / sha256)
    remembered.unlink()
    with pytest.raises(CodeError, match="sh -c true"):
        require_trust(code, "there")
    program = tmp_path / "train.sh"
    program.write_text("true\n")
    named = parse_study(table | {"command": ["sh", str(program)]})
    require_trust(carried_code(named), "here")
    program.write_text("false\n")
    with pytest.raises(CodeError, match=r"train\.sh"):
        require_trust(carried_code(named), "here")


# --- paths ------------------------------------------------------------------------------------------------


def test_no_record_says_where_a_corpus_or_code_lies_and_the_study_still_finds_them(tmp_path):
    (tmp_path / "mine.py").write_text("# nothing\n")
    path = write_study(tmp_path, {"use": ["./mine.py"]})
    study, results = load_study(path), ResultsFolder(tmp_path / "results")
    plan, _ = seal(study, results, "cpu", 1)
    assert plan.study.data.corpus == str(tmp_path / "corpus.txt")
    assert (plan.corpus.name, plan.corpus.source) == ("corpus.txt", "a file")
    text = (results.path / "plan.lock").read_text()
    assert str(tmp_path) not in text
    assert '"./corpus.txt"' in text
    assert Plan.read(results.plan).study == study
    assert str(tmp_path) not in configuration(Results.open(results.path))
    register(study, ResultsFolder(tmp_path / "calibrated"))
    assert str(tmp_path) not in (tmp_path / "calibrated" / "study.lock").read_text()


def test_neither_variants_with_texts_of_their_own_nor_their_hashes_say_where_these_lie(tmp_path):
    def sealed(folder: Path) -> tuple[Study, Plan]:
        (folder / "texts").mkdir(parents=True)
        (folder / "texts" / "other.txt").write_text(corpus_text())
        path = write_study(folder, {"variants": ["none", "other"]})
        text = path.read_text().replace('variants = ["none", "other"]\n', "")
        path.write_text(text + "\n[variants.none]\n\n[variants.other.data]\ncorpus = './texts/other.txt'\n")
        study = load_study(path)
        return study, seal(study, ResultsFolder(folder / "results"), "cpu", 1)[0]

    study, plan = sealed(tmp_path / "here")
    elsewhere, _ = sealed(tmp_path / "elsewhere")
    assert study.hash == elsewhere.hash
    assert study.criteria_hash == elsewhere.criteria_hash
    text = (tmp_path / "here" / "results" / "plan.lock").read_text()
    assert str(tmp_path) not in text
    assert "./other.txt" in text
    assert plan.study == study
    assert plan.variants["other"].data == {"corpus": str(tmp_path / "here" / "texts" / "other.txt")}
    (tmp_path / "here" / "results" / "places.json").unlink()
    assert Results.open(tmp_path / "here" / "results").sealed


def test_the_program_of_an_own_trainer_is_named_without_its_folder(tmp_path):
    (tmp_path / "train.py").write_text("print('loss 1')\n")
    lines = ["name = 'own'", "baseline = 'none'", "seeds = [1, 2]", "metrics = {loss = 'lower'}"]
    lines += ["command = ['python', 'train.py', '{seed}']"]
    lines += [
        "patterns = {loss = 'loss (?P<value>.+)'}",
        "model = {x = 1}",
        "variants = {none = {}, b = {model = {x = 2}}}",
    ]
    (tmp_path / "own.toml").write_text("\n".join(lines) + "\n")
    study = load_study(tmp_path / "own.toml")
    plan, _ = seal(study, ResultsFolder(tmp_path / "results"), "cpu", 1)
    assert str(tmp_path) not in (tmp_path / "results" / "plan.lock").read_text()
    assert plan.study == study
    assert list(plan.files) == [str(tmp_path / "train.py")]
    assert str(tmp_path) not in study.trainer.title


def test_two_corpora_of_one_name_keep_their_places(study_table):
    mixture = {"/a/prepared": 1.0, "/b/prepared": 2.0, "tiny-shakespeare": 3.0}
    plan = made_plan(made_study())
    study = plan.study.model_copy(update={"data": plan.study.data.model_copy(update={"mixture": mixture})})
    kept, places = without_paths(study)
    assert list(kept.data.mixture) == ["./prepared", "./2/prepared", "tiny-shakespeare"]
    assert places == {"./prepared": "/a/prepared", "./2/prepared": "/b/prepared"}
