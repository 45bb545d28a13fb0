"""What docs/records-of-a-board.md rests on: the records of a public board, from the curves in tests/analysis/fixtures/board.

The board accepts a result if (3.28 - mean) √n >= 0.004, and tells two apart if (difference of their losses + difference of
their steps x 0.0045 / 100) / √(1/n + 1/m) >= 0.004: a z-test at p < 0.001 with a known SD of 0.0013. Here every entry and
every record beside the one before it is judged by that rule and by Welch's test with the runs' own noise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Final, Literal

import numpy as np
import pandas as pd

import ablationlab
from ablationlab import stats
from ablationlab.analysis import TableOptions, read_table
from ablationlab.records.analysis import Comparison
from ablationlab.records.table_curves import TableRun
from ablationlab.stats.significance import adjust

REPOSITORY: Final = Path(__file__).parents[2]
DATA: Final = REPOSITORY / "tests" / "analysis" / "fixtures" / "board"
TARGET: Final = 3.28
#: The noise of a run, which the board takes as known, what it asks for, and what it takes a step to be worth.
NOISE, ASKED, STEP = 0.0013, 0.004, 0.0045 / 100
#: The two-sided level that the board's rule has, and ours.
BOARD_ALPHA, ALPHA = 0.002, 0.05
FEWEST: Final = 3
#: At equal steps that are no farther than this from the declared ones.
NEAR: Final = 50
#: Of one optimizer (Muon, #12) the logs have two schedules: what is planned to be shorter by 200 steps is at 3.29 earlier.
LONG, SHORT, BOTH_REACH = "1bd8db7a-f3a3-4195-856d-cab7e0816443", "478c0427-06ce-4952-bc0a-7e2dfaea29b6", 3.29
#: Which logs of a folder were submitted, where it has others too.
SUBMITTED: Final = {
    16: lambda row: row.run == "stdout",
    19: lambda row: row.group == "b1095_sh090",
    23: lambda row: row.steps == 3090,
    32: lambda row: row.group == "code_logs",
    44: lambda row: row.run.str.startswith("H100"),
}


@dataclass(frozen=True)
class Entry:
    """*losses*: at the declared step, a run each. *steps*: (estimate, low, high) at which the mean loss is 3.28; None where
    it is not there by the last step, or was before the first."""

    number: int
    date: str
    declared: int
    record: bool
    stated_mean: float
    stated_runs: int
    losses: tuple[float, ...]
    steps: tuple[float | None, float | None, float | None]

    @property
    def mean(self) -> float:
        return float(np.mean(self.losses)) if self.losses else math.nan

    @property
    def sd(self) -> float | None:
        return float(np.std(self.losses, ddof=1)) if len(self.losses) > 1 else None

    @property
    def statistic(self) -> float:
        """What the board's rule of acceptance compares with 0.004, from the logs."""
        return (TARGET - self.mean) * math.sqrt(len(self.losses))

    @property
    def accepted(self) -> bool:
        return self.statistic >= ASKED

    @property
    def shown(self) -> bool | None:
        """Whether the runs' own noise shows a mean below 3.28 at the board's level; None of fewer than three."""
        if len(self.losses) < FEWEST:
            return None
        made = stats.paired_t_interval([loss - TARGET for loss in self.losses], level=1 - BOARD_ALPHA)
        return made.high is not None and bool(made.high < 0)


@dataclass(frozen=True)
class Pair:
    """A record beside *before*. *statistic*: what the board's pairwise rule compares with 0.004; *known_p*: as a p-value.

    *how*: at equal steps; by steps to the target; or from the losses at the declared steps, by the board's worth of a step.
    Of steps *allowance* may be due to the new record's shorter schedule and the old one's sparse log. *shape*: the schedules
    differ in more than length, which it does not cover. *unreached*: by entry, runs that never reach the target.
    *blended*: one of them is read with blended weights. *reason*: why they are not compared. *adjusted*,
    *known_adjusted*: by Holm over the chain.
    """

    number: int
    before: int
    statistic: float
    known_p: float
    how: Literal["", "step", "target", "declared"] = ""
    at: int | None = None
    allowance: int = 0
    shape: bool = False
    blended: bool = False
    unreached: tuple[tuple[int, int], ...] = ()
    reason: str = ""
    runs: tuple[int, int] = (0, 0)
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    needed: int | None = None
    adjusted: float | None = None
    known_adjusted: float | None = None

    @property
    def answer(self) -> str:
        if self.p is None:
            return "not measured"
        if self.adjusted is not None and self.adjusted <= ALPHA and self.estimate is not None:
            return "better" if self.estimate < 0 else "worse"
        return "undecided"


