"""Kernels of routing and experts against the definition, in every company, and what they take of a GPU."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from breadth import first_of

from inflight.execution import ops
from inflight.execution.backends.protocol import Routing
from inflight.execution.backends.torch.kernels.routing import route
from inflight.execution.backends.torch.weights import DeviceExperts, GroupedMatrix, RoutingTensors
from inflight.execution.ops.experts import route as defined

from ..material import normal
from ..test_native_experts import ROUTINGS
from .compiled import Compiler
from .launched import Given, define, launch
from .matrices import moved, plain, routing_tensors, stacked
from .test_kernels_linear import assert_close, held, on

TILE = 16
COUNT, HIDDEN, WIDTH = 12, 48, 20
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # of the interpreter's numpy


def picked_by(logits: torch.Tensor, routing: Routing) -> tuple[torch.Tensor, torch.Tensor]:
    """Route each token by the definition: experts int64[T, top_k], and weights float32[T, top_k]."""
    found = [defined(one, routing) for one in logits.cpu().numpy()]
    return tuple(torch.from_numpy(np.stack(one)).to(logits.device) for one in zip(*found, strict=True))  # type: ignore[return-value]


def made(kind: str, gating: Any, biased: bool, device: torch.device) -> DeviceExperts:
    """Make experts of random matrices, of which a token passes three."""
    gate_up = stacked([held(kind, 2 * WIDTH, HIDDEN, torch.float32, 2 * e) for e in range(COUNT)])
    down = stacked([held(kind, HIDDEN, WIDTH, torch.float32, 2 * e + 1) for e in range(COUNT)])
    biases = [torch.from_numpy(normal(50 + n, COUNT, n)) if biased else None for n in (2 * WIDTH, HIDDEN)]
    routing = routing_tensors(Routing(top_k=3, renormalize=True))
    return moved(DeviceExperts(gate_up, down, *biases, routing, gating, COUNT, 0), device)


def assert_sorted(picked: torch.Tensor, rows: torch.Tensor, of_tiles: torch.Tensor) -> None:
    """Every pair has one place, in a tile of its expert; rows that are left over have no pair."""
    places = rows.view(-1, TILE)
    assert sorted(places[places > 0].tolist()) == list(range(1, picked.numel() + 1))
    for pairs, expert in zip(places, of_tiles.tolist(), strict=True):
        of_tile = picked.flatten()[pairs[pairs > 0].long() - 1]
        assert (of_tile == expert - 1).all() and (len(of_tile) > 0) == (expert > 0)


@pytest.mark.parametrize(
    ("name", "tokens"), [*product(ROUTINGS, [1]), *first_of(product(dict.fromkeys(["groups", *ROUTINGS]), [40]))]
)
def test_routing_is_its_reference(name: str, tokens: int, device: torch.device) -> None:
    logits, routing = on(device, 1, tokens, COUNT), moved(routing_tensors(ROUTINGS[name]), device)
    logits[0] = 1  # a tie
    weights, places = route(logits, routing, TILE)
    picked, want = picked_by(logits, ROUTINGS[name])
    torch.testing.assert_close(weights, want, rtol=1e-5, atol=0)
    assert_sorted(picked, places.rows, places.experts)


@pytest.mark.parametrize("scores", ["softmax", "sigmoid", "sparsemixer"])
def test_broken_logits_pick_some_expert(scores: Any, device: torch.device) -> None:
    routing = routing_tensors(Routing(top_k=2, scores=scores, jitter=0.1))
    weights, places = route(torch.full((1, 5), torch.nan, device=device), routing, TILE)
    assert weights.isnan().all()
    assert_sorted(torch.tensor([[0, 1]], device=device), places.rows, places.experts)


@pytest.mark.wide
def test_tiles_are_enough_when_every_expert_has_one_that_is_not_full(device: torch.device) -> None:
    """And no more than that many."""
    logits = torch.eye(COUNT, device=device).repeat(TILE + 1, 1) * 9
    picked, _ = picked_by(logits, Routing(top_k=1))
    _, places = route(logits, routing_tensors(Routing(top_k=1)), TILE)
    assert_sorted(picked, places.rows, places.experts)
    assert len(places.experts) <= 2 * COUNT + 1 and int((places.experts > 0).sum()) == 2 * COUNT


@pytest.mark.parametrize(
    ("hold", "gating", "biased"),
    [
        ("plain", "gelu_tanh", False),
        ("plain", "clamped_swiglu", True),
        ("int8", "silu", True),
        ("int8 in groups", "silu", True),
    ],
)
@pytest.mark.parametrize("tokens", [1, 9])
def test_experts_are_their_reference(hold: str, gating: str, biased: bool, tokens: int, device: torch.device) -> None:
    weight = made(hold, gating, biased, device)
    x, logits = on(device, 1, tokens, HIDDEN), on(device, 2, tokens, COUNT)
    found, want = torch.ones(2, tokens, HIDDEN, device=device)
    for by, out in ((launch, found), (define, want)):
        by(ops.experts, Given(), x, logits, weight, out)
    if hold == "int8":  # a gate that is a step of rounding aside is a code aside
        assert float((found - want).abs().max()) < 1e-3 * float(want.abs().max())
    else:
        assert_close(found, want)


def in_codes(kind: str, device: torch.device) -> DeviceExperts:
    """Make experts of 64 numbers and as many inner ones, each with other codes."""
    gate_up = stacked([held(kind, 128, 64, torch.float32, e) for e in range(COUNT)])
    down = stacked([held(kind, 64, 64, torch.float32, e) for e in range(COUNT)])
    assert isinstance(gate_up, GroupedMatrix) and isinstance(down, GroupedMatrix)
    for stack in (gate_up, down):
        for expert in range(COUNT):
            stack.codes[expert] = stack.codes[expert].roll(expert)
    bias = torch.from_numpy(normal(5, COUNT, 128))
    routing = routing_tensors(Routing(top_k=3, renormalize=True))
    return moved(DeviceExperts(gate_up, down, bias, None, routing, "clamped_swiglu", COUNT, 0), device)


@pytest.mark.parametrize("kind", ["mxfp4", "offsets", "out of order", "int8 in groups"])
def test_experts_in_codes_are_their_reference(kind: str, device: torch.device) -> None:
    weight, x, logits = in_codes(kind, device), on(device, 1, 5, 64), on(device, 2, 5, COUNT)
    found, want = torch.ones(2, 5, 64, device=device)
    for by, out in ((launch, found), (define, want)):
        by(ops.experts, Given(), x, logits, weight, out)
    assert_close(found, want)


def test_a_token_has_the_same_bits_among_any_others(device: torch.device) -> None:
    weight, x, logits = made("plain", "silu", False, device), on(device, 1, 80, HIDDEN), on(device, 2, 80, COUNT)
    found = {}
    for tokens in (1, 8, 80):
        found[tokens] = torch.zeros(tokens, HIDDEN, device=device)
        launch(ops.experts, Given(invariant=True), x[:tokens], logits[:tokens], weight, found[tokens])
    assert all(torch.equal(one, found[80][: len(one)]) for one in found.values())


def test_half_precision_experts_are_their_reference(device: torch.device) -> None:
    values = [normal(e, 40, HIDDEN) / 8 for e in range(COUNT)]
    down = [normal(90 + e, HIDDEN, 20) / 8 for e in range(COUNT)]
    weight = DeviceExperts(
        stacked([plain(one, torch.float16) for one in values]),
        stacked([plain(one, torch.float16) for one in down]),
        None, None, routing_tensors(Routing(top_k=2)), "silu", COUNT, 0,
    )  # fmt: skip
    weight = moved(weight, device)
    x, logits = on(device, 1, 6, HIDDEN, act=torch.float16), on(device, 2, 6, COUNT)
    found, want = torch.zeros(2, 6, HIDDEN, device=device)
    for by, out in ((launch, found), (define, want)):
        by(ops.experts, Given(act=torch.float16), x, logits, weight, out)
    assert_close(found, want, torch.float16)


# -- on GPUs that are not there ---------------------------------------------------------------------------------------


def nowhere(kind: str, count: int, hidden: int, width: int, top_k: int) -> DeviceExperts:
    def stack(rows: int, columns: int) -> Any:
        if kind == "plain":
            return plain_nowhere(count, rows, columns)
        scales = torch.empty(count, rows, columns // 32, device="meta")
        codes = torch.empty(count, rows, columns // 2, dtype=torch.uint8, device="meta")
        table = torch.empty(16, dtype=torch.bfloat16, device="meta")
        return GroupedMatrix(codes, scales, None, 32, None, table, True)

    routing = RoutingTensors(top_k, "softmax", True, 0.0, 0.0, None, 1, 1, 2, 1.0, None)
    return DeviceExperts(stack(2 * width, hidden), stack(hidden, width), None, None, routing, "silu", count, 0)


def plain_nowhere(*shape: int) -> Any:
    values = plain(np.zeros(1, np.float32), torch.bfloat16)
    return type(values)(torch.empty(*shape, dtype=torch.bfloat16, device="meta"))


@pytest.mark.parametrize(("kind", "tokens"), first_of([("plain", 512), ("mxfp4", 4), ("plain", 1)], 2))
def test_what_experts_take(kind: str, tokens: int, compiler: Compiler) -> None:
    """Compile for Qwen3-30B-A3B's shapes."""
    weight = nowhere(kind, 128, 2048, 768, 8)
    x = torch.empty(tokens, 2048, dtype=torch.bfloat16, device="meta")
    logits, out = torch.empty(tokens, 128, device="meta"), torch.empty(tokens, 2048, device="meta")
    compiler.fits(
        lambda: launch(ops.experts, Given(), x, logits, weight, out),
        registers=128 if tokens < 16 else 255,
        shared=73 << 10,
    )
