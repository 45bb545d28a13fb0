"""Runs as trackers keep them: real TensorBoard event files, and the formats of wandb and MLflow, written out by hand."""

from __future__ import annotations

import json
import math
import sqlite3
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats
from statsmodels.stats.proportion import confint_proportions_2indep

from ablationlab.analysis import TableOptions, analyze, read_table
from ablationlab.analysis.from_table import direction_of
from ablationlab.analysis.trackers import read_tracker
from ablationlab.analysis.trackers.tensorboard import scalars
from ablationlab.analysis.verdict import decide
from ablationlab.analysis.wording import absence
from ablationlab.core.errors import StatisticsError, TableError
from ablationlab.records.results import Results
from ablationlab.records.table_curves import read_table_curves, write_table_curves

STEPS = (0, 10, 20)
GAIN = {1: 0.05, 2: 0.06, 3: 0.045, 4: 0.052}


def loss(arch, seed, step):
    return 3 - step / 50 + seed / 100 - (GAIN[seed] if arch == "norm" else 0)


CELLS = [(arch, seed) for arch in ("none", "norm") for seed in GAIN]
EXPECTED = scipy_stats.ttest_rel([loss("norm", s, 20) for s in GAIN], [loss("none", s, 20) for s in GAIN]).pvalue


def problems(source, **options):
    with pytest.raises(TableError) as caught:
        read_table(source, TableOptions.checked(**{"baseline": "none", **options}))
    return "\n".join(caught.value.problems)


def primary(source, **options):
    dataset = read_table(source, TableOptions.checked(**{"baseline": "none", **options}))
    return analyze(dataset).comparisons[0], dataset


# --- TensorBoard ------------------------------------------------------------------------------------------


needs_writer = pytest.mark.needs("tensorboard")


def event_files(folder, name=lambda arch, seed: f"{arch}-s{seed}"):
    from torch.utils.tensorboard import SummaryWriter

    for arch, seed in CELLS:
        with SummaryWriter(str(folder / name(arch, seed))) as writer:
            for step in STEPS:
                writer.add_scalar("val/loss", loss(arch, seed, step), step)
                writer.add_scalar("lr", 0.1, step, new_style=True)
                writer.add_text("note", "not a scalar", step)


@needs_writer
@pytest.mark.parametrize(
    ("name", "run_names"),
    [
        (lambda arch, seed: f"{arch}-s{seed}", None),
        (lambda arch, seed: f"{arch}/{seed}", None),
        (lambda arch, seed: f"{arch}_seed{seed}", None),
        (lambda arch, seed: f"run{seed}~{arch}", "run{seed}~{variant}"),
    ],
)
def test_event_files_of_the_real_writer_are_read_with_their_curves(tmp_path, name, run_names):
    event_files(tmp_path, name)
    comparison, dataset = primary(tmp_path, run_names=run_names)
    assert comparison.metric == "val/loss"
    assert comparison.n == 4
    assert comparison.p == pytest.approx(EXPECTED, rel=1e-3)  # event files hold single precision
    run = next(run for run in dataset.curves if (run.variant, run.seed) == ("norm", "2"))
    assert run.curves["step"].tolist() == list(STEPS)
    assert run.curves["val/loss"] == pytest.approx([loss("norm", 2, step) for step in STEPS], rel=1e-6)


@needs_writer
def test_both_kinds_of_scalar_are_read_and_texts_are_not(tmp_path):
    event_files(tmp_path)
    file = next((tmp_path / "none-s1").iterdir())
    found = list(scalars(file))
    assert {tag for tag, _, _ in found} == {"val/loss", "lr"}
    assert [value for tag, _, value in found if tag == "lr"] == pytest.approx([0.1] * 3)


@needs_writer
def test_an_event_file_that_is_being_written_gives_what_is_whole(tmp_path):
    event_files(tmp_path)
    file = next((tmp_path / "none-s1").iterdir())
    whole = list(scalars(file))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert 0 < len(list(scalars(file))) < len(whole)


@needs_writer
def test_our_own_event_files_come_back(tmp_path):
    from ablationlab.report.tensorboard import Mirror
    from analysis.builder import build

    build(tmp_path / "r")
    mirror = Mirror(tmp_path / "r", tmp_path / "events")
    mirror.update()
    mirror.close()
    comparison, _ = primary(
        tmp_path / "events", metrics=("result/validation_loss:lower",), run_names="default-{variant}-s{seed}*"
    )
    assert comparison.n == 5


