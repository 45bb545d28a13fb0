"""The run that the user's own trainer makes, as the trainer sees it: its settings, and what it reports. No torch until asked.

A trainer in Python gets a `Run`; a program of the user opens one with `current_run`, or does without: ``ABLATIONLAB_RUN`` is
the run's folder, settings.json in it says what to train, and every line that the program appends to reported.jsonl is a JSON
object:

    {"step": 10, "loss": 2.31}                         numbers of a step, by any name; ``loss`` shows spikes and divergence
    {"result": {"val_loss": 1.93}}                     the metrics that the study names, at the end
    {"initial_weights": {"wte": "sha256..."}}          optional, for the ledger, as are the next two
    {"data_order": "sha256..."}                        of every batch so far; it may also stand in the line of a step
    {"tokens": 614400, "flops": 1.02e14}
    {"diverged": {"step": 120, "cause": "loss is NaN"}}

A step that is lower than the one before says that the run was continued from there: what was reported after it is void.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

from ablationlab.core.errors import AblationLabError, RecordError
from ablationlab.records.storage import parse_json, read_json, read_regular, replace
from ablationlab.training.progress import Stopped

FOLDER_VARIABLE = "ABLATIONLAB_RUN"
REPORTED, SETTINGS, STATE = "reported.jsonl", "settings.json", "state"
#: Between two checkpoints of `Run.steps`.
CHECKPOINT_SECONDS = 60.0
#: Of a program that `Run.steps` ended because it was asked to stop.
STOPPED_EXIT_CODE = 130


class Stateful(Protocol):
    """A model, an optimizer, a schedule: anything whose state can be saved."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


