"""The runner when it meets a bug: the job it happened to fails, the others go on, and nothing spins."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from inflight.server.batch import runner as runner_module
from inflight.server.batch.lines import line_id
from inflight.server.batch.output_files import assemble
from inflight.server.batch.records import LineAnswer
from inflight.server.tenants import ANYONE

from .rig import Rig, jsonl, live, request_line, until


def test_an_answer_that_cannot_be_kept_ends_its_job_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(rig: Rig) -> None:
        gate = rig.answerer.gate = asyncio.Event()
        broken = await rig.create(jsonl(*(request_line(str(number), "broken") for number in range(20))))
        sound = await rig.create(jsonl(*(request_line(str(number), "sound") for number in range(20))))
        keep = rig.service._store.keep

        async def fails(answers: list[LineAnswer]) -> None:
            if any(one.job == broken.number and one.line == 2 for one in answers):
                raise TypeError("a bug")
            await keep(answers)

        rig.service._store.keep = fails  # type: ignore[method-assign,assignment]
        rig.service.start()
        gate.set()
        broken, sound = await rig.ended(broken), await rig.ended(sound)
        assert (sound.status, sound.completed, rig.service.paused) == ("completed", 20, None)
        assert broken.status == "failed" and broken.errors[0]["code"] == "server_error"
        names = [line["custom_id"] for line in await rig.lines(broken.output_file_id)]
        assert len(names) == broken.completed < 20 and "1" not in names
        assert rig.answerer.calls[line_id(broken.id, 2)] == 1
        (told,) = [record for record in caplog.records if "cannot be kept" in record.getMessage()]
        assert told.exc_info is not None and isinstance(told.exc_info[1], TypeError)

    live(tmp_path, test, start=False)


def test_an_end_that_meets_a_bug_is_tried_again_at_the_next_start_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = 0

    async def fails(*_: Any) -> Any:
        nonlocal ends
        ends += 1
        raise TypeError("a bug")

    async def with_bug(rig: Rig) -> None:
        job = await rig.create(jsonl(request_line("a")))
        await until(lambda: ends == 2)  # as completed, then as failed
        with monkeypatch.context() as mended:
            mended.setattr(runner_module, "assemble", assemble)
            await rig.ended(await rig.create(jsonl(request_line("b"))))
        assert ends == 2 and (await rig.jobs.retrieve(ANYONE, job.id)).status == "finalizing"
        assert set(rig.answerer.calls.values()) == {1}

    async def without(rig: Rig) -> None:
        ((_, job), _) = await rig.jobs.page(ANYONE, after=None, limit=10)
        job = await rig.ended(job)
        assert (job.status, len(await rig.lines(job.output_file_id))) == ("completed", 1)
        assert rig.answerer.calls == {}

    with monkeypatch.context() as patch:
        patch.setattr(runner_module, "assemble", fails)
        live(tmp_path, with_bug)
    live(tmp_path, without)
