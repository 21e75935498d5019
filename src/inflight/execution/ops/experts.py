"""A mixture of experts: each token passes those that a router picks (Shazeer et al., arXiv 1701.06538)."""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.protocol import Array, Routing
from inflight.execution.backends.protocol.handles import Activation, Experts
from inflight.execution.ops.formulas import gated, sigmoid, softmax
from inflight.execution.ops.linear import product
from inflight.execution.ops.numpy_pass import Act, NumpyPass
from inflight.execution.ops.numpy_weights import NumpyExperts
from inflight.execution.program import operation

_MIN_SUM = np.float32(1e-20)  # of sigmoids, which may all vanish


@operation()
def experts(on: NumpyPass, x: Activation, logits: Activation, weight: Experts, out: Activation) -> None:
    """x act[T, E], logits float32[T, X] → out float32[T, E] plus the sum, in order of rank, of weight · expert(x)
    over the experts that the logits route a token to; an expert is `gate_up` (with its gating), then `linear`."""
    tokens = on.load(x)
    for t, of_token in enumerate(logits.written):
        out.array[t] += mixture(tokens[t : t + 1], of_token, weight, on.act)


def mixture(token: Array, logits: Array, weight: NumpyExperts, act: Act) -> Array:
    """token float32[1, E], logits float32[X] → float32[E] = Σ share · expert(x): one float32 chain."""
    total = np.zeros(weight.down[0].rows, np.float32)
    for expert, share in zip(*route(logits, weight.routing), strict=True):
        both = product(token, weight.gate_up[expert].both, act)
        inner = act.rounded(gated(both, weight.gating))
        total += share * product(inner, weight.down[expert], act)[0]
    return total


def route(logits: Array, routing: Routing) -> tuple[Array, Array]:
    """float32[X] → numbers of experts int64[top_k] in order of rank, and their weights float32[top_k]."""
    if routing.scores == "sparsemixer":
        return _sparsely_mixed(logits, routing)
    scores = softmax(logits) if routing.scores == "softmax" else sigmoid(logits)
    values = scores if routing.correction is None else scores + routing.correction
    values = np.where(np.isnan(values), np.float32(-np.inf), values)
    if routing.groups > 1:
        values = np.where(_in_best_groups(values, routing), values, np.float32(-np.inf))
    picked = _largest(values, routing.top_k)
    weights = scores[picked]
    if routing.renormalize:
        weights = weights / np.maximum(weights.sum() + np.float32(routing.sum_offset), _MIN_SUM)
    scale = np.float32(routing.scale)
    return picked, weights * (scale if routing.expert_scale is None else scale * routing.expert_scale[picked])


def _sparsely_mixed(logits: Array, routing: Routing) -> tuple[Array, Array]:
    """Choose one expert after the other, each weighed among those left whose logits are near its own."""
    picked = _largest(np.where(np.isnan(logits), np.float32(-np.inf), logits), routing.top_k)
    left, weights = logits.copy(), np.empty(routing.top_k, np.float32)
    for rank, expert in enumerate(picked):
        largest = left[expert]
        with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0, and damaged routers
            is_far = (largest - logits) / np.maximum(np.abs(logits), largest) > np.float32(2 * routing.jitter)
            weights[rank] = np.float32(routing.scale) / np.exp(np.where(is_far, -np.inf, left) - largest).sum()
        left[expert] = -np.inf
    return picked, weights


def _largest(values: Array, count: int) -> Array:
    """Numbers of the largest values, on a tie the lower number first."""
    return np.argsort(-values, kind="stable")[:count]


def _in_best_groups(values: Array, routing: Routing) -> Array:
    """Whether each expert is of one of the best groups, bool[X]."""
    groups = values.reshape(routing.groups, -1)
    best = -np.sort(-groups, axis=1)[:, : routing.group_best].sum(axis=1)
    taken = np.zeros(routing.groups, bool)
    taken[_largest(best, routing.top_groups)] = True
    return np.repeat(taken, groups.shape[1])
