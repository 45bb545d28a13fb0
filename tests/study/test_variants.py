from __future__ import annotations

import pytest

from ablationlab.analysis.wording import ledger_words
from ablationlab.core.errors import PlanError, StudyError
from ablationlab.data.corpus import load_corpus
from ablationlab.model.parameters import matmul_flops_per_token, parameters
from ablationlab.records.analysis import LedgerInput
from ablationlab.records.plan import Declaration
from ablationlab.records.settings import FrontEnd, ModelConfig, TrainingConfig, VariantTable, flattened
from ablationlab.records.storage import ResultsFolder
from ablationlab.study.differences import study_differences
from ablationlab.study.ledger import planned_inputs
from ablationlab.study.load import parse_study
from ablationlab.study.plan import make_plan, seal_plan
from ablationlab.study.variants import VARIANTS, Variant, is_baseline_again, variants_of

MODEL = ModelConfig(layers=2, width=16, heads=2, context=8, vocabulary=11)
FRONTS = {
    "none": {},
    "layernorm": {"norm": "layernorm", "gain": True, "bias": True, "eps": 1e-5},
    "rmsnorm": {"norm": "rmsnorm", "gain": True, "eps": 1e-6},
    "layernorm-token": {"norm": "layernorm", "gain": True, "bias": True, "eps": 1e-5, "place": "token"},
    "rmsnorm-token": {"norm": "rmsnorm", "gain": True, "eps": 1e-6, "place": "token"},
    "rmsnorm-nogain": {"norm": "rmsnorm", "eps": 1e-6},
    "layernorm-nobias": {"norm": "layernorm", "gain": True, "eps": 1e-5},
    "center-only": {"norm": "center"},
    "sqrt-d": {"scale": "sqrt-width", "place": "token"},
    "sqrt-d-scale": {"scale": "sqrt-width"},
    "gradient-shrink": {"gradient": 0.1},
}


@pytest.mark.parametrize("name", FRONTS)
def test_a_front_end_variant_sets_exactly_this_front_end(name):
    changed = VARIANTS[name].apply(MODEL)
    assert changed.front == FrontEnd(**FRONTS[name])
    assert changed.changed(front=MODEL.front) == MODEL


def test_the_other_variants_change_one_setting_each():
    assert VARIANTS["token-init-1"].apply(MODEL) == MODEL.changed(token_init_std=1.0)
    assert VARIANTS["untied"].apply(MODEL) == MODEL.changed(tied=False)
    assert set(VARIANTS) == {*FRONTS, "token-init-1", "untied"}


def declared(name: str) -> Declaration:
    return VARIANTS[name].declared([(MODEL, VARIANTS[name].apply(MODEL))])


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_declares_every_setting_it_changes(name):
    arm = VARIANTS[name]
    before, after = (flattened(model.model_dump()) for model in (MODEL, arm.apply(MODEL)))
    differing = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert (name == "none") == (not differing)
    assert all(declared(name).covers_setting(f"model.{key}") for key in differing)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_declares_every_parameter_it_adds_or_starts_elsewhere(name):
    arm = VARIANTS[name]
    before = {p.name: p for p in parameters(MODEL)}
    after = {p.name: p for p in parameters(arm.apply(MODEL))}
    differing = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert {key for key in {*before, *after} if declared(name).covers_parameter(key)} == differing


@pytest.mark.parametrize("name", VARIANTS)
def test_no_variant_costs_more_matrix_products(name):
    assert matmul_flops_per_token(VARIANTS[name].apply(MODEL)) == matmul_flops_per_token(MODEL)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_leaves_the_model_it_was_given_alone_and_is_idempotent(name):
    before = MODEL.model_dump()
    once = VARIANTS[name].apply(MODEL)
    assert VARIANTS[name].apply(once) == once
    assert MODEL.model_dump() == before


def test_a_variant_explains_itself():
    assert all(arm.name == name and arm.table.formula and arm.table.about for name, arm in VARIANTS.items())
    assert VARIANTS["rmsnorm"].table.formula.startswith("RMSNorm(E_tok + E_pos)")


