"""paper.tex: what can be checked without TeX always is; where pdflatex is installed, the paper is compiled with the classes
that its preamble knows."""

from __future__ import annotations

import re
import subprocess
import unicodedata
from itertools import combinations
from pathlib import Path

import pytest

from ablationlab.records.results import Results
from ablationlab.report.paper.compose import document_of, read_template
from ablationlab.report.paper.document import PaperDocument
from ablationlab.report.paper.printing import Latex
from ablationlab.report.paper.typesetting import compiled
from ablationlab.report.paper.write import references, write_paper, write_sources
from ablationlab.report.table import Cell, Column, Table, bibtex, latex, typst, typst_signs
from ablationlab.study.text import entries, read_text
from analysis.builder import HYPOTHESES, study

from .conftest import mupdf
from .test_paper import document, made, shifted

HOSTILE = "100 % of a_b & #1 for $5 ~ x^2 \\ {y} -- ,, '' ... äöüßéñçøłŚ Ωαλ 😀 → ≈ ∑ “q” ‘r’ … – 中 кот"
LONG = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft"
NAME = "aVeryLongNameOfAVariantThatHasNoPlaceToBreak_and-goes.on"
BLOCK = "averylongnameofavariantthathasnoplacetobreakatall12"
TEXT = f"""# Introduction
We ask {HOSTILE}. {LONG} is long, as is `{NAME}` [@mueller2020] [@ba2016].

# References
@article{{mueller2020, title = {{Größe & mehr als 100 %}}, author = {{Müller, Jörg and Żółć, Łukasz}}, year = {{2020}},
 journal = {{Zeitschrift für α}}}}
@article{{ba2016, title = {{Layer Normalization}}, author = {{Ba, Jimmy Lei}}, year = {{2016}}, journal = {{arXiv}}}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose names, captions and texts hold what means something to TeX, and what its fonts do not have."""
    base = tmp_path_factory.mktemp("hostile")
    (base / "own.md").write_text(TEXT)
    asked = study(
        question=f"Does it help {HOSTILE}?",
        text=read_text(base / "own.md", "own.md"),
        authors=[
            {"name": "Jörg Müller & Söhne_", "affiliation": "Institute of R&D_ #1, 100 %, Łódź"},
            {"name": "Łukasz Ω"},
        ],
        variants={
            "none": {},
            "layernorm": {},
            NAME: {"formula": f"E_tok {HOSTILE}", "model": {"mlp_ratio": 3}},
            BLOCK: {"model": {"mlp_ratio": 2}},
        },
        hypotheses=[{**HYPOTHESES[0], "statement": HOSTILE, "metric": "validation_loss"}],
        regimes={
            "default": {"meaning": HOSTILE},
            "hot-regime-with-a-very-long-name-of-its-own": {"meaning": HOSTILE, "training": {"lr": 0.01}},
        },
    )
    return made(base / "results", made=asked, outcomes=shifted(-0.2))


def problems(source: str, bibliography: str) -> list[str]:
    """What TeX would stumble over or print as a question mark."""
    found = []
    opened: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{([\w*]+)\}", source):
        if kind == "begin":
            opened.append(name)
        elif not opened or opened.pop() != name:
            found.append(f"\\end{{{name}}}")
    found += [f"\\begin{{{name}}}" for name in opened]
    body = source[source.index("\\begin{document}") :]
    depth = 0
    for brace in re.findall(r"\\.|[{}]", body):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            break
    found += ["braces"] if depth else []
    labels = re.findall(r"\\label\{([^}]*)\}", source)
    found += [f"\\label{{{name}}} twice" for name in set(labels) if labels.count(name) > 1]
    found += [f"\\autoref{{{name}}}" for name in set(re.findall(r"\\autoref\{([^}]*)\}", source)) - set(labels)]
    cited = {key for keys in re.findall(r"\\citep\{([^}]*)\}", source) for key in keys.split(",")}
    found += [f"\\citep{{{key}}}" for key in cited - set(entries(bibliography))]
    found += [f"{sign} in the text" for sign in re.findall(r"(?<!\\)[#%]", body)]
    found += [f"{sign} is in no font" for sign in sorted(set(re.findall(r"[^\x00-\u017f\u2010-\u2022]", body)))]
    return found


