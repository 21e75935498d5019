"""The pass that an operation is launched for: its tensors, the memory of layers, adapters, and rows that are asked for.

It is the first argument of each operation's launch function (`kernels`), where a definition has a `NumpyPass`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from inflight.execution.backends.protocol import Array
from inflight.execution.backends.torch.adapted_matrix import AdaptedMatrix, AdaptedWeight, AdapterRows
from inflight.execution.backends.torch.tensors import LayerKV, LayerStates, PassTensors, StateTensors


@dataclass(slots=True)
class DevicePass:
    """All activations that a launch function gets are contiguous tensors [rows, width].

    Attributes:
        act: The format of activations.
        cached: Returns a layer's keys and values.
        token_types: Returns the text of a pair that each token is of, int32[T].
        send: Copies an array int32[N] to the device.
        states: Returns a recurrent layer's states.
        state_tensors: What the chunks leave of these. None: the batch has no states.
        adapters: Returns what adapters change of a packed matrix. None: nothing.
        adapter_rows: Rows with an adapter. None: no row has one.
        invariant: The bits of a row may not depend on the rows beside it.
        places: Rows that `gather` reads.
        texts: Ranges of rows that `mean` reads.
    """

    act: torch.dtype
    tensors: PassTensors
    cached: Callable[[int], LayerKV]
    token_types: Callable[[], Array]
    send: Callable[[Array], Tensor]
    states: Callable[[int], LayerStates] | None = None
    state_tensors: StateTensors | None = None
    adapters: Callable[[AdaptedWeight], AdaptedMatrix | None] | None = None
    adapter_rows: AdapterRows | None = None
    invariant: bool = False
    places: Sequence[int] = ()
    texts: Sequence[range] = ()
    _sent_places: Tensor | None = None

    def begin_program(self, places: Sequence[int], texts: Sequence[range]) -> None:
        """Run operations over these rows from now on."""
        self.places, self.texts, self._sent_places = places, texts, None

    @property
    def sent_places(self) -> Tensor:
        """`places` on the device, int32[S]; sent once for all operations of a program."""
        if self._sent_places is None:
            self._sent_places = self.send(np.array(self.places, np.int32))
        return self._sent_places

    def recurrent(self, layer: int) -> tuple[LayerStates, StateTensors]:
        """Return a recurrent layer's states, and what the chunks leave of them. Raises ValueError where there are
        none."""
        if self.states is None or self.state_tensors is None:
            raise ValueError("the batch of this pass was made without states of recurrent layers")
        return self.states(layer), self.state_tensors

    def adapted(self, weight: AdaptedWeight) -> tuple[AdaptedMatrix, AdapterRows] | None:
        """Return what adapters change of a matrix, and for which rows; None: nothing."""
        if self.adapters is None or self.adapter_rows is None:
            return None
        matrix = self.adapters(weight)
        return None if matrix is None else (matrix, self.adapter_rows)
