"""Energy that the devices of this machine report: Intel and AMD processors by RAPL counters, NVIDIA GPUs by their power.

Both are of the whole device, whatever else runs on it. Where nothing is reported, nothing is estimated.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Literal, Self

EnergySource = Literal["rapl", "nvidia-smi"]
POWERCAP = Path("/sys/class/powercap")
#: Between two readings; a RAPL counter wraps after minutes at the earliest.
SAMPLE_SECONDS = 5.0
_ASK = ("nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits")


class EnergyMeter:
    """Adds up joules by source while it is open. A source that cannot be read at the start is left out."""

    def __init__(self, *, gpu: bool, powercap: Path = POWERCAP) -> None:
        self.joules: dict[EnergySource, float] = {}
        self.seconds = 0.0
        self._packages = [zone for zone in sorted(powercap.glob("intel-rapl:[0-9]")) if not _is_platform(zone)]
        self._gpu = gpu and shutil.which(_ASK[0]) is not None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._began = self._at = time.monotonic()
        #: Where the counters start again at 0.
        self._limits = _numbers([package / "max_energy_range_uj" for package in self._packages]) or []
        self._counters = self._read_counters() if self._limits else None
        self._watts = gpu_watts() if self._gpu else None
        if self._counters is not None:
            self.joules["rapl"] = 0.0
        if self._watts is not None:
            self.joules["nvidia-smi"] = 0.0
        if self.joules:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self.joules:
            self._thread.join()
            self._sample()
        self.seconds = time.monotonic() - self._began

    def _run(self) -> None:
        while not self._end.wait(SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        if self._counters is not None and (counters := self._read_counters()) is not None:
            for before, after, limit in zip(self._counters, counters, self._limits, strict=True):
                self.joules["rapl"] += (after - before if after >= before else max(0, after + limit - before)) / 1e6
            self._counters = counters
        if self._watts is not None and (watts := gpu_watts()) is not None:
            now = time.monotonic()
            self.joules["nvidia-smi"] += (self._watts + watts) / 2 * (now - self._at)
            self._watts = watts
            self._at = now

    def _read_counters(self) -> list[int] | None:
        """Microjoules of every package; None where there is none, or only root may read them."""
        return _numbers([package / "energy_uj" for package in self._packages])


def _is_platform(zone: Path) -> bool:
    """Whether it counts the whole machine, packages included. Zones below a package are parts of it, and not looked at."""
    try:
        return (zone / "name").read_text().strip() == "psys"
    except OSError:
        return False


def _numbers(files: list[Path]) -> list[int] | None:
    try:
        return [int(file.read_text()) for file in files] or None
    except (OSError, ValueError):
        return None


def gpu_watts() -> float | None:
    """Power of the GPUs that this process may use, together; None where one does not report it."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    only = ["-i", chosen] if chosen else []
    try:
        answer = subprocess.run([*_ASK, *only], capture_output=True, text=True, check=True, timeout=20)
        watts = [float(line) for line in answer.stdout.splitlines()]
        return sum(watts) if watts and all(0 <= value < math.inf for value in watts) else None
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