# --- the logs -------------------------------------------------------------------------------------------------


@cache
def board() -> pd.DataFrame:
    return pd.read_csv(DATA / "records.csv").set_index("number", drop=False)


@cache
def lineage() -> pd.DataFrame:
    return pd.read_csv(DATA / "lineage.csv").set_index("number")


@cache
def logs() -> pd.DataFrame:
    """Every value of a submitted log, with the number of its entry as `variant`; of blended weights, where a log has them."""
    table = pd.read_csv(DATA / "curves.csv.gz", dtype={"seed": str, "run": str}).fillna({"group": ""})
    more = readings().assign(run=readings().seed)
    found = []
    for number, row in board().iterrows():
        own = table.entry == (row.entry if isinstance(row.entry, str) else "baseline")
        own &= table.run == str(row["log"]).removesuffix(".txt") if not isinstance(row.entry, str) else True
        own &= SUBMITTED[number](table) if number in SUBMITTED else True
        rows = more[more.number == number] if number in more.number.to_numpy() else table[own]
        since = lineage().blended.get(number, math.nan)
        found.append(rows[~(rows.step < since)].assign(variant=str(number)))
    return pd.concat(found)[["variant", "run", "seed", "step", "val_loss"]]


@cache
def readings() -> pd.DataFrame:
    """Losses that the file of curves lacks: *source* is the README of an entry, or its logs."""
    return pd.read_csv(DATA / "readings.csv", dtype={"seed": str})


@cache
def curves() -> dict[int, list[TableRun]]:
    """The curves of each entry: a log may hold several runs, and a run stand twice."""
    options = TableOptions.checked(baseline="1", metrics=("val_loss:lower",), unpaired=True, held_equal="target")
    found: dict[int, list[TableRun]] = {}
    for run in read_table(logs(), options).curves:
        found.setdefault(int(run.variant), []).append(run)
    return found


@cache
def runs_of(number: int) -> list[dict[int, float]]:
    """Each run's losses by step; an entry may have one per run."""
    if number in curves():
        return [
            {int(step): float(value) for step, value in zip(run.curves["step"], run.curves["val_loss"], strict=True)}
            for run in curves()[number]
        ]
    rows = logs()[logs().variant == str(number)]
    return [{int(step): float(value)} for step, value in zip(rows.step, rows.val_loss, strict=True)]


def losses_at(number: int, step: int) -> tuple[float, ...]:
    """Each run's loss at a step."""
    return tuple(run[step] for run in runs_of(number) if step in run)


def steps_of(number: int) -> list[int]:
    """The steps at which every run of an entry has a value."""
    return sorted(set.intersection(*(set(run) for run in runs_of(number))))


def steps_to_target(number: int) -> tuple[float | None, float | None, float | None]:
    """Where the mean loss, and each end of its 95 % interval, is first at 3.28, on the line between two logged steps."""
    steps, columns = steps_of(number), []
    for step in steps:
        losses = losses_at(number, step)
        if len(losses) < FEWEST:
            known = stats.known_noise(losses, [TARGET], sd=NOISE)[0]  # less the target's noise, which has none
            half = (known.high - known.estimate) / math.sqrt(1 + len(losses))
            columns.append((known.estimate, known.estimate - half, known.estimate + half))
        else:
            made = stats.paired_t_interval([loss - TARGET for loss in losses])
            columns.append((made.estimate, made.low, made.high))
    return tuple(_crossing(steps, column) for column in zip(*columns, strict=True)) if columns else (None, None, None)


def _crossing(steps: Sequence[int], values: Sequence[float]) -> float | None:
    """None where it is not there by the last step, or was before the first."""
    if values and values[0] is not None and values[0] <= 0:
        return None
    for place in range(1, len(steps)):
        if values[place] <= 0:
            before, after = values[place - 1], values[place]
            return steps[place] - (steps[place] - steps[place - 1]) * after / (after - before)
    return None


