"""A full disk, too little memory, commands at the same time, and Ctrl-C while scoring."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

from .study import Command, command, differing, fingerprint, run_words

Counts = Counter[str]


def full_disk(planned: Path, study: Path, expected: dict[str, str], count: int, seed: int) -> tuple[Counts, list[str]]:
    """Files that must not grow beyond a size, or flushes that find no room from the n-th on; then room again."""
    draw, counts, failures = random.Random(seed), Counts(), list[str]()
    for number in range(count):
        folder = planned.parent / f"full-{number}"
        shutil.copytree(planned, folder)
        size, calls = int(10 ** draw.uniform(4.3, 5.5)), draw.randint(1, 150)  # what is printed is a file, too

        def small(size: int = size) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        def full(calls: int = calls) -> None:
            real, left = os.fsync, [calls]

            def fsync(handle: int) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                real(handle)

            os.fsync = fsync  # type: ignore[assignment]

        ended = command(*run_words(study, folder), before=small if number % 2 else full)
        again = command(*run_words(study, folder))
        different = differing(fingerprint(folder), expected)
        counts["full disks"] += 1
        counts["told"] += ended.clean and ("full" in ended.text or ended.code == 0)
        counts["ended in identical bytes"] += again.code == 0 and not different
        how = f"files of {size} bytes" if number % 2 else f"no room after {calls} flushes"
        if not ended.clean or again.code != 0 or different:
            failures.append(f"{how}: exit {ended.code}, then {again.code}, {different[:4]}: {ended.text[-300:]}")
        else:
            shutil.rmtree(folder)
    return counts, failures


def little_memory(results: Path, study: Path, here: Path, count: int, seed: int) -> tuple[Counts, list[str]]:
    """Verbs under a limit of address space: finished, or refused with a message."""
    draw, counts, failures = random.Random(seed), Counts(), list[str]()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    for number in range(count):
        folder = here / "limited"
        shutil.copytree(results, folder)
        limit = used + int(10 ** draw.uniform(8.3, 9.9))  # 0.2 to 8 GB beyond what this process has mapped
        verb = ("report", "analyze", "verify", "run")[number % 4]
        if verb == "run":
            shutil.rmtree(next((folder / "runs").iterdir()))
        words = run_words(study, folder) if verb == "run" else [verb, folder]

        def limited(limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

        ended = command(*words, before=limited)
        counts["commands"] += 1
        counts["finished"] += ended.code == 0
        counts["stopped with a message"] += ended.clean and ended.code != 0
        if not ended.clean:
            failures.append(f"{verb} with {limit / 1e9:.1f} GB: exit {ended.code}: {ended.text[-400:]}")
        shutil.rmtree(folder)
    return counts, failures


def together(planned: Path, study: Path, expected: dict[str, str], rounds: int) -> tuple[Counts, list[str]]:
    """Three `run`s and every reading verb at once on one folder."""
    counts, failures = Counts(), list[str]()
    for number in range(rounds):
        folder = planned.parent / f"together-{number}"
        shutil.copytree(planned, folder)
        reading: list[list[str | Path]]
        reading = [["analyze", folder], ["verify", folder], ["status", study, "--out", folder], ["report", folder]]
        commands = [Command(run_words(study, folder)) for _ in range(3)]
        for words in reading * 2:
            time.sleep(1)
            commands.append(Command(words))
        ends = [running.wait() for running in commands]
        counts["commands at once"] += len(ends)
        failures += [f"at once: exit {ended.code}: {ended.text[-400:]}" for ended in ends if not ended.clean]
        again = command(*run_words(study, folder))
        different = differing(fingerprint(folder), expected)
        counts["rounds that ended in identical bytes"] += again.code == 0 and not different
        if again.code != 0 or different:
            failures.append(f"after commands at once: exit {again.code}, {different[:4]}: {again.text[-300:]}")
        else:
            shutil.rmtree(folder)
    return counts, failures


def interrupted_scoring(results: Path, study: Path, here: Path, count: int, seed: int) -> tuple[Counts, list[str]]:
    """SIGINT and SIGTERM to the group, as a terminal sends them, at random moments of `evaluate`."""
    draw, counts, failures = random.Random(seed), Counts(), list[str]()
    length = 0.0
    for number in range(count + 1):
        folder = here / "scored"
        shutil.copytree(results, folder)
        for path in (folder / "runs").glob("*/evaluation.json"):
            path.unlink()
        shutil.rmtree(folder / "evaluation")
        began = time.monotonic()
        running = Command(["evaluate", folder, "--device", "cpu", "--workers", "2"])
        sign = signal.SIGTERM if number % 4 == 3 else signal.SIGINT
        if number:
            time.sleep(draw.uniform(0.05, length))
            running.kill("group", sign)
        ended = running.wait()
        length = length or time.monotonic() - began
        if number:
            counts["interrupts"] += ended.code != 0
            counts["ended with a message"] += ended.code in (130, 143) and "Traceback" not in ended.text
            if ended.code not in (0, 130, 143) or "Traceback" in ended.text or "InvalidStateError" in ended.text:
                failures.append(f"{sign.name} while scoring: exit {ended.code}: {ended.text[-1500:]}")
        elif ended.code != 0:
            failures.append(f"scoring itself: exit {ended.code}: {ended.text[-400:]}")
        shutil.rmtree(folder)
    return counts, failures
