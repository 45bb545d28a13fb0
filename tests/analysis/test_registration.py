"""What a study registers for its analysis: stability, tie-breakers, one criterion a question."""

from __future__ import annotations

import pytest

from ablationlab.analysis import analyze, read_results, wording
from ablationlab.core.errors import StudyError
from ablationlab.records.settings import SPIKE_SCORE
from ablationlab.study.checks import study_warnings

from .builder import CRITERIA, build, study


def test_the_defaults_are_part_of_what_is_registered():
    made = study()
    assert made.stability.spike_score == SPIKE_SCORE
    assert made.tie_breakers == ("calibration", "throughput")
    assert study(stability={"spike_score": 8.0}).criteria_hash != made.criteria_hash
    assert study(tie_breakers=["throughput"]).criteria_hash != made.criteria_hash


@pytest.mark.parametrize("named", [(), ("final_gradient_norm",)])
def test_only_measures_of_smoothness_that_the_study_names_are_registered(tmp_path, named):
    made = study(**({"stability": {"smoothness": list(named)}} if named else {}))
    build(tmp_path, made)
    found = analyze(read_results(tmp_path))
    measures = [one for one in found.comparisons if one.metric in ("final_gradient_norm", "mean_gradient_norm")]
    assert {one.metric for one in measures} == {"final_gradient_norm", "mean_gradient_norm"}
    assert {one.metric for one in measures if one.label == "registered"} == set(named)
    assert found.stability.smoothness == named


def test_a_study_that_names_smoothness_has_the_hash_of_plans_sealed_while_it_was_the_default():
    named = study(stability={"smoothness": ["final_gradient_norm", "mean_gradient_norm"]})
    assert named.hash == "a67639371ea3807218a7bbfaa3e739ff0dfda8646aaa657dfbd38087df24af34"
    assert study().hash != named.hash
    assert study().criteria_hash != named.criteria_hash


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stability": {"spike_score": 0}}, "stability.spike_score: is out of range"),
        ({"stability": {"spike_scor": 7.0}}, "did you mean 'spike_score'"),
        ({"tie_breakers": ["a", "a"]}, "given more than once: a"),
        ({"tie_breakers": [""]}, "must not be empty"),
        ({"criteria": [*CRITERIA, CRITERIA[0] | {"alpha": 0.1}]}, "criteria[1]: repeats criteria[0]"),
    ],
)
def test_mistakes_are_named(changes, says):
    with pytest.raises(StudyError) as caught:
        study(**changes)
    assert says in str(caught.value)


def test_a_study_that_is_planned_again_another_day_gives_the_same_numbers(tmp_path):
    for day in ("01", "02"):
        build(tmp_path / day, created=f"2026-01-{day}T00:00:00+00:00")
    first, second = (analyze(read_results(tmp_path / day)) for day in ("01", "02"))
    assert first.source_hash != second.source_hash
    assert first.comparisons == second.comparisons


PRIMARY = {"metric": "validation_loss", "role": "primary", "smallest_effect": 0.05}


@pytest.mark.parametrize(
    ("criteria", "says"),
    [
        (
            [PRIMARY | {"test": "sign-flip"}],
            "criteria[0].test: with 5 seeds p is never below 0.0625, so it cannot reach 0.05",
        ),
        ([PRIMARY | {"test": "wilcoxon"}], "paired-t, or 6 seeds or more"),
        ([PRIMARY | {"alpha": 0.6}], "criteria[0].alpha: is too large to show anything"),
        ([PRIMARY | {"test": "bootstrap"}], "criteria[0].test: calls far more true nulls significant than it says"),
        ([PRIMARY | {"correction": "dunnett"}], "criteria[0].correction: pools the spreads of all variants"),
        (
            [PRIMARY, {"metric": "next_token_accuracy", "role": "secondary", "alpha": 0.1}],
            "criteria[1].alpha: criteria[0] has alpha 0.05; primary and secondary ones are corrected together, at one alpha",
        ),
        ([PRIMARY, {"metric": "token_ece", "role": "guard"}], "criteria[1].margin: a guard needs a margin"),
        (
            [PRIMARY, {"metric": "perplexity", "role": "primary"}],
            "criteria[1].role: regime 'default' already has a primary metric, 'validation_loss'",
        ),
    ],
)
def test_criteria_that_nothing_or_anything_could_meet_are_refused(criteria, says):
    with pytest.raises(StudyError) as caught:
        study(criteria=criteria)
    assert says in str(caught.value)


def test_a_contrast_on_the_primary_metric_may_be_primary_too():
    more = {"metric": "validation_loss", "role": "primary", "contrast": ["layernorm", "none"]}
    assert len(study(criteria=[PRIMARY, more]).criteria) == 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {
                "seeds": [1, 2, 3, 4, 5, 6],
                "variants": ["none", "layernorm", "rmsnorm"],
                "criteria": [PRIMARY | {"test": "sign-flip"}],
            },
            "never gives a p below 0.03125, and it needs 0.025 (alpha, corrected for 2 variants): nothing can be shown",
        ),
        (
            {"criteria": [{"metric": "macro_accuracy", "role": "primary"}], "evaluation": {"tasks": ["suite"]}},
            "without evaluation.gate_seeds no task counts",
        ),
    ],
)
def test_doubtful_criteria_are_named_before_the_runs(changes, says):
    assert any(says in warning for warning in study_warnings(study(**changes)))


def test_an_ordinary_study_has_no_warning():
    assert study_warnings(study()) == ()


def test_a_sealed_plan_that_registered_dunnett_is_read_and_lists_holm_as_a_deviation(tmp_path):
    made = study()
    sealed = tuple(criterion.model_copy(update={"correction": "dunnett"}) for criterion in made.criteria)
    build(tmp_path, made.model_copy(update={"criteria": sealed}))
    analysis = analyze(read_results(tmp_path))
    told = next(deviation for deviation in analysis.deviations if deviation.code == "other-correction")
    assert told.details == {"registered": "dunnett", "applied": "holm"}
    assert "Holm's correction decides" in wording.deviation(told)
    assert {(c.correction, c.label) for c in analysis.comparisons if c.role == "primary"} == {("holm", "registered")}
