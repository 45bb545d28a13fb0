"""What a paper may say: every number from a record, every sentence only where it is true; one paper over several studies."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ablationlab.analysis import wording
from ablationlab.core import format
from ablationlab.core.errors import AblationLabError, StudyError
from ablationlab.pipeline import conclude
from ablationlab.records.metrics import metric_name
from ablationlab.records.plan import Declaration
from ablationlab.records.results import Results
from ablationlab.records.settings import FrontEnd, ModelConfig, StudyText
from ablationlab.report.charts import stability as stability_charts
from ablationlab.report.charts.theme import BAD, GOOD
from ablationlab.report.paper import sources, write_programme
from ablationlab.report.paper.compose import Context, read_template
from ablationlab.report.paper.compose import document_of as build_document
from ablationlab.report.paper.document import Float, Heading, Inline, PaperDocument, Paragraph, plain, words_of
from ablationlab.report.paper.facts import StudyView, front_formula, setting_words
from ablationlab.report.paper.figures import ends_of, forest_of, in_panels
from ablationlab.report.paper.printing import Latex, Typst
from ablationlab.report.paper.sources import Sources, claims_json
from ablationlab.report.paper.typesetting import fullest, typst_compiler
from ablationlab.report.table import Cell, Column, Table
from ablationlab.study.text import read_text
from analysis.builder import HYPOTHESES, build, outcome, seal_again, study

from .test_paper import document, made, prose, said, shifted


def claims_of(*folders: Path) -> list[dict[str, Any]]:
    return json.loads(claims_json(document(*folders)))["claims"]


def at(record: Any, pointer: str) -> Any:
    """What a JSON pointer points to."""
    for key in pointer.split("/")[1:]:
        name = key.replace("~1", "/").replace("~0", "~")
        record = record[int(name)] if isinstance(record, list) else record[name]
    return record


def test_every_claim_points_to_a_field_that_holds_its_value(tmp_path):
    folder = made(tmp_path)
    claims = claims_of(folder)
    assert len(claims) > 40
    records = {name: json.loads((folder / name).read_text()) for name in ("plan.lock", "analysis.json", "verdict.json")}
    for claim in claims:
        there = at(records[claim["file"]], claim["field"])
        if not isinstance(there, dict | list):
            assert claim["value"] == there, claim
        assert claim["value"] is not None, claim
        assert claim["text"] in claim["sentence"], claim
        assert claim["command"].startswith("ablationlab ")


def test_a_number_that_no_field_prints_has_the_value_that_is_printed():
    printed = {
        "11": 11,
        "1,204": 1204,
        "−0.22": -0.22,
        "1.00": 1.0,
        "12\u202f%": 0.12,
        "2×10⁻³": 0.002,
        "3.11.7": "3.11.7",
    }
    assert {text: sources._printed(text) for text in printed} == printed


def test_a_rate_of_one_arm_names_the_rates_of_that_arm(tmp_path):
    sweep = {"lr": [0.001, 0.01], "variant_lr": {"layernorm": [0.01, 0.1]}, "selection_seeds": [91]}
    folder = made(tmp_path, made=study(sweep=sweep))
    fields = {claim["text"]: claim["field"] for claim in claims_of(folder) if "/study/sweep/" in claim["field"]}
    plan = json.loads((folder / "plan.lock").read_text())
    assert {text: at(plan, fields[text]) for text in ("0.001", "0.01", "0.1")} == {
        "0.001": 0.001,
        "0.01": 0.01,
        "0.1": 0.1,
    }


def test_tables_name_records_and_no_file_that_a_programme_lacks(programme):
    tables = json.loads(claims_json(document(*programme)))["tables"]
    assert {"arms", "studies", "hashes"} <= {table["table"] for table in tables}
    for table in tables:
        assert table["rows"], table
        assert "csv" not in table


@pytest.mark.parametrize(
    ("value", "text", "same"),
    [
        (0.04949, "+0.049", True),
        (-0.0496, "−0.049", False),
        (0.025, "97.5\u202f%", True),
        (math.log(0.53), "−47.0\u202f%", True),
        (12345.0, "12,345", True),
        (0.0000123, "1.2×10⁻⁵", True),
        (float("nan"), "1", False),
    ],
)
def test_a_value_is_found_by_the_digits_that_were_printed(value, text, same):
    assert sources._prints_as(value, text) is same


def test_a_changed_record_changes_its_claim(tmp_path):
    folder = made(tmp_path)
    field = next(claim for claim in claims_of(folder) if claim["field"].endswith("/delta"))["field"]
    before = {claim["text"] for claim in claims_of(folder) if claim["field"] == field}
    for path in (folder / "runs").glob("*layernorm*/result.json"):
        record = json.loads(path.read_text())
        record["metrics"]["validation_loss"] += 0.0625
        path.write_text(json.dumps(record))
    seal_again(folder)
    conclude(folder)
    after = {claim["text"] for claim in claims_of(folder) if claim["field"] == field}
    assert before
    assert after
    assert not before & after


def test_a_changed_record_changes_the_numbers_of_regimes_failures_deviations_and_publications(tmp_path):
    """What a sentence of another module tells: each number has the field that it was read from."""
    regimes = {"default": {}, "hot": {"training": {"warmup": 7}}}
    asked = study(name="norm-times-35", seeds=list(range(1, 13)), regimes=regimes)
    folder = made(tmp_path, made=asked, outcomes=lambda *at: None if at[:2] == ("none", "hot") else outcome(*at))
    results = Results.open(folder)
    words = Context([StudyView(results)], {}, "", None).words

    def told(text: str, part: object, field: str = "") -> dict[str, Any]:
        pieces = words.said(text, part, field)
        assert "".join(piece.text for piece in pieces) == text
        return {piece.text: (piece.source.field, piece.source.value) for piece in pieces if piece.source is not None}

    claims = [claim for claim in claims_of(folder) if "sets warmup = " in claim["sentence"]]
    assert {(claim["text"], claim["field"]) for claim in claims} == {("7", "/study/regimes/hot/training/warmup")}
    deviation = next(deviation for deviation in results.analysis.deviations if "runs" in deviation.details)
    found = told(wording.deviation(deviation), deviation)
    assert found
    assert all(field.startswith("/deviations/0") for field, _ in found.values())


def test_names_with_digits_are_no_claims(tmp_path):
    arms = {"none": {}, "gpt2": {"model": {"mlp_ratio": 3}}, "times-35": {"model": {"mlp_ratio": 2}}}
    folder = made(tmp_path, made=study(variants=arms, hypotheses=HYPOTHESES[:1]), outcomes=shifted(+0.2))
    claims = claims_of(folder)
    assert not [claim for claim in claims if not claim["field"]]
    assert not [claim for claim in claims if re.fullmatch(r"-?35|H\w", claim["text"])]
    assert "times-35" in prose(folder)


def test_every_number_of_every_kind_of_paper_names_a_field(csv_results, foreign_results, broken_results, programme):
    folders = [*((results.folder,) for results in (csv_results, foreign_results, broken_results)), programme]
    for folder in folders:
        for claim in claims_of(*folder):
            assert claim["field"].startswith("/"), claim
            assert claim["command"].startswith("ablationlab "), claim


#: Digits of the templates' own words: definitions, levels and names, which no record changes.
_OWN_DIGITS = re.compile(r"GPT-2|fp32|L2 norm|block 1|80 %|SHA-256|13 words")


def test_no_digit_of_the_text_is_without_a_source(tmp_path):
    loose = []
    for block in document(made(tmp_path)).blocks():
        if isinstance(block, Heading):
            continue
        text = "".join(p.text if p.source is None and p.kind == "text" else "\0" for p in words_of(block))
        loose += re.findall(r"[^\0]{0,30}\d[^\0]{0,20}", _OWN_DIGITS.sub("", text))
    dates = [place for place in loose if not re.search(r"2026-01-01", place)]
    assert dates == []


# --- only true sentences ----------------------------------------------------------------------------------------


def table_of_values(folder: Path) -> Path:
    from ablationlab.cli.app import main

    folder.mkdir()
    rows = ["variant,seed,metric,value"]
    rows += [
        f"{v},{s},val_loss,{2 + 0.01 * s + (0.1 + 0.003 * (s % 2)) * (v == 'b')}" for v in "ab" for s in range(1, 6)
    ]
    (folder / "runs.csv").write_text("\n".join(rows))
    arguments = ["--baseline", "a", "--primary", "val_loss", "--lower", "val_loss", "--out", str(folder)]
    with pytest.raises(SystemExit):
        main(["analyze", str(folder / "runs.csv"), *arguments])
    return folder


def one_arm_broken(variant: str, regime: str, seed: int) -> dict[str, float] | None:
    return None if variant == "layernorm" else outcome(variant, regime, seed)


#: Of the papers below, the ones that may say a sentence.
SENTENCES = {
    "share every batch, the token budget and": {"stable", "untied"},
    "share the planned token budget, their batches, as far as both train, and": {"broken"},
    "trained on up to": {"broken"},
    "sealed before the first training step": {"stable", "untied", "broken"},
    "Nothing was registered beforehand": {"table"},
    "Whether the arms match in data and budget is not known": {"table"},
    "decoder-only Transformer": {"stable", "untied", "broken"},
    "the output head tied to the token embedding": {"stable", "broken"},
    "an untied output head": {"untied"},
    "AdamW": {"stable", "untied", "broken"},
    "E_tok + E_pos": {"stable", "untied", "broken"},
    "significantly better": {"stable", "untied"},
    "worse, an exploratory result": {"table"},
    "in the manner of GPT-2": {"stable", "untied", "broken"},
    "Models in use are larger by orders of magnitude": {"stable", "untied", "broken"},
    "and for nothing that they do not sample": {"table"},
    "five runs diverged": {"broken"},
    "None of the ten runs diverged or spiked": {"stable", "untied"},
    "is detected with 80 % probability": {"stable", "untied", "table"},
    "Related work": set(),
    "equal budget": set(),
    "Pairing by seed did not help": set(),
}


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("papers")
    untied = study().model_dump(mode="json")["model"] | {"tied": False}
    folders = {
        "stable": made(base / "stable", outcomes=shifted(-0.2)),
        "untied": made(base / "untied", made=study(model=untied), outcomes=shifted(-0.2)),
        "broken": made(base / "broken", outcomes=one_arm_broken),
        "table": table_of_values(base / "table"),
    }
    return {name: prose(folder) for name, folder in folders.items()}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_stands_only_where_the_records_make_it_true(papers, sentence):
    assert {name for name, text in papers.items() if sentence in text} == SENTENCES[sentence]


def test_runs_of_a_sweep_that_were_unstable_are_told_beside_the_ones_that_are_compared(tmp_path):
    def swept(variant: str, lr: float, seed: int) -> dict[str, float] | None:
        return None if (variant, lr, seed) == ("layernorm", 1e-1, 2) else outcome(variant, "default", seed)

    text = prose(made(tmp_path, made=study(sweep={"lr": [1e-2, 1e-1]}), swept=swept))
    assert "No run that is compared diverged or spiked; of the other 20 runs of the sweep, one was unstable." in text
    assert (
        "None of the ten runs that are compared diverged or spiked; of the other 20 runs of the sweep, one was unstable."
        in text
    )


def test_unstable_runs_are_counted_among_those_that_are_compared(tmp_path):
    """The table of data counts the runs of the sweep, too."""
    folder = made(tmp_path, made=study(sweep={"lr": [1e-2, 1e-1]}), outcomes=one_arm_broken)
    assert "of ten runs that are compared were unstable" in prose(folder)


def test_arms_of_another_text_are_not_said_to_share_batches_or_text(tmp_path):
    loss = {"metric": "bits_per_byte", "role": "primary", "smallest_effect": 0.01}
    variants = {"none": {}, "bytes": {"data": {"tokenizer": "byte"}}}
    other = prose(made(tmp_path / "bytes", made=study(variants=variants, criteria=[loss])))
    one = prose(made(tmp_path / "one"))
    for sentence in ("share every batch", "the same batches in the same order", "tokens of one text,"):
        assert sentence in one
        assert sentence not in other
    assert "bytes is trained on tiny-shakespeare (" in other
    assert "All arms are validated on the same held-out text." in other
    assert "validated on" not in one


def test_families_are_those_of_the_comparisons_that_were_made(tmp_path):
    calm, steady = (
        prose(made(tmp_path / name, made=study(stability={"smoothness": smoothness})))
        for name, smoothness in (("plain", []), ("steady", ["final_gradient_norm"]))
    )
    own = "Measures of stability and smoothness are a family of their own, with Holm-adjusted p"
    assert own in steady
    assert own not in calm
    assert "They are corrected among themselves, but for metrics that follow from one of the criteria" in steady


def test_without_criteria_nothing_is_said_to_be_asked_by_them(tmp_path):
    text = prose(made(tmp_path, made=study(criteria=[], stability={"smoothness": ["final_gradient_norm"]})))
    assert "Smoothness of training." in text
    assert not re.search(r"criteria ask|of the criteria|Beyond the criteria|Other criteria", text)


def test_what_stops_a_run_and_what_is_drawn_are_told_as_they_are(tmp_path):
    dry = prose(made(tmp_path / "dry"))
    assert "unless its loss or gradient norm stops being finite" in dry
    assert "dropout mask" not in dry
    wet = study().model_dump(mode="json")["model"] | {"dropout": 0.1}
    assert "each dropout mask by step" in prose(made(tmp_path / "wet", made=study(model=wet)))


def test_exploratory_differences_are_counted_as_one_set_in_metrics_and_not_in_tasks(tmp_path):
    text = prose(made(tmp_path, made=study(variants=["none", "layernorm", "rmsnorm"])))
    assert "One of them shows a difference, in perplexity." in text  # follows from the loss, and is one of "them"
    loss = Results.open(tmp_path).analysis.comparisons[0]
    tasks = [loss.model_copy(update={"metric": "task_accuracy", "task": f"t{n}"}) for n in range(9)]
    assert Context.metrics_of(SimpleNamespace(), [*tasks, loss]) == ["task accuracy", metric_name(loss.metric)]


PROGRAM = """
import json, os, sys
seed, rate = int(sys.argv[1]), float(sys.argv[2])
with open(os.environ["ABLATIONLAB_RUN"] + "/reported.jsonl", "a") as file:
    file.write(json.dumps({"result": {"val_loss": 2 + 0.1 * seed + 10 * rate + 0.01 * (seed % 2) * rate}}) + "\\n")
