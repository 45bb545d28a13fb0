"""The example studies of variants, factors and budgets, each run whole, on a short text."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablationlab.pipeline import run
from ablationlab.records.results import Results
from conftest import corpus_text

EXAMPLES = Path(__file__).parents[2] / "examples/variants"


@pytest.fixture(scope="module", params=sorted(path.stem for path in EXAMPLES.glob("*.toml")))
def example(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    text = tmp_path_factory.mktemp("text") / "corpus.txt"
    text.write_text(corpus_text())
    short = ["training.steps=12", "seeds=[1, 2]", f"data.corpus={text}"]
    run(EXAMPLES / f"{request.param}.toml", folder, overrides=short, device="cpu", workers=1, listen=lambda event: None)
    return request.param, Results.open(folder)


def test_an_example_runs_and_says_what_it_is_there_to_show(example):
    name, results = example
    analysis = results.analysis
    assert all(run.state == "finished" for run in results.runs)
    assert analysis.readings.curve == "curve_loss"
    kinds = {reading.kind for reading in analysis.readings.readings if reading.n == 2}
    if name == "tables":
        large = next(run for run in results.runs if run.variant == "large-batch")
        assert large.planned.budget.steps == 6
        assert kinds >= {"flops", "efficiency"}
    elif name == "factors":
        assert results.baseline == "first-levels"
        effects = [(contrast.kind, contrast.factors) for contrast in analysis.interactions.contrasts]
        assert effects == [
            ("main", ("model.front.norm",)),
            ("main", ("training.weight_decay",)),
            ("interaction", ("model.front.norm", "training.weight_decay")),
        ]
    else:
        wide = next(run for run in results.runs if run.variant == "wide-mlp")
        assert wide.planned.budget.steps < 12
        assert "wide-mlp" in next(input.variants for input in analysis.ledger.differs if input.name == "tokens")
        assert kinds >= {"tokens", "efficiency"}
