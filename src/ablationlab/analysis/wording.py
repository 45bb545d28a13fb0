"""Codes as sentences: why a value is absent, why a run is unstable, what deviates, what to know before believing a number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from string import Formatter
from typing import Any, Final

from ablationlab.analysis.dataset import Absent
from ablationlab.analysis.stability import diverged
from ablationlab.core.format import (
    Difference,
    count,
    counted,
    difference,
    level,
    mean_sd,
    number,
    p_clause,
    percent,
    setting,
    several,
    with_unit,
)
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import (
    Absence,
    Analysis,
    ChosenRate,
    ComparedTask,
    Comparison,
    Deviation,
    DeviationCode,
    Failure,
    Instability,
    Interactions,
    LedgerCheck,
    LedgerInput,
    Missing,
    Power,
    RunStability,
    StabilityGain,
    SweepAnalysis,
)
from ablationlab.records.metrics import metric_name
from ablationlab.records.results import Stale
from ablationlab.records.run import Divergence
from ablationlab.stats import Caveat, CaveatCode
from ablationlab.stats.results import ControlOutcome, FittedMinimum, Sensitivity, Status

# --- codes ----------------------------------------------------------------------------------------------------


class _Words(Formatter):
    """Templates whose fields name a function of `core.format` for a number: ``{threshold:setting}``."""

    _HOW: Final[Mapping[str, Callable[[Any], str]]] = {
        "count": count,
        "level": level,
        "number": number,
        "p": p_clause,
        "percent": percent,
        "setting": setting,
        "settings": lambda values: ", ".join(map(setting, values)),
        "list": lambda values: ", ".join(map(str, values)),
        "method": lambda name: method_name(str(name)),
        "few": lambda values: _few(list(map(str, values))),
    }

    def format_field(self, value: Any, format_spec: str) -> str:
        return self._HOW[format_spec](value) if format_spec else str(value)


def filled(template: str, details: Mapping[str, Any]) -> str:
    """A template with its numbers in the one style."""
    return _Words().vformat(template, (), details)


_ABSENCES: Final[Mapping[Absence, str]] = {
    Absence.OTHER_TOKENIZER: "counted per token of another tokenizer than the baseline's",
    Absence.NOT_RECORDED: "no value recorded",
    Absence.NOT_IN_CURVE: "has no {metric}{at_step}",
    Absence.NOT_REACHED: "is not at {target:setting} by step {step:setting}",
    Absence.NOT_FINITE: "the value is {value}",
    Absence.BEYOND_RANGE: "{value:number} is too large to compare",
    Absence.METRIC_FAILED: "its code failed: {error}",
    Absence.NOT_FINISHED: "not finished",
    Absence.NOT_IN_TABLE: "no value in the table",
    Absence.NOT_EVALUATED: "not evaluated",
    Absence.NOT_EVALUABLE: "not evaluable: {why}",
    Absence.EVALUATED_OTHERWISE: "evaluated in another way (harness, device, code or precision)",
    Absence.TASK_NOT_EVALUATED: "not evaluated on {task} ({template})",
    Absence.OTHER_TASK_VERSION: "evaluated on another version of {task} ({template})",
    Absence.TASKS_INCOMPLETE: "only {scored} of {tasks} tasks have a value",
    Absence.RATES_MISSING: "no loss at {rates:settings}",
    Absence.NO_BEST_RATE: "the sweep does not enclose its best rate",
    Absence.OWN_RATES: "it was trained at rates of its own",
    Absence.RUN_MISSING: "a run is missing",
}


def absence(value: Absent | Missing) -> str:
    """Why there is no value."""
    details = value.details
    if value.reason == Absence.DIVERGED:
        if "step" in details:
            at = Divergence.model_validate(details)
            return f"diverged at step {count(at.step)} ({cause(at)})"
        if "text" in details:
            return f"diverged (the table says {details['text']})"
        return "diverged"
    if value.reason == Absence.NOT_IN_CURVE:
        details = {**details, "at_step": f" at step {details['step']}" if "step" in details else ""}
    return filled(_ABSENCES[value.reason], details)


def divergence(at: Divergence | None) -> str:
    """Where a run diverged, as far as it is known."""
    return absence(diverged(at))


def cause(at: Divergence) -> str:
    """What was not finite, or what a trainer said of it."""
    return at.cause or f"{metric_name(at.metric or '')} is {number(float(at.value or 'nan'))}"


def nothing_to_score(runs: Mapping[str, Divergence | None]) -> str:
    """Why no run of a study can be evaluated: all that ended diverged."""
    name, at = next(iter(runs.items()))
    return f"no weights to score: diverged {count(len(runs))} of {count(len(runs))} ({name}: {divergence(at)})"


_INSTABILITIES: Final[Mapping[Instability, str]] = {
    Instability.NOT_FINISHED: "not finished",
    Instability.ENDED_WORSE: "ended worse than it began: loss {final:number}, {initial:number} at the start",
    Instability.TOO_SHORT: "finished; too short a curve for a spike score",
    Instability.SPIKED: "spike score {score:number} above {threshold:setting}",
    Instability.CALM: "spike score {score:number} within {threshold:setting}",
    Instability.NOT_A_NUMBER: "{metric} is not a finite number",
    Instability.SPIKES_UNKNOWN: "{metric} is a number; spikes are not known",
}


def instability(analysis: Analysis, run: RunStability) -> str:
    """Why a run counts as stable or unstable."""
    if run.reason == Instability.DIVERGED:
        return divergence(run.divergence)
    details = {
        "score": run.spike_score,
        "threshold": None if analysis.stability is None else analysis.stability.threshold,
        "final": run.loss,
        "initial": run.initial_loss,
        "metric": metric_name(analysis.primary or ""),
    }
    return filled(_INSTABILITIES[run.reason], details)


_CAVEATS: Final[Mapping[CaveatCode, str]] = {
    CaveatCode.TOO_FEW_PAIRS: "{pairs}: fewer than 3 give no interval, no effect size and no t or bootstrap p.",
    CaveatCode.CONSTANT_DELTAS: "All {n:count} deltas equal {value:number}: no spread, so no t interval and no t p.",
    CaveatCode.FEWER_PAIRS_THAN_PLANNED: (
        "Compared on {n:count} of {planned:count} pairs; the missing ones may differ from these."
    ),
    CaveatCode.PAIRING_DID_NOT_HELP: (
        "Pairing by seed did not help here: the deltas vary more than unpaired arms would."
    ),
    CaveatCode.UNBOUNDED_INTERVAL: "The {about} interval has no finite bound with {pairs}: {why}.",
    CaveatCode.CANNOT_REACH_ALPHA: (
        "With {pairs} that differ the two-sided {about} test cannot go below p = {minimum_p:setting}, so it cannot reach "
        "{alpha:setting} however large the differences are."
    ),
    CaveatCode.FALSE_POSITIVES: (
        "The {about} test rejects a true null about {rate:percent} of the time at a nominal {alpha:level} with {pairs} "
        "(simulated, normal differences)."
    ),
    CaveatCode.NO_PAIRS: "No seed has a value in both arms.",
    CaveatCode.UNPAIRED: (
        "Unpaired: {variant} and {reference} share no seed, so Welch's test compares their means. What a shared seed cancels "
        "(initial weights, data order) stays in the noise."
    ),
    CaveatCode.NOT_POSITIVE: (
        "Meant to be tested as a logarithm, but some values are not above 0: tested as they are. The registered margins are "
        "differences of logarithms and do not apply, so nothing is said about equivalence or costs."
    ),
    CaveatCode.SURVIVORS_ONLY: "Diverged, so without a value: {runs}.",
    CaveatCode.UNSTABLE_MEAN: (
        "Unstable runs dominate the mean of {about} ({unstable:count} of its {of:count} runs are unstable), so its median is "
        "shown, and no difference of means unless it is one of logarithms. What is tested does not change."
    ),
    CaveatCode.REFUSED_FOR_DIVERGENCE: (
        "Not compared, following the registered rule for diverged runs: {runs}. Their divergence counts under stability."
    ),
    CaveatCode.OTHER_CORRECTION: "Corrected by Holm's method, not by the registered {registered:method}: see the deviations.",
    CaveatCode.GRID_RATES: (
        "Tuned arms, at the chosen grid rates: how near each arm's best rate lies to the grid may make the difference."
    ),
    CaveatCode.CANNOT_EXCLUDE_ZERO: (
        "{pairs} cannot exclude a gain of 0, whatever the outcome; it takes 5 to do so with fair coverage."
    ),
    CaveatCode.AT_CHANCE: (
        "Neither arm beats guessing ({chance:number}) on these {items:count} items (best {best:number}, one-sided {p:p}): "
        "not sensitive, so no difference here is no evidence of equivalence."
    ),
    CaveatCode.LEFT_OUT: "Task {about} is not in every run and is left out.",
    CaveatCode.UNPAIRED_ITEMS: "{about}: {variant:count} and {reference:count} items did not pair and are left out.",
    CaveatCode.TOO_FEW_SEEDS: (
        "Runs per arm: {seeds:count}. This holds for these trained models on other items, not for models that are "
        "trained with other seeds. 3 seeds give a first interval over seeds."
    ),
}
#: Undercoverage by the method it is about, where it was simulated at the level of the interval.
_UNDERCOVERAGE: Final[Mapping[str, str]] = {
    "tango": (
        "With {pairs} the interval excludes a true gain of 0 in up to {share:level} of studies instead of {alpha:level}."
    ),
    "crossed": (
        "A nominal {level:level} crossed bootstrap over {n:count} seeds and their items covers about {covers:percent} where "
        "differences between seeds make the noise (simulated); where the items do, it covers more than its level."
    ),
}


def caveat(known: Caveat) -> str:
    """What to know before believing a number, in one or two sentences."""
    details: dict[str, Any] = {"about": method_name(known.about), **known.details}
    if "n" in details:
        details["pairs"] = pairs_of(details["n"])
    if "runs" in details:
        details["runs"] = ", ".join(details["runs"])
    if known.code == CaveatCode.UNBOUNDED_INTERVAL:
        details["why"] = no_number("unbounded", details["n"], known.about)
    if known.code == CaveatCode.UNPAIRED and known.details.get("asked"):
        template = (
            "Unpaired, as asked: Welch's test compares the means of {variant} and {reference}, whatever their seeds."
        )
        return filled(template, details)
    if known.code != CaveatCode.UNDERCOVERAGE:
        return filled(_CAVEATS[known.code], details)
    if known.about == "tango":
        details |= {"share": 0.125, "alpha": 0.05}
    elif "covers" not in details:
        template = "The {about} interval undercovers at few pairs; by how much was simulated at {level:level} only."
        return filled(template, details)
    usual = (
        "A nominal {level:level} {about} bootstrap interval over {pairs} covers about {covers:percent} "
        "(simulated, normal differences)."
    )
    return filled(_UNDERCOVERAGE.get(known.about, usual), details)


def no_number(status: Status, n: int, method: str = "") -> str:
    """Why a statistic has no number; nothing where it has one."""
    if status == "too-few-pairs":
        unit = _UNITS.get(method, "pairs")
        return f"fewer than 3 {unit}: {count(n)} given"
    if status == "degenerate":
        return _DEGENERATE.get(method, f"all {count(n)} deltas are equal, so their spread is not known")
    if status == "unbounded":
        if method == "bootstrap-t":
            return "too many resamples hold one value only"
        return "the test cannot reach this level, whatever the data"
    return ""


_UNITS: Final[Mapping[str, str]] = {
    "welch": "runs in an arm",
    "prediction": "runs",
    "crossed": "seeds",
    "seeds-x-items": "seeds",
}
_DEGENERATE: Final[Mapping[str, str]] = {
    "welch": "neither arm varies, so the spread is not known",
    "prediction": "the runs do not vary, so their spread is not known",
    "item-bootstrap": "all item deltas are equal",
    "crossed": "all item deltas are equal",
    "seeds-x-items": "the item deltas do not vary",
}


_DEVIATIONS: Final[Mapping[DeviationCode, str]] = {
    DeviationCode.TAMPERED_PLAN: (
        "plan.lock was changed after it was sealed (its content does not match its seal): nothing counts as registered, "
        "all is exploratory."
    ),
    DeviationCode.ALTERED_RECORDS: (
        "Not as sealed when their runs ended, and used as they are now, on request: {files:few}. Nothing counts as "
        "registered."
    ),
    DeviationCode.MISSING_RUNS: "{n} of {planned} planned runs have no result: {runs:few}.",
    DeviationCode.EXTRA_RUNS: "In the folder, but not planned, and so not used: {runs:few}.",
    DeviationCode.DIVERGED_RUNS: "{n_runs} diverged: {runs:few}. A diverged run counts as unstable and has no other value.",
    DeviationCode.DRIFT: "Environment changed after sealing ({change}) in {runs:few}.",
    DeviationCode.CHANGED_CRITERIA: (
        "{about} in the study file differs from what was registered: {change}. The registered one is applied."
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
        "The curves of {about} end at different steps, {first:setting} to {last:setting}: the last values compare unequal "
        "training. --at step={first} compares at the same step."
    ),
    DeviationCode.UNEQUAL_SEEDS: (
        "Seeds of {about}: {compared:count} compared, of its {own:count} and {baseline}'s {others:count}."
    ),
    DeviationCode.HELD_EQUAL: "What is held equal is stated, not checked: {about}.",
    DeviationCode.BEST_OF_CURVE: (
        "Each run counts with the best value of its curve, which flatters noisy curves and runs evaluated more often."
    ),
    DeviationCode.COARSE_CURVES: (
        "Around the target, values of {about} are {least:setting} to {most:setting} steps apart. Where a curve flattens, the "
        "arm with fewer values seems to reach it later."
    ),
    DeviationCode.SEVERAL_RUNS: "A log that begins again at its first step counts as several runs: {logs:list}.",
    DeviationCode.UNREACHED_TARGET: "Runs that never reach the target count against their arm: {runs:list}.",
    DeviationCode.COPIED_RUNS: "The same curve stands in the table more than once: {runs:list}.",
    DeviationCode.EMPTY_VALUES: (
        "{about} has no value for {runs:list}. If such a run diverged, write `diverged` or `inf`."
    ),
    DeviationCode.UNREAD_COLUMNS: (
        "Columns of numbers that were not read: {columns:few}. To compare one, name it and its better direction, "
        "with --lower or --higher."
    ),
    DeviationCode.UNFINISHED_RUNS: "{n_runs} without a value, because they are not finished: {runs:list}.",
    DeviationCode.MISSING_METRIC: (
        "{about} is registered, but no run has a value for it, so its question is not answered."
    ),
    DeviationCode.NOT_SCORED: "The study names tasks ({tasks:list}), but no run has been scored on them.",
    DeviationCode.SCORED_OTHERWISE: "Not scored as planned: {scored}. No mean over tasks counts such a score.",
    DeviationCode.NOT_A_LOOK: (
        "Not a planned look: exploratory. The design looks after {looks:list} seeds; {complete} are complete. "
        "The next planned look decides."
    ),
    DeviationCode.EXTENDED: (
        "Extended on {date} with seeds {seeds:list}, which no design had planned ({reason}). Adding seeds after seeing "
        "results makes false claims more likely, so every verdict here is exploratory."
    ),
    DeviationCode.ADDED_VARIANTS: (
        "Added on {date}, after the plan was sealed: {variants:list} ({reason}). They are exploratory."
    ),
    DeviationCode.REUSED: (
        "{n_runs} of the baseline of study {about}, sealed on {date}, are reused. {studies:count} studies rest on them and "
        "err together. They were seen before this plan was made, so every verdict here is exploratory."
    ),
    DeviationCode.OFF_TARGET: (
        "Calibration of regime {about} found no value of {setting} at which about {target:percent} of the baselines break: "
        "at {value:number}, the nearest, {broken} of {seeds} broke on separate seeds."
    ),
    DeviationCode.OTHER_CORRECTION: (
        "The plan registers the {registered:method} correction, which is no longer applied: it pools spreads of variants, "
        "and few seeds cannot show that these are alike. Holm's correction decides. It keeps the registered alpha whatever "
        "the spreads and shows less where they are alike."
    ),
    DeviationCode.NO_CRITERIA: "The study registers no criteria: every comparison and verdict is exploratory.",
}


_STALE = {
    "other-analysis": "{file} follows from another analysis than analysis.json",
    "other-plan": "{file} belongs to another plan than plan.lock",
    "new": "{file} is new since analysis.json was written",
    "gone": "{file} is gone since analysis.json was written",
    "changed": "{file} is not the one that analysis.json names",
    "damaged": "{file} {damage}",
}


def stale(reason: Stale) -> str:
    """Why an analysis or a verdict is not that of the records, as a clause."""
    return _STALE[reason.code].format(file=reason.file, damage=reason.damage)


def deviation(known: Deviation) -> str:
    """Something that is not as it was registered, in a sentence or two."""
    details: dict[str, Any] = {"about": known.about, **known.details}
    if "runs" in details:
        details |= {"n": len(details["runs"]), "n_runs": several(len(details["runs"]), "run")}
    if "reason" in details:
        details["reason"] = details["reason"] or "no reason given"
    match known.code:
        case DeviationCode.DRIFT:
            details.setdefault("change", "library or code versions differ from those the plan was sealed with")
        case DeviationCode.CHANGED_CRITERIA:
            details["change"] = _changed(details["before"], details["now"])
        case DeviationCode.CHANGED_SETTINGS:
            changes = [f"{key} {first!r} -> {second!r}" for key, (first, second) in details["changes"].items()]
            details["changes"] = _few(changes, 5)
        case DeviationCode.SCORED_OTHERWISE:
            details["scored"] = ". ".join(map(_scored_otherwise, details["scored"]))
        case DeviationCode.OFF_TARGET:
            details["setting"] = calibrated_setting(details["setting"])
    return filled(_DEVIATIONS[known.code], details)


#: Settings that a calibration usually chooses, in words.
_CALIBRATED: Final[Mapping[str, str]] = {
    "training.lr": "the learning rate",
    "training.betas[1]": "the optimizer's second beta",
}


def calibrated_setting(setting: str) -> str:
    return _CALIBRATED.get(setting, setting)


def _few(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _changed(before: object, now: object) -> str:
    if isinstance(before, list) and isinstance(now, list):
        gone = [item for item in before if item not in now]
        new = [item for item in now if item not in before]
        parts = ([f"without {_compact(gone)}"] if gone else []) + ([f"with {_compact(new)}"] if new else [])
        return " and ".join(parts) or "in another order"
    return f"{_compact([before])} -> {_compact([now])}"


def _compact(items: Sequence[object]) -> str:
    def text(item: object) -> str:
        if isinstance(item, dict):
            return " ".join(f"{key}={value}" for key, value in item.items() if value is not None)
        return ":".join(map(str, item)) if isinstance(item, list) else str(item)

    return "; ".join(map(text, items))


def _scored_otherwise(scored: Mapping[str, Any]) -> str:
    tasks = "; ".join(scored["tasks"])
    if not scored["runs"]:
        return f"{tasks}: by no run"
    cap = "all of them" if scored["planned"] is None else f"{scored['planned']} at most"
    items = " or ".join(map(str, scored["items"]))
    return f"{tasks}: on {items} items in {scored['runs']} of {scored['of']} runs, where {cap} were planned"


def effect_intervals(crossed: Interactions) -> str:
    """What the intervals of the effects are, beside p-values that are adjusted."""
    levels = " or ".join(sorted({level(contrast.level) for contrast in crossed.contrasts}))
    return f"Intervals are {levels} ones, adjusted like p: one excludes 0 exactly where the adjusted p shows an effect."


def interactions(analysis: Analysis, crossed: Interactions) -> str:
    """What the effects of a factorial study are."""
    on = metric_name(crossed.metric) + (" (of logarithms)" if crossed.transform == "log" else "")
    if crossed.cells:
        return (
            f"Effects are variant − {analysis.baseline} on {on}, paired by seed, with t intervals over seeds. A main effect "
            "says how the effect changes with one setting, averaged over the other; an interaction, whether that change "
            "depends on the other. p is adjusted (Holm) over the variants, per kind of contrast. Exploratory."
        )
    return (
        f"Effects on {on}, estimated per seed by least squares, with t intervals over seeds. A main effect is that of one "
        "setting, averaged over the levels of the others; an interaction, how it depends on them. "
        + (
            "p of registered effects is adjusted (Holm) over all of them, that of the exploratory ones per kind of contrast."
            if any(contrast.label == "registered" for contrast in crossed.contrasts)
            else "p is adjusted (Holm) per kind of contrast. Exploratory."
        )
    )


# --- comparisons ----------------------------------------------------------------------------------------------


def difference_of(comparison: Comparison) -> Difference:
    """A comparison's difference and the interval that decides, as text; dashes where unstable runs make the difference."""
    interval = comparison.main_interval
    if comparison.told_by_medians:
        return difference(None, unit=comparison.unit)
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return difference(comparison.estimate, low, high, log=comparison.transform == "log", unit=comparison.unit)


