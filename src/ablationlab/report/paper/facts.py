"""What a paper reads of one study: its records, and what is picked from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

from ablationlab.analysis import wording
from ablationlab.analysis.comparisons import TIMED
from ablationlab.analysis.stability import is_swept_place
from ablationlab.analysis.wording import ledger_of
from ablationlab.analysis.wording import name_of as metric_of
from ablationlab.core import format
from ablationlab.core.grouping import grouped
from ablationlab.instrument.replication import words as replication_words
from ablationlab.records.analysis import (
    MACRO,
    Analysis,
    ArmStability,
    Comparison,
    Deviation,
    DeviationCode,
    LedgerInput,
    Missing,
    Power,
    Seed,
    StabilityGain,
)
from ablationlab.records.metrics import is_accuracy, metric_name
from ablationlab.records.plan import Calibrated, Plan, PlannedRun
from ablationlab.records.probes import AT_THE_END, depth_of
from ablationlab.records.results import Results
from ablationlab.records.settings import (
    DEFAULT_REGIME,
    TUNED,
    Author,
    Calibrate,
    ModelConfig,
    Regime,
    StudyText,
    TrainingConfig,
    flattened,
)
from ablationlab.records.settings import looks_like_path as is_path
from ablationlab.records.verdict import Guard, HypothesisVerdict, VariantVerdict, Verdict
from ablationlab.report.designs import calibrated_lines, design_lines
from ablationlab.report.naming import printed_unit
from ablationlab.report.probes import at_the_end, read_probes
from ablationlab.report.tables.comparisons import split
from ablationlab.stats.results import CaveatCode

#: An arm's probe reading is pointed out where its mean is beyond this factor of the baseline's.
APART = 1.5
#: Settings of the model that a sentence of the methods names.
_NAMED = frozenset(
    "preset layers width heads context vocabulary mlp mlp_ratio norm norm_place norm_eps position tied final_norm "  # noqa: SIM905
    "head_bias init_std token_init_std position_init_std scaled_residual_init dropout front loss_terms redraw".split()
)


#: Where a difference in stability may be shown.
Place = StabilityGain | Comparison


@dataclass(frozen=True)
class Decided:
    """A verdict, and the comparison that decides."""

    verdict: VariantVerdict
    primary: Comparison | None

    @property
    def exploratory(self) -> bool:
        return self.verdict.label == "exploratory"


@dataclass(frozen=True)
class LastReading:
    """What a probe read last: mean and SD over seeds, per arm; *field* is its column and *runs* are the runs of an arm."""

    label: str
    arms: Mapping[str, tuple[float, float | None]]
    field: str
    runs: Mapping[str, tuple[str, ...]]


class StudyView:
    """One study of a paper, with an analysis and a verdict."""

    def __init__(self, results: Results) -> None:
        assert results.analysis is not None
        assert results.verdict is not None
        self.results = results
        self.analysis: Analysis = results.analysis
        self.verdict: Verdict = results.verdict
        self.plan: Plan | None = results.plan
        self.own_trainer = results.own_trainer
        self.name = self.label = self.analysis.study  # a paper over several studies may have other labels
        self.question = self.analysis.question.strip()
        self.baseline = self.analysis.baseline
        self.regimes = self.analysis.regimes
        self.variants = self.analysis.variants
        self.changed = tuple(name for name in self.variants if name != self.baseline)
        self.asked, self.others = split(self.analysis)

    # What it is

    @property
    def from_table(self) -> bool:
        return self.plan is None

    @property
    def trained(self) -> Plan | None:
        """The plan of a study that this package trained."""
        return None if self.plan is None or self.own_trainer else self.plan

    @property
    def text(self) -> StudyText | None:
        return None if self.plan is None else self.plan.study.text

    @property
    def authors(self) -> tuple[Author, ...]:
        return () if self.plan is None else self.plan.study.authors

    @property
    def day(self) -> tuple[int, int, int] | None:
        """The day on which the plan was sealed: a date that the same records always have."""
        match = re.match(r"(\d{4})-(\d\d)-(\d\d)", "" if self.plan is None else self.plan.created)
        return None if match is None else (int(match[1]), int(match[2]), int(match[3]))

    @property
    def registered(self) -> bool:
        return any(comparison.label == "registered" for comparison in self.analysis.comparisons)

    @property
    def unpaired(self) -> bool:
        return any(comparison.design == "unpaired" for comparison in self.analysis.comparisons)

    @property
    def asked_unpaired(self) -> bool:
        return any(comparison.asked_unpaired for comparison in self.analysis.comparisons)

    @property
    def interim(self) -> bool:
        return self.results.interim

    # How it was trained

    def first_run(self, variant: str) -> PlannedRun:
        assert self.plan is not None
        return next(run for run in self.plan.runs if run.variant == variant)

    @property
    def model(self) -> ModelConfig:
        return self.first_run(self.baseline).model

    @property
    def further_settings(self) -> list[str]:
        """Settings of the model that are not GPT-2's and that no sentence of the methods names."""
        fields = type(self.model).model_fields
        return [
            setting_words(key, value)
            for key, value in self.model.model_dump(mode="json").items()
            if key not in _NAMED and value != fields[key].get_default(call_default_factory=True)
        ]

    def blockless(self, regime: str) -> bool:
        """Whether the baseline of a regime has no Transformer block."""
        runs = () if self.trained is None else self.trained.runs
        return any(run.model.layers == 0 for run in runs if (run.variant, run.regime) == (self.baseline, regime))

    @property
    def fronts_differ(self) -> bool:
        """Whether arms differ in what block 1 reads."""
        return self.trained is not None and len({run.model.front for run in self.trained.runs}) > 1

    @property
    def blockless_regimes(self) -> list[str]:
        """The regimes of answers in which that is so."""
        return [name for name in dict.fromkeys(d.verdict.regime for d in self.decided) if self.blockless(name)]

    @property
    def training(self) -> TrainingConfig:
        assert self.plan is not None
        return self.plan.study.in_regime(DEFAULT_REGIME)[1]

    @property
    def dropout(self) -> bool:
        return self.trained is not None and any(run.model.dropout for run in self.trained.runs)

    @property
    def unswept(self) -> bool:
        """Whether every arm was trained at one learning rate only, which no sweep chose."""
        return self.trained is not None and self.trained.study.sweep is None

    @property
    def own_rates(self) -> list[PlannedRun]:
        """The first run of every arm that is trained, without a sweep, at another learning rate than the baseline."""
        if not self.unswept:
            return []
        rate = self.first_run(self.baseline).training.lr
        return [run for name in self.changed if (run := self.first_run(name)).training.lr != rate]

    @property
    def rate_is_shared(self) -> bool:
        """Whether all arms were trained at one learning rate only, the same for all of a regime."""
        return self.unswept and not self.own_rates

    @property
    def tuned(self) -> bool:
        return self.plan is not None and TUNED in self.regimes and TUNED not in self.plan.study.regimes

    @property
    def fitted_rates(self) -> bool:
        """Whether the loss of tuned arms is that at a fitted rate, and not at one that was trained."""
        return self.tuned and self.analysis.sweep is not None and self.analysis.sweep.tuned_at == "fitted-minima"

    @property
    def corpus(self) -> str:
        assert self.plan is not None
        name = self.plan.corpus.name
        return Path(name).name if is_path(name) else name

    @property
    def mixture(self) -> tuple[Any, ...]:
        assert self.plan is not None
        parts = self.plan.corpus.components
        return parts if len(parts) > 1 else ()

    @property
    def overlap(self) -> tuple[int, int, list[tuple[str, Any, str]]] | None:
        """Training documents that occur twice in a mixture, those of them in a validation split, and (corpus, record, field)
        of the validation words that training has, too."""
        assert self.plan is not None
        shared = [(part.name, part.shared) for part in self.mixture if part.shared is not None]
        if not shared:
            return None
        seen = "seen_without" if self.plan.corpus.overlap == "remove-from-training" else "seen"
        return (
            sum(share.leaked + share.repeated for _, share in shared),
            sum(share.leaked for _, share in shared),
            [(name, share, seen) for name, share in shared],
        )

    @property
    def regime_settings(self) -> list[tuple[str, Regime, list[str]]]:
        """(name, the regime, what it sets in words) of the regimes that set something."""
        assert self.plan is not None
        found = []
        for name, regime in self.plan.study.regimes.items():
            training = dict(regime.training)
            found_by = self.plan.calibrations.get(name)
            if found_by is not None and regime.calibrate is not None:
                training = _calibrated(training, regime.calibrate, found_by.value)
            settings = [*_flat(regime.model), *_flat(training)]
            if settings:
                found.append((name, regime, settings))
        return found

    def formula_of(self, variant: str) -> str:
        """The formula that an arm declares; one of what block 1 reads does not tell what an arm changes elsewhere."""
        assert self.plan is not None
        model = self.first_run(variant).model
        formula = self.plan.variants[variant].formula_in(model)
        tells = variant == self.baseline or model.front != self.model.front or "E_tok" not in formula
        return formula if tells else ""

    def changes(self, variant: str) -> str:
        """What an arm changes: the formula that it declares, or the settings in which it differs."""
        assert self.plan is not None
        declared = self.plan.variants[variant]
        run = self.first_run(variant)
        if self.own_trainer:
            flat = flattened(run.settings)
            return "; ".join(f"{key} = {_value(flat[key])}" for key in declared.settings if key in flat)
        rate = [setting_words("lr", run.training.lr)] if variant in (one.variant for one in self.own_rates) else []
        base = self.first_run(self.baseline)
        if formula := self.formula_of(variant):
            front_alone = run.model.front != base.model.front and _same_blocks(run, base)
            return ", ".join([front_formula(run.model) if front_alone else formula, *rate])
        if variant == self.baseline and self.plan.study.factors is not None:
            return f"block 1 reads {front_formula(run.model)}"
        reads = [] if run.model.front == base.model.front else [f"block 1 reads {front_formula(run.model)}"]
        alike = (name for name in self.changed if self.first_run(name).model.front == base.model.front)
        if reads and (same := next((name for name in alike if _same_blocks(run, self.first_run(name))), "")):
            return ", ".join([f"as {same}", *rate, *reads])
        different = [
            setting_words(key, value)
            for own, theirs in ((run.model, base.model), (run.training, base.training))
            for key, value in own
            if key not in ("front", "preset", "lr", "steps", "tokens") and value != getattr(theirs, key)
            if not (key == "vocabulary" and declared.data)
        ]
        different += [setting_words(key, value) for key, value in declared.data.items()]
        return ", ".join([*different, *rate, *reads]) or declared.about

    @property
    def reads_differ(self) -> bool:
        """Whether arms differ in what block 1 reads."""
        fronts = [self.first_run(name).model.front for name in self.variants] if self.trained else []
        return any(front != fronts[0] for front in fronts)

    @property
    def norms(self) -> set[str]:
        """The kinds of norm in which arms differ."""
        models = [self.first_run(name).model for name in self.variants] if self.trained else []
        places: list[set[str]] = [{m.norm for m in models}, {m.qk_norm for m in models}, {m.front.norm for m in models}]
        return {norm for kinds in places if len(kinds) > 1 for norm in kinds}

    @property
    def cited_parts(self) -> list[tuple[str, str]]:
        """(name, reference) of what arms use of the literature and no sentence of the methods explains."""
        runs = () if self.trained is None else self.trained.runs
        used = {(key, getattr(part, key)) for run in runs for key, part in _literature(run)}
        return [(setting_words(*place), _REFERENCES[place]) for place in _REFERENCES if place in used]

    @property
    def other_texts(self) -> list[tuple[str, str, str]]:
        """Of every arm that changes [data]: its name, its text and its tokenizer."""
        records = {run.variant: run.record for run in self.results.runs if run.record is not None}
        changed = [name for name in self.changed if self.plan is not None and self.plan.variants[name].data]
        texts = [(name, record.corpus) for name in changed if (record := records.get(name)) is not None]
        return [(name, text.name, text.tokenizer) for name, text in texts if text is not None]

    @property
    def other_batches(self) -> bool:
        """Whether arms of one seed see other batches, by what they declare."""
        ledger = self.analysis.ledger
        return ledger is not None and any(unlike.name == LedgerInput.ORDER for unlike in ledger.differs)

    @property
    def budget_shared(self) -> bool:
        """Whether all arms of a regime have the same number of tokens."""
        tokens: dict[str, set[int]] = {}
        for run in () if self.trained is None else self.trained.runs:
            tokens.setdefault(run.regime, set()).add(run.budget.tokens)
        return bool(tokens) and all(len(budgets) == 1 for budgets in tokens.values())

    @property
    def cut_short(self) -> bool:
        """Whether a run diverged, and so ended before its budget."""
        return any(run.state == "diverged" for run in self.results.runs)

    @property
    def hypotheses(self) -> Mapping[str, HypothesisVerdict]:
        return self.verdict.hypotheses

    def judged_on(self, hypothesis: HypothesisVerdict) -> str:
        """The metric of a hypothesis; a macro average names its tasks."""
        found = next((c for c in self.analysis.comparisons if c.metric == hypothesis.metric and c.averaged), None)
        return metric_name(hypothesis.metric or "") if found is None else metric_of(found)

    @property
    def shown_stability(self) -> tuple[list[Place], list[Place]]:
        """The registered places at which a variant is shown more stable than the baseline, and those at which less."""
        stability = self.analysis.stability
        gains = () if stability is None else (*stability.gains, *stability.parts)
        asked = [gain for gain in gains if gain.registered and gain.reference == self.baseline]
        swept = [c for c in self.analysis.comparisons if is_swept_place(c, self.baseline)]
        more: list[Place] = [g for g in asked if g.outcome == "more-stable"]
        less: list[Place] = [g for g in asked if g.outcome == "less-stable"]
        more += [c for c in swept if c.outcome == "better"]
        less += [c for c in swept if c.outcome == "worse"]
        return more, less

    @property
    def primary_unit(self) -> str:
        units = {printed_unit(comparison.unit) for comparison in self.primaries}
        return f" ({units.pop()})" if len(units) == 1 and units != {""} else ""

    @property
    def ledger(self) -> str:
        return ledger_of(self.analysis)

    @property
    def stages(self) -> list[str]:
        """The design's looks, equal times and amendments; calibrations are told in a sentence of their own."""
        if self.plan is None:
            return []
        calibrations = calibrated_lines(self.plan)
        return [line for line in design_lines(self.plan) if line not in calibrations]

    @property
    def calibrations(self) -> list[tuple[str, Calibrated]]:
        return [] if self.plan is None else list(self.plan.calibrations.items())

    @property
    def calibrated_rate(self) -> bool:
        """Whether a regime's learning rate was chosen by what it does to the baseline."""
        return any(found.setting == "training.lr" for _, found in self.calibrations)

    # What was compared

    @property
    def primary_name(self) -> str:
        return "" if self.analysis.primary is None else metric_name(self.analysis.primary)

    @cached_property
    def decided(self) -> list[Decided]:
        """What is registered first."""
        decided = [
            Decided(
                verdict,
                self.analysis.primary_comparison(verdict.regime, verdict.variant),
            )
            for verdict in self.verdict.verdicts
        ]
        return sorted(decided, key=lambda one: one.exploratory)

    @property
    def primaries(self) -> list[Comparison]:
        """The comparisons that decide, one for each verdict."""
        return [decided.primary for decided in self.decided if decided.primary is not None]

    @property
    def registered_primaries(self) -> list[Comparison]:
        """Those that were registered; all where none was."""
        return [c for c in self.primaries if c.label == "registered"] or self.primaries

    @property
    def secondaries(self) -> list[Comparison]:
        """What else the criteria ask of variants and the baseline; results first."""
        rest = [c for c in self.asked if c not in self.primaries and c.reference == self.baseline]
        return sorted(rest, key=lambda comparison: comparison.outcome in ("not-shown", "not-tested", "gated"))

    @property
    def other_criteria(self) -> list[Comparison]:
        """Those of the criteria, and not of the measures of smoothness, which no criterion names."""
        return [c for c in self.secondaries if c.role != "stability"]

    @property
    def smoothness(self) -> list[Comparison]:
        return [c for c in self.secondaries if c.role == "stability"]

    @property
    def criteria_by_metric(self) -> list[list[Comparison]]:
        """What else the criteria ask of variants and the baseline, beside accuracies and where verdicts are registered."""
        regimes = {comparison.regime for comparison in self.registered_primaries}
        asked = [c for c in self.secondaries if c.regime in regimes and c not in self.accuracies]
        return list(grouped((c.metric, c) for c in self.told_once(asked)).values())

    def told_once(self, comparisons: Sequence[Comparison]) -> list[Comparison]:
        """Those that a text tells: what the regime of tuned rates repeats, since an arm's rate is the same there, once."""
        seen = {(c.metric, c.variant, c.delta, c.n): c for c in reversed(comparisons)}
        return [c for c in comparisons if seen[c.metric, c.variant, c.delta, c.n] is c]

    @property
    def tie_breakers(self) -> list[str]:
        """The registered ones that were measured, in their order: metrics, or families of metrics."""
        asked = [c for c in self.analysis.comparisons if c.reference == self.baseline and c.direction is not None]
        metrics = {c.metric for c in asked if not c.at_grid_rates}
        known = metrics | {self.analysis.metrics[name].family for name in metrics}
        return [name for name in self.analysis.tie_breakers if name in known]

    def guard_of(self, comparison: Comparison) -> Guard | None:
        """What is shown of a guard's margin, where the comparison is one that has a margin."""
        if comparison.margin is None:
            return None
        guards = (guard for d in self.decided for guard in d.verdict.guards)
        return next((guard for guard in guards if guard.comparison == comparison.id), None)

    @property
    def lead_primaries(self) -> list[Comparison]:
        """The exploratory ones of the comparisons that decide, where others are registered."""
        return [c for c in self.primaries if c not in self.registered_primaries]

    @property
    def between(self) -> list[Comparison]:
        return [c for c in self.asked if c.reference != self.baseline]

    @property
    def between_primaries(self) -> list[Comparison]:
        """The registered ones of variants on the primary metric: where settings are crossed, effects within a level."""
        return [c for c in self.between if c.label == "registered" and c.metric == self.analysis.primary]

    @property
    def crossed(self) -> bool:
        return self.analysis.interactions is not None

    @property
    def further(self) -> list[Comparison]:
        """What the criteria ask beside the comparisons that decide."""
        return [*self.secondaries, *self.between]

    @property
    def missing(self) -> list[Missing]:
        """Pairs that are missing from what the criteria ask, each once."""
        found: dict[tuple[Seed, str, str], Missing] = {}
        for comparison in self.primaries:
            for gone in comparison.missing if comparison.n != comparison.planned_pairs else ():
                found.setdefault((gone.seed, gone.arm, wording.absence(gone)), gone)
        return list(found.values())

    @property
    def incomplete(self) -> bool:
        """Whether a mean is over fewer runs than planned, and so over survivors."""
        return any(comparison.n < comparison.planned_pairs for comparison in self.primaries)

    @property
    def paired_gain(self) -> list[Comparison]:
        """Comparisons that decide, where it is known how much of the variance pairing removed."""
        return [c for c in self.primaries if c.variance_reduction is not None and c.n > 2 and self.calm(c)]

    @property
    def shown_others(self) -> list[Comparison]:
        """Exploratory comparisons that show a difference."""
        return [c for c in self.others if c.outcome in ("better", "worse", "different")]

    @property
    def speeds(self) -> bool:
        """Whether speeds were compared, which are an exploratory family of their own."""
        return any(comparison.family == TIMED for comparison in self.others)

    @property
    def shared_tests(self) -> bool:
        """Whether an exploratory comparison shares the test of one that a criterion asks for."""
        asked = {comparison.id for comparison in self.asked}
        return any(comparison.shares_test_of in asked for comparison in self.others)

    @property
    def different(self) -> list[Comparison]:
        """Those of them that are leads: of a metric and those that follow from it, one."""
        return [c for c in self.shown_others if c.shares_test_of is None]

    def calm(self, comparison: Comparison) -> bool:
        """Whether no run of either arm was unstable, as far as that is known."""
        stability = self.analysis.stability
        arms = () if stability is None else (comparison.variant, comparison.reference)
        found = [stability.arm(name, comparison.regime) for name in arms if stability is not None]
        return not any(arm is not None and arm.unstable for arm in found)

    @property
    def criteria_alike(self) -> bool:
        return len({(c.test, c.correction) for c in self.analysis.criteria}) == 1

    # Stability

    @property
    def arms(self) -> list[ArmStability]:
        stability = self.analysis.stability
        return [] if stability is None else [arm for arm in stability.arms if arm.unstable is not None]

    @property
    def judged(self) -> list[Any]:
        """The runs of which it is known whether they were unstable, each once: one may stand in two regimes."""
        stability = self.analysis.stability
        runs = () if stability is None else stability.runs
        return list({run.run: run for run in runs if run.unstable is not None}.values())

    @property
    def unstable(self) -> int:
        return sum(bool(run.unstable) for run in self.judged)

    @property
    def diverged(self) -> int:
        return sum(run.state == "diverged" for run in self.judged)

    @property
    def spikes_known(self) -> bool:
        return any(run.spike_score is not None for run in self.judged)

    @property
    def gains(self) -> list[StabilityGain]:
        """Gains over the baseline where a run of either arm was unstable; those that are shown first."""
        stability = self.analysis.stability
        found = [] if stability is None else [g for g in stability.gains if g.reference == self.baseline]
        telling = [gain for gain in found if gain.reference_unstable + gain.variant_unstable]
        return sorted(telling, key=lambda gain: gain.outcome in ("not-shown", "not-tested"))

    @property
    def idle_gain(self) -> StabilityGain | None:
        stability = self.analysis.stability
        found = () if stability is None else stability.gains
        return next((g for g in found if g.reference == self.baseline and g.low is not None), None)

    @property
    def worse_than_start(self) -> float | None:
        """The third rule of instability: the factor of the first loss, where it was applied."""
        known = any(run.loss is not None and run.initial_loss is not None for run in self.judged)
        limit = "off" if self.plan is None or not known else self.plan.study.stability.worse_than_start
        return None if limit == "off" else float(limit)

    # Tasks, calibration, probes

    def family(self, *names: str) -> list[Comparison]:
        """Comparisons with the baseline in metrics of these families that the criteria do not ask; whole metrics first."""
        found = [
            comparison
            for comparison in self.analysis.comparisons
            if comparison.reference == self.baseline
            and (metric := self.results.metric(comparison.metric)) is not None
            and metric.family in names
        ]
        return sorted(found, key=lambda comparison: comparison.task not in (None, MACRO))

    @property
    def accuracies(self) -> list[Comparison]:
        """Of whole metrics, against the baseline, each once: what is shown worse first, then the other differences."""
        found = [
            comparison
            for comparison in self.analysis.comparisons
            if comparison.reference == self.baseline
            and comparison.task in (None, MACRO)
            and (metric := self.results.metric(comparison.metric)) is not None
            and is_accuracy(metric)
            and comparison not in self.primaries
        ]
        order = {"worse": 0, "better": 1, "different": 1}
        return sorted(self.told_once(found), key=lambda comparison: order.get(comparison.outcome, 2))

    @property
    def calibration(self) -> list[Comparison]:
        return [c for c in self.family("calibration") if c not in self.primaries]

    @property
    def tasks(self) -> list[str]:
        """The tasks by name, each once, however many examples its prompts show."""
        tasks = (comparison.task for comparison in self.analysis.comparisons)
        return list(dict.fromkeys(task.name for task in tasks if task is not None and task != MACRO))

    @property
    def insensitive(self) -> list[str]:
        """Tasks whose accuracy did not pass the gate; of those that pass in some places, the places where it did not."""
        part = self.analysis.evaluation
        failed: list[str] = []
        for name, asked in grouped((each.task.name, each) for each in (() if part is None else part.tasks)).items():
            open_ones = [each for each in asked if not each.sensitivity.sensitive]
            several = len(self.regimes) > 1
            places = [each.task.label + (f" in {each.regime}" if several else "") for each in open_ones]
            failed += [name] if len(open_ones) == len(asked) else places
        return failed

    @property
    def not_measured(self) -> list[str]:
        """What a reader may look for and the records do not have."""
        known = {
            "training": not self.from_table,
            "stability": bool(self.arms),
            "accuracy": bool(self.tasks or self.accuracies),
            "calibration": bool(self.family("calibration")),
        }
        return [name for name, there in known.items() if not there]

    @cached_property
    def probes(self) -> list[LastReading]:
        """The last readings of the first regime, per chart over steps or depth that the plan has; diverged runs have none."""
        if self.trained is None:
            return []
        charts = [(name, chart) for name, probe in self.trained.probes.items() for chart in probe.charts]
        shown = [(name, chart) for name, chart in charts if chart.over in ("steps", "depth")]
        readings, _ = read_probes(self.results, {(name, chart.measure) for name, chart in shown})
        values: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
        for name, chart in shown:
            of_chart = [
                reading
                for reading in readings.get((name, chart.measure), ())
                if reading.run.regime == self.regimes[0] and (chart.over == "depth" or reading.group == chart.group)
            ]
            by_run = grouped((reading.run.id, reading) for reading in at_the_end(of_chart))
            label = chart.title if chart.over == "steps" else f"{chart.title.removesuffix(AT_THE_END)}: last block"
            for of_run in by_run.values():
                last = max(of_run, key=lambda reading: depth_of(reading.group) or 0)
                arm = values.setdefault((label, f"/{name}/{chart.measure}"), {}).setdefault(last.run.variant, {})
                arm[last.run.id] = last.value
        return [
            LastReading(
                label,
                {
                    arm: (fmean(found.values()), stdev(found.values()) if len(found) > 1 else None)
                    for arm, found in arms.items()
                },
                field,
                {arm: tuple(found) for arm, found in arms.items()},
            )
            for (label, field), arms in values.items()
        ]

    @property
    def apart(self) -> list[tuple[str, list[tuple[LastReading, float]]]]:
        """Arms whose probe readings are beyond the factor of the baseline's, the farthest first."""
        found = []
        for arm in self.changed:
            ratios = []
            for reading in self.probes:
                if self.baseline in reading.arms and arm in reading.arms:
                    ours, base = reading.arms[arm][0], reading.arms[self.baseline][0]
                    if ours > 0 and base > 0 and not 1 / APART <= ours / base <= APART:
                        ratios.append((reading, ours / base))
            if ratios:
                found.append((arm, sorted(ratios, key=lambda item: -abs(log(item[1])))[:3]))
        return found

    @property
    def replication_words(self) -> list[str]:
        replication = self.results.replication
        return (
            []
            if replication is None
            else [*replication_words.warnings(replication), *replication_words.conclusions(replication)]
        )

    # What limits it

    @property
    def powers(self) -> list[tuple[Power, Comparison]]:
        """Power of the comparisons that decide, of arms whose runs were all stable; the least powerful first."""
        by_id = {c.id: c for c in self.registered_primaries if self.calm(c)}
        found = [(power, by_id[power.comparison]) for power in self.analysis.power if power.comparison in by_id]
        return sorted(found, key=lambda item: -item[0].detectable_80)

    @property
    def unsteady(self) -> list[Comparison]:
        """The comparisons that decide and whose power is not told, because runs were unstable."""
        return [c for c in self.registered_primaries if not self.calm(c)]

    @property
    def deviations(self) -> list[Deviation]:
        """Without runs that diverged: these are results, which the section on stability counts."""
        return [d for d in self.analysis.deviations if d.code != DeviationCode.DIVERGED_RUNS or not self.arms]

    @property
    def caveats(self) -> list[tuple[str, Comparison]]:
        """Caveats about the pairs and about the interval and test that decide, each once, with the arms that it is about and
        the first comparison that has it."""
        calm = [comparison for comparison in self.primaries if self.calm(comparison)]
        found = grouped(
            (wording.caveat(caveat), comparison)
            for comparison in calm
            for caveat in comparison.caveats
            if caveat.about in ("", comparison.test, comparison.interval)
            and caveat.code != CaveatCode.PAIRING_DID_NOT_HELP  # told with its numbers
        )
        return [
            (text if len(within) == len(self.primaries) else f"{self._arms(within)}: {text}", within[0])
            for text, within in found.items()
        ]

    def _arms(self, comparisons: Sequence[Comparison]) -> str:
        """``swiglu in tuned``; the regime only where there are several."""
        several = len(self.regimes) > 1
        regimes = grouped((c.regime, c.variant) for c in comparisons)
        return "; ".join(
            wording.listed(dict.fromkeys(names)) + (f" in {regime}" if several else "")
            for regime, names in regimes.items()
        )

    @property
    def hashes(self) -> list[tuple[str, str]]:
        last = [("analysis", self.verdict.analysis_hash), ("verdict", self.verdict.sealed().seal)]
        if self.plan is None:
            return [("table", self.analysis.source_hash), *last]
        plan = self.plan
        text = [] if plan.lab_corpus is None else [("text", plan.corpus.sha256), ("tokens", plan.corpus.tokens_sha256)]
        return [
            ("plan", plan.plan_hash),
            ("study", plan.study_hash),
            ("criteria", plan.criteria_hash),
            *((Path(name).name, digest) for name, digest in plan.files.items()),
            *text,
            ("code", plan.environment.code_hash),
            *last,
        ]


