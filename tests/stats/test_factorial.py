"""Main effects and interactions of any number of factors, against statsmodels and by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf

from ablationlab.stats.factorial import FactorialModel, Term

TWO = (("0", "1"),) * 3


def linear(cell: tuple[str, ...]) -> float:
    a, b, c = map(int, cell)
    return 5 + 0.3 * a - 0.2 * b + 0.7 * c + 0.4 * a * b


def test_effects_of_three_factors_are_those_of_a_linear_model():
    rng = np.random.default_rng(3)
    levels = (("0", "1", "2"), ("0", "1"), ("0", "1"))
    values = {cell: linear(cell) + rng.normal() for cell in product(*levels)}
    del values["2", "1", "1"]  # unbalanced: the interaction of all three is no longer determined for level 2
    model = FactorialModel.of(levels, values)
    frame = pd.DataFrame(
        [{"y": y, "a1": (a == "1") - 1 / 3, "a2": (a == "2") - 1 / 3, "b": int(b) - 0.5, "c": int(c) - 0.5}
         for (a, b, c), y in values.items()]
    )  # fmt: skip
    formula = "y ~ a1 + a2 + b + c + a1:b + a2:b + a1:c + a2:c + b:c + a1:b:c"
    fit = smf.ols(formula, frame).fit()
    found = model.estimates(values)
    names = {
        (0,): "a{0}", (1,): "b", (2,): "c", (0, 1): "a{0}:b", (0, 2): "a{0}:c", (1, 2): "b:c", (0, 1, 2): "a{0}:b:c"
    }  # fmt: skip
    assert len(found) == 10
    for term, estimate in found.items():
        assert estimate == pytest.approx(fit.params[names[term.factors].format(term.levels[0])]), term


def test_main_effects_and_interactions_are_averages_over_the_other_factors():
    found = FactorialModel.of(TWO, list(product(*TWO))).estimates({cell: linear(cell) for cell in product(*TWO)})
    assert found[Term((0,), ("1",))] == pytest.approx(0.3 + 0.4 / 2)
    assert found[Term((1,), ("1",))] == pytest.approx(-0.2 + 0.4 / 2)
    assert found[Term((2,), ("1",))] == pytest.approx(0.7)
    assert found[Term((0, 1), ("1", "1"))] == pytest.approx(0.4)
    assert found[Term((0, 1, 2), ("1", "1", "1"))] == pytest.approx(0.0)


def test_half_of_three_factors_mixes_main_effects_with_interactions():
    half = [cell for cell in product(*TWO) if cell.count("1") % 2 == 0]
    model = FactorialModel.of(TWO, half)
    assert [term.factors for term in model.terms] == [(0,), (1,), (2,)]
    mixed = {term.factors: [other.factors for other in others] for term, others in model.aliases.items()}
    assert mixed == {(0, 1): [(2,)], (0, 2): [(1,)], (1, 2): [(0,)], (0, 1, 2): []}
    # So each estimate is a main effect minus half of the interaction of the other two.
    assert model.estimates({cell: linear(cell) for cell in half})[Term((2,), ("1",))] == pytest.approx(0.7 - 0.4 / 2)


def test_half_of_five_factors_tells_main_effects_and_pairs_apart():
    levels = (("0", "1"),) * 5
    model = FactorialModel.of(levels, [cell for cell in product(*levels) if cell.count("1") % 2 == 0])
    assert sorted(len(term.factors) for term in model.terms) == [1] * 5 + [2] * 10
    assert all(len(term.factors) == 3 for term in model.aliases)


def test_a_seed_without_a_cell_gives_what_its_cells_determine():
    levels = (("0", "1", "2"), ("0", "1"))
    model = FactorialModel.of(levels, list(product(*levels)))
    values = {(a, b): 1.0 * int(a) + 2.0 * int(b) for a, b in product(*levels)}
    del values["2", "1"]
    found = model.estimates(values)
    assert found[Term((0,), ("1",))] == pytest.approx(1.0)
    assert Term((0,), ("2",)) not in found
    assert Term((1,), ("1",)) not in found
    assert model.estimates({}) == {}


def test_an_interaction_is_in_doubt_by_the_doubts_of_its_four_cells():
    levels = (("a", "b", "c"), ("x", "y"))
    cells = [(first, second) for first in levels[0] for second in levels[1]]
    model = FactorialModel.of(levels, cells)
    doubts = dict(zip(cells, (0.1, 0.02, 0.003, 0.0, 0.5, 0.7), strict=True))
    assert model.doubts(doubts)[Term((0, 1), ("b", "y"))] == pytest.approx(0.1 + 0.02 + 0.003)
    assert model.doubts(doubts)[Term((1,), ("y",))] == pytest.approx(sum(doubts.values()) / 3)