def pair_difference(comparison: Comparison, delta: float) -> str:
    """The difference of one pair of runs; of logarithms as a change."""
    return difference(delta, log=True).text if comparison.transform == "log" else number(delta, 4, sign=True)


def arm_text(comparison: Comparison, arm: str, *, as_median: bool = False) -> str:
    """``mean ± SD`` of an arm over its pairs; ``median 3.18`` where a few runs make its mean what it is, or *as_median*."""
    if arm in comparison.unstable_means:
        return filled("median {median:number}", comparison.unstable_means[arm].details)
    if comparison.pairs and (as_median or arm in comparison.skewed):
        return f"median {medians_of(comparison)[arm == comparison.variant]}"
    if arm == comparison.reference:
        return mean_sd(comparison.reference_mean, comparison.reference_sd)
    return mean_sd(comparison.variant_mean, comparison.variant_sd)


def medians_of(comparison: Comparison) -> tuple[str, str]:
    """The medians of the reference and of the variant over their pairs."""
    return number(comparison.reference_median), number(comparison.variant_median)


def change(comparison: Comparison) -> str:
    """The difference with its sign and unit; the medians of both arms where unstable runs make the difference."""
    if comparison.told_by_medians:
        reference, variant = medians_of(comparison)
        return f"median {with_unit(f'{variant} against {reference}', comparison.unit)}"
    shown = difference_of(comparison)
    return with_unit(shown.delta, shown.unit)


