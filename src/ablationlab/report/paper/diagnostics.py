"""What the probes saw inside the models, at their first and last look: a table by arm, and where the arms part most."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import log
from statistics import fmean, stdev
from typing import Literal

from ablationlab.report.numbers import NONE, count, counted, number
from ablationlab.report.paper.facts import Facts
from ablationlab.report.paper.typst import Typst, code, say, sentences
from ablationlab.report.probes import Reading, read_probes
from ablationlab.report.table import Cell, Column, Table

#: Arms that have a column; the page has them all.
MOST_ARMS = 5
#: An arm stands out where its mean lies outside this factor of the baseline's.
FACTOR = 1.5


@dataclass(frozen=True)
class Seen:
    """One measure of one probe, and how the paper calls it. *group* None takes the largest of all groups."""

    probe: str
    measure: str
    group: str | None
    name: str
    when: Literal["first", "last"] = "last"


SEEN = (
    Seen("residual", "norm", "input", "first length of what enters block 1", "first"),
    Seen("residual", "norm", "input", "length of what enters block 1"),
    Seen("residual", "norm", "block-1", "length of what leaves block 1"),
    Seen("residual", "norm", "last", "length of what leaves the last block"),
    Seen("cosine", "mean", "tokens", "mean cosine between token embeddings"),
    Seen("effective-rank", "entropy", None, "effective rank of the token table"),
    Seen("attention", "logit_max", None, "largest attention logit"),
    Seen("output", "logit_max", None, "largest output logit"),
    Seen("update-ratio", "ratio", "total", "relative size of a step"),
    Seen("second-moment", "mean", "embedding", "Adam's second moment, token table"),
)


@dataclass(frozen=True)
class Diagnostics:
    """The probes of one regime: the first of the study."""

    facts: Facts

    @property
    def regime(self) -> str:
        """Which runs are meant."""
        return self.facts.analysis.regimes[0]

    @cached_property
    def values(self) -> dict[Seen, dict[str, list[float]]]:
        """Measure -> arm -> one value a run."""
        if self.facts.from_table:
            return {}
        readings, _ = read_probes(self.facts.material, {(one.probe, one.measure) for one in SEEN})
        found: dict[Seen, dict[str, list[float]]] = {}
        for seen in SEEN:
            by_run: dict[str, list[Reading]] = {}
            for reading in readings.get((seen.probe, seen.measure), ()):
                if reading.run.regime == self.regime:
                    by_run.setdefault(reading.run.id, []).append(reading)
            for mine in by_run.values():
                value = _value(seen, mine)
                if value is not None:
                    found.setdefault(seen, {}).setdefault(mine[0].run.variant, []).append(value)
        return found

    @property
    def arms(self) -> list[str]:
        """Those that have a column, the baseline first."""
        there = {arm for by_arm in self.values.values() for arm in by_arm}
        return [name for name in self.facts.material.variants if name in there][:MOST_ARMS]

    def paragraph(self) -> Typst:
        """What was looked at, and the measures in which an arm is far from the baseline."""
        if not self.values:
            return Typst("")
        where = say(" of the regime {regime}", regime=code(self.regime)) if self.facts.several_regimes else ""
        start = say(
            "Probes looked into the runs{where} while they trained (@diagnostics). What they see is description: it takes no "
            "part in any decision, and nothing of it was tested.",
            where=where,
        )
        apart = [text for arm in self.arms if arm != self.facts.baseline if (text := self._apart(arm))]
        if not apart:
            within = say(
                "No mean of an arm lies beyond {factor} times the baseline's, up or down.", factor=number(FACTOR)
            )
            return sentences([start, within])
        return sentences([start, *apart])

    def _apart(self, arm: str) -> Typst:
        """Where an arm's mean lies beyond the factor, the farthest first."""
        found: list[tuple[float, Seen]] = []
        for seen, by_arm in self.values.items():
            if self.facts.baseline not in by_arm or arm not in by_arm:
                continue
            ours, theirs = fmean(by_arm[arm]), fmean(by_arm[self.facts.baseline])
            if ours > 0 and theirs > 0:
                found.append((ours / theirs, seen))
        far = sorted((one for one in found if not 1 / FACTOR <= one[0] <= FACTOR), key=lambda one: -abs(log(one[0])))
        if not far:
            return Typst("")
        said = [say("{name}, {ratio} times", name=seen.name, ratio=number(ratio)) for ratio, seen in far[:3]]
        more = len(far) - len(said)
        rest = say("; {n} more in the table", n=count(more)) if more > 0 else ""
        return say(
            "Means of {arm} farthest from the baseline's: {said}{rest}.",
            arm=code(arm),
            said=Typst("; ".join(said)),
            rest=rest,
        )

    def table(self) -> Table | None:
        """Mean and standard deviation over seeds, by arm."""
        if not self.values:
            return None
        rows = tuple(
            (Cell.of(seen.name), *(_cell(by_arm.get(arm)) for arm in self.arms)) for seen, by_arm in self.values.items()
        )
        left = len({arm for by_arm in self.values.values() for arm in by_arm}) - len(self.arms)
        note = f" {counted(left, 'other arm').capitalize()} on the page." if left > 0 else ""
        return Table(
            "diagnostics",
            f"What the probes saw, at their last look but where it says first; mean ± standard deviation over seeds.{note}",
            (Column("measure", "Measure"), *(Column(arm, arm, "right") for arm in self.arms)),
            rows,
        )


def _value(seen: Seen, readings: Iterable[Reading]) -> float | None:
    there = list(readings)
    step = (min if seen.when == "first" else max)(reading.step for reading in there)
    there = [reading for reading in there if reading.step == step]
    if seen.group == "last":
        depth = max((_block(reading.group) for reading in there), default=0)
        there = [reading for reading in there if depth and _block(reading.group) == depth]
    elif seen.group is not None:
        there = [reading for reading in there if reading.group == seen.group]
    return max((reading.value for reading in there), default=None)


def _block(group: str | None) -> int:
    found = re.fullmatch(r"block-(\d+)", group or "")
    return int(found[1]) if found else 0


def _cell(values: list[float] | None) -> Cell:
    if not values:
        return Cell.of(None, NONE)
    mean = fmean(values)
    spread = f" ± {number(stdev(values), 2)}" if len(values) > 1 else ""
    return Cell.of(mean, f"{number(mean)}{spread}")