@cache
def entries() -> dict[int, Entry]:
    return {
        number: Entry(
            number,
            row.date,
            row.steps_to_target,
            row.record == "yes",
            row.stated_mean,
            row.stated_n,
            losses_at(number, row.steps_to_target),
            steps_to_target(number),
        )
        for number, row in board().iterrows()
    }


# --- records and those before them ----------------------------------------------------------------------------


def statistic(new: tuple[float, int, int], old: tuple[float, int, int]) -> float:
    """The board's pairwise rule on (mean, declared steps, runs) of both."""
    gained = old[0] - new[0] + (old[1] - new[1]) * STEP
    return gained / math.sqrt(1 / new[2] + 1 / old[2])


def stated(number: int) -> tuple[float, int, int]:
    row = board().loc[number]
    return row.stated_mean, row.steps_to_target, row.stated_n


def common_step(new: int, old: int) -> int | None:
    """Of the steps that both logged, the one nearest to that of the new record; None where there is none near it."""
    declared = entries()[new].declared
    shared = {step for step in steps_of(new) if step in steps_of(old) and abs(step - declared) <= NEAR}
    return min(shared, key=lambda step: (abs(step - declared), step), default=None)


def crosses(number: int) -> bool:
    """Whether the curves of an entry begin above the target."""
    return number in curves() and all(run[min(run)] > TARGET for run in runs_of(number))


def never_reach(number: int) -> int:
    return sum(min(run.values()) > TARGET for run in runs_of(number))


def compared(new: int, old: int) -> Pair:
    """The pair, at equal steps where both ran by one schedule, else by steps to 3.28, read or by the worth of a step."""
    value = statistic(stated(new), stated(old))
    pair = Pair(new, old, value, known_p=2 * NormalDist().cdf(-abs(value) / NOISE))
    few = [number for number in (new, old) if len(entries()[number].losses) < FEWEST]
    if few:
        return replace(pair, reason=", ".join(map(lacking, few)))
    pair = replace(pair, blended=not lineage().blended[[new, old]].isna().all())
    at = common_step(new, old) if lineage().schedule[new] == lineage().schedule[old] else None
    if at is not None:
        return tested(replace(pair, how="step", at=at), judged(of_both(new, old), str(new), str(old), f"step={at}"))
    curved = crosses(new) and crosses(old)
    least, most = min(planned(new)), max(planned(old))
    shorter = 0.0 if lineage().schedule[new] == lineage().schedule[old] else allowance_per_step() * max(0, most - least)
    pair = replace(
        pair,
        how="target" if curved else "declared",
        allowance=round(shorter + (sparse(old) if curved else 0)),
        shape=shape(new) != shape(old),
        unreached=tuple((number, never_reach(number)) for number in (new, old) if curved and never_reach(number)),
    )
    frame = of_both(new, old) if curved else at_declared(new, old)
    late = frame.assign(step=frame.step + pair.allowance * (frame.variant == str(new)))
    found, sure = (steps_judged(made, new, old, curved=curved) for made in (frame, late))
    return beyond_doubt(tested(pair, found), tested(pair, sure))


def steps_judged(frame: pd.DataFrame, new: int, old: int, *, curved: bool) -> Comparison:
    if curved:
        return judged(frame, str(new), str(old), f"target={TARGET}")
    rows = frame.rename(columns={"step": "steps_to_target"})
    result = ablationlab.analyze(
        rows, baseline=str(old), metric="steps_to_target:lower", unpaired=True, held_equal="target"
    )
    return result.analysis.comparisons[0]


def beyond_doubt(pair: Pair, sure: Pair) -> Pair:
    """The difference as logged; for *better* with the allowance, which the interval holds too."""
    assert pair.estimate is not None
    assert sure.estimate is not None
    better = pair.estimate < 0
    p = pair.p if not better else sure.p if sure.estimate < 0 else 1.0
    return replace(pair, high=sure.high, p=p, needed=sure.needed if better and sure.estimate < 0 else None)


def sparse(number: int) -> float:
    """Steps by which the line between two logged values may reach 3.28 too late: the curve bends upwards, so it lies below
    that line and above the one through the two values before."""
    steps = steps_of(number)
    values = [float(np.mean(losses_at(number, step))) - TARGET for step in steps]
    after = next(place for place, value in enumerate(values) if value <= 0)
    late = _crossing(steps, values)
    (x, y), (u, v) = ((steps[place], values[place]) for place in (after - 2, after - 1))
    assert late is not None
    return max(0.0, late - (u + v * (u - x) / (y - v)))