def undecided(comparisons: Iterable[Comparison]) -> str:
    """``gelu and deep in tuned were not tested: their 95 % intervals are uncorrected and decide nothing.``, if there are."""
    every = list(comparisons)
    open_ones = [comparison for comparison in every if comparison.undecided]
    if not open_ones:
        return ""
    several_regimes = len({comparison.regime for comparison in every}) > 1
    places = grouped((comparison.regime, comparison.variant) for comparison in open_ones)
    named = [
        listed(dict.fromkeys(names)) + (f" in {regime}" if several_regimes else "") for regime, names in places.items()
    ]
    levels = sorted({interval.level for c in open_ones if (interval := c.main_interval) is not None})
    at = " or ".join(map(level, levels))
    if len(open_ones) == 1:
        return f"{named[0]} was not tested: its {at} interval is uncorrected and decides nothing."
    return f"{'; '.join(named)} were not tested: their {at} intervals are uncorrected and decide nothing."


def power_level(power: Power, comparison: Comparison) -> str:
    """``0.025``: the level at which a power is computed; of a test that is corrected in a way that no level tells, the one
    before that."""
    open_still = comparison.correction != "none" and comparison.family_size > 1 and power.alpha == comparison.alpha
    return f"{number(power.alpha, 2)}{', uncorrected' if open_still else ''}"


