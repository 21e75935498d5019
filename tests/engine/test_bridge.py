"""The bridge: many consumers on one engine thread, and everything that can go wrong between them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.scheduling.stats import SchedulerStats
from inflight.core.strategies import StepShape, StepView, Strategy
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import Event, FinishedEvent, PooledEvent, TokensEvent
from inflight.core.types.plan import BatchPlan, Capacity, WaitUntil
from inflight.core.types.request import Request, RequestRefused
from inflight.core.types.sampling import NO_SAMPLING, PoolingParams, SamplingParams
from inflight.engine.bridge import AsyncBridge
from inflight.engine.clock import MonotonicClock
from inflight.engine.commands import COMMAND_SECONDS, CommandQueue
from inflight.engine.event_stream import EngineStopped
from inflight.engine.loop import EngineLoop
from inflight.engine.protocols import EngineClient
from inflight.engine.remote.client import RemoteClient
from inflight.engine.remote.server import EngineServer
from inflight.testing.null import NullExecutor

CAPACITY = Capacity(num_blocks=6000, block_size=4, max_rows=8, max_model_len=20_000, vocab_size=1000, embedding_size=4)
ENDLESS, THIRTY = (SamplingParams(max_tokens=most, ignore_eos=True) for most in (19_000, 30))
TWO = SamplingParams(max_tokens=2)


class Paced(NullExecutor):
    """Steps take a moment, so that things can happen between them; `fault` breaks the next one."""

    fault: Exception | None = None
    seconds = 0.002

    def submit(self, plan: BatchPlan) -> Any:
        if self.fault is not None:
            raise self.fault
        time.sleep(self.seconds)
        return super().submit(plan)


def loop_over(executor: NullExecutor, strategy: Strategy | None = None, **settings: Any) -> EngineLoop:
    scheduler = Scheduler(SchedulerConfig(executor.capacity, strategy or Chunked(64), Fcfs()))
    return EngineLoop(scheduler, executor, MonotonicClock(), **settings)


class Rig:
    def __init__(self, strategy: Strategy | None = None) -> None:
        self.executor = Paced(CAPACITY)
        self.loop = loop_over(self.executor, strategy)
        self.bridge = AsyncBridge(self.loop)

    @property
    def client(self) -> EngineClient:
        return self.bridge

    def close(self) -> None:
        self.bridge.close()
        assert not self.bridge._thread.is_alive()

    async def collect(self, request_id: str, **settings: Any) -> list[Event]:
        return [event async for event in self.events(request_id, **settings)]

    async def events(self, request_id: str, **settings: Any) -> AsyncIterator[Event]:
        """One by one; leaving the iteration leaves the request."""
        stream = await self.client.open(request(request_id, **settings))
        try:
            async for events in stream:
                for event in events:
                    yield event
        finally:
            await stream.aclose()

    async def started(self, request_id: str) -> Any:
        """A stream that has given its first event."""
        stream = self.events(request_id)
        await anext(stream)
        return stream

    async def settled(self, met: Callable[[SchedulerStats], bool]) -> SchedulerStats:
        """Waits until the engine's counts are as they should be."""
        for _ in range(4000):
            stats = await self.bridge.stats()
            if met(stats):
                return stats
            await asyncio.sleep(0.005)
        raise AssertionError(f"it stays at {stats}")


def request(request_id: str, prompt: int = 6, params: SamplingParams = ENDLESS) -> Request:
    number = sum(request_id.encode())
    return Request(request_id=request_id, prompt_token_ids=tuple(range(number, number + prompt)), params=params)


def empty(stats: SchedulerStats) -> bool:
    return (stats.waiting, stats.running, stats.kv.held_blocks) == (0, 0, 0)


