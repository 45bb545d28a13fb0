"""What torchrun can spread over processes: which numbers of them can share a batch, and what rules them all out. No torch.

Rank r of W takes samples [r·B/W, (r+1)·B/W) of every batch of B, in passes of ``micro_batch``: W · micro_batch divides B. The
executor and the planner ask here, so that nothing is planned that would not be run.
"""

from __future__ import annotations

from math import gcd

from ablationlab.records.settings import DEFAULT_REGIME, Study, TrainingConfig, divisors_of
from ablationlab.study.probes import probe_intervals


def refusal(training: TrainingConfig, processes: int, key: str = "training") -> str | None:
    """Why so many processes cannot share a batch, and what could; None if they can. *key* is where the settings stand."""
    batch, micro_batch = training.batch, training.micro_batch
    if batch % (processes * (micro_batch or 1)) == 0:
        return None
    each = f" x {key}.micro_batch = {micro_batch}" if micro_batch else ""
    text = (
        f"{processes} processes{each} do not divide {key}.batch = {batch}: every process takes an equal share of each "
        f"batch, in whole passes. Numbers of processes that do: {_listed(divisors_of(batch // (micro_batch or 1)))}"
    )
    if micro_batch and batch % processes == 0:
        text += f"; for {processes} processes {key}.micro_batch may be {_listed(divisors_of(batch // processes))}"
    return text


def refusal_of(study: Study, processes: int) -> str | None:
    """The same for a study: the first of its regimes that cannot be spread so."""
    for regime in study.regime_names():
        key = "training" if regime == DEFAULT_REGIME else f"regimes.{regime}.training"
        text = refusal(study.in_regime(regime)[1], processes, key)
        if text is not None:
            return text
    return None


def probes_refusal(study: Study, parallel: str | None = None) -> str | None:
    """Why the study's probes could not look at its runs, laid out as it says or as *parallel* says; None if they can."""
    if not study.probes or (parallel or study.execution.parallel) != "fsdp":
        return None
    return (
        "[probes] look at whole weights and gradients in one process, and execution.parallel = 'fsdp' leaves them in none; "
        f"here: {', '.join(probe_intervals(study))}. Take the table out, set execution.parallel = 'ddp' where a model fits "
        "on one device, or leave it out to train every run on one device"
    )


def possible(study: Study) -> list[int]:
    """All numbers of processes that can share the batches of every regime."""
    trainings = [study.in_regime(regime)[1] for regime in study.regime_names()]
    return divisors_of(gcd(*(training.batch // (training.micro_batch or 1) for training in trainings)))


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
