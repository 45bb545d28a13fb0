"""The loss difference over seeds and documents."""

from __future__ import annotations

import numpy as np
import pytest

from ablationlab.analysis import analyze, read_results
from ablationlab.evaluation.calibration import choice_calibration
from ablationlab.records.evaluation import DocumentLosses, Evaluation, TokenScores, evaluation_path
from ablationlab.records.storage import ResultsFolder
from ablationlab.report.tables.comparisons import text_table
from ablationlab.stats import crossed_mean

from .builder import build, seal_again
from .scores import HOW

TOKENS = (100, 300, 50, 150)
LOSS = {"none": 0.0, "layernorm": -0.2}


def losses(variant: str, seed: int) -> np.ndarray:
    own = np.random.default_rng([seed, len(variant)]).normal(0, 0.01, len(TOKENS))
    return 2.0 + LOSS[variant] + np.arange(len(TOKENS)) / 10 * (variant == "layernorm") + own


def token_scores(documents: DocumentLosses) -> TokenScores:
    calibration, temperature = choice_calibration(np.eye(4), np.zeros(4, dtype=np.int64))
    return TokenScores(
        tokens=sum(documents.tokens),
        stride=16,
        loss=2.0,
        bits_per_byte=3.0,
        perplexity=7.4,
        accuracy=0.4,
        position_edges=(0, 16),
        loss_by_position=(2.0,),
        loss_by_class={},
        tokens_by_class={},
        calibration=calibration,
        temperature=temperature,
        logit_scale=1.0,
        documents=documents,
    )


@pytest.fixture
def analysis(tmp_path):
    plan = build(tmp_path)
    for run in plan.runs:
        documents = DocumentLosses(kind="documents", tokens=TOKENS, losses=tuple(losses(run.variant, run.seed)))
        Evaluation(
            id=run.id,
            plan_hash=plan.plan_hash,
            status="evaluated",
            checkpoint="step-1",
            weights_sha256="3" * 64,
            how=HOW,
            tokens=token_scores(documents),
        ).replace(evaluation_path(ResultsFolder(tmp_path).run(run.id)))
    seal_again(tmp_path)
    return analyze(read_results(tmp_path))


def test_documents_are_weighted_by_their_tokens_and_crossed_with_seeds(analysis):
    (contrast,) = analysis.evaluation.texts
    deltas = [losses("layernorm", seed) - losses("none", seed) for seed in (1, 2, 3, 4, 5)]
    expected = crossed_mean(deltas, weights=TOKENS)
    assert (contrast.kind, contrast.crossed.seeds, contrast.crossed.items) == ("documents", 5, 4)
    assert contrast.crossed == expected
    assert contrast.crossed.interval.estimate == pytest.approx(np.average(np.mean(deltas, axis=0), weights=TOKENS))
    # The effect differs by document, so other text says more about the interval than other seeds do.
    assert contrast.crossed.item_variance > contrast.crossed.seed_variance


def test_the_table_says_where_the_variance_comes_from(analysis):
    (row,) = text_table(analysis).rows
    assert row[0].text == "layernorm − none"
    assert row[9].text.replace("\N{NARROW NO-BREAK SPACE}", " ").endswith("%")
