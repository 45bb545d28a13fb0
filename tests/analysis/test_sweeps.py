"""A sweep's records to its part of analysis.json."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from ablationlab.analysis import analyze, read_results
from ablationlab.analysis.study_power import power_plans
from ablationlab.analysis.verdict import decide
from ablationlab.analysis.wording import instability, sweep_notes
from ablationlab.core.errors import MismatchError, StudyError
from ablationlab.records.analysis import Absence, Analysis
from ablationlab.records.run import Divergence, RunRecord
from ablationlab.records.storage import ResultsFolder
from ablationlab.stats import pairs_needed
from ablationlab.stats.results import Doubt

from .builder import CRITERIA, HYPOTHESES, build, calm, seal_again, study

RATES = (1e-3, 1e-2, 1e-1)
SWEEP = {"lr": list(RATES), "selection_seeds": [11, 12]}
BEST = {"none": 1e-3, "layernorm": 1e-2}


def loss_at(variant: str, lr: float, seed: int) -> float:
    """A parabola in log10 lr around each variant's own best rate; layernorm is 0.1 better there, and less curved."""
    noise = np.random.default_rng([seed, len(variant)]).normal(0, 0.01)
    curve = 0.3 if variant == "none" else 0.1
    return 2.0 + noise - 0.1 * (variant == "layernorm") + curve * math.log10(lr / BEST[variant]) ** 2


def ended(variant: str, lr: float, seed: int) -> dict[str, float] | None:
    loss = loss_at(variant, lr, seed)
    return {"validation_loss": loss, "perplexity": math.exp(loss)}


def diverging(variant: str, lr: float, seed: int) -> dict[str, float] | None:
    return None if variant == "none" and lr == 1e-1 else ended(variant, lr, seed)


FINE = {"lr": [1e-3, 2e-3, 4e-3, 8e-3, 16e-3], "selection_seeds": [11, 12]}


def shifted(variant: str, lr: float, seed: int) -> dict[str, float]:
    """One curve for both variants, but for its place: layernorm's optimum is a third of a grid step from a grid rate."""
    best = 2e-3 if variant == "none" else 4e-3 * 2 ** (1 / 3)
    noise = np.random.default_rng([seed, len(variant)]).normal(0, 1e-4)
    loss = 2.0 + noise + 0.1 * math.log2(lr / best) ** 2
    return {"validation_loss": loss, "perplexity": math.exp(loss)}


def moved(by: float, variant: str, lr: float, seed: int) -> dict[str, float]:
    """The same, with layernorm's whole curve moved."""
    loss = shifted(variant, lr, seed)["validation_loss"] + by * (variant == "layernorm")
    return {"validation_loss": loss, "perplexity": math.exp(loss)}


def analysis_of(folder, swept=ended, criteria=CRITERIA, sweep=SWEEP, **more) -> Analysis:
    build(folder, study(sweep=sweep, criteria=criteria, hypotheses=HYPOTHESES), swept=swept, **more)
    return analyze(read_results(folder))


def find(analysis: Analysis, name: str):
    return next(one for one in analysis.comparisons if one.id == name)


def test_the_criteria_compare_the_study_s_own_runs_and_a_sweep_changes_nothing_in_them(tmp_path):
    with_sweep = analysis_of(tmp_path / "a")
    one = find(with_sweep, "validation_loss/default/layernorm:none")
    assert [pair.seed for pair in one.pairs] == [1, 2, 3, 4, 5]
    assert [pair.variant for pair in one.pairs] == [loss_at("layernorm", 1e-3, seed) for seed in range(1, 6)]
    assert [pair.reference for pair in one.pairs] == [loss_at("none", 1e-3, seed) for seed in range(1, 6)]
    build(tmp_path / "b", study(), swept=ended)
    without = find(analyze(read_results(tmp_path / "b")), one.id)
    assert without.pairs == one.pairs
    assert (without.intervals["paired-t"], without.p_adjusted) == (one.intervals["paired-t"], one.p_adjusted)


