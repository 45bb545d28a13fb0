"""The processes that train one run together, and how they communicate.

torchrun starts them and sets the rank of each in the environment; torch.distributed carries the numbers: NCCL between GPUs,
gloo between processors. What is not a tensor travels as JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ablationlab.core.errors import PlanError

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process's place among *world* of them."""

    rank: int
    world: int
    device: torch.device

    @classmethod
    def join(cls, device: Literal["cpu", "cuda"]) -> Ranks:
        """Join the group that torchrun describes in the environment."""
        try:
            rank, world, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        except (KeyError, ValueError):
            raise PlanError(
                "this program is one of several processes: start it with torchrun --nproc-per-node N -m "
                "ablationlab.cli.torchrun STUDY, or use ablationlab run STUDY --executor torchrun --nproc N"
            ) from None
        where = torch.device("cpu")
        if device == "cuda":
            if local >= torch.cuda.device_count():
                raise PlanError(
                    f"{local + 1} processes or more on this machine, but {torch.cuda.device_count()} GPUs: every process "
                    "needs its own GPU"
                )
            where = torch.device("cuda", local)
            torch.cuda.set_device(where)
        dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
        return cls(rank, world, where)

    @property
    def leads(self) -> bool:
        """Whether this process writes the records."""
        return self.rank == 0

    def leave(self) -> None:
        """Leave the group, after waiting for all other ranks."""
        dist.barrier()
        dist.destroy_process_group()

    def share(self, make: Callable[[], Any]) -> Any:
        """What the leader makes, in every process; a JSON value."""
        text = json.dumps(make()).encode() if self.leads else b""
        size = torch.tensor([len(text)])
        dist.broadcast(size, 0)
        data = torch.frombuffer(bytearray(text), dtype=torch.uint8) if self.leads else _bytes(int(size))
        dist.broadcast(data, 0)
        return json.loads(data.numpy().tobytes())

    def gather(self, value: Any) -> list[Any]:
        """Every process's JSON value, in the order of ranks, in all of them."""
        text = json.dumps(value).encode()
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor([len(text)]))
        longest = max(int(size) for size in sizes)
        ours = _bytes(longest)
        ours[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        received = [_bytes(longest) for _ in range(self.world)]
        dist.all_gather(received, ours)
        return [json.loads(data[: int(size)].numpy().tobytes()) for data, size in zip(received, sizes, strict=True)]

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        """The leader's flags."""
        values = torch.tensor(flags, dtype=torch.uint8)
        dist.broadcast(values, 0)
        return tuple(bool(flag) for flag in values.tolist())

    def total(self, values: Tensor) -> Tensor:
        """Sum over ranks, in place."""
        dist.all_reduce(values)
        return values

    def highest(self, values: Tensor) -> Tensor:
        """Maximum over ranks, in place."""
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return values


def _bytes(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.uint8)
