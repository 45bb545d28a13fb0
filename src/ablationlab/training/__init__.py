"""Training, from a sealed plan to results.

`stack` trains several runs in lockstep and `loop` drives it: steps, records, checkpoints, results. `executors/` decide where
the loop runs, `distributed/` spreads one run over several processes, `probes/` look inside. `run_state` and
`checkpoints` write a run's files; `perplexity` validates; `export` writes a trained run for other tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablationlab.core.lazy import lazy_exports

if TYPE_CHECKING:
    from ablationlab.training.export import GPT, load
    from ablationlab.training.loop import StackTrainer
    from ablationlab.training.progress import Progress, Stopped
    from ablationlab.training.stack import Member, Stack

__getattr__ = lazy_exports(__name__)
