"""Trains one run with the user's own trainer, a registered function or a program, and writes its records.

The run's folder has settings.json (what the trainer is told), reported.jsonl (what it tells, see `own_run`), output.log (what
it prints) and starts.json. metrics.jsonl and result.json are made from these when it has ended well.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ablationlab.core.errors import CodeError, RunFailure, nearest
from ablationlab.core.format import setting
from ablationlab.core.paths import real_path
from ablationlab.core.processes import wait_or_kill
from ablationlab.records.environment import Drift, Environment, current
from ablationlab.records.plan import Plan, PlannedRun
from ablationlab.records.run import (
    METRICS_HEADER,
    Divergence,
    Result,
    RunRecord,
    Start,
    Timing,
    TrainerFailure,
    read_curves,
)
from ablationlab.records.seal import seal_run
from ablationlab.records.settings import Trainer
from ablationlab.records.storage import (
    Lock,
    ResultsFolder,
    RunFolder,
    make_folder,
    open_regular,
    read_json,
    replace,
    sha256_file,
    timestamp,
)
from ablationlab.stats.spikes import measure_curve
from ablationlab.study.trainers import TRAINERS, command_line, nearest_key, passed_settings
from ablationlab.study.trust import command_code
from ablationlab.training.own_run import (
    FOLDER_VARIABLE,
    REPORTED,
    SETTINGS,
    STATE,
    Run,
    cut_back,
    parsed_lines,
    reported_lines,
    seed_everything,
    step_lines,
)
from ablationlab.training.progress import Progress, Stopped

if TYPE_CHECKING:
    from ablationlab.training.executors.job import Job

OUTPUT, STARTS = "output.log", "starts.json"
_POLL_SECONDS, _REPORT_SECONDS = 0.05, 0.5
#: Read from the end of a run's files to see how far it is.
_TAIL_BYTES = 8192
#: After a request to stop, before the program is ended by force.
GRACE_SECONDS = 20.0
#: A child that becomes the program, and is killed by the system when the process that started it dies.
_BECOME = (
    "import ctypes, os, sys; "
    "sys.platform == 'linux' and ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
)


def train_run(
    job: Job,
    stack: int,
    *,
    executor: str,
    lock: Lock,
    report: Callable[[Progress], None],
    should_stop: Callable[[], bool],
) -> None:
    """Train the run, whose lock is held. Raises `Stopped` when the user stops it, `RunFailure` when it fails."""
    plan, results = job.plan, ResultsFolder(job.folder)
    run = plan.run(plan.stacks[stack][0])
    own, folder = plan.study.trainer, results.run(run.id)
    assert own is not None
    if own.command is not None and command_code(own).sha256 not in job.agreed:
        raise CodeError(
            f"`{own.title}`: a file that this command names has changed since `ablationlab run` began, so it was not "
            "started: the arms would be trained by different programs. Restore the file; or run again, which tells you what "
            "changed, and continues with --accept-drift, recorded in every run"
        )
    environment = current()
    with _device(plan, results) as device:
        make_folder(folder.path)
        RunRecord.begin(
            plan,
            run,
            folder,
            corpus=None,
            data_order_hash=None,
            initial_weights=None,
            shared_init_hash=None,
            executor=executor,
            execution=plan.execution,
            environment=environment,
            drift=job.drift,
        )
        if own.name is not None and not (folder.path / f"{STATE}.json").exists():
            (folder.path / REPORTED).unlink(missing_ok=True)  # begun and never saved: it starts again
        cut_back(folder.path)
        given = {"id": run.id, "variant": run.variant, "regime": run.regime, "seed": run.seed}
        visible = _mask(device) if own.command is not None else None
        given["device"] = device if visible is None else "cuda:0"
        replace(folder.path / SETTINGS, json.dumps({**given, "settings": run.settings}, indent=1).encode())
        starts = _begin(plan, folder, environment, job.drift)
        began = time.monotonic()
        progress = _Watcher(run, folder, own, report)
        folder.failure.unlink(missing_ok=True)
        try:
            if own.command is not None:
                _run_program(own, run, folder, plan.execution.threads, visible, lock, progress.look, should_stop)
            else:
                _call_trainer(own, folder, progress.look, should_stop)
            _conclude(plan, run, folder, starts, time.monotonic() - began)
        except RunFailure as error:
            TrainerFailure(id=run.id, error=str(error), created=timestamp()).replace(folder.failure)
            raise
        if run.stack == 0:  # once per study
            progress.unread()


def _begin(plan: Plan, folder: RunFolder, environment: Environment, drift: tuple[Drift, ...]) -> tuple[Start, ...]:
    """Every start of this run, the one that begins now included."""
    path = folder.path / STARTS
    earlier = [Start.model_validate(start) for start in read_json(path)] if path.exists() else []
    step = _last_step(step_lines(reported_lines(folder.path)))
    starts = (*earlier, Start.of(step, environment, plan.execution, drift))
    replace(path, json.dumps([start.model_dump(mode="json") for start in starts], indent=1).encode())
    return starts


@contextmanager
def _device(plan: Plan, results: ResultsFolder) -> Iterator[str]:
    """A GPU that no other run of this study uses, or the CPU."""
    if plan.execution.device == "cpu":
        yield "cpu"
        return
    import torch

    host = platform.node()
    locks = {number: Lock(results.locks / f"device-{host}-{number}") for number in range(torch.cuda.device_count())}
    number = next((number for number, lock in locks.items() if lock.acquire()), 0)
    try:
        yield f"cuda:{number}"
    finally:
        locks[number].release()


def _mask(device: str) -> str | None:
    """CUDA_VISIBLE_DEVICES of a program that is to see one GPU of those that are visible here; None on the CPU."""
    if not device.startswith("cuda:"):
        return None
    number = int(device.removeprefix("cuda:"))
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return visible[number] if number < len(visible) else str(number)


# ---- calling it ---------------------------------------------------------------------------------------------------------


def _call_trainer(own: Trainer, folder: RunFolder, look: Callable[[], None], should_stop: Callable[[], bool]) -> None:
    """Call a registered function, in this process. What it prints goes to output.log."""
    assert own.name is not None
    began = time.monotonic()
    terminal, errors = sys.stdout, sys.stderr

    def stop() -> bool:
        with redirect_stdout(terminal), redirect_stderr(errors):  # progress belongs there, not into output.log
            look()
        if own.timeout is not None and time.monotonic() - began > own.timeout:
            raise RunFailure(_too_long(own.timeout))
        return should_stop()

    run = Run(folder.path, should_stop=stop)
    seed_everything(run.seed)
    with (folder.path / OUTPUT).open("a", encoding="utf-8") as output, redirect_stdout(output), redirect_stderr(output):
        try:
            metrics = TRAINERS[own.name].train(run)
        except (Stopped, RunFailure):
            raise
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            where = f"{_place(error)}: {type(error).__name__}: {error}"
            raise RunFailure(f"{where}; {folder.path / OUTPUT} has the rest") from error
    if metrics is not None:
        if not isinstance(metrics, Mapping):
            raise RunFailure(f"the trainer {own.name!r} returned {type(metrics).__name__}, not a mapping of metrics")
        run.finish(**metrics)


def _place(error: BaseException) -> str:
    """File, line and function of the user's own code that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    package = str(Path(__file__).parents[1])
    frame = next((frame for frame in reversed(frames) if not frame.filename.startswith(package)), frames[-1])
    return f"{frame.filename}, line {frame.lineno}, in {frame.name}"


