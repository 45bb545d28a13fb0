"""One GPU: do torchrun, micro-batches and the dropout kernel keep there the promises that the tests prove on a CPU?

    python benchmarks/gpu_scale.py                        # about two minutes on one GPU
    python benchmarks/gpu_scale.py --tiny --device cpu    # any machine: tiny shapes, to see that the script runs
    python benchmarks/gpu_scale.py --part passes          # one part alone: torchrun, passes or dropout

torchrun: one process a run with ddp and with fsdp (NCCL on a GPU), in bf16, its losses beside the local executor's; stopped
          by SIGINT and gone on from its checkpoint it ends in the weights of an undisturbed run; computing activations again
          changes no bit; the probes of ddp beside the local executor's.
passes:   `training.micro_batch` in the step that a GPU records as a graph: the same losses to rounding, the same bits twice.
dropout:  the kernel's masks are those of the plain form, bit for bit; the losses of 50 steps beside the plain form's; the
          same bits twice.

Every check is a line PASS or FAIL with its figures. The parts run side by side, each with its own time limit, and none
stops another. Exit code 1 if a check failed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

if sys.platform != "win32" and "cpu" in sys.argv:  # before Triton is imported: its kernels then run on the processor
    os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np

from ablationlab.records.probes import ProbeLine, read_probes
from ablationlab.records.storage import RunFolder

PART_SECONDS = {"cuda": 130.0, "cpu": 900.0}
# Largest relative difference of a loss that counts as rounding: after the first step, whose weights are the same, and later,
# when it has had time to grow. In fp32 the runs of the part about micro-batches agree to 1e-7 for 20 steps; then the one with
# LayerNorm leaves its plateau, its gradient jumps, and 1e-3 is between them, on a CPU (1.3e-3) as on a GPU (1.6e-3).
FIRST_STEP, LATER = {"fp32": 1e-5, "bf16": 1e-3}, {"fp32": 4e-3, "bf16": 2e-2}
PROBES_FIRST_STEP = 2e-2
DROPOUT_STEPS = 50
KINDS = ("whole", "passes", "again")  # of studies in the part about micro-batches


@dataclass(frozen=True)
class Size:
    """How large everything is."""

    device: Literal["cpu", "cuda"]
    model: Mapping[str, Any]
    batch: int
    micro_batch: int
    steps: int
    every: int  # steps between two checkpoints
    corpus: str

    def study(self, folder: Path, **changes: Any) -> Path:
        """A study of one pair of variants, as a file."""
        parts: dict[str, dict[str, Any]] = {
            "model": dict(self.model),
            "training": {"steps": self.steps, "batch": self.batch, "lr": 1e-3, "warmup": 5, "precision": "bf16"},
            "data": {"corpus": self.corpus},
            "execution": {"checkpoint_every": self.every, "threads": 1},
            "probes": {},
        }
        top: dict[str, Any] = {
            "name": "gpu-scale",
            "question": "Does it keep its promises here?",
            "baseline": "none",
            "variants": ["none", "layernorm"],
            "seeds": [1],
        }
        for key, value in changes.items():
            part, _, name = key.partition("__")
            if name:
                parts[part][name] = value
            else:
                top[key] = value
        lines = [f"{key} = {json.dumps(value)}" for key, value in top.items()]
        for part, values in parts.items():
            if not values:
                continue
            lines += [f"\n[{part}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "study.toml"
        path.write_text("\n".join(lines) + "\n")
        return path


def size_of(options: argparse.Namespace, folder: Path) -> Size:
    """The default study's model and text; or tiny ones."""
    if not options.tiny:
        return Size(options.device, {"preset": "char-mini"}, 16, 4, 120, 10, "tiny-shakespeare")
    text = folder / "corpus.txt"
    words = ("one", "small", "text", "of", "a", "few", "words", "that", "come", "again", "in", "another", "order")
    draws = np.random.default_rng(0).integers(0, len(words), 4000)
    text.write_text(" ".join(words[n] for n in draws) + "\n")
    model = {"layers": 1, "width": 16, "heads": 2, "context": 16}
    return Size(options.device, model, 4, 2, 60, 4, str(text))


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    passed: bool
    text: str

    def __str__(self) -> str:
        return f"{'PASS' if self.passed else 'FAIL'}  {self.text}"


