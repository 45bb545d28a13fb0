from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ablationlab.core.errors import StudyError
from ablationlab.records.settings import FrontEnd, ModelConfig, Study, TrainingConfig, steps_of
from ablationlab.records.storage import slug
from ablationlab.study.load import load_study, parse_study
from ablationlab.study.starter import LINE
from ablationlab.study.variants import VARIANTS

STUDIES = sorted((Path(__file__).parents[2] / "studies").glob("*.toml"))


def problems(table: dict) -> dict[str, str]:
    """Key -> text of every problem."""
    with pytest.raises(StudyError) as caught:
        parse_study(table)
    found = caught.value.problems
    texts = {problem.key: str(problem) for problem in found}
    assert len(texts) == len(found), f"a key is reported twice: {found}"
    return texts


# --- what is refused, and in which words ------------------------------------------------------------------


SHARED = {"metric": "validation_loss", "role": "primary", "correction": "bonferroni", "variance": "shared"}
FIVE_ARMS = {"variants": ["none", "layernorm", "rmsnorm", "layernorm-token", "sqrt-d"], "seeds": [1, 2, 3]}
BAD = [
    # changes, key, what the message says
    (
        {"variants": ["none", "layernrom"]},
        "variants[1]",
        ["unknown variant (got 'layernrom')", "rmsnorm-nogain", "did you mean 'layernorm'?"],
    ),
    ({"baseline": "nonne"}, "baseline", ["unknown variant (got 'nonne')", "did you mean 'none'?"]),
    ({"variants": ["layernorm", "rmsnorm"]}, "variants", ["the baseline 'none' must be one of them"]),
    ({"variants": []}, "variants", ["must not be empty"]),
    ({"variants": ["none", "layernorm", "none"]}, "variants", ["given more than once: none"]),
    ({"variants": "none"}, "variants", ['got "none"', "allowed: a list"]),
    (
        {"model.preset": "gpt2-smal"},
        "model.preset",
        ["unknown preset (got 'gpt2-smal')", "char-mini", "did you mean 'gpt2-small'?"],
    ),
    ({"model.widht": 16}, "model.widht", ["unknown key", "heads", "did you mean 'width'?"]),
    ({"seed": [1]}, "seed", ["unknown key", "did you mean 'seeds'?"]),
    ({"modle": {}}, "modle", ["unknown key", "did you mean 'model'?"]),
    ({"model.front": {"gian": True}}, "model.front.gian", ["unknown key", "did you mean 'gain'?"]),
    (
        {"model.front": {"norm": "center"}},
        "model.front.norm",
        ["is set by variants, not by [model]", "place"],
    ),
    ({"model.width": -16}, "model.width", ["got -16", "at least 1"]),
    ({"model.layers": -1}, "model.layers", ["got -1", "at least 0"]),
    ({"model.context": 0}, "model.context", ["got 0", "at least 1"]),
    ({"model.heads": 3}, "model.heads", ["3 does not divide width = 16", "the nearest that do: 2 and 4"]),
    ({"model.heads": 0}, "model.heads", ["got 0", "at least 1"]),
    ({"model.dropout": 1.0}, "model.dropout", ["got 1.0", "below 1"]),
    ({"model.width": "16"}, "model.width", ['got "16"', "a whole number"]),
    ({"model.width": 16.0}, "model.width", ["got 16.0", "a whole number"]),
    ({"model.tied": 1}, "model.tied", ["got 1", "true or false"]),
    ({"model": 3}, "model", ["got 3", "a table"]),
    ({"model.width": ...}, "model.width", ["is missing"]),
    ({"training.steps": True}, "training.steps", ["got true", "a whole number"]),
    ({"training.steps": 0}, "training.steps", ["got 0", "at least 1"]),
    ({"training.steps": ...}, "training", ["exactly one of steps and tokens", "neither is given"]),
    ({"training.tokens": 640}, "training", ["exactly one of steps and tokens", "both are given"]),
    (
        {"training.steps": ..., "training.tokens": 100},
        "training.tokens",
        ["got 100", "multiples of batch x context = 64, such as 64 or 128"],
    ),
    ({"training.warmup": 12}, "training.warmup", ["must be shorter than the run (got 12)", "below 12"]),
    ({"training.warmup": ...}, "training.warmup", ["must be shorter than the run (got 30, the default)", "below 12"]),
    ({"training.batch": -4}, "training.batch", ["got -4", "at least 1"]),
    ({"name": "a\x1b[31mred"}, "name", ["has a character that cannot be printed"]),
    ({"regimes": {"": {"training": {"lr": 0.1}}}}, "regimes", ["use lower-case letters, digits and dashes"]),
    ({"evaluation.tasks": ["suite"], "evaluation.fewshot": []}, "evaluation.fewshot", ["must not be empty"]),
    ({"training.lr": 0}, "training.lr", ["got 0", "above 0"]),
    ({"training.lr": "fast"}, "training.lr", ['got "fast"', "a number"]),
    (
        {"training.schedule": "cosine"},
        "training.schedule",
        ["got 'cosine'", "warmup-cosine, linear", "did you mean 'warmup-cosine'?"],
    ),
    ({"training.optimizer": "moun"}, "training.optimizer", ["got 'moun'", "adamw, adam", "did you mean 'muon'?"]),
    (
        {"training.optimizer": "muon", "model.layers": 0},
        "training.optimizer",
        ["is for the matrices of blocks, and this model has none", "got 'muon'", "adamw"],
    ),
    ({"training.momentum": 1.0}, "training.momentum", ["got 1.0", "below 1"]),
    (
        {"training.optimizer": "lion", "probes": {"second-moment": 4}},
        "probes.second-moment",
        ["needs an optimizer with a second moment; here: lion", "adamw or adam"],
    ),
    ({"training.ema": 1.0}, "training.ema", ["got 1.0", "below 1"]),
    ({"training.ema": -0.1}, "training.ema", ["got -0.1", "at least 0"]),
    ({"training.z_loss": -1e-4}, "training.z_loss", ["got -0.0001", "at least 0"]),
    ({"training.label_smoothing": 1.0}, "training.label_smoothing", ["got 1.0", "below 1"]),
    ({"training.decay_share": 1.5}, "training.decay_share", ["got 1.5", "at most 1"]),
    (
        {"training.schedule": "warmup-stable-decay", "training.decay_share": 0.9},
        "training.decay_share",
        ["leaves no room: 2 of 12 steps warm up and the rate falls in 11", "got 0.9", "up to 0.833"],
    ),
    ({"training.schedule": "linear", "training.warmup": 12}, "training.warmup", ["must be shorter than the run"]),
    ({"training.lr_scale.tables": 2.0}, "training.lr_scale.tables", ["unknown key", "embedding, head, matrices, rest"]),
    ({"training.lr_scale.matrices": -1}, "training.lr_scale.matrices", ["got -1", "at least 0"]),
    (
        {"training.lr_scale.head": 0.1},
        "training.lr_scale.head",
        ["has nothing to scale: the head is tied", "got 0.1"],
    ),
    (
        {"model.mup_base": 8, "training.optimizer": "sgd"},
        "model.mup_base",
        ["has no rule for the rates of 'sgd'", "got 8", "adamw, adam, lion, muon"],
    ),
    (
        {"model.mup_base": 8, "model.final_norm": False},
        "model.mup_base",
        ["scales a tied head by the gain of the final norm", "got 8", "tied = false"],
    ),
    (
        {"variants": {"none": {}, "m": {"training": {"optimizer": "muon"}, "model": {"layers": 0}}}},
        "variants.m.training.optimizer",
        ["is for the matrices of blocks", "got 'muon'"],
    ),
    ({"training.betas": [0.9, 1.0]}, "training.betas[1]", ["got 1.0", "below 1"]),
    ({"training.betas": [0.9]}, "training.betas[1]", ["is missing"]),
    ({"training.clip": -1}, "training.clip", ["got -1", "above 0.0 or off"]),
    ({"training.precision": "fp16"}, "training.precision", ['got "fp16"', "auto, fp32, tf32, bf16"]),
    ({"seeds": []}, "seeds", ["must not be empty"]),
    ({"seeds": [1, 2, 1, 2]}, "seeds", ["given more than once: 1, 2"]),
    ({"seeds": 3}, "seeds", ["got 3", "a list"]),
    ({"seeds": [1, -1]}, "seeds[1]", ["got -1", "at least 0"]),
    ({"seeds": [1, 1.5]}, "seeds[1]", ["got 1.5", "a whole number"]),
    ({"seeds": ...}, "seeds", ["is missing"]),
    ({"name": "!!"}, "name", ["at least one letter from a to z or a digit"]),
    ({"name": ""}, "name", ["must not be empty"]),
    (
        {"data.corpus": "tiny-shakespear"},
        "data.corpus",
        ["unknown corpus (got 'tiny-shakespear')", "did you mean 'tiny-shakespeare'?"],
    ),
    ({"data.tokenizer": "chr"}, "data.tokenizer", ["unknown tokenizer (got 'chr')", "did you mean 'char'?"]),
    ({"data.validation": 1.0}, "data.validation", ["got 1.0", "below 1"]),
    (
        {"execution.threads": "aut"},
        "execution.threads",
        ['got "aut"', "a whole number or auto", "did you mean 'auto'?"],
    ),
    ({"contrasts": [["none", "layernorm", "rmsnorm"]]}, "contrasts[0]", ["2", "3"]),
    (
        {"contrasts": [["none", "sqrt-d"]]},
        "contrasts[0]",
        ["unknown variant of this study (got 'sqrt-d')", "none, layernorm, rmsnorm"],
    ),
    ({"contrasts": [["none", "none"]]}, "contrasts[0]", ["compares a variant with itself"]),
    (
        {"criteria": [{"metric": "validation_los"}]},
        "criteria[0].metric",
        ["unknown metric (got 'validation_los')", "did you mean 'validation_loss'?"],
    ),
    (
        {"criteria": [{"metric": "perplexity", "regime": "hot"}]},
        "criteria[0].regime",
        ["unknown regime (got 'hot')", "default"],
    ),
    (
        {"criteria": [{"metric": "perplexity", "tets": "x"}]},
        "criteria[0].tets",
        ["unknown key", "did you mean 'test'?"],
    ),
    ({"criteria": [{"metric": "perplexity", "alpha": 5}]}, "criteria[0].alpha", ["got 5", "below 1"]),
    ({"sweep": {"lr": []}}, "sweep.lr", ["must not be empty"]),
    ({"sweep": {"lr": [1e-3, 1e-3]}}, "sweep.lr", ["given more than once: 0.001"]),
    ({"sweep": {"lr": [1e-3]}}, "sweep.lr", ["a sweep needs more than one rate (got 0.001)", "two rates or more"]),
    ({"sweep": {"lr": [1e-3, 0.0]}}, "sweep.lr[1]", ["got 0", "above 0"]),
    (
        {
            "sweep": {"lr": [1e-3, 1e-2], "selection_seeds": [9], "variant_lr": {"layernorm": [1e-2, 1.01e-2]}},
            "criteria": [{"metric": "validation_loss", "role": "primary", "regime": "tuned"}],
        },
        "sweep.variant_lr.layernorm",
        ["at least twice the lowest", "0.01 to 0.0101"],
    ),
    (
        {"sweep": {"lr": [1e-3, 1e-2], "variant_lr": {"layernrm": [1e-3, 1e-2]}}},
        "sweep.variant_lr",
        ["unknown variant", "layernorm"],
    ),
    (
        {"sweep": {"lr": [1e-3, 1e-2], "variant_lr": {"layernorm": [1e-3, 1e-2, 1e-1]}}},
        "sweep.variant_lr.layernorm",
        ["with the same effort", "got 3", "2"],
    ),
    (
        {
            "sweep": {"lr": [1e-3, 1e-2], "variant_lr": {"layernorm": [1e-2, 1e-1]}},
            "criteria": [{"metric": "lr_sensitivity", "regime": "sweep"}],
        },
        "criteria[0].regime",
        ["over the same rates", "sweep.variant_lr"],
    ),
    ({"sweep": {"lr": [1e-3, -1.0]}}, "sweep.lr[1]", ["got -1", "above 0"]),
    ({"sweep": {"selection_seeds": [9]}}, "sweep.lr", ["is missing"]),
    (
        {"seeds": [1, 2, 3], "sweep": {"lr": [1e-3, 1e-2], "selection_seeds": [2, 9]}},
        "sweep.selection_seeds",
        ["other seeds", "got 2"],
    ),
    ({"sweep": {"lr": [1e-3, 1e-2], "selection_seeds": [9, 9]}}, "sweep.selection_seeds", ["more than once: 9"]),
    (
        {"sweep": {"lr": [1e-3, 1e-2], "seeds": [9, 10, 11], "selection_seeds": [10]}},
        "sweep.selection_seeds",
        ["other seeds", "got 10"],
    ),
    ({"sweep": {"lr": [1e-3, 1e-2], "seeds": []}}, "sweep.seeds", ["must not be empty"]),
    (
        {"sweep": {"lr": [1e-3, 1e-2], "seeds": [9], "selection_seeds": [10]}},
        "sweep.seeds",
        ["only one seed is left", "got 9"],
    ),
    ({"seeds": [1], "sweep": {"lr": [1e-3, 1e-2], "selection_seeds": [10]}}, "seeds", ["only one seed is left"]),
    ({"regimes": {"tuned": {"training": {"lr": 1.0}}}}, "regimes", ["'tuned'", "[sweep]", "another name"]),
    (
        {"criteria": [{"metric": "perplexity", "regime": "tuned"}]},
        "criteria[0].regime",
        ["needs [sweep] with selection_seeds"],
    ),
    (
        {"sweep": {"lr": [1e-3, 1e-2]}, "criteria": [{"metric": "perplexity", "regime": "sweep"}]},
        "criteria[0].metric",
        ["not measured over a sweep", "lr_sensitivity, unstable_share"],
    ),
    (
        {"sweep": {"lr": [1e-3, 1e-2]}, "criteria": [{"metric": "lr_sensitivity"}]},
        "criteria[0].metric",
        ["regime = 'sweep'"],
    ),
    (
        {"criteria": [{"metric": "steps_to_loss"}]},
        "criteria[0].metric",
        ["stability.loss_threshold"],
    ),
    (
        {"criteria": [{"metric": "macro_accuracy", "role": "guard", "margin": 0.01}]},
        "criteria[0].metric",
        ["set evaluation.tasks", "macro_accuracy"],
    ),
    (
        {"criteria": [{"metric": "validation_loss", "variance": "shared"}], "variants": ["none", "layernorm"]},
        "criteria[0].variance",
        ["role = 'primary'", "correction = 'bonferroni'", "two variants or more", "(got 'shared'); allowed: own"],
    ),
    (
        {"criteria": [SHARED | {"test": "sign-flip"}], **FIVE_ARMS, "seeds": list(range(1, 9))},
        "criteria[0].variance",
        ["needs test = 'paired-t'"],
    ),
    *[
        ({"criteria": [{**SHARED, **wrong}], **FIVE_ARMS}, "criteria[0].variance", [says])
        for wrong, says in [
            ({"correction": "holm"}, "needs correction = 'bonferroni'"),
            ({"role": "guard", "margin": 0.01}, "needs role = 'primary'"),
            ({"contrast": ["rmsnorm", "none"]}, "no contrast"),
            ({"alpha": 0.01}, "alpha = 0.05 or more"),
            ({"metric": "mean_embedding_norm"}, "a better direction"),
        ]
    ],
    (
        {
            "criteria": [SHARED, {**SHARED, "regime": "hot", "variance": "own"}],
            "regimes": {"hot": {"training": {"lr": 0.1}}},
            **FIVE_ARMS,
        },
        "criteria[0].variance",
        ["no other primary criterion"],
    ),
    *[
        (
            {"criteria": [SHARED], "variants": FIVE_ARMS["variants"][: arms + 1], "seeds": seeds},
            "criteria[0].variance",
            says,
        )
        for arms, seeds, says in [
            (2, [1, 2, 3, 4, 5], ["6 seeds or more with 2 variants"]),
            (3, [1, 2, 3], ["4 seeds or more with 3 variants"]),
            (4, [1, 2], ["3 seeds or more with 4 variants"]),
        ]
    ],
    ({"stability": {"loss_threshold": 0}}, "stability.loss_threshold", ["got 0", "above 0"]),
    ({"regimes": {"Hot!": {}}}, "regimes", ["'Hot!'", "lower-case letters, digits and dashes"]),
    ({"regimes": {"default": {"training": {"lr": 1.0}}}}, "regimes", ["'default'", "another name"]),
    ({"regimes": {"hot": 3}}, "regimes.hot", ["got 3", "a table"]),
    ({"regimes": {"hot": {"training": {"lr": -1}}}}, "regimes.hot.training.lr", ["got -1", "above 0"]),
    (
        {"regimes": {"hot": {"training": {"stepz": 1}}}},
        "regimes.hot.training.stepz",
        ["unknown key", "did you mean 'steps'?"],
    ),
    (
        {"regimes": {"hot": {"model": {"heads": 3}}}},
        "regimes.hot.model.heads",
        ["3 does not divide width = 16"],
    ),
    (
        {"regimes": {"hot": {"training": {"steps": 1}}}},
        "regimes.hot.training.warmup",
        ["shorter than the run (got 2)", "below 1"],
    ),
    ({"regimes": {"hot": {"data": {}}}}, "regimes.hot.data", ["unknown key", "meaning, model, training"]),
    ({"probes": {"cosine": 0}}, "probes.cosine", ["got 0", "at least 1"]),
]