"""
FOREIGN = """
name = "foreign"
baseline = "base"
seeds = [1, 2, 3]
command = ["{python}", "train.py", "{seed}", "{training.lr}"]
metrics = { val_loss = "lower" }
training = { lr = 0.01 }
[variants.base]
[variants.fast]
training.lr = 0.02
[[criteria]]
metric = "val_loss"
role = "primary"
"""


def test_a_foreign_trainer_gives_a_paper_that_claims_nothing_of_its_inside(tmp_path, cli):
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "study.toml").write_text(FOREIGN)
    code, output, errors = cli(
        "run", tmp_path / "study.toml", "--out", tmp_path / "out", "--workers", "1", "--no-report"
    )
    assert code == 0, output + errors
    text = prose(tmp_path / "out")
    assert "The study's own program trains every run" in text
    assert "What it computes inside is not recorded here" in text
    assert "this paper repeats what it reported" in text
    for claim in ("share every batch", "decoder-only", "AdamW", "E_tok", "embedding", "token budget", "Related work"):
        assert claim not in text, claim


def test_exploratory_results_are_not_called_significant(tmp_path):
    text = prose(made(tmp_path, made=study(criteria=[]), outcomes=shifted(-0.2)))
    assert "significantly" not in text


def test_power_is_not_told_of_arms_that_blew_up(tmp_path, programme):
    def outcomes(variant: str, regime: str, seed: int) -> dict[str, float]:
        return {"validation_loss": 3000.0 * seed if variant == "layernorm" else 2.0 + 0.1 * seed}

    folder = made(tmp_path, outcomes=outcomes)
    text = prose(folder)
    assert "is detected with 80 % probability" not in text
    assert "Power is not given for the one comparison that decides, because runs were unstable." in text
    paper = said(document(folder, *programme[:1]))
    assert "The least powerful of the comparisons that decide and whose runs were all stable is in norm-first." in paper
    assert "Power is not given for one of two comparisons that decide, because runs were unstable." in paper


def test_what_pairing_removed_is_told_of_the_primary_metric_with_its_numbers(tmp_path):
    folder = made(tmp_path, outcomes=shifted(-0.2))
    comparison = Results.open(folder).analysis.comparison("validation_loss", "default", "layernorm", "none")
    removed = round(100 * comparison.variance_reduction)
    assert (
        f"Pairing by seed removed {removed} % (layernorm) of the variance of the difference in validation loss"
        in prose(folder)
    )


def test_the_question_is_printed_once(tmp_path):
    assert prose(made(tmp_path, made=study(question="Does one more norm help?"))).count("Does one more norm help?") == 1


def test_authors_of_the_study_sign_its_paper(tmp_path):
    authors = [{"name": "Ada Lovelace", "affiliation": "Analytical & Co."}, {"name": "Alan Turing"}]
    folder = made(tmp_path, made=study(authors=authors))
    assert study(authors=authors).hash == study().hash, "who signs changes no run"
    source = Latex().document(document(folder), read_template("preamble.tex"))
    assert r"\paperauthor{Ada Lovelace}{Analytical \& Co.}" in source


def test_the_bootstrap_interval_is_named_by_the_level_that_it_has(tmp_path):
    criteria = [{"metric": "validation_loss", "role": "primary", "alpha": 0.01}]
    table = next(
        block.body
        for block in document(made(tmp_path, made=study(criteria=criteria))).body
        if isinstance(block, Float) and block.key == "primary"
    )
    assert [column.title for column in table.columns if column.key == "bootstrap"] == ["99\u202f% bootstrap"]


def test_effect_sizes_and_both_intervals_stand_beside_each_comparison_that_decides(tmp_path):
    folder = made(tmp_path, outcomes=shifted(-0.2))
    table = next(b.body for b in document(folder).body if isinstance(b, Float) and b.key == "primary")
    titles = [column.title for column, _ in table.printed()]
    assert {"Deciding interval", "95\u202f% bootstrap", "Effect size", "Adjusted p"} <= set(titles)
    comparison = Results.open(folder).analysis.comparison("validation_loss", "default", "layernorm", "none")
    row = dict(zip([column.key for column in table.columns], table.rows[0], strict=True))
    assert row["d_z"].value == comparison.effects["d_z"].estimate


# --- several studies --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def programme(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    base = tmp_path_factory.mktemp("programme")
    asked = {"name": "norm-first", "question": "Does it help?"}
    again = {"name": "norm-again", "question": "Does it help?", "seeds": [11, 12, 13, 14, 15, 16]}
    other = {"name": "norm-other", "question": "And with a hot start?"}
    return (
        made(base / "first", made=study(**asked), outcomes=shifted(+0.2)),
        made(base / "again", made=study(**again), outcomes=shifted(+0.3)),
        made(base / "other", made=study(**other), outcomes=shifted(-0.2)),
    )


def headings(paper: PaperDocument, level: int) -> list[str]:
    found = [block for block in paper.body if isinstance(block, Heading) and block.level == level]
    return ["".join(piece.text for piece in block.words) for block in found]


def test_a_programme_has_one_section_per_question_and_one_of_everything_else(programme):
    paper = document(*programme)
    titles = headings(paper, 1)
    assert [titles.count(name) for name in ("Introduction", "Methods", "Results", "Discussion", "Conclusion")] == [
        1
    ] * 5
    questions = headings(paper, 2)
    assert questions[-2:] == ["Does it help?", "And with a hot start?"]
    text = said(paper)
    assert (
        "layernorm was compared with the baseline in three studies: of three registered comparisons on the primary metric, "
        "two are shown worse and one is shown better" in text
    )
    assert text.count("Every random draw comes from a stream") == 1
    assert text.count("The baseline is a decoder-only Transformer") == 1
    assert "(layernorm in norm-other) to +0.29" in text or "(layernorm in norm-other) to +0.3" in text
    assert "norm-first: worse: layernorm." in text
    assert "norm-other: better: layernorm." in text


def paragraphs_of(paper: PaperDocument, *starts: str) -> list[str]:
    found = [plain(block.words) for block in paper.body if isinstance(block, Paragraph)]
    return [next((text for text in found if text.startswith(start)), "") for start in starts]


def test_the_discussion_of_a_programme_says_what_agrees_what_differs_and_how_strong_it_is(programme, tmp_path):
    """Each from the records: with two studies of one sign, nothing is said to be shown both ways."""
    starts = ("What agrees.", "What differs.", "How strong the evidence is.")
    agrees, _, strong = paragraphs_of(document(*programme), *starts)
    assert "layernorm (3 of 3 comparisons in three studies) is shown better in some and worse in others." in agrees
    assert "The registered comparisons have 5 to 6 pairs." in strong
    agrees, _, _ = paragraphs_of(document(*programme[:2]), *starts)
    assert "always for the worse with layernorm (2 of 2 comparisons in two studies)." in agrees
    model = study().model_dump(mode="json")["model"] | {"layers": 3}
    regimes = {"default": {}, "slow": {"training": {"warmup": 7}}}
    criteria = [{"metric": "validation_loss", "role": "primary", "regime": name} for name in regimes]
    wide = study(name="norm-wide", question="Does it help?", model=model, regimes=regimes, criteria=criteria)

    def outcomes(variant: str, regime: str, seed: int) -> dict[str, float]:
        return shifted(+0.9 if regime == "slow" else +0.1)(variant, regime, seed)

    (differs,) = paragraphs_of(document(*programme, made(tmp_path, made=wide, outcomes=outcomes)), "What differs.")
    assert "the deciding intervals of default and slow do not overlap for one variant" in differs
    assert "The regime slow sets warmup = 7." in differs


def test_the_abstract_answers_from_all_studies(programme):
    (abstract,) = [plain(block.words) for block in document(*programme[:2]).abstract if isinstance(block, Paragraph)]
    assert (
        "In two studies, layernorm is shown worse than the baseline in 2 of 2 registered comparisons, and better in none."
        in abstract
    )


def test_a_difference_between_sizes_is_told_with_what_is_shown_at_each_end(programme, tmp_path):
    """A variant of which neither is shown is left out."""
    model = study().model_dump(mode="json")["model"] | {"width": 32}
    wide = made(tmp_path, made=study(name="norm-wide", question="Does it help?", model=model), outcomes=shifted(0, 0.1))
    (differs,) = paragraphs_of(document(programme[0], wide), "What differs.")
    ends = r"goes from \+0\.\d+ \(shown worse\) to \S+\snats/token \(not shown either way\) with layernorm\."
    assert re.search(ends, differs)
    narrow = made(
        tmp_path / "narrow", made=study(name="norm-narrow", question="Does it help?"), outcomes=shifted(0, 0.1)
    )
    assert paragraphs_of(document(narrow, wide), "What differs.") == [""]


def test_an_answer_that_was_not_registered_is_called_a_lead(csv_results, untied_results):
    text = said(document(csv_results.folder, untied_results.folder))
    assert "Of one registered comparison with the baseline on the primary metric, one is shown equivalent." in text
    assert "(not registered: a lead): better: b." in text


def test_what_differs_between_studies_is_told_of_those_it_is_true_of(programme, tmp_path):
    dropped = study().model_dump(mode="json")["model"] | {"dropout": 0.1}
    last = made(tmp_path / "last", made=study(name="norm-dropout", question="With dropout?", model=dropped))
    text = said(document(*programme, last))
    assert "All studies but norm-dropout: There is no dropout." in text
    assert "dropout: Dropout is 0.1." in text


def test_the_abstract_counts_every_registered_place_at_which_stability_may_be_shown(programme, tmp_path):
    """Variants x failures: diverged and failed are places as unstable is, and so are those at which nothing failed."""
    asked = study(name="norm-hot", seeds=list(range(1, 13)), regimes={"default": {}, "hot": {"training": {"lr": 0.01}}})
    breaks = ("none", "hot")
    folder = made(tmp_path, made=asked, outcomes=lambda *at: None if at[:2] == breaks else outcome(*at))
    stability = Results.open(folder).analysis.stability
    shown = [gain for gain in (*stability.gains, *stability.parts) if gain.outcome == "more-stable"]
    assert (len(shown), stability.places) == (2, 4)
    assert (
        "runs were unstable, a gain in stability is shown in two of four registered comparisons of stability"
        in said(document(*programme, folder))
    )


def test_a_section_gives_every_registered_difference_and_those_between_variants(programme, tmp_path):
    """Counts alone do not answer how large an effect is, nor those with the baseline what a norm does within another arm."""
    contrast = {"metric": "validation_loss", "role": "secondary", "contrast": ["rmsnorm", "layernorm"]}
    regimes = {"default": {}, "hot": {"training": {"lr": 0.01}}, "cold": {"training": {"lr": 1e-5}}}
    primaries = [{"metric": "validation_loss", "role": "primary", "regime": regime} for regime in regimes]
    asked = study(
        name="norm-many",
        question="Which?",
        variants=["none", "layernorm", "rmsnorm"],
        regimes=regimes,
        criteria=[*primaries, contrast],
    )
    folder = made(tmp_path, made=asked, outcomes=shifted(+0.2))
    analysis = Results.open(folder).analysis
    compared = [c for c in analysis.comparisons if c.metric == "validation_loss" and c.label == "registered"]
    assert len(compared) == 7
    paper = document(*programme, folder)
    shown = next(b for b in paper.body if isinstance(b, Float) and plain(b.caption).startswith("norm-many: "))
    rows = [dict(zip([column.key for column in shown.body.columns], row, strict=True)) for row in shown.body.rows]
    deltas = [(row["regime"].value, row["variant"].value, row["delta"].value) for row in rows]
    assert [delta for delta in deltas if delta[2] is not None] == [
        (c.regime, c.variant, c.delta)
        for regime in regimes
        for c in sorted((c for c in compared if c.regime == regime), key=lambda c: c.reference != "none")
    ]
    assert [arm for _, arm, delta in deltas if delta is None] == ["none", "none", "none"]  # references
    assert rows[3]["mean"].text.split() == ["vs", "layernorm"]  # and no second row of it
    means = [row["mean"].text.replace("\N{NO-BREAK SPACE}", " ") for row in rows if row["regime"].text]
    first = [next(c for c in compared if c.regime == name and c.reference == "none") for name in regimes]
    assert means[0] == format.mean_sd(first[0].reference_mean, first[0].reference_sd)


def test_the_abstracts_range_has_the_shown_differences_of_arms_with_an_unstable_run(programme, tmp_path):
    seeds = list(range(1, 13))
    asked = study(name="norm-wild", question="Wild?", seeds=seeds)
    wild = shifted(+0.9)
    folder = made(tmp_path, made=asked, outcomes=lambda *at: None if at == ("layernorm", "default", 12) else wild(*at))
    assert re.search(r"to \+0\.\d+ nats/token \(layernorm in norm-wild\)", str(said(document(*programme, folder))))


def test_an_answer_has_the_colour_that_it_has_on_the_page(programme):
    colour = forest_of([Results.open(folder) for folder in programme]).chart.to_dict()["layer"][1]["encoding"]["color"]
    colours = dict(zip(colour["scale"]["domain"], colour["scale"]["range"], strict=True))
    assert colours == {"▶ worse": BAD, "◀ better": GOOD}


def test_numbers_of_a_programme_name_their_study(programme):
    deltas = [claim for claim in claims_of(*programme) if claim["field"].endswith("/delta")]
    assert {claim["study"] for claim in deltas} == {"norm-first", "norm-again", "norm-other"}
    for claim in deltas:
        folder = programme[["norm-first", "norm-again", "norm-other"].index(claim["study"])]
        assert at(json.loads((folder / claim["file"]).read_text()), claim["field"]) == claim["value"]


def records_of(claim: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(study, file, field) of all that a claim is made of."""
    others = [re.fullmatch(r"([^/]+)/(.+)#(.*)", place).groups() for place in claim.get("also", ())]
    return [(claim["study"], claim["file"], claim["field"]), *others]


