"""What a study will decide, in tables: the output of the simulated studies of `ablationlab power`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from ablationlab.analysis.decision_power import DecisionPower, DesignRow
from ablationlab.analysis.wording import listed
from ablationlab.core.format import count, fixed, p_value, percent, plain, setting
from ablationlab.core.grouping import grouped
from ablationlab.records.settings import Study
from ablationlab.records.verdict import Answer
from ablationlab.report.table import Table


def answers_view(study: Study, power: DecisionPower | None) -> Iterator[RenderableType]:
    """Answers by true effect, what is shown of each registered question, and what other sizes of the study would buy."""
    if power is None:
        yield Text(
            "\nAnswers are not simulated: that takes a primary criterion with a smallest effect, and its SD (--from, --sd)."
        )
        return
    answers = [answer for answer in Answer if any(row.answers.get(answer, 0.0) for row in power.effects)]
    rows = [
        (
            row.regime,
            ("+" if row.multiple > 0 else "") + setting(row.multiple),
            setting(row.effect),
            *(percent(row.answers.get(answer)) for answer in answers),
            *([fixed(row.seeds, 1)] if study.design is not None else []),
        )
        for row in power.effects
    ]
    heads = ["regime", "true effect", "in units", *answers]
    heads += ["seeds on average"] if study.design is not None else []
    yield Text("")
    title = f"What {study.name} will answer ({count(power.studies)} simulated studies per row)"
    table = Table.simple(title, heads, rows, heads[1:])
    yield (table if len({row.regime for row in power.effects}) > 1 else table.without("regime")).terminal()
    yield Text(
        plain(
            "True effect of every variant on the primary metric, in smallest effects that matter; above 0 is better. "
            f"Other metrics do not change. {_assumed(study, power)}The study's own tests, corrections, families and rules "
            f"decide.{_about_sweep(study)}"
        )
    )
    shown = [(row.id, percent(row.share), _reason(row.least, row.needs)) for row in power.shown]
    yield Text("")
    yield Table.simple(
        "Shown, if its own smallest effect is true", ["question", "shown", "why not"], shown, ["shown"]
    ).terminal()
    yield Text("")
    heads = [
        "seeds",
        "steps",
        "items per task",
        "training",
        "better at +2",
        "worse at −2",
        "same at 0",
        "gain",
    ]
    yield Table.simple(
        "What more seeds, steps or items would gain",
        heads,
        [_design(row, power.designs) for row in power.designs],
        heads,
    ).terminal()
    yield Text(
        "Training in units of the planned one. Gain: percentage points of better at +2 per further unit. Items cost no "
        "training. Steps change the SD and the share of runs that break, which only runs of that length can show: give "
        "a pilot of another length as a second --from."
    )


def _assumed(study: Study, power: DecisionPower) -> str:
    """Which share of the runs of each arm is unstable, by regime; arms that share it together."""
    texts = []
    for regime, chances in power.unstable.items():
        arms = grouped((percent(chances.of(name, study.baseline).unstable), name) for name in study.variants)
        if arms.keys() != {percent(0.0)}:
            texts.append(f"{regime}: {', '.join(f'{share} of {listed(names)}' for share, names in arms.items())}")
    return f"Runs that break in {'; in '.join(texts)}. " if texts else "No run breaks. "


def _about_sweep(study: Study) -> str:
    """What the simulation leaves out of a study with a sweep."""
    if study.sweep is None:
        return ""
    if not study.sweep.selection_seeds:
        return " The sweep is not simulated: all rows are about the study's own learning rate."
    return (
        " The sweep is not simulated. Rows of the regime tuned stand for arms whose best rates are known, and that is the "
        "most power that they can have: a sweep gives no answer where the best rate cannot be fitted, and all metrics but "
        "the loss have their values at grid rates, where no guard is shown kept."
    )


def _reason(least: float | None, needs: float | None) -> str:
    if least is None or needs is None or least <= needs:
        return ""
    return f"p is never below {p_value(least)}, and {setting(needs)} is needed"


def _design(row: DesignRow, rows: Sequence[DesignRow]) -> tuple[str, ...]:
    first, extra = rows[0], row.compute - rows[0].compute
    return (
        count(row.seeds),
        "as planned" if row.steps is None else count(row.steps),
        "as planned" if row.items is None else count(row.items),
        f"{fixed(row.compute, 2)} x",
        percent(row.better),
        percent(row.worse),
        percent(row.same),
        fixed(100 * (row.better - first.better) / extra, 0, sign=True) if extra > 0 else "",
    )
