from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ablationlab.core.errors import StudyError
from ablationlab.model.parameters import matmul_flops_per_token, parameter_count, parameters
from ablationlab.model.weights import joint_digest, weight_digest
from ablationlab.records.settings import PRESETS, FrontEnd, ModelConfig, VariantTable
from ablationlab.study.variants import VARIANTS, Variant

SMALL = ModelConfig(layers=2, width=16, heads=4, context=8, vocabulary=11)


def _by_name(model):
    return {parameter.name: parameter for parameter in parameters(model)}


@pytest.mark.parametrize(
    ("preset", "count"),
    [("gpt2-small", 124_439_808), ("gpt2-medium", 354_823_168), ("gpt3-xl", 1_315_723_264)],
)
def test_presets_have_the_published_parameter_counts(preset, count):
    assert parameter_count(ModelConfig(preset=preset)) == count


def test_char_mini_has_1_6_million_parameters():
    assert parameter_count(ModelConfig(preset="char-mini", vocabulary=65)) == 1_611_136


def test_the_pilots_model_without_blocks_has_33089_parameters():
    pilot = ModelConfig(
        layers=0, width=128, heads=8, context=128, vocabulary=65, tied=False, final_norm=False, head_bias=True
    )
    assert parameter_count(pilot) == 33_089


@pytest.mark.parametrize("name", list(VARIANTS))
def test_every_variant_shares_with_the_baseline_all_parameters_it_did_not_declare(name):
    variant = VARIANTS[name]
    base, changed = _by_name(SMALL), _by_name(variant.apply(SMALL))
    declared = variant.declared([(SMALL, variant.apply(SMALL))])
    for shared in base.keys() | changed.keys():
        if not declared.covers_parameter(shared):
            np.testing.assert_array_equal(base[shared].draw(3), changed[shared].draw(3))


def test_a_larger_initial_scale_uses_the_same_draws():
    base, large = _by_name(SMALL), _by_name(SMALL.changed(token_init_std=1.0))
    np.testing.assert_allclose(large["tok.weight"].draw(1) * 0.02, base["tok.weight"].draw(1), rtol=1e-6)


def test_another_layer_changes_no_other_draw():
    small = _by_name(SMALL.changed(scaled_residual_init=False))
    deep = _by_name(SMALL.changed(layers=5, scaled_residual_init=False))
    for name in small:
        np.testing.assert_array_equal(small[name].draw(1), deep[name].draw(1))


def test_residual_projections_start_smaller_by_the_root_of_twice_the_layers():
    found = _by_name(SMALL)
    assert found["blocks.0.attn.out.weight"].std == pytest.approx(0.02 / 2)
    assert found["blocks.1.mlp.down.weight"].std == pytest.approx(0.02 / 2)
    assert found["blocks.0.mlp.up.weight"].std == 0.02


def test_a_position_std_of_zero_gives_zeros():
    assert not _by_name(SMALL.changed(position_init_std=0.0))["pos.weight"].draw(1).any()


def test_switches_remove_and_add_the_parameters_they_name():
    bare = _by_name(SMALL.changed(biases=False, final_norm=False, tied=False, head_bias=True))
    assert not [name for name in bare if name.endswith(".bias") and name != "head.bias"]
    assert {"head.weight", "head.bias"} <= bare.keys()
    assert "final_norm.gain" not in bare
    front = _by_name(SMALL.changed(front=FrontEnd(norm="rmsnorm", gain=True)))
    assert "front.gain" in front
    assert "front.bias" not in front


def test_flops_of_a_token_follow_the_formula_worked_by_hand():
    # forward: 2 layers x (qkv 16x48 + out 16x16 + up 16x64 + down 64x16) + head 11x16 = 6144 + 176 multiply-adds,
    # attention: 2 layers x (8 x 16 for scores + 8 x 16 for values) = 512; times 2 for FLOPs, times 3 with backward
    assert matmul_flops_per_token(SMALL) == 3 * 2 * (2 * 3072 + 176 + 512)


def test_digests_notice_one_bit_and_the_shape():
    array = np.zeros((2, 3), dtype=np.float32)
    flipped = array.copy()
    flipped[1, 2] = np.float32(1e-45)
    assert weight_digest(array) != weight_digest(flipped)
    assert weight_digest(array) != weight_digest(array.reshape(3, 2))
    assert joint_digest({"a": "1", "b": "2"}, ["b", "a"]) == joint_digest({"b": "2", "a": "1"}, ["a", "b"])