@pytest.mark.parametrize(("changes", "key", "says"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_a_mistake_is_named_with_its_key_value_and_what_is_allowed(study_table, changes, key, says):
    found = problems(study_table(changes))
    assert list(found) == [key]
    assert found[key].startswith(f"{key}: ")
    for words in says:
        assert words in found[key]


@pytest.mark.parametrize(("arms", "seeds"), [(2, 6), (3, 4), (4, 3)])
def test_a_shared_variance_is_registered_from_so_many_seeds(study_table, arms, seeds):
    changes = {"variants": FIVE_ARMS["variants"][: arms + 1], "seeds": [*range(1, seeds + 1)], "criteria": [SHARED]}
    assert parse_study(study_table(changes)).criteria[0].variance == "shared"


def test_seeds_may_be_given_as_a_row(study_table):
    study = parse_study(study_table({"seeds": {"first": 3, "count": 4}}))
    assert study.seeds == (3, 4, 5, 6)
    assert study.hash == parse_study(study_table({"seeds": [3, 4, 5, 6]})).hash
    sweep = {"lr": [1e-3, 1e-4], "selection_seeds": {"first": 10, "count": 2}}
    assert parse_study(study_table({"sweep": sweep})).sweep_seeds() == (10, 11, 1, 2)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seeds": {"first": 1, "count": 0}}, "a range of seeds is {first = 1, count = 1000}"),
        ({"seeds": {"first": 1}}, "a range of seeds is"),
        ({"seeds": {"first": 1, "count": 10**9}}, "count 1 to 100000"),
        ({"seeds": {"first": True, "count": 2}}, "a range of seeds is"),
        ({"seeds": {"first": -1, "count": 2}}, "seeds[0]: is out of range"),
        (
            {"sweep": {"lr": [1e-3, 1e-4], "selection_seeds": {"first": 2, "count": 5}}},
            "than those it is judged on (got 2)",
        ),
        ({"model.redraw": 1}, "model.redraw: is set by variants"),
    ],
)
def test_a_wrong_row_of_seeds_and_a_redraw_of_the_study_are_named(study_table, changes, says):
    with pytest.raises(StudyError) as caught:
        parse_study(study_table(changes))
    assert says in str(caught.value)


