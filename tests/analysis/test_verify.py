"""`ablationlab verify`: the chain from the plan to the paper, link by link."""

from __future__ import annotations

import ast
import json
import os
import shutil
from pathlib import Path

import pytest

from ablationlab.analysis import verify
from ablationlab.analysis.verify import Link, chain
from ablationlab.core.errors import RecordError
from ablationlab.records.energy import Energy, EnergyReading
from ablationlab.records.evaluation import Suite
from ablationlab.records.plan import Deposit, Plan
from ablationlab.records.replication import Replication
from ablationlab.records.results import Results
from ablationlab.records.seal import RunSeal
from ablationlab.records.settings import UsedCode
from ablationlab.records.storage import sha256_file
from ablationlab.records.table_curves import TABLE_CURVES
from ablationlab.records.verdict import Advice, Answer, Verdict
from ablationlab.report.live import Live
from ablationlab.report.make import make_report, with_analysis
from ablationlab.report.notebook import load_results
from ablationlab.report.slots import statements
from analysis.builder import build, study
from analysis.scores import Put, evaluate

RUN = "default-none-s1"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    made = study(evaluation={"tasks": ["spelling"]})
    evaluate(folder, build(folder, made), lambda run: [Put("spelling")])
    make_report(folder, parts=["page", "tables"], say=lambda text: None)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "results")


def broken(folder: Path, deposited: Path | None = None) -> dict[str, str]:
    """What differs: its code, or what its reader said."""
    return {link.file: said(link) for link in chain(folder, deposited) if link.state == "differs"}


def said(link: Link) -> str:
    return link.told.get("why", link.code)


def test_an_untouched_folder_holds_from_the_plan_to_the_page(whole):
    states = {link.file: link.state for link in chain(whole)}
    assert states == {
        "plan.lock": "holds",
        "deposit.json": "unchecked",
        "runs": "holds",
        "evaluation/suite.json": "holds",
        "analysis.json": "holds",
        "verdict.json": "holds",
        "courses.json": "holds",
        "report.html": "holds",
        "paper/claims.json": "absent",
    }


def test_a_changed_file_of_a_run_is_named(folder):
    with (folder / "runs" / RUN / "metrics.jsonl").open("a") as file:
        file.write("\n")
    assert broken(folder).keys() == {f"runs/{RUN}/metrics.jsonl", "runs"}
    (folder / "runs" / RUN / "metrics.jsonl").unlink()
    assert broken(folder)[f"runs/{RUN}/metrics.jsonl"] == "gone"


def test_weights_may_be_left_out_of_any_run_and_a_missing_part_of_them_differs(folder):
    runs = sorted((folder / "runs").iterdir())
    for run in runs:
        add_weights(run)
    assert broken(folder).keys() == {"analysis.json"}  # which names the seals of before
    shutil.rmtree(runs[0] / "checkpoints")
    (left_out,) = [link for link in chain(folder) if link.state == "not kept"]
    told = {"n": "1", "of": str(len(runs)), "runs": runs[0].name}  # a loss would look the same: it is named
    assert (left_out.file, left_out.code, left_out.told) == ("runs/*/checkpoints", "left-out-of", told)
    assert broken(folder).keys() == {"analysis.json"}
    (runs[1] / "checkpoints" / "step-1" / "weights").unlink()
    assert broken(folder)[f"runs/{runs[1].name}/checkpoints/step-1/weights"] == "gone"
    (runs[2] / "checkpoints" / "step-1" / "weights").write_text("others")
    assert broken(folder)[f"runs/{runs[2].name}/checkpoints/step-1/weights"] == "changed"


def test_what_is_gone_while_its_companions_are_there_is_missing_and_the_last_line_says_so(folder, cli):
    (folder / "runs" / RUN / "result.json").unlink()
    (folder / "verdict.json").unlink()
    lost = {link.file: link.code for link in chain(folder) if link.state == "missing"}
    assert lost.keys() == {f"runs/{RUN}/result.json", "verdict.json"}
    assert lost["verdict.json"] == "by-analyze"
    code, output, _ = cli("verify", folder)
    assert (code, f"missing   runs/{RUN}/result.json" in output) == (1, True)
    assert ("missing 2" in output.splitlines()[-1], "missing   verdict.json" in output) == (True, True)
    for name in ("analysis.json", "report.html"):
        (folder / name).unlink()
    states = {link.file: link.state for link in chain(folder)}
    assert (states["analysis.json"], states["verdict.json"]) == ("absent", "absent")


