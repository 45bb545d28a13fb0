"""Published tables: those that ship fit their studies, and a wrong one is refused with every mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablationlab.core.errors import PublishedError, UnknownNameError
from ablationlab.instrument.replication import check_study, load_table, names, study_path, table_path
from ablationlab.model.parameters import parameter_count, parameters
from ablationlab.records.settings import Study
from ablationlab.study.load import load_study
from ablationlab.study.variants import VARIANTS
from conftest import to_toml, with_changes

TABLE: dict[str, Any] = {
    "schema_version": 1,
    "name": "mine",
    "title": "A table of mine",
    "about": "Three runs each.",
    "study": "tiny.toml",
    "source": {"citation": "me", "date": "2026"},
    "figures": [
        {
            "metric": "perplexity",
            "published_as": "PPL",
            "definition": "as ours",
            "values": {"none": {"mean": 9.0, "sd": 1.0, "n": 3}},
        }
    ],
}


def written(folder: Path, changes: dict[str, Any] | None = None) -> Path:
    path = folder / "mine.toml"
    path.write_text(to_toml(with_changes(TABLE, changes or {})))
    return path


def resolved(study: Study, regime: str, variant: str) -> int:
    model = study.in_regime(regime)[0].changed(vocabulary=65)
    return parameter_count(VARIANTS[variant].apply(model))


@pytest.mark.parametrize("name", ["pilot", "final", "nanogpt", "takase", "lescao", "narang"])
@pytest.mark.parametrize("quick", [False, True])
def test_a_shipped_table_fits_its_study_whole_and_quick(name, quick):
    path = table_path(name)
    table = load_table(path)
    assert table.name == name == path.stem
    whole = load_study(study_path(table, path))
    check_study(table, whole, str(path))
    study = load_study(study_path(table, path), table.quick) if quick else whole
    asked = {one.metric for one in table.directions}
    registered = {criterion.metric for criterion in study.criteria}
    assert asked <= registered  # a published sign is a question that the study registers
    if quick:
        assert study.hash != whole.hash


def test_those_are_all_that_ship():
    assert names() == ["final", "lescao", "nanogpt", "narang", "pilot", "takase"]


def test_the_pilots_model_has_the_published_number_of_parameters():
    path = table_path("pilot")
    study = load_study(study_path(load_table(path), path))
    assert resolved(study, "default", "none") == 65 * 128 + 128 * 128 + 65 * 128 + 65 == 33_089
    assert resolved(study, "default", "layernorm") == 33_089 + 256
    assert resolved(study, "default", "rmsnorm") == 33_089 + 128
    assert resolved(study, "eight-layers", "none") == 1_611_136
    by_name = {one.name: one for one in parameters(study.model.changed(vocabulary=65))}
    assert by_name["pos.weight"].std == 0.0
    assert by_name["tok.weight"].std == 1.0
    assert by_name["head.weight"].std == pytest.approx((3 * 128) ** -0.5)


def test_nanogpts_model_has_its_number_of_parameters():
    path = table_path("nanogpt")
    study = load_study(study_path(load_table(path), path))
    # nanoGPT prints 10.65 M, which leaves its positions out
    assert round((resolved(study, "default", "none") - 256 * 384) / 1e6, 2) == 10.65
    assert study.evaluation.curve_windows * study.model.context >= 111_539  # the whole split but its first token


def test_the_pilot_table_is_the_protocols():
    values = {figure.metric: figure.values for figure in load_table(table_path("pilot")).figures}
    assert [(v.mean, v.sd, v.n) for v in values["perplexity"].values()] == [
        (22.18, 0.90, 3),
        (20.64, 0.81, 3),
        (21.88, 0.77, 3),
    ]
    assert [v.mean for v in values["mean_embedding_norm"].values()] == [11.46, 11.68, 11.59]
    assert [v.mean for v in values["final_gradient_norm"].values()] == [0.1762, 0.1783, 0.1706]
    assert [v.mean for v in values["next_token_accuracy"].values()] == [0.0533, 0.0667, 0.0600]


def test_the_final_table_holds_every_published_run():
    table = load_table(table_path("final"))
    figures = {figure.metric: figure.values for figure in table.figures}
    perplexity, norms = figures["perplexity"], figures["final_gradient_norm"]
    names = ("none", "layernorm", "rmsnorm")
    # Means and deviations of the protocol.
    assert [round(perplexity[name].mean, 2) for name in names] == [11.29, 11.92, 11.92]
    assert [round(perplexity[name].sd, 2) for name in names] == [0.13, 0.13, 0.13]
    assert [round(norms[name].mean, 2) for name in names] == [1.10, 0.57, 0.57]
    assert {value.n for values in figures.values() for value in values.values()} == {5}
    # Perplexity is the exponential of the loss, so the two columns were copied in the same order.
    for name in names:
        losses = figures["validation_loss"][name].runs
        assert np.exp(losses) == pytest.approx(perplexity[name].runs, rel=1e-4)
    # The pairs of a direction are the runs of the figure.
    for direction in table.directions:
        runs = figures[direction.metric]
        assert tuple(pair.variant for pair in direction.pairs) == runs[direction.variant].runs
        assert tuple(pair.reference for pair in direction.pairs) == runs["none"].runs
        assert direction.contrary == 0


def test_published_runs_give_mean_deviation_and_number(tmp_path):
    figure = TABLE["figures"][0] | {"values": {"none": {"runs": [1.0, 2.0, 6.0]}}}
    path = written(tmp_path, {"figures": [figure]})
    value = load_table(path).figures[0].values["none"]
    assert (value.mean, value.n, value.sd) == (3.0, 3, pytest.approx(7**0.5))


def test_takases_one_contrary_pair_is_counted():
    found = {(one.metric, one.regime, one.variant): one for one in load_table(table_path("takase")).directions}
    assert found["validation_loss", "default", "layernorm-token"].contrary == 1
    assert found["validation_loss", "default", "sqrt-d"].contrary == 0


def test_a_users_own_table_is_read_and_finds_its_study_beside_it(tmp_path, study_file):
    study = study_file()
    path = written(tmp_path)
    assert study_path(load_table(path), path) == study
    assert table_path(str(path)) == path


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": "My Table"}, ["name", "'my-table'"]),
        ({"title": "red \u001b[31m"}, ["title", "cannot be printed"]),
        ({"titel": "x"}, ["titel: unknown key", "did you mean 'title'"]),
        ({"title": ...}, ["title: is missing"]),
        ({"schema_version": 2}, ["schema_version"]),
        ({"study": "tiny.yaml"}, ["study", ".toml"]),
        ({"figures": []}, ["neither figures nor directions"]),
        ({"source.url": "javascript:alert(1)"}, ["source.url", "https://"]),
        ({"source": ...}, ["source: is missing"]),
    ],
)
def test_a_wrong_table_is_refused_by_its_key(tmp_path, changes, says):
    with pytest.raises(PublishedError) as refused:
        load_table(written(tmp_path, changes))
    for words in says:
        assert words in str(refused.value)


@pytest.mark.parametrize(
    ("figure", "says"),
    [
        ({"metric": "perplexty"}, "did you mean 'perplexity'"),
        ({"metric": "lr_sensitivity"}, "not a number of a run"),
        ({"metric": "curve_loss"}, "take = 'minimum'"),
        ({"take": "minimum"}, "take belongs to a metric per step"),
        ({"values": {"layernrm": {"mean": 1.0, "n": 1}}}, "did you mean 'layernorm'"),
        ({"values": {"none": {"mean": 1.0, "n": 1, "sd": 0.1}}}, "needs two runs"),
        ({"values": {"none": {"mean": 1.0}}}, "n: is missing"),
        ({"values": {"none": {"mean": "9", "n": 3}}}, "wrong type"),
        ({"values": {}}, "must not be empty"),
        ({"digits": -1}, "digits"),
    ],
)
def test_a_wrong_figure_is_refused(tmp_path, figure, says):
    with pytest.raises(PublishedError) as refused:
        load_table(written(tmp_path, {"figures": [{**TABLE["figures"][0], **figure}]}))
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("direction", "says"),
    [
        ({"variant": "layernrom"}, "did you mean 'layernorm'"),
        ({"variant": "none"}, "with itself"),
        ({"sign": "up"}, "sign"),
        ({"metric": "loss"}, "per step"),
        ({"metric": "lr_sensitivity"}, "regime = 'sweep'"),
        ({"regime": "sweep"}, "another regime"),
    ],
)
def test_a_wrong_direction_is_refused(tmp_path, direction, says):
    whole = {
        "metric": "validation_loss",
        "variant": "layernorm",
        "sign": "lower",
        "published_as": "better",
        **direction,
    }
    with pytest.raises(PublishedError) as refused:
        load_table(written(tmp_path, {"directions": [whole]}))
    assert says in str(refused.value)


def test_every_mistake_is_told_at_once(tmp_path):
    figure = {**TABLE["figures"][0], "metric": "perplexty", "values": {"nun": {"mean": 1.0, "n": 1}}}
    with pytest.raises(PublishedError) as refused:
        load_table(written(tmp_path, {"name": "My Table", "figures": [figure]}))
    assert len(refused.value.problems) == 3


def test_what_the_study_lacks_is_named(tmp_path, study_file):
    table = load_table(written(tmp_path, {"beside": ["eight"], "figures": [{**TABLE["figures"][0], "regime": "hto"}]}))
    study = load_study(study_file({"regimes.hot.training.lr": 0.01}))
    with pytest.raises(PublishedError) as refused:
        check_study(table, study, "mine.toml")
    assert "did you mean 'hot'" in str(refused.value)
    assert "beside[0]" in str(refused.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"name = ", "not TOML"),
        (b"\xff", "not UTF-8"),
        (b"name = " + 5000 * b"[", "nested too deeply"),
        (None, "no such file"),
    ],
)
def test_an_unreadable_file_is_named(tmp_path, content, says):
    path = tmp_path / "bad.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PublishedError, match=says) as refused:
        load_table(path)
    assert str(path) in str(refused.value)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'pilot'"):
        table_path("pilto")


def test_a_study_that_is_nowhere_is_told_with_the_places(tmp_path):
    path = written(tmp_path, {"study": "nowhere.toml"})
    with pytest.raises(PublishedError, match="--study FILE") as refused:
        study_path(load_table(path), path)
    assert str(tmp_path) in str(refused.value)
