from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ablationlab.core.errors import DataError, OutOfMemory, PlanError, RecordError, StudyError
from ablationlab.data.corpus import load_corpus
from ablationlab.model.rules import step_flops
from ablationlab.records.plan import Plan
from ablationlab.records.settings import PRESETS, ModelConfig, TrainingConfig, validated
from ablationlab.records.storage import ResultsFolder
from ablationlab.report.terminal.planned import precisions
from ablationlab.study.ledger import setting_mismatches
from ablationlab.study.load import load_study, parse_study
from ablationlab.study.places import default_folder
from ablationlab.study.plan import (
    STACK_MEMORY,
    WIDEST_STACK,
    best_width,
    make_plan,
    open_plan,
    plan_drift,
    run_bytes,
    run_count,
    seal_plan,
    step_overhead,
)


@pytest.fixture
def plan_of(study_table) -> Callable[..., Plan]:
    """A function making the plan of the tiny study, with dotted keys changed."""

    def make(changes: dict | None = None, workers: int | None = None) -> Plan:
        study = parse_study(study_table(changes))
        return make_plan(study, load_corpus(study.data), "cpu", workers)

    return make


def ids(plan: Plan) -> set[str]:
    return {run.id for run in plan.runs}


def test_more_runs_than_a_plan_holds_are_refused_before_any_is_made(plan_of):
    with pytest.raises(PlanError, match=r"about 60,000 runs; a study may have 20,000"):
        plan_of({"seeds": {"first": 1, "count": 20_000}})


def test_a_model_larger_than_memory_is_refused_with_both_sizes(plan_of, monkeypatch):
    monkeypatch.setattr("ablationlab.model.machine.usable_memory", lambda: 60_000)
    with pytest.raises(OutOfMemory, match=r"4,160 parameters per run need 66\.6\skB .* this machine has 60\.0\skB"):
        plan_of()


# --- which runs -------------------------------------------------------------------------------------------


def test_a_plan_has_every_variant_at_every_seed_and_regime_once(plan_of):
    plan = plan_of({"regimes": {"hot": {"training": {"lr": 0.01}}}})
    cells = [(run.regime, run.seed, run.variant) for run in plan.runs]
    assert len(cells) == len(set(cells)) == 2 * 2 * 3
    assert set(cells) == {
        (regime, seed, variant)
        for regime in ("default", "hot")
        for seed in (1, 2)
        for variant in ("none", "layernorm", "rmsnorm")
    }
    assert {run.lr for run in plan.runs if run.regime == "hot"} == {0.01}
    assert {run.lr for run in plan.runs if run.regime == "default"} == {1e-3}
    assert sorted(run_id for stack in plan.stacks for run_id in stack) == sorted(ids(plan))
    assert all(plan.stacks[run.stack][run.slot] == run.id for run in plan.runs)


def test_an_id_is_readable_and_unique(plan_of):
    plan = plan_of({"regimes": {"hot": {"training": {"lr": 0.01}}}})
    assert len(ids(plan)) == len(plan.runs)
    assert any(re.fullmatch(r"layernorm-s2-[0-9a-f]{8}", run_id) for run_id in ids(plan))
    assert any(re.fullmatch(r"hot-none-s1-[0-9a-f]{8}", run_id) for run_id in ids(plan))
    assert plan.run(plan.runs[3].id) is plan.runs[3]


def test_two_plans_of_one_study_are_the_same_plan(plan_of):
    first, second = plan_of(), plan_of()
    assert first.sealed() == first
    assert first.model_copy(update={"created": second.created}).sealed() == second, "only the time of the seal differs"
    assert first.model_copy(update={"created": "2026-01-01T00:00:00+00:00"}).sealed().plan_hash != first.plan_hash
    assert first.runs == second.runs
    assert first.stacks == second.stacks


def test_adding_a_seed_a_variant_or_a_regime_changes_no_other_run(plan_of):
    before = {run.id: run for run in plan_of().runs}
    for changes in (
        {"seeds": [7, 1, 2]},
        {"variants": ["none", "center-only", "layernorm", "rmsnorm"]},
        {"regimes": {"hot": {"training": {"lr": 0.01}}}},
        {"question": "Something else?", "execution.checkpoint_every": 3},
    ):
        after = {run.id: run for run in plan_of(changes).runs}
        assert before.keys() <= after.keys()
        for run_id, run in before.items():
            assert run.model_copy(update={"stack": 0}) == after[run_id].model_copy(update={"stack": 0})


