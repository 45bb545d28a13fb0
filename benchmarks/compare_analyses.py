"""Two analyses of one study, number by number: what a change of the code changed.

    python benchmarks/compare_analyses.py OLD NEW
    python benchmarks/compare_analyses.py docs/gallery/*/records.tar.xz

OLD and NEW are analysis.json files (or .json.gz), or folders in which each study's folder holds one. Packed records are
unpacked, analyzed by this version, and compared with the analysis packed with them. Rows of a list are matched by what names
them (an id, or variant, regime, seed, task ...), so their order does not count. Prints how many numbers were compared, every
one that differs by more than a relative 1e-9 (another processor rounds otherwise), and every field that only one side has.
The exit code is 1 if a number differs.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = (
    "id",
    "run",
    "comparison",
    "code",
    "metric",
    "task",
    "variant",
    "reference",
    "regime",
    "seed",
    "lr",
    "arm",
    "use",
)
NUMBERED = ("seed", "lr")  # of the names, those that may be numbers
TOLERANCE = 1e-9


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a JSON document under a path that does not depend on the order of named rows."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        seen: Counter[str] = Counter()
        for place, inner in enumerate(value):
            name = _name(inner)
            seen[name] += 1
            label = str(place) if not name else name if seen[name] == 1 else f"{name} #{seen[name]}"
            yield from leaves(inner, f"{path}[{label}]")
    else:
        yield path, value


def _name(row: Any) -> str:
    if not isinstance(row, dict):
        return ""
    if "id" in row:
        return str(row["id"])
    named = {key: row[key] for key in NAMES if key in row}
    if isinstance(task := named.get("task"), dict):
        named["task"] = ", ".join(map(str, task.values()))
    return "/".join(str(value) for key, value in named.items() if key in NUMBERED or isinstance(value, str))


def same(old: Any, new: Any) -> bool:
    """Whether two leaves are equal; numbers to rounding."""
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new)]
    return math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=1e-15) if all(numbers) else bool(old == new)


def load(path: Path) -> dict[str, Any]:
    """The leaves of one analysis, whatever its format."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return {place: value for place, value in leaves(json.loads(data)) if place != "schema_version"}


def compare(old: Path, new: Path, show: int, title: str = "") -> int:
    """Print the differences of two analyses; how many numbers differ."""
    before, after = load(old), load(new)
    shared = before.keys() & after.keys()
    numbers = [path for path in shared if isinstance(before[path], int | float)]
    changed = sorted(path for path in shared if not same(before[path], after[path]))
    numeric = [
        path for path in changed if isinstance(before[path], int | float) or isinstance(after[path], int | float)
    ]
    texts = len(changed) - len(numeric)
    print(f"{title or new}: {len(numbers)} numbers compared, {len(numeric)} differ; {texts} texts differ")
    for path in [*numeric, *(path for path in changed if path not in set(numeric))][:show]:
        print(f"  {path}: {before[path]!r} -> {after[path]!r}")
    for title, paths in (("only in OLD", before.keys() - after.keys()), ("only in NEW", after.keys() - before.keys())):
        fields = Counter(_field(path) for path in paths)
        for field, count in fields.most_common(show):
            print(f"  {title}: {field} ({count})")
    return len(numeric)


def _field(path: str) -> str:
    """A leaf's place without the names of rows."""
    text, depth = [], 0
    for letter in path:
        depth += (letter == "[") - (letter == "]")
        if depth == 0 and letter != "]":
            text.append(letter)
    return "".join(text)


def analyze_again(packed: Path, folder: Path) -> tuple[Path, Path]:
    """(the packed analysis, the one that this version makes of the records packed with it)."""
    from ablationlab.analysis import analyze, read_results

    with tarfile.open(packed) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.3 and older have none
        archive.extractall(folder)
    again = folder / "again" / "analysis.json"
    analyze(read_results(folder, None)).replace(again)
    return folder / "analysis.json", again


def main() -> None:
    """Compare two files, the studies that two folders share, or packed records with what they give now."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--show", type=int, default=20, help="differences to print per study and kind")
    options = parser.parse_args()
    if all(path.name.endswith(".tar.xz") for path in options.paths):
        differing = 0
        for packed in options.paths:
            with tempfile.TemporaryDirectory() as folder:
                pair = analyze_again(packed, Path(folder))
                differing += compare(*pair, options.show, packed.parent.name)
        sys.exit(bool(differing))
    old, new = options.paths
    if old.is_dir():
        found = {path.parent.name: path for path in sorted(old.glob("*/analysis.json*"))}
        other = {path.parent.name: path for path in sorted(new.glob("*/analysis.json*"))}
        pairs = [(found[name], other[name]) for name in found if name in other]
    else:
        pairs = [(old, new)]
    sys.exit(bool(sum(compare(*pair, options.show) for pair in pairs)))


if __name__ == "__main__":
    main()
