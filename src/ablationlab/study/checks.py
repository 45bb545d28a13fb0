"""Checks on a study file that look across its tables, and names that must be in a registry.

They read the plain tables, not the validated study, so that one mistake in one table does not hide those in another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from ablationlab.core.errors import AblationLabError, CodeError, PlanError, Problem, UnknownNameError, nearest
from ablationlab.core.format import count, counted
from ablationlab.core.format import setting as in_figures
from ablationlab.core.problems import problems_of
from ablationlab.data.sources import SOURCES
from ablationlab.model.idle import idle, settings_of
from ablationlab.model.parts import LOSS_TERMS, NORMS, OPTIONS, PARTS
from ablationlab.model.rules import (
    OPTIMIZERS,
    SCHEDULES,
    WITH_WARMUP,
    combination_problems,
    has_second_moment,
    warmup_refusal,
)
from ablationlab.records.metrics import FROM_CURVES, GATED, METRICS, Metric
from ablationlab.records.settings import (
    ALPHA,
    DEFAULT_REGIME,
    LARGEST_ALPHA,
    MIXTURE,
    PRESETS,
    SWEEP,
    TUNED,
    Calibrate,
    DataConfig,
    FrontEnd,
    Frozen,
    ModelConfig,
    Second,
    Study,
    TrainingConfig,
    VariantTable,
    looks_like_path,
    merged,
    merged_model,
    merged_training,
    seed_list,
    steps_of,
    validated,
)
from ablationlab.study.probes import ALL, PROBES
from ablationlab.study.trainers import trainer_problems, unused_settings
from ablationlab.study.variants import VARIANTS, Variant, arm_data, is_baseline_again, resolved, variants_of

#: Tests over patterns of signs: their p is never below 2 / 2^n.
SIGN_TESTS = ("sign-flip", "wilcoxon")
#: Metrics that have a value only where tasks are asked.
OVER_TASKS = (*GATED, "mean_task_accuracy", "mean_task_accuracy_fewshot", "task_accuracy", "task_ece", "task_brier")


def cross_checks(data: Mapping[str, Any]) -> list[Problem]:
    """Every problem of that kind."""
    checks: list[Callable[[Mapping[str, Any]], Iterable[Problem]]] = [
        _name_problems,
        _reference_problems,
        _repeated_criteria,
        _impossible_criteria,
        _variance_problems,
        _hypothesis_problems,
        _reuse_problems,
    ]
    if not isinstance(data.get("trainer"), Mapping):
        checks = [
            *(_variant_problems, _unknown_names_of_models, _unknown_data, _front_problems, _regime_problems),
            *(_budget_problems, _combination_problems),
            *checks,
            *(
                _seed_problems,
                _sweep_problems,
                _design_problems,
                _noise_problems,
                _calibration_problems,
                _probe_problems,
            ),
        ]
    return [*trainer_problems(data), *(problem for check in checks for problem in check(data))]


def _variant_problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    tables = _table(data, "tables")
    known = [*tables, *(name for name in VARIANTS if name not in tables)]
    names = {"baseline": data.get("baseline")}
    listed = _list(data, "variants")
    names |= {
        f"variants.{name}" if "tables" in data else f"variants[{position}]": name
        for position, name in enumerate(listed)
        if isinstance(name, str) and name not in tables
    }
    baseline = data.get("baseline")
    for key, name in names.items():
        if not isinstance(name, str) or name in known:
            continue
        problem = Problem.unknown(key, "variant", name, known)
        if key != "baseline" or name not in listed:  # reported where it is listed
            yield problem
    for name, table in tables.items():
        meant = nearest(name, [known for known in VARIANTS if known not in listed]) if table == {} else None
        if meant is not None:
            text = "its table is empty, and no known variant has this name"
            yield Problem(f"variants.{name}", text, None, "another name for the study's own settings once more", meant)
    if isinstance(baseline, str) and baseline in known and listed and baseline not in listed:
        yield Problem("variants", f"the baseline {baseline!r} must be one of them")
    yield from _table_problems(data, tables, known)


def _name_problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    for name in _list(data, "variants"):
        if isinstance(name, str) and not _NAME.fullmatch(name):
            allowed = "letters from a to z, digits, dots, dashes and underscores, at most 60"
            yield Problem(f"variants.{name}", "is not a valid name of a variant", repr(name), allowed)


# Names of folders begin with it.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,59}")


def _table_problems(data: Mapping[str, Any], tables: dict[str, Any], known: Sequence[str]) -> Iterator[Problem]:
    """What is wrong with ``[variants.NAME]`` tables, each where it is written."""
    read: dict[str, VariantTable] = {}
    for name, table in tables.items():
        try:
            read[name] = validated(VariantTable, _sound_part(table))
        except ValidationError:
            continue  # reported where it stands
        if name in VARIANTS:
            text = "is a known variant; give a changed one its own name"
            yield Problem(f"variants.{name}", text, None, f'[variants.my-{name}] with from = "{name}"')
        elif read[name].base is not None and read[name].base not in known:
            yield Problem.unknown(f"variants.{name}.from", "variant", str(read[name].base), known)
        elif read[name].base is None and not (read[name].settings or read[name].empty or name == data.get("baseline")):
            text = "changes nothing; write what it changes, such as training.weight_decay = 0.0"
            yield Problem(f"variants.{name}", text, None, "for an A/A study, an empty table")
        if "preset" in read[name].model:
            yield Problem(f"variants.{name}.model.preset", "a variant cannot take another preset; write its settings")
        if "lr" in read[name].training and data.get("sweep"):
            text = "a study with a [sweep] gives every variant the same rates"
            yield Problem(f"variants.{name}.training.lr", text, str(read[name].training["lr"]))
        tuned = _table(_table(data, "sweep"), "second").get("setting")
        if isinstance(tuned, str) and tuned in read[name].training:
            text = "the sweep tunes this setting for every variant"
            yield Problem(f"variants.{name}.training.{tuned}", text, str(read[name].training[tuned]))
    for name in read:
        try:
            yield from _arm_problems(data, resolved(name, read))
        except UnknownNameError:
            continue  # reported where it stands
        except PlanError as error:
            yield Problem(f"variants.{name}.from", str(error))


def _sound_part(table: Any) -> dict[str, Any]:
    """The keys of a variant's table that are right by themselves, so that the others do not hide what is wrong in them."""
    if not isinstance(table, Mapping):
        return {}
    wrong: set[str] = set()
    try:
        validated(VariantTable, table)
    except ValidationError as error:
        wrong = {str(problem["loc"][0]) for problem in error.errors(include_url=False) if problem["loc"]}
    return {key: value for key, value in table.items() if key not in wrong}


