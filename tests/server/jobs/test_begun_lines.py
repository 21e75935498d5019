"""Lines that end the process are found, tried alone, and fail at the third end; lines beside them do not."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from inflight.server.jobs.attempts import Answer, EngineEnded
from inflight.server.jobs.lines import line_id
from inflight.server.tenants import ANYONE

from .rig import Echo, Rig, jsonl, live, request_line, until

POISONED = """
import asyncio, json, os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from server.jobs.rig import Echo, Rig
from inflight.server.jobs.store import ENDED
from inflight.server.tenants import ANYONE

FIRST = sys.argv[3] == "0"  # of its lives

class Poisoned(Echo):
    async def _answer(self, url, body, *more):
        if json.loads(body)["prompt"] == "poison":
            while FIRST and self.running < 5:
                await asyncio.sleep(0)
            print(self.running + 1, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return await super()._answer(url, body, *more)

async def main():
    rig = Rig(Path(sys.argv[1]), Poisoned(), concurrency=6)
    rig.answerer.gate = asyncio.Event() if FIRST else None
    rig.service.start()
    while not all(job.status in ENDED for job in (await rig.jobs.page(ANYONE, after=None, limit=9))[0]):
        await asyncio.sleep(0.005)
    await rig.service.stop()

asyncio.run(main())
"""


def test_a_line_that_kills_the_process_does_so_three_times(tmp_path: Path) -> None:
    names = [f"innocent {number}" for number in range(20)]
    names.insert(3, "poison")

    async def prepare() -> str:
        rig = Rig(tmp_path)
        job = await rig.create(jsonl(*(request_line(name, name) for name in names)))
        await rig.service.stop()
        return job.id

    job_id, lives = asyncio.run(prepare()), []
    for life in range(4):
        command = [sys.executable, "-c", POISONED, tmp_path, Path(__file__).parents[2], str(life)]
        lives.append(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False))
    assert [one.returncode for one in lives] == [-signal.SIGKILL] * 3 + [0]
    assert [one.stdout for one in lives] == ["6\n", "1\n", "1\n", ""], "suspects are tried alone"

    async def look() -> None:
        rig = Rig(tmp_path)
        job = await rig.jobs.retrieve(ANYONE, job_id)
        good, (bad,) = await rig.lines(job.output_file_id), await rig.lines(job.error_file_id)
        assert [line["custom_id"] for line in good] == [name for name in names if name != "poison"]
        assert bad["custom_id"] == "poison" and bad["response"]["body"]["error"]["code"] == "unclean_ends"
        await rig.service.stop()

    asyncio.run(look())


def test_an_engine_that_dies_in_a_process_of_its_own_counts_too(tmp_path: Path) -> None:
    """As with several models: the server lives on."""

    async def test(rig: Rig) -> None:
        rig.answerer.refuse = {"twice": [EngineEnded("killed")] * 2, "ever": [EngineEnded("killed")] * 9}
        job = await rig.ended(await rig.create(jsonl(*(request_line(one, one) for one in ("twice", "ever", "never")))))
        assert (job.completed, job.failed) == (2, 1)
        assert [rig.answerer.calls[line_id(job.id, number)] for number in (1, 2, 3)] == [3, 3, 1]
        (line,) = await rig.lines(job.error_file_id)
        assert line["custom_id"] == "ever" and "3 times" in line["response"]["body"]["error"]["message"]

    live(tmp_path, test)


def test_a_line_that_waits_for_a_model_has_not_begun(tmp_path: Path) -> None:
    """A suspect's model may take long to load: others run meanwhile, and an end then is not the suspect's."""

    class Loading(Echo):
        is_loaded = asyncio.Event()

        async def answer(self, url: str, body: bytes, *more: Any) -> Answer:
            if b"suspect" in body and self.order:
                await self.is_loaded.wait()
            return await super().answer(url, body, *more)

    async def test(rig: Rig) -> None:
        rig.answerer.refuse = {"suspect": [EngineEnded("killed")]}
        job = await rig.create(jsonl(*(request_line(one, one) for one in ("suspect", "a", "b", "c", "d", "e"))))
        await until(lambda: len({prompt for _, prompt in rig.answerer.order}) == 6)
        query = "SELECT in_flight, ends FROM begun WHERE line = 1"
        marks = await rig.service._database.read(lambda connection: connection.execute(query).fetchall())
        assert [tuple(one) for one in marks] == [(0, 1)]
        rig.answerer.is_loaded.set()
        assert (await rig.ended(job)).completed == 6

    live(tmp_path, test, answerer=Loading())


def test_a_clean_end_is_not_counted(tmp_path: Path) -> None:
    async def stopped() -> None:
        rig = Rig(tmp_path, Echo())
        rig.answerer.gate = asyncio.Event()
        if not (await rig.jobs.page(ANYONE, after=None, limit=1))[0]:
            await rig.create(jsonl(request_line("a")))
        rig.service.start()
        await until(lambda: rig.answerer.running == 1)
        await rig.service.stop()

    for _ in range(4):
        asyncio.run(stopped())

    async def test(rig: Rig) -> None:
        job = (await rig.jobs.page(ANYONE, after=None, limit=1))[0][0]
        assert (await rig.ended(job)).completed == 1

    live(tmp_path, test)
