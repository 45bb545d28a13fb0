"""Train a study under a torchrun of your own, on one machine or on many:

    torchrun --nproc-per-node 8 -m ablationlab.cli.torchrun STUDY [--out FOLDER] [--set KEY=VALUE]... [--device cuda]

Does what `ablationlab run STUDY --executor torchrun` does up to the end of training; `ablationlab run STUDY` then finds every
run done, evaluates and concludes. With several machines the results folder must be one that all of them see.
"""

from __future__ import annotations

import argparse
import signal
import sys
from functools import partial
from pathlib import Path
from types import FrameType

from ablationlab import pipeline
from ablationlab.cli.common import INTERRUPTED
from ablationlab.core.format import amount, fixed, plain
from ablationlab.records.storage import ResultsFolder
from ablationlab.training.executors.job import Event
from ablationlab.training.executors.torchrun import exit_on_failure

REPORT_STEPS = 100  # a line at least so often, in steps
WORDS = {
    "elsewhere": "trained by another process",
    "busy": "another process is training it; coming back to it later",
    "stopped": "stopped at a step boundary, with a checkpoint; the same command continues from there",
}


def main() -> None:
    """One rank of torchrun's."""
    options = _parsed(sys.argv[1:])
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        signals.append(number)  # nothing more inside a handler: the loop looks at it

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    code = 0
    with exit_on_failure(_print_event):
        from ablationlab.model.machine import choose_device
        from ablationlab.training.distributed.ranks import Ranks

        ranks = Ranks.join(choose_device(options.device)[0])
        study, results = pipeline.open_study(options.study, options.out, options.set)
        try:
            pipeline.train(
                study,
                ResultsFolder(results.path.resolve()),
                pipeline.Options(device=options.device, executor="torchrun", accept_drift=options.accept_drift),
                partial(_print, options.study) if ranks.leads else lambda _: None,
                ranks=ranks,
                should_stop=lambda: bool(signals),
            )
        except pipeline.Interrupted:
            code = INTERRUPTED
        ranks.leave()
    sys.exit(code)


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="torchrun ... -m ablationlab.cli.torchrun", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("study", type=Path, help="The study file (TOML).")
    parser.add_argument("--out", type=Path, help="Results folder. Default: results/<study name>.")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="Override a setting.")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--accept-drift", action="store_true", help="Continue in another environment; recorded.")
    return parser.parse_args(arguments)


def _print(study: Path, event: object) -> None:
    """Lines for what matters; torchrun's own output is printed around them."""
    if isinstance(event, Event):
        _print_event(event)
    elif isinstance(event, pipeline.LedgerChecked):
        print(
            f"All {len(event.plan.runs)} runs are trained; {event.pairs} variant-baseline pairs match. Evaluate and conclude "
            f"with: ablationlab run {study} --out {event.results.path}",
            flush=True,
        )


def _print_event(event: Event) -> None:
    if event.kind == "progress":
        now = event.payload
        if now.note:
            print(f"stack {event.stack}: {now.note}", flush=True)
        elif now.step % REPORT_STEPS == 0 or now.step == now.steps:
            text = f"step {now.step} of {now.steps}  loss {fixed(now.loss, 4)}  |g| {fixed(now.gradient_norm, 3)}"
            print(f"stack {event.stack}: {text}  {plain(amount(now.tokens_per_second))} tok/s", flush=True)
    elif event.kind == "failed":
        print(f"error: {event.payload['text']}", file=sys.stderr, flush=True)
    elif event.kind == "waiting":
        print(f"Another process is training all that is left ({event.payload}); waiting for it.", flush=True)
    elif event.stack < 0:
        print(event.kind, flush=True)
    else:
        print(f"stack {event.stack}: {WORDS.get(event.kind, event.kind)}", flush=True)


if __name__ == "__main__":
    main()
