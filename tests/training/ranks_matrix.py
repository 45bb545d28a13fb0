"""What one rank of test_distributed does. Run by torchrun: two real processes, gloo between them, every scenario in turn.

torchrun --nproc-per-node 2 ranks_matrix.py FOLDER
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from ablationlab.core.registry import set_layer
from ablationlab.model.device import prepare
from ablationlab.model.parts import LOSS_TERMS
from ablationlab.model.rules import OPTIMIZERS, OptimizerStep, UpdateRule
from ablationlab.records.plan import Execution
from ablationlab.records.run import Checkpoint
from ablationlab.records.settings import ExecutionConfig, ModelConfig, TrainingConfig
from ablationlab.records.storage import RunFolder
from ablationlab.study.variants import VARIANTS
from ablationlab.training import checkpoints
from ablationlab.training.checkpoints import Saved
from ablationlab.training.distributed.ranks import Ranks
from ablationlab.training.distributed.stack import DistributedStack
from ablationlab.training.stack import Member, Stack

STEPS, HALF = 4, 2
MODEL = ModelConfig(layers=2, width=16, heads=2, context=16, vocabulary=13)
TRAINING = TrainingConfig(steps=STEPS, batch=8, lr=1e-2, warmup=2, precision="fp32")
TOKENS = np.random.default_rng(0).integers(0, 13, 2000)
# As a study's own code would register them.
OWN_CODE = {
    LOSS_TERMS.kind: {"squares": lambda logits, targets, model: 0.1 * logits.square().mean(dim=(1, 2, 3))},
    OPTIMIZERS.kind: {"momentum": UpdateRule(("trace",), lambda step: _momentum(step))},
}


def _momentum(step: OptimizerStep) -> torch.Tensor:
    trace = step.state["trace"].mul_(0.9).add_(step.gradient)
    return step.weights * (1 - step.lr * step.decay) - step.lr * trace


VALIDATION = torch.from_numpy(np.random.default_rng(1).integers(0, 13, 333))


@dataclass(frozen=True)
class Scenario:
    """One way to train the tiny model."""

    parallel: str = "fsdp"
    variant: str = "none"
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    checkpointing: bool = False
    bf16: bool = False

    @property
    def member(self) -> Member:
        return Member("run", 1, 1e-2, VARIANTS[self.variant].apply(MODEL.changed(**self.model)))

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.bf16 else torch.float32

    def prepared(self) -> None:
        """Set this process up as training would."""
        precision = "bf16" if self.bf16 else "fp32"
        prepare(Execution(device="cpu", device_name="", precision=precision, stack_width=1, threads=1))

    def alone(self) -> Stack:
        """The same run in one process."""
        self.prepared()
        width, device = 1, torch.device("cpu")
        training = TRAINING.changed(**self.training)
        return Stack([self.member], width, training, STEPS, TOKENS, device, self.dtype)

    def spread(self, ranks: Ranks) -> DistributedStack:
        """The same run over ranks."""
        self.prepared()
        how = ExecutionConfig(parallel=self.parallel, activation_checkpointing=self.checkpointing)
        return DistributedStack([self.member], how, ranks, TRAINING.changed(**self.training), STEPS, TOKENS, self.dtype)


SCENARIOS = {
    f"{parallel} {name}": Scenario(parallel=parallel, **words)
    for parallel in ("ddp", "fsdp")
    for name, words in {
        "plain": {},
        "again": {"checkpointing": True},
        "passes": {"training": {"micro_batch": 2}},
        "masks": {"variant": "layernorm", "model": {"dropout": 0.2}, "training": {"micro_batch": 1}},
        "untied": {"variant": "rmsnorm", "model": {"tied": False, "head_bias": True, "final_norm": False}},
        "no blocks": {"model": {"layers": 0}},
        "bf16": {"bf16": True, "training": {"precision": "bf16"}},
        "own loss": {"model": {"loss_terms": ("squares",)}, "training": {"micro_batch": 2}},
    }.items()
}
SCENARIOS |= {
    "ddp own rule": Scenario(parallel="ddp", training={"optimizer": "momentum", "weight_decay": 0.3}),
    "ddp muon": Scenario("ddp", training={"optimizer": "muon", "ema": 0.8, "z_loss": 1e-2}),
    "fsdp lion": Scenario("fsdp", training={"optimizer": "lion", "ema": 0.8, "label_smoothing": 0.1, "lr": 1e-3}),
    "fsdp groups": Scenario("fsdp", model={"mup_base": 32}, training={"lr_scale": {"embedding": 0.3}, "ema": 0.8}),
}
_LLAMA = {"position": "rotary", "norm": "rmsnorm", "mlp": "swiglu", "mlp_ratio": 2.667, "biases": False, "kv_heads": 1}
_SKIP = {
    "position": "alibi",
    "norm_place": "sandwich",
    "embedding_skip": 0.2,
    "qk_norm": "rmsnorm",
    "head_softcap": 5.0,
}
_POST = {"norm_place": "post", "residual_scale": "deepnorm", "window": 5, "attention_gate": "head", "final_norm": False}
SCENARIOS |= {
    "ddp llama": Scenario("ddp", model=_LLAMA | {"tied": False}),
    "fsdp skip": Scenario("fsdp", model=_SKIP),
    "fsdp skip, computed again": Scenario("fsdp", model=_LLAMA | {"embedding_skip": 0.2}, checkpointing=True),
    "fsdp post": Scenario("fsdp", model=_POST),
    "fsdp parallel": Scenario("fsdp", model={"parallel": True, "norm_gain": False, "mlp": "relu2"}),
}
# Where a run that continues after HALF steps was saved, and how it continues.
RESUMED = {
    "ddp on 2, ddp on 2": ("ddp plain", "ddp plain"),
    "fsdp on 2, fsdp on 2": ("fsdp plain", "fsdp plain"),
    "ddp on 2, fsdp on 2": ("ddp plain", "fsdp plain"),
    "fsdp on 1, fsdp on 2": ("one rank", "fsdp plain"),
    "one process, ddp on 2": ("alone", "ddp plain"),
    "one process, fsdp on 2": ("alone", "fsdp plain"),
    "own rule on 2, own rule on 2": ("ddp own rule", "ddp own rule"),
}


def train(stack: Any, first: int = 1, last: int = STEPS) -> list[list[float]]:
    """Per step: loss, gradient norm, mean and maximum of the second moment."""
    rows = []
    for step in range(first, last + 1):
        stack.feed(step, stack.offsets(step)[None])
        stack.advance()
        rows.append([float(values[0, 0]) for values in stack.measured()])
    return rows


def record(step: int) -> Checkpoint:
    return Checkpoint(
        id="run",
        plan_hash="",
        step=step,
        files={},
        metrics_bytes=0,
        metrics_sha256="",
        data_order_hash="",
        divergence=None,
        last_gradient_norm=None,
        train_seconds=0.0,
        history=(),
    )


def run_folder(folder: Path, name: str) -> RunFolder:
    """A run's folder as training finds it."""
    run = RunFolder(folder / name.replace(" ", "-").replace(",", ""))
    run.path.mkdir(parents=True, exist_ok=True)
    run.record.touch()
    return run


