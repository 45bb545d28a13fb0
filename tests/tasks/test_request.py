"""Names that may be meant by one that nobody knows."""

from __future__ import annotations

import pytest

from ablationlab.core.errors import DataError, UnknownNameError
from ablationlab.tasks.request import MOST_ALIKE, alike, check_file, names_in

#: Names, and an alias to what is four times as large as the one before.
ALIASES = list(zip(["x", *(f"*{name}" for name in "abcdefghijk")], "abcdefghijkl", strict=True))
NAMES = [
    "spelling",
    "hellaswag",
    "arc_easy",
    "egymmlu_history",
    "mmlu",
    "mmlu_prehistory",
    "m_mmlu_hi",
    "wikitext",
    "qa",
]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("speling", "spelling"),
        ("helaswag", "hellaswag"),
        ("ARC-Easy", "arc_easy"),
        ("wiki", "wikitext"),
        ("mmlu_hist", "mmlu_prehistory"),  # both parts are in it, and it begins with the first
    ],
)
def test_the_likeliest_stands_first(name, meant):
    assert alike(name, NAMES)[0] == meant


def test_what_is_like_nothing_has_no_likeness():
    assert alike("zzzz", NAMES) == []
    assert alike("__", NAMES) == []
    assert alike("", NAMES) == []


def test_of_many_only_a_few_are_told_and_of_equals_the_first():
    many = [f"task_{number:04d}" for number in range(5000)]
    found = alike("task", many)
    assert found == many[:MOST_ALIKE]


def test_an_error_over_many_names_tells_what_they_are_and_a_few():
    error = UnknownNameError("task", "x", ["a", "b"], known="two letters", like=["a", "b"])
    assert str(error) == "unknown task 'x'; did you mean 'a'? Or: b (known: two letters)"
    assert (error.nearest, error.allowed) == ("a", ("a", "b"))
    assert str(UnknownNameError("task", "x", ["a", "b"])) == "unknown task 'x'; known: a, b"
    assert str(UnknownNameError("task", "ab", ["abc", "b"])) == "unknown task 'ab'; did you mean 'abc'? (known: abc, b)"


def test_the_harness_and_the_quick_look_into_its_files_find_the_same_names(tmp_path):
    from lm_eval.tasks import TaskManager

    files = {
        "plain.yaml": "task: plain\ntag: one_tag\n",
        "quoted.yaml": '"task": "quoted-name"  # a remark\n"tag": ["in_brackets", \'second\']\n',
        "listed.yaml": "tag:\n  - first_listed\n  - second_listed\ntask: 'listed'\ndoc_to_text: 'task: {{no_name}}'\n",
        "group.yaml": "group: the_group\ntask:\n  - plain\n  - task: listed\n",
        "_shared_yaml": "tag:\n    - of_an_included_file\nmetadata:\n  task: nested\n",
        "including.yaml": "include: _shared_yaml\ntask: including(it)\n",
    }
    (tmp_path / "deeper").mkdir()
    for name, text in files.items():
        (tmp_path / "deeper" / name).write_text(text)
    theirs = TaskManager(include_path=str(tmp_path), include_defaults=False).all_tasks
    assert set(names_in(tmp_path)) == set(theirs)
    assert len(theirs) == 11


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("task: [unclosed\n", "is not YAML: while parsing a flow sequence"),
        ("just words", "holds no settings of a task"),
        ("", "holds no settings of a task"),
        ("task: " + "[" * 100_000, "is nested more than 50 deep"),
        ("task: a\ndescription: " + "x" * 300_000, "has 300,021 bytes"),
        (
            "task: a\n" + "".join(f"{n}: &{n} [{m}, {m}, {m}, {m}]\n" for m, n in ALIASES),
            "has more than 100,000 values",
        ),
        ("task: a\ndoc_to_txt: text", "unknown setting of a task 'doc_to_txt'; did you mean 'doc_to_text'"),
        ("task: a\n<<: {doc_to_txt: text}", "unknown setting of a task 'doc_to_txt'"),
        ("task: a\ngroup_alias: A", "unknown setting of a task 'group_alias'"),
        ("task: a\ninclude: _typo", "_typo: unknown setting of a task 'metrics_list'"),
        ("doc_to_text: text", "holds no settings of a task"),
        ("task: a\x00b", "is not YAML"),
        ("task: a\ninclude: own.yaml\n", "own.yaml: includes itself"),
        ("task: a\ninclude: _shared\n", "own.yaml: includes itself"),
    ],
)
def test_a_broken_task_file_is_refused_before_anything_is_sealed(tmp_path, text, says):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    (tmp_path / "_shared").write_text("include: own.yaml\n")
    (tmp_path / "_typo").write_text("metrics_list: []\n")
    with pytest.raises(DataError, match=says):
        check_file(str(path))
    with pytest.raises(DataError, match="is no regular file"):
        check_file(str(tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        "task: a\ntag: [x]\ngroup: old\ntask_list: []\nmetadata: {anything: 1}\ninclude: absent\n",
        "group: g\ngroup_alias: G\naggregate_metric_list: []\ntask: [{task: a, doc_to_text: text}]\ndoc_to_target: x\n",
        "task: a\nclass: !function utils.Task\nof_its_own: 1\n",  # a task in Python takes what it likes
    ],
)
def test_what_the_harness_takes_is_not_refused(tmp_path, text):
    (tmp_path / "own.yaml").write_text(text)
    check_file(str(tmp_path / "own.yaml"))


def test_a_task_file_that_names_functions_is_read_and_not_run(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("task: own\ndoc_to_text: !function utils.text\n")
    check_file(str(path))
