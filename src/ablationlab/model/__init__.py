"""The GPT, for many runs at once.

`gpt` is the one forward pass, `parts` what a block is made of, `attention` the ways to attend; `weights` and `parameters` say
what there is to train, without torch. `ops` has the memory-bound steps in plain torch and `kernels/` their twins for a GPU;
`machine` chooses the device, without torch where that is a CPU; `device` prepares it, moves numbers to it and back, and
records CUDA graphs; `dropout` and `optimizers` do what their names say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablationlab.core.lazy import lazy_exports
from ablationlab.model.parameters import matmul_flops_per_token, parameter_count, parameters
from ablationlab.model.weights import Parameter

if TYPE_CHECKING:
    from ablationlab.model.dropout import Dropout
    from ablationlab.model.gpt import ForwardPass
    from ablationlab.model.optimizers import AdamW

__getattr__ = lazy_exports(__name__)
