"""What every record has: frozen parts, ``schema_version`` and ``kind``, and a way to the disk and back.

Values that JSON lacks (NaN, infinities) are written as strings. Reading validates; a damaged or foreign file raises
`RecordError`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from ablationlab.core.errors import RecordError
from ablationlab.records.storage import create, read_json, replace

SCHEMA_VERSION = 2


class Part(BaseModel):
    """A frozen piece of a record."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Record(Part):
    """A file. ``kind`` tells files apart that were moved out of their folder."""

    KIND: ClassVar[str]
    schema_version: int = SCHEMA_VERSION
    kind: str = ""

    def model_post_init(self, context: Any) -> None:
        """Fill or check the kind."""
        if not self.kind:
            object.__setattr__(self, "kind", self.KIND)
        elif self.kind != self.KIND:
            raise ValueError(f"kind is {self.kind!r}, not {self.KIND!r}")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Load and validate one file."""
        data = read_json(path)
        found = data.get("kind") if isinstance(data, dict) else None
        if found != cls.KIND:
            raise RecordError(f"{path} is not a {cls.KIND} record (kind = {found!r})")
        if data.get("schema_version") != SCHEMA_VERSION:
            raise RecordError(
                f"{path} has schema version {data.get('schema_version')!r}; this program reads {SCHEMA_VERSION}"
            )
        try:
            # By the rules of JSON, where a list is a tuple: settings are strict.
            return cls.model_validate_json(json.dumps(data))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise RecordError(f"{path}: {where}: {first['msg']}") from error

    def to_bytes(self) -> bytes:
        """The file's content."""
        return (self.model_dump_json(indent=1) + "\n").encode()

    def create(self, path: Path) -> None:
        """Write a new file; never overwrites."""
        create(path, self.to_bytes())

    def replace(self, path: Path) -> None:
        """Write a derived file anew."""
        replace(path, self.to_bytes())
