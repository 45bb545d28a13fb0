"""The nodes of a Ray cluster before the first task: whether they are large enough, and what the plan was sealed for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ablationlab.core.errors import PlanError
from ablationlab.records.folders import ResultsFolder
from ablationlab.records.plan import Plan
from ablationlab.records.settings import validated
from ablationlab.records.storage import Lock
from ablationlab.training.executors.job import Job
from ablationlab.training.executors.ray_connection import first_line

INSPECT_SECONDS = 120.0


def needs_of(plan: Plan) -> dict[str, float]:
    """Resources of one stack, in Ray's words."""
    how = plan.execution
    return {"CPU": float(how.threads)} if how.device == "cpu" else {"CPU": 1.0, "GPU": 1.0}


def _able(ray: Any, plan: Plan) -> list[Any]:
    """The living nodes that are large enough for a stack."""
    needs = needs_of(plan).items()
    return [n for n in ray.nodes() if n["Alive"] and all(n["Resources"].get(key, 0.0) >= value for key, value in needs)]


def check_resources(ray: Any, plan: Plan) -> None:
    """Refuse what would wait for ever: a task that no node is large enough for."""
    if _able(ray, plan):
        return
    wanted = " and ".join(f"{value:g} {key}" for key, value in needs_of(plan).items())
    has = [
        f"{node['NodeManagerHostname']}: {node['Resources'].get('CPU', 0):g} CPU, {node['Resources'].get('GPU', 0):g} GPU"
        for node in ray.nodes()
        if node["Alive"]
    ]
    raise PlanError(
        f"a stack of this plan needs {wanted} on one node, and no node of the cluster has that:\n"
        + "\n".join(f"  - {line}" for line in has)
        + "\nAdd a node that has, or plan anew with --out and other settings (execution.threads, --device)"
    )


def inspect(ray: Any, job: Job) -> None:
    """Ask every node that could train whether it is what the plan was sealed for; refuse the cluster if one is not."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    results = ResultsFolder(job.folder)
    check = Lock(results.locks / "cluster-check")
    check.acquire()  # if another command holds it just now, it is held all the same
    share = {"num_gpus": 0.001} if job.plan.execution.device == "cuda" else {}
    try:
        asked = {}
        for node in _able(ray, job.plan):
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(inspect_node).options(num_cpus=0, max_retries=0, scheduling_strategy=there, **share)
            asked[task.remote(str(job.folder), job.plan.execution.device)] = node
        _, late = ray.wait(list(asked), num_returns=len(asked), timeout=INSPECT_SECONDS)
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        wrong = []
        for one, node in asked.items():
            if node["NodeID"] in alive:  # one that died meanwhile can do no harm
                silent = [f"gave no answer within {INSPECT_SECONDS:.0f} s (is its GPU taken by another job?)"]
                found = silent if one in late else _found_wrong(ray, one, job)
                wrong += [f"{node['NodeManagerHostname']}: {line}" for line in found]
    finally:
        check.release()
    if wrong:
        raise PlanError(
            "the workers of this cluster are not what the plan was sealed for:\n"
            + "\n".join(f"  - {line}" for line in dict.fromkeys(wrong))
            + "\nRuns made by different versions or devices are no fair comparison. Give every node the same "
            "ablationlab, libraries and hardware, and the same folder under the same path (docs/scale.md)"
        )


def _found_wrong(ray: Any, answer: Any, job: Job) -> list[str]:
    try:
        said = json.loads(ray.get(answer))
    except ray.exceptions.RayError as error:
        cause = first_line(error)
        return [f"cannot run this version of ablationlab; is it installed there? ({cause})"]
    return mismatches(said, job.plan, accept_drift=job.accept_drift)


def inspect_node(folder: str, device: str) -> str:
    """Run by Ray on a node: what it is, as JSON."""
    from ablationlab.model.device import choose_device
    from ablationlab.records.environment import current

    results = ResultsFolder(Path(folder))
    said: dict[str, Any] = {"environment": current().model_dump(mode="json"), "device": None, "plan": None}
    try:
        said["device"] = choose_device("cuda" if device == "cuda" else "cpu")[1]
    except PlanError as error:
        said["device"] = str(error)
    if results.plan.exists():
        said["plan"] = Plan.read(results.plan).plan_hash
        said["locked"] = Lock(results.locks / "cluster-check").held_elsewhere()
    return json.dumps(said)


def mismatches(said: dict[str, Any], plan: Plan, *, accept_drift: bool) -> list[str]:
    """What of a node's answer does not fit the plan, in words."""
    from ablationlab.records.environment import Environment, drift

    if said["plan"] is None:
        return ["does not see the results folder; it must be shared and have the same path on every node"]
    found = [] if accept_drift else list(drift(plan.environment, validated(Environment, said["environment"])))
    if said["plan"] != plan.plan_hash:
        found.append("sees another plan in the results folder")
    elif not said["locked"]:
        found.append(
            "does not see locks that this machine holds in the results folder; two workers could train one run. Mount it "
            "with locks that reach all nodes (NFS version 4, Lustre with -o flock)"
        )
    if said["device"] != plan.execution.device_name:
        found.append(f"device {plan.execution.device_name} -> {said['device']}")
    return found
