"""Two analyses of one study, number by number: what a change of the code changed.

    python benchmarks/compare_analyses.py OLD NEW

OLD and NEW are analysis.json files (or .json.gz), or folders in which each study's folder holds one. Rows of a list are
matched by what names them (an id, or variant, regime, seed, task ...), so their order does not count. Prints how many
numbers were compared, every one that differs by more than a relative 1e-12, and every field that only one side has. Speeds,
which a clock measures, are left out. The exit code is 1 if a number differs.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
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
#: Measured with a clock, so never the same twice.
TIMED = ("inference_speed", "training_speed")
TOLERANCE = 1e-12


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
    return "/".join(str(row[key]) for key in NAMES if key in row and (key in NUMBERED or isinstance(row[key], str)))


def same(old: Any, new: Any) -> bool:
    """Whether two leaves are equal; numbers to rounding."""
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new)]
    return math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=1e-300) if all(numbers) else bool(old == new)


def load(path: Path) -> dict[str, Any]:
    """The leaves of one analysis."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return {place: value for place, value in leaves(json.loads(data)) if not any(name in place for name in TIMED)}


def compare(old: Path, new: Path, show: int) -> int:
    """Print the differences of two analyses; how many numbers differ."""
    before, after = load(old), load(new)
    shared = before.keys() & after.keys()
    numbers = [path for path in shared if isinstance(before[path], int | float)]
    changed = sorted(path for path in shared if not same(before[path], after[path]))
    numeric = [
        path for path in changed if isinstance(before[path], int | float) or isinstance(after[path], int | float)
    ]
    print(
        f"{old} -> {new}: {len(numbers)} numbers compared, {len(numeric)} differ; {len(changed) - len(numeric)} texts differ"
    )
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


def main() -> None:
    """Compare two files, or the studies that two folders share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--show", type=int, default=20, help="differences to print per study and kind")
    options = parser.parse_args()
    if options.old.is_dir():
        found = {path.parent.name: path for path in sorted(options.old.glob("*/analysis.json*"))}
        other = {path.parent.name: path for path in sorted(options.new.glob("*/analysis.json*"))}
        pairs = [(found[name], other[name]) for name in found if name in other]
    else:
        pairs = [(options.old, options.new)]
    sys.exit(bool(sum(compare(old, new, options.show) for old, new in pairs)))


if __name__ == "__main__":
    main()
