"""HeadWatch: a lost head gives an error message; one that comes back in time does not."""

from __future__ import annotations

import asyncio
import socket

import pytest

from inflight.ray import head
from inflight.ray.head import HeadWatch


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "LOOK_SECONDS", 0.02)


def listening(port: int = 0) -> socket.socket:
    bound = socket.create_server(("127.0.0.1", port))
    bound.setblocking(False)
    return bound


def test_a_head_that_answers_is_watched_for_ever() -> None:
    with listening() as bound:
        watch = HeadWatch(f"127.0.0.1:{bound.getsockname()[1]}", patience=0.1)
        assert watch.answers()

        async def main() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(watch.until_lost(), 0.5)

        asyncio.run(main())


def test_a_lost_head_gives_an_error_message() -> None:
    bound = listening()
    address = f"127.0.0.1:{bound.getsockname()[1]}"
    bound.close()
    watch = HeadWatch(address, patience=0.2)
    assert not watch.answers()
    assert f"Ray's head at {address} has not answered for 0.2 s" in asyncio.run(watch.until_lost())


def test_a_head_that_comes_back_in_time_is_not_lost() -> None:
    bound = listening()
    port = bound.getsockname()[1]
    bound.close()

    async def main() -> None:
        watching = asyncio.ensure_future(HeadWatch(f"127.0.0.1:{port}", patience=30.0).until_lost())
        await asyncio.sleep(0.1)
        with listening(port):
            await asyncio.sleep(0.1)
            assert not watching.done()
        watching.cancel()

    asyncio.run(main())
