"""Train a study under a torchrun that you start, on one machine or on many:

    torchrun --nproc-per-node 8 -m ablationlab.cli.torchrun STUDY [--out FOLDER] [--set KEY=VALUE]... [--device cuda]

Does what `ablationlab run STUDY --executor torchrun` does up to the end of training; `ablationlab run STUDY` then finds every
run done, evaluates and concludes. With several machines the results folder must be one that all of them see.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from rich.console import Console

from ablationlab import pipeline
from ablationlab.cli.common import INTERRUPTED
from ablationlab.core.paths import real_path
from ablationlab.records.storage import ResultsFolder
from ablationlab.training.executors.job import Event
from ablationlab.training.executors.torchrun import exit_on_failure


def main() -> None:
    """One rank of torchrun's."""
    options = _parsed(sys.argv[1:])
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        signals.append(number)  # nothing more inside a handler: the loop looks at it

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    code = 0
    with exit_on_failure(_print_failure):
        from ablationlab.model.machine import choose_device
        from ablationlab.training.distributed.ranks import Ranks

        ranks = Ranks.join(choose_device(options.device)[0])
        study, results = pipeline.open_study(options.study, options.out, options.set)
        try:
            pipeline.train(
                study,
                ResultsFolder(real_path(results.path)),
                pipeline.Options(device=options.device, executor="torchrun", accept_drift=options.accept_drift),
                _listener(options.study) if ranks.leads else lambda _: None,
                ranks=ranks,
                should_stop=lambda: bool(signals),
            )
        except pipeline.Interrupted as stop:
            code = INTERRUPTED
            if ranks.leads:
                print(stop, flush=True)
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


def _listener(study: Path) -> pipeline.Listener:
    """Lines for what matters, never a live display: torchrun's own output is printed around them."""
    progress = pipeline.TrainingProgress(Console(force_terminal=False))

    def hear(event: pipeline.PipelineEvent) -> None:
        progress(event)
        if isinstance(event, pipeline.LedgerChecked):
            print(
                f"All {len(event.plan.runs)} runs are trained; {event.pairs} variant-baseline pairs match. Evaluate and "
                f"conclude with: ablationlab run {study} --out {event.results.path}",
                flush=True,
            )

    return hear


def _print_failure(event: Event) -> None:
    print(f"error: {event.payload['text']}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
