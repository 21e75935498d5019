"""Run prefill engines beside a decode engine in one process, each in a thread of its own.

The decode engine gets a request first, so that blocks are transferred (`execution.kv.transfer`) while the rest of the
prompt is computed. If anything fails here, the export is withdrawn and the decode engine computes the prompt itself.
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
_CLOSE_SECONDS = 60.0  # limit of waiting for the step in flight

log = logging.getLogger(__name__)


def is_transferable(request: Request, block_size: int) -> bool:
    """Return whether another engine may compute the prompt.

    A prompt without a full block before its last token may not, nor one with prompt log-probabilities or pooling.
    """
    is_short = len(request.prompt_token_ids) <= block_size
    return not is_short and request.pooling is None and request.params.prompt_logprobs is None


def prompt_alone(request: Request, export_id: str) -> Request:
    """Return the request for a prefill engine: the prompt without output, exported under the id."""
    return structs.replace(
        request,
        request_id=export_id,
        params=PROMPT_ALONE,
        kv_transfer=KVTransfer(give=export_id),
        grammar=None,
        bad_token_ids=(),
        forced_output_tokens=None,
    )


class PeerExports(Protocol):
    """The part of KV transfer that is needed here."""

    @property
    def address(self) -> tuple[str, int]: ...

    def when_wanted(self, callback: Callable[[str], None], /) -> None:
        """Call back, in any thread, with the id of each export that a peer requests before it has begun."""

    def withdraw(self, export_id: str) -> None:
        """Withdraw an export, also before it has begun; a peer that waits for it gets an error."""


class PrefillEngine:
    """One prefill engine; its methods may be called in any thread.

    A prompt is computed once the decode engine has requested its export, when it has blocks for it: so neither engine
    waits for the other to free blocks.
    """

    def __init__(self, loop: EngineLoop, exports: PeerExports, adapters: AdapterNames):
        self._loop, self._exports, self._adapters = loop, exports, adapters
        self._changed = threading.Condition()  # guards the attributes below
        self._prompts: dict[str, Request] = {}  # by export id, until the decode engine has begun
        self._wanted: dict[str, None] = {}  # requested exports in order; their prompts may not have arrived yet
        self._begun: set[str] = set()
        self._aborted: list[str] = []
        self._stops, self.stopped = False, False
        exports.when_wanted(self._requested)
        self._thread = threading.Thread(target=self._main, name="inflight-prefill", daemon=True)
        self._thread.start()

    @property
    def tokens(self) -> int:
        """Number of prompt tokens of requests that the decode engine has not begun."""
        with self._changed:
            return sum(len(one.prompt_token_ids) for one in self._prompts.values())

    def address_of(self, export_id: str) -> PeerAddress:
        return PeerAddress(*self._exports.address, export_id)

    def begin(self, request: Request, export_id: str) -> None:
        """Compute the prompt once its export is requested; withdraw the export if this engine cannot."""
        adapter = None if request.adapter is None else self._adapters.named(request.adapter.name)
        has_adapter = (adapter is None) == (request.adapter is None)
        with self._changed:
            is_accepted = has_adapter and not self.stopped
            if is_accepted:
                prompt = prompt_alone(request, export_id)
                self._prompts[export_id] = structs.replace(prompt, arrival=self._loop.clock.now(), adapter=adapter)
                self._changed.notify_all()
        if not is_accepted:
            self._exports.withdraw(export_id)

    def end(self, export_id: str) -> None:
        """Withdraw an export: the decode engine has begun to decode, or the request has ended."""
        with self._changed:
            self._prompts.pop(export_id, None)
            self._wanted.pop(export_id, None)
            if export_id in self._begun:
                self._begun.discard(export_id)
                self._aborted.append(export_id)
                self._changed.notify_all()
        self._exports.withdraw(export_id)

    def close(self) -> None:
        with self._changed:
            self._stops = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)

    def _requested(self, export_id: str) -> None:
        with self._changed:
            self._wanted[export_id] = None
            self._changed.notify_all()

    # -- in its thread ------------------------------------------------------------------------------------------
    def _main(self) -> None:
        try:
            while self._take_work():
                outcome = self._loop.advance()
                if isinstance(outcome, WaitUntil):
                    self._loop.clock.wait_until(outcome.time)
                else:
                    self._observe(outcome)
        except BaseException:
            log.exception("a prefill engine crashed; the decode engine computes the prompts from now on")
        finally:
            with self._changed:
                self.stopped = True
            self._loop.close()  # ends the transfers of its blocks

    def _take_work(self) -> bool:
        """Wait for work and add it to the loop; return False once the engine is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._stops or self._aborted or self._due() or not self._loop.idle)
            aborted, self._aborted, due = self._aborted, [], self._due()
            for export_id in due:
                del self._wanted[export_id]
            self._begun.update(due)
            requests = [self._prompts[export_id] for export_id in due]
            stops = self._stops
        for export_id in aborted:
            self._loop.abort(export_id)  # no effect if it has ended
        for request in requests:
            try:
                self._loop.add(request)
            except RequestRefused as refusal:
                self._fail(request.request_id, str(refusal))
        return not stops

    def _due(self) -> list[str]:
        return [export_id for export_id in self._wanted if export_id in self._prompts]

    def _observe(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, FinishedEvent) and event.finishes[0].reason == "error":
                self._fail(event.request_id, event.finishes[0].detail or "The step failed.")

    def _fail(self, export_id: str, why: str) -> None:
        log.warning("%s The decode engine computes the prompt instead.", why)
        self._exports.withdraw(export_id)


@dataclass(frozen=True, slots=True)
class _Assigned:
    engine: PrefillEngine
    export_id: str


class PrefillEngines:
    """All prefill engines of one decode engine. Call `assign`, add the request to the decode engine, then `begin`."""

    def __init__(self, engines: Sequence[PrefillEngine], block_size: int):
        self._engines, self._block_size = engines, block_size
        self._numbers = itertools.count()
        self._assigned: dict[str, _Assigned] = {}  # by request id, until the decode engine has begun

    def assign(self, request: Request) -> Request:
        """Assign the prompt to the prefill engine with the least work; return the request for the decode engine."""
        alive = [one for one in self._engines if not one.stopped]
        if not alive or not is_transferable(request, self._block_size):
            return request
        engine = min(alive, key=lambda one: one.tokens)
        export_id = f"{request.request_id} {next(self._numbers)}"
        self._assigned[request.request_id] = _Assigned(engine, export_id)
        return structs.replace(request, kv_transfer=KVTransfer(take=engine.address_of(export_id)))

    def begin(self, request: Request) -> None:
        """Start the prefill, once the decode engine has the request."""
        assigned = self._assigned.get(request.request_id)
        if assigned is not None:
            assigned.engine.begin(request, assigned.export_id)

    def end(self, request_id: str) -> None:
        """End the prefill once the request decodes, has ended or was refused; idempotent."""
        assigned = self._assigned.pop(request_id, None)
        if assigned is not None:
            assigned.engine.end(assigned.export_id)

    def close(self) -> None:
        for one in self._engines:
            one.close()


NO_PREFILL_ENGINES = PrefillEngines((), 0)  # every engine computes its own prompts
