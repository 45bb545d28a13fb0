"""One GPU: the default study from the command to its verdict, page and paper, and when each part of it was done.

    python benchmarks/gpu_study.py [--rounds 2] [--precision bf16] [--no-report] [--study FILE] [--device cuda]
                                   [--set KEY=VALUE ...] [--profile FILE]

The first round starts with no compiled kernels (an empty Triton cache); the others find those of the round before, as a
user's second study does. Times are seconds since the command was given: of the files that each part leaves, and of the
lines that the command prints. With --profile the last round runs under cProfile, which costs time itself.
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
# What a part leaves behind: the first or the last of these files says when.
PARTS = {
    "plan sealed": ("plan.lock", min),
    "first run's record": ("runs/*/run.json", min),
    "last checkpoint": ("runs/*/checkpoints/*/*", max),
    "last result": ("runs/*/result.json", max),
    "tasks described": ("evaluation/suite.json", min),
    "first scores": ("runs/*/evaluation.json", min),
    "last scores": ("runs/*/evaluation.json", max),
    "analysis": ("analysis.json", max),
    "verdict": ("verdict.json", max),
    "page": ("report.html", max),
    "figures": ("figures/*", max),
    "tables": ("tables/*", max),
    "paper": ("paper/*", max),
}


def timeline(out: Path, began: float) -> dict[str, float]:
    """Seconds at which each part had left its first or last file."""
    found = {}
    for part, (pattern, which) in PARTS.items():
        times = [path.stat().st_mtime for path in out.glob(pattern) if path.is_file()]
        if times:
            found[part] = which(times) - began
    return found


def main() -> None:
    """One timeline per round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--study", type=Path, default=STUDY)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--no-report", action="store_true")
    parser.add_argument("--profile", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"TRITON_CACHE_DIR": str(Path(folder, "triton")), "PYTHONUNBUFFERED": "1"}
        for number in range(options.rounds):
            out = Path(folder, str(number))
            profiled = options.profile is not None and number + 1 == options.rounds
            words = [sys.executable, *(["-m", "cProfile", "-o", str(options.profile)] if profiled else [])]
            words += ["-m", "ablationlab", "run", str(options.study), "--out", str(out), "--device", options.device]
            words += ["--no-report"] if options.no_report else []
            for change in (f"training.precision={options.precision}", *options.set):
                words += ["--set", change]
            began = time.time()
            command = subprocess.Popen(
                words, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            assert command.stdout is not None
            lines = [(time.time() - began, line.rstrip()) for line in command.stdout]
            code = command.wait()
            total = time.time() - began
            print(f"{'cold' if number == 0 else 'warm'}{', profiled' if profiled else ''}: {total:.1f} s in all")
            for part, seconds in timeline(out, began).items():
                print(f"  {seconds:6.1f} s  {part}")
            for seconds, line in lines if code else [pair for pair in lines if pair[1].strip()][:40]:
                print(f"    {seconds:6.1f} s  | {line[:140]}")
            if code:
                raise SystemExit(f"the command ended with {code}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