# ---- a study through the command line -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """What a command left: by variant and seed, the losses of every step and the checksum of the last weights."""

    losses: dict[tuple[str, int], list[float]]
    weights: dict[tuple[str, int], str]
    metrics: dict[tuple[str, int], bytes]
    starts: int  # the most that any run took
    layout: tuple[str, int, bool]
    probes: dict[tuple[str, int], list[ProbeLine]]


def train(study: Path, size: Size, *words: str, stop: bool = False, out: str = "results") -> Trained:
    """Run it to its end; with *stop*, SIGINT at its first checkpoint, and then the same command again."""
    folder = study.parent / out
    command = [sys.executable, "-m", "ablationlab", "run", str(study), "--out", str(folder), "--device", size.device]
    command += ["--no-report", *(words or ("--workers", "1"))]
    if stop:
        code, said = _call(command, size, folder)
        if code != 130:
            raise RuntimeError(f"exit code {code} after SIGINT, not 130:\n{said}")
    code, said = _call(command, size)
    if code != 0:
        raise RuntimeError(f"exit code {code}: {' '.join(words)}\n{said}")
    return read(folder)


def _call(command: Sequence[str], size: Size, stop_in: Path | None = None) -> tuple[int, str]:
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            while stop_in is not None and process.poll() is None:
                if any(stop_in.glob("runs/*/checkpoints/step-*")):
                    process.send_signal(signal.SIGINT)
                    break
                time.sleep(0.01)
            code = process.wait(timeout=PART_SECONDS[size.device])
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        output.seek(0)
        return code, output.read()[-3000:]


def read(results: Path) -> Trained:
    """The records of a results folder."""
    losses, weights, metrics, probes, starts, layouts = {}, {}, {}, {}, [], set()
    for folder in sorted((results / "runs").iterdir()):
        record = json.loads((folder / "run.json").read_text())
        result = json.loads((folder / "result.json").read_text())
        key = record["variant"], record["seed"]
        metrics[key] = (folder / "metrics.jsonl").read_bytes()
        losses[key] = [float(json.loads(line)["loss"]) for line in metrics[key].decode().splitlines()[1:]]
        weights[key] = result["weights_sha256"]
        probes[key] = read_probes(RunFolder(folder))
        starts.append(len(result["history"]))
        how = record["execution"]
        layouts.add((how["parallel"], how["ranks"], how["activation_checkpointing"]))
    (layout,) = layouts
    return Trained(losses, weights, metrics, max(starts), layout, probes)


def beside(name: str, ours: Trained, theirs: Trained, precision: str) -> Check:
    """Losses to rounding: the first step, the next 60, and all."""
    found = [
        [abs(a - b) / abs(b) for a, b in zip(ours.losses[key], theirs.losses[key], strict=True)]
        for key in theirs.losses
    ]
    first, early, late = max(row[0] for row in found), max(max(row[:60]) for row in found), max(map(max, found))
    ended = max(abs(ours.losses[key][-1] - losses[-1]) for key, losses in theirs.losses.items())
    passed = first <= FIRST_STEP[precision] and early <= LATER[precision] and math.isfinite(late)
    return Check(
        passed,
        f"{name}, {precision}: largest relative difference of a loss {first:.1e} at step 1 (allowed "
        f"{FIRST_STEP[precision]:g}), {early:.1e} in the first 60 steps (allowed {LATER[precision]:g}), {late:.1e} in all "
        f"{len(found[0])}; last losses differ by {ended:.1e} at most",
    )


def same(name: str, ours: Trained, theirs: Trained) -> Check:
    """Weights and metrics to the bit."""
    unequal = [f"{v} s{s}" for v, s in theirs.weights if ours.weights.get((v, s)) != theirs.weights[v, s]]
    lines = [f"{v} s{s}" for v, s in theirs.metrics if ours.metrics.get((v, s)) != theirs.metrics[v, s]]
    hashes = " ".join(digest[:12] for digest in ours.weights.values())
    differ = f"; other weights: {', '.join(unequal) or 'none'}; other metrics: {', '.join(lines) or 'none'}"
    passed = not unequal and not lines and ours.weights.keys() == theirs.weights.keys()
    return Check(passed, f"{name}: weights {hashes}{'' if passed else differ}")


