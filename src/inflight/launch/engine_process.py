"""Run an engine in a process of its own: `python -m inflight.launch.engine_process CONTROL`.

CONTROL is the number of an open socket. The first message on it says which engine to build; Python modules are loaded
before it comes. The engine serves the API processes, ignores signals, and ends when CONTROL is closed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec
import uvloop
from msgspec import Struct
from msgspec.structs import replace

from inflight.config.setting import Resolved, SettingsError
from inflight.config.threads import load_numpy
from inflight.core.types.executor import Executor
from inflight.core.types.sampling import Adapter
from inflight.engine.bridge import EventSource
from inflight.engine.cpu_sharing import ClaimTable, CoreShare, ForegroundRequests, SharingExecutor
from inflight.engine.kv_events import KVEventOptions
from inflight.engine.remote.server import EngineServer
from inflight.frontend.adapter_names import AdapterNameError, AdapterNames
from inflight.launch.engine_loading import LoadedEngine, Wrap, load_engine, wanted_peers
from inflight.launch.engine_setup import CoreSharing, EngineSetup
from inflight.limited_process import receive
from inflight.models.errors import ModelError
from inflight.server import logs
from inflight.server.engine_description import EngineDescription, encode_description
from inflight.server.loader import LOADER, in_own_thread, leave_loader, log_failure
from inflight.server.processes.control import Control
from inflight.server.processes.counts import Count, record_count
from inflight.server.processes.messages import (
    AdapterChanged,
    AskFrames,
    AskPage,
    LoadAdapter,
    Loading,
    Model,
    Page,
    PrefixCacheReset,
    ResetPrefixCache,
    ShownFrames,
    UnloadAdapter,
    typed,
)
from inflight.server.processes.worker_messages import (
    ClientDropped,
    ClientLost,
    EngineReady,
    Failed,
    ToWorker,
    decode_to_worker,
)

if TYPE_CHECKING:
    from inflight.build import Engine
    from inflight.engine.kv_events.publisher import KVEventPublisher
    from inflight.server.metrics.page import Metrics
    from inflight.server.metrics.pool_page import PoolMetrics

Setup = TypeVar("Setup", bound=EngineSetup)

log = logging.getLogger("inflight.server")


class HostedEngine(Protocol):
    """The engine of a process, as the server's messages need it."""

    @property
    def bridge(self) -> StoppableEngine:
        """The engine itself."""

    @property
    def metrics(self) -> Metrics | PoolMetrics:
        """Counts of what API processes report."""

    @property
    def described(self) -> EngineDescription:
        """Its description."""

    async def page(self) -> tuple[bytes, str]:
        """Return the metrics: text and content type."""

    async def frames(self, asked: bytes, name: str, /) -> dict[str, bytes]:
        """Return frames of the live page, as `live.distant` encodes them, by the names of what they show."""


class StoppableEngine(EventSource, Protocol):
    @property
    def stopped(self) -> str | None:
        """Why it has stopped; None while it runs."""

    def close(self) -> None:
        """End it, in any thread."""


