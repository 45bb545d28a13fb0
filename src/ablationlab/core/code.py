"""A study's own code: Python files that register variants, parts of the model, optimizers and so on.

A file is run once per process and set of files, by importlib, from its path. What it registers goes into a layer over the
registries (`core.registry`), which counts only while its study is worked on. Files of one study may import each other by
name; a module beside them that the study does not list is refused, since it would be neither sealed nor shipped.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import linecache
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import invalidate_caches
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ablationlab.core.errors import CodeError, did_you_mean
from ablationlab.core.format import counted
from ablationlab.core.paths import user_path
from ablationlab.core.registry import Registry, layer, set_layer

#: The group of entry points in which packages offer such code.
GROUP = "ablationlab"


@dataclass(frozen=True)
class CodeFile:
    """One entry of ``use``: a file, or the module behind an entry point, which has no path of its own in a results folder."""

    name: str
    path: Path
    sha256: str
    entry_point: bool = False


@dataclass
class _Loading:
    """What the file that is being run has registered so far."""

    path: Path
    things: dict[str, dict[str, Any]] = field(default_factory=dict)


_loading: list[_Loading] = []
_loaded: dict[str, dict[str, dict[str, Any]]] = {}
_active: list[tuple[CodeFile, ...]] = [()]
_paths: set[str] = set()


def find(entry: str, folder: Path) -> CodeFile:
    """The code that ``use`` names: a file, relative to *folder*, or an entry point."""
    if entry.endswith(".py"):
        if "\0" in entry:
            raise CodeError(f"{entry!r} is no path of a file")
        path = user_path(entry, folder)
        if path.exists() and not path.is_file():
            raise CodeError(f"{path} is not a regular file")  # a pipe or a device might never end
        try:
            return CodeFile(path.name, path, hashlib.sha256(path.read_bytes()).hexdigest())
        except OSError as error:
            raise CodeError(f"{path} cannot be read: {error.strerror}") from error
    offered = _offered()
    if entry not in offered:
        raise CodeError(
            f"{entry!r} is neither a file that ends with .py nor an entry point of the group {GROUP!r}; "
            f"installed: {', '.join(offered) or 'none'}{did_you_mean(entry, offered)}"
        )
    package = _package(offered[entry])
    return CodeFile(entry, package.path, package.sha256, entry_point=True)


def is_installed(name: str, sha256: str) -> bool:
    """Whether this is an entry point of a package that is installed here, as it is now. What a record says of it counts for
    nothing."""
    point = _offered().get(name)
    with suppress(CodeError, OSError):
        return point is not None and _package(point).sha256 == sha256
    return False


def _offered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


@dataclass(frozen=True)
class _Package:
    """The module or package of an entry point: its name, its Python files, and the one that the entry point names."""

    name: str
    path: Path
    files: tuple[Path, ...]

    @property
    def sha256(self) -> str:
        """Of the file of a single module; of a package, of the paths and hashes of all its files."""
        hashes = {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in self.files}
        if len(self.files) == 1:
            return hashes[self.path]
        root = min(self.files, key=lambda file: len(file.parts)).parent
        listed = sorted(f"{file.relative_to(root).as_posix()} {sha256}" for file, sha256 in hashes.items())
        return hashlib.sha256("\n".join(listed).encode()).hexdigest()

    def modules(self) -> dict[str, ModuleType]:
        """Those of its modules that are imported."""
        return {
            name: module for name, module in sys.modules.items() if f"{name}.".startswith(f"{self.name}.") and module
        }


def _package(point: EntryPoint) -> _Package:
    """The outermost package of an entry point that is no namespace. None of its code is run."""
    parts = point.module.split(".")
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        spec = find_spec(name)
        if spec is None or spec.origin is None:  # nothing, or a namespace
            continue
        origin = Path(spec.origin)
        if origin.name != "__init__.py":
            return _Package(name, origin, (origin,))
        module = origin.parent.joinpath(*parts[depth:])
        path = next((file for file in (module / "__init__.py", module.with_suffix(".py")) if file.exists()), None)
        if path is not None:
            return _Package(name, path, tuple(sorted(origin.parent.rglob("*.py"))))
    raise CodeError(f"the module {point.module!r} of the entry point {point.name!r} has no file")


@contextmanager
def _anew(package: _Package) -> Iterator[None]:
    """Let a package be imported again: what was imported before, by a notebook, say, registered nothing and may be old."""
    before = package.modules()
    for name in before:
        del sys.modules[name]
    invalidate_caches()
    try:
        yield
    except BaseException:
        for name in package.modules():
            del sys.modules[name]
        sys.modules.update(before)
        raise


def load(files: Sequence[CodeFile]) -> dict[str, dict[str, Any]]:
    """Run these files, each once per process and set of files; what they register together."""
    together: dict[str, dict[str, Any]] = {}
    for file in files:  # none runs beside one that is not what was agreed to
        _checked(file)
    _active.append(tuple(files))
    try:
        with _importable(files):
            for file in sorted(
                files, key=lambda file: not file.entry_point
            ):  # else a file that imports a package has its things
                things = _things(file, files)
                for kind, named in things.items():
                    taken = together.setdefault(kind, {})
                    for name in named:
                        if name in taken:
                            raise CodeError(f"{file.path}: {kind} {name!r} is registered by two files of `use`")
                    taken |= named
    finally:
        _active.pop()
    return together


def _things(file: CodeFile, files: Sequence[CodeFile]) -> dict[str, dict[str, Any]]:
    key = _key(file, files)
    if key not in _loaded:
        _loaded[key] = _run(file, key)
    return _loaded[key]


def _key(file: CodeFile, files: Sequence[CodeFile]) -> str:
    """Of what a file does: of its content and of the files that it may import. A package has its own imports."""
    if file.entry_point:
        return f"{file.name} {file.sha256}"
    others = sorted(f"{other.name} {other.sha256}" for other in files if not other.entry_point)
    return hashlib.sha256("\n".join([file.sha256, *others]).encode()).hexdigest()


class _Neighbours(MetaPathFinder):
    """Finds a file of the study that is worked on by its name, for another one that imports it."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        file = _importable_files(_active[-1]).get(fullname)
        return None if file is None else spec_from_loader(fullname, _Again(file, _active[-1]))


