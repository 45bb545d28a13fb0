"""Somebody else's runs: steps to a target, logs that hold several runs or the same one twice, packed tables."""

from __future__ import annotations

import gzip
import math
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

import ablationlab
from ablationlab.analysis import TableOptions, analyze, read_table
from ablationlab.analysis.dataset import Absent, Arm
from ablationlab.core.errors import StatisticsError, TableError
from ablationlab.records.analysis import Absence, DeviationCode
from ablationlab.records.table_curves import TABLE_CURVES, read_table_curves, write_table_curves

METRIC = "steps_to_loss_3"


def falling(arm, crossings, last=100, **columns):
    """Runs whose loss falls by 0.01 per step, and is 3 at these steps; a value every ten steps."""
    return [
        {"variant": arm, "run": f"{arm}-{number}", "step": step, "loss": 3 + 0.01 * (crossing - step), **columns}
        for number, crossing in enumerate(crossings)
        for step in range(0, last + 1, 10)
    ]


def read(rows, **options):
    options = {"baseline": "old", "metrics": ("loss:lower",), "at": "target=3", "unpaired": True} | options
    return read_table(pd.DataFrame(rows), TableOptions.checked(**options))


def compared(rows, **options):
    (comparison,) = analyze(read(rows, **options)).comparisons
    return comparison


OLD, NEW = [61.0, 66.0, 58.5, 70.0, 63.0], [52.0, 55.0, 49.0, 57.5, 51.0]


def test_the_steps_to_a_target_are_read_between_two_values_and_compared_by_welch():
    dataset = read([*falling("old", OLD), *falling("new", NEW)])
    found = dataset.values[Arm(METRIC, None, "default", "new")]
    assert sorted(found.values()) == pytest.approx(sorted(NEW))
    metric = dataset.metrics[METRIC]
    assert (metric.direction, metric.unit) == ("lower", "steps")
    (comparison,) = analyze(dataset).comparisons
    assert comparison.p == pytest.approx(scipy_stats.ttest_ind(NEW, OLD, equal_var=False).pvalue)
    assert [d.about for d in dataset.deviations if d.code == DeviationCode.HELD_EQUAL] == ["target"]
    assert dataset.curves[0].curves.keys() == {"step", "loss"}


@pytest.mark.parametrize("scale", [0.01, 1 / 3, 1000.0, 1e12])
@pytest.mark.parametrize("long", [False, True])
def test_multiplying_all_steps_scales_the_answer_and_nothing_else(scale, long):
    rows = [*falling("old", OLD), *falling("new", [*NEW, 104.0])]

    def scaled(by, at="target=3"):
        made = [row | {"step": row["step"] * by} for row in rows]
        if long:
            made = [{"metric": "loss", "value": row.pop("loss"), **row} for row in made]
        return read(made, at=at)

    (one,), (other,) = (analyze(scaled(by)).comparisons for by in (1, scale))
    assert other.p == pytest.approx(one.p)
    assert other.estimate / scale == pytest.approx(one.estimate)
    ends = [(found.main_interval.low, found.main_interval.high) for found in (one, other)]
    assert [end / scale for end in ends[1]] == pytest.approx(ends[0])
    codes = [[deviation.code for deviation in scaled(by).deviations] for by in (1, scale)]
    assert codes[0] == codes[1]
    at = [analyze(scaled(by, f"step={50 * by!r}")).comparisons[0].estimate for by in (1, scale)]
    assert at[0] == pytest.approx(at[1])
    assert [step / scale for step in scaled(scale).curves[0].curves["step"]] == pytest.approx(range(0, 101, 10))


def test_steps_that_are_parts_of_an_epoch_stay_in_the_curves_that_are_written(tmp_path):
    rows = [row | {"step": row["step"] / 40} for row in [*falling("old", OLD), *falling("new", NEW)]]
    write_table_curves(read(rows).curves, tmp_path)
    again = read_table_curves(tmp_path / TABLE_CURVES)
    assert [*again[0].curves["step"]] == [step / 40 for step in range(0, 101, 10)]


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        ("loss", "3,4", r"loss: '3,4' in line 3 is not a number"),
        ("step", "ten", r"loss: step 'ten' is not a finite number in line 3"),
        ("step", "inf", r"loss: step 'inf' is not a finite number in line 3"),
    ],
)
def test_a_cell_that_is_no_number_is_refused_with_its_row(tmp_path, column, cell, message):
    rows = [*falling("old", OLD), *falling("new", NEW)]
    rows[1] = rows[1] | {column: cell}
    pd.DataFrame(rows).to_csv(tmp_path / "runs.csv", index=False)
    with pytest.raises(TableError, match=message):
        read_table(tmp_path / "runs.csv", TableOptions.checked(baseline="old", metrics=("loss:lower",), unpaired=True))


