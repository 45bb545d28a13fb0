"""Stability: of one run from its curves, of an arm from its runs, and what a variant gains over a reference."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Final, Literal

from ablationlab.analysis.dataset import Absent, Dataset, Value, absent, value_or_absent
from ablationlab.core.grouping import grouped
from ablationlab.core.seeding import stream
from ablationlab.records.analysis import (
    Absence,
    ArmStability,
    ArmSurvival,
    Comparison,
    Failure,
    Instability,
    RunStability,
    Seed,
    StabilityAnalysis,
    StabilityGain,
    StabilityOutcome,
    SweepAnalysis,
    UsableRates,
)
from ablationlab.records.metrics import FROM_CURVES
from ablationlab.records.plan import PlannedRun
from ablationlab.records.results import Run
from ablationlab.records.run import Divergence, MetricFailure, Result, RunRecord
from ablationlab.records.settings import SWEEP, TUNED, Design, Stability
from ablationlab.stats import Gain, item_pairs, mcnemar_tests
from ablationlab.stats._common import complement
from ablationlab.stats.failures import failure_bound, paired_survival, pairs_without_failure, survival_curve
from ablationlab.stats.gains import fisher_p, independent_gain, stability_gain
from ablationlab.stats.results import Caveat, CaveatCode, CurveMeasures
from ablationlab.stats.sequential import Looks
from ablationlab.stats.spikes import ended_worse

#: Metrics that are measures of a run's course.
CURVE_MEASURES: Final = (*FROM_CURVES, "mean_gradient_norm")


#: Whether runs of equal seed are pairs; in a user's table arms that share no seed are independent.
Pairing = Literal["always", "if-shared", "never"]
#: Per seed, over all rates of a sweep.
UNSTABLE_SHARE: Final = "unstable_share"
#: A first look may spend next to nothing, and no bound has such a level.
_LEAST: Final = 1e-9
UNSTABLE: Final = frozenset({Instability.DIVERGED, Instability.ENDED_WORSE, Instability.SPIKED})


@dataclass(frozen=True)
class EndedRun:
    """A run that has its result."""

    run: Run
    record: RunRecord
    result: Result

    def metric(self, name: str) -> float | None:
        """A recorded metric, or a measure of the course."""
        return self.result.course.measure(name) if name in CURVE_MEASURES else self.result.metrics.get(name)


def ended_run(run: Run) -> EndedRun | None:
    """None where it has not ended."""
    return None if run.record is None or run.result is None else EndedRun(run, run.record, run.result)


def value_of(run: EndedRun | None, name: str) -> Value:
    """A metric's value for the comparisons, or why there is none."""
    failure = run.result.unmeasured.get(name) if run is not None else None
    if failure is not None:
        return metric_failed(failure)
    return ending(run) or value_or_absent(run.metric(name) if run is not None else None)


def metric_failed(failure: MetricFailure) -> Absent:
    """Why a metric of the study's own code has no value."""
    where = "" if failure.place is None else f"{failure.place}: "
    return absent(Absence.METRIC_FAILED, error=f"{where}{failure.error}")


def ending(run: EndedRun | None) -> Absent | None:
    """Why a run has no value of any metric, if so."""
    if run is None:
        return absent(Absence.NOT_FINISHED)
    if run.result.status != "diverged":
        return None
    return diverged(run.result.divergence)


def diverged(at: Divergence | None) -> Absent:
    """What a diverged run has in the place of a value."""
    return absent(Absence.DIVERGED, **({} if at is None else at.model_dump(exclude_defaults=True)))


def stability_of(planned: PlannedRun, run: EndedRun | None, registered: Stability) -> RunStability:
    """Whether the run counts as unstable by what was registered, and why."""
    threshold, times = registered.spike_score, registered.worse_than_start
    ended = ending(run)
    course = run.result.course if run is not None else None
    score = course.spike_score if course is not None else None
    final = run.result.metrics.get("validation_loss") if run is not None else None
    initial = course.initial_loss if course is not None else None
    if run is None:
        reason = Instability.NOT_FINISHED
    elif ended is not None:
        reason = Instability.DIVERGED
    elif times != "off" and ended_worse(final, initial, times):
        reason = Instability.ENDED_WORSE
    elif score is None:
        reason = Instability.TOO_SHORT
    else:
        reason = Instability.SPIKED if score > threshold else Instability.CALM
    return RunStability(
        run=planned.id,
        variant=planned.variant,
        regime=planned.regime,
        seed=planned.seed,
        lr=None if planned.recipe is None else planned.lr,
        state="missing" if run is None else run.result.status,
        spike_score=score,
        spike_step=course.spike_step if course is not None else None,
        unstable=None if run is None else reason in UNSTABLE,
        reason=reason,
        loss=final,
        initial_loss=initial,
        divergence=run.result.divergence if run is not None else None,
        steps=planned.steps,
        failed_at=None if course is None else _failed_at(reason, run, course),
        measures={}
        if course is None
        else {name: course.measure(name) for name in CURVE_MEASURES if name != "spike_score"},
    )