@needs_writer
def test_names_that_say_nothing_are_asked_for(tmp_path):
    event_files(tmp_path, lambda arch, seed: f"{arch}{chr(96 + seed)}")
    said = problems(tmp_path)
    assert "run 'nonea': its name does not read as '{variant}-s{seed}'; say how names read with --run-names" in said


# --- MLflow -----------------------------------------------------------------------------------------------


def mlruns(folder, status=3):
    (folder / "7").mkdir(parents=True)
    (folder / "7/meta.yaml").write_text("experiment_id: '7'\nlifecycle_stage: active\nname: norms\n")
    for number, (arch, seed) in enumerate(CELLS):
        run = folder / "7" / f"{number:032x}"
        for part in ("params", "tags", "metrics/val"):
            (run / part).mkdir(parents=True)
        state = status if (arch, seed) == ("norm", 4) else 3
        (run / "meta.yaml").write_text(f"lifecycle_stage: active\nrun_name: {arch}-{seed}\nstatus: {state}\n")
        (run / "params/arch").write_text(arch)
        (run / "params/seed").write_text(str(seed))
        (run / "tags/mlflow.runName").write_text(f"{arch}-{seed}")
        lines = [f"{1000 + step} {loss(arch, seed, step)!r} {step}\n" for step in STEPS]
        (run / "metrics/val/loss").write_text("".join(lines))
    return folder


def test_a_folder_of_mlflow_is_read_with_its_curves(tmp_path):
    comparison, dataset = primary(mlruns(tmp_path / "mlruns"), variant="params.arch", seed="params.seed")
    assert (comparison.metric, comparison.n) == ("val/loss", 4)
    assert comparison.p == pytest.approx(EXPECTED, rel=1e-9)
    assert len(dataset.curves) == 8


def test_a_run_that_is_not_finished_has_no_value_and_is_named(tmp_path):
    comparison, dataset = primary(mlruns(tmp_path / "mlruns", status=4), variant="arch", seed="seed")
    assert comparison.n == 3
    assert comparison.missing[0].reason == "not-finished"
    assert [d.details for d in dataset.deviations if d.code == "unfinished-runs"] == [{"runs": ["norm seed 4"]}]


def test_a_database_of_mlflow_is_read_and_deleted_runs_are_not(tmp_path):
    path = tmp_path / "mlflow.db"
    with sqlite3.connect(path) as store:
        store.executescript(
            "create table experiments (experiment_id integer, name text);"
            "create table runs (run_uuid text, name text, status text, lifecycle_stage text, experiment_id integer, "
            "start_time integer);"
            "create table params (run_uuid text, key text, value text);"
            "create table tags (run_uuid text, key text, value text);"
            "create table metrics (run_uuid text, key text, value real, timestamp integer, step integer, is_nan integer);"
            "insert into experiments values (1, 'norms');"
            "insert into runs values ('gone', 'old', 'FINISHED', 'deleted', 1, 0);"
        )
        for number, (arch, seed) in enumerate(CELLS):
            run = f"r{number}"
            store.execute("insert into runs values (?, ?, 'FINISHED', 'active', 1, ?)", (run, run, number))
            store.executemany("insert into params values (?, ?, ?)", [(run, "arch", arch), (run, "seed", str(seed))])
            store.executemany(
                "insert into metrics values (?, 'val_loss', ?, ?, ?, 0)",
                [(run, loss(arch, seed, step), step, step) for step in STEPS],
            )
    comparison, _ = primary(path, variant="params.arch", seed="params.seed")
    assert comparison.p == pytest.approx(EXPECTED, rel=1e-9)


# --- wandb ------------------------------------------------------------------------------------------------


def message(*fields):
    """Protocol buffers by hand: (number, whole number or bytes)."""
    made = b""
    for number, value in fields:
        if isinstance(value, int):
            made += varint(number << 3) + varint(value)
        else:
            made += varint(number << 3 | 2) + varint(len(value)) + value
    return made


def varint(value):
    made = b""
    while value > 0x7F:
        made += bytes([value & 0x7F | 0x80])
        value >>= 7
    return made + bytes([value])


def items(**values):
    return [(1, message((1, key.encode()), (16, json.dumps(value).encode()))) for key, value in values.items()]