def margin_of(comparison: Comparison, value: float) -> str:
    """A registered margin, as it was given."""
    return with_unit(setting(value), "(of logarithms)" if comparison.transform == "log" else comparison.unit)


def name_of(comparison: Comparison) -> str:
    """The metric in words. A macro average names its tasks; one of a single task goes by that task's name."""
    if len(comparison.averaged) == 1:
        metric = "task_accuracy" if comparison.task is None else comparison.metric
        return f"{metric_name(metric)}, {comparison.averaged[0].label}"
    task = "" if comparison.task is None else f", {comparison.task_label}"
    tasks = f" ({tasks_listed(comparison.averaged)})" if comparison.averaged else ""
    return f"{metric_name(comparison.metric)}{task}{tasks}"


def tasks_listed(tasks: Iterable[ComparedTask]) -> str:
    """``punctuation and spelling``; of tasks that were asked alike ``punctuation and spelling, both 2-shot``."""
    groups = []
    for asked, names in grouped((task.asked, task.name) for task in tasks).items():
        every = "" if len(names) == 1 else "both " if len(names) == 2 else "all "
        groups.append(listed(names) + (f", {every}{asked}" if asked else ""))
    return "; ".join(groups)


def unstable_means(comparison: Comparison) -> str:
    """``unstable runs dominate the mean: 30 of 48 none runs``"""
    runs = [
        filled("{unstable:count} of {of:count} {arm} runs", {**known.details, "arm": arm})
        for arm, known in comparison.unstable_means.items()
    ]
    return f"unstable runs dominate the mean{'s' if len(runs) > 1 else ''}: {listed(runs)}"


