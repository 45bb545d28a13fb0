"""Probes of embeddings against matrices whose answer is known, and against scipy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from ablationlab.training.probes.activations import centering_share, mean_cosine
from ablationlab.training.probes.embedding import LEVELS, embedding_gain, embedding_norm, entropy_rank, token_frequency
from ablationlab.training.probes.snapshot import Snapshot
from ablationlab.training.probes.stack_probes import MEASUREMENTS


def values(readings, measure, group=None):
    """(R, N) of one measure."""
    (found,) = [r for r in readings if r.measure == measure and set(r.groups) == {group}]
    return torch.from_numpy(found.on_host(found.values))


def orthogonal(size: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(size).standard_normal((size, size)))[0]


def test_cosine_of_orthogonal_rows_is_0_of_equal_rows_1_of_opposite_ones_minus_1():
    assert mean_cosine(torch.eye(5)[None] * 3).item() == pytest.approx(0, abs=1e-7)
    assert mean_cosine(torch.ones(1, 7, 4)).item() == pytest.approx(1)
    assert mean_cosine(torch.tensor([[[1.0, 2.0], [-2.0, -4.0]]])).item() == pytest.approx(-1)
    assert torch.isnan(mean_cosine(torch.ones(2, 1, 4))).all()


def test_cosine_equals_the_mean_over_all_pairs():
    x = torch.randn(3, 9, 6, generator=torch.Generator().manual_seed(0))
    units = x / x.norm(dim=-1, keepdim=True)
    pairs = units @ units.transpose(1, 2)
    wanted = (pairs.sum(dim=(1, 2)) - 9) / 72
    assert mean_cosine(x).tolist() == pytest.approx(wanted.tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("spectrum", "entropy", "participation"),
    [
        ([1.0] * 6, 6, 6),
        ([1.0, 1.0, 0, 0, 0, 0], 2, 2),
        ([5.0, 0, 0, 0, 0, 0], 1, 1),
        # p = (1/2, 1/4, 1/4): entropy 1.5 bits; (4+1+1)² / (16+1+1) = 2
        ([2.0, 1, 1, 0, 0, 0], 2**1.5, 2),
    ],
)
def test_effective_rank_of_known_spectra(with_table, snapshot, spectrum, entropy, participation):
    rows, width = snapshot.weights["tok.weight"].shape[1:]
    table = orthogonal(rows)[:, : len(spectrum)] @ np.diag(spectrum) @ orthogonal(width)[: len(spectrum)]
    readings = MEASUREMENTS["effective-rank"](with_table(table))
    assert values(readings, "entropy").flatten().tolist() == pytest.approx([entropy] * 3, rel=1e-3)
    assert values(readings, "participation").flatten().tolist() == pytest.approx([participation] * 3, rel=1e-5)


def test_effective_rank_by_gram_matrix_equals_that_by_singular_values(snapshot):
    singular = torch.linalg.svdvals(snapshot.weights["tok.weight"].double())
    found = values(MEASUREMENTS["effective-rank"](snapshot), "entropy").flatten()
    assert found.tolist() == pytest.approx([entropy_rank(row.numpy()) for row in singular], rel=1e-9)


def test_a_broken_run_is_not_a_number_and_its_neighbours_are_unharmed(snapshot):
    flat = snapshot.weights_RP.clone()
    flat[1] = math.inf
    broken = MEASUREMENTS["effective-rank"](replace(snapshot, weights_RP=flat))
    whole = values(MEASUREMENTS["effective-rank"](snapshot), "entropy").flatten()
    found = values(broken, "entropy").flatten()
    assert math.isnan(found[1])
    assert found[[0, 2]].tolist() == whole[[0, 2]].tolist()


def test_centering_share_of_known_vectors():
    constant, centred, half = torch.full((8,), 3.0), torch.tensor([1.0, -1] * 4), torch.tensor([1.0, 0] * 4)
    x = torch.stack([constant, centred, half])[:, None]
    assert centering_share(x).tolist() == pytest.approx([1.0, 0.0, 0.5])
    assert centering_share(torch.zeros(2, 3, 4)).tolist() == [0.0, 0.0]


def test_centering_share_is_what_layernorms_centering_takes_from_the_squared_norm():
    x = torch.randn(2, 50, 32, generator=torch.Generator().manual_seed(1)) + 0.3
    centred = x - x.mean(dim=-1, keepdim=True)
    wanted = (1 - centred.square().sum(-1) / x.square().sum(-1)).mean(dim=1)
    assert centering_share(x).tolist() == pytest.approx(wanted.tolist(), rel=1e-5)


def test_centering_share_of_white_noise_is_one_over_width():
    x = torch.randn(1, 20_000, 32, generator=torch.Generator().manual_seed(2))
    assert centering_share(x).item() == pytest.approx(1 / 32, rel=0.05)


def test_what_layernorm_lets_into_block_1_is_centred_and_what_rmsnorm_lets_in_is_not(snapshot):
    readings = MEASUREMENTS["centering"](snapshot)
    entering, summed = values(readings, "share", "input").flatten(), values(readings, "share", "sum").flatten()
    assert entering[0] == summed[0]  # the baseline hands on the sum
    assert entering[1] < 0.02 * summed[1]  # LayerNorm; a bias that has begun to learn may leave a little
    assert entering[2] > 0.5 * summed[2]


def test_row_norms_by_class_are_those_of_the_rows(with_table, snapshot):
    vocabulary = snapshot.vocabulary
    sizes = {"alphabetic": 2.0, "numeric": 3.0, "punctuation": 5.0, "whitespace": 7.0}
    assert set(vocabulary.members) == set(sizes)  # a character model has no end-of-document
    rows, width = snapshot.weights["tok.weight"].shape[1:]
    table = np.zeros((rows, width))
    for name, ids in vocabulary.members.items():
        table[ids, ids % width] = sizes[name]
    readings = embedding_norm(with_table(table))
    for name, size in sizes.items():
        assert values(readings, "mean", name).tolist() == [[size]] * 3
        assert values(readings, "quantile", name).tolist() == [[size] * len(LEVELS)] * 3
    counts = {name: len(ids) for name, ids in vocabulary.members.items()}
    mean = sum(counts[name] * sizes[name] for name in sizes) / rows
    assert values(readings, "mean", "all")[0].item() == pytest.approx(mean)


def test_quantiles_are_numpys(snapshot):
    norms = snapshot.weights["tok.weight"].norm(dim=-1).numpy()
    found = values(embedding_norm(snapshot), "quantile", "all").numpy()
    assert found == pytest.approx(np.quantile(norms, LEVELS, axis=1).T, rel=1e-5)


def test_frequency_against_norm_has_one_point_a_token_and_scipys_spearman(snapshot):
    readings = token_frequency(snapshot)
    counts = snapshot.vocabulary.counts_V
    by_name = {reading.measure: reading for reading in readings}
    frequency, norm = by_name["frequency"], by_name["norm"]
    assert list(frequency.groups) == [snapshot.vocabulary.texts[token] for token in np.argsort(-counts, kind="stable")]
    assert frequency.values[0].sum().item() == pytest.approx(1)
    assert (frequency.values[0].diff() <= 0).all()
    norms = snapshot.weights["tok.weight"].norm(dim=-1)
    first = frequency.groups[0]
    assert norm.values[1, 0] == norms[1, snapshot.vocabulary.texts.index(first)]
    for run in range(3):
        wanted = stats.spearmanr(counts, norms[run].numpy()).statistic
        assert by_name["correlation"].values[run].item() == pytest.approx(wanted)


def test_large_vocabularies_are_drawn_together_into_points_that_keep_the_mean(snapshot, monkeypatch):
    monkeypatch.setattr("ablationlab.training.probes.embedding.POINTS", 5)
    readings = {reading.measure: reading for reading in token_frequency(snapshot)}
    rows = snapshot.weights["tok.weight"].shape[1]
    points = snapshot.vocabulary.points(5)
    assert [len(ids) for ids in points] == [len(part) for part in np.array_split(range(rows), 5)]
    assert set(readings["norm"].groups) == {None}
    assert list(readings["norm"].at) == [1 + sum(len(ids) for ids in points[:i]) for i in range(5)]
    norms = snapshot.weights["tok.weight"].norm(dim=-1)
    wanted = [norms[2, ids].mean().item() for ids in points]
    assert readings["norm"].values[2].tolist() == pytest.approx(wanted)


def test_learned_gain_is_read_only_for_runs_that_have_one(snapshot: Snapshot):
    readings = embedding_gain(snapshot)
    gains = [reading for reading in readings if reading.groups == ("gain",)]
    biases = [reading for reading in readings if reading.groups == ("bias",)]
    assert [list(reading.has_R) for reading in gains] == [[False, True, True]] * 3
    assert [list(reading.has_R) for reading in biases] == [[False, True, False]] * 3
    vector = next(reading for reading in gains if reading.measure == "value")
    assert torch.equal(vector.values, snapshot.weights["front.gain"])
    assert next(r for r in gains if r.measure == "mean").values[1].item() == pytest.approx(
        snapshot.weights["front.gain"][1].mean().item()
    )
