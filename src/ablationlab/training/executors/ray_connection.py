"""The way to a Ray cluster: one of this command's own, or the one at an address, which is tried before it is waited for."""

from __future__ import annotations

import io
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from typing import Any

from ablationlab.core.errors import AblationLabError
from ablationlab.training.executors.job import Job

CONNECT_SECONDS, JOIN_SECONDS = 5.0, 60.0
OBJECT_STORE_BYTES = 80_000_000  # nothing large goes through it; Ray's least
# Before ray is imported: nothing is sent to anyone, and its own words stay out of the terminal.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}


def _import() -> Any:
    if find_spec("ray") is None:
        raise AblationLabError("--executor ray needs Ray, which is not installed: pip install 'ablationlab[ray]'")
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    return ray


@contextmanager
def cluster(job: Job, address: str | None, workers: int | None) -> Iterator[Any]:
    """Ray, connected; a connection that was there before (a notebook's) is used and left as it is."""
    ray = _import()
    if ray.is_initialized():
        yield ray
        return
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}
    if address is None:
        from ablationlab.study.plan import usable_cores

        threads = job.plan.execution.threads
        cores = threads * workers if workers is not None else max(threads, usable_cores())
        how |= {"num_cpus": cores, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        # An address in the environment is for those who ask for it with --address auto.
        how["address"] = "local"
    else:
        how["address"] = _reachable(address)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            ray.init(**how)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = "a cluster on this machine" if address is None else f"the cluster at --address {address}"
        raise AblationLabError(f"{where} cannot be used: {first_line(error)}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _reachable(address: str) -> str:
    """The address, if a Ray cluster answers there within a bounded time.

    ray.init waits for ever, deaf to signals, where something else answers or nothing does; so it is tried first in a
    process that can be killed.
    """
    if address == "auto":
        return _joinable(address)
    parts = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^\s:/\[\]]+):(\d{1,5})", address)
    if parts is None or not 0 < int(parts[2]) < 65536:
        raise AblationLabError(
            f"--address {address!r}: expected auto or host:port of a cluster's head node, as `ray start --head` prints it "
            "(ray:// addresses are for Ray's own client, which cannot stream progress here)"
        )
    try:
        socket.create_connection((parts[1].strip("[]"), int(parts[2])), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise AblationLabError(
            f"--address {address}: nothing answers there ({error.strerror or error}); is the head node up, and its port open?"
        ) from error
    return _joinable(address)


def _joinable(address: str) -> str:
    script = (
        "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='error'); ray.shutdown()"
    )
    try:
        subprocess.run(
            [sys.executable, "-c", script, address], check=True, timeout=JOIN_SECONDS, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired as error:
        raise AblationLabError(
            f"--address {address}: something answers there, but no Ray cluster within {JOIN_SECONDS:.0f} s"
        ) from error
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if line.strip()] or ["no reason given"]
        if address == "auto" and "ConnectionError" in error.stderr:
            raise AblationLabError(
                "--address auto: no Ray cluster runs on this machine; start one with `ray start --head` (docs/scale.md), "
                "give its address as host:port, or leave --address out for a cluster that lasts as long as this command"
            ) from error
        told = next((line for line in lines if "Version mismatch" in line), lines[-1])
        raise AblationLabError(f"--address {address}: the cluster cannot be joined: {told.strip()}") from error
    return address


def first_line(error: Exception) -> str:
    """The line of Ray's story that says what happened: the last one of an error in a worker, else the first."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if "Traceback" in text or lines[0].startswith("ray::") else lines[0]