def _failed_at(reason: Instability, run: EndedRun | None, course: CurveMeasures) -> int | None:
    """The step of an unstable run's divergence, else of its largest spike; of one that never spiked, where it last rose
    above its start."""
    if run is None or reason not in UNSTABLE:
        return None
    if reason == Instability.DIVERGED:
        return None if run.result.divergence is None else run.result.divergence.step
    if course.spike_step is not None or course.curve is None or course.initial_loss is None:
        return course.spike_step
    below = [
        step for step, loss in zip(course.curve.steps, course.curve.losses, strict=True) if loss <= course.initial_loss
    ]
    return next((step for step in course.curve.steps if not below or step > below[-1]), None)


def measured_names(done: Sequence[EndedRun]) -> list[str]:
    """Measures of the curve that at least one run has a value of."""
    return [name for name in CURVE_MEASURES if any(run.metric(name) is not None for run in done)]


def stability(dataset: Dataset, comparisons: Sequence[Comparison] = ()) -> StabilityAnalysis | None:
    """All of it; None where nothing is known of the runs' course (a table of values)."""
    if not dataset.runs:
        return None
    alpha, margin_alpha = spent_at_look(dataset)
    return StabilityAnalysis(
        threshold=dataset.stability.spike_score,
        alpha=alpha,
        margin=dataset.stability.margin,
        margin_alpha=margin_alpha,
        seeds_for_margin=seeds_for_margin(dataset.design, dataset.stability.margin, dataset.alpha, dataset.look or 1),
        smoothness=dataset.stability.smoothness,
        runs=dataset.runs,
        rates=usable_rates(dataset.sweep, dataset.variants),
        survival=survival(dataset.runs, dataset.regimes, dataset.variants, dataset.baseline),
        **vars(
            StabilityQuestion(
                regimes=dataset.regimes,
                variants=dataset.variants,
                baseline=dataset.baseline,
                pairs=dataset.pairs(),
                seeds={regime: dataset.seeds_of(regime) for regime in dataset.regimes},
                pairing=_pairing(dataset.source, dataset.unpaired),
                failures=dataset.stability.failures,
                alpha=alpha,
                margin_alpha=margin_alpha,
                swept=swept_places(comparisons, dataset.baseline),
                sealed=frozenset(dataset.variants) - dataset.added if dataset.registered else frozenset(),
            ).answered(dataset.runs)
        ),
    )


def _pairing(source: str, unpaired: bool) -> Pairing:
    return "never" if unpaired else "if-shared" if source == "table" else "always"


def survival(
    runs: Sequence[RunStability], regimes: Sequence[str], variants: Sequence[str], baseline: str
) -> tuple[ArmSurvival, ...]:
    """When runs diverged, of every arm of the regimes in which one did."""
    arms = []
    for regime in regimes:
        here = [run for run in runs if run.regime == regime and run.unstable is not None]
        diverged = [run for run in here if run.state == "diverged"]
        lengths = {run.steps for run in here}
        length = max((steps for steps in lengths if steps is not None), default=None)
        if not diverged or length is None or any(run.diverged_at is None for run in diverged):
            continue
        # A trainer of the user's own may count steps otherwise than its settings do.
        length = max(length, *(run.diverged_at for run in diverged if run.diverged_at is not None))
        ends = {variant: {run.seed: run.diverged_at for run in here if run.variant == variant} for variant in variants}
        for variant, by_seed in ends.items():
            seeds = [seed for seed in by_seed if seed in ends[baseline]]
            p = minimum_p = None
            if variant != baseline and len(lengths) == 1:  # runs of other lengths are not at risk alike
                paired = paired_survival(
                    [by_seed[seed] for seed in seeds],
                    [ends[baseline][seed] for seed in seeds],
                    length=length,
                    rng=stream(0, "analysis", "survival", regime, variant),
                )
                p, minimum_p = paired.p, paired.minimum_p
            arms.append(
                ArmSurvival(
                    variant=variant,
                    regime=regime,
                    length=length,
                    runs=len(by_seed),
                    steps=survival_curve(list(by_seed.values()), length),
                    p=p,
                    minimum_p=minimum_p,
                )
            )
    return tuple(arms)


