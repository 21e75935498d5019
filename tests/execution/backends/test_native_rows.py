"""Kernels over rows of numbers between products, against numpy, and the sameness of their bits."""

from __future__ import annotations

import numpy as np
import pytest

from inflight.execution.backends.protocol import KVShape

from .conftest import ops_for
from .material import act, held, metadata_of, normal, read

SHAPES = [(1, 64), (3, 50), (70, 896), (5, 7)]
KINDS = ["silu", "gelu", "gelu_tanh", "relu", "relu2", "tanh", "xielu"]
CURVE = np.array([0.8, 1.3], np.float32)  # of xielu


def close(dtype, out, want, atol=1e-6):
    rtol = 2**-7 if dtype == "bfloat16" else 3e-6
    np.testing.assert_allclose(read(dtype, out), read(dtype, want), rtol=rtol, atol=atol)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("tokens", "width"), SHAPES)
def test_layer_norm(ops, reference, dtype, tokens, width, bias):
    x, weight = 100 + 3 * normal(1, tokens, width), normal(2, width)
    out, want = act(dtype, tokens, width), act(dtype, tokens, width)
    for one, to in ((ops, out), (reference, want)):
        one.layer_norm(x, weight, normal(3, width) if bias else None, 1e-5, to)
    close(dtype, out, want, atol=2e-5)  # of numbers around 100 the mean is off by a few of their last bits


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("tokens", "width"), SHAPES)
def test_a_sum_becomes_its_norm(ops, reference, dtype, tokens, width, bias):
    """The same numbers as beside it, in float32 and as activations are held."""
    x, weight, biases = 100 + 3 * normal(1, tokens, width), normal(2, width), normal(3, width) if bias else None
    found, separate, separate_held = x.copy(), np.empty_like(x), act(dtype, tokens, width)
    out = act(dtype, tokens, width)
    ops.layer_norm_sum(found, weight, biases, 1e-12, out)
    ops.layer_norm(x, weight, biases, 1e-12, separate)
    ops.layer_norm(x, weight, biases, 1e-12, separate_held)
    np.testing.assert_array_equal(found, separate)
    np.testing.assert_array_equal(out, separate_held)
    want, want_out = x.copy(), act(dtype, tokens, width)
    reference.layer_norm_sum(want, weight, biases, 1e-12, want_out)
    np.testing.assert_allclose(found, want, rtol=3e-6, atol=2e-5)
    close(dtype, out, want_out, atol=2e-5)


def test_a_row_without_spread_is_its_bias(ops):
    for width in (16, 50):
        x, out = np.full((2, width), 7.0, np.float32), np.empty((2, width), np.float32)
        ops.layer_norm(x, normal(1, width), normal(2, width), 1e-12, out)
        np.testing.assert_array_equal(out, np.stack([normal(2, width)] * 2))


@pytest.mark.parametrize("width", [7, 64, 100])
def test_means_of_texts(ops, reference, width):
    x, texts = normal(1, 40, width), [range(0, 1), range(1, 18), range(18, 40), range(3, 5)]
    out, want = (np.empty((4, width), np.float32) for _ in range(2))
    ops.mean(x, texts, out)
    reference.mean(x, texts, want)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)
    alone = np.empty((1, width), np.float32)
    ops.mean(x[18:].copy(), [range(22)], alone)
    np.testing.assert_array_equal(alone[0], out[2])
    with pytest.raises(ValueError, match="one row of x or more"):
        ops.mean(x, [range(4, 4)], alone)


@pytest.mark.parametrize("kind", ["gelu", "tanh"])
def test_what_is_bent_stays_float32_where_it_is_to(ops, reference, kind):
    x, out, want = 3 * normal(1, 5, 33), np.empty((5, 33), np.float32), np.empty((5, 33), np.float32)
    ops.activate(x, kind, out)
    reference.activate(x, kind, want)
    np.testing.assert_allclose(out, want, rtol=3e-6, atol=3e-7)


@pytest.mark.parametrize(("tokens", "width"), SHAPES)
def test_what_is_added(ops, reference, tokens, width):
    x, weight, before = 3 * normal(1, tokens, width), normal(2, width), normal(3, tokens, width)
    for norm in (None, weight):
        out, want = before.copy(), before.copy()
        ops.add(x, norm, 1e-6, 0.22, out)
        reference.add(x, norm, 1e-6, 0.22, want)
        np.testing.assert_allclose(out, want, rtol=3e-6, atol=1e-6)
        assert np.abs(out - before).max() > 0.01


@pytest.mark.parametrize(("parts", "width"), [(3, 24), (1, 16), (5, 7)])
def test_parts_of_a_row_are_normed_each_by_itself(ops, reference, parts, width):
    x, weight, before = 3 * normal(1, 9, parts * width), normal(2, width), normal(3, 9, parts * width)
    out, want = before.copy(), before.copy()
    ops.add(x, weight, 1e-6, 0.5, out)
    reference.add(x, weight, 1e-6, 0.5, want)
    np.testing.assert_allclose(out, want, rtol=3e-6, atol=1e-6)
    alone = np.ascontiguousarray(before[:, -width:])
    ops.add(np.ascontiguousarray(x[:, -width:]), weight, 1e-6, 0.5, alone)
    np.testing.assert_array_equal(out[:, -width:], alone)
    with pytest.raises(ValueError, match="as long as a row of x, or as equal parts of one"):
        ops.add(x, normal(2, width + 4), 1e-6, 0.5, out)


