"""Which comparisons are made, under which question, and in which family their tests are corrected."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ablationlab.analysis.material import Arm, Ask, Material
from ablationlab.records.analysis import MACRO, Label
from ablationlab.records.metrics import Metric


@dataclass(frozen=True)
class Question:
    """One comparison to make. *standing*: registered before the runs, stated by the user now, or made unasked."""

    metric: Metric
    task: str | None
    regime: str
    variant: str
    reference: str
    ask: Ask
    standing: Literal["registered", "stated", "exploratory"]

    @property
    def id(self) -> str:
        """Its name everywhere: metric/[task/]regime/variant:reference."""
        parts = [self.metric.name, *([self.task] if self.task is not None else []), self.regime]
        return "/".join([*parts, f"{self.variant}:{self.reference}"])

    @property
    def label(self) -> Label:
        """What was not registered is exploratory."""
        return "registered" if self.standing == "registered" else "exploratory"

    @property
    def family(self) -> str:
        """Tests of one family are corrected together: per metric family, over variants, regimes and tasks.

        The macro average summarizes the tasks, so it is not one more of them: it has a family over variants and regimes.
        """
        whole = "/macro" if self.task == MACRO else ""
        return f"{self.standing}/{self.metric.family}{whole}/{self.ask.correction}"

    def arms(self) -> tuple[Arm, Arm]:
        """The two arms."""
        task, regime, name = self.task, self.regime, self.metric.name
        return Arm(name, task, regime, self.variant), Arm(name, task, regime, self.reference)


def questions(material: Material) -> list[Question]:
    """Every metric and task, in every regime, for every pair of arms; in a fixed order."""
    found = []
    for metric, task in dict.fromkeys((arm.metric, arm.task) for arm in material.values):
        for regime in material.asked_regimes():
            for variant, reference in material.pairs():
                ask, standing = _answering(material, metric, task, regime, (variant, reference))
                found.append(
                    Question(material.metrics[metric], task, regime, variant, reference, ask, standing),
                )
    return found


def _answering(
    material: Material, metric: str, task: str | None, regime: str, pair: tuple[str, str]
) -> tuple[Ask, Literal["registered", "stated", "exploratory"]]:
    """The question that covers this comparison, the most particular first; else how its metric is tested elsewhere."""
    same = [ask for ask in material.asks if ask.metric == metric]
    covering = [ask for ask in same if ask.regime in (None, regime) and _covers(ask, pair, material.baseline)]
    if covering and task not in material.exploratory_tasks:
        best = next((ask for ask in covering if ask.contrast is not None), covering[0])
        return best, "registered" if best.registered else "stated"
    if same:
        return replace(same[0], role=None, registered=False), "exploratory"
    return Ask(metric), "exploratory"


def _covers(ask: Ask, pair: tuple[str, str], baseline: str) -> bool:
    return set(ask.contrast) == set(pair) if ask.contrast is not None else pair[1] == baseline