def spent_at_look(dataset: Dataset) -> tuple[float, float | None]:
    """What tests of stability may spend here, and what the bound on failures: the registered alpha, or at a planned look what
    its design spends there. The bound is None where no study without a failure would keep the margin.

    The looks together spend alpha, whatever the tests have in common (Bonferroni): exact levels as for Student's t do not
    exist for counts. What a look cannot use, the next one has.
    """
    if dataset.design is None or dataset.look is None:
        return dataset.alpha, dataset.alpha
    looks, here = Looks(dataset.design.looks, dataset.design.spending), dataset.look - 1
    tests = looks.usable(dataset.alpha, lambda n, level: 2.0 ** (1 - n) <= level)  # McNemar's smallest p
    bound = margin_levels(dataset.design, dataset.stability.margin, dataset.alpha)[here]
    return tests[here][0], bound[0] if bound[1] else None


def margin_levels(design: Design, margin: float, alpha: float) -> tuple[tuple[float, bool], ...]:
    """At each look the level of the bound on failures, and whether it is asked there."""

    def able(n: int, level: float) -> bool:
        return level >= _LEAST and pairs_without_failure(margin, alpha=level / 2) <= n

    return Looks(design.looks, design.spending).usable(alpha, able)


def seeds_for_margin(design: Design | None, margin: float, alpha: float, look: int = 1) -> int | None:
    """So many seeds without a failure keep the margin: those of a look, from *look* on, where there are any."""
    if design is not None:
        levels = margin_levels(design, margin, alpha)
        planned = [
            n for n, (_, asked) in zip(design.looks, levels, strict=True) if asked and n >= design.looks[look - 1]
        ]
        if planned:
            return planned[0]
    return pairs_without_failure(margin, alpha=alpha / 2) if alpha >= _LEAST else None


@dataclass(frozen=True)
class Contrasts:
    """Arms and the gains between them, from the runs alone."""

    places: int
    arms: tuple[ArmStability, ...]
    gains: tuple[StabilityGain, ...]
    parts: tuple[StabilityGain, ...]