class RemoteRig(Rig):
    """The same engine, asked by messages. Each event loop has a client of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._address = f"ipc://{folder}/engine"
        self._clients: dict[asyncio.AbstractEventLoop, RemoteClient] = {}
        self._serving, began = asyncio.new_event_loop(), threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(began,))
        self._thread.start()
        assert began.wait(20)

    def _serve(self, began: threading.Event) -> None:
        async def serve() -> None:
            self.server = EngineServer(self.bridge, self._address)
            began.set()

        asyncio.set_event_loop(self._serving)
        self._serving.run_until_complete(serve())
        self._serving.run_forever()
        self.server.close()
        self._serving.close()

    @property
    def client(self) -> RemoteClient:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = RemoteClient(self._address, f"client {id(loop)}")
        return self._clients[loop]

    def close(self) -> None:
        for client in self._clients.values():
            client._channel.close()
        self._serving.call_soon_threadsafe(self._serving.stop)
        self._thread.join()
        super().close()


FORMS = {"": COMMAND_SECONDS, "one command at a time": 0.0}
everywhere = pytest.mark.parametrize("rig", [*FORMS, "remote"], indirect=True)


@pytest.fixture(params=FORMS)
def rig(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setattr("inflight.engine.commands.COMMAND_SECONDS", FORMS.get(request.param, COMMAND_SECONDS))
    rig = RemoteRig(tmp_path) if request.param == "remote" else Rig()
    yield rig
    rig.close()


@everywhere
async def test_many_streams_at_once_each_in_order(rig: Rig) -> None:
    settings = [SamplingParams(max_tokens=1 + n % 9, ignore_eos=True, n=1 + n % 3) for n in range(40)]
    lists = await asyncio.gather(*(rig.collect(f"r{n:02}", params=one) for n, one in enumerate(settings)))
    for number, events in enumerate(lists):
        assert {event.request_id for event in events} == {f"r{number:02}"}
        *tokens, last = events
        assert isinstance(last, FinishedEvent) and len(last.finishes) == 1 + number % 3
        for sample in range(1 + number % 3):
            mine = [event for event in tokens if isinstance(event, TokensEvent) and event.sample_index == sample]
            assert len(mine) == 1 + number % 9
            assert [event.finish is not None for event in mine] == [False] * (len(mine) - 1) + [True]


@everywhere
async def test_a_consumer_that_goes_away_frees_what_its_request_held(rig: Rig) -> None:
    closed, cancelled = await rig.started("closed"), await rig.started("cancelled")
    assert (await rig.bridge.stats()).running == 2
    await closed.aclose()
    await rig.settled(lambda counts: counts.running == 1)

    async def rest() -> None:
        async for _ in cancelled:
            pass

    task = asyncio.create_task(rest())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await rig.settled(empty)


@everywhere
async def test_cancelled_before_the_first_token(rig: Rig) -> None:
    tasks = [asyncio.create_task(rig.collect(f"r{n}")) for n in range(20)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await rig.settled(empty)
    assert len(await rig.collect("after", params=TWO)) == 3


@everywhere
async def test_abort_from_outside_ends_the_stream(rig: Rig) -> None:
    task = asyncio.create_task(rig.collect("long"))
    await rig.settled(lambda counts: counts.running == 1)
    rig.bridge.abort("unknown")
    rig.bridge.abort("long")
    events = await task
    assert isinstance(events[-1], FinishedEvent)
    assert [finish.reason for finish in events[-1].finishes] == ["abort"]
    await rig.settled(empty)


@everywhere
async def test_a_refused_request_has_a_reason_and_harms_no_other(rig: Rig) -> None:
    stream = await rig.started("good")
    with pytest.raises(RequestRefused, match=r"maximum context length is 20000 tokens.*has 25000 tokens"):
        await rig.collect("long", prompt=25_000)
    with pytest.raises(RequestRefused, match="'good' is running already"):
        await rig.collect("good")
    await anext(stream)
    await stream.aclose()


@everywhere
async def test_cancelling_a_refused_namesake_aborts_no_other(rig: Rig) -> None:
    """The second consumer goes away before it hears of its refusal; the request it would abort is not its own."""
    first = await rig.started("same")
    second = asyncio.create_task(rig.collect("same"))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    for _ in range(5):
        assert isinstance(await anext(first), TokensEvent)
    await first.aclose()


async def test_close_while_streaming_reaches_every_consumer(rig: Rig) -> None:
    tasks = [asyncio.create_task(rig.collect(f"r{n}")) for n in range(12)]  # some run, some wait
    await rig.settled(lambda counts: counts.running == 8)
    await asyncio.to_thread(rig.bridge.close)
    for task in tasks:
        with pytest.raises(EngineStopped, match="The engine was closed"):
            await task
    for call in (rig.collect("late"), rig.bridge.stats()):
        with pytest.raises(EngineStopped, match="The engine was closed"):
            await call
    rig.bridge.abort("late")  # nothing left to do, and no error
    assert rig.loop.idle, "the requests have ended in the engine's accounts too"


async def test_leaving_at_the_moment_of_closing_is_no_fault(rig: Rig) -> None:
    """Close, abort and leave are queued together; those behind the close find nothing, and break nothing."""
    streams = [await rig.started(f"r{n}") for n in range(4)]
    commands = rig.bridge._commands
    await asyncio.to_thread(commands.lock.acquire)
    closing = threading.Thread(target=rig.bridge.close)
    closing.start()
    while commands._small.empty():
        await asyncio.sleep(0.001)
    rig.bridge.abort("r0")
    for stream in streams[1:]:
        await stream.aclose()
    commands.lock.release()
    await asyncio.to_thread(closing.join)
    with pytest.raises(EngineStopped, match="The engine was closed"):
        async for _ in streams[0]:
            pass


@everywhere
async def test_a_fault_reaches_every_consumer(rig: Rig) -> None:
    tasks = [asyncio.create_task(rig.collect(f"r{n}")) for n in range(12)]
    await rig.settled(lambda counts: counts.running == 8)
    rig.executor.fault = ZeroDivisionError("a bug")
    for task in tasks:
        with pytest.raises(EngineStopped, match="by an error: ZeroDivisionError: a bug"):
            await task
    with pytest.raises(EngineStopped, match="a bug"):
        await rig.collect("late")
    rig.bridge.abort("r0")


@everywhere
async def test_commands_behind_a_fault_are_answered(rig: Rig) -> None:
    """Requests that came while the last step broke must not wait for ever."""
    stream = await rig.started("running")
    rig.executor.seconds = 0.05
    await asyncio.sleep(0.01)
    rig.executor.fault = ZeroDivisionError("a bug")
    rig.bridge.abort("unknown")
    late = asyncio.create_task(rig.collect("late"))
    await asyncio.sleep(0)
    await stream.aclose()
    with pytest.raises(EngineStopped, match="a bug"):
        await asyncio.wait_for(late, 20)


def test_a_closed_event_loop_harms_no_other(rig: Rig) -> None:
    """A consumer's event loop may close under its request, or under stats that were asked for."""

    async def leaves_a_stream() -> Any:
        return await rig.started("orphan")

    async def leaves_a_question() -> None:
        rig.executor.seconds = 0.02
        asyncio.create_task(rig.bridge.stats())  # noqa: RUF006  (it is left on purpose)
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    stream = loop.run_until_complete(leaves_a_stream())
    loop.run_until_complete(leaves_a_question())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.close()
    rig.executor.seconds = 0.0
    assert len(asyncio.run(rig.collect("other", params=SamplingParams(max_tokens=3)))) == 4
    with contextlib.suppress(RuntimeError):
        del stream
        gc.collect()


