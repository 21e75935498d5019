"""Matrices as a device holds them, packed plainly of a checkpoint's: for the tests of products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch

from inflight.execution.backends import int8
from inflight.execution.backends.matrices import LINEAR_CODES, Int4Matrix, Int8Matrix, ReorderedMatrix
from inflight.execution.backends.protocol import Routing
from inflight.execution.backends.torch import weights
from inflight.execution.backends.torch.weights import DeviceLinear, PackedMatrix, RoutingTensors

from ..material import normal
from ..test_int4 import MXFP4

Array = np.ndarray[Any, Any]


def plain(values: Array, dtype: torch.dtype) -> weights.PlainMatrix:
    return weights.PlainMatrix(torch.from_numpy(values).to(dtype))


def in_int8(values: Array) -> weights.Int8Matrix:
    codes, scales = int8.quantize(values)
    return weights.Int8Matrix(torch.from_numpy(codes), torch.from_numpy(scales))


def eight_bits(rows: int, columns: int, group: int, offsets: bool = False, seed: int = 7) -> Int8Matrix:
    values = np.random.default_rng(seed).integers(-128, 128, (rows, columns), np.int8)
    groups = -(-columns // group)
    return Int8Matrix(values, normal(1, rows, groups) * 2**-10, normal(2, rows, groups) if offsets else None, group)


def in_groups(matrix: Int8Matrix) -> weights.GroupedMatrix:
    """Groups filled up with codes of 99, which must not matter."""
    rows, columns = matrix.shape
    codes = np.full((rows, matrix.scales.shape[1] * matrix.group), 99, np.int8)
    codes[:, :columns] = matrix.values
    offsets = None if matrix.offsets is None else torch.from_numpy(matrix.offsets)
    return weights.GroupedMatrix(torch.from_numpy(codes), torch.from_numpy(matrix.scales), offsets, matrix.group)


def in_fp8(values: Array) -> weights.Fp8Matrix:
    scales = np.abs(values).max(axis=1) / np.float32(448)
    codes = torch.from_numpy(values / scales[:, None]).to(torch.float8_e4m3fn)
    return weights.Fp8Matrix(codes, torch.from_numpy(scales))


def in_int4(matrix: Int4Matrix | ReorderedMatrix, dtype: torch.dtype = torch.float32) -> weights.GroupedMatrix:
    """Groups filled up with codes of 15, which must not matter."""
    order = matrix.order if isinstance(matrix, ReorderedMatrix) else None
    codes_of = matrix.matrix if isinstance(matrix, ReorderedMatrix) else matrix
    rows, columns = codes_of.shape
    groups = codes_of.scales.shape[1]
    codes = np.full((rows, groups * codes_of.group), 15, np.uint8)
    codes[:, :columns] = codes_of.codes
    halves = codes.reshape(rows, groups, 2, -1)
    is_linear = np.array_equal(codes_of.meanings, LINEAR_CODES)
    offsets = codes_of.offsets
    if offsets is not None and is_linear:
        offsets = offsets - 8 * codes_of.scales
    return weights.GroupedMatrix(
        torch.from_numpy((halves[:, :, 0] | halves[:, :, 1] << 4).reshape(rows, -1)),
        torch.from_numpy(codes_of.scales),
        None if offsets is None else torch.from_numpy(offsets),
        codes_of.group,
        None if order is None else torch.from_numpy(order),
        None if is_linear else torch.from_numpy(codes_of.meanings).to(dtype),
        np.array_equal(codes_of.meanings, MXFP4),
    )


def linear(parts: Sequence[PackedMatrix], columns: int, bias: Array | None = None) -> DeviceLinear:
    rows = sum(first_of(part).shape[0] for part in parts)
    return DeviceLinear(tuple(parts), rows, columns, 0, None if bias is None else torch.from_numpy(bias))


def stacked(matrices: Sequence[PackedMatrix]) -> PackedMatrix:
    """Stack experts or heads: every tensor with their place before its other dimensions."""
    found = {}
    for name in (one.name for one in fields(matrices[0])):
        values = [getattr(one, name) for one in matrices]
        is_shared = name == "meanings" or not isinstance(values[0], torch.Tensor)
        found[name] = values[0] if is_shared else torch.stack(values)
    return type(matrices[0])(**found)


def moved(thing: Any, device: torch.device) -> Any:
    """Weights, or named tensors, with their tensors on that device."""
    if isinstance(thing, torch.Tensor):
        return thing.to(device)
    if isinstance(thing, tuple):
        made = [moved(one, device) for one in thing]
        return type(thing)(*made) if hasattr(thing, "_fields") else tuple(made)
    if is_dataclass(thing):
        return type(thing)(**{one.name: moved(getattr(thing, one.name), device) for one in fields(thing)})
    return thing


def first_of(matrix: PackedMatrix) -> torch.Tensor:
    return matrix.values if isinstance(matrix, weights.PlainMatrix) else matrix.codes


def routing_tensors(routing: Routing) -> RoutingTensors:
    values = {name: getattr(routing, name) for name in RoutingTensors._fields}
    return RoutingTensors(
        **{name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in values.items()}
    )
