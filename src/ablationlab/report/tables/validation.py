"""Tables of a validation: error rates, methods, answers and injected effects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ablationlab.analysis import wording
from ablationlab.core.format import DASH, count, fixed, mean_sd, number, p_clause, percent, plain, setting, several
from ablationlab.instrument.validation.rates import in_words
from ablationlab.instrument.validation.records import (
    ComparisonRates,
    Compatibility,
    DoseRates,
    MethodRate,
    Rate,
    Validation,
)
from ablationlab.report.table import Table, markdown


def validation_tables(validation: Validation) -> Iterator[Table]:
    """Every table, in the order of reading."""
    yield _significance(validation)
    if validation.comparisons:
        yield _methods(validation.comparisons[0], validation)
    yield _answers(validation)
    yield _deltas(validation)
    if validation.doses:
        yield _doses(validation)
        yield _dose_methods(validation)
        yield _dose_answers(validation)


def _significance(validation: Validation) -> Table:
    """Per comparison before and after the correction, then the family."""
    rows = [
        (
            rates.id,
            rates.test,
            in_words(_raw(rates)),
            _yes(fit.compatible),
            percent(fit.expected, 1),
            in_words(rates.significant),
        )
        for rates, fit in zip(validation.comparisons, validation.compatibility, strict=True)
    ]
    rows += [
        (
            f"any of the {len(family.members)} of {family.id}",
            family.correction,
            "",
            _yes(family.compatible),
            "",
            in_words(family.any),
        )
        for family in validation.families
    ]
    alpha = validation.comparisons[0].alpha if validation.comparisons else 0.05
    title = f"Significant where nothing differs: {_studies(validation)}, alpha {setting(alpha)}"
    columns = (
        "comparison",
        "test",
        "p at most alpha",
        "compatible with alpha",
        "expected, as these",
        "after the correction",
    )
    return Table.simple(title, columns, tuple(rows))


def _studies(validation: Validation) -> str:
    return f"{validation.studies} studies of {validation.pairs} pairs"


def _raw(rates: ComparisonRates) -> Rate:
    return next(m.rate for m in rates.methods if (m.kind, m.method) == ("test", rates.test))


def _methods(rates: ComparisonRates, validation: Validation) -> Table:
    names = list(next((m.simulated for m in rates.methods), {}))
    rows = []
    for part in rates.methods:
        what = "p at most alpha" if part.kind == "test" else "interval excludes 0"
        simulated = tuple(percent(part.simulated.get(name), 1) for name in names)
        rows.append((part.method, what, in_words(part.rate), *simulated, _unavailable(part)))
    title = f"Every test and interval on {rates.id}: observed beside simulated ({_studies(validation)})"
    columns = ("method", "counted", "observed", *(f"simulated, {name}" for name in names), "no answer")
    return Table.simple(title, columns, tuple(rows))


def _unavailable(part: MethodRate) -> str:
    return str(part.unavailable) if part.unavailable else DASH


def _answers(validation: Validation) -> Table:
    names = list(validation.answers[0].answers) if validation.answers else []
    rows = [(name, *(in_words(decided.answers[name]) for decided in validation.answers)) for name in names]
    columns = ("answer", *(f"{decided.variant} against {validation.baseline}" for decided in validation.answers))
    return Table.simple("Answers where nothing differs", columns, tuple(rows))


def _deltas(validation: Validation) -> Table:
    rows = []
    for rates in validation.comparisons:
        d = rates.deltas
        equivalent = DASH if rates.equivalent is None else in_words(rates.equivalent)
        rows.append(
            (
                rates.id,
                count(d.n),
                f"{number(d.mean)} ({number(d.low)} to {number(d.high)})",
                number(d.sd),
                number(d.skewness),
                number(d.excess_kurtosis),
                number(d.correlation),
                equivalent,
                percent(rates.equivalent_planned, 1),
            )
        )
    columns = ("comparison", "pairs", "mean difference", "SD", "skewness", "excess kurtosis", "seed correlation")
    return Table.simple("The differences themselves", (*columns, "shown equivalent", "planned"), tuple(rows))


def _doses(validation: Validation) -> Table:
    rows = [
        (
            f"{dose.variant} at {setting(dose.lr)}",
            mean_sd(dose.calibration.mean, dose.calibration.sd),
            f"{fixed(dose.calibration.d, 2)} ({fixed(dose.calibration.d_low, 2)} to {fixed(dose.calibration.d_high, 2)})",
            fixed(dose.judged_d, 2),
            f"{percent(dose.planned)} ({percent(dose.planned_low)} to {percent(dose.planned_high)})",
            percent(dose.expected, 1),
            in_words(dose.detected),
            _yes(dose.compatible),
            str(dose.wrong_way.hits) if dose.lr != dose.base_lr else DASH,
        )
        for dose in validation.doses
    ]
    first = validation.doses[0]
    title = (
        f"Injected effects: a smaller learning rate than {setting(first.base_lr)}, {first.detected.n} studies of "
        f"{validation.pairs} pairs, calibrated on {first.calibration.n} other seeds"
    )
    columns = ("arm", "difference, mean ± SD", "d", "d on the judged seeds", "planned power", "expected, as calibrated")
    return Table.simple(title, (*columns, "detected", "compatible", "wrong way"), tuple(rows))


def _dose_methods(validation: Validation) -> Table:
    columns = tuple(f"{dose.variant} at {setting(dose.lr)}" for dose in validation.doses)
    by_method: list[Mapping[tuple[str, str], Rate]] = [
        {(m.kind, m.method): m.rate for m in dose.methods} for dose in validation.doses
    ]
    rows = [(f"{name} ({kind})", *(in_words(each[kind, name]) for each in by_method)) for kind, name in by_method[0]]
    return Table.simple("Detection by every test and interval", ("method", *columns), tuple(rows))


def _dose_answers(validation: Validation) -> Table:
    columns = tuple(f"{dose.variant} at {setting(dose.lr)}" for dose in validation.doses)
    names = list(validation.doses[0].answers)
    rows = [(name, *(in_words(dose.answers[name]) for dose in validation.doses)) for name in names]
    return Table.simple("Answers under injected effects", ("answer", *columns), tuple(rows))


def validation_summary(validation: Validation) -> tuple[str, ...]:
    """What it comes to, in sentences."""
    lines = list(map(_keeps_alpha, validation.compatibility))
    for family in validation.families:
        word = "keeps" if family.compatible else "does not keep"
        lines.append(
            f"{family.id}: at least one significant in {in_words(family.any)}; the {family.correction} correction {word} "
            f"alpha {setting(family.alpha)} over its {len(family.members)} tests."
        )
    for gain in validation.gains:
        lines.append(
            f"Stability gain of {gain.variant} against {gain.reference}: its interval excludes 0 in "
            f"{in_words(gain.excludes_zero)}; {gain.unstable_runs} of {gain.runs} runs were unstable."
        )
    lines += map(_detection, validation.doses)
    return (*lines, *_notes(validation))


def _compatible(fits: bool | None) -> str:
    return "compatible" if fits else "not compatible"


def _keeps_alpha(test: Compatibility) -> str:
    text = (
        f"{test.comparison}: {test.test} rejected the true null in {in_words(test.rate)} of the studies; that is "
        f"{_compatible(test.compatible)} with alpha {setting(test.alpha)} (exact binomial {p_clause(test.p)})."
    )
    if test.expected is None:
        return text
    shape = f"For differences of this very shape {plain(percent(test.expected, 1))} are to be expected"
    return f"{text} {shape}: {_compatible(test.as_expected)}."


def _detection(dose: DoseRates) -> str:
    arm, word = f"{dose.variant} at {setting(dose.lr)}", _compatible(dose.compatible)
    if dose.lr == dose.base_lr:
        return f"{arm}: no effect, found in {in_words(dose.detected)}; {word} with alpha {setting(dose.planned)}."
    power = f"{percent(dose.planned)} ({fixed(100 * dose.planned_low, 0)} to {percent(dose.planned_high)})"
    shape = ""
    if dose.expected is not None:
        shape = f" Differences of the calibrated shape are found {percent(dose.expected, 1)} of the time."
    effect = dose.calibration
    return plain(
        f"{arm} instead of {setting(dose.base_lr)}: d = {fixed(effect.d, 2)} ({fixed(effect.d_low, 2)} to "
        f"{fixed(effect.d_high, 2)}); planned power {power}, found in {in_words(dose.detected)}; {word}.{shape}"
    )


def _notes(validation: Validation) -> Iterator[str]:
    """What is not as it was registered, and what was set aside."""
    yield from map(wording.deviation, validation.deviations)
    if validation.incomplete:
        yield f"Set aside because a run is not finished: {several(validation.incomplete, 'study', 'studies')}."
    if validation.left_over:
        yield f"Not used, after the last whole study: {several(validation.left_over, 'seed')}."
    if validation.diverged_runs:
        how = "survivors are compared" if validation.diverged_rule == "survivors" else "such a comparison is not made"
        runs = several(validation.diverged_runs, "run")
        yield f"{runs} diverged. Their studies count, judged by the registered rule: {how}."


def validation_markdown(validation: Validation) -> str:
    """validation.md."""
    lines = "\n".join(f"- {line}" for line in validation_summary(validation))
    tables = "\n".join(
        f"**{markdown(table.caption)}**\n\n{table.markdown()}" for table in validation_tables(validation)
    )
    return f"# Validation: {validation.study}\n\n{lines}\n\n{tables}"


def _yes(flag: bool) -> str:
    return "yes" if flag else "NO"
