"""A published table: who published what, how each figure is defined there, and which of our metrics it is compared with.

One TOML file per table; some come with the package. `figures` are values to compare with ours; `directions` are signs of
an effect, for results at another scale than ours, where values cannot be compared. See docs/replication.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from ablationlab.core.errors import AblationLabError, Problem, PublishedError, UnknownNameError
from ablationlab.core.problems import problems_of
from ablationlab.records.metrics import METRICS
from ablationlab.records.plan import Plan
from ablationlab.records.replication import Publication, PublishedDirection, PublishedFigure, Text
from ablationlab.records.settings import DEFAULT_REGIME, SWEEP, TUNED, Frozen, Study, validated
from ablationlab.records.storage import slug, user_tables
from ablationlab.study.places import unchecked_tables
from ablationlab.study.variants import VARIANTS

#: One file per table, named after it.
FOLDER = Path(__file__).parent / "published"
#: The studies of a checkout; an installed package has none.
CHECKOUT = Path(__file__).parents[4] / "studies"


class PublishedTable(Frozen):
    """A whole table.

    ``study`` is the study file to run, beside the table's own file or in a folder ``studies``. ``beside`` names regimes
    of that study in which every figure and direction of the default regime is shown too, for contrast: the publication says
    nothing about them. ``quick`` are overrides, as ``--set`` takes them, that make the study small enough for two cores.
    """

    schema_version: Literal[1]
    name: Annotated[str, Field(min_length=1, max_length=60)]
    title: Text
    about: Text
    source: Publication
    study: Annotated[str, Field(min_length=1, max_length=300)]
    figures: tuple[PublishedFigure, ...] = ()
    directions: tuple[PublishedDirection, ...] = ()
    beside: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()

    @field_validator("name")
    @classmethod
    def _is_a_slug(cls, name: str) -> str:
        if slug(name) != name:
            raise ValueError(f"use lower-case letters, digits and dashes, such as {slug(name) or 'pilot'!r}")
        return name

    @field_validator("study")
    @classmethod
    def _is_a_file_name(cls, study: str) -> str:
        if not study.endswith(".toml") or "\0" in study:
            raise ValueError("names a study file, which ends in .toml")
        return study

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.figures and not self.directions:
            raise ValueError("has neither figures nor directions: give at least one [[figures]] or [[directions]]")
        return self


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


def load_table(path: Path, plan: Plan | None = None) -> PublishedTable:
    """Read and validate a table; raises `PublishedError` with every problem.

    Metrics and variants are those of the *plan* whose runs are compared; without one, those that are installed, and the
    variants that the table's study file defines.
    """
    try:
        data = user_tables(path, "file of a published table")
    except AblationLabError as error:
        raise PublishedError(str(path), [Problem("", str(error))]) from error
    problems = []
    table = None
    metrics = dict(METRICS.items()) if plan is None else plan.metrics
    try:
        table = validated(PublishedTable, data, context={"metrics": metrics})
    except ValidationError as error:
        problems += problems_of(error, PublishedTable, data)
    known = plan.variants if plan is not None else [*VARIANTS, *_defined_variants(data.get("study"), path)]
    problems += _variant_problems(data, known)
    if problems:
        raise PublishedError(str(path), list(dict.fromkeys(problems)))
    assert table is not None
    return table


def check_study(table: PublishedTable, study: Study, source: str) -> None:
    """Refuse a table that speaks of variants or regimes which its study does not have."""
    problems = list(_study_problems(table, study.variants, study.regime_names()))
    if problems:
        raise PublishedError(f"{source}, against study {study.name!r}", problems)


def study_path(table: PublishedTable, path: Path) -> Path:
    """The study file that a table names: beside it, in a folder ``studies`` beside it, in the checkout, or here."""
    places = _study_places(path)
    study = next((place / table.study for place in places if (place / table.study).is_file()), None)
    if study is None:
        looked = ", ".join(str(place) for place in dict.fromkeys(places))
        text = f"names a study file that is not there; looked in {looked}; --study FILE says where it is"
        raise PublishedError(str(path), [Problem("study", text, repr(table.study))])
    return study


def _study_places(path: Path) -> list[Path]:
    here = Path.cwd()
    if path.parent == FOLDER:
        return [CHECKOUT, here / "studies", here]
    return [path.parent, path.parent / "studies", CHECKOUT, here, here / "studies"]


def _defined_variants(study: Any, path: Path) -> list[str]:
    """Names of the [variants.NAME] tables of a table's study file; none where it cannot be read, which is reported later."""
    for place in _study_places(path) if isinstance(study, str) else ():
        if not (read := unchecked_tables(place / study)):
            continue
        tables = read.get("variants")
        return list(tables) if isinstance(tables, dict) else []
    return []


def _variant_problems(data: Any, known: Iterable[str]) -> Iterator[Problem]:
    """Variants that are not known, by the plain tables, so that one mistake does not hide another."""
    variants = list(known)
    for i, figure in enumerate(_tables(data, "figures")):
        values = figure.get("values")
        for name in values if isinstance(values, dict) else ():
            if name not in variants:
                yield Problem.unknown(f"figures[{i}].values.{name}", "variant", name, variants)
    for i, direction in enumerate(_tables(data, "directions")):
        names = [direction.get(key) for key in ("variant", "reference")]
        for key, name in zip(("variant", "reference"), names, strict=True):
            if isinstance(name, str) and name not in variants:
                yield Problem.unknown(f"directions[{i}].{key}", "variant", name, variants)
        if isinstance(names[0], str) and names[0] == (names[1] or "none"):
            yield Problem(f"directions[{i}]", "compares a variant with itself", repr(names[0]))


def _study_problems(table: PublishedTable, variants: tuple[str, ...], regimes: tuple[str, ...]) -> Iterator[Problem]:
    """What the table asks for and its study does not have."""
    known = [*regimes, SWEEP, TUNED]
    for i, figure in enumerate(table.figures):
        if figure.regime not in known:
            yield Problem.unknown(f"figures[{i}].regime", "regime of the study", figure.regime, known)
        for name in figure.values:
            if name not in variants:
                yield Problem.unknown(f"figures[{i}].values.{name}", "variant of the study", name, variants)
    for i, direction in enumerate(table.directions):
        if direction.regime not in known:
            yield Problem.unknown(f"directions[{i}].regime", "regime of the study", direction.regime, known)
        for key, name in (("variant", direction.variant), ("reference", direction.reference)):
            if name not in variants:
                yield Problem.unknown(f"directions[{i}].{key}", "variant of the study", name, variants)
    for i, regime in enumerate(table.beside):
        if regime not in regimes or regime == DEFAULT_REGIME:
            others = [name for name in regimes if name != DEFAULT_REGIME]
            yield Problem.unknown(f"beside[{i}]", "regime of the study", regime, others)


def _tables(data: Any, key: str) -> list[dict[str, Any]]:
    tables = data.get(key) if isinstance(data, dict) else None
    return [table for table in tables if isinstance(table, dict)] if isinstance(tables, list) else []