@pytest.mark.parametrize("text", ["target=.3e1", "target=3e0", "target=3.", "target=+3"])
def test_a_target_is_any_finite_number(text):
    assert compared([*falling("old", OLD), *falling("new", NEW)], at=text).p < 0.01
    for wrong in ("target=1e999", "target=", "target=nan", "step=1e999"):
        with pytest.raises(StatisticsError, match="must be last, best"):
            TableOptions.checked(baseline="old", at=wrong)


def test_a_metric_that_is_better_higher_reaches_its_target_from_below():
    rows = [row | {"loss": -row["loss"]} for row in [*falling("old", OLD), *falling("new", NEW)]]
    dataset = read(rows, metrics=("loss:higher",), at="target=-3")
    found = dataset.values[Arm("steps_to_loss_-3", None, "default", "old")]
    assert sorted(found.values()) == pytest.approx(sorted(OLD))
    assert dataset.metrics["steps_to_loss_-3"].direction == "lower"


def test_a_run_that_never_reaches_it_has_no_value_and_is_no_failure():
    dataset = read([*falling("old", OLD), *falling("new", [*NEW, 104.0])])
    (gone,) = [v for v in dataset.values[Arm(METRIC, None, "default", "new")].values() if isinstance(v, Absent)]
    assert (gone.reason, gone.details) == (Absence.NOT_REACHED, {"target": 3.0, "step": 100})
    assert dataset.runs == ()


def test_what_cannot_be_read_is_refused():
    with pytest.raises(TableError, match=r"at 3 at its first step, 0: its steps to it are unknown; leave it out"):
        read([*falling("old", OLD), *falling("new", [*NEW, -1.0])])
    with pytest.raises(TableError, match=r"name the metric that has this target, with --metric, from: loss, f1"):
        read(
            [row | {"f1": 1.0} for row in [*falling("old", OLD), *falling("new", NEW)]],
            metrics=("loss:lower", "f1:higher"),
        )
    with pytest.raises(TableError, match="loss has no steps"):
        read([{"variant": arm, "loss": 3.0} for arm in ("old", "new", "new")])
    with pytest.raises(StatisticsError, match="holds the target equal"):
        read([], held_equal="tokens")


def counted(values, least):
    """One number for each run that needs more steps than it made, by the formula of `stats.costs`."""
    reach = scipy_stats.t.ppf(0.999, len(values) - 1) * np.std(values, ddof=1) * math.sqrt(1 + 1 / len(values))
    return [*values, *[max(np.mean(values) + reach, step) for step in least]]


@pytest.mark.parametrize("last", [70, 100])
def test_an_unreached_target_counts_against_its_arm_and_leaves_a_claim_within_reach(last):
    old, new = [*OLD, 64.0, 60.0, 65.0], [*NEW, 54.0, 50.0]
    comparison = compared([*falling("old", old), *falling("new", [*new, last + 3.0], last=last)])
    wanted = scipy_stats.ttest_ind(counted(new, [last]), old, equal_var=False)
    assert comparison.p == pytest.approx(wanted.pvalue)
    assert comparison.estimate == pytest.approx(np.mean(counted(new, [last])) - np.mean(old))
    assert comparison.main_interval.high == pytest.approx(wanted.confidence_interval(0.95).high)
    # What the variant did not reach says nothing against the baseline.
    assert comparison.main_interval.low == pytest.approx(
        scipy_stats.ttest_ind(new, old, equal_var=False).confidence_interval(0.95).low
    )


def test_swapping_the_arms_mirrors_what_unreached_targets_show():
    old, new = [*OLD, 64.0, 60.0, 65.0], [*NEW, 54.0, 50.0, 103.0]
    rows = [*falling("old", old), *falling("new", new)]
    better, worse = compared(rows), compared(rows, baseline="new")
    assert worse.p == pytest.approx(better.p)
    ends = better.main_interval, worse.main_interval
    assert (ends[1].low, ends[1].high) == pytest.approx((-ends[0].high, -ends[0].low))


