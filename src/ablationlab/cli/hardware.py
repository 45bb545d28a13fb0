"""`plan --hardware`: what a study would take on hardware that is not here. Prints; seals nothing."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from ablationlab.core.errors import AblationLabError
from ablationlab.core.terminal import console as make_console

if TYPE_CHECKING:
    from ablationlab.records.settings import Study


def show(study: Study, hardware: str, price: float | None, budget: str | None, sd: float | None) -> None:
    """Print the outlook."""
    from ablationlab.instrument.costing.hardware import parse_hardware
    from ablationlab.instrument.costing.outlook import outlook
    from ablationlab.report.terminal.costing import Money, costing_view

    wanted = parse_hardware(hardware)
    for name, value in (("--price", price), ("--sd", sd)):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise AblationLabError(f"{name} {value:g}: must be above 0")
    each = wanted.kind.price if price is None else price
    money = Money(each, price is not None, None if budget is None else budget_hours(budget, each))
    console = make_console()
    for part in costing_view(outlook(study, wanted), money, sd):
        console.print(part, markup=False, highlight=False)


def budget_hours(text: str, price: float) -> float:
    """GPU-hours of a budget: a number of them, or money as $9000, at that price."""
    found = re.fullmatch(r"(\$?)\s*([0-9][0-9_,]*\.?[0-9]*)", text.strip())
    if found is None or float(found[2].replace(",", "").replace("_", "")) <= 0:
        raise AblationLabError(f"--budget {text!r}: expected GPU-hours, as 3000, or money, as '$9000'")
    amount = float(found[2].replace(",", "").replace("_", ""))
    return amount / price if found[1] else amount


def refuse_without_hardware(**options: object) -> None:
    """An option of --hardware given without it."""
    for name, value in options.items():
        if value is not None:
            raise AblationLabError(
                f"--{name} belongs to --hardware: ablationlab plan STUDY --hardware 64xh100 --{name} ..."
            )
