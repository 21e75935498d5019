"""The backend over PyTorch: packs weights, makes a device's memory, and begins passes over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from inflight.core.types.plan import Capacity, Chunk
from inflight.execution.backends.protocol import (
    Array,
    DeviceMemory,
    DType,
    HostMemory,
    KVCache,
    KVShape,
    LayerState,
    PendingCopy,
    StateCache,
)
from inflight.execution.backends.torch import memory
from inflight.execution.backends.torch.buckets import NO_BUCKETS, Buckets
from inflight.execution.backends.torch.capture import Graphs
from inflight.execution.backends.torch.device import first_line, gpu_memory, gpu_peak_bytes
from inflight.execution.backends.torch.device_batch import mirrored
from inflight.execution.backends.torch.forward_pass import TorchPass
from inflight.execution.backends.torch.launcher import Launcher, TensorCall, compiled
from inflight.execution.backends.torch.memory import DeviceActivation, DeviceKVCache, DeviceStates
from inflight.execution.backends.torch.packing import Packer, WeightPacking
from inflight.execution.backends.torch.staging import Staging
from inflight.execution.backends.torch.streams import CopyStream
from inflight.execution.backends.torch.upload import Upload
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.program import Program


class TorchBackend(WeightPacking):
    """depth: 2 on a GPU, where a pass is in flight when `finish` returns."""

    def __init__(
        self,
        dtype: DType,
        device: torch.device,
        launcher: Launcher,
        threads: int = 1,
        depth: int = 1,
        buckets: Buckets = NO_BUCKETS,
        batch_invariant: bool = False,
        packs_fp8: bool = True,
        copies: CopyStream | None = None,
    ) -> None:
        """
        Args:
            launcher: Of operations.
            buckets: Sizes that passes are filled up to, for graphs of them.
            batch_invariant: The bits of a row may not depend on the rows beside it.
            packs_fp8: Whether the device multiplies such numbers.
            copies: The stream of weights and blocks that are copied beside the passes. None: the passes' own.
        """
        if dtype not in ("bfloat16", "float32"):
            raise ValueError(f"dtype must be bfloat16 or float32, not {dtype!r}")
        self.name = f"torch {torch.__version__} on {device}"
        self.dtype: DType = dtype
        self.threads = threads
        self.depth, self.batch_invariant = depth, batch_invariant
        self.packs_fp8 = packs_fp8
        self.device, self.buckets, self._launcher = device, buckets, launcher
        self.graphs: Graphs | None = None  # captures passes; set when a decoder first needs it
        self._act = torch.bfloat16 if dtype == "bfloat16" else torch.float32
        self._copies, self.asynchronous_copies = copies, copies is not None
        staging = Staging(copies) if copies is not None and device.type == "cuda" else None
        super().__init__(Packer(self._act, device, staging))
        self._upload = Upload(device)

    # -- memory -------------------------------------------------------------------------------------------------------
    def bytes_per_block(self, shape: KVShape) -> int:
        return memory.bytes_per_block(shape, self._act)

    def kv_cache(self, shape: KVShape, num_blocks: int, host_blocks: int = 0) -> DeviceKVCache:
        return DeviceKVCache(shape, num_blocks, self._act, self.device, host_blocks)

    def own_memory(self) -> DeviceMemory | None:
        return None if self.device.type == "cpu" else gpu_memory(self.device)

    def peak_bytes(self, run: Callable[[], None]) -> int:
        if self.device.type == "cuda":
            return gpu_peak_bytes(self.device, run)
        run()
        return 0

    def block_memory(self, kv_cache: KVCache) -> memoryview | None:
        assert isinstance(kv_cache, DeviceKVCache)
        return kv_cache.host_memory()

    def host_memory(self, kv_cache: KVCache, states: StateCache | None, snapshots: int) -> HostMemory | None:
        assert isinstance(kv_cache, DeviceKVCache)
        if self._copies is None:
            return None
        if states is None:
            return HostMemory(kv_cache.host_blocks_memory(), None, lambda sources, destinations: None)
        assert isinstance(states, DeviceStates)
        beside = states.beside(snapshots)
        copy = partial(self._copy_snapshots, states, beside)
        return HostMemory(kv_cache.host_blocks_memory(), beside.numpy().data.cast("B"), copy)

    def bytes_per_state(self, layers: Sequence[LayerState | None]) -> int:
        return memory.bytes_per_state(layers, self._act)

    def state_cache(self, layers: Sequence[LayerState | None], rows: int, snapshots: int) -> DeviceStates:
        return DeviceStates(layers, rows, snapshots, self._act, self.device)

    def activation(self, rows: int, width: int, kind: Literal["act", "float32"]) -> DeviceActivation:
        dtype = self._act if kind == "act" else torch.float32
        return DeviceActivation(torch.empty((rows, width), dtype=dtype, device=self.device))

    def compile(self, program: Program) -> tuple[TensorCall, ...]:
        return compiled(program)

    def move_rows(self, source: Any, rows: Array, target: Any, places: Array) -> None:
        of, to = self._upload.send([rows, places])
        target.tensor.index_copy_(0, to.long(), source.tensor.index_select(0, of))

    def spread(self, token_ids: Array, vocab_size: int, most: int) -> Callable[[Any, int], DeviceActivation]:
        at = torch.from_numpy(token_ids).to(self.device)
        all_logits = self.activation(most, vocab_size, "float32")

        def spread(logits: Any, rows: int) -> DeviceActivation:
            all_logits.take(rows).fill_(-torch.inf).index_copy_(1, at, logits.tensor[:rows])
            return all_logits

        return spread

    def input_batch(self, capacity: Capacity, padding_block: int, states: StateCache | None = None) -> InputBatch:
        assert states is None or isinstance(states, DeviceStates)
        return mirrored(capacity, padding_block, states, self.device, self._upload, self.buckets)

    # -- per step ---------------------------------------------------------------------------------------------------
    def copy_blocks(self, kv_cache: KVCache, sources: Sequence[int], destinations: Sequence[int]) -> PendingCopy | None:
        assert isinstance(kv_cache, DeviceKVCache)
        copies = kv_cache.copies(sources, destinations)
        if self._copies is None:
            for target, source in copies:
                target.copy_(source)
            return None
        self._copies.follow_steps()  # steps in flight may still write what is stored, or read what is loaded over
        for target, source in copies:
            self._copies.copy(target, source)
        return self._copies.mark()

    def _copy_snapshots(
        self, states: DeviceStates, beside: Tensor, sources: Sequence[int], destinations: Sequence[int]
    ) -> PendingCopy:
        assert self._copies is not None
        self._copies.follow_steps()  # steps in flight may still write what is stored, or read what is loaded over
        for source, destination in zip(sources, destinations, strict=True):
            self._copies.copy(states.snapshot(destination, beside), states.snapshot(source, beside))
        return self._copies.mark()

    def wait(self) -> None:
        if self._copies is not None:
            self._copies.mark().synchronize()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def failure(self) -> str | None:
        """After some faults (memory that cannot be corrected, an address out of bounds, a kernel that hangs) CUDA
        answers every call of this process with the same error."""
        try:
            self.wait()
        except RuntimeError as error:
            return first_line(error)
        return None

    def prepare(self, batch: InputBatch, kv_cache: KVCache, chunks: Sequence[Chunk]) -> Any:
        """Return a `TorchPass`; the type is Any, since its operations take this backend's activations only, where the
        protocol allows any."""
        assert isinstance(kv_cache, DeviceKVCache)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # of this thread: kernels are launched on it
        start = batch.mirror.begin(batch, chunks, kv_cache.device_blocks)
        return TorchPass(self._launcher, start, kv_cache, batch, chunks, self._upload, self._act, self.batch_invariant)
