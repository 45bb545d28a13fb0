"""Which settings of two studies differ."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ablationlab.records.settings import Study, flattened


@dataclass(frozen=True)
class SettingDifference:
    """A dotted key and its two values; None where one side does not have it."""

    key: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return f"{self.key} {self.first!r} -> {self.second!r}"


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[SettingDifference]:
    """Leaves of two nested tables that differ, by their keys."""
    a, b = flattened(first), flattened(second)
    found = (
        SettingDifference(re.sub(r"^tables\b", "variants", key), a.get(key), b.get(key))  # as a study file spells it
        for key in a.keys() | b.keys()
        if a.get(key) != b.get(key)
    )
    return sorted(found, key=lambda difference: difference.key)


def study_differences(first: Study, second: Study) -> list[SettingDifference]:
    """Settings that differ; the words of the paper are none, and those of a variant count where nothing else differs."""
    found = differences(*(_table(study) for study in (first, second)))
    settings = [difference for difference in found if not _WORDS.fullmatch(difference.key)]
    return settings or found


_WORDS = re.compile(r"variants\..*\.(about|formula)")


def _table(study: Study) -> dict[str, Any]:
    """Its settings; of its own code, what each file contains."""
    return study.model_dump(mode="json", exclude={"text", "authors", "use"}) | {
        "use": {code.name: code.sha256[:12] for code in study.use}
    }


def listed(found: list[SettingDifference], most: int = 5) -> str:
    """The first few of them, in a clause."""
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(map(str, found[:most])) + more
