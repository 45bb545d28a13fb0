"""Estimates for hardware that is not here: against the ledger's own counts, against measurements, against bad input."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ablationlab.cli.run import budget_hours
from ablationlab.core.errors import AblationLabError, PlanError
from ablationlab.instrument.costing.hardware import ACCELERATORS, CALIBRATION, CONTEXT_BYTES, FILL, parse_hardware
from ablationlab.instrument.costing.layouts import Layout, Network, layouts, memory, place, waiting
from ablationlab.instrument.costing.outlook import outlook
from ablationlab.instrument.costing.step import Shape
from ablationlab.model.parameters import matmul_flops_per_token, parameter_count, parameters
from ablationlab.records.settings import ModelConfig, TrainingConfig, validated
from ablationlab.report.terminal.costing import Money, costing_clauses
from ablationlab.stats import detectable_effect
from ablationlab.study.load import load_study
from ablationlab.training.executors.torchrun import check

ROOT = Path(__file__).parents[2]
H200, H100 = ACCELERATORS["h200"], ACCELERATORS["h100"]


def model(preset: str, **changes: int) -> ModelConfig:
    return validated(ModelConfig, {"preset": preset, "vocabulary": 65 if preset == "char-mini" else 50257, **changes})


@pytest.mark.parametrize("preset", ["char-mini", "gpt2-small", "gpt2-medium", "gpt3-xl"])
def test_the_flops_are_those_of_the_budget(preset):
    shape = Shape(model(preset), samples=4, runs=3)
    assert shape.linear_flops + shape.attention_flops == shape.tokens * matmul_flops_per_token(shape.model)
    assert shape.counts[0] == parameter_count(shape.model)


# Printed by benchmarks/gpu_estimates.py on one H200, torch 2.11, 2026-11-15: milliseconds a step, peak GB.
NANO = {"layers": 6, "width": 384, "heads": 6}
MEASURED = [
    ({"preset": "char-mini", "vocabulary": 65}, 16, 15, 3.892, 2.07),
    ({"preset": "char-mini", "vocabulary": 65}, 16, 1, 1.081, 0.20),
    ({**NANO, "context": 256, "vocabulary": 65}, 64, 1, 5.529, 1.85),
    ({**NANO, "context": 512, "vocabulary": 50257}, 32, 1, 11.215, 4.16),
    ({**NANO, "context": 512, "vocabulary": 50257}, 32, 9, 105.530, 27.23),
    ({"preset": "gpt2-small"}, 16, 1, 36.247, 11.28),
    ({"preset": "gpt2-small"}, 32, 1, 67.546, 18.40),
    ({"preset": "gpt2-small"}, 64, 1, 133.443, 30.65),
    ({"preset": "gpt2-medium"}, 16, 1, 91.671, 27.40),
]


@pytest.mark.parametrize(("table", "samples", "runs", "ms", "gigabytes"), MEASURED)
def test_estimates_of_what_was_measured_on_an_h200_are_within_a_fifth(table, samples, runs, ms, gigabytes):
    shape = Shape(validated(ModelConfig, table), samples, runs)
    assert shape.seconds(H200) * 1e3 == pytest.approx(ms, rel=0.2)
    assert shape.stack_memory() / 1e9 == pytest.approx(gigabytes, rel=0.2)


def test_a_stack_takes_less_time_and_memory_than_its_runs_one_by_one():
    one, many = (Shape(model("char-mini"), 16, runs) for runs in (1, 15))
    assert many.seconds(H200) < 15 * one.seconds(H200)
    assert many.stack_memory() <= 15 * one.stack_memory()


def test_the_state_is_whole_in_every_copy_and_a_share_in_every_shard():
    shape = Shape(model("gpt3-xl"), 1)
    every = parameter_count(shape.model)
    copy = memory(Layout("ddp", 8), shape, 1)
    shards = {gpus: memory(Layout("fsdp", gpus), shape, 1) for gpus in (2, 4, 8, 64)}
    assert copy > 16 * every > shards[2]
    assert shards[2] - shards[4] == pytest.approx(16 * every / 4)
    assert shards[8] - shards[64] == pytest.approx(16 * every * (1 / 8 - 1 / 64))


def test_recomputing_trades_memory_for_time():
    kept, again = (
        place(Layout("fsdp", 8, on), model("gpt3-xl"), 512, "bf16", H100, micro_batch=8) for on in (False, True)
    )
    assert again.memory < kept.memory / 1.5
    assert 1.2 < again.seconds / kept.seconds < 1.34


@pytest.mark.parametrize("gpu", ["h100", "a100-40", "l4"])
@pytest.mark.parametrize("preset", ["gpt2-small", "gpt3-xl"])
def test_what_would_be_run_is_estimated_and_the_largest_micro_batch_that_fits_is_named(gpu, preset):
    kind, batch = ACCELERATORS[gpu], 512
    room = FILL * kind.memory - CONTEXT_BYTES
    named = []
    for layout in layouts(parse_hardware(f"8x{gpu}"), 1):
        share = batch // layout.gpus
        for micro_batch in (None, 16):
            at = place(layout, model(preset), batch, "bf16", kind, micro_batch=micro_batch)
            assert at.micro_batch == (micro_batch or share)
            assert at.fits == (at.memory <= room)
            assert at.fits <= (at.would_fit is None)
            named.append(at.would_fit)
            if at.would_fit is not None:
                fitting = [memory(layout, Shape(model(preset), n), share // n) <= room for n in (1, 2)]
                assert fitting[0]
                assert share % at.would_fit == 0
                larger = Shape(model(preset), 2 * at.would_fit)
                assert larger.samples >= at.micro_batch or memory(layout, larger, share // larger.samples) > room
    assert any(named)


@pytest.mark.parametrize(
    ("hardware", "changes", "words"),
    [
        ("64xh100", ["training.micro_batch=16"], "64 processes x training.micro_batch = 16 do not divide"),
        ("24xh100", [], "24 processes x training.micro_batch = 8 do not divide training.batch = 512"),
        (
            "64xh100",
            ["regimes.small={training={batch=96,micro_batch=2,steps=1000}}"],
            "divide regimes.small.training.batch = 96",
        ),
    ],
)
def test_a_layout_that_torchrun_would_refuse_is_not_planned_and_the_words_are_torchruns(hardware, changes, words):
    path = ROOT / "studies" / "embedding-norm-1b3.toml"
    study, wanted = load_study(path, changes), parse_hardware(hardware)
    with pytest.raises(PlanError) as refused:
        check(study, wanted.count)
    assert words in str(refused.value)
    found = outlook(study, wanted)
    assert {row.placed.layout.gpus for row in found.rows} == {1, 8}
    assert [(one.gpus, one.why) for one in found.impossible] == [(wanted.count, str(refused.value))]
    for row in found.rows:
        assert row.placed.micro_batch == study.training.micro_batch


def test_the_words_name_the_numbers_that_work_and_are_printed(cli):
    path = ROOT / "studies" / "embedding-norm-1b3.toml"
    study = load_study(path, ["training.micro_batch=16"])
    (one,) = outlook(study, parse_hardware("64xh100")).impossible
    code, out, err = cli("plan", path, "--hardware", "64xh100", "--set", "training.micro_batch=16")
    assert code == 0, err
    assert "not possible" in out
    assert one.why in " ".join(out.split())
    assert "Numbers of processes that do: 1, 2, 4, 8, 16, 32;" in one.why
    assert one.why.endswith("for 64 processes training.micro_batch may be 1, 2, 4, 8")


def test_a_study_that_fits_nowhere_as_it_stands_is_told_the_micro_batch_that_would(cli):
    path = ROOT / "studies" / "embedding-norm-124m.toml"
    code, out, err = cli("plan", path, "--hardware", "1xl4", "--set", "training.micro_batch=512")
    assert code == 0, err
    found = outlook(load_study(path, ["training.micro_batch=512"]), parse_hardware("1xl4"))
    assert found.written is None
    assert found.sooner is None
    sizes = {row.placed.would_fit for row in found.rows}
    assert sizes - {None}
    clauses = costing_clauses(found, None, Money(1.0, asked=True), None)["fits"]
    assert [clause.code for clause in clauses][:2] == ["costing.nothing", "costing.would-fit"]
    assert {clause.slots["size"].text for clause in clauses[1:]} == {str(size) for size in sizes - {None}}
    assert "nothing on NVIDIA L4" in out


def test_a_slow_network_shows():
    slow = replace(H100, link=H100.link / 50, network=H100.network / 50)
    for kind in ("ddp", "fsdp"):
        near, far = (place(Layout(kind, 8), model("gpt3-xl"), 512, "bf16", gpu, micro_batch=8) for gpu in (H100, slow))
        assert 0 < near.waiting < 0.02 * near.seconds
        assert far.waiting > 0.2 * far.seconds
        assert far.utilization < near.utilization


def test_between_nodes_collectives_use_every_network_card_of_a_node_and_no_more_than_the_links():
    inside, outside = (Network.of(gpus, H100) for gpus in (8, 64))
    assert inside.rate == CALIBRATION.collective * H100.link
    assert outside.rate == CALIBRATION.collective * 8 * H100.network
    assert Network.of(64, replace(H100, network=H100.link)).rate == inside.rate


@pytest.mark.parametrize("preset", ["gpt2-small", "gpt3-xl"])
@pytest.mark.parametrize(("kind", "passes"), [("ddp", 1), ("ddp", 8), ("fsdp", 1), ("fsdp", 8)])
def test_with_nothing_to_hide_behind_all_traffic_is_waited_for_and_with_enough_the_ends_still_are(kind, passes, preset):
    """Against the bytes of every parameter, counted one by one as the ranks send them."""
    network, shape = Network(8, 1e11, 0.0), Shape(model(preset), 4)
    found = parameters(shape.model)
    blocks = [p for p in found if p.name.startswith("blocks.")]
    root = sum(4 * p.size for p in found if not p.name.startswith("blocks."))
    gathered = sum((2 if p.is_matrix else 4) * p.size for p in blocks)
    summed = sum(4 * p.size for p in found)
    first = [p for p in blocks if p.name.startswith("blocks.0.")]
    one = sum((2 if p.is_matrix else 4) * p.size + 4 * p.size for p in first)
    embedding = sum(4 * p.size for p in found if p.name in ("tok.weight", "pos.weight"))
    # ddp sums once a step and sends everything twice; fsdp gathers the root once and the blocks twice in every pass.
    every = 2 * summed if kind == "ddp" else passes * (root + 2 * gathered + summed)
    ends = 2 * embedding if kind == "ddp" else passes * (2 * root + one)
    for hidden, sent in ((0.0, every), (1e9, ends)):
        lost = waiting(kind, shape, passes, (hidden, hidden), network, 0.5)
        assert lost == pytest.approx(sent * 7 / 8 / network.rate, rel=1e-9)


def test_a_collective_takes_a_moment_however_small():
    assert Network(8, 1e11, 3e-5).seconds(0.0, 4) == pytest.approx(1.2e-4)
    shape = Shape(model("char-mini"), 16)
    slow, fast = (waiting("fsdp", shape, 1, (0.0, 0.0), Network(8, 1e15, at), 0.5) for at in (3e-5, 0.0))
    assert slow - fast == pytest.approx(
        3e-5 * (2 + 8 * 2 * 3)
    )  # the root twice; of eight blocks two pieces, three times


def test_the_study_is_estimated_as_it_is_written_and_another_layout_named_only_where_it_is_sooner(cli):
    path = ROOT / "studies" / "embedding-norm-124m.toml"
    found = outlook(load_study(path), parse_hardware("8xh100"))
    assert str(found.written.placed.layout) == "ddp over 8"
    assert found.sooner is None  # fsdp over 8 differs by less than can be told
    out = " ".join(cli("plan", path, "--hardware", "8xh100")[1].split())
    assert "written execution.parallel = 'ddp', --executor torchrun · ddp over 8: 170 GPU-hours" in out
    assert " sooner " not in out
    again = ("execution.activation_checkpointing=true",)
    found = outlook(load_study(path, again), parse_hardware("8xh100"))
    assert str(found.written.placed.layout) == "ddp over 8, recomputing"
    assert found.sooner.wall_hours < 0.95 * found.written.wall_hours
    out = " ".join(cli("plan", path, "--hardware", "8xh100", "--set", *again)[1].split())
    assert " sooner ddp over 8: 21.2 h" in out
    assert "another study: execution.activation_checkpointing = false" in out


def test_a_study_without_a_layout_is_one_for_whole_runs_a_gpu(cli):
    path = ROOT / "studies" / "quick.toml"
    found = outlook(load_study(path), parse_hardware("8xh100"))
    assert found.written.placed.layout.kind == "stack"
    assert not found.written.change
    assert all("execution.parallel = 'ddp'" in row.change for row in found.rows if row.placed.layout.kind == "ddp")


def test_a_study_that_does_not_fit_as_written_is_told_the_smallest_change_that_does(cli):
    path = ROOT / "studies" / "embedding-norm-124m.toml"
    found = outlook(load_study(path), parse_hardware("8xl4"))
    assert found.written is None
    assert found.sooner.change == "execution.activation_checkpointing = true"
    out = " ".join(cli("plan", path, "--hardware", "8xl4")[1].split())
    assert f"does not fit; with {found.sooner.change}, another study:" in out


def test_fsdp_is_no_layout_for_a_study_with_probes(cli):
    path = ROOT / "studies" / "quick.toml"
    found = outlook(load_study(path), parse_hardware("8xh100"))
    assert not any(row.placed.layout.kind == "fsdp" for row in found.rows)
    assert [(one.kinds, one.gpus) for one in found.impossible if "[probes]" in one.why] == [("fsdp", 8)]


def test_what_seeds_see_is_said_at_the_level_of_the_studys_tests(cli):
    _, out, _ = cli("plan", ROOT / "studies" / "embedding-norm-124m.toml", "--hardware", "8xh100")
    row = next(line for line in out.splitlines() if line.startswith("5 planned"))
    assert row.replace("SD", "").split()[-1] == f"{detectable_effect(5, alpha=0.05 / 3):.2f}"
    assert "power at level 0.017" in " ".join(out.split())
    _, out, _ = cli("plan", ROOT / "studies" / "embedding-norm-124m.toml", "--hardware", "8xh100", "--sd", "0.01")
    row = next(line for line in out.splitlines() if line.startswith("5 planned"))
    assert float(row.split()[-1]) == pytest.approx(0.01 * detectable_effect(5, alpha=0.05 / 3), abs=5e-5)
    _, out, _ = cli("plan", ROOT / "studies" / "quick.toml", "--hardware", "8xh100", "--set", "criteria=[]")
    assert "power at level 0.050" in out


@pytest.mark.parametrize(
    ("text", "count", "name"),
    [
        ("64xh100", 64, "h100"),
        ("h200", 1, "h200"),
        (" 8 x A100-80 ", 8, "a100-80"),
        ("a100", 1, "a100-40"),
        ("t4", 1, "t4"),
    ],
)
def test_hardware_is_a_number_and_a_name(text, count, name):
    found = parse_hardware(text)
    assert (found.count, found.kind.name) == (count, name)


def test_a_gpu_without_bf16_units_is_planned_at_its_fp32_rate():
    t4 = ACCELERATORS["t4"]
    assert t4.peak("bf16") == t4.peak("tf32") == t4.peak("fp32") == 8.1e12
    chosen = outlook(load_study(ROOT / "studies" / "quick.toml", ["training.precision='auto'"]), parse_hardware("t4"))
    assert chosen.precisions == ["fp32"]


def test_a_precision_that_a_gpu_lacks_is_refused_as_it_would_be_there():
    study = load_study(ROOT / "studies" / "quick.toml", ["training.precision='bf16'"])
    with pytest.raises(PlanError, match="NVIDIA T4 has no bf16; use 'fp32' or 'auto'"):
        outlook(study, parse_hardware("t4"))
    assert outlook(study, parse_hardware("l4")).precisions == ["bf16"]


@pytest.mark.parametrize(("hardware", "rate"), [("t4", "8.10 TFLOP/s in fp32"), ("a100", "19.5 TFLOP/s in fp32")])
def test_the_assumed_rate_is_that_of_the_studys_precision(cli, hardware, rate):
    output = cli("plan", ROOT / "studies" / "replication-final.toml", "--hardware", hardware)[1]
    assert rate in output
    assert "bf16" not in output


def test_hardware_that_is_none_is_named_with_what_there_is():
    with pytest.raises(AblationLabError, match="h100"):
        parse_hardware("8xh10")
    for text in ("", "0xh100", "8x", "8 of h100 please"):
        with pytest.raises(AblationLabError):
            parse_hardware(text)


def test_a_budget_is_hours_or_money():
    assert budget_hours("3,000", 3.0) == 3000
    assert budget_hours("$9000", 3.0) == 3000
    for text in ("", "much", "-5", "$0"):
        with pytest.raises(AblationLabError, match="--budget"):
            budget_hours(text, 3.0)


def test_a_seed_more_of_a_swept_study_costs_its_runs_at_every_rate():
    study = ROOT / "studies" / "winners.toml"
    changes = ["execution.stack_width=1"], ["execution.stack_width=1", "seeds={first=4511,count=9}"]
    less, more = (outlook(load_study(study, one), parse_hardware("h200")).written for one in changes)
    assert more.gpu_hours - less.gpu_hours == pytest.approx(less.seed_hours, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "hardware", "compared", "gate"), [("124m", "8xh100", 20, 5), ("1b3", "64xh100", 12, 3)]
)
def test_the_large_studies_are_whole_and_fit(name, hardware, compared, gate):
    study = load_study(ROOT / "studies" / f"embedding-norm-{name}.toml")
    found = outlook(study, parse_hardware(hardware))
    roles = [run.role for run in found.cells]
    assert (roles.count("compared"), roles.count("gate"), len(roles)) == (compared, gate, compared + gate)
    assert "layernorm-token" in study.variants
    best = found.written
    assert best is not None
    flops = sum(run.budget.matmul_flops for run in found.cells)
    assert best.gpu_hours * 3600 * H100.bf16 * best.placed.utilization == pytest.approx(flops, rel=0.01)
    assert best.wall_hours >= best.gpu_hours / found.hardware.count
    # The header tells what the command printed.
    head = (ROOT / "studies" / f"embedding-norm-{name}.toml").read_text().split("\n\n")[0].replace("\n#", "")
    assert f"{best.gpu_hours:,.0f}" in " ".join(head.split())


def test_plan_for_hardware_prints_and_seals_nothing(cli, tmp_path):
    study = ROOT / "studies" / "embedding-norm-124m.toml"
    code, out, err = cli(
        "plan", study, "--hardware", "8xh100", "--budget", "$1000", "--sd", "0.004", "--out", tmp_path / "r"
    )
    assert code == 0, err
    assert not (tmp_path / "r").exists()
    assert not (tmp_path / "results").exists()
    for word in (
        "ddp over 8",
        "fsdp over 8",
        "GPU-hours",
        " disk ",
        "budget",
        "at an SD of 0.004",
        "assumed",
    ):
        assert word in out


def test_a_budget_without_hardware_is_refused(cli):
    code, _, err = cli("plan", ROOT / "studies" / "quick.toml", "--budget", "100")
    assert code == 2
    assert "--budget belongs to --hardware" in err


def test_the_benchmark_runs_and_its_fit_finds_the_constants_it_is_given(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("gpu_estimates", ROOT / "benchmarks" / "gpu_estimates.py")
    bench = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_estimates", bench)
    spec.loader.exec_module(bench)
    shapes = [
        Shape(validated(ModelConfig, table), samples, runs) for table, samples, runs in bench.CONFIGURATIONS.values()
    ]
    fit = bench.fitted(shapes, [shape.seconds(H200) for shape in shapes], H200)
    for name in ("linear", "attention", "bytes", "launch"):
        assert fit[name] == pytest.approx(getattr(CALIBRATION, name), rel=1e-3)
    from conftest import torch_as_it_was

    monkeypatch.setattr(bench, "SECONDS_A_ROUND", 0.01)
    with torch_as_it_was():
        bench.main(["--tiny", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "gpu_estimates.json").read_text())["rows"]
    assert [row["runs"] for row in rows] == [1, 3, 1]
    assert all(row["seconds"] > 0 for row in rows)


def test_an_optimizer_costs_the_memory_and_the_time_that_it_takes():
    adamw, lion, muon = (
        Shape(model("char-mini"), 16, 15, "bf16", TrainingConfig(steps=10, optimizer=name))
        for name in ("adamw", "lion", "muon")
    )
    averaged = Shape(model("char-mini"), 16, 15, "bf16", TrainingConfig(steps=10, ema=0.9))
    parameters = parameter_count(model("char-mini"))
    assert adamw.stack_memory() == Shape(model("char-mini"), 16, 15).stack_memory()
    assert adamw.stack_memory() - lion.stack_memory() == 2 * 15 * 4 * parameters
    assert averaged.stack_memory() - adamw.stack_memory() == 2 * 15 * 4 * parameters

    plain, signs, orthogonal = (shape.seconds(H200) for shape in (adamw, lion, muon))
    assert plain < signs < orthogonal < 1.6 * plain


@pytest.mark.parametrize(("text", "guess"), [("t5", "'t4'"), ("8xh20", "'h200'"), ("a10", "'a100'")])
def test_a_near_match_of_hardware_is_named_though_its_name_is_short(text, guess):
    with pytest.raises(AblationLabError, match=f"unknown; did you mean {guess}"):
        parse_hardware(text)
