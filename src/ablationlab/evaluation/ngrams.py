"""The n-gram models of `data.ngrams` as a scorer of tasks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ablationlab.data.ngrams import NgramModels
from ablationlab.evaluation.scoring import Continuation, Scores


class NgramScorer(NgramModels):
    """Three members: unigram, bigram, trigram."""

    def score(self, items: Sequence[Sequence[Continuation]]) -> Scores:
        """Sums over the tokens of each continuation; these models have no most probable token to report."""
        flat = [continuation for item in items for continuation in item]
        before2, before1, target, owner = [], [], [], []
        for number, continuation in enumerate(flat):
            whole = (continuation.context[0], *continuation.context, *continuation.tokens)
            for place in range(len(continuation.context) + 1, len(whole)):
                before2.append(whole[place - 2])
                before1.append(whole[place - 1])
                target.append(whole[place])
                owner.append(number)
        logp = self.log_probabilities(*(np.asarray(column, dtype=np.int64) for column in (before2, before1, target)))
        owners = np.asarray(owner)
        sums = np.stack([np.bincount(owners, weights=row, minlength=len(flat)) for row in logp]).astype(np.float64)
        return Scores(sums, np.zeros(sums.shape, dtype=np.bool_), np.zeros(len(flat), dtype=np.bool_))