def shared_variance(analysis: Analysis) -> str:
    """What it is, where a study registers it."""
    if not any(comparison.variance == "shared" for comparison in analysis.comparisons):
        return ""
    return (
        "Variances are shared: a primary comparison's standard error is from the larger of its own variance and the mean of "
        "all variants', with twice the degrees of freedom."
    )


def halved(analysis: Analysis) -> bool:
    """Whether a primary passes a part of its level to secondaries and a part to other primaries (`stats.families.ONWARD`)."""
    primaries = [
        c for c in analysis.comparisons if c.role == "primary" and c.correction == "holm" and c.family_size > 1
    ]
    return bool(primaries) and any(c.correction == "gatekeeping" for c in analysis.comparisons)


#: Methods and spending functions that are named after people.
_AFTER_PEOPLE: Final[Mapping[str, str]] = {
    "welch": "Welch",
    "wilcoxon": "Wilcoxon",
    "tango": "Tango",
    "pocock": "Pocock",
    "obrien-fleming": "O'Brien-Fleming",
    "bca": "BCa",
    "dunnett": "Dunnett",
}


def method_name(name: str) -> str:
    """A method as a reader knows it."""
    return _AFTER_PEOPLE.get(name, name)


#: Corrections in a sentence.
CORRECTIONS: Final[Mapping[str, str]] = {
    "holm": "Holm",
    "bonferroni": "Bonferroni",
    "benjamini-hochberg": "Benjamini-Hochberg",
    "gatekeeping": "gatekeeping",
}


