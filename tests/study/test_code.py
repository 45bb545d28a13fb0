"""A study's own code: found, run once, scoped to its study, kept with the results, and named when it fails."""

from __future__ import annotations

import os
import re
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest

from ablationlab.core.code import CodeFile, active, find, place_of, using
from ablationlab.core.errors import CodeError, DataError, PlanError, RunFailure, StudyError, UnknownNameError
from ablationlab.data.corpus import load_corpus
from ablationlab.model.parts import MLPS
from ablationlab.model.rules import OPTIMIZERS, SCHEDULES
from ablationlab.pipeline import Note, Options, conclude, extend, run
from ablationlab.records.analysis import Absence, DeviationCode
from ablationlab.records.metrics import METRICS
from ablationlab.records.results import Results
from ablationlab.records.storage import ResultsFolder
from ablationlab.study.code import code_files, study_code
from ablationlab.study.load import load_study, parse_study
from ablationlab.study.plan import make_plan
from ablationlab.study.variants import VARIANTS, variants_of
from conftest import run_cli, write_study

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_code"
HEAD = "import ablationlab as lab\n"
NARROW = HEAD + "@lab.variant('narrow')\ndef narrow(model):\n    return {'model': {'mlp_ratio': 2}}\n"


PART = (
    HEAD
    + """@lab.part('mlp', 'x')
class X(lab.BlockPart):

    def parameters(self, model, prefix): return []
    def cost(self, model): return None
    def __call__(self, forward, y, prefix): return y
"""
)


def study_with(folder: Path, code: str, name: str = "mine.py", **changes: object) -> Path:
    (folder / name).write_text(code)
    return write_study(folder, {"use": [f"./{name}"], **changes})


def problem(folder: Path, code: str) -> str:
    with pytest.raises(StudyError) as caught:
        load_study(study_with(folder, code))
    (only,) = caught.value.problems
    assert only.key.startswith("use")
    return str(only)


def test_what_a_file_registers_is_known_in_its_study_and_nowhere_else(tmp_path):
    study = load_study(study_with(tmp_path, NARROW, variants=["none", "narrow"]))
    assert "narrow" not in VARIANTS
    with study_code(study):
        assert variants_of(study)["narrow"].apply(study.model).mlp_ratio == 2
    with pytest.raises(UnknownNameError):
        VARIANTS["narrow"]


def test_two_studies_in_one_process_may_use_one_name_for_two_things(tmp_path):
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    codes = [NARROW, NARROW.replace("2", "3")]
    paths = [study_with(*pair, variants=["none", "narrow"]) for pair in zip(folders, codes, strict=True)]
    first, second = (load_study(path) for path in paths)
    ratios = []
    for study in (first, second, first):
        with study_code(study):
            ratios.append(variants_of(study)["narrow"].apply(study.model).mlp_ratio)
    assert ratios == [2, 3, 2]
    assert first.hash != second.hash


def test_everything_of_the_example_is_registered():
    study = load_study(EXAMPLE / "study.toml")
    with study_code(study):
        assert {"gated"} < set(MLPS)
        assert {"signum"} < set(OPTIMIZERS)
        assert {"square"} < set(SCHEDULES)
        assert METRICS["weight_norm"].meaning == "L2 norm of all weights"
        plan = make_plan(study, load_corpus(study.data), "cpu")
    assert plan.variants["gated"].flops
    assert plan.variants["rms"].covers_parameter("blocks.0.norm1.bias")
    assert not plan.variants["rms"].covers_parameter("blocks.0.norm1.gain")
    assert plan.variants["sinusoidal"].parameters == ("pos.weight",)
    assert plan.variants["z-loss"].parameters == ()
    assert plan.metrics["weight_norm"].family == "diagnostics"
    assert plan.corpus.source == "the study's own code"


