"""Operations of a pass on rows (`protocol.RowOperations`): activations become tensors, and the device's are called.

Knows which tokens the pass has; what is computed is `operations`'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from inflight.execution.backends.protocol import Array, Nonlinearity
from inflight.execution.backends.torch.memory import DeviceActivation
from inflight.execution.backends.torch.operations import DeviceOperations
from inflight.execution.backends.torch.tensors import PassTensors
from inflight.execution.backends.torch.upload import Upload
from inflight.execution.backends.torch.weights import DeviceTable


class RowOperations:
    def __init__(
        self,
        operations: DeviceOperations,
        tensors: PassTensors,
        num_tokens: int,
        upload: Upload,
        token_types: Callable[[], Array],
    ):
        """num_tokens: with those that a graph's size is filled up by. token_types: of the pass's, int32[T]."""
        self._operations, self._tensors, self._num_tokens, self._upload = operations, tensors, num_tokens, upload
        self._token_types = token_types

    def embed(self, table: DeviceTable, out: DeviceActivation) -> None:
        self._operations.embed(table, self._tensors.token_ids, out.take(self._num_tokens))

    def add_positions(self, table: DeviceTable, first: int, out: DeviceActivation) -> None:
        self._operations.add_rows(table, self._tensors.positions + first, out.written)

    def add_token_types(self, table: DeviceTable, out: DeviceActivation) -> None:
        (types,) = self._upload.send([self._token_types()])
        self._operations.add_rows(table, types, out.written)

    def mean(self, x: DeviceActivation, ranges: Sequence[range], out: DeviceActivation) -> None:
        self._operations.mean(x.written, ranges, out.take(len(ranges)))

    def gather(self, x: DeviceActivation, places: Sequence[int], out: DeviceActivation) -> None:
        """Gather by places alone: a replayed graph does not update how many rows of an activation are written."""
        if places == range(len(places)) or list(places) == list(range(len(places))):
            out.take(len(places)).copy_(x.tensor[: len(places)])
            return
        (at,) = self._upload.send([np.array(places, np.int32)])
        torch.index_select(x.tensor, 0, at, out=out.take(len(places)))

    def clear(self, out: DeviceActivation) -> None:
        out.take(self._num_tokens).zero_()

    def to_act(self, x: DeviceActivation, out: DeviceActivation) -> None:
        out.take(x.rows).copy_(x.written)

    def rms_norm(self, x: DeviceActivation, weight: Tensor, eps: float, out: DeviceActivation) -> None:
        self._operations.rms_norm(x.written, weight, eps, out.take(x.rows))

    def layer_norm(
        self, x: DeviceActivation, weight: Tensor, bias: Tensor | None, eps: float, out: DeviceActivation
    ) -> None:
        self._operations.layer_norm(x.written, weight, bias, eps, out.take(x.rows))

    def layer_norm_sum(
        self, x: DeviceActivation, weight: Tensor, bias: Tensor | None, eps: float, out: DeviceActivation
    ) -> None:
        self._operations.layer_norm_sum(x.written, weight, bias, eps, out.take(x.rows))

    def add(self, x: DeviceActivation, norm: Tensor | None, eps: float, factor: float, out: DeviceActivation) -> None:
        self._operations.add(x.written, norm, eps, factor, out.written)

    def scale(self, x: DeviceActivation, factor: float) -> None:
        x.written.mul_(factor)

    def soft_cap(self, x: DeviceActivation, cap: float) -> None:
        x.written.div_(cap).tanh_().mul_(cap)

    def activate(
        self,
        x: DeviceActivation,
        activation: Nonlinearity,
        out: DeviceActivation,
        parameters: Tensor | None = None,
        by: DeviceActivation | None = None,
        first: int = 0,
    ) -> None:
        factors = None if by is None else by.written[:, first : first + x.width]
        self._operations.activate(x.written, activation, parameters, factors, out.take(x.rows))

    def add_gated(self, x: DeviceActivation, gate: DeviceActivation, out: DeviceActivation) -> None:
        self._operations.add_gated(x.written, gate.written, out.written)

    def gate(self, gate: DeviceActivation, x: DeviceActivation) -> None:
        self._operations.gate(gate.written, x.written)
