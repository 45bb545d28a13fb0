"""Results with everything in it: probes, evaluation and a sweep beside the records of made-up runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ablationlab.records.analysis import SweepAnalysis
from ablationlab.records.evaluation import Evaluation, Suite
from ablationlab.records.plan import Plan, PlannedRun
from ablationlab.records.probes import ProbeLine, ProbeReading, to_parquet
from ablationlab.records.results import Results
from ablationlab.report.make import with_analysis
from analysis.builder import build, outcome, seal_again, study

VARIANTS = ["none", "layernorm", "rmsnorm"]


BLOCKS = ["input", "block-1", "block-2", "block-3"]


def made(folder: Path, **changes: Any) -> Results:
    """A finished, analyzed study of three variants in *folder*; *changes* go into the study."""
    build(folder, study(**{"variants": VARIANTS, "seeds": [1, 2, 3, 4], **changes}))
    return with_analysis(Results.open(folder), say=lambda text: None)


def full(folder: Path) -> Results:
    """The same, in two regimes, with every optional part."""
    plan = build(
        folder,
        study(
            variants=VARIANTS,
            seeds=[1, 2, 3, 4],
            regimes={"hot": {"training": {"lr": 0.01}}},
            criteria=[
                {"metric": "validation_loss", "role": "primary", "smallest_effect": 0.05, "margin": 0.1},
                {
                    "metric": "validation_loss",
                    "regime": "hot",
                    "role": "primary",
                    "smallest_effect": 0.05,
                    "margin": 0.1,
                },
            ],
        ),
        outcomes=lambda v, r, s: None if (r, v) == ("hot", "none") and s < 4 else outcome(v, r, s),
        curves=_curve,
    )
    with_analysis(Results.open(folder), say=lambda text: None)  # before there are scores, whose items it would ask for
    for run in plan.runs:
        write_probes(folder / "runs" / run.id / "probes.parquet", run.variant, run.seed)
        (folder / "runs" / run.id / "evaluation.json").write_text(json.dumps(evaluation(plan, run)))
    (folder / "evaluation").mkdir()
    suite = {"plan_hash": plan.plan_hash, "tasks": SUITE}
    Suite.model_validate_json(json.dumps(suite)).replace(folder / "evaluation" / "suite.json")
    seal_again(folder)
    results = Results.open(folder)
    assert results.analysis is not None
    return results.changed(analysis=results.analysis.model_copy(update={"sweep": sweep()}), stale=())


def _curve(variant: str, regime: str, seed: int) -> list[float]:
    rng = np.random.default_rng([seed, len(variant)])
    losses = 1.5 + 2.7 * np.exp(-np.arange(60) / 11) + 0.04 * rng.standard_normal(60)
    if regime == "hot" and variant == "none":
        losses[40:44] += 3.0
    return [float(loss) for loss in losses]


def write_probes(path: Path, variant: str, seed: int) -> None:
    rng = np.random.default_rng([seed, len(variant)])
    rows: list[tuple[int, str, str, str | None, float | None, float]] = []
    for step in (1, 20, 40, 60):
        norm = (0.3 if variant == "none" else 11.0) + 0.01 * step + 0.05 * rng.standard_normal()
        for group, factor in (("all", 1.0), ("alphabetic", 1.1), ("punctuation", 0.9), ("whitespace", 0.8)):
            rows.append((step, "embedding-norm", "mean", group, None, norm * factor))
        rows.append((step, "cosine", "mean", "tokens", None, 0.1 + 0.001 * step))
        for depth, block in enumerate(BLOCKS):
            rows.append((step, "cosine", "mean", block, None, 0.1 * depth + 0.02 * rng.random()))
            rows.append((step, "residual", "norm", block, None, norm * (1 + depth)))
        rows.append((step, "second-moment", "mean", "total", None, 1e-4 / step))
        if variant != "none":
            rows.append((step, "embedding-gain", "mean", "gain", None, 1 + 0.002 * step))
            rows += [
                (step, "embedding-gain", "value", "gain", float(d), 1 + 0.1 * rng.standard_normal()) for d in range(16)
            ]
    lines = [ProbeLine(step=step, probe=probe, rows=(ProbeReading(*row),)) for step, probe, *row in rows]
    if seed == 2:
        lines.append(ProbeLine(step=40, probe="effective-rank", error="LinAlgError: no convergence"))
    path.write_bytes(to_parquet(path.parent.name, lines))


SUITE = [
    {
        "task": "last-word",
        "template": "plain",
        "fewshot": shots,
        "items": 200,
        "chance": 0.25,
        "meaning": "the word that ends the line",
        "version": "1",
        "task_hash": "ab" * 32,
        "source": "suite",
        "choices": 4,
        "ngrams": {"unigram": 0.26, "bigram": 0.31, "trigram": 0.36},
    }
    for shots in (0, 2)
]


def evaluation(plan: Plan, run: PlannedRun) -> dict[str, Any]:
    variant, seed = run.variant, run.seed
    rng = np.random.default_rng([seed, len(variant), 7])
    confidence = np.linspace(0.15, 0.75, 8)
    temperatures = np.geomspace(0.5, 2, 11)
    return {
        "schema_version": Evaluation.VERSION,
        "kind": "evaluation",
        "id": run.id,
        "plan_hash": plan.plan_hash,
        "status": "evaluated",
        "checkpoint": "step-00000004",
        "weights_sha256": "cd" * 32,
        "how": {
            "device": "cpu",
            "device_name": "cpu",
            "precision": "fp32",
            "stack_width": 1,
            "harness": "lm_eval 0",
            "harness_sha256": "ef" * 32,
            "versions": {},
        },
        "tokens": {
            "tokens": 1000,
            "stride": 16,
            "loss": 2.1,
            "bits_per_byte": 3.0,
            "perplexity": 8.2,
            "accuracy": 0.4,
            "loss_by_class": {"alphabetic": 2.2},
            "tokens_by_class": {"alphabetic": 1000},
            "logit_scale": 1.5,
            "documents": {"kind": "blocks", "tokens": [500, 500], "losses": [2.0, 2.2]},
            "position_edges": [0, 4, 8, 12, 16],
            "loss_by_position": [3.0, 2.4, 2.2, 2.1 + 0.02 * rng.random()],
            "calibration": {
                "count": 800,
                "ece_equal_width": 0.02,
                "ece_equal_mass": 0.02,
                "ece_equal_width_debiased": 0.02,
                "ece_equal_mass_debiased": 0.02,
                "brier": 0.8,
                "brier_top": 0.2,
                "reliability": 0.001,
                "resolution": 0.03,
                "uncertainty": 0.2,
                "within_bin": 0.0,
                "curve_confidence": confidence.tolist(),
                "curve_accuracy": (confidence - 0.03 + 0.02 * rng.random(8)).tolist(),
                "curve_count": [100] * 8,
            },
            "temperature": {
                "temperatures": temperatures.tolist(),
                "losses": (2.1 + 0.3 * np.log(temperatures * 1.04) ** 2).tolist(),
                "searched": [0.25, 4.0],
                "best": 0.96,
                "beyond": None,
                "held_out_loss_at_1": 2.11,
                "held_out_loss_at_best": 2.1,
                "sensitivity": 0.6,
            },
        },
        "length": {"edges": [0, 8, 16, 24, 32], "losses": [2.6, 2.2, 2.3, "NaN"], "context": 16}
        | {"stride": 4, "documents": 9, "near_end": 2.2, "past_end": 2.3}
        | {"near": [2.2, 2.2], "fresh": [2.6, 2.4], "history": [0, 8], "loss_by_history": [2.6, 2.3]},
        "tasks": [
            {
                "task": "last-word",
                "template": template,
                "fewshot": shots,
                "weights": "final",
                "items": 200,
                "chance": 0.25,
                "accuracy": 0.35 + 0.02 * rng.random() - (0.03 if variant != "none" else 0),
                "task_hash": "ab" * 32,
                "version": "1",
                "source": "suite",
                "whole": True,
                "choices": 4,
                "accuracy_se": 0.03,
                "accuracy_norm": None,
                "answers": None,
                "log_probability": -3.0 + 0.1 * rng.random(),
                "margin": -0.5,
                "probability": 0.3,
                "truncated": 0,
                "unknown_characters": 0,
            }
            for shots in (0, 2)
            for template in ("plain", "asked")
        ],
    }


def sweep() -> SweepAnalysis:
    rng = np.random.default_rng(5)
    rates = [3e-4, 1e-3, 3e-3, 1e-2]
    points, curves, sensitivities, summaries = [], [], [], []
    for variant in VARIANTS:
        for lr in rates:
            losses = [2.0 + abs(np.log10(lr / 1e-3)) * 0.4 + 0.05 * rng.random() for _ in range(4)]
            bad = variant == "none" and lr == rates[-1]
            for seed, loss in enumerate(losses, start=1):
                points.append(
                    {
                        "run": f"{variant}-lr{lr:g}-s{seed}",
                        "variant": variant,
                        "lr": lr,
                        "seed": seed,
                        "regime": "default",
                        "use": "judging",
                        "spike_step": None,
                        "state": "diverged" if bad and seed < 4 else "finished",
                        "loss": loss,
                        "initial_loss": 4.1,
                        "counted": 4.1 if bad and seed < 4 else loss,
                        "clipped": False,
                        "spike_score": None,
                        "unstable": bad and seed < 4,
                        "reason": "diverged" if bad and seed < 4 else "calm",
                    }
                )
            mean = float(np.mean([p["counted"] for p in points[-4:]]))
            curves.append(
                {"variant": variant, "lr": lr, "n": 4, "mean": mean, "sd": 0.1, "low": mean - 0.1, "high": mean + 0.1}
                | {"diverged": 3 * bad, "clipped": 0, "unstable": 3 * bad}
            )
        for seed in range(1, 5):
            sensitivities.append(
                {"variant": variant, "seed": seed, "sensitivity": 0.3 + 0.1 * rng.random(), "best_lr": 1e-3}
                | {"best_loss": 2.0, "unstable_share": 0.0}
            )
        summaries.append({"variant": variant, "n": 4, "mean": 0.35, "sd": 0.1, "low": 0.3, "high": 0.4, "level": 0.95})
    best = [
        {"variant": v, "lr": 1e-3, "mean_loss": 2.02, "chosen_on": [11], "judged_on": [1, 2], "edge": False}
        for v in VARIANTS
    ]
    return SweepAnalysis.model_validate(
        {
            "metric": "validation_loss",
            "rates": rates,
            "selection_seeds": [11],
            "seeds": [1, 2, 3, 4],
            "points": points,
            "curves": curves,
            "sensitivities": sensitivities,
            "summaries": summaries,
            "best": best,
            "tuned_at": None,
            "minima": [],
            "comparisons": [],
        }
    )
