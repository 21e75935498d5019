"""`AsyncEngine`: a model for asyncio, and the settings of a model as keyword arguments."""

from __future__ import annotations

import itertools
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from inflight.build import Engine, build_engines
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SCHEDULING_NAMES, SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.core.scheduling.stats import SchedulerStats
from inflight.engine.bridge import AsyncBridge
from inflight.frontend.outputs import OutputCollector, RequestOutput
from inflight.frontend.prompts import Prompt, for_each, prompt_text
from inflight.frontend.structured_outputs import SamplingParams, split


class AsyncEngine:
    """A model for asyncio: one engine that batches the requests of many consumers.

    The engine runs in a thread of its own and sleeps without requests. Close it with `close()`, or use it in
    `async with`. Settings are those of `LLM`.

    A step on a CPU releases the interpreter's lock a few times: for the layers, for the logits, and for the draws of
    many rows. Beside a busy Python thread, it may wait for Python's switch interval, 5 ms, each time. A process that
    computes in Python beside the engine sets `switch_interval`.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        record: str | Path | None = None,
        prefill_engines: int = 0,
        switch_interval: float | None = None,
        **settings: Any,
    ):
        """Load a model.

        Args:
            model: Name or folder; None: the built-in one.
            record: File that the run is recorded in.
            prefill_engines: Number of engines that compute prompts for the one that decodes.
            switch_interval: Seconds after which a busy Python thread yields, for the whole process, until `close()`
                (`sys.setswitchinterval`), such as 0.0005. None: unchanged.
            settings: As of `LLM`.
        """
        if switch_interval is not None and not 0 < switch_interval <= 1:
            raise SettingsError(
                f"switch_interval is {switch_interval}; give seconds above 0, up to 1, such as 0.0005, or none."
            )
        self._engine, self._prefill = build_engines(*split_settings(model, settings), record, prefill_engines)
        self._switch_interval_before = sys.getswitchinterval() if switch_interval is not None else None
        if switch_interval is not None:
            sys.setswitchinterval(switch_interval)
        self._bridge = AsyncBridge(self._engine.loop)
        self._numbers = itertools.count()

    @property
    def engine(self) -> Engine:
        return self._engine

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        adapter: str | None = None,
        session_id: str | None = None,
        program_id: str | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Yield the growing output: each item has everything so far, the last one is `finished`.

        Leaving the iteration aborts the request. Arguments and errors are those of `LLM.generate`.
        """
        changed = self._engine.adapters.known(adapter)
        if request_id is None:
            request_id = f"request-{next(self._numbers)}"
        token_ids = self._engine.prompts.tokens(prompt)
        plain, grammar = split(sampling_params or SamplingParams())
        now = self._engine.loop.clock.now()
        make = self._engine.prompts.request
        (session,) = for_each(1, session_id or "", str, "session_id")
        (program,) = for_each(1, program_id or "", str, "program_id")
        request = make(
            request_id, token_ids, plain, now, grammar=grammar, adapter=changed, session=session, program=program
        )
        collector = OutputCollector(request, self._engine.tokenizer, prompt_text(prompt))
        try:
            stream = await self._bridge.open(self._prefill.assign(request))
            self._prefill.begin(request)
            try:
                async for events in stream:
                    self._prefill.end(request_id)
                    for event in events:
                        collector.take(event)
                    yield collector.output()
            finally:
                await stream.aclose()
        finally:
            self._prefill.end(request_id)

    async def abort(self, request_id: str) -> None:
        """End a request; its iteration ends with finish_reason "abort"."""
        self._bridge.abort(request_id)

    async def snapshot(self) -> SchedulerStats:
        return await self._bridge.stats()

    def close(self) -> None:
        """Stop the engine and restore the process's switch interval; idempotent."""
        if self._switch_interval_before is not None:
            sys.setswitchinterval(self._switch_interval_before)
            self._switch_interval_before = None
        self._bridge.close()
        self._prefill.close()

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()


def split_settings(model: str | None, given: dict[str, Any]) -> tuple[EngineSettings, SchedulingSettings]:
    """Return the engine's and the scheduler's settings of keyword arguments. Raises SettingsError."""
    scheduling = {name: given.pop(name) for name in tuple(given) if name in SCHEDULING_NAMES}
    return EngineSettings(model=model, **given), SchedulingSettings.of(**scheduling)
