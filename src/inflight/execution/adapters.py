"""Load adapters beside the steps: match a file's modules with packed matrices, pack them, fill their slots."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from inflight.core.types.plan import AdapterLoad, BatchPlan, Chunk, Transferred
from inflight.execution.backends.protocol import Adapter, Array, Backend, Delta, LowRank
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.checkpoints.family_names import LAYERS, FamilyTensors
from inflight.execution.checkpoints.lora_files import LoraFiles
from inflight.execution.packer import WeightSlice
from inflight.execution.step_progress import StepActivity
from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.spec import ModelSpec

log = logging.getLogger(__name__)

_OUTPUTS = 32  # that a packed A is filled up to
_RANKS = 8  # that ranks are filled up to, on a GPU
_RESTS = 12  # times as long as a matrix took, while steps are computed; shared out among the loads in flight
_LONGEST_REST = 0.02  # seconds


class _Found(NamedTuple):
    """A part of a packed matrix, and the module that changes it."""

    name: str
    slice: WeightSlice
    module: str


class AdapterMatrices:
    """Find the packed matrices that an adapter changes, by a family's names, and the rows of B in a matrix's order."""

    def __init__(self, model: ModelSpec, slices: Mapping[str, WeightSlice]) -> None:
        self._model, self._slices = model, slices

    def check(self, files: LoraFiles) -> None:
        """Raise ModelError for an adapter that this model cannot be computed with. Reads no matrix."""
        ups = _Ups(files, reads=False)
        named = self._named(ups, files)
        used = set()
        for found in self._found(named, files):
            self._rows(named, found, files)
            used.add(found.module)
        left = sorted(set(files.modules) - used)
        if left:
            raise ModelError(
                f"{files.folder} changes {shown(left[0])}"
                f"{f' and {len(left) - 1} others' if len(left) > 1 else ''}, which this model has not, or which is not "
                "multiplied with all tokens alike (an expert, the output projection); train it for the attention's and "
                "the MLP's linear modules."
            )

    def deltas(self, files: LoraFiles) -> Iterator[Delta]:
        """Yield changes one by one, as they are read. Raises ModelError as `check` does."""
        ups = _Ups(files, reads=True)
        named = self._named(ups, files)
        for _, alike in groupby(self._found(named, files), key=lambda found: id(found.slice.weight)):
            parts = list(alike)
            yield Delta(
                parts[0].slice.weight,
                tuple(LowRank(one.slice.first, files.down(one.module), self._rows(named, one, files)) for one in parts),
            )

    def max_bytes(self, rank: int, item: int) -> int:
        """Return the bytes of an adapter of this rank for every matrix, the largest there is. item: bytes of a
        number."""
        by_weight = groupby(self._slices.values(), key=lambda one: id(one.weight))
        numbers, rank = 0, -(-rank // _RANKS) * _RANKS
        for _, alike in by_weight:
            parts = list(alike)
            numbers += -(-rank * len(parts) // _OUTPUTS) * _OUTPUTS * parts[0].columns
            numbers += sum(rank * (-(-one.rows // _OUTPUTS) * _OUTPUTS) for one in parts)
        return numbers * item

    def _named(self, ups: _Ups, files: LoraFiles) -> FamilyTensors:
        layers = dict(self._model.names).get(LAYERS, LAYERS).removeprefix("model.")
        return FamilyTensors(self._model, ups, shown_by=f"{layers}.")

    def _found(self, named: FamilyTensors, files: LoraFiles) -> Iterable[_Found]:
        for name, one in self._slices.items():
            if name in named:
                yield _Found(name, one, named.stored(name).removesuffix(".weight"))

    def _rows(self, named: FamilyTensors, found: _Found, files: LoraFiles) -> Array:
        """Return B's rows of a part, [rows, rank]."""
        shape, matrix = files.modules[found.module], found.slice
        if shape.columns != matrix.columns:
            raise _of_another_model(files, found.module, f"{shape.columns:,} inputs", matrix.columns)
        return np.ascontiguousarray(named.tensor(found.name, (matrix.rows, shape.rank)))


