"""Task files that are loaded: what they may run, and from where."""

from __future__ import annotations

import importlib.util
import json
import py_compile

import pytest
from jinja2.exceptions import SecurityError

from ablationlab.core.errors import DataError
from ablationlab.tasks import harness_tasks, request
from ablationlab.tasks.harness_tasks import _stock_tasks, quiet
from ablationlab.tasks.request import TaskRequest

ASKED = TaskRequest((), (0,), "one", None)


def test_a_template_of_a_task_file_cannot_reach_code():
    from lm_eval import utils

    with quiet():
        assert (
            utils.apply_template("{{a.strip()}} {{b | regex_replace('x', 'y')}}\n", {"a": " 1 ", "b": "x"}) == "1 y\n"
        )
    with pytest.raises(SecurityError):
        utils.apply_template("{{ ''.__class__.__mro__[1].__subclasses__() }}", {})


def test_python_of_a_task_runs_as_it_was_read_whatever_bytecode_lies_beside_it(tmp_path):
    from lm_eval.tasks import TaskManager

    other = tmp_path / "other.py"
    other.write_text("def text(doc): return 'of the bytecode'\n")
    utils = tmp_path / "utils.py"
    utils.write_text("def text(doc): return 'as read'\n")
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(other), importlib.util.cache_from_source(str(utils)), invalidation_mode=unchecked)
    (tmp_path / "items.jsonl").write_text(json.dumps({"choices": ["a", "b"], "target": 0}) + "\n")
    settings = {"task": "own", "dataset_path": "json", "output_type": "multiple_choice", "test_split": "test"}
    settings |= {"dataset_kwargs": {"data_files": {"test": str(tmp_path / "items.jsonl")}}}
    settings |= {"doc_to_target": "target", "doc_to_choice": "choices"}
    path = tmp_path / "own.yaml"
    path.write_text(json.dumps(settings)[:-1] + ', "doc_to_text": !function utils.text}')
    (task,) = _stock_tasks(str(path), ASKED, TaskManager(include_defaults=False))
    assert task.loaded.doc_to_text({}) == "as read"


def test_a_name_of_the_harness_is_no_file_of_this_folder(tmp_path, monkeypatch):
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_defaults=False)
    monkeypatch.setattr(harness_tasks, "full_manager", lambda: manager)
    monkeypatch.setattr(request, "_harness_index", lambda: ("mentioned",))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "utils.py").write_text("from pathlib import Path\nPath('mark').touch()\ntext = 1\n")
    (tmp_path / "mentioned").write_text("task: mentioned\ndoc_to_text: !function utils.text\n")
    with pytest.raises(DataError, match="could not load task 'mentioned'"):
        _stock_tasks("mentioned", ASKED, manager)
    assert not (tmp_path / "mark").exists()
