"""Operations without a kernel of ours: rows that are moved, means, and numbers one by one, by PyTorch's own operations.

`mean` and the additions of rows are of encoder-only passes, which have no graphs; the others are one launch each.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from inflight.execution.backends.torch.device_pass import DevicePass
from inflight.execution.backends.torch.weights import DeviceTable, PlainMatrix


def gather(on: DevicePass, x: Tensor, out: Tensor) -> None:
    places = on.places
    if places == range(len(places)) or list(places) == list(range(len(places))):
        out.copy_(x[: len(places)])
    else:
        torch.index_select(x, 0, on.send(np.array(places, np.int32)), out=out)


def mean(on: DevicePass, x: Tensor, out: Tensor) -> None:
    for row, text in enumerate(on.texts):
        out[row] = x[text.start : text.stop].mean(dim=0, dtype=torch.float64)


def add_positions(on: DevicePass, table: DeviceTable, first: int, out: Tensor) -> None:
    _add_rows(table, on.tensors.positions + first, out)


def add_token_types(on: DevicePass, table: DeviceTable, out: Tensor) -> None:
    _add_rows(table, on.send(on.token_types()), out)


def _add_rows(table: DeviceTable, rows: Tensor, out: Tensor) -> None:
    assert isinstance(table.matrix, PlainMatrix), "packed as rows"
    out += table.matrix.values[rows.long()]


def clear(on: DevicePass, out: Tensor) -> None:
    out.zero_()


def to_act(on: DevicePass, x: Tensor, out: Tensor) -> None:
    out.copy_(x)


def scale(on: DevicePass, x: Tensor, factor: float) -> None:
    x.mul_(factor)


def soft_cap(on: DevicePass, x: Tensor, cap: float) -> None:
    x.div_(cap).tanh_().mul_(cap)