def test_all_problems_of_a_file_are_reported_at_once(study_file):
    path = study_file(
        {
            "name": "",
            "variants": ["none", "rmsnrom"],
            "seeds": [1, 1],
            "model.width": -1,
            "model.colour": "red",
            "training.lr": "x",
            "training.schedule": "lineal",
            "regimes.hot.training.clip": -1,
            "criteria": [{"metric": "loss_"}],
        }
    )
    with pytest.raises(StudyError) as caught:
        load_study(path)
    assert {problem.key for problem in caught.value.problems} == {
        "name",
        "variants[1]",
        "seeds",
        "model.width",
        "model.colour",
        "training.lr",
        "training.schedule",
        "regimes.hot.training.clip",
        "criteria[0].metric",
    }
    assert str(caught.value).startswith(f"{path}: 9 problems\n")


def test_an_unknown_corpus_is_reported_together_with_the_rest(study_table):
    found = problems(study_table({"data.corpus": "tiny-shakespear", "training.steps": "x"}))
    assert set(found) == {"data.corpus", "training.steps"}


def test_an_empty_file_lists_all_that_is_missing():
    assert set(problems({})) == {"name", "baseline", "variants", "seeds", "model", "training"}
    assert all(text.endswith("is missing") for text in problems({}).values())


def test_a_list_with_one_wrong_element_is_not_called_empty(study_table):
    assert list(problems(study_table({"seeds": [-1]}))) == ["seeds[0]"]