def test_the_map_has_every_variant_rate_and_seed_once(tmp_path):
    sweep = analysis_of(tmp_path, diverging).sweep
    cells = [(point.variant, point.lr, point.seed) for point in sweep.points]
    assert len(cells) == len(set(cells)) == 2 * 3 * 7
    assert {point.seed for point in sweep.points if point.use == "selection"} == {11, 12}
    gone = [point for point in sweep.points if point.state == "diverged"]
    assert {(point.variant, point.lr) for point in gone} == {("none", 1e-1)}
    for point in gone:
        assert (point.loss, point.clipped, point.unstable, point.divergence.value) == (None, True, True, "nan")
        assert point.diverged_at == 60
        assert point.counted == point.initial_loss == pytest.approx(calm(point.seed)[0])
    assert [(one.diverged, one.clipped) for one in sweep.curves if (one.variant, one.lr) == ("none", 1e-1)] == [(7, 7)]
    assert "7 of 42 runs diverged" in sweep_notes(sweep)[0]


def test_a_run_that_ends_worse_than_it_began_counts_its_start(tmp_path):
    def hopeless(variant, lr, seed):
        return {"validation_loss": 9.0} if lr == 1e-1 else ended(variant, lr, seed)

    point = next(one for one in analysis_of(tmp_path, hopeless).sweep.points if one.lr == 1e-1)
    assert (point.loss, point.clipped, point.state) == (9.0, True, "finished")
    assert point.counted == point.initial_loss < 9.0


def test_sensitivity_is_the_known_integral_and_pairs_by_seed_over_all_seeds_of_the_sweep(tmp_path):
    found = analysis_of(tmp_path)
    # Linear between the three points of a parabola: (c(0) + 2 c(1) + c(2)) / 4 above the lowest.
    for one in found.sweep.sensitivities:
        excess = (0.0 + 2 * 0.3 + 1.2) / 4 if one.variant == "none" else (0.1 + 2 * 0.0 + 0.1) / 4
        assert one.sensitivity == pytest.approx(excess)
        assert one.best_lr == BEST[one.variant]
    compared = find(found, "lr_sensitivity/sweep/layernorm:none")
    assert [pair.seed for pair in compared.pairs] == [11, 12, 1, 2, 3, 4, 5]
    assert compared.planned_pairs == 7
    assert compared.delta == pytest.approx(0.05 - 0.45)


def test_the_interval_of_a_sensitivity_is_the_t_interval_of_scipy(tmp_path):
    def noisy(variant, lr, seed):
        return {"validation_loss": 2 + np.random.default_rng([seed, int(1e4 * lr), len(variant)]).normal(0, 0.1)}

    found = analysis_of(tmp_path, noisy)
    values = [one.sensitivity for one in found.sweep.sensitivities if one.variant == "none"]
    summary = next(one for one in found.sweep.summaries if one.variant == "none")
    low, high = scipy_stats.t.interval(0.95, 6, np.mean(values), scipy_stats.sem(values))
    assert (summary.mean, summary.low, summary.high) == pytest.approx((np.mean(values), low, high))
    others = [one.sensitivity for one in found.sweep.sensitivities if one.variant == "layernorm"]
    compared = find(found, "lr_sensitivity/sweep/layernorm:none")
    assert compared.p == pytest.approx(scipy_stats.ttest_rel(others, values).pvalue)