def test_a_setting_that_makes_other_numbers_makes_other_runs(plan_of, corpus_file):
    before = ids(plan_of())
    for changes in (
        {"training.lr": 2e-3},
        {"training.steps": 13},
        {"model.dropout": 0.1},
        {"data.validation": 0.2},
        {"seeds": [3, 4]},
    ):
        assert not before & ids(plan_of(changes)), changes
    corpus_file.write_text(corpus_file.read_text() + "One more line.\n")
    assert not before & ids(plan_of())


def test_a_token_budget_makes_the_runs_that_its_steps_would_make(plan_of):
    by_tokens = plan_of({"training.steps": ..., "training.tokens": 12 * 4 * 16})
    assert ids(by_tokens) == ids(plan_of())


# --- what they cost ---------------------------------------------------------------------------------------


def test_the_budget_is_what_the_arithmetic_says(plan_of):
    plan = plan_of()
    vocabulary, width, context = plan.corpus.vocabulary, 16, 16
    block = 4 * width + 4 * width * width + 4 * width + 8 * width * width + 5 * width  # norms, attention, MLP
    parameters = vocabulary * width + context * width + block + 2 * width
    linear = 12 * width * width + vocabulary * width
    forward = 2 * linear + 4 * context * width
    for run in plan.runs:
        extra = {"none": 0, "layernorm": 2 * width, "rmsnorm": width}[run.variant]
        assert run.budget.parameters == parameters + extra
        assert run.budget.steps == 12
        assert run.budget.tokens == 12 * 4 * 16
        assert run.budget.matmul_flops == run.budget.tokens * 3 * forward


def test_the_vocabulary_follows_the_text_unless_it_is_given(plan_of):
    assert {run.model.vocabulary for run in plan_of().runs} == {plan_of().corpus.vocabulary}
    assert {run.model.vocabulary for run in plan_of({"model.vocabulary": 64}).runs} == {64}
    with pytest.raises(PlanError) as caught:
        plan_of({"model.vocabulary": 3})
    assert "model.vocabulary = 3, but the char tokenizer" in str(caught.value)
    assert f"has {plan_of().corpus.vocabulary} tokens; leave it out" in str(caught.value)


def test_a_context_longer_than_the_held_out_text_is_refused(plan_of):
    with pytest.raises(DataError, match=r"its validation part has \d+ tokens, but one context needs 5000 \+ 1"):
        plan_of({"model.context": 5000})


# --- how they are stacked ---------------------------------------------------------------------------------


def test_on_a_cpu_every_run_is_a_stack_of_its_own(plan_of):
    plan = plan_of()
    assert plan.execution.stack_width == 1
    assert [len(stack) for stack in plan.stacks] == [1] * 6
    assert (plan.execution.device, plan.execution.precision, plan.execution.threads) == ("cpu", "fp32", 1)


def test_a_stack_holds_runs_of_one_shape_with_those_of_a_variant_side_by_side(plan_of):
    plan = plan_of(
        {
            "execution.stack_width": 4,
            "variants": ["none", "layernorm", "untied"],
            "regimes": {"hot": {"training": {"lr": 0.01}}, "long": {"training": {"steps": 20}}},
        }
    )
    assert plan.execution.stack_width == 4
    assert sum(map(len, plan.stacks)) == len(plan.runs) == 18
    for stack in plan.stacks:
        members = [plan.run(run_id) for run_id in stack]
        assert len(members) <= 4
        assert len({(run.model.tied, run.budget.steps) for run in members}) == 1
        variants = [run.variant for run in members]
        assert variants == sorted(variants, key=["none", "layernorm", "untied"].index)


def test_threads_are_shared_out_among_the_workers_asked_for(plan_of, monkeypatch):
    monkeypatch.setattr("ablationlab.study.plan.usable_cores", lambda: 8)
    assert plan_of({"execution.threads": "auto"}, workers=2).execution.threads == 4
    assert plan_of({"execution.threads": "auto"}, workers=8).execution.threads == 1, "6 stacks keep 6 busy"
    assert plan_of({"execution.threads": 3}, workers=2).execution.threads == 3