def shared_start(names: Sequence[str]) -> str:
    """What all names begin with, up to a dash or comma."""
    starts = [{name[:end] for end, sign in enumerate(name) if sign in "-,"} for name in names]
    return max(set.intersection(*starts), key=len, default="")


_NORMS: Final = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
#: Settings of the model by value in the words of the field; the others are named with their value.
_SETTINGS: Final[Mapping[str, Mapping[object, str]]] = {
    "position": {
        "learned": "learned positions",
        "sinusoidal": "sinusoidal positions",
        "rotary": "rotary positions",
        "alibi": "ALiBi",
        "none": "no positions",
    },
    "mlp": {
        "gelu": "GELU",
        "relu": "ReLU",
        "relu2": "ReLU²",
        "silu": "SiLU",
        "swiglu": "SwiGLU",
        "geglu": "GeGLU",
    },
    "norm": {name: f"{norm} in the blocks" for name, norm in _NORMS.items()},
    "parallel": {True: "attention and MLP in parallel"},
    "optimizer": {"adamw": "AdamW", "adam": "Adam", "lion": "Lion", "sgd": "SGD with momentum", "muon": "Muon"},
    "schedule": {
        "warmup-cosine": "cosine schedule",
        "warmup-stable-decay": "warmup-stable-decay",
        "linear": "linear schedule",
        "constant": "constant rate",
        "inverse-sqrt": "inverse-square-root schedule",
    },
    "biases": {False: "no biases", True: "biases"},
    "tied": {False: "untied head", True: "tied head"},
    "norm_gain": {False: "norms without gain", True: "norms with gain"},
    "qk_norm": {"none": "no QK-norm", **{name: f"QK-{norm}" for name, norm in _NORMS.items()}},
    "zero_init": {False: "no zero-initialized projections", True: "zero-initialized projections"},
}


