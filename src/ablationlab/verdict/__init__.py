"""The decision: the protocol's five rules over an analysis, the hypotheses, a recommendation."""

from __future__ import annotations

import json

from ablationlab.conclusions import Analysis
from ablationlab.conclusions_verdict import Verdict
from ablationlab.storage import content_hash
from ablationlab.verdict.hypotheses import hypotheses
from ablationlab.verdict.rules import judge
from ablationlab.verdict.words import overall

__all__ = ["decide", "judge"]


def decide(analysis: Analysis) -> Verdict:
    """The verdict on every variant in every regime; a pure function of the analysis."""
    verdicts = tuple(
        judge(analysis, variant, regime)
        for regime in analysis.regimes
        for variant in analysis.variants
        if variant != analysis.baseline
    )
    return Verdict(
        study=analysis.study,
        source_hash=analysis.source_hash,
        analysis_hash=content_hash(json.loads(analysis.model_dump_json())),
        primary=analysis.primary,
        verdicts=verdicts,
        hypotheses=hypotheses(analysis),
        recommendation=overall(analysis, verdicts),
    )
