"""A trained run as a module for notebooks, and as a folder that transformers can load."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors.torch
from torch import Tensor, nn

from ablationlab.core.errors import ExportError, RecordError
from ablationlab.data.tokenizers import TOKENIZERS, CharTokenizer, Tokenizer
from ablationlab.model.gpt import ForwardPass
from ablationlab.model.parameters import parameters
from ablationlab.records.results import no_weights
from ablationlab.records.run import Result, RunRecord
from ablationlab.records.seal import MEND_RUN, check_sealed
from ablationlab.records.settings import ModelConfig
from ablationlab.records.storage import RunFolder, is_folder, new_folder, write_bytes
from ablationlab.training import checkpoints
from ablationlab.training.formats import config_of, tensors_of


class GPT(nn.Module):
    """One run as an ordinary module: ``logits_BTV = model(tokens_BT)``. Parameter names are those of the records."""

    def __init__(self, config: ModelConfig, weights: dict[str, Tensor], record: RunRecord) -> None:
        super().__init__()
        self.config, self.record = config, record
        for name, value in weights.items():
            _attach(self, name, nn.Parameter(value.clone()))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits in fp32, without dropout."""
        if tokens_BT.shape[-1] > self.config.context:
            raise ValueError(f"{tokens_BT.shape[-1]} tokens do not fit the context of {self.config.context}")
        params = {name: value[None] for name, value in self.named_parameters()}
        return ForwardPass(params, self.config, [self.config.front]).logits(tokens_BT[None])[0]

    def tokenizer(self) -> Tokenizer:
        """The tokenizer this run was trained with, from its record."""
        corpus = self.record.corpus
        if corpus is not None and corpus.tokenizer != "char":
            return TOKENIZERS[corpus.tokenizer].of("")
        if corpus is None or corpus.characters is None:
            raise RecordError(f"the record of {self.record.id} holds no characters for its tokenizer")
        return CharTokenizer(corpus.characters)


def _attach(root: nn.Module, name: str, value: nn.Parameter) -> None:
    *path, leaf = name.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.register_parameter(leaf, value)


def load(run: str | Path) -> GPT:
    """Load the model of a finished run's folder, on the CPU, in evaluation mode. Checksums are verified."""
    folder = RunFolder(Path(run))
    if not is_folder(folder.path):
        raise RecordError(f"{folder.path}: no such run folder")
    if not folder.record.exists() and not folder.result.exists():
        raise RecordError(f"{folder.path} is not a run's folder; runs are in results/<study>/runs/")
    record = RunRecord.read(folder.record)
    if not folder.done:
        raise RecordError(f"{folder.path} has no result yet; finish the study first (ablationlab run)")
    result = Result.read(folder.result)
    if result.checkpoint is None:
        raise RecordError(
            f"{folder.path} was trained by the study's own trainer, whose weights this program does not read"
        )
    if not folder.checkpoints.exists():
        raise no_weights(folder)
    return GPT(record.model, _checked_weights(folder, record, result, result.checkpoint), record).eval()


def _checked_weights(folder: RunFolder, record: RunRecord, result: Result, checkpoint: str) -> dict[str, Tensor]:
    """The last weights, once it is certain that they are this run's and fit the model of its record."""
    step = checkpoints.step_of(checkpoint)
    check_sealed(folder, folder.record, folder.result, checkpoints.path_of(folder, step))
    saved = checkpoints.load(folder, step)
    ids = {record.id, result.id, saved.record.id}
    if len(ids) > 1 or saved.record.files[checkpoints.WEIGHTS] != result.weights_sha256:
        raise RecordError(f"{folder.path}: run.json, result.json and {checkpoint} are not of one run. {MEND_RUN}")
    weights = saved.state["weights"]
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    if shapes != {parameter.name: parameter.shape for parameter in parameters(record.model)}:
        raise RecordError(
            f"{folder.path}: the weights of {checkpoint} are not those of the model in run.json. {MEND_RUN}"
        )
    return weights


def export(run: str | Path, target: Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` as transformers reads them, and ``characters.json`` beside them."""
    model = load(run)
    config = config_of(model.config)
    if target.exists():
        raise ExportError(f"{target} exists already; an export never overwrites")
    tensors = tensors_of(dict(model.named_parameters()), model.config)
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(target) as folder:
        write_bytes(folder / "model.safetensors", safetensors.torch.save(tensors, metadata={"format": "pt"}))
        write_bytes(folder / "config.json", (json.dumps(config, indent=1) + "\n").encode())
        characters = model.tokenizer().characters
        if characters is not None:
            text = json.dumps(list(characters), ensure_ascii=False) + "\n"
            write_bytes(folder / "characters.json", text.encode())
