"""Codes as sentences: why a value is absent, why a run is unstable, what deviates, what to know before believing a number.

Sentences of several verdicts are merged for display; nothing else reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median
from string import Formatter
from typing import Any, Final

from ablationlab.analysis.dataset import Absent
from ablationlab.analysis.stability import UNSTABLE_SHARE, diverged
from ablationlab.analysis.verdict.evidence import Evidence, gather, lost_alone
from ablationlab.analysis.verdict.hypotheses import comparisons_of, smoother_training
from ablationlab.core.format import (
    Difference,
    count,
    count_word,
    counted,
    difference,
    fixed,
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
    EvaluationNote,
    EvaluationNoteCode,
    Failure,
    Instability,
    Interactions,
    LedgerCheck,
    LedgerInput,
    Missing,
    Power,
    RunStability,
    Seed,
    StabilityGain,
    SweepAnalysis,
)
from ablationlab.records.metrics import metric_name
from ablationlab.records.plan import Plan
from ablationlab.records.results import Run, Stale
from ablationlab.records.run import Divergence, Result, RunRecord
from ablationlab.records.settings import TUNED
from ablationlab.records.verdict import (
    Cost,
    CostBound,
    Decision,
    HypothesisReason,
    HypothesisVerdict,
    Need,
    Needs,
    Reason,
    Rule,
    TieBreak,
    VariantVerdict,
    Verdict,
    VerdictFragility,
)
from ablationlab.stats import Caveat, CaveatCode
from ablationlab.stats.results import ControlOutcome, Sensitivity, Status
from ablationlab.study.ledger import planned_inputs, reported_inputs

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
    Absence.NOT_FINITE: "the value is {value}",
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
        return filled("diverged (the value {value:number} is beyond 10¹⁰⁰)", details) if details else "diverged"
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
    every = "the one run that ended has" if len(runs) == 1 else f"all {len(runs)} runs that ended have"
    return f"{every} diverged, so there are no weights to score ({name}: {divergence(at)})"


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
    CaveatCode.CONSTANT_DELTAS: (
        "All {n:count} deltas equal {value:number}: no spread, so no interval and no t or bootstrap p."
    ),
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
    CaveatCode.SURVIVORS_ONLY: (
        "Diverged, so without a value: {runs}. What is compared here are the survivors; that these runs diverged counts "
        "under stability."
    ),
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


def other_methods(caveats: Iterable[Caveat]) -> list[str]:
    """What the methods that do not decide cannot claim with so few pairs: a sentence for intervals, one for tests."""
    known: dict[CaveatCode, list[tuple[str, Mapping[str, Any]]]] = grouped(
        (c.code, (c.about, c.details)) for c in caveats
    )
    texts = []
    covers = [(about, at) for about, at in known.get(CaveatCode.UNDERCOVERAGE, ()) if "covers" in at]
    if covers:
        shares = grouped((at["n"], at["covers"]) for _, at in covers)
        alike = grouped((_span([percent(x) for x in sorted(found)]), n) for n, found in shares.items())
        spans = [f"{span} over {_span([count(n) for n in sorted(sizes)])} pairs" for span, sizes in alike.items()]
        methods = listed(dict.fromkeys(method_name(about) for about, _ in covers))
        texts.append(
            f"Bootstrap intervals ({methods}) are too narrow here: a nominal "
            f"{level(covers[0][1]['level'])} covers about {listed(spans)} (simulated, normal differences)."
        )
    floors = grouped((at["alpha"], (about, at)) for about, at in known.get(CaveatCode.CANNOT_REACH_ALPHA, ()))
    for alpha, members in floors.items():
        tests = dict.fromkeys(method_name(about) for about, _ in members)
        least = dict.fromkeys(f"{setting(at['minimum_p'])} with {pairs_of(at['n'])}" for _, at in members)
        verb, its = ("tests", "their") if len(tests) > 1 else ("test", "its")
        texts.append(
            f"The {listed(tests)} {verb} cannot reach {setting(alpha)}, however large the differences are; {its} smallest "
            f"p is {listed(least)} that differ."
        )
    return texts


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
        "The curves of {about} end at different steps, {first:count} to {last:count}: the last values compare unequal "
        "training. --at step={first} compares at the same step."
    ),
    DeviationCode.BEST_OF_CURVE: (
        "Each run counts with the best value of its curve, which flatters noisy curves and runs evaluated more often."
    ),
    DeviationCode.EMPTY_VALUES: (
        "{about} is empty or NaN, which counts as missing, for {runs:list}. "
        "If such a run diverged, write `diverged` or `inf`."
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
    DeviationCode.CONTINUED: "Continued on {date} to planned look {look} although the study had stopped ({reason}).",
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


_EVALUATION_NOTES: Final[Mapping[EvaluationNoteCode, str]] = {
    EvaluationNoteCode.OTHER_CONDITIONS: "evaluated in another way than the others, and not used: {runs:list}",
    EvaluationNoteCode.UNSPELLABLE: "{task} was not asked as {templates:list}: the vocabulary seems to lack the characters",
    EvaluationNoteCode.NOT_PLANNED: ("scored in addition to the plan: exploratory, and in no mean over tasks: {tasks}"),
    EvaluationNoteCode.OPENED_BY_HARNESS: (
        "the plan names {groups:list}, which the harness expands: its tasks ({tasks:list}) are all taken as planned"
    ),
    EvaluationNoteCode.NOT_IN_ITEMS: "not in the item-level statistics ({why}): {runs:list}",
}


def evaluation_note(known: EvaluationNote) -> str:
    """Something to know about the scores of tasks."""
    details: dict[str, Any] = dict(known.details)
    if known.code == EvaluationNoteCode.NOT_PLANNED:
        details["tasks"] = "; ".join(details["tasks"])  # a task's label may hold a comma
    if known.code == EvaluationNoteCode.NOT_IN_ITEMS:
        details["why"] = absence(Absent(Absence(details["reason"]), known.details))
    return filled(_EVALUATION_NOTES[known.code], details)


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
    return difference(comparison.delta, low, high, log=comparison.transform == "log", unit=comparison.unit)


def no_spread(comparison: Comparison) -> str:
    """``all four differences of big in error equal −0.0978``; nothing where differences vary, or are too few to tell."""
    interval = comparison.main_interval
    if interval is None or interval.status != "degenerate" or comparison.delta is None:
        return ""
    if comparison.design == "unpaired":
        return f"neither the runs of {comparison.variant} nor those of {comparison.reference} vary in {name_of(comparison)}"
    differences = f"all {count_word(comparison.n)} differences of {comparison.variant} in {name_of(comparison)}"
    return f"{differences} equal {difference_of(comparison).text}"


def pair_difference(comparison: Comparison, delta: float) -> str:
    """The difference of one pair of runs; of logarithms as a change."""
    return difference(delta, log=True).text if comparison.transform == "log" else number(delta, 4, sign=True)


def arm_text(comparison: Comparison, arm: str, *, as_median: bool = False) -> str:
    """``mean ± SD`` of an arm over its pairs; ``median 3.18`` where a few runs make its mean what it is, or *as_median*."""
    if arm in comparison.unstable_means:
        return filled("median {median:number}", comparison.unstable_means[arm].details)
    if comparison.pairs and (as_median or is_skewed(comparison, arm)):
        return f"median {medians_of(comparison)[arm == comparison.variant]}"
    if arm == comparison.reference:
        return mean_sd(comparison.reference_mean, comparison.reference_sd)
    return mean_sd(comparison.variant_mean, comparison.variant_sd)


def is_skewed(comparison: Comparison, arm: str) -> bool:
    """Whether an arm's mean is more than ten times its median, in a metric that is tested as a logarithm."""
    values = [pair.reference if arm == comparison.reference else pair.variant for pair in comparison.pairs]
    return comparison.transform == "log" and len(values) > 2 and fmean(values) > 10 * median(values)


def medians_of(comparison: Comparison) -> tuple[str, str]:
    """The medians of the reference and of the variant over their pairs."""
    reference, variant = ([pair.reference for pair in comparison.pairs], [pair.variant for pair in comparison.pairs])
    return number(median(reference)), number(median(variant))


def change(comparison: Comparison) -> str:
    """The difference with its sign and unit; the medians of both arms where unstable runs make the difference."""
    if comparison.told_by_medians:
        reference, variant = medians_of(comparison)
        return f"median {with_unit(f'{variant} against {reference}', comparison.unit)}"
    shown = difference_of(comparison)
    return with_unit(shown.delta, shown.unit)


def on_scale(comparison: Comparison, value: float | None) -> str:
    """An amount on the tested scale without its sign: a margin, a bound of a cost."""
    shown = difference(value, log=comparison.transform == "log", unit=comparison.unit, sign=False)
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


def _where(comparison: Comparison) -> str:
    """The metric in words, and that it is not at the best rates, where it is not."""
    return f"{name_of(comparison)}{' at the chosen grid rates' if comparison.at_grid_rates else ''}"


