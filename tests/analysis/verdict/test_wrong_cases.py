"""Verdicts that an earlier rule table got wrong on their face, each through the whole analysis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ablationlab.analysis import analyze
from ablationlab.analysis.dataset import Arm, absent
from ablationlab.analysis.findings import judged
from ablationlab.analysis.from_table import TableOptions, read_table
from ablationlab.analysis.verdict import decide
from ablationlab.core.format import plain
from ablationlab.records.analysis import Absence
from ablationlab.records.settings import Criterion, Hypothesis, Stability

from .studies import LOSS, RESTORES, arms, dataset, study, verdict_of, words_of

ECE = Criterion(metric="token_ece", role="guard", margin=0.01)
ACCURACY = Criterion(metric="next_token_accuracy", role="secondary", smallest_effect=0.003)


def test_a_small_gain_in_loss_does_not_outweigh_calibration_and_accuracy():
    made = {
        "validation_loss": arms(-0.012),
        "token_ece": arms(0.2, start=0.02),
        "next_token_accuracy": arms(-0.1, start=0.4),
    }
    found = verdict_of(made, (LOSS, ECE, ACCURACY))
    assert (found.decision, found.rule, found.reason) == ("trade-off", 5, "better-at-a-cost")
    assert [(cost.metric, cost.shown) for cost in found.costs] == [("validation_loss", "kept"), ("token_ece", "broken")]
    assert found.secondaries == ("next_token_accuracy/default/layernorm:none",)
    advice = words_of(made, (LOSS, ECE, ACCURACY)).recommendation
    assert "token ECE" in advice
    assert "next-token accuracy" in advice


def test_a_variant_that_always_spikes_is_no_tie():
    made, endings = {"validation_loss": arms(0.0)}, {"none": "." * 10, "layernorm": "s" * 10}
    found = verdict_of(made, endings=endings)
    assert (found.decision, found.rule) == ("keep-baseline", 1)
    assert "0 of 10 none runs are unstable, 10 of 10 layernorm runs" in words_of(made, endings=endings).why


def test_a_variant_that_always_diverges_keeps_the_baseline():
    found = verdict_of({"validation_loss": arms(0.0)}, endings={"none": "." * 10, "layernorm": "d" * 10})
    assert (found.decision, found.rule) == ("keep-baseline", 1)
    assert "stability/diverged/default/layernorm:none" in found.stability.lost


@pytest.mark.parametrize(
    ("mean", "few", "many"), [(-0.03, "keep-provisionally", "adopt-provisionally"), (0.0, "keep-provisionally", "tie")]
)
def test_equal_instability_is_decided_by_more_seeds(mean, few, many):
    # Three of ten runs of either arm diverge, on seeds of their own.
    def endings(n):
        return {"none": ("ddd......." * n)[:n], "layernorm": (".....ddd.." * n)[:n]}

    assert verdict_of({"validation_loss": arms(mean, n=10)}, endings=endings(10)).decision == few
    assert verdict_of({"validation_loss": arms(mean, n=200)}, endings=endings(200)).decision == many


def test_losing_the_worst_pair_does_not_take_keep_baseline_back():
    # Of 80 such studies, five were inconclusive once a run of the variant had diverged: its pair was the evidence.
    taken_back, losses = 0, np.random.default_rng(3)
    for _ in range(80):
        none = 2.0 + 0.05 * losses.normal(size=5)
        layernorm = none + losses.normal(0.012, 0.006, 5)
        worst = int(np.argmax(layernorm - none))
        made = {"validation_loss": {"none": list(none), "layernorm": list(layernorm)}}
        endings = {"none": ".....", "layernorm": "".join("d" if seed == worst else "." for seed in range(5))}
        if verdict_of(made, brief=True).decision == "keep-baseline":
            after = verdict_of(made, endings=endings, brief=True)
            assert after.decision in ("keep-baseline", "keep-provisionally")
            taken_back += after.decision == "keep-provisionally"
    assert taken_back > 0  # the pair mattered


def test_no_change_is_not_supported_by_the_runs_that_survived():
    nothing = Hypothesis(name="H0", statement="Nothing changes.", rule="no-change", metric="validation_loss")
    statuses = {}
    for endings in ("..........", "d.........", "m........."):
        made = study(
            {"validation_loss": arms(0.0)}, endings={"none": "." * 10, "layernorm": endings}, hypotheses=(nothing,)
        )
        assert made.comparisons[0].equivalence.equivalent
        statuses[endings[0]] = decide(made).hypotheses["H0"].status
    assert statuses == {".": "supported", "d": "undecided", "m": "undecided"}


def test_a_claim_must_hold_with_diverged_runs_counted():
    # 40 seeds: the variant is better by 0.03 +- 0.002 and diverges once, which a margin of 20 % of the runs allows.
    alone = {"none": "." * 40, "layernorm": "d" + "." * 39}
    made = {"validation_loss": arms(-0.03, n=40)}
    found = verdict_of(made, endings=alone)
    assert (found.decision, found.reason, found.stability.non_inferior) == (
        "adopt-provisionally",
        "better-not-all-shown",
        True,
    )
    advice = words_of(made, endings=alone).recommendation
    assert "what it costs on the one seed where it alone diverged" in advice
    # Twelve of 40 on either side balance, but 12 of the 28 pairs that count as lost outweigh the gain of the others.
    both = {"none": "." * 28 + "d" * 12, "layernorm": "d" * 12 + "." * 28}
    wide = verdict_of({"validation_loss": arms(-0.01, sd=0.012, n=40)}, endings=both, settings=Stability(margin=0.5))
    assert (wide.decision, wide.checks[5].reason) == ("keep-provisionally", "survivors-only")
    assert wide.needs.need == "stable-training"


def test_a_run_that_made_it_a_tie_does_not_make_it_a_gain_by_being_lost():
    made = {"validation_loss": arms(-0.0071, sd=0.012, n=40)}
    made["validation_loss"]["layernorm"][0] = made["validation_loss"]["none"][0] + 0.029
    finished, lost = (
        verdict_of(made, endings={"none": "." * 40, "layernorm": how + "." * 39}).decision for how in (".", "d")
    )
    assert (finished, lost) == ("tie", "inconclusive")


@pytest.mark.parametrize(
    ("worst", "decision", "reason"),
    [
        (-0.0082, "tie", "real-but-small"),
        (-0.004, "tie", "real-but-small"),
        (0.0, "inconclusive", "may-be-small"),  # shown better, and was adopted
        (1.0, "inconclusive", "no-rule-applies"),
    ],
)
def test_a_run_that_gets_worse_does_not_turn_a_tie_into_adoption(worst, decision, reason):
    """It makes the interval wider, so that the gain is no longer surely too small to matter."""
    base, costs = [2.0, 2.02, 1.99, 2.01, 2.0], [-0.0085, -0.0090, -0.0088, -0.0086, worst]
    made = {"validation_loss": {"none": base, "layernorm": [a + b for a, b in zip(base, costs, strict=True)]}}
    found = verdict_of(made)
    assert (found.decision, found.reason) == (decision, reason)
    said = "had done about as well on seed 5 as on the other seeds, its gain would be" in words_of(made).recommendation
    assert said == (reason == "may-be-small")


def test_one_absurd_run_of_the_variant_does_not_take_keep_baseline_back():
    # The t-test is not monotone: one cost far beyond the others also makes the SD large, and p rises from 0.000002 to 0.3.
    none = [2.0, 2.02, 1.99, 2.01, 2.0]
    costs = [0.02, 0.021, 0.019, 0.02, 0.022]
    made = {
        last: {
            "validation_loss": {
                "none": none,
                "layernorm": [a + b for a, b in zip(none, [*costs[:4], last], strict=True)],
            }
        }
        for last in (0.022, 0.05, 0.2, 1.0, 1e6)
    }
    decisions = {last: verdict_of(values).decision for last, values in made.items()}
    assert decisions == {
        0.022: "keep-baseline",
        0.05: "keep-baseline",
        0.2: "keep-provisionally",
        1.0: "keep-provisionally",
        1e6: "keep-provisionally",
    }
    advice = words_of(made[1e6]).recommendation
    assert "is worse on all 5 seeds, but by amounts too unequal to show it; most on seed 5" in advice
    assert verdict_of(made[1e6]).fragility.stragglers == (5,)


@pytest.mark.parametrize(
    ("costs", "decision", "advice"),
    [
        ([0.02, 0.021, 0.019], "keep-baseline", "is worse"),
        ([0.02, 0.021, 0.2], "keep-provisionally", "is worse on all 3 seeds, but by amounts too unequal to show it"),
        ([-0.001, 0.021, 0.2], "inconclusive", "Undecided"),
        (
            [-0.001, 0.02, 0.021, 0.019, 0.9],
            "keep-provisionally",
            "is so much worse on seed 5 that the interval is too wide",
        ),
    ],
)
def test_three_seeds_that_are_all_worse_keep_the_baseline_for_now_however_unequal(costs, decision, advice):
    none = [2.0, 2.02, 1.99, 2.01, 2.0][: len(costs)]
    values = {"validation_loss": {"none": none, "layernorm": [a + b for a, b in zip(none, costs, strict=True)]}}
    assert verdict_of(values).decision == decision
    assert advice in words_of(values).recommendation


def test_an_absurd_run_of_the_baseline_does_not_help_its_arm_either():
    none = [2.0, 2.02, 1.99, 2.01, 2.0, 2.03]
    gains = [0.02, 0.021, 0.019, 0.02, 0.022, 0.02]
    calm = {"validation_loss": {"none": none, "layernorm": [a - b for a, b in zip(none, gains, strict=True)]}}
    absurd = {"validation_loss": {**calm["validation_loss"], "none": [*none[:5], 50.0]}}
    # A gain that one run makes absurdly large is not shown: cautious, and the run is named.
    assert verdict_of(calm).decision == "adopt-provisionally"
    assert (verdict_of(absurd).decision, verdict_of(absurd).fragility.stragglers) == ("inconclusive", (6,))


@pytest.mark.parametrize(("survivors", "decision"), [(0, "adopt-in-regime"), (2, "trade-off"), (4, "adopt-in-regime")])
def test_pairs_whose_baseline_diverged_do_not_dilute_what_the_others_cost(survivors, decision):
    # Two surviving pairs that cost three times the margin are no proof of a cost within it, however many baselines diverged.
    ended = {"none": "." * survivors + "d" * (16 - survivors), "layernorm": "." * 16}
    cost = {0: 0.0, 2: 0.03, 4: 0.001}[survivors]
    found = verdict_of({"validation_loss": arms(cost, sd=0.001, n=16)}, endings=ended)
    assert (found.decision, found.rule) == (decision, 2)
    assert found.costs[0].high == (pytest.approx(0.0) if survivors == 0 else found.costs[0].high)
    assert found.costs[0].shown == ("unknown" if survivors == 2 else "kept")


def test_a_recommendation_says_that_baselines_diverged():
    made, endings = {"validation_loss": arms(0.05, n=5)}, {"none": "dd...", "layernorm": "....."}
    found = verdict_of(made, endings=endings)
    assert (found.decision, found.checks[4].reason) == ("inconclusive", "baseline-survivors-only")
    advice = words_of(made, endings=endings).recommendation
    assert "2 of 5 none runs diverged, 0 of 5 layernorm runs" in advice
    assert "The baseline itself is not stable here." in advice


def test_a_new_study_is_as_large_as_its_test_needs():
    made = {"validation_loss": arms(0.03, sd=0.05, n=5)}
    few = Criterion(metric="validation_loss", role="primary", smallest_effect=0.1, alpha=0.002)
    assert verdict_of(made, (few,)).needs.seeds_for_difference < 10
    # 2 / 2^n reaches 0.002 with ten pairs.
    flipped = verdict_of(made, (few.model_copy(update={"test": "sign-flip"}),))
    assert flipped.needs.seeds_for_difference == 10
    assert flipped.fragility.power is None


def test_a_study_that_refuses_diverged_runs_says_that_it_did():
    made, endings = {"validation_loss": arms(0.05, n=5)}, {"none": "d....", "layernorm": "....."}
    refuses = Stability(diverged="refuse")
    found = verdict_of(made, endings=endings, settings=refuses)
    assert (found.decision, found.checks[3].reason, found.needs.need) == (
        "inconclusive",
        "equivalence-not-tested",
        "stable-training",
    )
    needs = words_of(made, endings=endings, settings=refuses).needs
    assert needs.startswith("Runs diverged, and this study registers that nothing is compared then")


def test_a_real_but_small_loss_is_a_tie():
    made = {"validation_loss": arms(0.0008, sd=0.0002)}
    found = verdict_of(made)
    assert (found.decision, found.reason) == ("tie", "real-but-small")
    advice = plain(words_of(made).recommendation)
    assert "real but small" in advice
    assert plain("+0.0008") in advice


def test_divergence_is_seen_although_the_composite_hides_it():
    # As in embedding-norm-stability-confirm: 10 of 24 baselines diverge, none of the variant's, but nearly all runs spike.
    ended = {"none": "d" * 10 + "s" * 13 + ".", "layernorm": "s" * 22 + "." * 2}
    made = study({"validation_loss": arms(0.0, n=24)}, endings=ended, settings=Stability(failures=("unstable",)))
    by_failure = {gain.failure: gain for gain in made.stability.vector("layernorm", "none", "default")}
    assert [(g.reference_unstable, g.variant_unstable) for g in by_failure.values()] == [(10, 0), (10, 0), (23, 22)]
    assert by_failure["diverged"].p == pytest.approx(0.00195, abs=1e-5)
    assert by_failure["unstable"].p > 0.9
    assert [gain.registered for gain in by_failure.values()] == [False, False, True]
    assert decide(made).verdicts[0].decision == "tie"
    registered = study({"validation_loss": arms(0.0, n=24)}, endings=ended)
    assert decide(registered).verdicts[0].rule == 2
    assert registered.stability.arm("none", "default").diverged_at == (9,) * 10


@pytest.mark.parametrize("seed", range(40))
def test_the_gain_of_the_rules_and_the_hypothesis_never_disagree(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(5, 14))
    regimes = {
        f"r{place}": {
            "none": "".join(rng.choice(list(".swd"), n, p=[0.3, 0.3, 0.1, 0.3])),
            "layernorm": "".join(rng.choice(list(".swd"), n, p=[0.85, 0.1, 0.0, 0.05])),
        }
        for place in range(int(rng.integers(1, 5)))
    }
    criteria = [LOSS.model_copy(update={"regime": regime}) for regime in regimes]
    made = analyze(dataset({"validation_loss": arms(0.0, n=n)}, criteria, regimes=regimes, hypotheses=(RESTORES,)))
    verdict = decide(made)
    gained = [v for v in verdict.verdicts if v.stability.gained]
    assert (verdict.hypotheses["H1b"].status == "supported") == bool(gained)
    assert {gain for v in gained for gain in v.stability.gained} == (
        set(verdict.hypotheses["H1b"].evidence) if gained else set()
    )
    assert all(v.rule in (1, 2) for v in gained)
    assert made.stability.places == 2 * len(regimes)


def test_survivors_do_not_bound_the_cost_of_a_variant_that_diverged_on_other_seeds():
    # The variant diverges less often, but on two seeds alone, and no fewer of its runs are unstable.
    ended = {"none": "d" * 12 + "." * 12, "layernorm": "s" * 12 + "ddss" + "." * 8}
    settings = Stability(failures=("diverged", "unstable"))
    made = {"validation_loss": arms(-0.02, n=24)}
    found = verdict_of(made, endings=ended, settings=settings)
    assert found.stability.gained == ("stability/diverged/default/layernorm:none",)
    assert not found.stability.non_inferior
    assert [(cost.bound, cost.high, cost.runs, cost.shown) for cost in found.costs] == [
        ("variant-diverged", None, 2, "unknown")
    ]
    assert (found.decision, found.rule) == ("trade-off", 2)
    advice = words_of(made, endings=ended, settings=settings).recommendation
    assert "2 of its runs diverged where the baseline's did not" in advice


SPEED = {"tie_breakers": ("inference_speed",)}


def fast(**others: dict[str, list[float]]) -> dict[str, dict[str, list[float]]]:
    """Equal loss, and a variant that is a tenth faster."""
    return {"validation_loss": arms(0.0), "inference_speed": arms(100.0, 1.0, start=1000.0), **others}


def test_a_tie_is_broken_for_the_variant_where_nothing_speaks_against_it():
    assert "inference speed favours layernorm: use it" in words_of(fast(), **SPEED).recommendation


def test_a_tie_breaker_does_not_outweigh_a_broken_guard():
    made = fast(token_ece=arms(0.2, start=0.02))
    assert verdict_of(made, (LOSS, ECE), **SPEED).tie_break.favours is None
    advice = words_of(made, (LOSS, ECE), **SPEED).recommendation
    assert "inference speed favours layernorm, but it is worse on token ECE" in advice
    assert "keep the baseline (none)" in advice
    assert "use it" not in advice


def test_a_tie_breaker_does_not_outweigh_runs_that_fail():
    made = {name: {arm: values[:5] for arm, values in given.items()} for name, given in fast().items()}
    endings = {"none": "." * 5, "layernorm": "s...."}  # within the margin
    assert verdict_of(made, endings=endings, **SPEED).decision == "tie"  # five pairs cannot show it
    advice = words_of(made, endings=endings, **SPEED).recommendation
    assert "but 0 of 5 none runs are unstable, 1 of 5 layernorm runs: keep the baseline (none)" in advice


def test_a_variant_whose_runs_are_missing_is_adopted_provisionally_at_best():
    made = {"validation_loss": arms(-0.05, n=40)}
    assert verdict_of(made).decision == "adopt"
    one, many = ({"none": "." * 40, "layernorm": "." * (40 - lost) + "m" * lost} for lost in (1, 20))
    assert verdict_of(made, endings=one).decision == "adopt-provisionally"
    assert "what it does on the one seed where only its run is missing" in words_of(made, endings=one).recommendation
    found = verdict_of(made, endings=many)
    assert (found.decision, found.reason, found.needs.need) == ("inconclusive", "runs-missing", "missing-runs")
    assert "and a run that is missing may have failed" in words_of(made, endings=many).why


@pytest.mark.parametrize("how", ["d", "m"])
@pytest.mark.parametrize("mean", [-0.05, 0.0])
@pytest.mark.parametrize("lost", [1, 8])
def test_for_the_variant_a_missing_run_counts_as_a_diverged_one(how, mean, lost):
    ended = {"none": "." * 40, "layernorm": "." * (40 - lost) + how * lost}
    found = verdict_of({"validation_loss": arms(mean, n=40)}, endings=ended, brief=True)
    against = "keep-baseline" if how == "d" else "inconclusive"  # what is not there shows nothing against it either
    assert found.decision == (against if lost > 1 else "adopt-provisionally" if mean else "tie")


def test_deleting_runs_that_make_a_variant_less_stable_does_not_make_it_a_rescue():
    """It diverges less often and spikes more often, both shown; without five runs that spike only the first is."""
    values, both = {"validation_loss": arms(-0.05, n=40)}, Stability(failures=("diverged", "unstable"))
    whole = {"none": "d" * 20 + "." * 20, "layernorm": "s" * 28 + "." * 12}
    deleted = {**whole, "layernorm": "s" * 23 + "m" * 5 + "." * 12}
    verdicts = [verdict_of(values, endings=ended, settings=both, brief=True) for ended in (whole, deleted)]
    assert [(found.decision, found.rule) for found in verdicts] == [("keep-baseline", 1), ("inconclusive", 2)]
    assert verdicts[1].stability.gained == ("stability/diverged/default/layernorm:none",)


NAN = float("nan")


@pytest.mark.parametrize("role", ["guard", "secondary"])
@pytest.mark.parametrize("bad", [float("inf"), NAN])
@pytest.mark.parametrize("lost", [1, 10])
def test_a_guard_or_a_secondary_that_is_no_number_keeps_the_variant_from_adoption(role, bad, lost):
    made = {"validation_loss": arms(-0.1, n=20), "token_ece": arms(-0.001, n=20, start=0.04)}
    criteria = (LOSS, Criterion(metric="token_ece", role=role, margin=0.01))
    assert verdict_of(made, criteria).decision == "adopt"
    made["token_ece"]["layernorm"][:lost] = [bad] * lost
    found = verdict_of(made, criteria)
    assert found.decision in ("adopt-provisionally", "trade-off")
    assert "token ECE" in words_of(made, criteria).recommendation
    (ece,) = [c for c in study(made, criteria).comparisons if c.metric == "token_ece"]
    assert {gone.reason for gone in ece.missing} == {"not-finite"}


def test_a_tie_breaker_does_not_speak_for_a_variant_that_lost_runs_of_it():
    made = fast()
    assert verdict_of(made, **SPEED).tie_break.favours == "layernorm"
    made["inference_speed"]["layernorm"][0] = NAN
    assert verdict_of(made, **SPEED).tie_break.favours is None
    # Nor does the next one, where the first might have spoken against it.
    two = fast(token_ece=arms(0.001, n=10, start=0.04))
    two["token_ece"]["layernorm"][0] = float("inf")
    assert verdict_of(two, tie_breakers=("token_ece", "inference_speed")).tie_break.favours is None


def test_a_variant_that_restores_stability_and_fails_otherwise_is_a_trade_off():
    ended = {"none": "d" * 7 + "...", "layernorm": "s" * 10}
    both = Stability(failures=("diverged", "unstable"))
    made = {"validation_loss": arms(0.0)}
    found = verdict_of(made, endings=ended, settings=both)
    assert found.stability.gained == ("stability/diverged/default/layernorm:none",)
    assert (found.decision, found.rule) == ("trade-off", 2)
    words = plain(words_of(made, endings=ended, settings=both).recommendation)
    assert "more of layernorm's runs fail than the margin of 20 % allows" in words
    assert "7 of 10 none runs are unstable, 10 of 10 layernorm runs" in words
    assert "layernorm has fewer runs that diverge, though not shown to have fewer unstable runs, but its cost" in words
    assert "restores stability" not in words


@pytest.mark.parametrize("largest", [9000.0, 3.4])
def test_a_mean_of_exploded_losses_is_no_bound_of_a_cost(largest):
    """The baseline's mean is thousands, and its interval says that the variant may cost more than its own loss."""
    made = {
        "validation_loss": {"none": [3.1, 3.2, 3.3, 3.0, 3.1, 3.2, 3.3, 3.0, 3.1, largest], "layernorm": [3.2, 3.1] * 5}
    }
    ended = {"none": "w" * 10, "layernorm": "." * 10}
    words = plain(words_of(made, endings=ended).recommendation)
    assert ("costs at most" in words) is (largest < 9)
    unbounded = "the cost has no useful bound (unstable runs dominate the mean: 10 of 10 none runs), so not shown"
    assert (unbounded in words) is (largest > 9)


