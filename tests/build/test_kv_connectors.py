"""Which models support KV connectors, the errors of those that do not, and the identity of blocks for peers."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest
from core.harness import Setup
from execution.kv.transfer.two_peers import DESCRIPTION

from inflight.build.kv_connectors import ConnectorSettings, KVConnectors, resolve_connectors
from inflight.build.kv_transfer import KVIdentity, KVPeerSettings
from inflight.config.engine import EngineSettings
from inflight.config.setting import SettingsError
from inflight.core.types.kv_transfer import KVTransferOptions, Role
from inflight.core.types.sampling import Adapter
from inflight.execution.kv.block_memory import BlockMemory, KVMemory
from inflight.execution.kv.offload.staging import HostStaging
from inflight.execution.kv.transfer.staged_peers import StagedPeers
from inflight.execution.step_progress import StepActivity
from inflight.frontend.adapter_names import AdapterNames
from inflight.peer_secret import PeerSecret

CAPACITY = Setup().capacity


def peers(role: Role = "prefill", asked_by: str = "") -> KVPeerSettings:
    return KVPeerSettings(KVTransferOptions(role=role), PeerSecret(b"a secret of many bytes"), asked_by)


def settings(**given: object) -> EngineSettings:
    return EngineSettings(load_format="dummy", model="nowhere", **given)  # type: ignore[arg-type]


def test_encoder_only_models_have_no_connectors(tmp_path: Path) -> None:
    asked = settings(kv_cache_dir=str(tmp_path))
    with pytest.raises(SettingsError, match=r"^--kv-cache-dir keeps prefixes, and an encoder-only model caches none"):
        resolve_connectors(asked, None, tmp_path, is_bidirectional=True)
    with pytest.raises(SettingsError, match=r"^--role prefill transfers prefixes, and an encoder-only model caches"):
        resolve_connectors(settings(), peers(), tmp_path, is_bidirectional=True)
    with pytest.raises(SettingsError, match=r"^prefill_engines transfers prefixes, and an encoder-only model caches"):
        resolve_connectors(settings(), peers(asked_by="prefill_engines"), tmp_path, is_bidirectional=True)


def test_peers_need_one_device_the_prefix_cache_and_memory_of_this_machine(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^--role both transfers blocks of one device, and --tensor-parallel-size"):
        resolve_connectors(settings(tensor_parallel_size=2), peers("both"), tmp_path, is_bidirectional=False)
    without = settings(enable_prefix_caching=False)
    with pytest.raises(SettingsError, match=r"^--role both needs the prefix cache"):
        resolve_connectors(without, peers("both"), tmp_path, is_bidirectional=False)
    with pytest.raises(SettingsError, match=r"^prefill_engines needs the prefix cache"):
        resolve_connectors(without, peers(asked_by="prefill_engines"), tmp_path, is_bidirectional=False)
    with pytest.raises(SettingsError, match="this device has them elsewhere"):
        peers().open(None, KVIdentity(DESCRIPTION))


def test_without_connectors_nothing_is_read_and_unreadable_files_are_refused(tmp_path: Path) -> None:
    config = resolve_connectors(settings(), None, tmp_path / "nowhere", is_bidirectional=False)
    connectors = KVConnectors(config, lambda digest: DESCRIPTION)
    assert (
        config.digest is None and not list(connectors.open(lambda: None, StepActivity())) and not connectors.resolved()
    )
    assert not connectors.sources(CAPACITY)
    assert connectors.sink is connectors.export_identity is connectors.peer_transfers is connectors.of_loop is None
    config = resolve_connectors(EngineSettings(model="nowhere"), peers(), tmp_path / "nowhere", is_bidirectional=False)
    with pytest.raises(SettingsError, match="model's files cannot be read"):
        list(KVConnectors(config, lambda digest: DESCRIPTION).open(lambda: None, StepActivity()))


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


def test_transfers_by_way_of_host_memory_are_abandoned_with_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    abandoned: list[StagedPeers] = []
    monkeypatch.setattr(StagedPeers, "abandon", lambda peers: abandoned.append(peers))
    digest: Future[str] = Future()
    digest.set_result("")
    connectors = KVConnectors(ConnectorSettings(None, peers("decode"), digest), lambda digest: DESCRIPTION)
    memory = KVMemory(BlockMemory(memoryview(bytearray(64)), 16), 1, None)
    (tier,) = connectors.open(lambda: HostStaging(memory, 0, 0, _no_copy, _no_copy), StepActivity())
    connectors.abandon()
    assert abandoned == [tier]
    tier.close()


def _no_copy(sources: object, targets: object) -> None:
    """Copy nothing."""
