"""What it would take to decide: seeds, from the observed SD of the deltas, or something that seeds cannot mend."""

from __future__ import annotations

from ablationlab.analysis.power import alpha_per_test, seeds_for, seeds_for_equivalence
from ablationlab.analysis.verdict.case import Case
from ablationlab.analysis.verdict.words import number
from ablationlab.records.analysis import Comparison
from ablationlab.records.verdict import Needs

POWER = 0.8


def needs_of(case: Case) -> Needs:
    """Numbers where they can be had, and a sentence."""
    one = case.primary
    if one is None:
        return Needs(text="Measure the primary metric in both arms.")
    if one.direction is None:
        return Needs(text=f"Register a primary metric with a better direction; {one.metric} has none.")
    if one.sensitivity is not None and not one.sensitivity.sensitive:
        return Needs(text="More seeds will not help: choose tasks that are sensitive at this scale, or a larger model.")
    if case.diverged and case.less_stable:
        return Needs(
            text=f"{case.diverged} {case.variant} runs diverged: make it train stably before its {one.metric} can count."
        )
    if one.n < 3:
        return Needs(text=f"At least 3 pairs are needed for any inference; there are {one.n}.")
    if not one.delta_sd:
        return Needs(text="All deltas are equal, so their spread is unknown: check that the runs really differ.")
    return _seeds(case, one)


def _seeds(case: Case, one: Comparison) -> Needs:
    alpha, effect = alpha_per_test(one), one.smallest_effect
    difference = seeds_for(effect, one.delta_sd, alpha, POWER)
    equivalence = seeds_for_equivalence(effect, one.delta_sd, one.alpha, POWER)
    observed = seeds_for(one.delta, one.delta_sd, alpha, POWER)
    unit = " (of logarithms)" if one.transform == "log" else f" {one.unit}" if one.unit not in ("", "1") else ""
    parts = []
    if effect is None:
        parts.append("No smallest effect is registered, so no number of seeds can be given for one.")
    else:
        parts.append(
            f"With an SD of the deltas of {number(one.delta_sd)} it takes {_count(difference)} seeds in all to see a "
            f"difference of {number(effect)}{unit} with {POWER:.0%} power, {_count(equivalence)} to show that there is none"
            f" (there are {one.n})."
        )
    worth = effect is None or abs(one.delta or 0.0) > effect
    if observed is not None and observed > one.n and worth:
        parts.append(f"Were the true difference as large as the observed one, {_count(observed)} seeds would show it.")
    if case.less_stable:
        parts.append(f"{case.variant} is also less stable here.")
    if one.n < 10 and effect is not None:
        parts.append(f"An SD from {one.n} pairs is itself a rough guess.")
    return Needs(
        seeds_for_difference=difference,
        seeds_for_equivalence=equivalence,
        seeds_at_observed_effect=observed,
        power=POWER,
        text=" ".join(parts),
    )


def _count(seeds: int | None) -> str:
    return "more than a million" if seeds is None else f"{seeds:,}"
