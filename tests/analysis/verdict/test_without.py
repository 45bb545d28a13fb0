"""Leaving out one seed gives the analysis of the study without it."""

from __future__ import annotations

from ablationlab.analysis import analyze, read_results
from ablationlab.analysis.verdict.without import without
from analysis.builder import build, study


def test_without_a_seed_stability_is_that_of_the_other_seeds(tmp_path):
    seeds = list(study().seeds)
    build(tmp_path / "whole")
    build(tmp_path / "less", study(seeds=seeds[:-1]))
    less = without(analyze(read_results(tmp_path / "whole")), seeds[-1]).stability
    direct = analyze(read_results(tmp_path / "less")).stability
    assert [gain.n for gain in less.gains] == [len(seeds) - 1] * len(less.gains)
    numbers = (
        "id",
        "n",
        "variant_unstable",
        "reference_unstable",
        "estimate",
        "low",
        "high",
        "p",
        "planned_pairs",
    )
    assert [[getattr(gain, name) for name in numbers] for gain in less.gains] == [
        [getattr(gain, name) for name in numbers] for gain in direct.gains
    ]


def test_without_a_seed_comparisons_are_those_of_the_other_seeds(tmp_path):
    seeds = list(study().seeds)
    build(tmp_path / "whole")
    build(tmp_path / "less", study(seeds=seeds[:-1]))
    less = without(analyze(read_results(tmp_path / "whole")), seeds[-1])
    direct = {comparison.id: comparison for comparison in analyze(read_results(tmp_path / "less")).comparisons}
    for comparison in less.comparisons:
        if comparison.role is not None:
            other = direct[comparison.id]
            assert (comparison.n, comparison.p, comparison.p_adjusted, comparison.outcome) == (
                other.n,
                other.p,
                other.p_adjusted,
                other.outcome,
            )
