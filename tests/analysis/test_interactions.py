"""Factorial studies: cells, main effects, interaction, by hand and against statsmodels."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest
import scipy.stats as scipy_stats
import statsmodels.formula.api as smf

from ablationlab.analysis import analyze, read_results
from ablationlab.analysis.interactions import crossing_of, with_bounds
from ablationlab.core.errors import StudyError
from ablationlab.records.analysis import SeedValue
from ablationlab.report.tables.factors import interaction_table
from ablationlab.stats import adjust, paired_t_interval
from ablationlab.stats.factorial import FactorialModel
from ablationlab.study.load import parse_study

from .builder import build, study

REGIMES = {
    "token": {"model": {"front": {"place": "token"}}},
    "large": {"model": {"token_init_std": 1.0}},
    "token-large": {"model": {"front": {"place": "token"}, "token_init_std": 1.0}},
}
CELLS = {"default": (0, 0), "token": (1, 0), "large": (0, 1), "token-large": (1, 1)}
KEYS = ("model.token_init_std", "model.front.place")


def loss(variant: str, regime: str, seed: int) -> float:
    place, init = CELLS[regime]
    shared = np.random.default_rng([seed, place, init]).normal(0, 1.0)  # of seed and cell: cancels in the effect
    own = np.random.default_rng([seed, place, init, 7]).normal(0, 0.01)
    effect = 0.1 + 0.2 * place - 0.3 * init + 0.5 * place * init
    return 5.0 + shared + ((effect + own) if variant == "layernorm" else 0.0)


def outcome(variant: str, regime: str, seed: int) -> dict[str, float]:
    return {"validation_loss": loss(variant, regime, seed)}


def effect(regime: str, seed: int) -> float:
    return loss("layernorm", regime, seed) - loss("none", regime, seed)


def found_in(folder, **more):
    build(folder, study(regimes=REGIMES), outcomes=outcome, **more)
    return analyze(read_results(folder)).interactions


def contrast(found, kind, *factors):
    return next(one for one in found.contrasts if one.kind == kind and set(one.factors) == set(factors))


def test_simple_effects_are_those_by_hand_and_average_to_the_main_effect(tmp_path):
    build(tmp_path, study(regimes=REGIMES), outcomes=outcome)
    analysis = analyze(read_results(tmp_path))
    effects = {(one.factor, one.at): one for one in analysis.interactions.simple}
    assert len(effects) == 4
    seeds = analysis.seeds
    for at, before, after in (("0.02", "default", "token"), ("1.0", "large", "token-large")):
        steps = [effect(after, seed) - effect(before, seed) for seed in seeds]
        found = effects[KEYS[1], at]
        assert (found.reference, found.level, found.other, found.n) == ("sum", "token", KEYS[0], len(seeds))
        assert found.estimate == pytest.approx(np.mean(steps))
        assert found.p == pytest.approx(scipy_stats.ttest_1samp(steps, 0).pvalue)
        alpha = 0.05 * found.p / found.p_adjusted  # as Holm multiplies p
        half = scipy_stats.t.ppf(1 - alpha / 2, len(seeds) - 1) * scipy_stats.sem(steps)
        assert (found.low, found.high) == pytest.approx((np.mean(steps) - half, np.mean(steps) + half))
    small, large = (effects[KEYS[1], at].estimate for at in ("0.02", "1.0"))
    assert (small + large) / 2 == pytest.approx(contrast(analysis.interactions, "main", KEYS[1]).estimate)
    assert large - small == pytest.approx(contrast(analysis.interactions, "interaction", *KEYS).estimate)
    mine = [effects[KEYS[1], at] for at in ("0.02", "1.0")]
    assert [one.p_adjusted for one in mine] == list(adjust([one.p for one in mine], method="holm").adjusted)


def test_the_settings_that_the_regimes_cross_are_found():
    crossing = crossing_of(study(regimes=REGIMES))
    assert set(crossing.keys) == set(KEYS)
    assert sorted(crossing.names.values()) == ["default", "large", "token", "token-large"]


@pytest.mark.parametrize(
    "regimes",
    [
        {},
        {"token": REGIMES["token"]},
        {"token": REGIMES["token"], "large": REGIMES["large"]},
        {**REGIMES, "hot": {"training": {"lr": 1e-2}}},
        {**REGIMES, "again": REGIMES["token"]},
    ],
    ids=["none", "one setting", "a cell missing", "three settings", "a cell twice"],
)
def test_regimes_that_do_not_cross_two_settings_give_no_table(regimes, tmp_path):
    assert crossing_of(study(regimes=regimes)) is None
    CELLS.setdefault("hot", (0, 0))
    CELLS.setdefault("again", (1, 0))
    build(tmp_path, study(regimes=regimes), outcomes=outcome)
    assert analyze(read_results(tmp_path)).interactions is None


def test_every_contrast_is_the_hand_computed_one(tmp_path):
    found = found_in(tmp_path)
    seeds = range(1, 6)
    d = {regime: np.array([effect(regime, seed) for seed in seeds]) for regime in REGIMES | {"default": {}}}
    by_hand = {
        ("main", "model.front.place"): ((d["token"] - d["default"]) + (d["token-large"] - d["large"])) / 2,
        ("main", "model.token_init_std"): ((d["large"] - d["default"]) + (d["token-large"] - d["token"])) / 2,
        ("interaction", *KEYS): d["token-large"] - d["large"] - d["token"] + d["default"],
    }
    for (kind, *factors), values in by_hand.items():
        one = contrast(found, kind, *factors)
        assert [value.value for value in one.values] == pytest.approx(values)
        half = 2.7764451051977987 * values.std(ddof=1) / np.sqrt(5)
        assert (one.estimate, one.low, one.high) == pytest.approx(
            (values.mean(), values.mean() - half, values.mean() + half)
        )
    assert contrast(found, "interaction", *KEYS).estimate == pytest.approx(0.5, abs=0.03)
    assert contrast(found, "main", "model.front.place").estimate == pytest.approx(0.2 + 0.5 / 2, abs=0.03)
    assert contrast(found, "main", "model.token_init_std").estimate == pytest.approx(-0.3 + 0.5 / 2, abs=0.03)
    for cell in found.cells:
        assert cell.effect == pytest.approx(d[cell.regime].mean())


def test_the_estimates_are_those_of_a_linear_model_with_seeds_as_blocks(tmp_path):
    found = found_in(tmp_path)
    rows = [
        {"d": effect(regime, seed), "place": place - 0.5, "init": init - 0.5, "seed": seed}
        for regime, (place, init) in CELLS.items()
        if regime in {*REGIMES, "default"}
        for seed in range(1, 6)
    ]
    fit = smf.ols("d ~ place * init + C(seed)", pd.DataFrame(rows)).fit()
    assert contrast(found, "main", "model.front.place").estimate == pytest.approx(fit.params["place"])
    assert contrast(found, "main", "model.token_init_std").estimate == pytest.approx(fit.params["init"])
    assert contrast(found, "interaction", *KEYS).estimate == pytest.approx(fit.params["place:init"])


def test_a_seed_that_lacks_a_cell_is_left_out_of_what_needs_it_and_counted(tmp_path):
    found = found_in(tmp_path, only=lambda run: not (run.regime == "token" and run.seed == 2))
    interaction = contrast(found, "interaction", *KEYS)
    assert (interaction.n, interaction.planned, interaction.status) == (4, 5, "ok")
    assert 2 not in [value.seed for value in interaction.values]
    assert next(cell for cell in found.cells if cell.regime == "default").n == 5


def test_p_is_adjusted_over_the_variants_of_one_kind_of_contrast(tmp_path):
    build(
        tmp_path,
        study(regimes=REGIMES, variants=["none", "layernorm", "rmsnorm"]),
        outcomes=lambda variant, regime, seed: outcome("layernorm" if variant == "rmsnorm" else variant, regime, seed),
    )
    for one in analyze(read_results(tmp_path)).interactions.contrasts:
        assert one.p_adjusted == pytest.approx(min(1.0, 2 * one.p))


# --- [factors] ------------------------------------------------------------------------------------------------

FACTORS = {
    "model.front.norm": ["none", "rmsnorm"],
    "training.weight_decay": [0.1, 0.0],
    "training.clip": [1.0, "off"],
}


def crossed(**changes):
    return parse_study(
        {
            **{key: value for key, value in study().model_dump(mode="json", exclude_defaults=True).items()
               if key not in ("variants", "baseline", "tables")},
            "factors": FACTORS,
            **changes,
        }
    )  # fmt: skip


def cell_loss(made, name: str, seed: int) -> float:
    norm, decay, clip = (value != FACTORS[key][0] for key, value in made.factors.cells()[name].items())
    shared, own = (np.random.default_rng([seed, *extra]).normal() for extra in ((), (norm, decay, clip)))
    return 3.0 + 0.5 * shared + 0.01 * own - 0.2 * norm + 0.1 * decay + 0.3 * norm * decay


def test_factors_become_an_arm_for_every_cell():
    made = crossed()
    assert made.baseline == "first-levels"
    assert made.variants == (
        "first-levels",
        "clip-off",
        "weight-decay-0.0",
        "weight-decay-0.0-clip-off",
        "norm-rmsnorm",
        "norm-rmsnorm-clip-off",
        "norm-rmsnorm-weight-decay-0.0",
        "norm-rmsnorm-weight-decay-0.0-clip-off",
    )
    assert made.tables["norm-rmsnorm"].settings == {
        "model.front.norm": "rmsnorm",
        "training.weight_decay": 0.1,
        "training.clip": 1.0,
    }
    assert len(crossed(factors={**FACTORS, "design": "half"}).variants) == 4


def test_effects_of_factors_are_paired_over_seeds(tmp_path):
    made = crossed()
    build(
        tmp_path,
        made,
        outcomes=lambda variant, regime, seed: {"validation_loss": cell_loss(made, variant, seed)},
    )
    found = analyze(read_results(tmp_path)).interactions
    pair = contrast(found, "interaction", "model.front.norm", "training.weight_decay")
    assert pair.estimate == pytest.approx(0.3, abs=0.03)
    assert pair.n == 5
    assert contrast(found, "main", "training.clip").estimate == pytest.approx(0.0, abs=0.02)
    assert contrast(found, "main", "model.front.norm").estimate == pytest.approx(-0.2 + 0.3 / 2, abs=0.02)
    mains = [item for item in found.contrasts if item.kind == "main"]
    assert max(item.p_adjusted / item.p for item in mains if item.p_adjusted < 1) == pytest.approx(len(mains))
    assert found.aliases == ()
    by_hand = [
        np.mean([cell_loss(made, name, seed) * (1 if cell["training.clip"] == "off" else -1) * 2
                 for name, cell in made.factors.cells().items()])
        for seed in range(1, 6)
    ]  # fmt: skip
    assert [item.value for item in contrast(found, "main", "training.clip").values] == pytest.approx(by_hand)


def test_without_a_cell_an_effect_keeps_its_meaning_or_has_no_estimate(tmp_path):
    """Two architectures against a third, one cell of which has no value: what the other four determine stays the same."""
    levels = {"model.mlp": ["gelu", "relu", "silu"], "model.front.norm": ["none", "rmsnorm"]}
    made = crossed(factors={**levels, "effects": ["model.mlp:model.front.norm"]})
    cells = {tuple(map(str, cell.values())): name for name, cell in made.factors.cells().items()}
    gone = cells["silu", "none"]
    losses = {name: 3.0 + 0.1 * position**2 for position, name in enumerate(made.variants)}
    found = []
    for folder, missing in (("all", False), ("without", True)):
        build(
            tmp_path / folder,
            made,
            outcomes=lambda variant, regime, seed: {"validation_loss": losses[variant] + 0.01 * seed},
            only=lambda run, missing=missing: not (missing and run.variant == gone),
        )
        interactions = analyze(read_results(tmp_path / folder)).interactions
        found.append({(item.kind, item.levels): item.estimate for item in interactions.contrasts})
    whole, partial = found
    differences = [losses[cells[mlp, "rmsnorm"]] - losses[cells[mlp, "none"]] for mlp in ("gelu", "relu")]
    assert whole["interaction", ("relu", "rmsnorm")] == pytest.approx(differences[1] - differences[0])
    assert partial["interaction", ("relu", "rmsnorm")] == pytest.approx(differences[1] - differences[0])
    assert whole["interaction", ("silu", "rmsnorm")] is not None
    assert partial["interaction", ("silu", "rmsnorm")] is None
    assert partial["main", ("rmsnorm",)] is None


NAMED = {
    "architecture": {"gpt2": {}, "llama": {"model": {"norm": "rmsnorm", "mlp": "swiglu"}}},
    "training.weight_decay": [0.1, 0.0],
}


def test_a_factor_may_have_named_levels_of_several_settings():
    made = crossed(factors=NAMED)
    assert made.variants == ("gpt2", "gpt2-weight-decay-0.0", "llama", "llama-weight-decay-0.0")
    settings = {"model.norm": "rmsnorm", "model.mlp": "swiglu", "training.weight_decay": 0.1}
    assert made.tables["llama"].settings == settings
    assert crossing_of(made).levels == (("gpt2", "llama"), ("0.1", "0.0"))
    assert parse_study(made.model_dump(mode="json")) == made


def test_effects_of_tuned_arms_are_those_at_their_own_best_rates(tmp_path):
    rates = [1e-3, 2e-3, 4e-3, 8e-3]
    criteria = [{"metric": "validation_loss", "regime": "tuned", "role": "primary", "smallest_effect": 0.01}]
    made = crossed(
        factors={**NAMED, "effects": ["architecture:weight_decay"]},
        sweep={"lr": rates, "selection_seeds": [11]},
        criteria=criteria,
    )

    def lowest(variant: str, seed: int) -> float:
        llama, decay = "llama" in variant, "decay" in variant
        noise = np.random.default_rng([seed, llama, decay]).normal(0, 0.01)
        return 2.0 - 0.3 * llama + 0.05 * decay + 0.2 * llama * decay + noise

    def curve(variant: str, lr: float, seed: int) -> dict[str, float]:
        best = np.log2(2.5e-3 if "llama" in variant else 3.5e-3)  # between two rates of the grid
        return {"validation_loss": lowest(variant, seed) + 0.1 * (np.log2(lr) - best) ** 2}

    build(
        tmp_path,
        made,
        outcomes=lambda variant, regime, seed: curve(variant, made.training.lr, seed),
        swept=curve,
    )
    found = analyze(read_results(tmp_path)).interactions
    pair = contrast(found, "interaction", "architecture", "training.weight_decay")
    by_hand = [
        lowest("llama-decay", seed) - lowest("llama", seed) - lowest("decay", seed) + lowest("", seed)
        for seed in range(1, 6)
    ]
    assert pair.label == "registered"
    assert [item.value for item in pair.values] == pytest.approx(by_hand)


def test_effects_of_tuned_arms_without_fitted_best_rates_are_not_tested(tmp_path):
    """One curve for all arms; only its place differs, so an effect at grid rates is the grid's."""
    criteria = [{"metric": "validation_loss", "regime": "tuned", "role": "primary", "smallest_effect": 0.01}]
    made = crossed(
        factors={**NAMED, "effects": ["architecture:weight_decay"]},
        sweep={"lr": [1e-3, 1e-2, 1e-1], "selection_seeds": [11]},
        criteria=criteria,
    )

    def curve(variant: str, lr: float, seed: int) -> dict[str, float]:
        best = 1e-2 * 10 ** (0.3 * (variant == made.variants[-1]))
        noise = np.random.default_rng([seed, made.variants.index(variant)]).normal(0, 1e-3)
        return {"validation_loss": 2.0 + 0.3 * np.log10(lr / best) ** 2 + noise}

    build(tmp_path, made, swept=curve)
    analysis = analyze(read_results(tmp_path))
    assert analysis.sweep.tuned_at == "grid-rates"
    pair = contrast(analysis.interactions, "interaction", "architecture", "training.weight_decay")
    assert pair.label == "registered"
    assert (pair.n, pair.estimate, pair.p, pair.p_adjusted, pair.status) == (0, None, None, None, "grid-rates")
    notes = {cell.text for row in interaction_table(analysis.interactions).rows for cell in row}
    assert "grid rates" in notes


