"""Codes as sentences: why a value is absent, why a run is unstable, what deviates, what to know before believing a number.

This is the one place where the analysis and the verdict find their words; nothing reads them back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ablationlab.analysis.dataset import Absent
from ablationlab.core.format import p_clause
from ablationlab.records.analysis import Absence, Analysis, Comparison, Deviation, DeviationCode, Instability
from ablationlab.records.verdict import HypothesisVerdict, VariantVerdict
from ablationlab.stats import Caveat, CaveatCode

# --- codes ----------------------------------------------------------------------------------------------------

_ABSENCES: Final[Mapping[Absence, str]] = {
    Absence.OTHER_TOKENIZER: "counted per token of another tokenizer than the baseline's",
    Absence.NOT_RECORDED: "no value recorded",
    Absence.NOT_IN_CURVE: "has no {metric}",
    Absence.NOT_FINITE: "the value is {value}",
    Absence.TOO_LARGE: "the value {value:g} is beyond 1e100",
    Absence.NOT_FINISHED: "not finished",
    Absence.NOT_IN_TABLE: "no value in the table",
    Absence.NOT_EVALUATED: "not evaluated",
    Absence.NOT_EVALUABLE: "not evaluable: {why}",
    Absence.EVALUATED_OTHERWISE: "evaluated in another way (harness, device, code or precision)",
    Absence.TASK_NOT_EVALUATED: "not evaluated on {task} ({template})",
    Absence.OTHER_TASK_VERSION: "evaluated on another version of {task} ({template})",
    Absence.TASKS_INCOMPLETE: "only {scored} of {tasks} tasks have a value",
    Absence.RATES_MISSING: "no loss at {rates}",
    Absence.RUN_MISSING: "a run is missing",
}


def absence(value: Absent) -> str:
    """Why there is no value."""
    if value.reason == Absence.DIVERGED:
        if "text" in value.details:
            return f"diverged (the table says {value.details['text']})"
        known = "step" in value.details
        return "diverged at step {step} ({cause})".format_map(value.details) if known else "diverged"
    return _ABSENCES[value.reason].format_map(value.details)


_INSTABILITIES: Final[Mapping[Instability, str]] = {
    Instability.NOT_FINISHED: "not finished",
    Instability.ENDED_WORSE: "ended worse than it began: loss {final:.3g}, {initial:.3g} at the start",
    Instability.TOO_SHORT: "finished; too short a curve for a spike score",
    Instability.SPIKED: "spike score {score:.3g} above {threshold:g}",
    Instability.CALM: "spike score {score:.3g} within {threshold:g}",
    Instability.NOT_A_NUMBER: "{metric} is not a finite number",
    Instability.SPIKES_UNKNOWN: "{metric} is a number; spikes are not known",
}


def instability(reason: Instability, **details: object) -> str:
    """Why a run counts as stable or unstable; `absence` says how one diverged."""
    return _INSTABILITIES[reason].format_map(details)


_CAVEATS: Final[Mapping[CaveatCode, str]] = {
    CaveatCode.NO_PAIRS: "No seed has a value in both arms.",
    CaveatCode.UNPAIRED: (
        "Unpaired: {variant} and {reference} share no seed, so Welch's test compares their means. What a shared seed cancels "
        "(initial weights, data order) stays in the noise."
    ),
    CaveatCode.NOT_POSITIVE: (
        "Meant to be tested as a logarithm, but some values are not above 0; tested as they are."
    ),
    CaveatCode.SURVIVORS_ONLY: (
        "Diverged, so without a value: {runs}. What is compared here are the survivors; that these runs diverged counts "
        "under stability."
    ),
    CaveatCode.REFUSED_FOR_DIVERGENCE: (
        "Not compared, by the registered rule for diverged runs: {runs}. That they diverged counts under stability."
    ),
    CaveatCode.FEWER_PAIRS_THAN_PLANNED: "Judged on {n} of the {planned} planned pairs.",
    CaveatCode.CANNOT_EXCLUDE_ZERO: (
        "{n} pairs cannot exclude a gain of 0, however they fall; it takes 5 to do so with fair coverage."
    ),
    CaveatCode.UNDERCOVERAGE: (
        "With 4 pairs the interval excludes a true gain of 0 in up to 12.5 % of studies instead of 5 %."
    ),
    CaveatCode.AT_CHANCE: (
        "Neither arm beats guessing ({chance:.3g}) on these {items} items (best {best:.3g}, one-sided p = {p:.2g}): "
        "not sensitive, so no difference here is no evidence of equivalence."
    ),
    CaveatCode.LEFT_OUT: "{what}.",
    CaveatCode.UNPAIRED_ITEMS: "{task}: {variant} and {reference} items did not pair and are left out.",
    CaveatCode.TOO_FEW_SEEDS: (
        "{seeds} run(s) per arm: this speaks about these trained models on other items, not about training "
        "them again with other seeds. 3 seeds give a first interval over seeds."
    ),
}


def caveat(code: CaveatCode, about: str = "", **details: object) -> Caveat:
    """A caveat of the analysis with its sentence; those of a statistic come with it (`stats.caveats`)."""
    return Caveat(code, about, _CAVEATS[code].format_map(details))


_DEVIATIONS: Final[Mapping[DeviationCode, str]] = {
    DeviationCode.TAMPERED_PLAN: (
        "plan.lock was changed after it was sealed (its content does not match its seal): nothing counts as registered, "
        "all is exploratory."
    ),
    DeviationCode.MISSING_RUNS: "{n} of {planned} planned runs have no result: {runs}.",
    DeviationCode.EXTRA_RUNS: "{n} runs that were not planned lie in the folder and are not used: {runs}.",
    DeviationCode.DIVERGED_RUNS: "{n} runs diverged: {runs}. They count as unstable and have no other value.",
    DeviationCode.DRIFT: "Environment changed after sealing ({change}) in {runs}.",
    DeviationCode.CHANGED_CRITERIA: (
        "{name} in the study file differs from what was registered: {change}. The registered one is applied."
    ),
    DeviationCode.CHANGED_SETTINGS: (
        "Settings in the study file differ from the sealed ones: {changes}. The runs have the sealed ones."
    ),
    DeviationCode.NOT_REGISTERED: (
        "The runs come from a table and the question from the command line: nothing was registered beforehand."
    ),
    DeviationCode.LEDGER_UNKNOWN: (
        "Whether the arms match in tokens, data, initial weights and settings cannot be checked from a table."
    ),
    DeviationCode.UNEQUAL_STEPS: (
        "The curves of {about} end at different steps, {first:,} to {last:,}: the last values compare unequal training. "
        "--at step={first} compares at the same step."
    ),
    DeviationCode.BEST_OF_CURVE: (
        "Each run counts with the best value of its curve, which flatters noisy curves and runs evaluated more often."
    ),
    DeviationCode.UNFINISHED_RUNS: "{n} runs are not finished and have no value: {runs}.",
    DeviationCode.MISSING_METRIC: (
        "{metric} is registered, but no run has a value of it: its question is not answered."
    ),
    DeviationCode.NOT_SCORED: "The study names tasks ({tasks}), but no run has been scored on them.",
    DeviationCode.SCORED_OTHERWISE: "Not scored as planned: {what}. No mean over tasks counts such a score.",
    DeviationCode.NOT_A_LOOK: (
        "Not a planned look: exploratory. The design looks after {looks} seeds; {n} are complete. The next planned look "
        "decides."
    ),
    DeviationCode.EXTENDED: (
        "Extended on {date} with seeds {seeds}, which no design had planned ({reason}). Adding seeds after seeing results "
        "makes false claims more likely, so every verdict here is exploratory."
    ),
    DeviationCode.ADDED_VARIANTS: "Added on {date}, after the plan was sealed: {variants} ({reason}). They are exploratory.",
    DeviationCode.CONTINUED: "Continued on {date} to planned look {look} although the study had stopped ({reason}).",
    DeviationCode.NO_CRITERIA: "The study registers no criteria: every comparison and verdict is exploratory.",
}


def deviation(code: DeviationCode, about: str, **details: object) -> Deviation:
    """Something that is not as it was registered, with its sentence."""
    return Deviation(code=code, about=about, text=_DEVIATIONS[code].format_map({"about": about, **details}))


# --- numbers --------------------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    """Three significant digits, or a dash."""
    return "-" if value is None else f"{value:.3g}"


def share(value: float | None) -> str:
    """A share in percent, or a dash."""
    return "-" if value is None else f"{100 * value:.0f} %"


def amount(comparison: Comparison, value: float | None) -> str:
    """A difference with its sign, on the metric's scale; a difference of logs as a percentage, or a factor if large."""
    if value is None:
        return "-"
    if comparison.transform != "log":
        return f"{value:+.3g}"
    # Delta and both bounds in one style, chosen by the delta.
    large = abs(comparison.delta if comparison.delta is not None else value) >= math.log(2)
    return f"×{math.exp(value):.3g}" if large else f"{100 * math.expm1(value):+.3g} %"


