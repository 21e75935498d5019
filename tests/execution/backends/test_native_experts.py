"""Experts of the native backend against the numpy reference, and the same bits whatever tokens share them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from inflight.execution.backends import int4
from inflight.execution.backends.matrices import Int4Matrix
from inflight.execution.backends.protocol import Routing

from .conftest import ops_for
from .material import held, normal
from .test_int4 import out_of_order

HIDDEN = 48
CORRECTION = 0.2 * normal(9, 12)
ROUTINGS = {
    "softmax": Routing(top_k=3),
    "one": Routing(top_k=1, renormalize=True),
    "all": Routing(top_k=12, renormalize=True),
    "sigmoid": Routing(top_k=4, scores="sigmoid", renormalize=True, correction=CORRECTION, scale=2.5),
    "groups": Routing(top_k=3, scores="sigmoid", correction=CORRECTION, groups=4, top_groups=2, scale=1.5),
    "more groups than experts": Routing(top_k=1, scores="sigmoid", groups=6, top_groups=5),
    "own scales": Routing(top_k=3, renormalize=True, scale=0.5, expert_scale=1 + normal(8, 12)),
    "mixed sparsely": Routing(top_k=2, scores="sparsemixer", jitter=0.3, scale=0.5),
    "one mixed sparsely": Routing(top_k=1, scores="sparsemixer", jitter=0.01),
    "a large offset": Routing(top_k=3, scores="sigmoid", renormalize=True, sum_offset=0.5),
    "best of a group": Routing(top_k=3, groups=3, top_groups=2, group_best=1),
}


def packed(
    ops: Any, routing: Routing, width: int = 20, hidden: int = HIDDEN, hold: str = "act", gating: str = "silu"
) -> Any:
    """Twelve experts."""
    gate_up = [
        ops.pack_gate_up(normal(3 * e, width, hidden), normal(3 * e + 1, width, hidden), hold) for e in range(12)
    ]
    down = [ops.pack_linear([normal(3 * e + 2, hidden, width)], None, hold) for e in range(12)]
    return ops.pack_experts(gate_up, down, routing, gating)


def with_biases(ops: Any, width: int = 20, hold: str = "act") -> Any:
    """gpt-oss's: biases everywhere, gate and up far beyond where they are clamped."""
    gate_up = [
        ops.pack_gate_up(
            3 * normal(3 * e, width, HIDDEN), normal(3 * e + 1, width, HIDDEN), hold, bias=normal(50 + e, 2, width)
        )
        for e in range(12)
    ]
    down = [ops.pack_linear([normal(3 * e + 2, HIDDEN, width)], normal(70 + e, HIDDEN), hold) for e in range(12)]
    return ops.pack_experts(gate_up, down, Routing(top_k=3, renormalize=True), "clamped_swiglu")


def run(ops: Any, weight: Any, x: np.ndarray, logits: np.ndarray) -> np.ndarray:
    out = np.ones((len(x), x.shape[1]), np.float32)
    ops.experts(x, logits, weight, out)
    return out


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("tokens", [1, 5, 70])
def test_experts_agree_with_the_reference(ops, reference, dtype, name, tokens):
    x, logits = held(dtype, normal(100, tokens, HIDDEN)), normal(101, tokens, 12)
    got = run(ops, packed(ops, ROUTINGS[name]), x, logits)
    want = run(reference, packed(reference, ROUTINGS[name]), x, logits)
    scale = np.abs(want).max()
    np.testing.assert_allclose(got, want, atol=(2**-8 if dtype == "bfloat16" else 1e-5) * scale)


def test_experts_gated_by_gelu_agree_with_the_reference(ops, reference, dtype):
    x, logits = held(dtype, normal(1, 20, HIDDEN)), normal(2, 20, 12)
    got, want = (run(one, packed(one, ROUTINGS["softmax"], gating="gelu_tanh"), x, logits) for one in (ops, reference))
    np.testing.assert_allclose(got, want, atol=(2**-8 if dtype == "bfloat16" else 1e-5) * np.abs(want).max())
    assert np.abs(want - run(reference, packed(reference, ROUTINGS["softmax"]), x, logits)).max() > 0.01