def measured(comparison: Comparison) -> str:
    """Difference, deciding interval and adjusted p of a comparison, in one clause."""
    if comparison.delta is None:
        return f"{name_of(comparison)} could not be compared"
    interval, shown = comparison.main_interval, difference_of(comparison)
    text = f"{_where(comparison)} {change(comparison)}"
    if comparison.told_by_medians:
        text += f" ({comparison.sample}; {unstable_means(comparison)})"
    elif interval is not None and interval.low is not None:
        text += f" ({level(interval.level)} interval {shown.range}, {comparison.sample})"
    else:
        text += f" ({comparison.sample}, no interval)"
    if comparison.outcome == "gated":
        return f"{text}, not tested: the registered comparison before it is not shown"
    if comparison.p_adjusted is None:
        return f"{text}, no p-value"
    return f"{text}, {p_clause(comparison.p_adjusted)} ({adjusted(comparison)})"


def unstable_means(comparison: Comparison) -> str:
    """``unstable runs dominate the mean: 30 of 48 none runs``"""
    runs = [
        filled("{unstable:count} of {of:count} {arm} runs", {**known.details, "arm": arm})
        for arm, known in comparison.unstable_means.items()
    ]
    return f"unstable runs dominate the mean{'s' if len(runs) > 1 else ''}: {listed(runs)}"


def adjusted(comparison: Comparison) -> str:
    if comparison.correction == "none":
        return "not adjusted"
    if comparison.family_size == 1:
        return "one test"
    return f"{CORRECTIONS[comparison.correction]}, {several(comparison.family_size, 'test')}"


def corrections(analysis: Analysis) -> str:
    """What an adjusted p is, for each correction that was applied to several tests; nothing where none was."""
    applied = [c for c in analysis.comparisons if c.family_size > 1 and c.p_adjusted is not None]
    alphas = {
        name: " or ".join(map(level, sorted(set(found))))
        for name, found in grouped((c.correction, c.alpha) for c in applied).items()
    }
    strict = [name for name in ("holm", "bonferroni", "gatekeeping") if name in alphas]
    texts = []
    if strict:
        at = " or ".join(dict.fromkeys(alphas[name] for name in strict))
        texts.append(
            "Test often enough and something will look like an effect by chance. Adjusted p-values and intervals allow for "
            f"it: the chance that anything shown in a family of tests is false is at most {at}."
        )
    texts += [_HOW_CORRECTED[name] for name in strict]
    if halved(analysis):
        texts.append(
            "A primary comparison that is shown passes half of its level to the other ones, where Holm alone passes all of "
            "it, and half to what is registered behind it."
        )
    if "benjamini-hochberg" in alphas:
        texts.append(
            "Benjamini-Hochberg, for what is exploratory: of all that is shown, about "
            f"{alphas['benjamini-hochberg']} may be false."
        )
    return " ".join(texts)


def halved(analysis: Analysis) -> bool:
    """Whether a primary passes a part of its level to secondaries and a part to other primaries (`stats.families.ONWARD`)."""
    primaries = [
        c for c in analysis.comparisons if c.role == "primary" and c.correction == "holm" and c.family_size > 1
    ]
    return bool(primaries) and any(c.correction == "gatekeeping" for c in analysis.comparisons)


_HOW_CORRECTED: Final[Mapping[str, str]] = {
    "holm": "Holm: the smallest p is multiplied by the number of tests, the next by one less, and so on.",
    "bonferroni": "Bonferroni: every p is multiplied by the number of tests.",
    "gatekeeping": "Gatekeeping: tests are made in their registered order, as long as those before are shown.",
}


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
#: The same of one run.
_FAILURE: Final[Mapping[Failure, str]] = {**FAILURES, Failure.FAILED: "diverged or ended worse than it began"}


def failing(gain: StabilityGain, *, of_each: bool = False) -> str:
    """``10 of 24 none runs diverged, 0 of 24 layernorm runs``; *of_each*: of variants that all have these counts.

    Where an arm lacks runs, the counts are those of the seeds that both arms have.
    """
    one = gain.reference_unstable == 1
    word = (_FAILURE if one else FAILURES)[gain.failure]
    word = f"{'is' if one else 'are'} {word}" if gain.failure == Failure.UNSTABLE else word
    text = (
        f"{gain.reference_unstable} of {gain.reference_runs} {gain.reference} runs {word}, "
        f"{gain.variant_unstable} of {gain.variant_runs} {'runs of each' if of_each else f'{gain.variant} runs'}"
    )
    common = gain.test == "mcnemar" and gain.single
    return f"{text} (on the {several(gain.reference_runs, 'seed')} that both have)" if common else text


#: What runs do that fail so; of all kinds together, stability is restored.
FAILING: Final[Mapping[Failure, str]] = {
    Failure.FAILED: "diverge or end worse than they began",
    Failure.DIVERGED: "diverge",
}


def shown_rarer(analysis: Analysis, variant: str, regime: str, ids: Collection[str]) -> StabilityGain | None:
    """The gain among *ids* that says which failures alone are rarer, the widest kind; none where all kinds together are."""
    stability = analysis.stability
    vector = stability.vector(variant, analysis.baseline, regime) if stability else ()
    shown = {gain.failure: gain for gain in vector if gain.id in ids}
    return None if Failure.UNSTABLE in shown else next((shown[kind] for kind in FAILING if kind in shown), None)


_EXACT: Final[Mapping[str, str]] = {"mcnemar": "exact McNemar", "fisher": "unpaired, Fisher's exact"}


def gain_interval(gain: StabilityGain) -> str:
    """``95 % interval 10 % to 60 %``, and that it is not corrected, where the test beside it is."""
    if gain.low is None:
        return "no interval"
    uncorrected = "uncorrected " if (gain.places or 1) > 1 else ""
    return f"{uncorrected}{level(gain.level)} interval {percent(gain.low)} to {percent(gain.high)}"


def corrected_for(places: int) -> str:
    """For how many variants, regimes and kinds of failure a test of stability is corrected."""
    return f"corrected for {several(places, 'comparison')} of stability"


def gain_shown(gain: StabilityGain) -> str:
    """Whether a gain is shown, and the p that says so; nothing without a test."""
    if gain.p is None:
        return ""
    if gain.p_adjusted is None:
        return f"not tested as a claim, uncorrected {p_clause(gain.p)}"
    corrected = f", {corrected_for(gain.places)}" if gain.places and gain.places > 1 else ""
    return f"{'not shown' if gain.outcome == 'not-shown' else 'shown'}, {p_clause(gain.p_adjusted)}{corrected}"


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


def gained(gain: StabilityGain) -> str:
    """One variant and regime: the counts, the gain with its interval, and p."""
    text = f"{gain.variant} in {gain.regime}: {failing(gain)}"
    if gain.estimate is not None and gain.low is not None:
        text += f", gain {percent(gain.estimate)} ({gain_interval(gain)})"
    if gain.p is None:
        return text
    corrected = f" uncorrected, {p_clause(gain.p_adjusted)} corrected" if gain.p_adjusted is not None else ""
    standing = "" if gain.registered else ", not registered"
    missing = (
        _single(gain)
        if gain.variant_unstable * gain.reference_runs < gain.reference_unstable * gain.variant_runs
        else ""
    )
    return f"{text}, {_EXACT[gain.test]} {p_clause(gain.p)}{corrected}{standing}{missing}"


# --- hypotheses -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clause:
    """A part of a sentence. *named*: it begins with the name of a variant, which stays as it is."""

    text: str
    named: bool = False

    @property
    def begun(self) -> str:
        """The clause at the beginning of a sentence."""
        return self.text if self.named else capital(self.text)


def hypothesis_clauses(analysis: Analysis, verdict: HypothesisVerdict) -> list[Clause]:
    """Why a hypothesis stands as it does, a clause for each piece of evidence."""
    why, places = _hypothesis_reason(analysis, verdict)
    return [*map(Clause, why), *(Clause(place, named=True) for place in places)]


