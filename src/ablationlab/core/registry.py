"""A name -> thing table that answers "did you mean".

What a study's own code registers (`core.code`) lies in a layer over every registry while that study is worked on, so that
two studies in one process do not meet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from ablationlab.core.errors import UnknownNameError

T = TypeVar("T")
#: What the code in use registered, by the kind of the registry.
Layer = Mapping[str, Mapping[str, Any]]
_layers: list[Layer] = [{}]


@contextmanager
def layer(things: Layer) -> Iterator[None]:
    """Have these things in all registries meanwhile, in the place of another layer's."""
    _layers.append(things)
    try:
        yield
    finally:
        _layers.remove(things) if _layers[-1] is not things else _layers.pop()


def set_layer(things: Layer) -> None:
    """Have these things in all registries of this process from now on: for a worker, which works on one study."""
    _layers[:] = [things]


class Registry(Generic[T]):
    """Things of one kind by name, in the order they were added."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, T] = {}

    def add(self, name: str, thing: T) -> T:
        """Register *thing*; a name is given once."""
        if name in self._things:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._things[name] = thing
        return thing

    def _all(self) -> Mapping[str, T]:
        own = _layers[-1].get(self.kind)
        return {**self._things, **own} if own else self._things

    def __getitem__(self, name: str) -> T:
        things = self._all()
        try:
            return things[name]
        except KeyError:
            raise UnknownNameError(self.kind, name, things) from None

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def items(self) -> Iterator[tuple[str, T]]:
        """Names and things, in the order they were added."""
        return iter(self._all().items())