def test_a_half_says_which_effects_it_cannot_tell_apart(tmp_path):
    made = crossed(factors={**FACTORS, "design": "half"})
    build(tmp_path, made, outcomes=lambda variant, regime, seed: {"validation_loss": cell_loss(made, variant, seed)})
    found = analyze(read_results(tmp_path)).interactions
    assert {item.kind for item in found.contrasts} == {"main"}
    note = interaction_table(found).note
    assert "norm × weight_decay with clip" in note


@pytest.mark.parametrize(
    ("factors", "text"),
    [
        ({"training.weight_decay": [0.1, 0.0]}, "two or more settings"),
        ({"training.weight_decay": [0.1], "training.clip": [1.0, "off"]}, "two or more"),
        ({"weight_decay": [0.1, 0.0], "training.clip": [1.0, "off"]}, "not a setting of model, training or data"),
        ({"training.weight_decay": [0.1, 0.0], "training.clip": [1.0, "off"], "design": "half"}, "three or more"),
        ({"training.weight_decay": [0.1, 0.0], "training.clip": [1.0, "off"], "design": "third"}, "half"),
        ({"training.wait_decay": [0.1, 0.0], "training.clip": [1.0, "off"]}, "weight_decay"),
        ({**NAMED, "model.norm": ["layernorm", "rmsnorm"]}, "architecture and model.norm both set model.norm"),
        (
            {**NAMED, "architecture": {"gpt2": {}, "llama": {"modle": {"norm": "rmsnorm"}}}},
            "'modle.norm' is not a setting",
        ),
        ({**NAMED, "architecture": {"gpt2": {}}}, "two or more"),
        ({**FACTORS, "effects": ["nrom"]}, "'nrom' is none of norm, weight_decay, clip; did you mean 'norm'"),
        ({**FACTORS, "effects": ["norm:norm"]}, "not an effect of one, two or three different settings"),
        ({**FACTORS, "effects": ["norm:clip", "clip:norm"]}, "one is given twice"),
        ({**FACTORS, "design": "half", "effects": ["norm:clip"]}, "cannot tell 'norm:clip' from 'weight_decay'"),
    ],
)
def test_factors_that_make_no_design_are_refused(factors, text):
    with pytest.raises(StudyError, match=text) as refused:
        crossed(factors=factors)
    assert "missing" not in str(refused.value)


