"""Engines that compute prompts for the one that goes on with them, beside it in one process, a thread for each.

Knows which prompt goes to which engine, and when it is computed. The engine that decodes is asked first, so that what
is computed of a prompt travels while the rest is. What travels, and how, `execution.kv_exchange` knows. Whatever fails
here costs computing: the decoding engine is told that nothing comes, and computes the prompt.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import structs

from inflight.core.types.events import Event, FinishedEvent
from inflight.core.types.kv_transfer import KVTransfer, PeerAddress
from inflight.core.types.plan import WaitUntil
from inflight.core.types.request import Request, RequestRefused
from inflight.core.types.sampling import SamplingParams
from inflight.engine.loop import EngineLoop
from inflight.frontend.adapter_names import AdapterNames

PROMPT_ALONE = SamplingParams(max_tokens=0)
_CLOSING = 60.0  # seconds for the step that is being computed

log = logging.getLogger(__name__)


def is_handed_over(request: Request, block_size: int) -> bool:
    """A prompt that has no whole block before its last token is computed where it is decoded, as is one whose tokens
    are scored, and a text of which a vector is wanted."""
    is_short = len(request.prompt_token_ids) <= block_size
    return not is_short and request.pooling is None and request.params.prompt_logprobs is None


def prompt_alone(request: Request, export_id: str) -> Request:
    """As an engine has it that computes the prompt for another one."""
    return structs.replace(
        request,
        request_id=export_id,
        params=PROMPT_ALONE,
        kv_transfer=KVTransfer(give=export_id),
        grammar=None,
        bad_token_ids=(),
        forced_output_tokens=None,
    )


class Exchange(Protocol):
    @property
    def address(self) -> tuple[str, int]: ...

    def when_wanted(self, told: Callable[[str], None]) -> None:
        """Has it told of each export that a peer asks for before it has begun, in any thread."""

    def withdraw(self, export_id: str) -> None:
        """No peer is to have it any more, or ever; whoever waits for it is told."""


class PrefillEngine:
    """One of them. Its verbs are called in any thread. A prompt is computed once the engine that decodes has asked for
    it, which then has blocks for it: so neither waits for the other to make room."""

    def __init__(self, loop: EngineLoop, exchange: Exchange, adapters: AdapterNames):
        self._loop, self._exchange, self._adapters = loop, exchange, adapters
        self._changed = threading.Condition()  # of what follows
        self._prompts: dict[str, Request] = {}  # until the engine that decodes has begun, by export
        self._wanted: dict[str, None] = {}  # of those, or of some that are about to come: asked for, in order
        self._begun: set[str] = set()
        self._left: list[str] = []
        self._stops, self.stopped = False, False
        exchange.when_wanted(self._is_wanted)
        self._thread = threading.Thread(target=self._main, name="inflight-prefill", daemon=True)
        self._thread.start()

    @property
    def tokens(self) -> int:
        """Of prompts that the engine which decodes has not begun with."""
        with self._changed:
            return sum(len(one.prompt_token_ids) for one in self._prompts.values())

    def place(self, export_id: str) -> PeerAddress:
        return PeerAddress(*self._exchange.address, export_id)

    def begin(self, request: Request, export_id: str) -> None:
        """Compute its prompt, for whoever asks for it."""
        adapter = None if request.adapter is None else self._adapters.named(request.adapter.name)
        has_adapter = (adapter is None) == (request.adapter is None)
        with self._changed:
            is_taken = has_adapter and not self.stopped
            if is_taken:
                prompt = prompt_alone(request, export_id)
                self._prompts[export_id] = structs.replace(prompt, arrival=self._loop.clock.now(), adapter=adapter)
                self._changed.notify_all()
        if not is_taken:
            self._exchange.withdraw(export_id)

    def end(self, export_id: str) -> None:
        """The engine that decodes has begun, or does not want it any more."""
        with self._changed:
            self._prompts.pop(export_id, None)
            self._wanted.pop(export_id, None)
            if export_id in self._begun:
                self._begun.discard(export_id)
                self._left.append(export_id)
                self._changed.notify_all()
        self._exchange.withdraw(export_id)

    def close(self) -> None:
        with self._changed:
            self._stops = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSING)

    def _is_wanted(self, export_id: str) -> None:
        with self._changed:
            self._wanted[export_id] = None
            self._changed.notify_all()

    # -- in its thread ------------------------------------------------------------------------------------------
    def _main(self) -> None:
        try:
            while self._takes():
                outcome = self._loop.advance()
                if isinstance(outcome, WaitUntil):
                    self._loop.clock.wait_until(outcome.time)
                else:
                    self._told(outcome)
        except BaseException:
            log.exception("an engine that computes prompts stops by a fault; they are computed where they are decoded")
        finally:
            with self._changed:
                self.stopped = True
            self._loop.close()  # whoever waits for its blocks is told

    def _takes(self) -> bool:
        """Waits for something to do; False: nothing is to be done any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._stops or self._left or self._due() or not self._loop.idle)
            left, self._left, due = self._left, [], self._due()
            for export_id in due:
                del self._wanted[export_id]
            self._begun.update(due)
            requests = [self._prompts[export_id] for export_id in due]
            stops = self._stops
        for export_id in left:
            self._loop.abort(export_id)  # if it is still computed
        for request in requests:
            try:
                self._loop.add(request)
            except RequestRefused as refusal:
                self._gives_up(request.request_id, str(refusal))
        return not stops

    def _due(self) -> list[str]:
        return [export_id for export_id in self._wanted if export_id in self._prompts]

    def _told(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, FinishedEvent) and event.finishes[0].reason == "error":
                self._gives_up(event.request_id, event.finishes[0].detail or "The step failed.")

    def _gives_up(self, export_id: str, why: str) -> None:
        log.warning("%s The prompt is computed where it is decoded.", why)
        self._exchange.withdraw(export_id)


@dataclass(frozen=True, slots=True)
class _Handed:
    engine: PrefillEngine
    export_id: str


class PrefillEngines:
    """All of them, as the engine that decodes is driven."""

    def __init__(self, engines: Sequence[PrefillEngine], block_size: int):
        self._engines, self._block_size = engines, block_size
        self._numbers = itertools.count()
        self._handed: dict[str, _Handed] = {}  # by the request's id, until the other engine has begun with it

    def taken_over(self, request: Request) -> Request:
        """As the engine that decodes is to have it."""
        alive = [one for one in self._engines if not one.stopped]
        if not alive or not is_handed_over(request, self._block_size):
            return request
        engine = min(alive, key=lambda one: one.tokens)
        handed = self._handed[request.request_id] = _Handed(engine, f"{request.request_id} {next(self._numbers)}")
        return structs.replace(request, kv_transfer=KVTransfer(take=engine.place(handed.export_id)))

    def begin(self, request: Request) -> None:
        """The engine that decodes has it."""
        handed = self._handed.get(request.request_id)
        if handed is not None:
            handed.engine.begin(request, handed.export_id)

    def end(self, request_id: str) -> None:
        """It decodes, or has ended; or was refused. More than once is no more than once."""
        handed = self._handed.pop(request_id, None)
        if handed is not None:
            handed.engine.end(handed.export_id)

    def close(self) -> None:
        for one in self._engines:
            one.close()


NO_PREFILL_ENGINES = PrefillEngines((), 0)  # every engine computes its own prompts
