"""Jobs in the database: answers that count once, commits that are shared, and moves that only one can make."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inflight.server.jobs.storage import StorageError
from inflight.server.jobs.store import LineAnswer
from inflight.server.tenants import ANYONE

from .rig import Rig, jsonl, live, request_line


def answer(line: int, status: int | None = 200, payload: str = "{}") -> LineAnswer:
    return LineAnswer(job=1, line=line, custom_id=str(line), status=status, payload=payload)


def with_job(folder: Path, test: Callable[[Rig, Any], Any]) -> None:
    async def whole(rig: Rig) -> None:
        await test(rig, await rig.create(jsonl(request_line("a"))))

    live(folder, whole, start=False)


def test_an_answer_counts_once_and_the_first_stays(tmp_path: Path) -> None:
    async def test(rig: Rig, job: Any) -> None:
        store = rig.service._jobs
        await asyncio.gather(
            *(store.keep(answer(line, 200 if line < 8 else status)) for line in range(10) for status in (500, None))
        )
        for one in (answer(3, 200, '{"late": 1}'), answer(10, 299), answer(11, 199)):
            await store.keep(one)
        now = await rig.jobs.retrieve(ANYONE, job.id)
        assert (now.completed, now.failed) == (9, 3)
        kept = await store.answers(job, 2, 3, 1 << 20)
        assert [(one.line, one.payload) for one in kept] == [(3, "{}"), (4, "{}"), (5, "{}")]
        assert kept[0] == answer(3) and await store.answered(job) == set(range(12))
        few = await store.answers(job, 2, 8, len("{}") + 1)
        assert [one.line for one in few] == [3, 4]

    with_job(tmp_path, test)


def test_answers_share_commits(tmp_path: Path) -> None:
    async def test(rig: Rig, job: Any) -> None:
        database, commits = rig.service._database, 0
        transact = database._transact

        def counted(begin: str, work: Any) -> Any:
            nonlocal commits
            commits += 1
            return transact(begin, work)

        database._transact = counted  # type: ignore[method-assign]
        other = threading.Event()
        database._thread.submit(other.wait, 60)  # as another commit would take
        keeping = asyncio.gather(*(rig.service._jobs.keep(answer(line)) for line in range(1, 101)))
        for _ in range(100):  # until all of them wait
            await asyncio.sleep(0)
        other.set()
        await keeping
        assert commits == 1

    with_job(tmp_path, test)


def test_an_answer_that_cannot_be_kept_takes_no_other_with_it(tmp_path: Path) -> None:
    async def test(rig: Rig, job: Any) -> None:
        store = rig.service._jobs
        nobodys = LineAnswer(job=99, line=1, custom_id=None, status=200, payload="{}")
        together = (store.keep(one) for one in (answer(1), nobodys, answer(2)))
        results = await asyncio.gather(*together, return_exceptions=True)
        assert results[0] is None and isinstance(results[1], sqlite3.IntegrityError) and results[2] is None
        assert await store.answered(job) == {1, 2}

    with_job(tmp_path, test)


def test_a_commit_that_the_disk_refuses_fails_all_that_share_it(tmp_path: Path) -> None:
    async def test(rig: Rig, job: Any) -> None:
        store, tries = rig.service._jobs, 0
        transact = store._database._transact

        def refuses(begin: str, work: Callable[[sqlite3.Connection], Any]) -> Any:
            nonlocal tries
            tries += 1
            raise StorageError("No room.")

        store._database._transact = refuses  # type: ignore[method-assign]
        store._database._thread.submit(time.sleep, 0.05)
        results = await asyncio.gather(store.keep(answer(1)), store.keep(answer(2)), return_exceptions=True)
        assert all(isinstance(one, StorageError) for one in results) and tries == 1
        store._database._transact = transact  # type: ignore[method-assign]
        await store.keep(answer(1))
        assert await store.answered(job) == {1}

    with_job(tmp_path, test)


def test_who_waits_may_go_away(tmp_path: Path) -> None:
    async def test(rig: Rig, job: Any) -> None:
        store = rig.service._jobs
        gone = asyncio.create_task(store.keep(answer(1)))
        stays = asyncio.create_task(store.keep(answer(2)))
        await asyncio.sleep(0)
        gone.cancel()
        await stays
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert 2 in await store.answered(job)

    with_job(tmp_path, test)


def test_only_one_moves_a_job(tmp_path: Path) -> None:
    async def test(rig: Rig, job: Any) -> None:
        store = rig.service._jobs
        first = await store.move(job, "in_progress", in_progress_at=5, total=1)
        second = await store.move(job, "cancelling", cancelling_at=6)
        assert first == second and (second.status, second.total, second.cancelling_at) == ("in_progress", 1, None)
        late = await store.end(job, "failed", [await rig.files.retrieve(ANYONE, job.input_file_id)], failed_at=7)
        assert late == first
        ended = await store.end(first, "failed", [], failed_at=7, errors=[{"code": "x"}])
        assert (ended.status, ended.errors) == ("failed", [{"code": "x"}]) and await store.running() == []

    with_job(tmp_path, test)
