"""Windows end by time that passed, whatever the wall clock is set to, and however often the server starts anew."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from inflight.server.jobs.clock import SAVE_SECONDS, Clocks
from inflight.server.jobs.store import Job
from inflight.server.tenants import ANYONE

from .rig import Rig, jsonl, live, request_line, until

LINES = jsonl(*(request_line(str(number)) for number in range(9)))
DAY = 86_400.0


@pytest.mark.parametrize("jump", [400 * DAY, -400 * DAY])
def test_a_clock_that_is_set_ends_no_window(tmp_path: Path, jump: float) -> None:
    async def test(rig: Rig) -> None:
        gate = rig.answerer.gate = asyncio.Event()
        job = await rig.create(LINES, window="60m")
        await until(lambda: rig.answerer.running == 4)
        rig.now += jump
        rig.service._worker.notice()
        await asyncio.sleep(0.02)
        assert (await rig.jobs.retrieve(ANYONE, job.id)).status == "in_progress"
        rig.wait(3599)
        rig.service._worker.notice()
        await asyncio.sleep(0.02)
        assert (await rig.jobs.retrieve(ANYONE, job.id)).status == "in_progress"
        gate.set()
        assert (await rig.ended(job)).status == "completed"

    live(tmp_path, test)


def after_restart(folder: Path, *, off: float, boot: str, passed: float, jump: float = 0.0) -> Job:
    """End a job of 60 minutes of which 40 had passed when the server ended. passed: since the new boot."""

    async def before() -> None:
        rig = Rig(folder)
        rig.answerer.gate = asyncio.Event()
        rig.service.start()
        await rig.create(LINES, window="60m")
        await until(lambda: rig.answerer.running == 4)
        rig.wait(2400)
        await rig.service.stop()

    async def after() -> Job:
        rig = Rig(folder, boot=boot, passed=passed)
        rig.now += 2400 + off + jump
        rig.answerer.gate = asyncio.Event()
        rig.answerer.gate.set()
        rig.service.start()
        ((job,), _) = await rig.jobs.page(ANYONE, after=None, limit=1)
        job = await rig.ended(job)
        await rig.service.stop()
        return job

    asyncio.run(before())
    return asyncio.run(after())


@pytest.mark.parametrize("jump", [0, 400 * DAY, -400 * DAY])
@pytest.mark.parametrize(("off", "status"), [(600, "completed"), (1300, "expired")])
def test_the_time_between_two_servers_counts(tmp_path: Path, off: float, status: str, jump: float) -> None:
    job = after_restart(tmp_path, off=off, boot="this boot", passed=2900 + off, jump=jump)
    assert job.status == status


def test_the_time_that_a_machine_was_off_does_not(tmp_path: Path) -> None:
    """Only its clock says how long that was, and the clock may have been set."""
    assert after_restart(tmp_path, off=400 * DAY, boot="the next boot", passed=20).status == "completed"


def test_the_time_is_kept_while_there_are_jobs(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.answerer.gate = asyncio.Event()
        await rig.create(LINES, window="60m")
        await until(lambda: rig.answerer.running == 4)
        for _ in range(3):
            rig.wait(SAVE_SECONDS)
            rig.service._worker.notice()
            kept = rig.passed - 500
            async with asyncio.timeout(30):
                while await saved(rig) < kept:
                    await asyncio.sleep(0.002)

    live(tmp_path, test)


def test_a_power_cut_soon_after_a_job_was_created_keeps_its_window(tmp_path: Path) -> None:
    """However long the server had been idle, and had saved no time."""

    async def before() -> None:
        rig = Rig(tmp_path)
        rig.wait(5 * DAY)
        await rig.create(LINES, window="60m")
        await asyncio.to_thread(rig.service._database.close)  # and nothing more
        rig.service._data.release()

    async def after() -> None:
        rig = Rig(tmp_path, boot="the next boot", passed=20)
        rig.answerer.gate = asyncio.Event()
        rig.service.start()
        rig.wait(3601)
        rig.service._worker.notice()
        ((job,), _) = await rig.jobs.page(ANYONE, after=None, limit=1)
        assert (await rig.ended(job)).status == "expired"
        await rig.service.stop()

    asyncio.run(before())
    asyncio.run(after())


def test_a_boot_without_an_id_is_never_the_same(tmp_path: Path) -> None:
    job = after_restart(tmp_path, off=1300, boot="", passed=4200)
    assert job.status == "completed"
    assert Clocks().since_boot() > 0


async def saved(rig: Rig) -> float:
    query = "SELECT seconds FROM clock"
    return await rig.service._database.read(lambda connection: float(connection.execute(query).fetchone()[0]))