def test_ownership_goes_by_table_and_by_pattern_not_by_prefix_of_a_word():
    arm = Declaration(settings=("model.front",), parameters=("front.gain",))
    assert arm.covers_setting("model.front")
    assert arm.covers_setting("model.front.norm")
    assert not arm.covers_setting("model.frontier")
    assert not arm.covers_setting("training.front")
    assert arm.covers_parameter("front.gain")
    assert not arm.covers_parameter("blocks.0.norm1.gain")


def test_a_name_is_given_once():
    with pytest.raises(ValueError, match="variant 'layernorm' is registered twice"):
        VARIANTS.add("layernorm", Variant("layernorm", VariantTable()))
    assert VARIANTS["layernorm"].table.formula.startswith("LN(")


# --- [variants.NAME] of a study file ----------------------------------------------------------------------


@pytest.fixture
def plan_of(study_table):
    def make(tables: dict, **changes):
        study = parse_study(study_table({"variants": {"none": {}, **tables}, **changes}))
        return make_plan(study, load_corpus(study.data), "cpu")

    return make


def test_a_table_changes_what_it_writes_and_nothing_else(plan_of):
    plan = plan_of(
        {
            "small": {"from": "rmsnorm", "model": {"front": {"scale": 0.03}}},
            "no-decay": {"training": {"weight_decay": 0.0, "betas": [0.9, 0.99]}},
        }
    )
    runs = {run.variant: run for run in plan.runs if run.seed == 1}
    base = runs["none"]
    assert runs["small"].model == VARIANTS["rmsnorm"].apply(base.model).changed(
        front=FrontEnd(norm="rmsnorm", gain=True, eps=1e-6, scale=0.03)
    )
    assert runs["small"].training == base.training
    assert runs["no-decay"].training == base.training.changed(weight_decay=0.0, betas=(0.9, 0.99))
    assert runs["no-decay"].model == base.model
    assert plan.variants["no-decay"].settings == ("training.weight_decay", "training.betas")
    assert plan.variants["no-decay"].parameters == ()
    assert plan.variants["small"].parameters == ("front.gain",)
    assert "model.front.scale" in plan.variants["small"].settings


def test_a_table_without_words_is_described_by_what_it_writes(plan_of):
    plan = plan_of({"small": {"from": "rmsnorm", "model": {"front": {"scale": 0.03}}}})
    assert plan.variants["small"].about == "rmsnorm with model.front.scale = 0.03"
    assert plan.variants["small"].formula == "", "that of rmsnorm would not be true of it"


def test_parameters_that_differ_follow_from_the_settings(plan_of):
    plan = plan_of({"fat": {"model": {"mlp_ratio": 6}}, "deep": {"model": {"layers": 2}}}, **{"model.layers": 3})
    mlp = ("up.weight", "up.bias", "down.weight")
    assert plan.variants["fat"].parameters == tuple(f"blocks.*.mlp.{part}" for part in mlp)
    assert plan.variants["fat"].flops
    deep = plan.variants["deep"]
    assert deep.covers_parameter("blocks.2.norm1.gain")
    assert not deep.covers_parameter("blocks.1.norm1.gain")
    assert deep.covers_parameter("blocks.0.mlp.down.weight"), "fewer layers start it larger"


def test_another_batch_trains_on_as_many_tokens(plan_of):
    plan = plan_of({"large": {"training": {"batch": 8}}})
    budgets = {run.variant: run.budget for run in plan.runs}
    assert (budgets["none"].steps, budgets["large"].steps) == (12, 6)
    assert budgets["none"].tokens == budgets["large"].tokens == 12 * 4 * 16


def test_a_batch_that_does_not_fit_the_tokens_names_those_that_do(plan_of):
    with pytest.raises(PlanError, match=r"'odd': 768 tokens.*5 x 16 tokens. Set training.tokens to a multiple of 320"):
        plan_of({"odd": {"training": {"batch": 5}}})


def test_a_rate_may_be_what_a_variant_changes(plan_of):
    plan = plan_of({"hot": {"training": {"lr": 0.01}}})
    assert {run.variant: run.lr for run in plan.runs} == {"none": 1e-3, "hot": 0.01}
    assert {run.role for run in plan.runs} == {"compared"}


