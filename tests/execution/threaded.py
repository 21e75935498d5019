"""A backend that computes beside its caller: passes of another backend, one after the other, in a thread of their own.

Knows the protocol alone: an operation is written down and run later, as a device's stream would run it, since no caller
looks into an activation. A fault of a pass is in its result, and its slots are discarded before anything that
was submitted behind it runs.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from inflight.core.types.plan import Capacity, Chunk, NewRequest
from inflight.execution.backends.protocol import Backend, PassResult
from inflight.execution.batch.input_batch import InputBatch


class Threaded:
    depth = 2

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.ready = threading.Event()  # cleared, passes wait
        self.ready.set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __getattr__(self, name: str) -> Any:
        """Packing and allocation, and what tests replace."""
        return getattr(self._inner, name)

    def copy_blocks(self, *arguments: Any) -> None:
        self._work.put(lambda: self._inner.copy_blocks(*arguments))

    def input_batch(self, capacity: Capacity, padding_block: int, states: Any = None) -> QueuedBatch:
        return QueuedBatch(
            capacity, padding_block, self._inner.input_batch(capacity, padding_block, states), self._work
        )

    def prepare(self, batch: QueuedBatch, kv_cache: Any, chunks: Sequence[Chunk]) -> Written:
        def begin() -> Any:
            return self._inner.prepare(batch.mirror, kv_cache, chunks)

        def void() -> None:
            batch.mirror.discard([chunk.row for chunk in chunks])

        return Written(self._work, self.ready, begin, void, sum(chunk.length for chunk in chunks))

    def end(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while work := self._work.get():
            work()


class QueuedBatch(InputBatch):
    """A batch whose mirror is the inner backend's, changed behind the passes that were submitted before."""

    def __init__(self, capacity: Capacity, padding_block: int, mirror: InputBatch, work: Any) -> None:
        super().__init__(capacity, padding_block)
        self.mirror, self._work = mirror, work

    def update(self, chunks: Sequence[Chunk], new: Sequence[NewRequest] = (), freed: Sequence[int] = ()) -> None:
        super().update(chunks, new, freed)
        self._work.put(lambda: self.mirror.update(chunks, new, freed))

    def discard(self, slots: Sequence[int]) -> None:
        super().discard(slots)
        self._work.put(lambda: self.mirror.discard(slots))


class Written:
    """The operations of a pass, to be run."""

    def __init__(self, work: Any, ready: Any, begin: Callable[[], Any], void: Callable[[], None], tokens: int) -> None:
        self._work, self._ready, self._begin, self._void, self.num_tokens = work, ready, begin, void, tokens
        self._operations: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self._operations.append((name, arguments))

    def finish(self) -> Future[PassResult]:
        future: Future[PassResult] = Future()

        def run() -> None:
            self._ready.wait()
            try:
                batch = self._begin()
                for name, arguments in self._operations:
                    getattr(batch, name)(*arguments)
                future.set_result(batch.finish().result())
            except Exception as fault:
                self._void()
                future.set_exception(fault)

        self._work.put(run)
        return future