def test_cleared(ops, reference):
    where = metadata_of([(0, 5, [0])])
    for one in (ops, reference):
        batch = one.over(where, one.kv_cache(KVShape.uniform(1, 16, 1, 32), 1))
        out = one.activation(7, 12, "float32")
        out.array[:] = np.nan
        batch.clear(out)
        assert (out.array[:5] == 0).all() and np.isnan(out.array[5:]).all()


@pytest.mark.parametrize("first", [0, 5, 40])
def test_activated_times_some_columns(ops, reference, dtype, first):
    x, by = 3 * normal(1, 11, 33), normal(2, 11, 73)
    out, want = act(dtype, 11, 33), act(dtype, 11, 33)
    ops.activate(x, "gelu_tanh", out, None, by, first)
    reference.activate(x, "gelu_tanh", want, None, by, first)
    close(dtype, out, want)
    with pytest.raises(ValueError, match="its columns from the first on"):
        ops.activate(x, "gelu_tanh", out, None, by, 41)


@pytest.mark.parametrize(("tokens", "width"), SHAPES)
def test_held_and_scaled(ops, reference, dtype, tokens, width):
    x = 3 * normal(1, tokens, width)
    out = act(dtype, tokens, width)
    ops.to_act(x, out)
    np.testing.assert_array_equal(out, held(dtype, x))
    scaled = x.copy()
    ops.scale(scaled, 0.3)
    np.testing.assert_array_equal(scaled, x * np.float32(0.3))


@pytest.mark.parametrize("cap", [0.5, 30.0])
def test_caps(ops, reference, cap):
    """To a few last bits for any number, tiny and huge ones too."""
    x = np.concatenate([[0, 1e-30, -1e-6, 1e-3, 0.3, 1e4, -1e4, np.inf, -np.inf, np.nan], 40 * normal(1, 990)])
    x = x.astype(np.float32).reshape(10, 100)
    out, want = x.copy(), x.copy()
    ops.soft_cap(out, cap)
    reference.soft_cap(want, cap)
    np.testing.assert_allclose(out, want, rtol=1e-6)
    with pytest.raises(ValueError, match="cap must be positive"):
        ops.soft_cap(out, 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_activation_functions(ops, reference, dtype, kind):
    """To a few last bits, or where nearly nothing is left 1e-6 of the number."""
    x = np.concatenate([[0, -1e-3, 1e4, -1e4, -88, -10, 6], 3 * normal(1, 993)]).astype(np.float32).reshape(10, 100)
    out, want = act(dtype, 10, 100), act(dtype, 10, 100)
    ops.activate(x, kind, out, CURVE)
    reference.activate(x, kind, want, CURVE)
    close(dtype, out, want)
    exact = np.tanh(np.sqrt(2 / np.pi) * (x.astype(np.float64) + 0.044715 * x.astype(np.float64) ** 3))
    if kind == "gelu_tanh":
        rtol = 2**-7 if dtype == "bfloat16" else 2e-6
        np.testing.assert_allclose(read(dtype, want), 0.5 * x * (1 + exact), rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize(("tokens", "rows", "columns"), [(1, 5, 7), (3, 80, 96), (70, 33, 64)])
@pytest.mark.parametrize("hold", ["act", "int8"])
def test_gated_by_gelu(ops, reference, dtype, tokens, rows, columns, hold, activation):
    gate, up, x = normal(1, rows, columns), normal(2, rows, columns), held(dtype, normal(3, tokens, columns))
    out, want = act(dtype, tokens, rows), act(dtype, tokens, rows)
    for one, to in ((ops, out), (reference, want)):
        one.gate_up(x, one.pack_gate_up(gate, up, hold), to, activation)
    close(dtype, out, want, atol=1e-5 * np.abs(read(dtype, want)).max())
    with pytest.raises(ValueError, match=r"silu, gelu or gelu_tanh, not by relu2"):
        ops.gate_up(x, ops.pack_gate_up(gate, up), out, "relu2")
    with pytest.raises(ValueError, match="xielu needs its two parameters"):
        ops.activate(normal(1, *out.shape), "xielu", out)
    with pytest.raises(ValueError, match="there is no activation function sine"):
        ops.gate_up(x, ops.pack_gate_up(gate, up), out, "sine")


def test_a_row_has_the_same_bits_in_every_batch_and_on_any_threads(dtype, isa):
    tokens, width = 60, 300
    x, weight, bias = 3 * normal(1, tokens, width), normal(2, width), normal(3, width)
    alone = _everything(ops_for(dtype, isa, 1), dtype, x, weight, bias)
    for threads in (1, 2, 3):
        for first, count in [(0, 1), (17, 1), (3, 2), (20, 31)]:
            part = _everything(ops_for(dtype, isa, threads), dtype, x[first : first + count], weight, bias)
            for got, want in zip(part, alone, strict=True):
                np.testing.assert_array_equal(got, want[first : first + count])


def _everything(ops, dtype, x, weight, bias):
    """Every operation of this file over rows x."""
    outs = [act(dtype, *x.shape) for _ in range(2 + len(KINDS))]
    ops.layer_norm(x, weight, bias, 1e-5, outs[0])
    ops.to_act(x, outs[1])
    for kind, out in zip(KINDS, outs[2:], strict=True):
        ops.activate(x, kind, out, CURVE)
    added, capped = x.copy(), x.copy()
    ops.add(x, weight, 1e-6, 0.3, added)
    ops.soft_cap(capped, 2.0)
    return [*outs, added, capped]