def test_a_number_that_is_not_finite_is_refused_in_a_sentence(study_table):
    text = problems(study_table({"training.lr": float("nan")}))["training.lr"]
    assert "got NaN" in text
    assert "training.lr: a finite number" not in text
    assert "finite" in text


def test_a_token_budget_below_one_step_offers_two_different_examples(study_table):
    text = problems(study_table({"training.steps": ..., "training.tokens": 10}))["training.tokens"]
    assert "64 or 128" in text


def test_a_date_is_no_text():
    table = tomllib.loads("question = 2020-01-01")
    found = problems(table)
    assert "question" in found


def test_a_criterion_cannot_be_asked_of_a_setting_of_every_step(study_table):
    assert list(problems(study_table({"criteria": [{"metric": "lr"}]}))) == ["criteria[0].metric"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.layers", 100_000),
        ("model.width", 10**12),
        ("model.context", 2**31),
        ("training.batch", 10**18),
        ("training.steps", 10**12),
        ("training.tokens", 10**18),
        ("execution.stack_width", 2**31),
        ("seeds", [2**63]),
    ],
)
def test_a_number_beyond_any_use_is_refused_at_once(study_table, key, value):
    (found,) = problems(study_table({key: value} | ({"training.steps": ...} if key == "training.tokens" else {})))
    assert found.startswith(key)