def test_a_rate_is_chosen_on_the_selection_seeds_alone_and_judged_on_the_others(tmp_path):
    def misleading(variant, lr, seed):
        # On the judging seeds 0.1 is best by far; the selection seeds do not know.
        return {"validation_loss": 1.0} if lr == 1e-1 and seed <= 5 else ended(variant, lr, seed)

    found = analysis_of(tmp_path, misleading)
    assert {one.variant: one.lr for one in found.sweep.best} == BEST
    for one in found.sweep.best:
        assert (one.chosen_on, one.judged_on) == ((11, 12), (1, 2, 3, 4, 5))
        expected = np.mean([loss_at(one.variant, BEST[one.variant], seed) for seed in (11, 12)])
        assert one.mean_loss == pytest.approx(expected)
    tuned = find(found, "validation_loss/tuned/layernorm:none")
    assert [pair.seed for pair in tuned.pairs] == [1, 2, 3, 4, 5]
    assert [pair.variant for pair in tuned.pairs] == [loss_at("layernorm", 1e-2, seed) for seed in range(1, 6)]
    assert [pair.reference for pair in tuned.pairs] == [loss_at("none", 1e-3, seed) for seed in range(1, 6)]
    assert tuned.label == "exploratory"


def test_what_the_study_registers_of_its_sweep_is_registered(tmp_path):
    criteria = [
        *CRITERIA,
        {"metric": "validation_loss", "regime": "tuned", "smallest_effect": 0.01},
        {"metric": "lr_sensitivity", "regime": "sweep", "test": "sign-flip"},
    ]
    found = analysis_of(tmp_path, criteria=criteria)
    assert find(found, "validation_loss/tuned/layernorm:none").label == "registered"
    sensitivity = find(found, "lr_sensitivity/sweep/layernorm:none")
    assert (sensitivity.label, sensitivity.test, sensitivity.outcome) == ("registered", "sign-flip", "better")
    assert (sensitivity.family, sensitivity.role) == ("stability", "stability")
    assert {"validation_loss/tuned/layernorm:none", sensitivity.id} <= set(found.sweep.comparisons)
    assert not {one for one in found.sweep.comparisons if "/default/" in one}


def test_tuned_arms_get_a_verdict_and_their_stability_and_the_sweep_does_not(tmp_path):
    found = analysis_of(tmp_path, lambda *run: moved(-0.3, *run), sweep=FINE)
    assert found.regimes == ("default", "tuned")
    verdicts = {one.regime: one for one in decide(found).verdicts}
    assert set(verdicts) == {"default", "tuned"}
    assert verdicts["tuned"].answer == "better"
    assert verdicts["default"].answer != "better", "at one rate for both the baseline's own is used"
    gain = found.stability.gain("layernorm", "none", "tuned")
    assert (gain.n, gain.reference_unstable) == (5, 0)
    assert {run.lr for run in found.stability.runs if run.regime == "tuned"} == {2e-3, 4e-3}


def test_tuned_arms_that_are_worse_are_worse(tmp_path):
    analysis = analysis_of(tmp_path, lambda *run: moved(0.5, *run), sweep=FINE)
    verdict = next(verdict for verdict in decide(analysis).verdicts if verdict.regime == "tuned")
    assert verdict.answer == "worse"


def test_the_share_of_unstable_rates_is_compared_over_the_sweep_and_feeds_h1b(tmp_path):
    def unsteady(variant, lr, seed):
        # One or two of the three rates break the baseline, none the variant.
        bad = variant == "none" and (lr == 1e-1 or (lr == 1e-2 and seed % 2))
        return None if bad else ended(variant, lr, seed)

    registered = [*CRITERIA, {"metric": "unstable_share", "regime": "sweep"}]
    found = analysis_of(tmp_path / "a", unsteady, criteria=registered)
    one = find(found, "unstable_share/sweep/layernorm:none")
    assert (one.reference_mean, one.variant_mean) == (pytest.approx((3 * 1 + 4 * 2) / 21), 0.0)
    assert one.outcome == "better"
    verdict = decide(found).hypotheses["H1b"]
    assert (verdict.status, verdict.evidence) == ("supported", (one.id,))
    verdict = decide(analysis_of(tmp_path / "b", unsteady)).hypotheses["H1b"]
    assert (verdict.status, verdict.evidence) == ("undecided", ())


