"""The results of a study for notebooks: pandas frames, charts, and a display of what was found. No torch."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablationlab.core.errors import RecordError, UnknownNameError
from ablationlab.records.analysis import Analysis
from ablationlab.records.results import Results, Run
from ablationlab.records.verdict import VariantVerdict, Verdict
from ablationlab.report.table import html_text

if TYPE_CHECKING:
    import pandas as pd

    from ablationlab.report.charts.theme import Figure
    from ablationlab.report.figures import Figures
    from ablationlab.report.table import Table


def load_results(path: str | Path) -> Frames:
    """Open a results folder, finished or not. Damaged files are named in ``problems``."""
    from ablationlab.analysis.conclusion import decided_again

    return Frames(decided_again(Results.open(Path(path))))


class Frames:
    """A results folder as tables and charts.

    Frames are made when first asked for: ``runs`` (one row per run, with its metrics), ``curves`` (one per run and step),
    ``comparisons``, ``pairs``, ``verdicts``, ``stability``, ``items`` (evaluation, one per run and item) and ``probes``. A
    frame without data is empty. In Jupyter the object shows the answers and what the criteria asked.
    """

    def __init__(self, results: Results) -> None:
        self.results = results

    @property
    def folder(self) -> Path:
        """Where it was read from."""
        return self.results.folder

    @property
    def analysis(self) -> Analysis:
        """analysis.json."""
        if self.results.analysis is None:
            raise RecordError(self._without("analysis.json"))
        return self.results.analysis

    @property
    def verdict(self) -> Verdict:
        """verdict.json."""
        if self.results.verdict is None:
            raise RecordError(self._without("verdict.json"))
        return self.results.verdict

    @property
    def problems(self) -> tuple[str, ...]:
        """Files that are damaged, and why the analysis is not of these records, if so."""
        from ablationlab.analysis import wording

        damaged = (f"{damage.file}: {damage.text}" for damage in self.results.problems)
        return (*damaged, *map(wording.stale, self.results.stale))

    def _without(self, name: str) -> str:
        damaged = [f"{damage.file}: {damage.text}" for damage in self.results.problems if damage.file == name]
        why = damaged[0] if damaged else f"no {name}"
        return f"{self.folder}: {why}; make it with: ablationlab analyze {self.folder}"

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per planned run: variant, regime, seed, learning rate, state, budget, metrics."""
        rows = []
        for run in self.results.runs:
            row: dict[str, Any] = {**_cell(run), "lr": run.lr, "state": run.state, "step": run.step, "steps": run.steps}
            row |= {"parameters": run.planned.budget.parameters, "tokens": run.planned.budget.tokens}
            if run.result is not None:
                row |= {"train_seconds": run.result.timing.train_seconds, **run.result.metrics}
            rows.append(row)
        return _frame(rows, ["run", "variant", "regime", "seed", "lr", "state", "step", "steps"])

    @cached_property
    def curves(self) -> pd.DataFrame:
        """One row per run and step: loss, learning rate, gradient norm, tokens, validation loss where it was taken."""
        import pandas as pd

        parts = []
        for run in self.results.runs:
            if run.curves:
                part = pd.DataFrame(dict(run.curves))
                for place, (name, value) in enumerate(_cell(run).items()):
                    part.insert(place, name, value)
                parts.append(part)
        if not parts:
            return _frame([], ["run", "variant", "regime", "seed", "step", "loss"])
        found = pd.concat(parts, ignore_index=True)
        return found.astype({"step": "int64"})

    @cached_property
    def comparisons(self) -> pd.DataFrame:
        """One row per comparison, registered ones first; *low* and *high* are of the interval that decides."""
        from ablationlab.report.tables.comparisons import comparison_table

        order = sorted(self.analysis.comparisons, key=lambda comparison: comparison.label != "registered")
        return comparison_table("comparisons", "", order, len(self.analysis.regimes)).frame()

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """One row per comparison and seed: both values as recorded, the difference on the tested scale."""
        rows = [
            {
                "comparison": comparison.id,
                "metric": comparison.metric,
                "task": comparison.task_label,
                "regime": comparison.regime,
                "variant": comparison.variant,
                "reference": comparison.reference,
                "seed": pair.seed,
                "variant_value": pair.variant,
                "reference_value": pair.reference,
                "delta": pair.delta,
            }
            for comparison in self.analysis.comparisons
            for pair in comparison.pairs
        ]
        return _frame(rows, ["comparison", "metric", "seed", "variant_value", "reference_value", "delta"])

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """One row per variant and regime, with the fields of verdict.json."""
        names = list(VariantVerdict.model_fields)
        return _frame([verdict.model_dump(mode="json") for verdict in self.verdict.verdicts], names)

    @cached_property
    def stability(self) -> pd.DataFrame:
        """One row per run: how it ended, its largest spike, whether it counts as unstable."""
        from ablationlab.analysis.wording import instability

        part = self.analysis.stability
        names = ["run", "variant", "regime", "seed", "state", "spike_score", "spike_step", "unstable"]
        rows = [
            {name: getattr(run, name) for name in names} | {"why": instability(self.analysis, run)}
            for run in (part.runs if part else ())
        ]
        return _frame(rows, [*names, "why"])

    @cached_property
    def items(self) -> pd.DataFrame:
        """Evaluation, one row per run, task and item; empty where nothing was evaluated."""
        return self._parquet("samples")

    @cached_property
    def probes(self) -> pd.DataFrame:
        """Diagnostics, one row per run, step, probe and measure; empty where nothing was probed."""
        return self._parquet("probes")

    def _parquet(self, name: str) -> pd.DataFrame:
        import pandas as pd

        parts = []
        for run in self.results.runs:
            part = run.samples() if name == "samples" else run.probes()
            if part is None:
                continue
            for place, (key, value) in enumerate(_cell(run).items()):
                if key not in part.columns:
                    part.insert(place, key, value)
            parts.append(part)
        return pd.concat(parts, ignore_index=True) if parts else _frame([], ["run", "variant", "regime", "seed"])

    @cached_property
    def figures(self) -> Figures:
        """Every chart of the page; each shows itself in Jupyter and has an altair chart as ``.chart``."""
        from ablationlab.report.figures import draw_figures

        return draw_figures(self.results)

    def figure(self, key: str) -> Figure:
        """One chart by its key, ``paired-validation-loss`` say."""
        found = self.figures.get(key)
        if found is None:
            raise UnknownNameError("figure", key, [figure.key for figure in self.figures.every()])
        return found

    def __repr__(self) -> str:
        """The study, how far it is, and its answers."""
        lines = [f"Results of {self.results.name!r}: {self.results.ended} of {len(self.results.runs)} runs ended"]
        lines += [f"Mind: {problem}" for problem in self.problems]
        if (answers := self._answers()) is not None and answers.rows:
            lines.append(_printed(answers))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return "".join(self._html())

    def _answers(self) -> Table | None:
        """They need the analysis."""
        from ablationlab.report.tables.answers import answer_table

        analysis, verdict = self.results.analysis, self.results.verdict
        return None if analysis is None or verdict is None else answer_table(analysis, verdict)

    def _html(self) -> Iterator[str]:
        from ablationlab.report.tables.comparisons import comparison_table, split

        results = self.results
        yield f"<h3>{html_text(results.name)}</h3>"
        if results.question:
            yield f"<p>{html_text(results.question)}</p>"
        if results.interim:
            yield f"<p><b>Interim: {results.ended} of {len(results.runs)} runs have ended. This is not inference.</b></p>"
        for problem in self.problems:
            yield f"<p>Mind: {html_text(problem)}</p>"
        if (answers := self._answers()) is not None and answers.rows:
            yield f"<p>{html_text(answers.caption)}</p>"
            yield answers.html_standalone()
        if results.analysis is None:
            yield f"<p>{html_text(self._without('analysis.json'))}</p>"
            return
        asked, others = split(results.analysis)
        shown = asked or others
        if shown:
            title = "Registered comparisons" if shown[0].label == "registered" else "Comparisons (exploratory)"
            table = comparison_table("comparisons", title, shown, len(results.analysis.regimes))
            yield f"<p>{title}; difference = variant − reference.</p>"
            yield table.html_standalone()


def _printed(table: Table) -> str:
    """As a terminal shows it."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=100, color_system=None)
    with console.capture() as caught:
        console.print(table.terminal())
    return "\n".join(line.rstrip() for line in caught.get().rstrip().split("\n"))


def _cell(run: Run) -> dict[str, Any]:
    return {"run": run.id, "variant": run.variant, "regime": run.regime, "seed": run.seed}


def _frame(rows: list[Mapping[str, Any]] | list[dict[str, Any]], columns: list[str]) -> pd.DataFrame:
    """A frame of these rows; without any it still has its columns."""
    import pandas as pd

    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)
