"""A pass of the native backend, and the programs that it runs: each is one call of the compiled module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from inflight.core.types.plan import Chunk
from inflight.execution.backends.host import HostBackend, HostPass
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.batch.pass_layout import PassInputs
from inflight.execution.program import Call

if TYPE_CHECKING:
    from inflight.execution.backends.native.recording import PassRecorder


class NativeProgram(NamedTuple):
    """A program and the operations that it was compiled from.

    Attributes:
        compiled: The module's `Program`.
        calls: In the same order.
    """

    compiled: Any
    calls: tuple[Call, ...]


class NativePass(HostPass):
    """A pass that the compiled module has prepared."""

    def __init__(
        self,
        prepared: Any,
        backend: HostBackend[Any],
        inputs: PassInputs,
        batch: InputBatch,
        chunks: Sequence[Chunk],
        recorder: PassRecorder | None = None,
    ):
        super().__init__(backend, inputs, batch, chunks)
        self._prepared, self._recorder = prepared, recorder

    def run(self, program: NativeProgram, places: Sequence[int] = (), texts: Sequence[range] = ()) -> None:
        firsts, ends = [text.start for text in texts], [text.stop for text in texts]
        if self._recorder is None:
            program.compiled.run(self._prepared, places, firsts, ends)
            return
        with self._recorder.recorded(program.calls):
            program.compiled.run(self._prepared, places, firsts, ends)