def wandb_log(records):
    """LevelDB's log: pieces that never cross a block of 32 KiB."""
    data = b":W&B" + struct.pack("<HB", 0xBEE1, 0)
    for record in records:
        first = True
        while True:
            left = 32768 - len(data) % 32768
            if left < 7:
                data += b"\0" * left
                continue
            piece, record = record[: left - 7], record[left - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[first, not record]
            data += struct.pack("<IHB", 0, len(piece), kind) + piece
            first = False
            if not record:
                break
    return data


def wandb_folder(folder, exits=0):
    for arch, seed in CELLS:
        run = folder / f"offline-run-20260101_000000-{arch}{seed}"
        run.mkdir(parents=True)
        records = [
            message(
                (17, message((1, b"id"), (8, f"{arch}-{seed}".encode()), (4, message(*items(arch=arch, seed=seed)))))
            ),
            message((13, b"x" * 40_000)),  # console output, longer than a block
            *(message((2, message(*items(**{"val/loss": loss(arch, seed, s), "_step": s})))) for s in STEPS),
            message((18, message((1, exits if (arch, seed) == ("norm", 1) else 0)))),
        ]
        (run / f"run-{arch}{seed}.wandb").write_bytes(wandb_log(records))
    return folder


def test_a_folder_of_wandb_is_read_with_its_curves(tmp_path):
    runs = read_tracker(wandb_folder(tmp_path / "wandb"))
    assert len(runs) == 8
    assert (runs[0].name, runs[0].state) == ("none-1", "finished")
    comparison, dataset = primary(tmp_path / "wandb", variant="config.arch", seed="config.seed")
    assert comparison.p == pytest.approx(EXPECTED, rel=1e-9)
    assert dataset.curves[0].steps == 20


def test_a_crashed_run_of_wandb_is_not_compared(tmp_path):
    comparison, _ = primary(wandb_folder(tmp_path / "wandb", exits=1), variant="config.arch", seed="config.seed")
    assert [missing.seed for missing in comparison.missing] == [1]


def test_the_runs_table_that_wandb_downloads(tmp_path):
    head = '"Name","State","Notes","Created","Runtime","Sweep","arch","seed","lr","val/loss"\n'
    rows = [
        f'"r{n}","finished","-","2026","10","","{a}","{s}","0.1","{loss(a, s, 20)}"\n' for n, (a, s) in enumerate(CELLS)
    ]
    (tmp_path / "runs.csv").write_text(head + "".join(rows))
    comparison, _ = primary(
        tmp_path / "runs.csv", variant="config.arch", seed="config.seed", metrics=("val/loss:lower",)
    )
    assert comparison.p == pytest.approx(EXPECTED, rel=1e-9)


def test_the_table_that_the_api_example_of_wandb_writes(tmp_path):
    frame = pd.DataFrame(
        {
            "summary": [{"val/loss": loss(a, s, 20), "_runtime": 3} for a, s in CELLS],
            "config": [{"arch": a, "seed": s, "opt": {"lr": 0.1}} for a, s in CELLS],
            "name": [f"{a}-{s}" for a, s in CELLS],
        }
    )
    frame.to_csv(tmp_path / "project.csv")
    comparison, _ = primary(
        tmp_path / "project.csv", variant="config.arch", seed="config.seed", where=("config.opt.lr=0.1",)
    )
    assert comparison.p == pytest.approx(EXPECTED, rel=1e-9)


def test_a_chart_that_wandb_downloads(tmp_path):
    heads = ["Step"]
    for arch, seed in CELLS:
        heads += [f"{arch}-{seed} - val/loss{end}" for end in ("", "__MIN", "__MAX")]
    rows = [[step, *(loss(a, s, step) for a, s in CELLS for _ in range(3))] for step in STEPS]
    pd.DataFrame(rows, columns=heads).to_csv(tmp_path / "chart.csv", index=False)
    comparison, dataset = primary(tmp_path / "chart.csv")
    assert comparison.p == pytest.approx(EXPECTED, rel=1e-9)
    assert len(dataset.curves) == 8


def chart_of(path: Path, rows: list[list[float]], runs: Sequence[str]) -> Path:
    ends = ("", "__MIN", "__MAX")
    heads = ["Step", *(f"{run} - val/loss{end}" for run in runs for end in ends)]
    wide = [[row[0], *(value for value in row[1:] for _ in ends)] for row in rows]
    path.write_text("\n".join(",".join(map(str, row)) for row in [heads, *wide]) + "\n")
    return path


def test_a_chart_with_two_values_of_a_run_at_one_step_is_refused(tmp_path):
    runs = ["none-1", "none-2", "ln-1", "ln-2"]
    same_step = [[0, 4, 4, 3, 3], [10, 2.5, 2, 1, 1.5], [10, 2.25, 2, 1, 1.5]]
    with pytest.raises(
        TableError, match=r"none-1: .*2\.25 at step 10 in line 4, column 2, and 2\.5 in line 3, column 2"
    ):
        primary(chart_of(tmp_path / "step.csv", same_step, runs))
    same_name = [[0, 4, 4, 3, 3, 4], [10, 2.5, 2, 1, 1.5, 2.25]]
    with pytest.raises(TableError, match=r"none-1: .*two runs\? Give each run a name of its own"):
        primary(chart_of(tmp_path / "name.csv", same_name, [*runs, "none-1"]))
    repeated = [[0, 4, 4, 3, 3], [10, 2.5, 2, 1, 1.5], [10, 2.5, 2, 1, 1.5]]
    assert primary(chart_of(tmp_path / "again.csv", repeated, runs))[0].n == 2


def test_a_folder_of_histories(tmp_path):
    for arch, seed in CELLS:
        rows = [{"_step": s, "_runtime": 1, "val/loss": loss(arch, seed, s), "train/loss": None} for s in STEPS]
        pd.DataFrame(rows).to_csv(tmp_path / f"{arch}-s{seed}.csv", index=False)
    assert primary(tmp_path)[0].p == pytest.approx(EXPECTED, rel=1e-9)


# --- tables -----------------------------------------------------------------------------------------------


def wide():
    return pd.DataFrame([{"config.arch": a, "config.seed": s, "val/loss": loss(a, s, 20), "lr": 0.1} for a, s in CELLS])


def history():
    return pd.DataFrame(
        [{"arch": a, "seed": s, "step": t, "val_loss": loss(a, s, t), "acc": t / 20} for a, s in CELLS for t in STEPS]
    )


@pytest.mark.parametrize("form", ["frame", "csv", "tsv", "parquet"])
def test_a_wide_table_in_every_form(tmp_path, form):
    frame = wide()
    source = tmp_path / f"runs.{form}"
    if form == "frame":
        source = frame
    elif form == "parquet":
        frame.to_parquet(source)
    else:
        frame.to_csv(source, sep="\t" if form == "tsv" else ",", index=False)
    comparison, _ = primary(source, variant="config.arch", seed="config.seed")
    assert (comparison.metric, comparison.direction) == ("val/loss", "lower")
    assert comparison.p == pytest.approx(EXPECTED, rel=1e-9)


@pytest.mark.parametrize("long", [False, True])
def test_a_table_with_steps_gives_curves(long):
    frame = history()
    if long:
        frame = frame.melt(
            id_vars=["arch", "seed", "step"], value_vars=["val_loss"], var_name="metric", value_name="value"
        )
    comparison, dataset = primary(frame, variant="arch", metrics=("val_loss",))
    assert comparison.p == pytest.approx(EXPECTED, rel=1e-9)
    assert [run.steps for run in dataset.curves] == [20] * 8
    early, _ = primary(frame, variant="arch", metrics=("val_loss",), at="step=10")
    assert early.reference_mean == pytest.approx(np.mean([loss("none", s, 10) for s in GAIN]))


def test_the_best_value_of_a_curve_is_said_to_flatter():
    frame = history()
    frame.loc[(frame.arch == "norm") & (frame.step == 10), "val_loss"] = 1.0
    comparison, dataset = primary(frame, variant="arch", metrics=("val_loss",), at="best")
    assert comparison.variant_mean == 1.0
    assert "best-of-curve" in {deviation.code for deviation in dataset.deviations}


def test_curves_of_unequal_length_are_refused_and_compared_at_one_step():
    frame = history()
    frame = frame[~((frame.arch == "norm") & (frame.seed == 1) & (frame.step == 20))]
    assert problems(frame, variant="arch", metrics=("val_loss",)) == (
        "norm and none trained for unequal steps, 10 against 20 (seed 1); say what is held equal instead, with --held-equal "
        "tokens, flops, time or target, or compare at one step, with --at step=10"
    )
    held, dataset = primary(frame, variant="arch", metrics=("val_loss",), held_equal="time")
    assert held.n == 4
    assert {"held-equal", "unequal-steps"} <= {known.code for known in dataset.deviations}
    early, dataset = primary(frame, variant="arch", metrics=("val_loss",), at="step=10")
    assert (early.n, dataset.budget_unknown) == (4, ())
    late, _ = primary(frame, variant="arch", metrics=("val_loss",), at="step=20")
    assert absence(late.missing[0]) == "has no val_loss at step 20"


def test_a_curve_that_ends_without_a_number_diverged(tmp_path):
    frame = history().astype({"val_loss": object})
    frame.loc[(frame.arch == "norm") & (frame.seed == 1) & (frame.step == 20), "val_loss"] = "NaN"
    frame.to_csv(tmp_path / "h.csv", index=False)
    comparison, dataset = primary(tmp_path / "h.csv", variant="arch", metrics=("val_loss",))
    assert comparison.missing[0].reason == "diverged"
    assert sum(run.state == "diverged" for run in dataset.runs) == 1


def test_where_chooses_runs_and_double_runs_are_named():
    twice = pd.concat([wide(), wide().assign(lr=0.2)])
    said = problems(twice, variant="config.arch", seed="config.seed")
    assert "row 9: none, 1, val/loss, default is given already in row 1" in said
    comparison, _ = primary(twice, variant="config.arch", seed="config.seed", where=("lr=0.2",))
    assert comparison.n == 4


def melted(frame, *more):
    ids = ["arch", "seed", "step", *more]
    return frame.melt(id_vars=ids, value_vars=["val_loss"], var_name="metric", value_name="value")


@pytest.mark.parametrize("long", [False, True])
def test_two_values_at_one_step_are_two_runs_and_refused(long):
    frame = pd.concat([history().assign(lr=0.1), history().assign(lr=0.2, val_loss=9.0)])
    frame = melted(frame, "lr") if long else frame
    said = problems(frame, variant="arch", metrics=("val_loss",))
    assert "9 at step 0 in row 25, and 3.01 in row 1: are these two runs? Choose one with --where" in said
    comparison, _ = primary(frame, variant="arch", metrics=("val_loss",), where=("lr=0.1",))
    assert comparison.p == pytest.approx(EXPECTED, rel=1e-9)


def test_two_values_at_one_step_of_a_history_file_are_refused(tmp_path):
    for (arch, seed), rows in history().groupby(["arch", "seed"]):
        again = rows.assign(val_loss=9.0) if (arch, seed) == ("norm", 1) else rows
        pd.concat([rows, again]).to_csv(tmp_path / f"{arch}-s{seed}.csv", columns=["step", "val_loss"], index=False)
    said = problems(tmp_path, metrics=("val_loss",))
    assert said.startswith("norm-s1.csv: val_loss: 9 at step 0 in line 5, and 2.96 in line 2")
    assert "s2" not in said


def test_rows_of_one_step_that_fill_each_others_columns_are_one_curve():
    train, validation = history().assign(val_loss=None, time=1.0), history().assign(acc=None, time=2.0)
    comparison, _ = primary(pd.concat([train, validation]), variant="arch", metrics=("val_loss",))
    assert comparison.p == pytest.approx(EXPECTED, rel=1e-9)


@pytest.mark.parametrize("long", [False, True])
def test_a_crashed_run_beside_a_finished_one_of_its_seed_is_refused(long):
    frame = history().assign(state="finished")
    crashed = frame[(frame.arch == "norm") & (frame.seed == 1)].assign(state="crashed", val_loss=9.0)
    frame = pd.concat([frame, crashed.assign(step=crashed.step + 100)])
    frame = melted(frame, "state") if long else frame
    assert "choose runs with --where" in problems(frame, variant="arch", metrics=("val_loss",))
    comparison, _ = primary(frame, variant="arch", metrics=("val_loss",), where=("state=finished",))
    assert comparison.p == pytest.approx(EXPECTED, rel=1e-9)


@pytest.mark.parametrize("long", [False, True])
def test_a_run_with_steps_that_crashed_has_no_value(long):
    frame = history().assign(state="finished")
    frame.loc[(frame.arch == "norm") & (frame.seed == 1), "state"] = "crashed"
    frame = melted(frame, "state") if long else frame
    comparison, _ = primary(frame, variant="arch", metrics=("val_loss",))
    assert comparison.n == 3
    assert comparison.missing[0].reason == "not-finished"


def test_every_problem_of_the_options_is_said_at_once():
    said = problems(wide(), variant="config.arhc", metrics=("val/los",), where=("optimzer=adam",))
    assert "--variant 'config.arhc' is no column; it holds: config.arch" in said
    assert "did you mean 'config.arch'?" in said
    assert "--metric 'val/los' is not in the table; it holds: val/loss, lr; did you mean 'val/loss'?" in said
    assert "--where 'optimzer' is no column" in said


def test_an_unknown_direction_is_asked_for_by_name():
    frame = wide().rename(columns={"val/loss": "goodness"})
    said = problems(frame, variant="config.arch", seed="config.seed")
    assert (
        "no metric with a known direction; name yours as --metric NAME:lower or NAME:higher, from: goodness, lr" in said
    )
    said = problems(frame, variant="config.arch", seed="config.seed", metrics=("goodness",))
    assert "which way is 'goodness' better? Say --lower goodness or --higher goodness" in said


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("val_loss", "lower"),
        ("eval/loss", "lower"),
        ("ppl", "lower"),
        ("test.perplexity", "lower"),
        ("brier_score", "lower"),
        ("accuracy", "higher"),
        ("val/acc", "higher"),
        ("f1_macro", "higher"),
        ("score", None),
        ("loss_scale", None),
        ("step", None),
    ],
)
def test_common_names_have_a_direction(name, direction):
    assert direction_of(name) == direction


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"at": "end"}, "--at end: must be last, best, step=N or target=X"),
        ({"where": ("lr",)}, "--where 'lr': expected column=value"),
        ({"run_names": "run-{seed}"}, "--run-names 'run-{seed}': must hold {variant}"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, says):
    with pytest.raises(StatisticsError, match=says.replace("{", r"\{").replace("(", r"\(")):
        TableOptions.checked(baseline="none", **options)


