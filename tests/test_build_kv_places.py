"""Which models can have places of blocks beyond the device, and what is said where they cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
from execution.kv_exchange.two_exchanges import DESCRIPTION

from inflight.build.kv_peers import PeersWanted
from inflight.build.kv_places import KeptState, KVPlaces, wanted_places
from inflight.config.engine import EngineSettings
from inflight.config.setting import SettingsError
from inflight.core.types.kv_transfer import KVExchangeOptions, Role
from inflight.execution.step_activity import StepActivity
from inflight.peer_secret import PeerSecret

PLAIN = KeptState((0,), whole_texts=False, is_recurrent=False)
REFUSED = [
    (KeptState((0,), True, False), "computes whole texts"),
    (KeptState((0, 512), False, False), "has 2 (windows of 0, 512 tokens"),
    (KeptState((0,), False, True), "keep a recurrent state"),
]


def peers(role: Role = "prefill", asked_by: str = "") -> PeersWanted:
    return PeersWanted(KVExchangeOptions(role=role), PeerSecret(b"a secret of many bytes"), asked_by)


def settings(**given: object) -> EngineSettings:
    return EngineSettings(load_format="dummy", model="nowhere", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kept", "says"), REFUSED)
def test_what_is_not_all_of_a_sequence_is_refused(kept: KeptState, says: str, tmp_path: Path) -> None:
    for place in ({"settings": settings(kv_cache_dir=str(tmp_path))}, {"settings": settings(), "peers": peers()}):
        with pytest.raises(SettingsError) as refusal:
            wanted_places(place["settings"], place.get("peers"), tmp_path, kept)  # type: ignore[arg-type]
        assert says in str(refusal.value)
        assert str(refusal.value).startswith(("--kv-cache-dir keeps", "--role prefill hands over"))


def test_peers_need_the_prefix_cache_and_are_called_as_they_were_asked_for(tmp_path: Path) -> None:
    without = settings(enable_prefix_caching=False)
    with pytest.raises(SettingsError, match=r"^--role both needs the prefix cache"):
        wanted_places(without, peers("both"), tmp_path, PLAIN)
    with pytest.raises(SettingsError, match=r"^prefill_engines needs the prefix cache"):
        wanted_places(without, peers(asked_by="prefill_engines"), tmp_path, PLAIN)


def test_without_places_nothing_is_opened_nor_digested(tmp_path: Path) -> None:
    wanted = wanted_places(settings(), None, tmp_path / "nowhere", PLAIN)
    places = KVPlaces(wanted, lambda digest: DESCRIPTION, 16)
    assert wanted.digest is None and not list(places.open(None, StepActivity())) and not places.in_force()
    assert not places.sources and places.sink is places.handed_over_as is places.exchange is places.of_loop is None


def test_files_that_cannot_be_read_are_told_in_a_sentence(tmp_path: Path) -> None:
    wanted = wanted_places(EngineSettings(model="nowhere"), peers(), tmp_path / "nowhere", PLAIN)
    with pytest.raises(SettingsError, match="model's files cannot be read"):
        list(KVPlaces(wanted, lambda digest: DESCRIPTION, 16).open(None, StepActivity()))