@pytest.mark.parametrize(
    ("code", "texts"),
    [
        ("import nowhere_to_be_found\n", ["mine.py, line 1", "ModuleNotFoundError"]),
        ("\ndef f(:\n", ["mine.py, line 2", "SyntaxError"]),
        ("\n\n1 / 0\n", ["mine.py, line 3", "ZeroDivisionError"]),
        ("import sys\nsys.exit(0)\n", ["mine.py, line 2", "SystemExit: 0"]),
        (HEAD + "@lab.variant('none')\ndef f(model): ...\n", ["mine.py, line 2", "variant 'none' is taken"]),
        (HEAD + "@lab.schedule('s')\ndef f(step): ...\n", ["mine.py, line 2", "must take three arguments", "f(step)"]),
        (HEAD + "@lab.variant('v')\ndef f(): ...\n", ["mine.py, line 2", "must take one argument"]),
        (HEAD + "@lab.part('mpl', 'x')\nclass X: ...\n", ["unknown kind of part 'mpl'", "attention, mlp, norm"]),
        (HEAD + "@lab.part('mlp', 'x')\nclass X: ...\n", ["must be a class that inherits from lab.BlockPart"]),
        (HEAD + "@lab.part('mlp', 'x')\nclass X(lab.BlockPart): ...\n", ["lacks __call__, cost, parameters"]),
        (HEAD + "lab.metric('m', meaning='', direction='down')(len)\n", ["'down'", "'lower', 'higher', None"]),
        (HEAD + "@lab.schedule\ndef f(training, step, steps): ...\n", ["mine.py, line 2", "@lab.schedule('mine')"]),
        (HEAD + "@lab.metric('m')\ndef f(run): ...\n", ["mine.py, line 2", "'meaning' and 'direction'"]),
        (HEAD + "@lab.metric('m', meaning='', direction=None)\ndef f(): ...\n", ["line 2", "must take one argument"]),
        (HEAD + "@lab.probe('p', meaning='', measures={})\ndef f(): ...\n", ["line 2", "must take one argument"]),
        (HEAD + "@lab.task('t', meaning='')\ndef f(text): ...\n", ["line 2", "must take four arguments"]),
        (HEAD + "@lab.corpus('c', meaning='')\ndef f(x): ...\n", ["line 2", "must take no arguments", "f(x)"]),
        (HEAD + "@lab.optimizer('o')\ndef f(): ...\n", ["line 2", "must take one argument"]),
        (HEAD + "@lab.trainer('t', metrics={'a': 'lower'})\ndef f(): ...\n", ["line 2", "must take one argument"]),
        (HEAD + "@lab.part('loss', 'l')\ndef f(logits): ...\n", ["line 2", "must take three arguments"]),
        (PART.replace("cost(self, model)", "cost(self)"), ["mine.py, line 6", "cost of mlp 'x'", "cost(self)"]),
        (PART.replace("forward, y, prefix", "y"), ["mine.py, line 7", "__call__ of mlp 'x'", "__call__(self, y)"]),
        (PART.replace("def cost(self, model): return None", "cost = 3"), ["cost of mlp 'x' is not a method"]),
        (PART + "    def __init__(self, ratio): ...\n", ["the class of mlp 'x' must take no arguments"]),
        (PART.replace("'mlp'", "'head'").replace("BlockPart", "Head"), ["parameters of head 'x'"]),
    ],
    ids=lambda value: value[-40:] if isinstance(value, str) else "",
)
def test_a_mistake_in_the_code_is_named_with_its_file_and_line_when_the_study_is_loaded(tmp_path, code, texts):
    found = problem(tmp_path, code)
    assert all(text in found for text in texts), found


@pytest.mark.parametrize("value", ["None", "3", "[('model', {})]"])
def test_a_variant_that_returns_no_table_is_named_with_its_file_and_line(tmp_path, value):
    code = HEAD + f"@lab.variant('v')\ndef f(model):\n    return {value}\n"
    with pytest.raises(StudyError) as caught:
        load_study(study_with(tmp_path, code, variants=["none", "v"]))
    (only,) = caught.value.problems
    assert only.key == "variants.v"
    assert "mine.py, line 2: variant 'v' must return a table of overrides" in str(only)


