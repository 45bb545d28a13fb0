"""What one can choose from in a study: variants, presets, metrics, probes, corpora, published tables.

The only file of the report that asks today's registries: everything else reads what a plan sealed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType

from ablationlab.core.format import DASH, amount, count
from ablationlab.data.sources import SOURCES, cached_path, is_cached
from ablationlab.model.parameters import matmul_flops_per_token, parameter_count
from ablationlab.records.metrics import METRICS
from ablationlab.records.settings import PRESETS, ModelConfig
from ablationlab.report.table import Table
from ablationlab.study.probes import PROBES
from ablationlab.study.variants import VARIANTS

if TYPE_CHECKING:  # it takes scipy
    from ablationlab.instrument.replication import PublishedTable


def variants_table() -> RenderableType:
    """Every variant with its formula."""
    rows = [(name, variant.table.formula, variant.table.about) for name, variant in VARIANTS.items()]
    return Table.simple("Variants", ["name", "formula", "meaning"], rows).terminal()


def presets_table() -> RenderableType:
    """Every preset with its true parameter count."""
    rows = []
    for name, preset in PRESETS.items():
        model = ModelConfig.model_validate({"preset": name, "vocabulary": preset.shape.get("vocabulary", 65)})
        vocabulary = count(model.vocabulary) if "vocabulary" in preset.shape else "from the text (65 counted)"
        flops = amount(matmul_flops_per_token(model))
        cells = (name, model.layers, model.width, model.heads, model.context, vocabulary)
        start = ", ".join(f"{key} = {amount(value)}" for key, value in preset.start.items())
        meaning = f"{preset.meaning}; start from {start}" if start else preset.meaning
        rows.append((*cells, count(parameter_count(model)), flops, meaning))
    numbers = ["layers", "width", "heads", "context", "vocabulary", "parameters", "FLOPs per token"]
    return Table.simple("Presets", ["name", *numbers, "meaning"], rows, numbers).terminal()


def metrics_table() -> RenderableType:
    """Every metric that records can hold."""
    rows = [(m.name, m.unit, m.direction or DASH, m.level, m.meaning) for _, m in METRICS.items()]
    return Table.simple("Metrics", ["name", "unit", "better", "level", "meaning"], rows).terminal()


def corpora_table() -> RenderableType:
    """Every named corpus and whether it is here."""
    rows = [
        (s.name, count(s.size), str(cached_path(s)) if is_cached(s) else "not fetched", s.meaning)
        for _, s in SOURCES.items()
    ]
    return Table.simple("Corpora", ["name", "bytes", "cached at", "meaning"], rows, ["bytes"]).terminal()


def probes_table() -> RenderableType:
    """Every probe that a study can switch on."""
    rows = [
        (name, ", ".join(measure.name for measure in probe.definition.measures), probe.definition.meaning)
        for name, probe in PROBES.items()
    ]
    return Table.simple("Probes", ["name", "measures", "meaning"], rows).terminal()


def library_view(tables: Sequence[tuple[str, PublishedTable]]) -> RenderableType:
    """The published tables that can be replicated."""
    rows = [
        (
            name,
            table.title,
            len(table.figures),
            len(table.directions),
            table.study,
            f"{table.source.citation} ({table.source.date})",
        )
        for name, table in tables
    ]
    heads = ["name", "what", "figures", "directions", "study", "source"]
    return Table.simple("Published tables to replicate", heads, rows, ["figures", "directions"]).terminal()