#: Where settings were proposed; template/references.bib has the entries.
_REFERENCES: Final[Mapping[tuple[str, str], str]] = {
    ("position", "rotary"): "su2024",
    ("position", "alibi"): "press2022",
    ("mlp", "swiglu"): "shazeer2020",
    ("mlp", "geglu"): "shazeer2020",
    ("mlp", "relu2"): "so2021",
    ("optimizer", "muon"): "jordan2024",
    ("optimizer", "lion"): "chen2023",
    ("schedule", "warmup-stable-decay"): "hu2024",
}


def _literature(run: PlannedRun) -> list[tuple[str, ModelConfig | TrainingConfig]]:
    return [
        *((key, run.model) for key in ("position", "mlp")),
        *((key, run.training) for key in ("optimizer", "schedule")),
    ]


#: Settings that are numbers, around their value.
_MEASURED: Final[Mapping[str, str]] = {
    "lr": "learning rate {}",
    "token_init_std": "token embeddings that start with standard deviation {}",
    "mlp_ratio": "an MLP of {} times the width",
    "head_softcap": "logits capped softly at ±{}",
    "attention_softcap": "attention scores capped softly at ±{}",
    "z_loss": "z-loss with weight {}",
    "label_smoothing": "label smoothing of {}",
    "final_lr": "decay to {} of the peak rate",
    "decay_share": "decay over {} of the steps",
    "weight_decay": "weight decay of {}",
    "warmup": "warmup over {} steps",
    "window": "attention to the last {} tokens",
    "kv_heads": "{} heads of keys and values",
    "dropout": "dropout of {}",
    "clip": "gradients clipped to norm {}",
    "ema": "an exponential average of the weights ({})",
}