def test_heads_that_do_not_divide_a_prime_width_are_told_the_nearest_that_do(study_table):
    found = problems(study_table({"model.width": 131_071, "model.heads": 65_536}))
    assert "the nearest that do: 1 and 131071" in found["model.heads"]


@pytest.mark.parametrize("depth", [21, 900, 30_000])
@pytest.mark.parametrize("signs", ["[]", "{}"])
def test_a_file_nested_too_deeply_is_refused(tmp_path, depth, signs):
    opening = signs[0] + ("a = " if signs == "{}" else "")
    path = tmp_path / "deep.toml"
    path.write_text(f"question = {opening * depth}1{signs[1] * depth}\n")
    with pytest.raises(StudyError, match="tables and lists are nested"):
        load_study(path)


# --- junk -------------------------------------------------------------------------------------------------

KEYS = st.sampled_from(
    (
        *Study.model_fields,
        *ModelConfig.model_fields,
        *FrontEnd.model_fields,
        *TrainingConfig.model_fields,
        *("corpus", "tokenizer", "metric", "contrast", "regime", "selection_seeds", "hot", "default"),
    )
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.integers(-(10**4), 10**4),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["none", "layernorm", "char-mini", "tiny-shakespeare", "char", "off", "auto", "perplexity", "hot"]),
    st.dates(),
)
JUNK = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=6), inner, max_size=5),
    max_leaves=12,
)
VALID = {
    "name": "t",
    "baseline": "none",
    "variants": ["none", "layernorm"],
    "seeds": [1],
    "contrasts": [["none", "layernorm"]],
    "model": {"layers": 1, "width": 16, "heads": 2, "context": 16, "front": {"norm": "none"}},
    "training": {"steps": 12, "batch": 4, "warmup": 2, "betas": [0.9, 0.95]},
    "data": {"corpus": "./x.txt"},
    "regimes": {"hot": {"model": {"dropout": 0.1}, "training": {"lr": 1e-2}}},
    "sweep": {"lr": [1e-3, 1e-2], "seeds": [8, 9], "selection_seeds": [7]},
    "criteria": [{"metric": "perplexity"}],
}


