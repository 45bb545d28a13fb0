"""The import rule: a folder imports only folders listed before it, and the folders marked "no torch" never load it."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import warm

SOURCE = Path(__file__).parents[1] / "src" / "ablationlab"
LAYERS = (
    "core",
    "stats",
    "records",
    "data",
    "tasks",
    "model",
    "study",
    "training",
    "evaluation",
    "analysis",
    "instrument",
    "report",
    "pipeline",
    "api",
    "cli",
    "__init__",
    "__main__",
)
NO_TORCH = ("core", "stats", "records", "data", "tasks", "study", "analysis", "report", "pipeline", "api", "cli")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(module: str) -> str:
    return module.partition(".")[2].partition(".")[0] or "__init__"


def imported(source: ast.Module) -> set[str]:
    """Layers that a file imports, wherever in the file the import stands; those for the type checker alone count too.

    Of the package itself a folder may take its version alone: every other name there comes from some layer.
    """
    names = set()
    for node in ast.walk(source):
        if isinstance(node, ast.ImportFrom) and node.level:
            names.add("ablationlab." + "." * node.level)
        elif isinstance(node, ast.ImportFrom) and node.module == "ablationlab":
            names |= {f"ablationlab.{alias.name}" for alias in node.names if alias.name != "__version__"}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    found = {layer(name) for name in names if name.partition(".")[0] == "ablationlab"}
    return {name if name in LAYERS else "__init__" for name in found}


@pytest.mark.parametrize("name", LAYERS)
def test_a_folder_imports_only_folders_listed_before_it(name):
    paths = sorted((SOURCE / name).rglob("*.py")) or [SOURCE / f"{name}.py"]
    allowed = {*LAYERS[: LAYERS.index(name) + 1]}
    wrong = {str(path.relative_to(SOURCE)): sorted(imported(tree(path)) - allowed) for path in paths}
    assert not {path: layers for path, layers in wrong.items() if layers}


@pytest.mark.parametrize("name", [name for name in LAYERS if (SOURCE / name).is_dir()])
def test_a_folder_says_what_it_is_for_and_exports_names_that_exist(name):
    source = tree(SOURCE / name / "__init__.py")
    assert ast.get_docstring(source)
    modules = [node for node in ast.walk(source) if isinstance(node, ast.ImportFrom) and "ablationlab" in node.module]
    names = [alias.name for node in modules for alias in node.names if node.module != "ablationlab.core.lazy"]
    face = import_module(f"ablationlab.{name}")
    assert all(hasattr(face, each) for each in names)
    assert names or name in ("cli", "instrument")  # one starts a program, the other only holds folders with faces


@pytest.mark.parametrize(
    ("line", "layers"),
    [
        ("from ablationlab import __version__", set()),
        ("from ablationlab import run", {"__init__"}),
        ("from ablationlab import pipeline", {"pipeline"}),
        ("import ablationlab as lab", {"__init__"}),
        ("from .. import run", {"__init__"}),
        ("def f():\n    from ablationlab.report.make import make_report", {"report"}),
    ],
)
def test_no_form_of_import_escapes_the_rule(line, layers):
    assert imported(ast.parse(line)) == layers


def test_every_entry_of_the_package_is_a_listed_layer():
    entries = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert entries == set(LAYERS)


def test_folders_marked_no_torch_never_load_it():
    """One process imports all of them in turn; it ends with the name of the first file that brought torch along."""
    paths = [path for name in NO_TORCH for path in sorted((SOURCE / name).rglob("*.py")) or [SOURCE / f"{name}.py"]]
    names = [module_name(path) for path in paths]
    script = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    script += "    if 'torch' in sys.modules:\n        sys.exit(name)\n"
    done = subprocess.run([warm.FRESH, "-c", script, *names], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(names) > 100


def test_a_process_loads_numpy_and_scipy_only_where_it_needs_them():
    """`status` needs no numpy. scipy takes a second, in every worker and every rank; most of it scipy.stats."""
    script = "import pathlib, sys, ablationlab.cli.app, ablationlab.pipeline, ablationlab.report.terminal.planned\n"
    script += "from ablationlab.study.load import load_study\nstudy = load_study(pathlib.Path(sys.argv[1]))\n"
    script += "assert not {'numpy', 'multiprocessing', 'urllib.request'} & set(sys.modules)\n"
    script += "import ablationlab.training.executors.local, ablationlab.training.loop\n"
    script += "from ablationlab.study.checks import study_warnings\n"
    script += "study_warnings(study)\nassert 'scipy' not in sys.modules\n"
    script += "import ablationlab.analysis.comparisons, ablationlab.analysis.items, ablationlab.analysis.study_power\n"
    script += "assert 'scipy.stats' not in sys.modules\n"
    study = SOURCE.parents[1] / "studies" / "quick.toml"
    done = subprocess.run([warm.FRESH, "-c", script, str(study)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_public_class_name_is_defined_twice():
    names = Counter(
        node.name
        for path in SOURCE.rglob("*.py")
        for node in tree(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_nothing_in_the_source_unpickles_or_evaluates():
    forbidden = {"pickle", "marshal", "shelve", "dill", "joblib"}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(tree(path)):
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


@pytest.mark.parametrize("name", ["slots", "effects", "study_report", "forest", "tables/effects", "terminal/answer"])
def test_what_is_told_of_a_study_is_decided_without_statistics(name):
    """Numbers come from the records; only `effects` chooses among them."""
    modules = {
        node.module
        for node in ast.walk(tree(SOURCE / "report" / f"{name}.py"))
        if isinstance(node, ast.ImportFrom) and node.module is not None
    }
    assert not [
        module for module in modules if module.startswith(("ablationlab.stats", "ablationlab.analysis", "numpy"))
    ]