@pytest.mark.parametrize("value", ["{'model': 3}", "{'model': {'widht': 3}}"])
def test_what_a_variant_returns_wrongly_is_placed_when_the_study_is_planned(tmp_path, value):
    code = HEAD + f"@lab.variant('v')\ndef f(model):\n    return {value}\n"
    study = load_study(study_with(tmp_path, code, variants=["none", "v"]))
    with study_code(study), pytest.raises(PlanError, match=r"mine\.py, line 2: variant 'v' makes an impossible model"):
        make_plan(study, load_corpus(study.data), "cpu")


@pytest.mark.parametrize(("value", "named"), [("b'abc' * 1000", "not bytes"), ("''", "not an empty one")])
def test_a_corpus_that_is_no_text_is_named_by_its_type(tmp_path, value, named):
    code = HEAD + f"@lab.corpus('mine', meaning='m')\ndef f():\n    return {value}\n"
    study = load_study(study_with(tmp_path, code, data={"corpus": "mine"}))
    with study_code(study), pytest.raises(DataError, match=f"must return a text, {named}$"):
        load_corpus(study.data)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("float('nan') if step > 3 else 1", r"line 2: schedule 's' gives nan \(float\) at step 4 of"),
        ("-0.5", r"line 2: schedule 's' gives -0.5 \(float\) at step 1 of"),
        ("[1]", r"line 2: schedule 's' gives \[1\] \(list\) at step 1 of"),
        ("1 / (steps - step)", r"line 4, in s: schedule 's' raises at step (\d+) of \1: ZeroDivisionError"),
    ],
)
def test_every_factor_of_a_schedule_is_checked_when_the_study_is_planned(tmp_path, value, text):
    code = HEAD + f"@lab.schedule('s')\ndef s(training, step, steps):\n    return {value}\n"
    variants = {"none": {}, "v": {"training": {"schedule": "s"}}}
    study = load_study(study_with(tmp_path, code, variants=variants))
    with study_code(study), pytest.raises(PlanError, match=text):
        make_plan(study, load_corpus(study.data), "cpu")


def test_a_missing_file_and_an_unknown_entry_point_are_named(tmp_path):
    path = write_study(tmp_path, {"use": ["./gone.py", "not-installed"]})
    with pytest.raises(StudyError) as caught:
        load_study(path)
    texts = {problem.key: str(problem) for problem in caught.value.problems}
    assert "cannot be read: No such file" in texts["use[0]"]
    assert "entry point of the group 'ablationlab'" in texts["use[1]"]


@pytest.mark.parametrize(
    ("changes", "key", "text"),
    [
        ({"model.mlp": "gatd"}, "model.mlp", "did you mean 'gated'?"),
        ({"training.optimizer": "signun"}, "training.optimizer", "did you mean 'signum'?"),
        ({"training.schedule": "squar"}, "training.schedule", "did you mean 'square'?"),
        ({"model.options": {"z_los": 1.0}}, "model.options.z_los", "did you mean 'z_loss'?"),
        ({"model.loss_terms": ["zloss"]}, "model.loss_terms[0]", "did you mean 'z-loss'?"),
        ({"probes": {"token-means": 5}}, "probes.token-means", "did you mean 'token-mean'?"),
    ],
)
def test_a_misspelt_name_of_own_code_is_answered_with_the_nearest(tmp_path, changes, key, text):
    shutil.copy(EXAMPLE / "mine.py", tmp_path)
    with pytest.raises(StudyError) as caught:
        load_study(write_study(tmp_path, {"use": ["./mine.py"], **changes}))
    assert text in {problem.key: str(problem) for problem in caught.value.problems}[key]


@pytest.mark.parametrize("code", [None, "1 / 0"])
def test_code_that_cannot_be_run_is_the_only_problem_beside_those_that_it_does_not_explain(tmp_path, code):
    """What the file would have registered is not called unknown; a wrong key still is."""
    if code is not None:
        (tmp_path / "mine.py").write_text(code)
    tables = {"none": {}, "gated": {"model": {"mlp": "gated"}}}
    changes = {"use": ["./mine.py"], "variants": tables, "training.optimizer": "lion", "training.lrr": 1}
    with pytest.raises(StudyError) as caught:
        load_study(write_study(tmp_path, changes))
    assert sorted(problem.key.partition("[")[0] for problem in caught.value.problems) == ["training.lrr", "use"]
    trained = tmp_path / "own.toml"
    trained.write_text(
        'name = "own"\nuse = ["./mine.py"]\ntrainer = "mine"\nbaseline = "a"\nseeds = [1]\n[variants.a]\n'
    )
    with pytest.raises(StudyError) as caught:
        load_study(trained)
    assert [problem.key.partition("[")[0] for problem in caught.value.problems] == ["use"]


