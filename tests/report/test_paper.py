"""The paper: its numbers are those of the records, its text survives any name, every answer reads, the bytes repeat."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import warm
from ablationlab.analysis import TableOptions, analyze, read_table
from ablationlab.analysis.verdict import decide
from ablationlab.core import format
from ablationlab.core.errors import RecordError, StorageError
from ablationlab.core.format import plain
from ablationlab.pipeline import conclude
from ablationlab.records.probes import ProbeLine, ProbeReading, to_parquet
from ablationlab.records.results import Results
from ablationlab.records.settings import Calibrate, StudyText
from ablationlab.records.verdict import Answer
from ablationlab.report.charts.diagnostics import diagnostics
from ablationlab.report.charts.tradeoff import tradeoff
from ablationlab.report.make import with_analysis
from ablationlab.report.paper import compose as build_module
from ablationlab.report.paper import facts as study_module
from ablationlab.report.paper import write_paper
from ablationlab.report.paper.compose import document_of, read_template
from ablationlab.report.paper.document import Float, Marks, PaperDocument, Paragraph, words_of
from ablationlab.report.paper.typesetting import compiled
from ablationlab.report.paper.write import references, write_sources
from ablationlab.report.table import Table
from ablationlab.report.tables.factors import interaction_table
from ablationlab.report.tables.failures import stability_table
from ablationlab.study.load import load_study
from ablationlab.study.text import entries
from analysis.builder import HYPOTHESES, build, calm, outcome, seal_again, study

from .conftest import mupdf
from .maker import full, write_probes

EVIL = "#panic() *x* _y_ @z $ `c` <l> [b] // /* ~ \\ \"q\" 'r' -- ... = 1. + #{sys}"


def squeezed(text: str) -> str:
    """Without spaces and hyphens, where lines may have been broken."""
    return re.sub(r"[\s\u00ad-]", "", text)


class Words(str):
    """The text of a paper; a phrase is in it wherever its lines were broken."""

    __slots__ = ()

    def __contains__(self, phrase: str) -> bool:
        return squeezed(phrase) in squeezed(self)


def text_of(pdf: bytes | Path) -> Words:
    """The text of a PDF on one line."""
    opened = mupdf().open(stream=pdf) if isinstance(pdf, bytes) else mupdf().open(pdf)
    with opened as document:
        text = " ".join(page.get_text() for page in document)
    return Words(re.sub(r"\s+", " ", text))


def document(*folders: Path, **options: Any) -> PaperDocument:
    """The paper of these folders without its figures."""
    return document_of([Results.open(folder) for folder in folders], {}, **options)


def said(made: PaperDocument) -> Words:
    """Everything that a paper says, tables included."""
    parts = []
    for block in made.blocks():
        parts.append("".join(piece.text for piece in words_of(block) if piece.kind != "cite"))
        if isinstance(block, Float) and isinstance(block.body, Table):
            parts += [
                column.title + " " + " ".join(cell.whole for cell in cells) for column, cells in block.body.printed()
            ]
    return Words(re.sub(r"\s+", " ", " ".join(parts)))


def prose(folder: Path) -> Words:
    return said(document(folder))


def printed(made: PaperDocument, folder: Path) -> Words:
    """The text of the PDF of a paper without its figures."""
    write_sources(made, {}, folder)
    return text_of(compiled((folder / "paper.typ").read_text(), folder))


def made(folder: Path, **options: Any) -> Path:
    """A results folder with its conclusions."""
    build(folder, **options)
    conclude(folder)
    return folder


def shifted(by: float, spread: float = 0.01) -> Callable[[str, str, int], dict[str, float]]:
    """Outcomes in which layernorm differs from the baseline by *by*, give or take *spread*."""

    def outcomes(variant: str, regime: str, seed: int) -> dict[str, float]:
        loss = 2.0 + 0.05 * seed + ((by + spread * (-1) ** seed * (1 + seed / 10)) if variant == "layernorm" else 0.0)
        return {"validation_loss": loss, "perplexity": math.exp(loss)}

    return outcomes


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole paper of a study in which the variant is better, with its figures."""
    folder = made(tmp_path_factory.mktemp("finished"))
    write_paper(Results.open(folder), folder)
    return folder


def test_the_paper_has_all_its_parts(finished):
    text = text_of(finished / "paper.pdf")
    for heading in (
        "Abstract",
        "1 Introduction",
        "2 Methods",
        "3 Results",
        "4 Limitations",
        "5 Future work",
        "6 Reproducibility",
        "References",
        "Appendix",
    ):
        assert heading in text
    assert "Figure 1" in text
    plan = json.loads((finished / "plan.lock").read_text())
    assert plan["plan_hash"] in text