def test_a_script_learns_from_the_exit_code_that_a_verdict_is_missing(folder, cli):
    for name in ("verdict.json", "report.html"):
        (folder / name).unlink()
    code, output, _ = cli("verify", folder)
    assert (code, output.splitlines()[-1]) == (1, "The chain does not hold: differ 0, missing 1.")


def test_a_file_that_no_run_keeps_was_left_out_and_one_that_some_lack_is_missing(folder, cli):
    runs = sorted((folder / "runs").iterdir())
    for run in runs[1:]:
        (run / "metrics.jsonl").unlink()
    assert broken(folder).keys() == {"runs", *(f"runs/{run.name}/metrics.jsonl" for run in runs[1:])}
    (runs[0] / "metrics.jsonl").unlink()
    assert not broken(folder)
    code, output, _ = cli("verify", folder)
    assert code == 0
    assert output.splitlines()[-1] == "The chain holds."
    (left_out,) = [link for link in chain(folder) if link.state == "not kept"]
    assert (left_out.file, left_out.code, left_out.told["n"]) == ("runs/*/metrics.jsonl", "left-out", str(len(runs)))
    before = (folder / "analysis.json").read_bytes()
    assert cli("analyze", folder)[0] == 0
    assert (folder / "analysis.json").read_bytes() == before


@pytest.mark.parametrize("name", ["evaluation.json", "run.json"])
def test_a_file_that_an_analysis_reads_is_missing_even_if_no_run_has_it(folder, name):
    runs = sorted((folder / "runs").iterdir())
    for run in runs:
        (run / name).unlink()
    assert {f"runs/{run.name}/{name}" for run in runs} <= broken(folder).keys()


def test_an_unreadable_result_is_named_and_not_its_seal(folder):
    (folder / "runs" / RUN / "result.json").write_text("{")
    (stale,) = [link for link in chain(folder) if link.file == "analysis.json"]
    assert (stale.code, stale.told) == ("stale", {"n": "1", "file": f"runs/{RUN}/result.json"})


def add_weights(run: Path) -> None:
    path = run / "checkpoints" / "step-1" / "weights"
    path.parent.mkdir(parents=True)
    path.write_text(run.name)
    seal = RunSeal.read(run / "seal.json")
    files = {**seal.files, path.relative_to(run).as_posix(): sha256_file(path)}
    seal.model_copy(update={"files": files}).replace(run / "seal.json")


def test_a_forged_verdict_is_decided_again(folder, cli):
    path = folder / "verdict.json"
    verdict = Verdict.read(path)
    forged = verdict.verdicts[0].model_copy(
        update={"answer": Answer.BETTER, "advice": Advice.ADOPT, "variant": "forged"}
    )
    verdict.model_copy(update={"verdicts": (forged,)}).replace(path)  # with a seal that holds
    assert broken(folder)["verdict.json"].startswith("is not what the rules give for analysis.json")
    assert "report.html" in broken(folder)
    listed = " ".join(cli("ls", folder)[1].split())
    assert "verdict.json is not what" in listed
    assert ": forged" not in listed
    assert "is not what the rules give" in str(load_results(folder).problems)
    said: list[str] = []
    shown = with_analysis(Results.open(folder, cache={}), said.append)
    assert "verdict.json cannot be used (is not what the rules give for analysis.json" in said[0]
    assert shown.verdict == verdict == Verdict.read(path)


def test_a_page_of_another_analysis_is_told(folder, tmp_path):
    other = tmp_path / "other"
    evaluate(other, build(other, study(seeds=[1, 2, 3, 4])), lambda run: [Put("spelling")])
    make_report(other, parts=["page"], say=lambda text: None)
    (folder / "report.html").write_bytes((other / "report.html").read_bytes())
    assert broken(folder).keys() == {"report.html"}


def test_every_odd_file_is_in_the_chain_and_none_ends_it(folder):
    Energy(plan_hash=Plan.read(folder / "plan.lock").plan_hash, began=NOON, seconds=1, readings=()).create(
        folder / "energy" / "0001.json"
    )
    odd = {
        f"runs/{RUN}/metrics.jsonl",
        f"runs/{RUN}/samples.parquet",
        "evaluation/suite.json",
        "energy/0001.json",
        "analysis.json",
        "verdict.json",
    }
    for name in odd:
        (folder / name).unlink()
        os.mkfifo(folder / name)
    found = broken(folder)
    assert found.keys() == {*odd, "runs", "report.html"}
    assert all("is not a regular file" in found[name] for name in odd)


ODD = pytest.mark.parametrize("put", [os.mkfifo, os.mkdir, lambda path: path.symlink_to(path.name)])


