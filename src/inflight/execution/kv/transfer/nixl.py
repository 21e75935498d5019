"""Blocks by NIXL, where its wheel is installed: the receiver reads them out of the sender's memory by itself.

Over what networks, UCX knows. Blocks are read into places of the receiver's own and copied from there, so that a read
that cannot be cancelled any more touches no block that another request has by then. That what was read was still held
is confirmed at the end, as on every way. A peer that may read by NIXL may read all blocks: its secret is what keeps
others away.
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

from inflight.execution.kv.block_memory import BlockMemory
from inflight.execution.kv.transfer.shared_memory import places
from inflight.execution.kv.transfer.transports import PROGRESS, Run
from inflight.execution.kv.transfer.wire import Blocks, Channel, Copied, PeerError

NAME = "nixl"
_PACKAGES = ("nixl_cu12", "nixl_cu13", "nixl")  # the same interface, for CUDA of one version, or of any
_FIRST_LOOK, _LONGEST_LOOK = 2e-5, 1e-3  # seconds between two looks at a read


class NixlUnusable(RuntimeError):
    """NIXL is installed, and does not work here; the sentence says why."""


class _SenderInfo(msgspec.Struct, frozen=True, array_like=True):
    """A sender's agent metadata, the address of its first block, and its number of blocks."""

    metadata: bytes
    address: int
    blocks: int


def installed() -> str | None:
    """Return the name of the package if it is installed, without importing it."""
    return next((one for one in _PACKAGES if importlib.util.find_spec(one) is not None), None)


class NixlAgent:
    """One of an engine; its memory is what blocks are in. Used by several threads."""

    def __init__(self, package: str, memory: BlockMemory):
        """Create the agent and register the blocks. Raises NixlUnusable."""
        try:
            api = importlib.import_module(f"{package}._api")
            safe = api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
            self.api: Any = api.nixl_agent(f"inflight-{uuid.uuid4().hex}", api.nixl_agent_config(sync_mode=safe))
            self.register(memory.memory)
            metadata = self.api.get_agent_metadata()
        except Exception as fault:  # whatever a foreign library raises
            raise NixlUnusable(f"NIXL ({package}) does not work here ({type(fault).__name__}: {fault}).") from fault
        own = _SenderInfo(metadata, _address(memory.memory), len(memory.memory) // memory.block_bytes)
        self.introduction = msgspec.msgpack.encode(own)
        self._lock = threading.Lock()
        self._lost: list[bytearray] = []  # that a read which did not end may still be written to

    def register(self, memory: memoryview | bytearray) -> Any:
        return self.api.register_memory([(_address(memory), len(memory), 0, "")], "DRAM")

    def forget(self, memory: bytearray, registered: Any, *, is_lost: bool) -> None:
        """Memory that was registered; is_lost: a read into it has not ended."""
        with self._lock:
            if is_lost:
                self._lost.append(memory)
            else:
                self.api.deregister_memory(registered)

    def know(self, metadata: bytes) -> str:
        """Add a peer's agent and return its name."""
        with self._lock:
            name = self.api.add_remote_agent(metadata)
        return name.decode() if isinstance(name, bytes) else str(name)

    def read(self, peer: str, sources: Sequence[int], into: Sequence[int], size: int) -> None:
        """Read runs of `size` bytes, by their addresses there and here. Raises PeerError."""
        try:
            there = self.api.get_xfer_descs([(address, size, 0) for address in sources], "DRAM")
            here = self.api.get_xfer_descs([(address, size, 0) for address in into], "DRAM")
            with self._lock:
                handle = self.api.initialize_xfer("READ", here, there, peer)
            state = self.api.transfer(handle)
            last, pause = time.monotonic() + PROGRESS, _FIRST_LOOK
            while state == "PROC" and time.monotonic() < last:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_LOOK)
                state = self.api.check_xfer_state(handle)
            self.api.release_xfer_handle(handle)
        except Exception as fault:
            raise PeerError(f"NIXL could not read from the peer ({type(fault).__name__}: {fault}).") from fault
        if state != "DONE":
            raise PeerError(f"NIXL did not read the peer's blocks within {PROGRESS:.0f} s (state {state}).")


class NixlSender:
    """Announces available blocks; the receiver reads them without it."""

    def __init__(self, channel: Channel, block_bytes: int):
        self._channel, self._most = channel, places(block_bytes)

    def send(self, run: Run) -> None:
        for some in run.cut(self._most):
            self._channel.send(some.message(list(some.blocks)), PROGRESS)

    def copied(self, message: Copied) -> None:
        """Do nothing: no buffer is reused."""

    def close(self) -> None:
        pass


class NixlReceiver:
    def __init__(self, channel: Channel, memory: BlockMemory, agent: NixlAgent, introduction: bytes):
        """introduction: of the sender's agent. Raises PeerError."""
        self._channel, self._memory, self._agent = channel, memory, agent
        try:
            self._there = msgspec.msgpack.decode(introduction, type=_SenderInfo)
            self._peer = agent.know(self._there.metadata)
            self._own = bytearray(places(memory.block_bytes) * memory.block_bytes)
            self._registered = agent.register(self._own)
            self._is_lost = False
        except Exception as fault:
            raise PeerError(
                f"NIXL does not reach {channel.peer} ({type(fault).__name__}: {fault}); try --kv-transport tcp."
            ) from fault

    def receive(self, message: Blocks, into: Sequence[int]) -> None:
        size, there = self._memory.block_bytes, self._there
        if len(message.at) != message.count or message.count > places(size) or max(message.at) >= there.blocks:
            raise PeerError(f"{self._channel.peer} names blocks that it does not have.")
        own, start, part = _address(self._own), message.start, (message.end or size) - message.start
        sources = [there.address + block * size + start for block in message.at]
        try:
            self._agent.read(self._peer, sources, [own + place * part for place in range(message.count)], part)
        except PeerError:
            self._is_lost = True
            raise
        for place, view in enumerate(self._memory.views(into, start, start + part)):
            view[:] = memoryview(self._own)[place * part : (place + 1) * part]

    def close(self) -> None:
        self._agent.forget(self._own, self._registered, is_lost=self._is_lost)


def _address(memory: memoryview | bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
