"""Runs that a user brings in a table."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from scipy import stats as scipy_stats

from ablationlab.analysis import TableOptions, analyze, read_table, wording
from ablationlab.analysis.verdict import decide
from ablationlab.core.errors import StatisticsError, TableError
from ablationlab.records.analysis import MACRO, ComparedTask

HEAD = "variant,seed,metric,value\n"
NONE = [2.10, 2.15, 2.08, 2.12, 2.11]
NORM = [2.05, 2.09, 2.04, 2.06, 2.065]


def rows(values, variant, metric="loss", extra=""):
    return "".join(f"{variant},{seed},{metric},{value}{extra}\n" for seed, value in enumerate(values, start=1))


def table(tmp_path, text=None, name="runs.csv"):
    path = tmp_path / name
    path.write_text(HEAD + rows(NONE, "none") + rows(NORM, "norm") if text is None else text)
    return path


OPTIONS = TableOptions("none", lower=("loss",), smallest_effect=0.01)


def problems(path, options=OPTIONS):
    with pytest.raises(TableError) as caught:
        read_table(path, options)
    assert str(path) in str(caught.value)
    return "\n".join(caught.value.problems)


def test_a_table_gives_the_same_statistics_and_a_verdict(tmp_path):
    found = analyze(read_table(table(tmp_path), OPTIONS))
    one = found.comparisons[0]
    assert one.id == "loss/default/norm:none"
    assert one.p == pytest.approx(scipy_stats.ttest_rel(NORM, NONE).pvalue, rel=1e-9)
    assert (one.label, one.role, one.outcome) == ("exploratory", "primary", "better")
    verdict = decide(found).verdicts[0]
    assert (verdict.answer, verdict.budget_unknown, verdict.confirmed) == ("better", True, False)
    assert [d.code for d in found.deviations] == ["not-registered", "ledger-unknown"]
    assert found.stability is None


def test_the_order_of_rows_and_columns_changes_nothing(tmp_path):
    lines = (rows(NONE, "none") + rows(NORM, "norm")).splitlines()
    first = analyze(read_table(table(tmp_path), OPTIONS)).comparisons[0]
    shuffled = HEAD + "\n".join(reversed(lines)) + "\n"
    swapped = "Value, metric ,seed,variant,note\n" + "\n".join(
        f"{v},{m},{s},{a},x" for a, s, m, v in (line.split(",") for line in lines)
    )
    for name, text in (("a.csv", shuffled), ("b.csv", swapped)):
        other = analyze(read_table(table(tmp_path, text, name), OPTIONS)).comparisons[0]
        assert other.p == first.p
        assert other.pairs == first.pairs


def test_known_metrics_bring_their_direction_and_transform(tmp_path):
    text = HEAD + rows([8, 9, 10.5], "none", "perplexity") + rows([7, 8, 9.1], "norm", "perplexity")
    one = analyze(read_table(table(tmp_path, text), TableOptions("none"))).comparisons[0]
    assert (one.direction, one.transform) == ("lower", "log")
    assert one.ratio.ratio < 1


def test_tasks_get_a_macro_average_with_a_family_of_its_own(tmp_path):
    text = HEAD.replace("\n", ",task\n")
    for task, shift in (("a", 0.0), ("b", 0.1)):
        text += rows(NONE, "none", "acc", f",{task}") + rows([v + shift for v in NORM], "norm", "acc", f",{task}")
    found = analyze(read_table(table(tmp_path, text), TableOptions("none", higher=("acc",))))
    assert [one.task for one in found.comparisons] == [ComparedTask("a"), ComparedTask("b"), MACRO]
    a, b, macro = found.comparisons
    assert macro.delta == pytest.approx((a.delta + b.delta) / 2)
    assert a.family == b.family != macro.family
    assert (a.family, macro.family) == ("exploratory", "primary/holm")
    assert (a.family_size, macro.family_size) == (2, 1)
    assert decide(found).verdicts[0].evidence[0] == macro.id


def test_a_seed_that_lacks_a_task_has_no_macro_average(tmp_path):
    text = HEAD.replace("\n", ",task\n") + rows(NONE, "none", "acc", ",a") + rows(NORM, "norm", "acc", ",a")
    text += rows(NONE, "none", "acc", ",b") + rows(NORM[:4], "norm", "acc", ",b")
    found = analyze(read_table(table(tmp_path, text), TableOptions("none", higher=("acc",))))
    macro = found.comparisons[-1]
    assert macro.n == 4
    assert macro.missing[0].details == {"scored": 1, "tasks": 2}


def test_regimes_are_kept_apart(tmp_path):
    text = HEAD.replace("\n", ",regime\n")
    for regime, shift in (("cold", 0.0), ("hot", 1.0)):
        text += rows(NONE, "none", extra=f",{regime}") + rows([v + shift for v in NORM], "norm", extra=f",{regime}")
    verdict = decide(analyze(read_table(table(tmp_path, text), OPTIONS)))
    assert [(v.regime, v.answer) for v in verdict.verdicts] == [("cold", "better"), ("hot", "worse")]


@pytest.mark.parametrize("word", ["nan", "inf", "diverged", "NaN"])
def test_a_run_that_diverged_counts_as_unstable(tmp_path, word):
    text = HEAD + rows(NONE, "none") + rows([*NORM[:4], word], "norm")
    found = analyze(read_table(table(tmp_path, text), OPTIONS))
    one = found.comparisons[0]
    assert (one.n, one.planned_pairs) == (4, 5)
    assert "survivors-only" in {caveat.code for caveat in one.caveats}
    assert found.stability.arm("norm", "default").diverged == 1
    assert decide(found).verdicts[0].answer == "undecided"  # better on the survivors alone


def test_a_finite_value_is_no_divergence_however_large(tmp_path):
    found = analyze(read_table(table(tmp_path, HEAD + rows(NONE, "none") + rows([*NORM[:4], 1e300], "norm")), OPTIONS))
    (missing,) = found.comparisons[0].missing
    assert (missing.arm, missing.seed, missing.reason) == ("norm", 5, "beyond-range")
    assert wording.absence(missing) == "1.00×10³⁰⁰ is too large to compare"
    assert found.stability is None


def test_a_run_whose_deciding_metric_is_a_number_did_not_diverge(tmp_path):
    text = (
        HEAD
        + rows(NONE, "none")
        + rows(NORM, "norm")
        + rows(NONE, "none", "acc")
        + rows([*NORM[:4], "nan"], "norm", "acc")
    )
    found = analyze(read_table(table(tmp_path, text), TableOptions("none", primary="loss", lower=("loss",))))
    (missing,) = next(one for one in found.comparisons if one.metric == "acc").missing
    assert wording.absence(missing) == "the value is nan"
    assert found.stability is None


def test_an_empty_cell_of_a_curve_is_no_value_and_no_divergence(tmp_path):
    text = "variant,seed,metric,value,step\n"
    text += "".join(
        f"{v},{s},loss,{value},{step}\n"
        for v in ("none", "norm")
        for s in (1, 2, 3)
        for step, value in ((1, 3), (2, 2))
    )
    found = analyze(read_table(table(tmp_path, text + "norm,3,loss,,3\n"), OPTIONS))
    assert (found.comparisons[0].n, found.comparisons[0].missing, found.stability) == (3, (), None)


# --- seeds that one arm lacks ---------------------------------------------------------------------------------


def test_unequal_seed_sets_are_compared_on_the_seeds_that_both_have(tmp_path):
    text = HEAD + rows([*NONE, 2.3, 2.2], "none") + rows(NORM, "norm") + rows(NONE[:4], "small") + "small,9,loss,2.0\n"
    found = analyze(read_table(table(tmp_path, text), OPTIONS))
    norm, small = found.comparisons
    assert (norm.n, norm.planned_pairs, norm.missing) == (5, 5, ())
    assert (small.n, small.planned_pairs, small.missing) == (4, 4, ())
    assert norm.p == pytest.approx(scipy_stats.ttest_rel(NORM, NONE).pvalue, rel=1e-9)
    assert decide(found).verdicts[0].answer == "better"
    told = [wording.deviation(known) for known in found.deviations if known.code == "unequal-seeds"]
    assert told == [
        "Seeds of norm: 5 compared, of its 5 and none's 7.",
        "Seeds of small: 4 compared, of its 5 and none's 7.",
    ]


def test_a_run_that_is_there_without_its_deciding_metric_is_lost(tmp_path):
    text = HEAD + rows(NONE, "none") + rows(NORM[:4], "norm") + rows(NONE, "none", "acc") + rows(NORM, "norm", "acc")
    found = analyze(read_table(table(tmp_path, text), TableOptions("none", primary="loss", lower=("loss",))))
    one = next(one for one in found.comparisons if one.metric == "loss")
    assert [(lost.arm, lost.seed, lost.reason) for lost in one.missing] == [("norm", 5, "not-recorded")]
    assert not [known for known in found.deviations if known.code == "unequal-seeds" and known.about == "none"]


# --- budgets --------------------------------------------------------------------------------------------------


def spent(tmp_path, budgets, column="tokens"):
    lines = [
        f"{variant},{seed},{value},{budgets[variant]}\n"
        for variant, values in (("none", NONE), ("norm", NORM))
        for seed, value in enumerate(values, start=1)
    ]
    return table(tmp_path, f"variant,seed,loss,{column}\n" + "".join(lines))


@pytest.mark.parametrize("column", ["tokens", "train/tokens", "steps", "global_step"])
def test_a_column_of_tokens_or_steps_makes_the_budget_known(tmp_path, column):
    found = analyze(read_table(spent(tmp_path, {"none": 1000, "norm": 1000}, column), OPTIONS))
    assert found.budget_unknown == ()
    assert not decide(found).verdicts[0].budget_unknown
    assert "unread-columns" not in {known.code for known in found.deviations}


def test_a_budget_that_one_run_does_not_tell_is_unknown(tmp_path):
    path = spent(tmp_path, {"none": 1000, "norm": 1000})
    path.write_text(path.read_text().replace("norm,5,2.065,1000", "norm,5,2.065,"))
    assert analyze(read_table(path, OPTIONS)).budget_unknown == ("norm",)


def test_unequal_budgets_are_refused_unless_something_else_is_held_equal(tmp_path):
    path = spent(tmp_path, {"none": 1000, "norm": 2000}, "steps")
    said = problems(path)
    assert said == (
        "norm and none trained for unequal steps, 2,000 against 1,000 (seed 1); "
        "say what is held equal instead, with --held-equal tokens, flops, time or target"
    )
    for held in ("tokens", "time"):
        found = analyze(read_table(path, TableOptions.checked(baseline="none", lower=("loss",), held_equal=held)))
        assert [known.about for known in found.deviations if known.code == "held-equal"] == [held]
        assert found.comparisons[0].n == 5
    tokens = spent(tmp_path, {"none": 1000, "norm": 2000})
    said = problems(tokens, TableOptions.checked(baseline="none", lower=("loss",), held_equal="tokens"))
    assert "unequal tokens, 2,000 against 1,000" in said
    with pytest.raises(StatisticsError, match="--held-equal seeds: must be tokens, flops, time, target"):
        TableOptions.checked(baseline="none", held_equal="seeds")


def test_a_run_that_diverged_early_makes_no_budget_unequal(tmp_path):
    path = spent(tmp_path, {"none": 1000, "norm": 1000}, "steps")
    path.write_text(path.read_text().replace("norm,5,2.065,1000", "norm,5,nan,40"))
    found = analyze(read_table(path, OPTIONS))
    assert (found.comparisons[0].n, found.budget_unknown) == (4, ())


def test_an_empty_value_is_missing_and_no_divergence(tmp_path):
    text = HEAD + rows(NONE, "none") + rows([*NORM[:4], ""], "norm")
    found = analyze(read_table(table(tmp_path, text), OPTIONS))
    assert found.comparisons[0].missing[0].reason == "not-in-table"
    assert found.stability is None


def test_a_frame_and_the_csv_file_made_of_it_say_the_same_of_nan_and_infinity(tmp_path):
    # pandas writes NaN as an empty cell and reads an empty cell as NaN, so it is missing in both; infinity diverged in both.
    made = [("none", seed, value) for seed, value in enumerate(NONE, start=1)]
    made += [("norm", seed, value) for seed, value in enumerate([math.nan, math.inf, *NORM[2:]], start=1)]
    frame = pd.DataFrame(made, columns=["variant", "seed", "loss"])
    frame.to_csv(tmp_path / "wide.csv", index=False)
    frame.to_parquet(tmp_path / "wide.parquet")
    for source in (frame, tmp_path / "wide.csv", tmp_path / "wide.parquet"):
        found = analyze(read_table(source, OPTIONS))
        missing = {lost.seed: lost.reason for lost in found.comparisons[0].missing}
        assert missing == {1: "not-in-table", 2: "diverged"}
        noted = next(deviation for deviation in found.deviations if deviation.code == "empty-values")
        assert noted.details == {"runs": ["norm seed 1"]}
        assert "If such a run diverged, write `diverged` or `inf`" in wording.deviation(noted)


def test_the_unit_of_a_loss_in_a_table_is_not_known(tmp_path):
    found = analyze(read_table(table(tmp_path), OPTIONS))
    assert (found.metrics["loss"].unit, found.comparisons[0].unit) == ("", "")


def test_seeds_written_as_floats_pair_with_whole_numbers(tmp_path):
    text = "variant,seed,metric,value\n"
    text += "".join(f"none,{seed},loss,{seed / 8}\nlayernorm,{seed}.0,loss,{seed / 4}\n" for seed in (1, 2, 3))
    dataset = read_table(table(tmp_path, text), OPTIONS)
    assert dataset.seeds == (1, 2, 3)
    (comparison,) = analyze(dataset).comparisons
    assert [(pair.seed, pair.delta) for pair in comparison.pairs] == [(1, 0.125), (2, 0.25), (3, 0.375)]
    twice = text + "none,1.0,loss,2\n"
    assert "given already" in problems(table(tmp_path, twice, "twice.csv"))


def test_seeds_may_be_names(tmp_path):
    text = HEAD + "".join(f"{v},run-{s},loss,{2 + s / 10 + len(v)}\n" for v in ("none", "ln") for s in (1, 2, 3))
    found = analyze(read_table(table(tmp_path, text), OPTIONS))
    assert found.seeds == ("run-1", "run-2", "run-3")


@pytest.mark.parametrize(
    "text", ["variant,seed,metric,value\nnone,1,loss,3\nnorm,{},loss,3\n", "variant,seed,loss\nnone,1,3\nnorm,{},3\n"]
)
def test_a_seed_too_long_for_a_number_is_named(tmp_path, text):
    said = problems(table(tmp_path, text.format("9" * 5000)))
    assert said == "line 3: seed has 5000 characters; at most 1000"


def test_a_missing_column_is_named_with_the_nearest(tmp_path):
    said = problems(table(tmp_path, "variant,seeds,metric,val\nnone,1,loss,3\n"))
    assert "column 'seed' is missing (found: variant, seeds, metric, val); is it 'seeds'?" in said
    assert "column 'value' is missing" in said


def test_every_bad_row_is_reported_at_once(tmp_path):
    said = problems(table(tmp_path, HEAD + "none,1,loss,3\nnone,1,loss,4\nln,1,loss,abc\nln,,loss,1\nln,2\n"))
    assert said.splitlines() == [
        "line 3: none, 1, loss, default is given already in line 2; choose runs with --where",
        "line 4: value 'abc' is not a number",
        "line 5: seed must not be empty",
        "line 6: 2 cells under 4 columns",
    ]


def test_many_bad_rows_are_counted(tmp_path):
    said = problems(table(tmp_path, HEAD + "".join(f"none,{i},loss,x{i}\n" for i in range(50))))
    assert said.splitlines()[-1] == "and 38 more"


def test_an_unknown_baseline_gets_a_suggestion(tmp_path):
    said = problems(table(tmp_path), TableOptions("nnoe", lower=("loss",)))
    assert "--baseline 'nnoe' is not in the table; it holds: none, norm; did you mean 'none'?" in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            TableOptions("none", primary="los"),
            "--primary 'los' is not in the table; it holds: loss; did you mean 'loss'?",
        ),
        (TableOptions("none", lower=("loss",), higher=("loss",)), "cannot be better both lower and higher"),
        (TableOptions("none", lower=("loss",), log=("x",)), "--log 'x' is not in the table"),
    ],
)
def test_options_that_do_not_fit_are_named(tmp_path, options, says):
    assert says in problems(table(tmp_path), options)


def test_a_metric_of_unknown_direction_is_asked_about(tmp_path):
    text = HEAD + rows(NONE, "none", "score") + rows(NORM, "norm", "score")
    said = problems(table(tmp_path, text), TableOptions("none"))
    assert said == "which way is 'score' better? Say --lower score or --higher score"


def test_several_metrics_need_a_primary_one(tmp_path):
    text = HEAD + rows(NONE, "none") + rows(NORM, "norm") + rows(NONE, "none", "acc") + rows(NORM, "norm", "acc")
    assert "name the one that decides with --primary: loss, acc" in problems(table(tmp_path, text))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "column 'variant' is missing (found: nothing)"),
        (HEAD.encode(), "holds no rows below its header"),
        (b"\xff\xfe\x00", "is not UTF-8 at byte 0"),
        (HEAD.encode() + b'none,1,loss,"3\n', "is not CSV"),
        (HEAD.encode() + b"none,1,loss,3\n", "holds one variant only, 'none'"),
        (b"variant,seed,seed,metric,value\n", "column 'seed' appears twice"),
    ],
)
def test_what_is_no_table_is_said(tmp_path, content, says):
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    assert says in problems(path)


def test_a_missing_file_is_said(tmp_path):
    assert problems(tmp_path / "no.csv") == "no such file"


@pytest.mark.parametrize("given", [{"alpha": 0.0}, {"alpha": 0.7}, {"smallest_effect": -1.0}, {"margin": 0.0}])
def test_numbers_that_make_no_sense_are_refused(given):
    with pytest.raises(StatisticsError, match="must"):
        TableOptions.checked(baseline="none", **given)


def test_a_table_with_semicolons_and_decimal_commas_is_read_as_one_with_commas(tmp_path):
    text = "variant;seed;val_loss\n" + "".join(
        f"{variant};{seed};{str(value).replace('.', ',')}\n"
        for variant, values in (("none", NONE), ("norm", NORM))
        for seed, value in enumerate(values, start=1)
    )
    (found,) = analyze(read_table(table(tmp_path, text), TableOptions("none"))).comparisons
    assert found.p == pytest.approx(scipy_stats.ttest_rel(NORM, NONE).pvalue, rel=1e-9)


def test_a_wrong_baseline_a_wrong_metric_and_a_wrong_direction_are_told_together(tmp_path):
    text = "variant,seed,val_loss\nnone,1,2.0\nnorm,1,1.9\n"
    options = TableOptions.checked(baseline="nnoe", metrics=("x:lowr",))
    assert problems(table(tmp_path, text), options).splitlines() == [
        "--metric 'x:lowr': 'lowr' is no direction; did you mean 'lower'? (allowed: lower, higher)",
        "--metric 'x' is not in the table; it holds: val_loss",
        "--baseline 'nnoe' is not in the table; it holds: none, norm; did you mean 'none'?",
    ]
    known = TableOptions.checked(baseline="none", metrics=("val_loss:hihger",))
    assert problems(table(tmp_path, text), known) == (
        "--metric 'val_loss:hihger': 'hihger' is no direction; did you mean 'higher'? (allowed: lower, higher)"
    )


WIDE = "variant,seed,val_loss,accuracy,bleu,hours,note\n" + "".join(
    f"{variant},{seed},{value},0.4{seed},{'95%' if seed == 1 else seed},1.{seed},x\n"
    for variant, values in (("none", NONE), ("norm", NORM))
    for seed, value in enumerate(values, start=1)
)


def test_no_column_of_a_wide_table_is_left_out_in_silence(tmp_path):
    """--primary says what decides, not what is read; what is not read is named, and only --metric restricts."""
    path = table(tmp_path, WIDE)
    dataset = read_table(path, TableOptions("none", primary="val_loss"))
    assert list(dataset.metrics) == ["val_loss", "accuracy"]
    assert {c.metric for c in dataset.criteria} == {"val_loss"}
    unread = dataset.deviations[-1]
    assert (unread.code, unread.details) == ("unread-columns", {"columns": ["bleu", "hours"]})
    assert "not read: bleu, hours." in wording.deviation(unread)
    assert "name the one that decides" in problems(path, TableOptions("none", lower=("val_loss",)))
    restricted = read_table(path, TableOptions("none", metrics=("val_loss",)))
    assert list(restricted.metrics) == ["val_loss"]
    assert "unread-columns" not in [d.code for d in restricted.deviations]
    assert "bleu '95%' is not a number" in problems(path, TableOptions("none", primary="val_loss", higher=("bleu",)))
