"""When runs diverged: shares that are left, and a paired p that decides nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from scipy import stats

from ablationlab.analysis import analyze
from ablationlab.records.run import Divergence
from ablationlab.report.tables.failures import stability_table

from .verdict.studies import arms, dataset

LETTERS = {"none": "ddddd...", "layernorm": "........"}


def made(letters=LETTERS, at=None, steps=100):
    """A study whose runs diverge at step 9, or where *at* says."""
    values = dataset({"validation_loss": arms(0.0, n=8)}, endings=letters)
    runs = tuple(
        run.model_copy(
            update={"steps": steps}
            | (
                {"divergence": Divergence.of(at[run.seed], "loss", math.nan)}
                if at and run.diverged_at is not None and run.variant == "none"
                else {}
            )
        )
        for run in values.runs
    )
    return analyze(replace(values, runs=runs))


def test_the_share_that_is_left_falls_at_every_divergence():
    none, layernorm = made(at={1: 5, 2: 20, 3: 20, 4: 50, 5: 99}).stability.survival
    assert (none.length, none.runs) == (100, 8)
    assert [(step.step, step.at_risk, step.failed) for step in none.steps] == [
        (5, 8, 1),
        (20, 7, 2),
        (50, 5, 1),
        (99, 4, 1),
    ]
    assert [step.survival for step in none.steps] == pytest.approx([7 / 8, 5 / 8, 4 / 8, 3 / 8])
    assert none.p is None
    assert layernorm.steps == ()


def test_where_all_diverge_at_one_step_the_p_is_mcnemars():
    analysis = made({"none": "ddddd...", "layernorm": ".....d.."})
    variant = analysis.stability.survival[1]
    assert variant.p == pytest.approx(stats.binomtest(1, 6).pvalue)
    assert variant.p == pytest.approx(analysis.stability.parts[0].p, rel=1e-12)


def test_earlier_divergence_in_every_pair_is_seen_though_the_counts_agree():
    analysis = made(dict.fromkeys(("none", "layernorm"), "dddddddd"), at={seed: 50 + seed for seed in range(1, 9)})
    assert analysis.stability.parts[0].p == 1.0
    assert analysis.stability.survival[1].p == pytest.approx(2 / 2**8)


def test_nothing_is_said_where_no_run_diverged_or_its_length_is_not_known():
    assert made(dict.fromkeys(("none", "layernorm"), "s.......")).stability.survival == ()
    assert made(steps=None).stability.survival == ()


def test_the_table_says_what_is_registered_and_what_is_not():
    table = stability_table(made())
    assert "exploratory and decides nothing" in table.note
    assert "Registered, by exact McNemar tests: " in table.note
    assert [column.title for column in table.columns][-2:] == ["Diverged at step", "Earlier p"]
