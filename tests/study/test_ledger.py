from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ablationlab.core.errors import MismatchError
from ablationlab.data.corpus import load_corpus
from ablationlab.model.parameters import parameters
from ablationlab.model.weights import weight_digest
from ablationlab.records.environment import Drift
from ablationlab.records.plan import Declaration, Plan
from ablationlab.records.results import read_runs
from ablationlab.records.run import Divergence, Result, RunRecord, Start, Timing
from ablationlab.records.seal import seal_run
from ablationlab.records.storage import ResultsFolder
from ablationlab.stats.spikes import measure_curve
from ablationlab.study.ledger import (
    check_ledger,
    environment_mismatches,
    flattened,
    record_mismatches,
    refuse,
    result_mismatches,
    setting_mismatches,
)
from ablationlab.study.load import parse_study
from ablationlab.study.plan import make_plan
from ablationlab.training.run_state import begin_record

ACCEPTED = (Drift(what="torch", sealed="1", now="2"),)


class Bench:
    """A plan and the records of its runs, as the trainer writes them; only the training itself is left out."""

    def __init__(self, table: dict[str, Any], folder: Path) -> None:
        study = parse_study(table)
        corpus = load_corpus(study.data)
        self.plan: Plan = make_plan(study, corpus, "cpu")
        self.results = ResultsFolder(folder)
        for run in self.plan.runs:
            place = self.results.run(run.id)
            model = run.model
            digests = {p.name: weight_digest(p.draw(run.seed)) for p in parameters(model)}
            found = {"executor": "test", "environment": self.plan.environment}
            begin_record(self.plan, run, place, digests, self.plan.execution, **found)

    def record(self, variant: str, seed: int = 1) -> RunRecord:
        run = next(run for run in self.plan.runs if (run.variant, run.seed) == (variant, seed))
        return RunRecord.read(self.results.run(run.id).record)

    def finish(self, record: RunRecord, **changes: Any) -> Result:
        result = Result(
            id=record.id,
            status="finished",
            steps=record.budget.steps,
            tokens=record.budget.tokens,
            matmul_flops=record.budget.matmul_flops,
            data_order_hash=record.data_order_hash,
            divergence=None,
            metrics={"validation_loss": 3.0},
            course=measure_curve({}, spike_threshold=7.0),
            checkpoint="step-00000012",
            weights_sha256="",
            timing=Timing(train_seconds=1, tokens_per_second=1, starts=1),
            finished="",
        ).model_copy(update=changes)
        folder = self.results.run(record.id)
        seal_run(folder, record.id, record.plan_hash, {}, result.to_bytes())
        result.create(folder.result)
        return result


@pytest.fixture
def bench(study_table, tmp_path) -> Bench:
    return Bench(study_table(), tmp_path / "out")


def remade(run, **parts):
    """A copy of a planned or recorded run with parts of its recipe replaced."""
    return run.model_copy(update={"recipe": run.recipe.model_copy(update=parts)})


def test_tables_are_flattened_to_dotted_keys():
    assert flattened({"a": 1, "b": {"c": {"d": 2}, "e": [3]}}) == {"a": 1, "b.c.d": 2, "b.e": [3]}


@pytest.mark.parametrize("variant", ["layernorm", "rmsnorm"])
def test_arms_that_differ_as_declared_match(bench, variant):
    assert record_mismatches(bench.record(variant), bench.record("none")) == []
    assert record_mismatches(bench.record("layernorm"), bench.record("rmsnorm")) == []


def test_every_shipped_variant_matches_the_baseline(study_table, tmp_path):
    from ablationlab.study.variants import VARIANTS

    bench = Bench(study_table({"variants": list(VARIANTS), "seeds": [1]}), tmp_path / "out")
    for name in VARIANTS:
        assert record_mismatches(bench.record(name), bench.record("none")) == [], name