def test_mended_code_is_named_as_another_study(tmp_path):
    code = HEAD + "@lab.optimizer('mine')\ndef mine(step):\n    return step.weights * (1 / 0)\n"
    path = study_with(tmp_path, code, **{"training.optimizer": "mine", "variants": ["none", "rmsnorm"], "seeds": [1]})
    with pytest.raises(RunFailure, match=r"a corrected file is another study: give it another folder with --out"):
        run(path, tmp_path / "out", workers=1)
    (tmp_path / "mine.py").write_text(code.replace("1 / 0", "1.0"))
    with pytest.raises(PlanError, match=r"Sealed and asked for: use\.mine\.py '\w{12}' -> '\w{12}'\."):
        run(path, tmp_path / "out", workers=1)


def test_the_code_is_kept_with_the_results_and_only_training_needs_it(tmp_path):
    metric = "@lab.metric('steps', meaning='steps', direction=None)\ndef steps(run): return len(run.losses)\n"
    path = study_with(tmp_path, NARROW + metric, variants=["none", "narrow"])
    run(path, tmp_path / "out", workers=1)
    study = load_study(path)
    results = ResultsFolder(tmp_path / "out")
    assert (results.code / "mine.py").read_text() == NARROW + metric
    assert code_files(study, results)[0].path == results.code / "mine.py"
    (tmp_path / "mine.py").unlink()
    shutil.rmtree(results.code)
    analysis, _ = conclude(tmp_path / "out")
    assert analysis.comparison("validation_loss", "default", "narrow", "none") is not None
    opened = Results.open(tmp_path / "out")
    assert {run.result.metrics["steps"] for run in opened.runs if run.result} == {12.0}
    assert opened.metric("steps").meaning == "steps"


def test_code_that_raises_in_training_is_named_with_its_file_and_line(tmp_path):
    code = HEAD + "@lab.optimizer('broken')\ndef broken(step):\n    return step.weights / 0 + nothing\n"
    path = study_with(tmp_path, code, variants={"none": {}, "b": {"training": {"optimizer": "broken"}}})
    with pytest.raises(RunFailure, match=r"mine.py, line 4, in broken: NameError: name 'nothing'"):
        run(path, tmp_path / "out", workers=1)


def test_an_error_from_elsewhere_has_no_place():
    with pytest.raises(ValueError, match="x") as caught:
        int("x")
    assert place_of(caught.value) is None


def test_changed_code_is_another_study(tmp_path):
    first = load_study(study_with(tmp_path, NARROW))
    assert parse_study(first.model_dump(mode="json")) == first
    second = load_study(study_with(tmp_path, NARROW + "# another line\n"))
    assert first.hash != second.hash
    with pytest.raises(StudyError, match=r"mine\.py has changed since the study was planned"):
        parse_study(first.model_dump(mode="json"))


def test_a_file_that_changes_after_it_was_found_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text("first = 1\n")
    found = find("mine.py", tmp_path)
    (tmp_path / "mine.py").write_text("second = 2\n")
    with pytest.raises(CodeError, match="has changed"), using([found]):
        pass
    assert active() == ()
    assert isinstance(found, CodeFile)


