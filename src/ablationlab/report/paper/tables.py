"""Tables that only a paper has: answers and what they rest on, headline metrics, arms, the studies of a programme."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from ablationlab.analysis.wording import arm_text, at_best, difference_of
from ablationlab.core.format import DASH, amount, count, difference, level, mean_sd, number, p_value, setting, with_unit
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import Comparison
from ablationlab.records.metrics import metric_name
from ablationlab.records.settings import TUNED
from ablationlab.report.naming import printed_unit
from ablationlab.report.paper.facts import Decided, LastReading, StudyView
from ablationlab.report.paper.programme import decided_in
from ablationlab.report.table import Cell, Cells, Column, Row, Table
from ablationlab.report.tables.answers import answer_table, hypothesis_table
from ablationlab.report.tables.arms import arm_table
from ablationlab.stats.results import Interval

#: Metrics that readers of a language model's ablation look for, in this order, where they were measured.
_LOOKED_FOR = (
    *("validation_loss", "perplexity", "bits_per_byte", "macro_accuracy", "mean_task_accuracy", "next_token_accuracy"),
    *("token_ece", "final_gradient_norm", "mean_gradient_norm", "mean_embedding_norm", "inference_speed"),
)
_MOST_METRICS = 8
#: Of a hash, where several stand in a row.
_DIGITS = 16
#: More arms than this are the rows of the headline table, and then so many metrics its columns.
_MOST_ARMS, _MOST_COLUMNS = 5, 6


def headline_table(study: StudyView) -> Table:
    """Mean and SD over seeds of every arm in the headline metrics: in the first regime, the primary metric in all."""
    table = arm_table(study.analysis)
    asked = [criterion.metric for criterion in study.analysis.criteria]
    measured = [str(row[0].value) for row in table.rows]
    wanted = [
        name for name in dict.fromkeys((study.analysis.primary, *_LOOKED_FOR, *asked, *measured)) if name in measured
    ]
    known = [name for name in wanted if name in asked or name in _LOOKED_FOR]
    if not study.fronts_differ and "mean_embedding_norm" not in asked:
        known = [name for name in known if name != "mean_embedding_norm"]  # no arm changes what block 1 reads
    chosen = (known or wanted)[:_MOST_METRICS]
    rows = [
        row
        for row in table.rows
        if row[0].value in chosen and (row[1].value == study.regimes[0] or row[0].value == study.analysis.primary)
    ]
    rows.sort(key=lambda row: (chosen.index(str(row[0].value)), study.regimes.index(str(row[1].value))))
    several = len({row[1].value for row in rows}) > 1
    if len(study.variants) > _MOST_ARMS:
        return _by_arm(study, table, rows[:_MOST_COLUMNS], several)
    keys = ["metric", *(["regime"] if several else []), *(f"{name}_mean" for name in study.variants)]
    return Table("headline", "", table.columns, tuple(rows)).only(*keys)


def _by_arm(study: StudyView, table: Table, metrics: Sequence[Row], several: bool) -> Table:
    """The same with a row per arm and a column per metric, for more arms than there is room for side by side."""
    place = {column.key: number for number, column in enumerate(table.columns)}
    titles = [f"{row[0].text}, {row[1].text}" if several else row[0].text for row in metrics]
    columns = (Column("variant", "Arm"), *(Column(title, title, "right") for title in titles))
    rows = (
        (Cell.name(arm), *(row[place[f"{arm}_mean"]] for row in metrics))
        for arm in study.variants
        if f"{arm}_mean" in place
    )
    return Table("headline", "", columns, tuple(rows))


def _bootstrap(comparison: Comparison) -> Interval | None:
    """The bias-corrected bootstrap interval over seeds, or the percentile one."""
    found = (comparison.intervals.get(method) for method in ("bca", "percentile"))
    return next((interval for interval in found if interval is not None and interval.low is not None), None)


def answers_of(answers: Mapping[StudyView, Sequence[Decided]]) -> tuple[Table, list[Comparison]]:
    """(these answers of the studies, the comparisons behind the rows)."""
    made = [answer_table(s.analysis, s.verdict, [one.verdict for one in shown]) for s, shown in answers.items()]
    comparisons = [one.primary for shown in answers.values() for one in shown if one.primary is not None]
    return _joined("answers", list(answers), made), comparisons


def hypotheses_of(studies: Sequence[StudyView]) -> Table:
    return _joined("hypotheses", studies, [hypothesis_table(study.verdict) for study in studies])


def _joined(key: str, studies: Sequence[StudyView], made: Sequence[Table]) -> Table:
    """Tables of the same columns as one: what one of them prints is printed, and of several studies their names."""
    given = [table for table in made if table.columns]
    columns = tuple(
        replace(alike[0], printed=any(column.printed for column in alike))
        for alike in zip(*(table.columns for table in given), strict=True)
    )
    rows = tuple((_study(study), *row) for study, table in zip(studies, made, strict=True) for row in table.rows)
    return Table(key, "", (Column("study", "Study", printed=len(studies) > 1), *columns), rows)


def primary_table(study: StudyView, most: int) -> tuple[Table, list[Comparison], int]:
    """(what each answer rests on, the comparisons behind the rows, how many rows were left out)."""
    every = [decided for decided in study.decided if decided.primary is not None]
    metrics = len({decided.primary.metric for decided in every if decided.primary is not None}) > 1
    comparisons = [decided.primary for decided in every[:most] if decided.primary is not None]
    levels = {interval.level for interval in map(_bootstrap, comparisons) if interval is not None}
    unpaired = any(comparison.design == "unpaired" for comparison in comparisons)
    rows: list[Cells] = []
    for decided in every[:most]:
        verdict = decided.verdict
        metric, n, delta, interval, bootstrap, d_z, p = _numbers(decided.primary, several_levels=len(levels) > 1)
        rows.append(
            {
                Column("regime", "Regime", printed=len(study.regimes) > 1): Cell.name(verdict.regime),
                Column("variant", "Variant"): Cell.name(verdict.variant),
                Column("metric", "Metric", printed=metrics): metric,
                Column("n", "n" if unpaired else "Pairs", "right"): n,
                Column("delta", "Difference", "right"): delta,
                Column("interval", "Deciding interval", "right"): interval,
                Column("bootstrap", _at_level("bootstrap", levels), "right", printed=bool(levels)): bootstrap,
                Column("d_z", "Effect size", "right"): d_z,
                Column("p", "Adjusted p", "right"): p,
            }
        )
    return Table.of("primary", "", rows), comparisons, max(0, len(every) - most)


def question_table(studies: Sequence[StudyView]) -> tuple[Table, list[Comparison]]:
    """(what the studies of one question show, the comparisons behind it).

    A row per arm with its mean and its difference, below that of the baseline of its study and regime; then a row per
    registered comparison between variants, with what the arm is compared against in place of a mean.
    """
    blocks: list[tuple[StudyView, str, list[Comparison]]] = []
    for study in studies:
        decided = grouped((one.verdict.regime, one) for one in decided_in(study) if one.primary is not None)
        for regime, within in decided.items():
            rows = [one.primary for one in within if one.primary is not None]
            between = [c for c in study.between if c.regime == regime and c.metric == rows[0].metric]
            blocks.append((study, regime, [*rows, *between]))
    comparisons = [c for _, _, rows in blocks for c in rows]
    levels = {interval.level for interval in map(_bootstrap, comparisons) if interval is not None}
    metrics = len({c.metric for c in comparisons}) > 1
    unpaired = any(c.design == "unpaired" for c in comparisons)
    fitted, regimes = any(map(_fits, studies)), len({regime for _, regime, _ in blocks}) > 1
    cells: list[Cells] = []
    for study, regime, rows in blocks:
        fits = _fits(study) if regime == TUNED else {}
        first = rows[0]
        medians = any(comparison.unstable_means for comparison in rows)
        for comparison in (None, *rows):
            arm = first.reference if comparison is None else comparison.variant
            _, n, delta, interval, bootstrap, d_z, p = _numbers(comparison, several_levels=len(levels) > 1)
            mean = arm_text(first if comparison is None else comparison, arm, as_median=medians)
            rate = fits.get(arm, DASH)
            if comparison is not None and comparison.reference != study.baseline:  # the arm has a row above
                mean, rate = f"vs {comparison.reference}", DASH
            place = (_study(study), Cell.name(regime))
            if comparison is not None:  # the first row of a block names its place
                place = (replace(place[0], text=""), replace(place[1], text=""))
            cells.append(
                {
                    Column("study", "Study", printed=len(studies) > 1): place[0],
                    Column("regime", "Regime", printed=regimes): place[1],
                    Column("variant", "Arm"): Cell.name(arm),
                    Column("metric", "Metric", printed=metrics): Cell.of(first.metric, metric_name),
                    Column("mean", "Mean ± SD", "right"): mean.replace(" ", "\N{NO-BREAK SPACE}"),
                    Column("rate", "Fitted rate", "right", printed=fitted): rate,
                    Column(
                        "n",
                        "n" if unpaired else "Pairs",
                        "right",
                        printed=unpaired or len({c.n for c in comparisons}) > 1,
                    ): n,
                    Column("delta", "Difference", "right"): delta,
                    Column("interval", "Deciding interval", "right"): interval,
                    Column("bootstrap", _at_level("bootstrap", levels), "right", printed=bool(levels)): bootstrap,
                    Column("d_z", "Effect size", "right"): d_z,
                    Column("p", "Adjusted p", "right"): p,
                }
            )
    return Table.of("question", "", cells), comparisons


def _fits(study: StudyView) -> dict[str, str]:
    """The fitted best rate of every arm, and in brackets how far its loss may be off."""
    sweep = study.analysis.sweep if study.fitted_rates else None
    minima = () if sweep is None else sweep.minima
    return {
        tuned.variant: f"{at_best(tuned.minimum)} ({number(tuned.minimum.doubt, 2)})"
        for tuned in minima
        if tuned.minimum is not None and tuned.minimum.lr is not None
    }


def _at_level(name: str, levels: Collection[float]) -> str:
    return f"{level(*levels)} {name}" if len(levels) == 1 else name.capitalize()


def _numbers(comparison: Comparison | None, *, several_levels: bool) -> Row:
    """What an answer rests on: metric, pairs, difference, both intervals, effect size and p; nothing is known without it."""
    if comparison is None:
        return (Cell.of(None),) * 7
    shown, d_z = difference_of(comparison), comparison.effects.get("d_z") or comparison.effects.get("g")
    size = None if d_z is None or comparison.told_by_medians else d_z.estimate
    interval, log = _bootstrap(comparison), comparison.transform == "log"
    bootstrap = DASH
    if interval is not None and not comparison.told_by_medians:
        bootstrap = difference(comparison.delta, interval.low, interval.high, log=log).interval
        bootstrap = f"{level(interval.level)}: {bootstrap}" if several_levels else bootstrap
    return (
        Cell.of(comparison.metric, metric_name),
        Cell.of(comparison.n, count),
        Cell.of(comparison.estimate, shown.text),
        Cell.of(None, f"{shown.interval}†" if comparison.undecided else shown.interval),
        Cell.of(None, bootstrap),
        Cell.of(size, number(size, 2, sign=True)),
        Cell.of(comparison.p_adjusted, p_value),
    )


def arms_table(studies: Sequence[StudyView]) -> Table:
    """The arms, each once: what it changes, and its parameters or the studies that have it."""
    alone = len(studies) == 1
    # Where no study changes what block 1 reads, the baseline's formula of it is not what the arms are about.
    reads = any(study.reads_differ for study in studies)
    arms = grouped(
        ((name, study.changes(name) if reads or name != study.baseline else ""), study)
        for study in studies
        for name in study.results.variants
    )
    trained = all(study.trained is not None for study in studies)
    formulas = reads and trained and all(study.formula_of(name) for study in studies for name in study.variants)
    rows = []
    for (variant, changes), within in arms.items():
        first = within[0]
        parameters = first.first_run(variant).budget.parameters if first.trained is not None else None
        rows.append(
            {
                Column("arm", "Arm"): Cell.name(variant),
                Column("changes", "Formula" if formulas else "What it changes"): Cell(
                    changes, changes or "nothing", formula=True
                ),
                Column("parameters", "Parameters", "right", printed=alone and trained): Cell.of(parameters, count),
                Column("studies", "Studies", "right", printed=not alone): Cell.of(
                    len(within), "all" if len(within) == len(studies) else count(len(within))
                ),
            }
        )
    return Table.of("arms", "", rows)


def _study(study: StudyView) -> Cell:
    return Cell(study.name, study.label, code=study.label == study.name)


def _span(values: Sequence[float], shown: Callable[[float], str] = amount) -> str:
    """The smallest and the largest; one where both read alike."""
    return "–".join(dict.fromkeys(map(shown, (min(values), max(values))))) if values else DASH


def _rate(value: float) -> str:
    return setting(float(f"{value:.3g}"))  # a calibrated one has many digits


def study_table(studies: Sequence[StudyView]) -> Table:
    """The studies of a programme: size, budget, text, seeds and runs; layers, width and context of the baseline."""
    trained, planned = any(s.trained is not None for s in studies), any(not s.from_table for s in studies)
    rows: list[Cells] = []
    for study in studies:
        plan = study.trained
        budgets = [] if plan is None else [run.budget for run in plan.runs]
        model, training = (None, None) if plan is None else (study.model, study.training)
        warmup = None if training is None else training.warmup
        rows.append(
            {
                Column("study", "Study"): _study(study),
                Column("parameters", "Parameters", "right", printed=trained): Cell.of(
                    None, _span([budget.parameters for budget in budgets])
                ),
                Column("tokens", "Tokens", "right", printed=trained): Cell.of(
                    None, _span([budget.tokens for budget in budgets])
                ),
                Column("text", "Text", printed=trained): Cell.of(
                    None, DASH if plan is None else "a mixture" if study.mixture else study.corpus
                ),
                Column("layers", "Layers", "right", printed=trained): Cell.of(
                    None if model is None else model.layers, count
                ),
                Column("width", "Width", "right", printed=trained): Cell.of(
                    None if model is None else model.width, count
                ),
                Column("context", "Context", "right", printed=trained): Cell.of(
                    None if model is None else model.context, count
                ),
                Column("lr", "Rates", "right", printed=trained): Cell.of(
                    None, _span([run.training.lr for run in (() if plan is None else plan.runs)], _rate)
                ),
                Column("warmup", "Warmup", "right", printed=trained): Cell.of(
                    warmup, DASH if training is not None and training.schedule == "constant" else count(warmup)
                ),
                Column("variants", "Variants", "right"): Cell.of(len(study.changed), count),
                Column("regimes", "Regimes", "right"): Cell.of(len(study.regimes), count),
                Column("seeds", "Seeds", "right"): Cell.of(len(study.analysis.seeds), count),
                Column("runs", "Runs", "right", printed=planned): Cell.of(len(study.results.runs) or None, count),
            }
        )
    return Table.of("studies", "", rows)


def probe_table(readings: Sequence[LastReading], arms: Sequence[str]) -> Table:
    """Mean and SD over seeds of what the probes read last."""
    rows = tuple(
        (Cell.of(reading.label), *(Cell.of(None, mean_sd(*reading.arms.get(arm, (None, None)))) for arm in arms))
        for reading in readings
    )
    columns = (Column("measure", "Measure"), *(Column(arm, arm, "right", name=True) for arm in arms))
    return Table("diagnostics", "", columns, rows)


def hash_table(hashes: Sequence[tuple[str, str]]) -> Table:
    rows = tuple((Cell.of(name), Cell.name(digest)) for name, digest in hashes)
    return Table("hashes", "", (Column("file", "Hash of"), Column("sha256", "SHA-256")), rows)


def study_hashes(studies: Sequence[StudyView]) -> Table:
    """The files of every study and the first digits of its hashes; claims.json has them whole."""
    rows: list[Cells] = []
    for study in studies:
        hashes = dict(study.hashes)
        rows.append(
            {
                Column("study", "Study", printed=any(s.label != s.name for s in studies)): _study(study),
                Column("name", "Name"): Cell.name(study.name),
                Column("plan", "Plan or table"): Cell.name(hashes.get("plan", hashes.get("table", ""))[:_DIGITS]),
                Column("analysis", "Analysis"): Cell.name(hashes["analysis"][:_DIGITS]),
                Column("verdict", "Verdict"): Cell.name(hashes["verdict"][:_DIGITS]),
            }
        )
    return Table.of("hashes", "", rows)


def detectable(comparison: Comparison, value: float) -> str:
    """A difference that could be detected, on the scale that is tested."""
    text = number(value, 2)
    return (
        f"{text} (of logarithms)" if comparison.transform == "log" else with_unit(text, printed_unit(comparison.unit))
    )
