"""A registered shared variance, end to end: what decides rests on all arms, and nothing else does."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ablationlab.analysis import analyze
from ablationlab.analysis.verdict import decide
from ablationlab.analysis.verdict.without import without
from ablationlab.records.analysis import Comparison
from ablationlab.records.settings import Criterion, Design
from ablationlab.records.verdict import Answer
from ablationlab.stats.sequential import Looks

from .verdict.studies import dataset

LOSS = Criterion(
    metric="validation_loss", role="primary", correction="bonferroni", variance="shared", smallest_effect=0.01
)
OWN = LOSS.model_copy(update={"variance": "own"})
ARMS, SEEDS = 12, 5


def losses(effect=-0.02, sd=0.005, *, arms=ARMS, n=SEEDS, seed=0):
    """Values by arm; the first variant is better by *effect*."""
    rng = np.random.default_rng(seed)
    base = 2.0 + 0.05 * np.sin(np.arange(n))
    effects = [effect, *[0.0] * (arms - 1)]
    return {"none": base} | {f"v{i}": base + mean + sd * rng.normal(size=n) for i, mean in enumerate(effects)}


def made(values, criteria=(LOSS,), endings=None, **more):
    perplexity = {arm: np.exp(losses) for arm, losses in values.items()}
    return dataset({"validation_loss": values, "perplexity": perplexity}, criteria, endings, **more)


def primaries(analysis):
    return [comparison for comparison in analysis.comparisons if comparison.role == "primary"]


def by_hand(values, arm):
    """(mean, standard error) by the larger of the arm's own variance and the mean, the largest one capped."""
    costs = np.array([values[name] - values["none"] for name in values if name != "none"])
    variances = costs.var(axis=1, ddof=1)
    capped = np.minimum(variances, np.sort(variances)[-2]) if len(costs) >= 8 else variances
    n = costs.shape[1]
    return costs[arm].mean(), np.sqrt(max(variances[arm], capped.mean()) / n)


def test_p_and_the_deciding_interval_are_by_the_variance_of_all_arms():
    values = losses()
    for arm, comparison in enumerate(primaries(analyze(made(values)))):
        mean, error = by_hand(values, arm)
        assert comparison.p == pytest.approx(2 * stats.t.sf(abs(mean / error), 2 * (SEEDS - 1)))
        assert comparison.p_adjusted == pytest.approx(min(1.0, ARMS * comparison.p))
        ends = stats.t.interval(comparison.deciding.level, 2 * (SEEDS - 1), mean, error)
        assert (comparison.deciding.low, comparison.deciding.high) == pytest.approx(ends)
        assert comparison.deciding.level == pytest.approx(1 - 0.05 / ARMS)
        assert (comparison.variance, len(comparison.shared_with)) == ("shared", ARMS - 1)


def test_margins_and_same_rest_on_a_comparisons_own_variance():
    """No correction over arms stands behind them, so a noisy arm would be the same too often."""
    shared, own = (primaries(analyze(made(losses(), [criterion]))) for criterion in (LOSS, OWN))
    for ours, plain in zip(shared, own, strict=True):
        assert ours.p != plain.p
        assert (ours.cost.low, ours.cost.high, ours.cost.same) == (plain.cost.low, plain.cost.high, plain.cost.same)
        assert (ours.tests, ours.intervals) == (plain.tests, plain.intervals)


def test_it_shows_more_of_few_seeds_and_many_arms():
    found = {"own": 0, "shared": 0}
    for seed in range(60):
        values = losses(effect=-0.016, sd=0.008, seed=seed)
        for criterion in (OWN, LOSS):
            (verdict, *_) = decide(analyze(made(values, [criterion]))).verdicts
            found[criterion.variance] += verdict.answer == Answer.BETTER
    assert found["shared"] >= found["own"] + 10