# --- unpaired ---------------------------------------------------------------------------------------------


def independent():
    frame = wide().rename(columns={"config.arch": "variant", "config.seed": "seed"})
    frame.loc[frame.variant == "norm", "seed"] += 10
    return frame


def test_arms_without_a_shared_seed_are_compared_by_welch_and_labelled_everywhere():
    frame = independent()
    comparison, dataset = primary(frame, smallest_effect=0.01)
    arms = [frame[frame.variant == arm]["val/loss"] for arm in ("norm", "none")]
    wanted = scipy_stats.ttest_ind(*arms, equal_var=False)
    bounds = wanted.confidence_interval(0.95)
    assert (comparison.design, comparison.test, comparison.interval) == ("unpaired", "welch", "welch")
    assert comparison.p == pytest.approx(wanted.pvalue, rel=1e-9)
    assert (comparison.main_interval.low, comparison.main_interval.high) == pytest.approx((bounds.low, bounds.high))
    assert comparison.sample == "4 and 4 runs, unpaired"
    assert comparison.caveats[0].code == "unpaired"
    assert comparison.pairs == ()
    assert decide(analyze(dataset)).verdicts[0].comparison == comparison.id


def test_equal_seeds_that_mean_nothing_may_be_declared_so():
    comparison, _ = primary(wide(), variant="config.arch", seed="config.seed", unpaired=True)
    assert comparison.design == "unpaired"
    without, _ = primary(wide().drop(columns="config.seed"), variant="config.arch", unpaired=True)
    assert without.p == pytest.approx(comparison.p)