def test_without_selection_seeds_nothing_is_tuned_and_it_is_said(tmp_path):
    found = analysis_of(tmp_path, sweep={"lr": list(RATES)})
    assert found.sweep.best == ()
    assert found.regimes == ("default",)
    assert not [one for one in found.comparisons if one.regime == "tuned"]
    assert any("no selection seeds" in note for note in sweep_notes(found.sweep))
    assert find(found, "lr_sensitivity/sweep/layernorm:none").n == 5


def test_a_best_rate_at_the_edge_is_pointed_out(tmp_path):
    best = {one.variant: one for one in analysis_of(tmp_path).sweep.best}
    assert best["none"].edge
    assert best["none"].edge
    assert not best["layernorm"].edge


def test_a_missing_run_leaves_its_seed_out_and_says_why(tmp_path):
    found = analysis_of(
        tmp_path, only=lambda run: (run.variant, run.lr, run.seed) not in {("none", 1e-1, 3), ("none", 1e-2, 11)}
    )
    lost = {part.seed: part.missing for part in found.sweep.sensitivities if part.sensitivity is None}
    assert lost == {3: (0.1,), 11: (0.01,)}
    best = {one.variant: one for one in found.sweep.best}
    assert best["none"].lr is None
    assert best["none"].missing == (0.01,)
    assert find(found, "lr_sensitivity/sweep/layernorm:none").n == 5
    assert not find(found, "validation_loss/tuned/layernorm:none").pairs
    assert Analysis.model_validate_json(found.model_dump_json()) == found


def test_tuned_arms_may_differ_in_their_rate_and_in_nothing_else(tmp_path):
    build(tmp_path, study(sweep=SWEEP), swept=ended)
    assert analyze(read_results(tmp_path)).ledger.checked_pairs == 21 + 5
    for variant, lr in BEST.items():
        for seed in (2,):
            name = f"{variant}-lr{lr:g}-s{seed}" if lr != 1e-3 else f"default-{variant}-s{seed}"
            path = ResultsFolder(tmp_path).run(name).record
            record = RunRecord.read(path)
            if variant == "layernorm":
                record.model_copy(update={"data_order_hash": "other"}).replace(path)
    seal_again(tmp_path)
    with pytest.raises(MismatchError, match=r"data fed differs|data_order_hash"):
        read_results(tmp_path)


def test_runs_at_rates_of_their_own_share_the_initial_weights_of_the_baseline(tmp_path):
    own = [4e-3 * 2 ** (step / 2) for step in range(-2, 3)]
    build(tmp_path, study(sweep=FINE | {"variant_lr": {"layernorm": own}}), swept=shifted)
    assert analyze(read_results(tmp_path)).ledger.checked_pairs > 0
    path = (
        ResultsFolder(tmp_path).run(f"layernorm-lr{own[1]:g}-s11").record
    )  # a rate that is not chosen, a selection seed
    RunRecord.read(path).model_copy(update={"initial_weights": {"wte": "other"}}).replace(path)
    seal_again(tmp_path)
    with pytest.raises(MismatchError, match="wte"):
        read_results(tmp_path)


def test_the_same_records_give_the_same_bytes(tmp_path):
    first = analysis_of(tmp_path, diverging)
    assert analyze(read_results(tmp_path)).to_bytes() == first.to_bytes()


# --- the measures of a run's course -----------------------------------------------------------------------


def test_every_measure_of_a_run_s_course_is_compared(tmp_path):
    rules = {"loss_threshold": 2.0}
    build(tmp_path, study(stability=rules))
    found = analyze(read_results(tmp_path))
    for name in ("gradient_spike_score", "gradient_spikes", "largest_loss_rise", "steps_to_loss", "mean_training_loss"):
        one = find(found, f"{name}/default/layernorm:none")
        assert (one.n, one.label, one.direction) == (5, "exploratory", "lower")
        assert all(name in run.measures for run in found.stability.runs)
    mean = find(found, "mean_training_loss/default/layernorm:none")
    assert [pair.reference for pair in mean.pairs] == pytest.approx([np.mean(calm(seed)) for seed in range(1, 6)])