@pytest.mark.parametrize(
    ("spikes", "told"),
    [
        (4, "layernorm has fewer runs that diverge in default (0 of 10, none 7"),
        (0, "layernorm restores stability in default"),
    ],
)
def test_stability_is_restored_only_where_fewer_runs_are_unstable(spikes, told):
    """The kind of failure that is rarer is named, where the gain in all of them is not shown."""
    made = study(
        {"validation_loss": arms(0.0)},
        endings={"none": "d" * 7 + "...", "layernorm": "s" * spikes + "." * (10 - spikes)},
        hypotheses=(RESTORES,),
        settings=Stability(failures=("diverged", "unstable")),
    )
    decided = decide(made)
    assert decided.hypotheses["H1b"].status == "supported"
    (sentence,) = judged(made, decided, stability=True)
    assert sentence.startswith(told)
    assert ("though not shown to have fewer unstable runs" in sentence) is bool(spikes)


@pytest.mark.parametrize(("variant", "status"), [("." * 9 + "sss", "undecided"), ("." * 9 + "mmm", "undecided")])
def test_stability_is_not_restored_by_runs_that_are_missing(variant, status):
    made = study(
        {"validation_loss": arms(0.0, n=12)},
        endings={"none": "s" * 9 + "...", "layernorm": variant},
        hypotheses=(RESTORES,),
        settings=Stability(failures=("unstable",)),
    )
    (gain,) = made.stability.gains
    assert (gain.p, gain.outcome) == (pytest.approx(0.146, abs=1e-3), "not-shown")
    assert decide(made).hypotheses["H1b"].status == status