def test_a_missing_seed_column_is_asked_for():
    said = problems(wide().drop(columns="config.seed"), variant="config.arch")
    assert "which column holds the seed? Say --seed COLUMN, or --unpaired where runs have none" in said


def test_unpaired_runs_that_diverged_count_against_the_variant():
    frame = independent()
    frame["val/loss"] -= np.where(frame.variant == "norm", 1.0, 0.0)
    frame.loc[frame.index[-1], "val/loss"] = math.inf
    _, dataset = primary(frame)
    assert decide(analyze(dataset)).verdicts[0].answer not in ("better", "more stable")


def test_stability_of_independent_arms_is_compared_by_fisher_and_newcombe():
    # Two baselines of ten diverge, and eight of the variant's twelve. By accident the seeds have the same names.
    rows = [{"variant": "none", "seed": seed, "loss": 2.0 + seed / 100} for seed in range(10)]
    rows += [{"variant": "norm", "seed": seed, "loss": 2.0 + seed / 90} for seed in range(12)]
    for place in (0, 1, *range(10, 18)):
        rows[place]["loss"] = math.inf
    analysis = analyze(read_table(pd.DataFrame(rows), TableOptions(baseline="none", unpaired=True)))
    (gain,) = analysis.stability.gains
    assert (gain.test, gain.reference_runs, gain.variant_runs) == ("fisher", 10, 12)
    assert (gain.reference_unstable, gain.variant_unstable, gain.rescued, gain.broken) == (2, 8, None, None)
    assert gain.p == pytest.approx(scipy_stats.fisher_exact([[8, 4], [2, 8]]).pvalue)
    bounds = confint_proportions_2indep(2, 10, 8, 12, method="newcomb", compare="diff")
    assert (gain.low, gain.high) == pytest.approx(bounds)
    assert decide(analysis).verdicts[0].answer == "unstable"


