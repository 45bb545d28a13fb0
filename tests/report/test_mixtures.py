"""A study on a mixture: page and paper say what was mixed, and what its corpora share."""

from __future__ import annotations

import pytest

from ablationlab.pipeline import conclude
from ablationlab.records.plan import Component, Shared
from ablationlab.records.results import Results
from ablationlab.report.paper.compose import document_of
from analysis.builder import build

from .test_paper import Words, said

NOTHING = Shared(
    leaked_exact=0,
    leaked_near=0,
    leaked_contained=0,
    repeated_exact=0,
    repeated_near=0,
    tokens=0,
    seen=0.00883,
    seen_without=0.00883,
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("mixture")
    build(folder)
    conclude(folder)
    return Results.open(folder)


def paper_of(results: Results) -> Words:
    """The paper's text."""
    return said(document_of([results], {}))


def mixed(results: Results, shared: Shared | None, overlap: str | None) -> Results:
    parts = tuple(
        Component(
            name=name,
            source="s",
            weight=weight,
            sha256="0" * 64,
            tokens_sha256="1" * 64,
            documents=10,
            train_documents=9,
            train_tokens=1000,
            validation_tokens=100,
            validation_bytes=100,
            held_out="documents",
            shared=shared,
        )
        for name, weight in (("news", 0.7), ("speeches_#1", 0.3))
    )
    assert results.plan is not None
    changes = {"name": "mixture", "source": "as it was sealed", "components": parts, "overlap": overlap}
    corpus = results.plan.corpus.model_copy(update=changes)
    return results.changed(plan=results.plan.model_copy(update={"lab_corpus": corpus}))


def test_what_is_mixed_is_named(results):
    text = paper_of(mixed(results, NOTHING, "remove-from-training"))
    assert "tokens of a mixture (70 % news and 30 % speeches_#1) per run" in text
    assert "The validation split is the last part of each corpus" in text
    assert "one text" not in text


def test_one_text_reads_as_before(results):
    text = paper_of(results)
    assert "of one text, " in text
    assert "The validation split is the last part of the text." in text
    assert "mixture" not in text.split("Introduction")[0]


def test_what_corpora_share_is_told(results):
    clean = paper_of(mixed(results, NOTHING, "remove-from-training"))
    assert "no training document is in the validation split or in two of the corpora" in clean
    assert "0.88 % (news) and 0.88 % (speeches_#1) are in a sequence of 13 words" in clean
    found = NOTHING.model_copy(update={"leaked_near": 2, "repeated_exact": 1, "tokens": 500, "seen_without": 0.001})
    removed, kept = (paper_of(mixed(results, found, how)) for how in ("remove-from-training", "keep"))
    assert (
        "six training documents, 4 of them in the validation split, occurred twice in the mixture and were removed"
        in removed
    )
    assert "0.1 % (news)" in removed
    assert "twice in the mixture and were kept" in kept
    assert "0.88 % (news)" in kept
    assert "in a sequence of 13" not in paper_of(mixed(results, None, None)), "records from before it was looked for"
