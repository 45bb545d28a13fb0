"""Ray and torchrun: a worker, a node, the driver or a rank is killed in mid-training, then the same command continues."""

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
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ablationlab.training.executors.ray_cluster import OBJECT_STORE_BYTES, QUIET

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

    def end(self, seconds: float = 1800) -> tuple[int, str]:
        try:
            text, _ = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            for pid in self.named(""):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            text, _ = self.process.communicate()
            return -signal.SIGKILL, f"hung: {text}"
        return self.process.returncode, text


#: What is killed, by a part of its command line. The driver is the command itself; a node is one of a cluster of two.
VICTIMS: dict[str, dict[str, str | None]] = {
    "ray": {"worker": "ray::train_stack", "node": None, "head": "raylet/raylet", "driver": ""},
    "torchrun": {"rank": "ablationlab.training.executors.torchrun", "driver": ""},
}
#: Enough that a kill falls into training, however long starting takes.
STEPS, CHECKPOINT = 600, 50


def campaign(executor: str, study: Path, here: Path, count: int, seed: int) -> tuple[Counts, list[str]]:
    draw, counts, failures = random.Random(seed), Counts(), list[str]()
    ddp = ["--nproc", "2", "--set", "execution.parallel=ddp"]
    more = ddp if executor == "torchrun" else ["--workers", "2"]
    longer = ["--set", f"training.steps={STEPS}", "--set", f"execution.checkpoint_every={CHECKPOINT}"]

    def words(folder: Path, *, local: bool = False) -> list[str | Path]:
        how = ["--workers", "2"] if local else ["--executor", executor, *more]
        return ["run", study, "--out", folder, "--device", "cpu", "--no-report", *longer, *how]

    # Ray's weights are those of the local executor; ranks add up their gradients in another order.
    calm = here / "calm"
    code, text = Fresh(*words(calm, local=executor == "ray")).end()
    if code != 0:
        return counts, [f"{executor}, undisturbed: exit {code}: {text[-500:]}"]
    expected = _weights(calm)
    total = STEPS * len(list((calm / "runs").iterdir()))
    for number in range(count):
        folder = here / f"attacked-{number}"
        victim = list(VICTIMS[executor])[number % len(VICTIMS[executor])]
        moment = round(draw.uniform(0.02, 0.8) * total)
        with two_nodes() if victim == "node" else contextlib.nullcontext() as nodes:
            address = [] if nodes is None else ["--address", nodes.address]
            running = Fresh(*words(folder), *address)
            while _steps(folder) < moment and running.process.poll() is None:
                time.sleep(0.05)
            hit = _kill(running, victim, VICTIMS[executor][victim], nodes, draw)
            code, text = running.end()
        bug = any(word in text for word in BUGS) or "hung" in text
        again, said = Fresh(*words(folder)).end()
        different = differing(_weights(folder), expected)
        counts[f"kills ({victim})"] += hit
        counts[f"went on by itself ({victim})"] += hit and code == 0
        counts["ended in identical weights"] += again == 0 and not different
        if not hit or bug or again != 0 or different:
            failures.append(
                f"{executor} {victim} at step {moment} of {total}: killed {hit}, exit {code}, then {again}, {different[:3]}: "
                f"{text[-400:]} {said[-300:]}"
            )
        else:
            shutil.rmtree(folder)
    return counts, failures


def _kill(running: Fresh, victim: str, part: str | None, nodes: Any, draw: random.Random) -> bool:
    """Kill one *victim* of a command that is still training; whether there was one."""
    if running.process.poll() is not None:
        return False
    if part is None:
        nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)
        return True
    pids = [running.process.pid] if victim == "driver" else running.victims(part, seconds=5)
    if not pids:
        return False
    try:
        os.kill(draw.choice(pids), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def two_nodes() -> Iterator[Any]:
    """A Ray cluster of two nodes on this machine, with one core each; the second can be taken away."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 1, "object_store_memory": OBJECT_STORE_BYTES}
    cluster = Cluster()
    try:
        for more in ({"include_dashboard": False}, {}):
            _start(partial(cluster.add_node, **size, **more))
        yield cluster
    finally:
        cluster.shutdown()


def _start(node: Callable[[], Any], tries: int = 5) -> None:
    """Start a node; Ray waits 30 s for one, which is too little on a busy machine."""
    for left in reversed(range(tries)):
        try:
            node()
            return
        except Exception:
            if not left:
                raise


def _steps(folder: Path) -> int:
    """The steps that all runs have written down."""
    return sum(path.read_bytes().count(b"\n") for path in (folder / "runs").glob("*/metrics.jsonl"))


def _weights(folder: Path) -> dict[str, str]:
    """Of two sealed plans: the weights and curves of the runs, which follow from the study alone."""
    return {
        name: sha256
        for name, sha256 in fingerprint(folder).items()
        if name.endswith(("metrics.jsonl", "weights.safetensors"))
    }
