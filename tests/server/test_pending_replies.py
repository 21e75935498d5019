"""Replies of another process: each goes to its question, and no question waits for a reply that cannot come."""

from __future__ import annotations

import asyncio

import pytest

from inflight.server.processes.pending_replies import PendingReplies


def test_each_question_has_its_own_reply_in_whichever_order_they_come() -> None:
    async def run() -> list[str]:
        replies: PendingReplies[str] = PendingReplies()
        put: list[int] = []
        asked = [asyncio.ensure_future(replies.ask(put.append)) for _ in range(3)]
        await asyncio.sleep(0)
        for number in reversed(put):
            replies.came(number, f"reply {number}")
        return await asyncio.gather(*asked)

    assert asyncio.run(run()) == ["reply 0", "reply 1", "reply 2"]


def test_a_reply_that_nothing_waits_for_is_dropped() -> None:
    async def run() -> None:
        replies: PendingReplies[str] = PendingReplies()
        put: list[int] = []
        with pytest.raises(TimeoutError):
            await replies.ask(put.append, 0.01)
        assert len(replies) == 0
        replies.came(put[0], "late")
        replies.came(7, "never asked")
        assert len(replies) == 0

    asyncio.run(run())


def test_a_question_that_could_not_be_put_is_not_waited_for() -> None:
    def put(number: int) -> None:
        raise OSError("gone")

    async def run() -> None:
        replies: PendingReplies[str] = PendingReplies()
        with pytest.raises(OSError, match="gone"):
            await replies.ask(put)
        assert len(replies) == 0

    asyncio.run(run())


def test_a_question_fails_at_once_when_no_process_is_left() -> None:
    async def run() -> None:
        replies: PendingReplies[str] = PendingReplies()
        put: list[int] = []
        asked = asyncio.ensure_future(replies.ask(put.append))
        await asyncio.sleep(0)
        replies.end(RuntimeError("gone"))
        for waiting in (asked, replies.ask(put.append)):
            with pytest.raises(RuntimeError, match="gone"):
                await waiting
        assert put == [0]

    asyncio.run(run())