@ODD
def test_a_suite_that_is_no_file_beside_a_whole_analysis_is_named_in_the_chain_and_on_the_page(folder, put, cli):
    (folder / "evaluation" / "suite.json").unlink()
    put(folder / "evaluation" / "suite.json")
    code, output, _ = cli("verify", folder)
    assert code == 1
    assert "differs   evaluation/suite.json" in output
    assert "differs   report.html" in output or "holds     report.html" in output
    code, output, errors = cli("report", folder, "--only", "page", "--out", folder / "out")
    assert code == 1
    assert "evaluation/suite.json" in output + errors
    assert "evaluation/suite.json" in (folder / "out" / "report.html").read_text()


def test_a_result_that_is_a_link_in_a_loop_is_named(folder, cli):
    path = folder / "runs" / RUN / "result.json"
    path.unlink()
    path.symlink_to(path.name)
    assert "cannot be read" in broken(folder)[f"runs/{RUN}/result.json"]
    for verb in ("verify", "analyze", "status"):
        code, output, errors = cli(verb, folder)
        assert code, verb
        assert f"{RUN}/result.json" in output + errors, verb


def test_an_energy_folder_that_is_none_differs(folder):
    (folder / "energy").symlink_to("energy")
    assert broken(folder).keys() == {"energy"}


@pytest.mark.parametrize("place", [f"runs/{RUN}", "runs", "amendments"])
def test_a_link_to_nowhere_in_the_place_of_a_folder_is_named(folder, place, cli):
    (folder / "away").mkdir()
    if (folder / place).exists():
        (folder / place).rename(folder / "away" / "there")
    (folder / place).symlink_to(Path(place).name)
    for verb in ("analyze", "status", "verify", "paper"):
        code, output, errors = cli(verb, folder, *(["--out", folder / "out"] if verb == "paper" else []))
        assert code, verb
        assert f"{place} is neither a folder nor a link to one" in " ".join((output + errors).split()), verb


@pytest.mark.parametrize(
    "put",
    [os.mkfifo, lambda path: path.symlink_to(path.name), lambda path: path.write_text("[" * 9999)],
    ids=["pipe", "loop", "deep"],
)
def test_an_amendment_that_cannot_be_read_is_named_and_not_the_plan(folder, cli, put):
    path = folder / "amendments" / "0001.json"
    path.parent.mkdir()
    put(path)
    for verb in ("verify", "ls", "diff", "status", "paper"):
        more = {"diff": [folder], "paper": ["--out", folder / "out"]}.get(verb, [])
        code, output, errors = cli(verb, folder, *more)
        said = " ".join((output + errors).split())
        assert (code != 0 or verb == "ls", "amendments/0001.json" in said) == (True, True), verb
        assert "Restore it: the runs are judged by it" in said, verb
        assert "plan.lock /" not in said, verb
    assert Live(folder).state()[1].fault.startswith(f"{path} ")


def test_a_run_that_was_moved_is_found_by_a_link(folder):
    (folder / "runs" / RUN).rename(folder / "away")
    (folder / "runs" / RUN).symlink_to("../away")
    assert not broken(folder)


def test_an_unreadable_page_differs(folder):
    (folder / "report.html").unlink()
    (folder / "report.html").mkdir()
    assert broken(folder).keys() == {"report.html"}


def test_a_verdict_whose_analysis_cannot_be_read_is_not_listed(folder, cli):
    (folder / "analysis.json").write_text("{")
    listed = " ".join(cli("ls", folder)[1].split())
    assert "analysis.json cannot be read as JSON" in listed
    assert "`ablationlab analyze` writes it again" in listed
    assert f"{Verdict.read(folder / 'verdict.json').verdicts[0].answer}:" not in listed


@pytest.mark.parametrize("names", [["analysis.json", "verdict.json"], ["verdict.json"]])
def test_the_verdict_of_another_study_is_not_listed(folder, whole, tmp_path, cli, names):
    other = tmp_path / "other"
    make_report(build(other, study(seeds=[1, 2, 3, 4])) and other, parts=["tables"], say=lambda text: None)
    for name in names:
        shutil.copy(other / name, folder / name)
    listed = " ".join(cli("ls", folder)[1].split())
    assert "another plan than plan.lock" in listed or "from another analysis than analysis.json" in listed
    assert f"{Verdict.read(folder / 'verdict.json').verdicts[0].answer}:" not in listed


def test_an_unreadable_plan_is_a_link_that_does_not_hold(folder, cli):
    (folder / "plan.lock").write_text("{")
    code, output, _ = cli("verify", folder)
    assert code == 1
    assert output.startswith("differs   plan.lock")


def test_a_lost_suite_differs(folder):
    (folder / "evaluation" / "suite.json").unlink()
    assert "is missing, though runs were scored on its tasks" in broken(folder)["evaluation/suite.json"]


