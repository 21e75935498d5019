"""Load an engine for a server: build it, add the server's metrics as an observer, and describe it.

Loads nothing of HTTP, which an engine's process does not need.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from inflight import __version__
from inflight.config.engine import EngineSettings
from inflight.config.setting import Resolved, SettingsError
from inflight.config.threads import load_numpy
from inflight.core.kv.prefix_cache import KVEventQueue
from inflight.core.types.executor import Executor
from inflight.core.types.sampling import SamplingParams
from inflight.engine.bridge import AsyncBridge
from inflight.engine.event_stream import EngineStopped
from inflight.frontend.defaults import overridden, sampling_defaults
from inflight.frontend.parsers.parser_choice import ParserNames
from inflight.frontend.parsers.registry import NONE
from inflight.launch.engine_setup import ModelSetup
from inflight.live.engine_feed import EngineFeed
from inflight.live.frames import Hello, Setting
from inflight.live.observer import LiveObserver
from inflight.models.gguf.gguf_model import is_gguf, model_name
from inflight.models.registry import read_generation
from inflight.peer_secret import PeerSecretError, read_peer_secret
from inflight.server.engine_description import EngineDescription, ServedLane
from inflight.server.kv_peers import KVPeering
from inflight.server.live.sources import EngineSource, FrameCache
from inflight.server.metrics.page import Metrics
from inflight.server.parsers import parsers_of, settled
from inflight.server.settings import ServerSettings
from inflight.text.text_files import TextFiles

if TYPE_CHECKING:
    from inflight.build import Engine, KVPeerSettings
    from inflight.engine.kv_events.publisher import KVEventPublisher

Doing = Callable[[str], None]  # called with the current stage of loading
Found = Callable[[TextFiles], None]  # called with the files of tokenizer and chat template
Wrap = Callable[[Executor, Resolved], Executor]


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine of this process, with its metrics and its frames for the live page: none where there is no page."""

    bridge: AsyncBridge
    metrics: Metrics
    described: EngineDescription
    frame_cache: FrameCache

    async def page(self) -> tuple[bytes, str]:
        """Return the metrics: text and content type."""
        try:
            stats = await self.bridge.stats()
        except EngineStopped:
            stats = None
        return await asyncio.to_thread(partial(self.metrics.render, stats))

    async def frames(self, asked: bytes, name: str) -> dict[str, bytes]:
        """Return frames of the live page, as `live.distant` encodes them, by the engine's name."""
        return {name: await self.frame_cache.answer(asked, name)}


def load_engine(
    setup: ModelSetup,
    doing: Doing = lambda stage: None,
    found: Found = lambda text: None,
    wrap: Wrap | None = None,
    kv_events: KVEventPublisher | None = None,
    peers: KVPeerSettings | None = None,
) -> tuple[Engine, LoadedEngine]:
    """Build the engine and return it, with what the server needs of it.

    Args:
        doing: Called with each stage of the loading.
        found: Called with the files of its text side before the engine is built.
        wrap: As in `build_engine`.
        kv_events: Publishes the changes of the prefix cache.
        peers: As in `build_engine`.
    """
    # Imported here, in the loader's thread: it loads numpy and the kernels.
    load_numpy()
    from inflight.build import build_engine, text_files

    def progress(done: int, total: int) -> None:
        doing(f"loading the model ({loaded(done, total)})")

    doing("loading the model")
    found(text_files(setup.engine))
    queue = None if kv_events is None else KVEventQueue()
    engine = build_engine(
        setup.engine, setup.scheduling, setup.record, progress, wrap=wrap, kv_event_queue=queue, peers=peers
    )
    engine.prompts.check_chat()
    _log_settings(setup.engine.device, engine.settings, setup.verbose)
    described = _describe(setup, engine)
    names, title = [one.name for one in described.lanes], described.models[0]
    metrics = Metrics(title, engine.capacity, setup.server.metrics_names, version=__version__, lanes=names)
    engine.loop.add_observer(metrics.observer)
    if kv_events is not None and queue is not None:
        from inflight.engine.kv_events.publisher import KVEventObserver

        engine.loop.add_observer(KVEventObserver(queue, kv_events))
    bridge = AsyncBridge(engine.loop)
    shown = _shown(engine, bridge, title, setup.record is not None) if setup.server.ui else None
    return engine, LoadedEngine(bridge, metrics, described, FrameCache(shown))


def _describe(setup: ModelSetup, engine: Engine) -> EngineDescription:
    """Describe the engine to API processes; log its parsers and its part in KV transfer."""
    lanes = [ServedLane(one.name, one.background, one.reads_priority) for one in engine.loop.dump(blocks=False).lanes]
    described = EngineDescription(
        models=_models(setup.server, setup.engine),
        max_model_len=engine.capacity.max_model_len,
        vocab_size=engine.capacity.vocab_size,
        max_sequences=setup.scheduling.max_queued,
        defaults=_sampling_defaults(setup.server, engine.defaults),
        seed=setup.engine.seed,
        clock_zero=time.monotonic() - engine.loop.clock.now(),
        parsers=_parsers(setup.server, engine),
        keeps_grammars=engine.loop.grammars is not None,
        generates=engine.capacity.generates,
        pooler=engine.model.pooler,
        text_prompts=engine.text_prompts,
        adapters=engine.adapters.all,
        lanes=tuple(lanes),
        peering=_peering(setup.server, engine),
        device=str(engine.settings["device"].value),
    )
    if described.peering is not None:
        log_line(_peering_sentence(described.peering))
    return described