# --- the page ---------------------------------------------------------------------------------------------


def test_curves_are_kept_beside_the_analysis_and_drawn(tmp_path):
    from ablationlab.report.charts.curves import curves

    dataset = read_table(history(), TableOptions.checked(baseline="none", variant="arch", metrics=("val_loss:lower",)))
    analysis = analyze(dataset)
    analysis.replace(tmp_path / "analysis.json")
    decide(analysis).replace(tmp_path / "verdict.json")
    write_table_curves(dataset.curves, tmp_path)
    runs = read_table_curves(tmp_path / "curves.parquet")
    assert [run.id for run in runs] == [run.id for run in dataset.curves]
    assert runs[0].curves["val_loss"].tolist() == dataset.curves[0].curves["val_loss"].tolist()
    figures = curves(Results.open(tmp_path))
    assert [figure.key for figure in figures] == ["curve-val-loss"]
    write_table_curves((), tmp_path)
    assert not (tmp_path / "curves.parquet").exists()


def lone(variant, baseline, **options):
    """The verdict and the comparison of arms that share no seed."""
    rows = [
        {"variant": arm, "seed": f"{arm}{n}", "loss": v}
        for arm, vs in (("norm", variant), ("none", baseline))
        for n, v in enumerate(vs)
    ]
    analysis = analyze(read_table(pd.DataFrame(rows), TableOptions(baseline="none", **options)))
    return decide(analysis).verdicts[0], analysis.comparisons[0]


