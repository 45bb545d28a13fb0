from __future__ import annotations

from typing import Literal

import pytest
from pydantic import ValidationError

from ablationlab.core.errors import Problem, StudyError, UnknownNameError, nearest
from ablationlab.core.problems import problems_of
from ablationlab.core.registry import Registry
from ablationlab.records.settings import Count, Frozen, Positive, validated


class Inner(Frozen):
    depth: Count = 1
    mode: Literal["fast", "slow"] = "fast"


class Outer(Frozen):
    inner: Inner = Inner()
    clip: Positive | Literal["off"] = 1.0
    rows: tuple[Inner, ...] = ()
    named: dict[str, Inner] | None = None


def problems(data: dict) -> dict[str, Problem]:
    with pytest.raises(ValidationError) as caught:
        validated(Outer, data)
    found = problems_of(caught.value, Outer, data)
    assert len({problem.key for problem in found}) == len(found)
    return {problem.key: problem for problem in found}


def test_a_problem_names_key_value_allowed_and_nearest():
    problem = Problem("model.mode", "is not an allowed value", '"fats"', "fast, slow", "fast")
    assert (
        str(problem) == "model.mode: is not an allowed value (got \"fats\"); did you mean 'fast'? (allowed: fast, slow)"
    )


def test_a_problem_without_a_key_is_only_its_message():
    assert str(Problem("", "no such study file")) == "no such study file"
    assert Problem("", "give one").under("training").key == "training"
    assert Problem("lr", "bad").under("regimes.hot").key == "regimes.hot.lr"


def test_an_unknown_key_lists_the_keys_of_its_own_table():
    found = problems({"inner": {"dept": 3}, "rows": [{}, {"mod": 1}], "named": {"a": {"xyz": 1}}, "clop": 1})
    assert found["inner.dept"].allowed == found["rows[1].mod"].allowed == "depth, mode"
    assert found["inner.dept"].nearest == "depth"
    assert found["rows[1].mod"].nearest == "mode"
    assert found["named.a.xyz"].allowed == "depth, mode"
    assert found["named.a.xyz"].nearest is None
    assert found["clop"].nearest == "clip"
    assert found["clop"].allowed == "inner, clip, rows, named"


@pytest.mark.parametrize(
    ("value", "message", "allowed", "hint"),
    [
        (-1.0, "is out of range", "above 0.0 or off", None),
        ("of", "has the wrong type", "a number or off", "off"),
        ([1], "has the wrong type", "a number or off", None),
    ],
)
def test_a_union_whose_branches_all_failed_is_one_problem(value, message, allowed, hint):
    found = problems({"clip": value})
    assert list(found) == ["clip"]
    assert (found["clip"].message, found["clip"].allowed, found["clip"].nearest) == (message, allowed, hint)


@pytest.mark.parametrize(
    ("value", "shown", "allowed"),
    [
        ("3", '"3"', "a whole number"),
        (True, "true", "a whole number"),
        (2.5, "2.5", "a whole number"),
        (0, "0", "at least 1"),
        (-7, "-7", "at least 1"),
    ],
)
def test_a_wrong_number_shows_its_value_as_it_stands_in_the_file(value, shown, allowed):
    problem = problems({"inner": {"depth": value}})["inner.depth"]
    assert (problem.value, problem.allowed) == (shown, allowed)


def test_a_long_value_is_cut():
    shown = problems({"inner": {"depth": "x" * 500}})["inner.depth"].value
    assert shown is not None
    assert len(shown) == 80
    assert shown.endswith("…")


def test_a_scalar_where_a_table_belongs_is_named():
    problem = problems({"inner": 3})["inner"]
    assert (problem.message, problem.value, problem.allowed) == ("has the wrong type", "3", "a table")


def test_nearest_is_silent_when_nothing_is_close():
    assert nearest("layernrom", ["none", "layernorm", "rmsnorm"]) == "layernorm"
    assert nearest("qqqq", ["none", "layernorm", "rmsnorm"]) is None
    assert nearest("cosin", ["warmup-cosine", "constant"]) == "warmup-cosine"
    assert nearest("accuracy", ["validation_loss", "next_token_accuracy"]) == "next_token_accuracy"
    assert nearest("best", ["next_token_accuracy"]) is None


def test_a_registry_keeps_order_refuses_twins_and_answers_did_you_mean():
    things: Registry[int] = Registry("thing")
    assert things.add("beta", 2) == 2
    things.add("alpha", 1)
    assert list(things) == ["beta", "alpha"]
    assert dict(things.items()) == {"beta": 2, "alpha": 1}
    assert len(things) == 2
    assert "alpha" in things
    assert "gamma" not in things
    with pytest.raises(ValueError, match="thing 'beta' is registered twice"):
        things.add("beta", 3)
    assert things["beta"] == 2
    with pytest.raises(UnknownNameError) as caught:
        things["bets"]
    assert str(caught.value) == "unknown thing 'bets'; did you mean 'beta'? (known: beta, alpha)"


def test_a_study_error_counts_and_lists_every_problem():
    error = StudyError("a.toml", [Problem("x", "bad"), Problem("y", "worse")])
    assert str(error) == "a.toml: 2 problems\n  - x: bad\n  - y: worse"
    assert str(StudyError("a.toml", [Problem("x", "bad")])).startswith("a.toml: 1 problem\n")