def test_a_diverged_run_tells_its_step_and_its_cause(tmp_path):
    build(
        tmp_path,
        study(),
        outcomes=lambda v, r, s: None if (v, s) == ("none", 3) else {"validation_loss": 2.0 + 0.01 * s},
        curves=lambda v, r, s: [*calm(s)[:40], math.nan] if (v, s) == ("none", 3) else calm(s),
    )
    found = analyze(read_results(tmp_path)).stability
    gone = [run for run in found.runs if run.state == "diverged"]
    assert [(run.variant, run.seed, run.divergence) for run in gone] == [
        ("none", 3, Divergence.of(41, "loss", math.nan))
    ]


def test_a_run_that_ends_worse_than_it_began_is_unstable_however_smoothly(tmp_path):
    def ends(variant, regime, seed):
        start = calm(seed)[0]
        return {"validation_loss": start * (1.11 if (variant, seed) == ("none", 2) else 1.09)}

    build(tmp_path, study(), outcomes=ends)
    analysis = analyze(read_results(tmp_path))
    found = analysis.stability
    bad = [run for run in found.runs if run.unstable]
    assert [(run.variant, run.seed, run.worse_than_start, run.state) for run in bad] == [("none", 2, True, "finished")]
    assert "ended worse than it began" in instability(analysis, bad[0])
    arm = found.arm("none", "default")
    assert (arm.failed, arm.spiked, arm.diverged, arm.unstable_runs, arm.unstable) == (1, 0, 0, 1, True)


def test_tuned_arms_with_one_curve_differ_at_grid_rates_and_not_at_their_optima(tmp_path):
    analysis = analysis_of(tmp_path, swept=shifted, sweep=FINE)
    assert analysis.sweep.tuned_at == "fitted-minima"
    minima = {tuned.variant: tuned.minimum for tuned in analysis.sweep.minima}
    assert minima["none"].lr == pytest.approx(2e-3, rel=1e-2)
    assert minima["layernorm"].lr == pytest.approx(4e-3 * 2 ** (1 / 3), rel=1e-2)
    at_the_grid = 0.1 / 9  # what the losses at the best grid rates differ by: 110 times their noise
    comparison = find(analysis, "validation_loss/tuned/layernorm:none")
    assert abs(comparison.delta) < 0.03 * at_the_grid
    assert comparison.p > 0.05
    assert any("fitted best rate" in note for note in sweep_notes(analysis.sweep))


def test_a_cliff_above_the_best_rate_widens_the_interval_and_leaves_no_claim(tmp_path):
    """One curve for both arms, twice as high behind a cliff that lies between other rates of the grid."""

    def cliff(variant, lr, seed):
        d = math.log2(lr / (2.2e-3 if variant == "none" else 3.1e-3))
        loss = 2.0 + 0.05 * d**2 + 0.5 * (d > 0.3) + np.random.default_rng([seed, len(variant)]).normal(0, 1e-3)
        return {"validation_loss": loss, "perplexity": math.exp(loss)}

    analysis = analysis_of(tmp_path, swept=cliff, sweep=FINE)
    comparison = find(analysis, "validation_loss/tuned/layernorm:none")
    doubts = {tuned.variant: tuned.minimum.doubt for tuned in analysis.sweep.minima}
    assert comparison.doubt == Doubt(*[doubts["none"] + doubts["layernorm"]] * 2)
    assert abs(comparison.delta) > 10 * comparison.delta_sd / math.sqrt(comparison.n)  # the t-test alone would claim it
    assert comparison.outcome == "not-shown"
    interval = comparison.main_interval
    assert interval.low < 0 < interval.high
    assert interval.high - interval.low > comparison.doubt.below + comparison.doubt.above
    tuned = next(verdict for verdict in decide(analysis).verdicts if verdict.regime == "tuned")
    if comparison.smallest_effect is not None:
        assert "doubt" in tuned.lacks
    if comparison.equivalence is not None:
        assert not comparison.equivalence.equivalent
        assert comparison.equivalence.bounds[1] == comparison.smallest_effect