@pytest.mark.parametrize("width", [20, 32])
def test_clamped_experts_with_biases_agree_with_the_reference(ops, reference, dtype, width):
    x, logits = held(dtype, normal(1, 20, HIDDEN)), normal(2, 20, 12)
    got, want = (run(one, with_biases(one, width), x, logits) for one in (ops, reference))
    np.testing.assert_allclose(got, want, atol=(2**-7 if dtype == "bfloat16" else 1e-5) * np.abs(want).max())


def test_clamping_hides_no_nan(ops, dtype):
    x, logits = held(dtype, normal(1, 2, HIDDEN)), normal(2, 2, 12)
    x[1, 3] = held(dtype, np.array([np.nan]))[0]
    got = run(ops, with_biases(ops), x, logits)
    assert np.isfinite(got[0]).all() and np.isnan(got[1]).all()


@pytest.mark.parametrize(("width", "hidden"), [(1, 7), (300, 50), (33, 4500)])
def test_experts_of_odd_sizes(ops, reference, dtype, width, hidden):
    x, logits = held(dtype, normal(1, 20, hidden)), normal(2, 20, 12)
    routing = ROUTINGS["softmax"]
    got = run(ops, packed(ops, routing, width, hidden), x, logits)
    want = run(reference, packed(reference, routing, width, hidden), x, logits)
    np.testing.assert_allclose(got, want, atol=(2**-7 if dtype == "bfloat16" else 1e-5) * np.abs(want).max())


def test_int8_experts_agree_with_the_reference(ops, reference, dtype):
    """Allow for roundings of gate and up to `act` that differ, and with them whole numbers of the next product."""
    x, logits = held(dtype, normal(1, 20, HIDDEN)), normal(2, 20, 12)
    got, want = (run(one, packed(one, ROUTINGS["softmax"], hold="int8"), x, logits) for one in (ops, reference))
    np.testing.assert_allclose(got, want, atol=(2**-7 if dtype == "bfloat16" else 2e-3) * np.abs(want).max())


@pytest.mark.parametrize("hold", ["act", "int8"])
@pytest.mark.parametrize("name", ["softmax", "groups"])
def test_a_token_has_the_same_bits_whatever_tokens_share_its_experts(dtype, isa, name, hold):
    x, logits = held(dtype, normal(1, 300, HIDDEN)), normal(2, 300, 12)
    logits[20:] += np.array([30.0, 20, 10] + [0] * 9, np.float32)[:, None].T  # most tokens pass the same few experts
    one = ops_for(dtype, isa, 1)
    whole = run(one, packed(one, ROUTINGS[name], hold=hold), x, logits)
    for threads in (1, 2, 3):
        ops = ops_for(dtype, isa, threads)
        weight = packed(ops, ROUTINGS[name], hold=hold)
        for first, count in [(0, 1), (17, 1), (25, 1), (3, 2), (10, 33), (21, 5), (5, 295), (21, 279), (0, 300)]:
            part = slice(first, first + count)
            np.testing.assert_array_equal(run(ops, weight, x[part], logits[part]), whole[part])


def test_logits_that_are_no_numbers_are_seen(ops, dtype):
    x, logits = held(dtype, normal(1, 3, HIDDEN)), normal(2, 3, 12)
    logits[1, 4] = np.nan
    for routing in (ROUTINGS["softmax"], structs.replace(ROUTINGS["sigmoid"], top_k=12, correction=None)):
        got = run(ops, packed(ops, routing), x, logits)
        assert np.isnan(got[1]).all() and np.isfinite(got[[0, 2]]).all()


def test_no_tokens_are_no_work(ops, dtype):
    assert run(ops, packed(ops, ROUTINGS["one"]), held(dtype, normal(1, 0, HIDDEN)), normal(2, 0, 12)).shape == (0, 48)


