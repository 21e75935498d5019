"""An engine whose answers are those of the corpus, fed with its requests so that so many always run.

The scripted executor forces the answers; everything else is real, drafts and their verification too. Each time that the
corpus restarts its requests have another salt: what an engine has said once it does not find again, as no client asks
the same twice.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from benchmarks.engines import Model
from benchmarks.speculation.corpus import Pair
from inflight.config.assembly import scheduler_for
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.speculation.speculation import Drafter, SpeculationStats
from inflight.core.types.events import FinishedEvent, TokensEvent
from inflight.core.types.executor import Executor
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.clock import Clock
from inflight.engine.loop import EngineLoop
from inflight.testing.scripted import ScriptedExecutor

MODEL_LEN, BLOCK = 1024, 16


class OwnTime:
    """A clock that goes while this process computes: for a machine that others use, and one thread."""

    def now(self) -> float:
        return time.process_time()

    def passed(self, seconds: float) -> None:
        """It has passed by itself."""

    def wait_until(self, moment: float, interrupt: threading.Event | None = None) -> None:
        """Do not wait: there is always work."""


@dataclass(slots=True)
class _Running:
    """added: when it came, on the engine's own clock."""

    added: float
    token_ids: list[int] = field(default_factory=list)


class ScriptedEngine:
    """seconds, tokens, steps: of all that it has done since it was filled; a token counts when it has come. ttfts:
    seconds of its own, of the requests that have their first token."""

    def __init__(self, executor: Executor, scheduler: Scheduler, pairs: Sequence[Pair], clock: Clock, depth: int = 1):
        """clock: by which it counts its seconds. They go while it runs: others may run in between. depth: steps in
        flight."""
        answers = {pair.prompt: pair.answer for pair in pairs}
        self._pairs, self._clock, self._scheduler = pairs, clock, scheduler
        scripted = ScriptedExecutor(executor, lambda prompt, sample: answers[prompt])
        self._loop = EngineLoop(scheduler, scripted, clock, depth=depth)
        self._requests = self._endless()
        self._running: dict[str, _Running] = {}
        self.tokens, self.steps, self.seconds = 0, 0, 0.0
        self.ttfts: list[float] = []

    @property
    def stats(self) -> SpeculationStats:
        """Return the counts of drafts since the engine began; empty without speculation."""
        return self._scheduler.stats().speculation or SpeculationStats("")

    def fill(self, rows: int) -> None:
        """Until so many requests have their first token. Nothing of it counts."""
        self._keep_running(rows)
        while not all(one.token_ids for one in self._running.values()):
            self._advance()
            self._keep_running(rows)
        self.tokens, self.steps, self.seconds = 0, 0, 0.0
        self.ttfts.clear()

    def run_tokens(self, rows: int, until: int) -> None:
        """So many requests at a time, until all of them together have come to so many tokens."""
        while self.tokens < until:
            self._keep_running(rows)
            self._advance()

    def run_seconds(self, rows_at: Callable[[float], int], until: float) -> None:
        """As many requests at a time as `rows_at` says of the engine's own seconds, until so many of these. Requests
        beyond that are aborted."""
        while self.seconds < until:
            rows = rows_at(self.seconds)
            for request_id in list(self._running)[rows:]:
                del self._running[request_id]
                self._loop.abort(request_id)
            self._keep_running(rows)
            self._advance()

    def run_arrivals(self, arrivals: Sequence[float]) -> None:
        """Requests that come at these of the engine's own seconds, until all have ended. Where none runs, the next
        one comes at once."""
        coming = deque(arrivals)
        while coming or self._running:
            if coming and not self._running:
                self.seconds = max(self.seconds, coming[0])
            while coming and coming[0] <= self.seconds:
                self._add(coming.popleft())
            self._advance()

    def _keep_running(self, rows: int) -> None:
        while len(self._running) < rows:
            self._add(self.seconds)

    def _add(self, moment: float) -> None:
        request = next(self._requests)
        self._running[request.request_id] = _Running(moment)
        self._loop.add(request)

    def _advance(self) -> None:
        began = self._clock.now()
        events = self._loop.advance()
        self.seconds += self._clock.now() - began
        self.steps += 1
        assert isinstance(events, list)
        for event in events:
            if isinstance(event, TokensEvent):
                running = self._running[event.request_id]
                if not running.token_ids:
                    self.ttfts.append(self.seconds - running.added)
                running.token_ids += event.token_ids
                self.tokens += len(event.token_ids)
            elif isinstance(event, FinishedEvent):
                said = self._running.pop(event.request_id).token_ids
                pair = self._pairs[int(event.request_id) % len(self._pairs)]
                assert tuple(said) == pair.answer, f"{pair.name} was answered with other tokens"

    def _endless(self) -> Iterator[Request]:
        for number in count():
            turn, place = divmod(number, len(self._pairs))
            pair = self._pairs[place]
            yield Request(
                request_id=str(number),
                prompt_token_ids=pair.prompt,
                params=SamplingParams(temperature=0, max_tokens=len(pair.answer), ignore_eos=True),
                cache_salt=str(turn),
            )


def engine(
    model: Model,
    rows: int,
    pairs: Sequence[Pair],
    scheduling: SchedulingSettings,
    drafter: Drafter | None,
    clock: Clock,
    prefix_caching: bool = True,
) -> ScriptedEngine:
    """For so many rows at most. drafter: None: there is no speculation."""
    settings = EngineSettings(
        max_model_len=MODEL_LEN, num_blocks=blocks(rows), max_num_seqs=rows, enable_prefix_caching=prefix_caching
    )
    executor = model.executor(settings, scheduling)
    scheduler = scheduler_for(executor.capacity, settings, scheduling, drafter=drafter)
    return ScriptedEngine(executor, scheduler, pairs, clock)


def blocks(rows: int) -> int:
    """Return the KV memory that so many rows may fill."""
    return rows * MODEL_LEN // BLOCK + 8
