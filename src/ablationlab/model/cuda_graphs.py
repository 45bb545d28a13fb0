"""Work that is recorded once as a CUDA graph and then replayed: no launches, no traffic with the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def compile_kernels(work: Callable[[], None]) -> None:
    """Compile all kernels of *work*, in parallel, without running them: what they would write is undefined."""
    from ablationlab.model.kernels import launch

    with launch.compiling():
        work()


def on_side_stream(work: Callable[[], T]) -> T:
    """Run *work* once outside the main stream, as must be done before it is recorded: workspaces are made then."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        result = work()
    torch.cuda.current_stream().wait_stream(side)
    return result


def recorded(work: Callable[[], None], pool: Any = None) -> torch.cuda.CUDAGraph:
    """*work* as a graph; graphs that are never replayed at the same time may share a pool of memory."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        work()
    return graph