def _sampling_defaults(settings: ServerSettings, own: SamplingParams) -> SamplingParams:
    """Return the sampling settings of requests that name none. own: the model's. Raises ModelError."""
    source, found = settings.generation_config, own
    if source == "vllm":
        found = SamplingParams()
    elif source != "auto":
        found = sampling_defaults(read_generation(Path(source).expanduser()))
    return overridden(found, settings.override_generation_config or {})


def wanted_peers(settings: ServerSettings) -> KVPeerSettings | None:
    """Return the settings of KV transfer, or None if it is off. Raises SettingsError for an unreadable secret."""
    options = settings.kv_transfer
    if options is None:
        return None
    from inflight.build import KVPeerSettings

    try:
        return KVPeerSettings(options, read_peer_secret(settings.kv_peer_secret_file))
    except PeerSecretError as error:
        raise SettingsError(str(error)) from None


def _peering(settings: ServerSettings, engine: Engine) -> KVPeering | None:
    """Describe a loaded engine to its peers; None if KV transfer is off."""
    options = settings.kv_transfer
    if options is None or engine.peer_transfers is None:
        return None
    host, port = engine.peer_transfers.address
    return KVPeering(options, uuid.uuid4().hex, host, port, engine.capacity.block_size)


def _peering_sentence(peering: KVPeering) -> str:
    """Describe the engine's part in KV transfer for the log."""
    if not peering.options.is_producer:
        return "KV transfer: loads the keys and values of prompts from peers."
    also = ", and loads them from peers" if peering.options.is_consumer else ""
    return f"KV transfer: exports the keys and values of prompts to peers at {peering.host}:{peering.port}{also}."


def _log_settings(asked_device: str, settings: Mapping[str, Resolved], verbose: bool) -> None:
    log_device(asked_device, settings["device"])
    if verbose:
        for name, entry in settings.items():
            log_line(f"{name}: {entry.value} ({entry.reason})")


def log_device(asked: str, device: Resolved) -> None:
    """Log the device; warn if `auto` resolved to the CPU although a GPU driver is installed."""
    from inflight.execution.backends.torch.device import has_driver

    missed = asked == "auto" and device.value == "cpu" and has_driver()
    level = logging.WARNING if missed else logging.INFO
    logging.getLogger("inflight.server").log(level, f"Device: {device.value} ({device.reason}).")


def _shown(engine: Engine, bridge: AsyncBridge, name: str, has_record: bool) -> EngineSource:
    """Observe the engine for the live page; return the page's source."""
    observer = LiveObserver(engine.loop.latency)
    engine.loop.add_observer(observer)
    return EngineSource(bridge, EngineFeed(engine.loop, observer), _about_engine(engine, name, has_record))


def _parsers(settings: ServerSettings, engine: Engine) -> ParserNames:
    """Choose the parsers of answers and log them. Raises ParserError."""
    asked = ParserNames(settings.tool_parser, settings.reasoning_parser)
    names = settled(parsers_of(engine.prompts, engine.tokenizer, asked, engine.model.family))
    for kind, name in (("Tool-call", names.tools), ("Reasoning", names.reasoning)):
        if name != NONE:
            log_line(f"{kind} parser: {name}.")
    return names


def loaded(done: int, total: int) -> str:
    """Describe how much of a model is loaded; small models are counted in single parameters."""
    if total < 10**7:
        return f"{done:,} of {total:,} parameters"
    return f"{done / 1e6:,.0f} of {total / 1e6:,.0f} M parameters"


def _models(settings: ServerSettings, engine_settings: EngineSettings) -> tuple[str, ...]:
    """Return the names under which the model is served; a GGUF file's is its name without folder and suffix."""
    model = engine_settings.model or "built-in"
    return settings.served_model_name or (model_name(path) if is_gguf(path := Path(model)) else model,)


def log_line(sentence: str) -> None:
    logging.getLogger("inflight.server").info(sentence)


def _about_engine(engine: Engine, title: str, has_record: bool) -> Hello:
    capacity = engine.capacity
    return Hello(
        source="live",
        title=title,
        num_blocks=capacity.num_blocks,
        block_size=capacity.block_size,
        max_rows=capacity.max_rows,
        host_blocks=capacity.host_blocks,
        sees_all=True,
        has_record=has_record,
        settings=[Setting.of(name, entry.value, entry.reason) for name, entry in engine.settings.items()],
    )
