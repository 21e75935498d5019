"""Identity of an engine's blocks for its peers."""

from __future__ import annotations

from pathlib import Path

import pytest
from execution.kv_exchange.two_exchanges import DESCRIPTION

from inflight.build.kv_transfer import KVIdentity, KVPeerSettings
from inflight.config.setting import SettingsError
from inflight.core.types.kv_transfer import KVExchangeOptions
from inflight.core.types.sampling import Adapter
from inflight.frontend.adapter_names import AdapterNames
from inflight.peer_secret import PeerSecret

PEERS = KVPeerSettings(KVExchangeOptions(role="prefill"), PeerSecret(b"a secret of many bytes"))


def test_blocks_outside_this_machines_memory_are_refused() -> None:
    with pytest.raises(SettingsError, match="this device has them elsewhere"):
        PEERS.open(None, KVIdentity(DESCRIPTION))


def test_adapters_are_described_as_loaded_and_identified_by_their_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_model.safetensors").write_text(name)
    one, two = Adapter("a", str(tmp_path / "one")), Adapter("a", str(tmp_path / "two"), 1)
    identity = KVIdentity(DESCRIPTION)
    assert identity.describe().adapters == {}
    identity.adapters = AdapterNames(None, [one])
    assert set(identity.describe().adapters) == {"a"}
    kinds = {identity.fingerprint(None), identity.fingerprint(one), identity.fingerprint(two)}
    assert len(kinds) == 3
    moved = Adapter("b", str(tmp_path / "one"), 7)
    assert identity.fingerprint(moved) == identity.fingerprint(one), (
        "the same files are the same adapter, whatever its number"
    )
    gone = Adapter("gone", str(tmp_path / "nowhere"))
    assert identity.fingerprint(gone) not in kinds
