"""Title, abstract, introduction, related work."""

from __future__ import annotations

from ablationlab.analysis.verdict.words import asked
from ablationlab.records.settings import FrontEnd
from ablationlab.records.verdict import VariantVerdict
from ablationlab.report.naming import metric_name
from ablationlab.report.numbers import count, counted, number, part, scaled, with_unit
from ablationlab.report.paper.facts import Facts, finding, unstable_counts
from ablationlab.report.paper.typst import Typst, capital, code, escape, listed, say, sentences
from ablationlab.report.tables import DECISIONS

#: More results than these are counted in the abstract, not listed.
MOST_IN_ABSTRACT = 4
LONGEST_TITLE = 200


def title(facts: Facts) -> Typst:
    """The question, if there is one that fits; else what was compared."""
    question = facts.analysis.question.strip()
    if question and len(question) <= LONGEST_TITLE:
        return escape(question)
    names = listed(facts.changed or (facts.baseline,))
    return say("{names} against {baseline}: a paired ablation at equal budget", names=names, baseline=facts.baseline)


def byline(facts: Facts) -> Typst:
    """Who writes: the program, from which plan."""
    text = say("Report of the study {name}, written by ablationlab from its records", name=code(facts.analysis.study))
    if facts.plan is None:
        return text
    sealed = say("Plan {hash}, sealed {date}", hash=code(facts.plan.plan_hash[:12]), date=facts.plan.created[:10])
    return Typst(f"{text} \\\n  #text(size: 8.6pt)[{sealed}]")


def abstract(facts: Facts) -> Typst:
    """The question, the runs, the numbers, the decision, what it cannot say."""
    parts = [_interim(facts), _question(facts), _design(facts)]
    primaries = _primaries(facts)
    if 0 < len(primaries) <= MOST_IN_ABSTRACT:
        parts += [Typst(f"{capital(text)}.") for text in primaries]
    elif primaries:
        parts.append(say("We report {n} comparisons on the primary metric.", n=count(len(primaries))))
    parts += [_stability(facts), decision_sentence(facts), _power(facts)]
    return sentences(parts)


def _interim(facts: Facts) -> str:
    if not facts.interim:
        return ""
    return say(
        "*Interim: {ended} planned runs have ended. Nothing here is inference until all have.*",
        ended=part(facts.material.ended, len(facts.material.runs)),
    )


def _question(facts: Facts) -> str:
    question = facts.analysis.question.strip()
    if not question:
        return say(
            "We compare {names} with the baseline {baseline}.",
            names=listed(code(name) for name in facts.changed),
            baseline=code(facts.baseline),
        )
    end = "" if question[-1] in ".?!" else "."
    return say("_{question}{end}_", question=question, end=end)


def _design(facts: Facts) -> str:
    seeds = counted(len(facts.analysis.seeds), "seed")
    if facts.plan is None:
        return say(
            "The runs are {arms} with {seeds} each, given as a table of values; whether they match in data and "
            "budget is not known.",
            arms=counted(len(facts.analysis.variants), "arm"),
            seeds=seeds,
        )
    budgets = {run.budget.tokens for run in facts.plan.runs}
    tokens = listed(f"{value:,}" for value in sorted(budgets)) if len(budgets) <= 2 else f"{len(budgets)} budgets of"
    model = facts.model_of(facts.baseline)
    assert model is not None
    parameters = [run.budget.parameters for run in facts.plan.runs if run.variant == facts.baseline]
    return say(
        "We train {arms} of a decoder-only Transformer ({layers}, width {width}, {parameters} parameters) on "
        "{tokens} tokens of {corpus} a run, with {seeds}{regimes}; the arms of one seed share the initial weights "
        "of all shared parameters, every batch and the token budget.",
        arms=counted(len(facts.analysis.variants), "arm"),
        layers=counted(model.layers, "layer"),
        width=model.width,
        parameters=scaled(parameters[0]) if parameters else "?",
        tokens=tokens,
        corpus=facts.corpus,
        seeds=seeds,
        regimes=f" in {counted(len(facts.analysis.regimes), 'regime')}" if facts.several_regimes else "",
    )


