"""Numbers as text: one style for the terminal, the page, the paper, tables and messages.

A number has as many digits as it carries, a true minus sign, a comma between thousands, and a narrow space that does not
break before its unit. Where there is no number, there is a dash. `plain` turns the spaces into ordinary ones.

| kind | function | examples |
|---|---|---|
| measured number | `number` | 0.121, 0.500, 1,234, 1.23×10⁸, 4.00×10⁻⁵ |
| setting, as it was given | `setting` | 0.0003, 10⁻⁸, 3×10⁻⁵, 16,777,216 |
| mean and SD, two digits of the SD | `mean_sd` | 1.6512 ± 0.0043 |
| difference, two digits of the half width, three of the largest | `difference` | +0.121 [+0.117, +0.125], +3.1 %, ×12.4 |
| p-value, two digits and no more than four decimals | `p_value`, `p_clause` | 0.0051, 0.031, 0.27, <0.0001, p = 0.031 |
| share | `percent` | 43 %, 0.4 % |
| level of an interval | `level` | 95 %, 99.5 % |
| count | `count` | 614,400 |
| large count, three digits | `amount` | 614 k, 1.61 M, 6.80 TFLOP, 9,600 |
| bytes | `byte_size` | 512 B, 80.0 GB |
| time | `duration` | 0.004 s, 4.2 s, 42 s, 12 min, 3.4 h, 2.5 days |
| count in a sentence | `count_word`, `counted`, `part` | five, one seed, two of five |
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

MINUS: Final = "\N{MINUS SIGN}"
DASH: Final = "\N{EN DASH}"
NARROW: Final = "\N{NARROW NO-BREAK SPACE}"
FIXED: Final = "\N{NO-BREAK SPACE}"

_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_MOST_DECIMALS = 6
#: The largest of a difference and the ends of its interval has so many digits.
_DIGITS = 3
#: From so many times on, a change is a factor: a percentage of thousands says nothing.
_FACTOR = 10.0
#: A p-value below this is known to be below it, and no more is said of it.
_LEAST_P = 1e-4


def plain(text: str) -> str:
    """The text with ordinary spaces, for a terminal or a file that is searched."""
    return text.replace(NARROW, " ").replace(FIXED, " ")


def printable(text: str) -> str:
    """The text less what a terminal would obey: control characters but tabs and line breaks, and signs that turn text."""
    return _CONTROL.sub("\ufffd", text)


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def number(value: float | None, digits: int = 3, *, sign: bool = False) -> str:
    """A measured number with *digits* significant digits; from 10⁷ and below 10⁻⁴ as a power of ten."""
    if value is None or not math.isfinite(value):
        return _no_number(value)
    if value == 0:
        return "0"
    if abs(value) >= 1e7 or abs(value) < 1e-4:
        return _power(f"{value:{'+' if sign else ''}.{digits - 1}e}")
    rounded = float(f"{value:.{digits - 1}e}")  # 0.9996 has its first digit one place further left
    return fixed(value, max(0, digits - 1 - math.floor(math.log10(abs(rounded)))), sign=sign)


def fixed(value: float | None, places: int, *, sign: bool = False) -> str:
    """A number with *places* decimals; from 10⁷ and below 10⁻⁶ as a power of ten. A rounded zero has no sign."""
    if value is None or not math.isfinite(value):
        return _no_number(value)
    if value and (abs(value) >= 1e7 or abs(value) < 1e-6):
        return _power(f"{value:{'+' if sign else ''}.2e}")
    text = f"{value:{'+' if sign else ''},.{places}f}"
    return (text if float(text.replace(",", "")) else text.lstrip("+-")).replace("-", MINUS)


def setting(value: float | None) -> str:
    """A setting with the digits it was given with: a learning rate, alpha, a threshold. A computed one has six."""
    if value is None or not math.isfinite(value):
        return _no_number(value)
    texts = (f"{value:,.{digits}g}" for digits in (6, 12))
    given = (text for text in texts if math.isclose(float(text.replace(",", "")), value, rel_tol=1e-14))
    return _power(next(given, f"{value:,.6g}"))


def ranges(numbers: Iterable[int | str]) -> str:
    """Names or numbers in their order, three or more neighbours as ``4211 to 4218``."""
    runs: list[list[int | str]] = []
    for item in numbers:
        last = runs[-1][-1] if runs else None
        if isinstance(item, int) and isinstance(last, int) and item == last + 1:
            runs[-1].append(item)
        else:
            runs.append([item])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def mean_sd(mean: float | None, sd: float | None) -> str:
    """``mean ± SD``, both with two digits of the SD; without an SD, the mean alone with three digits.

    Below 10⁻³ and from 10⁶ on, both share a power of ten: ``(1.57 ± 0.81)×10⁶``.
    """
    if mean is None or sd is None:
        return mean_beside(mean, sd)
    unit, power = _power_of(mean, sd)
    both = f"{mean_beside(mean / unit, sd / unit)} ± {fixed(sd / unit, _decimals(sd / unit, mean / unit))}"
    return f"({both}){power}" if power else both


def mean_beside(mean: float | None, sd: float | None) -> str:
    """A mean alone, with the digits that `mean_sd` gives it."""
    if mean is None:
        return DASH
    unit, power = _power_of(mean, sd)
    return fixed(mean / unit, _decimals(None if sd is None else sd / unit, mean / unit)) + power


def _power_of(mean: float, sd: float | None) -> tuple[float, str]:
    """The power of ten in which a small or large mean and its SD are printed, as a number and as a text."""
    largest = max(abs(mean), sd or 0.0)
    if not sd or not (0 < largest < 1e-3 or 1e6 <= largest < math.inf):
        return 1.0, ""
    power = math.floor(math.log10(largest))
    return 10.0**power, f"×{_ten_to(power)}"


def p_value(p: float | None) -> str:
    """A p-value for a table."""
    if p is None:
        return DASH
    if p < _LEAST_P:
        return f"<{p_value(_LEAST_P)}"
    return f"{p:.4f}" if p < 0.00995 else f"{p:.3f}" if p < 0.0995 else f"{p:.2f}"


def p_clause(p: float | None) -> str:
    """A p-value for a sentence, on one line: ``p = 0.031``, ``p < 0.0001``."""
    if p is None:
        return "no p-value"
    sign, bound = ("<", _LEAST_P) if p < _LEAST_P else ("=", p)
    return FIXED.join(("p", sign, p_value(bound)))


def percent(share: float | None, places: int = 0, *, sign: bool = False) -> str:
    """A share; with a *sign*, a change, from ten times on as a factor."""
    if sign and share is not None and share >= _FACTOR - 1:
        return f"×{number(1 + share)}"
    return DASH if share is None else f"{fixed(100 * share, places, sign=sign)}{NARROW}%"


def level(value: float) -> str:
    """The level of an interval, or a power that was asked for."""
    digits = 4 if value < 0.99995 else 3 - math.floor(math.log10(1 - value)) if value < 1 else 4
    return f"{100 * value:.{digits}g}{NARROW}%"


def count(value: int | None) -> str:
    """A count with all its digits."""
    return DASH if value is None else f"{value:,}".replace("-", MINUS)


def amount(value: float | None, unit: str = "") -> str:
    """A large count with three digits and its prefix; below ten thousand with all its digits."""
    if value is None or not math.isfinite(value):
        return _no_number(value)
    if abs(value) < 1e4:
        text = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else number(value)
        return with_unit(text.replace("-", MINUS), unit)
    if abs(value) >= 9e20:
        return with_unit(number(value), unit)
    rounded = float(f"{value:.2e}")  # 999,950 is 1.00 M
    size, prefix = next((size, prefix) for size, prefix in _PREFIXES if abs(rounded) >= size)
    places = 2 - math.floor(math.log10(abs(rounded) / size))
    return f"{value / size:.{max(0, places)}f}".replace("-", MINUS) + NARROW + prefix + unit


def byte_size(value: float | None) -> str:
    """A size in memory or on disk, in powers of a thousand."""
    return amount(value, "B")


def duration(seconds: float | None) -> str:
    """A time in the unit a person would use."""
    if seconds is None or not math.isfinite(seconds):
        return _no_number(seconds)
    if 0 < seconds < 0.05:
        return f"{number(seconds, 1)}{NARROW}s"
    if seconds < 90:
        return f"{seconds:.{1 if 0 < seconds < 9.95 else 0}f}{NARROW}s"
    if seconds < 5400:
        return f"{seconds / 60:.0f}{NARROW}min"
    hours = seconds / 3600
    return f"{hours:.1f}{NARROW}h" if hours < 48 else f"{hours / 24:.1f}{NARROW}days"


def with_unit(text: str, unit: str) -> str:
    """A number and its unit, kept on one line; a pure number ("1") has none."""
    return f"{text}{NARROW}{unit}" if unit not in ("", "1") else text


@dataclass(frozen=True)
class Difference:
    """A difference and its interval in one style. *size* is the difference without its sign; *unit* follows each of them;
    *zero*: it is printed as 0.
    """

    delta: str
    low: str
    high: str
    size: str
    unit: str
    zero: bool = False

    @property
    def text(self) -> str:
        """The difference; a percentage has its sign behind it, other units stand in a table's first column."""
        return with_unit(self.delta, "%") if self.unit == "%" and self.delta != DASH else self.delta

    @property
    def interval(self) -> str:
        """``[low, high]``, or a dash."""
        return DASH if DASH in (self.low, self.high) else f"[{self.low},\N{NO-BREAK SPACE}{self.high}]"

    @property
    def range(self) -> str:
        """``low to high``, or a dash."""
        return DASH if DASH in (self.low, self.high) else f"{self.low} to {self.high}"