def test_runs_share_a_stack_only_where_their_settings_allow_it(study_table):
    tables = {
        "none": {},
        "rmsnorm": {},
        "small": {"from": "rmsnorm", "model": {"front": {"scale": 0.1}}},
        "no-decay": {"training": {"weight_decay": 0.0}},
        "bytes": {"data": {"tokenizer": "byte"}},
    }
    study = parse_study(study_table({"variants": tables, "execution.stack_width": 8}))
    corpus = load_corpus(study.data)
    other = load_corpus(study.data.changed(tokenizer="byte"))
    plan = make_plan(study, corpus, "cpu", corpora={"bytes": other})
    together = [{plan.run(run_id).variant for run_id in stack} for stack in plan.stacks]
    assert together == [{"none", "rmsnorm", "small"}, {"no-decay"}, {"bytes"}]
    arm = next(run for run in plan.runs if run.variant == "bytes")
    assert arm.model.vocabulary == other.record.vocabulary
    assert plan.corpus_of("bytes") == other.record
    assert plan.variants["bytes"].covers_setting("model.vocabulary")
    assert plan.variants["bytes"].covers_parameter("tok.weight")


BAD = [
    ({"x": {"model": {"widht": 3}}}, "variants.x.model.widht", "did you mean 'width'?"),
    ({"x": {"model": {"front": {"norm": "rmsnrm"}}}}, "variants.x.model.front.norm", "did you mean 'rmsnorm'?"),
    ({"x": {"training": {"weight_decay": -1}}}, "variants.x.training.weight_decay", "got -1"),
    ({"x": {"data": {"tokenizer": "chr"}}}, "variants.x.data.tokenizer", "did you mean 'char'?"),
    ({"x": {"from": "rmsnrm"}}, "variants.x.from", "did you mean 'rmsnorm'?"),
    ({"x": {"modle": {}}}, "variants.x.modle", "did you mean 'model'?"),
    ({"x": {"about": "nothing"}}, "variants.x", "changes nothing; write what it changes, such as training."),
    ({"rmsnrm": {}}, "variants.rmsnrm", "did you mean 'rmsnorm'?"),
    ({"x": {"model": {"preset": "gpt2-small"}}}, "variants.x.model.preset", "write its settings"),
    ({"layernorm": {"model": {"tied": False}}}, "variants.layernorm", "is a known variant"),
    ({"x": {"from": "y"}, "y": {"from": "x"}}, "variants.x.from", "x -> y -> x"),
    ({"a/b": {"model": {"tied": False}}}, "variants.a/b", "is not a valid name of a variant"),
]


@pytest.mark.parametrize(("tables", "key", "text"), BAD, ids=[key for _, key, _ in BAD])
def test_a_mistake_in_a_table_is_named_where_it_is_written(study_table, tables, key, text):
    with pytest.raises(StudyError) as caught:
        parse_study(study_table({"variants": {"none": {}, **tables}}))
    assert text in {problem.key: str(problem) for problem in caught.value.problems}[key]


def test_an_empty_table_is_the_studys_own_settings_once_more(study_table):
    study = parse_study(study_table({"baseline": "plain", "variants": {"plain": {}, "again": {}, "rmsnorm": {}}}))
    assert variants_of(study)["plain"].table.settings == {}
    assert [name for name in study.variants if is_baseline_again(study, name)] == ["again"]
    changed = parse_study(study_table({"baseline": "layernorm", "variants": {"layernorm": {}, "plain": {}}}))
    assert not is_baseline_again(changed, "plain")


def test_the_words_of_none_are_true_of_every_study():
    assert "norm" not in VARIANTS["none"].table.about
    assert VARIANTS["none"].table.settings == {}


def test_every_mistake_of_every_table_is_named_at_once(study_table):
    tables = {"a": {"model": {"widht": 3}}, "b": {"from": "rmsnrm"}, "c": {"training": {"batch": 0}}}
    with pytest.raises(StudyError) as caught:
        parse_study(study_table({"variants": {"none": {}, **tables}}))
    keys = {problem.key for problem in caught.value.problems}
    assert keys == {"variants.a.model.widht", "variants.b.from", "variants.c.training.batch"}


def test_a_sweep_and_a_rate_of_a_variant_exclude_each_other(study_table):
    changes = {"variants": {"none": {}, "hot": {"training": {"lr": 0.01}}}, "sweep": {"lr": [1e-3, 2e-3]}}
    with pytest.raises(StudyError, match=r"variants\.hot\.training\.lr: a study with a \[sweep\]"):
        parse_study(study_table(changes))


