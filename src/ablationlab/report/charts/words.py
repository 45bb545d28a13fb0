"""How numbers are written for people: signs, digits, units."""

from __future__ import annotations

import math

MINUS = "\N{MINUS SIGN}"


def digits(value: float | None, significant: int = 3) -> str:
    """A number to so many significant digits, with a true minus sign, without an exponent where it is readable."""
    if value is None:
        return "\N{EN DASH}"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "\N{INFINITY}" if value > 0 else f"{MINUS}\N{INFINITY}"
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6 or size < 1e-5:
        mantissa, exponent = f"{size:.{significant - 1}e}".split("e")
        text = f"{mantissa}e{int(exponent)}"
    else:
        places = max(0, significant - 1 - math.floor(math.log10(size)))
        text = f"{size:,.{places}f}"
    return f"{MINUS}{text}" if value < 0 else text


def signed(value: float | None, significant: int = 3) -> str:
    """A difference, always with its sign."""
    text = digits(value, significant)
    return f"+{text}" if value is not None and value > 0 else text


def alike(low: float | None, high: float | None, estimate: float | None, *, sign: bool = True) -> tuple[str, str, str]:
    """(estimate, low, high) to the same number of places: two digits of the interval's width count."""
    bounded = [value for value in (low, high) if value is not None and math.isfinite(value)]
    if len(bounded) < 2 or bounded[0] == bounded[1] or estimate is None:
        write = signed if sign else digits
        return write(estimate), write(low), write(high)
    places = min(8, max(0, 1 - math.floor(math.log10(bounded[1] - bounded[0]))))
    return tuple(_placed(value, places, sign) for value in (estimate, low, high))  # type: ignore[return-value]


def _placed(value: float | None, places: int, sign: bool) -> str:
    if value is None:
        return "\N{EN DASH}"
    text = f"{abs(value):,.{places}f}"
    if value < 0 and float(text.replace(",", "")) != 0:
        return f"{MINUS}{text}"
    return f"+{text}" if sign and value > 0 else text


def p_words(p: float | None) -> str:
    """A p-value as papers print it."""
    if p is None:
        return "\N{EN DASH}"
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}" if p < 0.01 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def share(value: float | None) -> str:
    """A share as a percentage."""
    if value is None:
        return "\N{EN DASH}"
    text = f"{abs(value) * 100:.0f}"
    return (
        f"{MINUS}{text}\N{NARROW NO-BREAK SPACE}%" if value < 0 and text != "0" else f"{text}\N{NARROW NO-BREAK SPACE}%"
    )


def amount(value: float) -> str:
    """A large count, short: 614 k, 6.80 T."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            shown = 1e3 if letter == "k" else size
            return f"{value / shown:.3g}\N{NO-BREAK SPACE}{letter}"
    return f"{value:,.0f}"
