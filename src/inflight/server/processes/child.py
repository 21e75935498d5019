"""An API process: `python -m inflight.server.processes.child CONTROL`, an open descriptor.

Serves HTTP over an engine in another process. Obeys the messages that come over CONTROL instead of signals: those that
go to all processes of a terminal or a service would end it before its calls are done. Ends when CONTROL does.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from inflight.engine.event_stream import EngineStopped
from inflight.engine.remote.client import RemoteClient
from inflight.limited_process import receive
from inflight.server import logs
from inflight.server.access_log import log_call
from inflight.server.app import make_app
from inflight.server.call_counts import SharedCallCounts
from inflight.server.engine_description import decode_description
from inflight.server.errors import ApiError, invalid
from inflight.server.jobs.counts import JobCounts
from inflight.server.jobs.storage import DataDirectoryError, StorageError
from inflight.server.live.members import RemoteEngineSource
from inflight.server.loader import LOADER, in_own_thread
from inflight.server.loading import make_jobs, make_live, make_prompts, make_served
from inflight.server.preprocessing.pool import PreprocessingPool
from inflight.server.preprocessing.worker import loaded
from inflight.server.process import Process
from inflight.server.processes.control import Control
from inflight.server.processes.folder import remove
from inflight.server.processes.messages import (
    NO_SUCCESSOR,
    AdapterChanged,
    Adapters,
    Answered,
    AskFrames,
    AskPage,
    DataReady,
    FromChild,
    JobEnded,
    JobsCounted,
    LinesAnswered,
    LoadAdapter,
    Loading,
    Lost,
    Model,
    NotAsked,
    Page,
    Ready,
    Reload,
    Setup,
    ShownFrames,
    Signal,
    ToChild,
    UnloadAdapter,
    Up,
    decode_to_child,
)
from inflight.server.processes.pending_replies import PendingReplies
from inflight.server.served import OneModel
from inflight.server.service import Service
from inflight.server.tenants import Tenants
from inflight.server.tls import tls_context
from inflight.server.tracing.opening import close_tracer, open_tracer
from inflight.text import ChatTemplate, Tokenizer

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
    logs.configure(setup.log_format, setup.log_level)
    try:
        return _Child(setup, control, preprocessing).run()
    except OSError as error:
        log.error(f"An API process cannot serve: {error}")
        return 1


class _Child:
    def __init__(self, setup: Setup, control: socket.socket, preprocessing: PreprocessingPool):
        self._setup, self._preprocessing = setup, preprocessing
        self._control = Control(control, decode_to_child)
        self._tell = self._control.send
        self._tenants = Tenants(setup.keys)
        self._counts = counts = SharedCallCounts(setup.counts, setup.tenants, setup.settings.api_processes, setup.place)
        self._service = Service(setup.settings, lambda ended: log_call(ended, self._refused), counts)
        self._tracer = open_tracer(setup.settings, setup.version)
        self._jobs = make_jobs(self._service, self._tenants, is_claimed=True)
        self._is_hopeless = False
        self._process = Process(
            self._service,
            self._tenants,
            self._open,
            self._begin,
            self._end,
            hears_signals=False,
            early=setup.early,
        )
        self._feed = RemoteEngineSource(self._show)
        self._news: asyncio.Queue[Model | Ready | Lost | None] = asyncio.Queue()
        self._pages, self._frames = PendingReplies[tuple[bytes, str]](), PendingReplies[bytes]()
        self._changes = PendingReplies[AdapterChanged]()

    def run(self) -> int:
        bound = socket.socket(fileno=self._setup.listening)
        setup = self._setup
        app = make_app(
            self._service,
            self._tenants,
            self._page,
            setup.version,
            self._observe,
            self._jobs,
            self._tracer,
            make_live(self._service, self._live_source, setup.record),
        )
        code = self._process.run(app, bound, tls_context(self._setup.settings))
        return NO_SUCCESSOR if self._is_hopeless else code

    def _live_source(self) -> RemoteEngineSource | None:
        """Return None while nothing is loaded."""
        return None if self._service.loaded is None else self._feed

    # -- the server's parts that are elsewhere --------------------------------------------------------------------

    async def _open(self, doing: Callable[[str], None]) -> OneModel:
        """Wait for the first engine. Raises EngineStopped, DataDirectoryError, StorageError."""
        self._data_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._following = asyncio.ensure_future(self._listen())  # now messages can be obeyed
        if self._jobs is not None:
            doing("checking the data directory")
            await self._data_ready
            await in_own_thread(self._open_jobs, LOADER)
        return await self._next_engine()

    def _open_jobs(self) -> None:
        """Open what the first process has prepared. Raises DataDirectoryError, StorageError."""
        assert self._jobs is not None
        try:
            self._jobs.open()
        except (DataDirectoryError, StorageError):
            self._is_hopeless = True
            raise

    async def _next_engine(self) -> OneModel:
        """Connect to the next engine that serves. Raises EngineStopped where the server's first process is gone."""
        while True:
            model = await self._next()
            if not isinstance(model, Model):
                continue  # of an engine that is lost already
            self._preprocessing.load(model.folder)
            text = await in_own_thread(partial(loaded, model.folder), LOADER)
            ready = await self._next()
            if isinstance(ready, Ready):
                return await self._connect(ready, *text)

    async def _connect(self, ready: Ready, tokenizer: Tokenizer | None, template: ChatTemplate | None) -> OneModel:
        engine = msgspec.structs.replace(decode_description(ready.engine), adapters=ready.adapters)
        prompts = make_prompts(tokenizer, template, engine, self._setup.serial)
        prompts.check_chat()
        client = RemoteClient(ready.address, str(self._setup.serial), self._lose)
        make = partial(make_served, self._setup.settings, engine, client, self._preprocessing, prompts, tokenizer)
        return OneModel(await in_own_thread(make, LOADER), self)

    async def _next(self) -> Model | Ready | Lost:
        news = await self._news.get()
        if news is None:
            raise EngineStopped(GONE)
        return news

    async def _follow(self) -> None:
        """Connect to the engines that come after the first one."""
        while True:
            try:
                models = await self._next_engine()
            except EngineStopped as gone:
                return self._process.fail(str(gone))
            self._service.ready(models)
            self._tell(Up())

    # -- adapters -------------------------------------------------------------------------------------------------

    async def load_adapter(self, name: str, path: Path) -> None:
        """Let requests name an adapter, in all processes. Raises ApiError."""
        changed = await self._changes.ask(lambda question: self._tell(LoadAdapter(question, name, path)))
        if changed.error is not None:
            raise invalid(changed.error, changed.param)

    async def unload_adapter(self, name: str) -> None:
        """Let no request name an adapter any more. Raises ApiError."""
        changed = await self._changes.ask(lambda question: self._tell(UnloadAdapter(question, name)))
        if changed.error is not None:
            raise ApiError(404, changed.error, param="lora_name", code="model_not_found")

    async def _begin(self) -> None:
        self._tell(Up())
        self._process.start(self._follow())
        if self._jobs is not None:
            while not self._service.counts.all_ready:  # before, their lines would be refused
                await asyncio.sleep(READY_SECONDS)
            self._jobs.start(_Counts(self._tell))

    async def _end(self) -> None:
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
        try:
            await self._control.listen(self._heard)
        except Exception:
            log.exception("a message of the server's first process is not understood")
        remove(self._setup.folder)  # no other process is left to do it
        self._lose(GONE)
        self._news.put_nowait(None)
        if not self._data_ready.done():
            self._data_ready.set_exception(EngineStopped(GONE))
        for replies in (self._pages, self._frames, self._changes):
            replies.end(EngineStopped(GONE))

    def _lose(self, sentence: str) -> None:
        """End the calls of an engine that has ended."""
        models = self._service.lose_engine("starting the engine again")
        if isinstance(models, OneModel):
            client = models.served.bridge
            assert isinstance(client, RemoteClient)
            client.stop(sentence)
            client.close()

    def _heard(self, message: ToChild) -> None:
        match message:
            case Loading():
                if self._service.state == "loading" and (self._jobs is None or self._data_ready.done()):
                    self._service.doing = message.doing
            case DataReady():
                self._data_ready.set_result(None)
            case Model() | Ready():
                self._news.put_nowait(message)
            case Lost():
                self._lose(message.sentence)
                self._news.put_nowait(message)
            case Adapters():
                if isinstance(models := self._service.loaded, OneModel):
                    models.served.translator.adapters.replace(message.adapters)
            case AdapterChanged():
                self._changes.came(message.question, message)
            case Signal():
                self._process.on_signal(message.number)
            case Reload():
                self._counts.add(message.tenants)
                self._tenants.take(Tenants(message.keys))
                self._process.reload_certificate()
            case Page():
                self._pages.came(message.question, _shown(message))
            case ShownFrames():
                self._frames.came(message.question, message.data)
            case Setup():
                raise ValueError("a second setup")


class _Counts(JobCounts):
    """Counts of batch jobs, sent to the engine's process, which has the metrics."""

    def __init__(self, tell: Callable[[FromChild], None]):
        self._tell = tell

    def jobs(self, by_status: Mapping[str, int]) -> None:
        self._tell(JobsCounted(dict(by_status)))

    def ended(self, status: str) -> None:
        self._tell(JobEnded(status))

    def lines(self, outcome: Literal["completed", "failed"], count: int = 1) -> None:
        self._tell(LinesAnswered(outcome, count))


def _shown(page: Page) -> tuple[bytes, str] | RuntimeError:
    if page.text is None:
        return RuntimeError("the metrics could not be told; the engine's process has logged why")
    return page.text, page.content_type


if __name__ == "__main__":
    sys.exit(main())
