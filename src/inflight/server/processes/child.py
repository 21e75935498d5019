"""An API process: `python -m inflight.server.processes.child CONTROL`, an open descriptor.

Serves HTTP as the server in one process does, over an engine that is elsewhere. Obeys what comes over CONTROL instead
of signals: those that go to all processes of a terminal or a service would end it before what runs is done. Ends when
CONTROL does.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

from inflight.engine.event_stream import EngineStopped
from inflight.engine.remote.client import RemoteClient
from inflight.frontend.prompts import PromptEncoder
from inflight.server import logs
from inflight.server.access_log import log_call
from inflight.server.app import make_app
from inflight.server.call_counts import SharedCallCounts
from inflight.server.heap import share_one_heap
from inflight.server.ingress.tls import tls_context
from inflight.server.loading import make_served
from inflight.server.preprocessing.pool import PreprocessingPool
from inflight.server.preprocessing.wire import receive, send
from inflight.server.preprocessing.worker import loaded
from inflight.server.process import BACKLOG, AddressError, Process, bind
from inflight.server.processes.messages import (
    Answered,
    AskPage,
    FromChild,
    Loading,
    Model,
    NotAsked,
    Page,
    Ready,
    Setup,
    Signal,
    Up,
    decode_to_child,
    encode,
)
from inflight.server.service import Served, Service
from inflight.server.tenants import Tenants

GONE = "The engine's process is gone; restart the server."
SERIAL_SHIFT = 40  # bits of a process's own numbers for requests without a seed, below its serial number


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    preprocessing = PreprocessingPool()  # loads its modules meanwhile
    try:
        setup = decode_to_child(receive(control))
    except (EOFError, OSError):
        return 1
    assert isinstance(setup, Setup), "the first message"
    share_one_heap()
    logs.configure(setup.log_format, setup.log_level)
    try:
        return _Child(setup, control, preprocessing).run()
    except (AddressError, OSError) as error:
        logging.getLogger("inflight.server").error(f"An API process cannot serve: {error}")
        return 1


class _Child:
    def __init__(self, setup: Setup, control: socket.socket, preprocessing: PreprocessingPool):
        self._setup, self._control, self._preprocessing = setup, control, preprocessing
        self._tenants = Tenants(setup.keys)
        self._bound = bind(setup.settings, shared=True)
        names = self._tenants.names
        counts = SharedCallCounts(setup.counts, names, setup.settings.api_processes, setup.place)
        self._service = Service(setup.settings, lambda ended: log_call(ended, self._refused), counts)
        self._process = Process(
            self._service, self._load, self._begin, self._end, hears_signals=False, early=setup.early
        )
        self._news: queue.SimpleQueue[Model | Ready | None] = queue.SimpleQueue()
        self._questions = itertools.count()
        self._pages: dict[int, asyncio.Future[tuple[bytes, str]]] = {}
        self._client: RemoteClient | None = None
        self._is_alone = False  # the engine's process is gone
        self._sending = threading.Lock()

    def run(self) -> int:
        if self._setup.early:
            self._bound.listen(BACKLOG)
        app = make_app(self._service, self._tenants, self._page, self._setup.version, self._observe)
        return self._process.run(app, self._bound, tls_context(self._setup.settings))

    # -- the server's parts that are elsewhere --------------------------------------------------------------------

    def _load(self, doing: Callable[[str], None]) -> Served:
        """In the loader's thread, until the engine is ready. Raises EngineStopped."""
        threading.Thread(target=self._listen, name="inflight-control", daemon=True).start()  # now there is who obeys
        model = self._next()
        assert isinstance(model, Model), "comes before the engine"
        self._preprocessing.load(model.folder)
        tokenizer, template = loaded(model.folder)
        ready = self._next()
        assert isinstance(ready, Ready), "comes behind the model"
        engine, serial = ready.engine, self._setup.serial
        prompts = PromptEncoder(tokenizer, template, engine.seed, first=serial << SERIAL_SHIFT)
        prompts.check_chat()

        async def connect() -> RemoteClient:
            self._client = RemoteClient(ready.address, str(serial))
            if self._is_alone:  # it went while tokenizer and templates were loaded; nobody would answer
                self._client.stop(GONE)
            return self._client

        client = asyncio.run_coroutine_threadsafe(connect(), self._process.loop).result()

        def now() -> float:
            return time.monotonic() - ready.clock_zero

        return make_served(self._setup.settings, engine, client, self._preprocessing, prompts, tokenizer, now)

    def _next(self) -> Model | Ready:
        news = self._news.get()
        if news is None:
            raise EngineStopped(GONE)
        return news

    async def _begin(self) -> None:
        self._bound.listen(BACKLOG)  # once more, where it does already
        self._tell(Up())

    async def _end(self) -> None:
        if self._service.loaded is not None:
            await self._preprocessing.close()

    async def _page(self) -> tuple[bytes, str]:
        """Raises ApiError while nothing is loaded."""
        if self._service.loaded is None:
            raise self._service.not_loaded()
        question = next(self._questions)
        page: asyncio.Future[tuple[bytes, str]] = self._process.loop.create_future()
        self._pages[question] = page
        self._tell(AskPage(question))
        try:
            return await page
        finally:
            del self._pages[question]

    def _observe(self, route: str, status: int, seconds: float) -> None:
        self._tell(Answered(route, status, seconds))

    def _refused(self, code: str) -> None:
        self._tell(NotAsked(code))

    def _tell(self, message: FromChild) -> None:
        """At once: the engine's process always reads."""
        try:
            with self._sending:
                send(self._control, encode(message))
        except OSError:
            """It is gone, as the thread that reads finds out."""

    # -- the control's thread -------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while True:
            try:
                message = decode_to_child(receive(self._control))
            except (EOFError, OSError, ValueError):
                break
            if isinstance(message, Loading):
                if self._service.state == "loading":
                    self._service.doing = message.doing
            elif isinstance(message, Signal):
                self._process.on_signal(message.number)
            elif isinstance(message, Page):
                self._process.loop.call_soon_threadsafe(self._show, message)
            elif not isinstance(message, Setup):
                self._news.put(message)
        self._news.put(None)
        shutil.rmtree(self._setup.counts.parent, ignore_errors=True)  # nobody else is left to do it
        self._is_alone = True
        self._process.loop.call_soon_threadsafe(self._lost)

    def _lost(self) -> None:
        if self._client is not None:
            self._client.stop(GONE)
        for page in self._pages.values():
            if not page.done():
                page.set_exception(EngineStopped(GONE))

    def _show(self, page: Page) -> None:
        asked = self._pages.get(page.question)
        if asked is None or asked.done():
            return
        if page.text is None:
            asked.set_exception(RuntimeError("the metrics could not be told; the engine's process has logged why"))
        else:
            asked.set_result((page.text, page.content_type))


if __name__ == "__main__":
    sys.exit(main())
