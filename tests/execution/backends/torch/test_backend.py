"""Packing of a checkpoint's matrices by the backend, and its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch

from inflight.execution import ops
from inflight.execution.backends import int4, int8
from inflight.execution.backends.bf16 import to_bf16
from inflight.execution.backends.grouped import PackedMatrix
from inflight.execution.backends.matrices import Matrix, by_output, dequantized, in_int8, in_order
from inflight.execution.backends.protocol import Hold, KVLayer, KVShape, LayerState, Routing
from inflight.execution.backends.reference import ReferenceBackend
from inflight.execution.backends.torch import quantizing, weights
from inflight.execution.backends.torch.definitions import widened
from inflight.execution.backends.torch.packing import MAX_INT8_COLUMNS
from inflight.execution.backends.torch.weights import DeviceLinear

from ..material import normal
from ..test_int4 import MXFP4, matrix, out_of_order
from ..test_native_blocks import blocks
from .launched import Given, define, one_token
from .opened import on_cpu

ROWS, COLUMNS = 24, 88  # of groups of 16 and 32 the last is shorter
SOURCES: dict[str, Callable[[], Matrix]] = {
    "float32": lambda: normal(1, ROWS, COLUMNS),
    "float16": lambda: normal(1, ROWS, COLUMNS).astype(np.float16),
    "bf16": lambda: to_bf16(normal(1, ROWS, COLUMNS)),
    "int8": lambda: by_output(*int8.quantize(normal(2, ROWS, COLUMNS))),
    "int8 in groups": lambda: in_int8(normal(2, ROWS, COLUMNS)),
    "int4": lambda: matrix(ROWS, COLUMNS, 32),
    "int4 with offsets": lambda: matrix(ROWS, COLUMNS, 16, offsets=True),
    "int4 from -4 on": lambda: matrix(ROWS, COLUMNS, 16, meanings=np.arange(-4, 12, dtype=np.int8)),
    "int4 by a table": lambda: matrix(ROWS, COLUMNS, 32, meanings=MXFP4),
    "int4 by a table with offsets": lambda: matrix(ROWS, COLUMNS, 32, offsets=True, meanings=MXFP4),
    "int4 out of order": lambda: out_of_order(matrix(ROWS, COLUMNS, 32)),
    "blocks in 4 bits": lambda: blocks("Q4_K", ROWS, 256),
    "blocks in 8 bits": lambda: blocks("Q6_K", ROWS, 256),
}


def looked_up(token_ids: Iterable[int]) -> Given:
    """Make a pass over these tokens."""
    return Given(one_token("cpu")._replace(token_ids=torch.tensor(list(token_ids), dtype=torch.int32)))


def meant(linear: DeviceLinear) -> np.ndarray:
    """float32[N, K] that it multiplies by: an identity is whole numbers to every way to hold one."""
    x, out = torch.eye(linear.columns), torch.empty(linear.columns, linear.rows)
    define(ops.linear, Given(), x, linear, out)
    return out.numpy().T


@pytest.mark.parametrize("name", SOURCES)
def test_what_a_checkpoint_holds_is_what_is_multiplied_by(name: str) -> None:
    source = SOURCES[name]()
    packed = on_cpu().pack_linear([source])
    assert (packed.rows, packed.columns) == source.shape
    np.testing.assert_allclose(meant(packed), dequantized(source), rtol=1e-5, atol=1e-6)


def test_packing_copies() -> None:
    source, vector = normal(1, ROWS, COLUMNS), normal(2, ROWS)
    before, backend = source.copy(), on_cpu()
    packed, held = backend.pack_linear([source], vector), backend.pack_vector(vector)
    source[:], vector[:] = 0, 0
    assert np.array_equal(meant(DeviceLinear(packed.parts, ROWS, COLUMNS, 0)), before)
    assert packed.bias is not None and held.abs().min() > 0 and packed.bias.abs().min() > 0


def test_memory_that_may_not_be_written_is_read() -> None:
    source = normal(1, ROWS, COLUMNS)
    source.flags.writeable = False
    assert np.array_equal(meant(on_cpu().pack_linear([source])), source)


def test_plain_numbers_are_held_in_int8_by_the_rule() -> None:
    source = np.concatenate([normal(1, ROWS, COLUMNS), np.zeros((1, COLUMNS), np.float32)])
    packed, want = on_cpu().pack_linear([source], hold="int8"), in_int8(source)
    (held,) = packed.parts
    assert isinstance(held, weights.GroupedMatrix) and (held.bits, held.group) == (8, 32)
    assert np.array_equal(held.codes[:, :COLUMNS], want.values) and np.array_equal(held.scales, want.scales)
    assert packed.nbytes == len(source) * 3 * (32 + 4)  # bytes of whole groups and their scales


@pytest.mark.parametrize(
    ("hold", "source"), [("int8", "float32"), ("act", "int8 in groups"), ("act", "blocks in 8 bits")]
)
def test_int8_in_groups_takes_a_byte_for_a_weight(hold: Hold, source: str) -> None:
    packed = on_cpu().pack_linear([SOURCES[source]()], hold=hold)
    assert packed.nbytes < 1.3 * packed.rows * -(-packed.columns // 32) * 32


@pytest.mark.parametrize("group", int4.GROUP_SIZES)
def test_plain_numbers_are_held_in_int4_by_the_rule_to_the_bit(group: int) -> None:
    """Make groups without a number, with NaN, and with a short end."""
    source = normal(1, ROWS, 3 * group - 8)
    source[3, :group], source[4, 5], source[5, group] = 0, np.nan, np.inf
    want = int4.quantize(source, group)
    codes, scales, offsets = quantizing.quantize_int4(torch.from_numpy(source), group)
    assert np.array_equal(codes[:, : source.shape[1]], want.codes)
    assert np.array_equal(scales, want.scales, equal_nan=True) and np.array_equal(offsets, want.offsets)
    (held,) = on_cpu().pack_linear([source], hold="int4", group=group).parts
    assert isinstance(held, weights.GroupedMatrix) and held.group == group
    found = widened(held, source.shape[1])
    np.testing.assert_allclose(found, want.dequantized(), atol=1e-6)


@pytest.mark.parametrize(
    ("parts", "count"),
    [
        (("float32", "bf16", "float16"), 1),
        (("int8", "int8"), 1),
        (("int4", "int4"), 1),
        (("int8 in groups", "int8 in groups"), 1),
        (("int8 in groups", "int8", "int4"), 3),
        (("int4", "int8", "int4"), 3),
        (("int4", "int4 with offsets"), 2),
        (("int4 by a table", "int4"), 2),
        (("int4 out of order", "int4 out of order"), 1),
        (("int4 out of order", "int4"), 2),
    ],
)
def test_parts_that_are_held_alike_are_one(parts: tuple[str, ...], count: int) -> None:
    sources, bias = [SOURCES[name]() for name in parts], normal(9, ROWS * len(parts))
    packed = on_cpu().pack_linear(sources, bias)
    assert len(packed.parts) == count and packed.rows == ROWS * len(parts)
    want = np.concatenate([dequantized(one) for one in sources]) + bias[:, None]
    np.testing.assert_allclose(meant(packed), want, rtol=1e-5, atol=1e-5)


def test_too_many_columns_for_sums_of_32_bits_are_refused() -> None:
    with pytest.raises(ValueError, match=f"133,145 columns in int8 .* {MAX_INT8_COLUMNS:,} is the most"):
        on_cpu().pack_linear([by_output(np.zeros((1, MAX_INT8_COLUMNS + 1), np.int8), np.ones(1, np.float32))])
    with pytest.raises(ValueError, match="not float64"):
        on_cpu().pack_linear([np.zeros((2, 32))])


@pytest.mark.parametrize(("gate", "up"), [("int4", "int4 with offsets"), ("int8", "float32"), ("float32", "bf16")])
@pytest.mark.parametrize("hold", ["act", "int8"])
def test_gate_and_up_are_one_matrix(gate: str, up: str, hold: Hold) -> None:
    sources, bias = [SOURCES[gate](), SOURCES[up]()], normal(9, 2, ROWS)
    packed = on_cpu().pack_gate_up(*sources, hold=hold, bias=bias)
    assert len(packed.both.parts) == 1 and (packed.rows, packed.columns) == (ROWS, COLUMNS)
    if hold == "int8":  # rounded as they are: a device mixes no weights
        sources = [in_int8(dequantized(one)) if isinstance(one, np.ndarray) else one for one in sources]
    both = ReferenceBackend("float32").pack_gate_up(*sources, hold=hold, bias=bias)
    halves = np.split(meant(packed.both), 2)
    for found, held, of_half in zip(halves, both.both.parts, bias, strict=True):
        plain = held if isinstance(held, np.ndarray) else _plain(held)
        np.testing.assert_allclose(found - of_half[:, None], plain, atol=2e-2)


@pytest.mark.parametrize("bits", [4, 8])
def test_experts_whose_offsets_are_left_out_stand_beside_those_that_have_them(bits: int) -> None:
    backend = on_cpu()
    sources: list[Matrix] = [matrix(ROWS, COLUMNS, 32), matrix(ROWS, COLUMNS, 32, offsets=True)]
    sources = [in_int8(one) for one in sources] if bits == 8 else sources
    inward = [backend.pack_gate_up(one, one) for one in sources]
    outward = [backend.pack_linear([normal(place, COLUMNS, ROWS)]) for place in range(2)]
    experts = backend.pack_experts(inward, outward, Routing(top_k=1))
    assert experts.count == 2 and isinstance(experts.gate_up, weights.GroupedMatrix)
    assert experts.gate_up.bits == bits
    for place, source in enumerate(sources):
        found = widened(weights.one_of(experts.gate_up, place), COLUMNS)  # type: ignore[arg-type]
        np.testing.assert_allclose(found, np.concatenate([dequantized(source)] * 2), rtol=1e-5, atol=1e-6)


def test_experts_that_differ_are_refused() -> None:
    backend = on_cpu()
    plain, quantized = (backend.pack_linear([SOURCES[name]()]) for name in ("float32", "int8"))
    gates = [backend.pack_gate_up(normal(1, COLUMNS, ROWS), normal(2, COLUMNS, ROWS)) for _ in range(2)]
    with pytest.raises(ValueError, match="number 1 is held as Int8Matrix"):
        backend.pack_experts(gates, [plain, quantized], Routing(top_k=1))
    with pytest.raises(ValueError, match="2 and 1 matrices of experts, of which a token passes 1"):
        backend.pack_experts(gates, [plain], Routing(top_k=1))
    with pytest.raises(ValueError, match="number 1"):
        backend.pack_heads([plain, backend.pack_linear([normal(1, ROWS + 1, COLUMNS)])])
    biased = backend.pack_linear([normal(1, ROWS, COLUMNS)], normal(2, ROWS))
    with pytest.raises(ValueError, match="1 of 2 matrices have a bias"):
        backend.pack_experts(gates, [plain, biased], Routing(top_k=1))


@pytest.mark.parametrize("name", [name for name in SOURCES if "blocks" not in name])
@pytest.mark.parametrize("hold", ["act", "int8", "int4"])
def test_rows_of_a_tied_table_are_those_of_its_projection(name: str, hold: Hold) -> None:
    source = SOURCES[name]()
    table = on_cpu().pack_table(source, hold)
    out = torch.empty(3, COLUMNS)
    define(ops.embed, looked_up([5, 0, 5]), table, out)
    assert table.linear is not None and (table.rows, table.columns) == (ROWS, COLUMNS)
    want = dequantized(in_order(source))
    np.testing.assert_allclose(out, meant(table.linear)[[5, 0, 5]], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(out, want[[5, 0, 5]], atol=0.3 if hold == "int4" else 0.03)


@pytest.mark.parametrize("share", [0, 8, COLUMNS])
def test_rows_of_a_table_come_in_pieces(share: int) -> None:
    values = normal(1, ROWS, COLUMNS)
    table = on_cpu().pack_rows(iter([values[:7], values[7:20], values[20:]]), ROWS, COLUMNS, share)
    reference = ReferenceBackend("float32").pack_rows([values], ROWS, COLUMNS, share)
    out = torch.empty(ROWS, COLUMNS)
    define(ops.embed, looked_up(range(ROWS)), table, out)
    held: Any = reference.weight
    want = held if not share else (held.values * held.scales).reshape(ROWS, COLUMNS)
    np.testing.assert_array_equal(out, want)
    assert table.nbytes == reference.nbytes


@pytest.mark.parametrize("pieces", [[(7, COLUMNS)], [(20, COLUMNS), (5, COLUMNS)], [(20, COLUMNS), (4, 3)]])
def test_pieces_that_make_another_table_are_refused(pieces: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="the pieces of a table are"):
        on_cpu().pack_rows([normal(1, *shape) for shape in pieces], ROWS, COLUMNS)
    with pytest.raises(ValueError, match="no equal shares of 7"):
        on_cpu().pack_rows([normal(1, ROWS, COLUMNS)], ROWS, COLUMNS, 7)


@pytest.mark.parametrize("quantized", [False, True])
def test_places_of_layers_do_not_overlap_and_fill_a_block(quantized: bool) -> None:
    layers = (KVLayer(0, 2, 32, 32), None, KVLayer(1, 1, 48, 16), KVLayer(0, 1, 40, 0))
    backend, shape = on_cpu("bfloat16"), KVShape(16, layers, quantized)
    cache = backend.kv_cache(shape, 3)
    assert backend.bytes_per_block(shape) == ReferenceBackend("bfloat16").bytes_per_block(shape)
    assert cache.nbytes == 3 * backend.bytes_per_block(shape)
    written: list[tuple[torch.Tensor, int]] = []
    for number, layer in enumerate((0, 3), 1):  # of one group, side by side
        kept = cache.layer(layer)
        for part in (kept.keys, kept.values, kept.key_scales, kept.value_scales):
            if part is not None:
                part[1].fill_(number + len(written))
                written.append((part, number + len(written)))
    assert len(written) == (6 if quantized else 3)
    assert all((part[1] == value).all() and not part[0].any() and not part[2].any() for part, value in written)
    with pytest.raises(ValueError, match="layer 1 is not in the KV cache"):
        cache.layer(1)


def test_blocks_are_copied_to_the_hosts_memory_and_back_in_order() -> None:
    backend = on_cpu()
    cache = backend.kv_cache(KVShape.uniform(1, 16, 1, 32), 4, host_blocks=3)
    keys = cache.layer(0).keys
    assert cache.num_blocks == 7 and len(keys) == 4
    for block in range(4):
        keys[block] = block + 1
    backend.copy_blocks(cache, [0, 1, 3], [4, 5, 6])
    keys.zero_()
    backend.copy_blocks(cache, [6, 4, 5, 1], [0, 1, 2, 3])
    backend.wait()
    assert keys[:, 0, 0, 0].tolist() == [4, 1, 2, 1]
    backend.copy_blocks(cache, [0, 1], [1, 2])  # the second reads what the first wrote
    assert keys[:, 0, 0, 0].tolist() == [4, 4, 4, 1]


def test_a_state_begins_as_a_copy_of_a_snapshot() -> None:
    kinds = [LayerState(3, 5), None, LayerState(2, 6, 2, 4, 3)]
    backend = on_cpu("bfloat16")
    states = backend.state_cache(kinds, 2, 2)
    assert states.nbytes == 4 * backend.bytes_per_state(kinds)
    for layer in (0, 2):
        for part in states.layer(layer):
            part[3] = layer + 1
    states.begin(0, 1)
    for layer in (0, 2):
        for part in states.layer(layer):
            assert (part[0] == layer + 1).all() and not part[1:3].any()
    with pytest.raises(ValueError, match="layer 1 keeps no recurrent state"):
        states.layer(1)


def _plain(held: PackedMatrix) -> np.ndarray:
    return held.rows(np.arange(held.shape[0]))