def test_an_arm_whose_best_rate_lies_outside_the_sweep_leaves_the_others_their_verdicts(tmp_path):
    def outside(variant, lr, seed):
        return shifted(variant, lr, seed) if variant != "rmsnorm" else {"validation_loss": 3.0 + 10 * lr + 1e-3 * seed}

    three = study(sweep=FINE, criteria=CRITERIA, hypotheses=HYPOTHESES, variants=["none", "layernorm", "rmsnorm"])
    build(tmp_path, three, swept=outside)
    analysis = analyze(read_results(tmp_path))
    assert [analysis.sweep.knows_best_rate(name) for name in ("none", "layernorm", "rmsnorm")] == [True, True, False]
    assert find(analysis, "validation_loss/tuned/layernorm:none").n == 5
    assert find(analysis, "validation_loss/tuned/rmsnorm:none").n == 0
    tuned = {verdict.variant: verdict for verdict in decide(analysis).verdicts if verdict.regime == "tuned"}
    assert (tuned["rmsnorm"].answer, tuned["rmsnorm"].lacks) == ("not measured", ("best rates",))
    assert tuned["layernorm"].answer != "not measured"


@pytest.mark.parametrize(
    ("sweep", "status"),
    [(SWEEP, "coarse-grid"), ({**FINE, "lr": [4e-3, 8e-3, 16e-3]}, "grid-edge")],
    ids=["coarse", "edge"],
)
def test_without_a_fit_tuned_arms_are_compared_at_the_chosen_grid_rates(tmp_path, sweep, status):
    analysis = analysis_of(tmp_path, swept=ended if sweep is SWEEP else shifted, sweep=sweep)
    assert analysis.sweep.tuned_at == "grid-rates"
    assert status in {tuned.minimum.status for tuned in analysis.sweep.minima}
    assert any("at the chosen grid rates" in note for note in sweep_notes(analysis.sweep))
    tuned = [verdict for verdict in decide(analysis).verdicts if verdict.regime == "tuned"]
    assert {(verdict.answer, verdict.lacks) for verdict in tuned} == {("not measured", ("best rates",))}


def test_a_variant_with_rates_of_its_own_is_fitted_on_them_and_left_out_of_what_needs_one_grid(tmp_path):
    own = [4e-3 * 2 ** (step / 2) for step in range(-2, 3)]
    one_grid = analysis_of(tmp_path / "a", shifted, sweep=FINE)
    two_grids = analysis_of(tmp_path / "b", shifted, sweep=FINE | {"variant_lr": {"layernorm": own}})
    common, apart = one_grid.sweep, two_grids.sweep
    minima = [{tuned.variant: tuned.minimum for tuned in sweep.minima} for sweep in (common, apart)]
    assert minima[0]["none"] == minima[1]["none"]
    assert sorted({point.lr for point in apart.points if point.variant == "layernorm"}) == pytest.approx(own)
    fitted = minima[1]["layernorm"]
    assert fitted.lr == pytest.approx(4e-3 * 2 ** (1 / 3), rel=1e-2)  # the parabola's own optimum
    assert fitted.doubt < minima[0]["layernorm"].doubt / 2  # steps half as wide
    over = [find(analysis, "lr_sensitivity/sweep/layernorm:none") for analysis in (one_grid, two_grids)]
    assert [len(comparison.pairs) for comparison in over] == [7, 0]
    assert {missing.reason for missing in over[1].missing} == {Absence.OWN_RATES}


def with_functions(curve):
    """Every function of the loss, 1.6 bits per byte and nat, and an accuracy that follows the rates of the grid alone."""

    def ended(variant, lr, seed):
        loss = curve(variant, lr, seed)["validation_loss"]
        accuracy = 0.5 - loss / 10
        return {
            "validation_loss": loss,
            "perplexity": math.exp(loss),
            "bits_per_byte": 1.6 * loss,
            "next_token_accuracy": accuracy,
        }

    return ended


