"""What the study is, at a glance: fixed clauses about the sealed plan and its runs."""

from __future__ import annotations

from collections.abc import Iterator

from ablationlab.core.format import amount, count
from ablationlab.records.analysis import Analysis
from ablationlab.records.plan import Plan
from ablationlab.records.results import Results
from ablationlab.report.slots import Slot, Statement, tally

_AT = "plan.lock#"


def facts_of(results: Results | None, analysis: Analysis | None) -> Iterator[Statement]:
    """Model, data, budget of a run, runs, device; of a user's table, what is known of it."""
    plan = None if results is None else results.plan
    if results is None or plan is None:
        if analysis is not None:
            arms, seeds = tally(len(analysis.variants)), tally(len(analysis.seeds))
            yield Statement("facts.runs-of-table", {"arms": arms, "seeds": seeds})
        return
    if plan.study.trainer is not None:
        yield Statement("facts.trained-by", {"title": Slot(plan.study.trainer.title)})
    else:
        yield _model(plan)
        corpus = plan.corpus
        slots = {
            "corpus": Slot(corpus.name, f"{_AT}/corpus/name", corpus.name),
            "tokenizer": Slot(corpus.tokenizer, f"{_AT}/corpus/tokenizer", corpus.tokenizer),
        }
        yield Statement("facts.data", slots)
        yield from _budget(plan)
    ended = {
        "ended": tally(results.ended),
        "planned": tally(len(results.runs)),
        "seeds": tally(len(plan.study.seeds)),
    }
    yield Statement("facts.runs", ended)
    device = plan.execution.device_name
    slots = {"device": Slot(device, f"{_AT}/execution/device_name", device)}
    if plan.study.trainer is None:
        precision = plan.execution.precision
        slots["precision"] = Slot(precision, f"{_AT}/execution/precision", precision)
    yield Statement("facts.device" if plan.study.trainer is None else "facts.device-of-trainer", slots)


def seal_of(results: Results | None) -> Statement | None:
    """The day and the hash of the sealed plan."""
    plan = None if results is None else results.plan
    if plan is None:
        return None
    return Statement("facts.sealed", {"day": Slot(plan.created[:10]), "plan": Slot(plan.plan_hash[:8])})


def _model(plan: Plan) -> Statement:
    sizes = sorted((run.budget.parameters, place) for place, run in enumerate(plan.runs))
    low, high = (
        Slot(amount(size), f"{_AT}/runs/{place}/recipe/budget/parameters", size)
        for size, place in (sizes[0], sizes[-1])
    )
    preset = None if plan.study.model is None else plan.study.model.preset
    slots = {"model": Slot(preset or "GPT"), "parameters": low, "most": high}
    return Statement("facts.model" if low.text == high.text else "facts.model-of-several", slots)


def _budget(plan: Plan) -> Iterator[Statement]:
    """Tokens and steps of a run, where all have as many; the FLOPs or the time that all have otherwise."""
    first = plan.runs[0].budget
    at = f"{_AT}/runs/0/recipe/budget"
    tokens, steps = (
        Slot(amount(first.tokens), f"{at}/tokens", first.tokens),
        Slot(count(first.steps), f"{at}/steps", first.steps),
    )
    alike = len({(run.budget.tokens, run.budget.steps) for run in plan.runs}) == 1
    if alike:
        yield Statement("facts.per-run", {"tokens": tokens, "steps": steps})
    elif first.match == "flops":
        flops = Slot(amount(first.matmul_flops, "FLOP"), f"{at}/matmul_flops", first.matmul_flops)
        yield Statement("facts.per-run-of-flops", {"flops": flops, "tokens": tokens})
    else:
        yield Statement("facts.per-run-of-baseline", {"tokens": tokens, "steps": steps})
