"""A study's own code: Python files that register variants, parts of the model, optimizers and so on.

A file is run once per content and process, by importlib, from its path. What it registers goes into a layer over the
registries (`core.registry`), which counts only while its study is worked on.
"""

from __future__ import annotations

import hashlib
import inspect
import linecache
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ablationlab.core.errors import CodeError, nearest
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
        path = (folder / Path(entry).expanduser()).resolve()
        try:
            return CodeFile(path.name, path, hashlib.sha256(path.read_bytes()).hexdigest())
        except OSError as error:
            raise CodeError(f"{path} cannot be read: {error.strerror}") from error
    offered = _offered()
    if entry not in offered:
        guess = nearest(entry, offered)
        raise CodeError(
            f"{entry!r} is neither a file that ends with .py nor an entry point of the group {GROUP!r}; "
            f"installed: {', '.join(offered) or 'none'}" + (f"; did you mean {guess!r}?" if guess else "")
        )
    path = _module_path(offered[entry])
    return CodeFile(entry, path, hashlib.sha256(path.read_bytes()).hexdigest(), entry_point=True)


def _offered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _module_path(point: EntryPoint) -> Path:
    from importlib.util import find_spec

    spec = find_spec(point.module)
    if spec is None or spec.origin is None:
        raise CodeError(f"the module {point.module!r} of the entry point {point.name!r} has no file")
    return Path(spec.origin)


def load(files: Sequence[CodeFile]) -> dict[str, dict[str, Any]]:
    """Run these files, each once per content and process; what they register together."""
    together: dict[str, dict[str, Any]] = {}
    for file in files:
        if file.sha256 not in _loaded:
            _loaded[file.sha256] = _run(file)
        for kind, things in _loaded[file.sha256].items():
            taken = together.setdefault(kind, {})
            for name in things:
                if name in taken:
                    raise CodeError(f"{file.path}: {kind} {name!r} is registered by two files of `use`")
            taken |= things
    return together


def _run(file: CodeFile) -> dict[str, dict[str, Any]]:
    try:
        data = file.path.read_bytes()
    except (OSError, ValueError) as error:
        raise CodeError(f"{file.path} cannot be read: {error}") from error
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise CodeError(f"{file.path} has changed since the study was planned: its checksum does not match")
    _paths.add(str(file.path))
    linecache.checkcache(str(file.path))
    _loading.append(_Loading(file.path))
    try:
        if file.entry_point:
            _offered()[file.name].load()
        else:
            _import(file, data)
    except CodeError:
        raise
    except SyntaxError as error:
        raise CodeError(f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}") from error
    except Exception as error:
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


def _import(file: CodeFile, data: bytes) -> ModuleType:
    name = f"ablationlab_use_{file.sha256[:16]}"
    loader = _Exactly(name, str(file.path), data)
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look it up
    loader.exec_module(module)
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
        _check_signature(thing, arguments, f"{registry.kind} {name!r}")
    here.things.setdefault(registry.kind, {})[name] = thing


def _check_signature(function: Any, arguments: int, what: str) -> None:
    if not callable(function):
        raise CodeError(f"{_caller()}: {what} is not a function")
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError as error:
        shown = f"{getattr(function, '__name__', function)}{inspect.signature(function)}"
        raise CodeError(f"{_caller()}: {what} must take {arguments} arguments, but is {shown}: {error}") from error


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
        with layer(things):
            yield
    finally:
        _active.pop()


def active() -> tuple[CodeFile, ...]:
    """The files in use now; worker processes are given them."""
    return _active[-1]


def activate(files: Sequence[CodeFile]) -> None:
    """Use these files in this process from now on: for a worker, which works on one study."""
    set_layer(load(files))
    _active[:] = [tuple(files)]
