"""Detection rates of injected effects on the curve of planned power."""

from __future__ import annotations

from ablationlab.instrument.validation.records import Validation
from ablationlab.report.charts.theme import HUES, INK, QUIET, RULE, Figure, Tables
from ablationlab.stats import paired_t_power


def power_figure(found: Validation) -> Figure | None:
    """Planned power of paired t against the size of the effect; on it, the rates that were found. None without doses."""
    import altair as alt

    if not found.doses:
        return None
    kept = Tables()
    alpha = found.comparisons[0].alpha
    reach = max(3.0, *(abs(end) for one in found.doses for end in (one.calibration.d_low, one.calibration.d_high)))
    grid = [reach * step / 120 for step in range(1, 121)]
    curve = [{"d": 0.0, "power": alpha}]
    curve += [{"d": d, "power": paired_t_power(d, found.pairs, alpha=alpha)} for d in grid]
    points = []
    for one in found.doses:
        injected = one.lr != one.base_lr
        ends = (one.calibration.d_low, one.calibration.d_high) if injected else (0.0, 0.0)
        points.append(
            {
                "arm": f"{one.lr:g}",
                "d": abs(one.calibration.d) if injected else 0.0,
                "d_low": min(map(abs, ends)) if ends[0] * ends[1] > 0 else 0.0,
                "d_high": max(map(abs, ends)),
                "rate": one.detected.rate,
                "low": one.detected.low,
                "high": one.detected.high,
            }
        )
    x = alt.X("d:Q", title="size of the effect: mean / SD of the paired difference").scale(
        domain=[0, reach], nice=False
    )
    y = alt.Y("power:Q", title="share of studies that find it").scale(domain=[0, 1]).axis(format=".0%")
    rows, ink = kept(points), HUES[1][0]
    shape = alt.Chart(rows)
    layers = [
        alt.Chart(kept([{"power": alpha, "text": f"alpha {alpha:g}"}]))
        .mark_rule(color=RULE[0], strokeDash=[4, 4])
        .encode(y=y),
        alt.Chart(kept(curve)).mark_line(color=QUIET[0], strokeWidth=2.2).encode(x=x, y=y),
        shape.mark_rule(color=ink, strokeWidth=1.6).encode(x="d:Q", y="low:Q", y2="high:Q"),
        shape.mark_rule(color=ink, strokeWidth=1.6).encode(x="d_low:Q", x2="d_high:Q", y="rate:Q"),
        shape.mark_point(filled=True, size=90, color=ink, opacity=1).encode(x="d:Q", y="rate:Q"),
        shape.mark_text(align="left", dx=9, dy=10, color=INK[0], fontSize=11).encode(x="d:Q", y="rate:Q", text="arm:N"),
    ]
    return Figure(
        key="validation",
        title="Planned power, and what was detected",
        caption="",
        chart=alt.layer(*layers),
        data=kept.kept,
        alt="Detection rate of injected effects against the power curve of the paired t-test.",
        height=300,
    )
