"""Memory of a call while it is answered, and where its answer is put together."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import pytest

from inflight.core.types.events import Event, Finish, FinishedEvent, PromptScoredEvent, TokensEvent
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams, TokenLogprob
from inflight.core.types.timings import Timings
from inflight.engine.event_stream import PIECE, EventStream
from inflight.frontend.outputs import OutputCollector
from inflight.server.answer_memory import BYTES_PER_ENTRY
from inflight.server.common.answers import ResponseBuilder
from inflight.server.common.logprobs import TokenNames
from inflight.server.common.prepared import Call
from inflight.server.generating import Generation
from inflight.server.tenants import ANYONE

SCORE = TokenLogprob(1, -1.0, ((1, -1.0), (2, -2.0)))
TIMINGS = Timings(1, 2, 3, 0, 0, 6, 2.5, 1, 0, 0, None, None, "interactive")


def call(prompts: int = 1, n: int = 1, prompt_logprobs: int | None = None, **settings: Any) -> Call:
    params = SamplingParams(n=n, logprobs=2, prompt_logprobs=prompt_logprobs, max_tokens=1000)
    requests = [Request(request_id=f"r{one}", prompt_token_ids=(1,) * 5, params=params) for one in range(prompts)]
    return Call(
        kind="completion", call_id="c", created=0, model="m", requests=tuple(requests), prompts=(None,) * prompts,
        n=n, tier="default", tenant=ANYONE, logprobs=2, prompt_logprobs=prompt_logprobs is not None, **settings,
    )  # fmt: skip


def token(sample: int = 0, prompt: int = 0, finish: Finish | None = None) -> Event:
    return TokensEvent(f"r{prompt}", sample, (1,), (SCORE,), finish)


def end(n: int = 1, prompt: int = 0) -> Event:
    return FinishedEvent(f"r{prompt}", (Finish("length"),) * n, TIMINGS)


class Bridge:
    """Opens a stream that the test feeds."""

    async def open(self, *requests: Request) -> EventStream:
        self.stream = EventStream(requests, lambda _: None)
        return self.stream


async def opened(call: Call) -> tuple[Generation, EventStream]:
    bridge = Bridge()
    generation = Generation(call, None, TokenNames(None))
    await generation.open(cast(Any, bridge))
    return generation, bridge.stream


async def content(frames: AsyncIterator[bytes]) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads((await anext(frames)).split(b"\n\n")[0].removeprefix(b"data: "))
    return shown


def test_a_stream_holds_what_its_reader_has_not_taken() -> None:
    async def main() -> None:
        generation, stream = await opened(call(stream=True))
        frames = generation.frames(60)
        for _ in range(3):
            stream.put([token()] * 100)
            assert generation.held == 100 * 4
            await anext(frames)
            assert generation.held == 0
        (collector,) = generation.response.collectors
        (kept,) = collector.completions()
        assert collector.output_tokens == 300 and kept.token_ids == [] and kept.token_logprobs is None
        await generation.close()

    asyncio.run(main())


def test_a_silent_stream_shows_that_it_lives_and_goes_on() -> None:
    async def main() -> None:
        generation, stream = await opened(call(stream=True))
        frames = generation.frames(0.001)
        assert [await anext(frames) for _ in range(3)] == [generation.response.alive] * 3
        stream.put([token(finish=Finish("length")), end()])
        assert b'"finish_reason":"length"' in b"".join([frame async for frame in frames])
        await generation.close()
        silence = generation._silence
        assert silence is not None and silence.cancelled()

    asyncio.run(main())


def test_a_prompts_scores_are_held_until_every_choice_has_shown_them() -> None:
    async def main() -> None:
        generation, stream = await opened(call(n=2, prompt_logprobs=2, stream=True))
        frames = generation.frames(60)
        stream.put([PromptScoredEvent("r0", (SCORE,) * 4)])
        stream.put([token(0)])
        first = await content(frames)
        assert len(first["choices"][0]["prompt_logprobs"]) == 5
        assert generation.held == 4 * 3
        stream.put([token(1)])
        second = await content(frames)
        assert len(second["choices"][0]["prompt_logprobs"]) == 5
        assert generation.held == 0
        await generation.close()

    asyncio.run(main())


def test_a_whole_answer_holds_what_came_and_then_its_json() -> None:
    async def main() -> None:
        generation, stream = await opened(call())
        answering = asyncio.ensure_future(generation.answer())
        stream.put([token()] * 300)
        for _ in range(5):
            await asyncio.sleep(0)
            assert generation.held == 300 * 4
        stream.put([token(finish=Finish("length")), end()])
        answer = await answering
        assert len(json.loads(answer)["choices"][0]["logprobs"]["tokens"]) == 301
        assert generation.held == len(answer) // BYTES_PER_ENTRY
        assert (
            generation.response.output_tokens == 301
            and generation.response.collectors[0].completions()[0].token_ids == []
        )
        await generation.close()

    asyncio.run(main())


@pytest.mark.parametrize(("scores", "beside"), [(4, False), (PIECE, True)])
def test_large_frames_are_made_beside_the_event_loop(
    scores: int, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    plain = ResponseBuilder.frames

    def frames(self: ResponseBuilder, events: list[Event]) -> bytes:
        threads.append(threading.current_thread().name)
        return plain(self, events)

    async def main() -> None:
        monkeypatch.setattr(ResponseBuilder, "frames", frames)
        generation, stream = await opened(call(prompt_logprobs=2, stream=True))
        stream.put([PromptScoredEvent("r0", (SCORE,) * scores), token(), token(), end()])
        async for _ in generation.frames(60):
            pass
        await generation.close()

    asyncio.run(main())
    # With the prompt's scores, and with the first frame of the choice, which shows them.
    assert any(name != "MainThread" for name in threads) == beside


def test_an_answer_is_named_by_the_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(OutputCollector, "_all_named")
    one = call()
    collector = OutputCollector(one.requests[0], None)
    for event in (token(), token(finish=Finish("length")), end()):
        collector.take(event)
    answer = json.loads(ResponseBuilder(one, {"r0": collector}, TokenNames(None)).answer())
    assert answer["choices"][0]["logprobs"]["tokens"] == ["token_id:1"] * 2


def test_a_steps_frames_count_each_prompt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many choices a step has: what is the same for all is looked up once."""
    looked: list[str] = []
    plain = ResponseBuilder.output_tokens.fget
    monkeypatch.setattr(ResponseBuilder, "output_tokens", property(lambda self: looked.append("") or plain(self)))  # type: ignore

    async def main() -> None:
        many = 64
        generation, stream = await opened(call(prompts=many, stream=True, continuous_usage=True))
        frames = generation.frames(60)
        stream.put([token(prompt=number) for number in range(many)])
        text = await anext(frames)
        assert len(looked) <= 2
        usages = [json.loads(line[6:])["usage"] for line in text.decode().split("\n\n") if line]
        assert [one["completion_tokens"] for one in usages] == [many] * many
        assert {one["prompt_tokens"] for one in usages} == {5 * many}
        await generation.close()

    asyncio.run(main())


def test_a_call_with_a_time_for_its_line_ends_behind_one() -> None:
    """llama-server's t_max_predict_ms: an editor shows a whole line now rather than ten later."""

    async def main() -> None:
        for stream in (False, True):
            generation, events = await opened(call(line_seconds=1e-9, stream=stream))
            generation.response = cast(Any, OneLine(generation.response, iter([False, False, True])))
            taken = asyncio.ensure_future(shown(generation, stream))
            for _ in range(4):
                events.put([token()])
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert "token_logprobs" in await asyncio.wait_for(taken, 10)
            await generation.close(200)

    async def shown(generation: Generation, stream: bool) -> str:
        if not stream:
            return (await generation.answer()).decode()
        return "".join([one.decode() async for one in generation.frames(60)])

    asyncio.run(main())


class OneLine:
    """A response that has a whole line when the script says so."""

    def __init__(self, response: ResponseBuilder, lines: Iterator[bool]):
        self._response, self._lines = response, lines

    def __getattr__(self, name: str) -> Any:
        return getattr(self._response, name)

    @property
    def has_line(self) -> bool:
        return next(self._lines, True)