@pytest.mark.parametrize("deleted", [False, True])
def test_an_arm_whose_runs_were_deleted_still_counts_in_the_correction_of_the_others(deleted):
    base = arms(0.0, n=10)
    values = {"validation_loss": {**base, "rmsnorm": base["layernorm"]}}
    ended = {"none": "." * 10, "layernorm": "." * 10, "rmsnorm": ("m" if deleted else ".") * 10}
    made = study(values, endings=ended)
    layernorm = made.comparison("validation_loss", "default", "layernorm", "none")
    assert layernorm.family_size == 2
    assert layernorm.p_adjusted == pytest.approx(min(1.0, 2 * layernorm.p))
    assert made.stability.places == 4
    assert made.families[0].tested == 2


def test_a_registered_primary_that_was_not_measured_still_counts_in_the_correction():
    both = (LOSS, Criterion(metric="next_token_accuracy", role="primary", regime="hot"))
    calm = {"none": "." * 10, "layernorm": "." * 10}
    made = study({"validation_loss": arms(-0.01, sd=0.01)}, both, regimes={"default": calm, "hot": calm})
    loss = made.comparison("validation_loss", "default", "layernorm", "none")
    assert (loss.family_size, loss.p_adjusted) == (2, pytest.approx(2 * loss.p))


