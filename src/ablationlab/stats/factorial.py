"""Main effects and interactions of any number of factors, by least squares on one seed's cells at a time.

Let y be the value of a cell. A factor with m levels has a column 1[level = j] - 1/m for each level j but the first; an
interaction, the products of its factors' columns. With every cell there, the coefficient of a main effect is
y(j) - y(first level), averaged over all other cells; that of an interaction, the difference of such differences.

A column that depends linearly on those before it (lower orders first) is left out: its effect is aliased with theirs, as in a
fraction of a design. A seed that lacks cells gives the effects that its own cells
determine, and no others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Final

import numpy as np
from numpy.typing import NDArray

Cell = tuple[str, ...]
#: Interactions of more settings than these are not estimated.
HIGHEST_ORDER: Final = 3
_ZERO: Final = 1e-8


@dataclass(frozen=True)
class Term:
    """The effect of level(s) of one or more factors, by their positions, against the first level of each."""

    factors: tuple[int, ...]
    levels: tuple[str, ...]


@dataclass(frozen=True)
class FactorialModel:
    """The terms that can be told apart; and each that cannot, with the terms it is mixed up with."""

    levels: tuple[tuple[str, ...], ...]
    terms: tuple[Term, ...]
    aliases: Mapping[Term, tuple[Term, ...]]

    @classmethod
    def of(cls, levels: Sequence[Sequence[str]], cells: Collection[Cell]) -> FactorialModel:
        """All terms that the cells determine, from lower orders to higher ones."""
        every, order = tuple(map(tuple, levels)), sorted(cells)
        wanted = [
            Term(factors, chosen)
            for size in range(1, min(len(every), HIGHEST_ORDER) + 1)
            for factors in combinations(range(len(every)), size)
            for chosen in product(*(every[factor][1:] for factor in factors))
        ]
        kept: list[Term] = []
        aliases: dict[Term, tuple[Term, ...]] = {}
        columns = np.ones((len(order), 1))
        for term in wanted:
            column = _column(term, every, order)
            parts, *_ = np.linalg.lstsq(columns, column, rcond=None)
            if np.abs(column - columns @ parts).max(initial=0.0) > _ZERO:
                kept.append(term)
                columns = np.column_stack([columns, column])
            else:
                mixed = (other for other, part in zip(kept, parts[1:], strict=True) if abs(part) > _ZERO)
                aliases[term] = tuple(mixed)
        return cls(every, tuple(kept), aliases)

    def estimates(self, values: Mapping[Cell, float]) -> dict[Term, float]:
        """Least squares on the cells of one seed: of every term that they determine."""
        order = sorted(values)
        weights = self._weights(order)
        return {term: float(row @ [values[cell] for cell in order]) for term, row in weights.items()}

    def doubts(self, doubts: Mapping[Cell, float]) -> dict[Term, float]:
        """How far each estimate may be off, where every cell's values may be off by its doubt, one way or the other."""
        order = sorted(doubts)
        weights = self._weights(order)
        return {term: float(np.abs(row) @ [doubts[cell] for cell in order]) for term, row in weights.items()}

    def _weights(self, order: Sequence[Cell]) -> dict[Term, NDArray[np.float64]]:
        """Of the cells in each term that they determine."""
        if not order:
            return {}
        columns = np.column_stack([np.ones(len(order)), *(_column(term, self.levels, order) for term in self.terms)])
        inverse = np.linalg.pinv(columns)
        determined = np.abs(inverse @ columns - np.eye(columns.shape[1])).max(axis=1) < _ZERO
        return {term: inverse[i] for i, term in enumerate(self.terms, start=1) if determined[i]}


def _column(term: Term, levels: Sequence[Sequence[str]], cells: Sequence[Cell]) -> NDArray[np.float64]:
    column = np.ones(len(cells))
    for factor, level in zip(term.factors, term.levels, strict=True):
        column *= np.array([(cell[factor] == level) - 1 / len(levels[factor]) for cell in cells])
    return column
