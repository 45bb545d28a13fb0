"""The floors of the house: a file imports from its own floor or below, there are no circles, and torch stays on its side."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "ablationlab"
FLOORS = (
    ("errors", "registry", "terminal"),
    (
        "config",
        "seeding",
        "metrics",
        "storage",
        "schema",
        "folders",
        "corpus_records",
        "records",
        "environment",
        "problems",
        "stats",
        "conclusions",
        "conclusions_evaluation",
        "conclusions_parts",
        "conclusions_stability",
        "conclusions_sweeps",
        "conclusions_verdict",
        "evaluation_records",
    ),
    (
        "variants",
        "parameters",
        "data",
        "crosschecks",
        "study",
        "dropout",
        "kernels",
        "ops",
        "transfer",
        "model",
        "optim",
        "probes",
        "stability",
        "stability_course",
        "stability_sweeps",
    ),
    ("ledger", "plan", "spreading", "disk", "estimate", "costing", "status", "training", "evaluation"),
    ("executors", "export", "analysis", "verdict", "replication"),
    (
        "tables",
        "tables_analysis",
        "tables_costing",
        "tables_data",
        "tables_evaluation",
        "tables_power",
        "tables_probes",
        "tables_replication",
        "tables_sweeps",
        "progress",
        "report",
        "pipeline",
        "results",
        "validation",
    ),
    (
        "cli",
        "verbs_analysis",
        "verbs_data",
        "verbs_evaluate",
        "verbs_hardware",
        "verbs_probes",
        "verbs_replicate",
        "verbs_report",
        "verbs_validate",
        "torchrun",
        "__init__",
        "__main__",
    ),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def modules() -> dict[str, Path]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = list(path.relative_to(SOURCE).with_suffix("").parts)
        if parts[-1] == "__init__" and len(parts) > 1:
            parts.pop()
        found[".".join(parts)] = path
    return found


def imports(path: Path, *, everywhere: bool) -> set[str]:
    """Modules of ours that a file imports: at its top level, or anywhere in it; type-checking imports do not count."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if everywhere else iter(tree.body)
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in nodes:
        if id(node) in guarded:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "ablationlab":
            found |= {f"{node.module}.{alias.name}".removeprefix("ablationlab.") for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix("ablationlab.") for alias in node.names if alias.name.startswith("ablationlab.")
            }
    known = modules()
    resolved = set()
    for name in found:
        while name and name not in known:
            name = name.rpartition(".")[0]
        resolved.add(name or "__init__")
    return resolved - {next(module for module, where in known.items() if where == path)}


def room(module: str) -> str:
    return module.split(".")[0]


def test_every_room_has_its_floor():
    assert {room(module) for module in modules()} <= FLOOR.keys()


@pytest.mark.parametrize("module", sorted(modules()))
def test_a_file_imports_from_its_own_floor_or_below(module):
    here = FLOOR[room(module)]
    above = {
        name for name in imports(modules()[module], everywhere=True) if FLOOR[room(name)] > here and name != "__init__"
    }
    assert not above


def test_there_are_no_circles():
    graph = {module: imports(path, everywhere=True) - {"__init__"} for module, path in modules().items()}
    while graph:
        free = [module for module, needs in graph.items() if not needs & graph.keys()]
        assert free, f"a circle among {sorted(graph)}"
        for module in free:
            del graph[module]


TORCH_FREE = [
    "cli",
    "study",
    "records",
    "metrics",
    "storage",
    "ledger",
    "status",
    "variants",
    "parameters",
    "stats",
]
TORCH_FREE += ["probes.catalog", "probes.records", "probes.vocabulary", "probes.feed", "tables_probes"]
TORCH_FREE += ["pipeline", "results", "replication", "tables_replication", "verbs_replicate"]
TORCH_FREE += ["executors.job", "executors.ray_cluster"]
TORCH_FREE += ["costing.outlook", "tables_costing", "verbs_hardware"]
TORCH_FREE += ["executors.torchrun", "torchrun", "training.progress"]
TORCH_FREE += ["tables", "progress", "plan", "executors.local", "data.corpus", "data.batches"]
TORCH_FREE += [
    "evaluation_records",
    "verbs_evaluate",
    "tables",
    "progress",
    "plan",
    "executors.local",
    "data.corpus",
    "data.batches",
]


def test_the_statistics_and_report_side_never_imports_torch():
    known = modules()
    names = [name for name in [*TORCH_FREE, "analysis", "verdict", "report"] if name in known]
    names += [name for name in known if room(name) in ("stats", "report", "analysis", "verdict")]
    lines = "; ".join(f"import ablationlab.{name}" for name in sorted(set(names)))
    script = f"import sys; {lines}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_nothing_in_the_source_unpickles_or_evaluates():
    forbidden = {"pickle", "marshal", "shelve", "dill", "joblib"}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name.split(".")[0] for alias in node.names} | {
                    (getattr(node, "module", "") or "").split(".")[0]
                }
                assert not names & forbidden, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called = ast.unparse(node.func)
                assert called not in ("torch.load", "torch.save", "os.system"), path