def _hypothesis_reason(analysis: Analysis, verdict: HypothesisVerdict) -> tuple[list[str], list[str]]:
    """What holds of the whole, and what holds of single variants, whose names come first."""
    metric = metric_name(verdict.metric or "")
    judged = {c.id: c for c in comparisons_of(analysis, verdict.metric or "")}
    asked = [judged.get(c.id, c) for c in analysis.comparisons if c.id in verdict.evidence]
    several_regimes = len(analysis.regimes) > 1
    compared = [f"{c.variant}{f' in {c.regime}' if several_regimes else ''}: {measured(c)}" for c in asked]
    stability = analysis.stability
    gains = [gain for gain in (*stability.parts, *stability.gains) if gain.id in verdict.evidence] if stability else []
    places = [*map(gained, gains), *compared]
    match verdict.reason:
        case HypothesisReason.NOT_IN_RECORDS:
            return [f"{metric} is not in the records"], []
        case HypothesisReason.NOT_SENSITIVE:
            gates = [c.sensitivity for c in analysis.comparisons if c.metric == verdict.metric]
            reasons = sorted({reason for gate in gates for reason in sensitivity_reasons(gate)})
            reasons = reasons or ["no baseline beyond chance and no positive control on record"]
            return [f"{metric} is not shown to be sensitive at this scale", *reasons], []
        case HypothesisReason.GRID_RATES:
            return [
                f"{metric} of tuned arms is known at the chosen grid rates only, where a difference may be the grid's"
            ], []
        case HypothesisReason.NOT_REGISTERED:
            compared_now = metric if verdict.metric else "stability"
            return [f"{compared_now} was compared, but not as registered, so all of it is exploratory"], places
        case HypothesisReason.NO_STABLE_BASELINE:
            return [f"the baseline is not shown to train stably in any regime with {metric}"], []
        case HypothesisReason.CHANGED | HypothesisReason.EQUIVALENT | HypothesisReason.NOT_WORSE:
            return [], compared
        case HypothesisReason.NOTHING_SHOWN if verdict.rule == "no-change":
            return ["neither a difference nor equivalence is shown for every variant"], []
        case HypothesisReason.NOTHING_SHOWN:
            return [f"{metric} is neither shown worse for every variant nor shown to be no worse"], []
        case HypothesisReason.WORSE_AND_SMOOTHER:
            worse = [comparison for comparison in asked if comparison.metric == verdict.metric]
            return [], [_worse_and_smoother(analysis, c, *smoother_training(analysis, c)) for c in worse]
        case HypothesisReason.WORSE_NOT_SMOOTHER:
            measures = ", ".join(map(metric_name, stability.smoothness)) if stability else ""
            shown = measures or "no measure registered"
            return [f"{metric} is worse, but training is not shown to be smoother ({shown})"], []
        case HypothesisReason.STABILITY_UNKNOWN:
            return ["nothing is known of the runs' stability"], []
        case HypothesisReason.STABLE_EVERYWHERE:
            return ["the baseline is stable in every regime that was run", "this needs one where it is not"], []
        case HypothesisReason.SHARE_NOT_REGISTERED:
            other = f"it is unstable at some rates of the sweep, but {metric_name(UNSTABLE_SHARE)} was not registered"
            return ["the baseline is stable in every regime that was run", other], []
        case HypothesisReason.RESTORED:
            looked_at = stability.places if stability else 0
            first = (
                f"shown in {len(places)} of {several(looked_at, 'comparison')} of stability, corrected for their number"
            )
            return [first], places
        case HypothesisReason.NOT_RESTORED:
            return [], places
        case HypothesisReason.GAIN_NOT_SHOWN:
            return ["the baseline is unstable, but no gain is shown"], places
        case HypothesisReason.GAIN_UNDONE:
            return [
                "a gain is shown, but other failures are more frequent there, or would be with the missing runs"
            ], places


def _worse_and_smoother(
    analysis: Analysis, comparison: Comparison, measures: Sequence[Comparison], gains: Sequence[StabilityGain]
) -> str:
    """A variant that is worse although it trains more smoothly: the differences; their intervals are in the table."""
    how = [f"{name_of(measure)} {change(measure)}" for measure in measures] + [failing(gain) for gain in gains]
    where = f" in {comparison.regime}" if len(analysis.regimes) > 1 else ""
    return (
        f"{comparison.variant}{where} is worse ({_where(comparison)} {change(comparison)}, "
        f"{p_clause(comparison.p_adjusted)}) although it trains more smoothly ({', '.join(how)})"
    )


def hypothesis_why(analysis: Analysis, verdict: HypothesisVerdict) -> str:
    return "; ".join(clause.text for clause in hypothesis_clauses(analysis, verdict))


def hypothesis_lines(analysis: Analysis, hypotheses: Mapping[str, HypothesisVerdict]) -> list[str]:
    return [
        f"{name} {hypothesis.status}. {hypothesis.statement} Because: {hypothesis_why(analysis, hypothesis)}."
        for name, hypothesis in hypotheses.items()
    ]


# --- the rules ------------------------------------------------------------------------------------------------


def because(evidence: Evidence, reason: Reason) -> str:
    """Why a rule applies, or why it does not."""
    return " ".join(_because(evidence, reason))


def _because(evidence: Evidence, reason: Reason) -> tuple[str, ...]:
    primary, standing, gain = evidence.primary, evidence.standing, evidence.gain
    metric = name_of(primary) if primary is not None else "the primary metric"
    numbers = measured(primary) if primary is not None else ""
    effect = primary.smallest_effect if primary is not None else None
    within = "" if primary is None or effect is None else f"±{margin_of(primary, effect)}"
    counts = failing(gain, of_each=evidence.of_each) if gain is not None else "no counts"
    the_metric = capital(metric)
    match reason:
        case Reason.MEASURED:
            if primary is None or primary.sensitivity is None:
                return (f"Nothing keeps {metric} from deciding.",)
            return (f"{the_metric} can tell models apart.",)
        case Reason.STABILITY_DIFFERS:
            return ("The primary metric cannot answer, but a difference in stability is shown.",)
        case Reason.PRIMARY_MISSING:
            return ("The primary metric is not in the data.",)
        case Reason.NO_DIRECTION:
            return (f"{the_metric} has no better direction, so it cannot decide.",)
        case Reason.NOT_SENSITIVE:
            reasons = sensitivity_reasons(primary.sensitivity if primary is not None else None)
            return (f"{the_metric} is not sensitive at this scale: {'; '.join(reasons)}.",)
        case Reason.GRID_RATES if _not_fitted(evidence):
            return (
                f"{the_metric} is known at the chosen grid rates only, where a difference may be the grid's: of tuned arms, "
                "the validation loss and its functions decide.",
            )
        case Reason.GRID_RATES:
            return (
                f"{the_metric} at the best rate is not known for both arms, and a difference at grid rates may be the "
                "grid's: sweep rates at most a factor of 2 apart, beyond both optima.",
            )
        case Reason.STABILITY_UNKNOWN:
            return ("Nothing is known of the runs' stability.",)
        case Reason.LESS_STABLE:
            return (f"Less stable: {_places(evidence, standing.lost)}.",)
        case Reason.NOT_LESS_STABLE:
            return (f"Not shown less stable: {counts}.",)
        case Reason.BASELINE_STABLE if gain is not None and gain.failure != Failure.UNSTABLE:
            return (f"No baseline run {_FAILURE[gain.failure]} here.",)
        case Reason.BASELINE_STABLE:
            return ("The baseline is stable here.",)
        case Reason.GAIN_NOT_SHOWN:
            p = p_clause(gain.p_adjusted) if gain is not None else ""
            how = f"{p}, {corrected_for(standing.places)}"
            unstable = gain is None or gain.failure == Failure.UNSTABLE
            fails = "The baseline is unstable" if unstable else "Runs of the baseline fail"
            return (f"{fails}, but a gain is not shown: {counts} ({how}{_single(gain)}).",)
        case Reason.GAIN_WITHIN_MARGINS | Reason.GAIN_AT_A_COST:
            return (f"More stable: {_places(evidence, standing.gained)}.", *_costs(evidence))
        case Reason.MAY_BE_LESS_STABLE:
            return (
                f"More stable: {_places(evidence, standing.gained)}.",
                f"But runs are missing, and had those of {evidence.name} failed and the baseline's not, it would be shown "
                "less stable.",
            )
        case Reason.EQUIVALENT:
            return (
                f"Equivalent: {_equivalence(primary)}.",
                f"The test for a difference: {numbers}.",
                *_but_worse(evidence),
            )
        case Reason.REAL_BUT_SMALL:
            return (f"Real but small: {numbers}.", f"But {_equivalence(primary)}.", *_but_worse(evidence))
        case Reason.RUNS_MISSING:
            return (
                f"What the runs that are there show ({numbers}) does not decide: {_only_its_runs(evidence)}, and a run that "
                "is missing may have failed.",
            )
        case Reason.NO_SMALLEST_EFFECT:
            return ("No smallest effect is registered for what was tested, so equivalence cannot be shown.",)
        case Reason.NOT_EQUIVALENT:
            return (f"Equivalence within {within} is not shown.",)
        case Reason.EQUIVALENCE_NOT_TESTED:
            return (f"Equivalence within {within} could not be tested.",)
        case Reason.SURVIVORS_ONLY:
            return (
                f"{the_metric} is compared on the runs that survived, which does not outweigh that {evidence.name} diverged "
                f"or ended without a number {where_alone(evidence)}"
                + (f", and that {_only_its_runs(evidence)}." if evidence.variant_missing else "."),
            )
        case Reason.BASELINE_SURVIVORS_ONLY:
            return (
                f"Worse on the seeds where the baseline survived ({numbers}), but the baseline diverged on "
                f"{counted(evidence.baseline_diverged, 'seed')} where {evidence.name} did not, and with these counted it "
                "is not shown.",
            )
        case Reason.WORSE:
            return (f"Worse: {numbers}.",)
        case Reason.NOT_WORSE:
            return (f"Not shown worse: {numbers}.",)
        case Reason.NOT_BETTER:
            return (f"Not shown better: {numbers}.",)
        case Reason.BETTER_AND_SAFE:
            guarded = "Every guard keeps its margin, and the variant" if evidence.guards else "The variant"
            return (f"Better: {numbers}.", f"{guarded} is no less stable: {_worst(evidence)}.")
        case Reason.BETTER_AT_A_COST | Reason.BETTER_WITH_BAD_RUNS:
            return (f"Better: {numbers}.", f"But {_shown_costs(evidence)}.")
        case Reason.BETTER_NOT_ALL_SHOWN:
            return (f"Better: {numbers}.", f"Not shown: {_not_shown(evidence)}.")
        case Reason.MAY_BE_SMALL:
            return (
                f"Better: {numbers}.",
                f"But {_tie_but_for(evidence)}, and a bad run must not count for the variant.",
            )
        case Reason.VARIANT_DIVERGED:
            return (_diverged_alone(evidence),)
        case Reason.FAILS_MORE:
            return (f"{capital(_fails_more(evidence))}.", f"{the_metric} does not outweigh it: {numbers}.")
        case Reason.BAD_RUNS:
            return (
                f"{evidence.subject} is {_hidden_loss(evidence)}.",
                f"With differences of at most {_cap(evidence)} it would be shown worse, and larger ones must not help the "
                "variant.",
            )
        case Reason.NO_RULE_APPLIES:
            return (f"Nothing is shown either way: {numbers or 'the primary metric is not in the data'}.",)


