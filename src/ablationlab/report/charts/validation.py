"""Detection rates of injected effects on the curve of planned power."""

from __future__ import annotations

import altair as alt

from ablationlab.core.format import setting
from ablationlab.instrument.validation.records import Validation
from ablationlab.report.charts.theme import INK, QUIET, RULE, Figure, Tables
from ablationlab.report.colours import HUES
from ablationlab.stats import paired_t_power


def power_figure(validation: Validation) -> Figure | None:
    """Planned power of paired t against the size of the effect; on it, the rates that were detected. None without doses."""
    if not validation.doses:
        return None
    kept = Tables()
    alpha = validation.comparisons[0].alpha
    reach = max(
        3.0, *(abs(end) for dose in validation.doses for end in (dose.calibration.d_low, dose.calibration.d_high))
    )
    grid = [reach * step / 120 for step in range(1, 121)]
    curve = [{"d": 0.0, "power": alpha}]
    curve += [{"d": d, "power": paired_t_power(d, validation.pairs, alpha=alpha)} for d in grid]
    points = []
    for dose in validation.doses:
        injected = dose.lr != dose.base_lr
        ends = (dose.calibration.d_low, dose.calibration.d_high) if injected else (0.0, 0.0)
        points.append(
            {
                "arm": setting(dose.lr),
                "d": abs(dose.calibration.d) if injected else 0.0,
                "d_low": min(map(abs, ends)) if ends[0] * ends[1] > 0 else 0.0,
                "d_high": max(map(abs, ends)),
                "rate": dose.detected.rate,
                "low": dose.detected.low,
                "high": dose.detected.high,
            }
        )
    x = alt.X("d:Q", title="size of the effect: mean / SD of the paired difference").scale(
        domain=[0, reach], nice=False
    )
    y = alt.Y("power:Q", title="share of studies that find it").scale(domain=[0, 1]).axis(format=".0%")
    rows, ink = kept(points), HUES[1][0]
    shape = alt.Chart(rows)
    layers = [
        alt.Chart(kept([{"power": alpha, "text": f"alpha {setting(alpha)}"}]))
        .mark_rule(color=RULE, strokeDash=[4, 4])
        .encode(y=y),
        alt.Chart(kept(curve)).mark_line(color=QUIET, strokeWidth=2.2).encode(x=x, y=y),
        shape.mark_rule(color=ink, strokeWidth=1.6).encode(x=alt.X("d:Q"), y=alt.Y("low:Q"), y2=alt.Y2("high:Q")),
        shape.mark_rule(color=ink, strokeWidth=1.6).encode(
            x=alt.X("d_low:Q"), x2=alt.X2("d_high:Q"), y=alt.Y("rate:Q")
        ),
        shape.mark_point(filled=True, size=90, color=ink, opacity=1).encode(x=alt.X("d:Q"), y=alt.Y("rate:Q")),
        shape.mark_text(align="left", dx=9, dy=10, color=INK, fontSize=11).encode(
            x=alt.X("d:Q"), y=alt.Y("rate:Q"), text=alt.Text("arm:N")
        ),
    ]
    return Figure(
        key="validation",
        title="Planned power, and what was detected",
        sentences=(),
        chart=alt.layer(*layers),
        data=kept.rows,
        alt="Detection rate of injected effects against the power curve of the paired t-test.",
        height=300,
    )