def probes_beside(name: str, ours: Trained, theirs: Trained) -> Check:
    """Whether the probes looked at the same steps, none failed, and how far their numbers are apart after the first step."""
    pairs = [(a, b) for key in theirs.probes for a, b in zip(ours.probes[key], theirs.probes[key], strict=False)]
    alike = bool(pairs) and all((a.step, a.probe) == (b.step, b.probe) for a, b in pairs)
    alike = alike and all(len(ours.probes[key]) == len(found) for key, found in theirs.probes.items())
    failed = sorted({f"{a.probe}: {a.error or b.error}" for a, b in pairs if a.error or b.error})
    first: dict[str, float] = {}
    for a, b in pairs:
        if a.step == 1 and not a.error and not b.error:
            x, y = (np.array([row.value for row in line.rows]) for line in (a, b))
            first[a.probe] = max(first.get(a.probe, 0.0), float(np.abs(x - y).max() / (np.abs(y).max() + 1e-30)))
    worst = max(first, key=lambda probe: first[probe], default="none")
    passed = alike and not failed and max(first.values(), default=1.0) <= PROBES_FIRST_STEP
    return Check(
        passed,
        f"{name}: {len(pairs)} looks, the same steps and probes: {alike}; failed: {'; '.join(failed) or 'none'}; "
        f"after step 1 apart by {first.get(worst, math.nan):.1e} of the largest value at most, in {worst} (allowed "
        f"{PROBES_FIRST_STEP:g})",
    )


# ---- the parts ----------------------------------------------------------------------------------------------------------


