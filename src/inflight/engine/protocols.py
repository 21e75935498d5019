"""Protocols of the engine: its client, the gate for grammars, and the tiers of its KV cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from inflight.core.types.kv_transfer import FolderStats, KVExportStats
from inflight.core.types.request import Request
from inflight.core.types.sampling import Grammar, GrammarStats
from inflight.engine.event_stream import EventStream


class EngineClient(Protocol):
    """An engine in this process (`bridge`) or in another (`remote`).

    All methods are called in the client's event loop; `close` is called in any thread.
    """

    async def open(self, *requests: Request) -> EventStream:
        """Submit requests, all of them or none. Raises RequestRefused or EngineStopped."""

    @property
    def stopped(self) -> str | None:
        """Why the engine has stopped; None while it runs."""

    def close(self) -> None:
        """Abort this client's requests; their consumers get an error."""


class Preparation(Protocol):
    """Compilation of some grammars."""

    @property
    def is_ready(self) -> bool:
        """Whether all are compiled, or have failed."""

    def cancel(self) -> None:
        """Stop compiling what no other request waits for, and release the rest; idempotent."""


class GrammarGate(Protocol):
    """Compiles grammars of requests before the engine gets these, and refuses those that cannot be compiled."""

    def warm_up(self) -> None:
        """Begin to load what every grammar needs, before the first comes."""

    def prepare(self, grammars: Sequence[Grammar], then: Callable[[], None], tenant: str = "") -> Preparation:
        """Compile grammars beside the engine.

        Args:
            grammars: To compile; their results are retained until the preparation is cancelled, so that `check` does
                not wait.
            then: Called in any thread when all are compiled or have failed; not called if they were before.
            tenant: Tenants take turns.

        Raises:
            RequestRefused: Too many wait.
        """

    def check(self, grammar: Grammar) -> None:
        """Wait for a grammar that was not prepared. Raises RequestRefused if it cannot be compiled."""

    def stats(self) -> GrammarStats:
        """Return counts since the engine began."""


class RemoteKV(Protocol):
    """Tiers and peers of an engine's KV cache, beyond the device and the host."""

    def folder_stats(self) -> FolderStats | None:
        """Return counts of the folder; None where there is none."""

    def export_stats(self) -> KVExportStats | None:
        """Return counts of blocks exported to peers; None where none are."""

    def abandon(self) -> None:
        """End transfers with peers, which may take long, as soon as possible."""
