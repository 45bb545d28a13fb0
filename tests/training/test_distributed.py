"""One run over two real processes: the same inputs, the same numbers to rounding, and the same bits when it continues."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from ranks_matrix import (
    HALF,
    OWN_CODE,
    RESUMED,
    SCENARIOS,
    STEPS,
    TRAINING,
    VALIDATION,
    look,
    record,
    run_folder,
    train,
)

import warm
from ablationlab.core.errors import RecordError
from ablationlab.core.registry import layer
from ablationlab.instrument.costing.disk import Spread, checkpoint_bytes
from ablationlab.model.parameters import parameter_count, parameters
from ablationlab.records.settings import TrainingConfig
from ablationlab.training import checkpoints
from ablationlab.training.distributed.ranks import Ranks
from ablationlab.training.distributed.stack import local
from ablationlab.training.loop import no_room, out_of_memory
from conftest import torch_as_it_was

HERE = Path(__file__).parent
# Two ranks add two halves of a batch where one process adds a whole: sums round otherwise. Over eight steps the largest
# relative difference measured was 1e-7 in a loss, 4e-7 in a gradient norm, 6e-7 in a second moment; other processors may
# round ten times worse.
FP32 = 4e-6
# In bf16 a product keeps eight bits, and the halves of a batch are rounded before they are added: measured were 7e-5 in a
# loss, 2e-3 in a gradient norm and 4e-3 in a second moment.
BF16 = 1e-2


@pytest.fixture(scope="module", autouse=True)
def settings_of_torch():
    """Preparing for bf16 may switch a library off; the tests that come after find everything as it was."""
    with torch_as_it_was(), layer(OWN_CODE):
        yield
    torch._C._set_mkldnn_enabled(True)


@pytest.fixture(scope="module")
def one_rank() -> Ranks:
    """This process as the only rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield Ranks(0, 1, torch.device("cpu"))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory, one_rank: Ranks) -> Path:
    """Every scenario, trained by two processes that torchrun started; before it, what they continue from."""
    folder = tmp_path_factory.mktemp("matrix")
    alone = SCENARIOS["fsdp plain"].alone()
    train(alone, 1, HALF)
    alone.save(0, run_folder(folder, "alone"), record(HALF), final=False)
    single = SCENARIOS["fsdp plain"].spread(one_rank)
    train(single, 1, HALF)
    single.save(0, run_folder(folder, "one rank"), record(HALF), final=False)
    words = ["--standalone", "--nproc-per-node", "2", str(HERE / "ranks_matrix.py"), str(folder)]
    # The two ranks are of two servers with different hash seeds, so that an order that hangs on a set would show.
    start = folder / "rank"
    start.write_text(f'#!/bin/sh\n[ "$RANK" = 0 ] && export WARM_PYTHON_OTHER=1\nexec {warm.executable()} "$@"\n')
    start.chmod(0o755)
    env = {**os.environ, "PYTHON_EXEC": str(start)}
    done = warm.python("-m", "torch.distributed.run", *words, env=env, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def ended(matrix: Path, name: str) -> tuple[dict, dict[str, torch.Tensor]]:
    run = run_folder(matrix, name)
    return json.loads((run.path / "end.json").read_text()), safetensors.torch.load_file(run.path / "end.safetensors")


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name", SCENARIOS)
def test_two_ranks_give_the_numbers_of_one_process_at_the_same_global_batch(matrix, name):
    """Losses, gradient norms (with clipping that bites) and second moments of every step, and validation at the end."""
    alone = SCENARIOS[name].alone()
    expected = train(alone)
    said, weights = ended(matrix, name)
    tolerance = BF16 if SCENARIOS[name].bf16 else FP32
    np.testing.assert_allclose(np.array(said["rows"])[:, :2], np.array(expected)[:, :2], rtol=tolerance)
    np.testing.assert_allclose(said["rows"], expected, rtol=4 * tolerance)
    totals = alone.validate(VALIDATION)
    assert said["tokens"] == totals.tokens == len(VALIDATION) - 1
    assert said["nll"] == pytest.approx(float(totals.nll_R[0]), rel=tolerance)
    assert said["norm"] == pytest.approx(float(totals.norm_R[0]), rel=tolerance)
    assert weights.keys() == alone.weights(0).keys()
    assert max(row[1] for row in expected) > 0.5


def test_the_clipping_of_shards_is_that_of_the_whole_gradient(matrix):
    """At step 1 every rank's own part is far smaller than the whole: a norm of parts alone would show."""
    for name in ("ddp plain", "fsdp plain"):
        assert ended(matrix, name)[0]["rows"][0][1] == pytest.approx(
            train(SCENARIOS[name].alone(), 1, 1)[0][1], rel=1e-6
        )


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_computing_activations_again_changes_no_bit(matrix, parallel):
    kept, again = ended(matrix, f"{parallel} plain"), ended(matrix, f"{parallel} again")
    assert kept[0] == again[0]
    assert same_bits(kept[1], again[1])


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_continuing_at_the_same_number_of_ranks_changes_no_bit(matrix, parallel):
    whole, resumed = ended(matrix, f"{parallel} plain"), ended(matrix, f"{parallel} on 2, {parallel} on 2")
    assert whole[0]["rows"][HALF:] == resumed[0]["rows"]
    assert same_bits(whole[1], resumed[1])


@pytest.mark.parametrize("name", RESUMED)
def test_a_checkpoint_loads_into_another_number_of_ranks_and_another_layout(matrix, name):
    expected = train(SCENARIOS[RESUMED[name][1]].alone())[HALF:]
    np.testing.assert_allclose(ended(matrix, name)[0]["rows"], expected, rtol=4 * FP32)


def test_an_own_rule_that_goes_on_has_the_bits_of_one_that_never_stopped(matrix):
    whole, resumed = ended(matrix, "ddp own rule"), ended(matrix, "own rule on 2, own rule on 2")
    np.testing.assert_equal(whole[0]["rows"][HALF:], resumed[0]["rows"])
    assert same_bits(whole[1], resumed[1])
    run, alone = run_folder(matrix, "ddp own rule"), SCENARIOS["ddp own rule"].alone()
    saved = checkpoints.load(run, HALF)
    assert saved.state.keys() == {"weights", "trace"}
    alone.resume(0, run, saved)
    np.testing.assert_allclose(train(alone, HALF + 1), whole[0]["rows"][HALF:], rtol=4 * FP32)


@pytest.mark.parametrize("saved", ["ddp plain", "fsdp plain"])
def test_a_checkpoint_of_two_ranks_loads_into_one(matrix, one_rank, saved):
    run, expected = run_folder(matrix, saved), train(SCENARIOS[saved].alone())[HALF:]
    found = look(run)
    assert len(found.record.files) == 2
    assert not found.final
    assert all(checkpoints.SHARD.fullmatch(name) for name in found.record.files)
    for stack in (SCENARIOS["fsdp plain"].spread(one_rank), SCENARIOS["ddp plain"].spread(one_rank)):
        stack.resume(0, run, found)
        np.testing.assert_allclose(train(stack, HALF + 1), expected, rtol=4 * FP32)
    alone = SCENARIOS[saved].alone()  # the executor of whole runs continues it, too
    alone.resume(0, run, checkpoints.load(run, HALF))
    np.testing.assert_allclose(train(alone, HALF + 1), expected, rtol=4 * FP32)


def test_one_rank_that_continues_has_the_bits_of_one_that_never_stopped(matrix, one_rank):
    scenario = SCENARIOS["fsdp plain"]
    whole, resumed = scenario.spread(one_rank), scenario.spread(one_rank)
    rows = train(whole)
    run = run_folder(matrix, "one rank")
    resumed.resume(0, run, look(run))
    assert train(resumed, HALF + 1) == rows[HALF:]
    assert same_bits(whole.weights(0), resumed.weights(0))


@pytest.mark.parametrize("name", ["ddp muon", "fsdp lion", "fsdp groups"])
def test_averages_and_the_state_of_every_optimizer_are_in_the_shards(tmp_path, one_rank, name):
    scenario, run = SCENARIOS[name], run_folder(tmp_path, "run")
    whole, resumed = scenario.spread(one_rank), scenario.spread(one_rank)
    train(whole, 1, HALF)
    whole.save(0, run, record(HALF), final=False)
    rows = train(whole, HALF + 1)
    resumed.resume(0, run, look(run))
    np.testing.assert_equal(train(resumed, HALF + 1), rows)
    assert same_bits(whole.weights(0), resumed.weights(0))
    alone = scenario.alone()  # the executor of whole runs continues it, too
    alone.resume(0, run, checkpoints.load(run, HALF))
    np.testing.assert_allclose(train(alone, HALF + 1), rows, rtol=1e-4)
    before = {key: value.detach().clone() for key, value in whole._parameters.items()}
    validated = whole.validate(VALIDATION)
    assert float(validated.nll_R[0]) == pytest.approx(float(alone.validate(VALIDATION).nll_R[0]), rel=1e-4)
    assert all(torch.equal(local(value), local(whole._parameters[key])) for key, value in before.items())
    whole.save(0, run, record(STEPS), final=True)
    ended = scenario.spread(one_rank)
    ended.resume(0, run, checkpoints.load(run, STEPS))
    assert float(ended.validate(VALIDATION).nll_R[0]) == float(validated.nll_R[0])


def test_shards_hold_tensors_and_json_alone_and_damage_is_named(matrix, tmp_path):
    """No pickle: every file beside the record is safetensors, and the places of the parts stand in their headers."""
    run = run_folder(matrix, "fsdp plain")
    folder = checkpoints.path_of(run, HALF)
    files = sorted(path.name for path in folder.iterdir())
    assert files == ["checkpoint.json", *sorted(look(run).record.files)]
    for name in files[1:]:
        data = (folder / name).read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        assert "m.tok.weight" in header
        assert "saved_offsets" in header["__metadata__"]["DCP_SHARDING_INFO"]
    copy = run_folder(tmp_path, "copy")
    there = checkpoints.path_of(copy, HALF)
    there.mkdir(parents=True)
    for name in files:
        (there / name).write_bytes((folder / name).read_bytes())
    damaged = bytearray((there / files[1]).read_bytes())
    damaged[-5] ^= 1
    (there / files[1]).write_bytes(damaged)
    with pytest.raises(RecordError, match=f"{files[1]} is damaged"):
        look(copy)
    (there / files[1]).rename(there / "shard-00003-model-00001-of-00001.safetensors")
    with pytest.raises(RecordError, match="its record names"):
        look(copy)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_the_bytes_of_a_checkpoint_in_shards_are_those_that_plan_counts(matrix, parallel):
    run = run_folder(matrix, f"{parallel} plain")
    written = sum(path.stat().st_size for path in checkpoints.path_of(run, HALF).iterdir())
    model = SCENARIOS[f"{parallel} plain"].member.model
    counted = checkpoint_bytes(parameter_count(model), len(parameters(model)), Spread(parallel, 2))
    assert written == pytest.approx(counted, rel=0.03)


def test_passes_of_a_micro_batch_sum_up_to_the_batch():
    """In one process, too: the same masks and nearly the same sums; without the setting not a bit is other than before."""
    whole, passes = SCENARIOS["ddp plain"].alone(), SCENARIOS["ddp passes"].alone()
    np.testing.assert_allclose(train(passes), train(whole), rtol=4 * FP32)
    masks = SCENARIOS["ddp masks"]
    np.testing.assert_allclose(
        train(masks.alone()),
        train(type(masks)(variant=masks.variant, model=masks.model).alone()),
        rtol=4 * FP32,
    )
    assert STEPS > HALF


def test_memory_that_ran_out_is_told_from_other_errors_and_names_the_micro_batch():
    with pytest.raises(RuntimeError) as real:
        torch.empty(2**55, dtype=torch.uint8)  # more than any machine has: torch's own words
    assert no_room(real.value)
    assert no_room(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."))
    assert not no_room(RuntimeError("shapes cannot be multiplied"))
    text = str(out_of_memory(real.value, TRAINING, ranks=2))
    assert "(the host has none left)" in str(out_of_memory(MemoryError(), TRAINING))
    assert "4 sequences of a forward pass do not fit on each of 2 ranks" in text
    assert "training.micro_batch = 2" in text
    assert "training.micro_batch = 1 " in str(out_of_memory(real.value, TRAINING.changed(micro_batch=2)))
    tightest = str(out_of_memory(real.value, TRAINING.changed(micro_batch=1)))
    assert "A single sequence does not fit either" in tightest
    assert "activation_checkpointing" in tightest


def test_a_micro_batch_that_does_not_divide_the_batch_is_refused():
    with pytest.raises(ValueError, match="3 does not divide batch = 8; allowed: 1, 2, 4, 8"):
        TrainingConfig(steps=3, batch=8, micro_batch=3)
