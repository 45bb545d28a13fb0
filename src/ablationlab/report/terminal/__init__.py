"""What the command line prints: tables and sentences for rich, each from a plan, results or an analysis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablationlab.core.lazy import lazy_exports

if TYPE_CHECKING:
    from ablationlab.report.terminal.analysis import (
        analysis_view,
        evaluation_view,
        items_view,
        power_view,
        replication_view,
        run_probes_view,
        verdict_view,
    )
    from ablationlab.report.terminal.browse import (
        diff_view,
        find_run,
        listing,
        open_place,
        place_damage,
        run_damage,
        run_view,
    )
    from ablationlab.report.terminal.catalog import (
        corpora_table,
        library_view,
        metrics_table,
        presets_table,
        probes_table,
        variants_table,
    )
    from ablationlab.report.terminal.costing import Money, costing_view
    from ablationlab.report.terminal.power import decision_view
    from ablationlab.report.terminal.study import (
        failures_view,
        overlap_table,
        own_trainer_summary,
        plan_summary,
        plan_tables,
        precisions,
        results_table,
        shared_text,
        status_table,
        time_needed,
    )

__getattr__ = lazy_exports(__name__)