def test_no_two_words_are_printed_over_each_other_or_below_the_foot(finished, tmp_path):
    full(tmp_path)
    conclude(tmp_path)
    write_paper(Results.open(tmp_path), tmp_path)
    for paper in (finished / "paper.pdf", tmp_path / "paper.pdf"):
        assert not below_the_foot(paper)
        with mupdf().open(paper) as document:
            for page in document:
                # Letters alone are of formulas; a word of a chart is drawn twice at one place where it has a halo.
                words = sorted({w[:5] for w in page.get_text("words") if w[4].isalpha() and len(w[4]) > 1})
                left, top, right, bottom = np.array([w[:4] for w in words]).reshape(-1, 4).T
                width = np.minimum.outer(right, right) - np.maximum.outer(left, left)
                height = np.minimum.outer(bottom, bottom) - np.maximum.outer(top, top)
                over = np.argwhere(np.triu((width >= 1.5) & (height >= 4), 1))
                assert not over.size, [(page.number, words[first][4], words[second][4]) for first, second in over]


def below_the_foot(pdf: bytes | Path) -> list[str]:
    """Text that stands lower than the body of a page may, other than the page number."""
    opened = mupdf().open(stream=pdf) if isinstance(pdf, bytes) else mupdf().open(pdf)
    with opened as document:
        blocks = [block for page in document for block in page.get_text("blocks")]
    return [block[4] for block in blocks if block[3] > 800 and not block[4].strip().isdigit()]


def test_a_figure_below_wide_tables_stays_above_the_foot_of_the_page(tmp_path):
    (tmp_path / "figures").mkdir()
    chart = '<svg xmlns="http://www.w3.org/2000/svg" width="318" height="233"><rect width="318" height="233"/></svg>'
    (tmp_path / "figures" / "chart.svg").write_text(chart)
    tables = "".join(
        f'#tabular("wide-{rows}", (left,), ([A],), wide: true, caption: [Wide.], ..range({rows}).map(str))\n'
        for rows in (10, 30, 20)
    )
    source = (
        f"{read_template('layout.typ')}\n#show: paper.with(title: [T], abstract: [A])\n#lorem(300)\n\n{tables}"
        '#drawing("chart", "alt", 0.7327)[A caption that takes two lines in one column of the paper, as most of them do.]\n'
        "#lorem(100)\n"
    )
    pdf = compiled(source, tmp_path)
    assert "A caption that takes two lines" in text_of(pdf)
    assert not below_the_foot(pdf)


def test_no_word_of_the_machinery_is_left_in_the_text(finished):
    text = text_of(finished / "paper.pdf")
    assert not re.findall(
        r"\bNone\b(?! (?:of|from|was))|\bnan\b|[{}]|\binf\b|Typst|\bTrue\b|\bFalse\b(?! Discovery)", text
    )


def test_a_changed_record_changes_the_number_in_the_pdf(tmp_path):
    folder = made(tmp_path)
    before = prose(folder)
    analysis = json.loads((folder / "analysis.json").read_text())
    delta = next(c for c in analysis["comparisons"] if c["id"] == "validation_loss/default/layernorm:none")["delta"]
    assert f"{abs(delta):.3f}" in before
    for path in (folder / "runs").glob("*layernorm*/result.json"):
        record = json.loads(path.read_text())
        record["metrics"]["validation_loss"] += 0.0625
        path.write_text(json.dumps(record))
    seal_again(folder)
    with pytest.raises(RecordError, match="not that of the records"):
        write_paper(Results.open(folder), folder)
    conclude(folder)
    after = prose(folder)
    assert f"{abs(delta + 0.0625):.3f}" in after
    assert f"{abs(delta):.3f}" not in after


def test_the_source_compiles_as_it_stands_somewhere_else(finished, tmp_path):
    copy = shutil.copytree(finished / "paper", tmp_path / "copy")
    assert compiled((copy / "paper.typ").read_text(), copy) == (finished / "paper.pdf").read_bytes()
    assert not [path for path in copy.rglob("*.typ") if "@preview" in path.read_text()]


def test_markup_in_names_comes_out_as_text(tmp_path):
    folder = made(tmp_path, made=study(name=EVIL, question=f"Is {EVIL} text?"))
    text = printed(document(folder), tmp_path / "printed")
    plain = re.sub(r"\s", "", text)
    assert f"Is {EVIL} text?" in text
    # The name stands in the byline and above every page but the first.
    assert plain.count(re.sub(r"\s", "", EVIL)) >= 3


SIGNS = [
    "= heading",
    "- item",
    "+ item",
    "/ term: x",
    "1. item",
    "// comment",
    "a /* b",
    "https://x.y/z",
    "a--b",
    "x...",
    "(x)",
    ".len()",
    "-5",
    "; x",
    "a`b",
    'it\'s "so"',
    "@ba2016",
    EVIL,
]


def spoken(texts: list[str]) -> PaperDocument:
    """A paper that says these texts and nothing else."""
    marks = Marks()
    body = tuple(Paragraph(marks.words(marks(f"<<{text}>>"))) for text in texts)
    return PaperDocument(body[0].words, (), body[0].words, (), body, "", None, "", ())


def test_every_sign_that_means_something_to_typst_is_shown(tmp_path):
    text = printed(spoken(SIGNS), tmp_path)
    assert not [sign for sign in SIGNS if f"<<{sign}>>" not in text]