@everywhere
def test_two_event_loops_share_one_engine(rig: Rig) -> None:
    def consume(number: int) -> int:
        return len(asyncio.run(rig.collect(f"r{number}", params=SamplingParams(max_tokens=20))))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(consume, range(4))) == [21] * 4


async def test_idle_it_sleeps(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, plain = itertools.count(), rig.bridge._advance
    monkeypatch.setattr(rig.bridge, "_advance", lambda: (next(rounds), plain()))
    await rig.collect("first", params=SamplingParams(max_tokens=3))
    before = next(rounds)
    await asyncio.sleep(0.3)
    assert next(rounds) - before < 5, "the last step's end, and what woke it"


async def test_steps_end_in_one_wake_up_of_the_event_loop(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many streams on one loop: a step's events come in one call, whatever their number."""
    loop, calls = asyncio.get_running_loop(), itertools.count()
    plain = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *call, **named: (next(calls), plain(*call, **named))[1])
    lists = await asyncio.gather(*(rig.collect(f"r{n}", params=THIRTY) for n in range(8)))
    assert sum(len(events) for events in lists) == 8 * 31
    assert next(calls) <= rig.loop._scheduler.stats().step + 8, "one for each step, and for each that is accepted"


class InPairs(Chunked):
    """Waits half a minute for a second request before it begins."""

    def shape(self, view: StepView) -> StepShape | WaitUntil:
        if len(view.waiting) < 2 and not view.running:
            return WaitUntil(view.now + 30)
        return super().shape(view)


async def test_a_command_cuts_a_waiting_window_short() -> None:
    rig = Rig(InPairs(64))
    first = asyncio.create_task(rig.collect("first", params=TWO))
    await rig.settled(lambda counts: counts.waiting == 1)
    second = asyncio.create_task(rig.collect("second", params=TWO))
    assert [len(events) for events in await asyncio.wait_for(asyncio.gather(first, second), 15)] == [3, 3]
    rig.close()


class Gated(NullExecutor):
    """A step that ends on command."""

    def __init__(self) -> None:
        super().__init__(CAPACITY)
        self.computing, self.go_on = threading.Event(), threading.Event()

    def submit(self, plan: BatchPlan) -> Any:
        self.computing.set()
        assert self.go_on.wait(20)
        return super().submit(plan)


async def test_a_newcomer_is_answered_while_a_step_computes() -> None:
    executor = Gated()
    bridge = AsyncBridge(loop_over(executor))
    executor.go_on.clear()
    async with asyncio.timeout(20):
        first = await bridge.open(request("first", params=TWO))
        await asyncio.to_thread(executor.computing.wait)
        second = await bridge.open(request("second", params=TWO))
        with pytest.raises(RequestRefused, match="context length"):
            await bridge.open(request("long", prompt=25_000))
        assert (await bridge.stats()).waiting == 1
        await (await bridge.open(request("left"))).aclose()
        assert not executor.go_on.is_set(), "all of this happened within one step"
        executor.go_on.set()
        for stream in (first, second):
            events = [event async for events in stream for event in events]
            assert len(events) == 3 and isinstance(events[-1], FinishedEvent)
    bridge.close()


def many(name: str) -> list[Request]:
    """Requests of many samples."""
    params = SamplingParams(n=6, max_tokens=150, ignore_eos=True)
    return [request(f"{name}-{number}", params=params) for number in range(4)]


async def test_commands_for_many_samples_are_not_run_by_an_event_loop(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when they come, nor when they wait for the next caller."""
    ran: list[threading.Thread] = []
    for name in ("add", "abort"):
        plain = getattr(rig.loop, name)

        def noted(argument: Any, *others: Any, plain: Any = plain) -> Any:
            if getattr(argument, "request_id", argument) != "small":
                ran.append(threading.current_thread())
            return plain(argument, *others)

        monkeypatch.setattr(rig.loop, name, noted)
    for number in range(3):
        opening = asyncio.ensure_future(rig.bridge.open(*many(str(number))))
        while not opening.done():
            rig.bridge.abort("small")
            await asyncio.sleep(0)
        await opening.result().take()
        await opening.result().aclose()
        for _ in range(20):
            rig.bridge.abort("small")
        await rig.settled(empty)
    assert len(ran) == 24 and threading.main_thread() not in ran


async def test_closing_a_stream_delivers_no_event(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    stream = await rig.bridge.open(*many("r"))
    await stream.take()
    await asyncio.to_thread(rig.bridge._commands.lock.acquire)
    with monkeypatch.context() as patched:
        patched.setattr(stream.loop, "call_soon_threadsafe", lambda *call, **named: calls.append(call))
        rig.bridge._abort_all(stream)
    rig.bridge._commands.lock.release()
    assert not calls
    await rig.settled(empty)


@everywhere
async def test_commands_for_many_samples_are_answered_when_the_engine_has_stopped(rig: Rig) -> None:
    stream = await rig.client.open(*many("r"))
    rig.executor.fault = ZeroDivisionError("a bug")
    with pytest.raises(EngineStopped, match="a bug"):
        async for _ in stream:
            pass
    await stream.aclose()
    with pytest.raises(EngineStopped, match="a bug"):
        await asyncio.wait_for(rig.client.open(*many("s")), 10)


def test_a_worker_waits_for_the_lock_once_the_engine_runs_no_commands() -> None:
    """An event loop that has the lock would leave the worker's large command behind."""
    ran: list[str] = []
    commands = CommandQueue(failed=lambda error: None)
    commands.end()
    commands.put_large(lambda: ran.append("large"))
    with commands.lock:
        worker = threading.Thread(target=commands.run_large)
        worker.start()
        worker.join(0.1)
    worker.join()
    assert ran == ["large"]


async def test_commands_that_take_long_leave_the_engine_its_steps(rig: Rig) -> None:
    steps: list[int] = []

    def command() -> None:
        steps.append(rig.loop._scheduler.stats().step)
        time.sleep(0.003)

    stream = await rig.started("running")
    for _ in range(60):
        rig.bridge._commands._small.put(command)
    await asyncio.to_thread(rig.bridge._commands.run)
    while len(steps) < 60:
        await asyncio.sleep(0.005)
    await stream.aclose()
    assert all(later > one for one, later in zip(steps, steps[8:], strict=False)), steps


@everywhere
async def test_requests_that_come_together_are_taken_together_or_not_at_all(rig: Rig) -> None:
    short = SamplingParams(max_tokens=3)
    stream = await rig.client.open(*(request(f"r{n}", params=short) for n in range(3)))
    events = [event async for events in stream for event in events]
    assert {event.request_id for event in events} == {"r0", "r1", "r2"}
    assert sum(isinstance(event, FinishedEvent) for event in events) == 3
    with pytest.raises(RequestRefused, match="context length"):
        await rig.client.open(request("good"), request("long", prompt=25_000))
    await rig.settled(empty)


@everywhere
async def test_a_slow_consumer_gets_fewer_and_larger_items(rig: Rig) -> None:
    stream = await rig.client.open(request("slow", params=THIRTY))
    first = await stream.take()
    while stream.alive:
        await asyncio.sleep(0.001)
    assert len(first) + len(await stream.take()) == 31 and stream.ended


class Panic(BaseException):
    """An exception of a native library that panics."""


class Breaking(NullExecutor):
    """Breaks in a step, and again when it is closed."""

    def submit(self, plan: BatchPlan) -> Any:
        raise Panic("no more")

    def close(self) -> None:
        raise RuntimeError("nor this")


async def test_no_consumer_waits_for_ever_when_the_engine_breaks() -> None:
    bridge = AsyncBridge(loop_over(Breaking(CAPACITY)))
    async with asyncio.timeout(20):
        stream = await bridge.open(request("first"))
        for call in (stream.take(), bridge.open(request("late")), bridge.stats()):
            with pytest.raises(EngineStopped, match="Panic: no more"):
                await call
    assert bridge.stopped is not None


async def test_a_mistake_in_counting_stops_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(rig.loop, "stats", lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(rig.bridge.stats(), 10)
    assert rig.bridge.stopped is None and empty(await rig.bridge.stats())


class FullDisk:
    """An observer that cannot write any more."""

    notified = 0

    def __getattr__(self, name: str) -> Any:
        def notify(*arguments: Any) -> None:
            self.notified += 1
            raise OSError(28, "No space left on device")

        return notify


async def test_an_observer_that_fails_is_left_out_and_the_engine_goes_on(rig: Rig) -> None:
    observer = FullDisk()
    rig.loop.add_observer(observer)
    assert len(await rig.collect("one", params=TWO)) == 3 and observer.notified == 1
    assert isinstance(rig.loop.observer_error, OSError)


async def test_a_command_in_the_moment_before_the_wait_is_not_slept_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes after the engine has looked at its queue and before it sleeps; the batch must start at once."""
    rig = Rig(InPairs(64))
    plain, others = rig.bridge._advance, ThreadPoolExecutor(1)
    second: list[Future[list[Event]]] = []

    async def come(is_sent: threading.Event) -> list[Event]:
        collecting = asyncio.ensure_future(rig.collect("second", params=TWO))
        await asyncio.sleep(0)
        is_sent.set()
        return await collecting

    def advance() -> None:
        if len(rig.loop._scheduler._lanes) == 1 and not second:  # type: ignore[arg-type]
            is_sent = threading.Event()
            second.append(others.submit(asyncio.run, come(is_sent)))
            assert is_sent.wait(10)
        plain()

    monkeypatch.setattr(rig.bridge, "_advance", advance)
    assert len(await asyncio.wait_for(rig.collect("first", params=TWO), 15)) == 3
    others.shutdown()
    rig.close()


async def test_a_vector_comes_before_its_requests_end(rig: Rig) -> None:
    pooled = structs.replace(request("p", params=NO_SAMPLING), pooling=PoolingParams())
    vector, end = [event async for events in await rig.bridge.open(pooled) for event in events]
    assert isinstance(vector, PooledEvent) and len(vector.vector) == CAPACITY.embedding_size
    assert isinstance(end, FinishedEvent)