class _Read(dict[str, Any]):
    """Tables that notice which of their keys are read. Whoever takes a table as a whole has read all of it."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        super().__init__({key: _Read(value) if isinstance(value, dict) else value for key, value in table.items()})
        self._asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self._asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._asked.add(str(key))
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        self._read_all()
        return super().__iter__()

    def keys(self) -> Any:
        self._read_all()
        return super().keys()

    def values(self) -> Any:
        self._read_all()
        return super().values()

    def items(self) -> Any:
        self._read_all()
        return super().items()

    def _read_all(self) -> None:
        self._asked |= set(super().keys())
        for value in super().values():
            if isinstance(value, _Read):
                value._read_all()

    def unread(self, prefix: str = "") -> tuple[list[str], list[str]]:
        """Keys that nobody read, and keys that were asked for and are not there, with the tables they are in."""
        unread: list[str] = []
        asked = [f"{prefix}{key}" for key in sorted(self._asked - set(super().keys()))]
        for key, value in super().items():
            if isinstance(value, _Read):
                inner = value.unread(f"{prefix}{key}.")
                unread, asked = unread + inner[0], asked + inner[1]
            elif key not in self._asked:
                unread.append(f"{prefix}{key}")
        return unread, asked


class TrainerRun:
    """One run of the user's own trainer. ``settings`` are the study's tables with the variant applied."""

    def __init__(self, folder: Path, *, should_stop: Callable[[], bool] | None = None) -> None:
        self.folder = folder
        try:
            given = parse_json((folder / SETTINGS).read_bytes())
        except (OSError, ValueError) as error:
            raise RecordError(f"{folder} is not the folder of a run: {error}") from error
        self.id: str = given["id"]
        self.variant: str = given["variant"]
        self.regime: str = given["regime"]
        self.seed: int = given["seed"]
        self.device: str = given["device"]
        self.settings = _Read(given["settings"])
        self._should_stop = should_stop  # None in a program of its own, which is asked to stop by a signal
        self._order: str | None = None  # of the batches so far; None until it is known

    def __enter__(self) -> Self:
        """Seed Python, numpy and torch, as is done before a registered trainer is called."""
        seed_everything(self.seed)
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def started(self, model: Any) -> None:
        """Report hashes of the initial weights, of a torch module or of a mapping of arrays: the ledger compares them."""
        named = dict(model.named_parameters()) if hasattr(model, "named_parameters") else dict(model)
        self._write({"initial_weights": {name: _digest(value) for name, value in named.items()}})

    def steps(self, total: int | None = None, **stateful: Stateful) -> Iterator[int]:
        """Step numbers from 1 to *total*, which is settings["training"]["steps"] unless given.

        The state of everything in *stateful* (``model=model, optimizer=optimizer``), and of the random number generators of
        Python, numpy and torch, is saved about once a minute and when the user stops. A run that was stopped or killed
        continues after the last saved step, in the same random state.
        """
        total = total if total is not None else self.settings.get("training", {}).get("steps")
        if not isinstance(total, int) or total < 1:
            raise AblationLabError("run.steps() needs the number of steps, or training.steps in the study file")
        first = self._restore(stateful) + 1
        saved = time.monotonic()
        with self._requests_to_stop() as requested:
            for step in range(first, total + 1):
                yield step
                stopping = requested() and step < total
                if stateful and (stopping or time.monotonic() - saved > CHECKPOINT_SECONDS):
                    self._save(step, stateful)
                    saved = time.monotonic()
                if stopping and self._should_stop is None:
                    raise SystemExit(STOPPED_EXIT_CODE)
                if stopping:
                    raise Stopped

    @contextmanager
    def _requests_to_stop(self) -> Iterator[Callable[[], bool]]:
        """A function that says whether a stop was asked for; a program of its own is asked by SIGINT or SIGTERM."""
        if self._should_stop is not None or threading.current_thread() is not threading.main_thread():
            yield self._should_stop or (lambda: False)
            return
        asked: list[int] = []
        before = {
            number: signal.signal(number, lambda number, _: asked.append(number))
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield lambda: bool(asked)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def log(self, step: int, *, fed: Any = None, **numbers: float) -> None:
        """Report numbers of a step; ``fed``, the batch, feeds the check that all arms see the same data in the same order."""
        line: dict[str, Any] = {"step": int(step), **{name: float(value) for name, value in numbers.items()}}
        if fed is not None:
            order = self._order if self._order is not None else self._order_before(step)
            line["data_order"] = self._order = hashlib.sha256(f"{order} {_digest(fed)}".encode()).hexdigest()
        self._write(line)

    def _order_before(self, step: int) -> str:
        """The data order that an earlier start of this run reported last before *step*; empty at the first step."""
        earlier = [line for line in step_lines(reported_lines(self.folder)) if line["step"] < step]
        return str(earlier[-1].get("data_order", "")) if earlier else ""

    def budget(self, *, tokens: int | None = None, flops: float | None = None) -> None:
        """Report what the run cost, for the ledger."""
        self._write({name: value for name, value in (("tokens", tokens), ("flops", flops)) if value is not None})

    def diverged(self, step: int, cause: str) -> None:
        """Report that the run diverged. Its trainer then ends; the study counts it as a result, not as a failure."""
        self._write({"diverged": {"step": int(step), "cause": str(cause)}})

    def finish(self, **metrics: float) -> None:
        """Report the metrics that the run ended with. Where it is called again, the last call counts."""
        unread, asked = self.settings.unread()
        if unread:
            self._write({"unread": {"settings": unread, "asked": asked}})
        self._write({"result": {name: float(value) for name, value in metrics.items()}})

    def _write(self, line: Mapping[str, Any]) -> None:
        with (self.folder / REPORTED).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _save(self, step: int, stateful: Mapping[str, Stateful]) -> None:
        from safetensors.torch import save

        tensors: dict[str, Any] = {}
        state = {name: _taken(thing.state_dict(), name, tensors) for name, thing in stateful.items()}
        state["random"] = _taken(_random_state(), "random", tensors)
        blob = save(tensors)
        body = {"step": step, "sha256": hashlib.sha256(blob).hexdigest(), "state": state}
        # The file that state.json does not name is replaced, so that the state is whole whenever this is killed.
        name = _other(self.folder)
        replace(self.folder / name, blob)
        replace(self.folder / f"{STATE}.json", json.dumps({"tensors": name, **body}).encode())

    def _restore(self, stateful: Mapping[str, Stateful]) -> int:
        """Load the last saved state, if there is one, and void what was reported after it; its step, or 0."""
        from safetensors.torch import load

        path = self.folder / f"{STATE}.json"
        if not stateful or not path.exists():
            return 0
        saved = read_json(path)
        blob = read_regular(self.folder / saved["tensors"], most=None)
        if hashlib.sha256(blob).hexdigest() != saved["sha256"]:
            raise RecordError(
                f"{path} and its tensors do not belong together; move the run's folder away and run again"
            )
        tensors = load(blob)
        for name, thing in stateful.items():
            if name not in saved["state"]:
                raise AblationLabError(
                    f"run.steps({name}=...): the saved state has no {name!r}; it was saved by other code"
                )
            thing.load_state_dict(_given(saved["state"][name], tensors))
        _restore_random(_given(saved["state"]["random"], tensors))
        step: int = saved["step"]
        cut_back(self.folder, step)
        return step


def _other(folder: Path) -> str:
    """Of the two files of tensors, the one that state.json does not name."""
    path = folder / f"{STATE}.json"
    names = [f"{STATE}-{number}.safetensors" for number in (0, 1)]
    return names[1] if path.exists() and read_json(path)["tensors"] == names[0] else names[0]


#: Its name in ``import ablationlab as lab``.
Run = TrainerRun


def current_run() -> TrainerRun:
    """The run for which the ``command`` of a study file started this program."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        raise AblationLabError(
            f"{FOLDER_VARIABLE} is not set: this program was not started by `ablationlab run`, as the command of a study"
        )
    return TrainerRun(Path(folder))


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch, as is done before a registered trainer is called."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the user's code may use the global generator
    torch.manual_seed(seed)


