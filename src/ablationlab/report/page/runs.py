"""Every run as a plain row for the template: where it stands, its numbers, what sets it apart."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ablationlab.core.format import amount, number
from ablationlab.report.charts.theme import colours

if TYPE_CHECKING:
    from ablationlab.records.results import Results, Run

STATES = {"finished": "good", "diverged": "bad", "damaged": "bad", "running": "warn", "started": "warn"}


def run_rows(material: Results, anchors: Mapping[str, str], out: Path) -> list[dict[str, Any]]:
    """Every run: where it stands, its numbers, what sets it apart, its files."""
    prefix = os.path.relpath(material.folder, out)
    prefix = "" if prefix == "." else f"{quote(Path(prefix).as_posix())}/"
    hues = colours(material)
    common = _common(material)
    found = []
    for run in material.runs:
        result, record = run.result, run.record
        found.append(
            {
                "anchor": anchors[run.id],
                "id": run.id,
                "variant": run.variant,
                "regime": run.regime,
                "seed": str(run.seed),
                "colour": hues.get(run.variant, "#626b75"),
                "lr": f"{run.lr:g}",
                "state": run.state,
                "tone": STATES.get(run.state, ""),
                "why": f"step {result.divergence.step}: {result.divergence.cause}"
                if result is not None and result.divergence is not None
                else "",
                "steps": f"{run.step:,} / {run.steps:,}",
                "step": run.step,
                "metrics": [(name, run.metric(name), number(run.metric(name), 4)) for name in run_metrics(material)],
                "tokens_per_second": "" if result is None else amount(result.timing.tokens_per_second),
                "seconds": "" if result is None else number(result.timing.train_seconds, 3),
                "differs": _differs(run, common),
                "hashes": [
                    ("data order", record.data_order_hash if record is not None else ""),
                    ("shared initial weights", record.shared_init_hash if record is not None else ""),
                    ("final weights", result.weights_sha256 if result is not None else ""),
                ],
                "drift": list(record.drift) if record is not None else [],
                "files": [(name, f"{prefix}runs/{quote(run.id)}/{quote(name)}") for name in run.files],
            }
        )
    return found


def run_metrics(material: Results) -> list[str]:
    """The run-level metrics that the runs table shows: the primary one and the protocol's headlines, where recorded."""
    wanted = [material.primary, "validation_loss", "next_token_accuracy", "final_gradient_norm", "mean_embedding_norm"]
    there = {name for run in material.runs if run.result is not None for name in run.result.metrics}
    return [name for name in dict.fromkeys(wanted) if name in there and name is not None]


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _settings(run: Run) -> dict[str, Any]:
    return flat(run.planned.model_dump(mode="json", include={"model", "training"}))


def _common(material: Results) -> dict[str, Any]:
    """The settings of the first baseline run: what the others are described against."""
    base = next((run for run in material.runs if run.variant == material.baseline), None)
    return _settings(base) if base is not None else {}


def _differs(run: Run, common: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    mine = _settings(run)
    keys = [key for key in dict.fromkeys((*common, *mine)) if mine.get(key) != common.get(key)]
    return [(key, json.dumps(common.get(key)), json.dumps(mine.get(key))) for key in keys]