def source_of(paper: PaperDocument) -> str:
    return Latex().document(paper, read_template("preamble.tex"))


def test_the_source_is_balanced_and_refers_and_cites_what_is_there(folder, csv_results, foreign_results):
    for paper in (document(folder), *(document_of([other], {}) for other in (csv_results, foreign_results))):
        assert problems(source_of(paper), references(paper)) == []


@pytest.mark.parametrize(
    ("change", "to", "found"),
    [
        (r"\end{abstract}", "", r"\begin{abstract}"),
        ("\\begin{tabular}", "\\begin{array}", "\\end{tabular}"),
        (r"\subsection{", r"\subsection", "braces"),
        (r"\label{hashes}", "", r"\autoref{hashes}"),
        (r"\citep{", r"\citep{unknown,", r"\citep{unknown}"),
        (r"\%", "%", "% in the text"),
        ("$\\Omega$", "Ω", "Ω is in no font"),
    ],
)
def test_a_broken_source_is_noticed(folder, change, to, found):
    paper = document(folder)
    source = source_of(paper).replace("\\front{", "\\begin{abstract}\\end{abstract}\\front{", 1)
    assert problems(source, references(paper)) == []
    assert found in problems(source.replace(change, to, 1), references(paper))


def _seams(*parts: str) -> str:
    return r"\allowbreak{}".join(parts)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("a_b & c% #1 $x^2$", r"a\_b \& c\% \#1 \$x\textasciicircum{}2\$"),
        ("\\{~}", r"\textbackslash{}\{\textasciitilde{}\}"),
        ("--out ''", "-{}-out '{}'"),
        ("é ł “a” e\N{COMBINING ACUTE ACCENT}", "é ł “a” é"),
        ("α Ω ά ≈ ∑", r"$\alpha$ $\Omega$ $\alpha$ $\approx$ $\sum$"),
        ("10⁻⁵ x₂ ﬁ", r"10\textsuperscript{$-$}\textsuperscript{5} x\textsubscript{2} fi"),
        ("😀", r"\texttt{U+1F600}\allowbreak{}"),
        ("electroencephalographically", "electroencephalographically"),
        ("a_longName/of.aVariant-seed7", _seams("a\\_", "long", "Name/", "of.", "a", "Variant-", "seed7")),
        ("b85c21affe7afddc24ab72b5", _seams("b85c21af", "fe7afddc", "24ab72b5")),
        (BLOCK[:31], "averylongnam\u00adeofavariantt\u00adhathasn"),
    ],
)
def test_every_sign_and_long_name_has_a_way_into_latex(text, printed):
    assert latex(text) == printed


def test_a_long_name_takes_several_lines_of_a_cell():
    table = Table.of("t", "T", [{Column("a", "Arm"): Cell.name(NAME), Column("b", BLOCK, "right"): 1.5}])
    assert table.tabular().count(r"\begin{tabular}[t]{@{}l@{}}") == 1
    assert table.tabular().count(r"\begin{tabular}[b]{@{}r@{}}") == 1


def missing(pdf: bytes) -> set[str]:
    """The signs of a PDF that are printed as boxes."""
    with mupdf().open(stream=pdf) as opened:
        return {
            chr(sign)
            for page in opened
            for run in page.get_texttrace()
            for sign, glyph, *_ in run["chars"]
            if glyph == 0
        }


def test_typst_prints_every_name_whole_in_its_column_and_in_signs_of_its_fonts(folder, tmp_path):
    write_sources(document(folder), {}, tmp_path)
    pdf = compiled((tmp_path / "paper.typ").read_text(), tmp_path)
    assert missing(pdf) == set()
    over, outside = [], []
    with mupdf().open(stream=pdf) as opened:
        for page in opened:
            words = [w for w in page.get_text("words") if len(w[4]) > 5]
            outside += [w[4] for w in words if w[2] > page.rect.width - 45]  # a full stop may hang into the margin
            over += [
                (one[4], other[4])
                for one, other in combinations(words, 2)
                if min(one[2], other[2]) - max(one[0], other[0]) > 3
                and min(one[3], other[3]) - max(one[1], other[1]) > 5
            ]
    assert not over
    assert not outside


