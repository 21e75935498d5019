"""Operations of which attention is a library's, for the passes that it takes.

Knows who is asked; how a library is called, its own file knows.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from inflight.execution.backends.torch.operations import DeviceOperations
from inflight.execution.backends.torch.tensors import LayerKV, PassTensors


class AttentionLibrary(Protocol):
    def takes(self, pass_: PassTensors) -> bool:
        """Whether it attends in this pass; follows from its shape alone."""

    def attend(
        self, q: Tensor, cached: LayerKV, scale: float, window: int, soft_cap: float, pass_: PassTensors, out: Tensor
    ) -> None:
        """As `operations.AttentionOperations.attention`, without sinks, over keys and values as `act` holds them."""


class LibraryOperations:
    """The wrapped ones, but for attention."""

    def __init__(self, operations: DeviceOperations, library: AttentionLibrary) -> None:
        self._operations, self._library = operations, library

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operations, name)

    def attention(
        self,
        q: Tensor,
        cached: LayerKV,
        scale: float,
        window: int,
        soft_cap: float,
        sinks: Tensor | None,
        causal: bool,
        pass_: PassTensors,
        out: Tensor,
        position_bias: Tensor | None = None,
    ) -> None:
        if not causal or not self._library.takes(pass_):
            return self._operations.attention(
                q, cached, scale, window, soft_cap, sinks, causal, pass_, out, position_bias
            )
        if sinks is not None or cached.values is None or cached.key_scales is not None:
            raise ValueError("a layer that this library of attention does not compute, which was to be refused before")
        self._library.attend(q, cached, scale, window, soft_cap, pass_, out)


def heads(q: Tensor, cached: LayerKV) -> Tensor:
    """act[T, H·D] → act[T, H, D]."""
    return q.view(len(q), -1, cached.keys.shape[3])
