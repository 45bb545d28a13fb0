"""Training a study under a torchrun of one's own, on one machine or on many:

    torchrun --nproc-per-node 8 -m ablationlab.cli.torchrun STUDY [--out FOLDER] [--set KEY=VALUE]... [--device cuda]

Does what `ablationlab run STUDY --executor torchrun` does up to the end of training; `ablationlab run STUDY` then finds every
run done, evaluates and concludes. With several machines the results folder must be one that all of them see.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from ablationlab.core.errors import AblationLabError
from ablationlab.records.folders import ResultsFolder
from ablationlab.records.plan import Plan
from ablationlab.study.load import load_study
from ablationlab.training.executors.job import Event, Job, Others, open_stacks
from ablationlab.training.executors.torchrun import check, told_as_failure, work

FAILED, INTERRUPTED = 1, 130
REPORT_STEPS = 100  # a line at least so often, in steps
WORDS = {
    "elsewhere": "trained by another process",
    "busy": "another process is at it; coming back to it later",
    "stopped": "stopped at a step boundary, with a checkpoint; the same command goes on from there",
}


def main() -> None:
    """One rank of torchrun's."""
    words = _words(sys.argv[1:])
    leads = os.environ.get("RANK", "0") == "0"
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(number)  # nothing more inside a handler: the loop looks at it

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)
    with told_as_failure(_say):
        from ablationlab.model.device import choose_device
        from ablationlab.training.distributed.ranks import Ranks

        ranks = Ranks.join(choose_device(words.device)[0])
        job = _job(words, ranks)
        results = ResultsFolder(job.folder)
        say = _say if leads else lambda _: None
        others = Others(results, say)

        def choose() -> list[int] | None:
            left = open_stacks(job.plan, results)
            return (others.leave_free(left) or None) if left else []

        finished = work(job, choose, ranks, say, lambda: bool(asked))
        if leads and finished:
            from ablationlab.study.status import check_ledger

            pairs = check_ledger(job.plan, results)
            print(
                f"All {len(job.plan.runs)} runs are trained; {pairs} variant-baseline pairs match. Evaluate and conclude "
                "with: ablationlab run",
                end=" ",
            )
            print(f"{words.study} --out {job.folder}", flush=True)
        ranks.leave()
    sys.exit(0 if finished else INTERRUPTED)


def _words(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="torchrun ... -m ablationlab.cli.torchrun", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("study", type=Path, help="The study file (TOML).")
    parser.add_argument("--out", type=Path, help="Results folder. Default: results/<study name>.")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="Override a setting.")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--accept-drift", action="store_true", help="Go on in another environment; recorded.")
    return parser.parse_args(arguments)


def _job(words: argparse.Namespace, ranks: Any) -> Job:
    """The leader seals the plan, or opens the sealed one; the others read it."""
    from ablationlab.pipeline import checked_drift, seal
    from ablationlab.study.plan import default_folder

    study = load_study(words.study, words.set)
    check(study, ranks.world)
    results = ResultsFolder((words.out or default_folder(study)).resolve())

    def prepare() -> list[str]:
        plan, corpus = seal(study, results, words.device, ranks.world)
        done = not open_stacks(plan, results)
        return list(checked_drift(plan, corpus, words.device, accept=words.accept_drift or done))

    drift = tuple(ranks.share(prepare))
    plan = Plan.read(results.plan)
    if plan.study_hash != study.hash:
        raise AblationLabError(f"rank {ranks.rank} read another study than the one sealed in {results.path}")
    return Job(plan, results.path, study.data, drift, words.accept_drift)


def _say(event: Event) -> None:
    """A line for what matters; torchrun's own output stands around it."""
    if event.kind == "progress":
        now = event.payload
        if now.note:
            print(f"stack {event.stack}: {now.note}", flush=True)
        elif now.step % REPORT_STEPS == 0 or now.step == now.steps:
            text = f"step {now.step} of {now.steps}  loss {now.loss:.4f}  |g| {now.gradient_norm:.3f}"
            print(f"stack {event.stack}: {text}  {now.tokens_per_second:,.0f} tok/s", flush=True)
    elif event.kind == "failed":
        print(f"error: {event.payload['text']}", file=sys.stderr, flush=True)
    elif event.kind == "waiting":
        print(f"All that is left is being trained by another process ({event.payload}); waiting for it.", flush=True)
    elif event.stack < 0:
        print(event.kind, flush=True)
    else:
        print(f"stack {event.stack}: {WORDS.get(event.kind, event.kind)}", flush=True)


if __name__ == "__main__":
    main()
