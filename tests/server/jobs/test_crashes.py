"""Death at any moment: whatever was in flight, after a restart every line is answered, and none twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from inflight.server.errors import ApiError
from inflight.server.jobs.attempts import MAX_UNCLEAN_ENDS
from inflight.server.jobs.files import Content
from inflight.server.jobs.lines import line_id
from inflight.server.jobs.storage import StorageError
from inflight.server.jobs.store import ENDED, Job
from inflight.server.tenants import ANYONE

from .rig import Echo, Rig, jsonl, request_line

LINES = 40
CONTENT = jsonl(*(request_line(str(number)) for number in range(LINES)), b"broken\n", request_line("7"))


class Power:
    """Goes off before or after the n-th thing that is made durable; from then on nothing is."""

    def __init__(self, operation: int | None, after: bool) -> None:
        self.left, self.after, self.off = operation, after, False

    def around(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any) -> Any:
            last = self._counts()
            if self.off or (last and not self.after):
                self.off = True
                raise StorageError("No power.")
            result = work(*arguments)
            if last:
                self.off = True
                raise StorageError("No power.")
            return result

        return guarded

    def _counts(self) -> bool:
        if self.left is None or self.off:
            return False
        self.left -= 1
        return self.left < 0


async def life(folder: Path, echo: Echo, power: Power, begin: Callable[[Rig], Any] | None = None) -> list[Job]:
    """One process: until its jobs have ended, or the power goes off."""
    rig = Rig(folder, echo, concurrency=5)
    rig.service._database._transact = power.around(rig.service._database._transact)  # type: ignore
    try:
        if begin is not None:
            with contextlib.suppress(ApiError):
                await begin(rig)
        rig.service.start()
        while not power.off:
            await asyncio.sleep(0.001)
            try:
                jobs, _ = await rig.jobs.page(ANYONE, after=None, limit=100)
            except ApiError:
                break
            if all(job.status in ENDED for job in jobs):
                return jobs
        return []
    finally:
        power.off = True
        await rig.service._worker.stop()
        rig.service._database.close()
        rig.service._data.release()


def whole(folder: Path, job: Job) -> list[dict[str, Any]]:
    """The lines of both files of a job, after checking that they and its counts agree."""
    files = [folder / "files" / one for one in (job.output_file_id, job.error_file_id) if one is not None]
    read = [[json.loads(line) for line in path.read_bytes().splitlines()] for path in files]
    lines = [line for one in read for line in one]
    good = [line for line in lines if line["response"] is not None and line["response"]["status_code"] == 200]
    assert (job.completed, job.failed) == (len(good), len(lines) - len(good))
    assert len({line["id"] for line in lines}) == len(lines) == job.total
    return lines


@examples(15)
@given(
    crashes=st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=4),
    cancel=st.booleans(),
)
def test_power_cuts_lose_and_double_nothing(crashes: list[tuple[int, bool]], cancel: bool) -> None:
    echo = Echo()
    discard = Content.discard
    steps = {name: getattr(Content, name) for name in ("write", "seal", "publish")}
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)

        async def create(rig: Rig) -> None:
            await rig.create(CONTENT)

        async def cancelled(rig: Rig) -> None:
            ((job,), _) = await rig.jobs.page(ANYONE, after=None, limit=1)
            if job.status == "in_progress":
                await rig.jobs.cancel(ANYONE, job.id)

        # Created, and dead before anything else.
        asyncio.run(life(folder, echo, Power(5, True), create))
        assert echo.calls == {}
        jobs: list[Job] = []
        for number, (operation, after) in enumerate([*crashes, (None, False)]):
            power = Power(operation, after)
            begin = cancelled if cancel and number == 1 else None
            for name, step in steps.items():
                patch.setattr(Content, name, power.around(step))
            patch.setattr(Content, "discard", lambda content, power=power: None if power.off else discard(content))
            durable = {
                line_id(*row) for row in rows(folder, "SELECT j.id, line FROM answers JOIN jobs j ON j.number = job")
            }
            before = {name: echo.calls[name] for name in durable}
            jobs = asyncio.run(life(folder, echo, power, begin))
            assert all(echo.calls[name] == times for name, times in before.items()), "a durable answer is final"
        (job,) = jobs
        asyncio.run(Rig(folder).service.stop())  # the last life may have ended before the files took their place
        lines = whole(folder, job)
        names = sorted(line["custom_id"] or "" for line in lines)
        if job.status == "cancelled":
            assert cancel and (job.total == 0 or names == sorted([*(str(number) for number in range(LINES)), "", "7"]))
        else:
            # A line that was in flight at three of the cuts is not tried again.
            given_up = [line for line in lines if "unclean_ends" in json.dumps(line)]
            assert not given_up or len(crashes) >= MAX_UNCLEAN_ENDS
            assert names == sorted([*(str(number) for number in range(LINES)), "", "7"])
            assert job.status == "completed" and job.completed == LINES - len(given_up)
        assert max(echo.calls.values(), default=0) <= 1 + len(crashes)
        assert rows(folder, "SELECT * FROM answers") == []
        assert {name for (name,) in rows(folder, "SELECT id FROM files")} == set(os.listdir(folder / "files"))
        assert os.listdir(folder / "partial") == []
        assert not (folder / "unknown").exists() and rows(folder, "SELECT * FROM files WHERE state != 'stored'") == []


def rows(folder: Path, query: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(folder / "batch.sqlite")) as database:
        return database.execute(query).fetchall()


# -- a process that is killed -----------------------------------------------------------------------------------
PROGRAM = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from server.jobs.rig import Echo, Rig
from inflight.server.jobs.store import ENDED
from inflight.server.errors import ApiError
from inflight.server.jobs.files import Content
from inflight.server.tenants import ANYONE

class Slow(Echo):
    async def answer(self, *arguments):
        await asyncio.sleep(0.002)
        return await super().answer(*arguments)

async def main():
    rig = Rig(Path(sys.argv[1]), Slow(), concurrency=8)
    print("ready", flush=True)
    rig.service.start()
    while True:
        jobs, _ = await rig.jobs.page(ANYONE, after=None, limit=100)
        if all(job.status in ENDED for job in jobs):
            break
        await asyncio.sleep(0.01)
    await rig.service.stop()

asyncio.run(main())
"""


@pytest.mark.wide
def test_kill_9_at_random_moments(tmp_path: Path) -> None:
    content = jsonl(*(request_line(str(number)) for number in range(600)))

    async def prepare() -> None:
        rig = Rig(tmp_path)
        await rig.create(content)
        await rig.create(content[: len(content) // 2])  # its last line is cut off
        await rig.service.stop()

    asyncio.run(prepare())
    chosen = random.Random(1)
    tests = Path(__file__).resolve().parents[2]
    kills = 0
    while True:
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, tmp_path, tests], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        try:
            process.wait(chosen.uniform(0.0, 0.12) if kills < 12 else 60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
        else:
            assert process.returncode == 0
            break
        finally:
            process.stdout.close()
    assert kills >= 4

    async def look() -> None:
        rig = Rig(tmp_path)
        jobs, _ = await rig.jobs.page(ANYONE, after=None, limit=10)
        assert [job.status for job in jobs] == ["completed"] * 2
        short, long = (whole(tmp_path, job) for job in jobs)
        assert [line["custom_id"] for line in long] == [str(number) for number in range(600)]
        assert [line["custom_id"] for line in short[:-1]] == [str(number) for number in range(len(short) - 1)]
        assert short[-1]["error"]["code"] == "invalid_json_line"
        await rig.service.stop()

    asyncio.run(look())
