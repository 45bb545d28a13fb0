"""Every kind of file, damaged in every way, read by every verb: noticed, named, and no traceback.

`verify` must notice all of it. `analyze` must notice what it reads. A verb that does not read the file may end as if nothing
had happened. Damage that leaves the file's meaning alone (a space more in a file that no hash covers) is none.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path

from .study import Ended, command

Counts = Counter[str]
RUN, OTHER = "none-s1-*", "layernorm-s2-*"
#: Kinds of files, by a pattern below the results folder, and the verbs that must not pass over a change in silence.
KINDS: dict[str, tuple[str, ...]] = {
    "plan.lock": ("verify", "run"),
    f"runs/{RUN}/run.json": ("verify", "analyze", "run"),
    f"runs/{RUN}/result.json": ("verify", "analyze", "run"),
    f"runs/{RUN}/metrics.jsonl": ("verify", "analyze", "run"),
    f"runs/{RUN}/seal.json": ("verify", "analyze", "run"),
    f"runs/{RUN}/evaluation.json": ("verify", "analyze"),
    f"runs/{RUN}/samples.parquet": ("verify", "analyze"),
    f"runs/{RUN}/probes.parquet": ("verify", "analyze"),
    f"runs/{RUN}/checkpoints/*/weights.safetensors": ("verify", "export"),
    f"runs/{RUN}/checkpoints/*/checkpoint.json": ("verify", "export"),
    "evaluation/suite.json": ("verify", "analyze", "report"),
    "evaluation/tasks/*/items.jsonl": ("verify",),
    "energy/*.json": ("verify", "report"),
    "replication.json": ("verify", "report"),
    "analysis.json": ("verify", "report"),
    "verdict.json": ("verify", "report"),
}
VERBS = ("verify", "analyze", "status", "report", "run", "evaluate", "export", "watch")


def flip(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def cut(path: Path, draw: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: draw.randrange(len(data))])


def zero(path: Path, draw: random.Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def remove(path: Path, draw: random.Random) -> None:
    path.unlink()


def doubled(path: Path, draw: random.Random) -> None:
    path.write_bytes(path.read_bytes() * 2)


def number(path: Path, draw: random.Random) -> None:
    """A digit of the text, another one: the change that hides best."""
    data = bytearray(path.read_bytes())
    digits = [place for place, byte in enumerate(data) if 48 <= byte < 57]
    data[draw.choice(digits)] += 1
    path.write_bytes(data)


def nested(path: Path, draw: random.Random) -> None:
    path.write_text("[" * 200_000)


def null(path: Path, draw: random.Random) -> None:
    path.write_text("null\n")


def pipe(path: Path, draw: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def loop(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.symlink_to(path.name)


def directory(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.mkdir()


def swapped(path: Path, draw: random.Random) -> None:
    """The same file of another run, or of another task."""
    parts = path.parts
    place = len(parts) - 1 - parts[::-1].index("runs") if "runs" in parts else None
    if place is None:
        path.write_text(json.dumps({"kind": path.stem, "schema_version": 4}))
        return
    runs = Path(*parts[: place + 1])
    inside = Path(*parts[place + 2 :])
    other = next(runs.glob(OTHER)) / inside
    path.write_bytes(other.read_bytes())


Damage = Callable[[Path, random.Random], None]
DAMAGES: tuple[Damage, ...] = (
    *(flip, cut, zero, remove, doubled, number, nested, null),
    *(pipe, loop, directory, swapped),
)


#: Files that may be deleted before a verb: nothing says that they were ever there, or the verb makes them again.
MAY_LACK = {
    **dict.fromkeys(("energy/*.json", "replication.json", "analysis.json", "verdict.json"), ("verify", "report")),
    f"runs/{RUN}/result.json": ("run",),
}


def words(verb: str, folder: Path, study: Path, out: Path) -> list[str | Path]:
    """The verb on this folder."""
    given: dict[str, list[str | Path]] = {
        "verify": ["verify", folder],
        "analyze": ["analyze", folder],
        "status": ["status", study, "--out", folder],
        "report": ["report", folder, "--only", "tables", "--out", out],
        "run": ["run", study, "--out", folder, "--device", "cpu", "--workers", "1", "--no-report"],
        "evaluate": ["evaluate", folder, "--device", "cpu", "--workers", "1"],
        "export": ["export", next((folder / "runs").glob(RUN)), out / "exported"],
    }
    return given[verb]


def attempt(verb: str, folder: Path, study: Path, out: Path) -> Ended:
    if verb != "watch":
        return command(*words(verb, folder, study, out), seconds=120)

    def look() -> None:
        from ablationlab.report.live import Live

        _, state = Live(folder).state()
        print(state.fault, *(warning.text for warning in state.warnings))
        Live(folder).page()
        os._exit(0)

    # In a process of its own, as any other verb.
    return command("status", study, before=look, seconds=120)


def campaign(results: Path, study: Path, here: Path, count: int, seed: int) -> tuple[Counts, list[str]]:
    """*count* of all (file, damage, verb), drawn at random, but every file with every verb first. Every verb reads the sound
    folder before that, so that a verb which refuses it does not count as one that notices damage."""
    draw, counts, failures = random.Random(seed), Counts(), list[str]()
    cases: list[tuple[int, float, str, Damage, str]] = []
    for verb in VERBS:
        folder = Path(shutil.copytree(results, here / "sound"))
        ended = attempt(verb, folder, study, here / "out")
        if ended.code != 0:
            failures.append(f"{verb} of a sound folder: exit {ended.code}: {ended.text[-500:]}")
        shutil.rmtree(folder)
        shutil.rmtree(here / "out", ignore_errors=True)
    for pattern, verb in product(KINDS, VERBS):
        rounds = draw.sample(DAMAGES, len(DAMAGES))
        cases += [(turn, draw.random(), pattern, damage, verb) for turn, damage in enumerate(rounds)]
    cases.sort(key=lambda case: case[:2])
    for _, _, pattern, damage, verb in cases[:count]:
        folder = here / "damaged"
        shutil.copytree(results, folder)
        path = draw.choice(sorted(folder.glob(pattern)))
        before = path.read_bytes()
        damage(path, draw)
        if path.is_file() and path.read_bytes() == before:
            shutil.rmtree(folder)
            continue
        ended = attempt(verb, folder, study, here / "out")
        counts["file x damage x verb"] += 1
        name = path.relative_to(folder).as_posix()
        case = f"{verb} after {damage.__name__} of {name}"
        if not ended.clean:
            counts["a bug, a hang or a crash"] += 1
            failures.append(f"{case}: exit {ended.code}: {ended.text[-500:]}")
        elif verb in KINDS[pattern] and not (damage is remove and verb in MAY_LACK.get(pattern, ())):
            told = ended.code != 0 or path.name in ended.text
            counts["must be noticed"] += 1
            counts["noticed"] += told
            counts["noticed and named"] += path.name in ended.text or path.parent.name in ended.text
            if not told:
                failures.append(f"{case}: not noticed")
        shutil.rmtree(folder)
        shutil.rmtree(here / "out", ignore_errors=True)
    return counts, failures
