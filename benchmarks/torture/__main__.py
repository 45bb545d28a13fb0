"""`make torture`: every campaign, with counts.

    python -m benchmarks.torture [--size 1] [--seed 0] [kills records studies disk memory together scoring ray torchrun]

``--size`` multiplies how often each attack is made; 1 takes some minutes on two cores. Ends with 1 if anything went wrong.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from . import clusters, kills, limits, records, studies
from .study import command, fingerprint, run_words, warm, write_replication, write_study

Found = tuple[Counter[str], list[str]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", nargs="*")
    parser.add_argument("--size", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warm()
    with tempfile.TemporaryDirectory(prefix="torture-") as place:
        here = Path(place)
        campaigns = _campaigns(here, given.size, given.seed)
        unknown = set(given.which) - campaigns.keys()
        if unknown:
            parser.error(f"no campaign {', '.join(sorted(unknown))}; there are {', '.join(campaigns)}")
        wrong = 0
        for name in given.which or campaigns:
            began = time.monotonic()
            counts, failures = campaigns[name]()
            listed = ", ".join(f"{what} {number}" for what, number in counts.items())
            print(f"{name}: {listed}; went wrong {len(failures)}; {time.monotonic() - began:.0f} s", flush=True)
            for failure in failures:
                print(f"  - {failure}", flush=True)
            wrong += len(failures)
    return 1 if wrong else 0


def _campaigns(here: Path, size: float, seed: int) -> dict[str, Callable[[], Found]]:
    """By name, in the order of `make torture`."""
    made: dict[str, tuple[Path, Path, Path, dict[str, str]]] = {}

    def whole() -> tuple[Path, Path, Path, dict[str, str]]:
        """The study, its planned folder, its finished folder, and the fingerprint of that; made once."""
        if not made:
            folder = here / "whole"
            folder.mkdir()
            study, planned, calm = write_study(folder), folder / "planned", folder / "calm"
            ended = command("plan", study, "--out", planned, "--device", "cpu")
            assert ended.code == 0, ended.text
            shutil.copytree(planned, calm)
            ended = command(*run_words(study, calm))
            assert ended.code == 0, ended.text
            write_replication(calm)
            made["whole"] = study, planned, calm, fingerprint(calm)
        return made["whole"]

    def times(count: int) -> int:
        return max(1, round(size * count))

    def room(name: str) -> Path:
        (here / name).mkdir()
        return here / name

    def attacked(count: int) -> Found:
        outcomes = studies.campaign(count, seed, lambda outcome: None)
        failures = [outcome for outcome in outcomes if outcome.kind not in ("planned", "refused")]
        counts = Counter({"files": len(outcomes)}) + Counter(outcome.kind for outcome in outcomes)
        return counts, [f"{outcome.kind}: {outcome.what}: {outcome.message[-300:]}" for outcome in failures]

    def damaged() -> Found:
        study, _, calm, _ = whole()
        return records.campaign(calm, study, room("records"), times(300), seed)

    def disk() -> Found:
        study, planned, _, expected = whole()
        return limits.full_disk(planned, study, expected, times(10), seed)

    def memory() -> Found:
        study, _, calm, _ = whole()
        return limits.little_memory(calm, study, room("memory"), times(12), seed)

    def together() -> Found:
        study, planned, _, expected = whole()
        return limits.together(planned, study, expected, times(1))

    def scoring() -> Found:
        study, _, calm, _ = whole()
        return limits.interrupted_scoring(calm, study, room("scoring"), times(20), seed)

    def cluster(executor: str) -> Found:
        here = room(executor)
        return clusters.campaign(executor, write_study(here), here, times(4 if executor == "ray" else 2), seed)

    return {
        "kills": lambda: kills.campaign(room("kills"), times(20), seed),
        "prepare": lambda: kills.prepare(room("prepare"), times(10), seed),
        "records": damaged,
        "studies": lambda: attacked(times(500)),
        "disk": disk,
        "memory": memory,
        "together": together,
        "scoring": scoring,
        "ray": lambda: cluster("ray"),
        "torchrun": lambda: cluster("torchrun"),
    }


if __name__ == "__main__":
    sys.exit(main())