def test_pairs_that_are_missing_in_both_arms_do_not_dilute_the_failures_of_the_others():
    # Two of five spike: 40 % of what was run, although ten pairs were planned.
    found = verdict_of(
        {"validation_loss": arms(-0.05)}, endings={"none": "....." + "m" * 5, "layernorm": "ss..." + "m" * 5}
    )
    assert (found.decision, found.reason) == ("keep-provisionally", "fails-more")
    assert found.stability.excess == pytest.approx(0.4)
    # Nor does it help that the baseline's run beside a failed one is missing.
    beside = verdict_of({"validation_loss": arms(-0.05, n=5)}, endings={"none": "mm...", "layernorm": "ss..."})
    assert (beside.decision, beside.reason) == ("keep-provisionally", "fails-more")
    assert beside.stability.excess == pytest.approx(0.4)


def test_where_divergence_alone_is_registered_the_words_speak_of_it():
    only = Stability(failures=("diverged",))
    made = {"validation_loss": arms(-0.05, n=5)}
    spiking = words_of(made, endings={"none": "ss...", "layernorm": "....."}, settings=only)
    assert "no baseline run diverged here" in " ".join(spiking.checks).lower()
    assert "not registered" not in spiking.recommendation
    failing = {"none": "s....", "layernorm": "dd..."}
    why = words_of(made, endings=failing, settings=only)
    assert "0 of 5 none runs diverged, 2 of 5 layernorm runs" in why.recommendation


