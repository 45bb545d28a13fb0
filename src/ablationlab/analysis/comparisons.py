"""From values to comparisons: pair by seed, compute, correct each family, say what is missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from ablationlab.analysis.material import Material
from ablationlab.analysis.questions import Question
from ablationlab.core.seeding import stream
from ablationlab.records.analysis import Comparison, Family, Missing, Outcome, Pair, Seed
from ablationlab.stats import PairedComparison, adjust, compare
from ablationlab.stats.results import Caveat, CaveatCode

RESAMPLES: Final = 10_000
#: Beyond this no sum of squares is safe; the statistics refuse it, so it counts as no number.
_LARGEST: Final = 1e100


def comparisons(material: Material, asked: Sequence[Question]) -> list[Comparison]:
    """One comparison per question, not corrected yet; those that no run of either arm could answer are left out."""
    return [_comparison(material, question) for question in asked if _is_there(material, question)]


def _is_there(material: Material, question: Question) -> bool:
    return any(arm in material.values for arm in question.arms())


def _comparison(material: Material, question: Question) -> Comparison:
    pairs, missing = paired(material, question)
    refused = material.diverged == "refuse" and any(_diverged(m) for m in missing)
    if refused:
        pairs = []
    transform, caveats = _transform(question, pairs)
    promised = material.seeds_of(question.regime)
    planned = len(promised) if material.source == "records" else len(pairs) + len({m.seed for m in missing})
    caveats += _about_missing(missing, refused=refused)
    numbers: dict[str, Any] = {}
    if pairs:
        result = _computed(material, question, pairs, transform, planned)
        numbers = _numbers(result, pairs)
        caveats += result.caveats
    elif not refused:
        caveats.append(Caveat(code=CaveatCode.NO_PAIRS, about="", text="No seed has a value in both arms."))
    ask = question.ask
    test = numbers["tests"].get(ask.test) if pairs else None
    return Comparison(
        id=question.id,
        metric=question.metric.name,
        task=question.task,
        regime=question.regime,
        variant=question.variant,
        reference=question.reference,
        direction=question.metric.direction,
        unit=question.metric.unit,
        transform=transform,
        label=question.label,
        role=ask.role,
        n=len(pairs),
        planned_pairs=planned,
        missing=tuple(missing),
        interval=ask.interval,
        test=ask.test,
        alpha=ask.alpha,
        p=test.p if test else None,
        p_adjusted=None,
        correction=ask.correction,
        family=question.family,
        family_size=0,
        outcome="not-tested",
        smallest_effect=ask.smallest_effect,
        margin=ask.margin,
        sensitivity=material.sensitivity.get((question.metric.name, question.task, question.regime)),
        caveats=tuple(caveats),
        **numbers,
    )


def paired(material: Material, question: Question) -> tuple[list[tuple[Seed, float, float]], list[Missing]]:
    """(seed, variant's value, reference's value) where both are there, and every reason why one is not."""
    variant, reference = (material.values.get(arm, {}) for arm in question.arms())
    names = (question.variant, question.reference)
    pairs, missing = [], []
    for seed in material.seeds_of(question.regime):
        if material.source == "table" and seed not in variant and seed not in reference:
            continue  # a table says nothing of what was planned
        a, b = variant.get(seed, "no value recorded"), reference.get(seed, "no value recorded")
        if isinstance(a, str) or isinstance(b, str):
            said = [(name, v) for name, v in zip(names, (a, b), strict=True) if isinstance(v, str)]
            missing += [Missing(seed=seed, arm=name, why=why) for name, why in said]
        else:
            pairs.append((seed, a, b))
    return pairs, missing


def number_or_why(value: float | None) -> float | str:
    """A recorded value as a number, or why it is none that can be compared."""
    if value is None:
        return "no value recorded"
    if not math.isfinite(value):
        return f"the value is {value}"
    return float(value) if abs(value) <= _LARGEST else f"the value {value:g} is beyond 1e100"


def _transform(
    question: Question, pairs: Sequence[tuple[Seed, float, float]]
) -> tuple[Literal["identity", "log"], list[Caveat]]:
    if question.metric.transform == "log" and any(min(a, b) <= 0 for _, a, b in pairs):
        text = "Meant to be tested as a logarithm, but some values are not above 0; tested as they are."
        return "identity", [Caveat(code=CaveatCode.NOT_POSITIVE, about="", text=text)]
    return question.metric.transform, []


def _computed(
    material: Material,
    question: Question,
    pairs: Sequence[tuple[Seed, float, float]],
    transform: Literal["identity", "log"],
    planned: int,
) -> PairedComparison:
    # One fixed stream per comparison: adding a metric or a variant changes no other number.
    rng = stream(0, "analysis", material.source_hash, question.id)
    return compare(
        [a for _, a, _ in pairs],
        [b for _, _, b in pairs],
        rng=rng,
        level=round(1 - question.ask.alpha, 12),
        alpha=question.ask.alpha,
        resamples=RESAMPLES,
        smallest_effect=question.ask.smallest_effect,
        transform=transform,
        planned_pairs=planned,
    )


def _numbers(result: PairedComparison, pairs: Sequence[tuple[Seed, float, float]]) -> dict[str, Any]:
    """Arms as recorded; delta, spread and all inference on the tested scale."""
    original, sample = result.original, result.sample
    return {
        "variant_mean": original.variant_mean,
        "variant_sd": original.variant_sd,
        "reference_mean": original.reference_mean,
        "reference_sd": original.reference_sd,
        "delta": sample.delta,
        "delta_sd": sample.delta_sd,
        "correlation": sample.correlation,
        "variance_reduction": sample.variance_reduction,
        "pairs": tuple(
            Pair(seed=seed, variant=a, reference=b, delta=delta)
            for (seed, a, b), delta in zip(pairs, sample.deltas, strict=True)
        ),
        "intervals": result.intervals,
        "tests": result.tests,
        "effects": result.effects,
        "ratios": result.ratios,
        "equivalence": result.equivalence,
    }


def _diverged(missing: Missing) -> bool:
    return missing.why.startswith("diverged")


def _about_missing(missing: Iterable[Missing], *, refused: bool) -> list[Caveat]:
    diverged = [m for m in missing if _diverged(m)]
    if not diverged:
        return []
    who = ", ".join(f"{m.arm} seed {m.seed}" for m in diverged)
    if refused:
        text = (
            f"Not compared, by the registered rule for diverged runs: {who}. That they diverged counts under stability."
        )
        return [Caveat(code=CaveatCode.REFUSED_FOR_DIVERGENCE, about="", text=text)]
    text = (
        f"Diverged, so without a value: {who}. What is compared here are the survivors; that these runs diverged counts "
        "under stability."
    )
    return [Caveat(code=CaveatCode.SURVIVORS_ONLY, about="", text=text)]


def corrected(found: Sequence[Comparison]) -> tuple[list[Comparison], list[Family]]:
    """Adjust p within each family, in the order given, and say what came of each test."""
    members: dict[str, list[Comparison]] = {}
    for one in found:
        members.setdefault(one.family, []).append(one)
    families, adjusted = [], dict[str, tuple[float | None, int]]()
    for name, family in members.items():
        p_values = [one.p for one in family]
        method = family[0].correction
        if method == "none":
            corrected_p: Sequence[float | None] = p_values
            tested = sum(p is not None for p in p_values)
        else:
            result = adjust(p_values, method=method)
            corrected_p, tested = result.adjusted, result.family_size
        families.append(Family(id=name, correction=method, members=tuple(one.id for one in family), tested=tested))
        adjusted |= {one.id: (p, tested) for one, p in zip(family, corrected_p, strict=True)}
    return [_judged(one, *adjusted[one.id]) for one in found], families


def _judged(one: Comparison, p: float | None, tested: int) -> Comparison:
    return one.model_copy(update={"p_adjusted": p, "family_size": tested, "outcome": _outcome(one, p)})


def _outcome(one: Comparison, p: float | None) -> Outcome:
    if p is None or one.delta is None:
        return "not-tested"
    if p > one.alpha:
        return "not-shown"
    if one.direction is None:
        return "different"
    return "better" if (one.delta < 0) == (one.direction == "lower") else "worse"


def by_id(found: Iterable[Comparison]) -> Mapping[str, Comparison]:
    """Comparisons by their id."""
    return {one.id: one for one in found}