def test_a_count_over_studies_names_the_record_of_every_study_that_is_counted(programme):
    claims = claims_of(*programme)
    compared = ["norm-first", "norm-again", "norm-other"]
    (worse, better) = [
        next(c for c in claims if "is shown better" in c["sentence"] and c["text"] == text) for text in ("two", "one")
    ]
    assert [study for study, _, _ in records_of(worse)] == compared[:2]
    assert [study for study, _, _ in records_of(better)] == compared[2:]
    runs = next(c for c in claims if c["text"] == str(5 * 2 * 2 + 6 * 2))
    assert records_of(runs) == [(name, "plan.lock", "/runs") for name in compared]
    for claim in (worse, better, runs):
        for name, file, field in records_of(claim):
            at(json.loads((programme[compared.index(name)] / file).read_text()), field)  # is there


@pytest.mark.parametrize(
    ("text", "many"), [("0.57318", 5), ("−0.0496", 3), ("11.165", 5), ("1,200", 0), ("0.2×10⁻³", 1)]
)
def test_a_match_within_a_whole_record_is_trusted_by_its_digits(text, many):
    assert sources._digits(text) == many


def test_one_study_given_twice_is_refused(programme, tmp_path):
    twice = [Results.open(programme[0]), Results.open(programme[0])]
    with pytest.raises(AblationLabError, match="norm-first"):
        write_programme(twice, tmp_path)