REDRAWN = (1, 2)


@pytest.mark.parametrize("redraw", REDRAWN)
def test_a_redraw_changes_the_mlp_matrices_alone_and_declares_each(redraw):
    variant = Variant("redrawn", VariantTable(model={"redraw": redraw}))
    declared = variant.declared([(SMALL, variant.apply(SMALL))])
    base, again = _by_name(SMALL), _by_name(variant.apply(SMALL))
    assert base.keys() == again.keys()
    changed = {one for one in base if not np.array_equal(base[one].draw(7), again[one].draw(7))}
    assert changed == {f"blocks.{i}.mlp.{part}.weight" for i in range(SMALL.layers) for part in ("up", "down")}
    assert changed == {one for one in base if declared.covers_parameter(one)}
    assert all((base[one].std, base[one].shape) == (again[one].std, again[one].shape) for one in base)


def test_redraws_are_further_draws_from_the_same_distribution():
    """Over many seeds, every coordinate of the three draws is normal with the same spread, and they are uncorrelated."""
    arms = [_by_name(SMALL)] + [_by_name(SMALL.changed(redraw=redraw)) for redraw in REDRAWN]
    for parameter in ("blocks.0.mlp.up.weight", "blocks.1.mlp.down.weight"):
        draws = [np.stack([arm[parameter].draw(seed).ravel() for seed in range(40)]) for arm in arms]
        scaled = [draw.ravel() / arms[0][parameter].std for draw in draws]
        for a, b in ((0, 1), (0, 2), (1, 2)):
            assert stats.ks_2samp(scaled[a], scaled[b]).pvalue > 1e-3
            assert abs(np.corrcoef(scaled[a], scaled[b])[0, 1]) < 4 / np.sqrt(scaled[a].size)
        for draw in scaled:
            assert stats.kstest(draw, "norm").pvalue > 1e-3


def test_without_blocks_there_is_nothing_to_redraw():
    with pytest.raises(StudyError, match="redraw needs a block"):
        SMALL.changed(layers=0, redraw=1)


def test_another_draw_is_one_setting_of_the_record():
    assert SMALL.changed(redraw=1).model_dump(mode="json") == SMALL.model_dump(mode="json") | {"redraw": 1}


def test_a_setting_put_back_to_its_default_survives_a_plan_that_names_the_preset():
    model = ModelConfig(preset="llama-mini", norm="layernorm", mlp="gelu", mlp_ratio=4, biases=True, tied=True)
    assert ModelConfig.model_validate_json(model.model_dump_json()) == model
    assert (model.position, model.norm, model.mlp) == ("rotary", "layernorm", "gelu")


@pytest.mark.parametrize(("preset", "millions"), [("0.4m", 0.4), ("1.6m", 1.6), ("6m", 6), ("25m", 25), ("100m", 100)])
def test_the_ladder_follows_its_rules(preset, millions):
    model = ModelConfig(preset=f"ladder-{preset}", vocabulary=65)
    assert (model.width, model.heads) == (32 * model.layers, model.layers)
    assert parameter_count(model) == pytest.approx(millions * 1e6, rel=0.1)
    # DeepSeek LLM (2024), section 3.1, in tokens and at 20 tokens per parameter of the blocks.
    size = 12 * model.layers * model.width**2
    compute = 6 * size * 20 * size
    start = PRESETS[f"ladder-{preset}"].start
    assert start["tokens"] == 20 * size
    assert start["lr"] == pytest.approx(0.3118 * compute**-0.125, rel=0.02)
    assert 2**-0.5 <= start["batch"] * model.context / (0.2920 * compute**0.3271) <= 2**0.5


def test_llama_mini_has_the_compute_of_char_mini():
    llama, nanochat, char = (
        ModelConfig(preset=f"{name}-mini", vocabulary=65) for name in ("llama", "nanochat", "char")
    )
    assert matmul_flops_per_token(llama) == pytest.approx(matmul_flops_per_token(char), rel=0.01)
    assert matmul_flops_per_token(nanochat) == matmul_flops_per_token(char)
