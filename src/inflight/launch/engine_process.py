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
from collections.abc import Coroutine, Sequence
from functools import partial
from pathlib import Path

import msgspec
import uvloop
from msgspec import Struct

from inflight.config.setting import Resolved
from inflight.config.threads import load_numpy
from inflight.core.types.plan import Executor
from inflight.engine.cpu_sharing import ClaimTable, CoreShare, ForegroundRequests, SharingExecutor
from inflight.engine.observers import EngineObserver
from inflight.engine.remote.server import EngineServer
from inflight.frontend.adapter_names import AdapterNameError, AdapterNames
from inflight.launch.engine_loading import LoadedEngine, Wrap, load_engine
from inflight.launch.engine_setup import CoreSharing, EngineSetup
from inflight.launch.kv_events import open_kv_events
from inflight.launch.kv_peers import wanted_peers
from inflight.limited_process import receive
from inflight.models.errors import ModelError
from inflight.server import logs
from inflight.server.engine_description import encode_description
from inflight.server.live.frame_shelf import FrameShelf
from inflight.server.loader import LOADER, in_own_thread, leave_loader, log_failure
from inflight.server.model_pool.messages import (
    ClientDropped,
    ClientLost,
    EngineReady,
    Failed,
    ToModel,
    decode_to_model,
)
from inflight.server.processes.control import Control
from inflight.server.processes.messages import (
    AdapterChanged,
    AskFrames,
    AskPage,
    LoadAdapter,
    Loading,
    Model,
    Page,
    ShownFrames,
    UnloadAdapter,
    record_count,
    typed,
)

log = logging.getLogger("inflight.server")


_decode = msgspec.msgpack.Decoder(EngineSetup, dec_hook=typed).decode


def main(control: socket.socket, wrap: Wrap | None = None, observers: Sequence[EngineObserver] = ()) -> int:
    """Run until the server ends or the engine stops. Return the exit code.

    Args:
        control: The socket to the server.
        wrap: Applied to the executor.
        observers: Added to the engine's observers.
    """
    began = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    load_numpy()
    import inflight.build.engine  # noqa: F401  the kernels, before a request waits for them

    imported = time.monotonic() - began
    try:
        setup = _decode(receive(control))
    except (EOFError, OSError):
        return 0
    logs.configure(setup.log_format, setup.log_level)
    worker = _EngineProcess(setup, control, wrap, observers, imported)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(worker.run())


class _EngineProcess:
    def __init__(
        self,
        setup: EngineSetup,
        control: socket.socket,
        wrap: Wrap | None,
        observers: Sequence[EngineObserver],
        imported: float,
    ):
        self._setup, self._wrap, self._observers, self._imported = setup, wrap, observers, imported
        self._control = Control(control, decode_to_model)
        self._foreground: ForegroundRequests | None = None  # of an engine that shares its cores
        self._engine: LoadedEngine | None = None
        self._server: EngineServer | None = None
        self._adapters, self._adapters_lock = AdapterNames(), asyncio.Lock()
        self._shelf = FrameShelf(None)
        self._parts: tuple[tuple[str, float], ...] = ()
        self._answering: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Serve until the server closes the control socket, or the engine stops. Return the exit code."""
        loop = self._loop = asyncio.get_running_loop()
        listening = loop.create_task(self._control.listen(self._heard))
        serving = loop.create_task(self._serve())
        await asyncio.wait((listening, serving), return_when=asyncio.FIRST_COMPLETED)
        if self._engine is None and not serving.done():
            leave_loader(0)
        code = serving.result() if serving.done() else 0
        serving.cancel()  # else it reports that the engine stops
        if self._engine is not None:
            await asyncio.to_thread(self._engine.bridge.close)
        self._control.close()
        return code

    async def _serve(self) -> int:
        """Load the engine and serve it until it stops. Return the exit code."""
        try:
            engine = await in_own_thread(self._load, LOADER)
        except Exception as error:
            log_failure(str(error), error)
            self._control.send(Failed(str(error)))
            return 1
        self._engine, self._shelf = engine, FrameShelf(engine.shown)
        send = self._control.send
        address = f"ipc://{self._setup.folder}/engine-{self._setup.serial}"
        self._server = server = EngineServer(engine.bridge, address, lambda name: send(ClientDropped(name)))
        nbytes = max(self._setup.nbytes, _resident_bytes())
        gc.collect()
        gc.freeze()  # the collector need not look at the model's objects again
        described = msgspec.Raw(encode_description(engine.described))
        send(EngineReady(address, described, self._adapters.all, nbytes, self._parts, time.process_time()))
        while (stopped := engine.bridge.stopped) is None:
            await asyncio.sleep(1.0)
        server.stop(stopped)
        log.error(stopped)
        send(Failed(stopped))
        return 1

    def _load(self) -> LoadedEngine:
        setup = self._setup

        def send(message: Struct) -> None:
            self._loop.call_soon_threadsafe(self._control.send, message)

        engine, loaded = load_engine(
            setup.server,
            setup.engine,
            setup.scheduling,
            setup.record,
            setup.verbose,
            doing=lambda doing: send(Loading(doing)),
            found=lambda folder: send(Model(folder)),
            wrap=self._wrap if setup.sharing is None else partial(self._share_cores, setup.sharing),
            kv_events=open_kv_events(setup.server.kv_events_config, setup.engine),
            observers=self._observers,
            peers=wanted_peers(setup.server),
        )
        self._adapters, self._parts = engine.adapters, (("imports", self._imported), *engine.start.parts())
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

    # -- messages of the server -----------------------------------------------------------------------------------

    def _heard(self, message: ToModel) -> None:
        match message:
            case AskPage():
                self._answer(self._page(message.question))
            case AskFrames():
                self._answer(self._frames(message))
            case LoadAdapter() | UnloadAdapter():
                self._answer(self._change_adapter(message))
            case ClientLost():
                if self._server is not None:
                    self._server.lost(message.name)
            case _:
                if self._engine is not None:
                    record_count(message, self._engine.metrics)

    def _answer(self, answer: Coroutine[None, None, Struct]) -> None:
        async def send() -> None:
            self._control.send(await answer)

        task = asyncio.ensure_future(send())
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _page(self, question: int) -> Page:
        if self._engine is not None:
            try:
                return Page(question, *await self._engine.page())
            except Exception:  # serving goes on without metrics
                log.exception("the metrics page could not be written")
        return Page(question, None, "")

    async def _frames(self, asked: AskFrames) -> ShownFrames:
        frames: dict[str, bytes] = {}
        try:
            frames[asked.name] = await self._shelf.answer(asked.data, asked.name)
        except Exception:  # serving goes on without the live page
            log.exception("the frames of the live page could not be made")
        return ShownFrames(asked.question, frames)

    async def _change_adapter(self, message: LoadAdapter | UnloadAdapter) -> AdapterChanged:
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