def test_the_verb_writes_pdf_sources_and_claims(programme, tmp_path, cli):
    (tmp_path / "own.md").write_text("# Introduction\nOf *our* own.\n")
    code, output, _ = cli(
        "paper", *programme, "--out", tmp_path / "out", "--title", "One & all", "--text", tmp_path / "own.md"
    )
    assert code == 0, output
    out = tmp_path / "out"
    assert (out / "paper.pdf").read_bytes().startswith(b"%PDF")
    assert {"paper.typ", "paper.tex", "references.bib", "claims.json"} <= {path.name for path in out.iterdir()}
    assert "Of #emph[our] own." in (out / "paper.typ").read_text()
    assert r"\front{One \& all}" in (out / "paper.tex").read_text()
    assert (out / "figures" / "forest.pdf").exists()


def test_a_programme_has_the_title_and_calls_studies_by_the_names_that_its_text_gives(programme, tmp_path):
    (tmp_path / "own.md").write_text(
        "# Title\nDoes it\nhelp?\n\n# Studies\n- norm-first: Short runs, 1\n- norm-again: Short runs, 2\n- gone: Gone\n"
    )
    own = StudyText(**read_text(tmp_path / "own.md", "own.md"))
    paper = document(*programme, text=own)
    assert plain(paper.title) == "Does it help?"
    assert plain(document(*programme, text=own, title="Given").title) == "Given"
    assert plain(document(*programme).title) == "Three studies of layernorm"
    text = said(paper)
    assert "In Short runs, 1" in text or "Short runs, 1 and Short runs, 2" in text
    assert "Name norm-first norm-again norm-other" in text  # the table of hashes names the files
    assert "norm-other: " in text
    assert "norm-first: " not in text
    (tmp_path / "own.md").write_text("# Studies\nnorm-first is short\n")
    with pytest.raises(StudyError, match="- my-study: Short training"):
        read_text(tmp_path / "own.md", "own.md")