class _Ups:
    """A checkpoint's tensors, with an adapter's B instead of each matrix."""

    def __init__(self, files: LoraFiles, reads: bool) -> None:
        """Hold an adapter's files. reads: whether matrices are read; else all are zeros."""
        self._files, self._reads = files, reads

    def __contains__(self, name: str) -> bool:
        """Return whether a matrix is changed, or any of a beginning of names, which ends with a dot."""
        modules = self._files.modules
        if name.endswith("."):
            return any(module.startswith(name) for module in modules)
        return name.endswith(".weight") and name.removesuffix(".weight") in modules

    def tensor(self, name: str, shape: Sequence[int]) -> Array:
        module = name.removesuffix(".weight")
        found = self._files.modules[module]
        if found.rows != shape[0]:
            raise _of_another_model(self._files, module, f"{found.rows:,} outputs", shape[0])
        return self._files.up(module) if self._reads else np.broadcast_to(np.float32(0), (found.rows, found.rank))

    def matrix(self, name: str, shape: tuple[int, int]) -> Array:
        return self.tensor(name, shape)

    def pieces(self, name: str, shape: tuple[int, int]) -> Iterable[Array]:
        return (self.tensor(name, shape),)

    def release(self, name: str) -> None:
        """Do nothing: a file's views release themselves."""


def _of_another_model(files: LoraFiles, module: str, size: str, own: int) -> ModelError:
    base = f" ({files.config.base})" if files.config.base else ""
    return ModelError(
        f"{files.folder} changes {shown(module)} of {size}, but this model's has {own:,}: the adapter is of another "
        f"model{base}."
    )


class AdapterLoader:
    """Load one adapter at a time, matrix by matrix, on a thread of its own.

    While steps are computed, the thread rests between two matrices for longer than these took, since it uses the cores
    that the steps do. The more loads wait, the shorter it rests, or requests would come faster than their adapters.
    """

    def __init__(self, matrices: AdapterMatrices, backend: Backend, batch: InputBatch, steps: StepActivity):
        self._matrices, self._backend, self._batch, self._steps = matrices, backend, batch, steps
        self._thread = ThreadPoolExecutor(1, "adapters")
        self._loads: dict[int, tuple[AdapterLoad, Future[Adapter]]] = {}  # by transfer_id

    def begin(self, plan: BatchPlan) -> None:
        for load in plan.adapter_loads:
            self._batch.set_adapter(load.slot, None)
            self._loads[load.transfer_id] = load, self._thread.submit(self._packed, load)

    def side_by_side(self, chunks: Sequence[Chunk]) -> Sequence[Chunk]:
        """Return the chunks with those of one adapter next to each other, so that a pass reads each once."""
        slots: list[int] = self._batch.adapter_slots.tolist()
        return sorted(chunks, key=lambda chunk: slots[chunk.row]) if max(slots) >= 0 else chunks

    def poll(self) -> tuple[Transferred, ...] | None:
        """Return loads whose adapters are in their slots now, or that failed; None where none is in flight."""
        if not self._loads:
            return None
        ended = []
        for transfer_id, (load, packed) in tuple(self._loads.items()):
            if packed.done():
                del self._loads[transfer_id]
                ended.append(self._placed(load, packed))
        return tuple(ended)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _packed(self, load: AdapterLoad) -> Adapter:
        files = LoraFiles(Path(load.adapter.path))
        self._matrices.check(files)
        return self._backend.pack_adapter(self._resting(self._matrices.deltas(files)))

    def _resting(self, deltas: Iterable[Delta]) -> Iterator[Delta]:
        began = time.perf_counter()
        for delta in deltas:
            yield delta
            loads = max(1, len(self._loads))
            self._steps.rest(time.perf_counter() - began, _RESTS / loads, _LONGEST_REST / loads)
            began = time.perf_counter()

    def _placed(self, load: AdapterLoad, packed: Future[Adapter]) -> Transferred:
        name = load.adapter.name
        try:
            self._batch.set_adapter(load.slot, packed.result())
        except ModelError as error:
            return Transferred(load.transfer_id, f"The adapter {name!r} could not be loaded: {error}")
        except Exception as fault:  # no step ends for it
            log.error("adapter %r could not be loaded", name, exc_info=fault)
            return Transferred(
                load.transfer_id, f"The adapter {name!r} could not be loaded ({type(fault).__name__}: {fault})."
            )
        return Transferred(load.transfer_id)