def test_exchangeable_arms_match_and_an_undeclared_redraw_does_not(study_table, tmp_path):
    tables = {"none": {}, "redrawn": {"model": {"redraw": 1}}, "redrawn-2": {"model": {"redraw": 2}}}
    bench = Bench(study_table({"variants": tables}), tmp_path / "out")
    base, one, two = (bench.record(name) for name in ("none", "redrawn", "redrawn-2"))
    assert record_mismatches(one, base) == record_mismatches(two, base) == record_mismatches(one, two) == []
    assert one.shared_init_hash == base.shared_init_hash, "over all that no arm redraws"
    hidden = [one.model_copy(update={"declares": Declaration()}) for one in (one, base)]
    found = record_mismatches(*hidden)
    assert "model.redraw: 1 against 0" in found
    redrawn = [line for line in found if line.startswith("initial value of ")]
    assert redrawn == [f"initial value of blocks.0.mlp.{part}.weight differs" for part in ("down", "up")]
    more = one.model_copy(update={"initial_weights": one.initial_weights | {"tok.weight": "00"}})
    assert record_mismatches(more, base) == ["initial value of tok.weight differs"], "more than it declared"


MISMATCHES: list[tuple[str, dict[str, Any], str]] = [
    ("model", {"dropout": 0.1}, "model.dropout: 0.1 against 0.0"),
    ("model", {"tied": False}, "model.tied: False against True"),
    ("training", {"eps": 1e-7}, "training.eps: 1e-07 against 1e-08"),
    ("training", {"betas": (0.9, 0.99)}, "training.betas: [0.9, 0.99] against [0.9, 0.95]"),
    ("budget", {"steps": 13}, "budget.steps: 13 against 12"),
    ("budget", {"tokens": 1000}, "budget.tokens: 1,000 against 768"),
    ("corpus", {"tokens_sha256": "00"}, "corpus differs"),
    ("execution", {"precision": "bf16"}, "execution differs"),
    ("execution", {"stack_width": 3}, "execution differs"),
    ("execution", {"threads": 2}, "execution differs"),
    ("execution", {"ranks": 2}, "execution differs"),
    ("execution", {"parallel": "fsdp"}, "execution differs"),
    ("training", {"micro_batch": 2}, "training.micro_batch: 2 against None"),
    ("environment", {"versions": {"torch": "1.0"}}, "library or code versions differ"),
    ("environment", {"code_hash": "00"}, "library or code versions differ"),
    ("initial_weights", {"blocks.0.attn.qkv.weight": "00"}, "initial value of blocks.0.attn.qkv.weight differs"),
    ("initial_weights", {"extra.weight": "00"}, "initial value of extra.weight differs"),
]


@pytest.mark.parametrize(("part", "fields", "named"), MISMATCHES, ids=[named for *_, named in MISMATCHES])
def test_what_no_variant_declared_is_named(bench, part, fields, named):
    arm, base = bench.record("layernorm"), bench.record("none")
    old = getattr(arm, part)
    new = {**old, **fields} if isinstance(old, dict) else old.model_copy(update=fields)
    changed = (
        remade(arm, **{part: new}) if part in ("model", "training", "budget") else arm.model_copy(update={part: new})
    )
    assert record_mismatches(changed, base) == [named]
    # Of a reused run the plan may be another, and nothing else.
    earlier = base.model_copy(update={"plan_hash": "00", "shared_init_hash": "00"})
    assert record_mismatches(changed, earlier, reused=True) == [named]
    assert record_mismatches(arm, earlier, reused=True) == []


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"seed": 2}, "seed: 2 against 1"),
        ({"regime": "hot"}, "regime: 'hot' against 'default'"),
        ({"data_order_hash": "00"}, "data_order_hash differs"),
        ({"shared_init_hash": "00"}, "shared_init_hash differs"),
        ({"plan_hash": "00"}, "plan_hash differs"),
    ],
)
def test_a_run_of_another_seed_regime_order_or_plan_is_named(bench, fields, named):
    arm = bench.record("layernorm").model_copy(update=fields)
    assert record_mismatches(arm, bench.record("none")) == [named]


def test_a_run_at_another_rate_is_named(bench):
    arm = bench.record("layernorm")
    hot = remade(arm, training=arm.training.changed(lr=0.5))
    assert record_mismatches(hot, bench.record("none")) == ["training.lr: 0.5 against 0.001"]


