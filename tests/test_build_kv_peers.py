"""What an engine is to its peers."""

from __future__ import annotations

from pathlib import Path

import pytest
from execution.kv_exchange.two_exchanges import DESCRIPTION

from inflight.build.kv_peers import PeerIdentity, PeersWanted
from inflight.config.setting import SettingsError
from inflight.core.types.kv_transfer import KVExchangeOptions
from inflight.core.types.sampling import Adapter
from inflight.frontend.adapter_names import AdapterNames
from inflight.peer_secret import PeerSecret

WANTED = PeersWanted(KVExchangeOptions(role="prefill"), PeerSecret(b"a secret of many bytes"))


def test_blocks_that_lie_elsewhere_are_refused() -> None:
    with pytest.raises(SettingsError, match="this device has them elsewhere"):
        WANTED.open(None, PeerIdentity(DESCRIPTION))


def test_adapters_are_told_as_they_are_now_and_named_by_their_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_model.safetensors").write_text(name)
    one, two = Adapter("a", str(tmp_path / "one")), Adapter("a", str(tmp_path / "two"), 1)
    identity = PeerIdentity(DESCRIPTION)
    assert identity.describe().adapters == {}
    identity.adapters = AdapterNames(None, [one])
    assert set(identity.describe().adapters) == {"a"}
    kinds = {identity.identity(None), identity.identity(one), identity.identity(two)}
    assert len(kinds) == 3
    moved = Adapter("b", str(tmp_path / "one"), 7)
    assert identity.identity(moved) == identity.identity(one), (
        "the same files are the same adapter, whatever its number"
    )
    gone = Adapter("gone", str(tmp_path / "nowhere"))
    assert identity.identity(gone) not in kinds
