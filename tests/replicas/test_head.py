"""Ray's head: one that cannot be used is an error message before the start, and so is one that is lost later."""

from __future__ import annotations

import asyncio
import socket

import pytest

from inflight.config.setting import SettingsError
from inflight.ray import head
from inflight.ray.head import HeadWatch, check_address, check_version


@pytest.mark.parametrize("address", ["ray://there:10001", "there", ":6379", "there:", "there:0", "there:99999", "a:b"])
def test_a_malformed_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(SettingsError, match=r"give HOST:PORT of a head.*or auto"):
        check_address(address)


def test_an_unreachable_head_is_reported_with_the_next_step() -> None:
    with socket.socket() as bound:  # and listens not
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(SettingsError, match=rf"{address} cannot be reached \(.*refused\).*ray start --head"):
            check_address(address)


def test_one_that_listens_and_the_clusters_own_pass() -> None:
    check_address("auto")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        check_address(f"127.0.0.1:{listening.getsockname()[1]}")


def test_an_old_version_is_refused_with_both_versions() -> None:
    for version in ("2.55.0", "2.60.1", "3.0.0rc1", "10.1"):
        check_version(version)
    for version in ("2.54.9", "1.13.0"):
        with pytest.raises(SettingsError, match=rf"2\.55 or later, and {version} is installed"):
            check_version(version)


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
