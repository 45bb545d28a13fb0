"""One small analyzed study of each kind of evidence, by name: what `test_answers.py` prints and follows."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from ablationlab.analysis import TableOptions
from ablationlab.analysis.conclusion import conclude
from ablationlab.analysis.from_table import read_table
from ablationlab.records.results import Results
from ablationlab.records.run import RunRecord
from ablationlab.report.make import with_analysis
from analysis.builder import Metrics, build, calm, seal_again, study
from analysis.test_sweeps import shifted
from report import kinds, maker

ARMS = ["none", "layernorm", "rmsnorm"]
PRIMARY = {"metric": "validation_loss", "role": "primary", "smallest_effect": 0.02, "margin": 0.1}


def _losses(gains: Mapping[str, float], spread: float = 0.01) -> Callable[[str, str, int], Metrics]:
    def ended(variant: str, regime: str, seed: int) -> Metrics:
        noise = np.random.default_rng(seed).normal(0, 0.05)
        own = np.random.default_rng([seed, len(variant), len(regime)]).normal(0, spread)
        return {"validation_loss": 2.5 + noise + own - gains.get(variant, 0.0)}

    return ended


def _made(folder: Path, **changes: object) -> Results:
    outcomes, curves = changes.pop("outcomes", None), changes.pop("curves", None)
    options = {"outcomes": outcomes, **({"curves": curves} if curves is not None else {})}
    swept = {"swept": changes.pop("swept")} if "swept" in changes else {}
    made = study(**{"variants": ARMS, "criteria": [PRIMARY], **changes})
    build(folder, made, **{name: value for name, value in options.items() if value is not None}, **swept)  # type: ignore[arg-type]
    return with_analysis(Results.open(folder), say=lambda text: None)


def clean(folder: Path) -> Results:
    """One variant better, one worse, and a contrast of the two."""
    between = {**PRIMARY, "role": "secondary", "contrast": ["layernorm", "rmsnorm"]}
    gains = {"layernorm": 0.2, "rmsnorm": -0.1}
    return _made(folder, outcomes=_losses(gains), contrasts=[["layernorm", "rmsnorm"]], criteria=[PRIMARY, between])


def undecided(folder: Path) -> Results:
    """Ten variants whose noise hides everything."""
    names = ["none", "layernorm", "rmsnorm", "layernorm-token", "rmsnorm-token", "center-only", "sqrt-d", "untied"]
    return _made(folder, variants=[*names, "rmsnorm-nogain", "layernorm-nobias"], outcomes=_losses({}, 0.1))


def lost(folder: Path) -> Results:
    """A variant that is better and lost one of eight runs; another that lost six."""
    ended = _losses({"layernorm": 0.2, "rmsnorm": 0.2})

    def some(variant: str, regime: str, seed: int) -> Metrics | None:
        gone = (variant, seed) == ("layernorm", 8) or (variant == "rmsnorm" and seed > 2)
        return None if gone else ended(variant, regime, seed)

    def curve(variant: str, regime: str, seed: int) -> list[float]:
        return calm(seed)[: 20 if some(variant, regime, seed) is None else None]

    return _made(folder, seeds=list(range(1, 9)), outcomes=some, curves=curve)


def regimes(folder: Path) -> Results:
    """Two regimes, each with a primary criterion."""
    criteria = [PRIMARY, {**PRIMARY, "regime": "hot"}]
    hot = {"hot": {"training": {"lr": 0.01}}}
    return _made(folder, regimes=hot, criteria=criteria, outcomes=_losses({"layernorm": 0.2}))


def unstable(folder: Path) -> Results:
    """A variant of which seven of eight runs diverge."""
    ended = _losses({})

    def some(variant: str, regime: str, seed: int) -> Metrics | None:
        return None if variant == "rmsnorm" and seed > 1 else ended(variant, regime, seed)

    def curve(variant: str, regime: str, seed: int) -> list[float]:
        return calm(seed)[: 20 if some(variant, regime, seed) is None else None]

    return _made(folder, seeds=list(range(1, 9)), outcomes=some, curves=curve)


def not_measured(folder: Path) -> Results:
    """A primary metric that no run has."""
    primary = {"metric": "macro_accuracy", "role": "primary", "smallest_effect": 0.02}
    return _made(folder, criteria=[primary], evaluation={"tasks": ["arc_easy"]}, outcomes=_losses({}))


def table(folder: Path) -> Results:
    """A user's table with a logarithm, higher is better, and nothing known of budgets."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(3)
    with (folder / "runs.csv").open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["variant", "seed", "speed"])
        for seed in range(6):
            writer.writerow(["a", seed, 100 + rng.normal()])
            writer.writerow(["b", seed, 130 + rng.normal()])
    options = TableOptions.checked(
        baseline="a", primary="speed", higher=("speed",), log=("speed",), smallest_effect=0.05
    )
    concluded = conclude(read_table(folder / "runs.csv", options))
    concluded.write(folder)
    return Results.open(folder)


