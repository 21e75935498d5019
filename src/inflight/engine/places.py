"""Where an engine's blocks are beyond its device, as its loop has them. Knows what is counted there, and that transfers
with peers can be given up; the transfers themselves are the executor's."""

from __future__ import annotations

from typing import Protocol

from inflight.core.types.kv_transfer import FolderStats, KVExportStats


class Places(Protocol):
    def folder_stats(self) -> FolderStats | None:
        """None: there is no folder."""

    def handed_over(self) -> KVExportStats | None:
        """To peers; None: nothing is handed over."""

    def abandon(self) -> None:
        """Transfers with peers, which may take long, end as soon as can be."""