def test_the_title_of_the_shipped_programme_counts_no_studies():
    """It may be given with any of them."""
    own = StudyText(**read_text(Path(__file__).parents[2] / "studies" / "embedding-norm.md", "embedding-norm.md"))
    words = set(re.findall(r"\w+", own.title.lower()))
    assert not words & {format.count_word(many) for many in range(2, 30)}


def test_every_reference_to_a_table_or_figure_has_one(programme, tmp_path):
    for folders in ((programme[0],), programme, (table_of_values(tmp_path / "table"),)):
        paper = document(*folders)
        floats = {block.key for block in paper.body if isinstance(block, Float)}
        asked = {piece.text for block in paper.blocks() for piece in words_of(block) if piece.kind == "ref"}
        assert asked <= floats


def test_every_registered_answer_of_a_programme_stands_in_the_tables_of_its_question_and_no_lead(programme):
    """With the mean and SD of every arm; nothing stands behind the references."""
    main, appendix = document(*programme).parts()
    assert not appendix
    tables = [block for block in main if isinstance(block, Float) and block.key.startswith("question-")]
    assert [[row[0].value for row in block.body.rows] for block in tables] == [
        ["norm-first", "norm-first", "norm-again", "norm-again"],
        ["norm-other", "norm-other"],
    ]
    answers = [block.body for block in main if isinstance(block, Float) and block.key.startswith("answers-")]
    said_of = [{column.key: [cell.text for cell in cells] for column, cells in table.printed()} for table in answers]
    assert said_of[0]["study"] == ["norm-first", "norm-again"]
    assert [table["answer"] for table in said_of] == [["▶ worse", "▶ worse"], ["◀ better"]]
    comparisons = [json.loads((folder / "analysis.json").read_text())["comparisons"][0] for folder in programme]
    shown = [
        [
            cell.text.replace("\N{NO-BREAK SPACE}", " ")
            for column, cell in zip(block.body.columns, row, strict=True)
            if column.key in ("variant", "mean")
        ]
        for block in tables
        for row in block.body.rows
    ]
    assert shown == [
        [arm, format.mean_sd(c[f"{of}_mean"], c[f"{of}_sd"])]
        for c in comparisons
        for arm, of in (("none", "reference"), ("layernorm", "variant"))
    ]
    assert [place.split("/")[0] for place in (f"{row.study}/" for block in tables for row in block.rows)] == [
        "norm-first",
        "norm-again",
        "norm-other",
    ]