@dataclass(frozen=True)
class StabilityQuestion:
    """What is asked about the stability of runs.

    *pairs*: variant and reference. *seeds*: those promised, by regime. *margin_alpha*: of the bound on failures. *swept*:
    registered comparisons over a sweep, which are places too. *sealed*: variants of a registered study; what joins it later
    is corrected for every place, and no place of theirs.
    """

    regimes: Sequence[str]
    variants: Sequence[str]
    baseline: str
    pairs: Sequence[tuple[str, str]]
    seeds: Mapping[str, Sequence[Seed]]
    pairing: Pairing
    failures: Collection[str]
    alpha: float
    margin_alpha: float | None
    swept: int
    sealed: Collection[str]

    def answered(self, runs: Sequence[RunStability]) -> Contrasts:
        """Tuned arms are no places: their rates may differ."""
        asked = {(run.variant, run.regime) for run in runs}  # planned: a place whose runs are missing stays one
        looked_at = [
            variant
            for regime in self.regimes
            for variant in self.variants
            if variant != self.baseline and regime != TUNED and {(variant, regime), (self.baseline, regime)} <= asked
        ]
        every = max(1, len(looked_at) * len(self.failures) + self.swept)
        registered = sum(variant in self.sealed for variant in looked_at)
        places = max(1, registered * len(self.failures) + self.swept) if self.sealed else every
        by_arm = grouped(((run.variant, run.regime), run) for run in runs)
        arms = tuple(
            _arm(variant, regime, by_arm.get((variant, regime), []))
            for regime in self.regimes
            for variant in self.variants
        )
        gains = {
            failure: tuple(
                self._gain(by_arm, failure, pair, regime, places if pair[0] in self.sealed else every)
                for regime in self.regimes
                for pair in self.pairs
            )
            for failure in Failure
        }
        whole = gains.pop(Failure.UNSTABLE)
        curves = any(run.reason not in (Instability.NOT_A_NUMBER, Instability.SPIKES_UNKNOWN) for run in runs)
        parts = tuple(gain for part in gains.values() for gain in part) if curves else ()
        return Contrasts(places, arms, whole, parts)

    def _gain(
        self,
        runs: Mapping[tuple[str, str], Sequence[RunStability]],
        failure: Failure,
        pair: tuple[str, str],
        regime: str,
        places: int,
    ) -> StabilityGain:
        variant, reference = pair
        promised = self.seeds[regime]
        level = complement(max(self.alpha, 1e-12))  # a first look may spend next to nothing
        fails = [
            {run.seed: _fails(run, failure) for run in runs.get((arm, regime), ()) if run.unstable is not None}
            for arm in pair
        ]
        seeds = [seed for seed in promised if seed in fails[0] and seed in fails[1]]
        p: float | None = None
        test: Literal["mcnemar", "fisher"] = "mcnemar"
        if self.pairing == "never" or (self.pairing == "if-shared" and not seeds):
            gain, test = independent_gain(*([*by_seed.values()] for by_seed in fails), level=level), "fisher"
            lacking = [[r.seed for r in runs.get((arm, regime), ()) if r.unstable is None] for arm in pair]
            single = [*lacking[0], *lacking[1]]
            broken, rescued = map(len, lacking)
            if gain.n:
                steadier = (gain.estimate or 0.0) > 0
                filled = [
                    [*known.values(), *[fill] * len(gone)]
                    for known, gone, fill in zip(fails, lacking, (steadier, not steadier), strict=True)
                ]
                counted = independent_gain(*filled, level=level)
                numbers = (
                    counted.variant_unstable,
                    counted.reference_unstable,
                    counted.variant_runs,
                    counted.reference_runs,
                )
                p = fisher_p(*numbers) if ((counted.estimate or 0.0) > 0) == steadier else 1.0
                gain = _as_bounded(gain, counted) if single else gain
        else:
            gain = stability_gain(*([by_seed[seed] for seed in seeds] for by_seed in fails), level=level)
            single = [seed for seed in promised if (seed in fails[0]) != (seed in fails[1])]
            # What is not there is filled in against the claim: for *more stable* the variant's runs as failed and the
            # reference's as stable, for *less stable* the other way round.
            against = [fails[0].get(seed, True) and not fails[1].get(seed, False) for seed in single]
            for_it = [fails[1].get(seed, True) and not fails[0].get(seed, False) for seed in single]
            broken, rescued = sum(against), sum(for_it)
            if seeds and gain.rescued is not None and gain.broken is not None:
                if gain.rescued >= gain.broken:
                    p, fill = mcnemar_p(gain.rescued, min(gain.broken + broken, gain.rescued)), (True, False)
                else:
                    p, fill = mcnemar_p(min(gain.rescued + rescued, gain.broken), gain.broken), (False, True)
                if single:
                    there = [seed for seed in promised if seed in fails[0] or seed in fails[1]]
                    arms = ([known.get(seed, lost) for seed in there] for known, lost in zip(fails, fill, strict=True))
                    gain = _as_bounded(gain, stability_gain(*arms, level=level))
        tested = places if failure in self.failures and reference == self.baseline and regime != TUNED else None
        adjusted = None if p is None or tested is None else min(1.0, p * tested)
        shown = adjusted is not None and adjusted <= self.alpha
        outcome: StabilityOutcome = "not-tested" if adjusted is None else "not-shown"
        if shown:
            outcome = "more-stable" if (gain.estimate or 0.0) > 0 else "less-stable"
        part = "" if failure == Failure.UNSTABLE else f"{failure}/"
        made = StabilityGain(
            **vars(gain),
            id=f"stability/{part}{regime}/{variant}:{reference}",
            failure=failure,
            variant=variant,
            reference=reference,
            regime=regime,
            planned_pairs=len(promised) if test == "mcnemar" else gain.n,
            single=len(single),
            single_broken=broken,
            single_rescued=rescued,
            test=test,
            p=p,
            registered=variant in self.sealed and tested is not None,
            places=tested,
            p_adjusted=adjusted,
            outcome=outcome,
            caveats=tuple(_caveats(gain, len(promised))) if test == "mcnemar" else (),
        )
        if tested is None or not gain.n or self.margin_alpha is None or self.margin_alpha < _LEAST:
            return made
        return replace(made, worst=_worst(made, self.margin_alpha))


