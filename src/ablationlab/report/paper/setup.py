"""Methods, from the resolved study: what was trained. Model, arms, data, training, controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ablationlab.records.corpus import Corpus
from ablationlab.records.settings import FrontEnd, ModelConfig, Study
from ablationlab.report.numbers import count, counted, setting, tens
from ablationlab.report.paper.facts import Facts
from ablationlab.report.paper.typst import Typst, code, listed, say, sentences
from ablationlab.report.table import Cell, Column, Table


def _shared(facts: Facts, corpus: Corpus) -> list[Typst]:
    """What the corpora of a mixture have in common; nothing where it was not looked for."""
    looked = [(part, part.shared) for part in facts.mixture if part.shared is not None]
    if not looked:
        return []
    removed = corpus.overlap == "remove-from-training"
    documents = sum(shared.leaked + shared.repeated for _, shared in looked)
    leaked = sum(shared.leaked for _, shared in looked)
    what = "no training document stands in the validation split or in two of the corpora"
    if documents:
        what = (
            f"{counted(documents, 'training document')}, {leaked:,} of them in the validation split, "
            f"stood in the mixture twice and {'were left out' if removed else 'were kept'}"
        )
    seen = listed(
        f"{100 * (shared.seen_without if removed else shared.seen):.2g} % ({part.name})" for part, shared in looked
    )
    return [
        say(
            "Compared word by word, {what}; of the words of the validation split, {seen} are in a run of 13 words that "
            "the training text has too.",
            what=what,
            seen=seen,
        )
    ]


def model(facts: Facts) -> Typst:
    """The shared architecture."""
    shape = facts.model_of(facts.baseline)
    if shape is None:
        return Typst("The runs were given as a table of values; nothing is recorded of the models behind them.")
    inside = say(
        " of causal self-attention ({heads}) and a GELU MLP of {ratio} times the width, LayerNorm $epsilon$ = {eps}",
        heads=counted(shape.heads, "head"),
        ratio=count(shape.mlp_ratio),
        eps=setting(shape.norm_eps),
    )
    what = say(
        "Every arm is a decoder-only Transformer in the manner of GPT-2 @radford2019: {blocks}{inside}; width $d$ = "
        "{width}, context {context}, vocabulary {vocabulary}, learned token and absolute position embeddings, "
        "{tied}, {final}{head}.",
        blocks=counted(shape.layers, "Pre-LN block") if shape.layers else "no Transformer block at all",
        inside=inside if shape.layers else Typst(""),
        width=shape.width,
        context=f"{shape.context:,}",
        vocabulary=f"{shape.vocabulary:,}" if shape.vocabulary else "of the tokenizer",
        tied="the output head tied to the token embedding" if shape.tied else "an untied output head",
        final="a final LayerNorm" if shape.final_norm else "no final norm",
        head=", a bias on the head" if shape.head_bias else "",
    )
    start = say(
        "Weights start from a normal distribution with standard deviation {std} (token embedding {token}, position "
        "embedding {position}).",
        std=setting(shape.init_std),
        token=setting(shape.token_init_std),
        position=setting(shape.position_init_std),
    )
    residual = "Residual projections start smaller by $sqrt(2 L)$, with $L$ the number of blocks."
    dropout = say("Dropout is {rate}.", rate=setting(shape.dropout)) if shape.dropout else Typst("There is no dropout.")
    return sentences([what, start, residual if shape.scaled_residual_init and shape.layers else "", dropout])


def arms(facts: Facts) -> tuple[Typst, list[tuple[str, Typst, Typst, str]]]:
    """A paragraph, and rows of (arm, formula, what else, parameters) for its table."""
    if facts.plan is None:
        return say("The arms are {names}.", names=listed(code(name) for name in facts.analysis.variants)), []
    rows = []
    norms: set[str] = set()
    base = facts.model_of(facts.baseline)
    for name in facts.material.variants:
        shape = facts.model_of(name)
        runs = [run for run in facts.plan.runs if run.variant == name]
        if runs and shape is not None and base is not None:
            norms.add(shape.front.norm)
            rows.append((name, formula(shape.front), _also(shape, base), f"{runs[0].budget.parameters:,}"))
    parts = [
        say(
            "@arms lists the arms; each is the baseline {baseline} with one declared change, and nothing else differs.",
            baseline=code(facts.baseline),
        )
    ]
    if "layernorm" in norms:
        parts.append(
            Typst(
                '$"LN"(x) = (x - "mean"(x)) \\/ sqrt("var"(x) + epsilon) dot.o g + b$ with $epsilon$ as listed @ba2016.'
            )
        )
    if "rmsnorm" in norms:
        parts.append(Typst('$"RMS"(x) = x \\/ sqrt("mean"(x^2) + epsilon) dot.o g$ @zhang2019.'))
    if norms & {"layernorm", "rmsnorm"}:
        parts.append(Typst("Means and variances are over the $d$ features of one position."))
    return sentences(parts), rows


def formula(front: FrontEnd) -> Typst:
    """What enters block 1, from the resolved front end."""
    token, position = 'E_"tok"', 'E_"pos"'
    inner = token if front.place == "token" else f"{token} + {position}"
    names = {"layernorm": '"LN"', "rmsnorm": '"RMS"', "center": '"center"'}
    core = f"{names[front.norm]}({inner})" if front.norm in names else inner
    if front.scale != 1.0:
        factor = "sqrt(d)" if front.scale == "sqrt-width" else f"{float(front.scale):g}"
        core = f"{factor} {core}" if front.norm in names or front.place == "token" else f"{factor} ({core})"
    return Typst(f"${core} + {position}$" if front.place == "token" else f"${core}$")


def _also(shape: ModelConfig, base: ModelConfig) -> Typst:
    """What a formula does not show: epsilon, gain and bias, the gradient's share, settings outside the front end."""
    said: list[str] = []
    front = shape.front
    if front.norm in ("layernorm", "rmsnorm"):
        affine = [word for word, there in (("gain", front.gain), ("bias", front.bias)) if there]
        said.append(say("$epsilon$ = {eps}", eps=setting(front.eps)))
        said.append(" and ".join(affine) if affine else "no gain")
    if front.gradient != 1.0:
        said.append(say('gradient into $E_"tok"$ times {share}', share=setting(front.gradient)))
    settings, others = shape.model_dump(mode="json"), base.model_dump(mode="json")
    said += [
        say("{key} = {value}", key=key.replace("_", " "), value=_value(value))
        for key, value in settings.items()
        if key not in ("front", "preset") and value != others[key]
    ]
    return Typst("; ".join(said))


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return setting(float(value)) if isinstance(value, int | float) else str(value)


