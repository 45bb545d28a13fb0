"""What the records of a sweep's two stages say. `run` seals it with the plan; `verify` works it out again."""

from __future__ import annotations

from ablationlab.analysis.sweeps import stage_losses
from ablationlab.core.errors import StatisticsError
from ablationlab.records.plan import CALIBRATION, TwoStages
from ablationlab.records.results import Results
from ablationlab.records.settings import SWEEP, Study
from ablationlab.records.storage import ResultsFolder, inside
from ablationlab.study.plan import open_plan
from ablationlab.study.stages import StageLosses, found, stage_study


def stage_folder(results: ResultsFolder, stage: int) -> ResultsFolder:
    """Where a stage of the sweep is trained; no regime is called sweep."""
    return ResultsFolder(inside(results.path / CALIBRATION, SWEEP) / f"{stage:02d}")


def losses_of(results: ResultsFolder, stage: int) -> StageLosses:
    """The counted losses of a stage, from files that are as they were sealed."""
    opened = Results.open(stage_folder(results, stage).path, strict=True)
    opened.check_runs()
    if opened.plan is None:
        raise StatisticsError(f"stage {stage} of the sweep has no plan")
    return stage_losses(opened.runs, opened.plan)


def found_by_stages(study: Study, results: ResultsFolder) -> TwoStages:
    """What the records of both stages give; refused where a stage is not that of this study and of the stage before it."""
    first, second = (losses_of(results, stage) for stage in (1, 2))
    asked = stage_study(study), stage_study(study, first)
    plans = [open_plan(stage_folder(results, stage), each).plan_hash for stage, each in enumerate(asked, start=1)]
    return found(study, plans, first, second)
