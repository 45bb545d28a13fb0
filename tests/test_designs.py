"""Studies that are trained in stages: looks, extensions, calibrated regimes. Tiny models, trained for real."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ablationlab import pipeline
from ablationlab.analysis import read_results
from ablationlab.analysis.wording import deviation
from ablationlab.cli.run import seed_numbers
from ablationlab.core.errors import AblationLabError, PlanError, StudyError
from ablationlab.core.format import plain
from ablationlab.records.analysis import DeviationCode
from ablationlab.records.plan import Look, Plan, Try
from ablationlab.records.results import Results
from ablationlab.records.settings import Study
from ablationlab.records.storage import ResultsFolder
from ablationlab.report.designs import try_line
from ablationlab.report.page.build import page_html
from ablationlab.report.paper.facts import StudyView
from ablationlab.study.calibration import next_value, settled
from ablationlab.study.load import parse_study

PRIMARY = {"metric": "validation_loss", "role": "primary", "smallest_effect": 1e-6}
LOOKS = {
    "variants": ["none", "layernorm"],
    "seeds": [1, 2, 3, 4, 5],
    "training.steps": 2,
    "training.warmup": 1,
    "criteria": [PRIMARY],
    "design": {"looks": [3, 4, 5], "futility": 0.0},
    "execution": {"stack_width": 2, "threads": 1},
}


def run(study: Study, out: Path, **options) -> list[pipeline.PipelineEvent]:
    """The events of a run to its verdict."""
    events: list[pipeline.PipelineEvent] = []
    pipeline.run(study, out, listen=events.append, device="cpu", workers=1, **options)
    return events


def losses(folder: Path) -> dict[tuple[str, int], bytes]:
    """metrics.jsonl of every run that has ended, by variant and seed."""
    return {(run.variant, run.seed): run.folder.metrics.read_bytes() for run in Results.open(folder).runs if run.done}


FIXED = {key: value for key, value in LOOKS.items() if key != "design"} | {"seeds": [1, 2, 3]}
#: At this alpha no look of a few seeds shows anything.
UNDECIDED = {**LOOKS, "criteria": [{**PRIMARY, "alpha": 1e-9}]}


# --- looks ----------------------------------------------------------------------------------------------------


def test_a_look_takes_the_first_seeds_and_the_plan_seals_those_of_all(study_table, tmp_path):
    study = parse_study(study_table(LOOKS))
    pipeline.seal(study, ResultsFolder(tmp_path), "cpu", 1)
    sealed, plan = Plan.read_sealed(tmp_path / "plan.lock"), Plan.read(tmp_path / "plan.lock")
    assert {run.seed for run in sealed.runs} == {1, 2, 3, 4, 5}
    assert plan.study.seeds == (1, 2, 3)
    assert {run.seed for run in plan.runs} == {1, 2, 3}
    assert len(plan.stacks) == len(sealed.stacks) == 5  # 6 runs by two; then 2 and 2: no stack spans two looks
    assert [bool(stack) for stack in plan.stacks] == [True, True, True, False, False]


def test_a_study_stops_at_the_look_that_decides_and_killed_between_looks_decides_alike(
    study_table, tmp_path, monkeypatch
):
    study = parse_study(study_table(LOOKS))
    # A difference at look 2: the true p-values are replaced, the rest is real.
    p_values = {1: 0.5, 2: 0.001, 3: 0.0001}
    monkeypatch.setattr(
        "ablationlab.stats.sequential.Looks.p_value", lambda self, p: min(p_values[n + 1] for n in range(len(p)))
    )
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    looks = [event.result for event in run(study, whole) if isinstance(event, pipeline.LookTaken)]
    assert [(look.number, look.seeds, look.stop) for look in looks] == [(1, 3, False), (2, 4, True)]
    assert [look.findings[0].finding for look in looks] == ["undecided", "difference"]
    assert Results.open(whole).seeds == (1, 2, 3, 4)
    assert not Results.open(whole).interim

    options = pipeline.Options(device="cpu", workers=1)
    pipeline.train(study, ResultsFolder(killed), options, lambda _: None)  # killed after training, before the look
    run(study, killed)
    assert Results.open(killed).verdict.verdicts == Results.open(whole).verdict.verdicts
    assert [look.result for look in Plan.read(killed / "plan.lock").looks] == looks
    assert losses(killed) == losses(whole)
    again = run(study, whole)  # nothing is trained again, and nothing continues
    assert not any(isinstance(event, pipeline.TrainingStarted) for event in again)
    assert Results.open(whole).seeds == (1, 2, 3, 4)


def test_runs_of_a_look_have_the_bits_of_a_fixed_design_of_the_same_width(study_table, tmp_path):
    run(parse_study(study_table(UNDECIDED)), tmp_path / "looks")
    run(parse_study(study_table({**FIXED, "seeds": [1, 2, 3, 4, 5]})), tmp_path / "fixed")
    assert len(Results.open(tmp_path / "looks").runs) == 10
    assert losses(tmp_path / "looks") == losses(tmp_path / "fixed")


def test_until_a_look_is_complete_the_answer_is_that_of_the_one_before(study_table, tmp_path):
    study = parse_study(study_table(UNDECIDED))
    results = ResultsFolder(tmp_path)
    options = pipeline.Options(device="cpu", workers=1)
    pipeline.train(study, results, options, lambda _: None)
    late = next(run for run in Plan.read(results.plan).runs if run.seed == 3)
    shutil.move(results.run(late.id).result, tmp_path / "kept.json")  # as if killed before the first look
    analysis, verdict = pipeline.conclude(tmp_path)
    assert (analysis.look, analysis.deviations[0].code) == (None, "not-a-look")
    assert {one.label for one in verdict.verdicts} == {"exploratory"}
    shutil.move(tmp_path / "kept.json", results.run(late.id).result)
    first = pipeline.conclude(tmp_path)
    assert first[0].look.number == 1
    assert {one.label for one in first[1].verdicts} == {"registered"}
    pipeline._look_taken(results, first[0].look, lambda _: None)
    assert pipeline.conclude(tmp_path) == first  # look 2 is asked for, and none of its runs has ended
    pipeline.train(study, results, options, lambda _: None)
    late = next(run for run in Plan.read(results.plan).runs if run.seed == 4)
    shutil.move(results.run(late.id).result, tmp_path / "kept.json")  # as if killed in the middle of look 2
    assert pipeline.conclude(tmp_path) == first
    shutil.move(tmp_path / "kept.json", results.run(late.id).result)
    assert pipeline.conclude(tmp_path)[0].look.number == 2
    assert [look.result.number for look in Plan.read(results.plan).looks] == [1]  # analyzing writes no look


def test_a_look_that_was_taken_on_other_records_is_refused(study_table, tmp_path):
    study = parse_study(study_table({**UNDECIDED, "seeds": [1, 2, 3, 4], "design": {"looks": [3, 4], "futility": 0.0}}))
    run(study, tmp_path)
    path = tmp_path / "looks" / "2.json"
    look = Look.read(path)
    finding = look.result.findings[0].model_copy(update={"finding": "difference"})
    changed = look.model_copy(update={"result": look.result.model_copy(update={"findings": (finding,)})})
    path.unlink()
    changed.create(path)
    with pytest.raises(AblationLabError, match="a record has changed since"):
        run(study, tmp_path)


@pytest.mark.parametrize(
    ("changes", "key", "text"),
    [
        ({"design": {"looks": [3, 4]}}, "design.looks", "one of the looks must count all 5 seeds"),
        ({"design": {"looks": [4, 3, 5]}}, "design.looks", "increasing numbers of seeds"),
        ({"design": {"looks": [2, 5]}}, "design.looks[0]", "out of range"),
        ({"criteria": [{**PRIMARY, "role": "secondary"}]}, "design", "looks need a primary criterion"),
        ({"criteria": [{**PRIMARY, "test": "sign-flip"}]}, "criteria[0].test", "looks work with Student's t only"),
        ({"sweep": {"lr": [1e-3, 2e-3]}}, "design", "a study with a [sweep] cannot have looks"),
    ],
)
def test_a_design_that_cannot_decide_is_refused_before_anything_runs(study_table, changes, key, text):
    with pytest.raises(StudyError) as refused:
        parse_study(study_table({**LOOKS, **changes}))
    assert any(problem.key == key and text in problem.message for problem in refused.value.problems)


# --- extend ---------------------------------------------------------------------------------------------------


def test_extending_reuses_every_run_keeps_the_seal_and_labels_all_exploratory(study_table, tmp_path):
    study = parse_study(study_table(FIXED))
    run(study, tmp_path)
    sealed, before = (tmp_path / "plan.lock").read_bytes(), losses(tmp_path)
    assert {one.label for one in Results.open(tmp_path).verdict.verdicts} == {"registered"}
    events: list[pipeline.PipelineEvent] = []
    pipeline.extend(tmp_path, pipeline.Options("cpu", 1), seeds=[4, 5], reason="too wide", listen=events.append)
    after = losses(tmp_path)
    assert (tmp_path / "plan.lock").read_bytes() == sealed
    assert len(after) == 10
    assert {cell: after[cell] for cell in before} == before
    results = Results.open(tmp_path, strict=True)
    assert results.sealed
    assert results.seeds == (1, 2, 3, 4, 5)
    assert not results.problems
    assert results.plan.amendments[0].seeds == (4, 5)
    assert results.plan.amendments[0].reason == "too wide"
    assert {one.label for one in results.verdict.verdicts} == {"exploratory"}
    assert "extended" in [str(one.code) for one in results.analysis.deviations]
    run(study, tmp_path)  # the study file still opens the folder, and finds nothing to train
    assert losses(tmp_path) == after
    # Bits: as if the seeds had been in the study from the start.
    run(parse_study(study_table({**FIXED, "seeds": [1, 2, 3, 4, 5]})), tmp_path / "at-once")
    assert losses(tmp_path / "at-once") == after


def test_an_added_variant_is_exploratory_and_the_registered_one_stays_as_it_was(study_table, tmp_path):
    run(parse_study(study_table(FIXED)), tmp_path)
    before = Results.open(tmp_path).analysis.comparison("validation_loss", "default", "layernorm", "none")
    pipeline.extend(tmp_path, pipeline.Options("cpu", 1), variants=["rmsnorm"], listen=lambda _: None)
    results = Results.open(tmp_path)
    assert results.analysis.comparison("validation_loss", "default", "layernorm", "none") == before
    labels = {one.variant: one.label for one in results.verdict.verdicts}
    assert labels == {"layernorm": "registered", "rmsnorm": "exploratory"}


def test_a_stopped_study_may_be_taken_to_its_next_planned_look(study_table, tmp_path):
    study = parse_study(
        study_table(
            {
                **LOOKS,
                "design": {"looks": [3, 5], "futility": 0.999},
                "criteria": [{**PRIMARY, "smallest_effect": 1e-9}],
            }
        )
    )
    taken = [event.result for event in run(study, tmp_path) if isinstance(event, pipeline.LookTaken)]
    assert taken[-1].number == 1
    assert taken[-1].findings[0].finding in ("futile", "difference")
    with pytest.raises(PlanError, match="look 2 of the design takes seeds 4, 5"):
        pipeline.extend(tmp_path, pipeline.Options("cpu", 1), seeds=[4], listen=lambda _: None)
    pipeline.extend(tmp_path, pipeline.Options("cpu", 1), seeds=[4, 5], listen=lambda _: None)
    results = Results.open(tmp_path)
    assert results.analysis.look.number == 2
    assert {one.label for one in results.verdict.verdicts} == {"registered"}
    pipeline.extend(tmp_path, pipeline.Options("cpu", 1), seeds=[6], listen=lambda _: None)
    assert {one.label for one in Results.open(tmp_path).verdict.verdicts} == {"exploratory"}


#: Looks beyond the study's own seeds, as `init` writes them.
LATER = {**UNDECIDED, "seeds": [1, 2, 3], "design": {"looks": [3, 4, 6], "spending": "front-loaded", "futility": 0.0}}


def decided(folder):
    """What is concluded from a folder, whatever files it was concluded from."""
    analysis, verdict = pipeline.conclude(folder)
    return analysis.model_copy(update={"inputs": {}, "seal": ""}), verdict.verdicts, verdict.next_look


def labels(folder):
    return {one.label for one in Results.open(folder).verdict.verdicts}


def test_looks_beyond_the_seeds_are_taken_by_extending_and_stay_registered(study_table, tmp_path):
    study = parse_study(study_table(LATER))
    (taken,) = (event.result for event in run(study, tmp_path) if isinstance(event, pipeline.LookTaken))
    assert (taken.number, taken.stop, taken.later) == (1, True, (4, 6))
    sealed, results = (tmp_path / "plan.lock").read_bytes(), Results.open(tmp_path)
    assert (results.seeds, results.verdict.next_look, results.analysis.deviations) == ((1, 2, 3), 4, ())
    assert labels(tmp_path) == {"registered"}
    with pytest.raises(PlanError, match="look 2 of the design takes seeds 4, all of them and nothing else"):
        pipeline.extend(tmp_path, pipeline.Options("cpu", 1), seeds=[5], listen=lambda _: None)
    for look, seeds in ((2, (1, 2, 3, 4)), (3, (1, 2, 3, 4, 5, 6))):
        pipeline.extend(tmp_path, pipeline.Options("cpu", 1), listen=lambda _: None)
        results = Results.open(tmp_path, strict=True)
        assert (results.analysis.look.number, results.seeds, results.analysis.deviations) == (look, seeds, ())
        assert labels(tmp_path) == {"registered"}
    assert results.verdict.next_look is None
    assert (tmp_path / "plan.lock").read_bytes() == sealed
    with pytest.raises(AblationLabError, match="no planned look is left"):
        pipeline.extend(tmp_path, pipeline.Options("cpu", 1))
    run(parse_study(study_table({**FIXED, "seeds": [1, 2, 3, 4, 5, 6]})), tmp_path / "at-once")
    assert losses(tmp_path / "at-once") == losses(tmp_path)
    pipeline.extend(tmp_path, pipeline.Options("cpu", 1), seeds=[9], listen=lambda _: None)
    assert labels(tmp_path) == {"exploratory"}


def test_a_look_may_be_passed_over_and_counts_all_the_same(study_table, tmp_path):
    study = parse_study(study_table(LATER))
    for name, steps in {"each": ([4], [5, 6]), "last": ([4, 5, 6],)}.items():
        run(study, tmp_path / name)
        for seeds in steps:
            pipeline.extend(tmp_path / name, pipeline.Options("cpu", 1), seeds=seeds, listen=lambda _: None)
    each, last = (Results.open(tmp_path / name) for name in ("each", "last"))
    assert losses(tmp_path / "each") == losses(tmp_path / "last")
    assert each.analysis.comparisons == last.analysis.comparisons
    assert each.verdict.verdicts == last.verdict.verdicts


def test_an_extension_that_is_killed_keeps_the_registered_answer_and_continues_to_the_same_bits(
    study_table, tmp_path, monkeypatch
):
    study, options = parse_study(study_table(LATER)), pipeline.Options("cpu", 1)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for out in (whole, killed):
        run(study, out)
    before = decided(killed)
    pipeline.extend(whole, options, listen=lambda _: None)

    def kill(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "train", kill)  # before any of its runs
        with pytest.raises(KeyboardInterrupt):
            pipeline.extend(killed, options, listen=lambda _: None)
    assert decided(killed) == before
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "conclude", kill)  # after all of them, before its look
        with pytest.raises(KeyboardInterrupt):
            pipeline.extend(killed, options, listen=lambda _: None)
    late = next(run for run in Plan.read(killed / "plan.lock").runs if run.seed == 4)
    kept = ResultsFolder(killed).run(late.id).result
    shutil.move(kept, tmp_path / "kept.json")  # as if killed between two of its runs
    assert decided(killed) == before
    shutil.move(tmp_path / "kept.json", kept)
    with pytest.raises(PlanError, match="`ablationlab run` trains the next one"):
        pipeline.extend(killed, options, seeds=[5, 6], listen=lambda _: None)
    run(study, killed)  # or extend, without seeds
    assert losses(killed) == losses(whole)
    assert Results.open(killed).verdict.verdicts == Results.open(whole).verdict.verdicts
    assert [look.result for look in Plan.read(killed / "plan.lock").looks] == [
        look.result for look in Plan.read(whole / "plan.lock").looks
    ]


def test_variants_that_were_added_have_the_seeds_of_a_later_look_too(study_table, tmp_path):
    run(parse_study(study_table(LATER)), tmp_path)
    pipeline.extend(tmp_path, pipeline.Options("cpu", 1), variants=["rmsnorm"], listen=lambda _: None)
    pipeline.extend(tmp_path, pipeline.Options("cpu", 1), listen=lambda _: None)
    results = Results.open(tmp_path)
    assert {(run.variant, run.seed) for run in results.runs if run.done and run.seed == 4} == {
        ("none", 4),
        ("layernorm", 4),
        ("rmsnorm", 4),
    }
    assert {one.variant: one.label for one in results.verdict.verdicts} == {
        "layernorm": "registered",
        "rmsnorm": "exploratory",
    }


def test_the_seeds_of_later_looks_are_none_that_choose_something(study_table):
    gate = {"evaluation.gate_seeds": [4, 6, 7, 8, 9]}
    study = parse_study(study_table({**LATER, **gate}))
    assert study.later_seeds() == (5, 10, 11)


def test_a_user_is_told_the_next_look_and_takes_it(study_file, cli, tmp_path):
    study, out = study_file(LATER), tmp_path / "results"
    code, output, _ = cli("plan", study, "--out", out, "--device", "cpu")
    assert code == 0
    assert "  runs     6 · " in output
    assert "mean seeds" in output
    code, output, error = cli("run", study, "--out", out, "--device", "cpu", "--workers", "1", "--no-report")
    assert code == 0, error
    assert f"look at 4 seeds: ablationlab extend {out}" in " ".join(output.split())
    code, output, error = cli("extend", out, "--workers", "1", "--no-report")
    assert code == 0, error
    assert "exploratory" not in output
    assert f"look at 6 seeds: ablationlab extend {out}" in " ".join(output.split())
    code, output, error = cli("extend", out, "--workers", "1", "--no-report")
    assert code == 0, error
    assert "look at" not in output
    assert "no planned look is left" in cli("extend", out)[2]


def test_nothing_to_add_and_no_study_are_refused(study_table, tmp_path):
    with pytest.raises(AblationLabError, match="not a results folder"):
        pipeline.extend(tmp_path, pipeline.Options(), seeds=[4])
    pipeline.seal(parse_study(study_table(FIXED)), ResultsFolder(tmp_path), "cpu", 1)
    with pytest.raises(AblationLabError, match="no planned look is left"):
        pipeline.extend(tmp_path, pipeline.Options())
    with pytest.raises(PlanError, match="nothing to add"):
        pipeline.extend(tmp_path, pipeline.Options(), seeds=[1, 2])
    with pytest.raises(AblationLabError, match="layernrm"):
        pipeline.extend(tmp_path, pipeline.Options(), variants=["layernrm"])


def test_two_extensions_at_once_do_not_both_add_runs(study_table, tmp_path, monkeypatch):
    from ablationlab.study import plan

    pipeline.seal(parse_study(study_table(FIXED)), ResultsFolder(tmp_path), "cpu", 1)
    extension = plan.extension

    def slow(*asked):
        amendment = extension(*asked)
        amendment.create(tmp_path / "amendments" / "0001.json")  # of another command that was faster
        return amendment

    monkeypatch.setattr(plan, "extension", slow)
    with pytest.raises(
        AblationLabError, match=r"another command added runs .* \(amendments/0001.json\). Nothing was added"
    ):
        pipeline.extend(tmp_path, pipeline.Options("cpu", 1), seeds=[4])
    assert [file.name for file in (tmp_path / "amendments").iterdir()] == ["0001.json"]


# --- calibrated regimes ---------------------------------------------------------------------------------------

HOT = {"setting": "training.lr", "low": 1e-3, "high": 30.0, "seeds": [101, 102], "tries": 4}


def tries(*counts: tuple[float, int], seeds: int = 4) -> list[Try]:
    own = tuple(range(101, 101 + seeds))
    return [Try(value=value, seeds=own, broken=broken, plan_hash="") for value, broken in counts]


def calibrating(study_table, **changes) -> Study:
    asked = {**HOT, "seeds": [101, 102, 103, 104], **changes}
    return parse_study(study_table({**FIXED, "regimes": {"hot": {"calibrate": asked}}}))


def test_a_calibration_bisects_between_the_ends(study_table):
    study = calibrating(study_table, low=0.01, high=1.0)
    assert next_value(study, "hot", []) == 0.01
    assert next_value(study, "hot", tries((0.01, 0))) == 1.0
    assert next_value(study, "hot", tries((0.01, 0), (1.0, 4))) == pytest.approx(0.1)
    assert next_value(study, "hot", tries((0.01, 0), (1.0, 4), (0.1, 0))) == pytest.approx(10**-0.5)
    assert next_value(study, "hot", tries((0.01, 0), (1.0, 4), (0.1, 2))) is None
    found = settled(study.regimes["hot"].calibrate, tries((0.01, 0), (1.0, 4), (0.1, 1), (0.3, 3)))
    assert found.value == 0.3  # equally distant: the one that breaks more


@pytest.mark.parametrize("target", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("seeds", [3, 4])
@pytest.mark.parametrize("jump", [0.002, 0.7, 20.0])
def test_where_none_or_all_break_a_calibration_settles_where_they_do_and_says_so(study_table, jump, seeds, target):
    study = calibrating(study_table, low=0.001, high=30.0, target=target, seeds=[*range(101, 101 + seeds)])
    asked, tried = study.regimes["hot"].calibrate, []
    while (value := next_value(study, "hot", tried)) is not None:
        tried += tries((value, seeds if value > jump else 0), seeds=seeds)
    found = settled(asked, tried)
    assert len(tried) == asked.tries
    assert found.value == min(attempt.value for attempt in tried if attempt.broken)
    said = plain(try_line("hot", tried[-1], found, asked))
    calm = max(attempt.value for attempt in tried if not attempt.broken)
    assert f"about {100 * target:.0f} % of the baselines: 0 of {seeds} at {calm:.3g}" in said
    assert f"and {seeds} of {seeds} at {found.value:.3g}" in said


@pytest.mark.parametrize(
    ("target", "seeds", "near"),
    [
        (0.3, 10, {3}),
        (0.7, 10, {7}),
        (0.29, 100, {29}),
        (0.25, 3, {1}),
        (0.75, 3, {2}),
        (0.5, 5, {2, 3}),
        (0.05, 4, {1}),
    ],
)
def test_a_count_is_near_its_target_if_no_other_is_nearer_and_some_runs_break_but_not_all(target, seeds, near):
    counts = tries(*((0.1, broken) for broken in range(seeds + 1)), seeds=seeds)
    assert {attempt.broken for attempt in counts if attempt.near(target)} == near


def test_of_equally_near_counts_a_calibration_takes_the_one_nearer_to_half(study_table):
    asked = calibrating(study_table, target=0.75).regimes["hot"].calibrate
    assert settled(asked, tries((0.01, 0), (1.0, 4), (0.1, 2))).value == 0.1


def test_a_calibration_near_its_target_has_no_warning(study_table):
    asked = calibrating(study_table).regimes["hot"].calibrate
    tried = tries((0.001, 0), (30.0, 4), (0.2, 2))
    assert try_line("hot", tried[-1], settled(asked, tried), asked).endswith("Calibrated: training.lr = 0.2.")


def test_a_setting_that_breaks_when_it_is_small_and_whole_numbers_are_bisected_too(study_table):
    study = calibrating(study_table, setting="model.layers", low=1, high=9, scale="linear", tries=8)
    assert next_value(study, "hot", tries((1, 4), (9, 0))) == 5
    assert next_value(study, "hot", tries((1, 4), (9, 0), (5, 0))) == 3
    assert next_value(study, "hot", tries((1, 4), (9, 0), (5, 0), (3, 0), (2, 0))) is None
    model, _ = study.calibrated("hot", 5).in_regime("hot")
    assert model.layers == 5
    _, training = (
        calibrating(study_table, setting="training.betas[1]", low=0.5, high=0.99, scale="linear")
        .calibrated("hot", 0.7)
        .in_regime("hot")
    )
    assert training.betas == (0.9, 0.7)


def test_ends_that_do_not_hold_the_target_between_them_are_refused(study_table):
    with pytest.raises(PlanError, match=r"0 of 4 at 0\.001 and 0 of 4 at 30"):
        next_value(calibrating(study_table), "hot", tries((0.001, 0), (30.0, 0)))


@pytest.mark.parametrize(
    ("changes", "key", "text"),
    [
        ({"seeds": [3, 101]}, "seeds", "on other seeds"),
        ({"setting": "training.lrr"}, "setting", "unknown number"),
        ({"setting": "training.betas[1]", "high": 1.5}, "high", "less than 1"),
        ({"low": 0.0}, "", "has no logarithm"),
        ({"value": 0.1}, "value", "leave it out"),
    ],
)
def test_a_calibration_that_makes_no_sense_is_refused_before_anything_runs(study_table, changes, key, text):
    with pytest.raises(StudyError) as refused:
        parse_study(study_table({**FIXED, "regimes": {"hot": {"calibrate": {**HOT, **changes}}}}))
    wanted = "regimes.hot.calibrate" + (f".{key}" if key else "")
    assert any(problem.key == wanted and text in str(problem) for problem in refused.value.problems)


def test_a_model_that_breaks_is_calibrated_before_the_plan_is_sealed_and_continues_after_a_kill(study_table, tmp_path):
    table = study_table({**FIXED, "regimes": {"hot": {"calibrate": HOT}}, "training.steps": 12, "training.clip": "off"})
    study = parse_study(table)
    results, options = ResultsFolder(tmp_path), pipeline.Options(device="cpu", workers=1)
    events: list[pipeline.PipelineEvent] = []

    def killed(event: pipeline.PipelineEvent) -> None:
        events.append(event)
        if isinstance(event, pipeline.CalibrationTried) and len(tried(events)) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pipeline.train(study, results, options, killed)
    assert not results.plan.exists()
    with pytest.raises(PlanError, match="Its calibration or sweep has begun"):
        pipeline.train(study.changed(seeds=(1, 2)), results, options, lambda _: None)
    pipeline.train(study, results, options, events.append)
    plan = Plan.read(results.plan)
    found = plan.calibrations["hot"]
    assert [one.attempt for one in tried(events)] == list(found.tries)  # none was trained twice
    assert [one.broken for one in found.tries[:2]] == [0, 2]
    nearest = min(abs(one.broken / 2 - 0.5) for one in found.tries)
    assert any(one.value == found.value and abs(one.broken / 2 - 0.5) == nearest for one in found.tries)
    assert {run.lr for run in plan.runs if run.regime == "hot"} == {found.value}
    assert plan.study_hash == study.hash
    kept = sorted((tmp_path / "calibration" / "hot").glob("*/runs/*/result.json"))
    assert len(kept) == 2 * len(found.tries)
    assert not {101, 102} & {run.seed for run in plan.runs}
    off_target = [d for d in read_results(tmp_path, None).deviations if d.code == DeviationCode.OFF_TARGET]
    assert len(off_target) == (not found.chosen.near(0.5))
    assert all(f"{found.chosen.broken} of 2 broke on separate seeds" in deviation(known) for known in off_target)


def tried(events: list[pipeline.PipelineEvent]) -> list[pipeline.CalibrationTried]:
    return [event for event in events if isinstance(event, pipeline.CalibrationTried)]


# --- what is shown --------------------------------------------------------------------------------------------


def test_plan_status_and_extend_show_looks_and_amendments(study_file, cli, tmp_path):
    study = study_file({**UNDECIDED, "seeds": [1, 2, 3, 4], "design": {"looks": [3, 4], "futility": 0.0}})
    out = tmp_path / "results"
    code, output, _ = cli("plan", study, "--out", out, "--device", "cpu")
    assert code == 0
    assert "  runs     8 · " in output
    assert "Looks, by number of seeds" in output
    code, output, error = cli("run", study, "--out", out, "--device", "cpu", "--workers", "1", "--no-report")
    assert code == 0, error
    assert "Look 1 of 2 (3 seeds): continue" in " ".join(output.split())
    code, output, _ = cli("extend", out, "--seeds", "5", "--reason", "curious", "--workers", "1")
    assert code == 0
    assert "exploratory" in output
    code, output, _ = cli("status", study, "--out", out)
    assert "Look 2 of 2 (4 seeds): stop" in " ".join(output.split())
    assert "with seeds 5 (exploratory). Reason: curious." in " ".join(output.split())
    results = Results.open(out)
    page = page_html(results)
    assert "with seeds 5 (exploratory). Reason: curious." in page
    assert {judged.label for judged in results.verdict.verdicts} == {"exploratory"}
    study_of_paper = StudyView(results)
    assert any("exploratory" in line for line in study_of_paper.stages)
    assert all(decided.exploratory for decided in study_of_paper.decided)


def test_a_calibration_is_shown_before_there_is_a_plan(study_file, cli, tmp_path):
    study = study_file({**FIXED, "regimes": {"hot": {"calibrate": HOT}}})
    code, output, _ = cli("plan", study, "--out", tmp_path / "results")
    assert code == 0
    assert "Regime hot is calibrated first: training.lr between 0.001 and 30" in output
    assert (tmp_path / "results" / "study.lock").exists()
    assert not (tmp_path / "results" / "plan.lock").exists()
    assert "is calibrated first" in cli("status", study, "--out", tmp_path / "results")[1]


@pytest.mark.parametrize(("text", "seeds"), [("6-8", [6, 7, 8]), ("6,8, 6", [6, 8]), ("", [])])
def test_seeds_of_a_command_line(text, seeds):
    assert seed_numbers(text) == seeds


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("8-6", "neither a seed nor a range"),
        ("six", "neither a seed nor a range"),
        ("1-999999999", "999999999 seeds; at most 100000 are allowed"),
    ],
)
def test_seeds_that_are_none_or_too_many_are_refused(text, says):
    with pytest.raises(AblationLabError, match=says):
        seed_numbers(text)
