"""A study on named hardware, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import RenderableType

from ablationlab.analysis.study_power import POWER, PlannedPower, power_plans
from ablationlab.core.format import amount, byte_size, count, duration, fixed, number, percent, setting
from ablationlab.core.grouping import grouped
from ablationlab.instrument.costing.hardware import CALIBRATION, PRICES_OF
from ablationlab.instrument.costing.outlook import LayoutCost, Outlook
from ablationlab.records.settings import ALPHA
from ablationlab.report.slots import Slot, Statement
from ablationlab.report.table import Table
from ablationlab.report.terminal.answer import clause_line
from ablationlab.report.terminal.can_show import sees
from ablationlab.stats import detectable_effect

SEEDS = (3, 5, 8, 10, 20)


@dataclass(frozen=True)
class Money:
    """Price of a GPU-hour, and what may be spent: GPU-hours, or None."""

    price: float
    asked: bool  # the price is the user's
    budget_hours: float | None = None


def costing_view(outlook: Outlook, money: Money, sd: float | None, width: int) -> Iterator[RenderableType]:
    """Arms, layouts, seeds; then cost and what was assumed, a line each."""
    yield _arms(outlook)
    yield ""
    yield _layouts(outlook)
    chosen = outlook.written or outlook.sooner
    yield ""
    if chosen is not None:
        yield _seeds(outlook, chosen, money, sd)
        yield ""
    for name, clauses in costing_clauses(outlook, chosen, money, sd).items():
        yield from clause_line(name, clauses, width)


def costing_clauses(
    outlook: Outlook, chosen: LayoutCost | None, money: Money, sd: float | None
) -> dict[str, list[Statement]]:
    """What a study is and takes there, by the name of their line."""
    return {
        "runs": list(_runs(outlook)),
        "fits": list(_fits(outlook)),
        "written": [] if chosen is None else list(_cost(outlook, chosen, money)),
        "sooner": list(_sooner(outlook, chosen)),
        "disk": [] if chosen is None else [_disk(outlook, chosen)],
        "seeds": [] if chosen is None else list(_bought(outlook, chosen, money, sd)),
        "assumed": list(_assumed(outlook)),
    }


def _said(code: str, **slots: str) -> Statement:
    return Statement(f"costing.{code}", {name: Slot(text) for name, text in slots.items()})


def _arms(outlook: Outlook) -> RenderableType:
    arms = grouped(((run.regime, run.variant), position) for position, run in enumerate(outlook.cells))
    rows = []
    for (regime, variant), members in arms.items():
        budget = outlook.cells[members[0]].budget
        cells = (count(budget.parameters), count(budget.steps), amount(budget.tokens), amount(budget.matmul_flops))
        rows.append((regime, variant, len(members), *cells))
    heads = ["regime", "variant", "runs", "parameters", "steps", "tokens", "FLOPs"]
    return Table.simple(f"{outlook.study.name} on {outlook.hardware}, per run", heads, rows, heads[2:]).terminal()


def _runs(outlook: Outlook) -> Iterator[Statement]:
    record = outlook.corpus.record
    flops = sum(run.budget.matmul_flops for run in outlook.cells)
    tokens = sum(run.budget.tokens for run in outlook.cells)
    yield _said("runs", n=count(len(outlook.cells)), tokens=amount(tokens), flops=amount(flops, "FLOP"))
    yield _said("corpus", name=record.name, basis=outlook.corpus.basis, vocabulary=count(record.vocabulary))


def _layouts(outlook: Outlook) -> RenderableType:
    numbers = ["batch", "GB", "tokens/s", "peak", "net", "GPU-h", "time"]
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
    return Table.simple("Layouts, per GPU", ["run", *numbers], rows, numbers).terminal()


def _fits(outlook: Outlook) -> Iterator[Statement]:
    """What fits nowhere, which micro-batch would fit, and why a layout is not possible."""
    gpu = outlook.hardware.kind
    if outlook.written is None and outlook.sooner is None:
        yield _said("nothing", gpu=gpu.title, memory=fixed(gpu.memory / 1e9, 0))
    tight = grouped(
        (row.placed.would_fit, str(row.placed.layout)) for row in outlook.rows if row.placed.would_fit is not None
    )
    for size, names in sorted(tight.items(), reverse=True):
        yield _said("would-fit", size=str(size), layouts=", ".join(names))
    reasons = grouped(((layout.kinds, layout.why), str(layout.gpus)) for layout in outlook.impossible)
    for (kinds, why), numbers in reasons.items():
        yield _said("impossible", kinds=kinds, gpus=", ".join(numbers), why=why)


def _hours(value: float) -> str:
    return fixed(value, 0) if value >= 10 else number(value, 2)


def _dollars(value: float) -> str:
    return "<$0.01" if 0 < value < 0.01 else f"${fixed(value, 0 if value >= 10 else 2)}"


def _wall(hours: float) -> str:
    return duration(3600 * hours)


def _cost(outlook: Outlook, chosen: LayoutCost, money: Money) -> Iterator[Statement]:
    """The study as written, or with the smallest change that fits."""
    if chosen.change:
        yield _said("does-not-fit", change=chosen.change)
    else:
        yield _said("by", executor=_executor(outlook, chosen))
    yield _said(
        "takes",
        layout=str(chosen.placed.layout),
        hours=_hours(chosen.gpu_hours),
        time=_wall(chosen.wall_hours),
        cost=_dollars(chosen.gpu_hours * money.price),
    )
    yield _said("price" if money.asked else "typical-price", price=setting(money.price), when=PRICES_OF)


def _sooner(outlook: Outlook, chosen: LayoutCost | None) -> Iterator[Statement]:
    """Another layout that ends earlier, and what of the study it would change."""
    other = outlook.sooner
    if other is None or other is chosen:
        return
    hours = _hours(other.gpu_hours)
    yield _said("sooner", layout=str(other.placed.layout), hours=hours, time=_wall(other.wall_hours))
    yield _said("change", change=other.change) if other.change else _said("by", executor=_executor(outlook, other))


def _disk(outlook: Outlook, chosen: LayoutCost) -> Statement:
    sizes = {"end": outlook.disk, "peak": chosen.peak_disk, "text": outlook.data_bytes}
    return _said("disk", **{name: byte_size(size) for name, size in sizes.items()})


def _executor(outlook: Outlook, row: LayoutCost) -> str:
    """Who lays runs out so."""
    if row.placed.layout.kind != "stack":
        return f"execution.parallel = '{row.placed.layout.kind}', --executor torchrun"
    return "--executor ray" if outlook.hardware.count > 1 else "--executor local"


def _shared_hours(outlook: Outlook, best: LayoutCost) -> float:
    """What does not grow with the seeds."""
    return best.gpu_hours - best.seed_hours * len(outlook.study.seeds)


def _buys(outlook: Outlook, best: LayoutCost, money: Money) -> int | None:
    """How many seeds the budget buys."""
    if money.budget_hours is None:
        return None
    return max(0, int((money.budget_hours - _shared_hours(outlook, best)) / best.seed_hours + 1e-9))


def _seeds(outlook: Outlook, best: LayoutCost, money: Money, sd: float | None) -> RenderableType:
    """What seeds cost and see."""
    bought, planned = _buys(outlook, best, money), len(outlook.study.seeds)
    counts = sorted({*SEEDS, planned, *(() if bought is None else (bought,))})
    row = _deciding(outlook, sd)
    heads = ["seeds", "GPU-hours", "cost", "sees"]
    rows = []
    for seeds in counts:
        if seeds < 2:
            continue
        cost = _shared_hours(outlook, best) + best.seed_hours * seeds
        marks = (" planned" if seeds == planned else "") + (" budget" if seeds == bought else "")
        seen = sees(row, seeds) if row is not None else f"{fixed(detectable_effect(seeds), 2)} SD"
        rows.append((f"{seeds}{marks}", _hours(cost), _dollars(cost * money.price), seen))
    return Table.simple("By number of seeds", heads, rows, heads).terminal()


def _bought(outlook: Outlook, best: LayoutCost, money: Money, sd: float | None) -> Iterator[Statement]:
    row = _deciding(outlook, sd)
    told = {"power": percent(POWER), "level": number(ALPHA if row is None else row.alpha, 2)}
    yield _said("sees", **told) if sd is None else _said("sees-at", sd=setting(sd), **told)
    if (bought := _buys(outlook, best, money)) is not None and money.budget_hours is not None:
        yield _said("buys", hours=_hours(money.budget_hours), seeds=count(bought))


def _deciding(outlook: Outlook, sd: float | None) -> PlannedPower | None:
    """The primary comparison with the largest family, else any."""
    rows = power_plans(outlook.study, sd=sd).rows
    primary = [row for row in rows if row.comparison.criterion.role == "primary"] or list(rows)
    return min(primary, key=lambda row: row.alpha, default=None)


def _assumed(outlook: Outlook) -> Iterator[Statement]:
    gpu, c = outlook.hardware.kind, CALIBRATION
    rates = ", ".join(f"{amount(gpu.peak(kind), 'FLOP/s')} in {kind}" for kind in outlook.precisions)
    sizes = {"memory": byte_size(gpu.memory), "bandwidth": byte_size(gpu.bandwidth)}
    yield _said("sheet", gpu=gpu.title, rates=rates, links=gpu.interconnect, **sizes)
    shares = {"linear": c.linear, "attention": c.attention, "bytes": c.bytes}
    yield _said("shares", source=c.source, **{name: percent(share) for name, share in shares.items()})
    if outlook.hardware.count > 1:
        yield _said(
            "network", rate=percent(c.collective), latency=fixed(c.latency * 1e6, 0), overlap=percent(c.overlap)
        )
    yield _said("validation", share=percent(outlook.validation_share, 1))
    if outlook.study.budget.match == "time":
        yield _said("equal-time")