def _equivalence(primary: Comparison | None) -> str:
    """The interval that decides a tie, and the bounds that it keeps."""
    tost = None if primary is None else primary.equivalence
    if primary is None or tost is None:
        return "within the smallest effect that matters"
    bounds = f"±{margin_of(primary, tost.bounds[1])}, the smallest effect that matters"
    if tost.low is None:
        return f"the difference is within {bounds}"
    interval = difference(primary.delta, tost.low, tost.high)
    return f"the {level(1 - 2 * tost.alpha)} interval of the equivalence test, {interval.range}, lies within {bounds}"


def _tie_but_for(evidence: Evidence) -> str:
    seeds = evidence.worse_than_a_tie
    worst = f"on {_seeds(seeds)}" if seeds else "in the runs that it lost"
    return (
        f"if {evidence.name} had done about as well {worst} as on the other seeds, its gain would be shown to be too "
        "small to matter"
    )


def _diverged_alone(evidence: Evidence) -> str:
    return f"{evidence.subject} diverged {where_alone(evidence)}, and no gain that is shown outweighs it."


def where_alone(*arms: Evidence) -> str:
    """Where variants diverged and the baseline did not; arms without a common seed have no such place."""
    fewest, most = min(arm.variant_diverged for arm in arms), max(arm.variant_diverged for arm in arms)
    span = "" if fewest == most else f"{count_word(fewest)} to "
    if arms[0].unpaired:
        return f"in {span}{counted(most, 'run')}"
    return f"on {span}{counted(most, 'seed')} where the baseline did not"


def _fails_more(evidence: Evidence) -> str:
    """Too few seeds to show it less stable, and too many failures to use it."""
    gain = evidence.fails_more
    counts = "" if gain is None else f": {failing(gain, of_each=evidence.of_each)}{_single(gain)}"
    return (
        f"more of {evidence.name}'s runs fail than the margin of {percent(evidence.standing.margin)} allows, and it is "
        f"not shown to be as stable{counts}"
    )


def _single(gain: StabilityGain | None) -> str:
    """That runs which are missing count in what speaks for the variant."""
    broken = gain.single_broken if gain is not None else 0
    return f", with {counted(broken, 'seed')} counted against it on which a run is missing" if broken else ""


def _hidden_loss(evidence: Evidence) -> str:
    """What a variant is whose differences are so unequal that the interval is too wide to show it worse."""
    if evidence.bad_runs_stand_out and not evidence.worse_everywhere:
        return f"so much worse on {_seeds(evidence.bad_runs)} that the interval is too wide to show it"
    most = f"; most on {_seeds(evidence.bad_runs)}" if evidence.bad_runs_stand_out else ""
    everywhere = evidence.primary is not None and evidence.worse_everywhere
    where = f"on all {count(evidence.primary.n)} seeds" if evidence.primary is not None and everywhere else "on average"
    return f"worse {where}, but by amounts too unequal to show it{most}"


def _cap(evidence: Evidence) -> str:
    cap, primary = evidence.hiding_cap, evidence.primary
    return "" if cap is None or primary is None else on_scale(primary, cap + primary.doubt)


def _places(evidence: Evidence, ids: Sequence[str]) -> str:
    stability = evidence.analysis.stability
    vector = stability.vector(evidence.variant, evidence.analysis.baseline, evidence.regime) if stability else ()
    return "; ".join(
        f"{failing(gain, of_each=evidence.of_each)} ({_EXACT[gain.test]} {p_clause(gain.p_adjusted)}, "
        f"{corrected_for(evidence.standing.places)}{_single(gain)})"
        for gain in vector
        if gain.id in ids
    )


def _worst(evidence: Evidence) -> str:
    """What the seeds can say about the variant's failing more often."""
    standing = evidence.standing
    if not standing.known:
        return "its stability, which was not recorded"
    if standing.worst is None:
        return f"equal stability ({pairs_of(standing.pairs)} give no bound on how much more often it fails)"
    points = fixed(100 * max(0.0, standing.worst), 0)
    most, interval = f"up to {points} percentage points more of its runs may fail", f"{level(standing.level)} interval"
    if standing.non_inferior:
        return f"{most} ({interval}), within the margin of {percent(standing.margin)}"
    return f"equal stability ({most}, {interval}; the margin is {percent(standing.margin)})"


def _costs(evidence: Evidence) -> list[str]:
    """What the variant may cost on the primary metric and on every guard, a sentence for each."""
    sentences = [f"{capital(_cost(evidence, cost))}." for cost in evidence.costs]
    if not evidence.guards:
        sentences.append("No guard is registered, so the cost is judged on the primary metric alone.")
    if evidence.variant_missing:
        sentences.append(f"{capital(_only_its_runs(evidence))}.")
    if evidence.fails_beyond_margin:
        sentences.append(f"And {_fails_more(evidence)}.")
    return sentences


_NO_BOUND: Final[Mapping[CostBound, str]] = {
    CostBound.VARIANT_DIVERGED: "{runs} of its runs diverged where the baseline's did not",
    CostBound.VARIANT_MISSING: "{runs} of its runs have no value where the baseline's have one",
    CostBound.TOO_FEW_PAIRS: "too few for an interval",
    CostBound.NO_DIRECTION: "the metric has no better direction",
    CostBound.NOT_SENSITIVE: "the metric is not sensitive at this scale",
    CostBound.GRID_RATES: "known at the chosen grid rates only, where a difference may be the grid's",
    CostBound.INTERVAL: "no interval",
}


def no_upper_bound(cost: Cost, comparison: Comparison | None) -> str:
    """Why it has none; nothing where it has one."""
    if cost.high is not None:
        return ""
    alike = no_spread(comparison) if comparison is not None and cost.bound == CostBound.TOO_FEW_PAIRS else ""
    return alike or _NO_BOUND[cost.bound].format(runs=cost.runs)


def _cost(evidence: Evidence, cost: Cost) -> str:
    comparison = next((c for c in evidence.analysis.comparisons if c.id == cost.comparison), None)
    if comparison is None:
        return f"{metric_name(cost.metric)}: the cost is unknown (no run has a value)"
    metric = name_of(comparison)
    if cost.high is None:
        return f"{metric}: the cost has no upper bound ({no_upper_bound(cost, comparison)})"
    if comparison.told_by_medians and cost.high > (cost.margin or 0.0):
        kept = "" if cost.margin is None else f", so not shown to stay within {margin_of(comparison, cost.margin)}"
        return f"{metric}: the cost has no useful bound ({unstable_means(comparison)}){kept}"
    end = f"upper end of its {level(cost.level)} interval"
    most = f"costs at most {on_scale(comparison, cost.high)} ({end})"
    text = f"{metric}: {'costs nothing' if cost.high <= 0 else most}"
    if cost.bound == CostBound.EVERY_BASELINE_DIVERGED:
        text += f", for every baseline that it can be compared with diverged ({count(cost.runs)})"
    if cost.margin is None:
        return f"{text}; no margin is registered"
    if cost.high <= 0:
        return text
    kept = "within" if cost.high <= cost.margin else "more than"
    limit = "registered margin of " if comparison.margin is not None else "smallest effect that matters, "
    return f"{text}, {kept} the {limit}{margin_of(comparison, cost.margin)}"


def _shown_costs(evidence: Evidence) -> str:
    parts = [_cost(evidence, guard) for guard in evidence.broken_guards]
    parts += [f"{measured(comparison)}" for comparison in evidence.shown_worse]
    shown = f"worse on {'; '.join(parts)}" if parts else ""
    hidden = "; ".join(measured(comparison) for comparison in evidence.hidden_costs)
    by = "single bad or missing runs" if evidence.lacking else "single bad runs"
    hidden = f"perhaps worse, hidden by {by} or by an earlier secondary that is not shown: {hidden}"
    return ", and ".join(filter(None, [shown, hidden if evidence.hidden_costs else ""]))


def _but_worse(evidence: Evidence) -> list[str]:
    """What a tie on the primary metric must not hide."""
    return [f"But {_shown_costs(evidence)}."] if evidence.broken_guards or evidence.shown_worse else []


def _not_shown(evidence: Evidence) -> str:
    parts = [_cost(evidence, guard) for guard in evidence.guards if guard.shown != "kept"]
    parts += [] if evidence.standing.non_inferior else [_worst(evidence)]
    if evidence.variant_diverged:
        parts.append(f"what it costs on the {counted(evidence.variant_diverged, 'seed')} where it alone diverged")
    if evidence.variant_missing:
        seeds = counted(len(evidence.variant_missing), "seed")
        parts.append(f"what it does on the {seeds} where only its run is missing")
    parts += [f"{metric_name(metric)}, which is registered and was not measured" for metric in evidence.unmeasured]
    return "; ".join([*parts, *_no_value(evidence)])


