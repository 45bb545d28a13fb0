"""Tables on terminals of several widths: names and numbers never break."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ablationlab.report.layout import wrapped
from ablationlab.report.table import Cell, Column, Table

NAMES = ("layernorm-token − none", "rmsnorm-nogain − none")
WHY = "Worse: validation loss +0.121 nats/token (95 % interval +0.117 to +0.125, 5 pairs), p < 0.0001 (Holm over 2)."
TABLE = Table(
    "t",
    "Comparisons",
    (
        Column("contrast", "Contrast"),
        Column("reference", "Reference", "right", spare=True),
        Column("difference", "Mean difference", "right"),
        Column("interval", "Interval", "right"),
        Column("why", "Why"),
    ),
    tuple(
        (
            Cell(name, name, code=True),
            Cell.of(1.25, "1.2500 ± 0.0110"),
            Cell.of(0.121, "+0.1210"),
            Cell.of(0.117, "[+0.117, +0.125]"),
            Cell.of(WHY),
        )
        for name in NAMES
    ),
)


def printed(table, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(table.terminal() if isinstance(table, Table) else table)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 120, 200])
def test_names_and_numbers_never_break(width):
    lines = printed(TABLE, width)
    for value in (*NAMES, "+0.1210", "[+0.117, +0.125]"):
        assert any(value in line for line in lines)
    assert max(map(cell_len, lines)) <= width


def test_sentences_of_several_columns_stand_behind_their_titles_where_they_are_stacked():
    rows = [("layernorm", "5 of 32 seeds reach the loss of the baseline", "32 of 48 seeds, the others diverged early")]
    several = Table.simple("", ["variant", "reached", "note"], rows, [])
    assert printed(several, 40)[1:] == [
        "layernorm",
        "    reached: 5 of 32 seeds reach the",
        "    loss of the baseline",
        "    note: 32 of 48 seeds, the others",
        "    diverged early",
    ]
    assert not any("reached:" in line for line in printed(several.without("note"), 40))


@pytest.mark.parametrize("width", [30, 60, 80, 120])
def test_every_word_of_a_sentence_is_printed(width):
    words = " ".join(" ".join(printed(TABLE, width)).split())
    assert all(words.count(word) >= len(NAMES) for word in WHY.split())


def test_spare_columns_go_before_anything_is_stacked_and_are_named():
    lines = printed(TABLE, 100)
    assert not any("1.2500" in line for line in lines)
    assert lines[-1] == "Not shown at this width: reference."
    assert any("1.2500 ± 0.0110" in line for line in printed(TABLE, 140))


def test_a_note_on_a_column_is_printed_where_the_column_is():
    heads = [Column("name", "Name"), Column("speed", "Speed", "right", spare=True, note="Speed: on one GPU.")]
    table = Table.of("t", "Title", [dict(zip(heads, ("layernorm", "990,000"), strict=True))], "Means.")
    assert printed(table, 60)[-1] == "Means. Speed: on one GPU."
    assert printed(table, 14)[-2:] == ["speed.", "Means."]
    assert "Means. Speed: on one GPU." in table.markdown()
    assert table.without("speed").notes == "Means."


def test_lines_have_no_trailing_spaces():
    assert all(line == line.rstrip() for line in printed(TABLE, 120))


def test_a_title_wraps_between_words_where_there_is_no_room():
    narrow = TABLE.only("contrast", "difference", "interval")
    room = len(NAMES[0]) + 2 + len("difference") + 2 + len("[+0.117, +0.125]")
    lines = printed(narrow, room)
    assert [line.split() for line in lines[1:3]] == [["contrast", "mean", "interval"], ["difference"]]


def test_a_title_takes_two_lines_before_another_is_spared_a_break():
    heads = ["tokens per run", "FLOPs per run", "lr"]
    table = Table.simple("Arms", heads, [("307,200", "228 G", "0.002")], heads)
    room = len("tokens per run  FLOPs per run  0.002") - 1
    assert [line.split() for line in printed(table, room)[1:3]] == [
        ["tokens", "per", "run", "FLOPs", "per", "lr"],
        ["run"],
    ]
    lines = printed(table, len("tokens per  FLOPs per  0.002"))
    assert lines[3].split() == ["307,200", "228", "G", "0.002"], "two lines of titles for both"


@pytest.mark.parametrize("width", range(12, 60))
def test_a_text_breaks_between_words_and_never_between_a_number_and_its_unit(width):
    text = "The network reaches 70 % of its rate after 3 min and takes 0.5 GB or 1.5 x as much, 0.01 nats/token."
    text += " Or 400 Gb/s, 8 TFLOP/s and 3 nats."
    lines = [line.plain for line in wrapped(Text(text), width)]
    assert " ".join(lines) == text
    assert all(line == line.strip() for line in lines), "no spaces at the ends"
    for unit in ("%", "min", "GB", "x", "nats/token", "nats", "TFLOP/s", "Gb/s"):
        assert not any(re.match(rf"{unit}\b|{unit} ", line) for line in lines), unit
    longest = max(map(len, re.split(r" (?!%|min|GB|Gb|TFLOP|x|nats)", text)))
    assert max(map(len, lines)) <= max(width, longest)


@pytest.mark.parametrize("width", range(12, 60))
def test_a_value_stays_on_the_line_of_its_name(width):
    text = "Not shown: validation loss (97.5 % interval), p = 0.19 (Holm over 2). Assumed: weight_decay = 0.1, warmup = 30."
    lines = [line.plain for line in wrapped(Text(text), width)]
    assert " ".join(lines) == text
    assert all(any(pair in line for line in lines) for pair in ("p = 0.19", "weight_decay = 0.1", "warmup = 30"))


def test_a_wrapped_line_keeps_its_indentation():
    lines = [line.plain for line in wrapped(Text("Note\n  one two three\n\nend"), 12)]
    assert lines == ["Note", "  one two", "  three", "", "end"]


def test_what_follows_an_item_of_a_list_stands_behind_its_mark():
    text = "Notes\n- first word of an item\n  - and one below"
    assert [line.plain for line in wrapped(Text(text), 14)] == [
        "Notes",
        "- first word",
        "  of an item",
        "  - and one",
        "    below",
    ]


def test_the_name_of_a_row_stands_above_its_numbers_and_never_below():
    heads = ["layout", "GB per GPU", "tokens per second"]
    table = Table.simple(
        "Layouts", heads, [("one GPU, recomputing, a stack of five runs", "72.0", "53,120")], heads[1:]
    )
    assert printed(table, 40) == [
        "Layouts",
        "one GPU, recomputing, a stack of five",
        "runs",
        "    GB per GPU 72.0",
        "    tokens per second 53,120",
    ]


def test_an_empty_sentence_below_a_row_is_not_printed():
    words = "a sentence that is much too long for one line of it"
    cells = tuple((Cell.of("x"), Cell.of("12.5"), Cell.of(words), Cell.of(words[:-1], "–")) for _ in range(2))
    heads = (Column("name", "Name"), Column("n", "N", "right"), Column("a", "A"), Column("b", "B"))
    rows = (*cells, (Cell.of("y"), Cell.of("1"), Cell.of(words), Cell.of(words)))
    lines = printed(Table("t", "", heads, rows).terminal(), 40)
    assert sum("a sentence that" in line for line in lines) == 4
    assert not any("–" in line for line in lines)


def test_spare_columns_that_a_reader_needs_go_below_their_row_together():
    columns = tuple(
        Column(key, key, "right", spare=spare)
        for key, spare in (("contrast", False), ("first", "below"), ("second", "below"), ("p", True))
    )
    table = Table(
        "t",
        "",
        columns,
        (tuple(map(Cell.of, ("a − b", "1.00 ± 0.01", "2.00 ± 0.02", "0.50"))),),
    )
    assert printed(table, 40)[1].split() == ["a", "−", "b", "1.00", "±", "0.01", "2.00", "±", "0.02", "0.50"]
    lines = printed(table, 30)
    assert lines[1].strip() == "a − b"
    assert lines[2:] == ["    first 1.00 ± 0.01", "    second 2.00 ± 0.02", "Not shown at this width: p."]
