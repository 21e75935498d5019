"""An engine among peers: what it is to them, and the exchange itself.

Knows settings, and what of them a block's bits depend on; what is held, pulled and said, core and
`execution.kv_exchange` know.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from inflight.build.kv_description import adapter_digest
from inflight.config.setting import SettingsError
from inflight.core.types.kv_transfer import KVExchangeOptions
from inflight.core.types.sampling import Adapter
from inflight.execution.kv_exchange.block_memory import BlockMemory
from inflight.execution.kv_exchange.description import KVDescription
from inflight.execution.kv_exchange.exchange import ExchangeError, KVExchange
from inflight.frontend.adapter_names import AdapterNames
from inflight.peer_secret import PeerSecret


@dataclass(frozen=True, slots=True)
class PeersWanted:
    """An engine is to exchange blocks with others, who share its secret. asked_by: what whoever asked for it has set;
    empty: `--role`."""

    options: KVExchangeOptions
    secret: PeerSecret
    asked_by: str = ""

    @property
    def option(self) -> str:
        """How sentences call what asked for it."""
        return self.asked_by or f"--role {self.options.role}"

    def open(self, memory: BlockMemory | None, identity: PeerIdentity) -> KVExchange:
        """memory: of the engine's blocks. Raises SettingsError."""
        if memory is None:
            raise SettingsError(
                f"{self.option} hands over blocks that lie in this machine's memory, and this device has "
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
