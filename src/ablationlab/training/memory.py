"""When a device has no room for a step: what to set, in the study's own words."""

from __future__ import annotations

import torch

from ablationlab.core.errors import OutOfMemory
from ablationlab.records.settings import TrainingConfig, divisors_of

# The words of torch's allocator on the CPU, which raises a plain RuntimeError.
_CPU_WORDS = "DefaultCPUAllocator"


def no_room(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on a GPU or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and _CPU_WORDS in str(error)


def out_of_memory(error: BaseException, training: TrainingConfig, *, width: int = 1, ranks: int = 1) -> OutOfMemory:
    """The error to raise instead: it names the micro-batch to set, and what else would help."""
    share = training.batch // ranks
    now = min(training.micro_batch or share, share)
    smaller = [size for size in divisors_of(share) if size <= now // 2]
    where = f"each of {ranks} ranks" if ranks > 1 else f"a stack of {width} runs" if width > 1 else "one device"
    text = f"out of memory: {now} sequences of a forward pass do not fit on {where} ({str(error).splitlines()[0]}). "
    if smaller:
        text += f"Set training.micro_batch = {smaller[-1]} in the study (now {training.micro_batch or 'all at once'})"
    else:
        text += "One sequence at a time does not fit either"
    other = []
    if width > 1:
        other.append("a smaller execution.stack_width")
    other += ["execution.activation_checkpointing = true with execution.parallel = 'fsdp' (--executor torchrun)"]
    text += f"; else {', or '.join(other)}. Such a setting holds for all arms, so it makes another plan: use --out"
    return OutOfMemory(text)
