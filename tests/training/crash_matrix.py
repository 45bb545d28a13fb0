"""Kill a study at chosen moments, run it again, and report what is on disk: what test_resume runs in a process of its own.

Every attempt is a forked child that runs the real command line and dies by a real SIGKILL. Arguments: STUDY FOLDER POINT...
with POINT = kind:number, such as fsync:12, torn:5, step:7, result:2.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import torch

from ablationlab.cli import app as cli
from ablationlab.records import storage
from ablationlab.records.seal import RunSeal
from ablationlab.training import checkpoints, run_state
from ablationlab.training.stack import Stack

counts: dict[str, int] = {}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(kind: str, number: int) -> None:
    """From now on, die at the number-th event of that kind."""

    def counted(name, real, before=die):
        def wrapper(*args, **kwargs):
            counts[name] = counts.get(name, 0) + 1
            if name == kind and counts[name] == number:
                before(*args) if before is not die else die()
            return real(*args, **kwargs)

        return wrapper

    def torn_write(path: Path, data: bytes) -> None:
        with path.open("xb") as file:
            file.write(data[: len(data) // 2])
        die()

    os.fsync = counted("fsync", os.fsync)
    os.rename = counted("rename", os.rename)
    os.link = counted("link", os.link)
    checkpoints.write_bytes = counted("torn", storage.write_bytes, torn_write)
    Stack.advance = counted("step", Stack.advance)
    run_state.Result.create = counted("result", run_state.Result.create)  # its seal is there already


def attempt(study: str, folder: str, point: str | None) -> int:
    """Run the command in a child; returns its wait status."""
    child = os.fork()
    if child == 0:
        sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
        kind, _, number = (point or "never:0").partition(":")
        arm(kind, int(number))
        try:
            cli.main(["run", study, "--out", folder, "--workers", "1", "--device", "cpu"])
        except SystemExit as end:
            if point == "count:0":
                Path(folder, "counts.json").write_text(json.dumps(counts))
            os._exit(int(end.code or 0))
    return os.waitpid(child, 0)[1]


def fingerprint(folder: Path) -> dict[str, str]:
    """Hashes of everything that must not depend on how often a study was interrupted."""
    found = {}
    for run in sorted((folder / "runs").iterdir()):
        result = json.loads((run / "result.json").read_text())
        for volatile in ("timing", "finished", "history"):
            del result[volatile]
        found[f"{run.name}/result"] = json.dumps(result, sort_keys=True)
        for file in (
            run / "metrics.jsonl",
            *sorted(run.glob("probes.*")),
            *sorted(run.glob("checkpoints/*/*.safetensors")),
            *run.glob("halfway/*.safetensors"),
        ):
            found[str(file.relative_to(folder))] = hashlib.sha256(file.read_bytes()).hexdigest()
        sealed = RunSeal.read(run / "seal.json").files
        broken = [name for name, sha256 in sealed.items() if storage.sha256_file(run / name) != sha256]
        found[f"{run.name}/seal"] = f"{sorted(sealed)}, broken: {broken}"
        found[f"{run.name}/leftovers"] = str([p.name for p in run.rglob(".tmp*")])
    return found


def main() -> None:
    study, folder, *points = sys.argv[1:]
    torch.set_num_threads(1)
    calm = Path(folder, "calm")
    statuses = {"calm": attempt(study, str(calm), "count:0")}
    prints = {"calm": fingerprint(calm)}
    for point in points:
        here = Path(folder, point.replace(":", "-"))
        statuses[point] = attempt(study, str(here), point)
        statuses[f"{point} again"] = attempt(study, str(here), None)
        prints[point] = fingerprint(here)
    print(
        json.dumps({"statuses": statuses, "prints": prints, "counts": json.loads((calm / "counts.json").read_text())})
    )


if __name__ == "__main__":
    main()
