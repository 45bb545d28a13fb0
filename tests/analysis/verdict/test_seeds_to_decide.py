"""Seeds to decide: one number, with 80 % power if the effect is as large as seen, none beyond ten times those at hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ablationlab.analysis import analyze
from ablationlab.analysis.study_power import OUT_OF_REACH
from ablationlab.analysis.verdict import decide
from ablationlab.records.settings import Criterion
from ablationlab.records.verdict import Answer
from ablationlab.report.effects import TOO_CLOSE
from ablationlab.report.tables.answers import answer_table
from ablationlab.stats import pairs_to_decide
from ablationlab.stats.results import Doubt

from .studies import LOSS, arms, dataset, study

ECE = Criterion(metric="token_ece", role="guard", margin=0.01)
EFFECT = LOSS.smallest_effect


def row(analysis):
    """The row of its first variant, by column."""
    table = answer_table(analysis, decide(analysis))
    return {column.key: cell.text for column, cell in zip(table.columns, table.rows[0], strict=True)}


@pytest.mark.parametrize("mean", [-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("sd", [0.5, 2.0])
def test_it_is_that_of_the_difference_seen_and_at_most_ten_times_the_seeds(mean, sd):
    found = study({"validation_loss": arms(mean * EFFECT, sd * EFFECT, 5)})
    (part,) = found.power
    expected = pairs_to_decide(mean / sd, 1 / sd, most=OUT_OF_REACH * 5)
    near = pytest.approx(expected, abs=1) if expected is not None else None
    assert part.decided_by == near
    assert part.decided_by is None or part.decided_by <= OUT_OF_REACH * 5
    answer = decide(found).verdicts[0].answer
    said = row(found)["seeds"]
    assert said == (
        "" if answer != Answer.UNDECIDED else TOO_CLOSE if part.decided_by is None else str(part.decided_by)
    )


def test_the_sign_of_a_difference_and_its_unit_change_nothing():
    def seeds(mean, unit):
        criterion = LOSS.model_copy(update={"smallest_effect": EFFECT * unit})
        values = {"validation_loss": arms(mean * unit, 0.02 * unit, 6, start=2 * unit)}
        return study(values, [criterion]).power[0].decided_by

    numbers = {seeds(sign * 0.02, unit) for sign in (1, -1) for unit in (1e-6, 1.0, 1e6)}
    assert len(numbers) == 1
    assert numbers != {None}


def test_given_so_many_seeds_four_studies_in_five_decide():
    mean, sd, rng = -0.02, 0.02, np.random.default_rng(4)
    n = study({"validation_loss": arms(mean, sd, 5)}).power[0].decided_by
    made = [
        study({"validation_loss": {"none": np.full(n, 2.0), "layernorm": 2.0 + rng.normal(mean, sd, n)}})
        for _ in range(100)
    ]
    given = np.mean([decide(found).verdicts[0].answer == Answer.BETTER for found in made])
    assert given == pytest.approx(0.8, abs=0.12)


def test_an_open_guard_names_the_seeds_that_would_close_it():
    def guarded(cost, n=5):
        values = {"validation_loss": arms(-0.03, n=n), "token_ece": arms(cost, 0.01, n, start=0.1)}
        return study(values, [LOSS, ECE])

    kept = next(c.cost.kept_by for c in guarded(0.0).comparisons if c.metric == "token_ece")
    assert row(guarded(0.0))["open"] == f"token ece ({kept}), failures (18)"
    assert kept == pairs_to_decide(1.0, None)
    assert row(guarded(0.0, n=20))["open"] == ""
    closer = next(c.cost.kept_by for c in guarded(0.003).comparisons if c.metric == "token_ece")
    assert closer > kept
    assert row(guarded(0.0095))["open"] == "token ece, failures (18)"  # too close to its margin


def test_failures_name_no_seeds_once_the_variant_has_failed():
    endings = {"none": "......", "layernorm": ".....s"}
    assert row(study({"validation_loss": arms(-0.03, n=6)}, endings=endings))["open"] == "failures"


def test_a_doubt_that_hides_the_smallest_effect_limits_what_is_seen():
    made = dataset({"validation_loss": arms(-0.7 * EFFECT, 0.2 * EFFECT, 8)})
    (arm,) = (arm for arm in made.values if arm.variant == "none")
    for doubt, limit in ((0.1 * EFFECT, "seeds"), (EFFECT, "doubt")):
        (part,) = analyze(replace(made, doubts={arm: Doubt(doubt, doubt)})).power
        assert part.limit == limit
