"""The sentences of the page that stand outside tables and charts, each from a fact of these results; empty without one."""

from __future__ import annotations

from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

from ablationlab.analysis.wording import corrections as adjusted_means
from ablationlab.analysis.wording import name_of, spikes_known, why_not_registered
from ablationlab.core.format import count, count_word, number, part, percent, setting
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import LedgerInput
from ablationlab.records.metrics import metric_name
from ablationlab.records.results import not_kept
from ablationlab.report.charts.stability import calm
from ablationlab.report.naming import shared_inputs
from ablationlab.stats.curves import POINTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ablationlab.records.results import Results, Run


#: A loss within this share of an n-gram model's is called about as good.
_CLOSE = 0.02
#: Pairing that removes less of a variance, 0 % as it is printed, did not help.
_REMOVED = 0.005


def registered(results: Results) -> bool:
    """Whether anything was judged by criteria that were sealed before training."""
    verdicts = results.verdict.verdicts if results.verdict is not None else ()
    return results.plan is not None and any(verdict.label == "registered" for verdict in verdicts)


def unpaired(results: Results) -> bool:
    """Whether no comparison pairs runs by their seeds."""
    return results.analysis is not None and results.analysis.unpaired_runs > 0


def rules(results: Results) -> str:
    """When the rules of the verdict were fixed, and which metric decides."""
    if results.plan is None:
        text = "The runs come from a table, so nothing was registered before training"
    elif results.analysis is not None and not registered(results) and (why := why_not_registered(results.analysis)):
        text = f"Criteria were registered, but {why}, so nothing counts as registered"
    elif not results.sealed:
        text = "plan.lock was changed after it was sealed, so nothing counts as registered"
    elif not registered(results):
        text = "Nothing that is judged here was registered before training"
    else:
        text = "The criteria were sealed before training"
    main = _primary(results)
    return f"{text}; {main} decides." if main else f"{text}."


def corrections(results: Results) -> str:
    """What "adjusted" means here."""
    return "" if results.analysis is None else adjusted_means(results.analysis)


def _primary(results: Results) -> str:
    analysis, primary = results.analysis, results.primary
    if primary is None:
        return ""
    compared = analysis.comparisons if analysis is not None else ()
    whole = [comparison for comparison in compared if comparison.metric == primary]
    return name_of(whole[0]) if whole and whole[0].averaged else metric_name(primary)


def pairs(results: Results) -> str:
    """What both runs of a pair have in common, as far as it was checked."""
    if unpaired(results):
        return "The runs of two arms are not pairs: their means are compared, by Welch's test."
    ledger = results.analysis.ledger if results.analysis is not None else None
    if ledger is None:
        return "Runs are paired by their seed. What else both runs of a pair share is not known."
    parts = ["the seed", *(f"the {name}" for name in shared_inputs(results))]
    text = f"Both runs of a pair share {_listed(parts)}"
    if ledger.not_reported:
        return f"{text}. Not reported by the trainer, so not checked: {', '.join(ledger.not_reported)}."
    also: list[str] = [difference.name for difference in ledger.differs]
    changed = {name for name in results.variants if name != results.baseline}
    every = all(set(difference.variants) >= changed for difference in ledger.differs)
    some = f", and {'' if every else 'some pairs '}also in {_listed(also)}" if also else ""
    return f"{text}. They differ in what the variant declares{some}: see Controls."


def pairing(results: Results) -> str:
    """How much of the primary difference's variance pairing removed, by regime and variant."""
    if results.analysis is None or results.primary is None:
        return ""
    known = [
        comparison
        for comparison in results.analysis.comparisons
        if comparison.metric == results.primary
        and comparison.reference == results.baseline
        and comparison.task is None
        and comparison.variance_reduction is not None
    ]
    if not known or len(known) > 4:
        return ""
    several = len(results.regimes) > 1
    helped, failed = [], []
    for regime, comparisons in grouped((comparison.regime, comparison) for comparison in known).items():
        where = f" in regime {regime}" if several else ""
        removed = [(c.variant, c.variance_reduction or 0.0) for c in comparisons]
        shares = [f"{percent(share)} ({variant})" for variant, share in removed if share >= _REMOVED]
        helped += [f"{_listed(shares)}{where}"] if shares else []
        without = [variant for variant, share in removed if share < _REMOVED]
        failed += [f"{_listed(without)}{where}"] if without else []
    name = name_of(known[0])
    text = f"Pairing by seed removed {'; '.join(helped)} of the variance of the difference in {name}." if helped else ""
    not_helped = f"In {name}, pairing by seed did not help for {'; '.join(failed)}." if failed else ""
    return " ".join(filter(None, (text, not_helped)))


