"""Fair, as data: every condition that the arms of a study may share, how it was checked, and what was found per variant."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from ablationlab.records.analysis import Deviation, DeviationCode, LedgerCheck, LedgerInput, Readings, SweepAnalysis
from ablationlab.records.fairness import FairArm, FairCondition, FairHow, FairName, FairState
from ablationlab.records.plan import Plan, PlannedRun

_NAMES: Final = {
    LedgerInput.TOKENS: FairName.TOKENS,
    LedgerInput.FLOPS: FairName.FLOPS,
    LedgerInput.STEPS: FairName.STEPS,
    LedgerInput.ORDER: FairName.ORDER,
    LedgerInput.START: FairName.START,
    LedgerInput.KERNELS: FairName.KERNELS,
}
_HOW: Final = {
    FairName.TOKENS: FairHow.BUDGET,
    FairName.FLOPS: FairHow.BUDGET,
    FairName.STEPS: FairHow.BUDGET,
    FairName.ORDER: FairHow.ORDER_HASH,
    FairName.START: FairHow.START_HASH,
    FairName.KERNELS: FairHow.RECORDED,
}
_UNKNOWN: Final = FairArm(state=FairState.NOT_CHECKED)
_EQUAL: Final = FairArm(state=FairState.EQUAL)


def conditions(
    plan: Plan,
    ledger: LedgerCheck,
    sweep: SweepAnalysis | None,
    readings: Readings | None,
    deviations: Sequence[Deviation],
    paired: Collection[str],
) -> tuple[FairCondition, ...]:
    """What the budget makes equal first, then what was recorded, measured and chosen. Of a variant that is not *paired*,
    with no run beside one of the baseline, nothing recorded was checked.
    """
    variants = [name for name in plan.study.variants if name != plan.study.baseline]
    base = next((run for run in plan.compared if run.variant == plan.study.baseline), None)
    if base is None or not variants:
        return ()
    found = [*_of_ledger(ledger, variants, base)]
    found.append(_place(plan, variants, deviations))
    found = [_of_pairs(condition, paired) for condition in found]
    if base.recipe is not None:
        found.append(_parameters(plan.compared, variants, base))
    found.append(_time(plan, ledger, readings, variants))
    found.append(_rate(plan, sweep, variants, base))
    return tuple(found)


def _of_pairs(condition: FairCondition, paired: Collection[str]) -> FairCondition:
    arms = {variant: arm if variant in paired else _UNKNOWN for variant, arm in condition.arms.items()}
    how = condition.how if any(variant in paired for variant in arms) else FairHow.NOT
    return condition.model_copy(update={"arms": arms, "how": how})


def _of_ledger(ledger: LedgerCheck, variants: Sequence[str], base: PlannedRun) -> Iterable[FairCondition]:
    differs = {unlike.name: unlike for unlike in ledger.differs}
    own = base.recipe is None
    values = {} if own else {FairName.TOKENS: base.budget.tokens, FairName.FLOPS: base.budget.matmul_flops}
    for key, name in _NAMES.items():
        arms: dict[str, FairArm]
        if key in differs:
            unlike = differs[key]
            arms = {
                variant: FairArm(state=FairState.DIFFERS, pairs=unlike.pairs)
                if unlike.pairs is not None
                else FairArm(state=FairState.DECLARED, difference=unlike.variants[variant])
                if variant in unlike.variants
                else _EQUAL
                for variant in variants
            }
        elif key in ledger.shared or key in ledger.nearly:
            state = FairState.EQUAL if key in ledger.shared else FairState.NEARLY
            arms = dict.fromkeys(variants, FairArm(state=state))
        elif key in ledger.not_reported:
            arms = dict.fromkeys(variants, _UNKNOWN)
        else:
            continue
        known = any(arm.state != FairState.NOT_CHECKED for arm in arms.values())
        how = FairHow.NOT if not known else FairHow.REPORTED if ledger.reported else _HOW[name]
        yield FairCondition(name=name, how=how, value=values.get(name), arms=arms)


def _place(plan: Plan, variants: Sequence[str], deviations: Sequence[Deviation]) -> FairCondition:
    """Versions of code and libraries, device, precision, threads: unequal ones are refused, unless accepted as drift."""
    drifted = any(deviation.code == DeviationCode.DRIFT for deviation in deviations)
    arm = FairArm(state=FairState.DIFFERS) if drifted else _EQUAL
    return FairCondition(name=FairName.PLACE, how=FairHow.RECORDED, arms=dict.fromkeys(variants, arm))


def _parameters(runs: Iterable[PlannedRun], variants: Sequence[str], base: PlannedRun) -> FairCondition:
    """Of the baseline's regime; the difference is a number of parameters."""
    counts = {run.variant: run.budget.parameters for run in runs if run.regime == base.regime}
    own = counts[base.variant]
    arms = {
        variant: _EQUAL
        if counts[variant] == own
        else FairArm(state=FairState.DECLARED, difference=counts[variant] - own)
        for variant in variants
        if variant in counts
    }
    return FairCondition(name=FairName.PARAMETERS, how=FairHow.COUNTED, value=own, arms=arms)


def _time(plan: Plan, ledger: LedgerCheck, readings: Readings | None, variants: Sequence[str]) -> FairCondition:
    """Made equal by the budget, or measured; runs that share a stack, a device or a process with others have no time."""
    if LedgerInput.TIME in ledger.nearly:
        arms = dict.fromkeys(variants, FairArm(state=FairState.NEARLY))
        return FairCondition(name=FairName.TIME, how=FairHow.BUDGET, arms=arms)
    measured: dict[str, FairArm] = {}
    for reading in () if readings is None else readings.readings:
        shares = reading.baseline_share, reading.variant_share
        if reading.kind == "time" and reading.variant not in measured and None not in shares:
            assert shares[0] is not None
            assert shares[1] is not None
            measured[reading.variant] = FairArm(state=FairState.DIFFERS, difference=shares[0] / shares[1] - 1)
    arms = {variant: measured.get(variant, _UNKNOWN) for variant in variants}
    return FairCondition(name=FairName.TIME, how=FairHow.MEASURED if measured else FairHow.NOT, arms=arms)


def _rate(plan: Plan, sweep: SweepAnalysis | None, variants: Sequence[str], base: PlannedRun) -> FairCondition:
    """Whether each arm has its own best rate: at one rate for all nobody knows."""
    declared: Mapping[str, bool] = {name: plan.variants[name].covers_setting("training.lr") for name in variants}
    if sweep is None or sweep.tuned_at is None:
        arms = {name: FairArm(state=FairState.DECLARED) if declared[name] else _UNKNOWN for name in variants}
        value = None if base.recipe is None else base.lr
        return FairCondition(name=FairName.RATE, how=FairHow.NOT, value=value, arms=arms)
    fitted = sweep.tuned_at == "fitted-minima"
    chosen = {rate.variant for rate in sweep.best if rate.lr is not None}
    known = {name for name in variants if (sweep.knows_best_rate(name) if fitted else name in chosen)}
    arms = {name: _EQUAL if name in known else _UNKNOWN for name in variants}
    return FairCondition(name=FairName.RATE, how=FairHow.FITTED if fitted else FairHow.CHOSEN, arms=arms)
