"""Quotas of tenants: uploads are refused with numbers while they come in, and never exceed them together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from inflight.server.errors import ApiError
from inflight.server.jobs.files import Content, Quota, _usage
from inflight.server.tenants import KeysError, Tenant

from .rig import URL, Bytes, Rig, jsonl, live, refused, request_line, until

MEBIBYTE = 1 << 20
SMALL, OTHER = Tenant(name="small", max_stored_mb=2), Tenant(name="other")


class Endless(Bytes):
    """An upload that goes on; `sent`: bytes."""

    def __init__(self) -> None:
        super().__init__(b"")
        self.sent = 0

    async def content(self) -> AsyncIterator[bytes]:
        while self.sent < 100 * MEBIBYTE:
            self.sent += 1 << 16
            yield b"x" * (1 << 16)


def left(folder: Path) -> int:
    return sum(1 for name in ("files", "partial") for _ in (folder / name).iterdir())


def test_bytes_are_bounded_while_they_come(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        first = await rig.upload(b"x" * MEBIBYTE, SMALL)
        await rig.upload(b"x" * 3 * MEBIBYTE, OTHER)
        endless = Endless()
        error = await refused(rig.files.receive(SMALL, endless))
        assert (error.status, error.code, error.param) == (413, "storage_quota_exceeded", "file")
        assert "1 of 10000 files, 1.0 of 2 MiB in use" in error.message
        assert endless.sent <= MEBIBYTE + (1 << 16) and left(tmp_path) == 2
        await rig.files.delete(SMALL, first.id)
        await rig.upload(b"x" * 2 * MEBIBYTE, SMALL)
        assert (await refused(rig.upload(b"x", SMALL))).status == 413

    live(tmp_path, test)


def test_files_are_bounded(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        few = Tenant(name="few", max_stored_files=5)
        files = [await rig.upload(b"x", few) for _ in range(3)]
        files.append(await rig.upload(b"x", OTHER))
        for tenant, count in ((few, 5), (OTHER, 3)):
            while count > sum(file.tenant == tenant.name for file in files):
                files.append(await rig.upload(b"x", tenant))
            error = await refused(rig.upload(b"x", tenant))
            assert error.status == 413 and f"{count} of {count} files" in error.message

    live(tmp_path, test, max_stored_files=3)


def test_uploads_at_the_same_time_share_what_is_left(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        results = await asyncio.gather(
            *(rig.upload(b"x" * (MEBIBYTE // 2), SMALL) for _ in range(20)), return_exceptions=True
        )
        stored = [one for one in results if not isinstance(one, BaseException)]
        assert len(stored) <= 4 and all(isinstance(one, ApiError) for one in results if one not in stored)
        usage = await usage_of(rig, SMALL)
        assert usage == Quota(len(stored) * MEBIBYTE // 2, len(stored)) and left(tmp_path) == len(stored)
        while len(stored) < 4:  # what the refused ones held is given back
            stored.append(await rig.upload(b"x" * (MEBIBYTE // 2), SMALL))

    live(tmp_path, test)


def test_processes_share_what_is_left(tmp_path: Path) -> None:
    """An upload that another process receives counts from its first byte."""

    async def test(rig: Rig) -> None:
        other, waits = Rig(tmp_path, beside=True), asyncio.Event()

        class Waiting(Bytes):
            async def content(self) -> AsyncIterator[bytes]:
                yield b"x" * MEBIBYTE
                await waits.wait()

        upload = asyncio.create_task(rig.files.receive(SMALL, Waiting(b"")))
        while left(tmp_path) < 1 or (await writing(rig)) < MEBIBYTE:
            await asyncio.sleep(0.002)
        error = await refused(other.upload(b"x" * (MEBIBYTE + 1), SMALL))
        assert "0 of 10000 files, 0.0 of 2 MiB in use" in error.message
        await other.upload(b"x" * MEBIBYTE, SMALL)
        waits.set()
        await upload
        assert await usage_of(other, SMALL) == Quota(2 * MEBIBYTE, 2)
        await other.service.stop()

    live(tmp_path, test)


async def usage_of(rig: Rig, tenant: Tenant) -> Quota:
    return await rig.service._database.read(partial(_usage, tenant.name, "state = 'stored'"))


async def writing(rig: Rig) -> int:
    """Bytes of files that are being received."""
    query = "SELECT coalesce(sum(bytes), 0) FROM files WHERE state = 'writing'"
    return await rig.service._database.read(lambda connection: int(connection.execute(query).fetchone()[0]))


@pytest.mark.parametrize("cancelled", [False, True])
def test_what_is_dropped_is_removed_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    """The loop does not wait for it, and a second cancellation does not stop it."""
    discard, slow, threads = Content.discard, threading.Event(), []
    written = asyncio.Event()

    def waits(content: Content) -> None:
        threads.append(threading.current_thread())
        if cancelled:
            assert slow.wait(30)
        discard(content)

    class Stuck(Bytes):
        async def content(self) -> AsyncIterator[bytes]:
            yield b"x" * MEBIBYTE
            written.set()
            await asyncio.Event().wait()

    async def test(rig: Rig) -> None:
        monkeypatch.setattr(Content, "discard", waits)
        if cancelled:
            upload = asyncio.create_task(rig.files.receive(SMALL, Stuck(b"")))
            await written.wait()
            upload.cancel()
            await until(lambda: len(threads) == 1)
            upload.cancel()
            with pytest.raises(asyncio.CancelledError):
                await upload
            slow.set()
            await until(lambda: left(tmp_path) == 0)
            await asyncio.sleep(0.02)
        else:
            await refused(rig.upload(b"x" * 3 * MEBIBYTE, SMALL))
        assert left(tmp_path) == 0 and len(threads) == 1 and threads[0] is not threading.main_thread()

    live(tmp_path, test)


def test_outputs_count_and_are_always_written(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        content = jsonl(request_line("a", "y" * (MEBIBYTE + MEBIBYTE // 2)))
        job = await rig.ended(await rig.create(content, SMALL), SMALL)
        assert job.status == "completed" and len(await rig.lines(job.output_file_id, SMALL)) == 1
        error = await refused(rig.upload(b"x", SMALL))
        assert "2 of 10000 files, 3.0 of 2 MiB in use" in error.message
        await rig.files.delete(SMALL, job.input_file_id)
        await rig.upload(b"x", SMALL)

    live(tmp_path, test)


@pytest.mark.parametrize(
    ("tenant", "said"),
    [
        (Tenant(name="full", max_stored_mb=1), "1 of 10000 files, 1.0 of 1 MiB in use"),
        (Tenant(name="many", max_stored_files=1), "1 of 1 files, "),
    ],
)
def test_no_job_begins_where_nothing_more_may_be_kept(tmp_path: Path, tenant: Tenant, said: str) -> None:
    async def test(rig: Rig) -> None:
        content = jsonl(request_line("a", "y" * (MEBIBYTE - 200)))
        file = await rig.upload(content + b"\n" * (MEBIBYTE - len(content)), tenant)
        create = partial(rig.jobs.create, input_file_id=file.id, endpoint=URL, window="1h", metadata=None)
        error = await refused(create(tenant))
        assert (error.status, error.code, error.param) == (413, "storage_quota_exceeded", None)
        assert said in error.message and "what a job writes does not fit" in error.message
        assert (await rig.jobs.page(tenant, after=None, limit=10))[0] == []
        await rig.ended(await create(Tenant(name=tenant.name)), tenant)

    live(tmp_path, test)


@pytest.mark.parametrize(
    "limits", [{"max_stored_mb": 0}, {"max_stored_mb": "2"}, {"max_stored_files": 1.5}, {"max_stored_files": -1}]
)
def test_limits_that_are_none(limits: dict[str, object]) -> None:
    with pytest.raises(KeysError, match=r"max_stored_(mb|files) .*; give a (whole )?number above 0\.$"):
        Tenant(name="x", **limits)  # type: ignore[arg-type]
