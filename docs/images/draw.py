"""Draw the end of a study's run as a picture: python docs/images/draw.py results/embedding-norm docs/images/study.svg."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from ablationlab.analysis import analyze, read_results
from ablationlab.analysis.verdict import decide
from ablationlab.records.plan import Plan
from ablationlab.records.results import read_runs
from ablationlab.records.storage import ResultsFolder
from ablationlab.report.terminal.details import answers_view
from ablationlab.report.terminal.planned import results_table

results, target = ResultsFolder(Path(sys.argv[1])), Path(sys.argv[2])
console = Console(record=True, width=150, file=io.StringIO())
plan = Plan.read(results.plan)
console.print(results_table(plan, read_runs(plan, results)))
console.print()
analysis = analyze(read_results(results.path, None))
for part in answers_view(analysis, decide(analysis)):
    console.print(part, markup=False, highlight=False)
picture = console.export_svg(title=f"ablationlab run: {plan.study.name}", theme=MONOKAI)
# No fonts from the network: the picture must look the same offline.
target.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL))
