"""From a results folder to analysis.json."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats as scipy_stats
from statsmodels.stats.multitest import multipletests

from ablationlab.analysis import analyze, read_results
from ablationlab.analysis.verdict import decide
from ablationlab.analysis.wording import absence, deviation
from ablationlab.core.errors import MismatchError, RecordError, StatisticsError
from ablationlab.records.analysis import Analysis
from ablationlab.records.environment import Drift
from ablationlab.records.plan import Plan
from ablationlab.records.storage import ResultsFolder

from .builder import CRITERIA, ENVIRONMENT, HYPOTHESES, build, calm, make_plan, outcome, seal_again, study, write_run

PRIMARY = "validation_loss/default/layernorm:none"


def codes(analysis):
    return [deviation.code for deviation in analysis.deviations]


def find(analysis, name):
    return next(one for one in analysis.comparisons if one.id == name)


def test_a_registered_comparison_agrees_with_scipy(tmp_path):
    build(tmp_path)
    found = analyze(read_results(tmp_path))
    one = find(found, PRIMARY)
    a, b = ([outcome(v, "default", s)["validation_loss"] for s in range(1, 6)] for v in ("layernorm", "none"))
    theirs = scipy_stats.ttest_rel(a, b)
    assert (one.label, one.role, one.n, one.planned_pairs, one.outcome) == ("registered", "primary", 5, 5, "better")
    assert one.p == pytest.approx(theirs.pvalue, rel=1e-9)
    interval = theirs.confidence_interval()
    assert one.main_interval.low == pytest.approx(interval.low, rel=1e-9)
    assert one.main_interval.high == pytest.approx(interval.high, rel=1e-9)
    assert one.delta == pytest.approx(np.mean(np.subtract(a, b)))
    assert set(one.intervals) == {"paired-t", "percentile", "bca", "bootstrap-t"}
    assert set(one.tests) == {"paired-t", "sign-flip", "bootstrap", "wilcoxon"}
    assert one.equivalence is not None
    assert one.equivalence.equivalent is False
    assert [pair.seed for pair in one.pairs] == [1, 2, 3, 4, 5]
    assert codes(found) == []


def test_perplexity_is_tested_as_log_and_shown_as_a_ratio(tmp_path):
    build(tmp_path)
    found = analyze(read_results(tmp_path))
    one = find(found, "perplexity/default/layernorm:none")
    assert one.transform == "log"
    assert one.delta == pytest.approx(find(found, PRIMARY).delta)
    assert one.ratio.ratio == pytest.approx(math.exp(one.delta))
    assert one.label == "exploratory"
    assert one.role is None


def test_the_same_folder_gives_the_same_bytes(tmp_path):
    build(tmp_path, study(seeds=list(range(12))))  # beyond 8 pairs the bootstrap draws
    first, second = (analyze(read_results(tmp_path)).to_bytes() for _ in range(2))
    assert first == second
    assert Analysis.model_validate_json(first).to_bytes() == first


def test_another_metric_changes_no_other_number(tmp_path):
    seeds = {"seeds": list(range(12))}
    build(tmp_path / "a", study(**seeds))
    build(tmp_path / "b", study(**seeds), lambda *cell: {**outcome(*cell), "bits_per_byte": 1.0 + cell[2] % 5})
    one, other = (find(analyze(read_results(tmp_path / name)), PRIMARY) for name in "ab")
    assert one.intervals == other.intervals
    assert one.tests == other.tests


def test_the_primary_family_is_corrected_by_holm_and_a_function_of_the_metric_shares_its_test(tmp_path):
    arms = ["none", "layernorm", "rmsnorm"]
    criteria = [*CRITERIA, {**CRITERIA[0], "regime": "hot"}]
    made = study(variants=arms, criteria=criteria, regimes={"hot": {"training": {"lr": 0.01}}})

    def outcomes(variant, regime, seed):
        shift = {"none": 0.0, "layernorm": -0.02, "rmsnorm": 0.015}[variant] * (2 if regime == "hot" else 1)
        loss = 2 + shift + 0.01 * np.random.default_rng([seed, arms.index(variant)]).normal()
        return {"validation_loss": loss, "perplexity": math.exp(loss), "bits_per_byte": 1.4 * loss}

    build(tmp_path, made, outcomes)
    found = analyze(read_results(tmp_path))
    primary = [c for c in found.comparisons if c.metric == "validation_loss" and c.reference == "none"]
    theirs = multipletests([c.p for c in primary], method="holm")[1]
    assert [c.p_adjusted for c in primary] == pytest.approx(list(theirs))
    family = next(family for family in found.families if family.id == "primary/holm")
    assert family.members == tuple(c.id for c in primary)
    for mine in primary:
        for name, scale in (("perplexity", 1.0), ("bits_per_byte", 1.4)):
            other = find(found, mine.id.replace("validation_loss", name))
            assert (other.p, other.p_adjusted, other.outcome) == (mine.p, mine.p_adjusted, mine.outcome)
            assert (other.shares_test_of, other.label) == (mine.id, "exploratory")
            assert other.deciding.level == pytest.approx(mine.deciding.level)
            assert other.deciding.low == pytest.approx(scale * mine.deciding.low)
        # The interval that is printed is the one that decides.
        shown = mine.outcome in ("better", "worse")
        assert (mine.main_interval.low > 0 or mine.main_interval.high < 0) == shown
    assert not any("perplexity" in name for family in found.families for name in family.members)


@pytest.mark.parametrize(("correction", "factor"), [("none", 1), ("bonferroni", 2)])
def test_the_registered_correction_is_applied(tmp_path, correction, factor):
    made = study(variants=["none", "layernorm", "rmsnorm"], criteria=[{**CRITERIA[0], "correction": correction}])
    build(tmp_path, made)
    one = find(analyze(read_results(tmp_path)), PRIMARY)
    assert one.p_adjusted == pytest.approx(min(1, factor * one.p))


def test_the_registered_test_feeds_the_correction(tmp_path):
    build(tmp_path, study(criteria=[{**CRITERIA[0], "test": "sign-flip", "interval": "bca", "alpha": 0.1}]))
    one = find(analyze(read_results(tmp_path)), PRIMARY)
    assert one.p == one.tests["sign-flip"].p == 0.0625
    assert one.main_interval.method == "sign-flip"  # the interval that belongs to the test
    assert one.main_interval.level == pytest.approx(0.9)
    assert one.outcome == "better"


def test_a_contrast_is_compared_and_a_criterion_registers_it(tmp_path):
    criteria = [*CRITERIA, {"metric": "validation_loss", "contrast": ["layernorm", "rmsnorm"], "role": "secondary"}]
    arms = ["none", "layernorm", "rmsnorm"]
    build(tmp_path, study(variants=arms, contrasts=[["layernorm", "rmsnorm"]], criteria=criteria))
    one = find(analyze(read_results(tmp_path)), "validation_loss/default/layernorm:rmsnorm")
    assert (one.label, one.role) == ("registered", "secondary")


def test_a_contrast_with_the_baseline_is_no_second_comparison(tmp_path):
    criteria = [{**CRITERIA[0], "contrast": ["none", "layernorm"]}]
    build(tmp_path, study(contrasts=[["none", "layernorm"]], criteria=criteria))
    found = analyze(read_results(tmp_path))
    assert [one.id for one in found.comparisons if one.metric == "validation_loss"] == [PRIMARY]
    assert find(found, PRIMARY).label == "registered"


def test_a_diverged_run_is_reported_counts_as_unstable_and_leaves_fewer_pairs(tmp_path):
    build(tmp_path, outcomes=lambda v, r, s: None if (v, s) == ("none", 2) else outcome(v, r, s))
    found = analyze(read_results(tmp_path))
    one = find(found, PRIMARY)
    assert (one.n, one.planned_pairs) == (4, 5)
    assert [(m.seed, m.arm, absence(m)) for m in one.missing] == [(2, "none", "diverged at step 60 (loss is NaN)")]
    assert {"survivors-only", "fewer-pairs-than-planned"} <= {caveat.code for caveat in one.caveats}
    assert "diverged-runs" in codes(found)
    arm = found.stability.arm("none", "default")
    assert (arm.diverged, arm.unstable_runs, arm.unstable) == (1, 1, True)
    gain = found.stability.gain("layernorm", "none", "default")
    assert (gain.n, gain.rescued, gain.estimate) == (5, 1, 0.2)


def test_a_study_may_register_that_survivors_are_not_compared(tmp_path):
    registered = study(stability={"diverged": "refuse"})
    build(tmp_path, registered, outcomes=lambda v, r, s: None if (v, s) == ("none", 2) else outcome(v, r, s))
    found = analyze(read_results(tmp_path))
    one = find(found, PRIMARY)
    assert (one.n, one.planned_pairs, one.delta, one.p, one.pairs) == (0, 5, None, None, ())
    assert [caveat.code for caveat in one.caveats] == ["refused-for-divergence"]
    assert found.stability.gain("layernorm", "none", "default").n == 5


def test_a_spiking_run_makes_its_arm_unstable_by_the_registered_score(tmp_path):
    def curves(variant, regime, seed):
        losses = calm(seed)
        if (variant, seed) == ("layernorm", 3):
            losses[40:46] = [value + 1.0 for value in losses[40:46]]
        return losses

    build(tmp_path / "a", curves=curves)
    build(tmp_path / "b", study(stability={"spike_score": 1000.0}), curves=curves)
    strict, loose = (analyze(read_results(tmp_path / name)).stability for name in "ab")
    assert strict.arm("layernorm", "default").spiked == 1
    assert strict.arm("none", "default").unstable is False
    spiking = next(run for run in strict.runs if run.unstable)
    assert spiking.seed == 3
    assert 41 <= spiking.spike_step <= 45
    assert loose.arm("layernorm", "default").unstable is False
    assert loose.threshold == 1000


def test_missing_runs_are_listed_and_nothing_is_made_up(tmp_path):
    build(tmp_path, only=lambda run: run.seed != 5)
    found = analyze(read_results(tmp_path))
    one = find(found, PRIMARY)
    assert (one.n, one.planned_pairs) == (4, 5)
    assert {m.reason for m in one.missing} == {"not-finished"}
    assert codes(found) == ["missing-runs"]


def test_a_missing_baseline_gives_no_number(tmp_path):
    build(tmp_path, only=lambda run: run.variant != "none")
    one = find(analyze(read_results(tmp_path)), PRIMARY)
    assert one.n == 0
    assert one.delta is one.p is one.p_adjusted is one.main_interval is None
    assert one.outcome == "not-tested"
    assert "no-pairs" in {caveat.code for caveat in one.caveats}


def test_one_seed_gives_a_difference_and_no_inference(tmp_path):
    build(tmp_path, study(seeds=[1]))
    one = find(analyze(read_results(tmp_path)), PRIMARY)
    assert one.n == 1
    assert one.delta == pytest.approx(-0.2, abs=0.05)
    assert one.p is None
    assert one.main_interval.status == "too-few-pairs"
    assert one.outcome == "not-tested"


def test_constant_deltas_are_labelled(tmp_path):
    build(tmp_path, outcomes=lambda v, r, s: {"validation_loss": 2.0 + s - (0.1 if v == "layernorm" else 0)})
    one = find(analyze(read_results(tmp_path)), PRIMARY)
    assert one.p == 2 / 2**5  # five signs of one kind
    assert one.main_interval.status == "degenerate"
    assert one.equivalence.equivalent is None
    assert "constant-deltas" in {caveat.code for caveat in one.caveats}


@pytest.mark.parametrize("bad", [math.nan, math.inf, None, 1e200])
def test_a_number_that_is_none_is_missing_and_says_so(tmp_path, bad):
    build(tmp_path, outcomes=lambda v, r, s: {**outcome(v, r, s), **({"validation_loss": bad} if s == 1 else {})})
    one = find(analyze(read_results(tmp_path)), PRIMARY)
    assert one.n == 4
    assert {m.seed for m in one.missing} == {1}
    assert np.isfinite(one.delta)


def test_a_log_that_cannot_be_taken_is_said(tmp_path):
    build(tmp_path, outcomes=lambda v, r, s: {"final_gradient_norm": float(s - 1), "validation_loss": s + len(v)})
    one = find(analyze(read_results(tmp_path)), "final_gradient_norm/default/layernorm:none")
    assert one.transform == "identity"
    assert "not-positive" in {caveat.code for caveat in one.caveats}


_RECIPE = make_plan(study()).runs[0].recipe
OTHER_RATE = _RECIPE.model_copy(update={"training": _RECIPE.training.changed(lr=0.5)})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"data_order_hash": "other"}, "data_order_hash differs"),
        ({"initial_weights": {"wte": "other"}}, "initial value of wte differs"),
        ({"environment": ENVIRONMENT.model_copy(update={"code_hash": "9" * 64})}, "library or code versions differ"),
        ({"recipe": OTHER_RATE}, "recipe in run.json is not what plan.lock says"),
        ({"seed": 7}, "seed in run.json is not what plan.lock says"),
    ],
)
def test_arms_that_differ_in_what_no_variant_declared_are_refused(tmp_path, change, says):
    plan = build(tmp_path)
    run = next(run for run in plan.runs if run.variant == "layernorm")
    if "data_order_hash" in change:  # the result must agree with its own record
        path = ResultsFolder(tmp_path).run(run.id).result
        path.write_text(path.read_text().replace(f"order-{run.seed}", "other"))
        record = ResultsFolder(tmp_path).run(run.id).record
        record.write_text(record.read_text().replace(f"order-{run.seed}", "other"))
        seal_again(tmp_path)
    else:
        write_run(tmp_path, plan, run, outcome("layernorm", "default", run.seed), calm(run.seed), **change)
    with pytest.raises(MismatchError, match=says):
        read_results(tmp_path)


def test_contrasts_are_checked_by_the_ledger_too(tmp_path):
    arms = ["none", "layernorm", "rmsnorm"]
    build(tmp_path, study(variants=arms, contrasts=[["layernorm", "rmsnorm"]]), only=lambda run: run.variant != "none")
    plan = Plan.read(ResultsFolder(tmp_path).plan)
    run = next(run for run in plan.runs if run.variant == "rmsnorm")
    write_run(tmp_path, plan, run, {"validation_loss": 1.0}, [], initial_weights={"wte": "x"})
    with pytest.raises(MismatchError, match="initial value of wte differs"):
        read_results(tmp_path)


def test_a_plan_changed_after_sealing_makes_everything_exploratory(tmp_path):
    build(tmp_path)
    path = ResultsFolder(tmp_path).plan
    data = json.loads(path.read_text())
    data["study"]["criteria"][0]["smallest_effect"] = 10.0
    path.write_text(json.dumps(data))
    found = analyze(read_results(tmp_path))
    assert codes(found) == ["tampered-plan"]
    assert {one.label for one in found.comparisons} == {"exploratory"}


def test_a_plan_sealed_again_after_the_runs_is_refused(tmp_path):
    build(tmp_path)
    path = ResultsFolder(tmp_path).plan
    data = json.loads(path.read_text())
    data["study"]["criteria"][0]["alpha"] = 0.2
    plan, holds = Plan.read_with_seal(_written(path, data))
    assert not holds
    plan.sealed().replace(path)
    with pytest.raises(MismatchError, match="made under another plan"):
        read_results(tmp_path)


def _written(path, data):
    path.write_text(json.dumps(data))
    return path


def test_changed_criteria_in_the_study_file_are_listed_and_not_applied(tmp_path):
    build(tmp_path)
    changed = study(
        criteria=[{**CRITERIA[0], "alpha": 0.2}], seeds=[1, 2, 3], training={"steps": 99, "batch": 4, "lr": 1e-3}
    )
    found = analyze(read_results(tmp_path, changed))
    assert codes(found) == ["changed-criteria", "changed-criteria", "changed-settings"]
    assert [known.about for known in found.deviations[:2]] == ["seeds", "criteria"]
    assert "without 4; 5" in deviation(found.deviations[0])
    assert "training.steps 60 -> 99" in deviation(found.deviations[2])
    assert find(found, PRIMARY).alpha == 0.05
    assert codes(analyze(read_results(tmp_path, study()))) == []


def test_drift_and_extra_runs_are_listed(tmp_path):
    plan = build(tmp_path)
    for run in plan.runs:
        metrics = outcome(run.variant, run.regime, run.seed)
        write_run(tmp_path, plan, run, metrics, calm(run.seed), drift=(Drift(what="torch", sealed="2.12", now="2.13"),))
    extra = plan.runs[0].model_copy(update={"id": "default-none-s99", "seed": 99})
    write_run(tmp_path, plan, extra, outcome("none", "default", 99), calm(99))
    found = analyze(read_results(tmp_path))
    assert codes(found) == ["extra-runs", "drift"]
    assert found.deviations[1].details["change"] == "torch 2.12 -> 2.13"
    assert found.deviations[0].details["runs"] == ["default-none-s99"]
    assert find(found, PRIMARY).n == 5


def test_a_study_without_criteria_is_exploratory_and_still_judged(tmp_path):
    build(tmp_path, study(criteria=[]))
    found = analyze(read_results(tmp_path))
    assert codes(found) == ["no-criteria"]
    assert found.primary == "validation_loss"
    assert find(found, PRIMARY).outcome == "better"


def test_a_registered_metric_that_was_never_measured_is_a_deviation(tmp_path):
    build(tmp_path, study(criteria=[*CRITERIA, {"metric": "next_token_accuracy"}]))
    found = analyze(read_results(tmp_path))
    assert [(d.code, d.about) for d in found.deviations] == [("missing-metric", "next_token_accuracy")]


def test_tasks_that_were_named_and_never_scored_are_a_deviation_and_leave_their_hypotheses_undecided(tmp_path):
    build(tmp_path / "a", study(evaluation={"tasks": ["suite"]}, hypotheses=HYPOTHESES))
    found = analyze(read_results(tmp_path / "a"))
    assert [(d.code, d.about) for d in found.deviations] == [("tasks-not-scored", "evaluation.tasks")]
    assert decide(found).hypotheses["H0"].status == "undecided"
    criteria = [*CRITERIA, {"metric": "macro_accuracy", "role": "secondary"}]
    build(tmp_path / "b", study(evaluation={"tasks": ["suite"]}, criteria=criteria))
    assert codes(analyze(read_results(tmp_path / "b"))) == ["missing-metric"]  # said once


def test_an_empty_or_foreign_folder_says_what_it_is(tmp_path):
    with pytest.raises(RecordError, match=r"is not a results folder: it has neither plan\.lock"):
        read_results(tmp_path)
    build(tmp_path, only=lambda run: False)
    with pytest.raises(StatisticsError, match="no run has a result yet"):
        read_results(tmp_path)


def test_power_is_reported_for_the_primary_metric(tmp_path):
    build(tmp_path)
    found = analyze(read_results(tmp_path))
    assert [part.comparison for part in found.power] == [PRIMARY]
    part = found.power[0]
    assert part.detectable_80 == pytest.approx(1.6823 * part.sd, rel=1e-3)
    assert part.limit == "seeds"
