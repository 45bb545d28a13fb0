"""Which runs failed, by arm and by pair."""

from __future__ import annotations

from collections.abc import Sequence

from ablationlab.analysis import wording
from ablationlab.core.format import (
    DASH,
    count,
    number,
    p_value,
    percent,
    setting,
)
from ablationlab.records.analysis import Analysis, Failure
from ablationlab.report.table import Cell, Cells, Column, Table
from ablationlab.report.tables.setup import regime_column


def stability_table(analysis: Analysis) -> Table | None:
    """Unstable runs per arm, the largest spike score, and the gain over the baseline."""
    stability = analysis.stability
    if stability is None:
        return None
    times = {(timed.variant, timed.regime): timed for timed in stability.survival}
    failed, ended = any(arm.failed for arm in stability.arms), any(arm.diverged_at for arm in stability.arms)
    timed = any(timed.p is not None for timed in stability.survival)
    rows: list[Cells] = []
    spikes = any(run.spike_score is not None for run in stability.runs)
    for arm in stability.arms:
        gain = stability.gain(arm.variant, analysis.baseline, arm.regime)
        text = DASH
        if gain is not None and gain.estimate is not None:
            text = f"{percent(gain.estimate)} ({wording.printed_gain_interval(gain)})"
        word = DASH if arm.unstable is None else "unstable" if arm.unstable else "stable"
        survival = times.get((arm.variant, arm.regime))
        rows.append(
            {
                regime_column(analysis): Cell.name(arm.regime),
                Column("variant", "Arm"): Cell.name(arm.variant),
                Column("runs", "Runs", "right"): arm.runs,
                Column("diverged", "Diverged", "right"): arm.diverged,
                Column("failed", "Worse than start", "right", printed=failed): arm.failed,
                Column("spiked", "Spiked", "right", printed=spikes): arm.spiked,
                Column("unstable_runs", printed=False): arm.unstable_runs,
                Column("unstable", "Arm is"): Cell.of(arm.unstable, word),
                Column("largest_spike_score", "Largest spike score", "right", printed=spikes): Cell.of(
                    arm.largest_spike_score, number
                ),
                Column("gain", "Stability gain", "right"): Cell.of(None if gain is None else gain.estimate, text),
                Column("gain_low", printed=False): None if gain is None else gain.low,
                Column("gain_high", printed=False): None if gain is None else gain.high,
                Column("gain_p", printed=False): None if gain is None else gain.p,
                Column("gain_p_adjusted", "Corrected p", "right"): Cell.of(
                    None if gain is None else gain.p_adjusted, p_value
                ),
                Column("diverged_at", "Diverged at step", "right", printed=ended): Cell.of(
                    " ".join(map(str, arm.diverged_at)), _steps(arm.diverged_at)
                ),
                Column("survival_p", "Earlier p", "right", printed=timed): Cell.of(
                    None if survival is None else survival.p, p_value
                ),
            }
        )
    note = ""
    if stability.survival:
        kinds = dict.fromkeys(gain.failure for gain in (*stability.parts, *stability.gains) if gain.registered)
        registered = (
            f"Registered, by exact McNemar tests: runs that {'; that '.join(map(_failed, kinds))}."
            if kinds
            else "Nothing is registered."
        )
        note = (
            f"{registered} Earlier p asks whether runs diverge earlier or more often than {analysis.baseline}'s of the same "
            "seeds (exact paired log-rank test); it is exploratory and decides nothing."
        )
    began = any(run.loss is not None and run.initial_loss is not None for run in stability.runs)
    rules = ["diverged", *(["ended worse than it began"] if began else [])]
    rules += [f"has a spike score above {setting(stability.threshold)}"] if spikes else []
    about = (
        f"A run is unstable if it {', '.join(rules[:-1])}{',' if len(rules) > 2 else ''}"
        f"{' or ' if len(rules) > 1 else ''}{rules[-1]}; the gain is the share of unstable runs of {analysis.baseline} minus "
        f"the arm's own. {wording.gain_intervals(stability.gains)}"
    )
    return Table.of("stability", "Stability.", rows, note, about)


def _steps(steps: Sequence[int]) -> str:
    """Each of a few steps, the first and the last of many."""
    known = sorted(set(steps))
    return ", ".join(map(count, known)) if len(known) <= 3 else f"{count(known[0])} to {count(known[-1])}"


def _failed(kind: Failure) -> str:
    return "were unstable" if kind == Failure.UNSTABLE else wording.FAILURES[kind]