def interim(folder: Path) -> Results:
    """Three of five seeds have ended."""
    build(
        folder,
        study(variants=ARMS, criteria=[PRIMARY]),
        outcomes=_losses({"layernorm": 0.2}),
        only=lambda run: run.seed < 4,
    )
    return with_analysis(Results.open(folder), say=lambda text: None)


def looks(folder: Path) -> Results:
    """The first of two planned looks, after which the answer waits for the second."""
    design = {"looks": [5, 10], "spending": "front-loaded"}
    return _made(folder, seeds=list(range(1, 6)), design=design, outcomes=_losses({"layernorm": 0.03}, 0.02))


def factors(folder: Path) -> Results:
    """Two crossed settings as regimes: the norm helps at one level of each, and the settings interact."""
    place, large = {"front": {"place": "token"}}, {"token_init_std": 1.0}
    crossed = {"token": {"model": place}, "large": {"model": large}, "token-large": {"model": {**place, **large}}}
    gains = {"default": 0.1, "token": 0.3, "large": -0.2, "token-large": 0.5}

    def ended(variant: str, regime: str, seed: int) -> Metrics:
        own = np.random.default_rng([seed, len(variant), len(regime)]).normal(0, 0.01)
        return {"validation_loss": 2.5 + own - (gains[regime] if variant == "layernorm" else 0.0)}

    criteria = [{**PRIMARY, "regime": regime} for regime in gains]
    return _made(folder, variants=["none", "layernorm"], regimes=crossed, criteria=criteria, outcomes=ended)


def tuned(folder: Path) -> Results:
    """Each arm at its own best rate: one curve for both, which differ only in its place."""
    sweep = {"lr": [1e-3, 2e-3, 4e-3, 8e-3, 16e-3], "selection_seeds": [11, 12]}
    criteria = [{**PRIMARY, "regime": "tuned"}]
    return _made(folder, variants=["none", "layernorm"], sweep=sweep, criteria=criteria, swept=shifted)


def spread(folder: Path) -> Results:
    """Every run over two processes."""
    build(
        folder,
        study(variants=ARMS, criteria=[PRIMARY], execution={"parallel": "ddp"}),
        outcomes=_losses({"rmsnorm": 0.2}),
    )
    for path in folder.glob("runs/*/run.json"):
        record = RunRecord.read(path)
        over = record.execution.model_copy(update={"parallel": "ddp", "ranks": 2})
        record.model_copy(update={"execution": over}).replace(path)
    seal_again(folder)
    return with_analysis(Results.open(folder), say=lambda text: None)


KINDS: Mapping[str, Callable[[Path], Results]] = {
    "clean": clean,
    "undecided": undecided,
    "lost-runs": lost,
    "unstable": unstable,
    "regimes": regimes,
    "swept": maker.full,
    "not-measured": not_measured,
    "interim": interim,
    "looks": looks,
    "table": table,
    "factors": factors,
    "tuned": tuned,
    "over-processes": spread,
    "unpaired": lambda folder: kinds.unpaired_study(folder, "disjoint"),
    "all-diverged": kinds.broken_study,
    "no-spread": kinds.unvaried_study,
}


@cache
def made(kind: str) -> Results:
    """Made once for a process; nobody may write there."""
    return KINDS[kind](Path(mkdtemp(prefix=f"answers-{kind}-")) / "study")
