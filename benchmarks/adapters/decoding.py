"""Rows that decode each with an adapter or with none, and newcomers that have one."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import decoding
from benchmarks.decoding import NEWCOMER, ROW
from benchmarks.engines import Model
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.sampling import Adapter


class Decoding(decoding.Decoding):
    """So many rows, dealt out to the adapters."""

    def __init__(
        self, model: Model, rows: int, steps: int, adapters: Sequence[Adapter], slots: int | None = None
    ) -> None:
        """steps: that will be asked for. slots: None: one for each adapter."""
        slots = len(adapters) if slots is None else slots
        off = SchedulingSettings(speculation="off")
        super().__init__(model.loop(decoding.settings(rows, steps), off, adapter_slots=slots), rows, model.vocab_size)
        for row in range(rows):
            self._loop.add(self._request(ROW, adapter=adapters[row % len(adapters)] if adapters else None))
        self.begin()

    def offer(self, adapter: Adapter | None) -> None:
        """A newcomer."""
        self.offered += 1
        self._loop.add(self._request(NEWCOMER, adapter=adapter))