NOON = "2026-01-01T12:00:00+00:00"


@pytest.mark.parametrize("old", [False, True])
def test_energy_and_replication_carry_their_own_hash_but_for_replications_of_earlier_versions(folder, old):
    plan_hash = Plan.read(folder / "plan.lock").plan_hash
    energy, replication = folder / "energy" / "0001.json", folder / "replication.json"
    Energy(plan_hash=plan_hash, began=NOON, seconds=60, readings=(EnergyReading(source="rapl", joules=5.0),)).create(
        energy
    )
    empty = dict.fromkeys(("table", "title", "about", "table_hash", "study"), "x")
    source = {"citation": "x", "date": "x"}
    nothing = dict.fromkeys(("changed", "changed_beside", "figures", "directions"), ())
    Replication(
        **empty, **nothing, source=source, source_hash=plan_hash, runs_ended=1, runs_planned=1, level=0.95
    ).create(replication)  # fmt: skip
    if old:
        replication.write_text(without_seal(replication))
    states = {link.file: link.state for link in chain(folder)}
    assert (states["energy"], states["replication.json"]) == ("holds", "unchecked" if old else "holds")
    energy.write_text(without_seal(energy).replace("5.0", "6.0") if old else energy.read_text().replace("5.0", "6.0"))
    replication.write_text(replication.read_text().replace("0.95", "0.96"))
    assert broken(folder).keys() == ({"energy/0001.json"} if old else {"energy/0001.json", "replication.json"})


def without_seal(path: Path) -> str:
    return json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "seal"})


@pytest.mark.parametrize("gone", ["analysis.json", "verdict.json"])
def test_what_follows_from_a_record_that_is_gone_does_not_hold(folder, cli, gone):
    (folder / gone).unlink()
    left = {"verdict.json", "report.html"} - {gone}
    assert broken(folder).keys() == left
    code, output, _ = cli("verify", folder)
    assert (code, f"missing   {gone}" in output) == (1, True)


def test_a_study_that_is_only_planned_has_no_run_that_could_differ(tmp_path):
    build(tmp_path, only=lambda run: False)
    (runs,) = [link for link in chain(tmp_path) if link.file == "runs"]
    assert (runs.state, runs.told["ended"]) == ("holds", "0")


def test_copies_of_the_studys_own_code_are_hashed(tmp_path):
    code = tmp_path / "use" / "mine.py"
    code.parent.mkdir()
    code.write_text("# mine\n")
    used = UsedCode(name="mine.py", path="/elsewhere/mine.py", sha256=sha256_file(code))
    build(tmp_path, study().changed(use=(used,)))
    assert "use" in {link.file for link in chain(tmp_path) if link.state == "holds"}
    code.write_text("# other\n")
    assert broken(tmp_path)["use/mine.py"] == "changed"
    code.unlink()
    assert broken(tmp_path)["use/mine.py"] == "gone"


