"""Exports: blocks that this engine holds for peers, by the id of the request that they were computed for.

An export grows by a transfer with each chunk that is computed, until its prompt is complete. Blocks that a step is
computing can be read as far as its layers are done; they count once a transfer holds them, and not if the step fails.
An export ends when a peer has taken it, when no peer has come in time, or when too much is held and it is the oldest,
unread exports first; then its transfers end. While a peer reads it, its transfers hold its blocks, so that no block is
written under a reader. Used by the engine's thread and by those of the server.
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
from inflight.execution.kv.block_memory import BlockMemory, KVMemory

MAX_HELD = 0.5  # share of all blocks, and of all checkpoints, that is held for peers
_MAX_OVER = 4096  # ids of ended exports that are kept, so that late peers get an error at once
_OUTCOMES = ("taken", "cached", "expired", "displaced", "withdrawn")

Key = tuple[int, int]  # of a block: group and name


class NotHeld(RuntimeError):
    """Blocks that a peer asked for are not available; the message says why."""


@dataclass(slots=True)
class _Step:
    """Progress of a step. ready: computed bytes of each of its blocks, from the beginning on."""

    ready: int = 0
    is_broken: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """Consecutive blocks of a pull, all of one memory. step: computes them; None: they are computed."""

    memory: BlockMemory
    blocks: list[int]
    step: _Step | None


@dataclass(slots=True)
class _Export:
    """One export.

    Attributes:
        expires: On the clock, if no peer reads it.
        blocks: Computed ones.
        num_states: How many of these are checkpoints.
        computing: Blocks that a step computes.
        transfer_ids: Of the transfers that hold its blocks.
        readers: Peers that read it now.
        is_whole: No block will be added.
        is_over: It has ended.
    """

    expires: float
    blocks: dict[Key, int] = field(default_factory=dict)
    num_states: int = 0
    computing: dict[Key, tuple[int, _Step]] = field(default_factory=dict)
    transfer_ids: list[int] = field(default_factory=list)
    readers: int = 0
    is_whole: bool = False
    is_over: bool = False


class Exports:
    def __init__(self, hold: float, memory: KVMemory, clock: Callable[[], float] = time.monotonic):
        """Create it without exports. hold: seconds for which an export is held after its last block."""
        self.wanted: Callable[[str], None] = lambda export_id: None  # called for an export that has not begun
        self._hold, self._memory, self._clock = hold, memory, clock
        self._step = _Step()  # begun last
        self._changed = threading.Condition()
        self._exports: OrderedDict[str, _Export] = OrderedDict()  # the oldest first
        self._num_blocks = self._num_states = 0  # of these
        self._over: OrderedDict[str, None] = OrderedDict()
        self._ended: list[int] = []  # transfer_ids
        self._counts = dict.fromkeys(_OUTCOMES, 0)  # blocks
        self._is_closed = False

    # -- for the engine -------------------------------------------------------------------------------------------
    def add(self, transfer_id: int, export_id: str, keys: Sequence[Key], blocks: Sequence[int]) -> None:
        """Add computed blocks, which the transfer holds. Without blocks: none will follow."""
        with self._changed:
            if self._is_closed or export_id in self._over:
                self._ended.append(transfer_id)
                return
            export = self._begin(export_id)
            before, states_before = len(export.blocks), export.num_states
            for key, block in zip(keys, blocks, strict=True):
                export.num_states += key[0] == self._memory.state_group and key not in export.blocks
                export.blocks[key] = block
                export.computing.pop(key, None)
            self._num_states += export.num_states - states_before
            self._num_blocks += len(export.blocks) - before
            if blocks:
                export.transfer_ids.append(transfer_id)
            else:
                export.is_whole = True
                export.computing.clear()  # of failed steps
                self._ended.append(transfer_id)
            self._displace(export)
            self._changed.notify_all()

    def begin_step(self, sends: Iterable[tuple[str, Sequence[Key], Sequence[int]]]) -> None:
        """Note that a step begins. sends: ids of exports, with the blocks that the step completes."""
        with self._changed:
            self._step = step = _Step()
            for export_id, keys, blocks in sends:
                if self._is_closed or export_id in self._over:
                    continue
                export = self._begin(export_id)
                export.computing.update((key, (block, step)) for key, block in zip(keys, blocks, strict=True))
            self._changed.notify_all()

    def advance(self, nbytes: int) -> None:
        """Note that the first `nbytes` of each of the step's blocks are computed."""
        with self._changed:
            self._step.ready = nbytes
            self._changed.notify_all()

    def fail_step(self) -> None:
        """Discard the blocks of the current step, which failed."""
        with self._changed:
            self._step.is_broken = True
            for export in self._exports.values():
                for key in [key for key, (_, step) in export.computing.items() if step is self._step]:
                    del export.computing[key]
            self._changed.notify_all()

    def poll(self) -> tuple[int, ...] | None:
        """End expired exports; return the transfers that have ended since the last call. None: none is in flight."""
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
        """End all exports once no peer reads them: their blocks have no owner any more."""
        with self._changed:
            for export_id, export in tuple(self._exports.items()):
                self._end(export_id, export, "withdrawn")
            self._changed.notify_all()

    def export_stats(self) -> KVExportStats:
        with self._changed:
            held = sum(len(one.blocks) for one in self._exports.values() if not one.is_over)
            return KVExportStats(held=held, **self._counts)

    def close(self) -> None:
        """End all exports, and wait until no peer reads one."""
        with self._changed:
            self._is_closed = True
            self.abandon()
            self._changed.wait_for(lambda: not self._exports, timeout=30.0)

    # -- for the server -------------------------------------------------------------------------------------------
    @contextmanager
    def reading(self, export_id: str, seconds: float) -> Iterator[Reading]:
        """Open an export for reading, once it begins. Raises NotHeld."""
        with self._changed:
            is_coming = not self._is_refused(export_id) and export_id not in self._exports
        if is_coming:
            self.wanted(export_id)
        with self._changed:
            self._changed.wait_for(lambda: self._is_refused(export_id) or export_id in self._exports, seconds)
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

    def _begin(self, export_id: str) -> _Export:
        """Begin an export, or extend its time."""
        export = self._exports.setdefault(export_id, _Export(0.0))
        export.expires = self._clock() + self._hold
        return export

    def _displace(self, newest: _Export) -> None:
        """End other exports until no more than the share of either memory is held: first those that no peer reads."""
        memory, states = self._memory, self._num_states
        blocks = self._num_blocks - states
        max_blocks = int(MAX_HELD * memory.blocks.num_blocks)
        max_states = 0 if memory.states is None else int(MAX_HELD * memory.states.num_blocks)
        if blocks <= max_blocks and states <= max_states:
            return
        for export_id, export in sorted(self._exports.items(), key=lambda one: one[1].readers > 0):
            own_states = export.num_states
            own_blocks = len(export.blocks) - own_states
            is_over = (blocks > max_blocks and own_blocks > 0) or (states > max_states and own_states > 0)
            if is_over and export is not newest:
                blocks, states = blocks - own_blocks, states - own_states
                self._end(export_id, export, "displaced")

    def _is_refused(self, export_id: str) -> bool:
        """Return whether an export cannot begin any more."""
        return self._is_closed or export_id in self._over

    def _absence(self, export_id: str) -> str:
        if export_id in self._over:
            return f"The blocks of {export_id!r} are held no more: they were taken, or no peer came for them in time."
        return f"Nothing is held for {export_id!r}."

    def _end(self, export_id: str, export: _Export | None, outcome: str, num_read: int = 0) -> None:
        """End an export at once, or when its last reader has left.

        Args:
            export_id: Its id.
            export: None: it has not begun, and must not begin.
            outcome: Of its blocks, but for those that the peer that took it has read.
            num_read: Number of these.
        """
        self._over[export_id] = None
        while len(self._over) > _MAX_OVER:
            self._over.popitem(last=False)
        if export is None:
            return
        if not export.is_over:
            self._counts["taken"] += num_read
            self._counts[outcome] += len(export.blocks) - num_read
        export.is_over = True
        self._free(export_id, export)

    def _free(self, export_id: str, export: _Export) -> None:
        if not export.readers and self._exports.pop(export_id, None) is not None:
            self._ended += export.transfer_ids
            self._num_blocks -= len(export.blocks)
            self._num_states -= export.num_states


