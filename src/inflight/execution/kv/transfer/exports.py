"""Exports: blocks that this engine holds for others, by the id of the request that they were computed for.

An export grows by a transfer with each chunk that is computed, until its prompt is whole. What a step is computing can
be read as far as its layers are done; it counts once a transfer holds it, and not if the step fails. An export ends
when a peer has taken it, when no peer has come in time, or when too much is held and it is the oldest, of unread
exports if there are any; then its transfers end. As long as a peer reads from it, nothing that a transfer holds
ends: blocks must not be written anew under a reader. Knows names and numbers of blocks, no sockets. Used by the
engine's thread and by those of the provider.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from inflight.core.types.kv_transfer import KVExportStats

_REMEMBERED = 4096  # exports that are over, so that late peers get an error at once


class NotHeld(RuntimeError):
    """Blocks that a peer asked for are not available; the message says why."""


@dataclass(slots=True)
class _Step:
    """A step's progress. ready: computed bytes of each of its blocks, from the beginning on."""

    ready: int = 0
    is_broken: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """Blocks one behind the other; step: that is computing them, None where they are computed."""

    blocks: list[int]
    step: _Step | None


@dataclass(slots=True)
class _Export:
    """blocks: by their names. coming: those that a step computes. is_whole: no more will come. expires: on the clock,
    without a reader."""

    expires: float
    blocks: dict[int, int] = field(default_factory=dict)
    coming: dict[int, tuple[int, _Step]] = field(default_factory=dict)
    transfer_ids: list[int] = field(default_factory=list)
    readers: int = 0
    is_whole: bool = False
    is_over: bool = False


class Exports:
    def __init__(self, hold: float, max_blocks: int, block_bytes: int, clock: Callable[[], float] = time.monotonic):
        """hold: seconds for which one stays after its last block. max_blocks: of all of them together."""
        self._block_bytes = block_bytes
        self._step = _Step()  # the one that is being computed
        self.wanted: Callable[[str], None] = lambda export_id: None  # one that has not begun; in the reader's thread
        self._hold, self._most, self._clock = hold, max_blocks, clock
        self._changed = threading.Condition()
        self._exports: OrderedDict[str, _Export] = OrderedDict()  # the oldest first
        self._over: OrderedDict[str, None] = OrderedDict()
        self._ended: list[int] = []  # transfer_ids
        self._counts = dict.fromkeys(("taken", "cached", "expired", "displaced", "withdrawn"), 0)  # blocks
        self._is_closed = False

    # -- the engine's side ----------------------------------------------------------------------------------------
    def add(self, transfer_id: int, export_id: str, names: Sequence[int], blocks: Sequence[int]) -> None:
        """Add computed blocks, which the transfer holds. None at all: the prompt is whole, or nothing more will
        come."""
        with self._changed:
            if self._is_closed or export_id in self._over:
                self._ended.append(transfer_id)
                return
            export = self._exports.setdefault(export_id, _Export(0.0))
            export.expires = self._clock() + self._hold
            export.blocks.update(zip(names, blocks, strict=True))
            for name in names:
                export.coming.pop(name, None)
            if blocks:
                export.transfer_ids.append(transfer_id)
            else:
                export.is_whole = True
                export.coming.clear()  # of steps that came to nothing
                self._ended.append(transfer_id)
            held = sum(len(one.blocks) for one in self._exports.values())
            for other_id, other in sorted(self._exports.items(), key=lambda one: one[1].readers > 0):
                if held <= self._most:
                    break
                if other is export or not other.blocks:
                    continue
                held -= len(other.blocks)
                self._end(other_id, other, "displaced")
            self._changed.notify_all()

    def computing(self, sends: Iterable[tuple[str, Sequence[int], Sequence[int]]]) -> None:
        """Id, names and blocks of what the step that begins is to complete."""
        with self._changed:
            self._step = step = _Step()
            for export_id, names, blocks in sends:
                if self._is_closed or export_id in self._over:
                    continue
                export = self._exports.setdefault(export_id, _Export(0.0))
                export.expires = self._clock() + self._hold
                export.coming.update((name, (block, step)) for name, block in zip(names, blocks, strict=True))
            self._changed.notify_all()

    def have(self, nbytes: int) -> None:
        """Note that the first `nbytes` of each of the step's blocks are computed."""
        with self._changed:
            self._step.ready = nbytes
            self._changed.notify_all()

    def broken_off(self) -> None:
        """Discard the blocks of the current step, which was broken off."""
        with self._changed:
            self._step.is_broken = True
            for export in self._exports.values():
                for name in [name for name, (_, step) in export.coming.items() if step is self._step]:
                    del export.coming[name]
            self._changed.notify_all()

    def poll(self) -> tuple[int, ...] | None:
        """Transfers that have ended since the last call; None: none is out."""
        with self._changed:
            now = self._clock()
            for export_id, export in tuple(self._exports.items()):
                if export.expires <= now and not export.readers:
                    self._end(export_id, export, "expired")
            if not self._ended and not any(one.transfer_ids for one in self._exports.values()):
                return None
            ended, self._ended = tuple(self._ended), []
            return ended

    def withdraw(self, export_id: str) -> None:
        """End an export, or keep it from beginning. Called in any thread."""
        with self._changed:
            self._end(export_id, self._exports.get(export_id), "withdrawn")
            self._changed.notify_all()

    def abandon(self) -> None:
        """End all exports, once no peer reads any more: their blocks have no owner now."""
        with self._changed:
            for export_id, export in tuple(self._exports.items()):
                self._end(export_id, export, "withdrawn")
            self._changed.notify_all()

    def export_stats(self) -> KVExportStats:
        with self._changed:
            held = sum(len(one.blocks) for one in self._exports.values() if not one.is_over)
            return KVExportStats(held=held, **self._counts)

    def close(self) -> None:
        """End all exports, and wait until no peer reads any more."""
        with self._changed:
            self._is_closed = True
            self.abandon()
            self._changed.wait_for(lambda: not self._exports, timeout=30.0)

    # -- the readers' side ----------------------------------------------------------------------------------------
    @contextmanager
    def reading(self, export_id: str, seconds: float) -> Iterator[Reading]:
        """Open an export for reading; waits for its beginning. Raises NotHeld."""
        with self._changed:
            is_there = self._may_not_come(export_id) or export_id in self._exports
        if not is_there:
            self.wanted(export_id)
        with self._changed:
            self._changed.wait_for(lambda: self._may_not_come(export_id) or export_id in self._exports, seconds)
            export = self._exports.get(export_id)
            if export is None or export.is_over:
                raise NotHeld(self._absence(export_id))
            export.readers += 1
        try:
            yield Reading(self, export_id, export)
        finally:
            with self._changed:
                export.readers -= 1
                if export.is_over and not export.readers:
                    self._free(export_id, export)
                self._changed.notify_all()

    def _may_not_come(self, export_id: str) -> bool:
        return self._is_closed or export_id in self._over

    def _absence(self, export_id: str) -> str:
        if export_id in self._over:
            return f"The blocks of {export_id!r} are held no more: they were taken, or no peer came for them in time."
        return f"Nothing is held for {export_id!r}."

    def _end(self, export_id: str, export: _Export | None, outcome: str, read: int = 0) -> None:
        """End an export at once, or when its last reader has left. None: it has not begun. outcome: of its blocks, but
        for those that its taker has read."""
        self._over[export_id] = None
        while len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)
        if export is None:
            return
        if not export.is_over:
            self._counts["taken"] += read
            self._counts[outcome] += len(export.blocks) - read
        export.is_over = True
        self._free(export_id, export)

    def _free(self, export_id: str, export: _Export) -> None:
        if not export.readers and self._exports.pop(export_id, None) is not None:
            self._ended += export.transfer_ids