def bound(comparison: Comparison, value: float | None) -> str:
    """The same with its unit."""
    unit = "" if comparison.transform == "log" or comparison.unit in ("", "1") else f" {comparison.unit}"
    return f"{amount(comparison, value)}{unit}"


def name_of(comparison: Comparison) -> str:
    """The metric, with its task where it has one."""
    return comparison.metric if comparison.task is None else f"{comparison.metric} ({comparison.task})"


def measured(comparison: Comparison) -> str:
    """Delta, interval and p of a comparison, in one clause."""
    if comparison.delta is None:
        return f"{comparison.metric} could not be compared"
    interval = comparison.main_interval
    text = f"{name_of(comparison)} {bound(comparison, comparison.delta)}"
    if interval is not None and interval.low is not None:
        low, high = (amount(comparison, end) for end in (interval.low, interval.high))
        text += f" ({interval.level:.0%} interval {low} to {high}, {comparison.sample})"
    else:
        text += f" ({comparison.sample}, no interval)"
    adjusted = f"{comparison.correction}-adjusted over {comparison.family_size}"
    how = adjusted if comparison.correction != "none" else "not adjusted"
    return text + (
        f", {p_clause(comparison.p_adjusted)} ({how})" if comparison.p_adjusted is not None else ", no p-value"
    )


