"""A name -> thing table that answers "did you mean"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from ablationlab.core.errors import UnknownNameError

T = TypeVar("T")


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

    def __getitem__(self, name: str) -> T:
        try:
            return self._things[name]
        except KeyError:
            raise UnknownNameError(self.kind, name, self._things) from None

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)

    def items(self) -> Iterator[tuple[str, T]]:
        """Names and things, in the order they were added."""
        return iter(self._things.items())
