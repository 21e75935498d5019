"""Rows picked out and means of ranges of them, by PyTorch's own operations: one launch each, or of encoder-only passes,
which have no graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from inflight.execution.backends.torch.device_pass import DevicePass


def gather(on: DevicePass, x: Tensor, out: Tensor) -> None:
    places = on.places
    if places == range(len(places)) or list(places) == list(range(len(places))):
        out.copy_(x[: len(places)])
    else:
        torch.index_select(x, 0, on.sent_places, out=out)


def mean(on: DevicePass, x: Tensor, out: Tensor) -> None:
    for row, text in enumerate(on.texts):
        out[row] = x[text.start : text.stop].mean(dim=0, dtype=torch.float64)
