"""What the tests catch: small faults put into the package one at a time, and whether the relevant tests fail.

    python dev/mutations.py run --seed 1                 # about 150 faults; continues where it was stopped
    python dev/mutations.py run --seed 1 --folder stats  # those of one folder
    python dev/mutations.py list --seed 1
    python dev/mutations.py table dev/mutations/*.csv    # caught by folder, a column per file

A fault is another operator, another bound, a dropped line or two swapped arguments. As many fall on each folder of the
package, at random places. The package is copied; nothing in this folder changes. Tests of the same name run first, then the
rest of the folder's; the first that fails ends it. A fault that hangs the tests is caught.
"""

from __future__ import annotations

import argparse
import ast
import csv
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "ablationlab"
#: Tests that cover a folder of the package beside those of its own name.
ALSO = {
    "analysis": ("test_designs.py", "test_two_stages.py", "test_two_settings.py", "test_reuse.py"),
    "core": ("records", "cli"),
    "model": ("training",),
    "records": ("analysis",),
    "report": ("cli",),
    "stats": ("analysis",),
    "study": ("test_designs.py", "test_two_stages.py", "test_two_settings.py", "test_reuse.py", "analysis"),
    "tasks": ("evaluation",),
}  # fmt: skip
COMPARED = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
CALCULATED = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*")}
FAULTS = 150
#: A run of tests that takes longer hangs.
LONGEST = 1200


@dataclass(frozen=True)
class Fault:
    """*before* at this place of a file, in bytes, becomes *after*."""

    folder: str
    file: str
    line: int
    start: int
    end: int
    kind: str
    before: str
    after: str


def main() -> None:
    """One of the three verbs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("run", "list", "table"))
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=FAULTS)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--name", default=None, help="of the file of results; default: the seed")
    parser.add_argument("--workers", default="2", help="processes of pytest")
    options = parser.parse_args()
    if options.verb == "table":
        table(options.files)
        return
    chosen = [f for f in faults(options.seed, options.count) if options.folder in (None, f.folder)]
    if options.verb == "list":
        for fault in chosen:
            print(f"{fault.file}:{fault.line}  {fault.kind}: {fault.before!r} -> {fault.after!r}")
        return
    out = ROOT / "dev" / "mutations" / f"{options.name or options.seed}.csv"
    out.parent.mkdir(exist_ok=True)
    run(chosen, out, options.workers)


def faults(seed: int, count: int) -> list[Fault]:
    """As many of each folder, in a random order."""
    draw = random.Random(seed)  # noqa: S311
    folders = sorted(path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__")
    found = []
    for place, folder in enumerate(folders):
        each = count // len(folders) + (place < count % len(folders))
        sites = [fault for path in sorted(folder.rglob("*.py")) for fault in faults_of(path)]
        lines = sorted({(fault.file, fault.line) for fault in sites})
        for file, line in draw.sample(lines, min(each, len(lines))):
            found.append(draw.choice([fault for fault in sites if (fault.file, fault.line) == (file, line)]))
    draw.shuffle(found)
    return found


def faults_of(path: Path) -> Iterator[Fault]:
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def fault(node: ast.expr | ast.stmt, kind: str, after: str, until: ast.expr | ast.stmt | None = None) -> Fault:
        last = until or node
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(last.end_lineno or 0) - 1] + (last.end_col_offset or 0)
        file = path.relative_to(ROOT).as_posix()
        folder = path.relative_to(PACKAGE).parts[0]
        return Fault(folder, file, node.lineno, start, end, kind, source[start:end].decode(), after)

    def text(node: ast.expr) -> str:
        return fault(node, "", "").before

    for node in executed(ast.parse(source)):
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARED:
                yield fault(node, "operator", f"{text(left)} {COMPARED[type(op)]} {text(right)}")
            case ast.BoolOp(op=op, values=[first, second]):
                other = "or" if isinstance(op, ast.And) else "and"
                yield fault(node, "operator", f"({text(first)}) {other} ({text(second)})")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in CALCULATED and not words(left, right):
                yield fault(node, "operator", f"({text(left)}) {CALCULATED[type(op)][1]} ({text(right)})")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield fault(node, "operator", f"bool({text(operand)})")
            case ast.Constant(value=bool(value)):
                yield fault(node, "bound", str(not value))
            case ast.Constant(value=int(number)):
                yield fault(node, "bound", str(number + 1))
            case ast.Constant(value=float(number)) if number:
                yield fault(node, "bound", repr(number * 2))
            case ast.Call(args=[first, second, *_]) if not any(isinstance(a, ast.Starred) for a in (first, second)):
                if text(first) != text(second):
                    yield fault(first, "swapped arguments", f"{text(second)}, {text(first)}", second)
            case ast.AugAssign() | ast.Continue() | ast.Break() | ast.Expr(value=ast.Call() | ast.Await()):
                yield fault(node, "dropped line", "pass")


def words(*nodes: ast.expr) -> bool:
    """Whether texts are joined, not numbers."""
    return any(isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str) for node in nodes)


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """Everything that runs: no annotations, no texts of errors."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or isinstance(node, ast.Raise):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                yield child
                yield from executed(child)


