"""Places of peers: what is written is read as it was, whatever names are like."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.core.types.kv_transfer import PeerAddress, export_of, export_tier, is_of_peers, peer_of
from inflight.core.types.plan import HOST


@given(st.text(max_size=40), st.integers(0, 65535), st.text(max_size=40))
def test_what_is_written_is_read(host: str, port: int, export_id: str) -> None:
    peer = PeerAddress(host, port, export_id)
    assert peer_of(peer.tier) == peer and is_of_peers(peer.tier) and export_of(peer.tier) is None
    assert export_of(export_tier(export_id)) == export_id and is_of_peers(export_tier(export_id))


def test_others_are_none() -> None:
    assert not is_of_peers(HOST) and export_of(HOST) is None
    with pytest.raises(ValueError, match="not the address of a peer"):
        peer_of(export_tier("one"))
