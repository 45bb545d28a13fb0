"""One table of values and texts: what a reader sees is decided here."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablationlab.core import format as form
from ablationlab.core.format import plain

NAN, INF = float("nan"), float("inf")

TEXTS = [
    (form.number(0.12068), "0.121"),
    (form.number(0.5), "0.500"),
    (form.number(0.99996), "1.00"),
    (form.number(1234.5), "1,234"),
    (form.number(-0.05), "−0.0500"),
    (form.number(0.05, sign=True), "+0.0500"),
    (form.number(1.23456, 5), "1.2346"),
    (form.number(1_234_567.0), "1,234,567"),
    (form.number(-12_345_678.0), "−1.23×10⁷"),
    (form.number(0.00004), "4.00×10⁻⁵"),
    (form.number(0.0), "0"),
    (form.number(None), "–"),
    (form.number(NAN), "NaN"),
    (form.number(-INF), "−∞"),
    (form.fixed(2.0, 3), "2.000"),
    (form.fixed(-1e-5, 3), "0.000"),
    (form.fixed(1e-5, 3, sign=True), "0.000"),
    (form.fixed(2.0, 1, sign=True), "+2.0"),
    (form.setting(0.0003), "0.0003"),
    (form.setting(3e-5), "3×10⁻⁵"),
    (form.setting(1e-8), "10⁻⁸"),
    (form.setting(16_777_216), "16,777,216"),
    (form.setting(0.05 / 3), "0.0166667"),
    (form.mean_sd(1.65123, 0.00431), "1.6512 ± 0.0043"),
    (form.mean_sd(1234.5, 56.7), "1,234 ± 57"),
    (form.mean_sd(0.25, None), "0.250"),
    (form.mean_sd(0.25, 0.0), "0.250 ± 0.000"),
    (form.mean_sd(None, None), "–"),
    (form.mean_sd(2.3e-5, 9.69e-7), "(2.300 ± 0.097)×10⁻⁵"),
    (form.mean_sd(0.0, 1e-5), "(0.0 ± 1.0)×10⁻⁵"),
    (form.mean_sd(8_546_278.0, 4_583_776.0), "(8.5 ± 4.6)×10⁶"),
    (form.mean_sd(2.94e23, 4.93e23), "(2.9 ± 4.9)×10²³"),
    (form.mean_sd(999_999.0, 12.3), "999,999 ± 12"),
    (form.mean_sd(3.0, math.inf), "3.000 ± ∞"),
    (form.mean_beside(1.65123, 0.00431), "1.6512"),
    (form.mean_beside(0.25, None), "0.250"),
    (form.mean_beside(2.3e-5, 9.69e-7), "2.300×10⁻⁵"),
    (form.mean_beside(None, None), "–"),
    (form.p_value(0.0051), "0.0051"),
    (form.p_value(0.00997), "0.010"),
    (form.p_value(0.031), "0.031"),
    (form.p_value(0.0996), "0.10"),
    (form.p_value(0.2749), "0.27"),
    (form.p_value(1.0), "1.00"),
    (form.p_value(3e-7), "<0.0001"),
    (form.p_value(None), "–"),
    (form.p_clause(0.0051), "p = 0.0051"),
    (form.p_clause(3e-7), "p < 0.0001"),
    (form.p_clause(None), "no p-value"),
    (form.percent(0.434), "43 %"),
    (form.percent(-0.434), "−43 %"),
    (form.percent(0.0042, 1), "0.4 %"),
    (form.percent(None), "–"),
    (form.level(0.95), "95 %"),
    (form.level(0.995), "99.5 %"),
    (form.level(0.999975), "99.9975 %"),
    (form.count(614_400), "614,400"),
    (form.count(None), "–"),
    (form.amount(614_400), "614 k"),
    (form.amount(1_612_800), "1.61 M"),
    (form.amount(6.8e12, "FLOP"), "6.80 TFLOP"),
    (form.amount(999_950), "1.00 M"),
    (form.amount(9600), "9,600"),
    (form.amount(50_000), "50.0 k"),
    (form.amount(12.345), "12.3"),
    (form.amount(2.5e19), "25.0 E"),
    (form.byte_size(512), "512 B"),
    (form.byte_size(80e9), "80.0 GB"),
    (form.duration(0), "0 s"),
    (form.duration(0.0042), "0.004 s"),
    (form.duration(4.21), "4.2 s"),
    (form.duration(42.4), "42 s"),
    (form.duration(720), "12 min"),
    (form.duration(12_240), "3.4 h"),
    (form.duration(216_000), "2.5 days"),
    (form.with_unit("2.31", "nats/token"), "2.31 nats/token"),
    (form.with_unit("2.31", "1"), "2.31"),
    (form.count_word(5), "five"),
    (form.count_word(1300), "1,300"),
    (form.counted(1, "seed"), "one seed"),
    (form.counted(0, "run"), "no runs"),
    (form.part(0, 5), "none of five"),
    (form.part(2, 5), "two of five"),
    (form.part(5, 5), "all five"),
    (form.part(1, 1), "one of one"),
    (form.part(11, 15), "11 of 15"),
    (plain(form.percent(0.31, sign=True)), "+31 %"),
    (form.percent(314.15, sign=True), "×315"),
]


@pytest.mark.parametrize(("made", "text"), TEXTS)
def test_a_value_has_one_text(made, text):
    assert plain(made) == text


def test_a_difference_that_is_printed_as_zero_is_known():
    deltas = (-1e-5, 0.0, 0.01, None)
    assert [form.difference(delta, -0.1, 0.1).zero for delta in deltas] == [True, True, False, False]


@pytest.mark.parametrize("p", [0.0051, 3e-7])
def test_a_p_value_stays_on_one_line(p: float):
    assert " " not in form.p_clause(p)


@pytest.mark.parametrize(
    ("arguments", "text", "interval", "size"),
    [
        ({"delta": 0.12068, "low": 0.1167, "high": 0.1246}, "+0.121", "[+0.117, +0.125]", "0.121"),
        ({"delta": -0.05, "low": -0.3, "high": 0.2}, "−0.05", "[−0.30, +0.20]", "0.05"),
        ({"delta": 0.05}, "+0.0500", "–", "0.0500"),
        ({"delta": None}, "–", "–", "–"),
        ({"delta": 0.0305, "low": 0.01, "high": 0.05, "log": True}, "+3.1 %", "[+1.0, +5.1]", "3.1"),
        ({"delta": 2.5, "low": 2.4, "high": 2.6, "log": True}, "×12.2", "[×11.0, ×13.5]", "a factor of 12.2"),
        ({"delta": 0.9, "low": 0.8, "high": 1.0, "log": True}, "+146 %", "[+123, +172]", "146"),
        ({"delta": -0.9, "low": -1.0, "high": -0.8, "log": True}, "−59.3 %", "[−63.2, −55.1]", "59.3"),
        ({"delta": 800.0, "log": True}, "×∞", "–", "a factor of ∞"),
        # An interval that reaches ×10 would print thousands of percent.
        ({"delta": 0.9, "low": -4.0, "high": 5.75, "log": True}, "×2.46", "[×0.0183, ×314]", "a factor of 2.46"),
        # Nothing positive falls by 100 %.
        (
            {"delta": -8.1, "low": -9.0, "high": -1.86, "log": True},
            "×0.000304",
            "[×0.000123, ×0.156]",
            "a factor of 3,294",
        ),
        # A shown difference whose interval would print as if it held zero.
        ({"delta": -0.3155, "low": -0.6307, "high": -0.0003, "log": True}, "−27.06 %", "[−46.78, −0.03]", "27.06"),
        ({"delta": 0.25, "low": 0.004, "high": 0.496}, "+0.250", "[+0.004, +0.496]", "0.250"),
        ({"delta": 0.25, "low": 0.0, "high": 0.5}, "+0.25", "[0.00, +0.50]", "0.25"),
    ],
)
def test_a_difference_and_its_bounds_have_the_same_decimals(arguments, text, interval, size):
    made = form.difference(**arguments)
    assert (plain(made.text), plain(made.interval), made.size) == (text, interval, size)


def test_units_of_a_difference():
    assert form.difference(0.1, unit="nats/token").unit == "nats/token"
    assert form.difference(0.1, unit="1").unit == ""
    assert form.difference(0.1, unit="tokens/s", log=True).unit == "%"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_can_be_written_and_keeps_its_sign(value):
    for text in (form.number(value), form.setting(value), form.amount(value)):
        assert text
        assert text.startswith("−") == (math.copysign(1, value) < 0 and value != 0) or text in ("0", "−0")
        assert not set("e-") & set(text)


@given(st.floats(allow_nan=False, allow_infinity=False, width=32), st.integers(0, 6))
def test_rounding_never_signs_a_zero(value, places):
    text = form.fixed(value, places, sign=True)
    if not any(sign in text for sign in "123456789"):
        assert text[0] not in "+−-"
    assert "-" not in text
    assert math.isfinite(value)
