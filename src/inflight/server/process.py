"""The server as a process: the socket, loading beside answering, signals, draining, the end.

Knows uvicorn and the order of things. What is loaded, the caller hands in as a function, so that this package need not
know how an engine is built.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from inflight.server.service import Served, Service
from inflight.server.settings import LOOPBACK, ServerSettings

Load = Callable[[Callable[[str], None]], Served]  # given a function to say what it is doing; runs in a thread


log = logging.getLogger("inflight.server")


class AddressError(ValueError):
    """The address cannot be listened on."""


def listen(settings: ServerSettings) -> socket.socket:
    """Bound before anything is loaded, so that a port that is taken is told at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((settings.host, settings.port))
        bound.listen(2048)
    except OSError as error:
        bound.close()
        raise AddressError(
            f"The address {settings.host}:{settings.port} cannot be used ({error.strerror or error}); choose another "
            "with --host and --port."
        ) from None
    return bound


def url(settings: ServerSettings, bound: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{bound.getsockname()[1]}"


def is_open_to_others(settings: ServerSettings) -> bool:
    return settings.host not in LOOPBACK


class Process:
    """Runs the application until it is told to stop; returns the exit code.

    begin: awaited when the engine is ready (batch jobs go on). end: awaited before the engine is closed.
    """

    def __init__(
        self,
        service: Service,
        load: Load,
        begin: Callable[[], Awaitable[None]],
        end: Callable[[], Awaitable[None]],
    ):
        self._service = service
        self._load = load
        self._begin, self._end = begin, end
        self._server: _Server | None = None
        self._signals = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._code = 0

    def run(self, app: FastAPI, bound: socket.socket) -> int:
        app.router.lifespan_context = self._lifespan
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http="httptools",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        self._server = _Server(config, self._on_signal)
        self._server.run(sockets=[bound])
        gc.unfreeze()  # or the engine, whose parts refer to each other, would outlive the interpreter
        if self._service.state == "loading":  # told to stop meanwhile; the loader's thread cannot be interrupted
            logging.shutdown()
            os._exit(self._code)
        return self._code

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        self._start(self._open())
        try:
            yield
        finally:
            await self._end()
            for task in self._tasks:
                task.cancel()
            if self._service.loaded is not None:
                await asyncio.to_thread(self._service.loaded.bridge.close)

    async def _open(self) -> None:
        try:
            served = await self._loaded()
        except Exception as error:
            self._fail(str(error), error)
            return
        # What there is now stays: the garbage collector need not look at it again, which took tens of milliseconds.
        gc.collect()
        gc.freeze()
        self._service.ready(served)
        try:
            await self._begin()
        except Exception as error:
            self._fail(str(error), error)
            return
        self._start(self._watch(served))

    async def _loaded(self) -> Served:
        """In a thread that does not keep the process from ending."""
        loaded: asyncio.Future[Served] = self._loop.create_future()

        def load() -> None:
            try:
                served = self._load(self._loading)
            except BaseException as error:
                self._loop.call_soon_threadsafe(loaded.set_exception, error)
            else:
                self._loop.call_soon_threadsafe(loaded.set_result, served)

        threading.Thread(target=load, name="inflight-loader", daemon=True).start()
        return await loaded

    def _loading(self, doing: str) -> None:
        self._service.doing = doing

    async def _watch(self, served: Served) -> None:
        """An engine that broke down answers nobody any more: end, so that whoever runs the server starts it anew."""
        while served.bridge.stopped is None:
            await asyncio.sleep(1.0)
        self._fail(served.bridge.stopped, None)

    def _fail(self, why: str, error: Exception | None) -> None:
        self._service.fail(why)
        ours = error is None or type(error).__module__.startswith("inflight.") or isinstance(error, OSError)
        log.error(why, exc_info=None if ours else error)  # a bug: whoever reports it needs the place
        self._code = 1
        self._stop()

    def _start(self, work: Awaitable[None]) -> None:
        async def guarded() -> None:
            await work

        task = asyncio.ensure_future(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _stop(self) -> None:
        if self._server is not None:
            self._server.end()

    # -- signals --------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        """The first asks what runs to finish, the second does not wait for it."""
        self._signals += 1
        if self._service.state in ("loading", "failed"):
            self._stop()
        elif self._signals == 1:
            self._loop.call_soon_threadsafe(lambda: self._start(self._drain(signal.Signals(number).name)))
        else:
            self._loop.call_soon_threadsafe(self._service.hurry)

    async def _drain(self, name: str) -> None:
        left = self._service.under_way
        log.info(f"{name}: taking no new work; {left} calls are under way." if left else f"{name}: stopping.")
        if ended := await self._service.drain():
            log.info(f"{ended} calls were not done within the drain timeout, and were ended.")
        self._stop()


class _Server(uvicorn.Server):
    """Leaves signals to the process: uvicorn would close the door at once, and nobody would hear why."""

    def __init__(self, config: uvicorn.Config, on_signal: Callable[[int], None]):
        super().__init__(config)
        self._on_signal = on_signal
        self._loop: asyncio.AbstractEventLoop | None = None

    async def main_loop(self) -> None:
        """uvicorn looks ten times a second whether to end. This one is woken for that, so that it sleeps when idle;
        once a second the date in the answers' headers goes on."""
        self._ending = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), 1.0)

    def end(self) -> None:
        """From anywhere in this thread, a signal's handler too."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ending.set)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._on_signal(sig)
