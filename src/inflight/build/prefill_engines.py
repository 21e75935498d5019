"""Build an engine with prefill engines beside it in one process; they share cores, memory and a secret."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from inflight.build.engine import Engine, build_engine
from inflight.build.kv_transfer import KVPeerSettings
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import Resolved, SettingsError
from inflight.config.threads import resolve_threads
from inflight.core.types.kv_transfer import KVTransferOptions, Role
from inflight.frontend.prefill_engines import NO_PREFILL_ENGINES, PrefillEngine, PrefillEngines
from inflight.peer_secret import PeerSecret

MAX_ENGINES = 8
ASKED_BY = "prefill_engines"
_TIMEOUT = 600.0  # seconds; a peer in this process is known to be gone when it is


def build_engines(
    settings: EngineSettings,
    scheduling: SchedulingSettings | None = None,
    record: str | Path | None = None,
    prefill_engines: int = 0,
) -> tuple[Engine, PrefillEngines]:
    """Build an engine and the engines that compute its prompts, in turns. record: of the first engine.

    Raises:
        SettingsError: as `build_engine` does, or for the number of engines.
    """
    if not isinstance(prefill_engines, int) or not 0 <= prefill_engines <= MAX_ENGINES:
        raise SettingsError(
            f"prefill_engines is {prefill_engines!r}; give a whole number from 1 to {MAX_ENGINES}, or 0 for an engine "
            "that computes its prompts itself."
        )
    path = None if record is None else Path(record)
    if not prefill_engines:
        return build_engine(settings, scheduling, path), NO_PREFILL_ENGINES
    secret, each = PeerSecret.new(), _share(settings, 1 + prefill_engines)
    with ExitStack() as closed_by_a_fault:
        decode = build_engine(each, scheduling, path, peers=_peers("decode", secret))
        closed_by_a_fault.callback(decode.loop.close)
        prefill: list[PrefillEngine] = []
        for _ in range(prefill_engines):
            prefill.append(_started(build_engine(each, peers=_peers("prefill", secret))))
            closed_by_a_fault.callback(prefill[-1].close)
        closed_by_a_fault.pop_all()
    if settings.threads is None:
        why = f"the cores this process may use, shared by {1 + prefill_engines} engines"
        decode.settings["threads"] = Resolved(each.threads or 1, why)
    decode.settings[ASKED_BY] = Resolved(prefill_engines, "engines beside this one, which compute its prompts")
    return decode, PrefillEngines(prefill, decode.capacity.block_size)


def _share(settings: EngineSettings, engines: int) -> EngineSettings:
    """Return the settings of each engine: its share of the threads. Raises SettingsError for `--cpu-list`."""
    if settings.cpu_list is not None:
        raise SettingsError(
            f"--cpu-list gives the threads of one engine their CPUs, and prefill_engines adds {engines - 1}; leave one "
            "of them out."
        )
    if settings.threads is not None:
        return settings
    return replace(settings, threads=max(1, int(resolve_threads(settings).value) // engines))


def _peers(role: Role, secret: PeerSecret) -> KVPeerSettings:
    return KVPeerSettings(KVTransferOptions(role=role, transport="tcp", timeout=_TIMEOUT), secret, ASKED_BY, True)


def _started(engine: Engine) -> PrefillEngine:
    assert engine.peer_transfers is not None, "prefill engines export blocks"
    return PrefillEngine(engine.loop, engine.peer_transfers, engine.adapters)