def value_name(key: str, value: str) -> str:
    """``ReLU²``, ``LayerNorm``, ``rotary positions``: what a value of mlp, norm or position is called within a sentence."""
    known = _NORMS if key == "norm" else _SETTINGS[key]
    return known.get(value, f"{value} positions" if key == "position" else value)


def setting_words(key: str, value: object) -> str:
    """``rotary positions``, ``untied head``, ``z-loss with weight 0.0001``; settings without words by their name."""
    if isinstance(value, int | float) and not isinstance(value, bool) and key in _MEASURED:
        return _MEASURED[key].format(_value(value))
    known = _SETTINGS.get(key, {}).get(value) if isinstance(value, str | bool) else None
    return known or f"{key.replace('_', ' ')} {_value(value)}"


def _same_blocks(run: PlannedRun, other: PlannedRun) -> bool:
    """Whether two arms differ in nothing but what block 1 reads."""
    return run.model.changed(front=other.model.front) == other.model and run.training == other.training


def front_formula(model: ModelConfig) -> str:
    """``0.3 · RMSNorm(E_tok + E_pos), ε = 10⁻⁶``: what block 1 reads; parts that a norm lacks are named."""
    front, positions = model.front, " + E_pos" if model.position in ("learned", "sinusoidal") else ""
    inner, outer = (positions, "") if front.place == "sum" else ("", positions)
    scale = "" if front.scale == 1 else "√d · " if front.scale == "sqrt-width" else f"{format.setting(front.scale)} · "
    norm = {"none": "", "layernorm": "LN", "rmsnorm": "RMSNorm", "center": "center"}[front.norm]
    read = f"E_tok{inner}"
    formula = f"{scale}{norm}({read}){outer}" if norm or (scale and inner) else f"{scale}{read}{outer}"
    whole = {"layernorm": ("gain", "bias"), "rmsnorm": ("gain",)}.get(front.norm, ())
    if lacking := [part for part in whole if not getattr(front, part)]:
        formula += f" without {' and '.join(lacking)}"
    formula += f", ε = {format.setting(front.eps)}" if whole else ""
    return formula + (f", the gradient into E_tok × {format.setting(front.gradient)}" if front.gradient != 1 else "")


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[str]:
    settings: list[str] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            settings += _flat(value, f"{prefix}{key} ")
        else:
            settings.append(f"{prefix}{key}".replace("_", " ") + f" = {_value(value)}")
    return settings


