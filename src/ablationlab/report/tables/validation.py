"""Tables of a validation: error rates, methods, decisions and injected effects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ablationlab.core.format import DASH, count, fixed, mean_sd, number, percent, setting
from ablationlab.instrument.validation.rates import in_words
from ablationlab.instrument.validation.records import ComparisonRates, MethodRate, Rate, Validation
from ablationlab.report.table import Table, markdown


def validation_tables(found: Validation) -> Iterator[Table]:
    """Every table, in the order of reading."""
    yield _significance(found)
    if found.comparisons:
        yield _methods(found.comparisons[0], found)
    yield _decisions(found)
    yield _deltas(found)
    if found.doses:
        yield _doses(found)
        yield _dose_methods(found)
        yield _dose_decisions(found)


def _significance(found: Validation) -> Table:
    """Per comparison before and after the correction, then the family."""
    rows = [
        (
            one.id,
            one.test,
            in_words(_raw(one)),
            _yes(fit.compatible),
            percent(fit.expected, 1),
            in_words(one.significant),
        )
        for one, fit in zip(found.comparisons, found.compatibility, strict=True)
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
        for family in found.families
    ]
    alpha = found.comparisons[0].alpha if found.comparisons else 0.05
    title = f"Significant where nothing differs: {found.studies} studies of {found.pairs} pairs, alpha {setting(alpha)}"
    columns = (
        "comparison",
        "test",
        "p at most alpha",
        "compatible with alpha",
        "expected, as these",
        "after the correction",
    )
    return Table.simple(title, columns, tuple(rows))


def _raw(one: ComparisonRates) -> Rate:
    return next(m.rate for m in one.methods if (m.kind, m.method) == ("test", one.test))


def _methods(one: ComparisonRates, found: Validation) -> Table:
    names = list(next((m.simulated for m in one.methods), {}))
    rows = []
    for part in one.methods:
        what = "p at most alpha" if part.kind == "test" else "interval leaves out 0"
        simulated = tuple(percent(part.simulated.get(name), 1) for name in names)
        rows.append((part.method, what, in_words(part.rate), *simulated, _unavailable(part)))
    title = f"Every test and interval on {one.id}: observed beside simulated ({found.studies} studies of {found.pairs} pairs)"
    columns = ("method", "counted", "observed", *(f"simulated, {name}" for name in names), "no answer")
    return Table.simple(title, columns, tuple(rows))


def _unavailable(part: MethodRate) -> str:
    return str(part.unavailable) if part.unavailable else DASH


def _decisions(found: Validation) -> Table:
    names = list(found.decisions[0].decisions) if found.decisions else []
    rows = [(name, *(in_words(one.decisions[name]) for one in found.decisions)) for name in names]
    columns = ("decision", *(f"{one.variant} against {found.baseline}" for one in found.decisions))
    return Table.simple("Decisions where nothing differs", columns, tuple(rows))


def _deltas(found: Validation) -> Table:
    rows = []
    for one in found.comparisons:
        d = one.deltas
        equivalent = DASH if one.equivalent is None else in_words(one.equivalent)
        rows.append(
            (
                one.id,
                count(d.n),
                f"{number(d.mean)} ({number(d.low)} to {number(d.high)})",
                number(d.sd),
                number(d.skewness),
                number(d.excess_kurtosis),
                number(d.correlation),
                equivalent,
                percent(one.equivalent_planned, 1),
            )
        )
    columns = ("comparison", "pairs", "mean difference", "SD", "skewness", "excess kurtosis", "seed correlation")
    return Table.simple("The differences themselves", (*columns, "shown equivalent", "planned"), tuple(rows))


def _doses(found: Validation) -> Table:
    rows = [
        (
            f"{one.variant} at {setting(one.lr)}",
            mean_sd(one.calibration.mean, one.calibration.sd),
            f"{fixed(one.calibration.d, 2)} ({fixed(one.calibration.d_low, 2)} to {fixed(one.calibration.d_high, 2)})",
            fixed(one.judged_d, 2),
            f"{percent(one.planned)} ({percent(one.planned_low)} to {percent(one.planned_high)})",
            percent(one.expected, 1),
            in_words(one.detected),
            _yes(one.compatible),
            str(one.wrong_way.hits) if one.lr != one.base_lr else DASH,
        )
        for one in found.doses
    ]
    first = found.doses[0]
    title = (
        f"Injected effects: a smaller learning rate than {setting(first.base_lr)}, {first.detected.n} studies of "
        f"{found.pairs} pairs, calibrated on {first.calibration.n} other seeds"
    )
    columns = ("arm", "difference, mean ± SD", "d", "d on the judged seeds", "planned power", "expected, as calibrated")
    return Table.simple(title, (*columns, "detected", "compatible", "wrong way"), tuple(rows))


def _dose_methods(found: Validation) -> Table:
    columns = tuple(f"{one.variant} at {setting(one.lr)}" for one in found.doses)
    by_method: list[Mapping[tuple[str, str], Rate]] = [
        {(m.kind, m.method): m.rate for m in one.methods} for one in found.doses
    ]
    rows = [(f"{name} ({kind})", *(in_words(each[kind, name]) for each in by_method)) for kind, name in by_method[0]]
    return Table.simple("Detection by every test and interval", ("method", *columns), tuple(rows))


def _dose_decisions(found: Validation) -> Table:
    columns = tuple(f"{one.variant} at {setting(one.lr)}" for one in found.doses)
    names = list(found.doses[0].decisions)
    rows = [(name, *(in_words(one.decisions[name]) for one in found.doses)) for name in names]
    return Table.simple("Decisions under injected effects", ("decision", *columns), tuple(rows))


def validation_summary(found: Validation) -> tuple[str, ...]:
    """What it comes to, in sentences."""
    lines = [one.text for one in found.compatibility]
    for family in found.families:
        word = "keeps" if family.compatible else "does not keep"
        lines.append(
            f"{family.id}: at least one significant in {in_words(family.any)}; the {family.correction} correction {word} "
            f"alpha {setting(family.alpha)} over its {len(family.members)} tests."
        )
    for gain in found.gains:
        lines.append(
            f"Stability gain of {gain.variant} against {gain.reference}: leaves out 0 in {in_words(gain.excludes_zero)}; "
            f"{gain.unstable_runs} of {gain.runs} runs were unstable."
        )
    lines += [one.text for one in found.doses]
    return (*lines, *found.notes)


def validation_markdown(found: Validation) -> str:
    """validation.md."""
    lines = "\n".join(f"- {line}" for line in validation_summary(found))
    tables = "\n".join(f"**{markdown(table.title)}**\n\n{table.markdown()}" for table in validation_tables(found))
    return f"# Validation: {found.study}\n\n{lines}\n\n{tables}"


def _yes(flag: bool) -> str:
    return "yes" if flag else "NO"