def test_the_spread_of_the_first_weights_is_told_again_only_where_it_differs(tmp_path):
    model = study().model_dump(mode="json")["model"]
    assert "with standard deviation 0.02. " in prose(made(tmp_path / "one"))
    own = made(tmp_path / "own", made=study(model=model | {"position_init_std": 0.0}))
    assert "with standard deviation 0.02 (position embedding 0). " in prose(own)


def test_arms_that_differ_before_block_1_are_told_apart():
    plain = ModelConfig(layers=1, width=16, heads=4, context=16)
    norm, scaled = FrontEnd(norm="rmsnorm", gain=True), FrontEnd(scale="sqrt-width", place="token")
    models = [plain, *(plain.model_copy(update={"front": front}) for front in (norm, scaled))]
    rotary = models[1].model_copy(update={"position": "rotary"})  # adds no vector: there is no E_pos
    assert [front_formula(model) for model in (*models, rotary)] == [
        "E_tok + E_pos",
        "RMSNorm(E_tok + E_pos), ε = 10⁻⁵",
        "√d · E_tok + E_pos",
        "RMSNorm(E_tok), ε = 10⁻⁵",
    ]


def test_what_a_norm_before_block_1_lacks_is_named():
    plain = ModelConfig(layers=1, width=16, heads=4, context=16)
    layer, root = FrontEnd(norm="layernorm", gain=True, bias=True), FrontEnd(norm="rmsnorm", gain=True, eps=1e-6)
    others = [root.changed(gain=False), root.changed(scale=0.03), FrontEnd(norm="center"), root.changed(gradient=0.1)]
    fronts = [layer, root, layer.changed(place="token"), layer.changed(bias=False), *others]
    assert [front_formula(plain.changed(front=front)) for front in fronts] == [
        "LN(E_tok + E_pos), ε = 10⁻⁵",
        "RMSNorm(E_tok + E_pos), ε = 10⁻⁶",
        "LN(E_tok) + E_pos, ε = 10⁻⁵",
        "LN(E_tok + E_pos) without bias, ε = 10⁻⁵",
        "RMSNorm(E_tok + E_pos) without gain, ε = 10⁻⁶",
        "0.03 · RMSNorm(E_tok + E_pos), ε = 10⁻⁶",
        "center(E_tok + E_pos)",
        "RMSNorm(E_tok + E_pos), ε = 10⁻⁶, the gradient into E_tok × 0.1",
    ]
    assert front_formula(plain.changed(front=layer, position="rotary")) == "LN(E_tok), ε = 10⁻⁵"


def test_a_formula_with_positions_is_told_only_of_models_that_add_them():
    learned = ModelConfig(layers=1, width=16, heads=4, context=16, position="learned")
    declared = Declaration(formula="RMSNorm(E_tok + E_pos)")
    assert declared.formula_in(learned) == "RMSNorm(E_tok + E_pos)"
    assert declared.formula_in(learned.model_copy(update={"position": "rotary"})) == ""
    assert Declaration(formula="y = relu(x A)² D").formula_in(learned.model_copy(update={"position": "rotary"}))


def test_settings_are_told_without_python():
    told = [
        setting_words(key, value) for key, value in (("betas", (0.9, 0.99)), ("clip", None), ("options", {"pieces": 3}))
    ]
    assert told == ["betas (0.9, 0.99)", "clip none", "options pieces = 3"]


def test_settings_of_an_arm_are_told_in_words():
    told = {"position": "rotary", "tied": False, "mlp": "relu2", "mlp_ratio": 2.667, "biases": False}
    assert [setting_words(key, value) for key, value in told.items()] == [
        "rotary positions",
        "untied head",
        "ReLU²",
        "an MLP of 2.667 times the width",
        "no biases",
    ]


def test_what_many_runs_share_is_entered_once():
    """The recipes of 10,000 runs are a few objects, and the paper took a seventh of its time to walk through them."""
    walked = []

    class Settings(dict):
        def items(self):
            walked.append(self)
            return super().items()

    @dataclass(frozen=True)
    class Part:
        value: float
        inner: object = None

    shared = Part(2.0, Settings(a=Part(3.0)))
    other = Part(2.0, Settings({"a/b~": Part(4.0)}))
    plan = Part(1.0, (shared, shared, other))
    sources = Sources()
    sources.add("study", SimpleNamespace(plan=plan, analysis=None, verdict=None, replication=None))
    assert len(walked) == 2
    assert sources.of(shared, "value").field == "/inner/0/value"
    assert sources.of(shared.inner["a"], "value").field == "/inner/0/inner/a/value"
    assert sources.of(other.inner["a/b~"], "value").field == "/inner/2/inner/a~1b~0/value"


def test_no_table_of_the_appendix_floats_into_the_references():
    def table(key: str, rows: int) -> Float:
        column, words = Column("a", "A"), (Inline("text", key),)
        return Float(key, Table(key, "", (column,), tuple((Cell.of(row),) for row in range(rows))), words, wide=True)

    head = Heading(1, (Inline("text", "Appendix"),), appendix=True)
    cited = Paragraph((Inline("cite", "holm1979"),))
    for floats, order in (
        ([table("hashes", 8), table("criteria", 2)], ["appendix", "hashes", "criteria", "references", "layout-check"]),
        ([table("all", 13), table("hashes", 8)], ["references", "layout-check", "back", "appendix", "all", "hashes"]),
    ):
        word = (Inline("text", "T"),)
        paper = PaperDocument(word, (), word, (), (cited, head, *floats), "", None, "", ())
        found = re.findall(r'#(appendix|references|back|layout-check)|#tabular\("(\w+)"', Typst().document(paper, ""))
        assert [one or other for one, other in found] == order
        latex = Latex().document(paper, "")
        assert latex.index("bibliography{") < latex.index("\\behind") < latex.index("label{hashes}")


@pytest.mark.parametrize(
    ("measured", "chosen"),
    [
        ("(full: if size > 9.6pt { 0.9 } else { 0.5 }, ordered: true)", ("9.7pt", "false")),  # the first that is full
        ("(full: size / 20pt, ordered: size < 9.6pt)", ("9.5pt", "false")),  # none is: the fullest in order
        ("(full: 0.75 + size / 100pt, ordered: apart)", ("9.6pt", "true")),  # no size sets the tables in order
    ],
)
def test_the_size_of_the_text_fills_the_last_page_and_keeps_tables_in_order(tmp_path, measured, chosen):
    source = f"#let size = 9.6pt\n#let apart = false\n#metadata({measured}) <end>\n"
    assert tuple(re.findall(r"#let \w+ = (\S+)", fullest(source, tmp_path))) == chosen


def test_the_layout_sees_a_table_above_one_of_a_lower_number(tmp_path):
    """Over both columns a table goes to the head of the page, above an earlier one of one column."""
    filled = '#lorem(300)\n#tabular("a", (left,), ("A",), caption: [a], [1])\n#lorem(60)\n'
    filled += '#tabular("b", (left,), ("B",), wide: true, caption: [b], [1])\n#layout-check\n'
    source = read_template("layout.typ") + "#show: paper.with(title: [T], abstract: [A], byline: [B])\n" + filled
    ordered = []
    for apart in ("false", "true"):
        with typst_compiler(source.replace("#let apart = false", f"#let apart = {apart}"), tmp_path) as compiler:
            ordered.append(json.loads(compiler.query("<end>", field="value", one=True))["ordered"])
    assert ordered == [False, True]


