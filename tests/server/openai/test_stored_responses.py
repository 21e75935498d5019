"""Stored responses over a real database, with a clock that tests move."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from inflight.server.errors import ApiError
from inflight.server.jobs.storage import DataDirectoryError
from inflight.server.openai.responses.store import previous_of
from inflight.server.tenants import Tenant
from tests.server.jobs.rig import Rig, until

ACME, UMBRELLA = Tenant(name="acme"), Tenant(name="umbrella")
DAY = 86_400.0


def response(number: int, text: str = "", tenant: Tenant = ACME) -> tuple[Tenant, str, bytes, bytes]:
    output = [{"id": f"msg_{number}_0", "type": "message", "role": "assistant", "content": text}]
    body = {"id": f"resp_{number}", "object": "response", "output": output}
    return tenant, body["id"], json.dumps(body).encode(), json.dumps([{"type": "message", "role": "user"}]).encode()  # type: ignore[return-value]


def with_rig(folder: Path, work: Callable[[Rig], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        rig = Rig(folder, **settings)
        rig.service.start()
        try:
            await work(rig)
        finally:
            await rig.service.stop()

    asyncio.run(main())


async def held(rig: Rig, *numbers: int, tenant: Tenant = ACME) -> list[int]:
    """Which of these are there."""
    found = []
    for number in numbers:
        with contextlib.suppress(ApiError):
            await rig.service.responses.retrieve(tenant, f"resp_{number}")
            found.append(number)
    return found


def rows(folder: Path) -> int:
    with contextlib.closing(sqlite3.connect(folder / "batch.sqlite")) as connection:
        return int(connection.execute("SELECT count(*) FROM responses").fetchone()[0])


def test_each_goes_when_its_time_is_over(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        await rig.service.responses.store(*response(1))
        rig.wait(1.5 * DAY)
        await rig.service.responses.store(*response(2))
        assert await held(rig, 1, 2) == [1, 2]
        rig.wait(0.5 * DAY)
        assert await held(rig, 1, 2) == [2]
        with pytest.raises(ApiError) as gone:
            await rig.service.responses.history(ACME, "resp_1")
        assert gone.value.status == 404 and gone.value.param == "previous_response_id"
        rig.now += 1000 * DAY  # a person sets the machine's clock
        assert await held(rig, 1, 2) == [2]
        rig.wait(1.5 * DAY)
        await rig.service.responses.store(*response(3))

    with_rig(tmp_path, work, response_days=2)
    assert rows(tmp_path) == 1, "what is due is removed, not hidden"


def test_the_time_between_two_servers_counts(tmp_path: Path) -> None:
    async def keep(rig: Rig) -> None:
        await rig.service.responses.store(*response(1))

    async def look(rig: Rig) -> None:
        assert await held(rig, 1) == []
        await until(lambda: rows(tmp_path) == 0)

    with_rig(tmp_path, keep, response_days=2)
    with_rig(tmp_path, look, response_days=2, passed=500 + 2 * DAY)


def test_the_oldest_of_a_tenant_go_when_its_room_is_used_up(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        await rig.service.responses.store(*response(0, "x" * 30_000, UMBRELLA))
        for number in range(6):
            await rig.service.responses.store(*response(number, "x" * 30_000))
        assert await held(rig, *range(6)) == [3, 4, 5]
        assert await held(rig, 0, tenant=UMBRELLA) == [0], "no tenant takes the room of another"
        await rig.service.responses.delete(ACME, "resp_4")
        await rig.service.responses.store(*response(6, "x" * 30_000))
        assert await held(rig, *range(7)) == [3, 5, 6]
        await rig.service.responses.store(*response(3, "y" * 60_000))  # in the place of the old one
        assert await held(rig, *range(7)) == [3, 6]
        with pytest.raises(ApiError) as refused:
            await rig.service.responses.store(*response(9, "x" * 110_000))
        assert refused.value.status == 413 and await held(rig, 3, 6, 9) == [3, 6]
        roomy = Tenant(name="acme", max_responses_mb=1)
        await rig.service.responses.store(*response(9, "x" * 110_000, roomy))
        assert await held(rig, 3, 6, 9) == [3, 6, 9]

    with_rig(tmp_path, work, max_responses_mb=0.1)


def test_tenants_may_use_the_same_id(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        for tenant in (ACME, UMBRELLA):
            await rig.service.responses.store(*response(1, tenant.name, tenant))
        await rig.service.responses.delete(ACME, "resp_1")
        assert b"umbrella" in await rig.service.responses.history(UMBRELLA, "resp_1")
        with pytest.raises(ApiError):
            await rig.service.responses.delete(ACME, "resp_1")

    with_rig(tmp_path, work)


def test_items_are_listed_in_pages_with_ids_that_stay(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        responses = rig.service.responses
        tenant, name, body, _ = response(1)
        items = [{"type": "message", "content": str(number)} for number in range(5)]
        await responses.store(tenant, name, body, json.dumps(items).encode())
        first, more = await responses.input_items(ACME, name, after=None, limit=2, descending=False)
        assert [one["content"] for one in first] == ["0", "1"] and more
        rest, more = await responses.input_items(ACME, name, after=first[-1]["id"], limit=9, descending=False)
        assert [one["content"] for one in rest] == ["2", "3", "4"] and not more
        last, more = await responses.input_items(ACME, name, after=None, limit=1, descending=True)
        assert last[0] == rest[-1] and more
        history = json.loads(await responses.history(ACME, name))
        assert history[:5] == [*first, *rest] and history[5]["id"] == "msg_1_0"

    with_rig(tmp_path, work)


def damage(folder: Path, column: str, value: str) -> None:
    with contextlib.closing(sqlite3.connect(folder / "batch.sqlite")) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(f"UPDATE responses SET {column} = ?", (value,))


@pytest.mark.parametrize(("column", "value"), [("response", '{"id": "resp_1", "out'), ("input_items", "{}")])
def test_damage_is_reported_while_it_runs_and_at_the_next_start(tmp_path: Path, column: str, value: str) -> None:
    async def work(rig: Rig) -> None:
        await rig.service.responses.store(*response(1))
        damage(tmp_path, column, value)
        with pytest.raises(ApiError) as said:
            await rig.service.responses.history(ACME, "resp_1")
        assert said.value.status == 507 and "resp_1" in said.value.message

    with_rig(tmp_path, work)
    with pytest.raises(DataDirectoryError, match=r"CHECK constraint failed in responses|malformed JSON"):
        Rig(tmp_path)


def test_what_a_body_goes_on_from_is_read_and_mistakes_are_left_to_its_reader() -> None:
    assert previous_of(b'{"input": ["x"], "previous_response_id": "resp_1", "n": {}}') == "resp_1"
    for body in (b"{}", b"[]", b"nonsense", b'{"previous_response_id": 1}', b"\xff", b"[" * 100_000):
        assert previous_of(body) is None
    assert previous_of(json.dumps({"previous_response_id": "x" * 513}).encode()) is None
