"""Launching kernels, or only compiling them: all that a step will need, at once and in parallel."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

_only_compile = False


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **how: Any) -> None:
    """Run a kernel over a grid; inside `compiling`, only have it compiled for such arguments."""
    if _only_compile:
        kernel.warmup(*args, grid=grid, **how)
    else:
        kernel[grid](*args, **how)


@contextmanager
def compiling() -> Iterator[None]:
    """In here kernels are not run but compiled, in threads; at the end all are ready. What they would write is undefined."""
    global _only_compile
    try:
        from triton.runtime._async_compile import AsyncCompileMode
    except ImportError:  # a Triton that has no such mode compiles each kernel at its first launch
        yield
        return
    # Triton's mode is a context variable, and autograd's device threads do not inherit those.
    with (
        torch.autograd.set_multithreading_enabled(False),
        ThreadPoolExecutor(max(2, os.cpu_count() or 1)) as pool,
        AsyncCompileMode(pool),
    ):
        _only_compile = True
        try:
            yield
        finally:
            _only_compile = False
