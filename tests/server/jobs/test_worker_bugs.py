"""The runner when it meets a bug: the job it happened to fails, the others go on, and nothing spins."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from inflight.server.jobs.line_files import JobInput, Outputs
from inflight.server.jobs.lines import line_id
from inflight.server.jobs.store import LineAnswer
from inflight.server.tenants import ANYONE

from .rig import Rig, jsonl, live, request_line, until


def test_a_line_that_cannot_be_kept_at_all_ends_its_job_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(rig: Rig) -> None:
        gate = rig.answerer.gate = asyncio.Event()
        broken = await rig.create(jsonl(*(request_line(str(number), "broken") for number in range(20))))
        sound = await rig.create(jsonl(*(request_line(str(number), "sound") for number in range(20))))
        keep = rig.service._jobs.keep

        async def fails(answer: LineAnswer) -> None:
            if answer.job == broken.number and answer.line == 2:
                raise TypeError("a bug")
            await keep(answer)

        rig.service._jobs.keep = fails  # type: ignore[method-assign,assignment]
        rig.service.start()
        gate.set()
        broken, sound = await rig.ended(broken), await rig.ended(sound)
        assert (sound.status, sound.completed, rig.service.paused) == ("completed", 20, None)
        assert broken.status == "failed"
        assert [error["code"] for error in broken.errors] == ["server_error"]
        names = [line["custom_id"] for line in await rig.lines(broken.output_file_id)]
        errors = await rig.lines(broken.error_file_id)
        assert len(names) == broken.completed < 20
        assert sorted(map(int, names + [line["custom_id"] for line in errors])) == list(range(20))
        assert {line["error"]["code"] for line in errors} == {"server_error"}
        assert rig.answerer.calls[line_id(broken.id, 2)] == 1
        said = [record.exc_info for record in caplog.records if "that cannot be kept" in record.getMessage()]
        assert len(said) == 1 and said[0] is not None and isinstance(said[0][1], TypeError)

    live(tmp_path, test, start=False)


def test_an_answer_that_cannot_be_kept_is_an_error_line(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        keep = rig.service._jobs.keep

        async def fails(answer: LineAnswer) -> None:
            if answer.line == 2 and answer.is_good:
                raise TypeError("a bug")
            await keep(answer)

        rig.service._jobs.keep = fails  # type: ignore[method-assign,assignment]
        job = await rig.ended(await rig.create(jsonl(*(request_line(str(number)) for number in range(20)))))
        assert (job.status, job.completed, job.failed) == ("completed", 19, 1)
        (line,) = await rig.lines(job.error_file_id)
        assert (line["custom_id"], line["error"]["code"]) == ("1", "server_error")

    live(tmp_path, test)


class PanicException(BaseException):
    """As native code raises it: no Exception."""


def test_a_panic_is_the_end_of_its_line_alone(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.answerer.refuse = {"panic": [PanicException("index out of bounds")]}
        lines = [request_line(str(number), "panic" if number == 7 else "x") for number in range(20)]
        job = await rig.ended(await rig.create(jsonl(*lines)))
        assert (job.status, job.completed, job.failed, job.errors) == ("completed", 19, 1, [])
        (line,) = await rig.lines(job.error_file_id)
        assert line["custom_id"] == "7" and line["response"]["status_code"] == 500
        assert "bounds" not in str(line)

    live(tmp_path, test)


def test_a_job_that_meets_a_bug_leaves_every_line_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug comes while its input is read on; lines before and after it stand in a file."""

    async def test(rig: Rig) -> None:
        gate = rig.answerer.gate = asyncio.Event()
        job = await rig.create(jsonl(*(request_line(str(number)) for number in range(300))))
        await until(lambda: rig.answerer.running == 4)

        page = JobInput.page

        async def breaks(source: JobInput, without: Any, *, checked: bool = True) -> Any:
            if checked:
                raise PanicException("in a thread")
            return await page(source, without, checked=False)

        with monkeypatch.context() as patch:
            patch.setattr(JobInput, "page", breaks)
            gate.set()
            job = await rig.ended(job)
        assert job.status == "failed" and [error["code"] for error in job.errors] == ["server_error"]
        output, errors = await rig.lines(job.output_file_id), await rig.lines(job.error_file_id)
        assert (len(output), len(errors)) == (job.completed, job.failed) and job.completed >= 4
        assert sorted(int(line["custom_id"]) for line in output + errors) == list(range(300))
        assert {line["error"]["code"] for line in errors} == {"server_error"}

    live(tmp_path, test)


def test_an_end_that_meets_a_bug_is_tried_again_at_the_next_start_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, write = 0, Outputs.write

    async def fails(*_: Any) -> Any:
        nonlocal ends
        ends += 1
        raise TypeError("a bug")

    async def with_bug(rig: Rig) -> None:
        job = await rig.create(jsonl(request_line("a")))
        await until(lambda: ends == 2)  # as completed, then as failed
        with monkeypatch.context() as mended:
            mended.setattr(Outputs, "write", write)
            await rig.ended(await rig.create(jsonl(request_line("b"))))
        assert ends == 2 and (await rig.jobs.retrieve(ANYONE, job.id)).status == "finalizing"
        assert set(rig.answerer.calls.values()) == {1}

    async def without(rig: Rig) -> None:
        ((_, job), _) = await rig.jobs.page(ANYONE, after=None, limit=10)
        job = await rig.ended(job)
        assert (job.status, len(await rig.lines(job.output_file_id))) == ("completed", 1)
        assert rig.answerer.calls == {}

    with monkeypatch.context() as patch:
        patch.setattr(Outputs, "write", fails)
        live(tmp_path, with_bug)
    live(tmp_path, without)
