"""Who can have peers, and what an engine is to them."""

from __future__ import annotations

from pathlib import Path

import pytest
from execution.kv_exchange.two_exchanges import DESCRIPTION

from inflight.build.kv_peers import PeerIdentity, PeersWanted
from inflight.config.setting import SettingsError
from inflight.core.types.adapter import Adapter
from inflight.core.types.kv_exchange_options import KVExchangeOptions
from inflight.frontend.adapter_names import AdapterNames
from inflight.peer_secret import PeerSecret

WANTED = PeersWanted(KVExchangeOptions(role="prefill"), PeerSecret(b"a secret of many bytes"))


@pytest.mark.parametrize(
    ("windows", "whole_texts", "has_state", "caches", "says"),
    [
        ((0,), True, False, True, "computes whole texts"),
        ((0, 512), False, False, True, "has 2 (windows of 0, 512 tokens"),
        ((0,), False, True, True, "keep a recurrent state"),
        ((0,), False, False, False, "--no-prefix-caching"),
    ],
)
def test_what_cannot_be_handed_over_is_refused(
    windows: tuple[int, ...], whole_texts: bool, has_state: bool, caches: bool, says: str
) -> None:
    with pytest.raises(SettingsError) as refusal:
        WANTED.check(windows, whole_texts, has_state, caches)
    assert says in str(refusal.value) and str(refusal.value).startswith("--role prefill")


def test_others_are_not() -> None:
    WANTED.check((0,), False, False, True)


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
