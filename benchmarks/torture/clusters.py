"""Ray and torchrun: a worker, a node, the driver or a rank is killed at a random moment, then the same command continues."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from .study import BUGS, differing, fingerprint

Counts = Counter[str]
#: Set in the environment of what is started, so that its processes are found wherever they were moved.
MARK = "ABLATIONLAB_TORTURE"


class Fresh:
    """`ablationlab WORDS` as a fresh process in a session of its own: Ray and torchrun cannot be forked from a warm one."""

    def __init__(self, *words: str | Path) -> None:
        program = [sys.executable, "-m", "ablationlab", *map(str, words)]
        self.mark = f"{MARK}={secrets.token_hex(8)}"
        environment = {**os.environ, MARK: self.mark.partition("=")[2]}
        self.process = subprocess.Popen(
            program,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=environment,
        )

    def named(self, part: str) -> list[int]:
        """Processes that it started, in whatever session, whose command line has *part* in it.

        By their environment or by their parents: a Ray worker writes its title over its environment.
        """
        lines, parents, pids = dict[int, str](), dict[int, int](), set[int]()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                pid = int(entry.name)
                lines[pid] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                parents[pid] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if self.mark.encode() in (entry / "environ").read_bytes():
                    pids.add(pid)
        pids.add(self.process.pid)
        while found := {pid for pid, parent in parents.items() if parent in pids} - pids:
            pids |= found
        return [pid for pid in pids if part in lines.get(pid, "")]

    def victims(self, part: str, seconds: float = 120) -> list[int]:
        """The same, waited for, without torchrun's launcher, whose command line names the ranks' module, too."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            launchers = set(self.named("--nproc-per-node"))
            if pids := [pid for pid in self.named(part) if pid not in launchers]:
                return pids
            time.sleep(0.1)
        return []

    def end(self, seconds: float = 900) -> tuple[int, str]:
        try:
            text, _ = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            for pid in self.named(""):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            text, _ = self.process.communicate()
            return -signal.SIGKILL, f"hung: {text}"
        return self.process.returncode, text


#: What is killed, by a part of its command line; the driver is the command itself.
VICTIMS = {
    "ray": {"worker": "ray::", "node": "raylet/raylet", "driver": ""},
    "torchrun": {"rank": "ablationlab.training.executors.torchrun", "driver": ""},
}


def campaign(executor: str, planned: Path, study: Path, count: int, seed: int) -> tuple[Counts, list[str]]:
    draw, counts, failures = random.Random(seed), Counts(), list[str]()
    ddp = ["--nproc", "2", "--set", "execution.parallel=ddp"]
    more = ddp if executor == "torchrun" else ["--workers", "2"]

    def words(folder: Path) -> list[str | Path]:
        return ["run", study, "--out", folder, "--device", "cpu", "--executor", executor, "--no-report", *more]

    calm = planned.parent / f"{executor}-calm"
    began = time.monotonic()
    code, text = Fresh(*words(calm)).end()
    length = time.monotonic() - began
    if code != 0:
        return counts, [f"{executor}, undisturbed: exit {code}: {text[-500:]}"]
    expected = _weights(calm)
    for number in range(count):
        folder = planned.parent / f"{executor}-{number}"
        victim = list(VICTIMS[executor])[number % len(VICTIMS[executor])]
        running = Fresh(*words(folder))
        moment = draw.uniform(0.3, 0.8) * length
        time.sleep(moment)
        pids = [running.process.pid] if victim == "driver" else running.victims(VICTIMS[executor][victim])
        with contextlib.suppress(ProcessLookupError):
            if pids:
                os.kill(draw.choice(pids), signal.SIGKILL)
        code, text = running.end()
        bug = any(word in text for word in BUGS) or "hung" in text
        again, said = Fresh(*words(folder)).end()
        if again != 0:
            again, said = Fresh(*words(folder)).end()
        different = differing(_weights(folder), expected)
        counts[f"kills ({victim})"] += bool(pids)
        counts["ended in identical weights"] += again == 0 and not different
        if bug or again != 0 or different:
            failures.append(
                f"{executor} {victim} at {moment:.1f} s: exit {code}, then {again}, {different[:3]}: {text[-400:]} "
                f"{said[-300:]}"
            )
        else:
            shutil.rmtree(folder)
    return counts, failures


def _weights(folder: Path) -> dict[str, str]:
    """Of two sealed plans: the weights and curves of the runs, which follow from the study alone."""
    return {
        name: sha256
        for name, sha256 in fingerprint(folder).items()
        if name.endswith(("metrics.jsonl", "weights.safetensors"))
    }