def of_both(new: int, old: int) -> pd.DataFrame:
    return logs()[logs().variant.isin([str(new), str(old)])]


def at_declared(new: int, old: int) -> pd.DataFrame:
    """The losses at the declared steps, as steps to 3.28 by the board's worth of a step."""
    return pd.DataFrame(
        {"variant": str(number), "step": entries()[number].declared + (loss - TARGET) / STEP}
        for number in (new, old)
        for loss in entries()[number].losses
    )


def tested(pair: Pair, found: Comparison) -> Pair:
    """The pair with what was found of it."""
    interval = found.main_interval
    sds = found.variant_sd, found.reference_sd
    assert interval is not None
    assert found.estimate is not None
    assert sds[0] is not None
    assert sds[1] is not None
    needed = stats.runs_to_decide(found.estimate, sds[0], sds[1], alpha=ALPHA / (len(chain()) - 1))
    return replace(
        pair,
        runs=found.arm_sizes,
        estimate=found.estimate,
        low=interval.low,
        high=interval.high,
        p=found.p,
        needed=needed,
    )


def judged(frame: pd.DataFrame, new: str, old: str, at: str) -> Comparison:
    """What `ablationlab analyze --unpaired` says of two arms."""
    result = ablationlab.analyze(frame, baseline=old, metric="val_loss:lower", at=at, unpaired=True)
    (found,) = result.analysis.comparisons
    assert found.variant == new
    return found


def lacking(number: int) -> str:
    """Why the logs of an entry say nothing of its noise."""
    runs, asked = len(runs_of(number)), stated(number)[2]
    return f"#{number}: one run" if asked == 1 else f"#{number}: {runs} of {asked} runs"


def planned(number: int) -> list[int]:
    """The steps at which the learning rate of a record would be zero; one that switches has two."""
    return [int(step) for step in re.findall(r"\d{4}", lineage().schedule[number])]


def shape(number: int) -> str:
    """A schedule without its length."""
    return re.sub(r"\d{4}", "", lineage().schedule[number])


@cache
def shorter_schedule() -> Comparison:
    """Steps to 3.29 of one optimizer by two schedules, the shorter one less the longer."""
    table = pd.read_csv(DATA / "curves.csv.gz", dtype={"run": str})
    table = table[table.run.isin([LONG, SHORT])]
    frame = table.assign(variant=np.where(table.run == SHORT, "shorter", "longer"))[
        ["variant", "run", "step", "val_loss"]
    ]
    return judged(frame, "shorter", "longer", f"target={BOTH_REACH}")


@cache
def allowance_per_step() -> float:
    """Steps by which a schedule that is one step shorter may bring the target forward: the upper end of its interval."""
    table = pd.read_csv(DATA / "curves.csv.gz", dtype={"run": str}).groupby("run").steps.first()
    interval = shorter_schedule().main_interval
    assert interval is not None
    assert interval.low is not None
    return -interval.low / float(table[LONG] - table[SHORT])


@cache
def pairs() -> tuple[Pair, ...]:
    """Each record beside the one before it; what cannot be tested counts as p = 1 in the correction."""
    numbers = chain()
    return corrected([compared(new, old) for old, new in pairwise(numbers)])


@cache
def setups() -> tuple[Pair, ...]:
    """Records beside the setup that their description names, where that is not the record before."""
    before = {pair.number: pair.before for pair in pairs()}
    named = [(number, int(setup)) for number, setup in lineage().setup.dropna().items() if before[number] != setup]
    return corrected([compared(new, old) for new, old in named])


def corrected(found: Sequence[Pair]) -> tuple[Pair, ...]:
    own = adjust([1.0 if pair.p is None else pair.p for pair in found], method="holm").adjusted
    known = adjust([pair.known_p for pair in found], method="holm").adjusted
    return tuple(
        replace(pair, adjusted=None if pair.p is None else p, known_adjusted=q)
        for pair, p, q in zip(found, own, known, strict=True)
    )


def chain() -> list[int]:
    """The records, each faster than the one before it."""
    return [number for number, entry in entries().items() if entry.record]