def test_a_package_gives_code_by_its_entry_point(tmp_path, monkeypatch):
    site = tmp_path / "site"
    (site / "labparts-1.0.dist-info").mkdir(parents=True)
    (site / "labparts-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: labparts\nVersion: 1.0\n")
    (site / "labparts-1.0.dist-info/entry_points.txt").write_text("[ablationlab]\nnarrow-parts = labparts\n")
    (site / "labparts.py").write_text(NARROW)
    monkeypatch.syspath_prepend(site)
    study = load_study(write_study(tmp_path, {"use": ["narrow-parts"], "variants": ["none", "narrow"]}))
    (code,) = study.use
    assert (code.name, code.entry_point, Path(code.path)) == ("narrow-parts", True, site / "labparts.py")
    with study_code(study):
        assert variants_of(study)["narrow"].apply(study.model).mlp_ratio == 2
    assert "narrow" not in VARIANTS


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package whose entry points name it and its module `wide`; each registers what `parts` and it hold."""
    site = tmp_path / "site"
    (site / "labpack-1.0.dist-info").mkdir(parents=True)
    (site / "labpack-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: labpack\nVersion: 1.0\n")
    points = "[ablationlab]\npack = labpack\npack-wide = labpack.more.wide\n"
    (site / "labpack-1.0.dist-info/entry_points.txt").write_text(points)
    (site / "labpack/more").mkdir(parents=True)
    unique = f"# {tmp_path}\n"  # else the process has run it for another test
    (site / "labpack/__init__.py").write_text(f"{unique}from labpack import parts\n")
    (site / "labpack/parts.py").write_text(NARROW)
    (site / "labpack/more/__init__.py").write_text("")
    (site / "labpack/more/wide.py").write_text(NARROW.replace("narrow", "wide").replace("2", "8"))
    monkeypatch.syspath_prepend(site)
    yield site / "labpack"
    for name in [name for name in sys.modules if name.partition(".")[0] == "labpack"]:
        del sys.modules[name]


def ratio(folder: Path, entry: str = "pack", variant: str = "narrow") -> tuple[float, str]:
    study = load_study(write_study(folder, {"use": [entry], "variants": ["none", variant]}))
    with study_code(study):
        return variants_of(study)[variant].apply(study.model).mlp_ratio, study.hash


def test_every_file_of_a_package_is_hashed_and_the_hashed_one_is_run(tmp_path, package):
    first, before = ratio(tmp_path)
    (package / "parts.py").write_text(NARROW.replace("2", "3.25"))
    second, after = ratio(tmp_path)
    assert (first, second) == (2, 3.25)
    assert before != after


def test_a_package_that_changes_after_it_was_found_is_refused(tmp_path, package):
    code = find("pack", tmp_path)
    (package / "parts.py").write_text(NARROW.replace("2", "3.25"))
    with (
        pytest.raises(CodeError, match=r"the package labpack .* has changed since the study was planned"),
        using([code]),
    ):
        pass


def test_a_package_that_was_imported_before_gives_its_code_by_its_entry_point(tmp_path, package):
    import_module("labpack.parts")
    assert ratio(tmp_path)[0] == 2


def test_the_entry_points_of_one_package_each_give_what_they_import(tmp_path, package):
    assert ratio(tmp_path)[0] == 2
    assert ratio(tmp_path, "pack-wide", "wide")[0] == 8
    assert ratio(tmp_path, "pack-wide", "narrow")[0] == 2


def test_a_package_that_fails_leaves_the_modules_that_were_imported(tmp_path, package):
    before = import_module("labpack.parts")
    (package / "parts.py").write_text("1 / 0\n")
    with pytest.raises(StudyError, match=r"parts\.py, line 1, in <module>: ZeroDivisionError"):
        ratio(tmp_path)
    assert sys.modules["labpack.parts"] is before


ATTENTION_AND_HEAD = (
    HEAD
    + """
@lab.part("attention", "unbiased")
class Unbiased(lab.BlockPart):
    def parameters(self, model, prefix):
        width = model.width
        return [
            *lab.linear(f"{prefix}.qkv", width, 3 * width, model.init_std, bias=False),
            *lab.linear(f"{prefix}.out", width, width, model.init_std, bias=False),
        ]

    def cost(self, model):
        return lab.PartCost(8 * model.width**2, 4 * model.context * model.width)

    def __call__(self, forward, y, prefix):
        qkv, bias = forward.layer(y, f"{prefix}.qkv")
        out, _ = forward.layer(forward.attention(qkv, bias, forward.model.heads, prefix), f"{prefix}.out")
        return out, None


