"""The analysis, the verdict, an item comparison and a power plan, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ablationlab.analysis.wording import amount, hypothesis_lines, name_of, number, share
from ablationlab.records.analysis import Analysis, Comparison, ItemComparison, StabilityAnalysis
from ablationlab.records.verdict import Verdict
from ablationlab.report.terminal.base import table
from ablationlab.report.terminal.sweeps import sweep_view
from ablationlab.stats.results import Caveat, Interval

_OTHER_METHODS = ("cannot-reach-alpha", "undercoverage")
#: Columns of a terminal from which on the comparisons are shown whole.
_WIDE = 150
#: Exploratory comparisons that are listed unasked.
MOST_EXPLORATORY = 40


def analysis_view(
    analysis: Analysis, verdict: Verdict, *, everything: bool = False, width: int = 200
) -> Iterator[RenderableType]:
    """What a reader needs first: what was registered, then the rest, then stability, deviations and the verdict.

    A narrow terminal is spared the columns that analysis.json has anyway.
    """
    wide = width >= _WIDE
    registered = [one for one in analysis.comparisons if one.label == "registered" or one.role is not None]
    others = [one for one in analysis.comparisons if not (one.label == "registered" or one.role is not None)]
    if registered:
        title = _title(analysis, registered)
        yield _comparisons(analysis, title, registered, everything, wide)
        yield ""
    shown = others if everything or len(others) <= MOST_EXPLORATORY else _first(analysis, others)
    if shown:
        yield _comparisons(analysis, "Exploratory comparisons (not registered)", shown, everything, wide)
    if len(shown) < len(others):
        left = len(others) - len(shown)
        yield Text(f"{left} more exploratory comparisons: --all shows them; analysis.json and statistics.md have them.")
    if others:
        yield ""
    yield _legend(analysis)
    if analysis.stability is not None:
        yield ""
        yield _stability(analysis.stability)
    yield from sweep_view(analysis)
    notes = _notes(registered, everything) or _notes(others, everything)
    if notes:
        yield _lines("Mind", notes)
    deviations = [deviation.text for deviation in analysis.deviations]
    yield _lines("Deviations from the registration", deviations or ["none found"])
    if analysis.evaluation is not None and analysis.evaluation.notes:
        yield _lines("Scores of tasks", analysis.evaluation.notes)
    if analysis.ledger is not None:
        yield _lines("Ledger", [analysis.ledger.text])
    yield ""
    yield from verdict_view(analysis, verdict)


def verdict_view(analysis: Analysis, verdict: Verdict) -> Iterator[RenderableType]:
    """The decisions, the hypotheses and what to do."""
    yield _verdicts(analysis, verdict)
    if verdict.hypotheses:
        yield _lines("Hypotheses", hypothesis_lines(verdict.hypotheses))
    yield _lines("Recommendation", verdict.recommendation.split("\n"))


def _first(analysis: Analysis, others: Sequence[Comparison]) -> list[Comparison]:
    """Of many: what is asked of the metric that decides, wherever it was not registered."""
    return [one for one in others if one.metric == analysis.primary and one.task is None]


def _title(analysis: Analysis, found: Sequence[Comparison]) -> str:
    if analysis.source == "table":
        return "The question stated on the command line (exploratory: nothing was registered)"
    if all(one.label == "exploratory" for one in found):
        return "Criteria of the plan, exploratory: the registration does not hold (see deviations)"
    return "Registered comparisons"


def _comparisons(analysis: Analysis, title: str, found: Sequence[Comparison], everything: bool, wide: bool) -> Table:
    made = [_cells(one, everything) for one in found]
    hidden = {*(() if wide else ("reference", "variant", "p", "caveats")), *(() if everything else ("role",))}
    hidden |= {"regime"} if len(analysis.regimes) == 1 else set()
    columns = [name for name in made[0] if name not in hidden]
    rows = [[cells[name] for name in columns] for cells in made]
    return table(title, columns, rows, ["n", "reference", "variant", "delta", "interval", "p", "adjusted p"])


def _cells(one: Comparison, everything: bool) -> dict[str, str]:
    return {
        "metric": name_of(one),
        "regime": one.regime,
        "contrast": f"{one.variant} - {one.reference}",
        "n": _pairs(one),
        "reference": _mean(one.reference_mean, one.reference_sd),
        "variant": _mean(one.variant_mean, one.variant_sd),
        "delta": amount(one, one.delta),
        "interval": _interval(one, one.main_interval),
        "p": _p(one.p),
        "adjusted p": _p(one.p_adjusted),
        "outcome": one.outcome.replace("-", " "),
        "equivalent": _equivalent(one),
        "role": one.role or "",
        "caveats": ", ".join(dict.fromkeys(caveat.code for caveat in _important(one, everything))),
    }


def _pairs(one: Comparison) -> str:
    return str(one.n) if one.n == one.planned_pairs else f"{one.n} of {one.planned_pairs}"


def _mean(mean: float | None, sd: float | None) -> str:
    if mean is None:
        return "-"
    return f"{mean:.4g}" + ("" if sd is None else f" ± {sd:.2g}")


def _interval(one: Comparison, interval: Interval | None) -> str:
    if interval is None or interval.low is None:
        return "none" if interval is None else f"none ({interval.status})"
    return f"[{amount(one, interval.low)}, {amount(one, interval.high)}]"


def _p(p: float | None) -> str:
    return "-" if p is None else "<0.0001" if p < 1e-4 else f"{p:.4f}" if p < 0.01 else f"{p:.3f}"


def _equivalent(one: Comparison) -> str:
    tost = one.equivalence
    if tost is None:
        return ""
    word = "?" if tost.equivalent is None else "yes" if tost.equivalent else "not shown"
    return f"{word} (±{tost.bounds[1]:g})"


def _important(one: Comparison, everything: bool) -> list[Caveat]:
    """Caveats about the pairs, and about the interval and the test that decide; the rest stand in analysis.json."""
    return [c for c in one.caveats if everything or c.about in ("", one.test, one.interval)]


def _notes(found: Sequence[Comparison], everything: bool) -> list[str]:
    texts = [caveat.text for one in found for caveat in _important(one, everything)]
    # What the other methods cannot claim is said once, so that nobody picks the smallest p.
    texts += [c.text for one in found if one.n >= 3 for c in one.caveats if c.code in _OTHER_METHODS]
    return list(dict.fromkeys(texts))


def _legend(analysis: Analysis) -> Text:
    level = next((one.main_interval.level for one in analysis.comparisons if one.main_interval), 0.95)
    methods = sorted({f"{one.interval} interval, {one.test} test" for one in analysis.comparisons})
    return Text(
        f"delta = variant - reference over pairs of one seed ({'; '.join(methods)}; {level:.0%} intervals, not adjusted for "
        "multiplicity). Adjusted p is over the family: per metric family, all variants, regimes and tasks. Metrics tested as "
        "logarithms show a change in %, of geometric means. Every method, effect size and caveat is in analysis.json."
    )


def _stability(found: StabilityAnalysis) -> Table:
    gains = {(gain.variant, gain.regime): gain for gain in reversed(found.gains)}
    rows = []
    for arm in found.arms:
        gain = gains.get((arm.variant, arm.regime))
        shown = "" if gain is None else f"{share(gain.estimate)} ({share(gain.low)} to {share(gain.high)})"
        score = number(arm.largest_spike_score)
        against = "" if gain is None else gain.reference
        verdict = "-" if arm.unstable is None else "unstable" if arm.unstable else "stable"
        rows.append(
            (arm.regime, arm.variant, arm.runs, arm.diverged, arm.failed, arm.spiked, score, verdict, shown, against)
        )
    columns = [
        "regime",
        "variant",
        "runs",
        "diverged",
        "worse than start",
        "spiked",
        "largest spike score",
        "arm",
        "stability gain",
        "over",
    ]
    rule = f"it diverged, ended worse than it began, or its spike score is above {found.threshold:g}"
    return table(f"Stability (a run is unstable if {rule})", columns, rows, columns[2:7])


def _verdicts(analysis: Analysis, verdict: Verdict) -> Table:
    rows = [(one.regime, one.variant, one.decision.upper(), one.rule, one.label, one.why) for one in verdict.verdicts]
    title = f"Verdict on {verdict.primary or 'nothing'} against {analysis.baseline}"
    return table(title, ["regime", "variant", "decision", "rule", "label", "why"], rows, ["rule"])


def _lines(title: str, lines: Sequence[str]) -> Text:
    text = Text(f"\n{title}\n", style="bold")
    text.append("\n".join(f"  {line}" for line in lines), style="not bold")
    return text


def items_view(found: ItemComparison) -> Iterator[RenderableType]:
    """Per task and macro: delta, intervals over items, seeds and both, p-values."""
    rows = []
    for task in found.tasks:
        rows.append(
            (
                f"{task.task} ({task.metric})",
                task.items,
                f"{task.reference_mean:.4f}",
                f"{task.variant_mean:.4f}",
                f"{task.delta:+.4f}",
                _over_items(task.item_intervals),
                _bounds(task.seed_interval),
                _bounds(task.crossed),
                " ".join(_p(test.p) for test in task.mcnemar.values()) or "-",
                _p(task.p),
                _p(task.p_adjusted),
                ", ".join(dict.fromkeys(caveat.code for caveat in task.caveats)),
            )
        )
    rows.append(
        (
            "macro average",
            sum(task.items for task in found.tasks),
            "",
            "",
            f"{found.macro_delta:+.4f}",
            _over_items(found.macro_item_intervals),
            _bounds(found.macro_seed_interval),
            _bounds(found.macro_crossed),
            "",
            _p(found.macro_seed_p),
            "",
            "",
        )
    )
    columns = ["task", "items", found.reference, found.variant, "delta", "over items", "over seeds (t)", "crossed"]
    columns += ["McNemar p", "p", "adjusted p", "caveats"]
    title = f"{found.variant} - {found.reference}, {len(found.seeds)} seed(s)"
    yield table(title, columns, rows, columns[1:11])
    tests = ", ".join(dict.fromkeys(task.p_test for task in found.tasks))
    yield Text(
        f"delta = {found.variant} - {found.reference}, paired item by item. p: {tests}; adjusted by {found.correction} over "
        "the tasks. Over items: these trained models on other items (range over seeds where there are several). "
        "Over seeds: retrained models on these items. Crossed: both."
    )
    texts = [caveat.text for task in found.tasks for caveat in task.caveats]
    texts += [caveat.text for caveat in found.caveats]
    texts += [
        f"{task.task}: {task.needs_items:,} items would show the smallest effect in one pair of models (80 % power)."
        for task in found.tasks
        if task.needs_items is not None
    ]
    if texts:
        yield _lines("Mind", list(dict.fromkeys(texts)))


def _bounds(interval: Interval | None) -> str:
    if interval is None or interval.low is None or interval.high is None:
        return "-"
    return f"{interval.low:+.4f} to {interval.high:+.4f}"


def _over_items(intervals: dict[str, Interval]) -> str:
    if len(intervals) == 1:
        return _bounds(next(iter(intervals.values())))
    lows = [one.low for one in intervals.values() if one.low is not None]
    highs = [one.high for one in intervals.values() if one.high is not None]
    return f"{min(lows):+.4f} to {max(highs):+.4f}" if lows and highs else "-"
