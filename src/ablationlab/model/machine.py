"""What this machine trains with: its device, its precisions and its memory.

torch knows, and takes seconds to import. So a machine without the files of a GPU driver has no GPU, and what torch says of a
processor is kept in the cache: planning for a CPU needs torch only the first time.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from ablationlab.core.errors import OutOfMemory, PlanError, RecordError, StorageError
from ablationlab.core.format import byte_size, count
from ablationlab.core.processes import usable_memory
from ablationlab.data.sources import cache_folder
from ablationlab.records.storage import read_json, replace

DeviceName = Literal["cpu", "cuda"]
Precision = Literal["fp32", "tf32", "bf16"]
# Files of the drivers of NVIDIA (desktop, Jetson, Windows' subsystem for Linux) and AMD.
_GPU_FILES = ("nvidia*", "nvhost*", "nvgpu*", "nvmap", "dxg", "kfd")
# fp32 weights, gradients and Adam's two moments: what a stack holds before its first step.
_BYTES_PER_PARAMETER = 16


def choose_device(asked: Literal["auto", "cpu", "cuda"]) -> tuple[DeviceName, str]:
    """The device asked for and its full name; `auto` takes a GPU where there is one."""
    if asked == "cpu" or not has_gpu():
        if asked == "cuda":
            raise PlanError(
                "--device cuda: this torch sees no CUDA GPU; use --device cpu, or install a CUDA build of torch"
            )
        # "DEFAULT" is torch's word for no vector instructions that it names.
        named = _processor().capability
        return "cpu", "cpu" if named == "DEFAULT" else f"cpu ({named})"
    import torch

    return "cuda", torch.cuda.get_device_name(0)


def choose_precision(asked: Literal["auto", "fp32", "tf32", "bf16"], device: DeviceName) -> Precision:
    """`auto` is bf16 where the device has matrix units for it, else fp32; a precision that a GPU lacks is refused."""
    if asked == "tf32" and device != "cuda":
        raise PlanError("training.precision = 'tf32' exists on CUDA GPUs only; use 'fp32' or 'bf16'")
    if asked in ("fp32", "tf32"):
        return asked
    if device == "cuda":
        import torch

        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_bf16 = _processor().bf16_units
    if asked == "auto":
        return "bf16" if has_bf16 else "fp32"
    if device == "cuda" and not has_bf16:
        raise PlanError("training.precision = 'bf16': this GPU has no bf16; use 'fp32'")
    return asked


def has_gpu() -> bool:
    """Whether torch sees a GPU; it is not asked where no driver has left its files."""
    if sys.platform == "linux" and not any(True for name in _GPU_FILES for _ in Path("/dev").glob(name)):
        return False
    import torch

    return torch.cuda.is_available()


def gpu_memory() -> int:
    """Bytes of the GPU, whoever uses them now."""
    import torch

    return int(torch.cuda.mem_get_info()[1])


def check_room(parameters: int, width: int, device: DeviceName) -> None:
    """Refuse a stack whose weights, gradients and moments alone do not fit into the memory that there is."""
    needed = _BYTES_PER_PARAMETER * parameters * width
    there = gpu_memory() if device == "cuda" else usable_memory()
    if needed > there:
        narrower = f", or a stack narrower than {width} runs (execution.stack_width)" if width > 1 else ""
        raise OutOfMemory(
            f"{count(parameters)} parameters per run need {byte_size(needed)} for weights, gradients and moments alone, and "
            f"this {'GPU' if device == 'cuda' else 'machine'} has {byte_size(there)}; use a smaller model{narrower}, or "
            "execution.parallel = 'fsdp' with --executor torchrun"
        )


@dataclass(frozen=True)
class Processor:
    """What torch says of the processor: the vector instructions that it uses, and whether there are matrix units for bf16."""

    capability: str
    bf16_units: bool


def _processor() -> Processor:
    return _asked() if "torch" in sys.modules else _kept() or _asked()


def _kept() -> Processor | None:
    """What torch said before, of this very processor; None where nothing was kept, or something else."""
    with suppress(OSError, RecordError):
        match read_json(_cache_file()):
            case {"capability": str(named), "bf16_units": bool(units)} if re.fullmatch(r"[A-Z0-9_ ]{1,20}", named):
                return Processor(named, units)
    return None


@cache
def _asked() -> Processor:
    import torch

    answer = Processor(torch.backends.cpu.get_cpu_capability(), torch.cpu._is_amx_tile_supported())
    with suppress(OSError, StorageError):  # a cache that cannot be written costs time alone
        if _kept() != answer:
            replace(_cache_file(), json.dumps(asdict(answer)).encode())
    return answer


def _cache_file() -> Path:
    """Named after all that the answer depends on."""
    facts = [version("torch"), platform.platform(), os.environ.get("ATEN_CPU_CAPABILITY", "")]
    described = ("model name", "flags", "cpu part", "features")
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    facts += sorted({line for line in lines if line.lower().startswith(described)})
    return cache_folder() / "processor" / f"{hashlib.sha256(chr(10).join(facts).encode()).hexdigest()[:16]}.json"
