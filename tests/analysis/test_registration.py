"""What a study registers for its analysis: stability, tie-breakers, one criterion a question."""

from __future__ import annotations

import pytest

from ablationlab.analysis import analyze, read_results
from ablationlab.core.errors import StudyError
from ablationlab.records.settings import SPIKE_SCORE

from .builder import CRITERIA, build, study


def test_the_defaults_are_part_of_what_is_registered():
    made = study()
    assert made.stability.spike_score == SPIKE_SCORE
    assert made.tie_breakers == ("calibration", "throughput")
    assert study(stability={"spike_score": 8.0}).criteria_hash != made.criteria_hash
    assert study(tie_breakers=["throughput"]).criteria_hash != made.criteria_hash


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stability": {"spike_score": 0}}, "stability.spike_score: is out of range"),
        ({"stability": {"spike_scor": 7.0}}, "did you mean 'spike_score'"),
        ({"tie_breakers": ["a", "a"]}, "given more than once: a"),
        ({"tie_breakers": [""]}, "must not be empty"),
        ({"criteria": [*CRITERIA, CRITERIA[0] | {"alpha": 0.1}]}, "criteria[1]: asks again what criteria[0] asks"),
    ],
)
def test_mistakes_are_named(changes, says):
    with pytest.raises(StudyError) as caught:
        study(**changes)
    assert says in str(caught.value)


def test_a_study_that_is_planned_again_another_day_gives_the_same_numbers(tmp_path):
    for day in ("01", "02"):
        build(tmp_path / day, created=f"2026-01-{day}T00:00:00+00:00")
    first, second = (analyze(read_results(tmp_path / day)) for day in ("01", "02"))
    assert first.source_hash != second.source_hash
    assert first.comparisons == second.comparisons