def test_add_gated(ops, reference):
    x, gate = normal(1, 9, 37), 10 * normal(2, 9, 1)
    got, want = normal(3, 9, 37), normal(3, 9, 37)
    ops.add_gated(x, gate, got)
    reference.add_gated(x, gate, want)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_experts_that_do_not_fit_are_refused_with_a_sentence(ops, dtype):
    gate_up, down = ops.pack_gate_up(normal(1, 8, 6), normal(2, 8, 6)), ops.pack_linear([normal(3, 6, 8)])
    codes = int4.quantize(normal(4, 6, 8), 32)
    other_codes = replace(codes, meanings=codes.meanings[::-1].copy())
    for others, routing in [
        (([gate_up], [down, down]), Routing(1)),
        (([], []), Routing(1)),
        (([gate_up] * 2, [down] * 2), Routing(3)),
        (([gate_up] * 4, [down] * 4), Routing(3, groups=2, top_groups=1)),
        (([gate_up] * 4, [down] * 4), Routing(1, groups=3)),
        (([down], [down]), Routing(1)),
        (([gate_up] * 2, [down, ops.pack_linear([normal(3, 6, 8)], None, "int8")]), Routing(1)),
        (([gate_up] * 2, [ops.pack_linear([codes]), ops.pack_linear([other_codes])]), Routing(1)),
        (([gate_up], [ops.pack_linear([normal(3, 5, 8)])]), Routing(1)),
    ]:
        with pytest.raises(ValueError, match="experts"):
            ops.pack_experts(*others, routing)
    weight = ops.pack_experts([gate_up] * 2, [down] * 2, Routing(1))
    x, out = held(dtype, normal(2, 3, 6)), np.zeros((3, 6), np.float32)
    for bad_x, bad_logits in [
        (x, normal(1, 3, 3)),
        (x, normal(1, 2, 2)),
        (held(dtype, normal(1, 3, 7)), normal(1, 3, 2)),
    ]:
        with pytest.raises(ValueError, match=r"^(x|logits) must"):
            ops.experts(bad_x, bad_logits, weight, out)


def test_experts_of_which_some_have_offsets_go_together(ops, reference, dtype):
    """As where all zero points of an expert are in the middle, which other experts' are not."""

    def four_bits(seed: int, rows: int, columns: int, offsets: bool) -> Int4Matrix:
        found = int4.quantize(normal(seed, rows, columns), 32)
        return replace(found, offsets=0.1 * normal(seed, *found.scales.shape)) if offsets else found

    def experts(one: Any) -> Any:
        gate_up = [
            one.pack_gate_up(four_bits(3 * e, 20, HIDDEN, e % 3 == 1), four_bits(3 * e + 1, 20, HIDDEN, e % 2 == 1))
            for e in range(12)
        ]
        down = [one.pack_linear([four_bits(3 * e + 2, HIDDEN, 20, e % 3 == 2)]) for e in range(12)]
        return one.pack_experts(gate_up, down, Routing(top_k=3))

    x, logits = held(dtype, normal(1, 20, HIDDEN)), normal(2, 20, 12)
    got, want = (run(one, experts(one), x, logits) for one in (ops, reference))
    np.testing.assert_allclose(got, want, atol=(2**-7 if dtype == "bfloat16" else 1e-5) * np.abs(want).max())


@cache
def codes(seed: int, rows: int, columns: int) -> Int4Matrix:
    """Searched for once: the search takes longer than all products with them."""
    return int4.quantize(normal(seed, rows, columns), 32)


def ordered(one: Any, inward: int, outward: int, width: int = 20) -> Any:
    """Order experts: of every `inward`-th expert the inputs of gate and up stand in an order of its own, of every
    `outward`-th those of down; of none with 0."""

    def turned(matrix: Int4Matrix, expert: int, every: int) -> Any:
        return out_of_order(matrix, expert) if every and expert % every == 0 else matrix

    gate_up = [
        one.pack_gate_up(
            turned(codes(3 * e, width, HIDDEN), e, inward), turned(codes(3 * e + 1, width, HIDDEN), e, inward)
        )
        for e in range(12)
    ]
    down = [one.pack_linear([turned(codes(3 * e + 2, HIDDEN, width), e, outward)]) for e in range(12)]
    return one.pack_experts(gate_up, down, Routing(top_k=3))


@pytest.mark.parametrize("width", [20, 300])
@pytest.mark.parametrize(("inward", "outward"), [(1, 1), (2, 0), (0, 3)])
def test_experts_may_each_have_an_order_of_inputs(ops, reference, dtype, inward, outward, width):
    x, logits = held(dtype, normal(1, 40, HIDDEN)), normal(2, 40, 12)
    weight = ordered(ops, inward, outward, width)
    got = run(ops, weight, x, logits)
    want = run(reference, ordered(reference, inward, outward, width), x, logits)
    np.testing.assert_allclose(got, want, atol=(2**-7 if dtype == "bfloat16" else 2e-3) * np.abs(want).max())
    alone = [run(ops, weight, x[at : at + 1], logits[at : at + 1]) for at in (0, 7, 39)]
    np.testing.assert_array_equal(np.concatenate(alone), got[[0, 7, 39]])