def _arm_problems(data: Mapping[str, Any], variant: Variant) -> list[Problem]:
    """Settings that the arm cannot have, in any regime that is right by itself."""
    problems: list[Problem] = []
    table = variant.table
    for regime in _regimes(data).values():
        model = merged_model(_table(data, "model"), _table(regime, "model"))
        training = merged_training(_table(data, "training"), _table(regime, "training"))
        text = _table(data, "data")
        problems += _new_problems(ModelConfig, model, merged(model, table.model), "model")
        problems += _new_problems(TrainingConfig, training, merged_training(training, table.training), "training")
        problems += _new_problems(DataConfig, text, merged(text, table.data), "data")
    problems += _unknown_data({"data": table.data})
    return [problem.under(f"variants.{variant.name}") for problem in dict.fromkeys(problems)]


def _unknown_names_of_models(data: Mapping[str, Any]) -> Iterator[Problem]:
    tables = _regimes(data) | {"": data}
    tables |= {f"variants.{name}.": table for name, table in _table(data, "tables").items()}
    for key, table in tables.items():
        preset = _table(table, "model").get("preset")
        if isinstance(preset, str) and preset not in PRESETS and not key.startswith("variants."):
            yield Problem.unknown(f"{key}model.preset", "preset", preset, PRESETS)
        for problem in _unknown_parts(_table(table, "model"), _table(table, "training")):
            yield replace(problem, key=f"{key}{problem.key}")


def _unknown_parts(model: Mapping[str, Any], training: Mapping[str, Any]) -> Iterator[Problem]:
    """Kinds of parts, optimizers and schedules that nothing registers, and options that no part declares."""
    for setting, registry in PARTS.items():
        name = model.get(setting)
        if isinstance(name, str) and name not in registry:
            yield Problem.unknown(f"model.{setting}", registry.kind, name, registry)
    if isinstance(final := model.get("final_norm"), str) and final not in NORMS:
        yield Problem.unknown("model.final_norm", NORMS.kind, final, NORMS)
    for position, name in enumerate(_list(model, "loss_terms")):
        if isinstance(name, str) and name not in LOSS_TERMS:
            yield Problem.unknown(f"model.loss_terms[{position}]", LOSS_TERMS.kind, name, LOSS_TERMS)
    for name in _table(model, "options"):
        if name not in OPTIONS:
            problem = Problem.unknown(f"model.options.{name}", "option", name, OPTIONS)
            yield (
                problem if len(OPTIONS) else replace(problem, allowed="none; parts in a file of `use` declare options")
            )
    for setting, rules in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
        name = training.get(setting)
        if isinstance(name, str) and name not in rules:
            yield Problem.unknown(f"training.{setting}", rules.kind, name, rules)


def _front_problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    """What variants change (front end, redraw): were a study to set it, an arm's name would no longer say what it is."""
    text = "is set by variants, not by [model]; choose one (ablationlab variants) or write [variants.NAME]"
    for key, table in (_regimes(data) | {"": data}).items():
        model = _table(table, "model")
        if model.get("redraw"):
            yield Problem(f"{key}model.redraw", text, repr(model["redraw"]))
        for setting, value in _table(model, "front").items():
            field = FrontEnd.model_fields.get(setting)
            if field is not None and setting != "place" and value != field.default:
                allowed = "place, which every variant keeps unless it names one"
                yield Problem(f"{key}model.front.{setting}", text, None, allowed)


def _unknown_data(data: Mapping[str, Any]) -> Iterator[Problem]:
    table = _table(data, "data")
    corpus, tokenizer = table.get("corpus"), table.get("tokenizer")
    known = [*SOURCES, MIXTURE, "path/to/file.txt or folder/"]
    if isinstance(corpus, str) and not looks_like_path(corpus) and corpus not in known:
        yield Problem.unknown("data.corpus", "corpus", corpus, known)
    for name in _table(table, "mixture"):
        if not looks_like_path(name) and name not in SOURCES:
            yield Problem.unknown("data.mixture", "corpus", name, [*SOURCES, "path/to/prepared/folder"])
    if isinstance(tokenizer, str):
        from ablationlab.data.tokenizers import TOKENIZERS

        if tokenizer not in TOKENIZERS:
            yield Problem.unknown("data.tokenizer", "tokenizer", tokenizer, TOKENIZERS)