class _Again(Loader):
    """The module of a file of ``use``, which is run if that has not happened."""

    def __init__(self, file: CodeFile, files: Sequence[CodeFile]) -> None:
        self.file, self.files = file, files

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        name = _module_name(_key(self.file, self.files))
        if name not in sys.modules:  # else it is running, and imports itself by way of another
            _things(self.file, self.files)
        return sys.modules[name]

    def exec_module(self, module: ModuleType) -> None:
        """It has run."""


sys.meta_path.insert(0, _Neighbours())


def _importable_files(files: Sequence[CodeFile]) -> dict[str, CodeFile]:
    """By the name of their module; the standard library keeps its names."""
    return {
        file.path.stem: file for file in files if not file.entry_point and file.path.stem not in sys.stdlib_module_names
    }


@contextmanager
def _importable(files: Sequence[CodeFile]) -> Iterator[None]:
    """Let these files import each other meanwhile; modules of the same names, of another study, say, come back after."""
    hidden = {name: sys.modules.pop(name, None) for name in _importable_files(files)}
    try:
        yield
    finally:
        for name, module in hidden.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


def _checked(file: CodeFile) -> tuple[bytes, EntryPoint | None, _Package | None]:
    """The content of a file, and its entry point and package where it has them; refused if it is not what was planned."""
    point = _offered().get(file.name) if file.entry_point else None
    if file.entry_point and point is None:
        raise CodeError(f"{file.name}: no installed package offers this entry point of the group {GROUP!r}")
    package = None if point is None else _package(point)
    try:
        data = file.path.read_bytes()
        sha256 = hashlib.sha256(data).hexdigest() if package is None else package.sha256
    except (OSError, ValueError) as error:
        raise CodeError(f"{file.path} cannot be read: {error}") from error
    if sha256 != file.sha256:
        what = file.path if package is None else f"the package {package.name} ({file.path})"
        raise CodeError(f"{what} has changed since the study was planned: its checksum does not match")
    return data, point, package


def _run(file: CodeFile, key: str) -> dict[str, dict[str, Any]]:
    data, point, package = _checked(file)
    _paths.update(str(path) for path in ((file.path,) if package is None else package.files))
    linecache.checkcache(str(file.path))
    _loading.append(_Loading(file.path))
    try:
        if point is not None and package is not None:
            with _anew(package):
                point.load()
        else:
            _check_imports(file, data)
            _import(file, data, _module_name(key))
    except CodeError:
        raise
    except SyntaxError as error:
        raise CodeError(f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}") from error
    except (Exception, SystemExit) as error:  # a file that ends the process would end the command, as if it had worked
        raise CodeError(f"{place_of(error) or file.path}: {type(error).__name__}: {error}") from error
    finally:
        ran = _loading.pop()
    return ran.things