def difference(
    delta: float | None,
    low: float | None = None,
    high: float | None = None,
    *,
    log: bool = False,
    unit: str = "",
    sign: bool = True,
) -> Difference:
    """A difference on the metric's own scale; of logarithms as a change in percent, and as a factor where it or its interval
    reaches ×10 or ×0.1: a quantity that is positive never falls by 100 %.

    An estimate that is not a difference has no *sign* where it is positive.
    """
    if log and any(value is not None and abs(value) >= math.log(_FACTOR) for value in (delta, low, high)):

        def times(value: float | None, before: str = "×") -> str:
            return DASH if value is None else f"{before}{number(_from_log(value, factor=True))}"

        size = times(None if delta is None else abs(delta), "a factor of ")
        return Difference(times(delta), times(low), times(high), size, "")
    if log:
        delta, low, high = (_from_log(value, factor=False) for value in (delta, low, high))
        unit = "%"
    places = _decimals(None if low is None or high is None else (high - low) / 2, delta)
    largest = max(
        (abs(value) for value in (delta, low, high) if value is not None and math.isfinite(value)), default=0.0
    )
    if largest:
        places = min(places, max(0, _DIGITS - 1 - math.floor(math.log10(largest))))
    for bound in (low, high):  # whether an interval holds zero must show
        places += next((more for more in (0, 1, 2) if _shows(bound, places + more)), 0)

    def text(value: float | None) -> str:
        return DASH if value is None else fixed(value, places, sign=sign)

    size = DASH if delta is None else fixed(abs(delta), places)
    zero = size == fixed(0.0, places)
    return Difference(text(delta), text(low), text(high), size, "" if unit == "1" else unit, zero)


