"""Routing in numpy, the definition: one token's logits → its experts and their weights.

Knows `Routing` (`protocol.parameters`) and nothing of what an expert is.
"""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.protocol import Array, Routing
from inflight.execution.backends.reference.functions import sigmoid, softmax

_MIN_SUM = np.float32(1e-20)  # of sigmoids, which may all vanish


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
    """One expert after the other, weighed among those left whose logits are near its own."""
    picked = _largest(np.where(np.isnan(logits), np.float32(-np.inf), logits), routing.top_k)
    left, weights = logits.copy(), np.empty(routing.top_k, np.float32)
    for rank, expert in enumerate(picked):
        most = left[expert]
        with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0, and damaged routers
            is_far = (most - logits) / np.maximum(np.abs(logits), most) > np.float32(2 * routing.jitter)
            weights[rank] = np.float32(routing.scale) / np.exp(np.where(is_far, -np.inf, left) - most).sum()
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
