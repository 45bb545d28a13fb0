"""From records, or a table of runs, to comparisons and a verdict: analysis.json and verdict.json. No torch.

:func:`read_results` (a results folder) or :func:`read_table` (a CSV file) gives a :class:`Dataset`, :func:`analyze` an
analysis, and :func:`ablationlab.analysis.verdict.decide` the verdict. Values, reasons and rules are codes; wording.py turns
them into sentences.
"""

from __future__ import annotations

from ablationlab.analysis.conclusion import analyze
from ablationlab.analysis.dataset import Absent, Arm, Dataset
from ablationlab.analysis.from_results import read_results
from ablationlab.analysis.from_table import TableOptions, read_table
from ablationlab.analysis.study_power import power_plans
