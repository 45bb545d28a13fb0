"""Real lm-eval 0.4.13 samples (two scripted models, three seeds, two tiny tasks), and what can be wrong with such folders."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar

from ablationlab.analysis.items import ItemScores, TaskScores, compare_items
from ablationlab.analysis.lm_eval import Sample, _paired, read_pair
from ablationlab.core.errors import RecordError, TableError
from ablationlab.stats import paired_t_test

FIXTURE = Path(__file__).parent / "fixtures" / "lm_eval"


@pytest.fixture
def arms(tmp_path):
    shutil.copytree(FIXTURE, tmp_path / "arms")
    return tmp_path / "arms" / "layernorm", tmp_path / "arms" / "none"


def sample_files(arm, task=""):
    return sorted(arm.rglob(f"samples_{task}*.jsonl"))


def edit(path, change):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))


def test_the_scores_are_those_in_the_files():
    scores = read_pair(FIXTURE / "layernorm", FIXTURE / "none")
    assert scores.seeds == ("seed-1", "seed-2", "seed-3")
    assert [task.task for task in scores.tasks] == ["tiny_colours", "tiny_speeds"]
    path = sample_files(FIXTURE / "none" / "seed-2", "tiny_colours")[0]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert scores.tasks[0].reference[1].tolist() == [line["acc"] for line in lines]
    assert scores.tasks[0].chance == 0.5
    assert {task.metric for task in scores.tasks} == {"acc"}


def test_three_seeds_give_every_statistic():
    scores = read_pair(FIXTURE / "layernorm", FIXTURE / "none")
    found = compare_items(scores, "layernorm", "none", smallest_effect=0.05)
    task = found.tasks[0]
    raw = scores.tasks[0]
    assert task.delta == pytest.approx((raw.variant - raw.reference).mean())
    assert task.p == pytest.approx(paired_t_test(raw.variant.mean(axis=1) - raw.reference.mean(axis=1)).p)
    for row, seed in enumerate(found.seeds):
        a, b = raw.variant[row], raw.reference[row]
        square = [[int(np.sum((a == i) & (b == j))) for j in (1, 0)] for i in (1, 0)]
        assert task.mcnemar[seed].p == pytest.approx(mcnemar(square, exact=True).pvalue)
    assert found.macro_delta == pytest.approx(np.mean([one.delta for one in found.tasks]))
    crossed = found.macro_crossed.interval
    assert crossed.low <= found.macro_delta <= crossed.high
    assert found.macro_crossed_check.low <= found.macro_delta <= found.macro_crossed_check.high
    assert found.macro_seed_p is not None
    assert "at-chance" in {caveat.code for caveat in task.caveats}  # seven items show nothing
    assert task.needs_items > 100


def test_the_same_samples_give_the_same_bytes():
    first, second = (
        compare_items(read_pair(FIXTURE / "layernorm", FIXTURE / "none"), "a", "b").to_bytes() for _ in range(2)
    )
    assert first == second


def test_one_pair_of_runs_uses_mcnemar_and_says_what_it_speaks_of():
    scores = read_pair(FIXTURE / "layernorm" / "seed-1", FIXTURE / "none" / "seed-1")
    found = compare_items(scores, "layernorm", "none")
    assert {task.p_test for task in found.tasks} == {"mcnemar"}
    assert found.macro_crossed is None
    assert found.macro_seed_p is None
    assert found.macro_p_test == "paired-t over items"
    assert (found.macro_p <= 0.05) == found.macro_item_intervals["the only run"].excludes(0.0)
    assert "too-few-seeds" in {caveat.code for caveat in found.caveats}


def test_another_metric_can_be_chosen_and_a_wrong_one_is_answered():
    assert read_pair(FIXTURE / "layernorm", FIXTURE / "none", metric="acc_norm").tasks[0].metric == "acc_norm"
    with pytest.raises(TableError, match="did you mean 'acc_norm'"):
        read_pair(FIXTURE / "layernorm", FIXTURE / "none", metric="acc_nrm")


def test_an_arm_against_itself_differs_in_nothing():
    found = compare_items(read_pair(FIXTURE / "none", FIXTURE / "none"), "a", "b")
    assert found.macro_delta == 0
    assert found.macro_crossed.interval.status == "degenerate"
    assert {test.p for task in found.tasks for test in task.mcnemar.values()} == {1.0}


@pytest.mark.parametrize("field", ["prompt_hash", "doc_hash", "target_hash"])
def test_items_with_another_prompt_are_refused_or_counted(arms, field):
    edit(sample_files(arms[0], "tiny_colours")[0], lambda lines: [lines[0] | {field: "x"}, *lines[1:]])
    with pytest.raises(TableError) as caught:
        read_pair(*arms)
    assert "1 of 7 items do not pair" in str(caught.value)
    assert "other document, prompt or target under the same doc_id: 0" in str(caught.value)
    scores = read_pair(*arms, allow_unpaired=True)
    assert scores.tasks[0].variant.shape == (3, 6)
    found = compare_items(scores, "a", "b")
    assert "unpaired-items" in {caveat.code for caveat in found.caveats}


def test_missing_items_and_tasks_are_refused_or_counted(arms):
    edit(sample_files(arms[1], "tiny_speeds")[0], lambda lines: lines[:-2])
    with pytest.raises(TableError, match="2 of 5 items do not pair"):
        read_pair(*arms)
    sample_files(arms[1], "tiny_speeds")[0].unlink()
    with pytest.raises(TableError, match="task tiny_speeds is not in every run"):
        read_pair(*arms)
    assert [task.task for task in read_pair(*arms, allow_unpaired=True).tasks] == ["tiny_colours"]


def test_seeds_pair_by_name(arms):
    (arms[0] / "seed-3").rename(arms[0] / "sead-3")
    with pytest.raises(TableError, match=r"'sead-3' has no partner in .*; did you mean 'seed-3'"):
        read_pair(*arms)
    shutil.rmtree(arms[0] / "sead-3")
    shutil.rmtree(arms[0] / "seed-2")
    with pytest.raises(TableError, match="hold 1 and 3 runs"):
        read_pair(*arms)


def test_a_task_evaluated_twice_is_refused(arms):
    path = sample_files(arms[0], "tiny_colours")[0]
    shutil.copy(path, path.with_name("samples_tiny_colours_2027-01-01T00-00-00.000000.jsonl"))
    with pytest.raises(TableError, match="task tiny_colours was evaluated twice"):
        read_pair(*arms)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda lines: [lines[0], *lines], "doc_id 0 appears twice"),
        (lambda lines: [{"x": 1}], "line 1 is not a sample of lm-eval"),
        (lambda lines: [], "holds no samples"),
        (lambda lines: [lines[0], lines[1] | {"acc": "NaN"}, *lines[2:]], "acc is 'NaN', not a number"),
        (lambda lines: [lines[0] | {"acc": 10**400}, *lines[1:]], "acc is 1000.*, not a number; its metrics: acc"),
        (lambda lines: [line | {"metrics": 5} for line in lines], "hold no numeric metric"),
        (lambda lines: [line | {"metrics": [["acc"]]} for line in lines], "hold no numeric metric"),
        (
            lambda lines: [*lines, lines[0] | {"filter": "strict"}],
            "choose one of its filters with --filter: none, strict",
        ),
    ],
)
def test_damaged_samples_are_named(arms, change, says):
    edit(sample_files(arms[0], "tiny_colours")[0], change)
    with pytest.raises(TableError, match=says):
        read_pair(*arms)


def test_a_torn_line_and_one_that_nests_too_deep_are_named(arms):
    path = sample_files(arms[0])[0]
    whole = path.read_text()
    for damaged, says in ((whole[:-20], "line 7 is not JSON"), ("[" * 100_000, "line 1 .* nested too deeply")):
        path.write_text(damaged)
        with pytest.raises(TableError, match=says):
            read_pair(*arms)


def test_a_pipe_among_the_samples_is_refused_and_nothing_waits_for_it(arms):
    path = sample_files(arms[0])[0]
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RecordError, match=r"\.jsonl is not a regular file"):
        read_pair(*arms)


def test_items_without_partners_are_not_compared_with_each_other(tmp_path):
    """Their cost grew with their square: 20,000 items of one task did not end within 45 s."""

    class Key(str):
        __slots__ = ()
        hashed = 0

        def __hash__(self):
            Key.hashed += 1
            return str.__hash__(self)

    few, many = ({Key(number): Sample(("",), 1.0, None) for number in range(count)} for count in (1, 400))
    Key.hashed = 0
    with pytest.raises(TableError, match="399 of 400 items do not pair"):
        _paired("task", "acc", [few], [many], allow_unpaired=False)
    assert Key.hashed < 400 * 20


def test_signs_that_end_a_line_of_text_end_no_sample(arms):
    """lm-eval writes them as they are (ensure_ascii=False)."""
    before = read_pair(*arms)
    for arm in arms:
        for path in sample_files(arm):
            lines = [json.loads(line) | {"doc": {"text": "a\u2028b\x85c"}} for line in path.read_text().splitlines()]
            path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    after = read_pair(*arms)
    assert [task.variant.tolist() for task in after.tasks] == [task.variant.tolist() for task in before.tasks]


def test_a_folder_without_samples_says_how_to_get_them(tmp_path):
    with pytest.raises(TableError, match="run lm-eval with --log_samples"):
        read_pair(tmp_path, FIXTURE / "none")
    with pytest.raises(TableError, match="is not a folder"):
        read_pair(tmp_path / "no", FIXTURE / "none")


def test_samples_without_hashes_pair_on_their_content(arms):
    for arm in arms:
        for path in sample_files(arm):
            edit(path, lambda lines: [{k: v for k, v in line.items() if not k.endswith("_hash")} for line in lines])
    assert read_pair(*arms).tasks[0].variant.shape == (3, 7)
    edit(
        sample_files(arms[0], "tiny_colours")[0],
        lambda lines: [lines[0] | {"doc": {"question": "other"}}, *lines[1:]],
    )
    with pytest.raises(TableError, match="1 of 7 items do not pair"):
        read_pair(*arms)


@pytest.mark.parametrize("odd", [float("nan"), float("-inf"), "\ud800"])
def test_documents_pair_whatever_json_can_hold(arms, odd):
    for arm in arms:
        for path in sample_files(arm):
            edit(
                path,
                lambda lines: [
                    {"doc_id": line["doc_id"], "acc": line["acc"], "metrics": ["acc"], "doc": odd} for line in lines
                ],
            )
    assert read_pair(*arms).tasks[0].variant.shape == (3, 7)
    edit(sample_files(arms[0], "tiny_colours")[0], lambda lines: [lines[0] | {"doc": "\ud801"}, *lines[1:]])
    with pytest.raises(TableError, match="1 of 7 items do not pair"):
        read_pair(*arms)


def test_real_valued_scores_have_intervals_and_no_mcnemar():
    rng = np.random.default_rng(0)
    task = TaskScores("t", "logprob", rng.normal(0.3, 1, (4, 200)), rng.normal(0, 1, (4, 200)))
    found = compare_items(ItemScores((task,), tuple("abcd"), "0"), "a", "b").tasks[0]
    assert found.mcnemar == {}
    assert found.needs_items is None
    assert found.crossed.interval.low < found.delta < found.crossed.interval.high


def test_real_valued_scores_of_one_run_have_a_p_over_their_items():
    rng = np.random.default_rng(3)
    arms = {name: (rng.normal(0.3, 1, (1, n)), rng.normal(0, 1, (1, n))) for name, n in (("a", 80), ("b", 40))}
    tasks = tuple(TaskScores(name, "logprob", *scores) for name, scores in arms.items())
    found = compare_items(ItemScores(tasks, ("the only run",), "0"), "a", "b")
    for task, scores in zip(found.tasks, tasks, strict=True):
        assert task.p_test == "paired-t over items"
        assert task.p == pytest.approx(stats.ttest_rel(scores.variant[0], scores.reference[0]).pvalue)
    a, b = ((task.variant - task.reference)[0] for task in tasks)
    # The mean of two means is a Welch test of a against -b.
    assert found.macro_p == pytest.approx(stats.ttest_ind(a, -b, equal_var=False).pvalue)


def test_the_macro_interval_over_items_is_the_stratified_one():
    rng = np.random.default_rng(1)
    tasks = tuple(
        TaskScores(name, "acc", (rng.random((1, n)) < 0.7).astype(float), (rng.random((1, n)) < 0.5).astype(float))
        for name, n in (("a", 400), ("b", 100))
    )
    interval = next(iter(compare_items(ItemScores(tasks, ("1",), "0"), "a", "b").macro_item_intervals.values()))
    draws = np.random.default_rng(2)
    means = []
    for _ in range(4000):
        resampled = [draws.choice((t.variant - t.reference)[0], t.variant.shape[1]).mean() for t in tasks]
        means.append(np.mean(resampled))
    low, high = np.quantile(means, [0.025, 0.975])
    assert (interval.low, interval.high) == (pytest.approx(low, abs=0.01), pytest.approx(high, abs=0.01))
