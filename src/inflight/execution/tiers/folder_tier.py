"""A folder as a tier: blocks are written to it behind the steps, found in it by their names, and read back.

For core a source and a sink, for the runner a place of transfers. Asking it costs look-ups in memory; files are read
and written in threads of their own, by way of private copies, so that a disk that hangs costs a transfer and no more.
Faults cost no more than a computation: a file that is gone or damaged fails its transfer, and is asked for no more;
where nothing can be written (the disk is full, or no longer there) a sentence says so once, and it is tried again after
a while.
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
from inflight.core.types.plan import Transfer, Transferred
from inflight.core.types.request import Request
from inflight.core.types.sampling import Adapter
from inflight.execution.kv.block_memory import KVMemory
from inflight.execution.step_progress import StepActivity
from inflight.execution.tiers.background import READING, WRITING, BackgroundThreads
from inflight.execution.tiers.block_copies import BlockCopies
from inflight.execution.tiers.block_files import DamagedFile, file_bytes, read_block, write_block
from inflight.execution.tiers.folder_index import FolderIndex
from inflight.private_files import NotPrivate, check_private

TIER = "folder"
READERS = 2
LIMIT = 30.0  # seconds in which something of a transfer comes
_RESTS = 40 * READERS - 1  # times as long as a block took, while a step is computed: a fortieth of a core for all
_LONGEST_REST = 0.05  # seconds: a disk that is slow takes no core
_PAUSE = 30.0  # seconds without it after a fault
_LOOK = 20.0  # seconds between two looks at what others have written
_CLOSING = 5.0  # seconds for transfers in flight, at the end
_MAX_ROOTS = 4096

log = logging.getLogger(__name__)


@dataclass(slots=True)
class FolderCounts:
    """Since the engine began."""

    read_bytes: int = 0
    written_bytes: int = 0
    damaged: int = 0
    write_errors: int = 0


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """kind: load or store. began: on the clock."""

    kind: str
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
            log.warning(f"--kv-cache-dir: {error}, so that no other user can put blocks of his own there.")
        self.counts = FolderCounts()
        self._identity, self._memory = identity, memory
        self._adapter_digest = adapter_digest
        self._steps = steps or StepActivity()
        self._roots: dict[SharedRoot, bytes | None] = {}
        self._writing: set[int] = set()  # names
        self._no_reads_before = self._no_writes_before = 0.0
        self._has_warned = False  # that nothing can be written
        self._looked = time.monotonic()
        self._came = {"load": 0.0, "store": 0.0}  # when the last block was read, or written
        self._turn = threading.Lock()  # of readers, while steps are computed
        self._readers = BackgroundThreads(READERS, "kv-read", READING)
        self._writer = BackgroundThreads(1, "kv-write", WRITING)
        self._out: dict[int, _UnderWay] = {}  # by transfer_id
        self._closed = threading.Event()

    def stats(self) -> FolderStats:
        index, counts = self.index, self.counts
        return FolderStats(
            index.nbytes,
            index.max_bytes,
            index.blocks,
            counts.read_bytes,
            counts.written_bytes,
            index.taken,
            counts.damaged,
            counts.write_errors,
            file_bytes(self._memory.blocks.block_bytes),
        )

    # -- a source and a sink ------------------------------------------------------------------------------------
    def chain(self, request: Request, root: SharedRoot) -> KVChain | None:
        name = self.root(root)
        if name is None or time.monotonic() < self._no_reads_before:
            return None
        return KVChain("load", TIER, name, lambda index, group, number: number in self.index)

    def wants(self, number: int) -> bool:
        if number in self.index or number in self._writing:
            return False
        return time.monotonic() >= self._no_writes_before

    # -- a place of transfers -----------------------------------------------------------------------------------
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
        self._out[transfer.transfer_id] = _UnderWay(transfer.kind, copies, parts, time.monotonic())

    def poll(self) -> Sequence[Transferred] | None:
        if not self._out:
            return None
        now, ended = time.monotonic(), []
        for transfer_id, one in tuple(self._out.items()):
            if all(part.done() for part in one.parts):
                faults = [fault for part in one.parts if (fault := part.exception()) is not None]
                ended.append(Transferred(transfer_id, str(faults[0]) or type(faults[0]).__name__ if faults else None))
            elif now - self._last_sign(one) > LIMIT:
                one.copies.release()
                self._stands_still(now)
                ended.append(Transferred(transfer_id, f"The folder of blocks has not answered for {LIMIT:g} s."))
            else:
                continue
            del self._out[transfer_id]
        if now - self._looked > _LOOK:
            self._looked = now
            self._writer.submit(self._look)
        return ended

    def close(self) -> None:
        """End, after writing what is in flight if that takes no longer than a moment."""
        last = time.monotonic() + _CLOSING
        while self._out and time.monotonic() < last:
            self.poll()
            time.sleep(0.005)
        self._closed.set()
        for one in self._out.values():
            one.copies.release()
        for threads in (self._readers, self._writer):
            threads.close(1.0)

    def _last_sign(self, one: _UnderWay) -> float:
        """Return when a transfer last made progress; while it waits for a thread, when another one did."""
        return one.copies.touched or max(one.began, self._came[one.kind])

    def _stands_still(self, now: float) -> None:
        """Its files are neither asked for nor written for a while."""
        self._no_reads_before = self._no_writes_before = now + _PAUSE
        log.warning(
            "The folder of blocks has not answered for %g s; the engine goes on without it for %g s.", LIMIT, _PAUSE
        )

    # -- in the threads -----------------------------------------------------------------------------------------
    def _read(self, numbers: Sequence[int], copies: BlockCopies, share: range) -> None:
        memory = bytearray()
        copies.touch()
        worked = 0.0
        for at in share:
            if worked:
                self._steps.await_gap(worked, _RESTS, _LONGEST_REST)
            if self._closed.is_set():
                raise OSError("The engine was closed.")
            with self._one_at_a_time():
                began = time.monotonic()
                if len(memory) != copies.nbytes(at):
                    memory = bytearray(copies.nbytes(at))
                into = memoryview(memory)
                self._read_one(numbers[at], into)
                copies.put(at, into)
                self._came["load"] = came = time.monotonic()
            worked = came - began
        self.index.used(tuple(numbers[at] for at in share))

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """While steps are computed, as long as the other reader does not hang: both at once would delay the planner and
        the next step, which have the same cores."""
        taken = self._steps.is_going_on and self._turn.acquire(timeout=_LONGEST_REST)
        try:
            yield
        finally:
            if taken:
                self._turn.release()

    def _read_one(self, number: int, into: memoryview) -> None:
        path = self.index.path(number)
        try:
            read_block(path, self._identity, number.to_bytes(16), into)
        except DamagedFile as damage:
            self.index.lost(number)
            self.counts.damaged += 1
            log.warning("%s %s", damage, _taken_away(path))
            raise
        except OSError as error:
            self.index.lost(number)
            raise OSError(f"{path} cannot be read ({error.strerror or error}).") from error
        self.counts.read_bytes += len(into)

    def _write(self, numbers: Sequence[int], copies: BlockCopies) -> None:
        try:
            for number, content in zip(numbers, copies.take(), strict=True):
                if self._closed.is_set():
                    raise OSError("the engine was closed")
                self._write_one(number, content)
                copies.touch()
                self._came["store"] = time.monotonic()
            self._has_warned = False
        except OSError as error:
            self.counts.write_errors += 1
            self._no_writes_before = time.monotonic() + _PAUSE
            if not self._has_warned and not self._closed.is_set():
                self._has_warned = True
                log.warning(
                    "Blocks cannot be kept in %s (%s); the engine goes on without, and tries again every %g s.",
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
        write_block(self.index.path(number), self._identity, number.to_bytes(16), view)
        self.index.wrote(number, needed)
        self.counts.written_bytes += len(view)

    def _no_room(self, needed: int) -> str:
        most = self.index.max_bytes
        if needed > most:
            return f"a file takes {needed:,} bytes, and --kv-cache-disk allows {most:,} in all"
        return f"it holds {self.index.nbytes:,} bytes of {most:,}, and of its files none can be taken away"

    def _look(self) -> None:
        try:
            self.index.look()
        except OSError as error:
            log.warning("The folder of blocks cannot be read (%s).", error.strerror or error)

    # -- names --------------------------------------------------------------------------------------------------
    def root(self, root: SharedRoot) -> bytes | None:
        if root not in self._roots:
            if len(self._roots) >= _MAX_ROOTS:
                self._roots.clear()
            digest = "" if root.adapter is None else self._adapter_digest(root.adapter)
            self._roots[root] = None if digest is None else root_hash(root, self._identity + digest.encode())
        return self._roots[root]


def _taken_away(path: Path) -> str:
    """Delete a damaged file, if possible, and return the end of the error message."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        return f"It cannot be taken away ({error.strerror or error}); its block is computed."
    return "It is taken away, and its block is computed."
