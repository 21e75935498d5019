"""Content that cannot be read, or moves while it is read: it fails one job, and no other."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inflight.server.jobs.store import Job
from inflight.server.tenants import ANYONE

from .rig import Rig, jsonl, live, refused, request_line, until

LINES = jsonl(*(request_line(str(number)) for number in range(300)))


async def begun(rig: Rig) -> Job:
    """A job whose first lines are in flight."""
    rig.answerer.gate = asyncio.Event()
    job = await rig.create(LINES)
    await until(lambda: rig.answerer.running == 4)
    return job


def break_disk(monkeypatch: pytest.MonkeyPatch, file_id: str) -> None:
    """It cannot read this one file."""
    opened = Path.open

    def refuses(path: Path, *given: Any) -> Any:
        if path.name == file_id:
            raise OSError(errno.EIO, "Input/output error")
        return opened(path, *given)

    monkeypatch.setattr(Path, "open", refuses)


@pytest.mark.parametrize(
    ("replace", "said"),
    [
        (lambda path: path.mkdir(), "is gone from"),
        (lambda path: path.symlink_to(path.name), "cannot be read (Too many"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_something_else_in_the_place_of_the_input(
    tmp_path: Path, replace: Callable[[Path], object], said: str, late: bool
) -> None:
    async def test(rig: Rig) -> None:
        job = await (begun(rig) if late else rig.create(LINES))
        path = tmp_path / "files" / job.input_file_id
        path.unlink()
        replace(path)
        if late:
            rig.answerer.gate.set()
        else:
            rig.service.start()
        job = await rig.ended(job)
        assert job.status == "failed" and job.errors[0]["code"] == "input_file_missing"
        assert said in job.errors[0]["message"] and rig.service.paused is None
        assert (await refused(rig.files.open(ANYONE, job.input_file_id))).status in (404, 409)
        assert (await rig.ended(await rig.create(LINES))).status == "completed"

    live(tmp_path, test, start=late)


def test_an_input_that_the_disk_cannot_read_stops_no_other_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(rig: Rig) -> None:
        waits = 0

        async def wait() -> None:
            nonlocal waits
            waits += 1
            await asyncio.Event().wait()

        rig.service._retries.wait = wait  # type: ignore[method-assign]
        late = await begun(rig)
        break_disk(monkeypatch, late.input_file_id)
        early = await rig.jobs.create(
            ANYONE, input_file_id=late.input_file_id, endpoint=late.endpoint, window="1h", metadata=None
        )
        rig.answerer.gate.set()
        await until(lambda: waits == 2)  # one would be counted, the other read on
        assert (await rig.ended(await rig.create(LINES))).status == "completed" and rig.service.paused is None
        assert [(await rig.jobs.retrieve(ANYONE, job.id)).status for job in (early, late)] == [
            "validating", "in_progress",
        ]  # fmt: skip

    live(tmp_path, test)


def test_an_input_that_the_disk_cannot_read_is_abandoned_after_some_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(rig: Rig) -> None:
        late = await begun(rig)
        with monkeypatch.context() as patch:
            break_disk(patch, late.input_file_id)
            early = await rig.jobs.create(
                ANYONE, input_file_id=late.input_file_id, endpoint=late.endpoint, window="1h", metadata=None
            )
            rig.answerer.gate.set()
            early, late = await rig.ended(early), await rig.ended(late)
        assert [job.status for job in (early, late)] == ["failed", "failed"]
        said = f"The content of the file {late.input_file_id} cannot be read (Input/output error); upload it again."
        assert [job.errors[0]["message"] for job in (early, late)] == [said, said]
        assert late.errors[1]["code"] == "lines_lost" and late.completed >= 4 and early.total == 0
        lines = await rig.lines(late.output_file_id) + await rig.lines(late.error_file_id)
        assert len(lines) == late.completed + late.failed < 300

    live(tmp_path, test)


def test_a_disk_that_comes_back_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(rig: Rig) -> None:
        job = await begun(rig)
        waits = 0
        patch = pytest.MonkeyPatch()
        break_disk(patch, job.input_file_id)

        async def wait() -> None:
            nonlocal waits
            waits += 1
            if waits == 3:
                patch.undo()

        rig.service._retries.wait = wait  # type: ignore[method-assign]
        rig.answerer.gate.set()
        job = await rig.ended(job)
        assert (job.status, job.completed, waits) == ("completed", 300, 3)

    live(tmp_path, test)
