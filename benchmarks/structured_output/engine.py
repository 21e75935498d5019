"""An engine that keeps its rows decoding, of which so many follow a grammar, and newcomers that come between steps.

Knows requests and steps; not what is compared. No row's output ends, so that steps of two engines have the same rows
with the same contexts, and only the grammars differ. A newcomer with a grammar waits outside until that is compiled, as
`engine.bridge` has it, and yields one token.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence
from functools import partial

from benchmarks.engines import Model
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.events import FinishedEvent
from inflight.core.types.grammar import Grammar
from inflight.core.types.grammar_stats import GrammarStats
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.execution.grammars.compiled_grammars import CompiledGrammars

BLOCK, PROMPT = 16, 16
NEWCOMERS = 4  # rows that are kept for them
_ROW = SamplingParams(temperature=1.0, max_tokens=100_000, ignore_eos=True)
_NEWCOMER = SamplingParams(temperature=1.0, max_tokens=1, ignore_eos=True)


def context(steps: int) -> int:
    """Tokens of a row after so many steps, a few before they count included; whole blocks."""
    return -(-(PROMPT + steps + 64) // BLOCK) * BLOCK


def blocks(rows: int, steps: int) -> int:
    return rows * context(steps) // BLOCK + 16 * NEWCOMERS


class Decoding:
    """So many rows; grammars: of the first of them. compiled: shared by all engines of the model."""

    def __init__(
        self, model: Model, rows: int, steps: int, grammars: Sequence[Grammar], compiled: CompiledGrammars
    ) -> None:
        """steps: that will be asked for."""
        settings = EngineSettings(
            max_model_len=context(steps),
            num_blocks=blocks(rows, steps),
            max_num_seqs=rows + NEWCOMERS,
            max_num_batched_tokens=rows + 4 * PROMPT,
            enable_prefix_caching=False,
        )
        self._loop = model.loop(settings, SchedulingSettings(), compiled=compiled)
        self._compiled, self._chance, self._added = compiled, random.Random(rows), 0
        self._random = range(model.vocab_size - 1)
        self._ready: deque[Request] = deque()  # whose grammars are compiled
        self._offered = 0
        self.ended = 0
        for row in range(rows):
            self._loop.add(self._request(_ROW, grammars[row] if row < len(grammars) else None))
        for _ in range(rows * PROMPT // (4 * PROMPT) + 8):
            self._loop.advance()

    @property
    def under_way(self) -> int:
        """Newcomers that have not got their token."""
        return self._offered - self.ended

    def stats(self) -> GrammarStats:
        return self._compiled.stats()

    def steps(self, count: int) -> list[float]:
        """Seconds of each."""
        return [self.step() for _ in range(count)]

    def step(self) -> float:
        began = time.perf_counter()
        while self._ready:
            self._loop.add(self._ready.popleft())
        events = self._loop.advance()
        assert isinstance(events, list)
        for event in events:
            if isinstance(event, FinishedEvent):
                assert event.finishes[0].reason == "length", event
                self.ended += 1
        return time.perf_counter() - began

    def offer(self, grammar: Grammar | None) -> None:
        """A newcomer, which joins as soon as its grammar is there."""
        self._offered += 1
        request = self._request(_NEWCOMER, grammar)
        if grammar is None or not self._compiled.prepare([grammar], partial(self._ready.append, request)):
            self._ready.append(request)

    def _request(self, params: SamplingParams, grammar: Grammar | None) -> Request:
        self._added += 1
        prompt = tuple(self._chance.choices(self._random, k=PROMPT))
        return Request(request_id=str(self._added), prompt_token_ids=prompt, params=params, seed=7, grammar=grammar)
