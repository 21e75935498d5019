"""An engine among peers: whether it can exchange blocks with others, what it is to them, and the exchange itself.

Knows settings, and what of them a block's bits depend on; what is held, pulled and said, core and
`execution.kv_exchange` know.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from inflight.build.kv_description import adapter_digest
from inflight.config.setting import SettingsError
from inflight.core.kv.peer_source import Identity, PeerSource
from inflight.core.types.adapter import Adapter
from inflight.core.types.block_source import BlockSource
from inflight.core.types.kv_exchange_options import KVExchangeOptions
from inflight.execution.kv_exchange.block_memory import BlockMemory
from inflight.execution.kv_exchange.description import KVDescription
from inflight.execution.kv_exchange.exchange import ExchangeError, KVExchange
from inflight.frontend.adapter_names import AdapterNames
from inflight.peer_secret import PeerSecret


@dataclass(frozen=True, slots=True)
class PeersWanted:
    """An engine is to exchange blocks with others, who share its secret."""

    options: KVExchangeOptions
    secret: PeerSecret

    def check(self, windows: tuple[int, ...], whole_texts: bool, has_state: bool, caches_prefixes: bool) -> None:
        """Whether blocks of one kind are all that a sequence goes on behind. windows: of the KV groups. Raises
        SettingsError."""
        role = f"--role {self.options.role}"
        if whole_texts:
            raise SettingsError(f"{role} hands over prompts, and this model computes whole texts; leave it out.")
        if not caches_prefixes:
            raise SettingsError(
                f"{role} needs the prefix cache, in which blocks of other engines are found, and --no-prefix-caching "
                "switches it off; leave one of them out."
            )
        if windows != (0,):
            raise SettingsError(
                f"{role} hands over blocks of one KV group, and this model has {len(windows)} (windows of "
                f"{', '.join(map(str, windows))} tokens, where 0 is all); leave it out."
            )
        if has_state:
            raise SettingsError(
                f"{role} hands over keys and values, and layers of this model keep a recurrent state as well, which is "
                "not handed over; leave it out."
            )

    def open(self, memory: BlockMemory | None, identity: PeerIdentity) -> KVExchange:
        """memory: of the engine's blocks. Raises SettingsError."""
        if memory is None:
            raise SettingsError(
                f"--role {self.options.role} hands over blocks that lie in this machine's memory, and this device has "
                "them elsewhere; leave it out."
            )
        try:
            return KVExchange(self.options, self.secret, identity.describe, memory)
        except ExchangeError as error:
            raise SettingsError(str(error)) from None


class PeerIdentity:
    """What an engine is to its peers, now: adapters come and go."""

    def __init__(self, described: KVDescription) -> None:
        self._described = described
        self._model = msgspec.json.encode(msgspec.structs.replace(described, model="", adapters={}))
        self._digests: dict[Adapter, str] = {}  # of files, which are read once
        self.adapters: AdapterNames | None = None  # None until the engine has them

    def describe(self) -> KVDescription:
        adapters = () if self.adapters is None else self.adapters.all
        return msgspec.structs.replace(self._described, adapters={one.name: self._digest(one) for one in adapters})

    def identity(self, adapter: Adapter | None) -> bytes:
        """Of what a block holds of its tokens: the model, how it is computed, and the adapter's files."""
        told = self._model + (b"" if adapter is None else self._digest(adapter).encode())
        return blake2b(told, digest_size=16, person=b"inflight-kv-peer").digest()

    def _digest(self, adapter: Adapter) -> str:
        """Of files that are gone by now: what no peer has."""
        if adapter not in self._digests:
            try:
                self._digests[adapter] = adapter_digest(adapter)
            except OSError:
                self._digests[adapter] = f"gone {id(self)} {adapter.number}"
        return self._digests[adapter]


def peer_parts(
    wanted: PeersWanted | None, identity: PeerIdentity | None, block_size: int
) -> tuple[Identity | None, tuple[BlockSource, ...]]:
    """What core has of the exchange: by which blocks are handed over, and from where they are taken."""
    if wanted is None or identity is None:
        return None, ()
    takes = (PeerSource(block_size, identity.identity),) if wanted.options.takes else ()
    return identity.identity if wanted.options.gives else None, takes