def training(facts: Facts) -> Typst:
    """Data, optimizer, schedule, budget, and what the regimes change."""
    plan, study = facts.plan, facts.study
    if plan is None or study is None:
        return Typst("How the runs were trained is not recorded.")
    settings, budget = study.training, plan.runs[0].budget
    schedule = "a constant rate"
    if settings.schedule != "constant":
        steps = counted(settings.warmup, "step")
        schedule = f"linear warmup over {steps} and cosine decay to {setting(settings.final_lr)} of the peak"
    parts = [
        say(
            "The text is {corpus} ({tokenizer} tokenizer): {train} training and {validation} validation tokens, the "
            "validation split being {last}.",
            last="the last part of each corpus" if facts.mixture else "its last part",
            corpus=facts.corpus,
            tokenizer=plan.corpus.tokenizer,
            train=f"{plan.corpus.train_tokens:,}",
            validation=f"{plan.corpus.validation_tokens:,}",
        ),
        *_shared(facts, plan.corpus),
        say(
            "AdamW @loshchilov2019 ($beta$ = {betas}, $epsilon$ = {eps}, weight decay {decay} on {what}) runs at "
            "learning rate {lr} with {schedule} and {clip}.",
            betas=listed(setting(beta) for beta in settings.betas),
            eps=setting(settings.eps),
            decay=setting(settings.weight_decay),
            what="matrices and embeddings" if settings.decay == "matrices" else "every parameter",
            lr=setting(settings.lr),
            schedule=schedule,
            clip="no gradient clipping"
            if settings.clip == "off"
            else f"gradients clipped to norm {setting(settings.clip)}",
        ),
        say(
            "A run makes {steps} of {batch}: {tokens} tokens, {flops} floating-point operations in matrix products.",
            steps=f"{budget.steps:,} step{'s' if budget.steps != 1 else ''}",
            batch=counted(settings.batch, "sequence"),
            tokens=f"{budget.tokens:,}",
            flops=tens(f"{budget.matmul_flops:.2e}"),
        ),
        say(
            "Precision is {precision}, on {device}.",
            precision=plan.execution.precision,
            device=plan.execution.device_name,
        ),
    ]
    if study.sweep is not None:
        rates = listed(setting(rate) for rate in study.sweep.lr)
        parts.append(say("Every arm is trained at each of the learning rates {rates}.", rates=rates))
        if "tuned" in facts.analysis.regimes and "tuned" not in study.regimes:
            parts.append(
                Typst(
                    "The regime `tuned` compares every arm at its own best rate, chosen on selection seeds and "
                    "judged on the others."
                )
            )
    elif facts.changed:
        parts.append(Typst("All arms use the same learning rate; it was not tuned for any of them."))
    return sentences([*parts, *_regimes(study)])


def _regimes(study: Study) -> list[Typst]:
    said = []
    for name, regime in study.regimes.items():
        changes = [*_flat(regime.model), *_flat(regime.training)]
        if changes:
            listing = listed(f"{key} = {value}" for key, value in changes)
            said.append(say("The regime {name} differs by {changes}.", name=code(name), changes=listing))
    return said


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{key} ")
        else:
            found.append((f"{prefix}{key}".replace("_", " "), _value(value)))
    return found


def controls(facts: Facts) -> Typst:
    """What is equal across arms, and how that was checked."""
    if facts.plan is None:
        return Typst("Whether the arms match in data, budget or initial weights could not be checked.")
    parts = [
        Typst(
            "Every random draw comes from a stream named by seed, purpose and key: each parameter by its name, each "
            "batch by its step, each dropout mask by step, layer and sample. Arms of one seed therefore start from "
            "the same values wherever they share a parameter and see the same batches in the same order. No run is "
            "stopped early, unless its loss ceases to be finite, which is recorded as a result."
        )
    ]
    if facts.analysis.ledger is not None:
        parts.append(say("Checked on the records: {text}", text=facts.analysis.ledger.text))
    return sentences(parts)


def arms_table(rows: Sequence[tuple[str, Typst, Typst, str]]) -> Table:
    """The arms as a table; formulas are markup already."""
    columns = (
        Column("arm", "Arm"),
        Column("formula", "Input to block 1"),
        Column("also", ""),
        Column("parameters", "Parameters", "right"),
    )
    made = tuple(
        (Cell.name(name), Cell(None, form), Cell(None, also), Cell.of(size)) for name, form, also, size in rows
    )
    return Table("arms", "", columns, made)
