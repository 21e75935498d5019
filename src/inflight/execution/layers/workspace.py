"""The activations of a pass, which all layers share.

Knows names and widths. Layers run one after the other, so that those of one kind use the same memory; what a layer
leaves there is not read after it, but for the residual stream, which the decoder owns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from inflight.execution.backends.protocol import Activation, Backend, ForwardPass

# A part of a layer, bound to its activations: reads act[T, E], adds its result to the residual stream float32[T, E].
Part = Callable[[ForwardPass, Activation, Activation], None]


class Workspace:
    def __init__(self, backend: Backend, max_tokens: int) -> None:
        self._backend, self._max_tokens = backend, max_tokens
        self._held: dict[tuple[str, int], Activation] = {}

    def take(self, name: str, width: int, kind: Literal["act", "float32"] = "act") -> Activation:
        """Memory for a row of `width` numbers for each token of a pass: the same for the same name and width."""
        if (name, width) not in self._held:
            self._held[name, width] = self._backend.activation(self._max_tokens, width, kind)
        return self._held[name, width]

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self._held.values())
