"""The results of a study for notebooks: pandas frames, charts, and a display of what was found. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablationlab.core.errors import RecordError, UnknownNameError
from ablationlab.records.analysis import Analysis
from ablationlab.records.results import Results, Run
from ablationlab.records.verdict import Verdict
from ablationlab.report.table import html_text

if TYPE_CHECKING:
    import pandas as pd

    from ablationlab.report.charts.theme import Figure
    from ablationlab.report.figures import Figures
    from ablationlab.report.study_report import StudyReport


def load_results(path: str | Path) -> StudyResults:
    """Open a results folder, finished or not. Damaged files are named in ``problems``."""
    from ablationlab.analysis.conclusion import decided_again

    return StudyResults(decided_again(Results.open(Path(path))))


class StudyResults:
    """The results of a study: what `run`, `analyze` and `load_results` give, with pandas frames and charts.

    Frames are made when first asked for: ``effects`` (one row per comparison), ``answers``, ``guards``, ``pairs``, ``runs``
    (one row per run, with its metrics), ``curves`` (one per run and step), ``stability``, ``items`` (evaluation, one per run
    and item) and ``probes``. A frame without data is empty. It prints as the terminal does; in Jupyter it shows the forest.
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
    def report(self) -> StudyReport:
        """What a reader is told, as rows of slots and fixed clauses."""
        from ablationlab.report.study_report import study_report

        return study_report(self.results, self.analysis, self.verdict)

    @cached_property
    def effects(self) -> pd.DataFrame:
        """One row per comparison, registered ones first; *low* and *high* are of the interval that decides."""
        from ablationlab.report.tables.effects import effects_table

        return effects_table(self.report.effects).frame()

    @cached_property
    def answers(self) -> pd.DataFrame:
        """The rows of `effects` that the rules answered, one per variant and regime."""
        from ablationlab.report.tables.effects import effects_table

        return effects_table([row for row in self.report.effects if row.answer is not None]).frame()

    @cached_property
    def guards(self) -> pd.DataFrame:
        """One row per answer and guard; *seeds* would close an open one."""
        from ablationlab.report.tables.effects import guard_table

        return guard_table([row for row in self.report.effects if row.answer is not None]).frame()

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
    def stability(self) -> pd.DataFrame:
        """One row per run: how it ended, its largest spike, whether it counts as unstable, and the reason's code."""
        part = self.analysis.stability
        names = ["run", "variant", "regime", "seed", "state", "spike_score", "spike_step", "unstable", "reason"]
        rows = [{name: getattr(run, name) for name in names} for run in (part.runs if part else ())]
        return _frame(rows, names)

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

    def write(self, folder: str | Path) -> Path:
        """Write analysis.json, verdict.json, courses.json and the curves of a table into a folder, and give its path."""
        from ablationlab.analysis.conclusion import Conclusion

        Conclusion(self.analysis, self.verdict, self.results.courses, self.results.table_runs).write(Path(folder))
        return Path(folder)

    def __repr__(self) -> str:
        """As the terminal prints it, at 80 columns."""
        lines = [] if self._decided else [self._progress(), self._without("analysis.json")]
        lines += [f"Mind: {problem}" for problem in self.problems]
        if self._decided:
            from ablationlab.report.terminal.answer import AnswerView

            lines.insert(0, "\n".join(line.plain.rstrip() for line in AnswerView(self.report).lines(80)))
        return "\n".join(lines)

    @property
    def _decided(self) -> bool:
        return self.results.analysis is not None and self.results.verdict is not None

    def _progress(self) -> str:
        return f"{self.results.name}: {self.results.ended} of {len(self.results.runs)} runs ended"

    def _repr_html_(self) -> str:
        from ablationlab.report.forest import forest_html

        head = f"<h3>{html_text(self.results.name)}</h3><p>{html_text(self.results.question)}</p>"
        lines = [] if self._decided else [self._progress()]
        lines += [self.report.interim.text] if self._decided and self.report.interim is not None else []
        lines += [f"Mind: {problem}" for problem in self.problems]
        body = forest_html(self.report) if self._decided else f"<p>{html_text(self._without('analysis.json'))}</p>"
        return head + "".join(f"<p>{html_text(line)}</p>" for line in lines) + body


def _cell(run: Run) -> dict[str, Any]:
    return {"run": run.id, "variant": run.variant, "regime": run.regime, "seed": run.seed}


def _frame(rows: list[Mapping[str, Any]] | list[dict[str, Any]], columns: list[str]) -> pd.DataFrame:
    """A frame of these rows; without any it still has its columns."""
    import pandas as pd

    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)
