"""The first sentences answer what the study was made to ask: publication, stability, crossed settings, hypotheses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ablationlab.analysis import analyze, read_results
from ablationlab.analysis.answer import answer, answers
from ablationlab.analysis.findings import at_places, crossed, replicated
from ablationlab.analysis.interactions import deciding_bounds
from ablationlab.analysis.verdict import decide
from ablationlab.analysis.wording import corrections, tasks_listed
from ablationlab.core.format import plain
from ablationlab.records.analysis import ComparedTask, Failure
from ablationlab.records.plan import Plan
from ablationlab.records.replication import (
    PublishedDirection,
    PublishedFigure,
    ReplicatedDirection,
    ReplicatedFigure,
    Replication,
)
from ablationlab.records.settings import Hypothesis
from ablationlab.records.verdict import Decision, OtherDecision, VerdictFragility

from . import test_interactions
from .builder import build, study
from .verdict.maker import analysis, comparison, stability
from .verdict.test_hypotheses import SMOOTHER, accuracy


def told(*found, **more) -> str:
    made = analysis(comparison(outcome="worse", delta=0.12, low=0.11, high=0.13), *found, **more)
    return plain(answer(made, decide(made)))


def test_a_hypothesis_about_another_metric_keeps_its_own_sentence():
    worse = {"direction": "higher", "role": "secondary", "sensitive": True, "delta": -0.08, "low": -0.1, "high": -0.06}
    fewshot = comparison("macro_accuracy_fewshot", "worse", **worse)
    asked = [
        {"name": "H0", "statement": "No change.", "rule": "no-change", "metric": "macro_accuracy"},
        {"name": "H1a", "statement": "Worse.", "rule": "worse-though-smoother", "metric": "macro_accuracy_fewshot"},
    ]
    text = told(
        comparison("macro_accuracy", "worse", **worse),
        fewshot,
        SMOOTHER,
        stable=stability(),
        hypotheses=tuple(Hypothesis(**each) for each in asked),
    )
    assert "layernorm is worse in macro accuracy (H0 rejected)." in text
    assert "layernorm is worse in few-shot macro accuracy, although training is smoother (H1a supported)." in text


def test_hypotheses_follow_the_decision_and_one_sentence_answers_both():
    text = told(accuracy("worse", delta=-0.08, low=-0.1, high=-0.06), SMOOTHER, stable=stability())
    assert text.startswith("Keep the baseline (none)")
    assert "layernorm is worse in macro accuracy, although training is smoother (H0 rejected, H1a supported)." in text
    assert text.endswith(
        "Whether stability is restored stays open: the baseline is stable in every regime (H1b undecided)."
    )


def test_where_the_baseline_breaks_stability_is_the_question_and_comes_first():
    assert told(stable=stability(6, 0, n=6)).startswith("layernorm restores stability in default")
    assert told(stable=stability(3, 2, n=6)).startswith(
        "Whether stability is restored stays open: no gain is shown in default (H1b undecided)."
    )


def test_a_price_is_told_where_it_is_shown_and_no_difference_without_its_metric():
    """Fewer failures without a bound on the cost are no price; what is undecided is so in the metric that decides."""

    def sentence(main, **more):
        made = analysis(main, hypotheses=(), **more)
        return plain(answer(made, decide(made)))

    restored, wide = stability(6, 0, n=6), {"delta": -0.2, "low": -0.5, "high": 0.1}
    may = sentence(comparison(**wide), stable=restored)
    assert may.startswith("layernorm may have a price: it fails less often than the baseline (none) (6 of 6 none runs")
    assert may.endswith("), but may cost more than the margins allow.")
    shown = sentence(comparison(outcome="worse", delta=0.2, low=0.1, high=0.3), stable=restored)
    assert shown.startswith("layernorm has a price:")
    assert sentence(comparison(**wide), stable=stability()) == (
        "Undecided: these runs show neither that layernorm differs from the baseline (none) in validation loss, nor that "
        "it is equivalent to it."
    )
    smoother = comparison("final_gradient_norm", "better", role="stability")
    dull = comparison("macro_accuracy", direction="higher", sensitive=False)
    made = analysis(dull, smoother, hypotheses=(), primary="macro_accuracy", stable=stability())
    assert plain(answer(made, decide(made))) == (
        "No verdict on layernorm: macro accuracy cannot decide, and no difference in stability is shown."
    )


def test_a_study_without_hypotheses_only_tells_its_decisions():
    text = told(stable=stability(), hypotheses=())
    assert text.startswith("Keep the baseline (none)")
    assert "H1" not in text


def test_crossed_settings_come_with_what_the_effect_depends_on_after_the_decisions_if_exploratory(tmp_path):
    build(tmp_path, study(regimes=test_interactions.REGIMES), outcomes=test_interactions.outcome)
    made = analyze(read_results(tmp_path))
    text = plain(crossed(made))
    assert text.startswith(
        "Exploratory, averaged over the other setting: token_init_std changes the difference from none in validation loss: "
        "from 0.02 to 1.0 it falls by "
    )
    assert "place changes it, too: from sum to token it rises by 0.446 nats/token (layernorm; deciding interval" in text
    assert "The settings token_init_std and place interact for layernorm." in text
    decisions, found, _ = plain(answer(made, decide(made))).partition(text)
    assert decisions
    assert found


def test_main_effects_that_were_not_registered_are_told_as_exploratory_behind_registered_interactions(tmp_path):
    build(tmp_path, study(regimes=test_interactions.REGIMES), outcomes=test_interactions.outcome)
    made = analyze(read_results(tmp_path))
    contrasts = tuple(
        contrast.model_copy(update={"label": "registered"}) if contrast.kind == "interaction" else contrast
        for contrast in made.interactions.contrasts
    )
    mixed = made.model_copy(update={"interactions": made.interactions.model_copy(update={"contrasts": contrasts})})
    assert plain(crossed(mixed)).startswith(
        "The settings token_init_std and place interact for layernorm. Exploratory, averaged over the other setting: "
        "token_init_std changes the difference from none in validation loss"
    )


def test_without_an_effect_that_is_shown_the_answer_says_so(tmp_path):
    def flat(variant, regime, seed):
        return {"validation_loss": 5.0 + 0.1 * seed + (0.01 * (seed * len(regime) % 3) if variant != "none" else 0.0)}

    build(tmp_path, study(regimes=test_interactions.REGIMES), outcomes=flat)
    assert crossed(analyze(read_results(tmp_path))) == (
        "Exploratory, averaged over the other setting: neither token_init_std nor place is shown to change the difference "
        "from none in validation loss. No interaction of the settings is shown."
    )


def test_an_effect_at_one_level_does_not_read_as_a_contradiction_of_the_average(tmp_path):
    def outcome(variant, regime, seed):
        place, init = test_interactions.CELLS[regime]
        noise = np.random.default_rng([seed, place, init]).normal(0, 0.5 if init else 0.001)
        return {"validation_loss": 5.0 + 0.1 * seed + (noise + 0.05 * place if variant != "none" else 0.0)}

    build(tmp_path, study(regimes=test_interactions.REGIMES), outcomes=outcome)
    text = plain(crossed(analyze(read_results(tmp_path))))
    assert (
        "neither token_init_std nor place is shown to change the difference from none in validation loss on average."
        in text
    )
    assert "At token_init_std 0.02 alone, from place sum to token it rises by 0.0499 nats/token (layernorm)." in text
    assert text.endswith("Whether the effect differs between levels of the other setting is not shown.")
    assert "No interaction" not in text


def direction(outcome: str, variant: str = "geglu", regime: str = "default") -> ReplicatedDirection:
    published = PublishedDirection(
        metric="validation_loss", variant=variant, sign="lower", published_as="better", regime=regime
    )
    return ReplicatedDirection.model_construct(published=published, regime=regime, outcome=outcome)


def figure(outcome: str, *, same: bool = True) -> ReplicatedFigure:
    published = PublishedFigure.model_construct(regime="default", same_definition=same)
    return ReplicatedFigure.model_construct(published=published, regime="default", outcome=outcome)


def publication(directions=(), figures=(), changed=()) -> Replication:
    return Replication.model_construct(directions=tuple(directions), figures=tuple(figures), changed=changed, level=0.9)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (publication([direction("transfers")] * 4), "All four published directions are found here too."),
        (publication([direction("transfers")]), "The published direction is found here too."),
        (publication([direction("undecided")]), "The published direction is not shown here."),
        (
            publication(
                [
                    direction("transfers"),
                    direction("reversed", "deep"),
                    direction("undecided", regime="tuned"),
                    direction("undecided", "deep", "tuned"),
                ]
            ),
            "Two published directions were tested in default and at tuned rates: in default, one is found too (geglu) and "
            "one is reversed; at tuned rates, none is found and two stay undecided.",
        ),
        (
            publication(figures=[figure("within")] * 11 + [figure("outside")] * 4 + [figure("not-measured")]),
            "For 11 of 15 published figures, the 90 % interval of the difference includes 0.",
        ),
        (
            publication(figures=[figure("outside")] * 2 + [figure("outside", same=False)]),
            "For none of three published figures does the 90 % interval of the difference include 0 "
            "(one is not defined as ours).",
        ),
        (
            publication(figures=[figure("outside")]),
            "For the one published figure, the 90 % interval of the difference does not include 0.",
        ),
        (publication(), ""),
    ],
)
def test_a_replication_says_first_whether_the_result_comes_back(record, text):
    assert plain(replicated(record)) == text


def test_runs_at_other_settings_are_not_called_a_replication():
    assert replicated(publication([direction("transfers")], changed=("lr",))).startswith("Not a replication")


def test_places_are_named_counted_or_tuned():
    six = ("a", "b", "c", "d", "e", "f")
    assert at_places(["a"], six) == "in a"
    assert at_places(["a", "tuned"], ["a", "tuned"]) == "in a and at tuned rates"
    assert at_places(["a", "b"], ["a", "b"]) == "in both regimes"
    assert at_places(list(six), six) == "in all six regimes"
    assert at_places(list(six[:5]), six) == "in five of six regimes"


@pytest.mark.parametrize(
    ("tasks", "text"),
    [
        ([("punctuation",), ("spelling",)], "punctuation and spelling"),
        ([("punctuation", 2), ("spelling", 2)], "punctuation and spelling, both 2-shot"),
        ([("a", 2), ("b", 2), ("c", 2), ("d",)], "a, b and c, all 2-shot; d"),
        ([("law, tort",), ("law, civil",)], "law, tort and law, civil"),  # a comma in a name is no shots
    ],
)
def test_tasks_that_share_their_shots_say_so_once(tasks, text):
    assert tasks_listed([ComparedTask(*task) for task in tasks]) == text


def test_what_adjusted_means_is_said_once_and_only_where_it_is_so():
    alone = analysis(comparison().model_copy(update={"family_size": 1}))
    assert corrections(alone) == ""
    several = [
        one.model_copy(update={"family_size": 2, "correction": "holm", "p_adjusted": 0.02}) for one in alone.comparisons
    ]
    text = plain(corrections(alone.model_copy(update={"comparisons": tuple(several)})))
    assert "is false is at most 5 %" in text
    assert text.count("Holm") == 1


def test_registered_contrasts_between_variants_are_told_whichever_way_they_end(tmp_path):
    losses = {"none": 2.0, "layernorm": 2.3, "layernorm-nobias": 2.3, "rmsnorm": 2.5, "center-only": 2.42}

    def ended(variant, regime, seed):
        noise = np.random.default_rng([seed, len(variant)]).normal(0, 0.001)
        noise += 0.1 * (-1) ** seed if variant == "center-only" else 0.0
        return {"validation_loss": losses[variant] + 0.01 * seed + noise}

    against = [[name, "layernorm-nobias"] for name in ("rmsnorm", "layernorm", "center-only")]
    asked = {"metric": "validation_loss", "smallest_effect": 0.05}
    criteria = [{**asked, "role": "primary"}, *({**asked, "contrast": pair} for pair in against)]
    build(tmp_path, study(variants=list(losses), contrasts=against, criteria=criteria), outcomes=ended)
    made = analyze(read_results(tmp_path))
    text = plain(answer(made, decide(made)))
    assert "layernorm ties with layernorm-nobias (validation loss within ±0.05 nats/token)." in text
    assert "Against layernorm-nobias: rmsnorm is worse by 0.2" in text
    assert "; no difference is shown for center-only." in text


def test_the_interval_of_a_factor_excludes_zero_just_where_its_adjusted_p_shows_it(tmp_path):
    def ended(variant, regime, seed):
        own = np.random.default_rng([seed, len(variant), len(regime)]).normal(0, 0.3)
        return {"validation_loss": test_interactions.loss(variant, regime, seed) + own}

    variants = ["none", "layernorm", "rmsnorm", "center-only"]
    build(tmp_path, study(variants=variants, regimes=test_interactions.REGIMES), outcomes=ended)
    contrasts = analyze(read_results(tmp_path)).interactions.contrasts
    for contrast in contrasts:
        low, high = deciding_bounds(contrast)
        assert (low > 0 or high < 0) == (contrast.p_adjusted <= 1 - contrast.level)
        assert low <= contrast.low
        assert contrast.high <= high
    assert any(
        deciding_bounds(contrast)[0] < contrast.low for contrast in contrasts if contrast.p_adjusted > contrast.p
    )


def test_a_gain_in_stability_that_one_seed_takes_away_is_called_fragile():
    made = analysis(comparison(outcome="worse", delta=0.12, low=0.11, high=0.13), stable=stability(6, 0, n=6))
    verdict = decide(made)
    assert "fragile" not in answer(made, verdict)
    lost = [OtherDecision(seed=seed, decision=Decision.INCONCLUSIVE) for seed in (1, 2)]
    fragility = VerdictFragility(left_out=6, changes=tuple(lost), stragglers=(), power=None, exaggeration=None)
    decided = verdict.verdicts[0].model_copy(update={"fragility": fragility})
    fragile = verdict.model_copy(update={"verdicts": (decided,)})
    text = "layernorm restores stability in default (fragile: without any one of two of the six seeds it is not shown)"
    assert text in plain(answer(made, fragile))
    kept = [OtherDecision(seed=1, decision=Decision.ADOPT_IN_REGIME)]
    update = {"fragility": fragility.model_copy(update={"changes": tuple(kept)})}
    kept_up = verdict.model_copy(update={"verdicts": (decided.model_copy(update=update),)})
    assert "fragile" not in answer(made, kept_up)


def test_fewer_failures_in_several_regimes_say_of_which_kind_and_where():
    whole = stability(6, 0, n=6)
    (gain,) = whole.gains
    parts = (replace(gain, id="diverged/hot", failure=Failure.DIVERGED, regime="hot"),)
    gains = (gain, replace(gain, id="unstable/hot", regime="hot", outcome="not-shown"))
    arms = (*whole.arms, *(arm.model_copy(update={"regime": "hot"}) for arm in whole.arms))
    found = whole.model_copy(update={"parts": parts, "gains": gains, "arms": arms})
    wide = {"delta": -0.2, "low": -0.5, "high": 0.1}
    made = analysis(
        comparison(**wide), comparison(regime="hot", **wide), stable=found, regimes=("default", "hot"), hypotheses=()
    )
    text = plain(answer(made, decide(made)))
    assert (
        "fails less often than the baseline (none) (fewer runs are unstable in default, fewer runs diverge in hot), but may"
        in text
    )


def parts_study(tmp_path, losses, noise=0.001):
    """Arms whose front ends differ in one part each, by the losses that they end with: the headline, and all of it."""

    def ended(variant, regime, seed):
        return {
            "validation_loss": losses[variant]
            + 0.01 * seed
            + np.random.default_rng([seed, len(variant)]).normal(0, noise)
        }

    pairs = [["layernorm", "layernorm-nobias"], ["layernorm-nobias", "rmsnorm"]]
    asked = {"metric": "validation_loss", "smallest_effect": 0.05}
    criteria = [{**asked, "role": "primary"}, *({**asked, "contrast": pair} for pair in pairs)]
    build(tmp_path, study(variants=list(losses), contrasts=pairs, criteria=criteria), outcomes=ended)
    made = analyze(read_results(tmp_path))
    return [plain(text) for text in answers(made, decide(made), plan=Plan.read(tmp_path / "plan.lock"))]


FRONT_ENDS = ("none", "layernorm", "layernorm-nobias", "rmsnorm", "center-only", "sqrt-d-scale")


def test_the_headline_names_the_part_of_a_norm_that_acts(tmp_path):
    losses = dict(zip(FRONT_ENDS, (2.0, 2.3, 2.3, 2.3, 2.0, 2.2), strict=True))
    headline, *rest = parts_study(tmp_path, losses)
    assert headline.startswith("Scale makes the difference, not centering or bias: validation loss is worse by 0.3")
    assert "with scale (rmsnorm and sqrt-d-scale), and it ties within ±0.05 nats/token with and without" in headline
    assert "Keep the baseline (none)" not in headline
    assert rest[0].startswith("Keep the baseline (none): ")


def test_a_part_that_acts_in_one_comparison_and_not_in_another_is_left_open(tmp_path):
    losses = dict(zip(FRONT_ENDS, (2.0, 2.3, 2.3, 2.1, 2.0, 2.2), strict=True))  # centering: with a scale, not alone
    headline, *_ = parts_study(tmp_path, losses)
    assert headline.startswith("Scale makes the difference, not bias: validation loss is worse by ")
    assert headline.endswith("with and without bias, and what centering does is not shown.")


def test_parts_that_all_tie_are_told_to_make_no_difference(tmp_path):
    headline, *_ = parts_study(tmp_path, dict.fromkeys(FRONT_ENDS, 2.0))
    assert headline.startswith("No difference comes from scale, centering or bias: validation loss ties within ±0.05")


def test_without_comparisons_of_single_parts_none_is_named(tmp_path):
    headline, *_ = parts_study(tmp_path, {"none": 2.0, "layernorm": 2.3, "layernorm-nobias": 2.3, "rmsnorm": 2.3}, 0.5)
    assert "difference comes" not in headline
    assert "makes the difference" not in headline


def test_settings_that_interact_are_told_with_what_each_arm_does_to_its_own_reference(tmp_path):
    pair = ["llama-weight-decay-0.0", "llama"]
    asked = {"metric": "validation_loss", "smallest_effect": 0.01}
    made = test_interactions.crossed(
        factors={**test_interactions.NAMED, "effects": ["architecture:weight_decay"]},
        contrasts=[pair],
        criteria=[{**asked, "role": "primary"}, {**asked, "contrast": pair}],
    )
    losses = {"gpt2": 2.0, "gpt2-weight-decay-0.0": 2.1, "llama": 1.8, "llama-weight-decay-0.0": 1.8}

    def ended(variant, regime, seed):
        noise = 0.03 * (-1) ** seed if variant == pair[0] else 0.001 * (seed * len(variant) % 5)
        return {"validation_loss": losses[variant] + 0.01 * seed + noise}

    build(tmp_path, made, outcomes=ended)
    found = analyze(read_results(tmp_path))
    headline, *_ = answers(found, decide(found))
    assert plain(headline).startswith(
        "The settings architecture and weight_decay interact: against gpt2, gpt2-weight-decay-0.0 is worse by 0.1"
    )
    assert headline.endswith("; against llama, no difference is shown.")


def test_where_failures_alone_are_rarer_is_told_apart_from_where_stability_is_restored():
    whole = stability(6, 0, n=6)
    (gain,) = whole.gains
    parts = (replace(gain, id="diverged/hot", failure=Failure.DIVERGED, regime="hot"),)
    gains = (gain, replace(gain, id="unstable/hot", regime="hot", outcome="not-shown"))
    arms = (*whole.arms, *(arm.model_copy(update={"regime": "hot"}) for arm in whole.arms))
    found = whole.model_copy(update={"parts": parts, "gains": gains, "arms": arms})
    wide = {"delta": -0.2, "low": -0.5, "high": 0.1}
    made = analysis(comparison(**wide), comparison(regime="hot", **wide), stable=found, regimes=("default", "hot"))
    verdict = decide(made)
    known = verdict.hypotheses["H1b"].model_copy(
        update={"status": "supported", "reason": "restored", "evidence": (gain.id, "diverged/hot")}
    )
    headline, second, *_ = answers(made, verdict.model_copy(update={"hypotheses": {"H1b": known}}))
    assert headline.startswith("layernorm restores stability in default, one of the two regimes where the baseline is")
    assert headline.endswith("at a cost that may exceed the margins (H1b supported).")
    assert second.startswith("layernorm has fewer runs that diverge in hot (0 of 6, none 6 of 6), though not shown to")
