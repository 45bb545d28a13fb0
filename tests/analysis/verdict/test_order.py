"""A strictly worse input never gets a better verdict, for any pair of inputs that can be ordered."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablationlab.analysis import analyze, comparisons
from ablationlab.analysis.verdict.evidence import gather
from ablationlab.analysis.verdict.rules import decision_of
from ablationlab.records.settings import Criterion, Stability
from ablationlab.records.verdict import RANK

from .studies import dataset, deltas

#: What befell a run, from the best to the worst; "d" leaves no value, which is a change of another kind (see below).
SEVERITY = ".sw"
SHIFTS = st.sampled_from([-0.05, -0.02, -0.012, -0.008, -0.004, 0.0, 0.004, 0.008, 0.012, 0.02, 0.05])


@dataclass(frozen=True)
class Input:
    """What a decision is made from: shifts are worse where larger; endings by seed, of the variant and of the baseline."""

    n: int
    spread: float
    effect: float
    guard: float
    secondary: float
    variant: tuple[int, ...]
    baseline: tuple[int, ...]
    margin: float | None
    smallest_effect: float | None

    def decision(self):
        base = 2.0 + 0.05 * np.sin(np.arange(self.n))
        shape = np.random.default_rng(self.n).permutation(deltas(0.0, self.spread, self.n))
        losses = {"none": base, "layernorm": base + shape + self.effect}
        eces = {"none": base / 50, "layernorm": base / 50 + shape[::-1] + self.guard}
        accuracies = {"none": base / 5, "layernorm": base / 5 - (np.roll(shape, 2) + self.secondary)}
        made = analyze(
            dataset(
                {"validation_loss": losses, "token_ece": eces, "next_token_accuracy": accuracies},
                (
                    Criterion(metric="validation_loss", role="primary", smallest_effect=self.smallest_effect),
                    Criterion(metric="token_ece", role="guard", margin=self.margin),
                    Criterion(metric="next_token_accuracy", role="secondary"),
                ),
                {
                    "none": "".join(SEVERITY[how] for how in self.baseline),
                    "layernorm": "".join(SEVERITY[how] for how in self.variant),
                },
                settings=Stability(failures=("failed", "unstable")),
            )
        )
        return decision_of(gather(made, "layernorm", "default"))


@st.composite
def ordered(draw):
    """An input and one that is worse in some respects and better in none."""
    n = draw(st.sampled_from([5, 8, 12, 20]))
    endings = st.tuples(*[st.sampled_from([0, 0, 1, 2])] * n)
    better = Input(
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
    more = st.sampled_from([0.0, 0.0, 0.003, 0.01, 0.04])
    steps = st.tuples(*[st.sampled_from([0, 0, 1, 2])] * n)
    return better, replace(
        better,
        effect=better.effect + draw(more),
        guard=better.guard + draw(more),
        secondary=better.secondary + draw(more),
        variant=tuple(min(2, how + step) for how, step in zip(better.variant, draw(steps), strict=True)),
        baseline=tuple(max(0, how - step) for how, step in zip(better.baseline, draw(steps), strict=True)),
    )


@pytest.fixture(autouse=True, scope="module")
def few_resamples():
    """The bootstrap decides nothing here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparisons, "RESAMPLES", 100)
        yield


@given(ordered())
@settings(max_examples=100, deadline=None)
def test_a_strictly_worse_input_never_gets_a_better_verdict(pair):
    better, worse = pair
    assert RANK[worse.decision()] <= RANK[better.decision()]


@given(ordered())
@settings(max_examples=50, deadline=None)
def test_the_better_of_two_inputs_with_unstable_baselines_is_never_kept_from_adoption(pair):
    better, worse = (
        replace(side, baseline=(2,) * side.n, variant=tuple(min(how, 1) for how in side.variant)) for side in pair
    )
    assert RANK[worse.decision()] <= RANK[better.decision()]