def _run_program(
    own: Trainer,
    run: PlannedRun,
    folder: RunFolder,
    threads: int,
    visible_device: str | None,
    lock: Lock,
    look: Callable[[], None],
    should_stop: Callable[[], bool],
) -> None:
    """Run the command to its end. It inherits the run's lock, so that no second process can ever write into this folder."""
    assert own.command is not None
    values = {
        "seed": run.seed,
        "variant": run.variant,
        "regime": run.regime,
        "folder": str(real_path(folder.path)),
        "settings": str(real_path(folder.path / SETTINGS)),
        "python": sys.executable,
    }
    words = command_line(own.command, values, run.settings)
    environment = {**os.environ, FOLDER_VARIABLE: str(real_path(folder.path)), "PYTHONUNBUFFERED": "1"}
    environment.setdefault("OMP_NUM_THREADS", str(threads))
    if visible_device is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible_device
    if shutil.which(words[0], path=own.directory if "/" in words[0] else None) is None:
        raise RunFailure(f"{words[0]!r} could not be started: no such program here")
    with (folder.path / OUTPUT).open("ab") as output:
        output.write(f"$ {shlex.join(words)}\n".encode())
        output.flush()
        try:
            program = subprocess.Popen(
                [sys.executable, "-P", "-c", _BECOME, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=own.directory,
                env=environment,
                start_new_session=True,
                pass_fds=lock.descriptors(),
            )
        except OSError as error:
            raise RunFailure(f"{words[0]!r} could not be started: {error}") from error
    began = time.monotonic()
    try:
        while program.poll() is None:
            time.sleep(_POLL_SECONDS)
            look()
            if should_stop():
                _end(program, signal.SIGINT)
                raise Stopped
            if own.timeout is not None and time.monotonic() - began > own.timeout:
                _end(program, signal.SIGTERM)
                raise RunFailure(_too_long(own.timeout))
    finally:
        _end(program, signal.SIGKILL)
    if program.returncode != 0 and _last(reported_lines(folder.path), "diverged") is None:
        how = f"exit code {program.returncode}" if program.returncode > 0 else f"signal {-program.returncode}"
        raise RunFailure(f"{words[0]} ended with {how}; its last line: {_last_line(folder.path / OUTPUT)}")


def _too_long(timeout: float) -> str:
    return f"it ran past timeout = {setting(timeout)} seconds and was ended"


def _end(program: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal the program's whole group, and kill it if it does not end in time."""
    if program.poll() is None:
        os.killpg(program.pid, number)
        wait_or_kill(program, GRACE_SECONDS)


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return (lines[-1][:200] if len(lines) > 1 else "it printed nothing") + f" ({path})"


# ---- reading what it reported -------------------------------------------------------------------------------------------


class _Watcher:
    """Tells how far a run is, from what its trainer has reported so far."""

    def __init__(self, run: PlannedRun, folder: RunFolder, own: Trainer, report: Callable[[Progress], None]) -> None:
        self.run, self.folder, self.own, self.report = run, folder, own, report
        self._looked, self._first, self._step = 0.0, -1, -1

    def look(self) -> None:
        """Report a new step, at most twice a second."""
        if time.monotonic() - self._looked < _REPORT_SECONDS:
            return
        self._looked = time.monotonic()
        steps = self._latest()
        last = _last_step(steps)
        self._first = last if self._first < 0 else self._first
        if steps and last != self._step:
            self._step = last
            self._report(steps)

    def _report(self, steps: Sequence[Mapping[str, Any]], note: str = "") -> None:
        last = _last_step(steps)
        self.report(
            Progress(
                stack=self.run.stack,
                start=max(self._first, 0),
                step=last,
                steps=self.run.steps or last,
                runs=1,
                diverged=0,
                loss=_as_float(steps[-1].get("loss")) if steps else math.nan,
                gradient_norm=_as_float(steps[-1].get("gradient_norm")) if steps else math.nan,
                tokens_per_second=math.nan,
                note=note,
                note_kind="notice" if note else "state",
            )
        )

    def unread(self) -> None:
        """Tell of settings that the trainer never asked for, if it read them one by one: they may be misspelt."""
        reported = _last(reported_lines(self.folder.path), "unread")
        passed = passed_settings(self.own)
        unread = [] if reported is None else [key for key in reported["settings"] if key not in passed]
        guessed = _guessed(unread, reported["asked"]) if reported is not None else ""
        if guessed:
            self._report(self._latest(), f"its trainer never read {guessed}")

    def _latest(self) -> list[dict[str, Any]]:
        path = self.folder.path / REPORTED
        reported = step_lines(parsed_lines(path, _tail(path)))
        return _merged(reported, _matched(self.own.patterns, self.folder.path / OUTPUT, _tail))


def _guessed(settings: Sequence[str], asked: Sequence[str]) -> str:
    """Settings, each with the one that was asked for and is not there, if that is like it."""
    guesses = {key: nearest_key(key, asked) for key in settings if key != "training.steps"}  # displays read that
    return ", ".join(f"{key} (did you mean {guess}?)" if guess else key for key, guess in guesses.items())


def _tail(path: Path) -> bytes:
    """The whole lines at the end of a file that is being written."""
    if not path.exists():
        return b""
    with open_regular(path, most=None) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        data = file.read()
    return data if size <= _TAIL_BYTES else data.partition(b"\n")[2]


def _matched(
    patterns: Mapping[str, str], path: Path, read: Callable[[Path], bytes] = Path.read_bytes
) -> list[dict[str, Any]]:
    """The steps that the study's patterns find in what the trainer printed."""
    return step_lines([line for line in _printed(patterns, path, read) if "step" in line])


def _printed(
    patterns: Mapping[str, str], path: Path, read: Callable[[Path], bytes] = Path.read_bytes
) -> list[dict[str, Any]]:
    """Everything that the patterns find, in order; a pattern may find no step."""
    if not patterns or not path.exists():
        return []
    lines: list[dict[str, Any]] = []
    for line in read(path).decode(errors="replace").splitlines():
        for name, pattern in patterns.items():
            match = re.search(pattern, line)
            if match is None:
                continue
            try:
                step = {"step": int(match["step"])} if "step" in match.groupdict() else {}
                lines.append({**step, name: float(match["value"])})
            except (ValueError, TypeError):
                raise RunFailure(
                    f"patterns.{name} found {match[0]!r} in {path}: step or value is not a number"
                ) from None
    return lines


def _merged(*sources: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Steps of several sources, in order; each source has every step once."""
    steps: dict[int, dict[str, Any]] = {}
    for line in (line for source in sources for line in source):
        steps.setdefault(line["step"], {}).update(line)
    return [steps[number] for number in sorted(steps)]


def _last_step(steps: Sequence[Mapping[str, Any]]) -> int:
    return int(steps[-1]["step"]) if steps else 0


def _last(lines: Sequence[Mapping[str, Any]], key: str) -> Any:
    return next((line[key] for line in reversed(lines) if key in line), None)


def _first(lines: Sequence[Mapping[str, Any]], key: str) -> Any:
    return next((line[key] for line in lines if key in line), None)


def _conclude(plan: Plan, run: PlannedRun, folder: RunFolder, starts: tuple[Start, ...], seconds: float) -> None:
    """metrics.jsonl and result.json, from what was reported."""
    own, rules = plan.study.trainer, plan.study.stability
    assert own is not None
    lines = reported_lines(folder.path)
    _check_kinds(lines, folder.path / REPORTED)
    steps = _merged(step_lines(lines), _matched(own.patterns, folder.path / OUTPUT))
    metrics = {name: float(value) for name, value in (_last(lines, "result") or {}).items()}
    at_the_end = [line for line in _printed(own.patterns, folder.path / OUTPUT) if "step" not in line]
    for name in own.patterns.keys() & own.metrics.keys() - metrics.keys():
        values = [line[name] for line in (*steps, *at_the_end) if name in line]
        metrics |= {name: float(values[-1])} if values else {}
    divergence = _divergence(lines, steps, metrics)
    missing = [name for name in own.metrics if name not in metrics]
    if missing and divergence is None:
        unknown = [key for line in lines if "step" not in line for key in line if key not in _KINDS]
        raise RunFailure(_lacks(missing, [*metrics, *unknown], folder.path / REPORTED))
    rows = [{key: _spelled(value) for key, value in step.items() if _is_number(value)} for step in steps]
    replace(folder.metrics, (METRICS_HEADER + "".join(json.dumps(row) + "\n" for row in rows)).encode())
    tokens, flops = _last(lines, "tokens"), _last(lines, "flops")
    status: Literal["finished", "diverged"] = "finished" if divergence is None else "diverged"
    result = Result(
        id=run.id,
        status=status,
        steps=_last_step(steps),
        tokens=None if tokens is None else int(tokens),
        matmul_flops=None if flops is None else int(flops),
        data_order_hash=_last(lines, "data_order"),
        divergence=divergence,
        metrics={name: metrics.get(name) if status == "finished" else None for name in own.metrics},
        course=measure_curve(
            read_curves(folder.metrics), loss_threshold=rules.loss_threshold, spike_threshold=rules.spike_score
        ),
        checkpoint=None,
        weights_sha256=None,
        initial_weights=_first(lines, "initial_weights"),  # a run that is continued begins with others
        history=starts,
        timing=Timing(
            train_seconds=seconds,
            tokens_per_second=None if tokens is None or seconds <= 0 else int(tokens) / seconds,
            starts=len(starts),
        ),
        finished=timestamp(),
    )
    paths = [folder.metrics, *(folder.path / name for name in (SETTINGS, REPORTED, OUTPUT, STARTS))]
    files = {path.name: sha256_file(path) for path in paths if path.exists()}
    seal_run(folder, run.id, plan.plan_hash, files, result.to_bytes())
    result.create(folder.result)


def _divergence(
    lines: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]], metrics: Mapping[str, float]
) -> Divergence | None:
    """The trainer said so, its last loss is not finite, or a metric is not."""
    declared = _last(lines, "diverged")
    if declared is not None:
        step = declared.get("step")
        cause = str(declared.get("cause", "reported"))[:200]
        return Divergence(step=step if isinstance(step, int) else _last_step(steps), cause=cause)
    losses = [(step["step"], step["loss"]) for step in steps if _is_number(step.get("loss"))]
    if losses and not math.isfinite(losses[-1][1]):
        return next(Divergence.of(step, "loss", loss) for step, loss in losses if not math.isfinite(loss))
    wrong = next((name for name, value in metrics.items() if not math.isfinite(value)), None)
    return None if wrong is None else Divergence.of(_last_step(steps), wrong, metrics[wrong])


def _lacks(missing: Sequence[str], reported: Sequence[str], path: Path) -> str:
    text = f"it ended well but did not report {', '.join(missing)}, which the study names in metrics"
    text += f"; it reported {', '.join(reported)}" if reported else "; it reported no result"
    guesses = [guess for name in missing if (guess := nearest(name, reported)) is not None]
    return text + (f". Did you mean {', '.join(guesses)}?" if guesses else "") + f" ({path})"


def _check_kinds(lines: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Refuse a value of the wrong kind by its key: a program of the user's wrote it."""
    for line in lines:
        for key, (words, fits) in _KINDS.items():
            if key in line and not fits(line[key]):
                raise RunFailure(f"{path}: {key} is {json.dumps(line[key])[:80]}, not {words}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value) and value >= 0


def _are_numbers(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_is_number, value.values()))


def _are_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(digest, str) for digest in value.values())


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "step": ("a whole number", lambda value: isinstance(value, int) and _is_count(value)),
    "result": ("an object of numbers", _are_numbers),
    "diverged": ("an object", lambda value: isinstance(value, Mapping)),
    "initial_weights": ("an object of hashes", _are_texts),
    "data_order": ("a text", lambda value: isinstance(value, str)),
    "unread": ("an object", lambda value: isinstance(value, Mapping)),
    "tokens": ("a number", _is_count),
    "flops": ("a number", _is_count),
}


def _as_float(value: Any) -> float:
    return float(value) if _is_number(value) else math.nan


def _spelled(value: float) -> float | str:
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
