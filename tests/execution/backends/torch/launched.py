"""One operation over tensors: by its kernel, and by its definition over copies of the same tensors on the CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from inflight.execution.backends.torch.adapted_matrix import AdaptedMatrix, AdapterRows
from inflight.execution.backends.torch.definitions import Definitions
from inflight.execution.backends.torch.device_pass import DevicePass
from inflight.execution.backends.torch.launcher import launch_function
from inflight.execution.backends.torch.tensors import LayerKV, LayerStates, PassTensors, StateTensors
from inflight.execution.program import Operation

from .matrices import moved

CPU = torch.device("cpu")
LAYER = 3  # of whatever number


@dataclass(frozen=True)
class Given:
    """The parts of a pass over tensors: all of its layers are the one given here."""

    tensors: PassTensors | None = None
    cached: LayerKV | None = None
    states: LayerStates | None = None
    moves: StateTensors | None = None
    adapted: AdaptedMatrix | None = None
    rows: AdapterRows | None = None
    act: torch.dtype = torch.float32
    invariant: bool = False

    def over(self, device: str | torch.device = CPU) -> DevicePass:
        """Return a pass on the device."""
        tensors: Any = self.tensors or one_token(device)
        layer: Any = self.cached
        return DevicePass(
            act=self.act,
            tensors=tensors,
            cached=lambda number: layer,
            token_types=lambda: np.zeros(tensors.num_tokens, np.int32),
            send=lambda values: torch.from_numpy(values).to(device),
            states=None if self.states is None else (lambda number: self.states),  # type: ignore[arg-type, return-value]
            state_tensors=self.moves,
            adapters=lambda weight: self.adapted,
            adapter_rows=self.rows,
            invariant=self.invariant,
        )


def one_token(device: str | torch.device) -> PassTensors:
    """Make a pass of one token, for operations that read nothing of it."""
    one = torch.zeros(1, dtype=torch.int32, device=device)
    start = torch.tensor([0, 1], dtype=torch.int32, device=device)
    return PassTensors(one, one, one, one, start, one, one.view(1, 1, 1), 16, 1, 1)


def launch(operation: Operation[...], given: Given | DevicePass, *arguments: Any, **named: Any) -> None:
    """Launch an operation by its function in `kernels`."""
    tensors = [one for one in arguments if isinstance(one, Tensor)]
    on = given.over(tensors[0].device if tensors else CPU) if isinstance(given, Given) else given
    launch_function(operation.name, operation.file)(on, *arguments, **named)


def define(operation: Operation[...], given: Given, *arguments: Any, **named: Any) -> None:
    """Run an operation's definition on the CPU, over the same tensors if they are there; else over copies, which are
    copied back: arguments, keys and values, and states."""
    copies = [moved(one, CPU) for one in arguments]
    there = replace(
        given,
        tensors=moved(given.tensors, CPU),
        cached=moved(given.cached, CPU),
        states=moved(given.states, CPU),
        moves=moved(given.moves, CPU),
        rows=moved(given.rows, CPU),
    )
    bound = operation.signature.bind(None, *copies, **named)
    bound.apply_defaults()
    Definitions().launch(operation, there.over(), bound.args[1:])
    for ours, theirs in zip(
        (*arguments, given.cached, given.states), (*copies, there.cached, there.states), strict=True
    ):
        _copy_back(ours, theirs)


def _copy_back(target: Any, source: Any) -> None:
    if isinstance(target, Tensor):
        if target.device != CPU:
            target.copy_(source)
    elif isinstance(target, LayerKV | LayerStates):
        for ours, theirs in zip(target, source, strict=True):
            _copy_back(ours, theirs)