def test_of_independent_arms_a_lost_run_opens_the_interval_on_its_side():
    verdict, comparison = lone([1.0, 1.01, 0.99, "nan"], [2.0, 2.01, 1.99, 2.02], smallest_effect=0.01)
    assert verdict.answer == "undecided"
    assert comparison.p_adjusted == 1.0
    assert comparison.deciding.high is None
    assert comparison.deciding.low < 0


def test_constant_independent_arms_are_judged_exactly():
    assert lone([1.9] * 8, [2.0] * 8)[0].answer == "better"
    assert lone([1.9] * 3, [2.0] * 3)[0].answer == "undecided"
    assert lone([2.0 + 1e-12, 2.0, 2.0], [2.0 - 1e-11, 2.0, 2.0])[0].answer == "same"


def test_runs_that_independent_arms_lack_help_neither():
    steady = [1.0, 1.01, 0.99, 1.02, 1.0]
    few, none = ["diverged", "diverged", "diverged", 1.0, 1.0], [2.0, 2.01, 1.99, 2.02, 2.0]
    assert lone(few, none)[0].answer == "unstable"
    assert lone(few, [2.0, 2.01, 1.99, None, None])[0].answer != "unstable"
    assert lone(steady, none)[0].answer == "better"


def test_a_column_of_states_may_say_that_a_run_diverged():
    rows = [
        {"variant": arm, "seed": n, "loss": 1.0 + (arm == "none") + 0.01 * n, "status": "ok"}
        for arm in ("none", "norm")
        for n in range(8)
    ]
    rows[-1]["status"] = "diverged"
    comparison = analyze(
        read_table(pd.DataFrame(rows), TableOptions(baseline="none", metrics=("loss:lower",)))
    ).comparisons[0]
    assert comparison.cost.lost == (7,)