@lab.part("head", "capped")
class Capped(lab.Head):
    def parameters(self, model):
        return []

    def __call__(self, forward, y):
        return 5 * (forward.linear_head(y) / 5).tanh()
"""
)


def test_attention_and_head_of_ones_own_are_trained_and_compared(tmp_path):
    arms = {"none": {}, "unbiased": {"model": {"attention": "unbiased"}}, "capped": {"model": {"head": "capped"}}}
    path = study_with(tmp_path, ATTENTION_AND_HEAD, variants=arms, seeds=[1])
    run(path, tmp_path / "out", workers=1, listen=lambda event: None)
    results = Results.open(tmp_path / "out")
    losses = {run.variant: run.result.metrics["validation_loss"] for run in results.runs}
    assert len(set(losses.values())) == 3
    starts = {run.variant: set(run.record.initial_weights) for run in results.runs}
    assert starts["none"] - starts["unbiased"] == {
        name for name in starts["none"] if ".attn." in name and name.endswith("bias")
    }
    assert starts["capped"] == starts["none"]


RATES = HEAD + "@lab.schedule('flat')\ndef flat(training, step, steps):\n    return 0.5\n"


TASK = (
    HEAD
    + """
@lab.task("case", meaning="a line against the same line in capitals")
def case(source, known, room, generator):
    for line in source.text.splitlines():
        if 10 < len(line) < room // 2 and line != line.upper():
            yield lab.Item("", (line, line.upper()), 0)
