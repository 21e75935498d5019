"""A consumer takes events in order, in pieces of a bounded size; taken events are not buffered any more."""

from __future__ import annotations

import asyncio

from inflight.core.types.events import Event, PooledEvent, PromptScoredEvent, TokensEvent
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams, TokenLogprob
from inflight.engine.event_stream import PIECE, EventStream

SCORE = TokenLogprob(1, -1.0, tuple((token, -2.0) for token in range(20)))
TOKEN = TokensEvent("r", 0, (1,), (SCORE,), None)  # 22 entries


def taken(events: list[Event]) -> list[list[Event]]:
    """Piece by piece, all that there are."""

    async def main() -> list[list[Event]]:
        request = Request(request_id="r", prompt_token_ids=(1,), params=SamplingParams())
        stream = EventStream([request], lambda _: None)
        stream.put(events)
        whole = stream.buffered
        pieces = []
        while stream.buffered:
            pieces.append(await stream.take())
            assert stream.buffered + stream.taken == whole
        return pieces

    return asyncio.run(main())


def test_a_pause_comes_in_pieces_and_a_larger_event_alone() -> None:
    pieces = taken([TOKEN] * 500)
    assert [event for piece in pieces for event in piece] == [TOKEN] * 500
    assert {len(piece) for piece in pieces[:-1]} == {PIECE // 22}
    large = PromptScoredEvent("r", (SCORE,) * PIECE)
    assert taken([TOKEN, large, TOKEN]) == [[TOKEN], [large], [TOKEN]]
    vectors: list[Event] = [PooledEvent("r", (0.0,) * 400) for _ in range(4)]
    assert [len(piece) for piece in taken(vectors)] == [2, 2]


async def test_others_have_their_turn_between_two_pieces() -> None:
    request = Request(request_id="r", prompt_token_ids=(1,), params=SamplingParams())
    stream = EventStream([request], lambda _: None)
    stream.put([TOKEN] * 500)
    order: list[str] = []
    asyncio.get_running_loop().call_soon(order.append, "other")
    while stream.buffered:
        await stream.take()
        order.append("piece")
    assert "other" in order[:2]