def answered(table: dict) -> None:
    """A study or a StudyError with readable problems; any other exception fails the test."""
    study, found = None, ()
    try:
        study = parse_study(table)
    except StudyError as error:
        found = error.problems
    assert all(problem.message for problem in found)
    assert bool(found) == (study is None)
    if study is not None:
        assert parse_study(study.model_dump(mode="json")) == study


NUMBER = "9" * 5000


def test_a_number_that_python_does_not_read_is_refused_in_a_file_and_in_set(study_file, tmp_path):
    path = tmp_path / "long.toml"
    path.write_text(f"steps = {NUMBER}")
    with pytest.raises(StudyError, match="holds a whole number of more than 4,300 digits"):
        load_study(path)
    with pytest.raises(StudyError, match=r"training\.steps: holds a whole number of more than 4,300 digits"):
        load_study(study_file(), [f"training.steps={NUMBER}"])


JUNK_SETTINGS = settings(
    derandomize=True, deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow]
)


@JUNK_SETTINGS
@given(st.dictionaries(KEYS | st.text(max_size=6), JUNK, max_size=8))
def test_nested_junk_is_only_ever_a_study_error(table):
    answered(table)


@JUNK_SETTINGS
@given(st.data())
def test_a_valid_study_with_junk_anywhere_in_it_is_only_ever_a_study_error(data):
    table = json.loads(json.dumps(VALID))
    here = table
    while True:
        keys = list(range(len(here))) if isinstance(here, list) else list(here)
        assume(keys)
        key = data.draw(st.sampled_from(keys))
        if isinstance(here[key], dict | list) and data.draw(st.booleans()):
            here = here[key]
            continue
        here[key] = data.draw(JUNK)
        break
    answered(table)


def test_the_study_that_junk_is_put_into_is_valid_itself():
    assert parse_study(VALID).regime_names() == ("default", "hot")


# --- files and --set --------------------------------------------------------------------------------------


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(StudyError) as caught:
        load_study(path, overrides)
    return str(caught.value)


def test_a_study_file_that_cannot_be_read_is_named(tmp_path):
    assert refusal(tmp_path / "no.toml") == f"{tmp_path / 'no.toml'}: 1 problem\n  - no such study file"
    assert "is a folder, not a study file" in refusal(tmp_path)
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'name = "caf\xe9"')
    assert "is not UTF-8 at byte 11" in refusal(latin)
    broken = tmp_path / "broken.toml"
    broken.write_text('name = "a"\nseeds = [1,\nbaseline')
    assert "is not TOML" in refusal(broken)
    assert "line 3" in refusal(broken)
    broken.write_text("\ufeffname = 'marked as some editors do'\n")
    assert "is not TOML" not in refusal(broken)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_study_file_without_permission_is_named(study_file):
    path = study_file()
    path.chmod(0)
    assert "cannot be read: Permission denied" in refusal(path)


def test_set_reaches_nested_keys_lists_and_new_tables(study_file):
    study = load_study(
        study_file(),
        [
            "training.steps=100",
            "seeds=[4, 5, 6]",
            "training.schedule=constant",
            "name = other",
            "model.tied=false",
            "regimes.hot.training.lr=1e-2",
            "sweep={lr = [1e-3, 3e-3]}",
            "model.front.place=token",
            "training={batch = 8}",
            'data.corpus="./elsewhere.txt"',
        ],
    )
    assert study.training.steps == 100
    assert study.seeds == (4, 5, 6)
    assert study.training.schedule == "constant"
    assert study.name == "other"
    assert study.model.tied is False
    assert study.in_regime("hot")[1].lr == 1e-2
    assert study.sweep is not None
    assert study.sweep.lr == (1e-3, 3e-3)
    assert study.model.front.place == "token"
    assert (study.training.batch, study.training.warmup) == (8, 2)


def test_a_later_set_wins(study_file):
    assert load_study(study_file(), ["seeds=[4]", "seeds=[5]"]).seeds == (5,)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("training.steps", "expected key=value, for example --set training.steps=100"),
        ("=3", "expected key=value"),
        ("training..steps=3", "expected key=value"),
        ("training.stps=3", "training.stps: unknown key"),
        ("training.stps=3", "did you mean 'steps'?"),
        ("name.first=x", "'name' is a value, not a table"),
        ("seeds.0=3", "'seeds' is a value, not a table"),
        ("training.steps=many", 'got "many"'),
        ("training.steps=", 'got ""'),
        ("training=5", "training: has the wrong type (got 5); allowed: a table"),
        ("extra.new=1", "extra: unknown key"),
    ],
)
def test_a_wrong_set_is_refused(study_file, override, says):
    assert says in refusal(study_file(), override)