def test_a_study_with_tables_survives_its_record(study_table):
    study = parse_study(study_table({"variants": {"none": {}, "small": {"from": "rmsnorm", "model": {"tied": False}}}}))
    assert parse_study(study.model_dump(mode="json")) == study
    assert list(variants_of(study)) == ["none", "small"]


@pytest.mark.parametrize(
    ("settings", "change", "text"),
    [
        (MODEL, {"widht": 3}, "widht: unknown key"),
        (MODEL, {"heads": 3}, "3 does not divide width = 16; the nearest that do: 2 and 4"),
        (TrainingConfig(steps=3), {"precision": "bf61"}, "did you mean 'bf16'?"),
        (TrainingConfig(steps=3), {"clip": -1.0}, "got -1.0"),
    ],
)
def test_an_impossible_change_names_the_key_the_value_and_what_is_allowed(settings, change, text):
    with pytest.raises(StudyError) as caught:
        settings.changed(**change)
    assert text in str(caught.value)


def test_a_wrong_key_of_a_variant_hides_no_other_problem_of_it(study_table):
    tables = {
        "none": {},
        "a": {"modle": {}, "model": {"mlp": "swigl", "widht": 3}, "training": {"weigth_decay": 0.0}, "about": 3},
        "b": {"model": {"mlp": {"kind": "swiglu", "ratio": 2}}},
        "c": {"training": {"steps": 50}},
    }
    with pytest.raises(StudyError) as caught:
        parse_study(study_table({"variants": tables}))
    found = {problem.key: str(problem) for problem in caught.value.problems}
    keys = ("modle", "about", "model.mlp", "model.widht", "training.weigth_decay")
    assert set(found) == {*(f"variants.a.{key}" for key in keys), "variants.b.model.mlp", "variants.c.training.steps"}
    assert "its settings are model.mlp_ratio" in found["variants.b.model.mlp"]
    assert "compare budgets by [regimes.NAME]" in found["variants.c.training.steps"]


# --- equal compute ----------------------------------------------------------------------------------------


def test_matched_by_flops_a_costlier_arm_takes_fewer_steps_to_within_one(plan_of):
    tables = {"fat": {"model": {"mlp_ratio": 8}}, "thin": {"model": {"mlp_ratio": 2}}, "rmsnorm": {}}
    plan = plan_of(tables, **{"budget.match": "flops", "training.steps": 50})
    budgets = {run.variant: run.budget for run in plan.runs}
    base = budgets["none"]
    assert budgets["rmsnorm"] == base.model_copy(update={"parameters": base.parameters + 16})
    assert budgets["fat"].steps < 50 < budgets["thin"].steps
    for name in ("fat", "thin"):
        step = budgets[name].matmul_flops // budgets[name].steps
        assert 0 <= base.matmul_flops - budgets[name].matmul_flops < step
    check = planned_inputs(plan, 3)
    assert check.nearly == (LedgerInput.FLOPS, LedgerInput.ORDER)
    assert [difference.name for difference in check.differs] == [LedgerInput.TOKENS]
    assert "FLOPs, to within one step, data order up to the end of the shorter run" in ledger_words(check)
    assert ledger_words(check).endswith(" Not matched: training time.")
    longer = [run.model_copy(update={"recipe": run.recipe.model_copy(update={"budget": base})}) for run in plan.runs]
    equal = planned_inputs(plan.model_copy(update={"runs": tuple(longer)}), 3)
    assert {LedgerInput.TOKENS, LedgerInput.FLOPS} <= {*equal.shared}


def test_the_ledger_says_what_matched_and_what_did_not(plan_of):
    check = planned_inputs(plan_of({"fat": {"model": {"mlp_ratio": 8}}, "large": {"training": {"batch": 8}}}), 2)
    differs = check.differs
    assert {*check.shared} == {LedgerInput.TOKENS, LedgerInput.START}
    assert not check.nearly
    assert [(difference.name, list(difference.variants)) for difference in differs] == [
        ("FLOPs", ["fat"]),
        ("data order", ["large"]),
    ]
    assert differs[0].variants["fat"] > 0
    assert differs[1].variants["large"] is None
    plain = planned_inputs(plan_of({"rmsnorm": {}}), 1)
    assert {*plain.shared} == {LedgerInput.TOKENS, LedgerInput.FLOPS, LedgerInput.ORDER, LedgerInput.START}
    assert not plain.differs


