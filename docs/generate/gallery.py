"""Entries of docs/gallery from results folders: analyzed and reported by this version, packed to be analyzed again.

    python docs/generate/gallery.py RESULTS... [--out docs/gallery] [--records-only]

An entry holds report.html, paper.pdf, the main tables, verdict.json, and records.tar.xz: all that an analysis reads. To
analyze it again:

    mkdir study && tar -xf docs/gallery/NAME/records.tar.xz -C study && ablationlab analyze study
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

#: What no analysis reads, or what a report writes.
LEFT_OUT = {
    "checkpoints", "halfway", "metrics.jsonl", "probes.jsonl", "probes.parquet", "samples.parquet",
    "figures", "tables", "paper", "paper.pdf", "report.html", "statistics.md", "energy", "locks",
}  # fmt: skip
#: The main tables; the others follow from the records.
TABLES = ("ablation", "registered", "verdicts", "arms", "variants", "power")
KEPT = ("report.html", "paper.pdf", "tables", "verdict.json")


def main() -> None:
    """One entry per results folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "gallery")
    parser.add_argument(
        "--records-only", action="store_true", help="leave page, paper and tables of an entry as they are"
    )
    options = parser.parse_args()
    for folder in options.results:
        ablationlab("analyze", folder)
        if not options.records_only:
            ablationlab("report", folder)
        entry = options.out / folder.resolve().name
        if not options.records_only:
            shutil.rmtree(entry, ignore_errors=True)
        entry.mkdir(parents=True, exist_ok=True)
        for name in KEPT if not options.records_only else ("verdict.json",):
            source = folder / name
            if source.is_dir():
                (entry / name).mkdir()
                for table in [source / f"{table}.csv" for table in TABLES]:
                    if table.exists():
                        shutil.copy(table, entry / name)
            elif source.exists():
                shutil.copy(source, entry / source.name)
        pack(folder, entry / "records.tar.xz")
        size = sum(path.stat().st_size for path in entry.rglob("*") if path.is_file())
        print(f"{entry}: {size / 1e6:.2f} MB")


def ablationlab(verb: str, folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "ablationlab", verb, str(folder)], check=True, stdout=subprocess.DEVNULL)


def pack(folder: Path, path: Path) -> None:
    """The same bytes whoever packs: names in order, no owners, no times."""
    with tarfile.open(path, "w:xz", preset=6) as archive:
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