def test_typsts_fonts_have_every_sign_that_is_printed_as_it_is(tmp_path):
    signs = [chr(code) for code in range(0x20, 0x30000) if unicodedata.category(chr(code)) not in ("Cc", "Cn", "Cs")]
    kept = [sign for sign in signs if typst_signs(sign) == sign]
    assert len(kept) > 3000
    for face in ("Libertinus Serif", "DejaVu Sans Mono"):
        # An accent stands on a letter.
        boxes = "".join(
            f'#box["a{sign}"]\n' if unicodedata.combining(sign) else f"#box[{typst(sign)}]\n" for sign in kept
        )
        pdf = compiled(f'#set text(font: "{face}")\n{boxes}', tmp_path)
        assert missing(pdf) == set()
    assert typst_signs("a中😀Ａ") == "a‹U+4E2D 1F600 FF21›"


def test_bibtex_gets_names_in_ascii_and_titles_escaped_and_addresses_as_they_are():
    entry = "@misc{a_b, author = {Żółć, Łukasz and Öz, {\\'E}. Ça}, title = {R&D \\& 5%}, url = {http://a.b/?c&d#e}}"
    assert bibtex(entry) == (
        r"@misc{a_b, author = {{\.Z}{\'o}{\l}{\'c}, {\L}ukasz and {\"O}z, {\'E}. {\c{C}}a}, title = {R\&D \& 5\%}, "
        "url = {http://a.b/?c&d#e}}"
    )


#: Lines of the class that users may write instead of ours. ACM's own fonts are not part of a small TeX installation.
CLASSES = {
    "IEEEtran": r"\documentclass[conference]{IEEEtran}",
    "article": r"\documentclass{article}",
    "natbib": "\\documentclass{article}\n\\usepackage{natbib}",  # as the styles of NeurIPS and ICLR
    "elsarticle": r"\documentclass[5p]{elsarticle}",
    "llncs": r"\documentclass{llncs}",
    "acmart": "\\PassOptionsToPackage{expansion=false}{microtype}\n\\documentclass[sigconf]{acmart}",
}


def typeset(folder: Path) -> str:
    """The log of the last run of the recipe that the source names."""
    for program in ("pdflatex", "bibtex", "pdflatex", "pdflatex"):
        options = ["-interaction=nonstopmode"] if program == "pdflatex" else []
        subprocess.run([program, *options, "paper"], cwd=folder, check=False, capture_output=True, timeout=300)
    assert "error message" not in (folder / "paper.blg").read_text(errors="replace")
    return (folder / "paper.log").read_text(errors="replace")


def complaints(log: str) -> list[str]:
    wide = [float(points) for points in re.findall(r"Overfull \\hbox \(([\d.]+)pt", log)]
    lines = re.findall(r"^!.*|.*(?:undefined|Missing character|multiply).*", log, re.MULTILINE)
    return [*lines, *(f"{points} points too wide" for points in wide if points > 5)]


# Debian's texlive-latex-extra, texlive-publishers and texlive-science have the classes.
@pytest.mark.needs("pdflatex")
@pytest.mark.parametrize("name", CLASSES)
def test_the_source_compiles_with_the_classes_that_it_names(folder, tmp_path, name):
    if name == "IEEEtran":
        write_paper(Results.open(folder), tmp_path)
        tmp_path /= "paper"
    else:
        write_sources(document(folder), {}, tmp_path)
    source = (tmp_path / "paper.tex").read_text()
    assert CLASSES["IEEEtran"] in source
    (tmp_path / "paper.tex").write_text(source.replace(CLASSES["IEEEtran"], CLASSES[name]))
    assert complaints(typeset(tmp_path)) == []
    assert (tmp_path / "paper.pdf").read_bytes().startswith(b"%PDF")
