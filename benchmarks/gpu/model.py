"""A model of random weights on a device, and what steps it: weights are drawn where they lie."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.device import MeasuredDevice
from benchmarks.shapes import write_config
from inflight.config.assembly import scheduler_for
from inflight.config.engine import GPU_GRAPH_TOKENS, GPU_LOGIT_ROWS, EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.plan import Capacity
from inflight.engine.clock import MonotonicClock
from inflight.engine.loop import EngineLoop
from inflight.execution.backends.matrices import Matrix
from inflight.execution.backends.protocol import Array, Quantization
from inflight.execution.backends.torch.backend import TorchBackend
from inflight.execution.backends.torch.buckets import Buckets
from inflight.execution.backends.torch.capture import CapturedDecoder, Graphs
from inflight.execution.backends.torch.launcher import Launcher
from inflight.execution.backends.torch.opening import graph_buckets
from inflight.execution.backends.torch.packing import Packer
from inflight.execution.graphs import NO_GRAPHS, GraphLimits
from inflight.execution.memory import MachineMemory, kv_shape, states_of
from inflight.execution.model import Model as ForwardPasses
from inflight.execution.runner import ModelRunner
from inflight.execution.weights import load_weights
from inflight.models.registry import read_folder

BLOCK = 16
_SCALE = 0.02  # of trained weights, about


@dataclass(frozen=True, slots=True)
class Limits:
    """rows: most sequences at once. positions: of the longest. pass_tokens: of one pass. kv_tokens: of all together."""

    rows: int
    positions: int
    pass_tokens: int
    kv_tokens: int


class ShapesAlone:
    """A source of tensors that have shapes and no numbers, so that the host makes none: but for norms, which are 1."""

    def __contains__(self, name: str) -> bool:
        return name != "lm_head.weight"

    def tensor(self, name: str, shape: Sequence[int]) -> Array:
        if name.endswith("norm.weight"):
            return np.ones(shape, np.float32)
        return np.broadcast_to(np.zeros((), np.uint16), tuple(shape))

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        return self.tensor(name, shape)

    def pieces(self, name: str, shape: tuple[int, int]) -> Iterable[Array]:
        return (self.tensor(name, shape),)

    def release(self, name: str) -> None:
        """Release no memory: drawn tensors are not kept."""


class DrawingPacker(Packer):
    """Draws normal numbers on the device in the place of those that are not there."""

    def tensor(self, values: Array, dtype: torch.dtype | None = None) -> Tensor:
        if any(values.strides) or values.size < 2:
            return super().tensor(values, dtype)
        return torch.empty(values.shape, dtype=dtype or torch.bfloat16, device=self.device).normal_(0, _SCALE)


class DrawingBackend(TorchBackend):
    def __init__(self, device: MeasuredDevice, launcher: Launcher, buckets: Buckets, batch_invariant: bool) -> None:
        held = "bfloat16" if device.act == torch.bfloat16 else "float32"
        depth = 2 if device.is_gpu else 1
        super().__init__(held, device.device, launcher, 1, depth, buckets, batch_invariant)  # type: ignore[arg-type]
        self._packer = DrawingPacker(self._act, device.device)


class DrawnModel:
    """limits: what its own runner was made for."""

    def __init__(
        self,
        device: MeasuredDevice,
        launcher: Launcher,
        shape: dict[str, object],
        limits: Limits,
        quantization: Quantization = "none",
        graphs: Graphs | None = None,
        batch_invariant: bool = False,
    ) -> None:
        """graphs: how passes are captured; None: they are not. batch_invariant: the bits of a row
        may not depend on the rows beside it."""
        with tempfile.TemporaryDirectory() as folder:
            self.spec = read_folder(Path(write_config(Path(folder) / "shape", shape)), to_run=True)
        self.limits, self.quantization = limits, quantization
        several = 0 if states_of(self.spec) else min(GPU_GRAPH_TOKENS, limits.pass_tokens)
        sizes = NO_GRAPHS if graphs is None else GraphLimits(limits.rows, several)
        buckets = graph_buckets(sizes, batch_invariant)
        self.backend = DrawingBackend(device, launcher, buckets, batch_invariant)
        memory = MachineMemory(1 << 62, 1 << 62, "the device")  # what does not fit it says itself
        weights = load_weights(
            self.spec, ShapesAlone(), self.backend, limits.positions, quantization=quantization, memory=memory
        )
        self._weights, self._graphs = weights, graphs
        self.weight_bytes = weights.nbytes

    @cached_property
    def _own(self) -> tuple[ModelRunner, CapturedDecoder | None]:
        """When it is first asked for: not every part needs its memory."""
        return self.beside(self.limits)

    @property
    def runner(self) -> ModelRunner:
        return self._own[0]

    @property
    def captured(self) -> CapturedDecoder | None:
        """The runner's graphs."""
        return self._own[1]

    def beside(self, limits: Limits) -> tuple[ModelRunner, CapturedDecoder | None]:
        """Another runner over the same weights, with all other memory of its own; and its graphs, if there are any."""
        decoder = ForwardPasses(self.spec, self._weights, self.backend, limits.pass_tokens, GPU_LOGIT_ROWS)
        captured = None if self._graphs is None else CapturedDecoder(decoder, self._graphs, self.backend.buckets)
        blocks = -(-limits.kv_tokens // BLOCK)
        kinds = states_of(self.spec)
        snapshots = 2 * limits.rows if kinds else 0
        states = self.backend.state_cache(kinds, limits.rows + 1, snapshots) if kinds else None
        capacity = Capacity(
            blocks, BLOCK, limits.rows, limits.positions, self.spec.vocab_size, state_snapshots=snapshots
        )
        kv_cache = self.backend.kv_cache(kv_shape(self.spec, BLOCK), blocks + 1)  # one more, for padding
        return ModelRunner(captured or decoder, self.backend, kv_cache, capacity, states), captured

    def loop(self) -> EngineLoop:
        """A scheduler around it that has served nothing yet."""
        limits = self.limits
        settings = EngineSettings(
            max_num_seqs=limits.rows, max_num_batched_tokens=limits.pass_tokens, max_model_len=limits.positions
        )
        scheduler = scheduler_for(self.runner.capacity, settings, SchedulingSettings())
        return EngineLoop(scheduler, self.runner, MonotonicClock(), depth=self.backend.depth)
