"""An engine's process, as the server sees it: it is started, reports its progress, and ends with the socket to it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from inflight.engine.event_stream import set_outcome
from inflight.server.processes.control import ControlledProcess
from inflight.server.processes.messages import (
    AdapterChanged,
    AskFrames,
    AskPage,
    LoadAdapter,
    Loading,
    Model,
    Notice,
    Page,
    PrefixCacheReset,
    ResetPrefixCache,
    ShownFrames,
    UnloadAdapter,
)
from inflight.server.processes.pending_replies import PendingReplies
from inflight.server.processes.worker_messages import (
    ClientDropped,
    ClientLost,
    EngineReady,
    Failed,
    FromWorker,
    ToWorker,
    decode_from_worker,
)

ENDING_SECONDS = 5.0
PAGE_SECONDS = 5.0  # for which its metrics are waited for
SHOWN_SECONDS = 1.0  # for which frames are, for which the page waits

Reply = Page | ShownFrames | AdapterChanged | PrefixCacheReset

log = logging.getLogger("inflight.server")


class WorkerError(RuntimeError):
    """A model could not be loaded, or its process has ended; the sentence says why. exit_code: of its server."""

    def __init__(self, sentence: str, exit_code: int = 1):
        super().__init__(sentence)
        self.exit_code = exit_code


class Worker(ControlledProcess[FromWorker]):
    """One process. Lives in one event loop, from `start` on."""

    def __init__(self, module: str, inherited: Sequence[int] = (), ending_seconds: float = ENDING_SECONDS):
        """Start a process.

        Args:
            module: Its program.
            inherited: Descriptors.
            ending_seconds: After which one that is to end is killed.
        """
        super().__init__(module, decode_from_worker, inherited)
        self._replies = PendingReplies[Reply | None]()
        self._loading: Callable[[str], None] = lambda doing: None
        self.failed: str | None = None  # why it ends, if its process has said so, and logged it
        self.exit_code = 1  # of a server whose first engine could not be loaded
        self._why = ""
        self._is_ending, self._ending_seconds = False, ending_seconds
        self._late: asyncio.TimerHandle | None = None  # kills the process once it is to end

    def start(
        self,
        setup: bytes,
        loading: Callable[[str], None] = lambda doing: None,
        *,
        dropped: Callable[[str], None],
    ) -> None:
        """Send the first message.

        Args:
            setup: The message.
            loading: Called with each part of the start that begins.
            dropped: Called with the name of a client that is dropped.
        """
        loop, self._loading, self._dropped = asyncio.get_running_loop(), loading, dropped
        self._found: asyncio.Future[Model] = loop.create_future()
        self._ready: asyncio.Future[EngineReady] = loop.create_future()
        self.ended: asyncio.Future[str] = loop.create_future()  # why, empty where it was asked to
        self._control.send_encoded(setup)
        self._watching = loop.create_task(self._watch())

    async def found(self) -> Model:
        """Return where the model's files are. Raises WorkerError."""
        return await asyncio.shield(self._found)

    async def ready(self) -> EngineReady:
        """Raises WorkerError."""
        return await asyncio.shield(self._ready)

    async def metrics(self) -> bytes | None:
        """Return the page of its engine; None if there is none, or it does not answer."""
        page = await self._ask(AskPage, PAGE_SECONDS)
        if page is None and not self.ended.done():
            log.warning(f"The engine's process has not sent its metrics within {PAGE_SECONDS:g} s.")
        return page.text if isinstance(page, Page) else None

    async def shown(self, asked: bytes, name: str = "") -> dict[str, bytes]:
        """Return what its engine does, as `live.distant` writes it, by its name; empty where it does not answer."""
        shown = await self._ask(lambda question: AskFrames(question, asked, name), SHOWN_SECONDS)
        return shown.frames if isinstance(shown, ShownFrames) else {}

    async def change_adapter(self, change: LoadAdapter | UnloadAdapter) -> AdapterChanged | None:
        """Load or unload an adapter; None where the process ends meanwhile. change: its number is not looked at."""
        changed = await self._ask(lambda question: replace(change, question=question))
        return changed if isinstance(changed, AdapterChanged) else None

    async def reset_prefix_cache(self) -> PrefixCacheReset | None:
        """Drop its engine's cached prefixes; None where the process ends meanwhile."""
        reset = await self._ask(ResetPrefixCache)
        return reset if isinstance(reset, PrefixCacheReset) else None

    async def _ask(self, make: Callable[[int], ToWorker], seconds: float | None = None) -> Reply | None:
        """Return the reply to a question; None where the process has ended, or does not reply within the seconds."""
        try:
            return await self._replies.ask(lambda question: self._control.send(make(question)), seconds)
        except TimeoutError:
            return None

    def count(self, message: Notice) -> None:
        """Send what the metrics of its engine count."""
        self._control.send(message)

    def client_lost(self, name: str) -> None:
        """Abort the requests of a client whose process has ended."""
        self._control.send(ClientLost(name))

    async def end(self) -> None:
        """End the process; return when its memory is free."""
        self._is_ending = True
        self._control.close()
        self._end_in_time()
        await asyncio.shield(self.ended)

    def break_off(self, why: str) -> None:
        """Kill the process; `ended` holds the reason."""
        self._why = self._why or why
        self._process.kill()

    def discard(self) -> None:
        """Kill a process whose `start` was never called."""
        self._is_ending = True
        self._control.discard()
        self._process.kill()

    async def _watch(self) -> None:
        """Follow the process from its start to its end."""
        try:
            await self._control.listen(self._heard)
            self._end_in_time()
            await asyncio.to_thread(self._process.wait)
        except ValueError as error:
            self._why = f"The model's process sent an invalid message ({error})."
        finally:  # also when it is cancelled: no task may wait for ever
            self._control.close()
            self._process.kill()
            self._has_ended(await asyncio.to_thread(self._process.wait))  # the system may take seconds to free memory

    def _end_in_time(self) -> None:
        """Kill the process if it has not ended after its ending seconds; calls after the first have no effect."""
        if self._late is None:
            self._late = asyncio.get_running_loop().call_later(self._ending_seconds, self._kill_late)

    def _kill_late(self) -> None:
        log.error(f"The engine process did not exit within {self._ending_seconds:g} s and was killed.")
        self._process.kill()

    def _has_ended(self, code: int) -> None:
        """Report the end to all that wait for the process."""
        why = "" if self._is_ending else self._why or _ending(code)
        if self._late is not None:
            self._late.cancel()
        if self._ready.done() and not self._ready.exception():
            Path(self._ready.result().address.removeprefix("ipc://")).unlink(missing_ok=True)
        self._replies.end(None)
        fault = WorkerError(why or "The model was unloaded while it was being loaded.")
        for future in (self._found, self._ready):
            if not future.done():
                future.set_exception(fault)
                future.exception()  # it is raised where it is awaited, and need not be
        set_outcome(self.ended, why)

    def _heard(self, message: FromWorker) -> None:
        match message:
            case Model():
                set_outcome(self._found, message)
            case EngineReady():
                set_outcome(self._ready, message)
            case Loading():
                self._loading(message.doing)
            case ClientDropped():
                self._dropped(message.name)
            case Failed():
                self._why = self.failed = message.sentence
                self.exit_code = message.exit_code
                self._end_in_time()
            case Page() | ShownFrames() | AdapterChanged() | PrefixCacheReset():
                self._replies.came(message.question, message)


def _ending(code: int) -> str:
    if code >= 0:
        return f"The engine process ended with exit code {code}; see its messages above."
    named = {one.value: one.name for one in signal.Signals}  # real-time signals have no names
    how = named.get(-code, f"signal {-code}")
    return f"The engine process was killed by {how}; check the kernel log for an out-of-memory kill."