"""
)


def test_own_code_is_run_by_the_processes_of_torchrun(tmp_path):
    path = study_with(
        tmp_path,
        RATES,
        variants={"none": {}, "flat": {"training": {"schedule": "flat"}}},
        seeds=[1],
        execution={"parallel": "ddp"},
    )
    run(path, tmp_path / "out", executor="torchrun", nproc=1, device="cpu", listen=lambda event: None)
    curves = {run.variant: run.curves["lr"] for run in Results.open(tmp_path / "out").runs}
    assert len(set(curves["flat"])) == 1 < len(set(curves["none"]))


def test_a_task_of_ones_own_is_asked_of_every_run(tmp_path):
    path = study_with(tmp_path, TASK, seeds=[1], evaluation={"tasks": ["case"], "items": 10}, **{"model.context": 64})
    run(path, tmp_path / "out", workers=1, device="cpu", listen=lambda event: None)
    for trained in Results.open(tmp_path / "out").runs:
        (task,) = trained.evaluation.tasks
        assert (task.task, task.items) == ("case", 10)


def test_a_study_with_parts_of_its_own_runs_from_the_command_line(tmp_path):
    arms = {"none": {}, "gated": {"model": {"mlp": "gated"}}}
    path = study_with(tmp_path, (EXAMPLE / "mine.py").read_text(), variants=arms, seeds=[1])
    ended = run_cli("run", path, "--out", tmp_path / "out", "--no-report", "--device", "cpu", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert {run.variant for run in Results.open(tmp_path / "out").runs if run.done} == set(arms)


def test_plan_knows_the_parts_of_a_study_and_places_their_errors(tmp_path, capsys):
    from ablationlab.cli.app import main

    code = (EXAMPLE / "mine.py").read_text()
    broken = code.replace("width, hidden = model.width, self.hidden(model)", "raise ValueError('no width')")
    assert broken != code
    answers = []
    for name, text in (("good", code), ("broken", broken)):
        folder = tmp_path / name
        folder.mkdir()
        study = study_with(folder, text, variants={"none": {}, "gated": {"model": {"mlp": "gated"}}})
        with pytest.raises(SystemExit) as ended:
            main(["plan", str(study), "--out", str(folder / "out"), "--device", "cpu"])
        answers.append((ended.value.code, capsys.readouterr().err))
    assert answers[0] == (0, "")
    assert answers[1][0] == 2
    assert f"{tmp_path / 'broken' / 'mine.py'}, line " in answers[1][1]
    assert answers[1][1].strip().endswith("in parameters: ValueError: no width")


def plan_with_gated(folder: Path, before: str, after: str, match: str) -> None:
    code = (EXAMPLE / "mine.py").read_text().split('@lab.part("norm"')[0]
    assert before in code
    tables = {"none": {}, "gated": {"model": {"mlp": "gated"}}}
    study = load_study(study_with(folder, code.replace(before, after), variants=tables, **{"budget.match": match}))
    with study_code(study):
        make_plan(study, load_corpus(study.data), "cpu")


@pytest.mark.parametrize("match", ["tokens", "flops"])
def test_flops_that_a_part_declares_wrongly_are_refused_when_the_study_is_planned(tmp_path, match):
    plan_with_gated(tmp_path, "PartCost(6 *", "PartCost(6 *", match)
    with pytest.raises(PlanError) as caught:
        plan_with_gated(tmp_path, "PartCost(6 *", "PartCost(2 *", match)
    # One layer of width 16 with hidden width round(2.667 * 16) = 43: what is missing is 3 * (6 - 2) * 16 * 43.
    declared, counted = (
        int(number.replace(",", "")) for number in re.findall(r"([\d,]{4,}) (?:matrix|are)", str(caught.value))
    )
    assert counted - declared == 3 * 4 * 16 * 43
    assert "mine.py" in str(caught.value)


def test_flops_that_depend_on_values_are_refused_only_where_they_are_the_budget(tmp_path):
    before, after = "F.silu(gate) * up", "F.silu(gate) * (up if float(up.sum()) else up)"
    plan_with_gated(tmp_path, before, after, "tokens")
    with pytest.raises(PlanError, match=r"FLOPs cannot be counted: .*mine\.py, line \d+, in __call__"):
        plan_with_gated(tmp_path, before, after, "flops")


def test_code_that_changed_within_a_second_is_the_code_that_runs(tmp_path):
    # Bytecode is stamped by the second and by size, so that of the first version would pass for the second.
    ratios = []
    for ratio in (2, 3):
        path = study_with(tmp_path, NARROW.replace("2}", f"{ratio}}}"), variants=["none", "narrow"])
        os.utime(tmp_path / "mine.py", (1e9, 1e9))
        study = load_study(path)
        with study_code(study):
            ratios.append(variants_of(study)["narrow"].apply(study.model).mlp_ratio)
    assert ratios == [2, 3]


def test_what_a_part_returns_is_refused_when_planning_if_it_cannot_be_used(tmp_path):
    code = PART.replace("return None", "return lab.PartCost(0)")
    study = load_study(study_with(tmp_path, code, variants={"none": {}, "x": {"model": {"mlp": "x"}}}))
    with (
        study_code(study),
        pytest.raises(PlanError, match=r"mine\.py: variant 'x' cannot be computed with these parts"),
    ):
        make_plan(study, load_corpus(study.data), "cpu")


IMPORTING = HEAD + "from helpers import RATIO\n" + NARROW.removeprefix(HEAD).replace("2}", "RATIO}")


def test_files_of_a_study_import_each_other_and_each_study_has_its_own(tmp_path):
    ratios = []
    for name, value in (("a", 2), ("b", 3)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "helpers.py").write_text(f"RATIO = {value}\n")
        (folder / "mine.py").write_text(IMPORTING)
        study = load_study(write_study(folder, {"use": ["./mine.py", "helpers.py"], "variants": ["none", "narrow"]}))
        with study_code(study):
            ratios.append(variants_of(study)["narrow"].apply(study.model).mlp_ratio)
    assert ratios == [2, 3]
    assert "helpers" not in sys.modules


def test_workers_run_the_sealed_copies_of_files_that_import_each_other(tmp_path):
    (tmp_path / "helpers.py").write_text("RATE = 0.25\n")
    code = (
        HEAD + "@lab.schedule('mine')\ndef mine(training, step, steps):\n    import helpers\n    return helpers.RATE\n"
    )
    (tmp_path / "mine.py").write_text(code)
    changes = {"use": ["./mine.py", "./helpers.py"], "training.schedule": "mine", "seeds": [1]}
    path = write_study(tmp_path, {**changes, "variants": ["none", "rmsnorm"]})
    run(path, tmp_path / "out", workers=2, device="cpu", listen=lambda event: None)
    (tmp_path / "helpers.py").unlink()
    results = Results.open(tmp_path / "out")
    assert {rate / run.record.training.lr for run in results.runs for rate in run.curves["lr"]} == {0.25}


@pytest.mark.parametrize(
    ("line", "texts"),
    [
        ("import helpers", ["mine.py, line 2", "add './helpers.py' to `use`"]),
        ("def late():\n    from helpers import RATIO", ["mine.py, line 3", "add './helpers.py' to `use`"]),
        ("from .helpers import RATIO", ["mine.py, line 2", "write `import helpers` without the dot"]),
    ],
)
def test_a_neighbour_that_the_study_does_not_list_is_named(tmp_path, line, texts):
    (tmp_path / "helpers.py").write_text("RATIO = 2\n")
    found = problem(tmp_path, f"{HEAD}{line}\n")
    assert all(text in found for text in texts), found


FRAGILE = (
    HEAD
    + """
