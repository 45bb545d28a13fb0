"""Does a GPU keep the promises that the tests prove on the CPU? Run by hand on a machine with one (no CI has a GPU).

    python benchmarks/gpu_check.py [--study studies/embedding-norm.toml] [--precision fp32 tf32 bf16]
                                   [--set model.preset=llama-mini]

For each precision: the study trained twice ends in the same bits; killed in the middle and run again it ends in the
same bits; and the paired differences between variants stand beside each other across precisions.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

UNJUDGED = ("evaluation.tasks=[]", "evaluation.gate_seeds=[]", "criteria=[]", "hypotheses=[]")


def run(study: str, out: Path, precision: str, overrides: list[str], *, kill_after: int | None = None) -> float:
    """Train; with *kill_after*, SIGKILL once that many checkpoints exist. Returns seconds from command to end."""
    words = [sys.executable, "-m", "ablationlab", "run", study, "--out", str(out), "--device", "cuda"]
    began = time.monotonic()
    # Bits alone: without tasks, and without the criteria and hypotheses that ask for them.
    settings = (f"training.precision={precision}", "execution.checkpoint_every=50", *UNJUDGED, *overrides)
    words += ["--no-report", *(word for setting in settings for word in ("--set", setting))]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    while kill_after is not None and process.poll() is None:
        if len(list(out.glob("runs/*/checkpoints/step-*"))) >= kill_after:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.01)
    if process.wait() != 0 and kill_after is None:
        raise SystemExit(f"training failed: {study} {precision}")
    return time.monotonic() - began


def bits(out: Path) -> dict[str, tuple[str, bytes]]:
    """Weights' checksum and metrics' bytes of every run."""
    return {
        run.name: (
            json.loads((run / "result.json").read_text())["weights_sha256"],
            (run / "metrics.jsonl").read_bytes(),
        )
        for run in sorted((out / "runs").iterdir())
    }


def deltas(out: Path, metric: str = "validation_loss") -> dict[str, list[float]]:
    """variant - baseline per seed."""
    values: dict[tuple[str, int], float] = {}
    for run in (out / "runs").iterdir():
        record = json.loads((run / "run.json").read_text())
        values[record["variant"], record["seed"]] = json.loads((run / "result.json").read_text())["metrics"][metric]
        baseline = record["baseline"]
    names = sorted({name for name, _ in values if name != baseline})
    seeds = sorted({seed for _, seed in values})
    return {name: [values[name, seed] - values[baseline, seed] for seed in seeds] for name in names}


def main() -> None:
    """Print one block per precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    study = Path(__file__).resolve().parents[1] / "studies" / "embedding-norm.toml"
    parser.add_argument("--study", default=str(study))
    parser.add_argument("--precision", nargs="+", default=["fp32", "tf32", "bf16"])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as in `ablationlab run`")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for precision in options.precision:
            folders = [Path(name, f"{precision}-{kind}") for kind in ("first", "second", "killed")]
            seconds = [run(options.study, folder, precision, options.set) for folder in folders[:2]]
            run(options.study, folders[2], precision, options.set, kill_after=20)
            run(options.study, folders[2], precision, options.set)
            first, second, killed = map(bits, folders)
            starts = [json.loads(p.read_text())["timing"]["starts"] for p in folders[2].glob("runs/*/result.json")]
            print(f"{precision}: {len(first)} runs, {seconds[0]:.1f} s and {seconds[1]:.1f} s from command to end")
            print(f"  same bits twice: {first == second}; after a kill ({max(starts)} starts): {first == killed}")
            for variant, found in deltas(folders[0]).items():
                mean, spread = statistics.fmean(found), statistics.stdev(found)
                print(f"  {variant} - baseline, validation loss: {mean:+.5f} (SD {spread:.5f}, n = {len(found)})")


if __name__ == "__main__":
    main()