def run_process(control: socket.socket, kind: type[Setup], make: Callable[[Setup], EngineProcess]) -> int:
    """Run an engine's process until the server ends or the engine stops. Return the exit code.

    Args:
        control: The socket to the server, on which the setup comes first.
        kind: Of the setup.
        make: Makes the process of the setup.
    """
    try:
        setup = msgspec.msgpack.decode(receive(control), type=kind, dec_hook=typed)
    except (EOFError, OSError):
        return 0
    logs.configure(setup.log_format, setup.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(make(setup).run(control))


class EngineProcess(ABC):
    """A process that loads an engine, and serves it to API processes.

    Attributes:
        engine: None until it is loaded.
        parts: Of the start, with their seconds.
    """

    def __init__(self, setup: EngineSetup):
        self.engine: HostedEngine | None = None
        self.parts: tuple[tuple[str, float], ...] = ()
        self._setup = setup
        self._server: EngineServer | None = None
        self._answering: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def load(self) -> HostedEngine:
        """Load the engine. Any exception ends the process, with its sentence."""

    async def change_adapter(self, message: LoadAdapter | UnloadAdapter) -> AdapterChanged:
        """Load or unload an adapter; refuse it where adapters are those of the start."""
        return AdapterChanged(message.question, error="Adapters of replicas are named at the start.", param="lora_name")

    async def reset_prefix_cache(self) -> PrefixCacheReset:
        """Drop all cached prefixes; refuse it where there are several caches."""
        return PrefixCacheReset(0, error="Each replica has a cache of its own; restart them to empty all.")

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """Return all adapters that requests may name."""
        return () if self.engine is None else self.engine.described.adapters

    def send(self, message: Struct) -> None:
        """Send a message to the server, from any thread."""
        self._loop.call_soon_threadsafe(self._control.send, message)

    async def run(self, control: socket.socket) -> int:
        """Serve until the server closes the control socket, or the engine stops. Return the exit code."""
        loop = self._loop = asyncio.get_running_loop()
        self._control = Control(control, decode_to_worker)
        listening = loop.create_task(self._control.listen(self._heard))
        serving = loop.create_task(self._serve())
        await asyncio.wait((listening, serving), return_when=asyncio.FIRST_COMPLETED)
        fault = listening.exception() if listening.done() else None
        if fault is not None:
            log.error(f"The engine exits: it could not read a message of the server: {fault}", exc_info=fault)
        code = 0 if fault is None else 1
        if self.engine is None and not serving.done():
            leave_loader(code)
        code = serving.result() if serving.done() else code
        serving.cancel()  # else it reports that the engine stops
        if self.engine is not None:
            await asyncio.to_thread(self.engine.bridge.close)
        self._control.close()
        return code

    async def _serve(self) -> int:
        """Load the engine and serve it until it stops. Return the exit code."""
        send = self._control.send
        try:
            engine = await self.load()
        except Exception as error:
            log_failure(str(error), error)
            begins = isinstance(error, ModelError) and str(error).startswith("--")  # with the option that is wrong
            is_of_value = isinstance(error, SettingsError) or begins
            send(Failed(str(error), code := 2 if is_of_value else 1))
            return code
        self.engine = engine
        address = f"ipc://{self._setup.folder}/engine-{self._setup.serial}"
        self._server = server = EngineServer(engine.bridge, address, lambda name: send(ClientDropped(name)))
        nbytes = max(self._setup.nbytes, _resident_bytes())
        gc.collect()
        gc.freeze()  # the collector need not look at the model's objects again
        described = msgspec.Raw(encode_description(engine.described))
        send(EngineReady(address, described, self.adapters, nbytes, self.parts, time.process_time()))
        while (stopped := engine.bridge.stopped) is None:
            await asyncio.sleep(1.0)
        server.stop(stopped)
        log.error(stopped)
        send(Failed(stopped))
        return 1

    # -- messages of the server -----------------------------------------------------------------------------------

    def _heard(self, message: ToWorker) -> None:
        match message:
            case AskPage():
                self._answer(self._page(message.question))
            case AskFrames():
                self._answer(self._frames(message))
            case LoadAdapter() | UnloadAdapter():
                self._answer(self._changed_adapter(message))
            case ResetPrefixCache():
                self._answer(self._reset_prefix_cache(message.question))
            case ClientLost():
                if self._server is not None:
                    self._server.lost(message.name)
            case _:
                if self.engine is not None:
                    self._count(message, self.engine.metrics)

    def _answer(self, answer: Coroutine[None, None, Struct]) -> None:
        async def send() -> None:
            self._control.send(await answer)

        task = asyncio.ensure_future(send())
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def _count(self, message: Count, metrics: Metrics | PoolMetrics) -> None:
        try:
            record_count(message, metrics)
        except Exception:  # serving goes on with a count that is too low
            log.exception("an event could not be counted in the metrics")

    async def _changed_adapter(self, message: LoadAdapter | UnloadAdapter) -> AdapterChanged:
        try:
            return await self.change_adapter(message)
        except Exception as error:  # every question has an answer
            sentence = f"The adapter {message.name!r} could not be changed ({type(error).__name__}: {error})."
            log.exception(sentence)
            return AdapterChanged(message.question, self.adapters, sentence, is_fault=True)

    async def _reset_prefix_cache(self, question: int) -> PrefixCacheReset:
        try:
            return replace(await self.reset_prefix_cache(), question=question)
        except Exception as error:  # every question has an answer
            log.exception("the prefix cache could not be reset")
            return PrefixCacheReset(question, error=f"The prefix cache could not be reset ({error}).")

    async def _page(self, question: int) -> Page:
        if self.engine is not None:
            try:
                return Page(question, *await self.engine.page())
            except Exception:  # serving goes on without metrics
                log.exception("the metrics page could not be written")
        return Page(question, None, "")

    async def _frames(self, asked: AskFrames) -> ShownFrames:
        if self.engine is not None:
            try:
                return ShownFrames(asked.question, await self.engine.frames(asked.data, asked.name))
            except Exception:  # serving goes on without the live page
                log.exception("the frames of the live page could not be made")
        return ShownFrames(asked.question, {})


def main(control: socket.socket, wrap: Wrap | None = None) -> int:
    """Run until the server ends or the engine stops. Return the exit code.

    Args:
        control: The socket to the server.
        wrap: Applied to the executor.
    """
    began = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    load_numpy()
    import inflight.build.engine  # noqa: F401  the kernels, before a request waits for them

    imported = time.monotonic() - began
    return run_process(control, EngineSetup, lambda setup: _LocalEngine(setup, wrap, imported))


class _LocalEngine(EngineProcess):
    """The process of an engine that computes in it."""

    def __init__(self, setup: EngineSetup, wrap: Wrap | None, imported: float):
        super().__init__(setup)
        self._wrap, self._imported = wrap, imported
        self._foreground: ForegroundRequests | None = None  # of an engine that shares its cores
        self._adapters, self._adapters_lock = AdapterNames(), asyncio.Lock()
        self._built: Engine | None = None

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        return self._adapters.all

    async def load(self) -> LoadedEngine:
        return await in_own_thread(self._load, LOADER)

    def _load(self) -> LoadedEngine:
        setup = self._setup
        engine, loaded = load_engine(
            setup,
            doing=lambda doing: self.send(Loading(doing)),
            found=lambda text: self.send(Model(text)),
            wrap=self._wrap if setup.sharing is None else partial(self._share_cores, setup.sharing),
            kv_events=_open_kv_events(setup.server.kv_events_config),
            peers=wanted_peers(setup.server),
        )
        self._built = engine
        self._adapters, self.parts = engine.adapters, (("imports", self._imported), *engine.start.parts())
        if self._foreground is not None:
            engine.loop.add_observer(self._foreground)
        return loaded

    def _share_cores(self, sharing: CoreSharing, executor: Executor, device: Resolved) -> Executor:
        """Make the executor share the CPU's cores with other engines; a GPU or a single engine needs no sharing."""
        table = ClaimTable(sharing.claims)
        if device.value != "cpu" or table.slots == 1:
            table.close()
            return executor
        lanes = self._setup.scheduling.lanes.items()
        self._foreground = ForegroundRequests({"batch", *(name for name, lane in lanes if lane.get("background"))})
        share = CoreShare(table, sharing.slot, sharing.weight, self._foreground.any)
        if (pauses := getattr(executor, "pauses", None)) is not None:
            pauses(share.between_layers)
        return SharingExecutor(executor, share)

    async def reset_prefix_cache(self) -> PrefixCacheReset:
        engine, hosted = self._built, self.engine
        if engine is None or not isinstance(hosted, LoadedEngine):
            return PrefixCacheReset(0, error="The engine is being loaded; try again in a moment.", is_busy=True)
        blocks = await hosted.bridge.ask(engine.loop.reset_prefix_cache)
        if blocks is None:
            return PrefixCacheReset(
                0,
                error="Requests or transfers are in flight, which use the cache; try again when none is.",
                is_busy=True,
            )
        return PrefixCacheReset(0, blocks)

    async def change_adapter(self, message: LoadAdapter | UnloadAdapter) -> AdapterChanged:
        question, names = message.question, self._adapters
        try:
            async with self._adapters_lock:  # of two requests with one name, only one may add it
                if isinstance(message, LoadAdapter):
                    await asyncio.to_thread(names.add, message.name, message.path)
                else:
                    names.remove(message.name)
        except AdapterNameError as error:
            return AdapterChanged(question, names.all, str(error), "lora_name")
        except ModelError as error:
            return AdapterChanged(question, names.all, str(error), "lora_path")
        return AdapterChanged(question, names.all)


def _open_kv_events(options: KVEventOptions | None) -> KVEventPublisher | None:
    """Open the configured addresses, log them, and return the publisher. Raises KVEventAddressError."""
    if options is None:
        return None
    from inflight.engine.kv_events.publisher import KVEventPublisher

    publisher = KVEventPublisher(options)
    missed = "" if publisher.replayed is None else f", missed ones are asked for at {publisher.replayed}"
    listens = any(mark in options.endpoint for mark in ("*", "::"))
    how = "published at" if listens else "sent to the subscriber at"
    log.info(f"KV events: {how} {publisher.published}{missed}.")
    if listens:
        log.info(
            "Every client that can reach that address receives the tokens of all prompts and answers; keep it within "
            "your network."
        )
    return publisher


def _resident_bytes() -> int:
    """Return this process's proportional memory (PSS) in bytes, or 0 if the system does not report it."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return 0


if __name__ == "__main__":
    code = main(socket.socket(fileno=int(sys.argv[1])))
    sys.stderr.flush()
    os._exit(code)  # do not wait for threads of libraries