def swept_places(comparisons: Sequence[Comparison], baseline: str) -> int:
    """Registered comparisons of the share of a sweep's rates at which runs are unstable."""
    return sum(map(partial(is_swept_place, baseline=baseline), comparisons))


def is_swept_place(comparison: Comparison, baseline: str) -> bool:
    asked = (comparison.metric, comparison.regime, comparison.reference)
    return asked == (UNSTABLE_SHARE, SWEEP, baseline) and comparison.label == "registered"


def usable_rates(sweep: SweepAnalysis | None, variants: Sequence[str]) -> tuple[UsableRates, ...]:
    """Where each variant trains stably: the longest row of neighbouring rates without an unstable run."""
    usable = []
    for variant in variants if sweep is not None and sweep.stages == 1 else ():
        assert sweep is not None
        unstable = {curve.lr: curve.unstable for curve in sweep.curves if curve.variant == variant and curve.n}
        row: list[float] = []
        longest: list[float] = []
        for rate in sorted(unstable):
            row = [*row, rate] if unstable[rate] == 0 else []
            longest = max(longest, row, key=len)
        low, high = (longest[0], longest[-1]) if longest else (None, None)
        usable.append(UsableRates(variant=variant, low=low, high=high, rates=len(longest)))
    return tuple(usable)


def _arm(variant: str, regime: str, runs: Sequence[RunStability]) -> ArmStability:
    known = [run for run in runs if run.unstable is not None]
    scores = [run.spike_score for run in known if run.spike_score is not None]
    diverged = sum(run.state == "diverged" for run in known)
    failed = sum(run.worse_than_start for run in known)
    unstable = sum(bool(run.unstable) for run in known)
    return ArmStability(
        variant=variant,
        regime=regime,
        runs=len(known),
        diverged=diverged,
        spiked=unstable - diverged - failed,
        failed=failed,
        unstable_runs=unstable,
        unstable=unstable > 0 if known else None,
        largest_spike_score=max(scores, default=None),
        diverged_at=tuple(sorted(run.diverged_at for run in known if run.diverged_at is not None)),
    )


def _fails(run: RunStability, failure: Failure) -> bool:
    if failure == Failure.UNSTABLE:
        return bool(run.unstable)
    return run.state == "diverged" or (failure == Failure.FAILED and run.worse_than_start)


@cache
def mcnemar_p(rescued: int, broken: int) -> float | None:
    """Exact and two-sided; pairs that agree say nothing."""
    variant, reference = [0.0] * rescued + [1.0] * broken + [0.0], [1.0] * rescued + [0.0] * broken + [0.0]
    return mcnemar_tests(item_pairs(variant, reference))[0].p


def _as_bounded(gain: Gain, counted: Gain) -> Gain:
    """The counts of runs that are there, with the gain and interval of the runs *counted*, as the p has them."""
    return replace(gain, estimate=counted.estimate, low=counted.low, high=counted.high)


def _caveats(gain: Gain, planned: int) -> list[Caveat]:
    caveats = []
    if gain.n < planned:
        caveats.append(Caveat(CaveatCode.FEWER_PAIRS_THAN_PLANNED, details={"n": gain.n, "planned": planned}))
    if gain.n < 4:
        caveats.append(Caveat(CaveatCode.CANNOT_EXCLUDE_ZERO, "tango", {"n": gain.n}))
    elif gain.n == 4:
        caveats.append(Caveat(CaveatCode.UNDERCOVERAGE, "tango", {"n": gain.n}))
    return caveats


def _worst(gain: StabilityGain, alpha: float) -> float:
    """Upper end of the 1 - alpha interval of the share of runs that fail with the variant beyond the reference's.

    A run that the variant lacks counts as failed, and one that the reference lacks as stable.
    """
    if gain.rescued is None or gain.broken is None:  # independent arms: the other end of Newcombe's interval
        failed = [True] * (gain.variant_unstable + gain.single_broken)
        variant = [*failed, *[False] * (gain.variant_runs + gain.single - len(failed))]
        reference = [place < gain.reference_unstable for place in range(gain.reference_runs)]
        low = independent_gain(variant, reference, level=gain.level).low
        return 1.0 if low is None else -low
    pairs, broken = gain.n + gain.single, gain.broken + gain.single_broken
    variant = [True] * broken + [False] * (pairs - broken)
    reference = [False] * (pairs - gain.rescued) + [True] * gain.rescued
    bound = failure_bound(variant, reference, alpha=alpha / 2).upper
    assert bound is not None
    return bound