def test_a_regime_may_have_a_precision_of_its_own_and_its_arms_and_stacks_share_it(plan_of):
    plan = plan_of({"regimes": {"low": {"training": {"precision": "bf16"}}}, "execution.stack_width": 4})
    assert plan.execution.precision == "fp32"
    for run in plan.runs:
        wanted = "bf16" if run.regime == "low" else "fp32"
        assert plan.execution_of(run).precision == run.training.precision == wanted
        assert plan.execution_of(run).model_copy(update={"precision": "fp32"}) == plan.execution
    for stack in plan.stacks:
        assert len({plan.run(run_id).training.precision for run_id in stack}) == 1


def test_a_precision_that_the_device_lacks_is_refused_in_a_regime_too(plan_of):
    with pytest.raises(PlanError, match="tf32"):
        plan_of({"regimes": {"low": {"training": {"precision": "tf32"}}}})


def test_a_plan_without_the_same_bits_twice_is_another_plan_and_says_so(plan_of):
    usual, free = plan_of(), plan_of({"execution.deterministic": False})
    assert usual.study_hash != free.study_hash
    assert "deterministic" not in precisions(usual)
    assert precisions(free) == f"{precisions(usual)}, not the same bits twice (deterministic = false)"


# --- sweeps -----------------------------------------------------------------------------------------------

SWEEP = {"lr": [1e-3, 1e-2, 1e-1], "selection_seeds": [8, 9]}


def test_a_sweep_trains_every_variant_at_every_rate_on_every_seed_once(plan_of):
    plan = plan_of({"sweep": SWEEP})
    cells = [(run.variant, run.lr, run.seed) for run in plan.runs]
    assert len(cells) == len(set(cells)) == 3 * 3 * 4
    assert {run.regime for run in plan.runs} == {"default"}


def test_the_study_s_own_runs_are_part_of_the_sweep_and_keep_their_names(plan_of):
    alone, plan = plan_of(), plan_of({"sweep": SWEEP})
    assert ids(alone) < ids(plan), "lr = 1e-3 on seeds 1 and 2 is the study itself: trained once"
    assert any(re.fullmatch(r"layernorm-lr0\.01-s2-[0-9a-f]{8}", run_id) for run_id in ids(plan))
    assert any(re.fullmatch(r"none-lr0\.001-s9-[0-9a-f]{8}", run_id) for run_id in ids(plan))


@pytest.mark.parametrize(
    ("changes", "runs"),
    [
        ({}, 6),
        ({"regimes": {"hot": {"training": {"lr": 0.1}}}, "evaluation.gate_seeds": [11, 12, 13]}, 18),
        ({"sweep": SWEEP}, 36),
        ({"sweep": {"lr": [1e-2, 1e-1], "seeds": [2, 5]}}, 18),
        ({"noise": {"init": [1, 2], "data": [1, 3]}}, 15),
    ],
)
def test_runs_are_counted_without_being_made(plan_of, study_table, changes, runs):
    assert run_count(parse_study(study_table(changes))) == len(plan_of(changes).runs) == runs


def test_a_sweep_may_have_seeds_of_its_own(plan_of):
    plan = plan_of({"sweep": {"lr": [1e-2, 1e-1], "seeds": [5, 6, 7]}})
    assert {run.seed for run in plan.runs if run.lr != 1e-3} == {5, 6, 7}
    assert {run.seed for run in plan.runs if run.lr == 1e-3} == {1, 2}


@pytest.mark.parametrize(("width", "lengths"), [(4, [4, 4, 4, 4, 2]), (6, [6, 6, 6]), (13, [13, 5]), (18, [18])])
def test_a_sweep_fills_stacks_in_which_runs_of_one_variant_stand_together(plan_of, width, lengths):
    plan = plan_of({"sweep": {"lr": [1e-2, 1e-1], "seeds": [5, 6, 7]}, "execution.stack_width": width})
    swept = [stack for stack in plan.stacks if plan.run(stack[0]).lr != 1e-3]
    assert [len(stack) for stack in swept] == lengths
    for stack in plan.stacks:
        variants = [plan.run(run_id).variant for run_id in stack]
        assert len([v for v, before in zip(variants, [None, *variants], strict=False) if v != before]) == len(
            set(variants)
        ), "runs of one variant stand together"


# Of a step of the default study.
FLOPS = 2.27e10


