"""One H200: the default study from command to last checkpoint, and to the end, in seconds.

    python benchmarks/gpu_study.py [--rounds 3] [--precision bf16]

Start-up, compilation, graph capture, curves and whole-split validation included. The first round starts with no compiled
kernels (an empty Triton cache); the others find those of the round before, as a user's second study does. Curves and
probes are those of the study; the tasks, which come after the last checkpoint, and the report are left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STUDY = Path(__file__).parents[1] / "studies" / "embedding-norm.toml"


def main() -> None:
    """One line per round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", default="bf16")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"TRITON_CACHE_DIR": str(Path(folder, "triton"))}
        for number in range(options.rounds):
            out = Path(folder, str(number))
            words = [sys.executable, "-m", "ablationlab", "run", str(STUDY), "--out", str(out), "--device", "cuda"]
            began, wall = time.monotonic(), time.time()
            subprocess.run(
                [
                    *words,
                    "--no-report",
                    "--set",
                    "evaluation.tasks=[]",
                    "--set",
                    f"training.precision={options.precision}",
                ],
                check=True,
                stdout=subprocess.DEVNULL,
                env=environment,
            )
            total = time.monotonic() - began
            first = min(path.stat().st_mtime for path in out.glob("runs/*/run.json"))
            last = max(path.stat().st_mtime for path in out.glob("runs/*/checkpoints/*/*"))
            result = max(path.stat().st_mtime for path in out.glob("runs/*/result.json"))
            print(
                f"{'cold' if number == 0 else 'warm'}: first record {first - wall:.1f} s, last checkpoint "
                f"{last - wall:.1f} s, last result {result - wall:.1f} s, end of command {total:.1f} s"
            )


if __name__ == "__main__":
    main()
