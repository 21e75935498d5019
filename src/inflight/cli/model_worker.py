"""A model's process under `inflight serve --models`: `python -m inflight.cli.model_worker CONTROL`, an open descriptor.

Builds an engine as `inflight serve` does, and serves it to the process that has HTTP. Obeys what comes over CONTROL
instead of signals, and ends when CONTROL does. Before it gets the message of what to load, it loads modules.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path

import msgspec
import uvloop
from msgspec import Struct

from inflight.cli.engine_loading import load_engine
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import Resolved
from inflight.core.types.plan import Executor
from inflight.engine.cpu_sharing import ClaimTable, CoreShare, ForegroundRequests, SharingExecutor
from inflight.engine.event_stream import set_outcome
from inflight.engine.remote.server import EngineServer
from inflight.limited_process import receive
from inflight.server import logs
from inflight.server.heap import give_back, settled, share_one_heap
from inflight.server.live.frame_shelf import FrameShelf
from inflight.server.loaded_engine import LoadedEngine
from inflight.server.loader import LOADER, SWITCH_SECONDS, leave_loader, log_failure
from inflight.server.model_pool.messages import Failed, Ready, ToModel, decode_to_model
from inflight.server.offload import in_own_thread
from inflight.server.processes.control import Control
from inflight.server.processes.messages import AskFrames, AskPage, Model, Page, ShownFrames, typed
from inflight.server.settings import ServerSettings

log = logging.getLogger("inflight.server")


class Setup(Struct, frozen=True):
    """The first message. folder: of the sockets between the processes; serial: no other process has the same.
    claims: descriptor of the table by which engines share the cores; slot, weight: this engine's there. nbytes: that
    the engine was estimated to take."""

    serial: int
    folder: Path
    server: ServerSettings
    engine: EngineSettings
    scheduling: SchedulingSettings
    nbytes: int
    claims: int
    slot: int
    weight: float
    record: Path | None
    verbose: bool
    log_format: logs.Format
    log_level: str


_decode = msgspec.msgpack.Decoder(Setup, dec_hook=typed).decode


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    import inflight.build  # noqa: F401  numpy and the kernels, before a request waits for them

    try:
        setup = _decode(receive(control))
    except (EOFError, OSError):
        return 0
    share_one_heap()
    logs.configure(setup.log_format, setup.log_level)
    sys.setswitchinterval(SWITCH_SECONDS)
    worker = _Worker(setup, control)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(worker.run())


class _Worker:
    def __init__(self, setup: Setup, control: socket.socket):
        self._setup = setup
        self._control = Control(control, decode_to_model)
        self._foreground: ForegroundRequests | None = None  # of an engine that shares its cores
        self._engine: LoadedEngine | None = None
        self._shelf = FrameShelf(None)
        self._pages: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Serve until the server closes the control socket, or the engine stops. Return the exit code."""
        loop = asyncio.get_running_loop()
        self._later = loop.call_soon_threadsafe
        listening = loop.create_task(self._control.listen(self._heard))
        serving = loop.create_task(self._serve())
        await asyncio.wait((listening, serving), return_when=asyncio.FIRST_COMPLETED)
        if self._engine is None and not serving.done():
            leave_loader(0)
        code = serving.result() if serving.done() else 0
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
            self._control.tell(Failed(str(error)))
            return 1
        self._engine, self._shelf = engine, FrameShelf(engine.shown)
        given_up: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        address = f"ipc://{self._setup.folder}/model-{self._setup.serial}"
        server = EngineServer(
            engine.bridge, address, lambda name: set_outcome(given_up, "The server has read no answers for long.")
        )
        self._control.tell(Ready(address, engine.described, max(self._setup.nbytes, _resident_bytes())))
        await give_back()
        with settled():
            while engine.bridge.stopped is None and not given_up.done():
                await asyncio.sleep(1.0)
        stopped = engine.bridge.stopped or given_up.result()
        server.stop(stopped)
        self._control.tell(Failed(stopped))
        return 1

    def _load(self) -> LoadedEngine:
        setup = self._setup

        def found(folder: Path) -> None:
            self._later(self._control.tell, Model(folder))

        load = partial(load_engine, setup.server, setup.engine, setup.scheduling, setup.record, setup.verbose)
        engine, loaded = load(lambda doing: None, found, self._sharing)
        if self._foreground is not None:
            engine.loop.add_observer(self._foreground)
        return loaded

    def _sharing(self, executor: Executor, device: Resolved) -> Executor:
        """Have the engine share a CPU's cores with others; a GPU shares itself, and a single engine needs nothing."""
        table = ClaimTable(self._setup.claims)
        if device.value != "cpu" or table.slots == 1:
            table.close()
            return executor
        lanes = self._setup.scheduling.lanes.items()
        self._foreground = ForegroundRequests({"batch", *(name for name, lane in lanes if lane.get("background"))})
        share = CoreShare(table, self._setup.slot, self._setup.weight, self._foreground.any)
        if (pauses := getattr(executor, "pauses", None)) is not None:
            pauses(share.between_layers)
        return SharingExecutor(executor, share)

    def _heard(self, message: ToModel) -> None:
        told = self._tell_page(message.question) if isinstance(message, AskPage) else self._tell_frames(message)
        task = asyncio.ensure_future(told)
        self._pages.add(task)
        task.add_done_callback(self._pages.discard)

    async def _tell_page(self, question: int) -> None:
        page = Page(question, None, "")
        if self._engine is not None:
            try:
                page = Page(question, *await self._engine.page())
            except Exception:  # a mistake in counting is no reason to stop
                log.exception("the metrics could not be written")
        self._control.tell(page)

    async def _tell_frames(self, asked: AskFrames) -> None:
        shown = b""
        try:
            shown = await self._shelf.answer(asked.data, asked.name)
        except Exception:  # a mistake in drawing is no reason to stop
            log.exception("what the engine does could not be shown")
        self._control.tell(ShownFrames(asked.question, shown))


def _resident_bytes() -> int:
    """Return this process's memory in bytes, with its part of what it shares with others; 0 where the system does not
    report it."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # threads of libraries may still be at work, and there is nothing left to do