def _shows(value: float | None, places: int) -> bool:
    """Whether so many decimals tell a value from zero."""
    return not value or not math.isfinite(value) or places >= _MOST_DECIMALS or abs(value) >= 0.5 * 10**-places


def count_word(value: int) -> str:
    """A count in a sentence: words up to twelve, digits beyond."""
    return _WORDS[value] if 0 <= value < len(_WORDS) else count(value)


def counted(value: int, noun: str, plural: str | None = None) -> str:
    """``one seed``, ``five seeds``, ``no runs``."""
    return f"{count_word(value)} {noun if value == 1 else plural or noun + 's'}"


def several(value: int, noun: str, plural: str | None = None) -> str:
    """``1 pair``, ``5 pairs``: as `counted`, always in digits."""
    return f"{count(value)} {noun if value == 1 else plural or noun + 's'}"


def part(value: int, whole: int) -> str:
    """``none of five``, ``two of five``, ``all five``."""
    if value == whole > 1:
        return f"all {count_word(whole)}"
    if value and whole >= len(_WORDS):
        return f"{count(value)} of {count(whole)}"
    return f"{'none' if value == 0 else count_word(value)} of {count_word(whole)}"


def _decimals(spread: float | None, value: float | None) -> int:
    """Decimals that show two digits of *spread*; without one, three of *value*."""
    size = spread or value
    if not size or not math.isfinite(size):
        return 3
    return max(0, min(_MOST_DECIMALS, (1 if spread else 2) - math.floor(math.log10(abs(size)))))


def _from_log(value: float | None, *, factor: bool) -> float | None:
    try:
        return None if value is None else math.exp(value) if factor else 100 * math.expm1(value)
    except OverflowError:
        return math.inf


def _ten_to(exponent: int) -> str:
    return f"10{str(exponent).translate(_RAISED)}"


def _power(text: str) -> str:
    """A number that Python may have written with an exponent, as a power of ten."""
    mantissa, e, exponent = text.partition("e")
    if not e:
        return text.replace("-", MINUS)
    power = _ten_to(int(exponent))
    return power if mantissa == "1" else mantissa.replace("-", MINUS) + "×" + power


def _no_number(value: float | None) -> str:
    if value is None:
        return DASH
    return "NaN" if math.isnan(value) else "∞" if value > 0 else f"{MINUS}∞"
