"""Routing: which experts a token passes, and with which weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from transformers.models.lfm2_moe.modeling_lfm2_moe import Lfm2MoeTopKRouter
from transformers.models.phimoe.modeling_phimoe import sparsemixer

from inflight.execution.backends.protocol import Routing
from inflight.execution.ops.experts import route

from ..backends.material import normal


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max())
    return np.asarray(powers / powers.sum())


def test_the_largest_are_picked_in_order_of_rank() -> None:
    logits = np.array([0.1, 2.0, -1.0, 2.5], np.float32)
    picked, weights = route(logits, Routing(top_k=3))
    assert picked.tolist() == [3, 1, 0]
    np.testing.assert_allclose(weights, softmax(logits)[[3, 1, 0]], rtol=1e-6)


def test_renormalized_is_a_softmax_over_the_picked_alone() -> None:
    logits = normal(1, 16)
    picked, weights = route(logits, Routing(top_k=4, renormalize=True))
    np.testing.assert_allclose(weights, softmax(logits[picked]), rtol=1e-5)


def test_a_correction_counts_for_the_choice_and_not_for_the_weight() -> None:
    logits, correction = np.zeros(4, np.float32), np.array([0, 0.5, 0.25, 0], np.float32)
    picked, weights = route(logits, Routing(top_k=2, scores="sigmoid", correction=correction, scale=3.0))
    assert picked.tolist() == [1, 2] and weights.tolist() == [1.5, 1.5]


@pytest.mark.parametrize(("best", "expected"), [(1, [0, 1]), (2, [2, 3])])
def test_only_the_best_groups_are_picked_from(best: int, expected: list[int]) -> None:
    """The first group has the best expert, the second the best two."""
    correction = np.array([0.9, 0.0, 0.8, 0.7, 0.1, 0.1], np.float32)
    routing = Routing(
        top_k=2, scores="sigmoid", correction=correction, groups=3, top_groups=1, group_best=best, renormalize=True
    )
    picked, weights = route(np.zeros(6, np.float32), routing)
    assert picked.tolist() == expected and weights.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("jitter", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("shift", [-4.0, 0.0, 4.0])  # what is near is relative, so that signs count
def test_sparse_mixing_is_that_of_transformers(jitter: float, shift: float) -> None:
    logits = normal(7, 200, 16) + np.float32(shift)
    logits[3, 5] = logits[3, 9] = logits[3].max() + 1
    weights, experts = sparsemixer(torch.from_numpy(logits), jitter, training=False)
    found = [route(one, Routing(top_k=2, scores="sparsemixer", jitter=jitter)) for one in logits]
    assert [picked.tolist() for picked, _ in found] == experts.tolist()
    np.testing.assert_allclose(np.stack([weight for _, weight in found]), weights.numpy(), rtol=1e-5)


def test_what_is_added_to_the_sum_of_weights_is_that_of_transformers() -> None:
    """Sigmoids so small that it counts."""
    config = transformers.Lfm2MoeConfig(num_experts=8, num_experts_per_tok=3, hidden_size=8, use_expert_bias=False)
    router = Lfm2MoeTopKRouter(config)
    with torch.no_grad():
        router.weight.copy_(torch.eye(8))
    logits = normal(5, 8) - np.float32(12)
    _, weights, experts = router(torch.from_numpy(logits)[None])
    routing = Routing(top_k=3, scores="sigmoid", renormalize=True, sum_offset=1e-6)
    picked, found = route(logits, routing)
    assert picked.tolist() == experts[0].tolist() and found.sum() < 0.99
    np.testing.assert_allclose(found, weights[0].detach().numpy(), rtol=1e-5)


def test_ties_go_to_the_lower_number_and_broken_logits_to_some_expert() -> None:
    assert route(np.ones(5, np.float32), Routing(top_k=3))[0].tolist() == [0, 1, 2]
    picked, weights = route(np.full(5, np.nan, np.float32), Routing(top_k=2))
    assert picked.tolist() == [0, 1] and np.isnan(weights).all()
    far = route(np.full(3, -1e4, np.float32), Routing(top_k=1, scores="sigmoid", renormalize=True))
    assert far[1].tolist() == [0]
