"""What unfolds below a comparison and below a run: every pair, interval and test; settings, files and hashes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ablationlab.analysis.wording import absence, adjusted, caveat, no_number, pair_difference, sensitivity_reasons
from ablationlab.core.format import Difference, amount, difference, duration, level, number, p_clause, p_value, setting
from ablationlab.records.settings import flattened
from ablationlab.report.page.embed import macros
from ablationlab.report.table import Fold

if TYPE_CHECKING:
    from ablationlab.records.analysis import Comparison
    from ablationlab.records.results import Results, Run
    from ablationlab.stats import Interval

#: What labels the interval and the p-value that a verdict rests on.
DECIDES = "decides"
#: Beyond so many, pairs of a comparison, and of all together, are in pairs.csv alone, and hashes of runs in their own files.
MOST_PAIRS = MOST_RUNS = 200
MOST_PAIRS_IN_ALL = 10_000
#: Runs that the page lists; tables/runs.csv has all of them.
MOST_LISTED = 1_200


def comparison_folds(
    results: Results, comparisons: Iterable[Comparison], anchors: Mapping[str, str], runs: Mapping[str, str]
) -> list[Fold]:
    """One for each comparison; *anchors* and *runs* are where the page has comparisons and runs."""
    template = macros("folds.html.j2")
    comparisons = list(comparisons)
    most = min(MOST_PAIRS, max(10, MOST_PAIRS_IN_ALL // max(1, len(comparisons))))
    return [
        Fold(
            anchors[comparison.id],
            comparison.id,
            template.comparison(
                comparison,
                runs=[(run.seed, run.arm, number(run.value, 5)) for run in comparison.runs],
                pairs=_pairs(results, comparison, runs, most),
                left=max(0, len(comparison.pairs) - most),
                missing=[(gone.seed, gone.arm, absence(gone)) for gone in comparison.missing],
                intervals=_intervals(comparison),
                tests=_tests(comparison),
                effects=_effects(comparison),
                caveats=[*map(caveat, comparison.caveats), *sensitivity_reasons(comparison.sensitivity)],
            ),
        )
        for comparison in comparisons
    ]


def _pairs(results: Results, comparison: Comparison, runs: Mapping[str, str], most: int) -> list[tuple[str, ...]]:
    """(seed, reference, variant, difference, anchor of the reference's run, of the variant's)."""
    rows = []
    for pair in comparison.pairs[:most]:
        cells = (
            results.run_of(arm, comparison.regime, pair.seed) for arm in (comparison.reference, comparison.variant)
        )
        links = ("" if run is None else runs.get(run.id, "") for run in cells)
        values = (number(pair.reference, 5), number(pair.variant, 5), pair_difference(comparison, pair.delta))
        rows.append((str(pair.seed), *values, *links))
    return rows


def _intervals(comparison: Comparison) -> list[tuple[str, str, str]]:
    """(method, bounds, what to know): the one that decides first."""
    rows = []
    if (deciding := comparison.deciding) is not None:
        bounds = _bounds(comparison, deciding)
        doubt = (
            f"; the doubt of fitted rates is −{number(comparison.doubt.below, 3)} to +{number(comparison.doubt.above, 3)}"
            if comparison.doubt
            else ""
        )
        rows.append((DECIDES, bounds.range, f"{level(deciding.level)}, {adjusted(comparison)}{doubt}"))
    for name, interval in comparison.intervals.items():
        bounds = _bounds(comparison, interval)
        text = bounds.range if interval.status == "ok" else no_number(interval.status, interval.n, interval.method)
        rows.append((name, text, level(interval.level) + ("" if interval.exact else ", resampled")))
    return rows


def _bounds(comparison: Comparison, interval: Interval) -> Difference:
    log = comparison.transform == "log"
    return difference(interval.estimate, interval.low, interval.high, log=log, unit=comparison.unit)


def _tests(comparison: Comparison) -> list[tuple[str, str, str]]:
    deciding = (
        [] if comparison.p_adjusted is None else [(DECIDES, p_value(comparison.p_adjusted), adjusted(comparison))]
    )
    return deciding + [
        (
            name,
            p_value(test.p) if test.status == "ok" else no_number(test.status, test.n, test.test),
            "" if test.minimum_p is None else f"cannot go below {p_value(test.minimum_p)}",
        )
        for name, test in comparison.tests.items()
    ]


def _effects(comparison: Comparison) -> list[tuple[str, str]]:
    rows = [
        (name, f"{number(effect.estimate)} ({number(effect.low)} to {number(effect.high)})")
        for name, effect in comparison.effects.items()
    ]
    tost = comparison.equivalence
    if tost is not None:
        bounds = f"within ±{setting(tost.bounds[1])}"
        if tost.equivalent is None:
            rows.append(
                ("equivalence", f"could not be tested {bounds}: {no_number(tost.status, tost.n, comparison.test)}")
            )
        else:
            word = "shown" if tost.equivalent else "not shown"
            rows.append(("equivalence", f"{word} {bounds} (TOST, {p_clause(tost.p)})"))
    family = f"{comparison.family}, {comparison.correction}, alpha {setting(comparison.alpha)}"
    rows.append(("family", f"{family}, shared variance" if comparison.variance == "shared" else family))
    if comparison.correlation is not None:
        rows.append(("correlation over seeds", number(comparison.correlation)))
    return rows


def listed_runs(results: Results) -> tuple[Run, ...]:
    """The runs of the page's table: all, or those that did not finish or were unstable, then others, in the plan's order."""
    if len(results.runs) <= MOST_LISTED:
        return results.runs
    stability = None if results.analysis is None else results.analysis.stability
    calm = set() if stability is None else {seen.run for seen in stability.runs if seen.unstable is False}
    order = sorted(range(len(results.runs)), key=lambda place: results.runs[place].id in calm)
    return tuple(results.runs[place] for place in sorted(order[:MOST_LISTED]))


def run_folds(results: Results, runs: Iterable[Run], anchors: Mapping[str, str], out: Path) -> list[Fold]:
    """One for each of *runs*: settings unlike the baseline's, files, hashes. *out* is where the page will lie."""
    prefix = os.path.relpath(results.folder, out)
    prefix = "" if prefix == "." else f"{quote(Path(prefix).as_posix())}/"
    base = next((run for run in results.runs if run.variant == results.baseline), None)
    common = {} if base is None else _settings(base)
    template = macros("folds.html.j2")
    return [
        Fold(
            anchors[run.id],
            run.id,
            template.run(
                differs=_differs(_settings(run), common),
                drift=() if run.record is None else run.record.drift,
                files=[(name, f"{prefix}runs/{quote(run.id)}/{quote(name)}") for name in run.files],
                speed=_speed(run),
                hashes=_hashes(run) if len(results.runs) <= MOST_RUNS else (),
            ),
        )
        for run in runs
    ]


def _settings(run: Run) -> Mapping[str, Any]:
    return flattened(run.planned.model_dump(mode="json", include={"model", "training"}))


def _differs(mine: Mapping[str, Any], common: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    keys = [key for key in dict.fromkeys((*common, *mine)) if mine.get(key) != common.get(key)]
    return [(key, json.dumps(common.get(key)), json.dumps(mine.get(key))) for key in keys]


def _speed(run: Run) -> str:
    if run.result is None:
        return ""
    timing = run.result.timing
    speed = "" if timing.tokens_per_second is None else f"; {amount(timing.tokens_per_second)} tokens/s of its stack"
    return f"trained in {duration(timing.train_seconds)}{speed}"


def _hashes(run: Run) -> Sequence[tuple[str, str]]:
    record, result = run.record, run.result
    order = next((part.data_order_hash for part in (record, result) if part is not None and part.data_order_hash), None)
    hashes = [
        ("data order", order),
        ("shared initial weights", None if record is None else record.shared_init_hash),
        ("final weights", None if result is None else result.weights_sha256),
    ]
    return [(name, digest) for name, digest in hashes if digest]
