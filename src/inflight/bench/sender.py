"""One process's part of a run: send its entries when they are due, and observe the answers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from inflight.bench.answer import Answer
from inflight.bench.client_health import TICK_S, HealthMonitor, WorkerHealth
from inflight.bench.client_types import Bodies, Progress, Target, Transcript
from inflight.bench.http_client import CompletionClient, Reply, open_session
from inflight.bench.timer import Timer
from inflight.metrics.observation import Observation
from inflight.workload.workload import Entry, Pacer, Workload

_QUIET_S = 0.005  # room in which a body can be made without making a request late
_ASK_EVERY, _REPORT_EVERY = 5, 25  # ticks


@dataclass(frozen=True, slots=True)
class Shard:
    """The entries of one process, in order, with `after` among them; indexes: in the whole workload."""

    workload: Workload
    indexes: Sequence[int]


@dataclass(frozen=True, slots=True)
class ShardResult:
    """The result of a shard: observations in its order. counted: whether servers reported the tokens of every
    answer."""

    observations: list[Observation]
    frames: int
    counted: bool
    health: WorkerHealth
    interrupted: bool


MAX_PREFETCHED_BYTES = 64 << 20
MAX_PREFETCHED = 20_000


class BodyPrefetcher:
    """Bodies of one process. indexes: of its entries in the workload of `bodies`."""

    def __init__(self, entries: Sequence[Entry], indexes: Sequence[int], bodies: Bodies):
        self._indexes = indexes
        self._bodies = bodies
        self._next: Iterator[int] = iter(position for position, entry in enumerate(entries) if entry.after is None)
        self._made: dict[int, tuple[bytes, Transcript]] = {}
        self._bytes = 0
        self._begun: set[int] = set()  # taken before they were made
        self._all = False

    @property
    def full(self) -> bool:
        """Whether no body is to be made now."""
        return self._all or self._bytes >= MAX_PREFETCHED_BYTES or len(self._made) >= MAX_PREFETCHED

    def make_one(self) -> None:
        position = next(self._next, None)
        if position is None:
            self._all = True
        elif position in self._begun:
            self._begun.discard(position)
        else:
            self._made[position] = made = self._bodies.body(self._indexes[position], None)
            self._bytes += len(made[0])

    def take(self, position: int, before: Transcript | None) -> tuple[bytes, Transcript]:
        """Return the body, and the conversation up to it."""
        made = self._made.pop(position, None)
        if made is not None:
            self._bytes -= len(made[0])
            return made
        if before is None:
            self._begun.add(position)
        return self._bodies.body(self._indexes[position], before)


class Sender:
    def __init__(self, shard: Shard, target: Target, bodies: Bodies):
        self._entries = shard.workload.entries
        self._target = target
        self._bodies = bodies
        self._bounded = shard.workload.concurrency is not None
        self._pacer = Pacer(shard.workload)
        self._prefetcher = BodyPrefetcher(self._entries, shard.indexes, bodies)
        self._names = shard.indexes
        self._followers = Counter(entry.after for entry in self._entries if entry.after is not None)  # still to come
        self._conversations: dict[int, Transcript] = {}  # with a next turn, answer included
        self._observations: list[Observation | None] = [None] * len(self._entries)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._answers: dict[int, Answer] = {}  # in flight
        self._ends = {"completed": 0, "rejected": 0, "failed": 0, "unfinished": 0}
        self._sent = self._frames = self._tokens = 0
        self._counted = True
        self._monitor = HealthMonitor()
        self._interrupted = False
        self._timer_at: float | None = None
        self._making = False
        self._room_at = 0.0  # when the bound last admitted a request that had waited for it
        self._blocked = False

    def prepare(self) -> None:
        """Make the first bodies, before the clock runs."""
        while not self._prefetcher.full:
            self._prefetcher.make_one()

    async def run(self, start: float, stop: Callable[[], bool], report: Callable[[Progress], None]) -> ShardResult:
        """Run the shard. start: of the workload, on time.perf_counter, which processes of one machine share. stop:
        called every 50 ms. report: called every 250 ms."""
        self._start = start
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        async with open_session(self._target) as session:
            self._http = CompletionClient(session, self._target, start)
            self._timer = Timer(self._loop, self._pump)
            self._monitor.begin(self._now())
            ticking = self._loop.create_task(self._tick(stop, report))
            self._pump()
            try:
                await self._over
            finally:
                ticking.cancel()
                self._timer.close()
                for task in list(self._tasks.values()):
                    task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            health = self._monitor.health(self._now())
        report(self._progress())
        return ShardResult(self._all_observations(), self._frames, self._counted, health, self._interrupted)

    def unsent(self) -> ShardResult:
        """Return the result of a run that was interrupted before its clock ran."""
        never = [self._never(position, 0.0) for position in range(len(self._entries))]
        return ShardResult(never, 0, True, WorkerHealth(), True)

    def _now(self) -> float:
        return time.perf_counter() - self._start

    # -- the pace -------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send all requests that are due, and wake for the next."""
        if self._interrupted or self._over.done():
            return
        self._timer_at = None
        for position, intended in self._pacer.take_due(self._now()):
            due = max(intended, self._room_at) if self._bounded else intended
            self._tasks[position] = self._loop.create_task(self._request(position, intended, due))
        if self._pacer.done:
            self._over.set_result(None)
            return
        coming = self._pacer.next_due()
        self._blocked = self._bounded and coming is None
        self._wake(coming)

    def _wake(self, coming: float | None) -> None:
        if coming != self._timer_at:
            self._timer_at = coming
            if coming is None:
                self._timer.clear()
            else:
                self._timer.set(self._start + coming)
        quiet = coming is None or coming - self._now() > _QUIET_S
        if quiet and not self._making and not self._prefetcher.full:
            self._making = True
            self._loop.call_soon(self._make)

    def _make(self) -> None:
        """Make one body in a quiet moment; the next one, if it is still quiet in the next turn of the loop."""
        self._making = False
        try:
            self._prefetcher.make_one()
        except Exception as problem:  # of `bodies`
            self._fail(problem)
        if not self._over.done():
            self._wake(self._timer_at)

    async def _tick(self, stop: Callable[[], bool], report: Callable[[Progress], None]) -> None:
        count = 0
        while True:
            await asyncio.sleep(TICK_S)
            self._monitor.tick(self._now())
            count += 1
            if count % _ASK_EVERY == 0 and stop():
                self._interrupted = True
                if not self._over.done():
                    self._over.set_result(None)
            if count % _REPORT_EVERY == 0:
                report(self._progress())

    # -- a request ------------------------------------------------------------------------------------------------

    async def _request(self, position: int, intended: float, due: float) -> None:
        entry = self._entries[position]
        answer = self._answers[position] = Answer(keep=position in self._followers)
        sent: float | None = None
        reply = Reply("unfinished")
        try:
            body, conversation = self._prefetcher.take(position, self._before(entry.after))
            sent = self._now()
            self._sent += 1
            self._monitor.sent(sent - due)
            reply = await self._ask(body, answer, sent + self._target.timeout_s)
            if position in self._followers:
                token_ids = tuple(answer.token_ids)
                self._conversations[position] = self._bodies.answered(conversation, answer.text, token_ids)
        except asyncio.CancelledError:
            pass  # the run was interrupted: received tokens count
        except Exception as problem:  # of `bodies`, or an internal error
            self._fail(problem)
        self._note(position, intended, sent, answer, reply)
        del self._tasks[position], self._answers[position]
        now = self._now()
        if self._blocked:
            self._room_at = now
        self._pacer.ended(position, now)
        self._pump()

    def _before(self, after: int | None) -> Transcript | None:
        """Return the conversation so far, and drop it when no other entry follows it."""
        if after is None:
            return None
        self._followers[after] -= 1
        return self._conversations[after] if self._followers[after] else self._conversations.pop(after)

    async def _ask(self, body: bytes, answer: Answer, deadline: float) -> Reply:
        """Send a request, again for each allowed retry after the server's Retry-After."""
        left = self._target.retries
        while True:
            reply = await self._http.ask(body, answer, deadline - self._now())
            wait = reply.retry_after
            if reply.outcome != "rejected" or not left or wait is None or self._now() + wait >= deadline:
                return reply
            left -= 1
            await asyncio.sleep(wait)

    def _note(self, position: int, intended: float, sent: float | None, answer: Answer, reply: Reply) -> None:
        entry, tokens = self._entries[position], answer.output_tokens if answer.tokens else 0
        self._ends[reply.outcome] += 1
        self._tokens += tokens
        self._frames += answer.frames
        self._counted = self._counted and (answer.counted or not tokens)
        prompt_tokens = answer.prompt_tokens
        self._observations[position] = Observation(
            request_id=answer.id or f"#{self._names[position]}",
            intended=intended,
            ended=self._now(),
            outcome=reply.outcome,
            sent=sent,
            first_token=answer.first_token,
            last_token=answer.last_token,
            token_times=answer.token_times(),
            prompt_tokens=entry.prompt_tokens if prompt_tokens is None else prompt_tokens,
            cached_tokens=answer.cached_tokens,
            output_tokens=tokens,
            longest_output=tokens,
            traffic=entry.traffic,
            lane=entry.lane,
            tenant=entry.tenant,
            program=entry.program or entry.session,
            targets=entry.targets,
            status=reply.status,
            error=reply.error,
        )

    # -- the whole ------------------------------------------------------------------------------------------------

    def _progress(self) -> Progress:
        tokens = self._tokens + sum(answer.tokens for answer in self._answers.values())
        ends = self._ends
        return Progress(
            len(self._entries),
            self._sent,
            ends["completed"],
            ends["rejected"],
            ends["failed"],
            tokens,
            max(self._now(), 0.0),
        )

    def _all_observations(self) -> list[Observation]:
        now = self._now()
        return [self._never(position, now) if one is None else one for position, one in enumerate(self._observations)]

    def _never(self, position: int, now: float) -> Observation:
        """Return the observation of an entry that was not sent."""
        entry = self._entries[position]
        return Observation(
            request_id=f"#{self._names[position]}",
            intended=entry.arrival,
            ended=now,
            outcome="unfinished",
            prompt_tokens=entry.prompt_tokens,
            traffic=entry.traffic,
            lane=entry.lane,
            tenant=entry.tenant,
            program=entry.program or entry.session,
            targets=entry.targets,
        )

    def _fail(self, problem: Exception) -> None:
        """End the run with an error."""
        if not self._over.done():
            self._over.set_exception(problem)
