"""Transport of blocks by NIXL, where its wheel is installed: the client reads the server's memory by itself.

UCX knows the networks. Blocks are read into a buffer of the client's and copied from there, so that a read that cannot
be cancelled any more writes no block that another request has by then. A peer that may read by NIXL may read all
blocks: the secret keeps others out.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from inflight.execution.kv.block_memory import BlockMemory, KVMemory
from inflight.execution.kv.transfer.transports import Run
from inflight.execution.kv.transfer.wire import PROGRESS, Channel, PeerError

NIXL = "nixl"
_PACKAGES = ("nixl_cu12", "nixl_cu13", "nixl")  # the same interface, for CUDA of one version, or of any
_FIRST_POLL, _MAX_POLL = 2e-5, 1e-3  # seconds between two polls of a read
_MAX_BYTES = 8 << 20  # of a read, and of the buffer; what stays in a processor's cache is copied faster


class NixlUnusable(RuntimeError):
    """NIXL is installed, and does not work here; the sentence says why."""


class _Region(msgspec.Struct, frozen=True, array_like=True):
    """Memory of blocks of one size at the server."""

    address: int
    num_blocks: int


class _ServerData(msgspec.Struct, frozen=True, array_like=True):
    """Metadata of the server's agent, and its memory of blocks and of checkpoints."""

    metadata: bytes
    blocks: _Region
    states: _Region | None


def installed() -> str | None:
    """Return the name of the package if it is installed, without importing it."""
    return next((one for one in _PACKAGES if importlib.util.find_spec(one) is not None), None)


class NixlAgent:
    """Agent of an engine over its blocks. Used by several threads."""

    def __init__(self, package: str, memory: KVMemory):
        """Create the agent and register the blocks. Raises NixlUnusable."""
        self.memory = memory
        try:
            api = importlib.import_module(f"{package}._api")
            safe = api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
            self.api: Any = api.nixl_agent(f"inflight-{uuid.uuid4().hex}", api.nixl_agent_config(sync_mode=safe))
            regions = [self._register_region(one) for one in (memory.blocks, memory.states) if one is not None]
            metadata = self.api.get_agent_metadata()
        except Exception as fault:  # of any type: it is a foreign library's
            raise NixlUnusable(f"NIXL ({package}) does not work here ({type(fault).__name__}: {fault}).") from fault
        own = _ServerData(metadata, regions[0], regions[1] if len(regions) > 1 else None)
        self.server_data = msgspec.msgpack.encode(own)
        self._lock = threading.Lock()
        self._lost: list[bytearray] = []  # that a read which did not end may still be written to

    def register(self, memory: memoryview | bytearray) -> Any:
        return self.api.register_memory([(_address(memory), len(memory), 0, "")], "DRAM")

    def deregister(self, memory: bytearray, registered: Any, *, is_lost: bool) -> None:
        """Forget registered memory. is_lost: a read into it has not ended, so it must stay allocated."""
        with self._lock:
            if is_lost:
                self._lost.append(memory)
            else:
                self.api.deregister_memory(registered)

    def add_peer(self, metadata: bytes) -> str:
        """Add a peer's agent and return its name."""
        with self._lock:
            name = self.api.add_remote_agent(metadata)
        return name.decode() if isinstance(name, bytes) else str(name)

    def read(self, peer: str, sources: Sequence[int], into: Sequence[int], size: int) -> None:
        """Read pieces of `size` bytes, by their addresses there and here. Raises PeerError."""
        try:
            there = self.api.get_xfer_descs([(address, size, 0) for address in sources], "DRAM")
            here = self.api.get_xfer_descs([(address, size, 0) for address in into], "DRAM")
            with self._lock:
                handle = self.api.initialize_xfer("READ", here, there, peer)
            state = self.api.transfer(handle)
            last, pause = time.monotonic() + PROGRESS, _FIRST_POLL
            while state == "PROC" and time.monotonic() < last:
                time.sleep(pause)
                pause = min(2 * pause, _MAX_POLL)
                state = self.api.check_xfer_state(handle)
            self.api.release_xfer_handle(handle)
        except Exception as fault:
            raise PeerError(f"NIXL could not read from the peer ({type(fault).__name__}: {fault}).") from fault
        if state != "DONE":
            raise PeerError(f"NIXL did not read the peer's blocks within {PROGRESS:.0f} s (state {state}).")

    def _register_region(self, memory: BlockMemory) -> _Region:
        self.register(memory.memory)
        return _Region(_address(memory.memory), memory.num_blocks)


class NixlSender:
    """Announces available blocks; the client reads them without this process."""

    def __init__(self, channel: Channel):
        self._channel = channel

    def send(self, run: Run) -> None:
        for part in run.cut(_MAX_BYTES):
            self._channel.send(part.message(list(part.blocks)), PROGRESS)


class NixlReceiver:
    def __init__(self, channel: Channel, agent: NixlAgent, server_data: bytes):
        """server_data: from the server's `Welcome`. Raises PeerError."""
        self._channel, self._agent = channel, agent
        try:
            self._there = msgspec.msgpack.decode(server_data, type=_ServerData)
            self._peer = agent.add_peer(self._there.metadata)
            self._buffer = bytearray(_MAX_BYTES)
            self._registered = agent.register(self._buffer)
            self._is_lost = False
        except Exception as fault:
            raise PeerError(
                f"NIXL does not reach {channel.peer} ({type(fault).__name__}: {fault}); try --kv-transport tcp."
            ) from fault

    def receive(self, run: Run, at: Sequence[int]) -> None:
        region = self._there.blocks if run.memory is self._agent.memory.blocks else self._there.states
        part, size = run.part_bytes, run.memory.block_bytes
        is_valid = region is not None and len(at) == len(run.blocks) and len(at) * part <= len(self._buffer)
        if region is None or not is_valid or max(at) >= region.num_blocks:
            raise PeerError(f"{self._channel.peer} names blocks that it does not have.")
        own = _address(self._buffer)
        sources = [region.address + block * size + run.start for block in at]
        try:
            self._agent.read(self._peer, sources, [own + index * part for index in range(len(at))], part)
        except PeerError:
            self._is_lost = True
            raise
        for index, view in enumerate(run.views()):
            view[:] = memoryview(self._buffer)[index * part : (index + 1) * part]

    def close(self) -> None:
        self._agent.deregister(self._buffer, self._registered, is_lost=self._is_lost)


def _address(memory: memoryview | bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
