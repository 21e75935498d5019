"""The backend over PyTorch: what it packs and keeps on a device, and whom it asks to compute.

Knows the parts of this folder; each has its own file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from inflight.core.types.plan import Capacity, Chunk
from inflight.execution.backends.matrices import BlockMatrix, Matrix, Rows, alike, in_order
from inflight.execution.backends.packed_adapter import PackedAdapter
from inflight.execution.backends.protocol import (
    Array,
    Delta,
    DeviceMemory,
    DType,
    Gating,
    Hold,
    KVCache,
    KVShape,
    LayerState,
    PendingCopy,
    RopeTable,
    Routing,
    StateCache,
)
from inflight.execution.backends.torch import memory
from inflight.execution.backends.torch.adapters import filled_up
from inflight.execution.backends.torch.buckets import NO_BUCKETS, Buckets
from inflight.execution.backends.torch.capture import Graphs
from inflight.execution.backends.torch.device import first_line, gpu_memory, gpu_peak_bytes
from inflight.execution.backends.torch.device_batch import mirrored
from inflight.execution.backends.torch.eager.products import quantize_int8
from inflight.execution.backends.torch.forward_pass import TorchPass
from inflight.execution.backends.torch.memory import DeviceActivation, DeviceKVCache, DeviceStates
from inflight.execution.backends.torch.operations import DeviceOperations
from inflight.execution.backends.torch.packing import Packer, nbytes, side_by_side, stacked
from inflight.execution.backends.torch.staging import Staging
from inflight.execution.backends.torch.streams import CopyStream
from inflight.execution.backends.torch.tensors import RopeTensors
from inflight.execution.backends.torch.upload import Upload
from inflight.execution.backends.torch.weights import (
    DeviceExperts,
    DeviceGateUp,
    DeviceHeads,
    DeviceLinear,
    DeviceTable,
    HeldMatrix,
    Int8Matrix,
    PlainMatrix,
    RoutingTensors,
)
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.program import Program


class TorchBackend:
    """depth: 2 on a GPU, where a pass is in flight when `finish` returns."""

    def __init__(
        self,
        dtype: DType,
        device: torch.device,
        operations: DeviceOperations,
        threads: int = 1,
        depth: int = 1,
        buckets: Buckets = NO_BUCKETS,
        batch_invariant: bool = False,
        packs_fp8: bool = True,
        copies: CopyStream | None = None,
    ) -> None:
        """buckets: sizes that passes are filled up to, for graphs of them.
        batch_invariant: whether `operations` are. packs_fp8: whether the device multiplies such numbers. copies: on
        which weights and blocks come and go beside the passes; None: on their stream, as a CPU has only that."""
        if dtype not in ("bfloat16", "float32"):
            raise ValueError(f"dtype must be bfloat16 or float32, not {dtype!r}")
        self.name = f"torch {torch.__version__} on {device}"
        self.dtype: DType = dtype
        self.threads = threads
        self.depth, self.batch_invariant = depth, batch_invariant
        self.packs_fp8 = packs_fp8
        self.device, self.buckets, self._operations = device, buckets, operations
        self.graphs: Graphs | None = None  # captures passes; set when a decoder first needs it
        self._act = torch.bfloat16 if dtype == "bfloat16" else torch.float32
        self._copies, self.asynchronous_copies = copies, copies is not None
        self._staging = Staging(copies) if copies is not None and device.type == "cuda" else None
        self._packer = Packer(self._act, device, self._staging)
        self._upload = Upload(device)

    # -- once, at load ----------------------------------------------------------------------------------------------
    def pack_vector(self, values: Array) -> torch.Tensor:
        return self._packer.tensor(values, torch.float32)

    def pack_rope(self, table: RopeTable) -> RopeTensors:
        table = table.whole()
        scale = None if table.q_scale is None else self.pack_vector(table.q_scale)
        return RopeTensors(self.pack_vector(table.cos), self.pack_vector(table.sin), scale)

    def pack_linear(
        self, parts: Sequence[Matrix], bias: Array | None = None, hold: Hold = "act", group: int = 32
    ) -> DeviceLinear:
        held = stacked([self._packer.held(part, hold, group) for part in parts])
        rows, columns = sum(part.shape[0] for part in parts), int(parts[0].shape[1])
        vector = None if bias is None else self.pack_vector(bias)
        size = sum(nbytes(one) for one in held) + (0 if vector is None else int(vector.nbytes))
        return DeviceLinear(held, rows, columns, size, vector)

    def pack_gate_up(
        self, gate: Matrix, up: Matrix, hold: Hold = "act", group: int = 32, bias: Array | None = None
    ) -> DeviceGateUp:
        both = alike(gate, up, hold)
        return DeviceGateUp(self.pack_linear(both, None if bias is None else bias.reshape(-1), hold, group))

    def pack_experts(
        self,
        gate_up: Sequence[DeviceGateUp],
        down: Sequence[DeviceLinear],
        routing: Routing,
        gating: Gating = "silu",
    ) -> DeviceExperts:
        if not len(gate_up) == len(down) >= routing.top_k:
            raise ValueError(
                f"{len(gate_up)} and {len(down)} matrices of experts, of which a token passes {routing.top_k}"
            )
        inward = [one.both for one in gate_up]
        return DeviceExperts(
            side_by_side([_only(one) for one in inward]),
            side_by_side([_only(one) for one in down]),
            _biases(inward),
            _biases(down),
            _routing(routing, self.pack_vector),
            gating,
            len(down),
            sum(one.nbytes for one in (*inward, *down)),
        )

    def pack_heads(self, weights: Sequence[DeviceLinear]) -> DeviceHeads:
        matrix = side_by_side([_only(one) for one in weights])
        return DeviceHeads(matrix, len(weights), weights[0].rows, weights[0].columns, nbytes(matrix))

    def pack_table(self, table: Matrix, hold: Hold = "act", group: int = 32) -> DeviceTable:
        linear = self.pack_linear([in_order(table)], hold=hold, group=group)
        return DeviceTable(linear.parts[0], linear.rows, linear.columns, linear.nbytes, linear)

    def pack_rows(self, pieces: Iterable[Rows], rows: int, columns: int, share: int = 0) -> DeviceTable:
        if share and columns % share:
            raise ValueError(f"rows of {columns} columns have no equal shares of {share}")
        values = torch.empty((rows, columns), dtype=torch.int8 if share else self._act, device=self.device)
        scales = torch.empty((rows, columns // share if share else 0), dtype=torch.float32, device=self.device)
        end, widths = 0, {columns}
        for piece in pieces:
            taken = self._packer.plain(piece.numbers() if isinstance(piece, BlockMatrix) else piece, act=not share)
            begin, end = end, end + len(taken)
            widths.add(taken.shape[1])
            if end > rows or len(widths) > 1:
                break
            if share:
                codes, of_shares = quantize_int8(taken.reshape(-1, share))
                values[begin:end], scales[begin:end] = codes.view(-1, columns), of_shares.view(-1, columns // share)
            else:
                values[begin:end] = taken
        if end != rows or len(widths) > 1:
            raise ValueError(
                f"the pieces of a table are {end} rows of {' and '.join(map(str, sorted(widths)))} columns, not "
                f"{[rows, columns]}"
            )
        matrix = Int8Matrix(values, scales[:, :0]) if share else PlainMatrix(values)
        size = int(values.nbytes + scales.nbytes)
        return DeviceTable(matrix, rows, columns, size, share_scales=scales if share else None)

    def pack_adapter(self, deltas: Iterable[Delta]) -> PackedAdapter[torch.Tensor]:
        """Beside steps: without the staging buffers, which are large and were given back."""
        packer = replace(self._packer, staging=None)
        return PackedAdapter(map(filled_up, deltas), packer.plain)

    def finish_packing(self) -> None:
        if self._staging is not None:
            self._staging.close()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # what packing needed beside is in many pieces, and the KV cache is one

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

    def bytes_per_state(self, layers: Sequence[LayerState | None]) -> int:
        return memory.bytes_per_state(layers, self._act)

    def state_cache(self, layers: Sequence[LayerState | None], rows: int, snapshots: int) -> DeviceStates:
        return DeviceStates(layers, rows, snapshots, self._act, self.device)

    def activation(self, rows: int, width: int, kind: Literal["act", "float32"]) -> DeviceActivation:
        dtype = self._act if kind == "act" else torch.float32
        return DeviceActivation(torch.empty((rows, width), dtype=dtype, device=self.device))

    def compile(self, program: Program) -> Program:
        """Return the program as it is."""
        return program

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
        return TorchPass(self._operations, start, kv_cache, batch, chunks, self._upload)


def _routing(routing: Routing, pack: Callable[[Array], torch.Tensor]) -> RoutingTensors:
    correction, scale = (None if one is None else pack(one) for one in (routing.correction, routing.expert_scale))
    return RoutingTensors(
        routing.top_k,
        routing.scores,
        routing.renormalize,
        routing.sum_offset,
        routing.jitter,
        correction,
        routing.groups,
        routing.top_groups,
        routing.group_best,
        routing.scale,
        scale,
    )


def _only(linear: DeviceLinear) -> HeldMatrix:
    if len(linear.parts) > 1:
        raise ValueError(f"a matrix that is held in {len(linear.parts)} ways")
    return linear.parts[0]


def _biases(linears: Sequence[DeviceLinear]) -> torch.Tensor | None:
    """float32[X, N]."""
    found = [one.bias for one in linears if one.bias is not None]
    if not found:
        return None
    if len(found) < len(linears):
        raise ValueError(f"{len(found)} of {len(linears)} matrices have a bias")
    return torch.stack(found)
