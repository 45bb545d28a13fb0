"""Power before the runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ablationlab.analysis import analyze, power_plans, read_results
from ablationlab.analysis.study_power import PowerNote
from ablationlab.core.errors import StatisticsError
from ablationlab.records.plan import TwoStages
from ablationlab.records.settings import Criterion
from ablationlab.report.terminal.can_show import power_clauses, shown_table
from ablationlab.stats import (
    detectable_effect,
    items_needed,
    paired_t_power,
    pairs_needed,
    sign_flip_test,
    tost_pairs_needed,
)
from ablationlab.stats.failures import pairs_without_failure
from ablationlab.stats.results import FittedMinimum

from .builder import CRITERIA, build, study
from .verdict.studies import study as made_up


def test_an_assumed_sd_gives_the_textbook_numbers():
    (row,) = power_plans(study(), sd=0.05).rows
    assert row.comparison.id == "validation_loss/default/layernorm:none"
    assert row.seeds == pairs_needed(1.0) == 10
    assert row.same == tost_pairs_needed(1.0)
    assert row.detectable == pytest.approx(1.682, abs=1e-3)
    assert row.seen == pytest.approx(1.682 * 0.05, rel=1e-3)
    assert row.limit == "seeds"


def test_what_the_planned_seeds_see_is_at_the_registered_alpha():
    (row,) = power_plans(study(criteria=[{**CRITERIA[0], "alpha": 0.01}])).rows
    assert (row.alpha, row.detectable) == (0.01, detectable_effect(5, alpha=0.01))
    assert row.seen is row.seeds is row.same is None  # no SD
    assert row.limit == "seeds"


def test_power_is_that_of_the_registered_test():
    # Two variants need p <= 0.025, and six seeds never give a sign-flip test less than 0.03125: seven do.
    made = {
        test: power_plans(
            study(
                variants=["none", "layernorm", "rmsnorm"],
                seeds=[1, 2, 3, 4, 5, 6],
                criteria=[{**CRITERIA[0], "test": test}],
            ),
            sd=0.01,
        )
        for test in ("paired-t", "sign-flip")
    }
    t, sign_flip = (found.rows[0] for found in made.values())
    assert t.detectable < 3
    assert sign_flip.detectable is sign_flip.seen is None
    assert sign_flip.seen_by(7) == detectable_effect(7, alpha=0.025)
    assert (t.seeds, sign_flip.seeds) == (3, 7)
    assert PowerNote("sign-test", {"metric": "validation_loss", "test": "sign-flip"}) in made["sign-flip"].notes


def test_no_sign_flip_test_has_more_power_than_is_printed():
    drawn = np.random.default_rng(0).normal(1.0, 1.0, (400, 9))
    shown = np.mean([sign_flip_test(row, rng=np.random.default_rng(0)).p <= 0.05 for row in drawn])
    assert shown == pytest.approx(paired_t_power(1.0, 9), abs=0.06)
    assert shown <= paired_t_power(1.0, 9) + 0.02


def test_a_guard_sees_what_it_may_cost_and_failures_wait_for_so_many_seeds():
    made = study(criteria=[*CRITERIA[:1], {"metric": "token_ece", "role": "guard", "margin": 0.02}])
    found = power_plans(made, sd=0.01)
    guard = next(row for row in found.rows if row.comparison.role == "guard")
    assert (guard.effect, guard.alpha, guard.seeds) == (0.02, 0.05, pairs_needed(2.0))
    assert shown_table(found).frame()["same"].notna().tolist() == [True, False]
    assert [row[-2].text for row in shown_table(found).rows][1] == "–", "a guard is never the same"
    assert found.failures == pairs_without_failure(0.2, alpha=0.025) == 18
    assert power_plans(study(stability={"margin": 0.5})).failures == pairs_without_failure(0.5, alpha=0.025)


def test_the_plan_has_a_row_for_all_that_see_the_same():
    made = study(variants=["none", "layernorm", "rmsnorm"], criteria=CRITERIA[:1])
    table = shown_table(power_plans(made))
    assert [cell.text for cell in table.rows[0] if cell.text != "–"][-2:] == ["2.05 SD", "seeds"]
    assert len(table.rows) == 1
    failures = next(clause for clause in power_clauses(power_plans(made)) if clause.code == "power.failures")
    assert failures.slots["seeds"].text == "18"


@pytest.mark.parametrize(
    ("seconds", "code", "told"),
    [(300.0, "hour", {"seeds": "12", "sees": "0.81 SD"}), (7200.0, "seed", {"time": "2.0\N{NARROW NO-BREAK SPACE}h"})],
)
def test_one_more_hour_buys_seeds(seconds, code, told):
    made = study(variants=["none", "layernorm", "rmsnorm"], criteria=CRITERIA[:1])
    (clause,) = [clause for clause in power_clauses(power_plans(made), seconds) if clause.code == f"power.{code}"]
    assert told.items() <= {name: slot.text for name, slot in clause.slots.items()}.items()


def test_the_family_shares_alpha():
    made = study(variants=["none", "layernorm", "rmsnorm"])
    assert [row.alpha for row in power_plans(made, sd=0.05).rows] == [0.025, 0.025]
    one = study(variants=["none", "layernorm", "rmsnorm"], criteria=[{**CRITERIA[0], "correction": "none"}])
    assert [row.alpha for row in power_plans(one, sd=0.05).rows] == [0.05, 0.05]


def test_a_pilot_gives_its_sd(tmp_path):
    build(tmp_path, study(seeds=[1, 2, 3]))
    found = power_plans(study(), pilot=analyze(read_results(tmp_path)))
    row = found.rows[0]
    assert row.sd_from == "pilot, 3 pairs"
    assert row.seeds == pairs_needed(row.effect / row.sd)
    assert PowerNote("pilot-s-seeds", {"seeds": "1, 2, 3"}) in found.notes


def test_items_follow_from_the_discordance():
    made = study(criteria=[{"metric": "next_token_accuracy", "smallest_effect": 0.01}])
    assert power_plans(made, sd=0.01, discordance=0.1).rows[0].items == items_needed(0.01, 0.1)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sd": -1.0}, "--sd -1"),
        ({"sd": 1e300}, "must be between 10⁻⁹ and 10⁹"),
        ({"sd": 1e-300}, "must be between 10⁻⁹ and 10⁹"),
        ({"sd": 0.1, "discordance": 2.0}, "--discordance 2"),
        ({"sd": float("nan")}, "--sd nan"),
    ],
)
def test_assumptions_that_make_no_sense_are_refused(given, says):
    with pytest.raises(StatisticsError, match=says):
        power_plans(study(), **given)


def test_what_cannot_be_planned_is_said():
    assert power_plans(study()).notes == (PowerNote("no-sd"),)
    assert power_plans(study(criteria=[])).notes == (PowerNote("no-criteria"),)
    (note,) = power_plans(study(criteria=[{"metric": "perplexity"}]), sd=0.1).notes
    assert note == PowerNote("no-effect", {"metric": "perplexity"})


@pytest.mark.parametrize("alpha", [0.05, 0.025, 0.05 / 3, 0.01, 0.05 / 6])
@pytest.mark.parametrize("n", [3, 4, 5])
def test_detectable_effects_exist_at_every_corrected_alpha(n, alpha):
    """The library's noncentral t gives NaN at some of these values."""
    effect = detectable_effect(n, alpha=alpha)
    assert paired_t_power(effect, n, alpha=alpha) == pytest.approx(0.8, abs=1e-9)