def run(chosen: Sequence[Fault], out: Path, workers: str) -> None:
    names = [field.name for field in fields(Fault)]
    done = set()
    if out.exists():
        with out.open(newline="") as known:
            done = {(row["file"], row["start"], row["after"]) for row in csv.DictReader(known)}
    else:
        out.write_text(",".join([*names, "caught", "by"]) + "\n")
    with tempfile.TemporaryDirectory(prefix="mutations-") as scratch:
        copy = Path(scratch, "copy")
        git = shutil.which("git") or "git"
        kept = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
        for name in kept.stdout.decode().split("\0"):
            if name and (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        for fault in chosen:
            if (fault.file, str(fault.start), fault.after) in done:
                continue
            by = caught_by(fault, copy, workers)
            with out.open("a", newline="") as rows:
                csv.writer(rows, lineterminator="\n").writerow([*asdict(fault).values(), int(bool(by)), by])
            print(f"{fault.file}:{fault.line}  {fault.kind}  {by or 'NOT CAUGHT'}", flush=True)


def caught_by(fault: Fault, copy: Path, workers: str) -> str:
    """The first test that fails, or nothing."""
    path = copy / fault.file
    source = path.read_bytes()
    try:
        path.write_bytes(source[: fault.start] + fault.after.encode() + source[fault.end :])
        for tests in relevant(fault, copy):
            failed = first_failure(tests, copy, workers)
            if failed:
                return failed
        return ""
    finally:
        path.write_bytes(source)


def relevant(fault: Fault, copy: Path) -> Iterator[list[str]]:
    """Tests named like the module, then those of its folder, then the others that cover it."""
    tests, stem = copy / "tests", Path(fault.file).stem.strip("_")
    named = sorted(path.relative_to(copy).as_posix() for path in tests.rglob(f"test_{stem}*.py"))
    if named:
        yield named
    for name in (fault.folder, *ALSO.get(fault.folder, ())):
        if (tests / name).exists():
            yield [f"tests/{name}"]


def first_failure(tests: list[str], copy: Path, workers: str) -> str:
    command = [
        sys.executable,
        "-m",
        "pytest",
        *["-q", "-x", "--dist", "worksteal", "-p", "no:cacheprovider", "-n"],
        workers,
        *tests,
    ]
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return "hangs"
    if process.returncode in (0, 5):
        return ""
    lines = [line for line in printed.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0].split(" - ")[0].split(" ", 1)[1] if lines else f"pytest ends with {process.returncode}"


def table(files: Sequence[Path]) -> None:
    """Caught of all, by folder."""
    counts = []
    for path in files:
        with path.open(newline="") as known:
            rows = list(csv.DictReader(known))
        counts.append((Counter(r["folder"] for r in rows), Counter(r["folder"] for r in rows if r["caught"] == "1")))
    print("| folder | " + " | ".join(path.stem for path in files) + " |")
    print("|---|" + "---|" * len(files))
    for folder in [*sorted({name for every, _ in counts for name in every}), "all"]:
        cells = [
            f"{caught.total()} of {every.total()}" if folder == "all" else f"{caught[folder]} of {every[folder]}"
            for every, caught in counts
        ]
        print(f"| {folder} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
