"""Other readings of the curves of a study: at equal FLOPs and time, and the tokens to one loss."""

from __future__ import annotations

import numpy as np
import pytest

from ablationlab.analysis import analyze, read_results
from ablationlab.records.analysis import ReadingGap
from ablationlab.records.run import METRICS_HEADER, Result, StepLine
from ablationlab.records.storage import ResultsFolder
from ablationlab.report.tables.readings import reading_table

from .builder import STEPS, build, seal_again, study


def curve(variant: str, seed: int) -> np.ndarray:
    """A straight line down: the variant falls 1.25 times as fast."""
    steps = np.arange(1, STEPS + 1)
    return 4.0 + 0.1 * seed - (0.0125 if variant == "layernorm" else 0.01) * steps


def made(folder, *, validation: bool = True, seconds=lambda variant, seed: 1.0, **more):
    """A study whose curves are *curve*; every run took *seconds*."""
    plan = build(folder, study(**more), curves=lambda variant, regime, seed: list(curve(variant, seed)))
    for run in plan.runs:
        where = ResultsFolder(folder).run(run.id)
        result = Result.read(where.result)
        timing = result.timing.model_copy(update={"train_seconds": seconds(run.variant, run.seed)})
        result.model_copy(update={"timing": timing}).replace(where.result)
        if validation:
            lines = [
                StepLine(
                    step=step,
                    loss=9.0,
                    lr=1e-3,
                    gradient_norm=1.0,
                    tokens=64 * step,
                    curve_loss=float(loss) if step % 6 == 0 else None,
                ).to_line()
                for step, loss in enumerate(curve(run.variant, run.seed), start=1)
            ]
            where.metrics.write_text(METRICS_HEADER + "".join(lines))
    seal_again(folder)
    return analyze(read_results(folder)).readings


def reading(found, kind):
    return next(reading for reading in found.readings if reading.kind == kind)


@pytest.mark.parametrize("validation", [True, False], ids=["validation curve", "training loss"])
def test_a_variant_that_falls_faster_needs_fewer_tokens(tmp_path, validation):
    found = made(tmp_path, validation=validation)
    assert found.curve == ("curve_loss" if validation else "loss")
    efficiency = reading(found, "efficiency")
    assert efficiency.estimate == pytest.approx(1 / 1.25, rel=1e-2)
    assert (efficiency.reached, efficiency.n, efficiency.planned) == (5, 5, 5)
    assert {item.kind for item in found.readings} == {"flops", "time", "efficiency"}
    assert reading(found, "flops").estimate == pytest.approx(-0.0025 * STEPS, rel=2e-2)


def test_a_slower_variant_is_read_where_the_baseline_ends(tmp_path):
    found = made(tmp_path, seconds=lambda variant, seed: 2.0 if variant == "layernorm" else 1.0 + 0.1 * seed)
    time = reading(found, "time")
    by_hand = [
        (0.01 - 0.0125 * (1.0 + 0.1 * seed) / 2.0) * STEPS for seed in range(1, 6)
    ]  # where the baseline has ended, layernorm has made that share of its steps
    assert [item.value for item in time.values] == pytest.approx(by_hand)
    assert time.variant_share == pytest.approx(np.mean([(1.0 + 0.1 * seed) / 2.0 for seed in range(1, 6)]))
    assert time.baseline_share == 1.0
    half = 2.7764451051977987 * np.std(by_hand, ddof=1) / np.sqrt(5)
    assert (time.low, time.high) == pytest.approx((np.mean(by_hand) - half, np.mean(by_hand) + half))


def test_a_variant_that_is_worse_never_reaches_the_baselines_loss(tmp_path):
    found = made(tmp_path, baseline="layernorm", variants=["layernorm", "none"])
    efficiency = reading(found, "efficiency")
    assert efficiency.reached == 0
    assert efficiency.estimate == pytest.approx(1.25, rel=1e-2)
    row = next(row for row in reading_table(found, 1, ()).rows if row[2].value == "efficiency")
    assert "0 of 5" in [cell.text for cell in row]


def test_arms_on_other_text_are_not_read(tmp_path):
    found = made(tmp_path, variants={"none": {}, "bytes": {"data": {"tokenizer": "byte"}}})
    assert {item.gap for item in found.readings} == {ReadingGap.OTHER_TEXT}
    table = reading_table(found, 1, ())
    assert table.rows == ()
    assert "the arms train on other text" in table.note


def test_the_time_of_arms_that_share_a_stack_is_not_told_apart(tmp_path, monkeypatch):
    from . import builder

    planned = builder.make_plan

    def stacked(*args, **kwargs):
        plan = planned(*args, **kwargs)
        runs = tuple(run.model_copy(update={"stack": run.seed}) for run in plan.runs)
        return plan.model_copy(update={"runs": runs}).sealed()

    monkeypatch.setattr(builder, "make_plan", stacked)
    found = made(tmp_path)
    assert reading(found, "time").gap == ReadingGap.SHARED_STACK
    assert reading(found, "flops").gap is None


def test_a_missing_run_is_counted(tmp_path):
    build(tmp_path, study(), only=lambda run: (run.variant, run.seed) != ("layernorm", 2))
    found = analyze(read_results(tmp_path)).readings
    assert (reading(found, "flops").n, reading(found, "flops").planned) == (4, 5)
    assert 2 not in [item.seed for item in reading(found, "flops").values]