def _listed(parts: list[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]


def curves(results: Results) -> str:
    """What is drawn along training, and how far simple models of the same text get."""
    if results.plan is None:
        return "What the table has along training."
    if results.own_trainer:
        return "What the trainer logged along training."
    drawn = "Loss" if no_curves(results) else "Loss and gradient norm"
    return " ".join(filter(None, (f"{drawn} along training.", ngrams(results))))


def no_curves(results: Results) -> str:
    """That metrics.jsonl was left out, and what is drawn in its place."""
    left_out = not_kept(results.runs).get("metrics.jsonl", ())
    if not left_out:
        return ""
    runs = part(len(left_out), results.ended)
    text = f"Not kept, to save room: metrics.jsonl of {runs} runs that ended, which has the training curves."
    if any(map(_curve_in_result, results.compared)):
        text += f" The loss is drawn from the thinned curve in each result.json, at most {POINTS} points of a run."
        text += " Not drawn: what that file lacks, such as the gradient norm."
    return text


def _curve_in_result(run: Run) -> bool:
    return run.result is not None and run.result.course.curve is not None


def ngrams(results: Results) -> str:
    """The baseline's loss beside that of n-gram models of the same text."""
    losses = results.plan.reference_losses if results.plan is not None else {}
    models = {name: loss for name, loss in losses.items() if name != "uniform"}
    ends = _ends(results, results.baseline, results.regimes[0])
    if not models or ends is None:
        return ""
    shown = _listed([f"{number(loss, 4)} ({name})" for name, loss in models.items()])
    where = f" in regime {results.regimes[0]}" if len(results.regimes) > 1 else ""
    reach = f"N-gram models of the same text reach {shown} nats/token."
    return f"{reach} The baseline ends at {ends.text}{where}: {_rank(ends.loss, models)}."


class _Ends(NamedTuple):
    """Where the runs of an arm end that did not diverge, and in words."""

    loss: float
    text: str


def _ends(results: Results, variant: str, regime: str) -> _Ends | None:
    """The mean final loss of an arm's runs that have one; the median where a run was unstable, as few may make the mean."""
    runs = (run for run in results.compared if (run.variant, run.regime) == (variant, regime))
    finals = [loss for run in runs if (loss := run.metric("validation_loss")) is not None]
    if not finals:
        return None
    stability = results.analysis.stability if results.analysis is not None else None
    known = None if stability is None else stability.arm(variant, regime)
    if known is not None and known.unstable_runs:
        return _Ends(median(finals), f"a median of {number(median(finals), 4)}")
    return _Ends(fmean(finals), number(fmean(finals), 4) + (" on average" if len(finals) > 1 else ""))


def _rank(ends: float, models: Mapping[str, float]) -> str:
    """Which n-gram model a loss is as good as, or better than."""
    close = [name for name, loss in models.items() if abs(ends - loss) < _CLOSE * loss]
    beaten = [name for name, loss in models.items() if ends < loss and name not in close]
    if close:
        return f"about as good as a {close[-1]} table"
    return f"better than a {beaten[-1]} table" if beaten else f"worse than a {next(iter(models))} table"


def comparisons(results: Results) -> str:
    """How arms were compared, and what the labels mean."""
    made = results.analysis.comparisons if results.analysis is not None else ()
    text = "Each variant is compared with its reference"
    text += ", by the means of both arms." if unpaired(results) else ", paired by seed."
    if any(comparison.label == "registered" for comparison in made):
        asked = {comparison.id for comparison in made if comparison.label == "registered"}
        shared = any(comparison.shares_test_of in asked for comparison in made if comparison.id not in asked)
        but = ", but for metrics that follow from a registered one and share its test" if shared else ""
        return (
            f"{text} Registered comparisons were fixed in the sealed plan. All others are exploratory and have their own "
            f"correction{but}."
        )
    return f"{text} None was registered, so all are exploratory."


def stability(results: Results) -> str:
    """When a run counts as unstable here."""
    analysis = results.analysis
    if analysis is None or analysis.stability is None:
        return ""
    if not spikes_known(analysis):
        return (
            "A run counts as unstable if it diverged. Nothing is known of spikes: there is no curve to read them from."
        )
    worse = "off" if results.plan is None else results.plan.study.stability.worse_than_start
    third, runs = "", analysis.stability.runs
    if worse != "off" and any(run.loss is not None and run.initial_loss is not None for run in runs):
        third = f", ended worse than it began (final loss above {setting(worse)} times its first loss)"
    rule = (
        f"A run is unstable if it diverged{third}, or has a spike score above {setting(analysis.stability.threshold)}."
    )
    if not runs or not calm(results):
        return rule
    none, others = f"{rule} None of the {count(len({run.run for run in runs}))} runs", analysis.rest_of_sweep
    if not others:
        return f"{none} was."
    found = sum(bool(run.unstable) for run in others)
    were = f"{count_word(found)} {'was' if found == 1 else 'were'}"
    rest = f"of the other {count(len(others))} runs of the sweep, {were if found else 'none was'}"
    return f"{none} that are compared was; {rest}."


def evaluation(results: Results) -> str:
    """What was evaluated."""
    analyzed = results.analysis.evaluation if results.analysis is not None else None
    if analyzed is None or not analyzed.tasks:
        return ""
    names = dict.fromkeys(task.task.name for task in analyzed.tasks)
    dull = dict.fromkeys(task.task.name for task in analyzed.tasks if not task.sensitivity.sensitive)
    text = f"{count(len(names))} {'task' if len(names) == 1 else 'tasks'}."
    if dull:
        named = ", ".join(dull)
        text += f" In some or all settings these are not shown to tell models apart, and decide nothing there: {named}."
    return text


def efficiency(results: Results) -> str:
    """How many tokens each variant needs for the baseline's loss, where the curves say so."""
    readings = results.analysis.readings if results.analysis is not None else None
    needs = [
        reading
        for reading in (readings.readings if readings is not None else ())
        if reading.kind == "efficiency" and reading.estimate is not None
    ]
    if not needs or len(needs) > 6:
        return ""
    by_regime: dict[str, list[str]] = {}
    for reading in needs:
        interval = "" if reading.low is None else f" ({number(reading.low)} to {number(reading.high)})"
        by_regime.setdefault(reading.regime, []).append(f"{reading.variant} {number(reading.estimate)} times{interval}")
    named = len(results.regimes) > 1
    told = "; ".join(f"{f'in {regime}, ' if named else ''}{_listed(parts)}" for regime, parts in by_regime.items())
    text = f"Tokens that it takes to the same loss, in those of {results.baseline}: {told}."
    return f"{text} This is exploratory, and not corrected for several readings."


def budget(results: Results) -> str:
    """What the table of budgets shows: of the user's own trainer, only what it reported and the ledger compared."""
    if not results.own_trainer:
        short = any(run.state == "diverged" for run in results.runs)
        takes = "is planned to cost (runs that diverged ended earlier)" if short else "costs"
        return f"What one run of each arm {takes}, and the settings that its variant declares to change."
    ledger = results.analysis.ledger if results.analysis is not None else None
    shared = () if ledger is None else ledger.shared
    costs = (LedgerInput.STEPS, LedgerInput.TOKENS, LedgerInput.FLOPS)
    equal, open_ = ([name for name in costs if (name in shared) is wanted] for wanted in (True, False))
    text = "The settings that each variant declares to change. "
    text += f"By the trainer's own report, both runs of every pair have equal {', '.join(equal)}. " if equal else ""
    return text + (f"Not known to be equal: {', '.join(open_)}." if open_ else "")


def sources(results: Results) -> str:
    """Where the page's numbers come from."""
    files = "Numbers come from analysis.json and verdict.json"
    if results.plan is None:
        return f"{files}." if not results.table_runs else f"{files}; curves from curves.parquet."
    if results.ended > len(not_kept(results.runs).get("metrics.jsonl", ())):
        return f"{files}; charts of single runs from metrics.jsonl."
    return f"{files}; curves from result.json." if any(map(_curve_in_result, results.compared)) else f"{files}."
