"""An engine that keeps its rows decoding, and newcomers that come between steps.

No row's output ends, so that steps of two engines have the same rows with the same contexts.
"""

from __future__ import annotations

import random
import time
from typing import Any

from inflight.config.engine import EngineSettings
from inflight.core.types.events import FinishedEvent
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.loop import EngineLoop

BLOCK, PROMPT = 16, 16
NEWCOMERS = 4  # rows that are kept for them
ROW = SamplingParams(temperature=1.0, max_tokens=100_000, ignore_eos=True)
NEWCOMER = SamplingParams(temperature=1.0, max_tokens=1, ignore_eos=True)
_FIRST = 256  # tokens of a row before steps count, at most


def context(steps: int) -> int:
    """Tokens of a row after so many steps, a few before they count included; whole blocks."""
    return -(-(PROMPT + steps + _FIRST) // BLOCK) * BLOCK


def blocks(rows: int, steps: int) -> int:
    return rows * context(steps) // BLOCK + 16 * NEWCOMERS


def settings(rows: int, steps: int) -> EngineSettings:
    return EngineSettings(
        max_model_len=context(steps),
        num_blocks=blocks(rows, steps),
        max_num_seqs=rows + NEWCOMERS,
        max_num_batched_tokens=rows + 4 * PROMPT,
        enable_prefix_caching=False,
    )


class Decoding:
    """offered, ended: newcomers, and those of them that have their token."""

    def __init__(self, loop: EngineLoop, rows: int, vocab_size: int) -> None:
        self.offered = self.ended = 0
        self._loop, self._rows = loop, rows
        self._chance, self._added = random.Random(rows), 0
        self._random = range(vocab_size - 1)

    def begin(self) -> None:
        """Every row, which was added, decodes."""
        while self._loop.stats().running < self._rows:
            self._loop.advance()
        for _ in range(PROMPT):
            self._loop.advance()

    def steps(self, count: int) -> list[float]:
        """Seconds of each."""
        return [self.step() for _ in range(count)]

    def step(self) -> float:
        began = time.perf_counter()
        self._join()
        events = self._loop.advance()
        assert isinstance(events, list)
        for event in events:
            if isinstance(event, FinishedEvent):
                assert event.finishes[0].reason == "length", event
                self.ended += 1
        return time.perf_counter() - began

    def _join(self) -> None:
        """Add newcomers, where a kind of decoding has some."""

    def _request(self, params: SamplingParams, **asked: Any) -> Request:
        self._added += 1
        prompt = tuple(self._chance.choices(self._random, k=PROMPT))
        return Request(request_id=str(self._added), prompt_token_ids=prompt, params=params, seed=7, **asked)