def _no_value(evidence: Evidence) -> list[str]:
    """Registered secondaries, and guards that nothing else was said of, that it alone has no value of on some seeds."""
    alone = [(c, lost_alone(c, evidence.variant)) for c in evidence.lacking if c.role == "secondary"]
    return [
        f"{name_of(c)} on {_seeds(tuple(run.seed for run in runs))}, where it alone has no value" for c, runs in alone
    ]


def _only_its_runs(evidence: Evidence) -> str:
    return f"only its run is missing on {_seeds(evidence.variant_missing)}"


def _both_sides(evidence: Evidence) -> str:
    """The gain in stability, and what it costs."""
    gain = evidence.gain
    if gain is None:
        return ""
    shown, standing = gain_shown(gain), evidence.standing
    others = [place for place in (*standing.gained, *standing.lost) if place != gain.id]
    also = f" Shown: {_places(evidence, others)}." if others else ""
    return (
        f"Stability: {failing(gain)}; gain {percent(gain.estimate)} ({gain_interval(gain)}){shown and ', '}{shown}.{also} "
        + " ".join(_costs(evidence))
    )


def _tie_break(evidence: Evidence, tie: TieBreak) -> str:
    """What the tie-breakers said; the last that was asked decided, if one did."""
    by_id = {comparison.id: comparison for comparison in evidence.analysis.comparisons}
    asked = [by_id[name] for name in tie.asked if name in by_id]
    decided = asked[-1:] if tie.metric is not None else []
    where = " at best rates" if evidence.regime == TUNED else ""
    parts = [f"{metric_name(name)} was not measured{where}" for name in tie.unmeasured]
    parts += [f"{name_of(comparison)} does not decide" for comparison in asked if comparison not in decided]
    favoured = evidence.name if tie.favours in (None, evidence.variant) else tie.favours
    parts += [f"{measured(comparison)}: favours {favoured}" for comparison in decided]
    return f"Tie-breakers: {'; '.join(parts)}." if parts else "No tie-breaker is registered."


# --- what to do -----------------------------------------------------------------------------------------------


def the_baseline(name: str) -> str:
    """``the baseline (none)``; a baseline of that very name is named once."""
    return "the baseline" if name == "baseline" else f"the baseline ({name})"


def _advised(evidence: Evidence, verdict: VariantVerdict, *, used: bool) -> list[str]:
    """What to do with one variant in one regime, true for runs of any kind; *used*: see `used_in`."""
    return [*_advice(evidence, verdict, used=used), *_notes(evidence, verdict)]


def _notes(evidence: Evidence, verdict: VariantVerdict) -> list[str]:
    """What to know beside what to do."""
    sentences = [*_worse_elsewhere(evidence, verdict), *_failures(evidence)]
    if verdict.decision in (Decision.ADOPT, Decision.ADOPT_PROVISIONALLY) and (rate := _one_rate(evidence)):
        sentences.append(rate)
    if verdict.decision in ADOPTED and (better := better_variants(evidence.analysis, verdict)):
        verb = "are" if len(better) > 1 else "is"
        than = "each of them" if evidence.of_each else evidence.name
        sentences.append(f"Look first at {listed(better)}, which {verb} shown to be better than {than}.")
    return sentences


#: Decisions for a variant.
ADOPTED: Final = (Decision.ADOPT, Decision.ADOPT_PROVISIONALLY, Decision.ADOPT_IN_REGIME)
#: Other metrics, at most, that a sentence names where a variant to use is worse in them.
MOST_WORSE: Final = 3


def used_in(verdict: Verdict, regime: str) -> bool:
    """Whether a variant is to be used there, if only for now: then nobody is told to keep the baseline."""
    return any(decided.regime == regime and decided.decision in ADOPTED for decided in verdict.verdicts)


def better_variants(analysis: Analysis, verdict: VariantVerdict) -> list[str]:
    """Variants that are shown better than this one on the primary metric, by a registered contrast if it is registered."""
    better = []
    for other in analysis.variants:
        pairs = ((verdict.variant, other, "worse"), (other, verdict.variant, "better"))
        for variant, reference, outcome in pairs if other not in (verdict.variant, analysis.baseline) else ():
            found = analysis.comparison(analysis.primary or "", verdict.regime, variant, reference)
            if found is not None and found.outcome == outcome and verdict.label in (found.label, "exploratory"):
                better.append(other)
    return better


def worse_elsewhere(analysis: Analysis, variant: str, regimes: Sequence[str]) -> list[Comparison]:
    """Where a variant is shown worse than the baseline on another metric that the study was given: one of its criteria, or
    any of a table or of the user's own trainer. Guards have a margin that the verdict has judged.
    """
    asked = {criterion.metric for criterion in analysis.criteria}
    given = asked | {
        name for name, metric in analysis.metrics.items() if analysis.source == "table" or metric.family == name
    }
    return [
        comparison
        for comparison in analysis.comparisons
        if comparison.outcome == "worse"
        and (comparison.variant, comparison.reference) == (variant, analysis.baseline)
        and comparison.regime in regimes
        and comparison.metric in given - {analysis.primary}
        and comparison.role not in ("primary", "guard")
        and comparison.shares_test_of is None
        and not comparison.at_grid_rates
        and (comparison.sensitivity is None or comparison.sensitivity.sensitive)
    ]


def _worse_elsewhere(evidence: Evidence, verdict: VariantVerdict) -> list[str]:
    """``But trade is worse in accuracy (−0.042).``, for a variant that is to be used."""
    worse = worse_elsewhere(evidence.analysis, evidence.variant, [evidence.regime])
    if verdict.decision not in ADOPTED or not worse:
        return []
    told = [f"{name_of(comparison)} ({change(comparison)})" for comparison in worse[:MOST_WORSE]]
    more = [f"{count(len(worse) - MOST_WORSE)} more"] if len(worse) > MOST_WORSE else []
    lead = verdict.label == "registered" and all(comparison.label == "exploratory" for comparison in worse)
    mark = ", which is exploratory" if lead else ""
    return [f"But {evidence.name} is worse in {listed([*told, *more])}{mark}: weigh that."]


def _advice(evidence: Evidence, verdict: VariantVerdict, *, used: bool) -> list[str]:
    variant, baseline = evidence.name, the_baseline(evidence.analysis.baseline)
    keep = _keep(evidence, used=used)
    it = "it" if used and not evidence.of_each else variant
    than = f" than {baseline}" if used else ""
    primary = evidence.primary
    metric = name_of(primary) if primary is not None else "the primary metric"
    moved = f"{metric} {change(primary)}" if primary is not None else metric
    match verdict.decision:
        case Decision.ADOPT:
            guarded = "Every guard keeps its margin, and it" if evidence.guards else "It"
            return [
                f"Adopt {variant}: it is better ({moved}){_setting(evidence)}.",
                f"{guarded} is shown to be no less stable.",
            ]
        case Decision.ADOPT_PROVISIONALLY:
            return [
                f"Adopt {variant} provisionally: it is better ({moved}){_setting(evidence)}.",
                f"Not shown: {_not_shown(evidence)}.",
                *_seeds_for_margin(evidence),
            ]
        case Decision.ADOPT_IN_REGIME:
            return [f"Use {variant} in this regime: {_steadier(evidence, 'it')}.", *_costs(evidence)]
        case Decision.TRADE_OFF if verdict.rule == Rule.RESTORES_STABILITY:
            return [
                f"{_steadier(evidence, evidence.subject)}, but its cost is not shown to stay within the margins: use it "
                "where a run that fails costs you more than that.",
                *_costs(evidence),
            ]
        case Decision.TRADE_OFF:
            better = f"{evidence.subject} is better ({moved})"
            return [f"{better}, but {_shown_costs(evidence)}: decide which matters more to you."]
        case Decision.TIE:
            return _tie(evidence, verdict, used=used)
        case Decision.KEEP_BASELINE if verdict.rule == Rule.LESS_STABLE:
            return [f"{capital(keep)}: {it} is less stable{than}."]
        case Decision.KEEP_BASELINE:
            return [f"{capital(keep)}: {it} is worse{than} ({moved}){_setting(evidence)}."]
        case Decision.NO_VERDICT:
            nothing = f"No verdict: {metric} cannot decide on {variant} here, and no difference in stability is shown."
            return [nothing, *_because(evidence, verdict.reason)]
        case Decision.KEEP_PROVISIONALLY if verdict.reason == Reason.BAD_RUNS:
            return [
                f"{capital(keep)} for now.",
                f"{evidence.subject} is {_hidden_loss(evidence)}.",
                *(
                    [f"Look at the runs of both arms on {_seeds(evidence.bad_runs)}."]
                    if evidence.bad_runs_stand_out
                    else []
                ),
            ]
        case Decision.KEEP_PROVISIONALLY if verdict.reason == Reason.FAILS_MORE:
            return [f"{capital(keep)} for now: {_fails_more(evidence)}."]
        case Decision.KEEP_PROVISIONALLY:
            return [f"{capital(keep)} for now.", _diverged_alone(evidence)]
        case Decision.INCONCLUSIVE if verdict.reason == Reason.MAY_BE_SMALL:
            but = f"{evidence.subject} is better ({moved}), but {_tie_but_for(evidence)}."
            return [f"Undecided; {keep} for now.", but]
        case Decision.INCONCLUSIVE:
            return [f"Undecided; {keep} for now."]


