"""From results to `Facts`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import log
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from pydantic import BaseModel

from ablationlab.analysis import wording
from ablationlab.analysis.wording import name_of as metric_of
from ablationlab.core import format
from ablationlab.instrument.replication import words as replication_words
from ablationlab.records.analysis import MACRO, Analysis, Comparison, StabilityAnalysis, StabilityGain
from ablationlab.records.metrics import metric_name
from ablationlab.records.plan import Plan, PlannedRun
from ablationlab.records.results import Results
from ablationlab.records.settings import DEFAULT_REGIME, ModelConfig, Study, StudyText, flattened, looks_like_path
from ablationlab.records.verdict import HypothesisVerdict, VariantVerdict, Verdict
from ablationlab.report.designs import design_lines
from ablationlab.report.paper.architecture import architecture
from ablationlab.report.paper.facts import (
    Apart,
    ArmFacts,
    Bounds,
    CorpusFacts,
    DecisionFacts,
    DesignFacts,
    DiagnosticsFacts,
    EnvironmentFacts,
    EvaluationFacts,
    ExploratoryFacts,
    Facts,
    FigureFacts,
    Finding,
    GainFacts,
    Group,
    HypothesisFacts,
    IdleGain,
    Interim,
    MissingPair,
    Named,
    OverlapFacts,
    OwnText,
    PlanFacts,
    PowerFacts,
    ProbeRow,
    RegimeFacts,
    ReplicationFacts,
    ResultsFacts,
    Settings,
    StabilityFacts,
    StatisticsFacts,
    TableData,
    TrainerArm,
    TrainerFacts,
    TrainingFacts,
)
from ablationlab.report.paper.figures import Picture
from ablationlab.report.probes import ProbeValue, depth_of, read_probes
from ablationlab.report.table import Table
from ablationlab.report.tables.comparisons import comparison_table, difference_of, split
from ablationlab.report.tables.study import criteria_table, direction_table, figure_table, stability_table
from ablationlab.study.ledger import ledger_words
from ablationlab.study.text import paragraphs

#: What the paper gives one by one; the tables of the results folder hold the rest.
MOST_TOLD, MOST_ROWS, MOST_METRICS, MOST_CAVEATS, MOST_ARMS = 4, 24, 8, 6, 5
#: An arm's probe reading is pointed out where its mean is beyond this factor of the baseline's.
APART = 1.5


def facts_of(results: Results, figures: Sequence[Picture] = ()) -> Facts:
    """The facts of results that have an analysis and a verdict, with the *figures* that were drawn."""
    analysis, verdict, plan = results.analysis, results.verdict, results.plan
    assert analysis is not None
    assert verdict is not None
    study = None if plan is None else plan.study
    trained = None if plan is None or plan.study.trainer is not None else plan  # by this package
    asked, others = split(analysis)
    return Facts(
        study=analysis.study,
        question=analysis.question.strip(),
        baseline=analysis.baseline,
        variants=analysis.variants,
        changed=tuple(name for name in analysis.variants if name != analysis.baseline),
        regimes=analysis.regimes,
        seeds=len(analysis.seeds),
        primary=None if analysis.primary is None else metric_name(analysis.primary),
        registered=any(comparison.label == "registered" for comparison in analysis.comparisons),
        unpaired=any(comparison.design == "unpaired" for comparison in analysis.comparisons),
        sealed=results.sealed,
        interim=Interim(results.ended, len(results.runs)) if results.interim else None,
        plan=None if plan is None else PlanFacts(plan.plan_hash, plan.created[:10], _day(plan.created)),
        source_hash=analysis.source_hash,
        text=None if study is None or study.text is None else _own_text(study.text),
        trainer=None if plan is None or trained is not None else _trainer(plan),
        design=None if trained is None else _design(trained),
        model=None if trained is None else _model(_run_of(trained, analysis.baseline).model),
        arms=() if trained is None else _arms(results.variants, trained),
        corpus=None if trained is None else _corpus(trained),
        training=None if trained is None else _training(trained, analysis),
        ledger=None if analysis.ledger is None else ledger_words(analysis.ledger),
        measures=_measures(results, asked or others),
        statistics=_statistics(asked or others, analysis),
        tie_breakers=analysis.tie_breakers,
        criteria=_criteria(analysis),
        results=_results(analysis, asked, others),
        stability=None if analysis.stability is None else _stability(analysis, analysis.stability, study),
        evaluation=_evaluation(results, analysis),
        diagnostics=None if trained is None or plan is None else _diagnostics(results, analysis, plan),
        replication=_replication(results),
        verdicts=tuple(_decision(analysis, decided) for decided in verdict.verdicts),
        hypotheses=tuple(_hypotheses(analysis, verdict.hypotheses)),
        stages=() if plan is None else tuple(design_lines(plan)),
        deviations=tuple(map(wording.deviation, analysis.deviations)),
        damaged=tuple(Named(damage.file, damage.text.rstrip(".")) for damage in results.problems),
        power=_power(analysis),
        caveats=_caveats(asked),
        environment=None if plan is None else _environment(plan),
        hashes=_hashes(analysis, verdict, plan),
        figures=tuple(
            FigureFacts(picture.key, picture.kind, picture.section, picture.title, picture.caption, picture.alt)
            for picture in figures
        ),
    )


def _own_text(text: StudyText) -> OwnText:
    return OwnText(paragraphs(text.introduction), paragraphs(text.related_work))


# What was trained


def _day(created: str) -> tuple[int, int, int] | None:
    """The day on which the plan was sealed: a date that the same records always have."""
    match = re.match(r"(\d{4})-(\d\d)-(\d\d)", created)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))


def _trainer(plan: Plan) -> TrainerFacts:
    own = plan.study.trainer
    assert own is not None
    arms = []
    for run in (_run_of(plan, name) for name in plan.study.variants):
        flat = flattened(run.settings)
        changes = tuple(Named(key, _value(flat[key])) for key in plan.variants[run.variant].settings if key in flat)
        arms.append(TrainerArm(run.variant, plan.variants[run.variant].about, changes))
    return TrainerFacts(own.title, own.command is not None, tuple(own.metrics), tuple(arms))


def _design(plan: Plan) -> DesignFacts:
    first = plan.runs[0].budget
    tokens = sorted({run.budget.tokens for run in plan.runs})
    return DesignFacts(format.amount(first.parameters), tuple(map(format.count, tokens)), format.amount(first.tokens))


def _run_of(plan: Plan, variant: str) -> PlannedRun:
    """The first run of a variant, in the first regime that has it."""
    return next(run for run in plan.runs if run.variant == variant)


def settings_of(config: BaseModel) -> Settings:
    """A settings table for the template: whole numbers and truth values as they are, other numbers as text."""
    return {key: _plain(value) for key, value in config.model_dump(mode="json").items()}


def _model(model: ModelConfig) -> Settings:
    return {**settings_of(model), **architecture(model)}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return format.setting(value) if isinstance(value, float) else value


def _arms(names: Iterable[str], plan: Plan) -> tuple[ArmFacts, ...]:
    base = _run_of(plan, plan.study.baseline).model
    arms = []
    for run in (_run_of(plan, name) for name in names):
        changes = tuple(
            Named(key.replace("_", " "), _value(value))
            for key, value in run.model
            if key not in ("front", "preset") and value != getattr(base, key)
        )
        arms.append(ArmFacts(run.variant, settings_of(run.model.front), changes, format.count(run.budget.parameters)))
    return tuple(arms)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format.setting(float(value)) if isinstance(value, int | float) else str(value)


def _corpus(plan: Plan) -> CorpusFacts:
    corpus = plan.corpus
    parts = corpus.components if len(corpus.components) > 1 else ()
    shared = [(component.name, component.shared) for component in parts if component.shared is not None]
    removed = corpus.overlap == "remove-from-training"
    overlap = OverlapFacts(
        documents=sum(share.leaked + share.repeated for _, share in shared),
        leaked=sum(share.leaked for _, share in shared),
        removed=removed,
        seen=tuple(Named(name, _percent(share.seen_without if removed else share.seen, 2)) for name, share in shared),
    )
    return CorpusFacts(
        name=Path(corpus.name).name if looks_like_path(corpus.name) else corpus.name,
        mixture=tuple(Named(component.name, _percent(component.weight)) for component in parts),
        tokenizer=corpus.tokenizer,
        train=format.count(corpus.train_tokens),
        validation=format.count(corpus.validation_tokens),
        overlap=overlap if shared else None,
    )


def _percent(share: float, digits: int = 3) -> str:
    return format.with_unit(format.setting(float(f"{100 * share:.{digits}g}")), "%")


def _training(plan: Plan, analysis: Analysis) -> TrainingFacts:
    study, budget = plan.study, plan.runs[0].budget
    regimes = tuple(
        RegimeFacts(name, regime.meaning, (*_flat(regime.model), *_flat(regime.training)))
        for name, regime in study.regimes.items()
    )
    return TrainingFacts(
        settings=settings_of(study.in_regime(DEFAULT_REGIME)[1]),
        steps=format.count(budget.steps),
        tokens=format.count(budget.tokens),
        flops=format.number(float(budget.matmul_flops)),
        precision=plan.execution.precision,
        device=plan.execution.device_name,
        rates=() if study.sweep is None else tuple(map(format.setting, study.sweep.lr)),
        tuned="tuned" in analysis.regimes and "tuned" not in study.regimes,
        regimes=tuple(regime for regime in regimes if regime.changes),
    )


def _flat(table: Mapping[str, Any], prefix: str = "") -> tuple[Named, ...]:
    settings: list[Named] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            settings += _flat(value, f"{prefix}{key} ")
        else:
            settings.append(Named(f"{prefix}{key}".replace("_", " "), _value(value)))
    return tuple(settings)


def _environment(plan: Plan) -> EnvironmentFacts:
    versions = tuple(
        f"{name} ({version})" if " " in version else f"{name} {version}"
        for name, version in plan.environment.versions.items()
    )
    how = plan.execution
    return EnvironmentFacts(versions, how.device_name, how.precision, how.stack_width, how.threads)


def _hashes(analysis: Analysis, verdict: Verdict, plan: Plan | None) -> tuple[Named, ...]:
    last = (Named("analysis", verdict.analysis_hash), Named("verdict", verdict.sealed().seal))
    if plan is None:
        return (Named("table", analysis.source_hash), *last)
    return (
        Named("plan", plan.plan_hash),
        Named("study", plan.study_hash),
        Named("criteria", plan.criteria_hash),
        *(Named(Path(name).name, digest) for name, digest in plan.files.items()),
        *(() if plan.lab_corpus is None else (Named("text", plan.corpus.sha256),)),
        *(() if plan.lab_corpus is None else (Named("tokens", plan.corpus.tokens_sha256),)),
        Named("code", plan.environment.code_hash),
        *last,
    )


# What was compared


def _measures(results: Results, asked: Sequence[Comparison]) -> tuple[Named, ...]:
    names = list(dict.fromkeys(comparison.metric for comparison in asked))[:MOST_METRICS]
    metrics = {name: results.metric(name) for name in names}
    return tuple(
        Named(metric_name(name), metric.meaning) for name, metric in metrics.items() if metric and metric.meaning
    )


def _statistics(asked: Sequence[Comparison], analysis: Analysis) -> StatisticsFacts:
    return StatisticsFacts(
        logarithms=any(comparison.transform == "log" for comparison in analysis.comparisons),
        tests=tuple(dict.fromkeys(comparison.test for comparison in asked)),
        intervals=tuple(dict.fromkeys(comparison.interval for comparison in asked)),
        levels=tuple(sorted({format.setting(comparison.alpha) for comparison in asked})),
        corrections=tuple(dict.fromkeys(comparison.correction for comparison in asked)),
        equivalence=any(comparison.equivalence is not None for comparison in asked),
    )


def _criteria(analysis: Analysis) -> TableData | None:
    """The registered criteria, short enough for a column."""
    table = criteria_table(analysis)
    if not table.rows:
        return None
    alike = len({(criterion.test, criterion.correction) for criterion in analysis.criteria}) == 1
    return _table(table.without("correction", "test") if alike else table.without("correction"), most=len(table.rows))


def _table(table: Table, most: int = MOST_ROWS) -> TableData:
    shown, left = table.first(most)
    return TableData(**shown.typst(), left=left, file=table.key)


def _finding(comparison: Comparison) -> Finding:
    interval, tost, sensitivity = comparison.main_interval, comparison.equivalence, comparison.sensitivity
    shown = difference_of(comparison)
    change: Literal["higher", "lower", "factor", "none", "unknown"]
    if comparison.delta is None:
        change = "unknown"
    elif shown.size.startswith("×"):
        change = "factor"
    elif not any(digit in "123456789∞" for digit in shown.size):
        change = "none"
    else:
        change = "higher" if comparison.delta > 0 else "lower"
    bounds = None
    if interval is not None and interval.low is not None:
        text = format.with_unit(shown.range, "%") if shown.unit == "%" else shown.range
        bounds = Bounds(format.level(interval.level), text)
    return Finding(
        metric=metric_of(comparison),
        variant=comparison.variant,
        reference=comparison.reference,
        regime=comparison.regime,
        change=change,
        amount=format.with_unit(shown.size.lstrip("×"), shown.unit),
        interval=bounds,
        pairs=comparison.n,
        sample=comparison.sample if comparison.design == "unpaired" else "",
        p=None if comparison.p_adjusted is None else format.p_clause(comparison.p_adjusted),
        correction=comparison.correction,
        outcome=comparison.outcome,
        equivalent=None if tost is None else tost.equivalent,
        bounds=None if tost is None else format.setting(tost.bounds[1]),
        sensitive=None if sensitivity is None else sensitivity.sensitive,
    )


def _results(analysis: Analysis, asked: list[Comparison], others: list[Comparison]) -> ResultsFacts:
    regimes = len(analysis.regimes)
    primary = [comparison for comparison in asked if comparison.role == "primary"]
    rest = [comparison for comparison in asked if comparison.role != "primary"]
    return ResultsFacts(
        registered=_table(comparison_table("registered", "", asked, regimes)) if asked else None,
        exploratory=_tested(others, regimes),
        primary=_group(primary),
        others=_group([comparison for comparison in rest if comparison.reference == analysis.baseline]),
        between=_group([comparison for comparison in rest if comparison.reference != analysis.baseline]),
        found=_exploratory(others),
    )


def _tested(others: Sequence[Comparison], regimes: int) -> TableData | None:
    """The exploratory comparisons that were tested; the CSV file has all."""
    tested = [comparison for comparison in others if comparison.outcome != "not-tested"]
    if not tested:
        return None
    shown = _table(comparison_table("exploratory", "", tested, regimes).without("equivalent"))
    return replace(shown, left=len(others) - len(shown.rows))


def _group(comparisons: Sequence[Comparison]) -> Group | None:
    """Each comparison; of many, those with a result first."""
    if not comparisons:
        return None
    order = sorted(comparisons, key=lambda comparison: comparison.outcome in ("not-shown", "not-tested"))
    told = [comparison for comparison in comparisons if comparison in order[:MOST_TOLD]]
    missing = dict.fromkeys(
        MissingPair(str(gone.seed), gone.arm, wording.absence(gone))
        for comparison in comparisons
        if comparison.n != comparison.planned_pairs
        for gone in comparison.missing
    )
    return Group(
        told=tuple(map(_finding, told)),
        left=len(comparisons) - len(told),
        missing=tuple(missing)[:MOST_TOLD],
        missing_left=max(0, len(missing) - MOST_TOLD),
    )


def _exploratory(others: Sequence[Comparison]) -> ExploratoryFacts:
    different = [comparison for comparison in others if comparison.outcome in ("better", "worse", "different")]
    metrics = tuple(dict.fromkeys(map(metric_of, different)))
    first_of_metric = {comparison.metric: comparison for comparison in reversed(different)}
    told = [comparison for comparison in different if first_of_metric[comparison.metric] is comparison]
    return ExploratoryFacts(
        comparisons=len(others),
        different=len(different),
        metrics=metrics[:MOST_METRICS],
        metrics_left=max(0, len(metrics) - MOST_METRICS),
        told=tuple(map(_finding, told[:3])),
    )


def _stability(analysis: Analysis, stability: StabilityAnalysis, study: Study | None) -> StabilityFacts:
    known = [arm for arm in stability.arms if arm.unstable is not None]
    runs = {run.run: run for run in stability.runs if run.unstable is not None}  # one may stand in two regimes
    scores = [arm.largest_spike_score for arm in known if arm.largest_spike_score is not None]
    gains = [gain for gain in stability.gains if gain.reference == analysis.baseline]
    idle = next((gain for gain in gains if gain.low is not None and gain.high is not None), None)
    table = stability_table(analysis)
    assert table is not None
    compared = any(run.loss is not None and run.initial_loss is not None for run in runs.values())
    worse = "off" if study is None or not compared else study.stability.worse_than_start
    return StabilityFacts(
        threshold=format.setting(stability.threshold),
        worse_than_start=None if worse == "off" else format.setting(worse),
        known=bool(known),
        unstable=any(arm.unstable for arm in known),
        runs=len(runs),
        unstable_runs=sum(bool(run.unstable) for run in runs.values()),
        diverged=sum(run.state == "diverged" for run in runs.values()),
        largest=format.number(max(scores)) if scores else None,
        gains=tuple(map(_gain, gains)),
        idle_gain=None if idle is None else IdleGain(idle.n, format.percent(idle.low), format.percent(idle.high)),
        table=_table(table),
    )


def _gain(gain: StabilityGain) -> GainFacts:
    bounds = None
    if gain.low is not None and gain.high is not None:
        bounds = Bounds(format.level(gain.level), f"{format.percent(gain.low)} to {format.percent(gain.high)}")
    return GainFacts(
        variant=gain.variant,
        regime=gain.regime,
        pairs=gain.n,
        reference_unstable=gain.reference_unstable,
        variant_unstable=gain.variant_unstable,
        estimate=None if gain.estimate is None else format.percent(gain.estimate),
        interval=bounds,
    )


def _evaluation(results: Results, analysis: Analysis) -> EvaluationFacts:
    tasks = [comparison for comparison in analysis.comparisons if comparison.task not in (None, MACRO)]
    accuracy = _family(results, analysis, "accuracy", "task-accuracy")
    calibration = _family(results, analysis, "calibration")
    return EvaluationFacts(
        named=results.plan is not None and bool(results.plan.study.evaluation.tasks),
        tasks=len({comparison.task for comparison in tasks}),
        told=tuple(_finding(comparison) for comparison in [f for f in accuracy if f not in tasks][:MOST_TOLD]),
        insensitive=tuple(
            sorted(
                {
                    str(comparison.task)
                    for comparison in tasks
                    if comparison.sensitivity and not comparison.sensitivity.sensitive
                }
            )
        ),
        calibration=tuple(map(_finding, calibration[:MOST_TOLD])),
        calibration_left=max(0, len(calibration) - MOST_TOLD),
    )


def _family(results: Results, analysis: Analysis, *names: str) -> list[Comparison]:
    """Comparisons with the baseline in metrics of these families, whole metrics and macro averages first."""
    comparisons = [
        comparison
        for comparison in analysis.comparisons
        if comparison.reference == analysis.baseline
        and (metric := results.metric(comparison.metric)) is not None
        and metric.family in names
    ]
    return sorted(comparisons, key=lambda comparison: comparison.task not in (None, MACRO))


def _replication(results: Results) -> ReplicationFacts | None:
    replication = results.replication
    if replication is None:
        return None
    figures, directions = figure_table(replication), direction_table(replication)
    return ReplicationFacts(
        title=replication.title,
        citation=replication.citation,
        date=replication.date,
        about=replication.about,
        conclusions=(*replication_words.warnings(replication), *replication_words.conclusions(replication)),
        level=format.level(replication.level),
        figures=_table(figures, len(figures.rows)) if figures.rows else None,
        directions=_table(directions, len(directions.rows)) if directions.rows else None,
    )


# What the probes read


def _diagnostics(results: Results, analysis: Analysis, plan: Plan) -> DiagnosticsFacts | None:
    """The last readings of the first regime, per chart that the plan declares over steps or depth: mean and SD over seeds."""
    regime = analysis.regimes[0]
    charts = [(name, chart) for name, probe in plan.probes.items() for chart in probe.charts]
    shown = [(name, chart) for name, chart in charts if chart.over in ("steps", "depth")]
    readings, _ = read_probes(results, {(name, chart.measure) for name, chart in shown})
    values: dict[str, dict[str, list[float]]] = {}
    for name, chart in shown:
        by_run: dict[str, list[ProbeValue]] = {}
        for reading in readings.get((name, chart.measure), ()):
            if reading.run.regime == regime and (chart.over == "depth" or reading.group == chart.group):
                by_run.setdefault(reading.run.id, []).append(reading)
        label = chart.title if chart.over == "steps" else f"{chart.title.partition(',')[0]}: last block"
        for of_run in by_run.values():
            last = max(of_run, key=lambda reading: (reading.step, depth_of(reading.group) or 0))
            values.setdefault(label, {}).setdefault(last.run.variant, []).append(last.value)
    if not values:
        return None
    probed = [name for name in results.variants if any(name in by_arm for by_arm in values.values())]
    arms = tuple(probed[:MOST_ARMS])
    apart = tuple(_apart(arm, analysis.baseline, values) for arm in arms if arm != analysis.baseline)
    return DiagnosticsFacts(
        regime=regime,
        arms=arms,
        left=len(probed) - len(arms),
        rows=tuple(ProbeRow(label, tuple(_mean(by_arm.get(arm)) for arm in arms)) for label, by_arm in values.items()),
        factor=format.setting(APART),
        apart=tuple(arm for arm in apart if arm.measures),
    )


def _apart(arm: str, baseline: str, values: Mapping[str, Mapping[str, list[float]]]) -> Apart:
    """Where the means of an arm are beyond the factor, the farthest first."""
    ratios = {}
    for key, by_arm in values.items():
        if baseline in by_arm and arm in by_arm:
            ours, reference = fmean(by_arm[arm]), fmean(by_arm[baseline])
            if ours > 0 and reference > 0 and not 1 / APART <= ours / reference <= APART:
                ratios[key] = ours / reference
    far = sorted(ratios.items(), key=lambda item: -abs(log(item[1])))
    return Apart(arm, tuple(Named(key, format.number(ratio)) for key, ratio in far[:3]), max(0, len(far) - 3))


def _mean(values: list[float] | None) -> str:
    return format.mean_sd(fmean(values), stdev(values) if len(values) > 1 else None) if values else format.DASH


# What was decided


def _primary(analysis: Analysis, verdict: VariantVerdict) -> Comparison | None:
    """The comparison that decides on a variant in a regime."""
    here = (verdict.regime, verdict.variant, analysis.baseline)
    metrics = [
        comparison.metric
        for comparison in analysis.comparisons
        if comparison.role == "primary" and (comparison.regime, comparison.variant, comparison.reference) == here
    ]
    metric = metrics[0] if metrics else analysis.primary
    return analysis.comparison(metric, *here) if metric else None


def _decision(analysis: Analysis, verdict: VariantVerdict) -> DecisionFacts:
    comparison, words = _primary(analysis, verdict), wording.verdict_words(analysis, verdict)
    return DecisionFacts(
        variant=verdict.variant,
        regime=verdict.regime,
        decision=verdict.decision,
        rule=verdict.rule,
        label=verdict.label,
        finding=None if comparison is None else _finding(comparison),
        why=words.why.rstrip("."),
        recommendation=words.recommendation,
        fragility=words.fragility or None,
    )


def _on_tested_scale(value: float, comparison: Comparison | None, digits: int = 3) -> str:
    text = format.number(value, digits)
    if comparison is None:
        return text
    return (
        f"{text} (difference of logarithms)"
        if comparison.transform == "log"
        else format.with_unit(text, comparison.unit)
    )


def _hypotheses(analysis: Analysis, hypotheses: Mapping[str, HypothesisVerdict]) -> Iterator[HypothesisFacts]:
    for key, hypothesis in hypotheses.items():
        why = wording.hypothesis_why(analysis, hypothesis)
        yield HypothesisFacts(key, hypothesis.statement, hypothesis.status, why)


def _power(analysis: Analysis) -> PowerFacts | None:
    against = [power for power in analysis.power if power.comparison.endswith(f":{analysis.baseline}")]
    if not against:
        return None
    worst = max(against, key=lambda power: power.detectable_80)
    comparison = next((found for found in analysis.comparisons if found.id == worst.comparison), None)
    if comparison is None:
        return None
    effect = worst.smallest_effect
    return PowerFacts(
        pairs=worst.n,
        sd=format.number(worst.delta_sd, 2),
        detectable=_on_tested_scale(worst.detectable_80, comparison, 2),
        metric=metric_of(comparison),
        smallest_effect=None if effect is None else format.setting(effect),
        enough=effect is not None and worst.detectable_80 <= effect,
        needed=worst.pairs_80,
    )


def _caveats(asked: Iterable[Comparison]) -> tuple[str, ...]:
    """Caveats about the pairs and about the interval and test that decide, each once; statistics.md has the others."""
    texts = dict.fromkeys(
        wording.caveat(caveat)
        for comparison in asked
        for caveat in comparison.caveats
        if caveat.about in ("", comparison.test, comparison.interval)
    )
    return tuple(texts)[:MOST_CAVEATS]
