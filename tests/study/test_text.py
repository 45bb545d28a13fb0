"""A study's own text: read from the file that the study names, checked when it is loaded, sealed with the plan."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablationlab.core.errors import StudyError
from ablationlab.records.settings import Study
from ablationlab.study.load import load_study
from ablationlab.study.text import TextSpan, entries, paragraphs

STUDY = """
name = "with-text"
text = "prose.md"
baseline = "none"
variants = ["none", "layernorm"]
seeds = [1, 2]
model = {layers = 1, width = 16, heads = 2, context = 16}
training = {steps = 10, warmup = 2}
"""
PROSE = """# Introduction
Where a norm belongs
is open [@one2020].

# Related work
**Norms.** See [@one2020; @two2021] and *this*: `x`.

# References
% a comment
@article{one2020, title = {On {Norms} \\{1\\}}, author = {A}, year = {2020}}

@misc{two2021,
  title = {Two},
  author = {B},
  year = {2021}
}
"""


def load(folder: Path, prose: str | bytes | None = PROSE, study: str = STUDY) -> Study:
    folder.mkdir(exist_ok=True)
    if prose is not None:
        (folder / "prose.md").write_bytes(prose.encode() if isinstance(prose, str) else prose)
    (folder / "study.toml").write_text(study)
    return load_study(folder / "study.toml")


def test_the_text_is_read_relative_to_the_study_file_and_kept_in_the_study(tmp_path):
    study = load(tmp_path)
    assert study.text is not None
    assert study.text.introduction == "Where a norm belongs\nis open [@one2020]."
    assert list(entries(study.text.references)) == ["one2020", "two2021"]
    again = Study.model_validate_json(study.model_dump_json())
    assert again.text == study.text


def test_the_text_changes_neither_the_study_nor_what_is_registered(tmp_path):
    with_text = load(tmp_path / "a")
    without = load(tmp_path / "b", study=STUDY.replace('text = "prose.md"', ""))
    assert without.text is None
    assert (with_text.hash, with_text.criteria_hash) == (without.hash, without.criteria_hash)


def test_paragraphs_are_spans():
    (introduction,) = paragraphs("Where a norm belongs\nis open [@one2020].")
    assert introduction == (
        TextSpan("text", "Where a norm belongs is open "),
        TextSpan("cite", "one2020"),
        TextSpan("text", "."),
    )
    (related,) = paragraphs("**Norms.** See [@one2020; @two2021] and *this*: `x`.")
    assert [span.kind for span in related] == [
        "strong",
        "text",
        "cite",
        "cite",
        "text",
        "emphasis",
        "text",
        "code",
        "text",
    ]
    assert len(paragraphs("a\n\n  \nb\n")) == 2
    assert paragraphs(" \n") == ()


@given(st.text())
def test_no_character_but_marks_is_lost(text):
    kept = "".join(span.text for spans in paragraphs(text) for span in spans)
    assert sorted(set("".join(text.split())) - set("*`[]@;")) == sorted(set("".join(kept.split())) - set("*`[]@;"))


@pytest.mark.parametrize(
    ("prose", "message"),
    [
        (None, "no such text file"),
        (b"\xff", "is not UTF-8 at byte 0"),
        ("Text.\n# Introduction\n", "text before the first heading"),
        ("# Intro\nText.\n", "unknown heading.*'Intro'.*Introduction"),
        ("# Introduction\na\n# Introduction\nb\n", "a heading is given twice"),
        ("# Introduction\nSee [@none2020].\n", "unknown reference.*'none2020'"),
        (PROSE.replace("[@one2020]", "[@one2002]"), "text.introduction: unknown reference.*one2020"),
        (PROSE + "\nnot an entry", "expected a BibTeX entry.*'not an entry'"),
        (PROSE + "\n@misc{open, title = {x}", "'open' has no closing brace"),
        (PROSE + "\n@misc{one2020, title = {x}}", "'one2020' is given twice"),
        (PROSE + "\n@misc{math, title = {$#panic()$}}", r"'math' holds a '\$'"),
        (PROSE + "\n@string{x, y}", "@string is not supported"),
    ],
)
def test_a_mistake_in_the_text_is_named_when_the_study_is_loaded(tmp_path, prose, message):
    with pytest.raises(StudyError, match=f"(?s){message}"):
        load(tmp_path, prose)


def test_every_shipped_study_has_a_text_that_holds():
    folder = Path(__file__).parents[2] / "studies"
    named = [study for path in folder.glob("*.toml") if (study := load_study(path)).text is not None]
    assert named