def _steadier(evidence: Evidence, subject: str) -> str:
    """``layernorm restores stability``, or which failures alone are rarer."""
    rarer = shown_rarer(evidence.analysis, evidence.variant, evidence.regime, evidence.standing.gained)
    if rarer is None:
        return f"{subject} restores stability"
    return f"{subject} has fewer runs that {FAILING[rarer.failure]}, though not shown to have fewer unstable runs"


def _keep(evidence: Evidence, *, used: bool) -> str:
    """What to do without the variant; *used*: see `used_in`."""
    if not used:
        return f"keep {the_baseline(evidence.analysis.baseline)}"
    return "do not use them" if evidence.of_each else f"do not use {evidence.variant}"


def _tie(evidence: Evidence, verdict: VariantVerdict, *, used: bool) -> list[str]:
    primary, tie = evidence.primary, verdict.tie_break
    keep = _keep(evidence, used=used)
    none = "No difference that matters" + ("" if primary is None else f" on {name_of(primary)}")
    small = []
    if verdict.reason == Reason.REAL_BUT_SMALL and primary is not None:
        small = [f"A difference is real but small: {change(primary)}, {primary.outcome}."]
    if tie is not None and tie.metric is not None and tie.favours is None:
        favoured = f"{metric_name(tie.metric)} favours {evidence.name}"
        return [f"{none}; {favoured}, but {_against(evidence)}: {keep}.", *small]
    if (evidence.broken_guards or evidence.shown_worse) and (tie is None or tie.favours is None):
        return [f"{none}: {keep}; {evidence.name} is {_shown_costs(evidence)}.", *small]
    if tie is None or tie.favours is None:
        rest = "nothing else speaks for a change"
        if tie is not None and tie.unmeasured:
            where = " at best rates" if evidence.regime == TUNED else ""
            rest = f"no tie-breaker that was measured{where} speaks for a change"
            if not tie.asked:
                rest = f"the tie-breaker{'s were' if len(tie.unmeasured) > 1 else ' was'} not measured{where}"
        return [f"{none}, and {rest}: {keep}.", *small]
    favours, advice = tie.favours, keep if used else "keep it"
    if favours == evidence.variant:
        favours, advice = evidence.name, "use it"
    return [f"{none}; {metric_name(tie.metric or '')} favours {favours}: {advice}.", *small]


def _against(evidence: Evidence) -> str:
    """What keeps a tie-breaker from speaking for the variant."""
    costly = evidence.broken_guards or evidence.shown_worse or evidence.hidden_costs
    parts = [f"it is {_shown_costs(evidence)}"] if costly else []
    if evidence.fails_more is not None:
        parts.append(failing(evidence.fails_more, of_each=evidence.of_each))
    if evidence.variant_diverged:
        parts.append(f"it alone diverged on {counted(evidence.variant_diverged, 'seed')}")
    if evidence.variant_missing:
        parts.append(_only_its_runs(evidence))
    parts += [f"{metric_name(metric)} is registered and was not measured" for metric in evidence.unmeasured]
    return "; ".join(parts) or "it alone has no value for some runs"


def _failures(evidence: Evidence) -> list[str]:
    """Runs that failed in either arm, whatever was decided; what few seeds can say where none did is said by `_not_shown`."""
    gain, stability = evidence.gain, evidence.analysis.stability
    if gain is None or stability is None or not gain.reference_unstable + gain.variant_unstable:
        return []
    counts: dict[tuple[int, int], str] = {}  # what fails in the same runs is told once, as the worst that happened
    for part in stability.vector(gain.variant, gain.reference, gain.regime):
        if part.reference_unstable + part.variant_unstable:
            text = failing(part, of_each=evidence.of_each)
            counts.setdefault((part.reference_unstable, part.variant_unstable), text)
    registered = "" if any(g.places for g in (*stability.parts, *stability.gains)) else " (not registered)"
    hint = ["The baseline itself is not stable here."] if evidence.baseline_unstable else []
    return [f"{'; '.join(counts.values())}{registered}.", *hint]


def _seeds_for_margin(evidence: Evidence) -> list[str]:
    standing = evidence.standing
    if standing.non_inferior or not standing.known or evidence.unpaired:
        return []
    seeds = f"{count(standing.seeds_for_margin)} seeds without a failure in either arm"
    return [f"{capital(pairs_of(standing.pairs))} cannot show equal stability; {seeds} can."]


def _setting(evidence: Evidence) -> str:
    """Where a result holds, as far as it is known: of a table nothing is."""
    if evidence.analysis.source == "table":
        return ", in these unpaired runs" if evidence.unpaired else ", in these runs"
    if evidence.analysis.own_trainer:
        return ", at these settings"
    return (
        ", both at their own best learning rates"
        if evidence.regime == TUNED
        else f", at this budget and {given_rates(evidence.analysis, (evidence.regime,))}"
    )


def given_rates(analysis: Analysis, regimes: Collection[str]) -> str:
    """``the given learning rate``; several, where arms or regimes have their own."""
    runs = () if analysis.stability is None else analysis.stability.runs
    rates = {run.lr for run in runs if run.regime in regimes}
    return f"the given learning rate{'' if len(rates) == 1 else 's'}"


def _one_rate(evidence: Evidence) -> str:
    """A gain at one rate may be no more than a rate that suits the change better; tables and own trainers name none."""
    if evidence.analysis.source == "table" or evidence.analysis.own_trainer or evidence.analysis.sweep is not None:
        return ""
    return "Whether this holds at each arm's own best learning rate was not tested; a [sweep] tests it."


def _not_fitted(evidence: Evidence) -> bool:
    """Whether the primary metric of tuned arms is none that is fitted, although the best rates are known."""
    sweep = evidence.analysis.sweep
    return sweep is not None and sweep.knows_best_rate(evidence.variant)


def _needed(evidence: Evidence, needs: Needs) -> list[str]:
    primary = evidence.primary
    match needs.need:
        case Need.PRIMARY_METRIC:
            return ["Measure the primary metric in both arms."]
        case Need.DIRECTION:
            metric = name_of(primary) if primary else "it"
            return [f"Register a primary metric with a better direction; {metric} has none."]
        case Need.SENSITIVE_TASKS:
            return ["More seeds will not help: choose tasks that are sensitive at this scale, or a larger model."]
        case Need.STABLE_TRAINING if evidence.refused:
            return [
                f"Runs diverged, and this study registers that nothing is compared then ([stability] diverged = "
                f'"refuse"): make {evidence.name} and {evidence.analysis.baseline} train stably, or register "survivors".'
            ]
        case Need.STABLE_TRAINING if not evidence.variant_diverged:
            return [f"Make {evidence.name} train stably, or show on a new study of more seeds that it does."]
        case Need.STABLE_TRAINING:
            survived = primary is not None and primary.n > 0
            who = "each of them" if evidence.of_each else evidence.name
            why = (
                "the runs that survived do not outweigh those that diverged"
                if survived
                else "no run of it can be compared"
            )
            return [f"{'First m' if survived else 'M'}ake {who} train stably: {why}."]
        case Need.THREE_PAIRS:
            what = "runs in each arm" if evidence.unpaired else "pairs"
            known = primary.n if primary else 0
            return [f"At least 3 {what} are needed for any inference; there {'is' if known == 1 else 'are'} {known}."]
        case Need.MISSING_RUNS:
            alone = evidence.variant_missing
            others = {missing.seed for missing in primary.missing if missing.seed not in alone} if primary else set()
            which = f"of {evidence.name} on {_seeds(alone)}" if alone and not others else "that are missing"
            return [f"Finish the run{'' if len(alone) == 1 and not others else 's'} {which}, and analyze again."]
        case Need.VARIATION:
            what = "Neither arm varies, so the" if evidence.unpaired else "All deltas are equal, so their"
            return [f"{what} spread is unknown: check that the runs really differ."]
        case Need.SMALLEST_EFFECT:
            return ["No smallest effect is registered for what was tested, so no number of seeds can be given."]
        case Need.BEST_RATES if _not_fitted(evidence):
            return [
                "More seeds will not help: register the validation loss, the perplexity or the bits per byte as the primary "
                "metric of tuned arms.",
                "They are fitted at the best rates.",
            ]
        case Need.BEST_RATES:
            return [
                "More seeds will not help: sweep rates at most a factor of 2 apart, two or more beyond either optimum."
            ]
        case Need.CLOSER_RATES:
            return _closer_rates([(evidence, needs)])
        case Need.FRESH_SEEDS:
            return _fresh_seeds([(evidence, needs)])