@pytest.mark.parametrize("new", [[*NEW, 103.0, 105.0], [*NEW[:4], 103.0]])
def test_too_many_unreached_targets_take_the_claim_away(new):
    comparison = compared([*falling("old", OLD), *falling("new", new)])
    assert comparison.p == 1.0
    assert comparison.main_interval.high is None
    assert comparison.main_interval.low is not None


def test_one_log_may_hold_several_runs_one_after_the_other():
    rows = [row | {"run": row["variant"]} for row in [*falling("old", OLD), *falling("new", NEW)]]
    comparison = compared(rows)
    assert comparison.p == pytest.approx(scipy_stats.ttest_ind(NEW, OLD, equal_var=False).pvalue)
    with pytest.raises(TableError, match="are these two runs"):
        read([row | {"seed": 1} for row in rows], unpaired=False)


def test_equal_seeds_of_unpaired_runs_are_two_runs():
    rows = [row | {"seed": 0} for row in [*falling("old", OLD), *falling("new", NEW)]]
    assert compared(rows).sample == "5 and 5 runs, unpaired"


def test_a_run_that_stands_twice_counts_once():
    copy = [row | {"run": "again"} for row in falling("new", NEW[:1]) if row["step"] > 0]  # its log begins later
    rows = [*falling("old", OLD), *falling("new", NEW)]
    dataset = read([*rows, *copy])
    (told,) = [d for d in dataset.deviations if d.code == DeviationCode.COPIED_RUNS]
    assert len(told.details["runs"]) == 1
    assert compared([*rows, *copy]).p == compared(rows).p
    assert not [d for d in read(rows).deviations if d.code == DeviationCode.COPIED_RUNS]


@pytest.mark.parametrize("unpaired", [True, False])
def test_a_run_that_stands_in_two_arms_is_named_and_stays_in_both(unpaired):
    rows = [*falling("old", OLD), *falling("new", [*NEW[:4], OLD[0]])]
    rows = [row | {"seed": int(row["run"][-1])} for row in rows]
    dataset = read([{k: v for k, v in row.items() if k != "run"} for row in rows], unpaired=unpaired)
    (told,) = [d.details["runs"] for d in dataset.deviations if d.code == DeviationCode.COPIED_RUNS]
    assert sorted(re.findall("old|new", told[0])) == ["new", "old"]
    assert [len(values) for values in dataset.values.values()] == [5, 5]


def test_a_log_that_begins_again_is_named():
    rows = [row | {"run": row["variant"]} for row in [*falling("old", OLD), *falling("new", NEW[:3])]]
    (told,) = [d for d in read(rows).deviations if d.code == DeviationCode.SEVERAL_RUNS]
    assert told.details == {"logs": ["old: 5", "new: 3"]}
    single = read([*falling("old", OLD), *falling("new", NEW)])
    assert DeviationCode.SEVERAL_RUNS not in {d.code for d in single.deviations}


@pytest.mark.parametrize("arm", ["old", "new"])
def test_an_arm_that_never_reaches_the_target_has_its_reason_and_gives_no_claim(arm):
    never = [130.0, 140.0, 135.0, 120.0, 125.0]
    arms = {"old": OLD, "new": NEW} | {arm: never}
    dataset = read([row for name, crossings in arms.items() for row in falling(name, crossings)])
    (told,) = [d for d in dataset.deviations if d.code == DeviationCode.UNREACHED_TARGET]
    assert told.details == {"runs": [f"{arm}: 5 of 5"]}
    assert analyze(dataset).comparisons[0].p in (None, 1.0)
    one = read([*falling("old", OLD), *falling("new", [*NEW, 104.0])])
    assert [d.details["runs"] for d in one.deviations if d.code == DeviationCode.UNREACHED_TARGET] == [["new: 1 of 6"]]


def test_options_that_would_do_nothing_are_refused():
    for option in ({"test": "wilcoxon"}, {"interval": "bca"}):
        with pytest.raises(StatisticsError, match="--unpaired compares by Welch"):
            read([*falling("old", OLD), *falling("new", NEW)], **option)
    with pytest.raises(TableError, match="leaves out runs, not single steps of them"):
        read([*falling("old", OLD), *falling("new", NEW)], where=("step!=0",))


