"""What must hold of every answer, whatever the runs are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ablationlab.analysis import analyze
from ablationlab.analysis.verdict.rules import answer_of, gather
from ablationlab.records.analysis import Analysis
from ablationlab.records.settings import Criterion, Stability
from ablationlab.records.verdict import Answer

from .studies import dataset, deltas

#: For the variant, and its mirror image. A variant that is unstable as counted alone has none: that guards one arm.
SPEAKS_FOR = {Answer.BETTER, Answer.MORE_STABLE}
MIRROR = {
    Answer.BETTER: Answer.WORSE,
    Answer.WORSE: Answer.BETTER,
    Answer.MORE_STABLE: Answer.UNSTABLE,
    Answer.UNSTABLE: Answer.MORE_STABLE,
}
SHIFTS = st.sampled_from([-0.05, -0.012, -0.008, -0.004, 0.0, 0.004, 0.008, 0.012, 0.05])
FAR = st.sampled_from([-0.5, -0.04, 0.0, 0.0, 0.0, 0.0, 0.01, 0.04, 0.5])


@dataclass(frozen=True)
class Input:
    """What an answer is made from; *effect* and *single* are worse where larger."""

    n: int
    spread: float
    effect: float
    variant: str
    baseline: str
    single: tuple[float, ...] = ()
    smallest_effect: float | None = 0.01
    unit: float = 1.0
    seed: int = 0

    def answer(self) -> Answer:
        return answer_of(gather(self.analysis(), "layernorm", "default"))

    @lru_cache(maxsize=8)  # noqa: B019 (an input is asked several things in a row)
    def analysis(self, *, swapped: bool = False) -> Analysis:
        base = 2.0 + 0.05 * np.sin(np.arange(self.n))
        shape = np.random.default_rng([self.n, self.seed]).permutation(deltas(0.0, self.spread, self.n))
        single = np.pad(np.array(self.single[: self.n]), (0, max(0, self.n - len(self.single))))
        arms = [(base, self.baseline), (base + shape + self.effect + single, self.variant)]
        none, layernorm = reversed(arms) if swapped else arms
        smallest = None if self.smallest_effect is None else self.smallest_effect * self.unit
        return analyze(
            dataset(
                {"validation_loss": {"none": none[0] * self.unit, "layernorm": layernorm[0] * self.unit}},
                (Criterion(metric="validation_loss", role="primary", smallest_effect=smallest),),
                {"none": none[1], "layernorm": layernorm[1]},
                settings=Stability(failures=("failed", "unstable")),
                brief=True,
            )
        )

    def mirrored(self) -> Answer:
        """Of the baseline against the variant."""
        return answer_of(gather(self.analysis(swapped=True), "layernorm", "default"))


@st.composite
def inputs(draw, endings="......swdm", sizes=(3, 5, 6, 8, 12, 20, 30)):
    n = draw(st.sampled_from(sizes))
    ends = st.text(st.sampled_from(endings), min_size=n, max_size=n)
    return Input(
        n=n,
        spread=draw(st.sampled_from([0.0, 0.001, 0.004, 0.02])),
        effect=draw(SHIFTS),
        variant=draw(ends),
        baseline=draw(ends),
        single=tuple(draw(st.lists(FAR, max_size=4))),
        smallest_effect=draw(st.sampled_from([None, 0.01])),
        seed=draw(st.integers(0, 5)),
    )


def _with(text: str, place: int, how: str) -> str:
    return text[:place] + how + text[place + 1 :]


@given(inputs(), st.data())
@settings(max_examples=500, deadline=None)
def test_losing_a_run_whose_partner_finished_makes_no_claim_for_its_arm(made, data):
    there = [i for i in range(made.n) if made.variant[i] not in "dm" and made.baseline[i] not in "dm"]
    if not there:
        return
    place, how = data.draw(st.sampled_from(there)), data.draw(st.sampled_from("dm"))
    before, after = made.answer(), replace(made, variant=_with(made.variant, place, how)).answer()
    if after in SPEAKS_FOR:
        assert before in SPEAKS_FOR
    if after == Answer.SAME:
        assert before in {*SPEAKS_FOR, Answer.SAME}


@given(inputs(), st.data())
@settings(max_examples=400, deadline=None)
def test_a_failure_makes_no_claim_for_its_arm(made, data):
    calm = [i for i in range(made.n) if made.variant[i] in "."]
    if not calm:
        return
    place, how = data.draw(st.sampled_from(calm)), data.draw(st.sampled_from("sw"))
    before, after = made.answer(), replace(made, variant=_with(made.variant, place, how)).answer()
    if after in SPEAKS_FOR:
        assert before in SPEAKS_FOR
    if after == Answer.SAME:
        assert before in {*SPEAKS_FOR, Answer.SAME}


@given(inputs(), st.sampled_from([0.001, 0.004, 0.02, 0.5]))
@settings(max_examples=400, deadline=None)
def test_a_variant_that_is_worse_everywhere_by_the_same_amount_gains_no_claim(made, more):
    after = replace(made, effect=made.effect + more).answer()
    assert after not in SPEAKS_FOR or made.answer() in SPEAKS_FOR


@given(inputs())
@settings(max_examples=400, deadline=None)
def test_swapping_the_arms_mirrors_the_answer(made):
    answer, mirrored = made.answer(), made.mirrored()
    by_count = [gather(made.analysis(swapped=side), "layernorm", "default").failures for side in (False, True)]
    if any((failures.counted or failures.possible) and not failures.more for failures in by_count):
        return
    assert mirrored == MIRROR.get(answer, answer)


@given(inputs(), st.sampled_from([1e-9, 1e-4, 1e9]))
@settings(max_examples=200, deadline=None)
def test_the_unit_changes_nothing(made, unit):
    assert replace(made, unit=unit).answer() == made.answer()


@given(inputs(endings="."), st.sampled_from([None, 0.01]))
@settings(max_examples=60, deadline=None)
def test_identical_arms_are_the_same(made, smallest):
    assert replace(made, spread=0.0, effect=0.0, single=(), smallest_effect=smallest).answer() == Answer.SAME


@given(inputs(), st.data())
@settings(max_examples=200, deadline=None)
def test_with_fewer_than_three_pairs_nothing_is_claimed(made, data):
    kept = data.draw(st.integers(0, 2))
    lost = replace(made, variant=made.variant[:kept].replace("m", ".") + "m" * (made.n - kept))
    assert lost.answer() in {Answer.UNDECIDED, Answer.NOT_MEASURED, Answer.UNSTABLE}