TUNED_PRIMARY = {"role": "primary", "regime": "tuned", "smallest_effect": 0.01}


def test_a_secondary_at_grid_rates_makes_no_cost(tmp_path):
    """Equal accuracy at either arm's best rate; at the chosen grid rates layernorm is worse, far beyond the noise."""

    def better_loss(variant: str, lr: float, seed: int) -> dict[str, float]:
        equal = 0.5 - 0.1 * (shifted(variant, lr, seed)["validation_loss"] - 2)
        return moved(-0.5, variant, lr, seed) | {"next_token_accuracy": equal}

    secondary = {"metric": "next_token_accuracy", "role": "secondary", "regime": "tuned"}
    criteria = [TUNED_PRIMARY | {"metric": "validation_loss"}, secondary]
    analysis = analysis_of(tmp_path, swept=better_loss, sweep=FINE, criteria=criteria)
    accuracy = find(analysis, "next_token_accuracy/tuned/layernorm:none")
    assert (accuracy.outcome, accuracy.at_grid_rates) == ("worse", True)
    verdict = next(verdict for verdict in decide(analysis).verdicts if verdict.regime == "tuned")
    assert (verdict.answer, verdict.at_a_cost) == ("better", ())


@pytest.mark.parametrize("metric", ["validation_loss", "perplexity", "bits_per_byte"])
def test_functions_of_the_loss_are_fitted_with_it_and_claim_no_more_than_it(tmp_path, metric):
    """The arms have one curve; at the chosen grid rates they differ by a hundred times their noise."""
    criteria = [TUNED_PRIMARY | {"metric": metric}]
    analysis = analysis_of(tmp_path, swept=with_functions(shifted), sweep=FINE, criteria=criteria)
    loss, perplexity, bits = (
        find(analysis, f"{name}/tuned/layernorm:none") for name in ("validation_loss", "perplexity", "bits_per_byte")
    )
    assert loss.outcome == perplexity.outcome == bits.outcome == "not-shown"
    assert loss.p == perplexity.p == bits.p
    assert perplexity.delta == pytest.approx(loss.delta, abs=1e-12)
    assert bits.delta == pytest.approx(1.6 * loss.delta, abs=1e-12)
    assert perplexity.doubt == loss.doubt
    assert bits.doubt.larger == pytest.approx(1.6 * loss.doubt.larger)
    for end in ("low", "high"):
        assert getattr(perplexity.main_interval, end) == pytest.approx(getattr(loss.main_interval, end), abs=1e-9)
        assert getattr(bits.main_interval, end) == pytest.approx(1.6 * getattr(loss.main_interval, end), abs=1e-9)
    assert perplexity.ratio.high == pytest.approx(math.exp(perplexity.intervals["paired-t"].high))
    assert not any(comparison.at_grid_rates for comparison in (loss, perplexity, bits))


def test_a_tuned_primary_that_is_not_fitted_decides_nothing(tmp_path):
    with pytest.raises(StudyError, match="known at grid rates only"):
        study(sweep=FINE, criteria=[TUNED_PRIMARY | {"metric": "next_token_accuracy"}])
    made = study(sweep=FINE, criteria=[TUNED_PRIMARY | {"metric": "validation_loss"}])
    sealed = made.criteria[0].model_copy(update={"metric": "next_token_accuracy", "smallest_effect": 1e-4})
    build(tmp_path / "a", made.model_copy(update={"criteria": (sealed,)}), swept=with_functions(shifted))
    analysis = analyze(read_results(tmp_path / "a"))
    accuracy = find(analysis, "next_token_accuracy/tuned/layernorm:none")
    assert (accuracy.outcome, accuracy.at_grid_rates) == ("worse", True)  # by the grid alone
    verdict = next(verdict for verdict in decide(analysis).verdicts if verdict.regime == "tuned")
    assert (verdict.answer, verdict.lacks) == ("not measured", ("best rates",))


