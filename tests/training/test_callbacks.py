"""What the callback for Lightning reports, from a real Lightning Trainer. That for Hugging Face is tested by its example."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ablationlab.pipeline import run
from ablationlab.records.results import Results
from conftest import to_toml

PROGRAM = """
import logging, warnings, torch
import lightning.pytorch as pl
import ablationlab as lab

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Line(pl.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.layer, self.lr = torch.nn.Linear(3, 1), lr

    def training_step(self, batch, index):
        return (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean()

    def validation_step(self, batch, index):
        self.log("val_loss", (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


with lab.current_run() as run:
    model = Line(run.settings["training"]["lr"])
    data = torch.randn(24, 3, generator=torch.Generator().manual_seed(run.seed))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=str(run.folder),
        callbacks=[lab.lightning_callback(run, metrics={"error": "val_loss"})],
    )
    trainer.fit(model, loader, loader)
"""


@pytest.mark.needs("lightning")
def test_a_lightning_trainer_reports_steps_data_order_start_and_result(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    study = {
        "name": "lightning",
        "baseline": "slow",
        "seeds": [1],
        "command": ["{python}", "train.py"],
        "metrics": {"error": "lower"},
        "training": {"lr": 0.01},
        "variants": {"slow": {}, "fast": {"training": {"lr": 0.1}}},
    }
    path = tmp_path / "study.toml"
    path.write_text(to_toml(study))
    run(path, tmp_path / "out", workers=1, device="cpu", listen=lambda event: None)
    slow, fast = Results.open(tmp_path / "out").runs
    for trained in (slow, fast):
        assert (trained.state, trained.result.steps) == ("finished", 12)  # two epochs of six batches
        assert list(trained.curves["step"]) == list(range(1, 13))
        assert trained.result.metrics["error"] == _reported(trained.folder.path)[-1]
        assert set(trained.result.initial_weights) == {"layer.weight", "layer.bias"}
    assert slow.result.data_order_hash == fast.result.data_order_hash is not None
    assert slow.result.initial_weights == fast.result.initial_weights
    assert fast.result.metrics["error"] < slow.result.metrics["error"]
    ledger = Results.open(tmp_path / "out").analysis.ledger
    assert {"data order", "initial weights", "steps"} <= set(ledger.shared)
    assert set(ledger.not_reported) == {"tokens", "FLOPs"}


def _reported(folder: Path) -> list[float]:
    """The validation losses, as the trainer logged them."""
    lines = [json.loads(line) for line in (folder / "reported.jsonl").read_text().splitlines()]
    return [line["val_loss"] for line in lines if "val_loss" in line]