def _digest(value: Any) -> str:
    """SHA-256 of an array's bytes, of text, or of a nest of them."""
    if isinstance(value, Mapping):
        return hashlib.sha256(" ".join(f"{key}={_digest(value[key])}" for key in sorted(value)).encode()).hexdigest()
    if isinstance(value, str | bytes):
        return hashlib.sha256(value.encode() if isinstance(value, str) else value).hexdigest()
    if isinstance(value, list | tuple):
        return hashlib.sha256(" ".join(map(_digest, value)).encode()).hexdigest()
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float().numpy() if str(value.dtype) == "torch.bfloat16" else value.numpy()
    import numpy as np

    array = np.ascontiguousarray(value)
    return hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes()).hexdigest()


def _random_state() -> dict[str, Any]:
    import numpy as np
    import torch

    kind, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def _restore_random(state: dict[str, Any]) -> None:
    import numpy as np
    import torch

    random.setstate(state["python"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def _taken(value: Any, path: str, tensors: dict[str, Any]) -> Any:
    """A state as JSON; its tensors are put into *tensors*, by their path."""
    if hasattr(value, "detach"):
        tensors[path] = value.detach().cpu().contiguous().clone()
        return {"tensor": path}
    if isinstance(value, Mapping):
        return {"table": [[_taken(k, path, tensors), _taken(v, f"{path}.{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        items = [_taken(item, f"{path}.{number}", tensors) for number, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value} if not isinstance(value, float) or math.isfinite(value) else {"float": str(value)}
    raise AblationLabError(
        f"run.steps() cannot save {path}: {type(value).__name__} is neither a tensor nor a plain value"
    )


def _given(saved: Any, tensors: Mapping[str, Any]) -> Any:
    [(kind, value)] = saved.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "table":
        return {_given(k, tensors): _given(v, tensors) for k, v in value}
    if kind in ("list", "tuple"):
        items = [_given(item, tensors) for item in value]
        return tuple(items) if kind == "tuple" else items
    return float(value) if kind == "float" else value


# ---- reported.jsonl -----------------------------------------------------------------------------------------------------


def parsed_lines(path: Path, data: bytes) -> list[dict[str, Any]]:
    """The complete lines of a reported.jsonl."""
    lines = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        if not line.strip():
            continue
        try:
            parsed = parse_json(line)
        except ValueError as error:
            raise RecordError(f"{path}, line {number}: not JSON: {line[:80].decode(errors='replace')!r}") from error
        if not isinstance(parsed, dict):
            raise RecordError(f"{path}, line {number}: {line[:80].decode(errors='replace')!r} is not a JSON object")
        lines.append(parsed)
    return lines


def reported_lines(folder: Path) -> list[dict[str, Any]]:
    """Everything that a run's trainer reported; none if nothing."""
    path = folder / REPORTED
    return parsed_lines(path, read_regular(path)) if path.exists() else []


def step_lines(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The lines of steps, ascending. Where a lower step follows, the run was continued there: what came after is void."""
    kept: list[dict[str, Any]] = []
    for line in lines:
        if isinstance(line.get("step"), int):
            while kept and kept[-1]["step"] > line["step"]:
                kept.pop()
            if kept and kept[-1]["step"] == line["step"]:
                kept[-1] |= line
            else:
                kept.append(dict(line))
    return kept


def cut_back(folder: Path, step: int | None = None) -> None:
    """Before a run continues: void a torn last line, its end (result, divergence), and all that came after *step*."""
    path = folder / REPORTED
    if not path.exists():
        return
    kept: list[dict[str, Any]] = []
    for line in reported_lines(folder):
        if step is not None and isinstance(line.get("step"), int) and line["step"] > step:
            break
        if not line.keys() & {"result", "diverged"}:
            kept.append(line)
    replace(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