class _Exactly(SourceFileLoader):
    """Runs the very bytes that were hashed: bytecode beside the file may be that of an earlier version of the same second."""

    def __init__(self, name: str, path: str, data: bytes) -> None:
        super().__init__(name, path)
        self._data = data

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self._data, self.path)
        return code


def _module_name(key: str) -> str:
    return f"ablationlab_use_{key[:16]}"


def _check_imports(file: CodeFile, data: bytes) -> None:
    """Refuse imports of modules beside the file that the study does not list: workers would not have them."""
    listed = _importable_files(_active[-1])
    for node in ast.walk(ast.parse(data, str(file.path))):
        place = f"{file.path}, line {getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ImportFrom) and node.level:
            name = node.module or node.names[0].name
            raise CodeError(
                f"{place}: files of `use` form no package: write `import {name}` without the dot, and list './{name}.py' "
                "in `use`"
            )
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in {name.partition(".")[0] for name in names} - listed.keys() - sys.stdlib_module_names:
            module, package = file.path.parent / f"{name}.py", file.path.parent / name / "__init__.py"
            spec = PathFinder.find_spec(name)
            if module.exists() and (spec is None or spec.origin == str(module)):
                raise CodeError(
                    f"{place}: imports {name}, which is neither sealed nor sent to workers: add './{module.name}' to `use`"
                )
            if package.exists() and spec is None:
                raise CodeError(
                    f"{place}: imports the package {name}, and `use` takes single files: install it, or list its files"
                )


def _import(file: CodeFile, data: bytes, name: str) -> ModuleType:
    loader = _Exactly(name, str(file.path), data)
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look it up
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def register(registry: Registry[Any], name: str, thing: Any, arguments: int | None = None) -> None:
    """Put *thing* into the layer of the file that is being run; outside of one nothing happens, so it can be imported.

    *arguments*: how many a function must take.
    """
    if not _loading:
        return
    here = _loading[-1]
    if not isinstance(name, str) or not name:
        raise CodeError(f"{_caller()}: the name of a {registry.kind} is a text, not {name!r}")
    if name in registry._things or name in here.things.get(registry.kind, {}):
        raise CodeError(f"{_caller()}: {registry.kind} {name!r} is taken; known: {', '.join(registry)}")
    if arguments is not None:
        check_signature(thing, arguments, f"{registry.kind} {name!r}")
    here.things.setdefault(registry.kind, {})[name] = thing


def check_signature(function: Any, arguments: int, what: str) -> None:
    """Refuse what cannot be called with so many positional arguments, *self* not counted."""
    if not callable(function):
        raise CodeError(f"{_caller()}: {what} is not a function")
    signature = inspect.signature(function)
    try:
        signature.bind(*range(arguments))
    except TypeError as error:
        shown = f"{getattr(function, '__name__', function)}{signature}"
        raise CodeError(
            f"{written(function) or _caller()}: {what} must take {counted(arguments, 'argument')}, but is {shown}: {error}"
        ) from error


def written(function: Any) -> str | None:
    """File and line where a function of the study's own code begins; None of one from elsewhere."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return (
        f"{code.co_filename}, line {code.co_firstlineno}" if code is not None and code.co_filename in _paths else None
    )


def refuse(message: str) -> CodeError:
    """The error to raise from a decorator, with the place in the user's file."""
    return CodeError(f"{_caller()}: {message}")


def _caller() -> str:
    for frame in reversed(traceback.extract_stack()):
        if frame.filename in _paths:
            return f"{frame.filename}, line {frame.lineno}"
    return str(_loading[-1].path) if _loading else "your code"


def place_of(error: BaseException) -> str | None:
    """File and line of the study's own code that an error comes from: the innermost; None if it comes from elsewhere."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in _paths]
    return f"{frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name}" if frames else None


@contextmanager
def using(files: Sequence[CodeFile]) -> Iterator[None]:
    """Have what these files register in all registries meanwhile."""
    things = load(files)
    _active.append(tuple(files))
    try:
        with layer(things), _importable(files):
            yield
    finally:
        _active.pop()


def active() -> tuple[CodeFile, ...]:
    """The files in use now; worker processes are given them."""
    return _active[-1]


def activate(files: Sequence[CodeFile]) -> None:
    """Use these files in this process from now on: for a worker, which works on one study."""
    set_layer(load(files))
    for name in _importable_files(files):
        sys.modules.pop(name, None)
    _active[:] = [tuple(files)]