def test_two_seeds_differ_in_their_data_and_in_every_drawn_parameter(bench):
    found = record_mismatches(bench.record("none", 1), bench.record("none", 2))
    assert "seed: 1 against 2" in found
    assert "data_order_hash differs" in found
    assert "initial value of tok.weight differs" in found
    assert "initial value of final_norm.gain differs" not in found


def test_a_preset_is_only_a_name(bench):
    run = bench.plan.runs[0]
    named = remade(run, model=run.model.changed(preset="char-mini"))
    assert setting_mismatches(named, run, [Declaration()]) == []


def test_a_declaration_covers_its_table_and_not_its_neighbours(bench):
    by_variant = {run.variant: run for run in bench.plan.runs if run.seed == 1}
    arm, base = by_variant["layernorm"], by_variant["none"]
    undeclared = setting_mismatches(arm, base, [Declaration(settings=("model.fron", "model.tied"))])
    assert "model.front.norm: 'layernorm' against 'none'" in undeclared
    assert setting_mismatches(arm, base, [Declaration(settings=("model.front",))]) == []


def test_refusing_names_both_runs_and_every_mismatch():
    refuse("a", "b", [])
    with pytest.raises(MismatchError) as caught:
        refuse("a", "b", ["seed: 1 against 2", "corpus differs"])
    assert str(caught.value) == (
        "a and b cannot be compared; they differ in what no variant declared:\n  - seed: 1 against 2\n  - corpus differs"
    )


# --- a run against its own promise ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"steps": 11}, "steps: 11 of 12"),
        ({"tokens": 700}, "tokens: 700 of 768"),
        ({"matmul_flops": 1}, "matmul_flops: 1 of "),
        ({"data_order_hash": "00"}, "the data fed differs from the data planned"),
    ],
)
def test_a_finished_run_must_have_done_what_it_promised(bench, changes, named):
    record = bench.record("none")
    found = result_mismatches(record, bench.finish(record, **changes))
    assert len(found) == 1
    assert found[0].startswith(named)


def test_a_diverged_run_may_end_early(bench):
    record = bench.record("none")
    cut = {"status": "diverged", "steps": 3, "tokens": 192, "divergence": Divergence.of(3, "loss", float("nan"))}
    assert result_mismatches(record, bench.finish(record, **cut)) == []


# --- a whole study ----------------------------------------------------------------------------------------


def test_the_ledger_counts_the_pairs_that_match(bench):
    assert check_ledger(bench.plan, read_runs(bench.plan, bench.results)) == 0
    bench.finish(bench.record("layernorm", 1))
    assert check_ledger(bench.plan, read_runs(bench.plan, bench.results)) == 0, "no baseline yet"
    bench.finish(bench.record("none", 1))
    assert check_ledger(bench.plan, read_runs(bench.plan, bench.results)) == 1
    for variant, seed in (("rmsnorm", 1), ("none", 2), ("layernorm", 2), ("rmsnorm", 2)):
        bench.finish(bench.record(variant, seed))
    assert check_ledger(bench.plan, read_runs(bench.plan, bench.results)) == 4


def test_the_ledger_refuses_a_pair_that_does_not_match(bench):
    for variant in ("none", "layernorm"):
        bench.finish(bench.record(variant))
    record = bench.record("layernorm")
    changed = remade(record, training=record.training.changed(weight_decay=0.0))
    changed.replace(bench.results.run(record.id).record)
    bench.results.run(record.id).result.unlink()
    bench.finish(changed)
    with pytest.raises(MismatchError) as caught:
        check_ledger(bench.plan, read_runs(bench.plan, bench.results))
    assert f"{record.id} and {bench.record('none').id} cannot be compared" in str(caught.value)
    assert "training.weight_decay: 0.0 against 0.1" in str(caught.value)


def test_the_ledger_refuses_a_run_that_was_fed_other_data(bench):
    record = bench.record("none")
    bench.finish(record, data_order_hash="00")
    with pytest.raises(MismatchError, match=f"the record of {record.id} and its result cannot be compared"):
        check_ledger(bench.plan, read_runs(bench.plan, bench.results))


