"""Adapters come and go beside the steps: read, packed and put into their slots.

One is loaded at a time, matrix by matrix, on a thread of its own. While steps are computed it rests between two
matrices for longer than these took, since it uses the cores that the steps do: so a step's next token is late by no
more than a small part of a step. The more loads wait behind it the shorter it rests, or requests would come faster than
their adapters.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from inflight.core.types.plan import AdapterLoad, BatchPlan, Chunk, Transferred
from inflight.execution.adapters.adapter_matrices import AdapterMatrices
from inflight.execution.backends.protocol import Adapter, Backend, Delta
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.checkpoints.lora_files import LoraFiles
from inflight.execution.step_activity import StepActivity
from inflight.models.errors import ModelError

log = logging.getLogger(__name__)

_RESTS = 12  # times as long as a matrix took, while steps are computed; shared out among the loads in flight
_LONGEST_REST = 0.02  # seconds


class AdapterLoader:
    def __init__(self, matrices: AdapterMatrices, backend: Backend, batch: InputBatch, steps: StepActivity):
        self._matrices, self._backend, self._batch, self._steps = matrices, backend, batch, steps
        self._thread = ThreadPoolExecutor(1, "adapters")
        self._under_way: dict[int, tuple[AdapterLoad, Future[Adapter]]] = {}  # by transfer_id

    def begin(self, plan: BatchPlan) -> None:
        """Begin a plan's adapter loads."""
        for load in plan.adapter_loads:
            self._batch.place_adapter(load.slot, None)
            self._under_way[load.transfer_id] = load, self._thread.submit(self._packed, load)

    def side_by_side(self, chunks: Sequence[Chunk]) -> Sequence[Chunk]:
        """Return the chunks with those of one adapter next to each other, so that a pass reads each once."""
        slots: list[int] = self._batch.adapter_slots.tolist()
        return sorted(chunks, key=lambda chunk: slots[chunk.row]) if max(slots) >= 0 else chunks

    def poll(self) -> tuple[Transferred, ...] | None:
        """Return loads whose adapters are in their slots now, or that failed; None where none is in flight."""
        if not self._under_way:
            return None
        ended = []
        for transfer_id, (load, packed) in tuple(self._under_way.items()):
            if packed.done():
                del self._under_way[transfer_id]
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
            loads = max(1, len(self._under_way))
            self._steps.rest(time.perf_counter() - began, _RESTS / loads, _LONGEST_REST / loads)
            began = time.perf_counter()

    def _placed(self, load: AdapterLoad, packed: Future[Adapter]) -> Transferred:
        name = load.adapter.name
        try:
            self._batch.place_adapter(load.slot, packed.result())
        except ModelError as error:
            return Transferred(load.transfer_id, f"The adapter {name!r} could not be loaded: {error}")
        except Exception as fault:  # whatever it is, it need not end a step
            log.error("adapter %r could not be loaded", name, exc_info=fault)
            return Transferred(
                load.transfer_id, f"The adapter {name!r} could not be loaded ({type(fault).__name__}: {fault})."
            )
        return Transferred(load.transfer_id)