def test_fragility_leaves_out_the_seeds_that_diverged_too():
    made, endings = {"validation_loss": arms(0.0)}, {"none": "." * 10, "layernorm": "d" * 7 + "." * 3}
    found = verdict_of(made, endings=endings)
    assert (found.decision, found.rule) == ("keep-baseline", 1)
    # Without one of the seven, six discordant pairs give p = 0.031, and two kinds of failure are looked at.
    assert found.fragility.left_out == 10
    assert {other.seed for other in found.fragility.changes} == {1, 2, 3, 4, 5, 6, 7}


def primaries_of(analysis):
    return [comparison for comparison in analysis.comparisons if comparison.role == "primary"]


def test_a_registered_dunnett_is_judged_by_holm_and_says_so():
    base = arms(0.05)
    three = {"validation_loss": {**base, "rmsnorm": [value + 0.01 for value in base["layernorm"]]}}
    registered = primaries_of(study(three, (LOSS.model_copy(update={"correction": "dunnett"}),)))
    by_holm = primaries_of(study(three, (LOSS,)))
    assert [(c.correction, c.family, c.p_adjusted, c.outcome) for c in registered] == [
        (c.correction, c.family, c.p_adjusted, c.outcome) for c in by_holm
    ]
    assert {c.correction for c in registered} == {"holm"}
    assert [caveat.details for c in registered for caveat in c.caveats if caveat.code == "other-correction"] == [
        {"registered": "dunnett"}
    ] * 2
    assert not any(caveat.code == "other-correction" for c in by_holm for caveat in c.caveats)


