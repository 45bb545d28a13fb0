"""A study on named hardware, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from ablationlab.analysis.study_power import POWER, PlannedPower, power_plans
from ablationlab.core.format import amount, byte_size, count, duration, fixed, number, percent, plain, setting
from ablationlab.core.grouping import grouped
from ablationlab.instrument.costing.hardware import CALIBRATION, PRICES_OF
from ablationlab.instrument.costing.outlook import LayoutCost, Outlook
from ablationlab.records.settings import ALPHA
from ablationlab.report.table import Table
from ablationlab.report.terminal.can_show import sees
from ablationlab.stats import detectable_effect

SEEDS = (3, 5, 8, 10, 20)


@dataclass(frozen=True)
class Money:
    """Price of a GPU-hour, and what may be spent: GPU-hours, or None."""

    price: float
    asked: bool  # the price is the user's
    budget_hours: float | None = None


def costing_view(outlook: Outlook, money: Money, sd: float | None) -> Iterator[RenderableType]:
    """Arms, layouts, cost, seeds, and everything that was assumed."""
    yield _arms(outlook)
    yield Text(plain(_corpus(outlook)))
    yield _layouts(outlook)
    yield from map(Text, _remarks(outlook))
    chosen = outlook.written or outlook.sooner
    if chosen is None:
        yield Text(_nothing_fits(outlook))
    else:
        yield Text(plain(_cost(outlook, chosen, money)))
        yield from _seeds(outlook, chosen, money, sd)
    yield Text(plain(_assumed(outlook)))


def _arms(outlook: Outlook) -> RenderableType:
    arms = grouped(((run.regime, run.variant), position) for position, run in enumerate(outlook.cells))
    rows = []
    for (regime, variant), members in arms.items():
        budget = outlook.cells[members[0]].budget
        cells = (count(budget.parameters), count(budget.steps), amount(budget.tokens), amount(budget.matmul_flops))
        rows.append((regime, variant, len(members), *cells))
    heads = ["regime", "variant", "runs", "parameters", "steps", "tokens per run", "FLOPs per run"]
    return Table.simple(f"{outlook.study.name} on {outlook.hardware}: arms", heads, rows, heads[2:]).terminal()


def _corpus(outlook: Outlook) -> str:
    record = outlook.corpus.record
    flops = sum(run.budget.matmul_flops for run in outlook.cells)
    tokens = sum(run.budget.tokens for run in outlook.cells)
    return (
        f"{len(outlook.cells)} runs, {amount(tokens)} tokens, {amount(flops, 'FLOP')} of matrix products in all.\n"
        f"Corpus {record.name}: {outlook.corpus.basis}; vocabulary {count(record.vocabulary)}.\n"
    )


def _layouts(outlook: Outlook) -> RenderableType:
    numbers = ["micro-batch", "GB per GPU", "tokens/s per GPU", "of peak", "network", "GPU-hours", "wall time"]
    rows = []
    for row in outlook.rows:
        at = row.placed
        cells: list[str] = [str(at.layout), str(at.micro_batch), fixed(at.memory / 1e9, 1)]
        if at.fits:
            cells += [fixed(row.tokens_per_second, 0), percent(at.utilization), percent(at.waiting / at.seconds, 1)]
            cells += [_hours(row.gpu_hours), _wall(row.wall_hours)]
        else:
            cells += ["does not fit", "", "", "", ""]
        rows.append(cells)
    for layout in outlook.impossible:
        rows.append([f"{layout.kinds} over {layout.gpus}", "", "", "not possible", "", "", "", ""])
    return Table.simple("Layouts", ["layout of a run", *numbers], rows, numbers).terminal()


def _remarks(outlook: Outlook) -> Iterator[str]:
    """Why a layout is not possible, and which micro-batch would make one fit."""
    reasons = grouped(((layout.kinds, layout.why), str(layout.gpus)) for layout in outlook.impossible)
    for (kinds, why), numbers in reasons.items():
        yield f"{f'{kinds} over' if kinds == 'fsdp' else 'Over'} {' or '.join(numbers)} GPUs: {why}."
    tight = grouped(
        (row.placed.would_fit, str(row.placed.layout)) for row in outlook.rows if row.placed.would_fit is not None
    )
    for size, names in sorted(tight.items(), reverse=True):
        yield f"With training.micro_batch = {size} would fit: {'; '.join(names)}."


def _nothing_fits(outlook: Outlook) -> str:
    gpu = outlook.hardware.kind
    text = f"As the study stands, nothing fits on {gpu.title} with its {fixed(gpu.memory / 1e9, 0)} GB"
    if any(row.placed.would_fit for row in outlook.rows):
        return f"{text}: set training.micro_batch as above (--set training.micro_batch=...)."
    return f"{text}, even one sequence at a time: more GPUs per run (fsdp), or other GPUs."


def _hours(value: float) -> str:
    return fixed(value, 0) if value >= 10 else number(value, 2)


def _dollars(value: float) -> str:
    return "<$0.01" if 0 < value < 0.01 else f"${fixed(value, 0 if value >= 10 else 2)}"


def _wall(hours: float) -> str:
    return duration(3600 * hours)


def _cost(outlook: Outlook, chosen: LayoutCost, money: Money) -> str:
    """The study as written; then, if another layout ends earlier, what that is and what of the study it would change."""
    whose = "as given" if money.asked else f"a typical on-demand price of {PRICES_OF}; prices vary by a factor of three"
    first = (
        f"As written ({_executor(outlook, chosen)})"
        if not chosen.change
        else f"As written the study does not fit. What would, with {chosen.change}, which is a change of the study"
    )
    cost = _dollars(chosen.gpu_hours * money.price)
    cost = cost if cost[0] == "<" else f"about {cost}"
    text = (
        f"\n{first}: {chosen.placed.layout}: {_hours(chosen.gpu_hours)} GPU-hours, {_wall(chosen.wall_hours)} on "
        f"{outlook.hardware}, {cost} at ${setting(money.price)} per GPU-hour "
        f"({whose}).\n"
    )
    other = outlook.sooner
    if other is not None and other is not chosen:
        what = (
            f"it would be a change of the study ({other.change}) and another plan"
            if other.change
            else f"the study stays as it is ({_executor(outlook, other)})"
        )
        text += (
            f"Sooner by this estimate: {other.placed.layout}: {_wall(other.wall_hours)}, {_hours(other.gpu_hours)} "
            f"GPU-hours; {what}.\n"
        )
    return text + (
        f"Disk: {byte_size(outlook.disk)} of records at the end, {byte_size(chosen.peak_disk)} at most with checkpoints; the "
        f"text as tokens {byte_size(outlook.data_bytes)}.\n"
    )


def _executor(outlook: Outlook, row: LayoutCost) -> str:
    """Who lays runs out so."""
    if row.placed.layout.kind != "stack":
        return f"execution.parallel = '{row.placed.layout.kind}', --executor torchrun"
    return "--executor ray" if outlook.hardware.count > 1 else "--executor local"


def _seeds(outlook: Outlook, best: LayoutCost, money: Money, sd: float | None) -> Iterator[RenderableType]:
    """What seeds cost and see; and how many a budget buys."""
    shared = best.gpu_hours - best.seed_hours * len(outlook.study.seeds)
    counts = sorted({*SEEDS, len(outlook.study.seeds)})
    bought = None
    if money.budget_hours is not None:
        bought = int((money.budget_hours - shared) / best.seed_hours + 1e-9)
        counts = sorted({*counts, bought}) if bought >= 2 else counts
    row = _deciding(outlook, sd)
    heads = ["seeds", "GPU-hours", "cost", "sees"]
    rows = []
    for seeds in counts:
        if seeds < 2:
            continue
        cost = shared + best.seed_hours * seeds
        marks = (" planned" if seeds == len(outlook.study.seeds) else "") + (" budget" if seeds == bought else "")
        seen = sees(row, seeds) if row is not None else f"{fixed(detectable_effect(seeds), 2)} SD"
        rows.append((f"{seeds}{marks}", _hours(cost), _dollars(cost * money.price), seen))
    yield Table.simple("Cost and power by number of seeds", heads, rows, heads).terminal()
    level = ALPHA if row is None else row.alpha
    note = f"Sees: with {percent(POWER)} power at level {number(level, 2)}"
    note += (
        ", in SDs of the difference between two arms of one seed." if sd is None else f", at an SD of {setting(sd)}."
    )
    if money.budget_hours is not None and bought is not None:
        note += (
            f"\nA budget of {_hours(money.budget_hours)} GPU-hours buys {max(0, bought)} seeds of all "
            f"{len(outlook.study.variants)} arms" + (", too few for any inference." if bought < 3 else ".")
        )
    yield Text(plain(note))


def _deciding(outlook: Outlook, sd: float | None) -> PlannedPower | None:
    """The primary comparison with the largest family, else any."""
    rows = power_plans(outlook.study, sd=sd).rows
    primary = [row for row in rows if row.comparison.criterion.role == "primary"] or list(rows)
    return min(primary, key=lambda row: row.alpha, default=None)


def _assumed(outlook: Outlook) -> str:
    gpu, c = outlook.hardware.kind, CALIBRATION
    rates = [f"{amount(gpu.peak(kind), 'FLOP/s')} in {kind}" for kind in outlook.precisions]
    sheet = f"{', '.join(rates)}, {byte_size(gpu.memory)} at {byte_size(gpu.bandwidth)}/s"
    return (
        f"\nAssumed: {gpu.title}, {sheet}, {gpu.interconnect} (data sheets). Training reaches {percent(c.linear)} of the "
        f"peak in linear layers and {percent(c.attention)} in attention, {percent(c.bytes)} of bandwidth, and "
        f"{fixed(c.launch * 1e6, 1)} µs per kernel: fitted to {c.source}; other hardware is assumed to reach the same "
        f"shares. The network reaches {percent(c.collective)} of its rate and takes {fixed(c.latency * 1e6, 0)} µs per "
        f"collective. Communication overlaps with {percent(c.overlap)} of the compute: with ddp, of the last backward pass, "
        "and the embedding's gradient does not overlap; with fsdp, of both passes, and the embedding and the first block do "
        "not overlap. The rest is in the column network. All of that is assumed: nothing over more than one GPU was "
        f"measured. At most 92 % of the memory less 1 GB is used. Validation adds {percent(outlook.validation_share, 1)} and "
        "is counted; probes, benchmark tasks and failures are not.\n"
        "Nothing was sealed: `ablationlab plan` without --hardware seals a plan on the machine that will train."
    )