def _primaries(facts: Facts) -> list[Typst]:
    found = []
    for one in facts.verdict.verdicts:
        comparison = facts.primary_of(one.variant, one.regime)
        if comparison is not None:
            found.append(Typst(f"{finding(comparison)}{facts.where(one.regime)}"))
    return found


def _stability(facts: Facts) -> str:
    stability = facts.analysis.stability
    if stability is None or not stability.arms:
        return ""
    unstable = [arm for arm in stability.arms if arm.unstable]
    known = [arm for arm in stability.arms if arm.unstable is not None]
    if not unstable:
        return "No run diverged or spiked beyond the threshold." if known else ""
    gains = [gain for gain in stability.gains if gain.reference == facts.baseline]
    telling = [gain for gain in gains if gain.reference_unstable or gain.variant_unstable]
    if len(telling) <= 2:
        return sentences(Typst(f"{capital(unstable_counts(gain))}{facts.where(gain.regime)}.") for gain in telling)
    runs = sum(arm.unstable_runs for arm in stability.arms)
    return say("{n} of {all} runs were unstable.", n=count(runs).capitalize(), all=sum(a.runs for a in stability.arms))


def decision_sentence(facts: Facts) -> Typst:
    """The decisions, grouped, with their standing."""
    groups: dict[str, list[VariantVerdict]] = {}
    for one in facts.verdict.verdicts:
        groups.setdefault(one.decision, []).append(one)
    if not groups:
        return Typst("There is no variant beside the baseline, so there is nothing to decide.")
    said = []
    few = len(facts.verdict.verdicts) <= MOST_IN_ABSTRACT
    for decision, found in groups.items():
        who = listed(Typst(f"{code(one.variant)}{facts.where(one.regime)}") for one in found)
        if not few:
            who = say("{n} decisions", n=part(len(found), len(facts.verdict.verdicts)))
        said.append(
            say("_{decision}_ for {who}" if few else "_{decision}_ in {who}", decision=DECISIONS[decision], who=who)
        )
    exploratory = [one for one in facts.verdict.verdicts if one.label == "exploratory"]
    if exploratory and len(exploratory) == len(facts.verdict.verdicts):
        start = "By the rules of the protocol, applied to a question that was not registered, the verdict is "
    elif facts.registered:
        start = "By rules and criteria sealed before the first training step, the verdict is "
    else:
        start = "By the rules of the protocol the verdict is "
    mixed = " (some of it exploratory)" if exploratory and len(exploratory) < len(facts.verdict.verdicts) else ""
    return Typst(f"{start}{'; '.join(said)}{mixed}.")


def _power(facts: Facts) -> str:
    found = [one for one in facts.analysis.power if one.comparison.endswith(f":{facts.baseline}")]
    if not found:
        return ""
    worst = max(found, key=lambda one: one.detectable_80)
    comparison = facts.material.comparison(worst.comparison)
    unit = "" if comparison is None or comparison.unit in ("", "1") else comparison.unit
    if comparison is not None and comparison.transform == "log":
        unit = "(difference of logarithms)"
    return say(
        "With the spread observed, the study detects a difference of {effect} with 80{thin}% power.",
        effect=with_unit(number(worst.detectable_80, 2), unit),
        thin="\N{NARROW NO-BREAK SPACE}",
    )


def _fronts(facts: Facts) -> list[FrontEnd]:
    models = [facts.model_of(name) for name in facts.analysis.variants]
    return [model.front for model in models if model is not None]


def normalizes(facts: Facts) -> bool:
    """Whether an arm normalizes the embedding."""
    return any(front.norm != "none" for front in _fronts(facts))


def rescales(facts: Facts) -> bool:
    """Whether an arm scales the embedding or its gradient."""
    return any(front.scale != 1.0 or front.gradient != 1.0 for front in _fronts(facts))


