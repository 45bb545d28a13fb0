"""Study files that bring their own trainer: every mistake with its place and the nearest match, and the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablationlab.core.errors import PlanError, StudyError
from ablationlab.study.load import load_study
from ablationlab.study.trainers import command_line, metrics_of, plan_own_trainer, program_drift
from conftest import to_toml, with_changes

STUDY = {
    "name": "own",
    "baseline": "base",
    "seeds": [1, 2],
    "command": ["{python}", "train.py", "{arguments}"],
    "metrics": {"val_loss": "lower"},
    "training": {"steps": 5, "lr": 0.1},
    "variants": {"base": {}, "fast": {"training": {"lr": 0.2}}},
}


def study_of(folder, changes=None):
    (folder / "train.py").write_text("print('hello')\n")
    path = folder / "study.toml"
    path.write_text(to_toml(with_changes(STUDY, changes or {})))
    return load_study(path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"command": ["{python}", "trian.py"]}, "did you mean 'train.py'?"),
        ({"command": ["pyton", "train.py"]}, "command[0]: no such program here (got 'pyton'); did you mean 'python'?"),
        ({"directory": "nowhere"}, "directory: no such folder"),
        ({"command": ["{python}", "{sed}"]}, "unknown placeholder {sed}"),
        ({"command": ["{python}", "{training.lrr}"]}, "did you mean 'training.lr'?"),
        ({"command": ["{python}", "x{arguments}"]}, "it must be a separate word"),
        ({"model": {"lr": 3}}, "{arguments} would give --lr twice"),
        ({"metrics": {"val_loss": "smaller"}}, "metrics.val_loss"),
        ({"metrics": ...}, "metrics"),
        ({"patterns": {"val_loss": "loss ("}}, "is not a regular expression"),
        ({"patterns": {"val_loss": "loss (.*)"}}, "needs the groups (?P<step>...) and (?P<value>...)"),
        ({"patterns": {"loss": "loss (?P<value>.*)"}}, "needs the groups (?P<step>...) and (?P<value>...)"),
        ({"trainer": "mine"}, "unknown trainer"),
        ({"timeout": -1}, "timeout"),
        (
            {"variants.fast": {"training": {"lrr": 0.2}}},
            "variants.fast.training.lrr: has no value to compare with: write it for the baseline too, in the study's own "
            "tables; did you mean 'training.lr'?",
        ),
        (
            {"regimes": {"short": {"training": {"step": 2}}, "long": {}}},
            "regimes.short.training.step: has no value to compare with: write it in every regime, or in the study's own "
            "tables; did you mean 'training.steps'?",
        ),
        (
            {"variants": {"base": {}, '"µ-big one"': {"training": {"lr": 0.2}}}},
            "variants.µ-big one: is not a valid name of a variant",
        ),
        (
            {"variants": {"base": {}, '"a<b>c"': {"training": {"lr": 0.2}}}},
            "variants.a<b>c: is not a valid name of a variant",
        ),
        ({"baseline": "bas"}, "baseline: unknown variant (got 'bas'); did you mean 'base'? (allowed: base, fast)"),
        ({"probes": {"residual": 5}}, "probes: is about runs that this package trains"),
        ({"criteria": [{"metric": "val_los", "role": "primary"}]}, "did you mean 'val_loss'?"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_the_nearest_match(tmp_path, changes, text):
    with pytest.raises(StudyError) as refused:
        study_of(tmp_path, changes)
    assert text in str(refused.value)


def test_a_variant_that_changes_nothing_is_refused(tmp_path):
    study = study_of(tmp_path, {"variants.fast.training.lr": 0.1})
    with pytest.raises(PlanError, match="variants that change nothing: fast"):
        plan_own_trainer(study, "cpu")


def test_the_plan_pairs_every_arm_with_the_baseline(tmp_path):
    plan = plan_own_trainer(study_of(tmp_path), "cpu")
    assert [(run.variant, run.seed) for run in plan.runs] == [("base", 1), ("fast", 1), ("base", 2), ("fast", 2)]
    assert [run.settings["training"]["lr"] for run in plan.runs] == [0.1, 0.2, 0.1, 0.2]
    assert {run.steps for run in plan.runs} == {5}
    assert plan.variants["fast"].settings == ("training.lr",)
    assert len({run.id for run in plan.runs}) == 4


def test_a_changed_program_is_drift(tmp_path):
    plan = plan_own_trainer(study_of(tmp_path), "cpu")
    assert program_drift(plan) == ()
    (tmp_path / "train.py").write_text("print('other')\n")
    assert [Path(drift.what).name for drift in program_drift(plan)] == ["train.py"]


def test_a_command_line_has_settings_as_python_writes_them():
    settings = {"training": {"lr": 1e-3, "compile": False, "betas": [0.9, 0.95]}}
    words = command_line(["run", "--seed={seed}", "{arguments}", "{training.lr}"], {"seed": 3}, settings)
    assert words == ["run", "--seed=3", "--lr=0.001", "--compile=False", "--betas=[0.9, 0.95]", "0.001"]


def test_reported_metrics_have_no_unit_and_known_ones_keep_their_transform(tmp_path):
    study = study_of(tmp_path, {"metrics": {"perplexity": "lower", "accuracy_of_mine": "higher"}})
    metrics = metrics_of(study)
    assert metrics["perplexity"].transform == "log"
    assert metrics["accuracy_of_mine"].direction == "higher"
    assert not any(metric.unit == "nats/token" for metric in metrics.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"variants": {"base": {"training": {"opt": "sgd"}}, "fast": {"training": {"opt": "adam"}}}},
        {
            "regimes": {"short": {"training": {"seconds": 1}}, "long": {"training": {"seconds": 2}}},
            "variants": {"base": {}, "fast": {"training": {"seconds": 3}}},
        },
    ],
    ids=["in the baseline's own table", "in every regime"],
)
def test_what_every_arm_has_a_value_of_may_differ(tmp_path, changes):
    assert study_of(tmp_path, changes).variants == ("base", "fast")


def test_settings_that_no_placeholder_passes_are_warned_of(tmp_path):
    from ablationlab.study.checks import study_warnings

    def warned(command):
        study = study_of(tmp_path, {"command": ["{python}", "train.py", *command], "training.momentun": 0.9})
        return [line for line in study_warnings(study) if "placeholder" in line]

    (line,) = warned(["{training.lr}", "{training.steps}"])
    assert "names training.momentun;" in line
    assert warned(["{arguments}"]) == warned(["{settings}"]) == warned([]) == []
