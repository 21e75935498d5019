"""Results of a pass on their way to the host: pinned memory that is filled when the pass's own event has passed, while
the device may be at the next pass."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inflight.core.types.plan import Chunk
from inflight.execution.backends.protocol import Array, PassResult, ScoredBatch
from inflight.execution.backends.torch.sampling_tensors import Drawn, Scores
from inflight.execution.batch.results import PassOutcome


class DeviceOutcome(PassOutcome):
    """Filled while a pass is launched."""

    def __init__(self, chunks: Sequence[Chunk], device: torch.device) -> None:
        super().__init__(chunks)
        self._device = device
        self._event: torch.cuda.Event | None = None

    def finish(self) -> PassOutcome:
        """Note that everything is launched."""
        if self._device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(self._device))
            return self
        return super().finish()

    def result(self) -> PassResult:
        if self._event is not None:
            self._event.synchronize()
            self.finished = time.perf_counter()
        return super().result()


def fetched(values: Tensor) -> Array:
    """Return host memory of the values, to be read when an event behind this call has passed."""
    if values.device.type != "cpu":
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        values = host.copy_(values, non_blocking=True)
    found: Array = values.numpy()
    return found


def fetched_scores(scores: Scores | Drawn) -> ScoredBatch | None:
    """Return log-probabilities likewise; None where no row wants any."""
    if scores.logprobs is None:
        return None
    logprobs = fetched(scores.logprobs)
    if scores.top_ids is None or scores.top_logprobs is None:
        return ScoredBatch(logprobs, np.zeros((len(logprobs), 0), np.int32), np.zeros((len(logprobs), 0), np.float32))
    return ScoredBatch(logprobs, fetched(scores.top_ids), fetched(scores.top_logprobs))
