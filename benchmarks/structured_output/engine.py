"""Rows that decode, of which so many follow a grammar, and newcomers that may have one.

A newcomer with a grammar waits outside until that is compiled, as `engine.bridge` has it, and yields one token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

from benchmarks import decoding
from benchmarks.decoding import NEWCOMER, ROW
from benchmarks.engines import Model
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.request import Request
from inflight.core.types.sampling import Grammar, GrammarStats
from inflight.execution.grammars.compiled_grammars import CompiledGrammars


class Decoding(decoding.Decoding):
    """So many rows; grammars: of the first of them. compiled: shared by all engines of the model."""

    def __init__(
        self, model: Model, rows: int, steps: int, grammars: Sequence[Grammar], compiled: CompiledGrammars
    ) -> None:
        """steps: that will be asked for."""
        loop = model.loop(decoding.settings(rows, steps), SchedulingSettings(), compiled=compiled)
        super().__init__(loop, rows, model.vocab_size)
        self._compiled = compiled
        self._ready: deque[Request] = deque()  # whose grammars are compiled
        for row in range(rows):
            self._loop.add(self._request(ROW, grammar=grammars[row] if row < len(grammars) else None))
        self.begin()

    @property
    def under_way(self) -> int:
        """Newcomers that have not got their token."""
        return self.offered - self.ended

    def stats(self) -> GrammarStats:
        return self._compiled.stats()

    def offer(self, grammar: Grammar | None) -> None:
        """A newcomer, which joins as soon as its grammar is there."""
        self.offered += 1
        request = self._request(NEWCOMER, grammar=grammar)
        if grammar is None or self._compiled.prepare([grammar], partial(self._ready.append, request)).is_ready:
            self._ready.append(request)

    def _join(self) -> None:
        while self._ready:
            self._loop.add(self._ready.popleft())
