"""Results of a variant, a metric and a probe that the installed package does not know are analyzed, reported and exported."""

from __future__ import annotations

from pathlib import Path

from ablationlab.api import power
from ablationlab.records.metrics import METRICS, Metric
from ablationlab.records.probes import Measure, ProbeChart, ProbeDefinition, ProbeLine, ProbeReading, to_parquet
from ablationlab.records.results import Results
from ablationlab.records.settings import VariantTable
from ablationlab.report.live import Live
from ablationlab.report.make import with_analysis
from ablationlab.report.page.build import write_page
from ablationlab.report.paper import write_paper
from ablationlab.report.tables import write_tables
from ablationlab.study.probes import PROBES, Probe
from ablationlab.study.variants import VARIANTS, Variant
from analysis.builder import build, outcome, seal_again, study


def test_results_of_an_unknown_variant_metric_and_probe_are_analyzed_reported_and_exported(tmp_path: Path):
    table = VariantTable(formula="x / 2", about="halves the input", model={"front": {"scale": 0.5}})
    VARIANTS.add("halved", Variant("halved", table))
    chart = ProbeChart("charm", "level", "Level of charm", "level", "Charm, step by step.")
    PROBES.add(
        "charm", Probe(ProbeDefinition("charm inside", (Measure("level", "its level"),), (chart,)), lambda _: None)
    )
    METRICS.add("charm", Metric("charm", "how charming it is", "quarks", "higher", "charm"))
    try:
        criteria = [{"metric": "validation_loss", "role": "primary", "smallest_effect": 0.05}, {"metric": "charm"}]
        asked = study(variants=["none", "halved"], criteria=criteria)

        def ended(variant: str, regime: str, seed: int) -> dict[str, float | None]:
            return {
                **(outcome(variant, regime, seed) or {}),
                "charm": 1.0 + 0.1 * seed + (variant == "halved") * 0.01 * seed,
            }

        build(tmp_path, asked, ended)
    finally:
        del VARIANTS._things["halved"], METRICS._things["charm"], PROBES._things["charm"]
    for run in Results.open(tmp_path).runs:
        lines = [
            ProbeLine(step=step, probe="charm", rows=(ProbeReading("level", None, None, 0.5 * step),))
            for step in (1, 4)
        ]
        run.folder.probe_table.write_bytes(to_parquet(run.id, lines))
    seal_again(tmp_path)
    asked = {row.comparison.metric.name for row in power(tmp_path, sd=0.1).power.rows}
    assert asked == {"validation_loss", "charm"}
    results = with_analysis(Results.open(tmp_path), say=lambda text: None)
    assert not results.problems
    metric = results.metric("charm")
    assert metric is not None
    assert (metric.unit, metric.direction) == ("quarks", "higher")
    assert results.analysis is not None
    assert results.analysis.comparison("charm", "default", "halved", "none") is not None
    write_tables(results, tmp_path)
    assert any("charm" in path.read_text() for path in (tmp_path / "tables").glob("*.csv"))
    page = write_page(results, tmp_path).read_text()
    assert ">charm<" in page
    assert write_paper(results, tmp_path).is_file()
    source = (tmp_path / "paper" / "paper.typ").read_text()
    assert "how charming it is" in source
    assert "Level of charm" in source
    assert "halved" in Live(tmp_path).page()