@pytest.mark.parametrize("ended", ["..d", "..dddddd"])
def test_a_registered_dunnett_with_an_arm_of_two_pairs_is_analyzed(ended):
    base = arms(0.05, n=len(ended))
    three = {"validation_loss": {**base, "rmsnorm": base["layernorm"]}}
    endings = {"none": "." * len(ended), "layernorm": "." * len(ended), "rmsnorm": ended}
    made = study(three, (LOSS.model_copy(update={"correction": "dunnett"}),), endings=endings)
    assert [(c.n, c.p_adjusted is None) for c in primaries_of(made)] == [(len(ended), False), (2, True)]


def test_a_registered_guard_that_no_run_has_a_value_of_is_not_kept():
    made = {"validation_loss": arms(-0.05, n=20)}
    found = verdict_of(made, (LOSS, ECE))
    assert (found.decision, found.reason) == ("adopt-provisionally", "better-not-all-shown")
    assert [(cost.metric, cost.shown, cost.bound) for cost in found.costs][1:] == [
        ("token_ece", "unknown", "not-measured")
    ]
    assert "token ECE: the cost is unknown (no run has a value)" in words_of(made, (LOSS, ECE)).why


def test_a_registered_primary_that_no_run_has_a_value_of_costs_something_unknown():
    found = verdict_of({"token_ece": arms(0.0, start=0.02)}, (LOSS, ECE))
    assert found.decision == "no-verdict"
    assert [(cost.metric, cost.shown) for cost in found.costs] == [
        ("validation_loss", "unknown"),
        ("token_ece", "kept"),
    ]


def test_guards_are_not_spoken_of_where_none_is_registered():
    made = {"validation_loss": arms(-0.05, n=20)}
    assert verdict_of(made).decision == "adopt"
    assert "guard" not in words_of(made).why
    assert "Every guard keeps" in words_of(made | {"token_ece": arms(0.0, n=20, start=0.02)}, (LOSS, ECE)).why


@pytest.mark.parametrize(("lost", "decision"), [(0, "keep-baseline"), (1, "keep-baseline"), (4, "inconclusive")])
def test_worse_counts_the_diverged_baselines_of_unpaired_arms(lost, decision):
    rng = np.random.default_rng(1)
    rows = {"new": 2.1 + rng.normal(0, 0.03, 10), "none": 2.0 + rng.normal(0, 0.03, 10)}
    values = {
        Arm("validation_loss", None, "default", arm): {
            seed: absent(Absence.DIVERGED) if arm == "none" and place < lost else float(value)
            for place, (seed, value) in enumerate(zip(range(first, first + 10), values, strict=True))
        }
        for first, (arm, values) in zip((1, 101), rows.items(), strict=True)
    }
    made = replace(
        dataset({"validation_loss": arms(0.0)}),
        source="table",
        values=values,
        variants=("none", "new"),
        runs=(),
        seeds=tuple(seed for by_seed in values.values() for seed in by_seed),
    )
    found = decide(analyze(made)).verdicts[0]
    assert found.decision == decision