def test_line_breaks_and_control_characters_in_a_name_become_spaces(tmp_path):
    assert "a b = c ?" in prose(made(tmp_path, made=study(question="a\nb\u2028= c\x07?")))


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.text(
            st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_categories=("Cc", "Cs", "Cf", "Cn", "Mn")),
            min_size=1,
        ),
        min_size=1,
        max_size=7,
    )
)
def test_any_text_compiles_and_stands_between_its_marks(tmp_path_factory, texts):
    text = printed(spoken(texts), tmp_path_factory.mktemp("any"))
    assert text.count("<<") >= len(texts)


TEXT = StudyText(
    introduction=f"**Why.** {EVIL.replace('*', '').replace('`', '')} is *open* `x` [@one2020].",
    related_work="First [@ba2016].\n\nSecond [@one2020].",
    references="@misc{one2020, title = {A {Title} #panic()}, author = {Doe, Jane}, year = {2020}}\n"
    "@misc{ba2016, title = {Ours of Ba}, author = {Ba}, year = {2016}}",
)


def test_a_studys_own_text_is_printed_with_its_references_and_only_there(finished, tmp_path):
    assert "Related work" not in text_of(finished / "paper.pdf")
    folder = made(tmp_path, made=study(text=TEXT.model_dump()))
    text = printed(document(folder), tmp_path / "printed")
    assert "2 Related work" in text
    assert EVIL.replace("*", "").replace("`", "") in text
    assert "Many small changes to a Transformer" not in text
    assert "J. Doe" in text
    assert "A Title #panic()" in text
    assert "Ours of Ba" in text  # the study's entry, where both have one
    assert "Layer Normalization" not in text


def test_the_papers_of_the_shipped_embedding_studies_cite_what_they_name(tmp_path):
    given = load_study(Path(__file__).parents[2] / "studies" / "embedding-norm.toml").text
    assert given is not None
    text = references(document(made(tmp_path, made=study(text=given.model_dump()))))
    numbers = ["2210.15424", "2211.05100", "2204.05832", "2102.11972", "2112.11446", "2203.15556", "1910.07467"]
    numbers += ["2312.16903", "2309.14322", "2002.04745", "2410.03730", "2005.14165", "2110.08207"]
    assert not [number for number in numbers if number not in text]


def diverging(variant: str, regime: str, seed: int) -> dict[str, float] | None:
    return None if variant == "none" else {"validation_loss": 2.0 + 0.01 * seed}


