"""Looks, calibrations and amendments in sentences, for the terminal, the page and the paper alike."""

from __future__ import annotations

from ablationlab.core.format import count, counted, number, p_clause, percent, ranges, setting
from ablationlab.records.plan import NOISY_SPREAD, Amendment, Calibrated, LookResult, Plan, Try, TwoStages
from ablationlab.records.settings import Calibrate, Study, registered_alpha

_FOUND = {
    "difference": "a difference is shown",
    "equivalent": "equivalence is shown",
    "futile": "unlikely to be decided by the last look",
    "undecided": "undecided",
}


def look_line(result: LookResult) -> str:
    """One planned look: what it found, and whether the study went on."""
    findings = "; ".join(
        f"{finding.comparison}: {_FOUND[finding.finding]}"
        + (f" ({p_clause(finding.p_sequential)})" if finding.p_sequential is not None else "")
        for finding in result.findings
    )
    end = "stop" if result.stop else "continue"
    return f"Look {result.number} of {result.of} ({count(result.seeds)} seeds): {end}. {findings}."


def try_line(regime: str, attempt: Try, calibrated: Calibrated | None, asked: Calibrate) -> str:
    """One value that a calibration tried, and what it settled on, if it did."""
    name = asked.setting
    text = (
        f"Regime {regime}, {name} = {setting(attempt.value)}: {attempt.broken} of {len(attempt.seeds)} baselines break."
    )
    if calibrated is None:
        return text
    return f"{text} Calibrated: {name} = {setting(calibrated.value)}.{_off_target(calibrated, asked)}"


def _off_target(calibrated: Calibrated, asked: Calibrate) -> str:
    """A warning where no value that was tried breaks about as many baselines as asked, with what was seen on both sides."""
    if calibrated.chosen.near(asked.target):
        return ""
    latest = {attempt.share < asked.target: attempt for attempt in calibrated.tries}  # bisection ends with these two
    sides = " and ".join(
        f"{attempt.broken} of {len(attempt.seeds)} at {number(attempt.value)}"
        for attempt in sorted(latest.values(), key=lambda attempt: attempt.value)
    )
    return (
        f" No value tried breaks about {percent(asked.target)} of the baselines: {sides}. Allow more tries or seeds, or "
        "calibrate another setting, if the regime should break some runs and not others."
    )


def calibration_line(regime: str, asked: Calibrate) -> str:
    """What a calibration will do."""
    return (
        f"Regime {regime} is calibrated first: {asked.setting} between {setting(asked.low)} and {setting(asked.high)}, until "
        f"about {percent(asked.target)} of the baselines break; {len(asked.seeds)} separate seeds, at most {asked.tries} "
        "values."
    )


def calibrated_lines(plan: Plan) -> list[str]:
    """What each calibration found; plan.lock has all its tries."""
    lines = []
    for regime, calibrated in plan.calibrations.items():
        asked, chosen = plan.study.regimes[regime].calibrate, calibrated.chosen
        assert asked is not None
        lines.append(
            f"Regime {regime} was calibrated before the plan was sealed: {calibrated.setting} = "
            f"{number(calibrated.value)}, where {chosen.broken} of {len(chosen.seeds)} baselines broke on separate seeds "
            f"({counted(len(calibrated.tries), 'value')} tried).{_off_target(calibrated, asked)}"
        )
    return lines


def found_line(tuned: TwoStages) -> str:
    """What both stages found."""
    from ablationlab.analysis.wording import at_best  # it takes scipy

    found = ", ".join(
        f"{name} {at_best(minimum, setting)} ({number(minimum.doubt, 2) if minimum.status == 'ok' else 'no fit'})"
        for name, minimum in tuned.minima.items()
        if minimum.lr is not None
    )
    return (
        f"Best rates, found in two stages before the plan was sealed, and how far the loss there may be off: {found}."
    )


def step_times_line(plan: Plan) -> str:
    """What a step of every arm took before the plan was sealed, and how well that is known."""
    several = len({time.regime for time in plan.step_times}) > 1
    steps = {(run.regime, run.variant): run.budget.steps for run in plan.compared}
    arms = ", ".join(
        f"{time.variant}{f' in {time.regime}' if several else ''} {number(1000 * time.seconds)} ms x "
        f"{count(steps[time.regime, time.variant])}"
        for time in plan.step_times
        if (time.regime, time.variant) in steps
    )
    widest = max(plan.step_times, key=lambda time: time.spread)
    text = (
        f"Time is equal: steps were timed on {plan.execution.device_name} before the plan was sealed, in "
        f"{count(len(widest.rounds))} rounds over all arms; median per step x steps: {arms}. "
    )
    if widest.spread <= NOISY_SPREAD:
        return f"{text}The rounds of an arm spread by up to {percent(widest.spread)} of its median."
    return (
        f"{text}The measurement was noisy: the rounds of {widest.variant} spread by {percent(widest.spread)} of their "
        "median, so times may differ by about as much. Repeat it on an idle device, in another folder."
    )


def amendment_line(amendment: Amendment) -> str:
    """What was added after the plan was sealed."""
    added = [f"seeds {ranges(amendment.seeds)}"] if amendment.seeds else []
    added += [f"variants {', '.join(amendment.variants)}"] if amendment.variants else []
    added += [f"look {amendment.look} of the design"] if amendment.look is not None else []
    label = "planned" if amendment.look is not None else "exploratory"
    reason = f" Reason: {amendment.reason}." if amendment.reason else ""
    return f"Extended on {amendment.created[:10]} with {' and '.join(added)} ({label}).{reason}"


def levels_line(study: Study) -> str:
    """The design of a study: where it looks, and what a p-value of the paired t-test must reach at each look."""
    from ablationlab.analysis.wording import method_name
    from ablationlab.stats.sequential import Looks

    design = study.design
    assert design is not None
    alpha = registered_alpha(study.criteria)
    levels = Looks(design.looks, design.spending).levels(alpha)
    looks = ", ".join(
        f"{count(n)} (p {number(float(level), 2)})" for n, level in zip(design.looks, levels, strict=True)
    )
    futility = f" Futile below a {percent(design.futility)} chance of a decision." if design.futility else ""
    return (
        f"Looks, by number of seeds, with the p-value that shows a difference: {looks}; "
        f"{method_name(design.spending)} spending of {number(alpha)}.{futility}"
    )


def design_lines(plan: Plan) -> list[str]:
    """Everything about a plan that is not one look at the runs it was sealed with."""
    lines = [levels_line(plan.study)] if plan.study.design is not None else []
    lines += [look_line(look.result) for look in plan.looks]
    lines += calibrated_lines(plan)
    lines += [found_line(plan.tuned)] if plan.tuned is not None else []
    lines += [step_times_line(plan)] if plan.step_times else []
    return lines + [amendment_line(amendment) for amendment in plan.amendments]