def _closer_rates(asked: Sequence[tuple[Evidence, Needs]]) -> list[str]:
    """That fitted best rates are too uncertain, and by how much; of several variants, the least and the most."""
    known = sorted((arm.primary for arm, _ in asked if arm.primary is not None), key=lambda primary: primary.doubt)
    if not known:
        return []
    off = with_unit(_span([number(primary.doubt, 2) for primary in known]), known[0].unit)
    share = "more than" if _beyond_smallest(known[0]) else "much of"
    return [
        f"More seeds will help little: the fits of the best learning rates may be off by {off}, {share} the smallest effect "
        "that matters.",
        "Sweep rates closer together around both optima, two or more on either side.",
    ]


def _beyond_smallest(primary: Comparison) -> bool:
    """Whether the doubt about fitted rates alone exceeds the smallest effect that matters."""
    return primary.doubt > (primary.smallest_effect or 0)


#: A study of so many seeds is none that anyone makes.
MOST_SEEDS: Final = 10_000


def _fresh_seeds(asked: Sequence[tuple[Evidence, Needs]]) -> list[str]:
    """How many seeds would decide, of variants with the same smallest effect; spans where their spreads differ."""
    evidence, needs = asked[0]
    primary = evidence.primary
    if primary is None or primary.smallest_effect is None:
        return []
    runs = "{} and {} runs".format(*primary.arm_sizes) if evidence.unpaired else primary.sample
    rough = f"; an SD from {runs} is only a rough estimate" if primary.n < 10 else ""
    seeds = "fresh runs in each arm" if evidence.unpaired else "fresh seeds"
    spread = "the difference between two runs" if evidence.unpaired else "the deltas"
    sds = [known.primary.delta_sd for known, _ in asked if known.primary is not None]
    spreads = _span([number(sd) for sd in sorted(sd for sd in sds if sd is not None)])
    if primary.told_by_medians:
        return [f"More seeds are unlikely to decide it, because {unstable_means(primary)}."]
    if min(need.seeds_for_difference or MOST_SEEDS for _, need in asked) >= MOST_SEEDS:
        least = _fresh([need.seeds_for_difference for _, need in asked])
        return [
            f"More seeds are unlikely to decide it: with such spread (SD of {spread} {spreads}), a difference of "
            f"{margin_of(primary, primary.smallest_effect)} takes {least} {seeds}."
        ]
    return [
        f"A new study of {_fresh([need.seeds_for_difference for _, need in asked])} {seeds} would detect a difference of "
        f"{margin_of(primary, primary.smallest_effect)} with {level(needs.power)} power; if there is no difference, "
        f"{_fresh([need.seeds_for_equivalence for _, need in asked])} would show that with the same power "
        f"(SD of {spread} {spreads}{rough})."
    ]


def _fresh(seeds: Sequence[int | None]) -> str:
    known = [count(number_of) for number_of in sorted(number_of for number_of in seeds if number_of is not None)]
    return _span([*known, *(["more than a million"] if len(known) < len(seeds) else [])])


def _span(ordered: Sequence[str]) -> str:
    """``22 to 26``; one text where both ends read the same."""
    return ordered[0] if ordered[0] == ordered[-1] else f"{ordered[0]} to {ordered[-1]}"


# --- the whole verdict ----------------------------------------------------------------------------------------


#: What a decision is called in a sentence and in a table.
DECISIONS: Final[Mapping[str, str]] = {
    "adopt": "adopt the variant",
    "adopt-in-regime": "adopt the variant in this regime",
    "adopt-provisionally": "adopt the variant provisionally",
    "trade-off": "trade-off",
    "keep-provisionally": "keep the baseline for now",
    "keep-baseline": "keep the baseline",
    "tie": "tie",
    "inconclusive": "inconclusive",
    "no-verdict": "no verdict",
}
#: The same beside the variant's name.
SHORT_DECISIONS: Final[Mapping[str, str]] = {
    **DECISIONS,
    "adopt": "adopt",
    "adopt-in-regime": "adopt in this regime",
    "adopt-provisionally": "adopt provisionally",
}


@dataclass(frozen=True)
class Sentences:
    """Sentences about one variant, and the same ones about "each" of several."""

    own: tuple[str, ...]
    each: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.own)


def _sentences(compose: Callable[[Evidence], Iterable[str]], evidence: Evidence) -> Sentences:
    return Sentences(tuple(compose(evidence)), tuple(compose(replace(evidence, of_each=True))))


@dataclass(frozen=True)
class VerdictWords:
    """One verdict in sentences; a text is empty where there is nothing to say. *checks*: one for each rule that was asked."""

    reasons: Sentences
    checks: tuple[str, ...]
    recommendation: str  # what to do, the notes, and what it takes to decide
    notes: str
    trade_off: str
    tie_break: str
    needs: str
    depends_on: Sentences  # how much it hangs on few seeds
    more_seeds: str  # what it takes to adopt what is adopted provisionally

    @property
    def why(self) -> str:
        """The reasons as one text."""
        return str(self.reasons)

    @property
    def fragility(self) -> str:
        """How much it hangs on few seeds, as one text."""
        return str(self.depends_on)


def verdict_words(analysis: Analysis, verdict: VariantVerdict, whole: Verdict | None = None) -> VerdictWords:
    """*whole*: the study's verdict, where the others that it holds are known."""
    used = whole is not None and used_in(whole, verdict.regime)
    evidence = gather(analysis, verdict.variant, verdict.regime)
    needs = [] if verdict.needs is None else _needed(evidence, verdict.needs)
    return VerdictWords(
        reasons=_sentences(lambda about: _reasons(about, verdict), evidence),
        checks=tuple(because(evidence, check.reason) for check in verdict.checks),
        recommendation=" ".join([*_advised(evidence, verdict, used=used), *needs]),
        notes=" ".join(_notes(evidence, verdict)),
        trade_off="" if verdict.trade_off is None else _both_sides(evidence),
        tie_break="" if verdict.tie_break is None else _tie_break(evidence, verdict.tie_break),
        needs=" ".join(needs),
        depends_on=_sentences(lambda about: _fragility(about.primary, verdict.fragility), evidence),
        more_seeds=" ".join(_seeds_for_margin(evidence)) if verdict.decision == Decision.ADOPT_PROVISIONALLY else "",
    )


def _reasons(evidence: Evidence, verdict: VariantVerdict) -> Iterator[str]:
    """What the last rule that was asked says, and the tie-breakers."""
    for check in verdict.checks[-1:]:
        yield from _because(evidence, check.reason)
    if verdict.tie_break is not None:
        yield _tie_break(evidence, verdict.tie_break)


def _fragility(primary: Comparison | None, fragility: VerdictFragility | None) -> Iterator[str]:
    """How much the verdict hangs on few seeds."""
    if fragility is None:
        return
    if not fragility.left_out:
        yield "Whether it depends on one seed was not tested: the design has no look with one seed fewer."
    elif not fragility.changes:
        yield f"The decision stays the same without any one of the {count(fragility.left_out)} seeds."
    else:
        by_decision = grouped((other.decision, str(other.seed)) for other in fragility.changes)
        changes = "; ".join(
            f"without {_any_of(seeds)}: {DECISIONS[decision]}" for decision, seeds in by_decision.items()
        )
        yield f"Fragile. {capital(changes)}."
    if fragility.left_out and primary is not None and primary.regime == TUNED:
        yield "The best rates are those fitted on all seeds."
    if fragility.stragglers:
        yield f"Far from the other seeds: {_few(list(map(str, fragility.stragglers)))}."
    effect = None if primary is None else primary.smallest_effect
    if (
        fragility.power is not None
        and fragility.exaggeration is not None
        and fragility.power < 0.8
        and primary is not None
        and effect is not None
    ):
        yield (
            f"A true difference of {margin_of(primary, effect)} would be detected with {_power(fragility.power)} "
            f"power; where it is detected, it is overstated {_exaggeration(fragility.exaggeration)} on average."
        )


def _seeds(seeds: Sequence[Seed]) -> str:
    return f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}"