def _calibrated(training: Mapping[str, Any], calibrate: Calibrate, value: float) -> dict[str, Any]:
    """The training settings of a regime with the value that its calibration found, in a list at its place."""
    table, key, place = calibrate.place
    if table != "training" or key not in training:  # a sentence of its own tells it
        return dict(training)
    if place is None:
        return {**training, key: value}
    return {**training, key: [format.number(value) if i == place else item for i, item in enumerate(training[key])]}


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(_flat(value)) or "none"
    if isinstance(value, list | tuple):
        listed = ", ".join(map(_value, value))
        return f"({listed})" if len(value) > 1 else listed or "none"
    if value is None:
        return "none"
    return format.setting(float(value)) if isinstance(value, int | float) else str(value)


def metric_meanings(study: StudyView, most: int) -> Iterable[tuple[str, str]]:
    """The metrics of the criteria, or of all comparisons where there are none, and what they mean."""
    names = list(dict.fromkeys(comparison.metric for comparison in study.asked or study.others))[:most]
    metrics = {name: study.results.metric(name) for name in names}
    return [
        # A meaning that a person wrote, or a plan has sealed, may begin with the name, which stands before it already.
        (metric_name(name), metric.meaning.removeprefix(f"{metric_name(name)}: "))
        for name, metric in metrics.items()
        if metric and metric.meaning
    ]