def test_a_metric_that_shares_the_test_shares_the_variance():
    analysis = analyze(made(losses()))
    for loss in primaries(analysis):
        other = next(c for c in analysis.comparisons if c.shares_test_of == loss.id)
        assert (other.p, other.variance) == (loss.p, "shared")
        assert (other.deciding.low, other.deciding.high) == pytest.approx((loss.deciding.low, loss.deciding.high))


def test_exploratory_comparisons_secondaries_and_other_regimes_have_their_own():
    values = losses(arms=4)
    accuracy = Criterion(metric="next_token_accuracy", smallest_effect=0.01)
    both = {"default": dict.fromkeys(values, "....."), "stress": dict.fromkeys(values, ".....")}
    analysis = analyze(
        dataset({"validation_loss": values, "next_token_accuracy": values}, (LOSS, accuracy), regimes=both)
    )
    for comparison in analysis.comparisons:
        assert (comparison.variance == "shared") == (comparison.role == "primary") == bool(comparison.shared_with)
    assert {comparison.role for comparison in analysis.comparisons} == {"primary", "secondary", None}


def test_a_lost_run_leaves_the_other_arms_their_pairs():
    values = losses(n=8)
    endings = dict.fromkeys(values, "." * 8) | {"v0": ".......d", "v1": "d.d.dddd"}
    analysis = analyze(made(values, endings=endings))
    first, second, third, *_ = primaries(analysis)
    sds = [np.std(values[f"v{i}"] - values["none"], ddof=1) for i in range(ARMS)]
    assert sorted(third.shared_with) == pytest.approx(
        sorted([np.std((values["v0"] - values["none"])[:7], ddof=1), *sds[3:]])  # two pairs say nothing of v1's noise
    )
    assert first.p is not None
    assert second.outcome == "not-tested" or second.p_adjusted == 1


def test_an_absurd_run_of_another_arm_leaves_the_answer():
    values = losses()
    values["v5"] = values["v5"] + np.array([0, 0, 100.0, 0, 0])
    first, *_ = decide(analyze(made(values))).verdicts
    assert first.answer == Answer.BETTER


def test_two_arms_with_five_pairs_share_nothing():
    for comparison in primaries(analyze(made(losses(arms=2)))):
        assert comparison.p == pytest.approx(comparison.tests["paired-t"].p)


def test_without_a_seed_the_variances_are_those_of_the_other_seeds():
    values = losses(n=6)
    analysis = analyze(made(values))
    for seed in (1, 6):
        less = without(analysis, seed)
        fresh = analyze(made({arm: np.delete(numbers, seed - 1) for arm, numbers in values.items()}))
        for one, other in zip(primaries(less), primaries(fresh), strict=True):
            assert one.shared_with == pytest.approx(other.shared_with)
            assert (one.p, one.outcome) == (pytest.approx(other.p), other.outcome)


def test_at_a_look_every_earlier_look_has_the_variances_that_it_had():
    looks = (5, 8, 12)
    values = losses(n=12, arms=4)
    values["v3"] = values["v3"] + np.r_[np.zeros(8), 5.0, -5.0, 5.0, -5.0]  # noisy after the second look only
    design = Design(looks=looks)
    analysis = analyze(made(values, design=design, look=3))
    p_values = []
    for n in looks:
        mean, error = by_hand({arm: numbers[:n] for arm, numbers in values.items()}, 0)
        p_values.append(2 * stats.t.sf(abs(mean / error), 2 * (n - 1)))
    first, *_ = primaries(analysis)
    assert first.p == pytest.approx(Looks(looks, design.spending).p_value(tuple(p_values)))
    assert first.outcome == "better"  # it was shown at an earlier look
    assert first.deciding.excludes(0.0)


def test_records_keep_it_and_older_ones_have_their_own():
    (comparison, *_) = primaries(analyze(made(losses())))
    stored = comparison.model_dump(mode="json")
    assert Comparison.model_validate(stored) == comparison
    del stored["variance"], stored["shared_with"]
    assert Comparison.model_validate(stored).variance == "own"