@pytest.mark.parametrize("cost", [-0.05, 0.0, 0.05])
def test_a_guard_of_tuned_arms_at_grid_rates_is_neither_kept_nor_broken(tmp_path, cost):
    guard = {"metric": "next_token_accuracy", "role": "guard", "regime": "tuned", "margin": 1e-3}

    def better(variant, lr, seed):
        loss = moved(-0.5, variant, lr, seed)["validation_loss"]
        noise = np.random.default_rng([seed, len(variant), 5]).normal(0, 1e-4)
        return {"validation_loss": loss, "next_token_accuracy": 0.5 + noise - cost * (variant == "layernorm")}

    criteria = [TUNED_PRIMARY | {"metric": "validation_loss"}, guard]
    analysis = analysis_of(tmp_path, swept=better, sweep=FINE, criteria=criteria)
    verdict = next(verdict for verdict in decide(analysis).verdicts if verdict.regime == "tuned")
    assert (verdict.answer, verdict.confirmed) == ("better", False)
    assert (verdict.guards[0].name, verdict.guards[0].standing) == ("next_token_accuracy", "open")


def test_a_tie_breaker_of_tuned_arms_at_grid_rates_is_not_asked(tmp_path):
    def equal(variant, lr, seed):
        loss = shifted(variant, lr, seed)["validation_loss"]
        return {"validation_loss": loss, "next_token_accuracy": 0.5 - (loss - 2.0)}

    criteria = [TUNED_PRIMARY | {"metric": "validation_loss", "smallest_effect": 0.5}]
    build(tmp_path, study(sweep=FINE, criteria=criteria, tie_breakers=["next_token_accuracy"]), swept=equal)
    analysis = analyze(read_results(tmp_path))
    assert find(analysis, "next_token_accuracy/tuned/layernorm:none").outcome == "worse"  # by the grid alone
    verdict = next(verdict for verdict in decide(analysis).verdicts if verdict.regime == "tuned")
    assert verdict.answer == "same"
    assert (verdict.tie_break.asked, verdict.tie_break.favours) == ((), None)


def test_a_fitted_loss_beyond_every_float_s_logarithm_has_no_perplexity(tmp_path):
    def huge(variant, lr, seed):
        return {"validation_loss": 800.0 + shifted(variant, lr, seed)["validation_loss"], "perplexity": 1e99}

    analysis = analysis_of(tmp_path, huge, sweep=FINE, curves=lambda v, r, s: [900.0] * 60)
    assert analysis.sweep.tuned_at == "fitted-minima"
    assert find(analysis, "validation_loss/tuned/layernorm:none").n == 5
    perplexity = find(analysis, "perplexity/tuned/layernorm:none")
    assert (perplexity.n, perplexity.p) == (0, None)
    assert {missing.reason for missing in perplexity.missing} == {Absence.NOT_FINITE}


def test_planning_on_a_pilot_counts_what_its_rates_leave_in_doubt(tmp_path):
    criteria = [{"metric": "validation_loss", "role": "primary", "regime": "tuned", "smallest_effect": 0.05}]
    pilot = analysis_of(tmp_path, shifted, criteria=criteria, sweep=FINE)
    doubt = find(pilot, "validation_loss/tuned/layernorm:none").doubt.larger
    assert doubt > 0.1
    wide, narrow = (
        power_plans(study(sweep=FINE, criteria=[criteria[0] | {"smallest_effect": effect}]), pilot)
        for effect in (doubt + 0.001, doubt / 2)
    )
    row, lost = wide.rows[0], narrow.rows[0]
    assert row.seeds == pairs_needed(0.001 / row.sd)
    assert row.seen == pytest.approx(row.detectable * row.sd + doubt)
    assert row.limit == "doubt"
    assert lost.sure is lost.seeds is lost.same is None
    assert "doubt" in {note.code for note in narrow.notes}
