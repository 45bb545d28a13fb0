"""Sweeps and factorial studies, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ablationlab.analysis.wording import number
from ablationlab.records.analysis import Analysis, FactorCell, InteractionContrast, Interactions, SweepAnalysis
from ablationlab.report.terminal.base import table


def sweep_view(analysis: Analysis) -> Iterator[RenderableType]:
    """Loss by rate, sensitivity and best rate, and the table of interactions; nothing where there is neither."""
    if analysis.sweep is not None:
        yield ""
        yield _curves(analysis.sweep, analysis.variants)
        yield ""
        yield _summaries(analysis.sweep)
        yield Text(
            "Sensitivity: mean excess of the loss over the best rate's, the rate being log-uniform over the sweep; a run "
            "that diverged, or ended worse than it began, counts its loss at the start. The best rate is chosen on the "
            "selection seeds alone; comparisons in the regime tuned are made on the others."
        )
        for note in analysis.sweep.notes:
            yield Text(f"  {note}")
    if analysis.interactions is not None:
        yield ""
        yield _cells(analysis.interactions)
        yield ""
        yield _contrasts(analysis.interactions)
        yield Text(analysis.interactions.text)


def _curves(sweep: SweepAnalysis, variants: Sequence[str]) -> Table:
    """A row per rate, a column per variant: mean counted loss, and how many runs were unstable."""
    found = {(one.variant, one.lr): one for one in sweep.curves}
    rows = []
    for lr in sweep.rates:
        cells = []
        for variant in variants:
            one = found[variant, lr]
            mean = "-" if one.mean is None else f"{one.mean:.4g}" + ("" if one.sd is None else f" ± {one.sd:.2g}")
            marks = ([f"{one.diverged} diverged"] if one.diverged else []) + (
                [f"{one.unstable} unstable"] if one.unstable > one.diverged else []
            )
            cells.append(mean + (f" ({', '.join(marks)})" if marks else ""))
        rows.append([f"{lr:g}", *cells])
    seeds = len(sweep.selection_seeds) + len(sweep.seeds)
    return table(f"Sweep: {sweep.metric}, {seeds} seeds", ["lr", *variants], rows, ["lr", *variants])


def _summaries(sweep: SweepAnalysis) -> Table:
    best = {one.variant: one for one in sweep.best}
    rows = []
    for one in sweep.summaries:
        chosen = best.get(one.variant)
        interval = "-" if one.low is None else f"[{one.low:.3g}, {one.high:.3g}]"
        rate = "-" if chosen is None or chosen.lr is None else f"{chosen.lr:g}" + (" (edge)" if chosen.edge else "")
        rows.append((one.variant, one.n, number(one.mean), interval, rate))
    columns = ["variant", "n", "sensitivity", "interval", "best lr"]
    return table("Learning-rate sensitivity, best rate", columns, rows, ["n", "sensitivity", "best lr"])


def _cells(found: Interactions) -> Table:
    """A row per variant, a column per cell of the factorial."""
    cells = list(dict.fromkeys(one.levels for one in found.cells))
    by = {(one.variant, one.levels): one for one in found.cells}
    variants = list(dict.fromkeys(one.variant for one in found.cells))
    columns = [", ".join(levels) for levels in cells]
    rows = [[name, *(_effect(by[name, levels]) for levels in cells)] for name in variants]
    keys = " x ".join(factor.key for factor in found.factors)
    return table(f"Effect on {found.metric} in each cell of {keys}", ["variant", *columns], rows, columns)


def _effect(one: FactorCell | InteractionContrast) -> str:
    value = one.effect if isinstance(one, FactorCell) else one.estimate
    if value is None:
        return "-"
    return f"{value:+.3g}" + (f" [{one.low:+.3g}, {one.high:+.3g}]" if one.low is not None else "")


def _contrasts(found: Interactions) -> Table:
    rows = []
    for one in found.contrasts:
        short = [key.rpartition(".")[2] for key in one.factors]
        steps = zip(short, one.references, one.levels, strict=True)
        what = " x ".join(f"{key} {before} -> {after}" for key, before, after in steps)
        p = "-" if one.p_adjusted is None else f"{one.p_adjusted:.3g}"
        rows.append((one.variant, one.kind, what, one.n, _effect(one), p, one.note))
    columns = ["variant", "contrast", "of", "n", "estimate and interval", "adjusted p", "note"]
    return table("Main effects and interaction (difference of differences)", columns, rows, ["n", "adjusted p"])
