"""The model of one run as torch modules, so that DDP and FSDP2 can hook into them. What is computed is `model.gpt`'s.

FSDP gathers the parameters of a module when its ``forward`` begins and lets them go when it ends, so a module here owns
what its own forward reads: block *i* owns its matrices, its second norm and the norm that follows it; the root owns the
embeddings, the front end, the first norm and the head. A tied embedding is one parameter of the root, read twice. The
parameters have no run axis, since FSDP splits dimension 0; the axis is added in the forward pass.

Precision is the registered one. With bf16, the matrices of the blocks are gathered in bf16 (they are read by matrix
products alone), their gradients are reduced in fp32, and everything else, the optimizer's copy included, stays fp32:

    MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=fp32)  for the matrices of blocks,  no policy for all the rest

which is why a block is two modules, one inside the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
import torch.nn as nn
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ablationlab.model.dropout import Dropout
from ablationlab.model.gpt import ForwardPass
from ablationlab.model.ops import PLAIN, Objective
from ablationlab.model.parameters import parameters, read_by_block
from ablationlab.model.weights import Parameter
from ablationlab.records.settings import ModelConfig


class ParameterOwner(nn.Module):
    """Some of the parameters, by their own names."""

    def __init__(self, owned: Sequence[Parameter]) -> None:
        super().__init__()
        self._attributes = {parameter.name: parameter.name.replace(".", "_") for parameter in owned}
        for parameter in owned:
            empty = torch.empty(parameter.shape, device="meta")
            self.register_parameter(self._attributes[parameter.name], nn.Parameter(empty))

    def own(self) -> dict[str, nn.Parameter]:
        """Parameters as they lie now: whole while the forward pass is inside, perhaps sharded outside."""
        return {name: getattr(self, attribute) for name, attribute in self._attributes.items()}

    def with_run_axis(self) -> dict[str, Tensor]:
        """The same as a stack of one."""
        return {name: value[None] for name, value in self.own().items()}


class BlockMatrices(ParameterOwner):
    """The matrices of one block, and its computation."""

    def __init__(self, owned: Sequence[Parameter], number: int, *, recompute: bool) -> None:
        super().__init__(owned)
        self.number = number
        self.recompute = recompute  # the inside of the block in the backward pass, instead of keeping it

    def forward(
        self, forward: ForwardPass, vectors: Mapping[str, Tensor], x: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(x, y) after the block."""
        if self.recompute and torch.is_grad_enabled():
            # Masks are functions of their names, so there is no generator to put back.
            result: tuple[Tensor, Tensor] = checkpoint(
                self._block, forward, vectors, x, y, use_reentrant=False, preserve_rng_state=False
            )
            return result
        return self._block(forward, vectors, x, y)

    def _block(
        self, forward: ForwardPass, vectors: Mapping[str, Tensor], x: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        return replace(forward, params={**vectors, **self.with_run_axis()}).block(self.number, x, y)


class Block(ParameterOwner):
    """One block: its gains and biases, and the norm behind it, around its matrices."""

    def __init__(self, owned: Sequence[Parameter], matrices: BlockMatrices) -> None:
        super().__init__(owned)
        self.matrices = matrices

    def forward(self, forward: ForwardPass, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(x, y) after the block."""
        result: tuple[Tensor, Tensor] = self.matrices(forward, self.with_run_axis(), x, y)
        return result


class WholeModel(ParameterOwner):
    """The whole model of one run."""

    def __init__(
        self, model: ModelConfig, dtype: torch.dtype, objective: Objective = PLAIN, *, checkpointing: bool
    ) -> None:
        blocks: list[Block] = []
        owned: set[Parameter] = set()
        for number in range(model.layers):
            reads = read_by_block(model, number)
            matrices = BlockMatrices([p for p in reads if p.in_products], number, recompute=checkpointing)
            blocks.append(Block([p for p in reads if not p.in_products], matrices))
            owned.update(reads)
        super().__init__([parameter for parameter in parameters(model) if parameter not in owned])
        self.blocks = nn.ModuleList(blocks)
        self.model, self.dtype, self.objective = model, dtype, objective

    def forward(
        self, tokens_1BT: Tensor, targets_1BT: Tensor | None, dropout: Dropout | None = None
    ) -> tuple[Tensor, Tensor]:
        """What is differentiated, loss terms included, and the mean loss, detached. Without targets: the logits as validation
        wants them (head in fp32), and the vectors entering block 1."""
        forward = ForwardPass(
            self.with_run_axis(),
            self.model,
            (self.model.front,),
            self.dtype,
            head_dtype=torch.float32 if targets_1BT is None else None,
            dropout=dropout if targets_1BT is not None else None,
            run_block=self._run_block,
        )
        if targets_1BT is None:
            x = forward.embed(tokens_1BT)
            return forward.decode(x), x
        loss, objective = forward.losses_R(tokens_1BT, targets_1BT, self.objective)
        return objective, loss.detach()

    def _run_block(self, forward: ForwardPass, number: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """By the module that owns the block's parameters; it reads none of the root's."""
        result: tuple[Tensor, Tensor] = self.blocks[number](replace(forward, params={}), x, y)
        return result

    def everything(self) -> dict[str, nn.Parameter]:
        """All parameters by their own names, in the model's order; sharded where they are."""
        views = self.own()
        for block in self.blocks:
            assert isinstance(block, Block)
            views |= block.own() | block.matrices.own()
        return {parameter.name: views[parameter.name] for parameter in parameters(self.model)}


def allocate(model: WholeModel, how: Literal["ddp", "fsdp"], device: torch.device, world: int) -> None:
    """Give the parameters their storage: whole, or this rank's shard of dimension 0."""
    if how == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh(device.type, (world,))
        products = MixedPrecisionPolicy(
            param_dtype=None if model.dtype == torch.float32 else model.dtype,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )
        rest = MixedPrecisionPolicy(cast_forward_inputs=False)
        for block in model.blocks:
            assert isinstance(block, Block)
            fully_shard(block.matrices, mesh=mesh, mp_policy=products)
            fully_shard(block, mesh=mesh, mp_policy=rest)
        fully_shard(model, mesh=mesh, mp_policy=rest)
    model.to_empty(device=device)
