"""The KV connectors of an engine, a folder and peers: which are asked for, and what scheduler and loop get of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from inflight.config.engine import EngineSettings
from inflight.config.setting import Resolved, SettingsError
from inflight.core.kv.connector import Fingerprint
from inflight.core.kv.kv_export import ExportLayout, PeerSource
from inflight.core.types.kv_blocks import KVSource
from inflight.core.types.kv_transfer import FolderStats, KVExportStats
from inflight.core.types.plan import Capacity
from inflight.execution.kv.block_memory import KVMemory
from inflight.execution.kv.block_transfers import TierTransfers
from inflight.execution.kv.offload.staging import (
    PEER_BYTES,
    STAGING_BLOCKS,
    STAGING_STATES,
    HostStaging,
    StagedTransfers,
)
from inflight.execution.memory import gib
from inflight.execution.step_progress import StepActivity
from inflight.frontend.adapter_names import AdapterNames
from inflight.models.gguf.gguf_model import GGUFModel

if TYPE_CHECKING:
    from inflight.build.kv_transfer import KVFolderSettings, KVIdentity, KVPeerSettings
    from inflight.execution.kv.offload.folder_tier import FolderTier
    from inflight.execution.kv.transfer.description import KVDescription
    from inflight.execution.kv.transfer.peer_transfers import PeerTransfers


class ConnectorSettings(Struct, frozen=True):
    """The connectors that are asked for. digest: of the model's files, None where no connector needs it."""

    folder: KVFolderSettings | None
    peers: KVPeerSettings | None
    digest: Future[str] | None


def resolve_connectors(
    settings: EngineSettings, peers: KVPeerSettings | None, files: Path | GGUFModel, is_bidirectional: bool
) -> ConnectorSettings:
    """Check what is asked for, make the folder and begin to digest the model's files.

    Args:
        settings: Of the engine.
        peers: KV transfer with peers; None: it is off.
        files: Of the model.
        is_bidirectional: Whether inputs are computed in one pass, and nothing of them is cached.

    Raises:
        SettingsError: this model or these settings do not go together with it.
    """
    if settings.kv_cache_dir is not None:
        _check_cached("--kv-cache-dir", "keeps", is_bidirectional)
    if peers is not None:
        _check_cached(peers.option, "transfers", is_bidirectional)
        if settings.tensor_parallel_size > 1:
            raise SettingsError(
                f"{peers.option} transfers blocks of one device, and --tensor-parallel-size is "
                f"{settings.tensor_parallel_size}; leave one of them out."
            )
        if not settings.enable_prefix_caching:
            raise SettingsError(
                f"{peers.option} needs the prefix cache, by which blocks are found, and "
                "--no-prefix-caching switches it off; leave one of them out."
            )
    if settings.kv_cache_dir is None and peers is None:
        return ConnectorSettings(None, None, None)
    from inflight.build.kv_transfer import make_folder, submit_model_digest

    folder = make_folder(settings)
    remembered = None if folder is None else folder.path
    return ConnectorSettings(folder, peers, submit_model_digest(settings, files, remembered))


