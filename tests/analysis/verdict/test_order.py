"""A strictly worse input never gets a better verdict, for any pair of inputs that can be ordered."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ablationlab.analysis import analyze
from ablationlab.analysis.verdict.evidence import gather
from ablationlab.analysis.verdict.hypotheses import judge_hypotheses
from ablationlab.analysis.verdict.rules import decision_of
from ablationlab.records.analysis import Analysis
from ablationlab.records.settings import Criterion, Hypothesis, Stability
from ablationlab.records.verdict import RANK, Decision

from .studies import RESTORES, dataset, deltas

NO_CHANGE = Hypothesis(name="H0", statement="Nothing changes.", rule="no-change", metric="validation_loss")
#: What befell a run, from the best to the worst. "m" is not there at all, which is no worse than to diverge.
SEVERITY = ".swd"
SHIFTS = st.sampled_from([-0.05, -0.02, -0.012, -0.008, -0.004, 0.0, 0.004, 0.008, 0.012, 0.02, 0.05])
FEW, MANY = (5, 8, 12, 20), (40,)


@dataclass(frozen=True)
class Input:
    """What a decision is made from: shifts are worse where larger; endings by seed, of the variant and of the baseline."""

    n: int
    spread: float
    effect: float
    guard: float
    secondary: float
    variant: str
    baseline: str
    margin: float | None
    smallest_effect: float | None
    bad: tuple[float, ...] = ()  # what single runs of the variant lose beyond that, from the first seed on
    bad_guard: tuple[float, ...] = ()
    bad_secondary: tuple[float, ...] = ()
    third: str = ""  # endings of another variant
    measured: frozenset[str] = frozenset(("token_ece", "next_token_accuracy"))

    def shape(self) -> np.ndarray:
        return np.random.default_rng(self.n).permutation(deltas(0.0, self.spread, self.n))

    def decision(self) -> Decision:
        return decision_of(gather(self.analysis(), "layernorm", "default"))

    def supported(self) -> set[str]:
        """The hypotheses that are supported."""
        judged = judge_hypotheses(self.analysis())
        return {name for name, verdict in judged.items() if verdict.status == "supported"}

    @lru_cache(maxsize=8)  # noqa: B019 (an input is asked several things in a row)
    def analysis(self) -> Analysis:
        base, shape = 2.0 + 0.05 * np.sin(np.arange(self.n)), self.shape()
        bad, bad_guard, bad_secondary = (
            np.pad(np.array(single[: self.n]), (0, max(0, self.n - len(single))))
            for single in (self.bad, self.bad_guard, self.bad_secondary)
        )
        losses = {"none": base, "layernorm": base + shape + self.effect + bad}
        eces = {"none": base / 50, "layernorm": base / 50 + shape[::-1] + self.guard + bad_guard}
        accuracies = {"none": base / 5, "layernorm": base / 5 - (np.roll(shape, 2) + self.secondary + bad_secondary)}
        others = {"token_ece": eces, "next_token_accuracy": accuracies}
        metrics = {"validation_loss": losses} | {name: others[name] for name in sorted(self.measured)}
        ended = {"none": self.baseline, "layernorm": self.variant}
        if self.third:
            metrics = {name: {**by, "rmsnorm": by["layernorm"] + 0.1 * shape} for name, by in metrics.items()}
            ended["rmsnorm"] = self.third
        return analyze(
            dataset(
                metrics,
                (
                    Criterion(metric="validation_loss", role="primary", smallest_effect=self.smallest_effect),
                    Criterion(metric="token_ece", role="guard", margin=self.margin),
                    Criterion(metric="next_token_accuracy", role="secondary"),
                ),
                ended,
                hypotheses=(NO_CHANGE, RESTORES),
                settings=Stability(failures=("failed", "unstable")),
                brief=True,
            )
        )


def _no_better(how: str) -> str:
    """Endings that are as bad or worse."""
    return "md" if how == "m" else SEVERITY[SEVERITY.index(how) :]


def _no_worse(how: str, of_variant: str) -> str:
    """Endings of the baseline that are as good or better and add no pair, which would be new evidence either way."""
    if how == "m":
        return "m"
    return SEVERITY[: SEVERITY.index(how) + 1] if how != "d" or of_variant in "dm" else "dm"


@st.composite
def inputs(draw, sizes=FEW, endings="....swdm"):
    n = draw(st.sampled_from(sizes))
    endings = st.text(st.sampled_from(endings), min_size=n, max_size=n)
    return Input(
        n=n,
        spread=draw(st.sampled_from([0.001, 0.004, 0.02])),
        effect=draw(SHIFTS),
        guard=draw(SHIFTS),
        secondary=draw(SHIFTS),
        variant=draw(endings),
        baseline=draw(endings),
        margin=draw(st.sampled_from([None, 0.01])),
        smallest_effect=draw(st.sampled_from([None, 0.01])),
    )


@st.composite
def ordered(draw, sizes=FEW, endings="....swdm"):
    """An input and one that is worse in some respects and better in none."""
    better = draw(inputs(sizes, endings))
    more = st.sampled_from([0.0, 0.0, 0.003, 0.01, 0.04])
    worse = st.sampled_from([False, False, True])
    variant = "".join(draw(st.sampled_from(_no_better(how))) if draw(worse) else how for how in better.variant)
    baseline = "".join(
        draw(st.sampled_from(_no_worse(how, against))) if draw(worse) else how
        for how, against in zip(better.baseline, variant, strict=True)
    )
    return better, replace(
        better,
        effect=better.effect + draw(more),
        guard=better.guard + draw(more),
        secondary=better.secondary + draw(more),
        variant=variant,
        baseline=baseline,
    )


@st.composite
def one_more_diverges(draw, sizes=FEW, endings="........sm"):
    """An input and the same with some runs of the variant diverged that had finished: nothing else differs."""
    better = draw(inputs(sizes, endings))
    lost = draw(st.sets(st.integers(0, better.n - 1), min_size=1, max_size=3))
    return better, replace(
        better, variant="".join("d" if seed in lost else how for seed, how in enumerate(better.variant))
    )


@given(ordered())
@settings(max_examples=100, deadline=None)
def test_a_strictly_worse_input_never_gets_a_better_verdict(pair):
    better, worse = pair
    assert RANK[worse.decision()] <= RANK[better.decision()]


@given(one_more_diverges())
@settings(max_examples=100, deadline=None)
def test_a_run_that_diverges_instead_of_finishing_never_makes_the_verdict_better(pair):
    better, worse = pair
    assert RANK[worse.decision()] <= RANK[better.decision()]


@given(st.one_of(ordered(MANY, "......s"), one_more_diverges(MANY, "......s")))
@settings(max_examples=20, deadline=None)
def test_many_seeds_can_outweigh_a_divergence_but_not_by_losing_a_bad_run(pair):
    better, worse = pair
    assert RANK[worse.decision()] <= RANK[better.decision()]


@given(
    inputs(sizes=(3, *FEW), endings="......s"),
    st.lists(st.sampled_from([0.0, 0.003, 0.03, 0.3, 1e3]), max_size=5),
    st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.1, 1e6]), min_size=5, max_size=5),
)
@settings(max_examples=100, deadline=None)
def test_single_runs_that_get_worse_never_take_keep_baseline_back(better, bad, more):
    """However far: the t-test alone would, for one cost far beyond the others makes their SD large."""
    better = replace(better, effect=abs(better.effect), bad=tuple(bad))
    worse = replace(better, bad=tuple(a + b for a, b in zip(bad, more, strict=False)))
    if RANK[better.decision()] == 0:
        assert RANK[worse.decision()] == 0 or worse.decision() == Decision.TIE  # surely worse by less than matters


@given(
    inputs(sizes=(5, 8, 20), endings="......s"),
    st.sampled_from([0.3, 0.5, 0.7, 0.9, 1.1]),
    st.lists(st.sampled_from([0.0, 0.002, 0.004, 0.01, 0.02, 0.1]), min_size=5, max_size=5),
)
@settings(max_examples=150, deadline=None)
def test_single_runs_that_get_worse_never_turn_a_tie_into_a_gain(better, gain, more):
    """A gain that is real but small: a worse run widens its interval beyond the smallest effect."""
    better = replace(better, effect=-0.01 * gain, smallest_effect=0.01, spread=min(better.spread, 0.004))
    worse = replace(better, bad=tuple(more))
    assert RANK[worse.decision()] <= RANK[better.decision()]


@given(ordered(endings="....sw"))
@settings(max_examples=50, deadline=None)
def test_the_better_of_two_inputs_with_unstable_baselines_is_never_kept_from_adoption(pair):
    better, worse = (
        replace(side, baseline="w" * side.n, variant="".join("s" if how in "wd" else how for how in side.variant))
        for side in pair
    )
    assert RANK[worse.decision()] <= RANK[better.decision()]


@given(inputs(endings=".....d"), st.data())
@settings(max_examples=50, deadline=None)
def test_a_baseline_that_finishes_instead_of_diverging_never_takes_keep_baseline_back(better, data):
    """Its pair is new evidence, which may help the variant; but never one that is kept out for good."""
    finishes = st.sampled_from([False, True])
    baseline = "".join("." if how == "d" and data.draw(finishes) else how for how in better.baseline)
    if better.decision() == Decision.KEEP_BASELINE:
        assert RANK[replace(better, baseline=baseline).decision()] == 0


BAD = st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.1, 1e6]), min_size=5, max_size=5)


@given(inputs(sizes=(8, 20), endings=".....s"), BAD, BAD, BAD, BAD)
@settings(max_examples=80, deadline=None)
def test_single_runs_that_get_worse_on_a_guard_or_a_secondary_never_turn_a_trade_off_into_adoption(
    better, guard, secondary, more_guard, more_secondary
):
    """A collapse of one run inflates the SD, and the loss that was shown no longer is."""
    better = replace(better, effect=-abs(better.effect), bad_guard=tuple(guard), bad_secondary=tuple(secondary))
    worse = replace(
        better,
        bad_guard=tuple(map(sum, zip(guard, more_guard, strict=True))),
        bad_secondary=tuple(map(sum, zip(secondary, more_secondary, strict=True))),
    )
    assert RANK[worse.decision()] <= RANK[better.decision()]
    if better.decision() == Decision.TRADE_OFF:
        assert worse.decision() == Decision.TRADE_OFF


@given(inputs(sizes=(8, 20), endings="........sd"), st.integers(0, 7))
@settings(max_examples=60, deadline=None)
def test_a_missing_run_of_the_variant_or_a_guard_without_values_leaves_no_final_verdict_for_it(made, place):
    """A tie may stand if the baseline lost as many runs alone: what theirs had cost is as unknown."""
    final = (Decision.ADOPT, Decision.ADOPT_IN_REGIME, Decision.TIE)
    missing = replace(
        made,
        variant=made.variant[:place] + "m" + made.variant[place + 1 :],
        baseline=made.baseline.replace("d", "."),
    )
    assert missing.decision() not in final
    assert replace(made, measured=frozenset(("next_token_accuracy",))).decision() not in final[:2]


@given(inputs(sizes=(8, 20), endings=".....s"), st.data())
@settings(max_examples=60, deadline=None)
def test_a_guard_or_a_secondary_that_becomes_no_number_never_makes_the_verdict_better(better, data):
    """However many runs of the variant, and whatever they were before."""
    better = replace(better, effect=-abs(better.effect))
    lost = st.tuples(*[st.sampled_from([0.0, 0.0, float("inf"), float("nan")])] * better.n)
    worse = replace(better, bad_guard=data.draw(lost), bad_secondary=data.draw(lost))
    assert RANK[worse.decision()] <= RANK[better.decision()]
    if any((*worse.bad_guard, *worse.bad_secondary)):  # nan is true
        assert worse.decision() != Decision.ADOPT


@given(st.one_of(inputs(), inputs(MANY, "......s")), st.data())
@settings(max_examples=100, deadline=None)
def test_deleting_runs_of_the_variant_never_makes_a_claim_for_it(whole, data):
    """What is not there shows nothing against it either, so the verdict may become inconclusive, and nothing more."""
    deleted = data.draw(st.sets(st.integers(0, whole.n - 1), min_size=1, max_size=whole.n))
    less = replace(whole, variant="".join("m" if seed in deleted else how for seed, how in enumerate(whole.variant)))
    assert RANK[less.decision()] <= max(RANK[whole.decision()], RANK[Decision.INCONCLUSIVE])
    assert less.supported() <= whole.supported()


@given(inputs(endings=".....sd"))
@settings(max_examples=50, deadline=None)
def test_deleting_another_variant_never_makes_a_claim(whole):
    whole = replace(whole, third="." * whole.n)
    less = replace(whole, third="m" * whole.n)
    assert RANK[less.decision()] <= max(RANK[whole.decision()], RANK[Decision.INCONCLUSIVE])
    assert less.supported() <= whole.supported()
    places = [made.analysis().stability.places for made in (whole, less)]
    assert places == [4, 4]


def test_a_run_that_spiked_does_not_help_by_being_missing():
    made = Input(
        n=5,
        spread=0.001,
        effect=-0.05,
        guard=0.0,
        secondary=0.0,
        variant="ss...",
        baseline=".....",
        margin=0.01,
        smallest_effect=0.01,
    )
    assert made.decision() == Decision.KEEP_PROVISIONALLY
    assert replace(made, variant="ms...").decision() == Decision.KEEP_PROVISIONALLY
    assert replace(made, variant="s....").decision() == Decision.ADOPT_PROVISIONALLY
