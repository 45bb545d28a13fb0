"""The answers: the rules over an analysis (rules.py), failures (failures.py), the study's hypotheses (hypotheses.py), and
what an answer would be without one seed (without.py).

`decide` is a pure function of the analysis: the same analysis.json gives the same verdict.json.
"""

from __future__ import annotations

from ablationlab.analysis.verdict.hypotheses import judge_hypotheses
from ablationlab.analysis.verdict.rules import judge, look_that_helps
from ablationlab.analysis.verdict.without import with_seeds_left_out
from ablationlab.records.analysis import Analysis
from ablationlab.records.verdict import Verdict

__all__ = ["decide", "judge"]


def decide(analysis: Analysis) -> Verdict:
    """The answer on every variant in every regime; a pure function of the analysis."""
    verdicts = with_seeds_left_out(
        analysis,
        [
            judge(analysis, variant, regime)
            for regime in analysis.regimes
            for variant in analysis.variants
            if variant != analysis.baseline
        ],
    )
    return Verdict(
        study=analysis.study,
        source_hash=analysis.source_hash,
        analysis_hash=analysis.sealed().seal,
        primary=analysis.primary,
        verdicts=verdicts,
        hypotheses=judge_hypotheses(analysis),
        next_look=look_that_helps(analysis, verdicts),
    ).sealed()
