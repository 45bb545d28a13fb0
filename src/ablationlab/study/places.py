"""Where a study is: its file, its results folder, or its bare name."""

from __future__ import annotations

import lzma
import os
import shutil
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablationlab.core.errors import AblationLabError, Problem, RecordError, StudyError
from ablationlab.core.paths import user_path
from ablationlab.records.storage import sha256_file, slug, user_tables

if TYPE_CHECKING:
    from ablationlab.records.settings import Study

#: The records of an entry of the gallery, and how archives end.
RECORDS, ARCHIVES = "records.tar.xz", (".tar.xz", ".tar.gz", ".tgz", ".tar")
STUDIES, RESULTS = Path("studies"), Path("results")
#: Studies that a message names if none is like the name that was given; more are counted.
_MOST_NAMED = 5


def default_folder(study: Study) -> Path:
    """Where a study's results go unless --out says otherwise."""
    return RESULTS / slug(study.name)


def find_study(given: Path) -> Path:
    """The study file, or the results folder with its sealed plan, that *given* means; other paths come back as they are."""
    if given.exists() or not _bare(given):
        return given
    name = given.name
    places = [STUDIES / f"{name}.toml", Path(f"{name}.toml"), RESULTS / name, RESULTS / (slug(name) or name)]
    for place in places:
        if place.exists():
            return place
    raise _unknown(given, _names([*_files(), *_folders()]))


def find_results(given: Path) -> Path:
    """The results folder that *given* means: a folder, a study file, a bare name or an archive of records (or the folder
    that holds one), which is unpacked into the cache; other paths come back as they are."""
    if given.is_file() and given.suffix == ".toml":
        return _folder_of(given)
    if given.is_file() and given.name.endswith(ARCHIVES):
        return _unpacked(given)
    if (given / RECORDS).is_file() and not (given / "plan.lock").exists():
        return _unpacked(given / RECORDS)
    if given.exists() or not _bare(given):
        return given
    for name in (given.name, slug(given.name) or given.name):
        if (RESULTS / name).is_dir():
            return RESULTS / name
    for file in (STUDIES / f"{given.name}.toml", Path(f"{given.name}.toml")):
        if file.is_file():
            return _folder_of(file)
    known = _names([*_folders(), *_files()])
    if known:
        raise _unknown(given, known)
    return given


def _unpacked(archive: Path) -> Path:
    """A folder in the cache, by the archive's hash, named as the entry that it lies in."""
    from ablationlab.data.sources import cache_folder

    digest = sha256_file(archive)[:16]
    name = archive.resolve().parent.name if archive.name == RECORDS else archive.name.partition(".")[0]
    folder = cache_folder() / "archives" / digest / (slug(name) or "study")
    if not folder.exists():
        fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
        try:
            with tarfile.open(archive) as packed:
                packed.extractall(fresh, filter="data")
            fresh.rename(folder)
        except (tarfile.TarError, lzma.LZMAError, EOFError, OSError) as error:
            shutil.rmtree(fresh, ignore_errors=True)
            if not folder.exists():  # unless another command was first
                raise RecordError(f"cannot be unpacked: {error}", archive) from error
    return folder


def _unknown(given: Path, known: Sequence[str]) -> StudyError:
    """No study has that name: those most like it, or, where none is, how many there are."""
    problem = Problem.unknown("", "study", given.name, known)
    if problem.nearest is None and len(known) > _MOST_NAMED:
        problem = replace(problem, allowed=f"the {len(known)} names that `ablationlab ls` lists")
    return StudyError(str(given), [problem])


def folder_without_code(study: Path) -> Path | None:
    """The results folder of a study file that cannot be loaded because code it uses is absent: what it sealed can be read."""
    data = unchecked_tables(study)
    entries = data.get("use")
    files = [entry for entry in entries if str(entry).endswith(".py")] if isinstance(entries, list) else []
    absent = any(not user_path(str(entry), study.parent).exists() for entry in files)
    folder = _named_folder(data)
    return folder if absent and folder is not None and (folder / "plan.lock").exists() else None


def _folder_of(study: Path) -> Path:
    """Found by the study's name, so that results can be read where the file is no longer right or its code is absent."""
    from ablationlab.study.load import load_study

    folder = _named_folder(unchecked_tables(study))
    return folder if folder is not None else default_folder(load_study(study))


def _named_folder(data: Mapping[str, Any]) -> Path | None:
    name = data.get("name")
    return RESULTS / slug(name) if isinstance(name, str) and slug(name) else None


def unchecked_tables(study: Path) -> dict[str, Any]:
    """Of a study file; none where it cannot be read."""
    try:
        return user_tables(study, "study file")
    except AblationLabError:
        return {}


def _bare(given: Path) -> bool:
    return given.parent == Path() and not given.suffix and given.name not in ("", ".", "..")


def _files() -> Iterable[Path]:
    return sorted(file for file in (*STUDIES.glob("*.toml"), *Path().glob("*.toml")) if file.name != "pyproject.toml")


def _folders() -> Iterable[Path]:
    return sorted(path for path in RESULTS.glob("*") if path.is_dir())


def _names(paths: Iterable[Path]) -> list[str]:
    return list(dict.fromkeys(path.stem if path.suffix == ".toml" else path.name for path in paths))