def pairs_of(n: int) -> str:
    return several(n, "pair")


def sensitivity_reasons(gate: Sensitivity | None) -> list[str]:
    """Why a metric can tell models apart, or cannot, a clause each."""
    if gate is None:
        return []
    reasons = []
    if gate.tasks is not None and gate.sensitive_tasks:
        tasks = ", ".join(gate.sensitive_tasks)
        reasons.append(
            f"the mean is over the {len(gate.sensitive_tasks)} of {gate.tasks} tasks that are sensitive: {tasks}"
        )
    elif gate.tasks is not None:
        reasons.append(f"none of the {gate.tasks} tasks is sensitive; the mean shown is over all of them")
    if gate.gate_runs is not None:
        return [
            *reasons,
            f"it takes gate runs on two seeds or more, and {gate.gate_runs} of {gate.planned_gate_runs} have a value",
        ]
    if gate.accuracy is None:
        reasons.append("the metric has no chance level; only the positive control was asked")
    else:
        verb = "beats" if gate.beats_chance else "does not beat"
        reasons.append(
            f"mean baseline accuracy {number(gate.accuracy)} on {counted(gate.items or 0, 'item')} {verb} chance "
            f"{number(gate.chance)} (one-sided {p_clause(gate.chance_p)})"
        )
    text = _CONTROLS[gate.control]
    if gate.control_p is not None:
        text += (
            f" (mean delta {number(gate.control_delta, sign=True)}, {pairs_of(gate.control_pairs)}, "
            f"two-sided {p_clause(gate.control_p)})"
        )
    elif gate.control == "not-testable":
        text += f" ({pairs_of(gate.control_pairs)})"
    return [*reasons, text]


