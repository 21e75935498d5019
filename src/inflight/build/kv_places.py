"""The places of an engine's blocks beyond its device, a folder and peers: which are asked for, and what its parts have
of them.

Knows three moments: before weights are read (`wanted_places`), when a place that the engine cannot have is told of, and
the model's files begin to be digested; when there is memory for blocks (`KVPlaces.open`); and when scheduler and loop
are made. What a folder is, `kv_tiers` knows; what peers are, `kv_peers`; what moves, core and execution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from inflight.config.engine import EngineSettings
from inflight.config.setting import Resolved, SettingsError
from inflight.core.kv.peer_source import Identity, PeerSource
from inflight.core.types.kv_blocks import KVSource
from inflight.core.types.kv_transfer import FolderStats, KVExportStats
from inflight.execution.block_transfers import PlaceTransfers
from inflight.execution.kv_exchange.block_memory import BlockMemory
from inflight.execution.memory import gib
from inflight.execution.step_activity import StepActivity
from inflight.frontend.adapter_names import AdapterNames
from inflight.models.gguf.gguf_model import GGUFModel

if TYPE_CHECKING:
    from inflight.build.kv_peers import PeerIdentity, PeersWanted
    from inflight.build.kv_tiers import WantedFolder
    from inflight.execution.kv_exchange.description import KVDescription
    from inflight.execution.kv_exchange.exchange import KVExchange
    from inflight.execution.tiers.folder_tier import FolderTier


class KeptState(Struct, frozen=True):
    """What sequences of a model go on behind. windows: of its KV groups. whole_texts: nothing is kept of them.
    is_recurrent: some layers keep a state as well."""

    windows: tuple[int, ...]
    whole_texts: bool
    is_recurrent: bool

    def check(self, option: str, does: str) -> None:
        """Whether blocks of one kind are all of it, as whatever `option` does with them needs. Raises SettingsError."""
        if self.whole_texts:
            raise SettingsError(f"{option} {does} prefixes, and this model computes whole texts; leave it out.")
        if self.windows != (0,):
            raise SettingsError(
                f"{option} {does} blocks of one KV group, and this model has {len(self.windows)} (windows of "
                f"{', '.join(map(str, self.windows))} tokens, where 0 is all); leave it out."
            )
        if self.is_recurrent:
            raise SettingsError(
                f"{option} {does} keys and values, and layers of this model keep a recurrent state as well, which it "
                "does not; leave it out."
            )


class WantedPlaces(Struct, frozen=True):
    """None: not asked for. digest: of the model's files, where it is needed."""

    folder: WantedFolder | None
    peers: PeersWanted | None
    digest: Future[str] | None


def wanted_places(
    settings: EngineSettings, peers: PeersWanted | None, files: Path | GGUFModel, kept: KeptState
) -> WantedPlaces:
    """Raises SettingsError for what this model or these settings cannot have."""
    if settings.kv_cache_dir is not None:
        kept.check("--kv-cache-dir", "keeps")
    if peers is not None:
        kept.check(peers.option, "hands over")
        if not settings.enable_prefix_caching:
            raise SettingsError(
                f"{peers.option} needs the prefix cache, in which blocks of other engines are found, and "
                "--no-prefix-caching switches it off; leave one of them out."
            )
    if settings.kv_cache_dir is None and peers is None:
        return WantedPlaces(None, None, None)
    from inflight.build.kv_description import model_digest
    from inflight.build.kv_tiers import wanted_folder

    folder = wanted_folder(settings)
    return WantedPlaces(folder, peers, model_digest(settings, files, None if folder is None else folder.path))


class KVPlaces:
    """Of one engine. Its parts are asked for when the executor has been made."""

    def __init__(self, wanted: WantedPlaces, describe: Callable[[str], KVDescription], block_size: int):
        """describe(digest): what the engine's blocks are, with such files."""
        self._wanted, self._describe, self._block_size = wanted, describe, block_size
        self._identity: PeerIdentity | None = None  # from when there is memory: files are read while weights are packed
        self._tier: FolderTier | None = None
        self.exchange: KVExchange | None = None

    def open(self, memory: BlockMemory | None, steps: StepActivity) -> Iterator[PlaceTransfers]:
        """memory: of the engine's blocks. steps: its own. Raises SettingsError, for files that are gone, too."""
        if self._wanted.digest is None:
            return
        from inflight.build.kv_description import adapter_digest
        from inflight.build.kv_peers import PeerIdentity

        self._identity = identity = PeerIdentity(self._describe(_digest(self._wanted.digest)))
        if self._wanted.folder is not None:
            self._tier = self._wanted.folder.open(memory, self._block_size, identity.describe(), adapter_digest, steps)
            yield self._tier
        if self._wanted.peers is not None:
            self.exchange = self._wanted.peers.open(memory, identity)
            yield self.exchange

    def has_adapters(self, adapters: AdapterNames) -> None:
        """From now on; they come and go."""
        if self._identity is not None:
            self._identity.adapters = adapters

    @property
    def sources(self) -> Sequence[KVSource]:
        """From where blocks of prefixes are brought."""
        peers = self._wanted.peers
        takes = peers is not None and peers.options.takes
        found: list[KVSource] = [] if self._tier is None else [self._tier]
        return [*found, PeerSource(self._block_size, self._identity.identity)] if takes and self._identity else found

    @property
    def sink(self) -> FolderTier | None:
        """In which blocks are kept."""
        return self._tier

    @property
    def handed_over_as(self) -> Identity | None:
        """By which blocks of prompts are handed over to peers; None: they are not."""
        peers = self._wanted.peers
        return None if peers is None or not peers.options.gives or self._identity is None else self._identity.identity

    @property
    def of_loop(self) -> KVPlaces | None:
        """`engine.places.Places`; None: there are none."""
        return None if self._tier is None and self.exchange is None else self

    def folder_stats(self) -> FolderStats | None:
        return None if self._tier is None else self._tier.stats()

    def handed_over(self) -> KVExportStats | None:
        return None if self.exchange is None or not self.exchange.gives else self.exchange.handed_over

    def abandon(self) -> None:
        if self.exchange is not None:
            self.exchange.abandon()

    def in_force(self) -> dict[str, Resolved]:
        told, folder, peers = {}, self._wanted.folder, self._wanted.peers
        if folder is not None:
            told["kv_cache_dir"] = Resolved(str(folder.path), f"blocks are kept there, up to {gib(folder.most_bytes)}")
        if peers is not None:
            told["role"] = Resolved(peers.options.role, "keys and values of prompts are exchanged with peers")
        return told


def _digest(digest: Future[str]) -> str:
    try:
        return digest.result()
    except OSError as error:
        raise SettingsError(
            f"The model's files cannot be read ({error.strerror or error}), by which blocks are told apart; give a "
            "folder that stays as it is."
        ) from error