def compared(comparisons: Iterable[Comparison]) -> str:
    """What several comparisons measured."""
    return "; ".join(f"{one.variant} in {one.regime}: {measured(one)}" for one in comparisons)


# --- the whole verdict ----------------------------------------------------------------------------------------


def overall(analysis: Analysis, verdicts: Sequence[VariantVerdict]) -> str:
    """The recommendation of the whole study, one line per variant and regime."""
    if not verdicts:
        return "There is no variant beside the baseline, so there is nothing to decide."
    lines = []
    for verdict in verdicts:
        where = f" ({verdict.regime})" if len(analysis.regimes) > 1 else ""
        lines.append(f"{verdict.variant}{where}: {verdict.recommendation}")
    if any(verdict.label == "exploratory" for verdict in verdicts):
        lines.append(
            "Not all of this was registered beforehand: treat the exploratory verdicts as leads to be tested again."
        )
    return "\n".join(lines)


def hypothesis_lines(hypotheses: Mapping[str, HypothesisVerdict]) -> list[str]:
    """A line for each hypothesis of the study."""
    return [f"{name} {one.status}. {one.statement} Because: {one.why}." for name, one in hypotheses.items()]


#: Why a variant's best learning rate was not fitted; nothing where it was.
FITS: Final[Mapping[str, str]] = {
    "ok": "",
    "grid-edge": "the best rate is at the edge of the sweep",
    "coarse-grid": "the neighbouring rates are more than a factor of two away",
    "not-convex": "the losses about the best rate are not convex",
    "missing": "a loss is missing",
}