def torchrun_part(size: Size, folder: Path) -> Iterator[Check]:
    """ddp and fsdp in one process each, against the local executor and against themselves."""
    alone = ("--executor", "torchrun", "--nproc", "1")
    kinds = ("ddp", "fsdp")
    looks = {"ddp": {"probes__all": size.steps // 3}, "fsdp": {}}  # in whose shards nobody sees the whole
    studies = {kind: size.study(folder / kind, execution__parallel=kind, **looks[kind]) for kind in kinds}
    again = {
        kind: size.study(folder / f"{kind}-again", execution__parallel=kind, execution__activation_checkpointing=True)
        for kind in kinds
    }
    with ThreadPoolExecutor(7 if size.device == "cuda" else 1) as pool:
        local = pool.submit(train, studies["ddp"], size, out="local")
        calm = {kind: pool.submit(train, studies[kind], size, *alone, out="calm") for kind in kinds}
        stopped = {kind: pool.submit(train, studies[kind], size, *alone, stop=True, out="stopped") for kind in kinds}
        recomputed = {kind: pool.submit(train, again[kind], size, *alone) for kind in kinds}

        def layouts(kind: str) -> Check:
            found = calm[kind].result().layout, recomputed[kind].result().layout
            return Check(found == ((kind, 1, False), (kind, 1, True)), f"{kind}: recorded as {found}")

        def starts(kind: str) -> Check:
            found = stopped[kind].result().starts
            return Check(found == 2, f"{kind} stopped by SIGINT in the middle of a run: {found} starts")

        def checks(kind: str) -> dict[str, Callable[[], Check]]:
            return {
                f"torchrun {kind} beside local": lambda: beside(
                    f"torchrun {kind} beside local", calm[kind].result(), local.result(), "bf16"
                ),
                f"{kind} recorded": lambda: layouts(kind),
                f"{kind} stopped": lambda: starts(kind),
                f"{kind} gone on": lambda: same(
                    f"{kind} gone on from its checkpoint, against undisturbed",
                    stopped[kind].result(),
                    calm[kind].result(),
                ),
                f"{kind} recomputing": lambda: same(
                    f"{kind} computing activations again, against keeping them",
                    recomputed[kind].result(),
                    calm[kind].result(),
                ),
            }

        for kind in kinds:
            for name, check in checks(kind).items():
                yield attempt(name, check)
        name = "probes of torchrun ddp beside local"
        yield attempt(name, lambda: probes_beside(name, calm["ddp"].result(), local.result()))


def passes_part(size: Size, folder: Path) -> Iterator[Check]:
    """A stack of four runs in the local executor, whole batches and micro-batches."""
    precisions = ("bf16", "fp32") if size.device == "cuda" else ("fp32",)
    width = 4 if size.device == "cuda" else 1
    name = f"micro_batch = {size.micro_batch} of {size.batch}"
    with ThreadPoolExecutor(6 if size.device == "cuda" else 1) as pool:

        def start(kind: str, precision: str) -> Future[Trained]:
            changes: dict[str, Any] = {"seeds": [1, 2], "training__precision": precision}
            changes |= {"execution__stack_width": width}
            changes |= {} if kind == "whole" else {"training__micro_batch": size.micro_batch}
            return pool.submit(train, size.study(folder / f"{kind}-{precision}", **changes), size)

        found = {(kind, precision): start(kind, precision) for precision in precisions for kind in KINDS}

        def sums(precision: str) -> Check:
            passes, whole = (found[kind, precision].result() for kind in ("passes", "whole"))
            return beside(f"{name} beside whole batches", passes, whole, precision)

        def twice(precision: str) -> Check:
            again, passes = (found[kind, precision].result() for kind in ("again", "passes"))
            return same(f"{name}, {precision}, twice", again, passes)

        for precision in precisions:
            yield attempt(f"{name}, {precision}", partial(sums, precision))
            yield attempt(f"{name}, {precision}, twice", partial(twice, precision))


def dropout_part(size: Size, folder: Path) -> Iterator[Check]:
    """The kernel against the plain form, in this process."""
    import torch

    import ablationlab.model.dropout
    from ablationlab.data.corpus import load_corpus
    from ablationlab.model import gpt as model_module
    from ablationlab.model import ops
    from ablationlab.model import optimizers as optim
    from ablationlab.model.device import compute_dtype, prepare
    from ablationlab.model.dropout import Dropout, dropout_keys, dropout_sites
    from ablationlab.model.kernels.dropout import dropped
    from ablationlab.model.machine import Precision
    from ablationlab.records.plan import Execution
    from ablationlab.records.settings import DataConfig, ModelConfig, TrainingConfig, validated
    from ablationlab.study.variants import VARIANTS
    from ablationlab.training.stack import Member, Stack

    corpus = load_corpus(DataConfig(corpus=size.corpus))
    vocabulary = corpus.record.vocabulary
    model = validated(ModelConfig, {**size.model, "vocabulary": vocabulary, "dropout": 0.2})
    device = torch.device(size.device)
    steps = DROPOUT_STEPS if size.device == "cuda" else 2
    seeds = (1, 2) if size.device == "cuda" else (1,)  # an interpreter is slow
    modules: tuple[Any, ...] = (ablationlab.model.dropout, ops, model_module, optim)
    before = {module: module.fused for module in modules}
    # Without a GPU Triton's interpreter takes this one kernel alone.
    kernels_in = {
        **before,
        ablationlab.model.dropout: before[ablationlab.model.dropout] if size.device == "cuda" else lambda _: True,
    }

    def masks() -> Check:
        sites = dropout_sites(model)
        keys = torch.from_numpy(dropout_keys([1, 2], 7, sites)).to(device)
        rates, unequal, kept = (0.1, 0.2, 0.5), 0, []
        for rate in rates:
            plain = Dropout(rate, sites, keys, 3)
            for number, site in enumerate(sites[: 2 * len(seeds)]):
                ones = torch.ones(2, size.batch, model.context, model.width, device=device)
                ours = dropped(ones, keys[number], 3, rate) != 0
                unequal += int((ours != plain.mask(site, ones.shape)).sum())
            kept.append(f"{float(ours.double().mean()):.4f}")
        return Check(unequal == 0, f"masks: {unequal} bits differ; kept {', '.join(kept)} at rates 0.1, 0.2, 0.5")

    def course(precision: Precision, *plain: Any) -> tuple[list[list[float]], torch.Tensor]:
        """Losses and last weights with kernels everywhere but in the modules *plain*."""
        prepare(
            Execution(device=size.device, device_name="", precision=precision, stack_width=2 * len(seeds), threads=1)
        )
        training = TrainingConfig(steps=steps, batch=size.batch, lr=1e-3, warmup=5, precision=precision)
        members = [
            Member(f"{name} s{seed}", seed, 1e-3, VARIANTS[name].apply(model))
            for name in ("none", "layernorm")
            for seed in seeds
        ]
        for module in modules:
            module.fused = (lambda _: False) if module in plain else kernels_in[module]
        dtype = compute_dtype(precision)
        stack = Stack(members, len(members), training, steps, corpus.train, device, dtype)
        rows = [stack.train_step(step, stack.offsets(step)).loss.tolist() for step in range(1, steps + 1)]
        return rows, stack.weights_RP.detach().cpu().clone()

    def compared(precision: Precision) -> Iterator[Check]:
        ours, weights = course(precision)
        again, weights_again = course(precision)
        others = {"the dropout kernel beside its plain form": (ablationlab.model.dropout,)}
        if size.device == "cuda":
            others["all kernels in a graph beside plain torch"] = modules
        for name, plain in others.items():
            losses, other = course(precision, *plain)
            difference = np.abs(np.array(ours) - np.array(losses)) / np.abs(np.array(losses))
            first, late = float(difference[0].max()), float(difference.max())
            yield Check(
                first <= FIRST_STEP[precision] and late <= LATER[precision],
                f"dropout 0.2, {precision}, {name}: largest relative difference of a loss {first:.1e} at step 1 (allowed "
                f"{FIRST_STEP[precision]:g}), {late:.1e} in {steps} steps (allowed {LATER[precision]:g}); weights differ by "
                f"{float((weights - other).abs().max()):.1e} at most",
            )
        yield Check(
            ours == again and torch.equal(weights, weights_again),
            f"dropout 0.2, {precision}, twice: losses and weights the same bits",
        )
        yield Check(
            ours[-1] != ours[0] and bool(np.isfinite(ours).all()), f"losses {ours[0][0]:.4f} to {ours[-1][0]:.4f}"
        )

    try:
        yield attempt("masks", masks)
        precisions: tuple[Precision, ...] = ("fp32", "bf16") if size.device == "cuda" else ("fp32",)
        for precision in precisions:
            try:
                yield from compared(precision)
            except Exception:
                yield Check(False, f"dropout, {precision}:\n{traceback.format_exc()}")
    finally:
        for module, fused in before.items():
            module.fused = fused


PARTS: dict[str, Callable[[Size, Path], Iterator[Check]]] = {
    "torchrun": torchrun_part,
    "passes": passes_part,
    "dropout": dropout_part,
}


def attempt(name: str, check: Callable[[], Check]) -> Check:
    """A check, or a failed one that says why it could not be made."""
    try:
        return check()
    except Exception as error:
        return Check(False, f"{name}: {type(error).__name__}: {error}")


def one_part(name: str, options: argparse.Namespace) -> bool:
    """Make a part's checks here; whether all passed."""
    with tempfile.TemporaryDirectory(prefix=f"gpu-scale-{name}-") as folder:
        passed, began = True, time.monotonic()
        for check in PARTS[name](size_of(options, Path(folder)), Path(folder)):
            print(f"{name}: {check}", flush=True)
            passed = passed and check.passed
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    return passed


def all_parts(names: Sequence[str], options: argparse.Namespace) -> bool:
    """Every part as a process of its own, with its time limit: at once on a GPU, in turn elsewhere."""

    limit = PART_SECONDS[options.device]

    def start(name: str) -> bool:
        words = [sys.executable, __file__, "--part", name, "--here", "--device", options.device]
        process = subprocess.Popen(
            [*words, *(["--tiny"] if options.tiny else [])],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            said += f"{name}: {Check(False, f'not done after {limit:.0f} s')}\n"
        if process.returncode not in (0, 1):
            said += f"{name}: {Check(False, f'exit code {process.returncode}')}\n"
        print(said, end="", flush=True)
        return process.returncode == 0

    with ThreadPoolExecutor(len(names) if options.device == "cuda" else 1) as pool:
        return all(list(pool.map(start, names)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line a check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=tuple(PARTS), nargs="+", default=list(PARTS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    if options.here:
        passed = [one_part(name, options) for name in options.part]
        return 0 if all(passed) else 1
    fine = all_parts(options.part, options)
    print(f"{'PASS' if fine else 'FAIL'}  all of {', '.join(options.part)}, {time.monotonic() - began:.0f} s")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
