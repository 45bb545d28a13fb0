"""Callbacks that report a run of the Hugging Face `Trainer` or of Lightning. Neither library is imported until one is made.

    trainer = transformers.Trainer(..., callbacks=[ablationlab.huggingface_callback()])
    trainer = lightning.Trainer(..., callbacks=[ablationlab.lightning_callback()])

Both take the run that the program was started for (`current_run`), log every number that the library logs, report hashes of
the initial weights, and report as the result the last value of each metric that the study names. To rename one:
``huggingface_callback(metrics={"val_loss": "eval_loss"})``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablationlab.training.own_run import Run, current_run


def huggingface_callback(run: Run | None = None, metrics: Mapping[str, str] | None = None) -> Any:
    """For ``callbacks=[...]`` of a Hugging Face Trainer; *metrics*: the study's name -> the Trainer's."""
    from transformers import TrainerCallback

    reporter = _Reporter(run or current_run(), metrics or {})

    class Callback(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, _args: Any, _state: Any, _control: Any, model: Any = None, **_: Any) -> None:
            if model is not None:
                reporter.run.started(model)

        def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
            reporter.log(state.global_step, logs or {})

        def on_evaluate(self, _args: Any, state: Any, _control: Any, metrics: Any = None, **_: Any) -> None:
            reporter.log(state.global_step, metrics or {}, result=True)

    return Callback()


def lightning_callback(run: Run | None = None, metrics: Mapping[str, str] | None = None) -> Any:
    """For ``callbacks=[...]`` of a Lightning Trainer; *metrics*: the study's name -> the one it is logged by."""
    from lightning.pytorch import Callback as Base

    reporter = _Reporter(run or current_run(), metrics or {})

    class Callback(Base):  # type: ignore[misc]
        def on_fit_start(self, _trainer: Any, module: Any) -> None:
            reporter.run.started(module)

        def on_train_batch_end(self, trainer: Any, _module: Any, outputs: Any, batch: Any, _index: int) -> None:
            loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs
            numbers = {} if loss is None else {"loss": float(loss)}
            reporter.log(trainer.global_step, numbers, fed=batch)

        def on_validation_end(self, trainer: Any, _module: Any) -> None:
            if not trainer.sanity_checking:
                reporter.log(trainer.global_step, dict(trainer.callback_metrics), result=True)

    return Callback()


class _Reporter:
    def __init__(self, run: Run, renamed: Mapping[str, str]) -> None:
        self.run, self.renamed = run, renamed
        self._results: dict[str, float] = {}

    def log(self, step: int, numbers: Mapping[str, Any], *, fed: Any = None, result: bool = False) -> None:
        """Report a step; with *result*, the numbers so far are what the run would end with."""
        known = {name: float(value) for name, value in numbers.items() if _is_number(value)}
        known |= {own: known[theirs] for own, theirs in self.renamed.items() if theirs in known}
        if known:
            self.run.log(step, fed=fed, **{name: value for name, value in known.items() if name != "step"})
        if result:
            self._results |= known
            self.run.finish(**self._results)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, bool | str)