@pytest.mark.parametrize("value", [1e300, float("inf"), float("nan")])
def test_a_loss_too_large_to_compare_diverged(value, tmp_path):
    rows = [
        f"{arm},{seed},{2.0 + seed / 100 - (0.03 + seed / 1000) * (arm == 'new')}"
        for seed in range(1, 11)
        for arm in ("none", "new")
    ]
    rows[5] = f"new,3,{value}"
    table = tmp_path / "runs.csv"
    table.write_text("\n".join(["variant,seed,val_loss", *rows]))
    (compared,) = analyze(read_table(table, TableOptions(baseline="none"))).comparisons
    assert [(lost.seed, lost.arm, lost.reason) for lost in compared.missing] == [(3, "new", "diverged")]


@pytest.mark.parametrize("bad", [0.0, 0.3, 2.0, 1e6])
@pytest.mark.parametrize("role", ["guard", "secondary"])
def test_a_collapse_of_one_run_does_not_hide_what_a_guard_or_a_secondary_shows(role, bad):
    made = {"validation_loss": arms(-0.1, n=20), "token_ece": arms(0.03, n=20, start=0.04)}
    made["token_ece"]["layernorm"][3] += bad
    criteria = (LOSS, Criterion(metric="token_ece", role=role))
    found = verdict_of(made, criteria)
    assert (found.decision, found.reason) == ("trade-off", "better-with-bad-runs" if bad > 1 else "better-at-a-cost")
    assert ("hidden by single bad runs" in words_of(made, criteria).why) == (bad > 1)


def test_a_secondary_that_is_worse_counts_though_the_one_before_it_is_not_shown():
    made = {
        "validation_loss": arms(-0.1, n=20),
        "token_ece": arms(0.0, n=20, start=0.04),
        "next_token_accuracy": arms(-0.1, n=20, start=0.4),
    }
    criteria = (LOSS, Criterion(metric="token_ece", role="secondary"), ACCURACY)
    assert verdict_of(made, criteria).decision == "trade-off"


def test_only_diverged_baselines_make_a_cost_nothing():
    made, lost = {"validation_loss": arms(0.5, n=12)}, "d" * 9 + "..."
    found = verdict_of(made, endings={"none": lost, "layernorm": "." * 9 + "mmm"})
    assert (found.decision, found.costs[0].bound) == ("inconclusive", "variant-missing")  # 9 rescued, 3 count as broken
    whole = {"none": "d" * 12, "layernorm": "." * 12}
    assert verdict_of(made, endings=whole).decision == "adopt-in-regime"
    for how in "dm":  # both failed on seed 12
        some = {"none": "d" * 12, "layernorm": "." * 11 + how}
        assert verdict_of(made, endings=some).decision == "adopt-in-regime"


def test_runs_that_are_missing_make_no_tie():
    made, endings = {"validation_loss": arms(0.0, n=20)}, {"none": "." * 20, "layernorm": "mm" + "." * 18}
    found = verdict_of(made, endings=endings)
    assert (found.decision, found.rule, found.reason) == ("inconclusive", 3, "runs-missing")
    assert found.needs.need == "missing-runs"
    words = words_of(made, endings=endings)
    assert "only its run is missing on seeds 1, 2" in words.why
    assert "Finish the runs of layernorm on seeds 1, 2" in words.recommendation
    both = {"none": "." * 19 + "m", "layernorm": "mm" + "." * 17 + "m"}
    assert "Finish the runs that are missing, and analyze again" in words_of(made, endings=both).recommendation


def test_a_tie_says_that_a_guard_is_broken():
    made = {"validation_loss": arms(0.0, n=20), "token_ece": arms(0.2, n=20, start=0.02)}
    words = words_of(made, (LOSS, ECE))
    assert verdict_of(made, (LOSS, ECE)).decision == "tie"
    assert "But worse on token ECE" in words.why
    assert "keep the baseline (none); layernorm is worse on token ECE" in words.recommendation


NO_CHANGE = Hypothesis(name="H0", statement="Nothing changes.", rule="no-change", metric="validation_loss")
SMOOTHER = Hypothesis(
    name="H1a", statement="Worse, though smoother.", rule="worse-though-smoother", metric="validation_loss"
)


@pytest.mark.parametrize(("lost", "status"), [("." * 8, "rejected"), ("d" * 8, "undecided")])
def test_no_change_is_not_rejected_by_the_runs_that_survived(lost, status):
    made, endings = {"validation_loss": arms(-0.1, n=20)}, {"none": "." * 20, "layernorm": lost + "." * 12}
    judged = decide(study(made, endings=endings, hypotheses=(NO_CHANGE,))).hypotheses["H0"]
    assert judged.status == status


@pytest.mark.parametrize(("lost", "status"), [("." * 5, "supported"), ("d" * 5, "undecided")])
def test_training_that_is_smoother_on_the_survivors_alone_is_not_smoother(lost, status):
    norms = {arm: list(np.exp(values)) for arm, values in arms(-0.7, 0.1, n=20, start=0.0).items()}
    made = {"validation_loss": arms(0.1, n=20), "final_gradient_norm": norms}
    endings = {"none": "." * 20, "layernorm": lost + "." * 15}
    judged = decide(study(made, endings=endings, hypotheses=(SMOOTHER,))).hypotheses["H1a"]
    assert judged.status == status


