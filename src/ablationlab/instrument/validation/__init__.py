"""The instrument tested against known truth: many studies in which the null, or the effect, is known. No torch.

:func:`validate` cuts one results folder into disjoint studies of a few pairs, sends each through the shipped analysis and the
shipped rules, and counts what they said.
"""

from __future__ import annotations

from ablationlab.instrument.validation.records import Validation
from ablationlab.instrument.validation.run import validate