def swept_chart(arms: list[str]):
    """A chart of a sweep with an area, points and lines, as the page has it."""
    import altair as alt

    from ablationlab.report.charts.theme import Figure

    rows = [{"variant": arm, "lr": rate, "mean": 1.0} for arm in arms for rate in (1.0, 2.0)]
    scale = alt.Scale(domain=arms, range=[f"#0000{place:02x}" for place in range(len(arms))])
    line = (
        alt.Chart({"name": "rows"})
        .mark_line()
        .encode(
            x=alt.X("lr:Q").axis(values=[1.0, 2.0]),
            y=alt.Y("mean:Q", title="loss"),
            color=alt.Color("variant:N", scale=scale, legend=alt.Legend()),
        )
    )
    return Figure("sweep-curves", "T", ("Line: mean.",), chart=alt.layer(line), data={"rows": rows})


def test_a_sweep_of_many_arms_is_drawn_in_panels_by_the_first_factor():
    cells = {f"{a}-{b}": {"architecture": a, "norm": b} for a in ("gpt2", "llama") for b in "wxyz"}
    factors = SimpleNamespace(cells=lambda: cells, levels={"architecture": ("gpt2", "llama"), "norm": tuple("wxyz")})
    plan = SimpleNamespace(study=SimpleNamespace(factors=factors))
    drawn = in_panels(SimpleNamespace(variants=tuple(cells), plan=plan), swept_chart(list(cells)))
    panels = drawn.bare["hconcat"]
    assert [panel["title"]["text"] for panel in panels] == ["gpt2", "llama"]
    shown = [panel["layer"][0]["encoding"]["color"]["scale"]["domain"] for panel in panels]
    assert shown == [list(cells)[:4], list(cells)[4:]]
    assert [panel["layer"][0]["encoding"]["y"]["title"] for panel in panels] == ["loss", None]
    assert drawn.caption.startswith("Panels: architecture, each with a vertical axis of its own.")


def test_a_sweep_of_many_arms_without_factors_shows_the_farthest_and_says_how_many_are_left_out():
    arms = ["none", *"abcdefg"]
    compared = [SimpleNamespace(metric="loss", variant=arm, delta=-float(place)) for place, arm in enumerate(arms)]
    results = SimpleNamespace(
        variants=tuple(arms), plan=None, baseline="none", primary="loss", analysis=SimpleNamespace(comparisons=compared)
    )
    drawn = in_panels(results, swept_chart(arms))
    assert drawn.variants == {"none", *"cdefg"}
    assert drawn.caption.endswith("Not drawn: 2 arms nearer to none in loss.")
    few = swept_chart(arms[:4])
    assert in_panels(SimpleNamespace(variants=tuple(arms[:4]), plan=None), few) is few


def test_how_runs_ended_is_drawn_of_the_regimes_in_which_a_difference_in_stability_is_shown(tmp_path):
    regimes = {"default": {}, "hot": {"training": {"lr": 0.01}}}
    asked = study(seeds=list(range(1, 13)), regimes=regimes)
    folder = made(tmp_path, made=asked, outcomes=lambda *at: None if at[:2] == ("none", "hot") else outcome(*at))
    results = Results.open(folder)
    ended = ends_of(results, stability_charts.ends(results))
    (rows,) = ended.data.values()
    counts = {(row["row"], row["end"]): row["runs"] for row in rows}
    assert counts == {("none", "diverged"): 12, ("layernorm", "steady"): 12}
    assert ended.caption == (
        "All but steady runs are unstable. Regime hot. Not drawn: 1 regime in which no difference in stability is shown."
    )
    calm = Results.open(made(tmp_path / "calm"))
    assert ends_of(calm, stability_charts.ends(calm)) is None


def test_a_model_without_blocks_is_no_transformer_and_is_named_where_it_decides(programme, tmp_path):
    model = study().model_dump(mode="json")["model"] | {"layers": 0}
    asked = study(name="no-blocks", question="Without blocks?", model=model)
    folder = made(tmp_path, made=asked, outcomes=shifted(-0.9))
    alone = prose(folder)
    assert "The baseline has no Transformer block, so it predicts every token from the one before it" in alone
    assert "decoder-only Transformer in the manner" not in alone
    text = said(document(*programme[:2], folder))
    assert "(no-blocks, a model without a Transformer block) to +0." in text
    assert "no-blocks, a model without a Transformer block: better: layernorm." in text


def test_one_name_for_two_hypotheses_stands_beside_its_study(tmp_path):
    other = [HYPOTHESES[0] | {"statement": "Another statement."}, *HYPOTHESES[1:]]
    folders = [
        made(tmp_path / str(place), made=study(name=f"asked-{place}", question="Why?", hypotheses=hypotheses))
        for place, hypotheses in enumerate((HYPOTHESES, other))
    ]
    (table,) = [b.body for b in document(*folders).body if isinstance(b, Float) and b.key == "hypotheses"]
    statements = {(row[0].value, row[1].value): row[2].value for row in table.rows}
    name = HYPOTHESES[0]["name"]
    assert statements["asked-0", name] == HYPOTHESES[0]["statement"]
    assert statements["asked-1", name] == "Another statement."


def test_what_arms_take_from_the_literature_is_cited_and_nothing_else(programme, tmp_path):
    model = study().model_dump(mode="json")["model"]
    rotary = made(tmp_path / "rotary", made=study(model=model | {"position": "rotary", "mlp": "swiglu"}))
    cited = document(rotary).cited()
    assert {"su2024", "shazeer2020"} <= set(cited)
    assert not {"jordan2024", "hu2024", "press2022"} & set(cited)
    assert "From the literature come rotary positions" in prose(rotary)
    assert not {"su2024", "shazeer2020"} & set(document(programme[0]).cited())


def test_many_learning_rates_are_told_by_their_range(tmp_path):
    rates = [round(0.001 * 2 ** (place / 2), 6) for place in range(10)]
    own = {"none": rates[:5], "layernorm": rates[5:]}
    sweep = {"lr": rates[:5], "variant_lr": own, "selection_seeds": [91]}
    text = prose(made(tmp_path, made=study(sweep=sweep)))
    assert "Every arm is trained at five learning rates of its own, out of 10 from 0.001 to 0.0226" in text
    assert "0.00283" not in text