ANSWERS = {
    Answer.NOT_MEASURED: (outcome, {"criteria": [{"metric": "token_ece", "role": "primary"}]}),
    Answer.UNSTABLE: (lambda *at: None if at[0] == "layernorm" else outcome(*at), {"seeds": list(range(1, 9))}),
    Answer.MORE_STABLE: (diverging, {"seeds": list(range(1, 9))}),
    Answer.WORSE: (shifted(+0.2), {}),
    Answer.BETTER: (shifted(-0.2), {}),
    Answer.SAME: (shifted(0.0, 0.002), {}),
    Answer.UNDECIDED: (shifted(0.05, 0.2), {}),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_stands_in_the_abstract_and_with_its_sign_in_the_table(tmp_path, answer):
    outcomes, changes = ANSWERS[answer]
    folder = made(tmp_path, made=study(**changes), outcomes=outcomes)
    (judged,) = Results.open(folder).verdict.verdicts
    assert judged.answer == answer
    paper = document(folder)
    abstract = " ".join("".join(piece.text for piece in words_of(block)) for block in paper.abstract)
    assert f"{answer}: layernorm." in abstract
    assert not [other for other in Answer if f"{other}: layernorm" in abstract and other != answer]
    (table,) = [block.body for block in paper.body if isinstance(block, Float) and block.key == "answers"]
    assert [cell.text for column, (cell,) in table.printed() if column.key == "answer"] == [answer.said]


def test_the_hypotheses_stand_in_a_table_with_their_status(tmp_path):
    folder = made(tmp_path, made=study(hypotheses=HYPOTHESES))
    (table,) = [block.body for block in document(folder).body if isinstance(block, Float) and block.key == "hypotheses"]
    known = Results.open(folder).verdict.hypotheses
    shown = {row[1].value: (row[2].value, row[4].value) for row in table.rows}
    assert shown == {name: (judged.statement, judged.status) for name, judged in known.items()}


def test_the_methods_describe_the_model_by_its_settings(tmp_path):
    said_of_gpt2 = prose(made(tmp_path / "plain"))
    assert "Transformer in the manner of GPT-2" in said_of_gpt2
    assert "a GELU MLP of 4 times the width, LayerNorm in front of each part (ε = 10⁻⁵);" in said_of_gpt2
    assert "learned token and absolute position embeddings, the output head tied to the token" in said_of_gpt2
    assert "a final LayerNorm." in said_of_gpt2
    assert "Further settings" not in said_of_gpt2

    small = {"layers": 1, "width": 16, "heads": 4, "context": 16}
    other = {
        "preset": "llama-mini",
        "norm_place": "post",
        "final_norm": "layernorm",
        "kv_heads": 2,
        "head_softcap": 15.0,
    }
    said_of_other = prose(made(tmp_path / "other", made=study(model=small | other)))
    assert "in the manner of GPT-2" not in said_of_other
    assert "a SwiGLU MLP of 2.6667 times the width, RMSNorm on the stream behind each part" in said_of_other
    assert "learned token embeddings and rotary positions, an untied output head, a final LayerNorm." in said_of_other
    assert "Further settings: no biases, 2 heads of keys and values, logits capped softly at ±15." in said_of_other


def test_arms_are_said_to_share_a_learning_rate_only_where_they_do(tmp_path):
    shared = prose(made(tmp_path / "shared"))
    assert "All arms use the same learning rate. It was not tuned for any of them." in shared
    assert "All arms share one learning rate" in shared

    results = Results.open(made(tmp_path / "own", made=study(variants=["none", "layernorm", "untied"])))
    hot = [
        run.model_copy(update={"recipe": run.recipe.model_copy(update={"training": run.training.changed(lr=60.0)})})
        if run.variant == "untied"
        else run
        for run in results.plan.runs
    ]
    plan = results.plan.model_copy(update={"runs": tuple(hot)})
    own = said(document_of([results.changed(plan=plan)], {}))
    assert "untied is trained at learning rate 60, the other variants at the baseline's." in own
    assert ", learning rate 60" in own  # the table of arms
    assert "No learning rate was tuned in this study" in own
    assert "same learning rate" not in own
    assert "share one learning rate" not in own


def test_an_arm_without_a_surviving_run_is_told_without_survivors(tmp_path):
    def lost(variant: str, regime: str, seed: int) -> dict[str, float] | None:
        return None if variant == "layernorm" else outcome(variant, regime, seed)

    def curve(variant: str, regime: str, seed: int) -> list[float]:
        return calm(seed)[: 20 if variant == "layernorm" else None]

    every = prose(made(tmp_path, outcomes=lost, curves=curve))
    assert "Apart from five runs that diverged, no deviation from the sealed plan was found." in every
    assert "Runs that diverged match up to the step at which they did." in every
    assert "Models in use are larger by orders of magnitude" in every


@pytest.mark.parametrize(
    ("shift", "spread", "words"),
    [
        (-0.005, 0.0001, "it keeps its margin of 0.01"),
        (0.05, 0.0001, "it breaks its margin of 0.01"),
        (0.0, 0.05, "that it keeps its margin of 0.01 is not shown"),
    ],
)
def test_a_guard_is_told_by_its_margin_and_not_as_a_difference(tmp_path, shift, spread, words):
    def outcomes(variant: str, regime: str, seed: int) -> dict[str, float]:
        changed = shift + spread * (seed % 3 - 1) if variant == "layernorm" else 0.0
        return {**shifted(-0.2)(variant, regime, seed), "final_gradient_norm": 1.0 + 0.01 * seed + changed}

    criteria = [
        {"metric": "validation_loss", "role": "primary", "smallest_effect": 0.01},
        {"metric": "final_gradient_norm", "role": "guard", "margin": 0.01},
    ]
    text = prose(made(tmp_path, made=study(criteria=criteria), outcomes=outcomes))
    (told,) = re.findall(r"With layernorm, final gradient norm is [^:]*: ([^.]*\.\d+[^.]*)\. ", text)
    assert words in told
    assert "significant" not in told


def test_arms_that_share_no_seed_are_told_without_pairs(tmp_path):
    rows = [f"base,{seed},{2.3 + 0.01 * seed}" for seed in range(5)]
    rows += [f"new,{100 + seed},{'diverged' if seed == 2 else 2.2 + 0.01 * seed}" for seed in range(5)]
    (tmp_path / "runs.csv").write_text("\n".join(["variant,seed,val_loss", *rows]) + "\n")
    options = TableOptions.checked(baseline="base", primary="val_loss", lower=("val_loss",), unpaired=True)
    analysis = analyze(read_table(tmp_path / "runs.csv", options))
    analysis.replace(tmp_path / "analysis.json")
    decide(analysis).replace(tmp_path / "verdict.json")
    text = prose(tmp_path)
    assert "0 of 5 runs with the baseline and 1 of 5 with new were unstable" in text
    assert "Newcombe's interval for independent proportions" in text
    assert "One of ten runs was unstable" in text
    assert "mean ± standard deviation over the runs of the arm" in text
    for untrue in (
        "five pairs",
        "Pairs are missing",
        "Tango",
        "bootstrap over seeds",
        "seeds where the baseline did not",
        "over pairs",
    ):
        assert untrue not in text, untrue


def test_a_caveat_names_the_arms_that_it_is_about(tmp_path):
    def outcomes(variant: str, regime: str, seed: int) -> dict[str, float] | None:
        return None if variant == "rmsnorm" else outcome(variant, regime, seed)

    results = Results.open(made(tmp_path, made=study(variants=["none", "layernorm", "rmsnorm"]), outcomes=outcomes))
    stability = results.analysis.stability.model_copy(update={"arms": ()})  # the caveats of unstable arms are not told
    analysis = results.analysis.model_copy(update={"stability": stability})
    text = said(document_of([results.changed(analysis=analysis)], {}))
    assert "rmsnorm: No seed has a value in both arms." in text


def test_the_effect_size_is_the_one_whose_correction_is_named(tmp_path):
    folder = made(tmp_path, outcomes=shifted(0.2))
    comparison = Results.open(folder).analysis.primary_comparison("default", "layernorm")
    plain = comparison.delta / comparison.delta_sd
    assert comparison.effects["d_z"].estimate == pytest.approx(plain * 0.7979, rel=1e-3)  # J(4), Hedges 1981
    assert "in standard deviations of the differences, with Hedges' correction for few pairs." in prose(folder)


def test_the_methods_and_the_appendix_say_what_this_study_has(foreign_results, csv_results):
    foreign, table = (said(document_of([results], {})) for results in (foreign_results, csv_results))
    assert "A run is unstable if it diverges or if its spike score exceeds 7." in foreign
    assert "One comparison decides, so its p is not corrected" in foreign
    assert "The primary comparisons are one family" not in foreign
    assert "What it changes nothing training.gain = 0.2" in foreign
    for text in (foreign, table):
        assert "the exploratory ones" not in text


def test_a_baseline_alone_has_a_paper_too(tmp_path):
    text = prose(made(tmp_path, made=study(variants=["none"])))
    assert "There is no variant beside the baseline, so there is nothing to compare." in text


def test_arms_that_blew_up_are_compared_without_a_ratio_that_no_number_can_hold(tmp_path):
    def outcomes(variant: str, regime: str, seed: int) -> dict[str, float]:
        loss = 600.0 + 40 * seed if variant == "layernorm" and seed > 2 else 2.0 + 0.1 * seed
        return {"validation_loss": loss, "perplexity": math.exp(min(loss, 700.0))}

    assert "Exploratory comparisons" in prose(made(tmp_path, outcomes=outcomes))


def test_unstable_runs_are_counted_in_the_paper(tmp_path):
    text = prose(made(tmp_path, made=study(seeds=list(range(1, 9))), outcomes=diverging))
    assert "Of eight pairs, 8 runs with the baseline and 0 with layernorm were unstable" in text
    assert "the stability gain is 100 %" in text


def test_a_regime_is_described_with_the_value_that_its_calibration_found():
    training = {"lr": 0.003, "betas": [0.95, 0.9], "clip": "off"}
    asked = Calibrate(setting="training.betas[1]", low=0.5, high=0.99, seeds=(1, 2, 3))
    assert study_module._calibrated(training, asked, 0.640625)["betas"] == [0.95, "0.641"]
    assert (
        study_module._calibrated(training, asked.model_copy(update={"setting": "training.lr"}), 0.640625)["lr"]
        == 0.640625
    )
    assert training["betas"] == [0.95, 0.9]


def test_a_gain_is_told_with_the_p_that_decides_and_its_interval_as_one_places_own(tmp_path):
    """Six of six runs rescued: the interval of one place leaves out 0, and p = 0.031 is 0.25 over eight places."""

    def curves(variant: str, regime: str, seed: int) -> list[float]:
        losses = calm(seed)
        if variant == "none" and regime == "default":
            losses[40:46] = [loss + 3.0 for loss in losses[40:46]]
        return losses

    arms = {"variants": ["none", "layernorm", "rmsnorm"], "regimes": {"hot": {"training": {"lr": 0.01}}}}
    results = Results.open(made(tmp_path, made=study(seeds=list(range(1, 7)), **arms), curves=curves))
    analysis = results.analysis
    assert analysis is not None
    assert analysis.stability is not None
    gain = analysis.stability.gain("layernorm", "none", "default")
    assert gain is not None
    assert gain.outcome == "not-shown"
    assert (gain.low or 0) > 0
    shown = "not shown, p = 0.25, corrected for 8 comparisons of stability"
    intervals = (
        "Intervals of gains are at 95 %, uncorrected; p is corrected for 8 comparisons of stability and decides what is "
        "shown."
    )
    contradicted = "excludes 0, but the test that decides shows no difference."
    text = prose(tmp_path)
    assert f"{intervals} †: {contradicted}" in text
    assert f"(uncorrected 95 % interval {format.percent(gain.low)} to 100 %), {shown}" in text
    assert intervals in text
    assert "Corrected p" in text
    (plane,) = tradeoff(results)
    assert f"{intervals} A thin, dashed bar {contradicted}" in Words(plane.caption)
    rows = [row for rows in plane.data.values() for row in rows if "gain_low" in row]
    assert {row["regime"] for row in rows if row["contradicted"]} == {"default"}
    cells = [cell.text for row in stability_table(analysis).rows for cell in row]
    assert sum(text.endswith(("†", "†)")) for text in cells) == 2


def test_intervals_of_effects_are_adjusted_like_the_p_beside_them(tmp_path):
    large, token = {"token_init_std": 1.0}, {"front": {"place": "token"}}
    regimes = {"token": {"model": token}, "large": {"model": large}, "both": {"model": token | large}}
    results = Results.open(made(tmp_path, made=study(regimes=regimes)))
    words = "Intervals are 95 % ones, adjusted like p: one excludes 0 exactly where the adjusted p shows an effect."
    assert results.analysis is not None
    assert results.analysis.interactions is not None
    assert words in Words(interaction_table(results.analysis.interactions).caption)  # the caption on the page
    assert words in prose(tmp_path)


def test_registered_and_exploratory_comparisons_are_counted_apart(tmp_path):
    regimes = {f"r{rate}": {"training": {"lr": rate * 1e-3}} for rate in (2, 3, 4)}
    criteria = [{"metric": "validation_loss", "role": "primary", "regime": name} for name in ("default", "r2")]
    text = prose(
        made(tmp_path, made=study(regimes=regimes, variants=["none", "layernorm", "rmsnorm"], criteria=criteria))
    )
    assert re.search(
        r"Of the four registered comparisons on validation loss, [^.]+\. Of the four exploratory comparisons on", text
    )
    assert "eight comparisons" not in text


def test_a_table_that_is_cut_says_how_many_rows_are_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(build_module, "MOST_ROWS", 1)
    criteria = [
        {"metric": "validation_loss", "role": "primary", "smallest_effect": 0.05},
        {"metric": "final_gradient_norm"},
        {"metric": "mean_gradient_norm"},
    ]
    text = prose(made(tmp_path, made=study(criteria=criteria)))
    assert "Cut: one more row in tables/effects.csv." in text


def test_several_regimes_are_named(tmp_path):
    regimes = {"hot": {"training": {"lr": 0.01}}}
    text = prose(made(tmp_path, made=study(regimes=regimes)))
    assert "The regime hot sets lr = 0.01" in text
    assert "in the regime hot" in text


def test_the_paper_states_the_hypotheses_of_the_study_and_no_others(tmp_path):
    text = prose(made(tmp_path / "plain"))
    assert "the study tests" not in text
    assert "Hypotheses." not in text
    text = prose(made(tmp_path / "asked", made=study(hypotheses=HYPOTHESES[2:])))
    assert "the study tests this hypothesis: " in text
    assert "H0" not in text


def test_nothing_registered_is_said_everywhere(tmp_path):
    text = prose(made(tmp_path, made=study(criteria=[])))
    assert "No criterion was registered" in text
    assert "sealed before the first training step" not in text
    assert "Nothing was registered beforehand, so its results are exploratory." in text


def test_an_unfinished_study_gives_a_paper_marked_interim(tmp_path):
    folder = made(tmp_path, only=lambda run: run.seed <= 3)
    text = prose(folder)
    assert "Interim: six of ten planned runs have ended. Nothing here is inference until all have." in text
    assert document(folder).header.endswith("Interim: not inference")
    assert "describes its current state; it is not a result" in text  # above the answers
    assert "4 of 10 planned runs have no result" in text  # under limitations


def test_diverged_runs_are_counted_and_their_pairs_named(tmp_path):
    def some(variant: str, regime: str, seed: int) -> Any:
        return None if (variant, seed) == ("layernorm", 2) else outcome(variant, regime, seed)

    text = prose(made(tmp_path, outcomes=some))
    assert "one run diverged" in text
    assert "seed 2 of layernorm: diverged at step" in text


def test_a_broken_seal_is_said(tmp_path):
    folder = tmp_path
    build(folder)
    plan = json.loads((folder / "plan.lock").read_text())
    plan["study"]["question"] = "Was this always asked?"
    (folder / "plan.lock").write_text(json.dumps(plan))
    conclude(folder)
    text = prose(folder)
    assert "The seal of plan.lock does not hold" in text
    assert "rules and criteria sealed before" not in text


def test_a_table_of_values_gives_a_paper_that_claims_no_more(tmp_path):
    rows = ["variant,seed,metric,value"]
    rows += [
        f"{v},{s},val_loss,{2 + 0.01 * s + (0.1 + 0.003 * (s % 2)) * (v == 'b')}" for v in "ab" for s in range(1, 6)
    ]
    (tmp_path / "runs.csv").write_text("\n".join(rows))
    from ablationlab.cli.app import main

    with pytest.raises(SystemExit):
        main(
            [
                "analyze",
                str(tmp_path / "runs.csv"),
                "--baseline",
                "a",
                "--primary",
                "val_loss",
                "--lower",
                "val_loss",
                "--out",
                str(tmp_path),
            ]
        )
    text = prose(tmp_path)
    assert "Whether the arms match in data and budget is not known" in text
    assert "Nothing is recorded of the models" in text
    assert "equal budget" not in text
    assert "same initial weights" not in text_of(write_paper(Results.open(tmp_path), tmp_path))
    assert "H1a" not in text


def test_without_an_analysis_the_paper_is_refused_with_the_command(tmp_path):
    build(tmp_path)
    with pytest.raises(RecordError, match=r"analysis\.json and verdict\.json missing.*ablationlab analyze"):
        write_paper(Results.open(tmp_path), tmp_path)


def test_a_corrupt_analysis_is_named(tmp_path):
    made(tmp_path)
    (tmp_path / "analysis.json").write_text('{"kind": "analysis"')
    with pytest.raises(RecordError, match=r"analysis\.json: .*JSON"):
        write_paper(Results.open(tmp_path), tmp_path)


def test_a_corrupt_record_is_named_in_the_paper(tmp_path):
    folder = tmp_path
    build(folder)
    broken = folder / "runs" / "default-layernorm-s5"
    (broken / "result.json").unlink()
    conclude(folder)
    (broken / "result.json").write_text("{")
    text = prose(folder)
    assert "runs/default-layernorm-s5/result.json could not be used" in text
    assert "Interim" in text


def test_a_folder_that_cannot_be_written_is_said(finished, tmp_path):
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(StorageError, match=r"cannot write .*out"):
        write_paper(Results.open(finished), tmp_path / "out")


DYING_TYPST = """
import sys
sys.path.insert(0, sys.argv[1])  # where typst.py kills whoever imports it
from ablationlab.cli import main
from ablationlab.report.paper import write
write.pictures = lambda *_: []
main(["report", sys.argv[2], "--out", sys.argv[1], "--only", "tables", "--only", "paper"])
"""


def test_a_paper_whose_compiler_dies_is_a_note_and_the_rest_is_written(finished, tmp_path):
    (tmp_path / "typst.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    words = [sys.executable, "-c", DYING_TYPST, tmp_path, finished]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "No paper:" in done.stdout
    assert "Typst was killed by signal 9" in done.stdout
    assert (tmp_path / "tables" / "runs.csv").is_file()
    assert (tmp_path / "paper" / "paper.tex").is_file()
    assert not (tmp_path / "paper.pdf").exists()


def test_every_reference_is_cited_by_a_template_and_has_what_it_needs():
    folder = files("ablationlab.report.paper") / "template"
    found = entries((folder / "references.bib").read_text())
    templates = "".join(path.read_text() for path in folder.iterdir() if path.name.endswith(".j2"))
    parts = set(study_module._REFERENCES.values())
    assert set(re.findall(r"\[@([a-z]+\d{4})\]", templates)) | parts == found.keys()
    for key, body in found.items():
        assert {"title", "author", "year"} <= set(re.findall(r"^\s*(\w+)\s*=", body, flags=re.MULTILINE)), key
        assert re.search(r"year\s*=\s*\{(19|20)\d\d\}", body), key
        assert not re.search(r"booktitle.*arXiv", body), f"{key}: the venue holds an arXiv number"


def test_the_same_records_give_the_same_bytes_in_another_folder_and_process_without_torch(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")
    (copy / "paper.pdf").unlink()
    shutil.rmtree(copy / "paper")
    script = (
        "import sys, pathlib; from ablationlab.report import convert; convert.PROCESSES = 1; "
        "from ablationlab.records.results import Results; "
        "from ablationlab.report.paper import write_paper; from ablationlab.report.tables import write_tables; "
        "o = pathlib.Path(sys.argv[1]); m = Results.open(o); write_tables(m, o); write_paper(m, o); "
        "sys.exit('torch' in sys.modules)"
    )
    ended = subprocess.run([warm.FRESH, "-c", script, str(copy)], check=False, capture_output=True)
    assert ended.returncode == 0, ended.stderr
    for name in ("paper/claims.json", "paper/paper.typ", "paper/paper.tex", "paper.pdf"):
        assert (copy / name).read_bytes() == (finished / name).read_bytes()


def test_the_trade_off_is_drawn_only_where_a_run_was_unstable(finished):
    from ablationlab.report.paper.figures import pictures

    def spiky(variant: str, regime: str, seed: int) -> list[float]:
        losses = calm(seed)
        if variant == "none":
            losses[40:46] = [loss + 3.0 for loss in losses[40:46]]
        return losses

    assert not (finished / "paper" / "figures" / "tradeoff.svg").exists()
    folder = made(finished.parent / "spiky", curves=spiky)
    assert "tradeoff" in [picture.key for picture in pictures(Results.open(folder))]
    assert "unstable" in prose(folder)


def test_the_same_bits_are_promised_of_deterministic_runs_with_the_same_code(tmp_path):
    promised = "gives the same bits on the same device, with the same version of ablationlab, the same libraries"
    assert promised in prose(made(tmp_path / "same"))
    loose = prose(made(tmp_path / "loose", made=study(execution={"deterministic": False})))
    assert "not the same bits twice (deterministic = false)" in loose
    assert "gives the same bits" not in loose


def test_a_study_that_is_not_about_embeddings_has_no_formula_of_them(tmp_path, untied_results):
    untied = said(document_of([untied_results], {}))
    assert "What it changes nothing untied head" in untied
    assert "E_tok" not in untied
    norm = made(tmp_path, made=study(variants=["none", "layernorm"]))
    assert "E_tok + E_pos" in prose(norm)


def test_where_regimes_differ_in_size_the_paper_says_from_which_to_which(tmp_path):
    made(tmp_path, made=study(regimes={"deep": {"model": {"layers": 9}}}))
    text = prose(tmp_path)
    assert re.search(r"Transformer \(\w+ to nine layers, width \d+, 100 parameters\)", text)


def test_diagnostics_are_the_probes_of_the_runs_and_nothing_where_there_are_none(finished, tmp_path):
    assert "Probe readings" not in text_of(finished / "paper.pdf")
    folder = made(tmp_path)
    lengths: dict[str, list[float]] = {}
    for run in Results.open(folder).runs:
        path = folder / "runs" / run.id / "probes.parquet"
        write_probes(path, run.variant, run.seed)
        rows = pq.read_table(path).to_pylist()
        mine = [r["value"] for r in rows if (r["probe"], r["group"], r["step"]) == ("residual", "input", 60)]
        lengths.setdefault(run.variant, []).extend(mine)
    seal_again(folder)
    means = {variant: fmean(values) for variant, values in lengths.items()}
    text = prose(folder)
    assert "What the probes read" in text
    for variant, values in lengths.items():
        assert format.mean_sd(means[variant], stdev(values)) in text
    ratio = format.number(means["layernorm"] / means["none"])
    assert f"Residual norm entering block 1 ({ratio} times)" in text
    assert "none was tested" in text


def test_readings_of_diverged_runs_are_neither_means_nor_charts_of_the_last_step(tmp_path):
    """They are of the step at which a run broke, or infinite."""

    def ended(variant: str, regime: str, seed: int) -> Any:
        return None if variant == "rmsnorm" or (variant, seed) == ("layernorm", 2) else outcome(variant, regime, seed)

    folder = made(tmp_path, made=study(variants=["none", "layernorm", "rmsnorm"]), outcomes=ended)
    lengths = []
    for run in Results.open(folder).runs:
        path = folder / "runs" / run.id / "probes.parquet"
        if run.state == "diverged":
            reading = ProbeReading("norm", "input", None, math.inf if run.seed % 2 else 1e6)
            path.write_bytes(to_parquet(run.id, [ProbeLine(step=1, probe="residual", rows=(reading,))]))
            continue
        write_probes(path, run.variant, run.seed)
        rows = pq.read_table(path).to_pylist()
        end = ("residual", "input", 60)
        lengths += [r["value"] for r in rows if run.variant != "none" and (r["probe"], r["group"], r["step"]) == end]
    seal_again(folder)
    results = Results.open(folder)
    text = prose(folder)
    assert len(lengths) == 4
    assert format.mean_sd(fmean(lengths), stdev(lengths)) in text
    drawn = {figure.key: figure for figure in diagnostics(results)}
    by_depth = [row for rows in drawn["probe-residual-depth"].data.values() for row in rows]
    assert {row["step"] for row in by_depth} == {60}
    assert {row["variant"] for row in by_depth} == {"none", "layernorm"}
    over_steps = [row for rows in drawn["probe-residual-input"].data.values() for row in rows]
    assert 1e6 in {row["y"] for row in over_steps}
    assert all(math.isfinite(row["y"]) for row in over_steps)


def test_the_paper_tells_medians_where_unstable_runs_dominate_a_mean(tmp_path):
    def exploded(variant: str, regime: str, seed: int) -> dict[str, float]:
        loss = 2.0 + 0.01 * seed + (0.001 * (seed % 2) if variant != "none" else 0.0)
        return {
            "validation_loss": 7000.0 * seed if variant == "none" and seed > 4 else loss,
            "final_gradient_norm": 1.0,
        }

    build(tmp_path, study(variants=["none", "layernorm"], seeds=[1, 2, 3, 4, 5, 6]), outcomes=exploded)
    with_analysis(Results.open(tmp_path), say=lambda text: None)
    text = plain(prose(tmp_path))
    assert "12,8" not in text  # the mean, and the difference
    assert (
        "With layernorm, validation loss has the median 2.04 against 2.04 nats/token with none, and no difference of means "
        "is told, because unstable runs dominate the mean: 2 of 6 none runs (6 pairs, p = 0.18)" in text
    )
    several = document(tmp_path, made(tmp_path / "other", made=study(name="other", question="Another?")))
    rows = [
        row
        for block in several.body
        if isinstance(block, Float) and block.key == "question-1"
        for row in block.body.rows
    ]
    assert [row[4].text for row in rows] == [
        "median\N{NO-BREAK SPACE}2.04",
        "median\N{NO-BREAK SPACE}2.04",  # not a mean beside it
    ]
    assert {cell.text for cell in rows[1][7:11]} == {"–"}
    assert "Where unstable runs dominate the mean of an arm, medians stand instead, and no difference." in said(several)


def test_the_number_of_a_preprint_stands_apart_from_its_journal(tmp_path):
    entry = "@article{one2020, journal = {arXiv preprint arXiv:2001.00001}, title = {T}}\n"
    given = StudyText(introduction="As said [@one2020].", references=entry)
    text = references(document(made(tmp_path, made=study(text=given.model_dump()))))
    assert "journal = {arXiv preprint},\n  number = {2001.00001}" in text
    assert "arXiv:" not in text
