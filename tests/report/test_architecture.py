"""The paper's words for a model follow its settings."""

from __future__ import annotations

from ablationlab.records.settings import ModelConfig
from ablationlab.report.paper.architecture import architecture


def test_the_default_model_is_gpt2_and_nothing_further():
    words = architecture(ModelConfig(preset="char-mini"))
    assert words["mlp_words"] == "GELU MLP of 4 times the width"
    assert words["norm_words"] == "LayerNorm in front of each part (ε = 10⁻⁵)"
    assert words["position_words"] == "learned token and absolute position embeddings"
    assert (words["final_words"], words["further"]) == ("a final LayerNorm", "")


def test_every_setting_that_is_not_gpt2s_is_named():
    model = ModelConfig(preset="llama-mini", norm_place="post", final_norm="layernorm", kv_heads=2, head_softcap=15.0)
    words = architecture(model)
    assert words["mlp_words"].startswith("SwiGLU MLP of 2.6667")
    assert words["norm_words"].startswith("RMSNorm on the stream behind each part")
    assert (words["position_words"], words["final_words"]) == (
        "learned token embeddings and rotary positions",
        "a final LayerNorm",
    )
    assert words["further"] == "biases = False; kv_heads = 2; head_softcap = 15"
