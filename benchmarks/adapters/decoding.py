"""An engine that keeps its rows decoding, each with an adapter or none, and newcomers that come between steps.

Knows requests and steps; not what is compared. No row's output ends, so that steps of two engines have the same rows
with the same contexts. A newcomer yields a few tokens.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from benchmarks.engines import Model
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.adapter import Adapter
from inflight.core.types.events import FinishedEvent
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams

BLOCK, PROMPT = 16, 16
NEWCOMERS = 4  # rows that are kept for them
_ROW = SamplingParams(temperature=1.0, max_tokens=100_000, ignore_eos=True)
_NEWCOMER = SamplingParams(temperature=1.0, max_tokens=1, ignore_eos=True)


def context(steps: int) -> int:
    """Tokens of a row after so many steps, a few before they count included; whole blocks."""
    return -(-(PROMPT + steps + 256) // BLOCK) * BLOCK


def blocks(rows: int, steps: int) -> int:
    return rows * context(steps) // BLOCK + 16 * NEWCOMERS


class Decoding:
    """So many rows, dealt out to the adapters."""

    def __init__(
        self, model: Model, rows: int, steps: int, adapters: Sequence[Adapter], slots: int | None = None
    ) -> None:
        """steps: that will be asked for. slots: None: one for each adapter."""
        settings = EngineSettings(
            max_model_len=context(steps),
            num_blocks=blocks(rows, steps),
            max_num_seqs=rows + NEWCOMERS,
            max_num_batched_tokens=rows + 4 * PROMPT,
            enable_prefix_caching=False,
        )
        slots = len(adapters) if slots is None else slots
        self._loop = model.loop(settings, SchedulingSettings(speculation="off"), adapter_slots=slots)
        self._chance, self._added = random.Random(rows), 0
        self._random = range(model.vocab_size - 1)
        self.offered = self.ended = 0
        for row in range(rows):
            self._loop.add(self._request(_ROW, adapters[row % len(adapters)] if adapters else None))
        while self._loop.snapshot().running < rows:
            self._loop.advance()
        for _ in range(PROMPT):
            self._loop.advance()

    def steps(self, count: int) -> list[float]:
        """Seconds of each."""
        return [self.step() for _ in range(count)]

    def step(self) -> float:
        began = time.perf_counter()
        events = self._loop.advance()
        assert isinstance(events, list)
        for event in events:
            if isinstance(event, FinishedEvent):
                assert event.finishes[0].reason == "length", event
                self.ended += 1
        return time.perf_counter() - began

    def offer(self, adapter: Adapter | None) -> None:
        """A newcomer."""
        self.offered += 1
        self._loop.add(self._request(_NEWCOMER, adapter))

    def _request(self, params: SamplingParams, adapter: Adapter | None) -> Request:
        self._added += 1
        prompt = tuple(self._chance.choices(self._random, k=PROMPT))
        return Request(request_id=str(self._added), prompt_token_ids=prompt, params=params, seed=7, adapter=adapter)