def test_a_pilot_that_tested_a_log_metric_raw_gives_no_spread_in_logs():
    criterion = {"metric": "final_gradient_norm", "role": "primary", "smallest_effect": 0.05}
    base = [0.002, 0.0015, 0.001, 0.0012, 0.0013]
    sds = {}
    for first in (0.001, 0.0):  # 0 has no logarithm
        values = {
            "none": [first, *base],
            "layernorm": [first, *(1.1 * value + 1e-5 * at for at, value in enumerate(base))],
        }
        pilot = made_up({"final_gradient_norm": values}, [Criterion(**criterion)])
        sds[first] = power_plans(study(criteria=[criterion]), pilot).rows[0].sd
    assert sds[0.001] > 0
    assert sds[0.0] is None


SWEPT = {"lr": [5e-4, 1e-3, 2e-3, 4e-3, 8e-3], "selection_seeds": [11, 12, 13]}
TWO = {**SWEPT, "finer": {"seeds": [21, 22, 23]}}
BOTH = {**TWO, "second": {"setting": "weight_decay", "values": [0.03, 0.1, 0.3]}}


@pytest.mark.parametrize("sweep", [SWEPT, TWO, BOTH], ids=["one stage", "two stages", "two settings"])
def test_the_doubt_to_expect_counts_in_what_tuned_arms_see(sweep):
    made = study(sweep=sweep, criteria=[{**CRITERIA[0], "regime": "tuned"}])
    (row,) = power_plans(made).rows
    assert row.doubt_in_sds > 0
    assert row.limit in ("seeds", "doubt", "both")
    (known,) = power_plans(made, sd=0.01).rows
    assert known.doubt == pytest.approx(0.01 * row.doubt_in_sds)
    assert known.seen == pytest.approx(0.01 * (row.detectable + row.doubt_in_sds))
    table = shown_table(power_plans(made)).markdown()
    assert f"| {row.doubt_in_sds:.2f} SD | {row.detectable + row.doubt_in_sds:.2f} SD | {row.limit} |" in table


def test_once_the_stages_are_trained_the_plan_has_their_doubt():
    made = study(sweep=TWO, criteria=[{**CRITERIA[0], "regime": "tuned"}])
    minima = {name: FittedMinimum("ok", 2e-3, (), (), doubt) for name, doubt in (("none", 0.01), ("layernorm", 0.03))}
    (row,) = power_plans(made, tuned=TwoStages(plans=("a", "b"), minima=minima)).rows
    assert (row.doubt, row.doubt_in_sds, row.limit) == (0.03, 0.0, "both")
    unknown = {**minima, "layernorm": FittedMinimum("grid-edge", 2e-3, (), ())}
    found = power_plans(made, sd=0.01, tuned=TwoStages(plans=("a", "b"), minima=unknown))
    assert found.rows[0].seen is found.rows[0].seeds is None
    assert "| no fit |" in shown_table(found).markdown()


def test_a_plan_is_limited_by_what_most_of_the_difference_is_made_of():
    made = study(criteria=[{**CRITERIA[0], "regime": "tuned"}], sweep=SWEPT)
    (row,) = power_plans(made, sd=0.01).rows
    seeds = row.detectable * 0.01
    for doubt, limit in ((0.4 * seeds, "seeds"), (seeds, "both"), (2.1 * seeds, "doubt")):
        assert replace(row, doubt=doubt).limit == limit