def test_the_ledger_names_the_arms_that_use_other_kernels_on_a_gpu(plan_of):
    plan = plan_of({"relu2": {"model": {"mlp": "relu2"}}, "rmsnorm": {}})
    assert not planned_inputs(plan, 2).differs
    on_gpu = plan.model_copy(update={"execution": plan.execution.model_copy(update={"device": "cuda"})})
    differs = planned_inputs(on_gpu, 2).differs
    assert [(difference.name, list(difference.variants)) for difference in differs] == [
        (LedgerInput.KERNELS, ["relu2"])
    ]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"criteria": [{"metric": "validation_loss"}]}, r"criteria\[0\].metric: 'validation_loss' counts tokens"),
        ({"evaluation": {"tasks": ["suite"]}}, "evaluation.tasks need one text"),
    ],
)
def test_what_cannot_be_asked_across_tokenizers_is_refused(study_table, changes, text):
    study = parse_study(study_table({"variants": {"none": {}, "b": {"data": {"tokenizer": "byte"}}}, **changes}))
    texts = [load_corpus(study.data), load_corpus(study.data.changed(tokenizer="byte"))]
    with pytest.raises(PlanError, match=text):
        make_plan(study, texts[0], "cpu", corpora={"b": texts[1]})


def test_arms_on_other_text_are_not_evaluated_on_the_studys_own(study_table, tmp_path):
    from ablationlab.evaluation import evaluate

    study = parse_study(study_table({"variants": {"none": {}, "b": {"data": {"tokenizer": "byte"}}}}))
    other = load_corpus(study.data.changed(tokenizer="byte"))
    seal_plan(make_plan(study, load_corpus(study.data), "cpu", corpora={"b": other}), ResultsFolder(tmp_path))
    with pytest.raises(PlanError, match=r"b change \[data\].*would favour the arms"):
        evaluate(tmp_path)


def test_the_held_out_text_does_not_depend_on_the_tokenizer(study_table):
    data = parse_study(study_table()).data
    records = [load_corpus(data.changed(tokenizer=name)).record for name in ("char", "byte")]
    assert len({record.validation_bytes for record in records}) == 1


@pytest.mark.parametrize("key", ["model.activation", "variants.a.model.activation"])
def test_an_activation_is_answered_with_the_mlp_that_has_it(study_table, key):
    changes = {"variants": {"none": {}, "a": {"model": {"mlp": "relu"}}}}
    with pytest.raises(StudyError) as caught:
        parse_study(study_table({**changes, key: "relu"}))
    (problem,) = caught.value.problems
    assert (problem.key, problem.nearest) == (key, "mlp")
    assert "gelu, relu, relu2, silu, swiglu, geglu" in str(problem.allowed)


def test_a_misspelt_table_of_a_known_variant_is_named_where_it_is_written(study_table):
    with pytest.raises(StudyError) as caught:
        parse_study(study_table({"variants": {"none": {}, "rmsnrom": {}}}))
    (problem,) = caught.value.problems
    assert (problem.key, problem.nearest) == ("variants.rmsnrom", "rmsnorm")


def test_the_words_of_a_variant_are_a_difference_only_where_nothing_else_differs(study_table):
    def study(**table):
        return parse_study(study_table({"variants": {"none": {}, "a": table}}))

    plain, worded = study(model={"dropout": 0.1}), study(model={"dropout": 0.1}, about="new", formula="f")
    other = study(model={"dropout": 0.2}, about="new", formula="f")
    assert [difference.key for difference in study_differences(plain, other)] == ["variants.a.model.dropout"]
    assert [difference.key for difference in study_differences(plain, worded)] == [
        "variants.a.about",
        "variants.a.formula",
    ]


def test_arms_of_another_precision_are_declared_and_share_no_stack(study_table):
    tables = {"none": {}, "low": {"training": {"precision": "bf16"}}}
    study = parse_study(study_table({"variants": tables, "training.precision": "fp32", "execution.stack_width": 4}))
    plan = make_plan(study, load_corpus(study.data), "cpu")
    assert plan.variants["low"].settings == ("training.precision",)
    assert {run.variant: run.training.precision for run in plan.runs} == {"none": "fp32", "low": "bf16"}
    assert all(len({plan.run(run).training.precision for run in stack}) == 1 for stack in plan.stacks)
