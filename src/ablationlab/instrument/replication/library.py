"""The published tables that come with the package, and a user's own: finding, reading, checking them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ablationlab.core.errors import Problem, PublishedError, UnknownNameError
from ablationlab.core.problems import problems_of
from ablationlab.instrument.replication.schema import PublishedTable, study_problems, variant_problems
from ablationlab.records.settings import Study, validated

#: One file a table; its name is the table's.
FOLDER = Path(__file__).parent / "published"
#: Studies of a checkout lie here; an installed package has none.
CHECKOUT = Path(__file__).parents[4] / "studies"


def names() -> list[str]:
    """The tables that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def table_path(name: str) -> Path:
    """The file of a table, from its name or from a path to one."""
    if name in names():
        return FOLDER / f"{name}.toml"
    if name.endswith(".toml") or "/" in name or Path(name).is_file():
        return Path(name)
    raise UnknownNameError("published table", name, [*names(), "path/to/table.toml"])


def load_table(path: Path) -> PublishedTable:
    """Read and validate a table; raises `PublishedError` with every problem."""
    try:
        data: dict[str, Any] = tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        raise PublishedError(str(path), [Problem("", "no such file of a published table")]) from None
    except IsADirectoryError:
        raise PublishedError(str(path), [Problem("", "is a folder, not the file of a published table")]) from None
    except OSError as error:
        raise PublishedError(str(path), [Problem("", f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise PublishedError(str(path), [Problem("", f"is not UTF-8 at byte {error.start}")]) from error
    except tomllib.TOMLDecodeError as error:
        raise PublishedError(str(path), [Problem("", f"is not TOML: {error}")]) from error
    problems = []
    table = None
    try:
        table = validated(PublishedTable, data)
    except ValidationError as error:
        problems += problems_of(error, PublishedTable, data)
    problems += variant_problems(data)
    if problems:
        raise PublishedError(str(path), list(dict.fromkeys(problems)))
    assert table is not None
    return table


def check_study(table: PublishedTable, study: Study, source: str) -> None:
    """Refuse a table that speaks of variants or regimes which its study does not have."""
    problems = list(study_problems(table, study.variants, study.regime_names()))
    if problems:
        raise PublishedError(f"{source}, against study {study.name!r}", problems)


def study_path(table: PublishedTable, path: Path) -> Path:
    """The study file that a table names: beside it, in a folder ``studies`` beside it, in the checkout, or here."""
    here = Path.cwd()
    places = [path.parent, path.parent / "studies", CHECKOUT, here, here / "studies"]
    if path.parent == FOLDER:
        places = [CHECKOUT, here / "studies", here]
    found = next((place / table.study for place in places if (place / table.study).is_file()), None)
    if found is None:
        looked = ", ".join(str(place) for place in dict.fromkeys(places))
        text = f"names a study file that is not there; looked in {looked}; --study FILE says where it is"
        raise PublishedError(str(path), [Problem("study", text, repr(table.study))])
    return found
