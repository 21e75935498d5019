"""Runner of this engine: texts one behind another in each step, or as `dynamic` batches, padded."""

from __future__ import annotations

import os
import time

import numpy as np

from benchmarks.embeddings.runner import Job, serve
from inflight.build import build_engine
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.events import FinishedEvent, PooledEvent
from inflight.core.types.plan import WaitUntil
from inflight.core.types.sampling import PoolingParams


class Inflight:
    def __init__(self, job: Job):
        padded = os.environ.get("INFLIGHT_PADDED")
        settings = EngineSettings(
            model=job.model,
            dtype=job.precision,  # type: ignore[arg-type]
            quantization=job.quantization,  # type: ignore[arg-type]
            threads=job.threads,
            max_num_batched_tokens=None if padded else 2048,
            max_num_seqs=256,
        )
        scheduling = SchedulingSettings.of(strategy="dynamic", batch_size=32, window=0.005) if padded else None
        self._engine = build_engine(settings, scheduling)
        self.name = f"inflight {self._engine.settings['kernels'].value}"
        self._number = 0

    def close(self) -> None:
        self._engine.loop.close()

    def all(self, given: list[np.ndarray]) -> list[np.ndarray]:
        first = self._number
        for text in given:
            self._add(text)
        found: dict[str, tuple[float, ...]] = {}
        for event in self._engine.loop.run():
            if isinstance(event, PooledEvent):
                found[event.request_id] = event.vector
        return [np.array(found[str(first + place)], np.float32) for place in range(len(given))]

    def online(self, given: list[np.ndarray], due: np.ndarray) -> list[float]:
        first, began = self._number, time.perf_counter()
        latencies, come, left = [0.0] * len(given), 0, len(given)
        while left:
            now = time.perf_counter() - began
            while come < len(given) and due[come] <= now:
                self._add(given[come])
                come += 1
            if come == len(given) - left:
                time.sleep(max(0.0, due[come] - now))
                continue
            outcome = self._engine.loop.advance()
            if isinstance(outcome, WaitUntil):
                continue
            done = time.perf_counter() - began
            for event in outcome:
                if isinstance(event, FinishedEvent):
                    place = int(event.request_id) - first
                    latencies[place] = done - due[place]
                    left -= 1
        return latencies

    def _add(self, text: np.ndarray) -> None:
        loop = self._engine.loop
        params = PoolingParams()
        loop.add(self._engine.prompts.pooled(str(self._number), tuple(text.tolist()), params, loop.clock.now()))
        self._number += 1


if __name__ == "__main__":
    serve(Inflight)