def test_every_problem_is_counted_though_not_all_are_listed(tmp_path):
    rows = [row | ({"loss": "3,4"} if row["step"] == 0 else {}) for row in falling("old", range(40, 70))]
    pd.DataFrame([*rows, *falling("new", NEW)]).to_csv(tmp_path / "runs.csv", index=False)
    with pytest.raises(TableError, match="30 problems") as error:
        read_table(tmp_path / "runs.csv", TableOptions.checked(baseline="old", metrics=("loss:lower",), unpaired=True))
    assert error.value.problems[-1] == "and 18 more"


def test_runs_that_differ_in_one_metric_or_have_few_values_are_no_copies():
    rows = [row | {"f1": 0.5 + row["step"] / 1000} for row in [*falling("old", OLD), *falling("new", NEW)]]
    for options in ({"metrics": ("f1:higher", "loss:lower")}, {"metrics": ("f1:higher",)}):
        dataset = read(rows, at="last", **options)
        told = [d for d in dataset.deviations if d.code == DeviationCode.COPIED_RUNS]
        assert bool(told) == (len(options["metrics"]) == 1)
    few = [row | {"loss": 1.0} for row in rows]
    assert not [d for d in read(few, at="last").deviations if d.code == DeviationCode.COPIED_RUNS]


def test_arms_whose_curves_have_fewer_values_around_the_target_are_named():
    rows = [*falling("old", OLD), *falling("new", NEW)]
    sparse = [row for row in rows if row["variant"] == "new" or row["step"] % 50 == 0]
    (told,) = [d for d in read(sparse).deviations if d.code == DeviationCode.COARSE_CURVES]
    assert told.details == {"least": 10, "most": 50}
    assert DeviationCode.COARSE_CURVES not in {d.code for d in read(rows).deviations}


def test_paired_seeds_with_one_curve_are_named_and_stay():
    seeds = [row | {"seed": int(row["run"][-1])} for row in [*falling("old", OLD), *falling("new", [*NEW[:4], NEW[0]])]]
    dataset = read([{k: v for k, v in row.items() if k != "run"} for row in seeds], unpaired=False)
    assert [d.details["runs"] for d in dataset.deviations if d.code == DeviationCode.COPIED_RUNS] == [["new 4 = 0"]]
    assert analyze(dataset).comparisons[0].n == 5


def test_the_runs_of_a_long_table_are_told_by_their_names():
    rows = [
        {"variant": row["variant"], "run": row["run"], "step": row["step"], "metric": "loss", "value": row["loss"]}
        for row in [*falling("old", OLD), *falling("new", NEW)]
    ]
    assert compared(rows).p == pytest.approx(scipy_stats.ttest_ind(NEW, OLD, equal_var=False).pvalue)


def test_a_table_may_be_packed(tmp_path):
    text = pd.DataFrame([*falling("old", OLD), *falling("new", NEW)]).to_csv(index=False)
    (tmp_path / "runs.csv").write_text(text)
    (tmp_path / "runs.csv.gz").write_bytes(gzip.compress(text.encode()))
    options = TableOptions.checked(baseline="old", metrics=("loss:lower",), at="target=3", unpaired=True)
    plain, packed = (read_table(tmp_path / name, options) for name in ("runs.csv", "runs.csv.gz"))
    assert (plain.name, plain.values, plain.source_hash) == (packed.name, packed.values, packed.source_hash)
    (tmp_path / "torn.csv.gz").write_bytes(gzip.compress(text.encode())[:-20])
    with pytest.raises(TableError, match="cannot be unpacked"):
        read_table(tmp_path / "torn.csv.gz", options)


def test_conditions_on_one_column_are_alternatives_and_may_leave_runs_out():
    rows = [*falling("old", OLD), *falling("new", NEW), *falling("other", OLD)]
    rows += [{"variant": "new", "run": "summary", "step": 100, "loss": 2.5}]
    comparison = compared(rows, where=("variant=old", "variant=new", "run!=summary"))
    assert comparison.p == pytest.approx(scipy_stats.ttest_ind(NEW, OLD, equal_var=False).pvalue)
    both = ablationlab.analyze(
        pd.DataFrame(rows),
        baseline="old",
        metric="loss:lower",
        at="target=3",
        where={"variant": ["old", "new"], "run!": "summary"},
        unpaired=True,
    )
    assert [c.p for c in both.analysis.comparisons] == [comparison.p]
    with pytest.raises(TableError, match=r"no run meets run=nobody and run!=new-1"):
        read(rows, where=("run=nobody", "run!=new-1"))
    with pytest.raises(StatisticsError, match=r"expected column=value or column!=value"):
        read(rows, where=("!=x",))