def test_a_study_has_factors_or_variants():
    with pytest.raises(StudyError, match="leave one of the two out"):
        crossed(variants=["none", "rmsnorm"], baseline="none")


def test_registered_effects_are_one_family_and_the_others_exploratory(tmp_path):
    made = crossed(factors={**FACTORS, "effects": ["norm", "norm:training.weight_decay"]})
    build(tmp_path, made, outcomes=lambda variant, regime, seed: {"validation_loss": cell_loss(made, variant, seed)})
    found = analyze(read_results(tmp_path)).interactions
    registered = [item for item in found.contrasts if item.label == "registered"]
    assert [set(item.factors) for item in registered] == [
        {"model.front.norm"},
        {"model.front.norm", "training.weight_decay"},
    ]
    first, second = sorted(registered, key=lambda item: item.p)
    assert (first.p_adjusted, second.p_adjusted) == (2 * first.p, max(2 * first.p, second.p))
    mains = [item for item in found.contrasts if item.kind == "main" and item.label == "exploratory"]
    assert max(item.p_adjusted / item.p for item in mains if item.p_adjusted < 1) <= len(mains) == 2
    assert "registered" in {cell.text for row in interaction_table(found).rows for cell in row}


def test_effects_cannot_be_registered_with_looks():
    criteria = [{"metric": "validation_loss", "role": "primary"}]
    factors, looks = {**FACTORS, "effects": ["norm"]}, {"looks": [3, 5]}
    with pytest.raises(StudyError, match=r"factors\.effects: registered effects are tested once"):
        crossed(factors=factors, design=looks, criteria=criteria)


