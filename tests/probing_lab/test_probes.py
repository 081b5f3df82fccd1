from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from switchsd.errors import OneClassError, SwitchSDError
from switchsd.probing.corpora.partition import split_groups
from switchsd.probing.lab.controls import prompt_only_labels
from switchsd.probing.training import logistic
from switchsd.probing.training.families import (
    FAMILIES,
    fit_difference_of_means,
    fit_lda,
    fit_logistic_path,
)
from switchsd.probing.training.logistic import standardise
from switchsd.probing.training.mlp import fit_mlp


def activations(n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Correlated columns, decaying spectrum, two outlier features, noisy labels, half precision."""
    random = np.random.default_rng(seed)
    spectrum = np.arange(1, d + 1) ** -1.0
    rotation = np.linalg.qr(random.standard_normal((d, d)))[0]
    latent = random.standard_normal((n, d)) * spectrum
    logit = latent @ (random.standard_normal(d) / spectrum**0.5)
    y = 2 * logit / logit.std() + random.logistic(size=n) > 0.3
    X = latent @ rotation.T
    X[:, [1, d - 2]] = X[:, [1, d - 2]] * 30 + 60
    return X.astype(np.float16), y


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def objective(Z: np.ndarray, y: np.ndarray, w: np.ndarray, b: float, C: float) -> float:
    return float(C * np.logaddexp(0, -(2 * y - 1) * (Z @ w + b)).sum() + 0.5 * w @ w)


@pytest.mark.parametrize("n", [300, 3_000])  # all rows, and a sample of them, precondition
def test_logistic_path_reaches_scikit_learns_optimum(n: int) -> None:
    X, y = activations(n, 64, 0)
    path = [1e-4, 1e-2, 1.0, 100.0]
    scaler = StandardScaler().fit(X.astype(np.float64))
    Z = scaler.transform(X.astype(np.float64))
    for C, probe in zip(path, fit_logistic_path(X, y, C=path), strict=True):
        best = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-8, max_iter=500).fit(Z, y)
        w = probe.weight * scaler.scale_
        b = probe.bias + float(probe.weight @ scaler.mean_)
        assert cosine(w, best.coef_[0]) > 0.998
        assert np.linalg.norm(w - best.coef_[0]) < 0.06 * np.linalg.norm(best.coef_)
        least = objective(Z, y, best.coef_[0], best.intercept_[0], C)
        assert objective(Z, y, w, b, C) < least * (1 + 1e-3)
        expected = roc_auc_score(y, best.decision_function(Z))
        assert roc_auc_score(y, probe.logit(X)) == pytest.approx(expected, abs=2e-3)


def test_path_comes_back_in_the_order_asked_for() -> None:
    X, y = activations(500, 16, 1)
    up = fit_logistic_path(X, y, C=[0.01, 1.0])
    down = fit_logistic_path(X, y, C=[1.0, 0.01])
    assert np.array_equal(up[0].weight, down[1].weight)
    assert np.linalg.norm(up[0].weight) < np.linalg.norm(up[1].weight)


def test_fit_is_deterministic_and_leaves_its_input_alone() -> None:
    X, y = activations(2_000, 64, 2)
    X = X.astype(np.float32)
    before, threads = X.copy(), torch.get_num_threads()
    state = torch.random.get_rng_state()
    first, second = (fit_logistic_path(X, y, C=[0.1])[0] for _ in range(2))
    assert np.array_equal(first.weight, second.weight)
    assert first.bias == second.bias
    assert np.array_equal(X, before)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), state)


def test_weights_act_as_scikit_learns_sample_weight() -> None:
    X, y = activations(1_500, 32, 3)
    weights = np.random.default_rng(0).integers(0, 4, len(y)).astype(np.float32)
    Z = StandardScaler().fit_transform(X.astype(np.float64))
    scale = X.astype(np.float64).std(0)
    best = LogisticRegression(C=0.1, solver="newton-cholesky", tol=1e-8).fit(Z, y, weights)
    plain = LogisticRegression(C=0.1, solver="newton-cholesky", tol=1e-8).fit(Z, y)
    [probe] = fit_logistic_path(X, y, C=[0.1], weights=weights)
    near = np.linalg.norm(probe.weight * scale - best.coef_[0])
    assert near < 0.06 * np.linalg.norm(best.coef_)
    assert near < 0.3 * np.linalg.norm(probe.weight * scale - plain.coef_[0])
    with pytest.raises(OneClassError):
        fit_logistic_path(X, y, C=[0.1], weights=y.astype(np.float32))
    with pytest.raises(SwitchSDError, match="weights"):
        fit_logistic_path(X, y, C=[0.1], weights=-weights)


def test_few_passes_over_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = activations(6_000, 128, 4)
    passes = 0
    search = logistic._line_search

    def counted(*arguments: torch.Tensor) -> float:
        nonlocal passes
        passes += 1
        return search(*arguments)

    monkeypatch.setattr(logistic, "_line_search", counted)
    fit_logistic_path(X, y, C=[1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Z = StandardScaler().fit_transform(X.astype(np.float32))
        slow = LogisticRegression(C=1.0).fit(Z, y)
    assert 2 <= passes <= 10
    assert slow.n_iter_[0] > 50  # what the preconditioner saves


def test_separable_data_converge_or_say_so() -> None:
    random = np.random.default_rng(0)
    X = random.standard_normal((400, 5)).astype(np.float32)
    y = X[:, 0] > 0
    for probe in fit_logistic_path(X, y, C=[1e-3, 1.0, 1e3]):
        assert np.isfinite(probe.weight).all()
        assert roc_auc_score(y, probe.logit(X)) > 0.99


def test_scaler_folds_in_exactly() -> None:
    X, y = activations(800, 24, 5)
    data = standardise(X)
    weight, bias = logistic.solve_path(data, y, C=[0.1])[0]
    apart = data.values.numpy() @ weight + bias
    [probe] = fit_logistic_path(X, y, C=[0.1])
    assert np.abs(probe.logit(X) - apart).max() < 1e-4
    assert probe.score(X) == pytest.approx(1 / (1 + np.exp(-probe.logit(X))), abs=1e-6)
    reference = StandardScaler().fit_transform(X.astype(np.float64))
    assert np.abs(data.values.numpy() - reference).max() < 1e-4


@pytest.mark.parametrize("value", [0.0, 0.1, -37.3, 1000.0])
def test_constant_column_gets_no_weight(value: float) -> None:
    X, y = activations(700, 12, 6)
    X = X.astype(np.float32)
    X[:, 4] = value
    others = np.delete(X, 4, axis=1)
    for fit in (lambda A: fit_logistic_path(A, y, C=[0.1])[0], lambda A: fit_lda(A, y)):
        probe, without = fit(X), fit(others)
        assert probe.weight[4] == 0
        assert np.isfinite(probe.weight).all()
        assert cosine(probe.logit(X), without.logit(others)) > 0.999


def test_lda_equals_scikit_learns() -> None:
    X, y = activations(2_000, 48, 7)
    for shrinkage in (0.01, 0.3, 1.0):
        best = make_pipeline(
            StandardScaler(), LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage)
        ).fit(X.astype(np.float64), y)
        expected = best.decision_function(X.astype(np.float64))
        assert np.abs(fit_lda(X, y, shrinkage=shrinkage).logit(X) - expected).max() < 2e-3
    with pytest.raises(SwitchSDError, match="shrinkage"):
        fit_lda(X, y, shrinkage=0)


def test_difference_of_means_points_along_it_and_is_calibrated() -> None:
    X, y = activations(3_000, 32, 8)
    probe = fit_difference_of_means(X, y)
    wide = X.astype(np.float64)
    Z, scale = (wide - wide.mean(0)) / wide.std(0), wide.std(0)
    assert cosine(probe.weight * scale, Z[y].mean(0) - Z[~y].mean(0)) > 0.9999
    assert probe.score(X).mean() == pytest.approx(y.mean(), abs=0.01)


def test_mlp_finds_what_no_line_can_and_is_deterministic() -> None:
    random = np.random.default_rng(0)
    X = (random.standard_normal((4_000, 8)) * 5 + 20).astype(np.float16)
    y = (X[:, 0] > 20) ^ (X[:, 1] > 20)
    groups = np.repeat(np.arange(100), 40)
    train, _, test = split_groups(groups, seed=0)
    mlp = fit_mlp(X[train], y[train], groups[train], hidden=32, seed=1)
    again = fit_mlp(X[train], y[train], groups[train], hidden=32, seed=1)
    assert np.array_equal(mlp.inner, again.inner)
    [line] = fit_logistic_path(X[train], y[train], C=[1.0])
    assert roc_auc_score(y[test], mlp.score(X[test])) > 0.9
    assert roc_auc_score(y[test], line.score(X[test])) < 0.6


def test_mlp_stops_before_it_learns_noise_by_heart() -> None:
    random = np.random.default_rng(1)
    X, y = random.standard_normal((600, 40)).astype(np.float32), random.random(600) < 0.5
    probe = fit_mlp(X, y, np.repeat(np.arange(30), 20), seed=0, epochs=200)
    assert roc_auc_score(y, probe.logit(X)) < 0.95
    assert np.abs(probe.logit(X)).mean() < 1.5


def test_every_family_fits_and_reads_raw_activations() -> None:
    X, y = activations(1_500, 24, 9)
    groups = np.repeat(np.arange(50), 30)
    for name, family in FAMILIES.items():
        fitted = family(X, y, groups, seed=0)
        assert fitted, name
        for probe in fitted.values():
            assert roc_auc_score(y, probe.logit(X)) > 0.6, name
            score = probe.score(X)
            assert score.shape == y.shape
            assert ((score >= 0) & (score <= 1)).all()
            with pytest.raises(SwitchSDError, match="reads 24 features"):
                probe.logit(X[:, :5])


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_bad_input_is_named_by_every_family(name: str) -> None:
    X, y = activations(200, 8, 10)
    groups = np.repeat(np.arange(20), 10)
    with pytest.raises(OneClassError, match="one class only"):
        FAMILIES[name](X, np.zeros(200), groups, seed=0)
    for value in (np.nan, np.inf, -np.inf):
        broken = X.copy()
        broken[17, 3] = value
        with pytest.raises(SwitchSDError, match=r"1 NaN or infinite .*row 17, column 3"):
            FAMILIES[name](broken, y, groups, seed=0)
    with pytest.raises(SwitchSDError, match="labels"):
        FAMILIES[name](X, y[:-1], groups, seed=0)


def test_bad_regularisation_and_shapes_are_named() -> None:
    X, y = activations(50, 4, 11)
    with pytest.raises(SwitchSDError, match="C must hold positive"):
        fit_logistic_path(X, y, C=[0.0])
    with pytest.raises(SwitchSDError, match="must be a matrix"):
        fit_logistic_path(X[:, 0], y, C=[1.0])


def test_prompt_labels_leak_through_a_token_split_only() -> None:
    random = np.random.default_rng(0)
    groups = np.repeat(np.arange(200), 20)
    means = random.standard_normal((200, 128))
    X = (means[groups] + random.standard_normal((len(groups), 128))).astype(np.float32)
    grouped, leaky = [], []
    for seed in range(5):
        y = prompt_only_labels(groups, seed)
        train, _, test = split_groups(groups, seed=seed)
        [probe] = fit_logistic_path(X[train], y[train], C=[0.01])
        grouped.append(roc_auc_score(y[test], probe.logit(X[test])))
        train, _, test = split_groups(np.arange(len(groups)), seed=seed)
        [probe] = fit_logistic_path(X[train], y[train], C=[0.01])
        leaky.append(roc_auc_score(y[test], probe.logit(X[test])))
    assert np.mean(grouped) == pytest.approx(0.5, abs=0.1)
    assert min(leaky) > 0.7
