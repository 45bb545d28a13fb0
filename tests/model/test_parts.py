"""A second kind of MLP, registered in this file alone: everything else works with it or refuses it by name."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ablationlab.core.errors import ExportError
from ablationlab.evaluation.scoring import Continuation, StackScorer
from ablationlab.instrument.costing.hardware import ACCELERATORS
from ablationlab.instrument.costing.step import Shape
from ablationlab.model.dropout import Dropout, dropout_keys, dropout_sites
from ablationlab.model.gpt import ForwardPass
from ablationlab.model.parameters import matmul_flops_per_token, parameter_count, parameters
from ablationlab.model.parts import MLPS, BlockPart, PartCost
from ablationlab.model.weights import linear
from ablationlab.records.probes import failures, read_probes
from ablationlab.records.results import Results
from ablationlab.records.settings import ModelConfig, VariantTable
from ablationlab.records.storage import RunFolder
from ablationlab.study.probes import PROBES
from ablationlab.study.variants import VARIANTS, Variant
from ablationlab.training.export import export
from conftest import run_here, write_study

MODEL = ModelConfig(layers=2, width=12, heads=2, context=16, vocabulary=13, init_std=0.25, mlp="bilinear")
GELU = MODEL.changed(mlp="gelu")


class Bilinear(BlockPart):
    """(y G * y U) D."""

    name = group = "mlp"

    def hidden(self, model):
        return 2 * model.hidden // 3

    def parameters(self, model, prefix):
        width, hidden = model.width, self.hidden(model)
        return [
            *linear(f"{prefix}.gate", width, hidden, model.init_std, bias=False, redraw=model.redraw),
            *linear(f"{prefix}.up", width, hidden, model.init_std, bias=False, redraw=model.redraw),
            *linear(f"{prefix}.down", hidden, width, model.init_std, bias=False, redraw=model.redraw),
        ]

    def cost(self, model):
        width, hidden = model.width, self.hidden(model)
        return PartCost(6 * width * hidden, moved=2 * width + 7 * hidden, kept=4 * hidden)

    def __call__(self, forward, y, prefix):
        gate, _ = forward.layer(y, f"{prefix}.gate")
        up, _ = forward.layer(y, f"{prefix}.up")
        o, _ = forward.layer(gate * up, f"{prefix}.down")
        return (o, None) if forward.dropout is None else (forward.dropout(o, prefix), None)


@pytest.fixture(scope="module", autouse=True)
def bilinear():
    """The MLP and a variant that chooses it, registered for the tests of this file."""
    MLPS.add("bilinear", Bilinear())
    VARIANTS.add("bilinear", Variant("bilinear", VariantTable(model={"mlp": "bilinear"})))
    yield
    del MLPS._things["bilinear"], VARIANTS._things["bilinear"]


def weights_of(*seeds: int) -> dict[str, torch.Tensor]:
    return {p.name: torch.stack([torch.from_numpy(p.draw(seed)) for seed in seeds]) for p in parameters(MODEL)}


@pytest.fixture(scope="module")
def results(bilinear, tmp_path_factory):
    """A study of both MLPs with every probe: trained, evaluated and analyzed by the command."""
    folder = tmp_path_factory.mktemp("bilinear")
    changes = {"variants": ["none", "bilinear"], "model.width": 12, "probes": {"all": 6}}
    study = write_study(folder, changes)
    code, output, errors = run_here("run", study, "--out", "out", "--workers", "1", "--device", "cpu", folder=folder)
    assert code == 0, output + errors
    return folder / "out"


def test_a_study_compares_both_mlps_at_equal_compute(results):
    runs = {run.id: run for run in Results.open(results).runs}
    assert {run.planned.model.mlp for run in runs.values()} == {"gelu", "bilinear"}
    assert len({run.planned.budget.matmul_flops for run in runs.values()}) == 1
    assert (results / "verdict.json").exists()


def test_every_probe_with_a_meaning_for_it_looks_at_it_and_none_fails(results):
    for path in (results / "runs").iterdir():
        lines = read_probes(RunFolder(path))
        assert not failures(lines)
        missing = set(PROBES) - {line.probe for line in lines}
        assert missing == {"embedding-gain"} | ({"gradient-bound"} if path.name.startswith("bilinear") else set())


def test_the_gradient_bound_refuses_it_by_name_before_anything_runs(tmp_path):
    changes = {"variants": ["none"], "model.mlp": "bilinear", "model.width": 12, "probes": {"gradient-bound": 6}}
    code, output, errors = run_here("plan", write_study(tmp_path, changes), folder=tmp_path)
    assert code == 2, output
    assert "probes.gradient-bound" in errors
    assert "bilinear" in errors


def test_an_unknown_mlp_is_refused_with_the_nearest_name(tmp_path):
    code, _, errors = run_here(
        "plan", write_study(tmp_path, {"model.mlp": "bilineer", "probes": {"all": 6}}), folder=tmp_path
    )
    assert code == 2
    assert "model.mlp" in errors
    assert "did you mean 'bilinear'" in errors


def test_export_refuses_it_by_name_and_the_gelu_run_beside_it_is_written(results, tmp_path):
    with pytest.raises(ExportError, match="mlp = 'bilinear'"):
        export(next((results / "runs").glob("bilinear*")), tmp_path / "bilinear")
    assert not (tmp_path / "bilinear").exists()
    export(next((results / "runs").glob("none*")), tmp_path / "gelu")
    assert (tmp_path / "gelu" / "config.json").exists()


def test_its_flops_are_torchs_count_and_those_of_gelu():
    sites = dropout_sites(MODEL)
    dropout = Dropout(0.0, sites, torch.from_numpy(dropout_keys([1], 1, sites)))
    tokens = torch.randint(13, (1, 1, MODEL.context))
    with FlopCounterMode(display=False) as counter:
        ForwardPass(weights_of(1), MODEL, [MODEL.front], dropout=dropout).logits(tokens)
    assert 3 * counter.get_total_flops() == MODEL.context * matmul_flops_per_token(MODEL)
    assert matmul_flops_per_token(MODEL) == matmul_flops_per_token(GELU)


def test_a_run_alone_and_in_a_stack_agree():
    weights, tokens = weights_of(1, 2, 3), torch.randint(13, (3, 2, MODEL.context))
    stacked = ForwardPass(weights, MODEL, [MODEL.front] * 3).logits(tokens)
    for run in range(3):
        mine = {name: value[run : run + 1] for name, value in weights.items()}
        alone = ForwardPass(mine, MODEL, [MODEL.front]).logits(tokens[run : run + 1])
        torch.testing.assert_close(stacked[run], alone[0], rtol=1e-5, atol=1e-5)


def test_packed_scores_are_those_of_each_sequence_alone():
    from evaluation.models import member, stack

    mine = stack(member(1, model=MODEL), member(2, model=MODEL))
    choices = [Continuation((1, 2, 3, 4), ending) for ending in ((5,), (6, 7, 8), (9, 10))]
    scores = StackScorer(mine).score([choices])
    for number, choice in enumerate(choices):
        whole = torch.tensor([[choice.context + choice.tokens]] * 2)
        logp = mine.forward.logits(whole[..., :-1]).double().log_softmax(-1).gather(-1, whole[..., 1:, None])[..., 0]
        expected = logp[:, 0, len(choice.context) - 1 :].sum(-1)
        assert scores.sum_RN[:, number] == pytest.approx(expected.numpy(), abs=2e-5)


def test_costs_follow_what_it_declares():
    mine, gelu = (Shape(model.changed(width=768, heads=12, vocabulary=50257), 16) for model in (MODEL, GELU))
    assert mine.linear_flops + mine.attention_flops == mine.tokens * matmul_flops_per_token(mine.model)
    assert mine.counts[0] == parameter_count(mine.model)
    hidden, gelu_hidden = 2 * 4 * 768 // 3, 4 * 768
    kept = mine.tokens * 2 * (4 * hidden - 2 * gelu_hidden)
    assert mine.layer_activations - gelu.layer_activations == kept
    assert mine.stack_memory() > gelu.stack_memory()
    assert mine.seconds(ACCELERATORS["h200"]) > 0


def test_a_redraw_of_it_changes_only_what_the_variant_declares():
    base, again = ({p.name: p for p in parameters(model)} for model in (MODEL, MODEL.changed(redraw=1)))
    changed = {name for name in base if (base[name].draw(7) != again[name].draw(7)).any()}
    assert changed == {f"blocks.{i}.mlp.{layer}.weight" for i in range(2) for layer in ("gate", "up", "down")}