@pytest.mark.parametrize("put", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_curves_that_are_no_file_are_named_and_not_waited_for(folder, put):
    put(folder / TABLE_CURVES)
    results = Results.open(folder)
    assert results.table_runs == ()
    assert "is not a regular file" in results.reader.damage[TABLE_CURVES].text


def test_items_of_tasks_are_hashed(folder):
    items = folder / "evaluation" / "tasks" / "spelling-0" / "items.jsonl"
    items.parent.mkdir(parents=True)
    items.write_text('{"target": 0}\n')
    path = folder / "evaluation" / "suite.json"
    Suite.read(path).model_copy(update={"files": {"tasks/spelling-0/items.jsonl": sha256_file(items)}}).replace(path)
    assert "evaluation/suite.json" not in broken(folder)
    items.write_text('{"target": 1}\n')
    assert broken(folder)["evaluation/tasks/spelling-0/items.jsonl"] == "changed"
    (items.parent / "task.yaml").write_text("{}")
    assert ("evaluation/tasks/*/task.yaml", "unchecked") in {(link.file, link.state) for link in chain(folder)}


def test_what_is_no_part_of_the_study_is_listed_and_breaks_no_link(folder, cli):
    for name in (
        "notes.md",
        "x\nThe chain holds.\n",
        "runs/unplanned/run.json",
        f"runs/{RUN}/mine.txt",
        "evaluation/tasks/x/items.jsonl",
        "amendments/00001.json",
        "energy/1.json",
        "use/other.py",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    unknown = {link.file for link in chain(folder) if link.state == "unknown"}
    assert unknown == {
        "notes.md",
        "x\ufffdThe chain holds.\ufffd",
        "runs/unplanned",
        "runs/*/mine.txt",
        "evaluation/tasks/x/items.jsonl",
        "amendments/00001.json",
        "energy/1.json",
        "use/other.py",
    }
    code, output, _ = cli("verify", folder)
    assert (code, output.splitlines()[-1]) == (0, "The chain holds.")
    assert "unknown   runs/unplanned" in output


def test_a_file_that_is_read_and_that_no_seal_names_was_added(folder, cli):
    (folder / "runs" / RUN / "probes.parquet").write_text("{}")
    assert broken(folder)[f"runs/{RUN}/probes.parquet"] == "added"
    code, _, errors = cli("analyze", folder)
    assert (code, "it was added later. Move it away" in " ".join(errors.split())) == (2, True)


TRAINS_AGAIN = "move the run's folder away and `ablationlab run` trains it again"


@pytest.mark.parametrize(
    ("name", "put"),
    [
        ("run.json", os.mkfifo),
        ("run.json", lambda path: path.symlink_to("/dev/zero")),
        ("metrics.jsonl", lambda path: path.symlink_to(path.name)),
        ("seal.json", lambda path: shutil.copy(path.parents[1] / "default-layernorm-s1" / path.name, path)),
    ],
)
def test_every_verb_says_what_to_do_about_a_file_of_a_run_that_is_none_of_it(folder, cli, name, put):
    path = folder / "runs" / RUN / name
    path.unlink()
    put(path)
    for verb in ("verify", "analyze", "show", "diff", *(["status"] if name != "metrics.jsonl" else [])):
        more = [folder.parent / "results"] if verb == "diff" else []
        code, output, errors = cli(verb, path.parent if verb == "show" else folder, *more)
        said = " ".join((output + errors).split())
        assert (code != 0, name in said) == (True, True), verb
        if verb not in ("verify", "status"):
            assert TRAINS_AGAIN in said, verb


@pytest.mark.parametrize("name", ["run.json", "result.json"])
def test_a_difference_of_altered_results_names_the_file(folder, whole, cli, name):
    assert cli("diff", whole, folder)[0] == 0
    path = folder / "runs" / RUN / name
    path.write_text(path.read_text().replace("1", "2", 1))
    code, output, _ = cli("diff", whole, folder)
    assert code == 1
    assert f"runs/{RUN}/{name}: is not as it was sealed" in " ".join(output.split())


def test_a_deposited_copy_is_accepted_and_one_of_another_plan_is_not(folder, tmp_path):
    deposit = Deposit.of(Plan.read(folder / "plan.lock"))
    deposit.create(tmp_path / "kept.json")
    states = {link.file: link.state for link in chain(folder, tmp_path / "kept.json")}
    assert states[str(tmp_path / "kept.json")] == "holds"
    later = Plan.read_sealed(folder / "plan.lock").model_copy(update={"created": "2027-01-01T00:00:00+00:00"})
    Deposit.of(later.sealed()).create(tmp_path / "later.json")
    assert broken(folder, tmp_path / "later.json").keys() == {str(tmp_path / "later.json")}
    (tmp_path / "kept.json").write_text("{")
    with pytest.raises(RecordError, match="Fetch the copy from where it was deposited"):
        chain(folder, tmp_path / "kept.json")


def test_the_verb_prints_the_chain_and_ends_with_1_where_it_is_broken(folder, cli, study_file, tmp_path):
    code, output, _ = cli("verify", folder)
    assert (code, output.splitlines()[-1]) == (0, "The chain holds.")
    (folder / "runs" / RUN / "result.json").write_text("{}")
    code, output, _ = cli("verify", folder)
    assert code == 1
    assert f"differs   runs/{RUN}/result.json" in output
    path = study_file()
    assert cli("plan", path, "--out", tmp_path / "planned", "--device", "cpu", "--timestamp")[0] == 0
    deposit = json.loads((tmp_path / "planned" / "deposit.json").read_text())
    plan = Plan.read(tmp_path / "planned" / "plan.lock")
    assert (deposit["plan_hash"], deposit["created"]) == (plan.plan_hash, plan.created)
    assert deposit["git"] == plan.environment.git.model_dump()


def test_every_link_has_a_clause_and_every_clause_a_link():
    source = Path(verify.__file__).read_text()
    words = {text for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant) and (text := node.value)}
    codes = {code.removeprefix("verify.") for code in statements() if code.startswith("verify.")}
    assert codes - {"whole", "broken"} <= words
    links = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Link"
    ]
    named = [node.args[2] for node in links]
    assert {code.value for code in named if isinstance(code, ast.Constant)} <= codes
