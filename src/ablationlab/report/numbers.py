"""Numbers as a paper prints them: as many digits as they carry, and an estimate with its bounds in one style.

Text in here is plain Unicode ("−", "×", "±"); the paper, LaTeX and Markdown escape it in their own way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ablationlab.records.analysis import Comparison

MINUS = "\N{MINUS SIGN}"
NONE = "\N{EN DASH}"
THIN = "\N{NARROW NO-BREAK SPACE}"


_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def signed(text: str) -> str:
    """The sign of a number as a typographer sets it."""
    return text.replace("-", MINUS)


def decimals(spread: float | None, value: float | None = None) -> int:
    """Decimals that show two significant digits of *spread*; without one, three or more of *value*; at most 6."""
    size = spread if spread else value
    if not size or not math.isfinite(size):
        return 3
    wanted = (1 if spread else 2) - math.floor(math.log10(abs(size)))
    return max(0, min(6, wanted))


def fixed(value: float | None, places: int, *, sign: bool = False) -> str:
    """A number with so many decimals; very large or small ones in powers of ten."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return signed(str(value))
    if value and (abs(value) >= 1e7 or abs(value) < 10**-6):
        return tens(f"{value:+.3g}" if sign else f"{value:.3g}")
    text = f"{value:{'+' if sign else ''},.{places}f}"
    # A rounded zero has no sign.
    return signed(text if float(text.replace(",", "")) else text.lstrip("+-"))


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return signed(str(value))
    if value and (abs(value) >= 10**7 or abs(value) < 1e-4):
        return tens(f"{value:.{digits}g}")
    text = f"{value:.{digits}g}"
    if "e" in text:
        text = f"{value:.0f}"
    whole, point, rest = text.partition(".")
    return signed(f"{int(whole):,}{point}{rest}" if abs(value) >= 1000 else text)


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def setting(value: float) -> str:
    """A setting as it was given: 0.0003, 10⁻⁸."""
    return tens(f"{value:g}")


def tens(text: str) -> str:
    """A number that Python writes with an exponent, as a power of ten."""
    mantissa, e, exponent = text.partition("e")
    if not e:
        return signed(text)
    power = f"10{str(int(exponent)).translate(_RAISED)}"
    return power if mantissa == "1" else signed(f"{mantissa}×") + power


def mean_sd(mean: float | None, sd: float | None) -> str:
    """``mean ± sd``, both to the digits that the SD carries."""
    if mean is None:
        return NONE
    places = decimals(sd, mean)
    return fixed(mean, places) if sd is None else f"{fixed(mean, places)} ± {fixed(sd, places)}"


def p_value(p: float | None) -> str:
    """A p-value for a table."""
    if p is None:
        return NONE
    if p < 1e-4:
        return "<0.0001"
    return f"{p:.4f}" if p < 0.001 else f"{p:.3f}" if p < 0.0995 else f"{p:.2f}"


def p_clause(p: float | None) -> str:
    """A p-value for a sentence: ``p = 0.031``, ``p < 0.0001``."""
    if p is None:
        return "no p-value"
    text = p_value(p)
    return f"p < {text[1:]}" if text.startswith("<") else f"p = {text}"


def percent(share: float | None, places: int = 0) -> str:
    """A share in percent."""
    return NONE if share is None else f"{fixed(100 * share, places)}{THIN}%"


def level(value: float) -> str:
    """The level of an interval: ``95 %``."""
    return f"{signed(f'{100 * value:.4g}')}{THIN}%"


def count(value: int) -> str:
    """A count in a sentence: words up to twelve, digits beyond."""
    return _WORDS[value] if 0 <= value < len(_WORDS) else f"{value:,}"


def part(value: int, whole: int) -> str:
    """``none of five``, ``two of five``."""
    return f"{'none' if value == 0 else count(value)} of {count(whole)}"


def counted(value: int, noun: str, plural: str | None = None) -> str:
    """``one seed``, ``five seeds``, ``no runs``."""
    return f"{count(value)} {noun if value == 1 else plural or noun + 's'}"


def scaled(value: float) -> str:
    """A large count with its letter: 1.61 M, 614.4 k."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{THIN}{letter}"
    return f"{value:g}"


def unit_of(one: Comparison) -> str:
    """The unit of a comparison's values; empty where there is none."""
    return "" if one.unit in ("", "1") else one.unit


@dataclass(frozen=True)
class Shown:
    """A difference and its bounds in one style. *size* is the difference without its sign, *unit* belongs behind it."""

    delta: str
    low: str
    high: str
    size: str
    unit: str
    style: str

    @property
    def interval(self) -> str:
        """``[low, high]``, or a dash."""
        return NONE if self.low == NONE else f"[{self.low}, {self.high}]"

    @property
    def range(self) -> str:
        """``low to high``."""
        return f"{self.low} to {self.high}"


def shown(one: Comparison) -> Shown:
    """A comparison's difference: on the metric's own scale; of logs as a change in percent, or a factor if large."""
    interval = one.main_interval
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    values = [one.delta, low, high]
    style, unit = "plain", unit_of(one)
    if one.transform == "log" and one.delta is not None:
        large = abs(one.delta) >= math.log(2)
        style, unit = ("factor", "") if large else ("percent", "%")
        values = [None if v is None else math.exp(v) if large else 100 * math.expm1(v) for v in values]
    delta, low, high = values
    spread = None if low is None or high is None else (high - low) / 2
    places = decimals(spread, delta)
    mark = "×" if style == "factor" else ""
    texts = [NONE if v is None else mark + fixed(v, places, sign=style != "factor") for v in (delta, low, high)]
    size = NONE if delta is None else mark + fixed(delta if mark else abs(delta), places)
    return Shown(texts[0], texts[1], texts[2], size, unit, style)


def with_unit(text: str, unit: str) -> str:
    """A number and its unit, not to be torn apart."""
    return f"{text}{THIN}{unit}" if unit else text


def outcome_word(one: Comparison) -> str:
    """What a comparison came to, in a table's words."""
    return one.outcome.replace("-", " ")


def equivalence_word(one: Comparison) -> str:
    """Whether equivalence within the registered bounds was shown."""
    tost = one.equivalence
    if tost is None:
        return NONE
    return "untested" if tost.equivalent is None else "yes" if tost.equivalent else "not shown"