def _any_of(seeds: Sequence[str]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"any one of the seeds {', '.join(seeds)}"


def _power(power: float) -> str:
    return f"less than {percent(0.01)}" if power < 0.01 else percent(power)


def _exaggeration(times: float) -> str:
    """A factor above ten says only that the study is far too small for the effect."""
    return "more than ten times" if times > 10 else f"{number(times, 2)} times"


@dataclass(frozen=True)
class SharedSentences:
    """Sentences that are true of these verdicts; of more than one, they say "each" where one says its variant's name."""

    verdicts: tuple[VariantVerdict, ...]
    text: str


def told_once(told: Iterable[tuple[VariantVerdict, Sentences]]) -> list[SharedSentences]:
    """What is said of each verdict, sentence by sentence; what is the same of several, up to the variant's name, once."""
    own: dict[tuple[str, str], str] = {}
    sayers: dict[str, list[VariantVerdict]] = {}
    for decided, sentences in told:
        for sentence, each in zip(sentences.own, sentences.each, strict=True):
            own.setdefault((each, decided.variant), sentence)
            sayers.setdefault(each, []).append(decided)
    lines: dict[tuple[tuple[str, str], ...], tuple[list[VariantVerdict], list[str]]] = {}
    for each, verdicts in sayers.items():
        members = tuple((decided.variant, decided.regime) for decided in verdicts)
        variants = {variant for variant, _ in members}
        sentence = own[each, verdicts[0].variant] if len(variants) == 1 else each
        lines.setdefault(members, (verdicts, []))[1].append(sentence)
    place = {key: number for number, key in enumerate(dict.fromkeys(key for keys in lines for key in keys))}
    ordered = sorted(lines.items(), key=lambda line: (max(place[key] for key in line[0]), len(line[0])))
    return [SharedSentences(tuple(verdicts), " ".join(sentences)) for _, (verdicts, sentences) in ordered]


def names_of(verdicts: Sequence[VariantVerdict], every: Sequence[VariantVerdict]) -> str:
    """``layernorm and rmsnorm``; in a study with several regimes ``layernorm and rmsnorm (deep, hot); center (deep)``."""
    if len(verdicts) == len(every) > 3:
        return f"All {count(len(every))}"
    places = grouped((decided.variant, decided.regime) for decided in verdicts)
    if len({decided.regime for decided in every}) > 1:
        alike = grouped((tuple(regimes), variant) for variant, regimes in places.items())
        return "; ".join(f"{listed(names)} ({', '.join(regimes)})" for regimes, names in alike.items())
    return listed(places)


def capital(text: str) -> str:
    """A text that begins a sentence."""
    return text[:1].upper() + text[1:]


def listed(names: Iterable[str], word: str = "and") -> str:
    """``a, b and c``"""
    *most, last = names
    return f"{', '.join(most)} {word} {last}" if most else last


def verdict_lines(told: Sequence[SharedSentences], every: Sequence[VariantVerdict]) -> list[str]:
    """A line for every set of verdicts that share what is said of them."""
    return [f"{names_of(shared.verdicts, every)}: {shared.text}" for shared in told]


def needs_told_once(analysis: Analysis, verdicts: Iterable[VariantVerdict]) -> list[SharedSentences]:
    """What it takes to decide; numbers of seeds for one metric and smallest effect as a span."""
    open_ones = grouped(
        (_same_need(evidence, decided.needs), (decided, evidence, decided.needs))
        for decided in verdicts
        if decided.needs is not None
        for evidence in [gather(analysis, decided.variant, decided.regime)]
    )
    told: list[SharedSentences] = []
    for (need, *_), members in open_ones.items():
        if need in (Need.FRESH_SEEDS, Need.CLOSER_RATES):
            asked = [(evidence, needs) for _, evidence, needs in members]
            texts = _fresh_seeds(asked) if need == Need.FRESH_SEEDS else _closer_rates(asked)
            told += [SharedSentences(tuple(decided for decided, *_ in members), text) for text in texts]
        else:
            told += told_once(
                (decided, _sentences(partial(_needed, needs=needs), evidence)) for decided, evidence, needs in members
            )
    return told


def _same_need(evidence: Evidence, needs: Needs) -> tuple[object, ...]:
    primary = evidence.primary
    if needs.need == Need.CLOSER_RATES and primary is not None:
        return (needs.need, primary.metric, _beyond_smallest(primary))
    if needs.need != Need.FRESH_SEEDS or primary is None:
        return (needs.need,)
    return (
        needs.need,
        primary.metric,
        primary.smallest_effect,
        primary.sample,
        unstable_means(primary) if primary.told_by_medians else None,
        evidence.unpaired,
    )


def recommendations(
    analysis: Analysis, verdict: Verdict, reasons: Mapping[tuple[str, str], Sentences] | None = None
) -> list[str]:
    """What to do with every variant and regime, then what it takes to decide; what holds for several of them, once.
    What is registered comes first; beside it, what is exploratory is marked.

    *reasons*: what was said already, by variant and regime, and is not repeated.
    """
    if not verdict.verdicts:
        return ["There is no variant beside the baseline, so there is nothing to decide."]
    advised = []
    for decided in verdict.verdicts:
        known = (reasons or {}).get((decided.variant, decided.regime))
        evidence, used = gather(analysis, decided.variant, decided.regime), used_in(verdict, decided.regime)
        advice = _sentences(partial(_advised, verdict=decided, used=used), evidence)
        new = [i for i, sentence in enumerate(advice.own) if known is None or sentence not in known.own]
        advised.append((decided, Sentences(tuple(advice.own[i] for i in new), tuple(advice.each[i] for i in new))))
    advice_lines: list[str] = []
    by_label = grouped((decided.label, (decided, sentences)) for decided, sentences in advised)
    for label in sorted(by_label, key=lambda label: label != "registered"):
        mine, lines = by_label[label], dict[tuple[VariantVerdict, ...], list[str]]()
        for shared in (*told_once(mine), *needs_told_once(analysis, [decided for decided, _ in mine])):
            lines.setdefault(shared.verdicts, []).append(shared.text)
        lead = ", exploratory" if label == "exploratory" and len(by_label) > 1 else ""
        for members, texts in lines.items():
            advice_lines.append(f"{names_of(members, verdict.verdicts)}{lead}: {' '.join(texts)}")
    leads = [decided.label == "exploratory" for decided in verdict.verdicts]
    if all(leads) and (why := why_not_registered(analysis)):
        advice_lines.append(
            f"Criteria were registered, but {why}, so every verdict here is exploratory: treat it as a lead to be tested "
            "again."
        )
    elif any(leads):
        what = "Nothing of this was" if all(leads) else "Not all of this was"
        which = "it as a lead" if all(leads) else "the exploratory verdicts as leads"
        advice_lines.append(f"{what} registered beforehand: treat {which} to test again.")
    return advice_lines


#: What keeps a registration from holding.
_BROKEN: Final[Mapping[DeviationCode, str]] = {
    DeviationCode.TAMPERED_PLAN: "plan.lock was changed after it was sealed",
    DeviationCode.ALTERED_RECORDS: "records are not as they were sealed (see the deviations)",
    DeviationCode.NOT_A_LOOK: "this is not a planned look",
    DeviationCode.EXTENDED: "seeds were added that no design had planned",
}


def why_not_registered(analysis: Analysis) -> str:
    """Why criteria that a plan registered do not count as such, in clauses; nothing where they do, or none were."""
    codes = {deviation.code for deviation in analysis.deviations}
    return (
        "" if DeviationCode.NO_CRITERIA in codes else " and ".join(_BROKEN[code] for code in _BROKEN if code in codes)
    )


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
    fitted = {tuned.variant for tuned in sweep.minima if tuned.minimum is not None and tuned.minimum.lr is not None}
    if rate.variant in fitted:
        return "on the selection seeds, at the edge of the sweep; fitted to the judging seeds, it lies inside"
    return "at the edge of the sweep: a better rate may lie beyond it"


def _tuned(sweep: SweepAnalysis) -> list[str]:
    if sweep.tuned_at is None:
        return []
    reasons = {tuned.variant: _FITS[tuned.minimum.status if tuned.minimum else "missing"] for tuned in sweep.minima}
    why = "; ".join(f"{variant}: {text}" for variant, text in reasons.items() if text)
    if sweep.tuned_at == "fitted-minima":
        fits = {tuned.variant: tuned.minimum for tuned in sweep.minima if tuned.minimum is not None}
        shown = ", ".join(
            f"{variant} {number(fit.lr, 3)} ({number(fit.doubt, 2)})"
            for variant, fit in fits.items()
            if fit.lr is not None
        )
        unknown = f" Not known: {why}." if why else ""
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


def ledger_sentence(plan: Plan, runs: Iterable[Run], pairs: int) -> str:
    """What *pairs* of `check_ledger` means: in what they match, how they lay on devices, and what was not compared."""
    ended = [(run.record, run.result) for run in runs if run.record is not None and run.result is not None]
    early = _early(result.status == "diverged" for _, result in ended)
    if any(record.recipe is None for record, _ in ended):
        return f"Ledger: {ledger_words(reported_inputs(plan, {result.id: result for _, result in ended}))}{early}"
    layouts = dict.fromkeys(words for record, result in ended for words in layout_words(record, result))
    drift = any(record.drift or any(start.drift for start in result.history) for record, result in ended)
    check = planned_inputs(plan, pairs)
    same = _made_alike(check)
    last = same.pop() if drift else "versions"
    matching = f"{', '.join([*same, *([] if drift else ['layout'])])} and {last}"
    made = f"{several(pairs, 'variant-baseline pair')} {_match(pairs)} in {matching}"
    text = f"Ledger: {made}.{early} Layout: {'; '.join(layouts)}.{_differ(check)}"
    if drift:
        text += " Drift was accepted, so layout and versions were not compared; the history of these runs records it."
    return text


def layout_words(record: RunRecord, result: Result) -> list[str]:
    """How one run lay on its devices, in every start that its weights go back to, and the sequences of one pass there."""
    batch, micro_batch = record.training.batch, record.training.micro_batch
    spread: list[tuple[str, int, bool]] = [
        (start.parallel, start.ranks, start.activation_checkpointing) for start in result.history
    ]
    layouts = []
    for parallel, ranks, again in dict.fromkeys(spread or [record.execution.layout()]):
        where = (
            "whole runs in one process"
            if parallel == "none"
            else f"{parallel} over {several(ranks, 'process', 'processes')}"
        )
        one_pass = several(micro_batch or batch // ranks, "sequence")
        layouts.append(f"{where}, {one_pass} per pass" + (", activations computed again" if again else ""))
    return layouts