@pytest.mark.parametrize("lost", "dm")
@pytest.mark.parametrize(("n", "bad"), [(26, [0.08]), (40, [0.06, 0.06])])
def test_bad_runs_that_are_lost_make_no_tie_of_a_variant_that_is_shown_worse(n, bad, lost):
    made = {"validation_loss": arms(0.006, 0.001, n=n)}
    for seed, cost in enumerate(bad):
        made["validation_loss"]["layernorm"][seed] = made["validation_loss"]["none"][seed] + cost
    assert verdict_of(made).decision in ("keep-baseline", "keep-provisionally")
    endings = {"none": "." * n, "layernorm": lost * len(bad) + "." * (n - len(bad))}
    assert verdict_of(made, endings=endings).decision == {"d": "keep-baseline", "m": "inconclusive"}[lost]


def test_what_the_fits_may_hide_counts_in_a_tie_with_lost_runs_too():
    """Raw differences within bounds narrowed by the doubt: less the doubt on both sides it would cancel out."""
    made = {"validation_loss": arms(0.0024, 0.002, n=40)}
    loss = LOSS.model_copy(update={"smallest_effect": 0.006})
    for baseline, variant, expected in (("..", "..", "tie"), (".d", "d.", "keep-provisionally")):
        drawn = dataset(made, (loss,), {"none": baseline + "." * 38, "layernorm": variant + "." * 38})
        doubts = {Arm("validation_loss", None, "default", arm): 0.0015 for arm in ("none", "layernorm")}
        assert decide(analyze(replace(drawn, doubts=doubts))).verdicts[0].decision == expected


@pytest.mark.parametrize("test", ["paired-t", "sign-flip", "wilcoxon"])
def test_a_worse_run_never_takes_keep_baseline_back_beside_a_diverged_baseline_whatever_the_test(test):
    criterion = LOSS.model_copy(update={"test": test})
    decisions = []
    for cost in (0.03, 0.1, 0.3, 1.0, 1e3):
        made = {"validation_loss": arms(0.02, n=10)}
        made["validation_loss"]["layernorm"][-1] = made["validation_loss"]["none"][-1] + cost
        decisions.append(verdict_of(made, (criterion,), {"none": "d" + "." * 9, "layernorm": "." * 10}).decision)
    assert decisions[0] == "keep-baseline"
    assert set(decisions[1:]) <= {"keep-baseline", "keep-provisionally"}


def test_a_run_that_gets_worse_never_lets_the_baselines_divergence_speak_for_its_arm():
    """Baselines diverged on two seeds; one cost of the variant rises: it is kept out as long as it was."""
    decisions = []
    for cost in (0.05, 0.08, 0.12, 0.18, 1.0, 1e3):
        made = {"validation_loss": arms(0.006, 0.008, n=26)}
        made["validation_loss"]["layernorm"][-1] = made["validation_loss"]["none"][-1] + cost
        criterion = LOSS.model_copy(update={"smallest_effect": 0.001})
        found = verdict_of(made, (criterion,), {"none": "dd" + "." * 24, "layernorm": "." * 26})
        decisions.append(found.decision)
    assert decisions[0] == "keep-baseline"
    assert set(decisions) <= {"keep-baseline", "keep-provisionally"}


def test_secondaries_behind_one_that_nobody_measured_wait_for_it():
    made = {"validation_loss": arms(-0.1, n=20), "next_token_accuracy": arms(-0.2, n=20), "token_ece": arms(0.0, n=20)}
    criteria = (LOSS, Criterion(metric="token_ece", role="secondary"), ACCURACY)
    first = study(made, criteria).comparison("next_token_accuracy", "default", "layernorm", "none")
    assert first.outcome == "gated"  # token_ece is not shown
    del made["token_ece"]
    assert study(made, criteria).comparison("next_token_accuracy", "default", "layernorm", "none").outcome == "gated"
    assert (
        study(made, (LOSS, ACCURACY)).comparison("next_token_accuracy", "default", "layernorm", "none").outcome
        == "worse"
    )


def test_a_metric_that_is_no_number_anywhere_costs_what_nobody_knows():
    """Its runs finished: that no baseline has a number does not mean that the variant loses nothing."""
    made = {"validation_loss": arms(-0.1, n=20), "token_ece": arms(0.0, n=20)}
    made["token_ece"] = {arm: [NAN] * 20 for arm in made["token_ece"]}
    found = verdict_of(made, (LOSS, Criterion(metric="token_ece", role="guard", margin=0.01)))
    assert found.decision == "adopt-provisionally"
    assert [cost.bound for cost in found.costs if cost.role == "guard"] == ["too-few-pairs"]


def test_a_registered_secondary_that_nobody_measured_leaves_adoption_provisional():
    made = {"validation_loss": arms(-0.1, n=20), "next_token_accuracy": arms(0.001, n=20)}
    criteria = (LOSS, Criterion(metric="next_token_accuracy", role="secondary"))
    assert verdict_of(made, criteria).decision == "adopt"
    del made["next_token_accuracy"]
    assert verdict_of(made, criteria).decision == "adopt-provisionally"
    assert "which is registered and was not measured" in words_of(made, criteria).recommendation
