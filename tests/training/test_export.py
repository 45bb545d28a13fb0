from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import ablationlab
import warm
from ablationlab.core.errors import ExportError, RecordError
from ablationlab.records.run import Result
from ablationlab.records.seal import RunSeal
from ablationlab.records.storage import ResultsFolder, sha256_file
from ablationlab.training.export import export, load
from ablationlab.training.perplexity import run_metrics, validation_totals


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> ResultsFolder:
    """Three trained runs of one seed: the baseline, a variant that GPT-2 cannot express, and one that it can."""
    folder = tmp_path_factory.mktemp("export")
    (folder / "text.txt").write_text(
        "".join(f"{i} bottles of beer on wall {i % 7}; take {i // 3} down.\n" for i in range(300))
    )
    (folder / "study.toml").write_text(
        """
        name = "export"
        baseline = "none"
        variants = ["none", "layernorm", "gradient-shrink", "untied"]
        seeds = [4]
        model = { layers = 2, width = 16, heads = 2, context = 16 }
        training = { steps = 6, batch = 4, lr = 1e-2, warmup = 2, precision = "fp32" }
        data = { corpus = "./text.txt" }
        execution = { threads = 1 }
        """
    )
    words = ["run", str(folder / "study.toml"), "--out", str(folder / "out"), "--workers", "1", "--device", "cpu"]
    done = warm.python("-m", "ablationlab", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return ResultsFolder(folder / "out")


def run_of(results: ResultsFolder, variant: str) -> Path:
    return next(results.runs.glob(f"{variant}-s4-*"))


def text_tokens(results: ResultsFolder, model: ablationlab.GPT) -> torch.Tensor:
    return torch.from_numpy(model.tokenizer().encode((results.path.parent / "text.txt").read_text()))


@pytest.mark.parametrize("variant", ["none", "layernorm"])
def test_a_loaded_run_scores_what_its_result_says(results, variant):
    model = ablationlab.load(run_of(results, variant))
    tokens = text_tokens(results, model)
    validation = tokens[int(len(tokens) * 0.9) :]
    params = {name: value.detach()[None] for name, value in model.named_parameters()}
    totals = validation_totals(params, model.config, [model.config.front], validation, torch.float32)
    result = Result.read(run_of(results, variant) / "result.json")
    found = run_metrics(totals, 0, model.record.corpus.validation_bytes)
    for name, value in found._asdict().items():
        assert value == pytest.approx(result.metrics[name], rel=1e-6), name
    assert set(result.metrics) == {*found._fields, "final_gradient_norm"}
    assert result.metrics["final_gradient_norm"] > 0


@pytest.mark.needs("transformers")
@pytest.mark.parametrize("variant", ["none", "gradient-shrink", "untied"])
def test_transformers_loads_an_export_and_gives_the_same_logits(results, tmp_path, variant):
    import transformers

    export(run_of(results, variant), tmp_path / "hf")
    theirs, report = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    model = load(run_of(results, variant))
    tokens = text_tokens(results, model)[:48].view(3, 16)
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(tokens).logits, model(tokens), rtol=1e-5, atol=1e-5)
    characters = json.loads((tmp_path / "hf" / "characters.json").read_text())
    assert "".join(characters[i] for i in tokens[0]) == model.tokenizer().decode(tokens[0].numpy())


def test_a_variant_that_gpt2_cannot_express_is_refused_with_the_reason(results, tmp_path):
    with pytest.raises(ExportError, match=r"front end \(norm = layernorm, gain = True, bias = True\)"):
        export(run_of(results, "layernorm"), tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_an_export_never_overwrites(results, tmp_path):
    (tmp_path / "hf").mkdir()
    with pytest.raises(ExportError, match="never overwrites"):
        export(run_of(results, "none"), tmp_path / "hf")


def test_a_damaged_run_is_named(results, tmp_path):
    copy = shutil.copytree(run_of(results, "none"), tmp_path / run_of(results, "none").name)
    weights = next(copy.glob("checkpoints/*/weights.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(RecordError, match=r"weights\.safetensors is not as it was sealed .* trains it again"):
        load(copy)
    with pytest.raises(RecordError, match="no such run folder"):
        load(tmp_path / "nothing")


def test_a_module_refuses_more_tokens_than_its_context(results):
    model = load(run_of(results, "none"))
    with pytest.raises(ValueError, match="17 tokens do not fit the context of 16"):
        model(torch.from_numpy(np.zeros((1, 17), dtype=np.int64)))


@pytest.mark.parametrize(("key", "value"), [("heads", 4), ("layers", 1), ("width", 32)])
def test_an_edited_run_record_is_not_exported(results, tmp_path, key, value):
    run = shutil.copytree(run_of(results, "none"), tmp_path / run_of(results, "none").name)
    record = json.loads((run / "run.json").read_text())
    record["recipe"]["model"][key] = value
    (run / "run.json").write_text(json.dumps(record))
    with pytest.raises(RecordError, match=r"run\.json is not as it was sealed .* trains it again"):
        export(run, tmp_path / "hf")
    _forge(run / "seal.json")  # were the seal forged, too, the weights would still tell
    if key != "heads":  # which changes no shape
        with pytest.raises(RecordError, match=r"are not those of the model in run\.json"):
            export(run, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_the_checkpoint_of_another_run_is_not_exported(results, tmp_path):
    run = shutil.copytree(run_of(results, "none"), tmp_path / run_of(results, "none").name)
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(run_of(results, "gradient-shrink") / "checkpoints", run / "checkpoints")
    with pytest.raises(RecordError, match=r"weights\.safetensors is not as it was sealed"):
        export(run, tmp_path / "hf")
    _forge(run / "seal.json")
    with pytest.raises(RecordError, match=r"are not of one run\. Restore it, or move"):
        export(run, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_a_run_in_the_folder_of_another_is_not_exported(results, tmp_path):
    held, name = run_of(results, "gradient-shrink"), run_of(results, "none").name
    swapped = shutil.copytree(held, tmp_path / name)
    with pytest.raises(RecordError, match=f"seal.json belongs to {held.name}, not to {name}"):
        export(swapped, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def _forge(path: Path) -> None:
    seal = RunSeal.read(path)
    files = {name: sha256_file(path.parent / name) for name in seal.files}
    seal.model_copy(update={"files": files}).replace(path)
