"""Entries of docs/gallery: analyzed and reported by this version, packed to be analyzed and reported again.

    python docs/generate/gallery.py                # every entry from its own records, and the programme's paper
    python docs/generate/gallery.py NAME...        # these entries
    python docs/generate/gallery.py RESULTS...     # entries from results folders

An entry holds report.html, effects.csv, verdict.json, and records.tar.xz: all that analysis and page read. Of a study
that `ablationlab validate` has counted, with its thousands of runs, it holds validation.json and a table of the runs. To look
at an entry yourself:

    mkdir study && tar -xf docs/gallery/NAME/records.tar.xz -C study && ablationlab analyze study
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

GALLERY = Path(__file__).parents[1] / "gallery"
RECORDS = "records.tar.xz"
#: What neither an analysis nor a page reads, what is too large, or what a report writes.
LEFT_OUT = {
    "checkpoints", "halfway", "probes.jsonl", "samples.parquet",
    "figures", "tables", "paper", "paper.pdf", "report.html", "energy", "locks",
}  # fmt: skip
#: Entries that keep their paper, and those that are kept for their records alone.
PAPERS = ("embedding-norm", "replication-final")
RECORDS_ONLY = (
    "embedding-norm-length-300", "embedding-norm-warmup-300-2", "embedding-norm-warmup-300-10",
    "embedding-norm-warmup-300-30", "embedding-norm-warmup-2000-2", "embedding-norm-warmup-2000-10",
    "ladder-0.2m", "ladder-0.2m-first", "ladder-0.7m", "ladder-1.6m", "modern-embedding-norm-coarse",
    "replication-lescao", "replication-nanogpt", "replication-takase",
)  # fmt: skip
#: What the table of a validation's runs has of a run, beside its arm, rate, seed and end.
MEASURES = (
    "validation_loss", "next_token_accuracy", "final_gradient_norm", "mean_gradient_norm", "spike_score", "initial_loss",
)  # fmt: skip
#: The studies of the programme's paper, in its order.
PROGRAMME = (
    "replication-pilot", "replication-final", "embedding-norm", "embedding-norm-smooth", "embedding-norm-rescue",
    "embedding-norm-factorial", "embedding-norm-scale", "embedding-norm-bpe-why",
    "ladder-0.2m", "ladder-0.7m", "ladder-1.6m", "ladder-2.5m", "modern-embedding-norm", "embedding-norm-bpe-tuned",
)  # fmt: skip
PROGRAMME_TEXT = Path(__file__).parents[2] / "studies" / "embedding-norm.md"


def main() -> None:
    """The entries that were named, or all of them and the programme's paper."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("entries", nargs="*", help="names of entries, or results folders; default: all entries")
    parser.add_argument("--out", type=Path, default=GALLERY)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for entry in options.entries or sorted(path.parent.name for path in GALLERY.glob(f"*/{RECORDS}")):
            folder = results(entry, Path(scratch))
            make(folder, options.out / folder.name)
        if not options.entries:
            programme(Path(scratch), options.out / "programme")


def results(entry: str, scratch: Path) -> Path:
    """A results folder: *entry* itself, or what the records of the entry of that name unpack to."""
    if (Path(entry) / "plan.lock").exists():
        return Path(entry).resolve()
    folder = scratch / entry
    if not folder.exists():
        with tarfile.open(GALLERY / entry / RECORDS) as archive:
            archive.extractall(folder, filter="data")
    return folder


def make(folder: Path, entry: Path) -> None:
    if (folder / "validation.json").exists():
        keep_validation(folder, entry)
        return
    ablationlab("analyze", folder)
    replication = folder / "replication.json"
    if replication.exists():
        ablationlab("replicate", json.loads(replication.read_text())["table"], "--no-report", "--results", folder)
    shutil.rmtree(entry, ignore_errors=True)
    entry.mkdir(parents=True)
    if entry.name not in RECORDS_ONLY:
        ablationlab("report", folder)
        shutil.copy(folder / "report.html", entry)
        shutil.copy(folder / "tables" / "effects.csv", entry)
    if entry.name in PAPERS:
        shutil.copy(folder / "paper.pdf", entry)
    shutil.copy(folder / "verdict.json", entry)
    pack(folder, entry / RECORDS)
    print(
        f"{entry.name}: {sum(path.stat().st_size for path in entry.rglob('*') if path.is_file()) / 1e6:.2f} MB",
        flush=True,
    )


def keep_validation(folder: Path, entry: Path) -> None:
    shutil.rmtree(entry, ignore_errors=True)
    entry.mkdir(parents=True)
    for name in ("validation.json", "validation.md"):
        shutil.copy(folder / name, entry)
    runs = []
    for path in folder.glob("runs/*/run.json"):
        run, result = (json.loads((path.parent / name).read_text()) for name in ("run.json", "result.json"))
        known = result["course"] | result["metrics"]
        arm = (run["variant"], run["recipe"]["training"]["lr"], run["seed"], result["status"])
        runs.append((*arm, *(known.get(name) for name in MEASURES)))
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerows([("variant", "lr", "seed", "status", *MEASURES), *sorted(runs, key=lambda row: row[:3])])
    (entry / "runs.csv.xz").write_bytes(lzma.compress(table.getvalue().encode(), preset=9))


def programme(scratch: Path, entry: Path) -> None:
    with tempfile.TemporaryDirectory() as out:
        folders = [results(name, scratch) for name in PROGRAMME]
        ablationlab("paper", *folders, "--out", out, "--text", PROGRAMME_TEXT)
        entry.mkdir(parents=True, exist_ok=True)
        for name in ("paper.pdf", "claims.json"):
            shutil.copy(Path(out) / name, entry)


def ablationlab(*words: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "ablationlab", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def pack(folder: Path, path: Path) -> None:
    """The same bytes whoever packs: names in order, no owners, no times."""
    with tarfile.open(path, "w:xz", preset=9) as archive:
        for file in sorted(folder.rglob("*")):
            place = file.relative_to(folder)
            if file.is_file() and not LEFT_OUT & set(place.parts):
                archive.add(file, place.as_posix(), filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


if __name__ == "__main__":
    main()
