"""Short convolutions, the gated delta rule and gates: kernels against numpy, and the same bits however tokens come."""

from __future__ import annotations

import numpy as np
import pytest

from inflight.execution.backends.native import NativeBackend
from inflight.execution.backends.protocol import LayerState

from .conftest import ops_for
from .material import OnArrays, held, normal, read
from .recurrent import HEADS, WIDE, Layer, numbers

CASES = [("convolve", WIDE), ("convolve_gated", WIDE), *(("delta", one) for one in HEADS)]


@pytest.mark.parametrize(("operation", "state"), CASES)
def test_the_implementations_agree(ops: OnArrays, reference: OnArrays, operation: str, state: LayerState) -> None:
    x = numbers(state, operation, 4, 80)
    runs, going_on = [(3, 0, 37), (0, 0, 1), (5, 0, 2), (2, 0, 40)], [(2, 40, 33), (0, 1, 47)]
    found, expected = (
        [getattr(one, operation)(part, x) for part in (runs, going_on)]
        for one in (Layer(ops, state), Layer(reference, state))
    )
    for ours, theirs in zip(found, expected, strict=True):
        error = np.abs(ours - theirs).max()
        assert np.isfinite(ours).all() and error <= np.abs(theirs).max() * (1e-5 if ops.dtype == "float32" else 1e-2)


@pytest.mark.parametrize(("operation", "state"), CASES)
def test_bits_do_not_depend_on_chunks_company_or_snapshots(ops: OnArrays, operation: str, state: LayerState) -> None:
    x, others = numbers(state, operation, 5, 100), numbers(state, operation, 6, 100)
    whole = getattr(Layer(ops, state), operation)([(1, 0, 100)], x)
    for threads, cuts in ((1, [1, 2, 50, 99]), (2, [33, 64]), (2, [*range(1, 100)])):
        layer, at = Layer(ops_for(ops.dtype, ops.isa, threads), state), 0
        for cut in (*cuts, 100):
            count = cut - at
            mixed = np.concatenate([others[:3], x[at:cut], others[3:8]])
            found = getattr(layer, operation)([(4, 0, 3), (1, at, count), (0, 0, 5)], mixed)
            assert np.array_equal(found[3 : 3 + count], whole[at:cut]), f"{threads} threads, {at} to {cut}"
            at = cut
    layer = Layer(ops, state)
    due = [(7, 2), (32, 0), (33, 1), (60, 2)]
    assert np.array_equal(getattr(layer, operation)([(1, 0, 60)], x[:60], snapshots=[due]), whole[:60])
    for position, slot in due[1:]:
        layer.cache.begin(3, slot)
        found = getattr(layer, operation)([(3, position, 100 - position)], x[position:])
        assert np.array_equal(found, whole[position:]), f"from {position}"


def test_a_gate_is_a_sigmoid(ops: OnArrays, reference: OnArrays) -> None:
    x, gate = held(ops.dtype, normal(1, 9, 40)), 20 * normal(2, 9, 40)
    made = []
    for one in (ops.backend, reference.backend):
        out = one.activation_of(x.copy())
        OnArrays(one)._pass().gate(one.activation_of(gate), out)
        made.append(read(ops.dtype, out.array))
    np.testing.assert_allclose(made[0], made[1], rtol=1e-6 if ops.dtype == "float32" else 1e-2, atol=1e-6)
    assert not np.array_equal(made[0], read(ops.dtype, x))


def test_a_state_takes_the_bytes_that_it_reports(ops: OnArrays, reference: OnArrays) -> None:
    layers = [None, HEADS[1], None, LayerState(3, 320)]
    reported = ops.bytes_per_state(layers)
    assert ops.state_cache(layers, 2, 3).nbytes == 5 * reported
    assert reported == reference.bytes_per_state(layers) == reference.state_cache(layers, 1, 0).nbytes


def test_what_cannot_be_is_refused(dtype: str, isa: str) -> None:
    layer = Layer(OnArrays(NativeBackend(dtype, 1, isa)), HEADS[0])  # type: ignore[arg-type]
    x = numbers(HEADS[0], "delta", 1, 20)
    with pytest.raises(ValueError, match="there is no state of row 6; there are 6"):
        layer.delta([(6, 0, 20)], x)
    for entry in ((21, 0), (0, 0), (16, 3)):
        with pytest.raises(ValueError, match=f"a snapshot of position {entry[0]} in slot {entry[1]} cannot be taken"):
            layer.delta([(0, 0, 20)], x, snapshots=[[entry]])
    with pytest.raises(ValueError, match="row 0 cannot begin from snapshot 3: there are 6 rows and 3 snapshots"):
        layer.cache.begin(0, 3)
    with pytest.raises(ValueError, match="a weight for each channel of each input"):
        layer.over([(0, 0, 20)]).convolve(
            layer.backend.activation_of(x),
            0,
            layer.backend.pack_vector(normal(1, 8)),
            layer.backend.activation_of(x.copy()),
        )