def test_a_corpus_given_by_path_is_taken_relative_to_the_study_file(study_file, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    path = study_file({"data.corpus": "./texts/a.txt"})
    assert load_study(path).data.corpus == str(tmp_path / "texts" / "a.txt")
    assert load_study(study_file({"data.corpus": "tiny-shakespeare"})).data.corpus == "tiny-shakespeare"


def test_a_path_that_no_system_can_hold_is_a_study_error(study_file):
    path = study_file()
    text = path.read_text()
    path.write_text(text.replace("[data]\ncorpus = ", '[data]\ncorpus = "./a\\u0000b" # '))
    assert path.read_text() != text
    assert "data.corpus" in refusal(path)


# --- regimes ----------------------------------------------------------------------------------------------


def test_a_regime_overrides_only_what_it_names(study_table):
    table = study_table(
        {
            "model.front": {"place": "token"},
            "regimes": {"hot": {"model": {"dropout": 0.1, "front": {"place": "sum"}}, "training": {"lr": 0.1}}},
        }
    )
    study = parse_study(table)
    model, training = study.in_regime("hot")
    assert study.regime_names() == ("default", "hot")
    assert study.in_regime("default") == (study.model, study.training)
    assert model == study.model.changed(dropout=0.1, front=study.model.front.changed(place="sum"))
    assert training == study.training.changed(lr=0.1)


def test_a_regime_that_gives_tokens_replaces_the_steps_of_the_study(study_table):
    study = parse_study(study_table({"regimes": {"long": {"training": {"tokens": 640}}}}))
    model, training = study.in_regime("long")
    assert (training.steps, training.tokens) == (None, 640)
    assert steps_of(model, training) == 10
    assert steps_of(study.model, study.training) == 12


def test_a_regime_with_a_preset_has_the_shape_of_that_preset(study_table):
    study = parse_study(study_table({"regimes": {"big": {"model": {"preset": "char-mini"}}}}))
    model, _ = study.in_regime("big")
    assert (model.layers, model.width, model.heads, model.context) == (8, 128, 8, 128)


def test_a_regime_with_a_preset_and_its_heads_is_a_study_or_a_study_error(study_table):
    answered(study_table({"regimes": {"big": {"model": {"preset": "gpt2-small", "heads": 12}}}}))


def test_a_preset_fills_what_is_not_given():
    model = parse_study({**VALID, "model": {"preset": "char-mini", "context": 64}}).model
    assert (model.layers, model.width, model.heads, model.context) == (8, 128, 8, 64)


# --- what a study is --------------------------------------------------------------------------------------


def test_the_hash_knows_every_setting_and_not_how_it_was_written(study_table, study_file):
    table = study_table()
    study = parse_study(table)
    assert load_study(study_file()).hash == study.hash
    assert parse_study({**table, "evaluation": {"fewshot": [0]}}).hash == study.hash
    for changes in ({"seeds": [1, 3]}, {"training.eps": 1e-7}, {"question": "?"}, {"data.validation": 0.2}):
        assert parse_study(study_table(changes)).hash != study.hash


def test_the_criteria_hash_knows_only_what_was_registered(study_table):
    study = parse_study(study_table({"criteria": [{"metric": "perplexity"}]}))
    same = parse_study(study_table({"criteria": [{"metric": "perplexity"}], "training.lr": 0.1}))
    other = parse_study(study_table({"criteria": [{"metric": "perplexity", "alpha": 0.01}]}))
    assert same.criteria_hash == study.criteria_hash
    assert other.criteria_hash != study.criteria_hash


def test_a_study_cannot_be_changed(study_table):
    study = parse_study(study_table())
    with pytest.raises(ValueError, match="frozen"):
        study.name = "other"
    with pytest.raises(ValueError, match="frozen"):
        study.model.width = 32


@given(st.text(max_size=80))
def test_a_slug_is_a_safe_folder_name(text):
    name = slug(text)
    assert len(name) <= 60
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert slug(name) == name


# --- the studies that are shipped -------------------------------------------------------------------------


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_shipped_study_is_valid_and_opens_with_command_cost_and_finding(path):
    study = load_study(path)
    assert study.name == path.stem
    assert 0 < len(study.question) <= LINE
    assert study.baseline == study.variants[0]
    assert study.training.precision in ("auto", "fp32")
    primary = [criterion for criterion in study.criteria if criterion.role == "primary"]
    at_scale = study.data.tokenizer == "gpt2" and study.evaluation.tasks  # accuracy is the primary metric there
    assert {criterion.metric for criterion in primary} == {"macro_accuracy" if at_scale else "validation_loss"}
    assert len({criterion.regime for criterion in primary}) == len(primary)
    head = [line for line in path.read_text().split("\n\n")[0].splitlines() if line]
    assert all(line.startswith("#") for line in head)
    comment = "\n".join(head)
    assert f"ablationlab run studies/{path.name}" in comment
    for word in ("Cost:", "Shows:"):
        assert len(comment.split(word)[1].split()) > 3, f"{path.name} says too little after {word}"


def test_the_default_study_is_the_one_of_the_protocol():
    study = load_study(next(path for path in STUDIES if path.stem == "embedding-norm"))
    assert len(study.variants) * len(study.seeds) == 15
    assert (study.training.steps, study.training.schedule, study.training.warmup) == (
        300,
        "warmup-cosine",
        30,
    )
    assert study.training.batch * study.model.context == 2048
    assert (study.model.layers, study.model.width, study.model.heads) == (8, 128, 8)
    assert study.data.corpus == "tiny-shakespeare"
    assert study.contrasts == (("layernorm", "rmsnorm"),)


def test_the_quick_study_has_the_same_shape_and_is_tiny():
    studies = {path.stem: load_study(path) for path in STUDIES}
    quick, full = studies["quick"], studies["embedding-norm"]
    assert (quick.variants, quick.contrasts, quick.training.schedule) == (
        full.variants,
        full.contrasts,
        "warmup-cosine",
    )
    assert quick.training.steps is not None
    assert quick.training.steps <= 100
    assert quick.model.width <= 64


def test_the_stability_study_sweeps_eight_rates_and_ships_every_stress_regime():
    studies = {path.stem: load_study(path) for path in STUDIES}
    full, quick = studies["embedding-norm-stability"], studies["embedding-norm-stability-quick"]
    assert full.variants == quick.variants == ("none", "layernorm", "rmsnorm")
    assert full.sweep is not None
    assert (len(full.sweep.lr), min(full.sweep.lr), max(full.sweep.lr)) == (8, 1e-4, 3e-1)
    assert len(full.judging_seeds()) >= 5
    assert {"high-rate", "no-warmup", "deep", "large-init", "bf16", "no-clip"} <= set(full.regimes)
    assert full.in_regime("no-warmup")[1].warmup == 0
    assert full.in_regime("no-clip")[1].clip == "off"
    assert full.in_regime("bf16")[1].precision == "bf16"
    assert full.in_regime("deep")[0].layers == 24
    assert full.in_regime("large-init")[0].token_init_std == 1.0
    for study in (full, quick):
        asked = {(criterion.metric, criterion.regime) for criterion in study.criteria}
        assert {("lr_sensitivity", "sweep"), ("unstable_share", "sweep"), ("validation_loss", "tuned")} <= asked
    assert quick.model.width <= 64


@pytest.mark.parametrize("name", ["embedding-norm-factorial", "embedding-norm-factorial-quick"])
def test_the_factorial_study_crosses_placement_and_start(name):
    study = load_study(next(path for path in STUDIES if path.stem == name))
    wanted = ("none", "layernorm", "layernorm-nobias", "rmsnorm", "center-only", "sqrt-d-scale")
    assert study.variants == wanted
    models = [study.in_regime(regime)[0] for regime in study.regime_names()]
    cells = {(model.front.place, model.token_init_std) for model in models}
    assert cells == {(place, std) for place in ("sum", "token") for std in (0.02, 1.0)}
    for arm in wanted[1:]:
        made = {(model.token_init_std, VARIANTS[arm].apply(model).front.place) for model in models}
        assert len(made) == 4, f"{arm} is another model in every cell"


def test_the_pilot_is_shorter_and_at_a_constant_rate():
    pilots: list[Study] = [load_study(path) for path in STUDIES if path.stem.endswith("pilot")]
    for pilot in pilots:
        assert (pilot.training.steps, pilot.training.schedule, len(pilot.seeds)) == (150, "constant", 3)
    assert {path.stem for path in STUDIES} >= {"embedding-norm", "quick"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"question": "x" * 10_001}, "question: has 10,001 characters; allowed: up to 10,000"),
        ({"variants": ["none", "x" * 20_000]}, r"variants\[1\]: has 20,000 characters"),
        ({"seeds": list(range(20_001))}, "seeds: has 20,001 items; allowed: up to 20,000"),
        ({"variants": [f"v{number}" for number in range(1001)]}, "variants: has 1,001 items; allowed: up to 1,000"),
        ({"regimes": {"x" * 10_001: {}}}, "regimes: has a key that is too long"),
        ({"noise": {"init": [[0] * 20_000] * 6}}, "noise.init.*has 20,000 items"),
    ],
)
def test_a_value_beyond_any_study_is_refused_before_it_is_looked_into(study_table, changes, says):
    with pytest.raises(StudyError, match=says):
        parse_study(study_table(changes))


def test_many_problems_are_a_message_of_a_page_or_two(study_table):
    with pytest.raises(StudyError, match=r"  - and \d+ more$") as refused:
        parse_study(study_table({"variants": list(range(1000)), "contrasts": list(range(1000))}))
    assert len(refused.value.problems) > 1000
    assert len(str(refused.value)) < 20_000
    with pytest.raises(StudyError) as refused:
        parse_study(study_table({"variants": [f"variant-{number}" for number in range(1000)]}))
    assert len(str(refused.value)) < 300_000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"seeds = [{'1,' * 200_000}]", "has 400,010 bytes; no study file has more than 262,144"),
        (f"a{'.a' * 100_000} = 1", "nested too deeply"),  # tomllib would take minutes
        (f'x = {{"a"{" . b" * 30_000} = 1}}', "nested too deeply"),
    ],
)
def test_a_study_file_that_would_take_minutes_to_parse_is_refused(tmp_path, text, says):
    path = tmp_path / "long.toml"
    path.write_text(text)
    with pytest.raises(StudyError, match=says):
        load_study(path)