def look(run: RunFolder) -> Saved:
    return checkpoints.load(run, HALF, tensors=False)


def report(folder: Path, name: str, stack: Any, rows: list[list[float]]) -> None:
    totals, weights = stack.validate(VALIDATION), stack.weights(0)
    if stack.leads:
        run = run_folder(folder, name)
        safetensors.torch.save_file(weights, run.path / "end.safetensors")
        said = {"rows": rows, "nll": float(totals.nll_R[0]), "norm": float(totals.norm_R[0]), "tokens": totals.tokens}
        (run.path / "end.json").write_text(json.dumps(said))


def main() -> None:
    folder = Path(sys.argv[1])
    set_layer(OWN_CODE)
    ranks = Ranks.join("cpu")
    assert ranks.gather({"rank": ranks.rank}) == [{"rank": n} for n in range(ranks.world)]
    for name, scenario in SCENARIOS.items():
        stack = scenario.spread(ranks)
        rows = train(stack, 1, HALF)
        if name.endswith(("plain", "own rule")):
            stack.save(0, run_folder(folder, name), record(HALF) if ranks.leads else None, final=False)
        report(folder, name, stack, rows + train(stack, HALF + 1))
    for name, (saved, going_on) in RESUMED.items():
        stack = SCENARIOS[going_on].spread(ranks)
        run = run_folder(folder, saved)
        stack.resume(0, run, look(run))
        report(folder, name, stack, train(stack, HALF + 1))
    ranks.leave()


if __name__ == "__main__":
    main()
