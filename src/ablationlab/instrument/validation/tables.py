"""A validation as tables: one content, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ablationlab.instrument.validation.rates import in_words
from ablationlab.instrument.validation.records import ComparisonRates, MethodPart, RatePart, Validation


@dataclass(frozen=True)
class Shown:
    """A table with its title; cells are text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """As Markdown."""
        lines = [f"**{self.title}**", "", _line(self.columns), "|" + "---|" * len(self.columns)]
        return "\n".join([*lines, *map(_line, self.rows), ""])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def shown(found: Validation) -> Iterator[Shown]:
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


def _significance(found: Validation) -> Shown:
    """Per comparison before and after the correction, then the family."""
    rows = [
        (
            one.id,
            one.test,
            in_words(_raw(one)),
            _yes(fit.compatible),
            "-" if fit.expected is None else f"{100 * fit.expected:.1f} %",
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
    title = (
        f"Significantly different, where nothing is: {found.studies} studies of {found.pairs} pairs, alpha {alpha:g}"
    )
    columns = (
        "comparison",
        "test",
        "p at most alpha",
        "compatible with alpha",
        "expected, as these",
        "after the correction",
    )
    return Shown(title, columns, tuple(rows))


def _raw(one: ComparisonRates) -> RatePart:
    return next(m.rate for m in one.methods if (m.kind, m.method) == ("test", one.test))


def _methods(one: ComparisonRates, found: Validation) -> Shown:
    names = list(next((m.simulated for m in one.methods), {}))
    rows = []
    for part in one.methods:
        what = "p at most alpha" if part.kind == "test" else "interval leaves out 0"
        simulated = tuple(_percent(part.simulated.get(name)) for name in names)
        rows.append((part.method, what, in_words(part.rate), *simulated, _unavailable(part)))
    title = f"Every test and interval on {one.id}: observed beside simulated ({found.studies} studies of {found.pairs} pairs)"
    columns = ("method", "counted", "observed", *(f"simulated, {name}" for name in names), "no answer")
    return Shown(title, columns, tuple(rows))


def _unavailable(part: MethodPart) -> str:
    return str(part.unavailable) if part.unavailable else "-"


def _decisions(found: Validation) -> Shown:
    names = list(found.decisions[0].decisions) if found.decisions else []
    rows = [(name, *(in_words(one.decisions[name]) for one in found.decisions)) for name in names]
    columns = ("decision", *(f"{one.variant} against {found.baseline}" for one in found.decisions))
    return Shown("Decisions where nothing differs", columns, tuple(rows))


def _deltas(found: Validation) -> Shown:
    rows = []
    for one in found.comparisons:
        d = one.deltas
        equivalent = "-" if one.equivalent is None else in_words(one.equivalent)
        rows.append(
            (
                one.id,
                f"{d.n:,}",
                f"{_number(d.mean)} ({_number(d.low)} to {_number(d.high)})",
                _number(d.sd),
                _number(d.skewness),
                _number(d.excess_kurtosis),
                _number(d.correlation),
                equivalent,
                _percent(one.equivalent_planned),
            )
        )
    columns = ("comparison", "pairs", "mean difference", "SD", "skewness", "excess kurtosis", "seed correlation")
    return Shown("The differences themselves", (*columns, "shown equivalent", "planned"), tuple(rows))


def _doses(found: Validation) -> Shown:
    rows = [
        (
            f"{one.variant} at {one.lr:g}",
            f"{one.calibration.mean:+.4f} ± {one.calibration.sd:.4f}",
            f"{one.calibration.d:.2f} ({one.calibration.d_low:.2f} to {one.calibration.d_high:.2f})",
            "-" if one.judged_d is None else f"{one.judged_d:.2f}",
            f"{100 * one.planned:.0f} % ({100 * one.planned_low:.0f} to {100 * one.planned_high:.0f})",
            _percent(one.expected),
            in_words(one.detected),
            _yes(one.compatible),
            str(one.wrong_way.hits) if one.lr != one.base_lr else "-",
        )
        for one in found.doses
    ]
    first = found.doses[0]
    title = (
        f"Injected effects: a smaller learning rate than {first.base_lr:g}, {first.detected.n} studies of {found.pairs} "
        f"pairs, calibrated on {first.calibration.n} other seeds"
    )
    columns = ("arm", "difference, mean ± SD", "d", "d on the judged seeds", "planned power", "expected, as calibrated")
    return Shown(title, (*columns, "detected", "compatible", "wrong way"), tuple(rows))


def _dose_methods(found: Validation) -> Shown:
    columns = tuple(f"{one.variant} at {one.lr:g}" for one in found.doses)
    by_method: list[Mapping[tuple[str, str], RatePart]] = [
        {(m.kind, m.method): m.rate for m in one.methods} for one in found.doses
    ]
    rows = [(f"{name} ({kind})", *(in_words(each[kind, name]) for each in by_method)) for kind, name in by_method[0]]
    return Shown("Detection by every test and interval", ("method", *columns), tuple(rows))


def _dose_decisions(found: Validation) -> Shown:
    columns = tuple(f"{one.variant} at {one.lr:g}" for one in found.doses)
    names = list(found.doses[0].decisions)
    rows = [(name, *(in_words(one.decisions[name]) for one in found.doses)) for name in names]
    return Shown("Decisions under injected effects", ("decision", *columns), tuple(rows))


def summary(found: Validation) -> tuple[str, ...]:
    """What it comes to, in sentences."""
    lines = [one.text for one in found.compatibility]
    for family in found.families:
        word = "keeps" if family.compatible else "does not keep"
        lines.append(
            f"{family.id}: at least one significant in {in_words(family.any)}; the {family.correction} correction {word} "
            f"alpha {family.alpha:g} over its {len(family.members)} tests."
        )
    for gain in found.gains:
        lines.append(
            f"Stability gain of {gain.variant} against {gain.reference}: leaves out 0 in {in_words(gain.excludes_zero)}; "
            f"{gain.unstable_runs} of {gain.runs} runs were unstable."
        )
    lines += [one.text for one in found.doses]
    return (*lines, *found.notes)


def markdown(found: Validation) -> str:
    """validation.md."""
    lines = "\n".join(f"- {line}" for line in summary(found))
    tables = "\n".join(one.markdown() for one in shown(found))
    return f"# Validation: {found.study}\n\n{lines}\n\n{tables}"


def _yes(flag: bool) -> str:
    return "yes" if flag else "NO"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
