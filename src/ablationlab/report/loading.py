"""The old names of the reader, for the modules that have not been renamed yet."""

from pathlib import Path

from ablationlab.records.results import Cache, Results
from ablationlab.records.run import as_number

__all__ = ["Cache", "as_number", "load_material"]


def load_material(folder: Path, cache: Cache | None = None) -> Results:
    return Results.open(folder, cache=cache)