def test_registered_effects_are_claimed_falsely_in_at_most_five_percent_of_studies():
    """2,000 studies of 2 x 2 x 2 cells and five seeds without any effect: some claim among three registered ones."""
    levels = (("a", "b"),) * 3
    cells = list(product("ab", repeat=3))
    model = FactorialModel.of(levels, cells)
    weights = np.array(
        [
            [model.estimates({cell: float(cell == only) for cell in cells})[term] for only in cells]
            for term in model.terms[:3]
        ]
    )
    values = np.random.default_rng(1).normal(size=(2000, 5, len(cells)))
    effects = values @ weights.T
    p = scipy_stats.ttest_1samp(effects, 0.0, axis=1).pvalue
    rejected = np.mean([min(adjust(list(row), method="holm").adjusted) <= 0.05 for row in p])
    assert rejected == pytest.approx(0.05, abs=3 * np.sqrt(0.05 * 0.95 / 2000))


def test_an_interval_of_an_effect_excludes_0_in_its_table_just_where_the_adjusted_p_shows_it(tmp_path):
    """p = 0.03 of one test is 0.06 of two: the interval of one test would exclude 0."""
    found = found_in(tmp_path)
    values = (1.0, 2.0, 3.0, 4.0)
    one, p = paired_t_interval(values, level=0.95), scipy_stats.ttest_1samp(values, 0).pvalue
    update = {
        "values": tuple(SeedValue(seed=seed, value=value) for seed, value in enumerate(values)),
        "n": 4,
        "estimate": one.estimate,
        "low": one.low,
        "high": one.high,
        "p": p,
        "p_adjusted": 2 * p,
    }
    contrasts = (with_bounds(found.contrasts[0].model_copy(update=update)),)
    table = interaction_table(found.model_copy(update={"contrasts": contrasts}))
    (shown,) = (dict(zip((c.key for c in table.columns), row, strict=True)) for row in table.rows)
    half = scipy_stats.t.ppf(1 - 0.0125, 3) * scipy_stats.sem(values)
    assert one.low > 0 > shown["low"].value
    assert (shown["low"].value, shown["high"].value) == pytest.approx((2.5 - half, 2.5 + half))