class Reading:
    """One peer's look at one export, whose blocks stay as they are meanwhile."""

    def __init__(self, exports: Exports, export_id: str, export: _Export):
        self._exports, self._id, self._export = exports, export_id, export

    def next(self, names: Sequence[int], seconds: float) -> Found:
        """Blocks of the first of these names, as many as are there, or as one step computes; waits for one. Raises
        NotHeld."""
        export, name = self._export, names[0]
        with self._exports._changed:
            self._wait(lambda: name in export.blocks or name in export.coming, seconds)
            if name in export.blocks:
                held = itertools.takewhile(export.blocks.__contains__, names)
                return Found([export.blocks[one] for one in held], None)
            if name in export.coming:
                step = export.coming[name][1]
                same = itertools.takewhile(lambda one: export.coming.get(one, (0, None))[1] is step, names)
                return Found([export.coming[one][0] for one in same], step)
            if not export.is_whole:
                raise NotHeld(f"The next block of {self._id!r} was not computed within {seconds:.0f} s.")
            if not export.blocks:
                raise NotHeld(f"The prompt of {self._id!r} was not computed to its end.")
            raise NotHeld(
                f"No block of {self._id!r} has the name that was asked for: salt, adapter or tokens are others."
            )

    def ready(self, found: Found, done: int, seconds: float) -> int:
        """Bytes of each of these blocks that are there, from the beginning on; waits for more than `done`. Raises
        NotHeld."""
        if found.step is None:
            return self._exports._block_bytes
        step = found.step
        with self._exports._changed:
            self._wait(lambda: step.ready > done or step.is_broken, seconds)
            if step.is_broken or step.ready <= done:
                raise NotHeld(f"The step that was computing {self._id!r} was not computed to its end.")
            return step.ready

    def settle(self, read: Mapping[int, int], seconds: float) -> None:
        """Wait until blocks that were read, by their names, are computed, and held. Raises NotHeld where they are not,
        or others are."""
        with self._exports._changed:
            self._wait(lambda: read.items() <= self._export.blocks.items(), seconds)
            if not read.items() <= self._export.blocks.items():
                raise NotHeld(f"What was read of {self._id!r} was not computed to its end.")

    def _wait(self, is_there: Callable[[], bool], seconds: float) -> None:
        """Wait until it is, or no more will come. Raises NotHeld where the export is over."""
        exports, export = self._exports, self._export
        exports._changed.wait_for(lambda: is_there() or export.is_whole or export.is_over, seconds)
        if export.is_over:
            raise NotHeld(exports._absence(self._id))

    def taken(self, blocks: int) -> bool:
        """End the export, of which the peer has all it wants, so many blocks; return whether all of it was held until
        now."""
        exports = self._exports
        with exports._changed:
            held = not self._export.is_over
            exports._end(self._id, self._export, "cached", blocks)
            return held