class Reading:
    """Access of one peer to one export, whose blocks are not written meanwhile."""

    def __init__(self, exports: Exports, export_id: str, export: _Export):
        self._exports, self._id, self._export = exports, export_id, export

    def next(self, keys: Sequence[Key], first: int, seconds: float) -> Found:
        """Return the blocks that the pull wants next, as many as are available, or as one step computes; wait for one.

        Args:
            keys: Of the whole pull.
            first: Index of the next one.
            seconds: For which to wait.

        Raises:
            NotHeld: It does not come.
        """
        export, key = self._export, keys[first]
        with self._exports._changed:
            self._wait(lambda: key in export.blocks or key in export.computing, seconds)
            if key in export.blocks:
                held = itertools.takewhile(export.blocks.__contains__, self._of_one_memory(keys, first))
                return self._found(key, [export.blocks[one] for one in held], None)
            if key in export.computing:
                step = export.computing[key][1]
                same = itertools.takewhile(
                    lambda one: export.computing.get(one, (0, None))[1] is step, self._of_one_memory(keys, first)
                )
                return self._found(key, [export.computing[one][0] for one in same], step)
            if not export.is_whole:
                raise NotHeld(f"The next block of {self._id!r} was not computed within {seconds:.0f} s.")
            if not export.blocks:
                raise NotHeld(f"The prompt of {self._id!r} was not computed to its end.")
            raise NotHeld(
                f"No block of {self._id!r} has the name that was asked for: salt, adapter or tokens are others."
            )

    def wait_ready(self, found: Found, done: int, seconds: float) -> int:
        """Wait until more than `done` bytes of each of these blocks are available; return how many are, from the
        beginning on. Raises NotHeld."""
        step = found.step
        if step is None:
            return found.memory.block_bytes
        with self._exports._changed:
            self._wait(lambda: step.ready > done or step.is_broken, seconds)
            if step.is_broken or step.ready <= done:
                raise NotHeld(f"The step that was computing {self._id!r} was not computed to its end.")
            return step.ready

    def wait_held(self, read: Mapping[Key, int], seconds: float) -> None:
        """Wait until all blocks that were read are held. Raises NotHeld where they are not, or others are."""
        with self._exports._changed:
            self._wait(lambda: read.items() <= self._export.blocks.items(), seconds)
            if not read.items() <= self._export.blocks.items():
                raise NotHeld(f"What was read of {self._id!r} was not computed to its end.")

    def take(self, num_blocks: int) -> bool:
        """End the export, of which the peer has read so many blocks. Return whether it was held until now."""
        with self._exports._changed:
            was_held = not self._export.is_over
            self._exports._end(self._id, self._export, "cached", num_blocks)
            return was_held

    def _of_one_memory(self, keys: Sequence[Key], first: int) -> Iterator[Key]:
        """Yield keys from `first` on, as long as their blocks are in one memory."""
        state_group = self._exports._memory.state_group
        is_state = keys[first][0] == state_group
        following = (keys[index] for index in range(first, len(keys)))
        return itertools.takewhile(lambda key: (key[0] == state_group) == is_state, following)

    def _found(self, key: Key, blocks: list[int], step: _Step | None) -> Found:
        return Found(self._exports._memory.of(key[0]), blocks, step)

    def _wait(self, is_available: Callable[[], bool], seconds: float) -> None:
        """Wait until it is, or no more will come. Raises NotHeld where the export is over."""
        exports, export = self._exports, self._export
        exports._changed.wait_for(lambda: is_available() or export.is_whole or export.is_over, seconds)
        if export.is_over:
            raise NotHeld(exports._absence(self._id))
