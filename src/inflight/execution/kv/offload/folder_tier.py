"""A folder as a tier: blocks are written to it behind the steps, found in it by their names, and read back.

It is a `KVSource` and `KVStore` of core, which it answers from memory, and `TierTransfers` of the runner. Threads read
and write files by way of private copies, so that a disk that hangs costs a transfer and no more. A file that is gone or
damaged fails its transfer, and is not found any more; its block is computed. Where nothing can be written, one warning
says so, and writing is tried again after a pause.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from inflight.core.types.kv_blocks import KVChain, SharedRoot, root_hash
from inflight.core.types.kv_transfer import FolderStats
from inflight.core.types.plan import Transfer, TransferKind, Transferred
from inflight.core.types.request import Request
from inflight.core.types.sampling import Adapter
from inflight.execution.kv.block_memory import KVMemory
from inflight.execution.kv.offload.block_files import DamagedFile, file_bytes, read_block, write_block
from inflight.execution.kv.offload.folder_index import FolderIndex
from inflight.execution.kv.offload.tier_threads import READING, WRITING, BackgroundThreads, BlockCopies
from inflight.execution.step_progress import StepActivity
from inflight.private_files import NotPrivate, check_private

TIER = "folder"
READERS = 2
TIME_LIMIT = 30.0  # seconds without progress after which a transfer fails
_RESTS = 40 * READERS - 1  # times as long as a block took, while a step is computed: a fortieth of a core for all
_MAX_REST = 0.05  # seconds: a disk that is slow takes no core
_PAUSE = 30.0  # seconds without the folder after a fault
_SCAN_INTERVAL = 20.0  # seconds between two scans of the folder, for what others have written
_CLOSING = 5.0  # seconds for transfers in flight, at the end
_MAX_ROOTS = 4096

log = logging.getLogger(__name__)


@dataclass(slots=True)
class FolderCounts:
    """Counts since the engine started."""

    read_bytes: int = 0
    written_bytes: int = 0
    damaged: int = 0
    write_errors: int = 0


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A transfer. began: on the clock."""

    kind: TransferKind
    copies: BlockCopies
    parts: list[Future[None]]
    began: float


