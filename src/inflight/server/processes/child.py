"""An API process: `python -m inflight.server.processes.child CONTROL`, an open descriptor.

Serves HTTP as the server in one process does, over an engine that is elsewhere. Obeys what comes over CONTROL instead
of signals: those that go to all processes of a terminal or a service would end it before what runs is done. Ends when
CONTROL does.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Mapping
from typing import Literal

from inflight.engine.event_stream import EngineStopped
from inflight.engine.remote.client import RemoteClient
from inflight.limited_process import receive
from inflight.server import logs
from inflight.server.access_log import log_call
from inflight.server.app import make_app
from inflight.server.batch.checking import DatabaseError
from inflight.server.batch.data import DataDirectoryError
from inflight.server.call_counts import SharedCallCounts
from inflight.server.heap import share_one_heap
from inflight.server.ingress.tls import TlsError, tls_context
from inflight.server.live.members import MembersSource
from inflight.server.loading import make_jobs, make_live, make_prompts, make_served
from inflight.server.metrics.batch import BatchCounts
from inflight.server.preprocessing.pool import PreprocessingPool
from inflight.server.preprocessing.worker import loaded
from inflight.server.process import Process
from inflight.server.processes.control import Control
from inflight.server.processes.folder import JOBS, remove
from inflight.server.processes.forwarder import Forwarder
from inflight.server.processes.messages import (
    NO_SUCCESSOR,
    Answered,
    AskFrames,
    AskPage,
    FromChild,
    JobEnded,
    JobsCounted,
    LinesAnswered,
    Loading,
    Model,
    NotAsked,
    Page,
    Ready,
    Reload,
    Setup,
    ShownFrames,
    Signal,
    ToChild,
    Up,
    decode_to_child,
)
from inflight.server.processes.owner import Owner
from inflight.server.processes.pending_replies import PendingReplies
from inflight.server.served import OneModel
from inflight.server.service import Service
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenants
from inflight.server.tracing.opening import close_tracer, open_tracer

READY_SECONDS = 0.02  # between two looks whether all processes are ready
GONE = "The engine's process is gone; restart the server."

log = logging.getLogger("inflight.server")


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
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
    except DataDirectoryError as error:
        log.error(str(error))
        return NO_SUCCESSOR
    except OSError as error:
        log.error(f"An API process cannot serve: {error}")
        return 1


class _Child:
    def __init__(self, setup: Setup, control: socket.socket, preprocessing: PreprocessingPool):
        self._setup, self._preprocessing = setup, preprocessing
        self._control = Control(control, decode_to_child)
        self._tell = self._control.tell
        self._tenants = Tenants(setup.keys)
        self._counts = counts = SharedCallCounts(setup.counts, setup.tenants, setup.settings.api_processes, setup.place)
        self._service = Service(setup.settings, lambda ended: log_call(ended, self._refused), counts)
        self._tracer = open_tracer(setup.settings, setup.version)
        self._jobs = make_jobs(self._service, self._tenants) if setup.jobs is not None else None
        jobs = self._jobs
        self._owner = None if jobs is None else Owner(self._tenants.named, lambda: jobs.kept_responses)
        self._is_hopeless = False
        self._process = Process(
            self._service,
            self._tenants,
            self._load,
            self._begin,
            self._end,
            hears_signals=False,
            early=setup.early,
            gives_way=counts.has_more,
        )
        self._members = MembersSource(self._page, "", "engine", self._show)
        self._news: queue.SimpleQueue[Model | Ready | None] = queue.SimpleQueue()
        self._pages, self._frames = PendingReplies[tuple[bytes, str]](), PendingReplies[bytes]()
        self._client: RemoteClient | None = None
        self._is_alone = False  # the engine's process is gone

    def run(self) -> int:
        bound = socket.socket(fileno=self._setup.listening)
        setup, jobs, other = self._setup, self._jobs, None
        if jobs is None and setup.settings.data_dir is not None:
            other = Forwarder(setup.folder / JOBS)
        inner = self._owner or other
        self._app = make_app(
            self._service,
            self._tenants,
            self._page,
            setup.version,
            self._observe,
            jobs or other,
            None if inner is None else inner.before,
            self._tracer,
            make_live(self._service, self._live_source),
        )
        code = self._process.run(self._app, bound, tls_context(self._setup.settings))
        return NO_SUCCESSOR if self._is_hopeless else code

    def _live_source(self) -> MembersSource | None:
        """None while nothing is loaded."""
        return None if self._service.loaded is None else self._members

    # -- the server's parts that are elsewhere --------------------------------------------------------------------

    def _load(self, doing: Callable[[str], None]) -> OneModel:
        """In the loader's thread, until the engine is ready. Raises EngineStopped."""
        asyncio.run_coroutine_threadsafe(self._listen(), self._process.loop)  # now there is who obeys
        self._open_jobs(doing)
        model = self._next()
        assert isinstance(model, Model), "comes before the engine"
        self._preprocessing.load(model.folder)
        tokenizer, template = loaded(model.folder)
        ready = self._next()
        assert isinstance(ready, Ready), "comes behind the model"
        engine, serial = ready.engine, self._setup.serial
        prompts = make_prompts(tokenizer, template, engine, serial)
        prompts.check_chat()

        async def connect() -> RemoteClient:
            self._client = RemoteClient(ready.address, str(serial))
            if self._is_alone:  # it went while tokenizer and templates were loaded; nobody would answer
                self._client.stop(GONE)
            return self._client

        client = asyncio.run_coroutine_threadsafe(connect(), self._process.loop).result()
        return OneModel(make_served(self._setup.settings, engine, client, self._preprocessing, prompts, tokenizer))

    def _open_jobs(self, doing: Callable[[str], None]) -> None:
        """Raises DataDirectoryError, DatabaseError."""
        if self._jobs is None:
            return
        doing("checking the data directory")
        try:
            self._jobs.open()
        except (DataDirectoryError, DatabaseError):
            self._is_hopeless = True
            raise

    def _next(self) -> Model | Ready:
        news = self._news.get()
        if news is None:
            raise EngineStopped(GONE)
        return news

    async def _begin(self) -> None:
        self._tell(Up())
        if self._jobs is not None:
            while not self._service.counts.all_ready:  # before, their lines would be refused
                await asyncio.sleep(READY_SECONDS)
            self._jobs.start(_Counts(self._tell))

    async def _end(self) -> None:
        if self._owner is not None:
            await self._owner.close()
        if self._jobs is not None:
            await self._jobs.stop()
        await close_tracer(self._tracer)

    async def _page(self) -> tuple[bytes, str]:
        """Raises ApiError while nothing is loaded."""
        if self._service.loaded is None:
            raise self._service.not_loaded()
        return await self._pages.ask(lambda question: self._tell(AskPage(question)))

    async def _show(self, asked: bytes) -> Mapping[str, bytes]:
        """Return frames of what the engine does. Raises EngineStopped."""
        return {"": await self._frames.ask(lambda question: self._tell(AskFrames(question, asked)))}

    def _observe(self, route: str, status: int, seconds: float) -> None:
        self._tell(Answered(route, status, seconds))

    def _refused(self, code: str) -> None:
        self._tell(NotAsked(code))

    # -- what the engine's process says ---------------------------------------------------------------------------

    async def _listen(self) -> None:
        if self._owner is not None and self._setup.jobs is not None:
            await self._owner.listen(socket.socket(fileno=self._setup.jobs), self._app)
        try:
            await self._control.listen(self._heard)
        except Exception:
            log.exception("what the engine's process says is not understood")
        self._is_alone = True
        self._news.put(None)
        remove(self._setup.folder)  # nobody else is left to do it
        if self._client is not None:
            self._client.stop(GONE)
        for replies in (self._pages, self._frames):
            replies.end(EngineStopped(GONE))

    def _heard(self, message: ToChild) -> None:
        if isinstance(message, Loading):
            if self._service.state == "loading":
                self._service.doing = message.doing
        elif isinstance(message, Signal):
            self._process.on_signal(message.number)
        elif isinstance(message, Reload):
            self._counts.add(message.tenants)
            self._tenants.take(Tenants(message.keys))
            self._process.use(_certificate(self._setup.settings))
        elif isinstance(message, Page):
            self._pages.came(message.question, _shown(message))
        elif isinstance(message, ShownFrames):
            self._frames.came(message.question, message.data)
        elif not isinstance(message, Setup):
            self._news.put(message)


class _Counts(BatchCounts):
    """Counts of batch jobs, sent to the engine's process, which has the metrics."""

    def __init__(self, tell: Callable[[FromChild], None]):
        super().__init__()
        self._tell = tell

    def jobs(self, by_status: Mapping[str, int]) -> None:
        self._tell(JobsCounted(dict(by_status)))

    def ended(self, status: str) -> None:
        self._tell(JobEnded(status))

    def lines(self, outcome: Literal["completed", "failed"], count: int = 1) -> None:
        self._tell(LinesAnswered(outcome, count))


def _certificate(settings: ServerSettings) -> ssl.SSLContext | None:
    """Read the certificate that the engine's process has just checked; None: there is none that can be used."""
    try:
        return tls_context(settings)
    except TlsError as error:
        log.error(f"{error} The certificate in force stays.")
        return None


def _shown(page: Page) -> tuple[bytes, str] | RuntimeError:
    if page.text is None:
        return RuntimeError("the metrics could not be told; the engine's process has logged why")
    return page.text, page.content_type


if __name__ == "__main__":
    sys.exit(main())
