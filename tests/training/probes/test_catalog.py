"""What is declared is what is measured; a study's [probes] is checked before anything runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from ablationlab.core.errors import StudyError
from ablationlab.records.settings import ModelConfig
from ablationlab.study.load import parse_study
from ablationlab.study.probes import PROBES, expanded, is_due, probe_intervals
from ablationlab.study.variants import VARIANTS
from ablationlab.training.probes.stack_probes import MEASUREMENTS
from conftest import TINY


def test_every_declared_probe_is_measured_and_every_measured_one_declared():
    assert list(PROBES) == list(MEASUREMENTS)


@pytest.mark.parametrize("name", list(PROBES))
def test_a_probe_writes_exactly_the_measures_that_it_declares(snapshot, name):
    readings = MEASUREMENTS[name](snapshot)
    assert {reading.measure for reading in readings} == {measure.name for measure in PROBES[name].definition.measures}
    runs = len(snapshot.fronts)
    for reading in readings:
        assert reading.values.shape[0] == runs
        numbers = reading.on_host(reading.values)
        assert numbers.shape == (runs, len(reading.labels)), reading.measure
        has = np.array(reading.has_R if reading.has_R is not None else [True] * runs)
        assert np.isfinite(numbers[has]).all(), reading.measure
        assert len(set(reading.labels)) == len(reading.labels)


class Waiting(TorchDispatchMode):
    """Notes operations that make the host wait for a GPU: a look that waits would stop training's pipeline."""

    KINDS = ("_local_scalar_dense", "nonzero", "masked_select", "linalg", "unique", "_assert_async")

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(kind in str(func) for kind in self.KINDS) and "linalg_vector_norm" not in str(func):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", list(PROBES))
def test_a_look_never_waits_for_the_device(snapshot, name):
    MEASUREMENTS[name](snapshot)  # tables are made once, and may wait
    with Waiting() as waiting:
        MEASUREMENTS[name](snapshot)
    assert not waiting.found


@pytest.mark.parametrize("name", list(PROBES))
def test_a_probe_without_forward_never_makes_the_tapped_pass(snapshot, name):
    fresh = replace(snapshot, backward=PROBES[name].backward)
    MEASUREMENTS[name](fresh)
    assert ("taps" in fresh.__dict__) == PROBES[name].forward


def test_probes_look_after_the_first_step_every_interval_and_the_last():
    assert [step for step in range(1, 24) if is_due(step, 10, 23)] == [1, 10, 20, 23]
    assert [step for step in range(1, 4) if is_due(step, 100, 3)] == [1, 3]


def test_all_stands_for_those_that_fit_and_named_ones_keep_their_own_interval():
    plain = ModelConfig(layers=2, width=16, heads=2, context=16, vocabulary=5)
    found = expanded({"cosine": 3, "all": 10}, [plain])
    assert "embedding-gain" not in found
    assert found["cosine"] == 3
    assert found["attention"] == 10
    assert list(found) == [name for name in PROBES if name != "embedding-gain"]
    assert "embedding-gain" in expanded({"all": 10}, [plain, VARIANTS["rmsnorm"].apply(plain)])
    assert expanded({}, [plain]) == {}


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"probes": {"cosin": 10}}, "probes.cosin", ["unknown probe", "did you mean 'cosine'"]),
        ({"probes": {"cosine": 0}}, "probes.cosine", ["got 0", "at least 1"]),
        ({"probes": {"all": 0}}, "probes.all", ["got 0", "at least 1"]),
        ({"probes": {"cosine": -5}}, "probes.cosine", ["got -5", "at least 1"]),
        ({"probes": {"cosine": "often"}}, "probes.cosine", ["wrong type", "whole number"]),
        ({"probes": {"cosine": 2.5}}, "probes.cosine", ["whole number"]),
        ({"probes": ["cosine"]}, "probes", ["wrong type", "a table"]),
        (
            {"probes": {"embedding-gain": 5}, "variants": ["none", "center-only"]},
            "probes.embedding-gain",
            ["needs an embedding norm with a learned gain", "allowed: gradient-norm"],
        ),
        (
            {"probes": {"attention": 5}, "model": {"layers": 0, "width": 16, "heads": 2, "context": 16}},
            "probes.attention",
            ["needs a model with blocks"],
        ),
        (
            {"probes": {"duplicate-ngrams": 5}, "model": {"layers": 1, "width": 16, "heads": 2, "context": 8}},
            "probes.duplicate-ngrams",
            ["context of at least 12"],
        ),
    ],
)
def test_a_wrong_probe_is_a_clear_error_before_anything_runs(changes, key, words):
    with pytest.raises(StudyError) as caught:
        parse_study({**TINY, **changes})
    (problem,) = [problem for problem in caught.value.problems if problem.key == key]
    for word in words:
        assert word in str(problem)


def test_one_arm_or_regime_that_feeds_a_probe_is_enough():
    study = parse_study({**TINY, "probes": {"embedding-gain": 5}})  # of none, layernorm, rmsnorm
    assert probe_intervals(study) == {"embedding-gain": 5}
    bare = {"layers": 0, "width": 16, "heads": 2, "context": 16}
    deep = {"regimes": {"deep": {"model": {"layers": 1}}}}
    assert probe_intervals(parse_study({**TINY, "model": bare, **deep, "probes": {"attention": 5}})) == {"attention": 5}


def test_probes_are_part_of_what_is_sealed():
    assert parse_study({**TINY, "probes": {"cosine": 5}}).hash != parse_study(TINY).hash
    assert parse_study({**TINY, "probes": {"cosine": 5}}).criteria_hash == parse_study(TINY).criteria_hash