_CONTROLS: Final[Mapping[ControlOutcome, str]] = {
    "told-apart": "the positive control is distinguished from the baseline",
    "not-told-apart": "the positive control is not distinguished from the baseline",
    "wrong-direction": "the positive control differs in the wrong direction",
    "not-testable": "the positive control cannot be judged: too few pairs, or none that varies",
    "not-given": "no positive control was given",
}


# --- stability ------------------------------------------------------------------------------------------------

FAILURES: Final[Mapping[Failure, str]] = {
    Failure.DIVERGED: "diverged",
    Failure.FAILED: "diverged or ended worse than they began",
    Failure.UNSTABLE: "unstable",
}


def printed_gain_interval(gain: StabilityGain) -> str:
    """``10 % to 60 %``; with a † where it contradicts the test that decides."""
    return f"{percent(gain.low)} to {percent(gain.high)}{'†' if gain.contradicted else ''}"


def gain_intervals(gains: Sequence[StabilityGain], *, mark: str = "†:") -> str:
    """What the intervals of gains are, beside tests that are corrected, and what *mark* says of one."""
    contradicted = any(gain.contradicted for gain in gains)
    marked = f" {mark} excludes 0, but the test that decides shows no difference." if contradicted else ""
    levels = " or ".join(sorted({level(gain.level) for gain in gains}))
    places = sorted({gain.places for gain in gains if gain.places})
    if places == [1]:
        return f"Intervals of gains are at {levels}.{marked}"
    many = " or ".join(map(count, places))
    corrected = f"; p is corrected for {many} comparisons of stability and decides what is shown" if places else ""
    return f"Intervals of gains are at {levels}, uncorrected{corrected}.{marked}"


# --- small parts ----------------------------------------------------------------------------------------------


def capital(text: str) -> str:
    """A text that begins a sentence."""
    return text[:1].upper() + text[1:]


def listed(names: Iterable[str], word: str = "and") -> str:
    """``a, b and c``"""
    *most, last = names
    return f"{', '.join(most)} {word} {last}" if most else last


# --- sweeps ---------------------------------------------------------------------------------------------------


def sweep_notes(sweep: SweepAnalysis) -> list[str]:
    """What to know about a sweep."""
    notes, runs = [], count(len(sweep.points))
    missing = sum(point.state == "missing" for point in sweep.points)
    if missing:
        notes.append(f"{count(missing)} of {runs} runs of the sweep are not finished.")
    clipped = sum(point.clipped for point in sweep.points)
    if clipped:
        notes.append(
            f"{count(clipped)} of {runs} runs diverged or ended worse than they began, and count with their loss at the "
            "start."
        )
    if not sweep.best:
        notes.append("The sweep has no selection seeds, so no rate is chosen and nothing is judged at tuned rates.")
    about = grouped(((rate.lr, text), rate.variant) for rate in sweep.best if (text := about_rate(sweep, rate)))
    notes += [
        f"{listed(variants)}: {'' if lr is None else f'best rate {setting(lr)} '}{text}."
        for (lr, text), variants in about.items()
    ]
    if sweep.best and len(sweep.seeds) < 3:
        notes.append("Fewer than 3 seeds judge the tuned rates: too few for an interval.")
    return [*notes, *_tuned(sweep)]


def about_rate(sweep: SweepAnalysis, rate: ChosenRate) -> str:
    """What to know about a chosen rate; nothing where all is well."""
    if rate.missing:
        return f"not chosen: a selection seed has no loss at {', '.join(map(setting, rate.missing))}"
    if not rate.edge:
        return ""
    if sweep.stages == 2:
        return "at the edge of both stages: a better rate may lie beyond it"
    fitted = {tuned.variant for tuned in sweep.minima if tuned.minimum is not None and tuned.minimum.lr is not None}
    if rate.variant in fitted:
        return "on the selection seeds, at the edge of the sweep; fitted to the judging seeds, it lies inside"
    return "at the edge of the sweep: a better rate may lie beyond it"


def _three_figures(value: float) -> str:
    return number(value, 3)


def at_best(minimum: FittedMinimum, shown: Callable[[float], str] = _three_figures) -> str:
    """The best rate, and the best value of a second setting."""
    return ", ".join(shown(value) for value in (minimum.lr, minimum.second) if value is not None)