def introduction(facts: Facts) -> list[Typst]:
    """Why the question is asked, why it is hard, what is done here."""
    paragraphs = []
    if normalizes(facts) or rescales(facts):
        paragraphs.append(
            Typst(
                "A GPT-style decoder adds a token embedding and a position embedding and hands the sum to its first "
                "block. Practice is divided on whether that vector should be normalized or rescaled first. BLOOM "
                "keeps a LayerNorm at this place for stability @bloom2022, although an ablation by the same team at "
                "1.3 billion parameters saw worse zero-shot results with it @lescao2022; scaled or normalized "
                "embeddings have been found to remove loss spikes @takase2023; and GLM-130B shrinks the gradient "
                "into the embedding instead @zeng2023."
            )
        )
    else:
        paragraphs.append(
            Typst(
                "Many small changes to a Transformer are proposed, and few of them survive a comparison outside the "
                "code and the setting that they were proposed in @narang2021."
            )
        )
    paragraphs.append(
        Typst(
            "Such a change is cheap to make and hard to judge. Its effect may be no larger than the spread between "
            "two seeds of the same model; arms that differ in budget, data order or initial weights confound it; "
            "and metrics, tests or seeds that are chosen after the numbers are seen can support any answer. "
            + (
                "This study therefore pairs its runs by seed, matches their budgets exactly, and applies tests and "
                "decision rules that were sealed, with everything else in its plan, before the first step."
                if facts.registered
                else "This study pairs its runs by seed and applies fixed decision rules. Nothing was registered "
                "beforehand that still holds, so its results are exploratory."
            )
        )
    )
    paragraphs.append(_asks(facts))
    return paragraphs


def _asks(facts: Facts) -> Typst:
    question = facts.analysis.question.strip()
    primary = facts.analysis.primary
    parts: list[str] = [say("*Question.* {question}", question=question)] if question else []
    parts.append(
        say(
            "We compare {names} with the baseline {baseline}{on}.",
            names=listed(code(name) for name in facts.changed) if facts.changed else "nothing",
            baseline=code(facts.baseline),
            on=Typst("")
            if primary is None
            else say("; the metric that decides is {metric}", metric=metric_name(primary)),
        )
    )
    if facts.from_table:
        return sentences(parts)
    put = asked(facts.verdict.hypotheses)
    if not put:
        return sentences(parts)
    several = "these hypotheses of the protocol" if len(put) > 1 else "this hypothesis of the protocol"
    parts.append(f"Beside the decision on each variant, the study asks {several}:")
    lines = [say("- *{key}.* {statement}", key=key, statement=found.statement) for key, found in put.items()]
    return Typst(sentences(parts) + "\n" + "\n".join(lines))


def related_work(facts: Facts) -> list[Typst]:
    """What is known, by subject; the same for every study but for what its variants touch."""
    return [
        Typst(
            "*Normalization in Transformers.* LayerNorm @ba2016 in front of each sub-layer (Pre-LN) gives "
            "well-behaved gradients at initialization and makes training less dependent on warmup than the original "
            "placement @xiong2020. RMSNorm @zhang2019 drops the centering and the bias; Gopher @rae2021 uses it in "
            "place of LayerNorm."
        ),
        Typst(
            "*At the embedding.* A normalized, carefully initialized embedding layer was proposed to lower the "
            "variance of its gradients @dettmers2022. BLOOM adopted an embedding LayerNorm after instabilities in "
            "preliminary runs @bloom2022; the ablation behind it found a cost in zero-shot accuracy, with one run "
            "an arm @lescao2022. An analysis of gradient norms explains why larger embeddings, by scaling or by a "
            "norm, prevent spikes @takase2023. Instabilities of large models also show in small ones at high "
            "learning rates @wortsman2023. GLM-130B multiplies the embedding's gradient by a factor below one "
            "@zeng2023."
        ),
        Typst(
            "*Comparing at equal compute.* Of many published modifications few transfer to a common code base "
            "@narang2021; which architecture and objective does best depends on how the model is used afterwards "
            "@wang2022; and for a given compute, model size and tokens trade against each other @hoffmann2022. "
            "Reports of large models document their choices @brown2020 @ali2024, mostly from single runs. Zero-shot "
            "evaluation follows common tasks and harnesses @gao2024, with several prompts a task where wording "
            "matters @sanh2022."
        ),
    ]