def test_a_sweep_of_8_rates_3_variants_and_5_seeds_is_hardly_padded(plan_of):
    width = best_width([(8 * 3 * 5, FLOPS)])
    rates = [1e-4 * 2**n for n in range(8)]
    plan = plan_of({"sweep": {"lr": rates, "seeds": [5, 6, 7, 8, 9]}, "execution.stack_width": width})
    swept = [stack for stack in plan.stacks if plan.run(stack[0]).seed >= 5]
    assert sum(map(len, swept)) == 120
    assert len(swept) * width <= 1.05 * 120


@pytest.mark.parametrize("groups", [[15], [20], [120, 20], [40, 15], [17], [360], [3, 50, 7]])
def test_no_other_width_takes_less_time_by_the_same_arithmetic(groups):
    def time(width: int) -> float:
        padded = sum(-(-runs // width) * width for runs in groups)
        return padded * (1 + step_overhead(FLOPS) / width)

    chosen = best_width([(runs, FLOPS) for runs in groups])
    assert chosen <= min(max(groups), WIDEST_STACK)
    assert time(chosen) == pytest.approx(min(time(width) for width in range(1, min(max(groups), WIDEST_STACK) + 1)))


def test_runs_whose_steps_cost_most_decide_the_width():
    """A padded run of a large model costs more than one of a small model."""
    assert best_width([(7, 1e12), (16, 1e9)]) == 7
    assert best_width([(7, 1e9), (16, 1e12)]) == 16


#: Tokens per second and GB of stacks of 1, 2, 4 .. runs on one H200, bf16, 16 sequences per batch (benchmarks/README.md).
MEASURED = {
    "char-mini": (
        [1887577, 3259234, 5102308, 7111238, 8426952, 9347810, 9942621, 10441300, 10728010],
        [0.30, 0.50, 0.82, 1.41, 2.50, 4.62, 8.80, 17.08, 33.58],
    ),
    "ladder-1.6m": (
        [3039789, 4304486, 5820731, 7024798, 7918308, 8610358, 9011677, 9245717, 9365372],
        [0.96, 1.20, 1.63, 2.39, 3.87, 6.76, 12.45, 23.78, 46.38],
    ),
    "ladder-6m": (
        [1893473, 2587742, 2984087, 3378736, 3667434, 3866434, 3970442, 4011491],
        [1.90, 2.48, 3.57, 5.68, 9.83, 18.07, 34.47, 67.23],
    ),
    "ladder-25m": ([772829, 922456, 1062341, 1150305, 1202009], [3.61, 5.32, 8.69, 15.26, 28.47]),
}


@pytest.mark.parametrize("preset", MEASURED)
def test_the_width_of_a_plan_is_within_a_tenth_of_the_fastest_that_was_measured(preset):
    rates, held = MEASURED[preset]
    model = validated(ModelConfig, {"preset": preset})
    model = model if model.vocabulary is not None else model.changed(vocabulary=65)
    training = TrainingConfig(steps=1000, batch=16, precision="bf16")
    flops = step_flops(model, training)
    widest = min(WIDEST_STACK, int(STACK_MEMORY * 141e9 / run_bytes(model, training)))
    chosen = best_width([(2 ** (len(rates) - 1), flops)], widest)
    assert chosen & (chosen - 1) == 0  # a width of the table
    assert rates[chosen.bit_length() - 1] > 0.9 * max(rates)
    for power, rate in enumerate(rates):  # what a step takes: so many runs and the overhead
        width = 2**power
        seconds = width * 16 * model.context / rate
        widest_seconds = 2 ** (len(rates) - 1) * 16 * model.context / rates[-1]
        expected = widest_seconds * (width + step_overhead(flops)) / (2 ** (len(rates) - 1) + step_overhead(flops))
        assert seconds == pytest.approx(expected, rel=0.4 if width < 4 else 0.1)
    added = (held[-1] - held[-2]) * 1e9 / 2 ** (len(held) - 2)
    assert added < run_bytes(model, training) < 2 * added


# --- arms that differ in something undeclared -------------------------------------------------------------


def test_arms_that_differ_in_what_no_table_writes_are_refused(plan_of):
    plan = plan_of({"variants": ["none", "layernorm"]})
    arm, base = (next(run for run in plan.runs if run.variant == name) for name in ("layernorm", "none"))
    recipe = arm.recipe.model_copy(update={"model": arm.model.changed(dropout=0.1)})
    undeclared = arm.model_copy(update={"recipe": recipe})
    found = setting_mismatches(undeclared, base, [plan.variants["layernorm"], plan.variants["none"]])
    assert found == ["model.dropout: 0.1 against 0.0"]


def test_a_variant_whose_tokens_cost_more_is_planned_and_declares_it(plan_of):
    plan = plan_of({"variants": {"none": {}, "deep": {"model": {"layers": 2}}}})
    flops = {run.variant: run.budget.matmul_flops for run in plan.runs}
    assert flops["deep"] > flops["none"]
    assert [plan.variants[name].flops for name in ("none", "deep")] == [False, True]


def test_muons_products_count_and_its_arm_declares_them(plan_of):
    """Newton-Schulz on queries, keys, values and out, 16 x 16, up 16 x 64 and down 64 x 16: five times 4 A²B + 2 A³ each."""
    tables = {"none": {}, "muon": {"training": {"optimizer": "muon", "lr": 0.01}}}
    tables["lion"] = {"training": {"optimizer": "lion"}}
    plan = plan_of({"variants": tables})
    budgets = {run.variant: run.budget for run in plan.runs}
    update = 5 * sum(4 * 16**2 * long + 2 * 16**3 for long in (16, 16, 16, 16, 64, 64))
    assert budgets["muon"].matmul_flops - budgets["none"].matmul_flops == 12 * update
    assert budgets["lion"].matmul_flops == budgets["none"].matmul_flops
    assert {name: plan.variants[name].flops for name in tables} == {"none": False, "muon": True, "lion": False}
    assert plan.variants["muon"].settings == ("training.optimizer", "training.lr")
    matched = plan_of({"variants": tables, "budget.match": "flops"})
    steps = {run.variant: run.budget.steps for run in matched.runs}
    assert steps["none"] == steps["lion"] == 12
    assert steps["muon"] == budgets["none"].matmul_flops // (budgets["muon"].matmul_flops // 12)


def test_an_arm_with_rates_per_group_differs_in_the_groups_that_it_writes(plan_of):
    tables = {"none": {}, "slow": {"training": {"lr_scale": {"embedding": 0.1}}}}
    plan = plan_of({"variants": tables})
    arm, base = (next(run for run in plan.runs if run.variant == name) for name in ("slow", "none"))
    assert plan.variants["slow"].settings == ("training.lr_scale.embedding",)
    other = arm.training.changed(lr_scale=arm.training.lr_scale.changed(rest=0.5))
    undeclared = arm.model_copy(update={"recipe": arm.recipe.model_copy(update={"training": other})})
    found = setting_mismatches(undeclared, base, plan.variants.values())
    assert found == ["training.lr_scale.rest: 0.5 against None"]


def test_settings_at_their_defaults_are_no_part_of_what_a_run_is(plan_of):
    written = {"training.ema": 0.0, "training.z_loss": 0.0, "training.momentum": 0.95, "training.lr_scale": {}}
    assert ids(plan_of(written)) == ids(plan_of())
    assert ids(plan_of({"training.ema": 0.9})).isdisjoint(ids(plan_of()))


def test_muon_over_shards_is_refused_when_planned(plan_of):
    tables = {"none": {}, "muon": {"training": {"optimizer": "muon"}}}
    with pytest.raises(
        PlanError, match=r"'muon' \(variant 'muon'\) needs whole matrices.*set execution\.parallel = 'ddp'"
    ):
        plan_of({"variants": tables, "execution.parallel": "fsdp"})
    assert plan_of({"variants": tables, "execution.parallel": "ddp"}).execution.stack_width == 1


def test_a_variant_with_a_budget_of_its_own_is_refused(plan_of):
    with pytest.raises(StudyError, match=r"gives this arm 1,536 tokens where \[training\] gives 768"):
        plan_of({"variants": {"none": {}, "long": {"training": {"steps": 24}}}})


def test_a_variant_that_equals_the_baseline_is_refused(plan_of):
    with pytest.raises(PlanError, match="variant 'same' changes nothing"):
        plan_of({"variants": {"none": {}, "same": {"model": {"dropout": 0.0}}}})


# --- the seal ---------------------------------------------------------------------------------------------


def test_a_sealed_plan_takes_nothing_from_the_preset_of_today(plan_of, tmp_path, monkeypatch):
    plan = plan_of({"model.preset": "char-mini"})
    sealed = json.loads(plan.model_dump_json())
    del sealed["study"]["model"]["rotary_base"]  # as if it was sealed before there was such a setting
    (tmp_path / "plan.lock").write_text(json.dumps(sealed))
    preset = PRESETS["char-mini"]
    changed = preset.model_copy(update={"shape": {**preset.shape, "rotary_base": 5.0}})
    monkeypatch.setitem(PRESETS._things, "char-mini", changed)
    assert Plan.read_with_seal(tmp_path / "plan.lock")[0].study.model.rotary_base == 10000.0


def test_a_sealed_plan_is_read_back_as_it_was_made(plan_of, tmp_path):
    plan = plan_of()
    results = ResultsFolder(tmp_path / "out")
    sealed = seal_plan(plan, results)
    # The seal is over what is written, which has no paths.
    assert sealed == plan.model_copy(update={"plan_hash": plan.kept().plan_hash})
    assert Plan.read(results.plan) == sealed
    assert open_plan(results, plan.study) == sealed


TOUCHED = [
    ("study.training.lr", 0.5),
    ("study.criteria", [{"metric": "perplexity"}]),
    ("study_hash", "00"),
    ("criteria_hash", "00"),
    ("corpus.tokens_sha256", "00"),
    ("execution.threads", 7),
    ("runs.0.seed", 9),
    ("runs.0.recipe.budget.tokens", 1),
    ("stacks.0", []),
    ("environment.versions.torch", "1.0"),
    ("created", "2001-01-01T00:00:00+00:00"),
    ("environment.git.commit", "0123"),
    ("plan_hash", "00"),
]


def touch(path: Path, key: str, value: object) -> None:
    data = json.loads(path.read_text())
    here = data
    *parents, leaf = (int(part) if part.isdigit() else part for part in key.split("."))
    for part in parents:
        here = here[part]
    assert here[leaf] != value
    here[leaf] = value
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(("key", "value"), TOUCHED, ids=[key for key, _ in TOUCHED])
def test_a_plan_that_was_changed_after_sealing_is_refused(plan_of, tmp_path, key, value):
    results = ResultsFolder(tmp_path / "out")
    plan = seal_plan(plan_of(), results)
    touch(results.plan, key, value)
    with pytest.raises(RecordError) as caught:
        open_plan(results, plan.study)
    text = (
        "was changed after it was sealed: its content does not match plan_hash. Restore it: the runs are judged by it"
    )
    assert str(caught.value) == f"{results.plan} {text}"


def test_planning_again_elsewhere_gives_another_seal_of_the_same_runs(plan_of):
    first, later = plan_of(), plan_of().model_copy(update={"created": "2999-01-01T00:00:00+00:00"}).sealed()
    assert first.plan_hash != later.plan_hash
    assert (first.runs, first.study_hash, first.criteria_hash) == (later.runs, later.study_hash, later.criteria_hash)


def test_sealing_twice_keeps_the_first_plan(plan_of, tmp_path):
    results = ResultsFolder(tmp_path / "out")
    first = seal_plan(plan_of(), results)
    content = results.plan.read_bytes()
    again = seal_plan(plan_of().model_copy(update={"created": "2999"}), results)
    assert again == first
    assert results.plan.read_bytes() == content


def test_a_folder_of_another_study_is_refused_and_left_alone(plan_of, tmp_path):
    results = ResultsFolder(tmp_path / "out")
    seal_plan(plan_of({"name": "first"}), results)
    content = results.plan.read_bytes()
    other = plan_of({"name": "second"})
    with pytest.raises(PlanError) as caught:
        seal_plan(other, results)
    text = str(caught.value)
    assert text.startswith(f"{results.path} holds another study, or this one with other settings: 'first'")
    assert "Sealed and asked for: name 'first' -> 'second'." in text
    assert "choose another folder with --out" in text
    assert results.plan.read_bytes() == content


def test_results_go_to_a_folder_of_the_study_name(study_file):
    assert default_folder(load_study(study_file({"name": "My Study, v2!"}))) == Path("results/my-study-v2")


# --- what changed since -----------------------------------------------------------------------------------


def test_nothing_has_drifted_in_the_same_process(plan_of, study_table):
    plan = plan_of()
    corpus = load_corpus(parse_study(study_table()).data)
    assert plan_drift(plan, corpus, "auto") == plan_drift(plan, corpus, "cpu") == ()


def test_another_device_or_other_data_is_refused(plan_of, study_table, corpus_file):
    plan = plan_of()
    data = parse_study(study_table()).data
    with pytest.raises(PlanError, match="sealed for cpu; make a new plan with --out to use cuda"):
        plan_drift(plan, load_corpus(data), "cuda")
    corpus_file.write_text(corpus_file.read_text().replace("model", "motel"))
    with pytest.raises(PlanError, match=r"corpus '.*corpus\.txt' has changed since the plan was sealed"):
        plan_drift(plan, load_corpus(data), "auto")


def test_other_versions_code_or_processor_are_told(plan_of, study_table):
    plan = plan_of()
    corpus = load_corpus(parse_study(study_table()).data)
    sealed = plan.environment.model_copy(
        update={
            "versions": {**plan.environment.versions, "torch": "1.0", "gone": "3"},
            "code_hash": "0" * 64,
            "processor": "abacus",
        }
    )
    lines = plan_drift(plan.model_copy(update={"environment": sealed}), corpus, "auto")
    now = plan.environment
    assert [*map(str, lines)] == [
        f"ablationlab's source 000000000000 -> {now.code_hash[:12]}",
        "gone 3 -> absent",
        f"processor abacus -> {now.processor}",
        f"torch 1.0 -> {now.versions['torch']}",
    ]


# --- which tasks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"evaluation.tasks": ["speling"]},
            "unknown task 'speling'; did you mean 'spelling'? (known: suite (last-word,",
        ),
        ({"evaluation.tasks": ["spelling", "speling"]}, "did you mean 'spelling'?"),
        ({"evaluation.tasks": ["hellaswga"]}, "did you mean 'hellaswag'?"),
        ({"evaluation.tasks": ["hellaswag"]}, "needs a context of at least 512 tokens, and these models have 128"),
        ({"evaluation.tasks": ["benchmarks"]}, "needs a context of at least 512 tokens, and these models have 128"),
        (
            {"evaluation.tasks": ["suite"], "evaluation.fewshot": [0, 5]},
            "with 5 examples: a context of 128 leaves 12 characters per item, and 22 are needed",
        ),
        (
            {"evaluation.tasks": ["spelling"], "regimes": {"short": {"model": {"context": 16}}}},
            "a context of 16 leaves 14 characters per item",
        ),
        ({"evaluation.tasks": ["./nowhere.yaml"]}, "task file ./nowhere.yaml: no such file"),
        (
            {"evaluation.tasks": ["who-speaks-next"]},
            "task 'who-speaks-next': the held-out text gives 0 items, which is too few to score",
        ),
    ],
)
def test_a_task_that_cannot_be_asked_is_refused_before_anything_is_sealed(plan_of, changes, said, monkeypatch):
    from ablationlab.tasks import request as tasks

    monkeypatch.setattr(tasks, "_harness_index", lambda: ("hellaswag", "arc_easy"))  # all of them take ten seconds
    with pytest.raises(PlanError, match=re.escape(said)):
        plan_of({"model.context": 128, **changes})


def test_tasks_that_can_be_asked_are_planned_without_the_harness(plan_of, monkeypatch):
    from ablationlab.tasks import request as tasks

    def heavy() -> None:
        raise AssertionError("the harness was asked for names that are known")

    monkeypatch.setattr(tasks, "_harness_index", heavy)
    known = ["spelling", "word-order"]
    plan = plan_of({"model.context": 128, "evaluation.tasks": known, "evaluation.fewshot": [0, 2]})
    assert plan.study.evaluation.tasks == tuple(known)
    plan_of({"model.context": 512, "evaluation.tasks": ["benchmarks"]})


def test_a_plan_sealed_with_tasks_that_would_now_be_refused_still_opens(plan_of, tmp_path):
    plan = plan_of()
    study = plan.study.changed(evaluation=plan.study.evaluation.changed(tasks=("speling",)))
    old = plan.model_copy(update={"study": study, "study_hash": study.hash}).sealed()
    folder = ResultsFolder(tmp_path / "old")
    old.create(folder.plan)
    assert open_plan(folder, study).study.evaluation.tasks == ("speling",)
