"""Random kills over the whole pipeline: planning, training, scoring, analysis and report; and over `data prepare`.

A study is killed four times at random moments (its main process, its process group, or a single worker), then run to its
end. Every file must then be that of a study which nothing disturbed, and the chain of hashes must hold.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

from .study import Command, command, differing, fingerprint, run_words, write_study

Counts = Counter[str]


#: Of every study.
KILLS = 4


def campaign(here: Path, count: int, seed: int) -> tuple[Counts, list[str]]:
    """*count* kills and a few more, `KILLS` of every study; what happened, and what should not have."""
    draw, counts, failures = random.Random(seed), Counts(), list[str]()
    study = write_study(here)
    planned = here / "planned"
    assert command("plan", study, "--out", planned, "--device", "cpu").code == 0
    calm = here / "calm"
    shutil.copytree(planned, calm)
    began = time.monotonic()
    reference = command(*run_words(study, calm))
    length = time.monotonic() - began
    assert reference.code == 0, reference.text
    expected = fingerprint(calm)
    while (number := counts["studies killed"]) * KILLS < count:
        folder = here / f"killed-{number}"
        shutil.copytree(planned, folder)
        told, hits = list[str](), 0
        while hits < KILLS:
            # The later the kill, the less is left to do.
            whom, moment = draw.choice(("main", "group", "worker")), draw.uniform(0, length / (1 + hits / 2))
            running = Command(run_words(study, folder))
            time.sleep(moment)
            hit = running.kill(whom, signal.SIGKILL)
            ended = running.wait()
            told.append(f"{whom} at {moment:.1f} of {length:.1f} s")
            if not hit or ended.code == 0:  # too late, or there was no worker
                counts["kills that hit nothing"] += 1
                length *= 0.8
                continue
            hits += 1
            counts[f"kills ({whom})"] += 1
            if ended.code != -signal.SIGKILL and not ended.clean:
                failures.append(f"killing {told[-1]}: {ended.text[-400:]}")
        again = command(*run_words(study, folder))
        if again.code != 0:
            # A worker that was killed fails its runs; the command after that trains them.
            again = command(*run_words(study, folder))
        different = differing(fingerprint(folder), expected)
        held = command("verify", folder).code == 0
        counts["studies killed"] += 1
        counts["ended in identical bytes, chain holds"] += again.code == 0 and not different and held
        if again.code != 0 or different or not held:
            failures.append(
                f"after {', '.join(told)}: exit {again.code}, chain {held}, {different[:4]} {again.text[-300:]}"
            )
        else:
            shutil.rmtree(folder)
    return counts, failures


def prepare(here: Path, count: int, seed: int) -> tuple[Counts, list[str]]:
    """`data prepare` killed at random moments, then run again: the bytes of one that was not."""
    draw, counts, failures = random.Random(seed), Counts(), list[str]()
    write_study(here)
    text = here / "text.txt"

    def words(out: Path) -> list[str | Path]:
        return ["data", "prepare", text, "--out", out, "--tokenizer", "char"]

    began = time.monotonic()
    reference = command(*words(here / "calm"))
    length = time.monotonic() - began
    assert reference.code == 0, reference.text
    expected = contents(here / "calm")
    for number in range(count):
        out = here / f"prepared-{number}"
        running = Command(words(out))
        time.sleep(draw.uniform(0, length))
        running.kill(draw.choice(("main", "group")))
        counts["kills"] += running.wait().code < 0
        again = command(*words(out))
        same = again.code == 0 and contents(out) == expected
        counts["prepared again to identical bytes"] += same
        if not same:
            failures.append(f"data prepare {number}: exit {again.code}: {again.text[-300:]}")
    return counts, failures


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"
    }
