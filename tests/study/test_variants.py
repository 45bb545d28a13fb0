from __future__ import annotations

import pytest

from ablationlab.model.parameters import matmul_flops_per_token, parameters
from ablationlab.records.settings import FrontEnd, ModelConfig
from ablationlab.study.ledger import flattened
from ablationlab.study.variants import VARIANTS, variant

MODEL = ModelConfig(layers=2, width=16, heads=2, context=8, vocabulary=11)
FRONTS = {
    "none": {},
    "layernorm": {"norm": "layernorm", "gain": True, "bias": True, "eps": 1e-5},
    "rmsnorm": {"norm": "rmsnorm", "gain": True, "eps": 1e-6},
    "layernorm-token": {"norm": "layernorm", "gain": True, "bias": True, "eps": 1e-5, "place": "token"},
    "rmsnorm-token": {"norm": "rmsnorm", "gain": True, "eps": 1e-6, "place": "token"},
    "rmsnorm-nogain": {"norm": "rmsnorm", "eps": 1e-6},
    "rmsnorm-x0.3": {"norm": "rmsnorm", "gain": True, "eps": 1e-6, "scale": 0.3},
    "rmsnorm-x0.1": {"norm": "rmsnorm", "gain": True, "eps": 1e-6, "scale": 0.1},
    "rmsnorm-x0.03": {"norm": "rmsnorm", "gain": True, "eps": 1e-6, "scale": 0.03},
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
    assert VARIANTS["redrawn"].apply(MODEL) == MODEL.changed(redraw=1)
    assert VARIANTS["redrawn-2"].apply(MODEL) == MODEL.changed(redraw=2)
    assert set(VARIANTS) == {*FRONTS, "token-init-1", "untied", "redrawn", "redrawn-2"}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_declares_every_setting_it_changes(name):
    arm = VARIANTS[name]
    before, after = (flattened(model.model_dump()) for model in (MODEL, arm.apply(MODEL)))
    differing = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert (name == "none") == (not differing)
    assert all(arm.declares.covers_setting(key) for key in differing)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_declares_every_parameter_it_adds_or_starts_elsewhere(name):
    arm = VARIANTS[name]
    before = {p.name: p for p in parameters(MODEL)}
    after = {p.name: p for p in parameters(arm.apply(MODEL))}
    differing = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert {key for key in differing if not arm.declares.covers_parameter(key)} == set()


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
    assert all(arm.name == name and arm.declares.formula and arm.declares.meaning for name, arm in VARIANTS.items())
    assert VARIANTS["rmsnorm"].declares.formula.startswith("RMSNorm(E_tok + E_pos)")


def test_ownership_goes_by_table_and_by_pattern_not_by_prefix_of_a_word():
    arm = VARIANTS["layernorm"]
    assert arm.declares.covers_setting("front")
    assert arm.declares.covers_setting("front.norm")
    assert not arm.declares.covers_setting("frontier")
    assert not arm.declares.covers_setting("tied")
    assert arm.declares.covers_parameter("front.gain")
    assert not arm.declares.covers_parameter("blocks.0.norm1.gain")


def test_a_name_is_given_once():
    with pytest.raises(ValueError, match="variant 'layernorm' is registered twice"):
        variant("layernorm", formula="", meaning="", changes=())(lambda model: model)
    assert VARIANTS["layernorm"].declares.formula.startswith("LN(")