def _tuned(sweep: SweepAnalysis) -> list[str]:
    if sweep.tuned_at is None:
        return []
    reasons = {tuned.variant: _FITS[tuned.minimum.status if tuned.minimum else "missing"] for tuned in sweep.minima}
    why = "; ".join(f"{variant}: {text}" for variant, text in reasons.items() if text)
    if sweep.tuned_at == "fitted-minima":
        fits = {tuned.variant: tuned.minimum for tuned in sweep.minima if tuned.minimum is not None}
        shown = ", ".join(
            f"{variant} {at_best(fit)} ({number(fit.doubt, 2)})" for variant, fit in fits.items() if fit.lr is not None
        )
        unknown = f" Not known: {why}." if why else ""
        if sweep.stages == 2:
            return [
                "Tuned arms: every metric is that of runs at the rate that two stages found for the variant, on separate "
                "seeds, before the plan was sealed. How far the loss may be from the best one, in brackets, widens intervals "
                f"and counts in p: {shown}.{unknown}"
            ]
        return [
            f"Tuned arms: {metric_name(sweep.metric)} is that at each variant's fitted best rate, and perplexity and bits "
            "per byte follow it; other metrics are at the chosen grid rates. How far a fitted loss may be off widens "
            "intervals and counts in p.",
            f"Fitted best rates, and in brackets how far the loss there may be off: {shown}.{unknown}",
        ]
    return [
        f"Tuned arms are compared at the chosen grid rates, not at their optima ({why}): a difference may be the grid's."
    ]


#: Why a variant's best learning rate was not fitted; nothing where it was.
_FITS: Final[Mapping[str, str]] = {
    "ok": "",
    "grid-edge": "the best rate is at the edge of the sweep",
    "coarse-grid": "the neighbouring rates are more than a factor of two away",
    "no-loss": "a run that chooses it has no loss",
    "missing": "a loss is missing",
}


# --- the ledger -----------------------------------------------------------------------------------------------

_NEARLY: Final[Mapping[LedgerInput, str]] = {
    LedgerInput.TIME: "training time, to within one step (steps x measured step time)",
    LedgerInput.FLOPS: "FLOPs, to within one step",
    LedgerInput.ORDER: "data order up to the end of the shorter run",
}


def ledger_of(analysis: Analysis) -> str:
    """In what the pairs of an analysis match; nothing where that is not known."""
    if analysis.ledger is None:
        return ""
    runs = () if analysis.stability is None else analysis.stability.runs
    return ledger_words(analysis.ledger) + _early(run.state == "diverged" for run in runs)


def _early(diverged: Iterable[bool]) -> str:
    return " Runs that diverged match up to the step at which they did." if any(diverged) else ""


def ledger_words(check: LedgerCheck) -> str:
    """In what the pairs of a study match, and what is not the same or not known."""
    shared = ["settings", *check.shared] if check.reported else _made_alike(check)
    text = (
        f"{several(check.checked_pairs, 'pair')} of runs {_match(check.checked_pairs)} in {', '.join(shared)} and versions, "
        f"up to what their variants declare.{_differ(check)}"
    )
    if check.not_reported:
        text += f" Not checked, because the trainer does not report it: {', '.join(check.not_reported)}."
    return text


def _made_alike(check: LedgerCheck) -> list[str]:
    """What runs of this package match in; of two architectures, in the weights that both have."""
    words = {name: _NEARLY[name] for name in check.nearly}
    words |= {name: f"shared {name}" if name == LedgerInput.START else name for name in check.shared}
    return [words[name] for name in LedgerInput if name in words] + ["precision", "stack width", "threads"]


def _match(pairs: int) -> str:
    return "matches" if pairs == 1 else "match"


def _differ(check: LedgerCheck) -> str:
    """What the pairs do not share, in a sentence or two."""
    parts = []
    for unlike in check.differs:
        name = f"{unlike.name}, same formulas and precision" if unlike.name == LedgerInput.KERNELS else unlike.name
        shares = grouped((share, variant) for variant, share in unlike.variants.items())
        variants = "; ".join(
            ", ".join(names) if share is None else f"{_more(share)}: {', '.join(names)}"
            for share, names in shares.items()
        )
        pairs = f"in {unlike.pairs} of {several(check.checked_pairs, 'pair')}"
        parts.append(f"{name} ({variants if unlike.pairs is None else pairs})")
    text = ""
    if parts:
        listed = (", " if check.reported else "; ").join(parts)
        text = f" {'They' if check.reported else 'By declaration they'} differ in {listed}."
    return text + (f" Not matched: {', '.join(check.unmatched)}." if check.unmatched else "")


def _more(share: float) -> str:
    """A change in percent, with as many decimals as tell it from none."""
    places = next((places for places in range(4) if abs(100 * share) >= 0.5 * 10**-places), 4)
    return percent(share, places, sign=True)