def test_a_figure_that_would_have_to_shrink_rules_a_size_out(tmp_path):
    """A wide float leaves less of the column than the figure takes."""
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "a.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10"></svg>')
    head = read_template("layout.typ") + "#show: paper.with(title: [T], abstract: [A], byline: [B])\n"
    wide = '#tabular("t", (left,), ("A",), wide: true, caption: [t], ..range(70).map(n => [#n]))\n'
    ordered = []
    for before in ("", wide):
        source = f'{head}{before}#lorem(40)\n#drawing("a", "a", 1.0)[a]\n#layout-check\n'
        with typst_compiler(source, tmp_path) as compiler:
            ordered.append(json.loads(compiler.query("<end>", field="value", one=True))["ordered"])
    assert ordered == [True, False]


def test_of_one_study_among_several_the_norms_are_drawn(programme, monkeypatch):
    from ablationlab.report import figures as page_figures
    from ablationlab.report.charts.theme import Figure
    from ablationlab.report.paper import figures

    keys = ("curve-loss", "curve-gradient-norm", "probe-embedding-norm-tokens")
    every = [Figure(key, key, (), chart=None, data={}) for key in keys]
    monkeypatch.setattr(page_figures, "draw_figures", lambda _: SimpleNamespace(every=lambda: every))
    monkeypatch.setattr(figures, "column_svg", lambda *_: '<svg width="10" height="5"></svg>')
    monkeypatch.setattr(figures, "forest_of", lambda *_: None)
    studies = [Results.open(folder) for folder in programme[1:]]  # each asks a question of its own
    drawn = figures.programme_pictures(studies, {})
    shown = {name: [picture.kind for picture in pictures] for name, pictures in drawn.items()}
    norms = ["curve-gradient-norm", "probe-embedding-norm"]
    assert shown == {"norm-again": ["curve-loss", *norms], "norm-other": ["curve-loss"]}
    text = said(build_document(studies, drawn))
    assert "shows the training loss, norm-again-curve-gradient-norm the gradient norm and norm-again-probe-" in text


def test_beside_a_table_and_a_foreign_trainer_sentences_name_the_studies_that_they_are_true_of(
    csv_results, foreign_results, programme
):
    text = said(document(csv_results.folder, foreign_results.folder, programme[0]))
    for words in (
        "runs, apart from those of runs, which were given as a table of values. The models of norm-first have",
        "In runs nothing was registered. runs: better: b.",
        "foreign and norm-first sealed their tests and decision rules before the first step. In runs, nothing was",
        "arms lists the arms of foreign and norm-first.",
        "The arms of foreign and norm-first: what each changes, and how many studies have it.",
        "The runs of norm-first were made on",
        "In norm-first, every random draw comes from",
        "The records of norm-first were checked: ",
        "Not checked, because the trainer does not report it",
        "In runs, nothing was registered: exploratory answers are leads and no findings.",
        "The results of runs hold for the runs in the table",
        "In norm-first, the largest model has",
        "In norm-first, seeds vary the initial weights",
        "foreign and norm-first are folders of records with a sealed plan; runs has the values of a table and no plan.",
    ):
        assert words in text, words
    for words in (
        "All runs were made",
        "Each study is a folder",
        "on models of",
        "the differences of all",
        "All of them share one validation split",
    ):
        assert words not in text, words


def test_two_tables_give_a_paper_that_knows_of_no_model_and_no_plan(csv_results, tmp_path):
    paper = document(csv_results.folder, table_of_values(tmp_path / "other"))
    text = said(paper)
    assert "The runs were given as tables of values. Nothing was registered" in text
    assert "Every number is computed from the given values" in text
    for words in ("Models in use", "Seeds vary", "sealed plan", "Parameters", "Controls"):
        assert words not in text, words
    keys = {block.key for block in paper.body if isinstance(block, Float)}
    assert {piece.text for block in paper.blocks() for piece in words_of(block) if piece.kind == "ref"} <= keys


def test_an_unfinished_study_beside_others_is_marked_where_it_is_told(programme, tmp_path):
    build(tmp_path, study(name="half", question="And half of it?"), outcomes=shifted(-0.2))
    shutil.rmtree(next((tmp_path / "runs").glob("*layernorm*")))
    conclude(tmp_path)
    text = said(document(programme[0], tmp_path))
    assert re.search(r"The plans have \d+ runs", str(text))
    assert "All runs that have ended were made on" in text
    assert "The study is not finished. What follows describes its current state; it is not a result." in text
    assert "half (not finished): " in text


def test_an_answer_without_a_difference_is_counted_below_the_chart(programme, tmp_path):
    broken = made(tmp_path, made=study(name="norm-broken", question="Why?"), outcomes=one_arm_broken)
    forest = forest_of([Results.open(folder) for folder in (*programme, broken)])
    assert forest is not None
    assert "Not drawn: 1 answer whose difference is not known." in forest.sentences


def test_a_chart_of_several_studies_has_the_answers_of_their_tables_and_no_lead(programme, tmp_path):
    asked = [{"metric": "validation_loss", "role": "primary", "smallest_effect": 0.01, "regime": "default"}]
    hot = study(name="norm-hot", question="Hot?", regimes={"hot": {"training": {"lr": 0.1}}}, criteria=asked)
    results = Results.open(made(tmp_path, made=hot, outcomes=shifted(-0.2)))
    assert any(decided.exploratory for decided in StudyView(results).decided)
    forest = forest_of([Results.open(programme[0]), results])
    assert forest is not None
    assert "Not drawn: exploratory answers beside registered ones." in forest.sentences
    assert [row["row"] for rows in forest.data.values() for row in rows] == [
        "norm-first: layernorm",
        "norm-hot: layernorm, default",
    ]


def test_one_chart_of_all_answers_says_which_studies_it_leaves_out_and_what_is_a_lead(csv_results, programme, tmp_path):
    alike = made(tmp_path, made=study(name="norm-alike", question="Why?"), outcomes=shifted(-0.2))
    forest = forest_of([csv_results, Results.open(programme[0]), Results.open(alike)])
    assert forest is not None
    assert forest.title == "The difference in validation loss beside every answer that rests on it"
    assert "Not drawn: runs, whose primary metric is another one." in forest.sentences


def test_a_semicolon_behind_emphasis_is_printed_though_an_empty_piece_lies_between():
    words = (Inline("text", "tie", "emphasis"), Inline("text", ""), Inline("text", "; a is worse"))
    printed = Typst().words(words)
    assert printed == "#emph[tie];; a is worse"


def test_what_is_true_of_all_studies_is_said_of_all_studies(programme):
    """With no exception to name, "All studies but" was followed by nothing."""
    text = said(document(*programme))
    assert "All studies but:" not in text
    assert "All studies: No deviation from the sealed plan was found." in text


def test_a_title_that_a_plan_sealed_is_not_that_of_another_papers(programme, tmp_path):
    given = StudyText(title="Seven studies of a norm")
    asked = study(name="titled", question="And with a title?", text=given.model_dump())
    folder = made(tmp_path, made=asked)
    studies = [Results.open(path) for path in (*programme, folder)]
    assert "Seven" not in plain(build_document(studies, {}).title)
    assert plain(build_document(studies, {}, text=given).title) == "Seven studies of a norm"