class FolderTier:
    tier = TIER

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        identity: bytes,
        memory: KVMemory,
        adapter_digest: Callable[[Adapter], str | None] = lambda adapter: None,
        steps: StepActivity | None = None,
    ):
        """Open the folder.

        Args:
            folder: The folder.
            max_bytes: Bytes of its files at most.
            identity: Of the model and of how it is computed.
            memory: Of the engine's blocks and checkpoints.
            adapter_digest: Returns the digest of an adapter's files; None: not known, and nothing computed with it is
                stored.
            steps: Beside which files are read.

        Raises:
            OSError: The folder cannot be used.
            NotPrivate: It is another user's.
        """
        self.index = FolderIndex(folder, identity, max_bytes)
        try:
            check_private(folder)
        except NotPrivate as error:
            log.warning(f"--kv-cache-dir: {error}, so that no other user can put blocks there.")
        self.counts = FolderCounts()
        self._identity, self._memory = identity, memory
        self._adapter_digest = adapter_digest
        self._steps = steps or StepActivity()
        self._roots: dict[SharedRoot, bytes | None] = {}
        self._writing: set[int] = set()  # numbers of names
        self._obstructed: set[int] = set()  # those whose files cannot be written, until the next scan
        self._no_reads_before = self._no_writes_before = 0.0
        self._has_warned = False  # that nothing can be written
        self._scanned = time.monotonic()
        self._last_progress = {"load": 0.0, "store": 0.0}  # when a block was last read, or written
        self._reading = threading.Lock()  # held by the reader that works while steps are computed
        self._readers = BackgroundThreads(READERS, "kv-read", READING)
        self._writer = BackgroundThreads(1, "kv-write", WRITING)
        self._in_flight: dict[int, _InFlight] = {}  # by transfer_id
        self._closed = threading.Event()

    def stats(self) -> FolderStats:
        index, counts = self.index, self.counts
        return FolderStats(
            index.nbytes,
            index.max_bytes,
            index.num_blocks,
            counts.read_bytes,
            counts.written_bytes,
            index.num_evicted,
            counts.damaged,
            counts.write_errors,
            file_bytes(self._memory.blocks.block_bytes),
            index.own_bytes,
        )

    # -- a source and a store -----------------------------------------------------------------------------------
    def chain(self, request: Request, root: SharedRoot) -> KVChain | None:
        name = self.root(root)
        if name is None or time.monotonic() < self._no_reads_before:
            return None
        return KVChain("load", TIER, name, lambda index, group, number: number in self.index)

    def wants(self, number: int) -> bool:
        if number in self.index or number in self._writing or number in self._obstructed:
            return False
        return time.monotonic() >= self._no_writes_before

    def root(self, root: SharedRoot) -> bytes | None:
        if root not in self._roots:
            if len(self._roots) >= _MAX_ROOTS:
                self._roots.clear()
            digest = "" if root.adapter is None else self._adapter_digest(root.adapter)
            self._roots[root] = None if digest is None else root_hash(root, self._identity + digest.encode())
        return self._roots[root]

    # -- transfers ----------------------------------------------------------------------------------------------
    def serves(self, tier: str) -> bool:
        return tier == TIER

    def begin(self, transfer: Transfer) -> None:
        numbers, copies = transfer.remote_blocks, BlockCopies(self._memory.views(transfer))
        if transfer.kind == "store":
            self._writing.update(numbers)
            parts = [self._writer.submit(partial(self._write, numbers, copies))]
        else:
            shares = [range(first, len(numbers), READERS) for first in range(min(READERS, len(numbers)))]
            parts = [self._readers.submit(partial(self._read, numbers, copies, share)) for share in shares]
        self._in_flight[transfer.transfer_id] = _InFlight(transfer.kind, copies, parts, time.monotonic())

    def poll(self) -> Sequence[Transferred] | None:
        if not self._in_flight:
            return None
        now, ended = time.monotonic(), []
        for transfer_id, one in tuple(self._in_flight.items()):
            if all(part.done() for part in one.parts):
                faults = [fault for part in one.parts if (fault := part.exception()) is not None]
                ended.append(Transferred(transfer_id, str(faults[0]) or type(faults[0]).__name__ if faults else None))
            elif now - self._progress_of(one) > TIME_LIMIT:
                one.copies.release()
                self._pause(now)
                ended.append(Transferred(transfer_id, f"The folder of blocks has not answered for {TIME_LIMIT:g} s."))
            else:
                continue
            del self._in_flight[transfer_id]
        if now - self._scanned > _SCAN_INTERVAL:
            self._scanned = now
            self._writer.submit(self._scan)
        return ended

    def close(self) -> None:
        """End the threads, after transfers in flight where these end within some seconds."""
        last = time.monotonic() + _CLOSING
        while self._in_flight and time.monotonic() < last:
            self.poll()
            time.sleep(0.005)
        self._closed.set()
        for one in self._in_flight.values():
            one.copies.release()
        for threads in (self._readers, self._writer):
            threads.close(1.0)

    def _progress_of(self, one: _InFlight) -> float:
        """Return when a transfer last made progress; while it waits for a thread, when another one did."""
        return one.copies.touched or max(one.began, self._last_progress[one.kind])

    def _pause(self, now: float) -> None:
        """Neither read nor write files for a while."""
        self._no_reads_before = self._no_writes_before = now + _PAUSE
        log.warning(
            "The folder of blocks has not answered for %g s; the engine goes on without it for %g s.",
            TIME_LIMIT,
            _PAUSE,
        )

    # -- in the threads -----------------------------------------------------------------------------------------
    def _read(self, numbers: Sequence[int], copies: BlockCopies, share: range) -> None:
        memory = bytearray()
        copies.touch()
        worked = 0.0
        for at in share:
            if worked:
                self._steps.await_gap(worked, _RESTS, _MAX_REST)
            if self._closed.is_set():
                raise OSError("The engine was closed.")
            with self._alternating():
                began = time.monotonic()
                if len(memory) != copies.nbytes(at):
                    memory = bytearray(copies.nbytes(at))
                into = memoryview(memory)
                self._read_one(numbers[at], into)
                copies.put(at, into)
                self._last_progress["load"] = ended = time.monotonic()
            worked = ended - began
        self.index.touch(tuple(numbers[at] for at in share))

    @contextmanager
    def _alternating(self) -> Iterator[None]:
        """While steps are computed, wait for the other reader, as long as it does not hang: both at once would delay
        the planner and the next step, which need the same cores."""
        is_locked = self._steps.is_going_on and self._reading.acquire(timeout=_MAX_REST)
        try:
            yield
        finally:
            if is_locked:
                self._reading.release()

    def _read_one(self, number: int, into: memoryview) -> None:
        path = self.index.path(number)
        try:
            read_block(path, self._identity, number.to_bytes(16), into)
        except DamagedFile as damage:
            self.index.remove(number)
            self.counts.damaged += 1
            log.warning("%s %s", damage, _delete(path))
            raise
        except OSError as error:
            self.index.remove(number)
            raise OSError(f"{path} cannot be read ({error.strerror or error}).") from error
        self.counts.read_bytes += len(into)

    def _write(self, numbers: Sequence[int], copies: BlockCopies) -> None:
        try:
            for number, content in zip(numbers, copies.take(), strict=True):
                if self._closed.is_set():
                    raise OSError("the engine was closed")
                self._write_one(number, content)
                copies.touch()
                self._last_progress["store"] = time.monotonic()
            self._has_warned = False
        except OSError as error:
            self.counts.write_errors += 1
            self._no_writes_before = time.monotonic() + _PAUSE
            if not self._has_warned and not self._closed.is_set():
                self._has_warned = True
                log.warning(
                    "Blocks cannot be written to %s (%s); the engine goes on without, and tries again every %g s.",
                    self.index.path(0).parent.parent,
                    error.strerror or error,
                    _PAUSE,
                )
            raise
        finally:
            self._writing.difference_update(numbers)

    def _write_one(self, number: int, view: memoryview) -> None:
        if number in self.index:
            return
        needed = file_bytes(len(view))
        if not self.index.make_room(needed):
            raise OSError(self._no_room(needed))
        path = self.index.path(number)
        try:
            write_block(path, self._identity, number.to_bytes(16), view)
        except IsADirectoryError as error:  # a folder has this block's name
            self._obstructed.add(number)
            self.counts.write_errors += 1
            log.warning(
                "%s cannot be written (%s); remove that folder. Other blocks are written.", path, error.strerror
            )
            return
        self.index.add(number, needed)
        self.counts.written_bytes += len(view)

    def _no_room(self, needed: int) -> str:
        limit = self.index.max_bytes
        if needed > limit:
            return f"a file takes {needed:,} bytes, and --kv-cache-disk allows {limit:,} in all"
        return f"it holds {self.index.nbytes:,} bytes of {limit:,}, and none of its files can be deleted"

    def _scan(self) -> None:
        self._obstructed.clear()
        try:
            self.index.scan()
        except OSError as error:
            log.warning("The folder of blocks cannot be read (%s).", error.strerror or error)


def _delete(path: Path) -> str:
    """Delete a damaged file, if possible, and return the end of the warning."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        return f"It cannot be deleted ({error.strerror or error}); its block is computed."
    return "It is deleted, and its block is computed."