class KVConnectors:
    """The connectors of one engine; its parts ask for theirs once the executor is made."""

    def __init__(self, settings: ConnectorSettings, describe: Callable[[str], KVDescription]):
        """describe(digest): what the engine's blocks are, with model files of this digest."""
        self._settings, self._describe = settings, describe
        self._identity: KVIdentity | None = None  # set when there is memory: files are read while weights are packed
        self._tier: FolderTier | None = None
        self.peer_transfers: PeerTransfers | None = None
        self._abandon: Callable[[], None] = lambda: None

    def open(
        self, find_memory: Callable[[], KVMemory | HostStaging | None], steps: StepActivity
    ) -> Iterator[TierTransfers]:
        """Open them over the engine's blocks. Raises SettingsError, also where the model's files are gone."""
        if self._settings.digest is None:
            return
        from inflight.build.kv_transfer import KVIdentity

        found = find_memory()
        of_folder, of_peers = self._split(found) if isinstance(found, HostStaging) else (found, found)
        self._identity = identity = KVIdentity(self._describe(_result(self._settings.digest)))
        if self._settings.folder is not None:
            memory = of_folder.memory if isinstance(of_folder, HostStaging) else of_folder
            self._tier = self._settings.folder.open(memory, identity, steps)
            yield StagedTransfers(self._tier, of_folder) if isinstance(of_folder, HostStaging) else self._tier
        if self._settings.peers is not None:
            memory = of_peers.memory if isinstance(of_peers, HostStaging) else of_peers
            memory = None if isinstance(of_peers, HostStaging) and not self.peer_bytes else memory
            self.peer_transfers = peers = self._settings.peers.open(memory, identity)
            self._abandon = peers.abandon
            if isinstance(of_peers, HostStaging):
                from inflight.execution.kv.transfer.staged_peers import StagedPeers

                staged = StagedPeers(peers, of_peers)
                self._abandon = staged.abandon
                yield staged
            else:
                yield peers

    @property
    def peer_bytes(self) -> int:
        """Bytes of host memory by which a device with memory of its own transfers blocks with peers; 0: it does not."""
        peers = self._settings.peers
        return 0 if peers is None or peers.shares_device else PEER_BYTES

    def _split(self, staging: HostStaging) -> tuple[HostStaging, HostStaging]:
        """Split host memory into that of the folder and that of peers."""
        if self._settings.folder is None:
            return staging.split(0, 0)
        if self._settings.peers is None:
            return staging, staging
        return staging.split(STAGING_BLOCKS, STAGING_STATES)

    def set_adapters(self, adapters: AdapterNames) -> None:
        """Describe blocks with these adapters from now on."""
        if self._identity is not None:
            self._identity.adapters = adapters

    def sources(self, capacity: Capacity) -> Sequence[KVSource]:
        """Return where blocks of prefixes are loaded from. capacity: of the executor."""
        peers = self._settings.peers
        found: list[KVSource] = [] if self._tier is None else [self._tier]
        if peers is not None and peers.options.is_consumer and self._identity is not None:
            found.append(PeerSource(ExportLayout.of(capacity), self._identity.fingerprint))
        return found

    @property
    def sink(self) -> FolderTier | None:
        """Where blocks are stored."""
        return self._tier

    @property
    def export_identity(self) -> Fingerprint | None:
        """Return the fingerprint for the hashes of blocks that are exported to peers; None: none are."""
        peers = self._settings.peers
        gives = peers is not None and peers.options.is_producer
        return self._identity.fingerprint if gives and self._identity is not None else None

    @property
    def of_loop(self) -> KVConnectors | None:
        """The `RemoteKV` of the loop; None: there are no connectors."""
        return None if self._tier is None and self.peer_transfers is None else self

    def folder_stats(self) -> FolderStats | None:
        return None if self._tier is None else self._tier.stats()

    def export_stats(self) -> KVExportStats | None:
        return (
            None
            if self.peer_transfers is None or not self.peer_transfers.is_producer
            else self.peer_transfers.export_stats
        )

    def abandon(self) -> None:
        """End transfers with peers as soon as possible."""
        self._abandon()

    def resolved(self) -> dict[str, Resolved]:
        found, folder, peers = {}, self._settings.folder, self._settings.peers
        if folder is not None:
            found["kv_cache_dir"] = Resolved(str(folder.path), f"blocks are kept there, up to {gib(folder.max_bytes)}")
        if peers is not None:
            found["role"] = Resolved(peers.options.role, "keys and values of prompts are transferred between peers")
        return found


def _check_cached(option: str, does: str, is_bidirectional: bool) -> None:
    """Check that sequences have prefixes that can be cached, as `option` needs. Raises SettingsError."""
    if is_bidirectional:
        raise SettingsError(f"{option} {does} prefixes, and an encoder-only model caches none; leave it out.")


def _result(digest: Future[str]) -> str:
    try:
        return digest.result()
    except OSError as error:
        raise SettingsError(
            f"The model's files cannot be read ({error.strerror or error}), by which blocks are identified; give a "
            "folder that stays as it is."
        ) from error
