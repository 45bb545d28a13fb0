"""What a model is asked: the task suite, benchmarks, tasks of the harness, and which scores the plan asks for.

Nothing here loads torch, and lm_eval is loaded only when a task is built.
"""

import os

# Clients of the data sets' hub read these when they are imported, which is never before this line.
if os.environ.get("ABLATIONLAB_OFFLINE"):
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

from ablationlab.tasks.benchmarks import CATALOGUE
from ablationlab.tasks.harness_tasks import HarnessTask, build_tasks
from ablationlab.tasks.request import (
    STOCK,
    SUITE_GROUP,
    TaskRequest,
    check_tasks,
    check_text,
    expand,
    plan_tasks,
)
from ablationlab.tasks.scores import TASK_MEANS, PlannedTasks, TaskName, planned_tasks
from ablationlab.tasks.suite import KINDS
