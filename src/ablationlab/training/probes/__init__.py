"""Probes: diagnostics that look inside training and never change it.

`stack_probes` runs those that are due and writes what they read; `snapshot` is what a probe sees and gives back. One file per
subject: `optimizer`, `embedding`, `activations`, `gradient_bound`, `data_order`. Every probe is declared in `study.probes`.
"""

from __future__ import annotations

from ablationlab.training.probes.snapshot import Reading, Snapshot
from ablationlab.training.probes.stack_probes import MEASUREMENTS, StackProbes