def _regime_problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Validate each regime's overrides where they stand, so that the message names the regime's own key."""
    for name, regime in _table(data, "regimes").items():
        for part, kind, merge in (
            ("model", ModelConfig, merged_model),
            ("training", TrainingConfig, merged_training),
        ):
            base, over = data.get(part), _table(regime, part)
            if isinstance(base, dict) and over:
                yield from (p.under(f"regimes.{name}") for p in _new_problems(kind, base, merge(base, over), part))


def _new_problems(kind: type[BaseModel], base: Any, changed: Any, key: str) -> list[Problem]:
    """What is wrong with changed settings and was not with those that they started from."""
    before = set(map(str, _problems(kind, base, key)))
    return [problem for problem in _problems(kind, changed, key) if str(problem) not in before]


def _problems(kind: type[BaseModel], data: Mapping[str, Any], key: str) -> list[Problem]:
    try:
        validated(kind, data)
    except ValidationError as error:
        return [problem.under(key) for problem in problems_of(error, kind, data)]
    return []


def _settings(data: Mapping[str, Any], over: Any = None) -> tuple[ModelConfig, TrainingConfig] | None:
    """The study's model and training with the overrides of a regime or variant; None where they are wrong, which is
    reported where they stand.
    """
    with suppress(ValidationError):
        return (
            validated(ModelConfig, merged_model(_table(data, "model"), _table(over, "model"))),
            validated(TrainingConfig, merged_training(_table(data, "training"), _table(over, "training"))),
        )
    return None


def _regimes(data: Mapping[str, Any]) -> dict[str, Any]:
    """Every regime by what its keys begin with; those of the default one begin with nothing."""
    return {"": {}} | {f"regimes.{name}.": regime for name, regime in _table(data, "regimes").items()}


def _arms(data: Mapping[str, Any]) -> dict[str, Variant]:
    """Every variant that is right by itself; what is wrong with the others is reported where it stands."""
    arms = {}
    for name in map(str, _list(data, "variants")):
        with suppress(UnknownNameError, PlanError, ValidationError):
            tables = {key: validated(VariantTable, table) for key, table in _table(data, "tables").items()}
            arms[name] = resolved(name, tables)
    return arms


def _budget_problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Token budgets that are no whole steps, and warmups longer than the run, in every regime that is right by itself;
    budgets that an arm cannot have.
    """
    match = _table(data, "budget").get("match", "tokens")
    parallel = _table(data, "execution").get("parallel")
    if match == "time" and parallel is not None:
        text = "times steps in one process, and execution.parallel spreads a run over several"
        yield Problem("budget.match", text, "'time'", "tokens, flops")
    if match in ("flops", "time"):
        for name, table in _table(data, "tables").items():
            for key in ("steps", "tokens"):
                if key in _table(table, "training"):
                    text = f"[budget] match = {match!r} decides how long this arm trains; leave it out"
                    yield Problem(f"variants.{name}.training.{key}", text, str(_table(table, "training")[key]))
    else:
        yield from _other_tokens(data)
    for key, regime in _regimes(data).items():
        if (settings := _settings(data, regime)) is None:
            continue
        model, training = settings
        per_step = training.batch * model.context
        if training.tokens is not None and training.tokens % per_step:
            low = max(training.tokens // per_step * per_step, per_step)
            allowed = f"multiples of batch x context = {per_step}, such as {low} or {low + per_step}"
            yield Problem(f"{key}training.tokens", "is not a whole number of steps", str(training.tokens), allowed)
        elif (wrong := warmup_refusal(training, steps_of(model, training))) is not None:
            yield wrong.under(f"{key}training")


def _other_tokens(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Variants whose steps or tokens give them another budget than the study's, so that nothing would be equal."""

    def tokens(table: Mapping[str, Any]) -> int | None:
        if (settings := _settings(data, table)) is None:
            return None
        model, training = settings
        return steps_of(model, training) * training.batch * model.context

    planned = tokens({})
    for name, table in _table(data, "tables").items():
        for key in ("steps", "tokens"):
            value = _table(_table(data["tables"], name), "training").get(key)
            if value is not None and planned is not None and (given := tokens(table)) not in (None, planned):
                text = f"gives this arm {count(given)} tokens where [training] gives {count(planned)}"
                allowed = "equal tokens; compare budgets by [regimes.NAME] with training.steps"
                yield Problem(f"variants.{name}.training.{key}", text, str(value), allowed)


def _combination_problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Models and trainings that are right by themselves and impossible together, in every regime and arm."""
    arms: dict[str, Variant | None] = {"": None}
    arms |= {f"variants.{name}.": variant for name, variant in _arms(data).items()}
    seen: set[str] = set()
    for regime_key, regime in _regimes(data).items():
        if (settings := _settings(data, regime)) is None:
            continue
        for arm_key, variant in arms.items():
            try:
                problems = list(combination_problems(*(variant.arm(*settings) if variant is not None else settings)))
            except (UnknownNameError, ValidationError):
                continue  # reported where it stands
            except CodeError as error:
                problems = [Problem(arm_key.removesuffix("."), str(error))]
                arm_key = ""
            for problem in problems:
                if str(problem) not in seen:  # of the study itself, before that of every arm
                    yield replace(problem, key=f"{arm_key or regime_key}{problem.key}")
                seen.add(str(problem))


def _reference_problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Contrasts and criteria that speak of arms or regimes that the study does not have."""
    variants = [name for name in _list(data, "variants") if isinstance(name, str)]
    regimes = [*dict.fromkeys([DEFAULT_REGIME, *_table(data, "regimes")]), *_sweep_regimes(data)]
    pairs = [(f"contrasts[{i}]", pair) for i, pair in enumerate(_list(data, "contrasts"))]
    known = _metrics(data)
    for key, criterion in _entries(data, "criteria"):
        regime = criterion.get("regime", DEFAULT_REGIME)
        if isinstance(regime, str) and regime not in regimes:
            if regime in (SWEEP, TUNED):
                needs = "[sweep]" if regime == SWEEP else "[sweep] with selection_seeds"
                yield Problem(f"{key}.regime", f"needs {needs} in this study", repr(regime))
            else:
                yield Problem.unknown(f"{key}.regime", "regime", regime, regimes)
        metric = criterion.get("metric")
        if metric == "steps_to_loss" and "loss_threshold" not in _table(data, "stability"):
            yield Problem(f"{key}.metric", "needs a loss to reach: set stability.loss_threshold", repr(metric))
        if metric in OVER_TASKS and not _list(_table(data, "evaluation"), "tasks"):
            text = "is a mean over tasks, and no run would have one: set evaluation.tasks"
            yield Problem(f"{key}.metric", text, repr(metric))
        if isinstance(metric, str) and metric not in known:
            yield Problem.unknown(f"{key}.metric", "metric", metric, known)
        elif isinstance(metric, str) and known[metric].level == "step":
            text = f"{metric!r} is a number per step; a criterion needs one per run or per item"
            yield Problem(f"{key}.metric", text)
        elif isinstance(metric, str) and isinstance(regime, str):
            over_sweep = known[metric].level == "sweep"
            if over_sweep and regime != SWEEP:
                text = "is measured over all rates of a sweep, so its criterion needs regime = 'sweep'"
                yield Problem(f"{key}.metric", text, repr(metric))
            elif regime == SWEEP and not over_sweep:
                allowed = ", ".join(name for name, other in known.items() if other.level == "sweep")
                yield Problem(f"{key}.metric", "is not measured over a sweep", repr(metric), allowed)
            fitted = [name for name, other in known.items() if "validation_loss" in (name, other.derived_from)]
            if regime == TUNED and criterion.get("role") == "primary" and metric not in fitted:
                text = "of tuned arms is known at grid rates only, where a difference may be the grid's, so it cannot decide"
                yield Problem(f"{key}.metric", text, repr(metric), f"{', '.join(fitted)}, or another role")
        pairs.append((f"{key}.contrast", criterion.get("contrast")))
    for place, pair in pairs:
        names = [name for name in pair if isinstance(name, str)] if isinstance(pair, list | tuple) else []
        for name in names:
            if variants and name not in variants:
                yield Problem.unknown(place, "variant of this study", name, variants)
        if len(names) == 2 and names[0] == names[1]:
            yield Problem(place, "compares a variant with itself", names[0])


def _metrics(data: Mapping[str, Any]) -> dict[str, Metric]:
    """What a criterion may name: this package's metrics, or those that the study's own trainer reports."""
    own = data.get("trainer")
    if not isinstance(own, Mapping):
        return dict(METRICS.items())
    reported = _table(own, "metrics")
    return {name: Metric(name, "", "", direction, name) for name, direction in reported.items()} | {
        name: metric for name, metric in METRICS.items() if name in FROM_CURVES
    }


def _hypothesis_problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    known = _metrics(data)
    for key, hypothesis in _entries(data, "hypotheses"):
        metric = hypothesis.get("metric")
        if isinstance(metric, str) and metric not in known:
            yield Problem.unknown(f"{key}.metric", "metric", metric, known)


def _repeated_criteria(data: Mapping[str, Any]) -> Iterator[Problem]:
    asked: dict[tuple[str, str, frozenset[str]], str] = {}
    for key, criterion in _entries(data, "criteria"):
        contrast = criterion.get("contrast")
        arms = frozenset(map(str, contrast)) if isinstance(contrast, list | tuple) else frozenset()
        question = (str(criterion.get("metric")), str(criterion.get("regime", DEFAULT_REGIME)), arms)
        if (first := asked.setdefault(question, key)) != key:
            yield Problem(key, f"repeats {first}", question[0])


def _impossible_criteria(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Criteria that no data could meet, or that any data would."""
    primaries: dict[str, tuple[str, str]] = {}
    levels: list[tuple[str, float]] = []
    for key, criterion in _entries(data, "criteria"):
        alpha, test = criterion.get("alpha", ALPHA), criterion.get("test", "paired-t")
        if not isinstance(alpha, int | float):
            continue
        if LARGEST_ALPHA < alpha < 1:
            allowed = f"up to {in_figures(LARGEST_ALPHA)}; 0.05 is usual"
            yield Problem(f"{key}.alpha", "is too large to show anything", str(alpha), allowed)
        pairs = _pair_count(data, criterion)
        if test in SIGN_TESTS and pairs and (least := _least_p(pairs)) > alpha > 0:
            text = f"with {pairs} seeds p is never below {in_figures(least)}, so it cannot reach {in_figures(alpha)}"
            needed = next(n for n in range(pairs, 10_000) if _least_p(n) <= alpha)
            yield Problem(f"{key}.test", text, repr(test), f"paired-t, or {needed} seeds or more")
        if test == "bootstrap":
            text = "calls far more true nulls significant than it says; its intervals may be registered"
            yield Problem(f"{key}.test", text, "'bootstrap'", "paired-t, sign-flip, wilcoxon")
        if criterion.get("correction") == "dunnett":
            text = "pools the spreads of all variants, and few seeds cannot show that these are equal; use holm"
            yield Problem(f"{key}.correction", text, "'dunnett'", "holm, bonferroni, benjamini-hochberg, none")
        role, metric = criterion.get("role"), str(criterion.get("metric"))
        if role in ("primary", "secondary"):
            levels.append((key, alpha))
        if role in ("primary", "secondary") and alpha != levels[0][1]:
            first, level = levels[0]
            text = f"{first} has alpha {in_figures(level)}; primary and secondary ones are corrected together, at one alpha"
            yield Problem(f"{key}.alpha", text, str(alpha), str(level))
        if role == "guard" and criterion.get("margin") is None and criterion.get("smallest_effect") is None:
            text = "a guard needs a margin: by how much may this metric get worse?"
            yield Problem(f"{key}.margin", text)
        regime = str(criterion.get("regime", DEFAULT_REGIME))
        first, other = primaries.setdefault(regime, (key, metric)) if role == "primary" else (key, metric)
        if other != metric:
            text = f"regime {regime!r} already has a primary metric, {other!r} ({first}); only one can decide"
            yield Problem(f"{key}.role", text, "'primary'", "secondary, guard")


def _variance_problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Criteria that share the variances of all variants where noisy ones would be claimed too often."""
    asked = [(key, criterion) for key, criterion in _entries(data, "criteria") if criterion.get("variance") == "shared"]
    if not asked:
        return
    from ablationlab.stats.costs import may_share, pairs_to_share  # it takes numpy, and most studies do not ask

    known, arms = _metrics(data), len(_list(data, "variants")) - 1
    for key, criterion in asked:
        metric, pairs, alpha = criterion.get("metric"), _pair_count(data, criterion), criterion.get("alpha", ALPHA)
        needs = {
            "role = 'primary'": criterion.get("role") == "primary",
            "test = 'paired-t'": criterion.get("test", "paired-t") == "paired-t",
            "correction = 'bonferroni'": criterion.get("correction") == "bonferroni",
            "every variant against the baseline, no contrast": criterion.get("contrast") is None,
            f"alpha = {in_figures(ALPHA)} or more": not isinstance(alpha, int | float) or alpha >= ALPHA,
            "a metric with a better direction": metric not in known or known[str(metric)].direction is not None,
            "no other primary criterion": _primaries(data) < 2,
            "two variants or more": arms != 1,
        }
        if arms > 1 and pairs and not may_share(arms, pairs):
            needs[f"{pairs_to_share(arms)} seeds or more with {arms} variants"] = False
        unmet = [need for need, met in needs.items() if not met]
        if unmet:
            yield Problem(f"{key}.variance", f"needs {'; '.join(unmet)}", "'shared'", "own")


def _primaries(data: Mapping[str, Any]) -> int:
    return sum(criterion.get("role") == "primary" for _, criterion in _entries(data, "criteria"))


def _least_p(pairs: int) -> float:
    """Of a test by signs."""
    from ablationlab.stats import sign_flip_floor  # it takes numpy, and most studies do not ask

    return sign_flip_floor(pairs)


def study_warnings(study: Study) -> tuple[str, ...]:
    """What a study may do and should think about: said when it is planned."""
    from ablationlab.stats import sign_flip_floor

    warnings = [*_short_of_seeds(study), *_warmups(study), *_without_effect(study)]
    if len(study.variants) > 1 and not any(criterion.role == "primary" for criterion in study.criteria):
        warnings.append(
            "no criterion has role = 'primary', so every verdict will be exploratory; add [[criteria]] with metric, role and "
            "smallest_effect"
        )
    for criterion in study.criteria:
        pairs = len(study.own_seeds().get(criterion.regime, study.seeds))
        about = f"criterion {criterion.metric} in {criterion.regime}"
        tests = max(1, len(study.variants) - 1) if criterion.contrast is None else 1
        corrects = criterion.correction in ("holm", "bonferroni")
        if criterion.test in SIGN_TESTS and corrects and sign_flip_floor(pairs) > criterion.alpha / tests:
            warnings.append(
                f"{about}: with {pairs} seeds the {criterion.test} test never gives a p below "
                f"{in_figures(sign_flip_floor(pairs))}, and it needs {in_figures(criterion.alpha / tests)}"
                f"{f' (alpha, corrected for {tests} variants)' if tests > 1 else ''}: nothing can be shown"
            )
        if criterion.metric in GATED and not study.evaluation.gate_seeds:
            warnings.append(
                f"{about}: without evaluation.gate_seeds no task counts, so this criterion cannot decide anything"
            )
    if study.trainer is not None and (unused := unused_settings(study.trainer)):
        warnings.append(
            f"no placeholder of the command names {', '.join(unused)}; the program gets settings that none names "
            "in settings.json alone"
        )
    return tuple(dict.fromkeys(warnings))


def assumptions(study: Study) -> str:
    """What the study file leaves to defaults of the training, as settings; nothing where it says all of it."""
    training = study.training
    if training is None:
        return ""
    left = [name for name in _ASSUMED if name not in training.model_fields_set]
    return ", ".join(f"{name} = {_written(getattr(training, name))}" for name in left)


#: Settings that a reader of the results asks about first.
_ASSUMED = ("optimizer", "schedule", "warmup", "weight_decay", "betas", "clip", "batch", "lr")


def _written(value: Any) -> str:
    """As a study file has it; a list without spaces, at which a terminal would break it."""
    return f"[{','.join(map(_written, value))}]" if isinstance(value, tuple) else json.dumps(value)


def _short_of_seeds(study: Study) -> list[str]:
    if len(study.seeds) >= 3 or len(study.variants) < 2:
        return []
    return [f"{counted(len(study.seeds), 'seed')}: no interval and no test; give three or more, better five"]


def _warmups(study: Study) -> list[str]:
    """Regimes whose rate rises for more than half of the run; one that rises to its end is refused elsewhere."""
    if study.training is None:
        return []
    found = []
    for regime in study.regime_names():
        model, training = study.in_regime(regime)
        steps = steps_of(model, training)
        if training.schedule in WITH_WARMUP and 2 * training.warmup > steps:
            where = "" if regime == DEFAULT_REGIME else f" in the regime {regime}"
            found.append(f"training.warmup = {training.warmup} is more than half of the {steps} steps{where}")
    return found


def _without_effect(study: Study) -> list[str]:
    """Settings that the file or a variant writes and that none of its runs uses; variants that train the same model."""
    if study.model is None or study.training is None:
        return []
    regimes = [study.in_regime(name) for name in study.regime_names()]
    variants = variants_of(study)
    arms = {name: [settings_of(*variant.arm(*regime)) for regime in regimes] for name, variant in variants.items()}
    unused = {name: _in_all([idle(settings) for settings in arm]) for name, arm in arms.items()}
    preset = () if study.model.preset is None else PRESETS[study.model.preset].shape
    file = [f"model.{key}" for key in _written_keys(study.model) if key not in preset]
    file += [f"model.front.{key}" for key in _written_keys(study.model.front)]
    file += [f"training.{key}" for key in _written_keys(study.training)]
    found = [
        f"{key} = {_written(arms[study.baseline][0][key])} has no effect with {why}"
        for key, why in _in_all([*unused.values()]).items()
        if key in file
    ]
    trained: dict[str, str] = {}
    for name, variant in variants.items():
        found += [
            f"variants.{name}.{key} = {_written(value)} has no effect with {unused[name][key]}"
            for key, value in (study.tables.get(name) or variant.on(regimes[0][0])).settings.items()
            if key in unused[name]
        ]
        used = [{key: arm[key] for key in arm if key not in {*idle(arm), "model.preset"}} for arm in arms[name]]
        recipe = json.dumps([used, arm_data(study.data, variant).model_dump(mode="json")], sort_keys=True)
        if (first := trained.setdefault(recipe, name)) != name and not is_baseline_again(study, name):
            found.append(
                f"{name} trains the same model as {first}: nothing in which their settings differ has an effect"
            )
    return found


def _written_keys(table: Frozen) -> list[str]:
    """The settings that someone chose: a sealed study holds every default, too."""
    fields = type(table).model_fields
    return [
        key
        for key in table.model_fields_set
        if getattr(table, key) != fields[key].get_default(call_default_factory=True)
    ]


def _in_all(tables: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What every table has, as the first has it."""
    return {key: value for key, value in tables[0].items() if all(key in table for table in tables)}


def _pair_count(data: Mapping[str, Any], criterion: Mapping[str, Any]) -> int:
    """Pairs that a criterion will be judged on; 0 where the seeds are wrong themselves."""
    sweep = _table(data, "sweep")
    own = _seeds(sweep, "seeds") or _seeds(data, "seeds")
    if criterion.get("regime") == SWEEP:
        return len(own) + len(_seeds(sweep, "selection_seeds"))
    return len(own if criterion.get("regime") == TUNED else _seeds(data, "seeds"))


def _sweep_regimes(data: Mapping[str, Any]) -> list[str]:
    """The names that this study's sweep gives to comparisons."""
    table = _table(data, "sweep")
    return ([SWEEP] if table and table.get("finer") is None else []) + (
        [TUNED] if _seeds(table, "selection_seeds") else []
    )


def _seed_problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Seeds that choose something and are compared as well."""
    sweep = _table(data, "sweep")
    judging = _seeds(sweep if "seeds" in sweep else data, "seeds")
    finer = _table(sweep, "finer")
    compared = [*_seeds(data, "seeds"), *_seeds(sweep, "seeds"), *_seeds(sweep, "selection_seeds")]
    choosing = {
        "sweep.selection_seeds": (sweep, judging, "a rate must be chosen on other seeds than those it is judged on"),
        "sweep.finer.seeds": (finer, compared, "the second stage has seeds of its own"),
        "evaluation.gate_seeds": (
            _table(data, "evaluation"),
            compared,
            "tasks must be chosen on other seeds than those that are compared",
        ),
    } | {
        f"regimes.{name}.calibrate.seeds": (
            _table(regime, "calibrate"),
            compared,
            "a regime must be calibrated on other seeds than those it is compared on",
        )
        for name, regime in _table(data, "regimes").items()
    }
    for key, (table, others, text) in choosing.items():
        shared = sorted({*_seeds(table, key.rpartition(".")[2])} & {*others})
        if shared:
            yield Problem(key, text, ", ".join(map(str, shared)))


def _sweep_problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    """What makes a sweep say nothing."""
    table = _table(data, "sweep")
    if not table:
        return
    from ablationlab.stats.tuned import LEAST_SPAN

    if len(_list(table, "lr")) == 1:
        yield Problem("sweep.lr", "a sweep needs more than one rate", str(table["lr"][0]), "two rates or more")
    own_rates = _table(table, "variant_lr")
    tuned = any(criterion.get("regime") == TUNED for _, criterion in _entries(data, "criteria"))
    for key, known in _grids(table):
        if tuned and len(known) > 1 and known[-1] < LEAST_SPAN * known[0]:
            text = "the highest rate must be at least twice the lowest, or noise decides which of them is best"
            yield Problem(f"sweep.{key}", text, f"{in_figures(known[0])} to {in_figures(known[-1])}")
    variants = [name for name in _list(data, "variants") if isinstance(name, str)]
    for name, rates in own_rates.items():
        if name not in variants:
            yield Problem.unknown("sweep.variant_lr", "variant", name, variants)
        elif isinstance(rates, list) and len(rates) != len(_list(table, "lr")):
            text = "every variant is tuned with the same effort: give it as many rates as sweep.lr has"
            yield Problem(f"sweep.variant_lr.{name}", text, str(len(rates)), str(len(_list(table, "lr"))))
    for key, criterion in _entries(data, "criteria") if own_rates else ():
        if criterion.get("regime") == SWEEP:
            text = "compares variants over the same rates, and sweep.variant_lr gives some their own"
            yield Problem(f"{key}.regime", text, repr(SWEEP))
    yield from _stage_problems(data, table)
    yield from _second_problems(data, table)
    own, chosen = "seeds" in table, _seeds(table, "selection_seeds")
    left = [seed for seed in _seeds(table if own else data, "seeds") if seed not in chosen]
    if chosen and len(left) == 1:
        text = "only one seed is left to judge the chosen rates on, and one pair shows nothing"
        allowed = "two or more besides the selection seeds; five or more are better"
        yield Problem("sweep.seeds" if own else "seeds", text, str(left[0]), allowed)


def _grids(table: Mapping[str, Any]) -> Iterator[tuple[str, list[float]]]:
    """The grids of a sweep by their keys, as far as they are rates, in ascending order."""
    own = _table(table, "variant_lr")
    for key, grid in (("lr", table.get("lr")), *((f"variant_lr.{name}", rates) for name, rates in own.items())):
        rates = grid if isinstance(grid, list | tuple) else ()
        yield key, sorted(rate for rate in rates if isinstance(rate, int | float) and rate > 0)


#: Neighbouring values of a second setting may lie this factor apart.
WIDEST_SECOND: Final = 4.0
#: Below so many steps of warmup, the values of a second stage would round to one.
LEAST_WARMUP: Final = 4


def _stage_problems(data: Mapping[str, Any], table: Mapping[str, Any]) -> Iterator[Problem]:
    """What a sweep of two stages needs: rates and seeds for the first, and budgets that do not depend on the clock."""
    if table.get("stage") is not None:
        yield Problem("sweep.stage", "is sealed with a stage; leave it out", repr(table["stage"]))
    if table.get("finer") is None:
        return
    from ablationlab.stats.tuned import WIDEST_STEP

    if _table(table, "finer").get("found"):
        yield Problem("sweep.finer.found", "is found by the stages and sealed with the plan; leave it out")
    if len(_seeds(table, "selection_seeds")) < 3:
        text = "the first stage needs seeds of its own, which no arm is judged on"
        yield Problem("sweep.selection_seeds", text, None, "three or more")
    for key, known in _grids(table):
        if len(known) < 3:
            yield Problem(
                f"sweep.{key}", "the first stage needs rates on both sides of the best", None, "three or more"
            )
        elif max(high / low for low, high in pairwise(known)) > WIDEST_STEP * (1 + 1e-9):
            text = (
                "a finer stage about the best rate must reach its neighbours, which are more than a factor of two away"
            )
            yield Problem(f"sweep.{key}", text, ", ".join(map(in_figures, known)))
    if _table(data, "budget").get("match") == "time":
        text = "step times would be measured for every stage anew, and budgets would differ; with [sweep.finer] use another"
        yield Problem("budget.match", text, "'time'", "tokens, flops")


def _second_problems(data: Mapping[str, Any], table: Mapping[str, Any]) -> Iterator[Problem]:
    """What a second setting of a sweep needs: a second stage, and values that the stages can go about."""
    if table.get("points"):
        yield Problem("sweep.points", "are sealed with a stage; leave them out")
    if table.get("second") is None:
        return
    second = _table(table, "second")
    if second.get("found"):
        yield Problem("sweep.second.found", "is found by the stages and sealed with the plan; leave it out")
    if table.get("finer") is None:
        text = "the doubt of two settings is far too large without a second stage"
        yield Problem("sweep.finer", text, None, "finer = { seeds = [...] }, three or more")
    if "rates" in _table(table, "finer"):
        text = "with a second setting the second stage has three rates and three values; leave it out"
        yield Problem("sweep.finer.rates", text, str(_table(table, "finer")["rates"]))
    known = sorted(value for value in _list(second, "values") if isinstance(value, int | float) and value > 0)
    wide = [high / low for low, high in pairwise(known) if high / low > WIDEST_SECOND * (1 + 1e-9)]
    if wide and second.get("trials") is None:
        text = "neighbouring values are too far apart for a finer stage about the best to reach them"
        yield Problem("sweep.second.values", text, ", ".join(map(in_figures, known)), f"a factor of {WIDEST_SECOND:g}")
    if second.get("setting") != "warmup" or not known:
        return
    if known[0] < LEAST_WARMUP or any(value != int(value) for value in known):
        allowed = f"whole numbers, {LEAST_WARMUP} or more"
        yield Problem("sweep.second.values", "are steps", ", ".join(map(in_figures, known)), allowed)
    settings = _settings(data, {})
    factor = second.get("factor", Second.model_fields["factor"].default)
    if settings is not None and isinstance(factor, int | float) and known[-1] * factor > steps_of(*settings):
        text = "the second stage would warm up for longer than a run"
        yield Problem("sweep.second.values", text, in_figures(known[-1]), f"up to {int(steps_of(*settings) / factor)}")


def _noise_problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    """What a table of variances needs: streams of this package's own, and dropout to draw for."""
    table = _table(data, "noise")
    if not table:
        return
    if "design" in data:
        text = "a study with looks may stop before every combination of seeds is trained; ask for one or the other"
        yield Problem("noise", text)
    if "dropout" in table and not _table(data, "model").get("dropout"):
        allowed = "leave it out, or set model.dropout"
        yield Problem("noise.dropout", "the model has no dropout", repr(table["dropout"]), allowed)


def _design_problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    """What looks need: as many seeds as the last one counts, a primary criterion, and tests that they are made for."""
    table = _table(data, "design")
    if not table:
        return
    if _table(data, "factors").get("effects"):
        text = "registered effects are tested once, after all seeds; a study with looks has none"
        yield Problem("factors.effects", text)
    looks, seeds = _list(table, "looks"), _seeds(data, "seeds")
    if looks and seeds and len(seeds) not in looks:
        text = f"one of the looks must count all {len(seeds)} seeds"
        yield Problem("design.looks", text, ", ".join(map(str, looks)), f"{len(seeds)}, or other seeds")
    if "sweep" in data:
        text = (
            "a study with a [sweep] cannot have looks: the fitted best rate moves with every further seed, so what an "
            "earlier look saw changes afterwards, and no levels hold; choose one of the two"
        )
        yield Problem("design", text)
    criteria = _entries(data, "criteria")
    if not any(asked.get("role") == "primary" for _, asked in criteria):
        yield Problem("design", "looks need a primary criterion (role = 'primary')")
    for key, asked in criteria:
        for method in ("test", "interval"):
            if asked.get(method, "paired-t") != "paired-t":
                yield Problem(f"{key}.{method}", "looks work with Student's t only", repr(asked[method]), "paired-t")
        if asked.get("correction") not in (None, "holm", "bonferroni", "none"):
            text = "does not hold its level over several looks"
            yield Problem(f"{key}.correction", text, repr(asked["correction"]), "holm, bonferroni, none")


def _reuse_problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    """What runs of an earlier study cannot serve in: they were seen, and made on one device, at another time."""
    if not data.get("reuse"):
        return
    calibrated = [name for name, regime in _table(data, "regimes").items() if _table({"": regime}, "").get("calibrate")]
    execution = _table(data, "execution")
    stands_against = {
        "design": ("design" in data, "looks count runs as they come in, and reused ones were seen before"),
        "sweep": ("sweep" in data, "the rates of the baseline would be chosen on runs that were seen"),
        **{f"regimes.{name}.calibrate": (True, "its value is not known when runs are reused") for name in calibrated},
        "budget.match": (
            _table(data, "budget").get("match") == "time",
            "the steps of the earlier runs were timed then",
        ),
        "execution.parallel": (execution.get("parallel") is not None, "layouts of torchrun are not known beforehand"),
        "execution.deterministic": (execution.get("deterministic") is False, "runs do not have the same bits twice"),
    }
    for key, (there, why) in stands_against.items():
        if there:
            yield Problem(key, f"does not work with `reuse`: {why}", None, "one of the two")


def _calibration_problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Settings that cannot be calibrated, and ends that are no settings."""
    for name, regime in _table(data, "regimes").items():
        key = f"regimes.{name}.calibrate"
        table = _table(regime, "calibrate")
        if "value" in table:
            text = "is found by the calibration and sealed with the plan; leave it out"
            yield Problem(f"{key}.value", text, str(table["value"]))
        settings = _settings(data, regime)
        if settings is None or _problems(Calibrate, table, key):
            continue  # reported where it stands
        (model, training), calibrate = settings, validated(Calibrate, table)
        allowed = list(_numbers({"model": model.model_dump(), "training": training.model_dump()}))
        if calibrate.setting not in allowed:
            yield Problem.unknown(f"{key}.setting", "number of the model or the training", calibrate.setting, allowed)
            continue
        for end in ("low", "high"):
            try:
                calibrate.written(model, training, getattr(calibrate, end))
            except ValidationError as error:
                text = error.errors()[0]["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
                yield Problem(f"{key}.{end}", f"is not a valid {calibrate.setting}: {text}", str(table[end]))


def _numbers(tables: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Every setting that is a number, or a list of them."""
    for part, table in tables.items():
        for key, value in table.items():
            if isinstance(value, tuple):
                yield from (f"{part}.{key}[{i}]" for i in range(len(value)))
            elif isinstance(value, int | float) and not isinstance(value, bool):
                yield f"{part}.{key}"


def _probe_problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Probes that do not exist, and probes that no model of the study has anything to show to."""
    chosen = _table(data, "probes")
    models: list[ModelConfig] = []
    optimizers: set[str] = set()
    with suppress(ValidationError, AblationLabError):  # reported where it stands
        for regime in _regimes(data).values():
            if (settings := _settings(data, regime)) is not None:
                arms = [variant.arm(*settings) for variant in _arms(data).values()]
                models += [model for model, _ in arms if not list(_unknown_parts(dict(model), {}))]
                optimizers |= {training.optimizer for _, training in arms}
    for name in chosen:
        if name == ALL:
            continue
        if name not in PROBES:
            yield Problem.unknown(f"probes.{name}", "probe", name, [*PROBES, ALL])
        elif models and all(PROBES[name].need(model) is not None for model in models):
            usable = [other for other, probe in PROBES.items() if any(probe.need(model) is None for model in models)]
            yield Problem(f"probes.{name}", str(PROBES[name].need(models[0])), None, ", ".join([*usable, ALL]))
        elif name == "second-moment" and optimizers and not any(map(_may_have_second_moment, optimizers)):
            text = f"needs an optimizer with a second moment; here: {', '.join(sorted(optimizers))}"
            yield Problem(f"probes.{name}", text, None, "an arm with adamw or adam, or no such probe")


def _may_have_second_moment(optimizer: str) -> bool:
    return optimizer not in OPTIMIZERS or has_second_moment(optimizer)


def _table(data: Any, key: str) -> dict[str, Any]:
    inner = data.get(key) if isinstance(data, Mapping) else None
    return dict(inner) if isinstance(inner, Mapping) else {}


def _seeds(data: Mapping[str, Any], key: str) -> list[int]:
    seeds = seed_list(data.get(key))
    return [seed for seed in seeds if isinstance(seed, int)] if isinstance(seeds, list | tuple) else []


def _list(data: Mapping[str, Any], key: str) -> Sequence[Any]:
    inner = data.get(key)
    return inner if isinstance(inner, list | tuple) else ()


def _entries(data: Mapping[str, Any], key: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The tables of a list, each with its own key."""
    return [(f"{key}[{i}]", entry) for i, entry in enumerate(_list(data, key)) if isinstance(entry, Mapping)]
