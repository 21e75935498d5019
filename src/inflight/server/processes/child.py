"""An API process: `python -m inflight.server.processes.child CONTROL`, an open descriptor.

Serves HTTP over engines in other processes. Obeys the messages that come over CONTROL instead of signals: those that
go to all processes of a terminal or a service would end it before its calls are done. Ends when CONTROL does.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Literal

from starlette.applications import Starlette

from inflight.counted import counted
from inflight.engine.event_stream import EngineStopped
from inflight.limited_process import receive
from inflight.server import logs
from inflight.server.access_log import log_call
from inflight.server.app import make_app
from inflight.server.call_counts import SharedCallCounts
from inflight.server.engine_access import EngineAccess
from inflight.server.http_server import HttpServer
from inflight.server.jobs.storage import DataDirectoryError, StorageError
from inflight.server.jobs.worker import JobCounts
from inflight.server.live.remote_engines import RemoteEngineSource, RemoteEnginesSource
from inflight.server.live.sources import FeedSource
from inflight.server.loader import LOADER, in_own_thread, leave_loader, log_failure
from inflight.server.loading import make_jobs, make_live
from inflight.server.preprocessing.pool import PreprocessingPool
from inflight.server.processes.control import Control
from inflight.server.processes.counts import Answered, JobEnded, JobsCounted, LinesAnswered, NotAsked
from inflight.server.processes.folder import remove
from inflight.server.processes.messages import (
    NO_SUCCESSOR,
    AskFrames,
    AskPage,
    DataReady,
    FromChild,
    Loading,
    Page,
    PrefixCacheReset,
    Reload,
    ResetPrefixCache,
    Setup,
    ShownFrames,
    Signal,
    ToChild,
    Up,
    decode_to_child,
)
from inflight.server.processes.pending_replies import PendingReplies
from inflight.server.processes.single_engine import SingleEngine
from inflight.server.service import Service
from inflight.server.tenants import Tenants
from inflight.server.tls import TlsError, load_certificate, tls_context
from inflight.server.tracing.opening import close_tracer, open_tracer

if TYPE_CHECKING:
    from inflight.server.processes.pooled_models import PooledModels

READY_SECONDS = 0.02  # between two looks whether all processes are ready
GONE = "The server's first process is gone; restart the server."

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
    logs.configure(setup.server.log_format, setup.server.log_level)
    try:
        return _Child(setup, control, preprocessing).run()
    except (OSError, TlsError) as error:
        log.error(f"An API process cannot serve: {error}")
        return 1


class _Child:
    def __init__(self, setup: Setup, control: socket.socket, preprocessing: PreprocessingPool):
        self._setup = setup
        self._settings = settings = setup.server.settings
        self._control = Control(control, decode_to_child)
        self._send = self._control.send
        self._tenants = Tenants(setup.keys)
        self._counts = counts = SharedCallCounts(setup.counts, setup.tenants, settings.api_processes, setup.index)
        self._service = Service(settings, lambda ended: log_call(ended, self._refused), counts)
        self._tracer = open_tracer(settings, setup.server.version)
        self._jobs = make_jobs(self._service, self._tenants, is_claimed=True)
        self._signals = self._code = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._replies = PendingReplies[Page | ShownFrames | PrefixCacheReset]()
        self._engines = self._make_engines(preprocessing)

    def _make_engines(self, preprocessing: PreprocessingPool) -> SingleEngine | PooledModels:
        setup = self._setup
        if not setup.server.models:
            feed: FeedSource = RemoteEngineSource(self._show)
            if setup.server.has_replicas:
                feed = RemoteEnginesSource(self._page, "replica", "replicas", self._show)
            return SingleEngine(setup, self._service, preprocessing, self._send, feed)
        from inflight.server.processes.pooled_models import PooledModels  # which loads the library of metrics

        return PooledModels(setup, preprocessing, self._send, self._page, self._show)

    def run(self) -> int:
        """Serve until a signal or a failure; return the exit code."""
        server = self._setup.server
        app = make_app(
            self._service,
            self._tenants,
            self._page,
            server.version,
            self._observe,
            self._jobs,
            self._tracer,
            make_live(self._service, self._live_source, server.record),
            EngineAccess(self._show, self._reset_prefix_cache),
        )
        certificate = self._setup.certificate
        self._tls = tls_context(self._settings, certificate) if certificate else None
        self._http = HttpServer(self._settings, self._tls)
        self._http.run(app, socket.socket(fileno=self._setup.listening), self._lifespan)
        if self._service.state == "loading":
            leave_loader(self._code)
        return self._code

    def _live_source(self) -> FeedSource | None:
        """Return None while nothing is loaded."""
        return None if self._service.loaded is None else self._engines.feed

    # -- life -----------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Open the models beside the serving, and close all parts behind it."""
        self._opening = self._start(self._open())
        if not self._setup.early:
            await asyncio.wait((self._opening,))
        try:
            yield
        finally:
            if self._jobs is not None:
                await self._jobs.stop()
            await close_tracer(self._tracer)
            for task in self._tasks:
                task.cancel()
            if self._service.loaded is not None:
                await self._service.loaded.close()

    async def _open(self) -> None:
        """Wait for the data directory and the first engines, and begin."""
        self._data_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._following = asyncio.ensure_future(self._listen())  # now messages can be obeyed
        try:
            if self._jobs is not None:
                self._service.doing = "checking the data directory"
                await self._data_ready
                await in_own_thread(self._jobs.open, LOADER)
            models = await self._engines.open()
            gc.collect()
            gc.freeze()  # what is there now stays, and the collector need not look at it again
            self._service.ready(models)
            self._send(Up(self._engines.serial))
            self._start(self._follow())
            if self._jobs is not None:
                while not self._service.counts.all_ready:  # before, their lines would be refused
                    await asyncio.sleep(READY_SECONDS)
                self._jobs.start(_Counts(self._send))
        except (DataDirectoryError, StorageError) as error:
            self._fail(error, NO_SUCCESSOR)
        except Exception as error:
            self._fail(error)

    async def _follow(self) -> None:
        """Follow the engines to the end of the server's first process."""
        try:
            await self._engines.follow()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception, code: int = 1) -> None:
        """End, with calls in flight."""
        self._service.fail(str(error))
        log_failure(str(error), error)
        self._code = code
        self._http.stop()

    def _on_signal(self) -> None:
        """Let calls finish and end on the first signal; do not wait for them on the second."""
        self._signals += 1
        if self._service.state in ("loading", "failed"):
            self._opening.cancel()  # which HTTP may wait for
            self._http.stop()
        elif self._signals == 1:
            self._start(self._drain())
        else:
            self._service.hurry()

    async def _drain(self) -> None:
        if ended := await self._service.drain():
            log.info(f"{counted(ended, 'call was', 'calls were')} aborted after --drain-timeout.")
        self._http.stop()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- the server's parts that are elsewhere --------------------------------------------------------------------

    async def _page(self) -> tuple[bytes, str]:
        """Raises ApiError while nothing is loaded."""
        if self._service.loaded is None:
            raise self._service.not_loaded()
        page = await self._replies.ask(lambda question: self._send(AskPage(question)))
        assert isinstance(page, Page)
        if page.text is None:
            raise RuntimeError("the metrics could not be made; the log says why")
        return page.text, page.content_type

    async def _show(self, asked: bytes) -> Mapping[str, bytes]:
        """Return frames of what engines do, by their names. Raises EngineStopped."""
        shown = await self._replies.ask(lambda question: self._send(AskFrames(question, asked)))
        assert isinstance(shown, ShownFrames)
        return shown.frames

    async def _reset_prefix_cache(self) -> PrefixCacheReset:
        """Raises EngineStopped."""
        reset = await self._replies.ask(lambda question: self._send(ResetPrefixCache(question)))
        assert isinstance(reset, PrefixCacheReset)
        return reset

    def _observe(self, route: str, status: int, seconds: float) -> None:
        self._send(Answered(route, status, seconds))

    def _refused(self, code: str) -> None:
        self._send(NotAsked(code))

    # -- messages of the server's first process -----------------------------------------------------------------------

    async def _listen(self) -> None:
        try:
            await self._control.listen(self._heard)
        except Exception as error:  # ends this process alone
            return self._fail(error)
        remove(self._setup.folder)  # no other process is left to do it
        self._engines.gone(GONE)
        if not self._data_ready.done():
            self._data_ready.set_exception(EngineStopped(GONE))
        self._replies.end(EngineStopped(GONE))

    def _heard(self, message: ToChild) -> None:
        match message:
            case Loading():
                if self._service.state == "loading" and (self._jobs is None or self._data_ready.done()):
                    self._service.doing = message.doing
            case DataReady():
                if not self._data_ready.done():
                    self._data_ready.set_result(None)
            case Signal():
                self._on_signal()
            case Reload():
                self._counts.add(message.tenants)
                self._tenants.take(Tenants(message.keys))
                if self._tls is not None:
                    try:
                        load_certificate(self._tls, self._settings, self._setup.certificate)
                    except TlsError as error:  # read while the next one is written, whose `Reload` follows
                        log.warning(str(error))
            case Page() | ShownFrames() | PrefixCacheReset():
                self._replies.came(message.question, message)
            case Setup():
                raise ValueError("a second setup")
            case _:
                self._engines.heard(message)


class _Counts(JobCounts):
    """Counts of batch jobs, sent to the engine's process, which has the metrics."""

    def __init__(self, send: Callable[[FromChild], None]):
        self._send = send

    def jobs(self, by_status: Mapping[str, int]) -> None:
        self._send(JobsCounted(dict(by_status)))

    def ended(self, status: str) -> None:
        self._send(JobEnded(status))

    def lines(self, outcome: Literal["completed", "failed"], count: int = 1) -> None:
        self._send(LinesAnswered(outcome, count))


if __name__ == "__main__":
    sys.exit(main())