def test_the_ledger_refuses_runs_that_were_made_under_another_plan(bench, study_table, tmp_path):
    other = Bench(study_table({"execution.threads": 2}), tmp_path / "other")
    assert other.plan.plan_hash != bench.plan.plan_hash
    for variant in ("none", "layernorm"):
        other.finish(other.record(variant))
    with pytest.raises(MismatchError, match="plan"):
        check_ledger(bench.plan, read_runs(bench.plan, other.results))


def test_the_status_of_a_run_is_read_from_its_files(bench):
    from ablationlab.records.run import METRICS_HEADER, StepLine
    from ablationlab.records.storage import Lock

    first, second, third = bench.plan.runs[:3]
    lines = [StepLine(step=k, loss=3, lr=1e-3, gradient_norm=1, tokens=64 * k).to_line() for k in (1, 2, 3)]
    bench.results.run(first.id).metrics.write_text(METRICS_HEADER + "".join(lines) + '{"step":4')
    bench.results.run(second.id).record.unlink()
    bench.finish(RunRecord.read(bench.results.run(third.id).record))
    by_id = {status.id: status for status in read_runs(bench.plan, bench.results)}
    assert (by_id[first.id].state, by_id[first.id].step, by_id[first.id].steps) == ("started", 3, 12)
    assert (by_id[second.id].state, by_id[second.id].step) == ("waiting", 0)
    assert (by_id[third.id].state, by_id[third.id].step) == ("finished", 12)
    lock = Lock(bench.results.stack_lock(first.stack))
    assert lock.acquire()
    assert {s.id: s.state for s in read_runs(bench.plan, bench.results)}[first.id] == "running"
    lock.release()


def _start(**changes: Any) -> Start:
    calm: dict[str, Any] = {
        "step": 0,
        "versions": {"torch": "2"},
        "code_hash": "a",
        "processor": "p",
        "device_name": "d",
        "threads": 1,
        "drift": (),
    }
    return Start(**{**calm, **changes})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"code_hash": "b"}, ["library or code versions differ"]),
        ({"versions": {"torch": "3"}}, ["library or code versions differ"]),
        ({"threads": 2}, ["device or threads differ"]),
        ({"device_name": "other"}, ["device or threads differ"]),
        ({"ranks": 2}, ["ranks or their parallel layout differ"]),
        ({"ranks": 2, "drift": ACCEPTED}, []),
        ({"step": 6}, []),
        ({"code_hash": "b", "drift": ACCEPTED}, []),
    ],
)
def test_a_run_that_went_on_in_another_environment_matches_no_other_unless_that_was_accepted(bench, change, said):
    calm = bench.finish(bench.record("none"), history=(_start(),))
    other = bench.finish(bench.record("layernorm"), history=(_start(), _start(**change)))
    assert environment_mismatches(other, calm) == said


def test_accepted_drift_covers_the_number_of_ranks_and_nothing_else_of_the_execution(bench):
    arm, base = bench.record("layernorm"), bench.record("none")
    spread = arm.execution.over(("ddp", 2, False))
    moved = arm.model_copy(update={"execution": spread, "drift": ACCEPTED})
    assert record_mismatches(moved, base) == []
    slower = moved.model_copy(update={"execution": spread.model_copy(update={"threads": 9})})
    assert record_mismatches(slower, base) == ["execution differs"]


def test_activation_checkpointing_of_a_start_is_compared(study_table, tmp_path):
    bench = Bench(study_table(), tmp_path)
    record = bench.record("none")
    environment = bench.plan.environment
    start = Start(
        step=0,
        versions=environment.versions,
        code_hash=environment.code_hash,
        processor=environment.processor,
        device_name="here",
        threads=1,
        parallel="fsdp",
        ranks=2,
        activation_checkpointing=True,
        drift=(),
    )

    def ended(*starts: Start) -> Result:
        bench.results.run(record.id).result.unlink(missing_ok=True)
        return bench.finish(record, history=starts)

    kept = start.model_copy(update={"activation_checkpointing": False})
    assert environment_mismatches(ended(start), ended(start)) == []
    assert environment_mismatches(ended(start), ended(kept)) == ["ranks or their parallel layout differ"]