from pathlib import Path

@lab.metric('fragile', meaning='of a file', direction='lower')
def fragile(run):
    return float(Path(FILE).read_text()) + run.seed
"""
)


def test_a_metric_that_raises_costs_its_own_value_alone_and_is_tried_again(tmp_path, capsys):
    file = tmp_path / "value.txt"
    code = FRAGILE.replace("FILE", repr(str(file)))
    path = study_with(tmp_path, code, variants=["none", "rmsnorm"], seeds=[1, 2, 3], evaluation={"tasks": []})
    notes = []
    run(path, tmp_path / "out", workers=1, listen=notes.append)
    (note,) = [event.text for event in notes if isinstance(event, Note)]
    assert "'fragile' has no value for 6 runs" in note
    assert "mine.py, line 7, in fragile: FileNotFoundError" in note
    before = Results.open(tmp_path / "out")
    assert all(run.result.metrics["fragile"] is None for run in before.runs)
    assert all(run.result.metrics["validation_loss"] is not None for run in before.runs)
    comparison = before.analysis.comparison("fragile", "default", "rmsnorm", "none")
    assert {missing.reason for missing in comparison.missing} == {Absence.METRIC_FAILED}
    weights = [run.result.weights_sha256 for run in before.runs]

    file.write_text("2.5")
    run(path, tmp_path / "out", workers=1, listen=lambda event: None)
    after = Results.open(tmp_path / "out", strict=True)
    assert [run.result.metrics["fragile"] - run.seed for run in after.runs] == [2.5] * 6
    assert [run.result.weights_sha256 for run in after.runs] == weights
    assert all(run.result.unmeasured == {} for run in after.runs)
    assert DeviationCode.ALTERED_RECORDS not in {deviation.code for deviation in after.analysis.deviations}


def test_the_study_file_of_results_is_enough_to_look_at_them_where_its_code_is_absent(tmp_path, monkeypatch, capsys):
    from ablationlab.cli.app import main

    monkeypatch.chdir(tmp_path)
    path = study_with(tmp_path, NARROW, variants=["none", "narrow"], name="mine.py")
    run(path, workers=1, listen=lambda event: None)
    folder = next(Path("results").iterdir())
    (tmp_path / "mine.py").unlink()
    for verb in (["analyze", path.name], ["status", path.name], ["diff", path.name, str(folder)], ["ls"]):
        with pytest.raises(SystemExit) as ended:
            main(verb)
        answer = capsys.readouterr()
        assert ended.value.code == 0, answer.err
        if verb[0] == "status":
            assert "uses code that is not there" in answer.out
    run(folder, workers=1, listen=lambda event: None)  # from the sealed copy
    extended = extend(folder, Options(workers=1), seeds=[11], listen=lambda event: None)
    assert extended is not None
    assert {run.seed for run in Results.open(folder).runs} >= {11}
