"""Routing and experts in PyTorch's own operations against the definition in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from inflight.execution.backends import int8, matrices
from inflight.execution.backends.matrices import LINEAR_CODES, by_output
from inflight.execution.backends.protocol import Routing
from inflight.execution.backends.reference import ReferenceBackend
from inflight.execution.backends.torch import eager
from inflight.execution.backends.torch.eager.routing import route
from inflight.execution.backends.torch.weights import DeviceExperts, HeldMatrix
from inflight.execution.ops.experts import mixture
from inflight.execution.ops.experts import route as route_in_numpy
from inflight.execution.ops.numpy_pass import Act

from ..material import normal
from ..test_int4 import MXFP4, matrix
from ..test_native_experts import ROUTINGS
from .matrices import in_groups, in_int4, in_int8, plain, routing_tensors, stacked

COUNT, HIDDEN, WIDTH = 12, 48, 20


@pytest.mark.parametrize("name", ROUTINGS)
def test_routing_is_the_definition(name: str) -> None:
    routing = ROUTINGS[name]
    logits = np.concatenate([normal(1, 40, COUNT), np.ones((1, COUNT), np.float32), np.eye(1, COUNT, 5) * 3])
    logits = logits.astype(np.float32)
    picked, weights = route(torch.from_numpy(logits), routing_tensors(routing))
    for token, of_token in enumerate(logits):
        want, want_weights = route_in_numpy(of_token, routing)
        assert picked[token].tolist() == want.tolist()
        np.testing.assert_allclose(weights[token], want_weights, rtol=1e-5)


@pytest.mark.parametrize("scores", ["softmax", "sigmoid", "sparsemixer"])
def test_broken_logits_pick_some_expert(scores: Any) -> None:
    routing = routing_tensors(Routing(top_k=2, scores=scores, jitter=0.1))
    picked, weights = route(torch.full((1, 5), torch.nan), routing)
    assert picked.tolist() == [[0, 1]] and weights.isnan().all()


def held(values: np.ndarray, hold: str) -> tuple[np.ndarray, HeldMatrix]:
    """Return what a matrix means, and the same on a device."""
    if hold == "plain":
        return values, plain(values, torch.float32)
    if hold == "int8":
        return by_output(*int8.quantize(values)).dequantized(), in_int8(values)
    source = matrices.in_int8(values)
    return source.dequantized(), in_groups(source)


def both(hold: str, gating: str, biased: bool, routing: Routing) -> tuple[Any, DeviceExperts]:
    """The same experts, as plain numbers by the definition and as they are held on a device."""
    backend = ReferenceBackend("float32")
    of_gate_up, of_down = [], []
    held_up: list[HeldMatrix] = []
    held_down: list[HeldMatrix] = []
    biases = normal(50, COUNT, 2, WIDTH) if biased else None
    down_biases = normal(51, COUNT, HIDDEN) if biased else None
    for e in range(COUNT):
        gate, up, down = (
            normal(3 * e, WIDTH, HIDDEN),
            normal(3 * e + 1, WIDTH, HIDDEN),
            normal(3 * e + 2, HIDDEN, WIDTH),
        )
        if hold in ("int4", "mxfp4"):
            source = matrix(2 * WIDTH, HIDDEN, 16, hold == "int4", MXFP4 if hold == "mxfp4" else LINEAR_CODES)
            source = replace(source, codes=np.roll(source.codes, e))
            gate, up = np.split(source.dequantized(), 2)
            held_up.append(in_int4(source))
            held_down.append(plain(down, torch.float32))
        else:
            meant, on_device = held(np.concatenate([gate, up]), hold)
            gate, up = np.split(meant, 2)
            held_up.append(on_device)
            down, on_device = held(down, hold)
            held_down.append(on_device)
        of_gate_up.append(backend.pack_gate_up(gate, up, bias=None if biases is None else biases[e]))
        of_down.append(backend.pack_linear([down], None if down_biases is None else down_biases[e]))
    device = DeviceExperts(
        stacked(held_up),
        stacked(held_down),
        None if biases is None else torch.from_numpy(biases.reshape(COUNT, -1)),
        None if down_biases is None else torch.from_numpy(down_biases),
        routing_tensors(routing),
        gating,  # type: ignore[arg-type]
        COUNT,
        0,
    )
    return backend.pack_experts(of_gate_up, of_down, routing, gating), device  # type: ignore[arg-type]


def wanted(reference: Any, x: np.ndarray, logits: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([mixture(x[t : t + 1], one, reference, Act("float32"))[None] for t, one in enumerate(logits)])


@pytest.mark.parametrize(
    ("hold", "gating", "biased"),
    [
        ("plain", "silu", False),
        ("plain", "gelu_tanh", False),
        ("plain", "clamped_swiglu", True),
        ("int8", "silu", True),
        ("int8 in groups", "silu", True),
        ("int4", "silu", False),
        ("mxfp4", "clamped_swiglu", True),
    ],
)
def test_experts_are_the_definition(hold: str, gating: str, biased: bool) -> None:
    reference, device = both(hold, gating, biased, Routing(top_k=3, renormalize=True))
    x, logits = normal(1, 9, HIDDEN), normal(2, 9, COUNT)
    out = torch.ones(9, HIDDEN)
    eager.experts(torch.from_numpy(x), torch.from_numpy(logits), device, out)
    want = 1 + wanted(reference, x, logits)
    np.testing.assert_allclose(out, want, atol=(3e-2 if hold == "int8" else 1e-5) * np.abs(want).max())
